"""``block_configs`` of NVIDIA's searched Llamas (model_type nemotron-nas): what each layer has of attention and MLP.

The search has taken the attention out of some layers, or put a matrix in its place, given others more KV heads, and
each MLP a width of its own. The class comes with the checkpoint, not with transformers; the rules are those of vLLM's
``vllm/model_executor/models/nemotron_nas.py`` and of llama.cpp's ``conversion/deci.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minikv.errors import ConfigError
from minikv.plan.spec.config import Config

NAS = "nemotron-nas"
# What would change the cache in a way that no source describes.
_NOT_PLANNED = (
    "window_length",
    "num_sink_tokens",
    "use_prefill_window_in_sink_attention",
    "unshifted_sink",
    "sparsify",
)


@dataclass(frozen=True)
class Block:
    """One layer. ``kv_heads`` and ``inner`` (the MLP's width) are 0 where it has no such part.

    ``linear_attention``, ``linear_mlp``: a hidden x hidden matrix stands in that part's place.
    """

    kv_heads: int
    inner: int
    linear_attention: bool = False
    linear_mlp: bool = False

    @property
    def has_attention(self) -> bool:
        return bool(self.kv_heads) or self.linear_attention

    @property
    def has_mlp(self) -> bool:
        return bool(self.inner) or self.linear_mlp


def read_blocks(config: Config) -> list[Block] | None:
    """The layers of a nemotron-nas config; None for every other model.

    Raises ``ConfigError`` for an entry that is not understood.
    """
    if config.stated_type != NAS:
        return None
    stated = config.require("block_configs")
    if not isinstance(stated, list):
        raise config.refuse("block_configs", stated)
    layers = config.count("num_hidden_layers")
    if len(stated) != layers:
        raise ConfigError("block_count", name=config.name, listed=len(stated), stated=layers)
    return [_block(config, each) for each in stated]


def _block(config: Config, stated: Any) -> Block:
    parts = [stated.get(name) if isinstance(stated, Mapping) else None for name in ("attention", "ffn")]
    attention, ffn = parts
    if not isinstance(attention, Mapping) or not isinstance(ffn, Mapping):
        raise config.refuse("block_configs", stated)
    for name in _NOT_PLANNED:
        if attention.get(name):
            raise config.refuse(f"block_configs.attention.{name}", attention[name])
    kinds = [_kind(config, name, part) for name, part in (("attention", attention), ("ffn", ffn))]
    return Block(
        kv_heads=0 if kinds[0] else _kv_heads(config, attention),
        inner=0 if kinds[1] else _inner(config, ffn),
        linear_attention=kinds[0] == "replace_with_linear",
        linear_mlp=kinds[1] == "replace_with_linear",
    )


def _kind(config: Config, name: str, part: Mapping) -> str | None:
    """ "no_op", "replace_with_linear", or None for the part itself."""
    for kind in ("no_op", "replace_with_linear"):
        value = part.get(kind, False)
        if not isinstance(value, bool):
            raise config.refuse(f"block_configs.{name}.{kind}", value)
        if value:
            return kind
    return None


def _kv_heads(config: Config, attention: Mapping) -> int:
    heads = config.count("num_attention_heads")
    field = "block_configs.attention.n_heads_in_group"
    group = config.count(field, attention.get("n_heads_in_group"))
    if heads % group:
        raise config.refuse(field, group)
    return heads // group


def _inner(config: Config, ffn: Mapping) -> int:
    """``intermediate_size``, or 2/3 of ``ffn_mult`` times the hidden size, rounded up to whole steps of 256."""
    if "ffn_mult" not in ffn:
        return config.count("block_configs.ffn.intermediate_size", ffn.get("intermediate_size"))
    multiple = ffn["ffn_mult"]
    if isinstance(multiple, bool) or not isinstance(multiple, int | float) or not 0 < multiple < 1024:
        raise config.refuse("block_configs.ffn.ffn_mult", multiple)
    return -(-int(2 * multiple * config.count("hidden_size") / 3) // 256) * 256
