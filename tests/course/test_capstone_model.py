"""model_task: the same capstone for any model, here small ones on a CPU."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from minikv.course.capstone import Plan, floor, model_task, serve
from minikv.engine import EvictionConfig
from minikv.errors import ArgumentError, DoesNotFitError, MiniKVError

SMALL = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LOAD = {"num_requests": 8, "prompt_tokens": 48, "max_tokens": 6}


def small_model(kind=LlamaForCausalLM, config=LlamaConfig, **fields):
    torch.manual_seed(0)
    return kind(config(**SMALL | fields)).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def task():
    return model_task(small_model(), scaled=True, **LOAD)


def test_a_full_cache_says_what_the_model_says(task):
    assert task.asked == sum(request.max_tokens for request in task.requests)
    run = serve(task, Plan(kv_dtype=None, max_num_seqs=4))
    assert run.quality == 1.0
    assert run.passed
    assert run.seconds >= floor(task).seconds
    lost = serve(
        task, Plan(max_num_seqs=4, eviction=EvictionConfig("streaming", n_sink=0, budget=0, n_recent=2))
    )
    assert lost.quality < 1.0
    assert lost.score == 0


def test_the_reference_is_the_models_own_greedy_text(task):
    for request in task.requests[:3]:
        ids = torch.tensor([request.tokens])
        due = task.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=request.max_tokens,
            min_new_tokens=request.max_tokens,
            do_sample=False,
        )
        assert tuple(due[0, ids.shape[1] :].tolist()) == request.answer


def test_the_load_is_bursty_and_shares(task):
    again = model_task(task.model, scaled=True, **LOAD)
    assert again.requests == task.requests
    assert again.id == task.id
    other = model_task(task.model, scaled=True, seed=1, **LOAD)
    assert other.requests != task.requests
    first, second = task.requests[:2]
    assert first.tokens[:24] == second.tokens[:24]
    assert len({request.arrival_s for request in task.requests}) == 4
    assert len({len(request.tokens) for request in task.requests}) > 2
    assert all(len(request.tokens) <= 48 for request in task.requests)


def test_layers_with_a_window_stay_within_the_budget():
    model = small_model(MistralForCausalLM, MistralConfig, sliding_window=16)
    task = model_task(model, scaled=True, **LOAD)
    run = serve(task, Plan(block_size=4, max_num_seqs=4, max_batched_tokens=64))
    assert run.held_bytes <= task.kv_bytes
    assert run.quality == 1.0
    assert run.seconds >= floor(task).seconds


def test_mla_and_given_prompts():
    prompts = [[5, 6, 7, 8], [5, 6, 7, 9, 10], [11]]
    task = model_task("tiny-mla", prompts=prompts, max_tokens=4, gpu="L4", dtype="fp32", device="cpu")
    assert [list(request.tokens) for request in task.requests] == prompts
    assert task.roof.bandwidth_gb_s == 300
    run = serve(task, Plan(block_size=4))
    assert run.passed
    assert run.seconds >= floor(task).seconds


def test_of_groups_it_speaks_only_where_it_knows_them(task):
    """Given prompts come without groups, however much they share: then "0 groups" would be wrong."""
    given = model_task(task.model, prompts=[[5, 6, 7, 8], [5, 6, 7, 9]], max_tokens=4, scaled=True)
    for lang, word, count in (("en", "group", "2 requests"), ("zh", "组", "2 个请求")):
        assert word in task.explain(lang)
        said = given.explain(lang)
        assert word not in said
        assert count in said
        assert "2 " in said.splitlines()[0]
        assert "5 " in said.splitlines()[1], "what they share is counted all the same: 3 + 1 + 1"


def test_the_clock_says_where_it_comes_from():
    model = small_model()
    said = {
        "an assumption": model_task(model, **LOAD),
        "of its data sheet": model_task(model, gpu="A100 SXM4 80GB", **LOAD),
        "made smaller": model_task(model, scaled=True, **LOAD),
    }
    for words, task in said.items():
        assert words in task.explain("en")
        assert "{" not in task.explain("zh")
    with pytest.raises(ArgumentError):
        model_task(model, gpu="L4", scaled=True, **LOAD)


@pytest.mark.parametrize(
    "given",
    [
        {"num_requests": 0},
        {"max_tokens": 0},
        {"prompt_tokens": 4},
        {"prompt_tokens": 256},
        {"quality": 2},
        {"seed": -1},
        {"prompts": []},
        {"prompts": [[]]},
        {"prompts": [[1] * 300]},
        {"gpu": "H300"},
        {"gpu": 5},
        {"kv_bytes": 0},
    ],
)
def test_what_cannot_be_is_refused(given):
    with pytest.raises(MiniKVError):
        model_task(small_model(), **LOAD | given)


def test_a_budget_without_a_block_is_refused(task):
    poor = model_task(task.model, scaled=True, kv_bytes=100, **LOAD)
    with pytest.raises(DoesNotFitError):
        serve(poor, Plan())
