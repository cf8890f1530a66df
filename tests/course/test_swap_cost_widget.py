"""The swap widget without a browser: the plan's costs, drawn and said; bad settings are shown."""

import json
import random

import pytest

from minikv.course.widgets.swap_cost import MAX_TOKENS, SwapCostWidget, prefill_flops
from minikv.course.widgets.table import milliseconds
from minikv.errors import ArgumentError, UnknownNameError
from minikv.i18n import LANGUAGES
from minikv.plan import CacheSpec, find_gpu
from minikv.plan.flops import step_flops
from minikv.plan.preemption import TransferRates, cheaper_to_swap, recompute_seconds, swap_seconds
from minikv.plan.roofline import gpu_roof
from tests.course.forms import options
from tests.in_turn import in_turn


def seconds_of(widget: SwapCostWidget) -> dict[str, float]:
    return {part["key"]: part["seconds"] for bar in widget.view["bars"] for part in bar["parts"]}


def test_the_bars_are_what_the_plan_says_and_the_cheaper_way_is_named():
    rng = random.Random(1)
    widget, winners = SwapCostWidget(), set()
    models, gpus = options(widget, "model"), options(widget, "gpu")
    for _ in range(40):
        state = {
            "model": rng.choice(models),
            "gpu": rng.choice(gpus),
            "tp": rng.choice([1, 2]),
            "link": rng.choice([1, 8, 50, 450.5]),
            "share": rng.choice([0.05, 0.4, 1]),
            "tokens": rng.randint(1, 60_000),
        }
        widget.state = state
        if widget.view["error"]:
            assert state["tp"] == 2
            continue
        num_bytes = CacheSpec.from_config(state["model"], tp=state["tp"]).bytes_for(state["tokens"])
        roof = gpu_roof(find_gpu(state["gpu"]))
        again = (
            prefill_flops(state["model"], state["tokens"])
            / state["tp"]
            / (roof.tflops * 1e12 * state["share"])
        )
        rates = TransferRates(state["link"] * 1e9, state["link"] * 1e9, state["tokens"] / again)
        seconds = seconds_of(widget)
        assert seconds["out"] + seconds["in"] == pytest.approx(swap_seconds(num_bytes, rates))
        assert seconds["again"] == pytest.approx(recompute_seconds(state["tokens"], rates))
        swaps = cheaper_to_swap(num_bytes, state["tokens"], rates)
        winners.add(swaps)
        assert widget.view["status"].startswith("Swap" if swaps else "Recompute")
        longest = max(seconds["out"] + seconds["in"], seconds["again"])
        for bar in widget.view["bars"]:
            for part in bar["parts"]:
                assert part["share"] == pytest.approx(part["seconds"] / longest)
        json.dumps(widget.view)
    assert winners == {True, False}


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Llama-2-7B", "Qwen2.5-0.5B"])
def test_a_prefill_computes_what_a_cached_step_of_every_token_would(model):
    """With a cache each token is projected once and meets those up to itself; one row of logits is wanted."""
    tokens = 37
    steps = [step_flops(model, seen, cached=True) for seen in range(1, tokens + 1)]
    expected = sum(step.projections + step.attention for step in steps) + steps[-1].lm_head
    assert prefill_flops(model, tokens) == expected


def test_a_window_bounds_what_a_token_sees():
    """Past its windows a model of windows alone costs the same for each further token."""
    costs = [prefill_flops("Mistral-7B-v0.1", tokens) for tokens in (5000, 5001, 5002)]
    assert costs[2] - costs[1] == costs[1] - costs[0]
    early = [prefill_flops("Mistral-7B-v0.1", tokens) for tokens in (50, 51, 52)]
    assert early[2] - early[1] > early[1] - early[0]


def test_ranks_divide_the_heads_but_not_the_latents():
    heads, latents = SwapCostWidget(model="Llama-3.1-70B"), SwapCostWidget(model="DeepSeek-V3")
    for widget, factor in ((heads, 8), (latents, 1)):
        alone = seconds_of(widget)
        widget.state = {"tp": 8}
        shared = seconds_of(widget)
        assert alone["out"] / shared["out"] == pytest.approx(factor)
        assert alone["again"] / shared["again"] == pytest.approx(8)


def test_the_break_even_is_where_the_answer_turns():
    widget = SwapCostWidget(tokens=2048, share=0.5)
    assert widget.view["status"].startswith("Swap")
    seconds = seconds_of(widget)
    turning = 50 * (seconds["out"] + seconds["in"]) / seconds["again"]
    widget.state = {"link": turning * 1.01}
    assert widget.view["status"].startswith("Swap")
    widget.state = {"link": turning * 0.99}
    assert widget.view["status"].startswith("Recompute")


@pytest.fixture
def widgets():
    """One in each language."""
    return [SwapCostWidget(lang) for lang in LANGUAGES]


@in_turn(
    "state, words",
    [
        ({"tokens": 0}, "tokens"),
        ({"tokens": 1.5}, "tokens"),
        ({"tokens": MAX_TOKENS + 1}, "tokens"),
        ({"tokens": True}, "tokens"),
        ({"link": 0}, "link"),
        ({"link": None}, "link"),
        ({"share": 1.1}, "share"),
        ({"share": "all"}, "share"),
        ({"tp": 0}, "tp"),
        ({"model": "Qwen2.5-0.5B", "tp": 8}, "14"),
        ({"model": "nobody/none"}, "none"),
        ({"model": "Jamba-v0.1"}, "linear"),
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
        assert widget.view["bars"] is None
        assert widget.view["table"] == []
        assert widget.text() == widget.view["status"]
        widget.state = dict(widget.form["defaults"])
        assert not widget.view["error"]


def test_a_start_that_cannot_be_is_refused():
    with pytest.raises(UnknownNameError):
        SwapCostWidget(gpu="H9000")
    with pytest.raises(UnknownNameError):
        SwapCostWidget(model="nope")
    with pytest.raises(ArgumentError) as refused:
        SwapCostWidget(gpu="Jetson AGX Orin 64GB")
    assert refused.value.code == "roof_unknown"
    with pytest.raises(ArgumentError):
        SwapCostWidget("fr")


def test_what_is_offered_can_be_answered():
    widget = SwapCostWidget()
    for key in ("gpu", "model"):
        for value in options(widget, key):
            widget.state = {**widget.form["defaults"], key: value}
            assert not widget.view["error"], (key, value)
    assert "DeepSeek-V3" in options(widget, "model")


def test_the_text_is_the_same_answer_in_both_languages():
    english, chinese = SwapCostWidget("en").text(), SwapCostWidget("zh").text()
    assert english.isascii()
    assert "换出换入更快" in chinese
    for row in SwapCostWidget("en").view["table"]:
        for value in row["values"]:
            assert value in english
            assert value in chinese


def test_milliseconds_have_three_digits_and_no_powers_of_ten():
    draw = random.Random(3)
    assert [milliseconds(each) for each in (1.2e-5, 4.17e-3, 1.2345)] == ["0.0120", "4.17", "1,234"]
    for _ in range(200):
        seconds = 10 ** draw.uniform(-9, 4)
        said = milliseconds(seconds)
        assert float(said.replace(",", "")) == pytest.approx(seconds * 1e3, rel=5e-3)
        assert "e" not in said
