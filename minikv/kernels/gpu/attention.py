"""Attention over a paged cache in Triton: decode and prefill, heads and latents, as one kernel. Lesson 10.

A program takes some queries of one sequence, for one KV head, and one split of their keys. Its rows are (query, query
head) pairs, query by query. The query heads that share a KV head are rows of one tile, so that K and V are read once
for all of them. A decode has one query a sequence; a prefill has many. The keys come in tiles of BLOCK_N with an online
softmax. A tile that is cut by the length, the window or the causal edge is masked; the loop over whole tiles is not.

In a latent cache (MLA) there is one head. The key is the latent and a rope part beside it, and the value is the latent
again, so each tile read is used twice.

Each split leaves a partial result and its lse, and ``merge_splits_kernel`` merges them. Scores need a second pass: the
logits are kept, and exp(logit - lse) is summed over the query heads once the lse is known.
"""

import triton
import triton.language as tl

from minikv.kernels.gpu.tiles import (
    LN_2,
    LOG2_E,
    block_ids,
    capped,
    converted,
    load_rows,
    matmul,
    online_softmax,
    token_offsets,
)
from minikv.kernels.occupancy import SPLIT_WAVES

SEQUENCES = tl.constexpr(
    32
)  # lengths that are read at a time: one for each thread of a warp, so no warp waits
WAVES = tl.constexpr(SPLIT_WAVES)


