"""Runs a load through minikv and its peers in turn, and says nothing of their speed unless they say the same tokens."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minikv.course.your_engine.ways import RaceLoad, Run, agree


@dataclass(frozen=True)
class Compared:
    """What each way took: ``seconds`` its best run (on a GPU the median), ``watched`` the run that was not timed.

    ``ties`` counts the requests whose answers part at a token that two ways may choose differently.
    """

    load: RaceLoad
    seconds: dict[str, float]
    watched: dict[str, Run]
    ties: dict[str, int]

    def rate(self, name: str) -> float:
        """Generated tokens a second."""
        return self.load.new_tokens / self.seconds[name]


def compare(
    model: Any, load: RaceLoad, ways: Mapping[str, Any], rounds: int, first: Mapping[str, Run] | None = None
) -> Compared:
    """Answer ``load`` in all ``ways``, ``rounds`` times in turn, a different one first each round.

    Before, each answers it once, watched: to warm up, and to compare. ``first`` has such runs already. The answers of
    every run that is timed are compared with those. Raises ``MiniKVError``.
    """
    watched = {
        name: (first or {}).get(name) or way.run(model, load, watch=True) for name, way in ways.items()
    }
    (best, of_best), *others = watched.items()
    ties = {name: agree(model, load, of_best.answers, run.answers, f"{best}, {name}") for name, run in others}
    names, times = list(ways), {name: list[float]() for name in ways}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            run = ways[name].run(model, load)
            agree(model, load, watched[name].answers, run.answers, f"{name}, again")
            times[name].append(run.seconds)
    typical: Callable[[Sequence[float]], float] = statistics.median if model.device.type == "cuda" else min
    return Compared(load, {name: typical(found) for name, found in times.items()}, watched, ties)
