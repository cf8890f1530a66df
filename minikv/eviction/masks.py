"""Whom the queries of a forward see, once tokens are gone: transformers' masks count columns that are no more.

Lesson 15.
"""

import torch
from torch import Tensor

from minikv.eviction.layer import EvictingLayer


def mask_for(own: str, layer: EvictingLayer, query: Tensor, given: Tensor | None) -> Tensor | None:
    """The mask for what ``layer`` still has, as the attention ``own`` takes it; None: it needs none.

    ``given``: transformers' own mask, which is right as long as nothing was evicted. ``query`` [B, Hq, T, D].
    """
    whole = layer.resident == layer.cumulative_length
    if whole and (given is None or given.shape[-1] == layer.resident):
        return given
    seen = seen_keys(layer, given)
    if seen is None or (own == "sdpa" and layer.new == layer.resident and not layer.padded and given is None):
        return None
    if own == "sdpa":
        return seen
    least = torch.finfo(query.dtype).min
    return torch.zeros((), dtype=query.dtype, device=query.device).masked_fill(~seen, least)


def seen_keys(layer: EvictingLayer, given: Tensor | None = None) -> Tensor | None:
    """[B or 1, 1, T, S] bool: which keys each query of the last ``update`` may see. None: one query, all keys.

    Every resident token that was there before is earlier than every new one, in whatever order the slots are. Among the
    new ones a query sees those before it, and in ``given`` [B, 1, T, ...], a mask that ends with their columns, perhaps
    later ones too: the parts of a picture see each other.
    """
    if layer.new == 1 and not layer.padded:
        return None
    keys = torch.arange(layer.resident, device=layer.device)
    queries = keys[layer.resident - layer.new :]
    seen = (keys <= queries[:, None])[None, None]
    if given is not None and layer.new > 1:
        among = given[..., -layer.new :]
        among = (
            among if among.dtype == torch.bool else among >= 0
        )  # transformers adds the least number where hidden
        earlier = seen[..., : layer.resident - layer.new].expand(*among.shape[:3], -1)
        seen = torch.cat((earlier, seen[..., layer.resident - layer.new :] | among), -1)
    if not layer.padded:
        return seen
    seen = seen & layer.valid[:, None, None]
    return seen | ~seen.any(-1, keepdim=True)  # a query of padding sees all, since a softmax needs something
