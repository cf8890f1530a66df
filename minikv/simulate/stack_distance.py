"""Stack distances: the size of an LRU cache from which on each use of a block is a hit, for all sizes at once.

An LRU cache of C blocks holds the C blocks that were used last. A larger cache holds everything that a smaller one
holds (the stack property), so one pass answers for every size. The distance of a use is the number of different blocks
that were used since the last use of its block, itself included. The use is a hit where C is at least that (Mattson,
Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970).
"""

import numpy as np

NEVER = np.iinfo(np.int64).max
"""The distance of a block that is used for the first time: no cache is large enough."""


def stack_distances(blocks: np.ndarray, requests: np.ndarray) -> np.ndarray:
    """int64 [uses]: the capacity in blocks from which on the use of ``blocks[i]`` by ``requests[i]`` is a hit.

    ``requests`` is ascending. A request looks all its blocks up before it uses any of them, and uses none twice. So
    the distance counts the blocks that were used before the request began.
    """
    before = _previous_use(blocks)
    distances = np.full(len(blocks), NEVER)
    again = np.flatnonzero(before >= 0)
    # Uses of one request are sorted by their previous use: so ``_larger_before`` never counts one for another.
    again = again[np.lexsort((before[again], requests[again]))]
    begin = np.searchsorted(requests, requests[again])
    # The uses from the previous one up to the request, less those of a block used once more: each block once.
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

    Two ranks differ first at one bit: the larger has a 1 there, the smaller a 0, and all bits above are equal. So sort
    by one bit after another from the highest. Each sort keeps the order within a group of equal upper bits, and counts
    in each group the ones in front of every zero. That is n log n; each step is over the whole array at once.
    """
    count = len(values)
    at = np.arange(count)
    ranks = np.empty(count, np.int64)
    ranks[np.argsort(values)] = at
    by_rank = np.zeros(count, np.int64)
    for bit in reversed(range(count.bit_length())):
        # Ranks are 0 ... n - 1, so a group begins at its smallest rank: the lower bits cleared.
        start = ranks >> bit + 1 << bit + 1
        one = ranks >> bit & 1
        ones = np.cumsum(one) - one
        ones -= ones[start]  # ones in front of each value, in its group alone
        zero = one == 0
        by_rank[ranks[zero]] += ones[zero]
        moved = np.empty(count, np.int64)
        moved[np.where(zero, at - ones, start + (1 << bit) + ones)] = ranks
        ranks = moved
    found = np.empty(count, np.int64)
    found[np.argsort(values)] = by_rank
    return found
