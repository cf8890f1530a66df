"""Quantized weights: each format by hand, fp8 against transformers, the exclusion lists, and what is refused."""

import json
import re

import pytest
import torch
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear

from minikv.errors import ArgumentError, ConfigError
from minikv.i18n import text
from minikv.plan.budget import plan_memory
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.plan.spec.config import read_config
from minikv.plan.tables import context_rows
from minikv.plan.weights.quantization import kv_cache_quantization
from minikv.plan.weights.weight_bytes import weight_bytes, weight_list
from tests.plan.small_models import small_config, small_model
from tests.plan.weights.test_weight_bytes import LLAMA, even_config


def quantized(base=LLAMA, **quantization):
    return {**base, "quantization_config": quantization}


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
COMPRESSED = {"quant_method": "compressed-tensors"}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
# One matrix of 96 x 64 (up_proj) in each format, by hand.
ONE_MATRIX = [
    (FP8, 96 * 64 + 4),
    ({**FP8, "weight_block_size": [32, 32]}, 96 * 64 + 4 * 3 * 2),
    ({"quant_method": "fp8", "activation_scheme": "static"}, 96 * 64 + 4 + 4),
    ({"quant_method": "awq", "bits": 4, "group_size": 32}, 96 * 32 + 96 * 2 // 2 + 96 * 2 * 2),
    ({"quant_method": "gptq", "bits": 4, "group_size": 32}, 96 * 32 + 96 * 2 // 2 + 96 * 2 * 2 + 64 * 4),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 96 * 64 + 96 + 96 * 2 + 64 * 4),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 96 * 64 + 4 * 96),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 96 * 32 + 4 * 96 + 64),
    (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
        96 * 32 + 96 + 4 * (1 + 257) + 64,
    ),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 96 * 32 + 96 * 4 + 8),
    (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"g": {"targets": ["Linear"], "weights": INT4}},
        },
        96 * 32 + 96 * 2 * 2 + 16,
    ),
]


@pytest.mark.parametrize(("quantization", "expected"), ONE_MATRIX, ids=lambda value: str(value)[:50])
def test_a_matrix_in_each_format(quantization, expected):
    weights = {weight.name: weight for weight in weight_list(quantized(**quantization))}
    assert weights["model.layers.{layer}.mlp.up_proj.weight"].bytes_each == expected
    plain = {weight.name: weight for weight in weight_list(LLAMA)}
    kept = [name for name in plain if "norm" in name or "embed" in name or name.startswith("lm_head")]
    assert len(kept) == 5
    for name in kept:
        assert weights[name] == plain[name]
    assert weight_bytes(quantized(**quantization)).total < weight_bytes(LLAMA).total


@pytest.mark.parametrize("model_type", ["llama", "deepseek_v3", "deepseek_v32", "qwen3_moe", "qwen3_next"])
def test_fp8_is_what_transformers_builds(model_type):
    """Ragged blocks of 64 x 32; the experts' inner size is whole blocks, as transformers joins gate and up there."""
    sizes = {"hidden_size": 150, "intermediate_size": 192, "moe_intermediate_size": 128}
    known = small_config(model_type).to_dict()
    config = small_config(model_type, **{name: value for name, value in sizes.items() if name in known})
    with torch.device("meta"):
        model = small_model(config, torch.bfloat16)
    kept = ["lm_head", "weights_proj", "shared_expert_gate"]
    how = FineGrainedFP8Config(weight_block_size=(64, 32), modules_to_not_convert=kept)
    built = replace_with_fp8_linear(model, kept, how)
    held = sum(parameter.numel() * parameter.element_size() for parameter in built.parameters())
    stated = {"quant_method": "fp8", "weight_block_size": [64, 32], "modules_to_not_convert": kept}
    fields = quantized({**config.to_dict(), "dtype": "bfloat16"}, **stated)
    assert weight_bytes(fields).total == held


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ("lm_head", 0),
        ("model.layers.0", 7),
        ("model.layers.0.mlp.up_proj", 1),
        ("up_proj", 3),
        ("model.layers.*.mlp", 9),
        ("model.language_model.layers.1", 7),
        ("mlp.up", 0),  # neither a whole name nor the end of one
        ("*broken[", 0),
    ],
)
def test_excluded_modules_stay_in_the_models_dtype(pattern, kept):
    weights = weight_list(quantized(**FP8, modules_to_not_convert=[pattern]))
    plain = {weight.name: weight.bytes_each for weight in weight_list(LLAMA)}
    matrices = [weight for weight in weights if weight.name.endswith("proj.weight")]
    assert sum(weight.count for weight in matrices if weight.bytes_each == plain[weight.name]) == kept


