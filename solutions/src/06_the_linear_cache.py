# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="offset_task" lang="en"
# ## 06.1 From six indices to one
#
# `shape` is the shape of a linear cache, (layers, batch, 2, kv_heads, max_seq, head_dim), and `place` gives the six indices of one element.
# Return how many elements lie before it in memory.
# %% [markdown] key="offset_task" lang="zh" src="eb981b7b"
# ## 06.1 从六个下标到一个偏移
#
# `shape` 是线性缓存的形状（layers, batch, 2, kv_heads, max_seq, head_dim），`place` 是某个元素的六个下标。
# 返回内存中排在它前面的元素个数。

# %% key="offset_stub"
def element_offset(shape: tuple[int, ...], place: tuple[int, ...]) -> int:
    ### BEGIN SOLUTION
    offset = 0
    for size, index in zip(shape, place):
        offset = offset * size + index
    return offset
    ### END SOLUTION


check("06.1", element_offset)

# %% [markdown] key="wasted_task" lang="en"
# ## 06.2 What stays empty
#
# The rows hold `lengths` tokens, and you look at two caches:
#
# - a linear one, which reserves `max_seq` tokens for each row;
# - a paged one, which gives each row whole blocks of `block_size` tokens, and no block to a row without tokens.
#
# A token takes `token_bytes` in all layers together.
# Return the bytes that are reserved and empty, as a pair: (linear, paged).
# %% [markdown] key="wasted_task" lang="zh" src="6f8c0322"
# ## 06.2 空着多少
#
# 各行有 `lengths` 个 token，分别考虑下面两种缓存：
#
# - 线性缓存，每行预留 `max_seq` 个 token；
# - 分页缓存，每行占用整数个块，每块可存 `block_size` 个 token；没有 token 的行不占块。
#
# 一个 token 在所有层合计占 `token_bytes` 字节。
# 返回已预留但空着的字节数，写成一对：（线性，分页）。

