"""Mixtures of experts, and multi-head latent attention (MLA), which so far is found only with them."""

from collections.abc import Callable, Iterator
from typing import Any

from minikv.plan.spec.config import Config
from minikv.plan.weights.decoder import LAYER, Decoder, Part, attention
from minikv.plan.weights.shapes import (
    Tensor,
    expert_weights,
    linear,
    norm,
    query_heads,
    swish_mlp,
)

IsSparse = Callable[[Config, int], bool]


def always(config: Config, layer: int) -> bool:
    return True


def by_step(config: Config, layer: int) -> bool:
    """Qwen: every ``decoder_sparse_step``-th layer has experts, those of ``mlp_only_layers`` have none."""
    step = config.count("decoder_sparse_step", config.get("decoder_sparse_step") or 1)
    return layer not in _indices(config, "mlp_only_layers") and (layer + 1) % step == 0


def after_first(config: Config, layer: int) -> bool:
    """DeepSeek and GLM: the first layers are dense; newer configs list each layer in ``mlp_layer_types``."""
    types = config.get("mlp_layer_types")
    if types is not None:
        return listed(config, "mlp_layer_types", types, layer) == "sparse"
    first = 1 if config.model_type == "glm4_moe_lite" else config.count("first_k_dense_replace", least=0)
    return layer >= first


def llama4_sparse(config: Config, layer: int) -> bool:
    """Llama 4: ``moe_layers``, or every ``interleave_moe_layer_step``-th layer."""
    if config.get("moe_layers") is not None:
        return layer in _indices(config, "moe_layers")
    return (layer + 1) % config.count("interleave_moe_layer_step") == 0


def _indices(config: Config, field: str) -> list[int]:
    """A list of layer numbers; a missing or null one is empty."""
    stated = config.get(field)
    if stated is not None and not isinstance(stated, list):
        raise config.refuse(field, stated)
    return stated or []


def listed(config: Config, field: str, values: Any, layer: int) -> Any:
    """Item ``layer`` of a list that has one item a layer. Raises ``ConfigError`` where it has fewer."""
    if not isinstance(values, list) or layer >= len(values):
        raise config.refuse(field, values)
    return values[layer]


def moe(
    *,
    experts: str = "num_experts",
    inner: str = "moe_intermediate_size",
    dense: str = "intermediate_size",
    sparse: IsSparse = always,
    shared: str | None = None,
    shared_is_gated: bool = False,
    block: str = "mlp",
    router: str = "gate",
    bias: bool = False,
) -> Part:
    """Experts in the ``sparse`` layers, a gated MLP of ``dense`` in the others.

    The other arguments are names of config fields: ``experts`` counts the routed experts, ``inner`` is the
    inner size of one. ``shared`` is the inner size of the shared expert, or "n_shared_experts": so many times
    ``inner``. ``shared_is_gated`` adds the one-row gate of Qwen's.
    """

    def part(config: Config, layer: int) -> Iterator[Tensor]:
        prefix, hidden = f"{LAYER}.{block}", config.count("hidden_size")
        if not sparse(config, layer):
            yield from swish_mlp(prefix, layer, hidden, config.count(dense))
            return
        num_experts, size = config.count(experts), config.count(inner)
        yield from linear(f"{prefix}.{router}", layer, num_experts, hidden, "router", bias, quantizable=False)
        yield from expert_weights(f"{prefix}.experts", layer, num_experts, hidden, size, bias=bias)
        if shared is None:
            return
        counted = shared == "n_shared_experts"
        # DeepSeek's configs write null where there is no shared expert.
        shared_inner = config.count(shared, config.get(shared) or 0, least=0) * (size if counted else 1)
        if shared_inner:
            name = "shared_experts" if counted else "shared_expert"
            yield from swish_mlp(f"{prefix}.{name}", layer, hidden, shared_inner)
        if shared_is_gated:
            yield from linear(f"{prefix}.shared_expert_gate", layer, 1, hidden, "router", quantizable=False)

    return part


