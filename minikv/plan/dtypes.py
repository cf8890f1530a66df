"""The names of dtypes for the whole package, and the bytes of a cached element of each.

Every argument for a dtype takes the names of minikv ("bf16"), of config.json and vLLM ("bfloat16", "half"), and of
torch ("torch.bfloat16", or the object itself).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, Union, get_args

from minikv.errors import ArgumentError

if TYPE_CHECKING:
    import torch

# The first spelling is minikv's name.
_Fp32 = Literal["fp32", "float32", "float"]
_Bf16 = Literal["bf16", "bfloat16"]
_Fp16 = Literal["fp16", "float16", "half"]
# One scale a tensor, as vLLM's kv_cache_dtype="fp8" and static checkpoints have it. "fp8" is e4m3.
_Fp8 = Literal["fp8", "fp8_e4m3", "float8_e4m3fn"]
_Fp8E5M2 = Literal["fp8_e5m2", "float8_e5m2"]
# One float32 scale for each token and KV head.
_Fp8Scaled = Literal["fp8_scaled"]
_Int8 = Literal["int8"]

AnyDtype: TypeAlias = Union[Literal["auto"], _Fp32, _Bf16, _Fp16, "torch.dtype"]
"""What weights may be asked for in; "auto" is the file's own."""

AnyKVDtype: TypeAlias = Union[_Fp32, _Bf16, _Fp16, _Fp8, _Fp8E5M2, _Fp8Scaled, _Int8, "torch.dtype"]
"""What a cache may store."""


@dataclass(frozen=True)
class KVDtype:
    """A way to store cached elements.

    ``itemsize`` is bytes an element. ``scale_bytes`` are those of the scales of each (token, KV head), for K and
    for V each: 0 where one scale serves a whole tensor, since those few bytes count as weights.
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
        KVDtype("fp8", 1),
        KVDtype("fp8_e5m2", 1),
        KVDtype("fp8_scaled", 1, scale_bytes=4),
        KVDtype("int8", 1, scale_bytes=4),
    )
}
WEIGHT_DTYPES = ("fp32", "bf16", "fp16")

_SPELLINGS = map(get_args, (_Fp32, _Bf16, _Fp16, _Fp8, _Fp8E5M2, _Fp8Scaled, _Int8))
_NAMES = {spelled: names[0] for names in _SPELLINGS for spelled in names}


def _name(spelled: object) -> str | None:
    return _NAMES.get(str(spelled).lower().removeprefix("torch."))


def find_dtype(name: object) -> str:
    """ "fp32", "bf16" or "fp16" for any of its names; "auto" stays "auto".

    Raises ``ArgumentError`` with the names that exist.
    """
    found = "auto" if name == "auto" else _name(name)
    if found is None or found not in ("auto", *WEIGHT_DTYPES):
        known = ", ".join(("auto", *WEIGHT_DTYPES))
        raise ArgumentError("unknown_choice", what="dtype", value=name, known=known)
    return found


def find_kv_dtype(name: object) -> KVDtype:
    """The dtype of that name ("bf16", "bfloat16", "torch.bfloat16", torch.bfloat16, "fp8", …).

    Raises ``ArgumentError`` with the names that exist.
    """
    found = _name(name)
    if found is None:
        raise ArgumentError("unknown_choice", what="kv_dtype", value=name, known=", ".join(KV_DTYPES))
    return KV_DTYPES[found]
