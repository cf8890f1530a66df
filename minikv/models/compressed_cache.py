"""CompressedCache: the cache of a forward of DeepSeek-V4: windows and entries in blocks, waiting tokens in a slot.

    window     the last W - 1 tokens' K = V          a block of ``block_size`` tokens, given back behind the window
    entries    one K = V of each ``rate`` tokens     a block of ``block_size / rate`` entries, made of a block's tokens
    waiting    tokens of an entry not made yet       the sequence's slot in ``StateSlots``

How many entries there are, and how many tokens wait, follows from the sequence's length. So blocks are shared, copied,
freed and found as those of any other model, and a slot is that of any other state. transformers' DeepseekV4HCACache and
DeepseekV4CSACache hold the same in tensors that grow; the model's compressors call the same methods here.
"""

from typing import Any

import torch
from torch import Tensor

from minikv.cache.states import StateShape, StateSlots
from minikv.errors import ArgumentError
from minikv.models.batch import Batch
from minikv.models.hf_cache import GatheredCache, store_kv

NAMES = ("compressor", "indexer")  # what a layer makes entries for; the indexer is that of sparse layers


def waiting_shapes(layers: list[Any]) -> tuple[StateShape, ...]:
    """Return the tensors of a fixed size for ``layers``, those of transformers' cache after some entries were made.

    They are numbered as in a ``CacheSpec``: a layer's entries come behind its window.
    """
    found, number = [], 0
    for layer in layers:
        number += 1
        rate = getattr(layer, "compress_rate", None)
        if rate is None:
            continue
        for index, name in enumerate(NAMES[: len(layer.buffer_kv)]):
            for what, rows in (
                ("buffer_kv", rate - 1),
                ("buffer_gate", rate - 1),
                ("overlap_kv", rate),
                ("overlap_gate", rate),
            ):
                held = getattr(layer, what, {}).get(name)
                if held is not None:
                    found.append(StateShape(number, what, index, (rows, held.shape[2]), held.dtype))
        number += 1
    return tuple(found)


class CompressedCache(GatheredCache):
    """``GatheredCache`` for layers that have a window each, and most of them entries behind it."""

    def __init__(self, batch: Batch, row: int, start: int, end: int, lengths: tuple[int, ...]):
        super().__init__(batch, row, start, end, lengths)
        specs = batch.cache.spec.layers
        self._windows = [number for number, layer in enumerate(specs) if layer.rate == 1]

    def lend(self, states: StateSlots) -> None:
        """Let the layers read and write the slot of their sequence."""
        compressed = {shape.layer for shape in states.shapes}
        self.layers = [
            _Entries(self, number + 1, states) if number + 1 in compressed else None
            for number in self._windows
        ]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        """Store the new tokens; return K [1, 1, n, k_dim] of those in the window of a query, and the same as V."""
        number, group = self._windows[layer_idx], self._group(layer_idx)
        self.store(number, key_states, self.batch.slots[group][self.start : self.end])
        k = self.held(number, self.lengths[group], self._first(layer_idx), key_states.dtype)
        k = k.transpose(0, 1).unsqueeze(0)
        return k, k

    def store(self, number: int, rows: Tensor, slots: Tensor) -> None:
        """Store ``rows`` [1, 1, n, k_dim], each K and V, in ``slots`` of layer ``number`` of the spec."""
        store_kv(self.batch.cache.layer(number), rows, rows, slots)

    def held(self, number: int, count: int, first: int, dtype: torch.dtype) -> Tensor:
        """Return [count - first, 1, k_dim], the tokens or entries from ``first`` on of layer ``number`` of the spec."""
        cache = self.batch.cache
        table = self.batch.block_tables[cache.kv_cache_group_of(number)][self.row]
        return cache.gather(number, table, count, first, dtype=dtype)[0]

    @property
    def is_sliding(self) -> list[bool]:
        """For each layer of the model True: it has a window, whatever is behind it."""
        return [True] * len(self._windows)

    @property
    def is_linear(self) -> list[bool]:
        """For each layer of the model False: it has K and V."""
        return [False] * len(self._windows)

    is_dummy = is_linear

    def _group(self, layer: int) -> int:
        return self.batch.cache.kv_cache_group_of(self._windows[layer])


class _Entries:
    """One layer as its compressors ask it for what waits, what was made, and what the last entry leaves behind."""

    def __init__(self, cache: CompressedCache, number: int, states: StateSlots):
        self._cache, self._number = cache, number
        batch, self._rate = cache.batch, cache.batch.cache.spec.layers[number].rate
        slot = (batch.state_slots or ())[cache.row]
        self._slot = {
            (shape.name, NAMES[shape.index]): states.tensor(shape)[slot]
            for shape in states.shapes
            if shape.layer == number
        }
        self._before = cache.get_seq_length()
        self._made = (self._before + cache.end - cache.start) // self._rate
        # An entry's slot is that of its last token, counted in entries.
        ends = batch.slots[batch.cache.kv_cache_group_of(number)][cache.start : cache.end]
        self._slots = ends[self._rate - 1 - self._before % self._rate :: self._rate] // self._rate

    def store_compression_weights(self, name: str, kv: Tensor, gate: Tensor) -> tuple[Tensor, Tensor, int]:
        """Take the new tokens [1, q, width]; return all that make whole entries, and the place of their first token."""
        waiting, ready = self._before % self._rate, []
        for what, new in (("buffer_kv", kv), ("buffer_gate", gate)):
            held = self._slot[what, name]
            joined = torch.cat([held[:waiting].unsqueeze(0), new], dim=1)
            whole = joined.shape[1] // self._rate * self._rate
            held[: joined.shape[1] - whole] = joined[0, whole:]
            ready.append(joined[:, :whole])
        return ready[0], ready[1], self._before - waiting

    def update_overlap_state(
        self, name: str, chunk_kv: Tensor, chunk_gate: Tensor, head_dim: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return what the entry before left [1, rate, head_dim], None of none; keep what the last one leaves."""
        left: list[Tensor | None] = []
        for what, chunk in (("overlap_kv", chunk_kv), ("overlap_gate", chunk_gate)):
            held = self._slot[what, name]
            left.append(held.clone().unsqueeze(0) if self._before >= self._rate else None)
            held.copy_(chunk[0, -1, :, :head_dim])
        return left[0], left[1]

    def update_compressor_states(self, name: str, compressed: Tensor) -> Tensor:
        """Store the new entries [1, n, dim]; return those of the whole sequence."""
        cache, number = self._cache, self._number
        if name == "compressor":
            cache.store(number, compressed.unsqueeze(1), self._slots)
            return cache.held(number, self._made, 0, compressed.dtype).transpose(0, 1)
        layer = cache.batch.cache.layer(number)
        new = compressed[0].contiguous().view(torch.int8)  # bytes: they are not rounded as K and V may be
        if layer.index is None or new.shape[1] != layer.index.shape[3]:
            expected = f"[n, {0 if layer.index is None else layer.index.shape[3]}]"
            raise ArgumentError(
                "cache_shape", what="indexer key bytes", shape=list(new.shape), expected=expected
            )
        layer.index.view(-1, new.shape[1])[self._slots] = new
        blocks = cache.batch.block_tables[layer.kv_cache_group][cache.row]
        count = -(-self._made // layer.index.shape[1])
        held = layer.index[blocks[:count]].view(-1, new.shape[1])[: self._made]
        return held.view(compressed.dtype).unsqueeze(0)
