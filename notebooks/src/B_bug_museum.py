# %% [meta]
# number = "B"
# slug = "bug_museum"
# needs = ["09", "11b"]
# rooms = ["blocks", "plan", "engine.core.scheduler"]
# [title]
# en = "Which property would have caught it?"
# zh = "哪条性质能抓住它？"
# [t4]
# en = "Bookkeeping and arithmetic on the CPU: a T4 shows the same numbers."
# zh = "全是 CPU 上的记账和算术：T4 上看到的数字相同。"
# [paper]
# en = "B.2"
# zh = "B.2"

# %% [markdown] key="question" lang="en"
# ## The question
#
# An engine stops with "Double free!". You replace the exception by `return 0`, and the program runs. Is the bug gone?
#
# No. The exception was the only part of that program which told the truth: a sequence had given back a block that it no longer held, and another sequence was still reading it. Without the exception the text is wrong from then on, and nothing says so.
#
# So how would you have found the cause, before a user did?
#
# This appendix is a museum of such bugs: ten, from six projects, each with its address.
# They are bugs of good engines, found by careful people, and more than half of them are mended. We don't look at them to feel clever.
# Of each we ask: **which sentence, had a test held it, would have found this bug?**
# Such a sentence is called a **property**. It is true of every run, not of one example.
#
# After this appendix you can
#
# - **reproduce** ten bugs of inference engines in a few lines, on a CPU;
# - **name** for each the property that it breaks;
# - **write** such a property as a test: a loop over random cases with one `assert`.
#
# You need blocks and reference counts ([lesson 09](09_pages_and_blocks.ipynb)) and preemption ([lesson 11b](11b_when_blocks_run_out.ipynb)).
# %% [markdown] key="question" lang="zh" src="1bf0cb85"
# ## 问题
#
# 一个引擎报“Double free!”（重复释放）后停下。你把抛异常那一行改成 `return 0`，程序就能跑了。bug 没有了吗？
#
# 不是。整个程序里，只有这个异常说了实话：某条序列把自己已经不持有的块还了回去，而另一条序列还在读它。去掉异常之后，文本从那时起就是错的，只是不再报错。
#
# 那么，怎样才能赶在用户之前找到原因？
#
# 本附录是一座收藏这类 bug 的博物馆：十件展品，来自六个项目，件件有出处。
# 它们都是好引擎里的 bug，由细心的工程师发现，一多半已经修好。看它们不是为了显得高明。
# 对每一件，我们都问同一个问题：**哪句话如果有测试守着，就能发现这个 bug？**
# 这样的句子叫**性质（property）**：它对每一次运行都成立，而不只是对某个例子成立。
#
# 学完本附录，你能够：
#
# - 在 CPU 上用几行代码**重现**推理引擎的十个 bug；
# - **说出**每个 bug 违反了哪条性质；
# - 把性质**写成**测试：对随机用例循环，里面一句 `assert`。
#
# 本附录用到块和引用计数（[第 09 课](09_pages_and_blocks.ipynb)），以及抢占（[第 11b 课](11b_when_blocks_run_out.ipynb)）。

# %% [markdown] key="tour" lang="en"
# Each exhibit has the same parts:
#
# - **Seen**: what a user saw, and where it was reported
# - **Here**: whether you run the faulty rule in a few lines of our own, or a library as it is installed
# - a cell that reproduces the bug, and a cell that finds it with one call of the package
# - **Cause**, **Fix**, **Property**
#
# Two numbers first.
# %% [markdown] key="tour" lang="zh" src="2675e3a5"
# 每件展品都由同样几部分组成：
#
# - **现象**：用户看到了什么，在哪里报告的
# - **这里**：运行的是我们自己用几行写出的错误规则，还是安装好的库本身
# - 一个单元格重现它，一个单元格用本包的一次调用找到它
# - **原因**、**修复**、**性质**
#
# 先猜两个数。

# %% key="predict_end"
predict("stale_end", ...)

# %% key="predict_pages"
predict("addressable", ...)

# %% [markdown] key="formula" lang="en"
# ## The formula
#
# A pool of blocks keeps books, and one line says when they are right. Exhibits 3 and 4 break it, and so will your own bug at the end.
# For every block $b$ of a pool:
#
# $$r_b \;=\; \sum_{s} \big[\, b \in \text{table}(s) \,\big] \qquad\text{and}\qquad f_b \;=\; \big[\, r_b = 0 \,\big]$$
#
# | symbol | meaning | value here |
# |---|---|---|
# | $\text{table}(s)$ | block table of sequence $s$ | `[0, 1]` for one sequence, `[0, 2]` for another |
# | $r_b$ | reference count of block $b$: the tables that hold it | $r_0 = 2$, $r_1 = r_2 = 1$, $r_3 = 0$ |
# | $f_b$ | how often $b$ stands in the free list | $f_3 = 1$, all others 0 |
# | $[\,\cdot\,]$ | 1 if it is true, else 0 | |
#
# With the two tables of the last column, block 0 stands in both: $r_0 = 1 + 1 = 2$. Block 3 stands in neither, so $r_3 = 0$ and $f_3 = 1$.
# `check_holders` looks whether that is so, and `BlockManager.check_invariants()` calls it for you.
# %% [markdown] key="formula" lang="zh" src="d8fcaf0b"
# ## 公式
#
# 块池要记账，账对不对，看一条规则。展品 3、展品 4，以及最后你自己造的 bug，违反的都是它。
# 对块池里的每个块 $b$：
#
# $$r_b \;=\; \sum_{s} \big[\, b \in \text{table}(s) \,\big] \qquad\text{且}\qquad f_b \;=\; \big[\, r_b = 0 \,\big]$$
#
# | 符号 | 含义 | 本例取值 |
# |---|---|---|
# | $\text{table}(s)$ | 序列 $s$ 的块表 | 一条序列为 `[0, 1]`，另一条为 `[0, 2]` |
# | $r_b$ | 块 $b$ 的引用计数，即持有它的块表数 | $r_0 = 2$，$r_1 = r_2 = 1$，$r_3 = 0$ |
# | $f_b$ | $b$ 在空闲队列里出现的次数 | $f_3 = 1$，其余为 0 |
# | $[\,\cdot\,]$ | 成立为 1，否则为 0 | |
#
# 代入最右一列的两张块表：块 0 两张表里都有，所以 $r_0 = 1 + 1 = 2$；块 3 哪张表里都没有，所以 $r_3 = 0$，$f_3 = 1$。
# `check_holders` 检查它是否成立，`BlockManager.check_invariants()` 会替你调用它。

