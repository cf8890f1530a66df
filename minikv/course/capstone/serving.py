"""serve: the engine really answers every request of a task, on the task's clock. Lesson 18."""

from time import perf_counter
from typing import TYPE_CHECKING, Any

from minikv.course.capstone.bound import floor
from minikv.course.capstone.clock import TaskClock
from minikv.course.capstone.plan import Plan
from minikv.course.capstone.reference import right_tokens
from minikv.course.capstone.run import Run
from minikv.course.capstone.task import Task
from minikv.engine import EventLog, summary
from minikv.engine.llm import LLM
from minikv.engine.outputs import RequestOutput, check_failures
from minikv.errors import ArgumentError, DoesNotFitError
from minikv.plan.preemption import TransferRates
from minikv.units import exact_bytes

if TYPE_CHECKING:
    from minikv.engine.ext.events import Emit


def serve(task: Task, plan: Plan, *, emit: "Emit | None" = None) -> Run:
    """Serve ``task`` as ``plan`` says; every event of the engine goes to ``emit`` too.

    A request is added before the first step that begins at its arrival or later. Nothing is kept from run to run.
    Raises ``DoesNotFitError`` for a plan above the budget, ``RequestTooLargeError`` if its blocks do not hold
    the longest request, and the errors of ``LLM``, all before anything is computed; ``GenerationFailedError`` where
    requests fail.
    """
    for what, value, kind in (("task", task, Task), ("plan", plan, Plan)):
        if not isinstance(value, kind):
            raise ArgumentError("simulate_type", what=what, kind=kind.__name__, value=type(value).__name__)
    log, clock = EventLog(), TaskClock(task.step_time(plan.kv_dtype))

    def hear(event) -> None:
        log(event)
        if emit is not None:
            emit(event)

    with LLM(task.model, clock=clock, emit=hear, seed=task.seed, **_options(task, plan)) as llm:
        clock.attach(llm)
        for number, request in enumerate(task.requests):
            llm.scheduler.check(number, list(request.tokens), request.params(number))
        held = _held_bytes(llm, task)
        began = perf_counter()
        outputs = _run(llm, clock, task)
        wall = perf_counter() - began
        held, num_blocks = max(held, _held_bytes(llm, task)), llm.manager.pools[0].num_blocks
    check_failures(outputs)
    return Run(
        task_id=task.id,
        model=task.name,
        device=str(task.model.device),
        plan=plan,
        num_blocks=num_blocks,
        held_bytes=held,
        kv_bytes=task.kv_bytes,
        bar=task.quality,
        right=right_tokens(task, tuple(out.token_ids for out in outputs)),
        asked=task.asked,
        floor_seconds=floor(task).seconds,
        wall_s=wall,
        timed=tuple(clock.steps),
        outputs=tuple(outputs),
        arrivals=tuple(request.arrival_s for request in task.requests),
        metrics=summary(log.events),
    )


def _options(task: Task, plan: Plan) -> dict[str, Any]:
    """The arguments of ``LLM``. The rates are those of the clock: measured ones would differ from run to run."""
    options: dict[str, Any] = {
        "num_blocks": plan.num_blocks_for(task),
        "block_size": plan.block_size,
        "max_num_seqs": plan.max_num_seqs,
        "max_batched_tokens": plan.max_batched_tokens,
        "max_model_len": task.max_model_len,
        "prompt_lookup": plan.prompt_lookup,
        "kv_dtype": plan.kv_dtype,
        "eviction": plan.eviction,
        "enforce_eager": True,
    }
    if plan.cpu_kv_bytes is not None:
        clock = task.step_time(plan.kv_dtype)
        rate = task.assumptions.host_gb_s * 1e9
        prefill = clock.prefill_rate(max(len(request.tokens) for request in task.requests))
        options |= {"cpu_kv_bytes": plan.cpu_kv_bytes, "swap_rates": TransferRates(rate, rate, prefill)}
    return options


def _held_bytes(llm: LLM, task: Task) -> int:
    """The bytes of the LLM's K and V, measured. Raises ``DoesNotFitError`` where they are above the budget."""
    report = llm.memory_report()
    held = report.kv_bytes + report.record_bytes
    if held > task.kv_bytes:
        raise DoesNotFitError("capstone_held", held=exact_bytes(held), budget=exact_bytes(task.kv_bytes))
    return held


def _run(llm: LLM, clock: TaskClock, task: Task) -> list[RequestOutput]:
    """Run every request, from the first arrival to the last token; returns the outputs in the order of the task."""
    done: dict[str | int, RequestOutput] = {}
    requests, added = task.requests, 0
    while len(done) < len(requests):
        if not llm.has_work:
            clock.now = max(clock.now, requests[added].arrival_s)
        now = clock.now
        while added < len(requests) and requests[added].arrival_s <= now:
            request = requests[added]
            clock.now = request.arrival_s  # so that its time in the queue counts
            llm.add_request(list(request.tokens), request.params(added), request_id=added, pieces=False)
            added += 1
        clock.now = now
        out = llm.step()
        clock.now = clock.steps[-1].ends
        done |= {each.request: each for each in out.finished}
    return [done[number] for number in range(len(requests))]
