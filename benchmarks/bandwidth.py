"""What this machine's memory gives, level by level and in four access patterns, and what its arithmetic gives.

    python -m benchmarks.bandwidth [--quick] [--json FILE]

Bandwidth is bytes read and written, a second, in 10**9. A read is amax over the working set many times in one call,
a gather is torch.take of float32 by int64 indices. Each figure is the best of several: whatever else runs on the
machine can only lower it. The peer of a level of the pyramid is the level below it, the peer of memory is torch's own
copy (and, where the catalogue knows the card, its data sheet), the peer of a pattern is the random one, the peer of
a matrix product is numpy's, or the data sheet.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy
import torch

from benchmarks.report import Row, arguments, device, publish
from minikv.errors import ArgumentError, UnknownNameError
from minikv.memory import (
    access_patterns,
    bandwidth_curve,
    cache_sizes,
    copy_bandwidth,
    levels,
    matmul_rate,
    read_bandwidth,
)
from minikv.memory.access import ROW_BYTES
from minikv.memory.bandwidth import BandwidthPoint, seconds_of
from minikv.plan import find_gpu
from minikv.plan.roofline import gpu_roof
from minikv.units import GIB, format_bytes

NEEDS_GPU = True  # a part of python -m tools.gpu
UNIT = "10**9 bytes a second"
FLOPS = "10**12 FLOP a second"


def at_least(claim: str, ours: float, peer: float, peer_name: str, ratio: float, unit: str = UNIT) -> Row:
    return Row(claim, ours, peer, peer_name, unit, f"at least {ratio:g} times the peer", ours >= ratio * peer)


def best(measure: Callable[[], Sequence[BandwidthPoint]], times: int) -> list[BandwidthPoint]:
    """Of each point the best of ``times`` measurements; what is measured together takes turns."""
    runs = [measure() for _ in range(times)]
    return [max(points, key=lambda point: point.gb_s) for points in zip(*runs, strict=True)]


def pyramid(times: int) -> Iterator[Row]:
    """Each level against the one below it, as one core sees them; then memory against a copy and the data sheet."""
    found = levels(best(lambda: bandwidth_curve(cores=1), times), cache_sizes())
    for upper, lower in itertools.pairwise(found):
        claim = f"read, {sizes(upper.points)}: {upper.name}"
        yield at_least(claim, upper.gb_s, lower.gb_s, f"read of what {lower.name} holds", 1.2)
    memory, copy = best(lambda: [read_bandwidth(GIB), copy_bandwidth(GIB)], times)
    yield at_least("read, 1 GiB, all cores", memory.gb_s, copy.gb_s, "torch's copy of 0.5 GiB", 0.8)
    if torch.cuda.is_available():
        try:
            sheet = find_gpu(device()).bandwidth_gb_s
        except UnknownNameError:
            return
        yield at_least("the same, beside the data sheet", memory.gb_s, sheet, "its promise", 0.75)


def patterns(times: int) -> Iterator[Row]:
    """One core's gather in four orders, and of rows as long as a block of 16; the coalesced one also against a copy."""
    *four, blocks, copy = best(
        lambda: [
            *access_patterns(cores=1),
            *access_patterns(patterns=("random_rows",), row_bytes=16 * ROW_BYTES, cores=1),
            copy_bandwidth(GIB, cores=1),
        ],
        times,
    )
    points = {point.what: point for point in four}
    random, coalesced = points["random"], points["coalesced"]
    where = format_bytes(random.working_set)
    for pattern, ratio in (("coalesced", 2.0), ("random_rows", 1.5), ("per_thread", 1.0)):
        claim = f"gather of {where}, {pattern}"
        yield at_least(claim, points[pattern].gb_s, random.gb_s, "the same in random order", ratio)
    claim = f"gather of {where}, blocks of 16 rows"
    yield at_least(claim, blocks.gb_s, coalesced.gb_s, "the same in memory order", 0.5)
    yield at_least(
        "gather, coalesced, beside a copy", coalesced.gb_s, copy.gb_s, "torch's copy of 0.5 GiB", 0.2
    )


def arithmetic(times: int) -> Iterator[Row]:
    """The other side of a roof: a product in torch beside the data sheet, or beside numpy's on a CPU."""
    rate = max((matmul_rate() for _ in range(times)), key=lambda one: one.tflops)
    side = round((rate.flops / 2) ** (1 / 3))
    claim = f"product of two {side} x {side} matrices, {rate.dtype}"
    if not torch.cuda.is_available():
        a, b = (numpy.ones((side, side), dtype=numpy.float32) for _ in range(2))
        seconds = min(seconds_of(lambda: a @ b, torch.device("cpu"), repeats=75) for _ in range(times))
        yield at_least(claim, rate.tflops, rate.flops / seconds / 1e12, "numpy's", 0.5, FLOPS)
        return
    try:
        sheet = gpu_roof(find_gpu(device())).tflops
    except (UnknownNameError, ArgumentError):
        return
    yield at_least(claim, rate.tflops, sheet, "the data sheet's promise", 0.5, FLOPS)


def sizes(points: tuple[BandwidthPoint, ...]) -> str:
    """ "16 to 32 KiB": the working sets of a level."""
    first, last = (format_bytes(points[index].working_set) for index in (0, -1))
    return first if first == last else f"{first} to {last}"


def rows(quick: bool) -> Iterator[Row]:
    times = 2 if quick else 8
    yield from pyramid(times)
    yield from patterns(times)
    yield from arithmetic(times)


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    publish(rows(options.quick), options.json, on="cuda")


if __name__ == "__main__":
    main()
