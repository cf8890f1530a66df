# %% [meta]
# number = "04"
# slug = "the_roofline"
# needs = ["02", "03"]
# rooms = ["plan.roofline", "memory.bandwidth", "memory.access"]
# minutes = 60
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
# `nvidia-smi` says that the GPU is 100 % busy. Still the tokens come slowly, and the tensor cores have almost nothing to do.
# It counts the time in which *some* kernel runs, and a kernel that waits for memory runs too.
#
# **How long does a decode step have to take, and what does the GPU wait for?**
#
# Two numbers of the model and two of the card answer it. Here is one step of Qwen3-8B on an H200, with 1, 8 and 32 sequences of 4,096 tokens:
# %% [markdown] key="question" lang="zh" src="dcecd06e"
# ## 问题
#
# `nvidia-smi` 显示 GPU 利用率 100%，token 却出得很慢，Tensor Core 也几乎无事可做。
# 因为它统计的是**有** kernel 在运行的时间比例，而正在等显存的 kernel 也算在运行。
#
# **一步解码至少要多久？GPU 在等什么？**
#
# 模型的两个数加上显卡的两个数就能回答。下面是 Qwen3-8B 在 H200 上的一步解码，分别有 1、8、32 条序列，每条 4,096 个 token：

# %% key="first" lang="en"
from minikv.course.diagrams import step_times
from minikv.plan import find_gpu
from minikv.plan.roofline import decode_work, gpu_roof

steps = {f"batch {batch}": decode_work("Qwen3-8B", batch, context=4096) for batch in (1, 8, 32)}
show(step_times(steps, gpu_roof(find_gpu("H200")), "en"))

# %% key="first" lang="zh"
from minikv.course.diagrams import step_times
from minikv.plan import find_gpu
from minikv.plan.roofline import decode_work, gpu_roof

steps = {f"{batch} 条序列": decode_work("Qwen3-8B", batch, context=4096) for batch in (1, 8, 32)}
show(step_times(steps, gpu_roof(find_gpu("H200")), "zh"))

# %% [markdown] key="able" lang="en"
# Even with 32 sequences the arithmetic is done after 8 % of the time. The rest is reading, and it is the KV cache that grows.
#
# After this lesson you can:
#
# - **compute** the least time of a decode step, from bytes, FLOPs and a data sheet;
# - **tell** from its arithmetic intensity whether a piece of work waits for memory or for arithmetic, and at which batch that changes;
# - **measure** the bandwidth of each level of memory, and recognize an access pattern that wastes it.
# %% [markdown] key="able" lang="zh" src="5c4919d8"
# 即使有 32 条序列，计算也只占 8% 的时间，其余都在读取；而随着序列增多，变长的是读 KV 缓存的那一段。
#
# 学完本课，你能够：
#
# - 由字节数、FLOP 和规格书**算出**一步解码的最短时间；
# - 根据算术强度**判断**一段计算在等内存还是在等算力，以及 batch 多大时情况会变；
# - **测量**每一层存储的带宽，并认出浪费带宽的访问模式。

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

# %% key="cards" lang="en"
from minikv.course import Table
from minikv.plan import CacheSpec, find_model
from minikv.plan.roofline import ridge_batch
from minikv.plan.weights.weight_bytes import weight_list

work = decode_work("Llama-3.1-8B", batch=1, context=4096)
rows = []
for name in ("T4", "L4", "RTX 4090", "A100 SXM 80GB", "H200"):
    roof = gpu_roof(find_gpu(name))
    floor, arithmetic = roof.seconds(work.flops, work.num_bytes), work.flops / (roof.tflops * 1e12)
    rows.append((name, roof.bandwidth_gb_s, roof.tflops, f"{floor * 1e3:.2f}", f"{arithmetic * 1e3:.3f}"))
head = ["card", "GB/s", "TFLOP/s", "floor of a step (ms)", "its arithmetic (ms)"]
Table(head, rows, right=head[1:])

# %% key="cards" lang="zh"
from minikv.course import Table
from minikv.plan import CacheSpec, find_model
from minikv.plan.roofline import ridge_batch
from minikv.plan.weights.weight_bytes import weight_list

work = decode_work("Llama-3.1-8B", batch=1, context=4096)
rows = []
for name in ("T4", "L4", "RTX 4090", "A100 SXM 80GB", "H200"):
    roof = gpu_roof(find_gpu(name))
    floor, arithmetic = roof.seconds(work.flops, work.num_bytes), work.flops / (roof.tflops * 1e12)
    rows.append((name, roof.bandwidth_gb_s, roof.tflops, f"{floor * 1e3:.2f}", f"{arithmetic * 1e3:.3f}"))
head = ["显卡", "GB/s", "TFLOP/s", "一步的下限（毫秒）", "其中计算（毫秒）"]
Table(head, rows, right=head[1:])

# %% [markdown] key="cards_read" lang="en"
# The last two columns are two orders of magnitude apart.
# With one sequence the tensor cores are done almost at once; the rest of the step is reading.
# A card with twice the arithmetic and the same bandwidth wouldn't be faster at all.
#
# A step doesn't read all the weights: of the table of input embeddings it needs one row a token.
# That table has to lie in memory all the same, so the T4's line is on paper only:
# %% [markdown] key="cards_read" lang="zh" src="1081b332"
# 最后两列相差约两个数量级。
# 只有一条序列时，Tensor Core 几乎立刻就算完了，剩下的时间都在读取。
# 如果换一块算力翻倍、带宽不变的卡，速度一点也不会提高。
#
# 一步并不会读到全部权重：输入 embedding 表里，每个 token 只取一行。
# 但整张表仍要放在显存里，所以 T4 那一行只是纸面上的数字：

