"""Eviction on blocks under other attentions: softcap, sink logits, windows beside full layers, latents, biases."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.literature import H2O, TOVA, KeyDiff
from tests.eviction.paged.test_model import both, holds_the_same
from tests.longer import every_value
from tests.models.running import World

STEPS = [(21, 9), (6, 1), *[(1, 1)] * 9]
POLICIES = {"h2o": H2O(), "tova": TOVA(), "keydiff": KeyDiff()}


@pytest.mark.parametrize(
    ("model_type", "policy"),
    every_value(["qwen3", "gemma2", "gemma3_text", "gpt_oss", "deepseek_v2", "gpt2"], list(POLICIES)),
)
def test_compaction_equals_masking(model_type, policy):
    model, budget = World.bare(model_type), Budget(2, 5, 4, 2)
    random = np.random.default_rng(11)
    texts = [random.integers(1, 97, sum(step[number] for step in STEPS)).tolist() for number in (0, 1)]
    evicted = 0
    models = [model, deepcopy(model)]
    for paged, references, got, want in both(models, POLICIES[policy], budget, STEPS, texts=texts):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        holds_the_same(paged, references, budget)
        evicted = paged.manager.num_tokens(0) - paged.manager.length(0, paged.full)
    assert evicted > 20
