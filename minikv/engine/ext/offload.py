"""Offload: plans the copies of a step to and from host memory, and decides between a swap and a recompute.

The transfers of a step are planned with it and carried out before its forward: first out, then in. Until the step has
ended nothing that it transfers can be found on the host, and never if it fails. The pairs of (device block, host block)
are in ``step.work`` as "swap_out" and "swap_in", for each KV cache group.
"""

from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from minikv.blocks import NULL_BLOCK, BlockManager, Swap
from minikv.engine.core.extension import Extension
from minikv.engine.core.sequence import Sequence, SequenceId
from minikv.engine.core.step import Step, StepPlan
from minikv.engine.ext.events import check_block_bytes
from minikv.errors import ArgumentError, OutOfBlocksError
from minikv.plan.preemption import TransferRates, cheaper_to_swap, recompute_seconds, swap_seconds

if TYPE_CHECKING:
    from minikv.engine.core.scheduler import Scheduler
    from minikv.engine.ext.host import Host

Transfers = tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True)
class Cost:
    """Two ways to take a sequence's blocks away: ``num_bytes`` out and in, or ``tokens`` to compute again."""

    num_bytes: int
    tokens: int
    swap_seconds: float
    recompute_seconds: float

    @property
    def swaps(self) -> bool:
        return self.swap_seconds < self.recompute_seconds


class Offload(Extension):
    """Preempted sequences and evicted prefix blocks go to host memory, where a transfer costs less than a prefill.

    ``block_bytes`` are the bytes of a block of each KV cache group. Without ``rates``, which may be set after the
    scheduler is made, every preemption recomputes, and nothing goes to the host. ``host`` carries the transfers out;
    None: nothing does, as in a simulation. ``may_move`` returns whether the blocks of a sequence are complete; None:
    always. Its own changes are swap_in, restore (both for a sequence that comes back) and save (for prefix blocks).
    Raises ``ArgumentError`` for rates without host blocks or ``block_bytes``.
    """

    def __init__(
        self,
        block_bytes: Seq[int] | None = None,
        rates: TransferRates | None = None,
        may_move: Callable[[Sequence], bool] | None = None,
    ):
        self.block_bytes, self._may_move = block_bytes, may_move
        self.host: Host | None = None
        self._left: list[Sequence] = []  # sequences that the open step swaps out
        self._returned: list[Sequence] = []  # sequences that the open step brings back
        self._out: list[Swap] = []
        self._back: list[Transfers] = []
        self._rates = rates

    def attach(self, scheduler: "Scheduler") -> None:
        super().attach(scheduler)
        check_block_bytes(self.block_bytes, len(scheduler.manager.pools))
        self.rates = self._rates

    @property
    def rates(self) -> TransferRates | None:
        """The speeds of transfers and prefills on this machine; None: unknown, and every preemption recomputes."""
        return self._rates

    @rates.setter
    def rates(self, rates: TransferRates | None) -> None:
        manager = self.scheduler.manager
        if rates is not None:
            if not isinstance(rates, TransferRates):
                raise ArgumentError("offload_rates", value=type(rates).__name__)
            if not manager.host_pools or self.block_bytes is None:
                raise ArgumentError("offload_rates_unused")
        self._rates = rates
        # A block is worth saving if two transfers cost less than computing its tokens again.
        saves = rates is not None and cheaper_to_swap(sum(self.block_bytes or ()), manager.block_size, rates)
        if saves != (manager.pools[0].reclaimed is not None):
            manager.keep_reclaimed(saves)

    def keep(self, seq: Sequence, facts: dict[str, Any]) -> bool:
        """Swap ``seq`` out, unless a recompute is cheaper or the host has no room."""
        cost = self._cost(seq)
        if cost is None:
            return False
        moved = self._swap_out(seq) if cost.swaps else None
        facts["how"] = "recompute" if moved is None else "swap"
        facts["swap_seconds"], facts["recompute_seconds"] = cost.swap_seconds, cost.recompute_seconds
        if moved is not None:
            facts["moved"] = moved
        return moved is not None

    def resume(self, seq: Sequence, plan: StepPlan) -> bool:
        """Give a swapped sequence device blocks to go on with; False if it has to wait longer."""
        room = self._room_to_return(seq)
        if room < 1:
            return False
        swap = self.scheduler.manager.plan_swap_in(seq.id)
        self._back.append(swap.pairs)
        self._returned.append(seq)
        self.scheduler.changed("swap_in", seq, seq.num_computed, blocks=_count(swap.pairs))
        self.scheduler.start(seq)
        self.scheduler.changed("restore", seq)
        self.scheduler.place(plan, seq, min(seq.missing, plan.budget, room))
        return True

    def on_change(self, change: str, seq: Sequence | None, num_tokens: int, **facts: Any) -> None:
        if seq is None:
            return
        if change == "drop":
            self._drop(seq)
        elif change == "admit":
            if facts["found"].loads:  # prefix blocks that were found on the host
                self._back.append(facts["found"].loads)
            if seq.num_cached is None:
                seq.figures["num_loaded"] = facts["found"].num_loaded

    def before_step(self, plan: StepPlan) -> None:
        """Save prefix blocks that the step's allocations overwrite to the host too."""
        swap = self.scheduler.manager.plan_save()
        self._out.append(swap)
        if any(blocks := _count(swap.pairs)):
            self.scheduler.changed("save", None, blocks=blocks)
        num_groups = len(self.scheduler.manager.pools)
        out = [each.pairs for each in self._out]
        for way, moves in (("swap_out", out), ("swap_in", self._back)):
            if pairs := _joined(moves, num_groups):
                plan.work[way] = pairs
        self._out, self._back = [], []

    def after_step(self, step: Step | None, tokens: Mapping[SequenceId, Seq[int]] | None) -> None:
        """End the step's transfers. If it failed, its swapped blocks may never have been written: they are computed
        again.
        """
        manager = self.scheduler.manager
        if step is not None and tokens is None and self.host is not None:
            with suppress(RuntimeError):  # a failed device writes nothing any more
                # Else a copy in progress may write blocks that the next step gives to others
                self.host.pool.synchronize()
        manager.complete_transfers(tokens is not None)
        if tokens is None:
            manager.keep_reclaimed(manager.pools[0].reclaimed is not None)
            for seq in self._left:
                self._drop(seq)
        self._left, self._returned, self._out, self._back = [], [], [], []

    def unsettled(self, seq: Sequence, work: Mapping[str, Any]) -> bool:
        return seq in self._returned

    def before_writes(self, step: Step) -> None:
        if self.host is not None and "swap_out" in step.work:
            self.host.swap_out(step.work["swap_out"])

    def before_copies(self, step: Step) -> None:
        if self.host is not None and "swap_in" in step.work:
            self.host.swap_in(step.work["swap_in"])

    def after_forward(self, step: Step, seconds: float) -> None:
        """Measure the speed of a recompute from a prefill."""
        rates = None if self.host is None else self.host.rates_after(step, seconds)
        if rates is not None:
            self.rates = rates

    def _cost(self, seq: Sequence) -> Cost | None:
        """Return the cost to preempt ``seq`` and bring it back; None where only a recompute is possible."""
        manager = self.scheduler.manager
        if (
            self._rates is None
            or self.block_bytes is None
            or not (self._may_move is None or self._may_move(seq))
        ):
            return None
        groups = range(len(manager.pools))
        held = [[block for block in manager.block_table(seq.id, group) if block >= 0] for group in groups]
        num_bytes = sum(len(blocks) * size for blocks, size in zip(held, self.block_bytes, strict=True))
        tokens = lost_tokens(manager, seq)
        seconds = swap_seconds(num_bytes, self._rates), recompute_seconds(tokens, self._rates)
        return Cost(num_bytes, tokens, *seconds)

    def _swap_out(self, seq: Sequence) -> tuple[int, ...] | None:
        """Move the blocks of ``seq`` to the host; return the transferred blocks of each group, None without room."""
        try:
            swap = self.scheduler.manager.plan_swap_out(seq.id)
        except OutOfBlocksError:
            return None
        self._out.append(swap)
        self._left.append(seq)
        return _count(swap.pairs)

    def _room_to_return(self, seq: Sequence) -> int:
        """Return how many tokens a swapped sequence could compute now; 0 or less: it has to wait longer.

        Beside others it waits until all of its tokens fit, like a new sequence.
        """
        scheduler, manager = self.scheduler, self.scheduler.manager
        size, rooms = manager.block_size, []
        held = manager.host_blocks_of(seq.id)
        tail = -seq.num_computed % size
        for number, (pool, group) in enumerate(zip(manager.pools, manager.kv_cache_groups, strict=True)):
            if scheduler.running_sequences:
                need = max(held[number], scheduler.peak(seq, group.window)) + len(seq.pending)
                if need > pool.num_free - scheduler.rules.owed_blocks(scheduler, number):
                    return 0
            rooms.append(pool.num_free - held[number])
            tail = min(tail, -(seq.num_computed - manager.num_evicted(seq.id, number)) % size)
        return tail + size * min(rooms)

    def _drop(self, seq: Sequence) -> None:
        """Drop the host blocks of ``seq``, if it has any."""
        if seq.id in self.scheduler.manager.host_blocks:
            self.scheduler.manager.free(seq.id)
            seq.num_computed = seq.num_placed = 0


