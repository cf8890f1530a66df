"""Lesson 13: a row of K as a codec stores it, and all numbers that the codec could store in its place."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minikv.cache import find_codec
from minikv.errors import ArgumentError
from minikv.kernels.dispatch import check_readable
from minikv.models.cache_argument import cache_argument


@dataclass(frozen=True)
class Levels:
    """``levels`` are the numbers that ``codec`` can store beside ``exact``, ``stored`` is what it made of that."""

    codec: str
    exact: tuple[float, ...]
    stored: tuple[float, ...]
    levels: tuple[float, ...]


def levels_of(codec: Any, row: Tensor) -> Levels:
    """Return what ``codec``, one of 8 bits, makes of ``row`` [D]; its scale is that of the row, if it has one."""
    found = find_codec(codec)
    data, scale = found.encode(row.float()[None])
    codes = torch.arange(256, dtype=torch.uint8).view(found.dtype)[None]
    numbers = found.decode(codes, scale, torch.float32)[0]
    levels = sorted(set(numbers[numbers.isfinite()].tolist()))
    stored = found.decode(data, scale, torch.float32)[0]
    return Levels(found.name, tuple(row.tolist()), tuple(stored.tolist()), tuple(levels))


def readable(codecs: Iterable[str], device: torch.device) -> list[str]:
    """Return those of ``codecs`` that the kernels of ``device`` read: a GPU below 8.9 reads no float8_e4m3fn."""

    def reads(name: str) -> bool:
        try:
            check_readable(name, find_codec(name).dtype, device)
        except ArgumentError as error:
            if error.code != "kernel_fp8":
                raise
            return False
        return True

    return [name for name in codecs if reads(name)]


@torch.no_grad()
def cached_keys(model: Any, tokens: Any, *, layer: int = 0) -> Tensor:
    """Return the keys [KV heads, tokens, head_dim] that one layer of ``model`` caches for ``tokens`` [T]."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    model(torch.as_tensor(tokens)[None], **cache_argument(model, cache))
    return cache.layers[layer].keys[0]


def key_row(model: Any, tokens: Any, *, layer: int = 0, head: int = 0, position: int = -1) -> Tensor:
    """Return the key [head_dim] that ``model`` caches for one token of ``tokens`` [T] in one KV head."""
    return cached_keys(model, tokens, layer=layer)[head, position]
