"""The allocation widget and the report's bar without a browser: every number is the planner's or the report's."""

import json
import math
import random

import pytest

from minikv.cache import AllocationReport
from minikv.course.widgets import AllocationWidget, report_bar
from minikv.course.widgets.allocation_case import MAX_GIB
from minikv.errors import ArgumentError, MiniKVError, UnknownNameError
from minikv.i18n import LANGUAGES
from minikv.memory.peak import PeakReport
from minikv.memory.stats import MemoryStats
from minikv.plan import CacheSpec, find_model, plan_memory
from minikv.plan.measured import MeasuredTerms, size_for_bytes
from minikv.plan.moments import CALLS, startup_moments
from minikv.units import GIB
from tests.course.forms import options

TERMS = MeasuredTerms(80 * GIB + 777, 0.9, used=17 * GIB + 12_345, peak=16 * GIB, current=15 * GIB)


def a_report(terms: MeasuredTerms | None = TERMS, aside: int = 0, **changes) -> AllocationReport:
    """What ``allocate_kv_cache`` would report: blocks of 2 MiB beside ``aside`` bytes of windowed layers."""
    block = 2 * 2**20
    count = (terms.available - aside) // block if terms else 100
    values = dict(
        spec=CacheSpec.from_config("Llama-3.1-8B"), device="cuda:0",
        how="measured" if terms else "num_blocks", block_size=16, block_bytes=block, num_blocks=count,
        own_blocks=count, ranks=1, blocks=(count,), windows=(None,), batch=4,
        context=4096, weight_bytes=15 * GIB, buffer_bytes=0, kv_bytes=count * block + aside, padding_bytes=0,
        warmup_tokens=8192,
        peak=PeakReport("cuda:0", 15 * GIB, 16 * GIB, 15 * GIB),
        stats=MemoryStats("cuda:0", 80 * GIB + 777, 63 * GIB - 11_568, 15 * GIB, 15 * GIB, 16 * GIB, 0),
        terms=terms,
    )  # fmt: skip
    return AllocationReport(**{**values, **changes})


def shown_parts(view: dict) -> dict[str, int]:
    return {part["key"]: part["bytes"] for part in view["bar"]["parts"]}


def shown_moments(view: dict) -> list[tuple[str, ...]]:
    return [(row["key"], *(value["bytes"] for value in row["values"])) for row in view["moments"]]


def sums(widget: AllocationWidget) -> dict[str, str]:
    return {row["key"]: row["text"] for row in widget.view["sums"]}


def test_what_is_drawn_is_what_the_planner_measures():
    rng = random.Random(84)
    widget = AllocationWidget(context=2048)
    answered = refused = windowed = 0
    for _ in range(80):
        state = {field["key"]: rng.choice(options(widget, field["key"])) for field in widget.form["fields"]}
        state["non_torch"] = rng.choice([0, 0.5, rng.uniform(0, 3)])
        widget.state = state
        if widget.view["error"]:
            refused += 1
            assert widget.case is None
            assert shown_parts(widget.view) == {}
            assert widget.view["status"]
            continue
        answered += 1
        spec = CacheSpec.from_config(state["model"], tp=state["tp"])
        budget = plan_memory(
            state["model"],
            gpu=state["gpu"],
            tp=state["tp"],
            utilization=state["utilization"],
            block_size=state["block_size"],
            chunk=min(state["warmup_tokens"], spec.max_positions or math.inf),
            cuda_context_bytes=round(state["non_torch"] * GIB),
        )
        form = budget.measured_form()
        used, peak, current = form["used"], form["peak"], form["current"]
        terms = MeasuredTerms(budget.total_bytes, state["utilization"], used, peak, current)
        size = size_for_bytes(
            spec,
            budget.kv_bytes,
            block_size=state["block_size"],
            context=min(2048, spec.max_positions or 2048),
        )
        case = widget.case
        assert case.terms == terms
        assert terms.available == budget.kv_bytes
        assert case.cache.num_blocks == size.num_blocks >= 1
        parts = shown_parts(widget.view)
        assert sum(parts.values()) == budget.total_bytes == widget.view["bar"]["total"]
        assert all(num_bytes >= 0 for num_bytes in parts.values())
        assert parts["kv"] + parts["left"] == budget.kv_bytes
        aside = parts["kv"] - size.num_blocks * case.block_bytes
        windowed += aside > 0
        assert (terms.available - aside) // case.block_bytes == size.num_blocks
        moments = startup_moments(terms, parts["kv"], loading_bytes=round(state["loading"] * GIB))
        assert shown_moments(widget.view) == [(m.call, m.used, m.peak, m.current) for m in moments]
        # The next prefill beside the cache takes all of the limit but what is left over.
        assert moments[-1].used + parts["activations"] + parts["left"] == terms.limit
    assert answered >= 20
    assert refused >= 10
    assert windowed >= 1


