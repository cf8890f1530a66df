"""Lesson 00's exercises, predictions and questions hold what every lesson promises."""

import math

import pytest

from minikv.course import find_exercise, find_lesson
from minikv.models import recall_prompt
from tests.course.mutants import assert_exercise, assert_prediction, assert_question


def with_a_table(size):
    number, unit = size.split(" ")
    power = "BKMGT".index(unit[0])
    return int(float(number) * (1024 if "i" in unit else 1000) ** power)


def with_branches(size):
    if size.endswith("iB"):
        return int(float(size[:-4]) * 2 ** (10 * " KMGT".index(size[-3])))
    if size[-2] == " ":
        return int(size[:-2])
    return int(float(size[:-3]) * 10 ** (3 * " KMGT".index(size[-2])))


def by_remainder(num_tokens, block_size):
    full, rest = divmod(num_tokens, block_size)
    return full + (1 if rest else 0)


def by_ceil(num_tokens, block_size):
    return math.ceil(num_tokens / block_size)


def by_negation(lengths, block_size):
    return sum(-length % block_size for length in lengths)


def by_growing(lengths, block_size):
    empty = 0
    for length in lengths:
        while length % block_size:
            length += 1
            empty += 1
    return empty


def by_divmod(position, block_table, block_size):
    place, offset = divmod(position, block_size)
    return block_table[place] * block_size + offset


def by_listing(position, block_table, block_size):
    slots = [block * block_size + offset for block in block_table for offset in range(block_size)]
    return slots[position]


@pytest.mark.parametrize(
    ("id", "right", "sequences"),
    [
        ("00.1", [with_a_table, with_branches], None),
        ("00.2", [by_remainder, by_ceil], None),
        ("00.3", [by_negation, by_growing], "lengths"),
        ("00.4", [by_divmod, by_listing], None),
    ],
)
def test_exercise(id, right, sequences):
    assert_exercise(find_exercise(id), right=right, sequences=sequences)


@pytest.mark.parametrize("prediction", find_lesson("00").predictions, ids=lambda prediction: prediction.key)
def test_prediction(prediction):
    assert_prediction(prediction, "00")


@pytest.mark.parametrize("key", find_lesson("00").questions)
def test_question(key):
    assert_question(key, "00")


def test_the_lesson_then_runs_what_it_asked_to_predict():
    [asked] = [p for p in find_lesson("00").predictions if p.key == "tokens_cached"]
    words = recall_prompt(facts=3, context=9).text.split()
    assert asked.ask(0) == {"prompt": len(["<bos>", *words]), "runs": 30}
