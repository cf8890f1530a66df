"""A small constructed model with latents and an attention sink: as in large models, all attend to the first token."""

from typing import Any

import torch

from minikv.models.cache_argument import cache_argument, cache_in

TOKENS, FIRST = 97, 1  # of the vocabulary; and the token that begins every text

_SIZES = {
    "vocab_size": TOKENS,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 1,
    "first_k_dense_replace": 1,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": FIRST,
    "eos_token_id": None,
}


def model_with_a_sink(seed: int = 0) -> Any:
    """Return a DeepSeek-V3 of one layer and random weights, in eval mode; every query attends to token ``FIRST``.

    Element 0 of every other token's embedding is the same number, and only ``FIRST`` has one in element 1. Queries read
    the former into their first dimension. The latent reads the latter into its own first dimension, and ``kv_b_proj``
    brings it to the first dimension of every head's key and of no head's value. So ``FIRST`` gets attention, but adds
    nothing.
    """
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = DeepseekV3ForCausalLM(DeepseekV3Config(**_SIZES))
    model = model.eval().requires_grad_(False)
    attention, embedding = model.model.layers[0].self_attn, model.get_input_embeddings().weight
    embedding[:, 0], embedding[:, 1] = 2.0, 0.0
    embedding[FIRST] = 0.0
    embedding[FIRST, 1] = 2.0
    query = attention.q_proj.weight.view(4, -1, 64)
    query[:, :, :2], query[:, 0] = 0.0, 0.0
    query[:, 0, 0] = 3.0
    latent = attention.kv_a_proj_with_mqa.weight
    latent[:, :2], latent[0] = 0.0, 0.0
    latent[0, 1] = 4.0
    key_and_value = attention.kv_b_proj.weight.view(4, -1, 16)
    key_and_value[:, :, 0], key_and_value[:, 0] = 0.0, 0.0
    key_and_value[:, 0, 0] = 1.0
    return model


def texts(count: int, length: int, seed: int = 0) -> torch.Tensor:
    """Return int64 [count, length]: ``FIRST``, then random tokens."""
    ids = torch.randint(2, TOKENS, (count, length), generator=torch.Generator().manual_seed(seed))
    ids[:, 0] = FIRST
    return ids


@torch.no_grad()
def on_first(model: Any, ids: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Return the attention on the first token in %, and the likeliest next words [texts, length].

    It is a mean over layers, heads and the queries from 20 on.
    """
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    out = model(ids, output_attentions=True)
    model.set_attn_implementation(own)
    means = [float(each[:, :, 20:, 0].mean()) for each in out.attentions]
    return 100 * sum(means) / len(means), out.logits.argmax(-1)


@torch.no_grad()
def same_words(model: Any, ids: torch.Tensor, right: torch.Tensor, prompt: int = 40) -> float:
    """Return in % how many of the next words ``model``, which evicts, has as in ``right`` [texts, length].

    It reads ``prompt`` tokens in one forward and the others one by one.
    """
    cache, same, length = None, [], ids.shape[1]
    for start, end in [(0, prompt), *((step, step + 1) for step in range(prompt, length))]:
        out = model(ids[:, start:end], use_cache=True, **cache_argument(model, cache))
        cache = cache_in(out)
        same += (out.logits[:, -1].argmax(-1) == right[:, end - 1]).tolist()
    return 100 * sum(same) / len(same)
