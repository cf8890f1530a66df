"""What lesson 07 shows: pointer chasing, and its two stories on the allocator."""

from itertools import pairwise

import numpy as np
import pytest

from minikv.course.lessons.l07.pointer_chase import HOPS, LINE, PLACES, follow, load_ns, random_cycle
from minikv.course.lessons.l07.stories import as_trace, batch_steps, joined_steps, next_batch
from minikv.course.widgets.segments_replay import replay_steps
from minikv.i18n import LANGUAGES
from minikv.memory import AllocatorSettings, CachingAllocator, replay
from minikv.units import GIB, MIB

BATCH = {"weights": 15 * GIB, "cache": 6 * GIB, "kept": 24 * MIB}


@pytest.mark.parametrize("lines", [2, 64, 1000])
@pytest.mark.parametrize("seed", [0, 3])
def test_a_cycle_visits_each_line_once_and_comes_back(lines, seed):
    places = random_cycle(lines * LINE, seed)
    assert places.nbytes == lines * LINE
    seen, place = [], 0
    for _ in range(lines):
        place = int(places[place])
        seen.append(place)
    assert sorted(seen) == [PLACES * line for line in range(lines)]
    assert seen[-1] == 0


@pytest.mark.parametrize("start", [0, 5 * PLACES])
def test_each_place_is_read_from_the_one_before(start):
    places, path = random_cycle(100 * LINE), np.zeros(HOPS + 1, dtype=np.int64)
    path[0] = start
    follow(places, path)
    assert all(int(places[here]) == there for here, there in pairwise(path))


def test_a_load_takes_some_time():
    assert 0 < load_ns(64 * LINE, hops=4 * HOPS, repeats=1) < 1e6


@pytest.mark.parametrize("lang", LANGUAGES)
def test_no_freed_k_is_large_enough_for_the_next(lang):
    steps = joined_steps(65_536, range(512, 672, 32), lang)
    *_, before, last = replay_steps(steps, AllocatorSettings(), GIB, 0)
    assert before.calls == 5
    assert (last.returns, last.reserved) == (4, 640 * 65_536)


@pytest.mark.parametrize(
    ("order", "fits"),
    [("free, keep, empty", False), ("keep, free, empty", True), ("free, empty, keep", True)],
)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_order_of_three_calls_decides_whether_the_next_cache_fits(order, fits, lang):
    steps = batch_steps(**BATCH, order=order, lang=lang)
    end = next_batch(steps, CachingAllocator(24 * GIB))
    assert end.fits == fits
    assert (end.stuck == BATCH["cache"] - BATCH["kept"]) != fits
    reserved = [step.usage.reserved for step in replay(as_trace(steps), CachingAllocator(24 * GIB))]
    drawn = replay_steps(steps, AllocatorSettings(), 24 * GIB, 0)[1:]
    assert reserved == [moment.reserved for moment in drawn]


def test_expandable_segments_and_a_small_survivor_leave_nothing_stuck():
    steps = batch_steps(**BATCH)
    expandable = CachingAllocator(24 * GIB, settings=AllocatorSettings(expandable_segments=True))
    assert next_batch(steps, expandable).fits
    small = batch_steps(BATCH["weights"], BATCH["cache"], 400 * 1024)
    assert next_batch(small, CachingAllocator(24 * GIB)).fits
