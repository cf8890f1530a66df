"""The caching allocator model against examples worked by hand from PyTorch's rules, at every boundary."""

import pytest

from minikv.errors import ArgumentError, MiniKVError
from minikv.memory.allocator_blocks import ALLOCATED, AWAITING_FREE, INACTIVE
from minikv.memory.allocator_rules import AllocatorSettings, divisions_by_interval, round_size, segment_size
from minikv.memory.caching_allocator import CachingAllocator, DeviceOutOfMemory
from minikv.units import GIB, KIB, MIB

PLAIN = divisions_by_interval(1)


def sizes(model):
    """[[(size, in use?), ...] of each segment], by address."""
    return [
        [(block.size, block.state == ALLOCATED) for block in segment.blocks] for segment in model.segments()
    ]


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
    with pytest.raises(DeviceOutOfMemory):
        model.malloc(5300 * MIB)  # 8,192 - 3,000 are free at the device, and 2,700 more lie idle


@pytest.mark.parametrize(("expandable", "kept"), [(False, 6 * GIB), (True, 20 * MIB)])
def test_one_live_block_holds_a_whole_segment_but_only_one_page(expandable, kept):
    model = CachingAllocator(8 * GIB, settings=AllocatorSettings(expandable_segments=expandable))
    model.free(model.malloc(6 * GIB))
    small = model.malloc(
        2 * MIB
    )  # best fit: the only free block, of 6 GiB or, with whole pages, a little more
    model.empty_cache()
    assert model.usage().reserved == kept
    if not expandable:
        assert model.usage().inactive_split == kept - 2 * MIB
        with pytest.raises(DeviceOutOfMemory):
            model.malloc(7 * GIB)
    else:
        model.malloc(7 * GIB)
    model.free(small)
    model.empty_cache()
    assert model.usage().reserved in (0, 7180 * MIB)


def test_out_of_memory_states_the_terms():
    model = CachingAllocator(100 * MIB, non_torch=10 * MIB)
    model.malloc(50 * MIB)
    before = model.segments()
    with pytest.raises(DeviceOutOfMemory) as raised:
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
    with pytest.raises(DeviceOutOfMemory, match=r"30\.00 MiB allowed"):
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
    with pytest.raises(DeviceOutOfMemory):
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


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "512", None, 2**62 + 1])
def test_bad_sizes_change_nothing(size):
    model = CachingAllocator()
    model.malloc(512)
    before = model.memory_stats(), model.segments()
    with pytest.raises(ArgumentError):
        model.malloc(size)
    with pytest.raises(ArgumentError):
        model.malloc(512, stream=-1)
    assert (model.memory_stats(), model.segments()) == before


@pytest.mark.parametrize("address", [0, -5, 2**63, "x", None, [1], True])
def test_bad_addresses(address):
    model = CachingAllocator()
    model.malloc(512)
    before = model.memory_stats()
    for call in (model.free, lambda value: model.record_stream(value, 1)):
        with pytest.raises(ArgumentError, match="No block in use"):
            call(address)
    assert model.memory_stats() == before


def test_a_double_free_is_refused():
    model = CachingAllocator()
    address = model.malloc(512)
    model.free(address)
    with pytest.raises(ArgumentError, match="freed already"):
        model.free(address)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_split_size_mb": 19},
        {"max_split_size_mb": True},
        {"max_non_split_rounding_mb": 19},
        {"garbage_collection_threshold": 0},
        {"garbage_collection_threshold": 1.0},
        {"garbage_collection_threshold": float("nan")},
        {"garbage_collection_threshold": "0.5"},
        {"roundup_power2_divisions": 3},
        {"roundup_power2_divisions": 0},
        {"roundup_power2_divisions": True},
        {"roundup_power2_divisions": {3: 2}},
        {"roundup_power2_divisions": {4: 3}},
        {"roundup_power2_divisions": {"<": 2}},
        {"expandable_segments": 1},
        {"expandable_segments": True, "max_split_size_mb": 32},
        {"expandable_segments": True, "garbage_collection_threshold": 0.5},
    ],
)
def test_bad_settings(wrong):
    with pytest.raises(ArgumentError):
        AllocatorSettings(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"capacity": 0}, {"capacity": True}, {"non_torch": -1}, {"memory_limit": -1}, {"settings": {"x": 1}}],
)
def test_bad_devices(wrong):
    with pytest.raises(ArgumentError):
        CachingAllocator(**wrong)
    assert AllocatorSettings(max_split_size_mb=32).max_split_size == 32 * MIB
    assert INACTIVE == "inactive"
