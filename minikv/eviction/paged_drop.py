"""One sequence loses its worst blocks: chosen on the device, read back, and taken from its table. Lesson 14.

Unlike a token's, a block's going has to be known to the block manager: so this waits for the device, once for each kind
of layer, and moves nothing.
"""

from collections.abc import Hashable

import torch

from minikv.blocks import BlockManager
from minikv.eviction.paged_blocks import blocks_to_keep, token_ranks
from minikv.eviction.paged_evictor import PagedEvictor
from minikv.eviction.paged_plan import PlannedEviction, held


@torch.no_grad()
def drop_worst_blocks(evictor: PagedEvictor, manager: BlockManager, seq_id: Hashable, per_block: str) -> int:
    """Bring ``seq_id``, which is committed, to at most the capacity; returns how many tokens went, in each layer.

    All layers of a kind lose the same blocks: those that are worth least in their mean.
    """
    length, evicted = held(manager, seq_id)
    for kind, layers in evictor.layers.items():
        table = tuple(manager.block_table(seq_id, kind))
        plan = PlannedEviction(seq_id, length, evicted, {})
        tables = torch.tensor([table], device=evictor.cache.device)
        views = [evictor.view(layer, [plan], tables) for layer in layers]
        ranks = token_ranks([evictor.score(view) for view in views])
        size, positions = evictor.cache.block_size, views[0].positions[:, 0]
        keep = blocks_to_keep(ranks, positions, evictor.budget, size, per_block)[0]
        manager.drop_blocks(seq_id, (~keep).nonzero().flatten().tolist(), kind)
        origin = keep.repeat_interleave(size)[:length].nonzero().flatten()
        for layer, view in zip(layers, views, strict=True):
            heads = view.positions.shape[1]
            evictor.records.keep(layer, [seq_id], origin.expand(1, heads, -1), view.positions)
    left = held(manager, seq_id)[0]
    evictor.records.pack(seq_id, left)
    return length - left
