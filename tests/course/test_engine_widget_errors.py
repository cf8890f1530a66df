"""The engine widget where something goes wrong; what it keeps, and what it sends to the page."""

import gc
import json
import subprocess
import sys
import tracemalloc
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from minikv import SamplingParams
from minikv.course.widgets import EngineWidget
from minikv.course.widgets.parts import letters
from minikv.engine import FinishReason, SamplerOutput
from minikv.errors import ArgumentError, RequestTooLargeError
from minikv.i18n import LANGUAGES, text
from tests.course.engine_widget_world import (
    GREEDY,
    PROMPTS,
    SECONDS,
    STEM,
    WIDGETS,
    bare_model,
    finish,
    llms,
    look,
    nothing_held,
    threads,
)
from tests.test_imports import imports_of


@pytest.fixture(scope="module")
def model():
    return bare_model()


@pytest.fixture
def make(model):
    with llms(model) as one:
        yield one


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_failed_step_is_told_and_the_llm_goes_on(lang, make):
    llm = make()
    widget, run, calls = EngineWidget(llm, PROMPTS, GREEDY, lang=lang), llm.runner.run, count()

    def breaks(*args):
        if next(calls) == 2:
            raise ValueError("a kernel that broke")
        return run(*args)

    llm.runner.run = breaks
    finish(widget)
    assert isinstance(widget.error, ValueError)
    assert widget.view["error"]
    assert "ValueError: a kernel that broke" in widget.view["status"]
    reasons = [out.finish_reason for out in widget.outputs]
    assert FinishReason.ERROR in reasons
    assert FinishReason.LENGTH in reasons, "the others went on"
    assert {row["state"] for row in widget.view["rows"]} == {"error", "length"}
    assert nothing_held(llm)
    finish(widget)
    assert widget.error is None
    assert not widget.view["error"]
    assert len(widget.outputs) == 6


@pytest.mark.parametrize("alone", [True, False])
def test_what_is_raised_between_steps_ends_the_run(alone, make):
    def emit(event):
        if event.kind == "first" and event.request == "request 1":
            raise ZeroDivisionError("of emit")

    llm = make(emit=emit)
    widget = EngineWidget(llm, PROMPTS, GREEDY)
    if alone:
        while widget.step():
            pass
    else:
        finish(widget)
    assert isinstance(widget.error, ZeroDivisionError)
    assert "The run ended with an error: ZeroDivisionError: of emit" in widget.view["status"]
    assert {row["state"] for row in widget.view["rows"]} <= {"abort", "length"}
    assert not threads()
    assert nothing_held(llm)
    assert len(llm.generate(PROMPTS, GREEDY)) == 6


def test_a_request_that_is_refused_is_said_in_the_readers_language(make):
    llm = make()
    widget = EngineWidget(llm, [STEM, STEM * 7], GREEDY, arrivals=[0, 2], lang="zh")
    finish(widget)
    assert isinstance(widget.error, RequestTooLargeError)
    assert widget.error.text("zh") in widget.text()
    assert widget.error.text("en") in widget.text("en")
    assert nothing_held(llm)


def test_an_llm_that_was_closed_or_shared_is_said(make):
    llm = make()
    widget = EngineWidget(llm, PROMPTS, GREEDY)
    widget.step()
    llm.close()
    assert not widget.step()
    assert text("errors.llm_closed", "en") in widget.text()
    assert {row["state"] for row in widget.view["rows"]} == {"abort"}

    with pytest.raises(ArgumentError) as caught:
        EngineWidget(llm, PROMPTS, GREEDY)
    assert caught.value.code == "llm_closed"

    llm = make()
    widget = EngineWidget(llm, PROMPTS[:2], GREEDY)
    widget.step()
    while llm.has_work:
        llm.step()  # of somebody else, who takes the outputs
    assert not widget.step()
    assert widget.error.code == "engine_widget_lost"
    assert not llm.has_work


def test_others_of_the_same_llm_are_strangers(make):
    llm = make()
    stream = llm.stream([PROMPTS[3]], SamplingParams(temperature=0, max_tokens=20))
    next(stream)
    widget = EngineWidget(llm, PROMPTS[:1], GREEDY)
    widget.step()
    owners = {cell[3] for cell in widget.view["pools"][0]["cells"] if cell[0] in ("own", "shared")}
    assert owners == {"?", "?+A", "A"}
    assert [row[0] for row in look(widget)] == ["A"]
    finish(widget)
    assert len(widget.outputs) == 1
    assert sum(1 for _ in stream) >= 1, "it lost nothing"


