# %% [meta]
# number = "13b"
# slug = "fewer_cheaper_steps"
# needs = ["04", "08", "09", "11a"]
# rooms = ["engine.ext.graphs", "engine.ext.drafts"]
# [title]
# en = "How do steps get fewer and cheaper?"
# zh = "怎样让步数更少、每步更省？"
# [t4]
# en = "The text quotes what the small model writes, token by token, so the CPU computes it, even where there is a T4. The numbers are the same."
# zh = "正文逐个 token 引用小模型写出的文本，所以由 CPU 计算，有 T4 也一样。看到的数字相同。"
# [paper]
# en = "13b.1"
# zh = "13b.1"

# %% [markdown] key="question" lang="en"
# ## The question
#
# A decode step reads all weights and gives each sequence a single token. To start it, the CPU launches more than a thousand small kernels, one after the other.
# **Can one call start a whole step? And can a step give several tokens, without changing the text?**
#
# The picture shows one step of Qwen3-0.6B on an H100, twice. Above, PyTorch launches every kernel; below, one launch starts them all.
# %% [markdown] key="question" lang="zh" src="1c9ab85b"
# ## 问题
#
# 解码一步要读一遍全部权重，每条序列却只得到一个 token。而为了启动这一步，CPU 要一个接一个地 launch 一千多个小 kernel。
# **能不能一次调用就启动一整步？一步能不能得到好几个 token，文本又不变？**
#
# 下面把 Qwen3-0.6B 在 H100 上的同一步画了两遍，上面由 PyTorch 逐个 launch 每个 kernel，下面只 launch 一次。

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
# The kernels are recorded from the forward of transformers. Their times are computed: a kernel takes its bytes divided by 3.35 TB/s (the bandwidth of an H100), but at least 2 µs, and a launch takes the CPU 6 µs. The 2 and the 6 µs are assumptions. For example, if a kernel takes 2 µs and the launch of the next one 6 µs, the GPU waits 4 µs between them. With a faster CPU the gaps get narrower, but as long as a launch takes longer than a kernel, the GPU waits.
#
# After this lesson you can
#
# - **compute** what a CUDA graph saves in a step, and what it takes from the cache,
# - **roll back** a sequence, so that nothing wrong can be found in the cache,
# - **write** prompt lookup, which guesses tokens from the text, and the step that checks the guesses.
#
# You need the roofline ([lesson 04](04_the_roofline.ipynb)), the memory plan ([lesson 08](08_allocate_kv_cache.ipynb)), blocks ([lesson 09](09_pages_and_blocks.ipynb)) and the engine's step ([lesson 11a](11a_continuous_batching.ipynb)).
# %% [markdown] key="able" lang="zh" src="ac7fe23c"
# kernel 是从 transformers 的前向计算里录下来的，时间则是算出来的。一个 kernel 的用时等于它读写的字节数除以 3.35 TB/s（H100 的显存带宽），最少 2 µs；一次 launch 占 CPU 6 µs。2 µs 和 6 µs 是假定的。例如 GPU 用 2 µs 算完一个 kernel，而 CPU launch 下一个要 6 µs，GPU 就要空等 4 µs。CPU 快一些，空隙会小一些；但只要 launch 比 kernel 慢，GPU 就得等。
#
# 学完本课，你能
#
# - **算出** CUDA 图让一步快多少，又从缓存里拿走多少字节；
# - **回滚**一条序列，而不在缓存里留下会被误找到的内容；
# - **写出**提示词查找（从文本里猜后面的 token），以及验证这些猜测的一步。
#
# 需要先懂 roofline（[第 04 课](04_the_roofline.ipynb)）、显存计划（[第 08 课](08_allocate_kv_cache.ipynb)）、块（[第 09 课](09_pages_and_blocks.ipynb)）和引擎的一步（[第 11a 课](11a_continuous_batching.ipynb)）。

# %% [markdown] key="graph" lang="en"
# ## Fewer launches, more memory: a CUDA graph
#
# A **CUDA graph** records the launches of a step once, and replays them all with one call. CPU and GPU work at the same time, so the slower of the two decides how long a step takes:
# %% [markdown] key="graph" lang="zh" src="987abac1"
# ## 少 launch 几次，多占些显存：CUDA 图
#
# **CUDA 图**（CUDA graph）把一步里的全部 launch 录一遍，以后一次调用就能全部重放。CPU 和 GPU 是同时工作的，所以一步要多久，由慢的一方决定：

