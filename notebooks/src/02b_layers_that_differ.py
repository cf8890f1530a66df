# %% [meta]
# number = "02b"
# slug = "layers_that_differ"
# needs = ["02"]
# rooms = ["plan.spec", "plan.logs.vllm_pool"]
# minutes = 40
# [title]
# en = "When is the formula not enough?"
# zh = "什么时候只有公式还不够？"
# [t4]
# en = "The same numbers: everything is computed, and the one small model that is measured runs on the T4."
# zh = "结果相同：数字都由公式算出，唯一需要实测的小模型会在 T4 上运行。"
# [paper]
# en = "02b.3"
# zh = "02b.3"

# %% [markdown] key="question" lang="en"
# ## The question
#
# Your model mixes sliding windows with full attention, or has recurrent layers, or runs on eight GPUs.
# **How many bytes does a sequence take then, when the formula of [lesson 02](02_how_many_bytes.ipynb) no longer multiplies out?**
#
# That formula lets every layer keep K and V of every token, on one GPU.
# Here is one layer of each kind, from the configs of two models:
# %% [markdown] key="question" lang="zh" src="8a516005"
# ## 问题
#
# 你的模型混用滑动窗口和全注意力，或者有循环层，或者跑在八块 GPU 上。
# **这时[第 02 课](02_how_many_bytes.ipynb)的公式不能直接相乘，一条序列要占多少字节？**
#
# 那个公式假定每一层都保存每个 token 的 K 和 V，而且只有一块 GPU。
# 下面从两个模型的配置里，每种层各取一层：

# %% key="kinds" lang="en"
from minikv.course import Table
from minikv.course.diagrams import head_ranks, layer_kinds
from minikv.plan import CacheSpec

gemma, hybrid = CacheSpec.from_config("Gemma-2-9B"), CacheSpec.from_config("Qwen3-Next-80B-A3B")
layers = {"Full attention (Gemma 2 9B)": gemma.layers[1]}
layers["Sliding window (Gemma 2 9B)"] = gemma.layers[0]
layers["Recurrent (Qwen3-Next)"] = hybrid.layers[0]
show(layer_kinds(layers, lengths=[1024, 4096, 8192, 32_768], lang="en"))

# %% key="kinds" lang="zh"
from minikv.course import Table
from minikv.course.diagrams import head_ranks, layer_kinds
from minikv.plan import CacheSpec

gemma, hybrid = CacheSpec.from_config("Gemma-2-9B"), CacheSpec.from_config("Qwen3-Next-80B-A3B")
layers = {"全注意力（Gemma 2 9B）": gemma.layers[1]}
layers["滑动窗口（Gemma 2 9B）"] = gemma.layers[0]
layers["循环层（Qwen3-Next）"] = hybrid.layers[0]
show(layer_kinds(layers, lengths=[1024, 4096, 8192, 32_768], lang="zh"))

# %% [markdown] key="abilities" lang="en"
# A full layer grows with every token, a sliding one stops at its window, and a recurrent state costs the same from the first token on.
#
# After this lesson you can
#
# - **price** a layer that forgets, a layer whose state has a fixed size, and a GPU that holds some of the heads;
# - **tell apart** what is cached and what is held in memory;
# - **say** what a printed "KV cache size: 525,000 tokens" counts, and ask for a better unit.
# %% [markdown] key="abilities" lang="zh" src="5d1f3bda"
# 全注意力层随每个 token 增长，滑动窗口层到窗口为止，循环层的状态从第一个 token 起就不再变化。
#
# 学完本课，你能
#
# - **算出**三种例外的字节：会遗忘的层、状态大小固定的层、只保存一部分头的 GPU；
# - **区分**缓存了多少字节，和实际占用了多少内存；
# - **说清楚**日志里的“KV 缓存 525,000 token”数的是什么，以及该换成什么单位。

