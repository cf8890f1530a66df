# %% [meta]
# number = "07"
# slug = "allocate_once"
# needs = ["05", "06"]
# rooms = ["memory.allocator"]
# minutes = 70
# [title]
# en = "What does malloc cost per token?"
# zh = "每个 token 的 malloc 要花多少？"
# [t4]
# en = "Everything runs. On a T4 the copies and the first touch are measured on the GPU, and one cell dumps and reads a real snapshot of its allocator."
# zh = "全部可以运行。有 T4 时，复制和首次写入都在 GPU 上测量，另有一个单元格会导出并读取分配器的真实快照。"
# [paper]
# en = "07.1, 07.2, 07.4"
# zh = "07.1、07.2、07.4"

# %% [markdown] key="question" lang="en"
# ## The question
#
# A program frees a large tensor and calls `empty_cache()`. `nvidia-smi` still shows all the memory as used, and the next large tensor does not fit.
# Which memory is that, and why can't it be given back?
#
# **What happens between a tensor and the GPU, what does it cost for each token, and why does an engine allocate once?**
#
# minikv has a model of PyTorch's CUDA caching allocator: the same rules, taken from its source and followed to the byte. It needs no GPU.
# Five calls show such a case, with sizes from a real snapshot:
# %% [markdown] key="question" lang="zh" src="dab1387d"
# ## 问题
#
# 程序释放了一个大张量，又调用了 `empty_cache()`。可是 `nvidia-smi` 显示显存仍然全部占用，下一个大张量也放不下。
# 这是哪一部分显存？为什么还不回去？
#
# **张量和 GPU 之间发生了什么？每个 token 要为此付出多少？推理引擎为什么只分配一次？**
#
# minikv 里有一个 PyTorch CUDA 缓存分配器（caching allocator）的模型：规则取自它的源码，大小精确到字节，而且不需要 GPU。
# 下面五次调用就是这样一个例子，大小取自一份真实的快照：

# %% key="answer"
from minikv.course.diagrams import segments
from minikv.memory import CachingAllocator

model = CachingAllocator()
large = model.malloc(11_643_387_904)
model.free(large)
model.malloc(16_515_072)
model.empty_cache()
show(segments(model, t("lang")))

# %% [markdown] key="able" lang="en"
# The large tensor left a **segment** behind. One small tensor moved in, and from then on more than 99 % of the segment can't go back to the GPU.
#
# After this lesson you can:
#
# - **compute** what a cache that grows by `torch.cat` copies, and how long it takes here;
# - **follow** the allocator's three rules, and say which segment a request gets and which one `empty_cache()` returns;
# - **explain** why an engine makes one allocation and keeps it.
# %% [markdown] key="able" lang="zh" src="9c5a09f1"
# 大张量留下了一个**段（segment）**。一个小张量住了进来，从此这个段的 99% 以上都还不回 GPU。
#
# 学完本课，你能够：
#
# - **算出**用 `torch.cat` 变长的缓存要复制多少字节，并测出在本机上要多久；
# - **运用**分配器的三条规则，说出一次请求会得到哪个段、`empty_cache()` 会归还哪个段；
# - **解释**推理引擎为什么只分配一次，然后一直留着。

# %% [markdown] key="grow" lang="en"
# ## A cache that grows
#
# Start where memory is asked for most often.
# `DynamicCache` of transformers holds K and V of each layer in a tensor, and joins every new token to it: `self.keys = torch.cat([self.keys, new], dim=-2)`.
# That is a new tensor, one token longer; everything old is read and written again.
# The step that makes $n$ tokens reads $n$ of them, $n - 1$ old ones and the new one, and writes $n$.
# With a batch of $B$ sequences, $t$ bytes a token in all layers, a prompt of $p$ tokens and $g$ generated ones, the bytes that are read and written are
#
# $$\underbrace{\sum_{n=p+1}^{p+g} 2\, n\, B\, t}_{\text{joined}} = B\, t\, g\, (2p + g + 1) \qquad\qquad \underbrace{2\, g\, B\, t}_{\text{written to slots}}$$
#
# The left sum grows with the square of $g$.
# On the right stands a cache like [lesson 06](06_the_linear_cache.ipynb)'s: allocated once, and each token goes to its slot.
# %% [markdown] key="grow" lang="zh" src="06039da8"
# ## 不断变大的缓存
#
# 先看显存申请最频繁的地方。
# transformers 的 `DynamicCache` 把每层的 K 和 V 各放在一个张量里，每来一个 token 就拼接一次：`self.keys = torch.cat([self.keys, new], dim=-2)`。
# 拼接得到的是一个长了一个 token 的新张量，旧内容要全部重新读一遍、写一遍。
# 让缓存达到 $n$ 个 token 的那一步，要读 $n$ 个（$n - 1$ 个旧的，1 个新的），再写 $n$ 个。
# 设一个 batch 有 $B$ 条序列，一个 token 在所有层合计 $t$ 字节，提示词有 $p$ 个 token，再生成 $g$ 个，那么读写的字节数是
#
# $$\underbrace{\sum_{n=p+1}^{p+g} 2\, n\, B\, t}_{\text{拼接}} = B\, t\, g\, (2p + g + 1) \qquad\qquad \underbrace{2\, g\, B\, t}_{\text{写入槽位}}$$
#
# 左边的和随 $g$ 的平方增长。
# 右边是[第 06 课](06_the_linear_cache.ipynb)那样的缓存：只分配一次，每个 token 写进自己的槽位。

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
# So it is not joining that makes decoding quadratic; it is quadratic already.
# Joining triples the traffic of the cache: it is read and written once to grow, and read once more to be used.
# (The weights are read in every step too, once for the whole batch. So the extra traffic is felt where the cache is not small beside them: with long sequences and large batches.)
#
# And how long does it take here?
# One layer's K, one sequence, bf16, a token at a time; on a CPU on one core; the best of 30:
# %% [markdown] key="copied_read" lang="zh" src="c73b67e3"
# 每组的第三条是注意力本来就要读的：每一步都要读全部 token。
# 所以解码的平方级增长不能怪拼接，它本来就有。
# 拼接让缓存的访存量变成三倍：为了变长读一遍、写一遍，为了使用再读一遍。
# （每一步还要读一遍权重，整个 batch 共用这一遍。所以，只有缓存与权重相比不算小时，多出的访存才明显：序列长，batch 大。）
#
# 在这台机器上要花多少时间？
# 一层的 K，一条序列，bf16，每次一个 token；在 CPU 上只用一个核；取 30 次中最快的一次：

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
def new_k(tokens):
    return torch.zeros(1, 8, tokens, 128, dtype=torch.bfloat16, device=device)


