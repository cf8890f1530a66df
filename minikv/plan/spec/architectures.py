"""Every architecture with a cache that minikv knows, and the LayerSpecs of its config.

An architecture that is absent here is refused by name: a model that "looks like Llama" has been wrong by 71x.
The truth test builds a small model of each row and compares with the bytes that transformers really holds.
Only a config that was measured needs no row: see ``measured.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from minikv.errors import ArgumentError, ConfigError
from minikv.plan.dtypes import KVDtype
from minikv.plan.spec.block_configs import read_blocks
from minikv.plan.spec.compressed import compressed_layers
from minikv.plan.spec.config import Config
from minikv.plan.spec.layer_kinds import (
    CONV,
    FULL,
    HYBRID,
    INDEXED,
    LINEAR,
    NONE,
    SLIDING,
    layer_kinds,
    shared_layers,
    window_of,
)
from minikv.plan.spec.layers import LayerSpec
from minikv.plan.spec.measured import measure_unknown
from minikv.plan.spec.states import conv_state, cross_attention, gated_delta_state, mamba1_state, mamba2_state


@dataclass(frozen=True)
class Context:
    """The arguments that a layer's bytes depend on besides the config: see ``CacheSpec.from_config``."""

    tp: int
    dtype: KVDtype
    model_itemsize: int
    layout: str
    encoder_tokens: int | None
    assumptions: list[tuple[str, dict[str, Any]]]

    def assume(self, key: str, **values: Any) -> None:
        if (key, values) not in self.assumptions:
            self.assumptions.append((key, values))


