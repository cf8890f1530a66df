# %% [meta]
# number = "12"
# slug = "beyond_one_gpu"
# needs = ["02b", "03", "09", "11b"]
# rooms = ["engine.ext.tensor_parallel", "cache.offload", "plan.preemption"]
# minutes = 65
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
# You have eight GPUs and cut a model into eight parts. Does each of them keep an eighth of the KV cache?
#
# A **rank** is one of the processes that share a model, with a GPU of its own. **Tensor parallelism** (TP) cuts the weight matrices into as many parts as there are ranks.
# What each rank then caches of a token depends on the model. Here are three:
# %% [markdown] key="question" lang="zh" src="a33f137e"
# ## 问题
#
# 你有八块 GPU，把模型切成八份。每块是不是只存八分之一的 KV 缓存？
#
# 几个进程共用一个模型，每个进程叫作一个 **rank**，各有自己的 GPU。**张量并行**（TP）把权重矩阵切成与 rank 数相同的几份。
# 这时每个 rank 为一个 token 缓存什么，要看模型。下面是三个模型：

# %% key="first"
from minikv.course.diagrams import rank_caches

models = ("Llama-3.1-70B", "Qwen3-30B-A3B", "DeepSeek-V3")
show(rank_caches({model: model for model in models}, 8, t("lang")))

# %% [markdown] key="answer_read" lang="en"
# Of Llama's cache each GPU has an eighth. Of Qwen3's each head lies on two GPUs. Of DeepSeek's latents each GPU has **all**: eight GPUs, eight copies of the same bytes.
#
# A user of eight B200s saw the price: with tensor parallelism vLLM had room for 20.43 requests of a million tokens, with data parallelism for 156.9 (a newer model with latents).
# **Where are the other seven eighths with tensor parallelism? And why is it 7.7 times, and not 8?**
#
# After this lesson you can:
#
# - **say** which part of a cache a rank keeps, for KV heads and for latents, and how often it is copied;
# - **compare** tensor parallelism with data-parallel attention, in tokens;
# - **decide** whether a preempted sequence is swapped to CPU memory or computed again.
# %% [markdown] key="answer_read" lang="zh" src="48134de1"
# Llama 的缓存，每块 GPU 只放八分之一；Qwen3 的每个头放在两块 GPU 上；DeepSeek 的潜在向量（latent），每块都放**全部**：八块 GPU，同样的字节存了八份。
#
# 代价有多大？一位用户在八块 B200 上启动了一个同样存潜在向量的新模型：上下文一百万时，张量并行能同时放下 20.43 个请求，数据并行能放下 156.9 个。
# **张量并行时少掉的八分之七去了哪里？为什么是 7.7 倍，而不是整 8 倍？**
#
# 学完本课，你能够：
#
# - **说出**一个 rank 存缓存的哪一部分（KV 头或潜在向量），以及一共存了几份；
# - 按放得下的 token 数**比较**张量并行和数据并行注意力；
# - **决定**被抢占的序列是换出到 CPU 内存，还是重新计算。

# %% key="predict_rank"
predict("rank_bytes", ...)

# %% [markdown] key="formula" lang="en"
# ## Heads can be shared out
#
# Attention is computed head by head, and no head asks another for anything. So each rank takes some of the query heads, and keeps the K and V that these read:
# %% [markdown] key="formula" lang="zh" src="bc43a89a"
# ## 头可以分
#
# 注意力是一个头一个头算的，头与头之间互不相干。所以每个 rank 拿走一部分 query 头，只存这些头要读的 K 和 V：

# %% [markdown] key="formula_math"
# $$\text{heads}_{\text{rank}} = \max\!\left(1, \frac{H_{kv}}{t}\right) \qquad\quad \text{bytes}_{\text{rank}} = 2 \cdot L \cdot \text{heads}_{\text{rank}} \cdot D \cdot b \qquad\quad \text{copies} = \frac{t \cdot \text{heads}_{\text{rank}}}{H_{kv}}$$