# %% [markdown] key="graph_math"
# $$t_\text{alone} \;\approx\; \max\!\Big(n\,t_\text{launch},\; \sum_k t_k\Big) \qquad\qquad t_\text{graph} \;\approx\; t_\text{launch} + \sum_k t_k$$

# %% [markdown] key="graph_symbols" lang="en"
# | symbol | meaning | value here: Qwen3-0.6B, one sequence |
# |---|---|---|
# | $n$ | kernels of the step | 1,590 |
# | $t_\text{launch}$ | the CPU's time for a launch | 6 µs |
# | $\sum_k t_k$ | all kernels, one after the other | 9.63 - 6.36 = 3.27 ms |
#
# Launched alone: `1,590 × 6 µs = 9.54 ms`, more than 3.27 ms, so the CPU decides. (The picture says 9.63 ms, because the last kernel still runs after the last launch.) With a graph: `0.006 + 3.27 = 3.28 ms`.
#
# How much a graph brings therefore depends on how long the kernels are. Before you run the cell: which of the four rows gains the most, and which gain hardly anything?
# %% [markdown] key="graph_symbols" lang="zh" src="d33b981c"
# | 符号 | 含义 | 本例取值：Qwen3-0.6B，一条序列 |
# |---|---|---|
# | $n$ | 一步有多少个 kernel | 1,590 |
# | $t_\text{launch}$ | CPU 做一次 launch 的时间 | 6 µs |
# | $\sum_k t_k$ | 全部 kernel 一个接一个要多久 | 9.63 - 6.36 = 3.27 毫秒 |
#
# 逐个 launch：`1,590 × 6 µs = 9.54` 毫秒，大于 3.27 毫秒，所以是 CPU 拖慢了这一步。（图里写 9.63 毫秒，因为最后一次 launch 之后，最后一个 kernel 还要算一会儿。）用 CUDA 图：`0.006 + 3.27 = 3.28` 毫秒。
#
# 也就是说，CUDA 图的好处有多大，要看 kernel 有多长。运行之前先想一想：四行里哪一行快得最多，哪几行几乎不变？

# %% key="graph_gain" lang="en"
from minikv.course import Table

rows = []
for name in ("Qwen3-0.6B", "Llama-3.1-8B"):
    for batch in (1, 64):
        kernels = step_kernels(name, batch)
        eager, graph = (launched(kernels, "H100 SXM 80GB", graph=graph).seconds * 1e3 for graph in (False, True))
        rows.append([name, batch, len(kernels), eager, graph, eager / graph])
Table(["model", "sequences", "kernels", "launched alone (ms)", "CUDA graph (ms)", "times as fast"], rows)
# %% key="graph_gain" lang="zh"
from minikv.course import Table

rows = []
for name in ("Qwen3-0.6B", "Llama-3.1-8B"):
    for batch in (1, 64):
        kernels = step_kernels(name, batch)
        eager, graph = (launched(kernels, "H100 SXM 80GB", graph=graph).seconds * 1e3 for graph in (False, True))
        rows.append([name, batch, len(kernels), eager, graph, eager / graph])
Table(["模型", "序列数", "kernel 数", "逐个 launch（毫秒）", "CUDA 图（毫秒）", "快到几倍"], rows)

# %% [markdown] key="graph_gain_read" lang="en"
# With one sequence the small model is almost three times as fast. With 64 sequences each kernel has more to read (here transformers also copies its growing cache, [lesson 07](07_allocate_once.ipynb)). The CPU is then always ahead, so a graph brings nothing.
#
# What does a graph cost? It records *addresses and sizes*. So everything that a step reads from outside must lie at the same place each time: token ids, positions, slots, block tables, lengths. A size that was recorded is called a **bucket**. A batch of 13 is filled up to the next bucket, 16, with three rows that store nothing. For up to 256 sequences the engine records these buckets:
# %% [markdown] key="graph_gain_read" lang="zh" src="09282559"
# 只有一条序列时，小模型几乎快到三倍。有 64 条序列时，每个 kernel 要读的更多（这里 transformers 还要复制不断增长的缓存，见[第 07 课](07_allocate_once.ipynb)），CPU 总是跑在前面，CUDA 图就没有好处了。
#
# CUDA 图的代价是什么？图里录下的是**地址和大小**。所以一步要从外面读的东西，每次都必须在同样的位置：token id、位置、槽位、块表、长度。录过的 batch 大小叫**档位**（bucket）。例如 batch 只有 13 条时，就加三个什么也不写入的空行，补齐到下一个档位 16。最多 256 条序列时，引擎录下这些档位：

