# %% [meta]
# number = "16"
# slug = "where_did_6gb_go"
# needs = ["03", "05", "07"]
# rooms = ["memory.retention", "memory.allocator"]
# [title]
# en = "Where did 6 GB go?"
# zh = "那 6 GB 去哪儿了？"
# [t4]
# en = "\"The scene\" and \"What really keeps it\" run on the T4's memory; two cells then also show its allocated, reserved and non-torch bytes."
# zh = "“现场”和“真正会占住显存的”两节在 T4 的显存上运行；另有两个单元格会给出它的已分配、已保留和 torch 之外的字节数。"
# [paper]
# en = "16.1, 16.4, 16.5"
# zh = "16.1、16.4、16.5"

# %% [markdown] key="question" lang="en"
# ## The question
#
# **What still holds the memory after `generate()`, and which number tells you?**
#
# A run has ended. You dropped its cache and called `empty_cache()`. Then your program asks for memory that should be free, and gets an out-of-memory error. Here is the card at that moment, computed with a simulation of PyTorch's allocator. The weights are live, as they should be. But the 7 GiB called *pinned* are neither in use nor available:
# %% [markdown] key="question" lang="zh" src="e5d02180"
# ## 问题
#
# **`generate()` 之后，显存被什么占着？看哪个数字才知道？**
#
# 一次运行结束了，缓存已经丢掉，`empty_cache()` 也调用过了。程序接着申请一块本该空闲的显存，却报显存不足。下面是那一刻的显卡，由模拟的 PyTorch 分配器算出。权重还在使用，这是应该的；但标着“被钉住”的 7 GiB，既没有张量在用，也拿不回来：

# %% key="ledger" lang="en"
from minikv.course.diagrams import memory_ledger
from minikv.course.lessons.l16.culprit import culprit

end = culprit("naive")  # DeepSeek-V3 on one of 8 H200, in a simulation of PyTorch's allocator
counted = dict(total=end.capacity, free=end.free, reserved=end.reserved, allocated=end.allocated, pinned=end.stuck)
show(memory_ledger(**counted, lang="en"))

# %% key="ledger" lang="zh"
from minikv.course.diagrams import memory_ledger
from minikv.course.lessons.l16.culprit import culprit

end = culprit("naive")  # 8 块 H200 之一上的 DeepSeek-V3，在模拟的 PyTorch 分配器里运行
counted = dict(total=end.capacity, free=end.free, reserved=end.reserved, allocated=end.allocated, pinned=end.stuck)
show(memory_ledger(**counted, lang="zh"))

# %% [markdown] key="able" lang="en"
# After this lesson you can
#
# - **find** the share in which the missing memory is, by subtracting five figures;
# - **name** the variable that holds a tensor, and let it go;
# - **explain** how one small tensor keeps a whole segment of the allocator, many times its size.
#
# You need to know how a view keeps its storage alive ([lesson 05](05_owned_and_borrowed.ipynb)) and what a segment of the allocator is ([lesson 07](07_allocate_once.ipynb)).
# %% [markdown] key="able" lang="zh" src="c0603f1d"
# 学完本课，你能够：
#
# - 用五个数字**做减法**，说出缺的显存在哪一份里；
# - **指出**是哪个变量占着张量，并把它放掉；
# - **解释**一个小张量怎样留住分配器里比它大许多倍的整个段。
#
# 需要先了解：视图怎样让存储一直活着（[第 05 课](05_owned_and_borrowed.ipynb)），分配器的段是什么（[第 07 课](07_allocate_once.ipynb)）。

# %% [markdown] key="facts" lang="en"
# ## The case
#
# The case is a real report about DeepSeek on several GPUs. After `generate()`, `gc.collect()` and `empty_cache()`, 5.5 GB were free where about 18 GB were expected. The report explained "6+ GB" of the gap by a batch that had been estimated too large ([lesson 03](03_the_2_86x_mistake.ipynb) is about that estimate). It went through five suspects, by reading source code, and acquitted all of them. We test the same five by experiment, and then we look for a sixth.
#
# Before you explain a gap, check whether the explanation is as large as the gap:
# %% [markdown] key="facts" lang="zh" src="e4a41de0"
# ## 案情
#
# 这个案子来自一份真实的报告，是在多块 GPU 上运行 DeepSeek。`generate()`、`gc.collect()`、`empty_cache()` 之后，本该有约 18 GB 空闲显存，实际只有 5.5 GB。报告用“batch 估大了”解释了其中的“6+ GB”（那个估算见[第 03 课](03_the_2_86x_mistake.ipynb)），又靠读源代码逐个查了五个嫌疑对象，全部排除。我们改用实验，把这五个再查一遍，然后去找第六个。
#
# 解释一个缺口之前，先看看这个解释够不够大：

# %% key="predict_unexplained"
predict("unexplained", ...)

# %% key="facts_sum" lang="en"
from minikv.course import Table

expected, seen, explained = 18.0, 5.5, 6.0
missing = expected - seen
Table(["missing, GB", "explained, GB", "not explained, GB"], [(missing, explained, missing - explained)])

# %% key="facts_sum" lang="zh"
from minikv.course import Table

expected, seen, explained = 18.0, 5.5, 6.0
missing = expected - seen
Table(["少了，GB", "有解释的，GB", "没有解释的，GB"], [(missing, explained, missing - explained)])

# %% [markdown] key="facts_read" lang="en"
# The explanation covers less than half of the gap. To find the rest you need three more figures: `memory_allocated()`, `memory_reserved()` and what other processes use. The report gives none of them. What would they have told?
# %% [markdown] key="facts_read" lang="zh" src="3bdb6cb6"
# 这个解释还不到缺口的一半。其余的部分在哪里，要看另外三个数字：`memory_allocated()`、`memory_reserved()`，以及其他进程占了多少。报告里一个也没有给出。它们本来能说明什么？

# %% [markdown] key="formula" lang="en"
# ## One subtraction
#
# All used memory falls into four shares, and each share has a different cause. You can compute the four from five figures:
# %% [markdown] key="formula" lang="zh" src="169ef8e4"
# ## 一次减法
#
# 已用的显存可以分成四份，每一份的原因不同。用五个数字就能算出这四份：

# %% [markdown] key="formula_math"
# $$\underbrace{T - F}_{\text{used}} \;=\; \underbrace{A}_{\text{live}} \;+\; \underbrace{P}_{\text{pinned}} \;+\; \underbrace{(R - A - P)}_{\text{returnable}} \;+\; \underbrace{(T - F - R)}_{\text{outside}}$$

