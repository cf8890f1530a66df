"""HostPool: blocks of a paged cache in CPU memory, swapped out and in as whole blocks. Lesson 12.

On a GPU the pool is pinned, and its transfers run on a stream of their own, beside the computation:

    out = pool.swap_out(pairs)     the blocks are copied aside in the order of the current stream: as soon as this
                                   returns, they may be given to another sequence
    back = pool.swap_in(pairs)     runs behind everything that was queued before it; until back.wait() its blocks
    ...                            belong to the transfer, and the forward can go on with others
    back.wait()                    everything queued from here on sees them

Transfers of one pool run one after another, so a block can be swapped in as soon as swap_out has returned. On a CPU
the same code runs without a stream: a transfer is done when the call returns. A block is moved byte for byte, in all
layers of its group: K, V and scales.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minikv.cache.checks import as_indices, check_pairs, check_range
from minikv.cache.layout import blocks_of_each
from minikv.cache.paged import PagedKVCache
from minikv.errors import ArgumentError, DoesNotFitError
from minikv.kernels.slots import as_bytes
from minikv.shown import one_line
from minikv.units import MIB, exact_bytes, format_bytes

Pairs = Sequence[Iterable[tuple[int, int]]]
PIECE = 64 * MIB  # bytes of a transfer that are staged on the device at a time


@dataclass(frozen=True)
class Transfer:
    """One swap on its way to or from ``device``. ``event`` is None on a CPU, where it is done already."""

    event: torch.cuda.Event | None
    device: torch.device

    def wait(self) -> None:
        """Make the device's current stream wait for it, for any current device; the CPU goes on."""
        if self.event is not None:
            self.event.wait(torch.cuda.current_stream(self.device))

    def synchronize(self) -> None:
        """Make the CPU wait for it."""
        if self.event is not None:
            self.event.synchronize()

    @property
    def done(self) -> bool:
        """Return whether every byte has arrived."""
        return self.event is None or self.event.query()


@dataclass(frozen=True)
class _Move:
    """The blocks that one call moves in one group: ``device[i]`` and ``host[i]`` form a pair, both int64 on the CPU."""

    kv_cache_group: int
    device: Tensor
    host: Tensor


