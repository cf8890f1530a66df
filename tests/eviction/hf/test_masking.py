"""Compaction equals masking: dropping a token is the same as hiding it, for every policy, model and attention."""

import itertools
from contextlib import contextmanager

import pytest
import torch

from minikv.eviction import H2O, POLICIES, SnapKV
from tests.eviction.hf.masking import TOLERANCE, largest_difference, tiny
from tests.longer import every_value

CHUNKS = [70, 1, 1, 1, 9, 1, 1, 1, 1, 1]  # a prompt, decode steps, another turn, decode steps


ATTENTION = ("sdpa", "eager")


@contextmanager
def computing(attention, *models):
    """The models compute with ``attention``, and get their own back."""
    own = [model.config._attn_implementation for model in models]
    for model in models:
        model.set_attn_implementation(attention)
    try:
        yield
    finally:
        for model, name in zip(models, own, strict=True):
            model.set_attn_implementation(name)


def random_ids(model, rows: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, model.config.vocab_size, (rows, sum(CHUNKS)), generator=generator)


@pytest.mark.parametrize(
    ("of", "read"),
    every_value(
        [("tiny-gqa", "layer"), ("tiny-gqa", "head"), ("tiny-mla", "layer")],
        [*itertools.product(POLICIES, ATTENTION)],
    ),
    ids="-".join,
)
def test_compaction_equals_masking(of, read):
    (name, scope), (policy, attention) = of, read
    model, reference = tiny(name), tiny(name, 1)
    ids = random_ids(model, 2)
    options = {"policy": policy, "budget": 9, "n_sink": 2, "n_recent": 6, "scope": scope}
    with computing(attention, model, reference):
        assert largest_difference(model, reference, ids, CHUNKS, **options) <= TOLERANCE


OPTIONS = [
    H2O("mean"),
    H2O("max", group="max"),
    H2O("decay", decay=0.9, group="mean"),
    SnapKV(queries=6, kernel=3),
]


@pytest.mark.parametrize(
    ("read", "evict_every"), every_value([*itertools.product(OPTIONS, ATTENTION)], [1, 2, 5]), ids=str
)
def test_with_the_options_of_policies_and_rarer_evictions(read, evict_every):
    policy, attention = read
    model, reference = tiny("tiny-gqa"), tiny("tiny-gqa", 1)
    options = {"policy": policy, "budget": 7, "n_recent": 6, "evict_every": evict_every, "scope": "head"}
    with computing(attention, model, reference):
        assert largest_difference(model, reference, random_ids(model, 2), CHUNKS, **options) <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "read"),
    every_value(
        ["tiny-gqa", "tiny-mla"],
        [*itertools.product(["h2o", "snapkv", "tova", "keydiff", "streaming"], ATTENTION)],
    ),
    ids=str,
)
def test_in_a_padded_batch(name, read):
    policy, attention = read
    model, reference = tiny(name), tiny(name, 1)
    ids = random_ids(model, 3)
    mask = torch.ones_like(ids)
    mask[1, :30] = 0
    mask[2, :66] = 0  # fewer tokens than the capacity: the layer keeps padding
    scope = "layer" if name == "tiny-mla" else "head"
    options = {"policy": policy, "budget": 9, "n_sink": 2, "n_recent": 6, "scope": scope}
    with computing(attention, model, reference):
        assert largest_difference(model, reference, ids, CHUNKS, mask, **options) <= TOLERANCE
