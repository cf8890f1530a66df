"""Your engine: each known wrong answer of each part, put into nano by force, is found, and the part is named.

In this process, without a check before it: nano's own runs beside each call, on the same state.
"""

from dataclasses import asdict

import pytest

from minikv.course.lessons import find_exercise
from minikv.course.your_engine import run
from minikv.course.your_engine.assemble import part_in_nano
from minikv.course.your_engine.beside import KERNEL
from minikv.course.your_engine.kept import KeptPart
from minikv.course.your_engine.load import loads
from minikv.course.your_engine.parts import PART_OF, PARTS
from minikv.course.your_engine.report import EngineReport
from minikv.course.your_engine.run import examine, prepare
from tests.course.test_every_exercise import right_answers
from tests.longer import usual_if

WRONG = {part.task: find_exercise(part.task).misconceptions for part in PARTS}
MUTANTS = [
    pytest.param(part.task, wrong, id=f"{part.name}-{wrong.name}")
    for part in PARTS
    for wrong in WRONG[part.task]
]


@pytest.fixture(scope="module")
def ready():
    return [prepare(load) for load in loads()]


@pytest.fixture(scope="module")
def ready_small():
    return [prepare(load) for load in loads(small=True)]


def proxy(own):
    return lambda *args, **kwargs: own(*args, **kwargs)


def test_the_first_known_wrong_answers_of_all_parts_are_found_together(ready):
    wrong = {task: known[0].wrong for task, known in WRONG.items()}
    examined = examine(ready, wrong)
    assert set(examined.findings) == set(wrong)
    for found in examined.findings.values():
        assert found.kind != "never"
        assert found.text("en")
        assert found.text("zh")


@pytest.mark.long
@pytest.mark.parametrize(("task", "wrong"), MUTANTS)
def test_a_known_wrong_answer_is_found_and_its_part_is_named(ready, task, wrong):
    examined = examine(ready, {task: wrong.wrong})
    assert list(examined.findings) == [task]
    assert examined.findings[task].kind != "never"
    for lang in ("en", "zh"):
        assert examined.findings[task].text(lang)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("requests", usual_if(lambda requests: requests == 16, [16, 48]))
def test_right_answers_that_are_written_otherwise_pass_together(ready, ready_small, number, requests):
    """Those of the lessons' own tests: two for each exercise, neither of them the reference."""
    theirs = {part.task: right_answers(part.lesson)[part.task][number] for part in PARTS}
    if part_in_nano(PART_OF[KERNEL]) is None:
        del theirs[KERNEL]
    examined = examine(ready if requests == 48 else ready_small, theirs)
    assert examined.findings == {}
    assert not examined.differs
    assert all(examined.calls[task] for task in theirs)
    assert min(examined.seen.hits, examined.seen.chunks, examined.seen.preemptions) > 0
    assert examined.seen.requests == requests


def test_a_part_that_is_never_called_is_named(ready, monkeypatch):
    monkeypatch.setattr(run, "_num_blocks", lambda each: each.load.num_blocks)
    examined = examine(ready[2:], {"02.1": proxy(part_in_nano(PARTS[0]))})
    assert examined.findings["02.1"].kind == "never"


def test_a_wrong_part_changes_tokens_and_the_first_is_named(ready):
    wrong = next(each for each in find_exercise("09.1").misconceptions if each.name == "no_table")
    examined = examine(ready, {"09.1": wrong.wrong})
    effect = examined.effects["09.1"]
    assert (effect.kind, effect.load) == ("token", "tiny-gqa")
    assert ready[0].due[effect.request][effect.place] == effect.due != effect.got


def test_the_report_names_what_is_wrong_in_both_languages(ready):
    theirs = {"09.2": lambda self, seq: print("freeing"), "02.6": proxy(part_in_nano(PARTS[1]))}
    kept = {task: KeptPart("f", "", "", "2026-11-23T10:00:00Z", "1") for task in theirs}
    report = EngineReport(kept, asdict(examine(ready[2:], theirs)))
    assert not report.passed
    for lang, words in (("en", ["2 of 15", "2026-11-23", "wrong", "prints"]), ("zh", ["15 个部件", "有误"])):
        shown = report.shown(lang).text()
        assert all(word in shown for word in words), shown
    assert len(repr(report)) <= 120
    assert "<table" in report._repr_html_()
