"""Lesson 10: its exercises and questions do what a learner relies on."""

import math
import random

import pytest
import torch

from minikv.course.check import run_check
from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.course.lessons.decode_10 import decode_case
from minikv.course.lessons.steps_10 import paged
from minikv.kernels import merge_splits
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("10")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}
REFERENCES = {exercise.name: exercise.reference for exercise in LESSON.exercises}


@pytest.fixture(autouse=True)
def one_thread():
    """Thousands of tiny tensors: torch's threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def store_in_a_loop(key, value, k_cache, v_cache, slots):
    for token in range(len(slots)):
        slot = int(slots[token])
        if slot != -1:
            k_cache[slot // k_cache.shape[1], slot % k_cache.shape[1]] = key[token]
            v_cache[slot // v_cache.shape[1], slot % v_cache.shape[1]] = value[token]


def store_all_at_once(key, value, k_cache, v_cache, slots):
    live = (slots >= 0).nonzero().flatten()
    blocks = torch.div(slots[live], k_cache.shape[1], rounding_mode="floor")
    offsets = slots[live] - blocks * k_cache.shape[1]
    k_cache.index_put_((blocks, offsets), key[live])
    v_cache.index_put_((blocks, offsets), value[live])


def offsets_by_slot(block_table, start, count, length, window, block_size, stride_block, stride_token):
    offsets = []
    for position in range(start, start + count):
        block, inside = divmod(position, block_size)
        seen = position < length and (window is None or length - 1 - position < window)
        offsets.append(stride_token * inside + stride_block * block_table[block] if seen else None)
    return offsets


def offsets_block_by_block(block_table, start, count, length, window, block_size, stride_block, stride_token):
    every = {}
    for place, block in enumerate(block_table):
        for inside in range(block_size):
            every[place * block_size + inside] = block * stride_block + inside * stride_token
    low = max(0, length - window) if window else 0
    return [every[p] if low <= p <= length - 1 else None for p in range(start, start + count)]


def attend_key_by_key(tiles):
    largest, total, weighted = None, 0.0, 0.0
    for logits, values in tiles:
        for x, v in zip(logits, values, strict=True):
            if x == -math.inf:
                continue
            if largest is None or x > largest:
                factor = 0.0 if largest is None else math.exp(largest - x)
                total, weighted, largest = total * factor, weighted * factor, x
            total += math.exp(x - largest)
            weighted += math.exp(x - largest) * v
    return weighted / total, largest + math.log(total)


def attend_two_passes(tiles):
    # Not online, and right: a first pass for the maximum is what the online softmax saves.
    keys = [pair for tile in tiles for pair in zip(*tile, strict=True)]
    top = max(x for x, _ in keys)
    weights = [math.exp(x - top) for x, _ in keys]
    total = math.fsum(weights)
    return sum(w * v for w, (_, v) in zip(weights, keys, strict=True)) / total, top + math.log(total)


def merge_by_difference(out_a, lse_a, out_b, lse_b):
    if lse_b > lse_a:
        return merge_by_difference(out_b, lse_b, out_a, lse_a)
    if lse_b == -math.inf:
        return list(out_a), lse_a
    ratio = math.exp(lse_b - lse_a)
    return [(x + ratio * y) / (1 + ratio) for x, y in zip(out_a, out_b, strict=True)], lse_a + math.log1p(
        ratio
    )


def merge_by_whole(out_a, lse_a, out_b, lse_b):
    lses = torch.tensor([lse_a, lse_b], dtype=torch.float64)
    whole = torch.logsumexp(lses, 0)
    if whole == -torch.inf:
        return out_a, lse_a
    share = torch.exp(lses - whole).tolist()
    return [share[0] * x + share[1] * y for x, y in zip(out_a, out_b, strict=True)], float(whole)


def decode_by_lookup(query, k_cache, v_cache, block_table, length, window, scale):
    first = 0 if window is None else max(0, length - window)
    size, heads = k_cache.shape[1], k_cache.shape[2]
    at = [(int(block_table[p // size]), p % size) for p in range(first, length)]
    keys = torch.stack([k_cache[place] for place in at])
    values = torch.stack([v_cache[place] for place in at])
    grouped = query.view(heads, -1, query.shape[-1])
    logits = torch.einsum("hgd,nhd->hgn", grouped, keys) * scale
    return torch.einsum("hgn,nhd->hgd", logits.softmax(-1), values).flatten(0, 1)


def decode_in_tiles(query, k_cache, v_cache, block_table, length, window, scale):
    size, heads = k_cache.shape[1], k_cache.shape[2]
    first = max(0, length - window) if window else 0
    q = query.view(heads, -1, query.shape[-1]) * scale
    largest = torch.full((*q.shape[:2], 1), -torch.inf)
    total, acc = torch.zeros_like(largest), torch.zeros_like(q)
    for tile in range(first // size, -(-length // size)):
        positions = tile * size + torch.arange(size)
        seen = (positions >= first) & (positions < length)
        block = int(block_table[tile])
        keys, values = k_cache[block][seen].transpose(0, 1), v_cache[block][seen].transpose(0, 1)
        logits = q @ keys.transpose(1, 2)
        new = torch.maximum(largest, logits.amax(-1, keepdim=True))
        weights, rescale = torch.exp(logits - new), torch.exp(largest - new)
        total = total * rescale + weights.sum(-1, keepdim=True)
        acc = acc * rescale + weights @ values
        largest = new
    return (acc / total).flatten(0, 1)


def test_store_kv():
    def stub(key, value, k_cache, v_cache, slots):
        raise NotImplementedError

    assert_exercise(
        EXERCISES["10.1"], right=[store_in_a_loop, store_all_at_once], sequences="slots", stub=stub
    )


def test_token_offsets():
    assert_exercise(EXERCISES["10.2"], right=[offsets_by_slot, offsets_block_by_block])


def test_attend():
    assert_exercise(EXERCISES["10.3"], right=[attend_key_by_key, attend_two_passes], sequences="tiles")


def test_merge():
    assert_exercise(EXERCISES["10.4"], right=[merge_by_difference, merge_by_whole])


def test_decode():
    def stub(query, k_cache, v_cache, block_table, length, window, scale):
        raise NotImplementedError

    assert_exercise(
        EXERCISES["10.5"], right=[decode_by_lookup, decode_in_tiles], sequences="lengths", stub=stub
    )


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "10")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "10")


def test_every_decode_case_is_poisoned_wherever_no_query_looks():
    for case in EXERCISES["10.5"].draw(0):
        shown = decode_case(**case)
        seen = sum(min(length, case["window"] or length) for length in case["lengths"])
        # Behind a window whole blocks are given back; the rest of the window's first block stays.
        rest = 0
        if case["window"]:
            rest = sum(max(0, n - case["window"]) % case["block_size"] for n in case["lengths"])
        assert int((~shown.k_cache[..., 0, 0].isnan()).sum()) == seen + rest
        assert len(case["lengths"]) >= 2


def test_the_references_say_what_the_package_says():
    rng = random.Random(4)
    for case in EXERCISES["10.3"].draw(5):
        logits = torch.tensor([x for tile in case["tiles"] for x in tile[0]], dtype=torch.float64)
        values = torch.tensor([v for tile in case["tiles"] for v in tile[1]], dtype=torch.float64)
        out, lse = REFERENCES["attend"](**case)
        assert out == pytest.approx(float(logits.softmax(0) @ values))
        assert lse == pytest.approx(float(torch.logsumexp(logits, 0)))
    for case in EXERCISES["10.4"].draw(5):
        outs = torch.tensor([case["out_a"], case["out_b"]], dtype=torch.float64)
        ours = merge_splits(outs, torch.tensor([case["lse_a"], case["lse_b"]], dtype=torch.float64))
        out, lse = REFERENCES["merge"](**case)
        assert torch.allclose(ours[0], torch.tensor(out, dtype=torch.float64))
        assert float(ours[1]) == pytest.approx(lse)
    for _ in range(20):
        size = rng.choice([4, 8, 16])
        case = paged([rng.randint(1, 4 * size) for _ in range(3)], block_size=size, seed=rng.randint(0, 99))
        row, size = rng.randrange(len(case.lengths)), case.k_cache.shape[1]
        length = int(case.lengths[row])
        k = case.k_cache
        offsets = REFERENCES["token_offsets"](
            case.block_tables[row].tolist(), 0, length, length, None, size, k.stride(0), k.stride(1)
        )
        flat = k.flatten()
        assert torch.equal(flat[torch.tensor(offsets)], case.contiguous(row)[0][:, 0, 0])


def test_a_store_that_loses_or_changes_something_fails():
    def wipes_first(key, value, k_cache, v_cache, slots):
        k_cache.zero_(), v_cache.zero_()
        store_in_a_loop(key, value, k_cache, v_cache, slots)

    def clears_its_slots(key, value, k_cache, v_cache, slots):
        store_in_a_loop(key, value, k_cache, v_cache, slots)
        slots.fill_(-1)

    def keeps_padding(key, value, k_cache, v_cache, slots):
        key[slots < 0] = 0
        store_in_a_loop(key, value, k_cache, v_cache, slots)

    for wrong in (wipes_first, clears_its_slots, keeps_padding):
        assert run_check(EXERCISES["10.1"], wrong).kind == "wrong", wrong


def test_a_decode_that_cleans_the_cache_or_scales_the_query_in_place_fails():
    def cleans(query, k_cache, v_cache, *rest):
        out = decode_by_lookup(query, k_cache, v_cache, *rest)
        k_cache.nan_to_num_(0.0)
        return out

    def scales(query, k_cache, v_cache, block_table, length, window, scale):
        return decode_by_lookup(query.mul_(scale), k_cache, v_cache, block_table, length, window, 1.0)

    def forgets_the_table(query, k_cache, v_cache, block_table, *rest):
        out = decode_by_lookup(query, k_cache, v_cache, block_table, *rest)
        block_table.fill_(0)
        return out

    for wrong in (cleans, scales, forgets_the_table):
        assert run_check(EXERCISES["10.5"], wrong).kind == "wrong", wrong
