# %% [meta]
# number = "08"
# slug = "allocate_kv_cache"
# needs = ["02b", "07"]
# rooms = ["cache.allocator", "cache.allocation", "plan.measured", "nano.kv_cache", "nano.llm"]
# minutes = 60
# [title]
# en = "allocate_kv_cache: how many blocks fit?"
# zh = "allocate_kv_cache：放得下多少块？"
# [t4]
# en = "Everything runs. On the T4 the cells under \"On this machine\" measure the formula's four numbers; elsewhere they are given or come from the allocator's model."
# zh = "全部可以运行。在 T4 上，“在这台机器上”一节的单元格会实测公式里的四个数；其余数字由程序给定，或来自分配器的模型。"
# [paper]
# en = "08.1, 08.2, 08.4"
# zh = "08.1、08.2、08.4"

# %% [markdown] key="first" lang="en"
# ## The question
#
# You start an engine with your model on your GPU. It reads the weights, runs one large step, and then makes one allocation: as many cache blocks as fit.
# **How many blocks fit, and what is the rest of the memory kept for?**
#
# Below, 32 sequences of Llama-3.1-8B grow on a card of 80 GB. Press play: every token takes its bytes, and at some length the cache needs more than the card has.
# %% [markdown] key="first" lang="zh" src="b766fd67"
# ## 问题
#
# 你在自己的 GPU 上启动引擎：它读入权重，跑一个最大的步，然后一次性分配缓存，能放下多少块就分多少块。
# **放得下多少块？剩下的显存又要留给什么？**
#
# 下面是一块 80 GB 的卡，32 条 Llama-3.1-8B 的序列在上面增长。按播放：每个 token 都要占字节，到某个长度，缓存就会超出这块卡。

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
# - **find** from a log which number was too large when an engine has too few blocks, or dies later.
#
# ## A negative number of blocks
#
# In June 2025 a user read a function called `allocate_kv_cache` and worked through it with small numbers:
# a GPU of 1000 bytes, 500 of them taken, `gpu_memory_utilization` 0.2.
# The code says
#
# ```python
# config.num_kvcache_blocks = int(total * gpu_memory_utilization - used) // block_bytes
# ```
#
# and that is a negative number of blocks, on a GPU that is half empty
# ([nano-vllm #59](https://github.com/GeeeekExplorer/nano-vllm/issues/59), "buggy calculation for `num_kvcache_blocks`??").
#
# In February 2026 it happened in earnest.
# An engine that was allowed 0.4 of a GPU started beside another process, and an assertion failed: `used` counts every process
# ([nanovllm-voxcpm PR #27](https://github.com/a710128/nanovllm-voxcpm/pull/27)).
# Others ask [why the number of blocks depends on the maximum length](https://github.com/vllm-project/vllm/issues/8185),
# and why [21 GB of free memory hold only 631 blocks](https://github.com/NVIDIA/TensorRT-LLM/issues/2268).
# %% [markdown] key="able" lang="zh" src="27ed224f"
# 学完本课，你能够：
#
# - 用引擎启动时测得的四个数，**算出**它会分多少块；
# - **说出**每个数统计的是什么，以及你设定的利用率为什么有两种读法；
# - 引擎块数太少或后来崩溃时，从日志里**找出**是哪个数太大。
#
# ## 负的块数
#
# 2025 年 6 月，有人读到一个叫 `allocate_kv_cache` 的函数，便代入几个小数字来验算。
# GPU 共 1000 字节，其中 500 已占用，`gpu_memory_utilization` 为 0.2。
# 代码写的是
#
# ```python
# config.num_kvcache_blocks = int(total * gpu_memory_utilization - used) // block_bytes
# ```
#
# 算出来的块数是负的，可这块 GPU 还空着一半
# （[nano-vllm #59](https://github.com/GeeeekExplorer/nano-vllm/issues/59)，标题大意是“`num_kvcache_blocks` 算错了吧？？”）。
#
# 2026 年 2 月，这件事真的发生了。
# 一个引擎的比例设为 0.4，启动时同一块 GPU 上还有别的进程，结果断言失败：`used` 把所有进程都算了进去
# （[nanovllm-voxcpm PR #27](https://github.com/a710128/nanovllm-voxcpm/pull/27)）。
# 还有人问：[块数为什么和最大长度有关](https://github.com/vllm-project/vllm/issues/8185)？
# [21 GB 空闲显存为什么只有 631 个块](https://github.com/NVIDIA/TensorRT-LLM/issues/2268)？

# %% [markdown] key="answer_words" lang="en"
# One call answers the first question.
# `utilization` can mean two things: a limit for everything on this GPU, or a limit for this process alone.
# The line above has the first meaning. If the negative result looks like a bug to you, you were assuming the second.
# %% [markdown] key="answer_words" lang="zh" src="e71b58f6"
# 第一个问题，一次调用就能回答。
# 利用率（utilization）可以有两种含义：限制这块 GPU 上的全部占用，或者只限制本进程。
# 上面那行代码用的是前一种；觉得负数不对的人，想的是后一种。

# %% key="answer"
from minikv.plan.measured import MeasuredTerms

whole = MeasuredTerms(total=1000, utilization=0.2, used=500, peak=0, current=0)
own = MeasuredTerms(total=1000, utilization=0.2, used=0, peak=0, current=0)
print(t("asked_line", whole=whole.available, own=own.available))

