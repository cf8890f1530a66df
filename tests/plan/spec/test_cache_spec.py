"""Properties of CacheSpec: inverses, monotony, tensor parallelism, and one answer for every form of a config."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minikv.errors import ArgumentError, ConfigError
from minikv.plan import CacheSpec, LayerSpec, find_model, model_names
from minikv.plan.catalog import Model
from minikv.plan.spec.architectures import ARCHITECTURES
from tests.in_turn import in_turn
from tests.plan.small_models import DECODERS, small_config

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}

# Classes that take their layers from a list that the config always holds.
LISTED = ("nemotron_h", "granitemoehybrid", "lfm2", "glm_moe_dsa")

layers = st.builds(
    LayerSpec,
    kind=st.just("any"),
    kv_heads=st.integers(0, 9),
    k_dim=st.integers(1, 70),
    v_dim=st.integers(1, 70),
    itemsize=st.sampled_from([1, 2, 4]),
    scale_bytes=st.sampled_from([0, 4]),
    index_bytes=st.sampled_from([0, 132]),
    window=st.none() | st.integers(1, 40),
    state_bytes=st.sampled_from([0, 0, 977]),
)
specs = st.builds(CacheSpec, layers=st.lists(layers, min_size=1, max_size=6).map(tuple))


@settings(max_examples=200)
@given(spec=specs, num_bytes=st.integers(0, 10**7), batch=st.integers(1, 5))
def test_max_tokens_is_the_exact_inverse_of_bytes_for(spec, num_bytes, batch):
    most = spec.max_tokens(num_bytes, batch)
    if most == math.inf:
        assert spec.slope(10**9) == 0
        assert spec.bytes_for(10**9, batch) <= num_bytes
    else:
        assert spec.bytes_for(most, batch) <= num_bytes < spec.bytes_for(most + 1, batch)


@settings(max_examples=100)
@given(spec=specs, num_tokens=st.integers(0, 200), step=st.integers(1, 200))
def test_slope_is_the_difference_and_storage_is_never_less_than_what_is_cached(spec, num_tokens, step):
    state = spec.constant_state_bytes if num_tokens == 0 else 0
    assert spec.bytes_for(num_tokens + 1) - spec.bytes_for(num_tokens) == spec.slope(num_tokens) + state
    if num_tokens >= step:
        assert spec.held_bytes_for(num_tokens, step) >= spec.bytes_for(num_tokens)
    if num_tokens:
        prefill = sum(layer.token_bytes for layer in spec.layers) * num_tokens + spec.constant_state_bytes
        assert spec.held_bytes_for(num_tokens, num_tokens) == prefill


@given(num_tokens=st.integers(0, 10**6), batch=st.integers(0, 9))
def test_batch_multiplies(num_tokens, batch):
    spec = CacheSpec.from_config(LLAMA)
    assert spec.bytes_for(num_tokens, batch) == batch * spec.bytes_for(num_tokens)
    assert spec.bytes_for(num_tokens) == num_tokens * 131_072


@in_turn("name", model_names())
def test_the_catalogue_s_verified_figures(name):
    model: Model = find_model(name)
    expected = model.expected.get("hf_bf16", {})
    frames = {"encoder_tokens": 1500} if "whisper" in name.lower() else {}
    spec = CacheSpec.from_config(name, kv_dtype="bf16", **frames)
    # A few verified figures are for the model in bf16 where the file's own dtype is another.
    if "bytes_per_token" in expected:
        assert spec.slope(0) == expected["bytes_per_token"]
        assert spec.slope(2**40) == expected["bytes_per_token_beyond_window"]
        assert spec.window == expected["window_tokens_kept"]
        assert spec.constant_state_bytes == expected["constant_state_bytes"]
    if "expanded_bytes_per_token" in expected:
        expanded = CacheSpec.from_config(name, layout="hf-expanded", kv_dtype="bf16")
        indexer = sum(layer.index_bytes for layer in expanded.layers)
        assert expanded.slope(0) - indexer == expected["expanded_bytes_per_token"]
    vllm = model.expected.get("vllm_bf16_tp1", {})
    if "bytes_per_token" in vllm:
        ours = CacheSpec.from_config(name, layout="vllm", kv_dtype="bf16", **frames)
        indexer = sum(layer.index_bytes for layer in ours.layers)
        assert ours.slope(0) - indexer == vllm["bytes_per_token"]


@in_turn("model_type", DECODERS)
def test_object_dict_and_saved_file_give_the_same_layers(model_type, tmp_path):
    config = small_config(model_type, dtype="bfloat16")
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    of_object = CacheSpec.from_config(config).layers
    assert of_object == CacheSpec.from_config(saved).layers
    assert of_object == CacheSpec.from_config(tmp_path).layers
    assert of_object == CacheSpec.from_config(str(tmp_path / "config.json")).layers
    # What a class derives in __post_init__, a hub config leaves out.
    for derived in ("layer_types", "layers_block_type", "no_rope_layers"):
        if model_type not in ("bamba", "granitemoehybrid", "lfm2", "nemotron_h"):
            saved.pop(derived, None)
    assert of_object == CacheSpec.from_config(saved).layers


@in_turn("model_type", [name for name in DECODERS if name not in LISTED])
@pytest.mark.parametrize("layers", [1, 2, 7, 13])
def test_layer_types_are_derived_as_the_class_derives_them(model_type, layers):
    sizes = {"num_hidden_layers": layers}
    if model_type in ("gemma3n_text", "gemma4_text"):
        sizes |= {"num_kv_shared_layers": 0}
    if model_type == "gemma3n_text":
        sizes |= {"activation_sparsity_pattern": [0.0] * layers}
    config = small_config(model_type, **sizes)
    # Compressed entries stand beside the window of their layer.
    assert sum(layer.kind != "compressed" for layer in CacheSpec.from_config(config).layers) == layers
    # The least that a hub config says: what differs from the class's defaults, without derived lists.
    sparse = config.to_diff_dict() | {"num_hidden_layers": layers, "hidden_size": config.hidden_size}
    sparse.pop("layer_types", None)
    assert CacheSpec.from_config(sparse).layers == CacheSpec.from_config(config).layers


@pytest.mark.parametrize(
    ("heads", "tp", "per_rank"), [(8, 1, 8), (8, 2, 4), (8, 8, 1), (8, 16, 1), (1, 4, 1)]
)
def test_kv_heads_are_split_or_replicated(heads, tp, per_rank):
    spec = CacheSpec.from_config(LLAMA | {"num_key_value_heads": heads}, tp=tp)
    assert {layer.kv_heads for layer in spec.layers} == {per_rank}
    assert tp * spec.slope() >= CacheSpec.from_config(LLAMA | {"num_key_value_heads": heads}).slope()


@pytest.mark.parametrize(("heads", "tp"), [(8, 3), (6, 4), (10, 4)])
def test_heads_that_divide_neither_way_are_refused(heads, tp):
    sizes = {"num_attention_heads": 4 * heads, "num_key_value_heads": heads, "head_dim": 128}
    with pytest.raises(ConfigError, match=rf"{heads} KV heads and tp={tp}"):
        CacheSpec.from_config(LLAMA | sizes, tp=tp)


@pytest.mark.parametrize(("model", "tp"), [("DeepSeek-V3", 7), ("DeepSeek-V3", 256), ("Qwen2.5-7B", 16)])
def test_query_heads_have_to_divide_too(model, tp):
    with pytest.raises(ConfigError, match="attention heads"):
        CacheSpec.from_config(model, tp=tp)


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({"max_position_embeddings": 40_960}, 40_960),
        ({"max_position_embeddings": 40_960, "rope_scaling": _YARN}, 131_072),
        ({"max_position_embeddings": 163_840, "rope_scaling": _YARN}, 163_840),
        ({"max_position_embeddings": 40_960, "rope_scaling": {"type": "yarn"}}, 40_960),
        ({"max_position_embeddings": 40_960, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 40_960),
    ],
)
def test_positions_are_stated_or_stretched_by_yarn(config, positions):
    spec = CacheSpec.from_config(LLAMA | config)
    assert spec.max_positions == positions
    assert any(key == "yarn_positions" for key, _ in spec.assumptions) == (positions == 131_072)


@pytest.mark.parametrize("positions", [0, -1, "many"])
def test_positions_that_are_no_count_are_refused(positions):
    with pytest.raises(ConfigError, match="max_position_embeddings"):
        CacheSpec.from_config(LLAMA | {"max_position_embeddings": positions})


def test_a_field_that_the_class_ignores_is_ignored():
    neox = {"model_type": "gpt_neox", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    assert (
        CacheSpec.from_config(neox | {"num_key_value_heads": 1}).slope()
        == CacheSpec.from_config(neox).slope()
    )


def test_old_names_of_hub_configs_are_read():
    bloom = {
        "model_type": "bloom",
        "n_embed": 64,
        "n_layer": 2,
        "num_attention_heads": 4,
        "torch_dtype": "float16",
    }
    assert CacheSpec.from_config(bloom).slope() == 2 * 2 * 64 * 2
    mpt = {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 128}
    assert CacheSpec.from_config(mpt).max_positions == 128


def test_vllm_s_fp8_of_sparse_latents():
    """512 fp8 + 4 scales + 64 bf16 = 656 B, and the indexer's 128 fp8 + 1 scale = 132 B, in 61 layers."""
    assert CacheSpec.from_config("DeepSeek-V3.2", layout="vllm", kv_dtype="fp8").slope() == 61 * (656 + 132)
    assert CacheSpec.from_config("DeepSeek-V3", layout="vllm", kv_dtype="fp8").slope() == 61 * 576


