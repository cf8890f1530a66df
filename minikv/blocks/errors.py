"""The errors for missing blocks, with the tokens that a sequence could have: now, and in an empty pool.

A sequence gets blocks in all KV cache groups or in none, so the group with the least room decides.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple, NoReturn

from minikv.blocks.pool import BlockPool
from minikv.blocks.tables import SequenceBlocks
from minikv.errors import OutOfBlocksError, RequestTooLargeError


class Want(NamedTuple):
    """A sequence's request to one pool: ``new`` blocks beside the ``held`` ones, with ``free`` blocks in the pool.

    With the free blocks it could have ``now`` tokens, with the whole pool ``ever``.
    """

    new: int
    held: int
    free: int
    now: int
    ever: int


def check_capacity(
    seq_id: Hashable,
    num_tokens: int,
    new: Sequence[int],
    hits: Sequence[Sequence[int]],
    free: Sequence[int],
    pools: Sequence[BlockPool],
) -> None:
    """Raise if pool i lacks ``new[i]`` blocks for a new sequence beside its ``hits``, which ``free`` does not count."""
    if all(need <= can for need, can in zip(new, free, strict=True)):
        return
    size = pools[0].block_size
    cached = -(-num_tokens // size) - max(new)
    # Without a free block behind the hits only a shorter prompt fits, with fewer hits: then count on none.
    blocks = cached + min(free) if min(free) else min([pool.num_free for pool in pools])
    _refuse(
        seq_id,
        num_tokens,
        pools,
        [
            Want(need, len(held), can, blocks * size, pool.num_blocks * size)
            for pool, need, held, can in zip(pools, new, hits, free, strict=True)
        ],
    )


def refuse_more(
    seq: SequenceBlocks, num_tokens: int, needs: Sequence[tuple[int, int, int]], pools: Sequence[BlockPool]
) -> NoReturn:
    """Raise for a sequence that cannot grow to ``num_tokens``; ``needs`` has (blocks, copied?, …) for each pool."""
    size = pools[0].block_size
    wants = []
    for pool, table, (new, copied, _) in zip(pools, seq.tables, needs, strict=True):
        own = len(table.blocks) - copied
        now = max(len(seq.tokens), (own + pool.num_free) * size + table.num_evicted_tokens)
        ever = (table.num_passed + pool.num_blocks) * size + table.num_evicted_tokens
        wants.append(Want(new, own - table.num_passed, pool.num_free, now, ever))
    _refuse(seq.id, num_tokens, pools, wants)


def _refuse(seq_id: Hashable, num_tokens: int, pools: Sequence[BlockPool], wants: Sequence[Want]) -> NoReturn:
    """Raise ``RequestTooLargeError`` if one of the pools could never hold the sequence, else ``OutOfBlocksError``."""
    for pool, want in zip(pools, wants, strict=True):
        asked = want.new + want.held
        if asked > pool.num_blocks:
            raise RequestTooLargeError(
                "request_larger_than_pool",
                sequence=seq_id,
                num_tokens=num_tokens,
                asked=asked,
                total=pool.num_blocks,
                fits=min([each.ever for each in wants]),
            )
    pool, want = next((pool, want) for pool, want in zip(pools, wants, strict=True) if want.new > want.free)
    raise OutOfBlocksError(
        "out_of_blocks",
        asked=want.new,
        free=want.free,
        total=pool.num_blocks,
        fits=min([each.now for each in wants]),
    )
