"""Echo: the numbers are what its docstring says, in every way that a text can be read, and they are worth it."""

from copy import deepcopy

import pytest
import torch
from transformers import AttentionInterface, GPT2Config, GPT2LMHeadModel

from minikv.errors import ArgumentError
from minikv.eviction import H2O, Echo, EchoLayers, Needs, Sampled, install_kv_eviction, trace_eviction
from minikv.eviction.hf.cache import evicting_layers
from minikv.eviction.hf.observe import Logits
from minikv.eviction.hf.rotary import find_rotary
from minikv.eviction.policies.echo import echo_stats, turned_on
from minikv.eviction.policies.layered import Layered, measure_layers
from minikv.eviction.study.suite import answer
from minikv.eviction.study.tasks import make_cases, stream_cases
from tests.eviction.hf.masking import TOLERANCE, largest_difference, small, tiny

SIZES = {"budget": 16, "n_sink": 1, "n_recent": 2}  # 19 of 193 tokens, 10 %
QUARTER = {"budget": 45, "n_sink": 1, "n_recent": 2}


def ids(rows=2, tokens=40, seed=0, words=190):
    return torch.randint(4, words, (rows, tokens), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def states(model, tokens, chunks, mask=None, **options):
    """The state of each layer, [B, H, n], after ``tokens`` were read in ``chunks`` and nothing was evicted."""
    with install_kv_eviction(model, **({"policy": Echo(shift=8), "budget": 99} | options)) as eviction:
        cache, start = eviction.new_cache(), 0
        for size in chunks:
            end = start + size
            seen = None if mask is None else mask[:, :end]
            places = None if mask is None else (mask.cumsum(-1) - 1).clamp(min=0)[:, start:end]
            model(tokens[:, start:end], attention_mask=seen, position_ids=places, past_key_values=cache)
            start = end
        return [layer.state.clone() for layer in cache.layers]


def caught_queries(model, tokens, places):
    """What the model's attention is given: query and key [B, H, n, D] of each layer."""
    seen = []

    def catch(module, query, key, value, mask, **options):
        seen.append((query, key))
        return own(module, query, key, value, mask, **options)

    own = AttentionInterface()["sdpa"]
    AttentionInterface.register("caught", catch)
    model.set_attn_implementation("caught")
    try:
        model(tokens, position_ids=places[None], use_cache=False)
    finally:
        model.set_attn_implementation("sdpa")
    return seen


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}, {"sinks": torch.tensor([0.3, -1.0, 2.0, 0.0])}])
@pytest.mark.parametrize("tile", [1, 4 * 2 * 12 * 3, 2**24])
def test_the_sum_is_the_one_described(options, tile, monkeypatch):
    """Against the definition, token by token; whatever the size of a tile."""
    monkeypatch.setattr("minikv.eviction.policies.echo.TILE_ELEMENTS", tile)
    drawn = torch.Generator().manual_seed(1)
    query, key = torch.randn(2, 4, 7, 8, generator=drawn), torch.randn(2, 2, 12, 8, generator=drawn)
    counted, valid = torch.rand(2, 7, generator=drawn) < 0.7, torch.ones(2, 12, dtype=torch.bool)
    valid[1, :3] = False
    how = Logits(0.4, **options)
    found = echo_stats(query, counted, key, how, valid=valid, policy=Echo(), heads=2)
    assert found.shape == (2, 2, 12)
    assert (found[..., :5] == 0).all()
    for row in range(2):
        for asked in range(7):
            for head in range(2):
                best = 0.0
                for of in (2 * head, 2 * head + 1):
                    logits = 0.4 * key[row, head] @ query[row, of, asked]
                    if "softcap" in options:
                        logits = 3 * torch.tanh(logits / 3)
                    logits[~valid[row]] = -torch.inf
                    if "sinks" in options:
                        logits = torch.cat((logits, options["sinks"][of : of + 1]))
                    best = max(best, float(logits.softmax(0)[5 + asked]) * float(counted[row, asked]))
                assert found[row, head, 5 + asked] == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}, {"sinks": torch.tensor([0.3, -1.0, 2.0, 0.0])}])
