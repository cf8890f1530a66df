"""HostBlocks: the bookkeeping of sequences and prefix blocks in host memory.

manager = BlockManager(8, 16, host_blocks=HostBlocks(32, 16))
"""

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from minikv.blocks.pool import NULL_BLOCK, BlockPool, Content
from minikv.blocks.prefix import Match, chunks, find_prefix
from minikv.blocks.tables import SequenceBlocks
from minikv.errors import ArgumentError, OutOfBlocksError, UnknownNameError, check_count


@dataclass(frozen=True)
class Swap:
    """The transfers for the storage: for each KV cache group, pairs of (device block, host block)."""

    pairs: tuple[tuple[tuple[int, int], ...], ...]


class HostBlocks:
    """``num_blocks`` host blocks of ``block_size`` tokens for each of ``num_kv_cache_groups`` groups, for one manager.

    ``pools`` is empty if ``num_blocks`` is 0. ``sequences`` are the swapped ones, and ``in_transit`` those that are
    being transferred. Raises ``ArgumentError`` for invalid counts.

    A step's transfers are planned before they are carried out. Until ``complete_transfers`` the host blocks that the
    step reads or writes are ``pinned``, so that they are not reused; blocks that it writes cannot be found before they
    have arrived.
    """

    def __init__(self, num_blocks: int, block_size: int = 16, num_kv_cache_groups: int = 1):
        check_count("num_blocks", num_blocks, least=0)
        check_count("block_size", block_size)
        check_count("num_kv_cache_groups", num_kv_cache_groups)
        self.block_size, self.num_kv_cache_groups = block_size, num_kv_cache_groups
        self.pools = (
            tuple(BlockPool(num_blocks, block_size) for _ in range(num_kv_cache_groups)) if num_blocks else ()
        )
        self.sequences: dict[Hashable, SequenceBlocks] = {}
        self.in_transit: set[Hashable] = set()
        self.pinned: list[tuple[int, int]] = []  # (group, block), once for each holder
        self._arriving: list[dict[bytes, tuple[int, bytes]]] = [{} for _ in self.pools]

    def __contains__(self, seq_id: Hashable) -> bool:
        try:
            return seq_id in self.sequences or seq_id in self.in_transit
        except TypeError:  # a list, or another type that cannot be a key
            return False

    def get(self, seq_id: Hashable) -> SequenceBlocks:
        """Return the sequence, if it is swapped out and not in transit."""
        if seq_id not in self:
            raise UnknownNameError("not_swapped", sequence=seq_id, count=len(self.sequences))
        if seq_id in self.in_transit:
            raise ArgumentError("sequence_in_transit", sequence=seq_id)
        return self.sequences[seq_id]

    def allocate(self, seq: SequenceBlocks) -> tuple[list[list[int]], list[set[int]]]:
        """Allocate host blocks for all blocks of ``seq``, in every group or in none; return them, and those with its
        content.

        Raises ``OutOfBlocksError``; ``ArgumentError`` if the manager was made without host blocks.
        """
        if not self.pools:
            raise ArgumentError("no_host_blocks", sequence=seq.id)
        texts = _published(seq, self.block_size)
        tables: list[list[int | None]] = []
        known: list[list[int]] = []
        for pool, table in zip(self.pools, seq.tables, strict=True):
            found = [pool.lookup_block(*content) for content in texts[table.num_passed :]]
            tables.append(found + [None] * (len(table.live()) - len(found)))
            known.append([block for block in found if block is not None])
        counts = [len(of_group) - len(hits) for of_group, hits in zip(tables, known, strict=True)]
        added = allocate_all(self.pools, counts, known)
        blocks = []
        for of_group, new in zip(tables, added, strict=True):
            fresh = iter(new)
            blocks.append([next(fresh) if block is None else block for block in of_group])
        return blocks, [set(hits) for hits in known]

    def find_prefix(
        self, tokens: array, root: bytes, pools: Sequence[BlockPool], windows: Sequence[int | None]
    ) -> Match:
        """As ``find_prefix`` on the device's ``pools``; blocks that these lack are looked up on the host."""
        if not self.pools:
            return find_prefix(tokens, root, pools, windows)
        both = [_Both(*pair) for pair in zip(pools, self.pools, strict=True)]
        found = find_prefix(tokens, root, both, windows)
        tables, host = [], []
        for pool, table in zip(pools, found.tables, strict=True):
            first = pool.num_blocks
            tables.append(tuple(block if block < first else NULL_BLOCK for block in table))
            host.append(tuple((place, block - first) for place, block in enumerate(table) if block >= first))
        return Match(found.num_tokens, tuple(tables), found.digests, tuple(host))

    def free(self, blocks: Sequence[Sequence[int]]) -> None:
        for pool, of_group in zip(self.pools, blocks, strict=True):
            pool.free(of_group)

    def pin(self, kv_cache_group: int, blocks: Sequence[int]) -> None:
        """Hold ``blocks``, in token order, for the step that is being planned, which reads them."""
        self.pools[kv_cache_group].touch(blocks)
        # Reversed, because the blocks are freed in this order: the tail of a sequence is overwritten first.
        self.pinned += [(kv_cache_group, block) for block in reversed(blocks)]

    def store(self, kv_cache_group: int, digest: bytes, tokens: bytes) -> int | None:
        """Return a block for content that the device is about to overwrite; None if the host has it, or has no room."""
        if digest in self._arriving[kv_cache_group]:
            return None
        pool = self.pools[kv_cache_group]
        found = pool.lookup_block(digest, tokens)
        if found is not None:
            self.pin(kv_cache_group, [found])  # hold it, which also makes it the most recently used one
        if found is not None or not pool.num_free:
            return None
        (block,) = pool.allocate(1)
        self._expect(kv_cache_group, block, digest, tokens)
        return block

    def store_all(self, contents: Sequence[Sequence[Content]]) -> Swap:
        """Return the pairs for which ``store`` finds a block: ``contents`` of device blocks, for each group."""
        pairs = []
        for group, of_group in enumerate(contents):
            stored = [(block, self.store(group, digest, tokens)) for block, digest, tokens in of_group]
            pairs.append(tuple((block, host) for block, host in stored if host is not None))
        return Swap(tuple(pairs))

    def expect(self, seq: SequenceBlocks) -> None:
        """Make the prefix blocks of ``seq``, which has just got its host blocks, findable once they have arrived."""
        texts = _published(seq, self.block_size)
        for group, (pool, table) in enumerate(zip(self.pools, seq.tables, strict=True)):
            for place in range(len(texts) - 1, table.num_passed - 1, -1):
                block, (digest, tokens) = table.blocks[place], texts[place]
                known = digest in self._arriving[group] or pool.lookup_block(digest, tokens) is not None
                if not known:
                    pool.share([block])
                    self._expect(group, block, digest, tokens)

    def complete_transfers(self, arrived: bool) -> None:
        """End the step's transfers. If not all were carried out, nothing that they wrote is ever found."""
        for pool, arriving in zip(self.pools, self._arriving, strict=True):
            if arrived:
                for digest, (block, tokens) in arriving.items():
                    pool.publish(block, digest, tokens)
            arriving.clear()
        for group, block in self.pinned:
            self.pools[group].free([block])
        self.pinned.clear()

    def _expect(self, group: int, block: int, digest: bytes, tokens: bytes) -> None:
        self.pinned.append((group, block))
        self._arriving[group][digest] = (block, tokens)


