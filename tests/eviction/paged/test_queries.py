"""Policies that need the queries themselves: on blocks a model says and keeps what it does under an install."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from minikv.eviction.hf.cache import evicting_layers
from minikv.eviction.hf.install import install_kv_eviction
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.echo import Echo
from minikv.eviction.policies.expected import ExpectedAttention
from minikv.eviction.policies.literature import H2O
from minikv.eviction.policies.policy import Needs
from minikv.eviction.policies.sampled import Sampled
from minikv.models import load
from tests.eviction.paged.test_model import STEPS, OnBlocks, texts_of
from tests.longer import every_value
from tests.models.running import World

POLICIES = {
    "echo": Echo(),
    "echo mean": Echo(shift=0, group="mean"),
    "sampled echo": Sampled(Echo(), 3),
    "h2o max": H2O(reduce="max"),
    "h2o max of heads": H2O(group="max"),
    "h2o decayed max of heads": H2O(reduce="decay", decay=0.9, group="max"),
    "expected": ExpectedAttention(40),
}


class Both(Echo):
    """The probabilities and the echo of a token, one added to the other."""

    needs = Needs.PROBS | Needs.ECHO


def kept(layer):
    return [sorted(head) for head in layer.positions[0].expand(layer.keys.shape[1], -1).tolist()]


def compared(model, texts, policy, budget, steps=STEPS, scope="layer", **options):
    """Every step on blocks, all texts together, and installed, each text alone: equal logits, equal kept tokens."""
    blocks = OnBlocks(deepcopy(model), policy, budget, scope=scope, **options)
    left = [iter(text) for text in texts]
    sizes = {"n_sink": budget.n_sink, "n_recent": budget.n_recent, "evict_every": budget.evict_every}
    evicted = 0
    with (
        torch.no_grad(),
        install_kv_eviction(model, policy=policy, budget=budget.budget, scope=scope, **sizes) as installed,
    ):
        caches = [installed.new_cache() for _ in texts]
        for counts in steps:
            new = {name: [next(left[name]) for _ in range(count)] for name, count in enumerate(counts)}
            got = blocks.forward(new)
            evicted += blocks.eviction.evict(blocks.eviction.due(new))
            for name, ids in new.items():
                out = model(torch.tensor([ids]), past_key_values=caches[name], use_cache=True)
                torch.testing.assert_close(got[name], out.logits[0, -1], rtol=1e-4, atol=1e-5)
                for layer in evicting_layers(caches[name]):
                    have = blocks.eviction.positions(name, layer.rules.layer).tolist()
                    assert [sorted(head) for head in have] == kept(layer)
    blocks.adapter.unbind()
    assert evicted > 20


@pytest.mark.parametrize(("policy", "name"), every_value(list(POLICIES), ["tiny-gqa", "tiny-mla"]))
def test_it_keeps_what_an_install_keeps(policy, name):
    compared(load(name, device="cpu").model, texts_of(), POLICIES[policy], Budget(2, 14, 6, 2))


def test_each_head_its_own_and_two_looks_at_once():
    model = load("tiny-gqa", device="cpu").model
    compared(model, texts_of(), Echo(group="sum"), Budget(2, 10, 5), scope="head", block_size=3)
    compared(model, texts_of(), Both(), Budget(2, 10, 5, 3))


@pytest.mark.parametrize(
    ("model_type", "policy"),
    every_value(["gemma2", "gpt_oss", "deepseek_v3"], [Echo(keys=24), H2O(group="max")]),
)
def test_under_softcaps_sink_logits_windows_and_latents(model_type, policy):
    random, steps = np.random.default_rng(11), [(15, 9), (6, 1), *[(1, 1)] * 9]
    texts = [random.integers(1, 97, sum(step[number] for step in steps)).tolist() for number in (0, 1)]
    compared(World.bare(model_type), texts, policy, Budget(2, 5, 4, 2), steps)


def test_what_the_last_query_leaves_goes_to_the_host_and_into_a_fork():
    model, (text, _) = load("tiny-gqa", device="cpu").model, texts_of()
    whole = OnBlocks(deepcopy(model), Echo(), Budget(2, 1000, 6))
    whole.forward({"a": text[:30]})
    whole.forward({"a": text[30:40]})
    parts = OnBlocks(deepcopy(model), Echo(), Budget(2, 1000, 6))
    parts.forward({"a": text[:30]})
    parts.manager.fork("a", "b")
    parts.eviction.fork("a", "b")
    parts.eviction.swap_in("b", parts.eviction.swap_out("b"))
    parts.done["b"] = 30
    parts.manager.free("a")
    parts.eviction.remove("a")
    parts.forward({"b": text[30:40]})
    for layer in (0, 1):
        want, got = (
            each.eviction.records.read("state", layer, [name], 40)
            for each, name in ((whole, "a"), (parts, "b"))
        )
        assert want[..., 30:].any()
        torch.testing.assert_close(got, want)
