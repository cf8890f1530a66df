# %% [meta]
# number = "12"
# slug = "beyond_one_gpu"
# needs = ["02b", "03", "09", "11b"]
# rooms = ["engine.ext.tensor_parallel", "cache.offload", "plan.preemption"]
# [title]
# en = "What does each GPU keep?"
# zh = "每块 GPU 各存什么？"
# [t4]
# en = "A T4 is one GPU, so the two ranks of this lesson compute on the CPU there; the transfers and the prefill are measured on the T4."
# zh = "T4 只有一块，所以本课的两个 rank 在 CPU 上计算；传输和预填充则在 T4 上实测。"
# [paper]
# en = "12.1, 12.2, 12.3, 12.4"
# zh = "12.1、12.2、12.3、12.4"

# %% [markdown] key="question" lang="en"
# ## The question
#
# You have eight GPUs and cut a model into eight parts. Does each GPU keep an eighth of the KV cache?
#
# A **rank** is one of the processes that share a model, with a GPU of its own. **Tensor parallelism** (TP) cuts the weight matrices into as many parts as there are ranks.
# What each rank then caches for a token depends on the model. Here are three models:
# %% [markdown] key="question" lang="zh" src="24cb239b"
# ## 问题
#
# 你有八块 GPU，把模型切成八份。每块 GPU 是不是只存八分之一的 KV 缓存？
#
# 几个进程共用一个模型时，每个进程叫作一个 **rank**，各有自己的 GPU。**张量并行**（TP）按 rank 数把权重矩阵切成几份。
# 这时每个 rank 为一个 token 缓存多少，取决于模型。下面是三个模型：

# %% key="first"
from minikv.course.diagrams import rank_caches

models = ("Llama-3.1-70B", "Qwen3-30B-A3B", "DeepSeek-V3")
show(rank_caches({model: model for model in models}, 8, t("lang")))

# %% [markdown] key="answer_read" lang="en"
# Each GPU keeps an eighth of Llama's cache. Each of Qwen3's heads lies on two GPUs. Of DeepSeek's latents each GPU keeps **all**: eight GPUs hold eight copies of the same bytes.
#
# You can see the price when an engine starts. On eight B200s and a newer model with latents, vLLM had room for 20.43 requests of a million tokens with tensor parallelism. With data parallelism it had room for 156.9.
# **Where do seven eighths of the room go with tensor parallelism? And why is the factor 7.7 and not 8?**
#
# After this lesson you can:
#
# - **say** which part of a cache a rank keeps, for KV heads and for latents, and how often it is copied;
# - **compare** tensor parallelism with data-parallel attention, in tokens;
# - **decide** whether to swap a preempted sequence to CPU memory or to compute it again.
#
# You need MLA's latent from [lesson 03](03_the_2_86x_mistake.ipynb) and preemption from [lesson 11b](11b_when_blocks_run_out.ipynb).
# %% [markdown] key="answer_read" lang="zh" src="2b4a2baf"
# Llama 的缓存，每块 GPU 只放八分之一；Qwen3 的每个头放在两块 GPU 上；DeepSeek 的潜在向量（latent），每块 GPU 都放**全部**，也就是同样的字节存了八份。
#
# 引擎启动时就能看到代价。例如在八块 B200 上运行一个新模型，它同样存潜在向量，每个请求有一百万个 token。张量并行时，vLLM 算出能同时放下 20.43 个请求；数据并行时是 156.9 个。
# **张量并行时少掉的八分之七去了哪里？为什么是 7.7 倍，而不是整 8 倍？**
#
# 学完本课，你能够：
#
# - **说出**一个 rank 存缓存的哪一部分（KV 头或潜在向量），以及一共存了几份；
# - 按放得下的 token 数**比较**张量并行和数据并行注意力；
# - **决定**被抢占的序列是换出到 CPU 内存，还是重新计算。
#
# 预备知识：[第 03 课](03_the_2_86x_mistake.ipynb)的潜在向量，[第 11b 课](11b_when_blocks_run_out.ipynb)的抢占。

# %% key="predict_rank"
predict("rank_bytes", ...)

# %% [markdown] key="formula" lang="en"
# ## Heads can be divided
#
# Attention is computed head by head, and no head needs anything from another. So each rank takes some of the query heads, and keeps the K and V that these read.
# With 4 KV heads on 2 ranks, each rank keeps 2 heads. On 8 ranks a rank can't keep half a head, so it keeps 1, and each head has 2 copies:
# %% [markdown] key="formula" lang="zh" src="02fe197b"
# ## 头可以分
#
# 注意力按头计算，头与头之间互不依赖。所以每个 rank 负责一部分 query 头，只存这些头要读的 K 和 V。
# 例如有 4 个 KV 头。2 个 rank 时，每个 rank 存 2 个头；8 个 rank 时，不可能存半个头，所以每个 rank 存 1 个，而每个头就有了 2 份：

# %% [markdown] key="formula_math"
# $$\text{heads}_{\text{rank}} = \max\!\left(1, \frac{H_{kv}}{t}\right) \qquad\quad \text{bytes}_{\text{rank}} = 2 \cdot L \cdot \text{heads}_{\text{rank}} \cdot D \cdot b \qquad\quad \text{copies} = \frac{t \cdot \text{heads}_{\text{rank}}}{H_{kv}}$$

# %% [markdown] key="symbols" lang="en"
# | symbol | meaning | unit | value here: Qwen3-30B-A3B on 8 ranks |
# |---|---|---|---|
# | $H_{kv}$ | KV heads of the model | heads | 4 |
# | $t$ | ranks, `tp` | ranks | 8 |
# | $L$ | layers | layers | 48 |
# | $D$ | `head_dim` | elements | 128 |
# | $b$ | size of an element | bytes | bf16: 2 |
# | $\text{heads}_{\text{rank}}$ | KV heads on one rank | heads | 1 |
# | $\text{bytes}_{\text{rank}}$ | one token in the cache of one rank | bytes | 24,576 |
# | copies | how often each head is stored on all ranks | | 2 |
#
# With the numbers put in: $\max(1, 4 / 8) = 1$ head, $2 \cdot 48 \cdot 1 \cdot 128 \cdot 2 = 24{,}576$ B, and $8 \cdot 1 / 4 = 2$ copies.
# ($t$ has to divide $H_{kv}$, or $H_{kv}$ has to divide $t$. minikv refuses anything else.)
#
# MLA has no $H_{kv}$ to divide. A rank keeps $L \cdot (d_c + d_r) \cdot b$ bytes, whatever $t$ is, where $d_c$ counts the elements of the latent and $d_r$ those of the rope key ([lesson 03](03_the_2_86x_mistake.ipynb)). For DeepSeek-V3 that is $61 \cdot (512 + 64) \cdot 2 = 70{,}272$ B.
# The next cell computes both for more models and ranks:
# %% [markdown] key="symbols" lang="zh" src="6a1472f8"
# | 符号 | 含义 | 单位 | 本例取值：8 个 rank 上的 Qwen3-30B-A3B |
# |---|---|---|---|
# | $H_{kv}$ | 模型的 KV 头数 | 头 | 4 |
# | $t$ | rank 数，即 `tp` | rank | 8 |
# | $L$ | 层数 | 层 | 48 |
# | $D$ | 头维度 `head_dim` | 元素 | 128 |
# | $b$ | 一个元素的大小 | 字节 | bf16：2 |
# | $\text{heads}_{\text{rank}}$ | 一个 rank 上的 KV 头数 | 头 | 1 |
# | $\text{bytes}_{\text{rank}}$ | 一个 token 在一个 rank 的缓存里占多少 | 字节 | 24,576 |
# | copies | 所有 rank 合起来，每个头存了几份 | | 2 |
#
# 代入数字：$\max(1, 4 / 8) = 1$ 个头，$2 \cdot 48 \cdot 1 \cdot 128 \cdot 2 = 24{,}576$ 字节，$8 \cdot 1 / 4 = 2$ 份。
# （要么 $t$ 整除 $H_{kv}$，要么 $H_{kv}$ 整除 $t$；其余情况 minikv 一律拒绝。）
#
# MLA 没有 $H_{kv}$ 可除。不管 $t$ 是多少，一个 rank 都要存 $L \cdot (d_c + d_r) \cdot b$ 字节，其中 $d_c$ 是潜在向量的元素数，$d_r$ 是 rope key 的元素数（[第 03 课](03_the_2_86x_mistake.ipynb)）。DeepSeek-V3 就是 $61 \cdot (512 + 64) \cdot 2 = 70{,}272$ 字节。
# 下一个单元格对更多的模型和 rank 数算出这两种情形：

# %% key="cut" lang="en"
from minikv.course import Table
from minikv.plan import CacheSpec

