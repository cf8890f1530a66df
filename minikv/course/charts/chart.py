"""A plot for ``show``: the plotly figure, and its values as text, which nbval compares."""

from collections.abc import Sequence
from typing import Any

DASHES = ("solid", "dot", "dash", "dashdot", "longdash")  # series differ without their colours
SHAPES = ("", "/", ".", "x", "-", "\\")  # of the bars' patterns


class Chart:
    """``figure`` is plotly's; ``said`` are the lines of its text."""

    def __init__(self, figure: Any, said: Sequence[str]):
        self.figure = figure
        self._said = said

    def text(self) -> str:
        """Return the values of the chart as lines."""
        return "\n".join(self._said)

    def __repr__(self) -> str:
        return self.text()
