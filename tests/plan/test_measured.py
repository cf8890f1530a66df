"""The allocation formula with made-up terms: every branch, and the planner's own sum."""

import random

import pytest

from minikv.errors import ArgumentError
from minikv.plan import pool
from minikv.plan.budget import plan_memory
from minikv.plan.measured import MeasuredTerms, size_for_blocks, size_for_bytes
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.plan.spec.layers import LayerSpec

GIB = 2**30

FULL = LayerSpec("full", kv_heads=2, k_dim=8, v_dim=8)
SLIDING = LayerSpec("sliding", kv_heads=2, k_dim=8, v_dim=8, window=24)
NARROW = LayerSpec("sliding", kv_heads=1, k_dim=4, v_dim=4, window=7)
LINEAR = LayerSpec("linear", state_bytes=1000)
SPECS = {
    "full": CacheSpec((FULL, FULL)),
    "two full groups": CacheSpec((FULL, LayerSpec("full", kv_heads=1, k_dim=6, v_dim=10))),
    "hybrid": CacheSpec((FULL, SLIDING, SLIDING, NARROW)),
    "all slide": CacheSpec((SLIDING, NARROW)),
    "states": CacheSpec((FULL, LINEAR)),
}


def bytes_of(spec, size, block_size):
    groups = pool.kv_cache_groups(spec)
    return sum(
        group.block_bytes(block_size) * count for group, count in zip(groups, size.blocks, strict=True)
    )


def test_the_source_documents_example():
    """80 GB card, 0.9, weights 35 GB: 72 - 35 - 45 + 35 is 27 and not 62 (the peak is absolute)."""
    gb = 10**9
    terms = MeasuredTerms(80 * gb, 0.9, used=35 * gb, peak=45 * gb, current=35 * gb)
    assert terms.available == terms.short_form == 27 * gb


def test_the_short_form_is_too_large_by_what_torch_does_not_hold():
    terms = MeasuredTerms(80 * GIB, 0.9, used=40 * GIB, peak=45 * GIB, current=35 * GIB)
    assert terms.short_form - terms.available == terms.used - terms.current == 5 * GIB


def test_the_formula_is_that_of_the_source_wherever_something_is_left():
    rng = random.Random(8)
    for _ in range(2000):
        total = rng.randrange(1, 300 * GIB)
        utilization = rng.choice([rng.uniform(0.01, 1), 0.9, 0.95, 1, 1.0])
        current = rng.randrange(total)
        used = rng.randrange(current, total)
        peak = rng.randrange(current, total)
        terms = MeasuredTerms(total, utilization, used, peak, current)
        theirs = total * utilization - used - peak + current
        assert abs(terms.available - theirs) <= 1
        if theirs > 1:
            assert terms.available == int(theirs)
        assert terms.available <= terms.limit - used  # activations only ever take


def test_the_planner_says_the_same_in_both_forms():
    rng = random.Random(9)
    for _ in range(30):
        budget = plan_memory(
            "Llama-3.1-8B",
            gpu_bytes=rng.randrange(30 * GIB, 200 * GIB),
            tp=rng.choice([1, 2, 4]),
            utilization=rng.uniform(0.8, 1),
            chunk=rng.randrange(1, 20_000),
            cuda_context_bytes=rng.randrange(GIB),
            workspace_bytes=rng.randrange(GIB),
        )
        form = budget.measured_form()
        terms = MeasuredTerms(
            budget.total_bytes, budget.utilization, form["used"], form["peak"], form["current"]
        )
        assert terms.as_dict() == form
        assert terms.available == budget.kv_bytes
        size = size_for_bytes(budget.spec, terms.available, block_size=16, context=budget.context)
        assert size.num_blocks == budget.num_blocks


def test_a_gpu_that_is_too_small_has_less_than_nothing():
    terms = MeasuredTerms(10 * GIB, 0.5, used=8 * GIB, peak=9 * GIB, current=7 * GIB)
    assert terms.available == -5 * GIB
    assert size_for_bytes(SPECS["full"], terms.available, block_size=16, context=64).num_blocks == 0


