# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="fit_task" lang="en"
# ## 13.1 A pool in tokens
#
# A pool has `pool_bytes` bytes. It holds the cache of a model with `layers` layers and `kv_heads` KV heads in each.
# A token leaves one row of K and one row of V in every KV head. A row is `head_dim` numbers of `itemsize` bytes, and a scale of `scale_bytes` bytes (0 if there is none).
# The pool consists of whole blocks of `block_size` tokens. What is left over at the end is smaller than a block and of no use.
#
# How many tokens does the pool hold?
# %% [markdown] key="fit_task" lang="zh" src="f84fcc0b"
# ## 13.1 块池能放多少个 token
#
# 一个块池有 `pool_bytes` 字节，用来放一个模型的缓存。模型有 `layers` 层，每层 `kv_heads` 个 KV 头。
# 一个 token 在每个 KV 头里留下一行 K 和一行 V。一行有 `head_dim` 个数，每个 `itemsize` 字节，外加一个 `scale_bytes` 字节的缩放因子（没有的话是 0）。
# 块池由整块组成，块大小为 `block_size`；不满一块的零头用不上。
#
# 块池放得下多少个 token？

# %% key="fit_stub"
def tokens_that_fit(
    pool_bytes: int, layers: int, kv_heads: int, head_dim: int, itemsize: int, scale_bytes: int, block_size: int
) -> int:
    ### BEGIN SOLUTION
    row = head_dim * itemsize + scale_bytes
    block = layers * kv_heads * 2 * row * block_size
    return pool_bytes // block * block_size
    ### END SOLUTION


check("13.1", tokens_that_fit)

# %% [markdown] key="rows_task" lang="en"
# ## 13.2 A token's heads as int8
#
# `heads` is the K of one token: a list of numbers for each KV head.
# Store each head by itself. Its scale turns the number with the largest absolute value into 127 (or -127). Divide every number by the scale and round it to the nearest whole number.
#
# Return `(numbers, scale)` for each head, so that `number * scale` is about the original.
# A head of zeros has zeros and the scale 0.0.
# %% [markdown] key="rows_task" lang="zh" src="d3773204"
# ## 13.2 把一个 token 的各个头存成 int8
#
# `heads` 是一个 token 的 K，每个 KV 头一个列表。
# 每个头单独存。缩放因子让绝对值最大的数变成 127（或 -127）。每个数除以缩放因子，再四舍五入成整数。
#
# 为每个头返回 `(numbers, scale)`，即整数和缩放因子，使 `number * scale` 约等于原来的数。
# 全零的头返回全零，缩放因子为 0.0。

# %% key="rows_stub"
def quantize(heads: list[list[float]]) -> list[tuple[list[int], float]]:
    ### BEGIN SOLUTION
    stored = []
    for row in heads:
        scale = max(abs(x) for x in row) / 127
        numbers = [round(x / scale) if scale else 0 for x in row]
        stored.append((numbers, scale))
    return stored
    ### END SOLUTION


check("13.2", quantize)

# %% [markdown] key="rows_why" lang="en"
# ### BEGIN SOLUTION
# In the package this is `minikv.kernels.quantize`, and the store kernel does it while it writes. There a row of zeros has the smallest normal float32 as its scale, so the division needs no special case.
# ### END SOLUTION
# %% [markdown] key="rows_why" lang="zh" src="58752a70"
# ### BEGIN SOLUTION
# 在本包里这就是 `minikv.kernels.quantize`，负责写入的 kernel 在写的同时就完成了。那里全零的行，缩放因子取最小的正规 float32，所以做除法时不必单独处理。
# ### END SOLUTION

# %% [markdown] key="peak_task" lang="en"
# ## 13.3 The most that a window holds
#
# Take one sequence in a layer in which each query sees `window` tokens, itself included.
# Its prompt of `prompt` tokens is computed in chunks of at most `chunk` tokens, one chunk a step. Then each step computes one token, until `new` tokens are generated. The last generated token is not stored.
#
# Before a step there is a block for every token that it computes, and all blocks that its *first* query reads are still there. After the step every block that no later query reads goes back.
#
# What is the largest number of blocks of `block_size` tokens that the sequence holds at once?
# %% [markdown] key="peak_task" lang="zh" src="8ef4cc32"
# ## 13.3 窗口最多占多少
#
# 取一条序列，它所在的层里，每个 query 能看到 `window` 个 token，包括它自己。
# 提示词有 `prompt` 个 token，分段计算，每段最多 `chunk` 个，一段是一步。然后每步一个 token，直到生成 `new` 个。生成的最后一个不存。
#
# 一步开始之前，它要计算的每个 token 都有了块，它的**第一个** query 要读的块也都还在。这一步结束后，以后的 query 不再读的块全部归还。
#
# 块大小为 `block_size`。这条序列最多同时占多少个块？

# %% key="peak_stub"
def peak_blocks(prompt: int, new: int, window: int, block_size: int, chunk: int) -> int:
    ### BEGIN SOLUTION
    most = start = 0
    while start < prompt + new - 1:
        end = min(start + chunk, prompt) if start < prompt else start + 1
        first_read = max(0, start - window + 1)
        held = -(-end // block_size) - first_read // block_size
        most = max(most, held)
        start = end
    return most
    ### END SOLUTION


check("13.3", peak_blocks)
