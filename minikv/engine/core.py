"""Core: requests go in, steps are computed, and whoever asked for a request is told what became of it. Lesson 11.

schedule  ->  compute  ->  read the text  ->  finish  ->  tell
    |            |               |
    +------------+---------------+----> fail: the step's requests end with the error, the others go on
"""

from collections.abc import Callable, Iterable
from itertools import count
from time import perf_counter
from traceback import clear_frames
from typing import Any

from minikv.engine.prompt_lookup import count_right
from minikv.engine.prompts import Asked
from minikv.engine.record import Inbox, Record, Samples
from minikv.engine.runner import Runner
from minikv.engine.scheduler import Scheduler
from minikv.engine.sequence import SequenceId
from minikv.engine.step import Step
from minikv.errors import ArgumentError


class Core:
    """A scheduler that decides, a runner that computes, and a record of every request that was not given back yet.

    Not for several threads at once. ``emit`` and ``clock`` of the scheduler may raise, and ``emit`` may call ``add``,
    ``abort`` and ``drop``: a caller is told after the step. ``steps`` have been computed, ``generated`` tokens made
    and ``finished`` requests ended. ``took``, if it is set, is told how many seconds the runner had each step.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, tokenizer: Any, eos: frozenset[int]):
        self.scheduler, self.runner = scheduler, runner
        self.tokenizer, self.eos = tokenizer, eos
        self.steps = self.generated = self.finished = 0
        self._records: dict[str | int, Record] = {}
        self._samples: dict[SequenceId, Samples] = {}
        self.took: Callable[[Step, float], None] | None = None
        self._stepping = False
        self._changed: dict[str | int, None] = {}  # requests whose callers may have to be told something
        self._left: list[Inbox] = []  # callers who went while a step was computed

    def free_name(self, number: int) -> str:
        """A name for a request that has none, from that ``number`` on."""
        return next(name for each in count(number) if (name := f"request {each}") not in self._records)

    def add(self, name: str | int, asked: Asked, seed: int, inbox: Inbox, pieces: bool) -> None:
        """Queue a request whose outputs go to ``inbox``. If anything raises, ``emit`` included, it is not queued."""
        if isinstance(name, str | int) and name in self._records:
            raise ArgumentError("request_exists", request=name)
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
        try:
            return self.scheduler.abort(name)
        finally:
            self._settle([name] if isinstance(name, str | int) else [])

    def drop(self, inbox: Inbox) -> None:
        """Abort the requests of a caller who has gone."""
        self._left.append(inbox)
        self._settle()

    def clear(self) -> None:
        """Abort every request, and tell nobody."""
        self.check_between_steps()
        self._abandon(list(self._records.values()))

    def advance(self) -> None:
        """Compute one step, if there is any. Whatever happens in it, no block is lost, and every caller is told.

        An ``Exception`` fails the requests of the step and is in their outputs. What is raised here: anything else,
        such as Ctrl+C, once the step has failed; and what ``emit`` or ``clock`` raise before the step has begun, or
        after it was done: then nothing has failed, and the next call goes on.
        """
        self.check_between_steps()
        if not self.scheduler.has_work:
            return
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

    def _step(self) -> None:
        step = None
        try:
            step = self.scheduler.schedule()
            self._compute(step)
        except BaseException as error:
            begun = self.scheduler.open_step
            if begun is None:
                raise
            step = begun
            _let_go(error)
            self.scheduler.fail(begun, error)
            if not isinstance(error, Exception):
                raise
        finally:
            if step is not None:
                self.steps += 1
                self._settle(item.id.request for item in step.items)

    def _compute(self, step: Step) -> None:
        """Run ``step``, and hand each new token, accepted drafts included, to whoever asked for it."""
        due = [(self._samples[seq_id], item) for item in step.items for seq_id in item.samples]
        params = [each.params for each, item in due for _ in range(item.drafts + 1)]
        draws = [draw for each, item in due for draw in each.draws(item.drafts + 1)]
        began = perf_counter()

        def meanwhile() -> None:
            for each, _ in due:
                each.catch_up()

        drawn = self.runner.run(step, params, draws, meanwhile)
        if self.took is not None:
            self.took(step, perf_counter() - began)
        news, stopped, end = [], [], 0
        for each, item in due:
            start, end = end, end + item.drafts + 1
            ids = drawn.token_ids[start:end]
            if item.drafts:
                ids = ids[: count_right(item.guessed, ids) + 1]
            pieces, stops = each.read(ids, self.eos)
            if stops:
                stopped.append(each.seq.id)
            news.append((each, list(zip(ids, pieces, drawn.logprobs[start:end], strict=False))))
        token_ids = [tokens[-1][0] for _, tokens in news]
        accepted = {each.seq.id: len(tokens) - 1 for each, tokens in news if len(tokens) > 1}
        ends = [each.seq.num_output + len(tokens) for each, tokens in news]
        try:
            self.scheduler.finish(step, token_ids, stopped, accepted)
        finally:
            if self.scheduler.open_step is None:  # also where ``emit`` raised: the tokens are there
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
        for name in list(self._changed):
            del self._changed[name]
            record = self._records.get(name)
            if record is None:
                continue
            record.inbox.tokens.extend(record.ends())
            if record.request.ended:
                record.inbox.finished.append(record.output())
                self._forget(record)
        while self._left:
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
        if errors:
            raise errors[0]

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
