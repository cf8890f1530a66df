"""Lesson 18: runs as a table, their seconds by cause as bars, and the score board as a plot."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minikv.course.charts.bars import bars
from minikv.course.charts.chart import SHAPES, Chart
from minikv.course.lessons.l18.time_split import where_it_went
from minikv.course.table import Table
from minikv.i18n import text

if TYPE_CHECKING:
    from minikv.course.capstone import Run, Task

PARTS = ("weights", "cache", "compute", "overhead", "moved", "idle")
LOOKS = ("weights", "k", "activations", "other", "buffers", "free")
COLUMNS = ("seconds", "quality", "score", "steps", "preempted", "found", "computed")


def runs_table(runs: Sequence["Run"], lang: str = "en") -> Table:
    """Return a row for each run; a quality below the bar is marked ``x``."""
    head = [text(f"lesson_18.runs_{name}", lang) for name in COLUMNS]
    rows = [
        (
            run.plan.label,
            f"{run.seconds:.3f}",
            f"{run.quality:.1%}" + ("" if run.passed else " x"),
            f"{run.score:.1f}",
            run.steps,
            run.preemptions,
            f"{run.hit_rate:.0%}",
            run.computed_tokens,
        )
        for run in runs
    ]
    return Table(["", *head], rows, right=head)


def where_chart(task: "Task", runs: Sequence["Run"], lang: str = "en") -> Chart:
    """Draw the seconds of each run as a bar of six parts, the share of its own run written on each."""
    parts = [where_it_went(task, run) for run in runs]
    names = {part: text(f"lesson_18.where_{part}", lang) for part in PARTS}
    seconds = {name: [round(of[part], 3) for of in parts] for part, name in names.items()}
    shares = {
        name: [f"{of[part] / run.seconds:.0%}" for of, run in zip(parts, runs, strict=True)]
        for part, name in names.items()
    }
    comma = text("diagrams.comma", lang)
    rows = [f"{run.plan.label}{comma}{run.seconds:.3f} s" for run in runs]
    x = text("lesson_18.where_x", lang)
    return bars(rows, seconds, x=x, stacked=True, looks=LOOKS, words=shares)


def score_chart(runs: Sequence["Run"], floor: float, lang: str = "en") -> Chart:
    """Draw the seconds of each run, those below the bar of quality in another pattern, and the ``floor``."""
    from plotly.graph_objects import Figure

    figure, said = Figure(), []
    for passed, name in ((True, "scores_kept"), (False, "scores_missed")):
        some = [run for run in runs if run.passed is passed]
        figure.add_bar(
            y=[run.plan.label for run in some],
            x=[run.seconds for run in some],
            text=[f"{run.score:.1f}" for run in some],
            name=text(f"lesson_18.{name}", lang),
            orientation="h",
            marker_pattern_shape=SHAPES[0 if passed else 1],
            textposition="outside",
            cliponaxis=False,
        )
    for run in runs:
        said.append(f"{run.plan.label}: {run.seconds:.3f} s, {run.score:.1f}")
    figure.add_vline(
        x=floor,
        line_dash="dash",
        annotation_text=text("lesson_18.scores_floor", lang),
        annotation_position="top",
    )
    figure.update_xaxes(title=text("lesson_18.scores_x", lang), rangemode="tozero")
    figure.update_yaxes(categoryorder="array", categoryarray=[run.plan.label for run in runs][::-1])
    figure.update_layout(height=440, margin={"t": 30, "r": 48})
    head = text("diagrams.comma", lang).join(
        text(f"lesson_18.{name}", lang) for name in ("scores_x", "runs_score")
    )
    return Chart(figure, [head, *said])
