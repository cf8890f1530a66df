# %% [meta]
# number = "E"
# slug = "cheat_sheet"
# needs = ["02"]
# rooms = ["plan", "blocks", "kernels", "memory"]
# [title]
# en = "Which formula, and which call? A cheat-sheet"
# zh = "哪个公式，哪次调用？公式速查"
# [t4]
# en = "Arithmetic on the CPU: a T4 shows the same numbers."
# zh = "全是 CPU 上的算术：T4 上看到的数字相同。"

# %% [markdown] key="question" lang="en"
# ## The question
#
# **Which formula do you need, what do its symbols stand for, and which call computes it?**
#
# Take a common question: how much GPU memory will the KV cache of your model use? Many scripts compute it from `num_hidden_layers` and `hidden_size` alone. That formula is older than GQA, where several query heads share one KV head. For Llama-3.1-8B, which has GQA, the answer is too large. The table below the first code cell says how many times too large.
#
# You remember a formula more easily than the meaning of its symbols. So this page has every formula of the course: its symbols with their units, the call that computes it, its value, and the lesson that derives it.
#
# **Almost all values are for one config**: Llama-3.1-8B in bf16 on one H100, blocks of 16 tokens, 32 sequences of 8,192 tokens each. Below each table of formulas stands the table of their values. A formula and its value have the same number. Some formulas need another model or other sizes: the column *for* says which, in the symbols of the formula. `B` is bytes. If a value has no unit, the row of its formula says what it counts. For your own values, put your model, card and load into the first code cell and run all cells.
#
# The lessons use some letters for several things. On this page each letter of this table has one meaning:
#
# | symbol | meaning | unit |
# |---|---|---|
# | $L$ | layers that cache | layers |
# | $H_q$, $H$ | query heads, KV heads | heads a layer |
# | $D$ | elements in one head's K (or V) of one token, `head_dim` | elements |
# | $s$ | size of a cached element (bf16: 2) | bytes |
# | $k$ | K and V of one token, in all layers | bytes a token |
# | $n$, $n_i$ | tokens of a sequence, of sequence $i$ | tokens |
# | $b$ | sequences in a batch | sequences |
# | $P$, $N$ | block size; number of blocks in the pool | tokens a block; blocks |
# | $W$ | weights that a step reads | bytes |
# | $\beta$, $\pi$ | bandwidth and FLOP rate | bytes/s, FLOP/s |
#
# The row of a formula explains its other letters, and they have that meaning in this row only. The [glossary](F_glossary.ipynb) explains the words.
# %% [markdown] key="question" lang="zh" src="c6ec6b3c"
# ## 问题
#
# **该用哪个公式，符号各指什么，用哪个调用来算？**
#
# 例如一个常见的问题：我的模型，KV 缓存要占多少显存？很多脚本只用 `num_hidden_layers` 和 `hidden_size` 来算，可那是 GQA（几个 query 头共用一个 KV 头）出现之前的公式。Llama-3.1-8B 用了 GQA，这样算出来就偏大，偏大几倍见第一个代码单元格下面的表。
#
# 公式好记，符号指什么却容易忘。所以这一页收齐了全课程的公式：符号和单位、算它的调用、算出的值，以及推导它的那一课。
#
# **绝大多数值都按同一个配置算**：一块 H100 上的 Llama-3.1-8B，bf16，块大小 16，32 条序列，每条 8,192 个 token。每张公式表下面是对应的数值表，两张表序号相同。有些公式要换模型或换数字，这时数值表的“条件”一列会用公式里的符号写明。`B` 是字节；值如果没有单位，含义见公式那一行。想换成自己的数，只要在第一个代码单元格里填上你的模型、显卡和负载，再全部重跑一遍。
#
# 同一个字母在不同的课里，含义可能不同。在这一页上，下表里的字母都只有一个含义：
#
# | 符号 | 含义 | 单位 |
# |---|---|---|
# | $L$ | 有缓存的层数 | 层 |
# | $H_q$、$H$ | query 头数、KV 头数 | 头 / 层 |
# | $D$ | 一个 token 在一个头里的 K（或 V）的元素数，即头维度（`head_dim`） | 元素 |
# | $s$ | 缓存里一个元素的大小（bf16 为 2） | 字节 |
# | $k$ | 一个 token 在所有层的 K 和 V 合计多大 | 字节 / token |
# | $n$、$n_i$ | 一条序列（第 $i$ 条）的 token 数 | token |
# | $b$ | 一个 batch 的序列数 | 条 |
# | $P$、$N$ | 块大小；块池的块数 | token / 块；块 |
# | $W$ | 一步要读的权重 | 字节 |
# | $\beta$、$\pi$ | 带宽、算力 | 字节/秒、FLOP/秒 |
#
# 其他字母在公式所在的那一行说明，也只在那一行有效。名词的解释见[术语表](F_glossary.ipynb)。

# %% key="config"
from minikv.course import Table
from minikv.plan import CacheSpec, find_gpu, find_model, plan_memory
from minikv.units import GIB, MIB

model, card, block_size = "Llama-3.1-8B", "H100 SXM 80GB", 16
batch, context = 32, 8_192

spec = CacheSpec.from_config(model)
k = spec.bytes_for(1)
layer = spec.layers[0]
head = ["", t("case"), t("value")]
old = 2 * len(spec.layers) * find_model(model).config["hidden_size"] * 2
names = ["L", "H", "D", "k (B)", "2 L hidden_size s / k"]
Table(names, [(len(spec.layers), layer.kv_heads, layer.k_dim, k, f"{old / k:g}")], title=f"{model}, {card}", right=names[4:])

