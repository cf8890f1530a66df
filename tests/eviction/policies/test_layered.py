"""Another budget for each layer: the sum stays, the rest of the policy too, and it pays where layers differ."""

import random

import pytest
import torch

from minikv.errors import ArgumentError
from minikv.eviction import H2O, KeyDiff, Policy, SnapKV, eviction_of, install_kv_eviction
from minikv.eviction.policies.layered import Layered, measure_layers, share_by_score, share_out
from minikv.eviction.policies.sampled import Wrapped
from minikv.eviction.study.suite import answer
from minikv.eviction.study.tasks import make_cases
from tests.eviction.hf.masking import small, tiny

SIZES = {"budget": 16, "n_sink": 1, "n_recent": 2}  # 19 of 193 tokens


@pytest.mark.parametrize(
    "policy", [H2O("max", group="mean"), H2O("decay", decay=0.5), SnapKV(queries=7), KeyDiff()]
)
def test_all_else_is_the_policys(policy):
    """Whatever a policy may say of itself, by name: a new property of Policy must be passed on too."""
    layered = Layered(policy, (3, 5))
    told = [name for name, of in vars(Policy).items() if isinstance(of, property)]
    assert {"over_queries", "over_group", "window"} <= {*told}
    assert layered.needs == policy.needs
    for name in told:
        assert getattr(layered, name) == getattr(policy, name), name
    methods = {name for name, of in vars(Policy).items() if callable(of) and not name.startswith("_")}
    assert methods - {"layer_budgets"} <= {*vars(Wrapped)}


def test_the_weights_of_queries_are_the_policys():
    ages, policy = torch.arange(5), H2O("decay", decay=0.5)
    assert torch.equal(Layered(policy, (1,)).query_weight(ages), policy.query_weight(ages))


@torch.no_grad()
def test_each_layer_keeps_its_own_number():
    model = tiny("tiny-gqa")
    with install_kv_eviction(model, policy=Layered(KeyDiff(), (2, 30)), **SIZES) as eviction:
        cache = eviction.new_cache()
        model(torch.arange(4, 104)[None], past_key_values=cache)
        assert [layer.resident for layer in cache.layers] == [2 + 3, 30 + 3]


@pytest.mark.parametrize("budgets", [(16, 17), (32,), (8, 8, 16), ()])
def test_budgets_that_do_not_add_up(budgets):
    with pytest.raises(ArgumentError) as caught:
        install_kv_eviction(tiny("tiny-gqa"), policy=Layered(KeyDiff(), budgets), **SIZES)
    assert caught.value.code == "eviction_budgets"


@pytest.mark.parametrize(
    ("policy", "budgets"), [("keydiff", (1, 2)), (KeyDiff(), (1, -2)), (KeyDiff(), (1, 2.0))]
)
def test_what_is_no_policy_and_no_count(policy, budgets):
    with pytest.raises(ArgumentError):
        Layered(policy, budgets)


def test_shares_add_up_and_are_near_the_weights():
    drawn = random.Random(0)
    for _ in range(300):
        weights = [
            drawn.choice([0, drawn.random(), drawn.randrange(9)]) for _ in range(drawn.randrange(1, 9))
        ]
        total = drawn.randrange(200)
        if not sum(weights):
            with pytest.raises(ArgumentError):
                share_out(total, weights)
            continue
        shares = share_out(total, weights)
        assert sum(shares) == total
        assert all(
            abs(each - total * of / sum(weights)) < 1 for each, of in zip(shares, weights, strict=True)
        )


@pytest.mark.parametrize("weights", [[], [1, -1, 3], [0, 0]])
def test_weights_that_say_nothing(weights):
    with pytest.raises(ArgumentError) as caught:
        share_out(5, weights)
    assert caught.value.code == "eviction_weights"


@pytest.mark.parametrize(("high", "expected"), [((9, 3), (9, 3)), ((12, 0), (12, 0)), ((6, 6), (6, 6))])
def test_one_threshold_counts_where_the_best_lie(high, expected):
    """12 tokens a row and head over both layers are better than all others; sinks and recent ones do not count."""
    scores = []
    for layer, count in enumerate(high):
        score = torch.rand(2, 3, 40, generator=torch.Generator().manual_seed(layer))
        score[..., :4] = score[..., -8:] = 99
        for row in score.flatten(0, 1):
            row[4 + torch.randperm(28, generator=torch.Generator().manual_seed(layer))[:count]] += 2
        scores.append(score)
    assert share_by_score(scores, budget=6, n_sink=4, n_recent=8) == expected


@pytest.mark.parametrize("budget", [0, 29])
def test_no_threshold_without_tokens_to_choose_from(budget):
    scores = [torch.rand(1, 2, 40)] * 2
    assert sum(share_by_score(scores, budget=28, n_sink=4, n_recent=8)) == 56
    with pytest.raises(ArgumentError):
        share_by_score(scores, budget=budget, n_sink=4, n_recent=8)


@pytest.mark.parametrize("model_type", ["llama", "deepseek_v3"])
def test_measuring_leaves_the_model_alone(model_type):
    model, ids = small(model_type), torch.arange(4, 64).view(2, 30)
    before = model(ids).logits
    count = len(model.model.layers)
    budgets = measure_layers(model, ids, policy=H2O("mean"), budget=5, n_sink=2, n_recent=4)
    assert len(budgets) == count
    assert sum(budgets) == 5 * count
    assert torch.equal(model(ids).logits, before)
    with pytest.raises(ArgumentError):
        eviction_of(model)


@pytest.mark.parametrize("name", ["tiny-gqa", "tiny-mla"])
def test_an_induction_circuit_needs_its_second_layer(name):
    """The same tokens in all. The first layer looks at the last few, so what it keeps of a prompt is lost to recall."""
    model, cases = tiny(name), make_cases("multikey", 12, seed=2000)

    def recall(*budgets):
        policy = Layered(KeyDiff(), budgets)
        return answer(
            model, cases, evicting=lambda model: install_kv_eviction(model, policy=policy, **SIZES)
        ).share

    second, equal, first = recall(0, 32), recall(16, 16), recall(32, 0)
    assert second > 0.9
    assert second > equal + 0.15
    assert first < 0.2
