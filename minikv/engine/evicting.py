"""Evicting: the scheduler's half of eviction. When a sequence evicts, how long it gets, and what the device is told.

How many tokens stay is decided here, which ones later, on the device: an eviction is a part of the next step that
serves the sequence, before its forward, and nobody waits for it. A sequence stops for it at places that follow from its
own length alone, so that what it keeps depends neither on who runs beside it nor on a preemption.
"""

from collections import deque
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple

from minikv.blocks import BlockManager
from minikv.engine.sequence import Sequence, SequenceId
from minikv.errors import check_count
from minikv.eviction.paged.plan import PlannedEviction, held, kinds_without_window, plan_eviction
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.choices import PerBlock, PolicyName, Scope, Unit, check_choices
from minikv.keywords import own_keywords

if TYPE_CHECKING:
    from minikv.eviction.policies.policy import Policy


@own_keywords("EvictionParams")
@dataclass(frozen=True)
class EvictionParams:
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


class Keeping:
    """What a scheduler asks, where nothing is ever evicted: a sequence keeps all its tokens."""

    evicts = False
    most_resident: int | None = None

    def salt(self, seq: Sequence) -> str:
        """Under which ``seq`` looks for cached prefixes, and publishes its own."""
        return seq.salt

    def lost(self, seq: Sequence) -> int:
        """How many tokens eviction has taken from ``seq``, which runs or lies on the host."""
        return 0

    def most_tokens(self, seq: Sequence, num_tokens: int) -> int:
        """How many of ``num_tokens`` tokens ``seq`` has at most at once in a layer without a window."""
        return num_tokens

    def first_stop(self, seq: Sequence) -> int:
        """The position before which the first tokens of ``seq``, which waits, have to end."""
        return len(seq.tokens)

    def until_stop(self, seq: Sequence) -> int:
        """How many tokens ``seq``, which runs, may compute now, once it has evicted if it is due."""
        return len(seq.tokens)

    def is_due(self, seq: Sequence) -> bool:
        """Whether ``seq``, which runs, evicts before it computes more."""
        return False

    def is_full(self, seq: Sequence) -> bool:
        """Whether ``seq`` evicts before its next token, once those that a step computes are there."""
        return False

    def is_planned(self, seq: Sequence) -> bool:
        """Whether the step that is being planned evicts from ``seq``: its blocks hold what they should only then."""
        return False

    def plan(self, seq: Sequence) -> int:
        """The eviction of ``seq`` is a part of the step; returns how many tokens go."""
        return 0

    def note(self, op: str, seq_id: SequenceId, child: SequenceId | None = None) -> None:
        """Let the record know, before the next forward."""

    def take(self) -> tuple[PlannedEviction, ...]:
        """The evictions of the step that begins, or of one that does not."""
        return ()


class Evicting(Keeping):
    """Plans the evictions of each step; ``journal`` is what the record has not been told yet.

    A sequence never has more than ``most_resident`` tokens in a layer without a window, those of a forward included.
    ``shares``: whether requests may find each other's prefixes. A policy that looks at attention must not: what is
    found in the cache was looked at by somebody else, and nobody knows how much.
    """

    evicts = True

    def __init__(self, manager: BlockManager, budget: Budget, chunk: int, *, shares: bool):
        self.manager, self.budget, self.chunk, self.shares = manager, budget, chunk, shares
        self.most_resident: int = budget.peak_resident + chunk
        self.journal: deque[Note] = deque()
        self._plans: list[PlannedEviction] = []
        self._kind = kinds_without_window(manager)[0]
        self._own = token_hex(8)  # no prefix file of another run may fit

    def salt(self, seq: Sequence) -> str:
        if self.shares:
            return seq.salt
        return "\0".join([seq.salt, self._own, *map(str, seq.order), str(seq.num_preemptions)])

    def lost(self, seq: Sequence) -> int:
        return self.manager.num_evicted(seq.id, self._kind)

    def most_tokens(self, seq: Sequence, num_tokens: int) -> int:
        in_prompt = seq.num_computed < seq.num_prompt
        return min(num_tokens, self.most_resident if in_prompt else self.budget.peak_resident + 1)

    def first_stop(self, seq: Sequence) -> int:
        return self.stop(seq, 0)

    def until_stop(self, seq: Sequence) -> int:
        length = self._length(seq)
        length = self.after(length) if self.is_due(seq) else length
        return self.stop(seq, length) - seq.num_computed

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
        length = self._length(seq)
        return length > self.budget.peak_resident and self.stop(seq, length) <= seq.num_computed

    def is_full(self, seq: Sequence) -> bool:
        return self._length(seq) > self.budget.peak_resident

    def is_planned(self, seq: Sequence) -> bool:
        return any(plan.seq_id == seq.id for plan in self._plans)

    def plan(self, seq: Sequence) -> int:
        """As above. Raises ``OutOfBlocksError`` where a block that others share cannot be copied."""
        self._plans.append(plan_eviction(self.manager, seq.id, self.budget.capacity))
        return self._plans[-1].num_evicted

    def note(self, op: str, seq_id: SequenceId, child: SequenceId | None = None) -> None:
        self.journal.append(Note(op, seq_id, child))

    def take(self) -> tuple[PlannedEviction, ...]:
        plans, self._plans = tuple(self._plans), []
        return plans

    def _length(self, seq: Sequence) -> int:
        return held(self.manager, seq.id)[0]
