"""A small random model of every architecture that minikv knows, and of others, for the tests that ask transformers."""

import dataclasses

import torch
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
)

from minikv.plan.spec.architectures import ARCHITECTURES

# Awkward on purpose: no two sizes that a wrong formula could confuse are equal.
SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "num_hidden_layers": 6,
    "max_position_embeddings": 512,
    "sliding_window": 7,
    "attention_chunk_size": 9,
    "use_sliding_window": True,
    "max_window_layers": 2,
    # experts
    "moe_intermediate_size": 24,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "shared_expert_intermediate_size": 24,
    # MLA and its indexer
    "kv_lora_rank": 20,
    "q_lora_rank": 28,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 14,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 64,
    # recurrent layers
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "mamba_d_state": 5,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "conv_L_cache": 3,
    # Gemma 3n and 4
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": 97,
    "laurel_rank": 4,
    "altup_num_inputs": 2,
    "pad_token_id": 0,
}

_MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 12, "mamba_n_groups": 2, "mamba_d_state": 5}

# What a class asks for besides: the reason stands in its own checks.
EXTRA = {
    "bamba": {**_MAMBA2, "attn_layer_indices": [1, 4], "num_key_value_heads": 2, "head_dim": 8},
    "cohere2": {"num_attention_heads": 6},  # sets head_dim itself: hidden_size // heads
    "deepseek_v32": {"num_key_value_heads": 6},
    "deepseek_v2": {"num_key_value_heads": 6, "moe_layer_freq": 1},
    "deepseek_v3": {"num_key_value_heads": 6},
    "falcon_h1": {**_MAMBA2, "mamba_d_ssm": 96},
    "gemma3n_text": {
        "num_hidden_layers": 10,
        "num_kv_shared_layers": 4,
        "activation_sparsity_pattern": [0.0] * 10,
        "intermediate_size": 56,
    },
    "gemma4_text": {
        "num_hidden_layers": 12,
        "num_kv_shared_layers": 0,
        "global_head_dim": 20,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
    },
    "glm_moe_dsa": {"num_key_value_heads": 6, "indexer_types": ["full", "full", "shared"] * 2},
    "glm4_moe_lite": {"num_key_value_heads": 6},
    "gptj": {"rotary_dim": 8},
    "helium": {"head_dim": 8},
    "granitemoehybrid": {
        **_MAMBA2,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"] * 2,
        "shared_intermediate_size": 24,
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"] * 2, "block_ff_dim": 56},
    "llama4_text": {"intermediate_size_mlp": 56},
    "mamba": {"state_size": 5, "expand": 2},
    "falcon_mamba": {"state_size": 5, "expand": 2},
    "mamba2": {"num_heads": 8, "head_dim": 12, "n_groups": 2, "state_size": 5, "expand": 2},
    "mimo_v2_flash": {"num_attention_heads": 8},
    "minicpm3": {"num_key_value_heads": 6},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention", "full_attention"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 12,
        "n_groups": 2,
        "ssm_state_size": 5,
        "moe_shared_expert_intermediate_size": 24,
        "sliding_window": None,
    },
    "opt": {"ffn_dim": 56, "word_embed_proj_dim": 48},
    "qwen2_moe": {"use_sliding_window": False},
    **{
        name: {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
        for name in ("qwen2_vl_text", "qwen2_5_vl_text")
    },
    "qwen3_5_text": {"head_dim": 16},
    "qwen3_5_moe_text": {"head_dim": 16},
    "qwen3_next": {"head_dim": 16},
    "smollm3": {"use_sliding_window": False},
    "youtu": {"num_key_value_heads": 6},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1},
    "bart": {"encoder_layers": 2, "decoder_layers": 3, "d_model": 48, "encoder_attention_heads": 6,
             "decoder_attention_heads": 4, "encoder_ffn_dim": 56, "decoder_ffn_dim": 56},
    "whisper": {"encoder_layers": 2, "decoder_layers": 3, "d_model": 48, "encoder_attention_heads": 6,
                "decoder_attention_heads": 4, "encoder_ffn_dim": 56, "decoder_ffn_dim": 56, "num_mel_bins": 8,
                "max_source_positions": 11, "max_target_positions": 64, "suppress_tokens": None,
                "begin_suppress_tokens": None, "decoder_start_token_id": 1, "pad_token_id": 0,
                "bos_token_id": 1, "eos_token_id": 2},
    "t5": {"d_model": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "d_kv": 10, "d_ff": 56},
}  # fmt: skip
_ENCODERS = """bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta
    roberta-prelayernorm roformer xlm-roberta xlm-roberta-xl""".split()
