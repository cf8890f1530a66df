"""What empty_cache() would return, read from segments: the model of the allocator is asked, then really emptied."""

import random
from dataclasses import replace

import pytest
import torch

from minikv.memory import AllocatorSettings, CachedMemory, CachingAllocator, cached_memory, retention_report
from minikv.memory.retention.report import verdict
from minikv.units import MIB


def written(allocator):
    """The model's segments as ``torch.cuda.memory_snapshot`` writes them."""
    return [
        {
            "address": segment.address,
            "total_size": segment.total_size,
            "segment_type": segment.pool,
            "is_expandable": segment.is_expandable,
            "blocks": [
                {"address": block.address, "size": block.size, "state": block.state}
                for block in segment.blocks
            ],
        }
        for segment in allocator.segments()
    ]


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_it_foretells_what_empty_cache_returns(seed, expandable):
    rng = random.Random(seed)
    allocator = CachingAllocator(settings=AllocatorSettings(expandable_segments=expandable))
    live = []
    for _ in range(200):
        if live and rng.random() < 0.45:
            allocator.free(live.pop(rng.randrange(len(live))))
        else:
            live.append(allocator.malloc(rng.choice((512, 300_000, MIB, 3 * MIB, 17 * MIB, 70 * MIB))))
    before = allocator.usage()
    told = cached_memory(written(allocator))
    assert told.returnable + told.stuck == before.reserved - before.active
    allocator.empty_cache()
    after = allocator.usage()
    assert before.reserved - after.reserved == told.returnable
    assert after.reserved - after.active == told.stuck
    again = cached_memory(written(allocator))
    assert (again.returnable, again.stuck) == (0, told.stuck)


def test_one_live_block_holds_a_segment():
    allocator = CachingAllocator()
    first, second = allocator.malloc(12 * MIB), allocator.malloc(8 * MIB)
    allocator.free(first)
    allocator.free(second)
    kept = allocator.malloc(2 * MIB)  # best fit: in the segment of 12 MiB
    assert cached_memory(written(allocator)) == CachedMemory(20 * MIB, 10 * MIB, 1, 2 * MIB)
    allocator.free(kept)
    assert cached_memory(written(allocator)) == CachedMemory(32 * MIB, 0, 0, 0)


def test_the_verdict_says_what_comes_back_and_what_not():
    report = retention_report(lambda: None)
    for lang in ("en", "zh"):
        stuck = verdict(replace(report, cached=CachedMemory(12 * MIB, 18 * MIB, 1, 2 * MIB)), lang)
        assert all(piece in stuck for piece in ("30.00 MiB", "12.00 MiB", "18.00 MiB", "empty_cache()", "1 "))
        free = verdict(replace(report, cached=CachedMemory(12 * MIB, 0, 0, 0)), lang)
        assert "12.00 MiB" in free
        assert "18.00 MiB" not in free
        assert verdict(replace(report, cached=CachedMemory(0, 0, 0, 0)), lang) == report.verdict(lang)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_reports_its_tensors_and_what_empty_cache_would_return():
    torch.cuda.empty_cache()
    box = []

    def work():
        large = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        del large
        box.append(torch.empty(4 * MIB, dtype=torch.uint8, device="cuda"))

    report = retention_report(work)
    assert report.device.startswith("cuda")
    assert report.kept_bytes == 4 * MIB
    assert report.stats_after.allocated - report.stats_before.allocated == 4 * MIB
    assert report.cached is not None
    assert report.cached.returnable + report.cached.stuck >= 60 * MIB
    before = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert before - torch.cuda.memory_reserved() == report.cached.returnable
