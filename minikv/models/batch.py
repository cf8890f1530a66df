"""Batch: the tokens of one forward, and their places in the cache. Lesson 11a.

    sequence     a: 3 of a prompt's tokens      b: 1 (decode)      c: 2, behind a cached prefix of 16
    positions      0  1  2                        40                 16  17
    query_starts   0                 3                   4                       6

All sequences are packed one after the other, so prompts, chunks of prompts and single tokens share a forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minikv.blocks import slots_of
from minikv.cache.pages import Pages
from minikv.errors import ArgumentError
from minikv.kernels import PagedKV
from minikv.models.observer import Observer
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.plan.spec.layers import LayerSpec


@dataclass(frozen=True, eq=False)
class Batch:
    """T new tokens of B sequences in ``cache``; every tensor lies on the cache's device. Build it with ``build``.

    ``positions`` [T] int64; ``query_starts`` [B + 1] int32: sequence i has the rows ``query_starts[i]`` to
    ``query_starts[i + 1] - 1``; ``last`` [R] int64: the rows that need logits, in order, of each sequence its
    last (``build``: that one alone) and as many as drafts before it; ``max_queries``: the longest row;
    ``max_position``: the largest position. One entry for each KV cache group have ``slots`` ([T] int64, where K and V
    of each token go, -1: nowhere), ``block_tables`` ([B, W] int32) and ``lengths`` ([B] int32, cached tokens with the
    new ones included). ``counts`` are the queries and the tokens of each sequence, as the host knows them; None: it
    does not.

    ``observer`` is told of the attention that is computed; only "paged" reads tell it.
    ``state_slots``: the slot of each sequence, for a model with states; their first token reads nothing from it.
    ``memos`` hold, for each group, what the kernels have derived from its tables in the first of its layers;
    ``stored`` the layer of which a forward stored K and V last.
    """

    cache: Pages
    positions: Tensor
    slots: tuple[Tensor, ...]
    block_tables: tuple[Tensor, ...]
    lengths: tuple[Tensor, ...]
    query_starts: Tensor
    last: Tensor
    max_queries: int
    max_position: int
    counts: tuple[list[int], list[int]] | None = None
    observer: Observer | None = None
    state_slots: tuple[int, ...] | None = None
    memos: dict[int, dict[Any, Any]] = field(default_factory=dict, repr=False)
    stored: list[int] = field(default_factory=list, repr=False)

    @classmethod
    def build(
        cls,
        cache: Pages,
        block_tables: Sequence[Any],
        lengths: Any,
        num_queries: Any,
        positions: Any = None,
    ) -> "Batch":
        """The batch in which sequence i computes its last ``num_queries[i]`` tokens before ``lengths[i]``.

        ``block_tables``: a table [B, W] for each of ``cache.kv_cache_groups``, the sequence's blocks from its first
        token on; ``NULL_BLOCK`` where a window has moved on, and past the length. ``lengths`` [B], or [groups, B] where
        eviction made them differ. ``positions`` [T], None: a token's position is its place, which holds until something
        was evicted. NumPy arrays or lists; they are copied.

        A token's slot follows from its table (``minikv.blocks.slots_of``).
        Raises ``ArgumentError`` for what is not whole numbers of these shapes, for a sequence without a query or with
        more queries than tokens, for a table that does not hold the tokens that the queries read, and for two tokens
        in one slot.
        """
        if not isinstance(cache, Pages):
            raise ArgumentError("bind_not_a_cache", kind=type(cache).__name__)
        num_groups = len(cache.kv_cache_groups)
        if not isinstance(block_tables, list | tuple) or len(block_tables) != num_groups:
            found = (
                len(block_tables) if isinstance(block_tables, list | tuple) else type(block_tables).__name__
            )
            raise ArgumentError("batch_tables", found=found, groups=num_groups)
        queries = _whole("num_queries", num_queries, ("B",))
        batch = len(queries)
        counts = _whole("lengths", lengths, ("B",) if _dimensions(lengths) < 2 else (num_groups, "B"))
        if counts.shape[-1] != batch:
            raise ArgumentError(
                "cache_shape", what="lengths", shape=list(counts.shape), expected=f"[{batch}]"
            )
        counts = np.broadcast_to(counts, (num_groups, batch))
        _check_queries(queries, counts)
        starts = np.zeros(batch + 1, np.int64)
        np.cumsum(queries, out=starts[1:])
        total = int(starts[-1])
        row = np.repeat(np.arange(batch), queries)
        within = np.arange(total) - starts[row]
        tables, slots = [], []
        for group, given in enumerate(block_tables):
            table = _whole(f"block_tables[{group}]", given, (batch, "W"))
            _check_table(cache, group, table, counts[group], queries)
            tables.append(table)
            slots.append(slots_of(table, row, (counts[group] - queries)[row] + within, cache.block_size))
            _check_slots(slots[-1], row)
        if positions is None:
            where = (counts[0] - queries)[row] + within
        else:
            where = _whole("positions", positions, (total,))
            if where.min() < 0:
                raise ArgumentError("bad_count", what="positions", value=int(where.min()), least=0)

        def on_device(values: np.ndarray, dtype: type) -> Tensor:
            return torch.from_numpy(values.astype(dtype)).to(cache.device)

        return cls(
            cache=cache,
            positions=on_device(where, np.int64),
            slots=tuple(on_device(values, np.int64) for values in slots),
            block_tables=tuple(on_device(table, np.int32) for table in tables),
            lengths=tuple(on_device(values, np.int32) for values in counts),
            query_starts=on_device(starts, np.int32),
            last=on_device(starts[1:] - 1, np.int64),
            max_queries=int(queries.max()),
            max_position=int(where.max()),
            counts=(queries.tolist(), counts.max(axis=0).tolist()),
        )

    def part(self, pieces: Sequence[tuple[int, int, int]]) -> "Batch":
        """The forward of ``pieces`` alone: (sequence, first row, end), at most one of a sequence.

        The rows of a sequence before its piece are in the cache; those behind it do not count yet.
        """
        starts, wanted = self.query_starts.tolist(), self.last.tolist()
        if [(first, end) for _, first, end in pieces] == list(pairwise(starts)):
            return self
        numbers = [row for row, _, _ in pieces]
        rows = [row for _, first, end in pieces for row in range(first, end)]
        counts = [end - first for _, first, end in pieces]
        places = {row: place for place, row in enumerate(rows)}

        def on_device(values: list[int], like: Tensor) -> Tensor:
            return torch.tensor(values, dtype=like.dtype, device=like.device)

        chosen, tokens = on_device(numbers, self.last), on_device(rows, self.last)
        later = on_device([starts[row + 1] - end for row, _, end in pieces], self.query_starts)
        slots = self.state_slots
        return replace(
            self,
            positions=self.positions[tokens],
            slots=tuple(each[tokens] for each in self.slots),
            block_tables=tuple(each[chosen] for each in self.block_tables),
            lengths=tuple(each[chosen] - later for each in self.lengths),
            query_starts=on_device([0, *accumulate(counts)], self.query_starts),
            last=on_device([places[row] for row in wanted if row in places], self.last),
            max_queries=max(counts),
            counts=None,
            state_slots=None if slots is None else tuple(slots[row] for row in numbers),
            memos={},
        )

    def kv(self, layer: int) -> PagedKV:
        """What the attention of ``layer`` reads: its K and V with the block tables and lengths of its group."""
        views = self.cache.layer(layer)
        group = views.kv_cache_group
        return views.paged(self.block_tables[group], self.lengths[group], self.memos.setdefault(group, {}))

    @property
    def num_tokens(self) -> int:
        """T, the number of tokens that the forward computes."""
        return len(self.positions)

    @property
    def num_sequences(self) -> int:
        """B."""
        return len(self.query_starts) - 1


def seen_window(cache: Pages, kv_cache_group: int) -> int | None:
    """Return how many tokens a query sees in the layers of ``kv_cache_group``, itself included; None: all.

    It is the ``window`` of that ``KVCacheGroup``.
    """
    cache.check_kv_cache_group(kv_cache_group)
    return sees(cache.spec, cache.kv_cache_groups[kv_cache_group].layer)


def sees(spec: CacheSpec, layer: LayerSpec) -> int | None:
    """Return how many tokens a query of ``layer`` sees, itself included; None: all.

    A spec of transformers' layout counts the tokens kept between two steps, which is one token fewer.
    """
    return layer.window if layer.window is None or spec.layout == "vllm" else layer.window + 1


def _dimensions(values: Any) -> int:
    if isinstance(values, np.ndarray):
        return values.ndim
    return 2 if isinstance(values, list | tuple) and values and isinstance(values[0], list | tuple) else 1


def _whole(what: str, values: Any, shape: tuple[int | str, ...]) -> np.ndarray:
    """Return ``values`` as int64 of that shape (a word: any size, but not 0)."""
    if isinstance(values, list | tuple):
        flat = [value for row in values for value in (row if isinstance(row, list | tuple) else (row,))]
        for value in flat:
            if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
                raise ArgumentError("cache_not_whole", what=what, value=repr(value))
            if not -(2**31) <= value < 2**31:
                raise ArgumentError("cache_not_whole", what=what, value="a number of more than 32 bits")
        try:
            values = np.array(values, np.int64)
        except ValueError:  # rows of different lengths
            raise ArgumentError("batch_ragged", what=what) from None
    if not isinstance(values, np.ndarray):
        raise ArgumentError("cache_not_a_list", what=what, kind=type(values).__name__)
    expected = "[{}]".format(", ".join(map(str, shape)))
    if values.ndim != len(shape) or any(
        have == 0 if isinstance(want, str) else have != want
        for have, want in zip(values.shape, shape, strict=True)
    ):
        raise ArgumentError("cache_shape", what=what, shape=list(values.shape), expected=expected)
    if values.dtype.kind not in "iu":
        raise ArgumentError("cache_not_whole", what=what, value=f"{values.dtype}")
    if values.dtype.itemsize > 4 and (values.max() >= 2**31 or values.min() < -(2**31)):
        raise ArgumentError("cache_not_whole", what=what, value="a number of more than 32 bits")
    return values.astype(np.int64)


def _check_queries(queries: np.ndarray, lengths: np.ndarray) -> None:
    """Raise unless every sequence has at least one query, and no more queries than tokens."""
    if queries.min() < 1:
        row = int(queries.argmin())
        raise ArgumentError("bad_count", what=f"num_queries[{row}]", value=int(queries[row]), least=1)
    short = lengths.min(axis=0) < queries
    if short.any():
        row = int(short.argmax())
        raise ArgumentError(
            "kernel_query_past", row=row, queries=int(queries[row]), length=int(lengths[:, row].min())
        )


def _check_table(
    cache: Pages, group: int, table: np.ndarray, lengths: np.ndarray, queries: np.ndarray
) -> None:
    """Raise unless the table is wide enough, and has a block wherever a query of its sequence looks."""
    size, last = cache.block_size, cache.num_blocks[group] - 1
    width, longest = table.shape[1], int(lengths.max())
    if longest > width * size:
        raise ArgumentError(
            "paged_table_short", blocks=width, length=longest, need=-(-longest // size), block_size=size
        )
    window = seen_window(cache, group)
    behind = np.zeros_like(lengths)
    if window is not None:
        behind = np.maximum(lengths - queries - window + 1, 0) // size
    column = np.arange(width)
    read = (column >= behind[:, None]) & (column * size < lengths[:, None])
    bad = read & ((table < 0) | (table > last))
    if bad.any():
        row, entry = (int(place) for place in np.argwhere(bad)[0])
        raise ArgumentError("kernel_table", row=row, entry=entry, value=int(table[row, entry]), last=last)


def _check_slots(slots: np.ndarray, row: np.ndarray) -> None:
    """Raise if two tokens have one slot; ``row`` [T] is the sequence of each token."""
    ordered = np.sort(slots)
    twice = (ordered[1:] == ordered[:-1]) & (ordered[1:] >= 0)
    if twice.any():
        slot = int(ordered[1:][twice][0])
        first, second = (int(row[token]) for token in np.flatnonzero(slots == slot)[:2])
        raise ArgumentError("batch_slot_twice", slot=slot, first=first, second=second)
