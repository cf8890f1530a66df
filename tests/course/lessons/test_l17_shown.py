"""What lesson 17 shows: its traffic on fleets, the queue with a formula, and exercises that agree with the package."""

import random
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pytest

from minikv.course.diagrams import fleet_requests
from minikv.course.lessons.l17.fewest_replicas import fewest_replicas
from minikv.course.lessons.l17.lru_hits import LRU, hits_by_age, lru_hits
from minikv.course.lessons.l17.router import choose
from minikv.course.lessons.l17.shown import answers_table
from minikv.course.lessons.l17.traffic import BUSY, ONE_PROMPT, hot_document, md1_wait, one_at_a_time
from minikv.errors import MiniKVError
from minikv.simulate import (
    Fleet,
    PrefixAware,
    Target,
    Trace,
    TraceRequest,
    fewest,
    hit_rates,
    simulate,
)
from tests.course.diagrams.test_diagrams import NUMBERS, said

PAIRS = partial(Fleet.plan, "Llama-3.1-70B", "H200", tp=2, router="prefix", block_size=128)


@lru_cache
def answers_of(replicas: int, router: str = "prefix", *, gpu: str = "H200", host_gib: int = 0):
    make = partial(Fleet.plan, "Llama-3.1-70B", gpu, tp=2, block_size=128, host_kv_bytes=host_gib * 2**30)
    return simulate(BUSY.trace(), make(replicas=replicas, router=router)).answers()


# The exercises are the package's own rules -----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_the_list_of_17_1_finds_what_the_package_finds(seed):
    for case in LRU.draw(seed)[::4]:
        requests = case["requests"]
        longest = max(map(len, requests))
        trace = Trace(
            "blocks",
            tuple(TraceRequest(float(i), len(r), 1, tuple(r)) for i, r in enumerate(requests)),
            hash_block=1,
        )
        capacities = [longest, longest + 1, 2 * longest]
        total = sum(map(len, requests))
        assert hit_rates(trace, capacities) == pytest.approx(
            [hits / total for hits in lru_hits(requests, capacities)]
        )


class Known:
    """A replica of which a router sees a load and a prefix."""

    def __init__(self, load, cached):
        self.load, self.cached = load, cached

    def cached_tokens(self, prompt):
        return self.cached


def test_the_rule_of_17_3_is_the_packages_router():
    draw = random.Random(5)
    for _ in range(500):
        count, prompt, bound = draw.randint(1, 5), draw.randint(1, 30), draw.choice([1.0, 1.25, 2.0])
        cached = [draw.choice([0, 0, draw.randint(0, prompt)]) for _ in range(count)]
        load = [draw.choice([0, draw.randint(0, 20), draw.randint(0, 200)]) for _ in range(count)]
        request = TraceRequest(0.0, prompt, 1)
        replicas = [Known(each, found) for each, found in zip(load, cached, strict=True)]
        assert PrefixAware(bound).choose(request, replicas) == choose(cached, load, prompt, bound)


def test_the_search_of_17_4_finds_the_smallest_fleet_of_a_real_simulation():
    trace, asked = BUSY.trace().head(120), []

    def ask(replicas):
        asked.append(replicas)
        found = simulate(trace, PAIRS(replicas=replicas)).answers().ttft
        return {"p50": found.p50, "p99": found.p99}

    bound = 2.5
    mine = fewest_replicas(ask, bound, 16)
    assert len(asked) <= 10
    assert mine == fewest(trace, PAIRS, Target(p99_ttft=bound), most=16).replicas
    slow = [n for n in range(1, mine + 1) if simulate(trace, PAIRS(replicas=n)).answers().ttft.p99 > bound]
    assert slow == list(range(1, mine))


# The queue with a formula ----------------------------------------------------------------------------------


def test_first_in_first_out_finds_less_with_more():
    requests = [[block] for block in (1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5)]
    three, four = hits_by_age(requests, [3, 4])
    assert four < three
    assert lru_hits(requests, [3, 4, 5]) == sorted(lru_hits(requests, [3, 4, 5]))


@pytest.mark.parametrize(("utilisation", "within"), [(0.5, 0.1), (0.8, 0.15), (0.9, 0.25)])
def test_one_at_a_time_is_the_queue_of_the_formula(utilisation, within):
    outcome, service = one_at_a_time(PAIRS(), utilisation)
    assert service == pytest.approx(PAIRS().step_time.seconds(prefill=[(0, ONE_PROMPT)]))
    assert np.allclose(outcome.ttft - outcome.queued, service)
    assert outcome.cached_tokens.sum() == 0
    assert outcome.queued.mean() == pytest.approx(md1_wait(utilisation, service), rel=within)
    assert outcome.answers().littles_law.error < 1e-6
    assert outcome.answers().ttft.p99 > 3 * outcome.queued.mean()


