"""Lesson 17: its exercises, predictions and questions do what a learner relies on."""

import bisect
import math
import random
from collections import OrderedDict
from statistics import fmean

import pytest

from minikv.course.check import run_check
from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.course.lessons.l17.fewest_replicas import allowed, fewest_replicas, run_search
from minikv.course.lessons.l17.lru_hits import lru_hits
from minikv.course.lessons.l17.router import choose, compare_routers, draw_traffic, longest_prefix, run_router
from minikv.course.lessons.l17.ttft import ttft_percentiles
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("17")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}


# Right answers, written otherwise ---------------------------------------------------------------------------


def lru_cache_by_cache(requests, capacities):
    found = []
    for capacity in capacities:
        cache, hits = OrderedDict(), 0
        for request in requests:
            for block in request:
                if block not in cache:
                    break
                hits += 1
            for block in request:
                cache[block] = None
                cache.move_to_end(block)
            while len(cache) > capacity:
                cache.popitem(last=False)
        found.append(hits)
    return found


def lru_by_times_of_use(requests, capacities):
    """A block's place is how many blocks were used since it was; both are read off the times of the last uses."""
    used, times, needed, clock = {}, [], [], 0
    for request in requests:
        need = 0
        for block in request:
            if block not in used:
                break
            need = max(need, len(times) - bisect.bisect_left(times, used[block]))
            needed.append(need)
        for block in request:
            if block in used:
                times.remove(used[block])
            used[block] = clock
            times.append(clock)
            clock += 1
    return [sum(1 for need in needed if need <= capacity) for capacity in capacities]


def ttft_by_hand(arrivals, prefills):
    found = []
    for comes, lasts in zip(arrivals, prefills, strict=True):
        done = -math.inf
        for arrival, seconds in zip(comes, lasts, strict=True):
            done = seconds + (arrival if arrival > done else done)
            found.append(done - arrival)
    found.sort()
    places = [percent * (len(found) - 1) / 100 for percent in (50, 90, 99)]
    share = [place - int(place) for place in places]
    above = [found[math.ceil(place)] for place in places]
    return [
        low + s * (high - low)
        for low, high, s in zip((found[int(p)] for p in places), above, share, strict=True)
    ]


def ttft_by_backlog(arrivals, prefills):
    """Lindley's recursion: what is left of the one before when this one comes (1952)."""
    import numpy as np

    found = []
    for replica, comes in enumerate(arrivals):
        backlog, before = 0.0, 0.0
        for place, arrival in enumerate(comes):
            backlog = max(0.0, backlog - (arrival - before)) + prefills[replica][place]
            found.append(backlog)
            before = arrival
    return tuple(float(np.quantile(found, q)) for q in (0.5, 0.9, 0.99))


def choose_in_a_loop(cached, load, prompt, bound):
    mean, best = fmean(load), None
    for replica, (blocks, waiting) in enumerate(zip(cached, load, strict=True)):
        if waiting - prompt > bound * mean:
            continue
        if best is None or blocks > cached[best] or (blocks == cached[best] and waiting < load[best]):
            best = replica
    return best


def choose_by_sorting(cached, load, prompt, bound):
    order = sorted(range(len(load)), key=load.__getitem__)
    order = [r for r in order if len(load) * (load[r] - prompt) <= bound * sum(load)]
    return max(order, key=cached.__getitem__)


def fewest_by_halving(ask, bound, most):
    if ask(most)["p99"] > bound:
        return None
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if ask(middle)["p99"] > bound:
            low = middle + 1
        else:
            high = middle
    return low


def fewest_by_bisect(ask, bound, most):
    place = bisect.bisect_left(range(1, most + 1), True, key=lambda replicas: ask(replicas)["p99"] <= bound)
    return place + 1 if place < most else None


# What a learner relies on -----------------------------------------------------------------------------------


def test_lru_hits():
    assert_exercise(EXERCISES["17.1"], right=[lru_cache_by_cache, lru_by_times_of_use], sequences="requests")


def test_ttft_percentiles():
    assert_exercise(EXERCISES["17.2"], right=[ttft_by_hand, ttft_by_backlog], sequences="arrivals")


def test_choose():
    right = [choose_in_a_loop, choose_by_sorting]
    assert_exercise(EXERCISES["17.3"], right=right, sequences="load")


def test_fewest_replicas():
    def stub(ask, bound, most):
        raise NotImplementedError

    assert_exercise(EXERCISES["17.4"], right=[fewest_by_halving, fewest_by_bisect], stub=stub)


def test_asking_for_a_fleet_of_none_is_an_error_of_the_learner():
    verdict = run_check(EXERCISES["17.4"], lambda ask, bound, most: ask(0)["p99"])
    assert verdict.kind == "raised"


# What the exercises claim -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_more_capacity_never_finds_less_and_all_of_it_finds_what_was_seen(seed):
    for case in EXERCISES["17.1"].draw(seed):
        blocks = {block for request in case["requests"] for block in request}
        hits = lru_hits(case["requests"], list(range(1, len(blocks) + 1)))
        assert hits == sorted(hits)
        assert hits[-1] == sum(map(len, case["requests"])) - len(blocks)


@pytest.mark.parametrize("seed", range(3))
def test_who_waits_is_never_faster_than_the_prefill(seed):
    for case in EXERCISES["17.2"].draw(seed):
        alone = [value for replica in case["prefills"] for value in replica]
        p50, p90, p99 = ttft_percentiles(**case)
        assert min(alone) <= p50 <= p90 <= p99
        assert p99 >= sorted(alone)[-1] * 0.5


def test_the_right_router_beats_the_others_each_where_it_is_weak():
    """More hits than round-robin, a shorter p99 than the least load; and the prefix alone is the worst to wait for."""
    found = compare_routers(choose)
    hits, p99 = found["yours"]
    assert hits > found["round-robin"][0] + 0.1
    assert p99 < 0.8 * found["least-loaded"][1]
    alone = compare_routers(longest_prefix)["yours"]
    assert alone[0] > hits
    assert alone[1] > 1.5 * p99


def test_a_router_that_is_not_written_yet_is_no_error():
    def stub(cached, load, prompt, bound):
        raise NotImplementedError

    found = compare_routers(stub, traffics=2)
    assert found["yours"] is None
    assert found["round-robin"][0] > 0


def test_no_block_is_found_that_nobody_has_brought():
    draw = random.Random(4)
    for _ in range(20):
        requests = draw_traffic(draw, 30, 3, 2)
        routed = run_router(choose, requests, 3, 1.25)
        assert len(routed.replicas) == len(requests)
        first = {block for _, blocks in requests for block in blocks}
        total = sum(len(blocks) for _, blocks in requests)
        assert routed.hit_rate <= 1 - len(first) / total


@pytest.mark.parametrize("seed", range(3))
def test_the_answer_holds_and_one_replica_less_does_not(seed):
    for case in EXERCISES["17.4"].draw(seed):
        found = run_search(fewest_replicas, **case)
        assert not found["asked_too_often"]
        holds = [seconds <= case["bound"] for seconds in case["p99"]]
        assert holds == sorted(holds), "the fleets of the exercise are monotone"
        assert found["replicas"] == (holds.index(True) + 1 if any(holds) else None)


def test_the_questions_allowed_are_fewer_than_trying_all_of_a_large_fleet():
    assert allowed(64) < 64
    assert [allowed(most) for most in (2, 3, 8, 64)] == [4, 6, 8, 14]


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "17")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "17")
