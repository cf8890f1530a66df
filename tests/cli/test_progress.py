"""``minikv progress``: the table, JSON, and records that go from one machine to another."""

import json
import os
from pathlib import Path

import pytest

from minikv.course.lessons import find_lesson, lesson_numbers
from minikv.course.progress import Progress, parse_progress
from minikv.course.progress_file import VARIABLE, ProgressFile
from minikv.course.your_engine.kept import KeptPart, KeptParts, PartsFile, parts_path
from minikv.course.your_engine.parts import PARTS
from tests.cli.inside import is_one_sentence

EVERY = [one.id for number in lesson_numbers() for one in find_lesson(number).exercises]


@pytest.fixture
def file(tmp_path, monkeypatch) -> ProgressFile:
    path = tmp_path / "progress.json"
    monkeypatch.setenv(VARIABLE, str(path))
    return ProgressFile(path)


def solve(file: ProgressFile, *tasks: str, passed: bool = True) -> None:
    for task in tasks:
        file.change(lambda progress, task=task: progress.after(task, passed, 3))


def test_the_table_has_every_lesson_in_both_languages(file, terminal):
    solve(file, "02.1", "02.6", "A.1")
    solve(file, "02.2", "02.2", passed=False)
    titles = set()
    for lang, head in (("en", "lesson"), ("zh", "课")):
        done = terminal("progress", "--lang", lang)
        assert (done.code, done.err) == (0, "")
        assert head in done.out.splitlines()[0]
        rows = {line.split()[0]: line for line in done.out.splitlines()[1:] if line.split()}
        assert {
            number.upper() if number.isalpha() else number
            for number in lesson_numbers()
            if find_lesson(number).exercises
        } <= set(rows)
        count = len(find_lesson("02").exercises)
        marks = " ".join(["✓", "~", "✓", *"·" * (count - 3)])
        assert marks in rows["02"]
        assert f"2/{count}" in rows["02"]
        assert rows["02"].split()[-1] == "4", "attempts"
        assert str(file.path) in done.out.replace("\n", "")
        titles.add(rows["02"])
    assert len(titles) == 2


def test_json_is_the_same_in_numbers(file, terminal):
    solve(file, "02.1", "99.9")
    told = json.loads(terminal("progress", "--json").out)
    assert (told["solved"], told["total"]) == (1, len(EVERY))
    assert [task["task"] for lesson in told["lessons"] for task in lesson["tasks"]] == EVERY
    assert told["unknown"] == ["99.9"]
    found = {task["task"]: task for lesson in told["lessons"] for task in lesson["tasks"]}
    assert found["02.1"]["passed"] is True
    assert found["02.1"]["seed"] == 3
    assert found["02.2"] == {"task": "02.2", "attempts": 0, "passed": False, "seed": None, "version": None}
    assert all(lesson["title"] for lesson in told["lessons"] if lesson["lesson"] <= "14")


def keep(*tasks: str) -> PartsFile:
    parts = PartsFile(parts_path())
    part = KeptPart("free", "def free(self, seq):\n    pass\n", "", "2026-11-23T10:15:00Z", "0.1.0")
    parts.change(lambda kept: KeptParts({**kept.parts, **dict.fromkeys(tasks, part)}))
    return parts


@pytest.mark.parametrize(("encoding", "bar"), [("utf-8", "▰" * 2 + "▱" * 13), ("ascii", "##" + "-" * 13)])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_engine_is_a_bar_of_parts(lang, encoding, bar, file, terminal, monkeypatch):
    monkeypatch.setattr("minikv.cli.progress.can_print", lambda letters, console: encoding == "utf-8")
    assert len(bar) == len(PARTS)
    for name, number in (("engine", "0"), ("yours", "2")):
        line = next(
            each for each in terminal("progress", "--lang", lang).out.splitlines() if "my-engine" in each
        )
        assert bar[2:] in line, name
        assert number in line
        assert (bar in line) is (number == "2")
        keep("09.2", "11b.2", "77.7")  # the last is a part of a newer minikv's
    told = json.loads(terminal("progress", "--json").out)
    assert told["engine"] == {"yours": ["09.2", "11b.2"], "parts": len(PARTS)}


def test_a_reset_forgets_the_parts_too(file, terminal):
    parts = keep("09.2", "11b.2")
    assert terminal("progress", "--reset", stdin=b"n\n").code == 1
    assert parts.read().parts
    done = terminal("progress", "--reset", stdin=b"y\n")
    assert done.code == 0
    assert "2 parts" in done.err + done.out
    assert not parts.path.exists()
    parts.path.write_text("{")
    assert is_one_sentence(terminal("progress"))
    assert terminal("progress", "--reset", "--yes").code == 0
    assert not parts.path.exists()
    assert terminal("progress").code == 0


def test_looking_changes_nothing(file, terminal, tmp_path):
    assert terminal("progress").code == 0
    assert list(tmp_path.iterdir()) == []


