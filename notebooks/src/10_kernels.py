# %% [meta]
# number = "10"
# slug = "kernels"
# needs = ["04", "09"]
# rooms = ["nano.attention", "kernels", "kernels.gpu"]
# [title]
# en = "How does a GPU read a page table?"
# zh = "GPU 怎样读块表？"
# [t4]
# en = "The kernels of this lesson are compiled and run on the T4, and the bandwidth plot is its own."
# zh = "本课的 kernel 会在 T4 上编译运行，带宽图也是 T4 自己的。"
# [paper]
# en = "10.2, 10.4"
# zh = "10.2、10.4"

# %% [markdown] key="question" lang="en"
# ## The question
#
# In [lesson 09](09_pages_and_blocks.ipynb) the K and V of a sequence went into blocks that lie anywhere in memory, and a *block table* says where.
# At every decode step, attention has to read all of them back through that table.
#
# **Does paging make attention slower?**
#
# Below is one launch of an attention kernel, which you will read line by line. Three sequences and two KV heads make six *programs*, which run at the same time. The picture follows one of them, from its tokens through the block table to memory. Each block in memory has a row for each KV head, and the program reads only its own. Dashed positions lie beyond the sequence and are masked.
# %% [markdown] key="question" lang="zh" src="24dec1c5"
# ## 问题
#
# [第 09 课](09_pages_and_blocks.ipynb)里，一条序列的 K 和 V 放进了许多块。块可以在显存的任何地方，位置记在**块表**（block table）里。
# 解码的每一步，注意力都要经过这张表，把它们全部读回来。
#
# **分页会让注意力变慢吗？**
#
# 下图是注意力 kernel 的一次 launch，学完本课，你就逐行读过它了。三条序列、两个 KV 头，共六个**程序**（program）同时运行。图里跟着其中一个，从它的 token 经过块表，一直看到显存。显存里的每个块，每个 KV 头各占一行，这个程序只读自己的那一行。虚线的位置超出了序列的长度，会被掩码遮住。

# %% key="launch_picture" lang="en"
import torch

from minikv.course.diagrams import decode_grid
from minikv.course.lessons.l10.launch import launch_of, paged, prepare

mode = prepare()  # "gpu", "interpreter" or "none"
device = "cuda" if mode == "gpu" else "cpu"
# Three sequences; 4 query heads share each KV head.
case = paged([5, 16, 37], kv_heads=2, group=4, dim=16, block_size=8, device=device)
show(decode_grid(launch_of(case), program=(2, 1), lang="en"))
# %% key="launch_picture" lang="zh"
import torch

from minikv.course.diagrams import decode_grid
from minikv.course.lessons.l10.launch import launch_of, paged, prepare

mode = prepare()  # "gpu"、"interpreter" 或 "none"
device = "cuda" if mode == "gpu" else "cpu"
# 三条序列；每 4 个 query 头共用一个 KV 头。
case = paged([5, 16, 37], kv_heads=2, group=4, dim=16, block_size=8, device=device)
show(decode_grid(launch_of(case), program=(2, 1), lang="zh"))

# %% [markdown] key="abilities" lang="en"
# After this lesson you can
#
# - **read** a paged attention kernel, from its launch to its last store;
# - **count** the bytes that each way of doing attention moves;
# - **find** the bugs that such kernels have.
#
# You should know the roofline ([lesson 04](04_the_roofline.ipynb)) and block tables (elsewhere: page tables).
# On the way you read a whole file, `attention.py` of [minikv.nano](repo:minikv/nano/README.md).
# %% [markdown] key="abilities" lang="zh" src="56f00e65"
# 学完本课，你能够
#
# - **读懂**一个分页注意力 kernel，从 launch 一直到最后一次写出；
# - **数出**各种做法搬动的字节；
# - **找出**这类 kernel 真实出过的 bug。
#
# 开始之前，需要知道 Roofline 模型（[第 04 课](04_the_roofline.ipynb)）和块表。（别的引擎常说“页”和“页表”。）
# 途中你会读完 [minikv.nano](repo:minikv/nano/README.zh.md) 的一整个文件 `attention.py`。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# Take a model like Llama-3.1-8B. Each layer has 8 KV heads of 128 elements, in 16 bit. One entry of a block table takes 4 bytes.
# %% [markdown] key="predict_first" lang="zh" src="fa65b8eb"
# ## 先猜一猜
#
# 取 Llama-3.1-8B 这样的模型，每层 8 个 KV 头，每头 128 个元素，16 位。块表的一项占 4 字节。

# %% key="predict_table"
predict("table_share", ...)

# %% [markdown] key="formula" lang="en"
# ## The floor
#
# How many bytes must attention move in a decode step, whatever the kernel? One sequence of 8,192 tokens has 33,554,432 B of K and V in a layer, and a table of 8,192 / 16 = 512 entries of 4 B. For a batch of $B$ sequences:
# %% [markdown] key="formula" lang="zh" src="d243a3db"
# ## 下限
#
# 解码（decode）的一步，不管用什么 kernel，注意力至少要搬多少字节？一条 8,192 个 token 的序列，一层的 K 和 V 是 33,554,432 B，块表有 8,192 / 16 = 512 项，每项 4 B。$B$ 条序列的 batch 则是：

# %% [markdown] key="formula_math"
# $$M \;=\; \underbrace{2 \, H_{kv} \, D \, b \sum_i S_i}_{K,\,V} \;+\; \underbrace{2 \, B \, H_q \, D \, b}_{\text{query, out}} \;+\; \underbrace{4 \sum_i \left\lceil S_i / P \right\rceil}_{\text{block tables}}$$

# %% [markdown] key="symbols" lang="en"
# | symbol | meaning | unit | value here |
# |---|---|---|---|
# | $B$ | sequences in the batch | sequences | 32 |
# | $S_i$ | tokens of sequence $i$ that are cached | tokens | 8,192 each |
# | $H_q$, $H_{kv}$ | query heads, KV heads | heads | 32, 8 |
# | $D$ | elements of a head (`head_dim`) | elements | 128 |
# | $b$ | size of an element | bytes | 2 |
# | $P$ | block size | tokens a block | 16 |
#
# With the numbers: `2 * 8 * 128 * 2 * 32 * 8,192 + 2 * 32 * 32 * 128 * 2 + 4 * 32 * 512 = 1,073,741,824 + 524,288 + 65,536 = 1,074,331,648 B`.
#
# The package computes the same, here for three block sizes:
# %% [markdown] key="symbols" lang="zh" src="7abc1400"
# | 符号 | 含义 | 单位 | 本例取值 |
# |---|---|---|---|
# | $B$ | 一个 batch 的序列数 | 条 | 32 |
# | $S_i$ | 序列 $i$ 已缓存的 token 数 | token | 每条 8,192 |
# | $H_q$、$H_{kv}$ | query 头数、KV 头数 | 头 | 32、8 |
# | $D$ | 每个头的元素数（头维度，`head_dim`） | 元素 | 128 |
# | $b$ | 一个元素的大小 | 字节 | 2 |
# | $P$ | 块大小 | token / 块 | 16 |
#
# 代入数字：`2 * 8 * 128 * 2 * 32 * 8,192 + 2 * 32 * 32 * 128 * 2 + 4 * 32 * 512 = 1,073,741,824 + 524,288 + 65,536 = 1,074,331,648 B`。
#
# 本包算出的也一样，下面取三种块大小：

# %% key="floor" lang="en"
from minikv.course import Table
from minikv.course.lessons.l10.bytes_moved import Shape, floor, moved

asked = Shape(lengths=(8192,) * 32, query_heads=32, kv_heads=8, dim=128, block_size=16)
rows = []
for size in (1, 16, 256):
    one = Shape(asked.lengths, block_size=size)
    share = f"{one.table_bytes / one.kv_bytes:.4%}"
    rows.append([size, one.kv_bytes, one.edge_bytes, one.table_bytes, floor(one).num_bytes, share])
head = ["block size", "K and V (B)", "query, result (B)", "block tables (B)", "the floor (B)", "tables / K and V"]
Table(head, rows, right=head)
# %% key="floor" lang="zh"
from minikv.course import Table
from minikv.course.lessons.l10.bytes_moved import Shape, floor, moved

asked = Shape(lengths=(8192,) * 32, query_heads=32, kv_heads=8, dim=128, block_size=16)
rows = []
for size in (1, 16, 256):
    one = Shape(asked.lengths, block_size=size)
    share = f"{one.table_bytes / one.kv_bytes:.4%}"
    rows.append([size, one.kv_bytes, one.edge_bytes, one.table_bytes, floor(one).num_bytes, share])
head = ["块大小", "K 和 V（B）", "query、结果（B）", "块表（B）", "下限（B）", "块表 / K 和 V"]
Table(head, rows, right=head)

# %% [markdown] key="floor_read" lang="en"
# The table isn't what makes a kernel slow: with blocks of 16, one entry of 4 bytes stands for 64 KiB of K and V.
# What can cost time is what a kernel *does* with the entry, because it has to turn a block number into addresses between one load and the next. To see how much that matters, we write one.
# %% [markdown] key="floor_read" lang="zh" src="2657085f"
# 让 kernel 变慢的不是块表本身，因为块大小为 16 时，一项只有 4 字节，对应的 K 和 V 却是 64 KiB。
# 真正可能费时间的，是 kernel 拿到这一项之后**做什么**，因为两次读取之间要由块号算出地址。这一点有多要紧，我们自己写一个来看。

# %% [markdown] key="triton" lang="en"
# ## A place to run kernels
#
# A Triton kernel is a Python function that many programs run at the same time, and each program knows its own number. A program works on one *tile* at a time, 32 positions in the picture.
#
# Without a GPU, Triton's *interpreter* runs the programs one after the other on the CPU: slowly, but with the same results up to rounding. You have to choose it before Triton is imported, and `prepare` did that in the first cell.
# %% [markdown] key="triton" lang="zh" src="d13501ad"
# ## 在哪里运行 kernel
#
# Triton 的 kernel 是一个 Python 函数，由许多程序同时运行，每个程序知道自己的编号。一个程序一次处理一个**分块**（tile），例如图里的 32 个位置。
#
# 没有 GPU 时，Triton 的**解释器**在 CPU 上逐个运行这些程序，速度慢，但除舍入误差外结果相同。用不用解释器，必须在导入 Triton 之前决定，第一个单元格里的 `prepare` 做的就是这件事。

# %% key="prepare" tags="hardware"
print(t("mode_" + mode))

