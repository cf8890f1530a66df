"""Writing new tokens into a paged cache in Triton: K and V in one launch. Lesson 10.

A row is one head of one token. A program writes as many rows as make a tile of TILE elements, of K or of V. One program
reads and writes a whole row, so it can compute the row's scale.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minikv.kernels.gpu.common import Launch, padded
from minikv.kernels.gpu.encode import (
    as_float32,
    as_integers,
    float_bits,
    format_constants,
    largest_bits,
    quantized_bits,
    row_scales,
)
from minikv.kernels.quantize import cast

TILE = 2048  # elements


@triton.jit
def store_rows(
    tile, new, cache, scale, slots, tokens, stride_nt, stride_nh, stride_nd, stride_cb, stride_ct, stride_ch,
    stride_sb, stride_st, stride_sh,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, SAME: tl.constexpr, BFLOAT16: tl.constexpr, LIMIT: tl.constexpr,
    HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, SCALED: tl.constexpr,
    MANTISSA: tl.constexpr, BIAS: tl.constexpr, NAN: tl.constexpr, SIGN: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """Read, encode and write ROWS rows of K, or of V."""
    rows = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    token, head = rows // HEADS, rows % HEADS
    slot = tl.load(slots + token, mask=token < tokens, other=-1).to(tl.int64)
    live = slot >= 0
    block, inside = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    columns = tl.arange(0, BLOCK_D)
    kept = live[:, None] & (columns < DIM)[None, :]
    new_at = token * stride_nt + head * stride_nh
    x = tl.load(new + new_at[:, None] + columns[None, :].to(tl.int64) * stride_nd, mask=kept, other=0)
    if SAME:
        bits = x
    elif SCALED:
        x = as_float32(x, BFLOAT16)
        scales = row_scales(x, LARGEST)
        bits = quantized_bits(x, scales, LIMIT, MANTISSA, BIAS, NAN, SIGN)
        tl.store(scale + block * stride_sb + inside * stride_st + head * stride_sh, scales, mask=live)
    else:
        bits = float_bits(as_float32(x, BFLOAT16), LIMIT, MANTISSA, BIAS, NAN, SIGN)
    cache_at = block * stride_cb + inside * stride_ct + head * stride_ch
    tl.store(cache + cache_at[:, None] + columns[None, :], bits.to(cache.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["tokens", "tiles_of_k"])
def store_kernel(
    key, value, k_cache, v_cache, k_scale, v_scale, slots, tokens, tiles_of_k, stride_kt, stride_kh, stride_kd,
    stride_vt, stride_vh, stride_vd, stride_kcb, stride_kct, stride_kch, stride_vcb, stride_vct, stride_vch, stride_ksb,
    stride_kst, stride_ksh, stride_vsb, stride_vst, stride_vsh,
    DK: tl.constexpr, BLOCK_DK: tl.constexpr, ROWS_K: tl.constexpr, SAME_K: tl.constexpr, BFLOAT16_K: tl.constexpr,
    LIMIT_K: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr, ROWS_V: tl.constexpr, SAME_V: tl.constexpr,
    BFLOAT16_V: tl.constexpr, LIMIT_V: tl.constexpr, HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SCALED: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr, NAN: tl.constexpr, SIGN: tl.constexpr,
    LARGEST: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of rows of K, then of V). SAME: the cache has the input's dtype, so the bits are copied."""
    tile = tl.program_id(0)
    if tile < tiles_of_k:
        store_rows(
            tile, key, k_cache, k_scale, slots, tokens, stride_kt, stride_kh, stride_kd, stride_kcb,
            stride_kct, stride_kch, stride_ksb, stride_kst, stride_ksh, DK, BLOCK_DK, SAME_K, BFLOAT16_K, LIMIT_K,
            HEADS, BLOCK_SIZE, ROWS_K, SCALED, MANTISSA, BIAS, NAN, SIGN, LARGEST,
        )  # fmt: skip
    else:
        store_rows(
            tile - tiles_of_k, value, v_cache, v_scale, slots, tokens, stride_vt, stride_vh, stride_vd, stride_vcb,
            stride_vct, stride_vch, stride_vsb, stride_vst, stride_vsh, DV, BLOCK_DV, SAME_V, BFLOAT16_V, LIMIT_V,
            HEADS, BLOCK_SIZE, ROWS_V, SCALED, MANTISSA, BIAS, NAN, SIGN, LARGEST,
        )  # fmt: skip


def store_launch(
    key: Tensor,
    value: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Launch:
    """Return the launch of one ``store_kv``."""
    _, block_size, heads, _ = k_cache.shape
    scaled = k_scale is not None
    constants = dict(HEADS=heads, BLOCK_SIZE=block_size, SCALED=scaled, **format_constants(k_cache.dtype))
    new, tiles = [], []
    for half, x, cache in (("K", key, k_cache), ("V", value, v_cache)):
        # GPUs have few units for float64, and rounding twice would differ from rounding once
        if x.dtype == torch.float64:
            x = x.to(torch.float32) if scaled else cast(x, cache.dtype)
        dim, same, bfloat16 = x.shape[2], x.dtype == cache.dtype, x.dtype == torch.bfloat16
        rows = max(1, TILE // padded(dim))
        constants |= {
            f"D{half}": dim,
            f"BLOCK_D{half}": padded(dim),
            f"ROWS_{half}": rows,
            f"SAME_{half}": same,
        }
        constants |= {
            f"BFLOAT16_{half}": bfloat16,
            f"LIMIT_{half}": 0 if same else largest_bits(x.dtype, cache.dtype),
        }
        new.append(as_integers(x) if same or bfloat16 else x.detach())
        tiles.append(triton.cdiv(len(slots) * heads, rows))
    strides = [
        stride for x in (*new, *(cache[..., 0] for cache in (k_cache, v_cache))) for stride in x.stride()
    ]
    strides += [0] * 6 if k_scale is None or v_scale is None else [*k_scale.stride(), *v_scale.stride()]
    caches = as_integers(k_cache), as_integers(v_cache), k_scale, v_scale
    arguments = (*new, *caches, slots, len(slots), tiles[0], *strides)
    return Launch(store_kernel, (sum(tiles),), arguments, constants)