def test_other_pattern_styles():
    compressed = ONE_MATRIX[-1][0]
    for pattern, kept in (
        ("re:.*up_proj", 3),
        ("model.layers.2.mlp.up_proj", 1),
        ("up_proj", 0),
        ("lm_head", 0),
    ):
        weights = weight_list(quantized(**compressed, ignore=[pattern]))
        assert sum(w.count for w in weights if "up_proj" in w.name and w.bytes_each == 2 * 96 * 64) == kept
    modelopt = {"quant_method": "modelopt", "quant_algo": "FP8"}
    weights = weight_list(quantized(**modelopt, ignore=["model.layers.1*"]))
    assert sum(w.count for w in weights if "up_proj" in w.name and w.bytes_each == 2 * 96 * 64) == 1


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "hqq"},
        {"quant_method": None},
        {"quant_method": ["fp8"]},
        {"bits": 4},
        {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"},
        {"quant_method": "gptq"},
        {"quant_method": "gptq", "bits": 5},
        {"quant_method": "gptq", "bits": 4, "group_size": 0},
        {"quant_method": "fp8", "weight_block_size": [128]},
        {"quant_method": "fp8", "weight_block_size": [0, 128]},
        {"quant_method": "fp8", "modules_to_not_convert": "lm_head"},
        {"quant_method": "compressed-tensors", "config_groups": {}},
        {"quant_method": "compressed-tensors", "config_groups": {"a": {}, "b": {}}},
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"a": {"targets": ["Linear"], "weights": {"num_bits": 3}}},
        },
    ],
)
def test_a_quantization_that_is_not_understood_is_refused(quantization):
    with pytest.raises(ConfigError) as caught:
        weight_bytes(quantized(**quantization))
    assert caught.value.text("zh") != caught.value.text("en")


@pytest.mark.parametrize(
    ("double", "key"), [(False, "quant_bitsandbytes"), (True, "quant_bitsandbytes_double")]
)
def test_bitsandbytes_says_whether_it_quantizes_twice_in_the_readers_language(double, key):
    stated = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": double}
    assert weight_bytes(quantized(**stated)).assumptions == ((key, {}),)
    assert not re.search(r"\b(yes|no)\b", text(f"weights.{key}", "zh"))


FP8_KV = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({**COMPRESSED, "kv_cache_scheme": FP8_KV}, "fp8"),
        ({**COMPRESSED, "kv_cache_scheme": {**FP8_KV, "type": "int"}}, "int8"),
        ({**COMPRESSED, "kv_cache_scheme": None}, None),
        (COMPRESSED, None),
        (FP8, None),
        ({**MODELOPT, "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, "fp8"),
        ({**MODELOPT, "kv_cache_quant_algo": "FP8"}, "fp8"),
        ({**MODELOPT, "kv_cache_quant_algo": "INT8"}, "int8"),
        ({**MODELOPT, "kv_cache_quant_algo": None}, None),
        ({**MODELOPT, "kv_cache_scheme": "FP8"}, "fp8"),
        ({**MODELOPT, "kv_cache_scheme": "int8"}, "int8"),
        ({**MODELOPT, "kv_cache_scheme": "FP8", "kv_cache_quant_algo": "fp8"}, "fp8"),
        ({**MODELOPT, "kv_cache_quant_algo": "FP8", "kv_cache_scheme": FP8_KV}, "fp8"),
        ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8"),
        # A method whose weights minikv cannot count still says what its cache is.
        ({"quant_method": "hqq"}, None),
        ({"quant_method": "new", "kv_cache_scheme": FP8_KV}, "fp8"),
    ],
    ids=lambda value: str(value)[-60:],
)
def test_the_checkpoint_says_what_its_cache_is_stored_in(quantization, expected):
    assert kv_cache_quantization(read_config(quantized(**quantization))) == expected
    older = {**LLAMA, "compression_config": quantization}
    assert kv_cache_quantization(read_config(older)) == expected
    composite = {
        "model_type": "qwen3_vl",
        "text_config": {**LLAMA, "model_type": "qwen3_vl_text"},
        "quantization_config": quantization,
    }
    assert kv_cache_quantization(read_config(composite)) == expected


def test_a_config_without_quantization_asks_nothing_of_its_cache():
    assert kv_cache_quantization(read_config(LLAMA)) is None