@pytest.mark.parametrize("tile", [1, 4 * 2 * 12 * 3, 2**24])
def test_a_sampled_sum_stands_for_the_whole(options, tile, monkeypatch):
    """Token by token: the drawn keys but its own, times the share that they are of all others."""
    monkeypatch.setattr("minikv.eviction.policies.echo.TILE_ELEMENTS", tile)
    drawn = torch.Generator().manual_seed(2)
    query, key = torch.randn(2, 4, 20, 8, generator=drawn), torch.randn(2, 2, 24, 8, generator=drawn)
    valid = torch.ones(2, 24, dtype=torch.bool)
    valid[1, :8] = False
    how, counted = Logits(0.4, **options), torch.ones(2, 20, dtype=torch.bool)
    policy = Echo(keys=6, group="mean")
    found = echo_stats(query, counted, key, how, valid=valid, policy=policy, heads=4)
    for row, slots in ((0, [2, 6, 10, 14, 18, 22]), (1, [9, 12, 14, 17, 20, 22])):
        for asked in range(20):
            others = [slot for slot in slots if slot != 4 + asked]
            for of in range(4):
                logits = 0.4 * key[row, of // 2] @ query[row, of, asked]
                logits = 3 * torch.tanh(logits / 3) if "softcap" in options else logits
                share = (int(valid[row].sum()) - 1) / len(others)
                total = logits[4 + asked].exp() + share * logits[others].exp().sum()
                total += options["sinks"][of].exp() if "sinks" in options else 0
                expected = float(logits[4 + asked].exp() / total)
                assert found[row, of, 4 + asked] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("keys", [5, 9])
def test_a_padded_row_draws_the_keys_of_the_row_alone(keys):
    tokens, model = ids(2, 24), tiny("tiny-gqa")
    mask = torch.ones_like(tokens)
    mask[1, :7] = 0
    policy = Echo(keys=keys)
    padded = states(model, tokens, [24], mask, policy=policy)
    for ours, want in zip(padded, states(model, tokens[1:, 7:], [17], policy=policy), strict=True):
        assert torch.allclose(ours[1:, :, 7:], want, atol=1e-5)


def test_few_keys_lose_little_recall():
    model, cases = tiny("tiny-gqa"), make_cases("multikey", 12, seed=2000)

    def recall(policy):
        evicting = lambda model: install_kv_eviction(model, policy=policy, scope="head", **SIZES)  # noqa: E731
        return answer(model, cases, evicting=evicting).share

    assert abs(recall(Echo(keys=48)) - recall(Echo(keys=193))) <= 0.05


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
@torch.no_grad()
def test_a_turned_query_is_the_later_one(name):
    """Hidden states do not depend on where a text begins, so the model itself says what a later query is."""
    model, tokens, latent = tiny(name), ids(1), name == "tiny-mla"
    rotary, places = find_rotary(model, latent), torch.arange(40)
    at_end = model.config.qk_rope_head_dim if latent else None
    now, later = caught_queries(model, tokens, places), caught_queries(model, tokens, places + 64)
    for (query, _), (moved, _) in zip(now, later, strict=True):
        assert not torch.allclose(query, moved, atol=0.05)
        assert torch.allclose(turned_on(query, rotary, 64, at_end), moved, atol=1e-4)


@pytest.mark.parametrize(("name", "heads"), [("tiny-gqa", 2), ("tiny-mla", 1)])
@torch.no_grad()
def test_a_state_is_the_probability_of_the_later_query(name, heads):
    """In one forward every key counts; token by token only those up to the token itself."""
    model, tokens = tiny(name), ids(1)
    now, later = (caught_queries(model, tokens, torch.arange(40) + shift) for shift in (0, 8))
    scale = model.model.layers[0].self_attn.scaling
    whole, stepwise = states(model, tokens, [40]), states(model, tokens, [1] * 40)
    for layer, ((_, key), (query, _)) in enumerate(zip(now, later, strict=True)):
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        logits = (query @ key.transpose(2, 3))[:, :, :-1] * scale
        for state, mask in ((whole, None), (stepwise, torch.ones(39, 40).tril(1) == 0)):
            seen = logits if mask is None else logits.masked_fill(mask, -torch.inf)
            asked = seen.softmax(-1).diagonal(offset=1, dim1=2, dim2=3)
            expected = asked.unflatten(1, (heads, -1)).amax(2)
            assert torch.allclose(state[layer][..., 1:], expected, atol=1e-4)
            assert (state[layer][..., 0] == 0).all()


@pytest.mark.parametrize("chunks", [[13], [5, 8], [1] * 13])
@pytest.mark.parametrize("model_type", ["llama", "deepseek_v3", "gemma"])
def test_a_padded_row_is_the_row_alone(model_type, chunks):
    model = small(model_type)
    tokens = ids(2, 13, words=model.config.vocab_size)
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0
    tokens[1, :4] = 0
    alone = states(model, tokens[1:, 4:], [chunks[0] - 4, *chunks[1:]] if chunks[0] > 4 else [1] * 9)
    for ours, want in zip(states(model, tokens, chunks, mask), alone, strict=True):
        assert torch.allclose(ours[1:, :, 4:], want, atol=1e-5)
        assert (ours[1, :, :4] == 0).all()
        assert (ours[..., 5:] > 0).all()


@torch.no_grad()
def test_rows_take_their_last_query_along():
    """As beams do: the next token is asked for by the query of the row that it continues."""
    model, tokens, order = tiny("tiny-gqa"), ids(3, 20), torch.tensor([2, 0, 0])
    with install_kv_eviction(model, policy=Echo(), budget=99) as eviction:
        cache = eviction.new_cache()
        model(tokens[:, :19], past_key_values=cache)
        cache.reorder_cache(order)
        model(tokens[:, 19:], past_key_values=cache)
        moved = [layer.state for layer in cache.layers]
    mixed = torch.cat((tokens[order, :19], tokens[:, 19:]), 1)
    for ours, want in zip(moved, states(model, mixed, [19, 1], policy=Echo()), strict=True):
        assert torch.allclose(ours, want, atol=1e-6)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("name", "scope"), [("tiny-gqa", "layer"), ("tiny-gqa", "head"), ("tiny-mla", "layer")]
)
def test_compaction_equals_masking(name, scope, attention):
    model, reference = tiny(name), tiny(name, 1)
    for each in (model, reference):
        each.set_attn_implementation(attention)
    try:
        chunks = [30, 9, *[1] * 12]
        sizes = {"budget": 9, "n_sink": 2, "n_recent": 5}
        found = largest_difference(model, reference, ids(2, 51), chunks, policy=Echo(), scope=scope, **sizes)
    finally:
        for each in (model, reference):
            each.set_attn_implementation("sdpa")
    assert found <= TOLERANCE * 10  # logits of trained models are in the tens


