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


def value_said(value: float) -> str:
    """Return an int with commas, another number with three digits that count."""
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,.0f}"
