"""Bytes on the device: what owns them, what borrows them, what stays alive. The room of lessons 04, 05, 07 and 08."""

from typing import TYPE_CHECKING

from minikv.extras import on_first_use

# Not on first use, unlike the others: the function has its file's name, and importing the file would hide it.
from minikv.memory.ownership import Ownership, ownership, share_storage

if TYPE_CHECKING:
    from minikv.memory.access import access_patterns, index_order
    from minikv.memory.allocator.caching_allocator import CachingAllocator, DeviceOutOfMemoryError
    from minikv.memory.allocator.rules import AllocatorSettings
    from minikv.memory.allocator.snapshot import from_snapshot
    from minikv.memory.allocator.trace import replay
    from minikv.memory.arena import (
        Arena,
        ArenaClosedError,
        ArenaFullError,
        ArenaInUseError,
        ArenaReport,
        Borrower,
        arena_bytes,
    )
    from minikv.memory.bandwidth import (
        BandwidthPoint,
        bandwidth_curve,
        cache_sizes,
        copy_bandwidth,
        levels,
        matmul_rate,
        read_bandwidth,
    )
    from minikv.memory.peak import PeakReport, measure_peak
    from minikv.memory.retention.cached_memory import CachedMemory, cached_memory
    from minikv.memory.retention.caches import CacheFound
    from minikv.memory.retention.holders import KeptStorage
    from minikv.memory.retention.live import LiveTensors
    from minikv.memory.retention.names import Holder
    from minikv.memory.retention.report import RetentionReport, retention_report
    from minikv.memory.stats import MemoryStats
    from minikv.memory.timeline import MemoryTimeline, Sample

_HOME = {
    "AllocatorSettings": "allocator.rules",
    "Arena": "arena",
    "ArenaClosedError": "arena",
    "ArenaFullError": "arena",
    "ArenaInUseError": "arena",
    "ArenaReport": "arena",
    "BandwidthPoint": "bandwidth",
    "Borrower": "arena",
    "CacheFound": "retention.caches",
    "CachedMemory": "retention.cached_memory",
    "CachingAllocator": "allocator.caching_allocator",
    "DeviceOutOfMemoryError": "allocator.caching_allocator",
    "Holder": "retention.names",
    "KeptStorage": "retention.holders",
    "LiveTensors": "retention.live",
    "MemoryStats": "stats",
    "MemoryTimeline": "timeline",
    "PeakReport": "peak",
    "RetentionReport": "retention.report",
    "Sample": "timeline",
    "access_patterns": "access",
    "arena_bytes": "arena",
    "bandwidth_curve": "bandwidth",
    "cache_sizes": "bandwidth",
    "cached_memory": "retention.cached_memory",
    "copy_bandwidth": "bandwidth",
    "from_snapshot": "allocator.snapshot",
    "index_order": "access",
    "levels": "bandwidth",
    "matmul_rate": "bandwidth",
    "measure_peak": "peak",
    "read_bandwidth": "bandwidth",
    "replay": "allocator.trace",
    "retention_report": "retention.report",
}

__all__ = [
    "AllocatorSettings",
    "Arena",
    "ArenaClosedError",
    "ArenaFullError",
    "ArenaInUseError",
    "ArenaReport",
    "BandwidthPoint",
    "Borrower",
    "CacheFound",
    "CachedMemory",
    "CachingAllocator",
    "DeviceOutOfMemoryError",
    "Holder",
    "KeptStorage",
    "LiveTensors",
    "MemoryStats",
    "MemoryTimeline",
    "Ownership",
    "PeakReport",
    "RetentionReport",
    "Sample",
    "access_patterns",
    "arena_bytes",
    "bandwidth_curve",
    "cache_sizes",
    "cached_memory",
    "copy_bandwidth",
    "from_snapshot",
    "index_order",
    "levels",
    "matmul_rate",
    "measure_peak",
    "ownership",
    "read_bandwidth",
    "replay",
    "retention_report",
    "share_storage",
]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__, _HOME)
