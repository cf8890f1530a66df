"""PagedKVCache: K and V in blocks that any sequence may use. Lessons 06 and 09.

    [2, layers, blocks, block_size, kv_heads, head_dim]        2: K at 0, V at 1

A sequence owns blocks in any order, listed in its block table. A token's slot is
``table[position // block_size] * block_size + position % block_size``. The cache itself knows no sequences; its
interface for a ``Batch`` and an engine is ``Pages``.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from minikv.cache.checks import as_indices, check_pairs, check_range, check_tokens
from minikv.cache.codec import Codec, find_codec
from minikv.cache.layout import Part, PartShape, TensorGroup, blocks_of_each, paged_layout
from minikv.cache.pages import LayerCache, Pages
from minikv.errors import ArgumentError, check_count
from minikv.kernels.dispatch import operations
from minikv.memory.arena import Arena, ArenaInUseError, arena_bytes
from minikv.plan.spec.cache_spec import CacheSpec

__all__ = ["LayerCache", "PagedKVCache"]


class PagedKVCache(Pages):
    """The blocks of every KV cache group of ``spec``, in one allocation on ``device``.

    Every byte starts as 0: a masked place may be multiplied by 0, and 0 * NaN would be NaN. The zeros also make a CPU
    allocate the memory now, not page by page in the middle of a request. A block that is used again is not cleared.

    ``num_blocks`` is a number for each of ``minikv.plan.pool.kv_cache_groups(spec)``, in that order, or one for all.
    ``codec`` is a name or a ``Codec`` with the spec's bytes (None: the one of ``spec.kv_dtype``).
    ``nbytes`` is the sum over the groups of ``block_bytes(block_size) * num_blocks``, scales included; alignment
    adds ``arena.report().padding``.

    A "shared" layer has no storage and gives the views of the layer that it reads. A compressed layer has an entry
    where others have ``rate`` tokens: its slots are those of entries. Refused, with the layer named
    (``ArgumentError``): cross-attention, vLLM's indexer keys and formats, entries that do not fill a block. States of a
    fixed size are not in it, but in ``StateSlots``. A device without enough memory raises ``DoesNotFitError``.
    """

    def __init__(
        self,
        spec: CacheSpec,
        num_blocks: int | Sequence[int],
        block_size: int = 16,
        *,
        device: torch.device | str = "cpu",
        codec: Codec | str | None = None,
    ):
        if not isinstance(spec, CacheSpec):
            raise ArgumentError("cache_not_a_spec", kind=type(spec).__name__)
        check_count("block_size", block_size)
        self.spec, self.block_size = spec, block_size
        self.codec = find_codec(spec.kv_dtype if codec is None else codec)
        self._layout = paged_layout(spec, self.codec, block_size)
        self.kv_cache_groups = self._layout.kv_cache_groups
        self.num_blocks = blocks_of_each(num_blocks, len(self.kv_cache_groups))
        self._plan = [
            (shared, part, part.with_blocks(self.num_blocks[shared.kv_cache_group]))
            for shared in self._layout.tensor_groups
            for part in shared.parts(self.codec, block_size)
        ]
        need = arena_bytes([(shape, part.dtype) for _, part, shape in self._plan])
        self.arena = Arena(need, device, name="paged KV cache")
        self._hold(lambda part, shape: self.arena.borrow(part.name, shape, part.dtype))
        self.device = self.arena.device
        self.nbytes = 0
        for part in (part for parts in self._parts for part in parts):
            part.tensor.view(torch.uint8).zero_()
            self.nbytes += part.tensor.nbytes

    def _hold(self, lend: Callable[[PartShape, tuple[int, ...]], Tensor]) -> None:
        """Keep the tensors that ``lend`` returns for each part of the plan, and each layer's views of them."""
        # A cache outlives the block in which it was made, and an inference tensor could not be written outside it.
        with torch.inference_mode(False):
            carved: dict[TensorGroup, list[Part]] = {}
            for shared, part, shape in self._plan:
                carved.setdefault(shared, []).append(Part(part, lend(part, shape)))
            self._parts = tuple(
                tuple(
                    part
                    for shared, parts in carved.items()
                    if shared.kv_cache_group == group
                    for part in parts
                )
                for group in range(len(self.kv_cache_groups))
            )
            self._layers = _layer_views(carved)

    def layer(self, layer: int) -> LayerCache:
        """Return the views of one layer; a shared layer's are those of the layer that it reads."""
        # The fast path: each layer of each step calls this. A bool is no layer.
        if type(layer) is int and layer in self._layers:
            return self._layers[layer]
        return self._layers[self._source(layer)]  # raises the error that names the fault

    def parts(self, kv_cache_group: int) -> tuple[Part, ...]:
        """Return the tensors that together hold the blocks of one group."""
        self._check_open()
        self.check_kv_cache_group(kv_cache_group)
        return self._parts[kv_cache_group]

    def _tensors(self, group: int) -> Iterable[tuple[Tensor, int]]:
        return [(part.tensor, part.shape.block_dim) for part in self.parts(group)]

    def write(self, layer: int, k: Tensor, v: Tensor, slots: Any) -> None:
        """Write T new tokens into their slots; slot -1 skips one.

        ``k`` [T, kv_heads, k_dim] and ``v`` [T, kv_heads, v_dim], float16 or wider, on the cache's device; ``slots``
        [T]. Two tokens must not have one slot: silently, only one of them would stay.
        """
        views = self._own(layer)
        _, _, heads, k_dim = views.k.shape
        check_tokens("k", k, (None, heads, k_dim), self.device)
        check_tokens("v", v, (len(k), heads, views.v.shape[3]), self.device)
        where = _slots("slots", slots, views, low=-1)
        if where.shape != (len(k),):
            raise ArgumentError("cache_shape", what="slots", shape=list(where.shape), expected=f"[{len(k)}]")
        slots = where.to(self.device)
        operations(self.device).store_kv(k, v, views.k, views.v, slots, views.k_scale, views.v_scale)

    def move(self, layer: int, src_slots: Any, dst_slots: Any) -> None:
        """Copy slot ``src_slots[i]`` to slot ``dst_slots[i]`` in one layer; all are read before any is written.

        [n] moves every head alike, [kv_heads, n] each head by its own row.
        """
        views = self._own(layer)
        slots = [
            _slots(what, values, views, low=0)
            for what, values in (("src_slots", src_slots), ("dst_slots", dst_slots))
        ]
        heads = views.k.shape[2]
        for what, found in zip(("src_slots", "dst_slots"), slots, strict=True):
            if found.dim() not in (1, 2) or (found.dim() == 2 and len(found) != heads):
                expected = f"[n] or [{heads}, n]"
                raise ArgumentError("cache_shape", what=what, shape=list(found.shape), expected=expected)
        check_pairs(*slots)
        from_, to = (found.to(self.device) for found in slots)
        moved = [views.k, views.k_scale, views.index]
        if (
            views.v is not views.k
        ):  # K that is V is moved once: a second time would read what the first has written
            moved += [views.v, views.v_scale]
        for tensor in moved:
            if tensor is not None:
                operations(self.device).move_slots(tensor, from_, to)

    def close(self) -> None:
        """Free the memory. A second call does nothing.

        Raises ``ArenaInUseError`` with the names of tensors that are still used elsewhere (a ``LayerCache``, a view).
        The cache still works then: drop these, and close again.
        """
        self._layers, self._parts = {}, ()  # else the arena would name the cache itself
        try:
            self.arena.close()
        except ArenaInUseError:
            self._hold(lambda part, _: self.arena.renew(part.name))
            raise

    @property
    def closed(self) -> bool:
        """Whether ``close`` has freed the memory."""
        return not self._parts

    def _check_open(self) -> None:
        if self.closed:
            raise ArgumentError("paged_closed")

    def _source(self, layer: int) -> int:
        """Return the layer with the K and V that ``layer`` reads: itself, unless it is shared."""
        self._check_open()
        check_count("layer", layer, least=0)
        last = len(self.spec.layers) - 1
        if layer > last:
            raise ArgumentError("out_of_range", what="layer", value=layer, low=-1, high=last)
        source = self._layout.sources[layer]
        if source is None:
            raise ArgumentError("cache_no_kv", layer=layer, name=self.spec.name)
        return source

    def _own(self, layer: int) -> LayerCache:
        """Return the views of a layer for writing."""
        source = self._source(layer)
        if source != layer:
            raise ArgumentError("cache_shared_write", layer=layer, source=source)
        return self._layers[layer]


def _slots(what: str, values: Any, views: LayerCache, low: int) -> Tensor:
    slots = as_indices(what, values, views.k.device)
    check_range(what, slots, low, views.k.shape[0] * views.k.shape[1] - 1)
    return slots


def _layer_views(carved: dict[TensorGroup, list[Part]]) -> dict[int, LayerCache]:
    layers = {}
    for shared, parts in carved.items():
        tensors = [part.tensor for part in parts]
        for place, number in enumerate(shared.layers):
            k, v, k_scale, v_scale, index = shared.views(tensors, place)
            layers[number] = LayerCache(k, v, k_scale, v_scale, shared.kv_cache_group, index)
    return layers
