"""Lesson 14b: what its prose says of its cells is what they show, on fewer texts than the lesson's own."""

import pytest
import torch

from minikv.eviction import Budget, Echo, KeyDiff, install_kv_eviction
from minikv.eviction.study.curves import Fitted, Setting, curve, evicting_with
from minikv.eviction.study.suite import answer
from minikv.eviction.study.tasks import make_cases, stream_cases
from minikv.models import load


@pytest.fixture(scope="module")
def model():
    return load("tiny-gqa", device="cpu").model


def test_no_sink_is_missed(model):
    cases = make_cases("multikey", 8)
    shares = [
        answer(model, cases, evicting=evicting_with("streaming", Budget(n, 36 - n, 12), scope="head")).share
        for n in (0, 4)
    ]
    assert abs(shares[0] - shares[1]) < 0.05


def test_most_answers_go_when_positions_come_from_the_cache(model):
    cases = stream_cases(4, length=161)
    tokens = torch.stack([torch.from_numpy(case.tokens) for case in cases])
    sizes = {"budget": 28, "n_sink": 4, "n_recent": 16}
    shares = []
    for from_cache in (False, True):
        cache, found = None, []
        with torch.no_grad(), install_kv_eviction(model, policy="streaming", scope="head", **sizes):
            for step in range(tokens.shape[1]):
                place = cache.layers[0].resident if from_cache and cache is not None else step
                places = torch.tensor([[place]])
                out = model(tokens[:, step : step + 1], past_key_values=cache, position_ids=places)
                cache = out.past_key_values
                found.append(out.logits[:, -1].argmax(-1).tolist())
        asked = [(row, question) for row, case in enumerate(cases) for question in case.asked]
        right = sum(found[each.positions[0]][row] == each.answers[0][0] for row, each in asked)
        shares.append(right / len(asked))
    assert shares[0] > 2 * shares[1]


def test_the_second_layer_needs_the_budget(model):
    """Equal shares, then all of it for the second layer."""

    class Last(KeyDiff):
        def layer_budgets(self, budget, num_layers):
            return 0, num_layers * budget

    cases = make_cases("multikey", 8)
    for capacity, least in ((19, 0.8), (48, 0.95)):
        sizes = Budget(4, capacity - 4 - capacity // 4, capacity // 4)
        equal, last = (
            answer(model, cases, evicting=evicting_with(policy, sizes, scope="head")).share
            for policy in (KeyDiff(), Last())
        )
        assert last > max(least, equal)


def test_fitted_echo_finds_the_second_layer_by_itself(model):
    policies = {"keydiff": KeyDiff(), "fitted": Fitted(Echo(), by=Echo())}
    points = list(curve(model, policies, [Setting(kept=0.1)], count=8, scope="head"))
    shares = {point.policy: point.score.share for point in points}
    assert shares["fitted"] > max(0.85, shares["keydiff"] + 0.2)
