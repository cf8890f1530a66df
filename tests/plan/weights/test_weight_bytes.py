"""Weight shapes and bytes against the models that transformers builds and against published checkpoints."""

import json
from collections import Counter

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from minikv.errors import ArgumentError, ConfigError, MiniKVError
from minikv.i18n import text
from minikv.plan.catalog import find_model
from minikv.plan.weights.weight_bytes import WEIGHT_FAMILIES, weight_bytes, weight_list
from tests.in_turn import in_turn
from tests.longer import thirds
from tests.plan.small_models import TEXT_ONLY, small_config, small_model

LLAMA = {
    "model_type": "llama", "dtype": "bfloat16", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 96, "vocab_size": 1000, "tie_word_embeddings": False,
}  # fmt: skip
_NO_TIE, _TIE = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}
_BIASED = {"attention_bias": True}

# (model_type, fields that change which tensors there are)
VARIANTS = [
    *((name, {}) for name in sorted(WEIGHT_FAMILIES)),
    *((name, _TIE) for name in ("llama", "deepseek_v3", "qwen3_next", "nemotron_h", "gpt_neox")),
    *((name, _NO_TIE) for name in ("gemma2", "gemma4_text", "gemma3n_text", "gpt2", "opt", "bloom", "falcon")),
    ("whisper", _NO_TIE),
    *((name, _BIASED) for name in ("cohere", "gemma", "gemma4_text", "glm", "glm4", "glm4_moe", "olmo2", "qwen3")),
    *((name, _BIASED) for name in ("qwen3_moe", "qwen3_next", "deepseek_v2", "deepseek_v32", "nemotron")),
    ("llama4_text", _BIASED),
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": None, "hidden_size": 60}),
    ("llama", {"num_key_value_heads": None}),
    ("granite", {"attention_bias": True, "mlp_bias": True}),
    ("seed_oss", {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True}),
    ("starcoder2", {"use_bias": False}),
    ("ernie4_5", {"use_bias": True}),
    ("stablelm", {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True}),
    ("cohere", {"use_qk_norm": True}),
    ("gpt_oss", {"attention_bias": False}),
    ("gpt_neox", {"attention_bias": False}),
    ("glm4_moe", {"use_qk_norm": True, "first_k_dense_replace": 3, "n_shared_experts": 2}),
    ("qwen2_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [1], "qkv_bias": False}),
    ("qwen3_moe", {"decoder_sparse_step": 3}),
    ("qwen3_next", {"mlp_only_layers": [0, 4]}),
    ("llama4_text", {"interleave_moe_layer_step": 2}),
    ("llama4_text", {"moe_layers": [0, 5], "num_local_experts": 3}),
    ("deepseek_v2", {"q_lora_rank": None, "first_k_dense_replace": 0}),
    ("deepseek_v3", {"q_lora_rank": None, "n_shared_experts": 2}),
    ("glm_moe_dsa", {"indexer_types": None, "mlp_layer_types": ["sparse", "dense"] * 3}),
    ("gemma4_text", {"num_kv_shared_layers": 4, "use_double_wide_mlp": True, "attention_k_eq_v": False}),
    ("gemma4_text", {"enable_moe_block": True, "num_experts": 3, "top_k_experts": 2, "moe_intermediate_size": 22}),
    ("gemma4_text", {"hidden_size_per_layer_input": 0}),
    ("gemma3n_text", {"intermediate_size": [40 + i for i in range(10)], "altup_num_inputs": 4}),
    ("jamba", {"mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_dt_rank": 5}),
    ("jamba", {"num_experts": 1}),
    ("nemotron_h", {"mlp_bias": True, "use_bias": True, "use_conv_bias": False, "moe_latent_size": 18}),
    ("falcon", {"multi_query": False, "bias": True, "parallel_attn": False}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1}),
    ("falcon", {"ffn_hidden_size": 50}),
    ("opt", {"word_embed_proj_dim": 20, "enable_bias": False}),
    ("opt", {"do_layer_norm_before": False, "layer_norm_elementwise_affine": False}),
    ("gpt2", {"n_inner": 50}),
]  # fmt: skip


def meta_model(config):
    with torch.device("meta"):
        return small_model(config)


def num_parameters(weights) -> int:
    return sum(weight.num_parameters for weight in weights)


