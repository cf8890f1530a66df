"""A model of random weights has the size that its shape says, and a card gets one that leaves room for a cache."""

import pytest
import torch

from minikv.errors import ArgumentError
from minikv.models import random_model as build
from minikv.models import shape_for
from minikv.models.random_weights import QWEN3_06B, QWEN3_8B, SIZES, SMALL, TOY, config_of
from minikv.plan import CacheSpec
from minikv.units import GIB


@pytest.mark.parametrize("shape", [TOY, SMALL, QWEN3_06B, QWEN3_8B], ids=lambda shape: shape.name)
def test_the_elements_and_the_bytes_of_a_token_are_those_of_the_built_model(shape):
    with torch.device("meta"):
        from transformers import Qwen3ForCausalLM

        model = Qwen3ForCausalLM(config_of(shape))
    assert sum(each.numel() for each in model.parameters()) == shape.parameters
    spec = CacheSpec.from_config(config_of(shape), kv_dtype="fp32")
    assert spec.bytes_for(1) == shape.token_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_built_in_its_dtype_and_chooses_the_same_tokens_again(dtype):
    models = [build(TOY, torch.device("cpu"), dtype) for _ in range(2)]
    assert all(each.dtype == dtype for each in models[0].parameters())
    pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    assert models[0].generation_config.eos_token_id is None
    assert not models[0].training


# What torch calls the total memory of these cards.
CARDS = {"A100 40GB": 42_298_834_944, "H100 80GB": 85_029_158_912, "H200": 150_109_290_496}
SMALLER = {"T4": 15_828_320_256, "RTX 4090": 25_386_352_640}


def test_a_card_of_40_gb_gets_the_8b_a_t4_the_smaller_and_no_gpu_the_toy():
    assert {shape_for(total) for total in CARDS.values()} == {QWEN3_8B}
    assert {shape_for(total) for total in SMALLER.values()} == {QWEN3_06B}
    assert shape_for(None) is TOY
    assert shape_for(GIB) is TOY


def test_every_size_leaves_half_of_its_smallest_card_for_the_cache():
    for least, shape in SIZES:
        assert 2 * (2 * shape.parameters) < least, shape.name


def test_each_size_begins_at_its_byte():
    for least, shape in SIZES:
        assert shape_for(least) is shape is not shape_for(least - 1)


@pytest.mark.parametrize("total", [0, -1, 1.5, "80GB", True])
def test_a_total_that_is_no_count_of_bytes_is_refused(total):
    with pytest.raises(ArgumentError, match="total"):
        shape_for(total)
