# %% [meta]
# number = "16"
# slug = "where_did_6gb_go"
# needs = ["03", "05", "07"]
# rooms = ["memory.retention", "memory.allocator"]
# minutes = 60
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
# **Who holds the memory after `generate()`, and which figure tells?**
#
# A run has ended. Its cache was dropped and `empty_cache()` was called. Then the program asks for memory that should be there, and runs out of it. Here is the card at that moment, as PyTorch's allocator counts it. The weights are live, as they should be. 7 GiB are not in use and cannot be had:
# %% [markdown] key="question" lang="zh" src="cfee6441"
# ## 问题
#
# **`generate()` 之后，是谁占着显存？哪个数字能说明问题？**
#
# 一次运行结束了，缓存已经丢掉，`empty_cache()` 也调用过了。程序接着申请一块本该空闲的显存，却报显存不足。下面是那一刻的显卡，按 PyTorch 分配器的统计画出。权重还活着，这是应该的；但有 7 GiB 既没有使用，也拿不回来：

# %% key="ledger" lang="en"
from minikv.course.diagrams import memory_ledger
from minikv.course.lessons.l16.culprit import culprit

end = culprit("naive")  # DeepSeek-V3 on one of 8 H200, in the model of PyTorch's allocator
counted = dict(total=end.capacity, free=end.free, reserved=end.reserved, allocated=end.allocated, pinned=end.stuck)
show(memory_ledger(**counted, lang="en"))

# %% key="ledger" lang="zh"
from minikv.course.diagrams import memory_ledger
from minikv.course.lessons.l16.culprit import culprit

end = culprit("naive")  # 8 块 H200 之一上的 DeepSeek-V3，在 PyTorch 分配器的模型里运行
counted = dict(total=end.capacity, free=end.free, reserved=end.reserved, allocated=end.allocated, pinned=end.stuck)
show(memory_ledger(**counted, lang="zh"))

# %% [markdown] key="able" lang="en"
# After this lesson you can
#
# - **subtract** five figures, and say which share of the memory is missing;
# - **name** the variable that holds a tensor, and let it go;
# - **explain** how one small tensor keeps a segment of many times its size.
# %% [markdown] key="able" lang="zh" src="204ad3d9"
# 学完本课，你能够：
#
# - 用五个数字**做减法**，说出缺的显存在哪一份里；
# - **指出**是哪个变量占着张量，并把它放掉；
# - **解释**一个小张量怎样留住比它大许多倍的段。

# %% [markdown] key="facts" lang="en"
# ## The facts of the case
#
# The case is a report of such a run: the document of [lesson 03](03_the_2_86x_mistake.ipynb), “Memory Retention After model.generate() — Root Cause Analysis” (the analysis). After `generate()`, `gc.collect()` and `empty_cache()`, 5.5 GB were free where about 18 GB were expected, and “6+ GB” were “stuck in CUDA allocator”. The analysis questions five suspects, lets all of them go, and blames a wrong estimate. We question the same five here, with experiments, and then look for the one that it never asked.
#
# First: do the facts fit together?
# %% [markdown] key="facts" lang="zh" src="decb1964"
# ## 案情
#
# 这个案子是一份报告，也就是[第 03 课](03_the_2_86x_mistake.ipynb)的那份文档《Memory Retention After model.generate() — Root Cause Analysis》（下称原文）：`generate()`、`gc.collect()`、`empty_cache()` 之后，本该有约 18 GB 空闲显存，实际只有 5.5 GB，“6+ GB”被“卡在 CUDA 分配器里”。原文查了五个嫌疑对象，全部排除，最后把责任归给一个算错的估算。我们用实验把这五个再查一遍，然后去找它从没问过的那一个。
#
# 先看各项事实对不对得上。

# %% key="predict_unexplained"
predict("unexplained", ...)

# %% key="facts_sum" lang="en"
from minikv.course import Table

expected, seen, explained = 18.0, 5.5, 6.0
missing = expected - seen
Table(["missing, GB", "explained", "without any explanation"], [(missing, explained, missing - explained)])

# %% key="facts_sum" lang="zh"
from minikv.course import Table

expected, seen, explained = 18.0, 5.5, 6.0
missing = expected - seen
Table(["少了，GB", "有解释", "无法解释"], [(missing, explained, missing - explained)])

# %% [markdown] key="facts_read" lang="en"
# The explanation covers less than half of the gap.
# And of the figures that would tell where the rest is, the analysis names none: not `memory_allocated()`, not `memory_reserved()`, not what other processes use.
# Here are the figures that it should have asked for.
# %% [markdown] key="facts_read" lang="zh" src="a4c313c3"
# 原文的解释还不到缺口的一半。
# 而能说明其余部分去向的数字，原文一个也没给：没有 `memory_allocated()`，没有 `memory_reserved()`，也没有其他进程的占用。
# 下面就是它本该查的数字。

# %% [markdown] key="formula" lang="en"
# ## The formula: one subtraction
# %% [markdown] key="formula" lang="zh" src="c96e4c43"
# ## 公式：一次减法

# %% [markdown] key="formula_math"
# $$\underbrace{T - F}_{\text{used}} \;=\; \underbrace{A}_{\text{live}} \;+\; \underbrace{P}_{\text{pinned}} \;+\; \underbrace{(R - A - P)}_{\text{returnable}} \;+\; \underbrace{(T - F - R)}_{\text{outside}}$$