# %% [markdown] key="case" lang="en"
# These are the three sequences of the picture, in shuffled blocks. Wherever there is no token, the cache holds NaN. If a kernel reads such a place, NaN shows up in its answer.
# %% [markdown] key="case" lang="zh" src="6aa5b6b3"
# 下面就是图里的三条序列，块的次序已打乱。没有 token 的地方，缓存里一律是 NaN。kernel 只要读到它，答案里就会出现 NaN。

# %% key="case_code" lang="en"
Table(
    ["sequence", "tokens", "block table"],
    [[row, int(case.lengths[row]), str(case.block_tables[row].tolist())] for row in range(3)],
    title=f"K and V, each [blocks, block size, KV heads, head_dim] = {list(case.k_cache.shape)}",
)
# %% key="case_code" lang="zh"
Table(
    ["序列", "token 数", "块表"],
    [[row, int(case.lengths[row]), str(case.block_tables[row].tolist())] for row in range(3)],
    title=f"K 和 V 的形状都是 [块数、块大小、KV 头数、head_dim] = {list(case.k_cache.shape)}",
)

# %% [markdown] key="store" lang="en"
# ## Step 1: store
#
# First we write K and V. Each token has a slot ([lesson 09](09_pages_and_blocks.ipynb)), and one program writes one token:
# %% [markdown] key="store" lang="zh" src="238ddb2f"
# ## 第 1 步：写入
#
# 先把 K 和 V 写进去。每个 token 有一个槽位（slot，[第 09 课](09_pages_and_blocks.ipynb)），一个程序写一个 token：

# %% key="store_source"
from minikv.course import show_source

if mode != "none":
    from minikv.course.lessons.l10.kernels import split_kernel, store_kernel

    show_source(store_kernel)

# %% key="store_code" lang="en"
from minikv.course.lessons.l10.launch import run_store
from minikv.kernels import store_kv

key = torch.arange(1.0, 5.0, device=device).view(4, 1, 1).expand(4, 2, 16)  # the tokens 1 to 4: [T, Hkv, D]
slots = torch.tensor([10, 11, -1, 3], device=device)  # [T]
ours, theirs, unused = (torch.zeros(3, 8, 2, 16, device=device) for _ in range(3))
store_kv(key, key, theirs, unused, slots)
if mode != "none":
    run_store(key, ours, slots)
Table(
    ["block", *map(str, range(8))],
    [[block, *row] for block, row in enumerate(ours[:, :, 0, 0].int().tolist())],  # [blocks, block size]
    lines=[f"slots {slots.tolist()}; the same as the package's store_kv: {torch.equal(ours, theirs)}"],
)
# %% key="store_code" lang="zh"
from minikv.course.lessons.l10.launch import run_store
from minikv.kernels import store_kv

key = torch.arange(1.0, 5.0, device=device).view(4, 1, 1).expand(4, 2, 16)  # token 1 到 4：[T, Hkv, D]
slots = torch.tensor([10, 11, -1, 3], device=device)  # [T]
ours, theirs, unused = (torch.zeros(3, 8, 2, 16, device=device) for _ in range(3))
store_kv(key, key, theirs, unused, slots)
if mode != "none":
    run_store(key, ours, slots)
Table(
    ["块", *map(str, range(8))],
    [[block, *row] for block, row in enumerate(ours[:, :, 0, 0].int().tolist())],  # [块数, 块大小]
    lines=[f"槽位 {slots.tolist()}；与本包的 store_kv 相同：{torch.equal(ours, theirs)}"],
)

# %% [markdown] key="store_read" lang="en"
# With blocks of 8, slot 10 is place 2 of block 1, counted from 0. Slot -1 means: don't store this token. It is padding, because a CUDA graph (a recorded launch) always runs the same number of programs.
# The kernel has to check for it. In Python `-1 // 8` is -1, and as an index that is the last block, which belongs to another sequence. Triton rounds towards zero and gets place -1 of block 0, which is memory before the cache. (Exercise 10.1.)
#
# ## Step 2: a loop over tokens
#
# Now we read them back, for one query and one head. Compare the query with every key, take the softmax, and add up the values:
#
# $$\text{out} = \frac{\sum_i e^{x_i} v_i}{\sum_i e^{x_i}} \qquad x_i = \frac{q \cdot k_i}{\sqrt{D}}$$
#
# | symbol | meaning | value here |
# |---|---|---|
# | $q$, $k_i$, $v_i$ | the query; key and value of token $i$ | $v$ = 1, 2, 3, 4 |
# | $D$ | elements of a head | 16 |
# | $x_i$ | logit: how well key $i$ fits the query | 2, 90, 89, 1 |
#
# Written down like this, it fails:
# %% [markdown] key="store_read" lang="zh" src="017d80fa"
# 块大小是 8，所以槽位 10 就是块 1 的第 2 个位置（从 0 数起）。槽位 -1 的意思是不要写。这个 token 是补齐用的，因为 CUDA 图（录制下来、反复重放的 launch）每次运行的程序数固定。
# kernel 必须判断一下。在 Python 里，`-1 // 8` 得 -1，作为下标就是最后一块，而那一块属于另一条序列。Triton 向零取整，得到块 0 的第 -1 个位置，也就是缓存之前的内存。（练习 10.1。）
#
# ## 第 2 步：逐个 token 循环
#
# 再读出来。先看一个 query、一个头。让它与每个 key 比较，做 softmax，再对 value 加权求和：
#
# $$\text{out} = \frac{\sum_i e^{x_i} v_i}{\sum_i e^{x_i}} \qquad x_i = \frac{q \cdot k_i}{\sqrt{D}}$$
#
# | 符号 | 含义 | 本例取值 |
# |---|---|---|
# | $q$、$k_i$、$v_i$ | query；第 $i$ 个 token 的 key 和 value | $v$ = 1、2、3、4 |
# | $D$ | 每个头的元素数 | 16 |
# | $x_i$ | logit：第 $i$ 个 key 与 query 有多相配 | 2、90、89、1 |
#
# 照这个式子直接写，会失败：

# %% key="naive"
logits, values = torch.tensor([2.0, 90.0, 89.0, 1.0]), torch.tensor([1.0, 2.0, 3.0, 4.0])
weights = torch.exp(logits)
naive, right = (weights * values).sum() / weights.sum(), torch.softmax(logits, 0) @ values
Table(
    ["x", "v", "exp(x)"],
    zip(logits.tolist(), values.tolist(), weights.tolist()),
    lines=[f"sum(exp(x) v) / sum(exp(x)) = {float(naive)}", f"torch.softmax(x) @ v = {float(right):.4f}"],
)

# %% [markdown] key="online" lang="en"
# $e^{90}$ doesn't fit into a float32. If we subtract the largest logit from all of them, the fraction stays the same and no power is above 1: `(2 + 3 * e^-1) / (1 + e^-1) = 3.1036 / 1.3679 = 2.2689`, as torch says.
# But a kernel meets the keys one tile after another, and the largest logit may come last.
#
# The **online softmax** carries three things along: $m$, the largest logit so far; $l$, the sum of $e^{x_i - m}$; and $a$, the sum of $e^{x_i - m} v_i$.
# When a larger $m'$ comes, it multiplies both sums by $e^{m - m'}$.
# %% [markdown] key="online" lang="zh" src="cb2155ba"
# $e^{90}$ 超出了 float32 的范围。如果所有 logit 都减去其中最大的，分式的值不变，而每个幂都不超过 1：`(2 + 3 * e^-1) / (1 + e^-1) = 3.1036 / 1.3679 = 2.2689`，与 torch 的结果相同。
# 可是 kernel 是一个 tile 一个 tile 地读 key 的，最大的 logit 也许最后才出现。
#
# **在线 softmax**（online softmax）一路带着三个量：$m$，目前最大的 logit；$l$，$e^{x_i - m}$ 之和；$a$，$e^{x_i - m} v_i$ 之和。
# 一旦出现更大的 $m'$，就把两个和都乘以 $e^{m - m'}$。

# %% key="online_code" lang="en"
import math

from minikv.course.diagrams import SoftmaxStep, online_softmax


def online(tiles):
    """Go through tiles of logits x and values v; yield after each what is carried on."""
    m, total, acc = -math.inf, 0.0, 0.0
    for x, v in tiles:
        larger = max(m, float(x.max()))
        rescale, weights = math.exp(m - larger), torch.exp(x - larger)
        total = total * rescale + float(weights.sum())  # l
        acc = acc * rescale + float(weights @ v)  # a
        m = larger
        yield SoftmaxStep(x.tolist(), rescale, m, total, acc)
# %% key="online_code" lang="zh"
import math

from minikv.course.diagrams import SoftmaxStep, online_softmax


def online(tiles):
    """依次处理各个 tile 的 logit x 和 value v，每处理完一个，就交出带着走的量。"""
    m, total, acc = -math.inf, 0.0, 0.0
    for x, v in tiles:
        larger = max(m, float(x.max()))
        rescale, weights = math.exp(m - larger), torch.exp(x - larger)
        total = total * rescale + float(weights.sum())  # l
        acc = acc * rescale + float(weights @ v)  # a
        m = larger
        yield SoftmaxStep(x.tolist(), rescale, m, total, acc)

# %% [markdown] key="online_four" lang="en"
# Here it is with the four numbers that failed, one at a time:
# %% [markdown] key="online_four" lang="zh" src="f6fba560"
# 还是刚才失败的四个数，一个一个地来：

# %% key="online_table" lang="en"
steps = list(online(zip(logits.split(1), values.split(1))))  # tiles of one number: [1] each
Table(
    ["x", "v", "rescale", "m", "l", "a", "a/l"],
    [
        [*s.logits, v, s.rescale, s.largest, s.total, s.weighted, s.result]
        for s, v in zip(steps, values.tolist())
    ],
    lines=[f"result {steps[-1].result:.4f}, lse {steps[-1].largest + math.log(steps[-1].total):.4f}"],
)
# %% key="online_table" lang="zh"
steps = list(online(zip(logits.split(1), values.split(1))))  # 每个 tile 一个数：[1]
Table(
    ["x", "v", "乘以的数", "m", "l", "a", "a/l"],
    [
        [*s.logits, v, s.rescale, s.largest, s.total, s.weighted, s.result]
        for s, v in zip(steps, values.tolist())
    ],
    lines=[f"结果 {steps[-1].result:.4f}，lse {steps[-1].largest + math.log(steps[-1].total):.4f}"],
)

