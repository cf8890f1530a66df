"""What every exercise of the course brings, counted from the registry: hints, known wrong answers, right answers.

That each wrong answer is told from the others, and each right one passes, is tested lesson by lesson by
``assert_exercise`` (``tests/course/mutants.py``). This file asks that no exercise is left out of it: it notes what
the lessons' tests hand to it, whatever they look like.
"""

import ast
import copy
import importlib
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from minikv.course.check import HINT_LEVELS
from minikv.course.compare import difference
from minikv.course.lessons import find_lesson, lesson_numbers
from minikv.i18n import LANGUAGES, has_text, text
from tests.course.mutants import assert_exercise
from tests.in_turn import in_turn

ROOT = Path(__file__).parents[2]
EXERCISES = [exercise for number in lesson_numbers() for exercise in find_lesson(number).exercises]
CHINESE = re.compile(r"[\u4e00-\u9fff]")
CHECKED = re.compile(r'^\s*check\("([^"]+)",', re.MULTILINE)

# keys of an answer that stand in the code or in the task under this name
NAMES = {
    "ref_counts",
    "block_table",
    "free_blocks",
    "num_computed",
    "num_cached",
    "num_blocks",
    "positions",
    "slots",
}
NAMES |= {"lengths", "query_starts", "sampled_rows", "scores", "how", "swap_seconds", "recompute_seconds"}

every_exercise = in_turn("exercise", EXERCISES)


def owners(exercise) -> list[str]:
    """Whose hints the exercise has: its own, and those of each known wrong answer."""
    return [exercise.name, *(f"{exercise.name}.{wrong.name}" for wrong in exercise.misconceptions)]


def hints(exercise, lang: str) -> dict[tuple[str, int], str]:
    file = f"lesson_{exercise.lesson}"
    return {
        (owner, level): text(f"{file}.{owner}.hint{level}", lang).strip()
        for owner in owners(exercise)
        for level in HINT_LEVELS
    }


def parametrized(test: Callable) -> Iterator[dict[str, object]]:
    """The arguments that pytest would call ``test`` with, from its own marks."""
    axes = []
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            names, values = mark.args[:2]
            names = re.split(r"\s*,\s*", names) if isinstance(names, str) else list(names)
            rows = [getattr(row, "values", row) if len(names) > 1 else (row,) for row in values]
            axes.append([dict(zip(names, row, strict=True)) for row in rows])
    for chosen in itertools.product(*axes):
        yield {name: value for one in chosen for name, value in one.items()}


@cache
def right_answers(lesson: str) -> dict[str, list[Callable]]:
    """By exercise id: the answers that the tests of ``lesson`` hand to ``assert_exercise``, which does not run here."""
    found: dict[str, list[Callable]] = {}

    def note(exercise, *, right, **options):
        found.setdefault(exercise.id, []).extend(right)

    for path in sorted((ROOT / "tests/course/lessons").glob(f"test_l{lesson}*.py")):
        module = importlib.import_module(f"tests.course.lessons.{path.stem}")
        if getattr(module, "assert_exercise", None) is not assert_exercise:
            continue
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "assert_exercise", note)
            for name, test in inspect.getmembers(module, inspect.isfunction):
                if name.startswith("test_") and "assert_exercise" in test.__code__.co_names:
                    for arguments in parametrized(test):
                        test(**arguments)
    return found


def test_the_registry_holds_every_exercise_that_a_source_checks():
    for number in lesson_numbers():
        sources = [
            path
            for path in (ROOT / "solutions/src").glob("*.py")
            if path.stem.lower().startswith(f"{number}_")
        ]
        checked = [id for path in sources for id in CHECKED.findall(path.read_text(encoding="utf-8"))]
        assert list(dict.fromkeys(checked)) == [exercise.id for exercise in find_lesson(number).exercises]


def test_ids_and_names_belong_to_one_exercise_each():
    ids = [exercise.id for exercise in EXERCISES]
    names = [(exercise.lesson, exercise.name) for exercise in EXERCISES]
    assert len(ids) >= 80
    assert len(set(ids)) == len(ids)
    assert len(set(names)) == len(names)


@every_exercise
@pytest.mark.parametrize("lang", LANGUAGES)
def test_three_levels_of_hints_stand_there_and_no_two_are_alike(exercise, lang):
    said = hints(exercise, lang)
    assert len(said) == 3 * (1 + len(exercise.misconceptions))
    assert all(said.values()), [key for key, hint in said.items() if not hint]
    assert len(set(said.values())) == len(said)


