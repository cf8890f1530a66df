"""Lesson 02: its exercises judge as they promise, and they agree with CacheSpec on real models."""

import inspect
import math

import pytest

from minikv.course import find_exercise, find_lesson, run_check
from minikv.course.lessons.l02 import cache_bytes
from minikv.course.report import report
from minikv.i18n import LANGUAGES, text
from minikv.nano import kv_cache
from minikv.plan import CacheSpec, find_model
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON = find_lesson("02")
MODELS = (
    "Llama-3.1-8B",
    "Llama-2-70B",
    "Qwen3-0.6B",
    "Qwen3-32B",
    "Mixtral-8x7B",
    "Gemma-2-9B",
    "gpt-oss-20b",
)


def as_a_sum(num_layers, num_kv_heads, k_dim, v_dim, itemsize):
    total = 0
    for _layer in range(num_layers):
        for dim in (k_dim, v_dim):
            total += num_kv_heads * dim * itemsize
    return total


def as_a_product(num_layers, num_kv_heads, k_dim, v_dim, itemsize):
    return math.prod((num_layers, num_kv_heads, itemsize, sum((k_dim, v_dim))))


def with_a_branch(config):
    if "head_dim" in config and config["head_dim"] is not None:
        return config["head_dim"]
    return config["hidden_size"] // config["num_attention_heads"]


def with_or(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def by_adding_tokens(token_bytes, block_size):
    return sum(token_bytes for _slot in range(block_size))


def the_other_way_round(token_bytes, block_size):
    return block_size * token_bytes


def by_layers(model, kv_dtype, context, gib):
    spec = CacheSpec.from_config(model, kv_dtype=kv_dtype)
    one = sum(layer.bytes_for(context) for layer in spec.layers)
    return [one, int(gib * 1024**3 / one)]


def by_counting_up(model, kv_dtype, context, gib):
    spec, count = CacheSpec.from_config(model, kv_dtype=kv_dtype), 0
    while spec.bytes_for(context, batch=count + 1) <= gib * 2**30:
        count += 1
    return spec.bytes_for(context), count


@pytest.mark.parametrize(
    ("id", "right"),
    [
        ("02.1", [as_a_sum, as_a_product]),
        ("02.2", [with_a_branch, with_or]),
        ("02.6", [by_adding_tokens, the_other_way_round]),
        ("02.7", [by_layers, by_counting_up]),
    ],
)
def test_exercise(id, right):
    assert_exercise(find_exercise(id), right=right)


def test_every_exercise_is_tested_above():
    assert [exercise.id for exercise in LESSON.exercises] == ["02.1", "02.2", "02.6", "02.7"]


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda prediction: prediction.key)
def test_prediction(prediction):
    assert_prediction(prediction, "02")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "02")


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_null_that_is_returned_gets_its_own_hint_alone(lang):
    def with_get(config):
        return config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])

    exercise = find_exercise("02.2")
    said = report(exercise, run_check(exercise, with_get), name="fn", hint=1, seed=0, lang=lang)
    assert text("lesson_02.head_dim_of.null_is_not_absent.hint1", lang) in said
    assert text("course.differs_none", lang) not in said


@pytest.mark.parametrize("name", MODELS)
def test_the_references_agree_with_the_spec(name):
    """What a learner writes is what CacheSpec computes."""
    config, spec = find_model(name).config, CacheSpec.from_config(name)
    head_dim = cache_bytes.head_dim_of(config)
    kv_heads = config["num_key_value_heads"]
    token = cache_bytes.token_bytes(len(spec.layers), kv_heads, head_dim, head_dim, 2)
    assert token == spec.bytes_for(1)
    assert cache_bytes.block_bytes(token, 16) == spec.bytes_for(1, batch=16)


@pytest.mark.parametrize(("id", "name"), [("02.1", "token_bytes"), ("02.6", "block_bytes")])
def test_the_references_are_nanos(id, name):
    """Written here too, because this lesson does without torch and nano's file does not."""
    exercise = find_exercise(id)
    assert exercise.signature == tuple(inspect.signature(getattr(kv_cache, name)).parameters)
    for case in exercise.draw(0):
        assert exercise.reference(**case) == getattr(kv_cache, name)(**case)