# %% [markdown] key="online_tiles" lang="en"
# The answer is the same. Here is a query head of sequence 2, with its 37 logits in tiles of 8. Watch what happens to the old sums where the red line rises.
# %% [markdown] key="online_tiles" lang="zh" src="2516b381"
# 结果相同。再看序列 2 的一个 query 头，它有 37 个 logit，每个 tile 8 个。红线升高时，注意旧的和发生了什么。

# %% key="online_picture" lang="en"
keys, cached = case.contiguous(2)  # K and V of sequence 2: [37, Hkv, D]
x = keys[:, 1] @ case.query[2, 7] * case.scale  # query head 7 reads KV head 1: [37]
tiles = zip(x.split(8), cached[:, 1, 0].split(8))  # of each V the first number
show(online_softmax(list(online(tiles)), "en"))
# %% key="online_picture" lang="zh"
keys, cached = case.contiguous(2)  # 序列 2 的 K 和 V：[37, Hkv, D]
x = keys[:, 1] @ case.query[2, 7] * case.scale  # query 头 7 读 KV 头 1：[37]
tiles = zip(x.split(8), cached[:, 1, 0].split(8))  # 每个 V 只取第一个数
show(online_softmax(list(online(tiles)), "zh"))

# %% [markdown] key="online_read" lang="en"
# Three of the five tiles raise $m$ and rescale what was summed before. The last two only add their part.
#
# $m + \ln l$ is called the **lse**, the logarithm of the sum of the exponentials: for the four numbers 90 + ln 1.368 = 90.3133. With it you can compute a row in two halves and join them later.
#
# ## Step 3: pages
#
# `attention.py` of `minikv.nano` has four functions. A token meets them in this order: `attend`, `paged_attention`, and on a GPU `decode_on_gpu` with its kernel.
#
# ### What a model calls
#
# nano registers `attend` with transformers, and the model calls it in every layer. Look for three things:
#
# - `cache.write` comes first, because a query also looks at its own token.
# - `query` becomes rows `[T, Hq, Dk]`: the tokens of all sequences in this step, without padding. `batch` says which token belongs to which sequence.
# - One line decides: a decode on a GPU goes to the kernel, everything else to plain torch.
# %% [markdown] key="online_read" lang="zh" src="d80abf00"
# 五个 tile 中，前三个依次抬高了 $m$，之前的和也跟着缩放；后两个只把自己的部分加上去。
#
# $m + \ln l$ 称为 **lse**，即各个幂之和的对数，前面的四个数是 90 + ln 1.368 = 90.3133。有了它，一行可以分成两半来算，以后再合并。
#
# ## 第 3 步：分页
#
# `minikv.nano` 的 `attention.py` 有四个函数，token 依次经过 `attend`、`paged_attention`，在 GPU 上还有 `decode_on_gpu` 和它的 kernel。
#
# ### 模型调用的函数
#
# nano 把 `attend` 注册到 transformers，模型在每一层都调用它。留意三点：
#
# - 先执行 `cache.write`，因为 query 也要看自己的 token。
# - `query` 传进来时是 `[1, Hq, T, Dk]`，随后变成一行行的 `[T, Hq, Dk]`，也就是这一步所有序列的 token，中间没有补齐。哪个属于哪条序列，由 `batch` 说明。
# - 有一行做选择，把 GPU 上的解码交给 kernel，其余的用普通的 torch。

# %% key="attend_source"
from minikv.nano import attention

show_source(attention.attend)

# %% [markdown] key="attend_run" lang="en"
# Here is a step of two sequences, with blocks of 4 tokens. Sequence 0 brings a prompt of 3 tokens for block 2. Sequence 1 has 5 tokens in blocks 3 and 1 and decodes its sixth. The new keys are 1, 2, 3 and 4:
# %% [markdown] key="attend_run" lang="zh" src="0b4d6f15"
# 运行一步试试，两条序列，块大小是 4。序列 0 带来 3 个 token 的提示词，放进块 2。序列 1 已有 5 个 token，在块 3 和块 1 里，现在解码第 6 个。新的 key 分别是 1、2、3、4：

# %% key="attend_code" lang="en"
from types import SimpleNamespace

from minikv.course.lessons.l10.launch import batch_of
from minikv.nano.kv_cache import KVCache
from minikv.plan import CacheSpec, LayerSpec

layer = LayerSpec("full", kv_heads=1, k_dim=8, v_dim=8, itemsize=4)
cache = KVCache(CacheSpec(layers=(layer,)), 4, 4, torch.float32, torch.device("cpu"))
batch = batch_of([[2], [3, 1]], lengths=[3, 6], new=[3, 1], block_size=4, device="cpu")
query = torch.ones(1, 2, 4, 8)  # [1, Hq, T, Dk]
key = torch.arange(1.0, 5.0).view(1, 1, 4, 1).expand(1, 1, 4, 8)  # [1, Hkv, T, Dk]
out, _ = attention.attend(SimpleNamespace(layer_idx=0), query, key, key, None, batch=batch, kv_cache=cache)
# %% key="attend_code" lang="zh"
from types import SimpleNamespace

from minikv.course.lessons.l10.launch import batch_of
from minikv.nano.kv_cache import KVCache
from minikv.plan import CacheSpec, LayerSpec

layer = LayerSpec("full", kv_heads=1, k_dim=8, v_dim=8, itemsize=4)
cache = KVCache(CacheSpec(layers=(layer,)), 4, 4, torch.float32, torch.device("cpu"))
batch = batch_of([[2], [3, 1]], lengths=[3, 6], new=[3, 1], block_size=4, device="cpu")
query = torch.ones(1, 2, 4, 8)  # [1, Hq, T, Dk]
key = torch.arange(1.0, 5.0).view(1, 1, 4, 1).expand(1, 1, 4, 8)  # [1, Hkv, T, Dk]
out, _ = attention.attend(SimpleNamespace(layer_idx=0), query, key, key, None, batch=batch, kv_cache=cache)

# %% key="attend_table" lang="en"
Table(
    ["block", "place 0", "place 1", "place 2", "place 3"],
    [[block, *row] for block, row in enumerate(cache.k[0, :, :, 0, 0].int().tolist())],  # [blocks, block size]
    title="The first number of K in each slot",
    lines=[
        f"positions {batch.positions.tolist()}, slots {batch.slots.tolist()}",
        f"result [1, T, Hq, Dv] = {list(out.shape)}",
    ],
)
# %% key="attend_table" lang="zh"
Table(
    ["块", "位置 0", "位置 1", "位置 2", "位置 3"],
    [[block, *row] for block, row in enumerate(cache.k[0, :, :, 0, 0].int().tolist())],  # [块数, 块大小]
    title="每个槽位里 K 的第一个数",
    lines=[
        f"位置 {batch.positions.tolist()}，槽位 {batch.slots.tolist()}",
        f"结果 [1, T, Hq, Dv] = {list(out.shape)}",
    ],
)

# %% [markdown] key="paged_read" lang="en"
# Position 5 of sequence 1 is place 1 of block 1, so its slot is 1 * 4 + 1 = 5.
#
# ### The specification: plain torch
#
# `paged_attention` says what is right, in readable torch. Look for:
#
# - `batch.groups`: sequences with equally many new tokens, computed at once.
# - `k_cache[blocks]`: the lookup. It *copies* the blocks out of the pool.
# - `q` gets the shape `[n, q, heads, group, Dk]`: neighbouring query heads belong to one KV head.
# - `hidden`: a query at position p sees the keys up to p. Empty places come after every query, so the same comparison hides them.
# - `-torch.inf` before the softmax makes a weight exactly 0. The value is multiplied by it all the same.
#
# Below the source we run it twice, with NaN and then with zeros in the places without a token:
# %% [markdown] key="paged_read" lang="zh" src="61ef3aca"
# 序列 1 的位置 5 是块 1 的第 1 个位置（从 0 数起），所以槽位是 1 * 4 + 1 = 5。
#
# ### 规范：普通的 torch
#
# `paged_attention` 用读得懂的 torch 写明什么是对的。留意：
#
# - `batch.groups`：新 token 数相同的序列，一次算完。
# - `k_cache[blocks]`：这就是查表。它把块从块池里**复制**出来。
# - `q` 的形状变成 `[n, q, heads, group, Dk]`：相邻的 query 头属于同一个 KV 头。
# - `hidden`：位置 p 的 query 只看到位置 p 为止的 key。空位都排在所有 query 之后，同一个比较就把它们遮住了。
# - softmax 之前的 `-torch.inf` 让权重正好为 0。不过，value 还是会和它相乘。
#
# 源码下面运行两次。没有 token 的地方，第一次放 NaN，第二次放零：

# %% key="paged_source"
show_source(attention.paged_attention)

# %% key="paged_code" lang="en"
batch, rows = case.batch(), []
for fill in (math.nan, 0.0):  # what lies beyond the lengths
    k, v = (cache.nan_to_num(nan=fill) for cache in (case.k_cache, case.v_cache))
    out = attention.paged_attention(case.query, k, v, batch, case.scale)
    rows.append([str(fill), int(out.isnan().sum()), out.numel(), case.close(out)])
sequences, _, columns = batch.groups[0]  # the block table of a group is as wide as its longest sequence
copied = len(sequences) * columns * 8
Table(
    ["beyond the lengths", "NaN", "numbers in all", "same as the reference"],
    rows,
    lines=[f"places copied out of the blocks: {copied}, of which {int(case.lengths.sum())} hold tokens"],
)
# %% key="paged_code" lang="zh"
batch, rows = case.batch(), []
for fill in (math.nan, 0.0):  # 长度之外的内容
    k, v = (cache.nan_to_num(nan=fill) for cache in (case.k_cache, case.v_cache))
    out = attention.paged_attention(case.query, k, v, batch, case.scale)
    rows.append([str(fill), int(out.isnan().sum()), out.numel(), case.close(out)])
sequences, _, columns = batch.groups[0]  # 一组的块表与其中最长的序列一样宽
copied = len(sequences) * columns * 8
Table(
    ["长度之外放", "NaN 个数", "共几个数", "与参考实现相同"],
    rows,
    lines=[f"从块里复制出 {copied} 个位置，其中 {int(case.lengths.sum())} 个有 token"],
)