# %% [markdown] key="symbols" lang="en"
# | symbol | what it is | where you read it | value here (first picture) |
# |---|---|---|---|
# | $T$, $F$ | all memory of the GPU, and what is free | `torch.cuda.mem_get_info()` | 139.80 GiB, 48.52 GiB |
# | $A$ | **allocated**: blocks in use, by live tensors and by some workspaces (cuBLAS) | `torch.cuda.memory_allocated()` | 82.21 GiB |
# | $R$ | **reserved**: all segments that PyTorch took from the GPU | `torch.cuda.memory_reserved()` | 89.28 GiB |
# | $P$ | **pinned**: free blocks in segments in which something else is live | `memory_stats()["inactive_split_bytes.all.current"]` | 7.07 GiB |
#
# With the numbers put in, in GiB: 139.80 - 48.52 = 91.28 are used, and 82.21 + 7.07 + (89.28 - 82.21 - 7.07) + (91.28 - 89.28) = 82.21 + 7.07 + 0 + 2.00 = 91.28. So 82.21 are live, 7.07 pinned, 0 returnable and 2.00 outside.
#
# What helps depends on the share that is large:
#
# | large share | held by | what helps | what doesn't |
# |---|---|---|---|
# | live | a Python object that holds a tensor | find the object and drop it | `empty_cache()`, or `gc.collect()` alone |
# | pinned | a live tensor in a large segment | drop that tensor, or allocate it earlier | `empty_cache()` |
# | returnable | no object; PyTorch only caches it | `empty_cache()`, or nothing, since PyTorch will use it again | looking for a leak |
# | outside | the CUDA context, NCCL (the library by which GPUs exchange data), other processes | count processes; create fewer NCCL communicators | all of the above |
#
# These figures have two traps:
#
# - With `expandable_segments`, PyTorch doesn't count $P$; it stays 0. Whatever is left of $R - A$ after `empty_cache()` is pinned all the same.
# - The memory pool of a CUDA graph belongs to the graph. Its free segments look returnable, but they stay as long as the graph does.
#
# `MemoryStats` reads all five figures. Here they are on this machine. (A CPU has no caching allocator. There, *allocated* is the resident memory of the process, and the figures that only a GPU has stay empty.)
# %% [markdown] key="symbols" lang="zh" src="30c21f93"
# | 符号 | 含义 | 从哪里读 | 本例取值（第一张图） |
# |---|---|---|---|
# | $T$、$F$ | GPU 的全部显存，其中空闲的 | `torch.cuda.mem_get_info()` | 139.80 GiB、48.52 GiB |
# | $A$ | **已分配**：正在使用的块，属于存活的张量，也包括一些工作空间（cuBLAS） | `torch.cuda.memory_allocated()` | 82.21 GiB |
# | $R$ | **已保留**（reserved）：PyTorch 从 GPU 拿走的所有段（segment） | `torch.cuda.memory_reserved()` | 89.28 GiB |
# | $P$ | **被钉住**：段里的空闲块，同一段里还有别的东西在用 | `memory_stats()["inactive_split_bytes.all.current"]` | 7.07 GiB |
#
# 代入数字，单位 GiB：已用 139.80 - 48.52 = 91.28；四份是 82.21 + 7.07 + (89.28 - 82.21 - 7.07) + (91.28 - 89.28) = 82.21 + 7.07 + 0 + 2.00 = 91.28。也就是说，存活（live）82.21，被钉住（pinned）7.07，可归还（returnable）0，torch 之外（outside）2.00。
#
# 哪一份大，就用哪一种办法：
#
# | 哪一份大 | 由什么持有 | 有用的办法 | 没用的办法 |
# |---|---|---|---|
# | 存活 | 某个持有张量的 Python 对象 | 找到这个对象，把它放掉 | `empty_cache()`，或者只调用 `gc.collect()` |
# | 被钉住 | 大段里的一个存活的张量 | 放掉那个张量，或让它更早分配 | `empty_cache()` |
# | 可归还 | 没有对象持有，只是缓存着 | `empty_cache()`；也可以不管，PyTorch 会再用 | 到处找泄漏 |
# | torch 之外 | CUDA 上下文、NCCL（GPU 之间的通信库）、其他进程 | 数一数进程；少建 NCCL 通信器（communicator） | 以上所有办法 |
#
# 看这些数字时要小心两处：
#
# - 开了 `expandable_segments`，PyTorch 就不再统计 $P$，它一直是 0。这时 `empty_cache()` 之后 $R - A$ 还剩多少，就有多少被钉住。
# - CUDA 图的内存池归图所有，池里空闲的段看起来可以归还，其实只要图还在，它们就一直在。
#
# 这五个数字 `MemoryStats` 都会读，这台机器上的结果如下。（CPU 没有缓存分配器，所以“已分配”是进程的常驻内存，只有 GPU 才有的几项留空。）

# %% key="stats" lang="en" tags="hardware"
import torch
from minikv.memory import MemoryStats

device = "cuda" if torch.cuda.is_available() else "cpu"
stats = MemoryStats.read(device)
own = dict(reserved=stats.reserved, pinned=stats.inactive_split) if device == "cuda" else {}
show(memory_ledger(total=stats.total, free=stats.free, allocated=stats.allocated, **own, lang="en"))

# %% key="stats" lang="zh" tags="hardware"
import torch
from minikv.memory import MemoryStats

device = "cuda" if torch.cuda.is_available() else "cpu"
stats = MemoryStats.read(device)
own = dict(reserved=stats.reserved, pinned=stats.inactive_split) if device == "cuda" else {}
show(memory_ledger(total=stats.total, free=stats.free, allocated=stats.allocated, **own, lang="zh"))

# %% key="stats_table" lang="en" tags="hardware"
stats.shown("en")

# %% key="stats_table" lang="zh" tags="hardware"
stats.shown("zh")

# %% [markdown] key="scene" lang="en"
# ## The scene
#
# We use a small Llama with random weights, built from a config: 2 layers, 2 KV heads, float32. It runs in your own Jupyter kernel, in this section and in "What really keeps it", and takes a few seconds.
# %% [markdown] key="scene" lang="zh" src="2c7c46d4"
# ## 现场
#
# 我们用一个随机权重的小 Llama，由配置直接构建：2 层，2 个 KV 头，float32。本节和“真正会占住显存的”一节都在你自己的内核（Jupyter kernel）里运行它，几秒就能跑完。

# %% key="model"
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, max_position_embeddings=128,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, dtype="float32",
)
torch.manual_seed(0)
model = LlamaForCausalLM(config).to(device).eval()
prompts = torch.randint(1, 64, (3, 17)).to(device)  # [B, T]


