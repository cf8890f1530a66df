"""Lesson 18: the seconds of a run by cause, and the plan's own bound on paper."""

from typing import TYPE_CHECKING

from minikv.course.capstone.bound import fewest_steps, floor

if TYPE_CHECKING:
    from minikv.course.capstone import Plan, Run, Task


def where_it_went(task: "Task", run: "Run") -> dict[str, float]:
    """Return the seconds of the task's clock by what each step waited for; they sum to ``run.seconds``, up to rounding.

    "weights" and "cache": steps bound by bytes, divided by what was read. "compute": steps bound by FLOPs. The others
    are those of ``run.where``.
    """
    weights = weight_seconds(task, run.plan)
    slow = [step.parts for step in run.timed if step.parts.compute <= step.parts.bandwidth]
    parts = {
        "weights": len(slow) * weights,
        "cache": sum(each.bandwidth for each in slow) - len(slow) * weights,
    }
    return parts | {name: run.where[name] for name in ("compute", "overhead", "moved", "idle")}


def weight_seconds(task: "Task", plan: "Plan") -> float:
    """Return the seconds in which a step reads the weights once."""
    clock = task.step_time(plan.kv_dtype)
    nothing = [0] * len(clock.cost.attention)
    return clock.parts(clock.cost.counted(1, 1, nothing, nothing)).bandwidth


def paper_seconds(task: "Task", plan: "Plan") -> float:
    """Return a lower bound of ``plan``'s seconds from its numbers alone; it is never above a real run.

    It adds two facts to the task's floor: a plan has a number of seats, and without eviction every decode reads its
    whole sequence, in the plan's dtype. So the decodes of all sequences take at least as many steps as there are
    decodes for a seat, and each step reads the weights and the cache of the sequences that decode in it.
    """
    clock, drafts = task.step_time(plan.kv_dtype), plan.prompt_lookup
    steps = [fewest_steps(request.max_tokens, drafts) for request in task.requests]
    seats = min(plan.max_num_seqs, plan.num_blocks_for(task))
    fewest = max(max(steps), -(-sum(steps) // seats))
    read = 0 if plan.eviction is not None else sum(_cached_seen(task, drafts))
    cost = clock.cost
    work = cost.counted(1, 1, *[[read] * len(cost.attention)] * 2)
    windowed = any(each.window is not None for each in cost.attention)
    cache = 0.0 if windowed else work.cache_bytes / work.num_bytes * clock.parts(work).bandwidth
    parts = fewest * (weight_seconds(task, plan) + clock.assumptions.overhead_seconds)
    return max(floor(task).seconds, task.requests[0].arrival_s + parts + cache)


def _cached_seen(task: "Task", drafts: int) -> list[int]:
    """Return the tokens that each request's decodes read at least, if every draft is right."""
    seen = []
    for request in task.requests:
        prompt, left, tokens = len(request.tokens), request.max_tokens - 1, 0
        while left > 0:
            taken = min(1 + drafts, left)
            prompt, left = prompt + taken, left - taken
            tokens += prompt
        seen.append(tokens)
    return seen
