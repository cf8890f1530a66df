# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="broken_task" lang="en"
# ## B.1 Write the property
#
# A buggy block manager gives you its books, and you say which blocks are booked wrongly.
#
# - `ref_counts[b]`: how many sequences hold block `b`, according to the books
# - `free_list`: the blocks that may be given to the next request
# - `tables`: the block table of each sequence; -1 stands at a place that a sliding window has left
#
# A block is right if its count is the number of places in `tables` where it stands, and if it is in `free_list` exactly once when that number is 0, else not at all.
# Return the blocks that are wrong, in ascending order; `[]` if the books are in order.
# %% [markdown] key="broken_task" lang="zh" src="a1ffdc47"
# ## B.1 写出性质
#
# 一个有 bug 的块管理器把账本交给你，请指出哪些块记错了。
#
# - `ref_counts[b]`：账上有多少条序列持有块 `b`
# - `free_list`：可以分给下一个请求的块
# - `tables`：每条序列的块表；-1 表示滑动窗口已经离开的位置
#
# 一个块没记错，是指引用计数等于它在 `tables` 里出现的次数；而且次数为 0 时，它在 `free_list` 里恰好出现一次，否则一次也不出现。
# 按升序返回记错的块；账没错就返回 `[]`。

# %% key="broken_stub"
def broken(ref_counts: list[int], free_list: list[int], tables: list[list[int]]) -> list[int]:
    ### BEGIN SOLUTION
    standing = [0] * len(ref_counts)
    for table in tables:
        for block in table:
            if block != -1:
                standing[block] += 1
    wrong = []
    for block, holders in enumerate(ref_counts):
        due = 1 if holders == 0 else 0
        if holders != standing[block] or free_list.count(block) != due:
            wrong.append(block)
    return wrong
    ### END SOLUTION


check("B.1", broken)

# %% [markdown] key="broken_why" lang="en"
# ### BEGIN SOLUTION
# Three records say the same thing in three ways: the counts, the free list, and the tables.
# A bug changes one record and forgets another, so the property compares all three.
# The property finds exhibit 3 when the child ends, and exhibit 4 at the first refusal.
# ### END SOLUTION
# %% [markdown] key="broken_why" lang="zh" src="b956e297"
# ### BEGIN SOLUTION
# 引用计数、空闲队列、块表，是同一件事的三种记法。
# bug 总是改了一处、忘了另一处，所以性质要把三处都比一遍。
# 展品 3 在子序列结束时就会被它发现，展品 4 在第一次拒绝时就会。
# ### END SOLUTION

# %% [markdown] key="chunk_task" lang="en"
# ## B.2 Neither twice nor never
#
# A sequence of `num_tokens` tokens is to be prefilled.
# When it was put into the queue, `cached_before` of its tokens were in the cache. Now that it has its blocks, `cached_now` of them are.
# Both numbers are multiples of `block_size`, and both may be the whole prompt.
# A step computes at most `budget` tokens.
#
# Return `(start, end)`: the positions that this step computes, `end` not included.
# At least the last token has to be computed.
# A block that was found in the cache is either used as it is or computed as a whole. You may not write into the middle of it.
# %% [markdown] key="chunk_task" lang="zh" src="29275063"
# ## B.2 不重也不漏
#
# 要对一条 `num_tokens` 个 token 的序列做预填充。
# 它入队时，缓存里有它的 `cached_before` 个 token；现在块已经拿到，缓存里有 `cached_now` 个。
# 两者都是 `block_size` 的整数倍，也都可能等于整个提示词。
# 一步最多算 `budget` 个 token。
#
# 返回 `(start, end)`：这一步要算的位置，不含 `end`。
# 至少最后一个 token 要算。
# 命中的块要么原样使用，要么整块重算，不能写进块的中间。

# %% key="chunk_stub"
def chunk(
    num_tokens: int, cached_before: int, cached_now: int, budget: int, block_size: int
) -> tuple[int, int]:
    ### BEGIN SOLUTION
    last_block = (num_tokens - 1) // block_size
    start = min(cached_now, last_block * block_size)
    end = min(num_tokens, start + budget)
    return start, end
    ### END SOLUTION


check("B.2", chunk)

# %% [markdown] key="namespace_task" lang="en"
# ## B.3 Names that never collide
#
# Requests may share cached blocks only if they have the same adapter *and* the same tenant.
# `adapter` and `tenant` are strings with any characters, possibly empty, or `None` where a request has none.
# Return a string: the same for equal pairs, and a different one for every other pair.
#
# The check calls your function with many pairs and looks for pairs that share a name.
# %% [markdown] key="namespace_task" lang="zh" src="98fbad28"
# ## B.3 永不相撞的名字
#
# 请求只有在适配器**和**租户都相同时，才可以共用缓存的块。
# `adapter` 和 `tenant` 是文本，可以含任何字符，也可以是空文本；请求没有这一项时是 `None`。
# 返回一个字符串，两项都相同时返回相同的字符串，否则返回不同的。
#
# 检查会用许多对参数调用你的函数，看哪些得到了同一个名字。

# %% key="namespace_stub"
def namespace(adapter: str | None, tenant: str | None) -> str:
    ### BEGIN SOLUTION
    parts = []
    for name in (adapter, tenant):
        parts.append("none" if name is None else f"{len(name)}:{name}")
    return ",".join(parts)
    ### END SOLUTION


check("B.3", namespace)
