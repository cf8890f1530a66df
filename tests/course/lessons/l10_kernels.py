"""Kernels as learners write them for exercise 10.6: two that are right, the stub, and three that go astray."""

import triton
import triton.language as tl


@triton.jit
def two_passes(
    query, k_cache, v_cache, block_tables, lengths, out, scale,
    window, softcap, table_stride, block_size, heads,
    group, k_dim, v_dim,
    GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Not online, and right: it reads K twice, first for the largest logit."""
    seq, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + seq).to(tl.int32)
    rows, dk, dv = tl.arange(0, GROUP), tl.arange(0, K_DIM), tl.arange(0, V_DIM)
    first_row = (seq * heads + head) * group
    real = (rows < group)[:, None]
    q = tl.load(query + (first_row + rows)[:, None] * k_dim + dk, mask=real & (dk < k_dim), other=0.0)
    best = tl.full([GROUP], -float("inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    summed = tl.zeros([GROUP, V_DIM], tl.float32)
    first = tl.where((window > 0) & (window < length), length - window, 0)
    for turn in range(2):
        for start in range(first // TILE * TILE, length, TILE):
            at = start + tl.arange(0, TILE)
            seen = (at >= first) & (at < length)
            block = tl.load(block_tables + seq * table_stride + at // block_size, mask=seen, other=0)
            token = ((block * block_size + at % block_size) * heads + head)[:, None]
            k = tl.load(k_cache + token * k_dim + dk, mask=seen[:, None] & (dk < k_dim), other=0.0)
            v = tl.load(v_cache + token * v_dim + dv, mask=seen[:, None] & (dv < v_dim), other=0.0)
            logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            if softcap > 0:
                power = tl.exp(2 * logits / softcap)
                logits = softcap * (1 - 2 / (power + 1))
            logits = tl.where(seen, logits, -float("inf"))
            if turn == 0:
                best = tl.maximum(best, tl.max(logits, 1))
            else:
                weights = tl.exp(logits - best[:, None])
                total += tl.sum(weights, 1)
                summed += tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    row = out + (first_row + rows)[:, None] * v_dim + dv
    tl.store(row, (summed / total[:, None]).to(out.dtype.element_ty), mask=real & (dv < v_dim))


@triton.jit
def without_tl_dot(
    query, k_cache, v_cache, block_tables, lengths, out, scale,
    window, softcap, table_stride, block_size, heads,
    group, k_dim, v_dim,
    GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Products as sums, and a mask that is added."""
    seq, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + seq).to(tl.int32)
    rows, dk, dv = tl.arange(0, GROUP), tl.arange(0, K_DIM), tl.arange(0, V_DIM)
    first_row = (seq * heads + head) * group
    real = (rows < group)[:, None]
    q = tl.load(query + (first_row + rows)[:, None] * k_dim + dk, mask=real & (dk < k_dim), other=0.0) * scale
    best = tl.full([GROUP], -float("inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    summed = tl.zeros([GROUP, V_DIM], tl.float32)
    first = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    for start in range(first, length, TILE):
        at = start + tl.arange(0, TILE)
        seen = at < length
        block = tl.load(block_tables + seq * table_stride + at // block_size, mask=seen, other=0)
        token = ((block * block_size + at % block_size) * heads + head)[:, None]
        k = tl.load(k_cache + token * k_dim + dk, mask=seen[:, None] & (dk < k_dim), other=0.0)
        v = tl.load(v_cache + token * v_dim + dv, mask=seen[:, None] & (dv < v_dim), other=0.0)
        logits = tl.sum(q[:, None, :] * k[None, :, :], 2)
        if softcap > 0:
            power = tl.exp(2 * logits / softcap)
            logits = softcap * (1 - 2 / (power + 1))
        logits += tl.where(seen, 0.0, -float("inf"))
        new = tl.maximum(best, tl.max(logits, 1))
        weights = tl.exp(logits - new[:, None])
        rescale = tl.exp(best - new)
        total = total * rescale + tl.sum(weights, 1)
        summed = summed * rescale[:, None] + tl.sum(weights[:, :, None] * v[None, :, :], 1)
        best = new
    row = out + (first_row + rows)[:, None] * v_dim + dv
    tl.store(row, (summed / total[:, None]).to(out.dtype.element_ty), mask=real & (dv < v_dim))


@triton.jit
def stub(
    query, k_cache, v_cache, block_tables, lengths, out, scale,
    window, softcap, table_stride, block_size, heads,
    group, k_dim, v_dim,
    GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """What the exercise notebook gives."""
    raise NotImplementedError


@triton.jit
def stores_nothing(
    query, k_cache, v_cache, block_tables, lengths, out, scale,
    window, softcap, table_stride, block_size, heads,
    group, k_dim, v_dim,
    GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The result stays what it was."""
    tl.load(lengths + tl.program_id(0))


@triton.jit
def reads_outside(
    query, k_cache, v_cache, block_tables, lengths, out, scale,
    window, softcap, table_stride, block_size, heads,
    group, k_dim, v_dim,
    GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The address 4 TB further: the process would end."""
    tl.load(k_cache + (tl.arange(0, TILE).to(tl.int64) + 1) * 1_000_000_000_000)


@triton.jit
def writes_outside(
    query, k_cache, v_cache, block_tables, lengths, out, scale,
    window, softcap, table_stride, block_size, heads,
    group, k_dim, v_dim,
    GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The same, written to."""
    tl.store(out + (tl.arange(0, TILE).to(tl.int64) + 1) * 1_000_000_000_000, 1.0)
