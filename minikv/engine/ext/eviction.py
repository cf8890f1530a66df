"""Eviction, the scheduler's half: when a sequence evicts, how long it gets, and the work for the device.

This half decides how many tokens stay; the device decides later which ones. An eviction is a part of the next step
that serves the sequence, before its forward, and the host does not wait for it. A sequence stops for an eviction at
lengths that depend on itself alone, so its kept tokens depend neither on the batch around it nor on a preemption.
"""

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from minikv.engine.core.extension import Extension
from minikv.engine.core.sequence import Sequence, SequenceId, SequenceStatus
from minikv.engine.core.step import Step, StepPlan
from minikv.errors import OutOfBlocksError, check_count
from minikv.eviction.paged.plan import EvictionPlan, held, plan_eviction
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.choices import PerBlock, PolicyName, Scope, Unit, check_choices
from minikv.keywords import own_keywords

if TYPE_CHECKING:
    from minikv.engine.ext.eviction_worker import EvictionWorker
    from minikv.eviction.policies.policy import Policy


@own_keywords("EvictionConfig")
@dataclass(frozen=True)
class EvictionConfig:
    """The eviction of an ``LLM``: layers without a window keep ``n_sink + budget + n_recent`` tokens a sequence.

    ``policy``: a name of ``minikv.eviction.POLICIES``, or an object; there is no default. ``budget`` counts heavy
    hitters only. A sequence evicts when it has ``evict_every`` tokens more. ``scope``: the heads of a layer keep the
    same tokens ("layer"), or each its own ("head"). ``prefill_chunk``: tokens of a prompt between two evictions (None:
    512, or ``evict_every`` if that is more). Echo compares the tokens of a chunk, so each is computed whole, and after
    a preemption the later tokens one by one.

    ``unit`` "block" drops whole blocks and moves nothing, so requests go on sharing blocks. A block counts as its best
    token, or with ``per_block="sum"`` as the sum of all. At most the capacity stays. The host waits for the device at
    each eviction.
    """

    policy: "PolicyName | Policy"
    budget: int = 256
    n_sink: int = 4
    n_recent: int = 32
    evict_every: int = 16
    scope: Scope = "layer"
    prefill_chunk: int | None = None
    unit: Unit = "token"
    per_block: PerBlock = "max"

    def __post_init__(self) -> None:
        check_choices(self.scope, self.unit, self.per_block)
        if self.prefill_chunk is not None:
            check_count("prefill_chunk", self.prefill_chunk)
        self.tokens  # noqa: B018  (it checks its counts)

    @property
    def tokens(self) -> Budget:
        """How many tokens a sequence keeps, and how many it may have meanwhile."""
        return Budget(self.n_sink, self.budget, self.n_recent, self.evict_every)

    @property
    def chunk(self) -> int:
        """Tokens of a prompt between two evictions."""
        return max(512, self.evict_every) if self.prefill_chunk is None else self.prefill_chunk


class SequenceEvent(NamedTuple):
    """What happened to a sequence's cached tokens: ``op`` is "add", "remove", "fork", "save" or "restore"."""

    op: str
    id: SequenceId
    child: SequenceId | None = None