def answer(**more):
    fixed = dict(max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    return model.generate(prompts, attention_mask=torch.ones_like(prompts), **fixed, **more)

# %% [markdown] key="live" lang="en"
# Watch the memory while the model answers, in five rounds of a second each. In the second and the fourth round, a variable holds a cache for 2,048 tokens of Llama-3.1-8B, which takes 2,048 × 128 KiB = 256 MiB. The monitor runs in a thread of its own and looks five times a second, and once more at each `tick()`. The saved picture below shows the first three rounds.
# %% [markdown] key="live" lang="zh" src="72d65ef2"
# 模型回答的时候，看看内存怎样变化。让它回答五轮，每轮一秒。第二轮和第四轮里，有一个变量持有一份缓存，够 Llama-3.1-8B 存 2,048 个 token，占 2,048 × 128 KiB = 256 MiB。监视器在自己的线程里运行，每秒看五次，每次调用 `tick()` 再多看一次。下面保存的图是前三轮的样子。

# %% key="live_answers" lang="en" tags="hardware"
import time
from minikv.cache import LinearKVCache
from minikv.course import monitor
from minikv.plan import CacheSpec

spec = CacheSpec.from_config("Llama-3.1-8B")  # 128 KiB a token
with monitor.memory(device, lang="en") as seen:
    for turn, tokens in enumerate((0, 2048, 0, 2048, 0)):
        held = LinearKVCache(spec, 1, tokens, device=device) if tokens else None
        seen.tick()
        end = time.monotonic() + 1
        while time.monotonic() < end:
            answer()
        if turn == 2:
            show(seen)  # live from here on

# %% key="live_answers" lang="zh" tags="hardware"
import time
from minikv.cache import LinearKVCache
from minikv.course import monitor
from minikv.plan import CacheSpec

spec = CacheSpec.from_config("Llama-3.1-8B")  # 每个 token 128 KiB
with monitor.memory(device, lang="zh") as seen:
    for turn, tokens in enumerate((0, 2048, 0, 2048, 0)):
        held = LinearKVCache(spec, 1, tokens, device=device) if tokens else None
        seen.tick()
        end = time.monotonic() + 1
        while time.monotonic() < end:
            answer()
        if turn == 2:
            show(seen)  # 从这里开始实时变化

# %% [markdown] key="scene_report" lang="en"
# While the model only answers, the curve is flat. It rises by 256 MiB when a variable holds a cache, and falls back as soon as the variable holds something else. (On a GPU these bytes are *cached by torch* from then on, and the next cache takes them again.) So a plain call of `generate()` leaves nothing behind. `retention_report` proves it. It calls a function and compares what is live before and after: storages, the names that lead to them, and cache objects.
# %% [markdown] key="scene_report" lang="zh" src="79d35d84"
# 只是回答的时候，曲线是平的；有变量持有缓存时，曲线高出 256 MiB，这个变量换成别的值，曲线就落回原处。（在 GPU 上，这些字节随后归到“torch 缓存着的”，下一份缓存会再拿去用。）所以普通地调用 `generate()`，什么也不会留下。`retention_report` 可以证明这一点，它调用一个函数，比较调用前后有什么还活着，包括存储、通向存储的名字和缓存对象。

# %% key="plain_generate" lang="en"
from minikv.memory import retention_report

retention_report(answer).shown("en")

# %% key="plain_generate" lang="zh"
from minikv.memory import retention_report

retention_report(answer).shown("zh")

# %% [markdown] key="suspects" lang="en"
# ## Five suspects
#
# When memory is missing after `generate()`, people suspect these five first. The table gives the usual argument for each suspect's innocence. Such an argument comes from the source of a library, and it ages quickly. So we test all five on the version that is installed here.
#
# | suspect | why it shouldn't keep anything |
# |---|---|
# | `generate()` | it doesn't store the cache on the model; the cache is in a local variable |
# | the causal mask | no mask is made in decode |
# | SDPA, PyTorch's attention function | it has no state, and its workspace is on the stack |
# | tensor parallelism | `GatherParallel`, the class that collects a layer's outputs from all GPUs, adds no buffer |
# | the helper in your script | it returns text and holds nothing |
#
# Decide before you run the next two cells. Does any of the five keep memory? And which of the arguments no longer holds? (The experiments use another model of about the same size, on the CPU.)
# %% [markdown] key="suspects" lang="zh" src="156fce30"
# ## 五个嫌疑对象
#
# `generate()` 之后显存少了，人们最先怀疑的就是下面五个。表里是通常用来排除它们的理由。不过根据源代码得出的理由很快会过时，所以我们在这里安装的版本上给每一个做实验。
#
# | 嫌疑对象 | 通常排除它的理由 |
# |---|---|
# | `generate()` | 缓存在局部变量里，没有存到模型上 |
# | 因果掩码（mask） | 解码时不生成掩码 |
# | SDPA（PyTorch 的注意力函数） | 没有状态，工作空间在栈上 |
# | 张量并行（TP） | `GatherParallel`（从各 GPU 收集一层输出的类）不增加缓冲区 |
# | 脚本里的辅助函数 | 只返回文本，不持有缓存 |
#
# 运行下面两个单元格之前，先自己判断：五个里面有没有哪个会占住内存？哪条理由现在已经不成立？（实验用的是另一个差不多大的模型，在 CPU 上。）

# %% key="experiments" lang="en"
from minikv.course.lessons.l16.suspects import small_model, suspect_generate
from minikv.course.lessons.l16.suspects import suspect_helper, suspect_mask, suspect_sdpa

two = torch.randint(1, 64, (2, 9))  # [B, T]
padded = torch.ones_like(two)
padded[0, :4] = 0  # row 0 is padded on the left
found = {"generate()": suspect_generate(small_model(), two)}
for attention, mask, name in (("sdpa", torch.ones_like(two), "no padding"), ("sdpa", padded, "left padding"), ("eager", torch.ones_like(two), "no padding")):
    report, shapes = suspect_mask(small_model(attention), two, mask)
    made = "no mask in decode" if shapes[-1] is None else "a mask in decode"
    found[f"mask: {attention}, {name}: {made}"] = report
found["SDPA"] = suspect_sdpa()
found["helper"] = suspect_helper(small_model(), two, lambda tokens: " ".join(map(str, tokens)))
Table(["suspect", "kept after the call, B", "caches left"], [(name, report.kept_bytes, sum(not cache.in_result for cache in report.caches)) for name, report in found.items()])

# %% key="experiments" lang="zh"
from minikv.course.lessons.l16.suspects import small_model, suspect_generate
from minikv.course.lessons.l16.suspects import suspect_helper, suspect_mask, suspect_sdpa

two = torch.randint(1, 64, (2, 9))  # [B, T]
padded = torch.ones_like(two)
padded[0, :4] = 0  # 第 0 行左边是填充
found = {"generate()": suspect_generate(small_model(), two)}
for attention, mask, name in (("sdpa", torch.ones_like(two), "没有填充"), ("sdpa", padded, "左侧填充"), ("eager", torch.ones_like(two), "没有填充")):
    report, shapes = suspect_mask(small_model(attention), two, mask)
    made = "解码时没有掩码" if shapes[-1] is None else "解码时有掩码"
    found[f"掩码：{attention}，{name}：{made}"] = report
found["SDPA"] = suspect_sdpa()
found["辅助函数"] = suspect_helper(small_model(), two, lambda tokens: " ".join(map(str, tokens)))
Table(["嫌疑对象", "残留，B", "剩下的缓存"], [(name, report.kept_bytes, sum(not cache.in_result for cache in report.caches)) for name, report in found.items()])

# %% key="parallel" lang="en" tags="hardware"
from minikv.course.lessons.l16.suspects import suspect_parallel

report, same = suspect_parallel(small_model(), two)
Table(["suspect", "kept after the call, B", "same tokens as without sharding"], [("tensor parallelism", report.kept_bytes, same)])

# %% key="parallel" lang="zh" tags="hardware"
from minikv.course.lessons.l16.suspects import suspect_parallel

report, same = suspect_parallel(small_model(), two)
Table(["嫌疑对象", "残留，B", "与未切分时的 token 相同"], [("张量并行", report.kept_bytes, same)])

# %% [markdown] key="acquitted" lang="en"
# None of them keeps anything. (The sharded model has a single rank here. It runs the same code for sharding and reducing as several ranks do; a test of the package runs it with two.) So all five are acquitted, but not all of the arguments are right:
#
# | suspect | what is true today |
# |---|---|
# | `generate()` | the argument holds, by default |
# | the causal mask | the argument holds for SDPA without padding. A padded batch makes a mask in each step, and so does eager attention, but no mask stays |
# | SDPA | it has no state. On a GPU, however, the workspace of flash attention comes from the caching allocator, though only for a moment |
# | tensor parallelism | transformers 5.23 has no such class. Sharding adds no tensors, but NCCL's communicators do take memory *outside* PyTorch |
# | the helper | the argument holds as long as the helper returns text |
#
# The masks show that *allocated for a moment* and *kept* are two different things. A mask is made and is gone after the step. To see memory that is allocated for a moment, you have to look at the peak.
# %% [markdown] key="acquitted" lang="zh" src="e8689fe9"
# 五个都没有留下什么。（这里切分后的模型只有一个 rank，走的却是同样的切分和归约代码；本包的测试会用两个 rank 再跑一遍。）所以五个都可以排除，但理由并不是条条都对：
#
# | 嫌疑对象 | 现在的情况 |
# |---|---|
# | `generate()` | 默认情况下，理由成立 |
# | 因果掩码 | SDPA 且没有填充时成立。有填充的 batch 每一步都会生成掩码，eager 注意力也会，但都不会留下来 |
# | SDPA | 确实没有状态；但在 GPU 上，flash attention 的工作空间来自缓存分配器，会占用片刻 |
# | 张量并行 | transformers 5.23 里已经没有这个类。切分不增加张量，但 NCCL 的通信器确实占显存，只是在 PyTorch **之外** |
# | 辅助函数 | 只要返回的是文本就成立 |
#
# 掩码的例子说明，**片刻占用**和**一直占住**是两个问题。掩码确实生成了，但这一步之后就没了。片刻占用的内存，只有看峰值才知道。

# %% [markdown] key="kept_intro" lang="en"
# ## What really keeps it
#
# Five things do keep a cache. None of them is a bug, and all of them are easy to do without noticing. We do each once, look at the result, and undo it. The function `alive()` counts the caches that still exist:
# %% [markdown] key="kept_intro" lang="zh" src="b926b8f0"
# ## 真正会占住显存的
#
# 有五种情况确实会占住缓存。它们都不是 bug，却很容易在不知不觉中发生。下面让每一种各发生一次，看清楚，再解除。函数 `alive()` 数出还存在几个缓存：

# %% key="alive"
import gc


def alive():
    gc.collect()
    return sum(type(item) is DynamicCache for item in gc.get_objects())


alive()

# %% [markdown] key="output" lang="en"
# ### The output
#
# With `return_dict_in_generate=True` you get an object instead of a tensor, and the cache is one of its fields. How many bytes is that?
# %% [markdown] key="output" lang="zh" src="096dadf7"
# ### 输出
#
# 设了 `return_dict_in_generate=True`，得到的就不是张量，而是一个对象，缓存是它的一个字段。这个字段占多少字节？

# %% key="predict_output"
predict("kept_by_output", ...)

# %% key="output_kept" lang="en"
from minikv.course.diagrams import held_by
from minikv.plan import CacheSpec


def keep_output():
    global out
    out = answer(return_dict_in_generate=True)


report = retention_report(keep_output)
show(held_by(report, "en"))

# %% key="output_kept" lang="zh"
from minikv.course.diagrams import held_by
from minikv.plan import CacheSpec


def keep_output():
    global out
    out = answer(return_dict_in_generate=True)


report = retention_report(keep_output)
show(held_by(report, "zh"))

# %% key="output_freed" lang="en"
held = sum(layer.keys.nbytes + layer.values.nbytes for layer in out.past_key_values.layers)
spec = CacheSpec.from_config(config).bytes_for(17 + 8 - 1, batch=3)
moments = {"out": alive()}
out.past_key_values = None
moments["out.past_key_values = None"] = alive()
out["past_key_values"] = None
moments['out["past_key_values"] = None'] = alive()
note = f"K and V in the output: {held:,} B; CacheSpec computes {spec:,} B for 17 + 8 - 1 tokens"
Table(["after this line", "caches alive"], moments.items(), lines=[note])

# %% key="output_freed" lang="zh"
held = sum(layer.keys.nbytes + layer.values.nbytes for layer in out.past_key_values.layers)
spec = CacheSpec.from_config(config).bytes_for(17 + 8 - 1, batch=3)
moments = {"out": alive()}
out.past_key_values = None
moments["out.past_key_values = None"] = alive()
out["past_key_values"] = None
moments['out["past_key_values"] = None'] = alive()
note = f"输出里的 K 和 V 占 {held:,} B；CacheSpec 按 17 + 8 - 1 个 token 算出 {spec:,} B"
Table(["执行之后", "存活的缓存"], moments.items(), lines=[note])

# %% [markdown] key="output_read" lang="en"
# The obvious line, `out.past_key_values = None`, frees nothing. An output of transformers has attributes *and* is an ordered dictionary. If you set the attribute to `None`, the dictionary's entry stays. So set the entry to `None`, or `del out`. (`retention_report` gives the same advice in the picture above.) The generated tokens are still in `out.sequences`.
# %% [markdown] key="output_read" lang="zh" src="704daa47"
# 最容易想到的写法是 `out.past_key_values = None`，但它什么也没释放。transformers 的输出既带属性，**又**是有序字典；把属性设为 `None`，字典里的那一项还在。要么设置字典的那一项，要么 `del out`。（上图里 `retention_report` 给出的也是这个建议。）生成的 token 还在 `out.sequences` 里。

# %% [markdown] key="own" lang="en"
# ### A cache of your own
#
# A cache that you pass in stays yours, so that the next turn of a conversation can use it. When the conversation is over, it is easy to forget that you still hold it.
# %% [markdown] key="own" lang="zh" src="ef8cb0f7"
# ### 自己的缓存
#
# 自己传进去的缓存，用完仍由自己持有，这样对话的下一轮才能接着用。只是对话结束之后，容易忘记它还在。

# %% key="own_kept" lang="en"
def bring_cache():
    global cache
    cache = DynamicCache(config=config)
    answer(past_key_values=cache)


report, moments = retention_report(bring_cache), {"cache": alive()}
del cache
moments["del cache"] = alive()
Table(["after this line", "caches alive"], moments.items(), lines=[report.verdict("en")])

# %% key="own_kept" lang="zh"
def bring_cache():
    global cache
    cache = DynamicCache(config=config)
    answer(past_key_values=cache)


report, moments = retention_report(bring_cache), {"cache": alive()}
del cache
moments["del cache"] = alive()
Table(["执行之后", "存活的缓存"], moments.items(), lines=[report.verdict("zh")])

# %% [markdown] key="looked" lang="en"
# ### A cache that you only looked at
#
# The next cell has no `=`. It shows a cache and gives it no name.
# %% [markdown] key="looked" lang="zh" src="f8b8efd5"
# ### 只是看了一眼
#
# 下一个单元格里没有 `=`，只是显示一个缓存，没有给它起名字。

# %% key="looked_at"
answer(return_dict_in_generate=True).past_key_values

# %% key="looked_kept" lang="en"
import re
from IPython import get_ipython

shell, rows = get_ipython(), [("anywhere, one cell later", alive(), "")]
spaces = {"user_ns": shell.user_ns, "user_ns_hidden": shell.user_ns_hidden}
for where, names in {**spaces, "Out": shell.user_ns["Out"]}.items():
    found = {re.sub(r"\d+", "N", str(name)) for name, value in names.items() if type(value) is DynamicCache}
    rows.append((where, None, " ".join(sorted(found))))
Table(["where", "caches alive", "names that lead to it"], rows)

# %% key="looked_kept" lang="zh"
import re
from IPython import get_ipython

shell, rows = get_ipython(), [("任何地方，隔了一个单元格", alive(), "")]
spaces = {"user_ns": shell.user_ns, "user_ns_hidden": shell.user_ns_hidden}
for where, names in {**spaces, "Out": shell.user_ns["Out"]}.items():
    found = {re.sub(r"\d+", "N", str(name)) for name, value in names.items() if type(value) is DynamicCache}
    rows.append((where, None, " ".join(sorted(found))))
Table(["哪里", "存活的缓存", "通向它的名字"], rows)

# %% [markdown] key="looked_read" lang="en"
# (N is the number of the cell.) A notebook remembers every result that it displays: in `Out`, as `_N`, and the last three also as `_`, `__` and `___`. Each of these is a reference like any other.
#
# `%reset -f out` is made for this case. But in the IPython with which this lesson was written (9.18), the last three results stay in a second place, `user_ns_hidden`. So we do what `%reset` does and then overwrite every `_` and `_N` that is left, in both places. (If you end the last line of a cell with `;`, its result isn't remembered at all.)
# %% [markdown] key="looked_read" lang="zh" src="c98949a3"
# （N 是单元格的编号。）notebook 会记住显示过的每个结果：在 `Out` 里，叫 `_N`，最近三个还叫 `_`、`__`、`___`。其中每一个都是实实在在的引用。
#
# `%reset -f out` 就是为此准备的。但在编写本课时的 IPython（9.18）里，最近三个结果在另一处 `user_ns_hidden` 里还有一份。所以我们先做 `%reset` 所做的事，再把两处剩下的 `_` 和 `_N` 全部清空。（如果单元格最后一行的末尾加 `;`，结果就根本不会被记住。）

# %% key="looked_undone"
shell.displayhook.flush()
for names in spaces.values():
    for name in [name for name in names if re.fullmatch(r"_+|_\d+", name)]:
        names[name] = ""
alive()

# %% [markdown] key="error" lang="en"
# ### The last error
#
# An exception keeps the frame of the function that raised it, and the frame keeps its local variables. That is why memory often doesn't come back after an out-of-memory error. Python keeps an uncaught error in `sys.last_value` and `sys.last_traceback`. A failing cell would stop this notebook. So we catch the error and store it by hand, as IPython does:
# %% [markdown] key="error" lang="zh" src="bb6d3ebe"
# ### 最近一次错误
#
# 异常会留住抛出它的栈帧，栈帧又留住其中的局部变量。所以发生显存不足的错误之后，显存常常回不来。没有捕获的错误，Python 会存到 `sys.last_value` 和 `sys.last_traceback` 里。单元格一报错，这个 notebook 就会停下，所以我们捕获错误，再照 IPython 的做法手动留住它：

# %% key="error_kept"
import sys


def too_much():
    kept = DynamicCache(config=config)
    answer(past_key_values=kept)
    raise MemoryError("CUDA out of memory")


def fail():
    try:
        too_much()
    except MemoryError as error:
        sys.last_value, sys.last_traceback = error, error.__traceback__

# %% key="error_held" lang="en"
show(held_by(retention_report(fail), "en"))

# %% key="error_held" lang="zh"
show(held_by(retention_report(fail), "zh"))

# %% key="error_freed" lang="en"
moments = {"sys.last_traceback": alive()}
sys.last_traceback.tb_next = None
moments["tb_next = None"] = alive()
del sys.last_value, sys.last_traceback
Table(["after this line", "caches alive"], moments.items())

# %% key="error_freed" lang="zh"
moments = {"sys.last_traceback": alive()}
sys.last_traceback.tb_next = None
moments["tb_next = None"] = alive()
del sys.last_value, sys.last_traceback
Table(["执行之后", "存活的缓存"], moments.items())

# %% [markdown] key="error_read" lang="en"
# A traceback is a chain of frames, and `tb_next = None` cuts it. Why cut the chain instead of deleting the two names? After a real uncaught error, IPython holds the same traceback in other places too, and `del sys.last_traceback` doesn't reach those. Cutting the chain works for all of them. Another small error, such as `1/0`, also helps, because it replaces the old one.
# %% [markdown] key="error_read" lang="zh" src="fd4c0fce"
# traceback 是由栈帧组成的链条，`tb_next = None` 就是把它剪断。为什么要剪断，而不是直接删掉两个名字？因为真的发生未捕获的错误时，IPython 还在别处留着同一个 traceback，`del sys.last_traceback` 管不到那些地方；剪断链条本身，则处处有效。另外制造一个小错误（例如 `1/0`）也行，新的错误会顶替旧的。

# %% [markdown] key="widget" lang="en"
# ### A live widget
#
# A slider that redraws something from the cache holds the cache through its callback. And `ipywidgets` keeps the slider in a registry until you close it, even if no name leads to it.
# %% [markdown] key="widget" lang="zh" src="42dbfab9"
# ### 没有关闭的组件
#
# 一个会根据缓存重画内容的滑块，通过回调函数占住缓存。而滑块在关闭之前，一直留在 `ipywidgets` 的登记表里，即使已经没有名字指向它。

# %% key="widget_kept"
from ipywidgets import IntSlider


def make_slider():
    kept = DynamicCache(config=config)
    answer(past_key_values=kept)
    slider = IntSlider()
    slider.observe(lambda change: print(kept.layers[0].keys.shape), names="value")
    return slider


slider = make_slider()
del slider

# %% key="widget_freed" lang="en"
moments = {"del slider": alive()}
found = next(item for item in gc.get_objects() if type(item) is IntSlider)
found.close()
del found
moments["close()"] = alive()
Table(["after this line", "caches alive"], moments.items())

# %% key="widget_freed" lang="zh"
moments = {"del slider": alive()}
found = next(item for item in gc.get_objects() if type(item) is IntSlider)
found.close()
del found
moments["close()"] = alive()
Table(["执行之后", "存活的缓存"], moments.items())

# %% [markdown] key="culprit" lang="en"
# ## The sixth suspect: a small tensor in a large segment
#
# The report ended with a chain of causes. The estimate is too low, so the batch is too large, so the peak is too high, so memory is fragmented. And then `empty_cache()` can't merge the fragments.
#
# The last link deserves a closer look. Free neighbours are merged as soon as they are freed. `empty_cache()` merges nothing. It gives back *whole segments*, and only those in which nothing is live. So if memory doesn't come back, something in the segment must be live.
#
# How much can one small tensor keep? For example, five tensors of 4 MiB share a segment of 20 MiB. If one of the five stays, all 20 MiB stay.
# %% [markdown] key="culprit" lang="zh" src="70853d56"
# ## 第六个嫌疑对象：大段里的小张量
#
# 那份报告最后给出一条因果链：估算偏低，所以 batch 过大，所以峰值过高，所以显存碎片化，而 `empty_cache()` 无法合并碎片。最后一环值得细看。相邻的空闲块在释放时就已经合并；`empty_cache()` 什么也不合并，它归还的是**整个段**，而且段里不能有任何东西还在使用。所以如果显存还不回来，段里一定还有东西活着。
#
# 一个小张量能留住多少？举个例子：五个 4 MiB 的张量共用一个 20 MiB 的段，只要其中一个留下来，这 20 MiB 就都留下来。

# %% key="predict_left"
predict("left_reserved", ...)

# %% key="left" lang="en"
from minikv.course.lessons.l16.evidence import left_reserved
from minikv.units import MIB

every_fifth, rows = range(0, 40, 5), []
for size, kept in ((4, [0]), (4, [0, 5, 10]), (4, every_fifth), (12, [0]), (12, every_fifth)):
    rows.append((40, size, len(kept), size * len(kept), left_reserved([size * MIB] * 40, kept) // MIB))
Table(["tensors", "MiB each", "tensors kept", "live, MiB", "reserved after empty_cache(), MiB"], rows)

# %% key="left" lang="zh"
from minikv.course.lessons.l16.evidence import left_reserved
from minikv.units import MIB

every_fifth, rows = range(0, 40, 5), []
for size, kept in ((4, [0]), (4, [0, 5, 10]), (4, every_fifth), (12, [0]), (12, every_fifth)):
    rows.append((40, size, len(kept), size * len(kept), left_reserved([size * MIB] * 40, kept) // MIB))
Table(["张量", "每个多大，MiB", "留下的张量", "存活，MiB", "empty_cache() 之后已保留，MiB"], rows)

# %% [markdown] key="left_picture" lang="en"
# The picture shows the third row, with 10 of the 40 tensors. The allocator puts five tensors into each segment. One of the five is live, so the segment stays:
# %% [markdown] key="left_picture" lang="zh" src="f1175093"
# 把第三行画出来，只取 40 个里的 10 个张量。分配器每五个放进一个段，五个里有一个还活着，整个段就留了下来：

# %% key="left_segments" lang="en"
from minikv.course.diagrams import segments
from minikv.memory import CachingAllocator

allocator = CachingAllocator()
addresses = [allocator.malloc(4 * MIB) for _ in range(10)]
for place, address in enumerate(addresses):
    if place % 5:
        allocator.free(address)
allocator.empty_cache()
show(segments(allocator, "en"))

# %% key="left_segments" lang="zh"
from minikv.course.diagrams import segments
from minikv.memory import CachingAllocator

allocator = CachingAllocator()
addresses = [allocator.malloc(4 * MIB) for _ in range(10)]
for place, address in enumerate(addresses):
    if place % 5:
        allocator.free(address)
allocator.empty_cache()
show(segments(allocator, "zh"))

# %% key="left_real" lang="en" tags="hardware"
rows = []
if device == "cuda":
    torch.cuda.empty_cache()
    start = torch.cuda.memory_reserved()
    with torch.cuda.stream(torch.cuda.Stream()):  # a stream has its own segments: nothing old is used
        tensors = [torch.empty(4 * MIB, dtype=torch.uint8, device=device) for _ in range(40)][::5]
    torch.cuda.empty_cache()
    rows = [(40, 4, len(tensors), (torch.cuda.memory_reserved() - start) // MIB)]
    del tensors
note = "Measured on this GPU." if rows else "No GPU here: the figures above come from the simulation."
Table(["tensors", "MiB each", "tensors kept", "reserved after empty_cache(), MiB"], rows, lines=[note])

# %% key="left_real" lang="zh" tags="hardware"
rows = []
if device == "cuda":
    torch.cuda.empty_cache()
    start = torch.cuda.memory_reserved()
    with torch.cuda.stream(torch.cuda.Stream()):  # 每个流有自己的段，所以不会用到旧的
        tensors = [torch.empty(4 * MIB, dtype=torch.uint8, device=device) for _ in range(40)][::5]
    torch.cuda.empty_cache()
    rows = [(40, 4, len(tensors), (torch.cuda.memory_reserved() - start) // MIB)]
    del tensors
note = "在这块 GPU 上实测。" if rows else "这里没有 GPU，上面的数字来自模拟的分配器。"
Table(["张量", "每个多大，MiB", "留下的张量", "empty_cache() 之后已保留，MiB"], rows, lines=[note])

# %% [markdown] key="left_read" lang="en"
# With tensors of 4 MiB, one live tensor in every fifth place keeps everything, 160 MiB for 32 MiB of live data. A tensor of 10 MiB or more gets a segment of its own and normally pins nothing. There is an exception: if such a segment becomes free and the allocator uses it again for something small, then that small tensor pins all the rest of it.
#
# That is what happens in the story below, in the simulated allocator. It shows one rank of DeepSeek-V3 with 3 of its 61 layers and a correspondingly small GPU. (The weights are left out, since they never move.) The batch comes from the estimate of the report's script. The cache grows by a token a step as `DynamicCache` does: a new K is made, and then the old one is freed.
#
# Meanwhile a hook (a function that PyTorch calls after each layer) collects hidden states to look at later. At the last step it keeps one tensor for each layer, of the last 64 tokens. That is a small fraction of the cache. After the run the program extracts something from these states. For this *extraction* it asks for most of the memory that its plan expects to be free, in one piece.
#
# Move the slider step by step. Then choose other settings and watch the same steps again.
# %% [markdown] key="left_read" lang="zh" src="2c834227"
# 张量为 4 MiB 时，每隔四个留一个，就能留住全部：32 MiB 存活的数据留住了 160 MiB。10 MiB 及以上的张量独占一个段，通常什么也钉不住。但有一个例外，这样的段空出来以后，如果又分给了一个小张量，这个小张量就会把段里其余的部分全部钉住。
#
# 下面的故事就是这样发生的，用模拟的分配器来演示。主角是 DeepSeek-V3 的一个 rank，取 61 层中的 3 层，显存也按比例缩小。（权重从不移动，所以不画。）batch 取自报告里那个脚本的估算。缓存每一步增加一个 token，与 `DynamicCache` 的做法相同，先写出新的 K，再释放旧的。
#
# 同时有一个钩子（hook，PyTorch 在每一层之后调用的函数）在收集隐藏状态，打算以后再看。到最后一步，它为每一层留下一个张量，是最近 64 个 token 的隐藏状态，比缓存小得多。运行结束后，程序要从这些状态里**提取**信息，为此申请一整块显存，大小是按计划应当空闲的大部分。
#
# 一步一步拖动滑块；再换别的设置，把同样的步骤重看一遍。

# %% key="story" lang="en"
from minikv.course.widgets.segments import SegmentsWidget
from minikv.memory import AllocatorSettings

choices = {
    "default": AllocatorSettings(),
    "max_split_size_mb = 128": AllocatorSettings(max_split_size_mb=128),
}
story = culprit("naive", num_layers=3, new_tokens=3, lang="en")
weights, extraction = story.steps[0], story.steps[-1]
sizes = dict(capacity=story.capacity - weights.size, non_torch=story.non_torch, settings=choices)
widget = SegmentsWidget("en", steps=story.steps[1:-1], **sizes)
show(widget, text=widget.summary, caption=t("story_caption"))

# %% key="story" lang="zh"
from minikv.course.widgets.segments import SegmentsWidget
from minikv.memory import AllocatorSettings

choices = {
    "默认": AllocatorSettings(),
    "max_split_size_mb = 128": AllocatorSettings(max_split_size_mb=128),
}
story = culprit("naive", num_layers=3, new_tokens=3, lang="zh")
weights, extraction = story.steps[0], story.steps[-1]
sizes = dict(capacity=story.capacity - weights.size, non_torch=story.non_torch, settings=choices)
widget = SegmentsWidget("zh", steps=story.steps[1:-1], **sizes)
show(widget, text=widget.summary, caption=t("story_caption"))

# %% key="story_end" lang="en"
row = extraction.size / 2**30, story.free / 2**30, story.stuck / 2**20, story.extracted
Table(["the extraction asks for, GiB", "free, GiB", "pinned, MiB", "the extraction succeeds"], [row])

# %% key="story_end" lang="zh"
row = extraction.size / 2**30, story.free / 2**30, story.stuck / 2**20, story.extracted
Table(["后面的提取要申请，GiB", "空闲，GiB", "被钉住，MiB", "提取成功"], [row])

# %% [markdown] key="story_read" lang="en"
# Look at the last steps. Every tensor of the cache is gone, and `empty_cache()` was called. Still the device has less free memory than it should, because the kept tensors lie in segments that were made for a whole K of the batch. With the default settings, three tensors of 49.88 MiB (150 MiB together) hold two segments of 334 and 336 MiB. So 334 + 336 - 150 = 520 MiB are pinned, and the extraction fails. In the subtraction this is the second share, *pinned*: reserved is far above allocated, and `empty_cache()` can't help.
#
# This is what the simulation shows. It doesn't prove what happened on that GPU. The report has no snapshot of the allocator, so the cause of its 12.5 GB stays open. But you now know which evidence to ask for: allocated, reserved, and a list of what is live.
# %% [markdown] key="story_read" lang="zh" src="680a8dd8"
# 看最后几步。缓存的张量一个不剩，`empty_cache()` 也调用过了，可设备上的空闲显存还是比应有的少，因为留下的张量正好在当初为整个 batch 的 K 而建的段里。默认设置下，三个 49.88 MiB 的张量（一共 150 MiB）留住了两个段，分别是 334 MiB 和 336 MiB，所以有 334 + 336 - 150 = 520 MiB 被钉住，后面的提取就失败了。对应到那次减法，就是第二份，**被钉住**，也就是说，已保留远高于已分配，而 `empty_cache()` 无能为力。
#
# 这是模拟的结果，不能证明那块 GPU 上就是这样。报告里没有分配器的快照，所以那 12.5 GB 的原因仍然没有答案。但现在你知道该要哪些证据了，也就是已分配、已保留，以及一份还活着的对象清单。

# %% [markdown] key="fix" lang="en"
# ## The fix, measured again
#
# Two independent things need fixing. The batch should come from `CacheSpec` instead of `hidden_size // heads`. And the hook should drop its tensors, or keep copies on the CPU. Here is the whole model with 61 layers and each fix by itself, in GB as in the report. (`naive` is the script's estimate and `plan` is `CacheSpec`. The first row is the first picture: 7.59 GB are 7.07 GiB.)
# %% [markdown] key="fix" lang="zh" src="1e64626a"
# ## 修正，再测一次
#
# 要改的有两处，彼此独立。一是 batch 应当由 `CacheSpec` 计算，不要用 `hidden_size // heads`；二是钩子应当放掉它留着的张量，或者改为在 CPU 上留副本。下面是完整的 61 层模型，两处修正分别测，单位与报告一样用 GB。（`naive` 是那个脚本的估算，`plan` 是 `CacheSpec`。第一行就是第一张图：7.59 GB 即 7.07 GiB。）

# %% key="fix_measured" lang="en"
from minikv.course.lessons.l16.evidence import end_of, without_the_kept

rows = []
for calculator in ("naive", "plan"):
    story = culprit(calculator)
    for fixed, steps in (("kept", story.steps), ("dropped", without_the_kept(story.steps))):
        stuck, extracted = end_of(steps, story.capacity, story.non_torch)
        rows.append((calculator, story.batch, story.peak_reserved / 1e9, fixed, f"{stuck / 1e9:.2f}", extracted))
head = ["batch computed by", "batch", "peak reserved, GB", "the hook's tensors", "pinned after the run, GB", "extraction succeeds"]
Table(head, rows, right=[head[4]])

# %% key="fix_measured" lang="zh"
from minikv.course.lessons.l16.evidence import end_of, without_the_kept

rows = []
for calculator in ("naive", "plan"):
    story = culprit(calculator)
    for fixed, steps in (("留着", story.steps), ("放掉", without_the_kept(story.steps))):
        stuck, extracted = end_of(steps, story.capacity, story.non_torch)
        rows.append((calculator, story.batch, story.peak_reserved / 1e9, fixed, f"{stuck / 1e9:.2f}", extracted))
head = ["batch 的算法", "batch", "已保留峰值，GB", "钩子的张量", "运行后被钉住，GB", "提取成功"]
Table(head, rows, right=[head[4]])

# %% [markdown] key="fix_read" lang="en"
# The right estimate makes the segments smaller, so less can be pinned: 2.99 GB instead of 7.59. Dropping the tensors removes the damage under either estimate. The estimate itself never held a byte.
#
# What about today's library? Below, `hf-expanded` is the cache of transformers up to 5.14.1, and `hf` is the latent cache since 5.15. A latent is far smaller, so the same wrong line of the script now gives a batch that is too *small*.
# %% [markdown] key="fix_read" lang="zh" src="2ba487f5"
# 估算对了，段就小一些，能被钉住的也少一些，从 7.59 GB 减到 2.99 GB。而放掉那些张量，无论用哪个估算，损失都会消失。估算本身从来没有占过一个字节。
#
# 换成现在的库呢？下面的 `hf-expanded` 是 transformers 5.14.1 及更早版本的缓存，`hf` 是 5.15 起的潜在向量缓存。潜在向量小得多，所以脚本里同一行错误的代码，现在算出的 batch 反而**太小**。

# %% key="today" lang="en"
rows = []
for layout in ("hf-expanded", "hf"):
    for calculator in ("naive", "plan"):
        found = culprit(calculator, layout)
        sizes = found.cache_bytes / 1e9, found.budget / 1e9, found.stuck / 1e9
        rows.append((layout, calculator, found.batch, *sizes))
Table(["layout", "batch computed by", "batch", "cache, GB", "budget, GB", "pinned, GB"], rows)

# %% key="today" lang="zh"
rows = []
for layout in ("hf-expanded", "hf"):
    for calculator in ("naive", "plan"):
        found = culprit(calculator, layout)
        sizes = found.cache_bytes / 1e9, found.budget / 1e9, found.stuck / 1e9
        rows.append((layout, calculator, found.batch, *sizes))
Table(["布局", "batch 的算法", "batch", "缓存，GB", "预算，GB", "被钉住，GB"], rows)

# %% [markdown] key="today_read" lang="en"
# (The budget is for the cache and the kept tensors together.) With the latent cache, the right batch is the larger one, so more can be pinned. The estimate decides how much *can* be pinned. A live tensor decides whether anything *is*.
# %% [markdown] key="today_read" lang="zh" src="b3252a3b"
# （预算由缓存和留着的张量共用。）换成潜在向量缓存，正确的 batch 反而更大，能被钉住的也就更多。也就是说，估算决定最多能钉住多少，是否真的钉住则取决于有没有存活的张量。

# %% [markdown] key="break" lang="en"
# ## Break it
#
# The settings of the allocator change how much a small tensor can pin. Guess before you run the cell: with which setting does the extraction succeed although no tensor was dropped?
# %% [markdown] key="break" lang="zh" src="88f19913"
# ## 弄坏它
#
# 分配器的设置会改变一个小张量能钉住多少。运行之前先猜一猜，什么张量都不放掉，哪种设置能让后面的提取成功？

# %% key="break_settings" lang="en"
from minikv.course.charts import bars

choices["expandable_segments"] = AllocatorSettings(expandable_segments=True)
ends = {name: culprit("naive", settings=settings) for name, settings in choices.items()}
succeeds = {True: "succeeds", False: "runs out"}
names = [f"{name}: {succeeds[end.extracted]}" for name, end in ends.items()]
series = {
    "peak reserved": [round(end.peak_reserved / 1e9, 1) for end in ends.values()],
    "free for the extraction": [round(end.free / 1e9, 1) for end in ends.values()],
    "pinned": [round(end.stuck / 1e9, 2) for end in ends.values()],
}
show(bars(names, series, x="GB"))

# %% key="break_settings" lang="zh"
from minikv.course.charts import bars

choices["expandable_segments"] = AllocatorSettings(expandable_segments=True)
ends = {name: culprit("naive", settings=settings) for name, settings in choices.items()}
succeeds = {True: "成功", False: "显存不足"}
names = [f"{name}: {succeeds[end.extracted]}" for name, end in ends.items()]
series = {
    "已保留峰值": [round(end.peak_reserved / 1e9, 1) for end in ends.values()],
    "留给提取的空闲显存": [round(end.free / 1e9, 1) for end in ends.values()],
    "被钉住": [round(end.stuck / 1e9, 2) for end in ends.values()],
}
show(bars(names, series, x="GB"))

# %% [markdown] key="break_read" lang="en"
# `expandable_segments` maps memory in pages, of 20 MiB each for large tensors, and gives back every page in which nothing is live. So little memory stays around each kept tensor.
#
# `max_split_size_mb=128` forbids the allocator to split blocks of 128 MiB and more. The kept tensors then get segments of their own and pin nothing. The price is a higher peak (the first series): 148 GB instead of 143.
#
# Neither setting drops a tensor. What is live stays live, with its own bytes.
# %% [markdown] key="break_read" lang="zh" src="8211fc5f"
# `expandable_segments` 按页映射显存，大张量用的页每页 20 MiB。哪一页里没有东西在用，就归还哪一页，所以每个留着的张量周围只多留一点。
#
# `max_split_size_mb=128` 禁止切分 128 MiB 及以上的块。留着的张量只好用自己的段，什么也钉不住；代价是峰值变高，从 143 GB 到 148 GB（第一组数据）。
#
# 两种设置都没有放掉任何张量：活着的依然活着，它自己的字节也还在。

# %% [markdown] key="runbook" lang="en"
# ## A runbook
#
# When memory is missing, go through these steps in order and stop at the first that answers.
#
# 1. **Subtract.** Run `print(MemoryStats.read("cuda").text())` before and after `gc.collect()` and `torch.cuda.empty_cache()`. Which shares are larger than you expected, and is the excess as much as is missing? If not, find the rest before you explain the first part.
# 2. **Outside is large**: `nvidia-smi` lists the processes (from inside a container often none, so look on the host). If there is another process, it isn't your leak. If there is none, it is the CUDA context, NCCL or a library, and it was there before your first tensor.
# 3. **Live is large** (allocated): a Python object holds tensors, and `retention_report(fn)` names the object. Look at the five usual ones first: an output with its cache, a cache of your own, `Out` and `_`, the last error, a widget or callback.
# 4. **Pinned is large** (reserved far above allocated, after `empty_cache()`): something small is live in large segments. `torch.cuda.memory._dump_snapshot("s.pickle")` and then `minikv.memory.from_snapshot("s.pickle")` show the blocks. If you switched on `_record_memory_history()` at the start, they also show the lines of code that made them.
# 5. **Returnable was large** and went away with `empty_cache()`: that was no leak. PyTorch would have used it again.
# 6. **No share is large, and still you ran out of memory**: look at the peak with `measure_peak(fn)`, then at the batch calculator.
#
# ## Recap
#
# - Used memory is live + pinned + returnable + outside. In the first picture 7.07 of 91.28 GiB were pinned, and `empty_cache()` returned none of them.
# - The five usual suspects kept 0 B. An output kept 36,864 B of cache, which is exactly what the formula gives for 24 tokens of 3 sequences.
# - A live tensor of 4 MiB keeps its segment of 20 MiB. Eight of them, one in each segment, kept 160 MiB.
# - The right estimate reduced the pinned memory from 7.59 to 2.99 GB. Dropping the tensors removed all of it.
# %% [markdown] key="runbook" lang="zh" src="52afb5fc"
# ## 排查手册
#
# 显存对不上时，按顺序做，得到答案就停。
#
# 1. **先做减法。** 在 `gc.collect()` 和 `torch.cuda.empty_cache()` 前后，各执行一次 `print(MemoryStats.read("cuda").text("zh"))`。哪几份比预期的大？多出来的加在一起，等于缺少的量吗？如果不等，先找到其余部分，再去解释已找到的部分。
# 2. **torch 之外偏大**：`nvidia-smi` 会列出进程（在容器里往往列不出来，要到宿主机上看）。如果有别的进程，就不是你泄漏的；如果没有，就是 CUDA 上下文、NCCL 或某个库，在第一个张量之前就已经占着。
# 3. **存活偏大**（已分配）：有 Python 对象持有张量，`retention_report(fn)` 会给出它的名字。先看五个常见的：带缓存的输出、自己的缓存、`Out` 和 `_`、最近一次错误、组件或回调函数。
# 4. **被钉住偏大**（`empty_cache()` 之后，已保留仍远高于已分配）：有个小东西在大段里。先 `torch.cuda.memory._dump_snapshot("s.pickle")`，再用 `minikv.memory.from_snapshot("s.pickle")` 看是哪些块；如果一开始就打开了 `_record_memory_history()`，还能看到是哪一行代码分配的。
# 5. **可归还曾经偏大**，`empty_cache()` 之后没了：那不是泄漏，PyTorch 本来就会再用它。
# 6. **哪一份都不大，却还是显存不足**：要看峰值，先 `measure_peak(fn)`，再查 batch 计算器。
#
# ## 本课小结
#
# - 已用显存 = 存活 + 被钉住 + 可归还 + torch 之外。第一张图里，91.28 GiB 中有 7.07 GiB 被钉住，`empty_cache()` 一点也没有归还。
# - 五个常见的嫌疑对象残留 0 B。而一个输出占住了 36,864 B 的缓存，正好等于公式按 3 条序列、每条 24 个 token 算出的值。
# - 一个存活的 4 MiB 张量会留住它所在的 20 MiB 的段。八个这样的张量各在一个段里，就留住了 160 MiB。
# - 估算改对以后，被钉住的从 7.59 GB 减到 2.99 GB；放掉钩子的张量以后，才减到零。

# %% [markdown] key="self" lang="en"
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="c2d6ea3e"
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_left"
explain("who_is_left")

# %% key="explain_empty_cache"
explain("what_empty_cache_returns")

# %% key="explain_estimate"
explain("estimate_is_no_holder")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# 1. `split_used`: the subtraction, in four shares.
# 2. `grown_bytes`: what two lists of live tensors say about a call.
# 3. `holders`: the names that keep a tensor's memory.
# 4. `fitting_batch`: the batch calculator, MLA included.
# 5. `pins_most`: which name to drop first, so that `empty_cache()` gives back the most.
# %% [markdown] key="exercises" lang="zh" src="3c512627"
# ## 练习
#
# 1. `split_used`：那次减法，分成四份。
# 2. `grown_bytes`：根据前后两份存活张量的列表，看一次调用多占了多少内存。
# 3. `holders`：哪些名字占住了一个张量的内存。
# 4. `fitting_batch`：batch 计算器，包括 MLA。
# 5. `pins_most`：先放掉哪个名字，`empty_cache()` 归还得最多。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | `empty_cache()` changes nothing | `print(MemoryStats.read("cuda").text())`: if *allocated* is high, something is live; if only *reserved* is high, a small tensor pins segments |
# | you deleted the cache and it is still there | `print(retention_report(fn).text())`, where `fn` is the call that made it: it shows the names behind each tensor, and what to type |
# | the figures add up to more or less than the GPU has | context + other processes = total - free - reserved; cached = reserved - allocated. Take both from one `MemoryStats.read`, all in bytes |
# %% [markdown] key="stuck" lang="zh" src="0280f8de"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | `empty_cache()` 没有任何效果 | `print(MemoryStats.read("cuda").text("zh"))`：**已分配**高，说明有东西活着；只有**已保留**高，说明有个小东西钉住了段 |
# | 删掉了缓存，它却还在 | 把创建它的那次调用写成函数 `fn`，运行 `print(retention_report(fn).text("zh"))`，它会给出每个张量背后的名字，以及该输入什么 |
# | 几个数字加起来，比 GPU 的显存多或少 | 上下文 + 其他进程 = total - free - reserved；缓存着的 = reserved - allocated。两者取自同一次 `MemoryStats.read`，单位都是字节 |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - The case is "Memory Retention After model.generate() — Root Cause Analysis". [Appendix A](A_errata.ipynb) goes through it claim by claim.
# - [transformers #23285](https://github.com/huggingface/transformers/issues/23285): in May 2023 a user ran Bloom with `torch.no_grad()` and `empty_cache()` and still ran out of GPU memory after a few inferences. The thread never found the cause; the subtraction would have shown where to look.
# - [mellea PR #544](https://github.com/generative-computing/mellea/pull/544): GPU memory grew with every request, because whole output objects with their caches were kept in a dictionary of metadata. [transformers.js #1734](https://github.com/huggingface/transformers.js/issues/1734): a wrapper took four fields out of the output and forgot the cache, about 24 GB. "The output" explains both.
# - [IPython #14129](https://github.com/ipython/ipython/issues/14129): until 2023 `%reset -f out` freed nothing, because of the second copy in `user_ns_hidden`; [PR #14133](https://github.com/ipython/ipython/pull/14133) fixed most of it. The trick that cuts a traceback comes from the discussion of [PR #11572](https://github.com/ipython/ipython/pull/11572).
# - [PyTorch #27600](https://github.com/pytorch/pytorch/issues/27600): a maintainer explained why memory doesn't come back after an out-of-memory error. The frame "holds onto all the Tensors on the GPU and so they cannot be freed yet as you could access them"; see "The last error".
# - [vLLM PR #10511](https://github.com/vllm-project/vllm/pull/10511): its logs show 1.79 GiB of memory outside torch with one GPU, and 3.58 GiB with two, as one rank counts it. That is NCCL's share among the five suspects.
# %% [markdown] key="wild" lang="zh" src="888e1a0a"
# ## 实战现场
#
# - 本课的案子出自《Memory Retention After model.generate() — Root Cause Analysis》，[附录 A](A_errata.ipynb) 逐条讨论它的说法。
# - [transformers #23285](https://github.com/huggingface/transformers/issues/23285)：2023 年 5 月，有用户运行 Bloom，用了 `torch.no_grad()` 和 `empty_cache()`，推理几次之后显存还是不够。讨论里始终没有找到原因；做一次减法，就知道该往哪里找。
# - [mellea PR #544](https://github.com/generative-computing/mellea/pull/544)：每来一个请求，显存就涨一点，因为整个输出对象连同缓存都被存进了元数据字典。[transformers.js #1734](https://github.com/huggingface/transformers.js/issues/1734)：一层封装从输出里取走四个字段，却忘了缓存，约 24 GB。两者的原因都见“输出”一节。
# - [IPython #14129](https://github.com/ipython/ipython/issues/14129)：2023 年以前，`%reset -f out` 什么也没释放，因为 `user_ns_hidden` 里还有一份；[PR #14133](https://github.com/ipython/ipython/pull/14133) 修正了大部分。剪断 traceback 的办法出自 [PR #11572](https://github.com/ipython/ipython/pull/11572) 的讨论。
# - [PyTorch #27600](https://github.com/pytorch/pytorch/issues/27600)：一位维护者解释了显存不足的错误之后，显存为什么回不来。栈帧持有 GPU 上的所有张量；因为你还可能访问它们，所以还不能释放（见“最近一次错误”）。
# - [vLLM PR #10511](https://github.com/vllm-project/vllm/pull/10511)：日志里，torch 之外的显存用一块 GPU 时为 1.79 GiB，用两块时，一个 rank 统计到 3.58 GiB。这就是五个嫌疑对象里 NCCL 占的那一份。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You can now say what holds memory, prove it, and free it. On the engineer's route [lesson 08](08_allocate_kv_cache.ipynb) comes next. It decides *before* the first request how much the cache may take, so there is nothing to hunt for afterwards. In the order of the numbers, [lesson 17](17_a_fleet_on_paper.ipynb) comes next. There you compute how many GPUs a load needs, and again the answer depends on the memory that is left.
# %% [markdown] key="next" lang="zh" src="c67e5a26"
# ## 下一课
#
# 现在你能说出显存被什么占着，拿得出证据，也能把它放掉。在工程师路线上，接下来是[第 08 课](08_allocate_kv_cache.ipynb)：在第一个请求到来**之前**就定好缓存可以占多少，事后就没有什么要追查的了。按编号，接下来是[第 17 课](17_a_fleet_on_paper.ipynb)，那里要算的是，承载全部流量一共需要多少块 GPU，而答案同样取决于还剩多少显存。
