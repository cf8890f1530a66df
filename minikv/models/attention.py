"""The attention function that transformers calls instead of its own: it reads the blocks in place. Lesson 11a.

A model with ``config._attn_implementation == "minikv_paged"`` calls it once a layer. Every keyword argument of
``model(...)`` arrives here, also the batch, so no global is needed. ``PagedCache.update`` has just stored the new
tokens' K and V, so the key and value arguments are not read.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minikv.cache.sharded import local
from minikv.errors import ArgumentError
from minikv.kernels.dispatch import operations
from minikv.kernels.expanding import LatentSizes, absorb, latent_parts, of_latents, parts_of
from minikv.models.batch import Batch, sees
from minikv.models.observer import Asked, weighed_lse, weighed_scores
from minikv.models.takes_cache import TakesCache
from minikv.models.wanted import behind_attention
from minikv.plan.estimate import EXPANDED_BYTES

ATTENTION = "minikv_paged"  # its name in transformers' AttentionInterface
PROBE = "minikv_probe"
# What ``attend`` reads, and what changes nothing in it: dropout is 0 in eval mode, the batch has the positions.
_UNDERSTOOD = set("scaling softcap s_aux dropout is_causal position_ids position_embeddings".split())


def register() -> None:
    """Make ``ATTENTION`` and ``PROBE`` known to transformers. Doing it again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, attend)
    AttentionInterface.register(PROBE, _probe)


