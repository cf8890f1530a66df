"""Exercise 18.4 at work: a learner's search over real plans of the lesson's task."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minikv.course.capstone import Plan, Run, Task, serve
from minikv.course.lessons.l18.best_plan import Served
from minikv.course.lessons.l18.time_split import paper_seconds


@dataclass(frozen=True)
class Searched:
    """The plan picked (None: none keeps the bar), the paper bound of each plan, and the plans run, in order."""

    best: Plan | None
    paper: tuple[float, ...]
    runs: tuple[Run, ...]


def search(fn: Callable, task: Task, plans: Sequence[Plan]) -> Searched | None:
    """Run ``fn`` on real plans: ``paper`` computes, ``run`` serves the task. None where ``fn`` is a stub."""
    paper = tuple(paper_seconds(task, plan) for plan in plans)
    runs: dict[int, Run] = {}

    def run(number: int) -> Served:
        if number not in runs:
            runs[number] = serve(task, plans[number])
        return Served(runs[number].seconds, runs[number].quality)

    try:
        picked = fn(len(plans), paper.__getitem__, run, task.quality)
    except NotImplementedError:
        return None
    return Searched(None if picked is None else plans[picked], paper, tuple(runs.values()))
