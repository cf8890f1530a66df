"""Record what a real caching allocator says after every operation of random traces, for machines without a GPU.

    python -m tools.gpu.traces --json FILE

One row a trace. Its operations are lines of numbers; bytes are in units of 512, which divide every figure:

    "+ SIZE STREAM ADDRESS  A B C D"     malloc of SIZE bytes (here single bytes) on stream 0, 1 or 2
    "- N  A B C D"                       free of what the N-th malloc (from 0) returned
    "e  A B C D"                         empty_cache

ADDRESS counts from the row's "base", A to D say by how much allocated, active, reserved and inactive split bytes
rose. "final" holds every statistic of ``torch.cuda.memory_stats`` that the model has, after the last operation.
``difference`` replays a row in the model.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from benchmarks.report import kept, write_rows
from minikv.memory.allocator.caching_allocator import CachingAllocator
from minikv.memory.allocator.rules import MIN_BLOCK_SIZE as UNIT
from minikv.units import GIB, MIB

TRACES, OPERATIONS = 100, 60
MOST = 4 * GIB  # bytes that a trace keeps live
EDGES = (1, 511, 512, 513, MIB - 512, MIB, MIB + 1, 2 * MIB, 10 * MIB - 512, 10 * MIB, 10 * MIB + 1, 20 * MIB)
FIGURES = ("allocated_bytes", "active_bytes", "reserved_bytes", "inactive_split_bytes")
_NAMES = ("allocation", "active", "segment", "inactive_split", "requested_bytes", *FIGURES)
STATISTICS = (
    *(
        f"{name}.{pool}.{part}"
        for name in _NAMES
        for pool in ("all", "small_pool", "large_pool")
        for part in ("current", "peak", "allocated", "freed")
    ),
    *("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free"),
)
Operation = tuple[str, int, int]  # ("+", size, stream), ("-", number of the malloc, 0), ("e", 0, 0)


class Device(Protocol):
    """An allocator that can be driven by hand: the GPU's, or the model."""

    def malloc(self, size: int, stream: int, address: int | None) -> int: ...
    def free(self, address: int) -> None: ...
    def empty_cache(self) -> None: ...
    def memory_stats(self) -> dict[str, int]: ...


class RealDevice:
    """torch's allocator on the current GPU. Streams 1 and 2 are streams of our own."""

    def __init__(self) -> None:
        import torch

        self.cuda = torch.cuda
        self.device = torch.cuda.current_device()
        self.streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]

    def reset(self) -> None:
        """Nothing cached, statistics from 0. Raises ``RuntimeError`` where something else holds memory."""
        self.cuda.synchronize()
        self.cuda.empty_cache()
        if self.cuda.memory_reserved():
            raise RuntimeError(
                f"{self.cuda.memory_reserved():,} bytes are held already: record in a new process"
            )
        self.cuda.reset_peak_memory_stats()
        self.cuda.reset_accumulated_memory_stats()

    def malloc(self, size: int, stream: int, address: int | None = None) -> int:
        return self.cuda.caching_allocator_alloc(size, self.device, self.streams[stream])

    def free(self, address: int) -> None:
        self.cuda.caching_allocator_delete(address)

    def empty_cache(self) -> None:
        self.cuda.empty_cache()

    def memory_stats(self) -> dict[str, int]:
        return self.cuda.memory_stats()


class ModelDevice:
    """The same calls on minikv's model. ``address`` is where a new segment goes."""

    def __init__(self) -> None:
        self.model = CachingAllocator()
        self.free, self.empty_cache = self.model.free, self.model.empty_cache
        self.memory_stats = self.model.memory_stats

    def malloc(self, size: int, stream: int, address: int | None = None) -> int:
        return self.model.malloc(size, stream, address=address)


def operations(seed: int, count: int = OPERATIONS) -> Iterator[Operation]:
    """``count`` operations of a random trace: small, odd and large sizes, three streams, now and then empty_cache."""
    rng = random.Random(seed)
    live: list[tuple[int, int]] = []  # (number of the malloc, size)
    number = held = 0
    for _ in range(count):
        kind = rng.random()
        if not live or (kind < 0.55 and held < MOST):
            size = _size(rng)
            yield "+", size, rng.randrange(3)
            live.append((number, size))
            held, number = held + size, number + 1
        elif kind < 0.95 or held >= MOST:
            place, size = live.pop(rng.randrange(len(live)))
            held -= size
            yield "-", place, 0
        else:
            yield "e", 0, 0