# %% [markdown] key="symbols" lang="en"
# | symbol | meaning | unit |
# |---|---|---|
# | $H_{kv}$ | KV heads of the model | heads |
# | $t$ | ranks, `tp` | ranks |
# | $L$ | layers | layers |
# | $D$ | `head_dim` | elements |
# | $b$ | size of an element | bytes |
#
# ($t$ divides $H_{kv}$, or $H_{kv}$ divides $t$; anything else is refused.)
#
# With MLA there is no $H_{kv}$ to divide by: $\text{bytes}_{\text{rank}} = L \cdot (d_c + d_r) \cdot b$, whatever $t$ is, with the latent's $d_c$ and the rope key's $d_r$ elements ([lesson 03](03_the_2_86x_mistake.ipynb)).
# %% [markdown] key="symbols" lang="zh" src="e68eae5a"
# | 符号 | 含义 | 单位 |
# |---|---|---|
# | $H_{kv}$ | 模型的 KV 头数 | 头 |
# | $t$ | rank 数，即 `tp` | rank |
# | $L$ | 层数 | 层 |
# | $D$ | 头维度 `head_dim` | 元素 |
# | $b$ | 一个元素的大小 | 字节 |
#
# （要么 $t$ 整除 $H_{kv}$，要么 $H_{kv}$ 整除 $t$；其余情况一律拒绝。）
#
# MLA 没有 $H_{kv}$ 可除：不管 $t$ 是多少，$\text{bytes}_{\text{rank}} = L \cdot (d_c + d_r) \cdot b$，其中 $d_c$ 是潜在向量的元素数，$d_r$ 是 rope key 的（[第 03 课](03_the_2_86x_mistake.ipynb)）。

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
# - **As many heads as there are ranks, or more**: the cache is cut, and there is one copy of it (`x1`). Twice the GPUs: a token takes half as much on each.
# - **More ranks than KV heads**: a head cannot be cut, since a query needs the whole of its key. It is *copied*: with 4 KV heads on 8 ranks, two neighbours keep the same one. From here on a token takes the same on every GPU, however many there are.
# - **Latents**: copied from the second rank on.
#
# The second case is easily forgotten: `heads // tp` is 0 there. transformers itself cuts through the middle of a head in that case, and fails in the first forward ([#48307](https://github.com/huggingface/transformers/issues/48307), August 2026); `minikv.models.load` repeats the weights of K and V instead.
# (Exercise 12.1: which heads lie on which rank.)
#
# ## Two real processes
#
# A plan is a claim. The next cell starts two processes by `torchrun`; each loads its part of three small models, and makes its own cache.
# One has 2 KV heads, one a single head, and one keeps latents. Rank 1 is given less room than rank 0, as if somebody else used its GPU.
# (The processes need some 10 to 20 seconds: each imports torch and transformers for itself. In a terminal the same is `torchrun --nproc-per-node 2 -m minikv generate "..."`, and in a script of yours `LLM(..., tp="auto")`.)
# %% [markdown] key="cut_read" lang="zh" src="857a6775"
# 表里有三种情形：
#
# - **头数不少于 rank 数**：缓存被切分，总共只有一份（表中的 `x1`）。GPU 加倍，一个 token 在每块上只占一半。
# - **rank 比 KV 头多**：一个头不能再切，因为 query 需要完整的 key。只能**复制**：4 个 KV 头放到 8 个 rank 上，相邻的两个 rank 存同一个头。从这里开始，不管再加多少块 GPU，一个 token 在每块上占的都一样多。
# - **潜在向量**：从第二个 rank 起就是复制。
#
# 第二种最容易忘：这时 `heads // tp` 等于 0。transformers 自己遇到这种情况会把一个头从中间切开，第一次前向计算就失败（[#48307](https://github.com/huggingface/transformers/issues/48307)，2026 年 8 月）；`minikv.models.load` 的办法是把 K 和 V 的权重复制几份。
# （练习 12.1：哪些头在哪个 rank 上。）
#
# ## 两个真正的进程
#
# 计划终究是纸面上的，要实测才算数。下一个单元格用 `torchrun` 启动两个进程，各自加载三个小模型中属于自己的部分，各自建缓存。
# 三个模型：一个有 2 个 KV 头，一个只有 1 个头，一个存潜在向量。给 rank 1 的空间比 rank 0 少，就像它的 GPU 上还有别人。
# （两个进程要 10 到 20 秒，因为各自都要导入 torch 和 transformers。在终端里，同样的事写作 `torchrun --nproc-per-node 2 -m minikv generate "..."`；在自己的脚本里，是 `LLM(..., tp="auto")`。）

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
        lines.append(f"{name}: the answers of one process, with {whole:,} B of weights: {answer(llm) == found.answers}")
Table(["model", "rank", "weights (B)", "a block", "own", "blocks", "planned (B)", "measured (B)"], rows, lines=lines)

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
Table(["模型", "rank", "权重（B）", "一个块", "自己", "共同", "计划（B）", "实测（B）"], rows, lines=lines)

