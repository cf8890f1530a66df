"""Llama and its many relatives: one skeleton, an attention, a feed-forward and a list of norms each.

Source of every shape: the classes of transformers 5.23; a test builds each of them and compares the counts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from minikv.plan.spec.architectures import head_dim
from minikv.plan.spec.block_configs import read_blocks
from minikv.plan.spec.config import Config
from minikv.plan.weights.shapes import (
    Cuts,
    Tensor,
    channels,
    flag,
    is_tied,
    key_value_heads,
    linear,
    norm,
    plain_mlp,
    query_heads,
    swish_mlp,
    vocabulary,
)

# A part of a layer: (config, layer index) -> its tensors.
Part = Callable[[Config, int], Iterator[Tensor]]

LAYER = "model.layers.{layer}"
TWO_NORMS = ("input_layernorm", "post_attention_layernorm")
AFTER_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
FOUR_NORMS = (*TWO_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")
GLM4_NORMS = (*TWO_NORMS, "post_self_attn_layernorm", "post_mlp_layernorm")


@dataclass(frozen=True)
class Decoder:
    """A decoder in which every layer is ``attention``, ``feed_forward`` and ``norms``."""

    attention: Part
    feed_forward: Part
    norms: tuple[str, ...] = TWO_NORMS
    norm_bias: bool = False
    final_norm: str = "model.norm"

    def __call__(self, config: Config) -> Iterator[Tensor]:
        hidden = config.count("hidden_size")
        yield vocabulary("model.embed_tokens", config, hidden, "embedding")
        for layer in range(config.count("num_hidden_layers")):
            yield from self.attention(config, layer)
            yield from self.feed_forward(config, layer)
            for name in self.norms:
                yield from norm(f"{LAYER}.{name}", layer, hidden, self.norm_bias)
        yield from norm(self.final_norm, None, hidden, self.norm_bias)
        if not is_tied(config):
            yield vocabulary("lm_head", config, hidden, "lm_head")


def kv_head_count(config: Config) -> int:
    """The number of KV heads; that of the query heads where the config leaves it out."""
    stated = config.get("num_key_value_heads")
    return config.count("num_attention_heads" if stated is None else "num_key_value_heads")


def attention(
    qkv_bias: str | bool = False,
    out_bias: str | bool | None = None,
    *,
    norms: str | None = None,
    norms_if: str | bool = True,
    norm_names: tuple[str, str] = ("q_norm", "k_norm"),
    gated: bool = False,
    sinks: bool = False,
    fused: bool = False,
) -> Part:
    """Softmax attention with ``num_key_value_heads``.

    The biases are constants or config fields (``out_bias`` None: as q, k and v). ``norms`` normalizes queries
    and keys, if the field ``norms_if`` is set: "head" (one weight shared by the heads), "heads" (one for each head)
    or "whole" (all heads at once). ``gated`` doubles q_proj; ``sinks`` adds a number for each head; ``fused`` stores
    q, k and v as one matrix.
    """

    def part(config: Config, layer: int) -> Iterator[Tensor]:
        prefix = f"{LAYER}.self_attn"
        hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
        kv_heads, dim = kv_head_count(config), head_dim(config)
        bias = flag(config, qkv_bias)
        queries = query_heads(heads, 2 * dim if gated else dim)
        keys = key_value_heads(kv_heads, dim)
        for name, out in _projections(queries, keys, fused):
            yield from linear(f"{prefix}.{name}", layer, out, hidden, "attention", bias)
        out_has_bias = bias if out_bias is None else flag(config, out_bias)
        yield from linear(
            f"{prefix}.o_proj", layer, hidden, query_heads(heads, dim), "attention", out_has_bias
        )
        if sinks:
            yield Tensor(f"{prefix}.sinks", layer, (query_heads(heads, 1),), "attention")
        if norms and flag(config, norms_if):
            for name, count in zip(norm_names, (heads, kv_heads), strict=True):
                yield from norm(f"{prefix}.{name}", layer, dim if norms == "head" else count * dim)

    return part


def _projections(queries: Cuts, keys: Cuts, fused: bool) -> list[tuple[str, Cuts]]:
    if fused:
        return [("qkv_proj", queries + keys + keys)]
    return [("q_proj", queries), ("k_proj", keys), ("v_proj", keys)]


def gated_mlp(bias: str | bool = False, *, fused: bool = False) -> Part:
    """SwiGLU or GeGLU of ``intermediate_size``; ``fused`` stores gate and up as one matrix."""

    def part(config: Config, layer: int) -> Iterator[Tensor]:
        prefix = f"{LAYER}.mlp"
        hidden, inner = config.count("hidden_size"), config.count("intermediate_size")
        if not fused:
            yield from swish_mlp(prefix, layer, hidden, inner, flag(config, bias))
            return
        both = channels("intermediate_size", inner, times=2)
        yield from linear(f"{prefix}.gate_up_proj", layer, both, hidden, "mlp")
        yield from linear(f"{prefix}.down_proj", layer, hidden, channels("intermediate_size", inner), "mlp")

    return part


def ungated_mlp(bias: str | bool = False, names: tuple[str, str] = ("up_proj", "down_proj")) -> Part:
    """Two matrices with an activation between them."""

    def part(config: Config, layer: int) -> Iterator[Tensor]:
        hidden, inner = config.count("hidden_size"), config.count("intermediate_size")
        yield from plain_mlp(f"{LAYER}.mlp", layer, hidden, inner, flag(config, bias), names)

    return part


def stablelm(config: Config) -> Iterator[Tensor]:
    """StableLM: LayerNorms; with ``use_parallel_residual`` only one a layer."""
    norms = TWO_NORMS[:1] if config.get("use_parallel_residual") else TWO_NORMS
    own = attention(
        "use_qkv_bias",
        False,
        norms="heads",
        norms_if="qk_layernorm",
        norm_names=("q_layernorm", "k_layernorm"),
    )
    return Decoder(own, gated_mlp(), norms, norm_bias=True)(config)


def llama(config: Config) -> Iterator[Tensor]:
    """Llama; a searched one (nemotron-nas) has parts and widths of its own in each layer."""
    blocks = read_blocks(config)
    if blocks is None:
        yield from _LLAMA(config)
        return
    hidden = config.count("hidden_size")
    attention_bias, mlp_bias = flag(config, "attention_bias"), flag(config, "mlp_bias")
    yield vocabulary("model.embed_tokens", config, hidden, "embedding")
    for layer, block in enumerate(blocks):
        own, mlp = f"{LAYER}.self_attn", f"{LAYER}.mlp"
        if block.has_attention:
            yield from norm(f"{LAYER}.input_layernorm", layer, hidden)
        if block.linear_attention:
            yield from linear(f"{own}.linear_attn", layer, hidden, hidden, "attention", attention_bias)
        elif block.kv_heads:
            heads, dim = config.count("num_attention_heads"), head_dim(config)
            keys = key_value_heads(block.kv_heads, dim)
            for name, out in _projections(query_heads(heads, dim), keys, fused=False):
                yield from linear(f"{own}.{name}", layer, out, hidden, "attention", attention_bias)
            yield from linear(
                f"{own}.o_proj", layer, hidden, query_heads(heads, dim), "attention", attention_bias
            )
        if block.has_mlp:
            yield from norm(f"{LAYER}.post_attention_layernorm", layer, hidden)
        if block.linear_mlp:
            yield from linear(f"{mlp}.linear_mlp", layer, hidden, hidden, "mlp", mlp_bias)
        elif block.inner:
            yield from swish_mlp(mlp, layer, hidden, block.inner, mlp_bias)
    yield from norm("model.norm", None, hidden)
    if not is_tied(config):
        yield vocabulary("lm_head", config, hidden, "lm_head")


_BOTH = attention("attention_bias")
_QKV = attention("attention_bias", False)
_QWEN2 = Decoder(attention(True, False), gated_mlp())
_QWEN3 = Decoder(attention("attention_bias", norms="head"), gated_mlp())
_MISTRAL = Decoder(attention(), gated_mlp())
_LLAMA = Decoder(_BOTH, gated_mlp("mlp_bias"))
_OLMO2 = Decoder(attention("attention_bias", norms="whole"), gated_mlp(), AFTER_NORMS)

DENSE: dict[str, Callable[[Config], Iterator[Tensor]]] = {
    "arcee": Decoder(_BOTH, ungated_mlp("mlp_bias")),
    "cohere": Decoder(
        attention("attention_bias", norms="heads", norms_if="use_qk_norm"), gated_mlp(), TWO_NORMS[:1]
    ),
    "cohere2": Decoder(_BOTH, gated_mlp(), TWO_NORMS[:1]),
    "ernie4_5": Decoder(attention("use_bias"), gated_mlp("use_bias")),
    "exaone4": Decoder(attention(norms="head"), gated_mlp(), AFTER_NORMS),
    "gemma": Decoder(_BOTH, gated_mlp()),
    "gemma2": Decoder(_BOTH, gated_mlp(), FOUR_NORMS),
    "gemma3_text": Decoder(attention("attention_bias", norms="head"), gated_mlp(), FOUR_NORMS),
    "glm": Decoder(_QKV, gated_mlp(fused=True)),
    "glm4": Decoder(_QKV, gated_mlp(fused=True), GLM4_NORMS),
    "granite": _LLAMA,
    "hunyuan_v1_dense": Decoder(
        attention("attention_bias", norms="head", norm_names=("query_layernorm", "key_layernorm")),
        gated_mlp("mlp_bias"),
    ),
    "llama": llama,
    "ministral": _MISTRAL,
    "ministral3": _MISTRAL,
    "mistral": _MISTRAL,
    "nemotron": Decoder(_BOTH, ungated_mlp("mlp_bias"), norm_bias=True),
    "olmo2": _OLMO2,
    "olmo3": _OLMO2,
    "phi3": Decoder(attention(fused=True), gated_mlp(fused=True)),
    "qwen2": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "seed_oss": Decoder(attention("attention_bias", "attention_out_bias"), gated_mlp("mlp_bias")),
    "smollm3": _LLAMA,
    "stablelm": stablelm,
    "starcoder2": Decoder(attention("use_bias"), ungated_mlp("use_bias", ("c_fc", "c_proj")), norm_bias=True),
}
