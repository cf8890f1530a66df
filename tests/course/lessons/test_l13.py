"""Lesson 13: its exercises, predictions and questions do what a learner relies on, and agree with the package."""

import random

import pytest
import torch

from minikv.blocks import BlockManager, KVCacheGroup
from minikv.cache import find_codec
from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.course.lessons.l13.levels import readable
from minikv.course.lessons.l13.outliers import enlarge_keys
from minikv.models import load, recall_documents
from minikv.models.fidelity import forced_logits
from minikv.plan import CacheSpec, LayerSpec
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("13")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}
REFERENCES = {exercise.name: exercise.reference for exercise in LESSON.exercises}


def fit_from_the_ratio(pool_bytes, layers, kv_heads, head_dim, itemsize, scale_bytes, block_size):
    rows = 2 * layers * kv_heads * block_size
    row = sum([itemsize] * head_dim) + scale_bytes
    return block_size * int(pool_bytes // (rows * row))


def fit_block_by_block(pool_bytes, layers, kv_heads, head_dim, itemsize, scale_bytes, block_size):
    block = 0
    for _ in ("K", "V"):
        block += block_size * layers * kv_heads * head_dim * itemsize
        block += block_size * layers * kv_heads * scale_bytes
    whole, _ = divmod(pool_bytes, block)
    return whole * block_size


def quantize_in_a_loop(heads):
    stored = []
    for row in heads:
        largest = max(max(row), -min(row))
        if not largest:
            stored.append((len(row) * [0], 0.0))
            continue
        step = largest / 127
        stored.append(([int((x / step) + (0.5 if x > 0 else -0.5)) for x in row], step))
    return stored


def quantize_with_torch(heads):
    x = torch.tensor(heads, dtype=torch.float64)
    scale = x.abs().amax(-1) / 127
    data = (x / scale.where(scale > 0, torch.ones_like(scale))[:, None]).round().int()
    return [(row, step) for row, step in zip(data.tolist(), scale.tolist(), strict=True)]


def quantize_in_float32(heads):
    """In torch's default dtype, as the package does."""
    x = torch.tensor(heads)
    scale = x.abs().amax(-1) / 127
    data = (x / scale.where(scale > 0, torch.ones_like(scale))[:, None]).round().to(torch.int8)
    return [(row, step) for row, step in zip(data.tolist(), scale.tolist(), strict=True)]


def peak_by_sets(prompt, new, window, block_size, chunk):
    most, done = 0, 0
    while done < prompt + new - 1:
        size = min(chunk, prompt - done) if done < prompt else 1
        lowest = min(max(0, query - window + 1) for query in range(done, done + size))
        held = {place // block_size for place in range(lowest, done + size)}
        most, done = max(most, len(held)), done + size
    return most


def peak_with_a_table(prompt, new, window, block_size, chunk):
    blocks, back, done, peak = 0, 0, 0, 0
    ends = [*range(chunk, prompt, chunk), *range(prompt, prompt + new)]
    for end in ends:
        while blocks * block_size < end:
            blocks += 1
        peak = max(peak, blocks - back)
        done = end
        while (back + 1) * block_size <= done - window + 1:
            back += 1
    return peak


def test_tokens_that_fit():
    assert_exercise(EXERCISES["13.1"], right=[fit_from_the_ratio, fit_block_by_block])


def test_quantize():
    right = [quantize_in_a_loop, quantize_with_torch, quantize_in_float32]
    assert_exercise(EXERCISES["13.2"], right=right, sequences="heads")


def test_peak_blocks():
    assert_exercise(EXERCISES["13.3"], right=[peak_by_sets, peak_with_a_table])


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "13")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "13")


def test_the_tokens_that_fit_are_those_of_the_spec():
    rng = random.Random(0)
    for _ in range(50):
        layers, heads, dim, size = rng.randint(2, 20), rng.choice([2, 8]), rng.choice([32, 128]), 16
        itemsize, scale = rng.choice([(1, 4), (1, 0), (2, 0)])
        spec = CacheSpec((LayerSpec("full", heads, dim, dim, itemsize=itemsize, scale_bytes=scale),) * layers)
        pool = rng.randint(10**7, 10**9)
        ours = REFERENCES["tokens_that_fit"](pool, layers, heads, dim, itemsize, scale, size)
        assert ours == pool // spec.block_bytes(size) * size


def test_the_stored_heads_are_the_codecs():
    """In float32, as the codec computes: but for that the numbers and scales are the same."""
    for case in EXERCISES["13.2"].draw(5):
        x = torch.tensor(case["heads"], dtype=torch.float32)
        data, scale = find_codec("int8").encode(x)
        ours = REFERENCES["quantize"](case["heads"])
        assert [row for row, _ in ours] == data.tolist()
        torch.testing.assert_close(torch.tensor([step for _, step in ours]), scale)


def test_the_peak_is_the_managers():
    for case in EXERCISES["13.3"].draw(7):
        prompt, new, window, size, chunk = case.values()
        manager = BlockManager([KVCacheGroup(500, window)], size)
        most, done = 0, 0
        while done < prompt + new - 1:
            tokens = list(range(done, min(done + chunk, prompt) if done < prompt else done + 1))
            if done:
                manager.append_tokens("S", tokens)
            else:
                manager.allocate("S", tokens)
            most, done = max(most, manager.stats().pools[0].used), done + len(tokens)
            manager.commit("S")
        assert REFERENCES["peak_blocks"](*case.values()) == most


def test_larger_keys_change_no_logit():
    [document] = recall_documents(1, context=40, facts=4, queries=4, span=16)
    plain, larger = (load("tiny-gqa", device="cpu").model for _ in range(2))
    before = forced_logits(plain, [document.tokens], prefill=41)
    assert torch.equal(before, forced_logits(enlarge_keys(larger, 1024), [document.tokens], prefill=41))


def test_a_card_that_reads_no_e4m3_gets_the_other_formats(monkeypatch):
    common = pytest.importorskip("minikv.kernels.gpu.common")
    monkeypatch.delenv("MINIKV_KERNELS", raising=False)
    formats, card = ["bf16", "fp8", "fp8_e5m2", "fp8_scaled", "int8"], torch.device("cuda")
    assert readable(formats, torch.device("cpu")) == formats
    for capability, missing in ((75, {"fp8", "fp8_scaled"}), (89, set())):
        monkeypatch.setattr(common, "device_of", lambda device, found=capability: common.Device(found, 40))
        assert readable(formats, card) == [name for name in formats if name not in missing]
