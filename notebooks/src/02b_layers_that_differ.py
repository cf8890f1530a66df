# %% [meta]
# number = "02b"
# slug = "layers_that_differ"
# needs = ["02"]
# rooms = ["plan.spec", "plan.logs.vllm_pool"]
# minutes = 30
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
# In May 2026 a user restarted Gemma 4 31B with a newer vLLM and the same arguments ([vLLM issue 43308](https://github.com/vllm-project/vllm/issues/43308)).
# The printed KV cache size went from about 55k to about 525k tokens, 9.5 times as many, while the memory of the pool stayed at about 50 GB.
# **Does the new version really hold more?**
#
# [Lesson 02](02_how_many_bytes.ipynb) multiplied: every layer keeps K and V of every token, on one GPU.
# After this lesson you can price a layer that forgets, a layer whose state has a fixed size, and a GPU that holds only some of the heads; and you can say what such a printed number counts.
# %% [markdown] key="question" lang="zh" src="245e4c0c"
# ## 问题
#
# 2026 年 5 月，有用户升级 vLLM，用同样的参数重新启动 Gemma 4 31B（[vLLM issue 43308](https://github.com/vllm-project/vllm/issues/43308)）。
# 日志里的 KV 缓存从约 55k token 变成约 525k，是原来的 9.5 倍，而块池的显存始终是 50 GB 左右。
# **新版本真的放得下更多 token 吗？**
#
# [第 02 课](02_how_many_bytes.ipynb)只做乘法：每一层都保存每个 token 的 K 和 V，而且只有一块 GPU。
# 学完本课，你能算出三种例外要多少字节：会遗忘的层、状态大小固定的层、只保存一部分头的 GPU；也能说清楚日志里这种数字数的是什么。

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

# %% key="windows_code"
from minikv.plan import CacheSpec
from minikv.units import exact_bytes, format_bytes

print(t("windows_head"))
for name in ("Mistral-7B-v0.1", "Gemma-2-9B", "Gemma-3-27B", "gpt-oss-20b"):
    one = CacheSpec.from_config(name)
    later, long = one.slope(one.window), one.bytes_for(32_768)
    line = f"{name:<15} {one.window + 1:>6,} {one.slope(0):>9,} {later:>9,}"
    print(f"{line} {format_bytes(long):>13} {format_bytes(32_768 * one.slope(0)):>9}")
mistral = CacheSpec.from_config("Mistral-7B-v0.1")
print(f"Mistral-7B-v0.1: max_tokens(1 GiB) = {mistral.max_tokens(2**30)}")

# %% [markdown] key="held" lang="en"
# Where every layer slides, no number of tokens fills the cache: `inf`.
#
# That is what is *cached*. What is *held* can be more, and here is the next thing to predict.
# %% [markdown] key="held" lang="zh" src="b836672c"
# 如果每一层都滑动，多少 token 也填不满缓存：`inf`。
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

# %% key="measure_model"
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
print(small_spec.explain(t("lang")))

# %% key="measure_run"
cache = None
print(t("held_head"))
for length, step in ((40, 40), (41, 1), (42, 1)):
    with torch.no_grad():
        ids = torch.randint(100, (1, step), device=device)
        cache = model(ids, past_key_values=cache, use_cache=True).past_key_values
    kv = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    nbytes = sum(tensor.nbytes for tensor in kv)
    storage = [tensor.untyped_storage().nbytes() for tensor in kv]
    said = small_spec.bytes_for(length), small_spec.held_bytes_for(length, step=step)
    line = f"{length:>6} {nbytes:>7,} {said[0]:>9,} {sum(storage):>8,} {said[1]:>14,}"
    print(f"{line} {sum(storage[:2]):>8,}")

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
# %% [markdown] key="recurrent" lang="zh" src="6f45f863"
# ## 状态不增长的层
#
# Qwen3-Next 每四层只有一层是注意力。
# 其余是循环层：每条序列在那里只有大小固定的状态，与长度无关。

# %% key="recurrent_code"
hybrid = CacheSpec.from_config("Qwen3-Next-80B-A3B")
print(f"{hybrid.constant_state_bytes:,} B + n * {hybrid.slope():,} B")
for length in (1, 4096, 262_144):
    print(t("size_of", n=length, size=exact_bytes(hybrid.bytes_for(length))))
state, token = hybrid.constant_state_bytes, hybrid.slope()
print(t("state_in_tokens", state=state, token=token, n=state / token))

# %% [markdown] key="recurrent_read" lang="en"
# The first token is dear: the state costs as much as the last line's number of tokens.
# Short chats pay for the state, long documents hardly notice it.
# %% [markdown] key="recurrent_read" lang="zh" src="0ed1cc99"
# 第一个 token 很贵：固定状态相当于最后一行那么多 token 的开销。
# 短对话主要为状态买单，长文档几乎感觉不到它。

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

# %% key="tp_code"
from minikv.errors import ConfigError

