# %% [meta]
# number = "B"
# slug = "bug_museum"
# needs = ["09", "11b"]
# rooms = ["blocks", "plan", "engine.core.scheduler"]
# [title]
# en = "Which property would have caught it?"
# zh = "哪条性质能抓住它？"
# [t4]
# en = "Bookkeeping and arithmetic on the CPU, and one small model on the T4: it shows the same numbers."
# zh = "都是 CPU 上的记账和算术，只有一个小模型在 T4 上运行，看到的数字一样。"
# [paper]
# en = "B.2"
# zh = "B.2"

# %% [markdown] key="question" lang="en"
# ## The question
#
# An engine stops with "Double free!". You replace the exception by `return 0`, and the program runs. Is the bug gone?
#
# No. The exception had told the truth: a sequence gave back a block that it no longer held, and another sequence was still reading that block. Without the exception the text is wrong from then on, and no error is raised.
#
# So how could you have found the cause, before a user met the bug?
#
# This appendix is a museum of such bugs: ten bugs from six projects, each with a link to its report.
# They are bugs of good engines, found by careful people, and more than half of them are fixed. We don't look at them to feel clever.
# For each bug we ask: **which sentence about every run would have found it, if a test had checked that sentence?**
# Such a sentence is called a **property**. It holds in every run, not only in one example.
#
# After this appendix you can
#
# - **reproduce** ten bugs of inference engines in a few lines, on a CPU;
# - **name** for each the property that it breaks;
# - **write** such a property as a test: a loop over random cases with one `assert`.
#
# You need blocks and reference counts ([lesson 09](09_pages_and_blocks.ipynb)) and preemption ([lesson 11b](11b_when_blocks_run_out.ipynb)).
# %% [markdown] key="question" lang="zh" src="3785ff12"
# ## 问题
#
# 一个引擎报“Double free!”（重复释放）后停下。你把抛异常那一行改成 `return 0`，程序就能跑了。bug 没有了吗？
#
# 还在。这个异常说的是实情，某条序列把自己已经不持有的块还了回去，而另一条序列还在读这个块。去掉异常之后，文本从那时起就是错的，只是不再报错。
#
# 那么，怎样才能赶在用户之前找到原因？
#
# 本附录是一座收藏这类 bug 的博物馆，有十件展品，来自六个项目，件件有出处。
# 它们都是好引擎里的 bug，由细心的工程师发现，一多半已经修好。看它们不是为了显得高明。
# 对每一件，我们都问同一个问题：**如果用测试来检查，哪一句话能发现这个 bug？**
# 这样的句子叫**性质（property）**，它对每一次运行都成立，而不只是对某个例子成立。例如“任何提示词，命中的长度都小于提示词的长度”。
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
# - **Seen**: what a user saw, and the report
# - **Here**: what you run, either the faulty rule in a few lines of our own or a library as it is installed
# - cells that reproduce the bug, and a cell that finds it with a call of the package
# - **Cause**, **Fix**, **Property**
#
# Before you start, predict two numbers.
# %% [markdown] key="tour" lang="zh" src="c32d68bb"
# 每件展品都由同样几部分组成：
#
# - **现象**：用户看到了什么，在哪里报告的
# - **这里**：运行的是我们自己用几行写出的错误规则，还是安装好的库本身
# - 用几个单元格重现它，再用本包的调用找到它
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
# A pool of blocks keeps books: which sequences hold which block, and which blocks are free. The books are right if this holds for every block $b$ of the pool:
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
# `check_holders` checks this formula, and `BlockManager.check_invariants()` calls it for you. Exhibits 3 and 4 break the formula, and so will your own bug at the end.
# %% [markdown] key="formula" lang="zh" src="9ac4a016"
# ## 公式
#
# 块池要记账，记的是哪些序列持有哪个块，哪些块空闲。账对不对，要看块池里的每个块 $b$ 是不是都满足：
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
# `check_holders` 检查这个公式是否成立，`BlockManager.check_invariants()` 会替你调用它。展品 3、展品 4，以及最后你自己造的 bug，违反的都是这个公式。

# %% [markdown] key="hit_seen" lang="en"
# ## Exhibit 1: Everything is found, and no query is left
#
# - **Seen**: the same prompt was submitted 513 times, exactly one block long, and the engine stopped with `CUDA error: invalid configuration argument`. [nano-vllm #114](https://github.com/GeeeekExplorer/nano-vllm/issues/114), reported again in [#144](https://github.com/GeeeekExplorer/nano-vllm/issues/144)
# - **Here**: the faulty rule in our own lines. It counts every full block of the prompt that is found in the cache.
# %% [markdown] key="hit_seen" lang="zh" src="a3d3cfb6"
# ## 展品 1：全部命中，一个 query 也没剩下
#
# - **现象**：同一个提示词提交 513 次，长度正好一个块，报 `CUDA error: invalid configuration argument`。[nano-vllm #114](https://github.com/GeeeekExplorer/nano-vllm/issues/114)，后来 [#144](https://github.com/GeeeekExplorer/nano-vllm/issues/144) 又遇到
# - **这里**：我们自己写的错误规则，它把提示词在缓存里找到的满块都算作命中。

# %% key="hit_pool"
from minikv.blocks import BlockManager

size = 256
prompt = list(range(2 * size))
manager = BlockManager(num_blocks=8, block_size=size)
manager.allocate("first", prompt)
manager.commit("first")

# %% key="hit_broken" lang="en"
import torch
from minikv.course import Table

hit = manager.match([*prompt, 0]).num_tokens  # asked with one token more, it finds every block of the prompt
logits = torch.zeros(len(prompt) - hit, 1000)  # [queries, vocabulary]
try:
    token = logits[-1].argmax()
except IndexError as error:
    token = type(error).__name__
Table(["tokens", "found in the cache", "queries left", "next token"], [(len(prompt), hit, len(logits), token)])

# %% key="hit_broken" lang="zh"
import torch
from minikv.course import Table

hit = manager.match([*prompt, 0]).num_tokens  # 多问一个 token，就能找到提示词的每一块
logits = torch.zeros(len(prompt) - hit, 1000)  # [query 数, 词表]
try:
    token = logits[-1].argmax()
except IndexError as error:
    token = type(error).__name__
Table(["token 数", "缓存里找到", "剩下的 query", "下一个 token"], [(len(prompt), hit, len(logits), token)])

# %% key="hit_call" lang="en"
rows = []
for num_tokens in (size - 1, size, size + 1, 2 * size):
    cached = manager.match(prompt[:num_tokens]).num_tokens
    rows.append((num_tokens, cached, num_tokens - cached))
Table(["tokens of the prompt", "found by match", "left to compute"], rows)

# %% key="hit_call" lang="zh"
rows = []
for num_tokens in (size - 1, size, size + 1, 2 * size):
    cached = manager.match(prompt[:num_tokens]).num_tokens
    rows.append((num_tokens, cached, num_tokens - cached))
