"""The plot of ``minikv simulate --sweep ... --plot FILE``: one HTML file that needs no network."""

from collections.abc import Callable, Sequence
from typing import Any

from minikv.cli.plot_file import write_plots
from minikv.cli.simulate_run import spelled
from minikv.i18n import text
from minikv.look import SEQUENCES, TEMPLATE
from minikv.simulate import Answers, SweepRow

PANELS: dict[str, Callable[[Answers], float | None]] = {
    "ttft": lambda found: found.ttft.p99,
    "tpot": lambda found: None if found.tpot is None else 1000 * found.tpot.p99,
    "hit_rate": lambda found: 100 * found.hit_rate,
    "waste": lambda found: 100 * found.waste,
}


def write_sweep(rows: Sequence[SweepRow], name: str, path: str, lang: str) -> None:
    """Four figures over the first setting; a line for each combination of the others.

    Raises ``ConfigError`` where the file cannot be written.
    """
    from plotly.graph_objects import Scatter
    from plotly.subplots import make_subplots

    setting = next(iter(rows[0].settings))
    figure = make_subplots(rows=2, cols=2, subplot_titles=[_say(f"axis_{panel}", lang) for panel in PANELS])
    lines: dict[str, list[SweepRow]] = {}
    for row in rows:
        if row.answers is not None:
            others = {name: value for name, value in row.settings.items() if name != setting}
            lines.setdefault(spelled(others), []).append(row)
    for place, figure_of in enumerate(PANELS.values()):
        for number, (label, points) in enumerate(lines.items()):
            figure.add_trace(
                Scatter(
                    x=[str(row.settings[setting]) for row in points],
                    y=[figure_of(row.answers) for row in points if row.answers is not None],
                    mode="lines+markers",
                    name=label or setting,
                    legendgroup=label,
                    showlegend=place == 0 and len(lines) > 1,
                    line={"color": SEQUENCES[number % len(SEQUENCES)]},
                ),
                row=place // 2 + 1,
                col=place % 2 + 1,
            )
    figure.update_xaxes(type="category", title=setting)
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(title=_say("plot_title", lang, name=name, setting=setting), template=TEMPLATE)
    write_plots([figure], path)


def write_hit_rates(rows: Sequence[tuple[int | None, float]], name: str, path: str, lang: str) -> None:
    """Hit rate over the number of blocks, and a line for a cache without limit. Raises ``ConfigError`` likewise."""
    from plotly.graph_objects import Figure, Scatter

    limited = sorted((blocks, 100 * share) for blocks, share in rows if blocks is not None)
    figure = Figure(
        Scatter(x=[each[0] for each in limited], y=[each[1] for each in limited], mode="lines+markers")
    )
    for blocks, share in rows:
        if blocks is None:
            label = _say("plot_unlimited", lang, share=share)
            figure.add_hline(y=100 * share, line_dash="dot", annotation_text=label)
    figure.update_xaxes(type="log", title=_say("axis_blocks", lang))
    figure.update_yaxes(rangemode="tozero", title=_say("axis_hit_rate", lang))
    figure.update_layout(title=_say("plot_hit_title", lang, name=name), template=TEMPLATE)
    write_plots([figure], path)


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"simulate.{key}", lang, **values)
