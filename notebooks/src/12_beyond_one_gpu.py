# %% [meta]
# number = "12"
# slug = "beyond_one_gpu"
# needs = ["02b", "03", "09", "11b"]
# rooms = ["engine.ext.tensor_parallel", "cache.offload", "plan.preemption"]
# minutes = 60
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
# In August 2026 somebody starts the same model twice on eight B200s: DeepSeek-V4-Flash, whose attention keeps latents.
# The first time with tensor parallelism over eight GPUs, the second time with data parallelism. At start vLLM prints how many requests of a million tokens have room at once:
#
# > 156.9x vs 20.43x max concurrency at 1M context
#
# ([vLLM #51454](https://github.com/vllm-project/vllm/issues/51454); the two figures as quoted in [recipes #762](https://github.com/vllm-project/recipes/issues/762))
#
# Eight GPUs both times, and the second time 7.7 times as much fits.
# **Where were the other seven eighths, the first time? And why is it 7.7 times, and not 8?**
# %% [markdown] key="question" lang="zh" src="1ec44201"
# ## 问题
#
# 2026 年 8 月，有人在八块 B200 上把同一个模型启动了两次：DeepSeek-V4-Flash，它的注意力存的是潜在向量（latent）。
# 第一次用张量并行，切到八块 GPU 上；第二次用数据并行。启动时，vLLM 会打印能同时放下多少个一百万 token 的请求：
#
# > 156.9x vs 20.43x max concurrency at 1M context
#
# （[vLLM #51454](https://github.com/vllm-project/vllm/issues/51454)；两个数字引自 [recipes #762](https://github.com/vllm-project/recipes/issues/762)。意思是：上下文一百万时，最大并发分别为 156.9 和 20.43。）
#
# 两次都是八块 GPU，第二次放得下的却是 7.7 倍。
# **第一次，其余的八分之七到哪里去了？为什么是 7.7 倍，不是 8 倍**？

# %% [markdown] key="answer_words" lang="en"
# A **rank** is one of the processes that share a model, with a GPU of its own. **Tensor parallelism** (TP) cuts the weight matrices into as many parts as there are ranks.
# One call shows what the first start did with the cache:
# %% [markdown] key="answer_words" lang="zh" src="9e641ef4"
# 几个进程共用一个模型，每个进程叫作一个 **rank**，各有自己的 GPU。**张量并行**（TP）把权重矩阵切成与 rank 数相同的几份。
# 第一次启动时缓存发生了什么，一次调用就能看到：

# %% key="answer"
from minikv.plan import CacheSpec

for model in ("Llama-3.1-70B", "DeepSeek-V3"):
    one, rank = (CacheSpec.from_config(model, tp=tp).bytes_for(1) for tp in (1, 8))
    print(t("asked_line", model=model, one=one, rank=rank, tp=8))

# %% [markdown] key="answer_read" lang="en"
# (DeepSeek-V3 stands for the newer model here: it keeps latents as well, and it is in our catalogue.)
#
# Of Llama's cache each GPU has an eighth. Of DeepSeek's each has **all**: eight GPUs, eight copies of the same bytes.
# This lesson is about why, what can be done, and what goes to CPU memory where the GPUs are full all the same.
# %% [markdown] key="answer_read" lang="zh" src="189d9dc8"
# （这里用 DeepSeek-V3 代替那个更新的模型：它存的也是潜在向量，而且收在本包的目录里。）
#
# Llama 的缓存，每块 GPU 只放八分之一；DeepSeek 的，每块都放**全部**：八块 GPU，同样的字节存了八份。
# 本课要讲这是为什么、有什么办法，以及 GPU 还是装满了的时候，把什么搬到 CPU 内存。

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

# %% key="cut"
sizes = (1, 2, 4, 8, 16)
print(t("cut_head"))
print(" " * 15 + "".join(f"{f'tp={tp}':>14}" for tp in sizes))
for model in ("Llama-2-7B", "Llama-3.1-70B", "Qwen3-30B-A3B", "DeepSeek-V3"):
    whole = CacheSpec.from_config(model).bytes_for(1)
    ranks = [CacheSpec.from_config(model, tp=tp).bytes_for(1) for tp in sizes]
    cells = [f"{rank:,} (x{tp * rank // whole})" for tp, rank in zip(sizes, ranks)]
    print(f"{model:<15}" + "".join(f"{cell:>14}" for cell in cells))

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

# %% key="shards_table" tags="hardware"
import torch

from minikv import LLM
from minikv.models import load

