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

While a step is computed, ``schedule_ahead`` gives the next one, if that can be known before its tokens are.
"""

import time
from array import array
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Seq

from minikv.blocks import BlockManager
from minikv.blocks.prefix import root_digest, token_array
from minikv.engine.capacity import refuse_what_never_fits
from minikv.engine.events import Emit
from minikv.engine.evicting import Keeping
from minikv.engine.offload import Offload
from minikv.engine.open_steps import OpenSteps
from minikv.engine.reporter import Reporter
from minikv.engine.sampling_params import SamplingParams
from minikv.engine.sequence import FinishReason, Request, Sequence, SequenceId, Tokens, new_request
from minikv.engine.step import NOT_PACKED, Step, count_accepted, pack
from minikv.errors import ArgumentError, check_count
from minikv.plan.preemption import TransferRates
from minikv.shown import one_line


class Scheduler(OpenSteps):
    """Drives a ``BlockManager`` that nobody else uses. Not for several threads at once.

    A step computes at most ``max_batched_tokens`` tokens of at most ``max_num_seqs`` sequences; prompt and
    ``max_tokens`` of a request may be at most ``max_model_len`` together (None: what the pool holds). A decode has up
    to ``prompt_lookup`` drafts behind its token. ``clock`` gives seconds. Every event goes to ``emit``; ``block_bytes``
    are the bytes of a block, for each kind of layer. With ``rates`` a manager's host blocks take preempted sequences
    and evicted prefix blocks, where a transfer costs less than a prefill; whoever measures again may set ``rates`` at
    any time. Without ``packs`` a step has no arrays (``step.NOT_PACKED``): for a simulation, which computes nothing.
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
        evicting: Keeping | None = None,
        packs: bool = True,
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
        super().__init__(
            manager, max_num_seqs, max_batched_tokens, report, offload, prompt_lookup, clock, evicting
        )
        self.max_model_len = max_model_len
        self.packs = packs
        self._arrived = 0

    def __repr__(self) -> str:
        who = f"{self.num_running:,} running", f"{self.num_waiting:,} waiting"
        limits = f"{self.max_batched_tokens:,} tokens of {self.max_num_seqs:,} sequences a step"
        return one_line("Scheduler", "", *who, limits)

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
        """Who holds blocks and has not ended, the oldest first; who has may hold them until its last step is done."""
        return tuple(seq.id for seq in self._running if not seq.ended)

    @property
    def num_waiting(self) -> int:
        """How many sequences wait, those that will be forked not counted."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """How many sequences hold blocks."""
        return len(self._running)

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
        """Queue a request. Requests share cached prefixes only under an equal ``salt``. Raises as ``check`` does.

        A prompt that is an ``array("q")`` stays one in the request, and its sequences: no int is made of each token.
        """
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
    ) -> Tokens:
        """The prompt's tokens, if ``add`` would take the request now; nothing changes.

        Raises ``RequestTooLargeError`` for one that could never run, with the numbers, and ``ArgumentError`` for an id
        that is in use and for what is no prompt, no ``SamplingParams`` or no salt.
        """
        if isinstance(request_id, bool) or not isinstance(request_id, (str, int)):
            raise ArgumentError("request_id", value=type(request_id).__name__)
        if request_id in self._requests:
            raise ArgumentError("request_exists", request=request_id)
        if not isinstance(params, SamplingParams):
            raise ArgumentError("request_params", value=type(params).__name__)
        ids = token_array(prompt)
        tokens: Tokens = ids if isinstance(prompt, array) else ids.tolist()
        root_digest(salt)  # refuses what is no text
        if not tokens:
            raise ArgumentError("no_tokens", sequence=request_id)
        refuse_what_never_fits(
            self.manager,
            request_id,
            len(tokens),
            params,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
            most_resident=self.evicting.most_resident,
        )
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
        if self._opened:
            raise ArgumentError("step_still_open", number=self._opened[0].step.number)
        now = self._clock()
        plan = self._plan(now)
        try:
            seqs = {seq.id: seq for seq in plan.seqs}
            seqs |= {other.id: other for seq in plan.seqs if seq.pending for other in seq.pending}
            if not self.packs:
                batch = NOT_PACKED
            elif self.evicting.evicts:
                batch = pack(self.manager, plan.items, evicts=True)
            else:
                batch = pack(self.manager, plan.items)
            step = self._open(plan, batch, now, seqs)
        except BaseException:
            self._undo(now)
            raise
        self._report.deliver()
        return step

    def finish(
        self,
        step: Step,
        token_ids: Seq[int],
        stopped: Collection[SequenceId] = (),
        accepted: Mapping[SequenceId, int] | None = None,
    ) -> tuple[Sequence, ...]:
        """The forward of ``open_step`` is done: ``token_ids`` are the new tokens, one for each of ``step.sampled``.

        Sequences in ``stopped`` end with their new token (their text holds a stop text). ``accepted`` says how many of
        a sequence's drafts come before its new token (of one that it does not name, none); the others are rolled back.
        Returns the sequences that have ended. Raises ``ArgumentError``, and changes nothing, for another step and for
        what are not the tokens.
        """
        opened = self._check_open(step)
        tokens, sampled = token_array(token_ids).tolist(), step.sampled
        if len(tokens) != len(sampled):
            raise ArgumentError("step_tokens", given=len(tokens), due=len(sampled))
        for seq_id in stopped:
            if seq_id not in sampled:
                raise ArgumentError("step_stopped", sequence=seq_id)
        right = {
            seq_id: 0 if opened.seqs[seq_id].ended else count
            for seq_id, count in count_accepted(step, accepted or {}).items()
        }
        now = self._clock()
        self._report.end_step(now, step, opened.begun, failed=False, accepted=sum(right.values()))
        self._offload.settle(arrived=True)
        ahead, commit = step.ahead, self.manager.commit
        for item in step.items:
            seq = opened.seqs[item.id]
            if ahead and seq.ended:
                continue  # a dropped row: nothing of it is ever found, and nobody may know its token
            if item.drafts:
                self._roll_back(seq, item.drafts, right[item.id], now)
            seq.num_computed = item.start + len(item.tokens) - item.drafts + right.get(item.id, 0)
            commit(seq.id, seq.num_computed)  # the step behind this one may have placed more
            if seq.num_cached is None:
                seq.num_cached, seq.admitted_at = item.start, step.time
            if seq.pending and item.samples and not seq.ended:
                self._fork(seq)
        del self._opened[0]
        behind = self._opened[0].seqs if self._opened else {}
        drafts_of = {item.id: item.guessed[: right[item.id]] for item in step.items if item.drafts}
        ended = []
        for seq_id, token in zip(sampled, tokens, strict=True):
            seq = opened.seqs[seq_id]
            if seq.ended:
                continue  # aborted meanwhile, or a dropped row
            if drafts_of:
                seq.tokens.extend(drafts_of.get(seq_id, ()))
            seq.tokens.append(token)
            if seq_id in behind:
                self.manager.fill_slot(seq_id, token)
            if seq.first_token_at is None:
                seq.first_token_at = now
                self._report.first(now, seq)
            reason = _why_it_ends(seq, token, seq_id in stopped)
            if reason is not None:
                self._end(seq, reason, now)
                ended.append(seq)
        self._close(opened, now)
        return tuple(ended)

    def fail(self, step: Step, error: BaseException) -> tuple[Request, ...]:
        """The forward, the sampler or the storage raised ``error``: the requests in ``open_step`` end with it.

        Nothing of the step is published, all their blocks are given back, and the other requests go on. A step ahead
        of it ends too: all that are in it are in this one. Returns the requests that have failed. Raises
        ``ArgumentError`` for another step.
        """
        opened = self._check_open(step)
        now = self._clock()
        for each in self._opened:
            self._report.end_step(now, each.step, each.begun, failed=True)
        self._offload.settle(arrived=False)
        self._opened = []
        computed = {item.id for item in step.items}
        unfilled = {
            plan.seq_id for plan in step.evictions
        } - computed  # they were evicted, and found no block
        for seq in [seq for seq in self._running if seq.id in unfilled and not seq.ended]:
            self._preempt(seq, now)
        names = dict.fromkeys(item.id.request for item in step.items if not opened.seqs[item.id].ended)
        failed = [self._requests[name] for name in names]
        for request in failed:
            for seq in request.sequences:
                if not seq.ended:
                    seq.error = error
                    self._end(seq, FinishReason.ERROR, now)
        self._close(opened, now)
        return tuple(failed)


def _why_it_ends(seq: Sequence, token: int, stopped: bool) -> FinishReason | None:
    """After the new ``token``, which ``seq`` has already."""
    if stopped or token in seq.params.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if seq.num_output == seq.params.max_tokens else None
