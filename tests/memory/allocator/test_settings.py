"""The caching allocator model when memory runs out, and under its settings, worked by hand; streams, expansion."""

import pytest

from minikv.errors import ArgumentError, MiniKVError
from minikv.memory.allocator.blocks import AWAITING_FREE
from minikv.memory.allocator.caching_allocator import CachingAllocator, DeviceOutOfMemoryError
from minikv.memory.allocator.rules import AllocatorSettings, divisions_by_interval, round_size
from minikv.units import GIB, MIB
from tests.memory.allocator.segment_sizes import sizes


def test_out_of_memory_states_the_terms():
    model = CachingAllocator(100 * MIB, non_torch=10 * MIB)
    model.malloc(50 * MIB)
    before = model.segments()
    with pytest.raises(DeviceOutOfMemoryError) as raised:
        model.malloc(41 * MIB)
    values = raised.value.values
    assert values["asked"] == "42.00 MiB"
    assert (values["total"], values["free"]) == ("100.00 MiB", "40.00 MiB")
    assert (values["allocated"], values["unused"]) == ("50.00 MiB", "0 B")
    assert isinstance(raised.value, MiniKVError)
    assert "42.00 MiB" in raised.value.text("zh")
    stats = model.memory_stats()
    assert (stats["num_ooms"], stats["num_alloc_retries"], stats["num_sync_all_streams"]) == (1, 1, 1)
    assert model.segments() == before
    model.malloc(40 * MIB)  # exactly the rest
    assert model.device_free == 0


def test_a_retry_gives_cached_segments_back():
    model = CachingAllocator(60 * MIB)
    model.free(model.malloc(30 * MIB))
    model.malloc(40 * MIB)
    assert model.usage().reserved == 40 * MIB
    assert model.usage().num_alloc_retries == 1


def test_the_memory_limit_counts_before_the_device():
    model = CachingAllocator(GIB, memory_limit=30 * MIB)
    model.malloc(20 * MIB)
    with pytest.raises(DeviceOutOfMemoryError, match=r"30\.00 MiB allowed"):
        model.malloc(12 * MIB)
    model.malloc(10 * MIB)  # exactly the limit
    assert model.usage().reserved == 30 * MIB


def test_max_split_size():
    model = CachingAllocator(70 * MIB, settings=AllocatorSettings(max_split_size_mb=32))
    whole = model.malloc(40 * MIB)
    model.free(whole)
    assert model.memory_stats()["oversize_allocations.peak"] == 1
    small = model.malloc(2 * MIB)  # does not take the oversize block
    assert model.usage().reserved == 60 * MIB
    assert model.malloc(34 * MIB) == whole  # 40 MiB for 34: within 20 MiB, and not split
    assert model.usage().inactive_split == 18 * MIB
    model.free(whole)
    stats = model.memory_stats()
    assert (stats["oversize_segments.current"], stats["oversize_allocations.current"]) == (1, 0)
    # Full: one oversize block that is large enough goes (release_available_cached_blocks), with no retry counted.
    model.malloc(20 * MIB)
    assert model.usage().reserved == 40 * MIB
    assert model.usage().num_alloc_retries == 0
    model.free(small)
    # No oversize block is left that would do for 66 MiB, so everything goes, as one retry.
    model.free(model.malloc(30 * MIB))
    with pytest.raises(DeviceOutOfMemoryError):
        model.malloc(66 * MIB)
    assert (model.usage().reserved, model.usage().num_alloc_retries) == (20 * MIB, 1)


def test_an_oversize_block_more_than_20_mib_too_large_is_left_alone():
    model = CachingAllocator(settings=AllocatorSettings(max_split_size_mb=32))
    whole = model.malloc(60 * MIB)
    model.free(whole)
    assert model.malloc(40 * MIB) != whole  # 60 >= 40 + 20
    assert model.malloc(40 * MIB + 512) == whole


def test_garbage_collection_gives_back_what_was_not_asked_for_longest():
    settings = AllocatorSettings(garbage_collection_threshold=0.5)
    model = CachingAllocator(settings=settings, memory_limit=200 * MIB)
    old, young = model.malloc(50 * MIB), model.malloc(40 * MIB)
    model.free(old)
    for _ in range(5):
        model.free(young)
        young = model.malloc(40 * MIB)
    model.free(young)
    model.malloc(60 * MIB)  # 90 MiB reserved, and the threshold is 100: nothing goes
    assert model.usage().reserved == 150 * MIB
    model.malloc(46 * MIB)  # "old" (50 MiB) serves it: no new segment
    assert model.usage().reserved == 150 * MIB
    model.malloc(44 * MIB)  # over the threshold: the one whole free block (40 MiB) goes first
    assert model.usage().reserved == 150 * MIB - 40 * MIB + 44 * MIB
    without_limit = CachingAllocator(settings=settings)
    without_limit.free(without_limit.malloc(50 * MIB))
    without_limit.malloc(60 * MIB)
    assert without_limit.usage().reserved == 110 * MIB, "no limit, no collection: as in torch"


