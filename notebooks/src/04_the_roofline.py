# %% [meta]
# number = "04"
# slug = "the_roofline"
# needs = ["02", "03"]
# rooms = ["plan.roofline", "memory.bandwidth", "memory.access"]
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
# `nvidia-smi` says that the GPU is 100 % busy, yet the tokens come slowly. The tensor cores, its units for matrix products, have almost nothing to do.
# That percentage is the share of time in which *any* kernel (a function on the GPU) runs, even one that waits for memory.
#
# **How long must a decode step take, and what does the GPU wait for?**
#
# The bytes and the FLOPs of a step and two numbers of the card, its bandwidth and its FLOP rate, answer it. (A FLOP is one multiplication or one addition.)
# Here is one step of Qwen3-8B on an H200, with 1, 8 and 32 sequences of 4,096 tokens:
# %% [markdown] key="question" lang="zh" src="690cbc71"
# ## 问题
#
# `nvidia-smi` 显示 GPU 利用率 100%，token 却出得很慢，负责矩阵乘法的 Tensor Core 也几乎无事可做。
# 这是因为利用率统计的是有 kernel（在 GPU 上运行的函数）在运行的时间占多少，而等显存的 kernel 也算在运行。
#
# **一步解码至少要多久？GPU 在等什么？**
#
# 要回答这个问题，只需要一步的字节数和 FLOP（一次乘法或一次加法算一个 FLOP），再加上显卡的带宽和算力。下面是 Qwen3-8B 在 H200 上的一步解码，分别有 1、8、32 条序列，每条 4,096 个 token：

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
# Even with 32 sequences, the arithmetic needs only 8 % of the time. The rest is reading, and the part that grows with every sequence is the KV cache.
#
# After this lesson you can:
#
# - **compute** the least time of a decode step from bytes, FLOPs and a data sheet;
# - **tell** from its arithmetic intensity whether a piece of work waits for memory or for arithmetic, and at which batch that changes;
# - **measure** the bandwidth of each level of memory, and recognize an access pattern that wastes it.
#
# You need the bytes of one token from [lesson 02](02_how_many_bytes.ipynb). MLA, from [lesson 03](03_the_2_86x_mistake.ipynb), comes up near the end.
# %% [markdown] key="able" lang="zh" src="d18dd601"
# 即使有 32 条序列，计算也只需要 8% 的时间。其余时间都在读数据，而且每多一条序列，变长的就是读 KV 缓存的那一段。
#
# 学完本课，你能够：
#
# - 由字节数、FLOP 和规格书**算出**一步解码的最短时间；
# - 根据算术强度**判断**一段计算在等显存还是在等算力，以及 batch 增大到多少时情况会反过来；
# - **测量**每一层存储的带宽，并认出浪费带宽的访问模式。
#
# 预备知识：[第 02 课](02_how_many_bytes.ipynb)里一个 token 的字节数。后半段会用到[第 03 课](03_the_2_86x_mistake.ipynb)的 MLA。

# %% [markdown] key="ask_floor" lang="en"
# ## The floor of a step
#
# To decode one token, a model multiplies a vector by each of its weight matrices, and it compares a query with every cached key.
# So each weight and each cached element has to come out of memory once. However good a kernel is, it can't skip these bytes.
#
# Dividing them by the bandwidth gives the **floor**: the least time of the step. Try it before you run the next cells. The first question asks for the time itself, the second for what the arithmetic units do in that time.
# %% [markdown] key="ask_floor" lang="zh" src="57bb1b8a"
# ## 一步的下限
#
# 解码（decode）一个 token 时，模型用一个向量依次去乘每个权重矩阵，再拿 query 和缓存里的每个 key 做点积。
# 所以每个权重、缓存里的每个元素，都要从显存读出来一次。kernel 写得再好，这些字节也省不掉。
#
# 把这些字节除以带宽，就得到这一步的**下限**，也就是最短时间。请先自己算，再运行后面的单元格。第一题问下限本身，第二题问这段时间里计算单元做了多少事。

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
# The last two columns differ by a factor of about a hundred.
# With one sequence the tensor cores finish almost at once, and the rest of the step is reading.
# A card with twice the arithmetic and the same bandwidth wouldn't make this step any faster.
#
# A step doesn't read all the weights, though. The table of input embeddings has a row for each word of the vocabulary, and a token needs one of them.
# The table still has to lie in memory, so the T4's row above holds only on paper:
# %% [markdown] key="cards_read" lang="zh" src="5fe97e36"
# 最后两列相差约一百倍。
# 只有一条序列时，Tensor Core 几乎立刻就算完了，剩下的时间都在读数据。
# 所以，换一块算力翻倍而带宽不变的卡，这一步一点也不会变快。
#
# 不过，一步并不会读到全部权重。输入 embedding 表为词表里的每个词各存一行，而一个 token 只取其中一行。
# 但整张表还是得放进显存，所以上表中 T4 那一行只是理论值：

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
# We can now say this for any device and any work.
# A device reads at most $\beta$ bytes a second and does at most $\pi$ FLOPs a second, and it can do both at the same time.
# Work that does $F$ FLOPs on $M$ bytes has the **arithmetic intensity** $I = F / M$. It takes at least as long as the slower of its two parts:
# %% [markdown] key="formula" lang="zh" src="21dd1ff8"
# ## 公式
#
# 这个思路对任何设备、任何计算都成立。
# 设一个设备每秒最多读 $\beta$ 字节、最多做 $\pi$ 个 FLOP，而且两件事可以同时进行。
# 在 $M$ 字节上做 $F$ 个 FLOP，它的**算术强度**（arithmetic intensity）是 $I = F / M$。读取和计算中较慢的一方，决定了所需时间的下限：

# %% [markdown] key="formula_math"
# $$T \ge \max\!\left(\frac{M}{\beta}, \frac{F}{\pi}\right) \qquad I_{\text{ridge}} = \frac{\pi}{\beta} \qquad \text{FLOP/s} \le \min(\pi,\ \beta \, I)$$

