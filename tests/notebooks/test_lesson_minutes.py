"""Minutes: what a lesson's words and exercises give, and the routes that are sums of them."""

import re
from pathlib import Path

import pytest

from minikv.course.lessons import find_lesson, lesson_numbers
from minikv.i18n import LANGUAGES
from tools.notebooks.course import Target, open_course
from tools.notebooks.minutes import ROUTES, STEP, exercise_minutes, lesson_minutes, route_minutes

ROOT = Path(__file__).parents[2]
COURSE = open_course(ROOT)


def write_words(root: Path, words: dict[str, int]) -> None:
    """One more cell of so many words in the sample's second lesson."""
    path = root / "notebooks/src/01_second.py"
    cells = "".join(
        f'# %% [markdown] key="more" lang="{lang}"\n# {" ".join(["字" if lang == "zh" else "word"] * count)}\n'
        for lang, count in words.items()
    )
    path.write_text(path.read_text(encoding="utf-8") + "\n" + cells, encoding="utf-8")


def minutes_of(root: Path) -> int:
    course = open_course(root)
    return lesson_minutes(course, course.lessons[1])


@pytest.mark.parametrize(
    ("words", "minutes"),
    [({"en": 2100, "zh": 350}, 15), ({"en": 200, "zh": 3675}, 15), ({"en": 1900, "zh": 3300}, 10)],
)
def test_the_slower_language_counts_and_five_is_the_step(sample, words, minutes):
    assert minutes_of(sample) == STEP
    write_words(sample, words)
    assert minutes_of(sample) == minutes


def test_what_exercises_say_is_added(sample):
    folder = sample / "minikv/course/lessons/l01"
    folder.mkdir(parents=True)
    (folder / "one.py").write_text("A = Exercise(id='01.1', minutes=12)\nB = Other(minutes=30)\n")
    (folder / "__init__.py").write_text("C = Exercise(id='01.2', minutes=4)\n")
    assert minutes_of(sample) == 20


def test_exercises_take_what_the_imported_lessons_say():
    for number in lesson_numbers():
        stated = sum(exercise.minutes for exercise in find_lesson(number).exercises)
        assert exercise_minutes(ROOT, number) == stated, number


@pytest.mark.parametrize("lang", LANGUAGES)
def test_lesson_00_has_the_routes_with_their_sums(lang):
    cells = COURSE.read(Target("lesson", lang, "00_start_here")).in_language(lang)
    text = next(cell.text for cell in cells if cell.key == "next")
    rows = re.findall(r"^\| [^|]+ \| (\w+(?: → \w+)+) \| (\d+) \|$", text, re.MULTILINE)
    said = [(tuple(lessons.split(" → ")), int(minutes)) for lessons, minutes in rows]
    assert said == [(lessons, route_minutes(COURSE, route)) for route, lessons in ROUTES.items()]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_lesson_00_says_how_many_hours_all_lessons_take(lang):
    total = sum(lesson_minutes(COURSE, meta) for meta in COURSE.lessons if meta.number[0].isdigit())
    cells = COURSE.read(Target("lesson", lang, "00_start_here")).in_language(lang)
    text = next(cell.text for cell in cells if cell.key == "next")
    hours = re.search(r"about (\d+) hours|大约 (\d+) 小时", text)
    assert int(hours[1] or hours[2]) == round(total / 60)
