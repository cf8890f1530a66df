"""Steps that are counted together are the steps that a scheduler would have made, to the last bit."""

import functools
import random

import pytest

from minikv.simulate import IDEAL, simulate
from minikv.simulate.alike import steps_alike
from minikv.simulate.arrival import Arrival
from tests.longer import usual_if
from tests.simulate.fleets import clock, poisson, same, sessions, small_fleet

SEEDS = range(21)
USUAL = SEEDS[:8]


def case(seed):
    """(trace, fleet): pools from crowded to roomy, loads from idle to far too much."""
    draw = random.Random(seed)
    block_size, longest = draw.choice([1, 3, 4, 16]), draw.choice([5, 60, 300])
    room = int((80 + longest) * draw.choice([1, 1.5, 2, 6])) // block_size + 1
    fleet = small_fleet(
        room,
        block_size,
        replicas=draw.choice([1, 3]),
        router=draw.choice(["round-robin", "least-loaded", "prefix"]),
        host_blocks=draw.choice([0, room // 2, 4 * room]),
        max_num_seqs=draw.choice([2, 4, 16]),
        max_batched_tokens=draw.choice([16, 64, 1000]),
    )
    return sessions(seed, rate=draw.choice([2.0, 50.0, 500.0]), longest=longest), fleet


@functools.cache
def outcome(seed):
    return simulate(*case(seed))


@pytest.mark.parametrize("seed", usual_if(USUAL.__contains__, SEEDS))
def test_counting_steps_together_changes_nothing(seed):
    assert same(outcome(seed), simulate(*case(seed), stepwise=True))


@pytest.mark.parametrize(
    ("seeds", "least"), usual_if(lambda of: of[0] is USUAL, [(USUAL, 1), (SEEDS, 3)]), ids=str
)
def test_the_cases_have_all_that_can_go_on(seeds, least):
    answers = [outcome(seed).answers() for seed in seeds]
    for what in ("preemptions", "swaps", "host_hit_rate", "blocked"):
        assert sum(getattr(each, what) > 0 for each in answers) >= least, what


def test_many_steps_are_counted_together():
    """If none were, the test above would say nothing."""
    fleet = small_fleet()
    replica, trace = fleet.replica(), poisson(1, 1, 1.0, output=500)
    made = []
    schedule = replica.scheduler.schedule
    replica.scheduler.schedule = lambda: made.append(1) or schedule()
    replica.enqueue(Arrival(trace, 0, 4))
    replica.advance()
    assert replica.totals.steps == 500
    assert len(made) <= 4


def test_listening_changes_nothing():
    trace, fleet = sessions(7), small_fleet(60, replicas=2)
    assert same(simulate(trace, fleet), simulate(trace, fleet, emit=lambda number, event: None))


def test_an_idle_scheduler_has_no_steps():
    replica = small_fleet().replica()
    assert steps_alike(replica.scheduler, {}, clock(assumptions=IDEAL), replica.totals, 0.0) is None
    assert not replica.step()
