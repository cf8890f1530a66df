"""What queueing theory says of a simulation."""

import numpy as np
import pytest

from minikv.simulate import hit_rate, simulate
from tests.simulate.fleets import clock, poisson, sessions, small_fleet

PROMPT = 8


def one_at_a_time():
    return small_fleet(100, max_num_seqs=1)


@pytest.mark.parametrize(("utilisation", "count"), [(0.4, 6000), (0.8, 12_000)])
def test_one_server_with_equal_jobs_waits_as_pollaczek_and_khinchine_say(utilisation, count):
    """M/D/1: the mean time in the queue is rho D / (2 (1 - rho))."""
    service = clock().seconds(prefill=[(0, PROMPT)])
    trace = poisson(11, count, utilisation / service, PROMPT)
    outcome = simulate(trace, one_at_a_time())
    due = utilisation * service / (2 * (1 - utilisation))
    batches = outcome.queued[2000:].reshape(20, -1).mean(axis=1)  # of hundreds: nearly independent
    error = batches.std(ddof=1) / np.sqrt(len(batches))
    assert abs(batches.mean() - due) < 4 * error
    assert error < 0.15 * due, "the test would accept anything"
    assert outcome.e2e == pytest.approx(outcome.queued + service)
    assert outcome.answers().utilisation == pytest.approx(utilisation, rel=0.03)


def test_one_server_serves_in_order_and_never_rests_while_somebody_waits():
    """Lindley's recursion: a job begins when it has arrived and the one before it is done."""
    service = clock().seconds(prefill=[(0, PROMPT)])
    outcome = simulate(poisson(12, 2000, 0.9 / service, PROMPT), one_at_a_time())
    done = 0.0
    for arrival, finish in zip(outcome.arrival.tolist(), outcome.finish.tolist(), strict=True):
        done = max(done, arrival) + service
        assert finish == pytest.approx(done, rel=1e-12)


@pytest.mark.parametrize(("seed", "num_blocks", "replicas"), [(1, 30, 1), (2, 30, 3), (3, 400, 2)])
def test_littles_law(seed, num_blocks, replicas):
    """The requests in the system, counted along the clock, are rate times time, counted request by request."""
    outcome = simulate(sessions(seed, count=150), small_fleet(num_blocks, replicas=replicas))
    law = outcome.answers().littles_law
    assert law.in_system > 0
    assert law.error < 1e-9
    assert law.time == pytest.approx(outcome.e2e.mean())


@pytest.mark.parametrize("seed", range(4))
def test_more_blocks_never_find_less(seed):
    """One request at a time, so that what is looked up does not depend on the clock: LRU has the stack property."""
    trace = sessions(seed, rate=0.01, count=120)
    rates = [simulate(trace, small_fleet(count)).answers().hit_rate for count in (25, 30, 40, 60, 100, 1000)]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


def test_more_replicas_never_wait_longer_in_the_mean():
    trace = poisson(13, 400, 400.0, output=20)
    means = [float(simulate(trace, small_fleet(replicas=count)).ttft.mean()) for count in (1, 2, 4, 8)]
    assert means == sorted(means, reverse=True)


def test_ttft_holds_the_time_in_the_queue():
    outcome = simulate(poisson(14, 300, 5000.0, output=4), small_fleet())
    assert outcome.queued.max() > 0
    assert (outcome.ttft > outcome.queued).all()
    answers = outcome.answers()
    assert answers.ttft.p99 == np.percentile(outcome.ttft, 99)


@pytest.mark.parametrize("seed", range(3))
def test_a_roomy_cache_finds_what_the_trace_repeats(seed):
    """Asked one at a time, an engine with room for all finds what a search through the trace alone finds.

    In whole blocks: the search counts the part of a last block that is equal too, which an engine never shares.
    """
    trace = sessions(seed, rate=0.01, whole=True)
    assert simulate(trace, small_fleet(5000)).answers().hit_rate == pytest.approx(hit_rate(trace), rel=1e-12)
