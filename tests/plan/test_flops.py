"""The FLOP formula against PyTorch's own counter, on small random models, to the last FLOP."""

import sys
from subprocess import run

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from minikv.errors import ArgumentError, ConfigError
from minikv.plan import CacheSpec, model_names
from minikv.plan.flops import (
    MLP_MATRICES,
    FlopCost,
    StepFlops,
    crossing_length,
    flop_cost,
    generation_flops,
    step_flops,
)
from tests.plan.small_models import SIZES, small_config

# How each class that has windows leaves them off.
NO_WINDOW = {
    "mistral": {"sliding_window": None},
    "phi3": {"sliding_window": None},
    **{name: {"use_sliding_window": False} for name in ("qwen2", "qwen3", "smollm3")},
}


def dense_config(model_type: str, **changes):
    """A small config of that class without windows."""
    return small_config(model_type, **NO_WINDOW.get(model_type, {}), **changes)


def eager_model(config):
    """A random model that computes attention as two matrix products, which the counter sees on every device."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


@torch.no_grad()
def counted(model, num_tokens: int, cached: bool) -> StepFlops:
    """One step in transformers, counted: batched products are attention, the others are weights."""
    ids = torch.arange(num_tokens)[None] % model.config.vocab_size
    past = None
    if cached and num_tokens > 1:
        past = model(ids[:, :-1], use_cache=True).past_key_values
    fed = ids[:, -1:] if cached else ids
    with FlopCounterMode(display=False) as counter:
        model(fed, past_key_values=past, use_cache=cached, logits_to_keep=1)
    counts, bmm = counter.get_flop_counts(), torch.ops.aten.bmm
    by_op = counts["Global"]
    # Older releases of transformers compute RoPE's angles with a batched product, which is no attention.
    rotary = sum(ops[bmm] for module, ops in counts.items() if module.endswith("rotary_emb"))
    lm_head = 2 * model.config.hidden_size * model.config.vocab_size
    return StepFlops(sum(by_op.values()) - by_op[bmm] - lm_head, by_op[bmm] - rotary, lm_head)


@pytest.mark.parametrize("model_type", sorted(MLP_MATRICES))
def test_every_class_equals_the_counter(model_type):
    config = dense_config(model_type)
    model = eager_model(config)
    for cached in (False, True):
        for num_tokens in (1, 2, 7, 16, 33):
            assert step_flops(config, num_tokens, cached) == counted(model, num_tokens, cached)


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("head_dim", [8, 14])
def test_grouped_heads_and_a_head_dim_of_its_own(kv_heads, head_dim):
    # Fewer KV heads make projections cheaper and leave attention as it is: every query head still meets every key.
    config = dense_config("llama", num_key_value_heads=kv_heads, head_dim=head_dim)
    assert step_flops(config, 11, True) == counted(eager_model(config), 11, True)
    assert (
        flop_cost(config).per_pair == SIZES["num_hidden_layers"] * SIZES["num_attention_heads"] * 4 * head_dim
    )


@pytest.mark.parametrize("inner", [None, 20])
def test_gpt2_leaves_its_mlp_to_the_hidden_size(inner):
    config = dense_config("gpt2", n_inner=inner)
    assert step_flops(config, 9, False) == counted(eager_model(config), 9, False)


@pytest.mark.parametrize("cached", [False, True])
def test_a_generation_is_the_sum_of_its_steps(cached):
    config = dense_config("llama")
    model = eager_model(config)
    prompt, new = 5, 4
    steps = [counted(model, prompt, cached=False)]
    steps += [counted(model, prompt + number, cached) for number in range(1, new)]
    assert generation_flops(config, prompt, new, cached) == sum(step.total for step in steps)
    assert generation_flops(config, prompt, 1, True) == generation_flops(config, prompt, 1, False)


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Qwen3-8B", "Llama-2-7B"])
def test_attention_overtakes_at_the_crossing_with_and_without_a_cache(name):
    crossing = crossing_length(name)
    for cached in (False, True):
        before, there = step_flops(name, crossing - 1, cached), step_flops(name, crossing, cached)
        assert before.attention <= before.projections
        assert there.attention > there.projections


def test_the_cost_per_token_is_two_flops_a_weight():
    # Llama-3.1-8B has 8,030,261,248 parameters; embedding and lm_head hold 128,256 x 4,096 each, the norms 65 x 4,096.
    cost = flop_cost("Llama-3.1-8B")
    in_matrices = 8_030_261_248 - 2 * 128_256 * 4_096 - 65 * 4_096
    assert cost == FlopCost(2 * in_matrices, 4 * 32 * 32 * 128, 2 * 128_256 * 4_096)


def test_without_the_lm_head_a_cache_divides_a_step_by_its_length():
    for num_tokens in (1, 2, 1000, 131_072):
        without, cached = (step_flops("Llama-3.1-8B", num_tokens, flag) for flag in (False, True))
        assert without.total - without.lm_head == num_tokens * (cached.total - cached.lm_head)


def test_what_is_not_counted_is_refused():
    for name in model_names():
        if name != "Whisper-large-v3" and any(
            layer.kind != "full" for layer in CacheSpec.from_config(name).layers
        ):
            with pytest.raises(ConfigError, match="dense decoders"):
                flop_cost(name)
    with pytest.raises(ConfigError):
        flop_cost("Whisper-large-v3")
    with pytest.raises(ConfigError, match="dense decoders") as caught:
        flop_cost("Mixtral-8x7B")
    assert caught.value.code == "flops_unknown"
    with pytest.raises(ArgumentError):
        step_flops("Llama-3.1-8B", 0, True)
    with pytest.raises(ArgumentError):
        generation_flops("Llama-3.1-8B", 5, 0, True)


def test_nothing_here_imports_torch():
    code = "import sys, minikv.plan.flops; sys.exit('torch' in sys.modules)"
    assert run([sys.executable, "-c", code]).returncode == 0
