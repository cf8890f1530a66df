# %% [meta]
# number = "04"
# slug = "the_roofline"
# needs = ["02", "03"]
# rooms = ["plan.roofline", "memory.bandwidth", "memory.access"]
# minutes = 55
# [title]
# en = "The roofline: why does the GPU wait?"
# zh = "Roofline 模型：GPU 为什么在等？"
# [t4]
# en = "Every measurement runs on the T4 itself: its L2 cache, its memory against the 320 GB/s of the data sheet, its four access patterns."
# zh = "所有测量都在 T4 上进行：它的 L2 缓存、与标称 320 GB/s 相比的显存带宽、四种访问模式。"
# [paper]
# en = "04.1, 04.2, 04.4"
# zh = "04.1、04.2、04.4"

# %% [markdown] key="question" lang="en"
# ## The question
#
# In [TensorRT-LLM #1607](https://github.com/NVIDIA/TensorRT-LLM/issues/1607) somebody runs Whisper on an A10G: GPU utilization is around 90 %, and the tensor cores are used less than 25 %.
# Why? Somebody asked back for details; half a year later the issue was closed without an answer.
#
# `nvidia-smi` counts the time in which *some* kernel runs on the GPU.
# A kernel that waits for memory runs too.
# So 90 % can mean a GPU that computes, and it can mean a GPU that waits.
#
# **How long does a decode step have to take, and what does the GPU wait for?**
#
# Two numbers of the model and two of the card answer it, before any kernel is written.
# %% [markdown] key="question" lang="zh" src="ad801a66"
# ## 问题
#
# [TensorRT-LLM #1607](https://github.com/NVIDIA/TensorRT-LLM/issues/1607) 里有人在 A10G 上跑 Whisper：GPU 利用率约 90%，Tensor Core 利用率却不到 25%。
# 为什么？有人追问了细节；半年后，该 issue 在没有答案的情况下关闭。
#
# `nvidia-smi` 统计的是**有** kernel 在 GPU 上运行的时间比例。
# 正在等显存的 kernel 也算在运行。
# 所以 90% 可能是 GPU 在计算，也可能是 GPU 在等待。
#
# **一步解码至少要多久？GPU 在等什么？**
#
# 模型的两个数加上显卡的两个数就能回答，一行 kernel 都不用写。

# %% [markdown] key="ask_floor" lang="en"
# ## The floor of a step
#
# To decode one token, a model multiplies a vector by each of its weight matrices and compares a query with every cached key.
# Each of these weights and each cached element has to come from memory once. No kernel can do with less.
# %% [markdown] key="ask_floor" lang="zh" src="c0a5975a"
# ## 一步的下限
#
# 解码（decode）一个 token 时，模型要用一个向量去乘每个权重矩阵，再拿 query 与缓存里的每个 key 比较。
# 这些权重和缓存里的每个元素都必须从显存读一次，kernel 写得再好也省不掉。

# %% key="predict_floor"
predict("floor", ...)

# %% key="predict_used"
predict("used_flops", ...)

# %% key="cards"
from minikv.plan import CacheSpec, find_gpu, find_model
from minikv.plan.roofline import decode_work, gpu_roof, ridge_batch
from minikv.plan.weights.weight_bytes import weight_list

work = decode_work("Llama-3.1-8B", batch=1, context=4096)
for name in ("T4", "L4", "RTX 4090", "A100 SXM 80GB", "H200"):
    roof = gpu_roof(find_gpu(name))
    ms, arithmetic = roof.seconds(work.flops, work.num_bytes) * 1e3, work.flops / roof.tflops / 1e9
    figures = {"bandwidth": roof.bandwidth_gb_s, "tflops": roof.tflops, "ms": ms, "arithmetic": arithmetic}
    print(t("card_line", name=roof.name, **figures))
held = sum(weight.bytes for weight in weight_list("Llama-3.1-8B"))
sizes = {"all_gib": held, "read_gib": work.weight_bytes, "t4_gib": find_gpu("T4").total_bytes}
print(t("sizes_line", **{name: size / 2**30 for name, size in sizes.items()}))

# %% [markdown] key="cards_read" lang="en"
# The last two columns are two orders of magnitude apart.
# With one sequence the tensor cores are done almost at once; the rest of the step is reading.
# A card with twice the arithmetic and the same bandwidth would not be faster at all.
#
# A step does not read all the weights: of the table of input embeddings it needs one row a token.
# That table has to lie in memory all the same, so the T4's line is on paper only.
# %% [markdown] key="cards_read" lang="zh" src="db166d7a"
# 最后两列相差约两个数量级。
# 只有一条序列时，Tensor Core 几乎立刻就算完了，剩下的时间都在读取。
# 如果换一块算力翻倍、带宽不变的卡，速度一点也不会提高。
#
# 一步并不会读到全部权重：输入 embedding 表里，每个 token 只取一行。
# 但整张表仍要放在显存里，所以 T4 那一行只是纸面上的数字。