# %% [markdown] key="windows" lang="en"
# ## Sliding windows: layers that stop growing
#
# A sliding-window layer attends to the last `sliding_window` tokens only, the new one included.
# Between two steps it has to keep the other `window - 1`; that is what transformers does.
# In Mistral-7B-v0.1 every layer slides, in Gemma 2 and gpt-oss every second one, in Gemma 3 five of six.
#
# $$\text{bytes}(n) = \sum_{\text{layers}} \min(n,\ w - 1) \cdot 2 \cdot H_{kv} \cdot D \cdot s \qquad (w = \infty \text{ in a full layer})$$
#
# `slope(n)` is what the next token costs after $n$.
# The columns: the first token, a token past the window, a sequence of 32,768 tokens, and the same if every layer were full ($w = \infty$).
# %% [markdown] key="windows" lang="zh" src="1229db01"
# ## 滑动窗口：不再增长的层
#
# 滑动窗口（sliding window）层只看最后 `sliding_window` 个 token，当前这个也算在内。
# 所以两步之间只需保留其余 `window - 1` 个，transformers 正是这样做的。
# Mistral-7B-v0.1 的每一层都滑动，Gemma 2 和 gpt-oss 隔层滑动，Gemma 3 每六层有五层滑动。
#
# $$\text{字节}(n) = \sum_{\text{各层}} \min(n,\ w - 1) \cdot 2 \cdot H_{kv} \cdot D \cdot s \qquad (\text{全注意力层 } w = \infty)$$
#
# `slope(n)` 是已有 $n$ 个 token 时，下一个 token 的开销。
# 各列依次是：第一个 token、超过窗口之后的一个 token、一条 32,768 token 的序列，以及假如每层都是全注意力（$w = \infty$）时的同一条序列。

# %% key="windows_code" lang="en"
from minikv.units import GIB, exact_bytes, format_bytes

names = ["Mistral-7B-v0.1", "Gemma-2-9B", "Gemma-3-27B", "gpt-oss-20b"]
specs = {name: CacheSpec.from_config(name) for name in names}
rows = []
for name, one in specs.items():
    long, full = one.bytes_for(32_768), 32_768 * one.slope(0)
    rows.append([name, one.window + 1, one.slope(0), one.slope(one.window), format_bytes(long), format_bytes(full)])
head = ["model", "window", "slope(0)", "slope(w)", "32,768 tokens", "w = inf"]
most = f"Mistral-7B-v0.1: max_tokens(1 GiB) = {specs['Mistral-7B-v0.1'].max_tokens(GIB)}"
Table(head, rows, right=head[4:], lines=[most])

# %% key="windows_code" lang="zh"
from minikv.units import GIB, exact_bytes, format_bytes

names = ["Mistral-7B-v0.1", "Gemma-2-9B", "Gemma-3-27B", "gpt-oss-20b"]
specs = {name: CacheSpec.from_config(name) for name in names}
rows = []
for name, one in specs.items():
    long, full = one.bytes_for(32_768), 32_768 * one.slope(0)
    rows.append([name, one.window + 1, one.slope(0), one.slope(one.window), format_bytes(long), format_bytes(full)])
head = ["模型", "窗口", "slope(0)", "slope(w)", "32,768 个 token", "w = inf"]
most = f"Mistral-7B-v0.1: max_tokens(1 GiB) = {specs['Mistral-7B-v0.1'].max_tokens(GIB)}"
Table(head, rows, right=head[4:], lines=[most])

# %% key="windows_chart" lang="en"
from minikv.course.charts import lines

lengths = [2**k for k in range(8, 18)]
series = {name: {n: one.bytes_for(n) / GIB for n in lengths} for name, one in specs.items()}
show(lines(series, x="tokens in the sequence", y="GiB", log="xy"))

# %% key="windows_chart" lang="zh"
from minikv.course.charts import lines

lengths = [2**k for k in range(8, 18)]
series = {name: {n: one.bytes_for(n) / GIB for n in lengths} for name, one in specs.items()}
show(lines(series, x="序列的 token 数", y="GiB", log="xy"))

