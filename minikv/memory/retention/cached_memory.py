"""The bytes that torch's caching allocator holds beside live blocks, and how many of them ``empty_cache()`` returns."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from minikv.units import MIB

PAGE = {"small": 2 * MIB, "large": 20 * MIB}  # of an expandable segment: kSmallBuffer, kLargeBuffer


@dataclass(frozen=True)
class CachedMemory:
    """Reserved bytes without a live block: ``returnable`` by ``empty_cache()``, and ``stuck`` beside live blocks.

    ``pinned_segments`` have both live and free blocks; ``pinning_bytes`` are those of the live blocks in them.
    """

    returnable: int
    stuck: int
    pinned_segments: int
    pinning_bytes: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def read_cached(device: torch.device) -> CachedMemory:
    """The figures of a CUDA device now, from ``torch.cuda.memory_snapshot()``."""
    return cached_memory(
        segment for segment in torch.cuda.memory_snapshot() if segment["device"] == device.index
    )


def cached_memory(segments: Iterable[Mapping[str, Any]]) -> CachedMemory:
    """The figures of segments as ``torch.cuda.memory_snapshot`` writes them.

    A segment is returned when no block of it is in use (``release_cached_blocks``). In an expandable segment each free
    block returns the whole pages inside it (``unmap_block``).
    """
    returnable = stuck = pinned = pinning = 0
    for segment in segments:
        free = [block for block in segment["blocks"] if block["state"] == "inactive"]
        idle = sum(block["size"] for block in free)
        whole = idle == segment["total_size"]
        if segment.get("is_expandable", False):
            page = PAGE[segment["segment_type"]]
            back = sum(_whole_pages(block, segment["address"], page) for block in free)
        else:
            back = idle if whole else 0
        returnable += back
        stuck += idle - back
        if idle and not whole:
            pinned += 1
            pinning += segment["total_size"] - idle
    return CachedMemory(returnable, stuck, pinned, pinning)


def _whole_pages(block: Mapping[str, Any], start: int, page: int) -> int:
    first = -(-(block["address"] - start) // page)
    end = (block["address"] - start + block["size"]) // page
    return max(0, end - first) * page
