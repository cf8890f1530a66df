"""Weight bytes on one rank: from the checkpoint's own index, else from shapes, else from the caller.

    >>> weight_bytes("Llama-3.1-8B").num_parameters
    8030261248

The index is exact for the files. Shapes are exact for the parameters that transformers builds. Where both are missing,
the bytes have to be given (``--weight-bytes``); they are never guessed.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from minikv.errors import ArgumentError, ConfigError, check_count
from minikv.plan.catalog import find_model
from minikv.plan.dtypes import find_kv_dtype
from minikv.plan.spec.cache_spec import model_dtype_of
from minikv.plan.spec.config import Config, read_config
from minikv.plan.spec.measured import measured_parameters
from minikv.plan.weights.classic import CLASSIC
from minikv.plan.weights.compressed import deepseek_v4
from minikv.plan.weights.decoder import DENSE
from minikv.plan.weights.files import Checkpoint, folder_of, read_checkpoint
from minikv.plan.weights.gemma import GEMMA
from minikv.plan.weights.hybrid import RECURRENT_FAMILIES
from minikv.plan.weights.moe import MOE
from minikv.plan.weights.other_dtypes import stored_as
from minikv.plan.weights.quantization import Quantization, read_quantization
from minikv.plan.weights.shapes import Tensor

# Every model_type with weights that minikv can count from its config.
WEIGHT_FAMILIES: dict[str, Callable[[Config], Iterator[Tensor]]] = {
    **DENSE,
    **MOE,
    **RECURRENT_FAMILIES,
    **GEMMA,
    **CLASSIC,
    "deepseek_v4": deepseek_v4,
}

# A key of messages/weights.toml, and its values.
Assumption = tuple[str, dict[str, Any]]

_ENCODERS = ("vision_config", "audio_config")
_MTP_FIELDS = ("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers")


@dataclass(frozen=True)
class Weight:
    """``count`` equal tensors of one rank: same name but for ``{layer}``, same shape, same bytes.

    ``shape`` is (out, in) for a linear layer, (experts, out, in) for experts, on this rank. ``kind`` is
    "embedding", "attention", "indexer", "recurrent", "mlp", "expert", "router", "norm", "convolution" or
    "lm_head". ``split`` says how tensor parallelism cuts it: "column" (outputs), "row" (inputs), "vocab",
    "expert" (inside each expert) or "replicated". ``bytes_each`` counts one tensor with its quantization scales.
    """

    name: str
    shape: tuple[int, ...]
    count: int
    kind: str
    split: str
    bytes_each: int

    @property
    def num_parameters(self) -> int:
        """Elements of all ``count`` tensors."""
        return self.count * math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of all ``count`` tensors."""
        return self.count * self.bytes_each


@dataclass(frozen=True)
class WeightBytes:
    """The weights of one rank: ``total`` bytes, and the basis of the number.

    ``num_parameters`` counts the whole model (None where its shapes are not known). ``source`` is "index" (the
    checkpoint's files), "shapes" or "given". ``parts`` are bytes by kind and add up to ``total``: those of the shapes,
    or, for "index" and "given", the total in the proportions of the shapes; empty where no shapes are known.
    ``assumptions`` are keys of ``messages/weights.toml`` with their values.
    """

    total: int
    num_parameters: int | None
    source: str
    parts: dict[str, int] = field(default_factory=dict, hash=False)
    assumptions: tuple[Assumption, ...] = field(default=(), hash=False)


def weight_list(config: Any, *, tp: int = 1) -> list[Weight]:
    """The weights of one of ``tp`` ranks, equal ones together; a tied lm_head is counted once.

    KV heads are copied where ranks outnumber them. Norms, routers, MLA's down projections and indexers are on
    every rank. Every rank has a slice of each expert (no expert parallelism). The vocabulary is padded to a
    multiple of ``tp``. Buffers are not counted (a router's correction bias: 4 bytes an expert).

    Raises ``ConfigError`` ("weights_unknown") for an architecture without shapes and for an unknown
    quantization, ``ArgumentError`` for a ``tp`` that does not divide a dimension.
    """
    check_count("tp", tp)
    return _weights(read_config(config), tp, [])


