"""Lesson 13b: its exercises, predictions and questions do what a learner relies on, and agree with the package."""

import pytest

from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.engine.ext import drafts
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("13b")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}
REFERENCES = {exercise.name: exercise.reference for exercise in LESSON.exercises}


def propose_from_slices(tokens, most, longest, shortest):
    for size in range(longest, shortest - 1, -1):
        tail, body = tokens[len(tokens) - size :], tokens[:-1]
        found = [i for i in range(len(body) - size + 1) if body[i : i + size] == tail]
        if found:
            return tokens[found[-1] + size :][:most]
    return []


def propose_by_ends(tokens, most, longest, shortest):
    best, best_end = 0, None
    for end in range(len(tokens) - 1, 0, -1):
        size = 0
        while size < min(longest, end) and tokens[end - 1 - size] == tokens[-1 - size]:
            size += 1
        if size >= shortest and size > best:
            best, best_end = size, end
    return [] if best_end is None else tokens[best_end : best_end + most]


def step_with_zip(cache, newest, drafts, forward):
    before = cache.num_tokens
    said = forward([newest, *drafts])
    new = [said[0]]
    for draft, following in zip(drafts, said[1:], strict=True):
        if draft != new[-1]:
            break
        new.append(following)
    cache.truncate(before + len(new))
    cache.publish()
    return new


def step_from_the_end(cache, newest, drafts, forward):
    said = forward([newest, *drafts])
    accepted = max(count for count in range(len(drafts) + 1) if drafts[:count] == said[:count])
    refused = len(drafts) - accepted
    if refused:
        cache.truncate(cache.num_tokens - refused)
    cache.publish()
    return drafts[:accepted] + said[accepted : accepted + 1]


def test_propose():
    assert_exercise(EXERCISES["13b.1"], right=[propose_from_slices, propose_by_ends])


def test_decode_step():
    def stub(cache, newest, drafts, forward):
        raise NotImplementedError

    right = [step_with_zip, step_from_the_end]
    assert_exercise(EXERCISES["13b.2"], right=right, sequences="steps", stub=stub)


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "13b")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "13b")


def test_the_drafts_are_the_packages_up_to_the_end_of_the_text():
    for seed in range(5):
        for case in EXERCISES["13b.1"].draw(seed):
            tokens, most, longest, shortest = case.values()
            ours = REFERENCES["propose"](tokens, most, longest, shortest)
            theirs = drafts.propose(tokens, most, longest=longest, shortest=shortest)
            assert theirs[: len(ours)] == ours
            assert bool(theirs) == bool(ours)
