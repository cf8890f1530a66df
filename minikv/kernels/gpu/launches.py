"""The launches of an operation on its tensors: tiles, splits, buffers, strides."""

import torch
import triton
from torch import Tensor

from minikv.kernels.attention import Attention
from minikv.kernels.checks import FLOATS
from minikv.kernels.gpu.attention import attention_kernel, merge_splits_kernel, scores_kernel
from minikv.kernels.gpu.common import Device, Launch, aligned, check_stored, interpreted, padded
from minikv.kernels.gpu.configs import Config, attention_config, choose_splits
from minikv.kernels.gpu.tiles import LOG2_E
from minikv.kernels.occupancy import most_parts
from minikv.kernels.paged_kv import PagedKV

LEAST_OF_SPLIT = 256  # tokens: fewer, and its partial result is more than 5 % of the bytes of its K and V
LONG_SPLIT = 4096  # tokens of a split of the longest sequence, where the batch alone fills the GPU
ONE_EACH = 2**20  # a wave of so many splits is never full: each sequence has as many as it may
MERGED = 16  # partial results that the merge reads at a time
SCORE_TILE = 256  # tokens of one program of the second pass


def attention_launches(
    device: Device,
    query: Tensor,
    kv: PagedKV,
    *,
    scale: float,
    q_rope: Tensor | None = None,
    query_starts: Tensor | None = None,
    max_queries: int = 1,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    return_scores: bool = False,
    config: Config | None = None,
    splits: int | None = None,
) -> tuple[list[Launch], Attention]:
    """Return the launches of one call, and the result that they will fill.

    With ``q_rope`` ``kv`` holds latents and rope keys: ``query`` [T, H, R], ``kv.k`` [N, bs, 1, R], ``kv.v``
    [N, bs, 1, P]. Without ``query_starts`` it is a decode. ``config`` and ``splits`` are for tests and measurements;
    by default the table chooses.
    """
    for what, cache in (("kv.k", kv.k), ("kv.v", kv.v)):
        check_stored(what, cache.dtype, device.capability)
    out_dtype = query.dtype
    query = as_wide_as_the_cache(query, kv.k, kv.v)
    q_rope = None if q_rope is None else q_rope.to(query.dtype)
    rows, query_heads, dim = query.shape
    _, block_size, heads, value_dim = kv.v.shape
    latent = q_rope is not None
    out_dim = dim if latent else value_dim
    batch, width, group = len(kv.lengths), kv.block_tables.shape[1] * block_size, query_heads // heads
    # A window that hides nothing costs nothing
    window = None if window is None or window >= width else window
    if config is None:
        config = attention_config(
            device.capability, dim, value_dim, query.element_size(), max_queries, group, latent=latent
        )
    programs = heads * triton.cdiv(max_queries * group, config.block_m)
    wave, least = ONE_EACH, 1
    if splits is None:
        tiles = triton.cdiv(min(width, width if window is None else window + max_queries), config.block_n)
        slots, least = config.per_sm * device.multiprocessors, triton.cdiv(LEAST_OF_SPLIT, config.block_n)
        wave = max(1, slots // max(1, programs))
        # The most splits of a sequence. The longest may be alone in its length, and would go on when all the others
        # have ended. The kernel finds from the lengths how many each of them has.
        alone = choose_splits(programs, tiles, slots, triton.cdiv(LONG_SPLIT, config.block_n))
        splits = max(alone, choose_splits(batch * programs, tiles, slots, least))

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=query.device)

    out, lse = empty(rows, query_heads, out_dim, dtype=out_dtype), empty(rows, query_heads)
    scores = empty(batch, heads, width) if return_scores else None
    stride_logits = triton.cdiv(width, 16) * 16  # always divisible by 16, so that Triton compiles only once
    logits = empty(batch, query_heads, stride_logits) if return_scores else None
    parts, part_lse, spans, items = out, lse, None, batch
    if splits > 1:
        items, count = most_parts(batch, splits, wave), most_parts(rows, splits, wave, max_queries)
        parts, part_lse = empty(count, query_heads, out_dim), empty(count, query_heads)
        spans = empty(rows, 2, dtype=torch.int32)
    arguments = (
        query, q_rope, kv.k, kv.v, kv.k_scale, kv.v_scale, kv.block_tables, query_starts, kv.lengths, sinks, parts,
        part_lse, logits, spans, scale / softcap if softcap else scale * LOG2_E.value, (softcap or 0.0) * LOG2_E.value,
        *query.stride()[:2], *((0, 0) if q_rope is None else q_rope.stride()[:2]), *kv.k.stride()[:3],
        *kv.v.stride()[:3], *((0, 0) if kv.k_scale is None else kv.k_scale.stride()[:2]),
        *((0, 0) if kv.v_scale is None else kv.v_scale.stride()[:2]), kv.block_tables.stride(0), stride_logits,
        programs, splits, least, batch, wave,
    )  # fmt: skip
    constants = dict(
        HEADS=heads, GROUP=group, DK=dim, DV=value_dim, BLOCK_M=config.block_m, BLOCK_DK=padded(dim),
        BLOCK_DV=padded(value_dim), BLOCK_N=config.block_n, BLOCK_SIZE=block_size, WINDOW=window or 0, MANY=splits > 1,
        LATENT=latent, HAS_SOFTCAP=softcap is not None, HAS_SINKS=sinks is not None, SCALED_K=kv.k_scale is not None,
        SCALED_V=kv.v_scale is not None, KEEP_LOGITS=return_scores, ALIGNED=aligned(kv.k) and aligned(kv.v),
        EXACT=interpreted(),
    )  # fmt: skip
    layout = config.num_warps, config.num_stages
    launches = [Launch(attention_kernel, (items * programs,), arguments, constants, *layout)]
    if splits > 1:
        constants = dict(
            QUERY_HEADS=query_heads,
            DIM=out_dim,
            BLOCK_D=padded(out_dim),
            BLOCK_S=MERGED,
            HAS_SINKS=sinks is not None,
        )
        merged = (parts, part_lse, spans, sinks, out, lse)
        warps = max(1, padded(out_dim) // 128)  # 64 values of a look in the registers of a thread
        launches.append(
            Launch(merge_splits_kernel, (rows * query_heads,), merged, constants, num_warps=warps)
        )
    if return_scores:
        constants = dict(HEADS=heads, GROUP=group, WINDOW=window or 0, BLOCK=SCORE_TILE)
        grid = (triton.cdiv(width, SCORE_TILE), heads, batch)
        launches.append(
            Launch(scores_kernel, grid, (logits, lse, kv.lengths, scores, width, stride_logits), constants)
        )
    return launches, Attention(out, lse, scores)


def as_wide_as_the_cache(query: Tensor, *caches: Tensor) -> Tensor:
    """Return a query in a dtype that holds K and V too, since they are converted to it.

    float16 over a bfloat16 cache becomes float32. Every float dtype holds the 8-bit formats.
    """
    dtype = query.dtype
    for cache in caches:
        if cache.dtype in FLOATS:
            dtype = torch.promote_types(dtype, cache.dtype)
    return query.to(dtype)