def test_the_time_line_of_the_defaults_call_by_call():
    widget = AllocationWidget(loading=1)
    rows = {key: values for key, *values in shown_moments(widget.view)}
    assert tuple(rows) == CALLS
    weights = plan_memory("Llama-3.1-8B", gpu="H200").weight_bytes
    context = GIB // 2
    assert rows["start"] == [context, 0, 0]
    assert rows["load"] == [context + weights + GIB, weights + GIB, weights]
    assert rows["reset_peak"] == [context + weights, weights, weights]
    used, peak, current = rows["warmup"]
    assert used - peak == context
    assert rows["empty_cache"] == [context + weights, peak, current]
    assert rows["allocate"][2] - current == shown_parts(widget.view)["kv"]


def test_copies_while_loading_change_no_block_because_the_peak_is_reset():
    widget = AllocationWidget(loading=0)
    before = widget.case
    widget.state = {"loading": 40}
    assert widget.case.cache == before.cache
    assert shown_moments(widget.view)[1][2] == before.terms.current + 40 * GIB


def test_the_short_form_agrees_only_where_nothing_but_torch_is_there():
    widget = AllocationWidget(non_torch=0)
    assert "the same, because used equals current" in sums(widget)["short"]
    widget.state = {"non_torch": 3}
    case = widget.case
    more = case.fit(case.terms.short_form).num_blocks - case.cache.num_blocks
    assert f"3.00 GiB and {more:,} blocks too many" in sums(widget)["short"]
    assert abs(more * case.block_bytes - 3 * GIB) < case.block_bytes


def test_all_free_memory_lacks_the_activations_of_the_next_prefill():
    widget = AllocationWidget(utilization=1)
    case = widget.case
    taken = case.fit(case.free)
    missing = case.missing_after(taken)
    assert case.terms.used + taken.kv_bytes + case.activations - case.terms.total == missing > 0
    assert "out of memory" in sums(widget)["free"]
    assert f"{taken.num_blocks:,} blocks" in sums(widget)["free"]
    # Without activations nothing is missing.
    widget = AllocationWidget(report=a_report())
    widget.state = {"activations": 0}
    assert "happens to fit" in sums(widget)["free"]


def test_the_sums_hold_as_they_are_written():
    for widget in (AllocationWidget(), AllocationWidget(model="Gemma-3-4B", batch=3, context=5000)):
        formula = sums(widget)["formula"].replace(",", "")
        left, middle, right = (side.strip() for side in formula.split("="))
        assert eval(middle) == int(right.removesuffix(" B")) == widget.case.terms.available
        names = dict(zip(("used", "peak", "current"), shown_moments(widget.view)[4][1:], strict=True))
        assert eval(left.replace(" x ", "*"), names) == int(right.removesuffix(" B"))
        quotient, product, _ = sums(widget)["blocks"].replace(",", "").split("=")
        quotient = quotient.replace(" for layers with windows", "")
        blocks, block_size = product.split(" blocks x ")
        assert eval(quotient) == int(blocks) == widget.case.cache.num_blocks
        assert int(block_size) == widget.case.block_size


def test_a_warm_up_is_cut_to_the_models_positions():
    widget = AllocationWidget(model="Llama-2-7B", warmup_tokens=8192)
    assert widget.case.warmup_tokens == 4096
    assert "4,096 tokens" in widget.view["status"]
    assert widget.case.terms == AllocationWidget(model="Llama-2-7B", warmup_tokens=4096).case.terms


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize(
    "bad",
    [
        {"gpu": "T4"},
        {"model": "Qwen3.5-27B"},
        {"model": "no such model"},
        {"tp": 3},
        {"utilization": 0},
        {"warmup_tokens": 0},
        {"warmup_tokens": 1.5},
        {"block_size": -1},
        {"non_torch": -0.5},
        {"non_torch": MAX_GIB + 1},
        {"non_torch": 139},
        {"loading": math.nan},
        {"non_torch": True},
    ],
)
def test_a_refusal_is_a_sentence_and_the_widget_goes_on(lang, bad):
    widget = AllocationWidget(lang)
    before = widget.summary
    widget.state = bad
    assert widget.view["error"]
    assert widget.case is None
    assert widget.view["moments"] == widget.view["sums"] == widget.view["rows"] == []
    assert widget.summary == widget.view["status"] != ""
    widget.state = dict(widget.form["defaults"])
    assert widget.summary == before


