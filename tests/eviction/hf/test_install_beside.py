"""Eviction beside an attention that is not ours to look into, as a flash kernel: no policy by probabilities."""

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from minikv.errors import ArgumentError
from minikv.eviction import PyramidKV, StreamingLLM, install_kv_eviction
from tests.eviction.hf.masking import TOLERANCE, largest_difference, tiny

NAME = "minikv_test_closed"  # sdpa under a name that nobody knows


@pytest.fixture(params=["tiny-gqa", "tiny-mla"])
def models(request):
    """Two copies of a model with the unknown attention, which get their own back."""
    AttentionInterface.register(NAME, sdpa_attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    both = tiny(request.param), tiny(request.param, 1)
    for model in both:
        model.set_attn_implementation(NAME)
    yield both
    for model in both:
        model.set_attn_implementation("sdpa")


def ids(rows=2, tokens=90):
    return torch.randint(4, 190, (rows, tokens), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("policy", ["streaming", "knorm", "keydiff", "random"])
def test_compaction_equals_masking_here_too(models, policy):
    options = {"policy": policy, "budget": 9, "n_sink": 2, "n_recent": 6}
    assert largest_difference(*models, ids(), [60, 1, 1, 9, 1, 1, 1], **options) <= TOLERANCE


@pytest.mark.parametrize("policy", ["h2o", "snapkv", "tova"])
def test_policies_by_probabilities_are_refused(models, policy):
    with pytest.raises(ArgumentError) as refused:
        install_kv_eviction(models[0], policy=policy, budget=9)
    assert refused.value.code == "eviction_no_probs"
    assert NAME in refused.value.text()
    assert "sdpa" in refused.value.text("zh"), "the way out"
    assert models[0].config._attn_implementation == NAME


@torch.no_grad()
def test_padding_is_refused_where_the_mask_is_not_ours(models):
    model, mask = models[0], torch.ones(2, 90)
    mask[1, :5] = 0
    with install_kv_eviction(model, policy="knorm", budget=9):
        with pytest.raises(ArgumentError) as refused:
            model(ids(), attention_mask=mask, use_cache=True)
        assert refused.value.code == "eviction_padding"
        assert refused.value.text("zh")
        model(ids(), attention_mask=torch.ones(2, 90), use_cache=True)
    assert model.config._attn_implementation == NAME


class Uneven(StreamingLLM):
    """Streaming with the budgets of a pyramid."""

    def layer_budgets(self, budget, num_layers):
        return PyramidKV().layer_budgets(budget, num_layers)


def test_unequal_layers_are_refused_where_one_mask_serves_all(models):
    with pytest.raises(ArgumentError) as refused:
        install_kv_eviction(models[0], policy=Uneven(), budget=9)
    assert refused.value.code == "eviction_uneven"
    assert refused.value.text("zh")
    for model in models:
        model.set_attn_implementation("sdpa")
    options = {"policy": Uneven(), "budget": 9, "n_sink": 2, "n_recent": 6}
    assert largest_difference(*models, ids(), [60, 1, 9, 1, 1], **options) <= TOLERANCE
