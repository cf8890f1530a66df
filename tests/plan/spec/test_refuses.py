"""What is no config, or none that we understand, is refused by CacheSpec by name: no guess, and no traceback."""

import json

import pytest

from minikv import LLM
from minikv.cache import PagedKVCache
from minikv.errors import ArgumentError, ConfigError, MiniKVError, UnknownNameError
from minikv.plan import CacheSpec, plan_memory
from minikv.plan.activations import activation_peak
from minikv.plan.spec.config import TEXT_CONFIG_NAMES, read_config
from tests.in_turn import in_turn
from tests.longer import thirds
from tests.plan.small_models import DECODERS, small_config
from tests.plan.spec.test_cache_spec import LLAMA


@pytest.mark.parametrize("missing", ["num_hidden_layers", "hidden_size", "model_type"])
def test_a_missing_field_is_named(missing):
    config = {key: value for key, value in LLAMA.items() if key != missing}
    with pytest.raises(ConfigError, match=missing):
        CacheSpec.from_config(config)


@in_turn(
    "change, field",
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_key_value_heads": -8}, "num_key_value_heads"),
        ({"head_dim": 0.5}, "head_dim"),
        ({"num_attention_heads": 31}, "head_dim"),
        ({"num_key_value_heads": 7}, "num_attention_heads = 32 .* num_key_value_heads = 7 "),
        ({"num_key_value_heads": 64}, "num_attention_heads = 32 .* num_key_value_heads = 64 "),
        ({"text_config": []}, "text_config is a list"),
        ({"language_config": "none"}, "language_config is a str"),
        ({"text_config": LLAMA, "llm_config": 0}, "llm_config is a int"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["compressed_sparse_attention"] * 32}, "compressed_sparse_attention"),
        ({"layer_types": ["linear_attention"] * 32}, "layer_types"),
        ({"model_type": "not-a-model"}, "not-a-model"),
        ({"torch_dtype": "int4"}, "int4"),
        ({"torch_dtype": "auto"}, "torch_dtype"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(change, field):
    with pytest.raises((ConfigError, ArgumentError), match=field) as caught:
        CacheSpec.from_config(LLAMA | change)
    assert caught.value.text("zh") != caught.value.text("en")


SHARED = {"gemma4_text": "num_global_key_value_heads", "falcon": "num_kv_heads"}
# A KV head each, or one
NOT_SHARED = {
    "bloom",
    "deepseek_v4",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gptj",
    "mpt",
    "opt",
    "persimmon",
}
NO_HEADS = {"mamba", "mamba2", "falcon_mamba"}


@in_turn("model_type", sorted(set(DECODERS) - NO_HEADS))
def test_kv_heads_that_serve_unequal_numbers_of_query_heads_are_refused_with_both_numbers(model_type):
    fields = json.loads(small_config(model_type).to_json_string(use_diff=False))
    heads, field = fields.get("num_attention_heads"), SHARED.get(model_type, "num_key_value_heads")
    changed = {**fields, field: heads - 1} if heads else fields
    changed |= {"new_decoder_architecture": True, "per_layer_config": None}
    layers = CacheSpec.from_config(fields).layers
    if model_type in NOT_SHARED or any(layer.kind == "latent" for layer in layers):
        assert CacheSpec.from_config(changed).layers == layers
        return
    with pytest.raises(ConfigError) as caught:
        CacheSpec.from_config(changed)
    assert caught.value.code == "heads_not_shared"
    assert (caught.value.values["field"], caught.value.values["heads"]) == (field, heads)


def test_kv_heads_of_one_layer_alone_are_looked_at():
    fields = json.loads(small_config("gemma4_text").to_json_string(use_diff=False))
    per_layer = {"3": {"num_key_value_heads": 4}}
    with pytest.raises(ConfigError, match=r"num_attention_heads = 6 .* num_key_value_heads = 4 \(layer 3\)"):
        CacheSpec.from_config({**fields, "per_layer_config": per_layer})


@pytest.mark.parametrize("name", TEXT_CONFIG_NAMES)
def test_a_decoder_s_config_that_is_null_is_absent(name):
    assert CacheSpec.from_config(LLAMA | {name: None}).layers == CacheSpec.from_config(LLAMA).layers


@pytest.mark.parametrize(("model_type", "part"), thirds(DECODERS))
def test_a_hostile_config_never_gives_a_traceback(model_type, part):
    """Every field in turn is null, negative, a text, a list: an answer in bytes or an error of ours, nothing else."""
    fields = json.loads(small_config(model_type).to_json_string(use_diff=False))
    refused = set()
    for name in fields:
        for value in (None, -1, 0, 1.5, "x", [], [[]], ["x"] * 6, {}, {"0": 1}, True)[part::3]:
            try:
                spec = CacheSpec.from_config({**fields, name: value})
                activation_peak(read_config({**fields, name: value}), chunk=64, batch=1, tp=1, itemsize=2)
            except MiniKVError as error:
                refused.add(error.code)
            else:
                assert spec.bytes_for(10) >= 0
    assert "bad_field" in refused


@pytest.mark.parametrize(
    "arguments",
    [
        {"tp": 0},
        {"tp": -1},
        {"tp": 1.0},
        {"tp": True},
        {"layout": "hf2"},
        {"kv_dtype": "int3"},
        {"encoder_tokens": 4},
    ],
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(ArgumentError):
        CacheSpec.from_config(LLAMA, **arguments)


DAMAGED = ["", "{", "[]", "null", '"text"', "\x00\xff", "{}", "[" * 10**5, '{"a": ' + "9" * 5000 + "}"]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_files_are_refused(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError):
        CacheSpec.from_config(path)


def test_names_and_paths_that_do_not_exist(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json"):
        CacheSpec.from_config(tmp_path)
    with pytest.raises(ConfigError, match="no file"):
        CacheSpec.from_config(str(tmp_path / "other.json"))
    with pytest.raises(UnknownNameError):
        CacheSpec.from_config("Llama-9000B")
    with pytest.raises(ConfigError, match="cannot be read"):
        CacheSpec.from_config("x" * 5000)


@pytest.mark.parametrize("change", [{"model_type": "not-a-model"}, {"layer_types": ["odd"] * 32}])
def test_what_an_unknown_architecture_is_told_to_do_is_so(change):
    """Every call that the sentence names takes a spec made of layers, and those that it excepts do not."""
    with pytest.raises(ConfigError) as caught:
        CacheSpec.from_config(LLAMA | change)
    layers = {"layers": [{"count": 2, "kind": "full", "kv_heads": 2, "k_dim": 16, "v_dim": 16}]}
    spec = CacheSpec.from_layers(layers)
    planned = plan_memory(spec, gpu_bytes=2**34, weight_bytes=2**30, activation_bytes=2**20)
    works = {
        "CacheSpec.from_layers": spec.bytes_for(100) == 25_600,
        "minikv plan --layers FILE": planned.spec == spec,
    }
    for lang in ("en", "zh"):
        said = caught.value.text(lang)
        assert all(call in said and right for call, right in works.items())
        assert "LLM(model)" in said
    assert PagedKVCache(spec, 4).spec == spec
    with pytest.raises(ArgumentError):
        LLM(spec)