@pytest.mark.parametrize("number", [10**9, 10**320])
def test_absurd_numbers_are_refused_at_once(number):
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        CacheSpec.from_config(LLAMA | {"num_hidden_layers": number})
    if number > 2**62:
        with pytest.raises(ConfigError, match="hidden_size"):
            CacheSpec.from_config(LLAMA | {"hidden_size": number})
        with pytest.raises(ArgumentError):
            CacheSpec.from_config(LLAMA).bytes_for(number)


@pytest.mark.parametrize("source", [None, 7, ["llama"], b"llama"])
def test_what_is_no_config_is_refused(source):
    with pytest.raises(ArgumentError, match="no config"):
        CacheSpec.from_config(source)


def test_latents_are_the_same_on_every_rank():
    assert {CacheSpec.from_config("DeepSeek-V3", tp=tp).slope() for tp in (1, 2, 8, 16)} == {70_272}
    assert CacheSpec.from_config("DeepSeek-V3", tp=8, layout="hf-expanded").slope() == 4_997_120 // 8


def test_the_head_dim_traps():
    """Absent, null, explicit, and in MLA the rope part."""
    assert CacheSpec.from_config(LLAMA).layers[0].k_dim == 128
    assert CacheSpec.from_config(LLAMA | {"head_dim": None}).layers[0].k_dim == 128
    assert CacheSpec.from_config(LLAMA | {"head_dim": 80}).layers[0].k_dim == 80
    mla = find_model("DeepSeek-V3").config
    assert CacheSpec.from_config(mla | {"head_dim": 64}).slope() == CacheSpec.from_config(mla).slope()


