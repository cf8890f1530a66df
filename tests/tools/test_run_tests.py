"""The tool behind ``make test``: which parts and tests each scope runs, and what it prints of their seconds."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from functools import partial

import pytest

from tests.in_turn import in_turn
from tests.longer import every_value, thirds, usual_if
from tools import run_tests
from tools.run_tests import ALL, MARKS, QUICK, USUAL, Part, main, report


def says(text, code=0):
    return [sys.executable, "-c", f"print({text!r}); raise SystemExit({code})"]


@pytest.fixture
def parts(monkeypatch):
    """Parts that say the scope they were asked with; one runs from ``make test`` on, one fails."""
    found = [
        Part("one", 99, lambda scope: [says(f"one {scope}")]),
        Part("fails", 99, lambda scope: [says("before", 3), says("after")]),
        Part("late", 0, lambda scope: [says(f"late {scope}")], scope=USUAL),
        Part("empty", 99, lambda scope: []),
    ]
    monkeypatch.setattr(run_tests, "PARTS", found)


@pytest.mark.parametrize(
    ("options", "scope", "late"), [(["--quick"], QUICK, False), ([], USUAL, True), (["--all"], ALL, True)]
)
def test_each_scope_runs_its_parts_and_a_failure_stops_none(parts, capfd, options, scope, late):
    assert main(options) == 1
    lines = capfd.readouterr().out.splitlines()
    assert f"one {scope}" in lines
    assert (f"late {scope}" in lines) == late
    assert "after" in lines
    rows = {
        line.split()[0]: line.split()[2:] for line in lines[lines.index("part        seconds   budget") :]
    }
    assert rows["one"] == ["99", "ok"]
    assert rows["fails"] == ["99", "FAILED"]
    assert rows.get("late") == (["0", "ok", "over", "its", "budget"] if late else None)
    assert rows["total"] == ["297"]


def test_a_part_over_its_budget_fails_nothing(parts, capfd):
    assert main(["--only", "late"]) == 0
    assert "over its budget" in capfd.readouterr().out
    assert "over" not in report([(Part("one", 5, lambda scope: []), 4.9, True)])


def test_the_budgets_are_a_quarter_of_an_hour_and_each_scope_holds_the_one_before():
    assert sum(part.budget for part in run_tests.PARTS) == 900
    for smaller, larger in [(QUICK, USUAL), (USUAL, ALL)]:
        assert {p.name for p in run_tests.PARTS if p.scope <= smaller} <= {
            p.name for p in run_tests.PARTS if p.scope <= larger
        }


FAKE_TORCH = """
from types import SimpleNamespace
cuda = SimpleNamespace(is_available=lambda: {gpu})
"""


def outcomes(folder, gpu, marks):
    """What pytest says of one test of each mark, with this project's conftest and a torch that has a GPU or none."""
    (folder / "torch.py").write_text(FAKE_TORCH.format(gpu=gpu))
    shutil.copy(run_tests.ROOT / "tests/conftest.py", folder)
    (folder / "test_marks.py").write_text(
        "import pytest\ndef test_plain(): pass\n"
        + "".join(f"@pytest.mark.{mark}\ndef test_{mark}(): pass\n" for mark in ("slow", "long", "gpu"))
    )
    settings = ["-c", str(run_tests.ROOT / "pyproject.toml"), "--rootdir", str(folder)]
    command = [sys.executable, "-m", "pytest", *settings, "-vv", "-p", "no:cacheprovider", "-m", marks, "."]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(run_tests.ROOT)}
    said = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return set(re.findall(r"::test_(\w+) (PASSED|SKIPPED)", said.stdout)), said.returncode


@pytest.mark.parametrize(
    ("scope", "ran"), [(QUICK, {"plain"}), (USUAL, {"plain", "slow"}), (ALL, {"plain", "slow", "long"})]
)
def test_the_scope_chooses_the_tests_and_without_a_gpu_those_that_need_one_are_left_out(tmp_path, scope, ran):
    assert outcomes(tmp_path, gpu=False, marks=MARKS[scope]) == ({(name, "PASSED") for name in ran}, 0)


def test_tests_that_need_a_gpu_run_where_there_is_one_and_are_seen_to_be_skipped_where_asked_for(tmp_path):
    assert outcomes(tmp_path, gpu=True, marks="") == (
        {(name, "PASSED") for name in ("plain", "slow", "long", "gpu")},
        0,
    )
    assert outcomes(tmp_path, gpu=False, marks="gpu") == ({("gpu", "SKIPPED")}, 0)


def test_of_all_combinations_those_are_usual_in_which_each_value_of_each_axis_occurs():
    axes = ["ab", "uvwxyz", "123", "kl"]
    chosen = every_value(*axes)
    assert len({row.values for row in chosen}) == len(chosen) == 2 * 6 * 3 * 2
    usual = [row.values for row in chosen if not row.marks]
    assert len(usual) == 6
    assert [{row[place] for row in usual} for place in range(4)] == [set(axis) for axis in axes]
    assert len({(row[0], row[3]) for row in usual}) == 4, "axes of one length do not go in step"
    assert [row.values for row in usual_if("ac".__contains__, "abc") if not row.marks] == [("a",), ("c",)]


def test_of_each_value_one_of_three_parts_is_usual():
    assert [row.values for row in thirds("abcd") if not row.marks] == [("a", 0), ("b", 1), ("c", 2), ("d", 0)]
    assert {row.values for row in thirds("ab")} == {(value, part) for value in "ab" for part in range(3)}


def test_a_test_in_turn_is_one_item_and_says_which_value_failed():
    seen = []

    @in_turn("number, word", [(1, "a"), (2, "b"), (3, "c")])
    def test(number, word, folder):
        seen.append((number, word, folder))
        assert number < 2

    assert list(inspect.signature(test).parameters) == ["folder"]
    assert test.turns == 3
    with pytest.raises(AssertionError) as failed:
        test(folder="tmp")
    assert seen == [(1, "a", "tmp"), (2, "b", "tmp")]
    assert failed.value.__notes__ == ["with {'number': 2, 'word': 'b'}"]


def test_what_costs_much_is_written_down_and_then_left_out(tmp_path):
    (tmp_path / "tests").mkdir()
    for name in ("__init__.py", "costs.py", "conftest.py"):
        shutil.copy(run_tests.ROOT / "tests" / name, tmp_path / "tests" / name)
    names = ["tests/costs.py::test_kept", "tests/gone.py::test_gone", "tests/test_some.py::test_fast"]
    (tmp_path / "tests/slow.txt").write_text("\n".join(names))
    (tmp_path / "torch.py").write_text(FAKE_TORCH.format(gpu=False))
    (tmp_path / "tests/test_some.py").write_text(
        "import pytest, time\n"
        "@pytest.mark.parametrize('number', range(2))\n"
        "def test_slow(number):\n"
        "    start = time.process_time()\n"
        "    while time.process_time() < start + 0.3: pass\n"
        "def test_fast(): pass\n"
    )
    settings = ["-c", str(run_tests.ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *settings, "-vv", "-p", "no:cacheprovider", "tests"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": ""}
    run = partial(subprocess.run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    run([*command, "-p", "tests.costs"])
    assert (tmp_path / "tests/slow.txt").read_text().split() == [
        "tests/costs.py::test_kept",
        "tests/test_some.py::test_slow",
    ]
    said = run([*command, "-m", MARKS[QUICK]]).stdout
    assert "test_fast PASSED" in said
    assert "test_slow" not in said
