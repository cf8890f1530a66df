"""Loads: the requests to an engine, its model and its few blocks; and the answers of ``generate()``.

Three small models on a CPU: tiny-gqa gets the 48 prompts. The other two loads are short, and cover cases that tiny-gqa
lacks: windows and a softcap (a random Gemma 2), keys longer than values and a block size that is no power of two
(tiny-mla).
"""

import random
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Any

from minikv.nano.sequence import SamplingParams

GIB = 2**30
_VOCABULARY = 96  # of the random model, and of the prompts to the tiny ones


@dataclass(frozen=True)
class LoadRequest:
    prompt: list[int]
    params: SamplingParams


@dataclass(frozen=True)
class Load:
    """``requests`` to ``model``, all at once. ``num_blocks`` fit on the imagined GPU: too few for all requests."""

    model: str
    requests: tuple[LoadRequest, ...]
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int


def loads(small: bool = False) -> list[Load]:
    """The loads of a run; ``small``: a third of the prompts, for tests."""
    most = 16 if small else 48
    return [
        Load("tiny-gqa", _requests("tiny-gqa", most, 4), 22, 4, 6, 12),
        Load("gemma-2", _requests("gemma-2", 12, 8), 11, 8, 5, 24),
        Load("tiny-mla", _requests("tiny-mla", 12, 3), 13, 3, 5, 10),
    ]


def _requests(name: str, count: int, block_size: int) -> tuple[LoadRequest, ...]:
    """Prompts with shared prefixes, some of whole blocks, some longer than a step; two of four are sampled."""
    draw = random.Random(name)

    def tokens(length: int) -> list[int]:
        return [draw.randrange(3, _VOCABULARY) for _ in range(length)]

    one, other, shared = tokens(block_size), tokens(block_size), tokens(2 * block_size)
    # The same block behind two different ones: digests have to differ. And the same tokens in another order.
    stems = [one + shared, other + shared, shared + one, shared[::-1] + other, [], tokens(5 * block_size)]
    ends = [1, block_size, 3, 2 * block_size + 1, 5, block_size - 1]
    requests: list[LoadRequest] = []
    while len(requests) < count:
        number = len(requests)
        prompt = stems[number % len(stems)] + tokens(ends[number * 5 // 3 % len(ends)])
        if number % 7 == 6:
            prompt = requests[-5].prompt  # the same prompt again
        temperature, top_p = ((0.0, 1.0), (0.0, 1.0), (0.8, 1.0), (1.3, 0.7))[number % 4]
        params = SamplingParams(
            draw.choice([6, 11, 18]), temperature, top_p, seed=number, ignore_eos=number % 3 > 0
        )
        requests.append(LoadRequest(prompt, params))
    return tuple(requests)


def load_model(name: str) -> Any:
    """The model of a load, on the CPU, with its own attention."""
    import torch
    from transformers import Gemma2Config, Gemma2ForCausalLM

    from minikv.nano import llm

    if name != "gemma-2":
        return llm.load(name)[0]
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=16, sliding_window=12)
    config = Gemma2Config(
        vocab_size=_VOCABULARY,
        num_attention_heads=4,
        num_key_value_heads=2,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=2.0,
        initializer_range=0.3,
        max_position_embeddings=256,
        attn_implementation="eager",  # the implementation with a softcap
        **sizes,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return Gemma2ForCausalLM(config).eval()


def generate(model: Any, requests: List[LoadRequest]) -> list[list[int]]:
    """The answers of ``model.generate()``, all requests in one static batch, shorter prompts padded on their left.

    A request that samples draws by nano's rule for its seed and the position, so it has one right answer, too.
    """
    import torch
    from transformers import LogitsProcessor

    from minikv.nano.runner import draw

    longest = max(len(request.prompt) for request in requests)
    padding = [longest - len(request.prompt) for request in requests]

    class Draw(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:  # scores [requests, vocabulary]
            for row, request in enumerate(requests):
                if request.params.temperature:
                    token = draw(scores[row], request.params, input_ids.shape[1] - padding[row])
                    scores[row] = torch.full_like(scores[row], -torch.inf)
                    scores[row, token] = 0
            return scores

    eos = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = None  # or a request that ends would pad, and end the others
    out = model.generate(
        torch.tensor([[0] * pad + one.prompt for pad, one in zip(padding, requests, strict=True)]),
        attention_mask=torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding]),
        max_new_tokens=max(request.params.max_tokens for request in requests),
        do_sample=False,
        logits_processor=[Draw()],
        pad_token_id=0,
    )
    model.generation_config.eos_token_id = eos
    ends = set([eos] if isinstance(eos, int) else eos or [])
    return [
        _ended(row[longest:].tolist(), request.params, ends)
        for row, request in zip(out, requests, strict=True)
    ]


def _ended(tokens: list[int], params: SamplingParams, eos: set[int]) -> list[int]:
    tokens = tokens[: params.max_tokens]
    ends = [] if params.ignore_eos else [place for place, token in enumerate(tokens) if token in eos]
    return tokens[: ends[0] + 1] if ends else tokens


@dataclass(frozen=True)
class Gpu:
    """An imagined GPU after a warm-up: the arguments of ``num_blocks_that_fit``, in bytes."""

    total: int
    utilization: float
    used: int
    peak: int
    current: int


def gpus(num_blocks: int, block_bytes: int) -> List[Gpu]:
    """GPUs that are too small, and larger ones; the last has room for ``num_blocks`` blocks and a part of one more."""
    draw = random.Random(f"{num_blocks}/{block_bytes}")
    found = []
    for wanted in (-5000, -3, 0, 1, 7, 60_000, 4 * num_blocks, num_blocks):
        used, current = draw.randrange(GIB, 3 * GIB), draw.randrange(GIB // 2, GIB)
        peak = current + draw.randrange(GIB // 8, GIB)
        utilization = draw.choice([0.5, 0.75, 0.9])
        room = int((wanted + draw.choice([0.25, 0.75])) * block_bytes)
        found.append(
            Gpu(int((room + used + peak - current) / utilization) + 1, utilization, used, peak, current)
        )
    return found
