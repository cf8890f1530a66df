"""The launches of an operation on its tensors: tiles, splits, buffers, strides."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from minikv.kernels.attention import Attention
from minikv.kernels.checks import FLOATS
from minikv.kernels.gpu.attention import attention_kernel, merge_splits_kernel, scores_kernel
from minikv.kernels.gpu.common import Device, Launch, aligned, check_stored, interpreted, padded
from minikv.kernels.gpu.configs import MOST_SPLITS, Config, attention_config, choose_splits
from minikv.kernels.gpu.tiles import LOG2_E
from minikv.kernels.occupancy import most_parts
from minikv.kernels.paged_kv import PagedKV

LEAST_OF_SPLIT = 256  # tokens: fewer, and its partial result is more than 5 % of the bytes of its K and V
LONG_SPLIT = 4096  # tokens of a split of the longest sequence, where the batch alone fills the GPU
ONE_EACH = 2**20  # a wave of so many splits is never full: each sequence has as many as it may
MERGED = 16  # partial results that the merge reads at a time
SCORE_TILE = 256  # tokens of one program of the second pass
PLANS = 1024  # that are remembered: all layers of a step have one, and many steps do

Form = tuple[torch.Size, tuple[int, ...], torch.dtype]  # of a tensor: its shape, strides and dtype


@dataclass(frozen=True)
class Plan:
    """All of a call but its tensors: the layers of a step have it in common, and so have many steps.

    ``numbers`` follow the tensors among the arguments of the attention kernel. ``out`` is the shape of the result, and
    ``parts`` are its partial results (0: there is one split). ``merge`` and ``scoring`` are the grid and the constants
    of the kernels that follow, ``logits`` the shape of what the second of these reads, and ``width`` that of a score.
    """

    config: Config
    grid: tuple[int, ...]
    numbers: tuple[int | float, ...]
    constants: dict[str, Any]
    out: tuple[int, int, int]
    parts: int
    merge: tuple[tuple[int, ...], dict[str, Any]]
    scoring: tuple[tuple[int, ...], dict[str, Any]]
    logits: tuple[int, int, int]
    width: int


@lru_cache(PLANS)
def plan_of(
    device: Device,
    query: Form,
    q_rope: Form | None,
    k: Form,
    v: Form,
    k_scale: Form | None,
    v_scale: Form | None,
    tables: Form,
    batch: int,
    scale: float,
    max_queries: int,
    window: int | None,
    softcap: float | None,
    has_sinks: bool,
    return_scores: bool,
    config: Config | None,
    splits: int | None,
    on_16_bytes: bool,
    exact: bool,
) -> Plan:
    """Return the plan of a call; see ``attention_launches``. ``on_16_bytes``: K and V begin at a multiple of 16 bytes.

    Nothing in it is a tensor, so it may outlive what it was made for.
    """
    for what, cache in (("kv.k", k), ("kv.v", v)):
        check_stored(what, cache[2], device.capability)
    rows, query_heads, dim = query[0]
    _, block_size, heads, value_dim = v[0]
    latent = q_rope is not None
    out_dim = dim if latent else value_dim
    width, group = tables[0][1] * block_size, query_heads // heads
    # A window that hides nothing costs nothing
    window = None if window is None or window >= width else window
    if config is None:
        config = attention_config(
            device.capability, dim, value_dim, query[2].itemsize, max_queries, group, latent=latent
        )
    programs = heads * triton.cdiv(max_queries * group, config.block_m)
    wave, least = ONE_EACH, 1
    if splits is None:
        tiles = triton.cdiv(width, config.block_n)
        if window is not None:  # window + max_queries - 1 keys, which may begin within a tile
            tiles = min(tiles, triton.cdiv(window + max_queries - 2, config.block_n) + 1)
        slots, least = config.per_sm * device.multiprocessors, triton.cdiv(LEAST_OF_SPLIT, config.block_n)
        wave = max(1, slots // max(1, programs))
        # The most splits of a sequence. The longest may be alone in its length, and would go on when all the others
        # have ended. The kernel finds from the lengths how many each of them has.
        alone = choose_splits(programs, tiles, slots, triton.cdiv(LONG_SPLIT, config.block_n))
        splits = max(alone, choose_splits(batch * programs, tiles, slots, least))
        if batch * max_queries == 1:  # its splits are alike, so that a whole wave of them ends together
            splits = max(splits, min(wave, tiles, MOST_SPLITS))
    many = splits > 1 and rows > 0
    items = most_parts(batch, splits, wave) if many else batch
    parts = most_parts(rows, splits, wave, max_queries) if many else 0
    stride_logits = triton.cdiv(width, 16) * 16  # always divisible by 16, so that Triton compiles only once

    def first_strides(form: Form | None, count: int) -> tuple[int, ...]:
        return (0,) * count if form is None else form[1][:count]

    numbers = (
        scale / softcap if softcap else scale * LOG2_E.value, (softcap or 0.0) * LOG2_E.value,
        *first_strides(query, 2), *first_strides(q_rope, 2), *first_strides(k, 3), *first_strides(v, 3),
        *first_strides(k_scale, 2), *first_strides(v_scale, 2), tables[1][0], stride_logits,
        programs, splits, least, batch, wave,
    )  # fmt: skip
    constants = dict(
        HEADS=heads, GROUP=group, DK=dim, DV=value_dim, BLOCK_M=config.block_m, BLOCK_DK=padded(dim),
        BLOCK_DV=padded(value_dim), BLOCK_N=config.block_n, BLOCK_SIZE=block_size, WINDOW=window or 0, MANY=many,
        LATENT=latent, HAS_SOFTCAP=softcap is not None, HAS_SINKS=has_sinks, SCALED_K=k_scale is not None,
        SCALED_V=v_scale is not None, KEEP_LOGITS=return_scores, ALIGNED=on_16_bytes and aligned(k[1], v[1]),
        EXACT=exact,
    )  # fmt: skip
    merging = dict(
        QUERY_HEADS=query_heads, DIM=out_dim, BLOCK_D=padded(out_dim), BLOCK_S=MERGED, HAS_SINKS=has_sinks
    )
    scoring = dict(HEADS=heads, GROUP=group, WINDOW=window or 0, BLOCK=SCORE_TILE)
    return Plan(
        config=config,
        grid=(items * programs,),
        numbers=numbers,
        constants=constants,
        out=(rows, query_heads, out_dim),
        parts=parts,
        merge=((rows * query_heads,), merging),
        scoring=((triton.cdiv(width, SCORE_TILE), heads, batch), scoring),
        logits=(batch, query_heads, stride_logits),
        width=width,
    )


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
    k, v, out_dtype, float32 = kv.k, kv.v, query.dtype, torch.float32
    query = as_wide_as_the_cache(query, k, v)
    q_rope = None if q_rope is None else q_rope.to(query.dtype)
    forms = map(_form, (query, q_rope, k, v, kv.k_scale, kv.v_scale, kv.block_tables))
    plan = plan_of(
        device, *forms, len(kv.lengths), scale, max_queries, window, softcap, sinks is not None, return_scores, config,
        splits, (k.data_ptr() | v.data_ptr()) % 16 == 0, interpreted(),
    )  # fmt: skip
    out, lse = query.new_empty(plan.out, dtype=out_dtype), query.new_empty(plan.out[:2], dtype=float32)
    parts, part_lse, spans, logits, scores = out, lse, None, None, None
    if plan.parts:
        parts = query.new_empty((plan.parts, *plan.out[1:]), dtype=float32)
        part_lse = query.new_empty((plan.parts, plan.out[1]), dtype=float32)
        spans = query.new_empty((plan.out[0], 2), dtype=torch.int32)
    if return_scores:
        logits = query.new_empty(plan.logits, dtype=float32)
        scores = query.new_empty((len(kv.lengths), v.shape[2], plan.width), dtype=float32)
    arguments = (
        query, q_rope, k, v, kv.k_scale, kv.v_scale, kv.block_tables, query_starts, kv.lengths, sinks, parts,
        part_lse, logits, spans, *plan.numbers,
    )  # fmt: skip
    config = plan.config
    layout = config.num_warps, config.num_stages, config.registers
    launches = [Launch(attention_kernel, plan.grid, arguments, plan.constants, *layout)]
    if plan.parts:
        merged = (parts, part_lse, spans, sinks, out, lse)
        warps = max(1, plan.merge[1]["BLOCK_D"] // 128)  # 64 values of a look in the registers of a thread
        launches.append(Launch(merge_splits_kernel, plan.merge[0], merged, plan.merge[1], num_warps=warps))
    if return_scores:
        read = (logits, lse, kv.lengths, scores, plan.width, plan.logits[2])
        launches.append(Launch(scores_kernel, plan.scoring[0], read, plan.scoring[1]))
    return launches, Attention(out, lse, scores)


def part_bytes(device: Device, query: Tensor, kv: PagedKV, **options: Any) -> int:
    """Return the bytes of the partial results of ``attention_launches``, 0 without splits. The tensors may be meta."""
    launches, _ = attention_launches(device, query, kv, **options)
    merges = [launch for launch in launches if launch.kernel is merge_splits_kernel]
    return sum(held.nbytes for launch in merges for held in launch.arguments[:3])


def _form(tensor: Tensor | None) -> Form | None:
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype)


def as_wide_as_the_cache(query: Tensor, *caches: Tensor) -> Tensor:
    """Return a query in a dtype that holds K and V too, since they are converted to it.

    float16 over a bfloat16 cache becomes float32. Every float dtype holds the 8-bit formats.
    """
    dtype = query.dtype
    if all(cache.dtype == dtype for cache in caches):
        return query
    for cache in caches:
        if cache.dtype in FLOATS:
            dtype = torch.promote_types(dtype, cache.dtype)
    return query.to(dtype)