Table(["提示词的 token", "match 命中", "还要算"], rows)

# %% [markdown] key="hit_fix" lang="en"
# - **Cause**: K and V of the last token are cached, but the model's output after it is not. Without a query there is no next token.
# - **Fix**: leave at least one token to compute. `match` leaves the whole last block. If only the last token were computed, its K and V would be written into a block that other sequences hold.
# - **Property**: *for every prompt, the part found in the cache is shorter than the prompt*.
# %% [markdown] key="hit_fix" lang="zh" src="6741209c"
# - **原因**：最后一个 token 的 K 和 V 在缓存里，但模型在它之后会输出什么，缓存里没有。没有 query，就没有下一个 token。
# - **修复**：至少留一个 token 来计算。`match` 留下整个最后一块，这样就不会写入别的序列持有的块；如果只重算最后一个 token，就会写进去。
# - **性质**：*对任何提示词，命中的长度都小于提示词的长度*。

# %% [markdown] key="stale_seen" lang="en"
# ## Exhibit 2: A count that is older than the cache
#
# - **Seen**: `IndexError` under load, after a preemption. A sequence of 465 tokens got the range 256 to 721 to compute. [nano-vllm #210](https://github.com/GeeeekExplorer/nano-vllm/pull/210). In vLLM the same mistake raised nothing and gave wrong text: [vLLM #18957](https://github.com/vllm-project/vllm/pull/18957)
# - **Here**: the faulty rule in our own lines. It counts the tokens to compute first and asks the cache afterwards. The second cell shows the other direction: a hit is remembered, and the cache is not asked again.
# %% [markdown] key="stale_seen" lang="zh" src="6a14b70d"
# ## 展品 2：比缓存还旧的计数
#
# - **现象**：高负载下，抢占之后报 `IndexError`：一条 465 个 token 的序列，要算的范围竟是 256 到 721。[nano-vllm #210](https://github.com/GeeeekExplorer/nano-vllm/pull/210)。同样的错误在 vLLM 里不报错，而是输出错误的文本：[vLLM #18957](https://github.com/vllm-project/vllm/pull/18957)
# - **这里**：我们自己写的错误规则，它先数要算多少，再去查缓存。第二个单元格则反过来，记住了一次命中，却没有再查一遍。

# %% key="stale_broken" lang="en"
text = list(range(465))
manager = BlockManager(num_blocks=4, block_size=256)
manager.allocate("S", text)
manager.commit("S")
manager.free("S")  # preempted: it holds nothing, but its full block can still be found

to_compute = len(text) - 0  # counted now, while the sequence has nothing cached
start = manager.allocate("S", text).num_cached
Table(["the range begins at", "and ends at", "tokens of the sequence"], [(start, start + to_compute, len(text))])

# %% key="stale_broken" lang="zh"
text = list(range(465))
manager = BlockManager(num_blocks=4, block_size=256)
manager.allocate("S", text)
manager.commit("S")
manager.free("S")  # 被抢占：它不再持有任何块，但那个满块还找得到

to_compute = len(text) - 0  # 此刻来数，序列还没有任何命中
start = manager.allocate("S", text).num_cached
Table(["范围的起点", "范围的终点", "序列的 token 数"], [(start, start + to_compute, len(text))])

# %% key="stale_other" lang="en"
manager.free("S")
remembered = manager.match(text).num_tokens  # a hit is remembered ...
manager.allocate("other", range(1000, 1900))  # ... the block is evicted, and the cache is not asked again
manager.free("other")
start = manager.allocate("S", text).num_cached
Table(["found, as remembered", "found in truth", "tokens never computed"], [(remembered, start, remembered - start)])

# %% key="stale_other" lang="zh"
manager.free("S")
remembered = manager.match(text).num_tokens  # 记住了一次命中……
manager.allocate("other", range(1000, 1900))  # ……块被淘汰，却没有再查一遍
manager.free("other")
start = manager.allocate("S", text).num_cached
Table(["记得的命中", "实际的命中", "始终没有计算的 token"], [(remembered, start, remembered - start)])

# %% key="stale_call"
from minikv.errors import MiniKVError

try:
    manager.slot_mapping("S", 256, 256 + to_compute)
except MiniKVError as error:
    print(t(error))

# %% key="stale_count" lang="en"
len(manager.slot_mapping("S", start, len(text)))  # counted after allocate

# %% key="stale_count" lang="zh"
len(manager.slot_mapping("S", start, len(text)))  # 在 allocate 之后数

# %% [markdown] key="stale_fix" lang="en"
# - **Cause**: two numbers have to agree, but they were taken at two moments, and the cache changed in between.
# - **Fix**: count after `allocate`, from what it returns. `allocate` looks blocks up and takes them in one step, so nothing can change in between.
# - **Property**: *the cached tokens and the computed tokens add up to the sequence, in the step in which both numbers are used*. (Exercise B.2.)
#
# The second table is the worse case: 256 tokens are never computed, and no index is out of range.
# %% [markdown] key="stale_fix" lang="zh" src="ea18d5d5"
# - **原因**：两个数必须相配，却取自两个时刻，中间缓存变了。
# - **修复**：在 `allocate` 之后、用它的返回值来数。它查找和占用在一步里完成，中间不会再有变化。
# - **性质**：*在同一步里，命中的加上要算的，正好是整条序列*。（练习 B.2）
#
# 第二张表的情形更糟，有 256 个 token 始终没有计算，却没有任何下标越界。

# %% [markdown] key="double_seen" lang="en"
# ## Exhibit 3: A block given back by a sequence that no longer holds it
#
# - **Seen**: `ValueError: Double free!` with beam search or several samples, once the text is longer than the model's sliding window. [vLLM #1556](https://github.com/vllm-project/vllm/issues/1556), found in [#3347](https://github.com/vllm-project/vllm/pull/3347). The `return 0` of the first screen is a workaround from [#1584](https://github.com/vllm-project/vllm/issues/1584)
# - **Here**: the faulty rule in our own lines, on our pool. When a text is longer than the window, its table uses the old blocks again, in a ring. And a sequence gives back every block that its table names.
# %% [markdown] key="double_seen" lang="zh" src="5122dcbb"
# ## 展品 3：重复释放：早已不持有的块又还了一次
#
# - **现象**：束搜索或多次采样时，文本一旦超过模型的滑动窗口，就报 `ValueError: Double free!`。[vLLM #1556](https://github.com/vllm-project/vllm/issues/1556)，原因见 [#3347](https://github.com/vllm-project/vllm/pull/3347)。开头说的 `return 0`，是 [#1584](https://github.com/vllm-project/vllm/issues/1584) 里给出的偏方
# - **这里**：我们自己写的错误规则，用的是本包的块池。超出窗口后，块表循环使用旧块，同一个块号会再次出现；序列结束时，表里写了哪些块就还哪些块。

