"""Lesson 11 became 11a, 11b and 11c, parts of 02 became 02b, ...: what learners have from before goes on working.

``before_11a``, ``before_02b``, ... hold what minikv 0.1.0 wrote before: the code cells of the lesson's notebook and of
the exercises, without outputs; ``before_11a`` also the prose, and a record of progress.
"""

import json
import re
from pathlib import Path

import pytest

from minikv.course import moved, shipped, start
from minikv.course.lessons import find_exercise, find_lesson, lesson_numbers
from minikv.course.progress import parse_progress
from minikv.course.progress_file import ProgressFile
from minikv.course.progress_table import by_lesson, unknown_tasks
from minikv.course.shipped import Yours, copy_course

BEFORE = Path(__file__).parent / "before_11a"
STAYED = [number for number, lessons in moved.LESSONS.items() if number in lessons]
OLD_TASK = re.compile(r"[0-9A-Za-z]{1,4}\.[0-9]{1,3}")  # what minikv 0.1.0 takes for an id


def code(number: str, name: str) -> list[str]:
    """The code cells of lesson ``number``, before it was divided."""
    first_new = next(lesson for lesson in moved.LESSONS[number] if lesson != number)
    path = Path(__file__).parent / f"before_{first_new}" / name
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def code_cells(sources: list[str]) -> list[dict]:
    return [{"cell_type": "code", "source": [source]} for source in sources]


def test_every_old_number_leads_to_an_exercise_or_a_lesson_and_is_taken_by_none():
    for number, lessons in moved.LESSONS.items():
        assert number not in lesson_numbers() or number == lessons[0]
        assert set(lessons) <= set(lesson_numbers())
    for old, new in moved.EXERCISES.items():
        assert find_exercise(old) is find_exercise(new)
        assert find_exercise(new).id == new
    assert len(set(moved.EXERCISES.values())) == len(moved.EXERCISES)


def test_what_was_solved_under_the_old_numbers_is_solved():
    content = (BEFORE / "progress.json").read_bytes()
    old = json.loads(content)["tasks"]
    now = parse_progress(content, "progress.json")
    assert len(now.tasks) == len(old)
    for task, tried in old.items():
        found = now.tasks[moved.EXERCISES.get(task, task)]
        assert (found.passed, found.attempts, found.seed) == (
            tried["passed"],
            tried["attempts"],
            tried["seed"],
        )
    assert {"11a.1", "11b.1", "11b.3"} <= now.solved
    assert now.tasks["11a.2"].attempts == 2
    lessons = by_lesson(now, "en")
    assert unknown_tasks(now, lessons) == []
    assert {"02", "11a", "11b", "11c", "12", "A"} <= {lesson.number for lesson in lessons}
    assert parse_progress(now.as_json().encode(), "p") == now


def test_an_old_record_and_a_new_one_in_one_file_count_once():
    """An older minikv has written "11.2" beside the "11a.2" of a newer one."""
    data = json.loads((BEFORE / "progress.json").read_text())
    solved = {**data["tasks"]["11.1"], "seed": 7}
    data["tasks"] |= {"11a.2": solved, "11a.1": {**data["tasks"]["11.2"], "attempts": 5}}
    now = parse_progress(json.dumps(data).encode(), "p")
    assert {"11a.1", "11a.2"} <= now.solved
    assert now.tasks["11a.2"].seed == 7
    assert now.tasks["11a.1"].attempts == 5
    assert not set(now.tasks) & set(moved.EXERCISES)