# %% [markdown] key="held" lang="en"
# Where every layer slides (Mistral), the line turns flat at the window: no number of tokens fills the cache, so `max_tokens` is `inf`.
# Where some layers are full, the line turns at the window and goes on more slowly.
#
# That is what is *cached*. What is *held* can be more, and here is the next thing to predict.
# %% [markdown] key="held" lang="zh" src="192f3d3c"
# 如果每一层都滑动（Mistral），曲线到窗口处就变平：多少 token 也填不满缓存，所以 `max_tokens` 是 `inf`。
# 如果还有全注意力层，曲线在窗口处变缓，然后继续增长。
#
# 以上是**缓存**的字节。实际**占用**的可能更多，下面再估计一次。

# %% key="predict_after_prompt"
predict("after_the_prompt", ...)

# %% [markdown] key="measure" lang="en"
# Measure it: a small random model with Gemma 2's layers, four of them, window 16.
# It reads a prompt of 40 tokens and then decodes two.
# `nbytes` is what the cached tensors show; the storage behind them is what the memory really holds.
# %% [markdown] key="measure" lang="zh" src="eb0428dc"
# 测一测：用 Gemma 2 的结构搭一个随机小模型，四层，窗口 16。
# 先读 40 个 token 的提示词，再解码两步。
# `nbytes` 是缓存张量看上去的大小，它们背后的存储才是真正占用的内存。

# %% key="measure_model" lang="en"
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
small = Gemma2Config(
    num_hidden_layers=4, hidden_size=64, intermediate_size=128, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, sliding_window=16, vocab_size=100, dtype="float32",
)
model = Gemma2ForCausalLM(small).to(device).eval()
small_spec = CacheSpec.from_config(small)
small_spec.shown("en")

# %% key="measure_model" lang="zh"
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
small = Gemma2Config(
    num_hidden_layers=4, hidden_size=64, intermediate_size=128, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, sliding_window=16, vocab_size=100, dtype="float32",
)
model = Gemma2ForCausalLM(small).to(device).eval()
small_spec = CacheSpec.from_config(small)
small_spec.shown("zh")

# %% key="measure_run" lang="en"
cache, rows = None, []
for length, step in ((40, 40), (41, 1), (42, 1)):
    with torch.no_grad():
        ids = torch.randint(100, (1, step), device=device)
        cache = model(ids, past_key_values=cache, use_cache=True).past_key_values
    kv = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]  # each [1, 2, tokens, 32]
    storage = [tensor.untyped_storage().nbytes() for tensor in kv]
    cached, held = small_spec.bytes_for(length), small_spec.held_bytes_for(length, step=step)
    rows.append([length, sum(tensor.nbytes for tensor in kv), cached, sum(storage), held, sum(storage[:2])])
Table(["tokens", "nbytes", "bytes_for", "storage", "held_bytes_for", "storage of layer 0"], rows)

# %% key="measure_run" lang="zh"
cache, rows = None, []
for length, step in ((40, 40), (41, 1), (42, 1)):
    with torch.no_grad():
        ids = torch.randint(100, (1, step), device=device)
        cache = model(ids, past_key_values=cache, use_cache=True).past_key_values
    kv = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]  # 每个 [1, 2, token 数, 32]
    storage = [tensor.untyped_storage().nbytes() for tensor in kv]
    cached, held = small_spec.bytes_for(length), small_spec.held_bytes_for(length, step=step)
    rows.append([length, sum(tensor.nbytes for tensor in kv), cached, sum(storage), held, sum(storage[:2])])
Table(["token 数", "nbytes", "bytes_for", "存储", "held_bytes_for", "第 0 层的存储"], rows)

