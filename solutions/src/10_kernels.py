# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="store_task" lang="en"
# ## 10.1 Store
#
# `key` and `value` are the new tokens, `[T, kv_heads, head_dim]` each. Write token i into slot `slots[i]` of `k_cache` and `v_cache`, `[blocks, block_size, kv_heads, head_dim]` each.
# A negative slot means: do not store this token.
#
# Change the caches in place, nothing else, and return nothing.
# In some cases K and V of a block lie side by side in one tensor, so the two caches are views that are not contiguous.
#
# The check fills token i with i + 1 (and 100 more in its second head), V with the negative of that, stores in two calls, half of the tokens each, and then reads everything back; 0 was never written.
# %% [markdown] key="store_task" lang="zh" src="1d1f5258"
# ## 10.1 写入
#
# `key` 和 `value` 是新 token，形状都是 `[T, kv_heads, head_dim]`。把第 i 个 token 写入 `k_cache` 和 `v_cache` 的槽位 `slots[i]`；两个缓存的形状都是 `[块数, block_size, kv_heads, head_dim]`。
# 槽位为负表示不写这个 token。
#
# 直接修改缓存，别的都不改，也不返回任何东西。
# 有些情况下，一个块的 K 和 V 挨着放在同一个张量里，这时两个缓存是不连续的视图。
#
# 检查时，第 i 个 token 的各元素是 i + 1（第二个头再加 100），V 是它的相反数；分两次调用写入，每次一半，最后读出全部内容，0 表示从未写过。

# %% key="store_stub"
import torch


def store_kv(key: torch.Tensor, value: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor) -> None:
    ### BEGIN SOLUTION
    block_size = k_cache.shape[1]
    stored = slots >= 0
    blocks, places = slots[stored] // block_size, slots[stored] % block_size
    k_cache[blocks, places] = key[stored]
    v_cache[blocks, places] = value[stored]
    ### END SOLUTION


check("10.1", store_kv)

# %% [markdown] key="offsets_task" lang="en"
# ## 10.2 The lookup
#
# A program is about to load a tile: the `count` positions from `start` on.
# For each of them say where its row begins in the cache, counted in elements, or `None` if it must not be read.
#
# - The sequence has `length` tokens, at positions 0 to `length - 1`; the query stands at the last one.
# - With a `window` (or `None`) the query looks at that many positions, itself included. In front of them the table may hold -1.
# - From one block to the next it is `stride_block` elements, from one token to the next in the same block `stride_token`.
# %% [markdown] key="offsets_task" lang="zh" src="e12d3b9c"
# ## 10.2 查表
#
# 一个程序正要读一个分片，即从 `start` 开始的 `count` 个位置。
# 对每个位置，给出它那一行在缓存里从第几个元素开始；不该读的给 `None`。
#
# - 序列有 `length` 个 token，位置是 0 到 `length - 1`，query 在最后一个位置。
# - 有窗口时（`window` 不是 `None`），query 连自己在内只看 `window` 个位置。窗口之前，块表里可能是 -1。
# - 相邻两块相距 `stride_block` 个元素；同一块里相邻两个 token 相距 `stride_token` 个元素。

