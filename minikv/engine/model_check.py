"""check_model: a decoder held once against its own ``generate()``: ``minikv doctor --model``. Lesson 11a.

    layers    what each layer caches: from the list of architectures, or measured
    bytes     K, V and states after some tokens: as planned, and in transformers' own cache
    tokens    greedy answers of an ``LLM``, with chunks, a shared prefix, a preemption, beside those of ``generate()``

The weights are read a few dozen times, and the model is unchanged afterwards.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minikv.cache.allocator import kv_dtype_of
from minikv.engine.llm import LLM
from minikv.engine.outputs import RequestOutput
from minikv.engine.sampling_params import SamplingParams
from minikv.i18n import text
from minikv.models import Loaded
from minikv.models.adapter import TRIAL_BLOCK
from minikv.models.cache_argument import cache_in
from minikv.models.lender import lender_of
from minikv.models.measured import measure, run_own
from minikv.models.trial import CHUNK, EXACT, LONGEST, MOST_ROUNDING, ROUNDING
from minikv.plan import CacheSpec

NEW_TOKENS = 8
STEM = 2 * TRIAL_BLOCK  # tokens with which two prompts begin
ENDS = (3, 9, 5, 17)  # the prompts' own tokens: the last two stand behind the stem
# Attributes of a layer of transformers' cache that are dicts of tensors: states, and what DeepSeek-V4 compresses
STATES = "conv_states recurrent_states compressed_kv buffer_kv buffer_gate overlap_kv overlap_gate".split()
WORDS = """A cache keeps the keys and the values of every token that a model has read, because each new token attends
to all of them. A block holds the tokens of one sequence, and sequences with the same beginning share its blocks."""


@dataclass(frozen=True)
class ModelCheck:
    """One thing that was looked at. ``state``: "ok", "note" (it was not looked at, or not in full) or "failed".

    ``key`` names the sentence in ``messages/models.toml``, ``values`` fill it in.
    """

    key: str
    state: str
    values: dict[str, Any]

    def line(self, lang: str) -> str:
        """Return a line for a terminal."""
        mark = {"ok": "ok  ", "note": "note", "failed": "FAIL"}[self.state]
        return f"[{mark}] {text(f'models.held_{self.key}', lang, **self.values)}"

    def as_dict(self, lang: str) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self) | {"text": text(f"models.held_{self.key}", lang, **self.values)}


@dataclass(frozen=True)
class _Own:
    """The model's own answer to ``prompt``: ``tokens``, their ``logits`` [tokens, vocabulary], and its cache.

    ``allowed``: how far apart two logits may be that rounding makes equal.
    """

    prompt: list[int]
    tokens: list[int]
    logits: Tensor
    cache: Any
    allowed: float


def check_model(loaded: Loaded) -> Iterator[ModelCheck]:
    """Yield each check as soon as it is made.

    Raises ``ConfigError`` and ``ArgumentError`` for a model that an ``LLM`` refuses; it says why.
    """
    model = loaded.model
    spec = measure(model, kv_dtype=kv_dtype_of(model))
    yield _layers(spec)
    with _plain_generation(model):
        own = [_answer(model, prompt) for prompt in _prompts(model, loaded.tokenizer, spec)]
        yield _bytes(model, spec, own)
        yield from _windows(spec, own)
        longest = max(len(each.prompt) for each in own)
        with LLM(
            model,
            block_size=TRIAL_BLOCK,
            num_blocks=-(-(longest + NEW_TOKENS) // TRIAL_BLOCK),  # the longest alone fills them
            max_num_seqs=len(own),
            max_batched_tokens=max(TRIAL_BLOCK, longest - STEM - 1),  # the longest prompt comes in chunks
        ) as llm:
            params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, logprobs=0)
            outputs = llm.generate([each.prompt for each in own], params, progress=False)
            yield _tokens(llm, own, outputs)


@contextmanager
def _plain_generation(model: Any) -> Iterator[None]:
    """Let ``generate()`` be greedy to the last token, whatever the model's generation config asks for."""
    from transformers import GenerationConfig

    kept = model.generation_config
    model.generation_config = GenerationConfig(pad_token_id=0)
    try:
        yield
    finally:
        model.generation_config = kept


def _prompts(model: Any, tokenizer: Any, spec: CacheSpec) -> list[list[int]]:
    """Return four prompts, the last two with one beginning; the last passes a window that is short enough."""
    windows = [layer.window for layer in spec.layers if layer.window is not None and layer.window < LONGEST]
    last = max([ENDS[-1], *(window + CHUNK + 2 - STEM for window in windows)])
    if spec.max_positions is not None:
        last = max(1, min(last, spec.max_positions - STEM - NEW_TOKENS))
    counts = [*ENDS[:-1], last]
    ids = _ids(model, tokenizer, STEM + sum(counts))
    stem, own = ids[:STEM], iter(ids[STEM:])
    ends = [[next(own) for _ in range(count)] for count in counts]
    return [*ends[:2], *(stem + end for end in ends[2:])]


