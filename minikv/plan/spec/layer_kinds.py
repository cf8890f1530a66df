"""The kind of cache of each layer: read from ``layer_types``, or derived as the config class derives it.

Most hub configs leave ``layer_types`` out. Their classes then compute it in ``__post_init__``, each in its own
way; the functions below repeat those computations and a test compares them with the installed transformers.
"""

from collections.abc import Callable

from minikv.errors import ConfigError
from minikv.plan.spec.block_configs import read_blocks
from minikv.plan.spec.config import Config

FULL, SLIDING, CHUNKED, INDEXED = "full", "sliding", "chunked", "indexed"
LINEAR, CONV, HYBRID, NONE = "linear", "conv", "hybrid", "none"

# Names in `layer_types`, new and old, to ours. A name that is absent here is refused.
KIND_OF_TYPE = {
    "full_attention": FULL,
    "attention": FULL,
    "sliding_attention": SLIDING,
    "chunked_attention": CHUNKED,
    "indexed_attention": INDEXED,
    "deepseek_sparse_attention": INDEXED,
    "linear_attention": LINEAR,
    "mamba": LINEAR,
    "conv": CONV,
    "hybrid": HYBRID,
    "moe": NONE,
    "mlp": NONE,
}


def layer_kinds(config: Config) -> list[str]:
    """One kind a layer, for every decoder layer of ``config``.

    Raises ``ConfigError`` for a layer type that minikv does not understand, and for a list of another length than
    ``num_hidden_layers``.
    """
    stated = config.get("layer_types")
    if stated is None:
        derive = _DERIVED.get(config.model_type, _by_window)
        return derive(config)
    if not isinstance(stated, list):
        raise config.refuse("layer_types", stated)
    unknown = [name for name in stated if not isinstance(name, str) or name not in KIND_OF_TYPE]
    if unknown:
        raise config.refuse("layer_types", unknown[0])
    # Nemotron-H counts its layers by the list; every other class holds both and they have to agree.
    if config.model_type != "nemotron_h" and len(stated) != config.count("num_hidden_layers"):
        raise ConfigError(
            "layer_count", name=config.name, listed=len(stated), stated=config.count("num_hidden_layers")
        )
    return [KIND_OF_TYPE[name] for name in stated]


def window_of(config: Config, kind: str) -> int | None:
    """The number of tokens that the attention of a layer of this kind sees; None where it sees all of them."""
    if kind == SLIDING:
        # MiMo-V2-Flash's hub config counts the cached tokens only, its class the query too.
        cached = config.get("sliding_window_size") if config.model_type == "mimo_v2_flash" else None
        return cached + 1 if cached else config.count("sliding_window")
    if kind == CHUNKED:
        return config.count("attention_chunk_size")
    return None


def shared_layers(config: Config, kinds: list[str]) -> dict[int, int]:
    """For Gemma 3n and 4: ``{layer: the earlier layer with its K and V}``; empty for other models.

    The last ``num_kv_shared_layers`` layers store nothing; each reads the last storing layer of its own kind.
    """
    num_shared = config.count("num_kv_shared_layers", config.get("num_kv_shared_layers") or 0, least=0)
    first = len(kinds) - num_shared
    storing = kinds[:first]
    if num_shared and (first <= 0 or not set(kinds[first:]) <= set(storing)):
        raise config.refuse("num_kv_shared_layers", num_shared)
    return {i: max(j for j in range(first) if kinds[j] == kinds[i]) for i in range(first, len(kinds))}


def _by_window(config: Config) -> list[str]:
    """Every layer slides where ``sliding_window`` is set (Mistral, Phi-3, Starcoder 2)."""
    kind = SLIDING if config.get("sliding_window") is not None else FULL
    return [kind] * config.count("num_hidden_layers")


def _by_switch(config: Config) -> list[str]:
    """Qwen3-MoE: ``sliding_window`` counts only if ``use_sliding_window`` is set."""
    return _by_window(config) if config.get("use_sliding_window") else _all_full(config)


def _above_max_window_layers(config: Config) -> list[str]:
    """Qwen 2 and 3: with ``use_sliding_window``, the layers from ``max_window_layers`` on slide."""
    if not config.get("use_sliding_window") or config.get("sliding_window") is None:
        return _all_full(config)
    first = config.count("max_window_layers", least=0)
    return [SLIDING if i >= first else FULL for i in range(config.count("num_hidden_layers"))]


def _every_nth_full(nth: int | str, otherwise: str = SLIDING, default: int | None = None):
    """Layers n, 2n, 3n, … are full. ``nth`` is a number or the config field that holds it."""

    def derive(config: Config) -> list[str]:
        if isinstance(nth, int):
            n = nth
        else:
            stated = config.get(nth)
            n = config.assume(nth, default) if stated is None and default else config.count(nth, stated)
        return [FULL if (i + 1) % n == 0 else otherwise for i in range(config.count("num_hidden_layers"))]

    return derive


def _all_full(config: Config) -> list[str]:
    return [FULL] * config.count("num_hidden_layers")


