"""How fast a fleet is simulated, and whether what it says is true.

    python -m benchmarks.simulate [--quick] [--json FILE] [--trace FILE]

Speed is of one core: seconds are processor time, so that other work on the machine does not count. ``--trace``: a real
trace in Mooncake's form; without it the load is synthetic, with the lengths, the rate and the sharing of Mooncake's
conversation trace. Truth is measured on the same load: hit rates beside an LRU in a dozen lines, Little's law on the
run, and the mean wait of one server beside the closed form for M/D/1, rho D / (2 (1 - rho)).
"""

import argparse
import resource
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Row, publish
from minikv.simulate import (
    Arrival,
    Fleet,
    Load,
    StepTime,
    Trace,
    TraceRequest,
    read_mooncake,
    simulate,
    sweep,
)
from minikv.simulate.hit_rate import hit_rate, hit_rates
from minikv.units import GIB

REAL = Load(
    num_requests=12_000, rate=3.4, prompt_tokens=3_700, output_tokens=343, spread=1.4, turns=2.6, think_seconds=90,
    system_tokens=1_024, system_prompts=20, seed=1,
)  # fmt: skip
PER_MINUTE, MILLION_SECONDS, MILLION_GIB = 20_000, 600, 4
SHORT = {"prompt_tokens": 180, "output_tokens": 20}  # 200 tokens together
SHORT_RATE = 960.0  # a second: 8 replicas are busy with it, and keep up
CAPACITIES = (1_000, 10_000, 30_000, 50_000, 100_000, None)
RESIDENT = (1_000, 10_000, 100_000, 1_000_000)
FLAT = 2.0
FASTER = 1.7  # two processes than one
QUEUED = (20_000, 200_000)  # requests of a short and of a long run
MODEL, GPU = "Llama-3.1-70B", "H200"


def fleet(replicas: int = 8, **changes: Any) -> Fleet:
    given = {"tp": 8, "kv_dtype": "fp8", "block_size": 512, "router": "prefix"} | changes
    return Fleet.plan(MODEL, GPU, replicas=replicas, **given)