print(f"{'tp':>2} {'kv_heads':>8} {'B / token / GPU':>16} {'x tp':>9}")
for tp in (1, 2, 3, 4, 8, 16):
    try:
        rank = CacheSpec.from_config("Llama-3.1-8B", tp=tp)
    except ConfigError as error:
        print(f"{tp:>2} {t(error)}")
    else:
        one = rank.bytes_for(1)
        print(f"{tp:>2} {rank.layers[0].kv_heads:>8} {one:>16,} {tp * one:>9,}")

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
print(f"{'Qwen3-8B':<19} {'tp 1':>14} {'tp 8':>14}")
for name in one:
    print(f"{name:<19} {one[name]:>14,} {eight[name]:>14,}")

# %% [markdown] key="variables_read" lang="en"
# `used`, `peak` and `current` are on paper here; [lesson 08](08_allocate_kv_cache.ipynb) measures them on a running model and compares.
# `total` is not measured either: it is what one public log printed in GiB, rounded to 0.01 GiB, and yours may differ.
# The tokens are the *pool's*: Qwen3-8B has 40,960 positions, so no single sequence can use them all.
# %% [markdown] key="variables_read" lang="zh" src="b0c543b3"
# 这里的 `used`、`peak`、`current` 是纸面上的估算；[第 08 课](08_allocate_kv_cache.ipynb)会在运行中的模型上实测并对比。
# `total` 也不是实测：它由一份公开日志里的 GiB 数换算而来，只精确到 0.01 GiB，你的机器上可能不同。
# 最后的 token 数属于整个**块池**：Qwen3-8B 只有 40,960 个位置，任何一条序列都用不完它。

# %% [markdown] key="coda" lang="en"
# ## The answer: the number on the screen is not a capacity
#
# Back to Gemma 4 31B: 55k tokens before, 525k after.
# The guess in the thread is that the older version counted sliding layers as full ones.
#
# Compute both prints from one pool of 50 GiB.
# Up to v0.20 the number was blocks // groups * block size ([issue 40691](https://github.com/vllm-project/vllm/issues/40691) explains why that misleads); from v0.21 it is concurrency * `max_model_len`.
# %% [markdown] key="coda" lang="zh" src="129874ea"
# ## 回答：屏幕上的数字不等于容量
#
# 回到 Gemma 4 31B：升级前约 55k token，升级后约 525k。
# 帖子里猜测：旧版本把滑动窗口层当成了全注意力层。
#
# 用同一个 50 GiB 的块池，把两种打印都算一遍。
# v0.20 及以前打印的是 块数 // 组数 * 块大小（[issue 40691](https://github.com/vllm-project/vllm/issues/40691) 说明了它为何会误导人），v0.21 起打印的是 并发数 * `max_model_len`。

# %% key="coda_code"
from minikv.plan.logs.vllm_pool import vllm_pool

gemma = vllm_pool(CacheSpec.from_config("Gemma-4-31B", layout="vllm"))
blocks = gemma.num_blocks(50 * 2**30)
before = gemma.tokens_printed(blocks, rule="old")
print(f"num_blocks {blocks:,}")
print(t("printed_before", tokens=before))
for longest in (8192, 32_768, 131_072, 262_144):
    after = gemma.tokens_printed(blocks, rule="new", max_model_len=longest, batched_tokens=2048)
    print(t("printed_after", longest=longest, tokens=after, times=after / before))

# %% [markdown] key="coda_read" lang="en"
# The same blocks, and a print that moves with `max_model_len`: nothing was gained in the pool.
# The opening post's table leaves out `max_model_len`; at 131,072 the two rules differ by nearly what it reports.
# With windows, "tokens" is not a unit of capacity.
# Ask for blocks, or for the bytes of *your* load: `spec.bytes_for(n, batch)`.
# %% [markdown] key="coda_read" lang="zh" src="922aeade"
# 块数相同，打印的数字却随 `max_model_len` 变化：块池并没有变大。
# 原帖的表格没有写 `max_model_len`；取 131,072 时，两种规则相差的倍数与它报告的相近。
# 有了窗口，“token 数”就不再是容量单位。
# 该问的是块数，或者**你的**负载要多少字节：`spec.bytes_for(n, batch)`。

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
# %% [markdown] key="stuck" lang="zh" src="b16280a8"
# ## 卡住了怎么办
#
# | 现象 | 判断依据 | 命令 |
# |---|---|---|
# | 进程占用比算出来的多 | 视图让整个提示词一直存活；其余是 CUDA 上下文 + 工作空间 + 已保留 - 已分配（第 [07](07_allocate_once.ipynb)、[16](16_where_did_6gb_go.ipynb) 课） | `held_bytes_for(n, step) - bytes_for(n)` |

# %% key="stuck_code"
gemma = CacheSpec.from_config("Gemma-2-9B")
print(format_bytes(gemma.held_bytes_for(8000, step=8000) - gemma.bytes_for(8000)))

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You can now price the tokens of every model that caches heads.
# [Lesson 03](03_the_2_86x_mistake.ipynb) takes a model that does not, DeepSeek-V3, and an estimate that missed by 2.86 times.
# It needs the formula, and the habit of asking what is cached before multiplying.
# %% [markdown] key="next" lang="zh" src="39b3a88b"
# ## 下一课
#
# 凡是按头缓存的模型，你现在都能给一个 token 定价。
# [第 03 课](03_the_2_86x_mistake.ipynb)讲一个不按头缓存的模型 DeepSeek-V3，以及一次差了 2.86 倍的估算。
# 它需要两样东西：公式，以及“先问缓存了什么，再做乘法”的习惯。