def test_the_formula_has_its_bend():
    waits = [md1_wait(busy, 1.0) for busy in (0.5, 0.8, 0.95)]
    assert waits == pytest.approx([0.5, 2.0, 9.5])


# The stories of the lesson ---------------------------------------------------------------------------------


def test_three_pairs_keep_two_seconds_with_the_prefix_and_not_otherwise():
    assert answers_of(3).ttft.p99 <= 2 < answers_of(2).ttft.p99
    for router in ("round-robin", "least-loaded"):
        other = answers_of(3, router)
        assert other.ttft.p99 > 2
        assert other.hit_rate < answers_of(3).hit_rate - 0.1


def test_two_seconds_are_lost_with_a_clock_that_is_slower_by_a_fifth():
    slower = PAIRS(replicas=3)
    assumed = slower.step_time.assumptions
    clock = slower.step_time.with_assumptions(replace(assumed, compute_efficiency=0.6 / 1.22))
    found = simulate(BUSY.trace(), replace(slower, step_time=clock)).answers()
    assert found.ttft.p99 > 2
    assert found.ttft.p99 / answers_of(3).ttft.p99 > 1.22


def test_memory_that_is_left_decides_and_a_second_tier_gives_no_room():
    large, small = answers_of(4), answers_of(4, gpu="H100 SXM 80GB")
    assert small.ttft.p99 > 20 * large.ttft.p99
    assert small.blocked > 0.5
    assert large.blocked < 0.01
    tiered = answers_of(4, gpu="H100 SXM 80GB", host_gib=64)
    assert tiered.hit_rate + tiered.host_hit_rate > small.hit_rate + 0.3
    assert tiered.ttft.p99 < 0.75 * small.ttft.p99
    assert tiered.blocked > 0.5


def test_without_a_bound_everybody_goes_to_the_one_replica_that_has_it():
    trace, found = hot_document(), {}
    for bound in (1.25, 1e9):
        outcome = simulate(trace, PAIRS(router=PrefixAware(bound), replicas=3))
        found[bound] = (np.bincount(outcome.replica, minlength=3), outcome.answers())
    assert found[1e9][0].tolist() == [len(trace), 0, 0]
    assert found[1.25][0].min() > len(trace) / 5
    assert found[1e9][1].hit_rate > found[1.25][1].hit_rate
    assert found[1e9][1].ttft.p99 > 2 * found[1.25][1].ttft.p99


def test_a_division_finds_too_many_without_the_cache_and_too_few_with_it():
    trace, clock = BUSY.trace(), PAIRS().step_time
    asked, able = trace.prompt_tokens / trace.duration, clock.prefill_rate(8192)
    [rate] = hit_rates(trace, [None])
    assert asked * (1 - rate) / able < 1
    assert asked / able > 4


def test_one_card_does_not_hold_the_model():
    with pytest.raises(MiniKVError):
        Fleet.plan("Llama-3.1-70B", "H200")


# What is drawn ---------------------------------------------------------------------------------------------


@lru_cache
def asked(bound: float = 1.25, replicas: int = 3):
    return simulate(hot_document(), PAIRS(router=PrefixAware(bound), replicas=replicas))


@pytest.mark.parametrize(("bound", "replicas"), [(1.25, 3), (1e9, 3), (1.25, 2)])
def test_the_picture_of_a_fleet_has_the_counts_of_its_outcome(bound, replicas):
    outcome = asked(bound, replicas)
    english, chinese = (fleet_requests(outcome, lang) for lang in ("en", "zh"))
    counts = np.bincount(outcome.replica, minlength=replicas)
    rows = [line.split() for line in english.text().splitlines()[-replicas:]]
    assert [int(row[1]) for row in rows] == counts.tolist()
    assert {f"{count:,}" for count in counts} <= set(said(english))
    assert said(english).count("no request came here") == (counts == 0).sum()
    assert [row[-1] == "0%" for row in rows] == (counts == 0).tolist()
    assert f"{outcome.answers().ttft.p99:.2f} s" in english.text()
    for say in (lambda one: one.text(), lambda one: one.alt, lambda one: " ".join(said(one))):
        assert sorted(NUMBERS.findall(say(english))) == sorted(NUMBERS.findall(say(chinese)))


def test_another_router_draws_another_fleet():
    drawn = {fleet_requests(asked(bound)).svg for bound in (1.25, 1e9)}
    assert len(drawn) == 2


def test_the_longest_queue_is_that_of_the_times():
    outcome = asked(1e9)
    waiting = [
        int(((outcome.arrival <= moment) & (moment < outcome.admitted)).sum()) for moment in outcome.arrival
    ]
    assert f"waiting: at most {max(waiting)}" in said(fleet_requests(outcome))


def test_a_table_has_a_row_for_each_fleet():
    table = answers_table({"bound": asked().answers(), "none": asked(1e9).answers()}).text().splitlines()
    assert len(table) == 3
    assert f"{asked(1e9).answers().ttft.p99:.2f}" in table[2].split()