class HostPool:
    """``num_blocks`` host blocks for each group of ``cache`` (one number, or one for each group), pinned beside a GPU.

    A host block holds what was swapped out to it, or nothing: then it cannot be swapped in. The block
    manager knows which sequence owns a host block; here swapping out to a used block overwrites it.
    ``nbytes`` is the sum of the groups' ``block_bytes(block_size) * num_blocks``. Raises ``DoesNotFitError`` if the
    host lacks that much memory.
    """

    def __init__(self, cache: PagedKVCache, num_blocks: int | Sequence[int]):
        if not isinstance(cache, PagedKVCache):
            raise ArgumentError("offload_not_a_cache", kind=type(cache).__name__)
        self.cache = cache
        self.num_blocks = blocks_of_each(num_blocks, len(cache.kv_cache_groups))
        self.pinned = cache.device.type == "cuda"
        sizes = zip(cache.kv_cache_groups, self.num_blocks, strict=True)
        self.nbytes = sum(group.block_bytes(cache.block_size) * blocks for group, blocks in sizes)
        try:
            with torch.inference_mode(False):
                self._parts = tuple(self._allocate(group) for group in range(len(cache.kv_cache_groups)))
        except (RuntimeError, MemoryError) as error:
            raise DoesNotFitError("offload_no_memory", nbytes=exact_bytes(self.nbytes)) from error
        self._held: tuple[set[int], ...] = tuple(set() for _ in cache.kv_cache_groups)
        self._stream = torch.cuda.Stream(cache.device) if self.pinned else None

    def __repr__(self) -> str:
        blocks = " + ".join(f"{count:,}" for count in self.num_blocks)
        held = f"{sum(map(len, self._held)):,} held"
        size = f"{format_bytes(self.nbytes)}{' pinned' if self.pinned else ''}"
        return one_line("HostPool", self.cache.spec.name, f"{blocks} host blocks", size, held)

    def _allocate(self, group: int) -> tuple[Tensor, ...]:
        """Allocate [host blocks, *block_shape] beside each tensor of the cache, one-byte elements as uint8."""
        count, pinned = self.num_blocks[group], self.pinned
        shapes = [part.shape for part in self.cache.parts(group)]
        return tuple(
            as_bytes(torch.empty((count, *shape.block_shape), dtype=shape.dtype, pin_memory=pinned))
            for shape in shapes
        )

    def tensors(self) -> tuple[Tensor, ...]:
        """All of its memory: uint8 tensors [host blocks, ...], none once it is closed."""
        return tuple(part for parts in self._parts for part in parts)

    def held(self, kv_cache_group: int) -> frozenset[int]:
        """Return the host blocks of that group with content."""
        self.cache.check_kv_cache_group(kv_cache_group)
        self._check_open()
        return frozenset(self._held[kv_cache_group])

    def pieces(self, pairs: Pairs) -> Iterator[Pairs]:
        """Yield ``pairs`` in parts that stage at most ``PIECE`` bytes on the device, or a block; see ``swap_out``."""
        for group, listed in enumerate(map(list, pairs)):
            count = max(1, PIECE // self.cache.kv_cache_groups[group].block_bytes(self.cache.block_size))
            for start in range(0, len(listed), count):
                yield [listed[start : start + count] if other == group else [] for other in range(len(pairs))]

    @torch.no_grad()
    def swap_out(self, pairs: Pairs) -> Transfer:
        """Copy blocks of the cache to the host: ``pairs[group]`` are (device block, host block), as in ``Swap``.

        Everything is checked before anything moves. If a copy fails after that, the cache is unchanged, and none of
        these host blocks has content: they may be half overwritten. Until it is done it takes as much device memory
        again as the blocks, for the copies aside, and twice that while they are made; ``swap_in`` takes it once.
        ``pieces`` keeps both small.
        """
        moves = self._moves(pairs)
        for move in moves:
            check_pairs(move.device, move.host)
        staged = [
            [
                part.read_blocks(move.device.to(self.cache.device))
                for part in self.cache.parts(move.kv_cache_group)
            ]
            for move in moves
        ]
        for move in moves:
            self._held[move.kv_cache_group].difference_update(move.host.tolist())
        with self._beside():
            for move, parts in zip(moves, staged, strict=True):
                for blocks, host in zip(parts, self._parts[move.kv_cache_group], strict=True):
                    copy_rows(blocks, range(len(blocks)), host, move.host.tolist())
                    if self._stream is not None:
                        blocks.record_stream(self._stream)  # its memory may be reused only behind the copy
            transfer = self._transfer()
        for move in moves:
            self._held[move.kv_cache_group].update(move.host.tolist())
        return transfer

    @torch.no_grad()
    def swap_in(self, pairs: Pairs) -> Transfer:
        """Copy host blocks into the cache: ``pairs[group]`` are (device block, host block). The host keeps its copy.

        Raises ``ArgumentError`` for a host block without content. The cache is written when every byte has reached
        the device, so a failed copy leaves it unchanged.
        """
        moves = self._moves(pairs)
        for move in moves:
            check_pairs(move.host, move.device)
            self._check_held(move.kv_cache_group, move.host)
        with self._beside():
            staged = []
            for move in moves:
                blocks_of = move.device.to(self.cache.device)
                for part, host in zip(
                    self.cache.parts(move.kv_cache_group), self._parts[move.kv_cache_group], strict=True
                ):
                    # There may be more rows than the pool has blocks: several sequences can load one of them.
                    shape = (len(move.host), *host.shape[1:])
                    rows = torch.empty(shape, dtype=host.dtype, device=self.cache.device)
                    copy_rows(host, move.host.tolist(), rows, range(len(rows)))
                    staged.append((part, blocks_of, rows))
            for part, blocks_of, rows in staged:
                part.write_blocks(blocks_of, rows)
            return self._transfer()

    def read(self, blocks: Sequence[Any]) -> list[list[Tensor]]:
        """Copy the host blocks ``blocks[group]``: a tensor [n, *block_shape] for each part of each group.

        The parts of a group are in the order of ``cache.parts(group)``, in the cache's dtypes.
        """
        wanted = self.host_blocks(blocks)
        for group, host in enumerate(wanted):
            self._check_held(group, host)
        self.synchronize()
        return [
            [
                stored[host].view(part.shape.dtype)
                for part, stored in zip(self.cache.parts(group), self._parts[group], strict=True)
            ]
            for group, host in enumerate(wanted)
        ]

    @torch.no_grad()
    def fill(self, blocks: Sequence[Any], rows: Sequence[Sequence[Tensor]]) -> None:
        """Put the tensors of ``read`` into the host blocks ``blocks[group]``, which have content from then on.

        Raises ``ArgumentError``, and fills none, for CPU tensors of another shape or dtype, and for anything else.
        """
        targets = self.host_blocks(blocks)
        given = [list(parts) for parts in self._each_group(rows)]
        for group, host in enumerate(targets):
            check_pairs(host, host)
            shapes = [part.shape for part in self.cache.parts(group)]
            if len(given[group]) != len(shapes):
                raise ArgumentError("cache_pairs", src=[len(given[group])], dst=[len(shapes)])
            for shape, row in zip(shapes, given[group], strict=True):
                expected = f"{[len(host), *shape.block_shape]} {shape.dtype} on cpu"
                if not isinstance(row, Tensor):
                    kind_of = type(row).__name__
                    raise ArgumentError(
                        "cache_not_a_tensor", what=shape.name, kind=kind_of, expected=expected
                    )
                found = f"{list(row.shape)} {row.dtype} on {row.device}"
                if found != expected:
                    raise ArgumentError("cache_shape", what=shape.name, shape=found, expected=expected)
        self.synchronize()
        for group, host in enumerate(targets):
            for stored, row in zip(self._parts[group], given[group], strict=True):
                stored[host] = as_bytes(row)
            self._held[group].update(host.tolist())

    def host_blocks(self, blocks: Any) -> list[Tensor]:
        """Return ``blocks[group]`` as checked int64 tensors, one for each group."""
        return [
            self._host_blocks(f"blocks[{group}]", listed, group)
            for group, listed in enumerate(self._each_group(blocks))
        ]

    def synchronize(self) -> None:
        """Make the CPU wait for every transfer that was begun."""
        if self._stream is not None:
            self._stream.synchronize()

    def close(self) -> None:
        """Wait for the transfers and free the memory; close the pool before its cache. A second call does nothing."""
        self.synchronize()
        self._parts, self._held = (), ()

    def _check_open(self) -> None:
        if not self._parts:
            raise ArgumentError("offload_closed")

    def _moves(self, pairs: Any) -> list[_Move]:
        """Return the pairs of every group as checked index tensors; groups without a pair are left out."""
        moves = []
        for group, listed in enumerate(self._each_group(pairs)):
            listed = list(listed)
            if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in listed):
                raise ArgumentError("offload_pairs", kv_cache_group=group)
            device = as_indices(f"pairs[{group}]", [pair[0] for pair in listed], torch.device("cpu"))
            check_range(f"pairs[{group}] device", device, 0, self.cache.num_blocks[group] - 1)
            host = self._host_blocks(f"pairs[{group}] host", [pair[1] for pair in listed], group)
            if listed:
                moves.append(_Move(group, device, host))
        return moves

    def _each_group(self, given: Any) -> Sequence[Any]:
        """Return ``given`` if it has one entry for each group and each of them can be listed; raise otherwise."""
        self._check_open()
        num_groups = len(self.num_blocks)
        if not isinstance(given, list | tuple) or len(given) != num_groups:
            raise ArgumentError("offload_each_group", groups=num_groups)
        for group, listed in enumerate(given):
            if not isinstance(listed, Iterable):
                raise ArgumentError("offload_pairs", kv_cache_group=group)
        return given

    def _host_blocks(self, what: str, values: Any, group: int) -> Tensor:
        host = as_indices(what, values, torch.device("cpu")).long()
        if host.dim() != 1:
            raise ArgumentError("cache_shape", what=what, shape=list(host.shape), expected="[n]")
        check_range(what, host, 0, self.num_blocks[group] - 1)
        return host

    def _check_held(self, group: int, host: Tensor) -> None:
        for block in host.tolist():
            if block not in self._held[group]:
                raise ArgumentError("offload_empty", kv_cache_group=group, block=block)

    def _beside(self) -> AbstractContextManager:
        """Return a context on the pool's stream, behind everything queued on the current one; empty on a CPU."""
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self.cache.device))
        return torch.cuda.stream(self._stream)

    def _transfer(self) -> Transfer:
        return Transfer(None if self._stream is None else self._stream.record_event(), self.cache.device)


def copy_rows(src: Tensor, src_rows: Iterable[int], dst: Tensor, dst_rows: Iterable[int]) -> None:
    """Copy row ``src_rows[i]`` of ``src`` to row ``dst_rows[i]`` of ``dst``: a block's bytes in one piece."""
    for source, target in zip(src_rows, dst_rows, strict=True):
        dst[target].copy_(src[source], non_blocking=True)
