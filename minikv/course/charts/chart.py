"""A plot for ``show``: the plotly figure, and its values as text, which nbval compares."""

from collections.abc import Collection, Sequence
from math import ceil, floor, log10
from typing import Any

from minikv.shown import rounded

DASHES = ("solid", "dot", "dash", "dashdot", "longdash")  # series differ without their colours
SHAPES = ("", "/", ".", "x", "-", "\\")  # of the bars' patterns
# plotly's own words are "20k", "1B" for 10^9 and "100µ": the course writes numbers as its prose does.
LINEAR = {"exponentformat": "none", "separatethousands": True}
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


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


def decades(values: Collection[float]) -> dict[str, Any]:
    """Return a logarithmic axis of plotly: powers of ten, and where ``values`` span few, 2 and 5 times each of them."""
    found = [value for value in values if value > 0] or [1]
    few = max(found) <= 1000 * min(found)
    powers = range(floor(log10(min(found))), ceil(log10(max(found))) + 1)
    ticks = [(step, power) for power in powers for step in ((1, 2, 5) if few else (1,))]
    return {
        "type": "log",
        "tickvals": [step * 10.0**power for step, power in ticks],
        "ticktext": [_written(step, power) for step, power in ticks],
    }


def _written(step: int, power: int) -> str:
    """``step`` times that power of ten, in digits where these are few: 0.0001, 50,000, 10⁶, 2·10⁻⁵."""
    if -4 <= power < 6:
        return rounded(step * 10**power if power >= 0 else step * 10.0**power)
    return ("" if step == 1 else f"{step}·") + "10" + str(power).translate(_RAISED)
