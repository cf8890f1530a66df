"""ExpectedAttention: the model itself says what later queries are, and the way a text is read changes nothing."""

import pytest
import torch

from minikv.errors import ArgumentError
from minikv.eviction import ExpectedAttention, Sampled, install_kv_eviction, trace_eviction
from minikv.eviction.hf.observe import Logits
from minikv.eviction.hf.rotary import find_rotary
from minikv.eviction.policies.expected import SKIPPED, expected_stats, query_moments
from tests.eviction.hf.masking import small, tiny
from tests.eviction.policies.test_echo import caught_queries, ids
from tests.eviction.policies.test_literature import view

MODELS = [("tiny-gqa", 2), ("tiny-mla", 1)]


@torch.no_grad()
def scored(model, tokens, chunks, mask=None, **options):
    """What the policy was given in the last eviction of each layer: [B, H, S]."""
    seen = {}

    class Told(ExpectedAttention):
        def score(self, view):
            seen[view.layer] = view.window_probs
            return super().score(view)

    sizes = {"budget": sum(chunks) - 6, "n_sink": 2, "n_recent": 3} | options
    with install_kv_eviction(model, policy=Told(future=8), **sizes) as eviction:
        cache, start = eviction.new_cache(), 0
        for size in chunks:
            end = start + size
            shown = None if mask is None else mask[:, :end]
            places = None if mask is None else (mask.cumsum(-1) - 1).clamp(min=0)[:, start:end]
            model(tokens[:, start:end], attention_mask=shown, position_ids=places, past_key_values=cache)
            start = end
    return [seen[layer] for layer in sorted(seen)]


@pytest.mark.parametrize(("name", "heads"), MODELS)
@torch.no_grad()
def test_a_number_is_the_expected_weight_of_the_models_own_later_queries(name, heads):
    """Hidden states do not depend on where a text begins: a text that begins later gives a token's later query."""
    model, tokens, place = tiny(name), ids(1)[:, :16], torch.arange(16)
    at = {
        (token, later): caught_queries(model, tokens, place + later - token)
        for token in range(SKIPPED, 16)
        for later in range(16, 24)
    }
    scale = model.model.layers[0].self_attn.scaling
    for layer, number in enumerate(scored(model, tokens, [16])):
        key = caught_queries(model, tokens, place)[layer][1].double()
        each = [
            torch.stack([at[token, later][layer][0][:, :, token] for later in range(16, 24)]).mean(0)
            for token in range(SKIPPED, 16)
        ]
        asked = torch.stack(each, 2).double()  # [1, Hq, n, D]
        mean = asked.mean(2, keepdim=True)
        spread = (asked - mean).transpose(2, 3) @ (asked - mean) / asked.shape[2]
        key = key.repeat_interleave(asked.shape[1] // key.shape[1], 1)
        logits = (key * mean).sum(-1) * scale + (key @ spread * key).sum(-1) * scale**2 / 2
        expected = logits.softmax(-1).unflatten(1, (heads, -1)).mean(2)
        assert torch.allclose(number.double(), expected, atol=1e-4)


def test_the_formula_is_that_of_a_normal_distribution():
    """Against the mean of exp(q.k) over many draws."""
    model = tiny("tiny-gqa")
    rotary, drawn = find_rotary(model, False), torch.Generator().manual_seed(0)
    query = 0.5 * torch.randn(1, 4, 100_000, 32, generator=drawn) + 0.3
    key = torch.randn(1, 2, 9, 32, generator=drawn)
    zero = torch.zeros(1, 1, dtype=torch.int64)
    still = torch.full((1, 100_000), SKIPPED)
    moments = query_moments(query, still, rotary, None)
    plain = rotary.turn(query, still, back=True)
    valid = torch.ones(1, 9, dtype=torch.bool)
    found = expected_stats(moments, zero, key, Logits(0.3), rotary, None, valid=valid, heads=4)
    weights = (0.3 * plain @ key.repeat_interleave(2, 1).transpose(2, 3)).exp().mean(2)
    assert torch.allclose(found, weights / weights.sum(-1, keepdim=True), rtol=0.05)


@pytest.mark.parametrize("options", [{}, {"positions": "reindexed"}])
@pytest.mark.parametrize(("name", "heads"), MODELS)
def test_it_does_not_depend_on_the_chunks(name, heads, options):
    """Nothing is evicted before the last token: the moments are those of the whole text."""
    model, tokens = tiny(name), ids(1)
    whole = scored(model, tokens, [40], **options)
    for chunks in ([13, 27], [39, 1]):
        for ours, want in zip(scored(model, tokens, chunks, **options), whole, strict=True):
            assert ours.shape == (1, heads, 40)
            assert torch.allclose(ours, want, atol=1e-5)


@pytest.mark.parametrize("chunks", [[24], [10, 14], [22, 1, 1]])
@pytest.mark.parametrize("model_type", ["llama", "deepseek_v3", "gemma"])
def test_a_padded_row_is_the_row_alone(model_type, chunks):
    model = small(model_type)
    tokens = ids(2, 24, words=model.config.vocab_size)
    mask = torch.ones_like(tokens)
    mask[1, :5] = 0
    padded = scored(model, tokens, chunks, mask, budget=9)
    alone = scored(model, tokens[1:, 5:], [chunks[0] - 5, *chunks[1:]], budget=9)
    for ours, want in zip(padded, alone, strict=True):
        assert torch.allclose(ours[1:, :, -want.shape[-1] :], want, atol=1e-5)


def test_a_long_value_counts_more():
    given = view()
    expected = given.window_probs * given.values.norm(dim=-1)
    assert torch.allclose(ExpectedAttention().score(given), expected)


def test_a_wrapper_passes_it_on_and_a_trace_refuses_it():
    assert Sampled(ExpectedAttention(7), 3).expected_over == 7
    with pytest.raises(ArgumentError) as caught:
        trace_eviction(tiny("tiny-gqa"), range(4, 40), policy="expected-attention", budget=4)
    assert caught.value.code == "eviction_no_queries"
    with pytest.raises(ArgumentError):
        ExpectedAttention(0)
    with pytest.raises(ArgumentError) as caught:
        ExpectedAttention().score(view(window_probs=None))
    assert caught.value.code == "eviction_no_window"
