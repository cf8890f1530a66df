"""The roofline widget without a browser: the planner's numbers, drawn and said; bad settings are shown."""

import json
import math
import random

import pytest

from minikv.course.widgets.roofline import MAX_BATCH, X_HIGH, X_LOW, RooflineWidget
from minikv.errors import ArgumentError, UnknownNameError
from minikv.i18n import LANGUAGES
from minikv.plan import CacheSpec, find_gpu
from minikv.plan.roofline import Roof, decode_work, gpu_roof, ridge_batch
from minikv.plan.weights.weight_bytes import weight_list
from tests.course.forms import options
from tests.in_turn import in_turn

SLOW = Roof("this machine", 40.0, 0.2)


def test_the_marks_are_the_planners_intensities_and_stand_on_the_roof():
    rng = random.Random(1)
    widget = RooflineWidget(measured=SLOW)
    models, gpus = options(widget, "model"), options(widget, "gpu")
    for _ in range(30):
        state = {
            "model": rng.choice(models),
            "gpu": rng.choice(gpus),
            "batch": rng.randint(1, MAX_BATCH),
            "context": rng.randint(1, 100_000),
            "kv_dtype": rng.choice([None, "fp8"]),
        }
        widget.state = state
        work = decode_work(state["model"], state["batch"], state["context"], kv_dtype=state["kv_dtype"])
        roof = SLOW if state["gpu"] == SLOW.name else gpu_roof(find_gpu(state["gpu"]))
        plot, status = widget.view["plot"], widget.view["status"]
        values = {mark["key"]: mark["value"] for mark in plot["marks"]}
        assert values == pytest.approx(
            {"step": work.intensity, "weights": work.weight_intensity, "attention": work.attention_intensity}
        )
        memory_bound = work.intensity < roof.ridge
        assert status.startswith("Memory-bound" if memory_bound else "Compute-bound")
        assert f"{roof.ridge:,.1f}" in status
        assert not widget.view["error"]
        (left, low), (corner, top), (right, level) = plot["roof"]
        assert (left, right, top) == (0, 1, level)
        assert 0 <= low < top <= 1
        for mark in plot["marks"]:
            assert 0 <= mark["x"] <= 1
            expected = top if mark["x"] >= corner else low + (top - low) * mark["x"] / corner
            assert mark["y"] == pytest.approx(expected)
        for ticks in (plot["x_ticks"], plot["y_ticks"]):
            places = [place for place, _ in ticks]
            assert places == sorted(places)
            assert len(ticks) >= 3
            assert places[0] >= -1e-9
            assert places[-1] <= 1 + 1e-9
        json.dumps(widget.view)


def test_the_status_says_the_floor_the_waiting_and_the_ridge_batch():
    widget = RooflineWidget(batch=8, context=100)
    work, roof = decode_work("Llama-3.1-8B", 8, 100), gpu_roof(find_gpu("H200"))
    seconds = roof.seconds(work.flops, work.num_bytes)
    status = widget.view["status"]
    assert f"{seconds * 1e3:.2f} ms" in status
    assert f"{8 / seconds:,.0f} tokens/s" in status
    assert f"{1 - work.intensity / roof.ridge:.1%}" in status
    assert f"batch of {ridge_batch('Llama-3.1-8B', 100, roof):,}" in status
    widget.state = {"context": 8192}
    assert "no batch reaches the ridge" in widget.view["status"]


def test_the_table_adds_up():
    widget = RooflineWidget(model="Qwen3-8B", batch=3, context=5000)
    rows = {row["key"]: row["values"] for row in widget.view["table"]}
    for column in (0, 1):
        parts = [float(rows[key][column].replace(",", "")) for key in ("weights", "attention", "step")]
        assert parts[0] + parts[1] == pytest.approx(parts[2], abs=0.11)
    assert [row["key"] for row in widget.view["table"]] == ["weights", "attention", "step"]


