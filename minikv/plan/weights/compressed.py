"""DeepSeek-V4: attention with one shared K = V, compressors, and residual streams side by side (hyper-connections)."""

from collections.abc import Iterator
from dataclasses import replace

from minikv.plan.spec.compressed import HEAVY, SPARSE, WINDOW, attention_types, compression_rate
from minikv.plan.spec.config import Config
from minikv.plan.weights.decoder import LAYER, Decoder
from minikv.plan.weights.moe import moe
from minikv.plan.weights.shapes import Tensor, channels, linear, norm, query_heads

FLOAT32 = 4  # bytes: what transformers keeps in float32 in a model of any dtype
_KEPT = ("sinks", "position_bias")


def deepseek_v4(config: Config) -> Iterator[Tensor]:
    """Every layer has experts and one expert for all tokens; norms, sinks and hyper-connections are float32."""
    types = attention_types(config)

    def attention(config: Config, layer: int) -> Iterator[Tensor]:
        yield from _attention(config, layer)
        if types[layer] != WINDOW:
            yield from _compressor(config, layer, types[layer])
        for name in ("attn_hc", "ffn_hc"):
            streams = config.count("hc_mult")
            yield from _mixing(config, f"{LAYER}.{name}", layer, (2 + streams) * streams, 3)

    for tensor in Decoder(attention, _MOE)(config):
        kept = tensor.kind == "norm" or any(name in tensor.name for name in _KEPT)
        yield replace(tensor, itemsize=FLOAT32) if kept else tensor
    for tensor in _mixing(config, "model.hc_head", None, config.count("hc_mult"), 1):
        yield replace(tensor, itemsize=FLOAT32)


_MOE = moe(experts="n_routed_experts", shared="moe_intermediate_size")


def _attention(config: Config, layer: int) -> Iterator[Tensor]:
    """Queries by a low rank, one K = V of all heads, and an output in groups of heads."""
    prefix, kind = f"{LAYER}.self_attn", "attention"
    hidden, heads, dim = (config.count(name) for name in ("hidden_size", "num_attention_heads", "head_dim"))
    rank, groups = config.count("q_lora_rank"), config.count("o_groups")
    if heads % groups:
        raise config.refuse("o_groups", groups)
    mixed = channels("o_groups", groups * config.count("o_lora_rank"), groups)
    yield from linear(f"{prefix}.q_a_proj", layer, rank, hidden, kind)
    yield from norm(f"{prefix}.q_a_norm", layer, rank)
    yield from linear(f"{prefix}.q_b_proj", layer, query_heads(heads, dim), rank, kind)
    yield from linear(f"{prefix}.kv_proj", layer, dim, hidden, kind)
    yield from norm(f"{prefix}.kv_norm", layer, dim)
    yield from linear(f"{prefix}.o_a_proj", layer, mixed, heads * dim // groups, kind)
    yield from linear(f"{prefix}.o_b_proj", layer, hidden, mixed, kind)
    yield Tensor(f"{prefix}.sinks", layer, (query_heads(heads, 1),), kind)


def _compressor(config: Config, layer: int, layer_type: str) -> Iterator[Tensor]:
    """What makes entries, whole on every rank; sparse layers' are of two windows, and have an indexer's too."""
    prefix, dim = f"{LAYER}.self_attn.compressor", config.count("head_dim")
    rate = compression_rate(config, layer_type)
    yield from _entries(config, prefix, layer, dim, 1 if layer_type == HEAVY else 2, rate, "attention")
    if layer_type != SPARSE:
        return
    heads, index = config.count("index_n_heads"), config.count("index_head_dim")
    yield from _entries(config, f"{prefix}.indexer", layer, index, 2, rate, "indexer")
    yield from linear(
        f"{prefix}.indexer.q_b_proj", layer, heads * index, config.count("q_lora_rank"), "indexer"
    )
    yield from linear(
        f"{prefix}.indexer.scorer.weights_proj",
        layer,
        heads,
        config.count("hidden_size"),
        "indexer",
        quantizable=False,
    )


def _entries(
    config: Config, prefix: str, layer: int, dim: int, windows: int, rate: int, kind: str
) -> Iterator[Tensor]:
    for name in ("kv_proj", "gate_proj"):
        yield from linear(
            f"{prefix}.{name}", layer, windows * dim, config.count("hidden_size"), kind, quantizable=False
        )
    yield Tensor(f"{prefix}.position_bias", layer, (rate, windows * dim), kind)
    yield from norm(f"{prefix}.kv_norm", layer, dim)


def _mixing(config: Config, prefix: str, layer: int | None, rows: int, scales: int) -> Iterator[Tensor]:
    """A hyper-connection: the weights with which all streams of a token are mixed. Counted with the norms."""
    streams = config.count("hc_mult")
    shapes = ((rows, streams * config.count("hidden_size")), (rows,), (scales,))
    for name, shape in zip(("fn", "base", "scale"), shapes, strict=True):
        yield Tensor(f"{prefix}.{'hc_' if layer is None else ''}{name}", layer, shape, "norm")