# %% [markdown] key="formula" lang="en"
# ## The formula
#
# A device reads at most $\beta$ bytes a second and does at most $\pi$ FLOPs a second, both at once.
# Work of $F$ FLOPs on $M$ bytes has the *arithmetic intensity* $I = F / M$, and it takes at least
# %% [markdown] key="formula" lang="zh" src="28cf3ec1"
# ## 公式
#
# 一个设备每秒最多读 $\beta$ 字节，每秒最多做 $\pi$ 个 FLOP，两者可以同时进行。
# 在 $M$ 字节上做 $F$ 个 FLOP，**算术强度**（arithmetic intensity）为 $I = F / M$，所需时间至少是

# %% [markdown] key="formula_math"
# $$T \ge \max\!\left(\frac{M}{\beta}, \frac{F}{\pi}\right) \qquad I_{\text{ridge}} = \frac{\pi}{\beta} \qquad \text{FLOP/s} \le \min(\pi,\ \beta \, I)$$

# %% [markdown] key="step_formula" lang="en"
# For one decode step of $B$ sequences that see $n$ tokens each:
# %% [markdown] key="step_formula" lang="zh" src="752d7ccb"
# 对于一步解码，$B$ 条序列，每条看到 $n$ 个 token：

# %% [markdown] key="step_math"
# $$M = W + B\,n\,k \qquad F = B\,(f + n\,a) \qquad I = \frac{B\,(f + n\,a)}{W + B\,n\,k}$$

# %% [markdown] key="symbols" lang="en"
# | symbol | meaning | unit |
# |---|---|---|
# | $\beta$, $\pi$ | bandwidth and FLOP rate of the device | bytes/s, FLOP/s |
# | $I_{\text{ridge}}$ | the *ridge point*: below it memory-bound, above it compute-bound | FLOP/byte |
# | $W$ | weights that a step reads, once for the batch | bytes |
# | $k$ | K and V of one token, all layers ([lesson 02](02_how_many_bytes.ipynb)) | bytes |
# | $f$ | FLOPs of one token with the weights, 2 for each | FLOP |
# | $a$ | FLOPs of one query token with one cached token, all heads and layers | FLOP |
# | $B$ | sequences of the step, one new token each | sequences |
# | $n$ | tokens that each of them sees | tokens |
# | $T$ | time of the work | seconds |
#
# One multiplication and one addition are two FLOPs.
# In 16 bit $f / W$ is 2 FLOPs for 2 bytes: **1 FLOP per byte**.
# %% [markdown] key="symbols" lang="zh" src="c7bff1f9"
# | 符号 | 含义 | 单位 |
# |---|---|---|
# | $\beta$、$\pi$ | 设备的带宽和算力 | 字节/秒、FLOP/秒 |
# | $I_{\text{ridge}}$ | **拐点**（ridge point）：低于它访存受限，高于它计算受限 | FLOP/字节 |
# | $W$ | 一步读取的权重，整个 batch 读一次 | 字节 |
# | $k$ | 一个 token 在所有层的 K 和 V（[第 02 课](02_how_many_bytes.ipynb)） | 字节 |
# | $f$ | 一个 token 与权重运算的 FLOP，每个权重 2 个 | FLOP |
# | $a$ | 一个 query token 与一个缓存 token 运算的 FLOP，所有头、所有层 | FLOP |
# | $B$ | 这一步的序列数，每条一个新 token | 条 |
# | $n$ | 每条序列看到的 token 数 | 个 |
# | $T$ | 所需时间 | 秒 |
#
# 一次乘法加一次加法算两个 FLOP。
# 16 位时，$f / W$ 是每 2 字节 2 个 FLOP，即 **1 FLOP/字节**。

# %% key="work"
parts = {
    "weights": (work.weight_bytes, work.weight_flops),
    "attention": (work.cache_bytes, work.attention_flops),
    "step": (work.num_bytes, work.flops),
}
for name, (num_bytes, flops) in parts.items():
    figures = {"gib": num_bytes / 2**30, "gflop": flops / 1e9, "intensity": flops / num_bytes}
    print(t("work_line", what=t("work_" + name), **figures))

# %% key="ridges"
for name in ("A100 SXM 80GB", "H100 SXM", "H200", "H20"):
    roof = gpu_roof(find_gpu(name))
    print(t("ridge_line", name=roof.name, ridge=roof.ridge, share=work.intensity / roof.ridge))

