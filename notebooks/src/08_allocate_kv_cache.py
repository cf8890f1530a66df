# %% [meta]
# number = "08"
# slug = "allocate_kv_cache"
# needs = ["02b", "07"]
# rooms = ["cache.allocator", "cache.allocation", "plan.measured", "nano.kv_cache", "nano.llm"]
# [title]
# en = "allocate_kv_cache: how many blocks fit?"
# zh = "allocate_kv_cache：放得下多少块？"
# [t4]
# en = "Everything runs. On the T4 the cells under \"On this machine\" measure the formula's four numbers; elsewhere they are given or come from the simulated allocator."
# zh = "全部可以运行。在 T4 上，“在这台机器上”一节的单元格会实测公式里的四个数；其余数字由程序给定，或来自模拟的分配器。"
# [paper]
# en = "08.1, 08.2, 08.4"
# zh = "08.1、08.2、08.4"

# %% [markdown] key="first" lang="en"
# ## The question
#
# You start an engine with your model on your GPU. It reads the weights, runs one large step, and then makes one allocation: as many cache blocks as fit.
# **How many blocks fit, and what is the rest of the memory kept for?**
#
# Below, 32 sequences of Llama-3.1-8B grow on a card of 80 GB. Press play: every token takes its bytes, and at some length more is needed than the 71.30 GiB that the engine may use (0.9 of the card's 79.22 GiB).
# %% [markdown] key="first" lang="zh" src="cc186ae6"
# ## 问题
#
# 你在自己的 GPU 上启动引擎。它读入权重，把最大的一步跑一遍，然后一次性分配缓存，能放下多少块就分多少块。
# **放得下多少块？剩下的显存又要留给什么？**
#
# 下面是一块 80 GB 的卡，32 条 Llama-3.1-8B 的序列在上面增长。按播放，可以看到每个 token 都要占字节，到某个长度，就会超出引擎可用的 71.30 GiB（79.22 GiB 的 0.9）。

# %% key="growing_bar" lang="en"
from minikv.course.motion import MemoryBarMotion

show(MemoryBarMotion("en", "Llama-3.1-8B", "H100 SXM 80GB", context=32_768, batch=32, steps=8))

# %% key="growing_bar" lang="zh"
from minikv.course.motion import MemoryBarMotion

show(MemoryBarMotion("zh", "Llama-3.1-8B", "H100 SXM 80GB", context=32_768, batch=32, steps=8))

# %% [markdown] key="able" lang="en"
# After this lesson you can
#
# - **compute** how many blocks an engine makes, from the four numbers that it measures at start;
# - **say** what each of them counts, and why the share of the GPU that you set may be read in two ways;
# - **find** from a log which number was too large when an engine has too few blocks, or crashes later.
#
# You need the bytes of a token ([lesson 02](02_how_many_bytes.ipynb)) and two words of [lesson 07](07_allocate_once.ipynb): torch *reserves* segments, and *allocates* tensors in them.
#
# ## Two meanings of one share
#
# You tell an engine which share of the GPU it may use. vLLM calls it `gpu_memory_utilization`, we say `utilization`. Take small numbers: a GPU of 1,000 bytes, 500 of them taken by another process, and a utilization of 0.2. How many bytes are left for the cache?
#
# The share can limit *everything* on this GPU, or it can limit *this process* alone:
# %% [markdown] key="able" lang="zh" src="d5def7f2"
# 学完本课，你能够：
#
# - 用引擎启动时测得的四个数，**算出**它会分多少块；
# - **说出**每个数统计的是什么，以及你设定的利用率为什么有两种读法；
# - 引擎块数太少或后来崩溃时，从日志里**找出**是哪个数太大。
#
# 本课用到一个 token 的字节数（[第 02 课](02_how_many_bytes.ipynb)），以及[第 07 课](07_allocate_once.ipynb)的两个词：torch **保留**的是段，**分配**的是段里的张量。
#
# ## 一个比例，两种含义
#
# 启动引擎时，你要告诉它可以用 GPU 的多大比例。vLLM 里叫 `gpu_memory_utilization`，本课叫 `utilization`（利用率）。先用小数字试一试，例如 GPU 共 1,000 字节，其中 500 已被别的进程占用，利用率设为 0.2。留给缓存的有多少字节？
#
# 这个比例可以限制 GPU 上的**全部**占用，也可以只限制**本进程**：

# %% key="answer" lang="en"
from minikv.course import Table
from minikv.plan.measured import MeasuredTerms

whole = MeasuredTerms(total=1000, utilization=0.2, used=500, peak=0, current=0)
own = MeasuredTerms(total=1000, utilization=0.2, used=0, peak=0, current=0)
rows = [("everything on the GPU", whole.available), ("this process alone", own.available)]
Table(["the share limits", "left for the cache (B)"], rows)

# %% key="answer" lang="zh"
from minikv.course import Table
from minikv.plan.measured import MeasuredTerms

whole = MeasuredTerms(total=1000, utilization=0.2, used=500, peak=0, current=0)
own = MeasuredTerms(total=1000, utilization=0.2, used=0, peak=0, current=0)
rows = [("GPU 上的全部", whole.available), ("只限本进程", own.available)]
Table(["这个比例限制的是", "留给缓存（B）"], rows)

# %% [markdown] key="answer_read" lang="en"
# With the first meaning, 200 bytes may be used in all and 500 already are, so 300 are missing. With the second, this process gets its own 200.
#
# Both are right, for different questions.
# With the first meaning the engines on a GPU together never take more than the share; a second engine must be given a larger share. For example, if both are to get 0.4, the first is given 0.4 and the second 0.8.
# With the second meaning every engine has its own share, and you have to make sure that the shares add up.
# vLLM's documentation gave the first meaning for [v0.6.4](https://docs.vllm.ai/en/v0.6.4/models/engine_args.html) and gives the second today, so look at your version before you copy a share.
# minikv takes the first. Its report says what other processes hold, if the driver gives that number.
#
# Now with a model. An engine runs its largest step once, without a cache. This is the **warm-up**. Then it reads three more numbers:
#
# - **used**: what is taken on the GPU, by all processes;
# - **peak**: the most that torch had allocated during the step, weights included;
# - **current**: what torch has allocated now, that is, the weights.
#
# Work it out before you read on:
# %% [markdown] key="answer_read" lang="zh" src="7b82dc8b"
# 按第一种含义，总共只能用 200 字节，而已经用了 500，所以差 300。按第二种含义，本进程可以用自己的 200。
#
# 两个都对。
# 按第一种含义，GPU 上所有引擎合起来不会超过这个比例；不过第二个引擎得设更大的值。例如两个都想用 0.4，第一个设 0.4，第二个就要设 0.8。
# 按第二种含义，每个引擎各有份额，需要你自己保证加起来不超过总量。
# vLLM 的文档在 [v0.6.4](https://docs.vllm.ai/en/v0.6.4/models/engine_args.html) 里写的是第一种，如今写的是第二种，所以照抄一个比例之前，先看版本。
# minikv 采用第一种；驱动能给出数字时，报告会写明其他进程占了多少。
#
# 现在放进一个模型。引擎先不带缓存，把最大的一步跑一遍，这叫**预热（warm-up）**。然后再看三个数：
#
# - **used**：GPU 上所有进程已占用的显存；
# - **peak**：这一步当中 torch 已分配的最大值，含权重；
# - **current**：torch 现在已分配的大小，也就是权重。
#
# 先自己算一算，再往下读：

# %% key="predict_fit"
predict("blocks_fit", ...)

