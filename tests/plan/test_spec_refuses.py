"""What is no config, or none that we understand, is refused by CacheSpec by name: no guess, and no traceback."""

import json

import pytest

from minikv.errors import ArgumentError, ConfigError, MiniKVError, UnknownNameError
from minikv.plan import CacheSpec
from minikv.plan.activations import activation_peak
from minikv.plan.config import read_config
from tests.plan.small_models import DECODERS, small_config
from tests.plan.test_spec import LLAMA


@pytest.mark.parametrize("missing", ["num_hidden_layers", "hidden_size", "model_type"])
def test_a_missing_field_is_named(missing):
    config = {key: value for key, value in LLAMA.items() if key != missing}
    with pytest.raises(ConfigError, match=missing):
        CacheSpec.from_config(config)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_key_value_heads": -8}, "num_key_value_heads"),
        ({"head_dim": 0.5}, "head_dim"),
        ({"num_attention_heads": 31}, "head_dim"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["compressed_sparse_attention"] * 32}, "compressed_sparse_attention"),
        ({"layer_types": ["linear_attention"] * 32}, "layer_types"),
        ({"model_type": "deepseek_v4"}, "deepseek_v4"),
        ({"model_type": "not-a-model"}, "not-a-model"),
        ({"torch_dtype": "int4"}, "int4"),
        ({"torch_dtype": "auto"}, "torch_dtype"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(change, field):
    with pytest.raises((ConfigError, ArgumentError), match=field) as caught:
        CacheSpec.from_config(LLAMA | change)
    assert caught.value.text("zh") != caught.value.text("en")


@pytest.mark.parametrize("model_type", DECODERS)
def test_a_hostile_config_never_gives_a_traceback(model_type):
    """Every field in turn is null, negative, a text, a list: an answer in bytes or an error of ours, nothing else."""
    fields = json.loads(small_config(model_type).to_json_string(use_diff=False))
    refused = set()
    for name in fields:
        for value in (None, -1, 0, 1.5, "x", [], [[]], ["x"] * 6, {}, {"0": 1}, True):
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