# %% [markdown] key="step_formula" lang="en"
# The middle formula is the intensity at which both parts take equally long. Below it the device waits for memory, above it for arithmetic.
# The right one is the **roofline** itself: the rate that work of intensity $I$ can reach at most. Up to that intensity it rises with $\beta I$, and after it stays at $\pi$, like a slanted roof that ends in a flat one.
#
# For one decode step of $B$ sequences that see $n$ tokens each, bytes and FLOPs are:
# %% [markdown] key="step_formula" lang="zh" src="0f595a81"
# 中间的式子是两部分耗时相等时的算术强度。低于这个值，设备在等显存；高于这个值，设备在等算力。
# 右边的式子就是 **Roofline**（屋顶线），即算术强度为 $I$ 的计算每秒最多能做多少 FLOP。在两部分耗时相等的那一点之前，它按 $\beta I$ 上升，之后停在 $\pi$ 不变，形状像一段斜屋顶接一段平屋顶。
#
# 具体到一步解码：$B$ 条序列，每条能看到 $n$ 个 token，那么字节数和 FLOP 分别是：

# %% [markdown] key="step_math"
# $$M = W + B\,n\,k \qquad F = B\,(f + n\,a) \qquad I = \frac{B\,(f + n\,a)}{W + B\,n\,k}$$

# %% [markdown] key="symbols" lang="en"
# | symbol | meaning | unit | value here: Llama-3.1-8B on an A100 SXM 80GB |
# |---|---|---|---|
# | $\beta$, $\pi$ | bandwidth and FLOP rate of the device | bytes/s, FLOP/s | 2,039 · 10⁹, 312 · 10¹² |
# | $I_{\text{ridge}}$ | the **ridge point**: below it work is memory-bound, above it compute-bound | FLOP/byte | 153 |
# | $W$ | weights that a step reads, once for the batch | bytes | 15,009,849,344 |
# | $k$ | K and V of one token, all layers ([lesson 02](02_how_many_bytes.ipynb)) | bytes | 131,072 |
# | $f$ | FLOPs of one token with the weights, 2 for each weight | FLOP | 15,009,316,864 |
# | $a$ | FLOPs of one query token with one cached token, all heads and layers | FLOP | 524,288 |
# | $B$ | sequences of the step, one new token each | sequences | 1 |
# | $n$ | tokens that each of them sees | tokens | 4,096 |
# | $M$ | bytes that the step reads | bytes | 15,546,720,256 |
# | $F$ | FLOPs that it does | FLOP | 17,156,800,512 |
# | $I$ | its arithmetic intensity | FLOP/byte | 1.10 |
# | $T$ | its least time | seconds | 7.62 · 10⁻³ |
#
# With the numbers put in:
#
# - $M = 15{,}009{,}849{,}344 + 1 \cdot 4{,}096 \cdot 131{,}072 = 15{,}546{,}720{,}256$ B
# - $F = 1 \cdot (15{,}009{,}316{,}864 + 4{,}096 \cdot 524{,}288) = 17{,}156{,}800{,}512$ FLOP
# - $I = 17{,}156{,}800{,}512 / 15{,}546{,}720{,}256 = 1.10$ FLOP/byte, and $I_{\text{ridge}} = 312{,}000 / 2{,}039 = 153$
# - $T \ge 15{,}546{,}720{,}256 / (2{,}039 \cdot 10^9) = 7.62$ ms; the arithmetic alone would need $17{,}156{,}800{,}512 / (312 \cdot 10^{12}) = 0.055$ ms
# - $\text{FLOP/s} \le \min(312 \cdot 10^{12},\ 2{,}039 \cdot 10^9 \cdot 1.10) = 2.25 \cdot 10^{12}$: memory lets the step do 2.25 of the card's 312 TFLOP/s
#
# One multiplication and one addition count as two FLOPs.
# A 16-bit weight is 2 bytes and costs 2 FLOPs for each token, so with one sequence $f / W$ is **1 FLOP per byte**.
# The next cell splits the step into these two parts, and the one after it compares the whole with four ridge points.
# %% [markdown] key="symbols" lang="zh" src="4625f8ed"
# | 符号 | 含义 | 单位 | 本例取值：A100 SXM 80GB 上的 Llama-3.1-8B |
# |---|---|---|---|
# | $\beta$、$\pi$ | 设备的带宽和算力 | 字节/秒、FLOP/秒 | 2,039 · 10⁹、312 · 10¹² |
# | $I_{\text{ridge}}$ | **拐点**（ridge point）：低于它访存受限，高于它计算受限 | FLOP/字节 | 153 |
# | $W$ | 一步读取的权重，整个 batch 只读一次 | 字节 | 15,009,849,344 |
# | $k$ | 一个 token 在所有层的 K 和 V（[第 02 课](02_how_many_bytes.ipynb)） | 字节 | 131,072 |
# | $f$ | 一个 token 与权重运算的 FLOP，每个权重 2 个 | FLOP | 15,009,316,864 |
# | $a$ | 一个 query token 与一个缓存 token 运算的 FLOP，所有头、所有层 | FLOP | 524,288 |
# | $B$ | 这一步的序列数，每条一个新 token | 条 | 1 |
# | $n$ | 每条序列能看到的 token 数 | 个 | 4,096 |
# | $M$ | 这一步读取的字节 | 字节 | 15,546,720,256 |
# | $F$ | 这一步做的 FLOP | FLOP | 17,156,800,512 |
# | $I$ | 这一步的算术强度 | FLOP/字节 | 1.10 |
# | $T$ | 这一步的最短时间 | 秒 | 7.62 · 10⁻³ |
#
# 代入数字：
#
# - $M = 15{,}009{,}849{,}344 + 1 \cdot 4{,}096 \cdot 131{,}072 = 15{,}546{,}720{,}256$ 字节
# - $F = 1 \cdot (15{,}009{,}316{,}864 + 4{,}096 \cdot 524{,}288) = 17{,}156{,}800{,}512$ FLOP
# - $I = 17{,}156{,}800{,}512 / 15{,}546{,}720{,}256 = 1.10$ FLOP/字节，而 $I_{\text{ridge}} = 312{,}000 / 2{,}039 = 153$
# - $T \ge 15{,}546{,}720{,}256 / (2{,}039 \cdot 10^9) = 7.62$ 毫秒；如果只看计算，$17{,}156{,}800{,}512 / (312 \cdot 10^{12}) = 0.055$ 毫秒就够了
# - $\text{FLOP/s} \le \min(312 \cdot 10^{12},\ 2{,}039 \cdot 10^9 \cdot 1.10) = 2.25 \cdot 10^{12}$，也就是说，受带宽所限，这一步只能用上 312 TFLOP/s 中的 2.25
#
# 这里一次乘法加一次加法算两个 FLOP。
# 16 位的权重占 2 字节，每个 token 用它做 2 个 FLOP，所以只有一条序列时，$f / W$ 是 **1 FLOP/字节**。
# 下一个单元格把这一步拆成权重和缓存两部分，再下一个把整步与四块卡的拐点作比较。

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
# You will often read that decode attention does about 10 FLOPs per byte, on a GPU that could do 200, so that the GPU waits 95 % of the time.
# The conclusion sounds right, so let us check the 10.
# Attention reads K and V of a cached token. For each pair of elements, one of K and one of V, and for every query head that uses them, it does 4 FLOPs: a multiplication and an addition in $QK^\top$, and the same in $PV$.
# For one token of one layer of Llama-3.1-8B, with 32 query heads, 8 KV heads, `head_dim` 128 and 2 bytes an element, that is
#
# $$\frac{4 \cdot 32 \cdot 128}{2 \cdot 8 \cdot 128 \cdot 2} = \frac{16{,}384\ \text{FLOP}}{4{,}096\ \text{B}} = 4\ \text{FLOP/byte}$$
# %% [markdown] key="source" lang="zh" src="96dcc142"
# ## 注意力每字节做多少 FLOP
#
# 常见的说法是，解码时注意力大约做 10 FLOP/字节，而 GPU 能做到约 200，所以有 95% 的时间在等。
# 结论听上去没错，但这个 10 要先核对一下。
# 注意力读出一个缓存 token 的 K 和 V。对其中每一对元素（K、V 各一个）、每个用到它的 query 头，要做 4 个 FLOP，因为 $QK^\top$ 里有一次乘法和一次加法，$PV$ 里又有一次乘法和一次加法。
# 例如 Llama-3.1-8B 有 32 个 query 头、8 个 KV 头，`head_dim` 是 128，每个元素 2 字节，那么一层、一个 token 就是
#
# $$\frac{4 \cdot 32 \cdot 128}{2 \cdot 8 \cdot 128 \cdot 2} = \frac{16{,}384\ \text{FLOP}}{4{,}096\ \text{字节}} = 4\ \text{FLOP/字节}$$

