"""A chart of amounts over time, one stacked on the other: what chart.js draws."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minikv.course.widgets.history import Point
from minikv.i18n import text


def draw_chart(
    points: Sequence[Point], looks: Mapping[str, str], prefix: str, write: Callable[[float], str], lang: str
) -> dict[str, Any]:
    """Return ``points`` with every kind of ``looks`` (a name of the palette each), the first at the bottom.

    Labels are the sentences ``prefix`` + kind; ``write`` formats an amount.
    """
    top = max((point.total for point in points), default=0)
    first, last = points[0], points[-1]
    return {
        "kinds": [
            {"key": kind, "label": text(prefix + kind, lang), "look": look} for kind, look in looks.items()
        ],
        "seconds": [round(point.seconds, 4) for point in points],
        "values": {kind: [point.values.get(kind, 0) for point in points] for kind in looks},
        "top": top,
        "top_text": write(top),
        "end_text": text("widgets_monitor.seconds", lang, seconds=last.seconds),
        "aria": text(
            "widgets_monitor.chart",
            lang,
            seconds=last.seconds,
            first=write(first.total),
            last=write(last.total),
            top=write(top),
        ),
    }
