"""Numbers encoded as the stored bits, in integer arithmetic: the same on every GPU and in the interpreter.

Triton converts to float8_e4m3fn only from compute capability 8.9 on, to neither float8 format rightly in its
interpreter, and never saturates as ``minikv.kernels.quantize`` does. These functions are that module's ``cast`` and
``quantize``, bit for bit except for the sign and the payload of a NaN.

The kernels get integer views of the tensors: they need only the number of bits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from minikv.kernels.quantize import SMALLEST_SCALE, largest

INFINITY = tl.constexpr(0x7F800000)  # bits of float32: larger ones are NaNs
LARGEST_FLOAT = tl.constexpr(0x7F7FFFFF)
SMALLEST = tl.constexpr(SMALLEST_SCALE)
# 1.5 * 2**23. A float32 of this size has no fraction bits, so x + ROUNDER rounds x to a whole number, halves to even.
ROUNDER = tl.constexpr(12582912.0)

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# Bits of the mantissa, bias of the exponent, and a NaN.
_FORMATS = {
    torch.float32: (23, 127, 0x7FC00000),
    torch.bfloat16: (7, 127, 0x7FC0),
    torch.float16: (10, 15, 0x7E00),
    torch.float8_e4m3fn: (3, 7, 0x7F),
    torch.float8_e5m2: (2, 15, 0x7F),
    torch.int8: (0, 0, 0),
}


def format_constants(dtype: torch.dtype) -> dict[str, Any]:
    """Return the kernels' constants for the stored format. MANTISSA 0 is int8."""
    mantissa, bias, nan = _FORMATS[dtype]
    return dict(MANTISSA=mantissa, BIAS=bias, NAN=nan, SIGN=dtype.itemsize * 8 - 1, LARGEST=largest(dtype))


def largest_bits(source: torch.dtype, dtype: torch.dtype) -> int:
    """Return where ``cast`` saturates, as bits of float32: infinity if ``dtype`` holds every finite ``source``."""
    limit = largest(dtype)
    if torch.finfo(source).max <= limit:
        return int(INFINITY.value)
    return int(torch.tensor(limit, dtype=torch.float32).view(torch.int32))


def as_integers(x: Tensor) -> Tensor:
    """Return a view of the same bits as integers."""
    return x.detach().view(INTEGERS[x.element_size()])


@triton.jit
def as_float32(x, BFLOAT16: tl.constexpr):
    """Return ``x`` as float32, exactly. A bfloat16, given as 16 bits, is the upper half of a float32."""
    if BFLOAT16:
        return (x.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@triton.jit
def float_bits(
    x, LIMIT: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr, NAN: tl.constexpr, SIGN: tl.constexpr
):
    """Return float32 ``x`` as the int32 bits of a float format, rounded to nearest even, capped at LIMIT."""
    bits = x.to(tl.int32, bitcast=True)
    if MANTISSA == 23:
        return bits
    size = bits & 0x7FFFFFFF
    kept = tl.minimum(size, LIMIT)
    # Cut the mantissa. Half of the last kept place is added first, less one bit if that place is even: nearest even.
    CUT: tl.constexpr = 23 - MANTISSA
    code = ((kept + ((1 << (CUT - 1)) - 1) + ((kept >> CUT) & 1)) >> CUT) - ((127 - BIAS) << MANTISSA)
    if BIAS < 127:
        # Below the format's normal numbers the last place is fixed. Adding a float32 with the same last place rounds to
        # it.
        STEP: tl.constexpr = (127 + 24 - BIAS - MANTISSA) << 23
        step = tl.full(kept.shape, STEP, tl.int32).to(tl.float32, bitcast=True)
        small = (kept.to(tl.float32, bitcast=True) + step).to(tl.int32, bitcast=True) - STEP
        code = tl.where(kept < (128 - BIAS) << 23, small, code)
    return tl.where(size > INFINITY, NAN, code) | (((bits >> 31) & 1) << SIGN)


@triton.jit
def row_scales(x, LARGEST: tl.constexpr):
    """Return the scale of each row of ``x`` [n, D] float32: max|row| / LARGEST. NaN if the row has a NaN."""
    sizes = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    most = tl.max(tl.where(sizes == INFINITY, LARGEST_FLOAT, sizes), 1)  # as integers, NaN is the largest
    scales = tl.div_rn(most.to(tl.float32, bitcast=True), tl.full(most.shape, LARGEST, tl.float32))
    return tl.where(scales < SMALLEST, SMALLEST, scales)


@triton.jit
def quantized_bits(
    x,
    scales,
    LIMIT: tl.constexpr,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    NAN: tl.constexpr,
    SIGN: tl.constexpr,
):
    """Return ``x`` [n, D] / scales [n] as the bits of the format, int32."""
    bits = x.to(tl.int32, bitcast=True)
    finite = tl.where((bits & 0x7FFFFFFF) == INFINITY, bits - 1, bits).to(tl.float32, bitcast=True)
    ratio = tl.div_rn(finite, tl.broadcast_to(scales[:, None], x.shape))
    if MANTISSA == 0:
        whole = (ratio + ROUNDER).to(tl.int32, bitcast=True) - 0x4B400000  # less the bits of ROUNDER
        return tl.where(ratio != ratio, 0, whole)
    return float_bits(ratio, LIMIT, MANTISSA, BIAS, NAN, SIGN)
