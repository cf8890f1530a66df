"""Rotary: a model's rotary embedding, applied to cached keys: off, and on again at another position. Lesson 15.

With ``positions="reindexed"`` the kept tokens count 0, 1, 2, ... as in StreamingLLM, so a text may grow past the
positions that a model was trained for. Keys are cached without position and turned when they are read: to turn cached
keys again and again would add up rounding errors.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minikv.errors import ArgumentError
from minikv.eviction.policies.policy import Needs, Policy
from minikv.models.cache_argument import cache_argument

_FIXED = (
    "default",
    "linear",
    "llama3",
    "yarn",
)  # rope types with frequencies that do not depend on the length
_PROBED = 37  # a position
_CLOSE = 1e-3  # of the largest element; a wrong rotation is off by its size


@dataclass(frozen=True, eq=False)
class Rotary:
    """The model's rotary module. ``layer_type``: its argument where it takes one (Gemma 3). ``short``: it returns each
    angle once for two dimensions (gpt-oss) instead of twice.
    """

    module: Any
    layer_type: str | None = None
    short: bool = False

    def turn(self, x: Tensor, places: Tensor, *, back: bool = False, mean: bool = False) -> Tensor:
        """``x`` [B, H, n, D] turned from position 0 to ``places`` [B, n], or with ``back`` the other way, in float32.

        ``mean``: each of ``x`` is turned to all ``places``, of whatever number, and the mean of those is returned.
        The first dimensions are turned, as many as the module has angles for; the rest stays.
        """
        cos, sin = self._angles(x.device, places)
        if mean:
            cos, sin = cos.mean(2, keepdim=True), sin.mean(2, keepdim=True)
        turned, rest = x[..., : cos.shape[-1]].float(), x[..., cos.shape[-1] :]
        first, second = turned.chunk(2, -1)
        half = torch.cat((-second, first), -1)
        turned = turned * cos + half * (-sin if back else sin)
        return torch.cat((turned.to(x.dtype), rest), -1)

    def off(self, x: Tensor, valid: Tensor, held: Tensor | int) -> Tensor:
        """New states [B, H, n, D], which the model has turned to the places behind ``held`` tokens, back at position 0.

        ``valid`` [B, n] bool: False for padding, which takes no place.
        """
        return self.turn(x, (held + valid.cumsum(-1) - 1).clamp(min=0), back=True)

    def on(self, x: Tensor, valid: Tensor) -> Tensor:
        """States [B, H, S, D] without position, turned to 0, 1, 2, ... over the valid ones."""
        return self.turn(x, (valid.cumsum(-1) - 1).clamp(min=0))

    def _angles(self, device: torch.device, places: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [B, 1, n, turned dimensions] float32, with cos^2 + sin^2 = 1."""
        like = torch.empty(0, dtype=torch.float32, device=device)
        asked = () if self.layer_type is None else (self.layer_type,)
        cos, sin = self.module(like, places, *asked)
        if self.short:
            cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
        length = (cos[..., :1] ** 2 + sin[..., :1] ** 2).sqrt()  # yarn lengthens both
        return (cos / length).unsqueeze(1), (sin / length).unsqueeze(1)


def turning_for(policy: Policy, model: Any, latent: bool) -> Rotary | None:
    """The rotary embedding of ``model``, where ``policy`` turns queries; see ``find_rotary``.

    Raises ``ArgumentError`` for a policy that wants several records of queries, since a layer keeps one.
    """
    wanted = [kind.name for kind in (Needs.ECHO, Needs.EXPECTED, Needs.WINDOW) if kind in policy.needs]
    if len(wanted) > 1:
        raise ArgumentError(
            "eviction_one_look", policy=type(policy).__name__, needs=", ".join(map(str, wanted))
        )
    turns = policy.echo_shift or Needs.EXPECTED in policy.needs
    return find_rotary(model, latent) if turns else None


def find_rotary(model: Any, latent: bool) -> Rotary:
    """The rotary embedding of ``model``, tried out: one token is run at two positions, in every layer.

    ``latent``: the layers cache MLA latents; their rope part is the second tensor. Raises ``ArgumentError`` where keys
    are not turned by it: learned positions, other layouts, frequencies that change with the length.
    """
    module = getattr(model.base_model, "rotary_emb", None)
    kind = type(model).__name__
    if module is None:
        raise ArgumentError("eviction_not_rotary", kind=kind, why="rotary_emb")
    rope_type = getattr(module, "rope_type", "default")
    types = rope_type.values() if isinstance(rope_type, dict) else (rope_type,)
    if other := [name for name in types if name not in _FIXED]:
        raise ArgumentError("eviction_not_rotary", kind=kind, why=other[0])
    asks = "layer_type" in inspect.signature(module.forward).parameters
    for short in (False, True):
        rotary = Rotary(module, "full_attention" if asks else None, short)
        if _turns(model, rotary, latent):
            return rotary
    raise ArgumentError("eviction_not_rotary", kind=kind, why="layout")


@torch.no_grad()
def _turns(model: Any, rotary: Rotary, latent: bool) -> bool:
    """Whether the keys of a lone token at a position are its keys at position 0, turned to there."""
    at_zero, further = _keys(model, 0, latent), _keys(model, _PROBED, latent)
    close = max(_CLOSE, 4 * torch.finfo(model.dtype).eps)  # bfloat16 rounds angles and products
    for key, moved in zip(at_zero, further, strict=True):
        places = torch.full((1, 1), _PROBED, device=key.device)
        try:
            turned = rotary.turn(key, places)
        except (RuntimeError, ValueError):  # more angles than dimensions; complex numbers (DeepSeek-V2)
            return False
        if turned.shape != moved.shape or (turned - moved).abs().max() > close * moved.abs().max():
            return False
    return True


def _keys(model: Any, position: int, latent: bool) -> list[Tensor]:
    """[1, H, 1, D] float32 of each layer that evicts, for one token at ``position``."""
    from transformers import DynamicCache

    from minikv.eviction.hf.cache import full_layers

    device = model.get_input_embeddings().weight.device
    ids = torch.ones(1, 1, dtype=torch.int64, device=device)
    config = model.config.get_text_config(decoder=True)
    cache = DynamicCache(config=config)
    model(input_ids=ids, position_ids=ids * position, use_cache=True, **cache_argument(model, cache))
    whole = zip(cache.layers, full_layers(config), strict=True)
    return [(layer.values if latent else layer.keys).float() for layer, full in whole if full]
