"""The steps behind the public methods of ``CachingAllocator``: find a block, get a segment, merge, give back.

Each method names the function of ``DeviceCachingAllocator`` in ``c10/cuda/CUDACachingAllocator.cpp`` that it
follows.
"""

from bisect import bisect_left
from collections import deque

from minikv.errors import ArgumentError, MiniKVError, check_count
from minikv.memory.allocator.blocks import Block, Pool
from minikv.memory.allocator.expandable import ExpandableSegments
from minikv.memory.allocator.rules import (
    LARGE_SEGMENT,
    MIN_BLOCK_SIZE,
    SMALL_SEGMENT,
    SMALL_SIZE,
    AllocatorSettings,
    divisions_by_interval,
    segment_size,
)
from minikv.memory.allocator.stats import AllocatorStats
from minikv.units import MIB, format_bytes

FIRST_ADDRESS = 1 << 40  # of the simulated device


class DeviceOutOfMemoryError(MiniKVError):
    """The modelled device has no memory left for a request. ``values`` holds the terms of torch's own message.

    As in torch, the attempt is not undone: cached blocks stay given back, and ``num_ooms`` counts it.
    """


class AllocatorCore:
    """The state of one device's allocator, and the steps of its public methods."""

    def __init__(
        self,
        capacity: int | None = None,
        *,
        settings: AllocatorSettings | None = None,
        non_torch: int = 0,
        memory_limit: int | None = None,
    ):
        if capacity is not None:
            check_count("capacity", capacity)
        if memory_limit is not None:
            check_count("memory_limit", memory_limit, least=0)
        check_count("non_torch", non_torch, least=0)
        if settings is not None and not isinstance(settings, AllocatorSettings):
            raise ArgumentError("allocator_not_settings", kind=type(settings).__name__)
        self.settings = settings or AllocatorSettings()
        self.capacity, self.non_torch, self.memory_limit = capacity, non_torch, memory_limit
        self._divisions = divisions_by_interval(self.settings.roundup_power2_divisions)
        self._rounds_up = any(steps > 1 for steps in self._divisions)
        self._max_split = self.settings.max_split_size
        # should_split: the small pool and expandable segments split off 512 bytes, the large pool more than 1 MiB.
        expandable = self.settings.expandable_segments
        self._small = Pool(True, MIN_BLOCK_SIZE, SMALL_SEGMENT)
        self._large = Pool(False, MIN_BLOCK_SIZE if expandable else SMALL_SIZE + 1, LARGE_SEGMENT)
        self._stats = AllocatorStats(self._small.figures, self._large.figures)
        self._live: dict[int, Block] = {}  # by address
        self._heads: dict[int, Block] = {}  # the first block of each segment, by address
        # By stream, oldest first; True: the event has ended.
        self._events: dict[int, deque[tuple[Block, bool]]] = {}
        self._next_address = FIRST_ADDRESS
        self._expandable = ExpandableSegments(self) if expandable else None
        # garbage_collection_threshold counts only where a limit is set (malloc: "if set_fraction && ...").
        self._gc_threshold = None if memory_limit is None else self.settings.garbage_collection_threshold

    @property
    def device_free(self) -> int | None:
        """Bytes that the device could still give, as ``torch.cuda.mem_get_info`` says; None without a capacity."""
        if self.capacity is None:
            return None
        return max(0, self.capacity - self.non_torch - self._stats.both.reserved.current)

    # -- finding and growing -------------------------------------------------------------------------------------

    def _find(self, pool: Pool, stream: int, rounded: int) -> Block | None:
        """The smallest free block of this stream that is large enough, at the lowest address: ``get_free_block``."""
        if self._gc_threshold is not None:
            pool.searches += 1
        free = pool.free.get(stream)
        if not free:
            return None
        index = bisect_left(free, (rounded,))
        if index == len(free):
            return None
        if self._expandable is not None:
            index = self._expandable.best_fit(free, index)
        found = free[index][2]
        if rounded < self._max_split:
            if found.size >= self._max_split:
                return None
        elif found.size >= rounded + self.settings.max_non_split_rounding_mb * MIB:
            return None
        del free[index]
        found.free = False
        return found

    def _grow(self, pool: Pool, stream: int, rounded: int, size: int, address: int | None) -> Block:
        """A new segment, after giving back cached ones where the device is full: the second half of ``malloc``."""
        if self._gc_threshold is not None:
            self._collect_garbage(self._gc_threshold)
        wanted = segment_size(rounded)
        block = self._new_block(pool, stream, rounded, wanted, address)
        if block is None and self._release_available(pool, stream, rounded):
            block = self._new_block(pool, stream, rounded, wanted, address)
        if block is None:
            self._release_cached_blocks()
            self._stats.counters["num_alloc_retries"] += 1
            block = self._new_block(pool, stream, rounded, wanted, address)
        if block is None:
            self._stats.counters["num_ooms"] += 1
            raise self._out_of_memory(size, wanted)
        return block

    def _new_block(self, pool: Pool, stream: int, rounded: int, wanted: int, at: int | None) -> Block | None:
        """A segment of ``wanted`` bytes as one block, or None where the device is full: ``alloc_block``."""
        if self.memory_limit is not None and self._stats.both.reserved.current + wanted > self.memory_limit:
            return None
        if self._expandable is not None:
            return self._expandable.allocate(pool, stream, rounded, at)
        if not self.fits(wanted):
            return None
        block = Block(self.place(wanted, at), wanted, stream, pool)
        self._heads[block.address] = block
        self._stats.move_segment(pool.figures, 1, wanted)
        self._stats.counters["num_device_alloc"] += 1
        if wanted >= self._max_split:
            self._stats.oversize_segments.add(1)
        return block

    def fits(self, size: int) -> bool:
        """True where the device still has ``size`` bytes."""
        free = self.device_free
        return free is None or size <= free

    def place(self, size: int, at: int | None) -> int:
        """The address of ``size`` bytes of new address space: ``at``, or after everything placed before."""
        address = self._next_address if at is None else at
        if at is not None:
            self._check_vacant(at, size)
        self._next_address = max(self._next_address, -(-(address + size) // SMALL_SEGMENT) * SMALL_SEGMENT)
        return address

    # -- giving back ---------------------------------------------------------------------------------------------

    def _free_block(self, block: Block) -> None:
        """Merge a block with its free neighbours and add it to its pool: ``free_block``, ``try_merge_blocks``."""
        pool = block.pool
        count = change = 0  # of inactive split blocks; one net movement, as torch counts it
        before, after = block.prev, block.next
        if before is not None and before.free:
            pool.remove(before)
            count, change = -1, -before.size
            before.absorb_next()
            block = before
        if after is not None and after.free:
            pool.remove(after)
            count, change = count - 1, change - after.size
            block.absorb_next()
        pool.insert(block)
        if block.home is None:
            if block.prev is not None or block.next is not None:
                count, change = count + 1, change + block.size
            self._move_split(pool, count, change)

    def _move_split(self, pool: Pool, count: int, size: int) -> None:
        figures, both = pool.figures, self._stats.both
        if count:
            figures.split.add(count)
            both.split.add(count)
        if size:
            figures.split_bytes.add(size)
            both.split_bytes.add(size)

    def _release_segment(self, block: Block) -> None:
        """Give one whole segment back to the device: ``release_block``."""
        block.pool.remove(block)
        del self._heads[block.address]
        self._stats.move_segment(block.pool.figures, -1, -block.size)
        self._stats.counters["num_device_free"] += 1
        if block.size >= self._max_split:
            self._stats.oversize_segments.add(-1)

    def _release_available(self, pool: Pool, stream: int, rounded: int) -> bool:
        """With ``max_split_size_mb``: give back one oversize block that is large enough, or else several of this
        stream, the largest first, until their sum is: ``release_available_cached_blocks``."""
        if self.settings.max_split_size_mb is None:
            return False
        free = pool.free.get(stream, [])
        wanted = max(rounded, self._max_split)
        index = bisect_left(free, (wanted,))
        if index < len(free):
            self._release_segment(free[index][2])
            return True
        released = 0
        while free and released < wanted and free[-1][0] >= self._max_split:
            released += free[-1][0]
            self._release_segment(free[-1][2])
        return released >= wanted

    def _release_cached_blocks(self) -> None:
        """Wait for all events, then give back every unsplit free block: ``release_cached_blocks``."""
        self._stats.counters["num_sync_all_streams"] += 1
        events, self._events = self._events, {}
        for queue in events.values():
            for block, _ in queue:
                self._event_ended(block)
        for pool in (self._large, self._small):
            if self._expandable is not None:
                self._expandable.unmap_all(pool)
                continue
            for block in pool.blocks():
                if not block.is_split:
                    self._release_segment(block)

    def _collect_garbage(self, threshold: float) -> None:
        """Give back the least recently used whole large segments: ``garbage_collect_cached_blocks``."""
        assert self.memory_limit is not None
        allowed = int(threshold * float(self.memory_limit))
        target = self._stats.both.reserved.current - allowed
        if target <= 0:
            return
        whole = [block for block in self._large.blocks() if not block.is_split]
        ages = {block: self._large.searches - block.since for block in whole}
        total, reclaimed, freed = sum(ages.values()), 0, True
        while reclaimed < target and freed and ages:
            oldest_from = total / len(ages)
            freed = False
            for block, age in list(ages.items()):
                if age >= oldest_from:
                    freed = True
                    reclaimed += block.size
                    total -= age
                    del ages[block]
                    self._release_segment(block)

    # -- other streams -------------------------------------------------------------------------------------------

    def _insert_events(self, block: Block) -> None:
        """One event on each stream that uses the block: ``insert_events``."""
        streams, block.uses = block.uses or set(), None
        waiting = block.pool.figures.waiting
        for index, amount in enumerate((1, block.size, block.requested)):
            waiting[index] += amount
        for stream in sorted(streams):
            block.events += 1
            self._events.setdefault(stream, deque()).append((block, False))

    def _process_events(self) -> None:
        """Free the blocks with all events ended, each stream's in order: ``process_events``."""
        for stream, queue in list(self._events.items()):
            while queue and queue[0][1]:
                self._event_ended(queue.popleft()[0])
            if not queue:
                del self._events[stream]

    def _event_ended(self, block: Block) -> None:
        block.events -= 1
        if not block.events:
            self._stats.record_peaks()
            waiting = block.pool.figures.waiting
            for index, amount in enumerate((1, block.size, block.requested)):
                waiting[index] -= amount
            self._free_block(block)

    # -- errors --------------------------------------------------------------------------------------------------

    def _check_address(self, address: int) -> None:
        check_count("address", address)
        if address % MIN_BLOCK_SIZE:
            raise ArgumentError("allocator_unaligned", address=address, unit=MIN_BLOCK_SIZE)

    def _check_vacant(self, at: int, size: int) -> None:
        for address, head in self._heads.items():
            last: Block | None = head
            end = address
            while last is not None and address < at + size and end <= at:
                end, last = end + last.size, last.next
            if address < at + size and end > at:
                raise ArgumentError("allocator_address_taken", address=hex(at), size=size, other=hex(address))

    def _unknown(self, address: object) -> ArgumentError:
        shown = hex(address)[:40] if type(address) is int else repr(address)[:40]
        return ArgumentError("allocator_unknown_address", address=shown, live=len(self._live))

    def _out_of_memory(self, size: int, wanted: int) -> DeviceOutOfMemoryError:
        usage = self._stats.usage()
        limit = self.capacity if self.memory_limit is None else self.memory_limit
        unused = usage.reserved - usage.allocated
        words = {
            "requested": size,
            "asked": format_bytes(wanted),
            "total": "-" if self.capacity is None else format_bytes(self.capacity),
            "free": "-" if self.device_free is None else format_bytes(self.device_free),
            "allowed": "-" if limit is None else format_bytes(limit),
            "allocated": format_bytes(usage.allocated),
            "unused": format_bytes(unused),
        }
        return DeviceOutOfMemoryError("allocator_out_of_memory", **words)
