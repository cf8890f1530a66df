"""Swapping: the bookkeeping of sequences whose blocks are in host memory."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from minikv.blocks.pool import BlockPool
from minikv.blocks.sequence import SequenceState
from minikv.errors import ArgumentError, OutOfBlocks, UnknownNameError, check_count


@dataclass(frozen=True)
class Swap:
    """What the storage has to transfer: for each kind of layer, pairs of (device block, host block)."""

    pairs: tuple[tuple[tuple[int, int], ...], ...]


class HostBlocks:
    """The host's pools, ``num_blocks`` of each kind, and the sequences that lie there.

    ``in_transit`` are the sequences that are being transferred: nobody may touch them meanwhile.
    """

    def __init__(self, kinds: int, num_blocks: int, block_size: int):
        check_count("host_blocks", num_blocks, least=0)
        self.pools = tuple(BlockPool(num_blocks, block_size) for _ in range(kinds)) if num_blocks else ()
        self.sequences: dict[Hashable, SequenceState] = {}
        self.in_transit: set[Hashable] = set()

    def __contains__(self, seq_id: Hashable) -> bool:
        try:
            return seq_id in self.sequences or seq_id in self.in_transit
        except TypeError:  # a list, or what else cannot be the key of a dict
            return False

    def get(self, seq_id: Hashable) -> SequenceState:
        """The sequence, if it lies here and nobody is transferring it."""
        if seq_id not in self:
            raise UnknownNameError("not_swapped", sequence=seq_id, count=len(self.sequences))
        if seq_id in self.in_transit:
            raise ArgumentError("sequence_in_transit", sequence=seq_id)
        return self.sequences[seq_id]

    def allocate(self, seq: SequenceState) -> list[list[int]]:
        """Host blocks for all that ``seq`` holds, in every kind or in none.

        Raises ``OutOfBlocks``; ``ArgumentError`` where the manager was made without host blocks.
        """
        if not self.pools:
            raise ArgumentError("no_host_blocks", sequence=seq.id)
        return allocate_all(self.pools, [len(table.live()) for table in seq.tables])

    def free(self, blocks: Sequence[Sequence[int]]) -> None:
        for pool, of_kind in zip(self.pools, blocks, strict=True):
            pool.free(of_kind)


def allocate_all(pools: Sequence[BlockPool], counts: Sequence[int]) -> list[list[int]]:
    """``counts[i]`` blocks of ``pools[i]``, of all pools or of none. Raises ``OutOfBlocks``."""
    for pool, count in zip(pools, counts, strict=True):
        if count > pool.num_free:
            fits = pool.num_free * pool.block_size
            raise OutOfBlocks(
                "out_of_blocks", asked=count, free=pool.num_free, total=pool.num_blocks, fits=fits
            )
    return [pool.allocate(count) for pool, count in zip(pools, counts, strict=True)]
