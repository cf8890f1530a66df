"""Calibration finds the assumptions that steps were made with, and says how far it is off."""

import numpy as np
import pytest

from minikv.engine import EventLog
from minikv.errors import ArgumentError
from minikv.simulate import Assumptions, Fleet, Trace, TraceRequest, simulate
from minikv.simulate.calibrate import MeasuredStep, calibrate, measured_steps
from tests.simulate.fleets import clock

TRUE = Assumptions(compute_efficiency=0.45, bandwidth_efficiency=0.7, overhead_seconds=0.0035)


def works(seed, count=60):
    random, cost = np.random.default_rng(seed), clock().cost
    for _ in range(count):
        if random.random() < 0.5:
            yield cost.work(prefill=[(0, int(random.integers(500, 8000)))])
        else:
            yield cost.work(decode=random.integers(100, 20_000, size=random.integers(1, 100)).tolist())


def test_what_steps_were_made_with_is_found_again():
    true = clock(assumptions=TRUE)
    fitted = calibrate(clock(), [MeasuredStep(work, true.parts(work).total) for work in works(1)])
    found = fitted.step_time.assumptions
    assert found.compute_efficiency == pytest.approx(TRUE.compute_efficiency, rel=1e-6)
    assert found.bandwidth_efficiency == pytest.approx(TRUE.bandwidth_efficiency, rel=1e-6)
    assert found.overhead_seconds == pytest.approx(TRUE.overhead_seconds, rel=1e-6)
    assert fitted.worst < 1e-6 < fitted.before
    assert 0 < fitted.bound < fitted.count == 60


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_a_tenth_moves_it_little(seed):
    true, random = clock(assumptions=TRUE), np.random.default_rng(seed)
    steps = [
        MeasuredStep(work, true.parts(work).total * random.uniform(0.9, 1.1)) for work in works(seed, 300)
    ]
    fitted = calibrate(clock(), steps)
    found = fitted.step_time.assumptions
    assert found.compute_efficiency == pytest.approx(TRUE.compute_efficiency, rel=0.05)
    assert found.bandwidth_efficiency == pytest.approx(TRUE.bandwidth_efficiency, rel=0.05)
    assert fitted.error < 0.08


def test_it_is_never_better_than_the_roof():
    fast = [
        MeasuredStep(work, 0.5 * clock(assumptions=Assumptions(1, 1, 0)).parts(work).total)
        for work in works(2)
    ]
    found = calibrate(clock(), fast).step_time.assumptions
    assert (found.compute_efficiency, found.bandwidth_efficiency, found.overhead_seconds) == (1, 1, 0)


def test_of_decodes_alone_nothing_is_learned_about_compute():
    true, cost = clock(assumptions=TRUE), clock().cost
    steps = [
        MeasuredStep(work, true.parts(work).total)
        for work in (cost.work(decode=[n]) for n in (100, 9000, 90_000))
    ]
    fitted = calibrate(clock(), steps)
    assert fitted.bound == 0
    assert fitted.step_time.assumptions.compute_efficiency == Assumptions().compute_efficiency
    assert fitted.step_time.assumptions.overhead_seconds == pytest.approx(TRUE.overhead_seconds)


def test_the_events_of_a_run_say_enough():
    """One prompt at a time, then decodes together: the clock that made the events is found from them alone."""
    random, log = np.random.default_rng(3), EventLog()
    requests = [TraceRequest(float(5 * n), int(random.integers(900, 9000)), 40) for n in range(12)]
    requests += [TraceRequest(100.0, int(random.integers(900, 9000)), 60) for _ in range(20)]
    true = clock(assumptions=TRUE)
    fleet = Fleet(true, 20_000, 16)
    simulate(Trace("run", tuple(requests)), fleet, emit=lambda number, event: log(event))
    steps = measured_steps(log.events, true.cost)
    assert len(steps) > 300
    for step in steps:
        assert true.parts(step.work).total == pytest.approx(step.seconds, rel=1e-9)
    found = calibrate(clock(), steps).step_time.assumptions
    assert found.overhead_seconds == pytest.approx(TRUE.overhead_seconds, rel=1e-3)
    assert found.compute_efficiency == pytest.approx(TRUE.compute_efficiency, rel=1e-3)


def test_too_few_steps_and_windows_are_refused():
    with pytest.raises(ArgumentError) as error:
        calibrate(clock(), [])
    assert error.value.code == "calibrate_few"
    with pytest.raises(ArgumentError) as error:
        measured_steps([], clock("gemma-3-27b-it").cost)
    assert error.value.code == "calibrate_windows"
