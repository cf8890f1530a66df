"""Attention over a paged cache: what may be asked, what is checked, and who computes it. Lesson 10.

Shapes: B sequences; Hq query heads, of which Hq / Hkv share a KV head; N blocks of ``block_size`` tokens; W columns of
the block tables. Tables, lengths and query starts are int32 or int64 on the query's device. No gradient flows through.
"""

import torch
from torch import Tensor

from minikv.kernels.attention import Attention
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
def paged_decode(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    lengths: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    return_lse: bool = False,
    return_scores: bool = False,
) -> Attention:
    """One query a sequence, at its last token: softmax(scale * q K^T) V over that sequence's blocks.

    ``query`` [B, Hq, Dk] float16, bfloat16 or float32; ``k_cache`` [N, block_size, Hkv, Dk] and ``v_cache`` [..., Dv],
    views allowed, in those dtypes, float8 or int8, with ``k_scale`` and ``v_scale`` [N, block_size, Hkv] float32 where
    they are scaled; ``block_tables`` [B, W]; ``lengths`` [B] in tokens, the new token included, which has been stored.
    A length of 0 gives zeros: a row of padding.

    ``window``: a query looks at itself and the ``window - 1`` tokens before it. Entries of the table behind it are not
    read, and may be -1. ``softcap``: logits become softcap * tanh(logit / softcap). ``sinks`` [Hq]: a logit for each
    head that takes part in the softmax and brings no value (gpt-oss).

    Returns an ``Attention``: ``out`` [B, Hq, Dv], and ``lse`` and ``scores`` where they are asked for.
    Raises ``ArgumentError`` before anything runs.
    """
    check_tensor("query", query, ("B", "Hq", "Dk"), FLOATS)
    _check_kv(query, k_cache, v_cache, k_scale, v_scale, sinks)
    check_options(scale, window, softcap)
    check_tables(block_tables, lengths, query.shape[0], query.device)
    check_table_values(block_tables, lengths, k_cache, window)
    return implementation(query.device).paged_decode(
        query, k_cache, v_cache, block_tables, lengths, scale=scale, window=window, softcap=softcap, sinks=sinks,
        k_scale=k_scale, v_scale=v_scale, return_lse=return_lse, return_scores=return_scores,
    )  # fmt: skip


@torch.no_grad()
def paged_prefill(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    lengths: Tensor,
    *,
    max_queries: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    return_lse: bool = False,
) -> Attention:
    """Several queries a sequence, its newest tokens: each looks at the cached prefix, at itself and between, causally.

    ``query`` [T, Hq, Dk]: the queries of all sequences one behind the other; sequence i has the rows
    ``query_starts[i]`` to ``query_starts[i + 1] - 1`` ([B + 1], from 0 to T), at its last positions before
    ``lengths[i]``. Their K and V have been stored. So a chunk of a long prompt is a call with the tokens so far as
    its length.
    ``max_queries`` is at least the longest row, known to the caller: it sizes the launch without asking the device.
    Everything else as in ``paged_decode``; ``out`` [T, Hq, Dv], ``lse`` [T, Hq].
    """
    check_tensor("query", query, ("T", "Hq", "Dk"), FLOATS)
    _check_kv(query, k_cache, v_cache, k_scale, v_scale, sinks)
    check_options(scale, window, softcap)
    check_tables(block_tables, lengths, "B", query.device)
    check_query_starts(query_starts, lengths, query.shape[0], max_queries)
    check_table_values(block_tables, lengths, k_cache, window, query_starts)
    return implementation(query.device).paged_prefill(
        query, k_cache, v_cache, block_tables, query_starts, lengths, max_queries=max_queries, scale=scale,
        window=window, softcap=softcap, sinks=sinks, k_scale=k_scale, v_scale=v_scale, return_lse=return_lse,
    )  # fmt: skip


def _check_kv(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    sinks: Tensor | None,
) -> None:
    _, query_heads, dim = query.shape
    check_cache("k_cache", k_cache, k_scale, ("N", "block_size", "Hkv", dim), query.device)
    check_cache("v_cache", v_cache, v_scale, (*k_cache.shape[:3], "Dv"), query.device)
    check_group(query_heads, k_cache.shape[2])
    if sinks is not None:
        check_tensor("sinks", sinks, (query_heads,), FLOATS, query.device)