class Eviction(Extension):
    """Plans the evictions of each step, in ``step.work`` as "evictions"; ``worker`` carries them out.

    A sequence never has more than ``peak`` tokens in a layer without a window, those of a forward included. ``shares``:
    whether requests may find each other's prefixes. A policy that uses attention must not share: another request's
    queries saw the cached tokens, and their sum is unknown. ``event_log`` holds the events for the worker's record.

    ``step_tokens``: the most tokens of a step, where a token's score depends on those that are computed with it (None:
    it does not). A sequence then evicts after each ``chunk`` of its prompt and each later token, and no step computes a
    part of that: what is left of a step may be too little for it, and tokens after a preemption come one by one.
    """

    def __init__(self, budget: Budget, chunk: int, *, shares: bool, step_tokens: int | None = None):
        self.budget, self.chunk, self.shares, self.step_tokens = budget, chunk, shares, step_tokens
        self.peak: int = budget.peak_resident + chunk
        self.event_log: deque[SequenceEvent] = deque()
        self.worker: EvictionWorker | None = None
        self._plans: list[EvictionPlan] = []
        self._placed = 0  # tokens in the step that is being planned
        self._own = token_hex(8)  # random, so that no prefix file of another run matches

    def salt(self, seq: Sequence, salt: str) -> str:
        if self.shares:
            return salt
        return "\0".join([salt, self._own, *map(str, seq.order), str(seq.num_preemptions)])

    def resident(self, num_tokens: int, seq: Sequence | None = None) -> int:
        in_prompt = seq is None or seq.num_computed < seq.num_prompt
        return min(num_tokens, self.peak if in_prompt else self.budget.peak_resident + 1)

    def limit(self, seq: Sequence, num_tokens: int) -> int:
        """Allow tokens up to the next place where ``seq`` stops; if an eviction is due, plan it first."""
        if seq.status is not SequenceStatus.RUNNING:
            most = min(num_tokens, self.stop(seq, 0))
            whole = self.step_tokens is None or most <= self.step_tokens - self._placed
            return most if whole else 0
        length, is_due = self._length(seq), self.is_due(seq)
        most = self.stop(seq, self.after(length) if is_due else length) - seq.num_computed
        if self.step_tokens is not None and num_tokens < min(most, seq.missing):
            return 0
        if is_due:
            self.scheduler.changed("forget", seq, self.plan(seq))
        most = min(num_tokens, most)
        if self.step_tokens is not None and self.scheduler.num_slots(seq) < most:
            pool = min(self.scheduler.manager.pools, key=lambda each: each.num_free)
            asked = -(-most // pool.block_size)
            found = {"free": pool.num_free, "total": pool.num_blocks, "fits": self.scheduler.num_slots(seq)}
            raise OutOfBlocksError("out_of_blocks", asked=asked, **found)
        return most

    def may_reserve(self, seq: Sequence) -> bool:
        """Only committed tokens can be evicted, so ``seq`` must not be due once the open step is done."""
        return self._length(seq) <= self.budget.peak_resident

    def may_move(self, seq: Sequence) -> bool:
        """Return whether the blocks of ``seq`` are complete: no eviction is planned, or due."""
        return not (self.unsettled(seq, {}) or self.is_due(seq))

    def on_change(self, change: str, seq: Sequence | None, num_tokens: int, **facts: Any) -> None:
        """Record every change of a sequence for the worker: begin, end, fork, and its way to the host and back."""
        if seq is None:
            return
        if change in ("admit", "allocate"):
            self._placed += num_tokens
        if change == "admit":
            self._record("add", seq.id)
        elif change == "fork":
            self._record("fork", seq.id, facts["child"].id)
        elif change == "restore":
            self._record("restore", seq.id)
        elif change == "preempt" and facts["kept"]:
            self._record("save", seq.id)
        elif change == "free" or (change == "drop" and seq.num_preemptions):  # the record may be on the host
            self._record("remove", seq.id)

    def before_step(self, plan: StepPlan) -> None:
        self._placed = 0
        if self._plans:
            plan.work["evictions"], self._plans = tuple(self._plans), []

    def after_step(self, step: Step | None, tokens: Mapping[SequenceId, Seq[int]] | None) -> None:
        if step is None:
            self._placed, self._plans = 0, []

    def unsettled(self, seq: Sequence, work: Mapping[str, Any]) -> bool:
        return any(plan.seq_id == seq.id for plan in (*self._plans, *work.get("evictions", ())))

    def before_copies(self, step: Step) -> None:
        if self.worker is not None:
            self.worker.before_copies(step)

    def on_batch(self, step: Step, batch: Any) -> Any:
        return batch if self.worker is None else replace(batch, observer=self.worker.observer(step))

    @property
    def record_bytes(self) -> int:
        """The bytes of the worker's record of cached tokens."""
        return 0 if self.worker is None else self.worker.runner.records.nbytes

    def after(self, length: int) -> int:
        """Return how many of ``length`` tokens an eviction leaves."""
        return self.budget.capacity

    def stop(self, seq: Sequence, length: int) -> int:
        """Return the position before which the next tokens of ``seq`` must end; it holds ``length`` tokens.

        In the prompt that is a chunk later than the peak, and the prompt's end; afterwards it is the peak. If an
        eviction is due, it is not beyond the computed tokens.
        """
        peak, computed = self.budget.peak_resident, seq.num_computed
        if self.step_tokens is not None:
            if length > peak:
                return computed
            return min(seq.num_prompt, computed + self.chunk) if computed < seq.num_prompt else computed + 1
        if computed < seq.num_prompt:
            return min(seq.num_prompt, computed + peak + self.chunk - length)
        return computed + peak + 1 - length if length <= peak else computed

    def is_due(self, seq: Sequence) -> bool:
        """Return whether ``seq``, which runs, evicts before it computes more."""
        length = self._length(seq)
        return length > self.budget.peak_resident and self.stop(seq, length) <= seq.num_computed

    def plan(self, seq: Sequence) -> int:
        """Make the eviction of ``seq`` a part of the step; return the number of evicted tokens.

        Raises ``OutOfBlocksError`` if a shared block cannot be copied.
        """
        self._plans.append(plan_eviction(self.scheduler.manager, seq.id, self.budget.capacity))
        return self._plans[-1].num_evicted

    def _record(self, op: str, seq_id: SequenceId, child: SequenceId | None = None) -> None:
        self.event_log.append(SequenceEvent(op, seq_id, child))

    def _length(self, seq: Sequence) -> int:
        return held(self.scheduler.manager, seq.id)[0]


class BlockEviction(Eviction):
    """Eviction of whole blocks; no token is moved.

    The choice of blocks needs the scores, and an evicted block may go to another sequence in the same step. So the
    worker is asked while the step is planned. No step is being computed then; the host waits for the device
    nevertheless. The number of tokens that stay depends on a sequence's length alone, as with single tokens.
    """

    def __init__(self, budget: Budget, chunk: int, *, shares: bool, step_tokens: int | None = None):
        super().__init__(budget, chunk, shares=shares, step_tokens=step_tokens)
        self._dropped: list[SequenceId] = []

    def after(self, length: int) -> int:
        """Keep the last block, and as many others as fit into the capacity with it."""
        size = self.scheduler.manager.block_size
        # The last block has 1 to ``size`` tokens; the others are full.
        tail = (length - 1) % size + 1
        return tail + (self.budget.capacity - tail) // size * size

    def plan(self, seq: Sequence) -> int:
        """Evict the blocks of ``seq`` now. If the step is then abandoned, the sequence begins again."""
        assert self.worker is not None
        self._dropped.append(seq.id)
        return self.worker.drop_blocks(self.scheduler.manager, seq.id)

    def before_step(self, plan: StepPlan) -> None:
        super().before_step(plan)
        self._dropped = []

    def after_step(self, step: Step | None, tokens: Mapping[SequenceId, Seq[int]] | None) -> None:
        super().after_step(step, tokens)
        if step is None:
            self._dropped = []

    def unsettled(self, seq: Sequence, work: Mapping[str, Any]) -> bool:
        return seq.id in self._dropped