# Decoders on no list, whose classes ask for more than SIZES or would be large without it.
EXTRA |= {
    **{name: {"num_key_value_heads": 6} for name in ("axk1", "axk2", "bailing_hybrid")},
    **{name: {"is_decoder": True} for name in _ENCODERS},
    "codegen": {"num_attention_heads": 4, "rotary_dim": 8},
    "ctrl": {"dff": 56},
    "inkling2_text": {"unpadded_vocab_size": 97},
    "deepseek_v4": {"num_key_value_heads": 1, "o_groups": 2, "o_lora_rank": 12, "head_dim": 16, "index_head_dim": 8,
                    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8}},
    "gpt_neo": {"attention_types": [[["global", "local"], 3]], "window_size": 7},
    "kimi_linear": {"num_key_value_heads": 6, "linear_head_dim": 8, "linear_num_heads": 6},
    "lfm2_moe": {"layer_types": ["full_attention", "conv", "full_attention"] * 2},
    "minimax": {"layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2, "block_size": 8,
                "sliding_window": None},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse", "full_attention"] * 2},
    "moshi": {"ffn_dim": 56},
    "rwkv": {"num_hidden_layers": 2, "rescale_every": 1},
    "xlstm": {"num_hidden_layers": 2, "hidden_size": 128, "num_heads": 4, "chunk_size": 16},
    "roc_bert": {"is_decoder": True, "pronunciation_vocab_size": 20, "shape_vocab_size": 20},
    "zamba2": {"layer_types": ["linear_attention", "hybrid"] * 3, "hybrid_layer_ids": [1, 3, 5],
               "mamba_headdim": 12, "n_mamba_heads": 8, "mamba_ngroups": 2},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
EXTRA |= {
    **{name: {"num_key_value_heads": 6} for name in ("glm5_next_text", "mistral4", "mistral_large4_text")},
    **{
        name: {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections}}
        for name, sections in {
            "glm4v_text": [1, 1, 2],
            "glm4v_moe_text": [1, 0, 1],
            "glm_ocr_text": [1, 1, 2],
            "paddleocr_vl_text": [1, 2, 2],
            "qwen2_5_omni_text": [1, 1, 2],
            "qwen3_omni_moe_text": [1, 2, 2],
        }.items()
    },
    "cosmos3_edge_text": {"head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                                                             "mrope_section": [2, 1, 1]}},
    "ernie4_5_vl_moe_text": {"moe_intermediate_size": [24, 24]},
}  # fmt: skip
# The other parts of a composite: its vision tower, its audio encoder.
TOWER = {
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 1,
    "num_layers": 1,
    "depth": 1,
    "encoder_layers": 1,
    "num_attention_heads": 6,
    "num_heads": 6,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 56,
    "out_hidden_size": 48,
    "embed_dim": 48,
    "d_model": 48,
    "projection_dim": 48,
    "vocab_size": 97,
}
# What parts and composites ask for besides.
EXTRA_OUTSIDE = {
    "muse_spark_audio": {"num_hidden_layers": 4},
    **{name: {"vision_start_token_id": 96} for name in ("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")},
}
# Decoders of vision models: transformers has them as bodies without a head.
TEXT_ONLY = ("_vl_text", "_vl_moe_text")
EXTRA["mbart"] = EXTRA["bart"]


def small_config(model_type: str, **changes) -> PreTrainedConfig:
    """A config of that architecture at SIZES; ``changes`` win."""
    config_class = CONFIG_MAPPING[model_type]
    sizes = _known(config_class, SIZES)
    return config_class(**{**sizes, **EXTRA.get(model_type, {}), **changes})


def small_decoder(model_type: str) -> PreTrainedConfig:
    """A config that a model with a head can be built of: the decoder's own, or of a composite with it inside."""
    from tools.decoders import composites

    alone = CONFIG_MAPPING[model_type] in MODEL_FOR_CAUSAL_LM_MAPPING or model_type in ARCHITECTURES
    return small_config(model_type) if alone else small_composite(composites()[model_type], model_type)


def small_composite(composite: str, model_type: str) -> PreTrainedConfig:
    """A config of the composite with a decoder of ``model_type`` at SIZES inside, and its other parts at TOWER."""
    if composite == model_type:
        return small_config(model_type)
    config_class = CONFIG_MAPPING[composite]
    usual = config_class()
    parts = {}
    for name in config_class.sub_configs:
        part = getattr(usual, name, None)
        if part is not None and part.model_type == model_type:
            parts[name] = small_config(model_type).to_dict()
        elif part is not None:
            extra = EXTRA_OUTSIDE.get(part.model_type, {})
            parts[name] = type(part)(**_known(type(part), TOWER) | extra).to_dict()
    return config_class(**parts, **EXTRA_OUTSIDE.get(composite, {}))


def _known(config_class: type[PreTrainedConfig], sizes: dict) -> dict:
    """Those of ``sizes`` that the class has a field for."""
    names = {field.name for field in dataclasses.fields(config_class)} | set(config_class.attribute_map)
    return {name: value for name, value in sizes.items() if name in names}


def small_model(config: PreTrainedConfig, dtype: torch.dtype = torch.float32):
    """A random model of ``config`` in eval mode."""
    torch.manual_seed(0)
    if config.is_encoder_decoder:
        if config.model_type == "whisper":
            from transformers import WhisperForConditionalGeneration

            return WhisperForConditionalGeneration(config).eval().to(dtype)
        return AutoModelForSeq2SeqLM.from_config(config).eval().to(dtype)
    return auto_class_of(config).from_config(config).eval().to(dtype)


def auto_class_of(config: PreTrainedConfig) -> type:
    """The class that builds a model of ``config`` with a head; ``AutoModel`` where transformers has none."""
    heads = (AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMultimodalLM)
    return next((auto for auto in heads if type(config) in auto._model_mapping), AutoModel)


DECODERS = sorted(name for name, row in ARCHITECTURES.items() if not row.encoder_decoder)
ENCODER_DECODERS = sorted(name for name, row in ARCHITECTURES.items() if row.encoder_decoder)
