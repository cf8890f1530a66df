# %% [meta]
# number = "13b"
# slug = "fewer_cheaper_steps"
# needs = ["04", "08", "09", "11a"]
# rooms = ["engine.ext.graphs", "engine.ext.drafts"]
# minutes = 25
# [title]
# en = "How do steps get fewer and cheaper?"
# zh = "怎样让步数更少、每步更省？"
# [t4]
# en = "The models are tiny and computed by the CPU, beside a T4 too. The numbers are the same."
# zh = "模型很小，一律由 CPU 计算，有 T4 也一样。看到的数字相同。"
# [paper]
# en = "13b.1"
# zh = "13b.1"

# %% [markdown] key="question" lang="en"
# ## The question
#
# A decode step reads all weights, and gives each sequence a single token. To start it, the CPU launches more than a thousand small kernels, one after the other.
# **Can one call start a whole step? And can a step give several tokens, without changing the text?**
#
# Below is one step of Qwen3-0.6B on an H100, drawn twice. Above, PyTorch launches every kernel of it; below, one launch starts them all.
# %% [markdown] key="question" lang="zh" src="224a1caf"
# ## 问题
#
# 解码一步要读一遍全部权重，每条序列却只得到一个 token。为了启动这一步，CPU 还要一个接一个地 launch 一千多个小 kernel。
# **能不能一次调用就启动一整步？一步能不能得到几个 token，而文本不变？**
#
# 下面是 Qwen3-0.6B 在 H100 上的同一步，画了两遍：上面由 PyTorch 逐个 launch 每个 kernel，下面只 launch 一次。

# %% key="launches" lang="en"
from minikv.course.diagrams import launch_times
from minikv.course.lessons.l13b.launches import launched, step_kernels

kernels = step_kernels("Qwen3-0.6B", rows=1, context=1024)  # recorded from transformers' forward of one token
eager, graph = (launched(kernels, "H100 SXM 80GB", graph=graph) for graph in (False, True))
show(launch_times("Qwen3-0.6B", eager, graph, "en"))
# %% key="launches" lang="zh"
from minikv.course.diagrams import launch_times
from minikv.course.lessons.l13b.launches import launched, step_kernels

kernels = step_kernels("Qwen3-0.6B", rows=1, context=1024)  # transformers 算一个 token 时启动的全部 kernel
eager, graph = (launched(kernels, "H100 SXM 80GB", graph=graph) for graph in (False, True))
show(launch_times("Qwen3-0.6B", eager, graph, "zh"))

# %% [markdown] key="able" lang="en"
# The kernels are recorded from transformers' own forward. Their times are computed: a kernel takes its bytes divided by 3.35 TB/s, and at least 2 µs; a launch takes the CPU 6 µs. Both are assumptions, so change them in your mind: a faster CPU narrows the gaps, but as long as a launch takes longer than a kernel, the GPU waits.
#
# After this lesson you can
#
# - compute what a CUDA graph takes from the cache,
# - roll a sequence back, so that nothing wrong can be found in it,
# - write prompt lookup, and the step that checks its drafts.
# %% [markdown] key="able" lang="zh" src="19b11593"
# kernel 是从 transformers 自己的前向计算里录下来的，时间则是算出来的：一个 kernel 的用时等于它读写的字节数除以 3.35 TB/s，最少 2 µs；一次 launch 占 CPU 6 µs。后两个数是假定。CPU 快一些，空隙会小一些；但只要 launch 比 kernel 慢，GPU 就得等。
#
# 学完本课，你能
#
# - 算出 CUDA 图从缓存里拿走多少字节；
# - 回滚一条序列，而不留下任何会被误找到的内容；
# - 写出提示词查找，以及验证草稿的那一步。

# %% [markdown] key="graph" lang="en"
# ## Fewer launches, more memory: a graph
#
# A **CUDA graph** records the launches of a step once, and replays them all with one call.
# How much it brings depends on how long the kernels are. Before you run the cell: which of the four lines gains the most, and which one nothing?
# %% [markdown] key="graph" lang="zh" src="0bccc3bc"
# ## 少启动几次，多占些显存：CUDA 图
#
# **CUDA 图**（CUDA graph）把一步里的启动录一遍，以后一次调用就全部重放。
# 好处有多大，要看 kernel 有多长。运行之前先想一想：四行里哪一行快得最多，哪一行几乎不变？

