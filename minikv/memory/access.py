"""Access patterns, measured: a gather of the same elements and bytes in different orders. Lesson 04.

``torch.take`` reads ``data[index[i]]`` for i = 0, 1, 2 ... On a GPU the 32 threads of a warp read 32 neighbours of the
index list at once; on a CPU a core reads one after the other. On both it matters whether neighbours in the *list* are
neighbours in *memory*: then one line of 32, 64 or 128 bytes serves several of them.
"""

from typing import Any

import torch

from minikv.errors import ArgumentError, check_count
from minikv.memory.bandwidth import (
    REPEATS,
    BandwidthPoint,
    cache_sizes,
    check_cores,
    check_room,
    find_device,
    only,
    seconds_of,
)
from minikv.units import GIB, MIB

PATTERNS = ("coalesced", "random_rows", "per_thread", "random")
ROW_BYTES = 256  # K of one KV head of 128 elements in 16 bits
_ITEM, _INDEX = 4, 8  # bytes: float32 data, int64 indices


def index_order(
    pattern: str, num_elements: int, *, row: int = 64, seed: int = 0, device: Any = "cpu"
) -> torch.Tensor:
    """The order in which ``pattern`` reads elements 0 .. ``num_elements`` - 1, each once: int64 [num_elements].

    "coalesced"    one after the other: neighbours in the list are neighbours in memory.
    "per_thread"   thread t owns elements t * row to t * row + row - 1 and all threads step together, so the list is
                   0, row, 2 * row, ... then 1, row + 1, ...: neighbours in the list are ``row`` elements apart.
    "random"       a random permutation of the elements.
    "random_rows"  a random permutation of rows of ``row`` elements, each read from end to end, as a block table
                   orders a cache.

    Raises ``ArgumentError`` for another pattern, or where ``row`` does not divide ``num_elements``.
    """
    check_count("num_elements", num_elements)
    check_count("row", row)
    if pattern not in PATTERNS:
        raise ArgumentError("unknown_choice", what="pattern", value=pattern, known=", ".join(PATTERNS))
    if num_elements % row:
        raise ArgumentError("access_row", num_elements=num_elements, row=row)
    rng = torch.Generator(device=device).manual_seed(seed)
    if pattern == "random":
        return torch.randperm(num_elements, generator=rng, device=device)
    order = torch.arange(num_elements, device=device)
    if pattern == "per_thread":
        return order.view(-1, row).t().reshape(-1)
    if pattern == "random_rows":
        return order.view(-1, row)[torch.randperm(num_elements // row, generator=rng, device=device)].reshape(
            -1
        )
    return order


def access_patterns(
    device: Any = None,
    *,
    patterns: tuple[str, ...] = PATTERNS,
    working_set: int | None = None,
    row_bytes: int = ROW_BYTES,
    cores: int | None = None,
    repeats: int = REPEATS,
) -> tuple[BandwidthPoint, ...]:
    """The same gather of float32 in each of ``patterns``: one point each.

    ``working_set`` is the data in bytes (None: several times the largest cache, at least 64 MiB); six times as much
    has to be free. ``row_bytes`` is a row of "random_rows", or the elements of a thread in "per_thread". Each element
    costs 12 bytes read (8 of them its index, always in order) and 4 written. On a CPU ``cores`` cores divide the list;
    None are as many as torch has threads, 1 is the steadier figure on a machine with other work.

    Raises ``ArgumentError`` as ``index_order`` and ``bandwidth_curve`` do.
    """
    found = find_device(device)
    check_count("repeats", repeats)
    cores = check_cores(cores)
    check_count("row_bytes", row_bytes, least=_ITEM)
    working_set = _beyond_caches(found) if working_set is None else working_set
    check_count("working_set", working_set, least=_ITEM)
    count = working_set // _ITEM
    for pattern in patterns:  # check all before measuring any
        index_order(pattern, row_bytes // _ITEM, row=row_bytes // _ITEM)
    if count % (row_bytes // _ITEM):
        raise ArgumentError("access_row", num_elements=count, row=row_bytes // _ITEM)
    check_room(6 * working_set, found)
    data = torch.ones(count, device=found)
    out = torch.empty_like(data)
    points = []
    for pattern in patterns:
        index = index_order(pattern, count, row=row_bytes // _ITEM, device=found)
        with only(cores):
            seconds = seconds_of(lambda index=index: torch.take(data, index, out=out), found, repeats)  # type: ignore[misc]
        read = count * (_ITEM + _INDEX)
        points.append(BandwidthPoint(pattern, str(found), data.nbytes, read, out.nbytes, seconds))
        del index  # frees two working sets for the next order
    return tuple(points)


def _beyond_caches(device: torch.device) -> int:
    """A power of two that no cache holds. "per_thread" touches a 32-byte sector of a GPU for each 4 bytes of a row,
    so that the sectors of one step are an eighth of the data and must not fit either."""
    largest = max((cache.size for cache in cache_sizes(device)), default=16 * MIB)
    enough = largest * (16 if device.type == "cuda" else 2)
    return min(max(2 ** (enough - 1).bit_length(), 64 * MIB), GIB)
