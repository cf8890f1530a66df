"""Bytes on the device: who owns them, who borrows them, what stays alive. The room of lessons 04, 05, 07 and 08."""

from typing import TYPE_CHECKING

from minikv.extras import on_first_use

# Not on first use as the others: a function shares its file's name, and the file once imported would hide it.
from minikv.memory.ownership import Ownership, ownership, share_storage

if TYPE_CHECKING:
    from minikv.memory.access import access_patterns, index_order
    from minikv.memory.allocator_rules import AllocatorSettings
    from minikv.memory.allocator_snapshot import from_snapshot
    from minikv.memory.allocator_trace import replay
    from minikv.memory.arena import (
        Arena,
        ArenaClosedError,
        ArenaFullError,
        ArenaInUseError,
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
    from minikv.memory.caching_allocator import CachingAllocator, DeviceOutOfMemoryError
    from minikv.memory.loans import ArenaReport, Borrower
    from minikv.memory.peak import PeakReport, measure_peak
    from minikv.memory.retention import RetentionReport, retention_report
    from minikv.memory.retention_cached import CachedMemory, cached_memory
    from minikv.memory.retention_caches import CacheFound
    from minikv.memory.retention_holders import KeptStorage
    from minikv.memory.retention_live import LiveTensors
    from minikv.memory.retention_names import Holder
    from minikv.memory.stats import MemoryStats
    from minikv.memory.timeline import MemoryTimeline, Sample

_HOME = {
    "AllocatorSettings": "allocator_rules",
    "Arena": "arena",
    "ArenaClosedError": "arena",
    "ArenaFullError": "arena",
    "ArenaInUseError": "arena",
    "ArenaReport": "loans",
    "BandwidthPoint": "bandwidth",
    "Borrower": "loans",
    "CacheFound": "retention_caches",
    "CachedMemory": "retention_cached",
    "CachingAllocator": "caching_allocator",
    "DeviceOutOfMemoryError": "caching_allocator",
    "Holder": "retention_names",
    "KeptStorage": "retention_holders",
    "LiveTensors": "retention_live",
    "MemoryStats": "stats",
    "MemoryTimeline": "timeline",
    "PeakReport": "peak",
    "RetentionReport": "retention",
    "Sample": "timeline",
    "access_patterns": "access",
    "arena_bytes": "arena",
    "bandwidth_curve": "bandwidth",
    "cache_sizes": "bandwidth",
    "cached_memory": "retention_cached",
    "copy_bandwidth": "bandwidth",
    "from_snapshot": "allocator_snapshot",
    "index_order": "access",
    "levels": "bandwidth",
    "matmul_rate": "bandwidth",
    "measure_peak": "peak",
    "read_bandwidth": "bandwidth",
    "replay": "allocator_trace",
    "retention_report": "retention",
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
