"""The statistics of ``torch.cuda.memory_stats``, counted as ``c10/cuda/CUDACachingAllocator.cpp`` counts them.

Each statistic has a current value, a peak, and running totals of its increases and decreases. Three change with every
request: count, bytes and requested bytes of live blocks. They are plain lists, and their peaks are updated only before
one of them shrinks. So the model is fast enough to replay long traces.
"""

from typing import NamedTuple


class Tally:
    """One statistic that changes rarely: ``current``, its ``peak``, and the sum of its decreases, ``fell``."""

    __slots__ = ("current", "fell", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.fell = 0

    def add(self, amount: int) -> None:
        self.current += amount
        if amount < 0:
            self.fell -= amount
        elif self.current > self.peak:
            self.peak = self.current


class PoolFigures:
    """The statistics of one pool. ``live``, ``gone`` and ``waiting`` are [blocks, bytes, requested bytes]:
    of blocks in use, of all that were freed, and of freed ones that another stream still uses."""

    __slots__ = (
        "active_peak",
        "gone",
        "live",
        "live_peak",
        "reserved",
        "segments",
        "split",
        "split_bytes",
        "waiting",
    )

    def __init__(self) -> None:
        self.live, self.gone, self.waiting = [0, 0, 0], [0, 0, 0], [0, 0, 0]
        self.live_peak, self.active_peak = [0, 0, 0], [0, 0, 0]
        self.segments, self.reserved, self.split, self.split_bytes = Tally(), Tally(), Tally(), Tally()


# Not a dataclass: a replay makes one for each operation, and a tuple is made 3 times faster.
class Usage(NamedTuple):
    """The figures after one operation, in bytes unless stated otherwise; both pools together.

    ``allocated``: blocks in use. ``active``: those, and blocks that wait for another stream. ``reserved``: all
    segments. ``inactive_split``: free blocks that share a segment with others. ``requested``: requested bytes.
    """

    allocated: int
    active: int
    reserved: int
    inactive_split: int
    requested: int
    num_segments: int
    num_alloc_retries: int
    num_ooms: int


class AllocatorStats:
    """The statistics of one device: two pools, their sum, and the counters of events."""

    COUNTERS = (
        "num_alloc_retries",
        "num_ooms",
        "num_sync_all_streams",
        "num_device_alloc",
        "num_device_free",
    )

    def __init__(self, small: PoolFigures, large: PoolFigures):
        self.small, self.large = small, large
        self.both = PoolFigures()  # its live, gone and waiting stay unused: they are the pools' sums
        self.oversize_allocations, self.oversize_segments = Tally(), Tally()
        self.counters = dict.fromkeys(self.COUNTERS, 0)
        self._base: dict[str, int] = {}  # totals at the last reset_accumulated

    def record_peaks(self) -> None:
        """Update the peaks from the live figures; called before these shrink and before the peaks are read."""
        small, large, both = self.small.live, self.large.live, self.both.live_peak
        small_peak, large_peak = self.small.live_peak, self.large.live_peak
        for index in (0, 1, 2):
            few, many = small[index], large[index]
            if few > small_peak[index]:
                small_peak[index] = few
            if many > large_peak[index]:
                large_peak[index] = many
            if few + many > both[index]:
                both[index] = few + many
        if self.small.waiting[0] or self.large.waiting[0]:
            sums = [0, 0, 0]
            for pool in (self.small, self.large):
                for index in (0, 1, 2):
                    active = pool.live[index] + pool.waiting[index]
                    pool.active_peak[index] = max(pool.active_peak[index], active)
                    sums[index] += active
            self.both.active_peak = [max(pair) for pair in zip(self.both.active_peak, sums, strict=True)]

    def move_segment(self, pool: PoolFigures, count: int, size: int) -> None:
        """Add ``count`` segments and ``size`` reserved bytes; negative numbers remove them."""
        for figures in (pool, self.both):
            if count:
                figures.segments.add(count)
            figures.reserved.add(size)

    def reset_peaks(self) -> None:
        """As ``torch.cuda.reset_peak_memory_stats``: every peak becomes the current value."""
        for pool in (self.small, self.large):
            pool.live_peak = list(pool.live)
            pool.active_peak = [live + waiting for live, waiting in zip(pool.live, pool.waiting, strict=True)]
        for name in ("live_peak", "active_peak"):
            sums = [a + b for a, b in zip(getattr(self.small, name), getattr(self.large, name), strict=True)]
            setattr(self.both, name, sums)
        for figures in (self.small, self.large, self.both):
            for tally in (figures.segments, figures.reserved, figures.split, figures.split_bytes):
                tally.peak = tally.current
        for tally in (self.oversize_allocations, self.oversize_segments):
            tally.peak = tally.current

    def reset_accumulated(self) -> None:
        """As ``torch.cuda.reset_accumulated_memory_stats``: totals and counters start from 0 again."""
        self._base = {}
        self.counters = dict.fromkeys(self.COUNTERS, 0)
        self._base = {
            key: value for key, value in self.table().items() if key.endswith((".allocated", ".freed"))
        }

    def usage(self) -> Usage:
        """The current figures, both pools together."""
        small, large, both, counters = self.small, self.large, self.both, self.counters
        _, few, few_asked = small.live
        _, many, many_asked = large.live
        waiting, waiting_asked = 0, 0
        if small.waiting[0] or large.waiting[0]:
            waiting = small.waiting[1] + large.waiting[1]
            waiting_asked = small.waiting[2] + large.waiting[2]
        return Usage(
            few + many,
            few + many + waiting,
            both.reserved.current,
            both.split_bytes.current,
            few_asked + many_asked + waiting_asked,
            both.segments.current,
            counters["num_alloc_retries"],
            counters["num_ooms"],
        )

    def table(self) -> dict[str, int]:
        """Every statistic under the name that ``torch.cuda.memory_stats`` gives it."""
        self.record_peaks()
        told: dict[str, int] = {}
        for name, pools in (
            ("all", (self.small, self.large)),
            ("large_pool", (self.large,)),
            ("small_pool", (self.small,)),
        ):
            own = self.both if name == "all" else pools[0]
            live, gone, waiting = (
                [sum(getattr(pool, part)[index] for pool in pools) for index in (0, 1, 2)]
                for part in ("live", "gone", "waiting")
            )
            active_peak = [max(pair) for pair in zip(own.live_peak, own.active_peak, strict=True)]
            for index, key in ((0, "allocation"), (1, "allocated_bytes")):
                self._tell(told, f"{key}.{name}", live[index], own.live_peak[index], gone[index])
            for index, key in ((0, "active"), (1, "active_bytes"), (2, "requested_bytes")):
                current, fell = live[index] + waiting[index], gone[index] - waiting[index]
                self._tell(told, f"{key}.{name}", current, active_peak[index], fell)
            for key, tally in (
                ("segment", own.segments),
                ("reserved_bytes", own.reserved),
                ("inactive_split", own.split),
                ("inactive_split_bytes", own.split_bytes),
            ):
                self._tell(told, f"{key}.{name}", tally.current, tally.peak, tally.fell)
        for key, tally in (
            ("oversize_allocations", self.oversize_allocations),
            ("oversize_segments", self.oversize_segments),
        ):
            self._tell(told, key, tally.current, tally.peak, tally.fell)
        return told | self.counters

    def _tell(self, told: dict[str, int], key: str, current: int, peak: int, fell: int) -> None:
        told[f"{key}.current"], told[f"{key}.peak"] = current, peak
        told[f"{key}.allocated"] = current + fell - self._base.get(f"{key}.allocated", 0)
        told[f"{key}.freed"] = fell - self._base.get(f"{key}.freed", 0)