# %% [markdown] key="hit_seen" lang="en"
# ## Exhibit 1: Everything is found, and no query is left
#
# - **Seen**: 513 times the same prompt, exactly one block long: `CUDA error: invalid configuration argument`. [nano-vllm #114](https://github.com/GeeeekExplorer/nano-vllm/issues/114), again in [#144](https://github.com/GeeeekExplorer/nano-vllm/issues/144)
# - **Here**: the faulty rule in our own lines. It counts every full block that is found in the cache.
# %% [markdown] key="hit_seen" lang="zh" src="f79ebc34"
# ## 展品 1：全部命中，一个 query 也没剩下
#
# - **现象**：同一个提示词提交 513 次，长度正好一个块，报 `CUDA error: invalid configuration argument`。[nano-vllm #114](https://github.com/GeeeekExplorer/nano-vllm/issues/114)，后来 [#144](https://github.com/GeeeekExplorer/nano-vllm/issues/144) 又遇到
# - **这里**：我们自己写的错误规则，它把缓存里找到的满块都算作命中。

# %% key="hit_broken" lang="en"
import torch
from minikv.blocks import BlockManager

size = 256
prompt = list(range(2 * size))
manager = BlockManager(num_blocks=8, block_size=size)
manager.allocate("first", prompt)
manager.commit("first")

hit = manager.match([*prompt, 0]).num_tokens  # asked with one token more, it finds every block of the prompt
queries = len(prompt) - hit
logits = torch.zeros(queries, 1000)
print(t("hit_line", tokens=len(prompt), hit=hit, queries=queries))
try:
    logits[-1].argmax()
except IndexError as error:
    print(t("no_token", error=type(error).__name__))

# %% key="hit_broken" lang="zh"
import torch
from minikv.blocks import BlockManager

size = 256
prompt = list(range(2 * size))
manager = BlockManager(num_blocks=8, block_size=size)
manager.allocate("first", prompt)
manager.commit("first")

hit = manager.match([*prompt, 0]).num_tokens  # 多问一个 token，就能找到提示词的每一块
queries = len(prompt) - hit
logits = torch.zeros(queries, 1000)
print(t("hit_line", tokens=len(prompt), hit=hit, queries=queries))
try:
    logits[-1].argmax()
except IndexError as error:
    print(t("no_token", error=type(error).__name__))

# %% key="hit_call"
for num_tokens in (size - 1, size, size + 1, 2 * size):
    cached = manager.match(prompt[:num_tokens]).num_tokens
    print(t("match_line", tokens=num_tokens, cached=cached, queries=num_tokens - cached))

# %% [markdown] key="hit_fix" lang="en"
# - **Cause**: K and V of the last token are cached, but not what the model says after it. Without a query there is no next token.
# - **Fix**: leave at least one token to compute. `match` leaves the whole last block, so that nothing is written into a block that other sequences hold; computing only the last token would write into it.
# - **Property**: *for every prompt, what is cached is shorter than the prompt*.
# %% [markdown] key="hit_fix" lang="zh" src="89773e64"
# - **原因**：最后一个 token 的 K 和 V 在缓存里，但模型在它之后会输出什么，缓存里没有。没有 query，就没有下一个 token。
# - **修复**：至少留一个 token 来计算。`match` 留下整个最后一块，这样就不会写入别的序列持有的块；如果只重算最后一个 token，就会写进去。
# - **性质**：*对任何提示词，命中的长度都小于提示词的长度*。

# %% [markdown] key="stale_seen" lang="en"
# ## Exhibit 2: A count that is older than the cache
#
# - **Seen**: `IndexError` under load, after a preemption: a sequence of 465 tokens gets the range 256 to 721. [nano-vllm #210](https://github.com/GeeeekExplorer/nano-vllm/pull/210). In vLLM the same mistake raised nothing and gave wrong text: [vLLM #18957](https://github.com/vllm-project/vllm/pull/18957)
# - **Here**: the faulty rule in our own lines. It counts the work first and asks the cache afterwards.
# %% [markdown] key="stale_seen" lang="zh" src="d240b543"
# ## 展品 2：比缓存还旧的计数
#
# - **现象**：高负载下，抢占之后报 `IndexError`：一条 465 个 token 的序列，要算的范围竟是 256 到 721。[nano-vllm #210](https://github.com/GeeeekExplorer/nano-vllm/pull/210)。同样的错误在 vLLM 里不报错，而是输出错误的文本：[vLLM #18957](https://github.com/vllm-project/vllm/pull/18957)
# - **这里**：我们自己写的错误规则，它先数要算多少，再去查缓存。

# %% key="stale_broken" lang="en"
text = list(range(465))
manager = BlockManager(num_blocks=4, block_size=256)
manager.allocate("S", text)
manager.commit("S")
manager.free("S")  # preempted: it holds nothing, but its full block can still be found

to_compute = len(text) - 0  # counted now, while the sequence has nothing cached
start = manager.allocate("S", text).num_cached
print(t("range_line", start=start, end=start + to_compute, tokens=len(text)))

# The other direction: a hit is remembered, the block is evicted, and the cache is not asked again.
manager.free("S")
remembered = manager.match(text).num_tokens
manager.allocate("other", range(1000, 1900))
manager.free("other")
start = manager.allocate("S", text).num_cached
print(t("skipped_line", remembered=remembered, cached=start, skipped=remembered - start))

# %% key="stale_broken" lang="zh"
text = list(range(465))
manager = BlockManager(num_blocks=4, block_size=256)
manager.allocate("S", text)
manager.commit("S")
manager.free("S")  # 被抢占：它不再持有任何块，但那个满块还找得到

to_compute = len(text) - 0  # 此刻来数，序列还没有任何命中
start = manager.allocate("S", text).num_cached
print(t("range_line", start=start, end=start + to_compute, tokens=len(text)))

# 反过来：记住了一次命中，块被淘汰，却没有再查一遍。
manager.free("S")
remembered = manager.match(text).num_tokens
manager.allocate("other", range(1000, 1900))
manager.free("other")
start = manager.allocate("S", text).num_cached
print(t("skipped_line", remembered=remembered, cached=start, skipped=remembered - start))

# %% key="stale_call"
from minikv.errors import MiniKVError

try:
    manager.slot_mapping("S", 256, 256 + to_compute)
except MiniKVError as error:
    print(t(error))
print(t("slots_line", count=len(manager.slot_mapping("S", start, len(text)))))