# %% [markdown] key="bytes" lang="en"
# ## Bytes of a token
#
# | | what | formula | lesson |
# |---|---|---|---|
# | 1 | K and V of one token | $k = 2 \, L \, H \, D \, s$ | [02](02_how_many_bytes.ipynb) |
# | 2 | the same with 8-bit elements ($s = 1$) and a scale of $z$ bytes for each head's K and each head's V | $k = 2 \, L \, H \, (D \, s + z)$ | [13](13_half_the_bytes.ipynb) |
# | 3 | the same on each GPU, with tensor parallelism over $t$ GPUs | $k_t = 2 \, L \, \max(1, H / t) \, D \, s$ | [12](12_beyond_one_gpu.ipynb) |
# | 4 | MLA, cached as the latent ($c$ elements) and the rope key, the part of K with the position ($r$ elements) | $k = L \, (c + r) \, s$ | [03](03_the_2_86x_mistake.ipynb) |
# | 5 | MLA, cached expanded, as K and V of every head: $d$ elements of K without the position, $r$ with it, $v$ of V | $k = L \, H_q \, (d + r + v) \, s$ | [03](03_the_2_86x_mistake.ipynb) |
# | 6 | K and V that a sequence keeps between two steps, if layer $l$ has a window of $w_l$ tokens ($\infty$: no window) | $\sum_l \min(n, w_l - 1) \cdot 2 \, H \, D \, s$ | [02b](02b_layers_that_differ.ipynb) |
#
# Formulas 1 to 5 are in bytes a token, formula 6 is in bytes. In the table below, `hf` is what transformers caches since 5.15.0, and `hf-expanded` is what it cached up to 5.14.1.
# %% [markdown] key="bytes" lang="zh" src="7f5a3b00"
# ## 一个 token 占多少字节
#
# | | 算什么 | 公式 | 课 |
# |---|---|---|---|
# | 1 | 一个 token 的 K 和 V | $k = 2 \, L \, H \, D \, s$ | [02](02_how_many_bytes.ipynb) |
# | 2 | 同上，元素改用 8 位（$s = 1$），每个头的 K 和 V 各带一个 $z$ 字节的缩放因子 | $k = 2 \, L \, H \, (D \, s + z)$ | [13](13_half_the_bytes.ipynb) |
# | 3 | 同上，在 $t$ 块 GPU 上做张量并行时，每块 GPU 上 | $k_t = 2 \, L \, \max(1, H / t) \, D \, s$ | [12](12_beyond_one_gpu.ipynb) |
# | 4 | MLA，存潜在向量（latent，$c$ 个元素）和 rope key（K 里带位置的部分，$r$ 个元素） | $k = L \, (c + r) \, s$ | [03](03_the_2_86x_mistake.ipynb) |
# | 5 | MLA，展开成每个头的 K 和 V 再存：K 不带位置的部分 $d$ 个元素，带位置的部分 $r$ 个，V $v$ 个 | $k = L \, H_q \, (d + r + v) \, s$ | [03](03_the_2_86x_mistake.ipynb) |
# | 6 | 一条序列在两步之间要保留的 K 和 V；第 $l$ 层的窗口为 $w_l$ 个 token（没有窗口则为 $\infty$） | $\sum_l \min(n, w_l - 1) \cdot 2 \, H \, D \, s$ | [02b](02b_layers_that_differ.ipynb) |
#
# 公式 1 到 5 的单位是字节 / token，公式 6 是字节。下表里的 `hf` 和 `hf-expanded` 是参数 `layout` 的取值，分别对应 transformers 5.15.0 起和 5.14.1 及以前的缓存。

# %% key="bytes_code"
specs = {
    model: spec,
    "int8, z = 4": CacheSpec.from_config(model, kv_dtype="int8"),
    "t = 4": CacheSpec.from_config(model, tp=4),
    "DeepSeek-V3, hf": CacheSpec.from_config("DeepSeek-V3", layout="hf"),
    "DeepSeek-V3, hf-expanded": CacheSpec.from_config("DeepSeek-V3", layout="hf-expanded"),
}
rows = [(line, case, f"{of.bytes_for(1):,} B") for line, (case, of) in enumerate(specs.items(), 1)]
windows = CacheSpec.from_config("Gemma-3-27B").bytes_for(context)
Table(head, [*rows, (6, f"Gemma-3-27B, n = {context:,}", f"{windows:,} B")], right=head[2:])

