"""What the lab measures with an LLM: a start, decode steps, memory over time, an out-of-memory, transfers."""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Any

import torch

from minikv import LLM, SamplingParams
from minikv.cache import PagedKVCache
from minikv.cache.offload import HostPool
from minikv.course.lessons.lgpu.card import BLOCK_SIZE, Card
from minikv.engine.ext.eviction import EvictionConfig
from minikv.engine.ext.host import transfer_speeds
from minikv.memory import MemoryStats
from minikv.memory.timeline import MemoryTimeline
from minikv.plan.preemption import TransferRates
from minikv.units import GIB, MIB

SETTLE, STEPS = 4, 12  # decode steps that do not count, and those that do
NO_SUCH_MEMORY = 2**60  # bytes that no machine has


def greedy(tokens: int) -> SamplingParams:
    """The likeliest token each time, ``tokens`` of them."""
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)


@contextmanager
def unchecked() -> Iterator[None]:
    """Leave the checks of kernel arguments out, which a lesson otherwise has on: they are work of the host."""
    before = os.environ.get("MINIKV_CHECKED")
    os.environ["MINIKV_CHECKED"] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["MINIKV_CHECKED"]
        else:
            os.environ["MINIKV_CHECKED"] = before


def prompts_of(card: Card, count: int, tokens: int, shared: int = 0) -> list[list[int]]:
    """``count`` prompts of random tokens; the first ``shared`` tokens are the same in all."""
    draw = torch.Generator().manual_seed(0)
    made = torch.randint(1, card.shape.vocabulary, (count, tokens), generator=draw)
    made[:, :shared] = made[0, :shared]
    return made.tolist()


def started(model: Any, card: Card) -> tuple[LLM, float]:
    """An LLM that takes what the card has left, and the seconds until it has given its first two tokens."""
    torch.cuda.empty_cache()  # what an earlier LLM left would count as used
    began = time.perf_counter()
    llm = LLM(model, **card.options())
    llm.generate(prompts_of(card, 1, card.context), greedy(2), progress=False)
    return llm, time.perf_counter() - began


@dataclass(frozen=True)
class Decode:
    """A decode step: its median ``seconds``, the bytes of weights and K/V that it reads, those of a cached token.

    ``resident``: tokens of a sequence in the cache at the end.
    """

    seconds: float
    num_bytes: int
    token_bytes: int
    resident: int

    @property
    def us(self) -> float:
        """Microseconds."""
        return 1e6 * self.seconds

    @property
    def gb_s(self) -> float:
        """10**9 bytes a second."""
        return self.num_bytes / self.seconds / 1e9


