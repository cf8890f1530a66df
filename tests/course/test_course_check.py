"""check and run_check: whatever a learner writes, the answer is right and can be read."""

import dataclasses
import math
import re
import sys

import pytest
import torch

from minikv.course import check, run_check
from minikv.course.compare import size
from minikv.course.lessons import find_exercise, find_lesson
from minikv.course.report import full_report, report
from minikv.errors import ArgumentError, UnknownNameError
from minikv.i18n import text
from tests.course.mutants import assert_exercise
from tests.course.sample import BLOCKS, MEAN, RELEASE, said
from tests.course.sample import blocks_needed as right

pytestmark = pytest.mark.usefixtures("lesson_99")


def as_a_loop(lengths, block_size):
    blocks = 0
    for length in lengths:
        while length > 0:
            blocks, length = blocks + 1, length - block_size
    return blocks


def with_divmod(lengths, block_size):
    pairs = [divmod(length, block_size) for length in lengths]
    return sum(whole for whole, _ in pairs) + len([1 for _, rest in pairs if rest])


def test_the_sample_exercises_hold_what_lessons_promise():
    assert_exercise(BLOCKS, right=[as_a_loop, with_divmod], sequences="lengths")
    assert_exercise(
        MEAN, right=[lambda lengths: sum(lengths) / len(lengths), mean_in_steps], sequences="lengths"
    )

    def pops(table, free):
        copied = list(table)
        while copied:
            free.append(copied.pop())

    def raises(table, free):
        raise NotImplementedError

    assert_exercise(RELEASE, right=[pops, lambda table, free: free.extend(table[::-1])], stub=raises)


def mean_in_steps(lengths):
    mean = 0.0
    for count, length in enumerate(lengths, start=1):
        mean += (length - mean) / count
    return mean


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_first_hint_shows_the_case_whole_and_the_others_its_beginning(capsys, lang):
    """A learner who asks for the next hint has just read the case; what differs is still said."""

    def long_answer(lengths, block_size):
        return [right(lengths, block_size)] * 100

    first = said(capsys, long_answer, lang=lang)
    for level in (2, 3):
        brief = said(capsys, long_answer, hint=level, lang=lang)
        assert len(brief) < len(first) - 100
        assert "hint=1" in brief
        assert "hint=1" not in first


def test_a_pass_is_one_line_in_both_languages(capsys):
    assert said(capsys, right).strip().count("\n") == 0
    assert "passed" in said(capsys, right)
    assert "通过" in said(capsys, right, lang="zh")
    assert "seed 7" in said(capsys, right, seed=7)


def test_the_same_seed_gives_the_same_verdict_and_another_draws_other_cases():
    def wrong(lengths, block_size):
        return sum(lengths)

    verdicts = [run_check(BLOCKS, wrong, seed=seed) for seed in (3, 3, 4)]
    assert verdicts[0] == verdicts[1]
    assert verdicts[0].case != verdicts[2].case


def test_the_counterexample_is_the_smallest_failing_case():
    def wrong_when_long(lengths, block_size):
        return right(lengths, block_size) + (len(lengths) > 2)

    verdict = run_check(BLOCKS, wrong_when_long)
    failing = [case for case in BLOCKS.draw(0) if len(case["lengths"]) > 2]
    assert verdict.kind == "wrong"
    assert verdict.num_failed == len(failing)
    assert size(verdict.case) == min(size(case) for case in failing)
    assert verdict.got == verdict.expected + 1


def test_shrinking_goes_to_a_smaller_valid_case():
    def fewer(args):
        lengths = args["lengths"]
        return [{**args, "lengths": lengths[:i] + lengths[i + 1 :]} for i in range(len(lengths))]

    def always_wrong(lengths, block_size):
        return -1

    verdict = run_check(dataclasses.replace(BLOCKS, shrink=fewer), always_wrong)
    assert verdict.case["lengths"] == []
    assert verdict.expected == 0


def test_a_wrong_answer_shows_the_case_and_its_own_hint(capsys):
    def floor(lengths, block_size):
        total = 0
        for length in lengths:
            total += length // block_size
        return total

    out = said(capsys, floor)
    assert "blocks_needed.rounds_down: hint 1" in out
    assert "expected" in out
    assert "block_size" in out
    assert 'check("99.1", floor, hint=2)' in out
    assert "hint=3, seed=5)" in said(capsys, floor, hint=2, seed=5)
    last = said(capsys, floor, hint=3, lang="zh")
    assert "blocks_needed.rounds_down：第 3 条提示" in last
    assert "正确结果" in last
    assert "check(" not in last


