"""The six moments of a start-up, against the same calls in the model of torch's caching allocator."""

import random

import pytest

from minikv.errors import ArgumentError
from minikv.memory.allocator.caching_allocator import CachingAllocator, DeviceOutOfMemoryError
from minikv.plan.measured import MeasuredTerms
from minikv.plan.moments import CALLS, startup_moments

GIB = 2**30
SEGMENT = 2 * 2**20  # allocations of 10 MiB and more, in multiples of it, leave nothing to round


def some_terms(rng: random.Random) -> MeasuredTerms:
    current = rng.choice([0, rng.randrange(40 * GIB)])
    return MeasuredTerms(
        total=rng.randrange(60 * GIB, 200 * GIB),
        utilization=rng.uniform(0.5, 1),
        used=current + rng.choice([0, 1, rng.randrange(9 * GIB)]),
        peak=current + rng.choice([0, 1, rng.randrange(9 * GIB)]),
        current=current,
    )


def whole_terms(rng: random.Random) -> MeasuredTerms:
    """Terms whose sizes are whole segments, and whose device is larger than all of them."""
    weights, activations, not_torch = (SEGMENT * rng.randrange(5, 2000) for _ in range(3))
    used = weights + not_torch
    total = used + activations + SEGMENT * rng.randrange(20, 9000)
    return MeasuredTerms(total, 1, used=used, peak=weights + activations, current=weights)


def warm_up(torch: CachingAllocator, terms: MeasuredTerms) -> None:
    torch.free(torch.malloc(terms.peak - terms.current))


def test_each_moment_is_what_its_calls_leave_behind():
    rng = random.Random(81)
    for _ in range(200):
        terms = whole_terms(rng)
        kv = terms.available // SEGMENT * SEGMENT
        loading = SEGMENT * rng.randrange(5, (terms.total - terms.used) // SEGMENT + 1)
        not_torch = terms.used - terms.current
        torch = CachingAllocator(terms.total, non_torch=not_torch)
        seen = []

        def read(torch=torch, seen=seen, not_torch=not_torch) -> None:
            stats = torch.memory_stats()
            current, peak = stats["allocated_bytes.all.current"], stats["allocated_bytes.all.peak"]
            seen.append((not_torch + stats["reserved_bytes.all.current"], peak, current))

        read()
        torch.malloc(terms.current)
        torch.free(torch.malloc(loading))
        read()
        torch.empty_cache()
        torch.reset_peak_stats()
        read()
        warm_up(torch, terms)
        read()
        torch.empty_cache()
        read()
        torch.malloc(kv)
        read()
        moments = startup_moments(terms, kv, loading_bytes=loading)
        assert tuple(moment.call for moment in moments) == CALLS
        assert [(moment.used, moment.peak, moment.current) for moment in moments] == seen


def test_the_formulas_cache_leaves_room_for_the_next_prefill_and_a_larger_one_does_not():
    rng = random.Random(85)
    for _ in range(100):
        terms = whole_terms(rng)
        kv = terms.available // SEGMENT * SEGMENT
        for size, fits in ((kv, True), (kv + SEGMENT, False), (terms.total - terms.used, False)):
            torch = CachingAllocator(terms.total, non_torch=terms.used - terms.current)
            torch.malloc(terms.current)
            torch.malloc(size)
            if fits:
                warm_up(torch, terms)
            else:
                with pytest.raises(DeviceOutOfMemoryError):
                    warm_up(torch, terms)


def test_the_formula_reads_its_terms_after_empty_cache():
    rng = random.Random(82)
    for _ in range(100):
        terms = some_terms(rng)
        by_call = {moment.call: moment for moment in startup_moments(terms, 7, loading_bytes=GIB)}
        read = by_call["empty_cache"]
        assert (read.used, read.peak, read.current) == (terms.used, terms.peak, terms.current)
        # Read one call earlier, the activations would be subtracted twice.
        early = by_call["warmup"]
        wrong = MeasuredTerms(terms.total, terms.utilization, early.used, early.peak, early.current)
        assert terms.available - wrong.available == terms.peak - terms.current


def test_no_moment_has_less_than_it_can():
    rng = random.Random(83)
    for _ in range(100):
        terms = some_terms(rng)
        for moment in startup_moments(terms, rng.randrange(GIB), loading_bytes=rng.randrange(GIB)):
            assert 0 <= moment.current <= moment.peak
            assert moment.current <= moment.used


@pytest.mark.parametrize(
    ("terms", "kv", "loading"),
    [
        (dict(used=4, peak=9, current=5), 1, 0),
        (dict(used=9, peak=4, current=5), 1, 0),
        (dict(used=9, peak=9, current=5), -1, 0),
        (dict(used=9, peak=9, current=5), 1, -1),
        (dict(used=9, peak=9, current=5), True, 0),
        (dict(used=9, peak=9, current=5), 1, 1.5),
    ],
)
def test_a_start_up_that_cannot_be_is_refused(terms, kv, loading):
    with pytest.raises(ArgumentError) as refusal:
        startup_moments(MeasuredTerms(100, 0.9, **terms), kv, loading_bytes=loading)
    assert refusal.value.code == "bad_count"
