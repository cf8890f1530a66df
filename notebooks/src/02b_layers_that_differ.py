# %% [meta]
# number = "02b"
# slug = "layers_that_differ"
# needs = ["02"]
# rooms = ["plan.spec", "plan.logs.vllm_pool"]
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
# Your model mixes sliding windows with full attention. Or it has recurrent layers, which keep one state of a fixed size. Or it runs on eight GPUs.
# **How many bytes does a sequence take when the formula of [lesson 02](02_how_many_bytes.ipynb) is not enough?**
#
# That formula lets every layer keep K and V of every token, on one GPU.
# Here is one layer of each kind, from the configs of two models:
# %% [markdown] key="question" lang="zh" src="9ea25fef"
# ## 问题
#
# 你的模型可能混用滑动窗口和全注意力，可能有循环层（只保存一份大小固定的状态），也可能跑在八块 GPU 上。
# **[第 02 课](02_how_many_bytes.ipynb)的公式不够用时，一条序列占多少字节？**
#
# 那个公式假定每层都保存每个 token 的 K 和 V，而且只有一块 GPU。
# 下面从两个模型的配置里取出三种层，每种一层：

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
# A layer with full attention grows with every token. A sliding one stops at its window, and a recurrent state costs the same from the first token on.
#
# After this lesson you can
#
# - **price** a layer that forgets, a layer whose state has a fixed size, and a GPU that holds only some of the heads;
# - **tell apart** what is cached and what is held in memory;
# - **say** what a printed "KV cache size: 525,000 tokens" counts, and ask for a better unit.
#
# You need the formula of [lesson 02](02_how_many_bytes.ipynb).
# %% [markdown] key="abilities" lang="zh" src="728abb78"
# 全注意力层每来一个 token 就增长；滑动窗口层长到窗口为止；循环层的状态从第一个 token 起，大小就固定不变。
#
# 学完本课，你能
#
# - **算出**三种例外的字节数：会遗忘的层、状态大小固定的层、只保存一部分头的 GPU；
# - **区分**缓存了多少字节，与实际占用了多少内存；
# - **说清楚**日志里的“KV 缓存 525,000 token”数的是什么，该换成什么单位。
#
# 你需要[第 02 课](02_how_many_bytes.ipynb)的公式。

# %% [markdown] key="windows" lang="en"
# ## Sliding windows: layers that stop growing
#
# A layer with a sliding window attends only to the last `sliding_window` tokens, the newest one included.
# Between two steps it has to keep the other `window - 1`, and that is what transformers does.
# In Mistral-7B-v0.1 every layer slides, in Gemma 2 and gpt-oss every second one, in Gemma 3 five of six.
#
# So each layer counts its own tokens, and the sum over the layers replaces the factor $L$:
#
# $$\text{bytes}(n) = \sum_{\text{layers}} \min(n,\ w - 1) \cdot 2 \cdot H_{kv} \cdot D \cdot s \qquad (w = \infty \text{ in a full layer})$$
#
# | symbol | what it is | value here (Gemma 2 9B) |
# |---|---|---|
# | $n$ | tokens of the sequence | 32,768 |
# | $w$ | window of the layer | 4,096 in 21 layers, $\infty$ in 21 |
# | $H_{kv}$, $D$, $s$ | KV heads, elements of a head, bytes of an element | 8, 256, 2 |
#
# One token costs $2 \cdot 8 \cdot 256 \cdot 2 = 8{,}192$ B in a layer, so the sequence takes
#
# $$(21 \cdot 4{,}095 + 21 \cdot 32{,}768) \cdot 8{,}192 = 6{,}341{,}615{,}616 \text{ B} = 5.91 \text{ GiB}$$
#
# The table shows the cost of the first token and of a token past the window. Then it shows a sequence of 32,768 tokens, and the same sequence if every layer were full ($w = \infty$).
# The first two come from `slope(n)`, which says what the next token costs after $n$.
# %% [markdown] key="windows" lang="zh" src="2e2d745f"
# ## 滑动窗口：不再增长的层
#
# 滑动窗口（sliding window）层只看最后 `sliding_window` 个 token，当前这个也算在内。
# 所以两步之间只需保留其余 `window - 1` 个，transformers 正是这样做的。
# Mistral-7B-v0.1 的每一层都是滑动窗口，Gemma 2 和 gpt-oss 隔一层有一层，Gemma 3 每六层有五层。
#
# 既然每一层保留的 token 数不同，就不能再乘以层数 $L$，而要逐层相加：
#
# $$\text{字节}(n) = \sum_{\text{各层}} \min(n,\ w - 1) \cdot 2 \cdot H_{kv} \cdot D \cdot s \qquad (\text{全注意力层 } w = \infty)$$
#
# | 符号 | 含义 | 本例取值（Gemma 2 9B） |
# |---|---|---|
# | $n$ | 序列的 token 数 | 32,768 |
# | $w$ | 该层的窗口 | 21 层为 4,096，21 层为 $\infty$ |
# | $H_{kv}$、$D$、$s$ | KV 头数、一个头的元素数、一个元素的字节数 | 8、256、2 |
#
# 一个 token 在一层占 $2 \cdot 8 \cdot 256 \cdot 2 = 8{,}192$ B，所以整条序列占
#
# $$(21 \cdot 4{,}095 + 21 \cdot 32{,}768) \cdot 8{,}192 = 6{,}341{,}615{,}616 \text{ B} = 5.91 \text{ GiB}$$
#
# 下表先列出第一个 token 和超过窗口之后的一个 token 各占多少，再列出一条 32,768 个 token 的序列，以及假如每层都是全注意力（$w = \infty$）时的同一条序列。
# 前两个数来自 `slope(n)`，也就是已有 $n$ 个 token 时下一个 token 的开销。