# %% key="held" lang="en"
held = sum(weight.bytes for weight in weight_list("Llama-3.1-8B"))
sizes = {"all weights": held, "read by a step": work.weight_bytes, "a T4 has": find_gpu("T4").total_bytes}
Table(["", "GiB"], [(name, f"{size / 2**30:.2f}") for name, size in sizes.items()], right=["GiB"])

# %% key="held" lang="zh"
held = sum(weight.bytes for weight in weight_list("Llama-3.1-8B"))
sizes = {"全部权重": held, "一步读取的": work.weight_bytes, "T4 的显存": find_gpu("T4").total_bytes}
Table(["", "GiB"], [(name, f"{size / 2**30:.2f}") for name, size in sizes.items()], right=["GiB"])

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
# | symbol | meaning | unit | Llama-3.1-8B on an A100 SXM 80GB |
# |---|---|---|---|
# | $\beta$, $\pi$ | bandwidth and FLOP rate of the device | bytes/s, FLOP/s | 2,039 · 10⁹, 312 · 10¹² |
# | $I_{\text{ridge}}$ | the *ridge point*: below it memory-bound, above it compute-bound | FLOP/byte | 153 |
# | $W$ | weights that a step reads, once for the batch | bytes | 15,009,849,344 |
# | $k$ | K and V of one token, all layers ([lesson 02](02_how_many_bytes.ipynb)) | bytes | 131,072 |
# | $f$ | FLOPs of one token with the weights, 2 for each | FLOP | 15,009,316,864 |
# | $a$ | FLOPs of one query token with one cached token, all heads and layers | FLOP | 524,288 |
# | $B$ | sequences of the step, one new token each | sequences | 1 |
# | $n$ | tokens that each of them sees | tokens | 4,096 |
# | $T$ | time of the work | seconds | 7.62 · 10⁻³ |
#
# With the numbers put in: $T \ge (15{,}009{,}849{,}344 + 4{,}096 \cdot 131{,}072) / (2{,}039 \cdot 10^9) = 7.62$ ms.
#
# One multiplication and one addition are two FLOPs.
# In 16 bit $f / W$ is 2 FLOPs for 2 bytes: **1 FLOP per byte**.
# %% [markdown] key="symbols" lang="zh" src="221663dd"
# | 符号 | 含义 | 单位 | 本例取值：A100 SXM 80GB 上的 Llama-3.1-8B |
# |---|---|---|---|
# | $\beta$、$\pi$ | 设备的带宽和算力 | 字节/秒、FLOP/秒 | 2,039 · 10⁹、312 · 10¹² |
# | $I_{\text{ridge}}$ | **拐点**（ridge point）：低于它访存受限，高于它计算受限 | FLOP/字节 | 153 |
# | $W$ | 一步读取的权重，整个 batch 读一次 | 字节 | 15,009,849,344 |
# | $k$ | 一个 token 在所有层的 K 和 V（[第 02 课](02_how_many_bytes.ipynb)） | 字节 | 131,072 |
# | $f$ | 一个 token 与权重运算的 FLOP，每个权重 2 个 | FLOP | 15,009,316,864 |
# | $a$ | 一个 query token 与一个缓存 token 运算的 FLOP，所有头、所有层 | FLOP | 524,288 |
# | $B$ | 这一步的序列数，每条一个新 token | 条 | 1 |
# | $n$ | 每条序列看到的 token 数 | 个 | 4,096 |
# | $T$ | 所需时间 | 秒 | 7.62 · 10⁻³ |
#
# 代入数字：$T \ge (15{,}009{,}849{,}344 + 4{,}096 \cdot 131{,}072) / (2{,}039 \cdot 10^9) = 7.62$ 毫秒。
#
# 一次乘法加一次加法算两个 FLOP。
# 16 位时，$f / W$ 是每 2 字节 2 个 FLOP，即 **1 FLOP/字节**。

# %% key="work" lang="en"
parts = {
    "weights": (work.weight_bytes, work.weight_flops),
    "KV cache (attention)": (work.cache_bytes, work.attention_flops),
    "the step": (work.num_bytes, work.flops),
}
rows = []
for name, (num_bytes, flops) in parts.items():
    rows.append((name, f"{num_bytes / 2**30:.3f}", f"{flops / 1e9:.2f}", f"{flops / num_bytes:.2f}"))
head = ["", "GiB", "GFLOP", "FLOP/byte"]
Table(head, rows, right=head[1:])

# %% key="work" lang="zh"
parts = {
    "权重": (work.weight_bytes, work.weight_flops),
    "KV 缓存（注意力）": (work.cache_bytes, work.attention_flops),
    "整步": (work.num_bytes, work.flops),
}
rows = []
for name, (num_bytes, flops) in parts.items():
    rows.append((name, f"{num_bytes / 2**30:.3f}", f"{flops / 1e9:.2f}", f"{flops / num_bytes:.2f}"))
head = ["", "GiB", "GFLOP", "FLOP/字节"]
Table(head, rows, right=head[1:])

# %% key="ridges" lang="en"
rows = []
for name in ("A100 SXM 80GB", "H100 SXM", "H200", "H20"):
    roof = gpu_roof(find_gpu(name))
    rows.append((roof.name, f"{roof.ridge:.0f}", f"{work.intensity / roof.ridge:.2%}"))
head = ["card", "ridge point (FLOP/byte)", "arithmetic used by the step"]
Table(head, rows, right=head[1:])

# %% key="ridges" lang="zh"
rows = []
for name in ("A100 SXM 80GB", "H100 SXM", "H200", "H20"):
    roof = gpu_roof(find_gpu(name))
    rows.append((roof.name, f"{roof.ridge:.0f}", f"{work.intensity / roof.ridge:.2%}"))
