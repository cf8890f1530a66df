# %% [meta]
# number = "07"
# slug = "allocate_once"
# needs = ["05", "06"]
# rooms = ["memory.allocator"]
# [title]
# en = "What does malloc cost per token?"
# zh = "每个 token 的 malloc 要花多少？"
# [t4]
# en = "Everything runs. On a T4 the copies, the first touch and cudaMalloc are measured on the GPU, and one cell dumps and reads a real snapshot of its allocator."
# zh = "全部可以运行。有 T4 时，复制、首次写入和 cudaMalloc 都在 GPU 上测量，另有一个单元格会导出并读取分配器的真实快照。"
# [paper]
# en = "07.1, 07.2, 07.4"
# zh = "07.1、07.2、07.4"

# %% [markdown] key="question" lang="en"
# ## The question
#
# You free a large tensor and call `empty_cache()`. `nvidia-smi` still shows all the memory as used, and your next large tensor does not fit.
# Which memory is that, and why can't it be given back?
#
# **What happens between a tensor and the GPU, what does it cost for each token, and why does an engine allocate once?**
#
# We need no GPU to find out: minikv has a model of PyTorch's CUDA caching allocator that follows the rules of its source to the byte.
# Here are four calls to that model, with sizes from a real snapshot:
# %% [markdown] key="question" lang="zh" src="ae880fb9"
# ## 问题
#
# 你释放了一个大张量，又调用了 `empty_cache()`。可是 `nvidia-smi` 显示显存仍然全部占用，下一个大张量也放不下。
# 这是哪一部分显存？为什么还不回去？
#
# **张量和 GPU 之间发生了什么？每个 token 要为此付出多少？推理引擎为什么只分配一次？**
#
# 回答这些问题不需要 GPU，因为 minikv 里有一个 PyTorch CUDA 缓存分配器（caching allocator）的模型，规则取自它的源码，大小精确到字节。
# 下面对这个模型调用四次，就能重现上述现象，大小取自一份真实的快照：

# %% key="answer" lang="en"
from minikv.course.diagrams import segments
from minikv.memory import CachingAllocator

model = CachingAllocator()
large = model.malloc(11_643_387_904)
model.free(large)
model.malloc(16_515_072)
model.empty_cache()
show(segments(model, "en"))

# %% key="answer" lang="zh"
from minikv.course.diagrams import segments
from minikv.memory import CachingAllocator

model = CachingAllocator()
large = model.malloc(11_643_387_904)
model.free(large)
model.malloc(16_515_072)
model.empty_cache()
show(segments(model, "zh"))

# %% [markdown] key="able" lang="en"
# The large tensor left a **segment** behind, a piece of memory that torch got from the driver in one call. One small tensor moved in, and from then on more than 99 % of the segment can't go back to the GPU.
#
# After this lesson you can:
#
# - **compute** what a cache that grows by `torch.cat` copies, and measure how long that takes on your machine;
# - **follow** the allocator's three rules, and say which segment a request gets and which one `empty_cache()` returns;
# - **explain** why an engine makes one allocation and keeps it.
#
# You need two things from earlier lessons: a view borrows memory from a tensor that owns it ([lesson 05](05_owned_and_borrowed.ipynb)), and a linear cache writes each token into a slot ([lesson 06](06_the_linear_cache.ipynb)).
# %% [markdown] key="able" lang="zh" src="3763469a"
# 大张量留下了一个**段（segment）**，也就是 torch 一次向驱动要来的一整片显存。一个小张量住了进来，从此这个段的 99% 以上都还不回 GPU。
#
# 学完本课，你能够：
#
# - **算出**用 `torch.cat` 变长的缓存要复制多少字节，并测出在本机上要多久；
# - **运用**分配器的三条规则，说出一次请求会得到哪个段、`empty_cache()` 会归还哪个段；
# - **解释**推理引擎为什么只分配一次，然后一直留着。
#
# 本课用到前面的两点。视图是向拥有内存的张量借来的（[第 05 课](05_owned_and_borrowed.ipynb)），而线性缓存把每个 token 写进一个槽位（[第 06 课](06_the_linear_cache.ipynb)）。

# %% [markdown] key="grow" lang="en"
# ## A cache that grows
#
# Let's start where memory is requested most often.
# `DynamicCache` of transformers holds K and V of each layer in a tensor, and joins every new token to it: `self.keys = torch.cat([self.keys, new], dim=-2)`.
# The result is a new tensor, one token longer, so everything old is read and written again.
#
# For example, the step that makes the cache 1,025 tokens long reads 1,024 old tokens and the new one, and writes 1,025. In general, the step that makes $n$ tokens reads $n$ and writes $n$.
# Over all generated tokens the bytes that are read and written add up to the left side; on the right is a cache like [lesson 06](06_the_linear_cache.ipynb)'s, allocated once, where each token goes to its slot:
#
# $$\underbrace{\sum_{n=p+1}^{p+g} 2\, n\, B\, t}_{\text{joined}} = B\, t\, g\, (2p + g + 1) \qquad\qquad \underbrace{2\, g\, B\, t}_{\text{written to slots}}$$
#
# | symbol | meaning | value here |
# |---|---|---|
# | $B$ | sequences in the batch | 1 |
# | $t$ | bytes of a token, in all layers (Llama-3.1-8B, bf16) | 131,072 |
# | $p$ | tokens of the prompt | 1,024 |
# | $g$ | generated tokens | 256 |
#
# Joined: $1 \cdot 131{,}072 \cdot 256 \cdot (2 \cdot 1{,}024 + 256 + 1) = 77{,}342{,}965{,}760$ B, about 72 GiB. Written to slots: $2 \cdot 256 \cdot 131{,}072 = 67{,}108{,}864$ B, or 64 MiB.
# On the left $g$ appears squared: twice as many tokens cost more than twice as much, and nearly four times once $g$ is far above $2p$. The right side grows only with $g$.
# %% [markdown] key="grow" lang="zh" src="a9dd0094"
# ## 不断变大的缓存
#
# 先看显存申请最频繁的地方。
# transformers 的 `DynamicCache` 把每层的 K 和 V 各放在一个张量里，每来一个 token 就拼接一次，即 `self.keys = torch.cat([self.keys, new], dim=-2)`。
# 拼接得到的是一个长了一个 token 的新张量，所以旧内容要全部重新读一遍、写一遍。
#
# 例如缓存变成 1,025 个 token 的那一步，要读 1,024 个旧 token 和 1 个新 token，再写 1,025 个。一般地，让缓存达到 $n$ 个 token 的那一步，读 $n$ 个，写 $n$ 个。
# 把所有生成步骤的读写字节数加起来，就是下式左边。右边是[第 06 课](06_the_linear_cache.ipynb)那样的缓存，只分配一次，每个 token 写进自己的槽位。
#
# $$\underbrace{\sum_{n=p+1}^{p+g} 2\, n\, B\, t}_{\text{拼接}} = B\, t\, g\, (2p + g + 1) \qquad\qquad \underbrace{2\, g\, B\, t}_{\text{写入槽位}}$$
#
# | 符号 | 含义 | 本例取值 |
# |---|---|---|
# | $B$ | batch 里的序列数 | 1 |
# | $t$ | 一个 token 在所有层的字节数（Llama-3.1-8B，bf16） | 131,072 |
# | $p$ | 提示词的 token 数 | 1,024 |
# | $g$ | 生成的 token 数 | 256 |
#
# 代入数字。拼接：$1 \cdot 131{,}072 \cdot 256 \cdot (2 \cdot 1{,}024 + 256 + 1) = 77{,}342{,}965{,}760$ B，约 72 GiB；写入槽位：$2 \cdot 256 \cdot 131{,}072 = 67{,}108{,}864$ B，即 64 MiB。
# 左边含有 $g$ 的平方，也就是说，生成的 token 加倍，代价不止加倍，$g$ 远大于 $2p$ 时接近四倍。右边只与 $g$ 成正比。

# %% key="predict_copied"
predict("copied", ...)

# %% key="copied" lang="en"
from minikv.course import Table
from minikv.course.charts import bars, lines
from minikv.plan import CacheSpec, find_gpu, find_model, weight_bytes

spec, prompt = CacheSpec.from_config("Llama-3.1-8B"), 1024
token, counts = spec.bytes_for(1), (256, 1024, 4096)
joined = [token * steps * (2 * prompt + steps + 1) / 2**30 for steps in counts]
slots = [2 * steps * token / 2**30 for steps in counts]
parts = {"joined": joined, "written to slots": slots, "attention reads": [size / 2 for size in joined]}
show(bars([f"{steps:,} tokens generated" for steps in counts], parts, x="GiB, log scale", log=True))

# %% key="copied" lang="zh"
from minikv.course import Table
from minikv.course.charts import bars, lines
from minikv.plan import CacheSpec, find_gpu, find_model, weight_bytes

spec, prompt = CacheSpec.from_config("Llama-3.1-8B"), 1024
token, counts = spec.bytes_for(1), (256, 1024, 4096)
joined = [token * steps * (2 * prompt + steps + 1) / 2**30 for steps in counts]
slots = [2 * steps * token / 2**30 for steps in counts]
parts = {"拼接": joined, "写入槽位": slots, "注意力读取": [size / 2 for size in joined]}
show(bars([f"生成 {steps:,} 个 token" for steps in counts], parts, x="GiB（对数坐标）", log=True))

