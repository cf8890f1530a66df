"""The attention that each cached token gets from a prefill, in Triton. ``attention_sums`` has the formula. Lesson 14.

A program owns a tile of keys of one sequence and one KV head. It reads the tile once and goes through the queries that
see it: it computes their logits again, exp(logit - lse), and the sum of each column. No other program writes to its
columns, so no sum depends on an order, and the result is the same in every run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minikv.kernels.gpu.common import Device, Launch, aligned, check_stored, interpreted, padded
from minikv.kernels.gpu.configs import Config, attention_config
from minikv.kernels.gpu.launches import as_wide_as_the_cache
from minikv.kernels.gpu.tiles import LOG2_E, block_ids, capped, converted, load_rows, matmul, token_offsets
from minikv.kernels.paged_kv import PagedKV

MANY = 64  # from this many queries on, the tile is that of a prefill of any length
ALL = 2**31 - 1


@triton.jit(do_not_specialize=["width", "last"])
def column_sums_kernel(
    query, query_rope, k_cache, rope_cache, k_scale, tables, query_starts, lengths, lse, sums, width, last, qk_scale,
    softcap, stride_qt, stride_qh, stride_rt, stride_rh, stride_kb, stride_kt, stride_kh, stride_pb, stride_pt,
    stride_sb, stride_st, stride_table,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DK: tl.constexpr, DP: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_DK: tl.constexpr, BLOCK_DP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    LATENT: tl.constexpr, HAS_SOFTCAP: tl.constexpr, SCALED_K: tl.constexpr, ALIGNED: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of keys, HEADS, B). ``last``: how many of a sequence's last queries count."""
    start, head, sequence = tl.program_id(0) * BLOCK_N, tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + sequence).to(tl.int32)
    first_row = tl.load(query_starts + sequence).to(tl.int64)
    queries = (tl.load(query_starts + sequence + 1) - first_row).to(tl.int32)
    tokens = start + tl.arange(0, BLOCK_N)
    stored = tokens < length
    table = tables + sequence.to(tl.int64) * stride_table
    k_cache += head.to(tl.int64) * stride_kh
    blocks = block_ids(table, start, length, BLOCK_N, BLOCK_SIZE)
    k_at = token_offsets(blocks, start, stride_kb, stride_kt, BLOCK_N, BLOCK_SIZE, ALIGNED)
    k = converted(load_rows(k_cache, k_at, stored, DK, BLOCK_DK, True), query.dtype.element_ty)
    rope = k
    if LATENT:
        p_at = token_offsets(blocks, start, stride_pb, stride_pt, BLOCK_N, BLOCK_SIZE, ALIGNED)
        rope = converted(load_rows(rope_cache, p_at, stored, DP, BLOCK_DP, True), query.dtype.element_ty)
    scales = tl.full([BLOCK_N], 1.0, tl.float32)
    if SCALED_K:
        s_at = token_offsets(blocks, start, stride_sb, stride_st, BLOCK_N, BLOCK_SIZE, False)
        scales = tl.load(k_scale + head + s_at, mask=stored, other=0.0)

    # The first counted query that sees the first of these keys; earlier ones see none of the keys.
    first = tl.maximum(tl.maximum(queries - last, 0), start - (length - queries))
    total = tl.zeros([BLOCK_N], tl.float32)
    for tile in range(first * GROUP // BLOCK_M, tl.cdiv(queries * GROUP, BLOCK_M)):
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        live = (rows >= first * GROUP) & (rows < queries * GROUP)
        row_at = first_row + rows // GROUP
        heads_of = head * GROUP + rows % GROUP
        columns = tl.arange(0, BLOCK_DK)
        q_at = (
            query
            + row_at[:, None] * stride_qt
            + heads_of.to(tl.int64)[:, None] * stride_qh
            + columns[None, :]
        )
        q = tl.load(q_at, mask=live[:, None] & (columns < DK)[None, :], other=0.0)
        logits = matmul(q, tl.trans(k), EXACT)
        if LATENT:
            columns = tl.arange(0, BLOCK_DP)
            q_at = (
                query_rope
                + row_at[:, None] * stride_rt
                + heads_of.to(tl.int64)[:, None] * stride_rh
                + columns[None, :]
            )
            q_rope = tl.load(q_at, mask=live[:, None] & (columns < DP)[None, :], other=0.0)
            logits += matmul(q_rope, tl.trans(rope), EXACT)
        logits *= qk_scale
        if SCALED_K:
            logits *= scales[None, :]
        logits = capped(logits, softcap, HAS_SOFTCAP)
        whole = tl.load(lse + row_at * (HEADS * GROUP) + heads_of, mask=live, other=0.0) * LOG2_E
        positions = length - queries + rows // GROUP
        seen = live[:, None] & stored[None, :] & (tokens[None, :] <= positions[:, None])
        total += tl.sum(tl.where(seen, tl.exp2(logits - whole[:, None]), 0.0), 0)
    place = sums + (sequence * HEADS + head).to(tl.int64) * width + tokens
    tl.store(place, total, mask=tokens < width)


def sums_launch(
    device: Device,
    query: Tensor,
    kv: PagedKV,
    query_starts: Tensor,
    lse: Tensor,
    *,
    scale: float,
    last: int | None = None,
    softcap: float | None = None,
    q_rope: Tensor | None = None,
    config: Config | None = None,
) -> tuple[Launch, Tensor]:
    """Return the launch of one call, and the sums [B, HEADS, W * block_size] that it fills. ``config`` is for tests.

    With ``q_rope`` ``kv`` holds latents and rope keys, as in ``attention_launches``.
    """
    check_stored("kv.k", kv.k.dtype, device.capability)
    query = as_wide_as_the_cache(query, kv.k)
    rope = None if q_rope is None else kv.v
    q_rope = None if q_rope is None else q_rope.to(query.dtype)
    _, query_heads, dim = query.shape
    _, block_size, heads, _ = kv.k.shape
    rope_dim, read = (0, (kv.k,)) if rope is None else (rope.shape[3], (kv.k, rope))
    batch, width, group = len(kv.lengths), kv.block_tables.shape[1] * block_size, query_heads // heads
    if config is None:
        config = attention_config(
            device.capability, dim, dim, query.element_size(), MANY, group, latent=rope is not None
        )
    sums = torch.empty(batch, heads, width, dtype=torch.float32, device=query.device)
    arguments = (
        query, q_rope, kv.k, rope, kv.k_scale, kv.block_tables, query_starts, kv.lengths, lse.contiguous(), sums, width,
        ALL if last is None else min(last, ALL), scale / softcap if softcap else scale * LOG2_E.value,
        (softcap or 0.0) * LOG2_E.value, *query.stride()[:2], *((0, 0) if q_rope is None else q_rope.stride()[:2]),
        *kv.k.stride()[:3], *((0, 0) if rope is None else rope.stride()[:2]),
        *((0, 0) if kv.k_scale is None else kv.k_scale.stride()[:2]), kv.block_tables.stride(0),
    )  # fmt: skip
    constants = dict(
        HEADS=heads, GROUP=group, DK=dim, DP=rope_dim, BLOCK_M=config.block_m, BLOCK_DK=padded(dim),
        BLOCK_DP=padded(rope_dim), BLOCK_N=config.block_n, BLOCK_SIZE=block_size, LATENT=rope is not None,
        HAS_SOFTCAP=softcap is not None, SCALED_K=kv.k_scale is not None,
        ALIGNED=all(each.data_ptr() % 16 == 0 and aligned(each.stride()) for each in read), EXACT=interpreted(),
    )  # fmt: skip
    grid = (triton.cdiv(width, config.block_n), heads, batch)
    launch = Launch(column_sums_kernel, grid, arguments, constants, config.num_warps, config.num_stages)
    return launch, sums
