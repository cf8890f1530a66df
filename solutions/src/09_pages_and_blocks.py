# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="slots_task" lang="en"
# ## 09.1 Slots
#
# In which slots are the tokens at positions `start` to `end - 1` stored?
# The tokens before `start` are stored already; a chunk may begin and end in the middle of a block.
# Where the table has -1, a sliding window has passed the block and it was given back: the slot is -1, and nothing is stored.
# (Tables of nano never have -1, so its one line is not enough here.)
#
# This function is a part of *your engine*: once it passes, it is kept, and [lesson 11c](../../notebooks/en/11c_your_engine.ipynb) runs the engine with it.
# %% [markdown] key="slots_task" lang="zh" src="7ea7b240"
# ## 09.1 槽位
#
# 位置 `start` 到 `end - 1` 的 token 存放在哪些槽位？
# `start` 之前的 token 已经存好；一段（chunk）可以从块的中间开始，也可以在块的中间结束。
# 块表里是 -1 的地方，滑动窗口已经移过去，块也归还了：槽位为 -1，什么也不存。
# （nano 的块表里不会出现 -1，所以照搬它那一行还不够。）
#
# 这个函数是“你的引擎”的一个部件：通过之后会保存下来，[第 11c 课](../../notebooks/zh/11c_your_engine.ipynb)会用它来运行引擎。

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
# Write the method `BlockManager.free` of `minikv.nano`: the sequence `seq` ends, or is preempted, and gives back the blocks of its table.
#
# - `seq.block_table`: its blocks; `seq.num_computed`: how many of its tokens have their K and V there
# - `self.ref_counts[b]`: how many sequences hold block `b`
# - `self.free_blocks`: the free blocks, a dict used as an ordered set; `self.free_blocks[b] = None` puts `b` at its end, and the next block to be taken stands in front
#
# Every block loses one holder.
# Blocks that no sequence holds any more join the end of `free_blocks`. The last block of the table goes first, so that the beginning of a sequence is evicted last.
# The blocks keep their content and can be found until they are taken again.
# The sequence is left with an empty table and 0 computed tokens.
# If any of the blocks is free already, fail (`assert`, or raise `ValueError`), and change nothing.
#
# This function is a part of *your engine*: once it passes, it is kept, and [lesson 11c](../../notebooks/en/11c_your_engine.ipynb) runs the engine with it.
# %% [markdown] key="free_task" lang="zh" src="5bb0fdb2"
# ## 09.2 释放
#
# 请写出 `minikv.nano` 的方法 `BlockManager.free`：序列 `seq` 结束了，或者被抢占，要归还块表里的块。
#
# - `seq.block_table`：它的块；`seq.num_computed`：它有多少个 token 的 K 和 V 在这些块里
# - `self.ref_counts[b]`：有多少条序列持有块 `b`
# - `self.free_blocks`：空闲的块，是当作有序集合使用的字典；`self.free_blocks[b] = None` 把 `b` 放到末尾，下一个要取的块排在最前面
#
# 每个块少一个持有者。
# 不再有序列持有的块进入 `free_blocks` 的末尾，块表里的最后一块最先进入，这样序列的开头最后才被淘汰。
# 这些块保留原有的内容，在再次被取走之前都还能找到。
# 之后序列的块表为空，已计算的 token 数为 0。
# 只要其中有一个块本来就空闲，就报错（用 `assert`，或抛出 `ValueError`），并且什么也不改变。
#
# 这个函数是“你的引擎”的一个部件：通过之后会保存下来，[第 11c 课](../../notebooks/zh/11c_your_engine.ipynb)会用它来运行引擎。

# %% key="free_stub"
def free(self, seq) -> None:
    ### BEGIN SOLUTION
    assert all(self.ref_counts[block] for block in seq.block_table), "a block is freed twice"
    for block in reversed(seq.block_table):
        self.ref_counts[block] -= 1
        if self.ref_counts[block] == 0:
            self.free_blocks[block] = None
    seq.block_table = []
    seq.num_computed = 0
    ### END SOLUTION


