"""Stack distances: at which size of an LRU cache each use of a block becomes a hit, for all sizes at once.

A cache of C blocks under LRU holds the C blocks that were used last, so that a larger one holds everything that a
smaller one does (the stack property). One pass therefore answers for every size: a use is a hit from C = its distance
on, the number of different blocks that were used since its block was, itself included (Mattson, Gecsei, Slutz and
Traiger, "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970).
"""

import numpy as np

NEVER = np.iinfo(np.int64).max
"""The distance of a block that is used for the first time: no cache is large enough."""


def stack_distances(blocks: np.ndarray, requests: np.ndarray) -> np.ndarray:
    """int64 [uses]: the blocks that have to fit so that the use of ``blocks[i]`` by ``requests[i]`` is a hit.

    ``requests`` is ascending. A request looks all its blocks up before it uses any of them, and uses none twice: the
    distance counts what was used before the request began.
    """
    before = _previous_use(blocks)
    distances = np.full(len(blocks), NEVER)
    again = np.flatnonzero(before >= 0)
    # Within a request the earlier uses go first, so that none counts as used before another of the same request.
    again = again[np.lexsort((before[again], requests[again]))]
    begin = np.searchsorted(requests, requests[again])
    # Of the uses since then, those whose block was used once more are not the last of theirs: count each block once.
    distances[again] = begin - before[again] - _larger_before(before[again])
    return distances


def _previous_use(blocks: np.ndarray) -> np.ndarray:
    """int64 [uses]: the last use of the same block before each, -1 where there is none."""
    order = np.argsort(blocks, kind="stable")
    same = blocks[order[1:]] == blocks[order[:-1]]
    before = np.full(len(blocks), -1)
    before[order[1:][same]] = order[:-1][same]
    return before


def _larger_before(values: np.ndarray) -> np.ndarray:
    """int64 [values]: how many of the values in front of each are larger; all are different.

    Two ranks part at one bit: the larger has a 1 there, the smaller a 0, and all bits above are equal. So sort by one
    bit after another from the highest, keeping the order within a group of equal upper bits, and count in each group
    the ones in front of every zero: n log n, each step over the whole array at once.
    """
    count = len(values)
    at = np.arange(count)
    ranks = np.empty(count, np.int64)
    ranks[np.argsort(values)] = at
    by_rank = np.zeros(count, np.int64)
    for bit in reversed(range(count.bit_length())):
        start = ranks >> bit + 1 << bit + 1  # where the group begins: ranks are dense
        one = ranks >> bit & 1
        ones = np.cumsum(one) - one
        ones -= ones[start]  # in front of it in its group
        zero = one == 0
        by_rank[ranks[zero]] += ones[zero]
        moved = np.empty(count, np.int64)
        moved[np.where(zero, at - ones, start + (1 << bit) + ones)] = ranks
        ranks = moved
    found = np.empty(count, np.int64)
    found[np.argsort(values)] = by_rank
    return found