head = ["显卡", "拐点（FLOP/字节）", "这一步用上的算力"]
Table(head, rows, right=head[1:])

# %% [markdown] key="source" lang="en"
# ## How many FLOPs per byte does attention do?
#
# An often repeated figure is 10 FLOPs per byte, on a GPU that could do 200, so that it would wait 95 % of the time.
# Let us check the 10.
# Attention reads K and V of a token and does 4 FLOPs with each pair of elements, for every query head that uses them:
# %% [markdown] key="source" lang="zh" src="687bcadd"
# ## 注意力每字节做多少 FLOP
#
# 有一个流传很广的说法：解码时注意力约 10 FLOP/字节，而 GPU 能做到约 200，所以有 95% 的时间在等。
# 先来核对这个 10。
# 注意力读出一个 token 的 K 和 V，对每一对元素、每个用到它的 query 头，做 4 个 FLOP：

# %% key="source_check" lang="en"
ridge = gpu_roof(find_gpu("H200")).ridge
rows = [("said to be", "10.0", f"{1 - 10 / 200:.1%} of 200")]
for model in ("Llama-2-7B", "Llama-3.1-8B", "Llama-3.1-70B"):
    intensity = decode_work(model, 1, 4096).attention_intensity
    rows.append((model, f"{intensity:.1f}", f"{1 - intensity / ridge:.1%} of {ridge:.0f}"))
Table(["attention of", "FLOP/byte", "waiting"], rows, right=["FLOP/byte", "waiting"])

# %% key="source_check" lang="zh"
ridge = gpu_roof(find_gpu("H200")).ridge
rows = [("流传的说法", "10.0", f"{1 - 10 / 200:.1%}（拐点 200）")]
for model in ("Llama-2-7B", "Llama-3.1-8B", "Llama-3.1-70B"):
    intensity = decode_work(model, 1, 4096).attention_intensity
    rows.append((model, f"{intensity:.1f}", f"{1 - intensity / ridge:.1%}（拐点 {ridge:.0f}）"))
Table(["模型", "FLOP/字节", "等待"], rows, right=["FLOP/字节", "等待"])

# %% [markdown] key="source_read" lang="en"
# The ratio is the number of query heads for each KV head, divided by half the bytes of an element: 1, 4 and 8 here.
# So on an H200 attention waits 96 to 99.5 % of the time.
# %% [markdown] key="source_read" lang="zh" src="415169f4"
# 这个比值等于每个 KV 头对应的 query 头数，再除以元素字节数的一半，这里是 1、4 和 8。
# 所以在 H200 上，注意力有 96% 到 99.5% 的时间在等待。

# %% [markdown] key="pyramid" lang="en"
# ## The memory pyramid, measured
#
# $\beta$ is not one number.
# A user of an RTX 4090 measured 3,868 GB/s, where the data sheet says about 1,000, and asked whether that is normal.
# The benchmark multiplies a vector by 1.2: it reads one float32 tensor and writes another.
# %% [markdown] key="pyramid" lang="zh" src="9d660db0"
# ## 实测内存金字塔
#
# $\beta$ 不是一个固定的数。
# 一位用户在 RTX 4090 上测得 3,868 GB/s，而标称只有 1,000 左右，于是问：这样正常吗？
# 那个基准测试把一个向量乘以 1.2：读一个 float32 张量，写另一个。

# %% key="predict_touched"
predict("touched", ...)

# %% key="fits" lang="en"
asked = ((65536, 196.343), (262144, 792.595), (1048576, 2590.594), (4194304, 3868.374))
rows = [(elements, f"{2 * elements * 4 / 2**20:.1f}", f"{gb_s:,.0f}") for elements, gb_s in asked]
Table(["elements", "MiB in all", "GB/s measured"], rows, right=["MiB in all", "GB/s measured"])

# %% key="fits" lang="zh"
asked = ((65536, 196.343), (262144, 792.595), (1048576, 2590.594), (4194304, 3868.374))
rows = [(elements, f"{2 * elements * 4 / 2**20:.1f}", f"{gb_s:,.0f}") for elements, gb_s in asked]
Table(["元素", "共（MiB）", "测得（GB/s）"], rows, right=["共（MiB）", "测得（GB/s）"])

# %% [markdown] key="fits_read" lang="en"
# The largest of these still fits in the 72 MiB L2 cache of that card.
# The measurement is right: it is the bandwidth of L2, and memory was hardly asked.
# (The small sizes show something else: a kernel so short that its launch is what takes the time.)
#
# So bandwidth belongs to a *working set*: the bytes that are touched again and again.
# We read working sets from 16 KiB to 1 GiB on this machine.
# One call reads a set many times, so that no call's own cost is in the figure.
# On a CPU one core does the reading; on a GPU all multiprocessors do, and share the set out.
# %% [markdown] key="fits_read" lang="zh" src="fb55096b"
# 最大的一档也放得进那块卡 72 MiB 的 L2 缓存。
# 测量本身没错：测到的是 L2 的带宽，几乎没有用到显存。
# （最小的几档是另一回事：kernel 太短，时间主要花在 launch 上。）
#
# 所以带宽总是针对某个**工作集**（working set）而言：反复读写的那些字节。
# 下面在本机上测量 16 KiB 到 1 GiB 的工作集。
# 每次调用会把工作集读很多遍，使调用本身的开销不计入结果。
# 在 CPU 上由一个核心来读；在 GPU 上由所有 SM 分着读。

# %% key="curve" tags="timing" lang="en"
import torch

from minikv.course.charts import lines
from minikv.memory import bandwidth_curve, cache_sizes, levels

