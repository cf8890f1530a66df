# %% [meta]
# number = "09"
# slug = "pages_and_blocks"
# needs = ["02"]
# rooms = ["blocks", "nano.block_manager", "nano.sequence"]
# minutes = 90
# [title]
# en = "Who owns block 7?"
# zh = "块 7 属于谁？"
# [t4]
# en = "Everything here is bookkeeping on the CPU: a T4 shows the same numbers, only the timings are the machine's own."
# zh = "本课全是 CPU 上的记账，T4 上看到的数字相同，只有计时因机器而异。"
# [paper]
# en = "09.1, 09.5"
# zh = "09.1、09.5"

# %% [markdown] key="question" lang="en"
# ## The question
#
# Many requests run at the same time, and all of them keep their K and V in one cache on the GPU.
# Their lengths are not known before they end, and many begin with the same system prompt.
#
# **How can many requests share one cache without overwriting each other?**
#
# The cache is cut into **blocks**, here of four tokens. Below, A and B have eight tokens in common. Follow B from its tokens to the blocks that hold their K and V: two of the blocks are A's as well.
# %% [markdown] key="question" lang="zh" src="a664bb7e"
# ## 问题
#
# 许多请求同时运行，它们的 K 和 V 都放在 GPU 上的同一个缓存里。
# 每个请求最后有多长，事先并不知道；而且很多请求的开头是同一段系统提示词。
#
# **许多请求怎样共用一个缓存，又不互相覆盖？**
#
# 办法是把缓存切成许多**块**，这里每块放 4 个 token。下图中，A 和 B 有 8 个 token 相同。请从 B 的 token 看到存放它们的 K 和 V 的块：其中两块同时也是 A 的。

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
# - **follow** a block from empty to shared to cached to evicted, and say at each step which sequences may write into it;
# - **write** the parts of a block manager: allocate, append, free, and the digest by which a block is found.
#
# At the end you make a widget of your own: a *Play* button that steps through your block manager.
# %% [markdown] key="abilities" lang="zh" src="4b66baad"
# 学完本课，你能够
#
# - **找到**任何一个 token 在显存里的位置：由它的位置和块表算出；
# - **说清**一个块的一生：起初是空块，然后被共享，成为缓存块，最后被淘汰；每一步哪些序列可以往里写；
# - **写出**块管理器的各个部分：分配、追加、释放，以及查找块用的摘要。
#
# 最后你会做一个自己的组件：用 *Play* 按钮，一步步播放你的块管理器。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# Two numbers before anything is shown.
# The cache is cut into **blocks**; in both questions a block has room for the K and V of 16 tokens.
# %% [markdown] key="predict_first" lang="zh" src="9d555eb8"
# ## 先猜一猜
#
# 先猜两个数，再往下看。
# 缓存被切成一个个**块**（block）；两题里，每个块都能放 16 个 token 的 K 和 V。

# %% key="predict_second_time"
predict("second_time", ...)

# %% key="predict_shared"
predict("shared_blocks", ...)

# %% [markdown] key="table" lang="en"
# ## A table, and a slot for every token
#
# The cache is one large tensor, made once and cut into blocks of equal size; all of them together are the **pool**.
# A sequence does not own a stretch of it.
# It has a list of block numbers, its **block table**, and the numbers need not follow each other.
# `BlockManager` keeps the tables; it never sees a tensor.
# %% [markdown] key="table" lang="zh" src="aa7e2e43"
# ## 一张表，给每个 token 一个槽位
#
# 缓存是一个大张量，一次建好，切成等大的块；所有的块合起来就是**块池**（pool）。
# 序列并不占有其中连续的一段。
# 它有的只是一串块号，即**块表**（block table），这些块号不必连续。
# `BlockManager` 管理这些块表，从不接触张量。

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

# %% [markdown] key="paging_words" lang="en"
# The same calls as they happen: press play, or step. Watch the fork of A, and what C's first token of its own does to a block that is shared.
# %% [markdown] key="paging_words" lang="zh" src="c82b5492"
# 同样的调用，一步一步动起来：按播放，或者单步。注意 A 分叉之后，C 自己的第一个 token 会让共享的块发生什么。

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

# %% [markdown] key="formula" lang="en"
# P was given blocks 0 and 1, then Q came, so P's ninth token had to go to block 5.
# A **slot** is the place of one token in the pool.
# Slots are numbered block after block: block 0 has the first $B$ slots, block 1 the next $B$, and so on.
#
# $$\text{slot}(i) \;=\; \text{table}\left[\left\lfloor \tfrac{i}{B} \right\rfloor\right] \cdot B \;+\; i \bmod B$$
#
# | symbol | meaning | unit |
# |---|---|---|
# | $i$ | position of the token in its sequence, from 0 | tokens |
# | $B$ | block size | tokens a block |
# | $\text{table}$ | block table of the sequence | block numbers |
# | $\text{slot}$ | where K and V of this token are stored | slots, from 0 |
#
# A **prefill** writes many tokens at once, so it asks for a range of slots.
# A **decode** step writes one token for each sequence: the last one.
# %% [markdown] key="formula" lang="zh" src="cd4d3ed0"
# P 先拿到块 0 和块 1，接着 Q 来了，所以 P 的第 9 个 token 只能放进块 5。
# **槽位**（slot）是块池里存放一个 token 的地方。
# 槽位按块依次编号：块 0 占前 $B$ 个，块 1 占接下来的 $B$ 个，依此类推。
#
# $$\text{slot}(i) \;=\; \text{table}\left[\left\lfloor \tfrac{i}{B} \right\rfloor\right] \cdot B \;+\; i \bmod B$$
#
# | 符号 | 含义 | 单位 |
# |---|---|---|
# | $i$ | token 在序列中的位置，从 0 开始 | token |
# | $B$ | 块大小 | token / 块 |
# | $\text{table}$ | 序列的块表 | 块号 |
# | $\text{slot}$ | 这个 token 的 K 和 V 存放在哪里 | 槽位号，从 0 开始 |
#
# **预填充**（prefill）一次写入很多 token，所以一次要一批槽位。
# **解码**（decode）每一步给每条序列写一个 token，也就是最后一个。

# %% [markdown] key="nano_slots" lang="en"
# In `minikv.nano`, the small engine that this course reads piece by piece, the formula is one line.
# The cell below runs it on P's table, beside the two calls of `BlockManager`.
# %% [markdown] key="nano_slots" lang="zh" src="a3649e93"
# 在小引擎 `minikv.nano` 里，这个公式就是一行代码；整个引擎会在各课里一段段读完。
# 下面用 P 的块表运行它，并与 `BlockManager` 的两个调用对照。