# %% [markdown] key="source" lang="en"
# ## A famous picture, with other numbers
#
# One of this course's sources ("Memory Model Deep Dive") draws the same roof and says: decode attention does about 10 FLOPs per byte, the GPU could do about 200, so it waits 95 % of the time.
# The picture is right, the 10 is not.
# Attention reads K and V of a token and does 4 FLOPs with each pair of elements, for every query head that uses them:
# %% [markdown] key="source" lang="zh" src="210afaa2"
# ## 一张熟悉的图，数字要改
#
# 本课程所据资料之一（《Memory Model Deep Dive》）画的是同一条 Roofline，并说：解码时注意力约 10 FLOP/字节，GPU 能做到约 200，所以有 95% 的时间在等。
# 图没错，10 这个数不对。
# 注意力读出一个 token 的 K 和 V，对每一对元素、每个用到它的 query 头，做 4 个 FLOP：

# %% key="source_check"
for model in ("Llama-2-7B", "Llama-3.1-8B", "Llama-3.1-70B"):
    print(t("source_line", model=model, intensity=decode_work(model, 1, 4096).attention_intensity))
ridge = gpu_roof(find_gpu("H200")).ridge
print(t("source_waiting", waiting=1 - 10 / 200, ridge=ridge, right=1 - 1 / ridge))
orin = find_gpu("Jetson AGX Orin 64GB")
print(f"{orin.name}: {orin.bandwidth_gb_s} GB/s")

# %% [markdown] key="source_read" lang="en"
# The ratio is the number of query heads for each KV head, divided by half the bytes of an element.
# The source's card, an Orin, has 204.8 GB/s and not the "~900" of its table; that makes everything in it that rests on bandwidth more than four times too fast.
# %% [markdown] key="source_read" lang="zh" src="06266ad2"
# 这个比值等于每个 KV 头对应的 query 头数，再除以元素字节数的一半。
# 资料里的 Orin，带宽是 204.8 GB/s，不是表里的“~900”；凡是基于带宽的结论，都快了四倍多。

# %% [markdown] key="pyramid" lang="en"
# ## The memory pyramid, measured
#
# $\beta$ is not one number.
# In [transformers-benchmarks #4](https://github.com/mli/transformers-benchmarks/issues/4) somebody measures 3,868 GB/s on an RTX 4090 whose data sheet says about 1,000, and asks whether that is normal.
# The benchmark multiplies a vector by 1.2: it reads one float32 tensor and writes another.
# %% [markdown] key="pyramid" lang="zh" src="56cb5164"
# ## 实测内存金字塔
#
# $\beta$ 不是一个固定的数。
# [transformers-benchmarks #4](https://github.com/mli/transformers-benchmarks/issues/4) 里有人在 RTX 4090 上测得 3,868 GB/s，而标称只有 1,000 左右，于是问：这样正常吗？
# 那个基准测试把一个向量乘以 1.2：读一个 float32 张量，写另一个。

# %% key="predict_touched"
predict("touched", ...)

# %% key="fits"
for elements, gb_s in ((65536, 196.343), (262144, 792.595), (1048576, 2590.594), (4194304, 3868.374)):
    print(t("fits_line", elements=elements, mib=2 * elements * 4 / 2**20, gb_s=gb_s))

# %% [markdown] key="fits_read" lang="en"
# The largest of these still fits in the 72 MiB L2 cache of that card.
# The measurement is right: it is the bandwidth of L2, and memory was hardly asked.
# (The small sizes show something else: a kernel so short that its launch is what takes the time.)
# On the asker's other machine, an A800, the same script gave 1,727 GB/s, below the data sheet's 1,935.
# (Its L2 is 40 MB in two halves, and these 32 MiB do not fit in one half: a likely reason, but we have not measured it.)
#
# So bandwidth belongs to a *working set*: the bytes that are touched again and again.
# We read working sets from 16 KiB to 1 GiB on this machine.
# One call reads a set many times, so that no call's own cost is in the figure.
# On a CPU one core does the reading; on a GPU all multiprocessors do, and share the set out.
# %% [markdown] key="fits_read" lang="zh" src="531bf103"
# 最大的一档也放得进那块卡 72 MiB 的 L2 缓存。
# 测量本身没错：测到的是 L2 的带宽，几乎没有用到显存。
# （最小的几档是另一回事：kernel 太短，时间主要花在启动上。）
# 提问者的另一台机器是 A800，同一个脚本测得 1,727 GB/s，低于标称的 1,935。
# （它的 L2 共 40 MB，分成两半，一半放不下这 32 MiB：原因很可能在这里，不过我们没有实测。）
#
# 所以带宽总是针对某个**工作集**（working set）而言：反复读写的那些字节。
# 下面在本机上测量 16 KiB 到 1 GiB 的工作集。
# 每次调用会把工作集读很多遍，使调用本身的开销不计入结果。
# 在 CPU 上由一个核心来读；在 GPU 上由所有 SM 分着读。

# %% key="curve" tags="timing"
import torch

from minikv.memory import bandwidth_curve, cache_sizes, levels
from minikv.units import format_bytes