device = "cuda" if torch.cuda.is_available() else "cpu"
caches = cache_sizes(device)  # (): this system does not tell them
points = bandwidth_curve(device, cores=1)
curve = {point.working_set / 2**10: point.gb_s for point in points}
marks = {cache.name: cache.size / 2**10 for cache in caches}
show(lines({"read": curve}, x="working set (KiB)", y="GB/s", log="xy", marks=marks))

# %% key="curve" tags="timing" lang="zh"
import torch

from minikv.course.charts import lines
from minikv.memory import bandwidth_curve, cache_sizes, levels

device = "cuda" if torch.cuda.is_available() else "cpu"
caches = cache_sizes(device)  # 空元组表示这个系统不提供缓存大小
points = bandwidth_curve(device, cores=1)
curve = {point.working_set / 2**10: point.gb_s for point in points}
marks = {cache.name: cache.size / 2**10 for cache in caches}
show(lines({"读取": curve}, x="工作集（KiB）", y="GB/s", log="xy", marks=marks))

# %% [markdown] key="levels_words" lang="en"
# Every step of the curve is a level of memory: as soon as the set no longer fits, the next one has to answer. The dashed lines are the cache sizes that the system tells.
# Here are the levels of this machine, as just measured, beside those of an H100.
# %% [markdown] key="levels_words" lang="zh" src="c4b503bf"
# 曲线上的每级台阶对应一层存储：一旦这一层放不下，数据就得由下一层提供。虚线是系统给出的缓存大小。
# 下面把刚刚测得的本机各层，和 H100 的各层画在一起。

# %% key="pyramid_drawn" tags="hardware" lang="en"
import psutil

from minikv.course.diagrams import Tier, memory_pyramid

found = levels(points, caches)
total = torch.cuda.mem_get_info()[1] if device == "cuda" else psutil.virtual_memory().total
sizes = {cache.name: cache.size for cache in caches}
here = [Tier(level.name, sizes.get(level.name, total), level.gb_s) for level in found]
h100, sms = find_gpu("H100 SXM"), 132  # multiprocessors
shared = Tier("shared memory, L1", sms * 228 * 2**10, sms * 128 * 1.98)  # 128 B a clock, 1.98 GHz
memory = Tier("HBM", h100.total_bytes, h100.bandwidth_gb_s)
card = [Tier("registers", sms * 256 * 2**10), shared, Tier("L2", 50 * 2**20), memory]
show(memory_pyramid({"This machine, measured": here, "H100 SXM, from its data sheet": card}, "en"))

# %% key="pyramid_drawn" tags="hardware" lang="zh"
import psutil

from minikv.course.diagrams import Tier, memory_pyramid

found = levels(points, caches)
total = torch.cuda.mem_get_info()[1] if device == "cuda" else psutil.virtual_memory().total
sizes = {cache.name: cache.size for cache in caches}
here = [Tier(level.name, sizes.get(level.name, total), level.gb_s) for level in found]
h100, sms = find_gpu("H100 SXM"), 132  # SM 的个数
shared = Tier("共享内存、L1", sms * 228 * 2**10, sms * 128 * 1.98)  # 每时钟周期 128 B，1.98 GHz
memory = Tier("HBM 显存", h100.total_bytes, h100.bandwidth_gb_s)
card = [Tier("寄存器", sms * 256 * 2**10), shared, Tier("L2", 50 * 2**20), memory]
show(memory_pyramid({"本机，实测": here, "H100 SXM，按规格书": card}, "zh"))