torch.set_num_threads(1)
print(t("shards_head"))
for name, found in shards.items():
    loaded = load(models[name], device=found.ranks[0].device.partition(":")[0])
    spec = CacheSpec.from_config(loaded.model.config, tp=2, kv_dtype=found.kv_dtype)
    for rank, each in enumerate(found.ranks):
        planned = spec.block_bytes(16) * each.num_blocks
        counts = f"{each.own_blocks:>6} {each.num_blocks:>7} {planned:>10,} {each.kv_bytes:>11,}"
        print(f"{name} {rank:>5} {each.weight_bytes:>11,}   {str(each.block):<19}{counts}")
    whole = sum(weight.nbytes for weight in loaded.model.parameters())
    with LLM(loaded, num_blocks=40) as llm:
        print(t("shards_same", name=name, whole=whole, same=answer(llm) == found.answers))

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

# %% key="message_code"
from minikv import SamplingParams
from minikv.blocks import BlockManager
from minikv.engine import Scheduler
from minikv.engine.ext.wire import FRAME, to_words
from minikv.plan import find_model

for sequences in (1, 64):
    scheduler = Scheduler(BlockManager(4096, 16), max_num_seqs=64, max_batched_tokens=40_000)
    for number in range(sequences):
        scheduler.add(number, list(range(300 * number, 300 * number + 300)), SamplingParams(max_tokens=9))
    scheduler.finish(scheduler.schedule(), [7] * sequences)
    words = to_words(scheduler.schedule())
    print(t("message_line", sequences=sequences, num_bytes=words.nbytes, frame=FRAME * words.itemsize))
config = find_model("Llama-3.1-70B").config
layers, hidden = config["num_hidden_layers"], config["hidden_size"]
print(t("activations_line", layers=layers, activations=2 * layers * 64 * hidden * 2))

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

# %% key="half"
torch.manual_seed(0)
latents = torch.randint(-9, 10, (64, 512)).float()
query = torch.randint(-9, 10, (512,)).float()
right = latents @ query
first, second = latents[:, :256] @ query[:256], latents[:, 256:] @ query[256:]
alone, summed = (right - first).abs().max(), (right - first - second).abs().max()
print(t("half_line", alone=alone.item(), summed=summed.item()))
heads, tokens = find_model("DeepSeek-V3").config["num_attention_heads"], 32_768
print(t("exchange_line", tokens=tokens, scores=heads * tokens * 4 / 2**20, latents=tokens * 256 * 2 / 2**20))

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

# %% key="ways"
from minikv.course.lessons.l12.parallel_layouts import two_ways
from minikv.units import GIB

print(t("ways_head", gpu="B200 SXM"))
print(t("ways_columns"))
for model in ("DeepSeek-V3", "Kimi-K2", "Qwen3-235B-A22B", "Llama-3.1-70B"):
    ways = dict(zip(("TP", "DP"), two_ways(model, "B200 SXM", 8)))
    for name, way in ways.items():
        rank = f"{way.weight_bytes / GIB:>10.1f} {way.kv_bytes / GIB:>10.1f} {way.token_bytes:>11,}"
        times = f"(x{way.tokens / ways['TP'].tokens:.2f})"
        print(f"{model:<16} {name} {rank} {way.tokens:>13,} {times} {way.longest:>11,}")

# %% [markdown] key="ways_read" lang="en"
# **The other seven eighths were copies.** And in this plan it is less than eight times, because each rank pays for attention's weights out of its pool (the first column). The larger the GPU, the less that matters, and the closer it comes to 8.
#
# Look at the last column, too. One request alone has *less* room than before: it still lies on one GPU. Data-parallel attention holds more requests, not longer ones.
# Qwen3's 4 KV heads lie on 8 ranks in two copies each under tensor parallelism, so there it is at most twice as much.
# And look at Llama, whose heads tensor parallelism had cut already: there is nothing to be won, and attention's whole weights take room for it.
#
# (It is a plan, and an ideal one: engines keep copies of more than attention. What it costs in speed is not in the table either: a step has to bring each token to the rank of its experts and back, all ranks run their steps together, and whoever got the long requests is full while others have room. Exercise 12.3.)
# %% [markdown] key="ways_read" lang="zh" src="2715d214"
# **其余的八分之七，原来都是复制品**。在这份计划里，之所以不到八倍，是因为每个 rank 都要从块池里拿出一部分放注意力的权重（见第一列）。GPU 越大，这一点越无关紧要，倍数就越接近 8。
#
# 再看最后一列。单个请求的空间反而**变小**了：它还是只能放在一块 GPU 上。数据并行注意力放得下更多的请求，而不是更长的请求。
# Qwen3 的 4 个 KV 头，张量并行时在 8 个 rank 上各有两份，所以最多是两倍。
# 再看 Llama，它的头早已被张量并行切开：没有什么可赚的，还白白多放了权重。
#
# （这是计划，而且是理想情况：实际的引擎会复制的不止注意力。速度上的代价表里也没有：每一步都要把每个 token 送到它的专家所在的 rank 再送回来；所有 rank 一起走每一步；长请求集中到谁那里，谁就先满，而别人还有空。见练习 12.3。）

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
# | symbol | meaning | unit |
# |---|---|---|
# | $B$ | bytes of the blocks, on this rank | bytes |
# | $r_{\text{out}}, r_{\text{in}}$ | rate to the host, and back to the device | bytes a second |
# | $T$ | tokens that would have to be computed again | tokens |
# | $p$ | speed of a prefill | tokens a second |
#
# $B$ and $T$ both grow with the sequence, so it hardly matters how long it is.
# %% [markdown] key="swap_symbols" lang="zh" src="4ab8cca5"
# | 符号 | 含义 | 单位 |
# |---|---|---|
# | $B$ | 这个 rank 上要搬的块的字节数 | 字节 |
# | $r_{\text{out}}, r_{\text{in}}$ | 搬到 CPU 内存、搬回设备的速度 | 字节 / 秒 |
# | $T$ | 否则要重新计算的 token 数 | token |
# | $p$ | 预填充的速度 | token / 秒 |
#
# $B$ 和 $T$ 都随序列增长，所以序列多长几乎不影响结论。

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

