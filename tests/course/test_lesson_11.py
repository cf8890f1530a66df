"""Lesson 11: its exercises, predictions and questions do what a learner relies on."""

import pytest

from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("11")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}


def admit_by_what_is_left(waiting, seats, budget, free, owed, block_size):
    left, admitted = free - owed, []
    for tokens, hits, idle in waiting[:seats]:
        left -= idle
        if left < (tokens + block_size - 1) // block_size - hits or budget <= 0:
            return admitted
        admitted.append(min(budget, tokens - hits * block_size))
        budget -= admitted[-1]
        left -= tokens // block_size + 1 - hits
    return admitted


def admit_recursively(waiting, seats, budget, free, owed, block_size):
    if not waiting or not seats or not budget:
        return []
    (tokens, hits, idle), *others = waiting
    free -= idle + max(0, -(-tokens // block_size) - hits)
    if free < owed:
        return []
    owed += tokens % block_size == 0
    chunk = min(tokens - hits * block_size, budget)
    return [chunk, *admit_recursively(others, seats - 1, budget - chunk, free, owed, block_size)]


def chunks_in_two_passes(tokens, computed, budget):
    ends = list(computed)
    for i in range(len(tokens)):
        if tokens[i] - computed[i] == 1:
            ends[i] += 1
            budget -= 1
    for i in range(len(tokens)):
        more = min(tokens[i] - ends[i], budget)
        ends[i] += more
        budget -= more
    return list(zip(computed, ends, strict=True))


def chunks_token_by_token(tokens, computed, budget):
    ends = [done + (have - done == 1) for have, done in zip(tokens, computed, strict=True)]
    left = budget - sum(ends) + sum(computed)
    for i, have in enumerate(tokens):
        while left and ends[i] < have:
            ends[i], left = ends[i] + 1, left - 1
    return [(computed[i], ends[i]) for i in range(len(tokens))]


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


def pack_by_comprehension(tables, starts, ends, tokens, block_size):
    cells = [(i, p) for i in range(len(tables)) for p in range(starts[i], ends[i])]
    counts = [end - start for start, end in zip(starts, ends, strict=True)]
    begins = [sum(counts[:i]) for i in range(len(counts) + 1)]
    return {
        "positions": [p for _, p in cells],
        "slots": [block_size * tables[i][p // block_size] + p % block_size for i, p in cells],
        "query_starts": begins,
        "lengths": ends[:],
        "sampled_rows": [begins[i + 1] - 1 for i in range(len(tables)) if ends[i] >= tokens[i]],
    }


def pack_from_all_slots(tables, starts, ends, tokens, block_size):
    arrays = {"sampled_rows": [], "lengths": [], "query_starts": [0], "slots": [], "positions": []}
    for i, table in enumerate(tables):
        every = [block * block_size + offset for block in table for offset in range(block_size)]
        arrays["slots"] += every[starts[i] : ends[i]]
        arrays["positions"] += list(range(ends[i]))[starts[i] :]
        total = len(arrays["slots"])
        arrays["query_starts"] += [total]
        arrays["lengths"] += [starts[i] + total - arrays["query_starts"][-2]]
        if tokens[i] == ends[i]:
            arrays["sampled_rows"] += [total - 1]
    return arrays


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


def test_admit():
    right = [admit_by_what_is_left, admit_recursively]
    assert_exercise(EXERCISES["11.1"], right=right, sequences="waiting")


def test_chunks():
    right = [chunks_in_two_passes, chunks_token_by_token]
    assert_exercise(EXERCISES["11.2"], right=right, sequences="tokens")


def test_choose_victim():
    assert_exercise(EXERCISES["11.3"], right=[victim_sorted, victim_in_one_scan], sequences="tables")


def test_pack():
    right = [pack_by_comprehension, pack_from_all_slots]
    assert_exercise(EXERCISES["11.4"], right=right, sequences="tables")


def test_run_step():
    def stub(shelf, arrivals, forward):
        raise NotImplementedError

    right = [step_in_two_loops, step_that_asks_who_holds]
    assert_exercise(EXERCISES["11.5"], right=right, sequences="steps", stub=stub)


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "11")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "11")