sizes, rows = (1, 2, 4, 8, 16), []
for model in ("Llama-2-7B", "Llama-3.1-70B", "Qwen3-30B-A3B", "DeepSeek-V3"):
    whole = CacheSpec.from_config(model).bytes_for(1)
    ranks = [CacheSpec.from_config(model, tp=tp).bytes_for(1) for tp in sizes]
    rows.append((model, *(f"{rank:,} (x{tp * rank // whole})" for tp, rank in zip(sizes, ranks))))
head = ["model", *(f"tp={tp}" for tp in sizes)]
Table(head, rows, title="Bytes of a token on one rank (x: copies on all ranks)", right=head[1:])

# %% key="cut" lang="zh"
from minikv.course import Table
from minikv.plan import CacheSpec

sizes, rows = (1, 2, 4, 8, 16), []
for model in ("Llama-2-7B", "Llama-3.1-70B", "Qwen3-30B-A3B", "DeepSeek-V3"):
    whole = CacheSpec.from_config(model).bytes_for(1)
    ranks = [CacheSpec.from_config(model, tp=tp).bytes_for(1) for tp in sizes]
    rows.append((model, *(f"{rank:,} (x{tp * rank // whole})" for tp, rank in zip(sizes, ranks))))
head = ["模型", *(f"tp={tp}" for tp in sizes)]
Table(head, rows, title="一个 token 在一个 rank 上的字节数（x：所有 rank 上的份数）", right=head[1:])

# %% [markdown] key="cut_read" lang="en"
# The table has three cases:
#
# - **As many KV heads as ranks, or more.** The cache is cut, and there is one copy of it (`x1`). With twice the GPUs, a token takes half as much on each.
# - **More ranks than KV heads.** A head can't be cut, because a query needs the whole of its key. So it is *copied*: with 4 KV heads on 8 ranks, two neighbours keep the same head. From here on a token takes the same on every GPU, however many you add.
# - **Latents.** They are copied from the second rank on.
#
# The second case is easy to forget, because `heads // tp` is 0 there. `minikv.models.load` handles it by repeating the weights of K and V.
# (In exercise 12.1 you compute which heads lie on which rank.)
#
# ## Two real processes
#
# A plan is only a claim, so we test it. The next cell starts two processes with `torchrun`. Each loads its part of three small models and makes its own cache.
# One model has 2 KV heads, one has a single head, and one keeps latents. Rank 1 gets less room than rank 0, as if another program used its GPU.
# (This takes some 10 to 20 seconds, because each process imports torch and transformers. In a terminal you would run `torchrun --nproc-per-node 2 -m minikv generate "..."`, and in a script `LLM(..., tp="auto")`.)
# %% [markdown] key="cut_read" lang="zh" src="8d749a82"
# 表里有三种情形：
#
# - **KV 头数不少于 rank 数**：缓存被切分，总共只有一份（表中的 `x1`）。GPU 加倍，一个 token 在每块上只占一半。
# - **rank 比 KV 头多**：一个头不能再切，因为 query 需要完整的 key，所以只能**复制**。例如 4 个 KV 头放到 8 个 rank 上，相邻的两个 rank 存同一个头。从这里开始，不管再加多少块 GPU，一个 token 在每块上占的都一样多。
# - **潜在向量**：从第二个 rank 起就是复制。
#
# 第二种最容易忘，因为这时 `heads // tp` 等于 0。`minikv.models.load` 的处理办法是把 K 和 V 的权重复制几份。
# （练习 12.1 就是写出哪些头在哪个 rank 上。）
#
# ## 两个真正的进程
#
# 计划只是纸面上的结论，要实测才算数。下一个单元格用 `torchrun` 启动两个进程，各自加载三个小模型中属于自己的部分，各自建缓存。
# 三个模型分别有 2 个 KV 头、1 个 KV 头和潜在向量。rank 1 得到的空间比 rank 0 少，就像它的 GPU 上还有另一个程序。
# （需要 10 到 20 秒，因为两个进程各自都要导入 torch 和 transformers。在终端里，同样的事写作 `torchrun --nproc-per-node 2 -m minikv generate "..."`；在自己的脚本里，是 `LLM(..., tp="auto")`。）

# %% key="shards" tags="hardware"
from tempfile import TemporaryDirectory

from minikv.course.lessons.l12.shards import answer, measure_shards, save_one_head
from minikv.errors import MiniKVError

folder = TemporaryDirectory()
save_one_head(folder.name)
models = {"GQA": "tiny-gqa", "MQA": folder.name, "MLA": "tiny-mla"}
try:
    shards = dict(zip(models, measure_shards(*models.values())))
except MiniKVError as error:
    shards = {}
    print(t(error))

# %% key="shards_table" tags="hardware" lang="en"
import torch

from minikv import LLM
from minikv.models import load

rows, lines = [], []
for name, found in shards.items():
    loaded = load(models[name], device=found.ranks[0].device.partition(":")[0])
    spec = CacheSpec.from_config(loaded.model.config, tp=2, kv_dtype=found.kv_dtype)
    for rank, each in enumerate(found.ranks):
        sizes = (each.own_blocks, each.num_blocks, spec.block_bytes(16) * each.num_blocks, each.kv_bytes)
        rows.append((name, rank, each.weight_bytes, str(each.block), *sizes))
    whole = sum(weight.nbytes for weight in loaded.model.parameters())
    with LLM(loaded, num_blocks=40) as llm:
        lines.append(f"{name}: the same answers as one process (weights: {whole:,} B): {answer(llm) == found.answers}")
Table(["model", "rank", "weights (B)", "shape of a block", "own blocks", "blocks used", "planned (B)", "measured (B)"], rows, lines=lines)

# %% key="shards_table" tags="hardware" lang="zh"
import torch

from minikv import LLM
from minikv.models import load

rows, lines = [], []
for name, found in shards.items():
    loaded = load(models[name], device=found.ranks[0].device.partition(":")[0])
    spec = CacheSpec.from_config(loaded.model.config, tp=2, kv_dtype=found.kv_dtype)
    for rank, each in enumerate(found.ranks):
        sizes = (each.own_blocks, each.num_blocks, spec.block_bytes(16) * each.num_blocks, each.kv_bytes)
        rows.append((name, rank, each.weight_bytes, str(each.block), *sizes))
    whole = sum(weight.nbytes for weight in loaded.model.parameters())
    with LLM(loaded, num_blocks=40) as llm:
        lines.append(f"{name}：与单个进程（权重 {whole:,} B）的回答相同：{answer(llm) == found.answers}")
Table(["模型", "rank", "权重（B）", "块的形状", "自己放得下的块", "实际用的块", "计划（B）", "实测（B）"], rows, lines=lines)

# %% [markdown] key="shards_read" lang="en"
# The shape of a block is (K and V, layers, tokens, heads, elements). Latents have no first entry, because a latent is not split into K and V. Each rank has one of GQA's two heads. MQA's only head is on both ranks, and so is the whole latent of 64 + 16 elements.
# The measured bytes equal the planned ones, and the answers equal those of one process.
#
# The weights are about half of one process's. MQA has a little more, because its K and V projections are copied together with the head. MLA has more still: for this architecture, transformers cuts the MLP alone and leaves attention whole on every rank.
#
# ### The smallest count
#
# Rank 0 had room for more blocks (*own blocks*), but both ranks use the count of rank 1. The reason is that there is one scheduler, on rank 0, and one block table for each sequence. Block 7 of the table is block 7 on every rank, and each rank keeps other heads of the same tokens there.
# If one rank lacks a block, some of the heads have no place. (`allocate_kv_cache` takes the smallest count by itself, see [lesson 08](08_allocate_kv_cache.ipynb).)
# %% [markdown] key="shards_read" lang="zh" src="03a6a457"
# 块的形状依次是 K 和 V、层、token、头、元素，例如 GQA 的一个块是 2、2、16、1、32；潜在向量不分 K 和 V，所以没有第一项。GQA 的两个头，每个 rank 各放一个；MQA 唯一的头，两个 rank 都有；64 + 16 个元素的潜在向量，两个 rank 上都是完整的一份。
# 实测的字节与计划一致，回答也与单个进程相同。
#
# 权重约为单个进程的一半。MQA 略多，因为复制那个头时，它的 K 和 V 投影也要一起复制。MLA 更多，因为对这种架构，transformers 只切 MLP，注意力在每个 rank 上都是完整的。
#
# ### 取最小的块数
#
# rank 0 本来放得下更多的块（“自己放得下的块”一列），但两个 rank 都按 rank 1 的块数来。原因是调度器只有一个，在 rank 0 上；每条序列也只有一张块表。表里的块 7，在每个 rank 上都是块 7，各 rank 在那里存同一批 token 的不同的头。
# 只要有一个 rank 没有这个块，就有一部分头没有地方放。（`allocate_kv_cache` 会自动取最小的块数，见[第 08 课](08_allocate_kv_cache.ipynb)。）

# %% key="predict_common"
predict("common_blocks", ...)