@in_turn("model_type, changes", VARIANTS)
def test_the_parameters_are_those_that_transformers_builds(model_type, changes):
    config = small_config(model_type, **changes)
    model = meta_model(config)
    weights = weight_list(config)
    if model_type.endswith(TEXT_ONLY):  # transformers builds these decoders without their head
        weights = [weight for weight in weights if weight.kind != "lm_head"]
    assert num_parameters(weights) == sum(parameter.numel() for parameter in model.parameters())


KIND_OF_NAME = (
    (".experts.", "expert"), ("shared_expert_gate", "router"), (".gate.weight", "router"), (".router.", "router"),
    ("layernorm", "norm"), ("norm.weight", "norm"), (".indexer.k_norm.bias", "norm"), (".indexer.", "indexer"),
    ("linear_attn", "recurrent"), ("self_attn", "attention"), ("mlp", "mlp"), ("feed_forward", "mlp"),
    ("embed_tokens", "embedding"), ("lm_head", "lm_head"),
)  # fmt: skip


@pytest.mark.parametrize(
    "model_type",
    [
        "llama",
        "qwen2",
        "gemma2",
        "olmo2",
        "mixtral",
        "qwen2_moe",
        "gpt_oss",
        "llama4_text",
        "deepseek_v32",
        "qwen3_next",
    ],
)
def test_every_kind_has_its_own_parameters(model_type):
    config = small_config(model_type)
    built = Counter()
    for name, parameter in meta_model(config).named_parameters():
        built[next(kind for part, kind in KIND_OF_NAME if part in name)] += parameter.numel()
    counted = Counter()
    for weight in weight_list(config):
        counted[weight.kind] += weight.num_parameters
    assert counted == built


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("Llama-3.1-8B", 8_030_261_248),
        ("Qwen3-30B-A3B", 30_532_122_624),
        ("DeepSeek-V3", 671_026_404_352),
        ("gpt-oss-20b", 20_914_757_184),
        ("Whisper-large-v3", 1_543_490_560),
    ],
)
def test_catalogue_sizes(name, published):
    """The whole model, built on the meta device at its real size."""
    assert weight_bytes(name).num_parameters == published
    fields = {key: value for key, value in find_model(name).config.items() if key != "quantization_config"}
    config = CONFIG_MAPPING[fields["model_type"]](**fields)
    if name != "Whisper-large-v3":
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        assert sum(parameter.numel() for parameter in model.parameters()) == published


def test_deepseek_v3_is_its_published_checkpoint_to_the_byte():
    """The Hub counts 3,918,786,560 BF16, 680,571,043,840 F8_E4M3 and 41,555,600 F32 elements in it.

    They include the layer for multi-token prediction and the routers' correction biases (buffers).
    """
    published = 2 * 3_918_786_560 + 680_571_043_840 + 4 * 41_555_600
    fields = find_model("DeepSeek-V3").config
    main = weight_bytes(fields).total
    one_more_layer = weight_bytes({**fields, "num_hidden_layers": 62}).total - main
    hidden, vocabulary = 7168, 129_280
    # Its own embedding and head, a projection of two hidden states to one, and three norms, all in bf16.
    mtp_only = 2 * (2 * vocabulary * hidden + 2 * hidden * hidden + 3 * hidden)
    correction_biases = 4 * 256 * (62 - 3)
    assert main + one_more_layer + mtp_only + correction_biases == published


@pytest.mark.parametrize(
    ("name", "total_size"), [("gpt-oss-20b", 13_761_264_768), ("gpt-oss-120b", 65_248_815_744)]
)
def test_gpt_oss_is_its_published_index_to_the_byte(name, total_size):
    assert weight_bytes(name).total == total_size


def test_deepseek_v4_in_bf16_has_float32_where_transformers_keeps_it():
    """284B and 1.6T parameters; norms, sinks, position biases and hyper-connections have 4 bytes an element."""
    counts = {
        "DeepSeek-V4-Flash": (284_332_230_231, 43, 4096),
        "DeepSeek-V4-Pro": (1_572_997_179_491, 61, 7168),
    }
    for name, (count, layers, hidden) in counts.items():
        weights = weight_bytes(name)
        assert weights.num_parameters == count
        mixing = layers * 2 * (24 * 4 * hidden + 24 + 3) + 4 * 4 * hidden + 4 + 1
        assert weights.parts["norm"] > 4 * mixing
        assert 2 * mixing < weights.total - 2 * count < 2.2 * mixing


