"""An eviction that evicts nothing: the cache stays full, and a mask of its own for each layer hides what is gone.

The specification of what compaction has to equal, in as few lines as that takes. It chooses as ``select`` does: sinks
and recent window stay, and of the others those of the largest score, the earlier one of two.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from minikv.eviction.policies.budget import Budget
from minikv.models.cache_argument import cache_in

Scored = Callable[[Any, int], Tensor]
"""A cache layer of transformers and its number -> float32 [B, H or 1, S], larger stays."""


class Masked(AbstractContextManager):
    """While it is open, each forward of ``model`` hides what ``sizes`` have no room for from the forwards after it."""

    def __init__(self, model: Any, scored: Scored, sizes: Budget):
        self.model, self.scored, self.sizes = model, scored, sizes
        self.stays: dict[int, Tensor] = {}
        """By layer, bool [B, H or 1, S]: what the next forward may see."""

    def __enter__(self) -> "Masked":
        layers = [module for module in self.model.modules() if hasattr(module, "layer_idx")]
        attentions = [module for module in layers if hasattr(module, "o_proj")]
        self.hooks = [module.register_forward_pre_hook(self._mask, with_kwargs=True) for module in attentions]
        self.hooks.append(self.model.register_forward_hook(self._evict))
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def _mask(self, module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        hidden, cache = kwargs.get("hidden_states", args[0] if args else None), cache_in(kwargs)
        before, queries = cache.get_seq_length(module.layer_idx), hidden.shape[1]
        causal = torch.ones(queries, before + queries, dtype=torch.bool).tril(before)
        allowed = causal[None, None]
        if before:
            stays = self.stays[module.layer_idx]
            new = torch.ones(*stays.shape[:2], queries, dtype=torch.bool)
            allowed = allowed & torch.cat([stays, new], -1)[:, :, None]
            if allowed.shape[1] > 1:  # a mask for each query head
                allowed = allowed.repeat_interleave(module.num_key_value_groups, 1)
        mask = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
        return args, kwargs | {"attention_mask": mask.expand(len(hidden), *mask.shape[1:])}

    def _evict(self, model: Any, args: tuple, out: Any) -> None:
        sizes = self.sizes
        for number, layer in enumerate(out.past_key_values.layers):
            score = self.scored(layer, number)
            length = score.shape[-1]
            known = self.stays.get(number, torch.ones(*score.shape[:2], 0, dtype=torch.bool))
            fresh = torch.ones(*score.shape[:2], length - known.shape[-1], dtype=torch.bool)
            stays = torch.cat([known, fresh], -1)
            resident = int(stays[0, 0].sum())
            if resident >= sizes.capacity + sizes.evict_every:
                score = score.masked_fill(~stays, -torch.inf)
                score[..., : sizes.n_sink] = torch.inf
                score[..., length - sizes.n_recent :] = torch.inf
                kept = score.sort(dim=-1, descending=True, stable=True).indices[..., : sizes.capacity]
                stays = torch.zeros_like(stays).scatter(-1, kept, True)
            self.stays[number] = stays
