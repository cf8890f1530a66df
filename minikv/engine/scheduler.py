"""Scheduler: continuous batching on a pool of blocks. Whose tokens does the next forward compute?

    >>> scheduler = Scheduler(BlockManager(num_blocks=8, block_size=4))
    >>> request = scheduler.add("a", [1, 2, 3, 4, 5], SamplingParams(max_tokens=2))
    >>> step = scheduler.schedule()                       # the whole prompt
    >>> done = scheduler.finish(step, [7])                # the forward sampled token 7
    >>> step = scheduler.schedule()                       # token 7
    >>> [ended.output for ended in scheduler.finish(step, [8])]
    [[7, 8]]

The order is that of arrival, and nobody passes. A step serves the running sequences first, the oldest first: a decode
takes one token of the budget, a prefill as many as the younger decodes leave. Whoever lacks a block takes it from a
younger sequence, which is preempted: it waits in its old place and computes its tokens again, or its blocks wait in
host memory, where that is cheaper. Nobody takes one from the oldest, which alone fits into the pool, or ``add`` had
refused it: so every step computes something, the oldest ends, and then the next is the oldest. Then the waiting are
admitted while there are seats, budget and blocks, up to the first that has to wait. What is left after that may go
into drafts (``prompt_lookup``).
"""

import time
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Seq

from minikv.blocks import BlockManager
from minikv.blocks.prefix import root_digest, token_array
from minikv.engine.capacity import refuse_what_never_fits
from minikv.engine.events import Emit
from minikv.engine.offload import Offload
from minikv.engine.planner import Planner
from minikv.engine.reporter import Reporter
from minikv.engine.sampling_params import SamplingParams
from minikv.engine.sequence import FinishReason, Request, Sequence, SequenceId, State, new_request
from minikv.engine.step import Step, count_accepted, pack
from minikv.errors import ArgumentError, RequestTooLarge, check_count
from minikv.plan.preemption import TransferRates


