"""The bytes of a matrix in a quantized checkpoint: fewer bits an element, and the scales.

``quantization_config`` (``compression_config`` in some) has the method. Norms, embeddings, the lm_head, routers,
convolutions and biases stay in the model's dtype; so do the layers that the config excludes by name.
A method that is absent here is refused by name: the caller then gives the bytes.
"""

import fnmatch
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from minikv.errors import ConfigError
from minikv.plan.spec.config import Config

# Bytes of one matrix (out, in) on a rank, scales included.
MatrixBytes = Callable[[int, int], int]

FLOAT32 = 4
FLOAT16 = 2

# ModelOpt's names for quantizations of the KV cache.
KV_ALGORITHMS = {"FP8": "fp8", "INT8": "int8"}


@dataclass(frozen=True)
class Quantization:
    """The storage of a config's matrices. ``excluded`` are name patterns in the syntax ``style``:

    "transformers" (regex or suffix), "compressed" (exact, or a regex after ``re:``) or "shell" (wildcards).
    ``only_experts``: every other matrix stays in the model's dtype (MXFP4).
    """

    method: str
    matrix_bytes: MatrixBytes
    excluded: tuple[str, ...] = ()
    style: str = "transformers"
    only_experts: bool = False
    assumptions: tuple[tuple[str, dict[str, Any]], ...] = ()

    def covers(self, module: str, kind: str) -> bool:
        """Whether the layer of that name ("model.layers.3.mlp.up_proj") is stored in fewer bits."""
        if self.only_experts and kind != "expert":
            return False
        return not any(_matches(pattern, module, self.style) for pattern in self.excluded)


def read_quantization(config: Config, stated: Mapping | None = None) -> Quantization | None:
    """The config's quantization, or that of ``stated`` in its place; None where there is none.

    Raises ``ConfigError`` for a method that minikv cannot count, and for fields that it does not understand.
    """
    stated = _stated(config) if stated is None else stated
    if stated is None:
        return None
    method = stated.get("quant_method")
    read = _METHODS.get(method) if isinstance(method, str) else None
    if read is None:
        raise _unknown(config, method)
    return read(config, stated)


def kv_cache_quantization(config: Config) -> str | None:
    """The dtype that the checkpoint itself asks its KV cache to have: "fp8", "int8", or None where it asks nothing.

    compressed-tensors and ModelOpt write ``kv_cache_scheme``, older ModelOpt files ``kv_cache_quant_algo``.
    Both have one scale a tensor (``dtypes`` counts one a token and head for "int8": a little more); either may be
    the name alone ("FP8"). Raises ``ConfigError`` ("kv_scheme_unknown") for any other scheme (NVFP4, 4 bits, a zero
    point, a scale a token), and where the two fields contradict each other.
    """
    stated = _stated(config)
    if stated is None:
        return None
    # hf_quant_config.json keeps the fields one level deeper, and some configs copied it whole.
    inner = stated.get("quantization")
    levels = (stated, inner) if isinstance(inner, Mapping) else (stated,)
    asked: set[str] = set()
    for level in levels:
        scheme, algorithm = level.get("kv_cache_scheme"), level.get("kv_cache_quant_algo")
        if scheme is not None:
            asked.add(_kv_scheme(config, scheme))
        if algorithm is not None:
            asked.add(_kv_algorithm(config, algorithm))
    if len(asked) > 1:
        raise _unknown_scheme(config, "kv_cache_quant_algo", ", ".join(sorted(asked)))
    return asked.pop() if asked else None


def _kv_algorithm(config: Config, algorithm: Any, field: str = "kv_cache_quant_algo") -> str:
    dtype = KV_ALGORITHMS.get(algorithm.upper()) if isinstance(algorithm, str) else None
    if dtype is None:
        raise _unknown_scheme(config, field, algorithm)
    return dtype


def _kv_scheme(config: Config, scheme: Any) -> str:
    """The dtype of a ``kv_cache_scheme`` with one scale a tensor and no zero point, or of its name."""
    if not isinstance(scheme, Mapping):
        return _kv_algorithm(config, scheme, "kv_cache_scheme")
    if scheme.get("num_bits") == 8:
        dtype = {"float": "fp8", "int": "int8"}.get(str(scheme.get("type")))
        if dtype and scheme.get("strategy", "tensor") == "tensor" and scheme.get("symmetric", True) is True:
            return dtype
    raise _unknown_scheme(config, "kv_cache_scheme", scheme)


