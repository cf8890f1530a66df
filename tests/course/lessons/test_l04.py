"""Lesson 04: its exercises, predictions and questions do what a learner relies on."""

import math
from fractions import Fraction

import pytest

from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.memory import index_order
from minikv.plan import CacheSpec, find_gpu
from minikv.plan.roofline import decode_work, gpu_roof, ridge_batch
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("04")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}
REFERENCES = {exercise.name: exercise.reference for exercise in LESSON.exercises}


def step_in_a_loop(weight_bytes, token_bytes, lengths):
    total = weight_bytes
    for length in lengths:
        total += length * token_bytes
    return total


def step_token_by_token(weight_bytes, token_bytes, lengths):
    return weight_bytes + sum(token_bytes for length in lengths for _ in range(length))


def intensity_by_group(heads, kv_heads, head_dim, itemsize):
    group = heads / kv_heads
    return group * 2 / itemsize


def intensity_in_steps(heads, kv_heads, head_dim, itemsize):
    scores = values = 2 * heads * head_dim
    k = v = kv_heads * head_dim * itemsize
    return (scores + values) / (k + v)


def floor_by_the_ridge(flops, num_bytes, bandwidth_gb_s, tflops):
    ridge = tflops * 1e12 / (bandwidth_gb_s * 1e9)
    if flops / num_bytes <= ridge:
        return "memory", num_bytes / bandwidth_gb_s / 1e9
    return "compute", flops / tflops / 1e12


def floor_sorted(flops, num_bytes, bandwidth_gb_s, tflops):
    times = [(num_bytes / (bandwidth_gb_s * 10**9), "memory"), (flops / (tflops * 10**12), "compute")]
    seconds, bound = sorted(times)[-1]
    return bound, seconds


def batch_by_fractions(weight_bytes, cache_bytes, token_flops, ridge):
    if Fraction(token_flops, cache_bytes) <= ridge:
        return None
    return math.ceil(Fraction(weight_bytes) / (Fraction(token_flops, ridge) - cache_bytes))


def batch_by_bisection(weight_bytes, cache_bytes, token_flops, ridge):
    def reached(batch):
        return batch * token_flops >= ridge * (weight_bytes + batch * cache_bytes)

    low, high = 0, 1
    while not reached(high):
        low, high = high, 2 * high
        if high > 2**60:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def sectors_byte_by_byte(elements, itemsize, sector):
    return len({(element * itemsize + byte) // sector for element in elements for byte in range(itemsize)})


def sectors_sorted(elements, itemsize, sector):
    last, count = -1, 0
    for element in sorted(set(elements)):
        begin, end = element * itemsize // sector, ((element + 1) * itemsize - 1) // sector
        count += end - max(begin, last + 1) + 1 if end > last else 0
        last = max(last, end)
    return count


def test_step_bytes():
    assert_exercise(EXERCISES["04.1"], right=[step_in_a_loop, step_token_by_token], sequences="lengths")


def test_attention_intensity():
    assert_exercise(EXERCISES["04.2"], right=[intensity_by_group, intensity_in_steps])


def test_step_floor():
    assert_exercise(EXERCISES["04.3"], right=[floor_by_the_ridge, floor_sorted])


def test_batch_at_ridge():
    assert_exercise(EXERCISES["04.4"], right=[batch_by_fractions, batch_by_bisection])


def test_sectors():
    assert_exercise(EXERCISES["04.5"], right=[sectors_byte_by_byte, sectors_sorted], sequences="elements")


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "04")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "04")


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Llama-2-7B", "Qwen3-8B"])
def test_the_references_agree_with_the_planner_on_real_models(model):
    one, spec, roof = decode_work(model, 1, 300), CacheSpec.from_config(model), gpu_roof(find_gpu("H200"))
    lengths = [300] * 5
    many = decode_work(model, 5, 300)
    assert REFERENCES["step_bytes"](one.weight_bytes, spec.bytes_for(1), lengths) == many.num_bytes
    heads, layer = 32, spec.layers[0]
    intensity = REFERENCES["attention_intensity"](heads, layer.kv_heads, layer.k_dim, 2)
    assert intensity == pytest.approx(one.attention_intensity)
    bound, seconds = REFERENCES["step_floor"](many.flops, many.num_bytes, 4800, 989)
    assert bound == "memory"
    assert seconds == pytest.approx(roof.seconds(many.flops, many.num_bytes))
    # The planner's ridge is a fraction; just below and above it the exercise's whole numbers bracket the batch.
    below, above = (
        REFERENCES["batch_at_ridge"](one.weight_bytes, one.cache_bytes, one.flops, ridge)
        for ridge in (206, 207)
    )
    planned = ridge_batch(model, 300, roof)
    if planned is None:
        assert above is None
    else:
        assert below <= planned
        assert above is None or planned <= above


def test_a_coalesced_warp_touches_as_few_sectors_as_can_be():
    count = {
        pattern: REFERENCES["sectors"](index_order(pattern, 64 * 4096, row=64, seed=1)[:32].tolist(), 4, 32)
        for pattern in ("coalesced", "random_rows", "per_thread", "random")
    }
    assert count["coalesced"] == count["random_rows"] == 4
    assert count["per_thread"] == 32
    assert count["random"] >= 31
