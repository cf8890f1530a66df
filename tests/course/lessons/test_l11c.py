"""Lesson 11c: its exercise, prediction and questions do what a learner relies on."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.nano import SamplingParams, Sequence, runner
from tests.course.mutants import assert_exercise, assert_prediction, assert_question
from tools.notebooks.source import read_source

LESSON: Lesson = find_lesson("11c")
SOURCE = Path(__file__).parents[3] / "notebooks" / "src" / "11c_your_engine.py"
[SAMPLE] = LESSON.exercises


def by_row(logits, step):
    def one(row, seq, end):
        if not seq.params.temperature or end < len(seq.tokens):
            return int(row.argmax())
        return runner.draw(row, seq.params, end)

    return [one(row, seq, end) for row, (seq, _, end) in zip(logits, step, strict=True)]


def by_two_lists(logits, step):
    """It draws for chunks, too: their tokens are not looked at."""
    drawn = {i for i, (seq, _, _) in enumerate(step) if seq.params.temperature > 0}
    likeliest = torch.max(logits, dim=1).indices.tolist()
    return [
        runner.draw(logits[i], step[i][0].params, step[i][2]) if i in drawn else likeliest[i]
        for i in range(len(step))
    ]


def test_sample():
    def stub(logits, step):
        raise NotImplementedError

    assert_exercise(SAMPLE, right=[by_row, by_two_lists], sequences="rows", stub=stub)


def test_the_reference_is_nanos():
    for case in SAMPLE.draw(3):
        step = []
        for number, (length, start, end, temperature, top_p, seed) in enumerate(case["rows"]):
            params = SamplingParams(temperature=temperature, top_p=top_p, seed=seed)
            step.append((Sequence(number, [0] * length, length, params), start, end))
        logits = torch.tensor(case["logits"])
        assert SAMPLE.reference(logits, step) == runner.sample(logits, step)


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "11c")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "11c")


def test_the_recorded_generate_shares_preempts_and_finds_again_as_the_lesson_says():
    cells = read_source(SOURCE).cells
    [code] = [cell.text for cell in cells if cell.key == "together_code" and cell.lang == "en"]
    shown = {"show": lambda view: None}
    exec(code, shown)
    states = shown["recorder"].states
    assert states[2].found == (0, 1)
    assert Counter(write.name for write in states[2].writes) == {"A": 1, "B": 3, "C": 7}
    assert dict(states[8].said)["preempted"] == {"names": ["C"]}
    assert dict(states[9].said)["ended"] == {"names": ["A"]}
    assert len(states[9].found) == 2
    assert Counter(write.name for write in states[9].writes)["C"] == 5
    [stored] = [len(seq.ids) for seq in states[9].sequences if seq.name == "C"]
    assert stored == 13
