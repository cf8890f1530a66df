"""nano's scheduler and block manager with some requests, and no model: a state for each step.

It needs the standard library alone, so that a page's own Python runs it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from minikv.course.motion.paging_states import PagingStates, Said, step_said
from minikv.course.widgets.parts import letters
from minikv.errors import ArgumentError, RequestTooLargeError, check_count
from minikv.nano.block_manager import BlockManager
from minikv.nano.scheduler import Scheduler, Step
from minikv.nano.sequence import SamplingParams
from minikv.nano.sequence import Sequence as Request


class Asked(NamedTuple):
    """A request: its prompt's token ids, those of its answer, and the step, from 1, before which it arrives."""

    prompt: Sequence[int]
    answer: Sequence[int]
    arrives: int = 1


class Progress(NamedTuple):
    """A request in a state: "later", "waiting", "prefill", "decode" or "ended", and its tokens.

    ``stored`` of its ``total`` tokens have K and V, and ``cached`` of them were found in the prefix cache.
    """

    name: str
    state: str
    stored: int
    total: int
    cached: int


class NanoRun(PagingStates):
    """Runs ``requests``, A, B, ..., to their ends; ``progress[i]`` has a row for each of them in ``states[i]``.

    The answers' tokens are the ones that were asked for: a scheduler decides the same whatever a model says.
    Raises ``ArgumentError`` for sizes below 1, and ``RequestTooLargeError`` for a request that the pool cannot hold.
    """

    def __init__(
        self,
        requests: Sequence[Asked],
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ):
        sizes = {"num_blocks": num_blocks, "block_size": block_size, "max_num_seqs": max_num_seqs}
        for what, value in (sizes | {"max_num_batched_tokens": max_num_batched_tokens}).items():
            check_count(what, value)
        super().__init__(num_blocks, block_size)
        self.title = "title_nano"
        self.progress: list[list[Progress]] = []
        self._asked = requests
        self._seqs = [self._sequence(number, asked) for number, asked in enumerate(requests)]
        self._scheduler = Scheduler(
            BlockManager(num_blocks, block_size), max_num_seqs, max_num_batched_tokens
        )
        self.add([("start", {"blocks": num_blocks, "size": block_size})], (), {}, {})
        self._look([], 0)
        step = 0
        while not all(seq.finish_reason for seq in self._seqs):
            step += 1
            self._step(step)
        self.add([("all_ended", {})], (), self._cached(), {})
        self._look([], step)

    def _sequence(self, number: int, asked: Asked) -> Request:
        if not asked.prompt:
            raise ArgumentError("nano_empty")
        check_count("arrives", asked.arrives)
        params = SamplingParams(max_tokens=len(asked.answer))
        stored = len(asked.prompt) + len(asked.answer) - 1  # as nano: the last token is never read
        if stored > (most := self.num_blocks * self.block_size):
            raise RequestTooLargeError("nano_too_large", stored=stored, most=most)
        return Request(number, list(asked.prompt), len(asked.prompt), params)

    def _step(self, number: int) -> None:
        scheduler = self._scheduler
        scheduler.waiting.extend(
            seq for seq, asked in zip(self._seqs, self._asked, strict=True) if asked.arrives == number
        )
        before = list(scheduler.running)
        step = scheduler.schedule()
        ends = {seq.id: end for seq, _, end in step}
        held = [
            (letters(seq.id), seq.block_table, seq.tokens[: ends.get(seq.id, seq.num_computed)])
            for seq in scheduler.running
        ]
        self.add((), held, self._cached(), {letters(seq.id): start for seq, start, _ in step})
        preempted = [letters(seq.id) for seq in before if seq in scheduler.waiting]
        self.say(self._said(number, step, preempted))
        self._look(step, number)
        scheduler.finish(step, [self._next(seq) for seq, _, _ in step], frozenset())

    def _said(self, number: int, step: Step, preempted: list[str]) -> list[Said]:
        before, now = self.states[-2:]
        said = step_said(number, before, now, preempted)
        if not step:
            said[0] = ("nothing", {"step": number})
        waiting = [letters(seq.id) for seq in self._scheduler.waiting if letters(seq.id) not in preempted]
        return said + ([("waiting", {"names": waiting})] if waiting else [])

    def _next(self, seq: Request) -> int:
        return self._asked[seq.id].answer[min(len(seq.answer), len(self._asked[seq.id].answer) - 1)]

    def _cached(self) -> dict[int, tuple[int, ...]]:
        """The free blocks that can be found: nano keeps their digests, the last state has their tokens."""
        blocks, last = self._scheduler.blocks, self.states[-1].blocks
        return {
            block: last[block].ids
            for block in blocks.free_blocks
            if (digest := blocks.digests[block]) is not None and blocks.cached.get(digest) == block
        }

    def _look(self, step: Step, number: int) -> None:
        """Note where each request is; ``step`` is about to be computed."""
        work = {seq.id: (start, end) for seq, start, end in step}
        rows = []
        for seq, asked in zip(self._seqs, self._asked, strict=True):
            start, stored = work.get(seq.id, (0, seq.num_computed))
            if seq.finish_reason:
                state = "ended"
            elif asked.arrives > number:
                state = "later"
            elif seq in self._scheduler.waiting:
                state = "waiting"
            else:
                state = "decode" if seq.answer and start == len(seq.tokens) - 1 else "prefill"
            stored = 0 if state == "ended" else stored
            rows.append(Progress(letters(seq.id), state, stored, len(seq.tokens), seq.num_cached))
        self.progress.append(rows)