# %% key="graph_gain" lang="en"
from minikv.course import Table

rows = []
for name in ("Qwen3-0.6B", "Llama-3.1-8B"):
    for batch in (1, 64):
        kernels = step_kernels(name, batch)
        eager, graph = (launched(kernels, "H100 SXM 80GB", graph=graph).seconds * 1e3 for graph in (False, True))
        rows.append([name, batch, len(kernels), eager, graph, eager / graph])
Table(["model", "sequences", "kernels", "launched, ms", "graph, ms", "ratio"], rows)
# %% key="graph_gain" lang="zh"
from minikv.course import Table

rows = []
for name in ("Qwen3-0.6B", "Llama-3.1-8B"):
    for batch in (1, 64):
        kernels = step_kernels(name, batch)
        eager, graph = (launched(kernels, "H100 SXM 80GB", graph=graph).seconds * 1e3 for graph in (False, True))
        rows.append([name, batch, len(kernels), eager, graph, eager / graph])
Table(["模型", "序列数", "kernel 数", "逐个 launch（毫秒）", "CUDA 图（毫秒）", "倍数"], rows)

# %% [markdown] key="graph_gain_read" lang="en"
# The small model with one sequence is almost three times as fast. With 64 sequences each kernel has more to read (here transformers also copies its growing cache, [lesson 07](07_allocate_once.ipynb)), so the CPU is always ahead and a graph brings nothing.
#
# A graph records *addresses and sizes*. So everything that a step reads from outside has to lie at the same place each time: token ids, positions, slots, block tables, lengths. And a batch of 13 is filled up to a size that was recorded, a **bucket**, with rows that store nothing. For up to 256 sequences the engine records these:
# %% [markdown] key="graph_gain_read" lang="zh" src="5cb827d6"
# 小模型只有一条序列时，几乎快到三倍。有 64 条序列时，每个 kernel 要读的更多（这里 transformers 还要复制不断增长的缓存，见[第 07 课](07_allocate_once.ipynb)），CPU 总是跑在前面，CUDA 图就没有好处了。
#
# 图里录下的是**地址和大小**。所以一步要从外面读的东西，每次都必须在同样的位置：token id、位置、槽位、块表、长度。如果 batch 只有 13 条，就用什么也不写入的空行补齐到录过的大小，即一个**档位**（bucket）。最多 256 条序列时，引擎录下这些档位：

# %% key="graph_buckets"
from minikv.engine.ext.graphs import GRAPH_BYTES, buckets

print(*buckets(256))

# %% [markdown] key="graph_buffers_read" lang="en"
# The persistent buffers take bytes that the KV cache does not get. Here they are for 256 sequences, with two limits on their length:
# %% [markdown] key="graph_buffers_read" lang="zh" src="3981bb80"
# 常驻的缓冲区要占显存，这部分 KV 缓存就得不到了。下面是 256 条序列的缓冲区，序列的最大长度取两个值：

# %% key="graph_buffers" lang="en"
import torch

from minikv.engine.ext.decode_buffers import DecodeSizes
from minikv.plan import CacheSpec

