"""The plot of ``minikv evaluate --plot FILE``: needle grids, recall of the other tasks, and perplexity by position."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from minikv.cli.plot_file import write_plots
from minikv.eviction.evaluate.perplexity import Curves
from minikv.eviction.evaluate.summary import Line, Summary, said_way
from minikv.i18n import text
from minikv.look import SEQUENCES, TEMPLATE, look

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

SOLID = ("solid", "dot", "dash", "dashdot", "longdash")


def write(found: Sequence[Summary | Curves], name: str, path: str, lang: str) -> None:
    """A figure for each of ``found``, of the model ``name``. Raises ``ConfigError`` where it cannot be written."""
    figures = [
        _curves(each, lang)
        if isinstance(each, Curves)
        else _grid(each, lang)
        if _depths(each)
        else _bars(each, lang)
        for each in found
    ]
    for figure, each in zip(figures, found, strict=True):
        figure.update_layout(title=f"{name} · {each.shown(lang).title}", template=TEMPLATE, margin={"t": 72})
    write_plots(figures, path)


def _depths(found: Summary) -> list[float]:
    return sorted({depth for line in found.lines for depth in line.depths})


def _grid(found: Summary, lang: str) -> "Figure":
    """Recall of the needle: a row a way, a column a depth, each cell with its figure."""
    from plotly.graph_objects import Figure, Heatmap

    depths = _depths(found)
    cells = [[100 * line.depths.get(depth, 0.0) for depth in depths] for line in found.lines]
    grid = Heatmap(
        z=cells,
        x=[f"{100 * depth:g} %" for depth in depths],
        y=_names(found.lines, lang),
        zmin=0,
        zmax=100,
        texttemplate="%{z:.0f}",
        colorscale=[[0, "rgba(121,121,123,0.12)"], [1, look("k").fill]],
        colorbar={"title": _say("recall", lang), "ticksuffix": " %"},
        xgap=2,
        ygap=2,
    )
    figure = Figure(grid)
    figure.update_xaxes(title=_say("axis_depth", lang), type="category", showgrid=False)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_layout(height=180 + 30 * len(cells))
    return figure


def _bars(found: Summary, lang: str) -> "Figure":
    """Recall with its 95 % interval: a bar a way."""
    from plotly.graph_objects import Figure

    shares = [100 * line.share for line in found.lines]
    reach = [(100 * line.interval[0], 100 * line.interval[1]) for line in found.lines]
    figure = Figure()
    figure.add_bar(
        x=shares,
        y=_names(found.lines, lang),
        orientation="h",
        marker_color=look("k").fill,
        error_x={
            "type": "data",
            "array": [max(0.0, high - share) for share, (_, high) in zip(shares, reach, strict=True)],
            "arrayminus": [max(0.0, share - low) for share, (low, _) in zip(shares, reach, strict=True)],
        },
    )
    figure.update_xaxes(title=_say("axis_recall", lang), range=[0, 104])
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_layout(height=180 + 30 * len(shares))
    return figure


def _curves(found: Curves, lang: str) -> "Figure":
    """Perplexity over the position: a line a way, in steps, since each value is that of a part of the text."""
    from plotly.graph_objects import Figure

    figure = Figure()
    for number, curve in enumerate(found.curves):
        values = list(curve.by_position.values())
        figure.add_scatter(
            x=[*curve.by_position, found.length - 1],
            y=[*values, values[-1]],
            name=said_way(curve.way, lang),
            mode="lines",
            line={
                "shape": "hv",
                "width": 4 if not number else 2,
                "dash": SOLID[number % len(SOLID)],
                "color": SEQUENCES[number % len(SEQUENCES)],
            },
        )
    figure.update_xaxes(title=_say("axis_token", lang))
    figure.update_yaxes(title=_say("perplexity", lang), type="log")
    figure.update_layout(height=460)
    return figure


def _names(lines: Sequence[Line], lang: str) -> list[str]:
    return [said_way(line.way, lang) for line in lines]


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"evaluate.{key}", lang, **values)
