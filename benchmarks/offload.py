"""Host memory behind the engine: swap against recompute, and prefix blocks from the host against computing them.

    python -m benchmarks.offload [--quick] [--json FILE]

One load of greedy requests on a pool that is too small for them: as their answers grow, sequences are preempted.
Every preemption is forced to swap, forced to recompute, or decided by what was measured. The three schedule alike, so
the steps in which they differ can be compared one by one. Then prompts that come again after their blocks were
overwritten on the device, with host memory and without. On a CPU, in seconds of one thread: what else runs on the
machine takes other seconds. On a GPU by the wall clock, and first the transfers alone: the bytes a second each way
beside a copy of pinned memory, and the share of a transfer that is hidden behind a step's arithmetic.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.engine_cases import QWEN3_06B, SMALL, ModelShape, config_of, random_model
from benchmarks.kernels_timing import Detailed, tell
from benchmarks.report import Row, Step, arguments, publish
from minikv import LLM, SamplingParams
from minikv.cache import HostPool, PagedKVCache
from minikv.course.your_engine.ways import RaceLoad, RaceRequest
from minikv.engine import EventLog, StepEvent, summary
from minikv.plan import CacheSpec
from minikv.plan.preemption import TransferRates
from minikv.units import MIB

NEEDS_GPU = True  # a part of python -m tools.gpu
SWAP = TransferRates(to_host=1e12, to_device=1e12, prefill=1e-3)
RECOMPUTE = TransferRates(to_host=1e-3, to_device=1e-3, prefill=1e12)
RATES = {"swap": SWAP, "recompute": RECOMPUTE, "decided": None}
BLOCK_SIZE = 16
AT_MOST_SLOWER = 1.10  # the decided run beside the better of the two
OF_PINNED, HIDDEN = 0.8, 0.8  # goals of a transfer: of a pinned copy's bytes a second, and behind a step
TRANSFER_BYTES, STEP_SIZE, REPEATS = 512 * MIB, 4096, 5


@dataclass(frozen=True)
class Size:
    """Prompts of ``least`` to ``most`` tokens and answers of ``new``; the pool has room for ``fits`` mean prompts.

    ``prefix``: tokens of the prompts that come again.
    """

    shape: ModelShape
    requests: int
    least: int
    most: int
    new: int
    fits: int
    rounds: int
    prefix: int

    @property
    def num_blocks(self) -> int:
        longest = -(-(self.most + self.new) // BLOCK_SIZE)
        return max(longest, self.fits * (self.least + self.most) // (2 * BLOCK_SIZE) + 1)

    @property
    def host_bytes(self) -> int:
        """Room for every request at its longest."""
        return self.requests * (self.most + self.new) * self.shape.token_bytes

    def load(self) -> RaceLoad:
        draw = np.random.default_rng(0)
        lengths = draw.integers(self.least, self.most + 1, self.requests).tolist()
        prompts = [tuple(draw.integers(1, self.shape.vocabulary, length).tolist()) for length in lengths]
        name = f"{self.requests} of {self.least}-{self.most} tokens in, {self.new} out"
        return RaceLoad(name, tuple(RaceRequest(prompt, self.new) for prompt in prompts))


QUICK = Size(replace(SMALL, name="2 layers x 512", layers=2), 6, 32, 48, 64, 4, 2, 192)
FULL = Size(SMALL, 32, 64, 128, 384, 16, 3, 512)


@dataclass(frozen=True)
class Run:
    """One run of a load. ``steps`` are (seconds, tokens, whether a sequence lost its blocks or got them back).

    ``how`` counts the preemptions, ``costs`` are the estimates of each in seconds.
    """

    steps: tuple[tuple[float, int, bool], ...]
    tokens: tuple[tuple[int, ...], ...]
    how: Counter
    costs: tuple[tuple[float, float], ...]
    moved_bytes: int

    @property
    def seconds(self) -> float:
        return sum(seconds for seconds, _, _ in self.steps)

    @property
    def computed(self) -> int:
        return sum(tokens for _, tokens, _ in self.steps)


def run(model: Any, load: RaceLoad, size: Size, rates: TransferRates | None) -> Run:
    log = EventLog()
    with LLM(
        model,
        num_blocks=size.num_blocks,
        block_size=BLOCK_SIZE,
        max_model_len=size.most + size.new,
        cpu_kv_bytes=size.host_bytes,
        swap_rates=rates,
        emit=log,
        clock=clock_of(model),
    ) as llm:
        prompts = [list(request.prompt) for request in load.requests]
        params = [SamplingParams(temperature=0, max_tokens=request.new) for request in load.requests]
        outputs = llm.generate(prompts, params, progress=False)
    told = log.of("preempt")
    moved = sum(event.bytes or 0 for kind in ("swap_out", "swap_in", "host_hit") for event in log.of(kind))
    return Run(
        tuple(_steps(log)),
        tuple(out.completions[0].token_ids for out in outputs),
        Counter(event.how for event in told),
        tuple((event.swap_seconds, event.recompute_seconds) for event in told),
        moved,
    )


def _steps(log: EventLog) -> Iterator[tuple[float, int, bool]]:
    touched = False
    for event in log.events:
        if isinstance(event, StepEvent):
            yield event.seconds, event.prefill_tokens + event.decode_tokens, touched
            touched = False
        touched = touched or event.kind in ("preempt", "swap_in")


def of_preemption(runs: dict[str, list[Run]]) -> dict[str, float]:
    """The seconds of the steps in which the ways differ, each step's fastest of all rounds.

    The ways schedule alike: what one computes again in a step another brings back in the same step.
    """
    known = {name: [each.steps for each in of_way] for name, of_way in runs.items()}
    count = {len(steps) for of_way in known.values() for steps in of_way}
    if len(count) != 1:
        raise RuntimeError(f"the ways took different numbers of steps: {sorted(count)}")
    places = [
        place
        for place in range(count.pop())
        if any(of_way[0][place][2] for of_way in known.values())
        or len({of_way[0][place][1] for of_way in known.values()}) > 1
    ]
    return {
        name: sum(min(steps[place][0] for steps in of_way) for place in places)
        for name, of_way in known.items()
    }


def preemption_rows(model: Any, size: Size) -> Iterator[Row]:
    load = size.load()
    run(model, replace(size, new=4).load().first(2), size, SWAP)  # what libraries do once is done
    runs: dict[str, list[Run]] = {name: [] for name in RATES}
    for _ in range(size.rounds):
        for name, rates in RATES.items():
            runs[name].append(run(model, load, size, rates))
    seconds = of_preemption(runs)
    first = {name: each[0] for name, each in runs.items()}
    decided = [one for each in runs["decided"] for one in each.costs]
    estimates = [median(cost[way] for cost in decided) for way in (0, 1)] if decided else [0.0, 0.0]
    says = "swap" if estimates[0] < estimates[1] else "recompute"
    details = {
        "load": load.name,
        "blocks": size.num_blocks,
        "preemptions": sum(first["recompute"].how.values()),
    }
    details |= {f"{name}, whole run, s": min(one.seconds for one in each) for name, each in runs.items()}
    details |= {f"{name}, tokens computed": one.computed for name, one in first.items()}
    details |= {"bytes moved": first["swap"].moved_bytes, "decided": dict(first["decided"].how)}
    details |= {"estimate of a swap, s": estimates[0], "of a recompute, s": estimates[1]}
    tell(details)

    same = len({one.tokens for each in runs.values() for one in each}) == 1
    claim = f"{size.shape.name}: runs with equal tokens"
    count = sum(len(each) for each in runs.values())
    yield Detailed(claim, count if same else 0, count, "all", "runs", "all of them", same, details)

    ours, peer = seconds["swap"], seconds["recompute"]
    faster = "swap" if ours < peer else "recompute"
    claim, goal = f"{size.shape.name}: steps with preemptions, swap", f"the decision ({says}) is the faster"
    holds = bool(decided) and faster == says
    yield Detailed(claim, ours, peer, "the same steps, recompute", "s", goal, holds, details)

    claim, better = f"{size.shape.name}: the same, decided by measuring", min(ours, peer)
    goal = f"at most {AT_MOST_SLOWER - 1:.0%} slower"
    holds = seconds["decided"] <= AT_MOST_SLOWER * better
    yield Detailed(claim, seconds["decided"], better, "the better of the two", "s", goal, holds, details)


def prefix_row(model: Any, size: Size) -> Row:
    """Four prompts, one after another, twice; the device holds two of them."""
    length = size.prefix
    load = replace(size, least=length, most=length, requests=4).load()
    prompts = [list(request.prompt) for request in load.requests]
    blocks = 2 * -(-length // BLOCK_SIZE) + 1
    seconds: dict[str, list[float]] = {"host": [], "none": []}
    tokens, hits = set(), 0.0
    for _ in range(size.rounds):
        for name, host in (
            (
                "host",
                {"cpu_kv_bytes": len(prompts) * (length + 16) * size.shape.token_bytes, "swap_rates": SWAP},
            ),
            ("none", {}),
        ):
            log, params = EventLog(), SamplingParams(temperature=0, max_tokens=2)
            with LLM(model, num_blocks=blocks, block_size=BLOCK_SIZE, emit=log, **host) as llm:
                for prompt in prompts:
                    llm.generate([prompt], params, progress=False)
                log.events.clear()
                clock = clock_of(model)
                began = clock()
                outputs = [llm.generate([prompt], params, progress=False)[0] for prompt in prompts]
                seconds[name].append(clock() - began)
            tokens.add(tuple(out.completions[0].token_ids for out in outputs))
            hits = max(hits, summary(log.events).host_hit_rate)
    ours, peer = min(seconds["host"]), min(seconds["none"])
    details = {"prompts": len(prompts), "tokens each": length, "from the host": hits}
    tell(details)
    claim, goal = f"{size.shape.name}: prefixes from the host", "faster, with equal tokens"
    return Detailed(claim, ours, peer, "computed again", "s", goal, ours < peer and len(tokens) == 1, details)


def clock_of(model: Any) -> Callable[[], float]:
    """The wall clock where the work is a GPU's; else the seconds of this thread."""
    return time.perf_counter if model.device.type == "cuda" else time.thread_time