# %% key="double_write" lang="en"
from minikv.blocks import BlockPool

window = 2  # blocks


def write_on():
    pool = BlockPool(num_blocks=6, block_size=16)
    parent = pool.allocate(window) * 2  # the window has gone round once: the table says 0, 1, 0, 1
    child = list(parent)
    pool.share(sorted(set(child)))
    pool.free([child[-window]])  # the child may not write into block 0, which is shared: it frees the block
    child += pool.allocate(1)  # and takes a new one
    return pool, parent, child

# %% key="double_write" lang="zh"
from minikv.blocks import BlockPool

window = 2  # 块


def write_on():
    pool = BlockPool(num_blocks=6, block_size=16)
    parent = pool.allocate(window) * 2  # 窗口已经转过一圈：块表是 0, 1, 0, 1
    child = list(parent)
    pool.share(sorted(set(child)))
    pool.free([child[-window]])  # 块 0 是共享的，子序列不能往里写：放掉它
    child += pool.allocate(1)  # 另取一块
    return pool, parent, child

# %% key="double_broken" lang="en"
def row(when):
    return when, *(pool.ref_count(block) for block in range(3))


pool, parent, child = write_on()
rows = [row("the child has written")]
pool.free(sorted(set(child)))  # the child ends: its table still names block 0
rows.append(row("the child has ended"))
notes = [f"tables: parent {parent}, child {child}", f"the next sequence gets block {pool.allocate(1)[0]}"]
Table(["reference counts when", "block 0", "block 1", "block 2"], rows, lines=notes)

# %% key="double_broken" lang="zh"
def row(when):
    return when, *(pool.ref_count(block) for block in range(3))


pool, parent, child = write_on()
rows = [row("子序列写入后")]
pool.free(sorted(set(child)))  # 子序列结束：它的块表里还写着块 0
rows.append(row("子序列结束后"))
notes = [f"块表：父序列 {parent}，子序列 {child}", f"下一条序列拿到块 {pool.allocate(1)[0]}"]
Table(["引用计数", "块 0", "块 1", "块 2"], rows, lines=notes)

# %% key="double_call"
import re

from minikv.blocks.invariants import check_holders
from minikv.errors import BrokenInvariantError


def books(pools, holders):
    try:
        check_holders(pools, [], holders)
        return t("books_right")
    except BrokenInvariantError as error:
        block, group, counted, holders = re.findall(r"\d+", error.values["what"])
        return t("books_wrong", block=block, group=group, counted=counted, holders=holders)

# %% key="double_found" lang="en"
def held(*tables):
    return [(0, block) for table in tables for block in set(table[-window:])]


rows = []
for named, given_back in ((5, "all blocks that its table names"), (window, "the blocks that the window still holds")):
    pool, parent, child = write_on()
    before = books([pool], held(parent, child))
    pool.free(sorted(set(child[-named:])))
    rows.append((given_back, before, books([pool], held(parent))))
Table(["the child gives back", "books before it ends", "books afterwards"], rows)

# %% key="double_found" lang="zh"
def held(*tables):
    return [(0, block) for table in tables for block in set(table[-window:])]


rows = []
for named, given_back in ((5, "块表里写的全部块"), (window, "窗口仍持有的块")):
    pool, parent, child = write_on()
    before = books([pool], held(parent, child))
    pool.free(sorted(set(child[-named:])))
    rows.append((given_back, before, books([pool], held(parent))))
Table(["子序列归还", "结束之前的账", "结束之后的账"], rows)

# %% [markdown] key="double_fix" lang="en"
# - **Cause**: a block table should name the blocks that a sequence holds, and here it named more.
# - **Fix**: give back only the blocks that are still held, the last ones of the table. Our own tables cannot get this wrong, because a place that the window has left holds the null block.
# - **Property**: *the reference count of a block is the number of tables that hold it* (the formula above). The property breaks when the child ends. The double free comes later, when the parent ends. In between, block 0 belongs to another sequence, and the parent reads that sequence's K and V.
# %% [markdown] key="double_fix" lang="zh" src="cd49ddb6"
# - **原因**：块表记录一条序列持有哪些块，而这里多写了几个。
# - **修复**：只还仍然持有的，即表里最后几块。本包的块表不会出这种错，因为窗口已经离开的位置上放的是空块（null block）。
# - **性质**：*一个块的引用计数，等于持有它的块表数*（上面的公式）。子序列一结束它就被破坏。重复释放要等父序列结束才发生；在此期间块 0 已经属于另一条序列，父序列读到的是那条序列的 K 和 V。

# %% [markdown] key="leak_seen" lang="en"
# ## Exhibit 4: A refusal that keeps something
#
# - **Seen**: an idle server counts its slots and stops with `memory leak detected! ... mamba_available_size=315, mamba_evictable_size=138`, where there should be 454. [SGLang #16067](https://github.com/sgl-project/sglang/pull/16067)
# - **Here**: the faulty rule in our own lines, on two of our pools. A request to a hybrid model needs a state slot and token blocks. The slot is taken first, and then the blocks are refused.
# %% [markdown] key="leak_seen" lang="zh" src="4985c530"
# ## 展品 4：请求被拒绝，占用的却没有还干净
#
# - **现象**：服务器判断自己空闲，清点槽位后退出：`memory leak detected! ... mamba_available_size=315, mamba_evictable_size=138`，总数是 454。[SGLang #16067](https://github.com/sgl-project/sglang/pull/16067)
# - **这里**：我们自己写的错误规则，用本包的两个块池。混合模型既要一个状态槽位，又要 token 块；先拿到了槽位，接着块却不够。

# %% key="leak_sum" lang="en"
reported = [("tokens", 6_016, 390_685, 396_701), ("states", 315, 138, 454)]
rows = [(what, free, cached, total, total - free - cached) for what, free, cached, total in reported]
Table(["slots of the report", "available", "evictable", "in all", "missing"], rows)

# %% key="leak_sum" lang="zh"
reported = [("token 槽位", 6_016, 390_685, 396_701), ("状态槽位", 315, 138, 454)]
rows = [(what, free, cached, total, total - free - cached) for what, free, cached, total in reported]
Table(["报告里的槽位", "available（空闲）", "evictable（可淘汰）", "总数", "少了"], rows)

# %% key="leak_broken" lang="en"
from minikv.errors import OutOfBlocksError

tokens, states, rows = BlockPool(num_blocks=4, block_size=16), BlockPool(num_blocks=3, block_size=16), []


def admit(blocks):
    slot = states.allocate(1)
    return slot, tokens.allocate(blocks)  # raises: and what gives the slot back?


for attempt in range(3):
    try:
        admit(5)
    except OutOfBlocksError as error:
        rows.append((error.values["asked"], error.values["free"], states.num_free))

# %% key="leak_broken" lang="zh"
from minikv.errors import OutOfBlocksError