def test_weights_that_no_step_reads_must_fit_as_well():
    widget = RooflineWidget(model="DeepSeek-V3", gpu="H200")
    assert decode_work("DeepSeek-V3", 1, 4096).num_bytes < find_gpu("H200").total_bytes
    assert "more than the card" in widget.view["status"]
    held = sum(weight.bytes for weight in weight_list("DeepSeek-V3"))
    held += CacheSpec.from_config("DeepSeek-V3").bytes_for(4096)
    assert f"{held / 2**30:,.1f} GiB" in widget.view["status"]


def test_more_bytes_than_the_card_has_are_said():
    widget = RooflineWidget(gpu="RTX 4090", batch=1, context=1000)
    assert "more than the card" not in widget.view["status"]
    widget.state = {"batch": 256, "context": 8192}
    assert "more than the card" in widget.view["status"]
    widget = RooflineWidget(measured=SLOW, gpu=SLOW.name, batch=4096)
    assert "more than the card" not in widget.view["status"], "nobody told how much this machine has"


@pytest.fixture
def widgets():
    """One in each language."""
    return [RooflineWidget(lang) for lang in LANGUAGES]


@in_turn(
    "state, words",
    [
        ({"batch": 0}, "batch"),
        ({"batch": MAX_BATCH + 1}, "batch"),
        ({"batch": 1.5}, "batch"),
        ({"batch": None}, "batch"),
        ({"context": True}, "context"),
        ({"context": 2**70}, "context"),
        ({"kv_dtype": "fp7"}, "fp7"),
        ({"model": "Jamba-v0.1"}, "linear"),
        ({"model": "nobody/none"}, "none"),
        ({"gpu": "H9000"}, "H9000"),
        ({"gpu": "Jetson AGX Orin 64GB"}, "Orin"),
        ({"gpu": None}, "None"),
    ],
)
def test_settings_that_cannot_be_are_shown_and_the_widget_goes_on(widgets, state, words):
    for widget in widgets:
        widget.state = state
        assert widget.view["error"]
        assert words in widget.view["status"]
        assert widget.view["plot"] is None
        assert widget.view["table"] == []
        assert widget.text() == widget.view["status"]
        widget.state = dict(widget.form["defaults"])
        assert not widget.view["error"]


def test_a_start_that_cannot_be_is_refused():
    with pytest.raises(UnknownNameError):
        RooflineWidget(gpu="H9000")
    with pytest.raises(UnknownNameError):
        RooflineWidget(model="nope")
    with pytest.raises(ArgumentError) as refused:
        RooflineWidget(gpu="Jetson AGX Orin 64GB")
    assert refused.value.code == "roof_unknown"
    with pytest.raises(ArgumentError) as refused:
        RooflineWidget(measured=(1, 2))
    assert refused.value.code == "roof_not_a_roof"
    with pytest.raises(ArgumentError):
        RooflineWidget("fr")


def test_what_is_offered_can_be_answered_and_this_machine_comes_first():
    widget = RooflineWidget(measured=SLOW)
    gpus = options(widget, "gpu")
    assert gpus[0] == SLOW.name
    assert "T4" in gpus
    assert "Jetson AGX Orin 64GB" not in gpus
    assert SLOW.name not in options(RooflineWidget(), "gpu")
    for key in ("gpu", "model", "kv_dtype"):
        for value in options(widget, key):
            widget.state = {**widget.form["defaults"], key: value}
            assert not widget.view["error"], (key, value)


def test_an_intensity_beyond_the_plot_is_drawn_at_its_edge():
    widget = RooflineWidget(model="gpt-oss-20b", batch=MAX_BATCH, context=1)
    for mark in widget.view["plot"]["marks"]:
        assert (mark["x"] == 1) == (mark["value"] >= X_HIGH)
        assert mark["value"] > X_LOW
        assert not math.isnan(mark["y"])


def test_the_text_is_the_same_answer_in_both_languages():
    english, chinese = RooflineWidget("en", batch=4).text(), RooflineWidget("zh", batch=4).text()
    assert english.isascii()
    assert "访存受限" in chinese
    for row in RooflineWidget("en", batch=4).view["table"]:
        for value in row["values"]:
            assert value in english
            assert value in chinese
