"""Curves: the same cases for all, the full cache first, and what is installed beside masks on a full cache."""

from math import log

import pytest
import torch

from minikv.errors import ArgumentError
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.literature import H2O, KeyDiff, Knorm, StreamingLLM
from minikv.eviction.study.curves import (
    FULL,
    STREAM,
    Fitted,
    Point,
    Setting,
    best,
    curve,
    evicting_with,
    lines,
    shared_out,
)
from minikv.eviction.study.suite import Score, answer
from minikv.eviction.study.tasks import make_cases, stream_cases
from minikv.models import load
from tests.eviction.study.task_masks import Masked
from tests.longer import every_value


@pytest.fixture(scope="module", params=["tiny-gqa", "tiny-mla"])
def tiny(request):
    return load(request.param, device="cpu").model


def scope_of(model):
    return "layer" if model.config.model_type.startswith("deepseek") else "head"


def newest(layer, number):
    positions = torch.arange(layer.keys.shape[2]).float()
    return positions.expand(*layer.keys.shape[:2], -1)


def small(layer, number):
    return -layer.keys.float().norm(dim=-1)


@pytest.mark.parametrize(("policy", "scored"), [(StreamingLLM(), newest), (Knorm(), small)])
@pytest.mark.parametrize("task", ["multikey", "tracking"])
def test_evicting_after_a_prefill_is_hiding(tiny, policy, scored, task):
    cases = make_cases(task, 6, length=97, seed=3)
    sizes = Budget(3, 30, 8)
    hidden = answer(tiny, cases, evicting=lambda model: Masked(model, scored, sizes))
    evicted = answer(tiny, cases, evicting=evicting_with(policy, sizes, scope=scope_of(tiny)))
    assert evicted.nats == pytest.approx(hidden.nats, rel=1e-4)
    assert evicted.right == pytest.approx(hidden.right, abs=1)  # two words may be as likely
    assert evicted.nats != pytest.approx(answer(tiny, cases).nats, rel=1e-3)


@pytest.mark.parametrize(("policy", "every"), every_value([StreamingLLM(), Knorm()], [1, 5]), ids=str)
def test_evicting_while_decoding_is_hiding(tiny, policy, every):
    scored = newest if isinstance(policy, StreamingLLM) else small
    cases = stream_cases(3, length=81, facts=4)
    sizes = Budget(2, 12, 6, every)
    hidden = answer(tiny, cases, evicting=lambda model: Masked(model, scored, sizes), decode=True)
    evicting = evicting_with(policy, sizes, scope=scope_of(tiny))
    evicted = answer(tiny, cases, evicting=evicting, decode=True)
    assert evicted.nats == pytest.approx(hidden.nats, rel=1e-4)
    assert evicted.right == pytest.approx(hidden.right, abs=1)


def test_a_curve_asks_everybody_the_same_and_the_full_cache_first(tiny):
    settings = [Setting(length=65, kept=kept) for kept in (1.0, 0.3)] + [Setting("single", 65, 0.3)]
    policies = {"new": "streaming", "keys": Knorm()}
    points = list(curve(tiny, policies, settings, count=4, scope=scope_of(tiny)))
    assert [(point.policy, point.setting.task, point.setting.kept) for point in points] == [
        (FULL, "multikey", 1.0),
        ("new", "multikey", 1.0),
        ("keys", "multikey", 1.0),
        ("new", "multikey", 0.3),
        ("keys", "multikey", 0.3),
        (FULL, "single", 1.0),
        ("new", "single", 0.3),
        ("keys", "single", 0.3),
    ]
    full, new, keys = (point.score for point in points[:3])
    assert full == answer(tiny, make_cases("multikey", 4, length=65))
    for score in (new, keys):
        assert (score.right, score.asked) == (full.right, full.asked)
        assert score.nats == pytest.approx(full.nats, rel=1e-4)
    assert points[3].score.share < 0.7 < full.share


def test_budgets_are_fitted_on_other_texts_and_store_no_more(tiny):
    setting, scope = Setting(kept=0.1), scope_of(tiny)
    sizes = shared_out(setting.capacity)
    fitted = Fitted(KeyDiff(), by=H2O("max", group="max"))
    policy = fitted.fit(tiny, setting, sizes, scope)
    assert sum(policy.budgets) == sizes.budget * len(policy.budgets)
    asked = {case.tokens.tobytes() for case in setting.cases(8, 1000)}
    assert not asked & {case.tokens.tobytes() for case in setting.cases(fitted.texts, fitted.seed)}
    (_, apart), (_, fixed) = (
        [point.score for point in curve(tiny, {"it": it}, [setting], count=8, seed=1000, scope=scope)]
        for it in (fitted, policy)
    )
    assert apart == fixed


def test_layers_that_need_different_numbers_of_tokens_keep_more_together():
    model, setting = load("tiny-gqa", device="cpu").model, Setting(kept=0.1)
    policies = {"alike": KeyDiff(), "apart": Fitted(KeyDiff(), by=H2O("max", group="max"))}
    _, alike, apart = curve(model, policies, [setting], count=12, seed=1000, scope="head")
    assert alike.score.interval[1] < 0.75 < apart.score.interval[0]


def test_a_capacity_is_shared_out_whole():
    for capacity in range(1, 300):
        sizes = shared_out(capacity)
        assert sizes.capacity == capacity
        assert sizes.n_sink <= 4
        assert sizes.n_recent == max(1, capacity // 4)
        assert sizes.budget >= sizes.n_sink
        assert shared_out(capacity, 8).peak_resident == capacity + 7


def test_a_setting_says_how_many_tokens_stay():
    assert [Setting(kept=kept).capacity for kept in (1, 0.5, 0.25, 0.1, 0.001)] == [193, 96, 48, 19, 1]
    assert len(Setting(STREAM, 129).cases(3, 0)[0].tokens) == 129
    assert Setting("single", 65, seen=True).cases(2, 0)[1].context == 68
    for given in ({"kept": 0}, {"kept": 1.1}, {"kept": float("nan")}, {"length": 3}):
        with pytest.raises(ArgumentError):
            Setting(**given)


def test_points_as_text():
    points = [
        Point(FULL, Setting(kept=1.0), Score(100, 100, 100 * log(7.25), 100)),
        Point("a", Setting(kept=0.25), Score(50, 100, 10 * log(123), 10)),
        Point("a", Setting(kept=0.1), Score(5, 100)),
        Point("b", Setting(kept=0.1), Score(10, 100)),
    ]
    assert best(points[1:]).policy == "a"
    head, full, a, b = lines(points)
    assert head.split()[2:] == ["100", "%", "kept", "25", "%", "kept", "10", "%", "kept"]
    assert full.split() == ["full", "cache", "100.0", "[96,", "100]", "7.2"]
    assert a.split() == ["a", "50.0", "[40,", "60]", "123.0", "5.0", "[2,", "11]", "-"]
    assert b.split() == ["b", "10.0", "[6,", "17]", "-"]
    assert {len(line) for line in (head, full, a, b)} == {24 + 3 * 26}
