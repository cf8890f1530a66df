"""LLM: prompts in, answers out. The loop that puts scheduler, forward and sampler together."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import Any

import torch
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer

from minikv.errors import (
    ArgumentError,
    ConfigError,
    DoesNotFitError,
    MiniKVError,
    RequestTooLargeError,
    check_count,
)
from minikv.nano.attention import attend
from minikv.nano.block_manager import BlockManager
from minikv.nano.kv_cache import KVCache, block_bytes, num_blocks_that_fit, token_bytes
from minikv.nano.runner import forward, make_batch, sample
from minikv.nano.scheduler import Scheduler, Step
from minikv.nano.sequence import SamplingParams, Sequence
from minikv.plan.spec.cache_spec import CacheSpec

ATTENTION = "minikv_nano"  # the name of `attend` in transformers' AttentionInterface
TINY = ("tiny-gqa", "tiny-mla")  # two trained models that ship with minikv


@dataclass(frozen=True)
class RequestOutput:
    """The answer to one prompt. ``num_cached`` prompt tokens came from the prefix cache."""

    text: str
    token_ids: list[int]
    finish_reason: str
    num_cached: int


class LLM:
    """A decoder of transformers with a paged cache and continuous batching.

    ``model``: "tiny-gqa", "tiny-mla", a folder, a hub id, or a model of transformers with its ``tokenizer``.
    ``num_blocks``: blocks of the cache, of ``block_size`` tokens each; None measures on a GPU how many fit. A
    step computes at most ``max_num_batched_tokens`` tokens of at most ``max_num_seqs`` sequences.

    Raises ``ConfigError`` for a model with anything but plain attention in all layers.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        num_blocks: int | None = None,
        block_size: int = 16,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
        gpu_memory_utilization: float = 0.9,
    ):
        sizes = {
            "block_size": block_size,
            "max_num_seqs": max_num_seqs,
            "num_blocks": 1 if num_blocks is None else num_blocks,
        }
        for name, value in (sizes | {"max_num_batched_tokens": max_num_batched_tokens}).items():
            check_count(name, value)
        self.model, self.tokenizer = load(model) if isinstance(model, str) else (model, tokenizer)
        self.device = self.model.device
        self.block_size = block_size
        self.spec = check_model(self.model)
        AttentionInterface.register(ATTENTION, attend)
        own = self.model.config._attn_implementation
        self.model.set_attn_implementation(ATTENTION)
        try:  # with one token: what a layer cannot do, it says now
            self.cache = self.make_cache(1)
            self.run(self.warm_up(1))
        except ConfigError:
            self.model.set_attn_implementation(own)
            raise
        if num_blocks is None:
            num_blocks = self.measure_num_blocks(max_num_batched_tokens, gpu_memory_utilization)
        self.cache = self.make_cache(num_blocks)
        self.scheduler = Scheduler(BlockManager(num_blocks, block_size), max_num_seqs, max_num_batched_tokens)
        eos = self.model.generation_config.eos_token_id
        self.eos = frozenset([eos] if isinstance(eos, int) else eos or [])
        self.num_requests = 0

    def generate(self, prompts: Any, params: Any = None) -> list[RequestOutput]:
        """Answer ``prompts``, texts or lists of token ids, one or many. ``params`` is for all, or a list."""
        if not isinstance(prompts, str | list | tuple):
            raise ArgumentError("llm_prompts", value=type(prompts).__name__)
        one = isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], int))
        prompts = [prompts] if one else list(prompts)
        each = params if isinstance(params, list) else [params or SamplingParams()] * len(prompts)
        if len(each) != len(prompts):
            raise ArgumentError("llm_one_each", what="params", given=len(each), count=len(prompts))
        seqs = [self.make_sequence(prompt, wanted) for prompt, wanted in zip(prompts, each, strict=True)]
        self.scheduler.waiting.extend(seqs)
        while self.scheduler.waiting or self.scheduler.running:
            self.step()
        return [self.output(seq) for seq in seqs]

    def stream(self, prompt: Any, params: SamplingParams | None = None) -> Iterator[str]:
        """The answer to one prompt, piece by piece, as its tokens are made."""
        seq = self.add_request(prompt, params or SamplingParams())
        told = ""
        try:
            while not seq.finish_reason:
                self.step()
                text = self.text(seq)
                if seq.finish_reason or not text.endswith("\ufffd"):  # half a character is no text yet
                    yield text[len(told) :]
                    told = text
        finally:
            if not seq.finish_reason:  # the caller has stopped reading
                self.scheduler.abort(seq)

    def add_request(self, prompt: Any, params: SamplingParams) -> Sequence:
        """Let a request wait for its turn. ``step`` serves it."""
        seq = self.make_sequence(prompt, params)
        self.scheduler.waiting.append(seq)
        return seq

    def make_sequence(self, prompt: Any, params: SamplingParams) -> Sequence:
        """Tokenize ``prompt``. Raises ``RequestTooLargeError`` for what the whole cache could not hold."""
        tokens = list(self.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt)
        if not tokens:
            raise ArgumentError("nano_empty")
        vocabulary = self.model.get_input_embeddings().num_embeddings
        for token in tokens:
            if type(token) is not int:
                raise ArgumentError("bad_tokens", value=type(token).__name__)
            if not 0 <= token < vocabulary:
                raise ArgumentError("llm_token", token=token, last=vocabulary - 1)
        stored = len(tokens) + params.max_tokens - 1  # the last token is never read, so it needs no K and V
        blocks, most = self.scheduler.blocks, self.spec.max_positions or stored
        if blocks.blocks_for(stored) > blocks.num_blocks or stored > most:
            most = min(most, blocks.num_blocks * blocks.block_size)
            raise RequestTooLargeError("nano_too_large", stored=stored, most=most)
        seq = Sequence(self.num_requests, tokens, len(tokens), params)
        self.num_requests += 1
        return seq

    def step(self) -> Step:
        """One forward: every sequence in it computes its next tokens, and most of them get a new one."""
        step = self.scheduler.schedule()
        next_tokens = sample(self.run(step), step)
        self.scheduler.finish(step, next_tokens, self.eos)
        return step

    def run(self, step: Step) -> torch.Tensor:
        """The logits [B, vocabulary] behind the last token of each sequence of ``step``."""
        return forward(self.model, make_batch(step, self.block_size, self.device), self.cache)

    def text(self, seq: Sequence) -> str:
        return self.tokenizer.decode(seq.answer, skip_special_tokens=True) if self.tokenizer else ""

    def output(self, seq: Sequence) -> RequestOutput:
        assert seq.finish_reason is not None
        return RequestOutput(self.text(seq), seq.answer, seq.finish_reason, seq.num_cached)

    def make_cache(self, num_blocks: int) -> KVCache:
        return KVCache(self.spec, num_blocks, self.block_size, self.model.dtype, self.device)

    def warm_up(self, num_tokens: int) -> Step:
        """A step of ``num_tokens`` tokens that stand for nothing, in the first blocks of the cache."""
        longest = self.spec.max_positions or num_tokens
        step: Step = []
        for first in range(0, num_tokens, longest):
            tokens = [0] * min(longest, num_tokens - first)
            blocks = list(range(-(-len(tokens) // self.block_size)))
            step.append((Sequence(-1, tokens, len(tokens), SamplingParams(), blocks), 0, len(tokens)))
        return step

    def measure_num_blocks(self, num_tokens: int, utilization: float) -> int:
        """How many blocks the GPU has room for, beside the weights and the largest step."""
        if self.device.type != "cuda":
            raise ArgumentError("nano_num_blocks", device=self.device.type)
        self.cache = self.make_cache(-(-num_tokens // self.block_size))
        torch.cuda.reset_peak_memory_stats()
        self.run(self.warm_up(num_tokens))
        peak = torch.cuda.max_memory_allocated() - self.cache.nbytes
        del self.cache
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        layer, itemsize = self.spec.layers[0], self.model.dtype.itemsize
        token = token_bytes(len(self.spec.layers), layer.kv_heads, layer.k_dim, layer.v_dim, itemsize)
        block, current = block_bytes(token, self.block_size), torch.cuda.memory_allocated()
        num_blocks = num_blocks_that_fit(total, utilization, total - free, peak, current, block)
        if num_blocks < 1:
            raise DoesNotFitError(
                "nano_no_blocks", total=total, used=total - free, peak=peak, current=current
            )
        return num_blocks


def load(name: str) -> tuple[Any, Any]:
    """A model and its tokenizer from a folder or the hub: safetensors only, and none of its own code."""
    with as_file(files("minikv") / "models" / "data" / name) as folder:
        path = str(folder) if name in TINY else name
        options = {"trust_remote_code": False}
        dtype = "auto" if torch.cuda.is_available() else torch.float32  # a CPU computes 16 bits slowly
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, use_safetensors=True, **options)
        tokenizer = AutoTokenizer.from_pretrained(path, **options)
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer


def check_model(model: Any) -> CacheSpec:
    """The cache that ``model`` needs. Raises ``ConfigError`` for what nano does not do.

    The layout is "hf-expanded": an MLA layer keeps a K and a V for each head, as the attention function gets
    them. The latent that `minikv.LLM` keeps is many times smaller, but takes a projection absorbed into query
    and output.
    """
    spec = CacheSpec.from_config(model.config, layout="hf-expanded", kv_dtype=model.dtype)
    rope = getattr(model.config, "rope_parameters", None) or {}
    if model.training:
        raise refusal(spec.name, "nano_training")
    if not type(model)._can_set_attn_implementation():
        raise refusal(spec.name, "nano_own_attention")
    if rope.get("rope_type") in ("longrope", "dynamic"):
        raise refusal(spec.name, "nano_rope", kind=rope["rope_type"])
    for layer in spec.layers:
        if layer.kind not in ("full", "sliding") or layer.index_bytes:
            raise refusal(spec.name, "nano_layers", kind="indexed" if layer.index_bytes else layer.kind)
        if len({(each.kv_heads, each.k_dim, each.v_dim) for each in (layer, spec.layers[0])}) > 1:
            raise refusal(spec.name, "nano_sizes")
    return spec


def refusal(model: str, why: str, **values: object) -> ConfigError:
    """The error that says what nano does not do; ``why`` is the code of a half sentence."""
    return ConfigError("nano_cannot", model=model, why=MiniKVError(why, **values))