def test_quantized_kv_counts_its_scales():
    plain, fp8 = CacheSpec.from_config(LLAMA), CacheSpec.from_config(LLAMA, kv_dtype="fp8")
    assert fp8.slope() * 2 == plain.slope()
    scaled = CacheSpec.from_config(LLAMA, kv_dtype="int8")
    assert scaled.slope() == fp8.slope() + 32 * 8 * 2 * 4


def test_a_checkpoint_s_kv_scheme_counts_where_an_engine_obeys_it():
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    config = LLAMA | {
        "quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme}
    }
    here, vllm = CacheSpec.from_config(config), CacheSpec.from_config(config, layout="vllm")
    assert (here.kv_dtype, vllm.kv_dtype) == ("bf16", "fp8")
    assert "kv_quantization_unused" in dict(here.assumptions)
    assert CacheSpec.from_config(config, layout="vllm", kv_dtype="bf16").slope() == here.slope()


def test_defaults_of_the_class_are_named():
    spec = CacheSpec.from_config("Gemma-3-4B")
    assert "class's default: " in spec.explain("en")
    origins = {use.name: use.origin for use in spec.fields}
    assert origins["num_key_value_heads"] == "class default"
    assert origins["num_hidden_layers"] == "config"


@pytest.mark.parametrize("lang", ["en", "zh"])
@in_turn("name", model_names())
def test_explain_names_the_bytes_of_every_layer(name, lang):
    spec = CacheSpec.from_config(name, **({"encoder_tokens": 1500} if "whisper" in name.lower() else {}))
    said = spec.explain(lang)
    for layer in spec.layers:
        assert not layer.token_bytes or f"{layer.token_bytes:,} B" in said


def test_the_generated_defaults_match_the_installed_transformers():
    from minikv.plan.spec.config import config_defaults
    from tools.config_defaults import build_table

    table, installed = dict(config_defaults()), build_table()
    if table.pop("transformers") != installed.pop("transformers"):
        # Another release may have other defaults for fields that no byte depends on.
        pytest.skip("the table was generated from another release of transformers")
    assert table == installed
    assert set(table["defaults"]) == set(ARCHITECTURES)
