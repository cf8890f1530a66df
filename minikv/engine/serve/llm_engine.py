"""LLMEngine: takes requests, computes steps, and gives each caller the outputs of its requests. Lesson 11a."""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any
from weakref import proxy

from minikv.engine.adjusted import Asked
from minikv.engine.core.loop import Loop
from minikv.engine.core.runner import Runner
from minikv.engine.core.scheduler import Scheduler
from minikv.engine.core.sequence import SequenceId
from minikv.engine.core.step import Scheduled, Step
from minikv.engine.ext.overlap import OverlapLoop
from minikv.engine.prompts import TokenizedRequest
from minikv.engine.sampler import SamplerOutput
from minikv.engine.serve.interrupts import Interrupts
from minikv.engine.serve.request_state import OutputQueue, RequestState, SequenceOutput
from minikv.errors import ArgumentError


class LLMEngine:
    """The steps of ``scheduler`` and ``runner``, and the state of every request that has not been returned yet.

    Not for several threads at once. ``emit`` and the scheduler's clock may raise, and ``emit`` may call ``add``,
    ``abort`` and ``drop``: callers get outputs after the step. ``steps`` have been computed, ``generated`` tokens made
    and ``finished`` requests ended. With ``overlaps`` the next step is launched before this one's tokens are read, so a
    step is in flight between two calls of ``advance``.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        tokenizer: Any,
        eos: frozenset[int],
        *,
        overlaps: bool = False,
    ):
        self.scheduler, self.runner = scheduler, runner
        self.tokenizer, self.eos = tokenizer, eos
        self.steps = self.generated = self.finished = 0
        self._requests: dict[str | int, RequestState] = {}
        self._outputs: dict[SequenceId, SequenceOutput] = {}
        self._stepping = False
        self._interrupts = Interrupts()
        # A proxy avoids a cycle, so an LLM that is dropped frees its memory at once.
        self._plain = Loop(scheduler, runner, proxy(self), self._interrupts.let_in)
        self._overlapping, self.overlaps = OverlapLoop(self._plain), overlaps
        self._changed: dict[str | int, None] = {}  # requests with possible news for their callers
        self._left: list[OutputQueue] = []  # callers that left during a step

    def free_name(self, number: int) -> str:
        """Return a name for a request without one, from that ``number`` on."""
        return next(name for each in count(number) if (name := f"request {each}") not in self._requests)

    def add(
        self, name: str | int, asked: TokenizedRequest, seed: int, queue: OutputQueue, pieces: bool
    ) -> None:
        """Queue a request with outputs to ``queue``. If anything raises, also a flush of events, it is not queued."""
        if isinstance(name, str | int) and name in self._requests:
            raise ArgumentError("request_exists", request=name)
        with self._interrupts:
            try:
                request = self.scheduler.add(name, asked.ids, asked.params, asked.salt)
                outputs = tuple(
                    SequenceOutput(seq, self.tokenizer, seed, pieces) for seq in request.sequences
                )
            except BaseException:
                self.scheduler.abort(name)
                raise
            self._requests[name] = RequestState(request, asked.text, outputs, queue)
            self._outputs |= {each.seq.id: each for each in outputs}
            if request.ended:  # ``emit`` has aborted it
                self._settle([name])

    def abort(self, name: str | int) -> bool:
        """End a request, and tell its caller. False if it has ended already."""
        with self._interrupts:
            try:
                return self.scheduler.abort(name)
            finally:
                self._settle([name] if isinstance(name, str | int) else [])

    def drop(self, queue: OutputQueue) -> None:
        """Abort the requests of a caller that has left."""
        with self._interrupts:
            self._left.append(queue)
            self._settle()

    def clear(self) -> None:
        """Abort every request, wait for the steps in flight, and tell no caller."""
        self.check_between_steps()
        with self._interrupts:
            self._abandon(list(self._requests.values()))

    def advance(self) -> None:
        """Compute one step, if there is any. Even if it raises, no block is lost, and every caller gets its outputs.

        An ``Exception`` fails the requests of the step and is kept in their outputs. Other errors, such as Ctrl+C in
        the forward, are raised here after the step, and the one behind it, have failed. Ctrl+C at any other moment, and
        errors of ``emit`` or the clock before the step began or after it was done, are raised here without failing
        anything, and the next call goes on.
        """
        self.check_between_steps()
        if not self.scheduler.has_work:
            return
        with self._interrupts:
            self._stepping = True
            try:
                (self._overlapping if self.overlaps else self._plain).step()
            finally:
                self._stepping = False
                self._settle()

    def check_between_steps(self) -> None:
        """Raise ``ArgumentError`` inside a step, where ``emit`` has called back."""
        if self._stepping:
            raise ArgumentError("llm_inside_step", number=self.steps)

    # The methods that the loop calls: see ``Outputs``.

    def due(self, step: Step) -> tuple[list[tuple[SequenceOutput, Scheduled]], list[Asked], list[float]]:
        due = [(self._outputs[seq_id], item) for item in step.items for seq_id in item.samples]
        unread = int(step.batch.sources is not None)
        params: list[Asked] = [each.params for each, item in due for _ in range(item.unconfirmed + 1)]
        if any(each.params.adjusts for each, _ in due):
            params = [asked for each, item in due for asked in each.asked(item.guesses, self.eos)]
        draws = [draw for each, item in due for draw in each.draws(item.unconfirmed + 1, unread)]
        return due, params, draws

    def prepare(self, due: list[tuple[SequenceOutput, Scheduled]]) -> None:
        for each, _ in due:
            if not each.seq.ended:
                each.catch_up()

    def read(
        self, due: list[tuple[SequenceOutput, Scheduled]], sampled: SamplerOutput
    ) -> tuple[list[int | list[int]], list[SequenceId], Callable[[], None]]:
        news, stopped, end = [], [], 0
        tokens: list[int | list[int]] = []
        for each, item in due:
            start, end = end, end + item.unconfirmed + 1
            ids = sampled.token_ids[start:end]
            if each.seq.ended:  # aborted, or a row that is dropped
                tokens.append(ids[0])
                continue
            if item.unconfirmed:
                ids = ids[: item.confirmed(ids) + 1]
            pieces, stops = each.read(ids, self.eos)
            if stops:
                stopped.append(each.seq.id)
            news.append((each, list(zip(ids, pieces, sampled.logprobs[start:end], strict=False))))
            tokens.append(ids[: len(pieces)] if item.unconfirmed else ids[0])
        ends = [each.seq.num_output + len(told) for each, told in news]

        def hand_out() -> None:
            for (each, told), end in zip(news, ends, strict=True):
                if each.seq.num_output == end:  # else it was aborted before they came
                    self.generated += len(told)
                    queue = self._requests[each.seq.id.request].queue
                    queue.tokens += [each.take(*token) for token in told]

        return tokens, stopped, hand_out

    def ended(self, steps: int, seq_ids: Iterable[SequenceId]) -> None:
        self.steps += steps
        # Only an ended sequence is news here: the caller has the tokens of the others already.
        outputs = map(self._outputs.get, seq_ids)
        self._settle([each.seq.id.request for each in outputs if each is not None and each.seq.ended])

    def _settle(self, names: Iterable[str | int] = ()) -> None:
        """Report finished requests, and abort those of callers that have left. Runs after the step."""
        self._changed |= dict.fromkeys(names)
        if self._stepping:
            return
        try:
            self._land_unwanted()
        finally:  # ``emit`` may have raised
            while self._changed or self._left:
                self._tell()

    def _tell(self) -> None:
        for name in list(self._changed):
            del self._changed[name]
            state = self._requests.get(name)
            if state is None:
                continue
            state.queue.tokens.extend(state.ends())
            if state.request.ended:
                state.queue.finished.append(state.output())
                self._forget(state)
        if self._left:
            queue = self._left.pop()
            self._abandon([state for state in self._requests.values() if state.queue is queue])

    def _abandon(self, states: list[RequestState]) -> None:
        errors = []
        for state in states:
            try:
                self.scheduler.abort(state.request.id)
            except Exception as error:
                # An error of ``emit`` or the clock must not keep the others from being aborted.
                errors.append(error)
            if state.request.ended:
                self._forget(state)
        try:
            self._land_unwanted()
        except Exception as error:
            errors.append(error)
        if errors:
            raise errors[0]

    def _land_unwanted(self) -> None:
        """Wait for a step in flight with only ended sequences, which still hold their blocks."""
        while self.scheduler.open_step is not None and not self.scheduler.open_step_is_wanted:
            self._stepping = True
            try:
                self._plain.step()
            finally:
                self._stepping = False

    def _forget(self, state: RequestState) -> None:
        if self._requests.pop(state.request.id, None) is None:
            return  # the event of an abort has ended it already
        self.finished += 1
        for each in state.outputs:
            del self._outputs[each.seq.id]
