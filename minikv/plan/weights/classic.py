"""GPT-2 and its generation, and Whisper: models with biases, LayerNorms and (most) learned positions."""

from collections.abc import Callable, Iterator

from minikv.errors import ConfigError
from minikv.plan.spec.architectures import head_dim
from minikv.plan.spec.config import Config
from minikv.plan.weights.shapes import (
    Cuts,
    Tensor,
    is_tied,
    key_value_heads,
    linear,
    norm,
    plain_mlp,
    query_heads,
    vocabulary,
)


def _positions(name: str, count: int, width: int) -> Tensor:
    """Learned positions: one row each, on every rank."""
    return Tensor(f"{name}.weight", None, (count, width), "embedding")


def _fused_heads(config: Config) -> tuple[int, Cuts, Cuts]:
    """Hidden size, the query heads, and q, k and v as one, for models with equal heads."""
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    queries = query_heads(heads, head_dim(config))
    return hidden, queries, queries * 3


def _head(config: Config, hidden: int) -> Iterator[Tensor]:
    if not is_tied(config):
        yield vocabulary("lm_head", config, hidden, "lm_head")


def gpt2(config: Config) -> Iterator[Tensor]:
    """GPT-2. Its matrices are stored transposed; the counts are the same."""
    hidden, queries, fused = _fused_heads(config)
    inner = config.get("n_inner")
    inner = 4 * hidden if inner is None else config.count("n_inner")
    if config.get("add_cross_attention"):
        raise config.refuse("add_cross_attention", True)
    yield vocabulary("transformer.wte", config, hidden, "embedding")
    yield _positions("transformer.wpe", config.count("max_position_embeddings"), hidden)
    for layer in range(config.count("num_hidden_layers")):
        prefix = "transformer.h.{layer}"
        yield from linear(f"{prefix}.attn.c_attn", layer, fused, hidden, "attention", bias=True)
        yield from linear(f"{prefix}.attn.c_proj", layer, hidden, queries, "attention", bias=True)
        yield from plain_mlp(f"{prefix}.mlp", layer, hidden, inner, bias=True, names=("c_fc", "c_proj"))
        for name in ("ln_1", "ln_2"):
            yield from norm(f"{prefix}.{name}", layer, hidden, bias=True)
    yield from norm("transformer.ln_f", None, hidden, bias=True)
    yield from _head(config, hidden)


def gpt_neox(config: Config) -> Iterator[Tensor]:
    """GPT-NeoX and Pythia."""
    hidden, queries, fused = _fused_heads(config)
    bias = bool(config.get("attention_bias"))
    yield vocabulary("gpt_neox.embed_in", config, hidden, "embedding")
    for layer in range(config.count("num_hidden_layers")):
        prefix = "gpt_neox.layers.{layer}"
        yield from linear(f"{prefix}.attention.query_key_value", layer, fused, hidden, "attention", bias)
        yield from linear(f"{prefix}.attention.dense", layer, hidden, queries, "attention", bias)
        inner = config.count("intermediate_size")
        names = ("dense_h_to_4h", "dense_4h_to_h")
        yield from plain_mlp(f"{prefix}.mlp", layer, hidden, inner, bias=True, names=names)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield from norm(f"{prefix}.{name}", layer, hidden, bias=True)
    yield from norm("gpt_neox.final_layer_norm", None, hidden, bias=True)
    yield from _head(config, hidden)


def bloom(config: Config) -> Iterator[Tensor]:
    """BLOOM: ALiBi, so no positions; a norm right after the embedding."""
    hidden, queries, fused = _fused_heads(config)
    yield vocabulary("transformer.word_embeddings", config, hidden, "embedding")
    yield from norm("transformer.word_embeddings_layernorm", None, hidden, bias=True)
    for layer in range(config.count("num_hidden_layers")):
        prefix = "transformer.h.{layer}"
        yield from linear(
            f"{prefix}.self_attention.query_key_value", layer, fused, hidden, "attention", bias=True
        )
        yield from linear(f"{prefix}.self_attention.dense", layer, hidden, queries, "attention", bias=True)
        names = ("dense_h_to_4h", "dense_4h_to_h")
        yield from plain_mlp(f"{prefix}.mlp", layer, hidden, 4 * hidden, bias=True, names=names)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield from norm(f"{prefix}.{name}", layer, hidden, bias=True)
    yield from norm("transformer.ln_f", None, hidden, bias=True)
    yield from _head(config, hidden)


