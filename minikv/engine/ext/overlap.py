"""Overlap scheduling: the next step is launched while a GPU computes this one.

    schedule ------ launch N ----------------------- read N -- finish N ----------------------- read N + 1 -- ...
                               schedule_next -- launch N + 1                 schedule_next ...

The host knows which sequences decode in step N + 1 before it knows any token of step N: those that get a token in it
and are not at ``max_tokens``. So it prepares that step meanwhile, and the tokens go from one forward to the next
without passing through it. Some of them end a text, which the host sees too late: their rows of step N + 1 are computed
in vain and dropped.
"""

from collections.abc import Sequence as Seq

from minikv.blocks import UNKNOWN
from minikv.engine.core.extension import overriding
from minikv.engine.core.loop import InFlightStep, Loop, let_go
from minikv.engine.core.scheduler import Scheduler
from minikv.engine.core.step import Scheduled, Step, StepPlan


class OverlapLoop:
    """A ``Loop`` with at most two steps in flight; they end in the order in which they began.

    Nothing is launched behind a step with a prefill while an extension needs the seconds of each step.
    """

    def __init__(self, loop: Loop):
        self.loop = loop

    def step(self) -> None:
        """As ``Loop.step``."""
        self.loop.step(self._launch_next)

    def _launch_next(self) -> Exception | None:
        """Launch the step behind the one in flight, if it is known. An error of the launch is raised when the step is
        read.

        An error of the clock before that is returned, since it does not concern the step in flight.
        """
        (current,) = self.loop.in_flight
        is_timed = self.loop.after_forward and current.step.num_decode < current.step.num_tokens
        if is_timed or isinstance(current.sampled, BaseException):
            return None
        try:
            step = schedule_next(self.loop.scheduler)
        except Exception as error:
            return error
        if step is None:
            return None
        try:
            behind = self.loop.launch(step, current.sampled)
        except Exception as error:
            let_go(error)
            behind = InFlightStep(step, [], current.began, error)
        current.alone = behind.alone = False
        self.loop.in_flight.append(behind)
        return None


def schedule_next(scheduler: Scheduler) -> Step | None:
    """Return the step behind the open one, before its tokens are known: a decode of every sequence that goes on.

    None if it may not be the next step: unless exactly one step is open; if a sequence waits or has more of a prompt to
    compute; if a block is missing, has to be copied, or would first have to be saved to the host; or if an extension
    needs the tokens. ``batch.sources`` has the rows of its tokens. If it raises, the open step is unchanged.
    """
    sources, manager = _rows_that_go_on(scheduler), scheduler.manager
    seqs = [scheduler.open_steps[0].of_items[row] for row in sources]
    if not seqs or not manager.can_reserve_slots([seq.id for seq in seqs]):
        return None
    scheduler.now = scheduler.clock()
    plan, starts = StepPlan(scheduler.max_batched_tokens), [seq.num_placed for seq in seqs]
    scheduler.changed("reserve", None)
    try:
        for seq in seqs:
            manager.reserve_slot(seq.id)
            plan.seqs.append(seq)
            plan.sampled.append(seq)
            plan.items.append(Scheduled(seq.id, seq.num_placed, (UNKNOWN,), True, (seq.id,)))
            seq.num_placed += 1
            scheduler.changed("allocate", seq, 1)
        step = scheduler.open(plan, sources)
    except BaseException:
        for seq, start in zip(seqs, starts, strict=True):
            if manager.num_tokens(seq.id) > start:
                manager.truncate(seq.id, start)
            seq.num_placed = start
        scheduler.changed("withdraw", None)  # the reservation was undone
        raise
    return step


def _rows_that_go_on(scheduler: Scheduler) -> Seq[int]:
    """Return the items of the open step with sequences that certainly decode next; none if any is uncertain."""
    running = scheduler.running_sequences
    if len(scheduler.open_steps) != 1 or scheduler.num_waiting:
        return ()
    (opened,) = scheduler.open_steps
    items = opened.step.items
    if len(items) != len(running) or any(len(item.samples) != 1 for item in items):
        return ()  # a sequence waits for a block, a prompt goes on, or several sequences begin with it
    if any(seq.params.adjusts for seq in running):
        return ()  # its next logits depend on the token that is not known yet
    for may_reserve in overriding(scheduler.extensions, "may_reserve"):
        if not all(map(may_reserve, running)):
            return ()
    rows = []
    for row, seq in enumerate(opened.of_items):
        if not seq.ended and seq.num_output + 1 < seq.params.max_tokens:
            rows.append(row)
    return rows