def windows_asked(model: Any, names: set[str] | None = None) -> dict[int, int | None]:
    """Run one token through ``model``: {layer: the window that it passes to an attention function}.

    ``names`` collects the keywords of these calls. A layer is absent if a keyword argument of ``model(...)`` does not
    reach it, as in a class that does not pass them on (Nemotron, StableLM). A call shows that more surely than the
    source. The weights are read once.
    """
    register()
    was = model.config._attn_implementation
    asked: dict[int, int | None] = {}
    stored: list[int] = []
    zero = torch.zeros(1, 1, dtype=torch.long, device=model.get_input_embeddings().weight.device)
    model.set_attn_implementation(PROBE)
    try:
        with torch.no_grad():
            takes = TakesCache.of(model)
            cache = takes.empty(model)
            update = cache.update

            def noted(k: Tensor, v: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
                stored[:] = [layer_idx]
                return update(k, v, layer_idx, *args, **kwargs)

            cache.update = noted
            told = {"asked": asked, "names": names, "stored": stored}
            try:
                takes.run(model, cache, input_ids=zero, position_ids=zero, **told)
            finally:
                del cache.update  # it refers to the cache, which would hold its memory on
    finally:
        model.set_attn_implementation(was)
    return asked


def passes_on(model: Any) -> bool:
    """Return whether ``model`` runs with another attention function, and tells it nothing that ``attend`` ignores.

    For a model that is on no list: an argument that is unknown here may change what a query sees, if only in a longer
    sequence. So its name alone counts.
    """
    names: set[str] = set()
    try:
        windows_asked(model, names)
    except Exception:  # a class that does not know the keyword, or needs its own attention
        return False
    return names <= _UNDERSTOOD


def _probe(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    sliding_window: int | None = None,
    asked: dict[int, int | None] | None = None,
    names: set[str] | None = None,
    stored: Sequence[int] = (),
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Record the layer's arguments, and return zeros without attention."""
    if asked is not None:
        asked[_number(module, stored)] = sliding_window
    if names is not None:
        names |= kwargs.keys()
    return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None


def _number(module: nn.Module, stored: Sequence[int]) -> int:
    """Return the layer of this call: the module's number, or that of the K and V that were ``stored`` last.

    Layers of Zamba share a module, which therefore has no number.
    """
    own: Any = getattr(module, "layer_idx", None)
    return stored[-1] if stored and (own is None or own < 0) else own


@torch.no_grad()
def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    batch: Batch | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend with the queries [1, Hq, T, Dk] of ``batch`` over its blocks: ([1, T, Hq, Dv], None).

    The queries of a decode of B sequences may also come as [B, Hq, 1, Dk]: ([B, 1, Hq, Dv], None).

    ``softcap`` caps the logits (Gemma 2), ``s_aux`` [Hq] are sink logits (gpt-oss). Raises ``ArgumentError`` without a
    batch, for a mask (the batch says which tokens a query sees), and if a layer's window is not that of its cache.
    """
    if batch is None:
        raise ArgumentError("models_no_batch", name=ATTENTION)
    if attention_mask is not None:
        raise ArgumentError("models_mask", name=ATTENTION)
    across = int(len(query) > 1)  # the dimension of a result that was 1
    if across:
        query = query.transpose(0, 2)
    index = _number(module, batch.stored)
    cache = batch.cache
    window = sees(cache.spec, cache.kv_cache_groups[cache.layer(index).kv_cache_group].layer)
    if sliding_window != window:
        raise ArgumentError("models_window", layer=index, model=sliding_window, cache=window)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if cache.spec.layers[index].kind == "latent":
        out = _latent(module, index, query, batch, scale, window)
        _tell_the_last(index, batch)
        return out.unsqueeze(across), None
    rows, kv, starts = query[0].transpose(0, 1), batch.kv(index), batch.query_starts
    kernels = operations(query.device)
    options: dict[str, Any] = {"scale": scale, "window": window, "softcap": softcap, "sinks": s_aux}
    observer = batch.observer if window is None else None
    watched = observer is not None and bool(observer.watches)
    if batch.max_queries == 1:
        found = kernels.paged_decode(rows, kv, return_scores=watched, **options)
        _tell_scores(batch, index, found.scores, query.shape[1])
    else:
        found = kernels.paged_prefill(
            rows, kv, starts, max_queries=batch.max_queries, return_lse=watched, **options
        )
        if found.lse is not None:
            sums = partial(kernels.paged_column_sums, rows, kv, starts, scale=scale, softcap=softcap)
            _tell_sums(batch, index, found.lse, sums, query.shape[1] // kv.k.shape[2])
    if observer is not None and observer.asks:
        observer.ask(index, Asked(rows, kv, scale, softcap, s_aux))
    _tell_the_last(index, batch)
    return found.out.unsqueeze(across), None


def _tell_the_last(layer: int, batch: Batch) -> None:
    if layer == len(batch.cache.spec.layers) - 1:
        behind_attention()


def _tell_scores(batch: Batch, layer: int, scores: Tensor | None, query_heads: int) -> None:
    """Tell the observer, if there is one, the attention of a decode to the cached tokens."""
    if batch.observer is not None and scores is not None:
        sums = tuple(weighed_scores(scores, watch) for watch in batch.observer.watches)
        batch.observer.see(layer, sums, query_heads // scores.shape[1])


def _tell_sums(batch: Batch, layer: int, lse: Tensor, column_sums: Callable[..., Tensor], group: int) -> None:
    """Tell the observer, if there is one, the attention of a prefill to the cached tokens.

    ``column_sums(lse, last=...)`` reads the keys once more, for each of the observer's watches.
    """
    if batch.observer is not None:
        starts = batch.query_starts
        sums = tuple(
            column_sums(weighed_lse(lse, starts, watch), last=watch.last) for watch in batch.observer.watches
        )
        batch.observer.see(layer, sums, group)


def _latent(
    module: nn.Module, layer: int, query: Tensor, batch: Batch, scale: float, window: int | None
) -> Tensor:
    """Compute MLA: [T, H, v_dim]. A query is its part without position, then its rope part.

    ``kv_b_proj`` [H * (nope + v_dim), rank] makes K and V of a latent. It is absorbed: multiplied into the query and
    into the weighted sum of latents, once a query instead of once a cached token. A sequence with many queries gets the
    K and V of its heads instead: ``minikv.kernels.expanding``.
    """
    kv, starts, kernels = batch.kv(layer), batch.query_starts, operations(query.device)
    heads, rank, rope = query.shape[1], kv.k.shape[3], kv.v.shape[3]
    rows, nope, most = query[0].transpose(0, 1), query.shape[3] - rope, batch.max_queries
    up = local(module.kv_b_proj.weight).view(heads, -1, rank)
    observer = batch.observer if window is None else None
    watched = observer is not None and bool(observer.watches)
    if most > 1 and batch.counts is not None and observer is None and window is None:
        sizes = LatentSizes.of(up, kv, nope, EXPANDED_BYTES)
        parts = kv.once(sizes, partial(parts_of, kv, sizes, starts, *batch.counts), starts)
        if len(parts) > 1 or parts[0].keys:
            return latent_parts(rows, kv, up, parts, sizes, scale=scale)
    queries = absorb(rows, up, nope)
    if most == 1:
        found = kernels.latent_decode(*queries, kv, scale=scale, window=window, return_scores=watched)
        _tell_scores(batch, layer, found.scores, heads)
    else:
        options: dict[str, Any] = {"scale": scale, "window": window, "return_lse": watched}
        found = kernels.latent_prefill(*queries, kv, starts, max_queries=most, **options)
        if found.lse is not None:
            sums = partial(kernels.latent_column_sums, *queries, kv, starts, scale=scale)
            _tell_sums(batch, layer, found.lse, sums, heads)
    if observer is not None and observer.asks:
        asked = Asked(torch.cat(queries, -1), kv, scale, latent=True)
        observer.ask(layer, asked)
    return of_latents(found.out, up, nope)