def test_a_wrong_answer_of_no_known_kind_gets_the_general_hint(capsys):
    assert "Hint 1 of 3: blocks_needed: hint 1" in said(capsys, lambda lengths, block_size: -1)


def test_two_mistakes_at_once_are_taken_for_neither():
    def half_of_each(lengths, block_size):
        wrong = BLOCKS.misconceptions[len(lengths) % 2].wrong
        return wrong(lengths, block_size)

    assert run_check(BLOCKS, half_of_each).misconception is None


@pytest.mark.parametrize("also", [None, 0])
def test_who_also_fails_where_the_misconception_is_right_does_not_hold_it(also):
    rounds_down = BLOCKS.misconceptions[0].wrong

    def and_more(lengths, block_size):
        down = rounds_down(lengths, block_size)
        return down if down != right(lengths, block_size) else also

    agree = [case for case in BLOCKS.draw(0) if rounds_down(**case) == right(**case)]
    assert agree, "no case on which the misconception is right"
    verdict = run_check(BLOCKS, and_more)
    assert (verdict.num_failed, verdict.misconception) == (verdict.num_cases, None)


def test_a_key_error_where_the_field_is_absent_is_not_taken_for_null():
    def head_dim_of(config):
        return config["head_dim"]

    verdict = run_check(find_exercise("02.2"), head_dim_of)
    assert not verdict.passed
    assert verdict.misconception is None


def test_a_misconception_may_be_an_exception():
    def raises_too(lengths, block_size):
        return len(lengths) / (block_size - block_size)

    verdict = run_check(BLOCKS, raises_too)
    assert (verdict.kind, verdict.misconception) == ("raised", "divides")


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda lengths, block_size: None, "returned None"),
        (lambda lengths, block_size: float(right(lengths, block_size)), "An int is due"),
        (lambda lengths, block_size: str(right(lengths, block_size)), "int is due, yours is str"),
        (lambda lengths, block_size: (n for n in lengths), "generator"),
        (lambda lengths, block_size: True, "int is due, yours is bool"),
        (lambda lengths, block_size: [1], "int is due, yours is list"),
    ],
)
def test_a_wrong_type_is_said(answer, sentence, capsys):
    def used(lengths, block_size):
        lengths = list(lengths)  # a body, so that None is not taken for an untouched stub
        return answer(lengths, block_size)

    assert sentence in said(capsys, used)


@pytest.mark.parametrize(
    ("expected", "got", "sentences"),
    [
        (7, math.inf, ["A finite number is due, yours is inf."]),
        (2**70, -math.inf, ["A finite number is due, yours is -inf."]),
        (7.5, math.nan, ["A finite number is due, yours is nan."]),
        ({"k": torch.zeros(2)}, {"k": [0.0]}, ["['k']", "Tensor is due, yours is list"]),
        ({"k": torch.zeros(2)}, {"k": torch.zeros(3)}, ["['k']", "(2,) is due, yours is (3,)"]),
        ({"k": torch.zeros(2)}, {"k": torch.ones(2)}, ["['k']", "the numbers differ"]),
        ([[1], [2, 3]], [[1], [2, 4]], ["[1][1]", "3 is due, yours is 4"]),
        ([[1], [2]], [[1], None], ["[1]", "list is due, yours is NoneType"]),
        ([1, 2], [1, 2.0], ["[1]", "An int is due"]),
        (torch.zeros(2), 2.0, ["Tensor is due, yours is float"]),
    ],
)
def test_a_difference_inside_is_said_with_its_place(expected, got, sentences, capsys, monkeypatch):
    exercise = dataclasses.replace(BLOCKS, reference=lambda lengths, block_size: expected, misconceptions=())
    monkeypatch.setattr(sys.modules[run_check.__module__], "find_exercise", lambda id: exercise)
    out = said(capsys, lambda lengths, block_size: got)
    assert all(sentence in out for sentence in sentences)
    assert "returned None" not in out
    assert said(capsys, lambda lengths, block_size: got, lang="zh") != out


