"""What one multiprocessor of a GPU holds at a time, how many bytes must be under way to it, and when its work is done.

Arithmetic on figures that a compiler and a data sheet give, without Triton and without a GPU. A program is one Triton
program, which CUDA calls a block of threads.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

REGISTERS = 65536  # 32-bit registers of a multiprocessor, on every GPU since Kepler
PARTITIONS = 4  # of a multiprocessor: each has a quarter of the registers and of the warps
SYSTEM_BYTES = 1024  # of shared memory, which CUDA takes for each program from compute capability 8.0 on
# The time between a load's issue and its data, in seconds: an assumption until a GPU has been asked (0.8 to 1.0 us).
LATENCY_S = 0.9e-6

SPLIT_WAVES = 4  # splits of a batch for each program that the GPU holds at a time


@dataclass(frozen=True)
class Limits:
    """What a multiprocessor holds at a time: KiB of shared memory, warps and programs."""

    shared_kib: int
    warps: int
    programs: int


# CUDA C++ programming guide, technical specifications per compute capability.
LIMITS = {
    75: Limits(64, 32, 16), 80: Limits(164, 64, 32), 86: Limits(100, 48, 16), 87: Limits(164, 48, 16),
    89: Limits(100, 48, 24), 90: Limits(228, 64, 32), 100: Limits(228, 64, 32), 120: Limits(100, 48, 24),
}  # fmt: skip


def occupancy(capability: int, registers: int, num_warps: int, shared_bytes: int) -> int:
    """Return how many programs a multiprocessor holds at a time; 0 if not even one fits.

    ``registers`` are those of a thread. A warp gets them in multiples of 256, from the quarter that it runs on.
    """
    limits = LIMITS[capability]
    a_warp = 32 * 8 * -(-max(registers, 1) // 8)
    by_registers = PARTITIONS * (REGISTERS // PARTITIONS // a_warp) // num_warps
    each = shared_bytes + (SYSTEM_BYTES if capability >= 80 else 0)
    by_memory = 1024 * limits.shared_kib // each if each else limits.programs
    return min(by_registers, by_memory, limits.warps // num_warps, limits.programs)


def little(bandwidth: float, multiprocessors: int, latency_s: float = LATENCY_S) -> float:
    """Return the bytes that must be under way to each multiprocessor for ``bandwidth`` bytes a second: Little's law."""
    return bandwidth * latency_s / multiprocessors


def bytes_under_way(
    programs: int, multiprocessors: int, at_once: int, tile_bytes: int, buffers: int = 1
) -> float:
    """Return the bytes under way to a multiprocessor while a grid of ``programs`` runs, on average.

    It holds ``at_once`` programs at a time. Of n ``buffers`` of ``tile_bytes`` n - 1 are being filled while one is
    read. A single one is read as long as it is filled, half of the time each.
    """
    return min(programs / multiprocessors, at_once) * tile_bytes * max(0.5, buffers - 1)


def split_tiles(total: int, own: int, splits: int, wave: int, least: int) -> int:
    """Return the tiles of each split of a sequence of ``own`` tiles, in a batch of ``total``.

    All splits are about alike, as many as fill the GPU ``SPLIT_WAVES`` times, so that the last ones leave little of it
    idle. A split has ``least`` tiles, since its result costs bytes too, unless the GPU would not be full even once:
    ``wave`` splits fill it. No sequence has more than ``splits``.
    """
    share = max(-(-total // (SPLIT_WAVES * wave)), min(-(-total // wave), least))
    return max(share, -(-own // splits), 1)


def splits_of(tiles: Sequence[int], splits: int, wave: int, least: int) -> list[int]:
    """Return the splits of each sequence of a batch by its ``tiles`` of keys; an empty one has one, too."""
    total = sum(tiles)
    return [max(1, -(-own // split_tiles(total, own, splits, wave, least))) for own in tiles]


def most_parts(rows: int, splits: int, wave: int, queries: int = 1) -> int:
    """Return the most partial results, whatever the lengths, of ``rows`` queries, at most ``queries`` a sequence.

    All tiles make at most ``SPLIT_WAVES * wave`` splits of the share that ``split_tiles`` gives. A sequence's last
    split may be shorter, so the sum of all ``splits_of`` is at most one more for each sequence.
    """
    return min(rows * splits, rows + queries * SPLIT_WAVES * wave)


@dataclass(frozen=True)
class Schedule:
    """How one attention kernel's programs fill the GPU.

    ``efficiency`` is the time of equal shares over that of the program that ends last; ``last_wave`` the share of the
    slots that have work in the last wave; ``empty`` the programs without keys; ``part_bytes`` the float32 results of
    all splits.
    """

    efficiency: float
    last_wave: float
    programs: int
    empty: int
    part_bytes: int


def makespan(
    lengths: Sequence[int],
    queries: Sequence[int] | int,
    *,
    kv_heads: int,
    group: int,
    block_m: int,
    block_n: int,
    slots: int,
    splits: Sequence[int] | int = 1,
    descending: bool = True,
    dim: int = 128,
    spare: int = 0,
) -> Schedule:
    """Return how ``slots`` programs at a time get through causal attention, each slot taking the next when it is free.

    Sequence i has ``lengths[i]`` keys and the last ``queries[i]`` of them as queries, and ``splits[i]`` splits; one
    number stands for all. A tile of ``block_n`` keys takes one unit of time. ``descending``: each sequence's tiles of
    rows begin with the longest. ``spare`` programs come last and find no work, for which each takes one unit.
    """
    batch = len(lengths)
    each_queries = [queries] * batch if isinstance(queries, int) else list(queries)
    each_splits = [splits] * batch if isinstance(splits, int) else list(splits)
    costs = list(
        _costs(lengths, each_queries, each_splits, kv_heads, group, block_m, block_n, descending=descending)
    )
    work = [cost for cost in costs if cost]
    rows = sum(count * parts for count, parts in zip(each_queries, each_splits, strict=True) if parts > 1)
    part_bytes = 4 * dim * kv_heads * group * rows
    if not work:
        return Schedule(1.0, 1.0, len(costs) + spare, len(costs) + spare, part_bytes)
    ends = [0] * slots
    for cost in [*work, *[1] * spare]:
        heapq.heapreplace(ends, ends[0] + cost)
    last_wave = (len(work) % slots or slots) / slots
    programs = len(costs) + spare
    return Schedule(sum(work) / slots / max(ends), last_wave, programs, programs - len(work), part_bytes)


def _costs(
    lengths: Sequence[int],
    queries: Sequence[int],
    splits: Sequence[int],
    kv_heads: int,
    group: int,
    block_m: int,
    block_n: int,
    *,
    descending: bool,
) -> Iterator[int]:
    """Yield the tiles of keys of each program, in the order in which the GPU starts them."""
    row_tiles = max(-(-count * group // block_m) for count in queries)
    for length, count, parts in zip(lengths, queries, splits, strict=True):
        for place in range(row_tiles):
            tile = row_tiles - 1 - place if descending else place
            last_row = min((tile + 1) * block_m, count * group) - 1
            # The last of these queries sees the keys up to its own; a tile past the sequence's rows has none.
            keys = length - count + last_row // group + 1 if tile * block_m < count * group else 0
            tiles = -(-keys // block_n)
            share = -(-tiles // parts)
            for _ in range(kv_heads):
                for part in range(parts):
                    yield max(0, min(share, tiles - part * share))
