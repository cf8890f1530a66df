"""Prefill by torch's attention, on K and V of a sequence copied out of their blocks. Lesson 10.

On a CPU it serves short prompts: the copy is small, and torch's kernel skips what a causal mask hides.

On a Turing GPU (a T4) it serves float16. Triton compiles no tensor-core product for Turing, and torch's
``scaled_dot_product_attention`` has kernels that use them. A prefill multiplies, so it is given to torch, and what it
copies is bounded; a decode waits for memory, with or without tensor cores, and stays with the kernel that reads the
blocks where they lie.

It has not been measured on a T4 yet. The lengths are read back, so a call waits for the GPU.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minikv.kernels.paged_kv import PagedKV
from minikv.kernels.slots import as_bytes

TURING = 75
# Of one sequence's copies and its mask, which come on top of the peak that a warm-up has measured
MOST_BYTES = 2**26


def suits(
    capability: int,
    query: Tensor,
    kv: PagedKV,
    *,
    max_queries: int,
    softcap: float | None,
    sinks: Tensor | None,
    return_lse: bool,
) -> bool:
    """Return whether ``sdpa_prefill`` can and should compute a prefill instead of the kernel."""
    if capability != TURING or query.dtype != torch.float16 or max_queries == 1:
        return False
    if softcap is not None or sinks is not None or return_lse:
        return False  # torch's function does not take them
    tokens = kv.block_tables.shape[1] * kv.k.shape[1]
    widths = kv.k.shape[2] * (kv.k.shape[3] + kv.v.shape[3])
    # Copied as stored and as float16, scaled in float32; the mask as bool and as the numbers added to the logits.
    return tokens * (7 * widths + 3 * max_queries) <= MOST_BYTES


def sdpa_prefill(
    query: Tensor, kv: PagedKV, query_starts: Tensor, *, scale: float, window: int | None = None
) -> Tensor:
    """Return ``out`` [T, Hq, Dv] of ``minikv.kernels.paged_prefill``, sequence by sequence."""
    out = query.new_zeros(*query.shape[:2], kv.v.shape[3])
    starts = query_starts.tolist()
    for row, length in enumerate(kv.lengths.tolist()):
        own = slice(starts[row], starts[row + 1])
        if own.stop > own.start:
            out[own] = sdpa_sequence(query[own], kv, row, length, scale=scale, window=window)
    return out


def sdpa_sequence(
    query: Tensor, kv: PagedKV, row: int, length: int, *, scale: float, window: int | None
) -> Tensor:
    """Return [n, Hq, Dv] of the queries [n, Hq, Dk], the last n tokens of the ``length`` of sequence ``row``."""
    queries, heads = len(query), kv.v.shape[2]
    position = length - queries  # of the first query
    seen_from = 0 if window is None else max(0, position - window + 1)
    k, v = (
        _tokens(cache, scales, kv.block_tables[row], seen_from, length, query.dtype)
        for cache, scales in ((kv.k, kv.k_scale), (kv.v, kv.v_scale))
    )
    # The query heads of a KV head are in one dimension: [Hkv, G, n, D] over [Hkv, 1, tokens, D].
    rows = query.transpose(0, 1).unflatten(0, (heads, -1))
    whole = seen_from == position == 0 and (window is None or window >= length)
    part = scaled_dot_product_attention(
        rows,
        k.expand(-1, rows.shape[1], -1, -1),
        v.expand(-1, rows.shape[1], -1, -1),
        attn_mask=None if whole else _mask(position, queries, seen_from, length, window, query.device),
        is_causal=whole,
        scale=scale,
    )
    return part.flatten(0, 1).transpose(0, 1)


def _tokens(
    cache: Tensor, scale: Tensor | None, table: Tensor, start: int, end: int, dtype: torch.dtype
) -> Tensor:
    """Return the tokens at the positions ``start`` to ``end - 1`` as [H, 1, tokens, D] of ``dtype``."""
    size = cache.shape[1]
    first = start // size
    blocks = table[first : -(-end // size)]
    part = slice(start - first * size, end - first * size)
    found = as_bytes(cache).index_select(0, blocks).view(cache.dtype).flatten(0, 1)[part]
    if scale is not None:
        found = found.to(torch.float32) * scale.index_select(0, blocks).flatten(0, 1)[part].unsqueeze(-1)
    return found.to(dtype).transpose(0, 1).unsqueeze(1)


def _mask(
    position: int, queries: int, start: int, end: int, window: int | None, device: torch.device
) -> Tensor:
    """Return bool [queries, tokens]: whether each query from ``position`` on sees each token from ``start`` on."""
    query = torch.arange(position, position + queries, device=device).unsqueeze(1)
    key = torch.arange(start, end, device=device)
    seen = key <= query
    return seen if window is None else seen & (key > query - window)