# %% key="graph_buckets"
from minikv.engine.ext.graphs import GRAPH_BYTES, buckets

print(*buckets(256))

# %% [markdown] key="graph_buffers_read" lang="en"
# These fixed buffers take bytes that the KV cache doesn't get. Here they are for 256 sequences, with two limits on their length:
# %% [markdown] key="graph_buffers_read" lang="zh" src="6fb497aa"
# 这些固定的缓冲区要占显存，KV 缓存就得不到这一部分。下面是 256 条序列的缓冲区，序列的最大长度取两个值：

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
names = ["inputs (one copy)", "block tables", "logits", "sum of the three", "as tokens of Llama-3.1-8B", "driver (assumed)"]
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
names = ["输入（一次复制）", "块表", "logits", "三项合计", "相当于 Llama-3.1-8B 的 token 数", "驱动（假定）"]
Table(["字节", "8,192 个 token", "131,072 个 token"], zip(names, *columns))

# %% [markdown] key="graph_read" lang="en"
# The inputs are stored together, with room for all block tables, so that one copy brings them to the GPU; `block tables` is where a step reads them. The driver's row counts 8 MiB for each of the 35 recordings, one for each bucket.
#
# Most of these bytes are logits, a row of the whole vocabulary for each sequence: `256 × 128,256 × 2 = 65,667,072`. In the first column the three rows take as much memory as 510 tokens, which is little compared with a whole cache.
#
# All of this follows from shapes. The rest can only be measured on a GPU. What the recorded step computes in between (its activations) lies in a **private pool** of the allocator. It stays there as long as the graph does, because its addresses are recorded too. All buckets can share one pool, since they never run at the same time. The driver also keeps something for each recording: that is the last row above, an assumption until it has been measured.
#
# The engine has to know all of this *before* the cache takes the rest, because memory that the formula leaves out is taken from another tensor ([lesson 08](08_allocate_kv_cache.ipynb)). Our engine first reserves this memory, then sizes the cache, then records. `llm.memory_report()` says what the graphs really took. With `enforce_eager=True` there are no graphs.
#
# A CPU has no graphs, but there, too, Python stands between the operations. So on a CPU our engine writes down a step's calls with the memory that each of them reads and writes, and later makes them one after the other, without the model's code: `minikv/engine/ext/recorded.py`. The same rule holds: whatever depends on a value of one step, such as `tensor.item()`, can't be recorded.
#
# ## Several tokens from one step: drafts
#
# A step that *checks* five tokens reads the weights once, just like a step that makes one token ([lesson 04](04_the_roofline.ipynb)). So it pays to guess the next tokens.
#
# The cheapest guess comes from the text itself. If its last words have appeared before, propose what followed them then. This is **prompt lookup**, the simplest kind of **speculative decoding**, and its guesses are called **drafts**.
#
# One forward computes the newest token and the drafts after it. After each of them the model gives its own next token. If the draft equals that token, it is accepted. At the first difference the model's own token is taken, and the drafts after it are dropped.
# Here is a run of tiny-gqa with up to four drafts a step:
# %% [markdown] key="graph_read" lang="zh" src="4d9ccfd7"
# “输入”连同全部块表的位置放在一起，一次复制就能送到 GPU；“块表”是 kernel 实际读取的地方。“驱动”一行按 35 个档位各录一次、每次 8 MiB 计算。
#
# 其中大部分是 logits，每条序列都要一整行词表：`256 × 128,256 × 2 = 65,667,072` 字节。第一列的合计相当于 510 个 token 的缓存，与整个缓存相比并不多。
#
# 这些从形状就能算出来，其余的要在 GPU 上才知道。录下来的那一步，中间结果（激活）放在分配器的一个**私有池**里。它们的地址也录进了图，所以图存在多久，它们就占多久。各个档位从不同时运行，可以共用一个池。驱动也要为每次录制留一些，就是表里的最后一行；在测量之前，那只是假定。
#
# 引擎必须在缓存拿走其余显存**之前**知道这一切，因为公式漏掉的一项，会去占别的张量的显存（[第 08 课](08_allocate_kv_cache.ipynb)）。我们的引擎先把这部分留出来，再定缓存的大小，然后录制；图实际占了多少，可以看 `llm.memory_report()`。设 `enforce_eager=True` 就不用图。
#
# CPU 没有这种图，但算子与算子之间同样隔着 Python 代码。所以在 CPU 上，我们的引擎把一步里的调用连同各自读写的内存记下来，以后照着顺序逐个调用，不再执行模型的代码，见 `minikv/engine/ext/recorded.py`。规矩是一样的：只要某处取决于这一步的某个值（例如 `tensor.item()`），就不能录制。
#
# ## 一步得到几个 token：草稿
#
# **验证**五个 token，权重只读一遍，与生成一个 token 相同（[第 04 课](04_the_roofline.ipynb)）。所以不妨先猜后面几个 token。
#
# 最省事的是从文本里猜。最后几个词如果前面出现过，就把当时跟在后面的词提出来。这就是**提示词查找**（prompt lookup），最简单的一种**推测解码**（speculative decoding）；猜出来的 token 叫**草稿**（draft）。
#
# 一次前向计算，算最新的 token 和它后面的草稿，模型在每一个之后都给出自己的下一个 token。草稿与它相同，就接受；遇到第一个不同的，改用模型自己的 token，后面的草稿全部作废。
# 下面是 tiny-gqa 的一次运行，每步最多四个草稿：