names = ("torch.cat", "torch.cat into memory that is there", "one slot")
found = {name: {} for name in names}
for length in (256, 1024, 4096, 16_384, 32_768):
    old, room, one = new_k(length - 1), new_k(length), new_k(1)
    found[names[0]][length] = best_us(lambda: torch.cat([old, one], dim=2))
    found[names[1]][length] = best_us(lambda: torch.cat([old, one], dim=2, out=room))
    found[names[2]][length] = best_us(lambda: room[:, :, length - 1 : length].copy_(one))
show(lines(found, x="tokens in the cache", y="us", log="xy"))

# %% key="time_drawn" tags="timing" lang="zh"
def new_k(tokens):
    return torch.zeros(1, 8, tokens, 128, dtype=torch.bfloat16, device=device)


names = ("torch.cat 拼接", "拼接到现成的内存", "写一个槽位")
found = {name: {} for name in names}
for length in (256, 1024, 4096, 16_384, 32_768):
    old, room, one = new_k(length - 1), new_k(length), new_k(1)
    found[names[0]][length] = best_us(lambda: torch.cat([old, one], dim=2))
    found[names[1]][length] = best_us(lambda: torch.cat([old, one], dim=2, out=room))
    found[names[2]][length] = best_us(lambda: room[:, :, length - 1 : length].copy_(one))
show(lines(found, x="缓存里的 token 数", y="us", log="xy"))

# %% [markdown] key="peak_words" lang="en"
# The time of a slot does not depend on how long the cache is.
# The second line joins into memory that is there already (`out=`): the same copy, without the new memory.
# So what `torch.cat` takes beyond it is the price of malloc and of the new memory.
# On a CPU that can be far more than the copy; the section "Empty or zeros" shows why. On a GPU an allocator stands in between to keep it small, and that one comes first.
#
# Joining also needs room: while it copies, the old and the new tensor both live.
# An older transformers held on to *all* the old tensors of a step and so needed the whole cache twice ([transformers #25930](https://github.com/huggingface/transformers/issues/25930), [PR #30536](https://github.com/huggingface/transformers/pull/30536)); today it is one tensor at a time.
# `measure_peak` counts what was alive at once while a function ran:
# %% [markdown] key="peak_words" lang="zh" src="eb008c53"
# 写一个槽位的时间与缓存长短无关。
# 第二条线是拼接到现成的内存里（`out=`）：复制的内容相同，只是不必另要内存。
# 所以 `torch.cat` 比它多出的时间，就是 malloc 和新内存的代价。
# 在 CPU 上，这个代价可能比复制大得多，原因见后面的“empty 还是 zeros”一节。在 GPU 上，有一个分配器专门让它变小，下面先讲这个。
#
# 拼接还需要空间：复制期间，旧张量和新张量同时存在。
# 旧版 transformers 会把一步之内**所有**旧张量都留着，等于整个缓存要占两份（[transformers #25930](https://github.com/huggingface/transformers/issues/25930)、[PR #30536](https://github.com/huggingface/transformers/pull/30536)）；现在是逐个张量进行。
# `measure_peak` 统计一个函数运行期间，同时存活的显存最多有多少：

# %% key="peak" tags="hardware"
from minikv.memory import MemoryStats, measure_peak


def grow_by_cat():
    k = new_k(1024)
    for _ in range(16):
        k = torch.cat([k, new_k(1)], dim=2)


def grow_in_slots():
    k = new_k(1024 + 16)
    for place in range(1024, 1024 + 16):
        k[:, :, place : place + 1] = new_k(1)


for name, work in (("torch.cat", grow_by_cat), (t("by_slots"), grow_in_slots)):
    print(t("peak_line", name=name, extra=measure_peak(work).extra, final=new_k(1040).nbytes))

# %% [markdown] key="malloc" lang="en"
# ## Is it the malloc?
#
# The document "Memory Model Deep Dive", known from lessons [05](05_owned_and_borrowed.ipynb) and [06](06_the_linear_cache.ipynb), has another reason to allocate once.
# It lets every token call `cudaMalloc`, 1 ms beside 30 ms of computing, and finds 3.2 % of the time wasted, against 0.3 % when everything is allocated at the start.
# Its arithmetic is right:
# %% [markdown] key="malloc" lang="zh" src="47575b57"
# ## 是 malloc 的错吗？
#
# 第 [05](05_owned_and_borrowed.ipynb)、[06](06_the_linear_cache.ipynb) 课用过的《Memory Model Deep Dive》（下称原文）主张只分配一次，给的是另一个理由。
# 它假设每个 token 都调用一次 `cudaMalloc`，每次 1 ms，而计算要 30 ms，于是 3.2% 的时间被浪费；若启动时一次分配好，只浪费 0.3%。
# 算术没有错：

# %% key="malloc_share" lang="en"
rows = [("a malloc a token", f"{1 / (1 + 30):.1%}"), ("all at the start, 10 ms", f"{10 / (10 + 100 * 30):.1%}")]
Table(["1 ms of malloc, 30 ms of computing, 100 tokens", "wasted"], rows, right=["wasted"])

# %% key="malloc_share" lang="zh"
rows = [("每个 token 一次 malloc", f"{1 / (1 + 30):.1%}"), ("启动时一次分配好，10 ms", f"{10 / (10 + 100 * 30):.1%}")]
Table(["malloc 1 ms、计算 30 ms、100 个 token", "浪费"], rows, right=["浪费"])

