"""Bytes on the device: who owns them, who borrows them, what stays alive. The room of lessons 05, 07 and 08."""

from minikv.memory.arena import (
    Arena,
    ArenaClosed,
    ArenaFull,
    ArenaInUse,
    arena_bytes,
)
from minikv.memory.loans import ArenaReport, Borrower
from minikv.memory.ownership import Ownership, ownership, share_storage

__all__ = [
    "Arena",
    "ArenaClosed",
    "ArenaFull",
    "ArenaInUse",
    "ArenaReport",
    "Borrower",
    "Ownership",
    "arena_bytes",
    "ownership",
    "share_storage",
]
