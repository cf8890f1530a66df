"""Storing and moving tokens in a paged cache: the public functions, which check and call an implementation. Lesson 10.

Shapes: N blocks of ``bs`` tokens, H KV heads, D elements a head, T new tokens. A slot is ``block * bs + offset``.
Slots, tables and block ids are int32 or int64 on the cache's device. Offsets are computed in int64: a pool may have
more than 2**31 elements. Nothing is read back from a GPU, so a CUDA graph can hold each operation.
"""

from typing import Any

import torch
from torch import Tensor

from minikv.errors import ArgumentError, check_count
from minikv.kernels.checks import FLOATS, INDICES, STORED, check_cache, check_entries, check_tensor
from minikv.kernels.dispatch import implementation

NEW_TOKENS = (*FLOATS, torch.float64)


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

    ``key`` [T, H, Dk] and ``value`` [T, H, Dv] in a float dtype of 16 bits or more, of any strides; ``k_cache``
    [N, bs, H, Dk] and ``v_cache`` [N, bs, H, Dv] of one dtype, views allowed; ``slots`` [T], where a negative number
    skips the token. Two tokens must not have one slot: only one of them would stay. With ``k_scale`` and
    ``v_scale`` [N, bs, H] float32 each (token, head) is quantized with a scale of its own; without, it is cast,
    saturating. An int8 cache needs scales.
    Raises ``ArgumentError`` before a byte is written.
    """
    check_tensor("key", key, ("T", "H", "Dk"), NEW_TOKENS, any_strides=True)
    tokens, heads, dim = key.shape
    check_tensor("value", value, (tokens, heads, "Dv"), NEW_TOKENS, key.device, any_strides=True)
    check_cache("k_cache", k_cache, k_scale, ("N", "block_size", heads, dim), key.device)
    check_cache("v_cache", v_cache, v_scale, (*k_cache.shape[:3], value.shape[2]), key.device)
    if v_cache.dtype != k_cache.dtype:
        names = [str(cache.dtype).removeprefix("torch.") for cache in (k_cache, v_cache)]
        raise ArgumentError("kernel_dtype", what="v_cache", dtype=names[1], known=names[0])
    if k_scale is not None or v_scale is not None:
        for what, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
            check_tensor(what, scale, tuple(k_cache.shape[:3]), (torch.float32,), key.device)
    check_tensor("slots", slots, (tokens,), INDICES, key.device)
    check_entries("slots", slots, torch.iinfo(slots.dtype).min, k_cache.shape[0] * k_cache.shape[1] - 1)
    implementation(key.device).store_kv(key, value, k_cache, v_cache, slots, k_scale, v_scale)


def gather(cache: Tensor, table: Tensor, length: int, start: int = 0) -> Tensor:
    """Return a copy of the tokens ``start`` to ``length - 1`` of a sequence, in order: [length - start, ...].

    ``cache`` [N, bs, ...]; ``table`` [n] has the blocks of the sequence from its first token on. Only the
    entries that hold those tokens are read, so entries before a window may be anything.
    """
    _check_stored(cache, 0)
    block_size = cache.shape[1]
    check_tensor("table", table, ("n",), INDICES, cache.device)
    check_count("length", length, least=0)
    check_count("start", start, least=0)
    if not start <= length <= len(table) * block_size:
        raise ArgumentError("kernel_gather_range", start=start, length=length, tokens=len(table) * block_size)
    if length > start:
        read = table[start // block_size : -(-length // block_size)]
        check_entries(f"table[{start // block_size}:]", read, 0, cache.shape[0] - 1)
    return implementation(cache.device).gather(cache, table, length, start)


def copy_blocks(cache: Tensor, src: Tensor, dst: Tensor, block_dim: int = 0) -> None:
    """Copy block ``src[i]`` of ``cache`` to block ``dst[i]``, in place. All are read before any is written.

    ``cache`` [N, bs, ...], or [..., N, bs, ...] with the blocks in dimension ``block_dim``: then a block is copied at
    every index of the dimensions before, usually K and V and the layers, at once. A block must not be in ``dst`` twice.
    """
    check_count("block_dim", block_dim, least=0)
    _check_stored(cache, block_dim)
    check_tensor("src", src, ("n",), INDICES, cache.device)
    check_tensor("dst", dst, (len(src),), INDICES, cache.device)
    for what, blocks in (("src", src), ("dst", dst)):
        check_entries(what, blocks, 0, cache.shape[block_dim] - 1)
    implementation(cache.device).copy_blocks(cache, src, dst, block_dim)


def move_slots(cache: Tensor, src: Tensor, dst: Tensor) -> None:
    """Copy slot ``src[i]`` of ``cache`` [N, bs, H, ...] to slot ``dst[i]``, in place. All are read before any is
    written.

    [n] moves every head alike; [H, n] moves each head by its own list, as compaction per head needs it.
    A slot must not be in ``dst`` twice (for one head).
    """
    _check_stored(cache, 0)
    per_head = isinstance(src, Tensor) and src.dim() == 2
    check_tensor("src", src, (cache.shape[2], "n") if per_head else ("n",), INDICES, cache.device)
    check_tensor("dst", dst, tuple(src.shape), INDICES, cache.device)
    for what, slots in (("src", src), ("dst", dst)):
        check_entries(what, slots, 0, cache.shape[0] * cache.shape[1] - 1)
    implementation(cache.device).move_slots(cache, src, dst)


def _check_stored(cache: Any, block_dim: int) -> None:
    """Raise ``ArgumentError`` unless ``cache`` is [..., N, block_size, H, ...] of a dtype that a cache has."""
    before = tuple(f"D{dim}" for dim in range(block_dim))
    dims = cache.dim() if isinstance(cache, Tensor) else 0
    after = tuple(f"D{dim}" for dim in range(block_dim + 3, dims))
    check_tensor("cache", cache, (*before, "N", "block_size", "H", *after), STORED)