def _size(rng: random.Random) -> int:
    kind = rng.random()
    if kind < 0.2:
        return rng.choice(EDGES)
    return rng.randrange(1, 64 * 1024 if kind < 0.5 else rng.choice([MIB, 12 * MIB, 80 * MIB]))


def record(seed: int, device: Device, count: int = OPERATIONS) -> dict[str, Any]:
    """One row: what ``device``, which holds nothing yet, did and said. It holds nothing of ours afterwards."""
    told, addresses, freed = [], [], set()
    before = [0] * len(FIGURES)
    for op, value, stream in operations(seed, count):
        if op == "+":
            addresses.append(device.malloc(value, stream, None))
        elif op == "-":
            device.free(addresses[value])
            freed.add(value)
        else:
            device.empty_cache()
        now = _figures(device)
        told.append((op, value, stream, [new - old for new, old in zip(now, before, strict=True)]))
        before = now
    final = device.memory_stats()
    for place, address in enumerate(addresses):
        if place not in freed:
            device.free(address)
    base, order = min(addresses), iter(addresses)
    return {
        "trace": seed,
        "base": base,
        "operations": [_line(entry, base, order) for entry in told],
        "final": " ".join(str(final[name]) for name in STATISTICS),
    }


def _line(entry: tuple[str, int, int, list[int]], base: int, addresses: Iterator[int]) -> str:
    op, value, stream, moved = entry
    head = [op, *{"+": [value, stream], "-": [value], "e": []}[op]]
    if op == "+":
        head.append(_units(next(addresses) - base))
    return " ".join(map(str, [*head, *map(_units, moved)]))


def _units(size: int) -> int:
    if size % UNIT:
        raise ValueError(f"{size:,} bytes are no multiple of {UNIT}")
    return size // UNIT


def _figures(device: Device) -> list[int]:
    stats = device.memory_stats()
    return [stats[f"{name}.all.current"] for name in FIGURES]


def difference(row: dict[str, Any], device: Device | None = None) -> str:
    """Where the model and a recorded row part: the operation, the name, theirs and ours. "" where they are equal."""
    device = ModelDevice() if device is None else device
    addresses: list[int] = []
    expected = [0] * len(FIGURES)
    for place, line in enumerate(row["operations"]):
        op, *numbers = line.split()
        values = [int(number) for number in numbers]
        expected = [old + UNIT * moved for old, moved in zip(expected, values[-len(FIGURES) :], strict=True)]
        if op == "+":
            size, stream, offset = values[:3]
            given = row["base"] + UNIT * offset
            addresses.append(device.malloc(size, stream, given))
            if addresses[-1] != given:
                return f"trace {row['trace']}, operation {place} ({line}): address {given:#x}, ours {addresses[-1]:#x}"
        elif op == "-":
            device.free(addresses[values[0]])
        else:
            device.empty_cache()
        for name, theirs, ours in zip(FIGURES, expected, _figures(device), strict=True):
            if theirs != ours:
                return f"trace {row['trace']}, operation {place} ({line}): {name} {theirs:,}, ours {ours:,}"
    stats = device.memory_stats()
    for name, theirs in zip(STATISTICS, map(int, row["final"].split()), strict=True):
        if theirs != stats[name]:
            return f"trace {row['trace']}, at the end: {name} {theirs:,}, ours {stats[name]:,}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="write the traces here, after each of them")
    options = parser.parse_args()
    device, rows = RealDevice(), kept(options.json).get("rows", [])  # of a run that was cut
    differences = []
    for seed in range(len(rows), TRACES):
        device.reset()
        rows.append(record(seed, device))
        write_rows(options.json, rows, complete=seed == TRACES - 1)
        found = difference(rows[-1])
        differences += [found] if found else []
    print(f"{len(rows)} traces of {OPERATIONS} operations; the model differs in {len(differences)}")
    print(*differences[:20], sep="\n")
    return 0  # what was recorded is what the device said; the tests judge the model


if __name__ == "__main__":
    raise SystemExit(main())