# %% key="slots" lang="en"
from minikv.course import show_source
from minikv.nano.block_manager import slot_mapping

show_source(slot_mapping)
calls = [
    ["nano, of P", str(slot_mapping(manager.block_table("P"), 0, 9, block_size=4))],
    ["prefill of P", str(manager.slot_mapping("P", 0, 9).tolist())],
    ["decode of P and Q", str(manager.decode_slots(["P", "Q"]).tolist())],
]
Table(["call", "slots"], calls)
# %% key="slots" lang="zh"
from minikv.course import show_source
from minikv.nano.block_manager import slot_mapping

show_source(slot_mapping)
calls = [
    ["nano，P 的", str(slot_mapping(manager.block_table("P"), 0, 9, block_size=4))],
    ["预填充 P", str(manager.slot_mapping("P", 0, 9).tolist())],
    ["解码 P 和 Q", str(manager.decode_slots(["P", "Q"]).tolist())],
]
Table(["调用", "槽位"], calls)

# %% [markdown] key="guide" lang="en"
# ### The same in a guide
#
# A public guide, "KV 缓存分配详细指南" (a detailed guide to KV cache allocation), builds this list in its section 9, block by block: each block gives a run of slots, and the last one a shorter run.
# In decode it takes the last block and counts to the last token in it.
# Here are both, written as functions, against `slot_mapping`.
# %% [markdown] key="guide" lang="zh" src="3087a4b4"
# ### 一份指南里的写法
#
# 公开文档《KV 缓存分配详细指南》第 9 节也构造这个列表，不过是逐块进行：每个块贡献一段槽位，最后一块那段短一些。
# 解码时则取最后一块，数到其中最后一个 token。
# 下面把两者写成函数，与 `slot_mapping` 对照。

# %% key="guide_code"
def guide_prefill(table, num_tokens, block_size, cached_blocks):
    slots = []
    for place in range(cached_blocks, len(table)):
        run = min(block_size, num_tokens - place * block_size)
        slots += range(table[place] * block_size, table[place] * block_size + run)
    return slots


def guide_decode(table, num_tokens, block_size):
    in_last_block = num_tokens - (len(table) - 1) * block_size
    return table[-1] * block_size + in_last_block - 1

# %% key="guide_agrees" lang="en"
right = {"prefill": 0, "decode": 0}
for num_tokens in range(1, 41):
    trial = BlockManager(num_blocks=40, block_size=4)
    trial.allocate("other", [0] * 7)
    trial.allocate("S", list(range(num_tokens)))
    table = trial.block_table("S")
    for cached in range(len(table)):
        ours = trial.slot_mapping("S", cached * 4, num_tokens).tolist()
        right["prefill"] += ours == guide_prefill(table, num_tokens, 4, cached)
    right["decode"] += trial.decode_slots(["S"])[0] == guide_decode(table, num_tokens, 4)
Table(["tokens", "equal prefills", "equal decode steps"], [["1 to 40", int(right["prefill"]), int(right["decode"])]])
# %% key="guide_agrees" lang="zh"
right = {"prefill": 0, "decode": 0}
for num_tokens in range(1, 41):
    trial = BlockManager(num_blocks=40, block_size=4)
    trial.allocate("other", [0] * 7)
    trial.allocate("S", list(range(num_tokens)))
    table = trial.block_table("S")
    for cached in range(len(table)):
        ours = trial.slot_mapping("S", cached * 4, num_tokens).tolist()
        right["prefill"] += ours == guide_prefill(table, num_tokens, 4, cached)
    right["decode"] += trial.decode_slots(["S"])[0] == guide_decode(table, num_tokens, 4)
Table(["token 数", "相同的预填充", "相同的解码步"], [["1 到 40", int(right["prefill"]), int(right["decode"])]])

# %% [markdown] key="guide_limits" lang="en"
# It gives the right answer in every case it can handle.
# But it can only handle whole blocks: it starts at `cached_blocks`.
# A **chunked prefill**, a long prompt computed in several pieces, may stop in the middle of a block.
# If 6 of Q's 10 tokens are stored and the next chunk is the other 4, whole blocks give two slots too many, and all four tokens go to the wrong places.
# And `num_tokens % block_size`, written for "tokens in the last block", is 0 just when that block is full.
# %% [markdown] key="guide_limits" lang="zh" src="efe821f3"
# 凡是它算得出的情形，结果都与 `slot_mapping` 相同。
# 但它只能按整块来算：从 `cached_blocks` 开始。
# **分块预填充**（chunked prefill）把长提示词分成几段来算，而一段可能停在块的中间。
# 假设 Q 的 10 个 token 已存了 6 个，下一段是另外 4 个：按整块算会多出两个槽位，这 4 个 token 全都放错地方。
# 另外，如果用 `num_tokens % block_size` 来算“最后一块里的 token 数”，块刚好填满时就会得到 0。

