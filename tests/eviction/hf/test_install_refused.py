"""install_kv_eviction refuses what cannot be right, by name, and before anything has changed."""

import inspect

import pytest
import torch
from transformers import DynamicCache, StaticCache

from minikv.engine import EvictionConfig
from minikv.errors import ArgumentError
from minikv.eviction import H2O, PagedEviction, install_kv_eviction, trace_eviction
from tests.eviction.hf.masking import small, tiny
from tests.eviction.hf.test_install import SMALL, prompt


@torch.no_grad()
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (
            lambda config: {"past_key_values": StaticCache(config=config, max_cache_len=80)},
            "eviction_cache_kind",
        ),
        (
            lambda config: {"past_key_values": DynamicCache(config=config, offloading=True)},
            "eviction_cache_kind",
        ),
        (lambda config: {"attention_mask": torch.ones(1, 1, 60, 60, dtype=torch.bool)}, "eviction_mask"),
        (lambda config: {"attention_mask": torch.ones(1, 59)}, "eviction_mask_size"),
        (lambda config: {"attention_mask": torch.ones(2, 60)}, "eviction_mask_size"),
        (lambda config: {"attention_mask": torch.arange(60)[None] < 50}, "eviction_right_padding"),
    ],
)
def test_what_a_forward_refuses(change, code):
    model, ids = tiny("tiny-gqa"), prompt()
    with install_kv_eviction(model, policy="h2o", **SMALL):
        with pytest.raises(ArgumentError) as refused:
            model(ids, **change(model.config), use_cache=True)
        assert refused.value.code == code
        assert refused.value.text("zh")
        model(ids, use_cache=True)


@torch.no_grad()
def test_a_cache_of_another_install_and_an_attention_set_meanwhile():
    model, ids = tiny("tiny-gqa"), prompt()
    with install_kv_eviction(model, policy="h2o", **SMALL):
        held = model(ids, use_cache=True).past_key_values
    with install_kv_eviction(model, policy="h2o", **SMALL):
        model(ids[:, :1], past_key_values=held)  # the same rules
    with install_kv_eviction(model, policy="h2o", budget=10):
        with pytest.raises(ArgumentError) as refused:
            model(ids[:, :1], past_key_values=held)
        assert refused.value.code == "eviction_other_install"
        model.set_attn_implementation("sdpa")
        with pytest.raises(ArgumentError) as refused:
            model(ids, use_cache=True)
        assert refused.value.code == "eviction_switched"
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("make", "options", "code"),
    [
        (lambda: tiny("tiny-mla"), {"scope": "head"}, "eviction_head_latent"),
        (lambda: small("mistral"), {}, "eviction_no_full_layer"),
        (lambda: small("gemma3n_text"), {}, "eviction_shared"),
        (lambda: small("bloom"), {}, "eviction_attention_fixed"),
        (lambda: tiny("tiny-gqa"), {"scope": "row"}, "unknown_choice"),
        (lambda: tiny("tiny-gqa"), {"positions": "new"}, "unknown_choice"),
        (lambda: tiny("tiny-gqa"), {"when": "decode"}, "unknown_choice"),
        (lambda: tiny("tiny-gqa"), {"other_caches": "grow"}, "unknown_choice"),
        (lambda: tiny("tiny-gqa"), {"policy": "h20"}, "unknown_choice"),
        (lambda: tiny("tiny-gqa"), {"budget": -1}, "bad_count"),
        (lambda: tiny("tiny-gqa"), {"n_recent": 0}, "bad_count"),
        (lambda: tiny("tiny-gqa"), {"prefill_chunk": 0}, "bad_count"),
        (lambda: torch.nn.Linear(2, 2), {}, "models_not_a_decoder"),
        (lambda: small("t5"), {}, "models_not_a_decoder"),
    ],
)
def test_what_an_install_refuses(make, options, code):
    model = make()
    with pytest.raises(ArgumentError) as refused:
        install_kv_eviction(model, **({"policy": "h2o", "budget": 8} | options))
    assert refused.value.code == code
    assert refused.value.text("zh")
    assert not hasattr(model, "_minikv_eviction")


def test_a_model_in_training_mode_and_unequal_budgets_are_refused():
    class Greedy(H2O):
        def layer_budgets(self, budget, num_layers):
            return (budget + 1,) * num_layers

    model = tiny("tiny-gqa")
    with pytest.raises(ArgumentError) as refused:
        install_kv_eviction(model, policy=Greedy(), budget=8)
    assert refused.value.code == "eviction_budgets"
    model.train()
    try:
        with pytest.raises(ArgumentError) as refused:
            install_kv_eviction(model, policy="h2o", budget=8)
    finally:
        model.eval()
    assert refused.value.code == "models_training"


@pytest.mark.parametrize("call", [install_kv_eviction, EvictionConfig, PagedEviction, trace_eviction])
def test_there_is_no_default_policy(call):
    """Which one is best depends on the model and the question; summed H2O, once the default, falls below random."""
    assert inspect.signature(call).parameters["policy"].default is inspect.Parameter.empty
