"""serve: every request is answered once, within the budget, in the same seconds every time."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from minikv.course.capstone import Plan, serve
from minikv.course.capstone.clock import work_of
from minikv.engine import EventLog, EvictionConfig
from minikv.engine.core.step import Scheduled
from minikv.errors import ArgumentError, DoesNotFitError, MiniKVError, RequestTooLargeError
from minikv.plan.step_work import step_cost
from tests.course.capstone_world import MODELS, random_plan, small_task

STREAMING = EvictionConfig("streaming", n_sink=1, budget=0, n_recent=3, evict_every=1, prefill_chunk=4)


@pytest.mark.parametrize("model", MODELS)
def test_every_request_is_answered_once(model):
    """Whatever the plan, the same tokens are made, within the budget, and none before its request is there."""
    task, random, served = small_task(2, model), np.random.default_rng(3), 0
    while served < 3:
        log, plan = EventLog(), random_plan(random)
        try:
            run = serve(task, plan, emit=log)
        except MiniKVError:  # the budget has no room for it, or the policy is not for this model
            continue
        served += 1
        assert sorted(event.request for event in log.of("finish")) == list(range(len(task.requests)))
        made = [len(output.token_ids) for output in run.outputs]
        assert made == [request.max_tokens for request in task.requests]
        prompts = [output.prompt_token_ids for output in run.outputs]
        assert prompts == [request.tokens for request in task.requests]
        assert run.held_bytes <= task.kv_bytes
        assert run.num_blocks == plan.num_blocks_for(task)
        assert all(seconds > 0 for seconds in run.ttft)
        assert max(run.finish) == pytest.approx(run.seconds)
        firsts = zip(run.finish, task.requests, run.ttft, strict=True)
        assert all(end >= request.arrival_s + ttft - 1e-12 for end, request, ttft in firsts)
        # No second counts twice, and none is lost.
        assert all(step.ends <= later.began for step, later in zip(run.timed, run.timed[1:], strict=False))
        assert sum(run.where.values()) == pytest.approx(run.seconds)
        assert run.metrics.steps == run.steps
        assert run.computed_tokens == sum(step.tokens for step in run.timed)


def test_a_plan_has_the_same_score_every_time():
    task = small_task(4, kv_bytes=80_000)
    for plan in (Plan(), Plan(block_size=4, prompt_lookup=3), Plan(eviction=STREAMING, max_num_seqs=4)):
        runs = [serve(task, plan) for _ in range(2)]
        assert runs[0].seconds == runs[1].seconds
        assert runs[0].score == runs[1].score
        assert runs[0].timed == runs[1].timed
        assert [out.token_ids for out in runs[0].outputs] == [out.token_ids for out in runs[1].outputs]


def test_the_bar_decides():
    """A cache that forgets almost everything is no slower to score: it has no score."""
    task = small_task(6, requests=10)
    task = replace(
        task, requests=tuple(replace(each, temperature=0.0) for each in task.requests), quality=0.9
    )
    kept, lost = serve(task, Plan(max_num_seqs=4)), serve(task, Plan(max_num_seqs=4, eviction=STREAMING))
    assert kept.quality >= 0.9 > lost.quality
    assert (kept.passed, lost.passed) == (True, False)
    assert 0 < kept.score < 100
    assert lost.score == 0
    assert kept.score == 100 * kept.floor_seconds / kept.seconds
    lenient = serve(replace(task, quality=lost.quality), Plan(max_num_seqs=4, eviction=STREAMING))
    assert lenient.passed
    assert lenient.score > 0
    for lang in ("en", "zh"):
        assert f"{kept.score:.1f}" in kept.text(lang)
        assert f"{lost.right}" in lost.text(lang)
        assert f"{lost.seconds:.4f}" in lost.text(lang)


def test_less_memory_takes_longer_and_preempts():
    wide, tight = small_task(8, requests=12, gap=0.0), small_task(8, requests=12, gap=0.0, kv_bytes=70_000)
    runs = [serve(task, Plan(block_size=4, max_num_seqs=12)) for task in (wide, tight)]
    assert runs[0].seconds < runs[1].seconds
    assert runs[0].preemptions == 0
    answers = [[out.token_ids[0] for out in run.outputs] for run in runs]
    assert answers[0] == answers[1], "waiting changes no answer"


def test_what_cannot_be_served_is_refused_before_anything_is_computed():
    task = small_task(0)
    for wrong in ((None, Plan()), (task, "fast")):
        with pytest.raises(ArgumentError):
            serve(*wrong)
    told = EventLog()
    with pytest.raises(RequestTooLargeError):
        serve(task, Plan(num_blocks=1, block_size=4), emit=told)
    with pytest.raises(DoesNotFitError):
        serve(task, Plan(num_blocks=10**6), emit=told)
    with pytest.raises(ArgumentError):
        serve(task, Plan(prompt_lookup=2, eviction=STREAMING), emit=told)
    assert told.events == []


def test_host_memory_costs_the_clock_its_transfers():
    task = small_task(8, requests=10, gap=0.0, kv_bytes=110_000)
    long = tuple(replace(each, max_tokens=12, temperature=0.0) for each in task.requests)
    plan, quick = Plan(block_size=4, max_num_seqs=12), replace(task.assumptions, host_gb_s=4000.0)
    task = replace(task, requests=long)
    computed = serve(task, plan)
    swapped = serve(replace(task, assumptions=quick), replace(plan, cpu_kv_bytes=10**6))
    assert computed.metrics.swaps == 0 < swapped.metrics.swaps
    assert computed.metrics.lost_tokens > 0 == swapped.metrics.lost_tokens
    assert computed.where["moved"] == 0 < swapped.where["moved"]
    assert [out.token_ids for out in swapped.outputs] == [out.token_ids for out in computed.outputs]


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "DeepSeek-V3", "gpt-oss-20b"])
def test_work_is_that_of_the_roofline(name):
    """Without drafts and evictions as ``StepCost.work`` counts it; an eviction takes from what is read."""
    cost, random = step_cost(name), np.random.default_rng(1)
    for _ in range(50):
        chunks = [sorted(random.choice(5000, 2, replace=False).tolist()) for _ in range(random.integers(3))]
        seen = random.integers(1, 5000, random.integers(0, 5)).tolist()
        items = [item(start, end) for start, end in chunks] + [item(n - 1, n, decode=True) for n in seen]
        assert work_of(cost, items, [0] * len(items)) == cost.work(chunks, seen)
    whole, part = (work_of(cost, [item(4000, 4001, decode=True)], [gone]) for gone in (0, 3500))
    assert part.cache_bytes < whole.cache_bytes
    assert part.weight_flops == whole.weight_flops
    guessed = work_of(cost, [item(4000, 4004, decode=True, drafts=3)], [0])
    assert (guessed.tokens, guessed.rows) == (4, 4)
    assert guessed.weight_bytes == cost.weight_bytes(4)


def item(start, end, decode=False, drafts=0):
    seq = SimpleNamespace(request=0, sample=0)
    return Scheduled(seq, start, tuple(range(end - start)), decode, (), drafts)
