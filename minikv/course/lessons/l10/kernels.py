"""The kernels of lesson 10 that nano does not have: a store, and a decode that splits the sequence.

They are as short as possible. The lesson's kernel between the two is nano's own.

Import this after ``launch.prepare``: Triton decides at the decorator whether a kernel is interpreted. The kernels take
contiguous float32 or float16 tensors; group, head dimension and block size must be powers of two. The kernels of the
package (``minikv/kernels/gpu``) take everything else, and use the tensor cores.
"""

import triton
import triton.language as tl


@triton.jit
def store_kernel(key, k_cache, slots, BLOCK: tl.constexpr, ROW: tl.constexpr):
    """One program a token: ``key`` [T, ROW] to its slot of ``k_cache`` [blocks, BLOCK, ROW]."""
    token = tl.program_id(0)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        block, inside = slot // BLOCK, slot % BLOCK
        row = tl.arange(0, ROW)
        values = tl.load(key + token * ROW + row)
        tl.store(k_cache + block * BLOCK * ROW + inside * ROW + row, values)


@triton.jit
def split_kernel(
    query, k_cache, v_cache, tables, lengths, parts, part_lse, scale, width,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One program a sequence, KV head and split: all GROUP query heads of the KV head, over a share of the tiles.

    ``parts`` [SPLITS, B, KV_HEADS * GROUP, DIM] and ``part_lse`` [SPLITS, B, KV_HEADS * GROUP].
    """
    sequence, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + sequence)
    inside, columns, group = tl.arange(0, BLOCK), tl.arange(0, DIM), tl.arange(0, GROUP)
    heads = (sequence * KV_HEADS + kv_head) * GROUP + group
    q = tl.load(query + heads[:, None] * DIM + columns[None, :]).to(tl.float32) * scale  # [GROUP, DIM]

    tiles = tl.cdiv(length, BLOCK)
    share = tl.cdiv(tiles, SPLITS)
    largest = tl.full([GROUP], float("-inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    acc = tl.zeros([GROUP, DIM], tl.float32)
    for tile in range(split * share, tl.minimum(split * share + share, tiles)):
        block = tl.load(tables + sequence * width + tile).to(tl.int64)
        rows = (block * BLOCK + inside) * KV_HEADS + kv_head
        stored = tile * BLOCK + inside < length
        at = rows[:, None] * DIM + columns[None, :]
        k = tl.load(k_cache + at, mask=stored[:, None], other=0.0).to(tl.float32)  # once for the group
        v = tl.load(v_cache + at, mask=stored[:, None], other=0.0).to(tl.float32)

        logits = tl.sum(q[:, None, :] * k[None, :, :], 2)  # [GROUP, BLOCK]
        logits = tl.where(stored[None, :], logits, float("-inf"))
        new = tl.maximum(largest, tl.max(logits, 1))
        rescale = tl.exp(largest - new)
        weights = tl.exp(logits - new[:, None])
        total = total * rescale + tl.sum(weights, 1)
        acc = acc * rescale[:, None] + tl.sum(weights[:, :, None] * v[None, :, :], 1)
        largest = new
    # A split without a tile leaves 0 and -inf: it takes no part.
    at = split * tl.num_programs(0) * KV_HEADS * GROUP + heads
    sums = tl.where(total == 0, 1.0, total)
    tl.store(parts + at[:, None] * DIM + columns[None, :], acc / sums[:, None])
    tl.store(part_lse + at, tl.where(total == 0, float("-inf"), largest + tl.log(sums)))