# %% key="windows_code" lang="en"
from minikv.units import GIB, exact_bytes, format_bytes

names = ["Mistral-7B-v0.1", "Gemma-2-9B", "Gemma-3-27B", "gpt-oss-20b"]
specs = {name: CacheSpec.from_config(name) for name in names}
rows = []
for name, one in specs.items():
    long, full = one.bytes_for(32_768), 32_768 * one.slope(0)
    rows.append([name, one.window + 1, one.slope(0), one.slope(one.window), format_bytes(long), format_bytes(full)])
head = ["model", "window", "first token, B", "past the window, B", "32,768 tokens", "if all were full"]
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
head = ["模型", "窗口", "第一个 token，B", "窗口之后，B", "32,768 个 token", "假如全是全注意力"]
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
# If every layer slides, as in Mistral, the line turns flat at the window. No number of tokens fills such a cache, so `max_tokens` is `inf`.
# If some layers are full, the line bends at the window and goes on more slowly.
#
# That is what is *cached*. What is *held* in memory can be more, so here is the next thing to predict.
# %% [markdown] key="held" lang="zh" src="4baba0b0"
# 如果每一层都是滑动窗口（例如 Mistral），曲线到窗口处就变平。再多的 token 也填不满这样的缓存，所以 `max_tokens` 是 `inf`。
# 如果还有全注意力层，曲线在窗口处变缓，然后继续增长。
#
# 以上说的是**缓存**了多少字节。内存里实际**占用**的可能更多，请再猜一次：

# %% key="predict_after_prompt"
predict("after_the_prompt", ...)

