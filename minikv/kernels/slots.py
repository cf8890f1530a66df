"""Store, gather, copy and move in plain torch: the specification of the kernels, which also runs on a CPU.

Shapes: N blocks of ``bs`` tokens, H KV heads, D elements a head, T new tokens. A slot is
``block * bs + offset``. Slots, tables and block ids are int32 or int64 tensors on the cache's device.

No value is read back from a GPU, so no operation waits for it, and a CUDA graph can hold each of them.
For the same reason values are not checked: an index past the end is torch's own error, and so is a negative block;
a negative slot of ``move_slots`` would count from the end. ``minikv.kernels.storage`` checks before it calls. Offsets
are int64 for slots of either dtype: a pool may have more than 2**31 elements.
"""

from itertools import product

import torch
from torch import Tensor

from minikv.errors import ArgumentError
from minikv.kernels.quantize import cast, quantize


@torch.no_grad()
def store_kv(
    key: Tensor,
    value: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Write T new tokens into their slots, in place.

    ``key`` [T, H, Dk] and ``value`` [T, H, Dv] in a float dtype; ``k_cache`` [N, bs, H, Dk] and ``v_cache`` [N, bs, H,
    Dv], views allowed; ``slots`` [T], where -1, or any negative number, skips the token. Two tokens must not have one
    slot: only one of them would stay. With ``k_scale`` and ``v_scale`` [N, bs, H] float32 each (token, head) is
    quantized with a scale of its own; without, it is cast, saturating. An int8 cache needs scales.
    """
    new = [*_encode(key, k_cache, k_scale), *_encode(value, v_cache, v_scale)]
    if slots.is_cpu and len(slots) and slots.min() < 0:
        live = slots >= 0
        slots, new = slots[live], [None if rows is None else rows[live] for rows in new]
    for rows, cache in zip(new, (k_cache, k_scale, v_cache, v_scale), strict=True):
        if rows is not None and cache is not None:
            _put(cache, slots, rows)


def gather(cache: Tensor, table: Tensor, length: int, start: int = 0) -> Tensor:
    """Return a copy of the tokens ``start`` to ``length - 1`` of a sequence, in order: [length - start, ...].

    ``cache`` [N, bs, ...]; ``table`` [n] has the blocks of the sequence from its first token on. Only the
    entries that hold those tokens are read, so entries before a window may be anything.
    """
    block_size = cache.shape[1]
    first = start // block_size
    table = table[first : -(-length // block_size) if length > start else first]
    part = slice(start - first * block_size, length - first * block_size)
    stored = as_bytes(cache)
    if len(table) == 1:  # It may be a whole row of a linear cache, so only the requested part is read.
        stored, part = stored[:, part], slice(None)
    # Several times as fast on a CPU as ``cache[table]``, where a negative block would also count from the end.
    return stored.index_select(0, table).flatten(0, 1)[part].view(cache.dtype)


def copy_blocks(cache: Tensor, src: Tensor, dst: Tensor, block_dim: int = 0) -> None:
    """Copy block ``src[i]`` of ``cache`` to block ``dst[i]``, in place. All are read before any is written.

    ``cache`` [N, bs, ...], or [..., N, bs, ...] with the blocks in dimension ``block_dim``: then a block is copied at
    every index of the dimensions before. A block must not be in ``dst`` twice.
    """
    dst = dst.long()
    # One by one, so that the temporary copy stays small
    for place in product(*map(range, cache.shape[:block_dim])):
        stored = as_bytes(cache[place])
        stored.index_copy_(0, dst, stored.index_select(0, src))


def move_slots(cache: Tensor, src: Tensor, dst: Tensor) -> None:
    """Copy slot ``src[i]`` of ``cache`` [N, bs, H, ...] to slot ``dst[i]``, in place. All are read before any is
    written.

    [n] moves every head alike; [H, n] moves each head by its own list, as compaction per head needs it.
    A slot must not be in ``dst`` twice (for one head).
    """
    stored, block_size = as_bytes(cache), cache.shape[1]
    from_, to = _split(src, block_size), _split(dst, block_size)
    if src.dim() == 2:
        heads = torch.arange(cache.shape[2], device=cache.device).unsqueeze(1)
        stored[(*to, heads)] = stored[(*from_, heads)]
    else:
        stored[to] = stored[from_]


def as_bytes(cache: Tensor) -> Tensor:
    """Return one-byte elements as uint8, others as they are: float8 lacks operations that moving needs."""
    return cache.view(torch.uint8) if cache.element_size() == 1 else cache


def _encode(x: Tensor, cache: Tensor, scales: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if scales is not None:
        return quantize(x, cache.dtype)
    if not cache.is_floating_point():
        raise ArgumentError("cache_needs_scales", dtype=str(cache.dtype).removeprefix("torch."))
    return cast(x, cache.dtype), None


def _split(slots: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Return slots as (block, offset in the block), int64."""
    slots = slots.long()
    return slots // block_size, slots % block_size


def _put(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    """Write ``rows[i]`` [T, ...] to slot ``slots[i]`` of ``cache`` [N, bs, ...]. A GPU skips negative slots here."""
    cache, rows = as_bytes(cache), as_bytes(rows)
    if slots.is_cpu:
        if cache.stride(0) == cache.shape[1] * cache.stride(1):  # a view with a row for each slot
            shape, stride = cache.shape, cache.stride()
            flat = cache.as_strided((shape[0] * shape[1], *shape[2:]), stride[1:])
            flat.index_copy_(0, slots.long(), rows)
            return
    elif len(slots):
        slots, rows = _skip_without_reading(cache, slots, rows)
    cache[_split(slots, cache.shape[1])] = rows


def _skip_without_reading(cache: Tensor, slots: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return T slots and rows in which every skipped token is harmless, without reading from the GPU which these are.

    A skipped token becomes a second copy of a written one: the same bytes to the same slot, in any order. If none is
    written, all write back the content of slot 0.
    """
    live = slots >= 0
    stand_in = live.int().argmax()
    source = torch.where(live, torch.arange(len(slots), device=slots.device), stand_in)
    slots, rows = slots[source], rows[source]
    dead = (slots < 0).view(-1, *[1] * (rows.dim() - 1))
    slots = slots.clamp(min=0)
    return slots, torch.where(dead, cache[_split(slots, cache.shape[1])], rows)