# %% [markdown] key="answer_read" lang="en"
# Both are right, for different questions.
# With the first meaning nobody takes more than the GPU has; a second engine must be given a larger share (0.9 for the second, where the first has 0.4).
# With the second meaning every engine has its own share, and somebody has to see to it that the shares add up.
# vLLM's documentation gave the first for [v0.6.4](https://docs.vllm.ai/en/v0.6.4/models/engine_args.html), and today it gives the second: look at your version before you copy a share.
# The PR argues for the second. minikv takes the first, and its report says what the others hold, where the driver tells.
#
# Now with a model. An engine runs its largest step once, without a cache (the warm-up), and then looks at three more numbers: **used**, what is taken on the GPU by everybody; **peak**, the most that torch had allocated during the step, weights included; **current**, what torch has allocated now, the weights.
# Work it out before you read on:
# %% [markdown] key="answer_read" lang="zh" src="e8647196"
# 两个都对，只是回答的问题不同。
# 按第一种含义，谁也不会多占；但第二个引擎得设更大的比例（第一个是 0.4，第二个就设 0.9）。
# 按第二种含义，各引擎各有份额，得有人保证加起来不超过总量。
# vLLM 的文档在 [v0.6.4](https://docs.vllm.ai/en/v0.6.4/models/engine_args.html) 里写的是第一种，如今写的是第二种：照抄别人的比例之前，先看版本。
# 那个 PR 主张第二种。minikv 采用第一种；驱动能给出数字时，报告会写明其他进程占了多少。
#
# 现在放进一个模型。引擎先不带缓存，把最大的一步跑一遍，这叫预热（warm-up），然后再看三个数：**used** 是 GPU 上所有进程已占用的显存；**peak** 是这一步当中 torch 已分配的最大值，含权重；**current** 是 torch 现在已分配的大小，也就是权重。
# 先自己算一算，再往下读：

# %% key="predict_fit"
predict("blocks_fit", ...)

# %% [markdown] key="formula" lang="en"
# ## The formula
#
# After the warm-up an engine reads four numbers, and you say the share.
#
# $$\text{available} = \lfloor \text{total} \cdot u \rfloor - \text{used} - \text{peak} + \text{current} \qquad\quad \text{num\_blocks} = \left\lfloor \frac{\text{available}}{\text{block\_bytes}} \right\rfloor$$
#
# | symbol | who says it | meaning | unit |
# |---|---|---|---|
# | $\text{total}$ | driver | memory of the GPU | bytes |
# | $u$ | you | utilization: the share that may be used, by everything on the GPU | 0 to 1 |
# | $\text{used}$ | driver | taken now, by all processes: weights, CUDA context, libraries, others | bytes |
# | $\text{peak}$ | torch | the most that was allocated since the reset before the warm-up, weights included | bytes |
# | $\text{current}$ | torch | allocated now: the weights | bytes |
# | $\text{block\_bytes}$ | config | K and V of one block of tokens, all layers of this rank ([lesson 02](02_how_many_bytes.ipynb)) | bytes |
#
# Read it as **what is there** (used) **and what comes back in every step** (peak - current).
# The weights stand in used and in peak; current takes one of the two out again.
#
# A real log of December 2024, from [vLLM PR #10511](https://github.com/vllm-project/vllm/pull/10511): Llama-3-8B on a GPU of 79.22 GiB; weights 14.96, non-torch 1.79, activations 1.26 GiB.
# On two GPUs each holds half the weights, but non-torch grows to 3.58 GiB: the libraries that connect the GPUs come on top.
# %% [markdown] key="formula" lang="zh" src="89e3c166"
# ## 公式
#
# 预热之后，引擎读四个数；比例由你来定。
#
# $$\text{available} = \lfloor \text{total} \cdot u \rfloor - \text{used} - \text{peak} + \text{current} \qquad\quad \text{num\_blocks} = \left\lfloor \frac{\text{available}}{\text{block\_bytes}} \right\rfloor$$
#
# | 符号 | 谁给出 | 含义 | 单位 |
# |---|---|---|---|
# | $\text{total}$ | 驱动 | GPU 的全部显存 | 字节 |
# | $u$ | 你 | 利用率：GPU 上的一切合起来可用的比例 | 0 到 1 |
# | $\text{used}$ | 驱动 | 现在已占用，含所有进程：权重、CUDA 上下文、各种库、其他进程 | 字节 |
# | $\text{peak}$ | torch | 预热前重置之后，已分配的最大值，含权重 | 字节 |
# | $\text{current}$ | torch | 现在已分配：也就是权重 | 字节 |
# | $\text{block\_bytes}$ | 配置 | 一个块的 K 和 V，本 rank 的所有层（[第 02 课](02_how_many_bytes.ipynb)） | 字节 |
#
# 可以这样读：**现在已有的**（used），加上**每一步都会再来的**（peak - current）。
# 权重在 used 和 peak 里各算了一次，current 把其中一次还回来。
#
# 来看一份 2024 年 12 月的真实日志，出自 [vLLM PR #10511](https://github.com/vllm-project/vllm/pull/10511)：Llama-3-8B，GPU 79.22 GiB；权重 14.96，非 torch 1.79，激活 1.26 GiB。
# 用两块 GPU 时，每块只放一半权重，但非 torch 部分增加到 3.58 GiB：多了负责 GPU 互联的库。

# %% key="log"
from minikv.plan import CacheSpec
from minikv.units import GIB