# %% [markdown] key="measure_read" lang="en"
# Spec and memory agree to the byte, in what is cached and in what is held.
# Layer 0 slides: its last column, first row, is the answer to the prediction.
#
# After the prompt, a sliding layer has a *view* of the last 15 tokens, and a view keeps the whole storage alive: 40 tokens.
# The next step joins 15 old tokens and the new one into a new tensor of 16, keeps a view of 15 of them, and the old storage is freed.
# With a long prompt this is the first answer to "why more than calculated?": for one forward, a window saves nothing.
# %% [markdown] key="measure_read" lang="zh" src="fde343e2"
# 缓存的字节和占用的字节，都与实测一字节不差。
# 第 0 层是滑动窗口层：最后一列的第一行就是上面那道题的答案。
#
# 读完提示词之后，滑动窗口层拿着最后 15 个 token 的**视图**，而视图会让整块存储一直存活：40 个 token。
# 下一步把 15 个旧 token 和新 token 拼成 16 个 token 的新张量，只保留其中 15 个的视图，旧存储随之释放。
# 提示词很长时，这就是“为什么比算出来的多”的第一个答案：在这一次前向计算里，窗口没有省下任何内存。

# %% [markdown] key="recurrent" lang="en"
# ## Layers whose state does not grow
#
# Qwen3-Next has attention in one layer of four.
# The others are recurrent: each sequence has a state of fixed size there, whatever its length.
# So a sequence costs a constant and a product:
# %% [markdown] key="recurrent" lang="zh" src="91d50a81"
# ## 状态不增长的层
#
# Qwen3-Next 每四层只有一层是注意力。
# 其余是循环层：每条序列在那里只有大小固定的状态，与长度无关。
# 所以一条序列的开销是一个常数加一个乘积：

# %% key="recurrent_code" lang="en"
state, token = hybrid.constant_state_bytes, hybrid.slope()
rows = [[n, exact_bytes(hybrid.bytes_for(n))] for n in (1, 4096, 262_144)]
title = f"{state:,} B + n * {token:,} B"
as_tokens = f"{state:,} / {token:,} = {state / token:,.0f} tokens"
Table(["n", "bytes"], rows, right=["bytes"], title=title, lines=[as_tokens])

# %% key="recurrent_code" lang="zh"
state, token = hybrid.constant_state_bytes, hybrid.slope()
rows = [[n, exact_bytes(hybrid.bytes_for(n))] for n in (1, 4096, 262_144)]
title = f"{state:,} B + n * {token:,} B"
as_tokens = f"{state:,} / {token:,} = {state / token:,.0f} 个 token"
Table(["n", "字节"], rows, right=["字节"], title=title, lines=[as_tokens])

# %% key="recurrent_chart" lang="en"
lengths = [2**k for k in range(0, 19, 2)]
series = {"states and tokens": {n: hybrid.bytes_for(n) / 2**20 for n in lengths}}
series["tokens alone"] = {n: n * token / 2**20 for n in lengths}
series["states alone"] = {n: state / 2**20 for n in lengths}
show(lines(series, x="tokens in the sequence", y="MiB", log="xy", marks={"as much as the states": state / token}))

# %% key="recurrent_chart" lang="zh"
lengths = [2**k for k in range(0, 19, 2)]
series = {"状态和 token": {n: hybrid.bytes_for(n) / 2**20 for n in lengths}}
series["只算 token"] = {n: n * token / 2**20 for n in lengths}
series["只算状态"] = {n: state / 2**20 for n in lengths}
show(lines(series, x="序列的 token 数", y="MiB", log="xy", marks={"与状态一样多": state / token}))

# %% [markdown] key="recurrent_read" lang="en"
# The first token is expensive: the fixed states alone cost as much as 3,168 ordinary tokens.
# A short chat pays mostly for the states; in a long document they hardly count.
# %% [markdown] key="recurrent_read" lang="zh" src="8e3f6361"
# 第一个 token 很贵：光是固定的状态，就相当于 3,168 个普通 token。
# 短对话的开销主要是状态；长文档里，状态几乎可以忽略。

# %% [markdown] key="tp" lang="en"
# ## Tensor parallelism: split, copied, refused
#
# With tensor parallelism (tp), each GPU takes some of the heads and caches only those.
# One such GPU, with its process, is a rank.
# %% [markdown] key="tp" lang="zh" src="c1518de7"
# ## 张量并行：切分、复制、拒绝
#
# 张量并行（TP）时，每块 GPU 负责一部分头，也只缓存这一部分。
# 每块 GPU 连同它的进程，称为一个 rank。

