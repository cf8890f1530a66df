"""Loop: one step after the other. What is scheduled is computed, and its tokens go back to the scheduler. Lesson 11a.

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

from minikv.engine.core.extension import overriding
from minikv.engine.core.runner import Runner
from minikv.engine.core.scheduler import Scheduler
from minikv.engine.core.sequence import SequenceId
from minikv.engine.core.step import Scheduled, Step
from minikv.engine.sampler import Sampled, SampledTokens
from minikv.engine.sampling_params import SamplingParams


class Outputs(Protocol):
    """Where the tokens of a step go."""

    def due(self, step: Step) -> tuple[list[tuple[Any, Scheduled]], list[SamplingParams], list[float]]:
        """What the step owes: for each of ``step.sampled`` the sequence as the outputs know it, with its item; and for
        each row of logits (a new token, an unconfirmed one) its params and a uniform number.
        """

    def prepare(self, due: list[tuple[Any, Scheduled]]) -> None:
        """What can be done while the device computes."""

    def read(
        self, due: list[tuple[Any, Scheduled]], sampled: Sampled
    ) -> tuple[list[list[int]], list[SequenceId], Callable[[], None]]:
        """The new tokens of each, the sequences that they stop, and what hands the tokens out once they count."""

    def ended(self, steps: int, requests: Iterable[str | int]) -> None:
        """So many steps have ended, in which these requests were."""


@dataclass(eq=False)
class InFlightStep:
    """A step that was launched at ``began`` seconds; ``sampled`` is what it has raised already if it did.

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
        self.in_flight: list[InFlightStep] = []  # of the scheduler's open steps, in their order
        self.after_forward = overriding(scheduler.extensions, "after_forward")

    def step(self, meanwhile: Callable[[], Exception | None] = lambda: None) -> None:
        """The oldest open step, or the next one, to its end. ``meanwhile`` is called while the device computes it.

        An ``Exception`` fails the requests of all open steps and is in their outputs; anything else, such as Ctrl+C in
        the forward, is raised besides. What a clock or ``Extension.flush`` raises before the step has begun, or after
        it was done, is raised, and so is what ``meanwhile`` returns: then nothing has failed.
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
            if begun is None or step not in (None, begun):  # raised by a flush, and the step is done
                raise
            step, ended = begun, len(self.scheduler.open_steps)
            let_go(error)
            self.in_flight.clear()
            try:
                self.scheduler.fail(begun, error)
            finally:
                if self.scheduler.open_step is begun:  # the clock has raised: it fails the next time
                    self.in_flight.append(InFlightStep(begun, [], 0.0, error))
            if not isinstance(error, Exception):
                raise
        finally:
            if step is not None:
                self.outputs.ended(ended, (item.id.request for item in step.items))
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
        """Wait for the tokens of a step, and hand them on."""
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
            if self.scheduler.open_step is not step:  # also where a flush raised: the tokens are there
                hand_out()


def let_go(error: BaseException | None) -> None:
    """Keep the lines of a traceback, and let go of the tensors in its frames.

    The error stays in outputs, and its frames would hold the activations, and views of the cache, as long as they do.
    """
    met: set[int] = set()
    while error is not None and id(error) not in met:
        met.add(id(error))
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