def logged(weights, non_torch, activations, tp):
    terms = MeasuredTerms(
        total=int(79.22 * GIB),
        utilization=0.9,
        used=int((weights + non_torch) * GIB),
        peak=int((weights + activations) * GIB),
        current=int(weights * GIB),
    )
    block = CacheSpec.from_config("Llama-3-8B", tp=tp).block_bytes(16)
    return terms, block


logs = {"tp=1": logged(14.96, 1.79, 1.26, 1), "tp=2": logged(7.48, 3.58, 1.26, 2)}
for name, (terms, block) in logs.items():
    print(t("log_line", name=name, available=terms.available / GIB, blocks=terms.available // block, block=block))

# %% [markdown] key="log_read" lang="en"
# vLLM's own line in the first log says `available_kv_cache_memory 53.29GiB`.
#
# ## Six moments
#
# When are the four numbers read?
# Below an engine starts in the allocator's model of [lesson 07](07_allocate_once.ipynb): every parameter of Llama-3.1-8B is an allocation, and a step of 8,192 tokens makes and frees the tensors of all 32 layers.
# The GPU has 79.22 GiB; its context and libraries hold 1.79 GiB.
# %% [markdown] key="log_read" lang="zh" src="77bb1d13"
# 第一份日志里，vLLM 自己写的是 `available_kv_cache_memory 53.29GiB`。
#
# ## 六个时刻
#
# 这四个数是什么时候读的？
# 下面让一个引擎在[第 07 课](07_allocate_once.ipynb)的分配器模型里启动：Llama-3.1-8B 的每个参数都是一次分配，8,192 个 token 的一步会在 32 层里依次创建、释放各个张量。
# GPU 共 79.22 GiB，上下文和各种库占 1.79 GiB。

# %% key="moments"
from minikv.course.lessons.l08.engine_memory import CHUNK, NON_TORCH, TOTAL, mixed_steps, report_of, serve, start_up

started = start_up(0.9, warmup_tokens=CHUNK, staging=5 * GIB)
print(t("moment_head"))
for moment in started.moments:
    figures = (moment.used, moment.reserved, moment.current, moment.peak)
    print(f"{moment.name:<12}" + "".join(f"{figure / GIB:>9.2f}" for figure in figures))
terms = started.terms
figures = {name: value / GIB for name, value in terms.as_dict().items()}
print(t("formula_line", **figures, blocks=started.num_blocks))

# %% [markdown] key="moments_read" lang="en"
# - **load.** The loader held a shard of 5 GiB for a moment. It is freed again; the peak remembers it, and torch keeps its segment cached (reserved).
# - **reset_peak.** First `empty_cache` gives that segment back, and used falls; then `reset_peak_memory_stats` makes the peak forget: it starts again from what is allocated now.
# - **warm_up.** Activations came and went. current is as before, the peak is higher, and so is used: torch keeps the freed memory cached.
# - **empty_cache** gives the cached memory back, so that used counts what is really needed. The peak stays: it is the one thing that the warm-up was for.
# - **allocate.** The cache takes what is available.
#
# Leave one out, and blocks are lost:
# %% [markdown] key="moments_read" lang="zh" src="d9aa8d1b"
# - **load**：加载时曾有 5 GiB 的分片短暂存在，随后释放。峰值记住了它，它占过的段还被 torch 缓存着（reserved）。
# - **reset_peak**：先用 `empty_cache` 归还那个段，used 随之下降；再用 `reset_peak_memory_stats` 让峰值忘掉过去，从当前已分配的大小重新算起。
# - **warm_up**：激活来过又走了。current 不变，峰值升高，used 也升高了：释放的显存还被 torch 缓存着。
# - **empty_cache**：把缓存的显存还回去，used 才只算真正需要的部分。峰值保留：预热就是为了它。
# - **allocate**：缓存拿走可用的部分。
#
# 少做一步，块就会变少：

# %% key="variants"
best = started.num_blocks
left_out = {
    "variant_all": {},
    "variant_reset": {"reset_peak": False},
    "variant_empty": {"empty_cache": False},
}
for what, options in left_out.items():
    blocks = start_up(0.9, staging=5 * GIB, **options).num_blocks
    print(t("variant_line", blocks=blocks, less=best - blocks, what=t(what)))

# %% [markdown] key="mib" lang="en"
# A wrong unit loses blocks too: the formula takes bytes, while `nvidia-smi` prints MiB, and 1 MiB is $2^{20}$ bytes.
# %% [markdown] key="mib" lang="zh" src="765bfe01"
# 单位弄错，块同样会变少：公式用的是字节，而 `nvidia-smi` 打印的是 MiB，1 MiB 等于 $2^{20}$ 字节。

# %% key="predict_mib"
predict("mib_as_millions", ...)

# %% [markdown] key="see" lang="en"
# ## See it
#
# Every term on a live bar: at the top the six moments, below what each part of the GPU is for in the end.
# This time the numbers come from the planner, on paper, which also sets some workspace aside: the blocks are a little fewer.
#
# Try this, and say before each what will change:
#
# 1. Move the utilization. Which parts of the bar move, and which do not?
# 2. Raise the warm-up from 8,192 to 65,536 tokens: the question of vLLM #8185.
# 3. Raise what is outside of torch. The formula notices. Does the row "Short form", `limit - peak`? (`limit` is $\lfloor \text{total} \cdot u \rfloor$.)
# 4. Choose a larger model until the formula says no.
# %% [markdown] key="see" lang="zh" src="dc0ee7d1"
# ## 亲眼看看
#
# 每一项都在条形图上：上面是六个时刻，下面是 GPU 的每一部分最终用在哪里。
# 这里的数字来自规划器，是纸面上的；它还预留了一些工作空间，所以块略少。
#
# 试试下面几步，每次动手之前先说出会发生什么：
#
# 1. 移动利用率。哪些部分会动，哪些不动？
# 2. 把预热从 8,192 个 token 提高到 65,536 个：这正是 vLLM #8185 的问题。
# 3. 增大 torch 之外的部分。公式察觉到了，那么“简写公式”一行的 `limit - peak` 呢？（`limit` 就是 $\lfloor \text{total} \cdot u \rfloor$。）
# 4. 换更大的模型，直到公式说放不下。

# %% key="widget"
from minikv.course.widgets.allocation import AllocationWidget
from minikv.course.widgets.report_bar import report_bar

show(AllocationWidget(t("lang"), model="Llama-3.1-8B", gpu="H100 SXM 80GB", non_torch=1.75))

# %% [markdown] key="nano" lang="en"
# ## The source, in nano first
#
# `minikv.nano` has all of this in three functions of arithmetic and one method that measures.
# In `measure_num_blocks`, find three of the six moments: which line is the reset, which the warm-up, which `empty_cache`? (The model has been loaded before, and the cache is made after it.)
# And find out why `self.cache.nbytes` is subtracted from the peak: the warm-up writes its K and V somewhere, and that cache is gone before the real one is made.
# %% [markdown] key="nano" lang="zh" src="ba05c4f1"
# ## 源码：先看 nano 的
#
# `minikv.nano` 用三个做算术的函数和一个负责测量的方法，完成了上面的一切。
# 在 `measure_num_blocks` 里找一找六个时刻中的三个：哪一行重置峰值，哪一行预热，哪一行是 `empty_cache`？（模型在这之前已经加载，缓存在这之后才建立。）
# 再想一想，为什么峰值要减去 `self.cache.nbytes`：预热时 K 和 V 总得写到某个地方，而那份缓存在正式的缓存建立之前就已经释放。

# %% key="nano_source"
from minikv.course import show_source
from minikv.nano import LLM
from minikv.nano.kv_cache import block_bytes, num_blocks_that_fit, token_bytes

show_source(token_bytes, block_bytes, num_blocks_that_fit, LLM.measure_num_blocks)

# %% [markdown] key="nano_words" lang="en"
# The three functions with the numbers of the start above:
# %% [markdown] key="nano_words" lang="zh" src="40bbf457"
# 把上面那次启动的数字代进这三个函数：

# %% key="nano_run"
token = token_bytes(num_layers=32, num_kv_heads=8, k_dim=128, v_dim=128, itemsize=2)
block = block_bytes(token, block_size=16)
fits = num_blocks_that_fit(terms.total, terms.utilization, terms.used, terms.peak, terms.current, block)
print(f"{token:,} B -> {block:,} B -> {fits:,} = {started.num_blocks:,}")

# %% [markdown] key="source" lang="en"
# (Exercise 08.2 asks for `num_blocks_that_fit`.)
#
# `allocate_kv_cache` does the same for `minikv.LLM`, and adds what a larger engine needs: sizes that are given, several ranks, a report, errors with a way out.
# Here it is step by step, with the functions that it calls where the numbers are made.
# %% [markdown] key="source" lang="zh" src="11f34169"
# （练习 08.2 就是写 `num_blocks_that_fit`。）
#
# `allocate_kv_cache` 为 `minikv.LLM` 做同样的事，另外加上大一些的引擎才需要的东西：直接指定大小、多个 rank、一份报告，以及写明解决办法的错误。
# 下面逐步来读，连同它调用的、真正算出那些数字的几个函数。

# %% key="annotated"
from minikv.course.lessons.l08.annotated_source import SourceView

show(SourceView(t("lang")))

# %% [markdown] key="flow" lang="en"
# And one run's way through it, with its numbers: the engine from above (`cuda:model` is the modelled GPU).
# %% [markdown] key="flow" lang="zh" src="6462af27"
# 再看一次运行怎样走过这些步骤，附上每一步的数字：就是上面那个引擎（`cuda:model` 指模型里的 GPU）。

# %% key="flow_model"
from minikv.course.lessons.l08.flow_chart import FlowChart

report = report_of(started)
show(FlowChart(report, t("lang")))

# %% [markdown] key="report" lang="en"
# What `allocate_kv_cache` returns beside the cache is an `AllocationReport`: every term, as a table and as a bar.
# `used - current` is a little more than the 1.79 GiB outside of torch: the driver counts segments, and they are larger than the tensors in them ([lesson 07](07_allocate_once.ipynb)).
# %% [markdown] key="report" lang="zh" src="a3bcc71a"
# `allocate_kv_cache` 除了缓存，还返回一份 `AllocationReport`：每一项都在里面，可以打印成表，也可以画成条形图。
# `used - current` 比 torch 之外的 1.79 GiB 略大：驱动统计的是段，而段比其中的张量大（[第 07 课](07_allocate_once.ipynb)）。

# %% key="bar_model"
print(report.text(t("lang")))
show(report_bar(report, t("lang")))

# %% [markdown] key="machine" lang="en"
# ## On this machine
#
# A small Llama with random weights.
# With a GPU the size is measured (half of the GPU, so that others keep their place).
# On a CPU the memory belongs to everybody, so a size must be given; the warm-up's peak is measured all the same.
# %% [markdown] key="machine" lang="zh" src="fc460ce3"
# ## 在这台机器上
#
# 一个小 Llama，权重随机。
# 有 GPU 时，大小由测量得出（只用一半，给其他进程留些位置）。
# CPU 的内存由所有程序共用，所以必须指定大小；不过预热的峰值照样会测。

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

# %% key="this_run" tags="hardware"
size = {"utilization": 0.5} if device == "cuda" else {"kv_bytes": 8 * 2**20}
cache, here = allocate_kv_cache(model, **size, warmup_tokens=1024)
print(here.text(t("lang")))

# %% key="this_flow" tags="hardware"
show(FlowChart(here, t("lang")))

# %% [markdown] key="ask_cpu" lang="en"
# With a GPU you now see its own six moments; without one, what happens where no size is given.
# %% [markdown] key="ask_cpu" lang="zh" src="607573b3"
# 有 GPU 时，下面是它自己的六个时刻；没有的话，看看不指定大小会怎样。

# %% key="this_timeline" tags="hardware"
from minikv.errors import MiniKVError

cache.close()
if here.terms is not None:
    show(AllocationWidget(t("lang"), report=here))
else:
    try:
        allocate_kv_cache(model)
    except MiniKVError as error:
        print(t(error))

# %% [markdown] key="refuses" lang="en"
# An error says its numbers and the way out, and nothing has been made by then.
# %% [markdown] key="refuses" lang="zh" src="31fdbe5f"
# 每个错误都写明数字和解决办法，而且那时还什么都没有创建。

# %% key="refusals"
for wrong in ({"kv_bytes": 100}, {"utilization": 90}, {"num_blocks": 4, "kv_bytes": 2**20}):
    try:
        allocate_kv_cache(model, **wrong)
    except MiniKVError as error:
        print(f"{wrong}\n   {t(error)}")

# %% [markdown] key="short" lang="en"
# ## The short form
#
# A public guide, "KV 缓存分配详细指南" (a detailed guide to KV cache allocation), explains this formula, and then shortens it: used and current are the same, so they cancel, and $\text{total} \cdot u - \text{peak}$ is left.
# %% [markdown] key="short" lang="zh" src="282e9bf5"
# ## 简写公式
#
# 公开文档《KV 缓存分配详细指南》讲解了这个公式，然后把它化简：used 和 current 相同，互相抵消，只剩 $\text{total} \cdot u - \text{peak}$。

# %% key="predict_short"
predict("short_form", ...)

# %% key="short_form"
print(t("short_head"))
for non_torch in (0, 0.5, 1.79, 3.58):
    short = start_up(0.9, non_torch=int(non_torch * GIB))
    block, short_blocks = short.block_bytes, short.terms.short_form // short.block_bytes
    print(f"{non_torch:>13.2f} {short.num_blocks:>10,} {short_blocks:>13,} {short_blocks - short.num_blocks:>11,}")

# %% [markdown] key="short_read" lang="en"
# They cancel only where used equals current: no context, no library, no other process.
# Even the first row is not quite zero: the weights' segments are a little larger than the weights ([lesson 07](07_allocate_once.ipynb)), and used counts segments.
# The short form gives the order of magnitude, and it errs on one side only: too many blocks.
#
# The same guide takes `peak` for the activations alone in one place.
# Both slips stand in [appendix A](A_errata.ipynb) (a block of the guide takes 2.5 MiB, so the counts are other ones than above):
# %% [markdown] key="short_read" lang="zh" src="db676d8a"
# 只有 used 等于 current 时才能抵消：没有上下文，没有库，也没有其他进程。
# 连第一行都不完全是零：权重所在的段比权重略大（[第 07 课](07_allocate_once.ipynb)），而 used 统计的是段。
# 简写公式可以估个数量级，但误差只朝一个方向：块数偏多。
#
# 这份指南还在一处把 `peak` 当成了激活本身。
# 两处错误都收在[附录 A](A_errata.ipynb) 里（那份指南的一个块占 2.5 MiB，所以块数与上表不同）：

# %% key="claims"
from minikv.course.errata import erratum

for number in ("001-28", "001-26"):
    slip = erratum(number)
    lang = t("lang")
    print(t("claim_line", id=slip.id, section=slip.section, claim=slip.claim.in_(lang), correct=slip.correct.in_(lang)))

# %% [markdown] key="free" lang="en"
# ## Break it: all that is free
#
# `free` is what the driver could still give. Why not hand it out?
# Nothing stops you: the allocation succeeds.
# %% [markdown] key="free" lang="zh" src="7389e5c6"
# ## 弄坏它：把空闲的全用掉
#
# `free` 是驱动还能给出的显存。为什么不全部拿来用？
# 没有什么拦着你：分配会成功。

# %% key="all_free"
from minikv.units import format_bytes

all_free = (started.terms.total - started.terms.used) // started.block_bytes
greedy = start_up(num_blocks=all_free)
print(t("free_line", blocks=greedy.num_blocks, more=greedy.num_blocks - best))
for engine in (greedy, start_up()):
    first = serve(engine, [CHUNK])
    asked = format_bytes(first.asked)
    print(t("step_fails" if first.asked else "step_runs", blocks=engine.num_blocks, tokens=CHUNK, asked=asked))

# %% [markdown] key="pressure" lang="en"
# The error comes later, from another line, with a small request: somebody will look for its cause in the model.
#
# ## Where running out of memory begins
#
# .80, .90 or .95? The guide says: 0.8 to 0.9 is rather safe, 0.95 and more easily runs out of memory.
# Let us see, in the model: 100 steps with chunks of every length, under four loads.
# %% [markdown] key="pressure" lang="zh" src="0b3e0a23"
# 错误要到后来才出现，在另一行代码里，申请的量还不大：多半会有人到模型里去找原因。
#
# ## 显存不足从哪里开始
#
# 利用率该取 .80、.90 还是 .95？那份指南说：0.8–0.9 较安全，0.95 以上容易 OOM。
# 我们在模型里看一看：100 步，每步长短不一，四种负载。

# %% key="predict_five"
predict("five_percent", ...)

# %% key="pressure_table"
shares = (0.80, 0.90, 0.95, 0.98, 0.99, 1.00)
steps, growth = mixed_steps(), [GIB // 10] * 100
loads = {
    "load_alone": (steps, []),
    "load_longer": (mixed_steps(longest=2 * CHUNK), []),
    "load_library": (steps, [GIB]),
    "load_neighbour": (steps, growth),
}
runs = {(load, share): serve(start_up(share), *loads[load]) for load in loads for share in shares}


def outcome(run):
    if run.asked:
        return f"OOM @{run.survived + 1}"
    return f"ok +{run.retries}" if run.retries else "ok"


print("".join(f"{share:>10.2f}" for share in shares))
print("".join(f"{start_up(share).num_blocks:>10,}" for share in shares), "  ", t("blocks_row"))
for load in loads:
    print("".join(f"{outcome(runs[load, share]):>10}" for share in shares), "  ", t(load))
print(t("load_legend"))

# %% [markdown] key="pressure_read" lang="en"
# In this model the guide is right: up to 0.90 all four loads survive, at 0.95 one does not.
# But it is not the number alone: without neighbours, and with no step above the warm-up, 0.99 still works. At 1.00 it dies although the formula kept room for every tensor.
# The reason is in the next line: **utilization is a plan, not a fence.**
# %% [markdown] key="pressure_read" lang="zh" src="b18d9f81"
# 在这个模型里，那份指南说得对：0.90 及以下，四种负载都能跑完；到 0.95，有一种跑不完。
# 但关键不只在这个数字：没有邻居、没有一步超过预热时，0.99 也还行；到 1.00 就失败了，尽管公式给每个张量都留了位置。
# 原因看下一行：**利用率只是计划，不是围栏**。

# %% key="over_limit"
most = max(runs["load_alone", 0.90].used)
print(t("over_limit", utilization=0.9, limit=started.terms.limit / GIB, most=most / GIB))

# %% [markdown] key="over_limit_read" lang="en"
# The formula counts live tensors; the allocator holds segments.
# Steps of different lengths leave free pieces that the next step cannot use, so it takes new ones, and reserved memory walks past the limit.
# Before it fails it gives the cached segments back ("+n"): slow, but it works as long as some are whole.
#
# What lies above the limit pays for this, for steps longer than the warm-up, for late workspace (CUDA graphs too, where an engine captures them after it has made the cache), and for neighbours.
# %% [markdown] key="over_limit_read" lang="zh" src="26129f61"
# 公式统计的是存活的张量，分配器拿着的却是段。
# 各步的 token 数不同，留下的空档下一步用不上，于是再申请新段，已保留的显存就越过了上限。
# 失败之前，它会先归还缓存的段（“+n”）：慢，但只要还有整段空着就管用。
#
# 上限以外的部分，就是留给这些的：碎片、超过预热的步、后来才要的工作空间（引擎如果建好缓存之后才捕获 CUDA 图，也算在内），还有邻居。

# %% key="pressure_figure"
import plotly.graph_objects as go

figure = go.Figure()
lines = []
for share, dash in ((0.80, "solid"), (0.90, "dash"), (0.95, "dot"), (0.98, "dashdot")):
    used = [one / GIB for one in runs["load_neighbour", share].used]
    figure.add_scatter(x0=1, y=[round(one, 2) for one in used], name=f"{share:.2f}", mode="lines", line={"dash": dash})
    lines.append(t("used_line", share=share, steps=len(used), first=used[0], last=used[-1]))
figure.add_hline(y=TOTAL / GIB, line_dash="longdash", annotation_text=t("plot_total"))
figure.update_xaxes(title=t("plot_step"), range=[0, 100])
figure.update_yaxes(title=t("plot_used"))
figure.update_layout(height=340, margin={"t": 30, "r": 20})
figure.update_layout(legend_title=t("plot_legend"))
show(figure, text="\n".join(lines), caption=t("pressure_caption"))

# %% [markdown] key="length" lang="en"
# ## Why does the maximum length cost blocks?
#
# This is the question of vLLM #8185.
# An engine without chunked prefill must be able to prefill a prompt of the maximum length in one step, so it warms up with that many tokens.
# %% [markdown] key="length" lang="zh" src="89b8dc15"
# ## 最大长度为什么会减少块数？
#
# 这就是 vLLM #8185 的问题。
# 没有分块预填充（chunked prefill）的引擎，必须能一步预填充最大长度的提示词，所以预热时就要用那么多 token。

# %% key="predict_activations"
predict("activations", ...)

# %% key="lengths"
for tokens in (2048, 8192, 32_768, 131_072):
    long = start_up(0.9, warmup_tokens=tokens)
    activations = (long.terms.peak - long.terms.current) / GIB
    print(t("length_line", tokens=tokens, activations=activations, blocks=long.num_blocks))

# %% [markdown] key="trt" lang="en"
# The activations grow with the tokens, not with their square: attention here keeps no matrix of scores, as in FlashAttention (`attn_implementation="eager"` would).
# With chunked prefill the warm-up is one chunk, and the number of blocks no longer depends on the length.
#
# ### And the 631 blocks?
#
# The log of that issue: Qwen1.5-7B, 21.89 GiB available.
# The issue names neither the size of a block nor the share nor the dtype. Take 64 tokens a block, 16 bits an element, and 0.9 *of the free memory* (TensorRT-LLM's meaning of the word, a third one); [it rounds up](https://github.com/NVIDIA/TensorRT-LLM/issues/224). That gives its number, which is no proof, but a good sign:
# %% [markdown] key="trt" lang="zh" src="d678d057"
# 激活随 token 数成正比增长，而不是按平方增长：这里的注意力像 FlashAttention 那样，不保存分数矩阵（`attn_implementation="eager"` 则会保存）。
# 有了分块预填充，预热只需一段的长度，块数就不再受最大长度影响。
#
# ### 那 631 个块呢？
#
# 那个 issue 的日志写着：Qwen1.5-7B，可用 21.89 GiB。
# 它没有提块大小和比例，也没有提数据类型。按每块 64 个 token、每个元素 16 位、取**空闲显存**的 0.9 来算（这是 TensorRT-LLM 的定义，也就是第三种含义），并且[向上取整](https://github.com/NVIDIA/TensorRT-LLM/issues/224)，恰好得到那个数。这不算证明，但很说明问题：

# %% key="trt_code"
import math

qwen = CacheSpec.from_config(
    {"model_type": "qwen2", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
     "hidden_size": 4096, "max_position_embeddings": 32768, "torch_dtype": "float16"}
)
tokens = int(21.89 * GIB * 0.9) // qwen.bytes_for(1)
print(t("trt_line", tokens=tokens, token=qwen.bytes_for(1), blocks=tokens / 64, up=math.ceil(tokens / 64)))

# %% [markdown] key="trt_read" lang="en"
# Few blocks, but large ones: 32 MiB each, because this model has 32 KV heads and no GQA.
# A number of blocks says nothing without the size of a block, and a number of tokens little without the layers behind it ([vLLM #43308](https://github.com/vllm-project/vllm/issues/43308), [lesson 02b](02b_layers_that_differ.ipynb)). Compare bytes.
#
# ## Paper and measurement
#
# The budget explorer of [lesson 02](02_how_many_bytes.ipynb) does the same on paper, for any model and GPU.
# How near is it to the run in the model? The same GPU, 1.79 GiB outside of torch:
# %% [markdown] key="trt_read" lang="zh" src="6bcb4dda"
# 块不多，但很大：每块 32 MiB，因为这个模型有 32 个 KV 头，没有用 GQA。
# 不说块大小，块数没有意义；不看背后有哪些层，token 数也说明不了多少（[vLLM #43308](https://github.com/vllm-project/vllm/issues/43308)，[第 02b 课](02b_layers_that_differ.ipynb)）。要比，就比字节。
#
# ## 纸面与实测
#
# [第 02 课](02_how_many_bytes.ipynb)的显存预算组件在纸面上做同样的事，任何模型、任何 GPU 都行。
# 它与模型里的这次运行相差多少？同一块 GPU，torch 之外同样是 1.79 GiB：

# %% key="paper"
from minikv.plan import plan_memory

paper = plan_memory("Llama-3.1-8B", gpu="H100 SXM 80GB", chunk=CHUNK, cuda_context_bytes=NON_TORCH, workspace_bytes=0)
percent = 100 * (paper.num_blocks / best - 1)
print(t("paper_line", paper=paper.num_blocks, measured=best, percent=percent))

# %% [markdown] key="budget_read" lang="en"
# The same for any model is live in [lesson 02](02_how_many_bytes.ipynb). There the CUDA context and the workspace are assumptions, not this GPU's 1.79 GiB.
# On paper, what is outside of torch is a guess. That is what the warm-up is for.
# %% [markdown] key="budget_read" lang="zh" src="7fd29172"
# 任何模型都能这样算，可交互的组件在[第 02 课](02_how_many_bytes.ipynb)。那里的 CUDA 上下文和工作空间是假定值，不是这块 GPU 的 1.79 GiB。
# torch 之外占多少，纸面上只能靠猜；正因如此，才需要预热。

# %% [markdown] key="bind" lang="en"
# ## Into the model: bind
#
# The cache is one allocation; the layers want a tensor each.
# Engines that bring their own models give every attention module a `k_cache` and a `v_cache`, and set them to views.
# %% [markdown] key="bind" lang="zh" src="41f76559"
# ## 交给模型：bind
#
# 缓存是一次分配，而每一层想要一个张量。
# 自带模型实现的引擎，会给每个注意力模块留出 `k_cache` 和 `v_cache`，再把它们设成视图。

# %% key="bind_code"
from torch import nn

from minikv.cache import bind


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.k_cache = self.v_cache = torch.tensor([])


def decoder(layers):
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), Attention()) for _ in range(layers)))


