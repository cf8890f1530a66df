"""Codecs: how a cached element is stored, what it reads back as, and the largest error.

    >>> import torch
    >>> codec = find_codec("int8")
    >>> data, scale = codec.encode(torch.tensor([[0.5, -1.0, 0.25]]))
    >>> data.tolist(), [round(float(s), 6) for s in scale]
    ([[64, -127, 32]], [0.007874])

Plain codecs (fp32, bf16, fp16) and fp8 store each element by itself. The scaled ones (fp8_scaled, int8) have a
float32 scale for each row of head_dim elements, so that one large head or token does not cost the others their bits.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minikv.errors import ArgumentError
from minikv.kernels.quantize import SMALLEST_SCALE, cast, dequantize, largest, quantize
from minikv.plan.dtypes import find_kv_dtype

# The error of float32 arithmetic, on top of the rounding that is counted exactly: a division, a product and a clamp
# lose at most 2**-24 of their result each.
_ARITHMETIC = 2.0**-21


@dataclass(frozen=True)
class Codec:
    """One way to store K and V. ``scaled``: a float32 scale for each (token, KV head), for K and for V each.

    A finite number stays finite: too large a number is stored as the largest. An infinite one is too, unless the
    codec's dtype has the range of that of ``x``. NaN reads back as NaN; in a scaled codec it makes
    its whole row NaN.
    """

    name: str
    dtype: torch.dtype
    scaled: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return self.dtype.itemsize

    @property
    def scale_bytes(self) -> int:
        """Bytes of scale for each (token, KV head), for K and for V each."""
        return 4 if self.scaled else 0

    @property
    def reads_as(self) -> torch.dtype:
        """The default dtype of ``decode``: the stored one, and float32 where that has 8 bits."""
        return self.dtype if self.itemsize > 1 else torch.float32

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Encode float ``x`` [..., D] of 16 bits or more as (data [..., D], scale [...] float32 or None)."""
        return quantize(x, self.dtype) if self.scaled else (cast(x, self.dtype), None)

    def decode(self, data: Tensor, scale: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Return data [..., D] and its scale [...] as [..., D] of ``dtype`` (None: ``reads_as``)."""
        dtype = dtype or self.reads_as
        if self.scaled:
            if scale is None:
                raise ArgumentError("cache_needs_scales", dtype=self.name)
            return dequantize(data, scale, dtype)
        if self.itemsize == 1:  # float8 has no arithmetic of its own
            data = data.to(torch.float32)
        return cast(data, dtype)

    def error_bound(self, x: Tensor) -> Tensor:
        """The most by which each element of ``decode(*encode(x))`` differs from ``x`` [..., D], as float64 [..., D].

        Half the distance between neighbouring numbers that can be stored, at the place of each element:

            fp32, bf16, fp16, fp8    half_ulp(x), or |x| - largest above the largest number
            fp8_scaled               scale * half_ulp(x / scale)
            int8                     scale / 2

        with scale = max|row| / largest, and 2**-21 of |x| and of the scale for the float32 arithmetic. It holds for
        ``x`` within the range of float32, read as ``reads_as``, on a device that does not flush subnormal numbers.
        """
        exact = x.to(torch.float64)
        size = exact.abs()
        top = largest(self.dtype)
        if not self.scaled:
            source, stored = torch.finfo(x.dtype), torch.finfo(self.dtype)
            if source.max <= stored.max and source.eps >= stored.eps:
                return torch.zeros_like(size)  # every number of x's dtype can be stored
            # torch's float64 casts pass through float32 on their way to anything narrower.
            slack = size * 2.0**-24 if x.dtype == torch.float64 else 0.0
            return torch.where(size > top, size - top, _half_ulp(size, self.dtype)) + slack
        scale = (size.amax(-1, keepdim=True) / top).clamp(min=SMALLEST_SCALE)
        step = 0.5 if self.dtype == torch.int8 else _half_ulp(size / scale, self.dtype)
        return scale * step + (size + scale) * _ARITHMETIC


def _half_ulp(size: Tensor, dtype: torch.dtype) -> Tensor:
    """Return half the distance between the numbers of ``dtype`` around ``size`` (float64, not negative)."""
    info = torch.finfo(dtype)
    size = size.clamp(min=info.smallest_normal)  # below it the distance stays the same
    mantissa = torch.frexp(size).mantissa  # in [0.5, 1), so size / mantissa is a power of two
    return size / mantissa * (info.eps / 4)


CODECS = {
    codec.name: codec
    for codec in (
        Codec("fp32", torch.float32),
        Codec("bf16", torch.bfloat16),
        Codec("fp16", torch.float16),
        Codec("fp8", torch.float8_e4m3fn),
        Codec("fp8_e5m2", torch.float8_e5m2),
        Codec("fp8_scaled", torch.float8_e4m3fn, scaled=True),
        Codec("int8", torch.int8, scaled=True),
    )
}


def find_codec(name: Any) -> Codec:
    """Return the codec of that name: "fp32", "bf16", "fp16", "fp8" by any name (``minikv.plan.dtypes``), "int8", …

    Raises ``ArgumentError`` with the names that exist.
    """
    if isinstance(name, Codec):
        return name
    return CODECS[find_kv_dtype(name).name]