def _all(kind: str) -> Callable[[Config], list[str]]:
    return lambda config: [kind] * config.count("num_hidden_layers")


def _gemma4(config: Config) -> list[str]:
    """Five sliding layers, then a full one; the last layer is always full."""
    return [*_every_nth_full(6)(config)[:-1], FULL]


def _llama(config: Config) -> list[str]:
    """Every layer is full; a searched Llama lists those without attention."""
    blocks = read_blocks(config)
    return _by_window(config) if blocks is None else [FULL if block.kv_heads else NONE for block in blocks]


def _llama4(config: Config) -> list[str]:
    """Layers with RoPE are chunked, those without are full: ``no_rope_layers`` is 1 where there *is* RoPE."""
    has_rope = config.get("no_rope_layers")
    if not has_rope:
        return _every_nth_full("no_rope_layer_interval", CHUNKED)(config)
    if not isinstance(has_rope, list) or len(has_rope) != config.count("num_hidden_layers"):
        raise config.refuse("no_rope_layers", has_rope)
    return [CHUNKED if rope else FULL for rope in has_rope]


def _exaone4(config: Config) -> list[str]:
    if config.get("sliding_window") is None:
        return _all_full(config)
    return _every_nth_full("sliding_window_pattern")(config)


def _smollm3(config: Config) -> list[str]:
    if not config.get("use_sliding_window") or config.get("sliding_window") is None:
        return _all_full(config)
    raise config.refuse("use_sliding_window", True)


def _qwen2_moe(config: Config) -> list[str]:
    if not config.get("use_sliding_window"):
        return _all_full(config)
    raise config.refuse("use_sliding_window", True)


def _jamba(config: Config) -> list[str]:
    period, offset = config.count("attn_layer_period"), config.count("attn_layer_offset", least=0)
    return [FULL if i % period == offset else LINEAR for i in range(config.count("num_hidden_layers"))]


def _bamba(config: Config) -> list[str]:
    full = config.get("attn_layer_indices") or []
    if not isinstance(full, list):
        raise config.refuse("attn_layer_indices", full)
    return [FULL if i in full else LINEAR for i in range(config.count("num_hidden_layers"))]


def _lfm2(config: Config) -> list[str]:
    full = config.get("full_attn_idxs")
    if full is not None and not isinstance(full, list):
        raise config.refuse("full_attn_idxs", full)
    layers = range(config.count("num_hidden_layers"))
    return [FULL if full is None or i in full else CONV for i in layers]


def _mimo_v2_flash(config: Config) -> list[str]:
    return [FULL if i == 0 or (i + 1) % 6 == 0 else SLIDING for i in range(config.count("num_hidden_layers"))]


def _nemotron_h(config: Config) -> list[str]:
    """A string, one letter a layer: M is Mamba-2, * is attention, E is experts, - is a plain MLP."""
    pattern = config.require("hybrid_override_pattern")
    kinds = {"M": LINEAR, "*": FULL, "E": NONE, "-": NONE}
    if not isinstance(pattern, str) or not set(pattern) <= set(kinds):
        raise config.refuse("hybrid_override_pattern", pattern)
    return [kinds[letter] for letter in pattern]


_gemma3 = _every_nth_full("sliding_window_pattern", default=6)
_linear_between = _every_nth_full("full_attention_interval", LINEAR, default=4)

_DERIVED: dict[str, Callable[[Config], list[str]]] = {
    "bamba": _bamba,
    "cohere2": _every_nth_full("sliding_window_pattern", default=4),
    "deepseek_v32": _all(INDEXED),
    "exaone4": _exaone4,
    "falcon_h1": _all(HYBRID),
    "falcon_mamba": _all(LINEAR),
    "gemma2": lambda c: [SLIDING if i % 2 == 0 else FULL for i in range(c.count("num_hidden_layers"))],
    "gemma3_text": _gemma3,
    "gemma3n_text": _every_nth_full(5),
    "gemma4_text": _gemma4,
    "glm_moe_dsa": _all(INDEXED),
    "gpt_oss": lambda c: [SLIDING if i % 2 == 0 else FULL for i in range(c.count("num_hidden_layers"))],
    "granitemoehybrid": _all(LINEAR),
    "jamba": _jamba,
    "lfm2": _lfm2,
    "llama": _llama,
    "llama4_text": _llama4,
    "mamba": _all(LINEAR),
    "mamba2": _all(LINEAR),
    "mimo_v2_flash": _mimo_v2_flash,
    "nemotron_h": _nemotron_h,
    "olmo3": _every_nth_full(4),
    "qwen2": _above_max_window_layers,
    "qwen2_moe": _qwen2_moe,
    "qwen2_vl_text": _above_max_window_layers,
    "qwen2_5_vl_text": _above_max_window_layers,
    "qwen3": _above_max_window_layers,
    "qwen3_5_moe_text": _linear_between,
    "qwen3_5_text": _linear_between,
    "qwen3_moe": _by_switch,
    "qwen3_next": _linear_between,
    "smollm3": _smollm3,
}
