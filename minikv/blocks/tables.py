"""BlockTables: the block tables of all running sequences as arrays that a step can use as they are.

Building a 256 x 64 array from lists costs more than half a millisecond a step; here a row is written where it
changes, so a step costs a slice. Rows stay dense: when a sequence leaves, the last row takes its place.
"""

from collections.abc import Sequence

import numpy as np

from minikv.blocks.pool import NULL_BLOCK

ROWS, COLUMNS = 64, 64  # to begin with; both double when they no longer do


class BlockTables:
    """One int32 array [rows, columns] for each kind of layer; what no block stands in is ``NULL_BLOCK``.

    ``owners[row]`` is whose row it is. The arrays move only when they grow.
    """

    def __init__(self, kinds: int):
        self.owners: list = []
        self._arrays = [np.full((ROWS, COLUMNS), NULL_BLOCK, np.int32) for _ in range(kinds)]

    def add(self, owner) -> int:
        """A new row for ``owner``, behind the others."""
        row = len(self.owners)
        self.owners.append(owner)
        if row == len(self._arrays[0]):
            self._arrays = [np.vstack([old, np.full_like(old, NULL_BLOCK)]) for old in self._arrays]
        return row

    def remove(self, row: int) -> None:
        """Drop ``row``; the last row moves into its place, and its owner's ``row`` is set to say so."""
        last = len(self.owners) - 1
        moved = self.owners.pop()
        for table in self._arrays:
            if row != last:
                table[row] = table[last]
            table[last] = NULL_BLOCK
        if row != last:
            self.owners[row] = moved
            moved.row = row

    def write(self, kind: int, row: int, start: int, blocks: Sequence[int]) -> None:
        """``blocks`` from column ``start`` on."""
        end = start + len(blocks)
        table = self._arrays[kind]
        while end > table.shape[1]:
            table = np.hstack([table, np.full_like(table, NULL_BLOCK)])
            self._arrays[kind] = table
        if end == start + 1:
            table[row, start] = blocks[0]  # a slice assignment from a list costs five times as much
        else:
            table[row, start:end] = blocks

    def clear(self, kind: int, row: int, start: int, end: int) -> None:
        """No block in the columns ``start`` to ``end - 1``."""
        self._arrays[kind][row, start:end] = NULL_BLOCK

    def view(self, kind: int) -> np.ndarray:
        """The rows in use, int32 [sequences, columns], not copied: it is overwritten as the sequences grow."""
        return self._arrays[kind][: len(self.owners)]
