"""Lesson 14: what its prose says of the curves is what they show, on fewer texts than the lesson's own."""

import pytest
import torch

from minikv.course.lessons.l14.recall_table import recall_lines
from minikv.eviction import H2O, Budget, Echo, KeyDiff, Policy, Random, StreamingLLM, install_kv_eviction
from minikv.eviction.study.curves import FULL, Fitted, Point, Setting, curve, evicting_with
from minikv.eviction.study.suite import Score, answer
from minikv.eviction.study.tasks import make_cases, stream_cases
from minikv.eviction.study.trace import trace_eviction
from minikv.models import load, recall_documents

POLICIES: dict[str, str | Policy] = {
    "random": Random(),
    "streaming": StreamingLLM(),
    "h2o sum": H2O("sum"),
    "h2o max": H2O("max"),
    "keydiff": KeyDiff(),
}


@pytest.fixture(scope="module")
def model():
    return load("tiny-gqa", device="cpu").model


def shown(model, setting: Setting, scope: str = "head") -> dict:
    """{policy: its score} on eight texts."""
    points = curve(model, POLICIES, [setting], count=8, scope=scope)  # type: ignore[arg-type]
    return {point.policy: point.score for point in points}


def test_a_sum_of_attention_is_below_chance_and_perplexity_does_not_say_so(model):
    scores = shown(model, Setting(kept=0.25))
    assert scores[FULL].share > 0.95
    assert scores["keydiff"].share > 0.9
    assert scores["h2o sum"].share < 0.1 < scores["random"].share / 2
    assert scores["h2o max"].share < scores["random"].share / 2
    assert scores["streaming"].share < scores["random"].share
    assert scores["h2o sum"].perplexity < 1.25 * scores[FULL].perplexity < scores["keydiff"].perplexity


def test_with_the_question_seen_one_glance_is_enough(model):
    scores = shown(model, Setting(kept=0.1, seen=True))
    assert scores["h2o max"].share == 1.0
    assert scores["h2o sum"].share < 0.3


def test_one_list_for_both_heads_costs_chance_half_and_keydiff_nothing(model):
    alone, together = (shown(model, Setting(kept=0.25), scope) for scope in ("head", "layer"))
    assert together["random"].share < 0.7 * alone["random"].share
    assert together["keydiff"].share >= alone["keydiff"].share - 0.01


def test_without_a_window_the_kept_set_stands_still(model):
    [document] = recall_documents(1, seed=1)
    from_prompt = {}
    for n_recent in (1, 12):
        sizes = {"n_sink": 4, "budget": 44 - n_recent, "n_recent": n_recent}
        trace = trace_eviction(
            model, document.tokens[:150], prompt=48, policy=H2O("sum"), scope="head", **sizes
        )
        from_prompt[n_recent] = trace.kept[:, :, -1, :48].sum(-1).mean()
    assert from_prompt[1] > 40 > 34 > from_prompt[12]


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


def test_a_table_has_a_line_for_each_policy_and_a_column_for_each_share():
    points = [
        Point(name, Setting(kept=kept), Score(right, 40))
        for name, kept, right in (
            ("full cache", 1.0, 40),
            ("random", 0.5, 20),
            ("random", 0.1, 4),
            ("h2o", 0.1, 1),
        )
    ]
    head, *rows = recall_lines(points)
    assert head.split() == ["100", "%", "50", "%", "10", "%"]
    assert [row.split()[0] for row in rows] == ["full", "random", "h2o"]
    assert rows[1].split("random")[1].split("  50.0 [35, 65]")[1].strip() == "10.0 [4, 23]"
    assert rows[2].split() == ["h2o", "2.5", "[0,", "13]"]
    assert len(rows[1]) == len(rows[2]) == len(head)


def test_the_perplexity_stands_behind_its_recall():
    """e^2 for 10 words of 20 nats; nothing where no words were read."""
    points = [
        Point("h2o", Setting(kept=0.5), Score(20, 40, 20.0, 10)),
        Point("h2o", Setting(kept=0.1), Score(4, 40)),
    ]
    head, row = recall_lines(points, perplexity=True)
    assert row.split() == ["h2o", "50.0", "[35,", "65]", "7.4", "10.0", "[4,", "23]"]
    assert len(row) == len(head)
