# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="intro" lang="en"
# Four functions, from a unit to a slot.
# Write each one, run its cell, and read what `check` says; `hint=2` and `hint=3` say more.
# Another `seed=` draws other cases.
# %% [markdown] key="intro" lang="zh" src="a98fd835"
# 四个函数，从单位一直到槽位。
# 写好一个就运行它的单元格，看 `check` 的结果；`hint=2` 和 `hint=3` 会给出更多提示。
# 换一个 `seed=` 就换一批用例。

# %% [markdown] key="units" lang="en"
# ## 00.1 Bytes of a size
#
# `size` is a number, a space and a unit: one of B, KB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (powers of 1024).
# The number may have a fraction, as in `12.5 GiB`.
# Return the bytes as an int.
# %% [markdown] key="units" lang="zh" src="c36e959b"
# ## 00.1 换算成字节
#
# `size` 由数字、空格和单位组成。单位有 B、KB、MB、GB、TB（1000 的幂）和 KiB、MiB、GiB、TiB（1024 的幂）。
# 数字可能带小数，例如 `12.5 GiB`。
# 返回字节数，类型为 int。

# %% key="bytes_of"
def bytes_of(size: str) -> int:
    number, unit = size.split()
    ### BEGIN SOLUTION
    base = 1024 if "i" in unit else 1000
    return int(float(number) * base ** "BKMGT".index(unit[0]))
    ### END SOLUTION


check("00.1", bytes_of)

# %% [markdown] key="blocks" lang="en"
# ## 00.2 Blocks of a sequence
#
# How many blocks of `block_size` tokens hold `num_tokens` tokens?
# Return an int.
# %% [markdown] key="blocks" lang="zh" src="a5ab6d13"
# ## 00.2 一条序列的块数
#
# 每块 `block_size` 个 token，`num_tokens` 个 token 需要多少块？
# 返回值的类型为 int。

# %% key="blocks_needed"
def blocks_needed(num_tokens: int, block_size: int) -> int:
    ### BEGIN SOLUTION
    return -(-num_tokens // block_size)
    ### END SOLUTION


check("00.2", blocks_needed)

# %% [markdown] key="blocks_why" lang="en"
# ### BEGIN SOLUTION
# `//` rounds down, so dividing the negated number and negating again rounds up: -(-17 // 16) is 2.
# `(num_tokens + block_size - 1) // block_size` does the same.
# ### END SOLUTION
# %% [markdown] key="blocks_why" lang="zh" src="08e2a1d8"
# ### BEGIN SOLUTION
# `//` 向下取整；先取负再除，再取负，就成了向上取整：-(-17 // 16) 等于 2。
# `(num_tokens + block_size - 1) // block_size` 效果相同。
# ### END SOLUTION

# %% [markdown] key="empty" lang="en"
# ## 00.3 Empty slots of a batch
#
# Each sequence has blocks of its own; its last one may be partly filled.
# How many slots in all of these last blocks hold no token?
# %% [markdown] key="empty" lang="zh" src="ad893e5b"
# ## 00.3 一批序列的空槽位
#
# 每条序列有自己的块，最后一块可能没填满。
# 各条序列的最后一块加在一起，一共有多少个槽位没有 token？

# %% key="empty_slots"
def empty_slots(lengths: list[int], block_size: int) -> int:
    ### BEGIN SOLUTION
    return sum(-length % block_size for length in lengths)
    ### END SOLUTION


check("00.3", empty_slots)

# %% [markdown] key="slot" lang="en"
# ## 00.4 The slot of a token
#
# The slots of the pool are numbered from 0: block 0 has the first `block_size` of them, block 1 the next, and so on.
# In which slot is the token at `position` (0 is the first) of the sequence with this block table?
# %% [markdown] key="slot" lang="zh" src="acdc7b2e"
# ## 00.4 token 的槽位
#
# 块池里的槽位从 0 开始编号：块 0 占前 `block_size` 个，块 1 占接下来的 `block_size` 个，依此类推。
# 给定一条序列的块表，位于 `position`（从 0 开始）的 token 在哪个槽位？

# %% key="slot_of"
def slot_of(position: int, block_table: list[int], block_size: int) -> int:
    ### BEGIN SOLUTION
    return block_table[position // block_size] * block_size + position % block_size
    ### END SOLUTION


check("00.4", slot_of)

# %% [markdown] key="slot_why" lang="en"
# ### BEGIN SOLUTION
# This one line is what a GPU kernel computes for every token that it reads: lessons [09](../../notebooks/en/09_pages_and_blocks.ipynb) and [10](../../notebooks/en/10_kernels.ipynb).
# ### END SOLUTION
# %% [markdown] key="slot_why" lang="zh" src="891a6901"
# ### BEGIN SOLUTION
# GPU kernel 每读一个 token，算的就是这一行：见第 [09](../../notebooks/zh/09_pages_and_blocks.ipynb)、[10](../../notebooks/zh/10_kernels.ipynb) 课。
# ### END SOLUTION
