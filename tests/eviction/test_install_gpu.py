"""On a GPU: the same tokens as on a CPU, bytes really given back, and each layer's scores where its layer is."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from minikv.eviction import POLICIES, install_kv_eviction
from minikv.models.sources import find_folder
from tests.eviction.masking import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

SMALL = {"budget": 9, "n_sink": 2, "n_recent": 6}


def prompt(rows=2, tokens=60):
    return torch.randint(4, 190, (rows, tokens), generator=torch.Generator().manual_seed(0))


def generate(model, ids):
    options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    mask = torch.ones_like(ids)
    return model.generate(ids, attention_mask=mask, return_dict_in_generate=True, **options)


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_tokens_are_said_and_kept_as_on_a_cpu(name, policy):
    here, there = tiny(name), copy.deepcopy(tiny(name)).cuda()
    with install_kv_eviction(here, policy=policy, **SMALL):
        expected = generate(here, prompt())
    with install_kv_eviction(there, policy=policy, **SMALL):
        out = generate(there, prompt().cuda())
    assert torch.equal(out.sequences.cpu(), expected.sequences)
    for layer, same in zip(out.past_key_values.layers, expected.past_key_values.layers, strict=True):
        assert {tensor.device.type for tensor in (layer.keys, layer.values, layer.positions)} == {"cuda"}
        assert torch.equal(layer.positions.sort(-1).values.cpu(), same.positions.sort(-1).values)
        assert layer.storage_bytes == same.storage_bytes


@torch.no_grad()
def test_the_bytes_of_a_long_prompt_are_given_back():
    model = copy.deepcopy(tiny("tiny-gqa")).cuda()
    ids = prompt(16, 1500).cuda()
    with install_kv_eviction(model, policy="h2o", budget=50) as eviction:
        model(ids[:, :200], use_cache=True)  # workspaces
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        held = model(ids, use_cache=True, logits_to_keep=1).past_key_values
        torch.cuda.synchronize()
        stored = sum(layer.storage_bytes for layer in held.layers)
        assert torch.cuda.memory_allocated() - before <= stored + 2**20
        assert stored < 16 * 2 * (eviction.peak_resident + 1) * (2 * 2 * 32 * 4 + 8 + 8)


def test_under_a_device_map_each_layers_scores_are_on_its_device():
    pytest.importorskip("accelerate")
    places = {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.layers.0": "cpu", "model.layers.1": 0}
    model = AutoModelForCausalLM.from_pretrained(
        find_folder("tiny-gqa"), dtype=torch.float32, device_map=places | {"model.norm": 0, "lm_head": 0}
    ).eval()
    with install_kv_eviction(model, policy="h2o", **SMALL):
        out = generate(model, prompt().cuda())
    with install_kv_eviction(tiny("tiny-gqa"), policy="h2o", **SMALL):
        expected = generate(tiny("tiny-gqa"), prompt())
    assert torch.equal(out.sequences.cpu(), expected.sequences)
    for layer in out.past_key_values.layers:
        assert layer.state.device == layer.keys.device == layer.positions.device
