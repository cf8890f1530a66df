"""Bytes of a sequence that do not depend on its length: recurrent states, convolution states, cross-attention.

A recurrent layer has no K and V. It keeps a state of fixed size and a short tail of inputs for its
convolution: ``conv_kernel`` columns in transformers, one fewer in vLLM. The recurrent state is float32 in
both (vLLM: ``mamba_ssm_dtype``), the tail has the model's dtype.
"""

from typing import TYPE_CHECKING

from minikv.errors import ArgumentError
from minikv.plan.spec.config import Config
from minikv.plan.spec.layers import LayerSpec

if TYPE_CHECKING:
    from minikv.plan.spec.architectures import Context

STATE_ITEMSIZE = 4  # float32


def _split(what: str, value: int, tp: int) -> int:
    if value % tp:
        raise ArgumentError("state_does_not_divide", what=what, value=value, tp=tp)
    return value // tp


def _state_bytes(context: "Context", channels: int, kernel: int, recurrent: int) -> int:
    """``channels`` x kernel elements of the model's dtype, and ``recurrent`` float32 elements."""
    columns = kernel - 1 if context.layout == "vllm" else kernel
    context.assume("state_dtype", columns=columns, kernel=kernel)
    return channels * columns * context.model_itemsize + recurrent * STATE_ITEMSIZE


def gated_delta_state(config: Config, context: "Context") -> int:
    """Gated DeltaNet (Qwen3-Next, Qwen3.5): a k_dim x v_dim matrix for each value head."""
    tp = context.tp
    k_heads = _split("linear_num_key_heads", config.count("linear_num_key_heads"), tp)
    v_heads = _split("linear_num_value_heads", config.count("linear_num_value_heads"), tp)
    k_dim, v_dim = config.count("linear_key_head_dim"), config.count("linear_value_head_dim")
    channels = 2 * k_heads * k_dim + v_heads * v_dim
    return _state_bytes(context, channels, config.count("linear_conv_kernel_dim"), v_heads * k_dim * v_dim)


def mamba1_state(config: Config, context: "Context") -> int:
    """Mamba-1 (Mamba, Falcon-Mamba, Jamba): ``state_size`` numbers for each inner channel."""
    if config.model_type == "jamba":
        inner = config.count("mamba_expand") * config.count("hidden_size")
        kernel, state = config.count("mamba_d_conv"), config.count("mamba_d_state")
    else:
        inner = config.optional_count("intermediate_size")
        inner = inner or config.count("expand") * config.count("hidden_size")
        kernel, state = config.count("conv_kernel"), config.count("state_size")
    inner = _split("mamba intermediate size", inner, context.tp)
    return _state_bytes(context, inner, kernel, inner * state)


# The same six sizes under the names that each class gives them.
_MAMBA2_FIELDS = {
    "nemotron_h": ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"),
    "mamba2": ("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel"),
}
_MAMBA2_DEFAULT = ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")


def mamba2_state(config: Config, context: "Context") -> int:
    """Mamba-2 (Bamba, Falcon-H1, Granite 4, Nemotron-H): a head_dim x state matrix for each head."""
    names = _MAMBA2_FIELDS.get(config.model_type, _MAMBA2_DEFAULT)
    heads_name, dim_name, groups_name, state_name, kernel_name = names
    heads = config.count(heads_name)
    dim = config.get(dim_name)
    if dim == "auto":
        inner = config.optional_count("mamba_d_ssm")
        inner = inner or config.count("mamba_expand") * config.count("hidden_size")
        dim = inner // heads
    dim = config.count(dim_name, dim)
    state = config.count(state_name)
    tp = context.tp
    heads = _split(heads_name, heads, tp)
    groups = config.count(groups_name)
    # Fewer groups than ranks are copied to every rank, as KV heads are.
    groups = max(1, groups // tp)
    channels = heads * dim + 2 * groups * state
    return _state_bytes(context, channels, config.count(kernel_name), heads * dim * state)


def conv_state(config: Config, context: "Context") -> int:
    """LFM2: only the tail of a short convolution, no recurrent state."""
    channels = _split("hidden_size", config.count("hidden_size"), context.tp)
    return _state_bytes(context, channels, config.count("conv_L_cache"), 0)


def cross_attention(config: Config, context: "Context", split_heads) -> list[LayerSpec]:
    """Encoder-decoder: each decoder layer has a growing self-attention and a cross-attention over the encoder."""
    if config.model_type == "t5":
        layers = config.get("num_decoder_layers") or config.count("num_layers")
        heads, dim = config.count("num_heads"), config.count("d_kv")
    else:
        layers, heads = config.count("decoder_layers"), config.count("decoder_attention_heads")
        dim = config.count("d_model") // heads
    frames = context.encoder_tokens
    if frames is None:
        if config.model_type != "whisper":
            raise ArgumentError("needs_encoder_tokens", name=config.name, model_type=config.model_type)
        # Whisper pads every input to 30 seconds, so its encoder always gives max_source_positions frames.
        frames = config.count("max_source_positions")
    context.assume("cross_attention", frames=frames)
    heads = split_heads(heads, context.tp)
    dtype = context.dtype
    own = LayerSpec("full", heads, dim, dim, dtype.itemsize, dtype.scale_bytes)
    cross = LayerSpec("cross", state_bytes=frames * own.token_bytes)
    return [layer for _ in range(layers) for layer in (own, cross)]
