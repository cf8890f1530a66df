"""The caches' checks before they touch a byte: tensors of new tokens, and lists of slots or blocks.

An index is checked where that costs nothing: in a list, a NumPy array or a CPU tensor. An index tensor on a GPU is not
read back, since that would make the CPU wait for everything queued before it.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from minikv.errors import ArgumentError


def check_tokens(what: str, x: Any, shape: tuple[int | None, ...], device: torch.device) -> None:
    """Raise ``ArgumentError`` unless ``x`` is a float tensor of that shape (None: any length) on ``device``."""
    expected = "[{}]".format(", ".join("T" if want is None else str(want) for want in shape))
    if not isinstance(x, Tensor):
        raise ArgumentError("cache_not_a_tensor", what=what, kind=type(x).__name__, expected=expected)
    if len(x.shape) != len(shape) or any(
        want is not None and have != want for have, want in zip(x.shape, shape, strict=True)
    ):
        raise ArgumentError("cache_shape", what=what, shape=list(x.shape), expected=expected)
    check_float(what, x.dtype)
    if x.device != device:
        raise ArgumentError("cache_device", what=what, device=x.device, expected=device)


def check_float(what: str, dtype: Any) -> None:
    """Raise ``ArgumentError`` unless ``dtype`` is a floating-point dtype of 16 bits or more."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize == 1:
        raise ArgumentError("cache_dtype", what=what, dtype=str(dtype).removeprefix("torch."))


def as_indices(what: str, values: Any, device: torch.device) -> Tensor:
    """Return ``values``, a list, a range, a NumPy array or a tensor, as an integer tensor on its present device.

    A tensor may be on the CPU or on ``device``.
    """
    if isinstance(values, Tensor):
        if values.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
            raise ArgumentError("cache_not_whole", what=what, value=str(values.dtype))
        if not values.is_cpu and values.device != device:
            raise ArgumentError("cache_device", what=what, device=values.device, expected=device)
        # Kernels take these two; and torch reads a uint8 index as a mask.
        return values if values.dtype in (torch.int64, torch.int32) else values.long()
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "iu":
            raise ArgumentError("cache_not_whole", what=what, value=f"{values.dtype}")
        if values.dtype == np.uint64:  # its largest would become -1 below
            values = np.minimum(values, np.uint64(2**63 - 1))
        # A copy, since the array may be read-only, or a row of a table that its owner goes on writing.
        return torch.from_numpy(values.astype(np.int64))
    if not isinstance(values, list | tuple | range):
        raise ArgumentError("cache_not_a_list", what=what, kind=type(values).__name__)
    for value in values:
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise ArgumentError("cache_not_whole", what=what, value=repr(value))
    try:
        return torch.tensor(values, dtype=torch.int64)
    except (RuntimeError, OverflowError, ValueError):
        raise ArgumentError("cache_not_whole", what=what, value="a number of more than 64 bits") from None


def check_range(what: str, indices: Tensor, low: int, high: int) -> None:
    """Raise ``ArgumentError`` naming the first index that is not from ``low`` to ``high``; on a GPU, check nothing."""
    if not indices.is_cpu or not indices.numel():
        return
    least, most = torch.aminmax(indices)
    if least < low or most > high:
        flat = indices.flatten()
        place = int(((flat < low) | (flat > high)).nonzero()[0])
        raise ArgumentError("cache_index", what=what, place=place, value=int(flat[place]), low=low, high=high)


def check_pairs(src: Tensor, dst: Tensor) -> None:
    """Raise ``ArgumentError`` unless each source has one destination, and no destination (of a row) has two sources."""
    if src.shape != dst.shape:
        raise ArgumentError("cache_pairs", src=list(src.shape), dst=list(dst.shape))
    if dst.is_cpu:
        ordered = dst.sort(-1).values
        twice = ordered[..., 1:] == ordered[..., :-1]
        if twice.any():
            raise ArgumentError("cache_twice", value=int(ordered[..., 1:][twice][0]))