def split_heads(heads: int, tp: int) -> int:
    """KV heads on one rank: heads // tp, or 1 where tp is a multiple of the heads (they are replicated).

    Source: vLLM's get_num_kv_heads. Raises ``ConfigError`` where the two divide neither way.
    """
    if heads % tp and tp % heads:
        raise ConfigError("heads_do_not_divide", kv_heads=heads, tp=tp)
    return max(1, heads // tp)


def head_dim(config: Config) -> int:
    """Elements of one head: ``head_dim`` where it is set (absent or null in many), else hidden_size // heads."""
    stated = config.get("head_dim")
    if stated is not None:
        return config.count("head_dim", stated)
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    if hidden % heads:
        raise ConfigError("head_dim_fraction", name=config.name, hidden=hidden, heads=heads)
    return hidden // heads


def attention(config: Config, kind: str, index: int, context: Context) -> LayerSpec:
    """MHA, GQA and MQA: K and V of every KV head, whole or within a window."""
    per_layer = _per_layer(config, kind, index)
    # GPT-NeoX, OPT and other classes without the field ignore it in a config.
    stated = config.get("num_key_value_heads") if config.knows("num_key_value_heads") else None
    heads = per_layer.get("num_key_value_heads") or stated
    heads = config.count("num_key_value_heads", heads) if heads else config.count("num_attention_heads")
    k_dim = per_layer.get("head_dim") or head_dim(config)
    v_dim = k_dim
    if config.model_type == "mimo_v2_flash":
        # K and V differ in width, and the class gives sliding layers twice the KV heads.
        v_dim = config.count("v_head_dim")
        heads = 2 * heads if kind == SLIDING else heads
    own = config.model_type == "gemma4_text" and "num_key_value_heads" in per_layer
    own = own and config.get("per_layer_config") is None
    field = "num_global_key_value_heads" if own else "num_key_value_heads"
    _check_sharing(config, field, heads, index)
    window = window_of(config, kind)
    if window is not None and context.layout != "vllm":
        # A step's query sees itself and window - 1 cached tokens, and transformers keeps no more.
        context.assume("window_minus_one", kept=window - 1, window=window)
        window -= 1
    return _tokens(kind, split_heads(heads, context.tp), k_dim, v_dim, context, window=window)


def _check_sharing(config: Config, field: str, kv_heads: int, index: int) -> None:
    """Raise ``ConfigError`` unless each of the layer's ``kv_heads`` serves as many query heads as the others."""
    heads = config.count("num_attention_heads")
    if heads % kv_heads:
        values = {"heads": heads, "field": field, "kv_heads": kv_heads, "layer": index}
        raise ConfigError("heads_not_shared", name=config.name, **values)


def falcon(config: Config, kind: str, index: int, context: Context) -> LayerSpec:
    """Falcon: one head if ``multi_query``; transformers copies the newer decoder's heads to every query head."""
    heads = config.count("num_attention_heads")
    if config.get("new_decoder_architecture"):
        stated = config.count("num_kv_heads", config.get("num_kv_heads") or heads)
        _check_sharing(config, "num_kv_heads", stated, index)
        if context.layout == "vllm":
            heads = stated
        else:
            context.assume("falcon_broadcast", heads=heads)
    elif config.get("multi_query"):
        heads = 1
    elif config.get("num_kv_heads"):
        heads = config.count("num_kv_heads")
    return _tokens(kind, split_heads(heads, context.tp), head_dim(config), head_dim(config), context)


def gpt_bigcode(config: Config, kind: str, index: int, context: Context) -> LayerSpec:
    heads = 1 if config.get("multi_query") else config.count("num_attention_heads")
    return _tokens(kind, split_heads(heads, context.tp), head_dim(config), head_dim(config), context)


def latent(config: Config, kind: str, index: int, context: Context) -> LayerSpec:
    """MLA: one latent and one rope key a token, shared by all heads and copied to every rank.

    ``head_dim`` in these configs is the rope part (64), which no formula uses.
    """
    rank, rope = config.count("kv_lora_rank"), config.count("qk_rope_head_dim")
    if context.layout == "hf-expanded":
        heads = split_heads(config.count("num_attention_heads"), context.tp)
        k_dim = config.count("qk_nope_head_dim") + rope
        layer = _tokens(FULL, heads, k_dim, config.count("v_head_dim"), context)
    else:
        if context.tp > 1:
            context.assume("latent_replicated", tp=context.tp)
        layer = _tokens("latent", 1, rank, rope, context)
    if kind != INDEXED or not _runs_indexer(config, index):
        return layer
    index_dim = config.count("index_head_dim")
    layer = replace(layer, top_k=config.count("index_topk"))
    if context.layout == "vllm":
        # vLLM keeps the indexer key in fp8 with one float32 scale for each 128 elements.
        context.assume("vllm_indexer", dim=index_dim)
        if context.dtype.itemsize == 1:
            # vLLM's "fp8_ds_mla" keeps the rope key in bf16 and a float32 scale for each 128 latent elements:
            # 512 + 4 * 4 + 64 * 2 = 656 B a token (MLAAttentionSpec.real_page_size_bytes).
            layer = replace(layer, scale_bytes=0, format_bytes=rope + 4 * (rank // 128))
        return replace(layer, index_bytes=index_dim + 4 * max(1, index_dim // 128))
    context.assume("hf_indexer", dim=index_dim, itemsize=context.model_itemsize)
    return replace(layer, index_bytes=index_dim * context.model_itemsize)


def _runs_indexer(config: Config, index: int) -> bool:
    """GLM-5's later checkpoints let some layers reuse the tokens that an earlier layer's indexer chose."""
    types = config.get("indexer_types")
    if types is not None:
        if not isinstance(types, list) or index >= len(types) or types[index] not in ("full", "shared"):
            raise config.refuse("indexer_types", types)
        return types[index] == "full"
    if config.get("index_topk_pattern") is not None or (config.get("index_topk_freq") or 1) != 1:
        raise config.refuse(
            "index_topk_freq", config.get("index_topk_freq") or config.get("index_topk_pattern")
        )
    return True


_PER_LAYER_FIELDS = ("head_dim", "num_key_value_heads")


def _per_layer(config: Config, kind: str, index: int) -> dict[str, int]:
    """Heads and head_dim that differ by layer: Gemma 4's full layers in either form of its config, searched Llamas."""
    blocks = read_blocks(config)
    if blocks is not None:
        return {"num_key_value_heads": blocks[index].kv_heads}
    if config.model_type != "gemma4_text":
        return {}
    overrides = config.get("per_layer_config")
    if overrides is not None:
        try:
            mine = {int(layer): dict(values) for layer, values in overrides.items()}.get(index, {})
        except (AttributeError, TypeError, ValueError):
            raise config.refuse("per_layer_config", overrides) from None
        return {name: config.count(name, value) for name, value in mine.items() if name in _PER_LAYER_FIELDS}
    if kind != FULL:
        return {}
    # 512 is the default inside the class's __post_init__, where the generated table cannot see it.
    wide = config.get("global_head_dim") or config.assume("global_head_dim", 512)
    own = {"head_dim": config.count("global_head_dim", wide)}
    heads = config.get("num_global_key_value_heads") if config.get("attention_k_eq_v") else None
    return own | ({"num_key_value_heads": config.count("num_global_key_value_heads", heads)} if heads else {})


def _tokens(
    kind: str, heads: int, k_dim: int, v_dim: int, context: Context, window: int | None = None
) -> LayerSpec:
    dtype = context.dtype
    return LayerSpec(
        kind=kind,
        kv_heads=heads,
        k_dim=k_dim,
        v_dim=v_dim,
        itemsize=dtype.itemsize,
        scale_bytes=dtype.scale_bytes,
        window=window,
    )


Attention = Callable[[Config, str, int, Context], LayerSpec]
State = Callable[[Config, Context], int]


@dataclass(frozen=True)
class Architecture:
    """The cache of one model_type: its attention layers, and its recurrent layers if it has any."""

    attention: Attention = attention
    state: State | None = None
    encoder_decoder: bool = False
    compressed: bool = False


_PLAIN = """arcee cohere cohere2 ernie4_5 ernie4_5_moe exaone4 gemma gemma2 gemma3_text gemma3n_text gemma4_text
    glm glm4 glm4_moe gpt2 gpt_neox gpt_oss gptj granite granitemoe helium hunyuan_v1_dense hunyuan_v1_moe llama
    llama4_text mimo_v2_flash minimax_m2 ministral ministral3 mistral mixtral mpt nemotron olmo olmo2 olmo3 olmoe
    opt bloom persimmon phi phi3 phimoe qwen2 qwen2_moe qwen2_vl_text qwen2_5_vl_text qwen3 qwen3_moe
    qwen3_vl_text qwen3_vl_moe_text seed_oss smollm3 solar_open stablelm starcoder2""".split()

ARCHITECTURES: dict[str, Architecture] = {
    **{model_type: Architecture() for model_type in _PLAIN},
    "falcon": Architecture(falcon),
    "gpt_bigcode": Architecture(gpt_bigcode),
    "deepseek_v2": Architecture(latent),
    "deepseek_v3": Architecture(latent),
    "deepseek_v32": Architecture(latent),
    "deepseek_v4": Architecture(compressed=True),
    "glm4_moe_lite": Architecture(latent),
    "glm_moe_dsa": Architecture(latent),
    "minicpm3": Architecture(latent),
    "youtu": Architecture(latent),
    "qwen3_next": Architecture(state=gated_delta_state),
    "qwen3_5_text": Architecture(state=gated_delta_state),
    "qwen3_5_moe_text": Architecture(state=gated_delta_state),
    "jamba": Architecture(state=mamba1_state),
    "mamba": Architecture(state=mamba1_state),
    "falcon_mamba": Architecture(state=mamba1_state),
    "bamba": Architecture(state=mamba2_state),
    "falcon_h1": Architecture(state=mamba2_state),
    "granitemoehybrid": Architecture(state=mamba2_state),
    "mamba2": Architecture(state=mamba2_state),
    "nemotron_h": Architecture(state=mamba2_state),
    "lfm2": Architecture(state=conv_state),
    "bart": Architecture(encoder_decoder=True),
    "mbart": Architecture(encoder_decoder=True),
    "t5": Architecture(encoder_decoder=True),
    "whisper": Architecture(encoder_decoder=True),
}


def build_layers(
    config: Config,
    *,
    tp: int,
    dtype: KVDtype,
    model_itemsize: int,
    layout: str,
    encoder_tokens: int | None,
    assumptions: list[tuple[str, dict[str, Any]]],
) -> list[LayerSpec]:
    """The LayerSpec of every decoder layer, in order. Records assumptions in ``assumptions``."""
    architecture = ARCHITECTURES.get(config.model_type)
    context = Context(tp, dtype, model_itemsize, layout, encoder_tokens, assumptions)
    if architecture is None:
        found = measure_unknown(config, len(ARCHITECTURES))
        if tp > 1 and any(layer.state_bytes for layer in found):
            raise ConfigError("measured_tp", name=config.name, model_type=config.stated_type, tp=tp)
        _check_query_heads(config, tp)
        context.assume("measured", model_type=config.stated_type)
        return [_measured(layer, context) for layer in found]
    if architecture.encoder_decoder:
        return cross_attention(config, context, split_heads)
    if encoder_tokens is not None:
        raise ArgumentError("no_encoder", name=config.name, model_type=config.model_type)
    if config.get("use_bidirectional_attention") in (True, "all"):
        raise config.refuse("use_bidirectional_attention", config.get("use_bidirectional_attention"))
    kinds = [] if architecture.compressed else layer_kinds(config)
    shared = shared_layers(config, kinds) if kinds else {}
    layers = [_layer(config, architecture, kind, index, shared, context) for index, kind in enumerate(kinds)]
    layers = layers or compressed_layers(config, context)
    _check_query_heads(config, tp)
    if shared:
        context.assume("shared_layers", count=len(shared))
    return layers


def _check_query_heads(config: Config, tp: int) -> None:
    """Raise unless ``tp`` divides the query heads; latents and replicated KV heads, which they read, fit any tp."""
    query_heads = config.optional_count("num_attention_heads")
    if query_heads % tp:
        raise ConfigError("query_heads_do_not_divide", heads=query_heads, tp=tp)


def _measured(layer: LayerSpec, context: Context) -> LayerSpec:
    """A measured layer on one rank, in the dtype and layout that are asked for; its window counts the query too."""
    window, heads = layer.window, layer.kv_heads and split_heads(layer.kv_heads, context.tp)
    if window is not None and context.layout != "vllm":
        context.assume("window_minus_one", kept=window - 1, window=window)
        window -= 1
    dtype = context.dtype
    return replace(
        layer, window=window, kv_heads=heads, itemsize=dtype.itemsize, scale_bytes=dtype.scale_bytes
    )


def _layer(
    config: Config,
    architecture: Architecture,
    kind: str,
    index: int,
    shared: dict[int, int],
    context: Context,
) -> LayerSpec:
    if index in shared:
        return LayerSpec("shared", reads_layer=shared[index])
    if kind == NONE:
        return LayerSpec("none")
    if kind in (LINEAR, CONV, HYBRID):
        if architecture.state is None:
            raise config.refuse("layer_types", kind)
        state_bytes = architecture.state(config, context)
        if kind != HYBRID:
            return LayerSpec(kind, state_bytes=state_bytes)
        return replace(architecture.attention(config, HYBRID, index, context), state_bytes=state_bytes)
    return architecture.attention(config, kind, index, context)
