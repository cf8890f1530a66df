"""One layer's resident tokens as a policy sees them, gathered out of blocks only if the policy looks. Lesson 14."""

from functools import cached_property

import torch
from torch import Tensor

from minikv.cache import PagedKVCache
from minikv.eviction.policy import View


class PagedView(View):
    """A ``View`` of B sequences of ``length`` resident tokens, in the order of their block tables [B, W].

    Gathering keys costs a copy of the layer, which a policy that scores by attention never asks for. They come in the
    stored dtype, in float32 where that has 8 bits.
    """

    def __init__(
        self,
        cache: PagedKVCache,
        layer: int,
        tables: Tensor,
        *,
        state: Tensor,
        window_probs: Tensor | None,
        positions: Tensor,
        num_layers: int,
    ):
        length = positions.shape[-1]
        own = {
            "_cache": cache,
            "_tables": tables,
            "state": state,
            "window_probs": window_probs,
            "positions": positions,
            "valid": torch.ones(len(tables), length, dtype=torch.bool, device=positions.device),
            "layer": layer,
            "num_layers": num_layers,
            "latent": cache.spec.layers[layer].kind == "latent",
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)  # it is as frozen as any View

    @property
    def keys(self) -> Tensor:
        """[B, H, S, Dk]: rotated, as cached; the latents of a latent layer."""
        return self._gathered[0]

    @property
    def values(self) -> Tensor:
        """[B, H, S, Dv]; the rope keys of a latent layer."""
        return self._gathered[1]

    @cached_property
    def _gathered(self) -> tuple[Tensor, Tensor]:
        cache, length = self._cache, self.positions.shape[-1]  # type: ignore[attr-defined]
        tables = self._tables  # type: ignore[attr-defined]
        pairs = [cache.gather(self.layer, table, length) for table in tables]
        keys, values = zip(*pairs, strict=True)
        return torch.stack(keys).transpose(1, 2), torch.stack(values).transpose(1, 2)