# %% key="guide_breaks" lang="en"
table = manager.block_table("Q")
chunk = manager.slot_mapping("Q", 6, 10).tolist()
whole = guide_prefill(table, 10, 4, cached_blocks=6 // 4)
full = table[:2]  # 8 tokens fill them
remainder = full[-1] * 4 + 8 % 4 - 1
rows = [
    ["Q's positions 6 to 9", str(chunk), str(whole)],
    [f"the last of 8 tokens in blocks {full}", str(guide_decode(full, 8, 4)), f"{remainder}, with 8 % 4"],
]
Table(["asked", "the right slots", "the wrong ones"], rows)
# %% key="guide_breaks" lang="zh"
table = manager.block_table("Q")
chunk = manager.slot_mapping("Q", 6, 10).tolist()
whole = guide_prefill(table, 10, 4, cached_blocks=6 // 4)
full = table[:2]  # 8 个 token 正好填满
remainder = full[-1] * 4 + 8 % 4 - 1
rows = [
    ["Q 的位置 6 到 9", str(chunk), str(whole)],
    [f"块 {full} 里 8 个 token 的最后一个", str(guide_decode(full, 8, 4)), f"{remainder}，用 8 % 4 算出"],
]
Table(["问的是", "正确的槽位", "错误的槽位"], rows)

# %% [markdown] key="block_bytes" lang="en"
# That is all you need for exercise 09.1. You may write it now, or all of them at the end.
#
# ### What a block is made of
#
# The same guide also says what a block is. The guide's own formula says something else, and so does `CacheSpec`:
# %% [markdown] key="block_bytes" lang="zh" src="cb42a9c4"
# 练习 09.1 要用的到这里都讲完了，可以现在就写，也可以留到最后，和其他练习一起写。
#
# ### 一个块里有什么
#
# 同一份指南还给块下了定义，但它自己的公式与定义不符，`CacheSpec` 也算出不同的结果：

# %% key="block_bytes_code" lang="en"
from minikv.course.errata import erratum
from minikv.plan import CacheSpec

slip = erratum("001-04")
spec = CacheSpec.from_config("Llama-3.1-8B")
block = spec.block_bytes(16)
part = block // (2 * len(spec.layers))  # K or V of one layer
Table(
    ["Llama-3.1-8B, blocks of 16 tokens", "B"],
    [["a block", block], ["K or V of one layer", part], ["parts", block // part]],
    lines=["the guide: " + slip.claim.in_("en"), "checked: " + slip.correct.in_("en")],
)
# %% key="block_bytes_code" lang="zh"
from minikv.course.errata import erratum
from minikv.plan import CacheSpec

slip = erratum("001-04")
spec = CacheSpec.from_config("Llama-3.1-8B")
block = spec.block_bytes(16)
part = block // (2 * len(spec.layers))  # 一层的 K 或 V
Table(
    ["Llama-3.1-8B，块大小 16", "B"],
    [["一个块", block], ["一层的 K 或 V", part], ["份数", block // part]],
    lines=["指南：" + slip.claim.in_("zh"), "核对：" + slip.correct.in_("zh")],
)

# %% [markdown] key="block_spans" lang="en"
# So block 7 is not one piece of memory.
# It is one row in the K and in the V of every layer of its group, and one number in a table stands for all of them.
# That is why the bookkeeping below is cheap: it moves one number where the GPU has megabytes.
# %% [markdown] key="block_spans" lang="zh" src="fb097417"
# 所以块 7 并不是一整段内存。
# 它所属的那一组层，每层的 K 和 V 里各有它的一行；块表里的一个数字就代表了全部。
# 下面的记账之所以开销小，原因就在这里：GPU 上以兆字节计的内容，到这里只是一个数字。

# %% [markdown] key="life" lang="en"
# ## The life of block 7
#
# How many sequences hold a block is its **reference count**.
# When it falls to 0, the block is free.
# A free block is *empty*, or it is *cached*: nobody holds it, but what is in it can still be found.
#
# X takes blocks 0 to 6 below, so the next block to be given out is number 7.
# A and B begin with the same ten tokens, as requests with one system prompt do.
# `match` asks how many tokens of a prompt could be found now, and takes nothing.
#
# Before you run the cell: how many blocks will B share with A?
# %% [markdown] key="life" lang="zh" src="de11279f"
# ## 块 7 的一生
#
# 有多少条序列持有一个块，这个数就是它的**引用计数**（reference count）。
# 计数降到 0，块就空闲了。
# 空闲的块要么是**空块**，要么是**缓存块**：缓存块同样没有序列持有，但里面的内容还能找到。
#
# 下面 X 先占用块 0 到块 6，所以接下来分出去的就是块 7。
# A 和 B 的前 10 个 token 相同，就像两个请求共用一段系统提示词。
# `match` 只查不取：它告诉你，一个提示词此刻有多少个 token 能在缓存里找到。
#
# 运行之前先想一想：B 会与 A 共享几个块？

# %% key="who" lang="en"
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
# %% key="who" lang="zh"
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
# Three things stand in these lines.
#
# - **Sharing.** B's table begins with A's blocks 7 and 8. Ten tokens are equal, and eight are shared: only full blocks are. The third block holds tokens 9 and 10, and behind them tokens that the other prompt does not have.
# - **`allocate` gives a block, `commit` publishes it.** Between the two, nothing can be found. K and V are written by the forward pass in between, and a block that could be found earlier might be read before anybody has written it.
# - **The title.** No sequence *owns* block 7. A holds it and B holds it. To write into it, a sequence must be its only holder.
#
# Now they leave, one after the other.
# Before you run the cell: is block 7 free after `free A`? And once nobody holds it, can C still get it?
# %% [markdown] key="life_read" lang="zh" src="489a3a1a"
# 从这几行能看出三件事。
#
# - **共享**。B 的块表以 A 的块 7、块 8 开头。相同的 token 有 10 个，共享的只有 8 个：能共享的只有满块。第三个块里，第 9、10 个 token 后面就是对方没有的 token 了。
# - **`allocate` 分配块，`commit` 发布块**。两者之间什么也找不到。K 和 V 是这期间由前向计算写入的；要是更早就能找到，别的序列就可能读到还没写好的块。
# - **标题的问题**。块 7 不**属于**任何一条序列：A 持有它，B 也持有它。一条序列要往里写，必须是它唯一的持有者。
#
# 接下来，它们一个接一个离开。
# 运行之前先想一想：`free A` 之后，块 7 空闲了吗？等到没有序列持有它，C 还能拿到它吗？

# %% key="leave" lang="en"
rows = []
for name, prompt in (("A", None), ("B", None), ("C", prompts["C"]), ("C", None), ("D", list(range(500, 536)))):
    if prompt is None:
        manager.free(name)
    else:
        manager.allocate(name, prompt)
    rows.append(block_7(f"{'allocate' if prompt else 'free'} {name}"))
evicted = manager.stats().pools[0].evictions
Table(head, rows, lines=[f"evicted cached blocks: {evicted}; D has {manager.block_table('D')}"])
# %% key="leave" lang="zh"
rows = []
for name, prompt in (("A", None), ("B", None), ("C", prompts["C"]), ("C", None), ("D", list(range(500, 536)))):
    if prompt is None:
        manager.free(name)
    else:
        manager.allocate(name, prompt)
    rows.append(block_7(f"{'allocate' if prompt else 'free'} {name}"))
evicted = manager.stats().pools[0].evictions
Table(head, rows, lines=[f"淘汰的缓存块：{evicted} 个；D 的块表是 {manager.block_table('D')}"])

# %% [markdown] key="leave_read" lang="en"
# C came when nobody held block 7 any more, and still got it: free blocks wait in a queue, the **free list**, and a cached block can be taken back from any place in it.
# D took all that was free: the empty blocks first, then the cached ones, and number 7 last of all.
# With that block 7 lost what it held: after `allocate D`, C would find nothing.
#
# ### The tail goes first
#
# Which cached block is evicted first?
# The one that has been free the longest, and of one sequence **the tail before the beginning**.
# A beginning is what others have in common; and the search starts at the first block, so that a tail without its beginning can never be found.
# %% [markdown] key="leave_read" lang="zh" src="3b1c7e1f"
# C 来的时候，块 7 已经没有持有者，C 照样拿到了它：空闲的块排在**空闲队列**（free list）里，其中的缓存块不论排在哪里，都可以取回。
# D 拿走了所有空闲的块：先是空块，再是缓存块，最后才轮到块 7。
# 块 7 的内容就此消失：看 `allocate D` 那一行，C 的前缀一个 token 也找不到了。
#
# ### 从尾部开始淘汰
#
# 先淘汰哪个缓存块？
# 空闲最久的那个；而同一条序列里，**尾部先于开头**。
# 开头是多个请求共有的部分；而且查找总是从第一块开始，没有了开头，尾部就再也找不到了。

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
    rows.append([number, str(lru.block_table(number)), lru.match([*story, 99]).num_tokens])
Table(["request", "took blocks", "old tokens still found"], rows, lines=[f"the table of old: {old}"])
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
    rows.append([number, str(lru.block_table(number)), lru.match([*story, 99]).num_tokens])
Table(["请求", "拿走的块", "旧内容还能找到的 token"], rows, lines=[f"old 的块表：{old}"])

# %% [markdown] key="nano_digest" lang="en"
# ## The manager, opened
#
# `minikv.nano` keeps the same books in one file of about 120 lines, without forks and without windows. We read it in the order in which a request meets it.
#
# First the name by which a block is found, its **digest**. It is a hash. Look at what goes into it: the block's own tokens, and the digest of the block before, its **parent**.
# The cell chains three blocks of two prompts that differ in their first token only. Before you run it: how many of the three digests will be equal in both rows?
# %% [markdown] key="nano_digest" lang="zh" src="d44819a4"
# ## 读块管理器的源码
#
# `minikv.nano` 用一个约 120 行的文件记同样的账，只是没有分叉，也没有窗口。我们按一个请求经过它的次序来读。
#
# 首先是查找块用的键，也就是**摘要**（digest）。它是一个哈希。请看它由什么算出：本块的 token，以及前一个块（即**父块**）的摘要。
# 下面的单元格给两个提示词各串起三个块，两者只有第一个 token 不同。运行之前先想一想：两行的三个摘要里，有几个相同？

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
# None: the first token is in every digest behind it.
# It has to be: beyond the first layer, K and V of a token depend on every token before it.
# (Exercise 09.3 is this function, with any hash you like.)
#
# A request that is admitted gets its blocks from `allocate`, which asks `find_prefix` first. Look for three things:
#
# - Where does the loop of `find_prefix` end? The last token is never looked up. *Break it* shows why.
# - `allocate` compares before it changes anything. Why do found blocks that are free (`reused`) count as well?
# - The found blocks leave the free list before `_take` takes the first fresh one. What could happen the other way round?
# %% [markdown] key="nano_allocate" lang="zh" src="74e983bc"
# 一个也没有：从第一块起，每个摘要都受第一个 token 影响。
# 必须如此，因为除第一层外，一个 token 的 K 和 V 取决于它之前的所有 token。
# （练习 09.3 就是写这个函数，用什么哈希都行。）
#
# 请求获准进入时，由 `allocate` 分配块，它先问 `find_prefix`。请留意三点：
#
# - `find_prefix` 的循环到哪里为止？最后一个 token 从不查找，原因见“弄坏它”一节。
# - `allocate` 先比较，再改动。为什么找到的块里空闲的那些（`reused`）也要算进去？
# - 找到的块先移出空闲队列，然后 `_take` 才取第一个新块。次序反过来会怎样？

# %% key="nano_allocate_source"
from minikv.nano import SamplingParams, Sequence, block_manager

Nano = block_manager.BlockManager
show_source(Nano.find_prefix, Nano.allocate)

# %% [markdown] key="nano_allocate_words" lang="en"
# Two prompts of 9 and 10 tokens with 8 in common, in a pool of 6 blocks.
# After the first row nothing is published yet; `publish` is what `commit` was above.
# %% [markdown] key="nano_allocate_words" lang="zh" src="85d6c25d"
# 两个提示词各有 9 个和 10 个 token，前 8 个相同；块池共 6 个块。
# 第一行时还什么都没有发布；`publish` 就相当于前面的 `commit`。

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
Table(head, rows, lines=[f"find_prefix(second) {found}, then num_computed {second.num_computed}"])
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
Table(head, rows, lines=[f"find_prefix(second) {found}, then num_computed {second.num_computed}"])

# %% [markdown] key="nano_append" lang="en"
# The second starts with 8 tokens computed: its first step computes two.
# Found blocks that are free (`reused`) leave the free list, so they can't serve as fresh ones too. And if `_take` went first, it could hand out one of the blocks that were just found.
#
# Each step then calls `append` before the forward, and `publish` after it. Two things to find:
#
# - `append` compares with the table. Asked twice for the same token, what does it do?
# - `publish` names full blocks only: look at `end // size`. And what if another block has the same tokens already? (`setdefault`)
# %% [markdown] key="nano_append" lang="zh" src="5de1adf6"
# 第二条序列一开始就有 8 个 token 已经算好，它的第一步只需计算 2 个。
# 找到的空闲块（`reused`）会移出空闲队列，所以不能再当作新块来用。如果先调用 `_take`，它就可能把刚刚找到的块取走。
#
# 此后每一步，前向计算之前调用 `append`，之后调用 `publish`。读的时候找出两个答案：
#
# - `append` 拿块表来比较。为同一个 token 问两次，会怎样？
# - `publish` 只给满块加上摘要，看 `end // size`。如果另一个块里已经有同样的 token 呢？（看 `setdefault`。）

# %% key="nano_append_source"
show_source(Nano.append, Nano.publish)

# %% key="nano_append_run"
books.publish(second, end=10)
rows = []
for token in (62, 63, 64):
    second.tokens.append(token)
    answer = books.append(second)
    rows.append(books_after(f"append {token}: {answer}", second))
    books.publish(second, end=len(second.tokens))
Table(head, rows, lines=[f"cached {sorted(books.cached.values())}"])

# %% [markdown] key="nano_free" lang="en"
# The 13th token needed a fourth block, and the third, full now, can be found.
# Asked twice, `append` finds that the table is long enough and changes nothing. Of two blocks with the same tokens, `setdefault` keeps the one that was published first.
#
# Last, `free`. In which direction does it go through the table? And what does it *not* touch, so that a freed block can still be found?
# %% [markdown] key="nano_free" lang="zh" src="a36db663"
# 第 13 个 token 需要第四个块；第三个块已满，也就能找到了。
# 问两次时，`append` 看到块表已经够长，就什么也不改。两个块的 token 相同时，`setdefault` 保留先发布的那个。
#
# 最后是 `free`。它沿块表朝哪个方向走？又有什么是它**不**碰的，使得释放后的块还能找到？

# %% key="nano_free_source"
show_source(Nano.free)
rows = []
for name, seq in (("second", second), ("first", first)):
    books.free(seq)
    rows.append(books_after(f"free {name}", seq))
Table(head, rows, lines=[f"find_prefix {books.find_prefix([*range(8), 70])}"])

# %% [markdown] key="nano_read" lang="en"
# All six blocks are free, and the two blocks of the common beginning stand last in the queue. Both are still found, because `free` leaves `digests` and `cached` as they are.
# (Exercises 09.2, 09.6 and 09.7: `free`, `allocate` and `append`, as parts of your engine.)
# %% [markdown] key="nano_read" lang="zh" src="82a4b0c3"
# 六个块都空闲了，共同开头的两块排在队尾。它们都还能找到，因为 `free` 没有动 `digests` 和 `cached`。
# （练习 09.2、09.6、09.7：`free`、`allocate` 和 `append`，都是“你的引擎”的部件。）

# %% [markdown] key="see" lang="en"
# ## See it
#
# The pool below is a real `BlockManager`, and each press of a button is one of its operations.
# A colour and a pattern stand for a sequence, the grey hatching for a block that several hold.
# Nobody holds a block with a dashed edge: "cached" can still be found, "free" is empty.
#
# Try this, and say before each press what will change:
#
# 1. Fork A. How many blocks are copied? Then press "One token for each", twice.
# 2. Free A. Then choose "A (has ended)" and ask for a new request with its tokens.
# 3. Choose "A (has ended)" once more and free it a second time.
# 4. Press "New request" until the pool says no.
#
# The slider leads back through all that happened.
# %% [markdown] key="see" lang="zh" src="6a2c8025"
# ## 亲眼看看
#
# 下面的块池背后是真正的 `BlockManager`，每按一次按钮就是它的一次操作。
# 一种颜色加一种图案代表一条序列，灰色斜纹代表由多条序列共同持有的块。
# 虚线框的块没有序列持有：标着“已缓存”的还能找到，标着“空闲”的是空块。
#
# 试试下面几步，每次按之前先说出会发生什么：
#
# 1. 把 A 分叉。复制了几个块？然后按两次“每条序列加一个 token”。
# 2. 释放 A。再选“A（已结束）”，按“以它的内容开头的新请求”。
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
# Four answers to one question, or four beams of a search, are forks: they share everything until they differ.
# `fork` copies nothing.
# A copy is made only when a sequence is about to write into a shared block: **copy-on-write**.
# `append` returns what the storage has to copy, a list of `Copy(kv_cache_group, src, dst)`, mostly empty.
# %% [markdown] key="cow" lang="zh" src="5b5d896c"
# ## 分叉与写入：写时复制
#
# 同一个问题要四个回答，或者束搜索（beam search）的四条路径，都是分叉（fork）：在出现差别之前，一切共享。
# `fork` 什么也不复制。
# 等到有序列要往共享的块里写，才先为它复制一份：这就是**写时复制**（copy-on-write）。
# `append` 返回存储端需要做的复制，即 `Copy(kv_cache_group, src, dst)` 的列表，通常为空。

# %% key="predict_forked"
predict("forked_blocks", ...)

# %% [markdown] key="storage" lang="en"
# To see what goes wrong without the copy, we need something to store.
# `Words` has a `BlockManager`, and in place of K and V each slot keeps a word. Two of its methods:
# %% [markdown] key="storage" lang="zh" src="30d45519"
# 要看清不复制会出什么错，得真的存点东西。
# `Words` 里有一个 `BlockManager`，每个槽位不存 K 和 V，而存一个单词。它的两个方法是：

# %% key="storage_code"
from minikv.course.lessons.l09.words import Words, forked

show_source(Words.append, Words.read)

# %% [markdown] key="fork_words" lang="en"
# A has six words, B and C are its forks. Now each of the three appends a word of its own:
# %% [markdown] key="fork_words" lang="zh" src="f7b4a283"
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
# Three sequences, two copies.
# C is the last one left in the old block: it is alone there, and writes in place.
# Block 0 is full, so nobody will ever write into it again; it stays shared.
# (Exercise 09.4: a new block, a copy, or nothing?)
# %% [markdown] key="fork_read" lang="zh" src="7a22bbee"
# 三条序列，只复制了两次。
# 轮到 C 时，旧块只剩它一个持有者，于是就地写入。
# 块 0 已满，没有序列会再往里写，所以一直共享。
# （练习 09.4：要一个新块，复制一块，还是什么都不用做？）

# %% [markdown] key="windows" lang="en"
# ## Windows that move on
#
# A layer with a sliding window of $W$ tokens reads the last $W$ positions, the new token included.
# A block that lies wholly before them will never be read again, so `commit` gives it back.
# In the table its place stays, with `NULL_BLOCK` (-1) in it: the places behind it must keep their numbers, or `i // B` would count wrongly.
#
# Layers with a window and layers without one keep different tokens, so they form two **KV cache groups**: each group has a pool and a table of its own.
# %% [markdown] key="windows" lang="zh" src="c413f020"
# ## 向前移动的窗口
#
# 滑动窗口（sliding window）为 $W$ 的层，只读最近的 $W$ 个位置，新 token 也算在内。
# 完全落在这些位置之前的块，再也不会被读到，于是 `commit` 把它归还。
# 它在块表里的位置还留着，填上 `NULL_BLOCK`（-1）：后面各项的序号不能变，否则 `i // B` 就数错了。
#
# 有窗口的层与没有窗口的层，保留的 token 不同，所以它们是两个 **KV 缓存组**（KV cache group）：每一组各有自己的块池和块表。

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
# The full group grows with the sequence; the windowed group does not, whatever the length.
# The slot of a position behind the window is -1, and a store skips it:
# %% [markdown] key="windows_read" lang="zh" src="d2c7f069"
# 全注意力的那一组，块数随序列增长；滑动窗口的那一组，序列再长，块数也不再增加。
# 窗口之前的位置，槽位是 -1，写入时会跳过：

# %% key="windows_slots"
windowed.slot_mapping("S", 14, 26, kv_cache_group=1).tolist()

# %% [markdown] key="size" lang="en"
# (Exercise 09.5: which blocks can be given back?)
#
# ## How large should a block be?
#
# The last block of a sequence is rarely full.
# Its empty slots are **internal fragmentation**: memory that is given out and holds nothing.
# A paged cache has no other fragmentation, since any free block is as good as any other. ([Lesson 06](06_the_linear_cache.ipynb) shows what a cache without blocks wastes.)
# %% [markdown] key="size" lang="zh" src="9b0ae58a"
# （练习 09.5：哪些块可以归还？）
#
# ## 块应该多大？
#
# 一条序列的最后一块很少正好填满。
# 其中的空槽位就是**内部碎片**：已经分出去，却什么也没存的显存。
# 分页缓存没有别的碎片，因为空闲块用哪一个都一样。（不分块的缓存浪费多少，见[第 06 课](06_the_linear_cache.ipynb)。）

# %% key="predict_waste"
predict("mean_waste", ...)

# %% [markdown] key="size_guide" lang="en"
# The guide has an opinion on block sizes, and it is the wrong way round:
# %% [markdown] key="size_guide" lang="zh" src="df32ccab"
# 那份指南也谈到了块大小，不过正好说反了：

# %% key="size_claim" lang="en"
slip = erratum("001-22")
Table(["the guide", "checked"], [[slip.claim.in_("en"), slip.correct.in_("en")]])
# %% key="size_claim" lang="zh"
slip = erratum("001-22")
Table(["指南", "核对"], [[slip.claim.in_("zh"), slip.correct.in_("zh")]])

# %% [markdown] key="size_measure" lang="en"
# A mixed load, then: 120 sequences, most of them short, a few long, and in front of each the same system prompt of 700 tokens.
# A **salt** is a text that goes into the search: requests with different salts share nothing.
# Here each sequence has a salt of its own, so that all blocks are its own.
# The last column asks for the system prompt once more, under the salt of the first sequence and with another token behind it: how many of the 700 tokens are found?
# %% [markdown] key="size_measure" lang="zh" src="573bde6c"
# 下面是一组长短混合的负载：120 条序列，多数短，少数长，每条前面都有同一段 700 token 的系统提示词。
# **盐值**（salt）是参与查找的一段文字：盐值不同的请求之间什么也不共享。
# 这里每条序列各用一个盐值，所以每条的块都只归自己用。
# 最后一列用第一条序列的盐值再查一次这段系统提示词，后面换接另一个 token：700 个 token 里能找到多少个？

# %% key="size_load" lang="en"
import random

rng = random.Random(0)
lengths = [700 + int(rng.lognormvariate(5, 1)) for _ in range(120)]
system_prompt = list(range(700))


def filled(size):
    """A manager with the whole load, in blocks of this size."""
    load = BlockManager(num_blocks=sum(length // size + 1 for length in lengths), block_size=size)
    for number, length in enumerate(lengths):
        load.allocate(number, [*system_prompt, *range(1000, 300 + length)], salt=str(number))
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
        load.allocate(number, [*system_prompt, *range(1000, 300 + length)], salt=str(number))
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
# About $(B-1)/2$ slots a sequence are empty, as long as the lengths spread over more than one block.
# So the smallest block wastes least, and the price is at the other end:
#
# - **The table.** At size 1 a sequence of a thousand tokens has a thousand entries, and attention looks each of them up in every layer and step.
# - **The bookkeeping.** Every block has a count, a place in the free list, and a digest. Below all that is timed on this machine.
# - **The hits.** That is the price of *large* blocks: a hit is rounded down to whole blocks. Each request recomputes the tokens after its last whole block. The last column shows how many of the 700 are still found.
# %% [markdown] key="size_read" lang="zh" src="1cbdee12"
# 只要序列长度的分布范围超过一个块，每条序列平均约有 $(B-1)/2$ 个空槽位。
# 所以块越小浪费越少，代价在另一头：
#
# - **块表**。块大小为 1 时，一千个 token 的序列，块表就有一千项；每一层、每一步，注意力都要逐项去查。
# - **记账**。每个块都有计数、在空闲队列里的位置，以及摘要。下面就在这台机器上测量这些操作要花多少时间。
# - **命中**。这是**大**块的代价：命中只能按整块向下取整。舍去的零头，每个请求都要重算：最后一列就是 700 个 token 里还能命中的部分。

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
# Sixteen is a common choice: the waste is a few tokens only, and tables and bookkeeping are small already.
# The kernel has a say in it too: [lesson 10](10_kernels.ipynb).
# %% [markdown] key="size_answer" lang="zh" src="50a0adb3"
# 16 是常见的选择：浪费只有几个 token，而块表和记账的开销已经很小。
# kernel 对此也有要求，见[第 10 课](10_kernels.ipynb)。

# %% [markdown] key="hits" lang="en"
# ## What a shared prompt brings
#
# The **hit rate** is the share of prompt tokens that need not be computed.
# Sixty requests with a system prompt of 700 tokens and a question of their own, in four variants.
# %% [markdown] key="hits" lang="zh" src="f6935eba"
# ## 共享提示词的收益
#
# **命中率**（hit rate）是提示词的 token 中无需计算的比例。
# 六十个请求，前面是 700 token 的系统提示词，后面各有自己的问题，一共四种情况。

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
# The last bar is worth remembering.
# One token that differs at the front, a date or a request number, and nothing is shared at all: it is in every digest behind it.
# Put what varies behind what is common.
#
# The second bar is a choice. The parent of a first block is made from the salt, so tenants with different salts share nothing with each other, and no tenant can find out by timing what another has asked.
# %% [markdown] key="hits_read" lang="zh" src="407c734d"
# 最后一条值得记住。
# 只要最前面有一个 token 不同，比如日期或请求编号，就什么也共享不了，因为后面的每个摘要都受它影响。
# 变化的内容要放在公共内容之后。
#
# 第二条是有意的选择。第一个块的父摘要由盐值生成，所以盐值不同的租户互不共享，任何租户都无法靠计时探出别的租户问过什么。

# %% [markdown] key="break" lang="en"
# ## Break it
#
# ### A hit that leaves no query
#
# An engine crashed on a prompt that it had seen before (*In the wild*, below).
# Its block size is 256. Take a prompt of two blocks that ran before, and count as that engine did: every full block that is found is a hit.
# (`match` leaves the last token out, so the cell hands it one token more.)
# %% [markdown] key="break" lang="zh" src="866eae03"
# ## 弄坏它
#
# ### 命中之后没有 query
#
# 回到开头的崩溃。
# 那里的块大小是 256。取一个正好两块长、先前已经跑过的提示词，照那个引擎的办法计数：凡是找到的满块都算命中。
# （`match` 总会留下最后一个 token，所以代码里多给了它一个。）

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
# With no token left to compute there is no query, no logits, and no next token. The attention kernel is launched with a grid of size 0, which CUDA refuses.
# `match` looks up only `(len(tokens) - 1) // block_size` blocks, so one token is always left.
# It pays with a whole block that is computed again: 256 tokens there, 16 with a usual block.
# %% [markdown] key="full_hit_read" lang="zh" src="95c2461c"
# 要计算的 token 一个也不剩，就没有 query，没有 logits，也就没有下一个 token。注意力 kernel 以大小为 0 的网格（grid）启动，被 CUDA 拒绝。
# `match` 只查 `(len(tokens) - 1) // block_size` 个块，所以总会留下至少一个 token。
# 代价是重算一整块：那里是 256 个 token，通常的块只有 16 个。

# %% [markdown] key="break_copy" lang="en"
# ### A copy that nobody made
#
# The manager says what to copy. The storage has to do it.
# %% [markdown] key="break_copy" lang="zh" src="89ea5ea0"
# ### 没人去做的复制
#
# 管理器只说要复制什么，真正动手的是存储端。

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
# A and B have a fresh block with their own word in it; the two words before that were never copied.
# No error says so.
#
# ### A block that was published too early
#
# Here A's blocks are committed before its forward has run, and B comes in between.
# %% [markdown] key="break_commit" lang="zh" src="3e674ede"
# A 和 B 拿到了新块，里面只有各自的新词；新词之前的两个词没有复制过来。
# 而且没有任何报错。
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
# No error, no crash: an answer about text that is not there.
# A count can go stale in the same way. Between looking and taking, another request may evict what was found.
# `allocate` therefore looks and takes in one operation.
# This is what becomes of a number that `match` gave earlier:
# %% [markdown] key="early_read" lang="zh" src="1344638b"
# 没有报错，也没有崩溃，只是模型在根据一段并不存在的文字作答。
# 命中数也会这样过期：查到之后、取用之前，查到的块可能已经被淘汰。
# 所以 `allocate` 把查找和取用放在同一个操作里完成。
# 先前用 `match` 查到的数字，后来会变成这样：

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
# Where two texts have one digest, a request gets the cache of another.
# With Python's `hash` one collision needs no search, since `hash(-1)` equals `hash(-2)`:
# %% [markdown] key="break_hash" lang="zh" src="7830b50c"
# ### 两段文字，同一个哈希（选读）
#
# 两段文字的摘要一旦相同，一个请求就会拿到另一个请求的缓存。
# 用 Python 的 `hash`，有一个碰撞是现成的，用不着找：`hash(-1)` 等于 `hash(-2)`。

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
# Token ids are never negative; but in a hash that everybody knows, other collisions can be searched for.
# So `lookup_block` compares the tokens too, and gives a block only if they are equal. The manager's digests are SHA-256, where nobody knows a collision; the comparison is there in case.
#
# ### A free list that has to be searched (optional)
#
# A hit takes a cached block out of the *middle* of the free list.
# In a `deque`, which nano-vllm uses for it, `remove` walks along the list until it finds the block.
# Our pool keeps cached blocks in an ordered dict, where nothing has to be searched.
# %% [markdown] key="collision_read" lang="zh" src="03b8dcb7"
# token 的编号不会是负数；但只要哈希算法是公开的，别人就可以有意去找其他碰撞。
# 所以 `lookup_block` 还要比较 token，完全相同才会给出这个块。管理器的摘要用 SHA-256，至今没有人找到过它的碰撞；比较 token 是为了以防万一。
#
# ### 需要逐个搜索的空闲队列（选读）
#
# 命中时，要从空闲队列的**中间**取走一个缓存块。
# nano-vllm 用 `deque` 做这个队列，而 `remove` 要一个个找过去，直到找到那个块。
# 我们的块池把缓存块放在有序字典里，不需要搜索。

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
# Too few blocks, a request larger than the pool, a block freed twice, a sequence that does not exist. An operation that is refused has changed nothing.
# %% [markdown] key="break_errors" lang="zh" src="556d25fc"
# ### 管理器会拒绝什么
#
# 块不够，请求比整个块池还大，同一个块释放两次，序列不存在：这些都会拒绝。操作被拒绝时，什么也没有改变。

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
# - A block table turns positions into slots: `table[i // B] * B + i % B`. Sequences never own a stretch of memory, so none can grow into another.
# - A block is free when its reference count is 0, and a free block may still be found. Sequences that begin alike share their full blocks: 8 of 10 equal tokens here.
# - Only the one holder of a block may write into it. With more holders it is copied first, and three forks needed two copies.
# - A digest contains all tokens before its block. One token that differs at the front brought the hits from 79% to 0.
# - Small blocks waste little, about (B - 1) / 2 slots a sequence, and cost table entries and bookkeeping. Sixteen is a common choice.
# %% [markdown] key="recap" lang="zh" src="8917789e"
# ## 本课小结
#
# - 块表把位置变成槽位：`table[i // B] * B + i % B`。序列从不占有一整段显存，所以不会长到别的序列里去。
# - 引用计数为 0 的块是空闲的，而空闲的块可能还找得到。开头相同的序列共享满块：例如这里 10 个相同的 token 共享了 8 个。
# - 只有一个块的唯一持有者才能往里写。持有者不止一个，就要先复制；三条分叉只复制了两次。
# - 摘要里包含前面所有的 token。只要最前面有一个 token 不同，命中率就从 79% 降到 0。
# - 块越小浪费越少，每条序列约 (B - 1) / 2 个槽位，但块表的项数和记账都会增加。常用的是 16。

# %% [markdown] key="self" lang="en"
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="c2d6ea3e"
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_owns"
explain("who_owns")

# %% key="explain_commit"
explain("why_commit")

# %% key="explain_parent"
explain("why_parent")

# %% key="explain_size"
explain("which_size")

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - **A hit that left no query.** In October 2025 a user gave nano-vllm one prompt 513 times, and it crashed with "invalid configuration argument" where the prompt's length was a multiple of the block size ([nano-vllm #114](https://github.com/GeeeekExplorer/nano-vllm/issues/114), [#144](https://github.com/GeeeekExplorer/nano-vllm/issues/144)). vLLM looks up one token less, as `match` does ([PR #17999](https://github.com/vllm-project/vllm/pull/17999)); a fix proposed for nano-vllm computes the last token only ([PR #199](https://github.com/GeeeekExplorer/nano-vllm/pull/199)).
# - **Blocks that were too large.** An engine had chosen blocks of about 2,000 tokens, and shorter prefixes were never hit ([vLLM #53749](https://github.com/vllm-project/vllm/issues/53749)). *How large should a block be?* has the reason.
# - **Salts.** vLLM added a salt so that tenants can't find out by timing what others have asked ([PR #17045](https://github.com/vllm-project/vllm/pull/17045)). *What a shared prompt brings* measures its price.
# - **A stale count.** vLLM gave wrong text because a hit count outlived a failed schedule ([PR #18957](https://github.com/vllm-project/vllm/pull/18957)). That is *A block that was published too early*, once more.
# - **Hashes.** vLLM began with Python's `hash` and moved on to SHA-256, because a collision hands one user the cache of another ([PR #12621](https://github.com/vllm-project/vllm/pull/12621), [PR #15297](https://github.com/vllm-project/vllm/pull/15297)). *Two texts, one hash* shows one.
# %% [markdown] key="wild" lang="zh" src="932aded6"
# ## 实战现场
#
# - **全部命中，一个 query 也没剩下。** 2025 年 10 月，一位用户把同一个提示词交给 nano-vllm 513 次，提示词长度恰好是块大小的整数倍时，程序以“invalid configuration argument”崩溃（[nano-vllm #114](https://github.com/GeeeekExplorer/nano-vllm/issues/114)、[#144](https://github.com/GeeeekExplorer/nano-vllm/issues/144)）。vLLM 与 `match` 一样少查一个 token（[PR #17999](https://github.com/vllm-project/vllm/pull/17999)）；给 nano-vllm 提的一个修复方案则只重算最后一个 token（[PR #199](https://github.com/GeeeekExplorer/nano-vllm/pull/199)）。
# - **块太大。** 有个引擎自行选用了约 2,000 token 的块，更短的前缀一次也没有命中（[vLLM #53749](https://github.com/vllm-project/vllm/issues/53749)）。原因见“块应该多大”一节。
# - **盐值。** vLLM 加入盐值，是为了让租户无法靠计时探出别的租户问过什么（[PR #17045](https://github.com/vllm-project/vllm/pull/17045)）。代价在“共享提示词的收益”里量过。
# - **过期的命中数。** 一次调度失败之后，vLLM 仍沿用旧的命中数，于是输出了错误的文本（[PR #18957](https://github.com/vllm-project/vllm/pull/18957)）。这与“发布得太早的块”是同一类错误。
# - **哈希。** vLLM 起初用 Python 的 `hash`，后来改用 SHA-256，因为一旦碰撞，一个用户就会拿到另一个用户的缓存（[PR #12621](https://github.com/vllm-project/vllm/pull/12621)、[PR #15297](https://github.com/vllm-project/vllm/pull/15297)）。“两段文字，同一个哈希”里有一个例子。

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# The exercise notebook asks for the parts of a block manager. Those marked with * are parts of your engine, with the names and arguments that nano has:
#
# 1. `slot_mapping` *: positions to slots.
# 2. `free` *: the one way by which a block becomes free.
# 3. `block_digest` *: the chained hash of a full block.
# 4. `append_slot`: a new block, a copy, or nothing.
# 5. `behind_window`: which blocks can be given back.
# 6. `allocate` *: cached blocks first, then fresh ones; or no, with nothing changed.
# 7. `append` *: room for the next token.
# 8. `frame`: a widget of your own. A *Play* steps through the block manager that you have written.
# %% [markdown] key="exercises" lang="zh" src="b0e469bd"
# ## 练习
#
# 练习 notebook 要你写出块管理器的几个部分。带 * 的是“你的引擎”的部件，名字和参数都与 nano 相同：
#
# 1. `slot_mapping` *：从位置到槽位。
# 2. `free` *：块变为空闲的唯一途径。
# 3. `block_digest` *：一个满块的链式哈希。
# 4. `append_slot`：要一个新块，复制一块，还是什么都不用做。
# 5. `behind_window`：哪些块可以归还。
# 6. `allocate` *：先用缓存块，再取新块；做不到就拒绝，什么也不改变。
# 7. `append` *：给下一个 token 腾位置。
# 8. `frame`：你自己的组件。用 *Play* 一步步播放你写的块管理器。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | free blocks dwindle, although sequences end | `manager.stats().pools[0]` after every `free`, and `manager.sequences()`: who is still there? Then `manager.check_invariants()` |
# | a sequence reads text of another one | `manager.pools[0].ref_count(manager.block_table(name)[-1])` before the write: more than 1, with a last block that is not full, needs the copies that `append` returned |
# | no prefix hits | `manager.match(tokens, salt).num_tokens` right after `commit`: 0 means another salt, another first token, or a prompt shorter than a block and one token |
# %% [markdown] key="stuck" lang="zh" src="c27e6cd6"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 序列都结束了，空闲块却越来越少 | 每次 `free` 之后看 `manager.stats().pools[0]` 和 `manager.sequences()`：谁还在？再运行 `manager.check_invariants()` |
# | 一条序列读到了另一条的文字 | 写入之前看 `manager.pools[0].ref_count(manager.block_table(name)[-1])`：大于 1 而最后一块又没有填满时，必须完成 `append` 返回的复制 |
# | 前缀从不命中 | `commit` 之后立即看 `manager.match(tokens, salt).num_tokens`：为 0 说明盐值不同、第一个 token 不同，或者提示词不足一个块加一个 token |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You know where every token lies and who may write there.
# [Lesson 10](10_kernels.ipynb) reads it: a kernel that walks through the block table, with `slot_mapping` on its way in.
# [Lesson 11a](11a_continuous_batching.ipynb) puts 256 requests on one pool.
# %% [markdown] key="next" lang="zh" src="fb799be1"
# ## 下一课
#
# 现在你知道每个 token 在哪里，谁可以往那里写。
# [第 10 课](10_kernels.ipynb)来读它们：一个沿着块表读取的 kernel，写入时用的正是 `slot_mapping`。
# [第 11a 课](11a_continuous_batching.ipynb)让 256 个请求共用一个块池。
