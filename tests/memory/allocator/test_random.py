"""Random traces: the model keeps its invariants after every operation, and equals a naive second implementation."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minikv.memory.allocator.blocks import INACTIVE
from minikv.memory.allocator.caching_allocator import CachingAllocator, DeviceOutOfMemoryError
from minikv.memory.allocator.rules import AllocatorSettings
from minikv.units import MIB
from tests.memory.allocator.naive_allocator import Full, NaiveAllocator

EDGES = [1, 511, 512, 513, MIB - 512, MIB, MIB + 1, 2 * MIB, 10 * MIB - 512, 10 * MIB, 10 * MIB + 1, 20 * MIB]
SIZES = st.one_of(
    st.sampled_from(EDGES), st.integers(1, 4096), st.integers(1, 2 * MIB), st.integers(1, 60 * MIB)
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, st.integers(0, 2)),
        st.tuples(st.just("free"), st.integers(0, 10**6), st.just(0)),
        st.tuples(st.just("free"), st.integers(0, 10**6), st.just(0)),
        st.tuples(st.just("record_stream"), st.integers(0, 10**6), st.integers(0, 2)),
        st.tuples(st.just("synchronize"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("empty_cache"), st.just(0), st.just(0)),
    ),
    max_size=120,
)


def check_invariants(model):
    """Segments tile exactly; no two free neighbours; the figures are the sums of what the views show."""
    views, usage = model.segments(), model.usage()
    for segment in views:
        place = segment.address
        for block in segment.blocks:
            assert block.address == place
            assert block.size >= 512
            assert block.size % 512 == 0
            assert block.requested_size <= block.size
            place += block.size
        assert place == segment.address + segment.total_size
        states = [block.state for block in segment.blocks]
        assert (INACTIVE, INACTIVE) not in pairwise(states)
    ends = [(segment.address, segment.address + segment.total_size) for segment in views]
    assert all(left[1] <= right[0] for left, right in pairwise(ends))
    assert usage.reserved == sum(segment.total_size for segment in views)
    assert usage.allocated == sum(segment.allocated_size for segment in views)
    assert usage.active == sum(segment.active_size for segment in views)
    asked = sum(block.requested_size for segment in views for block in segment.blocks)
    assert usage.requested == asked
    stats = model.memory_stats()
    for key, value in stats.items():
        if key.endswith(".current"):
            name = key.removesuffix(".current")
            assert 0 <= value <= stats[f"{name}.peak"]
            assert value == stats[f"{name}.allocated"] - stats[f"{name}.freed"], name


def run_beside(steps, capacity, max_split_mb):
    """Both implementations through the same steps; every figure equal after each. Returns the model and the peaks."""
    model = CachingAllocator(capacity, settings=AllocatorSettings(max_split_size_mb=max_split_mb))
    naive = NaiveAllocator(capacity, max_split_mb)
    live, peaks = [], {}
    for op, first, second in steps:
        if op == "malloc":
            try:
                expected = naive.malloc(first, second)
            except Full:
                with pytest.raises(DeviceOutOfMemoryError):
                    model.malloc(first, second)
            else:
                assert model.malloc(first, second) == expected
                live.append(expected)
        elif op == "free" and live:
            address = live.pop(first % len(live))
            naive.free(address)
            model.free(address)
        elif op == "record_stream" and live:
            address = live[first % len(live)]
            naive.record_stream(address, second)
            model.record_stream(address, second)
        elif op == "synchronize":
            naive.synchronize(None if first == 3 else first)
            model.synchronize(None if first == 3 else first)
        elif op == "empty_cache":
            naive.empty_cache()
            model.empty_cache()
        figures, stats = naive.figures(), model.memory_stats()
        assert {name: stats[f"{name}.all.current"] for name in figures} == figures
        assert (stats["num_alloc_retries"], stats["num_ooms"]) == (naive.retries, naive.ooms)
        peaks = {name: max(value, peaks.get(name, 0)) for name, value in figures.items()}
    return model, naive, peaks


@settings(max_examples=150)
@given(STEPS, st.sampled_from([None, 64 * MIB, 200 * MIB]), st.sampled_from([None, 20, 32]))
def test_the_model_equals_the_naive_one(steps, capacity, max_split_mb):
    model, _, _ = run_beside(steps, capacity, max_split_mb)
    check_invariants(model)


@settings(max_examples=40)
@given(STEPS)
def test_invariants_hold_after_every_step(steps):
    model, live = CachingAllocator(300 * MIB), []
    for op, first, second in steps:
        if op == "malloc":
            try:
                live.append(model.malloc(first, second))
            except DeviceOutOfMemoryError:
                assert model.usage().allocated == sum(s.allocated_size for s in model.segments())
        elif op == "free" and live:
            model.free(live.pop(first % len(live)))
        elif op == "record_stream" and live:
            model.record_stream(live[first % len(live)], second)
        elif op == "synchronize":
            model.synchronize()
        elif op == "empty_cache":
            model.empty_cache()
        check_invariants(model)
    for address in live:
        model.free(address)
    model.empty_cache()
    assert model.segments() == ()
    assert model.usage().reserved == model.usage().active == model.usage().inactive_split == 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("max_split_mb", [None, 24])
def test_long_traces_with_peaks(seed, max_split_mb):
    rng = random.Random(seed)
    steps = []
    for _ in range(1200):
        kind = rng.random()
        if kind < 0.5:
            size = rng.choice([rng.choice(EDGES), rng.randrange(1, MIB), rng.randrange(1, 40 * MIB)])
            steps.append(("malloc", size, rng.randrange(2)))
        elif kind < 0.995:
            steps.append(("free", rng.randrange(10**6), 0))
        else:
            steps.append(("empty_cache", 0, 0))
    model, naive, peaks = run_beside(steps, 400 * MIB, max_split_mb)
    stats = model.memory_stats()
    assert {name: stats[f"{name}.all.peak"] for name in peaks} == peaks
    assert naive.retries > 0, "the trace fills the device"
    check_invariants(model)


def check_pages(model):
    """After empty_cache exactly the pages that a block in use touches are mapped."""
    for view in model.segments():
        page = 2 * MIB if view.pool == "small" else 20 * MIB
        assert view.total_size % page == 0
        used = [
            (b.address - view.address, b.address - view.address + b.size)
            for b in view.blocks
            if b.state != INACTIVE
        ]
        touched = {place for start, end in used for place in range(start // page, -(-end // page))}
        assert touched == set(range(view.total_size // page))


@settings(max_examples=100)
@given(STEPS)
def test_expandable_segments_keep_the_invariants_and_give_everything_back(steps):
    model, live = CachingAllocator(400 * MIB, settings=AllocatorSettings(expandable_segments=True)), []
    for op, first, second in steps:
        if op == "malloc":
            try:
                live.append(model.malloc(first, second))
            except DeviceOutOfMemoryError:
                assert model.usage().reserved <= 400 * MIB
        elif op == "free" and live:
            model.free(live.pop(first % len(live)))
        elif op == "record_stream" and live:
            model.record_stream(live[first % len(live)], second)
        elif op == "synchronize":
            model.synchronize()
        elif op == "empty_cache":
            model.empty_cache()
            check_pages(model)
        check_invariants(model)
    model.empty_cache()
    check_pages(model)
    for address in live:
        model.free(address)
    model.empty_cache()
    assert model.segments() == ()
    assert model.usage().reserved == 0
