"""Lesson 17: the answers of several fleets as a table."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from minikv.course.table import Table
from minikv.i18n import text

if TYPE_CHECKING:
    from minikv.simulate import Answers

COLUMNS = ("gpus", "found", "host", "blocked", "p50", "p99", "tpot")


def answers_table(answers: Mapping[str, "Answers"], lang: str = "en") -> Table:
    """Return a row for each of ``answers``: what was found and missing, and the waits that came of it."""
    rows = [
        (
            name,
            each.gpus,
            f"{each.hit_rate:.1%}",
            f"{each.host_hit_rate:.1%}",
            f"{each.blocked:.1%}",
            f"{each.ttft.p50:.2f}",
            f"{each.ttft.p99:.2f}",
            f"{1e3 * each.tpot.p99:.0f}" if each.tpot else "",
        )
        for name, each in answers.items()
    ]
    head = [text(f"lesson_17.fleet_{name}", lang) for name in COLUMNS]
    return Table(["", *head], rows, right=head)