cache, _ = allocate_kv_cache(model, num_blocks=12)
layers = decoder(4)
count = bind(layers, cache)
cache.layer(1).k[3].fill_(7)
seen = layers[1][1].k_cache
print(t("bound_line", count=count, shape=list(seen.shape), value=seen[3, 0, 0, 0].item()))
try:
    bind(decoder(3), cache)
except MiniKVError as error:
    print(t(error))

# %% [markdown] key="ranks" lang="en"
# What was written into the cache shows in the module: a view, not a copy.
# And a count that does not match is an error; the public code sets what it finds and goes on.
#
# ## The least of all ranks
#
# Two ranks share a model; on rank 1 somebody else holds 3 GiB.
# Each computes its own number.
# [nano-vllm #187](https://github.com/GeeeekExplorer/nano-vllm/issues/187) points out that the scheduler then goes by rank 0's.
# %% [markdown] key="ranks" lang="zh" src="c6398fa0"
# 写进缓存的内容，在模块里就能看到：这是视图，不是副本。
# 数量对不上就报错；而公开的那些代码找到几个就设几个，然后继续。
#
# ## 所有 rank 的最小值
#
# 两个 rank 共用一个模型；rank 1 上另有其他进程占着 3 GiB。
# 它们各自算出自己的块数。
# [nano-vllm #187](https://github.com/GeeeekExplorer/nano-vllm/issues/187) 指出：调度器接下来用的是 rank 0 的数。

