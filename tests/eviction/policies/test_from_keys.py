"""Leverage, CUR and LagKV: their formulas in float64, token by token; a padded row scores as it does alone."""

from dataclasses import replace

import pytest
import torch

from minikv.errors import ArgumentError
from minikv.eviction import CUR, LagKV, Leverage, install_kv_eviction
from minikv.eviction.study.suite import answer
from minikv.eviction.study.tasks import make_cases
from tests.eviction.hf.masking import tiny
from tests.eviction.policies.test_literature import view

ALL = [Leverage(), Leverage(0.5), CUR(), LagKV(4), LagKV(7), LagKV(64)]
SIZES = {"budget": 16, "n_sink": 1, "n_recent": 2}  # 19 of 193 tokens, 10 %


def values(tokens, seed=9):
    return torch.randn(2, 3, tokens, 6, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("ridge", [0.01, 0.5])
def test_leverage_is_the_diagonal_of_the_projection(ridge):
    given = view()
    for row in range(2):
        for head in range(3):
            keys = given.keys[row, head].double()
            gram = keys.T @ keys
            level = ridge * gram.diagonal().mean() * torch.eye(8)
            expected = (keys @ torch.linalg.inv(gram + level) @ keys.T).diagonal()
            assert torch.allclose(Leverage(ridge).score(given)[row, head].double(), expected, atol=1e-5)


def test_leverage_is_high_for_what_no_other_key_says():
    keys = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]).expand(2, 3, 4, 2)
    places = torch.arange(4).expand(2, 3, 4)
    given = view(4, keys=keys, positions=places, valid=places[:, 0] >= 0)
    score = Leverage().score(given)
    assert (score.argmax(-1) == 2).all()
    assert torch.allclose(score, Leverage().score(replace(given, keys=keys * 100)), atol=1e-5)


def test_cur_is_the_product_of_squared_lengths():
    given = view(values=values(20))
    expected = given.keys.double().norm(dim=-1) ** 2 * given.values.double().norm(dim=-1) ** 2
    assert torch.allclose(CUR().score(given).double(), expected, rtol=1e-5)


@pytest.mark.parametrize(("tokens", "lag"), [(20, 4), (20, 7), (20, 64), (5, 2), (1, 4)])
def test_lagkv_is_its_formula_partition_by_partition(tokens, lag):
    """From the newest backwards; the newest measures itself, the oldest may be short."""
    given = view(tokens, values=values(tokens))
    score = LagKV(lag).score(given)
    for row in range(2):
        for head in range(3):
            expected = torch.zeros(tokens, dtype=torch.float64)
            for states in (given.keys[row, head].double(), given.values[row, head].double()):
                for end in range(tokens, 0, -lag):
                    own = states[max(0, end - lag) : end]
                    beside = states[end : end + lag] if end < tokens else own
                    least, most = beside.amin(0), beside.amax(0)
                    spread = ((own - least) / (most - least).clamp(min=1e-6)).std(-1)
                    expected[max(0, end - lag) : end] += spread.softmax(0) * len(own) / lag / 2
            assert torch.allclose(score[row, head].double(), expected, atol=1e-5)


@pytest.mark.parametrize("policy", ALL, ids=str)
def test_a_padded_row_scores_as_alone(policy):
    padded = view(20, padding=6, values=values(20))
    alone = view(14, keys=padded.keys[:, :, 6:], values=padded.values[:, :, 6:])
    ours, want = policy.score(padded)[1], policy.score(alone)[1]
    assert torch.allclose(ours[:, 6:], want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("policy", ALL, ids=str)
def test_keys_that_are_all_alike_are_no_error(policy):
    for keys in (torch.zeros(2, 3, 20, 8), torch.ones(2, 3, 20, 8)):
        assert policy.score(view(keys=keys, values=keys)).isfinite().all()


@pytest.mark.parametrize("policy", ["leverage", "cur", "lagkv"])
def test_by_name_it_keeps_more_facts_than_chance(policy):
    model, cases = tiny("tiny-gqa"), make_cases("multikey", 8, seed=2000)

    def recall(policy):
        evicting = lambda model: install_kv_eviction(model, policy=policy, scope="head", **SIZES)  # noqa: E731
        return answer(model, cases, evicting=evicting).share

    assert recall(policy) > recall("random") + 0.1


def test_refusals():
    for wrong in (lambda: Leverage(0), lambda: Leverage(2), lambda: Leverage("1"), lambda: LagKV(1)):
        with pytest.raises(ArgumentError):
            wrong()
