"""The layout of a CacheSpec's layers in a paged cache: which share a table, which share a tensor, which are refused.

Layers of one *KV cache group* (the same window, the same bytes a token) share block tables, so block 7 of a group is
block 7 in all of its layers. Within a group, layers of one shape share their tensors:

    K and V equally wide    kv      [2, layers, blocks, block_size, kv_heads, head_dim]
    of different width      k, v    [layers, blocks, block_size, kv_heads, k_dim] and the same with v_dim
    latent (MLA)            latent  [layers, blocks, block_size, 1, rank + rope]: K is the latent, V the rope key
    K that is V (V4)        k       [layers, blocks, block_size, 1, k_dim], stored once
    compressed entries      the same, with block_size / rate entries in place of the tokens
    scales, if any          scale   [2, layers, blocks, block_size, kv_heads] float32
    indexer keys (DSA)      index   [layers, blocks, block_size, 1, bytes] int8, of whatever dtype the model gives
"""

from dataclasses import dataclass
from math import lcm, prod
from typing import Any

import torch
from torch import Tensor

from minikv.cache.codec import Codec
from minikv.cache.linear_layout import layer_sources
from minikv.errors import ArgumentError, check_count
from minikv.kernels.slots import as_bytes
from minikv.plan.pool import KVCacheGroupSpec, kv_cache_groups
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.plan.spec.layers import LayerSpec