# %% key="levels" tags="timing" lang="en"
rows = []
for level in found:
    first, last = (level.points[place].working_set // 2**10 for place in (0, -1))
    rows.append((level.name, first, last, level.gb_s, f"{level.gb_s / found[-1].gb_s:.1f}"))
head = ["level", "from (KiB)", "to (KiB)", "GB/s", "times memory"]
Table(head, rows, right=["times memory"])

# %% key="levels" tags="timing" lang="zh"
rows = []
for level in found:
    first, last = (level.points[place].working_set // 2**10 for place in (0, -1))
    rows.append((level.name, first, last, level.gb_s, f"{level.gb_s / found[-1].gb_s:.1f}"))
head = ["哪一层", "从（KiB）", "到（KiB）", "GB/s", "相当于最底层的倍数"]
Table(head, rows, right=["相当于最底层的倍数"])

# %% [markdown] key="levels_read" lang="en"
# Other programs on the machine move single points; where it is quiet, the steps are plain.
# On a GPU torch tells the size of L2 alone; what the L1 caches hold is counted to it here.
# Two levels can't be seen this way: registers and, on a GPU, shared memory, which a kernel fills itself.
#
# | level | where | who controls it |
# |---|---|---|
# | registers, shared memory and L1 (**SRAM**) | on the chip, in each multiprocessor | the kernel |
# | L2 (SRAM) | on the chip, for all multiprocessors | the hardware |
# | **HBM** (device memory) | beside the chip | the allocator |
# | CPU memory | across PCIe, 64 GB/s each way (Gen5 x16) | swap ([lesson 12](12_beyond_one_gpu.ipynb)) |
#
# FlashAttention lives from the difference: it keeps a tile of K and V in SRAM and never writes the matrix of scores to HBM.
# With 4,096 queries, 4,096 keys, 32 heads and 2 bytes that matrix would be 4,096 · 4,096 · 32 · 2 B = 1 GiB in each layer, written and read again. [Lesson 10](10_kernels.ipynb) builds such a kernel.
#
# The weights of a decode step get nothing from all this.
# They are read once, and unless the model is tiny they are gone from every cache before the next step wants them again: only the lowest level counts.
# %% [markdown] key="levels_read" lang="zh" src="85a76ad0"
# 机器上的其他程序会让个别点偏移；机器空闲时，台阶一目了然。
# 在 GPU 上，torch 只给出 L2 的大小；L1 缓存放得下的部分，这里也算在 L2 里。
# 有两层用这种办法看不到：寄存器，以及 GPU 上由 kernel 自己填充的共享内存。
#
# | 哪一层 | 在哪里 | 由什么控制 |
# |---|---|---|
# | 寄存器、共享内存和 L1（**SRAM**，片上存储） | 芯片上，每个 SM 各有一份 | kernel |
# | L2（SRAM） | 芯片上，所有 SM 共用 | 硬件 |
# | **HBM**（显存，片外） | 芯片旁边 | 分配器 |
# | CPU 内存 | 经过 PCIe，每个方向 64 GB/s（Gen5 x16） | 换出（[第 12 课](12_beyond_one_gpu.ipynb)） |
#
# FlashAttention 利用的正是这个差别：它把 K 和 V 的一个分块（tile）放在 SRAM 里，从不把分数矩阵写进 HBM。
# 例如 4,096 个 query、4,096 个 key、32 个头、每个数 2 字节，每一层的分数矩阵就有 4,096 · 4,096 · 32 · 2 B = 1 GiB，写一遍还要再读一遍。[第 10 课](10_kernels.ipynb)会写出这样的 kernel。
#
# 一步解码要读的权重，却享受不到上面这几层。
# 除非模型非常小，否则权重读过一遍之后，等下一步再用时早已不在任何缓存里：起作用的只有最底层。

# %% [markdown] key="patterns" lang="en"
# ## Four ways to read the same bytes
#
# Reading in a bad order wastes bandwidth at any level.
# We gather 4-byte elements by a list of indices.
# The kernel is the same, the bytes are the same, only the order of the list differs.
# 32 neighbours in the list are what one warp of a GPU asks for at once; memory answers in sectors of 32 bytes.
# %% [markdown] key="patterns" lang="zh" src="4287bf50"
# ## 同样的字节，四种读法
#
# 次序不好，在哪一层都会浪费带宽。
# 下面按一张下标表取出 4 字节的元素（gather）。
# kernel 相同，字节相同，只有表的次序不同。
# 表中相邻的 32 项，就是 GPU 的一个 warp 同时请求的内容；显存以 32 字节的扇区（sector）应答。

# %% key="orders"
from minikv.course.diagrams import warp_sectors
from minikv.memory import access_patterns, index_order
from minikv.memory.access import PATTERNS

orders = {pattern: index_order(pattern, 2**18, row=64)[:32].tolist() for pattern in PATTERNS}
show(warp_sectors(orders, t("lang")))

# %% [markdown] key="orders_read" lang="en"
# `per_thread` is what a CPU programmer would give to threads: thread 0 has elements 0 to 63, thread 1 has 64 to 127, and all begin at the beginning.
# `random_rows` shuffles rows of 256 bytes, the K of one head and token in 16 bit, and reads each row from end to end: a block table does that to a cache.
# %% [markdown] key="orders_read" lang="zh" src="5c3023c0"
# `per_thread` 是写 CPU 程序的人会采用的分法：线程 0 拿第 0 到 63 个元素，线程 1 拿第 64 到 127 个，大家都从自己那段的开头读起。
# `random_rows` 打乱的是 256 字节的行，也就是 16 位时一个头、一个 token 的 K，每行从头读到尾：块表对缓存做的正是这件事。

# %% key="patterns_measured" tags="timing" lang="en"
measured = {point.what: point.gb_s for point in access_patterns(device, cores=1)}
blocks = access_patterns(device, patterns=("random_rows",), row_bytes=16 * 256, cores=1)
measured["random_blocks"] = blocks[0].gb_s
rows = [(name, f"{gb_s:.2f}", f"{gb_s / measured['coalesced']:.1%}") for name, gb_s in measured.items()]
Table(["order", "GB/s", "of coalesced"], rows, right=["GB/s", "of coalesced"])

# %% key="patterns_measured" tags="timing" lang="zh"
measured = {point.what: point.gb_s for point in access_patterns(device, cores=1)}
blocks = access_patterns(device, patterns=("random_rows",), row_bytes=16 * 256, cores=1)
measured["random_blocks"] = blocks[0].gb_s
rows = [(name, f"{gb_s:.2f}", f"{gb_s / measured['coalesced']:.1%}") for name, gb_s in measured.items()]
Table(["次序", "GB/s", "相当于合并访存的"], rows, right=["GB/s", "相当于合并访存的"])

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

# %% key="machine_roof" tags="timing" lang="en"
from minikv.memory import matmul_rate, read_bandwidth
from minikv.plan.roofline import Roof

rate = matmul_rate(device)
bandwidth = max(read_bandwidth(2**30, device).gb_s, found[-1].gb_s)
here = Roof("this machine (measured)", bandwidth, rate.tflops)
head = ["GB/s", f"TFLOP/s in {rate.dtype}", "ridge point (FLOP/byte)"]
Table(head, [(here.bandwidth_gb_s, here.tflops, here.ridge)])

# %% key="machine_roof" tags="timing" lang="zh"
from minikv.memory import matmul_rate, read_bandwidth
from minikv.plan.roofline import Roof

rate = matmul_rate(device)
bandwidth = max(read_bandwidth(2**30, device).gb_s, found[-1].gb_s)
here = Roof("本机（实测）", bandwidth, rate.tflops)
head = ["GB/s", f"TFLOP/s（数据类型 {rate.dtype}）", "拐点（FLOP/字节）"]
Table(head, [(here.bandwidth_gb_s, here.tflops, here.ridge)])

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
# ## What a larger batch changes, and what it doesn't
#
# More sequences read the same weights: W walks to the right, one FLOP per byte for each sequence.
# With how many does it reach the ridge point? In 16 bit, with as many as the ridge point says.
# Then why is that so hard to reach?
# %% [markdown] key="batch" lang="zh" src="34ffe4c1"
# ## 增大 batch，哪部分的算术强度会变，哪部分不变
#
# 序列增多，读的还是那些权重：W 向右走，每多一条序列多 1 FLOP/字节。
# 走到拐点要多少条？16 位时，拐点是多少就要多少条。
# 那为什么实际上很难走到？

# %% key="predict_gain"
predict("batch_gain", ...)

# %% key="gain_drawn" lang="en"
from minikv.course.charts import bars

steps = {batch: decode_work("Llama-3.1-8B", batch, 4096) for batch in (1, 4, 16, 64, 256)}
parts = {
    "weights": [step.weight_bytes / 2**30 for step in steps.values()],
    "KV cache": [step.cache_bytes / 2**30 for step in steps.values()],
}
names = [f"batch {batch}" for batch in steps]
show(bars(names, parts, x="read in a step (GiB)", stacked=True, looks=("weights", "k")))

# %% key="gain_drawn" lang="zh"
from minikv.course.charts import bars

steps = {batch: decode_work("Llama-3.1-8B", batch, 4096) for batch in (1, 4, 16, 64, 256)}
parts = {
    "权重": [step.weight_bytes / 2**30 for step in steps.values()],
    "KV 缓存": [step.cache_bytes / 2**30 for step in steps.values()],
}
names = [f"{batch} 条序列" for batch in steps]
show(bars(names, parts, x="一步读取（GiB）", stacked=True, looks=("weights", "k")))

# %% key="gain_table" lang="en"
gpu, rows = find_gpu("H200"), []
roof = gpu_roof(gpu)
for batch, step in steps.items():
    tokens_s = batch / roof.seconds(step.flops, step.num_bytes)
    fits = held + step.cache_bytes <= gpu.total_bytes
    rows.append((batch, f"{step.intensity:.1f}", f"{tokens_s:,.0f}", "yes" if fits else "no"))
head = ["batch", "FLOP/byte", "tokens/s at most", "fits on the card"]
Table(head, rows, right=head[1:3])

# %% key="gain_table" lang="zh"
gpu, rows = find_gpu("H200"), []
roof = gpu_roof(gpu)
for batch, step in steps.items():
    tokens_s = batch / roof.seconds(step.flops, step.num_bytes)
    fits = held + step.cache_bytes <= gpu.total_bytes
    rows.append((batch, f"{step.intensity:.1f}", f"{tokens_s:,.0f}", "能" if fits else "放不下"))
head = ["batch", "FLOP/字节", "每秒最多（token）", "这块卡放得下吗"]
Table(head, rows, right=head[1:3])

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

# %% key="ridge_table" lang="en"
contexts = (1, 64, 256, 512, 1024, 4096)
pairs = [("Llama-3.1-8B", "H200"), ("Llama-2-7B", "H200"), ("Llama-3.1-8B", "H20"), ("DeepSeek-V3", "H200")]
rows = []
for model, name in pairs:
    card = gpu_roof(find_gpu(name))
    batches = [ridge_batch(model, context, card) for context in contexts]
    rows.append((f"{model}, {name}", *(batch or "none" for batch in batches)))
head = ["tokens of context", *(f"{context:,}" for context in contexts)]
Table(head, rows, title="Smallest batch at the ridge point", right=head[1:])

# %% key="ridge_table" lang="zh"
contexts = (1, 64, 256, 512, 1024, 4096)
pairs = [("Llama-3.1-8B", "H200"), ("Llama-2-7B", "H200"), ("Llama-3.1-8B", "H20"), ("DeepSeek-V3", "H200")]
rows = []
for model, name in pairs:
    card = gpu_roof(find_gpu(name))
    batches = [ridge_batch(model, context, card) for context in contexts]
    rows.append((f"{model}, {name}", *(batch or "没有" for batch in batches)))
head = ["上下文（token）", *(f"{context:,}" for context in contexts)]
Table(head, rows, title="到达拐点的最小 batch", right=head[1:])

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
# ## Attention's intensity comes from the heads
#
# Decode attention on an H100, 40 query heads and 40 KV heads: a user ran it once with tensor cores and once without, and got nearly the same time.
# Your turn: where does such attention stand on the roof?
# %% [markdown] key="heads" lang="zh" src="f25026e6"
# ## 注意力的算术强度由 query 头数与 KV 头数之比决定
#
# 一位用户在 H100 上测解码注意力，40 个 query 头、40 个 KV 头：用不用 Tensor Core，时间几乎一样。
# 想一想：这样的注意力落在 Roofline 的什么位置？

# %% key="predict_group"
predict("group", ...)

# %% key="heads_table" lang="en"
rows = []
for model in ("Llama-2-7B", "Llama-3.1-8B", "Llama-3.1-70B", "Kimi-K2", "DeepSeek-V3"):
    heads = find_model(model).config["num_attention_heads"]
    kv = CacheSpec.from_config(model).layers[0].kv_heads
    steps = [decode_work(model, 1, 4096, kv_dtype=dtype) for dtype in ("bf16", "fp8")]
    rows.append((model, heads, kv, *(f"{step.attention_intensity:.1f}" for step in steps)))
head = ["model", "query heads", "KV heads or latents", "FLOP/byte", "with an fp8 cache"]
Table(head, rows, right=head[3:])

# %% key="heads_table" lang="zh"
rows = []
for model in ("Llama-2-7B", "Llama-3.1-8B", "Llama-3.1-70B", "Kimi-K2", "DeepSeek-V3"):
    heads = find_model(model).config["num_attention_heads"]
    kv = CacheSpec.from_config(model).layers[0].kv_heads
    steps = [decode_work(model, 1, 4096, kv_dtype=dtype) for dtype in ("bf16", "fp8")]
    rows.append((model, heads, kv, *(f"{step.attention_intensity:.1f}" for step in steps)))
head = ["模型", "query 头", "KV 头或潜在向量", "FLOP/字节", "fp8 缓存时"]
Table(head, rows, right=head[3:])

# %% [markdown] key="heads_read" lang="en"
# With as many KV heads as query heads, attention does 1 FLOP per byte.
# Faster arithmetic doesn't help there: two runs that take nearly the same time are what the roof predicts.
# GQA multiplies by the size of the group, fp8 by two.
#
# MLA is far away from them: 128 heads read one latent, and with absorbed matrices ([lesson 03](03_the_2_86x_mistake.ipynb)) they do over 200 FLOPs with each byte.
# %% [markdown] key="heads_read" lang="zh" src="8de6882e"
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

# %% key="break_card" lang="en"
latent, rows = decode_work("DeepSeek-V3", 1, 4096).attention_intensity, []
for name in ("H100 SXM", "H200", "A100 SXM 80GB", "H20"):
    card = gpu_roof(find_gpu(name))
    rows.append((card.name, f"{card.ridge:.1f}", "memory-bound" if latent < card.ridge else "compute-bound"))
Table(["card", "ridge point", "attention of DeepSeek-V3"], rows, right=["ridge point"])

# %% key="break_card" lang="zh"
latent, rows = decode_work("DeepSeek-V3", 1, 4096).attention_intensity, []
for name in ("H100 SXM", "H200", "A100 SXM 80GB", "H20"):
    card = gpu_roof(find_gpu(name))
    rows.append((card.name, f"{card.ridge:.1f}", "访存受限" if latent < card.ridge else "计算受限"))
Table(["显卡", "拐点", "DeepSeek-V3 的注意力"], rows, right=["拐点"])

# %% [markdown] key="break_card_read" lang="en"
# By the data sheets this attention is memory-bound on the H100 and compute-bound on the H200, which computes as fast and has the faster memory.
# So near to the ridge point a data sheet doesn't decide: a rate that the card keeps up is below the printed one, and it moves the ridge point to the left.
# "Decode attention is memory-bound" is a rule of thumb: on an H20 it is plainly false of this model.
#
# Now the units. One step of 16 sequences, and the same with the mistakes that are made most:
# %% [markdown] key="break_card_read" lang="zh" src="6fefcfed"
# 按标称值，这个注意力在 H100 上访存受限，在 H200 上计算受限：两者算力相同，只是 H200 的显存更快。
# 离拐点这么近，标称值已经说了不算：显卡实际能维持的算力低于标称，拐点也就往左移。
# “解码注意力是访存受限的”只是一条经验：对这个模型，在 H20 上显然不成立。
#
# 再来看单位。16 条序列的一步，以及几种最常见的错误：

# %% key="break_units" lang="en"
step, card = decode_work("Llama-3.1-8B", 16, 4096), gpu_roof(find_gpu("H200"))
ways = {
    "right: bytes, GB/s": step.num_bytes / (card.bandwidth_gb_s * 1e9),
    "GB/s taken for Gbit/s": step.num_bytes / (card.bandwidth_gb_s * 1e9 / 8),
    "GB/s taken for GiB/s": step.num_bytes / (card.bandwidth_gb_s * 2**30),
    "weights read for each sequence": (16 * step.weight_bytes + step.cache_bytes) / (card.bandwidth_gb_s * 1e9),
}
rows = [(name, f"{seconds * 1e3:.3f}") for name, seconds in ways.items()]
Table(["way", "ms"], rows, right=["ms"])

# %% key="break_units" lang="zh"
step, card = decode_work("Llama-3.1-8B", 16, 4096), gpu_roof(find_gpu("H200"))
ways = {
    "正确：字节，GB/s": step.num_bytes / (card.bandwidth_gb_s * 1e9),
    "把 GB/s 当成 Gbit/s": step.num_bytes / (card.bandwidth_gb_s * 1e9 / 8),
    "把 GB/s 当成 GiB/s": step.num_bytes / (card.bandwidth_gb_s * 2**30),
    "每条序列各读一遍权重": (16 * step.weight_bytes + step.cache_bytes) / (card.bandwidth_gb_s * 1e9),
}
rows = [(name, f"{seconds * 1e3:.3f}") for name, seconds in ways.items()]
Table(["算法", "毫秒"], rows, right=["毫秒"])

# %% [markdown] key="break_units_read" lang="en"
# The 7 % of GiB/s look harmless. They are more than the first coalesced kernel brought to one engine (5.2 %, in *In the wild*).
#
# One more: a model of 7 billion parameters in FP16 makes 100 tokens a second on an A100 with 2 TB/s. Which part of the bandwidth does it use?
# %% [markdown] key="break_units_read" lang="zh" src="f432769a"
# GiB/s 造成的 7% 看似不大，却超过了某个引擎第一个合并访存的 kernel 带来的 5.2%（见“实战现场”）。
#
# 再看一例：70 亿参数、FP16，在带宽 2 TB/s 的 A100 上每秒生成 100 个 token。用上了多大比例的带宽？

# %% key="utilization" lang="en"
used = 7e9 * 2 * 100 / 1e9  # parameters x bytes x tokens a second
rows = [("7e9 x 2 x 100", f"{used:,.0f}", f"{used / 2000:.0%}"), ("without the 2 bytes", f"{700:,}", f"{700 / 2000:.0%}")]
Table(["", "GB/s", "of 2 TB/s"], rows, right=["GB/s", "of 2 TB/s"])

# %% key="utilization" lang="zh"
used = 7e9 * 2 * 100 / 1e9  # 参数 × 字节 × 每秒 token 数
rows = [("7e9 × 2 × 100，完整", f"{used:,.0f}", f"{used / 2000:.0%}"), ("漏乘 2 个字节", f"{700:,}", f"{700 / 2000:.0%}")]
Table(["", "GB/s", "占 2 TB/s 的比例"], rows, right=["GB/s", "占 2 TB/s 的比例"])

# %% [markdown] key="self" lang="en"
# ## Recap
#
# A step takes at least `max(bytes / bandwidth, FLOPs / FLOP rate)`: 7.62 ms for Llama-3.1-8B with 4,096 tokens on an A100, of which the arithmetic needs under 0.1 ms.
# Weights are read once for the batch and reach the ridge point with enough sequences; the cache is read for each sequence, so no batch moves attention.
# Attention does 1 FLOP per byte with MHA, the size of the group with GQA, over 200 with absorbed MLA (16-bit cache).
# Bandwidth belongs to a working set and an order: 32 threads that read from 32 places move eight times the bytes that they asked for.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="2b91c231"
# ## 本课小结
#
# 一步至少需要 `max(字节数 / 带宽, FLOP / 算力)`：Llama-3.1-8B、4,096 个 token，在 A100 上是 7.62 毫秒，其中计算不到 0.1 毫秒。
# 权重整个 batch 读一次，序列足够多就能走到拐点；缓存每条序列各读一次，所以 batch 再大，注意力的算术强度也不变。
# 16 位缓存时，注意力每字节做的 FLOP：MHA 是 1，GQA 等于组的大小，矩阵吸收后的 MLA 超过 200。
# 带宽总是针对某个工作集、某种次序而言：32 个线程从 32 个地方读，搬运的字节就是请求的 8 倍。
#
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_bound"
explain("memory_bound")

# %% key="explain_cache"
explain("cache_and_batch")

# %% key="explain_thread"
explain("contiguous_per_thread")

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - In [TensorRT-LLM #1607](https://github.com/NVIDIA/TensorRT-LLM/issues/1607) a user of Whisper on an A10G saw 90 % GPU utilization and under 25 % of the tensor cores; half a year later the issue was closed without an answer. *The floor of a step* has it.
# - [transformers-benchmarks #4](https://github.com/mli/transformers-benchmarks/issues/4) measured 3,868 GB/s on an RTX 4090 and, on an A800, 1,727 GB/s, below the data sheet's 1,935. (The A800's L2 is 40 MB in two halves, and 32 MiB don't fit in one half: a likely reason, but we have not measured it.)
# - [ferrox #133](https://github.com/antonellof/ferrox/issues/133) reached 5.3 % of a card's bandwidth where llama.cpp reached 60.4 %, because each of 32 neighbouring threads read at the beginning of a block of its own. Its first coalesced kernel brought 5.2 % ([PR #144](https://github.com/antonellof/ferrox/pull/144)), and with those of the feed-forward layers one model went from 32.85 to 100.90 tokens a second ([PR #146](https://github.com/antonellof/ferrox/pull/146)).
# - [flashinfer #520](https://github.com/flashinfer-ai/flashinfer/issues/520) is the run with 40 query heads and 40 KV heads. [FlashMLA](https://github.com/deepseek-ai/FlashMLA/blob/main/docs/20250422-new-kernel-deep-dive.md) counts with the 865 TFLOP/s that its H800 keeps up, not with its 990, and calls MLA's attention compute-bound.
# - A reader of a textbook [objected](https://github.com/chiphuyen/aie-book/issues/7) that 700 of 2,000 GB/s is 35 % and not 70 %. The 70 % is right: it is the 700 that has lost the 2 bytes.
# %% [markdown] key="wild" lang="zh" src="f63f7fc7"
# ## 实战现场
#
# - [TensorRT-LLM #1607](https://github.com/NVIDIA/TensorRT-LLM/issues/1607)：一位用户在 A10G 上跑 Whisper，GPU 利用率约 90%，Tensor Core 利用率却不到 25%；半年后，该 issue 在没有答案的情况下关闭。答案见“一步的下限”。
# - [transformers-benchmarks #4](https://github.com/mli/transformers-benchmarks/issues/4)：RTX 4090 上测得 3,868 GB/s；同一个脚本在 A800 上测得 1,727 GB/s，低于标称的 1,935。（A800 的 L2 共 40 MB，分成两半，一半放不下 32 MiB：原因很可能在这里，不过我们没有实测。）
# - [ferrox #133](https://github.com/antonellof/ferrox/issues/133)：解码 kernel 只达到显卡带宽的 5.3%，而 llama.cpp 达到 60.4%，因为相邻的 32 个线程各自从自己那一块的开头读起。第一个合并访存的 kernel 带来 5.2%（[PR #144](https://github.com/antonellof/ferrox/pull/144)），前馈层的 kernel 也改好之后，有个模型从每秒 32.85 个 token 提高到 100.90 个（[PR #146](https://github.com/antonellof/ferrox/pull/146)）。
# - [flashinfer #520](https://github.com/flashinfer-ai/flashinfer/issues/520) 就是 40 个 query 头、40 个 KV 头的那次测试。[FlashMLA](https://github.com/deepseek-ai/FlashMLA/blob/main/docs/20250422-new-kernel-deep-dive.md) 按 H800 实际能维持的 865 TFLOP/s 计算，而不是标称的 990，于是把 MLA 的注意力算作计算受限。
# - 一位读者给一本教材[指出](https://github.com/chiphuyen/aie-book/issues/7)：700 除以 2,000 GB/s 是 35%，不是 70%。其实 70% 没错，错的是 700：那 2 个字节漏乘了。

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
