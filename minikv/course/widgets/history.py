"""History: figures over time in bounded memory. It always covers the whole time, and keeps the peaks."""

from collections.abc import Mapping
from dataclasses import dataclass

MOST = 120  # points


@dataclass(frozen=True)
class Point:
    """``values``: {what: an amount, 0 or more}, ``seconds`` after the first point."""

    seconds: float
    values: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.values.values())


class History:
    """At most ``most`` points, and the newest. When there are too many, the larger one of two neighbours stays."""

    def __init__(self, most: int = MOST):
        self._most = most
        self._began: float | None = None
        self._kept: list[Point] = []
        self._each = 1  # as many added points become one kept point
        self._waiting = 0
        self._largest: Point | None = None  # the largest of the points that are not kept yet
        self._newest: Point | None = None
        self.peak: Point | None = None

    def add(self, now: float, values: Mapping[str, float]) -> None:
        """Add the figures at ``now``, in seconds of any clock."""
        if self._began is None:
            self._began = now
        point = Point(now - self._began, dict(values))
        self._newest = point
        self.peak = _larger(self.peak, point)
        self._largest = _larger(self._largest, point)
        self._waiting += 1
        if self._waiting == self._each:
            self._kept.append(self._largest)
            self._largest, self._waiting = None, 0
        if len(self._kept) == self._most:
            pairs = zip(self._kept[::2], self._kept[1::2], strict=False)
            last = self._kept[-1:] if self._most % 2 else []
            self._kept = [_larger(one, other) for one, other in pairs] + last
            self._each *= 2

    @property
    def points(self) -> list[Point]:
        """The points, from the first to the newest."""
        ends = [point for point in (self._largest, self._newest) if point is not None]
        rest = [point for point in ends if not self._kept or point.seconds > self._kept[-1].seconds]
        return [*self._kept, *({point.seconds: point for point in rest}.values())]


def _larger(one: Point | None, other: Point) -> Point:
    return one if one is not None and one.total >= other.total else other
