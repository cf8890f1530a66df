"""Copies of a model with eviction, models that share parts, and a cache that meets another model or another mode."""

import copy
import pickle

import pytest
import torch
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, StaticCache

from minikv.errors import ArgumentError
from minikv.eviction import (
    eviction_of,
    eviction_report,
    install_kv_eviction,
    remove_kv_eviction,
    reset_eviction_scores,
)
from tests.eviction.hf.masking import small, tiny

SMALL = {"budget": 9, "n_sink": 2, "n_recent": 6}


@pytest.fixture
def model():
    return copy.deepcopy(tiny("tiny-gqa"))


def prompt(rows=1, tokens=60):
    return torch.randint(4, 190, (rows, tokens), generator=torch.Generator().manual_seed(0))


def generate(model, new=10):
    ids = prompt(2)
    options = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **options)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_the_model_has_an_install_of_its_own(model, make):
    plain = generate(model)
    install_kv_eviction(model, prefill_chunk=16, policy="h2o", **SMALL)
    expected = generate(model)
    other = make(model)
    assert eviction_of(other).model is other
    assert torch.equal(generate(other), expected)
    remove_kv_eviction(other)
    assert torch.equal(generate(other), plain)
    assert torch.equal(generate(model), expected), "the first one still forgets"
    assert (len(other._forward_hooks), len(model._forward_hooks)) == (0, 1)
    assert other.generation_config.prefill_chunk_size is None
    remove_kv_eviction(model)
    assert torch.equal(generate(model), plain)


@pytest.mark.parametrize("own", [None, 40])
def test_what_is_saved_meanwhile_is_the_models_own(model, own, tmp_path):
    """And generate takes the installed chunk, whoever asks: it is the config's value, not its file's."""
    model.generation_config.prefill_chunk_size = own
    model.generation_config.save_pretrained(tmp_path / "before")
    kind, whole = type(model.generation_config), model.generation_config.to_dict()
    with install_kv_eviction(model, prefill_chunk=7, policy="h2o", **SMALL):
        assert model.generation_config.prefill_chunk_size == 7
        assert model.generation_config.to_dict() == whole | {"prefill_chunk_size": 7}
        model.save_pretrained(tmp_path / "model")
        copy.deepcopy(model.generation_config).save_pretrained(tmp_path / "copy")
        assert model.generation_config.prefill_chunk_size == 7, "it is still installed"
    assert type(model.generation_config) is kind
    assert model.generation_config.to_dict() == whole
    saved = [(tmp_path / name / "generation_config.json").read_text() for name in ("before", "model", "copy")]
    assert len(set(saved)) == 1
    assert ("prefill_chunk_size" in saved[0]) == (own is not None)


def test_models_with_layers_or_a_config_in_common(model):
    for first, second in ((model, model.model), (model.model, model)):
        with install_kv_eviction(first, policy="h2o", **SMALL), pytest.raises(ArgumentError) as refused:
            install_kv_eviction(second, policy="streaming", **SMALL)
        assert refused.value.code == "eviction_installed"
    other = type(model)(model.config).eval()
    with install_kv_eviction(model, policy="h2o", **SMALL):
        generate(other)
        with pytest.raises(ArgumentError) as refused:
            install_kv_eviction(other, policy="streaming", **SMALL)
        assert refused.value.code == "eviction_shared_config"
        assert refused.value.text("zh")
    install_kv_eviction(other, policy="h2o", **SMALL).remove()


def test_a_base_model_reads_no_prompt_in_chunks(model):
    with pytest.raises(ArgumentError) as refused:
        install_kv_eviction(model.model, prefill_chunk=8, policy="h2o", **SMALL)
    assert refused.value.code == "eviction_no_generate"
    assert refused.value.text("zh")
    with install_kv_eviction(model.model, policy="h2o", **SMALL), torch.no_grad():
        out = model(prompt())
        assert out.past_key_values.layers[0].resident == 17, "the model around it uses the same cache"


@torch.no_grad()
def test_a_cache_meets_a_model_of_another_shape_or_dtype(model):
    other = small("llama", num_hidden_layers=2)
    with install_kv_eviction(other, policy="h2o", **SMALL):
        held = other(prompt() % 90).past_key_values
    with install_kv_eviction(model, policy="h2o", **SMALL):
        own = model(prompt()).past_key_values
        for cache in (held, own):
            with pytest.raises(ArgumentError) as refused:
                model(prompt()[:, :1], past_key_values=cache)
            assert refused.value.code == "eviction_states"
            assert refused.value.text("zh")
            model.to(torch.bfloat16)