# %% [markdown] key="blocks" lang="en"
# ## Blocks and addresses
#
# | | what | formula | lesson |
# |---|---|---|---|
# | 7 | number of blocks that a sequence takes; number of slots that stay empty in the last one | $\lceil n / P \rceil$ and $\lceil n / P \rceil P - n$ | [00](00_start_here.ipynb) |
# | 8 | slot of the token at position $i$ (from 0); $\text{table}$: block table of its sequence | $\text{table}[\lfloor i / P \rfloor] \cdot P + i \bmod P$ | [09](09_pages_and_blocks.ipynb) |
# | 9 | bytes from the start of the storage to the element $(i_1, \dots)$ of a tensor; $o$: its offset, $t_j$: its strides, both in elements | $s \, (o + \sum_j i_j \, t_j)$ | [05](05_owned_and_borrowed.ipynb), [06](06_the_linear_cache.ipynb) |
# | 10 | bytes that a view keeps alive in addition to its own; $S$: bytes of its storage, $U$: bytes of it that the view's elements lie on | $S - U$ | [05](05_owned_and_borrowed.ipynb) |
# | 11 | bytes wasted if each of $b$ sequences gets a row with room for $M$ tokens | $(b \, M - \sum_i n_i) \, k$ | [06](06_the_linear_cache.ipynb) |
# | 12 | bytes wasted if the sequences get blocks | $\sum_i (\lceil n_i / P \rceil P - n_i) \, k$ | [06](06_the_linear_cache.ipynb) |
# | 13 | reference count of block $j$: how many sequences hold the block. It is free if none does. $[\dots]$ is 1 if the statement is true, else 0 | $\sum_i [\, j \in \text{table}_i \,]$ | [09](09_pages_and_blocks.ipynb), [B](B_bug_museum.ipynb) |
# %% [markdown] key="blocks" lang="zh" src="c8e33032"
# ## 块与地址
#
# | | 算什么 | 公式 | 课 |
# |---|---|---|---|
# | 7 | 一条序列要用几个块；最后一块里空着几个槽位 | $\lceil n / P \rceil$，$\lceil n / P \rceil P - n$ | [00](00_start_here.ipynb) |
# | 8 | 位置 $i$（从 0 数）的 token 在哪个槽位，$\text{table}$ 是块表 | $\text{table}[\lfloor i / P \rfloor] \cdot P + i \bmod P$ | [09](09_pages_and_blocks.ipynb) |
# | 9 | 从存储开头到张量的元素 $(i_1, \dots)$ 有多少字节；偏移 $o$ 和步幅 $t_j$ 以元素计 | $s \, (o + \sum_j i_j \, t_j)$ | [05](05_owned_and_borrowed.ipynb)、[06](06_the_linear_cache.ipynb) |
# | 10 | 除自身之外，视图还让多少字节无法释放；$S$ 是存储的字节数，$U$ 是其中视图用到的字节数 | $S - U$ | [05](05_owned_and_borrowed.ipynb) |
# | 11 | $b$ 条序列各占一行、每行预留 $M$ 个 token 时，浪费的字节 | $(b \, M - \sum_i n_i) \, k$ | [06](06_the_linear_cache.ipynb) |
# | 12 | 分块时浪费的字节 | $\sum_i (\lceil n_i / P \rceil P - n_i) \, k$ | [06](06_the_linear_cache.ipynb) |
# | 13 | 块 $j$ 的引用计数，即有几条序列持有它，为 0 就是空闲；$[\dots]$ 里的条件成立时为 1，否则为 0 | $\sum_i [\, j \in \text{table}_i \,]$ | [09](09_pages_and_blocks.ipynb)、[B](B_bug_museum.ipynb) |

# %% key="blocks_code"
import torch

from minikv.blocks import BlockManager
from minikv.memory import ownership
from minikv.plan.pool import sequence_bytes

manager = BlockManager(num_blocks=400, block_size=block_size)
manager.allocate("first", range(1_000))
used = manager.stats().pools[0].used
rows = [
    (7, "n = 1,000", f"{used}; {used * block_size - 1_000}"),
    (8, "i = 999", int(manager.slot_mapping("first", 999, 1_000)[0])),
]

cache = torch.empty(2, layer.kv_heads, context, layer.k_dim, dtype=torch.bfloat16)
one = cache[1, 3, 100]  # [128]
rows += [
    (9, f"[1, 3, 100, 0], t = {cache.stride()}", one.data_ptr() - cache.data_ptr()),
    (10, f"U = {ownership(one).touched_bytes} B", f"{ownership(one).keeps_alive_bytes / MIB:.1f} MiB"),
]

lengths = [1_000] * (batch - 1) + [context]
held = sum(spec.bytes_for(n) for n in lengths)
in_rows = batch * spec.bytes_for(context) - held
in_blocks = sum(sequence_bytes(spec, n, block_size) for n in lengths) - held
case = f"n = {batch - 1} x 1,000, 1 x {context:,}"
rows += [(11, case, f"{in_rows / GIB:.1f} GiB"), (12, case, f"{in_blocks / MIB:.0f} MiB")]
manager.fork("first", "second")
tables = [manager.block_table(name) for name in manager.sequences()]
holders = f"{sum(0 in table for table in tables)} = {manager.pools[0].ref_count(0)}"
Table(head, [*rows, (13, "fork, j = 0, ref_count", holders)], right=head[2:])