@pytest.mark.parametrize(
    "fields",
    [
        *({"kv_cache_scheme": {**FP8_KV, **change}} for change in (
            {"num_bits": 4}, {"num_bits": "8"}, {"num_bits": None}, {"type": "uint"}, {"type": None}, {"type": []},
            {"strategy": "token"}, {"strategy": "channel"}, {"strategy": None}, {"symmetric": False},
        )),
        *({"kv_cache_scheme": scheme} for scheme in ("static", [], {}, 8, True)),
        *({"kv_cache_quant_algo": name} for name in ("NVFP4", "fp4", "", 8, ["FP8"], {"FP8": 1})),
        {"kv_cache_quant_algo": "INT8", "kv_cache_scheme": FP8_KV},
        {"quantization": {"kv_cache_quant_algo": "INT8"}, "kv_cache_quant_algo": "FP8"},
    ],
    ids=str,
)  # fmt: skip
def test_an_unknown_cache_scheme_is_refused_by_name(fields):
    with pytest.raises(ConfigError) as caught:
        kv_cache_quantization(read_config(quantized(**MODELOPT, **fields)))
    assert caught.value.code == "kv_scheme_unknown"
    assert caught.value.values["field"] in ("kv_cache_scheme", "kv_cache_quant_algo")
    for lang in ("en", "zh"):
        assert 'kv_dtype="fp8"' in caught.value.text(lang)
    config = quantized(**MODELOPT, **fields)
    with pytest.raises(ConfigError):
        CacheSpec.from_config(config, layout="vllm")
    # The way out, and a cache that does not depend on it.
    assert CacheSpec.from_config(config, layout="vllm", kv_dtype="fp8").kv_dtype == "fp8"
    plain = CacheSpec.from_config(config)
    assert plain.layers == CacheSpec.from_config(LLAMA).layers
    assert plain.assumptions[0][0] == "kv_quantization_unused"
    assert plain.text("zh")


def test_a_quantization_that_is_no_object_is_refused_for_the_cache_too():
    with pytest.raises(ConfigError) as caught:
        kv_cache_quantization(read_config({**LLAMA, "quantization_config": "fp8"}))
    assert caught.value.values["field"] == "quantization_config"


def test_experts_under_bitsandbytes_are_not_guessed():
    fields = {
        **even_config("mixtral"),
        "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    }
    with pytest.raises(ConfigError) as caught:
        weight_bytes(fields)
    assert caught.value.code == "quantized_experts"


# A dtype that the caller asks for, whatever the checkpoint has.

PLAIN_INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
AS_CHECKPOINT = {
    "fp8": {"quant_method": "fp8"},
    "int8": {**COMPRESSED, "config_groups": {"g": {"targets": ["Linear"], "weights": PLAIN_INT8}}},
    "int4": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}
MIXTRAL = {
    **LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize("base", [LLAMA, MIXTRAL, {"text_config": LLAMA, "model_type": "llama"}])
@pytest.mark.parametrize("name", AS_CHECKPOINT)
@pytest.mark.parametrize("tp", [1, 2])
def test_weights_in_a_dtype_are_those_of_a_checkpoint_stored_so(name, base, tp):
    asked = weight_bytes(base, tp=tp, weight_dtype=name)
    stored = weight_bytes(quantized(base, **AS_CHECKPOINT[name]), tp=tp)
    assert (asked.total, asked.parts, asked.source) == (stored.total, stored.parts, "shapes")
    assert asked.total < weight_bytes(base, tp=tp).total
    # Whatever the config itself is quantized with, even if it is nothing that minikv can count.
    other = quantized(base, quant_method="hqq")
    assert weight_bytes(other, tp=tp, weight_dtype=name).parts == asked.parts
    for lang in ("en", "zh"):
        assert all(text(f"weights.{key}", lang, **values) for key, values in asked.assumptions)


@pytest.mark.parametrize(
    ("name", "itemsize"), [("bf16", 2), ("float16", 2), ("torch.float32", 4), ("half", 2)]
)
def test_weights_in_a_plain_dtype_take_so_many_bytes_a_parameter(name, itemsize):
    for config in (LLAMA, quantized(quant_method="hqq")):
        asked = weight_bytes(config, weight_dtype=name)
        assert asked.total == itemsize * asked.num_parameters


def test_a_checkpoint_s_files_do_not_answer_for_another_dtype(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"metadata": {"total_size": 12345}, "weight_map": {}}'
    )
    assert weight_bytes(tmp_path).total == 12345
    assert weight_bytes(tmp_path, weight_dtype="int4").total == weight_bytes(LLAMA, weight_dtype="int4").total


@pytest.mark.parametrize("name", ["int5", "auto", "", "fp8_scaled", 4])
def test_a_weight_dtype_that_is_none_is_refused_with_those_that_are(name):
    with pytest.raises(ArgumentError, match="fp32, bf16, fp16, fp8, int8, int4, nvfp4"):
        weight_bytes(LLAMA, weight_dtype=name)


def test_a_weight_dtype_beside_bytes_is_refused():
    with pytest.raises(ArgumentError) as caught:
        weight_bytes(LLAMA, weight_dtype="int4", weight_bytes=12345)
    assert caught.value.code == "weight_dtype_and_bytes"


def test_weights_in_a_dtype_give_the_table_its_times():
    """Experts without parts have no floor; in a dtype their parts are known."""
    config = quantized(MIXTRAL, quant_method="hqq") | {"max_position_embeddings": 4096}
    given, asked = (
        context_rows(plan_memory(config, gpu="H200", **weights))
        for weights in ({"weight_bytes": 10**6}, {"weight_dtype": "int4"})
    )
    assert {row["floor_one_s"] for row in given} == {None}
    assert all(row["floor_one_s"] > 0 for row in asked)