@every_exercise
def test_the_chinese_hints_are_chinese_unless_the_last_is_code(exercise):
    english, chinese = hints(exercise, "en"), hints(exercise, "zh")
    for key, hint in chinese.items():
        assert not CHINESE.search(english[key]), key
        if not CHINESE.search(hint):
            assert key[1] == 3, (key, hint)
            for line in hint.rstrip("。").replace("、", ",").replace("×", "*").split("；"):
                ast.parse(f"{line}: ..." if line.startswith(("if ", "for ", "while ")) else line)


@every_exercise
def test_each_says_its_minutes(exercise):
    assert 2 <= exercise.minutes <= 15


@every_exercise
def test_at_least_two_wrong_answers_are_known_each_under_its_own_name(exercise):
    names = [wrong.name for wrong in exercise.misconceptions]
    assert len(names) >= 2
    assert len(set(names)) == len(names)


@every_exercise
def test_the_lessons_tests_hold_two_right_answers_that_are_not_the_reference(exercise):
    right = right_answers(exercise.lesson).get(exercise.id, [])
    code = {getattr(answer, "__code__", answer) for answer in [exercise.reference, *right]}
    assert len(right) >= 2
    assert len(code) == 1 + len(right), "two of the answers are the same code"


def string_keys(value: object) -> Iterator[str]:
    if type(value) is dict:
        yield from (key for key in value if type(key) is str)
    if type(value) in (dict, list, tuple):
        for part in value.values() if type(value) is dict else value:
            yield from string_keys(part)


@every_exercise
def test_keys_of_an_answer_are_names_of_the_code_or_words_in_the_readers_language(exercise):
    """``ref_counts`` is what the code calls it; ``forgotten`` would be an English word in a Chinese report."""
    if exercise.id == "10.6":
        pytest.importorskip("triton")
    owner = f"lesson_{exercise.lesson}.{exercise.name}.key"
    keys = {
        key
        for case in exercise.draw(0)[:6]
        for key in string_keys(answered(exercise, exercise.reference, case)[1])
    }
    english = {key for key in keys - NAMES if not has_text(f"{owner}.{key}")}
    assert not {key for key in english if not re.fullmatch(r"[kv]|[A-Z]\d*|read\(.*\)", key)}
    for lang in LANGUAGES:
        said = [text(f"{owner}.{key}", lang) for key in keys if has_text(f"{owner}.{key}")]
        assert len(set(said)) == len(said)


def answered(exercise, fn: Callable, case: dict) -> tuple[str, object]:
    try:
        return "returned", exercise.call(fn, copy.deepcopy(case))
    except Exception as error:
        return "raised", type(error)


def alike(exercise, one: tuple[str, object], other: tuple[str, object]) -> bool:
    if "raised" in (one[0], other[0]):
        return one == other
    return (exercise.equal or (lambda a, b: difference(a, b) is None))(one[1], other[1])


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_each_known_wrong_answer_has_a_case_of_its_own(exercise):
    """A case of its own is one of those that ``check`` draws by default, on which the known wrong answer is wrong, and
    answers as no other known wrong answer does: whoever reads this one counterexample knows which hint is due.

    That no other may be wrong there at all would ask too much: who forgets V and who counts in bits are both wrong in
    every case. Left out are those that a ``Misconception`` names as ``within``, and no more of them than the first
    such case needs. That the hint shown is the own one is held for each by ``assert_mutants``, under three seeds, with
    the function as a learner would hand it in.
    """
    if exercise.id == "10.6":
        pytest.importorskip("triton")
    within = {wrong.name: set(wrong.within) for wrong in exercise.misconceptions}
    own: dict[str, set[str]] = {}
    for case in exercise.draw(0):
        if own.keys() == within.keys():
            break  # a case of 14b.1 takes a third of a second
        right = answered(exercise, exercise.reference, case)
        said = {each.name: answered(exercise, each.wrong, case) for each in exercise.misconceptions}
        for name in within.keys() - own.keys():
            if not alike(exercise, right, said[name]):
                like = {other for other in said if other != name and alike(exercise, said[name], said[other])}
                if like <= within[name]:
                    own[name] = like
    assert own == within