# %% [markdown] key="formula" lang="en"
# ## The formula
#
# Written as a formula, with the utilization as $u$:
#
# $$\text{available} = \lfloor \text{total} \cdot u \rfloor - \text{used} - \text{peak} + \text{current} \qquad\quad \text{num\_blocks} = \left\lfloor \frac{\text{available}}{\text{block\_bytes}} \right\rfloor$$
#
# | symbol | comes from | meaning | value here |
# |---|---|---|---|
# | $\text{total}$ | driver | memory of the GPU | 85,061,827,297 B |
# | $u$ | you | utilization: the share that may be used, by everything on the GPU | 0.9 |
# | $\text{used}$ | driver | taken after the warm-up, by all processes: weights, CUDA context, libraries, others | 18,118,304,896 B |
# | $\text{peak}$ | torch | the most that was allocated since the reset before the warm-up, weights included | 16,966,492,160 B |
# | $\text{current}$ | torch | allocated now: the weights | 16,060,522,496 B |
# | $\text{block\_bytes}$ | config | K and V of one block of 16 tokens, in all layers of this rank | 2,097,152 B |
#
# The values are those of Llama-3.1-8B on an H100 80GB, which we start in a moment. With the numbers put in:
#
# $$76{,}555{,}644{,}567 - 18{,}118{,}304{,}896 - 16{,}966{,}492{,}160 + 16{,}060{,}522{,}496 = 57{,}531{,}370{,}007 \qquad \lfloor 57{,}531{,}370{,}007 / 2{,}097{,}152 \rfloor = 27{,}433$$
#
# Read it like this: from the share, subtract **what is taken already** (used), then **what every step will need on top** (peak - current).
# The weights are in used and in peak, so they are subtracted twice. Adding current undoes one of the two.
#
# How does it compare with a real engine? A log of vLLM from December 2024 says for Llama-3-8B on a GPU of 79.22 GiB: weights 14.96, non-torch 1.79, activations 1.26 GiB.
# On two GPUs each holds half the weights, but non-torch grows to 3.58 GiB, because the libraries that connect the GPUs come on top.
# %% [markdown] key="formula" lang="zh" src="b6ee1239"
# ## 公式
#
# 写成公式，利用率记作 $u$：
#
# $$\text{available} = \lfloor \text{total} \cdot u \rfloor - \text{used} - \text{peak} + \text{current} \qquad\quad \text{num\_blocks} = \left\lfloor \frac{\text{available}}{\text{block\_bytes}} \right\rfloor$$
#
# | 符号 | 来源 | 含义 | 本例取值 |
# |---|---|---|---|
# | $\text{total}$ | 驱动 | GPU 的全部显存 | 85,061,827,297 B |
# | $u$ | 由你设定 | 利用率，即 GPU 上的一切合起来可用的比例 | 0.9 |
# | $\text{used}$ | 驱动 | 预热之后已占用，含所有进程（权重、CUDA 上下文、各种库、其他进程） | 18,118,304,896 B |
# | $\text{peak}$ | torch | 预热前重置之后，已分配的最大值，含权重 | 16,966,492,160 B |
# | $\text{current}$ | torch | 现在已分配，也就是权重 | 16,060,522,496 B |
# | $\text{block\_bytes}$ | 配置 | 16 个 token 的一个块的 K 和 V，本 rank 的所有层 | 2,097,152 B |
#
# 表里是 Llama-3.1-8B 在 H100 80GB 上的数字，马上就会让它启动一次。代入公式：
#
# $$76{,}555{,}644{,}567 - 18{,}118{,}304{,}896 - 16{,}966{,}492{,}160 + 16{,}060{,}522{,}496 = 57{,}531{,}370{,}007 \qquad \lfloor 57{,}531{,}370{,}007 / 2{,}097{,}152 \rfloor = 27{,}433$$
#
# 可以这样理解，从可用的份额里减去**现在已有的**（used），再减去**每一步都会再来的**（peak - current）。
# 权重在 used 和 peak 里各有一份，等于减了两次，所以用 current 加回一次。
#
# 与真实的引擎比一比。例如 2024 年 12 月的一份 vLLM 日志，Llama-3-8B 在 79.22 GiB 的 GPU 上，权重 14.96，非 torch 1.79，激活 1.26 GiB。
# 用两块 GPU 时，每块只放一半权重，但非 torch 部分增加到 3.58 GiB，因为多了负责 GPU 互联的库。

# %% key="log" lang="en"
from minikv.plan import CacheSpec
from minikv.units import GIB

