"""Block tables: of one sequence as lists, and of all running sequences as arrays for a step.

Building a 256 x 64 array from lists costs more than half a millisecond a step. Here a row is written where it
changes, so a step costs a slice. Rows stay dense: when a sequence leaves, the last row takes its place.
"""

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from minikv.blocks.pool import NULL_BLOCK

UNKNOWN = -1
"""Stands for a token with a reserved slot, which is sampled while the next step is prepared."""

ROWS, COLUMNS = 64, 64  # at first; both double when they are too small


def slots_of(table: np.ndarray, row: np.ndarray | int, places: np.ndarray, block_size: int) -> np.ndarray:
    """Return int64 [tokens], the slot of each token: ``table[place // block_size] * block_size + place % block_size``.

    ``table`` [rows, columns]; a token is the one at ``places`` [tokens] of the sequence in ``row`` ([tokens], or one
    for all). -1 behind a window: the token is stored nowhere.
    """
    columns, offsets = np.divmod(places, block_size)
    # Widened first: block * block_size may need more than the table's 32 bits.
    slots = np.multiply(table[row, columns], block_size, dtype=np.int64) + offsets
    return np.maximum(slots, -1)  # NULL_BLOCK is negative, and so is each of its slots


@dataclass(slots=True)
class BlockTable:
    """A sequence's blocks in the layers of one group, in token order.

    ``blocks[i]`` is ``NULL_BLOCK`` for i < ``num_passed``: the window has moved on. Eviction has dropped
    ``num_evicted_tokens`` from the cache, so the token at position p lies in slot p - ``num_evicted_tokens`` of the
    table. The first ``num_private`` blocks are neither shared nor published since the last eviction.
    """

    blocks: list[int] = field(default_factory=list)
    num_passed: int = 0
    num_evicted_tokens: int = 0
    num_private: int = 0

    def live(self) -> list[int]:
        """Return the blocks that are held, without ``NULL_BLOCK``."""
        return self.blocks[self.num_passed :] if self.num_passed else self.blocks

    def give_back(self, until: int) -> list[int]:
        """Put ``NULL_BLOCK`` in every place before ``until``; return the blocks that were there."""
        until = min(until, len(self.blocks))
        if until <= self.num_passed:
            return []
        dropped = self.blocks[self.num_passed : until]
        self.blocks[self.num_passed : until] = [NULL_BLOCK] * len(dropped)
        self.num_passed = until
        return dropped


@dataclass(slots=True)
class SequenceBlocks:
    """The tokens and blocks of one sequence. ``len(tokens)`` is the position of the next token.

    ``num_committed`` tokens have their K and V in the cache; ``num_published`` blocks of them can be found by their
    ``digests``. Up to ``append_limit`` tokens fit without a look at the pools, into blocks that are neither shared nor
    published. ``evicted_until`` is the position of the last eviction: tokens before it are no longer in order.

    ``limit_after_fill`` is None, unless the last token's slot was reserved before it was sampled. ``append_limit`` is 0
    until it is known, so that ``append`` does not take its fast path, and ``limit_after_fill`` then.
    """

    id: Hashable
    tokens: array
    tables: list[BlockTable]
    digests: list[bytes]
    root: bytes
    row: int
    num_committed: int = 0
    num_published: int = 0
    evicted_until: int = 0
    append_limit: int = 0
    limit_after_fill: int | None = None

    def length(self, kv_cache_group: int) -> int:
        """Return how many tokens have slots in the table of ``kv_cache_group``, those behind a window included."""
        return len(self.tokens) - self.tables[kv_cache_group].num_evicted_tokens


class BlockTables:
    """One int32 array [rows, columns] for each KV cache group; entries without a block are ``NULL_BLOCK``.

    ``owners[row]`` is the sequence of a row. The arrays move only when they grow.
    """

    def __init__(self, num_kv_cache_groups: int):
        self.owners: list[SequenceBlocks] = []
        self._arrays = [np.full((ROWS, COLUMNS), NULL_BLOCK, np.int32) for _ in range(num_kv_cache_groups)]

    def add(self, owner: SequenceBlocks) -> int:
        """Return a new row for ``owner``, behind the others."""
        row = len(self.owners)
        self.owners.append(owner)
        if row == len(self._arrays[0]):
            self._arrays = [np.vstack([old, np.full_like(old, NULL_BLOCK)]) for old in self._arrays]
        return row

    def remove(self, row: int) -> None:
        """Drop ``row``; the last row moves into its place, and its owner's ``row`` is updated."""
        last = len(self.owners) - 1
        moved = self.owners.pop()
        for table in self._arrays:
            if row != last:
                table[row] = table[last]
            table[last] = NULL_BLOCK
        if row != last:
            self.owners[row] = moved
            moved.row = row

    def write(self, kv_cache_group: int, row: int, start: int, blocks: Sequence[int]) -> None:
        """Write ``blocks`` from column ``start`` on."""
        end = start + len(blocks)
        table = self._arrays[kv_cache_group]
        while end > table.shape[1]:
            table = np.hstack([table, np.full_like(table, NULL_BLOCK)])
            self._arrays[kv_cache_group] = table
        if end == start + 1:
            table[row, start] = blocks[0]  # a slice assignment from a list costs five times as much
        else:
            table[row, start:end] = blocks

    def clear(self, kv_cache_group: int, row: int, start: int, end: int) -> None:
        """Write ``NULL_BLOCK`` into the columns ``start`` to ``end - 1``."""
        self._arrays[kv_cache_group][row, start:end] = NULL_BLOCK

    def view(self, kv_cache_group: int) -> np.ndarray:
        """Return the rows in use, int32 [sequences, columns], as a view that changes as the sequences grow."""
        return self._arrays[kv_cache_group][: len(self.owners)]