device = "cuda" if torch.cuda.is_available() else "cpu"
caches = cache_sizes(device)
points = bandwidth_curve(device, cores=1)
for cache in caches:
    print(t("cache_line", name=cache.name, kib=cache.size / 1024))
if not caches:
    print(t("no_caches"))

# %% key="curve_plot" tags="timing"
import math

import plotly.graph_objects as go

line = go.Scatter(x=[p.working_set for p in points], y=[p.gb_s for p in points], mode="lines+markers")
figure = go.Figure(line)
for cache in caches:
    figure.add_vline(x=cache.size, line_dash="dash", line_width=1)
    beside = {"x": math.log10(cache.size), "y": 1, "yref": "paper", "xanchor": "right"}
    figure.add_annotation(text=cache.name, showarrow=False, **beside)
ticks = [2**power for power in range(14, 31, 4)]
names = [format_bytes(size).replace(".00", "") for size in ticks]
figure.update_xaxes(type="log", tickvals=ticks, ticktext=names, title=t("curve_x"))
decades = [step * 10**power for power in range(5) for step in (1, 2, 5)]
figure.update_yaxes(type="log", tickvals=decades, title=t("curve_y"))
figure.update_layout(height=340, margin={"t": 30, "r": 20})
summary = "\n".join(f"{format_bytes(p.working_set):>12} {p.gb_s:>9,.1f} GB/s" for p in points)
show(figure, text=summary, caption=t("curve_caption"))

# %% key="levels" tags="timing"
found = levels(points, caches)
for level in found:
    first, last = (format_bytes(level.points[place].working_set) for place in (0, -1))
    ratio = level.gb_s / found[-1].gb_s
    print(t("level_line", name=level.name, first=first, last=last, gb_s=level.gb_s, ratio=ratio))

# %% [markdown] key="levels_read" lang="en"
# Every step of the curve is a level: as soon as the set no longer fits, the next one has to answer.
# Other programs on the machine move single points; where it is quiet, the steps are plain.
#
# On a GPU torch tells the size of L2 alone; what the L1 caches hold is counted to it here.
# Two levels cannot be seen this way: registers and, on a GPU, shared memory, which a kernel fills itself.
# The source gives them 64 KB and 96 KB and about 1 and 20 cycles, L2 about 200 cycles and memory about 400.
# Those cycles are its own, we only cite them; the sizes are not right for its Orin, which has 256 KiB of registers and 164 KiB of shared memory in each multiprocessor.
#
# The weights of a decode step get nothing from all this.
# They are read once, and unless the model is tiny they are gone from every cache before the next step wants them again: only the lowest level counts.
# %% [markdown] key="levels_read" lang="zh" src="4341721e"
# 曲线上的每级台阶对应一层：一旦这一层放不下，数据就得由下一层提供。
# 机器上的其他程序会让个别点偏移；机器空闲时，台阶一目了然。
#
# 在 GPU 上，torch 只给出 L2 的大小；L1 缓存放得下的部分，这里也算在 L2 里。
# 有两层用这种办法看不到：寄存器，以及 GPU 上由 kernel 自己填充的共享内存。
# 资料给出的数字是 64 KB 和 96 KB，约 1 个和 20 个周期；L2 约 200 个周期，显存约 400 个。
# 这些周期数出自资料，这里只作引用；容量对它所说的 Orin 并不正确：每个 SM 有 256 KiB 寄存器、164 KiB 共享内存。
#
# 一步解码要读的权重，却享受不到上面这几层。
# 除非模型非常小，否则权重读过一遍之后，等下一步再用时早已不在任何缓存里：起作用的只有最底层。

# %% [markdown] key="patterns" lang="en"
# ## Four ways to read the same bytes
#
# The source names three access patterns: random is bad, sequential is good, coalesced is best.
# [ferrox #133](https://github.com/antonellof/ferrox/issues/133) shows what they are worth: its decode kernels reached 5.3 % of a card's bandwidth where llama.cpp reached 60.4 %, because each of 32 neighbouring threads read at the beginning of a block of its own.
# Once the kernels of its feed-forward layers were coalesced, one model went from 32.85 to 100.90 tokens a second ([PR #146](https://github.com/antonellof/ferrox/pull/146)).
#
# We gather 4-byte elements by a list of indices.
# The kernel is the same, the bytes are the same, only the order of the list differs.
# 32 neighbours in the list are what one warp of a GPU asks for at once; memory answers in sectors of 32 bytes.
# %% [markdown] key="patterns" lang="zh" src="6ef4fd97"
# ## 同样的字节，四种读法
#
# 资料列出三种访问模式：随机差，顺序好，合并访存最好。
# 差别有多大，可以看 [ferrox #133](https://github.com/antonellof/ferrox/issues/133)：它的解码 kernel 只达到显卡带宽的 5.3%，而 llama.cpp 达到 60.4%，原因是相邻的 32 个线程各自从自己那一块的开头读起。
# 前馈层的 kernel 改成合并访存之后，有个模型从每秒 32.85 个 token 提高到 100.90 个（[PR #146](https://github.com/antonellof/ferrox/pull/146)）。
#
# 下面按一张下标表取出 4 字节的元素（gather）。
# kernel 相同，字节相同，只有表的次序不同。
# 表中相邻的 32 项，就是 GPU 的一个 warp 同时请求的内容；显存以 32 字节的扇区（sector）应答。

