"""The cache objects that a model of transformers gets for one forward. Lesson 11a.

A model calls ``update(k, v, layer)`` with the K and V of the new tokens, after RoPE, and computes attention with the
result. ``PagedCache`` returns only the new tokens, since the attention function reads the rest from the blocks;
``GatheredCache`` returns the whole history of one sequence, for a model that computes attention in its own way.
Neither stores anything itself: K and V are in the batch's ``cache``, and a step makes a new object.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from minikv.cache.pages import LayerCache
from minikv.errors import ArgumentError
from minikv.kernels.dispatch import operations
from minikv.models.batch import Batch


class PagedCache(Cache):
    """The cache of one packed forward [1, T]: ``update`` stores the new tokens and returns them unchanged."""

    def __init__(self, batch: Batch):
        super().__init__(layers=[])
        self.batch = batch

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        """Store ``key_states`` [1, kv_heads, T, k_dim] and ``value_states`` [..., v_dim] in the slots of the batch.

        A decode of B sequences may also come as [B, kv_heads, 1, k_dim].
        """
        layer = self.batch.cache.layer(layer_idx)
        store_kv(layer, key_states, value_states, self.batch.slots[layer.kv_cache_group])
        self.batch.stored[:] = [layer_idx]
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: many sequences have no common length. Positions are given to every forward."""
        return 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: no limit that this object knows of."""
        return -1


class GatheredCache(Cache):
    """The cache of a forward [1, q] of one sequence of the batch: ``update`` returns its history as one tensor.

    ``length`` [groups] are its cached tokens with the q new ones included, the rows ``start`` to ``end - 1`` of the
    batch.
    """

    def __init__(self, batch: Batch, row: int, start: int, end: int, lengths: tuple[int, ...]):
        super().__init__(layers=[])
        self.batch, self.row, self.start, self.end, self.lengths = batch, row, start, end, lengths
        specs = batch.cache.spec.layers
        self.layers: list[Any]
        if any(layer.index_bytes for layer in specs):
            self.layers = [_IndexLayer(self, number) for number in range(len(specs))]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        """Store the new tokens; return K [1, kv_heads, n, k_dim] and V of all that a query of this layer may see."""
        cache, group = self.batch.cache, self.batch.cache.kv_cache_group_of(layer_idx)
        store_kv(
            cache.layer(layer_idx), key_states, value_states, self.batch.slots[group][self.start : self.end]
        )
        table = self.batch.block_tables[group][self.row]
        k, v = cache.gather(
            layer_idx, table, self.lengths[group], self._first(layer_idx), dtype=key_states.dtype
        )
        return k.transpose(0, 1).unsqueeze(0), v.transpose(0, 1).unsqueeze(0)

    def update_indexer(self, indexer_key_states: Tensor, layer_idx: int) -> Tensor:
        """Store the indexer's keys [1, q, dim] of the new tokens; return those of the whole history, [1, n, dim].

        They choose which tokens a sparse layer attends to, and lie in the tokens' slots beside K and V.
        """
        layer = self.batch.cache.layer(layer_idx)
        group, dtype = layer.kv_cache_group, indexer_key_states.dtype
        new = (
            indexer_key_states[0].contiguous().view(torch.int8)
        )  # bytes: they are not rounded as K and V may be
        width = None if layer.index is None else layer.index.shape[-1]
        expected = (self.end - self.start, width)
        if layer.index is None or new.shape != expected:
            shape = list(new.shape)
            raise ArgumentError(
                "cache_shape", what="indexer key bytes", shape=shape, expected=str(list(expected))
            )
        layer.index.view(-1, new.shape[1])[self.batch.slots[group][self.start : self.end]] = new
        blocks = self.batch.block_tables[group][self.row]
        count = -(-self.lengths[group] // layer.index.shape[1])
        held = layer.index[blocks[:count]].view(-1, new.shape[1])[: self.lengths[group]]
        return held.view(dtype).unsqueeze(0)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens that were cached before this forward."""
        return self.lengths[self._group(layer_idx)] - (self.end - self.start)

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: no limit that this object knows of."""
        return -1

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """The place of the first query."""
        return self.get_seq_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return how many keys ``update`` returns, and the place of the first, for the model's mask."""
        first = self._first(layer_idx)
        return self.lengths[self._group(layer_idx)] - first, first

    @property
    def is_sliding(self) -> list[bool]:
        """For each layer whether it has a window."""
        cache = self.batch.cache
        groups = [self._group(layer) for layer in range(len(cache.spec.layers))]
        return [cache.kv_cache_groups[group].layer.window is not None for group in groups]

    @property
    def is_linear(self) -> list[bool]:
        """For each layer whether it keeps a state and no K and V."""
        layers = self.batch.cache.spec.layers
        return [bool(layer.state_bytes) and not layer.token_bytes for layer in layers]

    @property
    def is_dummy(self) -> list[bool]:
        """For each layer whether it stores nothing: it has no attention, or reads another layer's K and V."""
        return [not layer.token_bytes for layer in self.batch.cache.spec.layers]

    def _group(self, layer: int) -> int:
        """The group of the layer's block tables; a layer without any counts as one of the first group."""
        spec = self.batch.cache.spec.layers[layer]
        return (
            0
            if not spec.token_bytes and spec.reads_layer is None
            else self.batch.cache.kv_cache_group_of(layer)
        )

    def _first(self, layer: int) -> int:
        """The place of the first token that a query of this forward may see in this layer."""
        kept = self.batch.cache.kv_cache_groups[self._group(layer)].layer.window
        return 0 if kept is None else max(0, self.get_seq_length(layer) - kept)


class _IndexLayer:
    """One layer as MiniMax-M3 asks it for the keys of its indexer, [1, 1, tokens, dim]."""

    def __init__(self, held: GatheredCache, number: int):
        self._held, self._number = held, number

    def update_index(self, idx_k: Tensor) -> Tensor:
        return self._held.update_indexer(idx_k[:, 0], self._number).unsqueeze(1)


def store_kv(layer: LayerCache, k: Tensor, v: Tensor, slots: torch.Tensor) -> None:
    """Store K and V [1, heads, T, dim], or [T, heads, 1, dim], in their slots. Raises ``ArgumentError`` for others.

    The model's own code makes them, so they are checked in every mode: a single head would silently be stored for all.
    """
    if len(k) > 1:
        k, v = k.transpose(0, 2), v.transpose(0, 2)
    for what, new, cache in (("key", k, layer.k), ("value", v, layer.v)):
        shape = (1, cache.shape[2], len(slots), cache.shape[3])
        if new.shape != shape:
            raise ArgumentError("cache_shape", what=what, shape=list(new.shape), expected=str(list(shape)))
    new = k[0].transpose(0, 1), v[0].transpose(0, 1)
    operations(slots.device).store_kv(*new, layer.k, layer.v, slots, layer.k_scale, layer.v_scale)
