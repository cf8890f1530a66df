"""The attention that a prefill gives each cached token: what may be asked, what is checked, who computes it. Lesson 14.

A decode gives its scores in the pass that computes it (``return_scores``). A prefill needs a second one, which reads
the keys again, not the values, for as many queries at the end as are asked for. Shapes as in ``paged_attention``.
"""

import torch
from torch import Tensor

from minikv.errors import check_count
from minikv.kernels.checks import (
    FLOATS,
    check_cache,
    check_group,
    check_options,
    check_query_starts,
    check_table_values,
    check_tables,
    check_tensor,
)
from minikv.kernels.dispatch import implementation


@torch.no_grad()
def paged_column_sums(
    query: Tensor,
    k_cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    lengths: Tensor,
    lse: Tensor,
    *,
    scale: float,
    last: int | None = None,
    softcap: float | None = None,
    k_scale: Tensor | None = None,
) -> Tensor:
    """The probability that each cached token got, summed over the queries and over the heads of its KV head.

    ``query`` [T, Hq, Dk], ``block_tables`` [B, W], ``query_starts`` [B + 1], ``lengths`` [B] and the options are those
    of a ``paged_prefill`` without a window, and ``lse`` [T, Hq] float32 is what that gave: with the sinks in it, so
    that they get their share. ``last``: the queries of each sequence that count, from its last one backwards (None:
    all). Returns float32 [B, Hkv, W * block_size], 0 where no query looked; over all tokens of a KV head the sum is
    the number of its query heads times that of the queries, less what sinks took.
    Raises ``ArgumentError`` before anything runs.
    """
    check_tensor("query", query, ("T", "Hq", "Dk"), FLOATS)
    cache_shape = ("N", "block_size", "Hkv", query.shape[2])
    check_cache("k_cache", k_cache, k_scale, cache_shape, query.device)
    check_group(query.shape[1], k_cache.shape[2])
    _check_rows(query, lse, block_tables, query_starts, lengths, k_cache, scale, last, softcap)
    return implementation(query.device).paged_column_sums(
        query, k_cache, block_tables, query_starts, lengths, lse,
        scale=scale, last=last, softcap=softcap, k_scale=k_scale,
    )  # fmt: skip


@torch.no_grad()
def latent_column_sums(
    q_latent: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    rope: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    lengths: Tensor,
    lse: Tensor,
    *,
    scale: float,
    last: int | None = None,
) -> Tensor:
    """``paged_column_sums`` over latents, with the tensors of ``latent_prefill``: float32 [B, 1, W * block_size]."""
    check_tensor("q_latent", q_latent, ("T", "H", "R"), FLOATS)
    count, heads, rank = q_latent.shape
    check_tensor("q_rope", q_rope, (count, heads, "P"), (q_latent.dtype,), q_latent.device)
    check_tensor("latent", latent, ("N", "block_size", 1, rank), FLOATS, q_latent.device)
    check_tensor("rope", rope, (*latent.shape[:3], q_rope.shape[2]), (latent.dtype,), q_latent.device)
    _check_rows(q_latent, lse, block_tables, query_starts, lengths, latent, scale, last, None)
    return implementation(q_latent.device).latent_column_sums(
        q_latent, q_rope, latent, rope, block_tables, query_starts, lengths, lse, scale=scale, last=last
    )


def _check_rows(
    query: Tensor,
    lse: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    lengths: Tensor,
    cache: Tensor,
    scale: float,
    last: int | None,
    softcap: float | None,
) -> None:
    check_tensor("lse", lse, tuple(query.shape[:2]), (torch.float32,), query.device)
    check_options(scale, None, softcap)
    if last is not None:
        check_count("last", last)
    check_tables(block_tables, lengths, "B", query.device)
    check_query_starts(query_starts, lengths, query.shape[0], query.shape[0])
    check_table_values(block_tables, lengths, cache, None, query_starts)
