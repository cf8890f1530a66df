"""What an EvictingLayer refuses, before anything of it has changed. Lesson 14."""

from typing import Any

from torch import Tensor

from minikv.errors import ArgumentError


def check_update(layer: Any, key_states: Tensor, value_states: Tensor) -> None:
    """Raise ``ArgumentError`` for states [B, H, T, D] that cannot join those that ``layer`` holds."""
    number = layer.rules.layer
    if key_states.requires_grad or value_states.requires_grad:
        raise ArgumentError("eviction_grad", layer=number)
    if (layer.padded or layer.rules.rotary is not None) and not layer.announced:
        # Outside an install the model would mask and turn as if nothing were gone.
        raise ArgumentError("eviction_not_announced", layer=number)
    if layer.keys is None:
        return
    held = layer.keys, layer.values
    given = key_states, value_states
    if len(held[0]) != len(given[0]):
        raise ArgumentError("eviction_batch", layer=number, have=len(held[0]), given=len(given[0]))
    if held[0].device != given[0].device:
        was, now = str(held[0].device), str(given[0].device)
        raise ArgumentError("eviction_device", layer=number, have=was, given=now)
    for old, new in zip(map(_kind, held), map(_kind, given), strict=True):
        if old != new:
            raise ArgumentError("eviction_states", layer=number, have=old, given=new)


def check_score(score: Tensor, shape: tuple[int, int, int]) -> None:
    """Raise ``ArgumentError`` unless a policy's ``score`` is [B, H, S] or [B, 1, S] of ``shape``."""
    if score.dim() != 3 or score.shape[1] not in (1, shape[1]) or score.shape[::2] != shape[::2]:
        raise ArgumentError("cache_shape", what="score", shape=list(score.shape), expected=list(shape))


def _kind(states: Tensor) -> str:
    """Heads, dimensions and dtype."""
    return f"{states.shape[1]} x {states.shape[3]} {states.dtype}"