tokens, states, rows = BlockPool(num_blocks=4, block_size=16), BlockPool(num_blocks=3, block_size=16), []


def admit(blocks):
    slot = states.allocate(1)
    return slot, tokens.allocate(blocks)  # 抛出异常：那么槽位怎么还回去？


for attempt in range(3):
    try:
        admit(5)
    except OutOfBlocksError as error:
        rows.append((error.values["asked"], error.values["free"], states.num_free))

# %% key="leak_refused" lang="en"
Table(["blocks asked for", "blocks free", "state slots free after the refusal"], rows)

# %% key="leak_refused" lang="zh"
Table(["申请的块", "空闲的块", "拒绝之后空闲的状态槽位"], rows)

# %% key="leak_call" lang="en"
from minikv.blocks import KVCacheGroup

hybrid = BlockManager([KVCacheGroup(4), KVCacheGroup(3, window=16)], block_size=16)
hybrid.allocate("one", range(32))
before = hybrid.stats()
try:
    hybrid.allocate("two", range(100, 148))
except OutOfBlocksError:
    same = hybrid.stats() == before
hybrid.check_invariants()
Table(["books of the two pools", "a BlockManager after a refusal is as before"], [(books([tokens, states], []), same)])

# %% key="leak_call" lang="zh"
from minikv.blocks import KVCacheGroup

hybrid = BlockManager([KVCacheGroup(4), KVCacheGroup(3, window=16)], block_size=16)
hybrid.allocate("one", range(32))
before = hybrid.stats()
try:
    hybrid.allocate("two", range(100, 148))
except OutOfBlocksError:
    same = hybrid.stats() == before
hybrid.check_invariants()
Table(["上面两个块池的账", "BlockManager 拒绝之后与之前相同"], [(books([tokens, states], []), same)])

# %% [markdown] key="leak_fix" lang="en"
# - **Cause**: the operation has two steps, and the second may fail.
# - **Fix**: check everything first, then take everything. `BlockManager` counts what every KV cache group needs before it touches any pool.
# - **Property**: *an operation that raises has changed nothing*. The test is one line: the states before and after are equal.
#
# SGLang's own check did its work. It adds up the free, cached and protected slots, and one was missing. But it runs only when the server is idle, while the property finds the leak at the first refusal.
# %% [markdown] key="leak_fix" lang="zh" src="6312d061"
# - **原因**：一个操作分两步，而第二步可能失败。
# - **修复**：先把需要的全部查清，再一次拿齐。`BlockManager` 会先数清每个 KV 缓存组各要多少，然后才动块池。
# - **性质**：*抛出异常的操作，什么也没有改变*。测试只要一行：前后状态相等。
#
# SGLang 自己的检查是有效的：把空闲的、缓存的、受保护的加起来，少了一个槽位。只是它要等服务器判断自己空闲时才运行，而这条性质在第一次拒绝时就能发现泄漏。

# %% [markdown] key="large_seen" lang="en"
# ## Exhibit 5: A request that preempts itself and waits forever
#
# - **Seen**: `AssertionError: scheduled_seqs`, and the whole engine stops. The prompt fills the cache, and the first new token needs one more block. [nano-vllm #274](https://github.com/GeeeekExplorer/nano-vllm/issues/274). The report proposes to wait and try again, and [#277](https://github.com/GeeeekExplorer/nano-vllm/pull/277) found that this hangs forever
# - **Here**: the faulty rule in our own lines. A sequence that lacks a block preempts another one, and the last sequence preempts itself.
# %% [markdown] key="large_seen" lang="zh" src="8afc4eeb"
# ## 展品 5：抢占了自己、永远等下去的请求
#
# - **现象**：`AssertionError: scheduled_seqs`，整个引擎退出：提示词占满缓存，第一个新 token 还要一个块。[nano-vllm #274](https://github.com/GeeeekExplorer/nano-vllm/issues/274)。报告里建议等一等再试，而 [#277](https://github.com/GeeeekExplorer/nano-vllm/pull/277) 发现这样会永远挂住
# - **这里**：我们自己写的错误规则：缺块的序列抢占别的序列，只剩自己时就抢占自己。

