# %% [markdown] key="step_task" lang="en"
# ## 04.1 What one step reads
#
# A batch decodes one token for each of its sequences. How many bytes does the step have to read?
#
# - `weight_bytes`: all weights that a step reads
# - `token_bytes`: K and V of one cached token, in all layers
# - `lengths`: the cached tokens of each sequence; nothing is padded
# %% [markdown] key="step_task" lang="zh" src="c872ba38"
# ## 04.1 一步读多少
#
# 一个 batch 为其中每条序列各解码一个 token。这一步要读多少字节？
#
# - `weight_bytes`：一步要读的全部权重
# - `token_bytes`：一个缓存 token 在所有层的 K 和 V
# - `lengths`：每条序列缓存的 token 数；没有补齐（padding）

# %% key="step_stub"
def step_bytes(weight_bytes: int, token_bytes: int, lengths: list[int]) -> int:
    ### BEGIN SOLUTION
    return weight_bytes + token_bytes * sum(lengths)
    ### END SOLUTION


check("04.1", step_bytes)

# %% [markdown] key="intensity_task" lang="en"
# ## 04.2 The intensity of attention
#
# How many FLOPs does decode attention do for each byte of cache that it reads?
# One multiplication and one addition are two FLOPs; leave the softmax out.
#
# - `heads`, `kv_heads`: query heads and KV heads; a whole number of query heads shares a KV head
# - `head_dim`: elements of a head, in Q, K and V
# - `itemsize`: bytes of a cached element
# %% [markdown] key="intensity_task" lang="zh" src="e124f2b5"
# ## 04.2 注意力的算术强度
#
# 解码注意力每读 1 字节缓存，做多少个 FLOP？
# 一次乘法加一次加法算两个 FLOP；softmax 不计。
#
# - `heads`、`kv_heads`：query 头数和 KV 头数；整数个 query 头共用一个 KV 头
# - `head_dim`：Q、K、V 中一个头的元素数
# - `itemsize`：一个缓存元素的字节数

# %% key="intensity_stub" lang="en"
def attention_intensity(heads: int, kv_heads: int, head_dim: int, itemsize: int) -> float:
    ### BEGIN SOLUTION
    flops = 2 * heads * head_dim + 2 * heads * head_dim  # Q K^T, then P V
    num_bytes = 2 * kv_heads * head_dim * itemsize  # K and V
    return flops / num_bytes
    ### END SOLUTION


check("04.2", attention_intensity)

# %% key="intensity_stub" lang="zh"
def attention_intensity(heads: int, kv_heads: int, head_dim: int, itemsize: int) -> float:
    ### BEGIN SOLUTION
    flops = 2 * heads * head_dim + 2 * heads * head_dim  # 先 Q K^T，再 P V
    num_bytes = 2 * kv_heads * head_dim * itemsize  # K 和 V
    return flops / num_bytes
    ### END SOLUTION


check("04.2", attention_intensity)

# %% [markdown] key="floor_task" lang="en"
# ## 04.3 The floor, and its name
#
# A step does `flops` and reads `num_bytes` on a card with `bandwidth_gb_s` (10**9 bytes a second) and `tflops` (10**12 FLOP a second).
# Reading and computing overlap.
# Return `(bound, seconds)`: the name of the side that takes longer, `"memory"` or `"compute"`, and the least time of the step.
# %% [markdown] key="floor_task" lang="zh" src="76ffa891"
# ## 04.3 下限，以及它的名字
#
# 一步做 `flops` 个 FLOP，读 `num_bytes` 字节；卡的带宽是 `bandwidth_gb_s`（每秒 10**9 字节），算力是 `tflops`（每秒 10**12 个 FLOP）。
# 读取和计算可以重叠。
# 返回 `(bound, seconds)`：耗时更长的一方 `"memory"` 或 `"compute"`，以及这一步的最短时间。

