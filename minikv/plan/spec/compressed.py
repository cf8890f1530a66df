"""DeepSeek-V4: every layer has a window, and most keep the tokens behind it as one entry for each few of them.

"compressed_sparse_attention" makes an entry of every 4 tokens and lets an indexer choose which of them a query reads,
"heavily_compressed_attention" makes one of every 128 and reads all. Tokens wait, projected, until their entry can be
made. So the bytes of a sequence fall whenever one is made. K is V in these layers, and stored once.

Source: transformers' DeepseekV4HCACache and DeepseekV4CSACache; no other engine's layout is known here.
"""

from typing import TYPE_CHECKING

from minikv.errors import ConfigError
from minikv.plan.spec.config import Config
from minikv.plan.spec.layers import LayerSpec

if TYPE_CHECKING:
    from minikv.plan.spec.architectures import Context

BIAS_ITEMSIZE = 4  # float32
SPARSE, HEAVY, WINDOW = "compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"
_RATES = {SPARSE: 4, HEAVY: 128}  # the class's defaults, which it sets in __post_init__
_OLD_RATES = {SPARSE: "compress_rate_csa", HEAVY: "compress_rate_hca"}
_TYPE_OF_RATIO = {0: WINDOW, **{rate: name for name, rate in _RATES.items()}}


def compressed_layers(config: Config, context: "Context") -> list[LayerSpec]:
    """The window of each layer, and behind it its compressed entries, if it has any.

    Raises ``ConfigError`` for a layer type or rate that is not understood, and for another engine's layout.
    """
    if context.layout == "vllm":
        raise ConfigError("layout_unknown", name=config.name, model_type=config.model_type, layout="vllm")
    dim, window = config.count("head_dim"), config.count("sliding_window")
    context.assume("window_minus_one", kept=window - 1, window=window)
    stored = {"itemsize": context.dtype.itemsize, "scale_bytes": context.dtype.scale_bytes}
    layers = []
    for name in attention_types(config):
        shared = name != WINDOW
        layers.append(LayerSpec("sliding", 1, dim, 0 if shared else dim, **stored, window=window - 1))
        if shared:
            layers.append(_entries(config, name, dim, stored, context.model_itemsize))
    if any(layer.rate > 1 for layer in layers):
        context.assume("compressed")
    return layers


def _entries(config: Config, name: str, dim: int, stored: dict[str, int], itemsize: int) -> LayerSpec:
    """A layer's compressed entries, and what it holds of the tokens that wait for the next one.

    A waiting token has a K = V and a gate; sparse layers make each entry of two windows of tokens, so they have both
    twice, for the entry's K = V and for the indexer's key, and keep the last window's.
    All of that, and the indexer's key, is in the model's dtype, of ``itemsize`` bytes. Of the last window the gates are
    float32: they include the positions' bias, and transformers loads that in float32.
    """
    rate = compression_rate(config, name)
    if name == HEAVY:
        waiting = 2 * dim * itemsize
        return LayerSpec(
            "compressed", 1, dim, **stored, rate=rate, waiting_bytes=waiting, state_bytes=(rate - 1) * waiting
        )
    index = config.count("index_head_dim")
    waiting, last = 4 * (dim + index) * itemsize, rate * (dim + index) * (itemsize + BIAS_ITEMSIZE)
    return LayerSpec(
        "compressed",
        1,
        dim,
        **stored,
        index_bytes=index * itemsize,
        top_k=config.count("index_topk"),
        rate=rate,
        waiting_bytes=waiting,
        state_bytes=(rate - 1) * waiting + last,
    )


def attention_types(config: Config) -> list[str]:
    """The type of each layer: ``layer_types``, or the older ``compress_ratios``, or as the class alternates them."""
    count = config.count("num_hidden_layers")
    stated, field = config.get("layer_types"), "layer_types"
    if stated is None:
        stated, field = config.get("compress_ratios"), "compress_ratios"
        if isinstance(stated, list):
            # The last entries are those of layers that predict more tokens, which generation leaves out.
            stated = [
                _TYPE_OF_RATIO.get(each, each) if type(each) is int else each for each in stated[:count]
            ]
    if stated is None:
        return [HEAVY if index < 2 or index % 2 == 0 else SPARSE for index in range(count)]
    if not isinstance(stated, list):
        raise config.refuse(field, stated)
    for each in stated:
        if each not in (SPARSE, HEAVY, WINDOW):
            raise config.refuse(field, each)
    if len(stated) != count:
        raise ConfigError("layer_count", name=config.name, listed=len(stated), stated=count)
    return stated


def compression_rate(config: Config, name: str) -> int:
    """How many tokens an entry of a layer of this type is made of."""
    rates = config.get("compress_rates")
    if rates is not None and not isinstance(rates, dict):
        raise config.refuse("compress_rates", rates)
    stated = config.get(_OLD_RATES[name]) or (rates or {}).get(name) or _RATES[name]
    rate = config.count("compress_rates", stated, least=2)
    if not (rates or config.get(_OLD_RATES[name])):
        config.assume("compress_rates", _RATES)
    return rate
