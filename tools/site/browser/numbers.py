"""Stands in the browser for the little of numpy that block tables use: a table of integers."""

from collections.abc import Sequence
from typing import Any

int32 = int64 = uint64 = int


class ndarray:
    """Rows of integers. A row is copied when it is read."""

    def __init__(self, rows: Sequence[Sequence[int]]):
        self._rows = [list(row) for row in rows]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._rows), len(self._rows[0])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> list[int]:
        return self._rows[row][:]

    def __setitem__(self, place: Any, value: int | list[int]) -> None:
        row, column = place if isinstance(place, tuple) else (place, slice(None))
        columns = slice(column, column + 1) if isinstance(column, int) else column
        chosen = self._rows[row]
        chosen[columns] = [value] * len(chosen[columns]) if isinstance(value, int) else value


def full(shape: tuple[int, int], value: int, dtype: type) -> ndarray:
    """Return a table that has ``value`` everywhere."""
    rows, columns = shape
    return ndarray([[value] * columns] * rows)


def full_like(table: ndarray, value: int) -> ndarray:
    return full(table.shape, value, int)


def vstack(tables: Sequence[ndarray]) -> ndarray:
    """Return the rows of all, one below the other."""
    return ndarray([table[row] for table in tables for row in range(len(table))])


def hstack(tables: Sequence[ndarray]) -> ndarray:
    """Return the tables side by side."""
    return ndarray([[one for table in tables for one in table[row]] for row in range(len(tables[0]))])
