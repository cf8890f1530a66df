"""Synthetic load: the seed decides it; it has the rate, bursts, lengths and sharing that were asked for."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from minikv.errors import ArgumentError
from minikv.simulate.hit_rate import hit_rate
from minikv.simulate.load import Load

PLAIN = Load(num_requests=4000, rate=20.0, seed=5)
TALK = Load(
    num_requests=3000, rate=5.0, turns=4.0, think_seconds=20.0, system_tokens=1024, system_prompts=3, seed=2
)


def gaps(trace):
    return np.diff([request.arrival for request in trace.requests])


def test_the_seed_decides_the_load():
    for load in (PLAIN, TALK):
        assert load.trace() == load.trace()
        assert load.trace() != replace(load, seed=99).trace()


@pytest.mark.parametrize("burst", [0.0, 0.5, 1.0, 3.0])
def test_arrivals_have_the_rate_and_the_bursts(burst):
    found = gaps(replace(PLAIN, burst=burst).trace())
    assert found.min() >= 0
    assert found.mean() == pytest.approx(1 / 20, rel=0.03 + 0.05 * burst)
    assert found.std() / found.mean() == pytest.approx(burst, rel=0.1, abs=1e-9)


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0])
def test_lengths_have_the_mean_and_the_spread(spread):
    trace = replace(PLAIN, prompt_tokens=300, output_tokens=50, spread=spread).trace()
    for mean, lengths in (
        (300, [request.prompt_tokens for request in trace.requests]),
        (50, [request.output_tokens for request in trace.requests]),
    ):
        assert np.mean(lengths) == pytest.approx(mean, rel=0.06)
        assert np.std(lengths) / np.mean(lengths) == pytest.approx(spread, rel=0.12, abs=0.01)
        assert min(lengths) >= 1


def test_without_turns_and_system_prompts_nobody_shares():
    assert hit_rate(PLAIN.trace()) == 0


def test_the_rate_holds_from_the_first_request_on():
    """Sessions are in all of their turns when the trace begins: its halves are alike, and its end."""
    counts = []
    for seed in range(8):
        at = np.array([request.arrival for request in replace(TALK, seed=seed).trace().requests])
        counts.append([(at < at[-1] / 2).sum(), at[-1], (at > 0.9 * at[-1]).sum()])
    half, seconds, last = np.mean(counts, axis=0)
    assert half == pytest.approx(1500, rel=0.05)
    assert last == pytest.approx(300, rel=0.05), "sessions go on to begin until the end"
    assert 3000 / seconds == pytest.approx(5, rel=0.08)


def test_a_turn_s_prompt_goes_on_from_the_one_before():
    """Every prompt is one of three system prompts, then a session's own blocks; those of its turns are nested."""
    trace = TALK.trace()
    systems = {request.hash_ids[:2] for request in trace.requests}
    assert systems == {(0, 1), (2, 3), (4, 5)}
    sessions = {}
    for request in trace.requests:
        full = request.hash_ids[: request.prompt_tokens // 512]
        if len(full) > 2:
            sessions.setdefault(full[2], []).append((request, full))
    several = [turns for turns in sessions.values() if len(turns) > 1]
    assert len(several) > 100
    for turns in several:
        for (before, first), (after, second) in pairwise(turns):
            assert second[: len(first)] == first
            assert after.prompt_tokens > before.prompt_tokens + before.output_tokens
            assert after.arrival >= before.arrival


def test_a_partly_filled_block_is_another_one_than_when_it_is_full():
    trace = TALK.trace()
    full = {each for request in trace.requests for each in request.hash_ids[: request.prompt_tokens // 512]}
    partial = [request.hash_ids[-1] for request in trace.requests if request.prompt_tokens % 512]
    assert len(set(partial)) == len(partial)
    assert not full & set(partial)


def test_the_first_system_prompt_is_the_most_frequent():
    trace = replace(TALK, turns=1.0, num_requests=6000).trace()
    counts = np.bincount([request.hash_ids[0] // 2 for request in trace.requests])
    assert counts / 6000 == pytest.approx(np.array([6, 3, 2]) / 11, abs=0.03)


def test_the_mean_number_of_turns_is_what_was_asked_for():
    trace = replace(TALK, num_requests=6000).trace()
    firsts = sum(len(request.hash_ids) <= 2 or request.prompt_tokens < 0 for request in trace.requests)
    new = sum(request.prompt_tokens - 1024 for request in trace.requests) / 6000
    # Turn k has k messages of 1,000 tokens and k - 1 answers of 200; a turn seen at random of a geometric law: mean 4.
    assert new == pytest.approx(4 * 1000 + 3 * 200, rel=0.1)
    assert firsts < 600


@pytest.mark.parametrize("most", [1026, 2000, 5000])
def test_no_request_is_longer_than_the_model_takes(most):
    trace = replace(TALK, max_model_len=most, num_requests=500).trace()
    lengths = [request.prompt_tokens + request.output_tokens for request in trace.requests]
    assert max(lengths) <= most
    assert min(request.output_tokens for request in trace.requests) >= 1


@pytest.mark.parametrize(
    "changes",
    [
        {"num_requests": 0}, {"num_requests": 2.0}, {"rate": 0}, {"rate": -1.0}, {"rate": math.inf}, {"rate": math.nan},
        {"rate": "5"}, {"burst": -0.1}, {"burst": math.inf}, {"prompt_tokens": 0}, {"output_tokens": 0.5},
        {"spread": -1}, {"spread": math.nan}, {"turns": 0.9}, {"think_seconds": -1}, {"system_tokens": -1},
        {"system_prompts": 0}, {"hash_block": 0}, {"seed": -1}, {"max_model_len": 1025}, {"max_model_len": 2**31},
        {"turns": True},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_load_is_refused(changes):
    with pytest.raises(ArgumentError) as caught:
        replace(TALK, **changes)
    assert next(iter(changes)) in str(caught.value)


@pytest.mark.parametrize("changes", [{"num_requests": 10**12}, {"think_seconds": 1e9}, {"rate": 1e9}])
def test_a_load_that_no_memory_holds_is_refused_before_it_is_made(changes):
    with pytest.raises(ArgumentError) as caught:
        replace(TALK, **changes).trace()
    assert caught.value.code == "load_too_large"