@dataclass(frozen=True)
class PartShape:
    """One tensor of a ``TensorGroup``: its shape without ``blocks``, and the dimension of the blocks."""

    name: str
    block_shape: tuple[int, ...]
    block_dim: int
    dtype: torch.dtype

    def with_blocks(self, num_blocks: int) -> tuple[int, ...]:
        """Return the whole shape for ``num_blocks`` blocks."""
        return (*self.block_shape[: self.block_dim], num_blocks, *self.block_shape[self.block_dim :])

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in this tensor."""
        return prod(self.block_shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Part:
    """A tensor that holds a part of each block of a group."""

    shape: PartShape
    tensor: Tensor

    def read_blocks(self, blocks: Tensor) -> Tensor:
        """Return a contiguous copy [n, *block_shape] of these blocks, one after another."""
        dim = self.shape.block_dim
        return as_bytes(self.tensor).index_select(dim, blocks).movedim(dim, 0).contiguous()

    def write_blocks(self, blocks: Tensor, rows: Tensor) -> None:
        """Write rows of ``read_blocks`` into these blocks."""
        dim = self.shape.block_dim
        as_bytes(self.tensor).index_copy_(dim, blocks, rows.movedim(0, dim))


@dataclass(frozen=True)
class TensorGroup:
    """Layers of one KV cache group and one shape, by their numbers; they share tensors."""

    kv_cache_group: int
    latent: bool
    kv_heads: int
    k_dim: int
    v_dim: int
    index_bytes: int
    rate: int
    layers: tuple[int, ...]

    def parts(self, codec: Codec, block_size: int) -> tuple[PartShape, ...]:
        """The tensors that these layers need."""
        layers, heads, block_size = len(self.layers), self.kv_heads, block_size // self.rate
        name = f"group {self.kv_cache_group} layer {self.layers[0]}"

        def one(what: str, dim: int) -> PartShape:
            return PartShape(f"{name} {what}", (layers, block_size, heads, dim), 1, codec.dtype)

        if self.latent:
            parts: tuple[PartShape, ...] = (one("latent", self.k_dim + self.v_dim),)
        elif self.k_dim == self.v_dim:
            shape = (2, layers, block_size, heads, self.k_dim)
            parts = (PartShape(f"{name} kv", shape, 2, codec.dtype),)
        elif self.v_dim:
            parts = (one("k", self.k_dim), one("v", self.v_dim))
        else:
            parts = (one("k", self.k_dim),)
        if codec.scaled:
            scales = 2 if self.v_dim else 1
            parts += (PartShape(f"{name} scale", (scales, layers, block_size, heads), 2, torch.float32),)
        if self.index_bytes:
            parts += (PartShape(f"{name} index", (layers, block_size, 1, self.index_bytes), 1, torch.int8),)
        return parts

    def views(self, tensors: list[Tensor], place: int) -> tuple[Tensor | None, ...]:
        """Return K, V, their scales and the indexer's keys of layer ``place`` of these, None for what it has not.

        ``tensors`` are in the order of ``parts``.
        """
        first, index = tensors[0], None
        if self.index_bytes:
            *tensors, keys = tensors
            index = keys[place]
        if self.latent:
            k, v = first[place][..., : self.k_dim], first[place][..., self.k_dim :]
            rest = tensors[1:]
        elif self.k_dim == self.v_dim:
            k, v = first[0, place], first[1, place]
            rest = tensors[1:]
        elif self.v_dim:
            k, v = first[place], tensors[1][place]
            rest = tensors[2:]
        else:
            k = v = first[place]
            rest = tensors[1:]
        k_scale, v_scale = (rest[0][half, place] if rest else None for half in (0, -1))
        return k, v, k_scale, v_scale, index


@dataclass(frozen=True)
class PagedLayout:
    """The place of each layer of a spec. ``sources[i]`` is the layer with the K and V of layer i (None: no cache)."""

    kv_cache_groups: tuple[KVCacheGroupSpec, ...]
    tensor_groups: tuple[TensorGroup, ...]
    sources: tuple[int | None, ...]


def blocks_of_each(num_blocks: Any, num_kv_cache_groups: int) -> tuple[int, ...]:
    """Return ``num_blocks``, one number or several, as one for each of ``num_kv_cache_groups`` groups."""
    if not isinstance(num_blocks, list | tuple):
        check_count("num_blocks", num_blocks)
        return (num_blocks,) * num_kv_cache_groups
    if len(num_blocks) != num_kv_cache_groups:
        raise ArgumentError("paged_blocks_of_each", given=len(num_blocks), groups=num_kv_cache_groups)
    for group, count in enumerate(num_blocks):
        check_count(f"num_blocks[{group}]", count)
    return tuple(num_blocks)


def whole_entries(spec: CacheSpec, block_size: int) -> int:
    """Return ``block_size``, rounded up so that no compressed entry is made of the tokens of two blocks."""
    tokens = lcm(*(layer.rate for layer in spec.layers))
    return -(-block_size // tokens) * tokens


def paged_layout(spec: CacheSpec, codec: Codec, block_size: int) -> PagedLayout:
    """Return the layout of ``spec`` stored with ``codec`` in blocks of ``block_size`` tokens.

    Raises ``ArgumentError`` naming the first layer that a paged cache cannot hold: one with cross-attention, with
    vLLM's indexer keys or storage format, with other bytes an element than the codec's, or with an entry of the tokens
    of two blocks. States, and tokens that wait for their entry, are not in it: ``StateSlots``.
    """
    for number, layer in enumerate(spec.layers):
        _refuse(spec, number, layer, codec, block_size)
    groups = kv_cache_groups(spec)
    if not groups:
        raise ArgumentError("paged_empty", name=spec.name)
    place = {_of_a_group(group.layer): index for index, group in enumerate(groups)}
    shapes: dict[tuple[int, bool, int, int, int, int, int], list[int]] = {}
    for number, layer in enumerate(spec.layers):
        if layer.token_bytes:
            group = place[_of_a_group(layer)]
            sizes = (layer.kv_heads, layer.k_dim, layer.v_dim, layer.index_bytes, layer.rate)
            shape = (group, layer.kind == "latent", *sizes)
            shapes.setdefault(shape, []).append(number)
    shared = [TensorGroup(*shape, tuple(layers)) for shape, layers in shapes.items()]
    shared.sort(key=lambda each: (each.kv_cache_group, each.layers[0]))
    return PagedLayout(groups, tuple(shared), layer_sources(spec))


def _of_a_group(layer: LayerSpec) -> tuple[int | None, int, int]:
    """Return what layers of one group have in common."""
    return layer.window, layer.token_bytes, layer.rate


def _refuse(spec: CacheSpec, number: int, layer: LayerSpec, codec: Codec, block_size: int) -> None:
    """Raise if the layer stores anything but K and V of each token or entry, or in other bytes than ``codec``."""
    stored = {"state_bytes": layer.kind != "cross", "index_bytes": spec.layout != "vllm"}
    for field in ("state_bytes", "index_bytes", "format_bytes", "packed_bytes"):
        value = getattr(layer, field)
        if value and not stored.get(field):
            raise ArgumentError(
                "paged_layer", layer=number, name=spec.name, kind=layer.kind, field=field, num_bytes=value
            )
    if not layer.token_bytes:
        return
    if block_size % layer.rate:
        sizes = {"rate": layer.rate, "block_size": block_size, "whole": whole_entries(spec, block_size)}
        raise ArgumentError("paged_rate", layer=number, name=spec.name, **sizes)
    # K without V is one that is also V; of a latent layer V is a part.
    least_v = 1 if layer.kind == "latent" else 0
    for what, value, least in (
        ("kv_heads", layer.kv_heads, 1),
        ("k_dim", layer.k_dim, 1),
        ("v_dim", layer.v_dim, least_v),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ArgumentError("bad_count", what=f"layers[{number}].{what}", value=value, least=least)
    if (layer.itemsize, layer.scale_bytes) != (codec.itemsize, codec.scale_bytes):
        raise ArgumentError(
            "codec_bytes",
            layer=number,
            name=spec.name,
            itemsize=layer.itemsize,
            scale_bytes=layer.scale_bytes,
            codec=codec.name,
            codec_itemsize=codec.itemsize,
            codec_scale_bytes=codec.scale_bytes,
        )