def test_an_exercise_with_its_own_comparison_never_calls_one_type_two(capsys, monkeypatch):
    exercise = dataclasses.replace(
        BLOCKS,
        reference=lambda lengths, block_size: {"k": 1},
        misconceptions=(),
        equal=lambda expected, got: expected["k"] == got["k"],
    )
    monkeypatch.setattr(sys.modules[run_check.__module__], "find_exercise", lambda id: exercise)
    assert "differs" not in said(capsys, lambda lengths, block_size: {})
    assert "dict is due, yours is int" in said(capsys, lambda lengths, block_size: 3)


def test_two_types_of_the_same_name_are_told_apart(capsys, monkeypatch):
    due, yours = type("Block", (), {"__module__": "lesson"}), type("Block", (), {"__module__": "mine"})
    exercise = dataclasses.replace(BLOCKS, reference=lambda lengths, block_size: due(), misconceptions=())
    monkeypatch.setattr(sys.modules[run_check.__module__], "find_exercise", lambda id: exercise)
    assert "lesson.Block is due, yours is mine.Block" in said(capsys, lambda lengths, block_size: yours())


def test_objects_that_fight_back_are_only_wrong():
    class Hostile:
        def __eq__(self, other):
            raise RuntimeError

        def __repr__(self):
            raise RuntimeError

        def __str__(self):
            raise RuntimeError

    assert run_check(BLOCKS, lambda lengths, block_size: Hostile()).differs == "type"
    check("99.1", lambda lengths, block_size: Hostile())

    def raises(lengths, block_size):
        class Silent(Exception):
            __str__ = Hostile.__str__

        raise Silent

    check("99.1", raises)


def test_unknown_names_and_levels_are_errors_with_the_way_out():
    with pytest.raises(UnknownNameError, match=r"99\.1, 99\.2, 99\.3"):
        check("99.7", right)
    with pytest.raises(UnknownNameError) as caught:
        check("98.1", right)
    assert caught.value.code == "unknown_lesson"
    with pytest.raises(ArgumentError, match="three levels"):
        check("99.1", right, hint=4)
    for no_text, quoted in (
        (2.1, '"02.1"'),
        (12.5, '"12.5"'),
        (2, '"02.1"'),
        (None, '"02.1"'),
        (math.nan, '"02.1"'),
    ):
        with pytest.raises(ArgumentError) as caught:
            check(no_text, right)
        assert caught.value.code == "exercise_id_not_text"
        assert all(quoted in caught.value.text(lang) for lang in ("en", "zh"))
    with pytest.raises(ArgumentError, match='"02"'):
        find_lesson(2)


def test_an_error_of_minikv_speaks_the_learner_s_language():
    def refuses(lengths, block_size):
        raise ArgumentError("bad_count", what="tp", value=0, least=1)

    verdict = run_check(BLOCKS, refuses)
    for lang, words in (("zh", "必须是不小于 1 的整数"), ("en", "at least 1")):
        assert words in report(BLOCKS, verdict, name="refuses", hint=1, seed=0, lang=lang)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_notebook_folds_a_long_case_and_keeps_it_in_the_plain_text(monkeypatch, capsys, lang):
    IPython = pytest.importorskip("IPython")
    monkeypatch.setattr(IPython, "get_ipython", lambda: object())
    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append(data))

    def long_answer(lengths, block_size):
        return ["<b>"] * 100

    printed = said(capsys, long_answer, lang=lang)
    assert not printed
    assert len(shown) == 1
    plain, html = shown[0]["text/plain"], shown[0]["text/html"]
    assert plain.count("<b>") > 20
    assert "<b>" not in html
    before, folded, after = re.split("<details>|</details>", html)
    assert "&lt;b&gt;" in folded
    assert "&lt;b&gt;" not in before + after
    assert text("course.case_folded", lang) in folded
    assert plain.split()[0] in before

    assert "99.1" in said(capsys, right, lang=lang)  # a short report is printed as ever
    assert len(shown) == 1


def test_what_stays_open_of_a_long_report_is_short():
    """The sentences of a real exercise's known mistakes, without the case."""
    folded = 0
    for id in ("06.5", "09.2", "10.5", "11b.3", "14.2", "15b.1"):
        exercise = find_exercise(id)
        for mistake in exercise.misconceptions:
            verdict = run_check(exercise, mistake.wrong)
            for lang in ("en", "zh"):
                whole = full_report(exercise, verdict, name=exercise.name, hint=1, seed=0, lang=lang)
                if whole.html is not None:
                    folded += 1
                    assert len("".join([*whole.before, *whole.after])) < 450
    assert folded > 12
