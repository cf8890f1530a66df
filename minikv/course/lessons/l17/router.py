"""Exercise 17.3: the router picks the replica with most of a prompt, unless its load is too high."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import count
from random import Random
from statistics import fmean

import numpy as np

from minikv.course.exercise import Exercise, Misconception


def choose(cached: list[int], load: list[int], prompt: int, bound: float) -> int:
    return _choose(cached, load, prompt, bound)


def _choose(cached, load, prompt, bound, *, least=False, slack=1, ties="load", fallback="next", below=False):
    """Apply the rule. Each keyword argument, changed, gives one wrong answer."""
    replicas = range(len(load))
    limit = bound * (min(load) if least else sum(load) / len(load)) + slack * prompt
    fits = [r for r in replicas if (load[r] < limit if below else load[r] <= limit)]
    order = {"load": lambda r: (load[r], r), "number": lambda r: (r,), "last": lambda r: (load[r], -r)}[ties]
    best = {r: (-cached[r], *order(r)) for r in replicas}
    if fallback == "idlest" and min(replicas, key=best.__getitem__) not in fits:
        fits = []
    return min(fits, key=best.__getitem__) if fits else least_loaded(cached, load, prompt, bound)


def least_loaded(cached, load, prompt, bound):
    return min(range(len(load)), key=lambda r: (load[r], r))


def longest_prefix(cached, load, prompt, bound):
    """Takes the longest prefix at any load."""
    return min(range(len(load)), key=lambda r: (-cached[r], load[r], r))


def soonest_done(cached, load, prompt, bound):
    """Minimises one sum, the time until this prompt would be done, and ignores the bound."""
    return min(range(len(load)), key=lambda r: (load[r] + prompt - cached[r], load[r], r))


def any_prefix(cached, load, prompt, bound):
    """Takes the idlest replica with any part of the prompt, not the one with most of it."""
    limit = bound * sum(load) / len(load) + prompt
    return min((r for r in range(len(load)) if load[r] <= limit), key=lambda r: (not cached[r], load[r], r))


Rule = Callable[[list[int], list[int], int, float], int]
Requests = list[tuple[int, list[int]]]
"""For each request: its arrival time, and the blocks of its prompt."""


@dataclass(frozen=True)
class Routed:
    """The result of a traffic: the replica of each request, the share of blocks found, and p99 of the wait in units."""

    replicas: tuple[int, ...]
    hit_rate: float
    p99_ttft: float


def run_router(rule: Rule, requests: Requests, replicas: int, bound: float) -> Routed:
    """Send each request to the replica that ``rule`` picks.

    A replica computes one block a unit of time, one prompt after the other, and keeps every block. It does not compute
    the blocks of a prompt that it has, except the last one. Its load is its blocks still to compute. Times are units.
    """
    free = [0] * replicas
    caches: list[set[int]] = [set() for _ in range(replicas)]
    chosen, waits, found, total = [], [], 0, 0
    for now, blocks in requests:
        cached = [_found(cache, blocks) for cache in caches]
        replica = rule(list(cached), [max(0, end - now) for end in free], len(blocks), bound)
        free[replica] = max(free[replica], now) + len(blocks) - cached[replica]
        caches[replica].update(blocks)
        chosen.append(replica)
        waits.append(free[replica] - now)
        found, total = found + cached[replica], total + len(blocks)
    return Routed(tuple(chosen), found / total, float(np.percentile(waits, 99)))


def _found(cache: set[int], blocks: list[int]) -> int:
    count = 0
    while count < len(blocks) - 1 and blocks[count] in cache:
        count += 1
    return count


def draw_traffic(rng: Random, length: int, replicas: int, gap: int) -> Requests:
    """Draw sessions that come back with a longer prompt, most of them below the same system prompt."""
    fresh = iter(range(1, 100_000))
    systems = [[next(fresh) for _ in range(rng.randint(2, 6))] for _ in range(2)]
    sessions: list[list[int]] = []
    requests, now = [], 0
    for _ in range(length):
        if not sessions or rng.random() < 0.4:
            sessions.append([*systems[rng.random() < 0.2]])
        session = rng.choice(sessions[-2 * replicas :])
        session += [next(fresh) for _ in range(rng.randint(1, 3))]
        requests.append((now, list(session)))
        now += rng.choice([0, 0, gap, gap])
    return requests


def round_robin() -> Rule:
    """Return a rule that ignores cache and load, for one run."""
    turns = count()
    return lambda cached, load, prompt, bound: next(turns) % len(load)


def compare_routers(
    rule: Rule, *, traffics: int = 40, seed: int = 17
) -> dict[str, tuple[float, float] | None]:
    """Return (hit rate, p99 in units) of ``rule`` ("yours") and of two others, averaged over many busy traffics.

    None where ``rule`` is not written yet.
    """
    rng = Random(seed)
    drawn = [
        (draw_traffic(rng, 80, replicas := rng.randint(2, 5), 1 + 4 // replicas), replicas)
        for _ in range(traffics)
    ]

    def mean(make: Callable[[], Rule]) -> tuple[float, float]:
        runs = [run_router(make(), requests, replicas, 1.25) for requests, replicas in drawn]
        return fmean(run.hit_rate for run in runs), fmean(run.p99_ttft for run in runs)

    found: dict[str, tuple[float, float] | None] = {
        "round-robin": mean(round_robin),
        "least-loaded": mean(lambda: least_loaded),
    }
    try:
        found["yours"] = mean(lambda: rule)
    except NotImplementedError:
        found["yours"] = None
    return found


EACH = 5  # cases for each misconception
MISCONCEPTIONS = (
    Misconception("load_alone", least_loaded),
    Misconception("prefix_alone", longest_prefix),
    Misconception("of_the_least", partial(_choose, least=True), within=("any_prefix",)),
    Misconception("no_slack", partial(_choose, slack=0), within=("load_alone",)),
    Misconception("first_of_equals", partial(_choose, ties="number")),
    Misconception("last_of_equals", partial(_choose, ties="last")),
    Misconception(
        "all_or_nothing",
        partial(_choose, fallback="idlest"),
        within=("load_alone", "of_the_least", "no_slack", "soonest"),
    ),
    Misconception("soonest", soonest_done, within=("load_alone",)),
    Misconception("any_prefix", any_prefix),
    Misconception("below_the_bound", partial(_choose, below=True), within=("any_prefix",)),
)


def _on_the_bound(own: int, load: list[int], prompt: int, bound: float) -> bool:
    return (own - prompt) * len(load) == Fraction(bound) * sum(load)


def draw_decisions(rng: Random) -> list[dict]:
    """Draw moments of such traffics under the right rule, with some for each misconception that goes wrong there."""
    moments: dict[str, list[dict]] = {each.name: [] for each in MISCONCEPTIONS}

    def record(cached: list[int], load: list[int], prompt: int, bound: float) -> int:
        right = choose(cached, load, prompt, bound)
        if sum(load) % len(load) and any(_on_the_bound(each, load, prompt, bound) for each in load):
            return right  # The mean is no exact float, so two right formulas may round to either side of it.
        for each in MISCONCEPTIONS:
            if each.wrong(cached, load, prompt, bound) != right:
                moments[each.name].append({"cached": cached, "load": load, "prompt": prompt, "bound": bound})
        return right

    replicas = 3
    while min(map(len, moments.values())) < EACH:
        bound = rng.choice([1.0, 1.25, 1.5])
        run_router(record, draw_traffic(rng, 60, replicas, 1 + 4 // replicas), replicas, bound)
        replicas = 3 + (replicas - 2) % 3  # three replicas at least: with two there is no second best
    return [case for name in moments for case in rng.sample(moments[name], EACH)]


ROUTER = Exercise(
    id="17.3",
    minutes=4,
    name="choose",
    signature=("cached", "load", "prompt", "bound"),
    cases=draw_decisions,
    reference=choose,
    misconceptions=MISCONCEPTIONS,
)
