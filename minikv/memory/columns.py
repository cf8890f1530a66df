"""Rows of text in columns that line up in a terminal and in a notebook, Chinese letters counted as two."""

from collections.abc import Sequence

from rich.cells import cell_len


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """``rows`` (all equally long) as lines; the columns in ``right`` end in line, the others begin in line."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            " " * (width - cell_len(cell)) + cell if index in right else cell + " " * (width - cell_len(cell))
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