# %% key="source_check" lang="en"
ridge = gpu_roof(find_gpu("H200")).ridge
rows = [("said to be", "10.0", f"{1 - 10 / 200:.1%} (ridge 200)")]
for model in ("Llama-2-7B", "Llama-3.1-8B", "Llama-3.1-70B"):
    intensity = decode_work(model, 1, 4096).attention_intensity
    rows.append((model, f"{intensity:.1f}", f"{1 - intensity / ridge:.1%} (ridge {ridge:.0f})"))
Table(["attention of", "FLOP/byte", "waiting"], rows, right=["FLOP/byte", "waiting"])

# %% key="source_check" lang="zh"
ridge = gpu_roof(find_gpu("H200")).ridge
rows = [("流传的说法", "10.0", f"{1 - 10 / 200:.1%}（拐点 200）")]
for model in ("Llama-2-7B", "Llama-3.1-8B", "Llama-3.1-70B"):
    intensity = decode_work(model, 1, 4096).attention_intensity
    rows.append((model, f"{intensity:.1f}", f"{1 - intensity / ridge:.1%}（拐点 {ridge:.0f}）"))
Table(["模型", "FLOP/字节", "等待"], rows, right=["FLOP/字节", "等待"])

# %% [markdown] key="source_read" lang="en"
# `head_dim` cancels. What remains is the number of query heads for each KV head, divided by half the bytes of an element. With 2 bytes that is 1, 4 and 8 for these three models.
# So on an H200, attention waits not 95 %, but 96 to 99.5 % of the time.
# %% [markdown] key="source_read" lang="zh" src="ea8ab5bf"
# `head_dim` 约掉了，剩下的就是每个 KV 头对应几个 query 头，再除以元素字节数的一半。每个元素 2 字节时，这三个模型分别是 1、4 和 8。
# 所以在 H200 上，注意力等待的时间不是 95%，而是 96% 到 99.5%。

