"""An allocator block, the two pools, and their read-only views."""

from bisect import bisect_left, insort
from dataclasses import dataclass

from minikv.memory.allocator.stats import PoolFigures

ALLOCATED, AWAITING_FREE, INACTIVE = "active_allocated", "active_awaiting_free", "inactive"
STATES = (ALLOCATED, AWAITING_FREE, INACTIVE)


class Block:
    """A part of a segment: ``[address, address + size)``, between its neighbours ``prev`` and ``next``.

    As ``struct Block`` in ``c10/cuda/CUDACachingAllocator.cpp``. ``free``: it lies in its pool's list. ``mapped``
    is False only for address space of an expandable segment without memory.
    """

    __slots__ = (
        "address", "allocated", "events", "free", "home", "mapped", "next", "pool", "prev", "requested", "since",
        "size", "stream", "uses",
    )  # fmt: skip

    def __init__(self, address: int, size: int, stream: int, pool: "Pool", home: object = None):
        self.address = address
        self.size = size
        self.stream = stream
        self.pool = pool
        self.home = home  # its expandable segment
        self.requested = 0
        self.prev: Block | None = None
        self.next: Block | None = None
        self.allocated = False
        self.free = False
        self.mapped = True
        self.uses: set[int] | None = None  # other streams that record_stream named
        self.events = 0  # events of other streams that are not processed yet
        self.since = 0  # the pool's search count when it was freed: its age for garbage collection

    @property
    def is_split(self) -> bool:
        return self.prev is not None or self.next is not None

    def link_after(self, before: "Block | None", after: "Block | None") -> None:
        """Put this block between two that are neighbours now."""
        self.prev, self.next = before, after
        if before is not None:
            before.next = self
        if after is not None:
            after.prev = self

    def absorb_next(self) -> None:
        """Merge the next block into this one. It must have left its list."""
        after = self.next
        assert after is not None
        self.size += after.size
        self.next = beyond = after.next
        if beyond is not None:
            beyond.prev = self


class Pool:
    """The small or the large pool: its free blocks, for each stream sorted by (size, address)."""

    __slots__ = ("figures", "free", "is_small", "page", "searches", "split_from")

    def __init__(self, is_small: bool, split_from: int, page: int):
        self.is_small = is_small
        self.split_from = split_from  # the least remainder that becomes a block of its own, in bytes
        self.page = page  # bytes that an expandable segment grows by
        self.free: dict[int, list[tuple[int, int, Block]]] = {}
        self.searches = 0  # counted for garbage collection only
        self.figures = PoolFigures()

    def insert(self, block: Block) -> None:
        block.free = True
        block.since = self.searches
        insort(self.free.setdefault(block.stream, []), (block.size, block.address, block))

    def remove(self, block: Block) -> None:
        free = self.free[block.stream]
        del free[bisect_left(free, (block.size, block.address))]
        block.free = False

    def blocks(self) -> list[Block]:
        """Every free block, in torch's order: by stream, then size, then address."""
        return [entry[2] for stream in sorted(self.free) for entry in self.free[stream]]


@dataclass(frozen=True)
class BlockView:
    """One allocator block: ``size`` bytes from ``address``, of which ``requested_size`` were requested.

    ``state`` is one of STATES; ``frames`` are (file name, line, function) of a snapshot that recorded them.
    """

    address: int
    size: int
    requested_size: int
    state: str
    frames: tuple[tuple[str, int, str], ...] = ()


@dataclass(frozen=True)
class SegmentView:
    """One segment (of an expandable one: one mapped range): ``total_size`` bytes, tiled by ``blocks`` in order."""

    address: int
    total_size: int
    stream: int
    pool: str  # "small" or "large"
    is_expandable: bool
    blocks: tuple[BlockView, ...]

    @property
    def allocated_size(self) -> int:
        """Bytes of the blocks that tensors use."""
        return sum(block.size for block in self.blocks if block.state == ALLOCATED)

    @property
    def active_size(self) -> int:
        """Bytes of the blocks that tensors use or that still wait for another stream."""
        return sum(block.size for block in self.blocks if block.state != INACTIVE)


def view_of(first: Block) -> SegmentView:
    """The mapped blocks from ``first`` on, as a view."""
    blocks: list[BlockView] = []
    block: Block | None = first
    while block is not None and block.mapped:
        state = ALLOCATED if block.allocated else INACTIVE if block.free else AWAITING_FREE
        asked = 0 if block.free else block.requested
        blocks.append(BlockView(block.address, block.size, asked, state))
        block = block.next
    total = sum(each.size for each in blocks)
    kind = "small" if first.pool.is_small else "large"
    return SegmentView(first.address, total, first.stream, kind, first.home is not None, tuple(blocks))
