"""The heat-map widget without a browser: what the model's trace says is drawn; bad settings are shown."""

import json
from dataclasses import dataclass

import pytest

from minikv.course.widgets.heat_map import MAX_TOKENS, HeatMapWidget, budget_of
from minikv.errors import ArgumentError, MiniKVError
from minikv.eviction.policies.literature import POLICIES
from minikv.eviction.policies.policy import Needs, Policy
from minikv.i18n import LANGUAGES
from minikv.models import load, recall_documents
from minikv.models.recall import WORDS
from tests.course.forms import options
from tests.in_turn import in_turn


@pytest.fixture(scope="module")
def model():
    return load("tiny-gqa", device="cpu", dtype="fp32").model


@pytest.fixture
def widget(model):
    return HeatMapWidget(model=model)


def test_what_is_drawn_is_what_the_model_kept(widget):
    for policy in options(widget, "policy"):
        widget.state = {"policy": policy, "share": 0.1}
        assert not widget.view["error"], widget.view["status"]
        trace = widget.trace
        assert sum(trace.capacity) == budget_of(0.1, trace.length).capacity * len(trace.layers)
        for place, layer in enumerate(trace.layers):
            for head in range(trace.heads):
                roles = widget.view["maps"][str(layer)][str(head)]["roles"]
                kept = [[role in "SHR" for role in row] for row in roles]
                assert kept == trace.kept[place, head].tolist()
        json.dumps(widget.view, allow_nan=False)


def test_every_policy_of_the_package_is_offered_and_a_learners_own_is_taken(model, widget):
    assert options(widget, "policy") == [
        name for name, kind in POLICIES.items() if not kind.needs & Needs.QUERIES
    ]

    @dataclass(frozen=True)
    class Oldest(Policy):
        """Keeps the oldest tokens."""

        def score(self, view):
            return -view.positions.float()

    own = HeatMapWidget(model=model, policies={"oldest": Oldest(), "h2o": "h2o"}, policy="oldest", share=0.25)
    roles = own.view["maps"]["0"]["0"]["roles"][-1]
    budget = budget_of(0.25, len(roles))
    first = budget.n_sink + budget.budget
    assert roles == "S" * budget.n_sink + "H" * budget.budget + "-" * (
        len(roles) - first - budget.n_recent - 1
    ) + ("x" + "R" * budget.n_recent)


def test_only_a_policy_or_a_share_makes_new_rows(widget):
    sent = []
    widget.observe(lambda change: sent.append(change["new"]), "view")
    first = widget.view
    for state in ({"step": 3}, {"layer": 0}, {"head": 1}, {"rows": "heads"}, {"shade": "rank"}):
        widget.state = state
    assert sent == []
    widget.state = {"share": 0.5}
    assert len(sent) == 1
    widget.state = {"share": 0.25}
    assert sent[1:] == [first]


def test_a_larger_share_keeps_more(widget):
    kept = {}
    for share in options(widget, "share"):
        widget.state = {"share": share}
        kept[share] = int(widget.trace.kept[0, 0, -1].sum())
    assert kept == {share: round(share * 72) for share in (0.5, 0.25, 0.1)}


def test_the_capacity_is_shared_out_for_every_length():
    for length in range(8, MAX_TOKENS + 1):
        for share in (0.01, 0.1, 0.25, 0.5, 1):
            budget = budget_of(share, length)
            assert budget.capacity == max(3, round(share * length))
            assert 0 <= budget.n_sink <= 4
            assert 2 <= budget.n_recent <= 8
            assert budget.budget >= 1


def test_one_row_a_token_has_one_head(model):
    latents = load("tiny-mla", device="cpu", dtype="fp32").model
    widget = HeatMapWidget(model=latents)
    assert options(widget, "head") == [None]
    assert list(widget.view["maps"]["1"]) == ["all"]
    assert widget.trace.heads == 1
    widget.state = {"rows": "heads", "share": 0.1}
    assert not widget.view["error"]
    widget.state = {"head": 0}
    assert widget.view["error"]


