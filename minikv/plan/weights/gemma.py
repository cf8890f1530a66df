"""Gemma 3n and 4: heads that differ by layer, layers without K and V, and per-layer inputs."""

from collections.abc import Callable, Iterator

from minikv.plan.dtypes import find_kv_dtype
from minikv.plan.spec.architectures import build_layers, head_dim
from minikv.plan.spec.config import Config
from minikv.plan.spec.layer_kinds import FULL, layer_kinds, shared_layers
from minikv.plan.weights.decoder import FOUR_NORMS, LAYER
from minikv.plan.weights.moe import listed
from minikv.plan.weights.shapes import (
    Tensor,
    expert_weights,
    is_tied,
    key_value_heads,
    linear,
    norm,
    query_heads,
    swish_mlp,
    vocabulary,
)


def gemma3n(config: Config) -> Iterator[Tensor]:
    """Gemma 3n: AltUp runs several copies of the hidden state, LAuReL adds a low-rank path.

    The small matrices of both, and the per-layer projections, are taken to be on every rank.
    """
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    dim, copies = head_dim(config), config.count("altup_num_inputs")
    kv_heads, extra = config.count("num_key_value_heads"), config.count("hidden_size_per_layer_input")
    bias, shared = bool(config.get("attention_bias")), shared_layers(config, layer_kinds(config))
    layers = config.count("num_hidden_layers")
    yield vocabulary("model.embed_tokens", config, hidden, "embedding")
    yield from per_layer_inputs(config, hidden, layers * extra, extra)
    for name in ("altup_projections", "altup_unembed_projections"):
        for copy in range(copies - 1):
            yield from linear(f"model.{name}.{copy}", None, hidden, hidden, "mlp")
    for layer in range(layers):
        prefix = f"{LAYER}.self_attn"
        yield from linear(f"{prefix}.q_proj", layer, query_heads(heads, dim), hidden, "attention", bias)
        yield from norm(f"{prefix}.q_norm", layer, dim)
        if layer not in shared:
            for name in ("k_proj", "v_proj"):
                keys = key_value_heads(kv_heads, dim)
                yield from linear(f"{prefix}.{name}", layer, keys, hidden, "attention", bias)
            yield from norm(f"{prefix}.k_norm", layer, dim)
        yield from linear(f"{prefix}.o_proj", layer, hidden, query_heads(heads, dim), "attention", bias)
        inner = config.require("intermediate_size")
        inner = listed(config, "intermediate_size", inner, layer) if isinstance(inner, list) else inner
        inner = config.count("intermediate_size", inner)
        yield from swish_mlp(f"{LAYER}.mlp", layer, hidden, inner)
        for name in FOUR_NORMS:
            yield from norm(f"{LAYER}.{name}", layer, hidden)
        yield from _altup(config, layer, hidden, copies)
        yield from per_layer_gates(layer, hidden, extra)
    yield from norm("model.norm", None, hidden)
    if not is_tied(config):
        yield vocabulary("lm_head", config, hidden, "lm_head")


def _altup(config: Config, layer: int, hidden: int, copies: int) -> Iterator[Tensor]:
    """AltUp's and LAuReL's weights in one layer."""
    prefix, rank = f"{LAYER}.altup", config.count("laurel_rank")
    yield Tensor(f"{prefix}.correct_output_scale", layer, (hidden,), "norm")
    yield from linear(f"{prefix}.correction_coefs", layer, copies, copies, "router", quantizable=False)
    yield from linear(f"{prefix}.prediction_coefs", layer, copies**2, copies, "router", quantizable=False)
    yield from linear(f"{prefix}.modality_router", layer, copies, hidden, "router", quantizable=False)
    yield from norm(f"{prefix}.router_norm", layer, hidden)
    yield from linear(f"{LAYER}.laurel.linear_left", layer, rank, hidden, "mlp")
    yield from linear(f"{LAYER}.laurel.linear_right", layer, hidden, rank, "mlp")
    yield from norm(f"{LAYER}.laurel.post_laurel_norm", layer, hidden)


