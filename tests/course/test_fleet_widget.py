"""The fleet widget without a browser: the simulation's answers, drawn and said; bad settings are shown."""

import json
import math

import numpy as np
import pytest

from minikv.course.widgets import FleetWidget
from minikv.course.widgets.fleet import Y_HIGH, Y_LOW, faster, seconds_text
from minikv.errors import ArgumentError, UnknownNameError
from minikv.i18n import LANGUAGES
from minikv.simulate import Fleet, Load, simulate
from minikv.units import GIB
from tests.course.forms import options
from tests.in_turn import in_turn

TRACE = Load(
    40, 4.0, prompt_tokens=300, output_tokens=20, turns=3, think_seconds=5, system_tokens=4096
).trace()


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"replicas": 4, "router": "round-robin"},
        {"replicas": 3, "router": "least-loaded", "load": 2.0},
        {"gpu": "H100 SXM 80GB", "host_gib": 64},
    ],
)
def test_everything_shown_is_what_the_simulation_says(state):
    widget = FleetWidget("en", TRACE)
    widget.state = state
    now = widget.state
    fleet = Fleet.plan(
        "Llama-3.1-70B",
        now["gpu"],
        tp=2,
        replicas=now["replicas"],
        router=now["router"],
        block_size=64,
        host_kv_bytes=now["host_gib"] * GIB,
    )
    outcome = simulate(faster(TRACE, now["load"]), fleet)
    answers, view = outcome.answers(), widget.view
    shares = {part["key"]: part["share"] for part in view["bar"]["parts"]}
    assert shares["device"] == pytest.approx(answers.hit_rate)
    assert shares["host"] == pytest.approx(answers.host_hit_rate)
    assert sum(shares.values()) == pytest.approx(1)
    values = {mark["key"]: mark["value"] for mark in view["plot"]["marks"]}
    assert values == pytest.approx(
        {"p50": answers.ttft.p50, "p90": answers.ttft.p90, "p99": answers.ttft.p99}
    )
    assert f"{2 * now['replicas']} GPUs" in view["status"]
    assert view["status"].split(" GPUs ")[1].startswith("keep" if answers.ttft.p99 <= 2 else "do not keep")
    rows = {row["key"]: row["values"] for row in view["table"]}
    assert rows["ttft"] == [
        seconds_text(each) for each in (answers.ttft.p50, answers.ttft.p90, answers.ttft.p99)
    ]
    assert rows["tpot"][0] == seconds_text(answers.tpot.p50)
    assert not view["error"]
    json.dumps(view)


def test_the_curve_rises_and_the_marks_lie_on_it():
    widget = FleetWidget("en", TRACE, replicas=1, load=2.0)
    curve, marks = widget.view["plot"]["curve"], widget.view["plot"]["marks"]
    assert len(curve) == 101
    for place in (0, 1):
        along = [point[place] for point in curve]
        assert along == sorted(along)
        assert along[0] >= 0
        assert along[-1] <= 1
    assert all([mark["x"], mark["y"]] in curve for mark in marks)
    bound = widget.view["plot"]["bound"]["y"]
    ticks = dict((label, place) for place, label in widget.view["plot"]["y_ticks"])
    assert ticks["1"] < bound < ticks["10"]
    assert bound == pytest.approx(math.log(2 / Y_LOW) / math.log(Y_HIGH / Y_LOW))


def test_what_was_seen_is_not_simulated_again():
    widget = FleetWidget("en", TRACE)
    for state in ({"replicas": 3}, {"replicas": 2}, {"replicas": 3}, dict(widget.form["defaults"])):
        widget.state = state
    assert widget._run.cache_info().misses == 2