# %% [markdown] key="message" lang="en"
# (You compute this number in exercise 12.2.)
#
# ### What the ranks send each other
#
# Rank 0 decides, and sends each step to the other ranks as a list of integers: token ids, lengths, block tables. The other ranks have to know how much to receive, so the first message of a step always has the same size, 2,048 integers of 4 bytes. (If the list is longer, a second message carries the rest.) That is little. Far more is sent inside the forward: every layer adds up the activations of all ranks, once after attention and once after the MLP.
# %% [markdown] key="message" lang="zh" src="e46b9bde"
# （练习 12.2 就是算这个数。）
#
# ### rank 之间发送什么
#
# 由 rank 0 做决定，把每一步作为一串整数发给其他 rank，包括 token id、长度、块表。接收的一方要事先知道收多少，所以每一步的第一条消息长度固定，是 2,048 个 4 字节的整数；放不下的部分再发一条。这点数据很少。前向计算内部要发的就多得多了，因为每一层在注意力之后、MLP 之后，都要把各 rank 算出的激活相加。

# %% key="message_code" lang="en"
from minikv import SamplingParams
from minikv.blocks import BlockManager
from minikv.engine import Scheduler
from minikv.engine.ext.wire import FRAME, to_words
from minikv.plan import find_model

rows = []
for sequences in (1, 64):
    scheduler = Scheduler(BlockManager(4096, 16), max_num_seqs=64, max_batched_tokens=40_000)
    for number in range(sequences):
        scheduler.add(number, list(range(300 * number, 300 * number + 300)), SamplingParams(max_tokens=9))
    scheduler.finish(scheduler.schedule(), [7] * sequences)
    words = to_words(scheduler.schedule())
    rows.append((sequences, words.nbytes, FRAME * words.itemsize))
Table(["sequences that decode", "needed (B)", "first message to each rank (B)"], rows)

# %% key="message_code" lang="zh"
from minikv import SamplingParams
from minikv.blocks import BlockManager
from minikv.engine import Scheduler
from minikv.engine.ext.wire import FRAME, to_words
from minikv.plan import find_model

rows = []
for sequences in (1, 64):
    scheduler = Scheduler(BlockManager(4096, 16), max_num_seqs=64, max_batched_tokens=40_000)
    for number in range(sequences):
        scheduler.add(number, list(range(300 * number, 300 * number + 300)), SamplingParams(max_tokens=9))
    scheduler.finish(scheduler.schedule(), [7] * sequences)
    words = to_words(scheduler.schedule())
    rows.append((sequences, words.nbytes, FRAME * words.itemsize))
Table(["正在解码的序列", "实际需要（B）", "发给每个 rank 的第一条消息（B）"], rows)

# %% key="activations" lang="en"
config = find_model("Llama-3.1-70B").config
layers, hidden = config["num_hidden_layers"], config["hidden_size"]
activations = 2 * layers * 64 * hidden * 2  # two sums a layer, 64 sequences, 2 bytes an element
times = f"{activations // words.nbytes:,} times the integers of the same step"
Table(["layers of Llama-3.1-70B", "B of activations a rank, 64 sequences"], [(layers, activations)], lines=[times])

# %% key="activations" lang="zh"
config = find_model("Llama-3.1-70B").config
layers, hidden = config["num_hidden_layers"], config["hidden_size"]
activations = 2 * layers * 64 * hidden * 2  # 每层相加两次，64 条序列，每个元素 2 字节
times = f"是同一步那串整数的 {activations // words.nbytes:,} 倍"
Table(["Llama-3.1-70B 的层数", "每个 rank 交换的激活（B），64 条序列"], [(layers, activations)], lines=[times])

# %% [markdown] key="latents" lang="en"
# ## Latents can't be divided
#
# Why isn't the latent cut as well? Two ranks could keep half of its elements each.
# To see what goes wrong, look at how a score is computed ([lesson 03](03_the_2_86x_mistake.ipynb)), for one head $h$ and one cached token. With absorbed matrices, the head's query is first multiplied by the head's own matrix:
# %% [markdown] key="latents" lang="zh" src="82ace5f1"
# ## 潜在向量不能分
#
# 为什么不把潜在向量也切开？例如两个 rank 各放一半元素。
# 要看出问题在哪里，先看分数是怎么算的（[第 03 课](03_the_2_86x_mistake.ipynb)）。取一个头 $h$ 和一个已缓存的 token；采用矩阵吸收时，这个头的 query 先乘以这个头自己的矩阵：

# %% [markdown] key="latents_math"
# $$s_{h} \;=\; \tilde q_h \cdot c \;+\; q^{\text{rope}}_h \cdot k^{\text{rope}}, \qquad \tilde q_h = {W^{K}_h}^{\top} q_h \in \mathbb{R}^{d_c}$$

# %% [markdown] key="latents_why" lang="en"
# | symbol | meaning | value here: DeepSeek-V3 |
# |---|---|---|
# | $s_h$ | score of head $h$ for this token | one number; 128 heads |
# | $q_h$ | the head's query, without the part for the position | 128 elements |
# | $W^{K}_h$ | the head's own matrix, which would make its key of a latent | 128 x 512 |
# | $\tilde q_h$ | the head's query, absorbed | 512 elements |
# | $c$ | the token's latent | $d_c$ = 512 elements |
# | $q^{\text{rope}}_h$, $k^{\text{rope}}$ | the parts that carry the position | $d_r$ = 64 elements each |
#
# The latent $c$ has no index $h$: every head, on whatever rank, reads all of its 512 elements.
# A rank that keeps 256 of them computes half of a sum, and half of a sum is not a score:
# %% [markdown] key="latents_why" lang="zh" src="11ef7c92"
# | 符号 | 含义 | 本例取值：DeepSeek-V3 |
# |---|---|---|
# | $s_h$ | 头 $h$ 对这个 token 的分数 | 一个数；共 128 个头 |
# | $q_h$ | 这个头的 query，不含带位置信息的部分 | 128 个元素 |
# | $W^{K}_h$ | 这个头自己的矩阵，本来用来从潜在向量算出它的 key | 128 x 512 |
# | $\tilde q_h$ | 这个头的 query（吸收之后） | 512 个元素 |
# | $c$ | 这个 token 的潜在向量 | $d_c$ = 512 个元素 |
# | $q^{\text{rope}}_h$、$k^{\text{rope}}$ | 带位置信息的部分 | 各 $d_r$ = 64 个元素 |
#
# 潜在向量 $c$ 没有下标 $h$，也就是说，每一个头，不论在哪个 rank 上，都要读它的全部 512 个元素。
# 只存 256 个元素的 rank，只能算出和的一半，而半个和并不是分数：

# %% key="half" lang="en"
torch.manual_seed(0)
latents = torch.randint(-9, 10, (64, 512)).float()  # [tokens, d_c]
query = torch.randint(-9, 10, (512,)).float()  # [d_c], of one head
right = latents @ query  # [tokens]: a score for each
# [tokens] each: what a rank computes that keeps 256 of the 512 elements
first, second = latents[:, :256] @ query[:256], latents[:, 256:] @ query[256:]
alone, summed = (right - first).abs().max(), (right - first - second).abs().max()
rows = [("the first half alone", f"{alone:,.0f}"), ("both halves, added up", f"{summed:.0f}")]
Table(["score computed from", "off by up to"], rows, right=["off by up to"])

# %% key="half" lang="zh"
torch.manual_seed(0)
latents = torch.randint(-9, 10, (64, 512)).float()  # [token, d_c]
query = torch.randint(-9, 10, (512,)).float()  # [d_c]，一个头的 query
right = latents @ query  # [token]：每个 token 一个分数
# 都是 [token]：只存 512 个元素中 256 个的 rank，各自算出的结果
first, second = latents[:, :256] @ query[:256], latents[:, 256:] @ query[256:]
alone, summed = (right - first).abs().max(), (right - first - second).abs().max()
rows = [("只有前一半", f"{alone:,.0f}"), ("两半相加", f"{summed:.0f}")]
Table(["怎样算分数", "最多差多少"], rows, right=["最多差多少"])

# %% key="exchange" lang="en"
heads, tokens = find_model("DeepSeek-V3").config["num_attention_heads"], 32_768
scores, saved = heads * tokens * 4 / 2**20, tokens * 256 * 2 / 2**20
Table(["tokens", "scores to exchange (MiB)", "latents not read (MiB)"], [(tokens, f"{scores:.1f}", f"{saved:.1f}")])

# %% key="exchange" lang="zh"
heads, tokens = find_model("DeepSeek-V3").config["num_attention_heads"], 32_768
scores, saved = heads * tokens * 4 / 2**20, tokens * 256 * 2 / 2**20
Table(["token 数", "要交换的分数（MiB）", "少读的潜在向量（MiB）"], [(tokens, f"{scores:.1f}", f"{saved:.1f}")])

