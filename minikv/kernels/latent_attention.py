"""Attention in the latent space of MLA: the public functions, which check and call an implementation.

Lessons 10 and 15. MLA caches one latent a token instead of K and V of every head. K = latent W_UK, so
q K^T = (q W_UK^T) latent^T: the projection is absorbed into the query, and all heads read the same latent. The result
is a weighted sum of latents, which the caller multiplies by W_UV. (DeepSeek-V2, arXiv 2405.04434, section 2.1.)
"""

from typing import Any

import torch
from torch import Tensor

from minikv.kernels.attention import Attention
from minikv.kernels.checks import (
    FLOATS,
    check_cache,
    check_options,
    check_paged_kv,
    check_query_starts,
    check_table_values,
    check_tables,
    check_tensor,
)
from minikv.kernels.dispatch import implementation
from minikv.kernels.paged_kv import PagedKV


@torch.no_grad()
def latent_decode(
    q_latent: Tensor,
    q_rope: Tensor,
    kv: PagedKV,
    *,
    scale: float,
    window: int | None = None,
    return_lse: bool = False,
    return_scores: bool = False,
) -> Attention:
    """Attend with one query a sequence over its latents: softmax(scale * (q_latent latent^T + q_rope rope^T)) latent.

    ``q_latent`` [B, H, R] and ``q_rope`` [B, H, P] (R 512 and P 64 in DeepSeek-V3), float16, bfloat16 or float32;
    ``kv.k`` [N, block_size, 1, R] is the latent and ``kv.v`` [N, block_size, 1, P] the rope key, of one float dtype and
    without scales, as ``PagedKVCache.layer`` returns them. ``scale`` is that of the full head, 1 / sqrt(nope + rope)
    before any YaRN factor. Returns an ``Attention``: ``out`` [B, H, R] in latent space; ``scores``
    [B, 1, W * block_size]. Everything else as in ``paged_decode``.
    """
    check_latents(q_latent, q_rope, "B", kv)
    check_options(scale, window, None)
    check_table_values(kv, window)
    return implementation(q_latent.device).latent_decode(
        q_latent, q_rope, kv, scale=scale, window=window, return_lse=return_lse, return_scores=return_scores
    )


@torch.no_grad()
def latent_prefill(
    q_latent: Tensor,
    q_rope: Tensor,
    kv: PagedKV,
    query_starts: Tensor,
    *,
    max_queries: int,
    scale: float,
    window: int | None = None,
    return_lse: bool = False,
) -> Attention:
    """Attend with several queries a sequence over its latents: ``latent_decode`` with the rows of ``paged_prefill``.

    ``q_latent`` [T, H, R], ``q_rope`` [T, H, P]; ``out`` [T, H, R], ``lse`` [T, H].
    """
    check_latents(q_latent, q_rope, "T", kv)
    check_options(scale, window, None)
    check_query_starts(query_starts, kv.lengths, q_latent.shape[0], max_queries)
    check_table_values(kv, window, query_starts)
    return implementation(q_latent.device).latent_prefill(
        q_latent, q_rope, kv, query_starts,
        max_queries=max_queries, scale=scale, window=window, return_lse=return_lse,
    )  # fmt: skip


def check_latents(q_latent: Any, q_rope: Any, rows: str, kv: Any) -> None:
    """Raise ``ArgumentError`` unless these are queries in latent space and ``kv`` holds latents and rope keys.

    ``rows`` is "B" where a sequence has one query, else "T".
    """
    check_paged_kv(kv)
    check_tensor("q_latent", q_latent, (rows, "H", "R"), FLOATS)
    count, heads, rank = q_latent.shape
    check_tensor("q_rope", q_rope, (count, heads, "P"), (q_latent.dtype,), q_latent.device)
    check_cache("kv.k", kv.k, kv.k_scale, ("N", "block_size", 1, rank), q_latent.device, FLOATS)
    rope_shape = (*kv.k.shape[:3], q_rope.shape[2])
    check_cache("kv.v", kv.v, kv.v_scale, rope_shape, q_latent.device, (kv.k.dtype,))
    check_tables(kv, count if rows == "B" else "B", q_latent.device)