def test_200_updates_neither_grow_nor_leak(make):
    llm = make()
    widget = EngineWidget(llm, PROMPTS[:2], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))

    # Tokens without a model: tracing what is allocated makes torch slow.
    def made(step, *_):
        sampled = SamplerOutput([7] * len(step.sampled), [None] * len(step.sampled))
        return SimpleNamespace(read=lambda: sampled)

    llm.runner.run = made
    sizes, traced = [], []
    widget.observe(lambda change: sizes.append(len(json.dumps(change["new"]))), "view")
    tracemalloc.start()
    try:
        for update in range(240):
            widget.step()  # a dozen runs, one after the other
            if update in (39, 239):
                gc.collect()
                traced.append(sum(each.size for each in only_ours(tracemalloc.take_snapshot())))
    finally:
        tracemalloc.stop()
    assert len(sizes) == 240
    # 200 updates later the numbers are longer by some digits; a history would have 200 entries more.
    assert max(sizes[40:]) <= max(sizes[:40]) + 200
    assert traced[1] < traced[0] + 4_000, "bytes of what the widget's own files keep"
    widget.stop()


def only_ours(snapshot):
    return snapshot.filter_traces([tracemalloc.Filter(True, str(WIDGETS / "*"))]).statistics("filename")


def test_a_press_in_the_browser(make):
    widget = EngineWidget(make(), PROMPTS[:2], GREEDY)
    widget._handle_custom_msg({"action": "step"}, [])
    assert "Step 1." in widget.view["status"]
    for content in ({"action": "explode"}, {}):
        widget._handle_custom_msg(content, [])
    assert "Step 1." in widget.view["status"]
    widget._handle_custom_msg({"action": "start"}, [])
    assert widget.wait(SECONDS)
    assert len(widget.outputs) == 2


def test_what_cannot_be_is_refused(make):
    llm = make()
    for wrong in (
        dict(prompts=[]),
        dict(prompts=7),
        dict(prompts="text without a tokenizer"),
        dict(prompts=[[1, 10**6]]),
        dict(params=[GREEDY]),
        dict(params="greedy"),
        dict(arrivals=[0]),
        dict(arrivals=3),
        dict(arrivals=[0, -1]),
        dict(arrivals=[0, 1.5]),
        dict(lang="fr"),
        dict(llm="tiny-gqa"),
    ):
        arguments = {"llm": llm, "prompts": PROMPTS[:2], "params": GREEDY, **wrong}
        with pytest.raises(ArgumentError):
            EngineWidget(arguments.pop("llm"), arguments.pop("prompts"), arguments.pop("params"), **arguments)
    assert not llm.has_work
    one = EngineWidget(llm, STEM)
    assert "requests ready: 1" in one.text(), "a list of ids is one prompt"


def test_the_text_and_the_picture_are_deterministic_and_in_the_readers_language(make):
    def made(lang: str) -> EngineWidget:
        widget = EngineWidget(make(), PROMPTS, GREEDY, arrivals=[0, 0, 0, 2, 2, 9], lang=lang)
        for _ in range(8):
            widget.step()
        return widget

    for lang in LANGUAGES:
        assert made(lang).text() == made(lang).text() == made("en").text(lang)
    assert made("en").text().isascii()
    assert "命中" in made("zh").text()
    for lang in LANGUAGES:
        assert made(lang).photo_html() == made(lang).photo_html(), "no seconds in it"


def test_what_is_synced_is_plain_json(make):
    widget = EngineWidget(make(), PROMPTS, GREEDY, lang="zh")
    widget.step()
    for trait in ("form", "view"):
        value = getattr(widget, trait)
        assert json.loads(json.dumps(value, allow_nan=False)) == value


def test_names_are_those_of_a_spreadsheet():
    assert [letters(number) for number in (0, 25, 26, 51, 52, 701, 702)] == "A Z AA AZ BA ZZ AAA".split()
    assert len({letters(number) for number in range(3000)}) == 3000


def test_the_widget_itself_imports_no_torch():
    files = sorted(WIDGETS.glob("engine*.py"))
    assert len(files) == 6
    for file in files:
        assert not any(name.split(".")[0] in ("torch", "transformers") for name in imports_of(file))


@pytest.mark.slow
def test_python_may_end_in_the_middle_of_a_run():
    code = """
import sys, threading
from minikv import LLM, SamplingParams
from minikv.course.widgets import EngineWidget
llm = LLM("tiny-gqa", num_blocks=40, block_size=4, max_model_len=64)
widget, begun = EngineWidget(llm, [[5, 6, 7]] * 4, SamplingParams(max_tokens=60, ignore_eos=True)), threading.Event()
step = llm.step
llm.step = lambda: (begun.set(), step())[1]
widget.start()
assert begun.wait(60)
print("ended")
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "ended"), ended.stderr
