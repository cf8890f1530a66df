"""What llama.cpp caches for each architecture: compared with a built llama.cpp, and with the same model's config."""

import json
import re
from pathlib import Path

import pytest

from minikv.errors import ArgumentError, ConfigError
from minikv.plan import CacheSpec, LayerSpec, plan_gguf
from minikv.plan.gguf.layers import ARCHITECTURES
from tests.in_turn import in_turn
from tests.plan.gguf.by_hand import SMALL
from tests.plan.gguf.files import write

TOLD = json.loads((Path(__file__).parents[1] / "data" / "llama_cpp_cases.json").read_text())
# Not compared: these need tensors of other shapes than their loader makes from a header alone.
NOT_COMPARED = {"plm", "rwkv6", "rwkv6qwen2"}


def asked(load):
    """A load of llama.cpp as the arguments of ``plan_gguf``, which has tokens a sequence."""
    return {
        "context": load["n_ctx"] // load["n_seq_max"],
        "batch": load["n_seq_max"],
        "chunk": load["n_ubatch"],
        "kv_dtype": load["type_k"],
        "v_dtype": load["type_v"],
        "unified": bool(load["kv_unified"]),
    }


@in_turn("case", TOLD["cases"])
def test_the_cache_has_the_bytes_that_llama_cpp_allocates(tmp_path, case):
    path = write(tmp_path / "m.gguf", case["architecture"], case["keys"])
    for load, num_bytes in zip(TOLD["loads"], case["bytes"], strict=True):
        if num_bytes is None:
            with pytest.raises(ConfigError):
                plan_gguf(path, **asked(load))
        else:
            assert plan_gguf(path, **asked(load)).cache_bytes == num_bytes, load


def test_every_architecture_is_compared():
    assert {case["architecture"] for case in TOLD["cases"]} == ARCHITECTURES.keys() - NOT_COMPARED


