"""Lessons 14, 14b and 15: answered questions over the share of tokens kept, a line for each policy."""

from collections.abc import Sequence

from minikv.course.charts.chart import DASHES, Chart
from minikv.course.lessons.l14.recall_table import recall_lines
from minikv.eviction.study.curves import FULL, Point
from minikv.i18n import text

CHANCE = "random"  # dotted: what every policy is held against
OTHERS = [dash for dash in DASHES if dash != "dot"]
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star", "hexagon")


def recall_chart(points: Sequence[Point], lang: str = "en", *, perplexity: bool = False) -> Chart:
    """Draw ``points`` with their 95 % intervals, every policy from the full cache on; the text is ``recall_lines``.

    The legend names the policies as their curves lie, the highest first.
    """
    from plotly.graph_objects import Figure

    figure = Figure()
    full = [point for point in points if point.policy == FULL]
    names = dict.fromkeys(point.policy for point in points if point.policy != FULL)
    curves = {name: full[:1] + [point for point in points if point.policy == name] for name in names}
    highest = sorted(curves, key=lambda name: -sum(point.score.share for point in curves[name]))
    for number, (name, mine) in enumerate(curves.items()):
        up, down = zip(*map(_reach, mine), strict=True)
        figure.add_scatter(
            x=[100 * point.setting.kept for point in mine],
            y=[100 * point.score.share for point in mine],
            name=name,
            legendrank=1 + highest.index(name),
            mode="lines+markers",
            line_dash="dot" if name == CHANCE else OTHERS[number % len(OTHERS)],
            marker={"symbol": SYMBOLS[number % len(SYMBOLS)], "size": 9},
            error_y={"type": "data", "array": up, "arrayminus": down, "thickness": 1},
        )
    figure.update_xaxes(title=text("lesson_14.curves_x", lang), autorange="reversed")
    figure.update_yaxes(title=text("lesson_14.curves_y", lang), range=[0, 104])
    figure.update_layout(height=400, margin={"t": 20, "r": 24})
    return Chart(figure, recall_lines(points, perplexity=perplexity))


def _reach(point: Point) -> tuple[float, float]:
    """Percent from the share up and down to the ends of its interval."""
    low, high = point.score.interval
    return 100 * (high - point.score.share), 100 * (point.score.share - low)