def per_layer_inputs(config: Config, hidden: int, width: int, extra: int) -> Iterator[Tensor]:
    """Gemma 3n and 4: an embedding table with ``extra`` numbers for each token and layer."""
    name = "model.embed_tokens_per_layer"
    yield vocabulary(name, config, width, "embedding", field="vocab_size_per_layer_input")
    yield from linear("model.per_layer_model_projection", None, width, hidden, "mlp")
    yield from norm("model.per_layer_projection_norm", None, extra)


def per_layer_gates(layer: int, hidden: int, extra: int) -> Iterator[Tensor]:
    """The projections that bring a layer's part of that table into the layer."""
    yield from linear(f"{LAYER}.per_layer_input_gate", layer, extra, hidden, "mlp")
    yield from linear(f"{LAYER}.per_layer_projection", layer, hidden, extra, "mlp")
    yield from norm(f"{LAYER}.post_per_layer_input_norm", layer, hidden)


def gemma4(config: Config) -> Iterator[Tensor]:
    """Gemma 4: heads that differ by layer, layers without K and V, optional experts and per-layer inputs.

    The small per-layer projections are taken to be on every rank.
    """
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    bias = bool(config.get("attention_bias"))
    extra = config.get("hidden_size_per_layer_input")
    extra = config.count("hidden_size_per_layer_input", extra or 0, least=0)
    specs = build_layers(
        config,
        tp=1,
        dtype=find_kv_dtype("bf16"),
        model_itemsize=2,
        layout="vllm",
        encoder_tokens=None,
        assumptions=[],
    )
    kinds = layer_kinds(config)
    yield vocabulary("model.embed_tokens", config, hidden, "embedding")
    if extra:
        yield from per_layer_inputs(config, hidden, len(specs) * extra, extra)
    for layer, spec in enumerate(specs):
        prefix, shared = f"{LAYER}.self_attn", spec.reads_layer is not None
        spec = specs[spec.reads_layer] if spec.reads_layer is not None else spec
        dim = spec.k_dim
        yield from linear(f"{prefix}.q_proj", layer, query_heads(heads, dim), hidden, "attention", bias)
        yield from norm(f"{prefix}.q_norm", layer, dim)
        if not shared:
            keys = key_value_heads(spec.kv_heads, dim)
            # With attention_k_eq_v the full layers use the keys as values and have no v_proj.
            one = config.get("attention_k_eq_v") and kinds[layer] == FULL
            for name in ("k_proj",) if one else ("k_proj", "v_proj"):
                yield from linear(f"{prefix}.{name}", layer, keys, hidden, "attention", bias)
            yield from norm(f"{prefix}.k_norm", layer, dim)
        yield from linear(f"{prefix}.o_proj", layer, hidden, query_heads(heads, dim), "attention", bias)
        wide = 2 if shared and config.get("use_double_wide_mlp") else 1
        yield from swish_mlp(f"{LAYER}.mlp", layer, hidden, wide * config.count("intermediate_size"))
        for name in FOUR_NORMS:
            yield from norm(f"{LAYER}.{name}", layer, hidden)
        if extra:
            yield from per_layer_gates(layer, hidden, extra)
        if config.get("enable_moe_block"):
            yield from _gemma4_experts(config, layer, hidden)
    yield from norm("model.norm", None, hidden)
    if not is_tied(config):
        yield vocabulary("lm_head", config, hidden, "lm_head")


def _gemma4_experts(config: Config, layer: int, hidden: int) -> Iterator[Tensor]:
    """Experts beside the MLP, not instead of it, with three more norms."""
    experts, inner = config.count("num_experts"), config.count("moe_intermediate_size")
    yield from linear(f"{LAYER}.router.proj", layer, experts, hidden, "router", quantizable=False)
    yield Tensor(f"{LAYER}.router.scale", layer, (hidden,), "router")
    yield Tensor(f"{LAYER}.router.per_expert_scale", layer, (experts,), "router")
    yield from expert_weights(f"{LAYER}.experts", layer, experts, hidden, inner)
    for name in (
        "post_feedforward_layernorm_1",
        "post_feedforward_layernorm_2",
        "pre_feedforward_layernorm_2",
    ):
        yield from norm(f"{LAYER}.{name}", layer, hidden)


GEMMA: dict[str, Callable[[Config], Iterator[Tensor]]] = {"gemma3n_text": gemma3n, "gemma4_text": gemma4}