def test_the_budgets_of_layers_pass_it_on():
    layered = Layered(Echo(shift=5, keys=9), (0, 32))
    assert layered.needs == Needs.ECHO
    assert (layered.echo_shift, layered.echo_keys) == (5, 9)


@pytest.mark.parametrize("text", [(), tuple(ids(1, 120)[0].tolist())])
@pytest.mark.parametrize(
    ("name", "scope"), [("tiny-gqa", "head"), ("tiny-gqa", "layer"), ("tiny-mla", "layer")]
)
def test_by_name_its_budgets_are_measured_at_the_install(name, scope, text):
    """On random tokens or on a text; nearly all of the budget goes to the layer that recalls. The sum stays."""
    with install_kv_eviction(tiny(name), policy=EchoLayers(text=text), scope=scope, **SIZES) as eviction:
        first, second = eviction.policy.budgets
    assert first + second == 2 * SIZES["budget"]
    assert first <= 3


def test_a_budget_beyond_the_text_is_shared_out_in_proportion():
    for budget in (0, 1, 64, 5000):
        with install_kv_eviction(tiny("tiny-gqa"), policy="echo-layers", budget=budget) as eviction:
            kept = eviction.policy.layer_budgets(budget, 2)
        assert sum(kept) == 2 * budget
        assert kept[0] <= kept[1]


def test_a_wrapper_around_it_is_fitted_too():
    with install_kv_eviction(tiny("tiny-gqa"), policy=Sampled(EchoLayers(), 3), **SIZES) as eviction:
        assert isinstance(eviction.policy.policy, Layered)
        assert eviction.policy.count == 3


@pytest.mark.parametrize("text", [(-1,), (1.5,)])
def test_a_text_is_of_token_ids(text):
    with pytest.raises(ArgumentError):
        EchoLayers(text=text)


