"""Attention over a paged cache: the public functions, which check and call an implementation. Lesson 10.

Shapes: B sequences; Hq query heads, of which Hq / Hkv share a KV head; N blocks of ``block_size`` tokens; W columns of
the block tables. They have no gradient.
"""

from typing import Any

import torch
from torch import Tensor

from minikv.kernels.attention import Attention
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
from minikv.kernels.paged_kv import PagedKV


@torch.no_grad()
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
    """Attend with one query a sequence, at its last token: softmax(scale * q K^T) V over that sequence's blocks.

    ``query`` [B, Hq, Dk] float16, bfloat16 or float32. The new tokens are stored in ``kv`` already, and its lengths
    count them. A length of 0 gives zeros: a row of padding.

    ``window``, in tokens: a query sees itself and the ``window - 1`` tokens before it; None: all. ``softcap``: logits
    become softcap * tanh(logit / softcap). ``sinks`` [Hq]: a logit for each head that takes part in the softmax and
    has no value (gpt-oss).

    Returns an ``Attention``: ``out`` [B, Hq, Dv], and ``lse`` and ``scores`` if they are asked for.
    Raises ``ArgumentError`` before anything runs.
    """
    _check(query, "B", kv, scale, window, softcap, sinks)
    check_table_values(kv, window)
    return implementation(query.device).paged_decode(
        query, kv, scale=scale, window=window, softcap=softcap, sinks=sinks,
        return_lse=return_lse, return_scores=return_scores,
    )  # fmt: skip


@torch.no_grad()
def paged_prefill(
    query: Tensor,
    kv: PagedKV,
    query_starts: Tensor,
    *,
    max_queries: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
) -> Attention:
    """Attend with several queries a sequence, its newest tokens, each over the cached prefix and the queries up to it.

    ``query`` [T, Hq, Dk]: the queries of all sequences, one sequence after the other; sequence i has the rows
    ``query_starts[i]`` to ``query_starts[i + 1] - 1`` ([B + 1] int32 or int64, from 0 to T), at its last positions
    before ``kv.lengths[i]``. Their K and V are stored already. So for a chunk of a long prompt the
    length counts the tokens up to the chunk's end. ``max_queries`` is at least the longest row: it sizes the launch
    without reading the device. Everything else as in ``paged_decode``; ``out`` [T, Hq, Dv], ``lse`` [T, Hq].

    A row of ``query`` that no sequence has is refused where values are checked. On a GPU they are not, by default, and
    the result of such a row may be read from any address.
    """
    _check(query, "T", kv, scale, window, softcap, sinks)
    check_query_starts(query_starts, kv.lengths, query.shape[0], max_queries)
    check_table_values(kv, window, query_starts)
    return implementation(query.device).paged_prefill(
        query, kv, query_starts, max_queries=max_queries, scale=scale, window=window, softcap=softcap, sinks=sinks,
        return_lse=return_lse,
    )  # fmt: skip


def _check(
    query: Any,
    rows: str,
    kv: Any,
    scale: Any,
    window: Any,
    softcap: Any,
    sinks: Any,
) -> None:
    """Raise ``ArgumentError`` for errors of both; ``rows`` is "B" where a sequence has one query, else "T"."""
    check_paged_kv(kv)
    check_tensor("query", query, (rows, "Hq", "Dk"), FLOATS)
    count, query_heads, dim = query.shape
    check_cache("kv.k", kv.k, kv.k_scale, ("N", "block_size", "Hkv", dim), query.device)
    check_cache("kv.v", kv.v, kv.v_scale, (*kv.k.shape[:3], "Dv"), query.device)
    check_group(query_heads, kv.k.shape[2])
    if sinks is not None:
        check_tensor("sinks", sinks, (query_heads,), FLOATS, query.device)
    check_options(scale, window, softcap)
    check_tables(kv, count if rows == "B" else "B", query.device)