@triton.jit
def attend_tiles(
    state, q, q_rope, k_cache, v_cache, k_scale, v_scale, table, logits_at, first, last, length, positions, qk_scale,
    softcap, stride_kb, stride_kt, stride_vb, stride_vt, stride_ksb, stride_kst, stride_vsb, stride_vst, live,
    DK: tl.constexpr, DV: tl.constexpr, BLOCK_DK: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, LATENT: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    SCALED_K: tl.constexpr, SCALED_V: tl.constexpr, KEEP_LOGITS: tl.constexpr, MASKED: tl.constexpr,
    ALIGNED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Add tiles ``first`` to ``last - 1`` of keys to ``state``: (largest [M], total [M], sum [M, dim of the value]).

    K and V of a tile wait for its block ids. So each tile's ids are read while the tile before it is added: a load
    behind a load of the same iteration would get one buffer, and copies would not overlap with products.
    """
    largest, total, acc = state
    end = tl.minimum(last * BLOCK_N, length)
    blocks = block_ids(table, first * BLOCK_N, end, BLOCK_N, BLOCK_SIZE)
    for tile in range(first, last):
        start = tile * BLOCK_N
        following = block_ids(table, start + BLOCK_N, end, BLOCK_N, BLOCK_SIZE)
        tokens = start + tl.arange(0, BLOCK_N)
        stored = tokens < length
        if WINDOW > 0:  # a block behind the window of the first query may have been freed
            stored = stored & (tokens > tl.min(positions) - WINDOW)
        k_at = token_offsets(blocks, start, stride_kb, stride_kt, BLOCK_N, BLOCK_SIZE, ALIGNED)
        v_at = token_offsets(blocks, start, stride_vb, stride_vt, BLOCK_N, BLOCK_SIZE, ALIGNED)
        k = converted(load_rows(k_cache, k_at, stored, DK, BLOCK_DK, MASKED), q.dtype)
        logits = matmul(q, tl.trans(k), EXACT)
        if LATENT:
            rope = converted(load_rows(v_cache, v_at, stored, DV, BLOCK_DV, MASKED), q.dtype)
            logits += matmul(q_rope, tl.trans(rope), EXACT)
        logits *= qk_scale
        if SCALED_K:
            # The scale of a key is a factor of its whole dot product, so it is applied to the logit.
            s_at = token_offsets(blocks, start, stride_ksb, stride_kst, BLOCK_N, BLOCK_SIZE, False)
            logits *= tl.load(k_scale + s_at, mask=stored, other=0.0)[None, :]
        logits = capped(logits, softcap, HAS_SOFTCAP)
        if MASKED:
            seen = stored[None, :] & (tokens[None, :] <= positions[:, None])
            if WINDOW > 0:
                seen = seen & (tokens[None, :] > positions[:, None] - WINDOW)
            logits = tl.where(seen, logits, float("-inf"))
        if KEEP_LOGITS:
            tl.store(logits_at[:, None] + tokens[None, :], logits, mask=live[:, None] & stored[None, :])
        largest, total, weights, rescale = online_softmax(largest, total, logits)
        if LATENT:  # noqa: SIM108  (of a conditional expression Triton would compile both sides)
            v = k
        else:
            v = converted(load_rows(v_cache, v_at, stored, DV, BLOCK_DV, MASKED), q.dtype)
        # Online softmax: the old sum is scaled to the new maximum before the tile is added.
        acc *= rescale[:, None]
        if SCALED_V:
            # The scale of a value is a factor of its row, so it is applied to the weight of the token.
            s_at = token_offsets(blocks, start, stride_vsb, stride_vst, BLOCK_N, BLOCK_SIZE, False)
            scales = tl.load(v_scale + s_at, mask=stored, other=0.0)
            # float16 has no number below 6e-8, so weight * scale could vanish: scale by the tile's largest scale
            # afterwards.
            if q.dtype == tl.float16:
                unit = tl.max(scales, 0)
                unit = tl.where(unit == 0, 1.0, unit)
                weights *= (scales / unit)[None, :]
                acc += matmul(weights.to(q.dtype), v, EXACT) * unit
            else:
                weights *= scales[None, :]
                acc += matmul(weights.to(q.dtype), v, EXACT)
        else:
            acc += matmul(weights.to(q.dtype), v, EXACT)
        blocks = following
    return largest, total, acc


@triton.jit
def key_tiles(
    lengths, query_starts, first, batch, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return the tiles of keys that the queries of SEQUENCES sequences see, and the queries; -1 behind the last one."""
    sequences = first + tl.arange(0, SEQUENCES)
    stored = sequences < batch
    tokens = tl.load(lengths + sequences, mask=stored, other=0).to(tl.int32)
    queries = stored.to(tl.int32)
    if query_starts is not None:
        starts = tl.load(query_starts + sequences, mask=stored, other=0)
        queries = (tl.load(query_starts + sequences + 1, mask=stored, other=0) - starts).to(tl.int32)
    tiles = tl.cdiv(tokens, BLOCK_N)
    if WINDOW > 0:
        tiles -= tl.maximum(tokens - queries - WINDOW + 1, 0) // BLOCK_N
    return tl.where(stored, tiles, -1), queries


@triton.jit
def find_split(
    item, lengths, query_starts, splits, batch, wave, least, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return the sequence and split of ``item``, how many splits and parts are before the sequence, and a fair share.

    ``minikv.kernels.occupancy.splits_of``, from the lengths on the device, so that the next step of a captured graph is
    split by its own. The sequence is at least ``batch`` where there are fewer splits.
    """
    seen = tl.zeros([SEQUENCES], tl.int32)
    for first in range(0, batch, SEQUENCES):
        tiles, _ = key_tiles(lengths, query_starts, first, batch, WINDOW, BLOCK_N)
        seen += tl.maximum(tiles, 0)
    total = tl.sum(seen, 0)
    share = tl.maximum(tl.cdiv(total, WAVES * wave), tl.minimum(tl.cdiv(total, wave), least))
    share = tl.maximum(share, 1)
    sequences, items, parts = seen * 0, seen * 0, seen * 0
    before = 0
    for first in range(0, batch, SEQUENCES):
        tiles, queries = key_tiles(lengths, query_starts, first, batch, WINDOW, BLOCK_N)
        count = tl.maximum(tl.cdiv(tiles, tl.maximum(share, tl.cdiv(tiles, splits))), 1)
        count = tl.where(tiles < 0, 0, count)
        passed = before + tl.cumsum(count, 0) <= item
        sequences += passed.to(tl.int32)
        items += tl.where(passed, count, 0)
        parts += tl.where(passed, count * queries, 0)
        before += tl.sum(count, 0)
    return tl.sum(sequences, 0), item - tl.sum(items, 0), tl.sum(parts, 0), share


@triton.jit(do_not_specialize=["stride_table", "programs", "splits", "least", "batch", "wave"])
def attention_kernel(
    query, query_rope, k_cache, v_cache, k_scale, v_scale, tables, query_starts, lengths, sinks, out, lse, logits,
    spans, qk_scale, softcap, stride_qt, stride_qh, stride_rt, stride_rh, stride_kb, stride_kt, stride_kh, stride_vb,
    stride_vt, stride_vh, stride_ksb, stride_kst, stride_vsb, stride_vst, stride_table, stride_logits, programs,
    splits, least, batch, wave, HEADS: tl.constexpr, GROUP: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_DK: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, MANY: tl.constexpr, LATENT: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, SCALED_K: tl.constexpr, SCALED_V: tl.constexpr,
    KEEP_LOGITS: tl.constexpr, ALIGNED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Grid (items * ``programs``): for each item the tiles of rows of the longest sequence, times HEADS.

    An item is a sequence, or with MANY splits one split of one sequence, in the order of the sequences. Behind the last
    split there may be items without work. Without ``query_starts`` sequence i has only the query i.

    ``out`` and ``lse`` are the result, or with MANY splits the partial ones [parts, Hq, DIM], with the lse in base 2.
    ``spans`` [T, 2] is filled then: each query's first part, and how many it has.
    """
    item, program = tl.program_id(0) // programs, tl.program_id(0) % programs
    sequence, split, part, share = item, 0, 0, 1
    if MANY and batch == 0:
        # Never so: it begins a second block. In Triton 3.7 what depends on a loop of the first block has no alignment,
        # and masked tiles would be copied without buffers.
        return
    if MANY:
        sequence, split, part, share = find_split(
            item, lengths, query_starts, splits, batch, wave, least, WINDOW, BLOCK_N
        )
    if MANY and sequence >= batch:
        return
    # The last rows see the most keys, and programs start in order: begin with the longest, so that none is left over.
    head, tile_of_rows = program % HEADS, (programs - 1 - program) // HEADS
    length = tl.load(lengths + sequence).to(tl.int32)
    if query_starts is None:
        first_row, queries = sequence.to(tl.int64), 1
    else:
        first_row = tl.load(query_starts + sequence).to(tl.int64)
        queries = (tl.load(query_starts + sequence + 1) - first_row).to(tl.int32)
    rows = tile_of_rows * BLOCK_M + tl.arange(0, BLOCK_M)
    live = rows < queries * GROUP
    if tile_of_rows * BLOCK_M >= queries * GROUP:
        return  # this sequence is shorter than the longest one
    first_query = tile_of_rows * BLOCK_M // GROUP
    last_query = tl.minimum((tile_of_rows * BLOCK_M + BLOCK_M - 1) // GROUP, queries - 1)
    # A row past the end takes the last query's position: it is computed, never stored, and does not lower a minimum.
    positions = length - queries + tl.minimum(rows // GROUP, queries - 1)

    # The tiles of keys that any of these queries sees, and the share of this split.
    first_position, last_position = length - queries + first_query, length - queries + last_query
    first = 0
    if WINDOW > 0:
        first = tl.maximum(first_position - WINDOW + 1, 0)
    begin, end = first // BLOCK_N, tl.cdiv(last_position + 1, BLOCK_N)
    count = 1
    if MANY:
        all_tiles = tl.cdiv(length, BLOCK_N)
        if WINDOW > 0:
            all_tiles -= tl.maximum(length - queries - WINDOW + 1, 0) // BLOCK_N
        share = tl.maximum(share, tl.cdiv(all_tiles, splits))
        count = tl.maximum(tl.cdiv(all_tiles, share), 1)
        begin = tl.minimum(begin + split * share, end)
        end = tl.minimum(begin + share, end)
    # Tiles that every query sees in full need no mask. A tile that is cut on both sides belongs to the first loop.
    whole_from, whole_to = begin, tl.minimum(end, (first_position + 1) // BLOCK_N)
    if WINDOW > 0:
        whole_from = tl.maximum(begin, tl.cdiv(last_position - WINDOW + 1, BLOCK_N))
    whole_from = tl.minimum(whole_from, end)
    whole_to = tl.maximum(whole_to, whole_from)

    # Where the tile begins, and how far behind it each row lies. Rows of one query need no address of their own.
    first_at, first_head = first_row + first_query, (head * GROUP).to(tl.int64)
    if query_starts is None:
        behind, head_of = tl.zeros([BLOCK_M], tl.int64), rows.to(tl.int64)
    elif GROUP % BLOCK_M == 0:
        behind, head_of = tl.zeros([BLOCK_M], tl.int64), tl.arange(0, BLOCK_M).to(tl.int64)
        first_head += tile_of_rows * BLOCK_M % GROUP
    else:
        behind, head_of = (rows // GROUP - first_query).to(tl.int64), (rows % GROUP).to(tl.int64)
    query_heads = HEADS * GROUP
    part_at = first_at
    if MANY:
        part_at = part + first_query * count + split
        if split == 0 and head == 0:
            span = spans + 2 * (first_row + rows // GROUP)
            of_a_query = live & (rows % GROUP == 0)
            tl.store(span, part + rows // GROUP * count, mask=of_a_query)
            tl.store(span + 1, tl.zeros([BLOCK_M], tl.int32) + count, mask=of_a_query)
    if MANY and begin == end:
        # Early queries of a prompt see fewer keys, an empty sequence none. The merge reads the lse alone.
        at = lse + part_at.to(tl.int64) * query_heads + first_head + behind * count * query_heads + head_of
        tl.store(at, float("-inf"), mask=live)
        return
    columns = tl.arange(0, BLOCK_DK)
    q_at = query + first_at * stride_qt + first_head * stride_qh
    q_at = q_at + (behind * stride_qt + head_of * stride_qh)[:, None] + columns[None, :]
    q = tl.load(q_at, mask=live[:, None] & (columns < DK)[None, :], other=0.0)
    q_rope = q
    if LATENT:
        columns = tl.arange(0, BLOCK_DV)
        q_at = query_rope + first_at * stride_rt + first_head * stride_rh
        q_at = q_at + (behind * stride_rt + head_of * stride_rh)[:, None] + columns[None, :]
        q_rope = tl.load(q_at, mask=live[:, None] & (columns < DV)[None, :], other=0.0)
    k_cache += head.to(tl.int64) * stride_kh
    v_cache += head.to(tl.int64) * stride_vh
    if SCALED_K:
        k_scale += head
    if SCALED_V:
        v_scale += head
    table = tables + sequence.to(tl.int64) * stride_table
    logits_at = behind
    if KEEP_LOGITS:
        logits_at = logits + (first_at * query_heads + first_head) * stride_logits
        logits_at = logits_at + (behind * query_heads + head_of) * stride_logits

    DIM: tl.constexpr = DK if LATENT else DV
    BLOCK_D: tl.constexpr = BLOCK_DK if LATENT else BLOCK_DV
    state = (
        tl.full([BLOCK_M], float("-inf"), tl.float32),
        tl.zeros([BLOCK_M], tl.float32),
        tl.zeros([BLOCK_M, BLOCK_D], tl.float32),
    )
    if LATENT:
        # Its products take so many registers that a second loop would spill; beside them a mask costs little.
        state = attend_tiles(
            state, q, q_rope, k_cache, v_cache, k_scale, v_scale, table, logits_at, begin, end, length,
            positions, qk_scale, softcap, stride_kb, stride_kt, stride_vb, stride_vt, stride_ksb, stride_kst,
            stride_vsb, stride_vst, live, DK, DV, BLOCK_DK, BLOCK_DV, BLOCK_N, BLOCK_SIZE, WINDOW, LATENT,
            HAS_SOFTCAP, SCALED_K, SCALED_V, KEEP_LOGITS, True, ALIGNED, EXACT,
        )  # fmt: skip
    else:
        if WINDOW > 0:  # without one no tile is cut in front
            state = attend_tiles(
                state, q, q_rope, k_cache, v_cache, k_scale, v_scale, table, logits_at, begin, whole_from, length,
                positions, qk_scale, softcap, stride_kb, stride_kt, stride_vb, stride_vt, stride_ksb, stride_kst,
                stride_vsb, stride_vst, live, DK, DV, BLOCK_DK, BLOCK_DV, BLOCK_N, BLOCK_SIZE, WINDOW, LATENT,
                HAS_SOFTCAP, SCALED_K, SCALED_V, KEEP_LOGITS, True, ALIGNED, EXACT,
            )  # fmt: skip
        state = attend_tiles(
            state, q, q_rope, k_cache, v_cache, k_scale, v_scale, table, logits_at, whole_from, whole_to, length,
            positions, qk_scale, softcap, stride_kb, stride_kt, stride_vb, stride_vt, stride_ksb, stride_kst,
            stride_vsb, stride_vst, live, DK, DV, BLOCK_DK, BLOCK_DV, BLOCK_N, BLOCK_SIZE, WINDOW, LATENT,
            HAS_SOFTCAP, SCALED_K, SCALED_V, KEEP_LOGITS, False, ALIGNED, EXACT,
        )  # fmt: skip
        state = attend_tiles(
            state, q, q_rope, k_cache, v_cache, k_scale, v_scale, table, logits_at, whole_to, end, length,
            positions, qk_scale, softcap, stride_kb, stride_kt, stride_vb, stride_vt, stride_ksb, stride_kst,
            stride_vsb, stride_vst, live, DK, DV, BLOCK_DK, BLOCK_DV, BLOCK_N, BLOCK_SIZE, WINDOW, LATENT,
            HAS_SOFTCAP, SCALED_K, SCALED_V, KEEP_LOGITS, True, ALIGNED, EXACT,
        )  # fmt: skip
    largest, total, acc = state
    if HAS_SINKS and not MANY:
        sink = tl.load(sinks + first_head + head_of).to(tl.float32) * LOG2_E
        new = tl.maximum(largest, sink)
        finite = tl.where(new == float("-inf"), 0.0, new)  # there is no key, and the sink is switched off
        total = total * tl.exp2(largest - finite) + tl.exp2(sink - finite)
        acc *= tl.exp2(largest - finite)[:, None]
        largest = new

    first_at, at = part_at.to(tl.int64) * query_heads + first_head, behind * count * query_heads + head_of
    sums = tl.where(total == 0, 1.0, total)
    columns = tl.arange(0, BLOCK_D)
    kept = live[:, None] & (columns < DIM)[None, :]
    tl.store(out + first_at * DIM + at[:, None] * DIM + columns[None, :], acc / sums[:, None], mask=kept)
    in_base_2 = tl.where(total == 0, float("-inf"), largest + tl.log2(sums))
    tl.store(lse + first_at + at, in_base_2 * (1.0 if MANY else LN_2), mask=live)


@triton.jit
def merge_splits_kernel(
    parts, part_lse, spans, sinks, out, lse,
    QUERY_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """Grid (T * Hq): merge the parts of a query, each weighted by exp2 of its lse, which is in base 2.

    BLOCK_S of them at a time, so that their loads are under way together and not each behind the one before.
    """
    row = tl.program_id(0).to(tl.int64)
    head, span = row % QUERY_HEADS, spans + row // QUERY_HEADS * 2
    first, splits = tl.load(span).to(tl.int64) * QUERY_HEADS + head, tl.load(span + 1)
    columns = tl.arange(0, BLOCK_D)
    largest = float("-inf")
    total = 0.0
    if HAS_SINKS:
        largest = tl.load(sinks + head).to(tl.float32) * LOG2_E
        total = tl.where(largest == float("-inf"), 0.0, 1.0)
    acc = tl.zeros([BLOCK_D], tl.float32)
    # The same online softmax, over splits instead of tiles: a split's weight is 2 ** (its lse - the largest lse).
    for begin in range(0, splits, BLOCK_S):
        split = begin + tl.arange(0, BLOCK_S)
        at = first + split * QUERY_HEADS
        lses = tl.load(part_lse + at, mask=split < splits, other=float("-inf"))
        new = tl.maximum(largest, tl.max(lses, 0))
        finite = tl.where(new == float("-inf"), 0.0, new)  # -inf - -inf would be NaN
        rescale, shares = tl.exp2(largest - finite), tl.exp2(lses - finite)
        needed = (lses > float("-inf"))[:, None] & (columns < DIM)[None, :]  # nothing of a split without keys
        values = tl.load(parts + at[:, None] * DIM + columns[None, :], mask=needed, other=0.0)
        acc = acc * rescale + tl.sum(values * shares[:, None], 0)
        total = total * rescale + tl.sum(shares, 0)
        largest = new
    sums = tl.where(total == 0, 1.0, total)
    tl.store(out + row * DIM + columns, acc / sums, mask=columns < DIM)
    tl.store(lse + row, tl.where(total == 0, float("-inf"), largest + tl.log2(sums)) * LN_2)


@triton.jit(do_not_specialize=["width"])
def scores_kernel(
    logits, lse, lengths, scores, width, stride_logits,
    HEADS: tl.constexpr, GROUP: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of tokens, HEADS, B): sum the probability of each token over the query heads of a KV head."""
    tokens = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    head, row = tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row).to(tl.int32)
    seen = tokens < length
    if WINDOW > 0:
        seen = seen & (tokens >= length - WINDOW)
    total = tl.zeros([BLOCK], tl.float32)
    for index in range(GROUP):
        at = ((row * HEADS + head) * GROUP + index).to(tl.int64)
        logit = tl.load(logits + at * stride_logits + tokens, mask=seen, other=float("-inf"))
        whole = tl.load(lse + at)
        total += tl.exp2(logit - tl.where(whole == float("-inf"), 0.0, whole) * LOG2_E)
    place = scores + (row * HEADS + head).to(tl.int64) * width + tokens
    tl.store(place, tl.where(seen, total, 0.0), mask=tokens < width)