# %% key="ranks_code"
from minikv.cache import PagedKVCache

own = [start_up(0.9, non_torch=NON_TORCH + extra).num_blocks for extra in (0, 3 * GIB)]
print(t("rank_line", own=", ".join(f"{blocks:,}" for blocks in own), least=min(own)))

spec = CacheSpec.from_config(small, tp=2)
for rank, blocks in enumerate((12, 9)):
    mine = PagedKVCache(spec, blocks, 16)
    try:
        mine.layer(0).k[10]
        print(t("rank_has", rank=rank, block=10))
    except IndexError as error:
        print(t("rank_lacks", rank=rank, kind=type(error).__name__, message=error))

# %% [markdown] key="ranks_read" lang="en"
# On a CPU that is an error. A kernel on a GPU does not check: it reads and writes what lies behind the cache, or the run ends with an illegal memory access (so in [nano-vllm #275](https://github.com/GeeeekExplorer/nano-vllm/pull/275): 2111 blocks on one rank, 2055 on the other).
# `allocate_kv_cache` takes the least of all ranks (step 12 above), also of one that has no room at all.
#
# ## Check yourself
#
# Answer aloud first, then `explain(..., reveal=True)`.
# %% [markdown] key="ranks_read" lang="zh" src="dfbc671f"
# 在 CPU 上这是个错误；GPU 上的 kernel 不做检查，要么读写到缓存后面的内容，要么以非法内存访问（illegal memory access）告终，[nano-vllm #275](https://github.com/GeeeekExplorer/nano-vllm/pull/275) 就是这样：一个 rank 有 2111 个块，另一个只有 2055 个。
# `allocate_kv_cache` 取所有 rank 的最小值（上面第 12 步），一点空间都没有的 rank 也算在内。
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
# 1. `block_bytes`: one block on one of `tp` ranks, GQA and MLA.
# 2. `num_blocks_that_fit`: from the four numbers to blocks, a part of your engine.
# 3. `ledger`: used, peak and current after each event of a start.
# 4. `blocks_with_room`: a cache beside which the largest step still fits.
# 5. `bind_views`: views for the modules that want them, or an error and no change.
# %% [markdown] key="exercises" lang="zh" src="5c1d0d8c"
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
# | no blocks, or far fewer than planned | `print(report.text())` (the error holds the same terms): is `used` much larger than `current`? Then somebody else is on the GPU: `minikv doctor --memory` |
# | the cache was made, the first long prompt is out of memory | `report.terms.peak - report.terms.current` and `report.warmup_tokens`: 0, or a warm-up shorter than the prompt, kept no room |
# | fewer blocks after each restart in one process | `MemoryStats.read("cuda").allocated` (from `minikv.memory`) before the call: more than the weights means that the old cache still lives (`cache.close()`, and unset the bound views) |
# %% [markdown] key="stuck" lang="zh" src="a11fe185"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 没有块，或者比计划少很多 | `print(report.text("zh"))`（错误信息里也有同样各项）：`used` 比 `current` 大很多吗？那是 GPU 上还有其他进程：`minikv doctor --memory` |
# | 缓存建好了，第一个长提示词就显存不足 | 看 `report.terms.peak - report.terms.current` 和 `report.warmup_tokens`：为 0，或者预热比提示词短，就没有留出空间 |
# | 同一进程里每重启一次，块就少一些 | 调用之前看 `MemoryStats.read("cuda").allocated`（`MemoryStats` 在 `minikv.memory` 里）：大于权重，说明旧缓存还活着（`cache.close()`，并取消绑定的视图） |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You have a pool of blocks, you know where their number comes from, and what the rest is kept for.
# [Lesson 09](09_pages_and_blocks.ipynb) gives them out: which sequence holds which block, and when may somebody else have it?
# %% [markdown] key="next" lang="zh" src="8363a4f8"
# ## 下一课
#
# 块池有了，你知道块数从何而来，剩下的显存又为谁而留。
# [第 09 课](09_pages_and_blocks.ipynb)来分配这些块：哪条序列持有哪个块，什么时候才能分给别的序列？
