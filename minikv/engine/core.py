"""Core: requests go in, steps are computed, and whoever asked for a request is told what became of it. Lesson 11a.

schedule  ->  launch  ->  read the tokens, and their text  ->  finish  ->  tell
    |           |                     |
    +-----------+---------------------+----> fail: the step's requests end with the error, the others go on

On a GPU the next step is launched before the tokens of this one are read (see ``open_steps``): then a step is in flight
between two calls of ``advance``.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from traceback import clear_frames
from typing import Any

from minikv.engine.prompt_lookup import count_right
from minikv.engine.prompts import Asked
from minikv.engine.record import Inbox, Record, Samples
from minikv.engine.runner import Runner
from minikv.engine.sampler import Drawing
from minikv.engine.scheduler import Scheduler
from minikv.engine.sequence import SequenceId
from minikv.engine.serve.interrupts import Interrupts
from minikv.engine.step import Scheduled, Step
from minikv.errors import ArgumentError


@dataclass(eq=False)
class Flight:
    """A step that was launched ``began`` seconds after some moment, for those who are ``due`` a token.

    ``drawing`` is what the step has raised already if it did. ``alone``: no other step was in flight beside it.
    """

    step: Step
    due: list[tuple[Samples, Scheduled]]
    began: float
    drawing: Drawing | BaseException
    alone: bool = True


class Core:
    """A scheduler that decides, a runner that computes, and a record of every request that was not given back yet.

    Not for several threads at once. ``emit`` and ``clock`` of the scheduler may raise, and ``emit`` may call ``add``,
    ``abort`` and ``drop``: a caller is told after the step. ``steps`` have been computed, ``generated`` tokens made
    and ``finished`` requests ended. ``took``, if it is set, is told how many seconds the runner had each step that was
    alone in flight; nothing is launched behind a step with a prefill then, because its seconds are of use.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, tokenizer: Any, eos: frozenset[int]):
        self.scheduler, self.runner = scheduler, runner
        self.tokenizer, self.eos = tokenizer, eos
        self.steps = self.generated = self.finished = 0
        self._records: dict[str | int, Record] = {}
        self._samples: dict[SequenceId, Samples] = {}
        self.took: Callable[[Step, float], None] | None = None
        self._stepping = False
        self._interrupts = Interrupts()
        self._flights: list[Flight] = []  # of the scheduler's open steps, in their order
        self._changed: dict[str | int, None] = {}  # requests whose callers may have to be told something
        self._left: list[Inbox] = []  # callers who went while a step was computed

    def free_name(self, number: int) -> str:
        """A name for a request that has none, from that ``number`` on."""
        return next(name for each in count(number) if (name := f"request {each}") not in self._records)

    def add(self, name: str | int, asked: Asked, seed: int, inbox: Inbox, pieces: bool) -> None:
        """Queue a request whose outputs go to ``inbox``. If anything raises, ``emit`` included, it is not queued."""
        if isinstance(name, str | int) and name in self._records:
            raise ArgumentError("request_exists", request=name)
        with self._interrupts:
            try:
                request = self.scheduler.add(name, asked.ids, asked.params, asked.salt)
                samples = tuple(Samples(seq, self.tokenizer, seed, pieces) for seq in request.sequences)
            except BaseException:
                self.scheduler.abort(name)
                raise
            self._records[name] = Record(request, asked.text, samples, inbox)
            self._samples |= {each.seq.id: each for each in samples}
            if request.ended:  # ``emit`` has aborted it
                self._settle([name])

    def abort(self, name: str | int) -> bool:
        """End a request, and tell its caller. False if it has ended already."""
        with self._interrupts:
            try:
                return self.scheduler.abort(name)
            finally:
                self._settle([name] if isinstance(name, str | int) else [])

    def drop(self, inbox: Inbox) -> None:
        """Abort the requests of a caller who has gone."""
        with self._interrupts:
            self._left.append(inbox)
            self._settle()

    def clear(self) -> None:
        """Abort every request, wait for what is in flight, and tell nobody."""
        self.check_between_steps()
        with self._interrupts:
            self._abandon(list(self._records.values()))

    def advance(self) -> None:
        """Compute one step, if there is any. Whatever happens in it, no block is lost, and every caller is told.

        An ``Exception`` fails the requests of the step and is in their outputs. What is raised here: anything else,
        such as Ctrl+C in the forward, once the step has failed, and the one behind it; and Ctrl+C at any other moment,
        and what ``emit`` or ``clock`` raise before the step has begun, or after it was done: then nothing has failed,
        and the next call goes on.
        """
        self.check_between_steps()
        if not self.scheduler.has_work:
            return
        with self._interrupts:
            self._stepping = True
            try:
                self._step()
            finally:
                self._stepping = False
                self._settle()

    def check_between_steps(self) -> None:
        """Raise ``ArgumentError`` inside a step: ``emit`` was called from there, and has called back."""
        if self._stepping:
            raise ArgumentError("llm_inside_step", number=self.steps)

    def _step(self, goes_on: bool = True) -> None:
        """The oldest step, to its end; before its tokens are read, the one behind it is launched, if it ``goes_on``."""
        step, ended = self.scheduler.open_step, 1
        late: Exception | None = None
        try:
            if step is None:
                step = self.scheduler.schedule()
                self._flights.append(self._launch(step))
            if goes_on and self.runner.overlaps:
                late = self._launch_ahead()
            self._compute(self._flights.pop(0))
        except BaseException as error:
            begun = self.scheduler.open_step
            if begun is None or step not in (None, begun):  # it was ``emit``, and the step is done
                raise
            step, ended = begun, self.scheduler.num_open
            _let_go(error)
            self._flights.clear()
            try:
                self.scheduler.fail(begun, error)
            finally:
                if self.scheduler.open_step is begun:  # ``clock`` has raised: it fails the next time
                    self._flights.append(Flight(begun, [], 0.0, error))
            if not isinstance(error, Exception):
                raise
        finally:
            if step is not None:
                self.steps += ended
                self._settle(item.id.request for item in step.items)
        if late is not None:
            raise late

    def _launch(self, step: Step, before: Drawing | None = None) -> Flight:
        due = [(self._samples[seq_id], item) for item in step.items for seq_id in item.samples]
        params = [each.params for each, item in due for _ in range(item.drafts + 1)]
        draws = [draw for each, item in due for draw in each.draws(item.drafts + 1, unread=int(step.ahead))]
        began = perf_counter()
        with self._interrupts.let_in():
            drawing = self.runner.run(step, params, draws, before)
        return Flight(step, due, began, drawing)

    def _launch_ahead(self) -> Exception | None:
        """Launch the step behind the one in flight, if it is known; what it raises counts when it is read.

        What ``clock`` raises before there is such a step is returned: the step in flight has nothing to do with it.
        """
        (flight,) = self._flights
        step = flight.step
        is_timed = self.took is not None and step.num_decode < step.num_tokens
        if is_timed or isinstance(flight.drawing, BaseException):
            return None
        try:
            ahead = self.scheduler.schedule_ahead()
        except Exception as error:
            return error
        if ahead is None:
            return None
        try:
            behind = self._launch(ahead, flight.drawing)
        except Exception as error:
            _let_go(error)
            behind = Flight(ahead, [], flight.began, error)
        flight.alone = behind.alone = False
        self._flights.append(behind)
        return None

    def _compute(self, flight: Flight) -> None:
        """Read a step, and hand each new token, accepted drafts included, to whoever asked for it."""
        step, due = flight.step, flight.due
        if isinstance(flight.drawing, BaseException):
            raise flight.drawing
        for each, _ in due:
            if not each.seq.ended:
                each.catch_up()  # while a GPU computes
        with self._interrupts.let_in():
            drawn = flight.drawing.read()
        if self.took is not None and flight.alone:
            self.took(step, perf_counter() - flight.began)
        news, token_ids, stopped, end = [], [], [], 0
        for each, item in due:
            start, end = end, end + item.drafts + 1
            ids = drawn.token_ids[start:end]
            if each.seq.ended:  # aborted, or a dropped row
                token_ids.append(ids[0])
                continue
            if item.drafts:
                ids = ids[: count_right(item.guessed, ids) + 1]
            pieces, stops = each.read(ids, self.eos)
            if stops:
                stopped.append(each.seq.id)
            news.append((each, list(zip(ids, pieces, drawn.logprobs[start:end], strict=False))))
            token_ids.append(ids[len(pieces) - 1])
        accepted = {each.seq.id: len(tokens) - 1 for each, tokens in news if len(tokens) > 1}
        ends = [each.seq.num_output + len(tokens) for each, tokens in news]
        try:
            self.scheduler.finish(step, token_ids, stopped, accepted)
        finally:
            if self.scheduler.open_step is not step:  # also where ``emit`` raised: the tokens are there
                for (each, tokens), end in zip(news, ends, strict=True):
                    if each.seq.num_output == end:  # else it was aborted before they came
                        self.generated += len(tokens)
                        inbox = self._records[each.seq.id.request].inbox
                        inbox.tokens += [each.take(*token) for token in tokens]

    def _settle(self, names: Iterable[str | int] = ()) -> None:
        """Tell of ends without a token, give back what has ended, abort what nobody waits for; after the step."""
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
            record = self._records.get(name)
            if record is None:
                continue
            record.inbox.tokens.extend(record.ends())
            if record.request.ended:
                record.inbox.finished.append(record.output())
                self._forget(record)
        if self._left:
            inbox = self._left.pop()
            self._abandon([record for record in self._records.values() if record.inbox is inbox])

    def _abandon(self, records: list[Record]) -> None:
        errors = []
        for record in records:
            try:
                self.scheduler.abort(record.request.id)
            except Exception as error:  # of ``emit`` or ``clock``: the others have to go all the same
                errors.append(error)
            if record.request.ended:
                self._forget(record)
        try:
            self._land_unwanted()
        except Exception as error:
            errors.append(error)
        if errors:
            raise errors[0]

    def _land_unwanted(self) -> None:
        """Wait for a step in flight whose sequences have all ended: until then it holds their blocks."""
        while self.scheduler.open_step is not None and not self.scheduler.open_step_is_wanted:
            self._stepping = True
            try:
                self._step(goes_on=False)
            finally:
                self._stepping = False

    def _forget(self, record: Record) -> None:
        if self._records.pop(record.request.id, None) is None:
            return  # ``emit`` of its abort was quicker
        self.finished += 1
        for each in record.samples:
            del self._samples[each.seq.id]


def _let_go(error: BaseException | None) -> None:
    """Keep the lines of a traceback, and let go of the tensors in its frames.

    The error stays in outputs, and its frames would hold the activations, and views of the cache, as long as they do.
    """
    met: set[int] = set()
    while error is not None and id(error) not in met:
        met.add(id(error))
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
