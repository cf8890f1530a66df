"""Which survivors of an eviction move, and where to: as few as can be. Lesson 14.

The survivors end up in the first ``keep`` places of their block table. Most lie there already and stay; the others,
from behind, fill the holes between them. So an eviction after every step moves one token a layer, not the whole cache.
The tokens are in no order then, and attention does not mind: keys carry the rotation of their true positions, and
whatever is cached lies before every later query. Only ``positions`` says which token is which.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moves:
    """From place ``src[b, h, i]`` to place ``dst[b, h, i]``, int64 [B, H, n]; all are read before any is written.

    Every list has the same length, so that no count has to be read back from a GPU: where a head moves fewer tokens,
    others move onto themselves. ``origin`` [B, H, keep]: the place that each of the first ``keep`` held before.
    """

    src: Tensor
    dst: Tensor
    origin: Tensor


def fill_holes(kept: Tensor, length: int) -> Moves:
    """The moves that bring the places ``kept`` (int64 [B, H, keep], distinct, below ``length``) to the first ones."""
    keep = kept.shape[-1]
    survives = kept.new_zeros(*kept.shape[:-1], length, dtype=torch.uint8).scatter_(-1, kept, 1)
    front, behind = survives[..., :keep], survives[..., keep:]
    most = min(keep, length - keep)
    # Holes first, then who stays; survivors from behind first, then what is evicted. Stable: in order of place.
    holes = front.argsort(dim=-1, stable=True)[..., :most]
    movers = behind.argsort(dim=-1, descending=True, stable=True)[..., :most] + keep
    moving = torch.arange(most, device=kept.device) < behind.sum(-1, keepdim=True)
    src = torch.where(moving, movers, holes)
    places = torch.arange(keep, device=kept.device).expand(kept.shape)
    return Moves(src, holes, places.scatter(-1, holes, src))


def in_order(kept: Tensor, length: int) -> Moves:
    """The moves that bring ``kept``, ascending, to the first places: what stood in order stays in order."""
    places = torch.arange(kept.shape[-1], device=kept.device).expand(kept.shape)
    return Moves(kept, places, kept)


def slots_of(tables: Tensor, places: Tensor, block_size: int) -> Tensor:
    """int64 [B, H, n]: the slots of ``places`` [B, H, n] in the block tables [B, W]."""
    rows = tables.long().unsqueeze(1).expand(-1, places.shape[1], -1)
    return rows.gather(-1, places // block_size) * block_size + places % block_size
