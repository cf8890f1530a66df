"""Decoders with recurrent layers between their attention layers: Qwen3-Next and 3.5, Jamba, Nemotron-H."""

from collections.abc import Callable, Iterator

from minikv.plan.spec.config import Config
from minikv.plan.spec.layer_kinds import FULL, LINEAR, layer_kinds
from minikv.plan.weights.decoder import LAYER, Decoder, Part, attention, gated_mlp
from minikv.plan.weights.moe import by_step, moe
from minikv.plan.weights.shapes import (
    Cut,
    Tensor,
    channels,
    expert_weights,
    key_value_heads,
    linear,
    norm,
    plain_mlp,
    query_heads,
    vocabulary,
)

RECURRENT = "recurrent"


def _by_kind(full: Part, recurrent: Part) -> Part:
    """One of two parts, chosen by the layer's kind."""

    def part(config: Config, layer: int) -> Iterator[Tensor]:
        return recurrent(config, layer) if layer_kinds(config)[layer] == LINEAR else full(config, layer)

    return part


def gated_delta(config: Config, layer: int) -> Iterator[Tensor]:
    """Gated DeltaNet. Qwen3-Next stores its input projections as two matrices, Qwen3.5 as four."""
    prefix, hidden = f"{LAYER}.linear_attn", config.count("hidden_size")
    k_heads, v_heads = config.count("linear_num_key_heads"), config.count("linear_num_value_heads")
    keys = Cut("linear_num_key_heads", k_heads * config.count("linear_key_head_dim"), k_heads)
    v_dim = config.count("linear_value_head_dim")
    values = Cut("linear_num_value_heads", v_heads * v_dim, v_heads)
    heads = Cut("linear_num_value_heads", v_heads, v_heads)
    if config.model_type == "qwen3_next":
        inputs = {"in_proj_qkvz": (keys, keys, values, values), "in_proj_ba": (heads, heads)}
    else:
        inputs = {
            "in_proj_qkv": (keys, keys, values),
            "in_proj_z": (values,),
            "in_proj_b": (heads,),
            "in_proj_a": (heads,),
        }
    for name, cuts in inputs.items():
        yield from linear(f"{prefix}.{name}", layer, cuts, hidden, RECURRENT)
    kernel = config.count("linear_conv_kernel_dim")
    yield Tensor(f"{prefix}.conv1d.weight", layer, ((keys, keys, values), 1, kernel), RECURRENT)
    for name in ("dt_bias", "A_log"):
        yield Tensor(f"{prefix}.{name}", layer, ((heads,),), RECURRENT)
    yield from norm(f"{prefix}.norm", layer, v_dim)
    yield from linear(f"{prefix}.out_proj", layer, hidden, (values,), RECURRENT)


