"""HostMemory: the use of an LLM's host memory by sequences and prefixes. Lesson 12."""

from collections.abc import Sequence
from dataclasses import dataclass

from minikv.blocks.pool import BlockPool
from minikv.cache.offload import HostPool
from minikv.memory.resident import extents, resident_bytes


@dataclass(frozen=True)
class HostMemory:
    """Bytes between two steps; sequences', prefixes' and empty blocks add up to ``num_bytes``.

    ``sequence_bytes``: blocks of swapped sequences, also those that a prompt could find. ``prefix_bytes``: blocks
    without a sequence that a prompt could find; they are overwritten when room is needed. ``present_bytes``: the part
    of ``num_bytes`` in physical memory. On a CPU a page is allocated when it is first written; ``pinned`` memory,
    beside a GPU, is present from the start.
    """

    num_bytes: int
    sequence_bytes: int
    prefix_bytes: int
    present_bytes: int
    pinned: bool

    @property
    def empty_bytes(self) -> int:
        """Blocks without content."""
        return self.num_bytes - self.sequence_bytes - self.prefix_bytes


def host_memory(pool: HostPool, blocks: Sequence[BlockPool]) -> HostMemory:
    """Return the use of ``pool`` now; ``blocks`` count its blocks by state, one for each KV cache group.

    Call it between two steps: within a step, the blocks of its transfers count as the sequences'.
    """
    sizes = [group.block_bytes(pool.cache.block_size) for group in pool.cache.kv_cache_groups]
    counts = [each.stats() for each in blocks]
    present = None if pool.pinned else resident_bytes(extents(pool.tensors()))
    return HostMemory(
        num_bytes=pool.nbytes,
        sequence_bytes=sum(size * each.used for size, each in zip(sizes, counts, strict=True)),
        prefix_bytes=sum(size * each.cached for size, each in zip(sizes, counts, strict=True)),
        present_bytes=pool.nbytes if present is None else present,
        pinned=pool.pinned,
    )