# %% [markdown] key="pyramid" lang="en"
# ## The memory pyramid, measured
#
# So far $\beta$ was the one number of a data sheet. A measurement can give quite another one.
# A benchmark on an RTX 4090 reported 3,868 GB/s, almost four times the 1,000 or so of its data sheet.
# It multiplies a vector by 1.2: it reads one float32 tensor and writes another of the same size. How many bytes does that touch?
# %% [markdown] key="pyramid" lang="zh" src="bde738a4"
# ## 实测内存金字塔
#
# 到目前为止，$\beta$ 都取规格书上的那一个数。实际测出来，却可能差得很远。
# 例如有个基准测试在 RTX 4090 上报出 3,868 GB/s，差不多是标称 1,000 左右的四倍。
# 它做的事是把一个向量乘以 1.2，也就是读一个 float32 张量，再写一个同样大小的。这一共碰到多少字节？

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
# Even the largest of these sizes fits in the 72 MiB L2 cache of that card, which is memory on the chip, much faster than the card's main memory.
# So the measurement is right, but it is the bandwidth of L2: the card's memory was hardly used.
# (The smallest sizes show something else. Their kernels are so short that most of the time goes into launching them.)
#
# A bandwidth therefore belongs to a **working set**, the bytes that are touched again and again.
# The next cell reads working sets from 16 KiB to 1 GiB on this machine.
# One call reads its set many times, so the cost of the call itself doesn't show in the figure.
# On a CPU one core does the reading. On a GPU all multiprocessors share the set among them.
# %% [markdown] key="fits_read" lang="zh" src="fefad4d5"
# 表中最大的一档，也放得进那块卡 72 MiB 的 L2 缓存。L2 在芯片上，比显存快得多。
# 也就是说，测量本身没错，只是测到的是 L2 的带宽，几乎没有用到显存。
# （最小的几档另有原因，那里的 kernel 太短，时间主要花在 launch 上。）
#
# 由此可见，带宽总是对某个**工作集**（working set）而言，也就是反复读写的那些字节。
# 下面在本机上测量 16 KiB 到 1 GiB 的工作集。
# 每次调用都会把工作集读很多遍，这样调用本身的开销就可以忽略。
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
# The curve goes down in steps. Each step is a level of memory: as soon as the set no longer fits in one level, the next one has to deliver the data. The dashed lines are the cache sizes that the operating system reports.
# Here are the levels of this machine, as just measured, next to those of an H100.
# %% [markdown] key="levels_words" lang="zh" src="8f1b39de"
# 曲线呈台阶状下降，每级台阶对应一层存储。工作集在这一层放不下，数据就得由下一层提供。虚线是操作系统报告的缓存大小。
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
# "Times memory" says how many times as fast a level is as memory, the last level of the table.
# Other programs on the machine can move single points. On a quiet machine the steps are plain to see.
# On a GPU torch reports only the size of L2, so what fits in the L1 caches counts as L2 here.
# Two levels don't show at all: the registers and, on a GPU, the shared memory, because a kernel has to fill those itself.
#
# | level | where it is | what controls it |
# |---|---|---|
# | registers, shared memory and L1 (**SRAM**) | on the chip, in each multiprocessor | the kernel |
# | L2 (SRAM) | on the chip, for all multiprocessors | the hardware |
# | **HBM** (device memory) | next to the chip | the allocator |
# | CPU memory | across PCIe, 64 GB/s each way (Gen5 x16) | swap ([lesson 12](12_beyond_one_gpu.ipynb)) |
#
# FlashAttention is fast because of the gap between SRAM and HBM. It keeps a tile of K and V in SRAM and never writes the matrix of scores to HBM.
# With 4,096 queries, 4,096 keys, 32 heads and 2 bytes, that matrix would be 4,096 · 4,096 · 32 · 2 B = 1 GiB in each layer, written once and read again. [Lesson 10](10_kernels.ipynb) builds such a kernel.
#
# The weights of a decode step gain nothing from the upper levels.
# A step reads each weight once. Unless the model is tiny, the weight has left every cache long before the next step needs it again, so for weights only the lowest level counts.
# %% [markdown] key="levels_read" lang="zh" src="bd15114e"
# 机器上的其他程序会让个别点偏移；机器空闲时，台阶很清楚。
# 在 GPU 上，torch 只报告 L2 的大小，所以放得进 L1 的部分，这里也算作 L2。
# 还有两层用这种办法看不到，即寄存器和 GPU 上的共享内存，因为它们都要由 kernel 自己填充。
#
# | 哪一层 | 在哪里 | 由什么控制 |
# |---|---|---|
# | 寄存器、共享内存和 L1（**SRAM**，片上存储） | 芯片上，每个 SM 各有一份 | kernel |
# | L2（SRAM） | 芯片上，所有 SM 共用 | 硬件 |
# | **HBM**（显存，片外） | 芯片旁边 | 分配器 |
# | CPU 内存 | 经过 PCIe，每个方向 64 GB/s（Gen5 x16） | 换出（[第 12 课](12_beyond_one_gpu.ipynb)） |
#
# FlashAttention 之所以快，正是利用了 SRAM 与 HBM 的差距。它把 K 和 V 的一个分块（tile）放在 SRAM 里，从不把分数矩阵写进 HBM。
# 例如 4,096 个 query、4,096 个 key、32 个头、每个数 2 字节，每一层的分数矩阵就有 4,096 · 4,096 · 32 · 2 B = 1 GiB，写一遍还要再读一遍。[第 10 课](10_kernels.ipynb)会写出这样的 kernel。
#
# 但解码时要读的权重，用不上上面这几层。
# 一步里每个权重只读一次；除非模型非常小，等到下一步再用时，它早已不在任何缓存里了。所以对权重来说，起作用的只有最底层的带宽。

# %% [markdown] key="patterns" lang="en"
# ## Four ways to read the same bytes
#
# At every level, a bad order of reading wastes bandwidth.
# To see it, we pick 4-byte elements out of an array by a list of indices. The kernel and the bytes stay the same, and only the order of the list changes.
# The 32 neighbours in the list are what one **warp** of a GPU, a group of 32 threads that run in step, asks for at the same moment. Memory answers in **sectors** of 32 bytes.
# %% [markdown] key="patterns" lang="zh" src="4869734f"
# ## 同样的字节，四种读法
#
# 不论在哪一层，读取的次序不好都会浪费带宽。
# 下面按一张下标表从数组里取出 4 字节的元素（gather）。kernel 不变，字节不变，变的只有表里的次序。
# 表中相邻的 32 项，就是 GPU 的一个 **warp**（步调一致的 32 个线程）同时请求的内容；显存每次以 32 字节的**扇区**（sector）应答。

# %% key="orders"
from minikv.course.diagrams import warp_sectors
from minikv.memory import access_patterns, index_order
from minikv.memory.access import PATTERNS

orders = {pattern: index_order(pattern, 2**18, row=64)[:32].tolist() for pattern in PATTERNS}
show(warp_sectors(orders, t("lang")))