# %% [markdown] key="copied_read" lang="en"
# The third bar is what attention itself has to read: in every step, all the tokens.
# So decoding is quadratic already, with or without joining. Joining makes the cache's traffic three times as large, because the cache is read and written once to grow, and read once more to be used.
# (Each step also reads the weights, once for the whole batch. You notice the extra traffic where the cache is not small compared with the weights: with long sequences and large batches.)
#
# How long does it take on this machine?
# We take one layer's K of one sequence in bf16 and add one token; on a CPU we use one core. Each time is the best of 30:
# %% [markdown] key="copied_read" lang="zh" src="b2ecc6f2"
# 每组的第三条是注意力本来就要读的，因为每一步都要读全部 token。
# 所以解码的平方级增长本来就有，与拼接无关。拼接的影响是让缓存的访存量变成三倍，因为为了变长要读一遍、写一遍，为了使用还要再读一遍。
# （每一步还要读一遍权重，整个 batch 共用这一遍。因此，缓存与权重相比不算小的时候，也就是序列长、batch 大的时候，多出的访存才明显。）
#
# 在这台机器上要花多少时间？
# 取一层的 K，一条序列，bf16，每次加一个 token；在 CPU 上只用一个核。每个时间都是 30 次中最快的一次：

# %% key="time_token" tags="timing" lang="en"
import time

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_num_threads(1)  # on a CPU: extra threads make the timings noisy


def best_us(work, repeats=30):
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(1e6 * (time.perf_counter() - begin))
    return min(times)

# %% key="time_token" tags="timing" lang="zh"
import time

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_num_threads(1)  # 在 CPU 上，多开线程只会让计时更不稳定


def best_us(work, repeats=30):
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(1e6 * (time.perf_counter() - begin))
    return min(times)

# %% key="time_drawn" tags="timing" lang="en"
def new_k(tokens):  # [batch, KV heads, tokens, head_dim]
    return torch.zeros(1, 8, tokens, 128, dtype=torch.bfloat16, device=device)


names = ("torch.cat", "torch.cat into existing memory", "one slot")
found = {name: {} for name in names}
for length in (256, 1024, 4096, 16_384, 32_768):
    old, room, one = new_k(length - 1), new_k(length), new_k(1)
    found[names[0]][length] = best_us(lambda: torch.cat([old, one], dim=2))  # [1, 8, length, 128], in new memory
    found[names[1]][length] = best_us(lambda: torch.cat([old, one], dim=2, out=room))
    found[names[2]][length] = best_us(lambda: room[:, :, length - 1 : length].copy_(one))  # [1, 8, 1, 128]: the last slot
show(lines(found, x="tokens in the cache", y="us", log="xy"))

# %% key="time_drawn" tags="timing" lang="zh"
def new_k(tokens):  # [batch, KV 头数, token 数, head_dim]
    return torch.zeros(1, 8, tokens, 128, dtype=torch.bfloat16, device=device)


names = ("torch.cat 拼接", "拼接到现成的内存", "写一个槽位")
found = {name: {} for name in names}
for length in (256, 1024, 4096, 16_384, 32_768):
    old, room, one = new_k(length - 1), new_k(length), new_k(1)
    found[names[0]][length] = best_us(lambda: torch.cat([old, one], dim=2))  # [1, 8, length, 128]，在新内存里
    found[names[1]][length] = best_us(lambda: torch.cat([old, one], dim=2, out=room))
    found[names[2]][length] = best_us(lambda: room[:, :, length - 1 : length].copy_(one))  # [1, 8, 1, 128]：最后一个槽位
show(lines(found, x="缓存里的 token 数", y="us", log="xy"))

# %% [markdown] key="peak_words" lang="en"
# Writing a slot takes the same time however long the cache is.
# The second line joins into existing memory (`out=`): the same copy, but no new memory.
# So the distance between the first two lines is the price of malloc and of the new memory.
# On a CPU that price can be far above the price of the copy. The section "Empty or zeros" shows why. On a GPU an allocator keeps it small, and that allocator is our subject from here on.
#
# Joining also needs room, because the old and the new tensor exist at the same time while it copies.
# In the last step below these are 1,039 and 1,040 tokens of K, $8 \cdot 128 \cdot 2 = 2{,}048$ B each, and the new token itself: $(1{,}039 + 1{,}040 + 1) \cdot 2{,}048 = 4{,}259{,}840$ B.
# With slots there is only the cache and one new token of 2,048 B.
# `measure_peak` counts what was alive at once while a function ran:
# %% [markdown] key="peak_words" lang="zh" src="6ee97339"
# 写一个槽位的时间与缓存长短无关。
# 第二条线是拼接到现成的内存里（`out=`），复制的内容相同，只是不必另要内存。
# 所以前两条线之间的距离，就是 malloc 和新内存的代价。
# 在 CPU 上，这个代价可能比复制大得多，原因见后面的“empty 还是 zeros”一节。在 GPU 上，有一个分配器专门让它变小，本课接下来讲的就是它。
#
# 拼接还需要空间，因为复制期间旧张量和新张量同时存在。
# 在下面的最后一步，旧的有 1,039 个 token，新的有 1,040 个，再加上新 token 自己；每个 token 的 K 占 $8 \cdot 128 \cdot 2 = 2{,}048$ B，合计 $(1{,}039 + 1{,}040 + 1) \cdot 2{,}048 = 4{,}259{,}840$ B。写槽位时，缓存之外只多出一个新 token 的 2,048 B。
# `measure_peak` 统计一个函数运行期间，同时存活的显存最多有多少：

# %% key="peak" tags="hardware" lang="en"
from minikv.memory import MemoryStats, measure_peak


def grow_by_cat():
    k = new_k(1024)
    for _ in range(16):
        k = torch.cat([k, new_k(1)], dim=2)  # [1, 8, n, 128] -> [1, 8, n + 1, 128]


def grow_in_slots():
    k = new_k(1024 + 16)
    for place in range(1024, 1024 + 16):
        k[:, :, place : place + 1] = new_k(1)


peaks = [(name, measure_peak(work).extra) for name, work in {"torch.cat": grow_by_cat, "slots": grow_in_slots}.items()]
Table(["16 tokens added to 1,024", "alive at once (B)"], [*peaks, ("the finished cache", new_k(1040).nbytes)])

# %% key="peak" tags="hardware" lang="zh"
from minikv.memory import MemoryStats, measure_peak


def grow_by_cat():
    k = new_k(1024)
    for _ in range(16):
        k = torch.cat([k, new_k(1)], dim=2)  # [1, 8, n, 128] -> [1, 8, n + 1, 128]


def grow_in_slots():
    k = new_k(1024 + 16)
    for place in range(1024, 1024 + 16):
        k[:, :, place : place + 1] = new_k(1)


peaks = [(name, measure_peak(work).extra) for name, work in {"torch.cat": grow_by_cat, "写槽位": grow_in_slots}.items()]
Table(["1,024 个 token，再加 16 个", "同时存活（B）"], [*peaks, ("完成后的缓存", new_k(1040).nbytes)])

# %% [markdown] key="ladder_words" lang="en"
# ## How long is a millisecond?
#
# A malloc is often said to take a millisecond. To judge such a number we need a scale, so let's measure the smallest thing that memory does: one load.
#
# The method is **pointer chasing**. An array holds a random cycle: each number is the place of the next one. We follow it step by step, and no step can begin before the last load has ended.
# If the whole array fits into the CPU's first cache, each load is fast. The larger the array, the farther away its bytes are:
# %% [markdown] key="ladder_words" lang="zh" src="a643905d"
# ## 一毫秒有多长？
#
# 常听说一次 malloc 要一毫秒。要判断这个数是大是小，先得有一把尺子。我们来测内存能做的最小的一件事，也就是一次读取（load）。
#
# 方法叫**指针追逐（pointer chasing）**。数组里存着一个随机的环，每个数都是下一个数的位置。我们沿着环一步一步走，上一次读取没有结束，下一次就无法开始。
# 如果整个数组放得进 CPU 的一级缓存，每次读取都很快；数组越大，数据就离得越远。

# %% key="ladder" tags="timing" lang="en"
from minikv.course.lessons.l07.pointer_chase import load_ns