def _ids(model: Any, tokenizer: Any, count: int) -> list[int]:
    """Return tokens of a text, where there is a tokenizer for it, else random ones."""
    vocabulary = model.get_input_embeddings().num_embeddings
    ids: list[int] = []
    if tokenizer is not None:
        ids = [each for each in tokenizer(WORDS, add_special_tokens=False)["input_ids"] if each < vocabulary]
    random = np.random.default_rng(11).integers(0, vocabulary, count).tolist()
    return (ids * (1 + count // max(1, len(ids))))[:count] if len(set(ids)) > 8 else random


@torch.no_grad()
def _answer(model: Any, prompt: list[int]) -> _Own:
    ids = torch.tensor([prompt], device=model.get_input_embeddings().weight.device)
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    logits = torch.cat(out.logits).float()
    # What rounding does: the same logits from one forward of all tokens, without a cache.
    whole = model(input_ids=out.sequences[:, :-1], use_cache=False).logits[0, len(prompt) - 1 :].float()
    spread = float(whole.std())
    rounding = min(float((whole - logits).abs().max()), MOST_ROUNDING.get(model.dtype.itemsize, 0.2) * spread)
    allowed = max(EXACT * spread, ROUNDING * rounding)
    return _Own(prompt, out.sequences[0, len(prompt) :].tolist(), logits, cache_in(out), allowed)


def _layers(spec: CacheSpec) -> ModelCheck:
    kinds = Counter(layer.kind for layer in spec.layers)
    values = {
        "name": spec.name,
        "model_type": spec.model_type,
        "layers": ", ".join(f"{count} {kind}" for kind, count in kinds.items()),
        "token_bytes": spec.slope(0),
        "state_bytes": spec.constant_state_bytes,
    }
    measured = any(key == "measured" for key, _ in spec.assumptions)
    return ModelCheck("measured" if measured else "known", "ok", values)


def _bytes(model: Any, spec: CacheSpec, own: list[_Own]) -> ModelCheck:
    """Compare the bytes of the longest answer's cache, or of a few tokens' where that has not all of them."""
    longest = max(own, key=lambda each: len(each.prompt))
    count, cache = len(longest.prompt) + NEW_TOKENS - 1, longest.cache
    if getattr(cache, "layers", None) is None or lender_of(model) is not None:
        cache = run_own(model)
        count = 8
    held = sum(tensor.numel() * tensor.itemsize for layer in cache.layers for tensor in _held(layer))
    planned = spec.bytes_for(count)
    state = "ok" if held == planned else "failed"
    return ModelCheck("bytes", state, {"tokens": count, "planned": planned, "held": held})


def _held(layer: Any) -> Iterator[Tensor]:
    """Yield every tensor that a layer of transformers' cache keeps for its sequences."""
    kept = [getattr(layer, name, None) for name in ("keys", "values", "indexer_keys", "idx_keys")]
    for name in STATES:
        kept += (getattr(layer, name, None) or {}).values()
    once = {id(tensor): tensor for tensor in kept if tensor is not None}  # K may be V
    return iter(once.values())


def _windows(spec: CacheSpec, own: list[_Own]) -> Iterator[ModelCheck]:
    """Yield a note where no text was longer than a window: what happens behind it was not seen."""
    longest = max(len(each.prompt) for each in own) + NEW_TOKENS - 1
    widest = max((layer.window for layer in spec.layers if layer.window is not None), default=0)
    if widest >= longest:
        yield ModelCheck("window", "note", {"window": widest, "tokens": longest})


def _tokens(llm: LLM, own: list[_Own], outputs: list[RequestOutput]) -> ModelCheck:
    equal, ties, difference, wrong = 0, 0, 0.0, None
    for number, (each, out) in enumerate(zip(own, outputs, strict=True)):
        made, logprobs = out.token_ids, out.logprobs or ()
        for place, (token, logprob) in enumerate(zip(made, logprobs, strict=True)):
            logits = each.logits[place]
            mine = float(logits.log_softmax(-1)[token])
            difference = max(difference, abs(mine - logprob.logprob))
            if token != each.tokens[place]:  # from here on the two read different texts
                tied = float(logits.max() - logits[token]) <= each.allowed
                ties += tied
                if not tied and wrong is None:
                    wrong = {"prompt": number, "place": place, "found": token, "due": each.tokens[place]}
                break
            equal += 1
    completions = [each for out in outputs for each in out.completions]
    values = {
        "equal": equal,
        "total": len(own) * NEW_TOKENS,
        "ties": ties,
        "difference": difference,
        "reads": llm.adapter.reads,
        "steps": llm.totals["steps"],
        "cached": sum(out.num_cached for out in outputs),
        "preempted": sum(each.num_preemptions for each in completions),
    }
    if wrong is not None:
        return ModelCheck("differs", "failed", values | wrong)
    return ModelCheck("tied" if ties else "tokens", "ok", values)