# %% key="drafts" lang="en"
from minikv import LLM, SamplingParams
from minikv.course.diagrams import drafts
from minikv.course.lessons.l13b.drafted import draft_steps
from minikv.engine import EventLog
from minikv.models import load, recall_prompt

torch.set_num_threads(1)
# The text quotes these very tokens, and rounding may turn one on another device: so the CPU, by name.
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
# 正文引用的就是这些 token，而换一个设备，舍入不同，token 就可能改变，所以写明用 CPU。
tiny, log = load("tiny-gqa", device="cpu"), EventLog()
greedy = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
with LLM(tiny, prompt_lookup=4, num_blocks=600, emit=log) as llm:
    [output] = llm.generate([recall_prompt(seed=0).text], greedy)
steps = draft_steps(log, output.prompt_token_ids, output.token_ids)
show(drafts(steps, tiny.tokenizer.decode, "zh"))

# %% [markdown] key="drafts_read" lang="en"
# (The step of the prompt gives the first of the 100 tokens, so the picture has 99.) Look at step 3: the text ends with `chen`, and the prompt has `chen madrid quiet table rests`. So the drafts are `madrid quiet table rests`. The model agrees with the first one, and says `?` instead of the second.
#
# So a step gives between 1 and 5 tokens here: the accepted drafts, and one of the model's own. The text equals the one that the model writes token by token.
# %% [markdown] key="drafts_read" lang="zh" src="89fd71e4"
# （100 个 token 里的第一个在处理提示词那一步就得到了，所以图里是 99 个。）例如第 3 步：文本以 `chen` 结尾，而提示词里有 `chen madrid quiet table rests`，所以草稿是 `madrid quiet table rests`。模型同意第一个，第二个它说的是 `?`。
#
# 在这里，一步得到 1 到 5 个 token，也就是接受的草稿，再加模型自己的一个。文本与模型自己一个一个写出来的完全相同。

# %% key="predict_lookup"
predict("lookup_steps", ...)

# %% [markdown] key="rollback_intro" lang="en"
# ## Taking tokens back: rollback
#
# When the forward ends, K and V of *all* drafts are in the cache. The rejected ones have to be removed again, and `truncate` does that. In the picture one draft of seven is accepted:
# %% [markdown] key="rollback_intro" lang="zh" src="97833127"
# ## 把 token 收回来：回滚
#
# 前向计算结束时，**所有**草稿的 K 和 V 都已经在缓存里。没有被接受的必须收回来，这由 `truncate` 来做。图里的七个草稿接受了一个：

