"""What fewer bytes of K and V give, and what they cost: 8 bits beside bfloat16, and windows that give blocks back.

    python -m benchmarks.kv_bytes [--quick] [--json FILE]

Capacity is counted in a cache that is really allocated, from the same bytes, scales included. Recall and logit error
compare runs that differ in what the cache stores and in nothing else. Windows run to four times their length; the peak
comes from the engine's events. Nothing here is timed, so a busy machine changes no figure.

Recall may be a point lower than bfloat16's, but for fp8_e5m2 beyond the length of training, where it may be four. A
small error of a logit moves as many answers over their margin to the one side as to the other, to first order; what is
lost on the whole grows with its square. e5m2 has 2 bits of mantissa and e4m3 has 3, so its numbers lie twice as far
apart (5.3 % of a number is the root mean square of its rounding error, against 2.7 %), and where e4m3 may lose a point
e5m2 loses four. On 3,200 questions of 513 tokens each, tiny-gqa loses to bfloat16, in points:

    fp8_e4m3                            0.4 +- 0.3
    fp8_e5m2                            2.9 +- 0.5     (tiny-mla: 1.0 +- 0.3)
    rounded up or down at random        1.7 +- 0.6
    K alone, V alone                    1.9 +- 0.5, 0.6 +- 0.2
    all numbers times 0.6, 0.7, 0.85    1.8, 1.8, 2.9, each +- 0.5: other numbers fall between two steps
    a scale a token and head            0.4 +- 0.4     (tiny-mla: 0.8 +- 0.3)

A scale narrows no step, but the largest number of each row is exact. It takes 4 bytes a row, and fp8_scaled, which is
e4m3 with such a scale, loses nothing in as many bytes. So e5m2 has none, and its advantage is a GPU below compute
capability 8.9, which reads e5m2 and not e4m3.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.kernels_timing import Detailed, tell
from benchmarks.kv_bytes_models import TINY, WINDOW, WINDOWED, llama_like
from benchmarks.report import Row, arguments, publish
from minikv import LLM, SamplingParams
from minikv.engine import EventLog
from minikv.engine.recall import measure_recall
from minikv.models import load, recall_documents
from minikv.models.fidelity import forced_logits, logit_error
from minikv.plan import CacheSpec
from minikv.plan.pool import kv_cache_groups, sequence_bytes

NEEDS_GPU = True  # a part of python -m tools.gpu
PLAIN = "bf16"
SMALLER = ("fp8_e4m3", "fp8_e5m2", "fp8_scaled", "int8")
HEADS_OF_128 = "Llama-like, heads of 128"
MIB = 2**20
BLOCK = 16
DOUBLE = 1.9  # of bfloat16's capacity: what "half the bytes" has to leave after the scales
MOST_LOST = 0.01  # of the questions
TRAINED = 257  # tokens of the longest document that the tiny models were trained on
LOST_BEYOND = {"fp8_e5m2": 4 * MOST_LOST}  # twice e4m3's steps, squared
# How far neighbouring numbers lie apart, beside bfloat16's 2**-7 of an element: 2**-3 and 2**-2 in the float formats,
# and in int8 1/127 of the row's largest element, which among 128 of a normal distribution is 2.7 deviations. Small
# errors add up in proportion; a quarter more is left for those that are not small.
STEPS = {"fp8_e4m3": 16, "fp8_e5m2": 32, "fp8_scaled": 16, "int8": 4}
MORE_THAN_STEPS = 1.25
# Tokens of a recall document: its sizes. At 513 the tiny models lean on attention that they have never learned, and
# small errors of K decide about many more answers.
LENGTHS: dict[int, dict[str, int]] = {
    129: {"facts": 12, "context": 64, "queries": 16, "span": 64},
    257: {"facts": 24, "context": 192, "queries": 16, "span": 64},
    513: {"facts": 24, "context": 448, "queries": 16, "span": 64},
}
PREFILL = 193  # of 257 tokens; the other 64 are decoded


@dataclass(frozen=True)
class Scale:
    """``kv_bytes`` for the capacity, ``documents`` of each of ``lengths`` for recall, ``texts`` for the logits."""

    kv_bytes: int
    documents: int
    lengths: tuple[int, ...]
    texts: int


FULL, QUICK = Scale(16 * MIB, 50, (129, 257, 513), 16), Scale(16 * MIB, 8, (129, 257), 2)


def rows(scale: Scale) -> Iterator[Row]:
    models = {name: load(name).model for name in TINY} | {HEADS_OF_128: llama_like()}
    for name, model in models.items():
        yield from capacity_rows(name, model, scale.kv_bytes)
    yield from at_once_rows(HEADS_OF_128, models[HEADS_OF_128])
    for name in TINY:
        for length in scale.lengths:
            yield from recall_rows(name, models[name], length, scale.documents)
    for name, model in models.items():
        yield from logit_rows(name, model, scale.texts)
    for name, make in WINDOWED.items():
        yield from window_rows(name, make(), WINDOW)


def capacity_rows(name: str, model: Any, kv_bytes: int) -> Iterator[Row]:
    """Tokens that ``kv_bytes`` hold, beside bfloat16."""
    held = {dtype: _held(model, dtype, kv_bytes) for dtype in (PLAIN, *SMALLER)}
    bytes_of = {dtype: CacheSpec.from_config(model.config, kv_dtype=dtype).bytes_for(1) for dtype in held}
    for dtype in SMALLER:
        planned = bytes_of[PLAIN] / bytes_of[dtype]
        tokens, allocated = held[dtype]
        goal, least = f"at least {DOUBLE}x", DOUBLE * held[PLAIN][0]
        if planned < DOUBLE:  # heads are so narrow that a scale of 4 bytes beside each weighs more
            goal, least = f"the plan's {planned:.2f}x", planned * held[PLAIN][0] - BLOCK
        details = {"B a token": bytes_of[dtype], "B a token in bf16": bytes_of[PLAIN]}
        details |= {"allocated B": allocated}
        tell(details)
        claim = f"{name}: tokens in {kv_bytes // MIB} MiB, {dtype}"
        holds = tokens >= least and allocated <= kv_bytes
        yield Detailed(claim, tokens, held[PLAIN][0], PLAIN, "tokens", goal, holds, details)


def at_once_rows(name: str, model: Any, prompt: int = 152, new: int = 8, most: int = 12) -> Iterator[Row]:
    """How many requests really run at once, where ``most`` fit in bfloat16."""
    spec = CacheSpec.from_config(model.config, kv_dtype=PLAIN)
    kv_bytes = most * sequence_bytes(spec, prompt + new, BLOCK)
    sizes = (kv_bytes, prompt, new, 2 * most + 1)
    running = {dtype: _running(model, dtype, *sizes) for dtype in (PLAIN, *SMALLER)}
    for dtype in SMALLER:
        claim = f"{name}: {prompt + new} tokens at once, {dtype}"
        ours, peer = running[dtype], running[PLAIN]
        yield Row(claim, ours, peer, PLAIN, "requests", f"at least {DOUBLE}x", ours >= DOUBLE * peer)


def recall_rows(name: str, model: Any, length: int, documents: int) -> Iterator[Row]:
    """The share of right answers, beside bfloat16's; ``own`` is that of the model's own dtype."""
    asked = recall_documents(documents, **LENGTHS[length])
    found = {}
    for dtype in (None, PLAIN, *SMALLER):
        with LLM(model, kv_bytes=64 * MIB, kv_dtype=dtype) as llm:
            found[dtype] = measure_recall(llm, asked)
    for dtype in SMALLER:
        ours, peer = found[dtype], found[PLAIN]
        details = {"questions": ours.asked, "right": ours.right, "right in bf16": peer.right}
        details |= {"right in the model's own dtype": found[None].right}
        tell(details)
        most = LOST_BEYOND.get(dtype, MOST_LOST) if length > TRAINED else MOST_LOST
        claim = f"{name}: recall at {length} tokens, {dtype}"
        goal = f"at most {100 * most:g} point{'s' if most > MOST_LOST else ''} lower"
        holds = ours.share >= peer.share - most
        yield Detailed(claim, 100 * ours.share, 100 * peer.share, PLAIN, "%", goal, holds, details)


def logit_rows(name: str, model: Any, texts: int) -> Iterator[Row]:
    """The mean error of a logit, beside bfloat16's."""
    tokens = _texts(name, model, texts)
    exact = forced_logits(model, tokens, prefill=PREFILL)
    errors = {
        dtype: logit_error(forced_logits(model, tokens, prefill=PREFILL, kv_dtype=dtype), exact)
        for dtype in (PLAIN, *SMALLER)
    }
    for dtype in SMALLER:
        ours, peer = errors[dtype], errors[PLAIN]
        details = asdict(ours) | {"max_abs in bf16": peer.max_abs, "kl in bf16": peer.kl}
        tell(details)
        claim, most = f"{name}: mean error of a logit, {dtype}", MORE_THAN_STEPS * STEPS[dtype]
        goal = f"at most {most:g}x, for steps {STEPS[dtype]}x as wide"
        holds = ours.mean_abs <= most * peer.mean_abs
        yield Detailed(claim, ours.mean_abs, peer.mean_abs, PLAIN, "logits", goal, holds, details)


