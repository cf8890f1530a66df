"""Lines and points over two axes."""

from collections.abc import Collection, Mapping
from math import log10

from minikv.course.charts.chart import DASHES, LINEAR, Chart, decades
from minikv.shown import rounded

SAID = 8  # values of a series in the text, at most
TICKS = 12  # of an axis, at most


def lines(
    series: Mapping[str, Mapping[float, float]],
    *,
    x: str,
    y: str,
    log: str = "",
    points: Collection[str] = (),
    steps: bool = False,
    marks: Mapping[str, float] | None = None,
    levels: Mapping[str, float] | None = None,
    y_from: float = 0,
    height: int = 380,
) -> Chart:
    """Draw each of ``series``, a name with values of y for values of x.

    ``log`` names the logarithmic axes: "x", "y" or "xy". ``points`` names the series that are drawn as points.
    ``steps`` holds a value until the next. ``marks`` are dashed lines upright at an x, ``levels`` lie at a y.
    A linear y axis begins at ``y_from``; at 0, values below it are in sight as well.
    """
    from plotly.graph_objects import Figure

    figure, lines_before = Figure(), 0
    for name, values in series.items():
        more: dict[str, object] = {"mode": "markers", "marker_size": 9}
        if name not in points:
            dash = DASHES[lines_before % len(DASHES)]
            more = {
                "mode": "lines",
                "line": {"dash": dash, "width": 2.5, "shape": "hv" if steps else "linear"},
            }
            lines_before += 1
        figure.add_scatter(x=list(values), y=list(values.values()), name=name, **more)
    # plotly takes the place of a line as it is and that of words as its logarithm.
    for name, place in (marks or {}).items():
        figure.add_vline(x=place, line_dash="dash")
        at = log10(place) if "x" in log else place
        figure.add_annotation(x=at, y=1, yref="paper", text=name, showarrow=False, yanchor="bottom")
    for name, place in (levels or {}).items():
        figure.add_hline(y=place, line_dash="dash")
        at = log10(place) if "y" in log else place
        figure.add_annotation(
            x=0, xref="paper", y=at, text=name, showarrow=False, xanchor="left", yanchor="bottom"
        )
    begin = {"range": [y_from, None]} if y_from else {"rangemode": "tozero"}
    figure.update_xaxes(title=x, **(_ticks(series) if "x" in log else LINEAR))
    figure.update_yaxes(title=y, **(decades(_heights(series)) if "y" in log else LINEAR | begin))
    figure.update_layout(height=height, margin={"t": 48, "r": 24}, showlegend=len(series) > 1)
    above = 1.1 if marks else 1.02  # the words of the marks stand between the plot and the legend
    figure.update_layout(legend={"orientation": "h", "y": above, "yanchor": "bottom"})
    said = [f"{y} / {x}", *(f"{name}: {_said(values)}" for name, values in series.items())]
    said += [f"{name}: {rounded(place)}" for name, place in {**(marks or {}), **(levels or {})}.items()]
    return Chart(figure, said)


def _ticks(series: Mapping[str, Mapping[float, float]]) -> dict[str, object]:
    """A logarithmic axis with every x that has a value, and where these are too many, with powers of ten."""
    places = sorted({place for values in series.values() for place in values})
    if len(places) > TICKS:
        return decades(places)
    return {"type": "log", "tickvals": places, "ticktext": [rounded(place) for place in places]}


def _heights(series: Mapping[str, Mapping[float, float]]) -> list[float]:
    return [value for values in series.values() for value in values.values()]


def _said(values: Mapping[float, float]) -> str:
    """The values at equal distances in the series, the first and the last among them."""
    pairs = list(values.items())
    if len(pairs) > SAID:
        pairs = [pairs[round(place * (len(pairs) - 1) / (SAID - 1))] for place in range(SAID)]
    return ", ".join(f"{rounded(at)} -> {rounded(value)}" for at, value in pairs)