@pytest.mark.parametrize("name", SPECS)
def test_the_blocks_fill_the_bytes_and_never_pass_them(name):
    spec = SPECS[name]
    rng = random.Random(name)
    for _ in range(300):
        block_size, context = rng.choice([1, 4, 16]), rng.randrange(1, 200)
        batch = rng.choice([None, rng.randrange(1, 20)])
        room = rng.randrange(-100, 10 ** rng.randrange(1, 7))
        size = size_for_bytes(spec, room, block_size=block_size, context=context, batch=batch)
        taken = bytes_of(spec, size, block_size)
        if size.num_blocks:
            assert all(size.blocks)
            assert 0 <= room - taken < pool.counted_block_bytes(spec, block_size)
            assert 1 <= size.batch <= (batch or size.batch)
            assert 1 <= size.context <= context
        else:
            assert room < pool.sequence_bytes(spec, 1, block_size) - spec.constant_state_bytes
            assert set(size.blocks) == {0}


@pytest.mark.parametrize("name", SPECS)
def test_the_planner_counts_the_same_blocks(name):
    """Of a pool that holds the states of ``batch`` sequences, too, the planner takes these off."""
    spec = SPECS[name]
    rng = random.Random(name)
    for _ in range(200):
        block_size, context, batch = rng.choice([1, 4, 16]), rng.randrange(1, 200), rng.randrange(1, 9)
        room = rng.randrange(1, 10**6)
        batch = min(batch, pool.max_sequences(spec, room, context, block_size))
        if batch:
            beside = room - batch * spec.constant_state_bytes
            size = size_for_bytes(spec, beside, block_size=block_size, context=context, batch=batch)
            assert (size.batch, size.context) == (batch, context)
            assert size.num_blocks == pool.num_blocks(spec, room, context, batch, block_size)


def test_windowed_kinds_get_what_the_batch_needs_there():
    spec = SPECS["hybrid"]
    size = size_for_bytes(spec, 10**6, block_size=4, context=100, batch=3)
    groups = pool.kv_cache_groups(spec)
    assert [group.layer.window for group in groups] == [None, 24, 7]
    assert size.blocks[1:] == tuple(3 * group.layer.blocks_for(100, 4) for group in groups[1:])
    everyone = size_for_bytes(spec, 10**6, block_size=4, context=100)
    assert everyone.batch == pool.max_sequences(spec, 10**6, 100, 4)
    assert everyone.num_blocks >= everyone.batch * 25


def test_given_blocks_are_kept_and_windows_follow():
    size = size_for_blocks(SPECS["hybrid"], 50, block_size=4, context=100)
    assert (size.num_blocks, size.batch, size.context) == (50, 2, 100)
    assert size.blocks == (50, 2 * 7, 2 * 3)
    short = size_for_blocks(SPECS["hybrid"], 2, block_size=4, context=4096)
    assert (short.batch, short.context) == (1, 8)
    assert short.blocks == (2, 2, 2)
    assert size_for_blocks(SPECS["all slide"], 5, block_size=4, context=100).blocks == (5, 5)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"total": 0}, "bad_count"),
        ({"used": -1}, "bad_count"),
        ({"peak": 1.5}, "bad_count"),
        ({"current": True}, "bad_count"),
        ({"total": 2**70}, "count_too_large"),
        ({"utilization": 0}, "out_of_range"),
        ({"utilization": 1.01}, "out_of_range"),
        ({"utilization": True}, "out_of_range"),
        ({"utilization": float("nan")}, "out_of_range"),
        ({"utilization": "0.9"}, "out_of_range"),
    ],
)
def test_terms_that_cannot_be_are_refused(changes, code):
    with pytest.raises(ArgumentError) as caught:
        MeasuredTerms(**({"total": 9, "utilization": 0.9, "used": 1, "peak": 1, "current": 1} | changes))
    assert caught.value.code == code


@pytest.mark.parametrize("changes", [{"block_size": 0}, {"context": 0}, {"batch": 0}, {"batch": 1.0}])
def test_sizes_that_are_none_are_refused(changes):
    for call in (size_for_bytes, size_for_blocks):
        with pytest.raises(ArgumentError) as caught:
            call(SPECS["full"], 1000, **({"block_size": 16, "context": 100} | changes))
        assert caught.value.code == "bad_count"