class PrefillSpeed:
    """Tokens a second of an engine's own prefills, from steps that were almost only prefill and moved no blocks.

    A step has a minimum time: one that computes the end of a cached prompt says nothing about a recompute. So steps of
    one size, within a factor of two, are taken together, and the fastest size counts. Each size counts with the median
    of its last steps, because the first ones compile kernels and warm up.
    """

    def __init__(self, last: int = 9):
        self._keep = last
        self._of_size: dict[int, deque[float]] = {}

    def after(self, step: Step, seconds: float) -> float | None:
        """Return the speed after ``step`` took ``seconds``; None before the first prefill."""
        # A step with transfers is left out: their seconds are not the prefill's.
        moved = {"swap_out", "swap_in"} & step.work.keys()
        if seconds > 0 and not moved and step.num_decode * 10 < step.num_tokens:
            last = self._of_size.setdefault(step.num_tokens.bit_length(), deque(maxlen=self._keep))
            last.append(step.num_tokens / seconds)
        return max((median(last) for last in self._of_size.values()), default=None)


def _count(pairs: Transfers) -> tuple[int, ...]:
    return tuple(len(of_group) for of_group in pairs)


def _joined(swaps: list[Transfers], num_groups: int) -> Transfers:
    joined = tuple(tuple(pair for pairs in swaps for pair in pairs[group]) for group in range(num_groups))
    return joined if any(joined) else ()


def lost_tokens(manager: BlockManager, seq: Sequence) -> int:
    """Return the tokens of ``seq`` that would be computed again: those behind its leading shared blocks.

    Tokens behind a window count as lost: their blocks may have been reused.
    """
    tables = [manager.block_table(seq.id, group) for group in range(len(manager.pools))]
    kept = 0
    for blocks in zip(*tables, strict=True):
        held = zip(manager.pools, blocks, strict=True)
        if any(block == NULL_BLOCK or pool.ref_count(block) == 1 for pool, block in held):
            break
        kept += 1
    return max(0, seq.num_computed - kept * manager.block_size)