def falcon(config: Config) -> Iterator[Tensor]:
    """Falcon: one KV head (``multi_query``), all of them, or ``num_kv_heads`` in the newer decoder."""
    hidden, queries, fused = _fused_heads(config)
    dim, bias = head_dim(config), bool(config.get("bias"))
    newer = bool(config.get("new_decoder_architecture"))
    if newer:
        fallback = config.count("num_attention_heads")
        stated = config.get("num_kv_heads")
        kv_heads = fallback if stated is None else config.count("num_kv_heads")
        fused = queries + key_value_heads(kv_heads, dim) * 2
    elif config.get("multi_query"):
        fused = queries + key_value_heads(1, dim) * 2
    inner = config.get("ffn_hidden_size")
    inner = 4 * hidden if inner is None else config.count("ffn_hidden_size")
    parallel_norms = config.get("num_ln_in_parallel_attn")
    if parallel_norms is None and newer:
        parallel_norms = 2
    norms = ("ln_attn", "ln_mlp") if parallel_norms == 2 else ("input_layernorm",)
    if not config.get("parallel_attn"):
        norms = ("input_layernorm", "post_attention_layernorm")
    yield vocabulary("transformer.word_embeddings", config, hidden, "embedding")
    for layer in range(config.count("num_hidden_layers")):
        prefix = "transformer.h.{layer}"
        yield from linear(f"{prefix}.self_attention.query_key_value", layer, fused, hidden, "attention", bias)
        yield from linear(f"{prefix}.self_attention.dense", layer, hidden, queries, "attention", bias)
        names = ("dense_h_to_4h", "dense_4h_to_h")
        yield from plain_mlp(f"{prefix}.mlp", layer, hidden, inner, bias, names)
        for name in norms:
            yield from norm(f"{prefix}.{name}", layer, hidden, bias=True)
    yield from norm("transformer.ln_f", None, hidden, bias=True)
    yield from _head(config, hidden)


def opt(config: Config) -> Iterator[Tensor]:
    """OPT: two more positions than it can use; OPT-350M has a narrower embedding and norms after the blocks."""
    hidden, queries, _ = _fused_heads(config)
    bias, affine = bool(config.get("enable_bias")), bool(config.get("layer_norm_elementwise_affine"))
    stated = config.get("word_embed_proj_dim")
    width = hidden if stated is None else config.count("word_embed_proj_dim")
    prefix = "model.decoder"
    yield vocabulary(f"{prefix}.embed_tokens", config, width, "embedding")
    yield _positions(f"{prefix}.embed_positions", config.count("max_position_embeddings") + 2, hidden)
    if width != hidden:
        yield from linear(f"{prefix}.project_in", None, hidden, width, "embedding", quantizable=False)
        yield from linear(f"{prefix}.project_out", None, width, hidden, "embedding", quantizable=False)
    for layer in range(config.count("num_hidden_layers")):
        block = f"{prefix}.layers.{{layer}}"
        for name in ("q_proj", "k_proj", "v_proj"):
            yield from linear(f"{block}.self_attn.{name}", layer, queries, hidden, "attention", bias)
        yield from linear(f"{block}.self_attn.out_proj", layer, hidden, queries, "attention", bias)
        yield from plain_mlp(block, layer, hidden, config.count("ffn_dim"), bias, ("fc1", "fc2"))
        if affine:
            for name in ("self_attn_layer_norm", "final_layer_norm"):
                yield from norm(f"{block}.{name}", layer, hidden, bias=True)
    if affine and config.get("do_layer_norm_before") and not config.get("_remove_final_layer_norm"):
        yield from norm(f"{prefix}.final_layer_norm", None, hidden, bias=True)
    yield from _head(config, width)


def whisper(config: Config) -> Iterator[Tensor]:
    """Whisper: an encoder after two convolutions, a decoder with cross-attention. k_proj has no bias."""
    hidden = config.count("d_model")
    bins = config.count("num_mel_bins")
    for name, inputs in (("conv1", bins), ("conv2", hidden)):
        yield Tensor(f"model.encoder.{name}.weight", None, (hidden, inputs, 3), "convolution")
        yield Tensor(f"model.encoder.{name}.bias", None, (hidden,), "convolution")
    yield _positions("model.encoder.embed_positions", config.count("max_source_positions"), hidden)
    yield from _whisper_layers(config, "encoder", hidden, ("self_attn",))
    yield vocabulary("model.decoder.embed_tokens", config, hidden, "embedding")
    yield _positions("model.decoder.embed_positions", config.count("max_target_positions"), hidden)
    yield from _whisper_layers(config, "decoder", hidden, ("self_attn", "encoder_attn"))
    if not is_tied(config):
        yield vocabulary("proj_out", config, hidden, "lm_head")


def _whisper_layers(config: Config, side: str, hidden: int, attentions: tuple[str, ...]) -> Iterator[Tensor]:
    heads, inner = config.count(f"{side}_attention_heads"), config.count(f"{side}_ffn_dim")
    if hidden % heads:
        raise ConfigError("head_dim_fraction", name=config.name, hidden=hidden, heads=heads)
    queries = query_heads(heads, hidden // heads)
    for layer in range(config.count(f"{side}_layers")):
        prefix = f"model.{side}.layers.{{layer}}"
        for own in attentions:
            for name in ("q_proj", "k_proj", "v_proj"):
                bias = name != "k_proj"
                yield from linear(f"{prefix}.{own}.{name}", layer, queries, hidden, "attention", bias)
            yield from linear(f"{prefix}.{own}.out_proj", layer, hidden, queries, "attention", bias=True)
            yield from norm(f"{prefix}.{own}_layer_norm", layer, hidden, bias=True)
        yield from plain_mlp(prefix, layer, hidden, inner, bias=True, names=("fc1", "fc2"))
        yield from norm(f"{prefix}.final_layer_norm", layer, hidden, bias=True)
    yield from norm(f"model.{side}.layer_norm", None, hidden, bias=True)


CLASSIC: dict[str, Callable[[Config], Iterator[Tensor]]] = {
    "bloom": bloom,
    "falcon": falcon,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "opt": opt,
    "whisper": whisper,
}
