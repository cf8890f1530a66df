"""Offload: what of a step goes to host memory, what comes back, and what decides between a swap and a recompute.

The transfers of a step are planned with it and carried out before its forward: first out, then in. Until the step has
ended nothing that it transfers can be found on the host, and if it fails nothing of it ever is.
"""

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from statistics import median

from minikv.blocks import BlockManager, Swap
from minikv.engine.capacity import lost_tokens
from minikv.engine.sequence import Sequence
from minikv.engine.step import Step, Transfers
from minikv.errors import ArgumentError, OutOfBlocksError
from minikv.plan.preemption import TransferRates, cheaper_to_swap, recompute_seconds, swap_seconds


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


class Offload:
    """The host's part in the step that is being planned or computed. Without ``rates`` nothing goes to the host.

    ``block_bytes`` are the bytes of a block of each kind. Sequences that the step swaps out are in ``left``, those
    that it brings back in ``returned``. Raises ``ArgumentError`` for rates without host blocks or ``block_bytes``.
    """

    def __init__(
        self, manager: BlockManager, block_bytes: Seq[int] | None = None, rates: TransferRates | None = None
    ):
        self.manager = manager
        self.left: list[Sequence] = []
        self.returned: list[Sequence] = []
        self._block_bytes = block_bytes
        self._out: list[Swap] = []
        self._back: list[Transfers] = []
        self._rates: TransferRates | None = None
        self.rates = rates

    @property
    def rates(self) -> TransferRates | None:
        """What transfers and prefills take on this machine; None: not known, and every preemption recomputes."""
        return self._rates

    @rates.setter
    def rates(self, rates: TransferRates | None) -> None:
        if rates is not None:
            if not isinstance(rates, TransferRates):
                raise ArgumentError("offload_rates", value=type(rates).__name__)
            if not self.manager.host_pools or self._block_bytes is None:
                raise ArgumentError("offload_rates_unused")
        self._rates = rates
        # A block is worth saving where it is cheaper to move it twice than to compute its tokens again.
        saves = rates is not None and cheaper_to_swap(
            sum(self._block_bytes or ()), self.manager.block_size, rates
        )
        if saves != (self.manager.pools[0].reclaimed is not None):
            self.manager.keep_reclaimed(saves)

    def cost(self, seq: Sequence) -> Cost | None:
        """What it costs to preempt ``seq`` and to bring it back; None where only a recompute can be had."""
        if self._rates is None or self._block_bytes is None:
            return None
        kinds = range(len(self.manager.pools))
        held = [[block for block in self.manager.block_table(seq.id, kind) if block >= 0] for kind in kinds]
        num_bytes = sum(len(blocks) * size for blocks, size in zip(held, self._block_bytes, strict=True))
        tokens = lost_tokens(self.manager, seq)
        seconds = swap_seconds(num_bytes, self._rates), recompute_seconds(tokens, self._rates)
        return Cost(num_bytes, tokens, *seconds)

    def swap_out(self, seq: Sequence) -> tuple[int, ...] | None:
        """Give the device blocks of ``seq`` away: the blocks of each kind that are transferred, None without room."""
        try:
            swap = self.manager.plan_swap_out(seq.id)
        except OutOfBlocksError:
            return None
        self._out.append(swap)
        self.left.append(seq)
        seq.swapped = True
        return _count(swap.pairs)

    def swap_in(self, seq: Sequence) -> tuple[int, ...]:
        """``seq`` has device blocks again: so many of each kind."""
        swap = self.manager.plan_swap_in(seq.id)
        self._back.append(swap.pairs)
        self.returned.append(seq)
        seq.swapped = False
        return _count(swap.pairs)

    def load(self, pairs: Transfers) -> None:
        """Prefix blocks that ``allocate`` found on the host."""
        if pairs:
            self._back.append(pairs)

    def save_evicted(self) -> tuple[int, ...]:
        """Prefix blocks that the step's allocations will overwrite go to the host: so many of each kind."""
        swap = self.manager.plan_save()
        self._out.append(swap)
        return _count(swap.pairs)

    def transfers(self) -> tuple[Transfers, Transfers]:
        """(out, in) of the step: for each kind pairs of (device block, host block); () where nothing moves."""
        kinds = len(self.manager.pools)
        return _joined([swap.pairs for swap in self._out], kinds), _joined(self._back, kinds)

    def settle(self, arrived: bool) -> None:
        """The step has ended. If it failed, what it swapped out was perhaps never written: it computes again."""
        self.manager.complete_transfers(arrived)
        if not arrived:
            self.manager.keep_reclaimed(self.manager.pools[0].reclaimed is not None)
            for seq in self.left:
                self.drop(seq)
        self.left, self.returned, self._out, self._back = [], [], [], []

    def drop(self, seq: Sequence) -> None:
        """If ``seq`` lies on the host, it does so no more."""
        if seq.swapped:
            self.manager.free(seq.id)
            seq.swapped, seq.num_computed, seq.num_placed = False, 0, 0


class PrefillSpeed:
    """Tokens a second of an engine's own prefills, from the steps that were little else and moved no blocks.

    A step takes its time however few tokens it has: one that computes the end of a cached prompt says nothing of a
    recompute. So steps of one size, within a factor of two, are taken together, and the fastest size counts. Of each
    size the median of its last steps, because the first ones compile kernels and warm up.
    """

    def __init__(self, last: int = 9):
        self._keep = last
        self._of_size: dict[int, deque[float]] = {}

    def after(self, step: Step, seconds: float) -> float | None:
        """The speed once ``step`` has taken ``seconds``; None before the first prefill."""
        moved = step.swap_out or step.swap_in  # the transfers' seconds are counted on the other side
        if seconds > 0 and not moved and step.num_decode * 10 < step.num_tokens:
            last = self._of_size.setdefault(step.num_tokens.bit_length(), deque(maxlen=self._keep))
            last.append(step.num_tokens / seconds)
        return max((median(last) for last in self._of_size.values()), default=None)


def _count(pairs: Transfers) -> tuple[int, ...]:
    return tuple(len(of_kind) for of_kind in pairs)


def _joined(swaps: list[Transfers], kinds: int) -> Transfers:
    joined = tuple(tuple(pair for pairs in swaps for pair in pairs[kind]) for kind in range(kinds))
    return joined if any(joined) else ()