# %% [markdown] key="memory" lang="en"
# ## Memory of a GPU
#
# | | what | formula | lesson |
# |---|---|---|---|
# | 14 | bytes for the pool. $u$: share of the GPU's memory that may be used. In bytes, $T$: all memory of the GPU, $o$: in use after the warm-up, $p$ and $c$: peak and current value of what torch has allocated | $\lfloor T \, u \rfloor - o - p + c$ | [08](08_allocate_kv_cache.ipynb) |
# | 15 | number of blocks in the pool; $A$: formula 14 | $N = \lfloor A / (P \, k) \rfloor$ | [08](08_allocate_kv_cache.ipynb) |
# | 16 | bytes of the pool with the same memory fraction $f$ in minikv, vLLM, SGLang and TensorRT-LLM, in this order. In bytes, $T$: all memory of the GPU, $o$: in use before the weights are loaded, $w$: weights, $a$: activations | $fT - o - w - a$, $\;fT - w - a$, $\;f(T - o) - w$, $\;f(T - o - w - a)$ | [D](D_other_engines.ipynb) |
# | 17 | bytes read and written if each new token is concatenated to a copy of the whole cache, for $g$ tokens after a prompt of $n$ | $b \, k \, g \, (2n + g + 1)$ | [07](07_allocate_once.ipynb) |
# | 18 | the same if the cache is pre-allocated, and each new token is written to its slot | $2 \, b \, k \, g$ | [07](07_allocate_once.ipynb) |
# | 19 | bytes that torch's allocator gives to a request of $x$ bytes; size of the segment that it takes from the driver for the request | $512 \lceil x / 512 \rceil$; 2 MiB for up to 1 MiB, 20 MiB for less than 10 MiB, else the next multiple of 2 MiB | [07](07_allocate_once.ipynb) |
# | 20 | bytes used on the GPU, $G$, in four parts: live, pinned, returnable, outside torch. $R$: bytes that torch has reserved; in them, $A$ are allocated and $Q$ pinned. The value is of torch's part alone | $G = A + Q + (R - A - Q) + (G - R)$ | [16](16_where_did_6gb_go.ipynb) |
# %% [markdown] key="memory" lang="zh" src="78efba42"
# ## 一块 GPU 的显存
#
# | | 算什么 | 公式 | 课 |
# |---|---|---|---|
# | 14 | 块池的字节数；$u$ 是显存中允许使用的比例。其余以字节计：$T$ 是全部显存，$o$ 是预热之后已占用的显存，$p$、$c$ 是 torch 已分配显存的峰值和当前值 | $\lfloor T \, u \rfloor - o - p + c$ | [08](08_allocate_kv_cache.ipynb) |
# | 15 | 块池的块数，$A$ 即公式 14 | $N = \lfloor A / (P \, k) \rfloor$ | [08](08_allocate_kv_cache.ipynb) |
# | 16 | 填同样的显存比例 $f$，minikv、vLLM、SGLang、TensorRT-LLM 的块池依次有多少字节；$T$ 是全部显存，$o$ 是加载权重之前已占用的显存，$w$ 是权重，$a$ 是激活，都以字节计 | $fT - o - w - a$，$fT - w - a$，$f(T - o) - w$，$f(T - o - w - a)$ | [D](D_other_engines.ipynb) |
# | 17 | 每来一个 token 就拼接（整个缓存复制一遍），提示词 $n$ 个 token 之后再生成 $g$ 个，一共读写的字节 | $b \, k \, g \, (2n + g + 1)$ | [07](07_allocate_once.ipynb) |
# | 18 | 同上，但缓存已预分配，新 token 直接写入槽位 | $2 \, b \, k \, g$ | [07](07_allocate_once.ipynb) |
# | 19 | 申请 $x$ 字节时，torch 的分配器给多少字节；为此向驱动申请多大的段 | $512 \lceil x / 512 \rceil$；1 MiB 以内为 2 MiB，不到 10 MiB 为 20 MiB，再大则向上取到 2 MiB 的整数倍 | [07](07_allocate_once.ipynb) |
# | 20 | GPU 上一共占用 $G$ 字节，拆成四项，依次是存活、被钉住、可归还、torch 之外；$R$ 是 torch 已保留的，其中 $A$ 已分配，$Q$ 被钉住。值只算 torch 的部分 | $G = A + Q + (R - A - Q) + (G - R)$ | [16](16_where_did_6gb_go.ipynb) |

# %% key="memory_code"
from minikv.memory import CachingAllocator
from minikv.memory.allocator.rules import divisions_by_interval, round_size, segment_size
from minikv.plan.other_engines import OPTIONS, Startup, pool_bytes

budget = plan_memory(model, gpu=card, batch=batch, context=context, block_size=block_size)
terms = budget.measured_form()
pools = [pool_bytes(engine, Startup.of(budget), 0.9) / GIB for engine in OPTIONS]
steps = 1_024
joined, written = batch * k * steps * (2 * context + steps + 1), 2 * batch * k * steps
rows = [
    (14, "u = 0.9", f"{terms['available'] / GIB:.2f} GiB"),
    (15, "N; N P", f"{budget.num_blocks:,}; {budget.max_tokens:,}"),
    (16, "f = 0.9", f"{'; '.join(f'{pool:.1f}' for pool in pools)} GiB"),
    (17, f"n = {context:,}, g = {steps:,}", f"{joined / GIB:,.0f} GiB"),
    (18, f"g = {steps:,}", f"{written / GIB:,.0f} GiB"),
]

asked = context * layer.token_bytes + 100
rounded = round_size(asked, divisions_by_interval(1))
rows.append((19, f"x = {asked:,} B", f"{rounded:,} B; {segment_size(rounded) // MIB} MiB"))

