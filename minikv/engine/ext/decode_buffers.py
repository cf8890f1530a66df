"""DecodeBuffers: fixed buffers for the inputs and logits of captured decode steps.

A CUDA graph stores addresses and sizes, not tensors. So every decode step of n sequences is written over the same rows,
and the rest of its bucket is padding that stores nothing (slot -1) and reads nothing (length 0).

    inputs   token ids, positions, slots of each group: int64 [2 + groups, rows] | lengths: int32 [rows] | new tables
    tables   int32 [groups, rows, width]
    logits   [rows, vocabulary]

One copy fills ``inputs`` up to the end of the new data; a CPU writes there itself. The tables are packed behind the
rest, since most sequences are far shorter than the longest that the graphs allow; one copy on the device spreads them
over ``tables``. Entries of earlier steps remain behind them: no kernel reads a table past its sequence's length.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minikv.cache.pages import Pages
from minikv.engine.core.step import StepArrays
from minikv.engine.staging import aligned, pinned, place
from minikv.memory.arena import Arena, arena_bytes
from minikv.models import Batch

ROW_UNIT = 8  # the number of rows is a multiple of it, so that every array begins at a multiple of 16 bytes
COLUMN_UNIT = 16  # the same for columns: Triton specializes on strides that 16 divides


@dataclass(frozen=True)
class DecodeSizes:
    """Sizes for decodes of up to ``max_rows`` sequences, of up to ``width`` blocks in each KV cache group.

    ``vocabulary`` and ``dtype`` are those of the model's logits.
    """

    max_rows: int
    width: int
    num_kv_cache_groups: int
    vocabulary: int
    dtype: torch.dtype

    @property
    def rows(self) -> int:
        """``max_rows``, rounded up."""
        return -(-self.max_rows // ROW_UNIT) * ROW_UNIT

    @property
    def tables(self) -> tuple[int, int, int]:
        """The shape of all block tables."""
        return self.num_kv_cache_groups, self.rows, -(-self.width // COLUMN_UNIT) * COLUMN_UNIT

    @property
    def head_bytes(self) -> int:
        """The bytes before the tables: the int64 rows, and the lengths."""
        return aligned(8 * (2 + self.num_kv_cache_groups) * self.rows + 4 * self.rows)

    def loans(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return the arrays to borrow from the arena, in this order: {name: (shape, dtype)}."""
        return {
            "decode inputs": ((self.head_bytes + 4 * prod(self.tables),), torch.uint8),
            "decode tables": (self.tables, torch.int32),
            "decode logits": ((self.rows, self.vocabulary), self.dtype),
        }

    @property
    def num_bytes(self) -> int:
        """The bytes of the arena."""
        return arena_bytes(self.loans().values())


