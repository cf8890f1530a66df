"""The attention probabilities of a forward, reduced tile by tile to a number a token. Lesson 14.

A fused attention kernel returns no probabilities, so they are computed beside it from queries and keys, a few rows of
the [T, S] matrix at a time: a long prompt needs no more memory. A single query needs no second pass: ``attend_once``
gives its output and its probabilities together.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minikv.eviction.policies.policy import Policy

TILE_ELEMENTS = 2**24  # probabilities at a time: 64 MiB of float32


@dataclass(frozen=True, eq=False)
class Logits:
    """How a layer makes logits of queries and keys: ``softcap`` (Gemma 2), ``sinks`` [Hq] sink logits (gpt-oss)."""

    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None

    @classmethod
    def of(cls, query: Tensor, options: dict[str, Any]) -> "Logits":
        """Make it from the options that transformers passes to an attention function."""
        scale = options.get("scaling")
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return cls(scale, options.get("softcap"), options.get("s_aux"))


def probabilities(query: Tensor, key: Tensor, how: Logits, mask: Tensor | None) -> Tensor:
    """[B, Hq, t, S] float32 of ``query`` [B, Hq, t, D] on ``key`` [B, Hk, S, D]; a sink's share is left out.

    ``mask``: bool (True: seen) or added to the logits, broadcast to [B, Hq, t, S]; None: all seen.
    """
    rows = _rows(query, key.shape[1], how)
    return _softmax(torch.matmul(rows, key.transpose(2, 3)), query, how, mask)


def attend_once(
    query: Tensor, key: Tensor, value: Tensor, how: Logits, mask: Tensor | None, beside: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """A decode step's output [B, 1, Hq, Dv] in the dtype of ``value``, and its probabilities [B, Hq, 1, S] float32.

    ``beside`` [B, Hk, D]: multiplied with every key in the same pass, since most of the time goes into reading the
    keys; the products [B, Hk, S] are the third result.
    """
    rows = _rows(query, key.shape[1], how)
    more = rows if beside is None else torch.cat((rows, beside.unsqueeze(2)), 2)
    products = torch.matmul(more, key.transpose(2, 3))
    probs = _softmax(products[:, :, : rows.shape[2]], query, how, mask)
    batch, heads = query.shape[:2]
    groups = value.shape[1]
    weights = probs.view(batch, groups, heads // groups, -1).to(value.dtype)
    out = torch.matmul(weights, value).reshape(batch, 1, heads, -1)
    return out, probs, None if beside is None else products[:, :, -1]


def _rows(query: Tensor, groups: int, how: Logits) -> Tensor:
    """[B, Hk, Hq / Hk * t, D]: the queries [B, Hq, t, D], those that read the same keys one under the other."""
    batch, heads, rows, _ = query.shape
    stacked = query.reshape(batch, groups, heads // groups * rows, -1)
    return stacked * how.scale if _small(query) else stacked


def _softmax(products: Tensor, query: Tensor, how: Logits, mask: Tensor | None) -> Tensor:
    """``products`` [B, Hk, Hq / Hk * t, S] of ``_rows`` and keys as probabilities [B, Hq, t, S]."""
    batch, heads, rows, _ = query.shape
    logits = _logits(products, query, how)
    if mask is not None:
        # The least number, not -inf: a query of padding may see no key, and its row must not become NaN.
        least = torch.finfo(torch.float32).min
        logits = logits.masked_fill(~mask, least) if mask.dtype == torch.bool else logits + mask
    if how.sinks is None:
        return logits.softmax(-1)
    sinks = how.sinks.float().view(1, -1, 1, 1).expand(batch, heads, rows, 1)
    return torch.cat((logits, sinks), -1).softmax(-1)[..., :-1]


def logits_of(query: Tensor, key: Tensor, how: Logits) -> Tensor:
    """[B, Hq, t, S] float32: the logits of ``probabilities``, no key masked."""
    return _logits(torch.matmul(_rows(query, key.shape[1], how), key.transpose(2, 3)), query, how)


def _logits(products: Tensor, query: Tensor, how: Logits) -> Tensor:
    logits = products.float()
    return capped((logits if _small(query) else logits * how.scale).reshape(*query.shape[:3], -1), how)


def capped(logits: Tensor, how: Logits) -> Tensor:
    """``logits`` of any shape below ``how.softcap``, where there is one."""
    return logits if how.softcap is None else how.softcap * torch.tanh(logits / how.softcap)


def _small(query: Tensor) -> bool:
    """Whether products must not pass 65504 before they are scaled."""
    return query.dtype == torch.float16


def column_stats(
    query: Tensor,
    key: Tensor,
    how: Logits,
    *,
    mask: Tensor | None,
    counted: Tensor | None,
    policy: Policy,
    heads: int,
) -> Tensor:
    """What the queries [B, Hq, T, D] gave to each key [B, Hk, S, D], reduced as ``policy`` says: [B, heads, S] float32.

    ``mask`` as in ``probabilities``; None: query i sees the keys up to S - T + i. ``counted`` [B, T] bool: False for
    the queries of padding, which count nothing. ``heads``: the heads of the cache, 1 for latents.
    """
    batch, query_heads, queries, _ = query.shape
    tokens = key.shape[2]
    weight = _weights(policy, counted, queries, query.device)
    total = query.new_zeros(batch, heads, tokens, dtype=torch.float32)
    rows = max(1, TILE_ELEMENTS // (batch * query_heads * tokens))
    for start in range(0, queries, rows):
        end = min(queries, start + rows)
        seen = tokens if mask is not None else tokens - queries + end  # later keys give nothing
        tile = (
            _causal(start, end, tokens - queries, seen, query.device)
            if mask is None
            else mask[..., start:end, :]
        )
        probs = probabilities(query[:, :, start:end], key[:, :, :seen], how, tile)
        joined = join_group(probs, heads, policy.over_group)
        if weight is not None:
            joined = joined * weight[:, None, start:end, None]
        _join(total[..., :seen], joined, policy.over_queries)
    return total


def join_group(per_query_head: Tensor, heads: int, how: str) -> Tensor:
    """[B, Hq, ...] -> [B, heads, ...]: the query heads that share a KV head, by their "sum", "mean" or "max"."""
    grouped = per_query_head.unflatten(1, (heads, -1))
    return grouped.amax(2) if how == "max" else grouped.mean(2) if how == "mean" else grouped.sum(2)


def window_stats(
    query: Tensor, places: Tensor, key: Tensor, positions: Tensor, how: Logits, heads: int
) -> Tensor:
    """The mean probability of the queries [B, Hq, W, D] on the keys [B, Hk, S, D]: [B, heads, S] float32.

    ``places`` [B, W] int64: the queries' positions, -1 for padding, which counts nothing. ``positions`` [B, H or 1, S]:
    the keys'. The mean is over the queries and over the query heads of a KV head.
    """
    counted = places >= 0
    seen = (positions[:, :, None] <= places[:, None, :, None]) & (positions >= 0)[:, :, None]
    seen = seen | ~seen.any(-1, keepdim=True)  # a query of padding sees all keys: a softmax over none is NaN
    repeats = query.shape[1] // seen.shape[1] if seen.shape[1] > 1 else 1
    probs = probabilities(query, key, how, seen.repeat_interleave(repeats, dim=1))
    weight = counted.float() / counted.sum(-1, keepdim=True).clamp(min=1)
    return join_group((probs * weight[:, None, :, None]).sum(2), heads, "mean")


def _weights(policy: Policy, counted: Tensor | None, queries: int, device: torch.device) -> Tensor | None:
    """[B or 1, T] float32: the weight of each query; None: all 1."""
    weight = policy.query_weight(torch.arange(queries - 1, -1, -1, device=device))
    if counted is None:
        return None if weight is None else weight[None]
    return counted.float() if weight is None else counted.float() * weight


def _causal(start: int, end: int, before: int, seen: int, device: torch.device) -> Tensor:
    """[end - start, seen] bool: the query i sees the keys up to ``before + i``."""
    queries = torch.arange(start, end, device=device)[:, None]
    return torch.arange(seen, device=device) <= before + queries


def _join(total: Tensor, probs: Tensor, how: str) -> None:
    """Add the rows of ``probs`` [B, H, t, S] to ``total`` [B, H, S] in place, or take their maximum."""
    if how == "max":
        torch.maximum(total, probs.amax(2), out=total)
    else:
        total += probs.sum(2)
