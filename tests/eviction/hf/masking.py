"""The reference: the same model with the whole cache, and a mask that hides what the evicting one has dropped.

Forward for forward the two must give the same logits, whatever the policy drops.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from minikv.eviction import install_kv_eviction
from minikv.eviction.hf.cache import evicting_layers
from minikv.models.sources import find_folder
from tests.models.running import sharpen
from tests.plan.small_models import small_config, small_model

TOLERANCE = 1e-5


@cache
def tiny(name: str, number: int = 0):
    """A tiny trained model in float32; another ``number`` is another copy of it."""
    return AutoModelForCausalLM.from_pretrained(find_folder(name), dtype=torch.float32).eval()


@cache
def small(model_type: str, number: int = 0, **changes):
    """A small random model whose attention is sharp."""
    model = small_model(small_config(model_type, **changes))
    if model.can_generate():
        model.generation_config.eos_token_id = None
    sharpen(model)
    return model.requires_grad_(False)


@torch.no_grad()
def largest_difference(
    model, reference, ids: Tensor, chunks: list[int], mask: Tensor | None = None, **options
) -> float:
    """The largest difference of two logits when ``ids`` [B, n] is read in ``chunks``, with ``options`` of the install.

    ``mask`` [B, n]: 0 for padding at the left. The logits of padding are not compared. Asserts both peak bounds.
    """
    plain, difference, start = DynamicCache(config=reference.config), 0.0, 0
    with install_kv_eviction(model, **options) as eviction:
        held = eviction.new_cache()
        for size in chunks:
            end = start + size
            new = ids[:, start:end]
            seen = None if mask is None else mask[:, :end]
            places = None if mask is None else (mask.cumsum(-1) - 1).clamp(min=0)[:, start:end]
            kept = {layer.rules.layer: kept_columns(layer, start, mask) for layer in evicting_layers(held)}
            ours = model(new, attention_mask=seen, position_ids=places, past_key_values=held)[0]
            with hidden(reference, kept, start):
                full = reference(new, attention_mask=seen, position_ids=places, past_key_values=plain)[0]
            counted = slice(None) if mask is None else mask[:, start:end].bool()
            difference = max(difference, float((ours - full)[counted].abs().amax() if size else 0))
            start = end
            for layer in evicting_layers(held):
                assert layer.resident <= layer.rules.budget.peak_resident
                assert layer.cumulative_length == end
        assert any(layer.record.dropped for layer in evicting_layers(held)), "nothing was evicted"
    return difference


def kept_columns(layer, columns: int, mask: Tensor | None) -> Tensor | None:
    """[B, H, columns] bool: which of the earlier tokens the layer still has. None before its first forward."""
    if not layer.resident:
        return None
    places = layer.positions
    batch, heads, _ = places.shape
    padding = torch.zeros(batch, dtype=torch.int64) if mask is None else (mask[:, :columns] == 0).sum(-1)
    kept = torch.zeros(batch, heads, columns + 1, dtype=torch.bool)
    where = torch.where(places < 0, columns, places + padding[:, None, None])
    return kept.scatter(2, where, True)[..., :columns]


@contextmanager
def hidden(model, kept: dict[int, Tensor | None], before: int, among: Tensor | None = None) -> Iterator[None]:
    """``model`` whose layers in ``kept`` see of the first ``before`` tokens only what is kept for them.

    ``among`` [T, T] bool: which of the new tokens see each other; None: each those before it.
    """
    hooks = []
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and kept.get(index) is not None and "Attention" in type(module).__name__:
            hooks.append(module.register_forward_pre_hook(_masker(kept[index], among), with_kwargs=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _masker(kept: Tensor, among: Tensor | None):
    def change(module, args, kwargs):
        eager = module.config._attn_implementation == "eager"
        states = kwargs.get("hidden_states", args[0] if args else None)
        queries = module.config.num_attention_heads
        causal = torch.ones(states.shape[1], states.shape[1], dtype=torch.bool).tril()
        new = causal if among is None else among
        old = kept.repeat_interleave(queries // kept.shape[1], 1)[:, :, None].expand(-1, -1, len(new), -1)
        seen = torch.cat((old, new.expand(*old.shape[:2], *new.shape)), -1)
        if eager:
            seen = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        return args, kwargs | {"attention_mask": seen}

    return change
