"""The caching allocator model against examples worked by hand from PyTorch's rules, at every boundary."""

import pytest

from minikv.memory.allocator.caching_allocator import CachingAllocator, DeviceOutOfMemoryError
from minikv.memory.allocator.rules import AllocatorSettings, divisions_by_interval, round_size, segment_size
from minikv.units import GIB, KIB, MIB
from tests.memory.allocator.segment_sizes import sizes

PLAIN = divisions_by_interval(1)


@pytest.mark.parametrize(
    ("asked", "rounded"),
    [(1, 512), (511, 512), (512, 512), (513, 1024), (MIB - 1, MIB), (MIB, MIB), (MIB + 1, MIB + 512)],
)
def test_sizes_are_multiples_of_512(asked, rounded):
    assert round_size(asked, PLAIN) == rounded
    model = CachingAllocator()
    model.malloc(asked)
    assert (model.usage().allocated, model.usage().requested) == (rounded, asked)


@pytest.mark.parametrize(
    ("rounded", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),  # "size < kMinLargeAlloc": exactly 10 MiB is made to measure already
        (10 * MIB + 512, 12 * MIB),
        (12 * MIB, 12 * MIB),
        (20 * MIB, 20 * MIB),
        (20 * MIB + 512, 22 * MIB),
    ],
)
def test_segments(rounded, segment):
    assert segment_size(rounded) == segment
    model = CachingAllocator()
    model.malloc(rounded)
    assert model.usage().reserved == segment


@pytest.mark.parametrize(
    ("asked", "blocks"),
    [
        (512, [(512, True), (2 * MIB - 512, False)]),
        (MIB, [(MIB, True), (MIB, False)]),
        (MIB + 1, [(MIB + 512, True), (19 * MIB - 512, False)]),
        (
            11 * MIB,
            [(12 * MIB, True)],
        ),  # 1 MiB would remain, and the large pool splits off only more than that
        (11 * MIB - 512, [(11 * MIB - 512, True), (MIB + 512, False)]),
        (10 * MIB, [(10 * MIB, True)]),
    ],
)
def test_what_is_split_off(asked, blocks):
    model = CachingAllocator()
    model.malloc(asked)
    assert sizes(model) == [blocks]
    assert model.usage().inactive_split == sum(size for size, used in blocks if not used)


def test_the_small_pool_splits_off_512_bytes():
    model = CachingAllocator()
    first, second = model.malloc(MIB), model.malloc(MIB - 512)
    assert sizes(model) == [[(MIB, True), (MIB - 512, True), (512, False)]]
    assert second == first + MIB
    assert model.malloc(1) == second + MIB - 512
    assert model.usage().inactive_split == 0


def test_best_fit_is_the_smallest_then_the_lowest():
    model = CachingAllocator()
    addresses = [model.malloc(size * MIB) for size in (30, 24, 24, 40)]
    for address in addresses:
        model.free(address)
    assert model.malloc(23 * MIB) == addresses[1]  # 24 MiB at the lower of two addresses
    assert model.malloc(26 * MIB) == addresses[0]
    assert model.usage().reserved == 118 * MIB


def test_a_block_belongs_to_its_stream():
    model = CachingAllocator()
    model.free(model.malloc(512, stream=1))
    model.malloc(512, stream=2)
    assert model.usage().reserved == 4 * MIB
    assert {segment.stream for segment in model.segments()} == {1, 2}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_freed_neighbours_merge_in_any_order(order):
    model = CachingAllocator()
    addresses = [model.malloc(512 * KIB) for _ in range(3)]
    for index in order:
        model.free(addresses[index])
    assert sizes(model) == [[(2 * MIB, False)]]
    assert model.usage().inactive_split == 0
    model.empty_cache()
    assert model.segments() == ()


def test_statistics_of_one_block_by_hand():
    model = CachingAllocator()
    address = model.malloc(1000)
    model.free(address)
    stats = model.memory_stats()

    def four(name):
        return [stats[f"{name}.{part}"] for part in ("current", "peak", "allocated", "freed")]

    assert four("allocation.all") == four("active.small_pool") == [0, 1, 1, 1]
    assert four("allocated_bytes.all") == four("active_bytes.all") == [0, 1024, 1024, 1024]
    assert four("requested_bytes.small_pool") == [0, 1000, 1000, 1000]
    assert four("reserved_bytes.all") == [2 * MIB, 2 * MIB, 2 * MIB, 0]
    # The remainder becomes inactive split, and leaves that state when the block merges with it.
    assert four("inactive_split_bytes.all") == [0, 2 * MIB - 1024, 2 * MIB - 1024, 2 * MIB - 1024]
    assert four("allocated_bytes.large_pool") == [0, 0, 0, 0]
    assert stats["max_split_size"] == -1
    assert stats["num_device_alloc"] == 1


def test_the_peak_of_both_pools_is_not_the_sum_of_their_peaks():
    model = CachingAllocator()
    model.free(model.malloc(MIB))
    model.malloc(3 * MIB)
    stats = model.memory_stats()
    peaks = [stats[f"allocated_bytes.{pool}.peak"] for pool in ("small_pool", "large_pool", "all")]
    assert peaks == [MIB, 3 * MIB, 3 * MIB]


def test_resets():
    model = CachingAllocator()
    kept = model.malloc(MIB)
    model.free(model.malloc(8 * MIB))
    model.reset_peak_stats()
    model.reset_accumulated_stats()
    stats = model.memory_stats()
    assert stats["allocated_bytes.all.peak"] == stats["allocated_bytes.all.current"] == MIB
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == 0
    assert stats["num_device_alloc"] == 0
    model.free(kept)
    assert model.memory_stats()["allocated_bytes.all.freed"] == MIB


def test_an_oversized_batch_that_will_not_come_back():
    """A batch too large, freed in the wrong order: 3,000 MiB stay reserved for 300 MiB of live tensors."""
    model = CachingAllocator(8 * GIB)
    scratch = []
    kept = []
    for _ in range(300):  # 300 segments of 20 MiB, each with one small survivor in it
        scratch.append(model.malloc(9 * MIB))
        kept.append(model.malloc(2 * MIB))
        scratch.append(model.malloc(9 * MIB))
    for address in scratch:
        model.free(address)
    for address in kept[::2]:
        model.free(address)
    model.empty_cache()
    stuck = model.usage()
    assert stuck.allocated == 150 * 2 * MIB
    assert stuck.reserved == 150 * 20 * MIB
    assert stuck.inactive_split == stuck.reserved - stuck.allocated
    with pytest.raises(DeviceOutOfMemoryError):
        model.malloc(5300 * MIB)  # 8,192 - 3,000 are free at the device, and 2,700 more lie idle


@pytest.mark.parametrize(("expandable", "kept"), [(False, 6 * GIB), (True, 20 * MIB)])
def test_one_live_block_holds_a_whole_segment_but_only_one_page(expandable, kept):
    model = CachingAllocator(8 * GIB, settings=AllocatorSettings(expandable_segments=expandable))
    model.free(model.malloc(6 * GIB))
    # Best fit: the only free block, of 6 GiB or, with whole pages, a little more
    small = model.malloc(2 * MIB)
    model.empty_cache()
    assert model.usage().reserved == kept
    if not expandable:
        assert model.usage().inactive_split == kept - 2 * MIB
        with pytest.raises(DeviceOutOfMemoryError):
            model.malloc(7 * GIB)
    else:
        model.malloc(7 * GIB)
    model.free(small)
    model.empty_cache()
    assert model.usage().reserved in (0, 7180 * MIB)