# %% key="floor_stub"
def step_floor(flops: int, num_bytes: int, bandwidth_gb_s: int, tflops: int) -> tuple[str, float]:
    ### BEGIN SOLUTION
    memory = num_bytes / (bandwidth_gb_s * 1e9)
    arithmetic = flops / (tflops * 1e12)
    return ("memory", memory) if memory >= arithmetic else ("compute", arithmetic)
    ### END SOLUTION


check("04.3", step_floor)

# %% [markdown] key="batch_task" lang="en"
# ## 04.4 The batch at the ridge
#
# In a step, every sequence of a batch does `token_flops` FLOPs and reads `cache_bytes` of its own. The batch reads `weight_bytes` once.
# Return the smallest batch with an intensity of at least `ridge` (FLOP per byte), or `None` if there is none.
# All numbers are whole.
# %% [markdown] key="batch_task" lang="zh" src="675e7a13"
# ## 04.4 到达拐点的 batch
#
# batch 中每条序列一步做 `token_flops` 个 FLOP，读自己的 `cache_bytes` 字节；整个 batch 读一次 `weight_bytes`。
# 返回算术强度不小于 `ridge`（FLOP/字节）的最小 batch；如果不存在，返回 `None`。
# 所有数都是整数。

# %% key="batch_stub" lang="en"
def batch_at_ridge(weight_bytes: int, cache_bytes: int, token_flops: int, ridge: int) -> int | None:
    ### BEGIN SOLUTION
    surplus = token_flops - ridge * cache_bytes  # what a sequence brings beyond the cost of its own cache
    if surplus <= 0:
        return None
    return -(-ridge * weight_bytes // surplus)
    ### END SOLUTION


check("04.4", batch_at_ridge)

# %% key="batch_stub" lang="zh"
def batch_at_ridge(weight_bytes: int, cache_bytes: int, token_flops: int, ridge: int) -> int | None:
    ### BEGIN SOLUTION
    surplus = token_flops - ridge * cache_bytes  # 一条序列做的 FLOP，减去读它自己的缓存所抵得上的 FLOP
    if surplus <= 0:
        return None
    return -(-ridge * weight_bytes // surplus)
    ### END SOLUTION


check("04.4", batch_at_ridge)

# %% [markdown] key="sectors_task" lang="en"
# ## 04.5 The sectors of one warp
#
# The threads of a warp ask for `elements` at the same moment, one index each, of an array that begins at a sector's edge.
# An element has `itemsize` bytes, and memory answers in sectors of `sector` bytes.
# How many different sectors have to be read?
# Several threads may ask for the same element, and an element may lie across an edge.
# %% [markdown] key="sectors_task" lang="zh" src="0a857f59"
# ## 04.5 一个 warp 的扇区
#
# 一个 warp 的线程同时请求 `elements`（每个线程一个下标），数组从扇区边界开始。
# 一个元素占 `itemsize` 字节，显存以 `sector` 字节的扇区应答。
# 一共要读多少个不同的扇区？
# 不同线程可能请求同一个元素，一个元素也可能跨越扇区边界。

# %% key="sectors_stub"
def sectors(elements: list[int], itemsize: int, sector: int) -> int:
    ### BEGIN SOLUTION
    touched = set()
    for element in elements:
        first, last = element * itemsize, (element + 1) * itemsize - 1
        touched.update(range(first // sector, last // sector + 1))
    return len(touched)
    ### END SOLUTION


check("04.5", sectors)

# %% [markdown] key="sectors_why" lang="en"
# ### BEGIN SOLUTION
# 32 threads with 4-byte elements touch 4 sectors if they are neighbours, and 32 if each is in a row of its own.
# The threads use the same number of bytes, and memory moves 8 times as many.
# ### END SOLUTION
# %% [markdown] key="sectors_why" lang="zh" src="e4ed53cd"
# ### BEGIN SOLUTION
# 32 个线程、4 字节的元素：相邻时碰到 4 个扇区，各在一行时碰到 32 个。
# 线程用到的字节一样多，显存搬运的字节却是前者的 8 倍。
# ### END SOLUTION