# %% key="predict_tp"
predict("many_ranks", ...)

# %% key="tp_code" lang="en"
from minikv.errors import ConfigError

show(head_ranks("Llama-3.1-8B", sizes=[1, 2, 4, 8, 16], lang="en"))
try:
    CacheSpec.from_config("Llama-3.1-8B", tp=3)
except ConfigError as error:
    print(t(error))

# %% key="tp_code" lang="zh"
from minikv.errors import ConfigError

show(head_ranks("Llama-3.1-8B", sizes=[1, 2, 4, 8, 16], lang="zh"))
try:
    CacheSpec.from_config("Llama-3.1-8B", tp=3)
except ConfigError as error:
    print(t(error))

# %% [markdown] key="tp_read" lang="en"
# Up to tp = 8 the heads are split, and the whole cluster holds each byte once.
# At tp = 16 there are more GPUs than KV heads, so two GPUs keep a copy of the same head: a GPU saves nothing more, and the cluster holds everything twice.
# tp = 3 is refused, with the numbers and the way out; this is how every error of the package reads.
# %% [markdown] key="tp_read" lang="zh" src="bef02820"
# tp 不超过 8 时，KV 头被切分，整个集群里每个字节只存一份。
# tp = 16 时 GPU 比 KV 头多，每两块 GPU 各存同一个头的副本：单块 GPU 不再节省，整个集群存了两份。
# tp = 3 会被拒绝，报错里有数字，也有解决办法；程序包里所有的报错都是这样写的。

# %% [markdown] key="variables" lang="en"
# ## Every variable of an allocator
#
# Small engines size their pool in three lines:
#
# ```python
# num_kv_heads = num_key_value_heads // world_size
# block_bytes = 2 * num_hidden_layers * block_size * num_kv_heads * head_dim * itemsize
# num_kvcache_blocks = int(total * gpu_memory_utilization - used - peak + current) // block_bytes
# ```
#
# The notes that this course grew from explain each variable with an example, and the examples go wrong: one product loses the factor 2 of the dtype, so the tensor would be twice as large as the budget.
# Here is the table again with every value computed, for Qwen3-8B on A100 80 GB cards.
#
# | Variable | Unit | Where it comes from | Often said, and wrong |
# |---|---|---|---|
# | `total`, `free` | bytes | `torch.cuda.mem_get_info()` | "80 GiB": torch sees less than the label |
# | `used` | bytes | `total - free`: weights, CUDA context, other processes | "the model's weights" |
# | `current` | bytes | `allocated_bytes.all.current`: tensors alive now | "may be below the weights": they stay |
# | `peak` | bytes | `allocated_bytes.all.peak` since the last reset | "covers fragmentation": `peak - current` is the activations of the warm-up |
# | `gpu_memory_utilization` | share of `total` | argument | "the share for the KV cache": it is for everything |
# | `num_kv_heads` | heads a GPU | `num_key_value_heads` over the tensor-parallel size | "heads in the cluster": a property of the model, then split |
# | `head_dim` | elements | the config, else the quotient | "128 because 4096 / 32": right by luck |
# | `itemsize` | bytes | the cache's dtype | forgotten in the product |
# | `block_bytes` | bytes a block | all layers, K and V | "per layer" |
# | `num_kvcache_blocks` | blocks | the last line above | |
# %% [markdown] key="variables" lang="zh" src="27235011"
# ## 分配器里的每个变量
#
# 小型推理引擎用三行代码确定块池大小：
#
# ```python
# num_kv_heads = num_key_value_heads // world_size
# block_bytes = 2 * num_hidden_layers * block_size * num_kv_heads * head_dim * itemsize
# num_kvcache_blocks = int(total * gpu_memory_utilization - used - peak + current) // block_bytes
# ```
#
# 本课程源自几份笔记，其中一份逐个举例解释这些变量，可惜例子算错了：有个乘积漏掉了数据类型的因子 2，照它分配，张量会是预算的两倍。
# 这里重做这张表，每个值都由程序算出：Qwen3-8B，A100 80 GB。
#
# | 变量 | 单位 | 来源 | 常见的错误说法 |
# |---|---|---|---|
# | `total`、`free` | 字节 | `torch.cuda.mem_get_info()` | “80 GiB”：torch 看到的比标称值小 |
# | `used` | 字节 | `total - free`：权重、CUDA 上下文、其他进程 | “就是模型权重” |
# | `current` | 字节 | `allocated_bytes.all.current`：此刻存活的张量 | “可以小于权重”：不会，权重一直都在 |
# | `peak` | 字节 | 上次重置以来的 `allocated_bytes.all.peak` | “为碎片留余量”：`peak - current` 是预热时的激活 |
# | `gpu_memory_utilization` | 占 `total` 的比例 | 参数 | “分给 KV 缓存的比例”：它管的是全部用途 |
# | `num_kv_heads` | 每块 GPU 的头数 | `num_key_value_heads` 除以张量并行大小 | “集群里的总头数”：它是模型的属性，之后才切分 |
# | `head_dim` | 元素 | 配置，没有才用商 | “4096 / 32 所以是 128”：碰巧对了 |
# | `itemsize` | 字节 | 缓存的数据类型 | 乘积里忘了它 |
# | `block_bytes` | 字节 / 块 | 所有层，K 和 V | “每层的字节” |
# | `num_kvcache_blocks` | 块 | 上面最后一行 | |

