"""EngineRun: requests that go through an LLM one step at a time, and a picture of them. No thread, no widget."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from minikv.course.widgets.engine_picture import Owner, Picture, Progress, pool_pictures
from minikv.course.widgets.engine_rows import RequestRows
from minikv.engine.core.sequence import SequenceId
from minikv.engine.outputs import RequestOutput, StepOutput
from minikv.engine.prompts import Asked, Prompts, read_all
from minikv.engine.sampling_params import SamplingParams
from minikv.errors import ArgumentError, MiniKVError, check_count


class EngineRun:
    """``prompts`` through ``llm``: ``begin``, then ``advance`` until it says False. It may begin again.

    ``arrivals`` has the step before which each prompt is added (None: all before the first). Where nothing is left to
    compute until the next one arrives, it and those after it come that much earlier.

    Raises ``ArgumentError`` for what is no LLM or a closed one, no prompts, or not one of each.
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
        llm.snapshot()  # raises if it was closed
        self.llm = llm
        self._asked: list[Asked] = read_all(prompts, params, "", llm.tokenizer, llm.vocabulary)
        if not self._asked:
            raise ArgumentError("engine_widget_no_prompts")
        self._arrivals = _check_arrivals(arrivals, len(self._asked))
        self._clock = clock
        self._progress: Progress = "fresh"
        self._forget()
        self._look()

    def _forget(self) -> None:
        order = sorted(range(len(self._asked)), key=lambda number: self._arrivals[number])
        self._to_come = order[::-1]  # the next to arrive last
        self._requests: dict[str | int, RequestRows] = {}  # by the LLM's id
        self._pending: list[str | int] = []
        self._outputs: dict[int, RequestOutput] = {}
        self._steps = self._skipped = 0
        self._seconds = 0.0
        self.error: BaseException | None = None

    @property
    def open(self) -> bool:
        """Whether it has begun and not ended."""
        return self._progress == "paused"

    @property
    def outputs(self) -> tuple[RequestOutput, ...]:
        """Of the requests that have ended, in the order of the prompts."""
        outputs = dict(self._outputs)  # one look: a thread may be adding to it
        return tuple(outputs[number] for number in sorted(outputs))

    def begin(self) -> None:
        """Start again from the first request. What the LLM's prefix cache has stays there."""
        self._forget()
        self._progress = "paused"

    def advance(self) -> bool:
        """Add what is due, compute one step, and say whether anything is left."""
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
        """End what is left; all of its blocks are given back."""
        self._look()  # how far it has come
        self._abort_all()
        self._progress = "stopped"

    def fail(self, error: BaseException) -> None:
        """``error`` came out of ``advance`` or ``abort``: end what is left, so that the LLM serves others."""
        self._abort_all()
        self.error = error
        self._progress = "failed"

    def picture(self, *, running: bool = False) -> Picture:
        """The run as it is now. ``running``: somebody computes the next steps already."""
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
        if not self._pending and self._to_come:  # nothing to do until the next one arrives
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
        """Whatever the LLM's ``emit`` raises meanwhile, all of them are aborted."""
        for name in self._pending:
            with suppress(Exception):
                self.llm.abort(name)
        with suppress(Exception):
            self._take(self.llm.step())  # their outputs
        for name in self._pending:  # of an LLM that was closed, or whose outputs somebody else took
            self._requests[name].abandon()
        self._pending = []

    def _look(self) -> None:
        """Who is where now. Of an LLM that was closed meanwhile, what was seen last stays."""
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
