"""Routers: what they choose, and what a prefix-aware one is worth."""

from dataclasses import dataclass, field

import pytest

from minikv.errors import ArgumentError
from minikv.simulate import LeastLoaded, PrefixAware, RoundRobin, simulate
from minikv.simulate.arrival import Arrival
from minikv.simulate.router import find_router
from tests.simulate.fleets import sessions, small_fleet


@dataclass
class Stand:
    """A replica that has ``cached`` of every prompt."""

    load: int
    cached: int = 0
    asked: int = field(default=0)

    def cached_tokens(self, prompt):
        self.asked += 1
        return self.cached


@dataclass
class Asked:
    index: int = 0
    prompt_tokens: int = 100
    output_tokens: int = 1


def test_round_robin_goes_round():
    router = RoundRobin()
    assert [router.choose(Asked(), [Stand(0)] * 3) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_least_loaded_takes_the_first_of_the_idlest():
    assert LeastLoaded().choose(Asked(), [Stand(5), Stand(2), Stand(2)]) == 1


@pytest.mark.parametrize(
    ("stands", "due"),
    [
        ([(0, 0), (0, 0)], 0),  # nobody has any of it
        ([(9, 0), (3, 0)], 1),
        ([(0, 0), (50, 16)], 1),  # worth its 50 tokens of waiting
        ([(0, 16), (0, 32)], 1),
        ([(7, 32), (3, 32)], 1),  # of equals the idler
        ([(3, 32), (3, 32)], 0),
        ([(0, 0), (600, 96)], 0),  # 600 > 1.25 * 300 + 100
        ([(0, 0), (266, 96)], 1),  # 266 <= 1.25 * 133 + 100
        ([(0, 0), (268, 96)], 0),
    ],
)
def test_prefix_takes_the_longest_prefix_within_the_bound(stands, due):
    assert PrefixAware(1.25).choose(Asked(), [Stand(*each) for each in stands]) == due


def test_prefix_does_not_ask_who_is_beyond_the_bound():
    busy = Stand(10_000, 96)
    PrefixAware().choose(Asked(), [Stand(0), busy])
    assert busy.asked == 0


def test_what_a_router_is_told_is_what_the_manager_would_find():
    trace, fleet = sessions(1), small_fleet(60, host_blocks=40)
    replica = fleet.replica()
    found = 0
    for index in range(len(trace)):
        arrival = Arrival(trace, index, fleet.block_size)
        replica.advance(arrival.time)
        due = replica.manager.match(trace.prompt(index)).num_tokens
        assert replica.cached_tokens(arrival) == due
        found += due
        replica.enqueue(arrival)
    assert found


def test_prefix_finds_more_than_round_robin():
    trace = sessions(2, count=200)
    rates = {
        name: simulate(trace, small_fleet(200, replicas=4, router=name)).answers().hit_rate
        for name in ("round-robin", "prefix")
    }
    assert rates["prefix"] > 1.2 * rates["round-robin"]


def test_an_own_router_is_taken():
    class Last:
        def choose(self, prompt, replicas):
            return len(replicas) - 1

    outcome = simulate(sessions(3), small_fleet(200, replicas=3, router=Last()))
    assert set(outcome.replica.tolist()) == {2}


def test_bad_routers_are_refused():
    for wrong in ("fastest", None, 3):
        with pytest.raises(ArgumentError):
            find_router(wrong)
    for bound in (0.9, "2", True, float("nan")):
        with pytest.raises(ArgumentError):
            PrefixAware(bound)