# %% key="variables_code"
from minikv.plan import plan_memory


def variables(budget):
    layer, terms = budget.spec.layers[0], budget.measured_form()
    rows = {"total": budget.total_bytes, "free": budget.total_bytes - terms["used"]}
    rows |= {name: terms[name] for name in ("used", "current", "peak")}
    rows |= {"num_hidden_layers": len(budget.spec.layers), "num_kv_heads": layer.kv_heads}
    rows |= {"head_dim": layer.k_dim, "itemsize": layer.itemsize, "block_size": budget.block_size}
    rows |= {"block_bytes": budget.spec.block_bytes(budget.block_size), "available": terms["available"]}
    return rows | {"num_kvcache_blocks": budget.num_blocks, "tokens": budget.max_tokens}

# %% key="variables_table"
one, eight = (variables(plan_memory("Qwen3-8B", gpu="A100 SXM 80GB", tp=tp)) for tp in (1, 8))
Table(["Qwen3-8B", "tp 1", "tp 8"], [[name, one[name], eight[name]] for name in one])

# %% [markdown] key="variables_read" lang="en"
# `used`, `peak` and `current` are on paper here; [lesson 08](08_allocate_kv_cache.ipynb) measures them on a running model and compares.
# `total` is not measured either: it is what one public log printed in GiB, rounded to 0.01 GiB, and yours may differ.
# The tokens are the *pool's*: Qwen3-8B has 40,960 positions, so no single sequence can use them all.
# %% [markdown] key="variables_read" lang="zh" src="b0c543b3"
# 这里的 `used`、`peak`、`current` 是纸面上的估算；[第 08 课](08_allocate_kv_cache.ipynb)会在运行中的模型上实测并对比。
# `total` 也不是实测：它由一份公开日志里的 GiB 数换算而来，只精确到 0.01 GiB，你的机器上可能不同。
# 最后的 token 数属于整个**块池**：Qwen3-8B 只有 40,960 个位置，任何一条序列都用不完它。

# %% [markdown] key="coda" lang="en"
# ## The number on the screen is not a capacity
#
# An engine prints how many tokens its KV cache holds.
# With windows there is no such number, so each version of vLLM has its own rule.
# Up to v0.20 it was blocks // groups * block size; from v0.21 it is concurrency * `max_model_len`.
#
# Compute both for Gemma 4 31B, from one pool of 50 GiB:
# %% [markdown] key="coda" lang="zh" src="fe32560a"
# ## 屏幕上的数字不等于容量
#
# 推理引擎启动时会打印 KV 缓存能放多少 token。
# 有了窗口，这个数其实不存在，所以 vLLM 的不同版本各有一套算法：
# v0.20 及以前打印 块数 // 组数 * 块大小，v0.21 起打印 并发数 * `max_model_len`。
#
# 用 Gemma 4 31B 和同一个 50 GiB 的块池，把两种都算一遍：

