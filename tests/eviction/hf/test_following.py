"""What the tests on a GPU compare with a CPU, tried on a CPU that rounds otherwise: a model in float64."""

import copy

import pytest
import torch

from minikv.eviction import POLICIES, install_kv_eviction
from tests.eviction.hf.following import Following, Told, generate, prompt
from tests.eviction.hf.masking import tiny

SMALL = {"budget": 9, "n_sink": 2, "n_recent": 6}


def scores_of(policy, model, sequences):
    told = Told(policy, [])
    with install_kv_eviction(model, policy=told, **SMALL), torch.no_grad():
        model(sequences, use_cache=True)
    return told.scores


@pytest.mark.parametrize("policy", ["h2o", "keydiff"])
def test_who_rounds_otherwise_follows_and_who_scores_otherwise_is_found(policy):
    model, ids = tiny("tiny-gqa"), prompt(1, 30)
    due = scores_of(POLICIES[policy](), model, ids)
    assert due
    other = copy.deepcopy(model).double()
    following = Following(POLICIES[policy](), iter(due), [])
    with install_kv_eviction(other, policy=following, **SMALL), torch.no_grad():
        other(ids, use_cache=True)
    assert 0 < max(following.compared) < 1e-3
    wrong = Following(POLICIES["knorm"](), iter(due), [])
    with (
        install_kv_eviction(model, policy=wrong, **SMALL),
        torch.no_grad(),
        pytest.raises(AssertionError, match="close"),
    ):
        model(ids, use_cache=True)


def test_the_first_run_is_as_if_nobody_looked_on():
    model, ids = tiny("tiny-gqa"), prompt(1, 30)
    with install_kv_eviction(model, policy="h2o", **SMALL):
        plain = generate(model, ids, 4).sequences
    with install_kv_eviction(model, policy=Told(POLICIES["h2o"](), []), **SMALL):
        assert torch.equal(generate(model, ids, 4).sequences, plain)