# %% key="pieces" tags="timing"
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
    return time.perf_counter() - start


for piece in (2**25, 2**20, 2**15, 2**10):
    seconds = min(copy_out(piece) for _ in range(3))
    print(t("pieces_line", num_bytes=num_bytes, piece=piece, ms=seconds * 1e3, rate=num_bytes / seconds / 1e9))

# %% [markdown] key="pieces_read" lang="en"
# So `minikv.cache.offload.HostPool` moves whole blocks, with all layers of a group in one piece, and an engine measures what *that* reaches.
# Here are the rates of a small model on this machine, its prefill, and what follows from them:
# %% [markdown] key="pieces_read" lang="zh" src="da29e777"
# 所以 `minikv.cache.offload.HostPool` 按整块搬，同一组的所有层合成一片；引擎要测的，也是**这样**搬能达到的速度。
# 下面是一个小模型在这台机器上的传输速度、它的预填充速度，以及由此得出的结论：

# %% key="rates" tags="timing"
from minikv.cache.offload import HostPool
from minikv.engine.ext.host import transfer_speeds
from minikv.plan.preemption import TransferRates, break_even_prefill, recompute_seconds, swap_seconds

tiny = load("tiny-gqa")
article = [5 + n % 150 for n in range(1920)]
with LLM(tiny, num_blocks=130, max_num_seqs=1) as llm:
    block = sum(group.block_bytes(16) for group in llm.cache.kv_cache_groups)
    pool = HostPool(llm.cache, 64)
    to_host, to_device = transfer_speeds(pool)
    pool.close()
    seconds = []
    for attempt in range(4):
        start = time.perf_counter()
        llm.generate(article, SamplingParams(temperature=0, max_tokens=1), salt=str(attempt))
        seconds.append(time.perf_counter() - start)
rates = TransferRates(to_host, to_device, prefill=len(article) / min(seconds))
print(t("rates_line", block=block, out=to_host / 1e9, back=to_device / 1e9, prefill=rates.prefill))
for tokens in (64, 512, 1920):
    moved = tokens // 16 * block
    swap, again = swap_seconds(moved, rates), recompute_seconds(tokens, rates)
    how = t("swap" if swap < again else "recompute")
    print(t("cost_line", tokens=tokens, num_bytes=moved, swap=swap * 1e3, recompute=again * 1e3, how=how))
