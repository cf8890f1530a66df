# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="intro" lang="en"
# ## Three functions
#
# Replace each `raise NotImplementedError`, run the cell, and read what `check` says.
# After a wrong answer it shows a small counterexample and a hint; `hint=2` and `hint=3` say more, `seed=1` draws other cases.
# %% [markdown] key="intro" lang="zh" src="ada2b466"
# ## 三个函数
#
# 把每个 `raise NotImplementedError` 换成你的代码，运行单元格，再看 `check` 的结果。
# 答错时，它会给出一个较小的反例和一条提示；`hint=2`、`hint=3` 提示更具体，`seed=1` 换一组用例。

# %% [markdown] key="e1" lang="en"
# ## 02b.1 A batch with windows
#
# How many bytes does a batch cache?
# `lengths` holds the tokens of each sequence; `windows` has one entry a layer, `None` for full attention, else the config's `sliding_window`, of which the layer keeps `window - 1` tokens.
# `token_bytes` is the cost of one token in one layer, the same in all.
# %% [markdown] key="e1" lang="zh" src="3d226b78"
# ## 02b.1 带窗口的一批序列
#
# 一批序列缓存多少字节？
# `lengths` 是各条序列的 token 数；`windows` 每层一项，全注意力为 `None`，否则是配置里的 `sliding_window`，该层保留其中 `window - 1` 个 token。
# `token_bytes` 是一个 token 在一层里的开销，各层相同。

# %% key="e1_code"
def bytes_for(lengths: list[int], windows: list[int | None], token_bytes: int) -> int:
    ### BEGIN SOLUTION
    total = 0
    for length in lengths:
        for window in windows:
            kept = length if window is None else min(length, window - 1)
            total += kept * token_bytes
    return total
    ### END SOLUTION


check("02b.1", bytes_for)

# %% [markdown] key="e2" lang="en"
# ## 02b.2 The exact inverse
#
# How many tokens can *one* sequence have at most within `num_bytes`, in the layers of 02b.1?
# Return `math.inf` where more tokens cost nothing more: every layer slides, and all windows fit.
# The check tries byte counts just below, at and just above the cost of some length.
# %% [markdown] key="e2" lang="zh" src="a261ad76"
# ## 02b.2 精确的反函数
#
# 各层与 02b.1 相同，**一条**序列在 `num_bytes` 之内最多能有多少个 token？
# 如果更多的 token 不再增加开销（每一层都滑动，而且所有窗口都放得下），返回 `math.inf`。
# 检查所用的字节数会落在某个长度的开销上、略低于它和略高于它。

# %% key="e2_code"
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


check("02b.2", max_tokens)

# %% [markdown] key="e2_why" lang="en"
# ### BEGIN SOLUTION
# `bytes_for` never falls as a sequence grows, so the last length that fits can be found by halving.
# `low` always fits and `high` never does: once the endless case is out, `num_bytes // token_bytes + 1` tokens cannot fit.
# `CacheSpec.max_tokens` does the same.
# ### END SOLUTION
# %% [markdown] key="e2_why" lang="zh" src="f6a371d4"
# ### BEGIN SOLUTION
# 序列变长时 `bytes_for` 不会减小，因此可以用二分查找最后一个放得下的长度。
# `low` 始终放得下，`high` 始终放不下：排除无上限的情形之后，`num_bytes // token_bytes + 1` 个 token 一定超出。
# `CacheSpec.max_tokens` 也是这样做的。
# ### END SOLUTION

# %% [markdown] key="e3" lang="en"
# ## 02b.3 KV heads on one rank
#
# How many KV heads does each of `tp` ranks keep?
# Ranks hold whole heads, all equally many.
# With more ranks than heads, heads are copied.
# If `kv_heads` doesn't divide `tp` and `tp` doesn't divide `kv_heads`, raise `ValueError`: the check counts that as the right answer.
# %% [markdown] key="e3" lang="zh" src="304b8a22"
# ## 02b.3 每个 rank 的 KV 头数
#
# `tp` 个 rank，每个保存多少个 KV 头？
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


check("02b.3", kv_heads_per_rank)

# %% [markdown] key="e3_why" lang="en"
# ### BEGIN SOLUTION
# A silent `kv_heads // tp` is the bug to avoid: with 8 heads and tp 3, two heads would be on no GPU at all, and with tp 16 every GPU would have none.
# ### END SOLUTION
# %% [markdown] key="e3_why" lang="zh" src="fb952274"
# ### BEGIN SOLUTION
# 要避免的是不声不响的 `kv_heads // tp`：8 个头、tp 为 3 时，有两个头不在任何 GPU 上；tp 为 16 时，每块 GPU 都没有头。
# ### END SOLUTION
