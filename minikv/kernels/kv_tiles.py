"""The history of a sequence in tiles, each copied into a buffer that stays in the processor's cache.

A tile is some blocks, or a part of a long one. ``tiles(table, start, end, rows)`` yields the positions ``start`` to
``end - 1`` as (first position, keys [n, H, Dk], values [n, H, Dv]), float32; each tile overwrites the one before.
``rows`` is the number of logits for each token.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from minikv.kernels.paged_kv import PagedKV
from minikv.kernels.quantize import to_float32
from minikv.kernels.slots import as_bytes

# Of float32 keys, values and logits: a tile stays within a processor's cache, and a decode's tile is long enough that
# torch's calls cost little beside its arithmetic.
TILE_BYTES = 2**22

Tiles = Callable[[Tensor, int, int, int], Iterator[tuple[int, Tensor, Tensor]]]


def kv_tiles(kv: PagedKV) -> Tiles:
    """Return tiles of K and V of the heads, decoded with their scales if they have any."""
    keys, values = readers(kv)

    def tiles(table: Tensor, start: int, end: int, rows: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        for first, blocks, part in _cut(table, kv.k, start, end, rows):
            yield first, keys.read(blocks, part), values.read(blocks, part)

    return tiles


def key_tiles(kv: PagedKV) -> Tiles:
    """Return tiles of K alone, for a caller that needs no values; the keys are in their place too."""
    keys, _ = readers(kv)

    def tiles(table: Tensor, start: int, end: int, rows: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        for first, blocks, part in _cut(table, kv.k, start, end, rows):
            found = keys.read(blocks, part)
            yield first, found, found

    return tiles


def latent_tiles(kv: PagedKV) -> Tiles:
    """Return tiles of latents: ``kv.k`` is key and value at once; the rope key ``kv.v`` is appended to the key."""
    read, rank = latent_reader(kv), kv.k.shape[3]

    def tiles(table: Tensor, start: int, end: int, rows: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        for first, blocks, part in _cut(table, kv.k, start, end, rows):
            found = read(blocks, part)
            yield first, found, found[..., :rank]

    return tiles


def _cut(
    table: Tensor, cache: Tensor, start: int, end: int, rows: int
) -> Iterator[tuple[int, Tensor, slice]]:
    """Yield the positions ``start`` to ``end - 1`` in tiles: (first position, its blocks, the slice of their tokens).

    A token of a tile has ``rows`` logits: queries times their heads. A tile is as many whole blocks as fit, or, if
    one block is too long, a part of it.
    """
    _, block_size, heads, dim = cache.shape
    tokens = max(1, TILE_BYTES // (4 * (2 * heads * dim + rows)))
    whole = tokens // block_size * block_size
    first = start
    while first < end:
        low = first // block_size
        begin = low * block_size
        last = min(end, begin + whole if whole else min(first + tokens, begin + block_size))
        yield first, table[low : -(-last // block_size)], slice(first - begin, last - begin)
        first = last


def readers(kv: PagedKV, dtype: torch.dtype = torch.float32) -> tuple["BlockReader", "BlockReader"]:
    """Return readers of K and V. Memory that is new costs more than the copy into it, so a step's layers share it."""
    keys, values = (kv.memo.setdefault((what, "tile"), {}) for what in ("K", "V"))
    return BlockReader(kv.k, kv.k_scale, dtype, keys), BlockReader(kv.v, kv.v_scale, dtype, values)


def latent_reader(kv: PagedKV) -> Callable[..., Tensor]:
    """Return the ``read`` of a reader of latents with their rope keys behind them, [n * bs, 1, R + P] float32."""
    k, v, rank = kv.k, kv.v, kv.k.shape[3]
    one_tensor = k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
    if one_tensor and k.stride() == v.stride() and k.storage_offset() + rank == v.storage_offset():
        # They lie side by side, as in ``PagedKVCache``.
        both = k.as_strided((*k.shape[:3], rank + v.shape[3]), k.stride())
        return BlockReader(both, None, torch.float32, kv.memo.setdefault(("K", "tile"), {})).read
    latents, ropes = readers(kv)
    return lambda *asked: torch.cat([latents.read(*asked), ropes.read(*asked)], -1)


class BlockReader:
    """Reads blocks of ``cache`` [N, bs, H, D] by id as tokens [n * bs, H, D] of ``dtype``, into memory that is reused.

    ``dtype`` is float32, or that of the cache, which then has no ``scale``. ``buffers``: that memory, by dtype.
    """

    def __init__(
        self, cache: Tensor, scale: Tensor | None, dtype: torch.dtype, buffers: dict[torch.dtype, Tensor]
    ):
        _, self.block_size, self.heads, self.dim = cache.shape
        self._cache, self._scale = as_bytes(cache), scale
        self._stored, self._dtype = cache.dtype, dtype
        self._buffers = buffers

    def read(self, blocks: Tensor, part: slice = slice(None)) -> Tensor:
        """Return the tokens of ``blocks`` [n], or ``part`` of them, until the next call; they may be written to."""
        cache, scale = self._cache, self._scale
        if len(blocks) == 1:  # It may be a whole row of a linear cache, so only the requested part is read.
            cache, scale, part = cache[:, part], None if scale is None else scale[:, part], slice(None)
        shape = len(blocks), *cache.shape[1:]
        tokens = torch.index_select(cache, 0, blocks, out=self._buffer(shape, cache.dtype)).view(self._stored)
        if self._stored != self._dtype:
            tokens = to_float32(tokens, self._buffer(shape, torch.float32))
        if scale is not None:
            tokens.mul_(scale.index_select(0, blocks).unsqueeze(-1))
        return tokens.flatten(0, 1)[part]

    def _buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        found, size = self._buffers.get(dtype), math.prod(shape)
        # torch lets nothing be written to an inference tensor once the inference mode has ended.
        if found is None or len(found) < size or found.is_inference():
            found = self._buffers[dtype] = self._cache.new_empty(size, dtype=dtype)
        return found[:size].view(shape)
