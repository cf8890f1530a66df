"""nano answers as the model's own ``generate()`` and as ``minikv.LLM`` do: equal greedy tokens, whatever runs beside.

Each workload has too few blocks, shared beginnings and prompts longer than a step, and every step is looked at
(``tests.nano.drive``). ``make test-all`` runs 38 of each model, ``MINIKV_LONG=n`` n times as many.
"""

import os
from collections import Counter
from functools import cache

import pytest

import minikv
from minikv import nano
from minikv.models import load
from tests.engine.llm_world import Reference, greedy, reference
from tests.longer import usual_if
from tests.nano.drive import REQUESTS, run

LONG = int(os.environ.get("MINIKV_LONG", "1"))
WORKLOADS = (range(8), range(8, 38))  # of each model
MODELS = {
    "llama": {},
    "qwen3": {"num_hidden_layers": 4},  # layers 2 and 3 have a window
    "mistral": {},  # all have one
    "phi3": {},
    "gpt2": {},  # learned positions, one KV head for each query head
    "gemma2": {},  # softcap, and a window in every other layer
}
TINY = ("tiny-gqa", "tiny-mla")


@cache
def tiny(name: str) -> Reference:
    return Reference(name, load(name).model)


@pytest.fixture(
    params=[
        "llama",
        *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS if name != "llama"),
        *TINY,
    ]
)
def case(request):
    """A model with its own attention again afterwards, since other tests ask it for ``generate()``."""
    name = request.param
    found = tiny(name) if name in TINY else reference(name, **MODELS[name])
    own = found.model.config._attn_implementation
    yield found
    found.model.set_attn_implementation(own)


def test_all_of_them_are_at_least_300_workloads():
    assert sum(map(len, WORKLOADS)) * len([*MODELS, *TINY]) >= 300


@pytest.mark.parametrize("seeds", usual_if(lambda seeds: seeds[0] == 0, WORKLOADS), ids=str)
def test_random_workloads_give_what_generate_gives(case, seeds, record_property):
    seen, ties, count = Counter(), case.ties, len(seeds) * LONG
    for number in range(count):
        found = run(case.model, case.prompts, seeds[number % len(seeds)] + 1000 * (number // len(seeds)))
        for prompt, params, output in found.answers:
            due, _ = case.answer(prompt, params.max_tokens)
            assert output.token_ids == due or case._tied(prompt, output.token_ids, due)
            assert output.finish_reason == "length"
        seen["requests"] += len(found.answers)
        seen["preempted"] += found.preemptions > 0
        seen["hit"] += found.hits > 0
        seen["chunked"] += found.chunks > 0
        seen["mixed"] += found.mixed_steps > 0
    for name, value in seen.items():
        record_property(name, value)
    assert seen["requests"] == count * REQUESTS
    assert min(seen["hit"], seen["chunked"], seen["mixed"]) >= 0.9 * count - 1, seen
    assert seen["preempted"] >= 0.5 * count, seen
    assert case.ties - ties <= seen["requests"] // 50, "a tie is rare"


@pytest.mark.parametrize("name", TINY)
def test_minikv_llm_says_the_same_under_pressure(name):
    model = load(name)
    words = "ada paris the old cat sleeps ben oslo a red door waits ? ".split()
    prompts = [" ".join(words[i % 7 :] + words[: i % 5]) for i in range(24)]
    with minikv.LLM(model.model, tokenizer=model.tokenizer, num_blocks=20, block_size=4) as llm:
        theirs = [each.token_ids for each in llm.generate(prompts, greedy(20), progress=False)]
    engine = nano.LLM(model.model, model.tokenizer, num_blocks=20, block_size=4)
    outputs = engine.generate(prompts, nano.SamplingParams(20, temperature=0))
    assert [tuple(each.token_ids) for each in outputs] == [tuple(each) for each in theirs]
    assert engine.scheduler.num_preemptions