# %% key="rollback" lang="en"
from minikv.blocks import BlockManager
from minikv.course.diagrams import block_moments, moment

manager = BlockManager(num_blocks=12, block_size=4)
text, accepted, rejected = [11, 12, 13, 14, 15, 16, 21], [22], [31, 32, 33, 34, 35, 36]
everything = [*text, *accepted, *rejected]  # what another request may ask for
manager.allocate("S", text)
manager.commit("S")
moments = [moment(manager, "S", "commit", everything)]
manager.append_tokens("S", [*accepted, *rejected])
moments.append(moment(manager, "S", "append_tokens", everything))
manager.truncate("S", 8)
manager.commit("S")
moments.append(moment(manager, "S", "truncate, commit", everything))
show(block_moments(moments, "en"))
# %% key="rollback" lang="zh"
from minikv.blocks import BlockManager
from minikv.course.diagrams import block_moments, moment

manager = BlockManager(num_blocks=12, block_size=4)
text, accepted, rejected = [11, 12, 13, 14, 15, 16, 21], [22], [31, 32, 33, 34, 35, 36]
everything = [*text, *accepted, *rejected]  # 另一个请求可能要找的内容
manager.allocate("S", text)
manager.commit("S")
moments = [moment(manager, "S", "commit", everything)]
manager.append_tokens("S", [*accepted, *rejected])
moments.append(moment(manager, "S", "append_tokens", everything))
manager.truncate("S", 8)
manager.commit("S")
moments.append(moment(manager, "S", "truncate, commit", everything))
show(block_moments(moments, "zh"))

# %% [markdown] key="rollback_read" lang="en"
# Two blocks are free again. With the accepted token block 1 is full, so it is published: other requests can find it from now on. They can't find the rejected tokens: `commit` came after `truncate`, so it published only what the sequence kept.
#
# Does that order matter? Here we commit the drafts first and take them back afterwards. The manager has two groups of layers, full ones and ones with a window:
# %% [markdown] key="rollback_read" lang="zh" src="0b96bfb2"
# 两个块又空出来了。加上接受的那个 token，块 1 填满了，也就发布了，其他请求从此能找到它。没有接受的找不到，因为 `commit` 在 `truncate` 之后，只发布序列留下来的部分。
#
# 次序重要吗？下面先 commit，再收回。所用的管理器除了全注意力的层，还有带滑动窗口的层：

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


Table(["called first", "block tables: full layers, layers with a window"], [[first, rolled_back(first)] for first in ("truncate", "commit")])
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


Table(["先调用", "块表：全注意力的层、带滑动窗口的层"], [[first, rolled_back(first)] for first in ("truncate", "commit")])

# %% [markdown] key="rollback_window_read" lang="en"
# (-1 stands for a block that was given back.) With all 18 tokens committed, the next query would read positions 13 to 18 only, so blocks 0 to 2 of the window's table went back. After the cut to 11 tokens it reads positions 6 to 11, and 6 and 7 lay in block 1, which may already belong to another sequence. A cache that cannot go back has to refuse. If it went on, the text would be wrong, and no error would say so. (In exercise 13b.2 you write such a step.)
#
# How much do drafts gain? `LLM(prompt_lookup=n)` does all of this, with up to $n$ drafts a step. We generate 100 tokens for each of four prompts, one prompt after the other. The last column compares the texts with those made without drafts:
# %% [markdown] key="rollback_window_read" lang="zh" src="a65fea81"
# （-1 表示已经归还的块。）18 个 token 全部提交之后，下一个 query 只读位置 13 到 18，也就是说，窗口块表里的块 0 到块 2 都用不着了，已经归还。可是截短到 11 个 token 之后，要读的是位置 6 到 11，其中 6 和 7 在块 1 里，而这个块可能已经归了另一条序列。退不回去的缓存必须拒绝；如果继续下去，文本会出错，却没有任何报错。（练习 13b.2 就写这样一步。）
#
# 草稿能带来多少好处？`LLM(prompt_lookup=n)` 会完成上面的全部工作，每步最多 $n$ 个草稿。我们让四个提示词一个接一个，各生成 100 个 token；最后一列与不用草稿的文本比对：

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
Table(["most drafts a step", "steps", "tokens a step", "drafts in all", "accepted", "same texts"], rows)
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

