"""What the caching allocator model refuses, with nothing changed."""

import pytest

from minikv.errors import ArgumentError
from minikv.memory.allocator.blocks import INACTIVE
from minikv.memory.allocator.caching_allocator import CachingAllocator
from minikv.memory.allocator.rules import AllocatorSettings
from minikv.units import MIB


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