print(t("even_line", even=break_even_prefill(block // 16, to_host, to_device)))

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

# %% key="engine_code" tags="hardware"
from minikv.engine import EventLog, summary
from minikv.models import recall_prompt

prompts = [recall_prompt(seed=seed).text for seed in range(16)]
params = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
choices = {
    "fast": {"cpu_kv_bytes": 2**20, "swap_rates": TransferRates(1e10, 1e10, prefill=20_000)},
    "slow": {"cpu_kv_bytes": 2**20, "swap_rates": TransferRates(1e7, 1e7, prefill=20_000)},
    "none": {},
}
answers = set()
for name, options in choices.items():
    log = EventLog()
    with LLM(tiny, num_blocks=28, max_num_seqs=16, emit=log, **options) as llm:
        answers.add(tuple(output.text for output in llm.generate(prompts, params)))
    figures = summary(log.events)
    computed = sum(step.prefill_tokens for step in log.of("step"))
    counts = dict(preemptions=figures.preemptions, swaps=figures.swaps, computed=computed)
    print(t("engine_line", name=t("engine_" + name), **counts))
    event = log.of("preempt")[0]
    if event.how:
        estimates = dict(swap=event.swap_seconds * 1e3, recompute=event.recompute_seconds * 1e3)
        print(t("event_line", how=t(event.how), tokens=event.tokens, **estimates))
print(t("engine_same", same=len(answers) == 1))

# %% [markdown] key="break" lang="en"
# (Exercise 12.4 is the decision and its event.)
#
# ## Break it
#
# ### The block count of rank 0
#
# In July 2025 somebody asks nano-vllm what happens if GPU 0 has 40 GB free and GPU 1 only 20, since the number of blocks is made from GPU 0's ([#81](https://github.com/GeeeekExplorer/nano-vllm/issues/81)). "Yes, this could indeed cause problems", the author answers.
# Here it is: rank 0 counts 19 blocks, and rank 1 has 14.
# %% [markdown] key="break" lang="zh" src="8f76fdf8"
# （练习 12.4 就是这个决定和它的事件。）
#
# ## 弄坏它
#
# ### 照搬 rank 0 的块数
#
# 2025 年 7 月，有人问 nano-vllm：块数是按 GPU 0 的空闲显存算的，如果 GPU 0 空闲 40 GB，GPU 1 只有 20 GB，会怎样（[#81](https://github.com/GeeeekExplorer/nano-vllm/issues/81)）？作者的回答大意是：确实可能出问题。
# 这里就是这种情形：rank 0 算出 19 个块，rank 1 只有 14 个。

# %% key="break_count"
from minikv.cache import PagedKVCache

spec = CacheSpec.from_config(tiny.model.config, tp=2, kv_dtype="fp32")
rank_1, manager = PagedKVCache(spec, num_blocks=14), BlockManager(num_blocks=19)
manager.allocate("long", list(range(16 * 16)))
table = manager.block_table("long")
print(t("table_line", pool=19, own=14, table=table))
slots = [block * 16 + offset for block in table for offset in range(16)]
k = torch.zeros(len(slots), 1, 32)
try:
    rank_1.write(0, k, k, slots)
except MiniKVError as error:
    print(t(error))

# %% [markdown] key="break_latent" lang="en"
# Our cache looks at the slots before it writes. A kernel that does not look writes into whatever lies behind the cache.
#
# ### Latents, divided by tp
#
# In July 2026 an engine sizes its cache for `tp` ranks as if each of them kept a part, of every kind of cache. For KV heads that is right. For latents it promises room that is not there ([tt-xla #5861](https://github.com/tenstorrent/tt-xla/issues/5861); it had bitten nobody yet, because the only test of MLA on several ranks used very little memory).
# DeepSeek-V3 on eight B200s:
# %% [markdown] key="break_latent" lang="zh" src="4c16f873"
# 我们的缓存写之前会检查槽位。不检查的 kernel，就会写进缓存后面的随便什么地方。
#
# ### 把潜在向量除以 tp
#
# 2026 年 7 月，有一个引擎按 `tp` 个 rank 各存一部分来计算缓存大小，而且不分缓存的种类。对 KV 头，这是对的；对潜在向量，就许诺了并不存在的空间（[tt-xla #5861](https://github.com/tenstorrent/tt-xla/issues/5861)；唯一测试多个 rank 上 MLA 的用例只用很少的内存，所以还没有惹祸）。
# 以八块 B200 上的 DeepSeek-V3 为例：

# %% key="break_latent_code"
way, _ = two_ways("DeepSeek-V3", "B200 SXM", 8)
block = 16 * way.token_bytes
fit, believed = way.kv_bytes // block, 8 * way.kv_bytes // block
print(t("budget_line", believed=believed, fit=fit, over=(believed - fit) * block / GIB))

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

# %% key="break_event_code"
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


for with_event in (False, True):
    who = t("race_with" if with_event else "race_without")
    print(t("race_line", who=who, first=race(with_event, [1, 1]), second=race(with_event, [0, 0])))

# %% [markdown] key="break_event_read" lang="en"
# It happened in vLLM's offloading in 2026, twice. First a copy to the host could read blocks whose kernel had not run yet: "the one-step deferral isn't sufficient" ([#45704](https://github.com/vllm-project/vllm/issues/45704)). When that was mended, a few answers were still garbled: the copy *back* could overwrite a block that was still being read ([#47282](https://github.com/vllm-project/vllm/issues/47282)).
# Both show under load alone, and no error is raised. (Exercise 12.5: all four places where an event belongs.)
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="break_event_read" lang="zh" src="df2bb2ad"
# 2026 年，vLLM 把 KV 卸载（offload）到 CPU 内存的功能就出过这种事，而且是两次。第一次，往 CPU 内存的复制可能读到 kernel 还没有写好的块；原以为推迟一步就够了，其实不够（[#45704](https://github.com/vllm-project/vllm/issues/45704)）。修好之后，仍有少数回答是乱的：**换回来**的复制可能覆盖还有人在读的块（[#47282](https://github.com/vllm-project/vllm/issues/47282)）。
# 两次都只在高负载下出现，而且没有任何报错。（练习 12.5：四处该放事件的地方。）
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
