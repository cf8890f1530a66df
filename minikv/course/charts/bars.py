"""Bars: a row for each name, side by side or stacked."""

from collections.abc import Mapping, Sequence

from minikv.course.charts.chart import LINEAR, SHAPES, Chart, decades
from minikv.look import look
from minikv.shown import columns, rounded


def bars(
    names: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    x: str,
    stacked: bool = False,
    log: bool = False,
    looks: Sequence[str] = (),
    unit: str = "",
    words: Mapping[str, Sequence[str]] | None = None,
    height: int | None = None,
) -> Chart:
    """Draw a horizontal bar for each of ``names`` in each of ``series``, its value written at its end.

    ``looks`` are meanings of ``minikv.look``, one for each series ("k", "weights"); ``unit`` follows each value.
    ``words``, by series like the values, stand on the bars in place of these.
    """
    from plotly.graph_objects import Figure

    figure = Figure()
    for place, (name, values) in enumerate(series.items()):
        more = {"marker_color": look(looks[place]).fill} if looks else {}
        figure.add_bar(
            name=name,
            y=list(names),
            x=list(values),
            orientation="h",
            text=list(words[name]) if words else [f"{rounded(value)} {unit}".strip() for value in values],
            marker_pattern_shape=SHAPES[place % len(SHAPES)],
            marker_pattern_size=6,
            marker_pattern_solidity=0.2,
            marker_pattern_fillmode="overlay",  # the colour stays below the lines, so that words on it are readable
            textangle=0,
            cliponaxis=False,
            textposition="inside" if stacked else "outside",
            **more,
        )
    rows = len(names) * (1 if stacked else len(series))
    every = [value for values in series.values() for value in values]
    figure.update_xaxes(title=x, **(decades(every) if log else LINEAR))
    figure.update_yaxes(autorange="reversed", type="category")  # plotly would read "40%" as a number
    figure.update_layout(
        barmode="stack" if stacked else "group",
        uniformtext={"minsize": 11, "mode": "hide"}
        if stacked
        else {},  # a value that a part is too short for
        height=height or 120 + 34 * max(rows, 2),
        margin={"t": 48, "r": 96},
        showlegend=len(series) > 1,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
    )
    table = [("", *series)]
    for row, name in enumerate(names):
        said = [f" ({words[part][row]})" if words else "" for part in series]
        figures = [rounded(values[row]) for values in series.values()]
        table.append((name, *map("".join, zip(figures, said, strict=True))))
    return Chart(figure, [f"{x}" + (f" ({unit})" if unit else ""), columns(table, range(1, len(series) + 1))])
