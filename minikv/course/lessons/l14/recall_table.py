"""Lesson 14: the answers of several policies as a table, a line for each policy."""

from collections.abc import Sequence

from minikv.eviction.study.curves import Point
from minikv.eviction.study.suite import Score


def recall_lines(points: Sequence[Point], *, perplexity: bool = False) -> list[str]:
    """Return a line for each policy, with a column for each share kept: answered questions and 95 % interval, in
    percent.

    ``perplexity`` adds the perplexity of the other words. The header has numbers only, so it is the same in all
    languages.
    """
    shares = sorted({point.setting.kept for point in points}, reverse=True)
    found = {(point.policy, point.setting.kept): point.score for point in points}
    width = 24 if perplexity else 18
    told = [f"{'':<12}" + "".join(f"{f'{100 * share:g} %':>{width}}" for share in shares)]
    for policy in dict.fromkeys(point.policy for point in points):
        scores = (found.get((policy, share)) for share in shares)
        cells = "".join(f"{'' if score is None else _cell(score, perplexity):>{width}}" for score in scores)
        told.append(f"{policy:<12}{cells}".rstrip())
    return told


def _cell(score: Score, perplexity: bool) -> str:
    low, high = (100 * bound for bound in score.interval)
    beside = f"{score.perplexity:>6.1f}" if perplexity and score.words else ""
    return f"{100 * score.share:.1f} [{low:.0f}, {high:.0f}]{beside}"