# %% [markdown] key="malloc_read" lang="en"
# Its premise is not.
# PyTorch does not call `cudaMalloc` for a tensor: it takes *segments* from the driver, cuts *blocks* out of them, and keeps what is freed for the next request.
# That is the **caching allocator**.
# We let a cache grow by 512 tokens with `torch.cat` in minikv's model of it, K and V of all 32 layers, on a device of unlimited memory, and count.
# (Only the cache: a real forward allocates and frees much more in between.)
# %% [markdown] key="malloc_read" lang="zh" src="807c81fd"
# 但前提不成立。
# PyTorch 不会为每个张量调用 `cudaMalloc`：它向 GPU 驱动（driver）成段地要显存，再从段里切出**分配器块**；释放的块自己留着，供下次请求使用。
# 这就是**缓存分配器（caching allocator）**。
# 下面在 minikv 的分配器模型里，用 `torch.cat` 让缓存增长 512 个 token，32 层的 K 和 V 全都算上，设备显存不设上限，数一数请求了多少次，其中多少次到达驱动。
# （只有缓存本身；真实的前向计算在其间还有许多别的分配和释放。）

# %% key="grow_model"
def grow(allocator, batch, prompt, steps, watch=None):
    tensors = 2 * len(spec.layers)  # K and V of each layer
    row = batch * token // tensors
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
# With one sequence, the driver hears of one request in many hundreds: a `cudaMalloc` is a rare event.
# But look at the last row.
# The cache itself is 4 GiB, and the allocator has reserved more than ten times that.
# No tensor leaked, and nothing else ran. Here is that run, token by token:
# %% [markdown] key="calls_read" lang="zh" src="0c0be12e"
# 只有一条序列时，好几百次请求才有一次传到驱动：`cudaMalloc` 很少发生。
# 但请看最后一行。
# 缓存本身是 4 GiB，分配器保留（reserved）的却是它的十几倍。
# 没有张量泄漏，也没有别的东西在运行。下面按 token 数画出这一次的过程：

# %% key="grow_drawn" lang="en"
taken = {
    "reserved": {tokens: usage.reserved / 2**30 for tokens, usage in watched.items()},
    "allocated to tensors": {tokens: usage.allocated / 2**30 for tokens, usage in watched.items()},
}
show(lines(taken, x="tokens in the cache, batch 32", y="GiB"))

# %% key="grow_drawn" lang="zh"
taken = {
    "已保留": {tokens: usage.reserved / 2**30 for tokens, usage in watched.items()},
    "已分配给张量": {tokens: usage.allocated / 2**30 for tokens, usage in watched.items()},
}
show(lines(taken, x="缓存里的 token 数，batch 为 32", y="GiB"))

# %% [markdown] key="grow_drawn_read" lang="en"
# Whenever K and V outgrow the blocks that were freed, another set of segments is added, and none of the old ones goes back.
# To see why, you need three rules.
# %% [markdown] key="grow_drawn_read" lang="zh" src="c4669094"
# 每当 K 和 V 大到已释放的块都放不下时，就要再添一批段，而旧的段一个也不归还。
# 要明白原因，先要知道三条规则。

# %% [markdown] key="rules" lang="en"
# ## Three rules
#
# **Rounding.** A request of $s$ bytes is rounded to $r$ bytes; if no cached block fits, the driver is asked for a segment of $S$ bytes:
#
# $$r = 512 \left\lceil \frac{s}{512} \right\rceil \qquad S = \begin{cases} 2\ \text{MiB} & r \le 1\ \text{MiB} \\ 20\ \text{MiB} & 1\ \text{MiB} < r < 10\ \text{MiB} \\ 2\ \text{MiB} \cdot \left\lceil r / 2\ \text{MiB} \right\rceil & r \ge 10\ \text{MiB} \end{cases}$$
#
# **Choosing.** There are two pools: *small* for requests up to 1 MiB, *large* for the others.
# A request gets the smallest free block of its own pool and its own stream that is large enough (best fit); of equal ones, the one with the lowest address.
# (A *stream* is a queue of GPU work. A program that makes none has one.)
#
# **Splitting.** What is left of the block becomes a block of its own: in the small pool if it is at least 512 B, in the large pool if it is more than 1 MiB. Less than that stays with the block, in nobody's use.
# A block that is freed merges with free neighbours, but only inside its segment.
#
# Two consequences to keep: blocks never move, and segments never merge.
# %% [markdown] key="rules" lang="zh" src="2849dd5b"
# ## 三条规则
#
# **取整。** $s$ 字节的请求取整为 $r$ 字节；如果没有合适的空闲块，就向驱动要一个 $S$ 字节的段：
#
# $$r = 512 \left\lceil \frac{s}{512} \right\rceil \qquad S = \begin{cases} 2\ \text{MiB} & r \le 1\ \text{MiB} \\ 20\ \text{MiB} & 1\ \text{MiB} < r < 10\ \text{MiB} \\ 2\ \text{MiB} \cdot \left\lceil r / 2\ \text{MiB} \right\rceil & r \ge 10\ \text{MiB} \end{cases}$$
#
# **挑选。** 内存池有两个：不超过 1 MiB 的请求归小块内存池（small），其余归大块内存池（large）。
# 请求得到的，是同一个池、同一个流（stream）里放得下它的最小空闲块（最佳适配，best fit）；大小相同时，取地址最低的。
# （流是 GPU 上的计算队列；程序自己不建，就只有一个。）
#
# **切分。** 剩余部分成为一个新的空闲块：小块内存池里至少剩 512 B 就切，大块内存池里要剩得超过 1 MiB 才切，不到的就留在块里，谁也用不上。
# 块释放时，会与相邻的空闲块合并，但只限于同一个段之内。
#
# 由此要记住两点：块从不移动，段从不合并。

# %% key="predict_segment"
predict("segment", ...)

# %% key="rounding" lang="en"
from minikv.memory.allocator.rules import round_size, segment_size
from minikv.units import exact_bytes

MIB, off, rows = 2**20, (1,) * 16, []
for size in (1, 512, 513, MIB, MIB + 1, 10 * MIB - 600, 10 * MIB - 500, 21 * MIB):
    rounded = round_size(size, off)
    segment = segment_size(rounded)
    rows.append((size, rounded, segment, segment - rounded))
Table(["request (B)", "rounded (B)", "segment (B)", "left over (B)"], rows)

# %% key="rounding" lang="zh"
from minikv.memory.allocator.rules import round_size, segment_size
from minikv.units import exact_bytes