def test_the_text_is_the_chosen_step_in_both_languages(model):
    english, chinese = (HeatMapWidget(lang, model=model, step=20) for lang in LANGUAGES)
    words = english.form["words"]
    assert english.text().isascii()
    assert "近期窗口" in chinese.text()
    for widget in (english, chinese):
        roles = widget.view["maps"]["1"]["all"]["roles"][20]
        recent = " ".join(words[token] for token, role in enumerate(roles) if role == "R")
        assert recent in widget.text()
        assert widget.view["maps"]["1"]["all"]["status"][20] in widget.text()
        again = HeatMapWidget(widget._lang, model=model, step=20)
        assert again.text() == widget.text()
        json.dumps(dict(widget.form), allow_nan=False)


@pytest.fixture
def widgets(model):
    """One in each language."""
    return [HeatMapWidget(lang, model=model) for lang in LANGUAGES]


@in_turn(
    "state, words",
    [
        ({"policy": "h3o"}, "h3o"),
        ({"policy": ["h2o"]}, "h2o"),
        ({"share": 0}, "share"),
        ({"share": 1.5}, "share"),
        ({"share": "half"}, "share"),
        ({"share": True}, "share"),
        ({"layer": 2}, "layer"),
        ({"layer": False}, "layer"),
        ({"head": 2}, "head"),
        ({"head": False}, "head"),
        ({"rows": "columns"}, "columns"),
        ({"shade": None}, "shade"),
        ({"step": -1}, "step"),
        ({"step": 49}, "step"),
        ({"step": 1.5}, "step"),
    ],
)
def test_settings_that_cannot_be_are_shown_and_the_widget_goes_on(widgets, state, words):
    for widget in widgets:
        widget.state = state
        assert widget.view["error"]
        assert words in widget.view["status"]
        assert widget.text() == widget.view["status"]
        with pytest.raises(ArgumentError):
            widget.trace  # noqa: B018
        widget.state = dict(widget.form["defaults"])
        assert not widget.view["error"]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ({"lang": "fr"}, "unknown_language"),
        ({"policy": "no"}, "unknown_choice"),
        ({"share": 0}, "out_of_range"),
        ({"step": 50}, "out_of_range"),
        ({"layer": 7}, "unknown_choice"),
        ({"policies": {}}, "bad_count"),
        ({"prompt": 0}, "bad_count"),
        ({"prompt": 73}, "out_of_range"),
        ({"layers": [5]}, "unknown_choice"),
        (
            {"document": recall_documents(1, context=MAX_TOKENS - 3, facts=4, span=3, queries=1)[0]},
            "out_of_range",
        ),
        ({"document": recall_documents(1, context=3, facts=1, span=3, queries=1)[0]}, "bad_count"),
    ],
)
def test_a_start_that_cannot_be_is_refused(model, bad, code):
    with pytest.raises(MiniKVError) as refused:
        HeatMapWidget(**{"model": model, **bad})
    assert refused.value.code == code
    assert all(refused.value.text(lang) for lang in LANGUAGES)


def test_too_many_cells_are_refused_with_the_way_out(model, monkeypatch):
    monkeypatch.setattr("minikv.course.widgets.heat_map.MAX_CELLS", 2 * 2 * 49 * 72 - 1)
    with pytest.raises(ArgumentError) as refused:
        HeatMapWidget(model=model)
    assert refused.value.code == "heat_map_cells"
    assert "layers=" in str(refused.value)
    assert HeatMapWidget(model=model, layers=[1]).trace.layers == (1,)


def test_words_are_said_by_the_reader_of_the_tokens(model):
    widget = HeatMapWidget(model=model, word=lambda token: f"<{WORDS[token]}>")
    assert widget.form["words"][0] == "<<bos>>"
    assert "<" in widget.text()
