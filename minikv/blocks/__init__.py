"""The blocks of each sequence: the pool, block tables, and the prefixes that sequences share. No torch."""

from minikv.blocks.compaction import Compaction, Copy
from minikv.blocks.host_blocks import HostBlocks, Swap
from minikv.blocks.manager import Allocation, BlockManager, KVCacheGroup
from minikv.blocks.pool import NULL_BLOCK, BlockPool, PoolStats
from minikv.blocks.prefix import Match, child_digest, root_digest
from minikv.blocks.stats import ManagerStats
from minikv.blocks.tables import UNKNOWN, slots_of

__all__ = [
    "NULL_BLOCK",
    "UNKNOWN",
    "Allocation",
    "BlockManager",
    "BlockPool",
    "Compaction",
    "Copy",
    "HostBlocks",
    "KVCacheGroup",
    "ManagerStats",
    "Match",
    "PoolStats",
    "Swap",
    "child_digest",
    "root_digest",
    "slots_of",
]
