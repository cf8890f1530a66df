"""Lesson 10: its exercises and questions do what a learner relies on."""

import importlib.util
import math
import random

import pytest
import torch

from minikv.course.check import run_check
from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.course.lessons.l10.decode_kernel import _nano, _source
from minikv.course.lessons.l10.launch import paged
from minikv.course.lessons.l10.paged_attention import STALE, attention_case
from minikv.errors import MissingPackageError
from minikv.kernels import merge_splits
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("10")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")
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


def attention_row_by_row(query, k_cache, v_cache, batch, scale, window=None, softcap=None):
    """One query and one head at a time, over the places that it sees and no other."""
    size, heads = k_cache.shape[1:3]
    group = query.shape[1] // heads
    out = torch.zeros(*query.shape[:2], v_cache.shape[3])
    sequence = 0
    for row, position in enumerate(batch.positions.tolist()):
        if row > batch.last[sequence]:
            sequence += 1
        first = 0 if window is None else max(0, position - window + 1)
        at = [(int(batch.block_tables[sequence, p // size]), p % size) for p in range(first, position + 1)]
        for head in range(query.shape[1]):
            keys = torch.stack([k_cache[place][head // group] for place in at])
            logits = keys @ query[row, head] * scale
            if softcap:
                logits = torch.tanh(logits / softcap) * softcap
            values = torch.stack([v_cache[place][head // group] for place in at])
            out[row, head] = torch.softmax(logits, 0) @ values
    return out


def attention_in_tiles(query, k_cache, v_cache, batch, scale, window=None, softcap=None):
    """An online softmax over one block after the other, all queries of a sequence at once."""
    size, heads = k_cache.shape[1:3]
    rows = torch.searchsorted(batch.last, torch.arange(len(query)))  # the sequence of each row
    parts = []
    for sequence, length in enumerate(batch.lengths.tolist()):
        own = query[rows == sequence]
        at = batch.positions[rows == sequence].view(-1, 1, 1, 1)
        q = own.view(len(own), heads, -1, own.shape[2]) * scale  # [q, Hkv, G, D]
        largest = torch.full((*q.shape[:3], 1), -1e30)
        total, acc = torch.zeros_like(largest), torch.zeros(*q.shape[:3], v_cache.shape[3])
        for entry in range(-(-length // size)):
            block = int(batch.block_tables[sequence, entry])
            logits = torch.einsum("qhgd,shd->qhgs", q, k_cache[block])
            if softcap is not None:
                logits = (logits / softcap).tanh() * softcap
            place = entry * size + torch.arange(size)
            seen = (place <= at) & (place > at - (window or length))
            logits = logits.where(seen, -torch.inf)
            new = torch.maximum(largest, logits.amax(-1, keepdim=True))
            weights, rescale = torch.exp(logits - new), torch.exp(largest - new)
            total = total * rescale + weights.sum(-1, keepdim=True)
            acc = acc * rescale + torch.einsum("qhgs,shd->qhgd", weights, v_cache[block])
            largest = new
        parts.append((acc / total).flatten(1, 2))
    return torch.cat(parts)


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


def test_paged_attention():
    def stub(query, k_cache, v_cache, batch, scale, window=None, softcap=None):
        raise NotImplementedError

    assert_exercise(
        EXERCISES["10.5"], right=[attention_row_by_row, attention_in_tiles], sequences="lengths", stub=stub
    )


@needs_triton
def test_paged_decode_kernel():
    from tests.course.lessons import l10_kernels

    # One seed: interpreted, a case takes hundredths of a second, and there are thirteen known wrong kernels.
    right = [l10_kernels.two_passes, l10_kernels.without_tl_dot]
    assert_exercise(EXERCISES["10.6"], right=right, sequences="lengths", stub=l10_kernels.stub, seeds=(0,))


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "10")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "10")


def test_nano_passes_its_own_exercise():
    from minikv.nano.attention import paged_attention

    for seed in range(3):
        assert run_check(EXERCISES["10.5"], paged_attention, seed=seed).passed


def test_the_steps_hold_prefills_chunks_and_decodes_and_stale_numbers_wherever_no_token_lies():
    kinds = set()
    for case in EXERCISES["10.5"].draw(0):
        _, k_cache, _, batch, *_ = attention_case(**case)
        assert int((k_cache[..., 0, 0] != STALE).sum()) == sum(case["lengths"])
        assert batch.lengths.tolist() == case["lengths"]
        for length, new in zip(case["lengths"], case["new"], strict=True):
            kinds.add("decode" if new == 1 else "prefill" if new == length else "chunk")
    assert kinds == {"decode", "prefill", "chunk"}


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


def test_an_attention_that_cleans_the_cache_or_scales_the_query_in_place_fails():
    def cleans(query, k_cache, *rest):
        out = attention_in_tiles(query, k_cache, *rest)
        k_cache[k_cache == STALE] = 0
        return out

    def scales(query, k_cache, v_cache, batch, scale, *rest):
        return attention_in_tiles(query.mul_(scale), k_cache, v_cache, batch, 1.0, *rest)

    def forgets_the_table(query, k_cache, v_cache, batch, *rest):
        out = attention_in_tiles(query, k_cache, v_cache, batch, *rest)
        batch.block_tables.fill_(0)
        return out

    for wrong in (cleans, scales, forgets_the_table):
        assert run_check(EXERCISES["10.5"], wrong).kind == "wrong", wrong


@needs_triton
def test_each_known_wrong_kernel_is_nanos_with_lines_that_nano_has():
    nano = _source(_nano())
    assert EXERCISES["10.6"].reference.edits == ()
    for wrong in EXERCISES["10.6"].misconceptions:
        source = nano
        for ours, theirs in wrong.wrong.edits:
            assert source.count(ours) == 1, f"{wrong.name}: nano has no such line, or two: {ours}"
            source = source.replace(ours, theirs)
        assert source != nano


@needs_triton
def test_a_known_wrong_kernel_can_be_put_into_nano_as_it_is(monkeypatch):
    from minikv.nano import attention

    query, k, v, batch, scale, *_ = attention_case([5, 9], [1, 1], 4, None, None, 2, 8, 0)
    right = attention.decode_on_gpu(query, k, v, batch, scale)
    wrong = next(m.wrong for m in EXERCISES["10.6"].misconceptions if m.name == "first_table")
    monkeypatch.setattr(attention, "paged_decode_kernel", wrong)
    out = attention.decode_on_gpu(query, k, v, batch, scale)
    assert torch.equal(out[0], right[0])
    assert not torch.allclose(out[1], right[1])


@needs_triton
@pytest.mark.parametrize("name", ["reads_outside", "writes_outside"])
def test_a_kernel_that_leaves_its_tensors_is_stopped_and_told_so(name):
    """Without that the interpreter reads any address, and the process may end."""
    from triton.runtime.interpreter import InterpreterBuilder

    from tests.course.lessons import l10_kernels

    before = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
    verdict = run_check(EXERCISES["10.6"], getattr(l10_kernels, name))
    assert verdict.kind == "raised"
    assert verdict.error.ours.code == "kernel_out_of_bounds"
    assert verdict.error.source.startswith("tl.")
    assert before == (InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store)


@needs_triton
def test_a_kernel_that_stores_nothing_finds_no_old_result_and_one_without_its_decorator_is_named():
    from tests.course.lessons import l10_kernels

    verdict = run_check(EXERCISES["10.6"], l10_kernels.stores_nothing)
    assert verdict.kind == "wrong"
    assert verdict.got["out"].isnan().all()
    plain = run_check(EXERCISES["10.6"], l10_kernels.stores_nothing.fn)
    assert plain.error.ours.code == "not_a_kernel"


def test_without_triton_the_kernels_exercise_says_so_in_one_sentence(monkeypatch):
    monkeypatch.setattr("minikv.course.lessons.l10.decode_kernel.prepare", lambda: "none")
    exercise = EXERCISES["10.6"]
    with pytest.raises(MissingPackageError) as refused:
        exercise.call(lambda: None, exercise.draw(0)[0])
    assert refused.value.code == "no_triton_here"
