"""How many operations a second the caching-allocator model replays.

    python -m benchmarks.caching_allocator [--quick] [--json FILE]

An operation is one malloc or one free of a random trace that keeps 500 blocks live: half of the requests below
4 KiB, the others up to 30 MiB. The peers in the same run: a naive model of the same rules, which searches flat lists,
and torch's own CPU allocator, which does the work instead of modelling it (torch.empty of as many bytes, and del).
Python's garbage collector is off while the clock runs, as in ``timeit``: a replay keeps its figures, and a collection
of everything that torch has loaded beside them takes a quarter to a half of its time.
"""

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.report import Row, arguments, publish
from minikv.memory.allocator.caching_allocator import CachingAllocator
from minikv.memory.allocator.rules import AllocatorSettings
from minikv.memory.allocator.trace import replay
from minikv.units import GIB, KIB, MIB
from tests.memory.allocator.naive_allocator import NaiveAllocator

GOAL = 200_000  # operations a second
LIVE = 500
PEER = "naive model of the same rules"
Plan = list[tuple[int, int]]  # (size, -1) allocates, (0, index) frees that live block


def plan_of(count: int, live: int) -> Plan:
    """``count`` operations that keep about ``live`` blocks in use."""
    rng, plan, held = random.Random(0), [], 0
    for _ in range(count):
        if held >= live or (held and rng.random() < 0.45):
            plan.append((0, rng.randrange(held)))
            held -= 1
        else:
            most = rng.choice([4 * KIB, 4 * KIB, MIB, 30 * MIB])
            plan.append((rng.randrange(1, most), -1))
            held += 1
    return plan


def rate(plan: Plan, malloc: Callable[[int], object], free: Callable[[object], None]) -> float:
    """Operations a second."""
    live: list[object] = []
    start = time.perf_counter()
    for size, index in plan:
        if size:
            live.append(malloc(size))
        else:
            live[index], live[-1] = live[-1], live[index]
            free(live.pop())
    return len(plan) / (time.perf_counter() - start)


def model_rate(plan: Plan, **settings: object) -> float:
    model = CachingAllocator(800 * GIB, settings=AllocatorSettings(**settings))  # type: ignore[arg-type]
    return rate(plan, model.malloc, model.free)  # type: ignore[arg-type]


def naive_rate(plan: Plan) -> float:
    model = NaiveAllocator()
    return rate(plan, model.malloc, model.free)


def torch_rate(plan: Plan) -> float:
    return rate(plan, lambda size: torch.empty(size, dtype=torch.uint8), lambda tensor: None)


def replay_rate(plan: Plan) -> float:
    """Operations a second of ``replay``: checked, with the figures kept after each operation."""
    trace: list[dict[str, object]] = []
    live: list[int] = []
    for number, (size, index) in enumerate(plan):
        if size:
            live.append(number)
            trace.append({"op": "malloc", "id": number, "size": size})
        else:
            live[index], live[-1] = live[-1], live[index]
            trace.append({"op": "free", "id": live.pop()})
    start = time.perf_counter()
    replay(trace)
    return len(trace) / (time.perf_counter() - start)


def median(measure: Callable[[], float], times: int) -> float:
    """The median of ``measure()``, with the garbage collector off."""
    rates = []
    for _ in range(times):
        gc.collect()
        gc.disable()
        try:
            rates.append(measure())
        finally:
            gc.enable()
    return statistics.median(rates)


def rows(quick: bool) -> Iterator[Row]:
    count, times = (60_000, 3) if quick else (200_000, 7)
    plan = plan_of(count, LIVE)
    many = plan_of(count, 10_000)
    naive = median(lambda: naive_rate(plan[:10_000]), times)
    cpu = median(lambda: torch_rate(plan), times)
    goal = f"at least {GOAL:,} a second"

    def row(claim: str, measure: Callable[[], float], peer: float, peer_name: str) -> Row:
        ours = median(measure, times)
        return Row(claim, ours, peer, peer_name, "operations a second", goal, ours >= GOAL)

    yield row("malloc and free", lambda: model_rate(plan), naive, PEER)
    claim = "the same, beside torch's CPU allocator"
    yield row(claim, lambda: model_rate(plan), cpu, "torch.empty, del")
    claim = "the same, expandable segments"
    yield row(claim, lambda: model_rate(plan, expandable_segments=True), naive, f"{PEER}, plain segments")
    claim = "the same, up to 10,000 blocks live"
    yield row(claim, lambda: model_rate(many), naive, f"{PEER}, {LIVE} live")
    claim = "replay, with the figures after each"
    yield row(claim, lambda: replay_rate(plan), naive, f"{PEER}, no figures")


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    publish(rows(options.quick), options.json)


if __name__ == "__main__":
    main()