def mamba1(config: Config, layer: int) -> Iterator[Tensor]:
    """Jamba's Mamba-1, with norms on dt, B and C."""
    prefix, hidden = f"{LAYER}.mamba", config.count("hidden_size")
    size, state = config.count("mamba_expand") * hidden, config.count("mamba_d_state")
    rank = config.get("mamba_dt_rank")
    rank = -(-hidden // 16) if rank == "auto" else config.count("mamba_dt_rank", rank)
    inner = channels("mamba intermediate size", size)
    both = channels("mamba intermediate size", size, times=2)
    bias = bool(config.get("mamba_proj_bias"))
    yield from linear(f"{prefix}.in_proj", layer, both, hidden, RECURRENT, bias)
    yield Tensor(f"{prefix}.conv1d.weight", layer, (inner, 1, config.count("mamba_d_conv")), RECURRENT)
    if config.get("mamba_conv_bias"):
        yield Tensor(f"{prefix}.conv1d.bias", layer, (inner,), RECURRENT)
    yield from linear(f"{prefix}.x_proj", layer, rank + 2 * state, inner, RECURRENT)
    yield from linear(f"{prefix}.dt_proj", layer, inner, rank, RECURRENT, bias=True)
    yield Tensor(f"{prefix}.A_log", layer, (inner, state), RECURRENT)
    yield Tensor(f"{prefix}.D", layer, (inner,), RECURRENT)
    for name, width in (("dt", rank), ("b", state), ("c", state)):
        yield from norm(f"{prefix}.{name}_layernorm", layer, width)
    yield from linear(f"{prefix}.out_proj", layer, hidden, inner, RECURRENT, bias)


def _jamba_sparse(config: Config, layer: int) -> bool:
    period, offset = config.count("expert_layer_period"), config.count("expert_layer_offset", least=0)
    return config.count("num_experts") > 1 and layer % period == offset


def _mamba2(config: Config, layer: int, prefix: str) -> Iterator[Tensor]:
    """Nemotron-H's Mamba-2: one projection makes the gate z, x, B, C and dt."""
    hidden, heads = config.count("hidden_size"), config.count("mamba_num_heads")
    groups, size = config.count("n_groups"), heads * config.count("mamba_head_dim")
    inner = Cut("mamba_num_heads", size, heads)
    # B and C belong to groups of heads, which are copied where ranks outnumber them.
    group = Cut("n_groups", groups * config.count("ssm_state_size"), groups, copied=True)
    per_head = Cut("mamba_num_heads", heads, heads)
    bias = bool(config.get("use_bias"))
    yield from linear(
        f"{prefix}.in_proj", layer, (inner, inner, group, group, per_head), hidden, RECURRENT, bias
    )
    mixed = (inner, group, group)
    yield Tensor(f"{prefix}.conv1d.weight", layer, (mixed, 1, config.count("conv_kernel")), RECURRENT)
    if config.get("use_conv_bias"):
        yield Tensor(f"{prefix}.conv1d.bias", layer, (mixed,), RECURRENT)
    for name in ("dt_bias", "A_log", "D"):
        yield Tensor(f"{prefix}.{name}", layer, ((per_head,),), RECURRENT)
    yield from norm(f"{prefix}.norm", layer, size)
    yield from linear(f"{prefix}.out_proj", layer, hidden, (inner,), RECURRENT, bias)


def _nemotron_experts(config: Config, layer: int, prefix: str) -> Iterator[Tensor]:
    """Experts without a gate, in a narrower space where ``moe_latent_size`` is set."""
    hidden, experts = config.count("hidden_size"), config.count("n_routed_experts")
    bias = bool(config.get("mlp_bias"))
    width = hidden
    if config.get("moe_latent_size") is not None:
        width = config.count("moe_latent_size")
        yield from linear(f"{prefix}.fc1_latent_proj", layer, width, hidden, "mlp", bias)
        yield from linear(f"{prefix}.fc2_latent_proj", layer, hidden, width, "mlp", bias)
    yield from linear(f"{prefix}.gate", layer, experts, hidden, "router", quantizable=False)
    inner = config.count("moe_intermediate_size")
    yield from expert_weights(f"{prefix}.experts", layer, experts, width, inner, gated=False)
    shared = config.count("moe_shared_expert_intermediate_size")
    yield from plain_mlp(f"{prefix}.shared_experts", layer, hidden, shared, bias)


def nemotron_h(config: Config) -> Iterator[Tensor]:
    """Nemotron-H: each layer is a norm and one of Mamba-2, attention, experts or an MLP."""
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    dim = config.count("head_dim")
    stated = config.get("num_key_value_heads")
    kv_heads = heads if stated is None else config.count("num_key_value_heads")
    prefix = f"{LAYER}.mixer"
    yield vocabulary("model.embeddings", config, hidden, "embedding")
    for layer, kind in enumerate(_nemotron_kinds(config)):
        yield from norm(f"{LAYER}.norm", layer, hidden)
        if kind == LINEAR:
            yield from _mamba2(config, layer, prefix)
        elif kind == FULL:
            for name, out in (("q", query_heads(heads, dim)), ("k", None), ("v", None)):
                out = key_value_heads(kv_heads, dim) if out is None else out
                yield from linear(f"{prefix}.{name}_proj", layer, out, hidden, "attention")
            yield from linear(f"{prefix}.o_proj", layer, hidden, query_heads(heads, dim), "attention")
        elif kind == "moe":
            yield from _nemotron_experts(config, layer, prefix)
        else:
            inner = config.count("intermediate_size")
            yield from plain_mlp(prefix, layer, hidden, inner, bool(config.get("mlp_bias")))
    yield from norm("model.norm_f", None, hidden)
    # Its class ties nothing, whatever the value of tie_word_embeddings.
    yield vocabulary("lm_head", config, hidden, "lm_head")


def _nemotron_kinds(config: Config) -> list[str]:
    """``layer_kinds``, in which layers without a cache are "moe" or "mlp"."""
    kinds = layer_kinds(config)
    names = config.get("layer_types")
    if names is None:
        letters = config.require("hybrid_override_pattern")
        names = ["moe" if letter == "E" else "mlp" for letter in letters]
    return [kind if kind in (LINEAR, FULL) else str(name) for kind, name in zip(kinds, names, strict=True)]


_QWEN_MIXER = _by_kind(attention("attention_bias", norms="head", gated=True), gated_delta)
_QWEN_SHARED = "shared_expert_intermediate_size"

RECURRENT_FAMILIES: dict[str, Callable[[Config], Iterator[Tensor]]] = {
    "jamba": Decoder(
        _by_kind(attention(), mamba1),
        moe(inner="intermediate_size", sparse=_jamba_sparse, block="feed_forward", router="router"),
        norms=("input_layernorm", "pre_ff_layernorm"),
        final_norm="model.final_layernorm",
    ),
    "nemotron_h": nemotron_h,
    "qwen3_5_moe_text": Decoder(_QWEN_MIXER, moe(shared=_QWEN_SHARED, shared_is_gated=True)),
    "qwen3_5_text": Decoder(_QWEN_MIXER, gated_mlp()),
    "qwen3_next": Decoder(_QWEN_MIXER, moe(sparse=by_step, shared=_QWEN_SHARED, shared_is_gated=True)),
}