# %% [markdown] key="shards_read" lang="en"
# Read the shape of a block as (K and V, layers, tokens, heads, elements), for latents without the first: of GQA's two heads each rank has one, MQA's only head is on both, and the latent of 64 + 16 elements lies on both in one piece.
# What was planned is what was measured, and the answers are those of one process.
#
# The weights are about half of one process's. MQA has a little more, because with the head its K and V projections are copied, too. MLA has more still: transformers' plan for this architecture cuts the MLP alone, and leaves attention whole on every rank.
#
# ### The smallest count
#
# Rank 0 had room for more blocks (*own*), but all of them use the count of rank 1. There is one scheduler, on rank 0, and one block table for each sequence: its block 7 is block 7 on every rank, each with other heads of the same tokens.
# A block that one rank lacks has no place for part of the heads. (`allocate_kv_cache` takes the smallest count by itself: [lesson 08](08_allocate_kv_cache.ipynb).)
# %% [markdown] key="shards_read" lang="zh" src="1a03ed97"
# 块的形状依次是 K 和 V、层数、token、头、元素（潜在向量没有第一项）：GQA 的两个头，每个 rank 各放一个；MQA 唯一的头，两边都有；64 + 16 个元素的潜在向量，两边都是完整的一份。
# 计划的字节就是实测的字节，回答也与单个进程相同。
#
# 权重约为单个进程的一半。MQA 略多，因为复制那个头，就要连它的 K 和 V 投影一起复制。MLA 更多：transformers 为这种架构写的方案只切 MLP，注意力在每个 rank 上都是完整的。
#
# ### 取最小的块数
#
# rank 0 本来放得下更多的块（“自己”一列），但大家都按 rank 1 的块数来。调度器只有一个，在 rank 0 上；每条序列也只有一张块表：表里的块 7，在每个 rank 上都是块 7，各存同一批 token 的不同的头。
# 只要有一个 rank 没有这个块，一部分头就没有地方放。（`allocate_kv_cache` 会自动取最小的块数，见[第 08 课](08_allocate_kv_cache.ipynb)。）

# %% key="predict_common"
predict("common_blocks", ...)

# %% [markdown] key="message" lang="en"
# (Exercise 12.2.)
#
# ### What the ranks tell each other
#
# Rank 0 decides, and sends each step to the others as a list of integers: token ids, lengths, block tables. The activations inside of the forward are another matter: after attention and after the MLP every layer adds up what the ranks have computed.
# %% [markdown] key="message" lang="zh" src="55f6e2c8"
# （练习 12.2。）
#
# ### rank 之间说些什么
#
# 由 rank 0 做决定，把每一步作为一串整数发给其他 rank：token id、长度、块表。前向计算内部的激活是另一回事：每一层在注意力之后、MLP 之后，都要把各 rank 算出的部分相加。

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
Table(["sequences that decode", "B for every other rank", "B of the fixed frame"], rows)

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
Table(["正在解码的序列", "发给其他每个 rank（B）", "定长消息（B）"], rows)

# %% key="activations" lang="en"
config = find_model("Llama-3.1-70B").config
layers, hidden = config["num_hidden_layers"], config["hidden_size"]
activations = 2 * layers * 64 * hidden * 2  # two sums a layer, 64 sequences, 2 bytes
Table(["layers of Llama-3.1-70B", "B of activations a rank, 64 sequences"], [(layers, activations)])

# %% key="activations" lang="zh"
config = find_model("Llama-3.1-70B").config
layers, hidden = config["num_hidden_layers"], config["hidden_size"]
activations = 2 * layers * 64 * hidden * 2  # 每层相加两次，64 条序列，每个数 2 字节
Table(["Llama-3.1-70B 的层数", "每个 rank 交换的激活（B），64 条序列"], [(layers, activations)])

# %% [markdown] key="latents" lang="en"
# ## Latents cannot
#
# Why is the latent not cut as well? Half of its elements on each of two ranks, it seems, would do.
# Remember how a score comes about ([lesson 03](03_the_2_86x_mistake.ipynb)), for one head and one cached token, with the head's query already multiplied by the head's own matrix (absorbed):
# %% [markdown] key="latents" lang="zh" src="d3163cfa"
# ## 潜在向量不能分
#
# 为什么不把潜在向量也切开？两个 rank 各放一半元素，看起来也行。
# 回想一下分数是怎么来的（[第 03 课](03_the_2_86x_mistake.ipynb)）。取一个头、一个已缓存的 token，并且这个头的 query 已经乘过这个头自己的矩阵（矩阵吸收）：

# %% [markdown] key="latents_math"
# $$s_{h} \;=\; \tilde q_h \cdot c \;+\; q^{\text{rope}}_h \cdot k^{\text{rope}}, \qquad \tilde q_h = {W^{K}_h}^{\top} q_h \in \mathbb{R}^{d_c}$$

# %% [markdown] key="latents_why" lang="en"
# The latent $c$ has no index $h$. Every head, on whatever rank, reads all of its $d_c$ elements.
# A rank that has half of them knows half of a sum, and half of a sum is not a score:
# %% [markdown] key="latents_why" lang="zh" src="8c716ce0"
# 潜在向量 $c$ 没有下标 $h$。每一个头，不论在哪个 rank 上，都要读它的全部 $d_c$ 个元素。
# 只有一半元素的 rank，只知道和的一半；而半个和，并不是分数：

# %% key="half" lang="en"
torch.manual_seed(0)
latents = torch.randint(-9, 10, (64, 512)).float()  # [tokens, d_c]
query = torch.randint(-9, 10, (512,)).float()  # of one head
right = latents @ query
first, second = latents[:, :256] @ query[:256], latents[:, 256:] @ query[256:]
alone, summed = (right - first).abs().max(), (right - first - second).abs().max()
rows = [("the first half alone", f"{alone:,.0f}"), ("both halves, added up", f"{summed:.0f}")]
Table(["score from", "off by up to"], rows, right=["off by up to"])

