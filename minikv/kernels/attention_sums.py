"""The attention that each cached token gets from a prefill, in plain torch: a second pass over the keys. Lesson 14.

The probability that a query gives a key is exp(logit - lse), and its lse is known only after its last key. A decode
keeps its one row of logits until then. The rows of a prefill are too many to keep, so they are computed a second time,
tile by tile, and summed over the queries. Nothing of the size queries * keys is ever allocated.
"""

import torch
from torch import Tensor

from minikv.kernels.attention import QUERY_ROWS, Mask
from minikv.kernels.kv_tiles import Tiles, key_tiles, latent_tiles
from minikv.kernels.paged_kv import PagedKV


def paged_column_sums(
    query: Tensor,
    kv: PagedKV,
    query_starts: Tensor,
    lse: Tensor,
    *,
    scale: float,
    last: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """See ``minikv.kernels.paged_column_sums``."""
    return _as_wide_as(_sums(query, kv, key_tiles(kv), query_starts, lse, scale, last, softcap), kv)


def latent_column_sums(
    q_latent: Tensor,
    q_rope: Tensor,
    kv: PagedKV,
    query_starts: Tensor,
    lse: Tensor,
    *,
    scale: float,
    last: int | None = None,
) -> Tensor:
    """See ``minikv.kernels.latent_column_sums``."""
    query = torch.cat([q_latent, q_rope], -1)
    return _as_wide_as(_sums(query, kv, latent_tiles(kv), query_starts, lse, scale, last, None), kv)


def _sums(
    query: Tensor,
    kv: PagedKV,
    tiles: Tiles,
    query_starts: Tensor,
    lse: Tensor,
    scale: float,
    last: int | None,
    softcap: float | None,
) -> list[Tensor]:
    """Return [Hkv, length] float32 for each sequence, summed over its ``last`` queries (None: all)."""
    heads = kv.k.shape[2]
    group, mask = query.shape[1] // heads, Mask(None, softcap)
    starts, ends, sums = query_starts.tolist(), kv.lengths.tolist(), []
    for row, length in enumerate(ends):
        own = query.new_zeros(heads, length, dtype=torch.float32)
        begin, end = starts[row], starts[row + 1]
        if last is not None:
            begin = max(begin, end - last)
        for first in range(begin, end, QUERY_ROWS):
            part = slice(first, min(first + QUERY_ROWS, end))
            queries, position = part.stop - first, length - end + first
            # [n, Hkv, G, Dk] -> [Hkv, G * n, Dk], and the lse of each row beside it
            by_head = (query[part].to(torch.float32) * scale).unflatten(1, (heads, group))
            rows = by_head.permute(1, 2, 0, 3).flatten(1, 2)
            whole = lse[part].unflatten(1, (heads, group)).permute(1, 2, 0).flatten(1, 2).unsqueeze(-1)
            for start, keys, _ in tiles(kv.block_tables[row], 0, position + queries, heads * rows.shape[1]):
                logits = mask.apply(rows @ keys.permute(1, 2, 0), position, queries, start)
                own[:, start : start + len(keys)] += logits.sub_(whole).exp_().sum(1)
        sums.append(own)
    return sums


def _as_wide_as(sums: list[Tensor], kv: PagedKV) -> Tensor:
    """Return the sums as [B, Hkv, W * block_size], 0 for tokens that no query sees."""
    width = kv.block_tables.shape[1] * kv.k.shape[1]
    out = torch.zeros(len(sums), kv.k.shape[2], width, dtype=torch.float32, device=kv.k.device)
    for row, own in enumerate(sums):
        out[row, :, : own.shape[1]] = own
    return out
