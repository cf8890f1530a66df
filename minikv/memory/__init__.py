"""Bytes on the device: who owns them, who borrows them, what stays alive. The room of lessons 05, 07 and 08."""

from minikv.memory.allocator_rules import AllocatorSettings
from minikv.memory.allocator_snapshot import from_snapshot
from minikv.memory.allocator_trace import replay
from minikv.memory.arena import (
    Arena,
    ArenaClosed,
    ArenaFull,
    ArenaInUse,
    arena_bytes,
)
from minikv.memory.caching_allocator import CachingAllocator, DeviceOutOfMemory
from minikv.memory.loans import ArenaReport, Borrower
from minikv.memory.ownership import Ownership, ownership, share_storage
from minikv.memory.peak import PeakReport, measure_peak
from minikv.memory.stats import MemoryStats
from minikv.memory.timeline import MemoryTimeline, Sample

__all__ = [
    "AllocatorSettings",
    "Arena",
    "ArenaClosed",
    "ArenaFull",
    "ArenaInUse",
    "ArenaReport",
    "Borrower",
    "CachingAllocator",
    "DeviceOutOfMemory",
    "MemoryStats",
    "MemoryTimeline",
    "Ownership",
    "PeakReport",
    "Sample",
    "arena_bytes",
    "from_snapshot",
    "measure_peak",
    "ownership",
    "replay",
    "share_storage",
]
