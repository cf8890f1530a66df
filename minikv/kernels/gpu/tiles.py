"""The parts of the Triton kernels: where a token lies, how its row is read, and one step of the softmax.

Everything runs three ways: compiled on a GPU, compiled ahead of time without one (the tests read the result), and in
Triton's interpreter on a CPU. The interpreter computes bfloat16 products wrongly: EXACT widens their operands to
float32 first.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)  # exp(x) = exp2(x * log2(e)): the hardware has exp2
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def block_ids(
    table,  # the block table of this sequence
    start,  # the position of the tile's first token, a multiple of BLOCK_N
    end,  # no entry of the table for positions from here on is read
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Return the blocks of a tile of BLOCK_N tokens, int32 or int64, as ``token_offsets`` takes them.

    One block id is read for a tile that lies within a block, one for each block of a tile of several blocks, and one
    for each token where neither divides the other.
    """
    if BLOCK_SIZE % BLOCK_N == 0:
        tokens = start
    elif BLOCK_N % BLOCK_SIZE == 0:
        tokens = start + tl.arange(0, BLOCK_N // BLOCK_SIZE) * BLOCK_SIZE
    else:
        tokens = start + tl.arange(0, BLOCK_N)
    return tl.load(table + tokens // BLOCK_SIZE, mask=tokens < end, other=0)


@triton.jit
def token_offsets(
    blocks,  # of the tile that begins at ``start``: ``block_ids``
    start,
    stride_block,
    stride_token,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Return where BLOCK_N tokens begin in the cache, int64 [BLOCK_N], since a pool may have more than 2**31 elements.

    ALIGNED: every row begins at a multiple of 16 elements. Without that hint Triton loads two bytes at a time.
    """
    # In each case: offset = block of the token * stride_block + position % BLOCK_SIZE * stride_token.
    blocks = blocks.to(tl.int64)
    if BLOCK_SIZE % BLOCK_N == 0:
        inside = start % BLOCK_SIZE + tl.arange(0, BLOCK_N)
        offsets = blocks * stride_block + inside.to(tl.int64) * stride_token
    elif BLOCK_N % BLOCK_SIZE == 0:
        inside = tl.arange(0, BLOCK_SIZE).to(tl.int64)
        offsets = tl.reshape(blocks[:, None] * stride_block + inside[None, :] * stride_token, [BLOCK_N])
    else:
        tokens = start + tl.arange(0, BLOCK_N)
        offsets = blocks * stride_block + (tokens % BLOCK_SIZE).to(tl.int64) * stride_token
    if ALIGNED:
        offsets = tl.multiple_of(offsets, 16)
    return offsets


@triton.jit
def load_rows(cache, offsets, stored, DIM: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr):
    """Load rows of DIM elements at ``offsets`` [n] as [n, BLOCK_D]; columns beyond DIM and rows not ``stored`` are 0.

    A row that is not stored is not read: it may hold NaN, and 0 * NaN is NaN.
    """
    columns = tl.arange(0, BLOCK_D)
    at = cache + offsets[:, None] + columns[None, :]
    if MASKED:
        return tl.load(at, mask=stored[:, None] & (columns < DIM)[None, :], other=0.0)
    if BLOCK_D != DIM:
        return tl.load(at, mask=(columns < DIM)[None, :], other=0.0)
    return tl.load(at)


@triton.jit
def converted(rows, dtype: tl.constexpr):
    """Return stored ``rows`` in the query's ``dtype``."""
    if rows.dtype == tl.float8e4nv and dtype == tl.bfloat16:
        # Each number fits float16 too. Triton 3.6 goes on from there in one step, which only a Hopper can do.
        return rows.to(tl.float16).to(tl.float32).to(dtype)
    return rows.to(dtype)


@triton.jit
def matmul(a, b, EXACT: tl.constexpr):
    """Return a [m, k] @ b [k, n] with float32 sums. float32 operands are not cut to tf32."""
    if EXACT:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def capped(logits, softcap, HAS_SOFTCAP: tl.constexpr):
    """Return logits in base 2, for exp2. With a cap they come divided by it, and are returned as its multiple."""
    if HAS_SOFTCAP:
        # tanh(x) = 1 - 2 / (exp(2x) + 1). If exp2 overflows to infinity, 2 / inf is 0, which is right.
        logits = softcap * (1 - 2 / (tl.exp2(logits * (2 * LOG2_E)) + 1))
    return logits


@triton.jit
def online_softmax(largest, total, logits):
    """Add one tile to the running maximum and sum [m]: (largest, total, weights [m, n], rescale [m])."""
    new = tl.maximum(largest, tl.max(logits, 1))
    # For a row without any key yet, since -inf - -inf would be NaN.
    finite = tl.where(new == float("-inf"), 0.0, new)
    weights = tl.exp2(logits - finite[:, None])
    # Old terms have the factor 2 ** (old maximum - new maximum), so that all terms refer to the new maximum.
    rescale = tl.exp2(largest - finite)
    return new, total * rescale + tl.sum(weights, 1), weights, rescale
