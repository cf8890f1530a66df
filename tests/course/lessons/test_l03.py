"""Lesson 03: its exercises, predictions and questions do what a learner relies on."""

import pytest

from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.plan import CacheSpec
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("03")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}


def expanded_as_two_tensors(heads, nope, rope, v_dim, itemsize):
    k = heads * (nope + rope)
    v = heads * v_dim
    return (k + v) * itemsize


def expanded_as_a_sum(heads, nope, rope, v_dim, itemsize):
    return sum(nope * itemsize + rope * itemsize + v_dim * itemsize for _ in range(heads))


def latent_in_parts(heads, kv_lora_rank, rope, itemsize):
    return kv_lora_rank * itemsize + rope * itemsize


def latent_by_spec(heads, kv_lora_rank, rope, itemsize):
    config = {
        "model_type": "deepseek_v3",
        "dtype": "bfloat16",
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "kv_lora_rank": kv_lora_rank,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    }
    return CacheSpec.from_config(config).layers[0].token_bytes // 2 * itemsize


def kind_by_branches(config, version):
    rank = config.get("kv_lora_rank", 0)
    if rank is None or rank == 0:
        return "heads"
    since = 18 if config["model_type"] in ("deepseek_v32", "glm_moe_dsa") else 15
    major, minor = version
    if major > 5 or (major == 5 and minor >= since):
        return "latent"
    return "expanded"


def kind_by_number(config, version):
    if not config.get("kv_lora_rank"):
        return "heads"
    since = {"deepseek_v3": 5015}.get(config["model_type"], 5018)
    return ("expanded", "latent")[1000 * version[0] + version[1] >= since]


def batch_from_the_top(free_bytes, lengths, new_tokens, layers, layer_bytes, rebuilt_bytes):
    for n in range(len(lengths), 0, -1):
        tokens = n * (max(lengths[:n]) + new_tokens)
        if tokens * (layers * layer_bytes + layer_bytes + rebuilt_bytes) <= free_bytes:
            return n
    return 0


def batch_by_tokens(free_bytes, lengths, new_tokens, layers, layer_bytes, rebuilt_bytes):
    room = free_bytes // (layers * layer_bytes + layer_bytes + rebuilt_bytes)
    n, longest = 0, 0
    for length in lengths:
        longest = max(longest, length + new_tokens)
        if (n + 1) * longest > room:
            break
        n += 1
    return n


def rank_by_counting(config, tp):
    if config.get("kv_lora_rank"):
        elements = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    else:
        heads = config["num_key_value_heads"]
        elements = 2 * config["head_dim"] * (heads // tp if tp < heads else 1)
    return 2 * elements


def rank_by_spec(config, tp):
    full = {"num_hidden_layers": 1, "num_attention_heads": 128, "hidden_size": 4096, "dtype": "bfloat16"}
    mla = {"model_type": "deepseek_v3", "qk_nope_head_dim": 128, "v_head_dim": 128}
    family = mla if "kv_lora_rank" in config else {"model_type": "llama"}
    return CacheSpec.from_config({**full, **family, **config}, tp=tp).bytes_for(1)


def test_expanded_bytes():
    assert_exercise(EXERCISES["03.1"], right=[expanded_as_two_tensors, expanded_as_a_sum])


def test_latent_bytes():
    assert_exercise(EXERCISES["03.2"], right=[latent_in_parts, latent_by_spec])


def test_cache_kind():
    assert_exercise(EXERCISES["03.3"], right=[kind_by_branches, kind_by_number])


def test_max_batch():
    assert_exercise(EXERCISES["03.4"], right=[batch_from_the_top, batch_by_tokens], sequences="lengths")


def test_rank_bytes():
    assert_exercise(EXERCISES["03.5"], right=[rank_by_counting, rank_by_spec])


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "03", {"CacheSpec": CacheSpec})


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "03")


def test_the_references_agree_with_the_planner_on_real_models():
    reference = {exercise.name: exercise.reference for exercise in LESSON.exercises}
    for name, heads, nope, v_dim in (("DeepSeek-V3", 128, 128, 128), ("Kimi-K2", 64, 128, 128)):
        expanded = CacheSpec.from_config(name, layout="hf-expanded").layers[0].token_bytes
        assert reference["expanded_bytes"](heads, nope, 64, v_dim, 2) == expanded
        assert (
            reference["latent_bytes"](heads, 512, 64, 2) == CacheSpec.from_config(name).layers[0].token_bytes
        )