def weight_bytes(
    config_or_path: Any, *, tp: int = 1, weight_bytes: int | None = None, weight_dtype: str | None = None
) -> WeightBytes:
    """The bytes of the weights on one of ``tp`` ranks.

    ``config_or_path`` is what ``CacheSpec.from_config`` takes. ``weight_bytes`` (bytes per rank), where given,
    is the answer. ``weight_dtype`` (a name of ``WEIGHT_STORAGE``), where given, makes the shapes answer, as if the
    checkpoint were stored so. Otherwise a local model folder answers with its safetensors index or headers: whole at
    tp 1, scaled by the ratio of the shapes above. Otherwise the shapes answer.

    Raises ``ConfigError`` where nothing can answer, ``ArgumentError`` for both ``weight_bytes`` and ``weight_dtype``,
    and what ``weight_list`` raises.
    """
    check_count("tp", tp)
    config = read_config(config_or_path)
    if weight_dtype is not None and weight_bytes is not None:
        raise ArgumentError("weight_dtype_and_bytes", dtype=weight_dtype, num_bytes=weight_bytes)
    if weight_bytes is not None:
        check_count("weight_bytes", weight_bytes)
        return _given(config_or_path, config, weight_bytes, tp)
    folder = folder_of(config_or_path)
    checkpoint = read_checkpoint(folder) if folder is not None and weight_dtype is None else None
    if checkpoint is not None:
        return _from_files(config, checkpoint, tp)
    missing = _missing_fields(config_or_path)
    if unknown := [name for name in missing if name not in _ENCODERS]:
        raise ConfigError("catalogue_incomplete", name=config.name, field=unknown[0])
    assumptions: list[Assumption] = []
    built = measured_parameters(config) if config.model_type not in WEIGHT_FAMILIES else None
    if built is not None and tp == 1 and weight_dtype is None and read_quantization(config) is None:
        assumptions.append(("parameters_of_meta", {"count": built}))
        itemsize = find_kv_dtype(model_dtype_of(config, assumptions)).itemsize
        return WeightBytes(built * itemsize, built, "shapes", {}, tuple(assumptions))
    parts = _by_kind(_weights(config, tp, assumptions, weight_dtype))
    encoder = next((name for name in _ENCODERS if config.whole.get(name) or name in missing), None)
    if encoder is not None:
        assumptions.append(("vision_not_counted", {"field": encoder}))
    if mtp := _mtp_layers(config):
        assumptions.append(("mtp_not_counted", {"layers": mtp}))
    return WeightBytes(sum(parts.values()), _num_parameters(config), "shapes", parts, tuple(assumptions))


def _given(source: Any, config: Config, total: int, tp: int) -> WeightBytes:
    """The caller's bytes, by kind where the shapes are known. A catalogue config that lacks fields has no shapes."""
    if any(name not in _ENCODERS for name in _missing_fields(source)):
        return WeightBytes(total, None, "given")
    assumptions: list[Assumption] = []
    parts = _shared_out(config, total, tp, assumptions)
    return WeightBytes(total, _num_parameters(config), "given", parts, tuple(assumptions))


def _from_files(config: Config, checkpoint: Checkpoint, tp: int) -> WeightBytes:
    """The bytes of all tensors in the files; per rank they shrink as the shapes do."""
    assumptions: list[Assumption] = []
    if checkpoint.files:
        assumptions.append(("files_counted", {"files": ", ".join(checkpoint.files)}))
    if mtp := _mtp_layers(config):
        assumptions.append(("files_hold_mtp", {"layers": mtp}))
    total = checkpoint.num_bytes
    if tp > 1:
        total = _on_rank(config, total, tp, assumptions)
    parts = _shared_out(config, total, tp, assumptions)
    return WeightBytes(total, _num_parameters(config), "index", parts, tuple(assumptions))