# %% [markdown] key="latents_ways" lang="en"
# The ranks could add up their halves. But they would have to do it before the softmax, for each head, cached token, query and layer. With 128 heads and scores of 4 bytes, that is 512 B for each cached token. For the 32,768 tokens above it makes 16 MiB, in one layer and for one query. A rank saves just as many bytes when it doesn't read 256 elements of 2 bytes, but it would have read those from its own memory. The scores travel over a link between GPUs, which is slower.
#
# Two other things can be divided:
#
# - **The requests.** Each rank takes requests of its own and computes all their heads, and no other rank keeps their latents. This is **data-parallel attention** ([vLLM](https://docs.vllm.ai/en/latest/serving/data_parallel_deployment/), [SGLang](https://docs.sglang.io/docs/advanced_features/dp_dpa_smg_guide)), and it gave the 156.9 requests above.
# - **The tokens of a sequence.** Each rank keeps some of the positions, because a softmax can be put together from parts ([lesson 10](10_kernels.ipynb), split-KV). This is [context parallelism](https://docs.sglang.io/docs/advanced_features/dcp). It needs an exchange for each query and layer, too, but of one vector a head instead of one score a token.
#
# Data-parallel attention has a price. To compute all heads of its requests, a rank needs **all** of attention's weights, where before it had an eighth. Everything else, above all the experts, is cut as before.
# %% [markdown] key="latents_ways" lang="zh" src="c22240d7"
# 当然，几个 rank 可以把各自的一半相加。但必须在 softmax 之前做，而且每个头、每个已缓存的 token、每个 query、每一层都要做一次。以 128 个头、每个分数 4 字节计算，每个已缓存的 token 要交换 512 字节（上面的 32,768 个 token，一个 query 在一层里就是 16 MiB），与少读的 256 个元素（每个 2 字节）一样多。而且少读的是自己的显存，交换走的是 GPU 之间的链路，链路更慢。
#
# 能分的是另外两样：
#
# - **请求**。每个 rank 只管自己的请求，算它们的全部头，其他 rank 不存它们的潜在向量。这就是**数据并行注意力**（[vLLM](https://docs.vllm.ai/en/latest/serving/data_parallel_deployment/)，[SGLang](https://docs.sglang.io/docs/advanced_features/dp_dpa_smg_guide)），前面的 156.9 个请求就是这样来的。
# - **一条序列的 token**。每个 rank 存一部分位置，因为 softmax 可以由几段拼起来（[第 10 课](10_kernels.ipynb)，沿序列切分）。这就是[上下文并行](https://docs.sglang.io/docs/advanced_features/dcp)。每个 query、每一层也要交换，但每个头只交换一个向量，而不是每个 token 一个分数。
#
# 数据并行注意力有它的代价。一个 rank 要算自己请求的全部头，就需要注意力的**全部**权重，而原来只要八分之一。其余的部分，尤其是专家，照旧切分。

# %% key="predict_more"
predict("more_tokens", ...)

# %% key="ways" lang="en"
from minikv.course.charts import bars
from minikv.course.lessons.l12.parallel_layouts import two_ways
from minikv.units import GIB

ways, rows = {}, []
for model in ("DeepSeek-V3", "Kimi-K2", "Qwen3-235B-A22B", "Llama-3.1-70B"):
    tp, dp = two_ways(model, "B200 SXM", 8)
    ways |= {f"{model} TP": tp, f"{model} DP": dp}
    for name, way in (("TP", tp), ("DP", dp)):
        times = f"x{way.tokens / tp.tokens:.2f}"
        rows.append((f"{model} {name}", way.token_bytes, way.tokens, times, way.longest))
Table(["eight B200s", "B a token", "tokens in all", "against TP", "longest request"], rows, right=["against TP"])

# %% key="ways" lang="zh"
from minikv.course.charts import bars
from minikv.course.lessons.l12.parallel_layouts import two_ways
from minikv.units import GIB

ways, rows = {}, []
for model in ("DeepSeek-V3", "Kimi-K2", "Qwen3-235B-A22B", "Llama-3.1-70B"):
    tp, dp = two_ways(model, "B200 SXM", 8)
    ways |= {f"{model} TP": tp, f"{model} DP": dp}
    for name, way in (("TP", tp), ("DP", dp)):
        times = f"x{way.tokens / tp.tokens:.2f}"
        rows.append((f"{model} {name}", way.token_bytes, way.tokens, times, way.longest))
Table(["八块 B200", "每个 token 的字节数", "token 合计", "相对 TP", "最长的请求"], rows, right=["相对 TP"])

# %% key="ways_drawn" lang="en"
parts = {
    "weights": [way.weight_bytes / GIB for way in ways.values()],
    "KV cache": [way.kv_bytes / GIB for way in ways.values()],
}
show(bars(list(ways), parts, x="one GPU (GiB)", stacked=True, looks=("weights", "k")))

# %% key="ways_drawn" lang="zh"
parts = {
    "权重": [way.weight_bytes / GIB for way in ways.values()],
    "KV 缓存": [way.kv_bytes / GIB for way in ways.values()],
}
show(bars(list(ways), parts, x="一块 GPU（GiB）", stacked=True, looks=("weights", "k")))

# %% [markdown] key="ways_read" lang="en"
# **The missing seven eighths were copies.** In this plan the factor stays below 8, because each rank takes the room for attention's whole weights out of its pool. In the chart, the first bar of each pair has fewer weights. For DeepSeek-V3 the pool of a GPU shrinks from 74.4 to 65.9 GiB, to 0.885 of what it was, and 8 · 0.885 = 7.08. vLLM's 156.9 / 20.43 = 7.7 at the beginning is 8 · 0.96: there, each GPU had 96 % of the room left. The larger the GPU, the less the weights matter, and the closer the factor comes to 8.
#
# Here is the comparison in one formula, for two models. With tensor parallelism all ranks hold the same requests, with data parallelism each holds its own:
#
# $$N_{\text{TP}} = \frac{K_{\text{TP}}}{b_{\text{TP}}} \qquad\qquad N_{\text{DP}} = t \cdot \frac{K_{\text{DP}}}{b_{\text{DP}}}$$
#
# | symbol | meaning | unit | DeepSeek-V3 | Llama-3.1-70B |
# |---|---|---|---|---|
# | $t$ | ranks | ranks | 8 | 8 |
# | $b_{\text{TP}}$ | a token on one rank, TP | bytes | 70,272 | 40,960 |
# | $b_{\text{DP}}$ | a token on its rank, DP | bytes | 70,272 | 327,680 |
# | $K_{\text{TP}}$ | room for the cache on one rank, TP | GiB | 74.4 | 142 |
# | $K_{\text{DP}}$ | the same, DP | GiB | 65.9 | 123 |
# | $N_{\text{TP}}$ | tokens in all, TP | tokens | 1,136,864 | 3,727,760 |
# | $N_{\text{DP}}$ | tokens in all, DP | tokens | 8,049,664 | 3,211,648 |
#
# With the numbers put in (the GiB of the table are rounded, and only whole blocks count), one rank holds 65.9 GiB / 70,272 B = 1,006,208 tokens of DeepSeek-V3 with data parallelism. That makes $8 \cdot 1{,}006{,}208 = 8{,}049{,}664$ tokens in all, 7.08 times as many as 1,136,864. Llama-3.1-70B has $8 \cdot 401{,}456 = 3{,}211{,}648$, only 0.86 times as many. Tensor parallelism had already cut its heads, so there was nothing to gain, and the whole weights of attention take room.
# Qwen3's 4 KV heads lie on 8 ranks in two copies under tensor parallelism, so there the factor is at most 2.
#
# Look at the last column of the table above, too. A single request has *less* room than before, because it still lies on one GPU. Data-parallel attention holds more requests, not longer ones.
#
# (This is an ideal plan: engines copy more than attention. It doesn't show the cost in speed either. A step has to bring each token to the rank of its experts and back, all ranks run their steps together, and a rank with long requests is full while others have room. You share out such requests in exercise 12.3.)
# %% [markdown] key="ways_read" lang="zh" src="5acee4b7"
# **少掉的八分之七，都是复制品**。在这份计划里，倍数不到 8，因为每个 rank 都要从块池里拿出一部分放注意力的完整权重（图中每一对的第一条，权重较少）。以 DeepSeek-V3 为例，一块 GPU 的块池从 74.4 GiB 减到 65.9 GiB，是原来的 0.885，而 8 · 0.885 = 7.08。开头 vLLM 的 156.9 / 20.43 = 7.7 就是 8 · 0.96，也就是每块 GPU 还剩 96% 的空间。GPU 的显存越大，权重的影响越小，倍数就越接近 8。
#
# 用一个公式比较两个模型。张量并行时，所有 rank 存同样的请求；数据并行时，各存各的：
#
# $$N_{\text{TP}} = \frac{K_{\text{TP}}}{b_{\text{TP}}} \qquad\qquad N_{\text{DP}} = t \cdot \frac{K_{\text{DP}}}{b_{\text{DP}}}$$
#
# | 符号 | 含义 | 单位 | DeepSeek-V3 | Llama-3.1-70B |
# |---|---|---|---|---|
# | $t$ | rank 数 | rank | 8 | 8 |
# | $b_{\text{TP}}$ | TP：一个 token 在一个 rank 上占多少 | 字节 | 70,272 | 40,960 |
# | $b_{\text{DP}}$ | DP：一个 token 在它所在的 rank 上占多少 | 字节 | 70,272 | 327,680 |
# | $K_{\text{TP}}$ | TP：一个 rank 上留给缓存的空间 | GiB | 74.4 | 142 |
# | $K_{\text{DP}}$ | DP：同上 | GiB | 65.9 | 123 |
# | $N_{\text{TP}}$ | TP：一共放得下的 token | token | 1,136,864 | 3,727,760 |
# | $N_{\text{DP}}$ | DP：一共放得下的 token | token | 8,049,664 | 3,211,648 |
#
# 代入数字（表里的 GiB 是四舍五入之后的，而且只算整块）：数据并行时，DeepSeek-V3 在一个 rank 上放得下 65.9 GiB / 70,272 B = 1,006,208 个 token，合计 $8 \cdot 1{,}006{,}208 = 8{,}049{,}664$ 个 token，是 1,136,864 的 7.08 倍。Llama-3.1-70B 是 $8 \cdot 401{,}456 = 3{,}211{,}648$ 个，只有原来的 0.86 倍，因为张量并行早已把它的头切开，没有复制品可省，反而要放完整的注意力权重。
# Qwen3 的 4 个 KV 头，张量并行时在 8 个 rank 上各有两份，所以最多是 2 倍。
#
# 再看上面那张表的最后一列，单个请求的空间反而**变小**了，因为它仍然要整个放在一块 GPU 上。也就是说，数据并行注意力放得下更多的请求，而不是更长的请求。
#
# （这是理想情况，实际的引擎会复制的不止注意力。速度上的代价表里也没有。每一步都要把每个 token 送到它的专家所在的 rank 再送回来；所有 rank 一起走每一步；长请求集中的那个 rank 先满，而其他 rank 还有空。练习 12.3 就是分配这样的请求。）

