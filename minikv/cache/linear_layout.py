"""The layout of a CacheSpec's layers in a linear cache: which share a tensor, and which cannot be stored there."""

from dataclasses import dataclass

import torch

from minikv.errors import ArgumentError
from minikv.plan.dtypes import KV_DTYPES
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.plan.spec.layers import LayerSpec

PLAIN_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class LinearTensorGroup:
    """Layers of one shape, by their numbers; they lie one after another in the same tensors."""

    kv_heads: int
    k_dim: int
    v_dim: int
    layers: tuple[int, ...]

    @property
    def joined(self) -> bool:
        """Whether K and V are equally wide and share one tensor."""
        return self.k_dim == self.v_dim

    def shapes(self, batch: int, max_seq: int) -> tuple[tuple[int, ...], ...]:
        """Return [layers, batch, 2, kv_heads, max_seq, dim], or [layers, batch, kv_heads, max_seq, dim] of K and V."""
        count = len(self.layers)
        if self.joined:
            return ((count, batch, 2, self.kv_heads, max_seq, self.k_dim),)
        return tuple((count, batch, self.kv_heads, max_seq, dim) for dim in (self.k_dim, self.v_dim))


def linear_dtype(spec: CacheSpec) -> torch.dtype:
    """Return the torch dtype of a plain cache; ``ArgumentError`` for fp8 and int8, which need a codec."""
    if spec.kv_dtype not in PLAIN_DTYPES:
        raise ArgumentError("linear_dtype", dtype=spec.kv_dtype, known=", ".join(PLAIN_DTYPES))
    return PLAIN_DTYPES[spec.kv_dtype]


def layer_sources(spec: CacheSpec) -> tuple[int | None, ...]:
    """Return for each layer the layer with its K and V: itself, another ("shared"), or None (nothing is cached)."""
    sources: list[int | None] = []
    for number, layer in enumerate(spec.layers):
        if layer.reads_layer is None:
            sources.append(number if layer.token_bytes else None)
            continue
        source = layer.reads_layer
        known = isinstance(source, int) and 0 <= source < len(spec.layers)
        if layer.token_bytes or not known or spec.layers[source].reads_layer is not None:
            raise ArgumentError("cache_bad_source", layer=number, name=spec.name, source=source)
        sources.append(source if spec.layers[source].token_bytes else None)
    return tuple(sources)


def linear_groups(spec: CacheSpec) -> tuple[LinearTensorGroup, ...]:
    """Return the layers that cache tokens, grouped by shape in order of first appearance.

    Raises ``ArgumentError`` naming the first layer that a linear cache cannot hold.
    """
    shapes: dict[tuple[int, int, int], list[int]] = {}
    # Compressed layers first: the windows beside them are refused too, for a reason that says less.
    for number, layer in sorted(enumerate(spec.layers), key=lambda each: each[1].rate == 1):
        _refuse(spec, number, layer)
    for number, layer in enumerate(spec.layers):
        if layer.token_bytes:
            shapes.setdefault((layer.kv_heads, layer.k_dim, layer.v_dim), []).append(number)
    if not shapes:
        raise ArgumentError("linear_empty", name=spec.name)
    return tuple(LinearTensorGroup(*shape, tuple(layers)) for shape, layers in shapes.items())


def _refuse(spec: CacheSpec, number: int, layer: LayerSpec) -> None:
    """Raise if the layer stores anything besides plain K and V of each token."""
    for what, num_bytes in (
        ("waiting_bytes", layer.waiting_bytes),
        ("state_bytes", layer.state_bytes),
        ("index_bytes", layer.index_bytes),
        ("format_bytes", layer.format_bytes),
        ("packed_bytes", layer.packed_bytes),
        ("scale_bytes", layer.scale_bytes),
    ):
        if num_bytes:
            raise ArgumentError(
                "linear_layer", layer=number, name=spec.name, kind=layer.kind, field=what, num_bytes=num_bytes
            )
    if not layer.token_bytes:
        return
    for what, value in (("kv_heads", layer.kv_heads), ("k_dim", layer.k_dim), ("v_dim", layer.v_dim)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError("bad_count", what=f"layers[{number}].{what}", value=value, least=1)
    itemsize = KV_DTYPES[spec.kv_dtype].itemsize
    if layer.itemsize != itemsize:
        raise ArgumentError(
            "linear_itemsize", layer=number, itemsize=layer.itemsize, dtype=spec.kv_dtype, expected=itemsize
        )
