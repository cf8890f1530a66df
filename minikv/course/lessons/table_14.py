"""Lesson 14: the answers of several policies as a table, a line each."""

from collections.abc import Sequence

from minikv.eviction.curves import Point


def recall_lines(points: Sequence[Point]) -> list[str]:
    """A line for each policy, a column for each share kept: questions answered and the 95 % interval, in percent."""
    shares = sorted({point.setting.kept for point in points}, reverse=True)
    found = {(point.policy, point.setting.kept): point.score for point in points}
    told = [f"{'':<12}" + "".join(f"{f'{100 * share:g} % kept':>18}" for share in shares)]
    for policy in dict.fromkeys(point.policy for point in points):
        cells = ""
        for share in shares:
            score = found.get((policy, share))
            low, high = (100 * bound for bound in score.interval) if score else (0, 0)
            cells += f"{f'{100 * score.share:.1f} [{low:.0f}, {high:.0f}]' if score else '':>18}"
        told.append(f"{policy:<12}{cells}".rstrip())
    return told
