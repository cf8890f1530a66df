"""What a block manager's memory is doing: blocks by state, prefix hits, internal fragmentation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minikv.blocks.pool import BlockPool, PoolStats
from minikv.blocks.sequence import SequenceState


@dataclass(frozen=True)
class ManagerStats:
    """``pools`` and ``wasted_slots`` have one entry for each kind of layer.

    ``wasted_slots`` is internal fragmentation: the slots of used blocks that hold no token (a shared block is
    counted once). ``asked_tokens`` were given to ``allocate``, and ``hit_tokens`` of them were cached.
    """

    sequences: int
    pools: tuple[PoolStats, ...]
    wasted_slots: tuple[int, ...]
    block_size: int
    asked_tokens: int
    hit_tokens: int

    @property
    def hit_rate(self) -> float:
        """Cached tokens per token asked for; 0 before the first request."""
        return self.hit_tokens / self.asked_tokens if self.asked_tokens else 0.0

    def fragmentation(self, kind: int = 0) -> float:
        """The share of the used slots that hold no token."""
        used = self.pools[kind].used * self.block_size
        return self.wasted_slots[kind] / used if used else 0.0


def wasted_slots(pool: BlockPool, kind: int, sequences: Iterable[SequenceState]) -> int:
    """Slots of used blocks of ``kind`` that hold no token of any sequence."""
    size = pool.block_size
    filled: dict[int, int] = {}
    for seq in sequences:
        table, length = seq.tables[kind], seq.length(kind)
        for place in range(table.first, len(table.blocks)):
            block = table.blocks[place]
            filled[block] = max(filled.get(block, 0), min(size, length - place * size))
    return sum(size - held for held in filled.values())


def manager_stats(
    pools: Sequence[BlockPool], sequences: Sequence[SequenceState], asked: int, hit: int
) -> ManagerStats:
    return ManagerStats(
        sequences=len(sequences),
        pools=tuple(pool.stats() for pool in pools),
        wasted_slots=tuple(wasted_slots(pool, kind, sequences) for kind, pool in enumerate(pools)),
        block_size=pools[0].block_size,
        asked_tokens=asked,
        hit_tokens=hit,
    )