# %% key="coda_code" lang="en"
from minikv.plan.logs.vllm_pool import vllm_pool

pool = vllm_pool(CacheSpec.from_config("Gemma-4-31B", layout="vllm"))
blocks = pool.num_blocks(50 * GIB)
before = pool.tokens_printed(blocks, rule="old")
after, rows = {}, [["<= v0.20", None, before, ""]]
for longest in (8192, 32_768, 131_072, 262_144):
    after[longest] = pool.tokens_printed(blocks, rule="new", max_model_len=longest, batched_tokens=2048)
    rows.append([">= v0.21", longest, after[longest], f"{after[longest] / before:.1f} x"])
Table(["vLLM", "max_model_len", "tokens printed", "ratio"], rows, title=f"{blocks:,} blocks", right=["ratio"])

# %% key="coda_code" lang="zh"
from minikv.plan.logs.vllm_pool import vllm_pool

pool = vllm_pool(CacheSpec.from_config("Gemma-4-31B", layout="vllm"))
blocks = pool.num_blocks(50 * GIB)
before = pool.tokens_printed(blocks, rule="old")
after, rows = {}, [["<= v0.20", None, before, ""]]
for longest in (8192, 32_768, 131_072, 262_144):
    after[longest] = pool.tokens_printed(blocks, rule="new", max_model_len=longest, batched_tokens=2048)
    rows.append([">= v0.21", longest, after[longest], f"{after[longest] / before:.1f} x"])
Table(["vLLM", "max_model_len", "打印的 token 数", "倍数"], rows, title=f"{blocks:,} 个块", right=["倍数"])

# %% key="coda_chart" lang="en"
printed = {">= v0.21": after}
show(lines(printed, x="max_model_len", y="tokens printed", log="x", levels={"<= v0.20": before}))

# %% key="coda_chart" lang="zh"
printed = {">= v0.21": after}
show(lines(printed, x="max_model_len", y="打印的 token 数", log="x", levels={"<= v0.20": before}))

# %% [markdown] key="coda_read" lang="en"
# The same 20,480 blocks, and a print that moves with `max_model_len`: nothing was gained in the pool.
# With windows, "tokens" is not a unit of capacity.
# Ask for blocks, or for the bytes of *your* load: `spec.bytes_for(n, batch)`.
#
# ## Recap
#
# A sliding layer keeps at most window - 1 tokens: at 32,768 tokens Gemma 2 9B takes 5.91 GiB, not 10.50.
# Cached is not held: right after a prompt of 40 tokens, a layer with window 16 still holds the storage of all 40.
# A recurrent layer costs a constant: in Qwen3-Next as much as 3,168 tokens.
# Tensor parallelism splits KV heads up to one a GPU; beyond that they are copied, and tp = 16 stores Llama-3.1-8B's 8 heads twice.
# %% [markdown] key="coda_read" lang="zh" src="2c4497f8"
# 同样是 20,480 个块，打印的数字却随 `max_model_len` 变化：块池并没有变大。
# 有了窗口，“token 数”就不再是容量单位。
# 该问的是块数，或者**你的**负载要多少字节：`spec.bytes_for(n, batch)`。
#
# ## 本课小结
#
# 滑动窗口层最多保留 窗口 - 1 个 token：32,768 个 token 时，Gemma 2 9B 占 5.91 GiB，而不是 10.50。
# 缓存的字节不等于占用的字节：刚读完 40 个 token 的提示词时，窗口为 16 的层仍然占着全部 40 个 token 的存储。
# 循环层的开销是常数：在 Qwen3-Next 里相当于 3,168 个 token。
# 张量并行最多把 KV 头分到每块 GPU 一个，再多就要复制：tp = 16 时，Llama-3.1-8B 的 8 个头各存两份。

