"""select: which tokens stay. Sinks and the recent window always, then the best scores. Lesson 14.

Among equal scores the earlier token stays. Padding goes first, so a padded row keeps the same tokens as the row alone.
"""

import torch
from torch import Tensor

from minikv.errors import ArgumentError, check_choice, check_count
from minikv.eviction.policies.choices import Scope

_LIMIT = 1e30  # scores are cut off here: above it stand the protected tokens, below it padding


def select(
    score: Tensor,
    *,
    valid: Tensor,
    n_sink: int,
    n_recent: int,
    budget: int,
    scope: str = "layer",
    positions: Tensor | None = None,
) -> Tensor:
    """The indices [B, H, keep] int64, ascending, of the tokens that stay; keep = min(S, n_sink + budget + n_recent).

    ``score`` [B, H, S] float: larger stays. ``valid`` [B, S] bool: False is padding. The first ``n_sink`` and the last
    ``n_recent`` valid tokens of a row stay whatever their score. ``scope`` "head": every head keeps its own tokens;
    "layer": all heads keep the same, by the mean of their scores, which are in one unit within a layer (probabilities,
    norms, cosines). ``positions`` [B, H or 1, S] int64: the tokens' places in their text (-1: padding) where they do
    not lie in that order; None: they do.

    Raises ``ArgumentError`` for shapes that do not match, a score that is not a number, and a bad count.
    """
    _check(score, valid, scope, positions)
    for what, value in (("n_sink", n_sink), ("n_recent", n_recent), ("budget", budget)):
        check_count(what, value, 0)
    batch, heads, tokens = score.shape
    keep = min(tokens, n_sink + budget + n_recent)
    if positions is None:
        places, ordered = ordinals(valid), True
    else:
        places, ordered = positions, False
    ranked = rank(score, places, n_sink=n_sink, n_recent=n_recent, scope=scope)
    chosen = best_first(ranked, None if ordered else places)[..., :keep].sort(-1).values
    return chosen.expand(batch, heads, keep)


def ordinals(valid: Tensor) -> Tensor:
    """[B, 1, S] int64: each valid token's place among the valid ones of its row, from 0; -1 for padding."""
    places = valid.long().cumsum(-1) - 1
    return places.masked_fill(~valid, -1).unsqueeze(1)


def rank(score: Tensor, places: Tensor, *, n_sink: int, n_recent: int, scope: str) -> Tensor:
    """``score`` [B, H, S] as float32 [B, H or 1, S] with protected tokens at +inf and padding at -inf.

    ``places`` [B, H or 1, S]: as ``ordinals`` or positions. The recent window ends at the largest place of a row. A NaN
    counts as the lowest score, so that it cannot displace a protected token.
    """
    ranked = score.float().clamp(-_LIMIT, _LIMIT)  # leaves NaN
    if scope == "layer":
        ranked = ranked.mean(1, keepdim=True)
        places = places[:, :1]
    ranked = ranked.nan_to_num(-_LIMIT)
    newest = places.amax(-1, keepdim=True)
    protected = (places < n_sink) | (places > newest - n_recent)
    return ranked.masked_fill(protected, torch.inf).masked_fill(places < 0, -torch.inf)


def best_first(ranked: Tensor, places: Tensor | None = None) -> Tensor:
    """Indices [B, H, S] from the token to keep first to the one to drop first; equal ones by their place.

    ``places`` [B, H or 1, S] where the tokens do not lie in the order of their places.
    """
    if places is None:
        return ranked.argsort(dim=-1, descending=True, stable=True)
    places = places[:, : ranked.shape[1]].expand_as(ranked)
    by_place = places.argsort(dim=-1, stable=True)
    order = ranked.gather(-1, by_place).argsort(dim=-1, descending=True, stable=True)
    return by_place.gather(-1, order)


def worst(ranked: Tensor, places: Tensor) -> Tensor:
    """[B, H, 1] int64: the one token to drop, the last of ``best_first``, found without sorting."""
    places = places[:, : ranked.shape[1]].expand_as(ranked)
    least = ranked.amin(-1, keepdim=True)
    return places.masked_fill(ranked != least, -2).argmax(-1, keepdim=True)


def few_worst(score: Tensor, places: Tensor, few: int, *, n_sink: int, n_recent: int, scope: str) -> Tensor:
    """[B, H or 1, few] int64: the tokens to drop, the worst last. ``places`` [B, H or 1, S]: positions."""
    ranked = rank(score, places, n_sink=n_sink, n_recent=n_recent, scope=scope)
    return worst(ranked, places) if few == 1 else best_first(ranked, places)[..., -few:]


def _check(score: Tensor, valid: Tensor, scope: str, positions: Tensor | None) -> None:
    check_choice("scope", scope, Scope)
    if score.dim() != 3:
        raise ArgumentError("cache_shape", what="score", shape=list(score.shape), expected="[B, H, S]")
    batch, heads, tokens = score.shape
    if tuple(valid.shape) != (batch, tokens) or valid.dtype != torch.bool:
        given = [*valid.shape, valid.dtype]
        raise ArgumentError("cache_shape", what="valid", shape=given, expected=f"[{batch}, {tokens}] bool")
    if positions is not None and tuple(positions.shape) not in {(batch, 1, tokens), tuple(score.shape)}:
        expected = f"[{batch}, {heads} or 1, {tokens}]"
        raise ArgumentError("cache_shape", what="positions", shape=list(positions.shape), expected=expected)
    if bool(score.isnan().any()):
        raise ArgumentError("eviction_nan", shape=list(score.shape), count=int(score.isnan().sum()))
