"""Every architecture that minikv knows: it forgets as if tokens were hidden, or it is refused by name."""

import copy

import pytest
import torch
import transformers
from packaging.version import Version

from minikv.errors import ArgumentError
from minikv.eviction import install_kv_eviction
from tests.eviction.hf.masking import largest_difference, small
from tests.plan.small_models import DECODERS

REFUSED = {
    **dict.fromkeys(("bloom", "falcon", "gptj", "mpt"), "eviction_attention_fixed"),
    **dict.fromkeys(("falcon_mamba", "mamba", "mamba2"), "eviction_no_full_layer"),  # recurrent states only
    "falcon_h1": "eviction_no_full_layer",  # a state and K and V in the same layer
    **dict.fromkeys(
        ("deepseek_v32", "glm_moe_dsa"), "eviction_no_full_layer"
    ),  # their indexer keeps keys of its own
    "deepseek_v4": "eviction_no_full_layer",  # windows, and entries that stand for several tokens
    "gemma3n_text": "eviction_shared",
    **dict.fromkeys(
        ("ministral", "ministral3", "mistral", "mixtral", "starcoder2"), "eviction_no_full_layer"
    ),
    **dict.fromkeys(
        ("phi3", "phimoe", "qwen3_moe"), "eviction_no_full_layer"
    ),  # as small_config has them: all slide
}
if Version(transformers.__version__) >= Version("5.24"):
    del REFUSED["gptj"]  # its class calls the attention function of the config
WITHOUT_WINDOW = ("mistral", "mixtral", "phi3", "phimoe", "qwen3_moe", "starcoder2")
SIZES = {"budget": 7, "n_sink": 2, "n_recent": 5}
CHUNKS = [26, 1, 4]


def ids(rows=2):
    return torch.randint(1, 90, (rows, sum(CHUNKS)), generator=torch.Generator().manual_seed(0))


def compare(model):
    """Compaction equals masking; what is dropped matters; and generate keeps to the bound."""
    assert largest_difference(model, copy.deepcopy(model), ids(), CHUNKS, policy="h2o", **SIZES) <= 2e-5
    with install_kv_eviction(model, policy="h2o", **SIZES) as eviction, torch.no_grad():
        held = model(ids()[:, :26], use_cache=True).past_key_values
        ours = model(ids()[:, 26:], past_key_values=held)[0]
        if model.can_generate():
            options = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True}
            out = model.generate(ids(), attention_mask=torch.ones_like(ids()), pad_token_id=0, **options)
            layers = [layer for layer in out.past_key_values.layers if hasattr(layer, "rules")]
            assert {layer.resident for layer in layers} == {eviction.capacity}
    with torch.no_grad():
        full = model(ids())[0][:, 26:]
    assert (ours - full).abs().max() > 1e-3, "the comparison would notice"


@pytest.mark.parametrize("model_type", [name for name in DECODERS if name not in REFUSED])
def test_it_forgets_as_if_tokens_were_hidden(model_type):
    compare(small(model_type))


@pytest.mark.parametrize("model_type", WITHOUT_WINDOW)
def test_so_does_one_whose_window_is_switched_off(model_type):
    compare(small(model_type, sliding_window=None))


@pytest.mark.parametrize("model_type", REFUSED)
def test_it_is_refused_by_name(model_type):
    model = small(model_type)
    with pytest.raises(ArgumentError) as refused:
        install_kv_eviction(model, policy="h2o", **SIZES)
    assert refused.value.code == REFUSED[model_type]
    assert type(model).__name__ in refused.value.text("zh")
