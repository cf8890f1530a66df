"""A task and a plan: what is refused, what the budget holds, and the load of lesson 18."""

from dataclasses import replace

import numpy as np
import pytest

from minikv.course.capstone import Plan, TaskRequest, tiny_task
from minikv.engine import LLM, EvictionConfig
from minikv.errors import ArgumentError, DoesNotFitError, MiniKVError
from tests.course.capstone_world import MODELS, random_plan, small_task


@pytest.mark.parametrize("model", MODELS)
def test_the_load_of_the_lesson_follows_from_its_seed(model):
    task, again, other = tiny_task(0, model), tiny_task(0, model), tiny_task(1, model)
    assert task.requests == again.requests
    assert task.id == again.id != other.id
    assert task.requests != other.requests
    assert task.max_model_len <= task.model.config.max_position_embeddings
    # All that the lesson speaks of is in it.
    groups = [request.group for request in task.requests]
    assert len(set(groups)) < len(groups), "documents that several ask about"
    assert len({request.arrival_s for request in task.requests}) > 1
    outputs = [request.max_tokens for request in task.requests]
    assert min(outputs) == 1 < max(outputs)
    assert all(request.answer_id is not None for request in task.requests)
    prompts = sum(len(request.tokens) for request in task.requests)
    assert task.spec().max_tokens(task.kv_bytes) < prompts / 5, "far from all fit at once"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_task_says_all_its_numbers(lang):
    task = tiny_task()
    said = task.explain(lang)
    prompts = sum(len(request.tokens) for request in task.requests)
    for number in (len(task.requests), task.kv_bytes, task.max_model_len, task.asked, prompts):
        assert f"{number:,}" in said
    assert f"{task.quality:.0%}" in said
    assert "{" not in said


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"kv_bytes": 0}, "bad_count"),
        ({"kv_bytes": 2.5}, "bad_count"),
        ({"quality": 1.1}, "out_of_range"),
        ({"quality": True}, "out_of_range"),
        ({"requests": ()}, "bad_count"),
        ({"seed": -1}, "bad_count"),
        ({"requests": (TaskRequest(-1.0, (1,), 1),)}, "capstone_arrival"),
        ({"requests": (TaskRequest(float("inf"), (1,), 1),)}, "capstone_arrival"),
        ({"requests": (TaskRequest(2.0, (1,), 1), TaskRequest(1.0, (1,), 1))}, "capstone_arrival"),
        ({"requests": (TaskRequest(0.0, (), 1),)}, "bad_count"),
        ({"requests": (TaskRequest(0.0, (1,), 0),)}, "bad_count"),
        ({"requests": (TaskRequest(0.0, (1,), 1, (5, 6)),)}, "capstone_answer"),
    ],
)
def test_a_task_that_cannot_be(change, code):
    with pytest.raises(ArgumentError) as refused:
        replace(small_task(0), **change)
    assert refused.value.code == code


@pytest.mark.parametrize("seed", [-1, 2**32 // 1000, 1.0])
def test_a_seed_whose_documents_may_have_been_seen_in_training(seed):
    with pytest.raises(ArgumentError):
        tiny_task(seed)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"block_size": 0}, "bad_count"),
        ({"max_num_seqs": 1.5}, "bad_count"),
        ({"max_batched_tokens": -1}, "bad_count"),
        ({"num_blocks": 0}, "bad_count"),
        ({"cpu_kv_bytes": 0}, "bad_count"),
        ({"prompt_lookup": -1}, "bad_count"),
        ({"prompt_lookup": 9}, "capstone_drafts"),
        ({"kv_dtype": "int3"}, "unknown_choice"),
        ({"eviction": "h2o"}, "eviction_params"),
        ({"label": 5}, "capstone_label"),
        ({"label": "two\nlines"}, "capstone_label"),
    ],
)
def test_a_plan_that_cannot_be(given, code):
    with pytest.raises(ArgumentError) as refused:
        Plan(**given)
    assert refused.value.code == code
    assert refused.value.text("zh") != refused.value.text("en")


def test_a_plan_says_what_it_sets():
    assert Plan(label="mine").settings == {}
    plan = Plan(block_size=8, eviction=EvictionConfig("keydiff", budget=48), label="mine")
    assert plan.settings == {"block_size": 8, "eviction": {"policy": "keydiff", "budget": 48}}


@pytest.mark.parametrize("model", MODELS)
def test_the_blocks_on_paper_are_those_that_an_engine_holds(model):
    """All of the budget but less than a block, to the byte, for dtypes with scales and with eviction's records."""
    task, random, held = small_task(0, model), np.random.default_rng(7), 0
    while held < 8:
        plan = random_plan(random)
        if plan.max_batched_tokens < plan.max_num_seqs:
            continue
        try:
            count = plan.num_blocks_for(task)
            with LLM(
                task.model,
                num_blocks=count,
                block_size=plan.block_size,
                kv_dtype=plan.kv_dtype,
                max_num_seqs=plan.max_num_seqs,
                max_batched_tokens=plan.max_batched_tokens,
                max_model_len=task.max_model_len,
                eviction=plan.eviction,
            ) as llm:
                report = llm.memory_report()
        except MiniKVError:
            continue
        held += 1
        assert report.record_bytes == plan.record_bytes(task)
        assert report.kv_bytes == count * plan.block_bytes(task)
        assert 0 <= task.kv_bytes - report.kv_bytes - report.record_bytes < plan.block_bytes(task)


def test_more_than_the_budget_is_refused_with_its_numbers():
    task = small_task(0)
    fits = Plan().num_blocks_for(task)
    assert Plan(num_blocks=fits).num_blocks_for(task) == fits
    assert Plan(num_blocks=fits - 1).num_blocks_for(task) == fits - 1
    with pytest.raises(DoesNotFitError) as refused:
        Plan(num_blocks=fits + 1).num_blocks_for(task)
    values = refused.value.values
    assert (refused.value.code, values["blocks"], values["fits"]) == ("capstone_budget", fits + 1, fits)
    assert f"{task.kv_bytes:,}" in refused.value.text("zh")
    for plan in (
        Plan(block_size=1024),  # not one block
        Plan(eviction=EvictionConfig("h2o", budget=4096), max_num_seqs=512),  # the records alone are more
    ):
        with pytest.raises(DoesNotFitError) as refused:
            plan.num_blocks_for(task)
        assert refused.value.values["fits"] == 0
