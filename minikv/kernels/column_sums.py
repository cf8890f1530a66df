"""The attention that a prefill gives each cached token: the public functions, which check and call an implementation.

Lesson 14. A decode returns its scores in the same pass (``return_scores``). A prefill needs a second pass, which reads
the keys again but not the values, for as many of its last queries as are asked for. Shapes as in ``paged_attention``.
"""

from typing import Any

import torch
from torch import Tensor

from minikv.errors import check_count
from minikv.kernels.checks import (
    FLOATS,
    check_cache,
    check_group,
    check_options,
    check_paged_kv,
    check_query_starts,
    check_table_values,
    check_tables,
    check_tensor,
)
from minikv.kernels.dispatch import implementation
from minikv.kernels.latent_attention import check_latents
from minikv.kernels.paged_kv import PagedKV


@torch.no_grad()
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
    """Return the probability that each cached token got, summed over the queries and the heads of its KV head.

    ``query`` [T, Hq, Dk], ``kv``, ``query_starts`` [B + 1] and the options are those of a ``paged_prefill`` without a
    window, and ``lse`` [T, Hq] float32 is its result, which includes the sinks, so that they get their share.
    ``last``: how many of each sequence's last queries count (None: all). Returns float32
    [B, Hkv, W * block_size], 0 for tokens that no query sees. Over all tokens of a KV head the sum is the number of its
    query heads times that of the queries, less the share of sinks. The values in ``kv`` are not read.
    Raises ``ArgumentError`` before anything runs.
    """
    check_paged_kv(kv)
    check_tensor("query", query, ("T", "Hq", "Dk"), FLOATS)
    check_cache("kv.k", kv.k, kv.k_scale, ("N", "block_size", "Hkv", query.shape[2]), query.device)
    check_group(query.shape[1], kv.k.shape[2])
    check_tables(kv, "B", query.device)
    _check_rows(query, kv, query_starts, lse, scale, last, softcap)
    return implementation(query.device).paged_column_sums(
        query, kv, query_starts, lse, scale=scale, last=last, softcap=softcap
    )


@torch.no_grad()
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
    """Return ``paged_column_sums`` over the tensors of ``latent_prefill``: float32 [B, 1, W * block_size]."""
    check_latents(q_latent, q_rope, "T", kv)
    _check_rows(q_latent, kv, query_starts, lse, scale, last, None)
    return implementation(q_latent.device).latent_column_sums(
        q_latent, q_rope, kv, query_starts, lse, scale=scale, last=last
    )


def _check_rows(
    query: Tensor,
    kv: PagedKV,
    query_starts: Any,
    lse: Any,
    scale: Any,
    last: Any,
    softcap: Any,
) -> None:
    """Raise ``ArgumentError`` for the errors that both functions share; the tensors of ``kv`` are right."""
    check_tensor("lse", lse, tuple(query.shape[:2]), (torch.float32,), query.device)
    check_options(scale, None, softcap)
    if last is not None:
        check_count("last", last)
    check_query_starts(query_starts, kv.lengths, query.shape[0], query.shape[0])
    check_table_values(kv, None, query_starts)