# %% [markdown] key="swap" lang="en"
# ## When all GPUs are full
#
# Sooner or later the blocks run out. In [lesson 11b](11b_when_blocks_run_out.ipynb) the scheduler took the blocks of a running sequence away and computed its tokens again later. The other way is to **swap**: the blocks go to CPU memory (the memory of the *host*), and come back when there is room.
# The first takes computing time, the second takes time on the link:
# %% [markdown] key="swap" lang="zh" src="d644585b"
# ## GPU 全满了怎么办
#
# 块总有用完的时候。[第 11b 课](11b_when_blocks_run_out.ipynb)的做法是，调度器收走一条运行中序列的块，以后再重新计算它的 token。另一种做法是**换出、换入**（swap），也就是把块搬到 CPU 内存，等有地方了再搬回来。
# 前者花的是计算时间，后者花的是链路时间：

# %% [markdown] key="swap_math"
# $$\text{swap} = \frac{B}{r_{\text{out}}} + \frac{B}{r_{\text{in}}} \qquad\qquad \text{recompute} = \frac{T}{p}$$

# %% [markdown] key="swap_symbols" lang="en"
# | symbol | meaning | unit | value here |
# |---|---|---|---|
# | $B$ | bytes of the blocks, on this rank: tokens times the bytes of a token | bytes | 4,096 · 131,072 |
# | $r_{\text{out}}, r_{\text{in}}$ | rate to the host, and back to the device | bytes a second | 25 · 10⁹, 20 · 10⁹ |
# | $T$ | tokens that would have to be computed again | tokens | 4,096 |
# | $p$ | speed of a prefill | tokens a second | 20,000 |
#
# With the numbers put in, for a sequence of 4,096 tokens of Llama-3.1-8B (the three rates are assumed here; you measure your own further down):
# swap $= 536{,}870{,}912 / (25 \cdot 10^9) + 536{,}870{,}912 / (20 \cdot 10^9) = 21.47 + 26.84 = 48.32$ ms, recompute $= 4{,}096 / 20{,}000 = 204.80$ ms.
#
# $B$ and $T$ both grow with the sequence, so its length hardly changes which of the two is cheaper.
# %% [markdown] key="swap_symbols" lang="zh" src="5368a136"
# | 符号 | 含义 | 单位 | 本例取值 |
# |---|---|---|---|
# | $B$ | 这个 rank 上要搬的块的字节数，即 token 数乘以每个 token 的字节数 | 字节 | 4,096 · 131,072 |
# | $r_{\text{out}}, r_{\text{in}}$ | 搬到 CPU 内存、搬回设备的速度 | 字节 / 秒 | 25 · 10⁹、20 · 10⁹ |
# | $T$ | 否则要重新计算的 token 数 | token | 4,096 |
# | $p$ | 预填充的速度 | token / 秒 | 20,000 |
#
# 代入数字，以 Llama-3.1-8B 的一条 4,096 个 token 的序列为例（三个速度这里是假定的，后面会在本机上实测）：
# 换出换入 $= 536{,}870{,}912 / (25 \cdot 10^9) + 536{,}870{,}912 / (20 \cdot 10^9) = 21.47 + 26.84 = 48.32$ 毫秒，重新计算 $= 4{,}096 / 20{,}000 = 204.80$ 毫秒。
#
# $B$ 和 $T$ 都随序列增长，所以哪种做法更快，几乎与序列的长短无关。

# %% key="swap_drawn"
from minikv.course.diagrams import swap_path
from minikv.plan.preemption import TransferRates

moved = CacheSpec.from_config("Llama-3.1-8B").bytes_for(4096)
show(swap_path(4096, moved, TransferRates(25e9, 20e9, prefill=20_000), t("lang")))

# %% key="predict_swap"
predict("swap_ms", ...)

# %% [markdown] key="widget_read" lang="en"
# ## See it
#
# In the widget, the link is the way between GPU and CPU memory in one direction: a PCIe 4.0 x16 slot reaches some 25 GB/s, 5.0 some 50. The speed of a prefill is given as the share of the FLOP rate that it reaches.
# Try these, and say before each what will change:
#
# 1. Make the sequence ten times as long. Does the answer change?
# 2. Take Llama-2-7B, with K and V of 32 heads, and a link of 12 GB/s.
# 3. Take Llama-3.1-70B on 1, 2, 4, 8 ranks, then DeepSeek-V3. Which time falls with the ranks, and which doesn't? (The longer bar always fills the width, so read the times next to the bars.)
# 4. Find a setting in which computing again is far cheaper. What kind of machine is that?
# %% [markdown] key="widget_read" lang="zh" src="76e3e3ad"
# ## 亲眼看看
#
# 组件里的“链路”指 GPU 与 CPU 内存之间的通路，速度按单向算：PCIe 4.0 ×16 插槽大约是 25 GB/s，5.0 大约是 50 GB/s。预填充的速度用它达到峰值算力的百分之几来表示。
# 试试下面几步，每次动手之前先说出会发生什么：
#
# 1. 把序列加长到十倍。结论会变吗？
# 2. 换成 Llama-2-7B，它有 32 个头的 K 和 V，链路设为 12 GB/s。
# 3. Llama-3.1-70B 用 1、2、4、8 个 rank，再换成 DeepSeek-V3。哪个时间随 rank 数变短，哪个不变？（较长的条形总是占满宽度，要看条形旁边的时间。）
# 4. 找一组设置，让重新计算便宜得多。那是一台什么样的机器？

# %% key="widget"
from minikv.course.widgets import SwapCostWidget

widget = SwapCostWidget(t("lang"))
show(widget, text=widget.text())

# %% [markdown] key="widget_after" lang="en"
# With GQA, a modern link and the rates of data sheets, the swap wins nearly everywhere. So why do engines recompute at all?
# One reason is that a prefill may find some of its tokens in the cache again, and those cost nothing ([lesson 11b](11b_when_blocks_run_out.ipynb)).
# The other is that a link doesn't reach its rate with every copy. The rate depends on the size of the pieces:
# %% [markdown] key="widget_after" lang="zh" src="25a869c8"
# 有了 GQA 和如今的链路，按规格书上的速度，几乎处处都是换出换入更快。那为什么还有推理引擎选择重新计算？
# 一个原因是，重新预填充时可能从缓存里找回一部分 token，这部分不花时间（[第 11b 课](11b_when_blocks_run_out.ipynb)）。
# 另一个原因是，链路并不是每次复制都能达到标称速度，要看一次搬多大一片：

