"""What lesson 08 shows: the annotated source, the flow chart, and the engine in the allocator's model."""

import inspect
import re

import pytest
import torch

from minikv.cache import allocator
from minikv.course.lessons.l08 import annotated_source, engine_memory
from minikv.course.lessons.l08.annotated_source import ANNOTATIONS, Annotation, SourceView
from minikv.course.lessons.l08.engine_memory import CHUNK, NON_TORCH, mixed_steps, report_of, serve, start_up
from minikv.course.lessons.l08.flow_chart import FlowChart
from minikv.memory.allocator.caching_allocator import DeviceOutOfMemoryError
from minikv.plan import weight_bytes
from minikv.plan.budget import plan_memory
from minikv.units import GIB, MIB
from tests.plan.small_models import small_config, small_model

# The annotated source --------------------------------------------------------------------------------------


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=lambda a: a.key)
def test_each_annotation_still_fits_the_code(annotation):
    now = annotation.digest()
    assert now == annotation.code, (
        f"the code of step {annotation.key!r} changed: read lesson_08.toml's step.{annotation.key}.text in both "
        f'languages against it, then write "{now}" in annotated_source.py'
    )


def test_every_line_of_the_function_is_annotated_once():
    source = inspect.getsource(allocator.allocate_kv_cache)
    body = source[: source.index('"""')] + source[source.rindex('"""') + 3 :]
    lines = [line.strip() for line in body.splitlines() if line.strip()]
    ours = [a for a in ANNOTATIONS if a.of is allocator.allocate_kv_cache]
    assert [line.strip() for a in ours for line in a.lines() if line.strip()] == lines


def test_an_edit_is_noticed_and_names_the_annotation(monkeypatch):
    annotation = next(a for a in ANNOTATIONS if a.key == "formula")
    source = inspect.getsource(annotation.of)
    monkeypatch.setattr(
        annotated_source.inspect, "getsource", lambda _: source.replace("+ self.current", "- self.current")
    )
    with pytest.raises(LookupError, match="'formula'"):
        annotation.digest()
    monkeypatch.setattr(
        annotated_source.inspect, "getsource", lambda _: source.replace("Negative", "Less than 0")
    )
    assert annotation.digest() != annotation.code


def test_a_line_that_stands_there_twice_is_refused():
    twice = Annotation(
        "twice", allocator.allocate_kv_cache, "if out_of_memory is not None:", "return cache, report", ""
    )
    with pytest.raises(LookupError, match="'twice'"):
        twice.lines()


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_view_shows_every_step_in_both_forms(lang):
    view = SourceView(lang)
    page, plain = view._repr_mimebundle_()["text/html"], view.text()
    assert page.count("<tr>") == len(ANNOTATIONS)
    assert "self.limit - self.used - self.peak + self.current" in re.sub("<[^>]+>", "", page)
    assert {"keyword", "name", "string"} <= set(re.findall(r'<span class="(\w+)">', page))
    for number, annotation in enumerate(ANNOTATIONS, 1):
        assert f"{number}. " in plain
        assert all(line.rstrip() in plain for line in annotation.lines())
    assert view.text() != SourceView("zh" if lang == "en" else "en").text()


# The engine in the model -----------------------------------------------------------------------------------


def test_the_models_weights_are_the_planners():
    assert sum(start_up().engine.weight_sizes()) == weight_bytes(engine_memory.MODEL).total


@pytest.mark.parametrize("tokens", [512, 4096, 8192])
def test_the_activations_are_about_the_planners(tokens):
    terms = start_up(warmup_tokens=tokens).terms
    planned = plan_memory(engine_memory.MODEL, gpu="H200", chunk=tokens).activations.bytes
    assert terms.peak - terms.current == pytest.approx(planned, rel=0.1)


def test_a_step_leaves_nothing_behind_even_where_it_fails():
    started = start_up(num_blocks=31_900)
    before = started.engine.device.usage().allocated
    assert serve(started, [8, 64]).asked == 0
    served = serve(started, [CHUNK, CHUNK])
    assert (served.survived, served.steps) == (0, 2)
    assert served.asked > 0
    assert started.engine.device.usage().allocated == before


