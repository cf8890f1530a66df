"""Who owns which block: the pool, the block tables of the sequences, and the prefixes that they share. No torch."""

from minikv.blocks.book import PoolKind
from minikv.blocks.manager import Allocation, BlockManager
from minikv.blocks.pool import NULL_BLOCK, BlockPool, PoolStats
from minikv.blocks.prefix import Match, child_digest, root_digest
from minikv.blocks.relocation import Compaction, Copy
from minikv.blocks.sequence import UNKNOWN
from minikv.blocks.stats import ManagerStats
from minikv.blocks.swap import Swap

__all__ = [
    "NULL_BLOCK",
    "UNKNOWN",
    "Allocation",
    "BlockManager",
    "BlockPool",
    "Compaction",
    "Copy",
    "ManagerStats",
    "Match",
    "PoolKind",
    "PoolStats",
    "Swap",
    "child_digest",
    "root_digest",
]