def allocate_all(
    pools: Sequence[BlockPool], counts: Sequence[int], hits: Sequence[Sequence[int]] | None = None
) -> list[list[int]]:
    """Allocate ``counts[i]`` blocks of ``pools[i]`` beside its ``hits``, all or none. Raises ``OutOfBlocksError``."""
    hits = [[] for _ in pools] if hits is None else hits
    for pool, count, found in zip(pools, counts, hits, strict=True):
        free = pool.num_free - pool.count_free(found)
        if count > free:
            fits = free * pool.block_size
            raise OutOfBlocksError("out_of_blocks", asked=count, free=free, total=pool.num_blocks, fits=fits)
    for pool, found in zip(pools, hits, strict=True):
        pool.touch(found)
    return [pool.allocate(count) for pool, count in zip(pools, counts, strict=True)]


def _published(seq: SequenceBlocks, block_size: int) -> list[tuple[bytes, bytes]]:
    """Return (digest, tokens) of the published blocks of ``seq``; none after an eviction."""
    if seq.evicted_until:
        return []
    texts = chunks(seq.tokens, block_size, 0, seq.num_published)
    return list(zip(seq.digests[: seq.num_published], texts, strict=True))


def swap_of(
    device: Sequence[Sequence[int]], host: Sequence[Sequence[int]], known: Sequence[set[int]]
) -> Swap:
    """Return pairs of all blocks, except those with content in one of the host's ``known`` blocks."""
    pairs = []
    for of_group in zip(device, host, known, strict=True):
        there = of_group[2]
        pairs.append(tuple(pair for pair in zip(*of_group[:2], strict=True) if pair[1] not in there))
    return Swap(tuple(pairs))


class _Both:
    """A device pool and the host's: content that only host block h has is found as block ``device.num_blocks + h``."""

    def __init__(self, device: BlockPool, host: BlockPool):
        self.device, self.host = device, host
        self.block_size = device.block_size

    def lookup_block(self, digest: bytes, tokens: bytes) -> int | None:
        block = self.device.lookup_block(digest, tokens)
        if block is None:
            block = self.host.lookup_block(digest, tokens)
            return None if block is None else self.device.num_blocks + block
        return block
