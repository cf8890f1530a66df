"""Scheduler: continuous batching on a pool of blocks. It decides which tokens the next forward computes.

    >>> scheduler = Scheduler(BlockManager(num_blocks=8, block_size=4))
    >>> request = scheduler.add("a", [1, 2, 3, 4, 5], SamplingParams(max_tokens=2))
    >>> step = scheduler.schedule()                       # the whole prompt
    >>> done = scheduler.finish(step, [7])                # the forward sampled token 7
    >>> step = scheduler.schedule()                       # token 7
    >>> [ended.output for ended in scheduler.finish(step, [8])]
    [[7, 8]]

Sequences are ordered by arrival, and none overtakes another. A step serves the running sequences first, beginning with
the oldest: a decode takes one token of the budget, a prefill as many as the younger decodes leave. A sequence that
lacks a block takes it from a younger one, which is preempted: it goes back to its place in the queue, and computes its
tokens again unless an extension keeps them. No sequence takes a block from the oldest, which fits into the pool alone
(``add`` refuses the others). So every step computes something, the oldest ends, and the next becomes the oldest.
Then waiting sequences are admitted while there are seats, budget and blocks, up to the first that has to wait.
"""

import time
from array import array
from bisect import insort
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from minikv.blocks import NULL_BLOCK, BlockManager, Match
from minikv.blocks.prefix import root_digest, token_array
from minikv.engine.core.extension import Extension, overriding
from minikv.engine.core.rules import Rules, peak_blocks, refuse_what_never_fits
from minikv.engine.core.sequence import (
    FinishReason,
    Request,
    Sequence,
    SequenceId,
    SequenceStatus,
    Tokens,
    new_request,
)
from minikv.engine.core.step import NOT_PACKED, Step, StepPlan, pack
from minikv.engine.sampling_params import SamplingParams
from minikv.errors import ArgumentError, OutOfBlocksError, check_count
from minikv.shown import one_line


@dataclass(frozen=True, eq=False)
class OpenStep:
    """A step that is being computed: the sequences of its items in order, and those that get a token in it."""

    step: Step
    of_items: list[Sequence]
    sampled: list[Sequence]

    @cached_property
    def seqs(self) -> dict[SequenceId, Sequence]:
        return {seq.id: seq for seq in (*self.of_items, *self.sampled)}

    @property
    def is_wanted(self) -> bool:
        """Whether any sequence of the step has not ended."""
        return any(not seq.ended for seq in self.seqs.values())

    def has(self, seq: Sequence) -> bool:
        return self.seqs.get(seq.id) is seq  # a request's id may be used again


