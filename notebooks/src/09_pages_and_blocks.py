# %% [meta]
# number = "09"
# slug = "pages_and_blocks"
# needs = ["02"]
# rooms = ["blocks", "nano.block_manager", "nano.sequence"]
# [title]
# en = "Which sequence owns block 7?"
# zh = "块 7 属于哪条序列？"
# [t4]
# en = "Everything here is bookkeeping on the CPU: a T4 shows the same numbers, only the timings are the machine's own."
# zh = "本课全是 CPU 上的记账，T4 上看到的数字相同，只有计时因机器而异。"
# [paper]
# en = "09.1, 09.5"
# zh = "09.1、09.5"

# %% [markdown] key="question" lang="en"
# ## The question
#
# An engine answers many requests at once, and all keep their K and V in one cache on the GPU.
# You don't know how long an answer will get, and many prompts begin with the same system prompt.
#
# **How can many requests share one cache without overwriting each other?**
#
# We cut the cache into **blocks**, here of four tokens each. A and B begin with the same eight tokens. Follow B from its tokens to the blocks that hold their K and V: two of them are A's as well.
# %% [markdown] key="question" lang="zh" src="9555e9f5"
# ## 问题
#
# 推理引擎同时处理许多请求，它们的 K 和 V 都放在 GPU 上的同一个缓存里。
# 回答有多长，事先不知道；而且很多提示词的开头是同一段系统提示词。
#
# **许多请求怎样共用一个缓存，又不互相覆盖？**
#
# 办法是把缓存切成许多**块**，这里每块放 4 个 token。下图中，A 和 B 的前 8 个 token 相同。请从 B 的 token 往下看，找到存放它们的 K 和 V 的块，其中有两块同时也是 A 的。

# %% key="shared_picture" lang="en"
from minikv.blocks import BlockManager
from minikv.course.diagrams import prefix_tree, slots

manager = BlockManager(num_blocks=12, block_size=4)
manager.allocate("A", [1, 2, 3, 4, 5, 6, 7, 8, 50, 51])
manager.commit("A")  # from here on A's full blocks can be found
manager.allocate("B", [1, 2, 3, 4, 5, 6, 7, 8, 60, 61, 62])
show(slots(manager, "B", "en"))
# %% key="shared_picture" lang="zh"
from minikv.blocks import BlockManager
from minikv.course.diagrams import prefix_tree, slots

manager = BlockManager(num_blocks=12, block_size=4)
manager.allocate("A", [1, 2, 3, 4, 5, 6, 7, 8, 50, 51])
manager.commit("A")  # 从这里起，A 的满块可以被找到
manager.allocate("B", [1, 2, 3, 4, 5, 6, 7, 8, 60, 61, 62])
show(slots(manager, "B", "zh"))

# %% [markdown] key="abilities" lang="en"
# After this lesson you can
#
# - **find** the place of any token in memory, from its position and a block table;
# - **follow** a block from its first use to the moment when another sequence gets it, and say which sequences may write into it;
# - **write** a block manager: allocate, append, free, and the digest that finds a block.
#
# You should know what one token costs in bytes ([lesson 02](02_how_many_bytes.ipynb)).
# In the last exercise you build a *Play* button that steps through your own block manager.
# %% [markdown] key="abilities" lang="zh" src="bddbf83b"
# 学完本课，你能够
#
# - 由 token 的位置和块表，**算出**它的 K 和 V 存放在显存的哪里；
# - **说清**一个块从第一次使用到分给另一条序列的全过程，以及每一步哪些序列可以往里写；
# - **写出**一个块管理器：分配、追加、释放，以及查找块用的摘要。
#
# 开始之前，需要知道一个 token 占多少字节（[第 02 课](02_how_many_bytes.ipynb)）。
# 最后一个练习里，你会做一个 *Play* 按钮，一步步播放自己的块管理器。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# Here are two numbers to guess before you see how they come about. In both questions a block has room for 16 tokens.
# %% [markdown] key="predict_first" lang="zh" src="2450be78"
# ## 先猜一猜
#
# 先猜两个数，再往下看它们是怎么来的。
# 两道题里，每个块都能放 16 个 token 的 K 和 V。

# %% key="predict_second_time"
predict("second_time", ...)

# %% key="predict_shared"
predict("shared_blocks", ...)

# %% [markdown] key="table" lang="en"
# ## A table, and a slot for every token
#
# The cache is one large tensor. It is made once and cut into blocks of equal size, and all blocks together are the **pool**.
# A sequence doesn't own a stretch of it. It has a list of block numbers, its **block table**, and any free block will do.
# `BlockManager` keeps the tables and never touches a tensor.
# %% [markdown] key="table" lang="zh" src="6ea066ac"
# ## 一张表，给每个 token 一个槽位
#
# 缓存是一个大张量，一次建好，再切成等大的块；所有的块合起来叫**块池**（pool）。
# 序列并不占有块池里连续的一段，它只有一串块号，即**块表**（block table）。块号不必连续，哪些块空着就用哪些。
# 块表由 `BlockManager` 管理，它从不接触张量。

# %% key="two_tables" lang="en"
from minikv.course import Table

manager = BlockManager(num_blocks=12, block_size=4)
manager.allocate("P", [11, 12, 13, 14, 15, 16])
manager.allocate("Q", [21, 22, 23, 24, 25, 26, 27, 28, 29, 30])
for token in (17, 18, 19):
    manager.append("P", token)
rows = [[name, manager.num_tokens(name), str(manager.block_table(name))] for name in manager.sequences()]
Table(["sequence", "tokens", "block table"], rows)
# %% key="two_tables" lang="zh"
from minikv.course import Table

manager = BlockManager(num_blocks=12, block_size=4)
manager.allocate("P", [11, 12, 13, 14, 15, 16])
manager.allocate("Q", [21, 22, 23, 24, 25, 26, 27, 28, 29, 30])
for token in (17, 18, 19):
    manager.append("P", token)
rows = [[name, manager.num_tokens(name), str(manager.block_table(name))] for name in manager.sequences()]
Table(["序列", "token 数", "块表"], rows)

# %% key="slots_picture"
show(slots(manager, "P", t("lang")))

# %% [markdown] key="formula" lang="en"
# P got blocks 0 and 1, then Q took the next three. So P's ninth token, at position 8, had to go to block 5.
#
# The place of one token in the pool is a **slot**. Slots are numbered block after block: with blocks of 4, block 0 has slots 0 to 3 and block 5 has slots 20 to 23. P's position 8 is the first in its block, so it's in slot 20. For any position:
#
# $$\text{slot}(i) \;=\; \text{table}\left[\left\lfloor \tfrac{i}{B} \right\rfloor\right] \cdot B \;+\; i \bmod B$$
#
# | symbol | meaning | unit | value here |
# |---|---|---|---|
# | $i$ | position of the token, from 0 | tokens | 8 |
# | $B$ | block size | tokens a block | 4 |
# | $\text{table}$ | block table of the sequence | block numbers | [0, 1, 5] |
# | $\text{slot}$ | where its K and V are stored | slots, from 0 | 20 |
#
# With the numbers: `table[8 // 4] * 4 + 8 % 4 = 5 * 4 + 0 = 20`.
# %% [markdown] key="formula" lang="zh" src="76028bb8"
# P 先拿到块 0 和块 1，接着 Q 拿走了后面三块。所以 P 的第 9 个 token（位置 8）只能放进块 5。
#
# 块池里存放一个 token 的地方叫**槽位**（slot）。槽位按块依次编号：例如块大小为 4 时，块 0 有槽位 0 到 3，块 5 有 20 到 23。P 的位置 8 是块里的第一个，所以它在槽位 20。换成任意的位置，就是：
#
# $$\text{slot}(i) \;=\; \text{table}\left[\left\lfloor \tfrac{i}{B} \right\rfloor\right] \cdot B \;+\; i \bmod B$$
#
# | 符号 | 含义 | 单位 | 本例取值 |
# |---|---|---|---|
# | $i$ | token 的位置，从 0 开始 | token | 8 |
# | $B$ | 块大小 | token / 块 | 4 |
# | $\text{table}$ | 序列的块表 | 块号 | [0, 1, 5] |
# | $\text{slot}$ | 它的 K 和 V 存放在哪里 | 槽位号，从 0 开始 | 20 |
#
# 代入数字：`table[8 // 4] * 4 + 8 % 4 = 5 * 4 + 0 = 20`。

# %% [markdown] key="nano_slots" lang="en"
# In `minikv.nano`, the small engine of this course, the formula is one line. Below it are the two calls of `BlockManager`. A **prefill** writes many tokens at once, a **decode** step one token for each sequence:
# %% [markdown] key="nano_slots" lang="zh" src="c788f2ff"
# 在本课程的小引擎 `minikv.nano` 里，这个公式就是一行代码（整个引擎会在各课里一段段读完）。下面用 P 的块表运行它，再与 `BlockManager` 的两个调用对照：**预填充**（prefill）一次写入很多 token，**解码**（decode）每一步给每条序列写一个。

# %% key="slots" lang="en"
from minikv.course import show_source
from minikv.nano.block_manager import slot_mapping