# %% [markdown] key="measure" lang="en"
# Let's measure it on a small random model with Gemma 2's layers: four of them, with window 16.
# It reads a prompt of 40 tokens and then decodes two.
# `nbytes` is the size that the cached tensors show. The storage behind them is what the memory really holds.
# The package computes both: `bytes_for` the first, and `held_bytes_for` the second.
# %% [markdown] key="measure" lang="zh" src="010c9235"
# 来测一测。我们用 Gemma 2 的结构搭一个随机小模型，四层，窗口为 16。
# 它先读 40 个 token 的提示词，再解码两步。
# `nbytes` 是缓存张量看上去的大小，它们背后的存储才是内存里真正占用的部分。
# 这两个数程序包都能算，前者用 `bytes_for`，后者用 `held_bytes_for`。

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
# Spec and memory agree to the byte, both in what is cached and in what is held.
# Layer 0 slides. The first row of the last column answers the prediction: 40 × 512 B = 20,480 B.
#
# The reason is how tensors share memory. After the prompt, a sliding layer keeps a *view* of the last 15 tokens, which is a tensor that uses the storage of another. A view keeps its whole storage alive, all 40 tokens of it.
# The next step joins 15 old tokens and the new one into a new tensor of 16 and keeps a view of 15 of them. Then the old storage is freed, and 16 × 512 B = 8,192 B remain.
# If your process holds more than you calculated, check this first: for one forward over a long prompt, a window saves nothing.
# %% [markdown] key="measure_read" lang="zh" src="5dbf7dad"
# 无论是缓存的字节还是占用的字节，都与实测一个字节不差。
# 第 0 层是滑动窗口层，最后一列第一行就是上面那道题的答案，即 40 × 512 B = 20,480 B。
#
# 原因在于张量怎样共用内存。读完提示词之后，滑动窗口层保留的是最后 15 个 token 的**视图**，也就是借用另一个张量存储的张量，而视图会让整块存储一直存活，也就是全部 40 个 token。
# 下一步，它把 15 个旧 token 和新 token 拼成 16 个 token 的新张量，只保留其中 15 个的视图，旧存储随之释放，剩下 16 × 512 B = 8,192 B。
# 所以，如果进程占用比算出来的多，首先查这一点：用一次前向计算读完很长的提示词时，窗口一点内存也没有省下。

# %% [markdown] key="recurrent" lang="en"
# ## Layers whose state does not grow
#
# Qwen3-Next has attention in one layer of four, 12 of its 48.
# The others are recurrent. There each sequence has a state of fixed size, whatever its length.
# In one such layer it is a matrix of 128 × 128 in fp32 for each of 32 heads, 32 × 128 × 128 × 4 = 2,097,152 B.
# The layer also keeps the last 4 inputs of a short convolution, 4 × 8,192 elements in bf16, which is 65,536 B. Together that makes 2,162,688 B.
# An attention layer keeps 2 KV heads of 256 elements, so a token takes 2 × 2 × 256 × 2 = 2,048 B there.
# So a sequence costs a constant plus a product:
#
# $$\text{bytes}(n) = S + n \cdot t$$
#
# | symbol | what it is | value here (Qwen3-Next) |
# |---|---|---|
# | $S$ | bytes of all states: 36 layers × 2,162,688 B | 77,856,768 |
# | $t$ | bytes of a token: 12 layers × 2,048 B | 24,576 |
# | $n$ | tokens of the sequence | 4,096 |
#
# $$77{,}856{,}768 + 4{,}096 \cdot 24{,}576 = 178{,}520{,}064 \text{ B}$$
# %% [markdown] key="recurrent" lang="zh" src="dd5109bf"
# ## 状态不增长的层
#
# Qwen3-Next 的 48 层里，每四层只有一层是注意力，共 12 层。
# 其余 36 层是循环层，每条序列在那里只有一份大小固定的状态，与长度无关。
# 在一层里，这份状态是 32 个头各一个 128 × 128 的 fp32 矩阵，即 32 × 128 × 128 × 4 = 2,097,152 B；
# 再加上一个短卷积最近的 4 个输入，即 bf16 的 4 × 8,192 个元素，65,536 B。两者合计 2,162,688 B。
# 注意力层则有 2 个 KV 头，每个 256 个元素，所以一个 token 在一层占 2 × 2 × 256 × 2 = 2,048 B。
# 所以一条序列的开销是一个常数加一个乘积。
#
# $$\text{字节}(n) = S + n \cdot t$$
#
# | 符号 | 含义 | 本例取值（Qwen3-Next） |
# |---|---|---|
# | $S$ | 所有状态的字节数：36 层 × 2,162,688 B | 77,856,768 |
# | $t$ | 一个 token 的字节数：12 层 × 2,048 B | 24,576 |
# | $n$ | 序列的 token 数 | 4,096 |
#
# $$77{,}856{,}768 + 4{,}096 \cdot 24{,}576 = 178{,}520{,}064 \text{ B}$$

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
# A short chat pays mostly for the states. In a long document they hardly count.
# %% [markdown] key="recurrent_read" lang="zh" src="eda63904"
# 第一个 token 很贵，因为光是固定的状态，就相当于 3,168 个普通 token。
# 换句话说，短对话的开销主要是状态；到了长文档，状态几乎可以忽略。

