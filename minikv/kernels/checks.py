"""The checks of the public functions before a kernel starts: shapes, dtypes, devices, strides, and values if possible.

A kernel with a wrong block silently reads another request's keys. So every public call checks everything that is known
without reading the device. The values of tables and lengths are checked if they are on a CPU. On a GPU reading them
would make the CPU wait for everything queued, so they are checked there only with ``MINIKV_CHECKED=values``.

Inside the package the checks run only in checked mode: ``minikv.kernels.dispatch.operations``.
"""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from minikv.errors import ArgumentError, check_count
from minikv.kernels.dispatch import checked_mode
from minikv.kernels.paged_kv import PagedKV

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
STORED = (*FLOATS, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
INDICES = (torch.int32, torch.int64)


def check_tensor(
    what: str,
    x: Any,
    shape: tuple[int | str, ...],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device | None = None,
    *,
    any_strides: bool = False,
) -> None:
    """Raise ``ArgumentError`` unless ``x`` is a tensor of that shape (a word: any size), dtype and device.

    Unless ``any_strides``, its last dimension must be contiguous, since kernels read several elements of it at once.
    """
    expected = "[{}]".format(", ".join(map(str, shape)))
    if not isinstance(x, Tensor):
        raise ArgumentError("cache_not_a_tensor", what=what, kind=type(x).__name__, expected=expected)
    if x.dim() != len(shape) or any(
        isinstance(want, int) and have != want for have, want in zip(x.shape, shape, strict=True)
    ):
        raise ArgumentError("cache_shape", what=what, shape=list(x.shape), expected=expected)
    if x.dtype not in dtypes:
        names = ", ".join(_name(dtype) for dtype in dtypes)
        raise ArgumentError("kernel_dtype", what=what, dtype=_name(x.dtype), known=names)
    if device is not None and x.device != device:
        raise ArgumentError("kernel_device", what=what, device=str(x.device), expected=str(device))
    if not any_strides and x.dim() and x.shape[-1] > 1 and x.stride(-1) != 1:
        raise ArgumentError("kernel_stride", what=what, stride=list(x.stride()))


def check_paged_kv(kv: Any) -> None:
    """Raise ``ArgumentError`` unless ``kv`` is a ``PagedKV``; other functions check its tensors."""
    if not isinstance(kv, PagedKV):
        raise ArgumentError("kernel_not_paged_kv", kind=type(kv).__name__)


def check_cache(
    what: str,
    cache: Any,
    scale: Any,
    shape: tuple[int | str, ...],
    device: torch.device | None,
    dtypes: tuple[torch.dtype, ...] = STORED,
) -> None:
    """Raise ``ArgumentError`` unless ``cache`` is [blocks, block_size, kv_heads, dim], with the scales it needs."""
    check_tensor(what, cache, shape, dtypes, device)
    check_count(f"block_size of {what}", cache.shape[1])
    if scale is None:
        if cache.dtype == torch.int8:
            raise ArgumentError("cache_needs_scales", dtype="int8")
        return
    if cache.element_size() > 1:
        raise ArgumentError("kernel_scale_unused", what=what, dtype=_name(cache.dtype))
    check_tensor(f"{what} scale", scale, tuple(cache.shape[:3]), (torch.float32,), cache.device)


def check_group(query_heads: int, kv_heads: int) -> None:
    """Raise ``ArgumentError`` unless every KV head has the same number of query heads, at least one."""
    if query_heads < 1 or kv_heads < 1 or query_heads % kv_heads:
        raise ArgumentError("kernel_group", query_heads=query_heads, kv_heads=kv_heads)


def check_options(scale: Any, window: Any, softcap: Any) -> None:
    """Raise ``ArgumentError`` unless the scale is finite, the cap finite and positive, the window a count."""
    _check_number("scale", scale)
    if softcap is not None:
        _check_number("softcap", softcap)
        if softcap <= 0:
            raise ArgumentError("kernel_not_positive", what="softcap", value=softcap)
    if window is not None:
        check_count("window", window)


def check_tables(kv: PagedKV, batch: int | str, device: torch.device) -> None:
    """Raise ``ArgumentError`` unless tables and lengths are whole numbers, [B, W] and [B], on ``device``."""
    check_tensor("block_tables", kv.block_tables, (batch, "W"), INDICES, device)
    check_tensor("lengths", kv.lengths, (kv.block_tables.shape[0],), INDICES, device)


def check_table_values(kv: PagedKV, window: int | None, query_starts: Tensor | None = None) -> None:
    """Raise ``ArgumentError`` for a length past the table, or an entry that would be read and is no block.

    Entries behind the window of a sequence's first query may be anything, since no query sees them. Without
    ``query_starts`` each sequence has one query.
    """
    block_tables, lengths = kv.block_tables, kv.lengths
    if not values_are_checked(block_tables):
        return
    blocks, block_size = kv.k.shape[:2]
    width = block_tables.shape[1]
    check_entries("lengths", lengths, 0, width * block_size)
    behind = torch.zeros_like(lengths)
    if window is not None:
        first_queries = lengths - (1 if query_starts is None else query_starts.diff())
        behind = (first_queries - window + 1).clamp(min=0) // block_size
    column = torch.arange(width, device=block_tables.device)
    read = (column >= behind.unsqueeze(1)) & (column * block_size < lengths.unsqueeze(1))
    bad = read & ((block_tables < 0) | (block_tables >= blocks))
    if bad.any():
        row, entry = bad.nonzero()[0].tolist()
        raise ArgumentError(
            "kernel_table", row=row, entry=entry, value=int(block_tables[row, entry]), last=blocks - 1
        )


def check_query_starts(query_starts: Any, lengths: Tensor, tokens: int, max_queries: Any) -> None:
    """Raise ``ArgumentError`` unless ``query_starts`` [B + 1] divides ``tokens`` queries into rows that fit
    ``lengths``.

    No row may be longer than ``max_queries``: the launch is sized by it and would leave the rest out.
    """
    check_count("max_queries", max_queries, least=0)
    check_tensor("query_starts", query_starts, (len(lengths) + 1,), INDICES, lengths.device)
    if tokens > len(lengths) * max_queries:  # this is known without reading the device
        raise ArgumentError("kernel_left_out", tokens=tokens, batch=len(lengths), max_queries=max_queries)
    if not values_are_checked(query_starts):
        return
    starts = query_starts.tolist()
    if starts[0] != 0 or starts[-1] != tokens or any(a > b for a, b in pairwise(starts)):
        raise ArgumentError("kernel_query_starts", starts=starts, tokens=tokens)
    for row, length in enumerate(lengths.tolist()):
        queries = starts[row + 1] - starts[row]
        if queries > length:
            raise ArgumentError("kernel_query_past", row=row, queries=queries, length=length)
        if queries > max_queries:
            raise ArgumentError("kernel_max_queries", row=row, queries=queries, max_queries=max_queries)


def check_entries(what: str, indices: Tensor, low: int, high: int) -> None:
    """Raise ``ArgumentError`` with the first entry outside ``low`` to ``high``, if values are checked."""
    if not indices.numel() or not values_are_checked(indices):
        return
    least, most = torch.aminmax(indices)
    if least < low or most > high:
        flat = indices.flatten()
        place = int(((flat < low) | (flat > high)).nonzero()[0])
        raise ArgumentError("cache_index", what=what, place=place, value=int(flat[place]), low=low, high=high)


def values_are_checked(x: Tensor) -> bool:
    """Return whether the values of index tensors on the device of ``x`` are read before the launch."""
    return x.is_cpu or checked_mode() == "values"


def _check_number(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ArgumentError("kernel_not_finite", what=what, value=value)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