class Scheduler(Planner):
    """Drives a ``BlockManager`` that nobody else uses. Not for several threads at once.

    A step computes at most ``max_batched_tokens`` tokens of at most ``max_num_seqs`` sequences; prompt and
    ``max_tokens`` of a request may be at most ``max_model_len`` together (None: what the pool holds). A decode has up
    to ``prompt_lookup`` drafts behind its token. ``clock`` gives seconds. Every event goes to ``emit``; ``block_bytes``
    are the bytes of a block, for each kind of layer. With ``rates`` a manager's host blocks take preempted sequences
    and evicted prefix blocks, where a transfer costs less than a prefill; whoever measures again may set ``rates`` at
    any time.
    """

    def __init__(
        self,
        manager: BlockManager,
        *,
        max_num_seqs: int = 64,
        max_batched_tokens: int = 2048,
        max_model_len: int | None = None,
        prompt_lookup: int = 0,
        clock: Callable[[], float] = time.monotonic,
        emit: Emit | None = None,
        block_bytes: Seq[int] | None = None,
        rates: TransferRates | None = None,
    ):
        if not isinstance(manager, BlockManager) or manager.sequences():
            raise ArgumentError("scheduler_manager", value=type(manager).__name__)
        check_count("max_num_seqs", max_num_seqs)
        check_count("max_batched_tokens", max_batched_tokens)
        if max_model_len is not None:
            check_count("max_model_len", max_model_len)
        check_count("prompt_lookup", prompt_lookup, least=0)
        if max_batched_tokens < max_num_seqs:
            raise ArgumentError("scheduler_budget", tokens=max_batched_tokens, seqs=max_num_seqs)
        if not callable(clock):
            raise ArgumentError("scheduler_callable", what="clock", value=type(clock).__name__)
        report = Reporter(manager, emit, block_bytes)
        offload = Offload(manager, block_bytes, rates)
        super().__init__(manager, max_num_seqs, max_batched_tokens, report, offload, prompt_lookup)
        self.max_model_len = max_model_len
        self._clock = clock
        self._requests: dict[str | int, Request] = {}  # those that have not ended
        self._open: Step | None = None
        self._in_step: dict[SequenceId, Sequence] = {}
        self._arrived = 0
        self._steps = 0

    @property
    def rates(self) -> TransferRates | None:
        """What transfers and prefills take here; None: every preemption recomputes, nothing goes to the host."""
        return self._offload.rates

    @rates.setter
    def rates(self, rates: TransferRates | None) -> None:
        self._offload.rates = rates

    @property
    def waiting(self) -> tuple[SequenceId, ...]:
        """Who waits, the first in the queue first; a sequence that will be forked waits with its parent."""
        return tuple(seq.id for seq in self._waiting)

    @property
    def running(self) -> tuple[SequenceId, ...]:
        """Who holds blocks, the oldest first."""
        return tuple(seq.id for seq in self._running)

    @property
    def open_step(self) -> Step | None:
        """The step that is being computed."""
        return self._open

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._requests)

    def request(self, request_id: str | int) -> Request:
        """A request that has not ended. Raises ``ArgumentError`` if there is none of that id."""
        if not isinstance(request_id, (str, int)) or request_id not in self._requests:
            raise ArgumentError("request_unknown", request=request_id, count=len(self._requests))
        return self._requests[request_id]

    def sequence(self, seq_id: SequenceId) -> Sequence:
        """A sequence of a request that has not ended."""
        return self.request(seq_id.request).sequences[seq_id.sample]

    def add(
        self, request_id: str | int, prompt: Seq[int], params: SamplingParams | None = None, salt: str = ""
    ) -> Request:
        """Queue a request. Requests share cached prefixes only under an equal ``salt``. Raises as ``check`` does."""
        params = SamplingParams() if params is None else params
        tokens = self.check(request_id, prompt, params, salt)
        now = self._clock()
        request = new_request(request_id, self._arrived, tokens, params, salt, now)
        self._arrived += 1
        self._requests[request_id] = request
        self._waiting.append(request.sequences[0])
        self._report.arrive(now, request)
        self._report.deliver()
        return request

    def check(
        self, request_id: str | int, prompt: Seq[int], params: SamplingParams, salt: str = ""
    ) -> list[int]:
        """The prompt's tokens, if ``add`` would take the request now; nothing changes.

        Raises ``RequestTooLarge`` for one that could never run, with the numbers, and ``ArgumentError`` for an id that
        is in use and for what is no prompt, no ``SamplingParams`` or no salt.
        """
        if isinstance(request_id, bool) or not isinstance(request_id, (str, int)):
            raise ArgumentError("request_id", value=type(request_id).__name__)
        if request_id in self._requests:
            raise ArgumentError("request_exists", request=request_id)
        if not isinstance(params, SamplingParams):
            raise ArgumentError("request_params", value=type(params).__name__)
        tokens = token_array(prompt).tolist()
        root_digest(salt)  # refuses what is no text
        if not tokens:
            raise ArgumentError("no_tokens", sequence=request_id)
        if params.n > self.max_num_seqs:
            raise RequestTooLarge("request_too_many", request=request_id, n=params.n, most=self.max_num_seqs)
        if self.max_model_len is not None and len(tokens) + params.max_tokens > self.max_model_len:
            raise RequestTooLarge(
                "request_beyond_model",
                request=request_id,
                prompt=len(tokens),
                max_tokens=params.max_tokens,
                most=self.max_model_len,
            )
        refuse_what_never_fits(self.manager, request_id, len(tokens), params.max_tokens)
        return tokens

    def abort(self, request_id: str | int) -> bool:
        """End a request; False if it has ended already. In the step that is being computed it keeps its blocks
        until the step has ended, because the forward writes into them.
        """
        if not isinstance(request_id, (str, int)) or request_id not in self._requests:
            return False
        request, now = self._requests[request_id], self._clock()
        for seq in request.sequences:
            self._end(seq, FinishReason.ABORT, now)
        del self._requests[request_id]
        self._report.deliver()
        return True

    def schedule(self) -> Step:
        """The next step. It has no items only if no request is left, and each sequence in it has its blocks.

        Raises ``ArgumentError`` while a step is open. If it raises anything else, what the step had taken is given
        back; only where ``emit`` raises, the step is open: give ``open_step`` to ``fail``.
        """
        if self._open is not None:
            raise ArgumentError("step_still_open", number=self._open.number)
        now = self._clock()
        draft = self._draft(now)
        try:
            batch = pack(self.manager, draft.items)
            self._report.begin_step(now, self._running, len(self._waiting))
        except BaseException:
            self._undo(now)
            raise
        in_step = {seq.id: seq for seq in draft.seqs}
        preempted = tuple(seq.id for seq in draft.preempted)
        copies, transfers = tuple(draft.copies), self._offload.transfers()
        self._in_step = in_step | {other.id: other for seq in in_step.values() for other in seq.pending}
        self._open = Step(self._steps, now, tuple(draft.items), copies, preempted, batch, *transfers)
        self._steps += 1
        self._report.deliver()
        return self._open

    def finish(
        self,
        step: Step,
        token_ids: Seq[int],
        stopped: Collection[SequenceId] = (),
        accepted: Mapping[SequenceId, int] | None = None,
    ) -> tuple[Sequence, ...]:
        """The forward is done: ``token_ids`` are the new tokens, one for each sequence in ``step.sampled``.

        Sequences in ``stopped`` end with their new token (their text holds a stop text). ``accepted`` says how many of
        a sequence's drafts come before its new token (of one that it does not name, none); the others are rolled back.
        Returns the sequences that have ended. Raises ``ArgumentError``, and changes nothing, for another step and for
        what are not the tokens.
        """
        self._check_open(step)
        tokens, sampled = token_array(token_ids).tolist(), step.sampled
        if len(tokens) != len(sampled):
            raise ArgumentError("step_tokens", given=len(tokens), due=len(sampled))
        for seq_id in stopped:
            if seq_id not in sampled:
                raise ArgumentError("step_stopped", sequence=seq_id)
        right = {
            seq_id: 0 if self._in_step[seq_id].ended else count
            for seq_id, count in count_accepted(step, accepted or {}).items()
        }
        now = self._clock()
        self._report.end_step(now, step, failed=False, accepted=sum(right.values()))
        self._offload.settle(arrived=True)
        for item in step.items:
            seq = self._in_step[item.id]
            if item.drafts:
                self._roll_back(seq, item.drafts, right[item.id], now)
            self.manager.commit(seq.id)
            seq.num_computed = seq.num_placed
            if seq.num_cached is None:
                seq.num_cached, seq.admitted_at = item.start, step.time
            if seq.pending and item.samples and not seq.ended:
                self._fork(seq)
        self._open = None
        drafts_of = {item.id: item.guessed[: right[item.id]] for item in step.items if item.drafts}
        ended = []
        for seq_id, token in zip(sampled, tokens, strict=True):
            seq = self._in_step[seq_id]
            if seq.ended:
                continue  # aborted meanwhile
            seq.tokens += drafts_of.get(seq_id, ())
            seq.tokens.append(token)
            if seq.first_token_at is None:
                seq.first_token_at = now
                self._report.first(now, seq)
            reason = _why_it_ends(seq, token, seq_id in stopped)
            if reason is not None:
                self._end(seq, reason, now)
                ended.append(seq)
        self._close(now)
        return tuple(ended)

    def fail(self, step: Step, error: BaseException) -> tuple[Request, ...]:
        """The forward, the sampler or the storage raised ``error``: the requests in the step end with it.

        Nothing of the step is published, all their blocks are given back, and the other requests go on. Returns the
        requests that have failed. Raises ``ArgumentError`` for another step.
        """
        self._check_open(step)
        now = self._clock()
        self._report.end_step(now, step, failed=True)
        self._offload.settle(arrived=False)
        self._open = None
        names = dict.fromkeys(item.id.request for item in step.items if not self._in_step[item.id].ended)
        failed = [self._requests[name] for name in names]
        for request in failed:
            for seq in request.sequences:
                if not seq.ended:
                    seq.error = error
                    self._end(seq, FinishReason.ERROR, now)
        self._close(now)
        return tuple(failed)

    def _check_open(self, step: Step) -> None:
        if self._open is None or step is not self._open:
            raise ArgumentError("step_not_open")

    def _fork(self, seq: Sequence) -> None:
        """The prompt of ``seq`` is computed: the other sequences of its request begin with the same blocks."""
        for other in seq.pending:
            self.manager.fork(seq.id, other.id)
            other.num_computed = other.num_placed = seq.num_computed
            other.num_cached, other.admitted_at = seq.num_cached, seq.admitted_at
            self._start(other)
        seq.pending = []

    def _end(self, seq: Sequence, reason: FinishReason, now: float) -> None:
        """A sequence ends once; while its step is being computed it keeps its blocks."""
        if seq.ended:
            return
        held = seq.state is State.RUNNING
        waits = not held and seq in self._waiting  # one that will be forked is in no queue
        seq.state = State.ABORTED if reason is FinishReason.ABORT else State.FINISHED
        seq.finish_reason, seq.finished_at = reason, now
        if waits:
            self._waiting.remove(seq)
            self._offload.drop(seq)
        self._report.end(now, seq, reason)
        if held and not (self._open and seq.id in self._in_step):
            self._release(seq, now)

    def _close(self, now: float) -> None:
        """After a step: what was aborted in it gives its blocks back, and requests that have ended are forgotten."""
        over = [seq for seq in self._in_step.values() if seq.ended]
        for seq in [seq for seq in self._running if seq.ended] if over else ():
            self._release(seq, now)
        for name in {seq.id.request for seq in over}:
            if name in self._requests and self._requests[name].ended:
                del self._requests[name]
        self._in_step = {}
        self._report.deliver()


def _why_it_ends(seq: Sequence, token: int, stopped: bool) -> FinishReason | None:
    """After the new ``token``, which ``seq`` has already."""
    if stopped or token in seq.params.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if seq.num_output == seq.params.max_tokens else None