rows = []
for tp, weights, non_torch in ((1, 14.96, 1.79), (2, 7.48, 3.58)):
    used, peak = weights + non_torch, weights + 1.26  # GiB
    terms = MeasuredTerms(int(79.22 * GIB), 0.9, int(used * GIB), int(peak * GIB), int(weights * GIB))
    block = CacheSpec.from_config("Llama-3-8B", tp=tp).block_bytes(16)
    rows.append((f"tp={tp}", f"{terms.available / GIB:.2f}", block, terms.available // block))
Table(["ranks", "available (GiB)", "block (B)", "blocks"], rows, right=["available (GiB)"])

# %% key="log" lang="zh"
from minikv.plan import CacheSpec
from minikv.units import GIB

rows = []
for tp, weights, non_torch in ((1, 14.96, 1.79), (2, 7.48, 3.58)):
    used, peak = weights + non_torch, weights + 1.26  # GiB
    terms = MeasuredTerms(int(79.22 * GIB), 0.9, int(used * GIB), int(peak * GIB), int(weights * GIB))
    block = CacheSpec.from_config("Llama-3-8B", tp=tp).block_bytes(16)
    rows.append((f"tp={tp}", f"{terms.available / GIB:.2f}", block, terms.available // block))
Table(["rank 数", "可用（GiB）", "每块（B）", "块数"], rows, right=["可用（GiB）"])

# %% [markdown] key="log_read" lang="en"
# The first log has vLLM's own result, too: `available_kv_cache_memory 53.29GiB`, the same as ours.
#
# ## Six moments
#
# When are the four numbers read?
# Below an engine starts in the simulated allocator of [lesson 07](07_allocate_once.ipynb). Every parameter of Llama-3.1-8B is an allocation, and a step of 8,192 tokens makes and frees the tensors of all 32 layers.
# The GPU has 79.22 GiB; its context and libraries hold 1.79 GiB.
# %% [markdown] key="log_read" lang="zh" src="57c2c497"
# 第一份日志里也有 vLLM 自己的结果 `available_kv_cache_memory 53.29GiB`，与我们算的一致。
#
# ## 六个时刻
#
# 这四个数是什么时候读的？
# 下面让一个引擎在[第 07 课](07_allocate_once.ipynb)模拟的分配器里启动。Llama-3.1-8B 的每个参数都是一次分配，8,192 个 token 的一步会在 32 层里依次创建、释放各个张量。
# GPU 共 79.22 GiB，上下文和各种库占 1.79 GiB。

# %% key="moments" lang="en"
from minikv.course.diagrams import start_moments
from minikv.course.lessons.l08.engine_memory import CHUNK, NON_TORCH, TOTAL, mixed_steps, report_of, serve, start_up

started = start_up(0.9, warmup_tokens=CHUNK, staging=5 * GIB)  # the loader stages 5 GiB on the GPU
terms, best = started.terms, started.num_blocks
show(start_moments(started, "en"))

# %% key="moments" lang="zh"
from minikv.course.diagrams import start_moments
from minikv.course.lessons.l08.engine_memory import CHUNK, NON_TORCH, TOTAL, mixed_steps, report_of, serve, start_up

started = start_up(0.9, warmup_tokens=CHUNK, staging=5 * GIB)  # 加载时会在 GPU 上暂放 5 GiB
terms, best = started.terms, started.num_blocks
show(start_moments(started, "zh"))

# %% [markdown] key="moments_read" lang="en"
# - **load.** The loader held a shard of 5 GiB for a moment and freed it. The peak remembers it, and torch keeps its segment cached.
# - **reset_peak.** First `empty_cache` gives that segment back, and used falls. Then `reset_peak_memory_stats` makes the peak start again from what is allocated now.
# - **warm_up.** Activations came and went. current is as before, the peak is higher, and used is higher too, because torch keeps the freed memory cached.
# - **empty_cache** gives the cached memory back, so that used counts only what is needed. The peak stays: the warm-up was made to find it.
# - **allocate.** The cache takes what is available.
#
# Leave a moment out, and you lose blocks:
# %% [markdown] key="moments_read" lang="zh" src="0936adea"
# - **load**：加载时曾有 5 GiB 的分片短暂存在，随后释放。峰值记住了它，它占过的段还被 torch 缓存着。
# - **reset_peak**：先用 `empty_cache` 归还那个段，used 随之下降；再用 `reset_peak_memory_stats` 让峰值从当前已分配的大小重新算起。
# - **warm_up**：激活来过又释放了。current 不变，峰值升高；used 也升高了，因为释放的显存还被 torch 缓存着。
# - **empty_cache**：把缓存的显存还回去，used 才只算真正需要的部分。峰值保留，预热正是为了测出它。
# - **allocate**：缓存拿走可用的部分。
#
# 少做一步，块就会变少：

# %% key="variants" lang="en"
left_out = {
    "nothing": {},
    "reset_peak: the peak still has the 5 GiB of the loader's shard": {"reset_peak": False},
    "empty_cache, twice: the shard's 5 GiB stay cached and count as used": {"empty_cache": False},
}
blocks = {what: start_up(0.9, staging=5 * GIB, **options).num_blocks for what, options in left_out.items()}
Table(["left out", "blocks", "fewer"], [(what, count, best - count) for what, count in blocks.items()])

# %% key="variants" lang="zh"
left_out = {
    "每一步都做": {},
    "不做 reset_peak：加载时 5 GiB 的分片还在峰值里": {"reset_peak": False},
    "两次 empty_cache 都不做：分片占过的 5 GiB 一直缓存着，算进 used": {"empty_cache": False},
}
blocks = {what: start_up(0.9, staging=5 * GIB, **options).num_blocks for what, options in left_out.items()}
Table(["少做了什么", "块数", "少几块"], [(what, count, best - count) for what, count in blocks.items()])

# %% [markdown] key="mib" lang="en"
# The reset saves less than the shard's 2,560 blocks, because the warm-up has a peak of its own: the peak falls from 19.96 to 15.80 GiB, and these 4.16 GiB are 2,128 blocks.
#
# A wrong unit loses blocks, too. The formula takes bytes, while `nvidia-smi` prints MiB, and 1 MiB is $2^{20} = 1{,}048{,}576$ bytes.
# %% [markdown] key="mib" lang="zh" src="e2d0c270"
# 不重置峰值，少的不到 2,560 块，因为预热自己也有峰值。也就是说，只差 19.96 - 15.80 = 4.16 GiB，合 2,128 块。
#
# 单位弄错，块同样会变少，因为公式用的是字节，而 `nvidia-smi` 打印的是 MiB，1 MiB 等于 $2^{20} = 1{,}048{,}576$ 字节。

# %% key="predict_mib"
predict("mib_as_millions", ...)

# %% [markdown] key="see" lang="en"
# ## See it
#
# Here every term is a part of a live bar: at the top the six moments, below what each part of the GPU is for in the end.
# This time the numbers come from the planner, which computes on paper and also sets some workspace aside, so there are a few blocks less.
#
# Try this, and say before each step what will change:
#
# 1. Move the utilization. Which parts of the bar move, and which do not?
# 2. Raise the warm-up from 8,192 to 65,536 tokens. Why are there fewer blocks?
# 3. Raise what is outside of torch. The formula notices. Does the row "Short form", `limit - peak`? (`limit` is $\lfloor \text{total} \cdot u \rfloor$.)
# 4. Choose a larger model until the formula says that it doesn't fit.
# %% [markdown] key="see" lang="zh" src="5c97e042"
# ## 亲眼看看
#
# 这里每一项都是条形图的一部分，上面是六个时刻，下面是 GPU 的每一部分最终用在哪里。
# 数字来自规划器的纸面计算；它还预留了工作空间，所以块略少。
#
# 每一步动手之前，先说出会发生什么：
#
# 1. 移动利用率。哪些部分会动，哪些不动？
# 2. 把预热从 8,192 个 token 提高到 65,536 个。块为什么变少了？
# 3. 增大 torch 之外的部分。公式察觉到了，那么“简写公式”一行的 `limit - peak` 呢？（`limit` 就是 $\lfloor \text{total} \cdot u \rfloor$。）
# 4. 换更大的模型，直到公式说放不下。

# %% key="widget" lang="en"
from minikv.course.widgets.allocation import AllocationWidget

show(AllocationWidget("en", model="Llama-3.1-8B", gpu="H100 SXM 80GB", non_torch=1.75))

# %% key="widget" lang="zh"
from minikv.course.widgets.allocation import AllocationWidget

show(AllocationWidget("zh", model="Llama-3.1-8B", gpu="H100 SXM 80GB", non_torch=1.75))

# %% [markdown] key="nano" lang="en"
# ## The source, in nano first
#
# `minikv.nano` does all of this in three functions of arithmetic and one method that measures.
# In `measure_num_blocks`, find three of the six moments: which line is the reset, which the warm-up, which `empty_cache`? (The model has been loaded before, and the cache is made after it.)
# And why does it subtract `self.cache.nbytes` from the peak? Because the warm-up writes its K and V somewhere, and that cache is gone before the real one is made.
# %% [markdown] key="nano" lang="zh" src="9b469e82"
# ## 源码：先看 nano 的
#
# `minikv.nano` 用三个做算术的函数和一个负责测量的方法，完成了上面的一切。
# 在 `measure_num_blocks` 里找一找六个时刻中的三个：哪一行重置峰值，哪一行预热，哪一行是 `empty_cache`？（模型在这之前已经加载，缓存在这之后才建立。）
# 峰值为什么要减去 `self.cache.nbytes`？因为预热时 K 和 V 总得写到某个地方，而那份缓存在正式的缓存建立之前就已经释放。

# %% key="nano_source"
from minikv.course import show_source
from minikv.nano import LLM as NanoLLM
from minikv.nano.kv_cache import block_bytes, num_blocks_that_fit, token_bytes

show_source(token_bytes, block_bytes, num_blocks_that_fit, NanoLLM.measure_num_blocks)

# %% [markdown] key="nano_words" lang="en"
# The three functions with the numbers of the start above:
# %% [markdown] key="nano_words" lang="zh" src="40bbf457"
# 把上面那次启动的数字代进这三个函数：

# %% key="nano_run" lang="en"
token = token_bytes(num_layers=32, num_kv_heads=8, k_dim=128, v_dim=128, itemsize=2)
block = block_bytes(token, block_size=16)
fits = num_blocks_that_fit(terms.total, terms.utilization, terms.used, terms.peak, terms.current, block)
Table(["token (B)", "block (B)", "blocks that fit", "blocks above"], [(token, block, fits, best)])

# %% key="nano_run" lang="zh"
token = token_bytes(num_layers=32, num_kv_heads=8, k_dim=128, v_dim=128, itemsize=2)
block = block_bytes(token, block_size=16)
fits = num_blocks_that_fit(terms.total, terms.utilization, terms.used, terms.peak, terms.current, block)
Table(["一个 token（B）", "一个块（B）", "放得下的块数", "上面的块数"], [(token, block, fits, best)])

# %% [markdown] key="source" lang="en"
# `allocate_kv_cache` does the same for `minikv.LLM`, and adds what a larger engine needs: sizes that are given, several ranks, a report, errors with a way out.
# Here it is step by step, together with the functions that compute the numbers.
# %% [markdown] key="source" lang="zh" src="3a1ae28a"
# `allocate_kv_cache` 为 `minikv.LLM` 做同样的事。这个引擎大一些，所以还要能直接指定大小，支持多个 rank，给出一份报告，并在错误里写明解决办法。
# 下面连同它调用的函数，逐步来读。

# %% key="annotated" lang="en"
from minikv.course.lessons.l08.annotated_source import SourceView

show(SourceView("en"))

# %% key="annotated" lang="zh"
from minikv.course.lessons.l08.annotated_source import SourceView

show(SourceView("zh"))

# %% [markdown] key="flow" lang="en"
# And here is one run through it: the steps of the engine from above, with its numbers (`cuda:model` is the simulated GPU).
# %% [markdown] key="flow" lang="zh" src="5014456d"
# 下面是上面那个引擎走过的步骤和数字（`cuda:model` 指模拟的 GPU）。

# %% key="flow_model" lang="en"
from minikv.course.lessons.l08.flow_chart import FlowChart

report = report_of(started)
show(FlowChart(report, "en"))

# %% key="flow_model" lang="zh"
from minikv.course.lessons.l08.flow_chart import FlowChart

report = report_of(started)
show(FlowChart(report, "zh"))

# %% [markdown] key="report" lang="en"
# ### Every variable on one page
#
# Besides the cache, `allocate_kv_cache` returns an `AllocationReport`. It has every variable of the function with its value and its meaning. A `-` or `+` before a meaning is the term's sign in the formula.
# `used - current` is 16.87 - 14.96 = 1.91 GiB, a little more than the 1.79 GiB outside of torch, because the driver counts segments, and they are larger than the tensors in them.
# %% [markdown] key="report" lang="zh" src="79e84f4d"
# ### 所有变量，一页看全
#
# `allocate_kv_cache` 除了缓存，还返回一份 `AllocationReport`。函数里的每个变量都在里面，附有数值和含义。含义开头的 `-` 和 `+`，就是这一项在公式里的符号。
# `used - current` 为 1.91 GiB，比 torch 之外的 1.79 GiB 略大，因为驱动统计的是段，而段比其中的张量大。

# %% key="bar_model" lang="en"
report.shown("en")

# %% key="bar_model" lang="zh"
report.shown("zh")

# %% [markdown] key="machine" lang="en"
# ## On this machine
#
# Now a small Llama with random weights, on the machine that you have.
# With a GPU the size is measured (we take half of the GPU and leave the rest to other processes).
# The memory of a CPU belongs to all programs, so there you have to give a size; the warm-up's peak is measured all the same.
# %% [markdown] key="machine" lang="zh" src="53d655c9"
# ## 在这台机器上
#
# 现在把一个权重随机的小 Llama 放到你的机器上。
# 有 GPU 时，大小由测量得出（只用一半，给其他进程留些位置）。
# CPU 的内存由所有程序共用，所以必须指定大小；预热的峰值照样会测。

# %% key="small_model"
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from minikv.cache import allocate_kv_cache

small = LlamaConfig(
    vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
    num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=1024,
)
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = LlamaForCausalLM(small).to(device, torch.bfloat16).eval()

# %% key="this_run" tags="hardware" lang="en"
size = {"utilization": 0.5} if device == "cuda" else {"kv_bytes": 8 * 2**20}
cache, here = allocate_kv_cache(model, **size, warmup_tokens=1024)
cache.close()
rows = [("weights", here.weight_bytes), ("activations of 1,024 tokens", here.peak.extra)]
rows += [("a block", here.block_bytes), ("the cache", here.kv_bytes), ("blocks", here.num_blocks)]
Table([f"on {device}", "bytes, blocks"], rows)  # here.shown("en") shows every variable

# %% key="this_run" tags="hardware" lang="zh"
size = {"utilization": 0.5} if device == "cuda" else {"kv_bytes": 8 * 2**20}
cache, here = allocate_kv_cache(model, **size, warmup_tokens=1024)
cache.close()
rows = [("权重", here.weight_bytes), ("1,024 个 token 的激活", here.peak.extra)]
rows += [("一个块", here.block_bytes), ("缓存", here.kv_bytes), ("块数", here.num_blocks)]
Table([f"在 {device} 上", "字节、块数"], rows)  # here.shown("zh") 列出所有变量

# %% [markdown] key="live" lang="en"
# `minikv.LLM` makes its pool with the same function. Let it answer four prompts of 30 to 120 tokens, and watch the pool of 32 blocks that it made. The monitor looks at it five times a second; the picture that is saved here is the one after eight steps.
# %% [markdown] key="live" lang="zh" src="85571077"
# `minikv.LLM` 用同一个函数建立块池。让它回答四个长 30 到 120 个 token 的提示词，同时看着刚建好的 32 个块。监视器每秒看五次；这里保存的是八步之后的样子。

# %% key="live_pool" tags="hardware" lang="en"
from minikv import LLM, SamplingParams
from minikv.course import monitor

prompts = [[length + place for place in range(length)] for length in range(30, 121, 30)]
with LLM(model, num_blocks=32) as llm:
    for prompt in prompts:
        llm.add_request(prompt, SamplingParams(temperature=0, max_tokens=48))
    for _ in range(8):
        llm.step()
    seen = monitor.cache(llm, lang="en")
    show(seen)  # live from here on
    while llm.has_work:
        llm.step()
    seen.stop()

# %% key="live_pool" tags="hardware" lang="zh"
from minikv import LLM, SamplingParams
from minikv.course import monitor

prompts = [[length + place for place in range(length)] for length in range(30, 121, 30)]
with LLM(model, num_blocks=32) as llm:
    for prompt in prompts:
        llm.add_request(prompt, SamplingParams(temperature=0, max_tokens=48))
    for _ in range(8):
        llm.step()
    seen = monitor.cache(llm, lang="zh")
    show(seen)  # 从这里开始实时变化
    while llm.has_work:
        llm.step()
    seen.stop()

# %% [markdown] key="ask_cpu" lang="en"
# With a GPU you now see its own six moments. Without one, you see what happens if you give no size.
# %% [markdown] key="ask_cpu" lang="zh" src="55870fa2"
# 有 GPU 时，下面是它自己的六个时刻；没有的话，看看不指定大小会怎样。

# %% key="this_timeline" tags="hardware" lang="en"
from minikv.errors import MiniKVError


def refused(**wrong):
    try:
        allocate_kv_cache(model, **wrong)
    except MiniKVError as error:
        return str(wrong), error.text("en")


if here.terms is not None:
    show(AllocationWidget("en", report=here))
Table(["asked for", "refused"], [] if here.terms else [refused()])

# %% key="this_timeline" tags="hardware" lang="zh"
from minikv.errors import MiniKVError


def refused(**wrong):
    try:
        allocate_kv_cache(model, **wrong)
    except MiniKVError as error:
        return str(wrong), error.text("zh")


if here.terms is not None:
    show(AllocationWidget("zh", report=here))
Table(["要求", "拒绝的理由"], [] if here.terms else [refused()])

# %% [markdown] key="refuses" lang="en"
# A refusal gives the numbers and tells you what to change. It is raised before anything is allocated.
# %% [markdown] key="refuses" lang="zh" src="f08ae377"
# 每个错误都写明数字和解决办法，而且在分配任何东西之前就抛出。

# %% key="refusals" lang="en"
tries = ({"kv_bytes": 100}, {"utilization": 90}, {"num_blocks": 4, "kv_bytes": 2**20})
Table(["asked for", "refused"], [refused(**wrong) for wrong in tries])

# %% key="refusals" lang="zh"
tries = ({"kv_bytes": 100}, {"utilization": 90}, {"num_blocks": 4, "kv_bytes": 2**20})
Table(["要求", "拒绝的理由"], [refused(**wrong) for wrong in tries])

# %% [markdown] key="short" lang="en"
# ## The short form
#
# The formula is sometimes shortened: used and current are taken to be the same, so they cancel, and $\text{total} \cdot u - \text{peak}$ is left. What does that cost?
# %% [markdown] key="short" lang="zh" src="8e7e6b80"
# ## 简写公式
#
# 这个公式有时被简写，认为 used 和 current 相同，可以抵消，于是只剩 $\text{total} \cdot u - \text{peak}$。这样会差多少？

# %% key="predict_short"
predict("short_form", ...)

# %% key="short_form" lang="en"
rows = []
for non_torch in (0, 0.5, 1.79, 3.58):
    short = start_up(0.9, non_torch=int(non_torch * GIB))
    short_blocks = short.terms.short_form // short.block_bytes
    rows.append((f"{non_torch:.2f}", short.num_blocks, short_blocks, short_blocks - short.num_blocks))
head = ["outside torch (GiB)", "formula", "short form", "too many"]
Table(head, rows, right=head[:1])

# %% key="short_form" lang="zh"
rows = []
for non_torch in (0, 0.5, 1.79, 3.58):
    short = start_up(0.9, non_torch=int(non_torch * GIB))
    short_blocks = short.terms.short_form // short.block_bytes
    rows.append((f"{non_torch:.2f}", short.num_blocks, short_blocks, short_blocks - short.num_blocks))
head = ["torch 之外（GiB）", "公式", "简写公式", "多出的块"]
Table(head, rows, right=head[:1])

# %% [markdown] key="short_read" lang="en"
# They cancel only where used equals current, that is without a context, a library or another process.
# Even the first row is not quite zero, because used counts segments, and the weights' segments are a little larger than the weights.
# The short form gives the order of magnitude, but it errs on one side only: too many blocks.
#
# Another slip is to take `peak` for the activations alone. [Appendix A](A_errata.ipynb) has both, from a document that made them.
# %% [markdown] key="short_read" lang="zh" src="38bb49fa"
# 只有 used 等于 current 时才能抵消，也就是没有上下文，没有库，也没有其他进程的时候。
# 例如表的第一行，torch 之外一个字节也没有，多出的块仍不是零，因为 used 统计的是段，而权重所在的段比权重略大。
# 简写公式可以估个数量级，但误差只朝一个方向，也就是块数偏多。
#
# 还有一种错误是把 `peak` 当成激活本身。这两种错误，[附录 A](A_errata.ipynb) 里都有一个实例。

# %% [markdown] key="free" lang="en"
# ## Break it: all that is free
#
# `free` is what the driver could still give. Why not hand it all out?
# Nothing stops you. The allocation succeeds, and the trouble comes later:
# %% [markdown] key="free" lang="zh" src="2c143ac7"
# ## 弄坏它：把空闲的全用掉
#
# `free` 是驱动还能给出的显存。为什么不全部拿来用？
# 分配本身会成功，问题出在后面：

# %% key="all_free" lang="en"
from minikv.units import format_bytes

all_free = (terms.total - terms.used) // started.block_bytes
rows = []
for name, engine in (("free // block_bytes", start_up(num_blocks=all_free)), ("the formula", start_up())):
    asked = serve(engine, [CHUNK]).asked
    end = f"asks for {format_bytes(asked)} more and finds nothing" if asked else "runs"
    rows.append((name, engine.num_blocks, engine.num_blocks - best, end))
Table(["blocks from", "blocks", "more", f"then a step of {CHUNK:,} tokens"], rows)

# %% key="all_free" lang="zh"
from minikv.units import format_bytes

all_free = (terms.total - terms.used) // started.block_bytes
rows = []
for name, engine in (("free // block_bytes", start_up(num_blocks=all_free)), ("公式", start_up())):
    asked = serve(engine, [CHUNK]).asked
    end = f"再要 {format_bytes(asked)}，已经没有了" if asked else "顺利完成"
    rows.append((name, engine.num_blocks, engine.num_blocks - best, end))
Table(["块数来自", "块数", "多出", f"接着一步 {CHUNK:,} 个 token"], rows)

# %% [markdown] key="pressure" lang="en"
# The error comes later, from a different line, on a small request. It looks like a bug in the model, but the cause is here.
#
# ## Where running out of memory begins
#
# Should it be 0.80, 0.90 or 0.95? A common advice is 0.8 to 0.9, because 0.95 and more easily runs out of memory.
# Let's see in the simulated allocator: 100 steps with chunks of every length, under four loads (the rows of the table).
# %% [markdown] key="pressure" lang="zh" src="52941820"
# 错误要到后来才出现，在另一行代码里，申请的量还不大。像是模型的 bug，原因却在这里。
#
# ## 显存不足从哪里开始
#
# 利用率该取 0.80、0.90 还是 0.95？常见的建议是 0.8–0.9，因为 0.95 以上容易 OOM。
# 我们在模拟的分配器里看一看。一共 100 步，每步长短不一，有四种负载（见表的各行）。

# %% key="predict_five"
predict("five_percent", ...)

# %% key="pressure_table" lang="en"
shares = (0.80, 0.90, 0.95, 0.98, 0.99, 1.00)
steps, growth = mixed_steps(), [GIB // 10] * 100
loads = {
    "alone, no step larger than the warm-up": (steps, []),
    "steps up to twice as long as the warm-up": (mixed_steps(longest=2 * CHUNK), []),
    "a library takes 1 GiB once after the warm-up": (steps, [GIB]),
    "another process grows by 10 GiB in 100 steps": (steps, growth),
}
runs = {load: {share: serve(start_up(share), *given) for share in shares} for load, given in loads.items()}
rows = [("blocks", *(f"{start_up(share).num_blocks:,}" for share in shares))]
rows += [(load, *(run.outcome for run in served.values())) for load, served in runs.items()]
head = [f"{share:.2f}" for share in shares]
Table(["utilization", *head], rows, right=head)

# %% key="pressure_table" lang="zh"
shares = (0.80, 0.90, 0.95, 0.98, 0.99, 1.00)
steps, growth = mixed_steps(), [GIB // 10] * 100
loads = {
    "单独运行，没有一步超过预热": (steps, []),
    "每步的 token 数最多为预热的两倍": (mixed_steps(longest=2 * CHUNK), []),
    "预热之后，某个库一次占用 1 GiB": (steps, [GIB]),
    "另一个进程在 100 步里多占 10 GiB": (steps, growth),
}
runs = {load: {share: serve(start_up(share), *given) for share in shares} for load, given in loads.items()}
rows = [("块数", *(f"{start_up(share).num_blocks:,}" for share in shares))]
rows += [(load, *(run.outcome for run in served.values())) for load, served in runs.items()]
head = [f"{share:.2f}" for share in shares]
Table(["利用率", *head], rows, right=head)

# %% [markdown] key="pressure_read" lang="en"
# `ok` means that all 100 steps ran; `+n`, that the allocator first had to give its cached segments back n times, which is slow; `OOM @n`, that step n ran out of memory.
#
# In the simulation the advice is right: up to 0.90 all four loads survive, at 0.95 one does not.
# But the number alone doesn't decide. Without neighbours, and with no step above the warm-up, 0.99 still works. At 1.00 it dies, although the formula kept room for every tensor.
# Why? Compare the limit with what the steps of the first load really reached at 0.90:
# %% [markdown] key="pressure_read" lang="zh" src="4e4c27d5"
# `ok` 表示 100 步全部完成；`+n` 表示分配器先归还了 n 次缓存的段（很慢）；`OOM @n` 表示第 n 步显存不足。
#
# 在模拟里，上面的建议是对的。取 0.90 及以下，四种负载都能跑完；到 0.95，有一种跑不完。
# 但起决定作用的不只是这个数字。没有邻居、没有一步超过预热时，0.99 也还行；到 1.00 就失败了，尽管公式给每个张量都留了位置。
# 为什么？把上限和第一种负载在 0.90 下实际达到的最大值比一比：

# %% key="over_limit" lang="en"
most = max(runs["alone, no step larger than the warm-up"][0.90].used)
row = (f"{terms.limit / GIB:.2f}", f"{most / GIB:.2f}")
Table(["the limit (GiB)", "the steps reached (GiB)"], [row], right=["the limit (GiB)", "the steps reached (GiB)"])

# %% key="over_limit" lang="zh"
most = max(runs["单独运行，没有一步超过预热"][0.90].used)
row = (f"{terms.limit / GIB:.2f}", f"{most / GIB:.2f}")
Table(["上限（GiB）", "各步实际用到（GiB）"], [row], right=["上限（GiB）", "各步实际用到（GiB）"])

# %% [markdown] key="over_limit_read" lang="en"
# **Utilization is a plan, not a fence.** The formula counts live tensors; the allocator holds segments.
# Steps of different lengths leave free pieces that the next step cannot use, so it takes new ones, and reserved memory grows past the limit.
#
# What lies above the limit is for all this: fragments, steps longer than the warm-up, workspace that is requested late, and neighbours. (CUDA graphs count as workspace, too, if an engine captures them after it has made the cache.)
# Here is the last load again, with the bytes of the whole GPU after every fourth step. The axis begins at 60 GiB. Where an engine ran out of memory, its line ends in a point:
# %% [markdown] key="over_limit_read" lang="zh" src="d4a6436e"
# **利用率只是计划，不是围栏。** 公式统计的是存活的张量，分配器拿着的却是段。
# 各步的 token 数不同，留下的空档下一步用不上，于是再申请新段，已保留的显存就越过了上限。
#
# 上限以外的部分，留给碎片、超过预热的步、后来才要的工作空间（引擎如果建好缓存之后才捕获 CUDA 图，也算在内），还有邻居。
# 下面把最后一种负载画出来，纵轴是整块 GPU 的已用显存，每四步取一个值，从 60 GiB 画起。引擎显存不足而停止的地方，线的末端标了一个点：

# %% key="pressure_figure" lang="en"
from minikv.course.charts import lines

neighbour = runs["another process grows by 10 GiB in 100 steps"]
used = {
    f"{share:.2f}": {step: round(size / GIB, 2) for step, size in enumerate(neighbour[share].used, 1) if step % 4 == 1}
    for share in shares[:4]
}
ended = [neighbour[share].used for share in shares[:4] if neighbour[share].survived < len(steps)]
used["out of memory"] = {len(sizes): round(sizes[-1] / GIB, 2) for sizes in ended}
levels = {"total": round(TOTAL / GIB, 2)}
show(lines(used, points=["out of memory"], x="step", y="used on the GPU, GiB", y_from=60, levels=levels))

# %% key="pressure_figure" lang="zh"
from minikv.course.charts import lines

neighbour = runs["另一个进程在 100 步里多占 10 GiB"]
used = {
    f"{share:.2f}": {step: round(size / GIB, 2) for step, size in enumerate(neighbour[share].used, 1) if step % 4 == 1}
    for share in shares[:4]
}
ended = [neighbour[share].used for share in shares[:4] if neighbour[share].survived < len(steps)]
used["显存不足"] = {len(sizes): round(sizes[-1] / GIB, 2) for sizes in ended}
levels = {"显存总量": round(TOTAL / GIB, 2)}
show(lines(used, points=["显存不足"], x="步", y="GPU 已用显存（GiB）", y_from=60, levels=levels))

# %% [markdown] key="length" lang="en"
# ## Why does the maximum length cost blocks?
#
# An engine without chunked prefill must be able to prefill a prompt of the maximum length in one step, so it warms up with that many tokens.
#
# What does a step need for each token? Look at the widest place in a layer of Llama-3.1-8B. Four tensors of width 4,096 are alive there: the embeddings, the layer's input, the residual and the normed input. Three more have the MLP's width, 14,336: gate, up and their product. Positions and rotary tables add as much as 520 numbers of 2 bytes:
#
# $$(4 \cdot 4{,}096 + 3 \cdot 14{,}336 + 520) \cdot 2 = 119{,}824\ \text{B a token}$$
# %% [markdown] key="length" lang="zh" src="0af23b21"
# ## 最大长度为什么会减少块数？
#
# 没有分块预填充（chunked prefill）的引擎，必须能一步预填充最大长度的提示词，所以预热时就要用那么多 token。
#
# 一步里，每个 token 需要多少？以 Llama-3.1-8B 为例，在一层中占用最多的地方，同时存活的有四个宽 4,096 的张量（embedding、本层输入、残差、归一化后的输入），以及三个宽 14,336 的 MLP 张量（gate、up 和二者之积）。位置和旋转编码表再加相当于 520 个数（每个 2 字节）：
#
# $$(4 \cdot 4{,}096 + 3 \cdot 14{,}336 + 520) \cdot 2 = 119{,}824\ \text{B，每个 token}$$

# %% key="predict_activations"
predict("activations", ...)

# %% key="lengths" lang="en"
rows = []
for tokens in (2048, 8192, 32_768, 131_072):
    long = start_up(0.9, warmup_tokens=tokens)
    rows.append((tokens, f"{(long.terms.peak - long.terms.current) / GIB:.2f}", long.num_blocks))
Table(["tokens at once", "activations (GiB)", "blocks"], rows, right=["activations (GiB)"])

# %% key="lengths" lang="zh"
rows = []
for tokens in (2048, 8192, 32_768, 131_072):
    long = start_up(0.9, warmup_tokens=tokens)
    rows.append((tokens, f"{(long.terms.peak - long.terms.current) / GIB:.2f}", long.num_blocks))
Table(["一次的 token 数", "激活（GiB）", "块数"], rows, right=["激活（GiB）"])

# %% [markdown] key="trt" lang="en"
# For 8,192 tokens the formula gives 0.91 GiB, and the table has 0.84. The simulated engine frees a layer's input a little earlier and keeps no rotary tables, so it needs $(3 \cdot 4{,}096 + 3 \cdot 14{,}336) \cdot 2 = 110{,}592$ B a token.
# The activations grow with the tokens, not with their square, because attention here keeps no matrix of scores, as in FlashAttention (`attn_implementation="eager"` would).
# With chunked prefill the warm-up is one chunk, and the number of blocks no longer depends on the length.
#
# ### How many blocks? First ask how large one is
#
# An engine with 21.89 GiB free made only 631 blocks for Qwen1.5-7B. Is that too few?
# Its log names neither the size of a block nor the share nor the dtype. Take 64 tokens a block, 16 bits an element, 0.9 *of the free memory* (that is what TensorRT-LLM's share means, a third meaning), and round up:
# %% [markdown] key="trt" lang="zh" src="0d3aa105"
# 按公式，8,192 个 token 是 0.91 GiB，表里是 0.84，因为模拟的引擎早些释放本层输入，不存旋转编码表，每个 token 只要 $(3 \cdot 4{,}096 + 3 \cdot 14{,}336) \cdot 2 = 110{,}592$ B。
# 激活随 token 数成正比增长，而不是按平方增长，因为这里的注意力像 FlashAttention 那样，不保存分数矩阵（`attn_implementation="eager"` 则会保存）。
# 有了分块预填充，预热只需一段的长度，块数就不再受最大长度影响。
#
# ### 先问块有多大，再看块数多少
#
# 有个引擎在空闲 21.89 GiB 的 GPU 上，只为 Qwen1.5-7B 分了 631 个块。这算少吗？
# 日志里没有块大小和比例，也没有数据类型。按每块 64 个 token、每个元素 16 位、取**空闲显存**的 0.9 来算（这是 TensorRT-LLM 的定义，也就是第三种含义），并且向上取整：

# %% key="trt_code" lang="en"
import math

qwen = CacheSpec.from_config(
    {"model_type": "qwen2", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
     "hidden_size": 4096, "max_position_embeddings": 32768, "torch_dtype": "float16"}
)
tokens = int(21.89 * GIB * 0.9) // qwen.bytes_for(1)
row = (qwen.bytes_for(1), tokens, f"{tokens / 64:.1f}", math.ceil(tokens / 64))
Table(["token (B)", "tokens", "blocks of 64", "rounded up"], [row], right=["blocks of 64"])

# %% key="trt_code" lang="zh"
import math

qwen = CacheSpec.from_config(
    {"model_type": "qwen2", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
     "hidden_size": 4096, "max_position_embeddings": 32768, "torch_dtype": "float16"}
)
tokens = int(21.89 * GIB * 0.9) // qwen.bytes_for(1)
row = (qwen.bytes_for(1), tokens, f"{tokens / 64:.1f}", math.ceil(tokens / 64))
Table(["一个 token（B）", "token 数", "按 64 个一块", "向上取整"], [row], right=["按 64 个一块"])

# %% [markdown] key="trt_read" lang="en"
# That gives exactly 631. It doesn't prove that the engine computes like this, but it shows that 631 is no surprise. There are few blocks, but large ones: 64 · 524,288 B = 32 MiB each, because this model has 32 KV heads and no GQA.
# A number of blocks says nothing without the size of a block, and a number of tokens says little without the layers behind it ([lesson 02b](02b_layers_that_differ.ipynb)). So compare bytes.
#
# ## Paper and measurement
#
# The budget explorer of [lesson 02](02_how_many_bytes.ipynb) does the same on paper, for any model and GPU.
# How close does it come to the simulated run? We take the same GPU, with 1.79 GiB outside of torch:
# %% [markdown] key="trt_read" lang="zh" src="22859f08"
# 算出来正好是 631。这不能证明引擎就是这样算的，但说明 631 并不奇怪。块不多，但很大，每块 64 · 524,288 B = 32 MiB，因为这个模型有 32 个 KV 头，没有用 GQA。
# 不说块大小，块数没有意义；不看背后有哪些层，token 数也说明不了多少（[第 02b 课](02b_layers_that_differ.ipynb)），所以要比字节。
#
# ## 纸面与实测
#
# [第 02 课](02_how_many_bytes.ipynb)的显存预算组件在纸面上做同样的事，任何模型、任何 GPU 都行。
# 它与模拟的这次运行相差多少？同一块 GPU，torch 之外同样是 1.79 GiB：

# %% key="paper" lang="en"
from minikv.plan import plan_memory

paper = plan_memory("Llama-3.1-8B", gpu="H100 SXM 80GB", chunk=CHUNK, cuda_context_bytes=NON_TORCH, workspace_bytes=0)
row = (paper.num_blocks, best, f"{100 * (paper.num_blocks / best - 1):+.2f} %")
Table(["blocks on paper", "blocks in the simulation", "difference"], [row], right=["difference"])

# %% key="paper" lang="zh"
from minikv.plan import plan_memory

paper = plan_memory("Llama-3.1-8B", gpu="H100 SXM 80GB", chunk=CHUNK, cuda_context_bytes=NON_TORCH, workspace_bytes=0)
row = (paper.num_blocks, best, f"{100 * (paper.num_blocks / best - 1):+.2f} %")
Table(["纸面上的块数", "模拟里的块数", "相差"], [row], right=["相差"])

# %% [markdown] key="budget_read" lang="en"
# Here we told the planner what is outside of torch. Usually you cannot know that on paper, so the CUDA context and the workspace are assumptions there. The warm-up replaces them by measurements.
# %% [markdown] key="budget_read" lang="zh" src="728fa9e3"
# 这里 torch 之外占多少，是我们告诉规划器的。平时在纸面上只能假定，所以才需要预热。

# %% [markdown] key="bind" lang="en"
# ## Into the model: bind
#
# The cache is one allocation, and each layer needs a tensor of its own.
# Engines that bring their own models give every attention module a `k_cache` and a `v_cache`, and set them to views of the cache. Here is such a model, as small as it gets:
# %% [markdown] key="bind" lang="zh" src="24c791a1"
# ## 交给模型：bind
#
# 缓存是一次分配，而每一层都需要自己的张量。
# 自带模型实现的引擎，会给每个注意力模块留出 `k_cache` 和 `v_cache`，再把它们设成缓存的视图。下面是这样一个最小的模型：

# %% key="bind_modules"
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.k_cache = self.v_cache = torch.tensor([])


def decoder(layers):
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), Attention()) for _ in range(layers)))

# %% key="bind_code" lang="en"
from minikv.cache import bind

cache, _ = allocate_kv_cache(model, num_blocks=12)
layers = decoder(4)
count = bind(layers, cache)
cache.layer(1).k[3].fill_(7)  # [blocks, block_size, heads, head_dim]: all of block 3
seen = layers[1][1].k_cache
try:
    bind(decoder(3), cache)
except MiniKVError as error:
    refusal = error.text("en")
row = (count, str(list(seen.shape)), seen[3, 0, 0, 0].item(), refusal)
Table(["modules bound", "shape in layer 1", "value in block 3", "3 modules for 4 layers"], [row])

# %% key="bind_code" lang="zh"
from minikv.cache import bind

cache, _ = allocate_kv_cache(model, num_blocks=12)
layers = decoder(4)
count = bind(layers, cache)
cache.layer(1).k[3].fill_(7)  # [blocks, block_size, heads, head_dim]：块 3 的全部
seen = layers[1][1].k_cache
try:
    bind(decoder(3), cache)
except MiniKVError as error:
    refusal = error.text("zh")
row = (count, str(list(seen.shape)), seen[3, 0, 0, 0].item(), refusal)
Table(["绑定的模块数", "第 1 层的形状", "块 3 里的值", "3 个模块对 4 层"], [row])

# %% [markdown] key="ranks" lang="en"
# What was written into the cache shows in the module, so the module has a view, not a copy.
# A count that does not match is an error here; some engines set what they find and go on.
#
# ## The least of all ranks
#
# Two ranks share a model, and on rank 1 another process holds 3 GiB. Each rank computes its own number of blocks. Which one may the scheduler use?
# %% [markdown] key="ranks" lang="zh" src="df39ac70"
# 写进缓存的内容，在模块里就能看到，所以模块拿到的是视图，不是副本。
# 这里数量对不上就报错；有的引擎找到几个就设几个，然后继续。
#
# ## 所有 rank 的最小值
#
# 两个 rank 共用一个模型，rank 1 上另有其他进程占着 3 GiB。各个 rank 算出自己的块数。调度器该用哪一个？

# %% key="ranks_code" lang="en"
from minikv.cache import PagedKVCache

own = [start_up(0.9, non_torch=NON_TORCH + extra).num_blocks for extra in (0, 3 * GIB)]
spec, block_10 = CacheSpec.from_config(small, tp=2), []
for blocks in (12, 9):
    mine = PagedKVCache(spec, blocks, 16)
    try:
        block_10.append(str(list(mine.layer(0).k[10].shape)))
    except IndexError as error:
        block_10.append(f"IndexError: {error}")
rows = [("rank 0", own[0], 12, block_10[0]), ("rank 1", own[1], 9, block_10[1]), ("least", min(own), 9, "")]
Table(["", "its own blocks", "blocks of a small cache", "block 10 of it"], rows)

# %% key="ranks_code" lang="zh"
from minikv.cache import PagedKVCache

own = [start_up(0.9, non_torch=NON_TORCH + extra).num_blocks for extra in (0, 3 * GIB)]
spec, block_10 = CacheSpec.from_config(small, tp=2), []
for blocks in (12, 9):
    mine = PagedKVCache(spec, blocks, 16)
    try:
        block_10.append(str(list(mine.layer(0).k[10].shape)))
    except IndexError as error:
        block_10.append(f"IndexError: {error}")
rows = [("rank 0", own[0], 12, block_10[0]), ("rank 1", own[1], 9, block_10[1]), ("最小值", min(own), 9, "")]
Table(["", "各自的块数", "小缓存的块数", "小缓存的块 10"], rows)

# %% [markdown] key="ranks_read" lang="en"
# If the scheduler went by rank 0, it would sooner or later give out a block that rank 1 does not have.
# On a CPU that is an error. A kernel on a GPU does not check: it reads and writes what lies beyond the cache, or the run ends with an illegal memory access.
# So `allocate_kv_cache` takes the least of all ranks (`_least_of_ranks` in the source above). Even if a rank has no room for a single block, its number counts, and the call is refused.
#
# ## Recap
#
# An engine reads total and used from the driver, peak and current from torch. It divides `total * u - used - peak + current` by the bytes of a block: 27,433 blocks of 2 MiB for Llama-3.1-8B on an H100 80GB.
# The weights are in used and in peak, so current is added once. Without the reset before the warm-up 2,128 blocks are lost, without `empty_cache` 2,560.
# The short form `total * u - peak` leaves out what is outside torch: with 1.79 GiB it promises 981 blocks too many.
# A longer warm-up costs blocks, because every token needs its activations, 110,592 B in our simulation: 20,953 blocks are left with 131,072 tokens at once.
# Utilization is a plan, not a fence: at 0.90 the limit was 71.30 GiB and the steps reached 73.98 GiB.
#
# ## Check yourself
#
# Answer aloud first, then `explain(..., reveal=True)`.
# %% [markdown] key="ranks_read" lang="zh" src="3e6e7680"
# 如果调度器按 rank 0 的数来用，迟早会分出一个 rank 1 没有的块。
# 在 CPU 上这会报错；GPU 上的 kernel 不做检查，要么读写到缓存后面的内容，要么以非法内存访问（illegal memory access）告终。
# 所以 `allocate_kv_cache` 取所有 rank 的最小值（上面源码里的 `_least_of_ranks`）。哪怕某个 rank 一个块也放不下，也按它来，这时会报错。
#
# ## 本课小结
#
# 引擎从驱动读 total 和 used，从 torch 读 peak 和 current，用 `total * u - used - peak + current` 除以每块的字节数，例如 Llama-3.1-8B 在 H100 80GB 上有 27,433 个 2 MiB 的块。
# 权重在 used 和 peak 里各有一份，所以要加回一次 current。预热前不重置峰值，会少 2,128 块；不做 `empty_cache`，会少 2,560 块。
# 简写公式 `total * u - peak` 漏掉了 torch 之外的部分，例如那部分为 1.79 GiB 时，会多出 981 块。
# 预热越长，块越少，因为每个 token 都要有激活，在模拟里是 110,592 B。例如一次 131,072 个 token 时，只剩 20,953 块。
# 利用率只是计划，不是围栏：取 0.90 时上限是 71.30 GiB，各步实际用到 73.98 GiB。
#
# ## 自我检查
#
# 先自己说一遍，再用 `explain(..., reveal=True)` 看答案。

# %% key="explain_current"
explain("why_current")

# %% key="explain_warm_up"
explain("why_warm_up")

# %% key="explain_left"
explain("what_is_left")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# The exercise notebook of this lesson asks for five functions:
#
# 1. `block_bytes`: what one block takes on one of `tp` ranks, with GQA and with MLA.
# 2. `num_blocks_that_fit`: from the four numbers to blocks, a part of your engine.
# 3. `ledger`: used, peak and current after each event of a start.
# 4. `blocks_with_room`: a cache that leaves room for the largest step.
# 5. `bind_views`: views for the modules that want them, or an error and no change.
# %% [markdown] key="exercises" lang="zh" src="9d06d150"
# ## 练习
#
# 本课的练习 notebook 要你写五个函数：
#
# 1. `block_bytes`：一个块在 `tp` 个 rank 中的一个上占多少字节，GQA 与 MLA 都要。
# 2. `num_blocks_that_fit`：从四个数算出块数，“你的引擎”的一个部件。
# 3. `ledger`：启动过程中每个事件之后的 used、peak 和 current。
# 4. `blocks_with_room`：建好缓存之后，最大的一步仍然放得下。
# 5. `bind_views`：把视图交给需要的模块；做不到就报错，什么也不改。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | no blocks, or far fewer than planned | `print(report.text())` (the error holds the same terms): is `used` much larger than `current`? Then another process is on the GPU: `minikv doctor --memory` |
# | the cache was made, the first long prompt is out of memory | `report.terms.peak - report.terms.current` and `report.warmup_tokens`: 0, or a warm-up shorter than the prompt, kept no room |
# | fewer blocks after each restart in one process | `MemoryStats.read("cuda").allocated` (from `minikv.memory`) before the call: more than the weights means that the old cache still lives (`cache.close()`, and unset the bound views) |
# %% [markdown] key="stuck" lang="zh" src="1ee21fab"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 没有块，或者比计划少很多 | `print(report.text("zh"))`（错误信息里也有同样各项）：`used` 比 `current` 大很多吗？那是 GPU 上还有其他进程：`minikv doctor --memory` |
# | 缓存建好了，第一个长提示词就显存不足 | 看 `report.terms.peak - report.terms.current` 和 `report.warmup_tokens`：为 0，或者预热比提示词短，就没有留出空间 |
# | 同一进程里每重启一次，块就少一些 | 调用之前看 `MemoryStats.read("cuda").allocated`（`MemoryStats` 在 `minikv.memory` 里）：大于权重，说明旧缓存还活着（`cache.close()`，并取消绑定的视图） |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - In June 2025 a user worked through nano-vllm's `allocate_kv_cache` with 1,000 bytes, 500 of them used, and a share of 0.2. The result was a negative number of blocks ([nano-vllm #59](https://github.com/GeeeekExplorer/nano-vllm/issues/59), "buggy calculation for `num_kvcache_blocks`??"). "Two meanings of one share" has the same numbers.
# - In February 2026 it happened in earnest: an engine with a share of 0.4 started next to another process, and an assertion failed, since `used` counts every process ([nanovllm-voxcpm PR #27](https://github.com/a710128/nanovllm-voxcpm/pull/27), which argues for the second meaning).
# - The log under "The formula" is from [vLLM PR #10511](https://github.com/vllm-project/vllm/pull/10511). Why the number of blocks depends on the maximum length was asked in [vLLM #8185](https://github.com/vllm-project/vllm/issues/8185).
# - The 631 blocks in 21 GB are those of [TensorRT-LLM #2268](https://github.com/NVIDIA/TensorRT-LLM/issues/2268); that it rounds up is known from [its #224](https://github.com/NVIDIA/TensorRT-LLM/issues/224). In [vLLM #43308](https://github.com/vllm-project/vllm/issues/43308) a number of *tokens* misled in the same way.
# - A public guide, "KV 缓存分配详细指南" (a detailed guide to KV cache allocation), shortens the formula, and takes `peak` for the activations in one place. It advises 0.8 to 0.9. "The short form" and "Where running out of memory begins" test all three.
# - [nano-vllm #187](https://github.com/GeeeekExplorer/nano-vllm/issues/187) points out that the scheduler goes by rank 0's number, and [nano-vllm #275](https://github.com/GeeeekExplorer/nano-vllm/pull/275) shows what follows: 2,111 blocks on one rank, 2,055 on the other, and an illegal memory access.
# %% [markdown] key="wild" lang="zh" src="f96eb91e"
# ## 实战现场
#
# - 2025 年 6 月，一位用户用小数字验算 nano-vllm 的 `allocate_kv_cache`。共 1,000 字节，500 已占用，比例 0.2，得到的块数是负的（[nano-vllm #59](https://github.com/GeeeekExplorer/nano-vllm/issues/59)，标题大意是“`num_kvcache_blocks` 算错了吧？？”）。“一个比例，两种含义”一节用的就是这些数。
# - 2026 年 2 月，这件事真的发生了。一个引擎的比例设为 0.4，启动时同一块 GPU 上还有别的进程，结果断言失败，因为 `used` 把所有进程都算了进去（[nanovllm-voxcpm PR #27](https://github.com/a710128/nanovllm-voxcpm/pull/27)，它主张用第二种含义）。
# - “公式”一节的日志出自 [vLLM PR #10511](https://github.com/vllm-project/vllm/pull/10511)。块数为什么和最大长度有关，是 [vLLM #8185](https://github.com/vllm-project/vllm/issues/8185) 里的提问。
# - 21 GB 空闲显存只有 631 个块，出自 [TensorRT-LLM #2268](https://github.com/NVIDIA/TensorRT-LLM/issues/2268)；它向上取整，见[它的 #224](https://github.com/NVIDIA/TensorRT-LLM/issues/224)。在 [vLLM #43308](https://github.com/vllm-project/vllm/issues/43308) 里，则是 **token 数**以同样的方式误导了人。
# - 公开文档《KV 缓存分配详细指南》把公式简写了，在一处把 `peak` 当成激活本身，并建议取 0.8–0.9。“简写公式”和“显存不足从哪里开始”两节检验了这三点。
# - [nano-vllm #187](https://github.com/GeeeekExplorer/nano-vllm/issues/187) 指出调度器用的是 rank 0 的数，[nano-vllm #275](https://github.com/GeeeekExplorer/nano-vllm/pull/275) 则是后果：一个 rank 有 2,111 个块，另一个只有 2,055 个，最后以非法内存访问告终。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You have a pool of blocks, you know where their number comes from, and what the rest is kept for.
# [Lesson 09](09_pages_and_blocks.ipynb) gives them out: which sequence holds which block, and when may another sequence have it?
# %% [markdown] key="next" lang="zh" src="6712234f"
# ## 下一课
#
# 块池有了，你知道块数从何而来，剩下的显存又留给什么。
# [第 09 课](09_pages_and_blocks.ipynb)来分配这些块：哪条序列持有哪个块，什么时候才能分给别的序列？
