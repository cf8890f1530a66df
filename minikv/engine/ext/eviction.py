"""Eviction: the scheduler's half of it. When a sequence evicts, how long it gets, and what the device is told.

How many tokens stay is decided here, which ones later, on the device: an eviction is a part of the next step that
serves the sequence, before its forward, and the host does not wait for it. A sequence stops for it at places that
follow from its own length alone, so that what it keeps depends neither on the batch around it nor on a preemption.
"""

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from minikv.engine.core.extension import Extension
from minikv.engine.core.sequence import Sequence, SequenceId, State
from minikv.engine.core.step import Step, StepPlan
from minikv.errors import check_count
from minikv.eviction.paged.plan import PlannedEviction, held, plan_eviction
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.choices import PerBlock, PolicyName, Scope, Unit, check_choices
from minikv.keywords import own_keywords

if TYPE_CHECKING:
    from minikv.engine.ext.eviction_worker import EvictionWorker
    from minikv.eviction.policies.policy import Policy


@own_keywords("EvictionConfig")
@dataclass(frozen=True)
class EvictionConfig:
    """What an ``LLM`` forgets: the layers that see everything keep ``n_sink + budget + n_recent`` tokens a sequence.

    ``policy``: a name of ``minikv.eviction.POLICIES``, or an object; there is no default. ``budget`` counts heavy
    hitters only; a sequence evicts when ``evict_every`` tokens came on top. ``scope``: the heads of a layer keep the
    same tokens ("layer"), or each its own ("head"). ``prefill_chunk``: of a prompt so many tokens are computed between
    two evictions (None: 512, or ``evict_every`` where that is more).

    ``unit`` "block" drops whole blocks and moves nothing, so what requests share they go on sharing. Of a block its
    best token counts, or with ``per_block="sum"`` all of them. At most the capacity stays; each time the device is
    waited for.
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


class Note(NamedTuple):
    """What the record of the cached tokens has to be told: ``op`` "add", "remove", "fork", "save" or "restore"."""

    op: str
    id: SequenceId
    child: SequenceId | None = None


class Eviction(Extension):
    """Plans the evictions of each step, in ``step.work`` as "evictions"; ``worker`` carries them out.

    A sequence never has more than ``peak`` tokens in a layer without a window, those of a forward included.
    ``shares``: whether requests may find each other's prefixes. A policy that looks at attention must not: what is
    found in the cache was looked at by another request, and how much is not known. ``journal`` is what the worker's
    record of cached tokens has not been told yet.
    """

    def __init__(self, budget: Budget, chunk: int, *, shares: bool):
        self.budget, self.chunk, self.shares = budget, chunk, shares
        self.peak: int = budget.peak_resident + chunk
        self.journal: deque[Note] = deque()
        self.worker: EvictionWorker | None = None
        self._plans: list[PlannedEviction] = []
        self._own = token_hex(8)  # no prefix file of another run may fit

    def salt(self, seq: Sequence, salt: str) -> str:
        if self.shares:
            return salt
        return "\0".join([salt, self._own, *map(str, seq.order), str(seq.num_preemptions)])

    def resident(self, num_tokens: int, seq: Sequence | None = None) -> int:
        in_prompt = seq is None or seq.num_computed < seq.num_prompt
        return min(num_tokens, self.peak if in_prompt else self.budget.peak_resident + 1)

    def limit(self, seq: Sequence, num_tokens: int) -> int:
        """Up to the next place where ``seq`` stops; where it is due, it evicts first."""
        if seq.state is not State.RUNNING:
            return min(num_tokens, self.stop(seq, 0))
        length, is_due = self._length(seq), self.is_due(seq)
        most = self.stop(seq, self.after(length) if is_due else length) - seq.num_computed
        if is_due:
            self.scheduler.changed("forget", seq, self.plan(seq))
        return min(num_tokens, most)

    def may_reserve(self, seq: Sequence) -> bool:
        """Only what is committed can be evicted: ``seq`` must not be due once the open step is done."""
        return self._length(seq) <= self.budget.peak_resident

    def may_move(self, seq: Sequence) -> bool:
        """Whether the blocks of ``seq`` hold what they should: no eviction is planned, or due."""
        return not (self.unsettled(seq, {}) or self.is_due(seq))

    def on_change(self, change: str, seq: Sequence | None, num_tokens: int, **facts: Any) -> None:
        """The worker's record follows: what begins, ends, is forked, or leaves the device and comes back."""
        if seq is None:
            return
        if change == "admit":
            self._note("add", seq.id)
        elif change == "fork":
            self._note("fork", seq.id, facts["child"].id)
        elif change == "restore":
            self._note("restore", seq.id)
        elif change == "preempt" and facts["kept"]:
            self._note("save", seq.id)
        elif change == "free" or (change == "drop" and seq.num_preemptions):  # the host may have its record
            self._note("remove", seq.id)

    def before_step(self, plan: StepPlan) -> None:
        if self._plans:
            plan.work["evictions"], self._plans = tuple(self._plans), []

    def after_step(self, step: Step | None, tokens: Mapping[SequenceId, Seq[int]] | None) -> None:
        if step is None:
            self._plans = []

    def unsettled(self, seq: Sequence, work: Mapping[str, Any]) -> bool:
        return any(plan.seq_id == seq.id for plan in (*self._plans, *work.get("evictions", ())))

    def before_copies(self, step: Step) -> None:
        if self.worker is not None:
            self.worker.before_copies(step)

    def on_batch(self, step: Step, batch: Any) -> Any:
        return batch if self.worker is None else replace(batch, observer=self.worker.observer(step))

    @property
    def record_bytes(self) -> int:
        """Bytes of the worker's record of cached tokens."""
        return 0 if self.worker is None else self.worker.evictor.records.nbytes

    def after(self, length: int) -> int:
        """How many of ``length`` tokens an eviction leaves."""
        return self.budget.capacity

    def stop(self, seq: Sequence, length: int) -> int:
        """The position before which the tokens that ``seq`` computes next have to end; it holds ``length`` tokens.

        In a prompt a chunk later than the peak, and at its end; in what was generated at the peak. Where an eviction is
        due it is no further than ``seq`` has come.
        """
        peak, computed = self.budget.peak_resident, seq.num_computed
        if computed < seq.num_prompt:
            return min(seq.num_prompt, computed + peak + self.chunk - length)
        return computed + peak + 1 - length if length <= peak else computed

    def is_due(self, seq: Sequence) -> bool:
        """Whether ``seq``, which runs, evicts before it computes more."""
        length = self._length(seq)
        return length > self.budget.peak_resident and self.stop(seq, length) <= seq.num_computed

    def plan(self, seq: Sequence) -> int:
        """The eviction of ``seq`` is a part of the step; returns how many tokens go.

        Raises ``OutOfBlocksError`` where a block that others share cannot be copied.
        """
        self._plans.append(plan_eviction(self.scheduler.manager, seq.id, self.budget.capacity))
        return self._plans[-1].num_evicted

    def _note(self, op: str, seq_id: SequenceId, child: SequenceId | None = None) -> None:
        self.journal.append(Note(op, seq_id, child))

    def _length(self, seq: Sequence) -> int:
        return held(self.scheduler.manager, seq.id)[0]


