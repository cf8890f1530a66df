"""Attention in the latent space of MLA: what may be asked, what is checked, and who computes it. Lessons 10 and 15.

MLA caches one latent a token instead of K and V of every head. K = latent W_UK, so q K^T = (q W_UK^T) latent^T: the
projection is absorbed into the query, all heads read the same latent, and what comes out is a weighted sum of latents,
which the caller multiplies by W_UV. (DeepSeek-V2, arXiv 2405.04434, section 2.1.)
"""

import torch
from torch import Tensor

from minikv.kernels.attention import Attention
from minikv.kernels.checks import (
    FLOATS,
    check_options,
    check_query_starts,
    check_table_values,
    check_tables,
    check_tensor,
)
from minikv.kernels.dispatch import implementation


@torch.no_grad()
def latent_decode(
    q_latent: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    rope: Tensor,
    block_tables: Tensor,
    lengths: Tensor,
    *,
    scale: float,
    window: int | None = None,
    return_lse: bool = False,
    return_scores: bool = False,
) -> Attention:
    """One query a sequence over its latents: softmax(scale * (q_latent latent^T + q_rope rope^T)) latent.

    ``q_latent`` [B, H, R] and ``q_rope`` [B, H, P] (R 512 and P 64 in DeepSeek-V3); ``latent`` [N, block_size, 1, R]
    and ``rope`` [N, block_size, 1, P], as ``PagedKVCache.layer`` gives them. ``scale`` is that of the full head,
    1 / sqrt(nope + rope) before any YaRN factor. Returns an ``Attention``: ``out`` [B, H, R] in latent space;
    ``scores`` [B, 1, W * block_size]. Everything else as in ``paged_decode``.
    """
    _check_latents(q_latent, q_rope, latent, rope, "B")
    check_options(scale, window, None)
    check_tables(block_tables, lengths, q_latent.shape[0], q_latent.device)
    check_table_values(block_tables, lengths, latent, window)
    return implementation(q_latent.device).latent_decode(
        q_latent, q_rope, latent, rope, block_tables, lengths,
        scale=scale, window=window, return_lse=return_lse, return_scores=return_scores,
    )  # fmt: skip


@torch.no_grad()
def latent_prefill(
    q_latent: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    rope: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    lengths: Tensor,
    *,
    max_queries: int,
    scale: float,
    window: int | None = None,
    return_lse: bool = False,
) -> Attention:
    """Several queries a sequence over its latents: ``latent_decode`` with the rows of ``paged_prefill``.

    ``q_latent`` [T, H, R], ``q_rope`` [T, H, P]; ``out`` [T, H, R], ``lse`` [T, H].
    """
    _check_latents(q_latent, q_rope, latent, rope, "T")
    check_options(scale, window, None)
    check_tables(block_tables, lengths, "B", q_latent.device)
    check_query_starts(query_starts, lengths, q_latent.shape[0], max_queries)
    check_table_values(block_tables, lengths, latent, window, query_starts)
    return implementation(q_latent.device).latent_prefill(
        q_latent, q_rope, latent, rope, block_tables, query_starts, lengths,
        max_queries=max_queries, scale=scale, window=window, return_lse=return_lse,
    )  # fmt: skip


def _check_latents(q_latent: Tensor, q_rope: Tensor, latent: Tensor, rope: Tensor, rows: str) -> None:
    check_tensor("q_latent", q_latent, (rows, "H", "R"), FLOATS)
    count, heads, rank = q_latent.shape
    check_tensor("q_rope", q_rope, (count, heads, "P"), (q_latent.dtype,), q_latent.device)
    check_tensor("latent", latent, ("N", "block_size", 1, rank), FLOATS, q_latent.device)
    check_tensor("rope", rope, (*latent.shape[:3], q_rope.shape[2]), (latent.dtype,), q_latent.device)
