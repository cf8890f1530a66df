"""Many fleets under one trace: every combination once, the fewest replicas found as by trying all, what limits them."""

from dataclasses import replace
from functools import cache, partial
from importlib import import_module

import numpy as np
import pytest

from minikv.errors import ArgumentError, DoesNotFitError, RequestTooLargeError
from minikv.simulate import (
    IDEAL,
    Assumptions,
    Fleet,
    Load,
    Target,
    Trace,
    TraceRequest,
    bottleneck,
    fewest,
    simulate,
    sweep,
)
from minikv.simulate.floor import tpot_floor, ttft_floor

MAKE = partial(Fleet.plan, "Llama-3.1-8B", "H200", block_size=64)
BUSY = Load(
    num_requests=60, rate=60.0, prompt_tokens=3000, output_tokens=20, turns=3, think_seconds=1.0, seed=3
).trace()


@cache
def busy_answers(replicas):
    return simulate(BUSY, MAKE(replicas=replicas)).answers()


def test_every_combination_runs_once_with_its_own_answers():
    seen = []
    rows = sweep(BUSY, MAKE, watch=seen.append, replicas=[1, 2], router=["round-robin", "prefix"])
    settings = [{"replicas": n, "router": name} for n in (1, 2) for name in ("round-robin", "prefix")]
    assert [row.settings for row in rows] == seen == settings
    for row in rows:
        assert row.answers == simulate(BUSY, MAKE(**row.settings)).answers()
        assert row.answers.gpus == row.settings["replicas"]


def test_a_fleet_that_cannot_be_is_a_row_and_the_others_run():
    rows = sweep(BUSY, MAKE, utilization=[0.9, 0.1])
    assert (rows[0].refused, rows[1].answers) == (None, None)
    assert isinstance(rows[1].refused, DoesNotFitError)
    long = Trace("long", (*BUSY.requests, TraceRequest(1e6, 131_072, 2)))
    assert isinstance(sweep(long, MAKE, replicas=[1])[0].refused, RequestTooLargeError)


@pytest.mark.parametrize("values", [{}, {"replicas": []}, {"replicas": [1], "router": []}])
def test_a_sweep_over_nothing_is_refused(values):
    with pytest.raises(ArgumentError, match="values"):
        sweep(BUSY, MAKE, **values)


def test_more_combinations_than_anybody_waits_for_are_refused_before_the_first_runs():
    seen = []
    with pytest.raises(ArgumentError, match=r"10,100 runs.*101 replicas.*100 block_size"):
        sweep(BUSY, MAKE, watch=seen.append, replicas=range(1, 102), block_size=range(1, 101))
    assert seen == []


def test_the_fewest_replicas_are_those_that_trying_all_would_find():
    p99 = {n: busy_answers(n).ttft.p99 for n in range(1, 6)}
    for seconds in (p99[4], 0.99 * p99[2], 100.0):
        smallest = next(n for n in p99 if p99[n] <= seconds)
        found = fewest(BUSY, MAKE, Target(seconds))
        assert (found.replicas, found.gpus) == (smallest, smallest)
        assert found.answers.ttft.p99 == p99[smallest]
        assert found.steady == (p99[smallest + 1] <= seconds)
        if smallest > 1:
            assert found.one_less.ttft.p99 == p99[smallest - 1]
        else:
            assert found.one_less is None


@pytest.fixture
def fake(monkeypatch):
    """``fake({1: 9.0, ...})``: the p99 of TTFT by number of replicas, instead of simulations; what was run."""

    def make(p99_of):
        ran = []
        some = busy_answers(1)

        class Run:
            def __init__(self, replicas):
                ran.append(replicas)
                self.p99 = p99_of(replicas)

            def answers(self):
                return replace(some, ttft=replace(some.ttft, p99=self.p99), utilisation=0.9)

        monkeypatch.setattr(
            import_module("minikv.simulate.sweep"),
            "simulate",
            lambda trace, fleet, progress: Run(fleet.replicas),
        )
        return ran

    return make


@pytest.mark.parametrize("smallest", [1, 2, 3, 7, 8, 31, 100, 255, 256])
def test_few_numbers_are_tried(fake, smallest):
    ran = fake(lambda replicas: 1.0 if replicas >= smallest else 3.0)
    found = fewest(BUSY, MAKE, Target(2.0))
    assert found.replicas == smallest
    assert {smallest, smallest - 1} - {0} <= set(found.tried)
    assert len(ran) == len(set(ran)) <= 20
    assert found.steady