def test_the_reader_can_see_what_the_lesson_says():
    """More replicas wait less; the prefix finds more than turns do; small memory finds less, and host memory brings
    it back."""
    widget = FleetWidget("en", TRACE, load=2.0)
    found, p99 = {}, {}
    for name, state in {
        "one": {"replicas": 1},
        "four": {"replicas": 4},
        "turns": {"replicas": 4, "router": "round-robin"},
    }.items():
        widget.state = {**widget.form["defaults"], **state}
        found[name] = widget.view["bar"]["parts"][0]["share"]
        p99[name] = widget.view["plot"]["marks"][-1]["value"]
    assert p99["four"] < p99["one"]
    assert found["four"] > found["turns"]


@pytest.fixture
def widgets():
    """One in each language."""
    return [FleetWidget(lang, TRACE) for lang in LANGUAGES]


@in_turn(
    "state, words",
    [
        ({"replicas": 0}, "replicas"),
        ({"replicas": 1.5}, "replicas"),
        ({"replicas": None}, "replicas"),
        ({"router": "fastest"}, "fastest"),
        ({"router": None}, "None"),
        ({"host_gib": -2}, "host_gib"),
        ({"host_gib": "all"}, "host_gib"),
        ({"load": 0}, "load"),
        ({"load": "much"}, "load"),
        ({"gpu": "H9000"}, "H9000"),
        ({"gpu": "RTX 4090"}, "Llama-3.1-70B"),
        ({"gpu": None}, "None"),
        ({"gpu": ["H200"]}, "gpu"),
        ({"router": {"a": 1}}, "router"),
    ],
)
def test_settings_that_cannot_be_are_shown_and_the_widget_goes_on(widgets, state, words):
    for widget in widgets:
        widget.state = state
        assert widget.view["error"]
        assert words in widget.view["status"]
        assert widget.view["plot"] is None
        assert widget.view["bar"] is None
        assert widget.view["table"] == []
        assert widget.text() == widget.view["status"]
        widget.state = dict(widget.form["defaults"])
        assert not widget.view["error"]


def test_a_start_that_cannot_be_is_refused():
    with pytest.raises(UnknownNameError):
        FleetWidget("en", TRACE, gpu="H9000")
    with pytest.raises(UnknownNameError):
        FleetWidget("en", TRACE, model="nope")
    with pytest.raises(ArgumentError):
        FleetWidget("en", [1, 2])
    with pytest.raises(ArgumentError):
        FleetWidget("fr", TRACE)


def test_what_is_offered_can_be_answered():
    widget = FleetWidget("en", TRACE.head(12))
    for key in ("gpu", "replicas", "router", "host_gib", "load"):
        assert len(options(widget, key)) >= 3
        offered = options(widget, key)
        for value in offered if key != "gpu" else offered[::4]:
            widget.state = {**widget.form["defaults"], key: value}
            assert not widget.view["error"], (key, value)
    assert "RTX 4090" not in options(widget, "gpu")


def test_faster_traffic_is_the_same_requests_earlier():
    quick = faster(TRACE, 4.0)
    assert quick.duration == pytest.approx(TRACE.duration / 4)
    assert [each.hash_ids for each in quick.requests] == [each.hash_ids for each in TRACE.requests]


def test_seconds_have_three_digits_and_no_powers_of_ten():
    assert [seconds_text(each) for each in (0, 0.00009, 0.04123, 1.2678, 218.4, 1234.5)] == [
        "0", "0", "0.0412", "1.27", "218", "1,234",
    ]  # fmt: skip
    draw = np.random.default_rng(3)
    for seconds in 10 ** draw.uniform(-4, 5, 200):
        said = seconds_text(float(seconds))
        assert float(said.replace(",", "")) == pytest.approx(seconds, rel=6e-3)
        assert "e" not in said


def test_the_text_is_the_same_answer_in_both_languages():
    english, chinese = FleetWidget("en", TRACE).text(), FleetWidget("zh", TRACE).text()
    assert english.isascii()
    assert "块 GPU" in chinese
    for row in FleetWidget("en", TRACE).view["table"]:
        for value in row["values"]:
            assert value in english
            assert value in chinese
