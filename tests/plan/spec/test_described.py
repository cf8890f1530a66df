"""Layers that a file describes: planned like a model's own, and what is wrong in the file is named."""

import json

import pytest

from minikv.cli.plan import spec_dict
from minikv.errors import ArgumentError, ConfigError
from minikv.plan import CacheSpec, LayerSpec, model_names, plan_memory
from tests.in_turn import in_turn

GIB = 2**30
FULL = {"kind": "full", "kv_heads": 8, "k_dim": 128, "v_dim": 128}
MINE = {
    "name": "mine",
    "max_positions": 8192,
    "layers": [{"count": 3, **FULL}, {**FULL, "kind": "sliding", "window": 512}],
}


def test_a_file_and_its_content_give_the_same_spec(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(MINE))
    spec = CacheSpec.from_layers(path)
    assert spec == CacheSpec.from_layers(MINE) == CacheSpec.from_layers(str(path))
    assert spec.layers == (LayerSpec("full", 8, 128, 128),) * 3 + (
        LayerSpec("sliding", 8, 128, 128, window=512),
    )
    assert (spec.name, spec.model_type, spec.max_positions, spec.kv_dtype) == ("mine", "custom", 8192, "bf16")


@in_turn("name", model_names())
def test_what_plan_prints_of_a_model_describes_it(name):
    spec = CacheSpec.from_config(name)
    again = CacheSpec.from_layers(json.loads(json.dumps(spec_dict(spec))))
    for num_tokens in (1, 3000, 70_000):
        assert again.bytes_for(num_tokens) == spec.bytes_for(num_tokens)
    assert (again.name, again.max_positions, again.kv_dtype) == (spec.name, spec.max_positions, spec.kv_dtype)


@pytest.mark.parametrize(("dtype", "itemsize", "scales"), [("fp8", 1, 0), ("int8", 1, 4), ("float32", 4, 0)])
def test_another_dtype_replaces_the_file_s(dtype, itemsize, scales):
    stated = spec_dict(CacheSpec.from_config("Qwen3-8B"))
    for source in (MINE, MINE | {"kv_dtype": "fp16"}, stated):
        layer = CacheSpec.from_layers(source, kv_dtype=dtype).layers[0]
        assert (layer.itemsize, layer.scale_bytes) == (itemsize, scales)
    assert CacheSpec.from_layers(MINE | {"kv_dtype": dtype}).layers[0].itemsize == itemsize


def test_a_gpu_is_planned_for_described_layers():
    known = plan_memory("Llama-3.1-8B", gpu="H200", context=8192)
    given = {"weight_bytes": known.weight_bytes, "activation_bytes": known.activation_bytes}
    described = plan_memory(known.spec, gpu="H200", context=8192, **given)
    assert described.parts() == known.parts()
    assert described.num_blocks == known.num_blocks
    assert "activations are estimated" not in described.text()


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({}, "weight_bytes, activation_bytes"),
        ({"weight_bytes": GIB}, "activation_bytes"),
        ({"activation_bytes": GIB}, "weight_bytes"),
    ],
)
def test_what_layers_do_not_say_has_to_be_given(given, missing):
    with pytest.raises(ArgumentError) as caught:
        plan_memory(CacheSpec.from_layers(MINE), gpu="H200", **given)
    assert (caught.value.code, caught.value.values["missing"]) == ("spec_needs_bytes", missing)


@in_turn(
    "argument",
    [{"tp": 2}, {"kv_dtype": "fp8"}, {"layout": "vllm"}, {"encoder_tokens": 5}, {"weight_dtype": "fp8"}],
)
def test_what_the_spec_has_is_not_asked_again(argument):
    spec = CacheSpec.from_layers(MINE)
    with pytest.raises(ArgumentError, match=next(iter(argument))):
        plan_memory(spec, gpu="H200", weight_bytes=GIB, activation_bytes=GIB, **argument)


def test_activations_of_a_known_model_can_be_given_too():
    assert plan_memory("Qwen3-8B", gpu="H200", activation_bytes=GIB).activation_bytes == GIB
    with pytest.raises(ArgumentError, match="activation_bytes"):
        plan_memory("Qwen3-8B", gpu="H200", activation_bytes=-1)


def one(**change):
    return {"layers": [FULL | change]}


@in_turn(
    "source, said",
    [
        ({}, "lists no layers"),
        ({"layers": []}, "lists no layers"),
        ({"layers": {}}, "lists no layers"),
        ({"layers": [3]}, r"layers\[0\] is a int"),
        ({"layers": [FULL], "heads": 3}, "'heads'"),
        (one(heads=3), r"layers\[0\] has the field 'heads'"),
        (one(kind="wide"), "'wide'"),
        (one(kind=["full"]), "full"),
        (one(kv_heads=-1), "kv_heads"),
        (one(kv_heads="8"), "kv_heads"),
        (one(k_dim=2**70), "k_dim"),
        (one(window=0), "window"),
        (one(count=0), "count"),
        (one(count=10**9), "layers"),
        (one(count=True), "count"),
        (one(token_bytes=5), "token_bytes = 5, .* 4,096"),
        ({"layers": [FULL], "kv_dtype": "int3"}, "int3"),
        ({"layers": [FULL], "name": 3}, "'name'"),
        ({"layers": [FULL], "max_positions": 0}, "max_positions"),
        ({"layers": [FULL], "tp": 1.5}, "'tp'"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(source, said):
    with pytest.raises((ArgumentError, ConfigError), match=said) as caught:
        CacheSpec.from_layers(source)
    assert caught.value.text("zh") != caught.value.text("en")


def test_a_packed_layer_keeps_its_own_dtype():
    packed = one(itemsize=0, packed_bytes=2176)
    assert CacheSpec.from_layers(packed).slope() == 2176
    with pytest.raises(ConfigError, match="packed_bytes"):
        CacheSpec.from_layers(packed, kv_dtype="fp8")
