"""Random workloads against one-at-a-time generation: arrivals, aborts, failures, forks, shared prefixes, tiny pools.

``MINIKV_LONG=n`` runs n times as many.
"""

import os
import random
from collections import Counter

import pytest

from minikv.engine import FinishReason, SamplingParams, summary
from minikv.engine.core.rules import peak_blocks
from minikv.errors import RequestTooLargeError
from tests.engine.drive import Engine

LONG = int(os.environ.get("MINIKV_LONG", "1"))
REQUESTS = 20
PROFILES = {
    # KV cache groups (blocks, window), block size, max_num_seqs, max_batched_tokens
    "roomy": ([(200, None)], 4, 16, 64),
    "tight": ([(14, None)], 4, 8, 24),
    "tiny chunks": ([(16, None)], 4, 4, 4),
    "block of one": ([(60, None)], 1, 8, 16),
    "large blocks": ([(7, None)], 8, 8, 32),
    "two groups": ([(16, None), (12, 7)], 4, 8, 24),
    "windows only": ([(9, 6)], 4, 8, 16),
    "two windows": ([(14, 5), (20, 9)], 3, 8, 16),
}


def workload(draw, count):
    """(steps to wait before it, prompt, params, salt) of each request; a third shares a prefix with another."""
    stems = [[draw.randrange(50) for _ in range(20)] for _ in range(3)]
    for _ in range(count):
        stem = draw.choice(stems)[: draw.randrange(21)] if draw.random() < 0.6 else []
        prompt = stem + [draw.randrange(50) for _ in range(draw.choice([1, 2, 5, 12]))]
        params = SamplingParams(
            max_tokens=draw.choice([1, 2, 6, 15]),
            stop_token_ids=draw.sample(range(50), draw.choice([0, 0, 3])),
            n=draw.choice([1, 1, 1, 2, 4]),
            seed=draw.choice([None, 7]),
        )
        yield draw.choice([0, 0, 0, 1, 3]), prompt, params, draw.choice(["", "", "tenant b"])


def run(profile, seed, failing=False, between=None, **host):
    groups, size, seqs, budget = PROFILES[profile]
    draw = random.Random(f"{profile} {seed}")
    engine = Engine(groups, size, max_num_seqs=seqs, max_batched_tokens=budget, **host)
    points = ["copy", "store", "forward", "sample", *(["transfer"] if "rates" in host else [])]

    def abort():
        engine.scheduler.abort(draw.choice(list(engine.requests)))

    def step():
        fail_at = draw.choice(points) if failing and draw.random() < 0.1 else None
        engine.step(fail_at, inside=abort if draw.random() < 0.05 else None)
        if draw.random() < 0.03:
            abort()
        if between is not None:
            between(engine)

    for number, (wait, prompt, params, salt) in enumerate(workload(draw, REQUESTS)):
        for _ in range(wait):
            if engine.scheduler.has_work:
                step()
        stored = len(prompt) + params.max_tokens - 1
        if all(peak_blocks(stored, window, size) <= blocks for blocks, window in groups):
            engine.add(number, prompt, params, salt)
        else:
            with pytest.raises(RequestTooLargeError):
                engine.add(number, prompt, params, salt)
    for _ in range(5000):
        if not engine.scheduler.has_work:
            break
        step()
    assert not engine.scheduler.has_work, "a livelock"
    engine.check_empty()
    assert len(engine.requests) >= REQUESTS - 5, "most were meant to fit"
    return engine


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("failing", [False, True])
def test_outputs_are_those_of_one_request_at_a_time(profile, failing):
    reasons, events = Counter(), Counter()
    for seed in range(5 * LONG):
        engine = run(profile, seed, failing)
        reasons += engine.check_outputs()
        events += Counter(event.kind for event in engine.log.events)
        assert summary(engine.log.events).steps == len(engine.steps)
    assert reasons[FinishReason.LENGTH]
    assert bool(reasons[FinishReason.ERROR]) == failing
    assert events["hit"]
    if profile in ("tight", "block of one", "large blocks", "two groups"):
        assert events["preempt"], "the pool was meant to be too small"


def test_a_seed_gives_the_same_steps_and_the_same_events():
    first, second = run("tight", 1, failing=True), run("tight", 1, failing=True)
    assert first.log.events == second.log.events
    assert [step.items for step in first.steps] == [step.items for step in second.steps]


@pytest.mark.parametrize("profile", PROFILES)
def test_what_the_events_say_adds_up(profile):
    engine = run(profile, 5)
    log, groups = engine.log, range(len(engine.manager.pools))
    for group in groups:
        total = engine.manager.pools[group].num_blocks
        assert all(0 < step.used[group] <= total == step.total[group] for step in log.of("step"))
        evicted = sum(event.blocks[group] for event in log.of("evict"))
        assert evicted == engine.manager.pools[group].stats().evictions
    for event in log.events:
        if event.kind in ("hit", "allocate", "evict", "free"):
            assert event.bytes == sum((100 + group) * event.blocks[group] for group in groups)
    computed = sum(step.prefill_tokens + step.decode_tokens for step in log.of("step"))
    assert computed == sum(step.num_tokens for step in engine.steps)
    ends = [event for kind in ("finish", "abort", "fail") for event in log.of(kind)]
    assert len(ends) == sum(len(request.sequences) for request in engine.requests.values()), "each ends once"
    assert sum(event.tokens for event in ends) == sum(
        seq.num_output for request in engine.requests.values() for seq in request.sequences
    )
    preemptions = sum(
        seq.num_preemptions for request in engine.requests.values() for seq in request.sequences
    )
    assert len(log.of("preempt")) == preemptions
