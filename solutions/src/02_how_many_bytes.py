# %% [meta]
# minutes = 40
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="intro" lang="en"
# ## Six functions
#
# Replace each `raise NotImplementedError`, run the cell, and read what `check` says.
# After a wrong answer it shows a small counterexample and a hint; `hint=2` and `hint=3` say more, `seed=1` draws other cases.
# %% [markdown] key="intro" lang="zh" src="7f52ee07"
# ## 六个函数
#
# 把每个 `raise NotImplementedError` 换成你的代码，运行单元格，再看 `check` 的结果。
# 答错时，它会给出一个较小的反例和一条提示；`hint=2`、`hint=3` 提示更具体，`seed=1` 换一组用例。

# %% [markdown] key="e1" lang="en"
# ## 02.1 The formula
#
# Bytes that one token takes in the KV cache of the whole model.
# All `num_layers` layers cache the same: in each of `num_kv_heads` heads a K of `k_dim` elements and a V of `v_dim` elements, `itemsize` bytes an element.
# In most models `k_dim` and `v_dim` are both `head_dim`; with expanded MLA they differ.
#
# This function is a part of *your engine*: once it passes, it is kept, and [lesson 11c](../../notebooks/en/11c_your_engine.ipynb) runs the engine with it.
# %% [markdown] key="e1" lang="zh" src="ab8eb19c"
# ## 02.1 公式
#
# 一个 token 在整个模型的 KV 缓存里占多少字节。
# `num_layers` 个层的缓存都一样：`num_kv_heads` 个头里各有一个 `k_dim` 个元素的 K 和一个 `v_dim` 个元素的 V，每个元素 `itemsize` 字节。
# 多数模型的 `k_dim` 和 `v_dim` 都等于 `head_dim`；MLA 展开后则不同。
#
# 这个函数是“你的引擎”的一个部件：通过之后会保存下来，[第 11c 课](../../notebooks/zh/11c_your_engine.ipynb)会用它来运行引擎。

# %% key="e1_code"
def token_bytes(num_layers: int, num_kv_heads: int, k_dim: int, v_dim: int, itemsize: int) -> int:
    ### BEGIN SOLUTION
    return num_layers * num_kv_heads * (k_dim + v_dim) * itemsize
    ### END SOLUTION


check("02.1", token_bytes)

# %% [markdown] key="e1_why" lang="en"
# ### BEGIN SOLUTION
# Where K and V are equally wide, `k_dim + v_dim` is the $2 \cdot D$ of the formula. Llama-3.1-8B: 32 layers × 8 heads × (128 + 128) elements × 2 bytes = 131,072 bytes.
# ### END SOLUTION
# %% [markdown] key="e1_why" lang="zh" src="0ee64237"
# ### BEGIN SOLUTION
# K 和 V 等宽时，`k_dim + v_dim` 就是公式里的 $2 \cdot D$。Llama-3.1-8B：32 层 × 8 个头 ×（128 + 128）个元素 × 2 字节 = 131,072 字节。
# ### END SOLUTION

# %% [markdown] key="e2" lang="en"
# ## 02.2 The head dimension of a config
#
# `config` is a `config.json` as a dict, with `hidden_size`, `num_attention_heads` and `num_key_value_heads`.
# `head_dim` may be a number, `None`, or absent.
# %% [markdown] key="e2" lang="zh" src="d95dadb3"
# ## 02.2 配置里的头维度
#
# `config` 是读成 dict 的 `config.json`，含有 `hidden_size`、`num_attention_heads` 和 `num_key_value_heads`。
# `head_dim` 可能是数字，可能是 `None`，也可能没有。

# %% key="e2_code"
def head_dim_of(config: dict) -> int:
    ### BEGIN SOLUTION
    head_dim = config.get("head_dim")
    if head_dim is None:
        head_dim = config["hidden_size"] // config["num_attention_heads"]
    return head_dim
    ### END SOLUTION


check("02.2", head_dim_of)

# %% [markdown] key="e2_why" lang="en"
# ### BEGIN SOLUTION
# `config.get("head_dim", default)` would not do: where the file says `null`, the key is there, and the default is never used.
# ### END SOLUTION
# %% [markdown] key="e2_why" lang="zh" src="1f144e2e"
# ### BEGIN SOLUTION
# 不能写成 `config.get("head_dim", default)`：文件里写了 `null` 时键是存在的，默认值不会生效。
# ### END SOLUTION

# %% [markdown] key="e3" lang="en"
# ## 02.3 KV heads on one rank
#
# How many KV heads each of `tp` ranks keeps.
# Ranks hold whole heads, all equally many.
# With more ranks than heads, heads are copied.
# Where `kv_heads` and `tp` divide neither way, raise `ValueError`: the check counts that as the right answer.
# %% [markdown] key="e3" lang="zh" src="a4073725"
# ## 02.3 每个 rank 的 KV 头数
#
# `tp` 个 rank，每个保存多少个 KV 头。
# 每个 rank 保存完整的头，而且各 rank 一样多。
# rank 比头多时，头会复制到多个 rank。
# `kv_heads` 与 `tp` 互不整除时，抛出 `ValueError`：检查时这算正确答案。

