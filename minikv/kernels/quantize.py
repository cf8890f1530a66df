"""Encoding numbers as stored elements, and decoding them.

Three rules hold everywhere. A finite number never becomes NaN or infinite. An infinite one becomes the largest
finite one, unless the new dtype has the old one's range. NaN stays visible: in a scaled row it makes the whole
row NaN, since a NaN leaves no right scale for the others.
"""

import torch
from torch import Tensor

# A smaller float32 is subnormal; such a scale would lose bits, or be zero and be divided by.
SMALLEST_SCALE = torch.finfo(torch.float32).tiny


def largest(dtype: torch.dtype) -> float:
    """Return the largest number that a scale maps to: 127 for int8, the largest finite one for a float dtype."""
    return 127.0 if dtype == torch.int8 else torch.finfo(dtype).max


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``x`` in another float dtype, rounded to nearest even, saturating; ``x`` itself for the same dtype."""
    if x.dtype == dtype:
        return x
    limit = torch.finfo(dtype).max
    if torch.finfo(x.dtype).max > limit:
        # Torch's own cast gives inf, and NaN in float8_e4m3fn, which has no inf. The limit must be exact in the clamped
        # dtype: in bfloat16 the largest float16, 65504, would be 65536.
        x = (x.to(torch.float32) if x.dtype.itemsize < 4 else x).clamp(-limit, limit)
    return x.to(dtype)


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return ``x`` [..., D] as (data [..., D] of ``dtype``, scale [...] float32): one scale for each row of D elements.

    scale = max|row| / largest(dtype), at least the smallest normal float32, so that a row of zeros needs no
    special case. data = row / scale, rounded to nearest even.
    """
    limit = torch.finfo(torch.float32).max
    x = x.to(torch.float32).clamp(-limit, limit)
    scale = (x.abs().amax(-1) / largest(dtype)).clamp(min=SMALLEST_SCALE)
    x.div_(scale.unsqueeze(-1))  # in place, since ``clamp`` made a new tensor
    if dtype == torch.int8:
        # Within 127 without a clamp, because 127 * (1 + 2**-23) is rounded to 127. The integer of a NaN is undefined,
        # but the row's scale is NaN, and so is what is read.
        return x.round_().nan_to_num_(0).to(torch.int8), scale
    return cast(x, dtype), scale


def to_float32(data: Tensor, out: Tensor) -> Tensor:
    """Write ``data``, of any dtype in which K and V are stored, into ``out`` float32 and return it.

    On a CPU torch converts float8 number by number, e4m3 in 1.5 ns each, ten times as long as here. The bits of a
    float16 are sign, 5 of the exponent, 10 of the mantissa. e5m2 is the upper half of one. The exponent of e4m3 has 4
    bits and counts from 7, not from 15, so its bits read as a float16 are the number times 2**-8, subnormals too. Only
    its NaN would be read as 480.
    """
    if not data.is_cpu or data.dtype not in (torch.float8_e4m3fn, torch.float8_e5m2):
        return out.copy_(data)
    stored = data.view(torch.int8)
    if data.dtype == torch.float8_e5m2:
        return out.copy_(stored.to(torch.int16).bitwise_left_shift_(8).view(torch.float16))
    if stored.numel() and stored.bitwise_and(0x7F).amax() == 0x7F:
        return out.copy_(data)
    # seeemmm -> s0eeeemmm0000000; the copies of the sign, which the wider integer begins with, are cut.
    bits = stored.to(torch.int16).bitwise_left_shift_(7).bitwise_and_(~0x4000)
    return out.copy_(bits.view(torch.float16)).mul_(256)


def dequantize(data: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return data [..., D] * scale [...] in float32, then saturated to ``dtype``.

    It saturates in float32 too: 127 * (largest float32 / 127) rounds to infinity.
    """
    limit = torch.finfo(dtype).max
    numbers = to_float32(data, torch.empty_like(data, dtype=torch.float32))
    return numbers.mul_(scale.unsqueeze(-1)).clamp_(-limit, limit).to(dtype)