def test_from_one_machine_to_another_and_back(file, terminal, tmp_path):
    out = str(tmp_path / "export.json")
    solve(file, "02.1", "02.2")
    assert terminal("progress", "--export", out).code == 0
    assert parse_progress((tmp_path / "export.json").read_bytes(), out) == file.read()
    file.forget()
    solve(file, "02.2", passed=False)
    solve(file, "03.1")
    for new in (2, 0):  # the second time it changes nothing
        done = terminal("progress", "--import", out)
        assert done.code == 0
        assert f"{new} exercises newly solved, 3 solved" in done.out
        assert file.read().solved == {"02.1", "02.2", "03.1"}
    assert terminal("progress", "--export", out).code == 0, "over an older export"
    told = json.loads(terminal("progress", "--import", out, "--json").out)
    assert told["solved"] == 3


def test_an_export_overwrites_nothing_else(file, terminal, tmp_path):
    mine = tmp_path / "notebook.ipynb"
    mine.write_text('{"cells": []}')
    done = terminal("progress", "--export", str(mine))
    assert is_one_sentence(done)
    assert mine.read_text() == '{"cells": []}'
    assert is_one_sentence(terminal("progress", "--export", str(tmp_path / "no" / "folder.json")))
    assert is_one_sentence(terminal("progress", "--export", str(tmp_path)))


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 1, "tasks": {"02.1": {}}}', b'{"format": 9}'])
def test_what_is_no_export_is_refused_by_name(content, file, terminal, tmp_path):
    solve(file, "02.1")
    before = file.path.read_bytes()
    bad = tmp_path / "bad.json"
    bad.write_bytes(content)
    for lang in ("en", "zh"):
        done = terminal("progress", "--import", str(bad), "--lang", lang)
        assert is_one_sentence(done)
        assert str(bad) in done.err
    assert file.path.read_bytes() == before
    assert is_one_sentence(terminal("progress", "--import", str(tmp_path / "absent.json")))
    assert is_one_sentence(terminal("progress", "--import", str(tmp_path)))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_has_no_end_is_not_read(lang, file, terminal, tmp_path):
    solve(file, "02.1")
    before = file.path.read_bytes()
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(2**40)  # takes no room on the disk
    places = [tmp_path / "pipe", tmp_path / "huge", Path("/dev/zero"), Path("/dev/stdin")]
    for place in places:
        if place.exists():
            done = terminal("progress", "--import", str(place), "--lang", lang)
            assert is_one_sentence(done), done
            assert str(place) in done.err
    assert is_one_sentence(terminal("progress", "--export", str(tmp_path / "pipe"), "--lang", lang))
    assert file.path.read_bytes() == before


def test_tasks_that_nobody_has_are_not_taken_in(file, terminal, tmp_path):
    strangers = [f"X{number:03}.{task}" for number in range(100) for task in range(100)]
    there = Progress().after("02.1", True, 0).after("A.1", False, 0)
    tasks = there.tasks | dict.fromkeys(strangers, there.tasks["02.1"])
    (tmp_path / "export.json").write_text(Progress(tasks).as_json())
    done = terminal("progress", "--import", str(tmp_path / "export.json"))
    assert done.code == 0
    assert "1 exercises newly solved, 1 solved" in done.out
    assert "10000" in done.out
    assert "X000.0, X000.1" in done.out
    assert len(done.out) < 500
    assert file.read() == there
    file.path.write_text(Progress(tasks).as_json())  # of an earlier version, which took in all
    done = terminal("progress")
    assert done.code == 0
    assert len(done.out) < 10_000


def test_reset_asks_first(file, terminal):
    assert "Nothing is recorded" in terminal("progress", "--reset").out
    solve(file, "02.1")
    for answer in (b"n\n", b"\n", b""):
        assert terminal("progress", "--reset", stdin=answer).code == 1
        assert file.read().solved == {"02.1"}
    assert terminal("progress", "--reset", stdin=b"y\n").code == 0
    assert file.read() == Progress()
    solve(file, "02.1")
    assert terminal("progress", "--reset", "--yes").code == 0
    assert not file.path.exists()


def test_a_damaged_record_is_said_and_kept(file, terminal, tmp_path):
    file.path.write_text("{")
    for arguments in ((), ("--json",), ("--export", str(tmp_path / "export.json"))):
        done = terminal("progress", *arguments)
        assert is_one_sentence(done)
        assert str(file.path) in done.err
    assert file.path.read_text() == "{"
    good = tmp_path / "good.json"
    good.write_text(Progress().after("02.1", True, 0).as_json())
    done = terminal("progress", "--import", str(good))
    assert done.code == 0
    assert "progress.json.damaged" in done.out
    assert file.read().solved == {"02.1"}
    assert (tmp_path / "progress.json.damaged").read_text() == "{"


def test_options_that_do_not_go_together(file, terminal, tmp_path):
    out = str(tmp_path / "export.json")
    for arguments in (
        ("--export", out, "--reset"),
        ("--export", out, "--import", out),
        ("--import", out, "--reset"),
        ("--yes",),
        ("--yes", "--export", out),
        ("--lang", "fr"),
    ):
        assert is_one_sentence(terminal("progress", *arguments))
    assert list(tmp_path.iterdir()) == []


def test_off_is_said(terminal, monkeypatch):
    monkeypatch.setenv(VARIABLE, "off")
    done = terminal("progress")
    assert is_one_sentence(done)
    assert VARIABLE in done.err
