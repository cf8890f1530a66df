"""Lesson 14: what its prose says of the curves is what they show, on fewer texts than the lesson's own."""

import pytest

from minikv.course.lessons.l14.recall_chart import recall_chart
from minikv.course.lessons.l14.recall_table import recall_lines
from minikv.eviction import H2O, KeyDiff, Policy, Random, StreamingLLM
from minikv.eviction.study.curves import FULL, Point, Setting, curve
from minikv.eviction.study.suite import Score
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


def test_the_chart_of_recall_draws_what_its_table_says():
    points = [
        Point(FULL, Setting(kept=1.0), Score(40, 40)),
        Point("random", Setting(kept=0.5), Score(20, 40)),
        Point("h2o", Setting(kept=0.5), Score(10, 40)),
    ]
    chart = recall_chart(points)
    assert chart.text() == "\n".join(recall_lines(points))
    assert [(line.name, list(line.x), list(line.y)) for line in chart.figure.data] == [
        ("random", [100, 50], [100, 50]),
        ("h2o", [100, 50], [100, 25]),
    ]
    assert len({(line.line.dash, line.marker.symbol) for line in chart.figure.data}) == 2
