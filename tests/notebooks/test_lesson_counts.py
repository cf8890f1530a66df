"""Pictures first: how soon a lesson shows something, how often, and how much of its code is labels."""

import re
from pathlib import Path

import pytest

from tools.notebooks.counts import Counts, count, words_of
from tools.notebooks.course import open_course

COURSE = open_course(Path(__file__).resolve().parents[2])
LESSONS = {
    target: count(COURSE, target)
    for target in COURSE.targets()
    if target.kind == "lesson" and target.stem[0].isdigit()
}
WORDS = {"en": 150, "zh": 260}  # before the first picture; in Chinese a letter is a word
VISUALS, DIAGRAMS, LINES, LABELS = 4, 1, 15, 250
# Lessons that still have to be rewritten (docs/internal/roadmap.md, 5/9). One that is done is taken off.
OPEN: set[str] = set()


def falls_short(lang: str, found: Counts) -> list[str]:
    short = []
    if found.first is None or found.first > WORDS[lang]:
        short.append(f"its first picture stands behind {found.first} words")
    if found.visuals < VISUALS or found.diagrams < DIAGRAMS:
        short.append(f"{found.visuals} visuals, {found.diagrams} of them diagrams")
    if found.longest > LINES:
        short.append(f"a cell of {found.longest} lines")
    return short


@pytest.mark.parametrize("target", LESSONS, ids=lambda target: f"{target.lang}-{target.stem}")
def test_a_lesson_shows_before_it_tells(target):
    short = falls_short(target.lang, LESSONS[target])
    if target.stem.split("_")[0] in OPEN:
        assert short, "take it off OPEN"
    else:
        assert not short


def test_the_code_of_all_lessons_has_few_labels():
    for lang in WORDS:
        assert sum(found.labels for target, found in LESSONS.items() if target.lang == lang) <= LABELS


def test_what_is_folded_or_code_is_not_read_and_a_chinese_letter_is_a_word():
    assert words_of("Two words, `code` $x + 1$ [here](https://a.b/c)") == 3
    assert words_of("<details><summary>no</summary> not this</details> yes") == 1
    assert words_of("缓存 16 个 token") == 5


def test_it_counts_what_stands_in_a_notebook():
    """The first lesson, counted another way."""
    target = next(target for target in LESSONS if target.stem == "00_start_here" and target.lang == "en")
    written = (COURSE.root / target.path).read_text(encoding="utf-8")
    assert LESSONS[target].diagrams == len(re.findall(r'class=\\"minikv-diagram\\"', written))
    assert LESSONS[target].visuals >= LESSONS[target].diagrams
