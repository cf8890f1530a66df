"""Exercise 17.4: the smallest fleet that keeps a bound, found with few questions."""

from collections.abc import Callable, Sequence
from functools import partial

from minikv.course.exercise import Exercise, Misconception

Ask = Callable[[int], dict[str, float]]
"""``ask(replicas)``: the percentiles "p50" and "p99" of the time to the first token with so many replicas."""


def fewest_replicas(ask: Ask, bound: float, most: int) -> int | None:
    """Return the smallest fleet with p99 within ``bound``, or None. ``allowed`` bounds the number of questions."""
    return _fewest(ask, bound, most)


def _fewest(ask, bound, most, *, percentile="p99", below=False, halve=True, less=0, none=None, past=False):
    """Double until the bound holds, then halve the interval. Each keyword argument, changed, gives one wrong answer."""

    def holds(replicas: int) -> bool:
        seconds = ask(replicas)[percentile]
        return seconds < bound if below else seconds <= bound

    low, high = 0, 1  # the bound does not hold at low
    while not holds(high):
        if high >= most:
            return none
        low, high = high, 2 * high if past else min(2 * high, most)
    while halve and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high - less


def fewest_most_instead(ask, bound, most):
    """Returns the largest fleet where none is enough."""
    return _fewest(ask, bound, most, none=most)


def fewest_one_by_one(ask, bound, most):
    return next((replicas for replicas in range(1, most + 1) if ask(replicas)["p99"] <= bound), None)


def fewest_from_the_top(ask, bound, most):
    replicas = most
    while replicas > 0 and ask(replicas)["p99"] <= bound:
        replicas -= 1
    return None if replicas == most else replicas + 1


def fewest_by_share(ask, bound, most):
    """Divides one replica's wait by the bound, as if the wait were inversely proportional to the replicas."""
    alone = ask(1)["p99"]
    replicas = max(1, -(-int(alone * 1000) // max(1, int(bound * 1000))))
    return replicas if replicas <= most else None


def allowed(most: int) -> int:
    """Return the number of questions for doubling up to ``most`` and halving the last step: 2 log2(most) + 2."""
    return 2 * max(1, most - 1).bit_length() + 2


def run_search(fn: Callable, p50: Sequence[float], p99: Sequence[float], bound: float) -> dict[str, object]:
    """Return what ``fn`` answers for fleets of 1 to ``len(p99)`` replicas, and whether it asked too often."""
    asked = 0

    def ask(replicas: int) -> dict[str, float]:
        nonlocal asked
        asked += 1
        if not 1 <= replicas <= len(p99):
            raise ValueError(f"a fleet of {replicas}: it may have 1 to {len(p99)} replicas")
        return {"p50": p50[replicas - 1], "p99": p99[replicas - 1]}

    answer = fn(ask, bound, len(p99))
    return {"replicas": answer, "asked_too_often": asked > allowed(len(p99))}


def draw_fleets(rng) -> list[dict]:
    """Draw p99 values that fall with every replica or in steps; the bound is a value, between two, or below all."""
    cases = []
    for i in range(48):
        most = (2, 3, 5, 8, 13, 24, 40, 64)[i // 6]
        seconds, p99 = round(rng.uniform(0.2, 0.5), 3), []
        for _ in range(most):
            p99.append(seconds)
            seconds = round(seconds + rng.choice([0, 0.01, 0.05, seconds / 2]), 3)
        p99.reverse()
        place = rng.randrange(most)
        bound = (p99[place], p99[place] + 0.002, p99[-1] - 0.1, p99[0] + 1, p99[place], p99[most // 2])[i % 6]
        p50 = sorted((round(value * rng.uniform(0.3, 0.5), 4) for value in p99), reverse=True)
        cases.append({"p50": p50, "p99": p99, "bound": round(bound, 3)})
    return cases


FEWEST = Exercise(
    id="17.4",
    minutes=8,
    name="fewest_replicas",
    signature=("p50", "p99", "bound"),
    cases=draw_fleets,
    reference=fewest_replicas,
    drive=run_search,
    misconceptions=(
        Misconception("one_by_one", fewest_one_by_one),
        Misconception("from_the_top", fewest_from_the_top),
        Misconception("doubled", partial(_fewest, halve=False)),
        Misconception("median", partial(_fewest, percentile="p50")),
        Misconception("below", partial(_fewest, below=True)),
        Misconception("one_less", partial(_fewest, less=1)),
        Misconception("most_instead", fewest_most_instead),
        Misconception("past_the_most", partial(_fewest, past=True)),
        Misconception("in_proportion", fewest_by_share),
    ),
)