class DecodeBuffers:
    """The buffers of ``sizes`` for a cache, in an arena of their own on its device; at first all rows are padding."""

    def __init__(self, cache: Pages, sizes: DecodeSizes):
        self.cache, self.sizes = cache, sizes
        self.arena = Arena(sizes.num_bytes, cache.device, name="decode steps")
        rows, longs = sizes.rows, 2 + sizes.num_kv_cache_groups
        # They outlive the block in which they are made, and inference tensors could not be written outside it.
        with torch.inference_mode(False):
            borrowed = (self.arena.borrow(name, *loan) for name, loan in sizes.loans().items())
            self._inputs, self._tables, self.logits = borrowed
            split = 8 * longs * rows
            self._longs = self._inputs[:split].view(torch.int64).view(longs, rows)
            self._lengths = self._inputs[split : split + 4 * rows].view(torch.int32)
            self._new_tables = self._inputs[sizes.head_bytes :].view(torch.int32)
            self._last = torch.arange(rows, device=cache.device)
            self._starts = torch.arange(rows + 1, dtype=torch.int32, device=cache.device)
            self._tables.zero_()
            self.clear()

    def clear(self) -> None:
        """Make all rows padding."""
        self._inputs.zero_()
        self._longs[2:] = -1

    def vary(self, rows: int) -> None:
        """Give padding other token ids and positions; it still stores and reads nothing."""
        self._longs[:2, :rows] = min(1, self.sizes.vocabulary - 1)

    def token_ids(self, rows: int) -> Tensor:
        """Return the token ids: int64 [rows]."""
        return self._longs[0, :rows]

    def batch(self, rows: int) -> Batch:
        """Return the first ``rows`` as a batch of decodes. ``fill`` changes its contents, not its addresses.

        Its numbers hold for every step: a decode has one query a sequence, and ``takes`` checks the sizes.
        """
        groups = range(self.sizes.num_kv_cache_groups)
        return Batch(
            cache=self.cache,
            positions=self._longs[1, :rows],
            slots=tuple(self._longs[2 + group, :rows] for group in groups),
            block_tables=tuple(self._tables[group, :rows] for group in groups),
            lengths=(self._lengths[:rows],) * self.sizes.num_kv_cache_groups,
            query_starts=self._starts[: rows + 1],
            last=self._last[:rows],
            max_queries=1,
            max_position=0,
        )

    def takes(self, step: StepArrays) -> bool:
        """Return whether ``step`` has one token a sequence, and fits into the rows and columns."""
        rows, columns = step.block_tables[0].shape
        return len(step.token_ids) == rows <= self.sizes.max_rows and columns <= self.sizes.width

    def fill(self, step: StepArrays, sampled: Tensor | None = None) -> None:
        """Write a step over the first rows, and padding over the others. The host does not wait for the copy.

        For a step launched ahead, the tokens are at ``step.sources`` of ``sampled`` (int64) and stay on the device.
        """
        size = self.sizes
        rows, columns = step.block_tables[0].shape
        count = size.num_kv_cache_groups * rows * columns
        on_host = self.cache.device.type == "cpu"
        host = self._inputs if on_host else pinned(size.head_bytes + 4 * count, self.cache.device)
        memory = host.numpy()
        longs = place(memory, 0, (2 + size.num_kv_cache_groups, size.rows), np.dtype(np.int64))
        longs[:2, rows:], longs[2:, rows:] = 0, -1
        longs[0, :rows] = step.token_ids if step.sources is None else step.sources
        longs[1, :rows] = step.positions
        lengths = place(memory, longs.nbytes, (size.rows,), np.dtype(np.int32))
        lengths[:rows], lengths[rows:] = step.lengths, 0
        tables = place(memory, size.head_bytes, (size.num_kv_cache_groups, rows, columns), np.dtype(np.int32))
        for group, (slots, table) in enumerate(zip(step.slot_mapping, step.block_tables, strict=True)):
            longs[2 + group, :rows], tables[group] = slots, table
        if not on_host:
            self._inputs[: len(host)].copy_(host, non_blocking=True)
        if sampled is not None:
            ids = self.token_ids(rows)
            ids.copy_(sampled.index_select(0, ids))
        self._tables[:, :rows, :columns].copy_(self._new_tables[:count].view(tables.shape))

    def addresses(self) -> tuple[int, ...]:
        """Return the buffers' addresses, which a captured graph depends on."""
        held = (self._inputs, self._tables, self.logits, self._last, self._starts)
        return tuple(tensor.data_ptr() for tensor in held)

    def close(self) -> None:
        """Free the memory; no captured graph may run after that. A second call does nothing."""
        for name in [name for name, value in vars(self).items() if isinstance(value, Tensor)]:
            delattr(self, name)
        self.arena.close()


def one_row(cache: Pages) -> tuple[Tensor, Batch]:
    """Return token ids and batch of one row of padding, for a trial forward of a model."""
    device, num_groups = cache.device, len(cache.kv_cache_groups)
    zero = torch.zeros(1, dtype=torch.long, device=device)
    values: dict[str, Any] = {
        "positions": zero,
        "slots": (zero - 1,) * num_groups,
        "block_tables": (zero.int()[None],) * num_groups,
        "lengths": (zero.int(),) * num_groups,
        "query_starts": torch.arange(2, dtype=torch.int32, device=device),
        "last": zero,
    }
    return zero, Batch(cache=cache, max_queries=1, max_position=0, **values)