def decode(model: Any, card: Card, batch: int, *, context: int = 0, **options: Any) -> Decode:
    """Time decode steps of ``batch`` sequences of ``context`` tokens (0: the card's); ``options`` are the LLM's.

    The prompts are computed before, no sequence ends, and a step ends when its tokens are on the host.
    """
    context = context or card.context
    budget = max(2048, batch)
    # The sequence of the first prompt decodes while the others' prompts are computed.
    new = -(-batch * context // budget) + SETTLE + STEPS + 4
    blocks = batch * (-(-(context + new) // BLOCK_SIZE) + 1)
    options |= {"num_blocks": blocks, "max_num_seqs": batch, "max_batched_tokens": budget}
    with unchecked(), LLM(model, **options) as llm:
        for prompt in prompts_of(card, batch, context):
            llm.add_request(prompt, greedy(new), pieces=False)
        while len(llm.step().tokens) < batch:
            pass
        seconds = [_seconds(llm.step) for _ in range(SETTLE + STEPS)][SETTLE:]
        lengths = [len(llm.scheduler.sequence(name).tokens) for name in llm.scheduler.running]
        spec = llm.cache.spec
        kept = options.get("eviction")
        resident = max(lengths) if kept is None else min(max(lengths), kept.tokens.peak_resident)
        cached = sum(spec.bytes_read(min(length, resident)) for length in lengths)
    return Decode(statistics.median(seconds), read_weights(model) + cached, spec.bytes_for(1), resident)


def read_weights(model: Any) -> int:
    """Bytes of weights that a decode reads: all but the embedding, of which it takes a row a token."""
    embedding = model.get_input_embeddings().weight
    return sum(each.nbytes for each in model.parameters() if each is not embedding)


def tenth(context: int) -> EvictionConfig:
    """H2O, a tenth of ``context`` tokens: sinks, heavy hitters, and a quarter of them the latest."""
    keep = context // 10
    recent = keep // 4
    return EvictionConfig("h2o", budget=keep - recent - 4, n_sink=4, n_recent=recent)


def requests_in_thread(llm: LLM, prompts: list[list[int]], tokens: int) -> Thread:
    """Stream answers of ``tokens`` to ``prompts`` in a thread of its own, which has begun."""

    def read() -> None:
        for _ in llm.stream(prompts, greedy(tokens)):
            pass

    thread = Thread(target=read, daemon=True)
    thread.start()
    return thread


def wait_for(llm: LLM, steps: int, thread: Thread) -> None:
    """Return when ``llm`` has computed ``steps`` steps, or ``thread`` has ended."""
    while thread.is_alive() and llm.totals["steps"] < steps:
        time.sleep(0.02)


def memory_while(card: Card, run: Callable[[], object]) -> dict[str, dict[float, float]]:
    """GiB over seconds while ``run()`` runs: torch's allocated and reserved, and the driver's used bytes.

    On a CPU the resident memory of the process stands under "allocated", and there is nothing else.
    """
    with MemoryTimeline(card.device) as seen:
        run()
    return curves([(sample.seconds, sample.stats) for sample in seen.samples])


def curves(samples: list[tuple[float, MemoryStats]]) -> dict[str, dict[float, float]]:
    """GiB by seconds for each figure that the device has."""
    return {
        name: dict(points)
        for name in ("allocated", "reserved", "used")
        if (points := [*_points(name, samples)])
    }


def _points(name: str, samples: list[tuple[float, MemoryStats]]) -> Iterator[tuple[float, float]]:
    for seconds, stats in samples:
        if stats.kind == "cuda" or name == "allocated":
            yield round(seconds, 2), getattr(stats, name) / GIB


@dataclass(frozen=True)
class Survived:
    """An allocation of ``asked`` bytes that failed: the ``error``, the memory at some ``moments``, and whether the same
    request got the ``same`` answer before and after.
    """

    asked: int
    error: str
    moments: dict[str, MemoryStats]
    same: bool

    def mib(self, moment: str) -> list[float | None]:
        """MiB allocated, reserved, pinned and free; reserved and pinned only where torch caches memory, on a GPU."""
        stats = self.moments[moment]
        cached = (stats.reserved, stats.inactive_split) if stats.kind == "cuda" else (None, None)
        figures = (stats.allocated, *cached, stats.free)
        return [None if size is None else size / MIB for size in figures]


def survive(llm: LLM, card: Card) -> Survived:
    """Answer, ask for more memory than there is, and answer again."""
    asked = card.total or NO_SUCH_MEMORY
    moments, error = {}, ""
    prompt = prompts_of(card, 1, card.context)[0]
    torch.empty(
        min(asked, GIB) // 4, dtype=torch.uint8, device=card.device
    )  # freed at once: torch keeps it cached
    [first] = llm.generate([prompt], greedy(4), progress=False)
    moments["before"] = MemoryStats.read(card.device)
    try:
        torch.empty(asked, dtype=torch.uint8, device=card.device)
    except RuntimeError as failed:  # OutOfMemoryError is one; a CPU's allocator raises it as it is
        error = str(failed)
    moments["after"] = MemoryStats.read(card.device)
    [again] = llm.generate([prompt], greedy(4), progress=False)
    moments["served"] = MemoryStats.read(card.device)
    same = first.completions[0].token_ids == again.completions[0].token_ids
    return Survived(asked, error, moments, same)


def transfer_rates(model: Any, card: Card) -> TransferRates:
    """Bytes a second of whole blocks to the host and back, and tokens a second of a prefill, measured."""
    tokens = 8 * card.context
    with LLM(model, num_blocks=-(-tokens // BLOCK_SIZE) + 4, max_num_seqs=1) as llm:
        assert isinstance(llm.cache, PagedKVCache)
        pool = HostPool(llm.cache, 16)
        out, back = transfer_speeds(pool)
        pool.close()
        prompt = prompts_of(card, 1, tokens)[0]
        seconds = [
            _seconds(partial(llm.generate, [prompt], greedy(1), salt=salt, progress=False))
            for salt in "abc"  # each under a salt of its own, so that no block is found again
        ]
    return TransferRates(out, back, prefill=tokens / min(seconds))


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
