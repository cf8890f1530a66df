"""Lesson 13: the same keys in int8, with one scale for all of them, for a channel, a head, a token, or a row."""

from dataclasses import dataclass

import torch
from torch import Tensor

from minikv.cache import find_codec

# For each way, an order of [heads, tokens, channels], and how many of its first dimensions have a scale for each index.
# Each order is its own inverse.
_ORDERS = {
    "tensor": ((0, 1, 2), 0),
    "channel": ((0, 2, 1), 2),
    "head": ((0, 1, 2), 1),
    "token": ((1, 0, 2), 1),
    "row": ((0, 1, 2), 2),
}
WAYS = tuple(_ORDERS)
SCALE_BYTES = 4  # a float32


@dataclass(frozen=True)
class SharedScale:
    """``scales`` scales serve keys [heads, tokens, channels]; ``error`` is the mean distance of a number read back."""

    way: str
    scales: int
    error: float

    @property
    def nbytes(self) -> int:
        return self.scales * SCALE_BYTES


def shared_scale(keys: Tensor, way: str, channels: slice | list[int] = slice(None)) -> SharedScale:
    """Store ``keys`` [heads, tokens, channels] as int8, with one scale for each ``way``.

    The error is that of ``channels``.
    """
    order, leading = _ORDERS[way]
    codec, moved = find_codec("int8"), keys.float().permute(order)
    scales = moved.shape[:leading].numel()
    data, scale = codec.encode(moved.reshape(scales, -1))
    back = codec.decode(data, scale, torch.float32).view(moved.shape).permute(order)
    return SharedScale(way, scales, float((back - keys)[..., channels].abs().mean()))


def scale_groups(way: str, heads: int, tokens: int, channels: int) -> Tensor:
    """Return for each number of [heads, tokens, channels] which scale is its own, counted from 0."""
    order, leading = _ORDERS[way]
    shape = [(heads, tokens, channels)[axis] for axis in order]
    count = torch.Size(shape[:leading]).numel()
    own = torch.arange(count).view(*shape[:leading], *[1] * (3 - leading))
    return own.expand(shape).permute(order)