# %% key="wasted_stub"
def wasted_bytes(
    lengths: list[int], max_seq: int, block_size: int, token_bytes: int
) -> tuple[int, int]:
    ### BEGIN SOLUTION
    tokens = sum(lengths)
    linear = len(lengths) * max_seq
    paged = sum(-(-length // block_size) * block_size for length in lengths)
    return (linear - tokens) * token_bytes, (paged - tokens) * token_bytes
    ### END SOLUTION


check("06.2", wasted_bytes)

# %% [markdown] key="cache_task" lang="en"
# ## 06.3 A linear cache of your own
#
# Write the class.
#
# - `write(layer, k, v)`: `k` and `v` are `[batch, kv_heads, T, head_dim]`. Put the tokens of each row after those that are counted already. The lengths don't change.
# - `commit(increments)`: one number for each row, at most T. The last T - increments[row] tokens of a row were padding, and its next step may write over them.
# - `read(layer, row)`: K and V of the counted tokens, `[kv_heads, length, head_dim]` each.
#
# The check writes every layer and commits once, for several steps. Then it reads everything. There is always room.
# (A counterexample shows what each `read(layer, row)` returned. Every K holds its own place, 10,000 x (layer + 1) + 1,000 x head + 100 x row + position, and V is its negative. Padding is 999,999, and 0 is a place that was never written.)
# %% [markdown] key="cache_task" lang="zh" src="2ca1e301"
# ## 06.3 自己写一个线性缓存
#
# 请写出这个类。
#
# - `write(layer, k, v)`：`k` 和 `v` 的形状是 `[batch, kv_heads, T, head_dim]`。把每行的 token 写到该行已计数内容的后面，长度不变。
# - `commit(increments)`：每行一个数，不超过 T。一行最后的 T - increments[row] 个 token 只是补齐用的，该行的下一步可以覆盖它们。
# - `read(layer, row)`：已计数 token 的 K 和 V，形状都是 `[kv_heads, length, head_dim]`。
#
# 检查时会写入每一层，然后提交一次，这样走若干步，最后读出全部内容。位置总是够用。
# （反例会列出每次 `read(layer, row)` 返回的内容。每个 K 的数值就是它自己的位置，即 10,000 ×（层 + 1）+ 1,000 × 头 + 100 × 行 + 位置，V 是它的相反数。补齐用的是 999,999，0 表示从没写过的位置。）

# %% key="cache_stub"
import torch


class RowCache:
    def __init__(self, layers: int, batch: int, kv_heads: int, max_seq: int, head_dim: int):
        ### BEGIN SOLUTION
        self.kv = torch.zeros(layers, batch, 2, kv_heads, max_seq, head_dim)
        self.lengths = [0] * batch
        ### END SOLUTION

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        ### BEGIN SOLUTION
        new = k.shape[2]
        for row, length in enumerate(self.lengths):
            self.kv[layer, row, 0, :, length : length + new] = k[row]
            self.kv[layer, row, 1, :, length : length + new] = v[row]
        ### END SOLUTION

    def commit(self, increments: list[int]) -> None:
        ### BEGIN SOLUTION
        for row, more in enumerate(increments):
            self.lengths[row] += more
        ### END SOLUTION

    def read(self, layer: int, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        ### BEGIN SOLUTION
        length = self.lengths[row]
        return self.kv[layer, row, 0, :, :length], self.kv[layer, row, 1, :, :length]
        ### END SOLUTION


check("06.3", RowCache)

# %% [markdown] key="steps_task" lang="en"
# ## 06.4 How many more steps?
#
# A batch has read its `prompts` (tokens of each row) and now decodes: every step adds one token to every row.
# Return how many steps all rows can take together, as a pair: (linear, paged).
#
# - Linear: each row has room for `max_seq` tokens.
# - Paged: the pool has `num_blocks` blocks of `block_size` tokens, and any row may take any free block. The prompts fit, and there is no `max_seq`.
# %% [markdown] key="steps_task" lang="zh" src="e31cf5c9"
# ## 06.4 还能走多少步？
#
# 一个 batch 已读完 `prompts`（各行的 token 数），现在开始解码：每一步给每行增加一个 token。
# 返回所有行一起最多能走多少步，写成一对：（线性，分页）。
#
# - 线性：每行有 `max_seq` 个 token 的位置。
# - 分页：块池有 `num_blocks` 个块，每块 `block_size` 个 token，任何一行都可以取任何空闲块。提示词保证放得下，这里也没有 `max_seq` 的限制。

# %% key="steps_stub"
def steps_left(prompts: list[int], max_seq: int, num_blocks: int, block_size: int) -> tuple[int, int]:
    ### BEGIN SOLUTION
    def fits(steps: int) -> bool:
        return sum(-(-(length + steps) // block_size) for length in prompts) <= num_blocks

    paged = 0
    while fits(paged + 1):
        paged += 1
    return max_seq - max(prompts), paged
    ### END SOLUTION


check("06.4", steps_left)

# %% [markdown] key="steps_why" lang="en"
# ### BEGIN SOLUTION
# Give both caches the same bytes, `num_blocks * block_size = len(prompts) * max_seq`, with a `max_seq` of whole blocks. Then the paged cache never stops first, because until the longest row is full, no row needs more than its share.
# It goes on longer if the short rows leave enough whole blocks for the long ones.
# ### END SOLUTION
# %% [markdown] key="steps_why" lang="zh" src="8327e84e"
# ### BEGIN SOLUTION
# 让两种缓存的字节数相同，即 `num_blocks * block_size = len(prompts) * max_seq`，并且 `max_seq` 是整数个块。这时分页缓存一定不会先停下，因为在最长的行满之前，没有哪一行需要的块超过自己那一份。
# 如果短的行剩下足够多的整块可以让给长的行，分页缓存还能走得更久。
# ### END SOLUTION

# %% [markdown] key="write_task" lang="en"
# ## 06.5 Write to slots
#
# The paged cache of `minikv.nano` has one K and one V tensor for all layers: `self.k` is `[layers, num_blocks, block_size, kv_heads, k_dim]`, and `self.v` is the same with `v_dim`.
# Write its method `KVCache.write`. It puts `key`, `[T, kv_heads, k_dim]`, and `value`, `[T, kv_heads, v_dim]`, into the `slots` of `layer`.
#
# - `slots` is a tensor of T slot numbers. Slot s is offset `s % block_size` of block `s // block_size`. The T tokens may belong to several sequences, so the slots come in any order, but each at most once.
# - What a slot held before is replaced. All other slots stay as they are.
# - The cache may have another dtype than `key` and `value`.
#
# This function is a part of *your engine*: once it passes, it is kept, and [lesson 11c](../../notebooks/en/11c_your_engine.ipynb) runs the engine with it.
# %% [markdown] key="write_task" lang="zh" src="46a4048b"
# ## 06.5 写入槽位
#
# `minikv.nano` 的分页缓存用一个 K 张量和一个 V 张量存放所有层：`self.k` 的形状是 `[layers, num_blocks, block_size, kv_heads, k_dim]`，`self.v` 相同，只是最后一维是 `v_dim`。
# 请写出它的方法 `KVCache.write`：把 `key`（`[T, kv_heads, k_dim]`）和 `value`（`[T, kv_heads, v_dim]`）写进第 `layer` 层的 `slots`。
#
# - `slots` 是含有 T 个槽位号的张量。槽位 s 就是块 `s // block_size` 里偏移为 `s % block_size` 的位置。这 T 个 token 可能来自多条序列，所以槽位的次序是任意的，但不会重复。
# - 槽位里原来的内容会被替换，其他槽位保持不变。
# - 缓存的 dtype 可能与 `key`、`value` 不同。
#
# 这个函数是“你的引擎”的一个部件：通过之后会保存下来，[第 11c 课](../../notebooks/zh/11c_your_engine.ipynb)会用它来运行引擎。

# %% key="write_stub" lang="en"
def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    ### BEGIN SOLUTION
    # Views [num_blocks * block_size, kv_heads, dim]: a row for each slot.
    k, v = self.k[layer].flatten(0, 1), self.v[layer].flatten(0, 1)
    k[slots] = key.to(k.dtype)
    v[slots] = value.to(v.dtype)
    ### END SOLUTION


check("06.5", write)

# %% key="write_stub" lang="zh"
def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    ### BEGIN SOLUTION
    # 视图 [num_blocks * block_size, kv_heads, dim]：一个槽位一行。
    k, v = self.k[layer].flatten(0, 1), self.v[layer].flatten(0, 1)
    k[slots] = key.to(k.dtype)
    v[slots] = value.to(v.dtype)
    ### END SOLUTION


check("06.5", write)

# %% [markdown] key="write_why" lang="en"
# ### BEGIN SOLUTION
# `flatten` gives a view here, so the assignment reaches the pool. `k[slots].copy_(key)` would not: indexing with a tensor makes a copy.
# ### END SOLUTION
# %% [markdown] key="write_why" lang="zh" src="0c1650b4"
# ### BEGIN SOLUTION
# 这里 `flatten` 得到的是视图，所以赋值能写进块池。`k[slots].copy_(key)` 则不行，因为用张量做下标得到的是副本。
# ### END SOLUTION