# %% [markdown] key="tokens_math"
# $$\text{tokens a step} \;=\; 1 + \frac{\text{accepted drafts}}{\text{steps}}$$

# %% [markdown] key="speculate_read" lang="en"
# The texts are the same, and they take a fraction of the steps. Each step gives its accepted drafts and one token of the model's own. With up to 4 drafts a step that is `1 + 306 / 94 = 4.26`.
#
# (A small model that writes freely repeats itself a lot, as the picture above shows. In other texts fewer drafts are accepted.) More drafts a step are not always better. With 8, about a quarter of the drafts is rejected. Each of them is computed all the same, and takes a place in the step that another sequence could have used.
# %% [markdown] key="speculate_read" lang="zh" src="cd4cd4da"
# 文本一样，步数只剩几分之一。每一步有模型自己的一个 token，再加接受的草稿。每步最多 4 个草稿时，就是 `1 + 306 / 94 = 4.26`。
#
# （小模型自己往下写，重复很多，上面的图里就看得到；换成别的文本，接受的草稿会少一些。）草稿也不是越多越好。每步 8 个时，约有四分之一没有被接受，可每个草稿都要算，还占去另一条序列在这一步里的位置。

# %% [markdown] key="break_stale" lang="en"
# ## Break it: drafts that can still be found
#
# Suppose `commit` came too early, so the rejected drafts were published. Then the digest of a block may stand for tokens that the block no longer holds. How does the manager handle that? (Here two of the six stay, so that the cut goes through the middle of a block.)
# %% [markdown] key="break_stale" lang="zh" src="b056d271"
# ## 弄坏它：还能找到的草稿
#
# 假如 `commit` 来得太早，没有接受的草稿也发布了，那么一个块的摘要所指的 token，可能已经不是块里的内容。管理器会怎样处理？（这里六个里留下两个，好让截断处落在一个块的中间。）

# %% key="break_stale_code" lang="en"
manager = BlockManager(num_blocks=12, block_size=4)
manager.allocate("S", text)
manager.append_tokens("S", [*accepted, *rejected])
manager.commit("S")  # too early: rejected drafts are published
moments = [moment(manager, "S", "commit", everything)]
manager.truncate("S", 10)
moments.append(moment(manager, "S", "truncate", everything))
manager.append("S", 77)
moments.append(moment(manager, "S", "append", everything))
show(block_moments(moments, "en"))
# %% key="break_stale_code" lang="zh"
manager = BlockManager(num_blocks=12, block_size=4)
manager.allocate("S", text)
manager.append_tokens("S", [*accepted, *rejected])
manager.commit("S")  # 太早：没有接受的草稿也发布了
moments = [moment(manager, "S", "commit", everything)]
manager.truncate("S", 10)
moments.append(moment(manager, "S", "truncate", everything))
manager.append("S", 77)
moments.append(moment(manager, "S", "append", everything))
show(block_moments(moments, "zh"))