# %% key="half" lang="zh"
torch.manual_seed(0)
latents = torch.randint(-9, 10, (64, 512)).float()  # [token, d_c]
query = torch.randint(-9, 10, (512,)).float()  # 一个头的 query
right = latents @ query
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
# The halves could be added up between the ranks, for each head, cached token, query and layer, before the softmax. That is as many bytes as it saves, over a link instead of from memory.
#
# What can be divided is something else:
#
# - **the requests.** Each rank takes its own requests, with all heads, and nobody else keeps their latents: **data-parallel attention** ([vLLM](https://docs.vllm.ai/en/latest/serving/data_parallel_deployment/), [SGLang](https://docs.sglang.io/docs/advanced_features/dp_dpa_smg_guide)). That was the second start.
# - **the tokens of a sequence.** Each rank keeps some of its positions; a softmax can be put together from parts ([lesson 10](10_kernels.ipynb), split-KV). That is [context parallelism](https://docs.sglang.io/docs/advanced_features/dcp): an exchange for each query and layer, but of one vector a head, not of one score a token.
#
# Data-parallel attention has its price. To compute all heads of its requests a rank needs **all** of attention's weights, where before it had an eighth. Everything else, above all the experts, is cut as before.
# %% [markdown] key="latents_ways" lang="zh" src="94a00adf"
# 当然可以在 softmax 之前，把两半在 rank 之间相加：每个头、每个已缓存的 token、每个 query、每一层都要加。要交换的字节与省下的一样多，而且走的是链路，不是显存。
#
# 能分的是别的：
#
# - **请求**。每个 rank 只管自己的请求，算它们的全部头，别的 rank 不存它们的潜在向量：这就是**数据并行注意力**（[vLLM](https://docs.vllm.ai/en/latest/serving/data_parallel_deployment/)，[SGLang](https://docs.sglang.io/docs/advanced_features/dp_dpa_smg_guide)）。第二次启动用的就是它。
# - **一条序列的 token**。每个 rank 存一部分位置；softmax 可以由几段拼起来（[第 10 课](10_kernels.ipynb)，沿序列切分）。这就是[上下文并行](https://docs.sglang.io/docs/advanced_features/dcp)：每个 query、每一层也要交换，但每个头只交换一个向量，而不是每个 token 一个分数。
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
# **The other seven eighths were copies.** And in this plan it is less than eight times, because each rank pays for attention's weights out of its pool (the first bar of each pair has fewer weights). The larger the GPU, the less that matters, and the closer it comes to 8.
#
# Look at the last column of the table, too. One request alone has *less* room than before: it still lies on one GPU. Data-parallel attention holds more requests, not longer ones.
# Qwen3's 4 KV heads lie on 8 ranks in two copies each under tensor parallelism, so there it is at most twice as much.
# And look at Llama, whose heads tensor parallelism had cut already: there is nothing to be won, and attention's whole weights take room for it.
#
# (It is a plan, and an ideal one: engines keep copies of more than attention. What it costs in speed is not in the table either: a step has to bring each token to the rank of its experts and back, all ranks run their steps together, and a rank with long requests is full while others have room. Exercise 12.3.)
# %% [markdown] key="ways_read" lang="zh" src="f3e648a5"
# **少掉的八分之七，都是复制品**。在这份计划里，之所以不到八倍，是因为每个 rank 都要从块池里拿出一部分放注意力的权重（图中每一对的第一条，权重较少）。GPU 越大，这一点越无关紧要，倍数就越接近 8。
#
# 再看表的最后一列。单个请求的空间反而**变小**了：它还是只能放在一块 GPU 上。数据并行注意力放得下更多的请求，而不是更长的请求。
# Qwen3 的 4 个 KV 头，张量并行时在 8 个 rank 上各有两份，所以最多是两倍。
# 再看 Llama，它的头早已被张量并行切开：没有什么可赚的，还白白多放了权重。
#
# （这是计划，而且是理想情况：实际的引擎会复制的不止注意力。速度上的代价表里也没有：每一步都要把每个 token 送到它的专家所在的 rank 再送回来；所有 rank 一起走每一步；长请求集中的那个 rank 先满，而其他 rank 还有空。见练习 12.3。）

# %% [markdown] key="swap" lang="en"
# ## When all GPUs are full
#
# [Lesson 11b](11b_when_blocks_run_out.ipynb) took the blocks of a running sequence away and computed its tokens again later. The other way is to **swap**: the blocks go to CPU memory, and come back when there is room.
# %% [markdown] key="swap" lang="zh" src="aa794eb5"
# ## GPU 全满了怎么办
#
# [第 11b 课](11b_when_blocks_run_out.ipynb)的做法是收走一条运行中序列的块，以后再重新计算它的 token。另一种做法是**换出、换入**（swap）：把块搬到 CPU 内存，等有地方了再搬回来。

# %% [markdown] key="swap_math"
# $$\text{swap} = \frac{B}{r_{\text{out}}} + \frac{B}{r_{\text{in}}} \qquad\qquad \text{recompute} = \frac{T}{p}$$