ladder = {2**power // 1024: load_ns(2**power) for power in range(14, 28)}  # 16 KiB to 128 MiB
show(lines({"one load": ladder}, x="KiB that the walk goes through", y="ns", log="xy"))

# %% key="ladder" tags="timing" lang="zh"
from minikv.course.lessons.l07.pointer_chase import load_ns

ladder = {2**power // 1024: load_ns(2**power) for power in range(14, 28)}  # 16 KiB 到 128 MiB
show(lines({"一次读取": ladder}, x="走过的范围（KiB）", y="ns", log="xy"))

# %% [markdown] key="ladder_read" lang="en"
# You see the **latency ladder**: a few nanoseconds on the lowest step, which is the first cache, and one to a few hundred at the top, which is memory. A GPU has the same ladder, with higher steps.
# One millisecond is 1,000,000 ns. With 200 ns a load it is as long as 1,000,000 / 200 = 5,000 loads from memory, one after the other.
#
# And what does a request to the GPU's driver take? On a GPU the next cell measures it: 256 MiB after `empty_cache()`, when torch has to call `cudaMalloc`, and the same 256 MiB again, when torch still has the block.
# %% [markdown] key="ladder_read" lang="zh" src="a36e4d20"
# 这条曲线叫**延迟阶梯（latency ladder）**。最低一级是一级缓存，只要几纳秒；最高一级是内存，一百到几百纳秒。GPU 也有这样的阶梯，只是每一级都更高。
# 一毫秒是 1,000,000 ns。按每次读取 200 ns 算，它相当于 1,000,000 / 200 = 5,000 次内存读取，一次接一次。
#
# 那么向 GPU 驱动请求一次显存要多久？有 GPU 时，下一个单元格会实测两种情况。一种是在 `empty_cache()` 之后申请 256 MiB，torch 必须调用 `cudaMalloc`；另一种是释放后再申请同样的 256 MiB，这时块还在 torch 手里。

# %% key="cuda_malloc" tags="hardware" lang="en"
took = {"from the driver (cudaMalloc)": [], "from torch's own cache": []}
for _ in range(10 if device == "cuda" else 0):
    torch.cuda.empty_cache()
    for times in took.values():
        begin = time.perf_counter()
        block = torch.empty(2**28, dtype=torch.uint8, device=device)
        times.append(1e6 * (time.perf_counter() - begin))
        del block
Table(["256 MiB on the GPU", "us"], [(name, min(times) if times else "no GPU here") for name, times in took.items()])

# %% key="cuda_malloc" tags="hardware" lang="zh"
took = {"来自驱动（cudaMalloc）": [], "来自 torch 自己的缓存": []}
for _ in range(10 if device == "cuda" else 0):
    torch.cuda.empty_cache()
    for times in took.values():
        begin = time.perf_counter()
        block = torch.empty(2**28, dtype=torch.uint8, device=device)
        times.append(1e6 * (time.perf_counter() - begin))
        del block
Table(["GPU 上的 256 MiB", "us"], [(name, min(times) if times else "这里没有 GPU") for name, times in took.items()])

# %% [markdown] key="malloc" lang="en"
# ## Is it the malloc?
#
# A common argument for allocating once goes like this: every token calls `cudaMalloc`, which takes 1 ms, and computing it takes 30 ms. With one allocation at the start, say of 10 ms, all other calls disappear. Its arithmetic is right:
# %% [markdown] key="malloc" lang="zh" src="17097f27"
# ## 是 malloc 的错吗？
#
# 主张只分配一次的文章常这样算账。每个 token 都要调用一次 `cudaMalloc`，每次 1 ms，而计算要 30 ms；启动时一次分配好，哪怕要 10 ms，此后的调用就都没有了。算术没有错：

# %% key="malloc_share" lang="en"
rows = [("a malloc a token", f"{1 / (1 + 30):.1%}"), ("all at the start, 10 ms", f"{10 / (10 + 100 * 30):.1%}")]
Table(["1 ms of malloc, 30 ms of computing, 100 tokens", "wasted"], rows, right=["wasted"])

# %% key="malloc_share" lang="zh"
rows = [("每个 token 一次 malloc", f"{1 / (1 + 30):.1%}"), ("启动时一次分配好，10 ms", f"{10 / (10 + 100 * 30):.1%}")]
Table(["malloc 1 ms、计算 30 ms、100 个 token", "浪费"], rows, right=["浪费"])

# %% [markdown] key="malloc_read" lang="en"
# Its premise is wrong, because PyTorch does not call `cudaMalloc` for every tensor.
# It gets *segments* from the driver, cuts *blocks* out of them, and keeps each freed block for the next request.
# This part of PyTorch is the **caching allocator**.
#
# Let's count. In minikv's model of it a cache grows by 512 tokens with `torch.cat`, K and V of all 32 layers, on a device of unlimited memory.
# These are 64 tensors, and each is requested once for the prompt and once for every token: $64 \cdot 513 = 32{,}832$ requests.
# (This is the cache alone; a real forward allocates and frees much more in between.)
# %% [markdown] key="malloc_read" lang="zh" src="d6a9263d"
# 但前提不成立，因为 PyTorch 不会为每个张量调用 `cudaMalloc`。
# 它向 GPU 驱动（driver）成段地要显存，再从段里切出**分配器块**；释放的块自己留着，供下次请求使用。
# PyTorch 的这一部分就是**缓存分配器（caching allocator）**。
#
# 我们来数一数。在 minikv 的分配器模型里，用 `torch.cat` 让缓存增长 512 个 token，32 层的 K 和 V 全都算上，设备显存不设上限。
# 共 64 个张量，每个为提示词请求一次，此后每个 token 再请求一次：$64 \cdot 513 = 32{,}832$ 次。
# （这里只有缓存本身；真实的前向计算在其间还有许多别的分配和释放。）

# %% key="grow_model" lang="en"
def grow(allocator, batch, prompt, steps, watch=None):
    tensors = 2 * len(spec.layers)  # K and V of each layer
    row = batch * token // tensors  # bytes that one token adds to each tensor
    held = [allocator.malloc(prompt * row) for _ in range(tensors)]
    for tokens in range(prompt + 1, prompt + steps + 1):
        for place, old in enumerate(held):
            held[place] = allocator.malloc(tokens * row)
            allocator.free(old)
        if watch is not None:
            watch[tokens] = allocator.usage()
    return tensors * (steps + 1)

# %% key="grow_model" lang="zh"
def grow(allocator, batch, prompt, steps, watch=None):
    tensors = 2 * len(spec.layers)  # 每层的 K 和 V
    row = batch * token // tensors  # 一个 token 给每个张量增加的字节数
    held = [allocator.malloc(prompt * row) for _ in range(tensors)]
    for tokens in range(prompt + 1, prompt + steps + 1):
        for place, old in enumerate(held):
            held[place] = allocator.malloc(tokens * row)
            allocator.free(old)
        if watch is not None:
            watch[tokens] = allocator.usage()
    return tensors * (steps + 1)

# %% key="grow_counted" lang="en"
rows = []
for batch in (1, 8, 32):
    model, watched = CachingAllocator(), {}
    mallocs = grow(model, batch, 512, 512, watched if batch == 32 else None)
    calls, usage = model.memory_stats()["num_device_alloc"], model.usage()
    sizes = (f"{usage.allocated / 2**30:.2f}", f"{usage.reserved / 2**30:.2f}")
    rows.append((batch, mallocs, calls, *sizes))
head = ["batch", "requests", "reach the driver", "allocated (GiB)", "reserved (GiB)"]
Table(head, rows, right=head[3:])

# %% key="grow_counted" lang="zh"
rows = []
for batch in (1, 8, 32):
    model, watched = CachingAllocator(), {}
    mallocs = grow(model, batch, 512, 512, watched if batch == 32 else None)
    calls, usage = model.memory_stats()["num_device_alloc"], model.usage()
    sizes = (f"{usage.allocated / 2**30:.2f}", f"{usage.reserved / 2**30:.2f}")
    rows.append((batch, mallocs, calls, *sizes))
head = ["batch", "请求次数", "到达驱动", "已分配（GiB）", "已保留（GiB）"]
Table(head, rows, right=head[3:])

# %% [markdown] key="calls_read" lang="en"
# With one sequence, 39 of 32,832 requests reach the driver, so a `cudaMalloc` is a rare event.
# But look at the last row. The cache itself is 4 GiB, and the allocator has reserved 51.77 GiB, almost 13 times as much.
# No tensor leaked, and nothing else ran. Here is that run, token by token:
# %% [markdown] key="calls_read" lang="zh" src="7e2a87f1"
# 只有一条序列时，32,832 次请求里只有 39 次到达驱动，所以 `cudaMalloc` 很少发生。
# 但请看最后一行，缓存本身是 4 GiB，分配器保留（reserved）的却有 51.77 GiB，将近 13 倍。
# 没有张量泄漏，也没有别的东西在运行。下面按 token 数画出这一次的过程：

# %% key="grow_drawn" lang="en"
seen = {tokens: usage for tokens, usage in watched.items() if tokens % 8 == 0}  # a point every 8 tokens
taken = {
    "reserved": {tokens: round(usage.reserved / 2**30, 2) for tokens, usage in seen.items()},
    "allocated to tensors": {tokens: round(usage.allocated / 2**30, 2) for tokens, usage in seen.items()},
}
show(lines(taken, x="tokens in the cache, batch 32", y="GiB", steps=True))

# %% key="grow_drawn" lang="zh"
seen = {tokens: usage for tokens, usage in watched.items() if tokens % 8 == 0}  # 每 8 个 token 一个点
taken = {
    "已保留": {tokens: round(usage.reserved / 2**30, 2) for tokens, usage in seen.items()},
    "已分配给张量": {tokens: round(usage.allocated / 2**30, 2) for tokens, usage in seen.items()},
}
show(lines(taken, x="缓存里的 token 数，batch 为 32", y="GiB", steps=True))

# %% [markdown] key="grow_drawn_read" lang="en"
# Whenever K and V outgrow the blocks that were freed, the allocator adds another set of segments, and none of the old ones goes back.
# To see why, you need three rules.
# %% [markdown] key="grow_drawn_read" lang="zh" src="3cf6f25c"
# 每当 K 和 V 大到已释放的块都放不下时，分配器就再添一批段，而旧的段一个也不归还。
# 要明白原因，先要知道三条规则。

# %% [markdown] key="rules" lang="en"
# ## Three rules
#
# **Rounding.** A request of $s$ bytes is rounded to $r$ bytes. If no cached block fits, the allocator asks the driver for a segment of $S$ bytes:
#
# $$r = 512 \left\lceil \frac{s}{512} \right\rceil \qquad S = \begin{cases} 2\ \text{MiB} & r \le 1\ \text{MiB} \\ 20\ \text{MiB} & 1\ \text{MiB} < r < 10\ \text{MiB} \\ 2\ \text{MiB} \cdot \left\lceil r / 2\ \text{MiB} \right\rceil & r \ge 10\ \text{MiB} \end{cases}$$
#
# | symbol | meaning | value here |
# |---|---|---|
# | $s$ | the request, in bytes | 10,485,160 |
# | $r$ | the request, rounded up to whole units of 512 B | 10,485,248 |
# | $S$ | the segment that the driver is asked for | 20,971,520 |
#
# This request is 600 B short of 10 MiB. $512 \cdot \lceil 10{,}485{,}160 / 512 \rceil = 512 \cdot 20{,}479 = 10{,}485{,}248$, which is still below 10 MiB, so the segment has 20 MiB.
#
# **Choosing.** There are two pools: *small* for requests up to 1 MiB, *large* for the others.
# A request gets the smallest free block of its own pool and its own stream that is large enough (best fit). Of equal ones it gets the one with the lowest address.
# (A *stream* is a queue of GPU work. A program that makes none has one.)
#
# **Splitting.** What is left of the block becomes a block of its own: in the small pool if it is at least 512 B, in the large pool if it is more than 1 MiB. A smaller remainder stays with the block, unused.
# When a block is freed, it merges with free neighbours, but only inside its segment.
#
# Two consequences to keep in mind: **blocks never move, and segments never merge.**
# %% [markdown] key="rules" lang="zh" src="15fbd964"
# ## 三条规则
#
# **取整。** $s$ 字节的请求取整为 $r$ 字节；如果没有合适的空闲块，分配器就向驱动要一个 $S$ 字节的段：
#
# $$r = 512 \left\lceil \frac{s}{512} \right\rceil \qquad S = \begin{cases} 2\ \text{MiB} & r \le 1\ \text{MiB} \\ 20\ \text{MiB} & 1\ \text{MiB} < r < 10\ \text{MiB} \\ 2\ \text{MiB} \cdot \left\lceil r / 2\ \text{MiB} \right\rceil & r \ge 10\ \text{MiB} \end{cases}$$
#
# | 符号 | 含义 | 本例取值 |
# |---|---|---|
# | $s$ | 请求的字节数 | 10,485,160 |
# | $r$ | 向上取整到 512 B 的整数倍 | 10,485,248 |
# | $S$ | 向驱动要的段 | 20,971,520 |
#
# 这个请求比 10 MiB 少 600 B。$512 \cdot \lceil 10{,}485{,}160 / 512 \rceil = 512 \cdot 20{,}479 = 10{,}485{,}248$，仍然小于 10 MiB，所以段是 20 MiB。
#
# **挑选。** 内存池有两个。不超过 1 MiB 的请求归小块内存池（small），其余归大块内存池（large）。
# 请求得到的，是同一个池、同一个流（stream）里放得下它的最小空闲块（最佳适配，best fit）；大小相同时，取地址最低的。
# （流是 GPU 上的计算队列；程序自己不建，就只有一个。）
#
# **切分。** 剩余部分成为一个新的空闲块。小块内存池里至少剩 512 B 就切，大块内存池里要剩得超过 1 MiB 才切。不到的就留在块里，用不上。
# 块释放时，会与相邻的空闲块合并，但只限于同一个段之内。
#
# 由此要记住两点：**块从不移动，段从不合并。**

# %% key="predict_segment"
predict("segment", ...)

# %% key="rounding" lang="en"
from minikv.memory.allocator.rules import round_size, segment_size

MIB, off, rows = 2**20, (1,) * 16, []
for size in (1, 512, 513, MIB, MIB + 1, 10 * MIB - 600, 10 * MIB - 500, 21 * MIB):
    rounded = round_size(size, off)
    segment = segment_size(rounded)
    rows.append((size, rounded, segment, segment - rounded))
Table(["request (B)", "rounded (B)", "segment (B)", "left over (B)"], rows)

# %% key="rounding" lang="zh"
from minikv.memory.allocator.rules import round_size, segment_size

MIB, off, rows = 2**20, (1,) * 16, []
for size in (1, 512, 513, MIB, MIB + 1, 10 * MIB - 600, 10 * MIB - 500, 21 * MIB):
    rounded = round_size(size, off)
    segment = segment_size(rounded)
    rows.append((size, rounded, segment, segment - rounded))
Table(["请求（B）", "取整（B）", "段（B）", "剩余（B）"], rows)

# %% [markdown] key="rounding_read" lang="en"
# What is left of a segment serves later requests.
# Only the last row wastes it, because in the large pool a remainder of exactly 1 MiB is not more than 1 MiB.
# (`off` says that the setting `roundup_power2_divisions` is not in use.)
#
# ## See it: tokens that grow
#
# Now we look closely at the run that reserved 51.77 GiB, the one with a batch of 32: one layer's K alone, drawn every 32 tokens.
# 32 sequences that grow by 32 tokens of 2,048 B make K larger by $32 \cdot 32 \cdot 2{,}048$ B, exactly 2 MiB, and segments come in multiples of 2 MiB.
# Go through the steps with Back and Forward.
# Each new K is larger than every block that was freed, so the rules leave one way: another segment.
# (The other setting, `expandable_segments`, has a section of its own further down.)
# %% [markdown] key="rounding_read" lang="zh" src="9f51e203"
# 段里剩下的部分，会用来满足之后的请求。
# 只有最后一行是白白剩下的，因为在大块内存池里，恰好 1 MiB 不算超过 1 MiB。
# （`off` 表示没有使用 `roundup_power2_divisions` 这项设置。）
#
# ## 看一看：token 不断增加
#
# 把保留了 51.77 GiB 的那一次（batch 为 32）拿来细看，只看一层的 K，每 32 个 token 画一次。
# 32 条序列各多 32 个 token，每个 2,048 B，K 就大 $32 \cdot 32 \cdot 2{,}048$ B，恰好 2 MiB，而段的大小正是 2 MiB 的倍数。
# 用“后退”“前进”逐步查看。
# 每个新的 K 都比已释放的任何一个块大，按规则只能再要一个段。
# （另一项设置 `expandable_segments`，后面有专门的一节。）

# %% key="story_cat" lang="en"
from minikv.course.lessons.l07.stories import as_trace, batch_steps, joined_steps, next_batch
from minikv.course.widgets.segments import SegmentsWidget
from minikv.memory import AllocatorSettings

k_token = 32 * token // (2 * len(spec.layers))  # bytes of a token in one layer's K, batch 32
steps = joined_steps(k_token, range(512, 672, 32), "en")
expandable = AllocatorSettings(expandable_segments=True)
choices = {"defaults": AllocatorSettings(), "expandable_segments": expandable}
widget = SegmentsWidget("en", steps=steps, capacity=640 * MIB, settings=choices, stop_at=len(steps) - 1)
show(widget, text=widget.summary)

# %% key="story_cat" lang="zh"
from minikv.course.lessons.l07.stories import as_trace, batch_steps, joined_steps, next_batch
from minikv.course.widgets.segments import SegmentsWidget
from minikv.memory import AllocatorSettings

k_token = 32 * token // (2 * len(spec.layers))  # batch 为 32 时，一个 token 在一层 K 里的字节数
steps = joined_steps(k_token, range(512, 672, 32), "zh")
expandable = AllocatorSettings(expandable_segments=True)
choices = {"默认设置": AllocatorSettings(), "expandable_segments": expandable}
widget = SegmentsWidget("zh", steps=steps, capacity=640 * MIB, settings=choices, stop_at=len(steps) - 1)
show(widget, text=widget.summary)

# %% [markdown] key="story_cat_read" lang="en"
# Every freed block is too small for the next K, and no two of them can merge, because each is a segment of its own.
# In that run all 64 tensors go up one step of this staircase every 32 tokens, so 16 steps in 512 tokens.
# Old and new exist at the same time, so each step takes 65 segments: one for each tensor, and a spare one that passes from tensor to tensor.
# With the 64 of the prompt there are $64 + 16 \cdot 65 = 1{,}104$ requests to the driver.
#
# The staircase goes on until the device is full. Then the allocator waits for the GPU, gives back all it has cached, and begins again (`num_alloc_retries` counts how often).
# Here `empty_cache()` helps, because each freed block is a whole segment.
# %% [markdown] key="story_cat_read" lang="zh" src="75536cd9"
# 释放的每个块都放不下下一个 K，彼此又不能合并，因为各自就是一整个段。
# 在那次运行里，64 个张量每 32 个 token 一齐上一级台阶，512 个 token 共 16 级。又因为新旧并存，还要多一个备用的段在它们之间轮换，所以每级台阶要 65 个段；加上提示词的 64 个，向驱动请求的次数是 $64 + 16 \cdot 65 = 1{,}104$。
#
# 就这样一级一级涨上去，直到设备满了。这时分配器等 GPU 完成计算，把缓存着的全部归还，再从头来过（次数记在 `num_alloc_retries` 里）。
# 这种情况下 `empty_cache()` 管用，因为释放的每个块都是一整个段。

# %% [markdown] key="big" lang="en"
# ## See it: free, keep, empty
#
# The second story needs no loop.
# Llama-3.1-8B runs on an RTX 4090, of which torch sees 23.64 GiB, with [lesson 06](06_the_linear_cache.ipynb)'s cache: one tensor, batch 48, room for 1,024 tokens.
# A second cache of this size does not fit next to the first, so the next batch waits until this one is done.
# Then the script
#
# 1. **frees** the cache;
# 2. **keeps** something small, the fp32 logits of the last step, to score them later;
# 3. **empties** torch's cache with `empty_cache()`, and starts the next batch.
# %% [markdown] key="big" lang="zh" src="7a5de2b6"
# ## 看一看：释放、留下、清空
#
# 第二个故事不需要循环。
# 在一块 RTX 4090（torch 看到 23.64 GiB）上运行 Llama-3.1-8B，用[第 06 课](06_the_linear_cache.ipynb)的缓存，即一个张量，batch 为 48，可放 1,024 个 token。
# 卡上放不下第二个这么大的缓存，所以下一批要等这一批结束。
# 这一批结束之后，脚本做三件事：
#
# 1. **释放**缓存；
# 2. **留下**一样小东西，也就是最后一步的 fp32 logits，准备以后打分；
# 3. 用 `empty_cache()` **清空** torch 缓存着的显存，然后开始下一批。

# %% key="predict_stuck"
predict("stuck", ...)

# %% key="story_big" lang="en"
card, batch = find_gpu("RTX 4090").total_bytes, 48
weights = weight_bytes("Llama-3.1-8B").total
cache = spec.bytes_for(1024, batch=batch)
config = find_model("Llama-3.1-8B").config
logits = batch * config["vocab_size"] * 4  # [48, 128256] in fp32
story = batch_steps(weights, cache, logits, lang="en")
choices["max_split_size_mb:512"] = AllocatorSettings(max_split_size_mb=512)
widget = SegmentsWidget("en", steps=story, capacity=card, settings=choices)
show(widget, text=widget.summary)

# %% key="story_big" lang="zh"
card, batch = find_gpu("RTX 4090").total_bytes, 48
weights = weight_bytes("Llama-3.1-8B").total
cache = spec.bytes_for(1024, batch=batch)
config = find_model("Llama-3.1-8B").config
logits = batch * config["vocab_size"] * 4  # [48, 128256]，fp32
story = batch_steps(weights, cache, logits, lang="zh")
choices["max_split_size_mb:512"] = AllocatorSettings(max_split_size_mb=512)
widget = SegmentsWidget("zh", steps=story, capacity=card, settings=choices)
show(widget, text=widget.summary)

# %% [markdown] key="big_read" lang="en"
# The logits needed 23.5 MiB.
# The smallest free block that was large enough was the cache's own, so they were cut out of it. A segment with one live block stays, whatever its size.
# So the next batch, no larger than the first, is out of memory.
#
# What could the script have done? It could have kept the logits *before* it freed the cache.
# Here are both orders next to each other, each bar the whole card after one call:
# %% [markdown] key="big_read" lang="zh" src="7441603b"
# logits 只要 23.5 MiB。
# 放得下它的最小空闲块，就是缓存留下的那一块，于是从里面切出一块给它；而只要有一个块还活着，整个段就留在原地，不论多大。
# 所以下一批虽然并不比第一批大，却显存不足。
#
# 脚本本来可以怎么做？可以先留下 logits，**再**释放缓存。
# 下面把两种次序并排画出来，每一条都是一次调用之后整张卡的显存（free、keep、empty 依次指释放缓存、留下 logits、清空）：

# %% key="orders_drawn" lang="en"
from minikv.course.diagrams import segment_moments

wrong, right = "free, keep, empty", "keep, free, empty"
orders = {order: batch_steps(weights, cache, logits, order, "en") for order in (wrong, right)}
titles = {wrong: "free, keep, empty", right: "keep, free, empty"}
show(segment_moments({titles[order]: steps for order, steps in orders.items()}, card, "en"))

# %% key="orders_drawn" lang="zh"
from minikv.course.diagrams import segment_moments

wrong, right = "free, keep, empty", "keep, free, empty"
orders = {order: batch_steps(weights, cache, logits, order, "zh") for order in (wrong, right)}
titles = {wrong: "先释放，再保留，最后清空", right: "先保留，再释放，最后清空"}
show(segment_moments({titles[order]: steps for order, steps in orders.items()}, card, "zh"))

# %% [markdown] key="orders_read" lang="en"
# There are more ways out. Here are the same six operations, with one thing changed at a time; `stuck` is what is free but shares a segment with a live block:
# %% [markdown] key="orders_read" lang="zh" src="a13bc021"
# 出路不止一条。还是这六步操作，每次只改一处；“收不回”是空闲、却与存活的块同在一个段里的显存：

# %% key="variants" lang="en"
hidden, rows = batch * config["hidden_size"] * 2, []  # the last hidden states, [48, 4096] in bf16
for order, name, kept, given in (
    (wrong, "logits", logits, {}),
    (right, "logits", logits, {}),
    ("free, empty, keep", "logits", logits, {}),
    (wrong, "hidden", hidden, {}),
    (wrong, "logits", logits, {"max_split_size_mb": 512}),
    (wrong, "logits", logits, {"expandable_segments": True}),
):
    model = CachingAllocator(card, settings=AllocatorSettings(**given))
    end = next_batch(batch_steps(weights, cache, kept, order), model)
    setting = ", ".join(f"{key}:{value}" for key, value in given.items())
    says = "fits" if end.fits else "out of memory"
    rows.append((order, name, f"{kept / MIB:.2f}", f"{end.stuck / MIB:,.1f}", says, setting))
Table(["order", "kept", "MiB", "stuck (MiB)", "next batch", "setting"], rows, right=["MiB", "stuck (MiB)"])

# %% key="variants" lang="zh"
hidden, rows = batch * config["hidden_size"] * 2, []  # 最后一层的隐藏状态，[48, 4096]，bf16
for order, name, kept, given in (
    (wrong, "logits", logits, {}),
    (right, "logits", logits, {}),
    ("free, empty, keep", "logits", logits, {}),
    (wrong, "hidden", hidden, {}),
    (wrong, "logits", logits, {"max_split_size_mb": 512}),
    (wrong, "logits", logits, {"expandable_segments": True}),
):
    model = CachingAllocator(card, settings=AllocatorSettings(**given))
    end = next_batch(batch_steps(weights, cache, kept, order), model)
    setting = ", ".join(f"{key}:{value}" for key, value in given.items())
    says = "放得下" if end.fits else "显存不足"
    rows.append((order, name, f"{kept / MIB:.2f}", f"{end.stuck / MIB:,.1f}", says, setting))
Table(["次序", "留下什么", "MiB", "收不回（MiB）", "下一批", "设置"], rows, right=["MiB", "收不回（MiB）"])

# %% [markdown] key="variants_read" lang="en"
# - Row 2: kept *before* the cache is freed, the logits get a segment of their own.
# - Row 3: so they do if `empty_cache()` comes before them, because the cache's segment has already gone back by then. The order decides, not the amount.
# - Row 4: the last hidden states of the same step are below 1 MiB. They live in the small pool, and a small block can never pin a large segment. It holds back only the remainder of its own 2 MiB.
# - Row 5: blocks of 512 MiB or more are never cut for a small request.
# - Row 6: with expandable segments, which come next, all memory without a live block goes back.
#
# (The 1.5 MiB of rows 2 and 3 have nothing to do with the cache: the weights' segment is a multiple of 2 MiB, and this is its remainder. In row 5 the weights' block is not cut either, so the remainder stays inside it.)
#
# Serving engines do something simpler: they allocate the cache once and *never* free it.
# A block that is not freed is not cut.
# %% [markdown] key="variants_read" lang="zh" src="6e749621"
# - 第 2 行：在缓存释放**之前**留下 logits，它就有自己的段。
# - 第 3 行：先调用 `empty_cache()` 再留下 logits，结果也一样，因为那时缓存的段已经还回去了。起决定作用的是次序，不是大小。
# - 第 4 行：同一步最后的隐藏状态不到 1 MiB，放在小块内存池里；小块永远拖不住大块内存池的段，它留住的只是自己那个 2 MiB 段的剩余部分。
# - 第 5 行：512 MiB 及以上的块不会为小请求切开。
# - 第 6 行：可扩展段能把没有存活块的显存都还回去，下面就讲。
#
# （第 2、3 行的 1.5 MiB 与缓存无关，它来自权重的段。段取 2 MiB 的整数倍，所以末尾剩下一点。第 5 行里权重的块也不切开，剩余部分留在块内，所以是 0。）
#
# 推理引擎的做法更简单，缓存只分配一次，**从不**释放。
# 不释放的块，就不会被切开。

# %% [markdown] key="expandable" lang="en"
# ## See it: the same with expandable segments
#
# Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` in the environment (newer versions of torch also read `PYTORCH_ALLOC_CONF`), and a segment is a long range of *addresses*. Memory is mapped behind it page by page, 20 MiB each in the large pool.
# `empty_cache()` can then take back every page without a live block.
# Go back to the widget and choose the other settings: the same six steps, and the last one fits.
# `replay` runs such a list of operations without the drawing. Here is what is reserved after each, in GiB:
# %% [markdown] key="expandable" lang="zh" src="121f511f"
# ## 看一看：换成可扩展段
#
# 设置环境变量 `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`（较新的 torch 也读 `PYTORCH_ALLOC_CONF`）之后，一个段就是一长段**地址**，背后的显存逐页映射，大块内存池每页 20 MiB。
# 这样，凡是没有存活块的页，`empty_cache()` 都能收回。
# 回到上面的组件，换成别的设置，还是那六步，最后一步放得下了。
# 不画图时，可以用 `replay` 运行这样一串操作。下面是每一步之后已保留的显存，单位 GiB：

# %% key="story_replayed" lang="en"
from minikv.memory import replay

rows = []
for name, settings in choices.items():
    done = replay(as_trace(story), CachingAllocator(card, settings=settings))
    reserved = [f"{step.usage.reserved / 2**30:.2f}" for step in done]
    rows.append((name, *reserved, "fits" if done[-1].out_of_memory is None else "out of memory"))
head = ["weights", "cache", "free", "logits", "empty", "again"]
Table(["settings", *head, "next batch"], rows, right=head)

# %% key="story_replayed" lang="zh"
from minikv.memory import replay

rows = []
for name, settings in choices.items():
    done = replay(as_trace(story), CachingAllocator(card, settings=settings))
    reserved = [f"{step.usage.reserved / 2**30:.2f}" for step in done]
    rows.append((name, *reserved, "放得下" if done[-1].out_of_memory is None else "显存不足"))
head = ["权重", "缓存", "释放", "logits", "清空", "再分配"]
Table(["设置", *head, "下一批"], rows, right=head)

# %% [markdown] key="empty" lang="en"
# ## What each call does
#
# | call | allocated | reserved | peak of allocated |
# |---|---|---|---|
# | the last reference to a tensor is gone | falls | stays | stays |
# | `gc.collect()` | falls if a cycle held a tensor | stays | stays |
# | `torch.cuda.empty_cache()` | stays | falls by the segments (expandable: the pages) with no live block | stays |
# | `torch.cuda.reset_peak_memory_stats()` | stays | stays | becomes the current value |
#
# `empty_cache()` frees no tensor. It doesn't find memory for torch, either: torch uses what it has cached, and gives it back on its own before it reports out of memory (`num_alloc_retries`).
# The call makes room for *others*, that is for another process or for a library that asks the driver directly.
# Its other use is the order "free, empty, keep" above: an empty segment that has gone back cannot be cut.
# The call waits for the GPU, and the next request has to go to the driver again, so don't call it in a decoding loop.
#
# Two things are easily misread. If every cached segment has one live block in it, 5 GB of cached blocks are still 5 GB after `empty_cache()`. And the peak is not that of the whole run, but the largest value since the last reset.
# %% [markdown] key="empty" lang="zh" src="f4f94c93"
# ## 每个调用做了什么
#
# | 调用 | 已分配 | 已保留 | 已分配的峰值 |
# |---|---|---|---|
# | 张量的最后一个引用消失 | 下降 | 不变 | 不变 |
# | `gc.collect()` | 若循环引用持有张量则下降 | 不变 | 不变 |
# | `torch.cuda.empty_cache()` | 不变 | 减去没有存活块的段（可扩展段：页） | 不变 |
# | `torch.cuda.reset_peak_memory_stats()` | 不变 | 不变 | 变为当前值 |
#
# `empty_cache()` 不释放任何张量，也不会替 torch 多找出显存，因为缓存着的，torch 本来就能用；在报显存不足之前，它还会自己先归还一遍（`num_alloc_retries`）。
# 这个调用是为 torch **之外**腾空间，例如另一个进程，或者直接向驱动要显存的库。
# 它的另一个用处，就是前面 free, empty, keep 那种次序，因为空段还回去了，就不会再被切开。
# 它要等 GPU 完成计算，之后的请求又得重新去找驱动，所以不要放在解码循环里。
#
# 有两处容易误解。第一，如果每个缓存着的段里都还有一个存活的块，那么 5 GB 缓存在 `empty_cache()` 之后仍是 5 GB。第二，峰值不是整个程序运行期间的峰值，而是自上次重置以来的最大值。

# %% key="calls_model" lang="en"
model, rows = CachingAllocator(card), []


def note(call):
    usage, peak = model.usage(), model.memory_stats()["allocated_bytes.all.peak"]
    rows.append((call, *(f"{size / 2**30:.2f}" for size in (usage.allocated, usage.reserved, peak))))


model.malloc(weights)
first = model.malloc(cache)
note("malloc")
model.free(first)
note("free")
model.reset_peak_stats()
note("reset_peak_stats")
model.empty_cache()
note("empty_cache")
head = ["after", "allocated (GiB)", "reserved (GiB)", "peak (GiB)"]
Table(head, rows, right=head[1:])

# %% key="calls_model" lang="zh"
model, rows = CachingAllocator(card), []


def note(call):
    usage, peak = model.usage(), model.memory_stats()["allocated_bytes.all.peak"]
    rows.append((call, *(f"{size / 2**30:.2f}" for size in (usage.allocated, usage.reserved, peak))))


model.malloc(weights)
first = model.malloc(cache)
note("malloc")
model.free(first)
note("free")
model.reset_peak_stats()
note("reset_peak_stats")
model.empty_cache()
note("empty_cache")
head = ["调用之后", "已分配（GiB）", "已保留（GiB）", "峰值（GiB）"]
Table(head, rows, right=head[1:])

# %% [markdown] key="zeros" lang="en"
# ## Empty or zeros
#
# One question is left: does an allocation take memory at all?
#
# On a GPU it does. When `cudaMalloc` returns, the bytes are yours, written or not.
# On a CPU the system only promises addresses for a large tensor. It gives a page of memory (usually 4 KiB) when the page is first written, and clears it then. This is called the first *touch*.
# `MemoryStats` shows both. On a CPU `reserved` is the address space of the process, and `allocated` is the part of it that is resident.
# %% [markdown] key="zeros" lang="zh" src="527feb10"
# ## empty 还是 zeros
#
# 还有一个问题：分配之后，内存真的占上了吗？
#
# 在 GPU 上是的。`cudaMalloc` 返回时，这些字节就归你了，写没写过都一样。
# 在 CPU 上，张量较大时，系统只是许诺了一段地址；一页内存（通常 4 KiB）要等第一次**写入**才真正给出，并在那时清零。
# `MemoryStats` 两样都能看到。在 CPU 上，`reserved` 是进程的地址空间，`allocated` 是其中真正驻留在内存里的部分。

# %% key="touch_watch" tags="timing"
def watch(name, work):
    before, begin = MemoryStats.read(device), time.perf_counter()
    made = work()
    if device == "cuda":
        torch.cuda.synchronize()
    ms, after = 1000 * (time.perf_counter() - begin), MemoryStats.read(device)
    taken = [(after.reserved - before.reserved) / MIB, (after.allocated - before.allocated) / MIB]
    touched.append((name, *(f"{size:,.0f}" for size in taken), f"{ms:.2f}"))
    return made

# %% key="touch" tags="timing" lang="en"
touched = []
for make in (torch.empty, torch.zeros):
    room = watch(f"torch.{make.__name__}", lambda: make(256 * MIB, dtype=torch.uint8, device=device))
    watch("first write", lambda: room.fill_(1))
    watch("second write", lambda: room.fill_(2))
    del room
head = ["256 MiB", "reserved grows (MiB)", "allocated grows (MiB)", "ms"]
Table(head, touched, right=head[1:])

# %% key="touch" tags="timing" lang="zh"
touched = []
for make in (torch.empty, torch.zeros):
    room = watch(f"torch.{make.__name__}", lambda: make(256 * MIB, dtype=torch.uint8, device=device))
    watch("第一次写入", lambda: room.fill_(1))
    watch("第二次写入", lambda: room.fill_(2))
    del room
head = ["256 MiB", "reserved 增加（MiB）", "allocated 增加（MiB）", "毫秒"]
Table(head, touched, right=head[1:])

# %% [markdown] key="touch_read" lang="en"
# - On a CPU, `torch.empty` is free because nothing has happened yet. The first write pays for the pages, the second doesn't. `torch.zeros` *is* a first write. Divide: 256 MiB are 65,536 pages of 4 KiB, so 100 ms of first write would be 1.5 µs a page.
# - So a cache made with `torch.empty` on a CPU puts its cost into the first tokens, in small portions, and a memory graph shows it growing although it was allocated once.
# - A large tensor on a CPU goes back to the system when it is freed, and `torch.cat` then touches new pages for every token. That was the price of malloc in the first timing chart. Smaller blocks are kept for the next request, much as the caching allocator keeps its own. With glibc, the usual C library of Linux, the border is 32 MiB ([mallopt](https://man7.org/linux/man-pages/man3/mallopt.3.html), `M_MMAP_THRESHOLD`); in the timing chart these are 16,384 tokens of 2,048 B, and there is the jump.
# - On a GPU, `torch.zeros` is a kernel that writes; the memory is there already.
#
# `LinearKVCache` uses zeros, but not to save time: memory that was never written can hold a NaN, and a mask does not remove it, because a weight of 0 times NaN is NaN.
# %% [markdown] key="touch_read" lang="zh" src="f3ef3a88"
# - 在 CPU 上，`torch.empty` 不花时间，是因为什么都还没发生。第一次写入要付出分配内存页的代价，第二次就不用了。`torch.zeros` **本身**就是第一次写入。可以算一下：256 MiB 是 65,536 个 4 KiB 的页，假如第一次写入用了 100 ms，每页就是 1.5 µs。
# - 所以在 CPU 上用 `torch.empty` 建立的缓存，会把代价一点一点摊到最初的 token 上；明明只分配了一次，内存曲线却在慢慢上升。
# - CPU 上的大张量一释放就还给系统，于是 `torch.cat` 每个 token 都要写一批新页；第一张计时图里 malloc 的代价，就是这么来的。较小的块会留给下一次请求，与缓存分配器的做法相似。在 Linux 常用的 C 库 glibc 里，分界是 32 MiB（[mallopt](https://man7.org/linux/man-pages/man3/mallopt.3.html) 的 `M_MMAP_THRESHOLD`）；也就是计时图里 16,384 个 2,048 B 的 token，曲线正是在那里跳升的。
# - 在 GPU 上，`torch.zeros` 只是一个写入的 kernel，显存早已占好。
#
# `LinearKVCache` 用的是 zeros，但不是为了时间，而是因为从未写过的内存里可能有 NaN。掩码遮不住它，权重 0 乘以 NaN 还是 NaN。

# %% [markdown] key="snapshot" lang="en"
# ## Read a real one
#
# `torch.cuda.memory._dump_snapshot(file)` writes every segment with its blocks, and `from_snapshot` reads the file without running anything that is in it.
# Here is the segment of the first picture as a user printed it in a bug report, before the small tensor moved in:
# %% [markdown] key="snapshot" lang="zh" src="3ef4f810"
# ## 读一份真实的快照
#
# `torch.cuda.memory._dump_snapshot(文件)` 会写出每个段和其中的块；`from_snapshot` 读这个文件，但不执行里面的任何东西。
# 下面就是第一幅图里的那个段，内容与用户在问题报告里打印的一致，当时小张量还没有住进来：

# %% key="snapshot_json" lang="en"
import json

from minikv.memory import from_snapshot

printed = {
    "device": 0, "address": 139624890499072, "segment_type": "large",
    "total_size": 11643387904, "allocated_size": 0, "active_size": 0,
    "blocks": [{"size": 11643387904, "state": "inactive"}],
}
snapshot = from_snapshot(json.dumps([printed]).encode())
size = snapshot.segments[0].total_size
row = (snapshot.reserved, snapshot.allocated, snapshot.inactive_split, segment_size(size))
Table(["reserved (B)", "allocated (B)", "free in a cut segment (B)", "our rule for this request (B)"], [row])

# %% key="snapshot_json" lang="zh"
import json

from minikv.memory import from_snapshot

printed = {
    "device": 0, "address": 139624890499072, "segment_type": "large",
    "total_size": 11643387904, "allocated_size": 0, "active_size": 0,
    "blocks": [{"size": 11643387904, "state": "inactive"}],
}
snapshot = from_snapshot(json.dumps([printed]).encode())
size = snapshot.segments[0].total_size
row = (snapshot.reserved, snapshot.allocated, snapshot.inactive_split, segment_size(size))
Table(["已保留（B）", "已分配（B）", "切开后空闲（B）", "按我们的规则应有的段（B）"], [row])

# %% [markdown] key="snapshot_read" lang="en"
# The segment has one block with nothing in it. At this moment `empty_cache()` would have returned it, and a request of the same size would have fitted.
#
# On a GPU the next cell repeats the second story on a small scale. It frees 256 MiB, keeps 24 MiB, and reads its own snapshot: how much is stuck, and which line of code asked for the live blocks.
# %% [markdown] key="snapshot_read" lang="zh" src="16853172"
# 段里只有一个块，块里什么都没有。此刻 `empty_cache()` 能把它还回去，同样大小的请求也放得下。
#
# 有 GPU 时，下一个单元格会把第二个故事缩小重演一遍，先释放 256 MiB，再留下 24 MiB，然后读自己的快照，看看有多少还不回去，存活的块又是哪一行代码申请的。

# %% key="snapshot_gpu" tags="hardware" lang="en"
holders = [("no GPU here", 0, 0)]
if device == "cuda":
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(stacks="python")
    large = torch.empty(256 * MIB, dtype=torch.uint8, device=device)
    del large
    kept = torch.empty(24 * MIB, dtype=torch.uint8, device=device)
    torch.cuda.empty_cache()
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
    torch.cuda.memory._record_memory_history(enabled=None)
    snapshot = from_snapshot("snapshot.pickle")
    holders = [("(stuck)", snapshot.inactive_split, 0), *snapshot.holders()[:3]]
Table(["asked for by", "bytes", "blocks"], [(where.rpartition("/")[2], size, count) for where, size, count in holders])

# %% key="snapshot_gpu" tags="hardware" lang="zh"
holders = [("这里没有 GPU", 0, 0)]
if device == "cuda":
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(stacks="python")
    large = torch.empty(256 * MIB, dtype=torch.uint8, device=device)
    del large
    kept = torch.empty(24 * MIB, dtype=torch.uint8, device=device)
    torch.cuda.empty_cache()
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
    torch.cuda.memory._record_memory_history(enabled=None)
    snapshot = from_snapshot("snapshot.pickle")
    holders = [("（收不回）", snapshot.inactive_split, 0), *snapshot.holders()[:3]]
Table(["由哪一行申请", "字节", "块数"], [(where.rpartition("/")[2], size, count) for where, size, count in holders])

# %% [markdown] key="break" lang="en"
# ## Break it: the setting from the forum
#
# The out-of-memory message recommends settings, and forums recommend numbers.
# Two are often copied: `max_split_size_mb` as small as it goes (20; older versions of torch want more than 20), and `garbage_collection_threshold:0.8`, which promises to give cached memory back before the card is full.
#
# Below, both stories run again on the same card: the cache that grows by `torch.cat` at batch 8 and at batch 32, and the three calls "free, keep, empty".
# In the table, `-` stands for the default settings, `gc` for `garbage_collection_threshold`, and `limit` for a process that may use 95 % of the card.
# Before you run it: which setting helps one story and hurts the other? Which one does nothing?
# %% [markdown] key="break" lang="zh" src="6f8956b6"
# ## 弄坏它：论坛上抄来的设置
#
# 显存不足的报错会建议一些设置，论坛上则流传着具体的数字。
# 常被照抄的有两个：把 `max_split_size_mb` 设到最小（20；旧版 torch 要求大于 20），以及 `garbage_collection_threshold:0.8`，它号称能在显卡占满之前归还缓存着的显存。
#
# 下面让两个故事在同一块卡上再来一遍：一个是用 `torch.cat` 变大的缓存，batch 分别为 8 和 32；另一个是“释放、留下、清空”那三次调用。
# 表中的 `-` 是默认设置，`gc` 是 `garbage_collection_threshold` 的缩写，`limit` 表示还限制这个进程最多使用整张卡的 95%。
# 运行之前先想：哪个设置帮了一个故事、害了另一个？哪个根本不起作用？

# %% key="break_settings" lang="en"
rows, limit, gc = [], int(0.95 * card), {"garbage_collection_threshold": 0.8}
tried = {"-": ({}, None), "max_split_size_mb:20": ({"max_split_size_mb": 20}, None)}
tried |= {"gc:0.8": (gc, None), "gc:0.8, limit": (gc, limit), "expandable": ({"expandable_segments": True}, None)}
for name, (given, memory_limit) in tried.items():
    fresh = lambda: CachingAllocator(card, settings=AllocatorSettings(**given), memory_limit=memory_limit)
    cells = []
    for model, batch in ((fresh(), 8), (fresh(), 32)):
        model.malloc(weights)
        grow(model, batch, 512, 256)
        stats = model.memory_stats()
        cells += [f"{stats['reserved_bytes.all.peak'] / 2**30:.2f}", stats["num_device_alloc"]]
    end = next_batch(story, fresh())
    rows.append((name, *cells, f"{end.stuck / MIB:,.0f}", "fits" if end.fits else "out of memory"))
head = ["batch 8: reserved (GiB)", "driver calls", "batch 32: reserved (GiB)", "driver calls", "three calls: stuck (MiB)"]
Table(["setting", *head, "next batch"], rows, right=head)

# %% key="break_settings" lang="zh"
rows, limit, gc = [], int(0.95 * card), {"garbage_collection_threshold": 0.8}
tried = {"-": ({}, None), "max_split_size_mb:20": ({"max_split_size_mb": 20}, None)}
tried |= {"gc:0.8": (gc, None), "gc:0.8, limit": (gc, limit), "expandable": ({"expandable_segments": True}, None)}
for name, (given, memory_limit) in tried.items():
    fresh = lambda: CachingAllocator(card, settings=AllocatorSettings(**given), memory_limit=memory_limit)
    cells = []
    for model, batch in ((fresh(), 8), (fresh(), 32)):
        model.malloc(weights)
        grow(model, batch, 512, 256)
        stats = model.memory_stats()
        cells += [f"{stats['reserved_bytes.all.peak'] / 2**30:.2f}", stats["num_device_alloc"]]
    end = next_batch(story, fresh())
    rows.append((name, *cells, f"{end.stuck / MIB:,.0f}", "放得下" if end.fits else "显存不足"))
head = ["batch 8：保留（GiB）", "驱动调用次数", "batch 32：保留（GiB）", "驱动调用次数", "三次调用：收不回（MiB）"]
Table(["设置", *head, "下一批"], rows, right=head)

# %% [markdown] key="break_read" lang="en"
# - `max_split_size_mb:20` cures the 6,122 MiB. But at batch 8 a cache of 768 MiB fills the whole card and calls the driver 4,226 times. Blocks of 20 MiB or more may not be cut, so what is freed fits hardly any other request.
# - The garbage collection does *nothing* unless the process has a limit. torch reads the threshold only where `torch.cuda.set_per_process_memory_fraction` was called. With a limit it keeps the staircase low, but still asks the driver as often, and it cannot return a segment with a live block, either.
# - Expandable segments help both stories here. They are no reason to grow by `torch.cat`, because the copies stay.
#
# Settings treat the symptom, and the cause is the growing and freeing of large tensors.
# With a pre-allocated cache neither story happens: there is one call to malloc, no staircase, and no block to be cut.
# %% [markdown] key="break_read" lang="zh" src="f87d9b96"
# - `max_split_size_mb:20` 解决了收不回的 6,122 MiB。但 batch 为 8 时，768 MiB 的缓存就占满了整块卡，还调用了驱动 4,226 次，因为 20 MiB 及以上的块不许切开，释放的块几乎满足不了别的请求。
# - 没有给进程设上限时，垃圾回收**什么都不做**，因为只有调用过 `torch.cuda.set_per_process_memory_fraction`，torch 才会理会这个阈值。设了上限，台阶就低了，但调用驱动的次数一点没少；含有存活块的段，它同样还不回去。
# - 可扩展段在这里对两个故事都有帮助。但这不是继续用 `torch.cat` 的理由，因为复制一次也没少。
#
# 这些设置治的是症状，病因是大张量不断变大、不断释放。
# 有了预分配的缓存，两个故事都不会发生，因为 malloc 只调用一次，没有台阶，也没有块可切。

# %% [markdown] key="self" lang="en"
# ## Recap
#
# A cache that grows by `torch.cat` reads and writes everything old in every step: about 72 GiB for 256 tokens after a prompt of 1,024, where slots need 64 MiB.
# PyTorch's caching allocator asks the driver rarely, 39 times for 32,832 requests with one sequence, so a malloc a token is not the problem.
# What it cannot do is move a block or merge segments: a 4 GiB cache that grew to its size had 51.77 GiB reserved.
# One live block of 23.5 MiB keeps a segment of 6 GiB from going back, and the order of free, keep and empty decides whether that happens.
# An engine allocates its cache once and never frees it, so nothing is copied, nothing is cut, and the peak is known before the first request.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="117f6f60"
# ## 本课小结
#
# 靠 `torch.cat` 变大的缓存，每一步都要把旧内容全部读写一遍。例如 1,024 个 token 的提示词之后再生成 256 个，共约 72 GiB，而写槽位只要 64 MiB。
# PyTorch 的缓存分配器很少去找驱动，只有一条序列时 32,832 次请求才 39 次，所以问题不在于每个 token 一次 malloc。
# 它做不到的是移动块、合并段，例如一份慢慢长到 4 GiB 的缓存，让它保留了 51.77 GiB。
# 一个 23.5 MiB 的存活块，能让 6 GiB 的段还不回去；会不会这样，取决于释放、留下、清空三步的次序。
# 推理引擎只分配一次缓存，从不释放，所以什么都不复制，也没有块被切开，而且峰值在第一个请求之前就已知道。
#
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_why"
explain("why_preallocate")

# %% key="explain_survivor"
explain("which_survivor")

# %% key="explain_empty"
explain("empty_cache_or_not")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# The exercise notebook of this lesson asks for four functions and a class:
#
# 1. `rounded_and_segment`: what a request is rounded to, and the segment that it needs.
# 2. `bytes_copied`: what a cache copies that grows by joining.
# 3. `choose_block`: the free block that a request gets.
# 4. `bytes_returned`: what `empty_cache()` gives back.
# 5. `SlotCache`: a cache that allocates when it is made and never again.
# %% [markdown] key="exercises" lang="zh" src="47fe1d25"
# ## 练习
#
# 本课的练习 notebook 要你写四个函数和一个类：
#
# 1. `rounded_and_segment`：一个请求取整成多大，需要多大的段。
# 2. `bytes_copied`：靠拼接变大的缓存要复制多少字节。
# 3. `choose_block`：一个请求会得到哪个空闲块。
# 4. `bytes_returned`：`empty_cache()` 会归还多少。
# 5. `SlotCache`：只在建立时分配、之后再也不分配的缓存。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | nvidia-smi shows far more than my tensors take | `torch.cuda.memory_reserved() - torch.cuda.memory_allocated()`: that much is cached. What nvidia-smi shows above `memory_reserved()` is the CUDA context, libraries that allocate for themselves, and other processes |
# | `empty_cache()` brings nothing back | `torch.cuda.memory_stats()["inactive_split_bytes.all.current"]`: that many free bytes share a segment with a live block (not counted with expandable segments). `from_snapshot(file).holders()` says which lines asked for the live ones |
# | reserved climbs while decoding, allocated hardly does | `torch.cuda.memory_stats()["num_device_alloc"]` before and after a hundred steps: if it goes up, requests outgrow what is cached, so look for a `torch.cat` per token. `num_alloc_retries` above 0 says that the card was full once and everything cached was given back in the middle of the run |
# %% [markdown] key="stuck" lang="zh" src="c45af98f"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | nvidia-smi 显示的远比我的张量多 | `torch.cuda.memory_reserved() - torch.cuda.memory_allocated()`：这么多是缓存着的。nvidia-smi 比 `memory_reserved()` 还多出的，是 CUDA 上下文、自行分配显存的库，以及别的进程 |
# | `empty_cache()` 之后什么都没回来 | `torch.cuda.memory_stats()["inactive_split_bytes.all.current"]`：有这么多空闲字节与存活的块同处一段（可扩展段不计在内）。`from_snapshot(文件).holders()` 会说出存活的块是哪几行代码申请的 |
# | 解码时“已保留”一路上升，“已分配”却几乎不变 | `torch.cuda.memory_stats()["num_device_alloc"]`，在一百步前后各看一次：变大了，说明请求越来越大，缓存着的块放不下，找找哪里每个 token 都在 `torch.cat`。`num_alloc_retries` 大于 0，则说明显卡曾经满过，运行中途把缓存着的全部归还过 |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - In April 2020 a user's training step ran once and was out of memory the second time, with half of the GPU unused ([PyTorch #35901](https://github.com/pytorch/pytorch/issues/35901), "OOM error where ~50% of the GPU RAM cannot be utilised/reserved"). Its snapshot has the segment of the first picture, 11,643,387,904 bytes, with tensors of 499,214,336 bytes in it.
# - The 1 ms a token and its 3.2 % come from "Memory Model Deep Dive", a text about CUDA memory. The section "Is it the malloc?" shows what it leaves out.
# - An older version of transformers held on to all old tensors of a step while it joined, so it needed the whole cache twice ([transformers #25930](https://github.com/huggingface/transformers/issues/25930), [PR #30536](https://github.com/huggingface/transformers/pull/30536)). Today it is one tensor at a time, as in "A cache that grows".
# - A small `max_split_size_mb` can be right for one phase: vLLM sets it while it loads the weights ([PR #41268](https://github.com/vllm-project/vllm/pull/41268)). Expandable segments don't work with everything: vLLM's sleep mode is an exception ([PR #14189](https://github.com/vllm-project/vllm/pull/14189)).
# - A public guide, "KV 缓存分配详细指南" (a detailed guide to KV cache allocation), draws 5 GB of cached blocks that become 0. It also calls the peak that of "整个程序运行中", the whole run. "What each call does" says when this is not so.
# - [Lesson 03](03_the_2_86x_mistake.ipynb)'s script ended with "6+ GB stuck in CUDA allocator" after `gc.collect()` and `empty_cache()`. Why `empty_cache()` may return nothing is this lesson's part of that case; [lesson 16](16_where_did_6gb_go.ipynb) finds what held the memory.
# %% [markdown] key="wild" lang="zh" src="9b9c4db1"
# ## 实战现场
#
# - 2020 年 4 月，一位用户的训练第一步正常，第二步就显存不足，而 GPU 上有一半显存没有使用（[PyTorch #35901](https://github.com/pytorch/pytorch/issues/35901)，“OOM error where ~50% of the GPU RAM cannot be utilised/reserved”）。它的快照里就有第一幅图中的段：11,643,387,904 字节，里面的张量共 499,214,336 字节。
# - 每个 token 1 ms、浪费 3.2% 的说法，出自一篇讲 CUDA 显存的文章《Memory Model Deep Dive》。它漏掉了什么，见“是 malloc 的错吗？”一节。
# - 旧版 transformers 拼接时会把一步之内所有旧张量都留着，等于整个缓存要占两份（[transformers #25930](https://github.com/huggingface/transformers/issues/25930)、[PR #30536](https://github.com/huggingface/transformers/pull/30536)）。现在是逐个张量进行，与“不断变大的缓存”一节相同。
# - 很小的 `max_split_size_mb` 用在某个阶段可能是对的：vLLM 加载权重期间就这样设置（[PR #41268](https://github.com/vllm-project/vllm/pull/41268)）。可扩展段也并非处处可用：vLLM 的睡眠模式（sleep mode）就与它不兼容（[PR #14189](https://github.com/vllm-project/vllm/pull/14189)）。
# - 公开文档《KV 缓存分配详细指南》画的是 5 GB 空闲缓存全部变为 0，还有一处注释说峰值是“整个程序运行中”的峰值。什么时候不是这样，见“每个调用做了什么”一节。
# - [第 03 课](03_the_2_86x_mistake.ipynb)的脚本在 `gc.collect()` 和 `empty_cache()` 之后，仍有“6+ GB stuck in CUDA allocator”（6 GB 以上卡在 CUDA 分配器里）。为什么 `empty_cache()` 可能什么都还不回去，由本课回答；显存究竟被什么占着，见[第 16 课](16_where_did_6gb_go.ipynb)。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You know why the cache is allocated once, and what torch does with the request.
# One number is missing: how large may that one allocation be?
# [Lesson 08](08_allocate_kv_cache.ipynb) measures it: `total * utilization - used - peak + current`. This lesson's peak and this lesson's reserved are both in it.
# %% [markdown] key="next" lang="zh" src="31622bf4"
# ## 下一课
#
# 现在你知道缓存为什么只分配一次，也知道 torch 怎样处理这次请求。
# 还差一个数：这唯一的一次分配，可以有多大？
# [第 08 课](08_allocate_kv_cache.ipynb)把它测出来：`total * utilization - used - peak + current`。本课讲的“峰值”和“已保留”，都在这个公式里。