# %% [markdown] key="measure" lang="en"
# ## Measure it here
#
# We copy the same bytes from the device to CPU memory, in smaller and smaller pieces. (Without a GPU both are the same memory, so the cell measures the copying itself.)
# %% [markdown] key="measure" lang="zh" src="731c8519"
# ## 在本机上测量
#
# 同样多的字节，从设备搬到 CPU 内存，每次搬的一片越来越小。（没有 GPU 时，两边是同一块内存，测到的就是复制本身。）

# %% key="pieces" tags="timing" lang="en"
import time

torch.set_num_threads(1)  # other programs disturb the times less
device = "cuda" if torch.cuda.is_available() else "cpu"
num_bytes = 32 * 2**20
on_device = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
on_host = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=device == "cuda")


def copy_out(piece):
    start = time.perf_counter()
    for begin in range(0, num_bytes, piece):
        on_host[begin : begin + piece].copy_(on_device[begin : begin + piece], non_blocking=True)
    if device == "cuda":
        torch.cuda.synchronize()
    return num_bytes / (time.perf_counter() - start) / 1e9

# %% key="pieces" tags="timing" lang="zh"
import time

torch.set_num_threads(1)  # 减少其他程序对计时的干扰
device = "cuda" if torch.cuda.is_available() else "cpu"
num_bytes = 32 * 2**20
on_device = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
on_host = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=device == "cuda")


def copy_out(piece):
    start = time.perf_counter()
    for begin in range(0, num_bytes, piece):
        on_host[begin : begin + piece].copy_(on_device[begin : begin + piece], non_blocking=True)
    if device == "cuda":
        torch.cuda.synchronize()
    return num_bytes / (time.perf_counter() - start) / 1e9

# %% key="pieces_drawn" tags="timing" lang="en"
sizes = {"32 MiB": 2**25, "1 MiB": 2**20, "32 KiB": 2**15, "1 KiB": 2**10}
rates = [max(copy_out(piece) for _ in range(9)) for piece in sizes.values()]
show(bars([f"pieces of {name}" for name in sizes], {"32 MiB in all": rates}, x="GB/s", looks=("host",)))

# %% key="pieces_drawn" tags="timing" lang="zh"
sizes = {"32 MiB": 2**25, "1 MiB": 2**20, "32 KiB": 2**15, "1 KiB": 2**10}
rates = [max(copy_out(piece) for _ in range(9)) for piece in sizes.values()]
show(bars([f"每片 {name}" for name in sizes], {"共 32 MiB": rates}, x="GB/s", looks=("host",)))

# %% [markdown] key="pieces_read" lang="en"
# Pieces of 1 MiB are about as fast as one of 32 MiB, or faster. For smaller ones the fixed work of each copy counts, and pieces of 1 KiB are many times slower.
# This is why `minikv.cache.offload.HostPool` moves whole blocks, with all layers of a group in one piece, and why an engine measures the rate of *these* copies.
# Here are the rates of a small model on this machine, the speed of its prefill, and what follows from them. The last line says how fast a prefill would have to be to take as long as the swap, whatever the number of tokens:
# %% [markdown] key="pieces_read" lang="zh" src="f626541a"
# 每次搬 1 MiB，与一次搬完 32 MiB 差不多快，有时还更快；再小，每次复制的固定开销就显出来了，每次只搬 1 KiB 要慢很多倍。所以 `minikv.cache.offload.HostPool` 按整块搬，同一组的所有层合成一片；引擎要测的，也是**这样**搬能达到的速度。
# 下面是一个小模型在这台机器上的传输速度、它的预填充速度，以及由此得出的结论。最后一行是预填充要多快，才与换出换入一样快，它与 token 数无关：

# %% key="rates" tags="timing" lang="en"
from minikv.cache.offload import HostPool
from minikv.engine.ext.host import transfer_speeds
from minikv.plan.preemption import break_even_prefill, recompute_seconds, swap_seconds

tiny = load("tiny-gqa")
article = [5 + n % 150 for n in range(1920)]
with LLM(tiny, num_blocks=130, max_num_seqs=1) as llm:
    block = sum(group.block_bytes(16) for group in llm.cache.kv_cache_groups)
    pool = HostPool(llm.cache, 64)
    to_host, to_device = transfer_speeds(pool)
    pool.close()
    seconds = []
    for attempt in range(4):  # each under a salt of its own, so that no block is found again
        start = time.perf_counter()
        llm.generate(article, SamplingParams(temperature=0, max_tokens=1), salt=str(attempt))
        seconds.append(time.perf_counter() - start)

# %% key="rates" tags="timing" lang="zh"
from minikv.cache.offload import HostPool
from minikv.engine.ext.host import transfer_speeds
from minikv.plan.preemption import break_even_prefill, recompute_seconds, swap_seconds

tiny = load("tiny-gqa")
article = [5 + n % 150 for n in range(1920)]
with LLM(tiny, num_blocks=130, max_num_seqs=1) as llm:
    block = sum(group.block_bytes(16) for group in llm.cache.kv_cache_groups)
    pool = HostPool(llm.cache, 64)
    to_host, to_device = transfer_speeds(pool)
    pool.close()
    seconds = []
    for attempt in range(4):  # salt 各不相同，就找不回以前的块
        start = time.perf_counter()
        llm.generate(article, SamplingParams(temperature=0, max_tokens=1), salt=str(attempt))
        seconds.append(time.perf_counter() - start)

# %% key="rates_table" tags="timing" lang="en"
rates, rows = TransferRates(to_host, to_device, prefill=len(article) / min(seconds)), []
for tokens in (64, 512, 1920):
    moved = tokens // 16 * block
    swap, again = swap_seconds(moved, rates), recompute_seconds(tokens, rates)
    rows.append((tokens, moved, swap * 1e3, again * 1e3, "swap" if swap < again else "recompute"))
speeds = f"Blocks of {block:,} B: {to_host / 1e9:.2f} GB/s out, {to_device / 1e9:.2f} GB/s in; prefill {rates.prefill:,.0f} tokens/s"
even = f"Both take as long at a prefill of {break_even_prefill(block // 16, to_host, to_device):,.0f} tokens/s"
Table(["tokens", "B", "swap (ms)", "recompute (ms)", "cheaper"], rows, lines=[speeds, even])

# %% key="rates_table" tags="timing" lang="zh"
rates, rows = TransferRates(to_host, to_device, prefill=len(article) / min(seconds)), []
for tokens in (64, 512, 1920):
    moved = tokens // 16 * block
    swap, again = swap_seconds(moved, rates), recompute_seconds(tokens, rates)
    rows.append((tokens, moved, swap * 1e3, again * 1e3, "换出换入" if swap < again else "重新计算"))
speeds = f"每块 {block:,} B：换出 {to_host / 1e9:.2f} GB/s，换入 {to_device / 1e9:.2f} GB/s；每秒预填充 {rates.prefill:,.0f} 个 token"
even = f"两者一样快的条件：每秒预填充 {break_even_prefill(block // 16, to_host, to_device):,.0f} 个 token"
Table(["token 数", "字节数", "换出换入（毫秒）", "重新计算（毫秒）", "较快的"], rows, lines=[speeds, even])

# %% [markdown] key="engine" lang="en"
# ### In the engine
#
# `LLM(cpu_kv_bytes=...)` measures the two transfers when it starts, and the prefill while its steps run. It decides at each preemption, and writes both estimates into the event. (This works in one process. With several ranks, `cpu_kv_bytes` is refused.)
# For a comparison you can also give the rates yourself (`swap_rates=`). The next cell runs the engine with a fast link, with a slow one, and without CPU memory. The answers must be the same all three times.
# %% [markdown] key="engine" lang="zh" src="9892574a"
# ### 在引擎里
#
# `LLM(cpu_kv_bytes=...)` 启动时测出两个方向的传输速度，预填充的速度则在运行中测。每次抢占时，引擎再做决定，并把两个估计都写进事件。（只支持单个进程，多个 rank 时，`cpu_kv_bytes` 会被拒绝。）
# 为了比较，也可以直接给定速度（`swap_rates=`）。下一个单元格运行三次，一次用快的链路，一次用慢的，还有一次完全不用 CPU 内存。三次的回答必须相同。

# %% key="engine_code" tags="hardware" lang="en"
from minikv.engine import EventLog, summary
from minikv.models import recall_prompt

prompts = [recall_prompt(seed=seed).text for seed in range(16)]
params = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
choices = {
    "a fast link": {"cpu_kv_bytes": 2**20, "swap_rates": TransferRates(1e10, 1e10, prefill=20_000)},
    "a slow link": {"cpu_kv_bytes": 2**20, "swap_rates": TransferRates(1e7, 1e7, prefill=20_000)},
    "no CPU memory": {},  # recompute, always
}
answers, logs = set(), {}
for name, options in choices.items():
    logs[name] = EventLog()
    with LLM(tiny, num_blocks=28, max_num_seqs=16, emit=logs[name], **options) as llm:
        answers.add(tuple(output.text for output in llm.generate(prompts, params)))

