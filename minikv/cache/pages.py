"""Pages: a cache as blocks of tokens, the interface for a ``Batch``, an adapter and an engine.

``PagedKVCache`` and ``LinearPages`` are such caches. Neither knows sequences: ``minikv.blocks`` knows which sequence
owns which block.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minikv.blocks import NULL_BLOCK
from minikv.cache.checks import as_indices, check_float, check_pairs, check_range
from minikv.cache.codec import Codec
from minikv.errors import ArgumentError, check_count
from minikv.i18n import pick_language, text
from minikv.kernels import PagedKV
from minikv.kernels.dispatch import operations
from minikv.plan.pool import KVCacheGroupSpec
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.units import exact_bytes, format_bytes


@dataclass(frozen=True)
class LayerCache:
    """One layer's views, nothing copied: ``k`` [blocks, block_size, kv_heads, k_dim] and ``v`` [..., v_dim].

    ``k_scale`` and ``v_scale`` [blocks, block_size, kv_heads] float32, or None. The layer takes the block tables of
    its ``kv_cache_group``. In a latent layer ``k`` is the latent and ``v`` the rope key. ``index`` [blocks, block_size,
    1, bytes] int8: the keys of a sparse layer's indexer, as the bytes of the model's own elements, or None. A
    compressed layer has entries in place of tokens, ``block_size / rate`` in a block, and ``v`` is ``k``.
    """

    k: Tensor
    v: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None
    kv_cache_group: int
    index: Tensor | None = None

    def paged(self, block_tables: Tensor, lengths: Tensor, memo: dict[Any, Any] | None = None) -> PagedKV:
        """Return these views with the ``block_tables`` [B, W] and ``lengths`` [B] of some sequences, for a kernel.

        ``memo`` is shared by layers with the same tables and lengths; None: a new one.
        """
        memo = {} if memo is None else memo
        return PagedKV(self.k, self.v, block_tables, lengths, self.k_scale, self.v_scale, memo)


class Pages(ABC):
    """Blocks of ``block_size`` tokens for each of ``kv_cache_groups``, ``num_blocks[group]`` of them, on ``device``.

    ``kv_cache_groups`` are ``minikv.plan.pool.kv_cache_groups(spec)``; the layers of one group share block tables, so
    that block 7 of a group is block 7 in all of its layers. ``codec`` encodes the elements; ``nbytes`` are the bytes of
    all blocks.

    Slots, tables and blocks are lists, NumPy arrays or integer tensors. On the CPU every one of them is checked
    before a byte is written. A tensor on the GPU is not read back, so an index past the end is CUDA's own assertion:
    pass NumPy arrays or CPU tensors to have them checked. Shapes, dtypes and devices are always checked.
    """

    spec: CacheSpec
    kv_cache_groups: tuple[KVCacheGroupSpec, ...]
    num_blocks: tuple[int, ...]
    block_size: int
    codec: Codec
    device: torch.device
    nbytes: int

    @abstractmethod
    def layer(self, layer: int) -> LayerCache:
        """Return the views of one layer; a shared layer's are those of the layer that it reads."""

    @abstractmethod
    def close(self) -> None:
        """Free the memory. A second call does nothing; ``ArenaInUseError`` if it is still used elsewhere."""

    @abstractmethod
    def _tensors(self, group: int) -> Iterable[tuple[Tensor, int]]:
        """Return the tensors that together hold the blocks of a group, each with its dimension of the blocks."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether ``close`` has freed the memory."""

    def shown(self, lang: str = "en") -> Shown:
        """Return a row for each KV cache group: its layers, window, blocks, and their bytes."""
        lang, name = pick_language(lang), type(self).__name__
        if self.closed:
            return Shown(_say("closed", lang, kind=name, name=self.spec.name, size=exact_bytes(self.nbytes)))
        heads = ("layers", "window", "blocks", "tokens", "block_bytes", "bytes")
        rows = []
        for number, (group, blocks) in enumerate(zip(self.kv_cache_groups, self.num_blocks, strict=True)):
            window, each = group.layer.window, group.block_bytes(self.block_size)
            seen = _say("window_none", lang) if window is None else f"{window:,}"
            figures = (blocks, blocks * self.block_size, each, blocks * each)
            row = [_say("group", lang, number=number), f"{group.count:,}", seen]
            rows.append([*row, *(f"{figure:,}" for figure in figures)])
        head = ["", *(_say(f"column_{each}", lang) for each in heads)]
        values = {"device": str(self.device), "kv_dtype": self.codec.name}
        title = _say("title", lang, kind=name, name=self.spec.name, **values)
        size = _say("blocks", lang, block_size=self.block_size, size=exact_bytes(self.nbytes))
        return Shown(title, head, rows, range(1, len(head)), (size,))

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        blocks = " + ".join(f"{count:,}" for count in self.num_blocks)
        told = [
            f"{blocks} blocks of {self.block_size:,} tokens",
            f"{format_bytes(self.nbytes)} on {self.device}",
        ]
        told.append("closed" if self.closed else f"KV in {self.codec.name}")
        return one_line(type(self).__name__, self.spec.name, *told)

    def kv_cache_group_of(self, layer: int) -> int:
        """Return the group of the layer's block tables: an index into ``kv_cache_groups`` and ``num_blocks``."""
        return self.layer(layer).kv_cache_group

    def check_kv_cache_group(self, kv_cache_group: int) -> None:
        """Raise ``ArgumentError`` unless the cache has a group of that number."""
        check_count("kv_cache_group", kv_cache_group, least=0)
        if kv_cache_group >= len(self.kv_cache_groups):
            raise ArgumentError(
                "out_of_range",
                what="kv_cache_group",
                value=kv_cache_group,
                low=-1,
                high=len(self.kv_cache_groups) - 1,
            )

    def gather(
        self, layer: int, table: Any, length: int, start: int = 0, *, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return decoded copies of K [length - start, kv_heads, k_dim] and V of the tokens ``start`` to ``length - 1``.

        ``table`` [n] are the sequence's blocks from its first token on. Behind a window they are
        ``NULL_BLOCK``, and asking for a token there is an error. Of a compressed layer tokens are entries. ``dtype``
        None: the stored dtype of a plain codec, float32 of fp8 and int8.
        """
        views = self.layer(layer)
        check_count("length", length, least=0)
        check_count("start", start, least=0)
        if start > length:
            raise ArgumentError("out_of_range", what="start", value=start, low=-1, high=length)
        if dtype is not None:
            check_float("dtype", dtype)
        blocks = self._table(table, views, length, start).to(self.device)
        gather = operations(self.device).gather
        k, v = (
            self.codec.decode(
                gather(data, blocks, length, start),
                None if scale is None else gather(scale, blocks, length, start),
                dtype,
            )
            for data, scale in ((views.k, views.k_scale), (views.v, views.v_scale))
        )
        return k, v

    def copy_blocks(self, kv_cache_group: int, src: Any, dst: Any) -> None:
        """Copy block ``src[i]`` to block ``dst[i]`` in every layer of the group; all are read before any is written."""
        tensors = self._tensors(kv_cache_group)
        blocks = []
        for what, values in (("src", src), ("dst", dst)):
            found = as_indices(what, values, self.device)
            _check_one_dimension(what, found)
            check_range(what, found, 0, self.num_blocks[kv_cache_group] - 1)
            blocks.append(found)
        check_pairs(*blocks)
        from_, to = (found.to(self.device) for found in blocks)
        for tensor, block_dim in tensors:
            operations(self.device).copy_blocks(tensor, from_, to, block_dim)

    def _table(self, values: Any, views: LayerCache, length: int, start: int) -> Tensor:
        """Return a checked block table; only the entries of the requested tokens must be blocks."""
        table, size = as_indices("table", values, self.device), views.k.shape[1]
        _check_one_dimension("table", table)
        need = -(-length // size)
        if len(table) < need:
            raise ArgumentError(
                "paged_table_short", blocks=len(table), length=length, need=need, block_size=size
            )
        first = start // size
        if start < length and table.is_cpu:
            read = table[first:need]
            if (read == NULL_BLOCK).any():
                place = first + int((read == NULL_BLOCK).nonzero()[-1])
                raise ArgumentError("paged_null_block", place=place, start=(place + 1) * size)
            check_range(f"table[{first}:]", read, 0, len(views.k) - 1)
        return table


def _check_one_dimension(what: str, indices: Tensor) -> None:
    if indices.dim() != 1:
        raise ArgumentError("cache_shape", what=what, shape=list(indices.shape), expected="[n]")


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"cache.{key}", lang, **values)