# %% [markdown] key="break_stale_read" lang="en"
# After `truncate`, two of the tokens that were cut off can still be found. That is right: their K and V are still in the block. With `append` the content changes, and at the same moment the manager forgets the block's digest. Otherwise another request would read 77 and take it for 33.
#
# ## Recap
#
# - A step of Qwen3-0.6B has 1,590 launches. One CUDA graph starts them all, and a step with one sequence takes 3.28 ms instead of 9.63.
# - A graph records addresses and sizes. So it needs fixed buffers (the place of 510 tokens of Llama-3.1-8B), padded batch sizes and a private pool, all taken before the cache.
# - One forward checks all drafts. Each is compared with the model's own token, so the text stays the same, with 4.26 tokens a step instead of 1.
# - Refused drafts are taken back with `truncate`, and only then does `commit` publish.
# %% [markdown] key="break_stale_read" lang="zh" src="64fd9d06"
# `truncate` 之后，截掉的 token 里有两个还找得到。这没有错，它们的 K 和 V 还在块里。到了 `append`，内容变了，管理器也在同一刻忘掉这个块的摘要。否则，另一个请求读到的是 77，却以为是 33。
#
# ## 本课小结
#
# - Qwen3-0.6B 的一步要 launch 1,590 次。一个 CUDA 图一次就能启动，只有一条序列时，一步从 9.63 毫秒减到 3.28 毫秒。
# - 图里录的是地址和大小，所以要有固定的缓冲区（相当于 Llama-3.1-8B 的 510 个 token）、补齐的 batch 大小和一个私有池，都要在缓存之前留出来。
# - 一次前向计算就能验证全部草稿。每个草稿都与模型自己的 token 对照，所以文本不变，每步却从 1 个 token 变成 4.26 个。
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
# ## Exercises
#
# 1. `propose`: find drafts in the text itself.
# 2. `decode_step`: compute, compare, take back, publish.
# %% [markdown] key="exercises" lang="zh" src="7be79207"
# ## 练习
#
# 1. `propose`：从文本里找草稿。
# 2. `decode_step`：计算，比对，收回，发布。

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - **Graphs that were measured with another cache.** In [vLLM #57475](https://github.com/vllm-project/vllm/issues/57475) the start-up measured the graphs with a small cache, then made the large one, and only then recorded the graphs. "vLLM's own accounting said it fits, then it didn't." In older versions this figure was missing, and a user had to ask whether graphs count towards `gpu_memory_utilization` ([#11251](https://github.com/vllm-project/vllm/issues/11251)).
# - **Drafts that were not compared.** One engine accepted the first draft of each step without a comparison, because its loop was off by one place ([lattice #243](https://github.com/ohdearquant/lattice/issues/243)). The text was wrong, and no error said so.
# - **Drafts that were not taken back.** In mlx-lm some caches could not be cut, so rejected drafts stayed in them ([#1109](https://github.com/ml-explore/mlx-lm/pull/1109)). A rotating cache that is full cannot go back either, and now refuses ([#1427](https://github.com/ml-explore/mlx-lm/pull/1427)).
# - **Two tokens too many taken back.** In mlxcel a second model makes the drafts. Each time it took two tokens too many out of its own cache ([#994](https://github.com/lablup/mlxcel/issues/994)). The text stayed right, but fewer and fewer drafts were accepted.
# %% [markdown] key="wild" lang="zh" src="7c89933f"
# ## 实战现场
#
# - **测 CUDA 图时用的是另一份缓存。** [vLLM #57475](https://github.com/vllm-project/vllm/issues/57475) 里，启动时先用一份小缓存测量，然后建大缓存，最后才录制，结果账面上放得下，实际却放不下（“vLLM's own accounting said it fits, then it didn't.”）。更早的版本连这一项都没有，用户只好来问：`gpu_memory_utilization` 到底算没算上 CUDA 图（[#11251](https://github.com/vllm-project/vllm/issues/11251)）？
# - **没有比对的草稿。** 有个引擎的循环错开了一位，每一步的第一个草稿没有比对就接受了（[lattice #243](https://github.com/ohdearquant/lattice/issues/243)）。文本因此出错，却没有任何报错。
# - **没有收回的草稿。** mlx-lm 里有的缓存截不短，没有接受的草稿就留在了里面（[#1109](https://github.com/ml-explore/mlx-lm/pull/1109)）。写满的循环缓存同样退不回去，现在会直接拒绝（[#1427](https://github.com/ml-explore/mlx-lm/pull/1427)）。
# - **多收回了两个 token。** mlxcel 里，专门写草稿的模型每次都从自己的缓存里多退两个（[#994](https://github.com/lablup/mlxcel/issues/994)）。文本没有错，猜对的草稿却越来越少。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# A step now starts with one call and may give several tokens, and the text stays the same.
# [Lesson 14](14_what_to_forget.ipynb) changes what is kept: without a window, which tokens can we do without? Then an answer may really be gone, so we first evict and only then ask.
# %% [markdown] key="next" lang="zh" src="26b9aafc"
# ## 下一课
#
# 现在一步只要一次调用，还可能得到几个 token，而文本不变。
# [第 14 课](14_what_to_forget.ipynb)改的是存下来的东西：没有窗口的时候，哪些 token 也可以不要？那时，有的回答会真的找不回来，所以要先淘汰，再提问。