show_source(slot_mapping)
calls = [
    ["nano's function, P", str(slot_mapping(manager.block_table("P"), 0, 9, block_size=4))],
    ["prefill of P", str(manager.slot_mapping("P", 0, 9).tolist())],
    ["decode of P and Q", str(manager.decode_slots(["P", "Q"]).tolist())],
]
Table(["call", "slots"], calls)
# %% key="slots" lang="zh"
from minikv.course import show_source
from minikv.nano.block_manager import slot_mapping

show_source(slot_mapping)
calls = [
    ["nano 的函数，P", str(slot_mapping(manager.block_table("P"), 0, 9, block_size=4))],
    ["预填充 P", str(manager.slot_mapping("P", 0, 9).tolist())],
    ["解码 P 和 Q", str(manager.decode_slots(["P", "Q"]).tolist())],
]
Table(["调用", "槽位"], calls)

# %% [markdown] key="paging_words" lang="en"
# The next picture moves, with new sequences A to D. C is **forked** from A: it begins as a second sequence with the same tokens. Watch what that copies, and what happens to a shared block when C gets a token of its own.
# %% [markdown] key="paging_words" lang="zh" src="09ff7446"
# 下面的图会动，里面是另外四条序列 A 到 D。可以按播放，也可以一步步看这些调用。其中 C 从 A **分叉**（fork）出来，也就是说，它一开始的 token 与 A 完全相同。留意两处：分叉的时候复制了什么；C 得到第一个自己的 token 时，共享的块发生了什么。

# %% key="paging_motion"
from minikv.course.motion import PagingMotion, PagingRecorder

recorder = PagingRecorder(BlockManager(num_blocks=12, block_size=4))
recorder.allocate("A", [11, 12, 13, 14, 15, 16])
recorder.allocate("B", [21, 22, 23, 24, 25])
for token in (17, 18, 19):
    recorder.append("A", token)
recorder.fork("A", "C")
recorder.append("C", 31)
recorder.free("B")
recorder.allocate("D", [11, 12, 13, 14, 15, 16, 17, 18, 41, 42])
show(PagingMotion(t("lang"), recorder))

# %% [markdown] key="guide_limits" lang="en"
# ### A chunk may begin inside a block
#
# It's tempting to count in whole blocks. But a **chunked prefill**, a long prompt that is computed in pieces, may stop anywhere. Say 6 of Q's 10 tokens are stored, and the next chunk is the other 4: whole blocks give six slots, and all four tokens go to the wrong ones.
#
# Remainders have a trap, too. `num_tokens % block_size` isn't always the number of tokens in the last block: when the block is full it is 0.
# %% [markdown] key="guide_limits" lang="zh" src="1b89ab5a"
# ### 一段可以从块的中间开始
#
# 很容易想到按整块来算。可是**分块预填充**（chunked prefill）把长提示词分成几段，每一段可能停在任何地方。例如 Q 的 10 个 token 已经存了 6 个，下一段是另外 4 个。如果从所在的块（位置 4 起）算，会得到 6 个槽位，这 4 个 token 就全都放错了地方。
#
# 取余数也有陷阱：`num_tokens % block_size` 不一定是最后一块里的 token 数，块刚好填满时它等于 0。

