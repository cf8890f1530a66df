"""The attention functions of a model with eviction: its own, and the policy observes. Lessons 14 and 15.

transformers calls the function that ``config._attn_implementation`` names once a layer, after ``update``. Ours finds
the layer's cache, gives the model's own function a mask of the resident tokens, lets the policy observe, and evicts at
once: a layer's prompt shrinks to the capacity before the next layer's arrives.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minikv.eviction.hf.layer import EvictingLayer
from minikv.eviction.hf.observe import Logits, attend_once, column_stats, join_group, window_stats
from minikv.eviction.policies.echo import echo_stats, turned_on
from minikv.eviction.policies.expected import expected_stats, query_moments
from minikv.eviction.policies.policy import Needs

# Masks after an eviction: transformers' own masks count columns that have been evicted.


def mask_for(own: str, layer: EvictingLayer, query: Tensor, given: Tensor | None) -> Tensor | None:
    """The mask of the resident tokens of ``layer``, in the form that the attention ``own`` takes; None: no mask needed.

    ``given``: transformers' own mask, which is right as long as nothing was evicted. ``query`` [B, Hq, T, D].
    """
    whole = layer.resident == layer.cumulative_length
    if whole and (given is None or given.shape[-1] == layer.resident):
        return given
    seen = seen_keys(layer, given)
    if seen is None or (own == "sdpa" and layer.new == layer.resident and not layer.padded and given is None):
        return None
    if own == "sdpa":
        return seen
    least = torch.finfo(query.dtype).min
    return torch.zeros((), dtype=query.dtype, device=query.device).masked_fill(~seen, least)


def seen_keys(layer: EvictingLayer, given: Tensor | None = None) -> Tensor | None:
    """[B or 1, 1, T, S] bool: which keys each query of the last ``update`` may see. None: one query, all keys.

    A query sees all tokens that were resident before the update, in whatever order the slots are: they are all earlier.
    Among the new tokens it sees those up to itself, and those that ``given`` adds, a mask [B, 1, T, ...] that ends with
    the columns of the new tokens: the parts of a picture see later parts too.
    """
    if layer.new == 1 and not layer.padded:
        return None
    keys = torch.arange(layer.resident, device=layer.device)
    queries = keys[layer.resident - layer.new :]
    seen = (keys <= queries[:, None])[None, None]
    if given is not None and layer.new > 1:
        among = given[..., -layer.new :]
        # A float mask of transformers has the least number where a key is hidden.
        among = among if among.dtype == torch.bool else among >= 0
        earlier = seen[..., : layer.resident - layer.new].expand(*among.shape[:3], -1)
        seen = torch.cat((earlier, seen[..., layer.resident - layer.new :] | among), -1)
    if not layer.padded:
        return seen
    seen = seen & layer.valid[:, None, None]
    return seen | ~seen.any(-1, keepdim=True)  # a query of padding sees all keys: a softmax over none is NaN


ATTRIBUTE = "_minikv_eviction"  # on an attention module: the EvictionHandle that the model is installed with
NAMES = {"sdpa": "minikv_evicting_sdpa", "eager": "minikv_evicting_eager"}


def register() -> None:
    """Register our functions with transformers, with the masks of its own. A second call changes nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask, sdpa_mask

    for own, mask in (("sdpa", sdpa_mask), ("eager", eager_mask)):
        AttentionInterface.register(NAMES[own], partial(attend, own))
        AttentionMaskInterface.register(NAMES[own], mask)


