"""Runs a load through minikv and its peers in turn, and says nothing of their speed unless they say the same tokens."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.engine_cases import Load
from benchmarks.engine_peers import Answers, Run
from benchmarks.kernels_timing import Disagrees

# Two logits that lie closer than this may change places when the sums are added up in another order.
TIE = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}


@dataclass(frozen=True)
class Compared:
    """What each way took: ``seconds`` its best run (on a GPU the median), ``watched`` the run that was not timed.

    ``ties`` counts the requests whose answers part at a token that two ways may choose differently.
    """

    load: Load
    seconds: dict[str, float]
    watched: dict[str, Run]
    ties: dict[str, int]

    def rate(self, name: str) -> float:
        """Generated tokens a second."""
        return self.load.new_tokens / self.seconds[name]


def compare(
    model: Any, load: Load, ways: Mapping[str, Any], rounds: int, first: Mapping[str, Run] | None = None
) -> Compared:
    """Answer ``load`` in all ``ways``, ``rounds`` times in turn, a different one first each round.

    Before, each answers it once, watched: to warm up, and to compare. ``first`` has such runs already. The answers of
    every run that is timed are compared with those. Raises ``Disagrees``.
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


def agree(model: Any, load: Load, answers: Answers, others: Answers, who: str) -> int:
    """How many requests part at a tie. Raises ``Disagrees`` for any other difference, and for a missing token."""
    ties = 0
    for number, (request, one, other) in enumerate(zip(load.requests, answers, others, strict=True)):
        if len(one) != request.new or len(other) != request.new:
            raise Disagrees(
                f"{who}: request {number} has {len(one)} and {len(other)} tokens of {request.new}"
            )
        if one == other:
            continue
        place = next(place for place in range(request.new) if one[place] != other[place])
        gap = _gap(model, [*request.prompt, *one[:place]], one[place], other[place])
        if gap > TIE[model.dtype]:
            raise Disagrees(f"{who}: request {number}, token {place}: logits that differ by {gap:.2g}")
        ties += 1
    return ties


@torch.no_grad()
def _gap(model: Any, tokens: list[int], one: int, other: int) -> float:
    """How far the logit of either token lies below the best one behind ``tokens``."""
    logits = model(torch.tensor([tokens], device=model.device), logits_to_keep=1).logits[0, -1].float()
    return float(logits.max() - logits[[one, other]].min())
