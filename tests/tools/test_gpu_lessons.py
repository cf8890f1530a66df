"""Lessons without Jupyter: the cells run, measured texts are kept, errors are told, stand-ins behave as widgets do."""

import json
import subprocess
import sys

import pytest

from benchmarks.report import SOURCES
from tests.tools.without import environment_without
from tools.gpu import lessons
from tools.gpu.__main__ import ROOT
from tools.gpu.lessons import run_lesson
from tools.gpu.parts import measured_lessons
from tools.gpu.standins import HasTraits, Trait, observe, validate
from tools.notebooks.source import read_source

SOURCE = """# %% [meta]
# number = "00"
# %% key="one"
x = 20
# %% key="device" tags="hardware"
print("bandwidth", x)
x + 1
# %% key="word" lang="en"
word = "page"
# %% key="word" lang="zh"
word = "页"
# %% key="time" tags="timing"
print(word)
{last}
"""


@pytest.fixture
def lesson(tmp_path):
    def write(last="None"):
        path = tmp_path / "00_small.py"
        path.write_text(SOURCE.format(last=last), encoding="utf-8")
        return read_source(path)

    return write


def test_measured_cells_keep_what_a_notebook_would_show(lesson):
    row = run_lesson(lesson(), "en")
    assert row["error"] == ""
    assert row["cells"] == 4
    assert row["measured"] == {"device": "bandwidth 20\n21", "time": "page"}
    assert run_lesson(lesson(), "zh")["measured"]["time"] == "页"


def test_a_cell_that_fails_is_named_and_what_was_printed_is_kept(lesson):
    row = run_lesson(lesson("1 / 0"), "en")
    assert row["error"].startswith("cell time: ZeroDivisionError")
    assert row["cells"] == 3
    assert row["measured"] == {"device": "bandwidth 20\n21", "time": "page"}


LEFT_OUT = """\
# %% key="jupyter" tags="hardware"
import no_such_library_d.display as display
shell = display.shell()
# %% key="uses" tags="hardware"
print("shell:", shell)
# %% key="end"
print(x)"""


def test_a_cell_that_needs_an_absent_library_is_left_out_with_those_that_need_it(lesson):
    row = run_lesson(lesson(LEFT_OUT), "en")
    assert (row["error"], row["cells"]) == ("", 5)
    assert row["left_out"] == {"jupyter": "needs no_such_library_d", "uses": "needs shell"}
    assert set(row["measured"]) == {"device", "time"}


@pytest.mark.parametrize(("last", "said"), [("import json.no_such_part", "no_such_part"), ("shel", "'shel'")])
def test_what_is_missing_otherwise_is_an_error_of_the_lesson(lesson, last, said):
    row = run_lesson(lesson(f"{last}\n{LEFT_OUT}"), "en")
    assert row["error"].startswith("cell time: ")
    assert said in row["error"]
    assert row["left_out"] == {}


def test_every_lesson_with_a_measured_cell_is_found():
    found = measured_lessons(ROOT)
    every = sorted((ROOT / "notebooks/src").glob("*.py"))
    assert found == [path for path in every if ' tags="' in path.read_text(encoding="utf-8")]
    assert 0 < len(found) < len(every)


@pytest.mark.long
def test_a_real_lesson_with_a_widget_and_one_with_a_figure_run_without_the_libraries_that_draw(tmp_path):
    out = tmp_path / "lessons.cuda.json"
    command = [sys.executable, "-m", "tools.gpu.lessons", "--json", str(out), "--only", "06", "05"]
    environment = environment_without(tmp_path, ROOT)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(out.read_text(encoding="utf-8"))
    assert told["complete"] is True
    for row, name in zip(told["rows"], ("06_the_linear_cache", "05_owned_and_borrowed"), strict=True):
        cells = read_source(ROOT / "notebooks/src" / f"{name}.py").in_language("en")
        assert row["cells"] == sum(cell.kind == "code" for cell in cells)
        assert set(row["measured"]) == {cell.key for cell in cells if cell.tags}
        assert all(row["measured"].values())
        assert "anywidget" in row["missing"]


class Counter(HasTraits):
    """A widget of the shape that ours have."""

    step = type("Int", (Trait,), {"empty": int})()
    rows = Trait([])
    form = type("Dict", (Trait,), {"empty": dict})().tag(sync=True)

    def __init__(self, **traits):
        self.heard = []
        super().__init__(**traits)

    @validate("step")
    def _within(self, proposal):
        return min(proposal["value"], 5)

    @observe("step")
    def _moved(self, change):
        self.heard.append((change["old"], change.new))


def test_a_stand_in_widget_validates_then_changes_then_tells():
    widget = Counter(step=9, form={"a": 1})
    assert (widget.step, widget.form, widget.rows, widget.heard) == (5, {"a": 1}, [], [(None, 5)])
    widget.step = 7  # becomes 5 again: no change, nobody is told
    assert widget.heard == [(None, 5)]
    later = []
    widget.observe(lambda change: later.append(change.new), names="step")
    widget.step = 2
    assert (widget.heard[-1], later) == ((5, 2), [2])
    widget.rows.append(1)
    assert Counter().rows == []  # a default is each widget's own
    assert (Counter().step, Counter().form) == (0, {})


def test_lessons_that_a_cut_run_has_kept_are_not_run_again(monkeypatch, tmp_path):
    ran, path = [], tmp_path / "lessons.cuda.json"

    def once(source, lang):
        if len(ran) == 1 and not path.with_name("again").exists():
            raise KeyboardInterrupt
        ran.append(source.stem[:2])
        return {"lesson": source.stem[:2], "cells": 1, "left_out": {}, "error": ""}

    monkeypatch.setenv(SOURCES, "abc")
    monkeypatch.setattr(lessons, "in_a_process", once)
    arguments = ["--json", str(path), "--only", "10", "12", "16"]
    with pytest.raises(KeyboardInterrupt):
        lessons.main(arguments)
    path.with_name("again").touch()
    assert lessons.main(arguments) == 0
    assert ran == ["10", "12", "16"]
    told = json.loads(path.read_text())
    assert [row["lesson"] for row in told["rows"]] == ["10", "12", "16"]
    assert told["complete"] is True