# %% [markdown] key="swap_symbols" lang="en"
# | symbol | meaning | unit | value here |
# |---|---|---|---|
# | $B$ | bytes of the blocks, on this rank | bytes | 4,096 · 131,072 |
# | $r_{\text{out}}, r_{\text{in}}$ | rate to the host, and back to the device | bytes a second | 25 · 10⁹, 20 · 10⁹ |
# | $T$ | tokens that would have to be computed again | tokens | 4,096 |
# | $p$ | speed of a prefill | tokens a second | 20,000 |
#
# $B$ and $T$ both grow with the sequence, so it hardly matters how long it is. Here is one of 4,096 tokens of Llama-3.1-8B:
# %% [markdown] key="swap_symbols" lang="zh" src="f3488a69"
# | 符号 | 含义 | 单位 | 本例取值 |
# |---|---|---|---|
# | $B$ | 这个 rank 上要搬的块的字节数 | 字节 | 4,096 · 131,072 |
# | $r_{\text{out}}, r_{\text{in}}$ | 搬到 CPU 内存、搬回设备的速度 | 字节 / 秒 | 25 · 10⁹、20 · 10⁹ |
# | $T$ | 否则要重新计算的 token 数 | token | 4,096 |
# | $p$ | 预填充的速度 | token / 秒 | 20,000 |
#
# $B$ 和 $T$ 都随序列增长，所以序列多长几乎不影响结论。下面是 Llama-3.1-8B 的一条 4,096 个 token 的序列：

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
# The link is the way between GPU and CPU memory, in one direction: a PCIe 4.0 x16 slot reaches some 25 GB/s, 5.0 some 50. The prefill is given as the share of the FLOP rate that it reaches.
# Try this, and say before each what will change:
#
# 1. Make the sequence ten times as long. Does the answer change?
# 2. Take Llama-2-7B, with K and V of 32 heads, and a link of 12 GB/s.
# 3. Llama-3.1-70B on 1, 2, 4, 8 ranks, then DeepSeek-V3. Which time falls with the ranks, and which does not? (The longer bar always fills the width: read the times beside the bars.)
# 4. Find a setting in which computing again is cheaper by far. What kind of machine is that?
# %% [markdown] key="widget_read" lang="zh" src="fc2cf1bb"
# ## 亲眼看看
#
# 链路是 GPU 与 CPU 内存之间的通路，按单向算：PCIe 4.0 ×16 插槽能到 25 GB/s 上下，5.0 能到 50 上下。预填充的速度，用它达到的算力比例来表示。
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
# With GQA, a modern link and the rates of data sheets the swap wins nearly everywhere. So why does an engine recompute at all?
# vLLM chose it in March 2023, after measuring both, "because swapping incurs significant overheads due to numerous small data transfers between CPU and GPU" ([PR #12](https://github.com/vllm-project/vllm/pull/12)). And a prefill can find some of its tokens again ([lesson 11b](11b_when_blocks_run_out.ipynb)), which costs nothing.
# A rate is nothing that a link *has*. It depends on the pieces:
# %% [markdown] key="widget_after" lang="zh" src="340fb451"
# 有了 GQA 和如今的链路，按规格书上的速度，几乎处处都是换出换入更快。那为什么还有推理引擎选择重新计算？
# vLLM 在 2023 年 3 月两样都测过之后选了它，理由是换出换入要在 CPU 和 GPU 之间做大量零碎的小传输，开销太大（[PR #12](https://github.com/vllm-project/vllm/pull/12)）。而且预填充还可能找回一部分 token（[第 11b 课](11b_when_blocks_run_out.ipynb)），这部分不花时间。
# 速度不是链路**自带**的，要看一次搬多大一片：

# %% [markdown] key="measure" lang="en"
# ## Measure it here
#
# The same bytes, from the device to CPU memory, in smaller and smaller pieces. (Without a GPU both are the same memory: then it is the copying itself that is measured.)
# %% [markdown] key="measure" lang="zh" src="98ab3065"
# ## 在本机上测量
#
# 同样多的字节，从设备搬到 CPU 内存，每次搬的一片比一片小。（没有 GPU 时，两边是同一块内存，测到的就是复制本身。）

# %% key="pieces" tags="timing" lang="en"
import time

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
rates = [max(copy_out(piece) for _ in range(3)) for piece in sizes.values()]
show(bars([f"in pieces of {name}" for name in sizes], {"32 MiB": rates}, x="GB/s", looks=("host",)))

# %% key="pieces_drawn" tags="timing" lang="zh"
sizes = {"32 MiB": 2**25, "1 MiB": 2**20, "32 KiB": 2**15, "1 KiB": 2**10}
rates = [max(copy_out(piece) for _ in range(3)) for piece in sizes.values()]
show(bars([f"每次搬 {name}" for name in sizes], {"32 MiB": rates}, x="GB/s", looks=("host",)))