# %% [markdown] key="symbols" lang="en"
# | symbol | what it is | where it stands | in the picture above |
# |---|---|---|---|
# | $T$, $F$ | all memory of the GPU, and what is free | `torch.cuda.mem_get_info()` | 139.80 GiB, 48.52 GiB |
# | $A$ | **allocated**: blocks in use, by live tensors and by some workspaces (cuBLAS) | `torch.cuda.memory_allocated()` | 82.21 GiB |
# | $R$ | **reserved**: all segments that PyTorch took from the GPU | `torch.cuda.memory_reserved()` | 89.28 GiB |
# | $P$ | free blocks of segments in which something lives | `memory_stats()["inactive_split_bytes.all.current"]` | 7.07 GiB |
#
# With the numbers put in, in GiB: 139.80 - 48.52 = 82.21 + 7.07 + 0 + 2.00 = 91.28.
#
# Each share has another owner, and another cure:
#
# | the large share | held by | what helps | what does not |
# |---|---|---|---|
# | live | a Python object somewhere holds a tensor | find it, let it go | `empty_cache()`, `gc.collect()` alone |
# | pinned | a live tensor sits in a large segment | let that tensor go; allocate it earlier | `empty_cache()` |
# | returnable | no object: it is cached | `empty_cache()`; or nothing, since PyTorch uses it again | searching for a leak |
# | outside | CUDA context, NCCL (by which GPUs talk to each other), other processes | count processes; fewer NCCL communicators | everything above |
#
# Two traps in these figures:
#
# - With `expandable_segments` PyTorch does not count $P$: it stays 0. What is left of $R - A$ after `empty_cache()` is pinned all the same.
# - The memory pool of a CUDA graph belongs to the graph. Its free segments look returnable, and stay as long as the graph does.
#
# `MemoryStats` reads all of them. On this machine:
# (A CPU has no caching allocator: there *allocated* is the process's resident memory, and what belongs to a GPU alone stays empty.)
# %% [markdown] key="symbols" lang="zh" src="9784fe58"
# | 符号 | 含义 | 从哪里读 | 上图中的值 |
# |---|---|---|---|
# | $T$、$F$ | GPU 的全部显存，其中空闲的 | `torch.cuda.mem_get_info()` | 139.80 GiB、48.52 GiB |
# | $A$ | **已分配**：正在使用的块，属于存活的张量，也包括一些工作空间（cuBLAS） | `torch.cuda.memory_allocated()` | 82.21 GiB |
# | $R$ | **已保留**（reserved）：PyTorch 从 GPU 拿走的所有段（segment） | `torch.cuda.memory_reserved()` | 89.28 GiB |
# | $P$ | 段里空着的块，而同一段里还有东西活着 | `memory_stats()["inactive_split_bytes.all.current"]` | 7.07 GiB |
#
# 代入数字，单位 GiB：139.80 - 48.52 = 82.21 + 7.07 + 0 + 2.00 = 91.28。
#
# 式中四项依次是：存活（live）、被钉住（pinned）、可归还（returnable）、torch 之外（outside）。
# 每一份属于不同的主人，对策也不同：
#
# | 哪一份大 | 由什么持有 | 有用的办法 | 没用的办法 |
# |---|---|---|---|
# | 存活 | 某个 Python 对象持有张量 | 找到它，放掉它 | 只调用 `empty_cache()`、`gc.collect()` |
# | 被钉住 | 一个存活的张量待在大段里 | 放掉那个张量，或让它更早分配 | `empty_cache()` |
# | 可归还 | 没有对象持有，只是缓存着 | `empty_cache()`；也可以不管，PyTorch 会再用 | 到处找泄漏 |
# | torch 之外 | CUDA 上下文、NCCL（GPU 之间的通信库）、其他进程 | 数一数进程；少建 NCCL 通信器（communicator） | 以上所有办法 |
#
# 这些数字有两处陷阱：
#
# - 开了 `expandable_segments`，PyTorch 就不再统计 $P$，它一直是 0。`empty_cache()` 之后 $R - A$ 还剩多少，就有多少被钉住。
# - CUDA 图的内存池归图所有。池里空闲的段看似可归还，其实图在一天，它们就留一天。
#
# 这些数字 `MemoryStats` 都会读。这台机器上是：
# （CPU 没有缓存分配器：那里的“已分配”是进程的常驻内存，只属于 GPU 的几项留空。）

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
# A small Llama with random weights, built from a config: 2 layers, 2 KV heads, float32.
# This section and "What really keeps it" use it, in your own Jupyter kernel, in seconds.
# %% [markdown] key="scene" lang="zh" src="bcfc6227"
# ## 现场
#
# 一个随机权重的小 Llama，由配置直接构建：2 层，2 个 KV 头，float32。
# 本节和“真正会占住显存的”一节都用它，就在你自己的内核（Jupyter kernel）里运行，几秒就能跑完。

# %% key="model"
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, max_position_embeddings=128,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, dtype="float32",
)
torch.manual_seed(0)
model = LlamaForCausalLM(config).to(device).eval()
prompts = torch.randint(1, 64, (3, 17)).to(device)