# %% key="engine_code" tags="hardware" lang="zh"
from minikv.engine import EventLog, summary
from minikv.models import recall_prompt

prompts = [recall_prompt(seed=seed).text for seed in range(16)]
params = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
choices = {
    "快的链路": {"cpu_kv_bytes": 2**20, "swap_rates": TransferRates(1e10, 1e10, prefill=20_000)},
    "慢的链路": {"cpu_kv_bytes": 2**20, "swap_rates": TransferRates(1e7, 1e7, prefill=20_000)},
    "不用 CPU 内存": {},  # 总是重新计算
}
answers, logs = set(), {}
for name, options in choices.items():
    logs[name] = EventLog()
    with LLM(tiny, num_blocks=28, max_num_seqs=16, emit=logs[name], **options) as llm:
        answers.add(tuple(output.text for output in llm.generate(prompts, params)))

# %% key="engine_table" tags="hardware" lang="en"
rows = []
for name, log in logs.items():
    figures, first = summary(log.events), log.of("preempt")[0]
    computed = sum(step.prefill_tokens for step in log.of("step"))
    times = (first.swap_seconds * 1e3, first.recompute_seconds * 1e3) if first.how else (None, None)
    rows.append((name, figures.preemptions, figures.swaps, computed, first.how or "recompute, with no estimate", *times))
head = ["", "preemptions", "swaps", "tokens of prefills", "first decision", "swap, estimated (ms)", "recompute, estimated (ms)"]
Table(head, rows, lines=[f"the same answers in all three: {len(answers) == 1}"])

# %% key="engine_table" tags="hardware" lang="zh"
rows = []
for name, log in logs.items():
    figures, first = summary(log.events), log.of("preempt")[0]
    computed = sum(step.prefill_tokens for step in log.of("step"))
    times = (first.swap_seconds * 1e3, first.recompute_seconds * 1e3) if first.how else (None, None)
    rows.append((name, figures.preemptions, figures.swaps, computed, first.how or "recompute，不作估计", *times))
head = ["", "抢占次数", "换出次数", "预填充的 token", "第一次的决定", "估计换出换入（毫秒）", "估计重新计算（毫秒）"]
Table(head, rows, lines=[f"三次的回答都相同：{len(answers) == 1}"])

# %% [markdown] key="break" lang="en"
# (You write this decision and its event in exercise 12.4.)
#
# ## Break it
#
# ### The block count of rank 0
#
# What happens if an engine computes the number of blocks from GPU 0's free memory, and GPU 1 has less?
# Here rank 0 counts 19 blocks, and rank 1 has 14.
# %% [markdown] key="break" lang="zh" src="cfb9b9a5"
# （练习 12.4 就是写这个决定和它的事件。）
#
# ## 弄坏它
#
# ### 照搬 rank 0 的块数
#
# 如果块数按 GPU 0 的空闲显存算，而 GPU 1 的空闲显存更少，会怎样？
# 下面就是这种情形，rank 0 算出 19 个块，rank 1 只有 14 个。

# %% key="break_count" lang="en"
from minikv.cache import PagedKVCache

spec = CacheSpec.from_config(tiny.model.config, tp=2, kv_dtype="fp32")
rank_1, manager = PagedKVCache(spec, num_blocks=14), BlockManager(num_blocks=19)
manager.allocate("long", list(range(16 * 16)))
table = manager.block_table("long")
slots = [block * 16 + offset for block in table for offset in range(16)]  # a slot a token
k = torch.zeros(len(slots), 1, 32)  # [tokens, heads of the rank, elements]
try:
    rank_1.write(0, k, k, slots)
except MiniKVError as error:
    print(t(error))
table
# %% key="break_count" lang="zh"
from minikv.cache import PagedKVCache

spec = CacheSpec.from_config(tiny.model.config, tp=2, kv_dtype="fp32")
rank_1, manager = PagedKVCache(spec, num_blocks=14), BlockManager(num_blocks=19)
manager.allocate("long", list(range(16 * 16)))
table = manager.block_table("long")
slots = [block * 16 + offset for block in table for offset in range(16)]  # 每个 token 一个槽位
k = torch.zeros(len(slots), 1, 32)  # [token, 这个 rank 的头, 元素]
try:
    rank_1.write(0, k, k, slots)
except MiniKVError as error:
    print(t(error))
table

# %% [markdown] key="break_latent" lang="en"
# Slot 224 = 14 · 16 is the first one of block 14, which rank 1 doesn't have. Our cache checks the slots before it writes. A kernel that doesn't check writes into the memory after the end of the cache.
#
# ### Latents, divided by tp
#
# Suppose that an engine divides every kind of cache by `tp` when it computes the size. For KV heads that is right. For latents it promises room that doesn't exist.
# Take DeepSeek-V3 on eight B200s:
# %% [markdown] key="break_latent" lang="zh" src="38156bee"
# 槽位 224 = 14 · 16，是块 14 的第一个槽位，而 rank 1 没有块 14。我们的缓存在写之前会检查槽位。不检查的 kernel，就会写到缓存后面的内存里。
#
# ### 把潜在向量除以 tp
#
# 假设一个引擎计算缓存大小时，不分种类一律除以 `tp`。对 KV 头，这样算是对的；对潜在向量，算出来的空间并不存在。
# 以八块 B200 上的 DeepSeek-V3 为例：

# %% key="break_latent_code" lang="en"
way, _ = two_ways("DeepSeek-V3", "B200 SXM", 8)
block = 16 * way.token_bytes
fit, believed = way.kv_bytes // block, 8 * way.kv_bytes // block
over = f"{(believed - fit) * block / GIB:.1f}"
Table(["blocks promised", "blocks that fit", "too much (GiB)"], [(believed, fit, over)], right=["too much (GiB)"])

# %% key="break_latent_code" lang="zh"
way, _ = two_ways("DeepSeek-V3", "B200 SXM", 8)
block = 16 * way.token_bytes
fit, believed = way.kv_bytes // block, 8 * way.kv_bytes // block
over = f"{(believed - fit) * block / GIB:.1f}"
Table(["算出的块数", "放得下的块数", "多算了（GiB）"], [(believed, fit, over)], right=["多算了（GiB）"])

# %% [markdown] key="break_event" lang="en"
# ### A swap without its event
#
# On a GPU, a call doesn't do its work at once. It queues the work on a **stream**, and the GPU does it in the stream's order. Copies have a stream of their own, so that other sequences can compute meanwhile. Between two streams there is no order at all, unless one waits for an **event** of the other.
# Two toy streams show what that means for the step that writes a block, and for the copy that takes the block to the host.
# %% [markdown] key="break_event" lang="zh" src="c3ec3f19"
# ### 没有事件的换出
#
# 在 GPU 上，调用返回时工作还没有做，只是排进一个**流**（stream），再按流里的次序执行。复制用单独的流，这样其他序列可以同时计算。两个流之间没有任何先后，除非一个流等待另一个流的**事件**（event）。
# 下面用两个玩具流来看。一个流里是写一个块的那一步，另一个流里是把这个块搬到 CPU 内存的复制。

# %% key="break_event_code" lang="en"
from minikv.course.lessons.l12.streams import Stream, run_streams


def race(with_event, schedule):
    compute, copies = Stream("compute"), Stream("copies")
    block, host = ["old"], []
    compute.do(lambda: block.__setitem__(0, "new"))
    if with_event:
        copies.wait(compute.record())
    copies.do(lambda: host.append(block[0]))
    run_streams((compute, copies), schedule)
    return host[0]


rows = [("no event", False), ("the copy waits for an event", True)]
# schedule: the stream that goes first where both could, 0 for compute and 1 for copies
rows = [(name, race(event, [1, 1]), race(event, [0, 0])) for name, event in rows]
Table(["what the host gets", "if the copy goes first", "if the step goes first"], rows)

# %% key="break_event_code" lang="zh"
from minikv.course.lessons.l12.streams import Stream, run_streams


def race(with_event, schedule):
    compute, copies = Stream("compute"), Stream("copies")
    block, host = ["old"], []
    compute.do(lambda: block.__setitem__(0, "new"))
    if with_event:
        copies.wait(compute.record())
    copies.do(lambda: host.append(block[0]))
    run_streams((compute, copies), schedule)
    return host[0]


rows = [("没有事件", False), ("复制先等一个事件", True)]
# schedule：两个流都能执行时先执行哪个，0 是 compute，1 是 copies
rows = [(name, race(event, [1, 1]), race(event, [0, 0])) for name, event in rows]
Table(["CPU 内存得到的块", "复制先执行时", "计算先执行时"], rows)