# %% key="orders"
from minikv.memory import access_patterns, index_order
from minikv.memory.access import PATTERNS

for pattern in PATTERNS:
    warp = index_order(pattern, 2**18, row=64)[:32]
    sectors = len(set((warp * 4 // 32).tolist()))
    first = "" if "random" in pattern else f"{warp[:5].tolist()} ..."
    print(t("order_line", name=pattern, sectors=sectors, first=first))

# %% [markdown] key="orders_read" lang="en"
# `per_thread` is what a CPU programmer would give to threads: thread 0 has elements 0 to 63, thread 1 has 64 to 127, and all begin at the beginning.
# `random_rows` shuffles rows of 256 bytes, the K of one head and token in 16 bit, and reads each row from end to end: a block table does that to a cache.
# %% [markdown] key="orders_read" lang="zh" src="5c3023c0"
# `per_thread` 是写 CPU 程序的人会采用的分法：线程 0 拿第 0 到 63 个元素，线程 1 拿第 64 到 127 个，大家都从自己那段的开头读起。
# `random_rows` 打乱的是 256 字节的行，也就是 16 位时一个头、一个 token 的 K，每行从头读到尾：块表对缓存做的正是这件事。

# %% key="patterns_measured" tags="timing"
measured = {point.what: point for point in access_patterns(device, cores=1)}
blocks = access_patterns(device, patterns=("random_rows",), row_bytes=16 * 256, cores=1)
measured["random_blocks"] = blocks[0]
for name, point in measured.items():
    print(t("pattern_line", name=name, gb_s=point.gb_s, share=point.gb_s / measured["coalesced"].gb_s))

# %% [markdown] key="patterns_read" lang="en"
# Each read counts 12 bytes of data and index and 4 bytes written; of those only the 4 bytes of data move about.
#
# A CPU core works through the list one entry after another, so here too it counts whether the next entry is near.
# A CPU thread is fast if what it reads *next* is a neighbour; a warp is fast if what its threads read *at the same time* are neighbours.
#
# Rows of 256 bytes in random order are several times faster than single elements, but at the beginning of each row a CPU has to wait again.
# `random_blocks` shuffles 16 rows together, 4 KiB, as in a block of 16 tokens, and comes much nearer to memory order.
# This is why the blocks of a cache can lie anywhere, while what is inside one has to lie together.
# %% [markdown] key="patterns_read" lang="zh" src="5f25e456"
# 每次读取按 12 字节（数据加下标）计，另写 4 字节；其中次序被打乱的只有 4 字节的数据。
#
# CPU 核心逐项处理这张表，所以同样要看下一项是否在附近。
# 对 CPU 线程有利的是**先后**读到的元素相邻；对 warp 有利的是**同时**读到的元素相邻。
#
# 256 字节的行即使次序随机，也比单个元素快几倍；不过每到一行的开头，CPU 都要重新等待。
# `random_blocks` 把 16 行（4 KiB）作为一个整体来打乱，相当于一个 16 token 的块，速度就与按内存次序读接近得多。
# 所以缓存的块可以放在任何地方，而块里面的内容必须连在一起。

# %% [markdown] key="machine" lang="en"
# ## The roof of this machine
#
# A gibibyte, read by all cores, gives $\beta$; the product of two matrices gives $\pi$.
# On a busy machine the cores wait for each other, and one alone may be faster; then its figure counts.
# %% [markdown] key="machine" lang="zh" src="f6e32f08"
# ## 本机的 Roofline
#
# 用所有核心读 1 GiB，得到 $\beta$；做一次矩阵乘法，得到 $\pi$。
# 机器繁忙时，各核心会互相等待，单个核心反而可能更快，这时就取单核的数。

# %% key="machine_roof" tags="timing"
from minikv.memory import matmul_rate, read_bandwidth
from minikv.plan.roofline import Roof

rate = matmul_rate(device)
bandwidth = max(read_bandwidth(2**30, device).gb_s, found[-1].gb_s)
here = Roof(t("this_machine"), bandwidth, rate.tflops)
print(t("machine_line", bandwidth=here.bandwidth_gb_s, tflops=here.tflops, dtype=rate.dtype, ridge=here.ridge))

# %% [markdown] key="widget_intro" lang="en"
# Now turn the knobs.
# S is the whole step, W its weights, A its attention; each stands on the roof at its own intensity.
# The first device in the list is this machine, as just measured.
# %% [markdown] key="widget_intro" lang="zh" src="b5ff8172"
# 现在动手调一调。
# S 是整步，W 是其中的权重部分，A 是注意力部分；各按自己的强度落在 Roofline 上。
# 设备列表的第一项就是刚刚测得的本机。

# %% key="widget"
from minikv.course.widgets import RooflineWidget

widget = RooflineWidget(t("lang"), model="Llama-3.1-8B", gpu="H200", batch=16, context=4096, measured=here)
show(widget)

# %% [markdown] key="batch" lang="en"
# ## What a batch moves, and what it does not
#
# More sequences read the same weights: W walks to the right, one FLOP per byte for each sequence.
# With how many does it reach the ridge point? In 16 bit, with as many as the ridge point says.
# Then why does hardly anybody get there?
# %% [markdown] key="batch" lang="zh" src="90ea3cc0"
# ## batch 能移动什么，不能移动什么
#
# 序列增多，读的还是那些权重：W 向右走，每多一条序列多 1 FLOP/字节。
# 走到拐点要多少条？16 位时，拐点是多少就要多少条。
# 那为什么实际上很少有人走到？

# %% key="predict_gain"
predict("batch_gain", ...)

# %% key="gain_table"
gpu = find_gpu("H200")
roof = gpu_roof(gpu)
print(t("gain_head"))
for batch in (1, 4, 16, 64, 256):
    step = decode_work("Llama-3.1-8B", batch, 4096)
    weights, cache = step.weight_bytes / 2**30, step.cache_bytes / 2**30
    tokens_s = batch / roof.seconds(step.flops, step.num_bytes)
    note = t("no_room") if held + step.cache_bytes > gpu.total_bytes else ""
    print(f"{batch:>5} {weights:>10.1f} {cache:>12.1f} {step.intensity:>11.1f} {tokens_s:>11,.0f}{note}")

# %% [markdown] key="gain_read" lang="en"
# Weights are read once for the batch, the cache once for *each* sequence. (The last batch is arithmetic only: weights and caches do not fit on the card together.)
# So A does not move with the batch.
# With many sequences the step is drawn towards A, and its intensity ends at $(f + n a) / (n k)$.
# If that is below the ridge point, no batch makes the step compute-bound:
# %% [markdown] key="gain_read" lang="zh" src="9e774f6c"
# 权重整个 batch 读一次，缓存**每条**序列各读一次。（最后一行只是算术：权重加缓存，这块卡放不下。）
# A 的位置不随 batch 变化。
# 序列多了，整步就被拉向 A，强度最终趋于 $(f + n a) / (n k)$。
# 如果这个值低于拐点，多大的 batch 都不会让这一步变成计算受限：

# %% key="ridge_table"
contexts = (1, 64, 256, 512, 1024, 4096)
print(t("ridge_head"))
print(" " * 27 + "".join(f"{context:>7}" for context in contexts))
pairs = [("Llama-3.1-8B", "H200"), ("Llama-2-7B", "H200"), ("Llama-3.1-8B", "H20"), ("DeepSeek-V3", "H200")]
for model, gpu in pairs:
    card = gpu_roof(find_gpu(gpu))
    batches = [ridge_batch(model, context, card) for context in contexts]
    print(f"{model + ', ' + gpu:<27}" + "".join(f"{batch or '-':>7}" for batch in batches))

# %% [markdown] key="ridge_read" lang="en"
# This is arithmetic alone; whether such a batch fits in memory is the question of [lesson 08](08_allocate_kv_cache.ipynb). (DeepSeek-V3 does not fit on one H200 at all.)
# In DeepSeek-V3 a larger batch also touches more experts, so it needs a far larger one.
# And the roof here is the 16-bit one. DeepSeek-V3's weights are in fp8: a kernel that also multiplies in fp8 has twice the FLOP rate, and W needs a batch about twice as large.
# But a longer context *helps* DeepSeek-V3: its attention stands to the right of this card's ridge point. Why is that?
# %% [markdown] key="ridge_read" lang="zh" src="cc294f4e"
# 这里只看算术；这样的 batch 显存放不放得下，是[第 08 课](08_allocate_kv_cache.ipynb)的问题。（一块 H200 根本放不下 DeepSeek-V3。）
# 对 DeepSeek-V3，batch 变大时用到的专家也更多，所以需要的 batch 大得多。
# 另外，这里的 Roofline 用的是 16 位算力。DeepSeek-V3 的权重是 fp8：如果 kernel 也用 fp8 做乘法，算力翻倍，W 所需的 batch 也要大一倍左右。
# 但上下文变长，对 DeepSeek-V3 反而**有利**：它的注意力落在这块卡拐点的右边。为什么？

# %% [markdown] key="heads" lang="en"
# ## Heads move the cache
#
# In [flashinfer #520](https://github.com/flashinfer-ai/flashinfer/issues/520) somebody runs decode attention on an H100 with 40 query heads and 40 KV heads, once with tensor cores and once without, and gets nearly the same time.
# Your turn: where does that attention stand on the roof?
# %% [markdown] key="heads" lang="zh" src="893ba94f"
# ## 能移动缓存的是头数
#
# [flashinfer #520](https://github.com/flashinfer-ai/flashinfer/issues/520) 里有人在 H100 上测解码注意力，40 个 query 头、40 个 KV 头：用不用 Tensor Core，时间几乎一样。
# 想一想：这个注意力落在 Roofline 的什么位置？

# %% key="predict_group"
predict("group", ...)

# %% key="heads_table"
for model in ("Llama-2-7B", "Llama-3.1-8B", "Llama-3.1-70B", "Kimi-K2", "DeepSeek-V3"):
    heads = find_model(model).config["num_attention_heads"]
    kv = CacheSpec.from_config(model).layers[0].kv_heads
    steps = [decode_work(model, 1, 4096, kv_dtype=dtype) for dtype in ("bf16", "fp8")]
    bf16, fp8 = (step.attention_intensity for step in steps)
    print(t("heads_line", model=model, heads=heads, kv=kv, bf16=bf16, fp8=fp8))

# %% [markdown] key="heads_read" lang="en"
# With as many KV heads as query heads, attention does 1 FLOP per byte.
# Faster arithmetic does not help there: two runs that take nearly the same time are what the roof predicts.
# GQA multiplies by the size of the group, fp8 by two.
#
# MLA is another world: 128 heads read one latent, and with absorbed matrices ([lesson 03](03_the_2_86x_mistake.ipynb)) they do over 200 FLOPs with each byte.
# %% [markdown] key="heads_read" lang="zh" src="b4a995c3"
# KV 头与 query 头一样多时，注意力是 1 FLOP/字节。
# 这时算得再快也没用：两次运行的时间几乎一样，与 Roofline 的预测一致。
# GQA 乘以组的大小，fp8 再乘 2。
#
# MLA 则完全不同：128 个头读同一个潜在向量（latent），采用矩阵吸收（[第 03 课](03_the_2_86x_mistake.ipynb)）后，每字节做 200 多个 FLOP。

# %% [markdown] key="break" lang="en"
# ## Break it
#
# First the card. The same attention of DeepSeek-V3, the same kernel, four cards:
# %% [markdown] key="break" lang="zh" src="f99f866f"
# ## 弄坏它
#
# 先换卡。同样是 DeepSeek-V3 的注意力，同样的 kernel，四块卡：

# %% key="break_card"
latent = decode_work("DeepSeek-V3", 1, 4096)
for name in ("H100 SXM", "H200", "A100 SXM 80GB", "H20"):
    card = gpu_roof(find_gpu(name))
    bound = "memory" if latent.attention_intensity < card.ridge else "compute"
    print(t("cross_line", gpu=card.name, ridge=card.ridge, bound=t("bound_" + bound)))

# %% [markdown] key="break_card_read" lang="en"
# By the data sheets this attention is memory-bound on the H100 and compute-bound on the H200, which computes as fast and has the faster memory.
# So near to the ridge point a data sheet does not decide: the authors of [FlashMLA](https://github.com/deepseek-ai/FlashMLA/blob/main/docs/20250422-new-kernel-deep-dive.md) count with the 865 TFLOP/s that their H800 keeps up, not with its 990, and call the same attention compute-bound. (In bandwidth and FLOP rate an H800 is an H100.)
# "Decode attention is memory-bound" is a rule of thumb: on an H20 it is plainly false of this model.
#
# Now the units. One step of 16 sequences, and the same with the mistakes that are made most:
# %% [markdown] key="break_card_read" lang="zh" src="2012605d"
# 按标称值，这个注意力在 H100 上访存受限，在 H200 上计算受限：两者算力相同，只是 H200 的显存更快。
# 离拐点这么近，标称值已经说了不算：[FlashMLA](https://github.com/deepseek-ai/FlashMLA/blob/main/docs/20250422-new-kernel-deep-dive.md) 的作者按 H800 实际能维持的 865 TFLOP/s 计算，而不是标称的 990，于是把同样的注意力算作计算受限。（H800 的带宽和算力与 H100 相同。）
# “解码注意力是访存受限的”只是一条经验：对这个模型，在 H20 上显然不成立。
#
# 再来看单位。16 条序列的一步，以及几种最常见的错误：

# %% key="break_units"
step, card = decode_work("Llama-3.1-8B", 16, 4096), gpu_roof(find_gpu("H200"))
ways = {
    "right": step.num_bytes / (card.bandwidth_gb_s * 1e9),
    "bits": step.num_bytes / (card.bandwidth_gb_s * 1e9 / 8),
    "gib": step.num_bytes / (card.bandwidth_gb_s * 2**30),
    "each": (16 * step.weight_bytes + step.cache_bytes) / (card.bandwidth_gb_s * 1e9),
}
for name, seconds in ways.items():
    print(t("unit_line", what=t("unit_" + name), ms=seconds * 1e3))
used = 7e9 * 2 * 100 / 1e9
print(t("mbu_line", used=used, share=used / 2000, other=700 / 2000))

# %% [markdown] key="break_units_read" lang="en"
# The 7 % of GiB/s look harmless. They are more than the 5.2 % that the first coalesced kernel brought to ferrox ([PR #144](https://github.com/antonellof/ferrox/pull/144)).
#
# The last line is a textbook's example: 7 billion parameters in FP16, 100 tokens a second, an A100 with 2 TB/s.
# The book writes 7B × 2 × 100 = 700 GB/s, and 70 %. A reader [objects](https://github.com/chiphuyen/aie-book/issues/7) that 700 of 2,000 is 35 %.
# The 70 % is right: it is the 700 that has lost the 2 bytes. Whoever checks only the last division mends the wrong number.
# %% [markdown] key="break_units_read" lang="zh" src="b7e0ad08"
# GiB/s 造成的 7% 看似不大，却超过了 ferrox 第一个合并访存的 kernel 带来的 5.2%（[PR #144](https://github.com/antonellof/ferrox/pull/144)）。
#
# 最后一行是一本教材里的例子：70 亿参数、FP16、每秒 100 个 token，A100 的带宽是 2 TB/s。
# 书上写的是 7B × 2 × 100 = 700 GB/s，占 70%。有读者[提出](https://github.com/chiphuyen/aie-book/issues/7)：700 除以 2,000 应该是 35%。
# 其实 70% 没错，错的是 700：那 2 个字节漏乘了。只核对最后一步除法，就会改错地方。

# %% [markdown] key="self" lang="en"
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="c2d6ea3e"
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_bound"
explain("memory_bound")

# %% key="explain_cache"
explain("cache_and_batch")

# %% key="explain_thread"
explain("contiguous_per_thread")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# The exercise notebook of this lesson asks for five functions:
#
# 1. `step_bytes`: what one step reads, sequences of different lengths.
# 2. `attention_intensity`: FLOP per byte of cache, from heads and dtype.
# 3. `step_floor`: the least time of a step, and which side it waits for.
# 4. `batch_at_ridge`: the first batch that is compute-bound, if there is one.
# 5. `sectors`: how many sectors of memory one warp's request touches.
# %% [markdown] key="exercises" lang="zh" src="19edc6ba"
# ## 练习
#
# 本课的练习 notebook 要你写五个函数：
#
# 1. `step_bytes`：一步读多少字节，各序列长度不同。
# 2. `attention_intensity`：由头数和数据类型算出每字节缓存的 FLOP。
# 3. `step_floor`：一步的最短时间，以及在等哪一方。
# 4. `batch_at_ridge`：最先变成计算受限的 batch，如果有的话。
# 5. `sectors`：一个 warp 的请求碰到多少个显存扇区。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | `nvidia-smi` says 100 %, tokens come slowly | `decode_work(model, batch, context).num_bytes / seconds_per_step / 1e9`: the GB/s that you reach. Near the card's figure, the GPU waits for memory and only fewer bytes help; far below it, look at the kernels and at the gaps between them |
# | I measure more GB/s than the data sheet says | `levels(bandwidth_curve(), cache_sizes())`: the level that your working set lies in |
# | my kernel reaches a few percent of the bandwidth | `index_order(...)[:32]`, or the 32 addresses of one warp of yours: count the sectors (exercise 04.5) |
# %% [markdown] key="stuck" lang="zh" src="1db4a5f0"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | `nvidia-smi` 显示 100%，token 却出得慢 | `decode_work(model, batch, context).num_bytes / seconds_per_step / 1e9`：实际达到的 GB/s。接近标称值，说明 GPU 在等显存，只有减少字节才有用；远低于标称值，就去查 kernel 以及 kernel 之间的空隙 |
# | 测得的 GB/s 比标称还高 | `levels(bandwidth_curve(), cache_sizes())`：看工作集落在哪一层 |
# | 我的 kernel 只达到带宽的百分之几 | `index_order(...)[:32]`，或者你自己一个 warp 的 32 个地址：数一数扇区（练习 04.5） |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You know what a step costs to read, and that the cache is the part that no batch makes cheaper.
# [Lesson 05](05_owned_and_borrowed.ipynb) asks who owns these bytes while they are being read, and who may free them.
# %% [markdown] key="next" lang="zh" src="4bbf1be9"
# ## 下一课
#
# 现在你知道一步要读多少，也知道缓存这一部分不会因为 batch 变大而变便宜。
# [第 05 课](05_owned_and_borrowed.ipynb)接着问：这些字节在被读取的时候归谁所有，谁可以释放它们。