# %% key="e3_code"
def kv_heads_per_rank(kv_heads: int, tp: int) -> int:
    ### BEGIN SOLUTION
    if kv_heads % tp == 0:
        return kv_heads // tp
    if tp % kv_heads == 0:
        return 1
    raise ValueError(f"{kv_heads} KV heads, tp {tp}")
    ### END SOLUTION


check("02.3", kv_heads_per_rank)

# %% [markdown] key="e3_why" lang="en"
# ### BEGIN SOLUTION
# A silent `kv_heads // tp` is the bug to avoid: with 8 heads and tp 3, two heads would be on no GPU at all, and with tp 16 every GPU would have none.
# ### END SOLUTION
# %% [markdown] key="e3_why" lang="zh" src="fb952274"
# ### BEGIN SOLUTION
# 要避免的是不声不响的 `kv_heads // tp`：8 个头、tp 为 3 时，有两个头不在任何 GPU 上；tp 为 16 时，每块 GPU 都没有头。
# ### END SOLUTION

# %% [markdown] key="e4" lang="en"
# ## 02.4 A batch with windows
#
# Bytes that a batch caches.
# `lengths` holds the tokens of each sequence; `windows` has one entry a layer, `None` for full attention, else the config's `sliding_window`, of which the layer keeps `window - 1` tokens.
# `token_bytes` is the cost of one token in one layer, the same in all.
# %% [markdown] key="e4" lang="zh" src="97a49d9e"
# ## 02.4 带窗口的一批序列
#
# 一批序列缓存多少字节。
# `lengths` 是各条序列的 token 数；`windows` 每层一项，全注意力为 `None`，否则是配置里的 `sliding_window`，该层保留其中 `window - 1` 个 token。
# `token_bytes` 是一个 token 在一层里的开销，各层相同。

# %% key="e4_code"
def bytes_for(lengths: list[int], windows: list[int | None], token_bytes: int) -> int:
    ### BEGIN SOLUTION
    total = 0
    for length in lengths:
        for window in windows:
            kept = length if window is None else min(length, window - 1)
            total += kept * token_bytes
    return total
    ### END SOLUTION


check("02.4", bytes_for)

# %% [markdown] key="e5" lang="en"
# ## 02.5 The exact inverse
#
# The most tokens that *one* sequence can have within `num_bytes`, in the layers of 02.4.
# Return `math.inf` where more tokens cost nothing more: every layer slides, and all windows fit.
# The check tries byte counts just below, at and just above the cost of some length.
# %% [markdown] key="e5" lang="zh" src="c51906ce"
# ## 02.5 精确的反函数
#
# 各层与 02.4 相同，**一条**序列在 `num_bytes` 之内最多能有多少个 token。
# 如果更多的 token 不再增加开销（每一层都滑动，而且所有窗口都放得下），返回 `math.inf`。
# 检查所用的字节数会落在某个长度的开销上、略低于它和略高于它。

# %% key="e5_code"
import math


def max_tokens(num_bytes: int, windows: list[int | None], token_bytes: int) -> int | float:
    ### BEGIN SOLUTION
    if None not in windows and bytes_for([max(windows)], windows, token_bytes) <= num_bytes:
        return math.inf
    low, high = 0, num_bytes // token_bytes + 1
    while high - low > 1:
        middle = (low + high) // 2
        if bytes_for([middle], windows, token_bytes) <= num_bytes:
            low = middle
        else:
            high = middle
    return low
    ### END SOLUTION


check("02.5", max_tokens)

# %% [markdown] key="e5_why" lang="en"
# ### BEGIN SOLUTION
# `bytes_for` never falls as a sequence grows, so the last length that fits can be found by halving.
# `low` always fits and `high` never does: once the endless case is out, `num_bytes // token_bytes + 1` tokens cannot fit.
# `CacheSpec.max_tokens` does the same.
# ### END SOLUTION
# %% [markdown] key="e5_why" lang="zh" src="f6a371d4"
# ### BEGIN SOLUTION
# 序列变长时 `bytes_for` 不会减小，因此可以用二分查找最后一个放得下的长度。
# `low` 始终放得下，`high` 始终放不下：排除无上限的情形之后，`num_bytes // token_bytes + 1` 个 token 一定超出。
# `CacheSpec.max_tokens` 也是这样做的。
# ### END SOLUTION

# %% [markdown] key="e6" lang="en"
# ## 02.6 A block
#
# The engine of this course takes memory in blocks of `block_size` tokens.
# How many bytes is one block, all layers together? `token_bytes` is what 02.1 returns.
#
# This function is a part of *your engine*: once it passes, it is kept, and [lesson 11c](../../notebooks/en/11c_your_engine.ipynb) runs the engine with it.
# %% [markdown] key="e6" lang="zh" src="96571842"
# ## 02.6 一个块
#
# 本课程的引擎按块分配显存，每块放 `block_size` 个 token。
# 一个块在所有层合计占多少字节？`token_bytes` 就是 02.1 的返回值。
#
# 这个函数是“你的引擎”的一个部件：通过之后会保存下来，[第 11c 课](../../notebooks/zh/11c_your_engine.ipynb)会用它来运行引擎。

# %% key="e6_code"
def block_bytes(token_bytes: int, block_size: int) -> int:
    ### BEGIN SOLUTION
    return token_bytes * block_size
    ### END SOLUTION


check("02.6", block_bytes)
