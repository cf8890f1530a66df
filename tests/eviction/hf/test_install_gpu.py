"""On a GPU: the same tokens as on a CPU, bytes really given back, and each layer's scores where its layer is."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from minikv.eviction import POLICIES, install_kv_eviction
from minikv.models.sources import find_folder
from tests.eviction.hf.following import Following, Told, generate, prompt
from tests.eviction.hf.masking import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

SMALL = {"budget": 9, "n_sink": 2, "n_recent": 6}


@torch.no_grad()
def forced(model, sequences, prompt_tokens):
    """The logits [B, n, vocabulary] when ``sequences`` is read, a prompt and then token by token; and the cache."""
    sequences = sequences.to(model.device)
    out = model(sequences[:, :prompt_tokens], use_cache=True)
    logits = [out.logits[:, -1:]]
    for token in sequences[:, prompt_tokens:-1].unbind(1):
        out = model(token[:, None], past_key_values=out.past_key_values, use_cache=True)
        logits.append(out.logits)
    return torch.cat(logits, 1).cpu(), out.past_key_values


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
@pytest.mark.parametrize("policy", POLICIES)
def test_scores_and_logits_are_those_of_a_cpu(name, policy):
    """Where two scores nearly tie, rounding decides what stays; so the GPU keeps what the CPU has kept."""
    here, there = tiny(name), copy.deepcopy(tiny(name)).cuda()
    steps = 20
    told = Told(POLICIES[policy](), [])
    with install_kv_eviction(here, policy=told, **SMALL):
        sequences = generate(here, prompt(), steps).sequences
    told.scores.clear()
    with install_kv_eviction(here, policy=told, **SMALL):
        expected, same_cache = forced(here, sequences, prompt().shape[1])
    following = Following(POLICIES[policy](), iter(told.scores), [])
    with install_kv_eviction(there, policy=following, **SMALL):
        logits, cache = forced(there, sequences, prompt().shape[1])
    assert len(following.compared) == len(told.scores) > steps
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
    for layer, same in zip(cache.layers, same_cache.layers, strict=True):
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
    told = Told(POLICIES["h2o"](), [])
    with install_kv_eviction(tiny("tiny-gqa"), policy=told, **SMALL):
        sequences = generate(tiny("tiny-gqa"), prompt(), 20).sequences
    told.scores.clear()
    with install_kv_eviction(tiny("tiny-gqa"), policy=told, **SMALL):
        expected, _ = forced(tiny("tiny-gqa"), sequences, prompt().shape[1])
    following = Following(POLICIES["h2o"](), iter(told.scores), [])
    with install_kv_eviction(model, policy=following, **SMALL):
        logits, cache = forced(model, sequences, prompt().shape[1])
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
    for layer in cache.layers:
        assert layer.state.device == layer.keys.device == layer.positions.device
