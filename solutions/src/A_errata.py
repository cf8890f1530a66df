# %% [markdown] key="block_task" lang="en"
# ## A.1 Find the factor that was dropped
#
# A document says that a block takes this many bytes:
#
# ```python
# 2 * layers * block_size * kv_heads * head_dim
# ```
#
# For 28 layers, blocks of 16, 1 KV head of 128 and 2 bytes an element it gives 114,688.
# Return the right number for any model.
# %% [markdown] key="block_task" lang="zh" src="fab37406"
# ## A.1 找出丢掉的因子
#
# 有份文档说，一个块的字节数是：
#
# ```python
# 2 * layers * block_size * kv_heads * head_dim
# ```
#
# 28 层、块大小 16、1 个 KV 头、每头 128、每个元素 2 字节时，它得到 114,688。
# 请对任意模型返回正确的值。

# %% key="block_stub"
def block_bytes(layers: int, block_size: int, kv_heads: int, head_dim: int, itemsize: int) -> int:
    ### BEGIN SOLUTION
    k_and_v = 2
    return k_and_v * layers * block_size * kv_heads * head_dim * itemsize
    ### END SOLUTION


check("A.1", block_bytes)

# %% [markdown] key="convert_task" lang="en"
# ## A.2 One unit into another
#
# Convert `value` from `unit` into `to`.
# Both are one of `"B"`, `"KB"`, `"MB"`, `"GB"`, `"KiB"`, `"MiB"`, `"GiB"`.
#
# For example, `convert(1, "GiB", "MB")` is 1073.741824.
# %% [markdown] key="convert_task" lang="zh" src="d9566b4a"
# ## A.2 单位换算
#
# 把 `value` 从单位 `unit` 换算成 `to`。
# 两者都取自 `"B"`、`"KB"`、`"MB"`、`"GB"`、`"KiB"`、`"MiB"`、`"GiB"`。
#
# 例如 `convert(1, "GiB", "MB")` 是 1073.741824。

# %% key="convert_stub"
def convert(value: float, unit: str, to: str) -> float:
    ### BEGIN SOLUTION
    factors = {"B": 1}
    for power, prefix in enumerate("KMG", start=1):
        factors[f"{prefix}B"] = 1000**power
        factors[f"{prefix}iB"] = 1024**power
    return value * factors[unit] / factors[to]
    ### END SOLUTION


check("A.2", convert)

# %% [markdown] key="audit_task" lang="en"
# ## A.3 Audit a sum
#
# `terms` are the named terms of a sum in a document. A term that is subtracted is negative.
# `claimed` is the total that the document states.
# Return by how much the claim is too large: positive if too large, negative if too small, 0 if it is right.
#
# For example, `audit({"limit": 72, "used": -35, "peak": -45, "current": 35}, 62)` is 35.
# %% [markdown] key="audit_task" lang="zh" src="9bd85e5a"
# ## A.3 核对一笔账
#
# `terms` 是文档里一个算式的各项，都带名字；要减去的项是负数。
# `claimed` 是文档给出的总数。
# 返回它偏大多少：偏大为正，偏小为负，正确为 0。
#
# 例如 `audit({"limit": 72, "used": -35, "peak": -45, "current": 35}, 62)` 是 35。

# %% key="audit_stub"
def audit(terms: dict[str, int], claimed: int) -> int:
    ### BEGIN SOLUTION
    return claimed - sum(terms.values())
    ### END SOLUTION


check("A.3", audit)

# %% [markdown] key="pool_task" lang="en"
# ## A.4 How many blocks are left?
#
# In "A definition mistaken" the lesson computes what is left for the cache. One guide got 62 GB from that sum, and 27 GB a page later.
# All arguments but `percent` are bytes:
#
# - `total`: the GPU's memory
# - `percent`: how much of it the engine may use, 90 for 0.9; round the limit down
# - `used`: everything that is taken on the GPU now, by this and other processes
# - `peak`: the most that torch had allocated during the warm-up (absolute, weights included)
# - `current`: what torch has allocated now
# - `block`: bytes of a block
#
# Return the number of blocks, or 0 if the model does not fit.
# %% [markdown] key="pool_task" lang="zh" src="65161647"
# ## A.4 还剩多少块？
#
# 课文“定义弄错”一节算过缓存还剩多少。有份指南用那个算式得到 62 GB，一页之后又得到 27 GB。
# 除 `percent` 外，参数都是字节数：
#
# - `total`：GPU 的显存
# - `percent`：引擎可用的百分比，0.9 写作 90；上限向下取整
# - `used`：GPU 上此刻的全部占用，包括其他进程
# - `peak`：预热期间 torch 已分配显存的最大值（绝对值，含权重）
# - `current`：torch 此刻已分配的显存
# - `block`：一个块的字节数
#
# 返回块数；模型放不下时返回 0。

# %% key="pool_stub"
def num_blocks(total: int, percent: int, used: int, peak: int, current: int, block: int) -> int:
    ### BEGIN SOLUTION
    limit = total * percent // 100
    what_a_forward_adds = peak - current
    available = limit - used - what_a_forward_adds
    return max(0, available) // block
    ### END SOLUTION


check("A.4", num_blocks)

# %% [markdown] key="longest_task" lang="en"
# ## A.5 How long may a sequence be?
#
# A document promises one sequence of 599K tokens, because the pool holds as many.
# A debug print of another calls the capacity of the pool `max_seq_length`.
#
# Here `sequences` sequences of equal length share `num_blocks` blocks of `block_size` tokens, and a block belongs to one sequence.
# The model has `positions` positions.
# Return the most tokens that each sequence can have.
# %% [markdown] key="longest_task" lang="zh" src="e21601b3"
# ## A.5 一条序列最长多少？
#
# 有份文档因为块池放得下，就承诺单条序列可达 599K 个 token。
# 另一份的调试输出把块池容量叫作 `max_seq_length`。
#
# 这里有 `sequences` 条等长的序列，共用 `num_blocks` 个块，每块 `block_size` 个 token；一个块只属于一条序列。
# 模型有 `positions` 个位置。
# 返回每条序列最多能有多少个 token。

# %% key="longest_stub"
def longest(num_blocks: int, block_size: int, sequences: int, positions: int) -> int:
    ### BEGIN SOLUTION
    blocks_each = num_blocks // sequences
    return min(blocks_each * block_size, positions)
    ### END SOLUTION


check("A.5", longest)