check("09.2", free)

# %% [markdown] key="free_why" lang="en"
# ### BEGIN SOLUTION
# Look first and change later, because a call that fails must have changed nothing.
# In `minikv.LLM`'s manager everything that frees a block, an end, a truncation, a window, goes through one such function.
# ### END SOLUTION
# %% [markdown] key="free_why" lang="zh" src="30b683cb"
# ### BEGIN SOLUTION
# 先看，再做：报错的调用不能留下任何改动。
# 在 `minikv.LLM` 的管理器里，不论是序列结束、截短还是窗口移动，释放块都走同一个函数。
# ### END SOLUTION

# %% [markdown] key="digests_task" lang="en"
# ## 09.3 The chained hash
#
# Return the digest of a full block with these `tokens`.
# `previous` is the digest of the block before it; before the first block it is `b""`, or a salt.
# Two digests must be equal if, and only if, `previous` and all tokens are equal.
#
# You can take any hash; `hashlib.sha256` is a good one. A digest is of type `bytes`.
# Token ids go up to 120,000 and more.
# The check chains the full blocks of several prompts, each a list of tokens and a salt, and does not look at the digests themselves.
# It numbers them in the order in which they first appear: `[[0, 1], [0, 2]]` says that the first blocks are equal and the second ones are not.
#
# This function is a part of *your engine*: once it passes, it is kept, and [lesson 11c](../../notebooks/en/11c_your_engine.ipynb) runs the engine with it.
# %% [markdown] key="digests_task" lang="zh" src="486fdf6b"
# ## 09.3 链式哈希
#
# 返回一个满块的摘要，块里的 token 是 `tokens`。
# `previous` 是前一块的摘要；第一块之前是 `b""`，或者是盐值。
# 两个摘要相同，当且仅当 `previous` 相同，并且所有 token 都相同。
#
# 用什么哈希都行，`hashlib.sha256` 就很好。摘要的类型是 `bytes`。
# token 的编号可以达到 120,000，甚至更大。
# 检查会把几个提示词（各是一串 token 加一个盐值）的满块依次串起来，并不看摘要本身。
# 它按首次出现的次序给摘要编号：`[[0, 1], [0, 2]]` 表示第一块相同，第二块不同。
#
# 这个函数是“你的引擎”的一个部件：通过之后会保存下来，[第 11c 课](../../notebooks/zh/11c_your_engine.ipynb)会用它来运行引擎。

# %% key="digests_stub"
import hashlib


def block_digest(previous: bytes, tokens: list[int]) -> bytes:
    ### BEGIN SOLUTION
    data = b"".join(token.to_bytes(8, "little") for token in tokens)
    return hashlib.sha256(previous + data).digest()
    ### END SOLUTION


check("09.3", block_digest)

# %% [markdown] key="digests_why" lang="en"
# ### BEGIN SOLUTION
# Only full blocks get a digest: tokens will still be written into a block that is not full, and what is published must not change any more.
# ### END SOLUTION
# %% [markdown] key="digests_why" lang="zh" src="8e7ad0fa"
# ### BEGIN SOLUTION
# 只有满块才有摘要：没填满的块之后还会写入，而发布了的内容不能再变。
# ### END SOLUTION

# %% [markdown] key="append_task" lang="en"
# ## 09.4 A slot for one more token
#
# A sequence has `length` tokens in the blocks of `table` and gets one more.
# Give this token a slot, in a block that no other sequence holds.
#
# - If a new block is needed, take it from the front of `free_list`; its count is then 1.
# - If the last block has room but other sequences hold it too, put a new block in its place in the table. Return `(old, new)`, so that the storage can copy it.
# - In all other cases return `None`.
#
# Change `table`, `ref_counts` and `free_list` in place. There is always a free block.
# The check appends to several sequences, some of them forks of each other, in a random order.
# %% [markdown] key="append_task" lang="zh" src="dc6a2094"
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

