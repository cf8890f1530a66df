"""The history of a sequence in tiles: some blocks at a time, copied into a buffer that stays in a processor's cache.

``tiles(table, start, end, rows)`` gives the positions ``start`` to ``end - 1`` as (first position, keys [n, H, Dk],
values [n, H, Dv]), float32; what it gave before is overwritten. ``rows`` logits will be computed of every token.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from minikv.kernels.slots import as_bytes

# Of float32 keys, values and logits: a tile stays within a processor's cache, and of a decode it is long enough that
# torch's calls cost little beside its arithmetic.
TILE_BYTES = 2**22

Tiles = Callable[[Tensor, int, int, int], Iterator[tuple[int, Tensor, Tensor]]]


def kv_tiles(k_cache: Tensor, v_cache: Tensor, k_scale: Tensor | None, v_scale: Tensor | None) -> Tiles:
    """K and V of the heads, decoded with their scales where they have some."""
    keys, values = _Reader(k_cache, k_scale), _Reader(v_cache, v_scale)

    def tiles(table: Tensor, start: int, end: int, rows: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        for first, blocks, part in _cut(table, k_cache, start, end, rows):
            yield first, keys.read(blocks)[part], values.read(blocks)[part]

    return tiles


def latent_tiles(latent: Tensor, rope: Tensor) -> Tiles:
    """The latent is key and value at once; the rope key stands beside it in the key alone."""
    latents, ropes = _Reader(latent, None), _Reader(rope, None)

    def tiles(table: Tensor, start: int, end: int, rows: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        for first, blocks, part in _cut(table, latent, start, end, rows):
            values = latents.read(blocks)[part]
            yield first, torch.cat([values, ropes.read(blocks)[part]], -1), values

    return tiles


def _cut(
    table: Tensor, cache: Tensor, start: int, end: int, rows: int
) -> Iterator[tuple[int, Tensor, slice]]:
    """The positions ``start`` to ``end - 1`` in tiles: (first position, its blocks, which of their tokens).

    A token of a tile has ``rows`` logits: queries times their heads.
    """
    _, block_size, heads, dim = cache.shape
    blocks = max(1, TILE_BYTES // (4 * block_size * (2 * heads * dim + rows)))
    for low in range(start // block_size, -(-end // block_size), blocks):
        first = max(start, low * block_size)
        last = min(end, (low + blocks) * block_size)
        part = slice(first - low * block_size, last - low * block_size)
        yield first, table[low : min(low + blocks, -(-end // block_size))], part


class _Reader:
    """Blocks of ``cache`` [N, bs, H, D] by their ids, as float32 tokens [n * bs, H, D], in a buffer used again."""

    def __init__(self, cache: Tensor, scale: Tensor | None):
        self._cache, self._scale = as_bytes(cache), scale
        self._dtype = cache.dtype
        self._buffer: Tensor | None = None

    def read(self, blocks: Tensor) -> Tensor:
        shape = (len(blocks), *self._cache.shape[1:])
        if self._buffer is None or len(self._buffer) < len(blocks):
            self._buffer = self._cache.new_empty(shape)
        stored = torch.index_select(self._cache, 0, blocks, out=self._buffer[: len(blocks)])
        tokens = stored.view(self._dtype).to(torch.float32)
        if self._scale is not None:
            tokens = tokens * self._scale.index_select(0, blocks).unsqueeze(-1)
        return tokens.flatten(0, 1)