token = CacheSpec.from_config("Llama-3.1-8B").slope()  # bytes of K and V
columns = []
for context in (8192, 131_072):
    sizes = DecodeSizes(max_rows=256, width=context // 16, num_kv_cache_groups=1, vocabulary=128_256, dtype=torch.bfloat16)
    loans = [torch.Size(shape).numel() * dtype.itemsize for shape, dtype in sizes.loans().values()]
    driver = len(buckets(256)) * GRAPH_BYTES  # assumed for each recording
    columns.append([*loans, sizes.num_bytes, -(-sizes.num_bytes // token), driver])
names = ["inputs, one copy", "block tables", "logits", "together", "= tokens of Llama-3.1-8B", "driver (assumed)"]
Table(["bytes", "8,192 tokens", "131,072 tokens"], zip(names, *columns))
# %% key="graph_buffers" lang="zh"
import torch

from minikv.engine.ext.decode_buffers import DecodeSizes
from minikv.plan import CacheSpec

token = CacheSpec.from_config("Llama-3.1-8B").slope()  # K 和 V 的字节数
columns = []
for context in (8192, 131_072):
    sizes = DecodeSizes(max_rows=256, width=context // 16, num_kv_cache_groups=1, vocabulary=128_256, dtype=torch.bfloat16)
    loans = [torch.Size(shape).numel() * dtype.itemsize for shape, dtype in sizes.loans().values()]
    driver = len(buckets(256)) * GRAPH_BYTES  # 每次录制要占多少，是假定
    columns.append([*loans, sizes.num_bytes, -(-sizes.num_bytes // token), driver])
names = ["输入（一次复制）", "块表", "logits", "合计", "相当于 Llama-3.1-8B 的 token 数", "驱动（假定）"]
Table(["字节", "8,192 个 token", "131,072 个 token"], zip(names, *columns))

# %% [markdown] key="graph_read" lang="en"
# Most of these bytes are logits, a row of the whole vocabulary for each sequence; beside a cache they are few.
# That much follows from shapes. Only a GPU can tell the rest. What the recorded step computes in between (activations) lives in a **private pool** of the allocator, and stays there as long as the graph does, because its addresses are recorded too. All buckets can share one pool, since they never run at the same time. And the driver keeps something for each recording: the last row above, which is an assumption until it has been measured.
#
# All of it has to be known *before* the cache takes the rest. [Lesson 08](08_allocate_kv_cache.ipynb)'s rule holds: what the formula leaves out comes out of another tensor's memory. Our engine holds it back before it measures the cache, then records, and `llm.memory_report()` says what it really was. `enforce_eager=True` does without graphs.
#
# ## Several tokens from one step: drafts
#
# To *check* five tokens, a step reads the weights just as often as to make one: once ([lesson 04](04_the_roofline.ipynb)).
# So let us guess the next tokens. The cheapest guess is the text itself: if its last words stood there before, propose what followed them then. That is **prompt lookup**, the simplest kind of **speculative decoding**; its guesses are called **drafts**.
#
# One forward computes the newest token and the drafts behind it. After each of them the model gives its own next token. A draft that equals it is accepted. At the first one that differs, the model's own token is taken, and the drafts behind it fall.
# Here is a run of tiny-gqa with four drafts a step:
# %% [markdown] key="graph_read" lang="zh" src="16a2eaea"
# 缓冲区里大部分是 logits：每条序列都要一整行词表；与缓存相比并不多。
# 这些从形状就能算出来，其余的只有 GPU 知道。录下来的那一步，中间结果（激活）放在分配器的一个**私有池**里；它们的地址也录进了图，所以图存在多久，它们就占多久。各个档位从不同时运行，可以共用一个池。此外，驱动也要为每次录制留一些，即表里的最后一行；在测量之前，那只是假定。
#
# 所有这些，都要赶在缓存拿走其余显存**之前**知道。[第 08 课](08_allocate_kv_cache.ipynb)的道理依然成立：公式漏掉的一项，会去占别的张量的显存。我们的引擎先把这部分留出来，再测缓存能有多大，然后录制；实际用了多少，可以看 `llm.memory_report()`。`enforce_eager=True` 则不用图。
#
# ## 一步得到几个 token：草稿
#
# **验证**五个 token，权重也只读一遍，与生成一个 token 相同（[第 04 课](04_the_roofline.ipynb)）。
# 那就先猜后面几个。最省事的是从文本自己里面猜：最后几个词如果前面出现过，就把当时跟在后面的词提出来。这就是**提示词查找**（prompt lookup），最简单的一种**推测解码**（speculative decoding）；猜出来的 token 叫**草稿**（draft）。
#
# 一次前向计算，算最新的 token 和它后面的草稿。在每一个之后，模型都给出自己的下一个 token。草稿与它相同，就接受；遇到第一个不同的，改用模型自己的 token，后面的草稿全部作废。
# 下面是 tiny-gqa 的一次运行，每步四个草稿：

# %% key="drafts" lang="en"
from minikv import LLM, SamplingParams
from minikv.course.diagrams import drafts
from minikv.course.lessons.l13b.drafted import draft_steps
from minikv.engine import EventLog
from minikv.models import load, recall_prompt

torch.set_num_threads(1)
tiny, log = load("tiny-gqa", device="cpu"), EventLog()
greedy = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
with LLM(tiny, prompt_lookup=4, num_blocks=600, emit=log) as llm:
    [output] = llm.generate([recall_prompt(seed=0).text], greedy)
steps = draft_steps(log, output.prompt_token_ids, output.token_ids)
show(drafts(steps, tiny.tokenizer.decode, "en"))
# %% key="drafts" lang="zh"
from minikv import LLM, SamplingParams
from minikv.course.diagrams import drafts
from minikv.course.lessons.l13b.drafted import draft_steps
from minikv.engine import EventLog
from minikv.models import load, recall_prompt

torch.set_num_threads(1)
tiny, log = load("tiny-gqa", device="cpu"), EventLog()
greedy = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
with LLM(tiny, prompt_lookup=4, num_blocks=600, emit=log) as llm:
    [output] = llm.generate([recall_prompt(seed=0).text], greedy)
steps = draft_steps(log, output.prompt_token_ids, output.token_ids)
show(drafts(steps, tiny.tokenizer.decode, "zh"))

# %% [markdown] key="drafts_read" lang="en"
# So a step gives between 1 and drafts + 1 tokens, and the text is the one that the model would have written anyway.
# %% [markdown] key="drafts_read" lang="zh" src="e52c3f98"
# 所以一步得到 1 到“草稿数 + 1”个 token，文本则与模型自己一个一个写的完全相同。

# %% key="predict_lookup"
predict("lookup_steps", ...)

# %% [markdown] key="rollback_intro" lang="en"
# ## Taking tokens back: rollback
#
# When the forward ends, K and V of *all* drafts are in the cache. The refused ones have to come out again, which is what `truncate` does. Below, one draft of seven is accepted:
# %% [markdown] key="rollback_intro" lang="zh" src="b9f92e0c"
# ## 把 token 收回来：回滚
#
# 前向计算结束时，**所有**草稿的 K 和 V 都已经在缓存里了。没有被接受的必须收回来，这就是 `truncate` 做的事。下面七个草稿里接受了一个：

# %% key="rollback" lang="en"
from minikv.blocks import BlockManager
from minikv.course.diagrams import block_moments, moment

manager = BlockManager(num_blocks=12, block_size=4)
text, accepted, refused = [11, 12, 13, 14, 15, 16, 21], [22], [31, 32, 33, 34, 35, 36]
everything = [*text, *accepted, *refused]  # what another request may ask for
manager.allocate("S", text)
manager.commit("S")
moments = [moment(manager, "S", "commit", everything)]
manager.append_tokens("S", [*accepted, *refused])
moments.append(moment(manager, "S", "append_tokens", everything))
manager.truncate("S", 8)
manager.commit("S")
moments.append(moment(manager, "S", "truncate, commit", everything))
show(block_moments(moments, "en"))
# %% key="rollback" lang="zh"
from minikv.blocks import BlockManager
from minikv.course.diagrams import block_moments, moment

manager = BlockManager(num_blocks=12, block_size=4)
text, accepted, refused = [11, 12, 13, 14, 15, 16, 21], [22], [31, 32, 33, 34, 35, 36]
everything = [*text, *accepted, *refused]  # 另一个请求可能要找的内容
manager.allocate("S", text)
manager.commit("S")
moments = [moment(manager, "S", "commit", everything)]
manager.append_tokens("S", [*accepted, *refused])
moments.append(moment(manager, "S", "append_tokens", everything))
manager.truncate("S", 8)
manager.commit("S")
moments.append(moment(manager, "S", "truncate, commit", everything))
show(block_moments(moments, "zh"))

# %% [markdown] key="rollback_read" lang="en"
# Two blocks are free again. With the accepted token block 1 is full, and can be found from now on. The refused tokens cannot: `commit` came after `truncate`, so it published only what the sequence has kept.
#
# Does that order matter? Here the drafts are committed first and taken back afterwards, in a manager that has a window beside the full layers:
# %% [markdown] key="rollback_read" lang="zh" src="6737cda5"
# 两个块又空出来了。加上接受的那个 token，块 1 填满了，从此能被找到。没有接受的找不到，因为 `commit` 在 `truncate` 之后，只发布序列留下来的部分。
#
# 次序重要吗？下面先 commit，再收回；所用的管理器除了全注意力的层，还有一类带滑动窗口：

# %% key="rollback_window" lang="en"
from minikv.blocks import KVCacheGroup
from minikv.errors import MiniKVError


def rolled_back(first):
    manager = BlockManager([KVCacheGroup(12), KVCacheGroup(12, window=6)], block_size=4)
    manager.allocate("S", list(range(10)))
    manager.append_tokens("S", list(range(50, 58)))
    try:
        if first == "commit":
            manager.commit("S")
        manager.truncate("S", 11)
        manager.commit("S")
    except MiniKVError as error:
        return t(error)
    return str([manager.block_table("S", group) for group in (0, 1)])


Table(["first", "block tables: full layers, window"], [[first, rolled_back(first)] for first in ("truncate", "commit")])
# %% key="rollback_window" lang="zh"
from minikv.blocks import KVCacheGroup
from minikv.errors import MiniKVError


def rolled_back(first):
    manager = BlockManager([KVCacheGroup(12), KVCacheGroup(12, window=6)], block_size=4)
    manager.allocate("S", list(range(10)))
    manager.append_tokens("S", list(range(50, 58)))
    try:
        if first == "commit":
            manager.commit("S")
        manager.truncate("S", 11)
        manager.commit("S")
    except MiniKVError as error:
        return t(error)
    return str([manager.block_table("S", group) for group in (0, 1)])


Table(["先做的", "块表：全注意力的层、滑动窗口"], [[first, rolled_back(first)] for first in ("truncate", "commit")])

# %% [markdown] key="rollback_window_read" lang="en"
# (-1 stands for a block that was given back.) With the drafts committed the window has moved on past what the shorter sequence needs, and those blocks may belong to another sequence already. A cache that cannot go back has to refuse and say so; if it went on, the text would be wrong without any error.
# (Exercise 13b.2 is such a step, from the drafts to what is published.)
#
# What does it bring? `LLM(prompt_lookup=n)` does all this with up to $n$ drafts a step. Here are four prompts, one after the other, 100 tokens each; the last column compares the texts with those without drafts:
# %% [markdown] key="rollback_window_read" lang="zh" src="5c2e3b9b"
# （-1 表示已经归还的块。）草稿一提交，窗口就往前移，越过了缩短后的序列还要读的部分，那些块可能已经归了另一条序列。退不回去的缓存必须拒绝，并且说清楚；如果继续下去，文本会出错，却没有任何报错。
# （练习 13b.2 就是这样一步：从草稿到发布。）
#
# 这能带来多少好处？`LLM(prompt_lookup=n)` 会做这一切，每步最多 $n$ 个草稿。下面四个提示词一个接一个，各生成 100 个 token；最后一列与不用草稿的文本比对：

# %% key="speculate" tags="hardware" lang="en"
from minikv.engine import summary

prompts = [recall_prompt(seed=seed).text for seed in range(4)]
texts, rows = {}, []
for most in (0, 2, 4, 8):
    log = EventLog()
    with LLM(tiny, prompt_lookup=most, num_blocks=600, emit=log) as llm:
        texts[most] = [llm.generate([prompt], greedy)[0].token_ids for prompt in prompts]
    told, steps = summary(log.events), len(log.of("step"))
    same = sum(ours == due for ours, due in zip(texts[most], texts[0]))
    rows.append([most, steps, 400 / steps, told.drafted_tokens, told.accepted_tokens, f"{same} of 4"])
Table(["drafts a step", "steps", "tokens a step", "drafts", "accepted", "same texts"], rows)
# %% key="speculate" tags="hardware" lang="zh"
from minikv.engine import summary

prompts = [recall_prompt(seed=seed).text for seed in range(4)]
texts, rows = {}, []
for most in (0, 2, 4, 8):
    log = EventLog()
    with LLM(tiny, prompt_lookup=most, num_blocks=600, emit=log) as llm:
        texts[most] = [llm.generate([prompt], greedy)[0].token_ids for prompt in prompts]
    told, steps = summary(log.events), len(log.of("step"))
    same = sum(ours == due for ours, due in zip(texts[most], texts[0]))
    rows.append([most, steps, 400 / steps, told.drafted_tokens, told.accepted_tokens, f"4 个里的 {same} 个"])
Table(["每步最多几个草稿", "步数", "每步 token 数", "草稿总数", "接受的", "文本相同"], rows)

# %% [markdown] key="speculate_read" lang="en"
# The same texts in a fraction of the steps. (A small model that goes on by itself repeats itself a lot, as the picture shows; in other texts fewer drafts are accepted.)
# More drafts a step are not always better: each is computed, accepted or not, and takes a place in the step from another sequence.
# %% [markdown] key="speculate_read" lang="zh" src="a72b9822"
# 文本一样，步数只剩几分之一。（小模型自己往下写，重复很多，上面的图里就看得到；换成别的文本，接受的草稿会少一些。）
# 草稿也不是越多越好：不管接不接受，每一个都要算，还占去另一条序列在这一步里的位置。

# %% [markdown] key="break_stale" lang="en"
# ## Break it: drafts that can still be found
#
# Suppose that refused drafts were published, because `commit` came too early. Then a block may have a digest of tokens that it no longer holds. What does the manager do about it? (Here two of the six stay, so that the cut goes through the middle of a block.)
# %% [markdown] key="break_stale" lang="zh" src="2d13712e"
# ## 弄坏它：还能找到的草稿
#
# 假如 `commit` 来得太早，没有接受的草稿也发布了，那么一个块的摘要所指的 token，可能已经不是块里的内容。管理器会怎样处理？（这里六个里留下两个，好让截断处落在一个块的中间。）

# %% key="break_stale_code" lang="en"
manager = BlockManager(num_blocks=12, block_size=4)
manager.allocate("S", text)
manager.append_tokens("S", [*accepted, *refused])
manager.commit("S")  # too early: refused drafts are published
moments = [moment(manager, "S", "commit", everything)]
manager.truncate("S", 10)
moments.append(moment(manager, "S", "truncate", everything))
manager.append("S", 77)
moments.append(moment(manager, "S", "append", everything))
show(block_moments(moments, "en"))
# %% key="break_stale_code" lang="zh"
manager = BlockManager(num_blocks=12, block_size=4)
manager.allocate("S", text)
manager.append_tokens("S", [*accepted, *refused])
manager.commit("S")  # 太早：没有接受的草稿也发布了
moments = [moment(manager, "S", "commit", everything)]
manager.truncate("S", 10)
moments.append(moment(manager, "S", "truncate", everything))
manager.append("S", 77)
moments.append(moment(manager, "S", "append", everything))
show(block_moments(moments, "zh"))

# %% [markdown] key="break_stale_read" lang="en"
# After `truncate` two of the tokens behind the cut can still be found, and rightly so: their K and V are still in the block, and they are right for those tokens. With `append` the content changes, and in the same moment the block is forgotten.
# Without that, another request would read 77 and take it for 33.
#
# ## Recap
#
# - A step of Qwen3-0.6B is 1,590 launches. One CUDA graph starts them all, and a step with one sequence takes 3.3 ms in place of 9.6.
# - A graph records addresses and sizes: fixed buffers, padded batch sizes, and a private pool, all taken before the cache.
# - Drafts are checked in one forward. Each is compared with the model's own token, so the text stays the same.
# - Refused drafts are taken back with `truncate`, and only then does `commit` publish.
# %% [markdown] key="break_stale_read" lang="zh" src="e423031c"
# `truncate` 之后，截掉的 token 里有两个还找得到，这没有错：它们的 K 和 V 还在块里，对那些 token 来说也是对的。到了 `append`，内容变了，这个块也在同一刻从前缀缓存里除名。
# 否则，另一个请求读到的是 77，却以为是 33。
#
# ## 本课小结
#
# - Qwen3-0.6B 的一步要 launch 1,590 次。一个 CUDA 图一次就能启动，只有一条序列时，一步从 9.6 毫秒减到 3.3 毫秒。
# - 图里录的是地址和大小，所以要有固定的缓冲区、补齐的 batch 大小和一个私有池，这些都要在缓存之前留出来。
# - 一次前向计算验证几个草稿，每个都与模型自己的 token 对照，所以文本不变。
# - 没有接受的草稿用 `truncate` 收回，然后才 `commit` 发布。

# %% [markdown] key="check_yourself" lang="en"
# ## Check yourself
#
# Say the answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="check_yourself" lang="zh" src="9cbe005b"
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_same"
explain("why_the_same_text")

# %% [markdown] key="exercises" lang="en"
# ## In the wild
#
# - **Graphs that were measured with another cache.** In [vLLM #57475](https://github.com/vllm-project/vllm/issues/57475) the start-up measured the graphs beside a small cache, made the large one, and then recorded: "vLLM's own accounting said it fits, then it didn't." In older versions the figure was missing, and a user had to ask whether graphs count towards `gpu_memory_utilization` ([#11251](https://github.com/vllm-project/vllm/issues/11251)).
# - **Drafts that were not compared.** One engine took the first draft of each step without a comparison, because its loop was off by one place ([lattice #243](https://github.com/ohdearquant/lattice/issues/243)). The text was wrong, and no error said so.
# - **Drafts that were not taken back.** In mlx-lm some caches could not be cut, so refused drafts stayed in them ([#1109](https://github.com/ml-explore/mlx-lm/pull/1109)); a rotating cache that is full cannot go back either, and now refuses ([#1427](https://github.com/ml-explore/mlx-lm/pull/1427)).
# - **Two tokens too many taken back.** In mlxcel the model that makes the drafts lost them from its own cache ([#994](https://github.com/lablup/mlxcel/issues/994)). The text stayed right, and fewer and fewer drafts were.
#
# ## Exercises
#
# 1. `propose`: drafts out of the text itself.
# 2. `decode_step`: compute, compare, take back, publish.
# %% [markdown] key="exercises" lang="zh" src="66357b65"
# ## 实战现场
#
# - **测 CUDA 图时用的是另一份缓存。** [vLLM #57475](https://github.com/vllm-project/vllm/issues/57475) 里，启动时先用一份小缓存测量，然后建大缓存，最后才录制，结果自己的账说放得下，实际却放不下（“vLLM's own accounting said it fits, then it didn't.”）。更早的版本连这一项都没有，用户只好来问：`gpu_memory_utilization` 到底算没算上 CUDA 图（[#11251](https://github.com/vllm-project/vllm/issues/11251)）？
# - **没有比对的草稿。** 有个引擎的循环错开了一位，每一步的第一个草稿没有比对就接受了（[lattice #243](https://github.com/ohdearquant/lattice/issues/243)）。文本因此出错，却没有任何报错。
# - **没有收回的草稿。** mlx-lm 里有的缓存截不短，没有接受的草稿就留在了里面（[#1109](https://github.com/ml-explore/mlx-lm/pull/1109)）；写满的循环缓存同样退不回去，现在会直接拒绝（[#1427](https://github.com/ml-explore/mlx-lm/pull/1427)）。
# - **多收回了两个 token。** mlxcel 里，专门写草稿的模型每次都从自己的缓存里多退两个（[#994](https://github.com/lablup/mlxcel/issues/994)）。文本没有错，猜对的草稿却越来越少。
#
# ## 练习
#
# 1. `propose`：从文本自己里面找草稿。
# 2. `decode_step`：计算，比对，收回，发布。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# A step starts with one call, and may give several tokens; the text is the same.
# [Lesson 14](14_what_to_forget.ipynb) changes what is kept: without a window, which tokens can go all the same? Then an answer may really be gone, and the curves have to be honest.
# %% [markdown] key="next" lang="zh" src="f126e889"
# ## 下一课
#
# 一步只要一次调用，还可能得到几个 token，而文本不变。
# [第 14 课](14_what_to_forget.ipynb)改的是存下来的东西：没有窗口的时候，哪些 token 也可以不要？那时，有的回答就真的找不回来了，曲线也得老老实实地画。