def _unknown_scheme(config: Config, field: str, value: Any) -> ConfigError:
    return ConfigError("kv_scheme_unknown", field=field, value=value, name=config.name)


def _stated(config: Config) -> Mapping | None:
    """The config's entry about its quantization; None where it has none."""
    stated = next(
        (
            fields[name]
            for name in ("quantization_config", "compression_config")
            for fields in (config.fields, config.whole)
            if fields.get(name)
        ),
        None,
    )
    if stated is not None and not isinstance(stated, Mapping):
        raise config.refuse("quantization_config", stated)
    return stated


def _unknown(config: Config, method: Any) -> ConfigError:
    return ConfigError("quantization_unknown", name=config.name, method=method, known=", ".join(_METHODS))


def _fp8(config: Config, stated: Mapping) -> Quantization:
    """DeepSeek's fp8: a byte an element and a float32 scale for each block; without blocks, one a matrix."""
    excluded = _names(config, stated, "modules_to_not_convert", "ignored_layers")
    block = stated.get("weight_block_size")
    if block is not None:
        rows, columns = _block_size(config, block)
        return Quantization("fp8", _blocks(rows, columns), excluded)
    scales = 2 if stated.get("activation_scheme") == "static" else 1
    return Quantization("fp8", lambda out, inp: out * inp + scales * FLOAT32, excluded)


def _blocks(rows: int, columns: int) -> MatrixBytes:
    return lambda out, inp: out * inp + FLOAT32 * math.ceil(out / rows) * math.ceil(inp / columns)


def _block_size(config: Config, block: Any) -> tuple[int, int]:
    if not (isinstance(block, list | tuple) and len(block) == 2):
        raise config.refuse("weight_block_size", block)
    return config.count("weight_block_size", block[0]), config.count("weight_block_size", block[1])


def _mxfp4(config: Config, stated: Mapping) -> Quantization:
    """gpt-oss: 4 bits an element and one byte (a shared exponent) for 32 of them, in the experts only."""

    def matrix_bytes(out: int, inp: int) -> int:
        return out * math.ceil(inp / 32) * (16 + 1)

    # gpt-oss's own list excludes everything but the experts, and transformers converts only them in any case.
    excluded = _names(config, stated, "modules_to_not_convert")
    return Quantization(
        "mxfp4", matrix_bytes, excluded, only_experts=True, assumptions=(("quant_mxfp4_unpadded", {}),)
    )


def _packed(config: Config, stated: Mapping) -> Quantization:
    """GPTQ and AWQ: packed integers, a float16 scale and a packed zero for each group of inputs of an output."""
    method = stated["quant_method"]
    bits = config.count("bits", stated.get("bits", stated.get("w_bit")))
    group = stated.get("group_size", stated.get("q_group_size", 128))
    if bits not in (2, 3, 4, 8):
        raise config.refuse("bits", bits)
    if group != -1:
        config.count("group_size", group)
    if stated.get("lm_head"):
        raise config.refuse("lm_head", stated["lm_head"])
    # GPTQ keeps the group of every input as an int32.
    order = 4 if method == "gptq" else 0

    def matrix_bytes(out: int, inp: int) -> int:
        groups = 1 if group == -1 else math.ceil(inp / group)
        packed = math.ceil(out * inp * bits / 8) + math.ceil(groups * out * bits / 8)
        return packed + groups * out * FLOAT16 + inp * order

    excluded = _names(config, stated, "modules_to_not_convert")
    said = ("quant_packed", {"method": method, "bits": bits, "group": group})
    return Quantization(method, matrix_bytes, excluded, assumptions=(said,))


def _bitsandbytes(config: Config, stated: Mapping) -> Quantization:
    """8 bits with a float32 scale an output, or 4 bits with a scale for each 64 elements.

    ``bnb_4bit_use_double_quant`` stores those scales in 8 bits with a float32 for each 256 of them.
    """
    excluded = _names(config, stated, "llm_int8_skip_modules")
    if not stated.get("load_in_4bit"):
        return Quantization("bitsandbytes", lambda out, inp: out * inp + FLOAT32 * out, excluded)
    double = bool(stated.get("bnb_4bit_use_double_quant"))

    def matrix_bytes(out: int, inp: int) -> int:
        blocks = math.ceil(out * inp / 64)
        # 16 float32 of the code book; with double quantization 256 more, and an offset.
        scales = blocks + FLOAT32 * (math.ceil(blocks / 256) + 256 + 1) if double else FLOAT32 * blocks
        return math.ceil(out * inp / 2) + scales + 16 * FLOAT32

    said = "quant_bitsandbytes_double" if double else "quant_bitsandbytes"
    return Quantization("bitsandbytes", matrix_bytes, excluded, assumptions=((said, {}),))


