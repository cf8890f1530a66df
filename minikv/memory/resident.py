"""The resident part of an address range: pages of a mapped file are loaded on first read, and may be dropped."""

import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

_PRESENT = 63  # the bit of a pagemap entry that says whether the page is in memory: kernel.org, admin-guide/mm/pagemap
_ENTRY = 8  # bytes

Extent = tuple[int, int]
"""Addresses from the first to the second, that one not included."""


def extents(tensors: Iterable[torch.Tensor]) -> list[Extent]:
    """The addresses of the tensors' storages, in order, each byte once: tied tensors and views share theirs."""
    found: list[Extent] = []
    storages = (tensor.untyped_storage() for tensor in tensors)
    for start, size in sorted({(storage.data_ptr(), storage.nbytes()) for storage in storages}):
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], start + size))
        elif size:
            found.append((start, start + size))
    return found


def extent_bytes(found: Iterable[Extent]) -> int:
    """Bytes of all extents together."""
    return sum(end - start for start, end in found)


def resident_bytes(
    found: Iterable[Extent], pagemap: Path = Path("/proc/self/pagemap"), page: int = mmap.PAGESIZE
) -> int | None:
    """Bytes of this process's extents that are in memory now, page by page, by Linux's pagemap.

    The other pages belong to a mapped file and were not read yet, or were swapped out. None where the system has no
    such figure: outside Linux, and in containers that hide it.
    """
    total = 0
    try:
        with open(pagemap, "rb", buffering=0) as entries:
            for start, end in found:
                first, last = start // page, -(-end // page)
                entries.seek(first * _ENTRY)
                words = np.frombuffer(entries.read((last - first) * _ENTRY), np.uint64)
                if len(words) != last - first:
                    return None
                present = (words >> np.uint64(_PRESENT)).astype(bool)
                total += int(present.sum()) * page
                total -= (start - first * page) * bool(present[0]) + (last * page - end) * bool(present[-1])
    except OSError:
        return None
    return total