# %% [markdown] key="stale_fix" lang="en"
# - **Cause**: two numbers have to fit together, but they were taken at two moments, and the cache changed in between.
# - **Fix**: count after `allocate`, from what it returns. It looks and takes in one step, so nothing can change in between.
# - **Property**: *what is cached and what is computed add up to the sequence, in the step in which both are used*. (Exercise B.2.)
#
# The second line is the worse one: 256 tokens are never computed, and no index is out of range.
# %% [markdown] key="stale_fix" lang="zh" src="68dd8c10"
# - **原因**：两个数必须相配，却取自两个时刻，中间缓存变了。
# - **修复**：在 `allocate` 之后、用它的返回值来数。它查找和占用在一步里完成，中间不会再有变化。
# - **性质**：*在同一步里，命中的加上要算的，正好是整条序列*。（练习 B.2）
#
# 第二行更糟：有 256 个 token 始终没有计算，却没有任何下标越界。

# %% [markdown] key="double_seen" lang="en"
# ## Exhibit 3: A block given back by a sequence that no longer holds it
#
# - **Seen**: `ValueError: Double free!` with beam search or several samples, once the text is longer than the model's sliding window. [vLLM #1556](https://github.com/vllm-project/vllm/issues/1556), found in [#3347](https://github.com/vllm-project/vllm/pull/3347). The `return 0` of the first screen is the cure that [#1584](https://github.com/vllm-project/vllm/issues/1584) offered
# - **Here**: the faulty rule in our own lines, on our pool. Behind the window a table names old blocks again, in a ring, and a sequence gives back every block that its table names.
# %% [markdown] key="double_seen" lang="zh" src="ae2cc728"
# ## 展品 3：重复释放：早已不持有的块又还了一次
#
# - **现象**：束搜索或多次采样时，文本一旦超过模型的滑动窗口，就报 `ValueError: Double free!`。[vLLM #1556](https://github.com/vllm-project/vllm/issues/1556)，原因见 [#3347](https://github.com/vllm-project/vllm/pull/3347)。开头说的 `return 0`，是 [#1584](https://github.com/vllm-project/vllm/issues/1584) 里给出的偏方
# - **这里**：我们自己写的错误规则，用的是本包的块池。超出窗口后，块表循环使用旧块，同一个块号会再次出现；序列结束时，表里写了哪些块就还哪些块。

# %% key="double_broken" lang="en"
from minikv.blocks import BlockPool

window = 2  # blocks


def write_on():
    pool = BlockPool(num_blocks=6, block_size=16)
    parent = pool.allocate(window) * 2  # the window has gone round once: the table says 0, 1, 0, 1
    child = list(parent)
    pool.share(sorted(set(child)))
    # The child may not write into block 0, which is shared: it frees it and takes a new one.
    pool.free([child[-window]])
    child += pool.allocate(1)
    return pool, parent, child


pool, parent, child = write_on()
print(t("ring_tables", parent=parent, child=child, refs=[pool.ref_count(block) for block in range(3)]))
pool.free(sorted(set(child)))  # the child ends: its table still names block 0
print(t("ring_after", refs=[pool.ref_count(block) for block in range(3)], taken=pool.allocate(1)[0]))

# %% key="double_broken" lang="zh"
from minikv.blocks import BlockPool

window = 2  # 块


def write_on():
    pool = BlockPool(num_blocks=6, block_size=16)
    parent = pool.allocate(window) * 2  # 窗口已经转过一圈：块表是 0, 1, 0, 1
    child = list(parent)
    pool.share(sorted(set(child)))
    # 块 0 是共享的，子序列不能往里写：放掉它，另取一块。
    pool.free([child[-window]])
    child += pool.allocate(1)
    return pool, parent, child


pool, parent, child = write_on()
print(t("ring_tables", parent=parent, child=child, refs=[pool.ref_count(block) for block in range(3)]))
pool.free(sorted(set(child)))  # 子序列结束：它的块表里还写着块 0
print(t("ring_after", refs=[pool.ref_count(block) for block in range(3)], taken=pool.allocate(1)[0]))

# %% key="double_call" lang="en"
from minikv.blocks.invariants import check_holders
from minikv.errors import BrokenInvariantError


def held(*tables):
    return [(0, block) for table in tables for block in set(table[-window:])]


def look(pools, holders):
    try:
        check_holders(pools, [], holders)
        print(t("books_right"))
    except BrokenInvariantError as error:
        print(t("books_wrong", what=error.values["what"]))


for named in (5, window):  # all that the table names, then only what the window still holds
    pool, parent, child = write_on()
    look([pool], held(parent, child))
    pool.free(sorted(set(child[-named:])))
    look([pool], held(parent))

# %% key="double_call" lang="zh"
from minikv.blocks.invariants import check_holders
from minikv.errors import BrokenInvariantError


def held(*tables):
    return [(0, block) for table in tables for block in set(table[-window:])]


def look(pools, holders):
    try:
        check_holders(pools, [], holders)
        print(t("books_right"))
    except BrokenInvariantError as error:
        print(t("books_wrong", what=error.values["what"]))


for named in (5, window):  # 先还块表里写的全部，再换成只还窗口仍持有的
    pool, parent, child = write_on()
    look([pool], held(parent, child))
    pool.free(sorted(set(child[-named:])))
    look([pool], held(parent))

# %% [markdown] key="double_fix" lang="en"
# - **Cause**: a block table records which blocks a sequence holds, and here it named more than that.
# - **Fix**: give back what is still held, the last blocks of the table. Our own tables cannot get this wrong, because a place behind the window holds the null block.
# - **Property**: *the reference count of a block is the number of tables that hold it* (the formula above). It breaks when the child ends. The double free comes later, when the parent ends; in between, block 0 belongs to another sequence, and the parent reads that sequence's K and V.
# %% [markdown] key="double_fix" lang="zh" src="964c1369"
# - **原因**：块表记录一条序列持有哪些块，而这里多写了几个。
# - **修复**：只还仍然持有的，即表里最后几块。本包的块表不会出这种错，因为窗口之后的位置上放的是空块（null block）。
# - **性质**：*一个块的引用计数，等于持有它的块表数*（上面的公式）。子序列一结束它就被破坏。重复释放要等父序列结束才发生；在此期间块 0 已经属于另一条序列，父序列读到的是那条序列的 K 和 V。

# %% [markdown] key="leak_seen" lang="en"
# ## Exhibit 4: A refusal that keeps something
#
# - **Seen**: a server that believes it is idle adds up its slots and stops: `memory leak detected! ... mamba_available_size=315, mamba_evictable_size=138`, of 454. [SGLang #16067](https://github.com/sgl-project/sglang/pull/16067)
# - **Here**: the faulty rule in our own lines, on two of our pools. A hybrid model needs a state slot and token blocks; the slot is taken first, and then the blocks are refused.
# %% [markdown] key="leak_seen" lang="zh" src="6de9d784"
# ## 展品 4：请求被拒绝，占用的却没有还干净
#
# - **现象**：服务器判断自己空闲，清点槽位后退出：`memory leak detected! ... mamba_available_size=315, mamba_evictable_size=138`，总数是 454。[SGLang #16067](https://github.com/sgl-project/sglang/pull/16067)
# - **这里**：我们自己写的错误规则，用本包的两个块池。混合模型既要一个状态槽位，又要 token 块；先拿到了槽位，接着块却不够。