def _compressed(config: Config, stated: Mapping) -> Quantization:
    """compressed-tensors with one group of weights: integers or floats of 4 or 8 bits."""
    groups = stated.get("config_groups")
    weights = None
    if isinstance(groups, Mapping) and len(groups) == 1:
        (group,) = groups.values()
        if isinstance(group, Mapping) and group.get("targets") == ["Linear"]:
            weights = group.get("weights")
    if not isinstance(weights, Mapping):
        raise config.refuse("config_groups", groups)
    excluded = _names(config, stated, "ignore")
    return Quantization("compressed-tensors", _scheme(config, weights), excluded, style="compressed")


def _scheme(config: Config, weights: Mapping) -> MatrixBytes:
    """The bytes of a compressed-tensors weight scheme: type, bits, strategy and group size."""
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    zeros = 0 if weights.get("symmetric", True) else 1
    if bits == 8 and strategy == "tensor":
        return lambda out, inp: out * inp + FLOAT32
    if bits == 8 and strategy == "channel" and not zeros:
        return lambda out, inp: out * inp + FLOAT32 * out
    if bits == 8 and strategy == "block":
        return _blocks(*_block_size(config, weights.get("block_structure")))
    if bits == 4 and kind == "float" and weights.get("group_size") == 16:
        return _nvfp4
    if bits in (4, 8) and kind == "int" and strategy == "group":
        size = config.count("group_size", weights.get("group_size"))

        def packed(out: int, inp: int) -> int:
            groups = math.ceil(inp / size) * out
            # Two int64 keep the shape, which a packed matrix does not show.
            return (
                math.ceil(out * inp * bits / 8) + groups * FLOAT16 + math.ceil(zeros * groups * bits / 8) + 16
            )

        return packed
    raise config.refuse("config_groups", dict(weights))


def _nvfp4(out: int, inp: int) -> int:
    """4 bits an element, an fp8 scale for each 16, and two float32 scales a matrix (weight and input)."""
    return math.ceil(out * inp / 2) + out * math.ceil(inp / 16) + 2 * FLOAT32


def _modelopt(config: Config, stated: Mapping) -> Quantization:
    """NVIDIA ModelOpt: NVFP4, or FP8 with one scale a matrix for the weight and one for its input."""
    algorithms: dict[Any, MatrixBytes] = {
        "NVFP4": _nvfp4,
        "FP8": lambda out, inp: out * inp + 2 * FLOAT32,
    }
    matrix_bytes = algorithms.get(stated.get("quant_algo"))
    if matrix_bytes is None:
        raise _unknown(config, f"modelopt {stated.get('quant_algo')}")
    excluded = _names(config, stated, "ignore", "exclude_modules")
    return Quantization("modelopt", matrix_bytes, excluded, style="shell")


_METHODS: dict[str, Callable[[Config, Mapping], Quantization]] = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "gptq": _packed,
    "awq": _packed,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
}


def _names(config: Config, stated: Mapping, *fields: str) -> tuple[str, ...]:
    """The list of excluded modules, under the first of its names that the config has."""
    for field in fields:
        names = stated.get(field)
        if names is None:
            continue
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise config.refuse(field, names)
        # Composite models name their decoder's layers one level deeper than the decoder alone does.
        return tuple(name.replace("model.language_model.", "model.") for name in names)
    return ()


def _matches(pattern: str, module: str, style: str) -> bool:
    if style == "shell":
        return fnmatch.fnmatchcase(module, pattern)
    if style == "compressed":
        return bool(_regex(pattern[3:]).match(module)) if pattern.startswith("re:") else pattern == module
    # transformers: a regex from the start up to a dot, or the end of the name.
    return module.endswith(pattern) or bool(_regex(rf"(?:{pattern})(?:(?<=\.)|(?=\.|$))").match(module))


def _regex(pattern: str) -> re.Pattern:
    try:
        return re.compile(pattern)
    except re.error:
        return re.compile(re.escape(pattern))
