"""K and V of every head, made of latents for the length of one call: MLA prefill where queries are many. Lesson 10.

Absorbed, a query and a key cost 2 * (rank + rope + rank) FLOPs a head, which is 2,176 for DeepSeek-V3. Expanded they
cost 2 * (nope + rope + v_dim) = 640. But every key is expanded first, and what that makes is written and read again.
So it pays for a few hundred queries and more, and never for a decode.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from minikv.kernels.paged_kv import PagedKV

# A byte that is moved stands for as many operations. Of an H200, by its data sheet: 989e12 / 4.8e12.
FLOPS_PER_BYTE = {"cuda": 206}
MOST_BYTES = (
    2**29
)  # of what is expanded at a time, which may come on top of the peak that a warm-up has measured


class LatentSizes(NamedTuple):
    """One rank's heads and their dimensions: a key has ``nope`` and ``rope`` elements, a value ``value``."""

    heads: int
    rank: int
    rope: int
    nope: int
    value: int
    itemsize: int

    @property
    def key_bytes(self) -> int:
        """Bytes of one token while it is expanded: the product, and the keys with the rope part beside them."""
        return self.heads * (self.nope + self.value + self.nope + self.rope) * self.itemsize


def expanding_pays(
    device: str, sizes: LatentSizes, batch: int, queries: int, max_queries: int, width: int
) -> bool:
    """Return whether attention costs less expanded than absorbed, and what is expanded is not too much.

    ``device`` is the type of a torch device; on one that is not in ``FLOPS_PER_BYTE`` nothing is expanded.

    ``queries`` of ``batch`` sequences attend to at most ``width`` tokens each; the longest sequence has ``max_queries``
    of them. Each of the ``width`` tokens counts as a key, since the lengths are on the device.
    """
    keys = batch * width
    if device not in FLOPS_PER_BYTE or keys * sizes.key_bytes > MOST_BYTES:
        return False
    pairs = queries * (width - max_queries / 2)
    projected = sizes.rank * (sizes.nope + sizes.value)
    absorbed = pairs * (2 * sizes.rank + sizes.rope) + queries * projected
    expanded = pairs * (sizes.nope + sizes.rope + sizes.value) + keys * projected
    moved = 2 * keys * sizes.key_bytes  # written once and read once
    return 2 * sizes.heads * expanded + FLOPS_PER_BYTE[device] * moved < 2 * sizes.heads * absorbed


def expand(kv: PagedKV, up: Tensor, nope: int) -> PagedKV:
    """Return K and V of every head for the sequences of ``kv``, which holds latents and rope keys.

    ``up`` [H, nope + v_dim, rank] is ``kv_b_proj``. The blocks are copies, in the order of the tables.
    """
    blocks = kv.block_tables.clamp(min=0).flatten()  # behind a window, and past a length, there may be none
    latents = kv.k[blocks, :, 0].to(up.dtype)
    made = torch.matmul(latents, up.flatten(0, 1).t()).unflatten(-1, up.shape[:2])
    rope = kv.v[blocks].to(up.dtype).expand(-1, -1, up.shape[0], -1)
    tables = torch.arange(len(blocks), dtype=torch.int32, device=blocks.device).view(kv.block_tables.shape)
    return PagedKV(torch.cat([made[..., :nope], rope], -1), made[..., nope:], tables, kv.lengths)