MIB, off, rows = 2**20, (1,) * 16, []
for size in (1, 512, 513, MIB, MIB + 1, 10 * MIB - 600, 10 * MIB - 500, 21 * MIB):
    rounded = round_size(size, off)
    segment = segment_size(rounded)
    rows.append((size, rounded, segment, segment - rounded))
Table(["请求（B）", "取整（B）", "段（B）", "剩余（B）"], rows)

# %% [markdown] key="rounding_read" lang="en"
# What a segment has left over serves the next request.
# Only the last row loses it: in the large pool a rest of exactly 1 MiB is not more than 1 MiB.
# (`off` says that the setting `roundup_power2_divisions` is not in use.)
#
# ## See it: tokens that grow
#
# Now the last row of the count above, for one layer's K alone, drawn every 32 tokens.
# With a batch of 32, that many tokens more make K exactly 2 MiB larger, and segments come in multiples of 2 MiB.
# Move through the steps with Back and Forward.
# Each new K is larger than every block that was freed, so the rules leave one way: another segment.
# (The second setting, `expandable_segments`, has a section of its own further down.)
# %% [markdown] key="rounding_read" lang="zh" src="acb887f2"
# 段里剩下的部分，会用来满足之后的请求。
# 只有最后一行是白白剩下的：在大块内存池里，恰好 1 MiB 不算超过 1 MiB。
# （`off` 表示没有使用 `roundup_power2_divisions` 这项设置。）
#
# ## 看一看：token 不断增加
#
# 把上面计数的最后一行拿来细看，只看一层的 K，每 32 个 token 画一次。
# batch 为 32 时，每条序列多 32 个 token，K 恰好大 2 MiB，而段的大小正是 2 MiB 的倍数。
# 用“后退”“前进”逐步查看。
# 每个新的 K 都比已释放的任何一个块大，按规则只有一条路：再要一个段。
# （另一项设置 `expandable_segments`，后面有专门的一节。）

# %% key="story_cat"
from minikv.course.widgets.segments import AllocatorStep, SegmentsWidget
from minikv.memory import AllocatorSettings

k_token = 32 * token // (2 * len(spec.layers))
lengths = range(512, 672, 32)
steps = [AllocatorStep("malloc", f"K {lengths[0]}", lengths[0] * k_token)]
for tokens in lengths[1:]:
    steps.append(AllocatorStep("malloc", f"K {tokens}", tokens * k_token, t("note_cat", tokens=tokens)))
    steps.append(AllocatorStep("free", f"K {tokens - 32}", note=t("note_cat_free")))
steps.append(AllocatorStep("empty_cache", note=t("note_cat_empty")))
expandable = AllocatorSettings(expandable_segments=True)
choices = {t("defaults"): AllocatorSettings(), "expandable_segments": expandable}
full = len(steps) - 1
widget = SegmentsWidget(t("lang"), steps=steps, capacity=640 * MIB, settings=choices, stop_at=full)
show(widget, text=widget.summary)

# %% [markdown] key="story_cat_read" lang="en"
# Every freed block is too small for the next K, and no two of them can merge: each is a segment of its own.
# In the count above, all 64 tensors climb this stair every 32 tokens, and one more segment goes round between them, because old and new live side by side: $64 + 16 \cdot 65 = 1104$ requests to the driver.
#
# The staircase goes on until the device is full; then the allocator waits for the GPU, gives back all it has cached, and begins again (`num_alloc_retries` counts how often).
# Here `empty_cache()` helps: each freed block is a whole segment.
# %% [markdown] key="story_cat_read" lang="zh" src="20c7649a"
# 释放的每个块都放不下下一个 K，彼此又不能合并，因为各自就是一整个段。
# 上面的计数里，64 个张量每 32 个 token 一齐上一级台阶；又因为新旧并存，还要多一个段在它们之间轮换：向驱动请求的次数是 $64 + 16 \cdot 65 = 1104$。
#
# 就这样一级一级涨上去，直到设备满了；这时分配器等 GPU 完成计算，把缓存着的全部归还，再从头来过（次数记在 `num_alloc_retries` 里）。
# 这种情况下 `empty_cache()` 管用：释放的每个块都是一整个段。

# %% [markdown] key="big" lang="en"
# ## See it: free, keep, empty
#
# The second story needs no loop.
# Llama-3.1-8B runs on a card that torch sees as 23.64 GiB, with [lesson 06](06_the_linear_cache.ipynb)'s cache: one tensor, batch 48, room for 1,024 tokens.
# A second cache of this size does not fit beside the first, so the next batch waits until this one is done.
# When it is, its cache is freed.
# Then the script keeps something small: the fp32 logits of the last step, to score them later.
# Then `empty_cache()`, and the next batch.
# %% [markdown] key="big" lang="zh" src="6ae83c57"
# ## 看一看：释放、留下、清空
#
# 第二个故事不需要循环。
# 在一块 torch 看到 23.64 GiB 的卡上运行 Llama-3.1-8B，用[第 06 课](06_the_linear_cache.ipynb)的缓存：一个张量，batch 为 48，可放 1,024 个 token。
# 卡上放不下第二个这么大的缓存，所以下一批要等这一批结束。
# 这一批结束，缓存释放。
# 然后脚本留下一样小东西：最后一步的 fp32 logits，准备以后打分。
# 再然后是 `empty_cache()`，接着下一批。

# %% key="predict_stuck"
predict("stuck", ...)

# %% key="story_big"
card, batch = find_gpu("RTX 4090").total_bytes, 48
weights = weight_bytes("Llama-3.1-8B").total
cache = spec.bytes_for(1024, batch=batch)
config = find_model("Llama-3.1-8B").config
logits = batch * config["vocab_size"] * 4
story = [
    AllocatorStep("malloc", t("weights"), weights, t("note_weights")),
    AllocatorStep("malloc", t("cache"), cache, t("note_cache")),
    AllocatorStep("free", t("cache"), note=t("note_free")),
    AllocatorStep("malloc", "logits", logits, t("note_logits")),
    AllocatorStep("empty_cache", note=t("note_empty")),
    AllocatorStep("malloc", t("next_cache"), cache, t("note_next")),
]
choices = {
    t("defaults"): AllocatorSettings(),
    "expandable_segments": expandable,
    "max_split_size_mb:512": AllocatorSettings(max_split_size_mb=512),
}
widget = SegmentsWidget(t("lang"), steps=story, capacity=card, settings=choices)
show(widget, text=widget.summary)

