"""Loop: computes one step after the other, and gives its tokens back to the scheduler. Lesson 11a.

schedule  ->  launch  ->  read the tokens, and their text  ->  finish
    |           |                     |
    +-----------+---------------------+----> fail: the step's requests end with the error, the others go on
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from traceback import clear_frames
from typing import Any, Protocol

from minikv.engine.adjusted import Asked
from minikv.engine.core.extension import overriding
from minikv.engine.core.runner import Runner
from minikv.engine.core.scheduler import Scheduler
from minikv.engine.core.sequence import SequenceId
from minikv.engine.core.step import Scheduled, Step
from minikv.engine.sampler import SampledTokens, SamplerOutput


class Outputs(Protocol):
    """The receiver of a step's tokens."""

    def due(self, step: Step) -> tuple[list[tuple[Any, Scheduled]], list[Asked], list[float]]:
        """Return the work that the step owes: (state, item) pairs, params and draws.

        There is a pair for each of ``step.sampled``: the receiver's own state of the sequence, and the item. There are
        params and a uniform number for each row of logits (a new token, or an unconfirmed one).
        """

    def prepare(self, due: list[tuple[Any, Scheduled]]) -> None:
        """Do work that fits into the time in which the device computes."""

    def read(
        self, due: list[tuple[Any, Scheduled]], sampled: SamplerOutput
    ) -> tuple[list[int | list[int]], list[SequenceId], Callable[[], None]]:
        """Return the tokens, the sequences that they stop, and a function that hands the tokens out.

        There is a token for each pair, or a list of them. The function is called once the tokens count.
        """

    def ended(self, steps: int, seq_ids: Iterable[SequenceId]) -> None:
        """Record that ``steps`` steps have ended, and the sequences in them."""


@dataclass(eq=False)
class InFlightStep:
    """A step that was launched at ``began`` seconds; ``sampled`` is the error if the launch raised one.

    ``alone``: no other step was in flight beside it.
    """

    step: Step
    due: list[tuple[Any, Scheduled]]
    began: float
    sampled: SampledTokens | BaseException
    alone: bool = True


class Loop:
    """Computes the steps of ``scheduler`` with ``runner``. Not for several threads at once.

    ``pause()`` is a context in which the host waits for the device, and may be interrupted.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        outputs: Outputs,
        pause: Callable[[], AbstractContextManager[None]] = nullcontext,
    ):
        self.scheduler, self.runner, self.outputs, self.pause = scheduler, runner, outputs, pause
        # Launched and not read, in the order of the scheduler's open steps
        self.in_flight: list[InFlightStep] = []
        self.after_forward = overriding(scheduler.extensions, "after_forward")

    def step(self, meanwhile: Callable[[], Exception | None] = lambda: None) -> None:
        """Complete the oldest open step, or the next one. ``meanwhile`` is called while the device computes it.

        An ``Exception`` fails the requests of all open steps and is kept in their outputs; any other error, such as
        Ctrl+C in the forward, is raised as well. Errors of a clock or ``Extension.flush`` before the step began or
        after it was done are raised without failing anything, and so is the error that ``meanwhile`` returns.
        """
        step, ended = self.scheduler.open_step, 1
        late: Exception | None = None
        try:
            if step is None:
                step = self.scheduler.schedule()
                self.in_flight.append(self.launch(step))
            late = meanwhile()
            self._complete(self.in_flight.pop(0))
        except BaseException as error:
            begun = self.scheduler.open_step
            if begun is None or step not in (None, begun):  # A flush raised it after the step was done.
                raise
            step, ended = begun, len(self.scheduler.open_steps)
            let_go(error)
            self.in_flight.clear()
            try:
                self.scheduler.fail(begun, error)
            finally:
                if self.scheduler.open_step is begun:  # the clock has raised: the next call fails the step
                    self.in_flight.append(InFlightStep(begun, [], 0.0, error))
            if not isinstance(error, Exception):
                raise
        finally:
            if step is not None:
                self.outputs.ended(ended, (item.id for item in step.items))
        if late is not None:
            raise late

    def launch(self, step: Step, before: SampledTokens | None = None) -> InFlightStep:
        """Start the forward of ``step``; ``before`` as in ``Runner.run``."""
        due, params, draws = self.outputs.due(step)
        began = perf_counter()
        with self.pause():
            sampled = self.runner.run(step, params, draws, before)
        return InFlightStep(step, due, began, sampled)

    def _complete(self, launched: InFlightStep) -> None:
        """Wait for the tokens of a step, and hand them out."""
        step, due = launched.step, launched.due
        if isinstance(launched.sampled, BaseException):
            raise launched.sampled
        self.outputs.prepare(due)
        with self.pause():
            sampled = launched.sampled.read()
        if launched.alone:
            seconds = perf_counter() - launched.began
            for after_forward in self.after_forward:
                after_forward(step, seconds)
        tokens, stopped, hand_out = self.outputs.read(due, sampled)
        try:
            self.scheduler.finish(step, tokens, stopped)
        finally:
            # Also if a flush raised: the tokens are in the sequences
            if self.scheduler.open_step is not step:
                hand_out()


def let_go(error: BaseException | None) -> None:
    """Keep the lines of a traceback, but release the tensors in its frames.

    The error stays in outputs. Its frames would keep the activations and views of the cache alive as long as those.
    """
    met: set[int] = set()
    while error is not None and id(error) not in met:
        met.add(id(error))
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
