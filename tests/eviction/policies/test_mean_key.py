"""The sum of keys of length 1 is exact however many tokens come and go, and KeyDiff decides as by its formula."""

import random
from dataclasses import replace

import pytest
import torch

from minikv.eviction import Budget, EvictingLayer, KeyDiff, Knorm, install_kv_eviction
from minikv.eviction.hf import attention
from minikv.eviction.hf.rules import LayerRules
from minikv.eviction.policies.mean_key import UNIT, UnitSum, key_lengths, mean_direction
from tests.eviction.hf.masking import tiny

HEADS, DIM = 2, 8


def layer_of(scope="head", policy=None, **sizes):
    own = Budget(**({"n_sink": 1, "budget": 9, "n_recent": 3} | sizes))
    return EvictingLayer(LayerRules(policy or KeyDiff(), own, scope))


def states(generator, rows, tokens, dtype=torch.float32):
    """Keys of all lengths: zero, tiny, huge, and most of them alike."""
    keys = torch.randn(rows, HEADS, tokens, DIM, generator=generator) + 1
    size = torch.randint(-4, 5, (rows, HEADS, tokens, 1), generator=generator)
    keys = keys * 10.0**size * (torch.rand(rows, HEADS, tokens, 1, generator=generator) > 0.1)
    return keys.to(dtype)


def recomputed(layer):
    """From nothing but the tokens that are there; without padding, whose keys may not count."""
    keys = layer.keys * layer.valid[:, None, :, None]
    return UnitSum.of(keys, key_lengths(keys)).total


def plain(layer):
    """What a policy sees that has to compute everything by itself."""
    return replace(layer.view(), lengths=None, mean_key=None, along_mean=None)


@pytest.mark.parametrize("scope", ["head", "layer"])
@pytest.mark.parametrize("seed", range(4))
def test_the_sum_is_exact_on_a_random_walk(seed, scope):
    """Steps, chunks, rows that come and go, padding; once begun, the sum is that of the tokens, to the last bit."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype = torch.bfloat16 if seed % 2 else torch.float32
    layer, rows, compared = layer_of(scope, evict_every=rng.choice([1, 1, 3])), 2, 0
    valid = torch.ones(rows, 20, dtype=torch.bool)
    valid[0, :15] = False
    layer.expect(valid)
    for step in range(250):
        tokens = 20 if step == 0 else rng.choice([1] * 20 + [4])
        if step:
            layer.expect(torch.ones(rows, tokens, dtype=torch.bool))
        keys = states(generator, rows, tokens, dtype)
        layer.update(keys, keys)
        layer.evict()
        if rng.random() < 0.1:
            rows = rng.choice([1, 2, 3])
            layer.reorder_cache(torch.tensor([rng.randrange(len(layer.keys)) for _ in range(rows)]))
        if layer._mean.sum is not None:
            compared += 1
            assert torch.equal(layer._mean.sum.total, recomputed(layer))
    assert compared > 100


def test_the_bound_of_its_error():
    """Each of S keys is cut to 2^-40 and comes from a float32 quotient: at most S (2^-40 + 2^-23) an element."""
    generator = torch.Generator().manual_seed(0)
    keys = states(generator, 1, 4096)
    exact = torch.nn.functional.normalize(keys.double(), dim=-1, eps=1e-12).sum(2)
    found = UnitSum.of(keys, key_lengths(keys))
    assert (found.total.double() / UNIT - exact).abs().max() <= 4096 * (2**-40 + 2**-23)
    assert torch.allclose(found.direction.double(), torch.nn.functional.normalize(exact, dim=-1), atol=1e-6)


def test_a_key_that_is_no_number_leaves_no_trace():
    """The others' scores stay numbers, its own says what it is; and when it goes the sum is right again."""
    layer, generator = layer_of(), torch.Generator().manual_seed(1)
    for tokens in (30, 1):
        layer.update(*[states(generator, 1, tokens)] * 2)
        layer.evict()
    bad = torch.full((1, HEADS, 1, DIM), torch.nan)
    layer.update(bad, bad)
    score = KeyDiff().score(layer.view())
    assert score[..., -1].isnan().all()
    assert score[..., :-1].isfinite().all()
    assert torch.equal(layer._mean.sum.total, recomputed(layer))
    for _ in range(8):  # it leaves the window, and goes at once
        layer.evict()
        layer.update(*[states(generator, 1, 1)] * 2)
    assert layer.keys.isfinite().all()
    assert torch.equal(layer._mean.sum.total, recomputed(layer))