# %% [markdown] key="check_yourself" lang="en"
# ## Check yourself
#
# Answer aloud or in three sentences.
# `explain(key, reveal=True)` shows a model answer and the points to compare with.
# %% [markdown] key="check_yourself" lang="zh" src="af9bde1b"
# ## 自我检查
#
# 把答案说出来，或者写三句话。
# `explain(key, reveal=True)` 会给出参考回答和对照要点。

# %% key="explain_more"
explain("more_than_calculated")

# %% [markdown] key="exercise" lang="en"
# Three exercises are in the exercise notebook: a batch with windows, the exact inverse, and KV heads on a rank.
# %% [markdown] key="exercise" lang="zh" src="9d390e75"
# 练习 notebook 里有三道题：带窗口的一批序列、精确的反函数，以及每个 rank 的 KV 头数。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | Symptom | What decides | Command |
# |---|---|---|
# | The process holds more than calculated | A view that keeps the prompt alive; the rest is CUDA context + workspace + reserved - allocated (lessons [07](07_allocate_once.ipynb) and [16](16_where_did_6gb_go.ipynb)) | `held_bytes_for(n, step) - bytes_for(n)` |
#
# For Gemma 2 9B right after a prompt of 8,000 tokens:
# %% [markdown] key="stuck" lang="zh" src="54ea76e8"
# ## 卡住了怎么办
#
# | 现象 | 判断依据 | 命令 |
# |---|---|---|
# | 进程占用比算出来的多 | 视图让整个提示词一直存活；其余是 CUDA 上下文 + 工作空间 + 已保留 - 已分配（第 [07](07_allocate_once.ipynb)、[16](16_where_did_6gb_go.ipynb) 课） | `held_bytes_for(n, step) - bytes_for(n)` |
#
# Gemma 2 9B 刚读完 8,000 个 token 的提示词时：

# %% key="stuck_code"
format_bytes(gemma.held_bytes_for(8000, step=8000) - gemma.bytes_for(8000))

# %% [markdown] key="next" lang="en"
# ## In the wild
#
# In May 2026 a user restarted Gemma 4 31B with a newer vLLM: the printed KV cache size went from about 55k to about 525k tokens, while the pool stayed at about 50 GB ([vLLM issue 43308](https://github.com/vllm-project/vllm/issues/43308)).
# "The number on the screen is not a capacity" computes both prints; the post leaves out `max_model_len`, and at 131,072 the two rules differ by nearly what it reports.
#
# [Issue 40691](https://github.com/vllm-project/vllm/issues/40691) explains why the older print misleads.
# It divides by groups of layers, as the same section does.
#
# ## What comes next
#
# You can now price the tokens of every model that caches heads.
# [Lesson 03](03_the_2_86x_mistake.ipynb) takes a model that does not, DeepSeek-V3, and an estimate that missed by 2.86 times.
# It needs the formula, and the habit of asking what is cached before multiplying.
# %% [markdown] key="next" lang="zh" src="c613d52e"
# ## 实战现场
#
# 2026 年 5 月，有用户升级 vLLM 后重启 Gemma 4 31B：日志里的 KV 缓存从约 55k token 变成约 525k，而块池始终是 50 GB 左右（[vLLM issue 43308](https://github.com/vllm-project/vllm/issues/43308)）。
# “屏幕上的数字不等于容量”一节把两种打印都算了出来；原帖没有写 `max_model_len`，取 131,072 时，两种规则相差的倍数与它报告的相近。
#
# [issue 40691](https://github.com/vllm-project/vllm/issues/40691) 说明了旧的打印为什么会误导人。
# 它要除以层的组数，上面同一节就是这样算的。
#
# ## 下一课
#
# 凡是按头缓存的模型，你现在都能给一个 token 定价。
# [第 03 课](03_the_2_86x_mistake.ipynb)讲一个不按头缓存的模型 DeepSeek-V3，以及一次差了 2.86 倍的估算。
# 它需要两样东西：公式，以及“先问缓存了什么，再做乘法”的习惯。