# Fields that let 2, 4 and 8 ranks divide every width of the small configs.
EVEN = {
    "hidden_size": 64, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 16, "intermediate_size_mlp": 48, "vocab_size": 96,
    "linear_num_key_heads": 8, "linear_num_value_heads": 16, "moe_shared_expert_intermediate_size": 32,
    "vocab_size_per_layer_input": 96, "ffn_dim": 64, "global_head_dim": 16, "word_embed_proj_dim": 64,
    "encoder_attention_heads": 8, "decoder_attention_heads": 16, "d_model": 64, "mamba_num_heads": 16,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "o_groups": 8,
}  # fmt: skip


def even_config(model_type):
    fields = {**small_config(model_type).to_dict(), "dtype": "bfloat16"}
    names = set(fields) | set(getattr(CONFIG_MAPPING[model_type], "attribute_map", {}))
    return fields | {name: value for name, value in EVEN.items() if name in names}


@in_turn("model_type", sorted(WEIGHT_FAMILIES))
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_ranks_together_hold_the_model_and_their_copies(model_type, tp):
    fields = even_config(model_type)
    whole, rank = weight_list(fields), weight_list(fields, tp=tp)
    assert [(weight.name, weight.kind, weight.split) for weight in whole] == [
        (weight.name, weight.kind, weight.split) for weight in rank
    ]
    for before, after in zip(whole, rank, strict=True):
        if before.split == "replicated":
            assert after == before
        else:
            # KV heads may be on several ranks
            copied = before.kind == "attention" and before.split == "column"
            grouped = before.kind == "recurrent"  # and so may Mamba-2's groups
            assert tp * after.bytes >= before.bytes
            assert copied or grouped or tp * after.bytes == before.bytes
    assert sum(weight.bytes for weight in rank) < sum(weight.bytes for weight in whole)