# %% [markdown] key="orders_read" lang="en"
# `coalesced` is the order of memory: 32 neighbours in the list are 32 neighbours in memory, so the warp gets exactly the 128 bytes that it asked for.
# `per_thread` is how you would share an array out among CPU threads: thread 0 gets elements 0 to 63, thread 1 gets 64 to 127, and each starts at the beginning of its piece.
# On a GPU this makes memory move 1,024 bytes where the warp asked for 128.
# `random_rows` shuffles rows of 256 bytes, and reads each row from end to end. In 16 bit, 256 bytes are the K of one head and one token, so this is what a block table does to a cache.
# `random` shuffles single elements.
# %% [markdown] key="orders_read" lang="zh" src="a1e67253"
# `coalesced` 就是**合并访存**，即按内存次序读，表中相邻的 32 项在内存里也相邻，一个 warp 请求 128 字节，显存正好搬 128 字节。
# `per_thread` 是给 CPU 线程分数组时的常见做法，例如线程 0 拿第 0 到 63 个元素，线程 1 拿第 64 到 127 个，每个线程都从自己那一段的开头读起。
# 放到 GPU 上，一个 warp 只请求 128 字节，显存却要搬 1,024 字节。
# `random_rows` 打乱的是 256 字节的行，每行从头读到尾。256 字节就是 16 位时一个头、一个 token 的 K，所以块表对缓存做的正是这件事。
# `random` 打乱的则是单个元素。

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
# The last column compares each order with `coalesced`. Each read counts as 16 bytes: 4 of data, 8 of its index and 4 written to the result. Only the 4 bytes of data lie in another place each time, the other 12 are always read and written in order.
#
# A CPU core works through the list one entry after another, so the same patterns matter here, for another reason.
# A CPU thread is fast if what it reads *next* is a neighbour of what it has just read. A warp is fast if what its threads read *at the same time* are neighbours.
#
# Rows of 256 bytes in random order are several times faster than single elements. But at the beginning of each row the CPU has to wait again.
# `random_blocks` keeps 16 rows together, 4 KiB, like a block of 16 tokens, and comes much nearer to the speed of memory order.
# This is why the blocks of a cache can lie anywhere, while the contents of one block have to lie together.
# %% [markdown] key="patterns_read" lang="zh" src="3d056a48"
# 每取一个元素按 16 字节计，其中数据 4 字节、下标 8 字节、写出结果 4 字节。位置被打乱的只有那 4 字节的数据，其余 12 字节始终按次序读写。
#
# CPU 核心是逐项处理这张表的，所以同样的访问模式在这里也有快慢之分，只是原因不同。
# 对 CPU 线程来说，**先后**读到的元素相邻才快；对 warp 来说，**同时**读到的元素相邻才快。
#
# 256 字节的行，即使次序随机，也比单个元素快几倍；不过每到一行的开头，CPU 都要重新等一次。
# `random_blocks` 把 16 行（4 KiB）捆在一起打乱，相当于一个 16 token 的块，速度就与按内存次序读接近得多。
# 所以，缓存的各个块可以放在任何地方，而块内部的数据必须连在一起。

# %% [markdown] key="machine" lang="en"
# ## The roof of this machine
#
# To draw the roof of your own machine you need its two numbers. Reading a gibibyte with all cores gives $\beta$, and multiplying two matrices gives $\pi$.
# On a busy machine the cores wait for each other, so one core alone may be faster. In that case its figure counts.
# %% [markdown] key="machine" lang="zh" src="b45c4b51"
# ## 本机的 Roofline
#
# 要画出自己机器的 Roofline，同样需要那两个数。用所有核心读 1 GiB，得到 $\beta$；做一次矩阵乘法，得到 $\pi$。
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
# Now try it: change the batch, the context or the device.
# S is the whole step, W the part that reads weights, A the part that reads the cache. Each stands on the roof at its own intensity.
# The first device in the list is this machine, as just measured.
# %% [markdown] key="widget_intro" lang="zh" src="de3278b4"
# 现在动手调一调。
# S 是整步，W 是读权重的部分，A 是读缓存的注意力部分；三个点各按自己的算术强度落在 Roofline 上。
# 设备列表的第一项，就是刚刚测得的本机。

# %% key="widget"
from minikv.course.widgets import RooflineWidget

widget = RooflineWidget(t("lang"), model="Llama-3.1-8B", gpu="H200", batch=16, context=4096, measured=here)
show(widget)

# %% [markdown] key="overlap" lang="en"
# The roof assumes that reading and computing go on at the same time. On a GPU they do: while some warps wait for memory, others compute. On a CPU the program has to see to it. A product that first waits for its weights and then multiplies takes the **sum** $M/\beta + F/\pi$, and at the ridge point, where both parts are equal, that is twice as long.
#
# minikv's linear layers on a CPU therefore keep a weight matrix in narrow panels. While a thread multiplies one panel with all sequences, it already asks memory for the next: `prefetch` in `minikv/kernels/cpu/linear.c`.
# %% [markdown] key="overlap" lang="zh" src="00158223"
# Roofline 假定读取和计算同时进行。GPU 正是这样：一些 warp 在等显存，另一些 warp 在计算。在 CPU 上就得由程序来安排。如果一次乘法先等权重读完、再开始算，用时就是两部分**之和** $M/\beta + F/\pi$；在拐点上两部分相等，用时便翻了一倍。
#
# 所以在 CPU 上，minikv 把线性层的权重矩阵切成一条条窄的面板（panel）。线程一边用一条面板乘所有序列，一边就向内存要下一条，见 `minikv/kernels/cpu/linear.c` 里的 `prefetch`。

