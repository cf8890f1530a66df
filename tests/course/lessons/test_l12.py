"""Lesson 12: its exercises, predictions and questions do what a learner relies on."""

import pytest

from minikv.course.check import run_check
from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("12")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}


def heads_by_asking_each_query(rank, tp, query_heads, kv_heads):
    mine = [q for q in range(query_heads) if q * tp // query_heads == rank]
    return sorted({q * kv_heads // query_heads for q in mine})


def heads_in_two_cases(rank, tp, query_heads, kv_heads):
    if tp > kv_heads:
        return [rank // (tp // kv_heads)]
    count = kv_heads // tp
    return [rank * count + i for i in range(count)]


def blocks_rank_by_rank(free, kv_heads, layers, head_dim, itemsize, block_size):
    heads = 1 if kv_heads < len(free) else kv_heads // len(free)
    token = layers * heads * (head_dim + head_dim) * itemsize
    return min(room // (block_size * token) for room in free)


def blocks_counted_up(free, kv_heads, layers, head_dim, itemsize, block_size):
    copies = max(1, len(free) // kv_heads)
    whole = 2 * layers * block_size * kv_heads * head_dim * itemsize
    block, blocks = whole * copies // len(free), 0
    while all((blocks + 1) * block <= room for room in free):
        blocks += 1
    return blocks


def latents_with_an_index(lengths, ranks, way, layers, kv_lora_rank, rope_dim, itemsize):
    token = itemsize * layers * (rope_dim + kv_lora_rank)
    if way == "tp":
        return [token * sum(lengths) for _ in range(ranks)]
    held = [0] * ranks
    for length in lengths:
        held[held.index(min(held))] += length * token
    return held


def latents_with_a_heap(lengths, ranks, way, layers, kv_lora_rank, rope_dim, itemsize):
    import heapq

    heap = [(0, rank) for rank in range(ranks)]
    for length in lengths:
        tokens, rank = heapq.heappop(heap)
        heapq.heappush(heap, (tokens + length, rank))
    tokens = dict((rank, sum(lengths) if way == "tp" else held) for held, rank in heap)
    return [tokens[rank] * layers * (kv_lora_rank * itemsize + rope_dim * itemsize) for rank in range(ranks)]


def preempt_with_a_dict(tokens, num_bytes, host_room, to_host, to_device, prefill):
    event = {"recompute_seconds": tokens / prefill}
    event["swap_seconds"] = sum(num_bytes / rate for rate in (to_host, to_device))
    swaps = event["recompute_seconds"] > event["swap_seconds"] and not num_bytes > host_room
    return event | {"how": ("recompute", "swap")[swaps]}


def preempt_early(tokens, num_bytes, host_room, to_host, to_device, prefill):
    swap, again = num_bytes / to_host + num_bytes / to_device, tokens / prefill
    if host_room < num_bytes:
        return {"how": "recompute", "swap_seconds": swap, "recompute_seconds": again}
    if swap >= again:
        return dict(how="recompute", swap_seconds=swap, recompute_seconds=again)
    return dict(how="swap", swap_seconds=swap, recompute_seconds=again)


def exchange_step_by_step(compute, copies, out, forward, back):
    written = compute.record()
    copies.wait(written)
    copies.do(out)
    gone = copies.record()
    compute.wait(gone)
    compute.do(forward)
    computed = compute.record()
    copies.wait(computed)
    copies.do(back)
    there = copies.record()
    compute.wait(there)


def exchange_in_a_loop(compute, copies, out, forward, back):
    streams = {out: copies, forward: compute, back: copies}
    before = compute
    for work, stream in streams.items():
        stream.wait(before.record())
        stream.do(work)
        before = stream
    compute.wait(before.record())
    compute.wait(compute.record())


def test_kv_heads_of():
    assert_exercise(EXERCISES["12.1"], right=[heads_by_asking_each_query, heads_in_two_cases])


def test_blocks_of_all():
    assert_exercise(EXERCISES["12.2"], right=[blocks_rank_by_rank, blocks_counted_up], sequences="free")


def test_latent_bytes():
    assert_exercise(
        EXERCISES["12.3"], right=[latents_with_an_index, latents_with_a_heap], sequences="lengths"
    )


def test_preempt():
    assert_exercise(EXERCISES["12.4"], right=[preempt_with_a_dict, preempt_early])


def test_exchange():
    def stub(compute, copies, out, forward, back):
        raise NotImplementedError

    right = [exchange_step_by_step, exchange_in_a_loop]
    assert_exercise(EXERCISES["12.5"], right=right, sequences="blocks", stub=stub)


def test_exchange_wants_forward_on_compute_and_its_work_queued():
    def all_on_copies(compute, copies, out, forward, back):
        copies.wait(compute.record())
        for work in (out, forward, back):
            copies.do(work)
        compute.wait(copies.record())

    def called_at_once(compute, copies, out, forward, back):
        out()
        forward()
        back()

    found = [run_check(EXERCISES["12.5"], answer) for answer in (all_on_copies, called_at_once)]
    assert [verdict.kind for verdict in found] == ["wrong", "wrong"]
    assert found[0].misconception == "all_on_copies"


def test_exchange_may_queue_other_work_too():
    def with_more(compute, copies, out, forward, back):
        copies.do(lambda: None)
        exchange_step_by_step(compute, copies, out, forward, back)
        compute.do(lambda: None)

    assert run_check(EXERCISES["12.5"], with_more).kind == "passed"


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "12")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "12")