# %% [markdown] key="launch" lang="en"
# Sequences 0 and 2 have empty places in their last blocks, so all their 2 * 8 * 16 = 256 numbers are NaN. A weight of 0 times NaN is NaN, so nano makes its pool with `torch.zeros`. (Exercise 10.5 is this function.)
# The other cost is the copy: 120 places were copied, and only 58 of them hold tokens. A kernel can read the blocks where they lie.
#
# ### The launch
#
# `decode_on_gpu` starts that kernel. Look for:
#
# - the grid `(num_seqs, heads)`: one program for each sequence and *KV* head;
# - the sizes in capitals, known at compile time and rounded up to powers of two. A matrix product needs at least 16 rows.
# %% [markdown] key="launch" lang="zh" src="cba8211c"
# 序列 0 和序列 2 的最后一块里有空位，它们的 2 * 8 * 16 = 256 个结果就全成了 NaN。权重 0 乘 NaN 还是 NaN，所以 nano 用 `torch.zeros` 创建块池。（练习 10.5 就是写这个函数。）
# 另一个代价是复制出来 120 个位置，其中只有 58 个有 token。而 kernel 可以直接在块里读。
#
# ### 启动
#
# `decode_on_gpu` 启动这个 kernel。留意：
#
# - 网格 `(num_seqs, heads)`：每条序列的每个 **KV** 头一个程序；
# - 名字大写的那些参数，它们编译时就已确定，并向上取整到 2 的幂。矩阵乘法至少要 16 行。

# %% key="launch_source"
show_source(attention.decode_on_gpu)

# %% [markdown] key="kernel_intro" lang="en"
# ### The kernel
#
# Each program carries `best`, `total` and `summed`, the $m$, $l$ and $a$ of step 2 for all query heads of its KV head. Look for:
#
# - **the line that reads the block table**: `block = tl.load(block_tables + ...)`;
# - `mask=seen` in every load. Where a mask is false, `tl.load` reads nothing and gives `other`.
# %% [markdown] key="kernel_intro" lang="zh" src="3f13eb19"
# ### kernel
#
# 每个程序带着 `best`、`total`、`summed`，也就是第 2 步的 $m$、$l$、$a$，只不过一次处理一个 KV 头的所有 query 头。留意：
#
# - **读块表的那一行**：`block = tl.load(block_tables + ...)`；
# - 每次读取都有的 `mask=seen`。掩码为假的地方，`tl.load` 不读，直接取 `other`。

# %% key="kernel_source"
if mode != "none":
    show_source(attention.paged_decode_kernel)

# %% [markdown] key="kernel_run" lang="en"
# We run it on the same sequences, this time with NaN in the pool:
# %% [markdown] key="kernel_run" lang="zh" src="f802af1d"
# 还是那三条序列，这次块池里放着 NaN：

# %% key="kernel_code" lang="en"
rows = []
if mode != "none":
    out = attention.decode_on_gpu(case.query, case.k_cache, case.v_cache, batch, case.scale)
    rows = [[len(case.lengths) * case.k_cache.shape[2], int(out.isnan().sum()), case.close(out)]]
Table(["programs", "NaN in the result", "same as the reference"], rows)
# %% key="kernel_code" lang="zh"
rows = []
if mode != "none":
    out = attention.decode_on_gpu(case.query, case.k_cache, case.v_cache, batch, case.scale)
    rows = [[len(case.lengths) * case.k_cache.shape[2], int(out.isnan().sum()), case.close(out)]]
Table(["程序数", "结果里的 NaN", "与参考实现相同"], rows)

# %% [markdown] key="second_tile" lang="en"
# What does program (2, 1) of the first picture find in its second tile? In plain Python:
# %% [markdown] key="second_tile" lang="zh" src="2fd8fff5"
# 第一张图里的程序 (2, 1) 在第二个 tile 里找到了什么？用普通的 Python 写出来：