def test_an_attempt_rewrites_the_file_under_the_new_numbers(tmp_path):
    path = tmp_path / "progress.json"
    path.write_bytes((BEFORE / "progress.json").read_bytes())
    ProgressFile(path).change(lambda progress: progress.after("11a.5", True, 0))
    written = json.loads(path.read_text())
    assert not set(written["tasks"]) & set(moved.EXERCISES)
    assert written["tasks"]["11b.1"]["passed"]
    # The form is the one of minikv 0.1.0, and so are the ids: it reads this file, and keeps what it does not know.
    assert written["format"] == json.loads((BEFORE / "progress.json").read_text())["format"]
    assert all(OLD_TASK.fullmatch(task) for task in written["tasks"])


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("number", moved.LESSONS)
def test_the_old_exercises_are_judged_and_say_their_new_numbers(number, lang, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MINIKV_PROGRESS", str(tmp_path / "progress.json"))
    check, *_ = start(number, lang=lang)
    said = capsys.readouterr().out
    assert bool(said) == (number not in STAYED)
    for lesson in () if number in STAYED else moved.LESSONS[number]:
        [path] = (shipped.course_root() / "notebooks" / lang).glob(f"{lesson}_*.ipynb")
        assert path.name in said
    checked = re.findall(r'check\("([^"]+)", (\w+)\)', "\n".join(code(number, "exercise.ipynb")))
    due = {id: moved.EXERCISES.get(id, id) for id, _ in checked}
    assert {id for id in moved.EXERCISES if id.startswith(f"{number}.")} <= set(due)
    for id, new in due.items():
        check(id, find_exercise(id).reference)
        said = capsys.readouterr().out
        assert id in said.splitlines()[0]
        assert new in said.splitlines()[0]
        assert f"{new}: " in said or f"{new}：" in said
    assert ProgressFile(tmp_path / "progress.json").read().solved == set(due.values())


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("number", moved.LESSONS)
def test_every_question_of_the_old_lesson_is_still_asked(number, lang, capsys):
    _, predict, explain, *_ = start(number, lang=lang)
    cells = code(number, "lesson.ipynb")
    asked = re.findall(r'^(predict|explain)\("(\w+)"', "\n".join(cells), re.MULTILINE)
    assert len(asked) >= 8
    for word, key in asked:
        {"predict": predict, "explain": explain}[word](key)
        assert capsys.readouterr().out.strip()


def test_a_word_that_no_part_has_is_refused_as_in_any_lesson():
    from minikv.errors import UnknownNameError

    _, predict, *_ = start("11")
    with pytest.raises(UnknownNameError):
        predict("no_such_key")
    with pytest.raises(UnknownNameError):
        start("11d")
    for number in STAYED:
        _, predict, *_ = start(number)
        with pytest.raises(UnknownNameError):
            predict("no_such_key")
    with pytest.raises(UnknownNameError, match=r"11a\.5"):
        find_exercise("11a.99")
    assert find_lesson("11A") is find_lesson("11a")


@pytest.mark.parametrize("edited", [False, True])
def test_the_learners_old_notebook_stays_and_the_new_ones_come(edited, tmp_path, monkeypatch):
    package, target = tmp_path / "package", tmp_path / "course"
    monkeypatch.setattr(shipped, "course_root", lambda: package)
    folder = package / "notebooks/en"
    folder.mkdir(parents=True)
    (folder / "11_the_engine.ipynb").write_bytes((BEFORE / "lesson.ipynb").read_bytes())
    copy_course(target)
    mine = target / "notebooks/en/11_the_engine.ipynb"
    if edited:
        notebook = json.loads(mine.read_text(encoding="utf-8"))
        notebook["cells"][-2]["source"] = ["my own words"]
        mine.write_text(json.dumps(notebook))
    before = mine.read_bytes()
    (folder / "11_the_engine.ipynb").unlink()
    names = ["11a_continuous_batching", "11b_when_blocks_run_out", "11c_your_engine"]
    for name in names:
        (folder / f"{name}.ipynb").write_text(json.dumps({"cells": []}))
    report = copy_course(target)
    assert (report.new, report.yours) == (3, ())
    assert mine.read_bytes() == before
    assert all((target / f"notebooks/en/{name}.ipynb").is_file() for name in names)
    (folder / "11a_continuous_batching.ipynb").write_text(json.dumps({"cells": [], "v": 2}))
    copy_course(target)
    assert mine.read_bytes() == before
    assert Yours("notebooks/en/11_the_engine.ipynb", None) not in copy_course(target).yours


@pytest.mark.parametrize("number", STAYED)
@pytest.mark.parametrize("edited", [False, True])
def test_a_lesson_that_kept_its_number_is_replaced_unless_the_learner_changed_it(
    number, edited, tmp_path, monkeypatch
):
    package, target = tmp_path / "package", tmp_path / "course"
    monkeypatch.setattr(shipped, "course_root", lambda: package)
    folder = package / "notebooks/en"
    folder.mkdir(parents=True)
    shipped_now = folder / f"{number}_lesson.ipynb"
    shipped_now.write_text(json.dumps({"cells": code_cells(code(number, "lesson.ipynb"))}))
    copy_course(target)
    mine = target / "notebooks/en" / shipped_now.name
    if edited:
        mine.write_text(json.dumps({"cells": code_cells(["my own words"])}))
    before = mine.read_bytes()
    shipped_now.write_text(json.dumps({"cells": code_cells(["shorter"])}))
    (folder / f"{number}b_lesson.ipynb").write_text(json.dumps({"cells": code_cells(["the other part"])}))
    report = copy_course(target)
    assert (target / f"notebooks/en/{number}b_lesson.ipynb").is_file()
    assert (mine.read_bytes() == before) == edited
    assert (report.new, len(report.yours)) == ((1, 1) if edited else (2, 0))
