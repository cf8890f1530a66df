"""Lesson 11b: its exercises, predictions and questions do what a learner relies on."""

import pytest

from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("11b")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}


def victim_sorted(tables, computed, ref_counts, asker, asked, free, block_size):
    def lost(number):
        left = computed[number]
        for block in tables[number]:
            if ref_counts[block] == 1:
                break
            left -= block_size
        return max(left, 0)

    def freed(number):
        return len([block for block in tables[number] if ref_counts[block] < 2])

    younger = list(range(len(tables)))[asker + 1 :][::-1]
    enough = [number for number in younger if freed(number) + free >= asked]
    if enough:
        return sorted(enough, key=lost)[0]
    return sorted(younger, key=freed, reverse=True)[0] if younger else None


def victim_in_one_scan(tables, computed, ref_counts, asker, asked, free, block_size):
    cheapest = largest = None
    for number in reversed(range(asker + 1, len(tables))):
        own = [place for place, block in enumerate(tables[number]) if ref_counts[block] == 1]
        front = own[0] if own else len(tables[number])
        loss = max(computed[number] - front * block_size, 0)
        if free + len(own) >= asked and (cheapest is None or loss < cheapest[0]):
            cheapest = (loss, number)
        if largest is None or len(own) > largest[0]:
            largest = (len(own), number)
    found = cheapest or largest
    return found and found[1]


def step_in_two_loops(shelf, arrivals, forward):
    starts = {}
    for name in arrivals:
        found = shelf.find(arrivals[name][:-1])  # a block that holds the last token is never among them
        shelf.take(name, arrivals[name], found)
        starts[name] = len(found) * shelf.block_size
    done = False
    try:
        gone = forward([(name, start, len(arrivals[name])) for name, start in starts.items()])
        done = True
    finally:
        if not done:
            for name in starts:
                shelf.free(name)
    for name in starts:
        shelf.publish(name)
        if name in gone:
            shelf.free(name)


def step_that_asks_who_holds(shelf, arrivals, forward):
    work = []
    for name, tokens in arrivals.items():
        hits = shelf.find(tokens)
        if len(hits) * shelf.block_size == len(tokens):
            hits = hits[:-1]
        shelf.take(name, tokens, hits)
        work += [(name, shelf.block_size * len(hits), len(tokens))]
    try:
        gone = forward(work)
    except Exception:
        [shelf.free(name) for name in list(arrivals)]
        raise
    [shelf.publish(name) for name in arrivals]
    for name in gone:
        if name in shelf.held:
            shelf.free(name)


def last_by_number(self):
    """Requests are admitted in the order of their numbers, and a preempted one waits in front."""
    return max(self.running, key=lambda seq: seq.id)


def last_by_unpacking(self):
    *_, last = self.running
    return last


def test_cheapest_victim():
    assert_exercise(EXERCISES["11b.1"], right=[victim_sorted, victim_in_one_scan], sequences="tables")


def test_choose_victim():
    def stub(self):
        raise NotImplementedError

    assert_exercise(
        EXERCISES["11b.2"], right=[last_by_number, last_by_unpacking], sequences="prompts", stub=stub
    )


def test_run_step():
    def stub(shelf, arrivals, forward):
        raise NotImplementedError

    right = [step_in_two_loops, step_that_asks_who_holds]
    assert_exercise(EXERCISES["11b.3"], right=right, sequences="steps", stub=stub)


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "11b")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "11b")