# %% key="second_tile_code" lang="en"
at = torch.arange(32, 64)  # the 32 positions of the tile
at = at[at < 37]  # the mask `seen`: 5 of them lie within the length
block = case.block_tables[2].cpu()[at // 8]  # the lookup
slot = block * 8 + at % 8
token = slot * 2 + 1  # row of the cache seen as [slots * Hkv, D]; KV head 1
Table(["at", "block", "slot", "token"], zip(*(one.tolist() for one in (at, block, slot, token))))
# %% key="second_tile_code" lang="zh"
at = torch.arange(32, 64)  # 这个 tile 的 32 个位置
at = at[at < 37]  # 掩码 `seen`：其中 5 个在长度之内
block = case.block_tables[2].cpu()[at // 8]  # 查表
slot = block * 8 + at % 8
token = slot * 2 + 1  # 把缓存看作 [slots * Hkv, D] 时的行号；KV 头 1
Table(["at", "block", "slot", "token"], zip(*(one.tolist() for one in (at, block, slot, token))))

# %% [markdown] key="pages_read" lang="en"
# All five keys lie in one block. The kernel loads the block's number once for each of them, but from the same address, so memory answers once.
#
# Three things are easy to miss, and each has been a real bug:
#
# - `.to(tl.int64)`: in a large pool, block times stride doesn't fit in 32 bits.
# - `seen`: the last block isn't full.
# - `first_row`: query heads that share a KV head are neighbours, not every second one.
#
# (Exercise 10.6 is the loop of this kernel.)
#
# ### Follow it yourself
#
# With each step of the slider, the program reads one tile, here one block. Which entry, which block, which slots?
# Then add *splits*: programs that share the tiles and read at the same time. Step 5 says why.
# %% [markdown] key="pages_read" lang="zh" src="c4f1af18"
# 五个 key 都在同一块里。kernel 为每个位置读一次块号，但地址相同，只需从显存取一次。
#
# 有三处容易漏掉，每一处都真的出过 bug：
#
# - `.to(tl.int64)`：块池一大，块号乘步幅就超出 32 位。
# - `seen`：最后一块没有填满。
# - `first_row`：共用一个 KV 头的是相邻的几个 query 头，不是隔一个取一个。
#
# （练习 10.6 就是写这个 kernel 的循环。）
#
# ### 自己走一遍
#
# 滑块每走一步，程序就读一个 tile，这里就是一个块。读的是哪一项、哪一块、哪些槽位？
# 然后增加**切分数**（split），也就是由几个程序分担这些 tile，同时读。为什么要这样做，见第 5 步。

# %% key="widget"
from minikv.course.widgets import WalkWidget

show(WalkWidget(t("lang"), length=52, block_size=8, splits=1, step=2))

# %% [markdown] key="packed" lang="en"
# ## Step 4: pack the group
#
# In grouped-query attention (GQA) several query heads share one KV head. Nano's kernel packs them into one program, as the rows of a small matrix.
# What would a program for every *query* head cost?
# %% [markdown] key="packed" lang="zh" src="3627f64c"
# ## 第 4 步：按组打包
#
# 在分组查询注意力（GQA）里，几个 query 头共用一个 KV 头。nano 的 kernel 把它们打包，一个程序把同一个 KV 头的所有 query 头当作一个小矩阵的各行。
# 更简单的写法是每个 **query** 头一个程序。那样的代价是什么？

# %% key="predict_times"
predict("times_read", ...)

# %% key="moved" lang="en"
from minikv.course.charts import bars

ways = {
    "copy out of the blocks first": moved("gathered", asked),
    "a program for each query head": moved("per_head", asked),
    "a program for each KV head": moved("packed", asked),
}
times = [one.total / floor(asked).num_bytes for one in ways.values()]
names = [f"{name}: {ratio:.2f} times the floor" for name, ratio in zip(ways, times)]
parts = {
    "K and V": [one.kv / 1e9 for one in ways.values()],
    "copies, query, tables": [(one.total - one.kv) / 1e9 for one in ways.values()],
}
show(bars(names, parts, x="GB", stacked=True))
# %% key="moved" lang="zh"
from minikv.course.charts import bars

ways = {
    "先从块里复制出来": moved("gathered", asked),
    "每个 query 头一个程序": moved("per_head", asked),
    "每个 KV 头一个程序": moved("packed", asked),
}
times = [one.total / floor(asked).num_bytes for one in ways.values()]
names = [f"{name}：下限的 {ratio:.2f} 倍" for name, ratio in zip(ways, times)]
parts = {
    "K 和 V": [one.kv / 1e9 for one in ways.values()],
    "副本、query、块表": [(one.total - one.kv) / 1e9 for one in ways.values()],
}
show(bars(names, parts, x="GB", stacked=True))

# %% [markdown] key="packed_read" lang="en"
# The first bar is `paged_attention`. It reads K and V out of the blocks, writes a copy, and reads the copy: three times the floor.
# The last bar is a packed kernel, which loads each key once for the whole group. Only the tables keep it above the floor, since each of a sequence's 8 programs reads its table.
#
# These are the bytes that a kernel asks for. If K and V fit into the L2 cache, a repeated load is cheap, and packing can even be slower.
# %% [markdown] key="packed_read" lang="zh" src="a86d9988"
# 第一条是 `paged_attention`。它从块里读出 K 和 V，写一份副本，再读副本，一共是下限的三倍。
# 最后一条是打包的 kernel，每个 key 只为整组读一次。它与下限只差在块表，因为一条序列有 8 个程序，每个都要读它的表。
#
# 这些是 kernel 请求的字节。如果 K 和 V 放得进 L2 缓存，重复读取就很便宜，打包甚至可能更慢。

# %% [markdown] key="splits" lang="en"
# ## Step 5: split the sequence
#
# Packing has a price: fewer programs. A GPU has many *streaming multiprocessors* (SMs), an H200 for example 132, and each program runs on one of them. A program mostly waits for memory, so you need many at once for the full bandwidth.
# %% [markdown] key="splits" lang="zh" src="e85cf52a"
# ## 第 5 步：切分序列
#
# 打包的代价是程序变少了。GPU 有许多**流式多处理器**（SM），例如 H200 有 132 个，一个程序在其中一个上运行。
# 程序大部分时间在等显存，要有足够多的程序同时在等，才能用满带宽。

# %% key="predict_busy"
predict("busy", ...)

# %% [markdown] key="splits_story" lang="en"
# So we cut the *sequence* (split-KV). Each program takes a share of the tiles and leaves its result with its lse, and a second step puts the parts together. $w_j$ is the share of the probability that part $j$ holds:
#
# $$\text{lse} = \ln \sum_j e^{\text{lse}_j} \qquad w_j = e^{\text{lse}_j - \text{lse}} \qquad \text{out} = \sum_j w_j \, \text{out}_j$$
#
# | symbol | meaning | value here |
# |---|---|---|
# | $\text{lse}_j$ | lse of part $j$ | 90 and 89 |
# | $\text{out}_j$ | result of part $j$ | 2 and 3 |
# | $w_j$ | share of part $j$ | 0.731 and 0.269 |
#
# These are our four numbers, cut into (2, 90) and (89, 1): `lse = ln(e^90 + e^89) = 90.3133`, and `out = 0.731 * 2 + 0.269 * 3 = 2.269`, as before.
#
# Nano does without splits, so this kernel is the lesson's own. Two places are new: the bounds of the loop, and the lse that each part leaves.
# %% [markdown] key="splits_story" lang="zh" src="7ae75e65"
# 于是我们**沿序列切分**（split-KV）。每个程序负责一部分 tile，留下自己的结果和 lse，第二步再把各部分合起来。$w_j$ 是第 $j$ 部分所占的概率：
#
# $$\text{lse} = \ln \sum_j e^{\text{lse}_j} \qquad w_j = e^{\text{lse}_j - \text{lse}} \qquad \text{out} = \sum_j w_j \, \text{out}_j$$
#
# | 符号 | 含义 | 本例取值 |
# |---|---|---|
# | $\text{lse}_j$ | 第 $j$ 部分的 lse | 90 和 89 |
# | $\text{out}_j$ | 第 $j$ 部分的结果 | 2 和 3 |
# | $w_j$ | 第 $j$ 部分所占的份额 | 0.731 和 0.269 |
#
# 取值还是前面的四个数，切成 (2, 90) 和 (89, 1) 两份：`lse = ln(e^90 + e^89) = 90.3133`，`out = 0.731 * 2 + 0.269 * 3 = 2.269`，与之前相同。
#
# nano 不做切分，所以下面这个 kernel 是本课自己的。新的只有循环的范围，以及每一部分留下的 lse。

# %% key="splits_source"
if mode != "none":
    show_source(split_kernel)

# %% key="splits_code" lang="en"
from minikv.course.lessons.l10.launch import run_splits
from minikv.kernels import merge_splits

rows = []
for splits in (1, 2, 4, 9) if mode != "none" else ():
    parts, lse = run_splits(case, splits)  # [splits, B, Hq, D] and [splits, B, Hq]
    out, _ = merge_splits(parts, lse)
    rows.append([splits, int((lse[:, 0, 0] == -math.inf).sum()), case.close(out)])
Table(["splits", "of which sequence 0 leaves empty", "same as the reference"], rows)
# %% key="splits_code" lang="zh"
from minikv.course.lessons.l10.launch import run_splits
from minikv.kernels import merge_splits

rows = []
for splits in (1, 2, 4, 9) if mode != "none" else ():
    parts, lse = run_splits(case, splits)  # [splits, B, Hq, D] 和 [splits, B, Hq]
    out, _ = merge_splits(parts, lse)
    rows.append([splits, int((lse[:, 0, 0] == -math.inf).sum()), case.close(out)])
Table(["切分数", "其中序列 0 为空的", "与参考实现相同"], rows)

# %% [markdown] key="splits_read" lang="en"
# Sequence 0 has only one tile, so of two splits one has nothing to do. It leaves zeros and an lse of $-\infty$, so its share is 0.
#
# How many splits do you need? Enough to keep enough *bytes under way*. The data of a load arrive about 0.9 us later. So for 4.8 TB/s, each of the 132 SMs needs 4.8e12 * 0.9e-6 / 132 = 32,727 B under way at every moment. This is Little's law.
# A program multiplies one tile of K and V while the next is on its way: 2 * 64 tokens * 128 * 2 B = 32,768 B. So one program on each SM is just enough, and the package plans two, since a program also computes. More splits cost more than they bring, because each result has to be written and read again.
# %% [markdown] key="splits_read" lang="zh" src="2fa76eda"
# 序列 0 只有一个 tile，切成两份就有一份无事可做。它留下零和 $-\infty$ 的 lse，所占的份额为 0。
#
# 切成几份才好？要看**在途的字节**够不够。发出一次读取，数据大约 0.9 us 之后才到，所以要达到 4.8 TB/s，132 个 SM 中的每一个随时都要有 4.8e12 * 0.9e-6 / 132 = 32,727 B 正在路上。这就是 Little 定律。
# 一个程序在计算一个 K、V 的 tile 时，下一个 tile 正在路上，也就是 2 * 64 个 token * 128 * 2 B = 32,768 B。因此每个 SM 有一个程序就刚好够；程序还要计算，所以本包安排两个。切得更多得不偿失，因为每一份结果都要写出去再读回来。

# %% key="splits_cost" lang="en"
from minikv.course.lessons.l10.launch import package_splits
from minikv.kernels.occupancy import bytes_under_way, little

one, rows = Shape(lengths=(32768,), query_heads=32, kv_heads=8), []
for splits in (1, 4, 16, 64):
    programs = len(one.lengths) * one.kv_heads * splits
    under_way = bytes_under_way(programs, 132, at_once=3, tile_bytes=32768, buffers=2)  # at most 3 on an SM
    extra = moved("split", one, splits).total / floor(one).num_bytes - 1
    rows.append([splits, programs, round(under_way), f"{extra:.2%}"])
chosen = [package_splits(batch, 32768) for batch in (1, 4, 16, 64)] if mode != "none" else []
head = ["splits", "programs", f"B under way to an SM ({little(4.8e12, 132):,.0f} needed)", "extra bytes"]
Table(head, rows, right=head, lines=[f"The package's splits for 1, 4, 16 and 64 such sequences: {chosen}"])
# %% key="splits_cost" lang="zh"
from minikv.course.lessons.l10.launch import package_splits
from minikv.kernels.occupancy import bytes_under_way, little

one, rows = Shape(lengths=(32768,), query_heads=32, kv_heads=8), []
for splits in (1, 4, 16, 64):
    programs = len(one.lengths) * one.kv_heads * splits
    under_way = bytes_under_way(programs, 132, at_once=3, tile_bytes=32768, buffers=2)  # 一个 SM 最多放 3 个
    extra = moved("split", one, splits).total / floor(one).num_bytes - 1
    rows.append([splits, programs, round(under_way), f"{extra:.2%}"])
chosen = [package_splits(batch, 32768) for batch in (1, 4, 16, 64)] if mode != "none" else []
head = ["切分数", "程序数", f"每个 SM 在途的字节，需要 {little(4.8e12, 132):,.0f}", "多搬的字节"]
Table(head, rows, right=head, lines=[f"这样的序列有 1、4、16、64 条时，本包的切分数：{chosen}"])

# %% [markdown] key="real" lang="en"
# ## The package's kernel
#
# `minikv.kernels.paged_decode` adds what real engines need: tensor cores (not on a T4), windows, fp8, scores for eviction.
# Its tile (`BLOCK_N` tokens) need not be a block, so its lookup knows three cases: a tile inside a block, several whole blocks in a tile, and neither a multiple of the other.
# %% [markdown] key="real" lang="zh" src="e0fb0f17"
# ## 本包的 kernel
#
# `minikv.kernels.paged_decode` 还加上了实际需要的 Tensor Core（T4 上不用）、窗口、fp8、供淘汰用的分数。
# 它的一个 tile（`BLOCK_N` 个 token）不一定正好是一个块，所以查表时分三种情况，即 tile 在一个块之内，一个 tile 包含几个整块，两者互不整除。

# %% key="real_source"
if mode != "none":
    from minikv.kernels import gpu
    from minikv.kernels.gpu.tiles import block_ids, token_offsets

    show_source(block_ids)
    show_source(token_offsets)

# %% key="real_code" lang="en"
rows = []
for block_size in (64, 8, 12) if mode != "none" else ():
    other = paged([5, 70], kv_heads=2, group=4, dim=16, block_size=block_size, device=device)
    out = gpu.paged_decode(other.query, other.kv, scale=other.scale).out
    rows.append([block_size, other.close(out)])
Table(["block size", "same as the reference"], rows)
# %% key="real_code" lang="zh"
rows = []
for block_size in (64, 8, 12) if mode != "none" else ():
    other = paged([5, 70], kv_heads=2, group=4, dim=16, block_size=block_size, device=device)
    out = gpu.paged_decode(other.query, other.kv, scale=other.scale).out
    rows.append([block_size, other.close(out)])
Table(["块大小", "与参考实现相同"], rows)

# %% [markdown] key="real_read" lang="en"
# With small pages, a tile has more addresses to compute. This is where pages of one token lose bandwidth.
# Without `ALIGNED`, Triton can't see through a table that every row begins at a multiple of 16 elements, and loads one element (two bytes) at a time.
#
# ### One latent for all heads (optional)
#
# MLA ([lesson 03](03_the_2_86x_mistake.ipynb)) caches one latent a token, which is key and value at once, and a short key for the position (rope). Both belong to *every* head.
# Instead of making K and V of every head, you can bring the query to the latent: the up-projection of K is *absorbed* into the query, and that of V comes after the softmax. Here are 21 tokens in shuffled blocks, with 4 heads:
# %% [markdown] key="real_read" lang="zh" src="8ae6ef64"
# 页越小，每个 tile 要查的项和要算的地址就越多。每页 1 个 token 时，带宽就丢在这里。
# 不写 `ALIGNED`，带宽也会下降。因为隔着块表，Triton 推断不出每一行按 16 个元素对齐，只好一次读 1 个元素（2 字节）。
#
# ### 所有头共用一个潜在向量（选读）
#
# MLA（[第 03 课](03_the_2_86x_mistake.ipynb)）每个 token 只缓存一个潜在向量（latent），它既是 key 又是 value；此外还有一小段带位置的 key（rope）。两者都属于**所有**的头。
# 不必还原每个头的 K 和 V，可以反过来把 query 变换到潜在空间，K 的上投影**吸收**进 query（矩阵吸收），V 的上投影放到 softmax 之后。下面是打乱的块里的 21 个 token、4 个头：

# %% key="expanded" lang="en"
draw = torch.Generator().manual_seed(0)
heads, nope, rope, rank, tokens = 4, 16, 8, 32, 21
latents, ropes = (torch.randn(tokens, dim, generator=draw) for dim in (rank, rope))  # what MLA caches
up_k, up_v = (torch.randn(heads, nope, rank, generator=draw) for _ in range(2))
q_nope, q_rope = (torch.randn(heads, dim, generator=draw) for dim in (nope, rope))  # [H, nope], [H, rope]
scale = (nope + rope) ** -0.5

keys = torch.einsum("tr,hnr->htn", latents, up_k)  # K of every head: [H, T, nope]
logits = torch.einsum("hn,htn->ht", q_nope, keys) + q_rope @ ropes.T  # [H, T]
expanded = torch.einsum("ht,tr,hvr->hv", torch.softmax(logits * scale, -1), latents, up_v)  # [H, nope]
# %% key="expanded" lang="zh"
draw = torch.Generator().manual_seed(0)
heads, nope, rope, rank, tokens = 4, 16, 8, 32, 21
latents, ropes = (torch.randn(tokens, dim, generator=draw) for dim in (rank, rope))  # MLA 缓存的就是这些
up_k, up_v = (torch.randn(heads, nope, rank, generator=draw) for _ in range(2))
q_nope, q_rope = (torch.randn(heads, dim, generator=draw) for dim in (nope, rope))  # [H, nope]、[H, rope]
scale = (nope + rope) ** -0.5

keys = torch.einsum("tr,hnr->htn", latents, up_k)  # 每个头的 K：[H, T, nope]
logits = torch.einsum("hn,htn->ht", q_nope, keys) + q_rope @ ropes.T  # [H, T]
expanded = torch.einsum("ht,tr,hvr->hv", torch.softmax(logits * scale, -1), latents, up_v)  # [H, nope]

# %% [markdown] key="absorbed_now" lang="en"
# The same without K or V of any head, from latents that lie in blocks:
# %% [markdown] key="absorbed_now" lang="zh" src="0013aca4"
# 下面不还原任何头的 K 和 V，直接用放在块里的潜在向量：

# %% key="absorbed" lang="en"
from minikv.kernels import PagedKV, latent_decode

caches = [torch.full((4, 8, 1, dim), torch.nan) for dim in (rank, rope)]  # [blocks, block size, 1, dim]
slots = (torch.tensor([[2], [0], [3]]) * 8 + torch.arange(8)).flatten()[:tokens]  # blocks 2, 0, 3
for cache, new in zip(caches, (latents, ropes)):
    cache.view(4 * 8, -1)[slots] = new  # a row for each slot: [32, dim]
kv = PagedKV(*caches, block_tables=torch.tensor([[2, 0, 3]]), lengths=torch.tensor([tokens]))
q_latent = torch.einsum("hn,hnr->hr", q_nope, up_k)  # the query takes the up-projection of K: [H, rank]
out = latent_decode(q_latent[None], q_rope[None], kv, scale=scale).out[0]  # a batch of 1: [H, rank]
same = torch.allclose(torch.einsum("hr,hvr->hv", out, up_v), expanded, atol=1e-4)
head = ["elements a token, K and V of all heads", "latent and rope key", "same result"]
Table(head, [[heads * (2 * nope + rope), rank + rope, same]])
# %% key="absorbed" lang="zh"
from minikv.kernels import PagedKV, latent_decode

caches = [torch.full((4, 8, 1, dim), torch.nan) for dim in (rank, rope)]  # [块数, 块大小, 1, dim]
slots = (torch.tensor([[2], [0], [3]]) * 8 + torch.arange(8)).flatten()[:tokens]  # 块 2、0、3
for cache, new in zip(caches, (latents, ropes)):
    cache.view(4 * 8, -1)[slots] = new  # 一个槽位一行：[32, dim]
kv = PagedKV(*caches, block_tables=torch.tensor([[2, 0, 3]]), lengths=torch.tensor([tokens]))
q_latent = torch.einsum("hn,hnr->hr", q_nope, up_k)  # K 的上投影吸收进 query：[H, rank]
out = latent_decode(q_latent[None], q_rope[None], kv, scale=scale).out[0]  # batch 为 1：[H, rank]
same = torch.allclose(torch.einsum("hr,hvr->hv", out, up_v), expanded, atol=1e-4)
head = ["每个 token 的元素数：所有头的 K 和 V", "潜在向量加 rope key", "结果相同"]
Table(head, [[heads * (2 * nope + rope), rank + rope, same]])

# %% [markdown] key="latent_cost" lang="en"
# What does one layer cost in a step, for one sequence of 4,096 tokens and 128 heads as in DeepSeek-V3? The first row is Llama-3.1-8B, with 32 query heads and 8 KV heads.
# %% [markdown] key="latent_cost" lang="zh" src="07d745f8"
# 一条 4,096 个 token 的序列，像 DeepSeek-V3 那样 128 个头，一步里一层的字节数和 FLOP 是多少？第一行是用来对照的 Llama-3.1-8B，32 个 query 头、8 个 KV 头。

# %% key="latent" lang="en"
from minikv.kernels.traffic import decode_traffic, latent_decode_traffic

gqa = decode_traffic([4096], query_heads=32, kv_heads=8, dim=128)
mla = latent_decode_traffic([4096], heads=128)
Table(
    ["attention", "MB", "MFLOP", "FLOP/byte"],
    [
        [name, f"{one.num_bytes / 1e6:.2f}", f"{one.flops / 1e6:.1f}", f"{one.intensity:.1f}"]
        for name, one in (("GQA 32/8", gqa), ("MLA 128", mla))
    ],
    right=["MB", "MFLOP", "FLOP/byte"],
)
# %% key="latent" lang="zh"
from minikv.kernels.traffic import decode_traffic, latent_decode_traffic

gqa = decode_traffic([4096], query_heads=32, kv_heads=8, dim=128)
mla = latent_decode_traffic([4096], heads=128)
Table(
    ["注意力", "MB", "MFLOP", "FLOP/byte"],
    [
        [name, f"{one.num_bytes / 1e6:.2f}", f"{one.flops / 1e6:.1f}", f"{one.intensity:.1f}"]
        for name, one in (("GQA 32/8", gqa), ("MLA 128", mla))
    ],
    right=["MB", "MFLOP", "FLOP/byte"],
)

# %% [markdown] key="latent_read" lang="en"
# That is fewer bytes with far more arithmetic for each: on an H200 (ridge point about 200 FLOP/byte) this decode is just compute-bound.
#
# ## Measure it here
#
# Now we ask the lesson's question on this machine: K and V contiguous, in blocks in order or shuffled, or copied out of the blocks first. All move the same K and V. GB/s are the floor's bytes, divided by the time.
# %% [markdown] key="latent_read" lang="zh" src="d0258aaf"
# 字节更少，每个字节要做的计算却多得多。在 H200 上（拐点约 200 FLOP/字节），这样的解码已经刚好落在计算受限的一侧。
#
# ## 在本机上测量
#
# 现在在这台机器上回答本课的问题。K 和 V 连续存放，或者放在按次序、打乱的块里，或者先从块里复制出来。各种做法处理的 K 和 V 相同。GB/s 是下限的字节数除以所用时间。

# %% key="measure" lang="en" tags="timing"
from minikv.course.lessons.l10.measure import first_call_seconds, measure, steps_gb_s

lengths, dtype = ((8192,) * 16, torch.float16) if mode == "gpu" else ((2048,) * 4, torch.float32)
shape = Shape(lengths, query_heads=32, kv_heads=8, dim=128, itemsize=dtype.itemsize)
seconds = measure(shape, dtype, device)
names = [t("way_" + way, block_size=block_size) for way, block_size in seconds]
show(bars(names, {"GB/s": [floor(shape).num_bytes / one / 1e9 for one in seconds.values()]}, x="GB/s"))
# %% key="measure" lang="zh" tags="timing"
from minikv.course.lessons.l10.measure import first_call_seconds, measure, steps_gb_s

lengths, dtype = ((8192,) * 16, torch.float16) if mode == "gpu" else ((2048,) * 4, torch.float32)
shape = Shape(lengths, query_heads=32, kv_heads=8, dim=128, itemsize=dtype.itemsize)
seconds = measure(shape, dtype, device)
names = [t("way_" + way, block_size=block_size) for way, block_size in seconds]
show(bars(names, {"GB/s": [floor(shape).num_bytes / one / 1e9 for one in seconds.values()]}, x="GB/s"))

# %% [markdown] key="measure_read" lang="en"
# The first bar is torch's own kernel, and the others are ours (on a CPU in C, or in plain torch where there is no C compiler), so you compare kernels there, not layouts. To see what pages alone cost, stay with one kernel: compare the two bars with blocks of 16, in order and shuffled. (On a CPU that difference is noise.)
# In a benchmark of your own, shuffle the blocks, since an engine's blocks are seldom in order. And give every sequence its own blocks, or the data come from a cache.
#
# On a GPU the next cell draws bandwidth over the length of one sequence, with nothing in the L2. The first call of a kernel also compiles it, for seconds:
# %% [markdown] key="measure_read" lang="zh" src="959e14f0"
# 第一条是 torch 自己的 kernel，其余各条是我们的（在 CPU 上用 C 编写，没有 C 编译器时是普通的 torch 实现），所以两者之差是 kernel 之差。分页本身的代价要在同一个 kernel 之内看，例如块大小为 16 的两条，一条按次序，一条打乱。（在 CPU 上，看到的差别是噪声。）
# 自己做基准测试时，要把块打乱，因为线上引擎的块很少按次序排列；还要让每条序列有自己的块，否则数据就来自缓存。
#
# 在 GPU 上，下一个单元格画出一条序列的长度与带宽的关系，读到的内容都不在 L2 里。kernel 第一次调用时还要编译，需要几秒，单独列出：

# %% key="plot" lang="en" tags="hardware"
from minikv.course.charts import lines
from minikv.memory import copy_bandwidth

if mode == "gpu":
    sizes = [2**power for power in range(12, 19, 2)]
    rates = steps_gb_s(sizes, dtype, device)
    rates = {t("step_" + name): dict(zip(sizes, gb_s)) for name, gb_s in rates.items()}
    copy = copy_bandwidth(2**30, device).gb_s
    show(
        lines(
            rates, x="tokens of one sequence", y="GB/s", log="x", levels={"a plain copy on this card": copy}
        )
    )
    print("first call, second call: {:.2f} s, {:.6f} s".format(*first_call_seconds(dtype, device)))
# %% key="plot" lang="zh" tags="hardware"
from minikv.course.charts import lines
from minikv.memory import copy_bandwidth

if mode == "gpu":
    sizes = [2**power for power in range(12, 19, 2)]
    rates = steps_gb_s(sizes, dtype, device)
    rates = {t("step_" + name): dict(zip(sizes, gb_s)) for name, gb_s in rates.items()}
    copy = copy_bandwidth(2**30, device).gb_s
    show(lines(rates, x="一条序列的 token 数", y="GB/s", log="x", levels={"这块卡上的单纯复制": copy}))
    print("第一次调用、第二次调用：{:.2f} s、{:.6f} s".format(*first_call_seconds(dtype, device)))

# %% [markdown] key="break" lang="en"
# ## Break it
#
# ### One token too many
#
# A mask that is off by one reads the place after the last token. Our pool has NaN there. A real one has what the block's last holder left:
# %% [markdown] key="break" lang="zh" src="bc947860"
# ## 弄坏它
#
# ### 多读一个 token
#
# 掩码差一位，就会读到最后一个 token 后面的位置。我们的块池在那里放了 NaN。真实的块池里，那里是上一个持有者留下的内容：

# %% key="break_tail" lang="en"
from dataclasses import replace

from minikv.kernels import paged_decode

right = paged_decode(case.query, case.kv, scale=case.scale).out  # [B, Hq, D]
late = replace(case, lengths=case.lengths + torch.tensor([1, 0, 1], dtype=torch.int32, device=device))
stale = replace(late, k_cache=case.k_cache.nan_to_num(0.5), v_cache=case.v_cache.nan_to_num(0.5))
rows = []
for name, wrong in (("NaN", late), ("old numbers", stale)):
    out = paged_decode(case.query, wrong.kv, scale=case.scale).out[0]  # sequence 0: [Hq, D]
    rows.append([name, int(out.isnan().sum()), out.numel(), torch.allclose(out, right[0], atol=1e-3)])
Table(["after the last token", "NaN", "numbers in all", "the right answer"], rows)
# %% key="break_tail" lang="zh"
from dataclasses import replace

from minikv.kernels import paged_decode

right = paged_decode(case.query, case.kv, scale=case.scale).out  # [B, Hq, D]
late = replace(case, lengths=case.lengths + torch.tensor([1, 0, 1], dtype=torch.int32, device=device))
stale = replace(late, k_cache=case.k_cache.nan_to_num(0.5), v_cache=case.v_cache.nan_to_num(0.5))
rows = []
for name, wrong in (("NaN", late), ("残留的旧数据", stale)):
    out = paged_decode(case.query, wrong.kv, scale=case.scale).out[0]  # 序列 0：[Hq, D]
    rows.append([name, int(out.isnan().sum()), out.numel(), torch.allclose(out, right[0], atol=1e-3)])
Table(["最后一个 token 后面", "NaN 个数", "共几个数", "答案正确"], rows)

# %% [markdown] key="break_logical" lang="en"
# The second row is what happens in production: no NaN and no error, just a slightly different text. So our tests fill every unused place with NaN.
#
# ### Forgetting to look up the table
#
# A fresh pool hands its blocks out in order, 0, 1, 2. Then a kernel that takes a block's *logical* number for its place passes every test.
# %% [markdown] key="break_logical" lang="zh" src="e248fe14"
# 第二行才是线上会发生的事：没有 NaN，没有报错，只是文字略有不同。所以我们的测试把所有没用到的位置都填上 NaN。
#
# ### 忘了查表
#
# 块池刚建好时，块往往按 0、1、2 的次序分出去。这时把块的**逻辑**编号当作位置的 kernel，什么测试都能通过。

# %% key="break_logical_code" lang="en"
rows = []
for shuffled in (False, True):
    trial = paged([24], block_size=8, dim=16, shuffled=shuffled, device=device)
    no_table = torch.arange(3, dtype=torch.int32, device=device)[None]  # [[0, 1, 2]] instead of the table
    out = paged_decode(trial.query, replace(trial.kv, block_tables=no_table), scale=trial.scale).out
    rows.append([str(trial.block_tables[0].tolist()), trial.close(out)])
Table(["block table", "right without looking into it"], rows)
# %% key="break_logical_code" lang="zh"
rows = []
for shuffled in (False, True):
    trial = paged([24], block_size=8, dim=16, shuffled=shuffled, device=device)
    no_table = torch.arange(3, dtype=torch.int32, device=device)[None]  # 用 [[0, 1, 2]] 代替块表
    out = paged_decode(trial.query, replace(trial.kv, block_tables=no_table), scale=trial.scale).out
    rows.append([str(trial.block_tables[0].tolist()), trial.close(out)])
Table(["块表", "不查表也对"], rows)

# %% [markdown] key="break_int" lang="en"
# ### An offset that does not fit
#
# Block ids are 32-bit numbers, and in Triton the product of two 32-bit numbers has 32 bits again.
# %% [markdown] key="break_int" lang="zh" src="fe6b92b8"
# ### 装不下的偏移
#
# 块号是 32 位整数；在 Triton 里，两个 32 位整数相乘，结果仍是 32 位。

# %% key="predict_overflow"
predict("first_overflow", ...)

# %% key="break_int_code" lang="en"
stride = 480 * 576  # elements of a block: MLA with 480 tokens in each
last = 2**31 // stride
ids = torch.tensor([last, last + 1], dtype=torch.int32)
Table(
    ["block", "offset in int32", "offset in int64"],
    zip(ids.tolist(), (ids * stride).tolist(), (ids.long() * stride).tolist()),
    lines=[
        f"{stride:,} elements a block: block {last:,} is the last whose beginning fits into a signed 32-bit number"
    ],
)
# %% key="break_int_code" lang="zh"
stride = 480 * 576  # 一个块的元素数：MLA，每块 480 个 token
last = 2**31 // stride
ids = torch.tensor([last, last + 1], dtype=torch.int32)
Table(
    ["块", "int32 算出的偏移", "int64 算出的偏移"],
    zip(ids.tolist(), (ids * stride).tolist(), (ids.long() * stride).tolist()),
    lines=[f"每块 {stride:,} 个元素：块 {last:,} 是起始位置还装得进 32 位有符号整数的最后一块"],
)

# %% [markdown] key="break_int_read" lang="en"
# A crash is the lucky case: if the memory below the cache is in use, there is no error at all. In your own kernel, one `.to(tl.int64)` is the cure.
#
# ### Strides that are assumed
#
# Attention reads K and V in different ways, so they are stored apart ([lesson 06](06_the_linear_cache.ipynb)). Some engines make two tensors, as nano does, or one tensor `[2, blocks, ...]`; others put K and V of a block side by side, `[blocks, 2, ...]`. vLLM has used both of the latter.
# %% [markdown] key="break_int_read" lang="zh" src="4654e874"
# 崩溃还算幸运。如果缓存之前的那段地址另有所属，就根本不会报错。在自己写的 kernel 里，解决办法只是一个 `.to(tl.int64)`。
#
# ### 想当然的步幅
#
# 注意力读 K 和读 V 的方式不同，所以两者分开存放（[第 06 课](06_the_linear_cache.ipynb)）。有的引擎用两个张量（例如 nano），有的用一个张量 `[2, blocks, ...]`，还有的把一个块的 K 和 V 挨着放，即 `[blocks, 2, ...]`。后两种 vLLM 都用过。

# %% key="layouts" lang="en"
together = torch.stack([case.k_cache, case.v_cache])  # [2, blocks, block size, Hkv, D]
whole = torch.stack([case.k_cache, case.v_cache], 1)  # [blocks, 2, block size, Hkv, D]
layouts = {"two tensors": case.k_cache, "[2, blocks, ...]": together[0], "[blocks, 2, ...]": whole[:, 0]}
Table(
    ["layout", "elements from block to block", "token to token", "head to head"],
    [[name, *k.stride()[:3]] for name, k in layouts.items()],
)
# %% key="layouts" lang="zh"
together = torch.stack([case.k_cache, case.v_cache])  # [2, 块数, 块大小, Hkv, D]
whole = torch.stack([case.k_cache, case.v_cache], 1)  # [块数, 2, 块大小, Hkv, D]
layouts = {"两个张量": case.k_cache, "[2, blocks, ...]": together[0], "[blocks, 2, ...]": whole[:, 0]}
Table(
    ["布局", "块到块的元素数", "token 到 token", "头到头"],
    [[name, *k.stride()[:3]] for name, k in layouts.items()],
)

# %% [markdown] key="layouts_read" lang="en"
# Nano's kernel assumes a contiguous cache. In nano it always is, so nothing checks it:
# %% [markdown] key="layouts_read" lang="zh" src="0d815ee0"
# nano 的 kernel 假定缓存是连续的。在 nano 里确实总是连续，所以没有任何检查：

# %% key="break_stride" lang="en"
beside = replace(case, k_cache=whole[:, 0], v_cache=whole[:, 1])
outs = [("paged_decode", paged_decode(case.query, beside.kv, scale=case.scale).out)]
if mode != "none":
    batch = case.batch()
    outs.append(
        ("nano", attention.decode_on_gpu(case.query, beside.k_cache, beside.v_cache, batch, case.scale))
    )
rows = [
    [name, torch.allclose(out, right, atol=1e-5), int(out.isnan().any(-1).sum()), right[..., 0].numel()]
    for name, out in outs
]
Table(["K and V side by side", "right", "rows with NaN", "rows"], rows)
# %% key="break_stride" lang="zh"
beside = replace(case, k_cache=whole[:, 0], v_cache=whole[:, 1])
outs = [("paged_decode", paged_decode(case.query, beside.kv, scale=case.scale).out)]
if mode != "none":
    batch = case.batch()
    outs.append(
        ("nano", attention.decode_on_gpu(case.query, beside.k_cache, beside.v_cache, batch, case.scale))
    )
rows = [
    [name, torch.allclose(out, right, atol=1e-5), int(out.isnan().any(-1).sum()), right[..., 0].numel()]
    for name, out in outs
]
Table(["K 和 V 挨着放", "正确", "有 NaN 的行", "总行数"], rows)

# %% [markdown] key="break_stride_read" lang="en"
# Nano took 8 × 32 = 256 elements for the stride of a block, and here it is 512. Even NaN didn't help: its kernel read full blocks of other tokens.
#
# The package's operations take the strides from the tensors and check shapes and types first.
# %% [markdown] key="break_stride_read" lang="zh" src="1144be4d"
# nano 以为块的步幅是 8 × 32 = 256 个元素，而这里是 512。连 NaN 也没能暴露错误，因为它的 kernel 读到的是别的 token 的整块内容。
#
# 本包的各个操作都从张量上取步幅，并先检查形状、类型和步幅。

# %% key="errors"
from minikv.errors import MiniKVError

query, table = case.query.cpu(), case.block_tables.cpu()
kv = PagedKV(case.k_cache.cpu(), case.v_cache.cpu(), table, case.lengths.cpu())
foreign = replace(kv, block_tables=table.clone())
foreign.block_tables[2, 1] = 99
attempts = [
    lambda: paged_decode(query, foreign, scale=case.scale),
    lambda: paged_decode(query[:, :7], kv, scale=case.scale),
    lambda: paged_decode(query.double(), kv, scale=case.scale),
]
for attempt in attempts:
    try:
        attempt()
    except MiniKVError as error:
        print(f"{type(error).__name__}: {t(error)}")

# %% [markdown] key="recap" lang="en"
# ## Recap
#
# - A block table costs 0.006 % of K and V in bytes, with blocks of 16. What can cost time is turning its entries into addresses.
# - `paged_attention` copies the blocks first and moves three times the floor. A kernel reads them where they lie.
# - The online softmax carries a maximum and two sums from tile to tile. A larger maximum rescales both sums.
# - One program for each KV head loads K and V once instead of four times. Splits bring the lost programs back: 16 of them keep 31,775 B under way to each of 132 SMs, of 32,727 that are needed, for 0.53 % more bytes.
# - A place that must not count must not even be read: 0 times NaN is NaN, and stale numbers give no error.
# %% [markdown] key="recap" lang="zh" src="32f9b70a"
# ## 本课小结
#
# - 块大小 16 时，块表的字节只有 K 和 V 的 0.006%。真正可能费时间的，是由表项计算地址。
# - `paged_attention` 先把块复制出来，搬的字节是下限的三倍。kernel 则直接在块里读。
# - 在线 softmax 把一个最大值和两个和从一个 tile 带到下一个。最大值变大时，两个和都要重新缩放。
# - 每个 KV 头一个程序，K 和 V 只读一次，而不是四次。切分能把减少的程序补回来，例如切成 16 份，132 个 SM 每个有 31,775 B 在途（需要 32,727 B），只多搬 0.53% 的字节。
# - 不该算的就不该读，因为 0 乘 NaN 还是 NaN，而残留的旧数据不会引起任何报错。

# %% [markdown] key="self" lang="en"
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="c2d6ea3e"
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_cost"
explain("what_paging_costs")

# %% key="explain_online"
explain("why_online")

# %% key="explain_packed"
explain("why_packed")

# %% key="explain_split"
explain("why_split")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# You write the parts of a paged decode. Those with \* become parts of your engine.
#
# 1. `store_kv`: K and V to their slots.
# 2. `token_offsets`: from the block table to offsets.
# 3. `attend`: an online softmax.
# 4. `merge`: join two splits.
# 5. `paged_attention` \*: in torch.
# 6. `paged_decode_kernel` \*: the loop of nano's Triton kernel.
# %% [markdown] key="exercises" lang="zh" src="89e9c648"
# ## 练习
#
# 练习 notebook 要你写出分页解码的各个部分，带 \* 的会成为“你的引擎”的部件。
#
# 1. `store_kv`：把 K 和 V 写入槽位。
# 2. `token_offsets`：查块表，算出每个位置在缓存里的偏移。
# 3. `attend`：在线 softmax。
# 4. `merge`：把两份切分的结果合成一份。
# 5. `paged_attention` \*：用 torch 写的分页注意力。
# 6. `paged_decode_kernel` \*：nano 的 Triton kernel 的循环。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | a kernel gives another result than the reference | the same call with `MINIKV_KERNELS=reference` in the environment: if the result changes by more than rounding, the kernel is at fault; if not, look at tables, lengths and what was stored |
# | NaN in the output, or text that changes from run to run | `cache[unused_blocks] = nan` before the call: NaN in the answer then means that a query read past a length, or a block of another sequence |
# | far below the card's bandwidth | `floor(shape).num_bytes / seconds / 1e9` against `copy_bandwidth(2**30).gb_s`; then `batch * kv_heads * splits` against the number of SMs, `torch.cuda.get_device_properties(0).multi_processor_count` |
# %% [markdown] key="stuck" lang="zh" src="e43311c8"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | kernel 的结果与参考实现不同 | 设环境变量 `MINIKV_KERNELS=reference`，再调用一次：结果变了（不只是舍入误差），问题在 kernel；没变，就去查块表、长度和写入的内容 |
# | 输出里有 NaN，或者每次运行的文字不一样 | 调用之前先执行 `cache[unused_blocks] = nan`：答案里出现 NaN，就说明某个 query 读过了头，或者读了别的序列的块 |
# | 远达不到显卡的带宽 | 先比较 `floor(shape).num_bytes / seconds / 1e9` 与 `copy_bandwidth(2**30).gb_s`；再比较 `batch * kv_heads * splits` 与 SM 数，即 `torch.cuda.get_device_properties(0).multi_processor_count` |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# <details>
# <summary>Six reports, and the part of the lesson that explains each</summary>
#
# - **Paged, and faster.** In February 2024 a user measured flash-attention with 32 sequences of 8,192 tokens. The contiguous cache took 1.35 times as long as the paged one ([flash-attention #841](https://github.com/Dao-AILab/flash-attention/issues/841)). flash-attention 2 always sent a paged cache to its split kernel (step 5), but a contiguous one only under conditions (`force_split_kernel` in [`flash_api.cpp`](https://github.com/Dao-AILab/flash-attention/blob/main/csrc/flash_attn/flash_api.cpp)). So the user compared two kernels.
# - **Pages of one token.** On Blackwell GPUs the same bytes moved at 0.87 TB/s with pages of one token and at 4.0 with pages of 128 ([PR #1999](https://github.com/Dao-AILab/flash-attention/pull/1999)). Then the threads divided the address arithmetic among them, and every page size reached 5 TB/s with tables as large as before ([PR #2104](https://github.com/Dao-AILab/flash-attention/pull/2104); *The floor*).
# - **Packing.** MLX loaded K and V again for each of 8 query heads of a group, and moved 195 of 266 GB/s ([PR #4077](https://github.com/ml-explore/mlx/pull/4077)). Another engine became 9 % slower by packing, because its 42 MB a layer fitted into an L2 cache of 96 MB and 128 programs were too few ([imp PR #1785](https://github.com/kekzl/imp/pull/1785); step 4).
# - **No split.** A kernel for AMD GPUs ran one sequence of 32,768 tokens as a single program on 256 compute units (AMD's SMs): 0.1 TB/s, where the card has 8 ([aiter PR #4794](https://github.com/ROCm/aiter/pull/4794)). Step 5 is the cure.
# - **The bugs of *Break it*.** Offsets in 32 bits crashed vLLM once block ids crossed about 7767 ([PR #47671](https://github.com/vllm-project/vllm/pull/47671)), and gave no error at all elsewhere ([#50427](https://github.com/vllm-project/vllm/issues/50427)). A kernel of aiter assumed the stride of a block ([PR #3498](https://github.com/ROCm/aiter/pull/3498)), and jax-js gave each KV head every fourth query head ([PR #180](https://github.com/ekzhang/jax-js/pull/180)).
# - **A benchmark's faults.** TileOPs measured blocks in order that all sequences shared, so they came from a cache. It found both faults itself ([#2014](https://github.com/tile-ai/TileOPs/issues/2014); *Measure it here*).
#
# </details>
# %% [markdown] key="wild" lang="zh" src="6db0e775"
# ## 实战现场
#
# <details>
# <summary>六份报告，以及解释它们的小节</summary>
#
# - **分页反而更快。** 2024 年 2 月，一位用户用 32 条 8,192 个 token 的序列测 flash-attention，连续缓存的用时是分页的 1.35 倍（[flash-attention #841](https://github.com/Dao-AILab/flash-attention/issues/841)）。因为 flash-attention 2 遇到分页缓存总是用切分 kernel（第 5 步），遇到连续缓存只在某些条件下才用（[`flash_api.cpp`](https://github.com/Dao-AILab/flash-attention/blob/main/csrc/flash_attn/flash_api.cpp) 里的 `force_split_kernel`），所以比较的其实是两个 kernel。
# - **每页 1 个 token。** 在 Blackwell GPU 上，同样的字节，每页 1 个 token 时是 0.87 TB/s，每页 128 个时是 4.0 TB/s（[PR #1999](https://github.com/Dao-AILab/flash-attention/pull/1999)）。后来地址计算分摊给了各个线程，任意页大小都能到 5 TB/s，而块表一点也没有变小（[PR #2104](https://github.com/Dao-AILab/flash-attention/pull/2104)；见“下限”）。
# - **按组打包。** MLX 原先为一组里的 8 个 query 头各读一遍 K 和 V，266 GB/s 的机器只用到 195（[PR #4077](https://github.com/ml-explore/mlx/pull/4077)）。另一个引擎打包之后反而慢了 9%，因为每层 42 MB 放得进 96 MB 的 L2 缓存，而 128 个程序太少（[imp PR #1785](https://github.com/kekzl/imp/pull/1785)；见第 4 步）。
# - **不做切分。** AMD GPU 上的一个 kernel 把一条 32,768 个 token 的序列交给 256 个计算单元（相当于 SM）中的一个，带宽 0.1 TB/s，而卡有 8 TB/s（[aiter PR #4794](https://github.com/ROCm/aiter/pull/4794)）。解决办法就是第 5 步。
# - **“弄坏它”里的 bug。** 块号超过约 7767 时，32 位的偏移曾让 vLLM 崩溃（[PR #47671](https://github.com/vllm-project/vllm/pull/47671)），在另一处则没有任何报错（[#50427](https://github.com/vllm-project/vllm/issues/50427)）。aiter 有个 kernel 想当然地计算块的步幅（[PR #3498](https://github.com/ROCm/aiter/pull/3498)），jax-js 本该取相邻的几个 query 头，却每隔几个取一个（[PR #180](https://github.com/ekzhang/jax-js/pull/180)）。
# - **基准测试的毛病。** TileOPs 的测试里，块按次序排列，又由所有序列共用，所以数据来自缓存。这两个毛病都是它自己发现的（[#2014](https://github.com/tile-ai/TileOPs/issues/2014)；见“在本机上测量”）。
#
# </details>

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You can write to any slot and read any table, for many sequences of any length in one call.
# [Lesson 11a](11a_continuous_batching.ipynb) decides at every step which sequences are in that call.
# %% [markdown] key="next" lang="zh" src="ea2650fa"
# ## 下一课
#
# 现在你能写入任何槽位、读任何块表，一次调用处理许多条长短不一的序列。
# [第 11a 课](11a_continuous_batching.ipynb)在每一步决定让哪些序列进入这次调用。
