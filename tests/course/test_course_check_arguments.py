"""check: what is no function, has other arguments or was not written yet is told apart from a wrong answer."""

import dataclasses

import pytest

from minikv.course import run_check
from minikv.course.lessons import find_exercise
from tests.course.sample import BLOCKS, RELEASE, said
from tests.course.sample import blocks_needed as right

pytestmark = pytest.mark.usefixtures("lesson_99")


def test_what_is_not_a_function_is_said(capsys):
    assert "without parentheses" in said(capsys, right([3], 2))
    assert "without parentheses" in said(capsys, None)
    assert "not attempted" in said(capsys, ...)


def test_the_arguments_must_have_the_exercises_names(capsys):
    out = said(capsys, lambda block_size, lengths: 0)
    assert "(lengths, block_size)" in out
    assert "(block_size, lengths)" in out
    assert run_check(BLOCKS, lambda lengths: 0).kind == "bad_signature"
    assert run_check(BLOCKS, lambda lengths, block_size, more: 0).kind == "bad_signature"
    assert run_check(BLOCKS, lambda lengths, block_size, *, more: 0).kind == "bad_signature"
    assert run_check(BLOCKS, lambda lengths, block_size, more=0: right(lengths, block_size)).passed
    assert run_check(BLOCKS, lambda lengths, block_size=16: right(lengths, block_size)).passed
    assert run_check(BLOCKS, lambda *args: right(*args)).passed


def test_the_arguments_of_a_driven_function_are_those_of_the_reference(capsys):
    out = said(capsys, lambda free, table: None, id="99.3")
    assert "(table, free)" in out
    assert "(free, table)" in out
    assert run_check(RELEASE, lambda table: None).kind == "bad_signature"
    assert run_check(RELEASE, lambda table, free: free.extend(table[::-1])).passed
    assert run_check(RELEASE, lambda *args: args[1].extend(args[0][::-1])).passed
    assert run_check(find_exercise("02b.3"), lambda tp, kv_heads: 1).kind == "bad_signature"


def test_a_driven_class_is_not_asked_for_argument_names():
    class Table:
        def __init__(self, size):
            self.size = size

    class Other:
        def __init__(self, n):
            self.size = n

    exercise = dataclasses.replace(RELEASE, reference=Table, drive=lambda cls, table: cls(len(table)).size)
    assert run_check(exercise, Other).passed


def test_a_half_filled_stub_is_not_attempted_but_a_forgotten_return_is_wrong():
    def half(lengths, block_size):
        blocks = ... * len(lengths)
        return blocks

    def forgot(lengths, block_size):
        right(lengths, block_size)

    assert run_check(BLOCKS, half).kind == "not_attempted"
    assert run_check(BLOCKS, forgot).differs == "none"


def test_a_function_that_fails_only_at_times_is_not_taken_for_a_stub():
    def at_times(lengths, block_size):
        if len(lengths) > 3:
            raise NotImplementedError
        return right(lengths, block_size)

    assert run_check(BLOCKS, at_times).kind == "raised"
