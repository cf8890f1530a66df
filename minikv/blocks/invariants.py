"""The invariants of a block manager after every operation."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from minikv.blocks.pool import NULL_BLOCK, BlockPool
from minikv.blocks.tables import BlockTables, SequenceBlocks
from minikv.errors import BrokenInvariantError


def check_holders(
    pools: Sequence[BlockPool], sequences: Iterable[SequenceBlocks], held: Iterable[tuple[int, int]] = ()
) -> None:
    """Raise unless every block is held exactly as often as it is in a block table: none is lost, none freed too early.

    ``held`` are (group, block) with a holder outside the tables, once for each holder.
    """
    sequences, others = list(sequences), Counter(held)
    for group, pool in enumerate(pools):
        pool.check_invariants()
        tables = Counter(block for seq in sequences for block in seq.tables[group].live())
        for block in range(pool.num_blocks):
            holders = pool.ref_count(block)
            named = tables[block] + others[group, block]
            if named != holders:
                what = f"block {block} of group {group} is counted for {holders} holders and has {named}"
                raise BrokenInvariantError("invariant", what=what)
        for seq in sequences:
            for block in seq.tables[group].blocks[: seq.tables[group].num_private]:
                if pool.ref_count(block) != 1 or pool.is_published(block):
                    what = f"block {block} of group {group} is not private to {seq.id!r}"
                    raise BrokenInvariantError("invariant", what=what)


def check_sequence(seq: SequenceBlocks, block_size: int) -> None:
    """Raise unless the tables have room for exactly the tokens, and the counters are in order."""
    for group, table in enumerate(seq.tables):
        if len(table.blocks) != -(-seq.length(group) // block_size):
            what = f"{seq.id!r} has {seq.length(group)} tokens in {len(table.blocks)} blocks of group {group}"
            raise BrokenInvariantError("invariant", what=what)
        gone = table.blocks[: table.num_passed]
        if gone != [NULL_BLOCK] * table.num_passed or NULL_BLOCK in table.live():
            raise BrokenInvariantError(
                "invariant", what=f"{seq.id!r} has a hole in its table of group {group}"
            )
    if not seq.num_published * block_size <= seq.num_committed <= len(seq.tokens):
        tokens = f"{seq.num_committed} of {len(seq.tokens)} tokens committed"
        what = f"{seq.id!r}: {seq.num_published} blocks published, {tokens}"
        raise BrokenInvariantError("invariant", what=what)


def check_rows(tables: BlockTables, sequences: Sequence[SequenceBlocks]) -> None:
    """Raise unless the persistent arrays equal the sequences' own tables."""
    if sorted(seq.row for seq in sequences) != list(range(len(tables.owners))):
        raise BrokenInvariantError("invariant", what="the rows of the block tables have a gap")
    for seq in sequences:
        for group, table in enumerate(seq.tables):
            row = tables.view(group)[seq.row]
            count = len(table.blocks)
            if row[:count].tolist() != table.blocks or np.any(row[count:] != NULL_BLOCK):
                raise BrokenInvariantError("invariant", what=f"the row of {seq.id!r} is not its block table")
