"""A table that a lesson's cell ends in: a notebook shows it as HTML, nbval and a terminal as aligned text."""

from collections.abc import Iterable, Sequence
from numbers import Real

from minikv.errors import ArgumentError
from minikv.shown import Shown, rounded

Value = str | int | float | None


class Table:
    """``rows`` under the names of their columns.

    An int is shown with commas (``131,072``), a float with three digits that count (``0.0625``, ``12.3``, ``1,234``),
    None as an empty cell, anything else as ``str`` has it. A column of numbers is right-aligned; ``right`` names
    columns of strings that are, too. ``title`` stands above it, ``lines`` below.

    Raises ``ArgumentError`` for a row that is not as long as ``head``, or a name in ``right`` that is not in it.

    >>> Table(["dtype", "bytes a token"], [["float32", 524_288], ["int8", 131_072]])
    dtype    bytes a token
    float32        524,288
    int8           131,072
    """

    def __init__(
        self,
        head: Sequence[str],
        rows: Iterable[Sequence[Value]],
        *,
        title: str = "",
        lines: Sequence[str] = (),
        right: Sequence[str] = (),
    ):
        kept = [list(row) for row in rows]
        for number, row in enumerate(kept):
            if len(row) != len(head):
                raise ArgumentError("table_row", row=number, found=len(row), wanted=len(head))
        for name in right:
            if name not in head:
                raise ArgumentError("table_right", name=name, head=", ".join(head))
        figures = [
            place
            for place, name in enumerate(head)
            if name in right or any(isinstance(row[place], Real) for row in kept)
        ]
        cells = [[_said(value) for value in row] for row in kept]
        self._shown = Shown(title, list(head), cells, figures, lines)

    def text(self) -> str:
        """Return the table as lines, its columns aligned."""
        return self._shown.text()

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self._shown._repr_html_()


def _said(value: Value) -> str:
    if value is None:
        return ""
    return rounded(value) if isinstance(value, Real) and not isinstance(value, bool) else str(value)
