"""The parts of a lesson, their order, and the words that no sentence needs."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tools.notebooks.course import Target, open_course
from tools.notebooks.source import Cell, Source
from tools.notebooks.structure import VOICE, Voice, read_voice, structure_problems, tics

ROOT = Path(__file__).parents[2]
RULES = read_voice(ROOT)
PARTS = [
    "After this lesson you can\n\nYou need nothing.",
    "predict(1)",
    "## Recap\n\n- a\n- b\n- c",
    "## Check yourself",
    "## Exercises",
    "## If you are stuck",
    "## In the wild",
    "## What comes next",
]
HEADINGS = (
    "## 本课小结\n\n- a\n- b\n- c",
    "## 自我检查",
    "## 练习",
    "## 卡住了怎么办",
    "## 实战现场",
    "## 下一课",
)
CHINESE = ["学完本课，你能", "predict(1)", *HEADINGS]


def problems(parts: list[str], lesson: str = "02", chinese: list[str] = CHINESE) -> list[str]:
    texts = [("en", text) for text in ["## The question", *parts]] + [("zh", text) for text in chinese]
    cells = tuple(
        Cell("markdown", f"c{place}", text, place, lang) for place, (lang, text) in enumerate(texts)
    )
    return [what for what, _ in structure_problems(RULES, Source(Path("x"), "", {}, cells), lesson)]


def test_a_lesson_with_all_parts_in_order_has_no_problem():
    assert problems(PARTS) == []


@pytest.mark.parametrize("place", range(len(PARTS)))
def test_a_missing_part_is_named(place):
    found = problems(PARTS[:place] + PARTS[place + 1 :])
    assert found
    assert all(line.startswith("the en lesson has no ") for line in found)


def test_each_language_is_looked_at():
    assert problems(PARTS, chinese=CHINESE[:-1]) == ["the zh lesson has no next"]


def test_parts_that_changed_places():
    swapped = [*PARTS[:3], PARTS[4], PARTS[3], *PARTS[5:]]
    assert problems(swapped) == ["the en lesson has exercises before questions"]


def test_abilities_stand_on_the_first_screen():
    late = ["## First", "## Second", *PARTS]
    assert problems(late) == [
        "the en lesson has no abilities before its second heading",
        "the en lesson has no prerequisites before its second heading",
    ]


@pytest.mark.parametrize("count", [0, 2, 6])
def test_a_recap_has_three_to_five_lines(count):
    parts = [*PARTS[:2], "## Recap\n\n" + "- a\n" * count, *PARTS[3:]]
    assert problems(parts) == [f"the en recap has {count} lines"]


def test_reports_of_other_projects_stand_in_the_wild():
    link = "[x](https://github.com/a/b/issues/12)"
    early = [PARTS[0] + link, *PARTS[1:]]
    late = [*PARTS[:6], PARTS[6] + "\n\n" + link, PARTS[7]]
    assert problems(late) == []
    assert problems(early) == ["the en lesson links a report before In the wild: github.com/a/b/issues/12"]


def test_exceptions_are_listed_by_lesson_and_each_is_needed():
    short = [part for part in PARTS if not part.startswith("## In the wild")]
    assert problems(short, "14b", [part for part in CHINESE if part != "## 实战现场"]) == []
    assert problems([], "A", []) == []
    course = open_course(ROOT)
    for part in RULES.parts:
        for number in part.without:
            source = course.read(Target("lesson", "en", course.by_number(number).stem))
            everything = Voice(tuple(replace(each, without=()) for each in RULES.parts))
            said = [what for what, _ in structure_problems(everything, source, number)]
            assert any(line.startswith(f"the en lesson has no {part.name}") for line in said)


def words(text: str, lesson: str = "02", key: str = "x", lang: str = "en") -> list[str]:
    return [word for word, _ in tics(RULES, Cell("markdown", key, text, 1, lang), lang, lesson)]


def test_a_person_for_a_thing_is_found_and_quotations_and_code_are_free():
    assert words("Nobody holds the block.") == ["nobody"]
    assert words("块由谁持有？", lang="zh") == ["谁"]
    assert words("The text says “who paid”, and `nobody` is a name.") == []


def test_a_percent_sign_stands_as_its_language_has_it():
    assert words("It is 7.4%.") == ["4%"]
    assert words("它是 7.4 %。", lang="zh") == ["4 %"]
    assert words("It is 7.4 %, and `7.4%` is code.") == words("它是 7.4%。", lang="zh") == []


def test_an_exception_holds_for_its_cell_alone():
    text = "Now we ask 24 questions about the document."
    assert words(text, "11a", "chunks_exercise") == []
    assert words(text, "11a", "other") == words(text, "11b", "chunks_exercise") == ["the document"]


def test_every_exception_of_a_word_is_needed():
    course = open_course(ROOT)
    for tic in RULES.tics:
        for number, keys in tic.fine.items():
            stem = course.by_number(number).stem
            cells = [
                cell
                for kind in ("lesson", "solution")
                if kind == "lesson" or stem in course.with_exercises
                for cell in course.read(Target(kind, tic.lang, stem)).in_language(tic.lang)
            ]
            for key in keys:
                excepted = [replace(cell, key="") for cell in cells if cell.key == key]
                found = {word for cell in excepted for word, _ in tics(RULES, cell, tic.lang, number)}
                assert any(word in tic.words or re.search(tic.pattern or "$.", word) for word in found), (
                    number,
                    key,
                )


def test_check_reads_the_rules_of_its_course(sample):
    from tools.notebooks.check import check

    assert not [line for line in check(sample) if "has no recap" in line]
    shutil.copy(ROOT / VOICE, sample / VOICE)
    assert any("01_second.py: the en lesson has no recap" in line for line in check(sample))
    lesson = sample / "notebooks/src/01_second.py"
    lesson.write_text(lesson.read_text().replace("# How much?", "# Who asks?"))
    assert any("[question en" in line and 'prose does without "who"' in line for line in check(sample))