@pytest.mark.parametrize("name", ["echo", "echo-layers"])
def test_by_name_it_beats_the_best_of_the_others_at_a_tenth(name):
    model, cases = tiny("tiny-gqa"), make_cases("multikey", 8, seed=2000)

    def recall(policy):
        evicting = lambda model: install_kv_eviction(model, policy=policy, scope="head", **SIZES)  # noqa: E731
        return answer(model, cases, evicting=evicting).share

    assert recall(name) > recall("keydiff") + 0.05


@pytest.mark.parametrize("name", ["echo", "echo-layers"])
def test_a_trace_refuses_it_by_name(name):
    with pytest.raises(ArgumentError) as caught:
        trace_eviction(tiny("tiny-gqa"), range(4, 40), policy=name, budget=4)
    assert caught.value.code == "eviction_no_queries"


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
def test_its_scores_find_the_layer_that_recalls(name):
    model = tiny(name)
    cases = make_cases("multikey", 4, seed=3000)
    texts = torch.stack([torch.from_numpy(case.tokens[: case.context]) for case in cases])
    first, second = measure_layers(model, texts, policy=Echo(), **SIZES)
    assert first + second == 2 * SIZES["budget"]
    assert second >= 28


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
def test_recall_after_a_prompt(name):
    """The question is not known when the prompt is cut down."""
    model, cases = tiny(name), make_cases("multikey", 12, seed=2000)

    def recall(policy, **sizes):
        return answer(
            model, cases, evicting=lambda model: install_kv_eviction(model, policy=policy, **sizes)
        ).share

    assert recall(Echo(), **QUARTER) >= 0.95
    assert recall(H2O(), **QUARTER) < 0.5
    tenth = recall(Echo(), **SIZES)
    assert tenth >= 0.5
    assert recall(Layered(Echo(), (0, 32)), **SIZES) > tenth + 0.15
    assert recall(H2O(), **SIZES) < 0.2


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
def test_recall_while_a_text_goes_on(name):
    model, cases = tiny(name), stream_cases(4, seed=2000, length=161, facts=5)
    sizes = {"budget": 10, "n_sink": 2, "n_recent": 4}  # 16 of 161 tokens

    def recall(policy):
        def evicting(model):
            return install_kv_eviction(model, policy=policy, **sizes)

        return answer(model, cases, evicting=evicting, decode=True).share

    echo = recall(Echo())
    assert echo >= 0.6
    assert echo > recall(H2O()) + 0.3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model_type", ["llama", "gpt_oss", "gemma2", "gemma3_text", "deepseek_v3"])
def test_it_runs_in_the_dtypes_that_people_have_and_beside_windows(model_type, dtype):
    """Where layers with a window have other angles, only those that evict have to be turned."""
    model = deepcopy(small(model_type)).to(dtype)
    tokens = ids(2, 24, words=model.config.vocab_size)
    with install_kv_eviction(model, policy=Echo(keys=9), budget=6, n_sink=1, n_recent=2) as eviction:
        cache = eviction.new_cache()
        model(tokens, past_key_values=cache)
        kept = [layer.resident for layer in evicting_layers(cache)]
    assert set(kept) == {9}


def test_refusals():
    for wrong in ({"shift": -1}, {"shift": 1.5}, {"group": "median"}, {"keys": 1}):
        with pytest.raises(ArgumentError):
            Echo(**wrong)
    learned = GPT2LMHeadModel(GPT2Config(vocab_size=190, n_embd=16, n_layer=2, n_head=2)).eval()
    with pytest.raises(ArgumentError) as caught:
        install_kv_eviction(learned, policy=Echo(), budget=8)
    assert caught.value.code == "eviction_not_rotary"
    with pytest.raises(ArgumentError) as caught:
        trace_eviction(tiny("tiny-gqa"), [2, 5, 6], budget=8, policy=Echo())
    assert caught.value.code == "eviction_no_queries"


@torch.no_grad()
def test_a_query_that_stays_in_place_needs_no_rotary():
    learned = GPT2LMHeadModel(GPT2Config(vocab_size=190, n_embd=16, n_layer=2, n_head=2)).eval()
    learned.requires_grad_(False)
    for state in states(learned, ids(1), [25, *[1] * 15], policy=Echo(shift=0)):
        assert ((state[..., 1:] > 0) & (state[..., 1:] <= 1)).all()
