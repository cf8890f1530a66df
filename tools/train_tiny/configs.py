"""What the tiny models are: two layers of width 128, one with grouped queries, one with latents."""

from typing import Any

from transformers import DeepseekV3Config, LlamaConfig, PreTrainedConfig

from minikv.models.recall import BOS, SPECIALS, WORDS

PAD = SPECIALS.index("<pad>")

_COMMON: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    # Far more than the training's 257 tokens, so that a lesson can watch what happens there.
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": BOS,
    "eos_token_id": None,
    "pad_token_id": PAD,
}

MODELS = ("tiny-gqa", "tiny-mla")


def config_of(name: str) -> PreTrainedConfig:
    """A new config of that model: Llama's with 2 KV heads, or DeepSeek-V3's without experts."""
    if name == "tiny-gqa":
        return LlamaConfig(**_COMMON, num_key_value_heads=2, head_dim=32)
    return DeepseekV3Config(
        **_COMMON,
        num_key_value_heads=4,
        kv_lora_rank=64,
        q_lora_rank=None,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        first_k_dense_replace=2,  # both layers are dense: experts would teach nothing about a cache
    )
