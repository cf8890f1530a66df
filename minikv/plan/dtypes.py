"""How many bytes one cached element takes, with the scales that a quantized cache keeps beside it."""

from dataclasses import dataclass

from minikv.errors import ArgumentError


@dataclass(frozen=True)
class KVDtype:
    """A way to store cached elements.

    ``itemsize`` is bytes an element. ``scale_bytes`` is what each (token, KV head) keeps besides, for K and
    for V each: 0 where one scale serves a whole tensor, since those few bytes belong to the weights.
    """

    name: str
    itemsize: int
    scale_bytes: int = 0


KV_DTYPES = {
    dtype.name: dtype
    for dtype in (
        KVDtype("fp32", 4),
        KVDtype("bf16", 2),
        KVDtype("fp16", 2),
        # One scale a tensor, as vLLM's kv_cache_dtype="fp8" and static checkpoints have it. "fp8" is e4m3.
        KVDtype("fp8", 1),
        KVDtype("fp8_e5m2", 1),
        # One float32 scale for each token and KV head.
        KVDtype("fp8_scaled", 1, scale_bytes=4),
        KVDtype("int8", 1, scale_bytes=4),
    )
}

# The spellings of config.json, of torch and of vLLM's command line.
_OTHER_NAMES = {
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp8_e4m3": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8_e5m2",
}


def find_kv_dtype(name: str) -> KVDtype:
    """The dtype of that name ("bf16", "bfloat16", "torch.bfloat16", "fp8", …).

    Raises ``ArgumentError`` with the names that exist.
    """
    short = str(name).removeprefix("torch.").lower()
    found = KV_DTYPES.get(_OTHER_NAMES.get(short, short))
    if found is None:
        raise ArgumentError("unknown_choice", what="kv_dtype", value=name, known=", ".join(KV_DTYPES))
    return found