# %% [markdown] key="big_read" lang="en"
# The logits needed 23.5 MiB.
# The smallest free block that was large enough was the cache's own, so they were cut out of it; and a segment with one live block stays, whatever its size.
# The next batch, no larger than the first, is out of memory.
# It is the segment of #35901, with other numbers.
#
# What could the script have done?
# The same six operations, with one thing changed at a time:
# %% [markdown] key="big_read" lang="zh" src="8bfba642"
# logits 只要 23.5 MiB。
# 放得下它的最小空闲块，就是缓存留下的那一块，于是从里面切出一块给它；而只要有一个块还活着，整个段就留在原地，不论多大。
# 下一批并不比第一批大，却显存不足。
# 这就是 #35901 里的那个段，只是数字不同。
#
# 脚本本来可以怎么做？
# 还是这六步操作，每次只改一处：

# %% key="variants"
from minikv.memory import DeviceOutOfMemoryError


def six_steps(order, kept, memory_limit=None, **given):
    settings = AllocatorSettings(**given)
    model = CachingAllocator(card, settings=settings, memory_limit=memory_limit)
    model.malloc(weights)
    first = model.malloc(cache)
    for call in order.split(", "):
        match call:
            case "free":
                model.free(first)
            case "keep":
                model.malloc(kept)
            case "empty":
                model.empty_cache()
    usage = model.usage()
    try:
        model.malloc(cache)
        fits = True
    except DeviceOutOfMemoryError:
        fits = False
    return (usage.reserved - usage.allocated) / MIB, fits


hidden = batch * config["hidden_size"] * 2
print(t("variants_head"))
for order, name, kept, settings in (
    ("free, keep, empty", "logits", logits, {}),
    ("keep, free, empty", "logits", logits, {}),
    ("free, empty, keep", "logits", logits, {}),
    ("free, keep, empty", "hidden", hidden, {}),
    ("free, keep, empty", "logits", logits, {"max_split_size_mb": 512}),
    ("free, keep, empty", "logits", logits, {"expandable_segments": True}),
):
    stuck, fits = six_steps(order, kept, **settings)
    end = t("fits" if fits else "no_fit")
    what = ", ".join(f"{key}:{value}" for key, value in settings.items())
    print(f"{order:<20}{name:<8}{kept / MIB:>8.2f}{stuck:>12,.1f}   {end:<15}{what}".rstrip())

# %% [markdown] key="variants_read" lang="en"
# - Row 2: kept *before* the cache is freed, the logits get a segment of their own.
# - Row 3: and so they do if `empty_cache()` comes before them, because then the cache's segment has gone already. The order decides, not the amount.
# - Row 4: the last hidden states of the same step are below 1 MiB. They live in the small pool, and no small block can ever pin a large segment.
# - Row 5: blocks of 512 MiB or more are never cut for a small request.
# - Row 6: with expandable segments, which come next, the rest of the memory goes back.
#
# And the way of every serving engine: the cache is allocated once and *never* freed.
# A block that is not freed is not cut.
# %% [markdown] key="variants_read" lang="zh" src="d18645a9"
# - 第 2 行：在缓存释放**之前**留下 logits，它就有自己的段。
# - 第 3 行：先调用 `empty_cache()` 再留下 logits，结果也一样，因为那时缓存的段已经还回去了。起决定作用的是次序，不是大小。
# - 第 4 行：同一步最后的隐藏状态不到 1 MiB，放在小块内存池里；小块永远拖不住大块内存池的段。
# - 第 5 行：512 MiB 及以上的块不会为小请求切开。
# - 第 6 行：可扩展段能把其余的显存还回去，下面就讲。
#
# 推理引擎的做法则更干脆：缓存只分配一次，**从不**释放。
# 不释放的块，就不会被切开。

# %% [markdown] key="expandable" lang="en"
# ## See it: the same with expandable segments
#
# With `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` in the environment (newer versions of torch also read `PYTORCH_ALLOC_CONF`) a segment is a long range of *addresses*; memory is mapped behind it page by page, 20 MiB each in the large pool.
# `empty_cache()` can then take back every page without a live block.
# (Not everything works with it: vLLM's sleep mode does not, [PR #14189](https://github.com/vllm-project/vllm/pull/14189).)
# Go back to the widget and choose the other settings: the same six steps, and the last one fits.
# `replay` runs such a list of operations without the drawing; here is what is reserved after each:
# %% [markdown] key="expandable" lang="zh" src="edcf025b"
# ## 看一看：换成可扩展段
#
# 设置环境变量 `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`（较新的 torch 也读 `PYTORCH_ALLOC_CONF`）之后，一个段是一长段**地址**，背后的显存逐页映射，大块内存池每页 20 MiB。
# 这样，凡是没有存活块的页，`empty_cache()` 都能收回。
# （但它并非处处可用：vLLM 的睡眠模式（sleep mode）就与它不兼容，见 [PR #14189](https://github.com/vllm-project/vllm/pull/14189)。）
# 回到上面的组件，换成别的设置：还是那六步，最后一步放得下了。
# 不画图时，可以用 `replay` 运行这样一串操作；下面是每一步之后已保留的显存：

# %% key="story_replayed"
from minikv.memory import replay

fields = {"malloc": ("id", "size"), "free": ("id",), "empty_cache": ()}
trace = []
for step in story:
    known = {"id": step.name, "size": step.size}
    trace.append({"op": step.kind} | {field: known[field] for field in fields[step.kind]})
print(t("replay_head"))
for name, settings in choices.items():
    done = replay(trace, CachingAllocator(card, settings=settings))
    reserved = "".join(f"{step.usage.reserved / 2**30:>9.2f}" for step in done)
    end = t("no_fit" if done[-1].out_of_memory else "fits")
    print(f"{reserved}   {end}  {name}")