@dataclass(frozen=True)
class Transfers:
    """Seconds of one swap each way, of a copy of as many bytes of pinned memory each way, of a step's arithmetic
    alone, and of both at once.
    """

    nbytes: int
    out: float
    back: float
    pinned_out: float
    pinned_back: float
    step: float
    both: float

    @property
    def hidden(self) -> float:
        """The share of the shorter of transfer and step that the other covers: 1 where both at once take no longer
        than the longer one, 0 where they take as long as one after the other.
        """
        saved = self.step + self.back - self.both
        return saved / min(self.step, self.back)


def measure_transfers(
    shape: ModelShape, device: torch.device, num_bytes: int = TRANSFER_BYTES, side: int = STEP_SIZE
) -> Transfers:
    """Whole blocks of ``num_bytes`` to the host and back; the step is products of [side, side] matrices that take
    about as long as the way back. Each the median of ``REPEATS``, by the wall clock.
    """
    spec = CacheSpec.from_config(config_of(shape), kv_dtype="bf16")
    blocks = max(1, num_bytes // (shape.token_bytes // 2 * BLOCK_SIZE))
    cache = PagedKVCache(spec, blocks, BLOCK_SIZE, device=device)
    pool = HostPool(cache, blocks)
    pairs = [[(block, block) for block in range(blocks)] for _ in cache.kv_cache_groups]
    pinned = device.type == "cuda"
    lying = torch.zeros(pool.nbytes, dtype=torch.uint8, device=device)
    aside = torch.zeros(pool.nbytes, dtype=torch.uint8, pin_memory=pinned)
    a = torch.randn(side, side, device=device)

    def seconds(*calls: Callable[[], Any]) -> float:
        times = []
        for _ in range(REPEATS + 1):  # the first one allocates
            _wait(device)
            began = time.perf_counter()
            for call in calls:
                call()
            pool.synchronize()
            _wait(device)
            times.append(time.perf_counter() - began)
        return median(times[1:])

    def swap(way: Callable[[Any], Any]) -> Callable[[], None]:
        def moved() -> None:
            for piece in pool.pieces(pairs):
                way(piece)

        return moved

    try:
        out, back = seconds(swap(pool.swap_out)), seconds(swap(pool.swap_in))
        pinned_out = seconds(lambda: aside.copy_(lying, non_blocking=True))
        pinned_back = seconds(lambda: lying.copy_(aside, non_blocking=True))
        products = max(1, round(back / seconds(lambda: a @ a)))

        def step() -> None:
            for _ in range(products):
                torch.mm(a, a)

        # The transfer is queued first, as the engine does: what follows on the current stream runs beside it.
        alone, both = seconds(step), seconds(swap(pool.swap_in), step)
        return Transfers(pool.nbytes, out, back, pinned_out, pinned_back, alone, both)
    finally:
        pool.close()
        cache.close()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def transfer_rows(name: str, found: Transfers) -> Iterator[Row]:
    """GB/s each way beside a pinned copy, and how much of a transfer is hidden behind a step."""
    gb, mib = found.nbytes / 1e9, f"{found.nbytes / MIB:.0f} MiB"
    peer, goal = "a copy of pinned memory", f"at least {OF_PINNED:.0%}"
    for way, ours, theirs in (
        ("to the host", found.out, found.pinned_out),
        ("to the device", found.back, found.pinned_back),
    ):
        claim, holds = f"{name}: swap of {mib} {way}", theirs >= OF_PINNED * ours
        yield Row(claim, gb / ours, gb / theirs, peer, "GB/s", goal, holds)
    details = {"step, ms": 1e3 * found.step, "swap in, ms": 1e3 * found.back, "both, ms": 1e3 * found.both}
    tell(details)
    claim, goal = f"{name}: swap hidden behind a step", f"at least {HIDDEN:g}"
    yield Detailed(claim, found.hidden, 1.0, "all of it", "share", goal, found.hidden >= HIDDEN, details)


def rows(size: Size, device: torch.device) -> Iterator[Row | Step]:
    if device.type == "cuda":  # on a CPU a transfer is a copy, and nothing runs beside it
        yield Step("transfers", lambda: transfer_rows(QWEN3_06B.name, measure_transfers(QWEN3_06B, device)))
    model = random_model(size.shape, device, torch.float32)
    yield Step("preemption", lambda: preemption_rows(model, size))
    yield Step("prefix", lambda: iter([prefix_row(model, size)]))


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    publish(rows(QUICK if options.quick else FULL, device), options.json, on="cuda")


if __name__ == "__main__":
    main()