def test_the_six_moments():
    start, load, reset, warm, empty, allocate = start_up(staging=5 * GIB).moments
    assert (start.used, start.current, start.peak) == (NON_TORCH, 0, 0)
    assert load.peak - load.current == 5 * GIB
    assert reset.peak == reset.current == load.current
    assert warm.peak > warm.current == reset.current
    assert warm.used > empty.used == reset.used
    assert empty.peak == warm.peak
    assert allocate.current > empty.current
    assert all(m.used == NON_TORCH + m.reserved for m in (start, load, reset, warm, empty, allocate))
    assert allocate.used + warm.peak - warm.current <= int(0.9 * start.total) + 2 * MIB


def test_leaving_out_a_moment_costs_blocks():
    best = start_up(staging=5 * GIB).num_blocks
    assert start_up(staging=5 * GIB, reset_peak=False).num_blocks < best
    assert start_up(staging=5 * GIB, empty_cache=False).num_blocks < best
    assert start_up(warmup_tokens=2 * CHUNK).num_blocks < best


def test_what_the_lesson_says_of_an_engine_alone():
    """0.99 works, 1.00 does not; used walks past the limit; without anything else the short form is nearly right."""
    steps = mixed_steps()
    assert serve(start_up(0.99), steps).asked == 0
    assert serve(start_up(1.0), steps).asked > 0
    started = start_up(0.9)
    assert max(serve(started, steps).used) > started.terms.limit
    bare = start_up(0.9, non_torch=0)
    more = bare.terms.short_form // bare.block_bytes - bare.num_blocks
    assert 0 < more < 0.01 * bare.num_blocks


def test_all_that_is_free_can_be_allocated_and_then_no_step_fits():
    terms = start_up().terms
    greedy = start_up(num_blocks=(terms.total - terms.used) // start_up().block_bytes)
    assert serve(greedy, [CHUNK]).survived == 0
    assert serve(start_up(), [CHUNK]).survived == 1


def test_where_out_of_memory_begins():
    """Up to 0.90 each of the lesson's four loads survives; at 0.95 the growing neighbour ends the engine."""
    steps, growth = mixed_steps(), [GIB // 10] * 100
    loads = [(steps, []), (mixed_steps(longest=2 * CHUNK), []), (steps, [GIB]), (steps, growth)]
    alive = {
        share: [serve(start_up(share), *load).asked == 0 for load in loads] for share in (0.8, 0.9, 0.95)
    }
    assert alive == {0.8: [True] * 4, 0.9: [True] * 4, 0.95: [True, True, True, False]}
    with pytest.raises(DeviceOutOfMemoryError):
        start_up(num_blocks=40_000)


def test_the_activations_grow_with_the_tokens():
    short, long = (start_up(warmup_tokens=tokens).terms for tokens in (8192, 131_072))
    assert (long.peak - long.current) / (short.peak - short.current) == pytest.approx(16, rel=0.01)


def test_without_empty_cache_the_shard_counts_as_used():
    with_it, without = (start_up(staging=5 * GIB, empty_cache=flag) for flag in (True, False))
    assert without.terms.used - with_it.terms.used == 5 * GIB


def test_the_report_of_the_model_adds_up():
    report = report_of(start_up())
    assert sum(report.parts().values()) == report.stats.total
    assert min(report.parts().values()) >= 0
    assert report.max_tokens == report.num_blocks * 16
    assert "Llama-3.1-8B" in report.text("zh")


# The flow chart --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_flow_chart_has_the_runs_numbers(lang):
    report = report_of(start_up())
    chart = FlowChart(report, lang)
    plain, page = chart.text(), chart._repr_mimebundle_()["text/html"]
    for number in (
        report.num_blocks,
        report.kv_bytes,
        report.block_bytes,
        report.terms.available,
        report.terms.peak,
    ):
        assert f"{number:,}" in plain
        assert f"{number:,}" in page
    assert page.count("<li>") == 7
    taken = {box.code: box.taken for boxes in chart.steps for box in boxes}
    assert taken["MeasuredTerms.available"]


def test_on_a_cpu_the_given_branch_is_taken():
    model = small_model(small_config("llama"), torch.bfloat16)
    for given in ({"kv_bytes": 2 * MIB}, {"num_blocks": 12}):
        _, report = allocator.allocate_kv_cache(model, **given, warmup_tokens=64)
        chart = FlowChart(report, "en")
        branch = chart.steps[3]
        assert [box.taken for box in branch] == [False, True]
        figure = report.kv_bytes if "kv_bytes" in given else report.num_blocks
        assert f"{figure:,}" in branch[1].lines[1]
        assert f"{report.peak.extra:,}" in chart.text() or f"{report.peak.extra} B" in chart.text()
        assert f"{report.stats.total:,}" not in chart.text()