def test_a_promise_that_one_more_replica_breaks_is_not_steady(fake):
    fake(lambda replicas: 1.0 if replicas == 3 or replicas >= 5 else 3.0)
    found = fewest(BUSY, MAKE, Target(2.0))
    assert found.replicas in (3, 5)
    assert found.steady == (found.replicas == 5)
    assert found.tried[found.replicas - 1].ttft.p99 == 3.0


def test_a_promise_that_no_fleet_keeps_says_how_near_the_largest_comes(fake):
    ran = fake(lambda replicas: 3.0)
    with pytest.raises(ArgumentError) as caught:
        fewest(BUSY, MAKE, Target(2.0), most=20)
    assert (caught.value.code, caught.value.values["most"], caught.value.values["ttft"]) == (
        "sweep_never",
        20,
        3.0,
    )
    assert max(ran) == 20


def test_a_promise_that_a_request_alone_breaks_is_refused_before_anything_runs(fake):
    ran = fake(lambda replicas: 1.0)
    floor = float(np.percentile(ttft_floor(BUSY, MAKE()), 99))
    for target in (Target(p99_ttft=floor * 0.999), Target(p99_tpot=tpot_floor(MAKE()) * 0.999)):
        with pytest.raises(ArgumentError) as caught:
            fewest(BUSY, MAKE, target)
        assert caught.value.code == "sweep_floor"
    assert ran == []
    fake(lambda replicas: 0.0)
    assert fewest(BUSY, MAKE, Target(floor * 1.001)).replicas == 1


@pytest.mark.parametrize(("seed", "router"), list(enumerate(["round-robin", "least-loaded", "prefix"])))
def test_no_request_is_faster_than_the_floor(seed, router):
    trace = Load(
        num_requests=120,
        rate=20.0,
        prompt_tokens=2000,
        turns=4,
        think_seconds=2,
        system_tokens=600,
        seed=seed,
    ).trace()
    for assumptions in (Assumptions(), IDEAL):
        fleet = MAKE(replicas=3, router=router, assumptions=assumptions)
        outcome = simulate(trace, fleet)
        assert (outcome.ttft >= ttft_floor(trace, fleet) * (1 - 1e-9)).all()
        assert (outcome.tpot >= tpot_floor(fleet) * (1 - 1e-9)).all()


def test_a_request_alone_with_nothing_cached_is_at_the_floor():
    fleet = MAKE()
    trace = Trace("one", (TraceRequest(0.0, 5000, 3),))
    assert simulate(trace, fleet).ttft == pytest.approx(ttft_floor(trace, fleet))


@pytest.mark.parametrize(
    "values",
    [{}, {"p99_ttft": 0}, {"p99_ttft": -1.0}, {"p99_ttft": float("nan")}, {"p99_ttft": float("inf")},
     {"p99_tpot": 0.0}, {"p99_ttft": "2"}, {"p99_ttft": True}],
)  # fmt: skip
def test_what_is_no_target_is_refused(values):
    with pytest.raises(ArgumentError):
        Target(**values)


def test_both_limits_of_a_target_count():
    answers = busy_answers(1)
    ttft, tpot = answers.ttft.p99, answers.tpot.p99
    assert Target(ttft, tpot).met(answers)
    assert not Target(ttft * 0.99, tpot).met(answers)
    assert not Target(ttft, tpot * 0.99).met(answers)
    assert Target(p99_tpot=tpot).met(answers)
    assert not Target(p99_tpot=tpot * 0.99).met(answers)
    assert Target(p99_tpot=1e-9).met(replace(answers, tpot=None))


LONG_PROMPTS = Load(num_requests=40, rate=40.0, prompt_tokens=8000, output_tokens=1, spread=0).trace()
LONG_OUTPUTS = Load(num_requests=40, rate=40.0, prompt_tokens=4000, output_tokens=800, spread=0).trace()


@pytest.mark.parametrize(
    ("trace", "changes", "limit"),
    [
        (LONG_PROMPTS, {}, "compute"),
        (LONG_OUTPUTS, {}, "bandwidth"),
        (LONG_OUTPUTS, {"tp": 4, "assumptions": Assumptions(link_gb_s=1.0)}, "link"),
        (LONG_OUTPUTS, {"assumptions": Assumptions(overhead_seconds=0.1)}, "overhead"),
        (LONG_OUTPUTS, {"utilization": 0.145}, "blocks"),
    ],
)
def test_what_is_scarce_is_named(trace, changes, limit):
    answers = simulate(trace, MAKE(**changes)).answers()
    assert bottleneck(answers) == limit, (answers.limits, answers.blocked)