# %% key="guide_breaks" lang="en"
table = manager.block_table("Q")
chunk = manager.slot_mapping("Q", 6, 10).tolist()
whole = manager.slot_mapping("Q", 6 // 4 * 4, 10).tolist()  # from the beginning of its block
full = table[:2]  # 8 tokens fill them
last, remainder = full[-1] * 4 + (8 - 1) % 4, full[-1] * 4 + 8 % 4 - 1
rows = [
    ["Q's positions 6 to 9", str(chunk), str(whole)],
    [f"slot of the last of 8 tokens in blocks {full}", str(last), f"{remainder}, with 8 % 4"],
]
Table(["asked", "the right slots", "the wrong ones"], rows)
# %% key="guide_breaks" lang="zh"
table = manager.block_table("Q")
chunk = manager.slot_mapping("Q", 6, 10).tolist()
whole = manager.slot_mapping("Q", 6 // 4 * 4, 10).tolist()  # 从所在块的开头算起
full = table[:2]  # 8 个 token 正好填满
last, remainder = full[-1] * 4 + (8 - 1) % 4, full[-1] * 4 + 8 % 4 - 1
rows = [
    ["Q 的位置 6 到 9", str(chunk), str(whole)],
    [f"块 {full} 里 8 个 token，最后一个的槽位", str(last), f"{remainder}，用 8 % 4 算出"],
]
Table(["问的是", "正确的槽位", "错误的槽位"], rows)

# %% [markdown] key="block_bytes" lang="en"
# (Exercise 09.1 is this formula.)
#
# ### What a block is made of
#
# Block 7 isn't one piece of memory: it is one row in the K and one in the V of every layer. Llama-3.1-8B has 32 layers:
# %% [markdown] key="block_bytes" lang="zh" src="e1e5421e"
# （练习 09.1 就是写这个公式。）
#
# ### 一个块里有什么
#
# 块 7 并不是一整段内存。每一层的 K 和 V 里，各有它的一行。以 32 层的 Llama-3.1-8B 为例：

# %% key="block_bytes_code" lang="en"
from minikv.plan import CacheSpec

spec = CacheSpec.from_config("Llama-3.1-8B")
block = spec.block_bytes(16)
part = block // (2 * len(spec.layers))  # K or V of one layer
Table(
    ["Llama-3.1-8B, blocks of 16 tokens", "B"],
    [["a block", block], ["K or V of one layer", part], ["parts", block // part]],
)
# %% key="block_bytes_code" lang="zh"
from minikv.plan import CacheSpec

spec = CacheSpec.from_config("Llama-3.1-8B")
block = spec.block_bytes(16)
part = block // (2 * len(spec.layers))  # 一层的 K 或 V
Table(
    ["Llama-3.1-8B，块大小 16", "B"],
    [["一个块", block], ["一层的 K 或 V", part], ["份数", block // part]],
)

# %% [markdown] key="block_spans" lang="en"
# One row is 16 tokens × 8 KV heads × 128 elements × 2 B = 32,768 B, and a block has 64 of them, 2 MiB. One number in a table stands for all that, so the bookkeeping is cheap.
# %% [markdown] key="block_spans" lang="zh" src="c3bfe23e"
# 一行是 16 个 token × 8 个 KV 头 × 128 个元素 × 2 B = 32,768 B，一个块有 64 行，合计 2 MiB。块表里的一个数字就代表了这一切，所以记账的开销很小。

# %% [markdown] key="life" lang="en"
# ## The life of block 7
#
# The number of sequences that hold a block is its **reference count**. At 0 the block is free.
# A free block is *empty*, or it is *cached*: no sequence holds it, but its content can still be found.
#
# In the cell, X takes blocks 0 to 6, so the next one is number 7. A and B begin with the same ten tokens, as two requests with one system prompt do. `match` tells how many tokens of a prompt could be found now. The last column asks that for C, a third request with the same beginning that hasn't come yet.
#
# Before you run the cell: how many blocks will B share with A?
# %% [markdown] key="life" lang="zh" src="7260eb03"
# ## 块 7 的一生
#
# 有多少条序列持有一个块，这个数就是它的**引用计数**（reference count）。计数降到 0，块就空闲了。
# 空闲的块分两种：**空块**，以及**缓存块**。缓存块虽然没有序列持有，里面的内容却还能找到。
#
# 下面 X 先占用块 0 到块 6，所以接下来分出去的就是块 7。A 和 B 的前 10 个 token 相同，好比两个请求用了同一段系统提示词。
# `match` 只查不取，它告诉你一个提示词此刻有多少个 token 能在缓存里找到。最后一列用它查 C，也就是还没有到来的第三个请求，开头同样是这 10 个 token。
#
# 运行之前先想一想：B 会与 A 共享几个块？

# %% key="holders" lang="en"
manager = BlockManager(num_blocks=16, block_size=4)
pool = manager.pools[0]
system = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
prompts = {"A": [*system, 50, 51, 52], "B": [*system, 60, 61], "C": [*system, 70]}
head = ["after", "ref count of 7", "held by", "state", "tokens that C would find"]


def block_7(moment):
    """Block 7 as a row of the table."""
    holders = [name for name in manager.sequences() if 7 in manager.block_table(name)]
    state = "used" if holders else "cached" if pool.is_published(7) else "empty"
    return [moment, pool.ref_count(7), " ".join(holders), state, manager.match(prompts["C"]).num_tokens]
# %% key="holders" lang="zh"
manager = BlockManager(num_blocks=16, block_size=4)
pool = manager.pools[0]
system = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
prompts = {"A": [*system, 50, 51, 52], "B": [*system, 60, 61], "C": [*system, 70]}
head = ["之后", "块 7 的引用计数", "持有者", "状态", "C 能找到的 token"]


def block_7(moment):
    """表里的一行：块 7 此刻的情况。"""
    holders = [name for name in manager.sequences() if 7 in manager.block_table(name)]
    state = "使用中" if holders else "缓存块" if pool.is_published(7) else "空块"
    return [moment, pool.ref_count(7), " ".join(holders), state, manager.match(prompts["C"]).num_tokens]

# %% key="arrive" lang="en"
manager.allocate("X", list(range(900, 928)))
rows = [block_7("allocate X")]
manager.allocate("A", prompts["A"])
rows.append(block_7("allocate A"))
manager.commit("A")
rows.append(block_7("commit A"))
got = manager.allocate("B", prompts["B"])
rows.append(block_7("allocate B"))
tables = [manager.block_table(name) for name in "AB"]
Table(head, rows, lines=[f"B got {got}", f"block tables: A {tables[0]}, B {tables[1]}"])
# %% key="arrive" lang="zh"
manager.allocate("X", list(range(900, 928)))
rows = [block_7("allocate X")]
manager.allocate("A", prompts["A"])
rows.append(block_7("allocate A"))
manager.commit("A")
rows.append(block_7("commit A"))
got = manager.allocate("B", prompts["B"])
rows.append(block_7("allocate B"))
tables = [manager.block_table(name) for name in "AB"]
Table(head, rows, lines=[f"B 得到 {got}", f"块表：A {tables[0]}，B {tables[1]}"])

# %% key="tree_picture"
show(prefix_tree(manager, ["A", "B"], t("lang")))

# %% [markdown] key="life_read" lang="en"
# - **Only full blocks are shared.** Ten tokens are equal, but B's table begins with just A's blocks 7 and 8, eight tokens.
# - **`allocate` gives a block, `commit` publishes it.** The forward pass between the two writes K and V. Found earlier, a block would be read before it is written.
# - **No sequence owns block 7.** A and B hold it. A sequence may write into a block only while it's the only holder.
#
# Now A and B end. Before you run the cell: is block 7 free after `free A`? And once no sequence holds it, can C still get it?
# %% [markdown] key="life_read" lang="zh" src="c48b0cee"
# - **能共享的只有满块。** 相同的 token 有 10 个，B 的块表却只以 A 的块 7、块 8 开头，也就是 8 个 token。
# - **`allocate` 分配块，`commit` 发布块。** 两者之间，前向计算把 K 和 V 写进去。如果更早就能找到，读到的就是还没写好的内存。
# - **块 7 不属于任何一条序列。** A 和 B 都持有它。只有在自己是唯一持有者的时候，序列才可以往块里写。
#
# 接下来，它们一条接一条离开。运行之前先想一想：`free A` 之后，块 7 空闲了吗？等到没有序列持有它，C 还能拿到它吗？

# %% key="leave" lang="en"
rows = []
for name in ("A", "B"):
    manager.free(name)
    rows.append(block_7(f"free {name}"))
manager.allocate("C", prompts["C"])
rows.append(block_7("allocate C"))
manager.free("C")
rows.append(block_7("free C"))
manager.allocate("D", list(range(500, 536)))
rows.append(block_7("allocate D"))
evicted = manager.stats().pools[0].evictions
Table(head, rows, lines=[f"evicted cached blocks: {evicted}; D has {manager.block_table('D')}"])
# %% key="leave" lang="zh"
rows = []
for name in ("A", "B"):
    manager.free(name)
    rows.append(block_7(f"free {name}"))
manager.allocate("C", prompts["C"])
rows.append(block_7("allocate C"))
manager.free("C")
rows.append(block_7("free C"))
manager.allocate("D", list(range(500, 536)))
rows.append(block_7("allocate D"))
evicted = manager.stats().pools[0].evictions
Table(head, rows, lines=[f"淘汰的缓存块：{evicted} 个；D 的块表是 {manager.block_table('D')}"])

# %% [markdown] key="leave_read" lang="en"
# After `free B` no sequence held block 7, and C still got it. Free blocks wait in a queue, the **free list**, and a hit can take a cached block out of the middle of it. D took all of them: first the empty blocks, then the cached ones, and number 7 last. After that C would find nothing.
#
# ### The tail goes first
#
# The block that has been free the longest is evicted first, and of one sequence **the tail before the beginning**. Other prompts share the beginning, and without it the tail can't be found: a search starts at the first block.
# %% [markdown] key="leave_read" lang="zh" src="96a8a5b9"
# `free B` 之后，块 7 已经没有持有者，C 仍然拿到了它。因为空闲的块排在**空闲队列**（free list）里，其中的缓存块不论排在哪里，都可以取回。
# 随后 D 拿走了所有空闲的块，先是空块，再是缓存块，最后才轮到块 7。从此 C 一个 token 也找不到了。
#
# ### 从尾部开始淘汰
#
# 空闲最久的块最先被淘汰；而同一条序列里，**尾部先于开头**。这样做有两个原因。与别的提示词相同的，往往是开头；而且查找从第一块开始，没有开头，尾部也就找不到了。

# %% key="predict_still_found"
predict("still_found", ...)

# %% key="tail_first" lang="en"
lru = BlockManager(num_blocks=8, block_size=4)
story = list(range(16))
lru.allocate("old", story)
lru.commit("old")
old = lru.block_table("old")
lru.free("old")
rows = []
for number, length in enumerate((16, 4, 4)):
    lru.allocate(number, [100 + number] * length)
    rows.append([f"{number + 1}: {length} tokens", str(lru.block_table(number)), lru.match([*story, 99]).num_tokens])
Table(["next request", "took blocks", "old tokens still found"], rows, lines=[f"the table of old: {old}"])
# %% key="tail_first" lang="zh"
lru = BlockManager(num_blocks=8, block_size=4)
story = list(range(16))
lru.allocate("old", story)
lru.commit("old")
old = lru.block_table("old")
lru.free("old")
rows = []
for number, length in enumerate((16, 4, 4)):
    lru.allocate(number, [100 + number] * length)
    rows.append([f"{number + 1}: {length} 个 token", str(lru.block_table(number)), lru.match([*story, 99]).num_tokens])
Table(["接下来的请求", "拿走的块", "旧内容还能找到的 token"], rows, lines=[f"old 的块表：{old}"])

# %% [markdown] key="nano_digest" lang="en"
# ## The manager, opened
#
# `minikv.nano` keeps the same books in about 120 lines, without forks and windows.
#
# A block is found by its **digest**, a hash of the block's own tokens and of the digest of the block before it, its **parent**.
# Here are three blocks of two prompts that differ in their first token only. Before you run the cell: how many of the three digests will be equal?
# %% [markdown] key="nano_digest" lang="zh" src="dbcd4232"
# ## 读块管理器的源码
#
# `minikv.nano` 用约 120 行代码记同样的账，只是没有分叉，也没有窗口。我们按一个请求经过它的次序来读。
#
# 查找块用的键叫**摘要**（digest），它是一个哈希，由本块的 token 和前一个块（即**父块**）的摘要算出。
# 下面给两个提示词各串起三个块，两者只有第一个 token 不同。运行之前先想一想：三个摘要里有几个相同？

# %% key="chain" lang="en"
from minikv.nano.block_manager import block_digest

show_source(block_digest)
rows = []
for first in (1, 2):
    prompt, digest, digests = [first, *range(10, 21)], b"", []
    for start in range(0, len(prompt), 4):
        digest = block_digest(digest, prompt[start : start + 4])
        digests.append(digest.hex()[:8])
    rows.append([str(prompt), *digests])
Table(["prompt", "block 0", "block 1", "block 2"], rows)
# %% key="chain" lang="zh"
from minikv.nano.block_manager import block_digest

show_source(block_digest)
rows = []
for first in (1, 2):
    prompt, digest, digests = [first, *range(10, 21)], b"", []
    for start in range(0, len(prompt), 4):
        digest = block_digest(digest, prompt[start : start + 4])
        digests.append(digest.hex()[:8])
    rows.append([str(prompt), *digests])
Table(["提示词", "块 0", "块 1", "块 2"], rows)

# %% [markdown] key="nano_allocate" lang="en"
# None. The first token goes into every digest behind it. It has to, because beyond the first layer K and V of a token depend on all tokens before it. (This is exercise 09.3.)
#
# A request that is admitted gets its blocks from `allocate`, which calls `find_prefix` first. Look for three things:
#
# 1. The loop of `find_prefix` never looks up the last token. *Break it* shows why.
# 2. `allocate` compares before it changes anything. Why does it count `reused`?
# 3. The found blocks leave the free list before `_take` takes a fresh one. What could happen the other way round?
# %% [markdown] key="nano_allocate" lang="zh" src="f9c35d65"
# 一个也没有。第一个 token 会影响后面的每一个摘要，而且必须如此，因为除第一层外，一个 token 的 K 和 V 取决于它之前的所有 token。（这就是练习 09.3。）
#
# 请求获准进入时，由 `allocate` 分配块，它先调用 `find_prefix`。请留意三点：
#
# 1. `find_prefix` 的循环从不查找最后一个 token，原因见“弄坏它”一节。
# 2. `allocate` 先比较，再改动。为什么要算上 `reused`？
# 3. 找到的块先移出空闲队列，然后 `_take` 才取新块。次序反过来会怎样？

# %% key="nano_allocate_source"
from minikv.nano import SamplingParams, Sequence, block_manager

Nano = block_manager.BlockManager
show_source(Nano.find_prefix, Nano.allocate)

# %% [markdown] key="nano_allocate_words" lang="en"
# Here are two prompts of 9 and 10 tokens with 8 in common. `publish` is nano's name for `commit`.
# %% [markdown] key="nano_allocate_words" lang="zh" src="c29459b6"
# 拿两个提示词来试，一个 9 个 token，一个 10 个，前 8 个相同。nano 的 `publish` 就是前面的 `commit`。

# %% key="nano_allocate_run" lang="en"
books = Nano(num_blocks=6, block_size=4)
prompts = [[*range(8), 50], [*range(8), 60, 61]]
first, second = (Sequence(i, tokens, len(tokens), SamplingParams()) for i, tokens in enumerate(prompts))
head = ["after", "its table", "ref counts", "free list"]


def books_after(call, seq):
    return [call, str(seq.block_table), str(books.ref_counts), str(list(books.free_blocks))]


books.allocate(first)
rows = [books_after("allocate first", first)]
books.publish(first, end=9)
found = books.find_prefix(second.tokens)
books.allocate(second)
rows.append(books_after("allocate second", second))
Table(head, rows, lines=[f"find_prefix(second) returned {found}, then num_computed was {second.num_computed}"])
# %% key="nano_allocate_run" lang="zh"
books = Nano(num_blocks=6, block_size=4)
prompts = [[*range(8), 50], [*range(8), 60, 61]]
first, second = (Sequence(i, tokens, len(tokens), SamplingParams()) for i, tokens in enumerate(prompts))
head = ["之后", "它的块表", "引用计数", "空闲队列"]


def books_after(call, seq):
    return [call, str(seq.block_table), str(books.ref_counts), str(list(books.free_blocks))]


books.allocate(first)
rows = [books_after("allocate first", first)]
books.publish(first, end=9)
found = books.find_prefix(second.tokens)
books.allocate(second)
rows.append(books_after("allocate second", second))
Table(head, rows, lines=[f"find_prefix(second) 返回 {found}，之后 num_computed 为 {second.num_computed}"])

# %% [markdown] key="nano_append" lang="en"
# The second sequence starts with 8 tokens computed, so its first step computes only two.
# Question 2: a found block that is free can't serve as a fresh block too, so `reused` counts those.
# Question 3: if `_take` went first, it could hand out a block that was just found.
#
# Each step calls `append` before the forward and `publish` after it. What does `append` do if you call it twice for the same token? And `publish`, if another block has the same tokens already? (See `setdefault`.)
# %% [markdown] key="nano_append" lang="zh" src="592dd833"
# 第二条序列一开始就有 8 个 token 已经算好，所以第一步只需计算 2 个。
# 第 2 问：找到的空闲块会移出空闲队列，不能再当新块用，所以要算上 `reused`。
# 第 3 问：如果先调用 `_take`，它可能把刚刚找到的块取走。
#
# 此后每一步，前向计算之前调用 `append`，之后调用 `publish`。为同一个 token 调用两次 `append` 会怎样？如果另一个块里已经有同样的 token，`publish` 又会怎样？（看 `setdefault`。）

# %% key="nano_append_source"
show_source(Nano.append, Nano.publish)

# %% key="nano_append_run" lang="en"
books.publish(second, end=10)
rows = []
for token in (62, 63, 64):
    second.tokens.append(token)
    answer = books.append(second)
    rows.append(books_after(f"append {token}: {answer}", second))
    books.publish(second, end=len(second.tokens))
Table(head, rows, lines=[f"blocks that can be found: {sorted(books.cached.values())}"])

# %% key="nano_append_run" lang="zh"
books.publish(second, end=10)
rows = []
for token in (62, 63, 64):
    second.tokens.append(token)
    answer = books.append(second)
    rows.append(books_after(f"append {token}: {answer}", second))
    books.publish(second, end=len(second.tokens))
Table(head, rows, lines=[f"能找到的块：{sorted(books.cached.values())}"])

# %% [markdown] key="nano_free" lang="en"
# The 13th token needed a fourth block, and the third, full now, can be found.
# Called twice, `append` changes nothing, because the table is long enough. Of two blocks with the same tokens, `setdefault` keeps the first.
#
# Last comes `free`. In which direction does it walk through the table? And what does it *not* touch?
# %% [markdown] key="nano_free" lang="zh" src="a24140c0"
# 第 13 个 token 需要第四个块；第三个块已满，从此就能找到了。
# 调用两次时，块表已经够长，`append` 什么也不改。两个块的 token 相同时，`setdefault` 保留先发布的那个。
#
# 最后是 `free`。它沿块表朝哪个方向走？又有什么是它**不**碰的？

# %% key="nano_free_source" lang="en"
show_source(Nano.free)
rows = []
for name, seq in (("second", second), ("first", first)):
    books.free(seq)
    rows.append(books_after(f"free {name}", seq))
Table(head, rows, lines=[f"find_prefix still returns {books.find_prefix([*range(8), 70])}"])

# %% key="nano_free_source" lang="zh"
show_source(Nano.free)
rows = []
for name, seq in (("second", second), ("first", first)):
    books.free(seq)
    rows.append(books_after(f"free {name}", seq))
Table(head, rows, lines=[f"find_prefix 仍然返回 {books.find_prefix([*range(8), 70])}"])

# %% [markdown] key="nano_read" lang="en"
# All six blocks are free, the two of the common beginning last in the queue. `free` leaves `digests` and `cached` alone, so these two can still be found. (Exercises 09.2, 09.6 and 09.7.)
#
# ### Another index: a tree of tokens
#
# Chained digests are how vLLM finds a prefix. SGLang walks down a **radix tree** instead (RadixAttention, [2023](https://arxiv.org/abs/2312.07104)). An edge holds a run of tokens, and where a prompt leaves it half-way, the edge is split. The tree of A and B above is such a tree, with one block on each edge.
#
# Both evict from the leaves, so the tail goes first. They differ in where a match may end: after a block, or after any token if a page is one token. Take prompts that share 5, 8 or 10 tokens with a text of 13:
# %% [markdown] key="nano_read" lang="zh" src="e5e4298b"
# 六个块都空闲了，共同开头的两块排在队尾。`free` 没有动 `digests` 和 `cached`，所以这两块都还能找到。（练习 09.2、09.6、09.7。）
#
# ### 另一种索引：token 的树
#
# vLLM 用链式的摘要来找前缀，SGLang 则沿着一棵**基数树**（radix tree）往下走，即 RadixAttention（[2023](https://arxiv.org/abs/2312.07104)）。树的一条边上是一串 token，如果一个提示词走到边的中间分了岔，就在那里把边一分为二。前面 A 和 B 的那棵树就是这样，只是每条边正好是一个块。
#
# 两者都从叶子开始淘汰，所以都是尾部先走。区别在于匹配可以停在哪里：摘要停在块的末尾；每页 1 个 token 的树，停在哪个 token 都行。例如有一段 13 个 token 的文字，几个提示词分别有 5、8、10 个 token 与它相同：

# %% key="radix_hits" lang="en"
text, rows = list(range(13)), []
for size in (4, 1):
    index = BlockManager(num_blocks=16, block_size=size)
    index.allocate("A", text)
    index.commit("A")
    found = [index.match([*text[:equal], 99, 99]).num_tokens for equal in (5, 8, 10)]
    rows.append([size, len(index.block_table("A")), *found])
Table(["tokens a block", "blocks of A", "found, 5 shared", "found, 8 shared", "found, 10 shared"], rows)
# %% key="radix_hits" lang="zh"
text, rows = list(range(13)), []
for size in (4, 1):
    index = BlockManager(num_blocks=16, block_size=size)
    index.allocate("A", text)
    index.commit("A")
    found = [index.match([*text[:equal], 99, 99]).num_tokens for equal in (5, 8, 10)]
    rows.append([size, len(index.block_table("A")), *found])
Table(["块大小", "A 的块数", "相同 5 个，找到", "相同 8 个，找到", "相同 10 个，找到"], rows)

# %% [markdown] key="radix_read" lang="en"
# Here the finer index finds up to two tokens more, but keeps 13 entries instead of 3 (A's fourth block isn't full, so it is in no index). From the tree SGLang also sees which waiting prompt shares the most, and can run it first.
# %% [markdown] key="radix_read" lang="zh" src="03a29cef"
# 索引越细，找到的 token 越多（这里最多多 2 个），但要维护的项从 3 个变成 13 个（A 的第四块没有填满，不在索引里）。从树上还能看出等待的请求里哪个共享得最多，SGLang 可以让它先运行。

# %% [markdown] key="see" lang="en"
# ## See it
#
# The pool below is a real `BlockManager`, and each button is one of its operations. Grey hatching means that several sequences hold the block. A dashed edge means that none does: "cached" can still be found, "free" is empty.
#
# Say before each press what will change:
#
# 1. Fork A. How many blocks are copied? Then press "One token for each", twice.
# 2. Free A. In the list of sequences choose "A (has ended)", and ask for a new request with its tokens.
# 3. Choose "A (has ended)" again and free it once more.
# 4. Press "New request" until the pool refuses.
#
# The slider takes you back through everything that happened.
# %% [markdown] key="see" lang="zh" src="ce87642d"
# ## 亲眼看看
#
# 下面的块池背后是真正的 `BlockManager`，每个按钮就是它的一种操作。灰色斜纹代表由多条序列共同持有的块；虚线框的块没有序列持有，标着“已缓存”的还能找到，标着“空闲”的是空块。
#
# 每次按之前，先说出会发生什么：
#
# 1. 把 A 分叉。复制了几个块？然后按两次“每条序列加一个 token”。
# 2. 释放 A。再在序列的列表里选“A（已结束）”，按“以它的内容开头的新请求”。
# 3. 再选“A（已结束）”，再释放一次。
# 4. 一直按“新请求”，直到块池拒绝。
#
# 拖动滑块可以回看每一步。

# %% key="widget"
from minikv.course.widgets import PoolWidget

widget = PoolWidget(t("lang"), num_blocks=24, block_size=4)
actions = [("new", ""), ("new", ""), ("share", "B"), ("step", ""), ("new", ""), ("free", "D")]
for action, sequence in actions:
    widget.act(action, sequence)
show(widget)

# %% [markdown] key="cow" lang="en"
# ## Fork and write: copy-on-write
#
# Four answers to one question are **forks** of one sequence: they share everything until they differ. `fork` copies nothing.
# A block is copied only when a sequence is about to write into it while others hold it too: **copy-on-write**.
# `append` returns the copies that the storage has to make, `Copy(kv_cache_group, src, dst)`. (Ignore the group until the next section: it is 0.)
# %% [markdown] key="cow" lang="zh" src="e6d84d08"
# ## 分叉与写入：写时复制
#
# 例如一个问题要四个回答，就是同一条序列的四个**分叉**（fork）。在出现差别之前，它们共享一切。`fork` 什么也不复制。
# 只有当一条序列要往某个块里写、而别的序列也持有这个块时，才先复制一份。这就是**写时复制**（copy-on-write）。
# `append` 返回存储端需要做的复制，即 `Copy(kv_cache_group, src, dst)` 的列表，通常为空；其中第一项是组号，本节里总是 0，下一节再讲。

# %% key="predict_forked"
predict("forked_blocks", ...)

# %% [markdown] key="storage" lang="en"
# To see what goes wrong without the copy, we store something: the slots of `Words` keep words instead of K and V.
# %% [markdown] key="storage" lang="zh" src="2d38f226"
# 要看清不复制会出什么错，就得真的存点东西。`Words` 的每个槽位不存 K 和 V，而存一个单词：

# %% key="storage_code"
from minikv.course.lessons.l09.words import Words, forked

show_source(Words.append, Words.read)

# %% [markdown] key="fork_words" lang="en"
# A has six words, B and C are its forks, and each of the three appends a word of its own:
# %% [markdown] key="fork_words" lang="zh" src="bec17b0f"
# A 有六个单词，B 和 C 是它的分叉。现在三条序列各自追加一个不同的单词：

# %% key="fork_and_write" lang="en"
words, rows = forked(), []
for name, word in (("A", "and"), ("B", "but"), ("C", "while")):
    copies = words.append(name, word)
    rows.append([name, str(words.manager.block_table(name)), str([tuple(copy) for copy in copies])])
Table(["sequence", "table", "copies", "read"], [[*row, words.read(row[0])] for row in rows])
# %% key="fork_and_write" lang="zh"
words, rows = forked(), []
for name, word in (("A", "and"), ("B", "but"), ("C", "while")):
    copies = words.append(name, word)
    rows.append([name, str(words.manager.block_table(name)), str([tuple(copy) for copy in copies])])
Table(["序列", "块表", "复制", "读到"], [[*row, words.read(row[0])] for row in rows])

# %% [markdown] key="fork_read" lang="en"
# That took only two copies: C is the only holder left of the old block and writes in place.
# Block 0 is full, so it stays shared. (Exercise 09.4.)
# %% [markdown] key="fork_read" lang="zh" src="b173431a"
# 三条序列只复制了两次，因为轮到 C 时，旧块只剩它一个持有者，可以就地写入。
# 块 0 已满，不会再有序列往里写，所以一直共享。（练习 09.4。）

# %% [markdown] key="windows" lang="en"
# ## Windows that move on
#
# A layer with a sliding window of $W$ reads the last $W$ positions, the new token included. A block that lies before them is never read again, and `commit` gives it back.
# Its entry in the table becomes `NULL_BLOCK` (-1). If it were removed, the entries behind it would move up and `i // B` would point to the wrong block.
#
# Layers with and without a window keep different tokens, so they form two **KV cache groups**, each with a pool and a table of its own. In the cell, "full" is the group without a window, and the second group has a window of 6:
# %% [markdown] key="windows" lang="zh" src="d5425299"
# ## 向前移动的窗口
#
# 滑动窗口（sliding window）为 $W$ 的层，只读最近的 $W$ 个位置，新 token 也算在内。完全落在这些位置之前的块再也不会被读到，于是 `commit` 把它归还。
# 它在块表里的那一项改成 `NULL_BLOCK`（-1）。如果删掉这一项，后面各项就会前移，`i // B` 也就指错了块。
#
# 有窗口的层与没有窗口的层保留的 token 不同，所以分成两个 **KV 缓存组**（KV cache group），每组各有自己的块池和块表。下面第二组的窗口是 6：

# %% key="windows_code" lang="en"
from minikv.blocks import KVCacheGroup

windowed = BlockManager([KVCacheGroup(num_blocks=16), KVCacheGroup(num_blocks=8, window=6)], block_size=4)
windowed.allocate("S", list(range(7)))
windowed.commit("S")
rows = []
for position in range(7, 26):
    windowed.append("S", position)
    windowed.commit("S")
    if position % 3 == 0:
        tables = [str(windowed.block_table("S", group)) for group in (0, 1)]
        rows.append([position + 1, *(pool.used for pool in windowed.stats().pools), *tables])
Table(["tokens", "blocks, full", "blocks, window", "table, full", "table, window"], rows)
# %% key="windows_code" lang="zh"
from minikv.blocks import KVCacheGroup

windowed = BlockManager([KVCacheGroup(num_blocks=16), KVCacheGroup(num_blocks=8, window=6)], block_size=4)
windowed.allocate("S", list(range(7)))
windowed.commit("S")
rows = []
for position in range(7, 26):
    windowed.append("S", position)
    windowed.commit("S")
    if position % 3 == 0:
        tables = [str(windowed.block_table("S", group)) for group in (0, 1)]
        rows.append([position + 1, *(pool.used for pool in windowed.stats().pools), *tables])
Table(["token 数", "块数，全注意力", "块数，窗口", "块表，全注意力", "块表，窗口"], rows)

# %% [markdown] key="windows_read" lang="en"
# The full group grows with the sequence, the other one stays at 2 blocks. Slot -1, behind the window, is skipped by a store. (Exercise 09.5.)
# %% [markdown] key="windows_read" lang="zh" src="aba0cc1d"
# 全注意力的那一组随序列增长，滑动窗口的那一组始终是 2 个块。窗口之前的位置，槽位是 -1，写入时会跳过。（练习 09.5。）

# %% key="windows_slots"
windowed.slot_mapping("S", 14, 26, kv_cache_group=1).tolist()

# %% [markdown] key="size" lang="en"
# ## How large should a block be?
#
# The last block of a sequence is rarely full. Its empty slots are **internal fragmentation**, memory that is given out and holds nothing. A paged cache has no *external* fragmentation, no free memory that is too scattered to use: any free block is as good as any other. (For a cache without blocks see [lesson 06](06_the_linear_cache.ipynb).)
# %% [markdown] key="size" lang="zh" src="e73522c8"
# ## 块应该多大？
#
# 一条序列的最后一块很少正好填满。其中的空槽位就是**内部碎片**：显存已经分出去，却什么也没存。分页缓存没有**外部碎片**，也就是不会有空着却太零散、用不上的显存，因为空闲块用哪一个都一样。（不分块的缓存见[第 06 课](06_the_linear_cache.ipynb)。）

# %% key="predict_waste"
predict("mean_waste", ...)

# %% [markdown] key="size_measure" lang="en"
# Here is a mixed load of 120 sequences, most of them short and a few long, all with the same system prompt of 700 tokens.
# A **salt** is a text that goes into the first digest, so requests with different salts share nothing. Here each has its own, so that no block has two holders.
# The last column asks for the system prompt once more: how many of its 700 tokens are found?
# %% [markdown] key="size_measure" lang="zh" src="bb60b5d0"
# 来量一组长短混合的负载：120 条序列，多数短，少数长，每条前面都有同一段 700 token 的系统提示词。
# **盐值**（salt）是放进第一个摘要的一段文字，盐值不同的请求之间什么也不共享。这里每条序列各用一个盐值，所以块都归自己用。
# 最后一列把这段系统提示词再查一次，看看 700 个 token 里能找到多少个。

# %% key="size_load" lang="en"
import random

rng = random.Random(0)
lengths = [700 + int(rng.lognormvariate(5, 1)) for _ in range(120)]
system_prompt = list(range(700))


def filled(size):
    """A manager with the whole load, in blocks of this size."""
    load = BlockManager(num_blocks=sum(length // size + 1 for length in lengths), block_size=size)
    for number, length in enumerate(lengths):
        own = range(1000, 1000 + length - 700)
        load.allocate(number, [*system_prompt, *own], salt=str(number))
        load.commit(number)
    return load
# %% key="size_load" lang="zh"
import random

rng = random.Random(0)
lengths = [700 + int(rng.lognormvariate(5, 1)) for _ in range(120)]
system_prompt = list(range(700))


def filled(size):
    """按这个块大小装下全部负载的块管理器。"""
    load = BlockManager(num_blocks=sum(length // size + 1 for length in lengths), block_size=size)
    for number, length in enumerate(lengths):
        own = range(1000, 1000 + length - 700)
        load.allocate(number, [*system_prompt, *own], salt=str(number))
        load.commit(number)
    return load

# %% key="size_table" lang="en"
rows = []
for size in (1, 2, 4, 8, 16, 32, 64, 128, 256):
    load = filled(size)
    stats, longest = load.stats(), max(len(load.block_table(number)) for number in load.sequences())
    empty = round(stats.wasted_slots[0] / len(lengths), 2)
    hit = load.match([*system_prompt, -1], salt="0").num_tokens
    rows.append([size, empty, (size - 1) / 2, f"{stats.fragmentation():.2%}", longest, hit])
head = ["block size", "empty slots a sequence", "(B - 1) / 2", "share of slots", "longest table", "hits of 700"]
Table(head, rows, right=head)
# %% key="size_table" lang="zh"
rows = []
for size in (1, 2, 4, 8, 16, 32, 64, 128, 256):
    load = filled(size)
    stats, longest = load.stats(), max(len(load.block_table(number)) for number in load.sequences())
    empty = round(stats.wasted_slots[0] / len(lengths), 2)
    hit = load.match([*system_prompt, -1], salt="0").num_tokens
    rows.append([size, empty, (size - 1) / 2, f"{stats.fragmentation():.2%}", longest, hit])
head = ["块大小", "每条序列的空槽位", "(B - 1) / 2", "占全部槽位", "最长块表", "命中（共 700）"]
Table(head, rows, right=head)

# %% key="size_plot" lang="en"
from minikv.course.charts import lines

empty = {row[0]: row[1] for row in rows[1:]}  # blocks of one token have no empty slots
longest = {row[0]: row[4] for row in rows}
series = {"empty slots of a sequence": empty, "entries of the longest block table": longest}
show(lines(series, x="block size, tokens", y="slots, entries", log="xy"))
# %% key="size_plot" lang="zh"
from minikv.course.charts import lines

empty = {row[0]: row[1] for row in rows[1:]}  # 块大小为 1 时没有空槽位
longest = {row[0]: row[4] for row in rows}
series = {"每条序列的空槽位": empty, "最长块表的项数": longest}
show(lines(series, x="块大小，token", y="槽位数、项数", log="xy"))

# %% [markdown] key="size_read" lang="en"
# On average a sequence wastes $(B-1)/2$ slots. For $B = 16$ that is `(16 - 1) / 2 = 7.5`, and this load has 7.03. So the smallest block wastes least, but it has a price:
#
# - **The table.** At size 1, a thousand tokens need a thousand entries, and attention looks them up in every layer.
# - **The bookkeeping.** Each block has a count and a digest. The next cell times that.
#
# Large blocks lose **hits** instead. A hit is rounded down to whole blocks: of the 700 tokens, blocks of 256 find only 512.
# %% [markdown] key="size_read" lang="zh" src="2df59b37"
# 每条序列平均浪费 $(B-1)/2$ 个槽位。例如 $B = 16$ 时是 `(16 - 1) / 2 = 7.5`，这组负载测得 7.03。所以块越小，浪费越少，但也有代价：
#
# - **块表。** 块大小为 1 时，一千个 token 就有一千项；每一步、每一层，注意力都要逐项去查。
# - **记账。** 每个块都有计数、在空闲队列里的位置，以及摘要。下一个单元格测量它们要花多少时间。
#
# 大块损失的则是**命中**，因为命中按整块向下取整：例如 700 个 token，块大小为 256 时只能找到 512 个。

# %% key="size_time" lang="en" tags="timing"
import time

rows = []
for size in (1, 4, 16, 64, 256):
    times = []
    for _ in range(7):
        load = BlockManager(num_blocks=4096 // size, block_size=size)
        start = time.perf_counter()
        load.allocate("S", list(range(4096)))
        load.commit("S")
        load.free("S")
        times.append(1e3 * (time.perf_counter() - start))
    rows.append([size, min(times)])
Table(["block size", "ms: allocate, commit, free 4,096 tokens"], rows)
# %% key="size_time" lang="zh" tags="timing"
import time

rows = []
for size in (1, 4, 16, 64, 256):
    times = []
    for _ in range(7):
        load = BlockManager(num_blocks=4096 // size, block_size=size)
        start = time.perf_counter()
        load.allocate("S", list(range(4096)))
        load.commit("S")
        load.free("S")
        times.append(1e3 * (time.perf_counter() - start))
    rows.append([size, min(times)])
Table(["块大小", "毫秒：4,096 个 token 的 allocate、commit、free"], rows)

# %% [markdown] key="size_answer" lang="en"
# Sixteen is a common choice: only a few tokens are wasted, and tables and bookkeeping are small already. (For the kernel's view see [lesson 10](10_kernels.ipynb).)
# %% [markdown] key="size_answer" lang="zh" src="3e9c9c31"
# 16 是常见的选择，因为浪费只有几个 token，块表和记账的开销也已经很小。kernel 对此还有自己的要求，见[第 10 课](10_kernels.ipynb)。

# %% [markdown] key="hits" lang="en"
# ## What a shared prompt brings
#
# The **hit rate** is the share of prompt tokens that don't have to be computed. Here it is for sixty requests, in four variants.
# %% [markdown] key="hits" lang="zh" src="b56e2aa4"
# ## 共享提示词的收益
#
# **命中率**（hit rate）是提示词的 token 里不必计算的比例。下面有六十个请求，前面是系统提示词，后面各接自己的问题，一共四种情况。

# %% key="hit_requests" lang="en"
rng = random.Random(1)
questions = [[rng.randrange(5000, 90_000) for _ in range(rng.randint(20, 300))] for _ in range(60)]
variants = {  # tokens and salt of a request
    "one system prompt for all": lambda number, question: ([*system_prompt, *question], ""),
    "the same, a salt for each of 4 tenants": lambda number, question: ([*system_prompt, *question], str(number % 4)),
    "a number behind the system prompt": lambda number, question: ([*system_prompt, 100_000 + number, *question], ""),
    "a number before the system prompt": lambda number, question: ([100_000 + number, *system_prompt, *question], ""),
}
# %% key="hit_requests" lang="zh"
rng = random.Random(1)
questions = [[rng.randrange(5000, 90_000) for _ in range(rng.randint(20, 300))] for _ in range(60)]
variants = {  # 一个请求的 token 和盐值
    "所有请求共用系统提示词": lambda number, question: ([*system_prompt, *question], ""),
    "同上，4 个租户各用一个盐值": lambda number, question: ([*system_prompt, *question], str(number % 4)),
    "系统提示词后面加一个编号": lambda number, question: ([*system_prompt, 100_000 + number, *question], ""),
    "系统提示词前面加一个编号": lambda number, question: ([100_000 + number, *system_prompt, *question], ""),
}

# %% key="hit_rates" lang="en"
from minikv.course.charts import bars

rates = {}
for name, request in variants.items():
    load = BlockManager(num_blocks=4000, block_size=16)
    for number, question in enumerate(questions):
        load.allocate(number, *request(number, question))
        load.commit(number)
        load.free(number)
    rates[f"{name}: {load.stats().hit_tokens:,} tokens"] = 100 * load.stats().hit_rate
show(bars(list(rates), {"hits": list(rates.values())}, x="hits, % of the prompt tokens", unit="%"))
# %% key="hit_rates" lang="zh"
from minikv.course.charts import bars

rates = {}
for name, request in variants.items():
    load = BlockManager(num_blocks=4000, block_size=16)
    for number, question in enumerate(questions):
        load.allocate(number, *request(number, question))
        load.commit(number)
        load.free(number)
    rates[f"{name}：{load.stats().hit_tokens:,} 个 token"] = 100 * load.stats().hit_rate
show(bars(list(rates), {"命中": list(rates.values())}, x="命中，占提示词 token 的 %", unit="%"))

# %% [markdown] key="hits_read" lang="en"
# In the first bar, the first request finds nothing and each of the other 59 finds 43 full blocks, `59 * 43 * 16 = 40,592` tokens.
# In the last one, a token at the front differs, as a date might. Nothing is shared, because that token is in every digest behind it. So put what varies behind what is common.
#
# The second bar is a choice. A tenant is one customer of the server. With a salt for each, no tenant can find out by timing what another one has asked. Now four first requests find nothing, and the hit rate falls from 79.3 % to 75.3 %.
# %% [markdown] key="hits_read" lang="zh" src="62832338"
# 先看第一条：第一个请求什么也找不到，其余 59 个各找到 43 个满块，即 `59 * 43 * 16 = 40,592` 个 token。再看最后一条：最前面只要有一个 token 不同，比如日期，就什么也共享不了，因为后面的每个摘要都受它影响。所以，变化的内容要放在公共内容之后。
#
# 第二条是有意的选择。租户是共用一台服务器的不同客户，每个租户各用一个盐值，就无法靠计时探出别的租户问过什么。代价是每个租户的第一个请求都找不到，命中率从 79.3% 降到 75.3%。

# %% [markdown] key="break" lang="en"
# ## Break it
#
# ### A hit that leaves no query
#
# A prompt that fills exactly two blocks of 256 tokens has run before. Count every full block that is found as a hit. (`match` leaves out the last token, so the cell adds one.)
# %% [markdown] key="break" lang="zh" src="ba5b3d0e"
# ## 弄坏它
#
# ### 命中之后没有 query
#
# 块大小为 256，取一个正好两块长、先前已经跑过的提示词。假设引擎把找到的满块全都算作命中，会怎样？（`match` 总会留下最后一个 token，所以代码里多给了它一个。）

# %% key="full_hit" lang="en"
again = BlockManager(num_blocks=8, block_size=256)
prompt = list(range(512))
again.allocate("first", prompt)
again.commit("first")
found = again.match([*prompt, 512]).num_tokens
got = again.allocate("second", prompt)
rows = [["every full block", found, 512 - found], ["one token is left", got.num_cached, 512 - got.num_cached]]
Table(["what counts as a hit", "cached tokens", "left to compute"], rows)
# %% key="full_hit" lang="zh"
again = BlockManager(num_blocks=8, block_size=256)
prompt = list(range(512))
again.allocate("first", prompt)
again.commit("first")
found = again.match([*prompt, 512]).num_tokens
got = again.allocate("second", prompt)
rows = [["所有满块", found, 512 - found], ["至少留一个 token", got.num_cached, 512 - got.num_cached]]
Table(["怎样算命中", "已缓存的 token", "还要计算的"], rows)

# %% [markdown] key="full_hit_read" lang="en"
# No token is left to compute: no query, no logits, no next token. CUDA refuses to launch an attention kernel with a grid of size 0.
# So `match` looks up only `(len(tokens) - 1) // block_size` blocks. The price is one block that is computed again, usually 16 tokens.
# %% [markdown] key="full_hit_read" lang="zh" src="c02c49f4"
# 要计算的 token 一个也不剩，于是没有 query，没有 logits，也没有下一个 token；注意力 kernel 的网格（grid）大小为 0，CUDA 拒绝 launch。
# 所以 `match` 只查 `(len(tokens) - 1) // block_size` 个块。代价是重算一整块，通常是 16 个 token。

# %% [markdown] key="break_copy" lang="en"
# ### A copy that was left out
#
# The manager only says what to copy, and the storage has to do it. Here it doesn't:
# %% [markdown] key="break_copy" lang="zh" src="1ab51500"
# ### 漏掉的复制
#
# 管理器只说要复制什么，真正复制的是存储端。这里它漏掉了：

# %% key="no_copy" lang="en"
words = forked()
for name, word in (("A", "and"), ("B", "but"), ("C", "while")):
    words.append(name, word, copying=False)
Table(["sequence", "read"], [[name, words.read(name)] for name in "ABC"])
# %% key="no_copy" lang="zh"
words = forked()
for name, word in (("A", "and"), ("B", "but"), ("C", "while")):
    words.append(name, word, copying=False)
Table(["序列", "读到"], [[name, words.read(name)] for name in "ABC"])

# %% [markdown] key="break_commit" lang="en"
# A and B got a new block with their own word in it, but the two words before it were never copied. There is no error.
#
# ### A block that was published too early
#
# This time A's blocks are committed before its forward has run, and B arrives in between.
# %% [markdown] key="break_commit" lang="zh" src="b75a50ec"
# A 和 B 拿到的新块里只有各自的新词，前面的两个词没有复制过来。而且没有任何报错。
#
# ### 发布得太早的块
#
# 这一次，A 的前向计算还没有运行，它的块就已经 `commit` 了，而 B 恰好在这时到来。

# %% key="early_commit" lang="en"
rows, question = [], "you are a kind helper . who are you ?"
for early in (False, True):
    words = Words()
    words.manager.allocate("A", words.tokens("you are a kind helper . what is a block ?"))
    if early:
        words.manager.commit("A")  # before A's forward
    got = words.manager.allocate("B", words.tokens(question))
    words.forward("B", question, start=got.num_cached)
    rows.append([str(early), got.num_cached, words.read("B")])
Table(["commit before the forward", "tokens that B found", "B reads"], rows)
# %% key="early_commit" lang="zh"
rows, question = [], "you are a kind helper . who are you ?"
for early in (False, True):
    words = Words()
    words.manager.allocate("A", words.tokens("you are a kind helper . what is a block ?"))
    if early:
        words.manager.commit("A")  # 在 A 的前向计算之前
    got = words.manager.allocate("B", words.tokens(question))
    words.forward("B", question, start=got.num_cached)
    rows.append([str(early), got.num_cached, words.read("B")])
Table(["在前向计算之前 commit", "B 找到的 token", "B 读到"], rows)

# %% [markdown] key="early_read" lang="en"
# Again there is no error, just an answer to a text that isn't there.
# A hit count can go stale in the same way, because another request may evict what was found. So `allocate` looks up and takes in one operation. Here is what becomes of a number that `match` gave earlier:
# %% [markdown] key="early_read" lang="zh" src="ec8ceed5"
# 同样没有报错，只是模型在根据一段并不存在的文字作答。
# 命中数也会这样过期，因为查到的块可能被别的请求挤掉。所以 `allocate` 把查找和取用放在同一个操作里完成。先前用 `match` 查到的数字，后来会变成这样：

# %% key="stale" lang="en"
stale = BlockManager(num_blocks=4, block_size=4)
stale.allocate("A", list(range(12)))
stale.commit("A")
stale.free("A")
looked = stale.match(list(range(13))).num_tokens
stale.allocate("other", [99] * 12)
Table(["tokens found when looked up", "after another request came"], [[looked, stale.match(list(range(13))).num_tokens]])
# %% key="stale" lang="zh"
stale = BlockManager(num_blocks=4, block_size=4)
stale.allocate("A", list(range(12)))
stale.commit("A")
stale.free("A")
looked = stale.match(list(range(13))).num_tokens
stale.allocate("other", [99] * 12)
Table(["查找时找到的 token", "另一个请求来过之后"], [[looked, stale.match(list(range(13))).num_tokens]])

# %% [markdown] key="break_hash" lang="en"
# ### Two texts, one hash (optional)
#
# If two texts have the same digest, a request gets the cache of another one. In Python, `hash(-1)` equals `hash(-2)`.
# %% [markdown] key="break_hash" lang="zh" src="4e26f010"
# ### 两段文字，同一个哈希（选读）
#
# 两段文字的摘要一旦相同，一个请求就会拿到另一个请求的缓存。在 Python 里，`hash(-1)` 就等于 `hash(-2)`。

# %% key="collision" lang="en"
from minikv.blocks import BlockPool

ours, theirs = (7, -1), (7, -2)
digest = hash(ours).to_bytes(8, "little", signed=True)
shelf = BlockPool(num_blocks=4, block_size=2)
[block] = shelf.allocate(1)
shelf.publish(block, digest, repr(ours).encode())
found = [[str(tokens), str(shelf.lookup_block(digest, repr(tokens).encode()))] for tokens in (ours, theirs)]
Table(["tokens", "block found"], found, lines=[f"equal hashes: {hash(ours) == hash(theirs)}"])
# %% key="collision" lang="zh"
from minikv.blocks import BlockPool

ours, theirs = (7, -1), (7, -2)
digest = hash(ours).to_bytes(8, "little", signed=True)
shelf = BlockPool(num_blocks=4, block_size=2)
[block] = shelf.allocate(1)
shelf.publish(block, digest, repr(ours).encode())
found = [[str(tokens), str(shelf.lookup_block(digest, repr(tokens).encode()))] for tokens in (ours, theirs)]
Table(["两个 token", "找到的块"], found, lines=[f"哈希相等：{hash(ours) == hash(theirs)}"])

# %% [markdown] key="collision_read" lang="en"
# Token ids are never negative, but in a public hash function you can search for other collisions. So `lookup_block` compares the tokens as well. The manager's own digests are SHA-256, which has no known collision.
#
# ### A free list that has to be searched (optional)
#
# A hit takes a cached block out of the *middle* of the free list. `deque.remove` walks along the list to find it; our pool has an ordered dict.
# %% [markdown] key="collision_read" lang="zh" src="2ab8d025"
# token 的编号不会是负数，但只要哈希函数是公开的，就可以有意去找其他碰撞。所以 `lookup_block` 还会比较 token。管理器自己的摘要用 SHA-256，至今没有已知的碰撞。
#
# ### 需要逐个搜索的空闲队列（选读）
#
# 命中时，要从空闲队列的**中间**取走一个缓存块。`deque.remove` 得一个个找过去；我们的块池用的是有序字典。

# %% key="free_list_time" lang="en" tags="timing"
from minikv.course.lessons.l09.free_list import taking_back

rows = [[blocks, *taking_back(blocks)] for blocks in (1_000, 10_000, 100_000)]
Table(["blocks", "deque, µs for a block taken back", "our pool, µs"], rows)
# %% key="free_list_time" lang="zh" tags="timing"
from minikv.course.lessons.l09.free_list import taking_back

rows = [[blocks, *taking_back(blocks)] for blocks in (1_000, 10_000, 100_000)]
Table(["块数", "deque，取回一块的微秒数", "本包的块池，微秒"], rows)

# %% [markdown] key="break_errors" lang="en"
# ### What the manager refuses
#
# The manager refuses a call if there are too few blocks, if the request is larger than the pool, if a block is freed twice, or if it doesn't know the sequence. A refused call changes nothing.
# %% [markdown] key="break_errors" lang="zh" src="c39a5ec0"
# ### 管理器会拒绝什么
#
# 块不够、请求比整个块池还大、同一个块释放两次、序列不存在，这些都会被拒绝。被拒绝的操作什么也不改变。

# %% key="errors"
from minikv.errors import MiniKVError

small = BlockManager(num_blocks=4, block_size=4)
small.allocate("A", list(range(10)))
before = small.stats()
attempts = [
    lambda: small.allocate("B", list(range(100, 108))),
    lambda: small.allocate("B", list(range(100, 120))),
    lambda: small.pools[0].free([3]),
    lambda: small.free("B"),
]
for attempt in attempts:
    try:
        attempt()
    except MiniKVError as error:
        print(f"{type(error).__name__}: {t(error)}")

# %% key="unchanged"
small.stats() == before

# %% [markdown] key="recap" lang="en"
# ## Recap
#
# - A block table turns positions into slots: position 8 of P is in slot 20.
# - Sequences that begin alike share their full blocks: 8 of 10 equal tokens here. A free block may still be found.
# - Only the one holder of a block may write into it. Otherwise it is copied first: A and its two forks needed two copies.
# - A digest contains all tokens before its block. One different token at the front brought the hit rate from 79 % to 0.
# - Small blocks waste little, 7.5 slots a sequence at size 16, but need more table entries.
# %% [markdown] key="recap" lang="zh" src="3283d1bc"
# ## 本课小结
#
# - 块表把位置变成槽位：例如 P 的位置 8 在槽位 20。
# - 开头相同的序列共享满块：这里 10 个相同的 token 共享了 8 个。空闲的块里，内容可能还找得到。
# - 只有一个块的唯一持有者才能往里写，否则先复制一份：A 和它的两个分叉一共复制了两次。
# - 摘要里包含前面所有的 token。最前面只要有一个 token 不同，命中率就从 79% 降到 0。
# - 块越小浪费越少，块大小 16 时每条序列约 7.5 个槽位；但块表的项数会增加。

# %% [markdown] key="self" lang="en"
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="c2d6ea3e"
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_owns"
explain("owners")

# %% key="explain_commit"
explain("why_commit")

# %% key="explain_parent"
explain("why_parent")

# %% key="explain_size"
explain("which_size")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# You write the parts of a block manager. Those with \* become parts of your engine. Short of time? Do the first three.
#
# 1. `slot_mapping` \*: from positions to slots.
# 2. `free` \*: in which order blocks go back.
# 3. `block_digest` \*: how a block is found.
# 4. `append_slot`: copy-on-write.
# 5. `behind_window`: the blocks that a window has left.
# 6. `allocate` \*: cached blocks first, all or nothing.
# 7. `append` \*: a new block only when the last one is full.
# 8. `frame`: a *Play* button for your own manager.
# %% [markdown] key="exercises" lang="zh" src="f213a733"
# ## 练习
#
# 练习 notebook 要你写出块管理器的各个部分，带 \* 的会成为“你的引擎”的部件。时间不够的话，先做前三个。
#
# 1. `slot_mapping` \*：由位置算出槽位。
# 2. `free` \*：块按什么次序归还。
# 3. `block_digest` \*：怎样找到一个块。
# 4. `append_slot`：写时复制。
# 5. `behind_window`：已经落在窗口之前的块。
# 6. `allocate` \*：缓存块优先，要么全给，要么不给。
# 7. `append` \*：最后一块满了才取新块。
# 8. `frame`：播放你自己的块管理器的 *Play* 按钮。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | fewer and fewer free blocks, although sequences end | `manager.stats().pools[0]` and `manager.sequences()` after each `free`, then `manager.check_invariants()` |
# | a sequence reads text of another one | `manager.pools[0].ref_count(manager.block_table(name)[-1])` before the write: above 1, in a block that isn't full, a copy was left out |
# | no prefix hits | `manager.match(tokens, salt).num_tokens` after `commit`: 0 means another salt, another first token, or less than a block and one token |
# %% [markdown] key="stuck" lang="zh" src="eb421e39"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 序列都结束了，空闲块却越来越少 | 每次 `free` 之后看 `manager.stats().pools[0]` 和 `manager.sequences()`，再运行 `manager.check_invariants()` |
# | 一条序列读到了另一条的文字 | 写入之前看 `manager.pools[0].ref_count(manager.block_table(name)[-1])`：大于 1 而这一块又没有填满，说明漏做了复制 |
# | 前缀从不命中 | `commit` 之后看 `manager.match(tokens, salt).num_tokens`：为 0 说明盐值不同、第一个 token 不同，或者不足一个块加一个 token |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# <details>
# <summary>Five reports, and the section that explains each</summary>
#
# - **A hit that left no query.** In October 2025 a user gave nano-vllm one prompt 513 times. It crashed where the prompt's length was a multiple of the block size, 256 ([#114](https://github.com/GeeeekExplorer/nano-vllm/issues/114), [#144](https://github.com/GeeeekExplorer/nano-vllm/issues/144)). vLLM looks up one token less, as `match` does ([PR #17999](https://github.com/vllm-project/vllm/pull/17999)). A fix proposed for nano-vllm computes only the last token again ([PR #199](https://github.com/GeeeekExplorer/nano-vllm/pull/199)).
# - **Blocks that were too large.** An engine had chosen blocks of about 2,000 tokens, and shorter prefixes never hit ([vLLM #53749](https://github.com/vllm-project/vllm/issues/53749)). *How large should a block be?* has the reason.
# - **Salts.** vLLM added a salt so that tenants can't find out by timing what others have asked ([PR #17045](https://github.com/vllm-project/vllm/pull/17045)). *What a shared prompt brings* measures its price.
# - **A stale count.** vLLM gave wrong text because a hit count outlived a failed schedule ([PR #18957](https://github.com/vllm-project/vllm/pull/18957)). It's the fault of *A block that was published too early*.
# - **Hashes.** vLLM began with Python's `hash` and moved on to SHA-256, because a collision gives one user the cache of another ([PR #12621](https://github.com/vllm-project/vllm/pull/12621), [PR #15297](https://github.com/vllm-project/vllm/pull/15297)). *Two texts, one hash* shows one.
#
# </details>
# %% [markdown] key="wild" lang="zh" src="80c11d77"
# ## 实战现场
#
# <details>
# <summary>五份报告，以及解释它们的小节</summary>
#
# - **全部命中，一个 query 也没剩下。** 2025 年 10 月，一位用户把同一个提示词交给 nano-vllm 513 次，提示词长度恰好是块大小 256 的整数倍时，程序崩溃（[#114](https://github.com/GeeeekExplorer/nano-vllm/issues/114)、[#144](https://github.com/GeeeekExplorer/nano-vllm/issues/144)）。vLLM 与 `match` 一样少查一个 token（[PR #17999](https://github.com/vllm-project/vllm/pull/17999)）；给 nano-vllm 提的一个修复方案则只重算最后一个 token（[PR #199](https://github.com/GeeeekExplorer/nano-vllm/pull/199)）。
# - **块太大。** 有个引擎选用了约 2,000 token 的块，更短的前缀一次也没有命中（[vLLM #53749](https://github.com/vllm-project/vllm/issues/53749)）。原因见“块应该多大”一节。
# - **盐值。** vLLM 加入盐值，是为了让租户无法靠计时探出别的租户问过什么（[PR #17045](https://github.com/vllm-project/vllm/pull/17045)）。代价在“共享提示词的收益”里量过。
# - **过期的命中数。** 一次调度失败之后，vLLM 仍沿用旧的命中数，于是输出了错误的文本（[PR #18957](https://github.com/vllm-project/vllm/pull/18957)）。这与“发布得太早的块”是同一类错误。
# - **哈希。** vLLM 起初用 Python 的 `hash`，后来换成 SHA-256，因为一旦碰撞，一个用户就会拿到另一个用户的缓存（[PR #12621](https://github.com/vllm-project/vllm/pull/12621)、[PR #15297](https://github.com/vllm-project/vllm/pull/15297)）。“两段文字，同一个哈希”里有一个例子。
#
# </details>

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# Now you know where every token lies and which sequence may write there.
# [Lesson 10](10_kernels.ipynb) reads the tokens back through the block table. [Lesson 11a](11a_continuous_batching.ipynb) puts 256 requests on one pool.
# %% [markdown] key="next" lang="zh" src="0cd286a6"
# ## 下一课
#
# 现在你知道每个 token 在哪里，也知道哪条序列可以往那里写。
# [第 10 课](10_kernels.ipynb)沿着块表把它们读回来。[第 11a 课](11a_continuous_batching.ipynb)让 256 个请求共用一个块池。