def test_a_cache_made_in_inference_mode_goes_on_outside(model):
    with install_kv_eviction(model, policy="h2o", **SMALL):
        with torch.inference_mode():
            held = model(prompt()).past_key_values
            other = copy.deepcopy(held)
            expected = model(prompt()[:, :1], past_key_values=other).logits
            last = copy.deepcopy(other)
        with torch.no_grad():
            assert torch.equal(model(prompt()[:, :1], past_key_values=held).logits, expected)
            last.layers[0].forget_scores()
            assert not last.layers[0].state.any()


@torch.no_grad()
@pytest.mark.parametrize("padding", [0, 40])
@pytest.mark.parametrize("positions", ["original", "reindexed"])
def test_a_cache_outlives_its_install_only_where_that_is_right(model, padding, positions):
    mask = torch.ones(1, 61)
    mask[:, :padding] = 0
    options = {
        "past_key_values": None,
        "attention_mask": mask,
        "position_ids": torch.tensor([[60 - padding]]),
    }
    with install_kv_eviction(model, policy="streaming", positions=positions, **SMALL):
        held = model(prompt(), attention_mask=mask[:, :60]).past_key_values
        inside = model(prompt()[:, :1], **options | {"past_key_values": copy.deepcopy(held)}).logits
    if padding == 0 and positions == "original":
        outside = model(prompt()[:, :1], **options | {"past_key_values": held}).logits
        assert torch.allclose(outside, inside, atol=1e-5)
        return
    with pytest.raises(ArgumentError) as refused:
        model(prompt()[:, :1], **options | {"past_key_values": held})
    assert refused.value.code == "eviction_not_announced"
    assert refused.value.text("zh")


@torch.no_grad()
def test_a_report_begins_anew_with_its_text(model):
    with install_kv_eviction(model, other_caches="pass", policy="h2o", **SMALL):
        model(prompt(), past_key_values=StaticCache(config=model.config, max_cache_len=80))
        assert "cache_grows" in {finding.code for finding in eviction_report(model).findings}
        held = model(prompt()).past_key_values
        assert not eviction_report(model).findings
        held.reset()
        model(prompt()[:, :5], past_key_values=held)
        for values in eviction_report(model).layers.values():
            assert (values["forwards"], values["dropped"], values["peak_resident"]) == (1, 0, 5)


@torch.no_grad()
def test_a_reset_of_scores_forgets_the_window_too(model):
    with install_kv_eviction(model, policy="snapkv", **SMALL):
        held = model(prompt()).past_key_values
        assert held.layers[0].queries is not None
        reset_eviction_scores(model)
        assert held.layers[0].queries is None
        model(prompt()[:, :1], past_key_values=held)
        assert held.layers[0].queries[0].shape[2] == 1


@torch.no_grad()
def test_an_attention_class_of_ones_own_and_a_forward_without_input(model):
    model.set_attn_implementation("eager")
    expected = generate(model)
    for layer in model.model.layers:
        layer.self_attn.__class__ = type("Mine", (type(layer.self_attn),), {"__module__": __name__})
    with install_kv_eviction(model, policy="h2o", budget=200):
        assert torch.equal(generate(model), expected)
        with pytest.raises(ValueError, match="input_ids"):
            model()


def test_a_vision_part_gets_its_own_attention_back():
    text = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    text |= {"head_dim": 8, "intermediate_size": 64, "vocab_size": 200, "sliding_window": 16}
    text |= {"layer_types": ["full_attention", "sliding_attention"]}
    seen = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = Gemma3Config(text_config=text, vision_config=seen | {"image_size": 28, "patch_size": 14})
    model = Gemma3ForConditionalGeneration(config).eval()
    model.model.vision_tower.set_attn_implementation("eager")

    def attentions():
        return [part._attn_implementation for part in (config, config.text_config, config.vision_config)]

    before = attentions()
    assert len(set(before)) == 2
    with install_kv_eviction(model, policy="h2o", **SMALL):
        options = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True}
        out = model.generate(prompt(), attention_mask=torch.ones_like(prompt()), **options)
        assert out.past_key_values.layers[0].resident == 17
    assert attentions() == before
