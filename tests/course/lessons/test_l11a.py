"""Lesson 11a: its exercises, predictions and questions do what a learner relies on."""

from itertools import groupby
from operator import itemgetter

import pytest

from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.course.lessons.l11a.longest_operations import longest_operations
from minikv.course.lessons.l11a.profiled import longest_here, profiled_steps
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("11a")
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


def method_admit_counting_itself(self, seq):
    """Cached blocks that other sequences hold are shared, so they are not counted."""
    found = self.blocks.find_prefix(seq.tokens)
    taken = self.blocks.blocks_for(len(seq.tokens)) - sum(
        block not in self.blocks.free_blocks for block in found
    )
    if len(self.blocks.free_blocks) - taken < len(self.running):
        return False
    return self.blocks.allocate(seq)


def method_admit_with_a_name(self, seq):
    one_each = sum(1 for _ in self.running)
    admitted = self.blocks.allocate(seq, one_each)
    return admitted


def method_pack_by_missing(self, step, seq, budget):
    missing = len(seq.tokens) - seq.num_computed
    taken = missing if missing < budget else budget
    step += [(seq, seq.num_computed, seq.num_computed + taken)]
    return taken


def method_pack_token_by_token(self, step, seq, budget):
    end = seq.num_computed
    while end < len(seq.tokens) and end - seq.num_computed < budget:
        end += 1
    step.append((seq, seq.num_computed, end))
    return step[-1][2] - step[-1][1]


def test_admit_queue():
    right = [admit_by_what_is_left, admit_recursively]
    assert_exercise(EXERCISES["11a.1"], right=right, sequences="waiting")


def test_chunks():
    right = [chunks_in_two_passes, chunks_token_by_token]
    assert_exercise(EXERCISES["11a.2"], right=right, sequences="tokens")


def test_batch_arrays():
    right = [pack_by_comprehension, pack_from_all_slots]
    assert_exercise(EXERCISES["11a.3"], right=right, sequences="tables")


def test_admit():
    def stub(self, seq):
        raise NotImplementedError

    right = [method_admit_counting_itself, method_admit_with_a_name]
    assert_exercise(EXERCISES["11a.4"], right=right, sequences="running", stub=stub)


def test_pack():
    def stub(self, step, seq, budget):
        raise NotImplementedError

    right = [method_pack_by_missing, method_pack_token_by_token]
    assert_exercise(EXERCISES["11a.5"], right=right, sequences="lengths", stub=stub)


def longest_by_repeated_search(calls, flops_per_us, bytes_per_us):
    left, found = {call[0] for call in calls}, []
    while left and len(found) < 3:
        us, name = max((sum(call[1] for call in calls if call[0] == name), name) for name in left)
        left.remove(name)
        busy = [sum(call[place] for call in calls if call[0] == name) for place in (2, 3)]
        waits = busy[1] * flops_per_us > busy[0] * bytes_per_us
        floor = busy[1] / bytes_per_us if waits else busy[0] / flops_per_us
        found.append([name, waits, us / floor])
    return found


def longest_by_sorting_first(calls, flops_per_us, bytes_per_us):
    ranked = []
    for name, of_name in groupby(sorted(calls), key=itemgetter(0)):
        _, us, flops, num_bytes = zip(*of_name, strict=True)
        seconds = sum(flops) / flops_per_us, sum(num_bytes) / bytes_per_us
        ranked.append((-sum(us), name, seconds[0] < seconds[1], sum(us) / max(seconds)))
    return [tuple(row[1:]) for row in sorted(ranked)[:3]]


def test_longest_operations():
    right = [longest_by_repeated_search, longest_by_sorting_first]
    assert_exercise(EXERCISES["11a.6"], right=right, sequences="calls")


def test_a_profile_holds_the_products_with_the_weights_of_both_steps():
    steps = profiled_steps()
    assert list(steps) == ["prefill", "decode"]
    weights = {step: sum(call[3] for call in calls if call[0] == "mm") for step, calls in steps.items()}
    flops = {step: sum(call[2] for call in calls if call[0] == "mm") for step, calls in steps.items()}
    assert weights["prefill"] > weights["decode"] > 4 * 13e6  # both read all weights, the prefill more tokens
    assert flops["prefill"] == 256 * flops["decode"]
    assert len(longest_here(longest_operations, ("a", "b"))) == 6


def test_a_stub_gives_an_empty_table():
    def stub(calls, flops_per_us, bytes_per_us):
        raise NotImplementedError

    assert longest_here(stub, ("a", "b")) == []


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "11a")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "11a")