@pytest.mark.parametrize(
    ("size", "divisions", "rounded"),
    [
        (1200, 4, 1536),  # 1200 <= 512 * 4: multiples of 512
        (2048, 4, 2048),
        (2049, 4, 2560),
        (5000, 4, 5120),
        (5121, 4, 6144),
        (7169, 4, 8192),
        (MIB + 1, 8, MIB + MIB // 8),
        (3 * MIB, 1, 3 * MIB),
        (3 * MIB + 1, 2, 4 * MIB),
    ],
)
def test_roundup_power2_divisions(size, divisions, rounded):
    assert round_size(size, divisions_by_interval(divisions)) == rounded
    model = CachingAllocator(settings=AllocatorSettings(roundup_power2_divisions=divisions))
    model.malloc(size)
    assert model.usage().requested == size


def test_the_list_form_of_roundup_power2_divisions():
    """The example of PyTorch's own test (c10/test/core/AllocatorConfig_test.cpp)."""
    table = divisions_by_interval({64: 8, 128: 2, 256: 4, 512: 2, 1024: 4, ">": 1})
    expected = {32: 8, 64: 8, 128: 2, 256: 4, 512: 2, 1024: 4, 2048: 1, 4096: 1, 8192: 1}
    assert {mib: table[mib.bit_length() - 1] for mib in expected} == expected
    gap = divisions_by_interval({4: 8, 16: 2})
    assert gap[:6] == (8, 8, 8, 0, 2, 0), (
        "what lies between two entries, or above the last, is not rounded up"
    )


def test_a_block_waits_for_the_streams_that_use_it():
    model = CachingAllocator()
    address = model.malloc(3 * MIB)
    model.record_stream(address, 0)  # its own stream: no event
    model.record_stream(address, 5)
    model.record_stream(address, 6)
    model.free(address)
    usage = model.usage()
    assert (usage.allocated, usage.active, usage.requested) == (0, 3 * MIB, 3 * MIB)
    assert model.segments()[0].blocks[0].state == AWAITING_FREE
    stats = model.memory_stats()
    assert (stats["allocated_bytes.all.freed"], stats["active_bytes.all.freed"]) == (3 * MIB, 0)
    assert (stats["allocation.all.freed"], stats["requested_bytes.all.freed"]) == (1, 0)
    model.synchronize(5)
    second = model.malloc(3 * MIB)
    assert second != address, "stream 6 still uses it"
    model.synchronize(6)
    assert model.usage().active == 6 * MIB, "events are looked at by the next malloc"
    assert model.malloc(3 * MIB) == address
    stats = model.memory_stats()
    assert stats["active_bytes.all.peak"] == stats["allocated_bytes.all.peak"] == 6 * MIB
    assert stats["active_bytes.all.freed"] == stats["allocated_bytes.all.freed"] == 3 * MIB


def test_active_peaks_count_waiting_blocks():
    model = CachingAllocator()
    address = model.malloc(8 * MIB)
    model.record_stream(address, 1)
    model.free(address)
    model.free(model.malloc(4 * MIB))
    stats = model.memory_stats()
    assert stats["active_bytes.all.peak"] == 12 * MIB
    assert stats["allocated_bytes.all.peak"] == 8 * MIB
    model.empty_cache()  # waits for stream 1
    assert model.usage().reserved == 0


def test_expandable_segments_by_hand():
    model = CachingAllocator(200 * MIB, settings=AllocatorSettings(expandable_segments=True))
    first = model.malloc(15 * MIB)
    assert model.usage().reserved == 20 * MIB  # one page
    second = model.malloc(15 * MIB)
    assert second == first + 15 * MIB
    assert sizes(model) == [[(15 * MIB, True), (15 * MIB, True), (10 * MIB, False)]]
    assert model.usage().inactive_split == 0
    assert model.usage().num_segments == 0, "torch counts no segments for them"
    model.free(first)
    model.empty_cache()  # the 15 MiB at the front hold no whole page; the 10 MiB at the end neither
    assert model.usage().reserved == 40 * MIB
    third = model.malloc(30 * MIB)  # does not fit in front; grows behind
    assert third == second + 15 * MIB
    assert model.usage().reserved == 60 * MIB
    model.free(second)
    model.empty_cache()  # 30 MiB free in front: their first page goes
    assert model.usage().reserved == 40 * MIB
    assert [segment.address for segment in model.segments()] == [first + 20 * MIB]
    assert model.malloc(20 * MIB) == first, "the gap is filled from the lowest address"


def test_the_growing_end_of_an_expandable_segment_is_spared():
    model = CachingAllocator(200 * MIB, settings=AllocatorSettings(expandable_segments=True))
    inner = model.malloc(30 * MIB)
    model.malloc(5 * MIB)
    model.free(inner)
    assert sizes(model) == [[(30 * MIB, False), (5 * MIB, True), (5 * MIB, False)]]
    # The smallest block that fits is the end, of 5 MiB; but it could become far larger than 30 MiB.
    assert model.malloc(4 * MIB) == inner


def test_the_driver_may_say_where_a_segment_is():
    model = CachingAllocator()
    assert model.malloc(512, address=0x7F0000000000) == 0x7F0000000000
    assert model.malloc(512, address=0x1000000) == 0x7F0000000200, "no segment was needed"
    with pytest.raises(ArgumentError, match="lie over"):
        model.malloc(30 * MIB, address=0x7F0000000000 + MIB)
    with pytest.raises(ArgumentError, match="multiple of 512"):
        model.malloc(512, address=513)