# %% [markdown] key="empty" lang="en"
# ## What each call does
#
# | call | allocated | reserved | peak of allocated |
# |---|---|---|---|
# | the last reference to a tensor goes | falls | stays | stays |
# | `gc.collect()` | falls if a cycle held a tensor | stays | stays |
# | `torch.cuda.empty_cache()` | stays | falls by the segments (expandable: the pages) with no live block | stays |
# | `torch.cuda.reset_peak_memory_stats()` | stays | stays | becomes the current value |
#
# `empty_cache()` frees no tensor, and finds torch no memory that torch would not find by itself: it uses what is cached, and gives it back on its own before it reports out of memory (`num_alloc_retries`).
# The call makes room for *others*: another process, or a library that asks the driver directly.
# Row 3 above is its other use: an empty segment that has gone back cannot be cut.
# It waits for the GPU, and the next request has to go to the driver again, so it has no place in a decoding loop.
#
# A public guide, "KV 缓存分配详细指南" (a detailed guide to KV cache allocation), draws 5 GB of cached blocks that become 0; with one live block in each segment they stay 5 GB.
# A comment there calls the peak that of "整个程序运行中", the whole run of the program: it is the peak since the last reset.
# %% [markdown] key="empty" lang="zh" src="6481f73f"
# ## 每个调用做了什么
#
# | 调用 | 已分配 | 已保留 | 已分配的峰值 |
# |---|---|---|---|
# | 张量的最后一个引用消失 | 下降 | 不变 | 不变 |
# | `gc.collect()` | 若循环引用持有张量则下降 | 不变 | 不变 |
# | `torch.cuda.empty_cache()` | 不变 | 减去没有存活块的段（可扩展段：页） | 不变 |
# | `torch.cuda.reset_peak_memory_stats()` | 不变 | 不变 | 变为当前值 |
#
# `empty_cache()` 不释放任何张量，也不会替 torch 找出它自己找不到的显存：缓存着的，torch 本来就能用；在报显存不足之前，它还会自己先归还一遍（`num_alloc_retries`）。
# 这个调用是给**别人**腾空间：别的进程，或者直接向驱动要显存的库。
# 上面第 3 行是它的另一个用处：空段还回去了，就不会再被切开。
# 它要等 GPU 完成计算，之后的请求又得重新去找驱动，所以不该放在解码循环里。
#
# 公开文档《KV 缓存分配详细指南》画的是 5 GB 空闲缓存全部变为 0；如果每个段里都还有一个存活的块，这 5 GB 会原样留着。
# 那里有一处注释说峰值是“整个程序运行中”的峰值，其实是自上次重置以来的峰值。

# %% key="calls_model"
model = CachingAllocator(card)


def print_row(call):
    usage, peak = model.usage(), model.memory_stats()["allocated_bytes.all.peak"]
    sizes = (usage.allocated, usage.reserved, peak)
    print(f"{call:<18}" + "".join(f"{size / 2**30:>10.2f}" for size in sizes))


print(t("row_head"))
model.malloc(weights)
first = model.malloc(cache)
print_row("malloc")
model.free(first)
print_row("free")
model.reset_peak_stats()
print_row("reset_peak_stats")
model.empty_cache()
print_row("empty_cache")

# %% [markdown] key="zeros" lang="en"
# ## Empty or zeros
#
# One question is left: does an allocation take memory at all?
# On a GPU it does: when `cudaMalloc` returns, the bytes are yours, written or not.
# On a CPU the system only promises addresses, if the tensor is large. A page of memory (usually 4 KiB) comes with the first *touch*, and is cleared then.
# `MemoryStats` shows both: on a CPU `reserved` is the address space of the process, `allocated` what of it is resident.
# %% [markdown] key="zeros" lang="zh" src="2dec93d6"
# ## empty 还是 zeros
#
# 还有一个问题：分配之后，内存真的占上了吗？
# 在 GPU 上是的：`cudaMalloc` 返回时，这些字节就归你了，写没写过都一样。
# 在 CPU 上，张量较大时，系统只是许诺了一段地址；一页内存（通常 4 KiB）要等第一次**写入**才真正给出，并在那时清零。
# `MemoryStats` 两样都能看到：在 CPU 上，`reserved` 是进程的地址空间，`allocated` 是其中真正驻留在内存里的部分。

# %% key="touch" tags="timing"
size = 256 * MIB


def print_growth(name, work):
    before, begin = MemoryStats.read(device), time.perf_counter()
    made = work()
    if device == "cuda":
        torch.cuda.synchronize()
    ms, after = 1000 * (time.perf_counter() - begin), MemoryStats.read(device)
    reserved = (after.reserved - before.reserved) / MIB
    allocated = (after.allocated - before.allocated) / MIB
    print(f"{reserved:>10.0f}{allocated:>10.0f}{ms:>10.2f}   {name}")
    return made


print(t("touch_head"))
room = print_growth("torch.empty", lambda: torch.empty(size, dtype=torch.uint8, device=device))
print_growth(t("first_write"), lambda: room.fill_(1))
print_growth(t("second_write"), lambda: room.fill_(2))
del room
room = print_growth("torch.zeros", lambda: torch.zeros(size, dtype=torch.uint8, device=device))
print_growth(t("first_write"), lambda: room.fill_(1))
del room