# %% key="leak_broken" lang="en"
from minikv.errors import OutOfBlocksError

print(t("sum_line", what=t("what_tokens"), a=6_016, b=390_685, total=396_701, gone=396_701 - 6_016 - 390_685))
print(t("sum_line", what=t("what_states"), a=315, b=138, total=454, gone=454 - 315 - 138))

tokens, states = BlockPool(num_blocks=4, block_size=16), BlockPool(num_blocks=3, block_size=16)


def admit(blocks):
    slot = states.allocate(1)
    return slot, tokens.allocate(blocks)  # raises: and what gives the slot back?


for attempt in range(3):
    try:
        admit(5)
    except OutOfBlocksError as error:
        print(t("refused_line", asked=error.values["asked"], free=error.values["free"], states=states.num_free))

# %% key="leak_broken" lang="zh"
from minikv.errors import OutOfBlocksError

print(t("sum_line", what=t("what_tokens"), a=6_016, b=390_685, total=396_701, gone=396_701 - 6_016 - 390_685))
print(t("sum_line", what=t("what_states"), a=315, b=138, total=454, gone=454 - 315 - 138))

tokens, states = BlockPool(num_blocks=4, block_size=16), BlockPool(num_blocks=3, block_size=16)


def admit(blocks):
    slot = states.allocate(1)
    return slot, tokens.allocate(blocks)  # 抛出异常：那么槽位怎么还回去？


for attempt in range(3):
    try:
        admit(5)
    except OutOfBlocksError as error:
        print(t("refused_line", asked=error.values["asked"], free=error.values["free"], states=states.num_free))

# %% key="leak_call"
from minikv.blocks import KVCacheGroup

look([tokens, states], [])

hybrid = BlockManager([KVCacheGroup(4), KVCacheGroup(3, window=16)], block_size=16)
hybrid.allocate("one", range(32))
before = hybrid.stats()
try:
    hybrid.allocate("two", range(100, 148))
except OutOfBlocksError:
    print(t("nothing_changed", same=hybrid.stats() == before))
hybrid.check_invariants()

# %% [markdown] key="leak_fix" lang="en"
# - **Cause**: an operation of two steps, of which the second may fail.
# - **Fix**: ask about everything, then take everything. `BlockManager` counts what every KV cache group needs before it touches any pool.
# - **Property**: *an operation that raises has changed nothing*. The test is one line: the state before and after are equal.
#
# SGLang's own check did its work: it adds up what is free, cached and protected, and one slot was missing. But it runs only when the server believes it is idle, while the property finds the leak at the first refusal.
# %% [markdown] key="leak_fix" lang="zh" src="5c289a3d"
# - **原因**：一个操作分两步，而第二步可能失败。
# - **修复**：先把需要的全部查清，再一次拿齐。`BlockManager` 会先数清每个 KV 缓存组各要多少，然后才动块池。
# - **性质**：*抛出异常的操作，什么也没有改变*。测试只要一行：前后状态相等。
#
# SGLang 自己的检查是有效的：把空闲的、缓存的、受保护的加起来，少了一个槽位。只是它要等服务器判断自己空闲时才运行，而这条性质在第一次拒绝时就能发现泄漏。

# %% [markdown] key="large_seen" lang="en"
# ## Exhibit 5: A request that preempts itself and waits forever
#
# - **Seen**: `AssertionError: scheduled_seqs`, and the whole engine is gone: the prompt fills the cache, and the first new token needs one block more. [nano-vllm #274](https://github.com/GeeeekExplorer/nano-vllm/issues/274). The report proposes to wait and try again, and [#277](https://github.com/GeeeekExplorer/nano-vllm/pull/277) found out that this hangs forever
# - **Here**: the faulty rule in our own lines. A sequence that lacks a block preempts another one, and the last sequence preempts itself.
# %% [markdown] key="large_seen" lang="zh" src="843fabb1"
# ## 展品 5：抢占了自己、永远等下去的请求
#
# - **现象**：`AssertionError: scheduled_seqs`，整个引擎退出：提示词占满缓存，第一个新 token 还要一个块。[nano-vllm #274](https://github.com/GeeeekExplorer/nano-vllm/issues/274)。报告里建议等一等再试，而 [#277](https://github.com/GeeeekExplorer/nano-vllm/pull/277) 发现这样会永远挂住
# - **这里**：我们自己写的错误规则：缺块的序列抢占别的序列，只剩自己时就抢占自己。