def _on_rank(config: Config, in_files: int, tp: int, assumptions: list[Assumption]) -> int:
    """The part of the files' bytes on one of ``tp`` ranks."""
    try:
        whole = sum(weight.bytes for weight in _weights(config, 1, []))
        rank = sum(weight.bytes for weight in _weights(config, tp, []))
    except ConfigError as error:
        if error.code not in ("weights_unknown", "quantization_unknown"):
            raise
        raise ConfigError("weights_not_divisible", name=config.name, tp=tp, total=in_files) from error
    assumptions.append(("scaled_by_shapes", {"rank": rank, "whole": whole}))
    # Rounded up: in a budget a byte too many is safe.
    return -(-in_files * rank // whole)


def _shared_out(config: Config, total: int, tp: int, assumptions: list[Assumption]) -> dict[str, int]:
    """``total`` bytes by kind, in the proportions of the shapes; empty where these are not known.

    Each part ends where its exact share ends, rounded down, so that the parts add up to ``total``.
    """
    try:
        shapes = _by_kind(_weights(config, tp, []))
    except (ArgumentError, ConfigError):
        # The total does not need them: it was given or read because there are no shapes.
        return {}
    whole = sum(shapes.values())
    if whole != total:
        assumptions.append(("parts_by_shapes", {"total": total}))
    parts: dict[str, int] = {}
    before = 0
    for kind, num_bytes in shapes.items():
        parts[kind] = total * (before + num_bytes) // whole - total * before // whole
        before += num_bytes
    return parts


def _by_kind(weights: list[Weight]) -> dict[str, int]:
    parts: dict[str, int] = {}
    for weight in weights:
        parts[weight.kind] = parts.get(weight.kind, 0) + weight.bytes
    return parts


def _weights(
    config: Config, tp: int, assumptions: list[Assumption], weight_dtype: str | None = None
) -> list[Weight]:
    if weight_dtype is None:
        quantization = read_quantization(config)
        dtype = model_dtype_of(config, assumptions)
    else:
        dtype, quantization = stored_as(config, weight_dtype, assumptions)
    tensors = _tensors(config)
    itemsize = find_kv_dtype(dtype).itemsize
    if quantization is not None:
        assumptions.extend(quantization.assumptions)
    counts: Counter[Weight] = Counter()
    for tensor in tensors:
        shape = tensor.shape(tp)
        stored = _stored_bytes(config, tensor, shape, itemsize, quantization)
        counts[Weight(tensor.name, shape, 1, tensor.kind, tensor.split, stored)] += 1
    return [replace(weight, count=count) for weight, count in counts.items()]


def _tensors(config: Config) -> Iterator[Tensor]:
    family = WEIGHT_FAMILIES.get(config.model_type)
    if family is None:
        raise ConfigError("weights_unknown", name=config.name, model_type=config.model_type)
    return family(config)


def _stored_bytes(
    config: Config, tensor: Tensor, shape: tuple[int, ...], itemsize: int, quantization: Quantization | None
) -> int:
    plain = math.prod(shape) * (tensor.itemsize or itemsize)
    if quantization is None or not tensor.quantizable:
        return plain
    if tensor.kind == "expert" and quantization.method == "bitsandbytes":
        # transformers 5 holds experts as one parameter, which bitsandbytes does not convert; vLLM's loader does.
        raise ConfigError("quantized_experts", name=config.name, method=quantization.method)
    module = tensor.name.removesuffix(".weight").format(layer=tensor.layer)
    if not quantization.covers(module, tensor.kind):
        return plain
    *experts, out_dim, in_dim = shape
    return math.prod(experts) * quantization.matrix_bytes(out_dim, in_dim)


def _missing_fields(source: Any) -> tuple[str, ...]:
    """Fields that the catalogue's own config of that name lacks, for which class defaults would be wrong."""
    if not isinstance(source, str) or source.endswith(".json") or Path(source).exists():
        return ()
    return find_model(source).missing


def _num_parameters(config: Config) -> int | None:
    """Parameters of the whole model, or None where its shapes are not known."""
    if config.model_type not in WEIGHT_FAMILIES:
        return None
    return sum(math.prod(tensor.shape(tp=1)) for tensor in _tensors(config))


def _mtp_layers(config: Config) -> int:
    """Layers for multi-token prediction, which checkpoints hold and transformers does not load."""
    return next((n for n in map(config.fields.get, _MTP_FIELDS) if isinstance(n, int) and n > 0), 0)