def test_a_refusal_of_the_plan_is_its_own_sentence():
    widget = AllocationWidget("zh", gpu="T4")
    with pytest.raises(MiniKVError) as refusal:
        plan_memory("Llama-3.1-8B", gpu="T4")
    assert widget.view["status"] == refusal.value.text("zh")


def test_a_report_begins_at_its_own_terms_to_the_byte():
    report = a_report()
    widget = AllocationWidget(report=report)
    assert widget.case.terms == TERMS
    assert widget.case.cache.num_blocks == report.num_blocks
    assert shown_parts(widget.view) == report.parts()
    assert "of 8,192 tokens" in widget.view["status"]
    widget.state = {"non_torch": widget.state["non_torch"] + 1}
    assert abs(report.num_blocks - widget.case.cache.num_blocks - 512) <= 1
    widget.state = {"activations": 5}
    assert widget.case.terms.peak == 20 * GIB
    assert "8,192" not in widget.view["status"], "the warm-up of the report had other activations"


def test_a_report_with_windows_keeps_their_blocks():
    report = a_report(aside=3 * GIB)
    widget = AllocationWidget(report=report)
    assert shown_parts(widget.view) == report.parts()
    assert f"{3 * GIB:,} for layers with windows" in sums(widget)["blocks"]
    widget.state = {"utilization": 0.5}
    parts = shown_parts(widget.view)
    assert sum(parts.values()) == TERMS.total
    assert (parts["kv"] - 3 * GIB) % report.block_bytes == 0


def test_a_report_without_room_says_every_term_and_one_without_terms_is_refused():
    widget = AllocationWidget("en", report=a_report())
    widget.state = {"utilization": 0.2}
    assert widget.view["error"]
    assert "No KV cache fits for Llama-3.1-8B" in widget.view["status"]
    with pytest.raises(ArgumentError) as refusal:
        AllocationWidget(report=a_report(None))
    assert refusal.value.code == "allocation_not_measured"


def test_a_wrong_start_is_an_error_of_the_caller():
    for bad, kind in (
        ({"model": "no such model"}, UnknownNameError),
        ({"gpu": "no such gpu"}, UnknownNameError),
        ({"context": 0}, ArgumentError),
        ({"batch": True}, ArgumentError),
        ({"lang": "fr"}, ArgumentError),
    ):
        with pytest.raises(kind):
            AllocationWidget(**bad)
    with pytest.raises(ArgumentError):
        report_bar(a_report(), "fr")


def test_only_what_has_an_answer_is_offered_and_the_start_always_is():
    widget = AllocationWidget(model="llama 3.1 8b", gpu="h200", block_size=48)
    for key in ("model", "gpu", "tp", "block_size", "warmup_tokens", "utilization", "non_torch", "loading"):
        assert widget.state[key] in options(widget, key)
    assert all(find_model(name).complete for name in options(widget, "model"))


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("terms", [TERMS, None])
def test_the_reports_bar_is_its_parts_in_both_languages(lang, terms):
    report = a_report(terms)
    bar = report_bar(report, lang)
    assert shown_parts(bar.view) == report.parts()
    assert bar.view["bar"]["total"] == sum(report.parts().values()) == report.stats.total
    for num_bytes in report.parts().values():
        assert f"{num_bytes:,}" in bar.summary
    assert f"{report.num_blocks:,}" in bar.summary
    assert bar.text() == bar.summary == report_bar(report, lang).summary
    assert bar.summary.isascii() == (lang == "en")


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_summary_is_deterministic_and_in_the_readers_language(lang):
    for changes in ({}, {"model": "Gemma-3-4B", "gpu": "H100 SXM"}, {"report": a_report()}):
        widget = AllocationWidget(lang, **changes)
        assert not widget.view["error"]
        assert widget.summary == widget.text() == AllocationWidget(lang, **changes).summary
        assert widget.summary.isascii() == (lang == "en")
        for size in (*shown_parts(widget.view).values(), *shown_moments(widget.view)[3][1:]):
            assert f"{size:,}" in widget.summary


def test_what_is_synced_is_plain_json_for_every_model():
    """Python's Infinity and NaN are no JSON: a browser drops the whole message."""
    widget = AllocationWidget(gpu="B200")
    for model in options(widget, "model"):
        widget.state = {"model": model}
        for trait in ("form", "state", "view"):
            assert json.dumps(getattr(widget, trait), allow_nan=False)
    bar = report_bar(a_report())
    assert json.loads(json.dumps([bar.form, bar.view], allow_nan=False)) == [bar.form, bar.view]
