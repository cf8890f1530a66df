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
# In October 2025 somebody gives nano-vllm, a small and much-read inference engine, the same prompt 513 times: the word "Hello", 248 times over.
# It crashes:
#
# > CUDA error: invalid configuration argument
#
# ([nano-vllm #114](https://github.com/GeeeekExplorer/nano-vllm/issues/114), "Crashes when the prompt length exactly equals kvcache_block_size". By default that is 256 tokens.)
# The writer suspects the prefix cache: it leaves the model an input of length 0.
# Two months later [#144](https://github.com/GeeeekExplorer/nano-vllm/issues/144) meets the same thing: the length a multiple of the block size, every block found in the cache, a query of length 0.
# Here a cache has done its work too well.
#
# To say what should have happened, you have to know what a block is, who holds it, and when somebody else may have it.
# **Take one block, number 7. Who owns it?**
# By the end of this lesson you can follow it from empty to shared to cached to evicted, and you have written the parts that do it.
# %% [markdown] key="question" lang="zh" src="8063f718"
# ## 问题
#
# 2025 年 10 月，有人给 nano-vllm（一个小巧的推理引擎，很多人读过它的源码）提交了 513 次同一个提示词：连着 248 个“Hello”。
# 程序崩溃了：
#
# > CUDA error: invalid configuration argument
#
# （[nano-vllm #114](https://github.com/GeeeekExplorer/nano-vllm/issues/114)，标题的意思是“提示词长度恰好等于 kvcache_block_size 时崩溃”；kvcache_block_size 默认是 256 个 token。）
# 提问者怀疑：前缀缓存让模型的输入长度变成了 0。
# 两个月后，[#144](https://github.com/GeeeekExplorer/nano-vllm/issues/144) 遇到同样的事：长度恰好是块大小的整数倍，所有块都命中缓存，query 的长度为 0。
# 这一次，缓存尽职得过了头。
#
# 要说清本该怎样，先得知道：块是什么，由谁持有，什么时候才能分给别的序列。
# **就看块 7：它属于谁**？
# 学完本课，你能说清它的一生：起初是空块，然后被共享，成为缓存块，最后被淘汰；其中的关键几步，由你亲手写成代码。

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

# %% key="two_tables"
from minikv.blocks import BlockManager

manager = BlockManager(num_blocks=12, block_size=4)
manager.allocate("P", [11, 12, 13, 14, 15, 16])
manager.allocate("Q", [21, 22, 23, 24, 25, 26, 27, 28, 29, 30])
for token in (17, 18, 19):
    manager.append("P", token)
for name in manager.sequences():
    print(t("table_line", name=name, tokens=manager.num_tokens(name), table=manager.block_table(name)))

# %% key="slots_picture"
from minikv.course.diagrams import prefix_tree, slots

show(slots(manager, "P", t("lang")))

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

# %% key="slots"
from minikv.course import show_source
from minikv.nano.block_manager import slot_mapping

show_source(slot_mapping)
print(t("slots_nano"), slot_mapping(manager.block_table("P"), 0, 9, block_size=4))
print(t("slots_prefill"), manager.slot_mapping("P", 0, 9).tolist())
print(t("slots_decode"), manager.decode_slots(["P", "Q"]).tolist())

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
print(t("guide_agrees", **right))

# %% [markdown] key="guide_limits" lang="en"
# It agrees everywhere that it can be asked.
# But it can only be asked for whole blocks: it starts at `cached_blocks`.
# A **chunked prefill**, a long prompt computed in several pieces, may stop in the middle of a block.
# If 6 of Q's 10 tokens are stored and the next chunk is the other 4, whole blocks give two slots too many, and all four tokens go to the wrong places.
# And whoever writes `num_tokens % block_size` for "tokens in the last block" gets 0 just when that block is full.
# %% [markdown] key="guide_limits" lang="zh" src="626f6f78"
# 凡是它算得出的情形，结果都与 `slot_mapping` 相同。
# 但它只能按整块来算：从 `cached_blocks` 开始。
# **分块预填充**（chunked prefill）把长提示词分成几段来算，而一段可能停在块的中间。
# 假设 Q 的 10 个 token 已存了 6 个，下一段是另外 4 个：按整块算会多出两个槽位，这 4 个 token 全都放错地方。
# 另外，如果用 `num_tokens % block_size` 来算“最后一块里的 token 数”，块刚好填满时就会得到 0。

