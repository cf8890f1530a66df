"""New tokens written into their slots on a CPU by ``store_kv.c``: float32, for which nothing is converted."""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from minikv.kernels import slots as plain
from minikv.kernels.c_library import call, load


class _Part(ctypes.Structure):
    """``Part`` of the C source."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("cache", ctypes.c_void_p),
        ("from", ctypes.c_int64 * 2),
        ("to", ctypes.c_int64 * 3),
        ("dim", ctypes.c_int64),
    )


class _Store(ctypes.Structure):
    """``Store`` of the C source."""

    _fields_ = (
        ("parts", _Part * 2),
        ("slots", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("blocks", ctypes.c_int64),
    )


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
    """See ``minikv.kernels.store_kv``."""
    rows, pages = (key, value), (k_cache, v_cache)
    plain_ones = k_scale is None and v_scale is None and slots.is_cpu and all(map(_is_plain, (*rows, *pages)))
    # C reads and writes as many elements as the caches say: other shapes get torch's own error.
    fits = k_cache.shape[:3] == v_cache.shape[:3] and all(
        new.shape == (len(slots), *cache.shape[2:]) for new, cache in zip(rows, pages, strict=True)
    )
    run = _compiled() if plain_ones and fits else None
    if run is not None:
        slots = slots.to(torch.int64).contiguous()
        parts = [
            _Part(new.data_ptr(), cache.data_ptr(), new.stride()[:2], cache.stride()[:3], cache.shape[3])
            for new, cache in zip(rows, pages, strict=True)
        ]
        blocks, block_size, heads, _ = k_cache.shape
        asked = _Store((_Part * 2)(*parts), slots.data_ptr(), len(slots), heads, block_size, blocks)
        if call(run, ctypes.byref(asked)) == 0:
            return
    # Also for a slot past the end, of which torch's own error tells.
    plain.store_kv(key, value, k_cache, v_cache, slots, k_scale, v_scale)


def _is_plain(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.is_cpu and tensor.stride(-1) == 1


@cache
def _compiled() -> Callable | None:
    library = load(Path(__file__).parent / "store_kv.c")
    return None if library is None else library.store_kv