# %% [markdown] key="pieces_read" lang="en"
# So `minikv.cache.offload.HostPool` moves whole blocks, with all layers of a group in one piece, and an engine measures what *that* reaches.
# Here are the rates of a small model on this machine, its prefill, and what follows from them:
# %% [markdown] key="pieces_read" lang="zh" src="da29e777"
# 所以 `minikv.cache.offload.HostPool` 按整块搬，同一组的所有层合成一片；引擎要测的，也是**这样**搬能达到的速度。
# 下面是一个小模型在这台机器上的传输速度、它的预填充速度，以及由此得出的结论：

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
even = f"Break-even: a prefill of {break_even_prefill(block // 16, to_host, to_device):,.0f} tokens/s"
Table(["tokens", "B", "swap (ms)", "recompute (ms)", "cheaper"], rows, lines=[speeds, even])

# %% key="rates_table" tags="timing" lang="zh"
rates, rows = TransferRates(to_host, to_device, prefill=len(article) / min(seconds)), []
for tokens in (64, 512, 1920):
    moved = tokens // 16 * block
    swap, again = swap_seconds(moved, rates), recompute_seconds(tokens, rates)
    rows.append((tokens, moved, swap * 1e3, again * 1e3, "换出换入" if swap < again else "重新计算"))
speeds = f"每块 {block:,} B：换出 {to_host / 1e9:.2f} GB/s，换入 {to_device / 1e9:.2f} GB/s；每秒预填充 {rates.prefill:,.0f} 个 token"
even = f"两者持平时，每秒预填充 {break_even_prefill(block // 16, to_host, to_device):,.0f} 个 token"
Table(["token 数", "字节数", "换出换入（毫秒）", "重新计算（毫秒）", "较快的"], rows, lines=[speeds, even])

# %% [markdown] key="engine" lang="en"
# ### In the engine
#
# `LLM(cpu_kv_bytes=...)` measures the two transfers when it starts and the prefill as its steps come, decides at each preemption, and writes both estimates into the event. (It works in one process: with several ranks `cpu_kv_bytes` is refused.)
# To compare, the rates can be given (`swap_rates=`): once a fast link, once a slow one, and once no CPU memory at all. The answers must not depend on it.
# %% [markdown] key="engine" lang="zh" src="da7a7df7"
# ### 在引擎里
#
# `LLM(cpu_kv_bytes=...)` 启动时测出两个方向的传输速度，预填充的速度则在运行中测；每次抢占时再做决定，并把两个估计都写进事件。（只支持单个进程：多个 rank 时，`cpu_kv_bytes` 会被拒绝。）
# 为了比较，也可以直接给定速度（`swap_rates=`）：一次用快的链路，一次用慢的，还有一次完全不用 CPU 内存。回答不应受其影响。

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
    rows.append((name, figures.preemptions, figures.swaps, computed, first.how or "recompute, without asking", *times))
head = ["", "preemptions", "swaps", "tokens of prefills", "the first", "swap (ms)", "recompute (ms)"]
Table(head, rows, lines=[f"the same answers in all three: {len(answers) == 1}"])

# %% key="engine_table" tags="hardware" lang="zh"
rows = []
for name, log in logs.items():
    figures, first = summary(log.events), log.of("preempt")[0]
    computed = sum(step.prefill_tokens for step in log.of("step"))
    times = (first.swap_seconds * 1e3, first.recompute_seconds * 1e3) if first.how else (None, None)
    rows.append((name, figures.preemptions, figures.swaps, computed, first.how or "重新计算，不作比较", *times))
head = ["", "抢占次数", "换出次数", "预填充的 token", "第一次", "换出换入（毫秒）", "重新计算（毫秒）"]
Table(head, rows, lines=[f"三次的回答都相同：{len(answers) == 1}"])

# %% [markdown] key="break" lang="en"
# (Exercise 12.4 is the decision and its event.)
#
# ## Break it
#
# ### The block count of rank 0
#
# What happens if the number of blocks is made from GPU 0's free memory, and GPU 1 has less?
# Here it is: rank 0 counts 19 blocks, and rank 1 has 14.
# %% [markdown] key="break" lang="zh" src="7938bf6b"
# （练习 12.4 就是这个决定和它的事件。）
#
# ## 弄坏它
#
# ### 照搬 rank 0 的块数
#
# 如果块数按 GPU 0 的空闲显存算，而 GPU 1 的空闲显存更少，会怎样？
# 这里就是这种情形：rank 0 算出 19 个块，rank 1 只有 14 个。

# %% key="break_count"
from minikv.cache import PagedKVCache

spec = CacheSpec.from_config(tiny.model.config, tp=2, kv_dtype="fp32")
rank_1, manager = PagedKVCache(spec, num_blocks=14), BlockManager(num_blocks=19)
manager.allocate("long", list(range(16 * 16)))
table = manager.block_table("long")
slots = [block * 16 + offset for block in table for offset in range(16)]
k = torch.zeros(len(slots), 1, 32)
try:
    rank_1.write(0, k, k, slots)
