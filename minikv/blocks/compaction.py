"""Eviction on block tables: pack the tokens that stay into fewer blocks (``compact``), or take whole blocks out.

Both change one sequence in the layers of one group; ``BlockManager`` looks up the sequence and its pool.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minikv.blocks.pool import BlockPool
from minikv.blocks.tables import BlockTables, SequenceBlocks
from minikv.errors import ArgumentError


class Copy(NamedTuple):
    """The storage of ``kv_cache_group`` must copy block ``src`` to block ``dst`` before anything is written."""

    kv_cache_group: int
    src: int
    dst: int


@dataclass(frozen=True)
class Compaction:
    """The places of an eviction's survivors, before and after it.

    Do ``copies`` first; then move the kept tokens from their slots in ``old_table`` to the first ``num_tokens``
    slots of ``new_table``. The tail of ``old_table`` is free already: move before anything else is allocated.
    """

    copies: tuple[Copy, ...]
    old_table: tuple[int, ...]
    new_table: tuple[int, ...]
    num_tokens: int


def compact(
    seq: SequenceBlocks, kv_cache_group: int, keep: int, pool: BlockPool, tables: BlockTables
) -> Compaction:
    """Carry out ``BlockManager.compact`` on a sequence that may be evicted from."""
    table, length = seq.tables[kv_cache_group], seq.length(kv_cache_group)
    if type(keep) is not int or not 1 <= keep <= length:
        raise ArgumentError("out_of_range", what="keep", value=keep, low=0, high=length)
    if keep == length:
        return Compaction((), tuple(table.blocks), tuple(table.blocks), keep)
    kept = -(-keep // pool.block_size)
    # The first ``num_private`` blocks need no look, so evicting at every step only costs the tail
    looked_at = range(min(table.num_private, kept), kept)
    # Copy on write: the survivors are moved into these blocks, so a shared one is replaced by a copy of its own.
    shared = [place for place in looked_at if pool.ref_count(table.blocks[place]) > 1]
    added = pool.allocate(len(shared))
    copies = []
    for place, block in zip(shared, added, strict=True):
        copies.append(Copy(kv_cache_group, table.blocks[place], block))
        pool.free([table.blocks[place]])
        table.blocks[place] = block
        tables.write(kv_cache_group, seq.row, place, [block])
    for place in looked_at:
        pool.forget(table.blocks[place])
    old_table = tuple(table.blocks)
    pool.free(table.blocks[kept:])
    tables.clear(kv_cache_group, seq.row, kept, len(table.blocks))
    del table.blocks[kept:]
    table.num_private = kept
    table.num_evicted_tokens += length - keep
    seq.evicted_until = len(seq.tokens)
    seq.append_limit = 0  # in the other groups the last block may be shared or published
    return Compaction(tuple(copies), old_table, tuple(table.blocks), keep)


def drop_blocks(
    seq: SequenceBlocks, kv_cache_group: int, places: Sequence[int], pool: BlockPool, tables: BlockTables
) -> None:
    """Carry out ``BlockManager.drop_blocks`` on a sequence that may be evicted from."""
    table = seq.tables[kv_cache_group]
    last = len(table.blocks) - 1
    for place in places:
        if type(place) is not int or not 0 <= place < last:
            raise ArgumentError("out_of_range", what="place", value=place, low=-1, high=last - 1)
    gone = set(places)
    if not gone:
        return
    kept = [block for place, block in enumerate(table.blocks) if place not in gone]
    pool.free([table.blocks[place] for place in sorted(gone)])
    tables.clear(kv_cache_group, seq.row, len(kept), len(table.blocks))
    tables.write(kv_cache_group, seq.row, 0, kept)
    table.blocks[:] = kept
    table.num_private -= sum(place < table.num_private for place in gone)
    # Whole blocks, so no token changes its offset in its block
    table.num_evicted_tokens += len(gone) * pool.block_size
    seq.evicted_until = len(seq.tokens)