# %% key="guide_breaks"
table = manager.block_table("Q")
print(t("chunk_ours", slots=manager.slot_mapping("Q", 6, 10).tolist()))
print(t("chunk_guide", slots=guide_prefill(table, 10, 4, cached_blocks=6 // 4)))
full = table[:2]
print(t("full_block", right=guide_decode(full, 8, 4), wrong=full[-1] * 4 + 8 % 4 - 1, table=full))

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

# %% key="block_bytes_code"
from minikv.course.errata import erratum
from minikv.plan import CacheSpec

slip = erratum("001-04")
spec = CacheSpec.from_config("Llama-3.1-8B")
block = spec.block_bytes(16)
part = block // (2 * len(spec.layers))
print(t("claim", claim=slip.claim.in_(t("lang")), correct=slip.correct.in_(t("lang"))))
print(t("block_size_line", block=block, part=part, ratio=block // part))

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

# %% key="who"
manager = BlockManager(num_blocks=16, block_size=4)
pool = manager.pools[0]
system = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
prompts = {"A": [*system, 50, 51, 52], "B": [*system, 60, 61], "C": [*system, 70]}


def who(moment):
    holders = [name for name in manager.sequences() if 7 in manager.block_table(name)]
    state = t("used") if holders else t("cached") if pool.is_published(7) else t("empty")
    found = manager.match(prompts["C"]).num_tokens
    print(f"{moment:<14}", t("who", count=pool.ref_count(7), holders=holders, state=state, found=found))


manager.allocate("X", list(range(900, 928)))
who("allocate X")
manager.allocate("A", prompts["A"])
who("allocate A")
manager.commit("A")
who("commit A")
print(manager.allocate("B", prompts["B"]), manager.block_table("A"), manager.block_table("B"))
who("allocate B")

# %% key="tree_picture"
show(prefix_tree(manager, ["A", "B"], t("lang")))

# %% [markdown] key="life_read" lang="en"
# Three things stand in these lines.
#
# - **Sharing.** B's table begins with A's blocks 7 and 8. Ten tokens are equal, and eight are shared: only full blocks are. The third block holds tokens 9 and 10, and behind them tokens that the other prompt does not have.
# - **`allocate` gives a block, `commit` publishes it.** Between the two, nothing can be found. K and V are written by the forward pass in between, and a block that could be found earlier might be read before anybody has written it.
# - **The question.** Nobody *owns* block 7. A holds it and B holds it. To write into it, a sequence must be its only holder.
#
# Now they leave, one after the other.
# Before you run the cell: is block 7 free after `free A`? And once nobody holds it, can C still get it?
# %% [markdown] key="life_read" lang="zh" src="9e97ab47"
# 从这几行能看出三件事。
#
# - **共享**。B 的块表以 A 的块 7、块 8 开头。相同的 token 有 10 个，共享的只有 8 个：能共享的只有满块。第三个块里，第 9、10 个 token 后面就是对方没有的 token 了。
# - **`allocate` 分配块，`commit` 发布块**。两者之间什么也找不到。K 和 V 是这期间由前向计算写入的；要是更早就能找到，别的序列就可能读到还没写好的块。
# - **开头的问题**。块 7 不**属于**任何一条序列：A 持有它，B 也持有它。一条序列要往里写，必须是它唯一的持有者。
#
# 接下来，它们一个接一个离开。
# 运行之前先想一想：`free A` 之后，块 7 空闲了吗？等到没有序列持有它，C 还能拿到它吗？

# %% key="leave"
manager.free("A")
who("free A")
manager.free("B")
who("free B")
manager.allocate("C", prompts["C"])
who("allocate C")
manager.free("C")
who("free C")
manager.allocate("D", list(range(500, 536)))
who("allocate D")
print(t("evictions", evictions=manager.stats().pools[0].evictions, table=manager.block_table("D")))

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

# %% key="tail_first"
lru = BlockManager(num_blocks=8, block_size=4)
story = list(range(16))
lru.allocate("old", story)
lru.commit("old")
print("old:", lru.block_table("old"))
lru.free("old")
for number in range(3):
    lru.allocate(number, [100 + number] * (16 if number == 0 else 4))
    found = lru.match([*story, 99]).num_tokens
    print(t("lru_line", number=number, table=lru.block_table(number), found=found))

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

# %% key="chain"
from minikv.nano.block_manager import block_digest

show_source(block_digest)
for first in (1, 2):
    prompt, digest, digests = [first, *range(10, 21)], b"", []
    for start in range(0, len(prompt), 4):
        digest = block_digest(digest, prompt[start : start + 4])
        digests.append(digest.hex()[:8])
    print(prompt, digests)

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
# After the first line nothing is published yet; `publish` is what `commit` was above.
# %% [markdown] key="nano_allocate_words" lang="zh" src="e732d81d"
# 两个提示词各有 9 个和 10 个 token，前 8 个相同；块池共 6 个块。
# 打印第一行时还什么都没有发布；`publish` 就相当于前面的 `commit`。

# %% key="nano_allocate_run"
books = Nano(num_blocks=6, block_size=4)
prompts = [[*range(8), 50], [*range(8), 60, 61]]
first, second = (Sequence(i, tokens, len(tokens), SamplingParams()) for i, tokens in enumerate(prompts))


def line(what, seq):
    table, free = seq.block_table, list(books.free_blocks)
    print(f"{what:<17} table {table!s:<13} counts {books.ref_counts}  free {free}")


books.allocate(first)
line("allocate first", first)
books.publish(first, end=9)
print("find_prefix", books.find_prefix(second.tokens))
books.allocate(second)
line("allocate second", second)
print(f"num_computed {second.num_computed}")

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
for token in (62, 63, 64):
    second.tokens.append(token)
    answer = books.append(second)
    line(f"append {answer}", second)
    books.publish(second, end=len(second.tokens))
print("cached", sorted(books.cached.values()))

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
books.free(second)
line("free second", second)
books.free(first)
line("free first", first)
print("find_prefix", books.find_prefix([*range(8), 70]))

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
# In place of K and V each slot keeps a word, and `read` walks through the block table as attention does.
# %% [markdown] key="storage" lang="zh" src="05e38c46"
# 要看清不复制会出什么错，得真的存点东西。
# 这里每个槽位不存 K 和 V，而存一个单词；`read` 像注意力那样沿着块表读。

# %% key="storage_code"
class Words:
    def __init__(self):
        self.manager = BlockManager(num_blocks=12, block_size=4)
        self.slots = ["?"] * 48
        self.ids = {}

    def tokens(self, text):
        return [self.ids.setdefault(word, len(self.ids)) for word in text.split()]

    def forward(self, name, text, start=0):
        mapping = self.manager.slot_mapping(name, start, len(text.split()))
        for slot, word in zip(mapping, text.split()[start:]):
            self.slots[slot] = word

    def append(self, name, word, copying=True):
        copies = self.manager.append(name, self.tokens(word)[0])
        for copy in copies if copying else ():
            self.slots[copy.dst * 4 : copy.dst * 4 + 4] = self.slots[copy.src * 4 : copy.src * 4 + 4]
        self.slots[self.manager.decode_slots([name])[0]] = word
        return copies

    def read(self, name):
        mapping = self.manager.slot_mapping(name, 0, self.manager.num_tokens(name))
        return " ".join(self.slots[slot] for slot in mapping)


def forked():
    words = Words()
    words.manager.allocate("A", words.tokens("the cat sat on the mat"))
    words.forward("A", "the cat sat on the mat")
    words.manager.commit("A")
    words.manager.fork("A", "B")
    words.manager.fork("A", "C")
    return words

# %% key="fork_and_write"
words = forked()
for name, word in (("A", "and"), ("B", "but"), ("C", "while")):
    copies = words.append(name, word)
    print(name, words.manager.block_table(name), [tuple(copy) for copy in copies])
for name in "ABC":
    print(name, words.read(name))

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

# %% key="windows_code"
from minikv.blocks import KVCacheGroup

windowed = BlockManager([KVCacheGroup(num_blocks=16), KVCacheGroup(num_blocks=8, window=6)], block_size=4)
windowed.allocate("S", list(range(7)))
windowed.commit("S")
print(t("window_head"))
for position in range(7, 26):
    windowed.append("S", position)
    windowed.commit("S")
    if position % 3 == 0:
        tables = [windowed.block_table("S", group) for group in (0, 1)]
        used = [pool.used for pool in windowed.stats().pools]
        print(f"{position + 1:>4}  {used[0]:>2} {used[1]:>2}  {tables[0]}  {tables[1]}")

# %% [markdown] key="windows_read" lang="en"
# The full group grows with the sequence; the windowed group does not, whatever the length.
# The slot of a position behind the window is -1, and a store skips it:
# %% [markdown] key="windows_read" lang="zh" src="d2c7f069"
# 全注意力的那一组，块数随序列增长；滑动窗口的那一组，序列再长，块数也不再增加。
# 窗口之前的位置，槽位是 -1，写入时会跳过：

# %% key="windows_slots"
print(windowed.slot_mapping("S", 14, 26, kv_cache_group=1).tolist())

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

# %% key="size_claim"
slip = erratum("001-22")
print(t("claim", claim=slip.claim.in_(t("lang")), correct=slip.correct.in_(t("lang"))))

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

# %% key="size_table"
import random

rng = random.Random(0)
lengths = [700 + int(rng.lognormvariate(5, 1)) for _ in range(120)]
system_prompt = list(range(700))
waste, longest = {}, {}
print(t("size_head"))
for size in (1, 2, 4, 8, 16, 32, 64, 128, 256):
    load = BlockManager(num_blocks=sum(length // size + 1 for length in lengths), block_size=size)
    for number, length in enumerate(lengths):
        own = range(1000, 1000 + length - len(system_prompt))
        load.allocate(number, [*system_prompt, *own], salt=str(number))
        load.commit(number)
    stats = load.stats()
    waste[size] = stats.wasted_slots[0] / len(lengths)
    longest[size] = max(len(load.block_table(number)) for number in range(len(lengths)))
    hit = load.match([*system_prompt, -1], salt="0").num_tokens
    line = f"{size:>5} {waste[size]:>11.1f} {(size - 1) / 2:>9.1f} {stats.fragmentation():>9.2%}"
    print(f"{line} {longest[size]:>10,} {hit:>8,}")

# %% key="size_plot"
import plotly.graph_objects as go

figure = go.Figure()
sizes = list(waste)
empty = [round(waste[size], 2) for size in sizes]
figure.add_scatter(x=sizes[1:], y=empty[1:], name=t("plot_empty"), mode="lines+markers")
entries = [longest[size] for size in sizes]
longest_style = {"dash": "dash"}
figure.add_scatter(
    x=sizes, y=entries, name=t("plot_entries"),
    mode="lines+markers", line=longest_style, marker={"symbol": "square"},
)
figure.update_xaxes(type="log", tickvals=sizes, title=t("plot_x"))
figure.update_yaxes(type="log", dtick=1, title=t("plot_y"))
figure.update_layout(height=360, margin={"t": 20, "r": 20})
figure.update_layout(legend={"x": 0.3, "y": 0.98})
summary = "\n".join(f"{size:>4} {slots:>8} {count:>6}" for size, slots, count in zip(sizes, empty, entries))
show(figure, text=summary, caption=t("plot_caption"))

# %% [markdown] key="size_read" lang="en"
# About $(B-1)/2$ slots a sequence are empty, as long as the lengths spread over more than one block.
# So the smallest block wastes least, and the price is at the other end:
#
# - **The table.** At size 1 a sequence of a thousand tokens has a thousand entries, and attention looks each of them up in every layer and step.
# - **The bookkeeping.** Every block has a count, a place in the free list, and a digest. Below all that is timed on this machine.
# - **The hits.** That is the price of *large* blocks: a hit is rounded down to whole blocks. What is cut off is computed again by everybody: the last column is what remains of 700. In [vLLM #53749](https://github.com/vllm-project/vllm/issues/53749) an engine had chosen blocks of about 2,000 tokens, and shorter prefixes were never hit at all.
# %% [markdown] key="size_read" lang="zh" src="b63a7f41"
# 只要序列长度的分布范围超过一个块，每条序列平均约有 $(B-1)/2$ 个空槽位。
# 所以块越小浪费越少，代价在另一头：
#
# - **块表**。块大小为 1 时，一千个 token 的序列，块表就有一千项；每一层、每一步，注意力都要逐项去查。
# - **记账**。每个块都有计数、在空闲队列里的位置，以及摘要。下面就在这台机器上测量这些操作要花多少时间。
# - **命中**。这是**大**块的代价：命中只能按整块向下取整。舍去的零头，每个请求都要重算：最后一列就是 700 个 token 里还能命中的部分。[vLLM #53749](https://github.com/vllm-project/vllm/issues/53749) 里，引擎自行选用了约 2,000 token 的块，更短的前缀一次也没有命中。

# %% key="size_time" tags="timing"
import time

print(t("time_head"))
for size in (1, 4, 16, 64, 256):
    times = []
    for turn in range(7):
        load = BlockManager(num_blocks=4096 // size, block_size=size)
        start = time.perf_counter()
        load.allocate("S", list(range(4096)))
        load.commit("S")
        load.free("S")
        times.append(time.perf_counter() - start)
    print(f"{size:>5} {1e3 * min(times):>9.3f}")

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

# %% key="hit_rates"
rng = random.Random(1)
questions = [[rng.randrange(5000, 90_000) for _ in range(rng.randint(20, 300))] for _ in range(60)]
variants = {
    "shared": lambda number, question: ([*system_prompt, *question], ""),
    "tenants": lambda number, question: ([*system_prompt, *question], f"tenant {number % 4}"),
    "behind": lambda number, question: ([*system_prompt, 100_000 + number, *question], ""),
    "before": lambda number, question: ([100_000 + number, *system_prompt, *question], ""),
}
for variant, request in variants.items():
    load = BlockManager(num_blocks=4000, block_size=16)
    for number, question in enumerate(questions):
        load.allocate(number, *request(number, question))
        load.commit(number)
        load.free(number)
    stats = load.stats()
    print(t("hit_line", variant=t(f"hit_{variant}"), rate=stats.hit_rate, hit=stats.hit_tokens))

# %% [markdown] key="hits_read" lang="en"
# The last line is worth remembering.
# One token that differs at the front, a date or a request number, and nothing is shared at all: it is in every digest behind it.
# Put what varies behind what is common.
#
# The second line is a choice. The parent of a first block is made from the salt: tenants with different salts share nothing with each other, so that nobody can find out by timing what others have asked ([vLLM PR #17045](https://github.com/vllm-project/vllm/pull/17045)).
# %% [markdown] key="hits_read" lang="zh" src="2066f244"
# 最后一行值得记住。
# 只要最前面有一个 token 不同，比如日期或请求编号，就什么也共享不了，因为后面的每个摘要都受它影响。
# 变化的内容要放在公共内容之后。
#
# 第二行是有意的选择。第一个块的父摘要由盐值生成，所以盐值不同的租户互不共享，谁也无法靠计时探出别人问过什么（[vLLM PR #17045](https://github.com/vllm-project/vllm/pull/17045)）。

# %% [markdown] key="break" lang="en"
# ## Break it
#
# ### A hit that leaves no query
#
# Back to the crash.
# The block size there is 256. Take a prompt of two blocks that ran before, and count as that engine did: every full block that is found is a hit.
# (`match` leaves the last token out, so the cell hands it one token more.)
# %% [markdown] key="break" lang="zh" src="99641e3a"
# ## 弄坏它
#
# ### 命中之后没有 query
#
# 回到开头的崩溃。
# 那里的块大小是 256。取一个正好两块长、先前已经跑过的提示词，照那个引擎的办法计数：凡是找到的满块都算命中。
# （`match` 总会留下最后一个 token，所以代码里多给了它一个。）

# %% key="full_hit"
again = BlockManager(num_blocks=8, block_size=256)
prompt = list(range(512))
again.allocate("first", prompt)
again.commit("first")
found = again.match([*prompt, 512]).num_tokens
print(t("every_block", cached=found, left=len(prompt) - found))
got = again.allocate("second", prompt)
print(t("one_left", cached=got.num_cached, left=got.num_tokens - got.num_cached))

# %% [markdown] key="full_hit_read" lang="en"
# With no token left to compute there is no query, no logits, and no next token. The attention kernel is launched with a grid of size 0, which CUDA refuses.
# `match` looks up only `(len(tokens) - 1) // block_size` blocks, so one token is always left.
# It pays with a whole block that is computed again: 256 tokens there, 16 with a usual block. vLLM chose the same ([PR #17999](https://github.com/vllm-project/vllm/pull/17999)).
# A fix proposed for that engine ([PR #199](https://github.com/GeeeekExplorer/nano-vllm/pull/199)) computes the last token only, and writes the same K and V into the shared block once more.
# %% [markdown] key="full_hit_read" lang="zh" src="7a3b5137"
# 要计算的 token 一个也不剩，就没有 query，没有 logits，也就没有下一个 token。注意力 kernel 以大小为 0 的网格（grid）启动，被 CUDA 拒绝。
# `match` 只查 `(len(tokens) - 1) // block_size` 个块，所以总会留下至少一个 token。
# 代价是重算一整块：那里是 256 个 token，通常的块只有 16 个。vLLM 也是这样做的（[PR #17999](https://github.com/vllm-project/vllm/pull/17999)）。
# 有人给那个引擎提了一个修复方案（[PR #199](https://github.com/GeeeekExplorer/nano-vllm/pull/199)）：只重算最后一个 token，把同样的 K 和 V 往共享的块里再写一遍。

# %% [markdown] key="break_copy" lang="en"
# ### A copy that nobody made
#
# The manager says what to copy. The storage has to do it.
# %% [markdown] key="break_copy" lang="zh" src="89ea5ea0"
# ### 没人去做的复制
#
# 管理器只说要复制什么，真正动手的是存储端。

# %% key="no_copy"
words = forked()
for name, word in (("A", "and"), ("B", "but"), ("C", "while")):
    words.append(name, word, copying=False)
for name in "ABC":
    print(name, words.read(name))

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

# %% key="early_commit"
for early in (False, True):
    words = Words()
    words.manager.allocate("A", words.tokens("you are a kind helper . what is a block ?"))
    if early:
        words.manager.commit("A")
    question = "you are a kind helper . who are you ?"
    got = words.manager.allocate("B", words.tokens(question))
    words.forward("B", question, start=got.num_cached)
    print(t("early_line", early=early, cached=got.num_cached, text=words.read("B")))

# %% [markdown] key="early_read" lang="en"
# No error, no crash: an answer about text that is not there.
# A count can go stale in the same way. Between looking and taking, somebody else may evict what was found; vLLM had wrong text from a hit count that outlived a failed schedule ([PR #18957](https://github.com/vllm-project/vllm/pull/18957)).
# `allocate` therefore looks and takes in one operation.
# This is what becomes of a number that `match` gave earlier:
# %% [markdown] key="early_read" lang="zh" src="e445a238"
# 没有报错，也没有崩溃，只是模型在根据一段并不存在的文字作答。
# 命中数也会这样过期：查到之后、取用之前，查到的块可能已经被淘汰。vLLM 就曾因调度失败后仍沿用旧的命中数而输出错误的文本（[PR #18957](https://github.com/vllm-project/vllm/pull/18957)）。
# 所以 `allocate` 把查找和取用放在同一个操作里完成。
# 先前用 `match` 查到的数字，后来会变成这样：

# %% key="stale"
stale = BlockManager(num_blocks=4, block_size=4)
stale.allocate("A", list(range(12)))
stale.commit("A")
stale.free("A")
looked = stale.match(list(range(13))).num_tokens
stale.allocate("other", [99] * 12)
print(t("stale_line", looked=looked, now=stale.match(list(range(13))).num_tokens))

# %% [markdown] key="break_hash" lang="en"
# ### Two texts, one hash (optional)
#
# vLLM used Python's `hash` for its blocks at first and moved on to SHA-256, because a collision hands one user the cache of another ([PR #12621](https://github.com/vllm-project/vllm/pull/12621), [PR #15297](https://github.com/vllm-project/vllm/pull/15297)).
# One collision needs no search, since `hash(-1)` equals `hash(-2)` in Python:
# %% [markdown] key="break_hash" lang="zh" src="0b57437f"
# ### 两段文字，同一个哈希（选读）
#
# vLLM 起初用 Python 的 `hash` 标识块，后来改用 SHA-256，因为一旦碰撞，一个用户就会拿到另一个用户的缓存（[PR #12621](https://github.com/vllm-project/vllm/pull/12621)、[PR #15297](https://github.com/vllm-project/vllm/pull/15297)）。
# 有一个碰撞是现成的，用不着找：在 Python 里，`hash(-1)` 等于 `hash(-2)`。

# %% key="collision"
from minikv.blocks import BlockPool

ours, theirs = (7, -1), (7, -2)
digest = hash(ours).to_bytes(8, "little", signed=True)
shelf = BlockPool(num_blocks=4, block_size=2)
[block] = shelf.allocate(1)
shelf.publish(block, digest, repr(ours).encode())
found = [shelf.lookup_block(digest, repr(tokens).encode()) for tokens in (ours, theirs)]
print(t("collision", equal=hash(ours) == hash(theirs), ours=ours, theirs=theirs, found=found))

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

# %% key="free_list_time" tags="timing"
from collections import deque

print(t("free_head"))
for num_blocks in (1_000, 10_000, 100_000):
    queue = deque(range(num_blocks))
    shelf = BlockPool(num_blocks, block_size=1)
    for block in shelf.allocate(num_blocks):
        shelf.publish(block, block.to_bytes(8, "little"), b"")
    shelf.free(list(range(num_blocks))[::-1])
    removing, touching = [], []
    for seed in range(5):
        wanted = random.Random(seed).sample(range(num_blocks), 200)
        start = time.perf_counter()
        for block in wanted:
            queue.remove(block)
        middle = time.perf_counter()
        for block in wanted:
            shelf.touch([block])
        removing.append(middle - start)
        touching.append(time.perf_counter() - middle)
        queue.extend(wanted)
        shelf.free(wanted)
    print(f"{num_blocks:>8,} {min(removing) / 200 * 1e6:>12.2f} {min(touching) / 200 * 1e6:>9.2f}")

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
print(t("unchanged", same=small.stats() == before))

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
# %% [markdown] key="exercises" lang="zh" src="2e66ce23"
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
