"""Steps that are counted together are the steps that a scheduler would have made, to the last bit."""

import functools
import random
from dataclasses import replace

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


def windowed_case(seed):
    """The same with layers of several windows, some wider than a request is long, some shorter than a block."""
    draw = random.Random(seed)
    trace, fleet = case(seed)
    windows = draw.choice([(None,), (None, 7), (7,), (1, None), (40, 3), (None, 40, 9), (None, 16)])
    room = fleet.blocks[0]
    blocks = []
    for window in windows:
        least = min(room, 3 * ((window or 0) // fleet.block_size + 2))
        blocks.append(room if window is None else draw.choice([room, least]))
    sizes = tuple(draw.choice([1_000, 100_000]) for _ in windows)
    step_time = clock("gpt-oss-20b")
    fleet = replace(fleet, step_time=step_time, num_blocks=tuple(blocks), windows=windows, block_bytes=sizes)
    return trace, fleet


CASES = {"one pool": case, "windows": windowed_case}


@functools.cache
def outcome(kind, seed):
    return simulate(*CASES[kind](seed))


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("seed", usual_if(USUAL.__contains__, SEEDS))
def test_counting_steps_together_changes_nothing(seed, kind):
    assert same(outcome(kind, seed), simulate(*CASES[kind](seed), stepwise=True))


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize(
    ("seeds", "least"), usual_if(lambda of: of[0] is USUAL, [(USUAL, 1), (SEEDS, 3)]), ids=str
)
def test_the_cases_have_all_that_can_go_on(seeds, least, kind):
    answers = [outcome(kind, seed).answers() for seed in seeds]
    for what in ("preemptions", "swaps", "host_hit_rate", "blocked"):
        assert sum(getattr(each, what) > 0 for each in answers) >= least, what


WINDOWED = {"num_blocks": (160, 160), "windows": (None, 8), "block_bytes": (1, 1)}


@pytest.mark.parametrize("host_blocks", [0, 400])
@pytest.mark.parametrize("changes", [{"num_blocks": 160}, WINDOWED], ids=["one pool", "windows"])
def test_many_steps_are_counted_together(changes, host_blocks):
    """If none were, the test above would say nothing. The second request reuses blocks of the first."""
    fleet = replace(small_fleet(), host_blocks=host_blocks, **changes)
    replica, trace = fleet.replica(), poisson(1, 2, 1e-6, output=500)
    made = []
    schedule = replica.scheduler.schedule
    replica.scheduler.schedule = lambda: made.append(1) or schedule()
    for index in range(2):
        arrival = Arrival(trace, index, 4)
        replica.advance(arrival.time)
        replica.enqueue(arrival)
    replica.advance()
    assert replica.totals.steps == 1000
    assert len(made) <= 12
    assert (replica.totals.host_seconds > 0) == bool(host_blocks)


def test_listening_changes_nothing():
    trace, fleet = sessions(7), small_fleet(60, replicas=2)
    assert same(simulate(trace, fleet), simulate(trace, fleet, emit=lambda number, event: None))


def test_an_idle_scheduler_has_no_steps():
    replica = small_fleet().replica()
    assert steps_alike(replica.scheduler, {}, clock(assumptions=IDEAL), replica.totals, 0.0, (1,)) is None
    assert not replica.step()
