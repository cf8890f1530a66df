"""Random workloads through an LLM against one-at-a-time ``generate``: equal tokens, every block back.

``MINIKV_LONG=n`` runs n times as many.
"""

import os
import random

import pytest

from minikv.engine import EventLog, FinishReason, summary
from minikv.errors import RequestTooLargeError
from tests.engine.llm_world import check_between_steps, check_empty, greedy, make, reference
from tests.longer import every_value

LONG = int(os.environ.get("MINIKV_LONG", "1"))
REQUESTS = 17
MODELS = {
    "llama": {},
    "qwen3": {"num_hidden_layers": 4},  # layers 2 and 3 have a window
    "mistral": {},
    "deepseek_v3": {},
}
PROFILES = {
    "roomy": {"num_blocks": 200, "block_size": 4},
    "block of one": {"num_blocks": 60, "block_size": 1, "max_batched_tokens": 24},
    "tight": {"num_blocks": 14, "block_size": 4},
    "tiny chunks": {"num_blocks": 16, "block_size": 4, "max_num_seqs": 4, "max_batched_tokens": 5},
    "large blocks": {"num_blocks": 4, "block_size": 16},
    "linear": {"cache": "linear", "num_blocks": 3, "max_model_len": 64},
}
# A sequence of a model whose layers all have a window of 7 tokens never holds more blocks than that takes.
WINDOWED = {"block of one": 14, "tight": 6, "tiny chunks": 6, "large blocks": 3}
PREEMPT = ("block of one", "tight", "large blocks", "tiny chunks")


def workload(draw, prompts, count):
    """(steps to wait before it, prompt, params, salt) of each request."""
    for _ in range(count):
        params = greedy(
            draw.choice([1, 2, 6, 12, 12]),
            n=draw.choice([1, 1, 1, 2, 3]),
            stop_token_ids=draw.sample(range(97), draw.choice([0, 0, 4])),
            ignore_eos=draw.random() < 0.5,
        )
        yield draw.choice([0, 0, 0, 1, 3]), draw.choice(prompts), params, draw.choice(["", "", "tenant b"])


def pool_of(model_type, profile):
    options = PROFILES[profile]
    few = WINDOWED.get(profile) if model_type == "mistral" else None
    return options | ({"num_blocks": few} if few else {})


def drive(model, profile, seed, *, count=REQUESTS, **more):
    """A run of a workload of ``count`` requests: (its events, {name: params}, {name: output})."""
    draw, asked, outputs, aborted = random.Random(f"{profile} {seed}"), {}, {}, set()
    log = EventLog()
    options = pool_of(model.model.config.model_type, profile)
    with make(model.model, **{**options, "emit": log, **more}) as llm:

        def step():
            out = llm.step()
            check_between_steps(llm)
            outputs.update((each.request, each) for each in out.finished)
            if draw.random() < 0.04 and asked:
                aborted.add(name := draw.choice(list(asked)))
                assert llm.abort(name) == (name not in outputs)
                check_between_steps(llm)

        for number, (wait, prompt, params, salt) in enumerate(workload(draw, model.prompts, count)):
            for _ in range(wait):
                step()
            try:
                llm.add_request(prompt, params, request_id=number, salt=salt)
            except RequestTooLargeError:
                continue
            asked[number] = params
        for _ in range(3000):
            if not llm.has_work:
                break
            step()
        check_empty(llm)
        assert len(asked) >= count - 4, "most were meant to fit"
        assert outputs.keys() == asked.keys()
        for name, out in outputs.items():
            model.check(out, asked[name])
            reasons = {each.finish_reason for each in out.completions}
            assert FinishReason.ERROR not in reasons
            assert name in aborted or FinishReason.ABORT not in reasons
    return log, asked, outputs


def test_all_of_them_compare_at_least_300_requests():
    assert len(MODELS) * len(PROFILES) * (REQUESTS - 4) >= 300


@pytest.mark.parametrize(("model_type", "profile"), every_value(list(MODELS), list(PROFILES)))
def test_outputs_are_those_of_generate(model_type, profile, record_property):
    model = reference(model_type, **MODELS[model_type])
    ties, compared, preempted = model.ties, 0, 0
    for seed in range(LONG):
        log, asked, outputs = drive(model, profile, f"{model_type} {seed}")
        events = summary(log.events)
        told = sum(each.num_preemptions for out in outputs.values() for each in out.completions)
        assert events.preemptions == told
        assert events.finished + events.aborted == sum(params.n for params in asked.values())
        assert bool(log.of("hit")) or profile != "roomy"
        compared, preempted = compared + len(outputs), preempted + told
    assert preempted or profile not in PREEMPT, "the pool was meant to be too small"
    assert model.ties - ties <= compared // 20, "a tie is rare"
    for name, value in {"compared": compared, "ties": model.ties - ties, "preemptions": preempted}.items():
        record_property(name, value)


@pytest.mark.parametrize("profile", ["tight", "tiny chunks"])
def test_a_model_that_cannot_switch_its_attention_reads_copies(profile):
    """Bloom computes attention by itself, so it gets a gathered history of each sequence."""
    model = reference("bloom")
    with make(model.model) as llm:
        assert llm.adapter.reads == "gather"
    log, _, _ = drive(model, profile, 0)
    assert log.of("preempt")


def test_a_model_that_can_may_be_told_to_read_copies():
    drive(reference("llama"), "tight", 1, reads="gather")
