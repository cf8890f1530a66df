"""Weights in another dtype than the checkpoint's, for ``minikv plan --weight-dtype int4``.

Fewer than 16 bits are counted as in a usual checkpoint, so each name stands for the ``quantization_config`` of such a
checkpoint; ``quantization`` does the arithmetic.
"""

from typing import Any

from minikv.errors import ArgumentError
from minikv.plan.dtypes import WEIGHT_DTYPES, find_dtype
from minikv.plan.spec.cache_spec import model_dtype_of
from minikv.plan.spec.config import Config
from minikv.plan.weights.quantization import Quantization, read_quantization

_QUANTIZED: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8"},
    "int8": {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "all": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}
        },
    },
    "int4": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}

WEIGHT_STORAGE = (*WEIGHT_DTYPES, *_QUANTIZED)


def stored_as(
    config: Config, weight_dtype: str, assumptions: list[tuple[str, dict[str, Any]]]
) -> tuple[str, Quantization | None]:
    """The dtype of the weights that are not quantized, and the quantization of the others (None: there are none).

    Records the meaning of the dtype in ``assumptions``. Raises ``ArgumentError`` for a name that is not in
    ``WEIGHT_STORAGE``.
    """
    name = str(weight_dtype).lower()
    if name in _QUANTIZED:
        assumptions.append((f"stored_{name}", {}))
        return model_dtype_of(config, assumptions), read_quantization(config, _QUANTIZED[name])
    try:
        dtype = find_dtype(weight_dtype)
    except ArgumentError:
        dtype = "auto"
    if dtype == "auto":
        known = ", ".join(WEIGHT_STORAGE)
        raise ArgumentError("unknown_choice", what="weight_dtype", value=weight_dtype, known=known)
    assumptions.append(("stored_plain", {"dtype": dtype}))
    return dtype, None