@pytest.mark.parametrize("scope", ["head", "layer"])
@pytest.mark.parametrize("policy", [KeyDiff(), Knorm()], ids=str)
def test_the_same_token_goes_as_by_the_formula(policy, scope):
    """After 400 steps, too; ties aside."""
    generator, layer = torch.Generator().manual_seed(2), layer_of(scope, policy, budget=60)
    total = 0
    for tokens in (100, *[1] * 400):
        keys = torch.randn(2, HEADS, tokens, DIM, generator=generator) + 0.5
        layer.update(keys, keys)
        total += tokens
        ours, formula = policy.score(layer.view()), policy.score(plain(layer))
        assert torch.allclose(ours, formula, atol=1e-5)
        places = layer.positions.expand(2, HEADS, -1)
        score = formula.mean(1, keepdim=True).expand_as(formula) if scope == "layer" else formula
        inside = (places >= 1) & (places <= total - 1 - 3)
        score = score.masked_fill(~inside, torch.inf)
        before, resident = places.clone(), layer.resident
        layer.evict()
        if tokens > 1 or resident == layer.resident:
            continue
        after = layer.positions.expand(2, HEADS, -1)
        stayed = (before.unsqueeze(-1) == after.unsqueeze(-2)).any(-1)
        gone = score.masked_fill(stayed, -torch.inf).amax(-1)
        assert (gone - score.amin(-1) <= 1e-5).all(), "the worst went, or one as bad"


@pytest.mark.parametrize("scope", ["head", "layer"])
def test_riding_on_attention_changes_nothing(scope, monkeypatch):
    """A decode step's products with the mean come out of attention's own pass over the keys."""
    model = tiny("tiny-gqa")
    ids = torch.randint(4, 190, (2, 90), generator=torch.Generator().manual_seed(3))
    given, evict = [], EvictingLayer.evict

    def counted(layer, window_probs=None, along_mean=None):
        given.append(along_mean)
        if along_mean is not None:
            alone = (layer.keys * layer.mean_key[:, :, None]).sum(-1)
            assert torch.allclose(along_mean, alone, atol=1e-5)
        evict(layer, window_probs, along_mean)

    @torch.no_grad()
    def kept():
        with install_kv_eviction(model, policy="keydiff", budget=20, n_recent=6, scope=scope) as eviction:
            held = eviction.new_cache()
            logits = [
                model(ids[:, a:b], past_key_values=held).logits[:, -1]
                for a, b in ((0, 50), *((i, i + 1) for i in range(50, 90)))
            ]
        return [layer.positions.sort(-1).values for layer in held.layers], torch.stack(logits)

    monkeypatch.setattr(EvictingLayer, "evict", counted)
    riding, said = kept()
    assert sum(along is not None for along in given) == 2 * 40, "every step, in both layers"
    monkeypatch.setattr(attention, "_beside", lambda layer, key: None)
    given.clear()
    alone, expected = kept()
    assert all(along is None for along in given)
    assert all(torch.equal(one, other) for one, other in zip(riding, alone, strict=True))
    assert torch.allclose(said, expected, atol=1e-4)


def test_a_step_reads_no_key_but_its_own():
    """With the products given, the score needs neither keys nor mean; and a prompt makes no sum of integers."""
    lengths = torch.tensor([[[1.0, 2.0]]])
    layer = layer_of()
    layer.update(*[states(torch.Generator().manual_seed(4), 1, 6)] * 2)
    view = replace(layer.view(), keys=None, lengths=lengths, mean_key=None, along_mean=lengths * 3)
    assert KeyDiff().score(view).tolist() == [[[-3, -3]]]
    assert Knorm().score(view).tolist() == [[[-1, -2]]]
    assert layer._mean.sum is None
    keys = layer.keys
    expected = mean_direction(keys, key_lengths(keys), layer.valid)
    assert torch.equal(layer.mean_key, expected)
