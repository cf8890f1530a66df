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
# Take a common question: how much GPU memory will the KV cache of your model use? Many scripts compute it from `num_hidden_layers` and `hidden_size` alone. That formula is older than GQA, so for the model below its answer is too large. The last column of the first table says how many times.
#
# You remember a formula more easily than the meaning of its symbols. So this page has every formula of the course: its symbols with their units, the call that computes it, its value, and the lesson that derives it.
#
# **All values are for one config**: Llama-3.1-8B in bf16 on one H100, blocks of 16 tokens, 32 sequences of 8,192 tokens each. Where a formula needs something else, the column *for* of the values names it, in the symbols of the formula. A formula and its value have the same number. `B` is bytes, and a value without a unit counts what the row of its formula says. To use the page for yourself, put your own model, card and load into the first code cell and run all cells.
#
# The lessons use some letters twice. On this page each of these has one meaning:
#
# | symbol | meaning | unit |
# |---|---|---|
# | $L$ | layers that cache | layers |
# | $H_q$, $H$ | query heads, KV heads | heads a layer |
# | $D$ | elements of a head, `head_dim` | elements |
# | $s$ | size of a cached element (bf16: 2) | bytes |
# | $k$ | K and V of one token, in all layers | bytes a token |
# | $n$, $n_i$ | tokens of a sequence, of sequence $i$ | tokens |
# | $b$ | sequences in a batch | sequences |
# | $P$, $N$ | block size; blocks of the pool | tokens a block; blocks |
# | $W$ | weights that a step reads | bytes |
# | $\beta$, $\pi$ | bandwidth and FLOP rate | bytes/s, FLOP/s |
#
# Any other letter is explained in the row of its formula and holds only there. For the words there is the [glossary](F_glossary.ipynb).
# %% [markdown] key="question" lang="zh" src="31efa96b"
# ## 问题
#
# **该用哪个公式，符号各指什么，用哪个调用来算？**
#
# 例如一个常见的问题：我的模型，KV 缓存要占多少显存？很多脚本只用 `num_hidden_layers` 和 `hidden_size` 来算，可那个公式比 GQA 还老，用在下面这个模型上结果偏大，大几倍见第一张表的最后一列。
#
# 公式好记，符号指什么却容易忘。所以这一页收齐了全课程的公式：符号和单位、算它的调用、算出的值，以及推导它的那一课。
#
# **从头到尾用同一个配置**：一块 H100 上的 Llama-3.1-8B，bf16，块大小 16，32 条序列，每条 8,192 个 token。需要别的配置时，数值表的“条件”一列会用公式里的符号写明。公式和它的值序号相同。`B` 是字节；没有单位的值，数的是什么，看公式那一行。想换成自己的数，只要在第一个代码单元格里填上你的模型、显卡和负载，再全部重跑一遍。
#
# 各课的字母有重复。在这一页上，下面这些字母各只有一个意思：
#
# | 符号 | 含义 | 单位 |
# |---|---|---|
# | $L$ | 有缓存的层数 | 层 |
# | $H_q$、$H$ | query 头数、KV 头数 | 头 / 层 |
# | $D$ | 一个头的元素数，即头维度（`head_dim`） | 元素 |
# | $s$ | 缓存里一个元素的大小（bf16 为 2） | 字节 |
# | $k$ | 一个 token 在所有层的 K 和 V | 字节 / token |
# | $n$、$n_i$ | 一条序列（第 $i$ 条）的 token 数 | token |
# | $b$ | 一个 batch 的序列数 | 条 |
# | $P$、$N$ | 块大小；块池的块数 | token / 块；块 |
# | $W$ | 一步要读的权重 | 字节 |
# | $\beta$、$\pi$ | 带宽、算力 | 字节/秒、FLOP/秒 |
#
# 其他字母在公式所在的那一行说明，也只在那一行有效。词义见[术语表](F_glossary.ipynb)。

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
# | 1 | a token | $k = 2 \, L \, H \, D \, s$ | [02](02_how_many_bytes.ipynb) |
# | 2 | the same, each row with a scale of $z$ bytes | $k = 2 \, L \, H \, (D \, s + z)$ | [13](13_half_the_bytes.ipynb) |
# | 3 | the same, on each of $t$ ranks | $k_t = 2 \, L \, \max(1, H / t) \, D \, s$ | [12](12_beyond_one_gpu.ipynb) |
# | 4 | MLA, latent: $c$ elements of latent, $r$ of rope key | $k = L \, (c + r) \, s$ | [03](03_the_2_86x_mistake.ipynb) |
# | 5 | MLA, expanded: $d$ elements of K without position, $v$ of V, a head | $k = L \, H_q \, (d + r + v) \, s$ | [03](03_the_2_86x_mistake.ipynb) |
# | 6 | a sequence, layer $l$ with a window of $w_l$ tokens ($\infty$: none) | $\sum_l \min(n, w_l - 1) \cdot 2 \, H \, D \, s$ | [02b](02b_layers_that_differ.ipynb) |
#
# Lines 1 to 5 are in bytes a token, line 6 is in bytes.
# %% [markdown] key="bytes" lang="zh" src="7ffb134c"
# ## 一个 token 的字节
#
# | | 算什么 | 公式 | 课 |
# |---|---|---|---|
# | 1 | 一个 token | $k = 2 \, L \, H \, D \, s$ | [02](02_how_many_bytes.ipynb) |
# | 2 | 每行另带 $z$ 字节的缩放因子 | $k = 2 \, L \, H \, (D \, s + z)$ | [13](13_half_the_bytes.ipynb) |
# | 3 | 分到 $t$ 个 rank，每个 rank 上 | $k_t = 2 \, L \, \max(1, H / t) \, D \, s$ | [12](12_beyond_one_gpu.ipynb) |
# | 4 | MLA，存潜在向量（latent）：潜在向量 $c$ 个元素，rope key $r$ 个 | $k = L \, (c + r) \, s$ | [03](03_the_2_86x_mistake.ipynb) |
# | 5 | MLA，展开：每个头的 K 不含位置的部分 $d$ 个元素，V $v$ 个 | $k = L \, H_q \, (d + r + v) \, s$ | [03](03_the_2_86x_mistake.ipynb) |
# | 6 | 一条序列，第 $l$ 层的窗口为 $w_l$ 个 token（没有窗口则为 $\infty$） | $\sum_l \min(n, w_l - 1) \cdot 2 \, H \, D \, s$ | [02b](02b_layers_that_differ.ipynb) |
#
# 第 1 到 5 行的单位是字节 / token，第 6 行是字节。

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
# | 7 | blocks of a sequence, in blocks; its empty slots, in tokens | $\lceil n / P \rceil$ and $\lceil n / P \rceil P - n$ | [00](00_start_here.ipynb) |
# | 8 | slot of the token at position $i$ (from 0), with the block table $\text{table}$ | $\text{table}[\lfloor i / P \rfloor] \cdot P + i \bmod P$ | [09](09_pages_and_blocks.ipynb) |
# | 9 | byte of the element $(i_1, \dots)$ of a tensor: offset $o$ and strides $t_j$ in elements | $s \, (o + \sum_j i_j \, t_j)$ | [05](05_owned_and_borrowed.ipynb), [06](06_the_linear_cache.ipynb) |
# | 10 | bytes that a view keeps alive in addition to its own; $S$: its storage, $U$: the bytes that it touches | $S - U$ | [05](05_owned_and_borrowed.ipynb) |
# | 11 | bytes wasted with $b$ rows of $M$ tokens each | $(b \, M - \sum_i n_i) \, k$ | [06](06_the_linear_cache.ipynb) |
# | 12 | bytes wasted with blocks | $\sum_i (\lceil n_i / P \rceil P - n_i) \, k$ | [06](06_the_linear_cache.ipynb) |
# | 13 | reference count of block $j$, in holders; it is free where the sum is 0 | $\sum_i [\, j \in \text{table}_i \,]$ | [09](09_pages_and_blocks.ipynb), [B](B_bug_museum.ipynb) |
# %% [markdown] key="blocks" lang="zh" src="905681e3"
# ## 块与地址
#
# | | 算什么 | 公式 | 课 |
# |---|---|---|---|
# | 7 | 一条序列的块数（块），以及空槽位（token） | $\lceil n / P \rceil$，$\lceil n / P \rceil P - n$ | [00](00_start_here.ipynb) |
# | 8 | 位置 $i$（从 0 数）的 token 在哪个槽位，$\text{table}$ 是块表 | $\text{table}[\lfloor i / P \rfloor] \cdot P + i \bmod P$ | [09](09_pages_and_blocks.ipynb) |
# | 9 | 张量的元素 $(i_1, \dots)$ 在第几个字节：偏移 $o$ 和步幅 $t_j$ 以元素计 | $s \, (o + \sum_j i_j \, t_j)$ | [05](05_owned_and_borrowed.ipynb)、[06](06_the_linear_cache.ipynb) |
# | 10 | 视图在自身之外连带占住多少：$S$ 是存储，$U$ 是它碰到的字节 | $S - U$ | [05](05_owned_and_borrowed.ipynb) |
# | 11 | $b$ 行、每行预留 $M$ 个 token，浪费的字节 | $(b \, M - \sum_i n_i) \, k$ | [06](06_the_linear_cache.ipynb) |
# | 12 | 分块时浪费的字节 | $\sum_i (\lceil n_i / P \rceil P - n_i) \, k$ | [06](06_the_linear_cache.ipynb) |
# | 13 | 块 $j$ 的引用计数（有几个持有者），为 0 即空闲 | $\sum_i [\, j \in \text{table}_i \,]$ | [09](09_pages_and_blocks.ipynb)、[B](B_bug_museum.ipynb) |

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
# | 14 | bytes for the pool: all memory $T$, share $u$, taken $o$, peak and current of torch's allocator $p$ and $c$, all in bytes | $\lfloor T \, u \rfloor - o - p + c$ | [08](08_allocate_kv_cache.ipynb) |
# | 15 | its blocks, $A$ being line 14 | $N = \lfloor A / (P \, k) \rfloor$ | [08](08_allocate_kv_cache.ipynb) |
# | 16 | the pool with the same share $f$ in minikv, vLLM, SGLang and TensorRT-LLM, in this order; all in bytes: $T$ as above, $o$ taken before loading, $w$ weights, $a$ activations | $fT - o - w - a$, $\;fT - w - a$, $\;f(T - o) - w$, $\;f(T - o - w - a)$ | [D](D_other_engines.ipynb) |
# | 17 | bytes read and written when a cache grows by joining, for $g$ tokens after a prompt of $n$ | $b \, k \, g \, (2n + g + 1)$ | [07](07_allocate_once.ipynb) |
# | 18 | the same, written to slots | $2 \, b \, k \, g$ | [07](07_allocate_once.ipynb) |
# | 19 | what torch's allocator gives for a request of $x$ bytes; a segment for it | $512 \lceil x / 512 \rceil$; 2 MiB up to 1 MiB, 20 MiB below 10 MiB, then in steps of 2 MiB | [07](07_allocate_once.ipynb) |
# | 20 | bytes used on the GPU $G$, with allocated $A$, pinned $Q$, reserved $R$: live, pinned, returnable, outside torch | $G = A + Q + (R - A - Q) + (G - R)$ | [16](16_where_did_6gb_go.ipynb) |
# %% [markdown] key="memory" lang="zh" src="51ac1ff1"
# ## 一块 GPU 的显存
#
# | | 算什么 | 公式 | 课 |
# |---|---|---|---|
# | 14 | 块池的字节数。除比例 $u$ 外，各项也以字节计：全部显存 $T$，已占用 $o$，torch 分配器的峰值 $p$ 和当前值 $c$ | $\lfloor T \, u \rfloor - o - p + c$ | [08](08_allocate_kv_cache.ipynb) |
# | 15 | 块数，$A$ 是第 14 行的结果 | $N = \lfloor A / (P \, k) \rfloor$ | [08](08_allocate_kv_cache.ipynb) |
# | 16 | 同样的比例 $f$，各引擎的块池有多大，依次为 minikv、vLLM、SGLang、TensorRT-LLM；以字节计，$T$ 同上，$o$ 加载前已占用，$w$ 权重，$a$ 激活 | $fT - o - w - a$，$fT - w - a$，$f(T - o) - w$，$f(T - o - w - a)$ | [D](D_other_engines.ipynb) |
# | 17 | 靠拼接增长的缓存，提示词 $n$ 个 token 之后再来 $g$ 个，读写的字节 | $b \, k \, g \, (2n + g + 1)$ | [07](07_allocate_once.ipynb) |
# | 18 | 同样的 token，写入槽位 | $2 \, b \, k \, g$ | [07](07_allocate_once.ipynb) |
# | 19 | 申请 $x$ 字节，torch 的分配器给多少；为它开的段多大 | $512 \lceil x / 512 \rceil$；1 MiB 以内开 2 MiB，不到 10 MiB 开 20 MiB，再大则取 2 MiB 的整数倍 | [07](07_allocate_once.ipynb) |
# | 20 | GPU 上的总占用 $G$，字节；已分配 $A$，被钉住 $Q$，已保留 $R$。四项依次是：存活、被钉住、可归还、torch 之外 | $G = A + Q + (R - A - Q) + (G - R)$ | [16](16_where_did_6gb_go.ipynb) |

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
# | 21 | FLOPs of a token with the weights; $h$: `hidden_size`, $m$: `intermediate_size` | $2 L \, (h \, (2 H_q + 2 H) \, D + 3 \, h \, m)$ | [01](01_why_a_cache.ipynb) |
# | 22 | FLOPs of a query token with one cached token | $4 \, L \, H_q \, D$ | [01](01_why_a_cache.ipynb) |
# | 23 | tokens from which attention costs more than the weights | $\lfloor p / a \rfloor + 1$, with $p$ of line 21 and $a$ of line 22 | [01](01_why_a_cache.ipynb) |
# | 24 | the ridge point, in FLOP a byte | $\pi / \beta$ | [04](04_the_roofline.ipynb) |
# | 25 | intensity of a decode step, in FLOP a byte; $a$ as in line 22, $f$: line 21 and the output layer | $b \, (f + n \, a) / (W + b \, n \, k)$ | [04](04_the_roofline.ipynb) |
# | 26 | its least time, in s; $F$: FLOPs, $M$: bytes of the step | $\max(F / \pi, M / \beta)$ | [04](04_the_roofline.ipynb) |
# | 27 | tokens a second, $x$ and $y$ in seconds: what a step costs, and what each sequence adds | $b / (x + y \, b)$ | [11a](11a_continuous_batching.ipynb) |
# | 28 | bytes that attention moves in one layer: K and V, queries and results, block tables | $2 H D s \sum n_i + 2 \, b \, H_q D s + 4 \sum \lceil n_i / P \rceil$ | [10](10_kernels.ipynb) |
# | 29 | attention; $M$ is 0 or $-\infty$ | $\text{softmax}(Q K^{\top} / \sqrt{D} + M) \, V$ | [01](01_why_a_cache.ipynb) |
# | 30 | the same from parts $j$: of each the logarithm $\ell_j$ of its softmax's sum, and its result $\text{out}_j$ | $\ell = \ln \sum_j e^{\ell_j}$, out $= \sum_j e^{\ell_j - \ell} \, \text{out}_j$ | [10](10_kernels.ipynb) |
# | 31 | swap a sequence out and in, in s; rates $r$ in bytes/s | $n \, k / r_\text{out} + n \, k / r_\text{in}$ | [12](12_beyond_one_gpu.ipynb) |
# | 32 | compute it again, in s; $v$ tokens/s | $n / v$ | [12](12_beyond_one_gpu.ipynb) |
# | 33 | prefill speed at which both take as long, in tokens/s | $1 / (k / r_\text{out} + k / r_\text{in})$ | [12](12_beyond_one_gpu.ipynb) |
# %% [markdown] key="time" lang="zh" src="73448098"
# ## 一步的时间
#
# | | 算什么 | 公式 | 课 |
# |---|---|---|---|
# | 21 | 一个 token 与权重运算的 FLOP；$h$ 是 `hidden_size`，$m$ 是 `intermediate_size` | $2 L \, (h \, (2 H_q + 2 H) \, D + 3 \, h \, m)$ | [01](01_why_a_cache.ipynb) |
# | 22 | 一个 query token 与一个缓存 token 运算的 FLOP | $4 \, L \, H_q \, D$ | [01](01_why_a_cache.ipynb) |
# | 23 | 从多少个 token 起，注意力比权重更费算力 | $\lfloor p / a \rfloor + 1$，$p$、$a$ 即第 21、22 行 | [01](01_why_a_cache.ipynb) |
# | 24 | 拐点（ridge point），FLOP/字节 | $\pi / \beta$ | [04](04_the_roofline.ipynb) |
# | 25 | 一步解码的算术强度，FLOP/字节；$a$ 即第 22 行，$f$ 是第 21 行再加输出层 | $b \, (f + n \, a) / (W + b \, n \, k)$ | [04](04_the_roofline.ipynb) |
# | 26 | 这一步至少要多少秒；$F$、$M$ 是这一步的 FLOP 和字节 | $\max(F / \pi, M / \beta)$ | [04](04_the_roofline.ipynb) |
# | 27 | 每秒的 token 数；$x$ 是一步的固定开销，$y$ 是每多一条序列的开销，单位都是秒 | $b / (x + y \, b)$ | [11a](11a_continuous_batching.ipynb) |
# | 28 | 一层注意力要搬的字节：K 和 V，query 和结果，块表 | $2 H D s \sum n_i + 2 \, b \, H_q D s + 4 \sum \lceil n_i / P \rceil$ | [10](10_kernels.ipynb) |
# | 29 | 注意力；$M$ 的元素是 0 或 $-\infty$ | $\text{softmax}(Q K^{\top} / \sqrt{D} + M) \, V$ | [01](01_why_a_cache.ipynb) |
# | 30 | 分成几份来算，第 $j$ 份各有 softmax 分母的对数 $\ell_j$ 和结果 $\text{out}_j$ | $\ell = \ln \sum_j e^{\ell_j}$，out $= \sum_j e^{\ell_j - \ell} \, \text{out}_j$ | [10](10_kernels.ipynb) |
# | 31 | 把一条序列换出再换入，秒；$r$ 是速度，字节/秒 | $n \, k / r_\text{out} + n \, k / r_\text{in}$ | [12](12_beyond_one_gpu.ipynb) |
# | 32 | 重新计算它，秒；每秒 $v$ 个 token | $n / v$ | [12](12_beyond_one_gpu.ipynb) |
# | 33 | 预填充快到多少，两者一样久，token/秒 | $1 / (k / r_\text{out} + k / r_\text{in})$ | [12](12_beyond_one_gpu.ipynb) |

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
# | 34 | capacity of a layer, in tokens: sinks, budget $q$, recent tokens | $C = n_\text{sink} + q + n_\text{recent}$ | [14](14_what_to_forget.ipynb) |
# | 35 | the most tokens that it holds between two steps, if it evicts after every $e$ steps | $C + e - 1$ | [14](14_what_to_forget.ipynb) |
# | 36 | attention $p$ of query head $g$ at token $t$ to token $i$, summed for a KV head that $G$ query heads read, over all tokens | $\sum_i \sum_{t \ge i} \sum_g p_{g,t,i} = G \, n$ | [14](14_what_to_forget.ipynb) |
# | 37 | bytes that an eviction gives back to the pool | $(\lceil n / P \rceil - \lceil C / P \rceil) \, P \, k$ | [15](15_eviction_on_mla.ipynb) |
# | 38 | tokens from which the cache is over half of what a step reads | $W / (b \, k)$ | [15](15_eviction_on_mla.ipynb) |
# | 39 | share of texts of $n$ tokens that stay the same, if each token changes with probability $p$ | $(1 - p)^n \approx e^{-n p}$ | [13](13_half_the_bytes.ipynb) |
# %% [markdown] key="fewer" lang="zh" src="b97e0959"
# ## 少留一些 token
#
# | | 算什么 | 公式 | 课 |
# |---|---|---|---|
# | 34 | 一层的容量，单位 token：汇点、预算 $q$、近期 token | $C = n_\text{sink} + q + n_\text{recent}$ | [14](14_what_to_forget.ipynb) |
# | 35 | 每 $e$ 步淘汰一次时，这一层最多会留有多少个 token | $C + e - 1$ | [14](14_what_to_forget.ipynb) |
# | 36 | $p_{g,t,i}$ 是 query 头 $g$ 在 token $t$ 处给 token $i$ 的注意力；一个 KV 头有 $G$ 个 query 头来读，累加到全部 token 上 | $\sum_i \sum_{t \ge i} \sum_g p_{g,t,i} = G \, n$ | [14](14_what_to_forget.ipynb) |
# | 37 | 一次淘汰归还块池的字节 | $(\lceil n / P \rceil - \lceil C / P \rceil) \, P \, k$ | [15](15_eviction_on_mla.ipynb) |
# | 38 | 从多少个 token 起，一步读的字节里缓存过半 | $W / (b \, k)$ | [15](15_eviction_on_mla.ipynb) |
# | 39 | 每个 token 以概率 $p$ 变样，$n$ 个 token 的文本有多大比例完全不变 | $(1 - p)^n \approx e^{-n p}$ | [13](13_half_the_bytes.ipynb) |

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
# | 40 | which sequences may run at once: their blocks have to fit in the pool. The value is the most of $n$ tokens each | $\sum_i \lceil n_i / P \rceil \le N$ | [11a](11a_continuous_batching.ipynb) |
# | 41 | the tokens of one step: $d$ decodes, chunks of $c_j$ tokens, budget $M$. The value is what is left for chunks | $d + \sum_j c_j \le M$ | [11a](11a_continuous_batching.ipynb) |
# | 42 | a step on a real card, in s: line 26 with the shares $e_\pi$, $e_\beta$ that are reached, $A$ bytes over a link of $\ell$ bytes/s, $o$ s of overhead | $\max(F / (e_\pi \pi), M / (e_\beta \beta)) + A / \ell + o$ | [17](17_a_fleet_on_paper.ipynb) |
# | 43 | mean wait in s if arrivals are random, at utilisation $\rho = \lambda S$: $\lambda$ requests a second, $S$ seconds each | $\rho \, S / (2 \, (1 - \rho))$ | [17](17_a_fleet_on_paper.ipynb) |
# | 44 | requests in the system; $V$: seconds that each spends there | $\lambda \, V$ | [17](17_a_fleet_on_paper.ipynb) |
# | 45 | floor of a load, all in s: last arrivals at $t$, then arithmetic $C$ or reading $B$, whichever is longer, and the overhead $O$ of the steps | $t + \max(C, B) + O$ | [18](18_capstone.ipynb) |
# | 46 | score of a run of $X$ seconds, $Y$ of line 45; 0 below the bar or over the budget | $100 \, Y / X$ | [18](18_capstone.ipynb) |
# %% [markdown] key="fleet" lang="zh" src="5ec8b470"
# ## 一份负载
#
# | | 算什么 | 公式 | 课 |
# |---|---|---|---|
# | 40 | 哪些序列能同时运行：它们的块加起来不超过块池。值是各有 $n$ 个 token 时的最多条数 | $\sum_i \lceil n_i / P \rceil \le N$ | [11a](11a_continuous_batching.ipynb) |
# | 41 | 一步的 token：$d$ 条解码，各段 $c_j$ 个 token，预算 $M$。值是还能留给各段的 token | $d + \sum_j c_j \le M$ | [11a](11a_continuous_batching.ipynb) |
# | 42 | 真实的卡上一步要多少秒：即第 26 行，算力和带宽各只达到 $e_\pi$、$e_\beta$；另有 $A$ 字节走 $\ell$ 字节/秒的链路，固定开销 $o$ 秒 | $\max(F / (e_\pi \pi), M / (e_\beta \beta)) + A / \ell + o$ | [17](17_a_fleet_on_paper.ipynb) |
# | 43 | 到达随机时的平均排队时间，秒；利用率 $\rho = \lambda S$：每秒 $\lambda$ 个请求，每个 $S$ 秒 | $\rho \, S / (2 \, (1 - \rho))$ | [17](17_a_fleet_on_paper.ipynb) |
# | 44 | 系统里有多少请求；$V$ 是每个停留的秒数 | $\lambda \, V$ | [17](17_a_fleet_on_paper.ipynb) |
# | 45 | 一份负载的下限，都以秒计：最后一批在 $t$ 到达，之后是计算 $C$ 与读取 $B$ 中较长的一个，再加各步的固定开销 $O$ | $t + \max(C, B) + O$ | [18](18_capstone.ipynb) |
# | 46 | 得分：用了 $X$ 秒，$Y$ 即第 45 行；低于质量门槛或超出预算则为 0 | $100 \, Y / X$ | [18](18_capstone.ipynb) |

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
# | symptom | the command that decides |
# |---|---|
# | your number is a power of two away from the page's | `print(spec.explain())`: the heads, the dtype and the layers that were used |
# | the pool comes out negative | `plan_memory(model, gpu=card).parts()`: which term is too large |
# | you don't know what a word means | the [glossary](F_glossary.ipynb), with the call that computes it |
#
# ## In the wild
#
# - [vLLM #29736](https://github.com/vllm-project/vllm/pull/29736): in November 2025 a contributor offered a script for the question above, "using the standard KV sizing formula". It takes `hidden_size` and leaves out GQA, as the first table shows.
# %% [markdown] key="stuck" lang="zh" src="62356146"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 我的数和这一页差 2 的幂次倍 | `print(spec.explain("zh"))`：用了多少个头、什么数据类型、多少层 |
# | 块池算出来是负数 | `plan_memory(model, gpu=card).parts()`：哪一项太大 |
# | 不知道某个词的意思 | [术语表](F_glossary.ipynb)，附有算它的调用 |
#
# ## 实战现场
#
# - [vLLM #29736](https://github.com/vllm-project/vllm/pull/29736)：2025 年 11 月，一位贡献者为上面的问题写了一个脚本，用的是“标准的 KV 公式”。它用的是 `hidden_size`，没有考虑 GQA，差多少见第一张表。