class BlockEviction(Eviction):
    """Whole blocks go, and nothing is moved.

    Which blocks go only the scores say, and a block that goes may belong to another sequence in the same step: so the
    worker is asked while the step is planned. No step is being computed then, and the device is waited for all the
    same. How many tokens stay follows from a sequence's length alone, as with single tokens.
    """

    def __init__(self, budget: Budget, chunk: int, *, shares: bool):
        super().__init__(budget, chunk, shares=shares)
        self._dropped: list[SequenceId] = []

    def after(self, length: int) -> int:
        """The last block stays, and as many others as fit into the capacity with it."""
        size = self.scheduler.manager.block_size
        tail = (length - 1) % size + 1
        return tail + (self.budget.capacity - tail) // size * size

    def plan(self, seq: Sequence) -> int:
        """The blocks of ``seq`` go now, not with the step: should that not come, the sequence begins again."""
        assert self.worker is not None
        self._dropped.append(seq.id)
        return self.worker.drop_blocks(self.scheduler.manager, seq.id)

    def before_step(self, plan: StepPlan) -> None:
        self._dropped = []

    def after_step(self, step: Step | None, tokens: Mapping[SequenceId, Seq[int]] | None) -> None:
        if step is None:
            self._dropped = []

    def unsettled(self, seq: Sequence, work: Mapping[str, Any]) -> bool:
        return seq.id in self._dropped