allocator = CachingAllocator(capacity=80 * GIB)
kept, gone = allocator.malloc(asked // 10), allocator.malloc(asked // 10)
allocator.free(gone)
stats = allocator.memory_stats()
live, reserved, pinned = (stats[f"{name}_bytes.all.current"] / MIB for name in ("allocated", "reserved", "inactive_split"))
parts = f"{live:.1f} + {pinned:.1f} + {reserved - live - pinned:.1f} = {reserved:.1f} MiB"
Table(head, [*rows, (20, "A + Q + (R - A - Q) = R", parts)], right=head[2:])

# %% [markdown] key="time" lang="en"
# ## Time of a step
#
# | | what | formula | lesson |
# |---|---|---|---|
# | 21 | FLOPs of one token's products with the weights of all layers; $h$: `hidden_size`, $m$: `intermediate_size` | $2 L \, (h \, (2 H_q + 2 H) \, D + 3 \, h \, m)$ | [01](01_why_a_cache.ipynb) |
# | 22 | FLOPs of attention between one query token and one cached token, in all layers | $4 \, L \, H_q \, D$ | [01](01_why_a_cache.ipynb) |
# | 23 | shortest context, in tokens, at which attention takes more FLOPs than the weights | $\lfloor p / a \rfloor + 1$, $p$: formula 21, $a$: formula 22 | [01](01_why_a_cache.ipynb) |
# | 24 | ridge point, in FLOP a byte: the intensity at which memory and arithmetic take equally long | $\pi / \beta$ | [04](04_the_roofline.ipynb) |
# | 25 | arithmetic intensity of a decode step, in FLOP a byte; $a$: formula 22, $f$: formula 21 plus the output layer | $b \, (f + n \, a) / (W + b \, n \, k)$ | [04](04_the_roofline.ipynb) |
# | 26 | least time of a step, in s; $F$: its FLOPs, $M$: the bytes that it moves | $\max(F / \pi, M / \beta)$ | [04](04_the_roofline.ipynb) |
# | 27 | tokens a second in decode; $x$: seconds of a step by itself, $y$: seconds that each sequence adds | $b / (x + y \, b)$ | [11a](11a_continuous_batching.ipynb) |
# | 28 | bytes that attention moves in one layer in a decode step. The three terms: K and V, queries and results, block tables | $2 H D s \sum n_i + 2 \, b \, H_q D s + 4 \sum \lceil n_i / P \rceil$ | [10](10_kernels.ipynb) |
# | 29 | attention; $M$: the mask, 0 where a token may be read, $-\infty$ elsewhere | $\text{softmax}(Q K^{\top} / \sqrt{D} + M) \, V$ | [01](01_why_a_cache.ipynb) |
# | 30 | the same, put together from parts of the tokens. Part $j$ has the result $\text{out}_j$, and $\ell_j$ is the logarithm of the sum in its softmax | $\ell = \ln \sum_j e^{\ell_j}$, out $= \sum_j e^{\ell_j - \ell} \, \text{out}_j$ | [10](10_kernels.ipynb) |
# | 31 | time to swap a sequence out and in again, in s; $r$: rate of the copy, in bytes/s | $n \, k / r_\text{out} + n \, k / r_\text{in}$ | [12](12_beyond_one_gpu.ipynb) |
# | 32 | time to recompute the sequence instead, in s; $v$: speed of the prefill, in tokens/s | $n / v$ | [12](12_beyond_one_gpu.ipynb) |
# | 33 | prefill speed at which swapping and recomputing take equally long, in tokens/s | $1 / (k / r_\text{out} + k / r_\text{in})$ | [12](12_beyond_one_gpu.ipynb) |
# %% [markdown] key="time" lang="zh" src="b6de1c42"
# ## 一步的时间
#
# | | 算什么 | 公式 | 课 |
# |---|---|---|---|
# | 21 | 一个 token 与各层权重相乘的 FLOP；$h$ 是 `hidden_size`，$m$ 是 `intermediate_size` | $2 L \, (h \, (2 H_q + 2 H) \, D + 3 \, h \, m)$ | [01](01_why_a_cache.ipynb) |
# | 22 | 一个 query token 对一个缓存 token 做注意力的 FLOP，所有层合计 | $4 \, L \, H_q \, D$ | [01](01_why_a_cache.ipynb) |
# | 23 | 上下文从多少个 token 起，注意力的 FLOP 超过权重的 FLOP | $\lfloor p / a \rfloor + 1$，$p$、$a$ 即公式 21、22 | [01](01_why_a_cache.ipynb) |
# | 24 | 拐点（ridge point），即访存和计算耗时相等时的算术强度，FLOP/字节 | $\pi / \beta$ | [04](04_the_roofline.ipynb) |
# | 25 | 一步解码的算术强度，FLOP/字节；$a$ 即公式 22，$f$ 是公式 21 再加输出层 | $b \, (f + n \, a) / (W + b \, n \, k)$ | [04](04_the_roofline.ipynb) |
# | 26 | 一步至少要多少秒；$F$ 是这一步的 FLOP，$M$ 是要搬的字节 | $\max(F / \pi, M / \beta)$ | [04](04_the_roofline.ipynb) |
# | 27 | 解码时每秒的 token 数；$x$ 是一步的固定开销，$y$ 是每多一条序列的开销，单位都是秒 | $b / (x + y \, b)$ | [11a](11a_continuous_batching.ipynb) |
# | 28 | 解码的一步里，一层注意力要搬的字节；三项依次是 K 和 V、query 和结果、块表 | $2 H D s \sum n_i + 2 \, b \, H_q D s + 4 \sum \lceil n_i / P \rceil$ | [10](10_kernels.ipynb) |
# | 29 | 注意力；$M$ 是掩码，可以看的位置为 0，其余为 $-\infty$ | $\text{softmax}(Q K^{\top} / \sqrt{D} + M) \, V$ | [01](01_why_a_cache.ipynb) |
# | 30 | 同上，但把 token 分成几份来算，再合并；第 $j$ 份的结果是 $\text{out}_j$，$\ell_j$ 是它的 softmax 分母的对数 | $\ell = \ln \sum_j e^{\ell_j}$，out $= \sum_j e^{\ell_j - \ell} \, \text{out}_j$ | [10](10_kernels.ipynb) |
# | 31 | 一条序列换出再换入要多少秒；$r$ 是传输速度，字节/秒 | $n \, k / r_\text{out} + n \, k / r_\text{in}$ | [12](12_beyond_one_gpu.ipynb) |
# | 32 | 不换出，而是重新计算这条序列，要多少秒；$v$ 是预填充的速度，token/秒 | $n / v$ | [12](12_beyond_one_gpu.ipynb) |
# | 33 | 预填充的速度达到多少时，重新计算与换出换入一样快，token/秒 | $1 / (k / r_\text{out} + k / r_\text{in})$ | [12](12_beyond_one_gpu.ipynb) |

# %% key="time_code"
from minikv.kernels import decode_traffic, merge_splits
from minikv.plan.flops import crossing_length, flop_cost
from minikv.plan.preemption import TransferRates, break_even_prefill, recompute_seconds, swap_seconds
from minikv.plan.roofline import decode_work, gpu_roof

cost, roof = flop_cost(model), gpu_roof(find_gpu(card))
work = decode_work(model, batch, context)
fixed, each = roof.seconds(0, work.weight_bytes), roof.seconds(0, work.cache_bytes // batch)
load = f"b = {batch}, n = {context:,}"
rows = [
    (21, model, f"{cost.per_token / 1e9:.1f} GFLOP"),
    (22, model, f"{cost.per_pair / 1e3:.0f} kFLOP"),
    (23, model, f"{crossing_length(model):,}"),
    (24, card, f"{roof.ridge:.0f} FLOP/B"),
    (25, load, f"{work.intensity:.1f} FLOP/B"),
    (26, load, f"{1e3 * roof.seconds(work.flops, work.num_bytes):.1f} ms"),
    (27, load, f"{batch / (fixed + each * batch):,.0f} /s"),
]

heads = find_model(model).config["num_attention_heads"]
moved = decode_traffic([context] * batch, query_heads=heads, kv_heads=layer.kv_heads, dim=layer.k_dim, block_size=block_size)
rows.append((28, load, f"{moved.num_bytes / MIB:,.1f} MiB"))

rng = torch.Generator().manual_seed(0)
query, keys, values = (torch.randn(rows, layer.k_dim, generator=rng) for rows in (1, 64, 64))
logits = query @ keys.T / layer.k_dim**0.5  # [1, 64]
whole = torch.nn.functional.scaled_dot_product_attention(query, keys, values)  # [1, 128]
rows.append((29, "n = 64, torch.allclose", str(torch.allclose(torch.softmax(logits, -1) @ values, whole, atol=1e-5))))
halves = [(torch.softmax(x, -1) @ v, torch.logsumexp(x, -1)) for x, v in zip(logits.split(32, -1), values.split(32))]
merged, _ = merge_splits(*(torch.stack(parts) for parts in zip(*halves)))
rows.append((30, "n = 32 + 32, torch.allclose", str(torch.allclose(merged, whole, atol=1e-5))))

rates = TransferRates(to_host=50e9, to_device=50e9, prefill=10_000)
rows += [
    (31, f"n = {context:,}, r = 50 GB/s", f"{1e3 * swap_seconds(spec.bytes_for(context), rates):.0f} ms"),
    (32, f"n = {context:,}, v = 10,000 /s", f"{1e3 * recompute_seconds(context, rates):.0f} ms"),
    (33, "r = 50 GB/s", f"{break_even_prefill(k, rates.to_host, rates.to_device):,.0f} /s"),
]
Table(head, rows, right=head[2:])

# %% [markdown] key="fewer" lang="en"
# ## Fewer tokens
#
# | | what | formula | lesson |
# |---|---|---|---|
# | 34 | capacity of a layer, the number of tokens that it keeps after an eviction: $n_\text{sink}$ first ones, $q$ heavy hitters (the budget), $n_\text{recent}$ last ones | $C = n_\text{sink} + q + n_\text{recent}$ | [14](14_what_to_forget.ipynb) |
# | 35 | the most tokens that a layer holds between two steps, if eviction runs after every $e$ steps | $C + e - 1$ | [14](14_what_to_forget.ipynb) |
# | 36 | sum of the scores of all tokens, for one KV head that $G$ query heads share; $p_{g,t,i}$: attention that query head $g$ at token $t$ gives to token $i$ | $\sum_i \sum_{t \ge i} \sum_g p_{g,t,i} = G \, n$ | [14](14_what_to_forget.ipynb) |
# | 37 | bytes that an eviction from $n$ to $C$ tokens gives back to the pool | $(\lceil n / P \rceil - \lceil C / P \rceil) \, P \, k$ | [15](15_eviction_on_mla.ipynb) |
# | 38 | tokens of each sequence at which the cache is half of the bytes that a decode step reads | $W / (b \, k)$ | [15](15_eviction_on_mla.ipynb) |
# | 39 | share of texts of $n$ tokens that stay the same, if each token changes with probability $p$ | $(1 - p)^n \approx e^{-n p}$ | [13](13_half_the_bytes.ipynb) |
# %% [markdown] key="fewer" lang="zh" src="f5ee9c1e"
# ## 少留一些 token
#
# | | 算什么 | 公式 | 课 |
# |---|---|---|---|
# | 34 | 一层的容量，即一次淘汰之后留下的 token 数：汇点 $n_\text{sink}$ 个，重要 token $q$ 个（预算），近期 token $n_\text{recent}$ 个 | $C = n_\text{sink} + q + n_\text{recent}$ | [14](14_what_to_forget.ipynb) |
# | 35 | 每 $e$ 步淘汰一次时，这一层最多会留有多少个 token | $C + e - 1$ | [14](14_what_to_forget.ipynb) |
# | 36 | 一个 KV 头里，全部 token 的得分之和；这个 KV 头由 $G$ 个 query 头共用，$p_{g,t,i}$ 是其中 query 头 $g$ 在 token $t$ 处分给 token $i$ 的注意力 | $\sum_i \sum_{t \ge i} \sum_g p_{g,t,i} = G \, n$ | [14](14_what_to_forget.ipynb) |
# | 37 | 一次淘汰（从 $n$ 个 token 减到 $C$ 个）归还块池的字节 | $(\lceil n / P \rceil - \lceil C / P \rceil) \, P \, k$ | [15](15_eviction_on_mla.ipynb) |
# | 38 | 每条序列长到多少个 token 时，一步解码读的字节里缓存占一半 | $W / (b \, k)$ | [15](15_eviction_on_mla.ipynb) |
# | 39 | 每个 token 有 $p$ 的概率变成别的 token 时，$n$ 个 token 的文本有多大比例完全不变 | $(1 - p)^n \approx e^{-n p}$ | [13](13_half_the_bytes.ipynb) |

# %% key="fewer_code"
from minikv.eviction import Budget
from minikv.kernels import PagedKV, paged_column_sums, paged_prefill

kept = Budget(n_sink=4, budget=1_532, n_recent=512, evict_every=16)
tokens, group = 64, heads // layer.kv_heads
query = torch.randn(tokens, group, layer.k_dim, generator=rng)
cache = torch.randn(2, tokens // block_size, block_size, 1, layer.k_dim, generator=rng)
table = torch.arange(tokens // block_size, dtype=torch.int32)[None]  # [1, 4]
starts, length = torch.tensor([0, tokens], dtype=torch.int32), torch.tensor([tokens], dtype=torch.int32)
scale = layer.k_dim**-0.5
kv = PagedKV(cache[0], cache[1], table, length)
seen = paged_prefill(query, kv, starts, max_queries=tokens, scale=scale, return_lse=True)
sums = paged_column_sums(query, kv, starts, seen.lse, scale=scale)

back = sequence_bytes(spec, context, block_size) - sequence_bytes(spec, kept.capacity, block_size)
rows = [
    (34, "4 + 1,532 + 512", f"{kept.capacity:,}"),
    (35, "e = 16", f"{kept.peak_resident:,}"),
    (36, f"G = {group}, n = {tokens}", f"{float(sums.sum()):.3f}"),
    (37, f"n = {context:,}, C = {kept.capacity:,}", f"{back / MIB:,.0f} MiB"),
    (38, f"b = {batch}", f"{work.weight_bytes / (batch * k):,.0f}"),
    (39, "n = 1,000, p = 0.001", f"{(1 - 0.001) ** 1_000:.1%}"),
]
Table(head, rows, right=head[2:])

# %% [markdown] key="fleet" lang="en"
# ## A load
#
# | | what | formula | lesson |
# |---|---|---|---|
# | 40 | condition for sequences to run at the same time: their blocks fit in the pool. The value is the largest number of sequences of $n$ tokens each | $\sum_i \lceil n_i / P \rceil \le N$ | [11a](11a_continuous_batching.ipynb) |
# | 41 | condition for the tokens of one step; $d$: sequences in decode, one token each, $c_j$: tokens of a prompt's chunk, $M$: the most tokens of a step. The value is the number of tokens left for chunks | $d + \sum_j c_j \le M$ | [11a](11a_continuous_batching.ipynb) |
# | 42 | estimate of a step on a real card, in s. $F$, $M$: as in formula 26; $e_\pi$, $e_\beta$: shares of $\pi$ and $\beta$ that a step reaches. $A$: bytes to the other GPUs of the replica, over a link of $\ell$ bytes/s; $o$: seconds of overhead. The value takes the shares and the overhead of `Assumptions()` | $\max(F / (e_\pi \pi), M / (e_\beta \beta)) + A / \ell + o$ | [17](17_a_fleet_on_paper.ipynb) |
# | 43 | mean wait in the queue of one replica, in s. Requests arrive at random, $\lambda$ a second, and each takes $S$ seconds; $\rho = \lambda S$: share of the time in which the replica is busy | $\rho \, S / (2 \, (1 - \rho))$ | [17](17_a_fleet_on_paper.ipynb) |
# | 44 | mean number of requests that wait or are served; $\lambda$: requests a second, $V$: mean seconds from arrival to end | $\lambda \, V$ | [17](17_a_fleet_on_paper.ipynb) |
# | 45 | floor of a load, the least time that any plan needs, in s. $t$: the moment of arrival for which the sum is largest. $C$, $B$, $O$: arithmetic, reading and overhead of the steps for what arrives then or later | $t + \max(C, B) + O$ | [18](18_capstone.ipynb) |
# | 46 | score of a run of $X$ seconds; $Y$: formula 45. It is 0 if too few answers are right or the cache is over its budget | $100 \, Y / X$ | [18](18_capstone.ipynb) |
# %% [markdown] key="fleet" lang="zh" src="a2768969"
# ## 一份负载
#
# | | 算什么 | 公式 | 课 |
# |---|---|---|---|
# | 40 | 哪些序列能同时运行：它们的块数之和不超过块池的块数。值是每条 $n$ 个 token 时，最多能同时运行几条 | $\sum_i \lceil n_i / P \rceil \le N$ | [11a](11a_continuous_batching.ipynb) |
# | 41 | 一步里 token 数的限制：$d$ 条序列在解码，每条一个 token；$c_j$ 是各提示词这一段（chunk）的 token 数；$M$ 是一步的 token 预算。值是还能留给各段的 token 数 | $d + \sum_j c_j \le M$ | [11a](11a_continuous_batching.ipynb) |
# | 42 | 估算真实的卡上一步要多少秒：$F$、$M$ 同公式 26，实际达到的算力和带宽占规格的比例是 $e_\pi$、$e_\beta$；$A$ 是要发给同一副本其他 GPU 的字节，链路速度 $\ell$ 字节/秒；$o$ 是固定开销的秒数。值按 `Assumptions()` 里的比例和开销算 | $\max(F / (e_\pi \pi), M / (e_\beta \beta)) + A / \ell + o$ | [17](17_a_fleet_on_paper.ipynb) |
# | 43 | 一个副本的平均排队时间，秒：请求随机到达，每秒 $\lambda$ 个，每个要算 $S$ 秒；$\rho = \lambda S$ 是副本忙碌的时间占比 | $\rho \, S / (2 \, (1 - \rho))$ | [17](17_a_fleet_on_paper.ipynb) |
# | 44 | 平均有多少个请求在排队或在处理；$\lambda$ 是每秒到达的请求数，$V$ 是每个请求从到达到结束的平均秒数 | $\lambda \, V$ | [17](17_a_fleet_on_paper.ipynb) |
# | 45 | 一份负载的下限，即任何方案都至少要用的时间，各项都以秒计；$t$ 取使总和最大的那个到达时刻，$C$、$B$、$O$ 是此刻及以后到达的请求所需的计算、读取和各步的固定开销 | $t + \max(C, B) + O$ | [18](18_capstone.ipynb) |
# | 46 | 一个方案用时 $X$ 秒的得分；$Y$ 即公式 45。如果答案低于质量门槛，或缓存超出预算，得分就是 0 | $100 \, Y / X$ | [18](18_capstone.ipynb) |

# %% key="fleet_code"
from minikv.course.capstone import floor, tiny_task
from minikv.course.lessons.l17.traffic import md1_wait
from minikv.simulate import StepTime

clock = StepTime.of_model(model, card)
service = clock.seconds(prefill=[(0, context)])
wait, rate = md1_wait(0.8, service), 0.8 / service
bound = floor(tiny_task())
longer = f"max({bound.compute:.4f}, {bound.bandwidth:.4f})"
rows = [
    (40, f"n = {context:,}", budget.max_batch(context)),
    (41, f"M = 2,048, d = {batch}", f"{2_048 - batch:,}"),
    (42, f"{load}, Assumptions()", f"{1e3 * clock.seconds(decode=[context] * batch):.1f} ms"),
    (43, f"rho = 0.8, S = {service:.3f} s", f"{1e3 * wait:.0f} ms"),
    (44, f"lambda = {rate:.2f} /s, V = {wait + service:.2f} s", f"{rate * (wait + service):.1f}"),
    (45, "tiny_task()", f"{bound.since:.4f} + {longer} + {bound.overhead:.4f} = {bound.seconds:.4f} s"),
    (46, "X = 0.5 s", f"{100 * bound.seconds / 0.5:.0f}"),
]
Table(head, rows, right=head[2:])

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | what to look at |
# |---|---|
# | your number is 2, 4 or 8 times this page's, or a half, a quarter, an eighth | `print(spec.explain())`: the heads, the dtype and the layers that were used |
# | the pool comes out negative | `plan_memory(model, gpu=card).parts()`: which term is too large |
# | you don't know what a word means | the [glossary](F_glossary.ipynb): what the word means, and which call computes the thing |
#
# ## In the wild
#
# - [vLLM #29736](https://github.com/vllm-project/vllm/pull/29736): in November 2025 a contributor offered a script for the question above, "using the standard KV sizing formula". It takes `hidden_size` and leaves out GQA. The table below the first code cell shows what that does to Llama-3.1-8B.
# %% [markdown] key="stuck" lang="zh" src="ee574030"
# ## 卡住了怎么办
#
# | 现象 | 看什么 |
# |---|---|
# | 我的数是这一页的 2、4、8 倍，或者二分之一、四分之一、八分之一 | `print(spec.explain("zh"))`：用了多少个头、什么数据类型、多少层 |
# | 块池算出来是负数 | `plan_memory(model, gpu=card).parts()`：哪一项太大 |
# | 不知道某个词的意思 | [术语表](F_glossary.ipynb)，里面有解释，也有对应的调用 |
#
# ## 实战现场
#
# - [vLLM #29736](https://github.com/vllm-project/vllm/pull/29736)：2025 年 11 月，一位贡献者为上面的问题写了一个脚本，用的是“标准的 KV 公式”。它用的是 `hidden_size`，没有考虑 GQA，差多少见第一个代码单元格下面的表。