def latent_attention(config: Config, layer: int) -> Iterator[Tensor]:
    """MLA. The down projections (q_a, kv_a) and the latent's norms are on every rank, the heads are cut."""
    prefix, kind = f"{LAYER}.self_attn", "attention"
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    rank, rope = config.count("kv_lora_rank"), config.count("qk_rope_head_dim")
    nope, v_dim = config.count("qk_nope_head_dim"), config.count("v_head_dim")
    bias = bool(config.get("attention_bias"))
    q_rank = config.get("q_lora_rank")
    queries = query_heads(heads, nope + rope)
    if q_rank is None:
        yield from linear(f"{prefix}.q_proj", layer, queries, hidden, kind)
    else:
        q_rank = config.count("q_lora_rank")
        yield from linear(f"{prefix}.q_a_proj", layer, q_rank, hidden, kind, bias)
        yield from norm(f"{prefix}.q_a_layernorm", layer, q_rank)
        yield from linear(f"{prefix}.q_b_proj", layer, queries, q_rank, kind)
    yield from linear(f"{prefix}.kv_a_proj_with_mqa", layer, rank + rope, hidden, kind, bias)
    yield from norm(f"{prefix}.kv_a_layernorm", layer, rank)
    yield from linear(f"{prefix}.kv_b_proj", layer, query_heads(heads, nope + v_dim), rank, kind)
    yield from linear(f"{prefix}.o_proj", layer, hidden, query_heads(heads, v_dim), kind, bias)


def sparse_latent_attention(config: Config, layer: int) -> Iterator[Tensor]:
    """DeepSeek Sparse Attention: MLA and, in the layers that run one, an indexer that every rank has whole."""
    yield from latent_attention(config, layer)
    types = config.get("indexer_types")
    if types is not None and listed(config, "indexer_types", types, layer) != "full":
        return
    if types is None and (
        config.get("index_topk_pattern") is not None or (config.get("index_topk_freq") or 1) != 1
    ):
        raise config.refuse("index_topk_freq", config.get("index_topk_freq"))
    prefix, kind = f"{LAYER}.self_attn.indexer", "indexer"
    heads, dim = config.count("index_n_heads"), config.count("index_head_dim")
    hidden = config.count("hidden_size")
    yield from linear(f"{prefix}.wq_b", layer, heads * dim, config.count("q_lora_rank"), kind)
    yield from linear(f"{prefix}.wk", layer, dim, hidden, kind)
    yield from norm(f"{prefix}.k_norm", layer, dim, bias=True)
    # The checkpoints do not store this small matrix in fp8, nor routers.
    yield from linear(f"{prefix}.weights_proj", layer, heads, hidden, kind, quantizable=False)


_DEEPSEEK_MOE = moe(experts="n_routed_experts", sparse=after_first, shared="n_shared_experts")
_QWEN3_MOE = Decoder(attention("attention_bias", norms="head"), moe(sparse=by_step))
_LATENT = Decoder(latent_attention, _DEEPSEEK_MOE)
_SPARSE_LATENT = Decoder(sparse_latent_attention, _DEEPSEEK_MOE)

MOE: dict[str, Callable[[Config], Iterator[Tensor]]] = {
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": _SPARSE_LATENT,
    "glm4_moe": Decoder(
        attention("attention_bias", False, norms="head", norms_if="use_qk_norm"), _DEEPSEEK_MOE
    ),
    "glm4_moe_lite": _LATENT,
    "glm_moe_dsa": _SPARSE_LATENT,
    "gpt_oss": Decoder(
        attention("attention_bias", sinks=True),
        moe(experts="num_local_experts", inner="intermediate_size", router="router", bias=True),
    ),
    "llama4_text": Decoder(
        attention("attention_bias"),
        moe(
            experts="num_local_experts",
            inner="intermediate_size",
            dense="intermediate_size_mlp",
            sparse=llama4_sparse,
            shared="intermediate_size",
            block="feed_forward",
            router="router",
        ),
    ),
    "minimax_m2": Decoder(
        attention(norms="whole"), moe(experts="num_local_experts", inner="intermediate_size")
    ),
    "mixtral": Decoder(attention(), moe(experts="num_local_experts", inner="intermediate_size")),
    "qwen2_moe": Decoder(
        attention("qkv_bias", False),
        moe(sparse=by_step, shared="shared_expert_intermediate_size", shared_is_gated=True),
    ),
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
}