def speed_rows(trace: Trace, name: str) -> Iterator[Row]:
    """Requests a minute at blocks of 512, with steps counted together and one by one; Little's law on the same run."""
    began = time.process_time()
    outcome = simulate(trace, fleet())
    seconds = time.process_time() - began
    rate = 60 * len(trace) / seconds
    goal = f"at least {PER_MINUTE:,}"
    yield Row(
        f"{len(trace):,} requests of {name}",
        rate,
        PER_MINUTE,
        "the goal",
        "requests a minute",
        goal,
        rate >= PER_MINUTE,
    )
    yield together_row(
        "alike decode steps counted together", trace.head(max(1, len(trace) // 6)), fleet(), 1.0
    )
    law = outcome.answers().littles_law
    goal = "equal to 1 part in a million"
    claim = "Little's law: requests in the system"
    yield Row(
        claim, law.in_system, law.rate * law.time, "rate x time of each", "requests", goal, law.error < 1e-6
    )


def together_row(claim: str, trace: Trace, of: Fleet, most: float) -> Row:
    """Processor seconds with decode steps counted together, and with every step scheduled: ``most`` times as long."""
    seconds, outcomes = [], []
    for stepwise in (False, True):
        began = time.process_time()
        outcomes.append(simulate(trace, of, stepwise=stepwise))
        seconds.append(time.process_time() - began)
    together, apart = outcomes
    equal = all(
        np.array_equal(getattr(together, name), getattr(apart, name))
        for name in ("finish", "replica", "host_tokens")
    )
    equal = equal and together.replicas == apart.replicas
    goal = f"the same outcome in at most {most:.0%} of the time"
    ours, peer = seconds
    return Row(claim, ours, peer, "one by one", "s", goal, equal and ours <= most * peer)


def boundary_rows(trace: Trace) -> Iterator[Row]:
    """The same where windows give blocks back, and where a pool too small for its load evicts to host memory."""
    blocks = {"replicas": 1, "router": "prefix", "block_size": 64}
    windows = Fleet.plan("gpt-oss-20b", GPU, **blocks)
    yield together_row("the same with layers that have windows", trace, windows, 0.7)
    host = Fleet.plan("Llama-3.1-8B", GPU, utilization=0.25, host_kv_bytes=200 * GIB, **blocks)
    yield together_row("the same with evictions to host memory", trace, host, 0.7)


def hit_rate_rows(trace: Trace, name: str) -> Iterator[Row]:
    """At each capacity the block pool and the one pass over stack distances, beside a plain LRU."""
    longest = max(-(-request.prompt_tokens // trace.hash_block) for request in trace.requests)
    capacities = [blocks for blocks in CAPACITIES if blocks is None or blocks >= longest]
    passed = dict(zip(capacities, hit_rates(trace, capacities), strict=True))
    for blocks in capacities:
        ours, peer = hit_rate(trace, blocks), plain_lru(trace, blocks)
        size = "without limit" if blocks is None else f"{blocks:,} blocks"
        holds = round(ours, 3) == round(peer, 3) and passed[blocks] == ours
        goal = "equal to three digits, and to the one pass"
        yield Row(
            f"hit rate of {name}, {size}", ours, peer, "a plain LRU", "share of the tokens", goal, holds
        )


def plain_lru(trace: Trace, num_blocks: int | None) -> float:
    """The share of the prompts' tokens in the run of cached blocks at their beginning."""
    cached: OrderedDict[Any, None] = OrderedDict()
    hits = 0
    for index, request in enumerate(trace.requests):
        count = -(-request.prompt_tokens // trace.hash_block)
        names = request.hash_ids or [(index, place) for place in range(count)]
        found = next((place for place, name in enumerate(names) if name not in cached), count)
        hits += min(found * trace.hash_block, request.prompt_tokens)
        for name in names:
            cached.pop(name, None)
            cached[name] = None
        while num_blocks is not None and len(cached) > num_blocks:
            cached.popitem(last=False)
    return hits / trace.prompt_tokens


def flat_rows(quick: bool) -> Iterator[Row]:
    """Microseconds of one request of 200 tokens beside so many cached blocks, each as many as the last ones."""
    times = {}
    for resident in RESIDENT[: 3 if quick else 4]:
        times[resident] = beside(resident, 2_000 if quick else 10_000)
    small = times[RESIDENT[0]]
    for resident, ours in times.items():
        if resident != RESIDENT[0]:
            claim = f"a request beside {resident:,} cached blocks"
            yield Row(claim, ours, small, "beside 1,000", "us", f"within {FLAT:g}x", ours <= FLAT * small)


def beside(resident: int, count: int) -> float:
    """Fill a pool of ``resident`` blocks with cached prompts, then time ``count`` short requests that evict them."""
    size, chunk = 16, 12_000
    filling = [TraceRequest(0.0, chunk, 1)] * (resident * size // chunk + 1)
    short = [
        TraceRequest(1e9 + 0.01 * index, SHORT["prompt_tokens"], SHORT["output_tokens"])
        for index in range(count)
    ]
    trace = Trace("fill", (*filling, *short))
    clock = StepTime.of_model("Llama-3.1-8B", GPU)
    replica = Fleet(clock, resident, size, max_num_seqs=64, max_batched_tokens=2048).replica()
    for index in range(len(filling)):
        replica.enqueue(Arrival(trace, index, size))
        replica.advance(1e9 - 1)
    began = time.process_time()
    for index in range(len(filling), len(trace)):
        arrival = Arrival(trace, index, size)
        replica.advance(arrival.time)
        replica.enqueue(arrival)
    replica.advance()
    return 1e6 * (time.process_time() - began) / count


def queue_row(count: int) -> Row:
    """One server, ``count`` requests one at a time, all alike, at random moments: the mean time in the queue."""
    service = StepTime.of_model("Llama-3.1-8B", GPU)
    one = Fleet(service, 64, 16, max_num_seqs=1, max_batched_tokens=1024)
    seconds = service.seconds(prefill=[(0, 512)])
    load = 0.8
    at = np.cumsum(np.random.default_rng(5).exponential(seconds / load, count))
    trace = Trace("M/D/1", tuple(TraceRequest(float(moment), 512, 1) for moment in at))
    ours = float(simulate(trace, one).queued.mean())
    peer = load * seconds / (2 * (1 - load))
    within = 0.1 if count < QUEUED[1] else 0.05
    holds = abs(ours / peer - 1) <= within
    return Row(
        "M/D/1, 80 % busy: mean wait",
        1e3 * ours,
        1e3 * peer,
        "closed form",
        "ms",
        f"within {within:.0%}",
        holds,
    )


def million_rows(count: int) -> Iterator[Row]:
    """``count`` short requests in blocks of 16, in a process of their own: seconds of its core, and its memory."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.simulate", "--short", str(count)],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, gib = map(float, done.stdout.split())
    most = MILLION_SECONDS * count / 1_000_000
    name = f"{count:,} requests of 200 tokens"
    yield Row(f"{name}, blocks of 16", seconds, most, "the goal", "s", f"under {most:g}", seconds < most)
    yield Row(
        f"{name}, host memory", gib, MILLION_GIB, "the goal", "GiB", f"under {MILLION_GIB}", gib < MILLION_GIB
    )


def short_requests(count: int) -> None:
    """What ``million_rows`` times: made and simulated here. Prints processor seconds and GiB at the most."""
    began = time.process_time()
    load = Load(num_requests=count, rate=SHORT_RATE, spread=0.0, seed=2, **SHORT)
    outcome = simulate(load.trace(), Fleet.plan("Llama-3.1-8B", GPU, replicas=8))
    assert np.isfinite(outcome.finish).all()
    print(time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def sweep_row(trace: Trace) -> Row:
    """A sweep of eight fleets one after the other, then two at once: how many times as fast. Seconds of the wall."""
    values = {"replicas": (6, 7, 8, 9), "router": ("prefix", "least-loaded")}
    seconds, found = [], []
    for jobs in (1, 2):
        began = time.perf_counter()
        found.append([row.answers for row in sweep(trace, fleet, jobs=jobs, **values)])
        seconds.append(time.perf_counter() - began)
    ours, equal = seconds[0] / seconds[1], found[0] == found[1]
    goal = f"at least {FASTER:g}, the same figures to the last bit"
    return Row(
        "a sweep of 8 fleets with 2 jobs", ours, 2, "2 cores", "times as fast", goal, equal and ours >= FASTER
    )


def rows(quick: bool, path: Path | None) -> Iterator[Row]:
    trace = REAL.trace() if path is None else read_mooncake(path)
    name = "a synthetic load" if path is None else path.stem
    yield from speed_rows(trace.head(1_500) if quick else trace, name)
    yield from boundary_rows(trace.head(150 if quick else 600))
    yield sweep_row(trace.head(1_000 if quick else 3_000))
    yield from hit_rate_rows(trace, name)
    yield queue_row(QUEUED[0] if quick else QUEUED[1])
    yield from flat_rows(quick)
    yield from million_rows(10_000 if quick else 1_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="end within 60 s on 2 cores")
    parser.add_argument("--json", type=Path, help="write the rows, the device and the versions here")
    parser.add_argument("--trace", type=Path, help="a real trace in Mooncake's form")
    parser.add_argument("--short", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.short is not None:
        short_requests(options.short)
        return
    publish(rows(options.quick, options.trace), options.json)


if __name__ == "__main__":
    main()
