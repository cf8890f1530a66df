"""``minikv progress --class`` and ``--badges``: many records, hostile ones among them."""

import json
import os
import re

import pytest

from minikv.course.class_progress import MOST_BYTES, MOST_FILES, read_class
from minikv.course.lesson_parts import FIRST, lesson_parts
from minikv.course.lessons import find_lesson, lesson_numbers
from minikv.course.progress import Progress
from minikv.course.progress_file import VARIABLE, ProgressFile
from minikv.i18n import LANGUAGES, text

HOSTILE = "<script>alert(1)</script>"


def record(solved: list[str], stuck: tuple[str, ...] = (), attempts: int = 1) -> str:
    now = Progress()
    for task in stuck:
        now = now.after(task, False, 1)
    for task in solved:
        for attempt in range(attempts):
            now = now.after(task, attempt == attempts - 1, 1)
    return now.as_json()


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "class"
    place.mkdir()
    (place / "ada.json").write_text(record(["02.1", "02.2", "09.1"], ("12.1",), attempts=3))
    (place / "林.json").write_text(record(["02.1"], ("02.2", "12.1")))
    (place / "new.json").write_text(record([]))
    return place


def test_it_says_where_each_learner_is_and_what_stops_people(folder):
    found = read_class(folder, "en")
    assert [(one.name, one.solved, one.at.number if one.at else None) for one in found.learners] == [
        ("ada", 3, "12"), ("林", 1, "12"), ("new", 0, None),
    ]  # fmt: skip
    hurdles = {one.task: (one.stuck, one.solved, one.attempts) for one in found.hurdles}
    assert hurdles == {
        "12.1": (2, 0, None), "02.2": (1, 1, 3), "02.1": (0, 2, 2), "09.1": (0, 1, 3),
    }  # fmt: skip
    assert [one.task for one in found.hurdles] == ["12.1", "02.2", "09.1", "02.1"]
    assert found.refused == {}


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_page_is_static_and_loads_nothing(lang, folder, terminal, tmp_path):
    page = tmp_path / "class.html"
    done = terminal("progress", "--class", str(folder), "--html", str(page), "--lang", lang)
    assert (done.code, done.err) == (0, "")
    assert "12.1" in done.out
    assert str(page) in done.out.replace("\n", "")
    html = page.read_text(encoding="utf-8")
    assert "default-src 'none'" in html
    assert not re.search(r"<script|<link|<img|src=|https?:|url\(", html)
    assert text("class_progress.hurdles", lang) in html
    for name in ("ada", "林", "new"):
        assert f'<th scope="row">{name}</th>' in html
    assert html.count("<h2>") == 2


def test_json_has_the_same_numbers(folder, terminal):
    told = json.loads(terminal("progress", "--class", str(folder), "--json").out)
    assert [one["name"] for one in told["learners"]] == ["ada", "林", "new"]
    assert told["learners"][0]["lessons"]["02"] == 2
    assert told["exercises"][0] == {"task": "12.1", "stuck": 2, "solved": 0, "attempts": None}


def test_hostile_files_are_refused_by_name_and_change_nothing_else(folder, terminal, tmp_path):
    (folder / "broken.json").write_text("{")
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "huge.json").write_bytes(b" " * (MOST_BYTES + 1))
    (folder / "other.json").write_text(json.dumps({"format": 1, "tasks": {HOSTILE: {}}}))
    (folder / f"{HOSTILE.replace('/', '-')}[red].json").write_text(record(["02.1"]))
    (folder / "a\x1b[2J\u202e.json").write_text(record(["02.1"]))
    (folder / "folder.json").mkdir()
    (folder / "link.json").symlink_to(folder / "ada.json")
    (folder / "notes.txt").write_text("x")
    os.mkfifo(folder / "pipe.json")
    page = tmp_path / "class.html"
    done = terminal("progress", "--class", str(folder), "--html", str(page))
    assert done.code == 0
    found = read_class(folder, "en")
    assert set(found.refused) == {
        f"{name}.json" for name in ("broken", "deep", "huge", "other", "folder", "link", "pipe")
    }
    assert len(found.learners) == 5
    html = page.read_text(encoding="utf-8")
    assert "<script" not in html
    assert "[red]" in done.out
    for shown in (html, done.out):
        assert "\x1b[2J" not in shown
        assert "\u202e" not in shown
        assert "broken.json" in shown


def test_a_folder_that_is_no_class_is_refused(tmp_path, terminal):
    for path in (tmp_path, tmp_path / "nothing"):
        done = terminal("progress", "--class", str(path))
        assert done.code != 0
        assert str(path) in done.err.replace("\n", "")
    for number in range(MOST_FILES + 1):
        (tmp_path / f"{number}.json").write_text("")
    assert f"{MOST_FILES + 1:,}" not in terminal("progress", "--class", str(tmp_path)).out
    assert terminal("progress", "--class", str(tmp_path)).code != 0


@pytest.mark.parametrize(
    "arguments",
    [("--html", "x.html"), ("--class", "x", "--badges"), ("--badges", "--reset"), ("--badges", "--yes")],
)
def test_options_that_do_not_go_together_are_refused(arguments, terminal):
    assert terminal("progress", *arguments).code != 0


def test_no_page_is_left_where_the_class_is_refused(tmp_path, terminal):
    page = tmp_path / "class.html"
    assert terminal("progress", "--class", str(tmp_path / "nothing"), "--html", str(page)).code != 0
    assert not page.exists()


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_badge_is_a_line_for_each_part_that_is_done(lang, tmp_path, terminal, monkeypatch):
    path = tmp_path / "progress.json"
    monkeypatch.setenv(VARIABLE, str(path))
    assert text("lesson_parts.bytes", lang) in terminal("progress", "--badges", "--lang", lang).out
    part = lesson_parts(lesson_numbers())["bytes"]
    tasks = [one.id for number in part for one in find_lesson(number).exercises]
    ProgressFile(path).change(lambda _: Progress().merged(_of(tasks)))
    lines = terminal("progress", "--badges", "--lang", lang).out.splitlines()
    assert text("lesson_parts.bytes", lang) in lines[0]
    assert str(len(tasks)) in lines[0]
    assert text("progress.badge_means", lang) == lines[-1]
    assert len(lines) == 3


def _of(tasks: list[str]) -> Progress:
    now = Progress()
    for task in tasks:
        now = now.after(task, True, 1)
    return now


def test_the_parts_hold_every_lesson_once():
    parts = lesson_parts(lesson_numbers())
    assert list(parts) == list(FIRST.values())
    assert [number for part in parts.values() for number in part] == lesson_numbers()
