"""The bookkeeping of an eviction in blocks, before any token moves. No torch: a scheduler plans it. Lesson 14.

The plan says how many tokens stay. Which tokens stay is chosen later, on the device, when an ``EvictionRunner`` carries
the plan out. Until then nothing may be written to the blocks that the plan has freed.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from minikv.blocks import BlockManager, Compaction
from minikv.errors import OutOfBlocksError


@dataclass(frozen=True)
class EvictionPlan:
    """An eviction from a sequence of ``length`` tokens; ``compactions`` say how many stay in each KV cache group.

    ``evicted``: how many tokens it had lost before.
    """

    seq_id: Hashable
    length: int
    evicted: int
    compactions: dict[int, Compaction]

    @property
    def num_evicted(self) -> int:
        """The number of tokens to evict, in each layer."""
        return self.length - next(iter(self.compactions.values())).num_tokens

    @property
    def num_copies(self) -> int:
        """The blocks that are copied first, because other sequences share them."""
        return sum(len(each.copies) for each in self.compactions.values())


def groups_without_window(manager: BlockManager) -> list[int]:
    """Return the KV cache groups that need eviction; the others keep a window."""
    return [number for number, group in enumerate(manager.kv_cache_groups) if group.window is None]


def held(manager: BlockManager, seq_id: Hashable) -> tuple[int, int]:
    """Return how many tokens a sequence holds in every group without a window, and how many it has lost there."""
    length = manager.length(seq_id, groups_without_window(manager)[0])
    return length, manager.num_tokens(seq_id) - length


def plan_eviction(manager: BlockManager, seq_id: Hashable, keep: int) -> EvictionPlan:
    """Plan to keep ``keep`` tokens of a sequence in every group without a window, or raise; it holds at least as many.

    Raises ``OutOfBlocksError`` if shared blocks cannot be copied, ``ArgumentError`` as ``compact`` does.
    """
    length, evicted = held(manager, seq_id)
    groups, kept = groups_without_window(manager), -(-keep // manager.block_size)
    for group in groups:
        pool = manager.pools[group]
        shared = sum(pool.ref_count(block) > 1 for block in manager.block_table(seq_id, group)[:kept])
        if shared > pool.num_free and keep < length:
            free, fits = pool.num_free, pool.num_free * pool.block_size
            raise OutOfBlocksError("out_of_blocks", asked=shared, free=free, total=pool.num_blocks, fits=fits)
    return EvictionPlan(
        seq_id, length, evicted, {group: manager.compact(seq_id, keep, group) for group in groups}
    )