class Scheduler:
    """Drives a ``BlockManager`` that no other code uses. Not for several threads at once.

    A step computes at most ``max_batched_tokens`` tokens of at most ``max_num_seqs`` sequences. A request's prompt and
    ``max_tokens`` together are at most ``max_model_len`` (None: as many as the pool holds). ``rules`` choose victims
    and the number of blocks that admission reserves. ``extensions`` add features (``Extension``). ``clock`` returns
    seconds. Without ``packs`` a step has no arrays (``NOT_PACKED``), for a simulation, which computes nothing.

    For extensions: ``now`` is the time of the present call. ``open_steps`` are being computed and end in their order.
    ``running_sequences`` are exactly the manager's sequences, the oldest first. A sequence keeps its blocks while a
    step has it, even if it is aborted, because the forward writes into them.
    """

    def __init__(
        self,
        manager: BlockManager,
        *,
        max_num_seqs: int = 64,
        max_batched_tokens: int = 2048,
        max_model_len: int | None = None,
        rules: Rules | None = None,
        extensions: Seq[Extension] = (),
        clock: Callable[[], float] = time.monotonic,
        packs: bool = True,
    ):
        if not isinstance(manager, BlockManager) or manager.sequences():
            raise ArgumentError("scheduler_manager", value=type(manager).__name__)
        check_count("max_num_seqs", max_num_seqs)
        check_count("max_batched_tokens", max_batched_tokens)
        if max_model_len is not None:
            check_count("max_model_len", max_model_len)
        if max_batched_tokens < max_num_seqs:
            raise ArgumentError("scheduler_budget", tokens=max_batched_tokens, seqs=max_num_seqs)
        if not callable(clock):
            raise ArgumentError("scheduler_callable", what="clock", value=type(clock).__name__)
        if rules is not None and not isinstance(rules, Rules):
            raise ArgumentError("scheduler_part", what="rules", wanted="Rules", value=_shown(rules))
        if not isinstance(extensions, (list, tuple)):
            raise ArgumentError("not_a_list", what="extensions", value=type(extensions).__name__)
        for each in extensions:
            if not isinstance(each, Extension):
                wanted = {"wanted": "Extension", "value": _shown(each)}
                raise ArgumentError("scheduler_part", what="extensions", **wanted)
        self.manager, self.max_model_len = manager, max_model_len
        self.max_num_seqs, self.max_batched_tokens = max_num_seqs, max_batched_tokens
        self.rules = Rules() if rules is None else rules
        self.extensions, self.packs = tuple(extensions), packs
        self.open_steps: list[OpenStep] = []
        self.running_sequences: list[Sequence] = []
        self._waiting: list[Sequence] = []
        self._requests: dict[str | int, Request] = {}  # by id, without those that have ended
        self.clock = clock
        self.now, self._arrived, self._steps = 0.0, 0, 0
        for extension in self.extensions:
            extension.attach(self)
        hooks = ("salt", "resident", "limit", "keep", "resume", "on_change", "before_step", "after_step")
        more = ("prefix", "unsettled", "flush")
        self._hooks = {name: overriding(self.extensions, name) for name in (*hooks, *more)}
        self._on_change, self._limit = self._hooks["on_change"], self._hooks["limit"]

    def __repr__(self) -> str:
        counts = f"{self.num_running:,} running", f"{self.num_waiting:,} waiting"
        limits = f"{self.max_batched_tokens:,} tokens of {self.max_num_seqs:,} sequences a step"
        return one_line("Scheduler", "", *counts, limits)

    @property
    def waiting(self) -> tuple[SequenceId, ...]:
        """The waiting sequences in the order of the queue; a future fork waits with its parent."""
        return tuple(seq.id for seq in self._waiting)

    @property
    def running(self) -> tuple[SequenceId, ...]:
        """The sequences that hold blocks and have not ended, the oldest first."""
        return tuple(seq.id for seq in self.running_sequences if not seq.ended)

    @property
    def num_waiting(self) -> int:
        """The number of waiting sequences, without future forks."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """The number of sequences that hold blocks. An ended one may hold them until its last step is done."""
        return len(self.running_sequences)

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._requests)

    @property
    def has_gaps(self) -> bool:
        """Whether a sequence may have fewer slots than it has tokens."""
        return bool(self._hooks["resident"])

    @property
    def open_step(self) -> Step | None:
        """The step for the next ``finish`` or ``fail``."""
        return self.open_steps[0].step if self.open_steps else None

    @property
    def open_step_is_wanted(self) -> bool:
        """Whether any sequence still needs a token of ``open_step``. If not, end it soon: it holds blocks."""
        return bool(self.open_steps) and self.open_steps[0].is_wanted

    def request(self, request_id: str | int) -> Request:
        """Return a request that has not ended. Raises ``ArgumentError`` for an unknown id."""
        if not isinstance(request_id, (str, int)) or request_id not in self._requests:
            raise ArgumentError("request_unknown", request=request_id, count=len(self._requests))
        return self._requests[request_id]

    def sequence(self, seq_id: SequenceId) -> Sequence:
        """Return a sequence of a request that has not ended."""
        return self.request(seq_id.request).sequences[seq_id.sample]

    def most_resident(self, num_tokens: int, seq: Sequence | None = None) -> int:
        """Return the most slots that ``num_tokens`` tokens of ``seq`` (None: any) take at once without a window."""
        for resident in self._hooks["resident"]:
            num_tokens = resident(num_tokens, seq)
        return num_tokens

    def add(
        self, request_id: str | int, prompt: Seq[int], params: SamplingParams | None = None, salt: str = ""
    ) -> Request:
        """Queue a request. Requests share cached prefixes only under an equal ``salt``. Raises as ``check`` does.

        A prompt that is an ``array("q")`` stays one in the request and its sequences, so no int object is made for each
        token.
        """
        params = SamplingParams() if params is None else params
        tokens = self.check(request_id, prompt, params, salt)
        self.now = self.clock()
        request = new_request(request_id, self._arrived, tokens, params, salt, self.now)
        self._arrived += 1
        self._requests[request_id] = request
        self._waiting.append(request.sequences[0])
        for seq in request.sequences:
            self.changed("arrive", seq, seq.num_prompt)
        self._flush()
        return request

    def check(
        self, request_id: str | int, prompt: Seq[int], params: SamplingParams, salt: str = ""
    ) -> Tokens:
        """Return the prompt's tokens if ``add`` would take the request now; changes nothing.

        Raises ``RequestTooLargeError`` for a request that could never run, with the numbers. Raises ``ArgumentError``
        for an id in use, and for an invalid prompt, ``SamplingParams`` or salt.
        """
        if isinstance(request_id, bool) or not isinstance(request_id, (str, int)):
            raise ArgumentError("request_id", value=type(request_id).__name__)
        if request_id in self._requests:
            raise ArgumentError("request_exists", request=request_id)
        if not isinstance(params, SamplingParams):
            raise ArgumentError("request_params", value=type(params).__name__)
        ids = token_array(prompt)
        tokens: Tokens = ids if isinstance(prompt, array) else ids.tolist()
        root_digest(salt)  # raises unless it is text
        if not tokens:
            raise ArgumentError("no_tokens", sequence=request_id)
        refuse_what_never_fits(self, request_id, len(tokens), params)
        return tokens

    def abort(self, request_id: str | int) -> bool:
        """End a request; False if it has ended already.

        If an open step has it, its blocks are freed only after that step, because the forward writes into them.
        """
        if not isinstance(request_id, (str, int)) or request_id not in self._requests:
            return False
        request, self.now = self._requests[request_id], self.clock()
        for seq in request.sequences:
            self._end(seq, FinishReason.ABORT)
        del self._requests[request_id]
        self._flush()
        return True

    def schedule(self) -> Step:
        """Return the next step; all of its sequences have their blocks. It is empty only if no request is left.

        Raises ``ArgumentError`` while a step is open. For any other error, everything that the step took is freed. Only
        if ``Extension.flush`` raises, the step is open: pass ``open_step`` to ``fail``.
        """
        if self.open_steps:
            raise ArgumentError("step_still_open", number=self.open_steps[0].step.number)
        self.now = self.clock()
        plan = StepPlan(self.max_batched_tokens)
        try:
            self._serve_running(plan)
            # Preempted sequences have just lost their blocks to an older one; admission must not take these
            if self._waiting and not plan.preempted:
                self._admit(plan)
            step = self.open(plan)
        except BaseException:
            self._undo(plan)
            raise
        self._flush()
        return step

    def open(self, plan: StepPlan, sources: Seq[int] | None = None) -> Step:
        """Turn ``plan`` into an open step; its tokens have slots. ``sources`` as in ``StepArrays``."""
        for before_step in self._hooks["before_step"]:
            before_step(plan)
        is_computed = self.packs and bool(plan.items)
        batch = pack(self.manager, plan.items, sources, gaps=self.has_gaps) if is_computed else NOT_PACKED
        preempted = tuple(seq.id for seq in plan.preempted)
        step = Step(self._steps, self.now, tuple(plan.items), tuple(plan.copies), preempted, batch, plan.work)
        self._steps += 1
        self.open_steps.append(OpenStep(step, plan.seqs, plan.sampled))
        return step

    def finish(
        self, step: Step, tokens: Seq[int | Seq[int]], stopped: Collection[SequenceId] = ()
    ) -> tuple[Sequence, ...]:
        """Record the results of ``open_step``: ``tokens`` has the new token of each of ``step.sampled``.

        For a sequence with unconfirmed tokens it may be a list: the confirmed ones and the new one behind them; the
        slots behind these are taken back. Sequences in ``stopped`` end with their new token (their text has a stop
        text). Returns the sequences that have ended. Raises ``ArgumentError``, and changes nothing, for another step
        and for invalid tokens.
        """
        opened = self._check_open(step)
        new = _new_tokens(opened, tokens, stopped)
        self.now = self.clock()
        if self._hooks["after_step"] or any([item.unconfirmed for item in step.items]):
            new = [each[-1:] if seq.ended else each for seq, each in zip(opened.sampled, new, strict=True)]
        for after_step in self._hooks["after_step"]:
            after_step(step, dict(zip(step.sampled, new, strict=True)))
        self._settle(opened, new)
        del self.open_steps[0]
        ended = []
        for seq, each in zip(opened.sampled, new, strict=True):
            if seq.ended:
                continue  # aborted since the step was planned
            seq.tokens.extend(each)
            if seq.num_placed == len(seq.tokens):  # the slot was reserved before the token was known
                self.manager.fill_slot(seq.id, each[-1])
            if seq.first_token_at is None:
                seq.first_token_at = self.now
                self.changed("first", seq, 1)
            reason = _why_it_ends(seq, each[-1], seq.id in stopped)
            if reason is not None:
                self._end(seq, reason)
                ended.append(seq)
        self._close({seq.id.request for seq in ended})
        return tuple(ended)

    def fail(self, step: Step, error: BaseException) -> tuple[Request, ...]:
        """End the requests in ``open_step`` with ``error``, which the forward, the sampler or the storage raised.

        Nothing of the step is published, all blocks of these requests are freed, and the other requests go on. All open
        steps end: the sequences of a later one are in this one too. Returns the failed requests. Raises
        ``ArgumentError`` for another step.
        """
        opened = self._check_open(step)
        self.now = self.clock()
        unsettled = [seq for seq in self.running_sequences if self._is_unsettled(seq, step.work)]
        for each in self.open_steps:
            for after_step in self._hooks["after_step"]:
                after_step(each.step, None)
        self.open_steps = []
        computed = {item.id for item in step.items}
        for seq in unsettled:
            if seq.id not in computed and not seq.ended:
                self._preempt(seq, may_keep=False)
        names = dict.fromkeys(seq.id.request for seq in opened.of_items if not seq.ended)
        failed = [self._requests[name] for name in names]
        for request in failed:
            for seq in request.sequences:
                if not seq.ended:
                    seq.error = error
                    self._end(seq, FinishReason.ERROR)
        self._close(names)
        return tuple(failed)

    # Called by extensions.

    def changed(self, change: str, seq: Sequence | None, num_tokens: int = 0, **facts: Any) -> None:
        """Tell the extensions; see ``Extension.on_change``."""
        for on_change in self._on_change:
            on_change(change, seq, num_tokens, **facts)

    def place(self, plan: StepPlan, seq: Sequence, most: int) -> None:
        """Put up to ``most`` next tokens of ``seq`` into ``plan``, as many as its last block and the free ones hold.

        Raises ``OutOfBlocksError`` if that is none.
        """
        start = seq.num_computed
        for limit in self._limit:
            most = limit(seq, most)
        if most < 1:
            return
        decode = start + 1 == len(seq.tokens) > seq.num_prompt
        if most == 1:
            end, copies = start + 1, self.manager.append(seq.id, seq.tokens[start])
        else:
            end = start + max(1, min(most, self.num_slots(seq)))
            copies = self.manager.append_tokens(seq.id, seq.tokens[start:end])
        plan.copies += copies
        plan.put(seq, start, end, decode)
        if self._on_change:
            self.changed("allocate", seq, end - start)

    def start(self, seq: Sequence) -> None:
        """Move ``seq``, which holds blocks now, to the running sequences."""
        if self._waiting and self._waiting[0] is seq:
            del self._waiting[0]
        insort(self.running_sequences, seq, key=lambda each: each.order)
        seq.status = SequenceStatus.RUNNING

    def peak(self, seq: Sequence, window: int | None) -> int:
        """Return the most blocks that ``seq`` needs for its present tokens in a group with that ``window``."""
        tokens = len(seq.tokens)
        if window is None:
            tokens = self.most_resident(tokens, seq)
        return peak_blocks(tokens, window, self.manager.block_size)

    def num_slots(self, seq: Sequence) -> int:
        """Return how many tokens fit into the last block of ``seq`` and the free blocks."""
        manager, size = self.manager, self.manager.block_size
        # -n % size are the free slots of the last block. A prefill's last block is never shared, so they can be
        # written.
        tail = -seq.num_placed % size
        if self.has_gaps:
            tail = min(tail, *(-manager.length(seq.id, group) % size for group in range(len(manager.pools))))
        return tail + size * min(pool.num_free for pool in manager.pools)

    # Planning a step.

    def _serve_running(self, plan: StepPlan) -> None:
        """Give each decode a token and the prefills the rest of the budget, the oldest first."""
        # ``singles`` counts the sequences from here on that need one token. A longer request leaves them that many
        # tokens of the budget.
        singles = sum([seq.missing == 1 for seq in self.running_sequences])
        for place, seq in enumerate(self.running_sequences):  # only those behind ``seq`` are preempted
            missing = seq.missing
            singles -= missing == 1
            while (want := min(missing, plan.budget - singles)) > 0:
                try:
                    self.place(plan, seq, want)
                except OutOfBlocksError as error:
                    asked = int(error.values["asked"])  # type: ignore[call-overload]
                    younger = self.running_sequences[place + 1 :]
                    victim = self.rules.choose_victim(self, younger, asked) if younger else None
                    if victim is None:
                        break  # it keeps its blocks and waits for more
                    if not any(victim is each for each in younger):
                        raise ArgumentError("rules_victim", rules=type(self.rules).__name__) from None
                    singles -= victim.missing == 1
                    self._preempt(victim)
                    plan.preempted.append(victim)
                else:
                    break

    def _admit(self, plan: StepPlan) -> None:
        """Admit waiting sequences in order, while there are seats, budget and blocks for the whole sequence."""
        seats = self.max_num_seqs - sum(1 + len(seq.pending) for seq in self.running_sequences)
        while self._waiting and plan.budget:
            seq = self._waiting[0]
            seats -= 1 + len(seq.pending)
            if seats < 0:
                break
            if seq.num_computed:  # an extension has kept its K and V
                if not any(resume(seq, plan) for resume in self._hooks["resume"]):
                    break
                continue
            salt, stop = seq.salt, len(seq.tokens)
            for salted in self._hooks["salt"]:
                salt = salted(seq, salt)
            for limit in self._limit:
                stop = limit(seq, stop)  # cached blocks behind it are not used
            if stop < 1:
                break
            found = self.manager.match(seq.tokens if stop == len(seq.tokens) else seq.tokens[:stop], salt)
            for shared in self._hooks["prefix"]:
                found, stop = shared(seq, found, stop)
            room = self._room_for(seq, found)
            if room < 1:
                break
            end = min(stop, found.num_tokens + min(plan.budget, room))
            taken = self.manager.allocate(seq.id, seq.tokens[:end], salt, most_cached=found.num_tokens)
            seq.num_computed = taken.num_cached  # allocate() may find less than match() found before it
            self.start(seq)
            plan.put(seq, taken.num_cached, end, decode=False)
            self.changed("admit", seq, end - taken.num_cached, found=taken)

    def _room_for(self, seq: Sequence, found: Match) -> int:
        """Return how many tokens behind the cached prefix a waiting sequence may get now; 0: it has to wait.

        Beside running sequences it waits until all of its tokens fit in addition to their blocks: else it would soon be
        preempted.
        """
        size, fewest = self.manager.block_size, self.manager.pools[0].num_blocks
        # Cached blocks that are free now leave the free list when they are taken, so they are no room for new tokens.
        pairs = zip(self.manager.pools, self.manager.kv_cache_groups, strict=True)
        for number, (pool, group) in enumerate(pairs):
            hits = [block for block in found.tables[number] if block != NULL_BLOCK]
            free = pool.num_free - pool.count_free(hits)
            if self.running_sequences:
                need = self.peak(seq, group.window) - len(hits) + len(seq.pending)
                if need > free - self.rules.owed_blocks(self, number):
                    return 0
            fewest = min(fewest, free - (len(found.host[number]) if found.host else 0))
        return fewest * size

    def _undo(self, plan: StepPlan) -> None:
        """Preempt every sequence with slots that were never filled; it starts again later."""
        for seq in list(self.running_sequences):
            if self._is_unsettled(seq, plan.work) or self.manager.num_tokens(seq.id) != seq.num_computed:
                self._preempt(seq, may_keep=False)
        known = {seq.id for seq in self.running_sequences}
        for seq_id in set(self.manager.sequences()) - known:  # allocated, but not running yet
            self.manager.free(seq_id)
            seq = self.sequence(seq_id)  # type: ignore[arg-type]
            seq.num_computed = seq.num_placed = 0  # nothing of it is kept anywhere
        for after_step in self._hooks["after_step"]:
            after_step(None, None)

    # Ending a step.

    def _check_open(self, step: Step) -> OpenStep:
        if not self.open_steps or step is not self.open_steps[0].step:
            raise ArgumentError("step_not_open")
        return self.open_steps[0]

    def _settle(self, opened: OpenStep, new: list[list[int]]) -> None:
        """Commit the K and V of a step, except those of wrong tokens; ``new`` are the tokens of its ``sampled``."""
        late, row = opened.step.batch.sources is not None, 0
        for seq, item in zip(opened.of_items, opened.step.items, strict=True):
            _, start, tokens, _, samples, unconfirmed = item
            first, row = row, row + len(samples)
            # An ended sequence of a step with sources is not committed: its token was unknown when the step was
            # planned, so no prefix may be published from it.
            if late and seq.ended:
                continue
            seq.num_computed = start + len(tokens)
            if unconfirmed:
                # All but the last new token were unconfirmed and right; it is the one behind them.
                wrong = unconfirmed - (len(new[first]) - 1)
                seq.num_computed -= wrong
                if wrong:  # before the commit, so that they never become part of a cached prefix
                    seq.num_placed -= wrong
                    self.manager.truncate(seq.id, seq.num_placed)
                    self.changed("truncate", seq, wrong)
            self.manager.commit(seq.id, seq.num_computed)
            if self._on_change:
                self.changed("commit", seq)  # the commit may have freed blocks behind a window
            if seq.num_cached is None:
                seq.num_cached, seq.admitted_at = start, opened.step.time
            if seq.pending and samples and not seq.ended:
                self._fork(seq)

    def _fork(self, seq: Sequence) -> None:
        """Start the other sequences of the request on the same blocks; ``seq`` has computed their common prompt."""
        for other in seq.pending:
            self.manager.fork(seq.id, other.id)
            other.num_computed = other.num_placed = seq.num_computed
            other.num_cached, other.admitted_at = seq.num_cached, seq.admitted_at
            self.start(other)
            self.changed("fork", seq, child=other)
        seq.pending = []

    def _end(self, seq: Sequence, reason: FinishReason) -> None:
        """End a sequence once. It keeps its blocks while an open step has it."""
        if seq.ended:
            return
        held = seq.status is SequenceStatus.RUNNING
        waits = not held and seq in self._waiting  # a future fork is in no queue
        seq.status = SequenceStatus.ABORTED if reason is FinishReason.ABORT else SequenceStatus.FINISHED
        seq.finish_reason, seq.finished_at = reason, self.now
        if waits:
            self._waiting.remove(seq)
            self.changed("drop", seq)
        self.changed("end", seq, seq.num_output)
        if held and not self._is_in_a_step(seq):
            self._release(seq)

    def _close(self, names: Iterable[str | int]) -> None:
        """Free the blocks of sequences that ended in a step, and forget those of the requests that have ended."""
        for seq in [seq for seq in self.running_sequences if seq.ended]:
            if not self._is_in_a_step(seq):
                self._release(seq)
        for name in names:
            if self._requests[name].ended:
                del self._requests[name]
        self._flush()

    def _preempt(self, seq: Sequence, may_keep: bool = True) -> None:
        """Take the blocks of ``seq`` and put it back into its place in the queue."""
        facts: dict[str, Any] = {}
        kept = may_keep and any(keep(seq, facts) for keep in self._hooks["keep"])
        self.changed("preempt", seq, seq.num_computed, kept=kept, **facts)
        if kept:
            self.running_sequences.remove(seq)
        else:
            self._release(seq)
            seq.num_computed = seq.num_placed = 0
        seq.status = SequenceStatus.WAITING
        seq.num_preemptions += 1
        insort(self._waiting, seq, key=lambda each: each.order)

    def _release(self, seq: Sequence) -> None:
        """Free the blocks of a sequence. No other method does."""
        self.manager.free(seq.id)
        self.running_sequences.remove(seq)
        self.changed("free", seq, seq.num_computed)

    def _is_in_a_step(self, seq: Sequence) -> bool:
        return any(opened.has(seq) for opened in self.open_steps)

    def _is_unsettled(self, seq: Sequence, work: Any) -> bool:
        return any(unsettled(seq, work) for unsettled in self._hooks["unsettled"])

    def _flush(self) -> None:
        for flush in self._hooks["flush"]:
            flush()


def _new_tokens(
    opened: OpenStep, tokens: Seq[int | Seq[int]], stopped: Collection[SequenceId]
) -> list[list[int]]:
    """Return the new tokens of each of ``opened.sampled`` as a list. Raises ``ArgumentError`` for invalid ones."""
    step = opened.step
    several = isinstance(tokens, (list, tuple)) and any([isinstance(each, (list, tuple)) for each in tokens])
    if several:
        listed: list[Any] = [each if isinstance(each, (list, tuple)) else [each] for each in tokens]
        try:  # all in one call, which costs as much as that of one
            known = iter(token_array([token for each in listed for token in each]))
        except ArgumentError:
            for each in listed:
                token_array(each)  # the error names the sequence's own tokens
            raise
        new = [list(islice(known, len(each))) for each in listed]
    else:
        new = [[token] for token in token_array(tokens)]  # type: ignore[arg-type]
    if len(new) != len(opened.sampled):
        raise ArgumentError("step_tokens", given=len(new), due=len(opened.sampled))
    for seq_id in stopped:
        if seq_id not in step.sampled:
            raise ArgumentError("step_stopped", sequence=seq_id)
    if several and (any([item.unconfirmed for item in step.items]) or any([len(each) != 1 for each in new])):
        items = [item for item in step.items for _ in item.samples]
        for item, each in zip(items, new, strict=True):
            if not each or list(item.guesses[: len(each) - 1]) != each[:-1]:
                values = {"value": len(each) - 1, "most": item.unconfirmed}
                raise ArgumentError("step_accepted", sequence=item.id, **values)
    return new


def _shown(value: object) -> str:
    return value.__name__ if isinstance(value, type) else type(value).__name__


def _why_it_ends(seq: Sequence, token: int, stopped: bool) -> FinishReason | None:
    """Return why ``seq`` ends after the new ``token``, its last one, or None."""
    if stopped or token in seq.params.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if seq.num_output == seq.params.max_tokens else None
