"""Compaction equals masking: dropping a token is the same as hiding it, for every policy, model and attention."""

import pytest
import torch

from minikv.eviction import H2O, POLICIES, SnapKV
from tests.eviction.hf.masking import TOLERANCE, largest_difference, tiny

CHUNKS = [70, 1, 1, 1, 9, 1, 1, 1, 1, 1]  # a prompt, decode steps, another turn, decode steps


@pytest.fixture(params=["sdpa", "eager"])
def attention(request):
    """Both models compute with it, and get their own back."""

    def use(*models):
        changed.extend((model, model.config._attn_implementation) for model in models)
        for model in models:
            model.set_attn_implementation(request.param)

    changed: list = []
    yield use
    for model, own in changed:
        model.set_attn_implementation(own)


def random_ids(model, rows: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, model.config.vocab_size, (rows, sum(CHUNKS)), generator=generator)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("name", "scope"), [("tiny-gqa", "layer"), ("tiny-gqa", "head"), ("tiny-mla", "layer")]
)
def test_compaction_equals_masking(name, scope, policy, attention):
    model, reference = tiny(name), tiny(name, 1)
    attention(model, reference)
    ids = random_ids(model, 2)
    options = {"policy": policy, "budget": 9, "n_sink": 2, "n_recent": 6, "scope": scope}
    assert largest_difference(model, reference, ids, CHUNKS, **options) <= TOLERANCE


@pytest.mark.parametrize(
    "policy",
    [
        H2O("mean"),
        H2O("max", group="max"),
        H2O("decay", decay=0.9, group="mean"),
        SnapKV(queries=6, kernel=3),
    ],
    ids=str,
)
@pytest.mark.parametrize("evict_every", [1, 2, 5])
def test_with_the_options_of_policies_and_rarer_evictions(policy, evict_every, attention):
    model, reference = tiny("tiny-gqa"), tiny("tiny-gqa", 1)
    attention(model, reference)
    options = {"policy": policy, "budget": 7, "n_recent": 6, "evict_every": evict_every, "scope": "head"}
    assert largest_difference(model, reference, random_ids(model, 2), CHUNKS, **options) <= TOLERANCE


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
@pytest.mark.parametrize("policy", ["h2o", "snapkv", "tova", "keydiff", "streaming"])
def test_in_a_padded_batch(name, policy, attention):
    model, reference = tiny(name), tiny(name, 1)
    attention(model, reference)
    ids = random_ids(model, 3)
    mask = torch.ones_like(ids)
    mask[1, :30] = 0
    mask[2, :66] = 0  # fewer tokens than the capacity: the layer keeps padding
    scope = "layer" if name == "tiny-mla" else "head"
    options = {"policy": policy, "budget": 9, "n_sink": 2, "n_recent": 6, "scope": scope}
    assert largest_difference(model, reference, ids, CHUNKS, mask, **options) <= TOLERANCE
