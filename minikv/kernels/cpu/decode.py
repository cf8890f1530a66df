"""Decode on a CPU by ``paged_decode.c``: the pages are read where they lie, once, at memory's speed. Lesson 10.

It reads float32 pages with contiguous rows. Without a C compiler, and for other dtypes or scores, the call goes to
``attention.paged_decode`` of plain torch, which gives the same.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minikv.kernels import attention
from minikv.kernels.attention import Attention
from minikv.kernels.c_library import call, load
from minikv.kernels.paged_kv import PagedKV

SOURCE = Path(__file__).parent / "paged_decode.c"
ROWS = 32  # query heads of a task at the most: with their sums they stay in the first cache
TASKS = 4  # a thread at the least, so that threads end at about the same time
SHORT = 128  # tokens of a prompt that is computed as so many decodes
MOST_ENTRIES = 2**21  # of the tables of a prompt's tokens, which each have a row: 8 MiB
EVERYTHING = 2**62  # tokens of a window
WITHIN = 1e-4  # of the first result, beside plain torch's


class _Decode(ctypes.Structure):
    """``Decode`` of the C source."""

    _pointer, _count, _real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    _fields_ = (
        ("k", _pointer),
        ("v", _pointer),
        ("k_strides", _count * 3),
        ("v_strides", _count * 3),
        ("tables", _pointer),
        ("lengths", _pointer),
        ("query", _pointer),
        ("sinks", _pointer),
        ("out", _pointer),
        ("lse", _pointer),
        ("sequences", _count),
        ("width", _count),
        ("block_size", _count),
        ("heads", _count),
        ("heads_a_task", _count),
        ("window", _count),
        ("scale", _real),
        ("softcap", _real),
    )


def paged_decode(
    query: Tensor,
    kv: PagedKV,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    return_scores: bool = False,
) -> Attention:
    """See ``minikv.kernels.paged_decode``."""
    options: dict[str, Any] = {"scale": scale, "window": window, "softcap": softcap, "sinks": sinks}
    run = None if return_scores else _kernel(query, kv)
    if run is None:
        options |= {"return_lse": return_lse, "return_scores": return_scores}
        return attention.paged_decode(query, kv, **options)
    return _decoded(run, query, kv, return_lse=return_lse, **options)


def _decoded(
    run: Callable,
    query: Tensor,
    kv: PagedKV,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
) -> Attention:
    batch, query_heads, _ = query.shape
    heads, v_dim = kv.v.shape[2:]
    # One kind of integers, read by all layers of a step.
    index = kv.once("int32", lambda: (_rows(kv.block_tables, torch.int32), _rows(kv.lengths, torch.int32)))
    tables, lengths = index
    rows, late = _rows(query, torch.float32), None if sinks is None else _rows(sinks, torch.float32)
    out = rows.new_empty(batch, query_heads, v_dim)
    lse = rows.new_empty(batch, query_heads) if return_lse else None
    asked = _Decode(
        kv.k.data_ptr(),
        kv.v.data_ptr(),
        kv.k.stride()[:3],
        kv.v.stride()[:3],
        tables.data_ptr(),
        lengths.data_ptr(),
        rows.data_ptr(),
        None if late is None else late.data_ptr(),
        out.data_ptr(),
        None if lse is None else lse.data_ptr(),
        batch,
        tables.shape[1],
        kv.k.shape[1],
        heads,
        heads_a_task(batch, heads, query_heads // heads, torch.get_num_threads()),
        EVERYTHING if window is None else min(window, EVERYTHING),
        scale,
        softcap or 0.0,
    )
    call(run, ctypes.byref(asked))
    return Attention(out.to(query.dtype), lse, None)


def paged_prefill(query: Tensor, kv: PagedKV, query_starts: Tensor, **options: Any) -> Attention:
    """See ``minikv.kernels.paged_prefill``."""
    parts: dict[str, Any] = {}
    if _kernel(query, kv) is not None:
        fits = len(query) * kv.block_tables.shape[1] <= MOST_ENTRIES
        parts = {"decode": paged_decode, "short": SHORT if fits else 0}
    return attention.paged_prefill(query, kv, query_starts, **options, **parts)


def _kernel(query: Tensor, kv: PagedKV) -> Callable | None:
    """Return the compiled function for these tensors, or None where plain torch has to serve."""
    pages = (kv.k, kv.v)
    plain = kv.k_scale is None and kv.v_scale is None and all(each.dtype == torch.float32 for each in pages)
    if not plain or not query.is_cpu or any(each.stride(3) != 1 for each in pages):
        return None
    return _compiled(kv.k.shape[3], kv.v.shape[3], query.shape[1] // kv.k.shape[2])


@cache
def _compiled(dim: int, v_dim: int, group: int) -> Callable | None:
    """Return the function for heads of this shape; None where it cannot be had, or does not give what torch does."""
    library = load(SOURCE, DIM=dim, V_DIM=v_dim, GROUP=group, ROWS=max(ROWS, group))
    if library is None:
        return None
    run = library.paged_decode
    run.restype = None
    # As many sequences as leave all heads of one in a task.
    sequences, heads = TASKS * torch.get_num_threads(), 2
    shapes = (sequences, heads * group, dim), (3, 16, heads, dim), (3, 16, heads, v_dim)
    with torch.device("cpu"):
        generator = torch.Generator("cpu").manual_seed(0)
        query, k, v = (torch.randn(shape, generator=generator, dtype=torch.float32) for shape in shapes)
        table = torch.tensor([[2, 0, 1]] * sequences, dtype=torch.int32)
        kv = PagedKV(k, v, table, torch.full_like(table[:, 0], 40))
        plain = attention.paged_decode(query, kv, scale=dim**-0.5).out
        found = _decoded(run, query, kv, dim**-0.5).out
    return run if torch.allclose(found, plain, rtol=0, atol=WITHIN) else None


@cache
def heads_a_task(sequences: int, heads: int, group: int, threads: int) -> int:
    """Return how many KV heads of a sequence are one task, a divisor of ``heads``: all of them where that leaves each
    thread ``TASKS`` tasks, since a token's heads lie side by side."""
    most = min(max(1, ROWS // group), max(1, sequences * heads // (TASKS * threads)))
    return max(count for count in range(1, heads + 1) if heads % count == 0 and count <= most)


def _rows(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype).contiguous()