# %% [markdown] key="tp" lang="en"
# ## Tensor parallelism: split, copied, refused
#
# With tensor parallelism (tp), each GPU takes some of the heads and caches only those.
# One such GPU, with its process, is called a rank.
# %% [markdown] key="tp" lang="zh" src="f2b2486d"
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
# Up to tp = 8 the heads are split, and the whole group holds each byte once.
# At tp = 16 there are more GPUs than KV heads, so two GPUs keep a copy of the same head. A GPU saves nothing more, and the group holds everything twice.
#
# $$\text{heads on a rank} = \max(1,\ H_{kv} / tp)$$
#
# | symbol | what it is | value here |
# |---|---|---|
# | $H_{kv}$ | KV heads of the model (Llama-3.1-8B) | 8 |
# | $tp$ | GPUs in the group | 16 |
#
# One head takes 131,072 / 8 = 16,384 B a token, so
#
# $$\max(1,\ 8 / 16) = 1 \qquad 1 \text{ head} \cdot 16{,}384 \text{ B} = 16{,}384 \text{ B a token on each GPU}$$
#
# tp = 3 is refused, because a GPU would hold a part of a head. The error gives the numbers and says what you can do, like every error of the package.
# %% [markdown] key="tp_read" lang="zh" src="339d4b41"
# tp 不超过 8 时，KV 头被切分到各块 GPU，整组 GPU 合起来每个字节只存一份。
# tp = 16 时 GPU 比 KV 头多，于是每两块 GPU 各存同一个头的副本，结果是单块 GPU 不再节省，整组却存了两份。
#
# $$\text{每个 rank 的头数} = \max(1,\ H_{kv} / tp)$$
#
# | 符号 | 含义 | 本例取值 |
# |---|---|---|
# | $H_{kv}$ | 模型的 KV 头数（Llama-3.1-8B） | 8 |
# | $tp$ | 一组里的 GPU 数 | 16 |
#
# 一个头每个 token 占 131,072 / 8 = 16,384 B，所以
#
# $$\max(1,\ 8 / 16) = 1 \qquad 1 \text{ 个头} \cdot 16{,}384 \text{ B} = \text{每块 GPU 上每个 token } 16{,}384 \text{ B}$$
#
# tp = 3 会被拒绝，因为 8 个头分给 3 块 GPU，总有 GPU 分到的头不完整。报错里有具体数字，也有解决办法，程序包里所有的报错都是这样写的。

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
# The last line takes the engine's share of the memory and subtracts what is used now. Then it subtracts `peak - current`, which is the extra memory that the activations of a warm-up step needed.
# Each variable is simple, but each is easy to get wrong. If you leave `itemsize` out of the product, for example, the tensor becomes twice as large as the budget.
# The table explains them for Qwen3-8B on one A100 80 GB; the cell below computes all values, for one card and for eight.
#
# | variable | unit | where it comes from | often said, and wrong | value here |
# |---|---|---|---|---|
# | `total` | bytes | `torch.cuda.mem_get_info()` | "80 GiB": torch sees less than the label | 85,094,039,552 |
# | `used` | bytes | `total - free`: weights, CUDA context, other processes | "the model's weights" | 16,918,341,632 |
# | `current` | bytes | `allocated_bytes.all.current`: tensors alive now | "may be below the weights": it can't, because the weights stay | 16,381,470,720 |
# | `peak` | bytes | `allocated_bytes.all.peak` since the last reset | "covers fragmentation": `peak - current` is the activations of the warm-up | 17,799,276,544 |
# | `gpu_memory_utilization` | share of `total` | argument | "the share for the KV cache": it is for everything | 0.9 |
# | `num_kv_heads` | heads a GPU | `num_key_value_heads` over the tensor-parallel size | "heads in the cluster": a property of the model, then split | 8 |
# | `head_dim` | elements | the config, else the quotient | "128 because 4096 / 32": right by luck | 128 |
# | `itemsize` | bytes | the cache's dtype | forgotten in the product | 2 |
# | `block_bytes` | bytes a block | all layers, K and V | "per layer" | 2,359,296 |
# | `num_kvcache_blocks` | blocks | the last line above | | 24,688 |
#
# $$2 \cdot 36 \cdot 16 \cdot 8 \cdot 128 \cdot 2 = 2{,}359{,}296$$
#
# $$\lfloor 0.9 \cdot 85{,}094{,}039{,}552 - 16{,}918{,}341{,}632 - 17{,}799{,}276{,}544 + 16{,}381{,}470{,}720 \rfloor = 58{,}248{,}488{,}140 \qquad \lfloor 58{,}248{,}488{,}140 / 2{,}359{,}296 \rfloor = 24{,}688$$
# %% [markdown] key="variables" lang="zh" src="600b2c31"
# ## 分配器里的每个变量
#
# 小型推理引擎用三行代码就定下了块池大小：
#
# ```python
# num_kv_heads = num_key_value_heads // world_size
# block_bytes = 2 * num_hidden_layers * block_size * num_kv_heads * head_dim * itemsize
# num_kvcache_blocks = int(total * gpu_memory_utilization - used - peak + current) // block_bytes
# ```
#
# 最后一行先取引擎可用的份额，减去现在已经用掉的，再减去 `peak - current`，也就是预热那一步的激活额外需要的显存。
# 每个变量都不难，但每个都容易弄错。例如乘积里漏掉 `itemsize`，分配出来的张量就会是预算的两倍。
# 下表以一块 A100 80 GB 上的 Qwen3-8B 为例逐个说明；后面的单元格会算出所有的值，一块卡和八块卡各算一遍。
#
# | 变量 | 单位 | 来源 | 常见的错误说法 | 本例取值 |
# |---|---|---|---|---|
# | `total` | 字节 | `torch.cuda.mem_get_info()` | “80 GiB”：torch 看到的比标称值小 | 85,094,039,552 |
# | `used` | 字节 | `total - free`：权重、CUDA 上下文、其他进程 | “就是模型权重” | 16,918,341,632 |
# | `current` | 字节 | `allocated_bytes.all.current`：此刻存活的张量 | “可以小于权重”：不会，权重一直都在 | 16,381,470,720 |
# | `peak` | 字节 | 上次重置以来的 `allocated_bytes.all.peak` | “为碎片留余量”：`peak - current` 是预热时的激活 | 17,799,276,544 |
# | `gpu_memory_utilization` | 占 `total` 的比例 | 参数 | “分给 KV 缓存的比例”：它管的是全部用途 | 0.9 |
# | `num_kv_heads` | 每块 GPU 的头数 | `num_key_value_heads` 除以张量并行大小 | “集群里的总头数”：它是模型的属性，之后才切分 | 8 |
# | `head_dim` | 元素 | 配置，没有才用商 | “4096 / 32 所以是 128”：碰巧对了 | 128 |
# | `itemsize` | 字节 | 缓存的数据类型 | 乘积里忘了它 | 2 |
# | `block_bytes` | 字节 / 块 | 所有层，K 和 V | “每层的字节” | 2,359,296 |
# | `num_kvcache_blocks` | 块 | 上面最后一行 | | 24,688 |
#
# $$2 \cdot 36 \cdot 16 \cdot 8 \cdot 128 \cdot 2 = 2{,}359{,}296$$
#
# $$\lfloor 0.9 \cdot 85{,}094{,}039{,}552 - 16{,}918{,}341{,}632 - 17{,}799{,}276{,}544 + 16{,}381{,}470{,}720 \rfloor = 58{,}248{,}488{,}140 \qquad \lfloor 58{,}248{,}488{,}140 / 2{,}359{,}296 \rfloor = 24{,}688$$

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
# Here `used`, `peak` and `current` are estimates on paper. [Lesson 08](08_allocate_kv_cache.ipynb) measures them on a running model and compares.
# `total` is not measured either: it is what one public log printed, to 0.01 GiB, and yours may differ.
# The tokens belong to the whole *pool*. Qwen3-8B has 40,960 positions, so no single sequence can use them all.
# %% [markdown] key="variables_read" lang="zh" src="8a1d6ed3"
# 这里的 `used`、`peak`、`current` 只是纸面上的估算，[第 08 课](08_allocate_kv_cache.ipynb)会在运行中的模型上实测并对比。
# `total` 也不是实测，它取自一份公开日志，只精确到 0.01 GiB，你的机器上可能不同。
# 最后的 token 数属于整个**块池**。Qwen3-8B 只有 40,960 个位置，任何一条序列都用不完它。

