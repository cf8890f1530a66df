"""Predictions are questions for paper and pencil: the line that gives the answer is arithmetic."""

import ast

import pytest

from minikv.course.lessons import find_lesson, lesson_numbers

PREDICTIONS = [
    pytest.param(each, id=f"{number}-{each.key}")
    for number in lesson_numbers()
    for each in find_lesson(number).predictions
]
ON_PAPER = {"round", "min", "max", "sum", "len", "range"}


def called(expression: str) -> set[str]:
    """The names that ``expression`` calls; a method counts as its name."""
    calls = (node.func for node in ast.walk(ast.parse(expression)) if isinstance(node, ast.Call))
    return {ast.unparse(name) for name in calls}


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_the_answer_is_arithmetic(prediction):
    how = prediction.how.format(**prediction.ask(0))
    assert called(how) <= ON_PAPER, how


def test_a_call_of_the_package_is_found():
    assert called("CacheSpec.from_config('Llama-3.1-8B').slope() * round(2.5)") == {
        "CacheSpec.from_config('Llama-3.1-8B').slope",
        "CacheSpec.from_config",
        "round",
    }
