"""Lesson 14b: its exercise and its question do what a learner relies on."""

import pytest
import torch

from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("14b")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}


def own_from_dot_products(view):
    """Minus the mean cosine with all keys, each other's included."""
    keys = view.keys / view.keys.norm(dim=-1, keepdim=True)
    return -(keys @ keys.transpose(2, 3)).mean(-1)


def own_in_two_halves(view):
    """Far from the mean key, in units of its length; a glance at the attention counts a little."""
    mean = view.keys.mean(2, keepdim=True)
    far = (view.keys / view.keys.norm(dim=-1, keepdim=True) - mean / mean.norm(dim=-1, keepdim=True)).norm(
        dim=-1
    )
    return far + 0.001 * view.window_probs


def test_own():
    def stub(view):
        raise NotImplementedError

    right = [own_from_dot_products, own_in_two_halves]
    assert_exercise(EXERCISES["14b.1"], right=right, stub=stub, seeds=(0,))


def test_what_a_check_shows_names_the_bar_beside_the_references_own_score():
    own = EXERCISES["14b.1"]
    shown = own.call(own.reference, own.draw(0)[0])
    assert shown["enough"] == 0.75 * shown["asked"]
    assert shown["right"] >= shown["enough"]


def test_a_run_takes_one_thread_and_leaves_the_model_to_others():
    """A check beside another notebook is not slowed down, and one that was cut does not spoil the next."""
    own, seen = EXERCISES["14b.1"], []

    def nested(view):
        if not seen:
            seen.append(torch.get_num_threads())
            seen.append(own.call(own_from_dot_products, {"text": 41, "capacity": 48}))
        return own.reference(view)

    before = torch.get_num_threads()
    found = own.call(nested, {"text": 40, "capacity": 48})
    assert seen[0] == 1
    assert torch.get_num_threads() == before
    assert all(run["right"] >= run["enough"] for run in (found, seen[1]))


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "14b")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "14b")
