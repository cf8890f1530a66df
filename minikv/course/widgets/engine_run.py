"""EngineRun: requests that go through an LLM one step at a time, and a picture of them, without thread and widget."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from minikv.course.widgets.engine_picture import Owner, Picture, Progress, pool_pictures
from minikv.course.widgets.engine_rows import RequestRows
from minikv.engine.core.sequence import SequenceId
from minikv.engine.outputs import RequestOutput, StepOutput
from minikv.engine.prompts import Prompts, TokenizedRequest, read_all
from minikv.engine.sampling_params import SamplingParams
from minikv.errors import ArgumentError, MiniKVError, check_count


class EngineRun:
    """Runs ``prompts`` through ``llm``: ``begin``, then ``advance`` until it returns False. It may begin again.

    ``arrivals`` has the step before which each prompt is added (None: all before the first). Where nothing is left to
    compute until the next arrival, that prompt and those after it are moved earlier.

    Raises ``ArgumentError`` for an object that is no LLM, a closed LLM, no prompts, and lists of unequal lengths.
    """

    def __init__(
        self,
        llm: Any,
        prompts: Prompts,
        params: SamplingParams | Sequence[SamplingParams] | None,
        arrivals: Sequence[int] | None,
        clock: Callable[[], float] = time.monotonic,
    ):
        if not callable(getattr(llm, "add_request", None)):
            raise ArgumentError("engine_widget_llm", value=type(llm).__name__)
        llm.snapshot()  # raises for a closed LLM
        self.llm = llm
        self._asked: list[TokenizedRequest] = read_all(prompts, params, "", llm.tokenizer, llm.vocabulary)
        if not self._asked:
            raise ArgumentError("engine_widget_no_prompts")
        self._arrivals = _check_arrivals(arrivals, len(self._asked))
        self._clock = clock
        self._progress: Progress = "fresh"
        self._forget()
        self._look()

    def _forget(self) -> None:
        order = sorted(range(len(self._asked)), key=lambda number: self._arrivals[number])
        self._to_come = order[::-1]  # the next to arrive is last
        self._requests: dict[str | int, RequestRows] = {}  # key: the LLM's request id
        self._pending: list[str | int] = []
        self._outputs: dict[int, RequestOutput] = {}
        self._steps = self._skipped = 0
        self._seconds = 0.0
        self.error: BaseException | None = None

    @property
    def open(self) -> bool:
        """Whether the run has begun and not ended."""
        return self._progress == "paused"

    @property
    def outputs(self) -> tuple[RequestOutput, ...]:
        """The outputs of the requests that have ended, in the order of the prompts."""
        outputs = dict(self._outputs)  # one copy: a thread may be adding to it
        return tuple(outputs[number] for number in sorted(outputs))

    def begin(self) -> None:
        """Start again from the first request. The LLM's prefix cache keeps its content."""
        self._forget()
        self._progress = "paused"

    def advance(self) -> bool:
        """Add the requests that are due, compute one step, and return whether anything is left."""
        began = self._clock()
        self._add_due()
        self._take(self.llm.step())
        self._steps += 1
        self._seconds += self._clock() - began
        if self._pending and not self.llm.has_work:
            raise ArgumentError("engine_widget_lost", count=len(self._pending))
        if not self._pending and not self._to_come:
            self._progress = "ended"
        return self.open

    def abort(self) -> None:
        """Abort the remaining requests; all their blocks are freed."""
        self._look()  # read how far they have come
        self._abort_all()
        self._progress = "stopped"

    def fail(self, error: BaseException) -> None:
        """End the remaining requests after ``error`` from ``advance`` or ``abort``; the LLM can be used again."""
        self._abort_all()
        self.error = error
        self._progress = "failed"

    def picture(self, *, running: bool = False) -> Picture:
        """Return the run as it is now. ``running``: a thread is computing the next steps."""
        self._look()
        requests = self._requests.values()
        outputs = self.outputs
        errors = [each.error for out in outputs for each in out.completions if each.error is not None]
        return Picture(
            progress="running" if running and self.open else self._progress,
            requests=len(self._asked),
            to_come=len(self._to_come),
            steps=self._steps,
            seconds=self._seconds,
            rows=tuple(row for request in requests for row in request.rows()),
            pools=self._pools,
            hits=sum(request.cached for request in requests),
            preemptions=sum(request.preemptions for request in requests),
            failed=sum(any(each.error for each in out.completions) for out in outputs),
            error=self.error or next(iter(errors), None),
        )

    def _add_due(self) -> None:
        if not self._pending and self._to_come:  # nothing to compute until the next arrival
            self._skipped = max(self._skipped, self._arrivals[self._to_come[-1]] - self._steps)
        while self._to_come and self._arrivals[self._to_come[-1]] <= self._steps + self._skipped:
            number = self._to_come.pop()
            asked = self._asked[number]
            prompt = asked.ids if asked.text is None else asked.text
            name = self.llm.add_request(prompt, asked.params, pieces=False)
            self._requests[name] = RequestRows(number, asked)
            self._pending.append(name)

    def _take(self, out: StepOutput) -> None:
        for token in out.tokens:
            if token.request in self._requests:
                self._requests[token.request].take_token(token)
        for output in out.finished:
            if output.request in self._pending:
                request = self._requests[output.request]
                request.take_output(output)
                self._outputs[request.number] = output
                self._pending.remove(output.request)

    def _abort_all(self) -> None:
        """Abort all requests, even if the LLM's ``emit`` raises meanwhile."""
        for name in self._pending:
            with suppress(Exception):
                self.llm.abort(name)
        with suppress(Exception):
            self._take(self.llm.step())  # their outputs
        for name in self._pending:  # the LLM was closed, or other code took their outputs
            self._requests[name].abandon()
        self._pending = []

    def _look(self) -> None:
        """Update every row from a snapshot. If the LLM was closed meanwhile, the rows stay as they are."""
        try:
            view = self.llm.snapshot()
        except MiniKVError:
            return
        owners: dict[SequenceId, Owner] = {}
        for seq in (*view.running, *view.waiting):
            request = self._requests.get(seq.id.request)
            if request is not None:
                request.see(seq)
                owners[seq.id] = request.name(seq.id.sample), request.number
        self._pools = pool_pictures(view, self.llm.manager.pools, owners)


def _check_arrivals(arrivals: Any, count: int) -> list[int]:
    if arrivals is None:
        return [0] * count
    if not isinstance(arrivals, list | tuple):
        raise ArgumentError("not_a_list", what="arrivals", value=type(arrivals).__name__)
    if len(arrivals) != count:
        raise ArgumentError("llm_one_each", what="arrivals", given=len(arrivals), count=count)
    for step in arrivals:
        check_count("arrivals", step, least=0)
    return list(arrivals)