# %% key="large_broken" lang="en"
num_blocks, size, length, rows = 2, 4, 8, []
for step in range(4):
    needed = -(-length // size)
    scheduled = needed <= num_blocks
    rows.append((step, length, needed, num_blocks, scheduled))
    length += scheduled
Table(["step", "tokens", "blocks needed", "blocks of the pool", "scheduled"], rows)

# %% key="large_broken" lang="zh"
num_blocks, size, length, rows = 2, 4, 8, []
for step in range(4):
    needed = -(-length // size)
    scheduled = needed <= num_blocks
    rows.append((step, length, needed, num_blocks, scheduled))
    length += scheduled
Table(["步", "token 数", "需要的块", "块池的块", "排进这一步"], rows)

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
# - **Fix**: when a request arrives, refuse it if even the empty pool could not hold it, and give the numbers. Then the oldest request always fits when it has the pool to itself. (Here the limit is 9 tokens for 8 slots, because the last token is returned and never cached.)
# - **Property**: *while there is work, every step computes something*. `assert scheduled_seqs` states exactly that, but the scheduler has to make it true.
# %% [markdown] key="large_fix" lang="zh" src="849042f2"
# - **原因**：“现在不行”和“永远不行”得到了同样的处理。
# - **修复**：请求一到就检查，如果空的块池也装不下，就拒绝，并给出数字。此后最老的请求单独总能放下。（这里 8 个槽位，上限却是 9 个 token，因为最后一个 token 只返回，不进缓存。）
# - **性质**：*只要还有请求没完成，每一步都会算出一些 token*。`assert scheduled_seqs` 说的正是这句话，只是还得让它成立。

# %% [markdown] key="salt_seen" lang="en"
# ## Exhibit 6: An adapter with the name of a tenant
#
# - **Seen**: a request without an adapter gets the K and V that a LoRA adapter computed. [vLLM #44701](https://github.com/vllm-project/vllm/issues/44701), shown on an A100
# - **Here**: the faulty rule in our own lines. The adapter's name and the salt of the tenant (one customer of the server) go into one list, and if one of them is absent, the list doesn't show which.
# %% [markdown] key="salt_seen" lang="zh" src="a6608c82"
# ## 展品 6：与租户同名的适配器
#
# - **现象**：没有用适配器的请求，拿到了某个 LoRA 适配器算出的 K 和 V。[vLLM #44701](https://github.com/vllm-project/vllm/issues/44701)，报告者在 A100 上演示过
# - **这里**：我们自己写的错误规则，它把适配器名和租户（共用一台服务的不同客户）的盐值（salt）放进同一个列表，缺了其中一个时，看不出缺的是哪个。

# %% key="salt_broken" lang="en"
def one_list(adapter=None, tenant=None):
    return repr([name for name in (adapter, tenant) if name])


def two_places(adapter=None, tenant=None):
    return repr((adapter, tenant))


rules = one_list, two_places
Table(["rule", "adapter blue", "tenant blue"], [(rule.__name__, rule(adapter="blue"), rule(tenant="blue")) for rule in rules])

# %% key="salt_broken" lang="zh"
def one_list(adapter=None, tenant=None):
    return repr([name for name in (adapter, tenant) if name])


def two_places(adapter=None, tenant=None):
    return repr((adapter, tenant))


rules = one_list, two_places
Table(["规则", "适配器 blue", "租户 blue"], [(rule.__name__, rule(adapter="blue"), rule(tenant="blue")) for rule in rules])

# %% key="salt_call" lang="en"
prompt, rows = list(range(40)), []
for rule in rules:
    manager = BlockManager(num_blocks=8, block_size=16)
    manager.allocate("with adapter", prompt, salt=rule(adapter="blue"))
    manager.commit("with adapter")
    found = [manager.match(prompt, salt=salt).num_tokens for salt in (rule(tenant="blue"), rule(adapter="blue"))]
    rows.append((rule.__name__, *found))
Table(["rule", "tokens that tenant blue finds", "that adapter blue finds"], rows)

# %% key="salt_call" lang="zh"
prompt, rows = list(range(40)), []
for rule in rules:
    manager = BlockManager(num_blocks=8, block_size=16)
    manager.allocate("with adapter", prompt, salt=rule(adapter="blue"))
    manager.commit("with adapter")
    found = [manager.match(prompt, salt=salt).num_tokens for salt in (rule(tenant="blue"), rule(adapter="blue"))]
    rows.append((rule.__name__, *found))
Table(["规则", "租户 blue 命中的 token", "适配器 blue 命中的"], rows)

# %% [markdown] key="salt_fix" lang="en"
# - **Cause**: two kinds of names share one list.
# - **Fix**: give each kind a place of its own, and write something into a place that is empty.
# - **Property**: *two requests get the same name only if every part of it is the same*. Joining the parts with a separator breaks the property, too, because a name may contain the separator. (Exercise B.3. [Lesson 09](09_pages_and_blocks.ipynb) says why a digest is SHA-256, and why the tokens are compared as well.)
# %% [markdown] key="salt_fix" lang="zh" src="3a10d6a7"
# - **原因**：两类名字放进了同一个列表。
# - **修复**：各占一个位置，没有的位置也要写点什么。
# - **性质**：*两个请求的名字相同，当且仅当每一部分都相同*。用分隔符拼字符串同样会违反它，因为名字里可能就有分隔符。（练习 B.3。摘要为什么用 SHA-256，为什么还要比较 token，见[第 09 课](09_pages_and_blocks.ipynb)。）

# %% [markdown] key="others_seen" lang="en"
# ## Exhibit 7: Bytes of another process
#
# - **Seen**: a second program runs on the card, and the engine stops at `assert num_kvcache_blocks > 0`, because `total * 0.4 - used` is negative. [nanovllm-voxcpm #27](https://github.com/a710128/nanovllm-voxcpm/pull/27) wants to count the memory of this process alone
# - **Here**: the formula itself, with figures of our own: a card of 24 GiB, 40 % of it for us, weights of 4 GiB, 1 GiB of activations.
# %% [markdown] key="others_seen" lang="zh" src="c7d8b822"
# ## 展品 7：其他进程占用的显存
#
# - **现象**：显卡上还有另一个程序，引擎就停在 `assert num_kvcache_blocks > 0`，因为 `total * 0.4 - used` 成了负数。[nanovllm-voxcpm #27](https://github.com/a710128/nanovllm-voxcpm/pull/27) 主张只算本进程
# - **这里**：就是这个算式，数字是我们取的：24 GiB 的显卡，我们用 40%，权重 4 GiB，激活 1 GiB。

# %% key="others_broken" lang="en"
from minikv.plan.measured import MeasuredTerms
from minikv.units import GIB

measured = {}
for others in (1, 6, 12, 18):
    measured[others] = MeasuredTerms(24 * GIB, 0.4, used=(4 + others) * GIB, peak=5 * GIB, current=4 * GIB)
rows = [(others, f"{terms.available / GIB:.1f}", f"{terms.short_form / GIB:.1f}") for others, terms in measured.items()]
head = ["other processes, GiB", "pool with used, GiB", "pool without used, GiB"]
Table(head, rows, right=head)

# %% key="others_broken" lang="zh"
from minikv.plan.measured import MeasuredTerms
from minikv.units import GIB

measured = {}
for others in (1, 6, 12, 18):
    measured[others] = MeasuredTerms(24 * GIB, 0.4, used=(4 + others) * GIB, peak=5 * GIB, current=4 * GIB)
rows = [(others, f"{terms.available / GIB:.1f}", f"{terms.short_form / GIB:.1f}") for others, terms in measured.items()]
head = ["其他进程，GiB", "减 used 的块池，GiB", "不减 used 的块池，GiB"]
Table(head, rows, right=head)

# %% key="others_call" lang="en"
rows = []
for others, terms in measured.items():
    free, wanted = terms.total - terms.used - (terms.peak - terms.current), terms.short_form
    rows.append((others, *(f"{size / GIB:.1f}" for size in (free, wanted, min(free, wanted))), wanted <= free))
head = ["other processes, GiB", "free after activations, GiB", "pool without used, GiB", "pool at most, GiB"]
Table([*head, "there is enough"], rows, right=head)

# %% key="others_call" lang="zh"
rows = []
for others, terms in measured.items():
    free, wanted = terms.total - terms.used - (terms.peak - terms.current), terms.short_form
    rows.append((others, *(f"{size / GIB:.1f}" for size in (free, wanted, min(free, wanted))), wanted <= free))
head = ["其他进程，GiB", "扣除激活后的空闲，GiB", "不减 used 的块池，GiB", "块池至多，GiB"]
Table([*head, "够用"], rows, right=head)

# %% [markdown] key="others_fix" lang="en"
# - **Cause**: `utilization` can limit the whole card, which all processes share, or this process alone. The formula meant the first, the user the second.
# - **Fix**: say which one you mean. Without `used` you get the second meaning. Then the engine has to check that so much memory is free. When other processes take 18 GiB, the formula promises 4.6 GiB, and only 1 GiB is there.
# - **Property**: *the pool is never larger than what is free after the activations*. Both meanings need it. ([Lesson 08](08_allocate_kv_cache.ipynb).)
# %% [markdown] key="others_fix" lang="zh" src="c2c04803"
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
kv_heads, head_dim, rows = 4, 128, []
for tp in (4, 8):
    k = torch.zeros(4, 178, kv_heads * head_dim // tp)  # [B, T, numbers]: what one rank's slice of k_proj gives
    try:
        rows.append((tp, str(tuple(k.view(4, 178, -1, head_dim).shape))))  # [B, T, heads, head_dim]
    except RuntimeError as error:
        rows.append((tp, str(error)))
Table(["tp", "K of a rank, split into heads"], rows)

# %% key="heads_broken" lang="zh"
kv_heads, head_dim, rows = 4, 128, []
for tp in (4, 8):
    k = torch.zeros(4, 178, kv_heads * head_dim // tp)  # [B, T, 数的个数]：一个 rank 的 k_proj 分片算出的结果
    try:
        rows.append((tp, str(tuple(k.view(4, 178, -1, head_dim).shape))))  # [B, T, 头数, 头维度]
    except RuntimeError as error:
        rows.append((tp, str(error)))
Table(["tp", "一个 rank 的 K 按头拆开"], rows)

# %% key="heads_call" lang="en"
from minikv.plan import CacheSpec

whole, rows = CacheSpec.from_config("Qwen3-30B-A3B").bytes_for(1), []
for tp in (1, 4, 8, 16):
    spec = CacheSpec.from_config("Qwen3-30B-A3B", tp=tp)
    one = spec.bytes_for(1)
    rows.append((tp, spec.layers[0].kv_heads, one // 1024, tp * one // whole))
Table(["tp", "KV heads of a rank", "KiB a token, on each rank", "all ranks together: times the whole cache"], rows)

# %% key="heads_call" lang="zh"
from minikv.plan import CacheSpec

whole, rows = CacheSpec.from_config("Qwen3-30B-A3B").bytes_for(1), []
for tp in (1, 4, 8, 16):
    spec = CacheSpec.from_config("Qwen3-30B-A3B", tp=tp)
    one = spec.bytes_for(1)
    rows.append((tp, spec.layers[0].kv_heads, one // 1024, tp * one // whole))
Table(["tp", "每个 rank 的 KV 头", "每个 token 在每个 rank 上，KiB", "所有 rank 合计是原来的几倍"], rows)

# %% [markdown] key="heads_fix" lang="en"
# - **Cause**: 512 numbers were divided by 8, but they are 4 heads of 128 numbers.
# - **Fix**: don't divide a head. With more ranks than heads, copy each head to several ranks; then the cache of all ranks together grows.
# - **Property**: *every rank has a whole number of heads, at least one, and every head is on some rank*. If the heads can't be divided in this way, refuse the model when it is loaded. ([Lesson 12](12_beyond_one_gpu.ipynb).)
# %% [markdown] key="heads_fix" lang="zh" src="cbbc6ae7"
# - **原因**：把 512 个数除以 8，可它们是 4 个头，每个头 128 个数。
# - **修复**：头不能再切。rank 比头多时，每个头复制到几个 rank 上，各 rank 的缓存加起来就变大。
# - **性质**：*每个 rank 的头数都是整数，至少一个，每个头都在某个 rank 上*。除不开的，在加载模型时就拒绝。（[第 12 课](12_beyond_one_gpu.ipynb)）

# %% [markdown] key="int_seen" lang="en"
# ## Exhibit 9: A page number times a stride
#
# - **Seen**: `illegal memory access` after a while under load, reported by some later kernel. The crash came whenever block numbers passed about 7,767. [vLLM #47671](https://github.com/vllm-project/vllm/pull/47671)
# - **Here**: the multiplication of the kernel, in torch's 32-bit integers: a page of 480 tokens with 576 elements each.
# %% [markdown] key="int_seen" lang="zh" src="57594327"
# ## 展品 9：页号乘以步幅
#
# - **现象**：高负载跑一阵后报 `illegal memory access`，报错的还是后面某个不相干的 kernel。只要块号超过 7,767 左右就崩溃。[vLLM #47671](https://github.com/vllm-project/vllm/pull/47671)
# - **这里**：就是 kernel 里的那次乘法，用 torch 的 32 位整数来做：一页 480 个 token，每个 576 个元素。

# %% key="int_broken" lang="en"
stride = 480 * 576
pages = [7_766, 7_767, 7_768, 163_000]
offsets = torch.tensor(pages, dtype=torch.int32) * stride + (stride - 1)  # [pages]: the last element of each page
rows = []
for page, offset in zip(pages, offsets.tolist()):
    true = page * stride + stride - 1
    rows.append((page, true, offset, true == offset))
note = f"whole pages below 2**31 elements: {100 * (2**31 // stride) / 163_000:.1f} % of 163,000"
Table(["page", "offset of its last element", "in 32 bits", "right"], rows, lines=[note])

# %% key="int_broken" lang="zh"
stride = 480 * 576
pages = [7_766, 7_767, 7_768, 163_000]
offsets = torch.tensor(pages, dtype=torch.int32) * stride + (stride - 1)  # [页数]：每页的最后一个元素
rows = []
for page, offset in zip(pages, offsets.tolist()):
    true = page * stride + stride - 1
    rows.append((page, true, offset, true == offset))
note = f"完全落在 2**31 个元素之内的页占 163,000 页的 {100 * (2**31 // stride) / 163_000:.1f}%"
Table(["页", "最后一个元素的偏移量", "用 32 位算出", "正确"], rows, lines=[note])

# %% key="int_call" lang="en"
from minikv.plan import plan_memory

rows, head = [], ["model", "GPU", "K of one layer, of 2**31 elements", "one tensor for all layers, of 2**31"]
for model, gpu in (("Llama-3.1-8B", "H100 SXM 80GB"), ("Qwen3-0.6B", "H200 SXM")):
    budget = plan_memory(model, gpu=gpu)
    layer, layers = budget.spec.layers[0], len(budget.spec.layers)
    one = budget.max_tokens * layer.kv_heads * layer.k_dim / 2**31
    rows.append((model, gpu, f"{one:.2f}", f"{2 * layers * one:.1f}"))
note = f"slot_mapping gives {manager.slot_mapping('with adapter', 0, 40).dtype}"
Table(head, rows, lines=[note], right=head[2:])

# %% key="int_call" lang="zh"
from minikv.plan import plan_memory

rows, head = [], ["模型", "GPU", "一层的 K，几个 2**31", "所有层放进一个张量，几个 2**31"]
for model, gpu in (("Llama-3.1-8B", "H100 SXM 80GB"), ("Qwen3-0.6B", "H200 SXM")):
    budget = plan_memory(model, gpu=gpu)
    layer, layers = budget.spec.layers[0], len(budget.spec.layers)
    one = budget.max_tokens * layer.kv_heads * layer.k_dim / 2**31
    rows.append((model, gpu, f"{one:.2f}", f"{2 * layers * one:.1f}"))
note = f"slot_mapping 给出的是 {manager.slot_mapping('with adapter', 0, 40).dtype}"
Table(head, rows, lines=[note], right=head[2:])

# %% [markdown] key="int_fix" lang="en"
# - **Cause**: the block table is 32 bits wide, so the product was, too. Only 4.8 % of that pool could be addressed; for all other pages the kernel read from a wrong address. Page 163,000 is the most dangerous case, because its offset wraps to a *positive* number, and no error is raised.
# - **Fix**: make the page number 64 bits wide before you multiply it.
# - **Property**: *the offset of the pool's last element, as the kernel computes it, is the one that Python computes*. One test with the last page of the largest pool is enough. It needs no memory, only the arithmetic. ([Lesson 10](10_kernels.ipynb).)
# %% [markdown] key="int_fix" lang="zh" src="2e922f92"
# - **原因**：块表是 32 位的，乘积也就成了 32 位。那个块池只有 4.8% 能正确寻址，其余都读到了别处。最危险的是第 163,000 页，因为它的偏移量绕回成**正数**，什么错也不报。
# - **修复**：先把页号扩成 64 位再乘。
# - **性质**：*块池最后一个元素的偏移量，kernel 算的和 Python 算的一样*。拿最大的块池的最后一页测一次就够；而且不占内存，只做算术。（[第 10 课](10_kernels.ipynb)）

# %% [markdown] key="mask_seen" lang="en"
# ## Exhibit 10: A mask for keys that are gone
#
# - **Seen**: a model with eviction writes "- - - - - -" as soon as it evicts. [VeloxQuant-MLX #370](https://github.com/rajveer43/VeloxQuant-MLX/issues/370): some keys of the prompt were dropped *before* its own attention, which then used the mask "causal"
# - **Here**: first that rule in our own lines, with 8 queries and 5 keys. Then torch as it is installed: its `is_causal` counts from the other corner.
# %% [markdown] key="mask_seen" lang="zh" src="055343ed"
# ## 展品 10：给已经不在的 key 配掩码
#
# - **现象**：带淘汰的模型一开始淘汰，就只输出“- - - - - -”。[VeloxQuant-MLX #370](https://github.com/rajveer43/VeloxQuant-MLX/issues/370)：提示词的 key 在它自己的注意力**之前**就被删去一部分，而注意力用的掩码还是“causal”
# - **这里**：先是我们自己写的这条规则，8 个 query、5 个 key；然后是安装好的 torch，它的 `is_causal` 从另一个角算起。

# %% key="mask_broken" lang="en"
kept, places = torch.tensor([0, 1, 5, 6, 7]), torch.arange(8)
true = kept[None, :] <= places[:, None]  # [8 queries, 5 keys]: a query sees what stands before it, and itself
lower = torch.ones(8, 5, dtype=torch.bool).tril(5 - 8)  # "causal", counted from the lower right corner
upper = torch.ones(8, 5, dtype=torch.bool).tril()  # and from the upper left
rows = []
for corner, mask in (("lower right", lower), ("upper left", upper)):
    wrong = true & ~mask, mask & ~true, ~mask.any(1)
    rows.append((corner, *(int(some.sum()) for some in wrong)))
Table(["counted from", "pairs hidden wrongly", "pairs that look into the future", "queries that see nothing"], rows)

# %% key="mask_broken" lang="zh"
kept, places = torch.tensor([0, 1, 5, 6, 7]), torch.arange(8)
true = kept[None, :] <= places[:, None]  # [8 个 query, 5 个 key]：query 能看见它前面的，以及它自己
lower = torch.ones(8, 5, dtype=torch.bool).tril(5 - 8)  # “causal”，从右下角算起
upper = torch.ones(8, 5, dtype=torch.bool).tril()  # 以及从左上角算起
rows = []
for corner, mask in (("右下角", lower), ("左上角", upper)):
    wrong = true & ~mask, mask & ~true, ~mask.any(1)
    rows.append((corner, *(int(some.sum()) for some in wrong)))
Table(["从哪个角算起", "误遮的对数", "偷看未来的对数", "什么也看不见的 query"], rows)

# %% key="mask_decode" lang="en"
attend = torch.nn.functional.scaled_dot_product_attention
query, keys = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 5, 4)  # [B, H, T, D]: one query, five keys
attend(query, keys, torch.eye(5)[None, None], is_causal=True).flatten()  # V is the unit matrix, so these are the weights

# %% key="mask_decode" lang="zh"
attend = torch.nn.functional.scaled_dot_product_attention
query, keys = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 5, 4)  # [B, H, T, D]：一个 query，五个 key
attend(query, keys, torch.eye(5)[None, None], is_causal=True).flatten()  # V 是单位矩阵，所以结果就是权重

# %% key="mask_call" lang="en"
from minikv.eviction import install_kv_eviction
from minikv.models import load

model = load("tiny-gqa").model
prompt = torch.arange(96, device=model.device)[None] % 190  # [1, T]
with torch.no_grad():
    full = model(prompt).logits
    with install_kv_eviction(model, policy="streaming", n_sink=4, budget=0, n_recent=12) as eviction:
        forgetting = model(prompt)
kept = forgetting.past_key_values.layers[0].keys.shape[2]
gap = float((forgetting.logits - full).abs().max())
Table(["tokens", "kept", "largest difference of the prompt's logits"], [(prompt.shape[1], kept, f"{gap:.1e}")])

# %% key="mask_call" lang="zh"
from minikv.eviction import install_kv_eviction
from minikv.models import load

model = load("tiny-gqa").model
prompt = torch.arange(96, device=model.device)[None] % 190  # [1, T]
with torch.no_grad():
    full = model(prompt).logits
    with install_kv_eviction(model, policy="streaming", n_sink=4, budget=0, n_recent=12) as eviction:
        forgetting = model(prompt)
kept = forgetting.past_key_values.layers[0].keys.shape[2]
gap = float((forgetting.logits - full).abs().max())
Table(["token 数", "留下", "提示词的 logit 最大差别"], [(prompt.shape[1], kept, f"{gap:.1e}")])

# %% [markdown] key="mask_fix" lang="en"
# - **Cause**: "causal" is about positions in the text, and a triangular mask is about places in a tensor. The two agree only while no key is missing. And two libraries start the triangle in two different corners: torch counts from the upper left, so a single query sees only the first of five keys.
# - **Fix**: attend first, evict afterwards. Where keys are gone, make the mask from their positions.
# - **Property**: *a cache that drops tokens gives what a full cache gives if those tokens are masked*. In a prefill nothing is dropped before its attention, so there the logits are the same, as the last table shows. ([Lesson 14](14_what_to_forget.ipynb).)
# %% [markdown] key="mask_fix" lang="zh" src="3bc3049f"
# - **原因**：“causal”说的是位置，三角形说的是张量里的下标。只有一个 key 都不缺时两者才一致。况且两个库还把三角形放在不同的角上：torch 从左上角算起，所以唯一的 query 只看得到五个 key 中的第一个。
# - **修复**：先做注意力，再淘汰；key 有缺的地方，按它们的位置来做掩码。
# - **性质**：*丢掉一些 token 的缓存，与把这些 token 掩住的完整缓存，结果相同*。预填充时，注意力算完之前什么也没丢，所以 logits 相同，最后一张表显示的就是这一点。（[第 14 课](14_what_to_forget.ipynb)）

# %% [markdown] key="break" lang="en"
# ## Break it
#
# Now make a bug of your own, and see which property notices it.
# The pool below forgets to count a second holder.
# While sequences come and go at random, we check two properties after every operation: the sum (free blocks plus held blocks are the whole pool), and the formula from the beginning. `watch` runs up to 60 such operations.
# %% [markdown] key="break" lang="zh" src="8eaf3917"
# ## 弄坏它
#
# 现在自己造一个 bug，看看哪条性质能发现它。
# 下面的块池忘了给第二个持有者计数。
# 序列随机来去，每次操作之后都检查两条性质，一条是求和（空闲的加上被持有的，等于整个块池），一条是开头的公式。`watch` 最多跑 60 次这样的操作。

# %% key="break_pool" lang="en"
class ForgetfulPool(BlockPool):
    def share(self, blocks):
        self._check_held(blocks)  # and no count goes up

# %% key="break_pool" lang="zh"
class ForgetfulPool(BlockPool):
    def share(self, blocks):
        self._check_held(blocks)  # 计数却没有增加

# %% key="break_rules"
def sum_is_right(manager):
    pool = manager.stats().pools[0]
    return pool.free + pool.used == pool.total


def books_are_right(manager):
    try:
        manager.check_invariants()
    except BrokenInvariantError:
        return False
    return True

# %% key="break_it" lang="en"
from minikv.course.lessons.lb.watch import watch

rows = []
for rule in (sum_is_right, books_are_right):
    runs = [watch(ForgetfulPool, rule, seed) for seed in range(100)]
    noticed = [run.step for run in runs if run.ended == "rule"]
    mean = sum(noticed) / len(noticed) if noticed else None
    rows.append((rule.__name__, len(noticed), mean, sum(run.ended == "operation" for run in runs)))
head = ["rule", "noticed the bug, runs of 100", "in step, on average", "an operation failed first, runs"]
Table(head, rows)

# %% key="break_it" lang="zh"
from minikv.course.lessons.lb.watch import watch

rows = []
for rule in (sum_is_right, books_are_right):
    runs = [watch(ForgetfulPool, rule, seed) for seed in range(100)]
    noticed = [run.step for run in runs if run.ended == "rule"]
    mean = sum(noticed) / len(noticed) if noticed else None
    rows.append((rule.__name__, len(noticed), mean, sum(run.ended == "operation" for run in runs)))
head = ["规则", "100 次里发现 bug 的次数", "平均在第几步", "别的操作先出错的次数"]
Table(head, rows)

# %% [markdown] key="break_means" lang="en"
# The sum is right all the time, although the books are wrong.
# In 98 runs the bug shows up only later, when some other operation fails.
# Most of the bugs in this museum were reported that way: by a line that had nothing to do with the cause.
#
# Change `share` into something else that is wrong, and try again.
# %% [markdown] key="break_means" lang="zh" src="a0363c0e"
# 求和始终没错，账却是错的。
# 在 98 次运行里，要到后面某个不相干的操作失败时，错误才显现。
# 本馆的 bug 大多就是这样被报告的，报错的那一行和原因毫无关系。
#
# 把 `share` 换成别的错法，再试一次。

# %% [markdown] key="catch" lang="en"
# ## The ten properties
#
# | property | exhibits that it would have caught |
# |---|---|
# | the part found in the cache is shorter than the prompt | 1 |
# | cached tokens and computed tokens add up to the sequence | 2 |
# | a reference count is the number of tables that hold the block | 3, 4 |
# | an operation that raises has changed nothing | 4 |
# | while there is work, every step computes something | 1, 5 |
# | equal names only for equal parts | 6 |
# | the pool is never larger than what is free | 7 |
# | every rank has whole heads, every head is on some rank | 8 |
# | the kernel's offset is the one that Python computes | 9 |
# | dropping tokens equals masking them | 10 |
#
# None of the properties mentions a bug.
# You can write each of them before the code, as a loop over random cases with one `assert` in it.
# %% [markdown] key="catch" lang="zh" src="8fd01078"
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
# A property holds in every run. Ten properties would have found the ten bugs here, and none of them names a bug.
# Exhibits 3 and 4 break one formula: the reference count is the number of tables that hold the block. This formula noticed the forgetful pool in 100 of 100 runs, after 3.5 steps on average.
# A sum over the pool proves little. It stayed right in all 100 runs of a pool that forgot to count a holder.
# Removing an exception does not remove its cause. It only makes the bug silent.
#
# ## Check yourself
#
# Answer in your own words, then reveal the model answer: `explain("why_silence", reveal=True)`.
# %% [markdown] key="explain_text" lang="zh" src="ed84ea3a"
# ## 本课小结
#
# 性质对每一次运行都成立；十条性质就能发现这里的十个 bug，而没有一条提到 bug 本身。
# 展品 3 和展品 4 违反的都是“引用计数等于持有这个块的块表数”这个公式；忘了计数的块池跑 100 次，它 100 次都能发现，平均 3.5 步之后。
# 只对块池求和说明不了什么：忘了给持有者计数的块池跑了 100 次，求和次次都对。
# 把异常去掉，原因并没有去掉，只是不再报错。
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
# | it crashes far away from the code that you changed | `manager.check_invariants()` after every operation: the first that fails has the cause |
# | the text is wrong, but no error is raised | run the same prompt with an empty cache; `BlockManager.match(prompt).num_tokens` says how much is reused |
# | it fails only in long runs, only under load | make the pool small: with `num_blocks=4`, ten steps bring the pressure that otherwise takes an hour |
# %% [markdown] key="stuck" lang="zh" src="c2941147"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 崩溃的地方离你改的代码很远 | 每次操作后都调用 `manager.check_invariants()`：第一次失败的地方就是原因 |
# | 文本不对，却不报错 | 用空缓存再跑同一个提示词；复用了多少，看 `BlockManager.match(prompt).num_tokens` |
# | 只有跑久了、负载高了才出错 | 把块池改小：`num_blocks=4` 时，跑一小时才有的负载第十步就来了 |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# The lesson that is linked at a property explains why it holds, and there you build code that obeys it.
#
# Do you know a bug that belongs here? It needs a link to its report, ten lines that reproduce it on a CPU, and the property that would have caught it.
# %% [markdown] key="next" lang="zh" src="6c16d5ec"
# ## 下一篇
#
# 性质后面标出的课会讲它为什么成立，并让你写出遵守它的代码。
#
# 你知道哪个 bug 也该收进来吗？它需要一个出处、十行能在 CPU 上重现它的代码，还有一条本可以发现它的性质。