# The keys that convert_hf_to_gguf.py writes for models of the catalogue.
MODELS = {
    "Llama-3.1-8B": ("llama", {
        "context_length": 131072, "embedding_length": 4096, "block_count": 32, "attention.head_count": 32,
        "attention.head_count_kv": 8,
    }),
    "Qwen3-8B": ("qwen3", {
        "context_length": 40960, "embedding_length": 4096, "block_count": 36, "attention.head_count": 32,
        "attention.head_count_kv": 8, "attention.key_length": 128, "attention.value_length": 128,
    }),
    "Gemma-3-4B": ("gemma3", {
        "context_length": 131072, "embedding_length": 2560, "block_count": 34, "attention.head_count": 8,
        "attention.head_count_kv": 4, "attention.key_length": 256, "attention.value_length": 256,
        "attention.sliding_window": 1024,
    }),
    "gpt-oss-20b": ("gpt-oss", {
        "context_length": 131072, "embedding_length": 2880, "block_count": 24, "attention.head_count": 64,
        "attention.head_count_kv": 8, "attention.key_length": 64, "attention.value_length": 64,
        "attention.sliding_window": 128,
    }),
    "DeepSeek-V3": ("deepseek2", {
        "context_length": 163840, "embedding_length": 7168, "block_count": 61, "attention.head_count": 128,
        "attention.head_count_kv": 1, "attention.key_length": 576, "attention.value_length": 512,
        "attention.key_length_mla": 192, "attention.value_length_mla": 128, "attention.kv_lora_rank": 512,
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_file_costs_what_the_model_s_config_costs(tmp_path, name):
    architecture, keys = MODELS[name]
    file = CacheSpec.from_gguf(write(tmp_path / "m.gguf", architecture, keys), kv_dtype="bf16")
    config = CacheSpec.from_config(name, layout="vllm")
    assert [(layer.kind, layer.window, layer.token_bytes) for layer in file.layers] == [
        (layer.kind, layer.window, layer.token_bytes) for layer in config.layers
    ]
    assert file.max_positions == config.max_positions
    assert file.bytes_for(5000, 3) == config.bytes_for(5000, 3)


def test_shared_layers_say_whose_k_and_v_they_read(tmp_path):
    keys = SMALL | {
        "block_count": 6,
        "attention.sliding_window": 512,
        "attention.sliding_window_pattern": [True, False] * 3,
        "attention.shared_kv_layers": 2,
    }
    layers = CacheSpec.from_gguf(write(tmp_path / "m.gguf", "gemma4", keys)).layers
    assert layers[4:] == (LayerSpec("shared", reads_layer=2), LayerSpec("shared", reads_layer=3))


def refuses(tmp_path, architecture, keys, general=None, **types):
    with pytest.raises((ArgumentError, ConfigError)) as caught:
        CacheSpec.from_gguf(write(tmp_path / "m.gguf", architecture, keys, general=general), **types)
    assert caught.value.text("zh") != caught.value.text("en")
    return caught.value


LATENT = SMALL | MODELS["DeepSeek-V3"][1] | {"block_count": 2}


@in_turn(
    "architecture, change, said",
    [
        ("bert", {}, "'bert' .* not one of the"),
        ("deepseek4", {}, "deepseek4"),
        ("llama", {"block_count": 0}, "llama.block_count"),
        ("llama", {"block_count": 10**6}, "llama.block_count"),
        ("llama", {"block_count": "2"}, "llama.block_count"),
        ("llama", {"attention.head_count_kv": [2, 2, 2]}, "lists 3 values for 2 layers"),
        ("llama", {"attention.head_count_kv": -1.0}, "head_count_kv"),
        ("llama", {"attention.head_count": 0}, "attention.head_count"),
        ("llama", {"nextn_predict_layers": 2}, "nextn_predict_layers"),
        ("llama", {"attention.key_length": 0}, "attention.key_length"),
        ("gemma3n", {}, "attention.sliding_window"),
        ("gemma4", {"attention.sliding_window": 512, "attention.sliding_window_pattern": 6}, "pattern"),
        (
            "gemma4",
            {
                "attention.sliding_window": 512,
                "attention.sliding_window_pattern": [True, False, True, False],
                "block_count": 4,
                "attention.shared_kv_layers": 1,
            },
            "pattern",
        ),
        ("deepseek2", {"attention.key_length_mla": 192}, "key_length_mla"),
        ("deepseek2", LATENT | {"attention.kv_lora_rank": 1000}, "kv_lora_rank"),
        ("mamba", {}, "ssm.conv_kernel"),
        ("glm-dsa", LATENT | {"attention.indexer.top_k": 8, "context_length": 2**20}, "indexer.types"),
    ],
)
def test_keys_that_llama_cpp_would_not_run_are_named(tmp_path, architecture, change, said):
    assert re.search(said, str(refuses(tmp_path, architecture, SMALL | change)))


@pytest.mark.parametrize("missing", ["context_length", "block_count"])
def test_a_missing_key_is_named(tmp_path, missing):
    keys = {key: value for key, value in SMALL.items() if key != missing}
    assert f"llama.{missing}" in str(refuses(tmp_path, "llama", keys))


@pytest.mark.parametrize("kind", ["adapter", "mmproj", "imatrix"])
def test_a_file_without_a_model_is_named_by_what_it_is(tmp_path, kind):
    error = refuses(tmp_path, "llama", SMALL, {"general.type": kind})
    assert (error.code, error.values["kind"]) == ("gguf_no_model", kind)


def test_cache_types_that_llama_cpp_refuses_are_refused(tmp_path):
    odd = SMALL | {"attention.key_length": 80, "attention.value_length": 80}
    assert refuses(tmp_path, "llama", odd, kv_dtype="q8_0").code == "gguf_cache_block"
    assert refuses(tmp_path, "deepseek2", LATENT, kv_dtype="q8_0", v_dtype="f16").code == "gguf_latent_types"
    assert refuses(tmp_path, "grok", SMALL, kv_dtype="f16", v_dtype="q8_0").code == "gguf_flash"
    assert "iq4_nl" in str(refuses(tmp_path, "llama", SMALL, kv_dtype="fp8"))


@pytest.mark.parametrize(
    ("spelled", "name"), [("fp16", "f16"), ("bfloat16", "bf16"), ("float32", "f32"), ("Q8_0", "q8_0")]
)
def test_types_have_the_spellings_of_both_sides(tmp_path, spelled, name):
    assert CacheSpec.from_gguf(write(tmp_path / "m.gguf"), kv_dtype=spelled).kv_dtype == name


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_words_name_the_keys_and_the_defaults(tmp_path, lang):
    spec = CacheSpec.from_gguf(write(tmp_path / "m.gguf"), kv_dtype="q8_0", v_dtype="q4_0")
    said = spec.explain(lang)
    for part in ("llama.attention.head_count_kv = 2", "llama.nextn_predict_layers = 0", "q8_0/q4_0", "208 B"):
        assert part in said
    assert "0.8125" in spec.text(lang)  # bytes an element, scales included: (34 + 18) / 64