except MiniKVError as error:
    print(t(error))
table

# %% [markdown] key="break_latent" lang="en"
# Our cache looks at the slots before it writes. A kernel that does not look writes into whatever lies behind the cache.
#
# ### Latents, divided by tp
#
# An engine that sizes its cache as if each of `tp` ranks kept a part, of every kind of cache, is right for KV heads. For latents it promises room that is not there.
# DeepSeek-V3 on eight B200s:
# %% [markdown] key="break_latent" lang="zh" src="3c58ffe7"
# 我们的缓存写之前会检查槽位。不检查的 kernel，就会写进缓存后面的随便什么地方。
#
# ### 把潜在向量除以 tp
#
# 如果一个引擎不分缓存的种类，一律按 `tp` 个 rank 各存一部分来计算缓存大小，那么对 KV 头是对的；对潜在向量，就许诺了并不存在的空间。
# 以八块 B200 上的 DeepSeek-V3 为例：

# %% key="break_latent_code" lang="en"
way, _ = two_ways("DeepSeek-V3", "B200 SXM", 8)
block = 16 * way.token_bytes
fit, believed = way.kv_bytes // block, 8 * way.kv_bytes // block
over = f"{(believed - fit) * block / GIB:.1f}"
Table(["blocks of the budget", "blocks that fit", "GiB that are not there"], [(believed, fit, over)], right=["GiB that are not there"])

# %% key="break_latent_code" lang="zh"
way, _ = two_ways("DeepSeek-V3", "B200 SXM", 8)
block = 16 * way.token_bytes
fit, believed = way.kv_bytes // block, 8 * way.kv_bytes // block
over = f"{(believed - fit) * block / GIB:.1f}"
Table(["预算里的块数", "放得下的块数", "多许诺的 GiB（并不存在）"], [(believed, fit, over)], right=["多许诺的 GiB（并不存在）"])

# %% [markdown] key="break_event" lang="en"
# ### A swap without its event
#
# On a GPU nothing happens when it is called. Work is queued on a **stream**, and done in the stream's order. Copies go to a stream of their own, so that others can compute meanwhile; between two streams there is no order at all, unless one waits for an **event** of the other.
# Two toy streams, to see it: the step that writes a block, and the copy that takes it to the host.
# %% [markdown] key="break_event" lang="zh" src="c15abc1c"
# ### 没有事件的换出
#
# 在 GPU 上，调用的那一刻什么也没有发生：工作只是排进一个**流**（stream），再按流里的次序执行。复制用单独的流，这样别的序列可以同时计算；而两个流之间没有任何先后，除非一个流等待另一个流的**事件**（event）。
# 用两个玩具流来看一看：写一个块的那一步，和把它搬到 CPU 内存的复制。

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
rows = [(name, race(event, [1, 1]), race(event, [0, 0])) for name, event in rows]
Table(["", "the host's block: the copy goes first", "the step goes first"], rows)

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
rows = [(name, race(event, [1, 1]), race(event, [0, 0])) for name, event in rows]
Table(["", "CPU 内存里的块：复制先走", "计算先走"], rows)