# %% [markdown] key="allocate_task" lang="en"
# ## 09.6 Blocks for a sequence
#
# Write `BlockManager.allocate` of `minikv.nano`: give `seq` blocks for all of `seq.tokens`, and return True.
#
# - Its table begins with the cached blocks that `self.find_prefix(seq.tokens)` returns. Some of them may be held by other sequences, some may be free: those leave `self.free_blocks`. Each gets one more holder in `self.ref_counts` (both as in 09.2).
# - For the other tokens the table has fresh blocks. `self._take()` gives one: it is no longer free, its count is 1, and what it held cannot be found any more. `self.blocks_for(n)` says how many blocks hold n tokens.
# - `seq.num_computed` and `seq.num_cached` are both the number of cached tokens.
# - At least `keep_free` blocks must be free afterwards. If that cannot be, return False, with nothing changed.
#
# A sequence that comes back after a preemption has more tokens than its prompt: it needs room for all of them.
#
# This function is a part of *your engine*: once it passes, it is kept, and [lesson 11c](../../notebooks/en/11c_your_engine.ipynb) runs the engine with it.
# %% [markdown] key="allocate_task" lang="zh" src="d9568368"
# ## 09.6 给序列分配块
#
# 请写出 `minikv.nano` 的 `BlockManager.allocate`：给 `seq.tokens` 的全部 token 分配块，并返回 True。
#
# - 块表的开头是 `self.find_prefix(seq.tokens)` 返回的缓存块。其中有的正由别的序列持有，有的空闲；空闲的要移出 `self.free_blocks`。每块在 `self.ref_counts` 里多一个持有者（两者都与 09.2 相同）。
# - 其余 token 用新块。`self._take()` 取来一块：它不再空闲，计数为 1，原来的内容也不能再被找到。`self.blocks_for(n)` 返回 n 个 token 需要几块。
# - `seq.num_computed` 和 `seq.num_cached` 都等于已缓存的 token 数。
# - 分配之后至少还要有 `keep_free` 个空闲块。做不到就返回 False，并且什么也不改变。
#
# 抢占之后回来的序列，token 比提示词多，全部都要有位置。
#
# 这个函数是“你的引擎”的一个部件：通过之后会保存下来，[第 11c 课](../../notebooks/zh/11c_your_engine.ipynb)会用它来运行引擎。

# %% key="allocate_stub" lang="en"
def allocate(self, seq, keep_free: int = 0) -> bool:
    ### BEGIN SOLUTION
    prefix = self.find_prefix(seq.tokens)
    fresh = self.blocks_for(len(seq.tokens)) - len(prefix)
    reused = sum(block in self.free_blocks for block in prefix)  # free now, but not for fresh ones
    if fresh + reused + keep_free > len(self.free_blocks):
        return False
    for block in prefix:
        self.free_blocks.pop(block, None)
        self.ref_counts[block] += 1
    seq.block_table = prefix + [self._take() for _ in range(fresh)]
    seq.num_computed = seq.num_cached = len(prefix) * self.block_size
    return True
    ### END SOLUTION


check("09.6", allocate)

# %% key="allocate_stub" lang="zh"
def allocate(self, seq, keep_free: int = 0) -> bool:
    ### BEGIN SOLUTION
    prefix = self.find_prefix(seq.tokens)
    fresh = self.blocks_for(len(seq.tokens)) - len(prefix)
    reused = sum(block in self.free_blocks for block in prefix)  # 现在空闲，但不能再当新块用
    if fresh + reused + keep_free > len(self.free_blocks):
        return False
    for block in prefix:
        self.free_blocks.pop(block, None)
        self.ref_counts[block] += 1
    seq.block_table = prefix + [self._take() for _ in range(fresh)]
    seq.num_computed = seq.num_cached = len(prefix) * self.block_size
    return True
    ### END SOLUTION


check("09.6", allocate)

