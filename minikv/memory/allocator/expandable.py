"""Expandable segments: one long range of addresses for each pool and stream, mapped page by page as needed.

As with ``expandable_segments:True`` in ``c10/cuda/CUDACachingAllocator.cpp`` (Note [Expandable Segments]). A page is
2 MiB in the small pool and 20 MiB in the large one. Blocks that are allocated one after the other are neighbours, so
that free blocks merge instead of being stranded in segments of their own. Whole free pages return to the device even
where other pages of the segment are in use. torch counts no segments and no inactive split bytes for them.
"""

from typing import TYPE_CHECKING

from minikv.memory.allocator.blocks import Block, Pool

if TYPE_CHECKING:
    from minikv.memory.allocator.core import AllocatorCore

ENDLESS = 1 << 42  # address space of a segment on a device without a stated capacity, bytes


class Stretch:
    """One reserved range of addresses: ``struct ExpandableSegment``, without the driver behind it."""

    __slots__ = ("address", "page", "size")

    def __init__(self, address: int, size: int, page: int):
        self.address, self.size, self.page = address, size, page

    def page_from(self, address: int) -> int:
        """The first page boundary at or above ``address``: ``segmentRight``."""
        return self.address + -(-(address - self.address) // self.page) * self.page

    def page_to(self, address: int) -> int:
        """The last page boundary at or below ``address``: ``segmentLeft``."""
        return address - (address - self.address) % self.page


class ExpandableSegments:
    """The part of a ``AllocatorCore`` that maps and unmaps pages."""

    def __init__(self, allocator: "AllocatorCore"):
        self._owner = allocator
        self._unmapped: dict[tuple[bool, int], dict[int, Block]] = {}  # by (is_small, stream), then address

    def best_fit(self, free: list[tuple[int, int, Block]], index: int) -> int:
        """The index of the block to take, from ``index``, the smallest that fits, on. The growing end of a stretch
        counts with its largest possible size, so that an inner block that fits is preferred (the loop in
        ``get_free_block``)."""

        def could_be(block: Block) -> int:
            after = block.next
            return block.size + (after.size if after is not None and not after.mapped else 0)

        while index + 1 < len(free) and could_be(free[index + 1][2]) < could_be(free[index][2]):
            index += 1
        return index

    def allocate(self, pool: Pool, stream: int, size: int, at: int | None) -> Block | None:
        """A mapped block of at least ``size`` bytes, removed from its pool's list; None where the device is full.

        ``try_allocate_expandable_block``. Pages that were mapped before the device was full stay cached.
        """
        block = self._candidate(pool, stream, size, at)
        if not block.mapped:
            mapped = self._map(block, min(block.size, size))
            if mapped is None:
                return None
            block = mapped
        while block.size < size:
            after = block.next
            assert after is not None
            mapped = self._map(after, min(size - block.size, after.size))
            if mapped is None:
                return None
            block = mapped
        pool.remove(block)
        return block

    def _candidate(self, pool: Pool, stream: int, size: int, at: int | None) -> Block:
        """The lowest run of free and unmapped blocks with room, or a new stretch: ``find_expandable_block``."""
        unmapped = self._unmapped.setdefault((pool.is_small, stream), {})
        for address in sorted(unmapped):
            first = unmapped[address]
            if first.prev is not None and _usable(first.prev):
                first = first.prev
            room, block = 0, first
            while room < size and block is not None and _usable(block):
                room += block.size
                block = block.next  # type: ignore[assignment]
            if room >= size:
                return first
        owner = self._owner
        space = ENDLESS if owner.capacity is None else owner.capacity + owner.capacity // 8
        space = -(-max(space, size) // pool.page) * pool.page
        stretch = Stretch(owner.place(space, at), space, pool.page)
        block = Block(stretch.address, space, stream, pool, stretch)
        block.mapped = False
        unmapped[block.address] = block
        owner._heads[block.address] = block
        return block

    def _map(self, block: Block, size: int) -> Block | None:
        """Map the first ``size`` bytes, in whole pages, and merge: ``map_block``."""
        stretch, pool, owner = block.home, block.pool, self._owner
        assert isinstance(stretch, Stretch)
        grown = stretch.page_from(block.address + size) - block.address
        if not owner.fits(grown):
            return None
        del self._unmapped[pool.is_small, block.stream][block.address]
        block.mapped = True
        if grown < block.size:
            self._split_off(block, grown, mapped=False)
        merged = self._merge(block)
        pool.insert(merged)
        owner._stats.move_segment(pool.figures, 0, grown)
        owner._stats.counters["num_device_alloc"] += 1
        return merged

    def unmap_all(self, pool: Pool) -> None:
        """Give every wholly free page of ``pool`` back: the expandable half of ``release_blocks``."""
        for block in pool.blocks():
            self._unmap(block)

    def _unmap(self, block: Block) -> None:
        """Unmap the whole pages inside a free block: ``unmap_block``."""
        stretch, pool, owner = block.home, block.pool, self._owner
        assert isinstance(stretch, Stretch)
        start, stop = stretch.page_from(block.address), stretch.page_to(block.address + block.size)
        if start >= stop:
            return
        pool.remove(block)
        if stop < block.address + block.size:
            pool.insert(self._split_off(block, stop - block.address, mapped=True))
        if start > block.address:
            inner = self._split_off(block, start - block.address, mapped=True)
            pool.insert(block)
            block = inner
        block.mapped = False
        block = self._merge(block)
        owner._stats.move_segment(pool.figures, 0, start - stop)
        owner._stats.counters["num_device_free"] += 1
        unmapped = self._unmapped[pool.is_small, block.stream]
        if block.is_split:
            unmapped[block.address] = block
        else:  # nothing is left of the stretch: release_expandable_segment
            del owner._heads[block.address]

    def _split_off(self, block: Block, size: int, *, mapped: bool) -> Block:
        """Cut ``block`` down to ``size`` bytes and return the rest as a block, which is in no list yet."""
        rest = Block(block.address + size, block.size - size, block.stream, block.pool, block.home)
        rest.mapped = mapped
        rest.link_after(block, block.next)
        block.size = size
        if not mapped:
            self._unmapped[block.pool.is_small, block.stream][rest.address] = rest
        return rest

    def _merge(self, block: Block) -> Block:
        """Merge ``block``, which is in no list, with its usable neighbours of the same kind."""
        before = block.prev
        if before is not None and _usable(before) and before.mapped == block.mapped:
            self._take_out(before)
            before.absorb_next()
            block = before
        after = block.next
        if after is not None and _usable(after) and after.mapped == block.mapped:
            self._take_out(after)
            block.absorb_next()
        return block

    def _take_out(self, block: Block) -> None:
        if block.mapped:
            block.pool.remove(block)
        else:
            del self._unmapped[block.pool.is_small, block.stream][block.address]


def _usable(block: Block) -> bool:
    """True for a free block and for unmapped address space."""
    return block.free or not block.mapped
