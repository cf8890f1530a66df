"""install_kv_eviction: a model's own generate forgets, and afterwards the model is as it was."""

import copy

import pytest
import torch
from transformers import DynamicCache

from minikv.errors import ArgumentError
from minikv.eviction import (
    H2O,
    POLICIES,
    EvictingLayer,
    eviction_of,
    install_kv_eviction,
    remove_kv_eviction,
    reset_eviction_scores,
)
from tests.eviction.hf.masking import tiny
from tests.longer import every_value

SMALL = {"budget": 9, "n_sink": 2, "n_recent": 6}


def prompt(rows=1, tokens=60, seed=0):
    return torch.randint(4, 190, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def generate(model, ids, new=12, **options):
    mask = options.pop("attention_mask", torch.ones_like(ids))
    given = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    return model.generate(ids, attention_mask=mask, **(given | options))


# Its budgets are measured: a layer may get none.
EVERY_LAYER = [policy for policy in POLICIES if policy != "echo-layers"]


@pytest.mark.parametrize(("name", "policy"), every_value(["tiny-gqa", "tiny-mla"], EVERY_LAYER))
def test_a_budget_as_long_as_the_text_changes_no_token(name, policy):
    model, ids = tiny(name), prompt(2)
    expected = generate(model, ids)
    with install_kv_eviction(model, policy=policy, budget=100):
        assert torch.equal(generate(model, ids), expected)


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
def test_generate_keeps_to_the_bound(name):
    model = tiny(name)
    with install_kv_eviction(model, policy="h2o", evict_every=4, **SMALL) as eviction:
        assert (eviction.capacity, eviction.peak_resident) == (17, 20)
        out = generate(model, prompt(2), new=30, return_dict_in_generate=True)
    for layer in out.past_key_values.layers:
        assert 17 <= layer.resident <= layer.record.peak_resident <= 20
        assert layer.get_seq_length() == 60 + 30 - 1
        stored = (layer.keys, layer.values, layer.positions, layer.state)
        assert layer.storage_bytes == 21 * sum(tensor[:, :, :1].nbytes for tensor in stored)


@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_a_prompt_in_chunks_is_bounded_too(chunk, monkeypatch):
    """The most tokens that attention ever sees: the peak and a chunk."""
    model, seen = tiny("tiny-gqa"), []
    own, update = model.generation_config.prefill_chunk_size, EvictingLayer.update

    def counted(layer, *states, **options):
        keys, values = update(layer, *states, **options)
        seen.append(keys.shape[2])
        return keys, values

    monkeypatch.setattr(EvictingLayer, "update", counted)
    with install_kv_eviction(model, policy="h2o", prefill_chunk=chunk, **SMALL) as eviction:
        generate(model, prompt())
        assert max(record.peak_resident for record in eviction.records) == eviction.peak_resident
    assert max(seen) <= eviction.peak_resident + chunk
    assert model.generation_config.prefill_chunk_size == own


@pytest.mark.parametrize(
    ("name", "policy", "attention"),
    every_value(["tiny-gqa", "tiny-mla"], ["h2o", "snapkv", "tova", "keydiff"], ["sdpa", "eager"]),
)
def test_a_padded_row_says_what_the_row_alone_says(name, policy, attention):
    model = tiny(name)
    own = model.config._attn_implementation
    model.set_attn_implementation(attention)
    ids = prompt(3)
    mask = torch.ones_like(ids)
    mask[1, :25] = 0
    mask[2, :50] = 0
    try:
        with install_kv_eviction(model, policy=policy, **SMALL):
            together = generate(model, ids, attention_mask=mask, new=25)
            for row, padding in enumerate((0, 25, 50)):
                alone = generate(model, ids[row : row + 1, padding:], new=25)
                assert together[row, 60:].tolist() == alone[0, 60 - padding :].tolist()
    finally:
        model.set_attn_implementation(own)


def test_beams_are_reordered_with_their_tokens():
    """With room for all, beam search is what it was; with little, the scores of a beam move with it."""
    model, ids = tiny("tiny-gqa"), prompt(2, 40)
    expected = generate(model, ids, num_beams=3)
    with install_kv_eviction(model, policy="h2o", budget=200):
        assert torch.equal(generate(model, ids, num_beams=3), expected)
    with install_kv_eviction(model, policy="h2o", scope="head", **SMALL):
        out = generate(
            model, ids, num_beams=3, num_return_sequences=3, return_dict_in_generate=True, output_scores=True
        )
        again = generate(model, ids[:1], num_beams=3, num_return_sequences=3)
    assert torch.equal(out.sequences[:3], again), "a row does not depend on its neighbour"
    for layer in out.past_key_values.layers:
        assert layer.keys.shape[0] == layer.state.shape[0] == layer.positions.shape[0] == 6


def test_a_text_does_not_depend_on_the_one_before():
    model = tiny("tiny-gqa")
    with install_kv_eviction(model, policy="h2o", **SMALL):
        first = generate(model, prompt(seed=1))
        generate(model, prompt(2, 80, seed=2))
        assert torch.equal(generate(model, prompt(seed=1)), first)


def test_assisted_generation_is_refused():
    """It takes tokens back that an eviction may have dropped others for."""
    model, ids = tiny("tiny-gqa"), prompt().repeat(1, 2)
    with install_kv_eviction(model, policy="h2o", **SMALL), pytest.raises((ArgumentError, ValueError)):
        generate(model, ids, prompt_lookup_num_tokens=3)


@torch.no_grad()
def test_scores_can_be_reset_within_a_text():
    model = tiny("tiny-gqa")
    with install_kv_eviction(model, policy="h2o", **SMALL) as eviction:
        held = model(prompt(), use_cache=True).past_key_values
        kept = held.layers[0].positions.clone()
        assert held.layers[0].state.any()
        reset_eviction_scores(model)
        assert not any(layer.state.any() for layer in held.layers)
        assert torch.equal(held.layers[0].positions, kept)
        assert eviction.cache is held
        del held
        assert eviction.cache is None, "the install holds no K and V alive"
        reset_eviction_scores(model)


@torch.no_grad()
@pytest.mark.parametrize("policy", [H2O("mean"), H2O("sum")], ids=str)
def test_after_a_reset_the_scores_are_those_of_what_came_since(policy):
    """The mean is over the queries since then, however long the text was before; per row, where one is padded."""
    model, ids = tiny("tiny-gqa", 2), prompt(2, 80)
    mask = torch.ones_like(ids)
    mask[1, :25] = 0
    model.set_attn_implementation("eager")
    shown = model(ids, attention_mask=mask, position_ids=places_of(mask), output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    with install_kv_eviction(model, policy=policy, budget=200, scope="head") as eviction:
        held = eviction.new_cache()

        def read(part):
            seen, at = mask[:, : part.stop], places_of(mask)[:, part]
            model(ids[:, part], attention_mask=seen, position_ids=at, past_key_values=held)

        read(slice(0, 50))
        reset_eviction_scores(model)
        score = eviction.policy.score(held.layers[0].view())
        assert not score.any(), "nothing was seen since: 0, and no 0 / 0"
        read(slice(50, 70))
        read(slice(70, 71))
        held.reorder_cache(torch.tensor([1, 0]))
        held.reorder_cache(torch.tensor([1, 0]))
        for layer, probs in zip(held.layers, shown, strict=True):
            gave = probs[:, :, 50:71, :71].unflatten(1, (2, -1)).sum(2)  # [B, KV head, query, token]
            asked = torch.arange(71, 0, -1).clamp(max=21)  # queries since then that could see the token
            expected = gave.sum(2) / (asked if policy.reduce == "mean" else 1)
            score = policy.score(layer.view())
            real = mask[:, None, :71].bool().expand_as(score)
            assert torch.allclose(score[real], expected[real], atol=1e-5)


def places_of(mask):
    return (mask.cumsum(-1) - 1).clamp(min=0)


def to_meta(given):
    """Tensors, and those of a tuple."""
    if isinstance(given, tuple):
        return tuple(map(to_meta, given))
    return given.to("meta") if isinstance(given, torch.Tensor) else given


def test_each_layers_scores_are_on_its_device():
    """The second layer and what follows lie on the meta device: it has shapes and no numbers, and says where it is."""
    for policy in ("h2o", "keydiff", "tova", "random"):
        model, ids = copy.deepcopy(tiny("tiny-gqa")), prompt(1, 30)
        for module in (model.model.layers[1], model.model.norm, model.lm_head):
            module.to("meta")

        model.model.layers[1].register_forward_pre_hook(
            lambda module, args, kwargs: (to_meta(args), {name: to_meta(kwargs[name]) for name in kwargs}),
            with_kwargs=True,
        )
        with torch.no_grad(), install_kv_eviction(model, policy=policy, **SMALL) as eviction:
            held = eviction.new_cache()
            for token in range(30):  # one by one: a prompt's scores are looked at
                model(ids[:, token : token + 1], past_key_values=held)
        for layer, device in zip(held.layers, ("cpu", "meta"), strict=True):
            assert layer.resident == 17
            kept = [
                layer.keys,
                layer.values,
                layer.positions,
                layer.mean_key,
                layer.state,
                layer.view().lengths,
            ]
            assert {tensor.device.type for tensor in kept if tensor is not None} == {device}


def test_the_model_is_the_same_afterwards():
    model, ids = tiny("tiny-gqa"), prompt(2)
    expected = generate(model, ids)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def attributes():
        return {
            name: (sorted(module.__dict__), len(module._forward_hooks), len(module._forward_pre_hooks))
            for name, module in model.named_modules()
        }

    was, config = attributes(), model.config.to_dict()
    for options in ({}, {"prefill_chunk": 8}, {"policy": "knorm"}, {"positions": "reindexed"}):
        install_kv_eviction(model, **SMALL, **{"policy": "h2o"} | options)
        generate(model, ids)
        remove_kv_eviction(model)
        assert attributes() == was
        assert model.config.to_dict() == config
        assert model.config._attn_implementation == "sdpa"
        assert torch.equal(generate(model, ids), expected)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_installed_twice_removed_twice_and_left_in_between():
    model = tiny("tiny-gqa")
    for code, do in (
        ("eviction_not_installed", lambda: remove_kv_eviction(model)),
        ("eviction_not_installed", lambda: reset_eviction_scores(model)),
    ):
        with pytest.raises(ArgumentError) as refused:
            do()
        assert refused.value.code == code
    with install_kv_eviction(model, policy="h2o", **SMALL) as eviction:
        assert eviction_of(model) is eviction
        with pytest.raises(ArgumentError) as refused:
            install_kv_eviction(model, policy="h2o", **SMALL)
        assert refused.value.code == "eviction_installed"
        assert eviction_of(model) is eviction, "the first one is still there"
        remove_kv_eviction(model)
        with pytest.raises(ArgumentError):
            eviction.remove()
    with pytest.raises(ZeroDivisionError), install_kv_eviction(model, policy="h2o", **SMALL):
        raise ZeroDivisionError
    assert not hasattr(model, "_minikv_eviction")


@torch.no_grad()
def test_an_exception_inside_a_forward():
    """The cache is refused from then on; the model and the next text are not affected."""
    model, ids = tiny("tiny-gqa"), prompt()
    with install_kv_eviction(model, policy="h2o", **SMALL):
        expected = generate(model, ids)
        held = model(ids, use_cache=True).past_key_values

        def fail(*_):
            raise RuntimeError("in the middle")

        hook = model.model.layers[1].mlp.register_forward_pre_hook(fail)
        inside = model.model.layers[1].self_attn.register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            model(ids[:, :1], past_key_values=held)
        hook.remove()
        inside.remove()
        with pytest.raises(ArgumentError) as refused:
            model(ids[:, :1], past_key_values=held)
        assert refused.value.code == "eviction_broken"
        assert torch.equal(generate(model, ids), expected)
        held.reset()
        model(ids, past_key_values=held)
    assert torch.equal(generate(model, ids), generate(tiny("tiny-gqa", 1), ids))


@torch.no_grad()
def test_whoever_holds_an_empty_cache_holds_the_one_that_forgets():
    model, ids = tiny("tiny-gqa"), prompt()
    with install_kv_eviction(model, policy="h2o", **SMALL) as eviction:
        for held in (DynamicCache(), DynamicCache(config=model.config), eviction.new_cache()):
            out = model(ids, past_key_values=held)
            assert out.past_key_values is held
            assert [layer.resident for layer in held.layers] == [17, 17]
            model(ids[:, :1], past_key_values=held)
            assert held.get_seq_length() == 61
        given = model(ids, None, None, held)
        assert given.past_key_values is held, "given by position"
        assert model(ids, use_cache=False).past_key_values is None


@torch.no_grad()
def test_a_prompt_is_kept_for_several_questions():
    model, ids = tiny("tiny-gqa"), prompt()
    with install_kv_eviction(model, policy="h2o", **SMALL) as eviction:
        held = model(ids, use_cache=True).past_key_values
        one, other = copy.deepcopy(held), copy.deepcopy(held)
        question = prompt(tokens=5, seed=3)
        with eviction.paused():
            first = model(question, past_key_values=one).logits
            assert one.layers[0].resident == 17 + 5, "nothing was evicted for the question"
            assert torch.equal(model(question, past_key_values=other).logits, first)
        assert held.layers[0].resident == 17
        model(question, past_key_values=held)
        assert held.layers[0].resident == 17