# %% [markdown] key="allocate_why" lang="en"
# ### BEGIN SOLUTION
# The order matters twice: count before you change anything, and hold the prefix before you take a fresh block, which might be one of it.
# ### END SOLUTION
# %% [markdown] key="allocate_why" lang="zh" src="c38d0888"
# ### BEGIN SOLUTION
# 次序有两处讲究：先算清楚，再动手；先持有前缀，再取新块，否则取来的可能正是前缀里的块。
# ### END SOLUTION

# %% [markdown] key="append_token_task" lang="en"
# ## 09.7 Room for the next token
#
# Write `BlockManager.append` of `minikv.nano`. `seq.tokens` has just got a token, or has the same tokens as before.
# If the blocks of `seq.block_table` do not hold all of them, add one with `self._take()`.
# Return True if all tokens have room; return False, with nothing changed, if a block is needed and none is free.
#
# The check prints `calls`: `(1, 1)` adds a token to sequence 1 and asks for its room, `(1, 0)` only asks again.
#
# This function is a part of *your engine*: once it passes, it is kept, and [lesson 11c](../../notebooks/en/11c_your_engine.ipynb) runs the engine with it.
# %% [markdown] key="append_token_task" lang="zh" src="a53c6604"
# ## 09.7 给下一个 token 腾位置
#
# 请写出 `minikv.nano` 的 `BlockManager.append`。`seq.tokens` 可能刚多了一个 token，也可能与上次一样。
# 如果 `seq.block_table` 里的块放不下全部 token，就用 `self._take()` 加一块。
# 全部 token 都有位置时返回 True；需要新块却没有空闲块时返回 False，并且什么也不改变。
#
# 检查会打印 `calls`：`(1, 1)` 表示给序列 1 加一个 token 再问有没有位置，`(1, 0)` 表示只是再问一次。
#
# 这个函数是“你的引擎”的一个部件：通过之后会保存下来，[第 11c 课](../../notebooks/zh/11c_your_engine.ipynb)会用它来运行引擎。

# %% key="append_token_stub"
def append(self, seq) -> bool:
    ### BEGIN SOLUTION
    if self.blocks_for(len(seq.tokens)) > len(seq.block_table):
        if not self.free_blocks:
            return False
        seq.block_table.append(self._take())
    return True
    ### END SOLUTION


check("09.7", append)

# %% [markdown] key="append_token_why" lang="en"
# ### BEGIN SOLUTION
# It compares with the table instead of looking at `len(seq.tokens) % block_size`, so asking twice does no harm.
# Where sequences share a block that is not full, as after a fork, this is not enough: that is 09.4. nano has no forks.
# ### END SOLUTION
# %% [markdown] key="append_token_why" lang="zh" src="e5f67951"
# ### BEGIN SOLUTION
# 这里是和块表比较，而不是看 `len(seq.tokens) % block_size`，所以问两次也没有关系。
# 如果几条序列共享一个没填满的块（例如分叉之后），这样做还不够，要用 09.4 的办法。nano 没有分叉。
# ### END SOLUTION

# %% [markdown] key="frame_task" lang="en"
# ## 09.8 A widget of your own
#
# Write `frame(make, calls, num_blocks, step)`: what a picture of the pool shows after the first `step` calls.
# `make()` gives an empty block manager. A call is a name with its arguments, as `("append", "A", 52)`; `getattr(manager, name)(*arguments)` runs it.
# Return a list with an entry for each of the `num_blocks` blocks: the names of the sequences that hold it, in the order of `manager.sequences()`.
#
# *Play* counts the steps, and its slider may also go back. So a frame depends on `step` alone, and each one begins with a manager of its own.
# %% [markdown] key="frame_task" lang="zh" src="f04eae5b"
# ## 09.8 你自己的组件
#
# 请写出 `frame(make, calls, num_blocks, step)`：执行前 `step` 次调用之后，块池的画面是什么样。
# `make()` 给出一个空的块管理器。一次调用是名字加参数，例如 `("append", "A", 52)`，用 `getattr(manager, name)(*arguments)` 执行。
# 返回一个列表，`num_blocks` 个块每块一项：持有这个块的序列的名字，按 `manager.sequences()` 的次序。
#
# *Play* 会一步步往前数，滑块也可以往回拉。所以一帧只取决于 `step`，每一帧都从一个新的管理器开始。

