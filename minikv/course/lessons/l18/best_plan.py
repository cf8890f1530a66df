"""Exercise 18.4: the best of many plans, with as few real runs as the bounds on paper allow."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from minikv.course.exercise import Exercise, Misconception


class Served(NamedTuple):
    """The result of a real run of a plan: seconds of the task's clock, and the share of right answers."""

    seconds: float
    quality: float


Paper = Callable[[int], float]
"""``paper(plan)``: a lower bound of the plan's seconds, by arithmetic. Cheap."""

Run = Callable[[int], Served]
"""``run(plan)``: serves the plan. Expensive."""


def best_plan(plans: int, paper: Paper, run: Run, bar: float) -> int | None:
    return _best(plans, paper, run, bar)


def _best(plans, paper, run, bar, *, first=False, keep=None, bound="best", below=False):
    """Try plans in the order of ``paper`` until none can be better. Each keyword, changed, gives a wrong answer."""
    kept = keep or (lambda served: served.quality > bar if below else served.quality >= bar)
    best, seconds, limit = None, float("inf"), float("inf")
    for plan in sorted(range(plans), key=paper):
        if bound and paper(plan) >= limit:
            break
        served = run(plan)
        if kept(served) and served.seconds < seconds:
            best, seconds = plan, served.seconds
        if kept(served) or bound == "any":
            limit = min(limit, served.seconds)
        if first and best is not None:
            break
    return best


def best_in_the_order_given(plans, paper, run, bar):
    """Skips plans that paper rules out, but tries them in the given order, so good ones come late."""
    best, seconds = None, float("inf")
    for plan in range(plans):
        if paper(plan) >= seconds:
            continue
        served = run(plan)
        if served.quality >= bar and served.seconds < seconds:
            best, seconds = plan, served.seconds
    return best


def best_on_paper(plans, paper, run, bar):
    """Takes the first plan by paper, if it keeps the bar."""
    plan = min(range(plans), key=paper)
    return plan if run(plan).quality >= bar else None


def best_quality(plans, paper, run, bar):
    """Takes the plan with the most right answers among those that keep the bar."""
    found = {plan: run(plan) for plan in range(plans)}
    kept = [plan for plan in found if found[plan].quality >= bar]
    return min(kept, key=lambda plan: (-found[plan].quality, found[plan].seconds), default=None)


def fastest_instead(plans, paper, run, bar):
    """Returns the fastest plan where none keeps the bar."""
    best = best_plan(plans, paper, run, bar)
    return min(range(plans), key=lambda plan: run(plan).seconds) if best is None else best


def allowed(paper: Sequence[float], seconds: Sequence[float], quality: Sequence[float], bar: float) -> int:
    """Count the runs that no search can avoid: a plan with a paper bound up to the best real time may be better."""
    kept = [each for each, share in zip(seconds, quality, strict=True) if share >= bar]
    return sum(each <= min(kept) for each in paper) if kept else len(paper)


def run_best(
    fn: Callable, paper: Sequence[float], seconds: Sequence[float], quality: Sequence[float], bar: float
) -> dict[str, object]:
    """Return the plan that ``fn`` picks, and whether it ran too many. Running a plan again does not count."""
    ran: set[int] = set()

    def check(plan: int) -> int:
        if not 0 <= plan < len(paper):
            raise ValueError(f"plan {plan}: there are plans 0 to {len(paper) - 1}")
        return plan

    def on_paper(plan: int) -> float:
        return paper[check(plan)]

    def run(plan: int) -> Served:
        ran.add(check(plan))
        return Served(seconds[plan], quality[plan])

    picked = fn(len(paper), on_paper, run, bar)
    return {"plan": picked, "ran_too_many": len(ran) > allowed(paper, seconds, quality, bar)}


def draw_plans(rng) -> list[dict]:
    """Draw bounds that are tight or far too low; fast plans that miss the bar; cases in which all plans miss it."""
    cases = []
    for i in range(60):
        count = 3 + i // 6
        base = rng.sample(range(100, 100 + 20 * count), count)
        loose = (1.1, 1.6, 3.0)[i % 3]
        seconds = [round(each / 100 * rng.uniform(1.0, loose), 4) for each in base]
        paper = [each / 100 for each in base]
        bar = rng.choice([0.9, 0.95])
        quality = [rng.choice([bar, 1.0, 0.97, round(bar - 0.05, 2), 0.3]) for _ in range(count)]
        fast = sorted(range(count), key=seconds.__getitem__)
        if i % 4 == 0:  # the fastest plans clearly miss it
            for plan in fast[: count // 2]:
                quality[plan] = 0.4
        if i % 4 == 1:  # the best plan is exactly on it
            quality[fast[0]] = bar
        if i % 10 == 9:
            quality = [min(each, round(bar - 0.02, 2)) for each in quality]
        cases.append({"paper": paper, "seconds": seconds, "quality": quality, "bar": bar})
    return cases


BEST = Exercise(
    id="18.4",
    minutes=7,
    name="best_plan",
    signature=("paper", "seconds", "quality", "bar"),
    cases=draw_plans,
    reference=best_plan,
    drive=run_best,
    misconceptions=(
        Misconception("all_of_them", partial(_best, bound=None)),
        Misconception("order_given", best_in_the_order_given, within=("all_of_them",)),
        Misconception("first_that_keeps", partial(_best, first=True)),
        Misconception("paper_alone", best_on_paper),
        Misconception("no_bar", partial(_best, keep=lambda served: True)),
        Misconception("above_the_bar", partial(_best, below=True)),
        Misconception("bound_by_failures", partial(_best, bound="any"), within=("paper_alone",)),
        Misconception("best_quality", best_quality),
        Misconception("fastest_instead", fastest_instead, within=("no_bar",)),
    ),
)