def window_rows(name: str, model: Any, window: int, sequences: int = 4, prompt: int = 32) -> Iterator[Row]:
    """The most blocks that requests of four windows' tokens hold, in bytes: beside the plan's, and without windows."""
    tokens = 4 * window
    random = np.random.default_rng(0)
    prompts = random.integers(1, model.config.vocab_size, (sequences, prompt)).tolist()
    log = EventLog()
    with LLM(model, num_blocks=sequences * -(-tokens // BLOCK), block_size=BLOCK, emit=log) as llm:
        # The last token that is generated is never stored.
        params = SamplingParams(temperature=0, max_tokens=tokens - prompt + 1, ignore_eos=True)
        llm.generate(prompts, params, progress=False)
        groups = [group.block_bytes(BLOCK) for group in llm.cache.kv_cache_groups]
        kv_dtype = llm.cache.spec.kv_dtype
    peaks = [max(counts) for counts in zip(*(step.used for step in log.of("step")), strict=True)]
    held = sum(map(int.__mul__, peaks, groups))
    # This layout says what a query sees, itself included, which is what has to be in the blocks.
    spec = CacheSpec.from_config(model.config, layout="vllm", kv_dtype=kv_dtype)
    planned = sequences * sequence_bytes(spec, tokens, BLOCK)
    full = sequences * -(-tokens // BLOCK) * sum(group.block_bytes(BLOCK) for group in kv_cache_groups(spec))
    details: Mapping[str, Any] = {
        "peak blocks": peaks,
        "B a block": groups,
        "sequences": sequences,
        "steps": len(log.of("step")),
    }
    tell(details)
    claim = f"{name}, window {window}: K and V at {tokens} tokens"
    peer, goal = "the plan's sequence_bytes", "the same"
    yield Detailed(claim, held / MIB, planned / MIB, peer, "MiB", goal, held == planned, dict(details))
    yield Row(claim, held / MIB, full / MIB, "without windows", "MiB", "less", held < full)


def _held(model: Any, kv_dtype: str, kv_bytes: int) -> tuple[int, int]:
    """Tokens for which an engine allocates blocks, and the bytes of those blocks."""
    with LLM(model, kv_bytes=kv_bytes, kv_dtype=kv_dtype, block_size=BLOCK) as llm:
        return llm.cache.num_blocks[0] * BLOCK, llm.cache.nbytes


def _running(model: Any, kv_dtype: str, kv_bytes: int, prompt: int, new: int, requests: int) -> int:
    random, log = np.random.default_rng(0), EventLog()
    prompts = random.integers(1, model.config.vocab_size, (requests, prompt)).tolist()
    options = {"max_num_seqs": requests, "max_batched_tokens": requests * prompt}
    with LLM(model, kv_bytes=kv_bytes, kv_dtype=kv_dtype, block_size=BLOCK, emit=log, **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
        llm.generate(prompts, params, progress=False)
    return max(step.running for step in log.of("step"))


def _texts(name: str, model: Any, count: int) -> np.ndarray:
    """Recall documents for a model that reads them, else random tokens: int64 [count, 257]."""
    if name in TINY:
        return np.stack([document.tokens for document in recall_documents(count)])
    return np.random.default_rng(0).integers(1, model.config.vocab_size, (count, 257))


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    publish(rows(QUICK if options.quick else FULL), options.json, on="cuda")


if __name__ == "__main__":
    main()