# %% [markdown] key="batch" lang="en"
# ## What a larger batch changes, and what it doesn't
#
# If you add sequences, they read the same weights: W moves to the right, by 1 FLOP per byte for each sequence.
# In 16 bit it reaches the ridge point with as many sequences as the ridge point says, about 206 on an H200.
# That sounds easy. The next question shows why it isn't.
# %% [markdown] key="batch" lang="zh" src="f7369f71"
# ## 增大 batch，哪部分的算术强度会变，哪部分不变
#
# 增加序列，读的还是同一份权重，所以每多一条序列，W 就向右移动 1 FLOP/字节。
# 16 位时，拐点是多少，就要多少条序列才能走到，例如 H200 约为 206 条。
# 听起来不难，但实际上很难做到。先做下面这道题，就知道为什么。

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
# The batch shares the weights, but **each** sequence brings a cache of its own. (The last batch is arithmetic only: weights and caches don't fit on the card together.)
# A new sequence adds FLOPs and bytes in the same proportion, so A stays where it is.
# With many sequences the caches outweigh the weights, and the intensity of the whole step approaches that of one sequence without the bytes of the weights: $(f + n a) / (n k)$.
# For 4,096 tokens that is $(15{,}009{,}316{,}864 + 4{,}096 \cdot 524{,}288) / (4{,}096 \cdot 131{,}072) = 32$ FLOP/byte, far below 206.
# If the limit lies below the ridge point, no batch makes the step compute-bound:
# %% [markdown] key="gain_read" lang="zh" src="c286de39"
# 权重由整个 batch 共用，缓存却是**每条**序列各有一份。（最后一行只是算术，权重加缓存，这块卡放不下。）
# 新增一条序列，FLOP 和字节按同样的比例增加，所以 A 的位置不变。
# 序列多了以后，缓存的字节远远超过权重，整步的算术强度就趋于“一条序列、不计权重字节”的值：$(f + n a) / (n k)$。
# 例如 4,096 个 token 时，它等于 $(15{,}009{,}316{,}864 + 4{,}096 \cdot 524{,}288) / (4{,}096 \cdot 131{,}072) = 32$ FLOP/字节，远低于 206。
# 只要这个极限低于拐点，batch 再大，这一步也不会变成计算受限：

# %% key="ridge_table" lang="en"
contexts = (1, 64, 256, 512, 1024, 4096)
pairs = [("Llama-3.1-8B", "H200"), ("Llama-2-7B", "H200"), ("Llama-3.1-8B", "H20"), ("DeepSeek-V3", "H200")]
rows = []
for model, name in pairs:
    card = gpu_roof(find_gpu(name))
    batches = [ridge_batch(model, context, card) for context in contexts]
    rows.append((f"{model}, {name}", *(batch or "none" for batch in batches)))
head = ["model, card", *(f"{context:,}" for context in contexts)]
Table(head, rows, title="Smallest batch at the ridge point, by tokens of context", right=head[1:])

# %% key="ridge_table" lang="zh"
contexts = (1, 64, 256, 512, 1024, 4096)
pairs = [("Llama-3.1-8B", "H200"), ("Llama-2-7B", "H200"), ("Llama-3.1-8B", "H20"), ("DeepSeek-V3", "H200")]
rows = []
for model, name in pairs:
    card = gpu_roof(find_gpu(name))
    batches = [ridge_batch(model, context, card) for context in contexts]
    rows.append((f"{model}, {name}", *(batch or "没有" for batch in batches)))
head = ["模型，显卡", *(f"{context:,}" for context in contexts)]
Table(head, rows, title="到达拐点的最小 batch，各列是上下文的 token 数", right=head[1:])

# %% [markdown] key="ridge_read" lang="en"
# The table is arithmetic alone. Whether such a batch fits in memory is the question of [lesson 08](08_allocate_kv_cache.ipynb). (DeepSeek-V3 doesn't fit on one H200 at all.)
# DeepSeek-V3 needs a far larger batch, because a larger batch also uses more of its experts and so reads more weights.
# The roof here is the 16-bit one. DeepSeek-V3's weights are in fp8, and a kernel that multiplies in fp8 too has twice the FLOP rate. With it, W needs a batch about twice as large.
#
# One row runs the other way: for DeepSeek-V3 a longer context makes the batch *smaller*. Its attention must lie to the right of this card's ridge point. Why?
# %% [markdown] key="ridge_read" lang="zh" src="f7271824"
# 这里只看算术；这样的 batch 显存放不放得下，是[第 08 课](08_allocate_kv_cache.ipynb)的问题。（一块 H200 根本放不下 DeepSeek-V3。）
# DeepSeek-V3 所需的 batch 大得多，因为 batch 变大，用到的专家也变多，要读的权重随之增加。
# 另外，这里的 Roofline 按 16 位算力画。DeepSeek-V3 的权重是 fp8；如果 kernel 也用 fp8 做乘法，算力翻倍，W 走到拐点所需的 batch 也要大一倍左右。
#
# 表里有一行的趋势相反。对 DeepSeek-V3，上下文越长，所需的 batch 反而越**小**。这说明它的注意力落在这块卡拐点的右边。原因是什么？

# %% [markdown] key="heads" lang="en"
# ## Attention's intensity comes from the heads
#
# A user ran decode attention on an H100 with 40 query heads and 40 KV heads, once with tensor cores and once without. The two times were nearly equal.
# Can you say why? First work out the intensity of a model that you haven't seen yet:
# %% [markdown] key="heads" lang="zh" src="546fe927"
# ## 注意力的算术强度由 query 头数与 KV 头数之比决定
#
# 一位用户在 H100 上测解码注意力，有 40 个 query 头、40 个 KV 头。用不用 Tensor Core，时间几乎一样。
# 你能说出原因吗？先来算一个还没见过的模型：

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
# With as many KV heads as query heads, attention does 1 FLOP per byte, so it waits for memory nearly all the time.
# Faster arithmetic can't help there, and the two equal times are what the roof predicts.
# GQA multiplies the intensity by the size of the group, and an fp8 cache doubles it.
#
# MLA is far away from all of them. Its 128 heads read one latent, and with absorbed matrices ([lesson 03](03_the_2_86x_mistake.ipynb)) they do over 200 FLOPs with each byte.
# DeepSeek-V3's latent of 576 elements is used twice by each head, all of it as K and its first 512 elements as V:
#
# $$\frac{128 \cdot 2 \cdot (576 + 512)}{576 \cdot 2} = \frac{278{,}528\ \text{FLOP}}{1{,}152\ \text{B}} = 241.8\ \text{FLOP/byte}$$
#
# That is more than the 206 of an H200. So each further token of context raises the intensity of the whole step, and this is why DeepSeek-V3's row in the last table ran the other way.
# %% [markdown] key="heads_read" lang="zh" src="5fef67b9"
# KV 头与 query 头一样多时，注意力只有 1 FLOP/字节，几乎所有时间都在等显存。
# 这时算得再快也没用，两次运行的时间几乎一样，正是 Roofline 所预测的。
# 换成 GQA，强度乘以组的大小；换成 fp8 缓存，再乘 2。
#
# MLA 则完全不同。128 个头读同一个潜在向量（latent），采用矩阵吸收（[第 03 课](03_the_2_86x_mistake.ipynb)）后，每字节要做 200 多个 FLOP。
# 例如 DeepSeek-V3 的潜在向量有 576 个元素，每个头用它两次，一次全部当作 K，一次把前 512 个元素当作 V：
#
# $$\frac{128 \cdot 2 \cdot (576 + 512)}{576 \cdot 2} = \frac{278{,}528\ \text{FLOP}}{1{,}152\ \text{字节}} = 241.8\ \text{FLOP/字节}$$
#
# 这比 H200 的 206 大。所以上下文每多一个 token，整步的算术强度就升高一点，上一张表里 DeepSeek-V3 那一行的趋势因此相反。

