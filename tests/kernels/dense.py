"""Attention as the textbook has it, in float64 and one query at a time; and random paged caches to ask it about."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from minikv.kernels import PagedKV
from minikv.kernels.quantize import quantize


@dataclass
class Case:
    """One call: what the operation is given, and what its sequences really hold (float64, in order)."""

    query: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    lengths: Tensor
    query_starts: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    @property
    def kv(self) -> PagedKV:
        """What the operation reads; made of what the fields are now."""
        tables = self.block_tables, self.lengths
        return PagedKV(self.k_cache, self.v_cache, *tables, self.k_scale, self.v_scale)

    @property
    def max_queries(self) -> int:
        return int(self.query_starts.diff().max())


def make_case(
    lengths: list[int],
    *,
    queries: list[int] | None = None,
    kv_heads: int = 2,
    group: int = 4,
    dims: tuple[int, int] = (64, 64),
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    stored: torch.dtype | None = None,
    scaled: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    wide: bool = False,
    spare: int = 3,
    seed: int = 0,
    device: str = "cpu",
    index_dtype: torch.dtype = torch.int32,
    sharpness: float = 1.0,
) -> Case:
    """Sequences of these lengths on shuffled blocks, every place that no query may read poisoned with NaN.

    ``queries``: queries of each sequence (default: one, a decode). ``stored``: the dtype of the cache. ``wide``: K and
    V are views of one tensor. Table entries past the length and behind every window are -1. ``sharpness`` scales the
    queries, so that a softmax has peaks.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = queries or [min(1, length) for length in lengths]
    stored = stored or dtype
    needed = [-(-length // block_size) for length in lengths]
    total = sum(needed) + spare
    order = torch.randperm(total, generator=generator)
    shape = (total, block_size, kv_heads)
    if wide:
        whole = torch.empty(*shape, sum(dims), dtype=stored)
        caches = [whole[..., : dims[0]], whole[..., dims[0] :]]
    else:
        caches = [torch.empty(*shape, dim, dtype=stored) for dim in dims]
    scales = [torch.full(shape, float("nan")) for _ in dims] if scaled else [None, None]
    for cache in caches:
        _poison(cache)
    tables = torch.full((len(lengths), max([1, *needed]) + 1), -1, dtype=index_dtype)
    held: tuple[list[Tensor], list[Tensor]] = ([], [])
    taken = 0
    for row, (length, count) in enumerate(zip(lengths, needed, strict=True)):
        blocks = order[taken : taken + count]
        taken += count
        slots = (blocks[:, None] * block_size + torch.arange(block_size)).flatten()[:length]
        first = 0 if window is None else max(0, length - rows[row] - window + 1)
        for dim, cache, scale, kept in zip(dims, caches, scales, held, strict=True):
            tokens = torch.randn(length, kv_heads, dim, generator=generator)
            data, factor = quantize(tokens, stored) if scaled else (tokens.to(stored), None)
            real = data.to(torch.float64)
            at = slots[first:]
            cache[at // block_size, at % block_size] = data[first:]
            if scale is not None and factor is not None:
                scale[at // block_size, at % block_size] = factor[first:]
                real = real * factor.double().unsqueeze(-1)
            kept.append(real)
        tables[row, :count] = blocks.to(index_dtype)
        tables[row, : first // block_size] = -1
    tokens = sum(rows)
    query = (torch.randn(tokens, kv_heads * group, dims[0], generator=generator) * sharpness).to(dtype)
    options: dict[str, Any] = dict(scale=dims[0] ** -0.5, window=window, softcap=softcap)
    if sinks:
        options["sinks"] = torch.randn(kv_heads * group, generator=generator).to(device)
    starts = torch.tensor([0, *torch.tensor(rows).cumsum(0).tolist()], dtype=index_dtype)
    moved = [x.to(device) for x in (query, *caches, tables, torch.tensor(lengths, dtype=index_dtype), starts)]
    if wide:  # .to() would have made two tensors of the views
        whole = whole.to(device)
        moved[1:3] = whole[..., : dims[0]], whole[..., dims[0] :]
    return Case(*moved, *held, options, *(None if scale is None else scale.to(device) for scale in scales))


def _poison(cache: Tensor) -> None:
    if cache.dtype.is_floating_point:
        cache.fill_(float("nan"))
    else:
        cache.fill_(-128)  # int8 has no NaN; its scales do


def dense(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """(out [T, Hq, Dv], lse [T, Hq], scores [T, Hkv, W * block_size]), float64 on the CPU, one query at a time."""
    query = case.query.cpu().double()
    heads = case.k_cache.shape[2]
    width = case.block_tables.shape[1] * case.k_cache.shape[1]
    count, query_heads, _ = query.shape
    group = query_heads // heads
    out = torch.zeros(count, query_heads, case.v_cache.shape[3], dtype=torch.float64)
    lse = torch.full((count, query_heads), -torch.inf, dtype=torch.float64)
    scores = torch.zeros(count, heads, width, dtype=torch.float64)
    scale, window, softcap = (case.options.get(name) for name in ("scale", "window", "softcap"))
    sinks = case.options.get("sinks")
    starts, lengths = case.query_starts.tolist(), case.lengths.tolist()
    for row, length in enumerate(lengths):
        for index in range(starts[row], starts[row + 1]):
            position = length - starts[row + 1] + index
            first = 0 if window is None else max(0, position - window + 1)
            keys, values = (held[row][first : position + 1] for held in (case.keys, case.values))
            # of each KV head h and each query head g of it; the softmax is over the tokens n
            logits = torch.einsum("nhd,hgd->hgn", keys, query[index].unflatten(0, (heads, group))) * scale
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
            seen = (
                logits
                if sinks is None
                else torch.cat([logits, sinks.cpu().double().view(heads, group, 1)], -1)
            )
            total = torch.logsumexp(seen, -1)
            weights = torch.exp(logits - total[..., None])
            lse[index] = total.flatten()
            out[index] = torch.einsum("hgn,nhd->hgd", weights, values).flatten(0, 1)
            scores[index, :, first : position + 1] = weights.sum(1)
    return out, lse, scores