# %% key="frame_stub"
def frame(make, calls, num_blocks, step) -> list:
    ### BEGIN SOLUTION
    manager = make()
    for name, *arguments in calls[:step]:
        getattr(manager, name)(*arguments)
    return [[name for name in manager.sequences() if block in manager.block_table(name)] for block in range(num_blocks)]
    ### END SOLUTION


check("09.8", frame)

# %% [markdown] key="frame_play" lang="en"
# Now the widget. The manager is nano's with *your* `allocate`, `append` and `free`, and `ByName` lets its sequences have names.
# `observe` calls `draw` again whenever Play or the slider moves. Press the triangle. `STORY` is a list of such calls: print it, then write your own in its place.
# %% [markdown] key="frame_play" lang="zh" src="18be69e1"
# 现在来做组件。这里的管理器是 nano 的，但用的是**你写的** `allocate`、`append`、`free`；`ByName` 让序列有名字。
# Play 或滑块每动一下，`observe` 就让 `draw` 重新执行。先按三角形播放。`STORY` 就是一串这样的调用：打印出来看看，再换成你自己写的。

# %% key="frame_widget" lang="en"
from ipywidgets import HTML, IntSlider, Play, VBox, jslink

from minikv.course import Table
from minikv.course.lessons.l09.frame import STORY, ByName
from minikv.nano.block_manager import BlockManager

Mine = type("Mine", (BlockManager,), {"allocate": allocate, "append": append, "free": free})
play, slider, picture = Play(max=len(STORY), interval=800), IntSlider(max=len(STORY)), HTML()


def draw(change):
    holders = frame(lambda: ByName(Mine(12, 4)), STORY, 12, play.value)
    row = [" ".join(names) for names in holders]
    call = str(STORY[play.value - 1]) if play.value else ""
    picture.value = Table([f"block {block}" for block in range(12)], [row], title=call)._repr_html_()


jslink((play, "value"), (slider, "value"))
play.observe(draw, "value")  # called whenever the step changes
show(VBox([play, slider, picture]), text=f"{len(STORY)} steps")

# %% key="frame_widget" lang="zh"
from ipywidgets import HTML, IntSlider, Play, VBox, jslink

from minikv.course import Table
from minikv.course.lessons.l09.frame import STORY, ByName
from minikv.nano.block_manager import BlockManager

Mine = type("Mine", (BlockManager,), {"allocate": allocate, "append": append, "free": free})
play, slider, picture = Play(max=len(STORY), interval=800), IntSlider(max=len(STORY)), HTML()


def draw(change):
    holders = frame(lambda: ByName(Mine(12, 4)), STORY, 12, play.value)
    row = [" ".join(names) for names in holders]
    call = str(STORY[play.value - 1]) if play.value else ""
    picture.value = Table([f"块 {block}" for block in range(12)], [row], title=call)._repr_html_()


jslink((play, "value"), (slider, "value"))
play.observe(draw, "value")  # 步数一变就调用
show(VBox([play, slider, picture]), text=f"{len(STORY)} 步")

# %% [markdown] key="frame_why" lang="en"
# ### BEGIN SOLUTION
# Replaying from the start costs a few microseconds here. Where that is too slow, keep a list of frames, one a step, and let Play choose one.
# ### END SOLUTION
# %% [markdown] key="frame_why" lang="zh" src="0746e52c"
# ### BEGIN SOLUTION
# 每次都从头执行，在这里只要几微秒。如果太慢，可以事先把每一步的画面存成列表，由 Play 来选。
# ### END SOLUTION
