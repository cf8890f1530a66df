"""The probabilities computed beside attention are those that attention used."""

from itertools import pairwise

import pytest
import torch

from minikv.eviction import H2O, EvictingLayer, install_kv_eviction
from minikv.eviction.hf import attention as attention_of_ours
from minikv.eviction.hf import observe as observing
from minikv.eviction.hf.observe import (
    Logits,
    attend_once,
    column_stats,
    join_group,
    probabilities,
    window_stats,
)
from tests.eviction.hf.masking import small, tiny


def case(queries=7, tokens=11, heads=6, groups=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(2, heads, queries, 8, generator=generator)
    return query, torch.randn(2, groups, tokens, 8, generator=generator), Logits(0.5)


@pytest.mark.parametrize("how", [Logits(0.5), Logits(0.5, softcap=2.0), Logits(0.5, sinks=torch.randn(6))])
def test_probabilities_in_plain_words(how):
    query, key, _ = case()
    for head in range(6):
        logits = query[:, head] @ key[:, head // 3].transpose(1, 2) * 0.5
        if how.softcap:
            logits = how.softcap * (logits / how.softcap).tanh()
        weights = logits.exp()
        sink = 0 if how.sinks is None else how.sinks[head].exp()
        expected = weights / (weights.sum(-1, keepdim=True) + sink)
        assert torch.allclose(probabilities(query, key, how, None)[:, head], expected, atol=1e-6)


@pytest.mark.parametrize(
    "policy",
    [H2O(), H2O("max"), H2O("sum", group="max"), H2O("decay", decay=0.7, group="mean")],
    ids=lambda policy: f"{policy.reduce}-{policy.group}",
)
@pytest.mark.parametrize("elements", [1, 200, 2**24], ids=["a row", "some rows", "all"])
@pytest.mark.parametrize("masked", [False, True])
def test_tiles_make_no_difference(policy, elements, masked, monkeypatch):
    query, key, how = case()
    causal = torch.ones(7, 11, dtype=torch.bool).tril(4)
    counted = torch.arange(7) >= torch.tensor([[0], [3]])
    probs = probabilities(query, key, how, causal) * counted[:, None, :, None]
    if policy.reduce == "decay":
        probs = probs * (0.7 ** torch.arange(6, -1, -1))[:, None]
    joined = join_group(probs, 2, policy.group)
    whole = joined.amax(2) if policy.reduce == "max" else joined.sum(2)
    monkeypatch.setattr(observing, "TILE_ELEMENTS", elements)
    mask = causal[None, None] if masked else None
    found = column_stats(query, key, how, mask=mask, counted=counted, policy=policy, heads=2)
    assert torch.allclose(found, whole, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("group", ["sum", "mean", "max"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "decay"])
@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
def test_a_state_does_not_depend_on_the_cuts_of_its_prompt(name, reduce, group):
    model = tiny(name)
    ids = torch.randint(1, 190, (1, 30), generator=torch.Generator().manual_seed(1))
    with install_kv_eviction(model, policy=H2O(reduce, group=group), budget=100) as eviction:
        states = []
        for cuts in ((0, 30), (0, 11, 12, 13, 25, 30)):
            held = eviction.new_cache()
            for start, end in pairwise(cuts):
                model(ids[:, start:end], past_key_values=held)
            states.append([layer.state for layer in held.layers])
    for whole, cut in zip(*states, strict=True):
        assert torch.allclose(whole, cut, atol=1e-4)


def test_large_products_in_float16():
    """200 times 200 in 8 dimensions is more than float16 holds; scaled by 1/64 it is not."""
    query, key = torch.full((1, 2, 1, 8), 200.0).half(), torch.full((1, 1, 3, 8), 200.0).half()
    probs = probabilities(query, key, Logits(1 / 64), None)
    assert torch.allclose(probs, torch.full((1, 2, 1, 3), 1 / 3))


def test_a_decode_step_in_one_pass_equals_attention():
    query, key, how = case(queries=1)
    value = torch.randn(2, 2, 11, 5)
    mask = torch.rand(2, 1, 1, 11) > 0.3
    beside = torch.randn(2, 2, 8)
    out, probs, along = attend_once(query, key, value, how, mask, beside)
    repeated = [tensor.repeat_interleave(3, 1) for tensor in (key, value)]
    expected = torch.nn.functional.scaled_dot_product_attention(query, *repeated, attn_mask=mask, scale=0.5)
    assert torch.allclose(out, expected.transpose(1, 2), atol=1e-6)
    assert torch.allclose(probs.sum(-1), torch.ones(2, 6, 1))
    assert torch.allclose(along, (key * beside[:, :, None]).sum(-1), atol=1e-5)
    alone = attend_once(query, key, value, how, mask)
    assert torch.allclose(alone[0], out, atol=1e-6)
    assert torch.allclose(alone[1], probs, atol=1e-6)
    assert alone[2] is None


def test_the_window_sees_what_came_before_each_query():
    query, key, how = case(queries=3)
    positions = torch.tensor([[[0, 1, 2, 9, 3, 4, 5, 10, 6, 7, 8]], [[-1, 0, 1, 8, 2, 3, 4, 9, 5, 6, 7]]])
    places = torch.tensor([[6, 9, 10], [-1, 8, 9]])
    found = window_stats(query, places, key, positions.expand(2, 2, 11), how, 2)
    for row, counted in ((0, (0, 1, 2)), (1, (1, 2))):
        each = []
        for number in counted:
            seen = (positions[row] <= places[row, number]) & (positions[row] >= 0)
            each.append(
                probabilities(
                    query[row : row + 1, :, number : number + 1], key[row : row + 1], how, seen[None]
                )
            )
        expected = join_group(torch.stack(each).mean(0)[:, :, 0], 2, "mean")
        assert torch.allclose(found[row], expected[0], atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize(
    ("model", "attention"),
    [
        ("tiny-gqa", "sdpa"),
        ("tiny-gqa", "eager"),
        ("tiny-mla", "sdpa"),
        ("tiny-mla", "eager"),
        ("gpt_oss", "eager"),
        ("gemma2", "eager"),
    ],
)
def test_the_state_is_the_attention_that_the_model_reports(model, attention):
    """``output_attentions`` of an eager model, summed over queries and the group, is H2O's state."""
    make = tiny if model.startswith("tiny") else small
    subject, reference = make(model), make(model, 1)
    own = subject.config._attn_implementation, reference.config._attn_implementation
    subject.set_attn_implementation(attention)
    reference.set_attn_implementation("eager")
    ids = torch.randint(1, 90, (2, 31), generator=torch.Generator().manual_seed(0))
    weights = reference(ids, output_attentions=True).attentions
    try:
        with install_kv_eviction(subject, policy="h2o", budget=100) as eviction:
            held = eviction.new_cache()
            for start, end in ((0, 20), (20, 21), (21, 22), (22, 31)):
                subject(ids[:, start:end], past_key_values=held)
    finally:
        subject.set_attn_implementation(own[0])
        reference.set_attn_implementation(own[1])
    checked = 0
    for layer, weight in zip(held.layers, weights, strict=True):
        if hasattr(layer, "rules"):
            expected = join_group(weight.sum(2), layer.keys.shape[1], "sum")
            assert torch.allclose(layer.state, expected, atol=1e-4)
            checked += 1
    assert checked


@torch.no_grad()
@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
def test_score_mass_is_group_size_times_queries(name):
    """Every query spends 1 in each head, so a KV head gets its group's size for each; padding spends nothing."""
    model = tiny(name)
    ids = torch.randint(1, 190, (2, 30), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :11] = 0
    with install_kv_eviction(model, policy="h2o", budget=100) as eviction:
        held = eviction.new_cache()
        model(ids[:, :25], attention_mask=mask[:, :25], past_key_values=held)
        for end in range(26, 31):
            model(ids[:, end - 1 : end], attention_mask=mask[:, :end], past_key_values=held)
    queries = mask.sum(-1).float()
    for layer in held.layers:
        group = model.config.num_attention_heads // layer.keys.shape[1]
        mass = layer.state.sum(-1)
        assert torch.allclose(mass, (group * queries)[:, None].expand_as(mass), rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
def test_a_window_of_one_query_needs_no_second_pass(name, monkeypatch):
    """TOVA's last query is the one that attends: with sdpa its probabilities are those of ``window_stats``."""
    model, evict = tiny(name), EvictingLayer.evict
    ids = torch.randint(4, 190, (2, 60), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :25] = 0
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    passes, given = [], []

    def counted(*arguments):
        passes.append(arguments)
        return window_stats(*arguments)

    def told(layer, window_probs=None, along_mean=None):
        order = layer.positions.argsort(dim=-1, stable=True).expand_as(window_probs)
        given.append(window_probs.gather(-1, order))
        evict(layer, window_probs, along_mean)

    monkeypatch.setattr(attention_of_ours, "window_stats", counted)
    monkeypatch.setattr(EvictingLayer, "evict", told)
    found, own = {}, model.config._attn_implementation
    for kind in ("sdpa", "eager"):
        model.set_attn_implementation(kind)
        given.clear()
        passes.clear()
        with install_kv_eviction(model, policy="tova", budget=12, n_sink=2, n_recent=6) as eviction:
            held = eviction.new_cache()
            for start, end in ((0, 40), *((i, i + 1) for i in range(40, 60))):
                options = {"attention_mask": mask[:, :end], "position_ids": places[:, start:end]}
                model(ids[:, start:end], past_key_values=held, **options)
        found[kind] = list(given)
        assert len(passes) == (2 if kind == "sdpa" else 2 * 21), "the prompt alone, in two layers"
    model.set_attn_implementation(own)
    for once, twice in zip(found["sdpa"], found["eager"], strict=True):
        assert torch.allclose(once, twice, atol=1e-5)