def test_key_value_heads_are_copied_where_ranks_outnumber_them():
    rank = {weight.name: weight for weight in weight_list(LLAMA, tp=8)}
    prefix = "model.layers.{layer}.self_attn"
    assert rank[f"{prefix}.q_proj.weight"].shape == (64 // 8, 64)
    assert rank[f"{prefix}.k_proj.weight"].shape == (8, 64)  # one head of 8, on two ranks each
    assert rank[f"{prefix}.o_proj.weight"].shape == (64, 8)
    fused = {**LLAMA, "model_type": "phi3"}
    assert weight_list(fused, tp=8)[1].shape == (8 + 8 + 8, 64)


def test_the_vocabulary_is_padded_to_the_ranks():
    rank = {weight.name: weight for weight in weight_list({**LLAMA, "vocab_size": 1001}, tp=4)}
    assert rank["model.embed_tokens.weight"].shape == rank["lm_head.weight"].shape == (251, 64)
    tied = weight_list({**LLAMA, "tie_word_embeddings": True}, tp=4)
    assert "lm_head" not in {weight.kind for weight in tied}


def test_latent_attention_copies_its_down_projections_and_the_indexer():
    fields = even_config("deepseek_v32")
    rank = {weight.name.rsplit("self_attn.")[-1]: weight for weight in weight_list(fields, tp=4)}
    for name in ("q_a_proj", "kv_a_proj_with_mqa", "indexer.wq_b", "indexer.wk"):
        assert rank[f"{name}.weight"].split == "replicated"
    assert rank["kv_b_proj.weight"].shape[0] * 4 == 16 * (12 + 14)
    assert rank["o_proj.weight"].split == "row"


def test_a_tp_that_does_not_divide_is_refused_with_its_numbers():
    with pytest.raises(ArgumentError) as caught:
        weight_bytes({**LLAMA, "intermediate_size": 98, "num_key_value_heads": 8}, tp=4)
    assert caught.value.values == {"what": "intermediate_size", "value": 98, "tp": 4}
    with pytest.raises(ConfigError) as caught:
        weight_bytes({**LLAMA, "num_key_value_heads": 3}, tp=2)
    assert caught.value.code == "heads_do_not_divide"
    for tp in (0, -1, True, 2.0):
        with pytest.raises(ArgumentError):
            weight_bytes(LLAMA, tp=tp)


def test_whoever_knows_better_gives_the_bytes():
    unknown = {**LLAMA, "quantization_config": {"quant_method": "hqq"}}
    given = weight_bytes(unknown, tp=4, weight_bytes=12_345)
    assert (given.total, given.source) == (12_345, "given")
    with pytest.raises(ConfigError) as caught:
        weight_bytes({"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 2})
    assert caught.value.code == "weights_unknown"
    assert "--weight-bytes" in str(caught.value)
    assert weight_bytes({"model_type": "mamba"}, weight_bytes=7).num_parameters is None
    with pytest.raises(ArgumentError):
        weight_bytes(LLAMA, weight_bytes=0)


def test_a_given_total_is_shared_out_as_the_shapes_are():
    """Without the experts' part a decode floor would read all 128 experts of Qwen3-30B-A3B for one token."""
    shapes = weight_bytes("Qwen3-30B-A3B")
    assert weight_bytes("Qwen3-30B-A3B", weight_bytes=shapes.total).parts == shapes.parts
    assert weight_bytes("Qwen3-30B-A3B", weight_bytes=shapes.total).assumptions == ()
    for total in (1, 7, 999_999_937, shapes.total - 1, 3 * shapes.total):
        given = weight_bytes("Qwen3-30B-A3B", weight_bytes=total)
        assert sum(given.parts.values()) == total
        assert given.parts.keys() == shapes.parts.keys()
        for kind, part in given.parts.items():
            assert abs(part - total * shapes.parts[kind] / shapes.total) <= 1
        assert given.assumptions == (("parts_by_shapes", {"total": total}),)
    rank = weight_bytes(LLAMA, tp=8)
    assert weight_bytes(LLAMA, tp=8, weight_bytes=2 * rank.total).parts == {
        kind: 2 * part for kind, part in rank.parts.items()
    }


@pytest.mark.parametrize(
    ("config", "tp"),
    [
        ({"model_type": "mamba"}, 1),
        ({**LLAMA, "quantization_config": {"quant_method": "hqq"}}, 1),
        ({**LLAMA, "intermediate_size": 98, "num_key_value_heads": 8}, 4),
        ("Ministral-3-14B", 1),  # the catalogue lacks fields: a class default would be another model's size
    ],
    ids=["no shapes", "unknown quantization", "tp does not divide", "incomplete"],
)
def test_a_given_total_needs_no_shapes(config, tp):
    given = weight_bytes(config, tp=tp, weight_bytes=12_345)
    assert (given.total, given.parts, given.assumptions) == (12_345, {}, ())


def test_what_is_not_counted_is_said():
    whole = {
        "model_type": "qwen3_vl",
        "text_config": {**LLAMA, "model_type": "qwen3_vl_text"},
        "vision_config": {"depth": 2},
    }
    assert ("vision_not_counted", {"field": "vision_config"}) in weight_bytes(whole).assumptions
    assert weight_bytes("Gemma-3n-E4B").assumptions[-1][0] == "vision_not_counted"
    assert weight_bytes("DeepSeek-V3").assumptions == (("mtp_not_counted", {"layers": 1}),)
    for name in ("Gemma-3n-E4B", "DeepSeek-V3", "gpt-oss-20b"):
        for key, values in weight_bytes(name).assumptions:
            for lang in ("en", "zh"):
                assert text(f"weights.{key}", lang, **values)
    parts = weight_bytes("DeepSeek-V3", tp=8)
    assert sum(parts.parts.values()) == parts.total


def test_an_incomplete_catalogue_entry_is_refused():
    with pytest.raises(ConfigError) as caught:
        weight_bytes("Ministral-3-14B")
    assert caught.value.code == "catalogue_incomplete"


@pytest.mark.parametrize(("model_type", "part"), thirds(sorted(WEIGHT_FAMILIES)))
def test_a_hostile_config_never_gives_a_traceback(model_type, part):
    """Every field in turn is null, negative, a text or a list: an answer or an error of ours, nothing else."""
    fields = json.loads(small_config(model_type).to_json_string(use_diff=False))
    refused = set()
    for name in fields:
        for value in (None, -1, 0, 1.5, "x", [], [[]], {}, True)[part::3]:
            try:
                total = weight_bytes({**fields, name: value}).total
            except MiniKVError as error:
                refused.add(error.code)
            else:
                assert total > 0
    assert "bad_field" in refused