# %% [markdown] key="coda" lang="en"
# ## The number on the screen is not a capacity
#
# When an engine starts, it prints how many tokens its KV cache holds.
# But with windows there is no such number, because a token costs more at the start of a sequence than later. So each version of vLLM has its own rule:
#
# $$\text{up to v0.20:}\quad \lfloor \text{blocks} / \text{groups} \rfloor \cdot B \qquad\qquad \text{from v0.21:}\quad c \cdot m$$
#
# | symbol | what it is | value here |
# |---|---|---|
# | blocks | blocks in the pool of 50 GiB | 20,480 |
# | groups | the 60 layers make 6 groups of 10: five slide, one is full | 6 |
# | $B$ | tokens of a block in a sliding group | 16 |
# | $c$ | concurrency: sequences of $m$ tokens that fit at once | 4.05 |
# | $m$ | `max_model_len`: the longest sequence that you allow | 131,072 |
#
# $$\lfloor 20{,}480 / 6 \rfloor \cdot 16 = 54{,}608 \qquad\qquad \lfloor (20{,}480 / 5{,}061) \cdot 131{,}072 \rfloor = 530{,}400$$
#
# A block belongs to one group, so every token needs a place in a block of each group. That's why the old rule divides by the number of groups. (It counts 16 tokens for every block, although a block of the full group holds 32.)
# The new rule asks how many blocks a sequence of $m$ tokens takes. The full group needs 131,072 / 32 = 4,096, because its blocks hold 32 tokens.
# A sliding group needs only 193: the 1,023 tokens of its window and the 2,048 of one step fill 192 blocks, and one more is needed because a window seldom starts at a block's edge. That makes 4,096 + 5 × 193 = 5,061, so $c$ = 20,480 / 5,061 = 4.05.
#
# The cell computes both for Gemma 4 31B, from one pool of 50 GiB:
# %% [markdown] key="coda" lang="zh" src="683487b5"
# ## 屏幕上的数字不等于容量
#
# 推理引擎启动时，会打印 KV 缓存能放多少 token。
# 可是有了窗口，这个数其实并不存在，因为同一条序列里，前面的 token 比后面的 token 贵。于是 vLLM 的不同版本各有一套算法：
#
# $$\text{v0.20 及以前：}\quad \lfloor \text{块数} / \text{组数} \rfloor \cdot B \qquad\qquad \text{v0.21 起：}\quad c \cdot m$$
#
# | 符号 | 含义 | 本例取值 |
# |---|---|---|
# | 块数 | 50 GiB 的块池里的块数 | 20,480 |
# | 组数 | 60 层分成 6 组，每组 10 层：五组滑动窗口，一组全注意力 | 6 |
# | $B$ | 滑动窗口组里一个块的 token 数 | 16 |
# | $c$ | 并发数：能同时放下几条 $m$ 个 token 的序列 | 4.05 |
# | $m$ | `max_model_len`：允许的最长序列 | 131,072 |
#
# $$\lfloor 20{,}480 / 6 \rfloor \cdot 16 = 54{,}608 \qquad\qquad \lfloor (20{,}480 / 5{,}061) \cdot 131{,}072 \rfloor = 530{,}400$$
#
# 一个块只属于一个组，所以每个 token 要在每个组的块里各占一个位置，旧的算法因此要除以组数。（它一律按每块 16 个 token 算，尽管全注意力组的一块能放 32 个。）
# 新的算法看一条 $m$ 个 token 的序列要占多少块。全注意力组每块 32 个 token，需要 131,072 / 32 = 4,096 块。
# 每个滑动窗口组只要放下窗口里的 1,023 个和一步读入的 2,048 个 token，要 192 块；窗口往往不从块的边界开始，再多留 1 块，共 193 块。合计 4,096 + 5 × 193 = 5,061 块，所以 $c$ = 20,480 / 5,061 = 4.05。
#
# 下面用 Gemma 4 31B 和同一个 50 GiB 的块池，把两种都算一遍：

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
# The pool always has the same 20,480 blocks, but the printed number changes with `max_model_len`. So a larger number doesn't mean a larger pool.
# With windows, "tokens" is not a unit of capacity.
# Ask for blocks, or for the bytes of *your* load: `spec.bytes_for(n, batch)`.
#
# ## Recap
#
# A sliding layer keeps at most window - 1 tokens, so at 32,768 tokens Gemma 2 9B takes 5.91 GiB and not 10.50 GiB.
# Cached is not held: right after a prompt of 40 tokens, a layer with window 16 still holds the storage of all 40.
# A recurrent layer costs a constant, which in Qwen3-Next is as much as 3,168 tokens.
# Tensor parallelism splits KV heads until each GPU has one; beyond that they are copied, and tp = 16 stores Llama-3.1-8B's 8 heads twice.
# One pool of 20,480 blocks is printed as 54,608 tokens or as 530,400, so compare blocks or bytes.
# %% [markdown] key="coda_read" lang="zh" src="3a55e413"
# 块池始终是同样的 20,480 个块，打印的数字却随 `max_model_len` 变化，可见块池并没有变大。
# 有了窗口，“token 数”就不再是容量的单位。
# 该问的是块数，或者**你的**负载要多少字节：`spec.bytes_for(n, batch)`。
#
# ## 本课小结
#
# 滑动窗口层最多保留 窗口 - 1 个 token，所以 32,768 个 token 时，Gemma 2 9B 占 5.91 GiB，而不是 10.50 GiB。
# 缓存的字节不等于占用的字节。例如刚读完 40 个 token 的提示词时，窗口为 16 的层仍然占着全部 40 个 token 的存储。
# 循环层的开销是常数，在 Qwen3-Next 里相当于 3,168 个 token。
# 张量并行最多把 KV 头分到每块 GPU 一个，再多就只能复制，例如 tp = 16 时，Llama-3.1-8B 的 8 个头各存两份。
# 同一个 20,480 块的块池，既会打印成 54,608 个 token，也会打印成 530,400 个，所以要比较块数或字节数。

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
# ## Exercises
#
# The exercise notebook has three: the bytes of a batch with windows (02b.1), the exact inverse (02b.2), and the KV heads on a rank (02b.3).
# %% [markdown] key="exercise" lang="zh" src="3580bfef"
# ## 练习
#
# 练习 notebook 里有三道题，即带窗口的一批序列占多少字节（02b.1）、精确的反函数（02b.2），以及每个 rank 的 KV 头数（02b.3）。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | what decides | command |
# |---|---|---|
# | the process holds more than calculated | a view that keeps the prompt alive; the rest is CUDA context + workspace + reserved - allocated (lessons [07](07_allocate_once.ipynb) and [16](16_where_did_6gb_go.ipynb)) | `held_bytes_for(n, step) - bytes_for(n)` |
#
# For Gemma 2 9B right after a prompt of 8,000 tokens:
# %% [markdown] key="stuck" lang="zh" src="f00ee72a"
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
# The older rule divides by groups of layers, as the same section shows.
#
# ## What comes next
#
# You can now say what a token costs in every model that caches K and V of heads.
# [Lesson 03](03_the_2_86x_mistake.ipynb) takes a model that doesn't, DeepSeek-V3, and an estimate that missed by 2.86 times.
# It needs the formula, and the habit of asking what is cached before you multiply.
# %% [markdown] key="next" lang="zh" src="41aeb289"
# ## 实战现场
#
# 2026 年 5 月，有用户升级 vLLM 后重启 Gemma 4 31B，日志里的 KV 缓存从约 55k token 变成约 525k，而块池始终是 50 GB 左右（[vLLM issue 43308](https://github.com/vllm-project/vllm/issues/43308)）。
# “屏幕上的数字不等于容量”一节把两种打印都算了出来；原帖没有写 `max_model_len`，取 131,072 时，两种规则相差的倍数与它报告的相近。
#
# [issue 40691](https://github.com/vllm-project/vllm/issues/40691) 说明了旧的打印为什么会误导人。
# 旧的算法要除以层的组数，上面同一节就是这样算的。
#
# ## 下一课
#
# 凡是按头缓存的模型，你现在都能算出一个 token 占多少字节。
# [第 03 课](03_the_2_86x_mistake.ipynb)讲一个不按头缓存的模型 DeepSeek-V3，以及一次差了 2.86 倍的估算。
# 它用到公式，以及“先问缓存了什么，再做乘法”的习惯。
