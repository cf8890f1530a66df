"""Rows joined over the needle's depths, each beside the full cache's: what the figures say, and when they say nothing.

The difference of two shares has Newcombe's interval (1998, Statistics in Medicine 17, 873-890, method 10), made of the
two Wilson intervals. It takes the two as independent. The same texts are asked in both ways, so the true one is
narrower.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import hypot
from typing import Any, Literal

from minikv.eviction.evaluate.rows import Row
from minikv.eviction.evaluate.ways import Way
from minikv.eviction.study.suite import wilson
from minikv.eviction.study.text_suite import same_tokens
from minikv.i18n import pick_language, text
from minikv.shown import Shown

Verdict = Literal["reference", "lower", "higher", "same", "few", "fails"]
"""Beside the full cache: the same within ``NEAR``, lower or higher beyond chance, too few questions to say; or the full
cache itself fails at the task."""

NEAR = 0.05
HALF = 0.5  # of the questions: below it the full cache fails


@dataclass(frozen=True)
class Line:
    """One ``way`` at one task and length, over all depths. ``same``: of the full cache's greedy tokens, of 1."""

    way: Way
    right: float
    asked: int
    same: float
    depths: dict[float, float]
    difference: tuple[float, float]
    verdict: Verdict

    @property
    def share(self) -> float:
        """Of 1."""
        return self.right / self.asked

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, after Wilson."""
        return wilson(self.right, self.asked)


@dataclass(frozen=True)
class Summary:
    """The lines of one task and length, the full cache's first."""

    task: str
    length: int
    lines: tuple[Line, ...]

    def shown(self, lang: str = "en") -> Shown:
        """A row a way: recall, its interval, questions, equal greedy tokens, what the figures say, recall by depth."""
        lang = pick_language(lang)
        depths = sorted({depth for line in self.lines for depth in line.depths})
        head = [_say(name, lang) for name in ("way", "recall", "interval", "asked", "same_tokens", "verdict")]
        rows = []
        for line in self.lines:
            low, high = (100 * bound for bound in line.interval)
            rows.append(
                [
                    said_way(line.way, lang),
                    f"{100 * line.share:.1f} %",
                    f"{low:.0f}-{high:.0f} %",
                    f"{line.asked:,}",
                    f"{100 * line.same:.0f} %",
                    _say(f"verdict_{line.verdict}", lang),
                    *(f"{100 * line.depths[depth]:.0f}" for depth in depths),
                ]
            )
        head += [_say("at_depth", lang, depth=100 * depth) for depth in depths]
        title = _say("title", lang, task=self.task, length=self.length)
        return Shown(title, head, rows, right=(1, 2, 3, 4, *range(6, len(head))))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; shares are of 1."""
        return {
            "task": self.task,
            "length": self.length,
            "ways": [
                {
                    "way": str(line.way),
                    "recall": line.share,
                    "interval": list(line.interval),
                    "asked": line.asked,
                    "same_tokens": line.same,
                    "difference": list(line.difference),
                    "verdict": line.verdict,
                    "by_depth": {f"{depth:g}": share for depth, share in line.depths.items()},
                }
                for line in self.lines
            ],
        }


def summaries(rows: Iterable[Row]) -> list[Summary]:
    """One for each task and length, in the order of ``rows``; ways without a full cache beside them are left out."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.question.task, row.question.length), []).append(row)
    return [
        Summary(task, length, lines)
        for (task, length), some in groups.items()
        if (lines := tuple(_lines(some)))
    ]


def _lines(rows: Sequence[Row]) -> Iterable[Line]:
    full = {row.question: row for row in rows if row.way == Way()}
    if not full:
        return
    order = list(dict.fromkeys(row.way for row in rows))
    ways = groupby(sorted(rows, key=lambda row: order.index(row.way)), key=lambda row: row.way)
    for way, group in ways:
        some = [row for row in group if row.question in full]
        if some:
            yield _line(way, some, [full[row.question] for row in some])


def _line(way: Way, rows: Sequence[Row], full: Sequence[Row]) -> Line:
    right, asked = sum(row.right for row in rows), sum(row.asked for row in rows)
    pairs = [
        pair for row, due in zip(rows, full, strict=True) for pair in zip(row.said, due.said, strict=True)
    ]
    same = sum(same_tokens(*pair) for pair in pairs) / max(1, sum(len(due) for _, due in pairs))
    depths = {row.question.depth: row.right / row.asked for row in rows if row.question.depth is not None}
    whole = sum(row.right for row in full), sum(row.asked for row in full)
    difference = newcombe((right, asked), whole)
    verdict: Verdict = "reference" if way == Way() else judged(difference, whole[0] / whole[1])
    return Line(way, right, asked, same, depths, difference, verdict)


def newcombe(ours: tuple[float, int], theirs: tuple[float, int]) -> tuple[float, float]:
    """The 95 % interval of the share of ``ours`` minus that of ``theirs``; each as (right, asked)."""
    (low, high), (low_of, high_of) = wilson(*ours), wilson(*theirs)
    share, share_of = ours[0] / ours[1], theirs[0] / theirs[1]
    middle = share - share_of
    return middle - hypot(share - low, high_of - share_of), middle + hypot(high - share, share_of - low_of)


def judged(difference: tuple[float, float], full: float) -> Verdict:
    """What the interval of a difference says, beside a full cache with a share of ``full``."""
    low, high = difference
    near = max(-low, high) <= NEAR
    if near and full >= HALF:
        return "same"
    if not near and (low > 0 or high < 0):
        return "higher" if low > 0 else "lower"
    return "few" if full >= HALF else "fails"


def said_way(way: Way, lang: str) -> str:
    """The way's name in a table."""
    if way.policy is not None:
        return _say("way_policy", lang, policy=way.policy, kept=100 * way.kept)
    return _say("way_full", lang) if way.kv_dtype is None else _say("way_dtype", lang, dtype=way.kv_dtype)


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"evaluate.{key}", lang, **values)
