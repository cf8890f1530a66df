"""A model of PyTorch's CUDA caching allocator, to the byte, that needs neither a GPU nor torch.

The rules are those of ``DeviceCachingAllocator`` in ``c10/cuda/CUDACachingAllocator.cpp``. ``rules.py`` has the sizes,
and each method names the function that it follows. The source was read as of early 2025 (before torch 2.8) and in its
later rewrite for every kind of accelerator. Both agree with the default settings; where the meaning of a setting
changed, its docstring says so. The comparison with a real device is owed (``tests/memory/allocator/test_gpu.py``).

Not modelled: private pools of CUDA graphs and MemPool, several threads, IPC, and the later settings
``large_segment_size_mb`` and ``throw_on_cudamalloc_oom``. A request of 0 bytes is an error; torch answers it with a
null pointer before it reaches the allocator. The driver is a device of ``capacity`` bytes that fails only when it is
full, and that puts each new segment after the last one. cudaMalloc may choose other addresses. They matter, because of
two free blocks of one size the lower address is taken: so a replay of a real trace gives ``address``.
"""

from minikv.errors import LARGEST_COUNT, check_count
from minikv.memory.allocator.blocks import Block, SegmentView, view_of
from minikv.memory.allocator.core import AllocatorCore, DeviceOutOfMemoryError
from minikv.memory.allocator.rules import SMALL_SIZE, AllocatorSettings, round_size
from minikv.memory.allocator.stats import Usage
from minikv.shown import one_line
from minikv.units import format_bytes

__all__ = ["AllocatorSettings", "CachingAllocator", "DeviceOutOfMemoryError"]


class CachingAllocator(AllocatorCore):
    """One device's caching allocator. Sizes and addresses are in bytes; a stream is a number, 0 by default.

    ``capacity``: the device's memory (None: unlimited), of which the CUDA context and other processes hold
    ``non_torch`` bytes. ``memory_limit``: the bytes that ``torch.cuda.set_per_process_memory_fraction`` allows, None
    if it was never set (in later versions of torch also if the fraction is 1).
    """

    def __repr__(self) -> str:
        usage = self.usage()
        sizes = (f"{name} {format_bytes(getattr(usage, name))}" for name in ("allocated", "reserved"))
        return one_line("CachingAllocator", "", *sizes, f"{usage.num_segments:,} segments")

    # -- what a program does -------------------------------------------------------------------------------------

    def malloc(self, size: int, stream: int = 0, *, address: int | None = None) -> int:
        """Allocate ``size`` bytes on ``stream`` and return the address: ``malloc`` and ``alloc_found_block``.

        ``address`` is where the driver puts the new segment, if one is needed. Raises ``DeviceOutOfMemoryError``.
        """
        if type(size) is not int or not 0 < size <= LARGEST_COUNT:
            check_count("size", size)
        if type(stream) is not int or stream < 0:
            check_count("stream", stream, least=0)
        if address is not None:
            self._check_address(address)
        if self._events:
            self._process_events()
        rounded = round_size(size, self._divisions) if self._rounds_up else (size + 511) & -512
        pool = self._small if rounded <= SMALL_SIZE else self._large
        block = self._find(pool, stream, rounded) or self._grow(pool, stream, rounded, size, address)
        rest = block.size - rounded
        was_split = block.prev is not None or block.next is not None
        if rest >= pool.split_from and rounded < self._max_split:
            block.size = rounded
            remainder = Block(block.address + rounded, rest, stream, pool, block.home)
            remainder.link_after(block, block.next)
            pool.insert(remainder)
            if block.home is None:
                self._move_split(pool, *((0, -rounded) if was_split else (1, rest)))
        elif was_split and block.home is None:
            self._move_split(pool, -1, -block.size)
        block.requested, block.allocated = size, True
        self._live[block.address] = block
        live = pool.figures.live
        live[0] += 1
        live[1] += block.size
        live[2] += size
        if block.size >= self._max_split:
            self._stats.oversize_allocations.add(1)
        return block.address

    def free(self, address: int) -> None:
        """Return a block to its pool, or let it wait for the streams of ``record_stream``: ``free``."""
        block = self._live.pop(address, None) if type(address) is int else None
        if block is None:
            raise self._unknown(address)
        self._stats.record_peaks()
        block.allocated = False
        figures = block.pool.figures
        live, gone = figures.live, figures.gone
        size, asked = block.size, block.requested
        live[0] -= 1
        live[1] -= size
        live[2] -= asked
        gone[0] += 1
        gone[1] += size
        gone[2] += asked
        if size >= self._max_split:
            self._stats.oversize_allocations.add(-1)
        if block.uses:
            self._insert_events(block)
        else:
            self._free_block(block)

    def record_stream(self, address: int, stream: int) -> None:
        """Record that ``stream`` uses the block too (``recordStream``): it is reused only after that work ends."""
        block = self._live.get(address) if type(address) is int else None
        if block is None:
            raise self._unknown(address)
        check_count("stream", stream, least=0)
        if stream != block.stream:
            block.uses = (block.uses or set()) | {stream}

    def synchronize(self, stream: int | None = None) -> None:
        """End all work queued on ``stream`` (None: on every stream). Events of the model end here only.

        As on a device, the blocks themselves are freed at the next ``malloc`` (``process_events``) or
        ``empty_cache``, not now.
        """
        if stream is not None:
            check_count("stream", stream, least=0)
        for queued_on, queue in self._events.items():
            if stream is None or queued_on == stream:
                for _ in range(len(queue)):
                    queue.append((queue.popleft()[0], True))

    def empty_cache(self) -> None:
        """Return every segment without a block in use to the device: ``emptyCache``, ``release_cached_blocks``.

        It first waits for all outstanding events. A segment with one live block stays, whatever its size.
        """
        self._release_cached_blocks()

    # -- what a reader sees --------------------------------------------------------------------------------------

    def usage(self) -> Usage:
        """The current figures in bytes, both pools together."""
        return self._stats.usage()

    def memory_stats(self) -> dict[str, int]:
        """Every statistic of ``torch.cuda.memory_stats``, under the same names."""
        # torch reads its "no limit", 2**64 - 1, as a signed number.
        limit = -1 if self.settings.max_split_size_mb is None else self._max_split
        return self._stats.table() | {"max_split_size": limit}

    def reset_peak_stats(self) -> None:
        """``torch.cuda.reset_peak_memory_stats``: peaks start again from the current figures."""
        self._stats.reset_peaks()

    def reset_accumulated_stats(self) -> None:
        """``torch.cuda.reset_accumulated_memory_stats``: totals and counters start again from 0."""
        self._stats.reset_accumulated()

    def segments(self) -> tuple[SegmentView, ...]:
        """Every segment with its blocks, by address: ``snapshot``. A copy, which later operations do not change."""
        views = []
        for head in self._heads.values():
            block: Block | None = head
            while block is not None:
                if block.mapped and (block.prev is None or not block.prev.mapped):
                    views.append(view_of(block))
                block = block.next
        return tuple(sorted(views, key=lambda view: view.address))