def answer(**more):
    fixed = dict(max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    return model.generate(prompts, attention_mask=torch.ones_like(prompts), **fixed, **more)

# %% [markdown] key="live" lang="en"
# Watch the memory while the model answers. The monitor looks five times a second, from a thread of its own; run the second cell and look at the picture of the first.
# %% [markdown] key="live" lang="zh" src="b9ff127e"
# 模型回答的时候，看着内存。监视器在自己的线程里每秒看五次；运行第二个单元格，同时看第一个单元格的图。

# %% key="live_monitor" lang="en" tags="hardware"
from minikv.course import monitor

seen = monitor.memory(device, lang="en")
show(seen)

# %% key="live_monitor" lang="zh" tags="hardware"
from minikv.course import monitor

seen = monitor.memory(device, lang="zh")
show(seen)

# %% key="live_answers" tags="hardware"
for turn in range(200):
    answer()
seen.stop()
show(seen)

# %% [markdown] key="scene_report" lang="en"
# At the end the curve is where it began: `generate()`, as most people call it, leaves nothing. `retention_report` proves it. It calls a function and compares what is alive before and after: storages, the names that lead to them, cache objects.
# %% [markdown] key="scene_report" lang="zh" src="b8a89215"
# 到最后，曲线又回到开始的地方：大多数人那样调用 `generate()`，什么也不会留下。`retention_report` 可以证明：它会调用一个函数，并比较调用前后有什么活着，包括存储、通向它们的名字、缓存对象。

# %% key="plain_generate" lang="en"
from minikv.memory import retention_report

retention_report(answer).shown("en")

# %% key="plain_generate" lang="zh"
from minikv.memory import retention_report

retention_report(answer).shown("zh")

# %% [markdown] key="suspects" lang="en"
# ## Five suspects
#
# The analysis names them, with line numbers of its day.
# The line numbers have moved since; so each suspect gets an experiment on the version that is installed here.
#
# | suspect | why the analysis lets it go |
# |---|---|
# | `generate()` | it does not keep the cache on the model: the cache lives in a local variable |
# | the causal mask | none is made in decode |
# | SDPA, PyTorch's attention function | it has no state, and its workspace is on the stack |
# | tensor parallelism | `GatherParallel` adds no buffer |
# | the script's helper | it returns text and holds nothing |
#
# Decide before you run the next two cells: does any of the five keep memory?
# And which of the reasons no longer holds?
# (The experiments use a model of about the same size, on the CPU.)
# %% [markdown] key="suspects" lang="zh" src="bb3191c2"
# ## 五个嫌疑对象
#
# 原文列出了它们，并附上当时的行号。
# 行号早已变动，所以针对这里安装的版本，给每个嫌疑对象做一次实验。
#
# | 嫌疑对象 | 原文排除它的理由 |
# |---|---|
# | `generate()` | 没有把缓存留在模型上：缓存在局部变量里 |
# | 因果掩码（mask） | 解码时不生成 |
# | SDPA（PyTorch 的注意力函数） | 没有状态，工作空间在栈上 |
# | 张量并行（TP） | `GatherParallel` 不增加缓冲区 |
# | 脚本自己的辅助函数 | 返回文本，不持有缓存 |
#
# 运行下面两个单元格之前，先自己判断：五个里面有没有哪个占住了内存？
# 哪条理由如今已不成立？
# （实验用的是另一个差不多大的模型，在 CPU 上。）

# %% key="experiments" lang="en"
from minikv.course.lessons.l16.suspects import small_model, suspect_generate
from minikv.course.lessons.l16.suspects import suspect_helper, suspect_mask, suspect_sdpa

two = torch.randint(1, 64, (2, 9))
padded = torch.ones_like(two)
padded[0, :4] = 0
found = {"generate()": suspect_generate(small_model(), two)}
for attention, mask, name in (("sdpa", torch.ones_like(two), "no padding"), ("sdpa", padded, "left padding"), ("eager", torch.ones_like(two), "no padding")):
    report, shapes = suspect_mask(small_model(attention), two, mask)
    made = "no mask in decode" if shapes[-1] is None else "a mask in decode"
    found[f"mask: {attention}, {name}: {made}"] = report
found["SDPA"] = suspect_sdpa()
found["helper"] = suspect_helper(small_model(), two, lambda tokens: " ".join(map(str, tokens)))
Table(["suspect", "kept, B", "caches left"], [(name, report.kept_bytes, sum(not cache.in_result for cache in report.caches)) for name, report in found.items()])

# %% key="experiments" lang="zh"
from minikv.course.lessons.l16.suspects import small_model, suspect_generate
from minikv.course.lessons.l16.suspects import suspect_helper, suspect_mask, suspect_sdpa

two = torch.randint(1, 64, (2, 9))
padded = torch.ones_like(two)
padded[0, :4] = 0
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
Table(["suspect", "kept, B", "same tokens as unsharded"], [("TP", report.kept_bytes, same)])

# %% key="parallel" lang="zh" tags="hardware"
from minikv.course.lessons.l16.suspects import suspect_parallel

report, same = suspect_parallel(small_model(), two)
Table(["嫌疑对象", "残留，B", "与未切分时的 token 相同"], [("TP", report.kept_bytes, same)])

# %% [markdown] key="acquitted" lang="en"
# Nothing is kept, by any of them.
# (The sharded model has one rank here, which shards and reduces as two would, without a partner; a test of this package runs it with two.)
# The verdict stands; not all of its reasons do:
#
# | suspect | what is so today |
# |---|---|
# | `generate()` | true, by default |
# | the causal mask | true for SDPA without padding; with a padded batch each step makes one, and so does eager attention. None of them stays |
# | SDPA | it has no state; but on a GPU the workspace of flash attention is memory from the caching allocator, for a moment |
# | tensor parallelism | transformers 5.23 has no such class. Sharding adds no tensors; the communicators of NCCL do take memory, *outside* PyTorch. The logs in [vLLM PR #10511](https://github.com/vllm-project/vllm/pull/10511) show 1.79 GiB of non-torch memory with one GPU, and 3.58 GiB with two, as one rank counts it |
# | the script's helper | true as long as it returns text |
#
# The masks show what “acquitted” means: a mask is made where the analysis saw none, and still it is gone after the step.
# *Allocated for a moment* and *kept* are two different questions, and only the peak answers the first.
# %% [markdown] key="acquitted" lang="zh" src="d34f2d5e"
# 一个也没有留下什么。
# （这里切分后的模型只有一个 rank，它照样切分、照样归约，只是没有同伴；本软件包的测试会用两个 rank 再跑一遍。）
# 结论成立，理由却不是条条都成立：
#
# | 嫌疑对象 | 现在的情况 |
# |---|---|
# | `generate()` | 默认情况下成立 |
# | 因果掩码 | SDPA 且没有填充时成立；有填充的 batch 每一步都会生成，eager 注意力也会。但都不会留下来 |
# | SDPA | 没有状态；但在 GPU 上，flash attention 的工作空间来自缓存分配器，只占用片刻 |
# | 张量并行 | transformers 5.23 里已没有这个类。切分不增加张量；而 NCCL 的通信器确实占显存，只是在 PyTorch **之外**。[vLLM PR #10511](https://github.com/vllm-project/vllm/pull/10511) 的日志里，torch 之外的显存用一块 GPU 时为 1.79 GiB，用两块时，一个 rank 统计到 3.58 GiB |
# | 脚本自己的辅助函数 | 只要返回的是文本就成立 |
#
# 从掩码可以看出“排除”是什么意思：原文说不生成的地方确实生成了掩码，但这一步之后它就没了。
# **片刻占用**和**一直占住**是两个问题，前者要看峰值才知道。

# %% [markdown] key="kept_intro" lang="en"
# ## What really keeps it
#
# Five things do keep a cache.
# None of them is a bug, and all of them are easy to do without noticing.
# Each happens here once, is shown, and is undone.
# %% [markdown] key="kept_intro" lang="zh" src="c646a065"
# ## 真正会占住显存的
#
# 有五种情况确实会占住缓存。
# 它们都不是 bug，又都很容易在不知不觉中发生。
# 下面让每一种各发生一次，看清楚，再解除。

# %% key="alive"
import gc


def alive():
    gc.collect()
    return sum(type(item) is DynamicCache for item in gc.get_objects())


alive()

# %% [markdown] key="output" lang="en"
# ### The output
#
# With `return_dict_in_generate=True` you get an object, and the cache is one of its fields.
# How much is that?
# %% [markdown] key="output" lang="zh" src="f6c6eb3f"
# ### 输出
#
# 设了 `return_dict_in_generate=True`，得到的是一个对象，缓存就是它的一个字段。
# 这个字段占多少字节？

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
note = f"K and V in the output: {held:,} B; spec for 17 + 8 - 1 tokens: {spec:,} B"
Table(["after", "caches alive"], moments.items(), lines=[note])

# %% key="output_freed" lang="zh"
held = sum(layer.keys.nbytes + layer.values.nbytes for layer in out.past_key_values.layers)
spec = CacheSpec.from_config(config).bytes_for(17 + 8 - 1, batch=3)
moments = {"out": alive()}
out.past_key_values = None
moments["out.past_key_values = None"] = alive()
out["past_key_values"] = None
moments['out["past_key_values"] = None'] = alive()
note = f"输出里的 K 和 V：{held:,} B；spec 按 17 + 8 - 1 个 token 算出：{spec:,} B"
Table(["之后", "存活的缓存"], moments.items(), lines=[note])

# %% [markdown] key="output_read" lang="en"
# The obvious line frees nothing.
# An output of transformers is an object with attributes *and* an ordered dictionary, and setting the attribute to `None` leaves the dictionary's entry where it was.
# Set the entry, or `del out`. (The report, which was made before any of this, advises the same.)
# The generated tokens are still there, in `out.sequences`.
# %% [markdown] key="output_read" lang="zh" src="eb923eb7"
# 最顺手的那一行什么也没释放。
# transformers 的输出既是带属性的对象，**又**是有序字典；把属性设为 `None`，字典里的那一项还在原处。
# 要么设置那一项，要么 `del out`。（报告在这之前就已得出，建议也是如此。）
# 生成的 token 还在 `out.sequences` 里。

# %% [markdown] key="own" lang="en"
# ### A cache of your own
#
# A cache that you pass in stays yours.
# That is the purpose, and it is easy to forget when the conversation is over.
# %% [markdown] key="own" lang="zh" src="8f73b789"
# ### 自己的缓存
#
# 自己传进去的缓存，用完仍由自己持有。
# 这本来就是目的，只是对话结束之后容易忘记。

# %% key="own_kept" lang="en"
def bring_cache():
    global cache
    cache = DynamicCache(config=config)
    answer(past_key_values=cache)


report, moments = retention_report(bring_cache), {"cache": alive()}
del cache
moments["del cache"] = alive()
Table(["after", "caches alive"], moments.items(), lines=[report.verdict("en")])

# %% key="own_kept" lang="zh"
def bring_cache():
    global cache
    cache = DynamicCache(config=config)
    answer(past_key_values=cache)


report, moments = retention_report(bring_cache), {"cache": alive()}
del cache
moments["del cache"] = alive()
Table(["之后", "存活的缓存"], moments.items(), lines=[report.verdict("zh")])

# %% [markdown] key="looked" lang="en"
# ### Only looked at
#
# The next cell has no `=` in it: it shows a cache and gives it no name.
# %% [markdown] key="looked" lang="zh" src="7462261e"
# ### 只是看了一眼
#
# 下一个单元格里没有 `=`：只是显示一个缓存，没有给它起名字。

# %% key="looked_at"
answer(return_dict_in_generate=True).past_key_values

# %% key="looked_kept" lang="en"
import re
from IPython import get_ipython

shell, rows = get_ipython(), [("a cell later, without a name", alive(), "")]
spaces = {"user_ns": shell.user_ns, "user_ns_hidden": shell.user_ns_hidden}
for where, names in {**spaces, "Out": shell.user_ns["Out"]}.items():
    found = {re.sub(r"\d+", "N", str(name)) for name, value in names.items() if type(value) is DynamicCache}
    rows.append((where, None, " ".join(sorted(found))))
Table(["where", "caches alive", "names"], rows)

# %% key="looked_kept" lang="zh"
import re
from IPython import get_ipython

shell, rows = get_ipython(), [("隔了一个单元格，没有名字", alive(), "")]
spaces = {"user_ns": shell.user_ns, "user_ns_hidden": shell.user_ns_hidden}
for where, names in {**spaces, "Out": shell.user_ns["Out"]}.items():
    found = {re.sub(r"\d+", "N", str(name)) for name, value in names.items() if type(value) is DynamicCache}
    rows.append((where, None, " ".join(sorted(found))))
Table(["哪里", "存活的缓存", "名字"], rows)

# %% [markdown] key="looked_read" lang="en"
# (N is the number of the cell.)
# A notebook remembers every result that it displays: in `Out`, as `_N`, and the last one as `_`.
# Each of these is a reference like any other.
#
# `%reset -f out` is meant for this.
# Until 2023 it freed nothing: [IPython #14129](https://github.com/ipython/ipython/issues/14129) found the second copy in `user_ns_hidden`, and [PR #14133](https://github.com/ipython/ipython/pull/14133) mended it.
# Not all of it: in the IPython that this lesson was written with (9.18), `_`, `__` and `___`, the last three results, stay in that second place.
# So we do what `%reset` does, and then empty every `_` and `_N` that is left, in both places.
# (A `;` behind the last line keeps a result from being remembered at all.)
# %% [markdown] key="looked_read" lang="zh" src="e735e4d5"
# （N 是单元格的编号。）
# notebook 会记住显示过的每个结果：存在 `Out` 里，叫 `_N`，最近一个还叫 `_`。
# 其中每一个都是实实在在的引用。
#
# `%reset -f out` 就是为此准备的。
# 但在 2023 年以前，它什么也没释放：[IPython #14129](https://github.com/ipython/ipython/issues/14129) 发现 `user_ns_hidden` 里还有一份，[PR #14133](https://github.com/ipython/ipython/pull/14133) 做了修正。
# 修得还不彻底：在编写本课时的 IPython（9.18）里，最近三个结果 `_`、`__`、`___` 仍会留在那里。
# 所以我们先做 `%reset` 所做的事，再把两处剩下的 `_` 和 `_N` 全部清空。
# （最后一行末尾加 `;`，结果就根本不会被记住。）

# %% key="looked_undone"
shell.displayhook.flush()
for names in spaces.values():
    for name in [name for name in names if re.fullmatch(r"_+|_\d+", name)]:
        names[name] = ""
alive()

# %% [markdown] key="error" lang="en"
# ### The last error
#
# An exception keeps the frame that it came from, and the frame keeps its local variables.
# In [PyTorch #27600](https://github.com/pytorch/pytorch/issues/27600) a maintainer explains why memory does not come back after an out-of-memory error:
#
# > Which holds onto all the Tensors on the GPU and so they cannot be freed yet as you could access them.
#
# An uncaught error is kept in `sys.last_value` and `sys.last_traceback`.
# A cell that fails would stop this notebook, so we catch the error and keep it by hand, as IPython does:
# %% [markdown] key="error" lang="zh" src="94dbb6ed"
# ### 最近一次错误
#
# 异常会留住它发生时所在的栈帧，栈帧又留住其中的局部变量。
# [PyTorch #27600](https://github.com/pytorch/pytorch/issues/27600) 里，一位维护者解释了为什么显存不足的错误之后，显存回不来：
#
# > Which holds onto all the Tensors on the GPU and so they cannot be freed yet as you could access them.（它持有 GPU 上的所有张量；因为你还可能访问，所以还不能释放。）
#
# 没有捕获的错误会留在 `sys.last_value` 和 `sys.last_traceback` 里。
# 单元格报错会让这个 notebook 停下，所以我们捕获错误，再照 IPython 的做法手动留住它：

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
Table(["after", "caches alive"], moments.items())

# %% key="error_freed" lang="zh"
moments = {"sys.last_traceback": alive()}
sys.last_traceback.tb_next = None
moments["tb_next = None"] = alive()
del sys.last_value, sys.last_traceback
Table(["之后", "存活的缓存"], moments.items())

# %% [markdown] key="error_read" lang="en"
# Why cut the chain instead of deleting two names?
# After a real uncaught error IPython holds the same traceback in further places, and `del sys.last_traceback` leaves those.
# Cutting the traceback itself works for all of them; the trick is from the discussion of [IPython PR #11572](https://github.com/ipython/ipython/pull/11572).
# Causing another small error, such as `1/0`, also works: it takes the place of the old one.
# %% [markdown] key="error_read" lang="zh" src="b3b9ae48"
# 为什么要剪断链条，而不是直接删掉两个名字？
# 真正未捕获的错误发生后，IPython 还在别处留着同一个 traceback，`del sys.last_traceback` 管不到那些地方。
# 剪断 traceback 本身则处处有效；这个办法出自 [IPython PR #11572](https://github.com/ipython/ipython/pull/11572) 的讨论。
# 再制造一个小错误也行，比如 `1/0`：新的错误会顶替旧的。

# %% [markdown] key="widget" lang="en"
# ### A live widget
#
# A slider that redraws something from the cache holds it through its callback.
# And the widget itself is held by the registry of `ipywidgets` until it is closed, whether a name leads to it or not.
# %% [markdown] key="widget" lang="zh" src="8c619abb"
# ### 还活着的组件
#
# 一个会根据缓存重画内容的滑块，通过回调函数占住缓存。
# 而组件自己在关闭之前，一直由 `ipywidgets` 的登记表持有，有没有名字都一样。

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
Table(["after", "caches alive"], moments.items())

# %% key="widget_freed" lang="zh"
moments = {"del slider": alive()}
found = next(item for item in gc.get_objects() if type(item) is IntSlider)
found.close()
del found
moments["close()"] = alive()
Table(["之后", "存活的缓存"], moments.items())

# %% [markdown] key="culprit" lang="en"
# ## One who was never asked
#
# The analysis ends with a chain: the estimate is too low, so the batch is too big, so the peak is above the budget, so memory is in fragments, and “`empty_cache()` can't coalesce fragmented pages”.
# The first two links hold, up to transformers 5.14.1 ([lesson 03](03_the_2_86x_mistake.ipynb)).
# The last one is put wrongly.
# Free neighbours are merged when they are freed, and `empty_cache()` merges nothing: it gives back *whole segments*, those in which nothing lives ([lesson 07](07_allocate_once.ipynb)).
# So there has to be something that lives.
#
# How much can one small tensor keep?
# %% [markdown] key="culprit" lang="zh" src="561efb72"
# ## 从没被问到的那一个
#
# 原文最后给出一条因果链：估算偏低，导致 batch 过大，峰值超出预算，显存碎片化，而“`empty_cache()` can't coalesce fragmented pages”（无法合并碎片化的页）。
# 前两环在 transformers 5.14.1 及更早版本上成立（[第 03 课](03_the_2_86x_mistake.ipynb)）。
# 最后一环说错了。
# 相邻的空闲块在释放时就会合并，`empty_cache()` 什么也不合并：它归还的是**整个段**，而且段里不能有任何活着的东西（[第 07 课](07_allocate_once.ipynb)）。
# 所以，一定有什么东西还活着。
#
# 一个小张量，能留住多少？

# %% key="predict_left"
predict("left_reserved", ...)

# %% key="left" lang="en"
from minikv.course.lessons.l16.evidence import left_reserved
from minikv.units import MIB

every_fifth, rows = range(0, 40, 5), []
for size, kept in ((4, [0]), (4, [0, 5, 10]), (4, every_fifth), (12, [0]), (12, every_fifth)):
    rows.append((40, size, len(kept), size * len(kept), left_reserved([size * MIB] * 40, kept) // MIB))
Table(["tensors", "of MiB", "kept", "live, MiB", "reserved after empty_cache(), MiB"], rows)

# %% key="left" lang="zh"
from minikv.course.lessons.l16.evidence import left_reserved
from minikv.units import MIB

every_fifth, rows = range(0, 40, 5), []
for size, kept in ((4, [0]), (4, [0, 5, 10]), (4, every_fifth), (12, [0]), (12, every_fifth)):
    rows.append((40, size, len(kept), size * len(kept), left_reserved([size * MIB] * 40, kept) // MIB))
Table(["张量", "每个 MiB", "留下", "存活，MiB", "empty_cache() 之后已保留，MiB"], rows)

# %% [markdown] key="left_picture" lang="en"
# The third row as a picture, with 10 of the 40 tensors. The allocator puts five into a segment, one of the five lives, and the segment stays:
# %% [markdown] key="left_picture" lang="zh" src="465d61f5"
# 把第三行画出来，只取 40 个里的 10 个张量。分配器每五个放进一个段，五个里有一个活着，整个段就留了下来：

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
note = "Measured on this GPU." if rows else "No GPU here: the figures above are the model's."
Table(["tensors", "of MiB", "kept", "reserved, MiB"], rows, lines=[note])

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
note = "在这块 GPU 上实测。" if rows else "这里没有 GPU：上面的数字来自模型。"
Table(["张量", "每个 MiB", "留下", "已保留，MiB"], rows, lines=[note])

# %% [markdown] key="left_read" lang="en"
# With 4 MiB tensors, one live tensor in every fifth place keeps everything: five of them share a segment of 20 MiB.
# A tensor of 10 MiB or more gets a segment of its own, and pins nothing but itself.
# Until such a segment is free, is used again for something small, and the small thing stays.
#
# This is the story below, in the allocator model: one rank of DeepSeek-V3 with 3 of its 61 layers, on a share of its GPU.
# (The weights are left out of the picture: they never move.)
# The script's calculator chooses the batch.
# The cache grows by a token a step, as `DynamicCache` does: a new K, then the old one is freed.
# And a hook (a function that PyTorch calls after each layer) collects hidden states, to be looked at later. At the last step it keeps one tensor for each layer, those of the last 64 tokens: a fraction of the cache.
#
# Move the slider, step by step; then choose other settings and watch the same steps again.
# %% [markdown] key="left_read" lang="zh" src="94fd0570"
# 4 MiB 的张量，每隔四个留一个，就能留住全部：五个张量共用一个 20 MiB 的段。
# 10 MiB 及以上的张量独占一个段，除了自己什么也钉不住。
# 除非这样的段空了出来，又分给某个小东西，而小东西留了下来。
#
# 下面就是这个故事，放在分配器模型里演示：DeepSeek-V3 的一个 rank，取 61 层中的 3 层，显存也按比例缩小。
# （图里不画权重：它们从不移动。）
# batch 由那个脚本的计算器决定。
# 缓存每一步增加一个 token，与 `DynamicCache` 的做法相同：先写出新的 K，再释放旧的。
# 另有一个钩子（hook，PyTorch 在每一层之后调用的函数）在收集隐藏状态，打算以后再看。到最后一步，它为每一层留下一个张量：最近 64 个 token 的隐藏状态，比缓存小得多。
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
Table(["the extraction asks for, GiB", "free, GiB", "pinned, MiB", "it succeeds"], [row])

# %% key="story_end" lang="zh"
row = extraction.size / 2**30, story.free / 2**30, story.stuck / 2**20, story.extracted
Table(["后面的提取要，GiB", "空闲，GiB", "被钉住，MiB", "成功"], [row])

# %% [markdown] key="story_read" lang="en"
# Read the last steps.
# The cache is gone, every one of its tensors.
# `empty_cache()` was called.
# And still the device has less free memory than it should: the kept tensors lie in segments that were made for a whole K of the batch.
# In the figures this is the second share, *pinned*: reserved is far above allocated, and `empty_cache()` cannot help.
#
# This is a story that the model tells, not a proof about that GPU: the analysis shows no snapshot, so what its 12.5 GB were stays open.
# What it lacks is now clear: allocated, reserved, and a list of who lives.
# %% [markdown] key="story_read" lang="zh" src="34e12115"
# 看最后几步。
# 缓存没了，它的张量一个不剩。
# `empty_cache()` 也调用过了。
# 可设备上的空闲显存还是比应有的少：留下的张量躺在当初为整个 batch 的 K 而建的段里。
# 对应到数字，就是第二份，**被钉住**：已保留远高于已分配，`empty_cache()` 无能为力。
#
# 这是模型讲的故事，不是对那块 GPU 的证明：原文没有给出快照，所以那 12.5 GB 到底是什么，仍然没有答案。
# 但它缺什么，现在清楚了：已分配、已保留，以及一份还活着的对象清单。

# %% [markdown] key="fix" lang="en"
# ## The fix, measured again
#
# There are two things to mend, and they are not the same.
# The batch comes from `CacheSpec` now instead of `hidden_size // heads`. And the hook lets its tensors go, or keeps a copy on the CPU instead.
# Here is the whole model, 61 layers, with each of the two, in GB as in the case:
# %% [markdown] key="fix" lang="zh" src="66360b2d"
# ## 修正，再测一次
#
# 要改的有两处，而且不是一回事。
# 一是 batch 改由 `CacheSpec` 计算，不再用 `hidden_size // heads`；二是钩子把留着的张量放掉，或者改为在 CPU 上留一份副本。
# 下面是完整的 61 层模型，两处修正分别测，单位与案情一样用 GB：

# %% key="fix_measured" lang="en"
from minikv.course.lessons.l16.evidence import end_of, without_the_kept

rows = []
for calculator in ("naive", "plan"):
    story = culprit(calculator)
    for fixed, steps in (("kept", story.steps), ("let go", without_the_kept(story.steps))):
        stuck, extracted = end_of(steps, story.capacity, story.non_torch)
        rows.append((calculator, story.batch, story.peak_reserved / 1e9, fixed, f"{stuck / 1e9:.2f}", extracted))
head = ["calculator", "batch", "peak reserved, GB", "kept tensors", "pinned after, GB", "extraction succeeds"]
Table(head, rows, right=[head[4]])

# %% key="fix_measured" lang="zh"
from minikv.course.lessons.l16.evidence import end_of, without_the_kept

rows = []
for calculator in ("naive", "plan"):
    story = culprit(calculator)
    for fixed, steps in (("留着", story.steps), ("放掉", without_the_kept(story.steps))):
        stuck, extracted = end_of(steps, story.capacity, story.non_torch)
        rows.append((calculator, story.batch, story.peak_reserved / 1e9, fixed, f"{stuck / 1e9:.2f}", extracted))
head = ["计算器", "batch", "已保留峰值，GB", "留着的张量", "之后被钉住，GB", "后面的提取成功"]
Table(head, rows, right=[head[4]])

# %% [markdown] key="fix_read" lang="en"
# The right estimate makes the segments smaller, and so less can be pinned: it shrinks the damage.
# Letting the kept tensors go removes it, under either estimate.
# The estimate never held a byte.
#
# And under today's library?
# Below, `hf-expanded` is the cache of transformers up to 5.14.1, and `hf` the latent cache since 5.15.
# A latent is far smaller, so the same wrong line now errs to the other side ([lesson 03](03_the_2_86x_mistake.ipynb)).
# %% [markdown] key="fix_read" lang="zh" src="9fcadc97"
# 估算对了，段就小了，能被钉住的也少了：损失随之缩小。
# 放掉留着的张量，则不论用哪个估算，滞留都会消失。
# 估算本身从未占过一个字节。
#
# 换成现在的库呢？
# 下面的 `hf-expanded` 是 transformers 5.14.1 及更早版本的缓存，`hf` 是 5.15 起的潜在向量缓存。
# 潜在向量小得多，同一行错误的代码如今错向了另一边（[第 03 课](03_the_2_86x_mistake.ipynb)）。

# %% key="today" lang="en"
rows = []
for layout in ("hf-expanded", "hf"):
    for calculator in ("naive", "plan"):
        found = culprit(calculator, layout)
        sizes = found.cache_bytes / 1e9, found.budget / 1e9, found.stuck / 1e9
        rows.append((layout, calculator, found.batch, *sizes))
Table(["layout", "calculator", "batch", "cache, GB", "budget, GB", "pinned, GB"], rows)

# %% key="today" lang="zh"
rows = []
for layout in ("hf-expanded", "hf"):
    for calculator in ("naive", "plan"):
        found = culprit(calculator, layout)
        sizes = found.cache_bytes / 1e9, found.budget / 1e9, found.stuck / 1e9
        rows.append((layout, calculator, found.batch, *sizes))
Table(["布局", "计算器", "batch", "缓存，GB", "预算，GB", "被钉住，GB"], rows)

# %% [markdown] key="today_read" lang="en"
# (The budget is for the cache and the kept tensors together.)
# With the latent cache the right batch is the larger one, and so more can be pinned.
# An estimate sets how much there is to pin; whether anything is pinned, a live tensor decides.
# %% [markdown] key="today_read" lang="zh" src="a571c59b"
# （预算由缓存和留着的张量共用。）
# 换成潜在向量缓存，正确的 batch 反而更大，能被钉住的也就更多。
# 估算决定最多能钉住多少；到底钉不钉住，由活着的张量决定。

# %% [markdown] key="break" lang="en"
# ## Break it
#
# The allocator's settings change how much a small tensor can pin.
# Before you run it: which of them lets the extraction succeed although nothing was let go?
# %% [markdown] key="break" lang="zh" src="07f8e738"
# ## 弄坏它
#
# 分配器的设置会改变一个小张量能钉住多少。
# 运行之前先想：哪种设置能在什么都不放掉的情况下，让后面的提取成功？

# %% key="break_settings" lang="en"
from minikv.course.charts import bars

choices["expandable_segments"] = AllocatorSettings(expandable_segments=True)
ends = {name: culprit("naive", settings=settings) for name, settings in choices.items()}
succeeds = {True: "succeeds", False: "runs out"}
names = [f"{name}, {succeeds[end.extracted]}" for name, end in ends.items()]
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
names = [f"{name}, {succeeds[end.extracted]}" for name, end in ends.items()]
series = {
    "已保留峰值": [round(end.peak_reserved / 1e9, 1) for end in ends.values()],
    "留给提取的空闲显存": [round(end.free / 1e9, 1) for end in ends.values()],
    "被钉住": [round(end.stuck / 1e9, 2) for end in ends.values()],
}
show(bars(names, series, x="GB"))

# %% [markdown] key="break_read" lang="en"
# `expandable_segments` maps memory page by page, 20 MiB each in the large pool, and gives back every page in which nothing lives: little stays around each kept tensor.
#
# `max_split_size_mb=128` forbids cutting blocks of 128 MiB and more.
# The kept tensors get segments of their own and pin nothing; the price stands in the first column.
#
# Neither of them lets a tensor go.
# What lives still lives, and its own bytes stay.
# %% [markdown] key="break_read" lang="zh" src="038c6042"
# `expandable_segments` 按页映射显存，大池里每页 20 MiB；哪一页里没有东西活着，就归还哪一页，所以每个留着的张量周围留下的不多。
#
# `max_split_size_mb=128` 禁止切分 128 MiB 及以上的块。
# 留着的张量只好用自己的段，什么也钉不住；代价见第一列。
#
# 两者都没有放掉任何张量。
# 活着的依然活着，它自己的字节也还在。

# %% [markdown] key="runbook" lang="en"
# ## A runbook
#
# When memory is missing, do these in order, and stop at the first that answers.
#
# 1. **Read the subtraction.** `print(MemoryStats.read("cuda").text())`, before and after `gc.collect()` and `torch.cuda.empty_cache()`. Do the four shares add up to what is missing? If not, look for the rest before you explain the first part.
# 2. **Outside is large**: `nvidia-smi` lists the processes (from inside a container often none: look on the host). Another one? Then it is not your leak. None? CUDA context, NCCL, libraries: it was there before the first tensor.
# 3. **Live is large** (allocated): a Python object holds tensors. `retention_report(fn)` names them. First look at the five usual ones: an output with its cache, a cache of your own, `Out` and `_`, the last error, a widget or callback.
# 4. **Pinned is large** (reserved far above allocated, after `empty_cache()`): something small lives in large segments. `torch.cuda.memory._dump_snapshot("s.pickle")`, then `minikv.memory.from_snapshot("s.pickle")` shows which blocks; with `_record_memory_history()` switched on from the start also the lines that made them.
# 5. **Returnable was large** and went away with `empty_cache()`: that was no leak. PyTorch would have used it again.
# 6. **Nothing is large, and yet it ran out of memory**: look at the peak, not at what is left: `measure_peak(fn)`, and then the batch calculator.
#
# ## Recap
#
# - Used memory is live + pinned + returnable + outside. In the case of the first picture 7.07 of 91.28 GiB were pinned, and `empty_cache()` returned none of them.
# - The five suspects kept 0 B. An output kept 36,864 B of cache, which is exactly the formula for 24 tokens of 3 sequences.
# - A tensor of 4 MiB keeps its segment of 20 MiB. Eight of them, one in each segment, kept 160 MiB.
# - The right estimate shrank the damage from 7.59 to 2.99 GB. Letting the tensors go removed it.
# %% [markdown] key="runbook" lang="zh" src="d8fcc0df"
# ## 排查手册
#
# 显存对不上时，按顺序做，得到答案就停。
#
# 1. **先做减法。** 在 `gc.collect()` 和 `torch.cuda.empty_cache()` 前后，各执行一次 `print(MemoryStats.read("cuda").text("zh"))`。四份加起来，等于缺少的量吗？如果不等，先找到其余部分，再去解释已找到的部分。
# 2. **torch 之外偏大**：`nvidia-smi` 会列出进程（在容器里往往列不出来，要到宿主机上看）。有别的进程？那就不是你泄漏的。没有？那是 CUDA 上下文、NCCL 和各种库，在第一个张量之前就已存在。
# 3. **存活偏大**（已分配）：有 Python 对象持有张量。`retention_report(fn)` 会指名道姓。先看五个常客：带缓存的输出、自己的缓存、`Out` 和 `_`、最近一次错误、组件或回调函数。
# 4. **被钉住偏大**（`empty_cache()` 之后，已保留仍远高于已分配）：有个小东西待在大段里。先 `torch.cuda.memory._dump_snapshot("s.pickle")`，再用 `minikv.memory.from_snapshot("s.pickle")` 看是哪些块；如果一开始就打开了 `_record_memory_history()`，还能看到是哪一行代码分配的。
# 5. **可归还曾经偏大**，`empty_cache()` 之后没了：那不是泄漏。PyTorch 本来就会再用它。
# 6. **哪一份都不大，却还是显存不足**：要看的是峰值，而不是剩下多少：先 `measure_peak(fn)`，再查 batch 计算器。
#
# ## 本课小结
#
# - 已用显存 = 存活 + 被钉住 + 可归还 + torch 之外。在第一张图的案子里，91.28 GiB 中有 7.07 GiB 被钉住，`empty_cache()` 一点也没有归还。
# - 五个嫌疑对象残留 0 B。一个输出却占住了 36,864 B 的缓存，正好等于公式按 3 条序列、每条 24 个 token 算出的值。
# - 一个 4 MiB 的张量留住 20 MiB 的段。八个这样的张量各在一个段里，就留住了 160 MiB。
# - 估算改对，损失从 7.59 GB 缩小到 2.99 GB；放掉那些张量，损失才消失。

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
# ## In the wild
#
# - [transformers #23285](https://github.com/huggingface/transformers/issues/23285): in May 2023 a user ran Bloom with `torch.no_grad()` and `empty_cache()`, and the GPU was out of memory after a few inferences all the same. The thread never found what held it; the subtraction above would have told.
# - [mellea PR #544](https://github.com/generative-computing/mellea/pull/544): GPU memory grew with every request, because whole output objects, caches included, were kept in a dictionary of metadata. "The output" explains it.
# - [transformers.js #1734](https://github.com/huggingface/transformers.js/issues/1734): a wrapper asked for the dictionary, took four fields out of it and forgot the cache. That came to about 24 GB.
#
# ## Exercises
#
# The exercise notebook of this lesson asks for five functions:
#
# 1. `split_used`: the subtraction, in four shares.
# 2. `grown_bytes`: what two lists of live tensors say about a call.
# 3. `holders`: the names that keep a tensor's memory.
# 4. `fitting_batch`: the calculator, MLA included.
# 5. `pins_most`: which name to let go first, so that `empty_cache()` gives back the most.
# %% [markdown] key="exercises" lang="zh" src="92e26b6d"
# ## 实战现场
#
# - [transformers #23285](https://github.com/huggingface/transformers/issues/23285)：2023 年 5 月，有用户运行 Bloom，用了 `torch.no_grad()` 和 `empty_cache()`，推理几次之后显存还是不够。讨论里说不清是什么占着显存；上面的减法本可以回答。
# - [mellea PR #544](https://github.com/generative-computing/mellea/pull/544)：每来一个请求，显存就涨一点，因为整个输出对象连同缓存都被存进了元数据字典。原因见“输出”一节。
# - [transformers.js #1734](https://github.com/huggingface/transformers.js/issues/1734)：一层封装要来了字典形式的输出，取走四个字段，却忘了缓存，结果占了约 24 GB。
#
# ## 练习
#
# 本课的练习 notebook 要你写五个函数：
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
# | `empty_cache()` changes nothing | `print(MemoryStats.read("cuda").text())`: if *allocated* is high, something is alive; if only *reserved* is, something small is pinning |
# | I deleted the cache and it is still there | `print(retention_report(fn).text())` around the call that made it: the names behind each tensor, and what to type |
# | the numbers add up to more or less than the GPU has | context + other processes = total - free - reserved; cached = reserved - allocated; both from one `MemoryStats.read`, all in bytes |
# %% [markdown] key="stuck" lang="zh" src="3309d06b"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | `empty_cache()` 没有任何效果 | `print(MemoryStats.read("cuda").text("zh"))`：**已分配**高，说明有东西活着；只有**已保留**高，说明有个小东西钉住了段 |
# | 删掉了缓存，它却还在 | 在创建它的那次调用外面套上 `print(retention_report(fn).text("zh"))`：每个张量背后的名字，以及该输入什么 |
# | 几个数字加起来，比 GPU 的显存多或少 | 上下文 + 其他进程 = total - free - reserved；缓存着的 = reserved - allocated；都取自同一次 `MemoryStats.read`，单位都是字节 |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You can say who holds memory, prove it, and let it go.
# On the engineer's route [lesson 08](08_allocate_kv_cache.ipynb) comes next: it decides *before* the first request how much the cache may take, so that there is nothing to hunt for afterwards.
# In the order of the numbers it is [lesson 17](17_a_fleet_on_paper.ipynb): there memory, read as you read it here, decides how many GPUs a whole traffic needs.
# %% [markdown] key="next" lang="zh" src="a7c62afb"
# ## 下一课
#
# 现在你能说出是谁占着显存，拿得出证据，也能把它放掉。
# 在工程师路线上，接下来是[第 08 课](08_allocate_kv_cache.ipynb)：在第一个请求到来**之前**就定好缓存可以占多少，事后也就没有什么要追查的了。
# 按编号，接下来是[第 17 课](17_a_fleet_on_paper.ipynb)：一台机器放得下多少，你已经会看；那里要问，全部流量一共需要多少块 GPU。