# %% [markdown] key="break_event_read" lang="en"
# Without the event, the host gets whatever the block held when the copy happened to run.
# Such a fault appears only under load, and no error is raised. (In exercise 12.5 you place all four events.)
#
# ## Recap
#
# - Tensor parallelism divides KV heads among the ranks. With more ranks than heads it copies heads, and latents from the second rank on: a token of DeepSeek-V3 takes 70,272 B on every rank.
# - Data-parallel attention gives each rank whole requests. On 8 B200s it holds 7.08 times the tokens of DeepSeek-V3, but a single request can have at most 1,006,208 of them instead of 1,136,864.
# - All ranks use the smallest block count (14, where rank 0 had room for 19), because one block table serves them all.
# - A swap takes the bytes divided by the link's rate, once out and once in. A recompute takes the tokens divided by the speed of a prefill. For 4,096 tokens of Llama-3.1-8B that was 48.32 ms against 204.80 ms, and both grow with the sequence.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="break_event_read" lang="zh" src="321b3946"
# 没有事件时，复制碰巧在什么时候执行，CPU 内存里得到的就是块当时的内容。
# 这种错误只在高负载下出现，而且没有任何报错。（练习 12.5 就是放好全部四个事件。）
#
# ## 本课小结
#
# - KV 头不少于 rank 时，张量并行把头分到各个 rank；rank 更多时只能复制头，潜在向量则从第二个 rank 起就是复制，所以 DeepSeek-V3 的一个 token 在每个 rank 上都占 70,272 字节。
# - 数据并行注意力让每个 rank 负责完整的请求。在 8 块 B200 上，DeepSeek-V3 能放下的 token 是原来的 7.08 倍，但单个请求最多只有 1,006,208 个 token，而原来是 1,136,864 个。
# - 所有 rank 都用最小的块数（例如 rank 0 放得下 19 个，也只用 14 个），因为它们共用一张块表。
# - 换出换入的时间是字节数除以链路速度，来回各一次；重新计算的时间是 token 数除以预填充速度。Llama-3.1-8B 的 4,096 个 token，前者是 48.32 毫秒，后者是 204.80 毫秒，两者都随序列增长。
#
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_latents"
explain("why_whole_latents")

# %% key="explain_minimum"
explain("why_minimum")

# %% key="explain_longer"
explain("why_not_longer")

# %% key="explain_swap"
explain("swap_or_not")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# In the exercise notebook you write the decisions of this lesson:
#
# 1. `kv_heads_of`: the KV heads of a rank, also where there are more ranks than heads.
# 2. `blocks_of_all`: how many blocks all ranks can have.
# 3. `latent_bytes`: latents under tensor parallelism, and under data-parallel attention.
# 4. `preempt`: swap or recompute, with the event that says why.
# 5. `exchange`: swap blocks out and back while other sequences compute, in the right order.
# %% [markdown] key="exercises" lang="zh" src="cdf80505"
# ## 练习
#
# 在练习 notebook 里，你要写出本课的各个决定：
#
# 1. `kv_heads_of`：一个 rank 上有哪些 KV 头，rank 比头多时也要对。
# 2. `blocks_of_all`：所有 rank 都放得下多少个块。
# 3. `latent_bytes`：张量并行和数据并行注意力下，潜在向量各占多少。
# 4. `preempt`：换出换入还是重新计算，并写出说明理由的事件。
# 5. `exchange`：一边计算，一边把块换出换入，次序不能乱。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | more GPUs, but room for no more tokens | `CacheSpec.from_config(model, tp=n).bytes_for(1)` for n = 1, 2, 4, 8: where it stops falling, every further rank keeps copies |
# | fewer blocks than the plan says | `llm.allocation.own_blocks` against `llm.allocation.num_blocks`: where the first is larger, another rank has less room; look at its GPU with `minikv doctor --memory` |
# | a run of several ranks ends, or hangs | the error of rank 0 names the ranks that have ended; what they printed stands above it. In a notebook `run_ranks(..., seconds=...)` ends all of them |
# | swapped sequences answer nonsense, under load only | the same prompts with `cpu_kv_bytes=None`: if they are right, an event is missing |
# %% [markdown] key="stuck" lang="zh" src="29cd6933"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 加了 GPU，放得下的 token 没有变多 | 对 n = 1、2、4、8 看 `CacheSpec.from_config(model, tp=n).bytes_for(1)`：从不再下降的那个 n 起，再加 rank 都是复制 |
# | 块数比计划的少 | 比较 `llm.allocation.own_blocks` 与 `llm.allocation.num_blocks`：前者更大，说明另一个 rank 的空间更少；用 `minikv doctor --memory` 看那块 GPU |
# | 多个 rank 一起运行时中断或卡住 | rank 0 的错误会指出哪些 rank 已经结束，它们的输出在错误上方。在 notebook 里，`run_ranks(..., seconds=...)` 到时会终止所有 rank |
# | 只在高负载下，换出过的序列答非所问 | 同样的提示词设 `cpu_kv_bytes=None` 再试：如果对了，就是少了一个事件 |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - The 156.9 and 20.43 requests are those of DeepSeek-V4-Flash in [vLLM #51454](https://github.com/vllm-project/vllm/issues/51454), as quoted in [recipes #762](https://github.com/vllm-project/recipes/issues/762). *Latents can't be divided* explains the difference.
# - transformers cuts through the middle of a head where there are more ranks than KV heads, and fails in the first forward ([#48307](https://github.com/huggingface/transformers/issues/48307), August 2026). This is the second case under *Heads can be divided*.
# - In July 2025 a user asked nano-vllm what happens if GPU 0 has 40 GB free and GPU 1 only 20 ([#81](https://github.com/GeeeekExplorer/nano-vllm/issues/81)). "Yes, this could indeed cause problems", the author answered. The section *The smallest count* shows how.
# - In July 2026 an engine divided latents by `tp` ([tt-xla #5861](https://github.com/tenstorrent/tt-xla/issues/5861)). It had caused no failure yet, because the only test of MLA on several ranks used very little memory.
# - vLLM chose to recompute in March 2023, after measuring both, "because swapping incurs significant overheads due to numerous small data transfers between CPU and GPU" ([PR #12](https://github.com/vllm-project/vllm/pull/12)). *Measure it here* shows the small transfers.
# - vLLM's offloading lacked an event twice in 2026. A copy to the host could read blocks that no kernel had written yet ([#45704](https://github.com/vllm-project/vllm/issues/45704)), and the copy *back* could overwrite a block that was still being read ([#47282](https://github.com/vllm-project/vllm/issues/47282)).
# %% [markdown] key="wild" lang="zh" src="e78cf26b"
# ## 实战现场
#
# - 156.9 和 20.43 个请求，说的是 [vLLM #51454](https://github.com/vllm-project/vllm/issues/51454) 里的 DeepSeek-V4-Flash，两个数字引自 [recipes #762](https://github.com/vllm-project/recipes/issues/762)。差别的原因见“潜在向量不能分”。
# - rank 比 KV 头多时，transformers 会把一个头从中间切开，第一次前向计算就失败（[#48307](https://github.com/huggingface/transformers/issues/48307)，2026 年 8 月）。这就是“头可以分”里的第二种情形。
# - 2025 年 7 月，一位用户问 nano-vllm：GPU 0 空闲 40 GB，GPU 1 只有 20 GB，会怎样（[#81](https://github.com/GeeeekExplorer/nano-vllm/issues/81)）？作者的回答大意是：确实可能出问题。见“取最小的块数”。
# - 2026 年 7 月，有一个引擎把潜在向量也除以 `tp`（[tt-xla #5861](https://github.com/tenstorrent/tt-xla/issues/5861)）。唯一测试多个 rank 上 MLA 的用例只用很少的内存，所以还没有出过错。
# - 2023 年 3 月，vLLM 两种做法都测过之后选择了重新计算，理由是换出换入要在 CPU 和 GPU 之间做大量零碎的小传输，开销太大（[PR #12](https://github.com/vllm-project/vllm/pull/12)）。小传输有多慢，见“在本机上测量”。
# - 2026 年，vLLM 把 KV 卸载（offload）到 CPU 内存的功能两次少了事件：第一次，往 CPU 内存的复制可能读到 kernel 还没有写好的块（[#45704](https://github.com/vllm-project/vllm/issues/45704)）；第二次，**换回来**的复制可能覆盖还在被读的块（[#47282](https://github.com/vllm-project/vllm/issues/47282)）。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You know two ways to hold more tokens: don't store the same bytes eight times, and put some of them into CPU memory.
# [Lesson 13](13_half_the_bytes.ipynb) takes a third one, fewer bytes for each token, and measures what they cost.
# %% [markdown] key="next" lang="zh" src="29d2b40a"
# ## 下一课
#
# 要放下更多的 token，本课讲了两种办法，一是同样的字节不要存八份，二是把一部分搬到 CPU 内存。
# [第 13 课](13_half_the_bytes.ipynb)讲第三种办法，让每个 token 的字节更少，并测量为此付出的代价。
