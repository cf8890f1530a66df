"""Searched Llamas (nemotron-nas): layers without attention, KV heads and MLP widths of a layer's own."""

import pytest

from minikv.errors import ConfigError
from minikv.plan import CacheSpec, plan_memory, weight_bytes
from minikv.plan.flops import flop_cost
from tests.in_turn import in_turn

# Four kinds of layers, in the form of nvidia/Llama-3_3-Nemotron-Super-49B-v1's config.json.
BLOCKS = [
    {
        "attention": {
            "n_heads_in_group": 8,
            "no_op": False,
            "replace_with_linear": False,
            "window_length": None,
        },
        "ffn": {"ffn_mult": 2.625, "no_op": False, "replace_with_linear": False},
    },
    {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 1.0}},
    {"attention": {"n_heads_in_group": 4}, "ffn": {"no_op": True, "ffn_mult": None}},
    {"attention": {"replace_with_linear": True}, "ffn": {"replace_with_linear": True}},
]
NAS = {
    "model_type": "nemotron-nas",
    "hidden_size": 1024,
    "intermediate_size": None,
    "num_attention_heads": 16,
    "num_key_value_heads": None,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "block_configs": BLOCKS,
}


def test_a_layer_caches_what_its_block_has():
    spec = CacheSpec.from_config(NAS)
    assert [(layer.kind, layer.kv_heads, layer.token_bytes) for layer in spec.layers] == [
        ("full", 2, 2 * 2 * 64 * 2),
        ("none", 0, 0),
        ("full", 4, 2 * 4 * 64 * 2),
        ("none", 0, 0),
    ]
    assert spec.model_type == "nemotron-nas"
    assert [layer.kv_heads for layer in CacheSpec.from_config(NAS, tp=4).layers] == [1, 0, 1, 0]


def test_weights_are_those_of_the_parts_that_are_left():
    hidden, kv_heads, heads, dim = 1024, (2, 4), 16, 64
    # 2/3 of 2.625 and of 1.0 times the hidden size, rounded up to 256
    inners = (1792, 768)
    attention = sum(2 * hidden * heads * dim + 2 * hidden * kv * dim for kv in kv_heads)
    mlp = sum(3 * hidden * inner for inner in inners)
    linear = 2 * hidden * hidden
    norms = (2 + 1 + 1 + 2 + 1) * hidden
    parameters = attention + mlp + linear + norms + 2 * 1000 * hidden
    found = weight_bytes(NAS)
    assert (found.num_parameters, found.total) == (parameters, 2 * parameters)


def test_a_gpu_is_planned_for_it():
    budget = plan_memory(NAS, gpu="T4", context=4096)
    widest = plan_memory(NAS | {"block_configs": [BLOCKS[0]] * 4}, gpu="T4", context=4096)
    assert budget.activation_bytes == widest.activation_bytes
    assert budget.block_bytes < widest.block_bytes * 2


def test_flops_of_layers_that_differ_are_refused():
    with pytest.raises(ConfigError, match="nemotron-nas"):
        flop_cost(NAS | {"block_configs": [BLOCKS[0]] * 4})


def test_another_llama_ignores_the_field():
    plain = NAS | {"model_type": "llama", "num_key_value_heads": 4, "intermediate_size": 2048}
    assert {layer.kv_heads for layer in CacheSpec.from_config(plain).layers} == {4}


def changed(part, **values):
    block = {**BLOCKS[0], part: {**BLOCKS[0][part], **values}}
    return {"block_configs": [block, *BLOCKS[1:]]}


@in_turn(
    "change, said",
    [
        ({"block_configs": None}, "block_configs"),
        ({"block_configs": "all"}, "block_configs"),
        ({"block_configs": BLOCKS[:3]}, "3 block_configs .* num_hidden_layers = 4"),
        ({"block_configs": [None, *BLOCKS[1:]]}, "block_configs"),
        ({"block_configs": [{"attention": {}}, *BLOCKS[1:]]}, "block_configs"),
        (changed("attention", n_heads_in_group=None), "n_heads_in_group"),
        (changed("attention", n_heads_in_group=3), "n_heads_in_group"),
        (changed("attention", n_heads_in_group=0), "n_heads_in_group"),
        (changed("attention", no_op="yes"), "no_op"),
        (changed("attention", window_length=4096), "window_length"),
        (changed("attention", num_sink_tokens=4), "num_sink_tokens"),
        (changed("attention", sparsify=["all"]), "sparsify"),
        (changed("ffn", ffn_mult=-1), "ffn_mult"),
        (changed("ffn", ffn_mult="2"), "ffn_mult"),
        (changed("ffn", ffn_mult=float("inf")), "ffn_mult"),
    ],
)
def test_an_entry_that_is_not_understood_is_named(change, said):
    with pytest.raises(ConfigError, match=said):
        CacheSpec.from_config(NAS | change)