# %% key="large_broken"
num_blocks, size, length = 2, 4, 8
for step in range(4):
    needed = -(-length // size)
    scheduled = needed <= num_blocks
    print(t("step_line", step=step, length=length, needed=needed, total=num_blocks, ran=t(f"ran_{scheduled}")))
    length += scheduled

# %% key="large_call"
from minikv.engine.sampling_params import SamplingParams
from minikv.engine import Scheduler

scheduler = Scheduler(BlockManager(num_blocks, size))
try:
    scheduler.add("long", range(8), SamplingParams(max_tokens=4))
except MiniKVError as error:
    print(t(error))

# %% [markdown] key="large_fix" lang="en"
# - **Cause**: "not now" and "never" got the same answer.
# - **Fix**: when a request arrives, refuse it if even the empty pool could not hold it, and give the numbers. After that the oldest request always fits, alone. (Here the limit is 9 tokens for 8 slots, because the last token is returned and never cached.)
# - **Property**: *while there is work, every step computes something*. An `assert scheduled_seqs` says exactly that; it only has to be made true.
# %% [markdown] key="large_fix" lang="zh" src="2077ac64"
# - **原因**：“现在不行”和“永远不行”得到了同样的处理。
# - **修复**：请求一到就检查，如果空的块池也装不下，就拒绝，并给出数字。此后最老的请求单独总能放下。（这里 8 个槽位，上限却是 9 个 token，因为最后一个 token 只返回，不进缓存。）
# - **性质**：*只要还有请求没完成，每一步都会算出一些 token*。`assert scheduled_seqs` 说的正是这句话，只是还得让它成立。

# %% [markdown] key="salt_seen" lang="en"
# ## Exhibit 6: An adapter with the name of a tenant
#
# - **Seen**: a request without an adapter gets the K and V that a LoRA adapter computed. [vLLM #44701](https://github.com/vllm-project/vllm/issues/44701), shown on an A100
# - **Here**: the faulty rule in our own lines. The adapter's name and the tenant's salt go into one list, and what is absent leaves no trace.
# %% [markdown] key="salt_seen" lang="zh" src="31c7af79"
# ## 展品 6：与租户同名的适配器
#
# - **现象**：没有用适配器的请求，拿到了某个 LoRA 适配器算出的 K 和 V。[vLLM #44701](https://github.com/vllm-project/vllm/issues/44701)，报告者在 A100 上演示过
# - **这里**：我们自己写的错误规则，它把适配器名和租户的 salt 放进同一个列表，没有的那一个不留痕迹。

# %% key="salt_broken"
def one_list(adapter=None, tenant=None):
    return repr([name for name in (adapter, tenant) if name])


def two_places(adapter=None, tenant=None):
    return repr((adapter, tenant))


print(one_list(adapter="blue"), one_list(tenant="blue"))
print(two_places(adapter="blue"), two_places(tenant="blue"))

# %% key="salt_call"
prompt = list(range(40))
for name in (one_list, two_places):
    manager = BlockManager(num_blocks=8, block_size=16)
    manager.allocate("with adapter", prompt, salt=name(adapter="blue"))
    manager.commit("with adapter")
    found = manager.match(prompt, salt=name(tenant="blue")).num_tokens
    print(t("found_line", rule=name.__name__, found=found, same=manager.match(prompt, salt=name(adapter="blue")).num_tokens))

# %% [markdown] key="salt_fix" lang="en"
# - **Cause**: two sorts of names in one space.
# - **Fix**: give each a place of its own, and write something into the place that is empty.
# - **Property**: *two requests get the same name only if every part of it is the same*. Strings joined with a separator break it, too, because a name may contain the separator. (Exercise B.3. [Lesson 09](09_pages_and_blocks.ipynb) says why a digest is SHA-256, and why the tokens are compared as well.)
# %% [markdown] key="salt_fix" lang="zh" src="2769d62e"
# - **原因**：两类名字挤在同一个空间里。
# - **修复**：各占一个位置，没有的位置也要写点什么。
# - **性质**：*两个请求的名字相同，当且仅当每一部分都相同*。用分隔符拼字符串同样会违反它，因为名字里可能就有分隔符。（练习 B.3。摘要为什么用 SHA-256，为什么还要比较 token，见[第 09 课](09_pages_and_blocks.ipynb)。）

# %% [markdown] key="others_seen" lang="en"
# ## Exhibit 7: Bytes of another process
#
# - **Seen**: a second program is on the card, and the engine ends in `assert num_kvcache_blocks > 0`, because `total * 0.4 - used` is negative. [nanovllm-voxcpm #27](https://github.com/a710128/nanovllm-voxcpm/pull/27) wants this process alone to be counted
# - **Here**: the sum itself, with figures of our own: a card of 24 GiB, 40 % of it for us, weights of 4 GiB, 1 GiB of activations.
# %% [markdown] key="others_seen" lang="zh" src="d28be175"
# ## 展品 7：其他进程占用的显存
#
# - **现象**：显卡上还有另一个程序，引擎就停在 `assert num_kvcache_blocks > 0`，因为 `total * 0.4 - used` 成了负数。[nanovllm-voxcpm #27](https://github.com/a710128/nanovllm-voxcpm/pull/27) 主张只算本进程
# - **这里**：就是这个算式，数字是我们取的：24 GiB 的显卡，我们用 40%，权重 4 GiB，激活 1 GiB。

# %% key="others_broken"
from minikv.plan.measured import MeasuredTerms
from minikv.units import GIB

rows = {}
for others in (1, 6, 12, 18):
    rows[others] = MeasuredTerms(24 * GIB, 0.4, used=(4 + others) * GIB, peak=5 * GIB, current=4 * GIB)
    pools = dict(with_used=rows[others].available / GIB, without=rows[others].short_form / GIB)
    print(t("others_line", others=others, **pools))

# %% key="others_call"
for others, terms in rows.items():
    free = terms.total - terms.used - (terms.peak - terms.current)
    verdict = t(f"fits_{terms.short_form <= free}")
    print(t("free_line", others=others, free=free / GIB, pool=min(terms.short_form, free) / GIB, verdict=verdict))
print({name: round(value / GIB, 2) for name, value in rows[12].as_dict().items()})

# %% [markdown] key="others_fix" lang="en"
# - **Cause**: `utilization` can limit the whole card, which all processes share, or this process alone. The sum meant the first, the user the second.
# - **Fix**: say which. Without `used` you get the second meaning, and then the engine has to check that so much is free: with 18 GiB taken by others, the sum promises 4.6 GiB, and 1 GiB is there.
# - **Property**: *the pool is never larger than what is free after the activations*. Both meanings need it. ([Lesson 08](08_allocate_kv_cache.ipynb).)
# %% [markdown] key="others_fix" lang="zh" src="c3441533"
# - **原因**：`utilization` 可以限制整块显卡（卡上所有进程合计），也可以只限制本进程。算式用的是前者，用户想的是后者。
# - **修复**：说清是哪一种。去掉 `used` 就是第二种，但这时引擎必须检查是不是真有那么多空闲：其他进程占了 18 GiB 时，算式给出 4.6 GiB，实际只有 1 GiB。
# - **性质**：*块池永远不大于扣除激活之后的空闲显存*。两种含义都需要它。（[第 08 课](08_allocate_kv_cache.ipynb)）

# %% [markdown] key="heads_seen" lang="en"
# ## Exhibit 8: Half a head for each GPU
#
# - **Seen**: a model with 4 KV heads on 8 GPUs loads without an error, and the first forward ends in `shape '[4, 178, -1, 128]' is invalid for input of size 45568`. [transformers #48307](https://github.com/huggingface/transformers/issues/48307)
# - **Here**: torch as it is installed, and the shapes of the report (a Qwen3-VL; the Qwen3-30B-A3B of the second cell has the same heads).
# %% [markdown] key="heads_seen" lang="zh" src="9e0d9143"
# ## 展品 8：每块 GPU 半个头
#
# - **现象**：4 个 KV 头的模型放到 8 块 GPU 上，加载时不报错，第一次前向计算却报 `shape '[4, 178, -1, 128]' is invalid for input of size 45568`。[transformers #48307](https://github.com/huggingface/transformers/issues/48307)
# - **这里**：安装好的 torch 本身，形状取自报告（那是 Qwen3-VL；第二个单元格里的 Qwen3-30B-A3B 头数相同）。

# %% key="heads_broken" lang="en"
kv_heads, head_dim = 4, 128
for tp in (4, 8):
    k = torch.zeros(4, 178, kv_heads * head_dim // tp)  # what one rank's slice of k_proj gives
    try:
        print(f"tp={tp}:", tuple(k.view(4, 178, -1, head_dim).shape))
    except RuntimeError as error:
        print(f"tp={tp}:", error)

# %% key="heads_broken" lang="zh"
kv_heads, head_dim = 4, 128
for tp in (4, 8):
    k = torch.zeros(4, 178, kv_heads * head_dim // tp)  # 一个 rank 的 k_proj 切片算出的结果
    try:
        print(f"tp={tp}:", tuple(k.view(4, 178, -1, head_dim).shape))
    except RuntimeError as error:
        print(f"tp={tp}:", error)

# %% key="heads_call"
from minikv.plan import CacheSpec

whole = CacheSpec.from_config("Qwen3-30B-A3B").bytes_for(1)
for tp in (1, 4, 8, 16):
    spec = CacheSpec.from_config("Qwen3-30B-A3B", tp=tp)
    heads = spec.layers[0].kv_heads
    print(t("heads_line", tp=tp, heads=heads, kib=spec.bytes_for(1) / 1024, copies=tp * spec.bytes_for(1) / whole))

# %% [markdown] key="heads_fix" lang="en"
# - **Cause**: 512 numbers were divided by 8, but they are 4 heads of 128.
# - **Fix**: don't divide a head. With more ranks than heads each head is copied to several ranks, and the cache of all ranks together grows.
# - **Property**: *every rank has a whole number of heads, at least one, and every head is on some rank*. What does not divide is refused when the model is loaded. ([Lesson 12](12_beyond_one_gpu.ipynb).)
# %% [markdown] key="heads_fix" lang="zh" src="fc9f992c"
# - **原因**：把 512 个数除以 8，可它们是 4 个头，每个头 128 个数。
# - **修复**：头不能再切。rank 比头多时，每个头复制到几个 rank 上，各 rank 的缓存加起来就变大。
# - **性质**：*每个 rank 的头数都是整数，至少一个，每个头都在某个 rank 上*。除不开的，在加载模型时就拒绝。（[第 12 课](12_beyond_one_gpu.ipynb)）

# %% [markdown] key="int_seen" lang="en"
# ## Exhibit 9: A page number times a stride
#
# - **Seen**: `illegal memory access` after a while under load, blamed on some later kernel. The crash came whenever block numbers passed about 7,767. [vLLM #47671](https://github.com/vllm-project/vllm/pull/47671)
# - **Here**: the multiplication of the kernel, in torch's 32-bit integers: a page of 480 tokens with 576 elements each.
# %% [markdown] key="int_seen" lang="zh" src="d3dbaa7f"
# ## 展品 9：页号乘以步幅
#
# - **现象**：高负载跑一阵后报 `illegal memory access`，报错的还是后面某个不相干的 kernel。只要块号超过 7,767 左右就崩溃。[vLLM #47671](https://github.com/vllm-project/vllm/pull/47671)
# - **这里**：就是 kernel 里的那次乘法，用 torch 的 32 位整数来做：一页 480 个 token，每个 576 个元素。

# %% key="int_broken" lang="en"
stride = 480 * 576
pages = [7_766, 7_767, 7_768, 163_000]
offsets = torch.tensor(pages, dtype=torch.int32) * stride + (stride - 1)  # the last element of each page
for page, offset in zip(pages, offsets.tolist()):
    true = page * stride + stride - 1
    print(t("offset_line", page=page, true=true, offset=offset, verdict=t(f"offset_{true == offset}")))
print(t("share_line", share=100 * (2**31 // stride) / 163_000))

# %% key="int_broken" lang="zh"
stride = 480 * 576
pages = [7_766, 7_767, 7_768, 163_000]
offsets = torch.tensor(pages, dtype=torch.int32) * stride + (stride - 1)  # 每页的最后一个元素
for page, offset in zip(pages, offsets.tolist()):
    true = page * stride + stride - 1
    print(t("offset_line", page=page, true=true, offset=offset, verdict=t(f"offset_{true == offset}")))
print(t("share_line", share=100 * (2**31 // stride) / 163_000))

# %% key="int_call"
from minikv.plan import plan_memory

for model, gpu in (("Llama-3.1-8B", "H100 SXM 80GB"), ("Qwen3-0.6B", "H200 SXM")):
    budget = plan_memory(model, gpu=gpu)
    layer, layers = budget.spec.layers[0], len(budget.spec.layers)
    one = budget.max_tokens * layer.kv_heads * layer.k_dim
    print(t("elements_line", model=model, gpu=gpu, one=one / 2**31, all=2 * layers * one / 2**31))
print(t("slots_are", dtype=manager.slot_mapping("with adapter", 0, 40).dtype))

# %% [markdown] key="int_fix" lang="en"
# - **Cause**: the block table is 32 bits wide, so the product was, too. Only 4.8 % of that pool could be addressed; the rest was read somewhere else. The line of page 163,000 is the most dangerous one, because it wraps to a *positive* number, which raises nothing.
# - **Fix**: make the page number 64 bits wide before you multiply it.
# - **Property**: *the offset of the pool's last element, as the kernel computes it, is the one that Python computes*. One test with the last page of the largest pool is enough. It needs no memory, only the arithmetic. ([Lesson 10](10_kernels.ipynb).)
# %% [markdown] key="int_fix" lang="zh" src="c5b679d8"
# - **原因**：块表是 32 位的，乘积也就成了 32 位。那个块池只有 4.8% 能正确寻址，其余都读到了别处。第一个单元格里最危险的是 163,000 那一行，因为它绕回成**正数**，什么错也不报。
# - **修复**：先把页号扩成 64 位再乘。
# - **性质**：*块池最后一个元素的偏移量，kernel 算的和 Python 算的一样*。拿最大的块池的最后一页测一次就够；而且不占内存，只做算术。（[第 10 课](10_kernels.ipynb)）

# %% [markdown] key="mask_seen" lang="en"
# ## Exhibit 10: A mask for keys that are gone
#
# - **Seen**: a model with eviction writes "- - - - - -" as soon as it evicts. [VeloxQuant-MLX #370](https://github.com/rajveer43/VeloxQuant-MLX/issues/370): the prompt's keys were thinned out *before* its own attention, which then used the mask "causal"
# - **Here**: that rule in our own lines, with 8 queries and 5 keys; then torch as it is installed, whose `is_causal` counts from the other corner.
# %% [markdown] key="mask_seen" lang="zh" src="8d027569"
# ## 展品 10：给已经不在的 key 配掩码
#
# - **现象**：带淘汰的模型一开始淘汰，就只输出“- - - - - -”。[VeloxQuant-MLX #370](https://github.com/rajveer43/VeloxQuant-MLX/issues/370)：提示词的 key 在它自己的注意力**之前**就被删去一部分，而注意力用的掩码还是“causal”
# - **这里**：先是我们自己写的这条规则，8 个 query、5 个 key；然后是安装好的 torch，它的 `is_causal` 从另一个角算起。

# %% key="mask_broken" lang="en"
kept, places = torch.tensor([0, 1, 5, 6, 7]), torch.arange(8)
true = kept[None, :] <= places[:, None]  # a query sees what stands before it, and itself
lower = torch.ones(8, 5, dtype=torch.bool).tril(5 - 8)  # "causal", counted from the lower right corner
upper = torch.ones(8, 5, dtype=torch.bool).tril()  # and from the upper left
for name, mask in (("lower", lower), ("upper", upper)):
    hidden, future = (true & ~mask).sum().item(), (mask & ~true).sum().item()
    blind = (~mask.any(1)).sum().item()
    print(t("mask_line", name=t(name), hidden=hidden, future=future, blind=blind))

attend = torch.nn.functional.scaled_dot_product_attention
weights = attend(torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 5, 4), torch.eye(5)[None, None], is_causal=True)
print(t("decode_line", weights=weights.flatten().tolist()))

# %% key="mask_broken" lang="zh"
kept, places = torch.tensor([0, 1, 5, 6, 7]), torch.arange(8)
true = kept[None, :] <= places[:, None]  # query 能看见它前面的，以及它自己
lower = torch.ones(8, 5, dtype=torch.bool).tril(5 - 8)  # “causal”，从右下角算起
upper = torch.ones(8, 5, dtype=torch.bool).tril()  # 以及从左上角算起
for name, mask in (("lower", lower), ("upper", upper)):
    hidden, future = (true & ~mask).sum().item(), (mask & ~true).sum().item()
    blind = (~mask.any(1)).sum().item()
    print(t("mask_line", name=t(name), hidden=hidden, future=future, blind=blind))

attend = torch.nn.functional.scaled_dot_product_attention
weights = attend(torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 5, 4), torch.eye(5)[None, None], is_causal=True)
print(t("decode_line", weights=weights.flatten().tolist()))

# %% key="mask_call"
from minikv.eviction import install_kv_eviction
from minikv.models import load

model = load("tiny-gqa", device="cpu").model
prompt = torch.arange(96)[None] % 190
with torch.no_grad():
    full = model(prompt).logits
    with install_kv_eviction(model, policy="streaming", n_sink=4, budget=0, n_recent=12) as eviction:
        forgetting = model(prompt)
kept = forgetting.past_key_values.layers[0].keys.shape[2]
print(t("prefill_line", kept=kept, tokens=prompt.shape[1], gap=(forgetting.logits - full).abs().max().item()))

# %% [markdown] key="mask_fix" lang="en"
# - **Cause**: "causal" speaks of positions, and a triangle speaks of places in a tensor. They agree only while no key is missing. And two libraries put the triangle into two corners: torch counts from the upper left, so its one query sees only the first of five keys.
# - **Fix**: attend first, evict afterwards. Where keys are gone, make the mask from their positions.
# - **Property**: *a cache that drops tokens gives what a full cache gives if those tokens are masked*. In a prefill nothing is dropped before its attention, so there the logits are the same, as the second cell shows. ([Lesson 14](14_what_to_forget.ipynb).)
# %% [markdown] key="mask_fix" lang="zh" src="66da16a5"
# - **原因**：“causal”说的是位置，三角形说的是张量里的下标。只有一个 key 都不缺时两者才一致。况且两个库还把三角形放在不同的角上：torch 从左上角算起，所以唯一的 query 只看得到五个 key 中的第一个。
# - **修复**：先做注意力，再淘汰；key 有缺的地方，按它们的位置来做掩码。
# - **性质**：*丢掉一些 token 的缓存，与把这些 token 掩住的完整缓存，结果相同*。预填充时，注意力算完之前什么也没丢，所以 logits 相同，第二个单元格显示的就是这一点。（[第 14 课](14_what_to_forget.ipynb)）

# %% [markdown] key="break" lang="en"
# ## Break it
#
# Now make a bug of your own, and see which property notices it.
# The pool below forgets to count a second holder.
# Two properties watch it while sequences come and go at random: the sum (free and held blocks make the pool), and the formula from the beginning.
# %% [markdown] key="break" lang="zh" src="cd84b4df"
# ## 弄坏它
#
# 现在自己造一个 bug，看看哪条性质能发现它。
# 下面的块池忘了给第二个持有者计数。
# 序列随机来去，有两条性质在检查它：一条是求和（空闲的加上被持有的，等于整个块池），一条是开头的公式。

# %% key="break_it" lang="en"
import random


class ForgetfulPool(BlockPool):
    def share(self, blocks):
        self._check_held(blocks)  # and no count goes up


def steps_until_noticed(rule, seed, steps=60):
    manager, rng = BlockManager(num_blocks=24, block_size=4), random.Random(seed)
    manager.pools[0].__class__ = ForgetfulPool
    for step in range(steps):
        names = manager.sequences()
        try:
            if names and rng.random() < 0.3:
                manager.fork(rng.choice(names), step)
            elif names and rng.random() < 0.4:
                manager.free(rng.choice(names))
            else:
                manager.allocate(step, [rng.randrange(99) for _ in range(rng.randint(2, 20))])
        except OutOfBlocksError:
            continue
        except MiniKVError:
            return step, True  # an operation fell over
        if not rule(manager):
            return step, False
    return None


def sum_is_right(manager):
    pool = manager.stats().pools[0]
    return pool.free + pool.used == pool.total


def books_are_right(manager):
    try:
        manager.check_invariants()
    except BrokenInvariantError:
        return False
    return True


for rule in (sum_is_right, books_are_right):
    runs = [steps_until_noticed(rule, seed) for seed in range(100)]
    noticed = [run[0] for run in runs if run and not run[1]]
    fell = sum(bool(run and run[1]) for run in runs)
    when = t("after", mean=sum(noticed) / len(noticed)) if noticed else ""
    print(t("noticed_line", name=rule.__name__, noticed=len(noticed), when=when, fell=fell))

# %% key="break_it" lang="zh"
import random


class ForgetfulPool(BlockPool):
    def share(self, blocks):
        self._check_held(blocks)  # 计数却没有增加


def steps_until_noticed(rule, seed, steps=60):
    manager, rng = BlockManager(num_blocks=24, block_size=4), random.Random(seed)
    manager.pools[0].__class__ = ForgetfulPool
    for step in range(steps):
        names = manager.sequences()
        try:
            if names and rng.random() < 0.3:
                manager.fork(rng.choice(names), step)
            elif names and rng.random() < 0.4:
                manager.free(rng.choice(names))
            else:
                manager.allocate(step, [rng.randrange(99) for _ in range(rng.randint(2, 20))])
        except OutOfBlocksError:
            continue
        except MiniKVError:
            return step, True  # 某个操作先出了错
        if not rule(manager):
            return step, False
    return None


def sum_is_right(manager):
    pool = manager.stats().pools[0]
    return pool.free + pool.used == pool.total


def books_are_right(manager):
    try:
        manager.check_invariants()
    except BrokenInvariantError:
        return False
    return True


for rule in (sum_is_right, books_are_right):
    runs = [steps_until_noticed(rule, seed) for seed in range(100)]
    noticed = [run[0] for run in runs if run and not run[1]]
    fell = sum(bool(run and run[1]) for run in runs)
    when = t("after", mean=sum(noticed) / len(noticed)) if noticed else ""
    print(t("noticed_line", name=rule.__name__, noticed=len(noticed), when=when, fell=fell))

# %% [markdown] key="break_means" lang="en"
# The sum is right all the time, although the books are wrong.
# What the sum does not see shows up later, when some other operation fails.
# Most of these bugs were reported that way: by a line that had nothing to do with the cause.
#
# Change `share` into something else that is wrong, and try again.
# %% [markdown] key="break_means" lang="zh" src="68dde889"
# 求和始终没错，账却是错的。
# 求和看不见的错误，要到后面某个不相干的操作失败时才显现。
# 这些 bug 大多就是这样被报告的：报错的那一行，和原因毫无关系。
#
# 把 `share` 换成别的错法，再试一次。

# %% [markdown] key="catch" lang="en"
# ## The ten properties
#
# | property | exhibits that it would have caught |
# |---|---|
# | what is cached is shorter than the prompt | 1 |
# | what is cached and what is computed add up to the sequence | 2 |
# | a reference count is the number of tables that hold the block | 3, 4 |
# | an operation that raises has changed nothing | 4 |
# | while there is work, every step computes something | 1, 5 |
# | equal names only for equal parts | 6 |
# | the pool is never larger than what is free | 7 |
# | every rank has whole heads, every head is on some rank | 8 |
# | the kernel's offset is the one that Python computes | 9 |
# | dropping tokens equals masking them | 10 |
#
# None of them mentions the bug.
# You can write each before the code, as a loop over random cases with one `assert` in it.
# %% [markdown] key="catch" lang="zh" src="2375a379"
# ## 十条性质
#
# | 性质 | 能发现的展品 |
# |---|---|
# | 命中的长度小于提示词的长度 | 1 |
# | 命中的加上要算的，正好是整条序列 | 2 |
# | 引用计数等于持有这个块的块表数 | 3、4 |
# | 抛出异常的操作，什么也没有改变 | 4 |
# | 只要还有请求没完成，每一步都会算出一些 token | 1、5 |
# | 每一部分都相同，名字才相同 | 6 |
# | 块池永远不大于空闲显存 | 7 |
# | 每个 rank 的头数都是整数，每个头都在某个 rank 上 | 8 |
# | kernel 算的偏移量，和 Python 算的一样 | 9 |
# | 丢掉 token 等于把它们掩住 | 10 |
#
# 没有一条提到 bug 本身。
# 每一条都可以写在代码之前，形式都是对随机用例的一个循环，里面一句 `assert`。

# %% [markdown] key="explain_text" lang="en"
# ## Recap
#
# A property is true of every run; ten of them would have found the ten bugs here, and none names a bug.
# One formula, reference count = number of tables that hold the block, is broken by exhibits 3 and 4, and it noticed the forgetful pool in 100 of 100 runs, after 3.5 steps on average.
# A sum over the pool proves little: it stayed right in all 100 runs of a pool that forgot to count a holder.
# An exception that you remove does not remove its cause. It only makes the bug silent.
#
# ## Check yourself
#
# Answer in your own words, then reveal the model answer: `explain("why_silence", reveal=True)`.
# %% [markdown] key="explain_text" lang="zh" src="b23f2d94"
# ## 本课小结
#
# 性质对每一次运行都成立；十条性质就能发现这里的十个 bug，而没有一条提到 bug 本身。
# 展品 3 和展品 4 违反的都是“引用计数等于持有这个块的块表数”这个公式；忘了计数的块池跑 100 次，它 100 次都能发现，平均 3.5 步之后。
# 只对块池求和说明不了什么：忘了给持有者计数的块池跑了 100 次，求和次次都对。
# 把异常去掉，原因并没有去掉，只是 bug 不再出声。
#
# ## 自我检查
#
# 先用自己的话回答，再看参考答案：`explain("why_silence", reveal=True)`。

# %% key="explain_1"
explain("why_not_the_sum")

# %% key="explain_2"
explain("why_nothing_changes")

# %% key="explain_3"
explain("why_silence")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# In the exercise notebook you write three of the properties: B.1 finds every block that is booked wrongly, B.2 plans a prefill that neither repeats nor skips a token, B.3 gives names that never collide.
# %% [markdown] key="exercises" lang="zh" src="ed395705"
# ## 练习
#
# 练习 notebook 里由你来写其中三条：B.1 找出每一个记错账的块，B.2 安排一次不重不漏的预填充，B.3 起永不相撞的名字。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | it crashes far away from anything that I changed | `manager.check_invariants()` after every operation: the first that fails is yours |
# | the text is wrong and nothing raises | the same prompt with an empty cache: `BlockManager.match(prompt).num_tokens` says what is reused |
# | only long runs, only under load | make the pool small: with `num_blocks=4` the load of an hour is there in the tenth step |
# %% [markdown] key="stuck" lang="zh" src="a78038ad"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 崩溃的地方离我改的代码很远 | 每次操作后都调用 `manager.check_invariants()`：第一次失败的地方就是原因 |
# | 文本不对，却不报错 | 用空缓存再跑同一个提示词；复用了多少，看 `BlockManager.match(prompt).num_tokens` |
# | 只有跑久了、负载高了才出错 | 把块池改小：`num_blocks=4` 时，跑一小时才有的负载第十步就来了 |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# The lesson beside each property says why it holds, and lets you build code that obeys it.
#
# Do you know a bug that belongs here? It needs an address, ten lines that reproduce it on a CPU, and the property that would have caught it.
# %% [markdown] key="next" lang="zh" src="62c7f316"
# ## 下一篇
#
# 每条性质旁边标的课，会讲它为什么成立，并让你写出遵守它的代码。
#
# 你知道哪个 bug 也该收进来吗？它需要一个出处、十行能在 CPU 上重现它的代码，还有一条本可以发现它的性质。