def attend(
    own: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as ``own`` computes it: ([B, T, Hq, Dv], its weights or None); the layer's cache is smaller after it.

    ``query`` [B, Hq, T, D]; ``key`` and ``value`` [B, Hk, S, D] of the resident tokens, expanded on MLA.
    """
    function = _function(own, module)
    eviction = getattr(module, ATTRIBUTE, None)
    layer = None if eviction is None else eviction.layer_of(module)
    if layer is None or not layer.pending:
        return function(module, query, key, value, attention_mask, **options)
    how = Logits.of(query, options)
    mask = mask_for(own, layer, query, attention_mask)
    policy, looks = layer.rules.policy, layer.rules.needs(Needs.PROBS)
    beside = _beside(layer, key) if own == "sdpa" else None
    window = along = None
    if own == "sdpa" and query.shape[2] == 1 and (looks or policy.window == 1 or beside is not None):
        out, probs, along = attend_once(query, key, value, how, mask, beside)
        weights, heads = None, layer.keys.shape[1]
        gave = probs[:, :, 0] if not layer.padded else probs[:, :, 0] * _counted(layer)[:, None].float()
        if looks:
            layer.observe(join_group(gave, heads, policy.over_group))
        window = join_group(gave, heads, "mean") if policy.window == 1 else None
    else:
        out, weights = function(module, query, key, value, mask, **options)
        if looks:
            _observe(layer, query, key, how, mask)
    if layer.rules.needs(Needs.ECHO):
        _listen(layer, query, key, how)
    if layer.rules.needs(Needs.EXPECTED):
        window = _expect(layer, query, key, how)
    layer.evict(_window(layer, query, key, how) if window is None else window, along)
    return out, weights


def _beside(layer: EvictingLayer, key: Tensor) -> Tensor | None:
    """The mean key, if the policy needs it: the attention of a decode step that evicts multiplies it with the keys too.

    None where attention reads other keys than the cached ones, and where its dtype would round the products.
    """
    own = key is layer.keys and key.dtype == torch.float32
    return layer.mean_key if own and layer.new == 1 and layer.due else None


def _observe(layer: EvictingLayer, query: Tensor, key: Tensor, how: Logits, mask: Tensor | None) -> None:
    counted = _counted(layer) if layer.padded else None
    policy, heads = layer.rules.policy, layer.keys.shape[1]
    layer.observe(column_stats(query, key, how, mask=mask, counted=counted, policy=policy, heads=heads))


def _listen(layer: EvictingLayer, query: Tensor, key: Tensor, how: Logits) -> None:
    """Score each new token by the query before it, turned as if it stood some places later. See ``echo``."""
    rules, places = layer.rules, layer.positions[:, 0, layer.resident - layer.new :]
    last = (query[:, :, -1:].clone(), places[:, -1:].clone())
    if layer.queries is not None:
        query = torch.cat((layer.queries[0], query), 2)
        places = torch.cat((layer.queries[1], places), 1)
    layer.queries = last
    asked, counted = query[:, :, :-1], places[:, :-1] >= 0
    if rules.turning is not None:
        rope_at_end = layer.values.shape[-1] if rules.latent else None
        asked = turned_on(asked, rules.turning, rules.policy.echo_shift, rope_at_end)
    valid = layer.valid if layer.padded else None
    heads = layer.keys.shape[1]
    layer.observe(echo_stats(asked, counted, key, how, valid=valid, policy=rules.policy, heads=heads))


def _expect(layer: EvictingLayer, query: Tensor, key: Tensor, how: Logits) -> Tensor | None:
    """Take the queries into the layer's moments. Returns what later ones would give if it evicts now, else None."""
    rules, valid, turning = layer.rules, layer.valid, layer.rules.turning
    assert turning is not None  # the install finds it for such a policy
    rope_at_end = layer.values.shape[-1] if rules.latent else None
    stand = layer.positions[:, 0] if rules.rotary is None else valid.cumsum(-1).masked_fill(~valid, 0) - 1
    places = stand[:, layer.resident - layer.new :]
    moments = query_moments(query, places, turning, rope_at_end)
    layer.queries = (moments if layer.queries is None else layer.queries[0] + moments, places[:, -1:])
    if not layer.due:
        return None
    ahead = stand.amax(-1, keepdim=True) + torch.arange(
        1, 1 + rules.policy.expected_over, device=layer.device
    )
    heads = layer.keys.shape[1]
    return expected_stats(layer.queries[0], ahead, key, how, turning, rope_at_end, valid=valid, heads=heads)


def _counted(layer: EvictingLayer) -> Tensor:
    """[B, T] bool: which queries of this forward are no padding."""
    return layer.valid[:, layer.resident - layer.new :]


def _window(layer: EvictingLayer, query: Tensor, key: Tensor, how: Logits) -> Tensor | None:
    """Keep the last queries. Returns their probabilities if the layer evicts now and needs them, else None."""
    if not layer.rules.needs(Needs.WINDOW):
        return None
    size = layer.rules.policy.window
    places = layer.positions[:, 0, layer.resident - layer.new :]
    if layer.queries is not None and query.shape[2] < size:
        query = torch.cat((layer.queries[0], query), 2)
        places = torch.cat((layer.queries[1], places), 1)
    query, places = query[:, :, -size:], places[:, -size:]
    layer.queries = (query.clone(), places.clone())
    if not layer.due:
        return None
    return window_stats(query, places, key, layer.positions, how, layer.keys.shape[1])


def _function(own: str, module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The function that the model would have called."""
    if own == "eager":
        for kind in type(module).__mro__:  # a subclass may be defined elsewhere
            found = getattr(sys.modules.get(kind.__module__), "eager_attention_forward", None)
            if found is not None:
                return found
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return ALL_ATTENTION_FUNCTIONS[own]
