"""The floor of a task: no plan beats it, and it counts what it says."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from minikv.course.capstone import MOST_DRAFTS, Plan, TaskRequest, floor, serve
from minikv.course.capstone.bound import fewest_steps, new_prompt_tokens
from minikv.errors import MiniKVError
from tests.course.capstone_world import MODELS, random_plan, small_task
from tests.longer import every_value


@pytest.mark.parametrize(("model", "seed"), every_value(list(MODELS), range(3)))
def test_no_random_plan_beats_the_floor(model, seed):
    task, random = small_task(seed, model, gap=(0.0, 0.03, 0.2)[seed]), np.random.default_rng(seed)
    least, served = floor(task), 0
    while served < 4:
        plan = random_plan(random)
        try:
            run = serve(task, plan)
        except MiniKVError:  # the budget has no room for it, or the policy is not for this model
            continue
        served += 1
        assert run.seconds >= least.seconds, plan
        assert run.computed_tokens >= sum(_bound_tokens(task)), plan
        assert run.floor_seconds == least.seconds


def _bound_tokens(task):
    """Tokens of prompts and of outputs that any plan has to compute."""
    outputs = sum(request.max_tokens - 1 for request in task.requests)
    return new_prompt_tokens(task.requests), outputs


@pytest.mark.parametrize("model", MODELS)
def test_a_plan_without_limits_comes_close(model):
    """The floor says something: one request alone, with the largest steps, takes at most a few times as long."""
    task = small_task(1, model, requests=1, kv_bytes=10**7)
    run = serve(task, Plan(prompt_lookup=MOST_DRAFTS, kv_dtype="fp8_e4m3"))
    assert floor(task).seconds <= run.seconds <= 4 * floor(task).seconds


def test_the_terms_add_up():
    task = small_task(3)
    least = floor(task)
    assert least.seconds == least.since + max(least.compute, least.bandwidth) + least.overhead
    assert least.overhead == pytest.approx(least.steps * task.assumptions.overhead_seconds)
    assert least.requests == sum(request.arrival_s >= least.since for request in task.requests)
    for lang in ("en", "zh"):
        said = least.text(lang)
        assert f"{least.seconds:.4f}" in said
        assert f"{least.tokens:,}" in said


def test_more_load_never_lowers_the_floor():
    task = small_task(5, requests=12)
    seconds = []
    for count in range(1, 13):
        part = replace(task, requests=task.requests[:count])
        seconds.append(floor(part).seconds)
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("drafts", [0, 1, 3, 8])
@pytest.mark.parametrize("tokens", [1, 2, 9, 10, 11, 64])
def test_fewest_steps_is_what_a_perfect_guesser_needs(tokens, drafts):
    made, steps = 1, 1
    while made < tokens:
        made, steps = made + 1 + drafts, steps + 1
    assert fewest_steps(tokens, drafts) == steps


def asked(*prompts, outputs=None):
    outputs = [1] * len(prompts) if outputs is None else outputs
    return [TaskRequest(0.0, tuple(prompt), tokens) for prompt, tokens in zip(prompts, outputs, strict=True)]


@pytest.mark.parametrize(
    ("requests", "place", "due"),
    [
        (asked([1, 2, 3]), 0, 3),
        (asked([1, 2, 3], [1, 2, 4]), 0, 4),  # the prefix once
        (asked([1, 2, 3], [1, 2, 3]), 0, 4),  # the last token always
        (asked([1, 2, 3], [1, 2]), 0, 3),  # the shorter one may go first
        (asked([1, 2, 3], [1, 2]), 1, 1),  # but not if the longer one was there before
        (asked([1, 2], [1, 2, 3, 4, 5]), 1, 3),
        (asked([1, 2], [1, 2, 3, 4, 5], outputs=[3, 1]), 0, 3),  # 3 and 4 may be what the first one generates
        (asked([1, 2], [1, 2, 3, 4], outputs=[9, 1]), 1, 1),
        (asked([1], [2]), 0, 2),
    ],
)
def test_tokens_that_somebody_has_to_compute(requests, place, due):
    assert new_prompt_tokens(requests, place) == due


def test_no_order_of_prompts_computes_fewer_tokens():
    """Against a cache that keeps everything, token by token, in every order of random prompts."""
    random = np.random.default_rng(0)
    for _ in range(40):
        prompts = [tuple(random.integers(0, 2, random.integers(1, 5)).tolist()) for _ in range(4)]
        least = new_prompt_tokens(asked(*prompts))
        counts = []
        for order in permutations(prompts):
            known, computed = set(), 0
            for prompt in order:
                for end in range(1, len(prompt) + 1):
                    computed += prompt[:end] not in known or end == len(prompt)
                    known.add(prompt[:end])
            counts.append(computed)
        assert least <= min(counts)
        assert least == min(counts), "with single tokens it can be reached"