# %% key="offsets_stub"
def token_offsets(
    block_table: list[int],
    start: int,
    count: int,
    length: int,
    window: int | None,
    block_size: int,
    stride_block: int,
    stride_token: int,
) -> list[int | None]:
    ### BEGIN SOLUTION
    first = 0 if window is None else length - window
    offsets = []
    for position in range(start, start + count):
        if not first <= position < length:
            offsets.append(None)
            continue
        block = block_table[position // block_size]
        offsets.append(block * stride_block + position % block_size * stride_token)
    return offsets
    ### END SOLUTION


check("10.2", token_offsets)

# %% [markdown] key="attend_task" lang="en"
# ## 10.3 A softmax to repair
#
# `tiles` is a list of pairs: the logits of a tile, and the value of each key (one number each).
# A logit of `-math.inf` is a hidden key; a whole tile may be hidden, but not all of them.
# Return the pair (result, lse) of one softmax over all keys, in one pass over the tiles.
# Two Python floats: the check compares nine digits, which a float32 does not have.
#
# Somebody wrote this, and it is wrong nearly always:
#
# ```python
# largest, total, acc = -math.inf, 0.0, 0.0
# for logits, values in tiles:
#     largest = max(logits)
#     weights = [math.exp(x - largest) for x in logits]
#     total += sum(weights)
#     acc += sum(w * v for w, v in zip(weights, values))
# return acc / total, largest + math.log(total)
# ```
#
# Write it right.
# %% [markdown] key="attend_task" lang="zh" src="54097ff6"
# ## 10.3 修好 softmax
#
# `tiles` 是一串二元组：一个分片的各个 logit，以及每个 key 的 value（各是一个数）。
# logit 为 `-math.inf` 表示这个 key 被遮住；整个分片都可能被遮住，但不会全部分片都被遮住。
# 只扫一遍分片，返回对全部 key 做一次 softmax 的二元组（结果，lse）。
# 两个都是 Python 浮点数：检查时比较 9 位有效数字，float32 没有这么高的精度。
#
# 有人写成了下面这样，它几乎总是错的：
#
# ```python
# largest, total, acc = -math.inf, 0.0, 0.0
# for logits, values in tiles:
#     largest = max(logits)
#     weights = [math.exp(x - largest) for x in logits]
#     total += sum(weights)
#     acc += sum(w * v for w, v in zip(weights, values))
# return acc / total, largest + math.log(total)
# ```
#
# 请把它写对。

# %% key="attend_stub"
import math


def attend(tiles: list[tuple[list[float], list[float]]]) -> tuple[float, float]:
    ### BEGIN SOLUTION
    largest, total, acc = -math.inf, 0.0, 0.0
    for logits, values in tiles:
        new = max(largest, max(logits))
        if new == -math.inf:
            continue
        rescale = math.exp(largest - new)
        weights = [math.exp(x - new) for x in logits]
        total = total * rescale + sum(weights)
        acc = acc * rescale + sum(w * v for w, v in zip(weights, values))
        largest = new
    return acc / total, largest + math.log(total)
    ### END SOLUTION


check("10.3", attend)

# %% [markdown] key="merge_task" lang="en"
# ## 10.4 Two splits
#
# Two programs have computed attention over different keys of one row. Each left its output, a list of numbers, and its lse.
# Return the output and the lse over all keys together.
# A program that had no key left zeros and an lse of `-math.inf`. If both did, so does the whole.
# Python floats again, compared to nine digits.
# %% [markdown] key="merge_task" lang="zh" src="67fb6160"
# ## 10.4 合并两份
#
# 两个程序对同一行的不同 key 算了注意力，各留下输出（一列数）和 lse。
# 返回对全部 key 的输出和 lse。
# 没有分到 key 的程序留下的是零和 `-math.inf` 的 lse。两个都没有时，整体也是如此。
# 仍用 Python 浮点数，比较 9 位有效数字。

# %% key="merge_stub"
def merge(out_a: list[float], lse_a: float, out_b: list[float], lse_b: float) -> tuple[list[float], float]:
    ### BEGIN SOLUTION
    largest = max(lse_a, lse_b)
    if largest == -math.inf:
        return out_a, largest
    a, b = math.exp(lse_a - largest), math.exp(lse_b - largest)
    out = [(a * x + b * y) / (a + b) for x, y in zip(out_a, out_b)]
    return out, largest + math.log(a + b)
    ### END SOLUTION


check("10.4", merge)

# %% [markdown] key="decode_task" lang="en"
# ## 10.5 Decode
#
# One query of one sequence, all heads: `query` is `[query_heads, head_dim]`. The sequence has `length` tokens, the query stands at the last one.
# The caches are `[blocks, block_size, kv_heads, head_dim]`, and `block_table` names the blocks of this sequence.
# `query_heads` is a multiple of `kv_heads`; neighbouring query heads share a KV head. `window` is `None` or a number of positions, the query's own included.
#
# Return softmax(scale * q K^T) V, `[query_heads, head_dim]`.
#
# In tiles or at once, in torch or, if you like, as a Triton kernel behind this function. Whatever the query may not see is NaN, and behind a window the table may hold -1.
# Change nothing that you are given.
# The check asks for every sequence of a small cache.
# %% [markdown] key="decode_task" lang="zh" src="2ff152f8"
# ## 10.5 解码
#
# 一条序列的一个 query，所有的头：`query` 的形状是 `[query_heads, head_dim]`。序列有 `length` 个 token，query 在最后一个位置。
# 两个缓存的形状是 `[块数, block_size, kv_heads, head_dim]`，`block_table` 给出这条序列的块。
# `query_heads` 是 `kv_heads` 的整数倍，相邻的 query 头共用一个 KV 头。`window` 是 `None`，或者一个位置数（包括 query 自己）。
#
# 返回 softmax(scale * q K^T) V，形状 `[query_heads, head_dim]`。
#
# 分片算或一次算都行，用 torch，或者愿意的话，在这个函数背后写一个 Triton kernel。query 不该看到的一律是 NaN，窗口之前的表项可能是 -1。
# 不要改动传进来的任何东西。
# 检查会对一个小缓存里的每条序列调用它。

# %% key="decode_stub"
def decode(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    length: int,
    window: int | None,
    scale: float,
) -> torch.Tensor:
    ### BEGIN SOLUTION
    block_size, kv_heads = k_cache.shape[1:3]
    group = len(query) // kv_heads
    first = 0 if window is None else max(0, length - window)
    q = query.view(kv_heads, group, -1) * scale

    largest = torch.full((kv_heads, group, 1), -math.inf)
    total, acc = torch.zeros_like(largest), torch.zeros_like(q)
    for entry in range(first // block_size, (length - 1) // block_size + 1):
        block = int(block_table[entry])
        low = max(first - entry * block_size, 0)
        high = min(length - entry * block_size, block_size)
        k = k_cache[block, low:high].transpose(0, 1)
        v = v_cache[block, low:high].transpose(0, 1)
        logits = q @ k.transpose(1, 2)
        new = torch.maximum(largest, logits.amax(-1, keepdim=True))
        rescale, weights = torch.exp(largest - new), torch.exp(logits - new)
        total = total * rescale + weights.sum(-1, keepdim=True)
        acc = acc * rescale + weights @ v
        largest = new
    return (acc / total).flatten(0, 1)
    ### END SOLUTION


check("10.5", decode)

# %% [markdown] key="decode_why" lang="en"
# ### BEGIN SOLUTION
# This is the packed kernel of the lesson, one KV head a matrix and one block a tile.
# The slice `low:high` is its mask: what is not in it is never read, so NaN cannot get in. A mask that multiplies by 0 would let it in, since 0 times NaN is NaN.
# ### END SOLUTION
# %% [markdown] key="decode_why" lang="zh" src="42259997"
# ### BEGIN SOLUTION
# 这就是课上打包后的 kernel：一个 KV 头一个矩阵，一个块一个分片。
# 切片 `low:high` 就是它的掩码：不在其中的根本不读，NaN 就进不来。如果掩码是乘以 0，NaN 还是会进来，因为 0 乘 NaN 仍是 NaN。
# ### END SOLUTION