# %% [markdown] key="touch_read" lang="en"
# Columns: MiB of growth in `reserved` and in `allocated`, and milliseconds.
#
# - On a CPU, `torch.empty` is free because nothing has happened yet. The first write pays for the pages, the second does not. `torch.zeros` *is* a first write.
# - So a cache made with `torch.empty` on a CPU puts its cost into the first tokens, in small portions, and a memory graph shows it growing although it was allocated once.
# - A large tensor on a CPU goes back to the system when it is freed, and `torch.cat` then touches new pages for every token: that was the price of malloc in the first timing table. Smaller blocks are kept for the next request, much as the caching allocator keeps its own. With glibc, the usual C library of Linux, the border is 32 MiB ([mallopt](https://man7.org/linux/man-pages/man3/mallopt.3.html), `M_MMAP_THRESHOLD`); look for the jump there.
# - On a GPU, `torch.zeros` is a kernel that writes; the memory is there already.
#
# `LinearKVCache` uses zeros, and not for the time: a NaN in memory that was never written survives a mask ([lesson 06](06_the_linear_cache.ipynb)).
# %% [markdown] key="touch_read" lang="zh" src="f7d73a82"
# 各列依次是 `reserved` 和 `allocated` 增加的 MiB，以及毫秒数。
#
# - 在 CPU 上，`torch.empty` 不花时间，是因为什么都还没发生。第一次写入要付出分配内存页的代价，第二次就不用了。`torch.zeros` **本身**就是第一次写入。
# - 所以在 CPU 上用 `torch.empty` 建立的缓存，会把代价一点一点摊到最初的 token 上；明明只分配了一次，内存曲线却在慢慢上升。
# - CPU 上的大张量一释放就还给系统，于是 `torch.cat` 每个 token 都要写一批新页；开头那张计时表里 malloc 的代价，就是这么来的。较小的块会留给下一次请求，与缓存分配器的做法相似。在 Linux 常用的 C 库 glibc 里，分界是 32 MiB（[mallopt](https://man7.org/linux/man-pages/man3/mallopt.3.html) 的 `M_MMAP_THRESHOLD`）；计时表正是从那里开始跳升的。
# - 在 GPU 上，`torch.zeros` 只是一个写入的 kernel，显存早已占好。
#
# `LinearKVCache` 用的是 zeros，但不是为了时间：从未写过的内存里若有 NaN，掩码是遮不住的（[第 06 课](06_the_linear_cache.ipynb)）。

# %% [markdown] key="snapshot" lang="en"
# ## Read a real one
#
# `torch.cuda.memory._dump_snapshot(file)` writes every segment with its blocks; `from_snapshot` reads the file without running anything that is in it.
# This is the segment of #35901 as its owner printed it, before the others moved in:
# %% [markdown] key="snapshot" lang="zh" src="9ea0c601"
# ## 读一份真实的快照
#
# `torch.cuda.memory._dump_snapshot(文件)` 会写出每个段和其中的块；`from_snapshot` 读这个文件，但不执行里面的任何东西。
# 下面就是 #35901 里的那个段，内容与提问者打印的一致，当时别的张量还没有住进来：

# %% key="snapshot_json"
import json

from minikv.memory import from_snapshot

printed = {
    "device": 0, "address": 139624890499072, "segment_type": "large",
    "total_size": 11643387904, "allocated_size": 0, "active_size": 0,
    "blocks": [{"size": 11643387904, "state": "inactive"}],
}


def print_snapshot(found):
    sizes = dict(reserved=found.reserved, allocated=found.allocated, split=found.inactive_split)
    print(t("snapshot_line", **sizes))


snapshot = from_snapshot(json.dumps([printed]).encode())
print_snapshot(snapshot)
(segment,) = snapshot.segments
size = segment.total_size
print(t("multiple", size=size, is_multiple=segment_size(size) == size))

# %% [markdown] key="snapshot_read" lang="en"
# One block, nothing in it: `empty_cache()` would have returned it at this moment, and a request of the same size would have fitted.
# On a GPU the next cell does the second story in small, 256 MiB freed and then 24 MiB kept, and reads its own snapshot: what is stuck, and which line of code asked for the live blocks.
# %% [markdown] key="snapshot_read" lang="zh" src="ab2d06a2"
# 只有一个块，里面什么都没有：此刻 `empty_cache()` 能把它还回去，同样大小的请求也放得下。
# 有 GPU 时，下一个单元格会把第二个故事缩小重演一遍：先释放 256 MiB，再留下 24 MiB，然后读自己的快照，看看有多少还不回去，存活的块又是哪一行代码申请的。

# %% key="snapshot_gpu" tags="hardware"
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
    print_snapshot(snapshot)
    for where, size, count in snapshot.holders()[:3]:
        print(f"{exact_bytes(size)}  {count}  {where.rpartition('/')[2] or '-'}")
else:
    print(t("no_gpu"))

# %% [markdown] key="break" lang="en"
# ## Break it: the setting from the forum
#
# The out-of-memory message recommends settings, and forums recommend numbers.
# Two that are often copied: `max_split_size_mb` as small as it goes (20; older versions of torch want more than 20), and `garbage_collection_threshold:0.8`, which promises to give cached memory back before the card is full.
# Before you run it: both stories again, on the same card. Which setting helps one and hurts the other? Which does nothing?
# %% [markdown] key="break" lang="zh" src="2a0c8a62"
# ## 弄坏它：论坛上抄来的设置
#
# 显存不足的报错会建议一些设置，论坛上则流传着具体的数字。
# 常被照抄的有两个：把 `max_split_size_mb` 设到最小（20；旧版 torch 要求大于 20），以及 `garbage_collection_threshold:0.8`，它号称能在显卡占满之前归还缓存着的显存。
# 运行之前先想：同一块卡，两个故事再来一遍。哪个设置帮了一个、害了另一个？哪个根本不起作用？

# %% key="break_settings"
limit = int(0.95 * card)
print(t("break_head"))
for name, settings, memory_limit in (
    ("-", {}, None),
    ("max_split_size_mb:20", {"max_split_size_mb": 20}, None),
    ("gc:0.8", {"garbage_collection_threshold": 0.8}, None),
    ("gc:0.8, limit", {"garbage_collection_threshold": 0.8}, limit),
    ("expandable", {"expandable_segments": True}, None),
):
    cells = []
    for batch in (8, 32):
        chosen = AllocatorSettings(**settings)
        model = CachingAllocator(card, settings=chosen, memory_limit=memory_limit)
        model.malloc(weights)
        grow(model, batch, 512, 256)
        stats = model.memory_stats()
        peak = stats["reserved_bytes.all.peak"] / 2**30
        cells.append(f"{peak:>9.2f}{stats['num_device_alloc']:>7,}")
    stuck, fits = six_steps("free, keep, empty", logits, memory_limit, **settings)
    end = t("fits" if fits else "no_fit")
    print(f"{name:<22}{''.join(cells)}{stuck:>12,.0f} MiB  {end}")