# %% [markdown] key="break" lang="en"
# ## Break it
#
# Do these results hold on another card? Take the attention of DeepSeek-V3, with the same kernel, on four cards:
# %% [markdown] key="break" lang="zh" src="ea9e4d18"
# ## 弄坏它
#
# 换一块卡，前面的结论还成立吗？同样是 DeepSeek-V3 的注意力，同样的 kernel，放到四块卡上：

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
# So close to the ridge point, a data sheet can't decide it. The rate that a card really keeps up is lower than the printed one, which moves the ridge point to the left.
# "Decode attention is memory-bound" is therefore a rule of thumb. For this model on an H20 it is plainly wrong.
#
# Now break the units. This is one step of 16 sequences, once right and then with the three mistakes that people make most:
# %% [markdown] key="break_card_read" lang="zh" src="6057feb6"
# 按标称值，这个注意力在 H100 上访存受限，在 H200 上却计算受限，因为两者算力相同，而 H200 的显存更快。
# 离拐点这么近，光看标称值是判断不了的，因为显卡实际能维持的算力低于标称，拐点会随之左移。
# 所以“解码注意力是访存受限的”只是一条经验。例如对这个模型，在 H20 上它显然不成立。
#
# 再来把单位弄错。下面是 16 条序列的一步，先是正确的算法，然后是最常见的三种错误：

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
# The 7 % of GiB/s look harmless. But there are optimizations that bring less than that (see *In the wild*: one brought 5.2 %).
#
# One more: a model of 7 billion parameters in FP16 makes 100 tokens a second on an A100 with 2 TB/s. Which share of the bandwidth does it use?
# %% [markdown] key="break_units_read" lang="zh" src="a79a8098"
# 用 GiB/s 造成的 7% 看似不大，但有的优化带来的收益还不到 7%（例如“实战现场”里的 5.2%）。
#
# 再看一例：70 亿参数、FP16，在带宽 2 TB/s 的 A100 上每秒生成 100 个 token。它用上了多大比例的带宽？

# %% key="utilization" lang="en"
used = 7e9 * 2 * 100 / 1e9  # parameters x bytes x tokens a second
rows = [("7e9 x 2 x 100", f"{used:,.0f}", f"{used / 2000:.0%}"), ("without the 2 bytes", f"{700:,}", f"{700 / 2000:.0%}")]
Table(["calculation", "GB/s", "share of 2 TB/s"], rows, right=["GB/s", "share of 2 TB/s"])

# %% key="utilization" lang="zh"
used = 7e9 * 2 * 100 / 1e9  # 参数 × 字节 × 每秒 token 数
rows = [("7e9 × 2 × 100，完整", f"{used:,.0f}", f"{used / 2000:.0%}"), ("漏乘 2 个字节", f"{700:,}", f"{700 / 2000:.0%}")]
Table(["算法", "GB/s", "占 2 TB/s 的比例"], rows, right=["GB/s", "占 2 TB/s 的比例"])