# %% [markdown] key="break_event_read" lang="en"
# Without the event, the host gets whatever stood in the block when the copy happened to run.
# Such a fault shows under load alone, and no error is raised. (Exercise 12.5: all four places where an event belongs.)
#
# ## Recap
#
# Tensor parallelism shares KV heads out while there are as many heads as ranks; beyond that it copies them, and latents it copies from the second rank on: 70,272 B a token of DeepSeek-V3 on every rank.
# Data-parallel attention gives each rank whole requests instead, and holds about 7 times the tokens of such a model on 8 B200s, but no longer requests.
# All ranks use the smallest block count, because one block table serves them all.
# A swap costs the bytes over the link twice, a recompute the tokens over the prefill's speed; both grow with the sequence.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="break_event_read" lang="zh" src="b6568d1f"
# 没有事件时，复制碰巧在什么时候执行，CPU 内存里得到的就是块当时的内容。
# 这种错误只在高负载下出现，而且没有任何报错。（练习 12.5：四处该放事件的地方。）
#
# ## 本课小结
#
# 只要 KV 头不少于 rank，张量并行就把头分到各个 rank；rank 更多时只能复制，潜在向量则从第二个 rank 起就是复制：DeepSeek-V3 的一个 token 在每个 rank 上都占 70,272 B。
# 数据并行注意力让每个 rank 负责完整的请求，8 块 B200 上这类模型能放下约 7 倍的 token，但单个请求不会更长。
# 所有 rank 都用最小的块数，因为它们共用一张块表。
# 换出换入的时间是字节数除以链路速度，来回各一次；重新计算的时间是 token 数除以预填充速度；两者都随序列增长。
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

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - The 156.9 and 20.43 requests are those of DeepSeek-V4-Flash in [vLLM #51454](https://github.com/vllm-project/vllm/issues/51454), as quoted in [recipes #762](https://github.com/vllm-project/recipes/issues/762): *Latents cannot*.
# - In July 2025 a user asked nano-vllm what happens if GPU 0 has 40 GB free and GPU 1 only 20 ([#81](https://github.com/GeeeekExplorer/nano-vllm/issues/81)). "Yes, this could indeed cause problems", the author answered: *The smallest count*.
# - In July 2026 an engine divided latents by `tp`, too ([tt-xla #5861](https://github.com/tenstorrent/tt-xla/issues/5861)). It had caused no failure yet, because the only test of MLA on several ranks used very little memory.
# - vLLM's offloading lacked an event twice in 2026: a copy to the host could read blocks whose kernel had not run yet ([#45704](https://github.com/vllm-project/vllm/issues/45704)), and the copy *back* could overwrite a block that was still being read ([#47282](https://github.com/vllm-project/vllm/issues/47282)).
# %% [markdown] key="wild" lang="zh" src="4b262ee5"
# ## 实战现场
#
# - 156.9 和 20.43 个请求，说的是 [vLLM #51454](https://github.com/vllm-project/vllm/issues/51454) 里的 DeepSeek-V4-Flash，两个数字引自 [recipes #762](https://github.com/vllm-project/recipes/issues/762)，见“潜在向量不能分”。
# - 2025 年 7 月，一位用户问 nano-vllm：GPU 0 空闲 40 GB，GPU 1 只有 20 GB，会怎样（[#81](https://github.com/GeeeekExplorer/nano-vllm/issues/81)）？作者的回答大意是：确实可能出问题。见“取最小的块数”。
# - 2026 年 7 月，有一个引擎把潜在向量也除以 `tp`（[tt-xla #5861](https://github.com/tenstorrent/tt-xla/issues/5861)）。唯一测试多个 rank 上 MLA 的用例只用很少的内存，所以还没有出过错。
# - 2026 年，vLLM 把 KV 卸载（offload）到 CPU 内存的功能两次少了事件：第一次，往 CPU 内存的复制可能读到 kernel 还没有写好的块（[#45704](https://github.com/vllm-project/vllm/issues/45704)）；第二次，**换回来**的复制可能覆盖还在被读的块（[#47282](https://github.com/vllm-project/vllm/issues/47282)）。

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# The exercise notebook asks for the decisions of this lesson:
#
# 1. `kv_heads_of`: the KV heads of a rank, also where ranks are more than heads.
# 2. `blocks_of_all`: how many blocks all ranks can have.
# 3. `latent_bytes`: latents under tensor parallelism, and under data-parallel attention.
# 4. `preempt`: swap or recompute, with the event that says why.
# 5. `exchange`: blocks out and back beside the computation, in order.
# %% [markdown] key="exercises" lang="zh" src="6bf752ea"
# ## 练习
#
# 练习 notebook 要你写出本课的各个决定：
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
# | more GPUs, and not more tokens | `CacheSpec.from_config(model, tp=n).bytes_for(1)` for n = 1, 2, 4, 8: where it stops falling, every further rank keeps copies |
# | fewer blocks than the plan says | `llm.allocation.own_blocks` against `llm.allocation.num_blocks`: where the first is larger, another rank has less room; look at its GPU with `minikv doctor --memory` |
# | a run of several ranks ends, or hangs | the error of rank 0 names the ranks that have ended; what they printed stands above it. In a notebook `run_ranks(..., seconds=...)` ends all of them |
# | swapped sequences answer nonsense, under load only | the same prompts with `cpu_kv_bytes=None`: if they are right, an event is missing |
# %% [markdown] key="stuck" lang="zh" src="f4ab0c3d"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | GPU 加了，token 没有多 | 对 n = 1、2、4、8 看 `CacheSpec.from_config(model, tp=n).bytes_for(1)`：从不再下降的那个 n 起，再加 rank 都是复制 |
# | 块数比计划的少 | 比较 `llm.allocation.own_blocks` 与 `llm.allocation.num_blocks`：前者更大，说明别的 rank 空间更少；用 `minikv doctor --memory` 看那块 GPU |
# | 多个 rank 一起运行时中断或卡住 | rank 0 的错误会指出哪些 rank 已经结束，它们的输出在错误上方。在 notebook 里，`run_ranks(..., seconds=...)` 到时会终止所有 rank |
# | 只在高负载下，换出过的序列答非所问 | 同样的提示词设 `cpu_kv_bytes=None` 再试：如果对了，就是少了一个事件 |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# Two ways to hold more tokens: not to store the same bytes eight times, and to put some of them elsewhere.
# [Lesson 13](13_half_the_bytes.ipynb) takes the third one: fewer bytes for each token, and what they cost.
# %% [markdown] key="next" lang="zh" src="ceb1c0aa"
# ## 下一课
#
# 要放下更多的 token，本课讲了两种办法：同样的字节不要存八份，再就是把一部分搬到别处。
# [第 13 课](13_half_the_bytes.ipynb)讲第三种：让每个 token 的字节更少，以及为此付出的代价。