# %% [markdown] key="break_read" lang="en"
# - `max_split_size_mb:20` cures the 6 GB. But at batch 8 it fills the card with a cache of a few hundred MiB and calls the driver thousands of times: blocks of 20 MiB or more may not be cut, so what is freed fits almost nobody. (It can be right for one phase: vLLM sets it while the weights are loaded, [PR #41268](https://github.com/vllm-project/vllm/pull/41268).)
# - The garbage collection does *nothing* unless the process has a limit: torch reads the threshold only where `torch.cuda.set_per_process_memory_fraction` was called. With a limit it keeps the staircase low, and still asks the driver as often; a segment with a live block it cannot return either.
# - Expandable segments help both, here. They are no reason to grow by `torch.cat`: the copies stay.
#
# Settings treat a symptom.
# A pre-allocated cache takes both stories away: one call to malloc, no staircase, nothing to be cut.
# %% [markdown] key="break_read" lang="zh" src="7eca994a"
# - `max_split_size_mb:20` 解决了那 6 GB。但 batch 为 8 时，几百 MiB 的缓存就占满了整块卡，还调用了驱动几千次：20 MiB 及以上的块不许切开，释放的块几乎谁都用不上。（只在某个阶段使用，倒可能是对的：vLLM 加载权重期间就这样设置，见 [PR #41268](https://github.com/vllm-project/vllm/pull/41268)。）
# - 没有给进程设上限时，垃圾回收**什么都不做**：只有调用过 `torch.cuda.set_per_process_memory_fraction`，torch 才会理会这个阈值。设了上限，台阶就低了，但调用驱动的次数一点没少；含有存活块的段，它同样还不回去。
# - 可扩展段在这里对两个故事都有帮助。但这不是继续用 `torch.cat` 的理由：复制一次也没少。
#
# 设置治的是症状。
# 预分配的缓存则让两个故事都不再发生：malloc 只调用一次，没有台阶，也没有块可切。

# %% [markdown] key="self" lang="en"
# ## Check yourself
#
# The first is one of "Memory Model Deep Dive"'s own self-test questions.
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="4a039986"
# ## 自我检查
#
# 第一题是《Memory Model Deep Dive》的自测题之一。
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_why"
explain("why_preallocate")

# %% key="explain_survivor"
explain("which_survivor")

# %% key="explain_empty"
explain("empty_cache_or_not")

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - In April 2020 a user's training step ran once and was out of memory the second time, with half of the GPU unused ([PyTorch #35901](https://github.com/pytorch/pytorch/issues/35901), "OOM error where ~50% of the GPU RAM cannot be utilised/reserved"). Its snapshot has the segment of the first picture, 11,643,387,904 bytes, with tensors of 499,214,336 bytes in it.
# - [Lesson 03](03_the_2_86x_mistake.ipynb)'s script ended with "6+ GB stuck in CUDA allocator" after `gc.collect()` and `empty_cache()`. Why `empty_cache()` may return nothing is this lesson's part of that case; [lesson 16](16_where_did_6gb_go.ipynb) finds what held the memory.
# %% [markdown] key="wild" lang="zh" src="a32e7f79"
# ## 实战现场
#
# - 2020 年 4 月，一位用户的训练第一步正常，第二步就显存不足，而 GPU 上有一半显存没有使用（[PyTorch #35901](https://github.com/pytorch/pytorch/issues/35901)，“OOM error where ~50% of the GPU RAM cannot be utilised/reserved”）。它的快照里就有第一幅图中的段：11,643,387,904 字节，里面的张量共 499,214,336 字节。
# - [第 03 课](03_the_2_86x_mistake.ipynb)的脚本在 `gc.collect()` 和 `empty_cache()` 之后，仍有“6+ GB stuck in CUDA allocator”（6 GB 以上卡在 CUDA 分配器里）。为什么 `empty_cache()` 可能什么都还不回去，由本课回答；显存究竟被什么占着，见[第 16 课](16_where_did_6gb_go.ipynb)。

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
# | nvidia-smi shows far more than my tensors take | `torch.cuda.memory_reserved() - torch.cuda.memory_allocated()`: that much is cached; what nvidia-smi shows above `memory_reserved()` is the CUDA context, libraries that allocate for themselves, and other processes |
# | `empty_cache()` brings nothing back | `torch.cuda.memory_stats()["inactive_split_bytes.all.current"]`: so many free bytes share a segment with a live block (not counted with expandable segments); `from_snapshot(file).holders()` says who asked for the live ones |
# | reserved climbs while decoding, allocated hardly does | `torch.cuda.memory_stats()["num_device_alloc"]` before and after a hundred steps: if it goes up, requests outgrow what is cached, so look for a `torch.cat` per token; `num_alloc_retries` above 0 says that the card was full once and everything cached was given back in the middle of the run |
# %% [markdown] key="stuck" lang="zh" src="5c1b632c"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | nvidia-smi 显示的远比我的张量多 | `torch.cuda.memory_reserved() - torch.cuda.memory_allocated()`：这么多是缓存着的；nvidia-smi 比 `memory_reserved()` 还多出的，是 CUDA 上下文、自行分配显存的库，以及别的进程 |
# | `empty_cache()` 之后什么都没回来 | `torch.cuda.memory_stats()["inactive_split_bytes.all.current"]`：有这么多空闲字节与存活的块同处一段（可扩展段不计在内）；`from_snapshot(文件).holders()` 会说出存活的块是谁申请的 |
# | 解码时“已保留”一路上升，“已分配”却几乎不变 | `torch.cuda.memory_stats()["num_device_alloc"]`，在一百步前后各看一次：变大了，说明请求越来越大，缓存着的块放不下，找找哪里每个 token 都在 `torch.cat`；`num_alloc_retries` 大于 0，则说明显卡曾经满过，运行中途把缓存着的全部归还过 |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You know why the cache is allocated once, and what torch makes of the request.
# One number is missing: how large may that one allocation be?
# [Lesson 08](08_allocate_kv_cache.ipynb) measures it: `total * utilization - used - peak + current`, with this lesson's peak and this lesson's reserved in the places where they belong.
# %% [markdown] key="next" lang="zh" src="1b240c38"
# ## 下一课
#
# 现在你知道缓存为什么只分配一次，也知道 torch 怎样处理这次请求。
# 还差一个数：这唯一的一次分配，可以有多大？
# [第 08 课](08_allocate_kv_cache.ipynb)把它测出来：`total * utilization - used - peak + current`，本课讲的“峰值”和“已保留”，到那里各归其位。