# %% [markdown] key="self" lang="en"
# ## Recap
#
# A step takes at least the larger of bytes / bandwidth and FLOPs / FLOP rate: 7.62 ms for Llama-3.1-8B with 4,096 tokens on an A100, while its arithmetic needs 0.055 ms.
# All sequences share one reading of the weights, so in 16 bit their part reaches the ridge point of an H200 with about 206 sequences. Each sequence reads its own cache, so no batch changes the intensity of attention, and at 4,096 tokens each the whole step of Llama-3.1-8B never gets past 32 FLOP/byte.
# With a 16-bit cache, attention does 1 FLOP per byte in MHA, as many as the group has heads in GQA (4 in Llama-3.1-8B), and over 200 in absorbed MLA.
# A bandwidth belongs to a working set and to an order of reading: 32 threads that read from 32 places move 1,024 bytes for the 128 that they asked for.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="8ad0f7e5"
# ## 本课小结
#
# 一步的最短时间，是“字节数 / 带宽”和“FLOP / 算力”中较大的那个。例如 Llama-3.1-8B、4,096 个 token，在 A100 上是 7.62 毫秒，其中计算只需要 0.055 毫秒。
# 权重由整个 batch 共读一次，所以 16 位时，H200 上约 206 条序列就能让权重部分到达拐点；缓存则是每条序列各读一份，batch 再大，注意力的算术强度也不变，每条 4,096 个 token 时，Llama-3.1-8B 整步的算术强度怎么也超不过 32 FLOP/字节。
# 缓存为 16 位时，注意力每字节做的 FLOP 是：MHA 为 1，GQA 等于组的大小（Llama-3.1-8B 是 4），矩阵吸收后的 MLA 超过 200。
# 说带宽，必须同时说清工作集和读取的次序。例如 32 个线程从 32 个地方读，请求的是 128 字节，搬运的却是 1,024 字节。
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

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# In the exercise notebook of this lesson you write five functions:
#
# 1. `step_bytes`: what one step reads when its sequences have different lengths.
# 2. `attention_intensity`: FLOPs per byte of cache, from heads and dtype.
# 3. `step_floor`: the least time of a step, and which side it waits for.
# 4. `batch_at_ridge`: the smallest batch that is compute-bound, if there is one.
# 5. `sectors`: how many sectors of memory one warp's request touches.
# %% [markdown] key="exercises" lang="zh" src="cad90e7a"
# ## 练习
#
# 在本课的练习 notebook 里，你要写五个函数：
#
# 1. `step_bytes`：各序列长度不同时，一步读多少字节。
# 2. `attention_intensity`：由头数和数据类型算出每字节缓存的 FLOP。
# 3. `step_floor`：一步的最短时间，以及在等哪一方。
# 4. `batch_at_ridge`：最先变成计算受限的 batch，如果有的话。
# 5. `sectors`：一个 warp 的请求碰到多少个显存扇区。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | `nvidia-smi` says 100 %, tokens come slowly | `decode_work(model, batch, context).num_bytes / seconds_per_step / 1e9`: the GB/s that you reach. Near the card's figure, the GPU waits for memory and only fewer bytes help. Far below it, look at the kernels and at the gaps between them |
# | I measure more GB/s than the data sheet says | `levels(bandwidth_curve(), cache_sizes())`: the level that your working set lies in |
# | my kernel reaches a few percent of the bandwidth | `index_order(...)[:32]`, or the 32 addresses of one warp of yours: count the sectors (exercise 04.5) |
# %% [markdown] key="stuck" lang="zh" src="3b46ecb4"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | `nvidia-smi` 显示 100%，token 却出得慢 | `decode_work(model, batch, context).num_bytes / seconds_per_step / 1e9`：实际达到的 GB/s。接近标称值，说明 GPU 在等显存，只有减少字节才有用；远低于标称值，就去查 kernel 以及 kernel 之间的空隙 |
# | 测得的 GB/s 比标称还高 | `levels(bandwidth_curve(), cache_sizes())`：看工作集落在哪一层 |
# | 我的 kernel 只达到带宽的百分之几 | `index_order(...)[:32]`，或者你自己一个 warp 的 32 个地址：数一数扇区（练习 04.5） |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - In [TensorRT-LLM #1607](https://github.com/NVIDIA/TensorRT-LLM/issues/1607) a user of Whisper on an A10G saw 90 % GPU utilization and under 25 % of the tensor cores; half a year later the issue was closed without an answer. *The floor of a step* explains both numbers.
# - [transformers-benchmarks #4](https://github.com/mli/transformers-benchmarks/issues/4) measured 3,868 GB/s on an RTX 4090 and, on an A800, 1,727 GB/s, below the data sheet's 1,935. (The A800's L2 is 40 MB in two halves, and 32 MiB don't fit in one half: a likely reason, but we have not measured it.)
# - [ferrox #133](https://github.com/antonellof/ferrox/issues/133) reached 5.3 % of a card's bandwidth where llama.cpp reached 60.4 %, because each of 32 neighbouring threads read at the beginning of a block of its own. Its first coalesced kernel brought 5.2 % ([PR #144](https://github.com/antonellof/ferrox/pull/144)), and with those of the feed-forward layers one model went from 32.85 to 100.90 tokens a second ([PR #146](https://github.com/antonellof/ferrox/pull/146)).
# - [flashinfer #520](https://github.com/flashinfer-ai/flashinfer/issues/520) is the run with 40 query heads and 40 KV heads. [FlashMLA](https://github.com/deepseek-ai/FlashMLA/blob/main/docs/20250422-new-kernel-deep-dive.md) calculates with the 865 TFLOP/s that its H800 keeps up, not with its 990, and calls MLA's attention compute-bound.
# - A reader of a textbook [objected](https://github.com/chiphuyen/aie-book/issues/7) that 700 of 2,000 GB/s is 35 % and not 70 %. The 70 % is right: the 700 has lost the 2 bytes of a parameter.
# %% [markdown] key="wild" lang="zh" src="4e037334"
# ## 实战现场
#
# - [TensorRT-LLM #1607](https://github.com/NVIDIA/TensorRT-LLM/issues/1607)：一位用户在 A10G 上跑 Whisper，GPU 利用率约 90%，Tensor Core 利用率却不到 25%；半年后，该 issue 在没有答案的情况下关闭。这两个数字为什么同时出现，“一步的下限”一节已经说明。
# - [transformers-benchmarks #4](https://github.com/mli/transformers-benchmarks/issues/4)：RTX 4090 上测得 3,868 GB/s；同一个脚本在 A800 上测得 1,727 GB/s，低于标称的 1,935。（A800 的 L2 共 40 MB，分成两半，一半放不下 32 MiB：原因很可能在这里，不过我们没有实测。）
# - [ferrox #133](https://github.com/antonellof/ferrox/issues/133)：解码 kernel 只达到显卡带宽的 5.3%，而 llama.cpp 达到 60.4%，因为相邻的 32 个线程各自从自己那一块的开头读起。第一个合并访存的 kernel 带来 5.2%（[PR #144](https://github.com/antonellof/ferrox/pull/144)），前馈层的 kernel 也改好之后，有个模型从每秒 32.85 个 token 提高到 100.90 个（[PR #146](https://github.com/antonellof/ferrox/pull/146)）。
# - [flashinfer #520](https://github.com/flashinfer-ai/flashinfer/issues/520) 就是 40 个 query 头、40 个 KV 头的那次测试。[FlashMLA](https://github.com/deepseek-ai/FlashMLA/blob/main/docs/20250422-new-kernel-deep-dive.md) 按 H800 实际能维持的 865 TFLOP/s 计算，而不是标称的 990，于是把 MLA 的注意力算作计算受限。
# - 一位读者给一本教材[指出](https://github.com/chiphuyen/aie-book/issues/7)：700 除以 2,000 GB/s 是 35%，不是 70%。其实 70% 没错，错的是 700：每个参数的 2 个字节漏乘了。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You know what a step has to read, and that a larger batch makes the weights cheaper but not the cache.
# [Lesson 05](05_owned_and_borrowed.ipynb) asks which tensor owns these bytes while they are being read, and when they may be freed.
# %% [markdown] key="next" lang="zh" src="68cebeb9"
# ## 下一课
#
# 现在你知道一步要读多少字节，也知道增大 batch 只能摊薄权重，摊不薄缓存。
# [第 05 课](05_owned_and_borrowed.ipynb)接着问：这些字节正在被读取时，归哪个张量所有，什么时候可以释放。
