# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="slots_task" lang="en"
# ## 09.1 Slots
#
# In which slots are the tokens at positions `start` to `end - 1` stored?
# The tokens before `start` are stored already; a chunk may begin and end in the middle of a block.
# Where the table has -1, a window has moved on: the slot is -1, and nothing is stored.
# %% [markdown] key="slots_task" lang="zh" src="510a49e3"
# ## 09.1 槽位
#
# 位置 `start` 到 `end - 1` 的 token 存放在哪些槽位？
# `start` 之前的 token 已经存好；一段（chunk）可以从块的中间开始，也可以在块的中间结束。
# 块表里是 -1 的地方，窗口已经移过去了：槽位为 -1，什么也不存。

# %% key="slots_stub"
def slot_mapping(block_table: list[int], start: int, end: int, block_size: int) -> list[int]:
    ### BEGIN SOLUTION
    slots = []
    for position in range(start, end):
        block = block_table[position // block_size]
        slots.append(-1 if block == -1 else block * block_size + position % block_size)
    return slots
    ### END SOLUTION


check("09.1", slot_mapping)

# %% [markdown] key="free_task" lang="en"
# ## 09.2 The free path
#
# A sequence ends and gives back the `blocks` of its table.
#
# - `ref_counts[b]`: how many hold block `b`
# - `free_list`: the free blocks; the next one to be taken stands in front
#
# Every block loses one holder.
# Those that nobody holds any more join the end of `free_list`, the last block of the table first, so that the beginning of a sequence is evicted last.
# If any of the blocks is free already, raise `ValueError`, and change nothing.
#
# Change the two lists that you are given; return nothing.
# The check makes several calls, one after the other, and looks at both lists after each.
# %% [markdown] key="free_task" lang="zh" src="4be59a55"
# ## 09.2 释放
#
# 一条序列结束，归还块表里的 `blocks`。
#
# - `ref_counts[b]`：有多少条序列持有块 `b`
# - `free_list`：空闲的块，下一个要取的排在最前面
#
# 每个块少一个持有者。
# 不再有持有者的块进入 `free_list` 的末尾，块表里的最后一块最先进入，这样序列的开头最后才被淘汰。
# 只要其中有一个块本来就空闲，就抛出 `ValueError`，并且什么也不改变。
#
# 直接修改传入的两个列表，不返回任何东西。
# 检查会依次调用多次，每次之后都查看这两个列表。

# %% key="free_stub"
def free(blocks: list[int], ref_counts: list[int], free_list: list[int]) -> None:
    ### BEGIN SOLUTION
    for block in blocks:
        if ref_counts[block] == 0:
            raise ValueError(f"block {block} is free already")
    for block in reversed(blocks):
        ref_counts[block] -= 1
        if ref_counts[block] == 0:
            free_list.append(block)
    ### END SOLUTION


check("09.2", free)

# %% [markdown] key="free_why" lang="en"
# ### BEGIN SOLUTION
# Two loops, because a call that raises must have changed nothing: first look, then do.
# Everything that frees a block in `BlockManager`, an end, a truncation, a window, goes through one such function.
# ### END SOLUTION
# %% [markdown] key="free_why" lang="zh" src="4111f925"
# ### BEGIN SOLUTION
# 之所以用两个循环，是因为抛出异常的调用不能留下任何改动：先看，再做。
# 在 `BlockManager` 里，不论是序列结束、截短还是窗口移动，释放块都走同一个函数。
# ### END SOLUTION

# %% [markdown] key="digests_task" lang="en"
# ## 09.3 The chained hash
#
# Return a digest for each full block of `tokens`.
# Two digests must be equal exactly if the salts are equal and all tokens up to the end of the block are.
#
# Any hash will do, `hashlib.sha256` is a good one; a digest may be anything that a dict takes as a key.
# Token ids go up to 120,000 and more.
# The check does not look at the digests themselves.
# It numbers them in the order in which they first appear over several prompts: `[[0, 1], [0, 2]]` says that the first blocks are equal and the second ones are not.
# %% [markdown] key="digests_task" lang="zh" src="a44ccade"
# ## 09.3 链式哈希
#
# 为 `tokens` 的每个满块返回一个摘要。
# 两个摘要相同，当且仅当盐值相同，并且到该块末尾为止的所有 token 都相同。
#
# 用什么哈希都行，`hashlib.sha256` 就很好；摘要可以是任何能作字典键的值。
# token 的编号可以达到 120,000，甚至更大。
# 检查并不看摘要本身。
# 它把几个提示词的摘要按首次出现的次序编号：`[[0, 1], [0, 2]]` 表示第一块相同，第二块不同。

# %% key="digests_stub"
def block_digests(tokens: list[int], block_size: int, salt: str) -> list[bytes]:
    ### BEGIN SOLUTION
    import hashlib

    digests = []
    parent = hashlib.sha256(salt.encode()).digest()
    for end in range(block_size, len(tokens) + 1, block_size):
        block = tokens[end - block_size : end]
        data = b"".join(token.to_bytes(8, "little") for token in block)
        parent = hashlib.sha256(parent + data).digest()
        digests.append(parent)
    return digests
    ### END SOLUTION


check("09.3", block_digests)

# %% [markdown] key="append_task" lang="en"
# ## 09.4 A slot for one more token
#
# A sequence with `length` tokens in the blocks of `table` gets one more.
# See to it that the token has a slot, in a block that nobody else holds.
#
# - If a new block is needed, take it from the front of `free_list`; its count is then 1.
# - If the last block has room and others hold it too, a new block takes its place in the table. Return `(old, new)`, so that the storage can copy it.
# - In all other cases return `None`.
#
# Change `table`, `ref_counts` and `free_list` in place. There is always a free block.
# The check appends to several sequences, some of them forks of each other, in a random order.
# %% [markdown] key="append_task" lang="zh" src="162d939f"
# ## 09.4 给新 token 一个槽位
#
# 一条序列有 `length` 个 token，放在 `table` 的块里，现在再加一个。
# 要保证这个 token 有槽位，而且所在的块没有别的持有者。
#
# - 需要新块时，从 `free_list` 最前面取，它的计数变为 1。
# - 最后一块还有空槽位、但也被别的序列持有时，用一个新块在块表里替换它，并返回 `(old, new)`，让存储端去复制。
# - 其他情况返回 `None`。
#
# 直接修改 `table`、`ref_counts` 和 `free_list`。空闲块总是够用。
# 检查会以随机的次序向多条序列追加，其中有些互为分叉。

# %% key="append_stub"
def append_slot(
    table: list[int], length: int, ref_counts: list[int], free_list: list[int], block_size: int
) -> tuple[int, int] | None:
    ### BEGIN SOLUTION
    full = length % block_size == 0
    if not full and ref_counts[table[-1]] == 1:
        return None
    new = free_list.pop(0)
    ref_counts[new] = 1
    if full:
        table.append(new)
        return None
    old = table[-1]
    ref_counts[old] -= 1
    table[-1] = new
    return old, new
    ### END SOLUTION


check("09.4", append_slot)

# %% [markdown] key="append_why" lang="en"
# ### BEGIN SOLUTION
# The order of the questions matters: full first, shared second.
# A full block is never written again, so it may stay shared.
# ### END SOLUTION
# %% [markdown] key="append_why" lang="zh" src="4e36c9e8"
# ### BEGIN SOLUTION
# 判断的次序很重要：先看满没满，再看是否共享。
# 满块不会再被写入，可以一直共享。
# ### END SOLUTION

# %% [markdown] key="window_task" lang="en"
# ## 09.5 Behind the window
#
# `num_tokens` tokens are in the cache, at positions 0 to `num_tokens - 1`.
# The next query stands at position `num_tokens`; in this layer it reads `window` positions, itself included.
#
# Which blocks of the table will never be read again? Return their block numbers, in the order of the table.
# Entries of -1 were given back earlier.
# %% [markdown] key="window_task" lang="zh" src="619c5c48"
# ## 09.5 窗口之前
#
# 缓存里有 `num_tokens` 个 token，位置从 0 到 `num_tokens - 1`。
# 下一个 query 在位置 `num_tokens`；在这一层，它连自己在内读 `window` 个位置。
#
# 块表里哪些块再也不会被读到？按块表的次序返回它们的块号。
# 值为 -1 的项早先已经归还。

# %% key="window_stub"
def behind_window(block_table: list[int], num_tokens: int, window: int, block_size: int) -> list[int]:
    ### BEGIN SOLUTION
    first_read = max(0, num_tokens - window + 1)
    return [block for block in block_table[: first_read // block_size] if block != -1]
    ### END SOLUTION


check("09.5", behind_window)
