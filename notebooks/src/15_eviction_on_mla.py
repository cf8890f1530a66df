# %% [meta]
# number = "15"
# slug = "eviction_on_mla"
# needs = ["03", "04", "09", "14"]
# rooms = ["eviction", "models"]
# [title]
# en = "What changes with a latent?"
# zh = "换成潜在向量，有什么不同？"
# [t4]
# en = "The engine at the end runs on the T4. The text quotes answers and scores to the digit, so the CPU computes those, and they are the same everywhere."
# zh = "最后的引擎在 T4 上运行。正文逐位引用答对的比例和得分，所以这些由 CPU 计算，在哪里都一样。"
# [paper]
# en = "15.1, 15.3, 15.4"
# zh = "15.1、15.3、15.4"

# %% [markdown] key="question" lang="en"
# ## The question
#
# **What changes when the cache holds latents? And which part of a cached row knows where its token stood?**
#
# Your cache is full. You keep the first 5 tokens, forget the next 1,021 and move the others up by 1,021 places. To move a token, you turn its RoPE rotation back by as many places. Here is one token in one layer of Llama-3.1-8B and of DeepSeek-V3, with its bytes to scale. What has to be turned is marked:
# %% [markdown] key="question" lang="zh" src="a00ff9dd"
# ## 问题
#
# **缓存里换成潜在向量（latent），淘汰会有什么不同？一行里的哪一部分记着 token 的位置？**
#
# 缓存满了，于是留下最前面的 5 个 token，淘汰后面的 1,021 个，其余的往前挪 1,021 个位置，接着生成。往前挪多少个位置，RoPE 就要往回转多少。下面是一个 token 在一层里的一行，Llama-3.1-8B 和 DeepSeek-V3 各画一行，字节按比例，要往回转的部分标了出来：

# %% key="turned" lang="en"
from minikv.course.diagrams import turned_parts

show(turned_parts({name: name for name in ("Llama-3.1-8B", "DeepSeek-V3")}, start=1026, by=1021, lang="en"))

# %% key="turned" lang="zh"
from minikv.course.diagrams import turned_parts

show(turned_parts({name: name for name in ("Llama-3.1-8B", "DeepSeek-V3")}, start=1026, by=1021, lang="zh"))

# %% [markdown] key="able" lang="en"
# After this lesson you can
#
# - **compute** how much memory you get back per forgotten token, when a token takes as little as a latent does;
# - **shift** a cache of latents by hand, and say which part of a row has to be turned;
# - **predict** how many blocks an eviction gives back, and when it gives back none.
#
# You need to know what a latent is ([lesson 03](03_the_2_86x_mistake.ipynb)), how blocks are shared ([lesson 09](09_pages_and_blocks.ipynb)) and how a policy chooses tokens ([lesson 14](14_what_to_forget.ipynb)).
# %% [markdown] key="able" lang="zh" src="c8eaafe1"
# 学完本课，你能够：
#
# - **算出**淘汰一个 token 能省多少显存，哪怕它本来就只占一点点；
# - **亲手挪动**一份潜在向量缓存，并说出一行里哪一部分要往回转；
# - **预测**一次淘汰能归还几个块，什么情况下一个也还不了。
#
# 需要先了解：潜在向量是什么（[第 03 课](03_the_2_86x_mistake.ipynb)）、块怎样共享（[第 09 课](09_pages_and_blocks.ipynb)）、策略怎样挑选 token（[第 14 课](14_what_to_forget.ipynb)）。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# DeepSeek-V3 has 61 layers with 128 heads each. For every token a layer caches one **latent** of 512 numbers and one **rope key** of 64, in bf16. All 128 heads share them.
# %% [markdown] key="predict_first" lang="zh" src="0f5f88e5"
# ## 先猜一猜
#
# DeepSeek-V3 有 61 层，每层 128 个头。每一层为每个 token 缓存一个 512 个数的**潜在向量**和一个 64 个数的 **rope key**，都是 bf16，128 个头共用这一份。

# %% key="predict_freed"
predict("freed_bytes", ...)

# %% [markdown] key="formula" lang="en"
# ## What forgetting a token frees
#
# Start with one token in one layer. Llama-3.1-8B stores a key and a value of 128 numbers for each of 8 KV heads, so 2 × 8 × 128 × 2 B = 4,096 B. DeepSeek-V3 stores 512 + 64 numbers for all heads together, so 576 × 2 B = 1,152 B. Below are both rows in general, and $F$, the bytes that an eviction gives back to the pool of blocks:
# %% [markdown] key="formula" lang="zh" src="5f97b243"
# ## 淘汰一个 token，省下多少
#
# 先看一个 token 在一层里占多少。Llama-3.1-8B 有 8 个 KV 头，每个头存 128 个数的 key 和 128 个数的 value，一共 2 × 8 × 128 × 2 B = 4,096 B。DeepSeek-V3 所有的头合起来只存 512 + 64 个数，也就是 576 × 2 B = 1,152 B。写成一般的公式如下，其中 $F$ 是一次淘汰归还给块池的字节：

# %% [markdown] key="formula_math"
# $$r_\text{GQA} \;=\; 2 \, H_\text{kv} \, D \, s \qquad\quad r_\text{MLA} \;=\; (c + d) \, s \qquad\quad F \;=\; \Big( \big\lceil \tfrac{n}{B} \big\rceil - \big\lceil \tfrac{C}{B} \big\rceil \Big) \, B \sum_\text{layers} r$$

# %% [markdown] key="symbols" lang="en"
# | symbol | meaning | unit | value here: Llama-3.1-8B / DeepSeek-V3 |
# |---|---|---|---|
# | $r$ | what a token takes in one layer (its row) | bytes | 4,096 / 1,152 |
# | $H_\text{kv}$, $D$ | KV heads, and the numbers in a key or a value | heads, elements | 8, 128 / none |
# | $c$, $d$ | numbers in the latent (`kv_lora_rank`) and in the rope key (`qk_rope_head_dim`) | elements | none / 512, 64 |
# | $s$ | bytes of an element (bf16) | bytes | 2 |
# | $\sum r$ | the rows of a token in all layers | bytes | 131,072 / 70,272 |
# | $n$, $C$ | tokens of a sequence before an eviction and after it ($C$ is the capacity) | tokens | 8,192, 2,048 |
# | $B$ | block size | tokens a block | 16 |
# | $F$ | what goes back to the pool | bytes | 805,306,368 / 431,751,168 |
#
# With the numbers put in, for DeepSeek-V3: (8,192 / 16 - 2,048 / 16) × 16 × 70,272 = 384 × 16 × 70,272 = 431,751,168 B.
# %% [markdown] key="symbols" lang="zh" src="5441c89d"
# | 符号 | 含义 | 单位 | 本例取值：Llama-3.1-8B / DeepSeek-V3 |
# |---|---|---|---|
# | $r$ | 一个 token 在一层里占多少，即一行 | 字节 | 4,096 / 1,152 |
# | $H_\text{kv}$、$D$ | KV 头数，以及一个 key 或 value 有几个数 | 头、元素 | 8、128 / 无 |
# | $c$、$d$ | 潜在向量（`kv_lora_rank`）和 rope key（`qk_rope_head_dim`）各有几个数 | 元素 | 无 / 512、64 |
# | $s$ | 一个元素的字节数（bf16） | 字节 | 2 |
# | $\sum r$ | 一个 token 在所有层里的行加起来 | 字节 | 131,072 / 70,272 |
# | $n$、$C$ | 一条序列淘汰前、淘汰后的 token 数，后者就是容量 | token | 8,192、2,048 |
# | $B$ | 块大小 | token / 块 | 16 |
# | $F$ | 归还给块池多少 | 字节 | 805,306,368 / 431,751,168 |
#
# 以 DeepSeek-V3 为例，代入数字：(8,192 / 16 - 2,048 / 16) × 16 × 70,272 = 384 × 16 × 70,272 = 431,751,168 B。

# %% key="rows" lang="en"
from minikv.course import Table
from minikv.plan import CacheSpec
from minikv.units import GIB, MIB

rows = []
for name in ("Llama-3.1-8B", "Llama-3.1-70B", "DeepSeek-V3"):
    spec = CacheSpec.from_config(name, layout="hf", kv_dtype="bf16")
    token = spec.slope()
    rows.append((name, spec.layers[0].token_bytes, token, 100_000 * token / GIB, GIB // token))
layouts = [CacheSpec.from_config("DeepSeek-V3", layout=layout, kv_dtype="fp16").bytes_for(8192) // MIB for layout in ("hf-expanded", "hf")]
note = "DeepSeek-V3 in fp16, 8,192 tokens: {:,} MiB as K and V of every head, {:,} MiB as latents".format(*layouts)
Table(["model", "B a token and layer", "B a token, all layers", "100,000 tokens, GiB", "tokens in 1 GiB"], rows, lines=[note])

# %% key="rows" lang="zh"
from minikv.course import Table
from minikv.plan import CacheSpec
from minikv.units import GIB, MIB

rows = []
for name in ("Llama-3.1-8B", "Llama-3.1-70B", "DeepSeek-V3"):
    spec = CacheSpec.from_config(name, layout="hf", kv_dtype="bf16")
    token = spec.slope()
    rows.append((name, spec.layers[0].token_bytes, token, 100_000 * token / GIB, GIB // token))
layouts = [CacheSpec.from_config("DeepSeek-V3", layout=layout, kv_dtype="fp16").bytes_for(8192) // MIB for layout in ("hf-expanded", "hf")]
note = "DeepSeek-V3，fp16，8,192 个 token：每个头都存 K 和 V 占 {:,} MiB，只存潜在向量占 {:,} MiB".format(*layouts)
Table(["模型", "每个 token 每层，B", "每个 token 所有层，B", "100,000 个 token，GiB", "1 GiB 放得下的 token"], rows, lines=[note])

# %% [markdown] key="rows_read" lang="en"
# DeepSeek-V3 has 671 billion parameters, yet it frees less with each forgotten token than a model of 8 billion. It has to forget 15,279 tokens to free one GiB.
#
# (The line below the table shows a remedy to try first. A program that keeps K and V of every head needs 71 times as much for the same tokens: 39,040 MiB instead of 549. So cache latents before you evict anything.)
#
# Is such a small gain worth the trouble? It depends on what else a step reads. A decode step reads the weights once and the cache of every sequence. The cache is half of all that when each sequence has this many tokens:
# %% [markdown] key="rows_read" lang="zh" src="77ca6b24"
# DeepSeek-V3 有 6710 亿参数，可是每淘汰一个 token，省下的显存比 80 亿参数的模型还少。它要淘汰 15,279 个 token，才能省出 1 GiB。
#
# （表下面那一行说明了应该先用的办法。有的程序为每个头都存 K 和 V，同样的 token 要占 39,040 MiB，是潜在向量（549 MiB）的 71 倍。所以先改成缓存潜在向量，再考虑淘汰。）
#
# 省下的这一点值不值得，要看一步里还得读什么。解码的每一步，权重读一遍，每条序列的缓存也各读一遍。每条序列长到下面这么多 token 时，缓存正好占一半：

# %% [markdown] key="even_math"
# $$n^{*} \;=\; \frac{W}{b \sum_\text{layers} r}$$

# %% [markdown] key="even_text" lang="en"
# For example, with 32 sequences of Llama-3.1-8B, $W$ is 15,009,849,344 B, so $n^{*}$ = 15,009,849,344 / (32 × 131,072) = 3,579 tokens.
#
# | symbol | meaning | unit | value here: Llama-3.1-8B / DeepSeek-V3 |
# |---|---|---|---|
# | $W$ | weights that a step reads. Of DeepSeek's 256 experts in a layer these are only the ones that 32 sequences use, about 163 | bytes | 15,009,849,344 / 434,488,264,602 |
# | $b$ | sequences in the batch | sequences | 32 |
# | $\sum r$ | the rows of a token in all layers | bytes | 131,072 / 70,272 |
# | $n^{*}$ | context at which the cache is half of what a step reads | tokens | 3,579 / 193,217 |
#
# Eviction can only save the cache's part. How much faster does a step get when a quarter of the cache is kept? The table below gives the most that the roofline allows ([lesson 04](04_the_roofline.ipynb)), for 32 sequences and one imagined H200 that holds all weights. The column "cache is half at" is $n^{*}$.
# %% [markdown] key="even_text" lang="zh" src="d7a1e24e"
# 例如 Llama-3.1-8B，32 条序列，$W$ 是 15,009,849,344 B，所以 $n^{*}$ = 15,009,849,344 / (32 × 131,072) = 3,579 个 token。
#
# | 符号 | 含义 | 单位 | 本例取值：Llama-3.1-8B / DeepSeek-V3 |
# |---|---|---|---|
# | $W$ | 一步要读的权重；DeepSeek 每层 256 个专家，只算 32 条序列用到的，约 163 个 | 字节 | 15,009,849,344 / 434,488,264,602 |
# | $b$ | batch 里的序列数 | 条 | 32 |
# | $\sum r$ | 一个 token 在所有层里的行加起来 | 字节 | 131,072 / 70,272 |
# | $n^{*}$ | 一步读的字节里，缓存占到一半时的上下文长度 | token | 3,579 / 193,217 |
#
# 淘汰只能省缓存这一部分。如果只留四分之一的缓存，一步最多能快多少？下表按 Roofline 模型（[第 04 课](04_the_roofline.ipynb)）算出上限，设想有一块装得下全部权重的 H200，跑 32 条序列。“缓存占一半”那一列就是 $n^{*}$。

# %% key="even" lang="en"
from minikv.plan import find_gpu
from minikv.plan.roofline import decode_work, gpu_roof

roof, rows = gpu_roof(find_gpu("H200")), []
for name in ("Llama-3.1-8B", "Llama-3.1-70B", "DeepSeek-V3"):
    works = {context: decode_work(name, 32, context) for context in (8_192, 32_768, 131_072)}
    some, faster = works[32_768], []
    for context, work in works.items():
        kept = decode_work(name, 32, context // 4)
        faster.append(f"{roof.seconds(work.flops, work.num_bytes) / roof.seconds(kept.flops, kept.num_bytes):.2f}x")
    even = round(some.weight_bytes / (some.cache_bytes / some.context))
    rows.append((name, even, round(some.attention_intensity), *faster))
head = ["cache is half at, tokens", "FLOP per byte of cache", "times as fast at 8,192 tokens", "at 32,768", "at 131,072"]
Table(["model", *head], rows, right=head, lines=[f"{roof.name}: ridge point at {roof.ridge:.0f} FLOP per byte"])

# %% key="even" lang="zh"
from minikv.plan import find_gpu
from minikv.plan.roofline import decode_work, gpu_roof

roof, rows = gpu_roof(find_gpu("H200")), []
for name in ("Llama-3.1-8B", "Llama-3.1-70B", "DeepSeek-V3"):
    works = {context: decode_work(name, 32, context) for context in (8_192, 32_768, 131_072)}
    some, faster = works[32_768], []
    for context, work in works.items():
        kept = decode_work(name, 32, context // 4)
        faster.append(f"{roof.seconds(work.flops, work.num_bytes) / roof.seconds(kept.flops, kept.num_bytes):.2f}x")
    even = round(some.weight_bytes / (some.cache_bytes / some.context))
    rows.append((name, even, round(some.attention_intensity), *faster))
head = ["缓存占一半，token", "缓存每字节的 FLOP", "8,192 个 token 时加快到", "32,768 时", "131,072 时"]
Table(["模型", *head], rows, right=head, lines=[f"{roof.name}：拐点在每字节 {roof.ridge:.0f} FLOP"])

# %% [markdown] key="even_read" lang="en"
# **You keep the same quarter and gain much less.** With latents, the cache is the smaller part of a step for most contexts.
#
# The column "FLOP per byte of cache" shows a second gain. All 128 heads read the same row, with 576 numbers for the logits and 512 for the output. Each number costs a multiplication and an addition, so a cached byte costs 128 × 2 × (576 + 512) / 1,152 = 242 FLOP. That is above the ridge point of 206. So where the cache is far larger than the weights, the step waits for arithmetic, and forgetting saves arithmetic too.
#
# The gain in *room* is as large as for any model. If a quarter stays, about four times as many sequences fit, however small a token is. So the reason to evict from an MLA cache is room, for very long contexts or very large batches.
#
# ### Skipping instead of forgetting: DeepSeek Sparse Attention
#
# DeepSeek-V3.2 goes another way, **DeepSeek Sparse Attention** (DSA). A small extra network in each layer, the *lightning indexer*, scores all earlier tokens for every query. Attention then reads only the 2,048 best rows (`index_topk`). At a context of 131,072 tokens that is 1 row in 64, because 131,072 / 2,048 = 64.
#
# DSA saves reading and arithmetic, as eviction does. But it doesn't save room. Every latent stays in the cache, because the next query may choose other tokens. The indexer even adds a key of 128 numbers to each row. In return, no token is ever lost for good.
#
# ## One row for all heads
#
# With GQA, every KV head can keep tokens of its own ([lesson 14](14_what_to_forget.ipynb)). What happens if you ask for that here?
# %% [markdown] key="even_read" lang="zh" src="bf0ae95f"
# **同样只留四分之一，好处却小得多**。用潜在向量时，在大多数上下文长度下，缓存都只占一步里较小的一部分。
#
# “缓存每字节的 FLOP”那一列还说明了另一种好处。128 个头读的是同一行，算 logit 用 576 个数，算输出用 512 个数，每个数做一次乘法和一次加法，所以缓存的每个字节要算 128 × 2 × (576 + 512) / 1,152 = 242 FLOP，超过了拐点 206。也就是说，当缓存远大于权重时，瓶颈在计算，淘汰连计算也一起省了。
#
# 就**空间**来说则没有区别：只留四分之一，就能放下大约四倍的序列，与一个 token 占多少无关。因此在 MLA 上做淘汰，理由是空间不够，也就是上下文很长或者 batch 很大。
#
# ### 不淘汰，只跳过：DeepSeek 稀疏注意力（DSA）
#
# DeepSeek-V3.2 走的是另一条路，叫 **DeepSeek 稀疏注意力**（DeepSeek Sparse Attention，DSA）。每层多一个很小的网络，称为 lightning indexer，它为每个 query 给前面所有 token 打分，注意力只读得分最高的 2,048 行（`index_topk`）。例如上下文有 131,072 个 token 时，131,072 / 2,048 = 64，也就是每 64 行只读 1 行。
#
# 与淘汰一样，DSA 省了读取，也省了计算；但它不省空间。下一个 query 可能要选别的 token，所以每个潜在向量都得留在缓存里，而且 indexer 在每一行还要多存一个 128 个数的 key。好处是什么都不会真正丢掉。
#
# ## 一行，所有的头共用
#
# 用 GQA 时，每个 KV 头可以各留各的 token（[第 14 课](14_what_to_forget.ipynb)）。在潜在向量上也这样要求，会怎样？

# %% key="refused" lang="en"
import torch

from minikv.errors import MiniKVError
from minikv.eviction import H2O, Budget, install_kv_eviction
from minikv.models import load, recall_documents

torch.set_num_threads(1)
# The text quotes answers and scores to the digit, and another device rounds otherwise: so the CPU, by name.
model = load("tiny-mla", device="cpu").model
try:
    install_kv_eviction(model, policy="h2o", budget=32, scope="head")
except MiniKVError as error:
    print(error.text("en"))

# %% key="refused" lang="zh"
import torch

from minikv.errors import MiniKVError
from minikv.eviction import H2O, Budget, install_kv_eviction
from minikv.models import load, recall_documents

torch.set_num_threads(1)
# 正文逐位引用答对的比例和得分，而换一个设备，舍入就不同，所以写明用 CPU。
model = load("tiny-mla", device="cpu").model
try:
    install_kv_eviction(model, policy="h2o", budget=32, scope="head")
except MiniKVError as error:
    print(error.text("zh"))

# %% [markdown] key="wishes" lang="en"
# The package refuses `scope="head"`. What do we lose by that? Let's measure it on tiny-mla. This model has two layers with 4 query heads each, a latent of 64 numbers and a rope key of 16. It has learned the same task as tiny-gqa: names, cities and questions about them.
#
# The model reads a text of 193 tokens. Suppose each head could keep its own 32 heavy hitters, that is, the tokens on which it has put the most attention. (The first 4 and the last 12 tokens stay anyway and don't count.) The joint list has 32 tokens too, chosen by the attention of all four heads together. Each bar counts how many of a head's 32 are also on the joint list:
# %% [markdown] key="wishes" lang="zh" src="b63d9714"
# 本包拒绝了 `scope="head"`。这样损失有多大？我们在 tiny-mla 上量一量。它有两层，每层 4 个 query 头，潜在向量 64 个数，rope key 16 个数，学的任务与 tiny-gqa 相同，也是人名、城市和提问。
#
# 让它读一篇 193 个 token 的文本。假设每个头可以各留 32 个重要 token，也就是它累计注意力最大的 32 个（最前面 4 个和最后面 12 个本来就留，不算在内）。共同名单也是 32 个，由四个头的注意力加在一起来选。图里的每一条，就是一个头自己的 32 个里有几个也在共同名单上：

# %% key="wishes_table" lang="en" tags="hardware"
[document] = recall_documents(1, seed=1)
text = [int(token) for token in document.tokens]
context = torch.tensor([text[:193]])  # [1, 193]
model.set_attn_implementation("eager")
with torch.no_grad():
    masses = [each[0].sum(1) for each in model(context, output_attentions=True).attentions]  # [1, H, T, S] -> [H, S], over queries
model.set_attn_implementation("sdpa")
wishes = [[set((head[4:-12].topk(32).indices + 4).tolist()) for head in mass] for mass in masses]
joint = [set((mass.sum(0)[4:-12].topk(32).indices + 4).tolist()) for mass in masses]

# %% key="wishes_table" lang="zh" tags="hardware"
[document] = recall_documents(1, seed=1)
text = [int(token) for token in document.tokens]
context = torch.tensor([text[:193]])  # [1, 193]
model.set_attn_implementation("eager")
with torch.no_grad():
    masses = [each[0].sum(1) for each in model(context, output_attentions=True).attentions]  # [1, H, T, S] -> [H, S]，对 query 求和
model.set_attn_implementation("sdpa")
wishes = [[set((head[4:-12].topk(32).indices + 4).tolist()) for head in mass] for mass in masses]
joint = [set((mass.sum(0)[4:-12].topk(32).indices + 4).tolist()) for mass in masses]

# %% key="wishes_bars" lang="en" tags="hardware"
from minikv.course.charts import bars

common = {f"layer {layer}": [len(own & joint[layer]) for own in wishes[layer]] for layer in (0, 1)}
show(bars([f"head {head}" for head in range(4)], common, x="of its own 32 tokens, on the joint list"))
rows = [(layer, len(set.intersection(*of)), len(set.union(*of)), f"{float(masses[layer].sum()):.1f}") for layer, of in enumerate(wishes)]
head = ["layer", "tokens chosen by all four heads", "by at least one", "sum of all scores"]
Table(head, rows, right=head[3:])

# %% key="wishes_bars" lang="zh" tags="hardware"
from minikv.course.charts import bars

common = {f"第 {layer} 层": [len(own & joint[layer]) for own in wishes[layer]] for layer in (0, 1)}
show(bars([f"头 {head}" for head in range(4)], common, x="自己的 32 个里，也在共同名单上的个数"))
rows = [(layer, len(set.intersection(*of)), len(set.union(*of)), f"{float(masses[layer].sum()):.1f}") for layer, of in enumerate(wishes)]
head = ["层", "四个头都选的 token", "至少一个头选的", "所有得分之和"]
Table(head, rows, right=head[3:])

# %% [markdown] key="score" lang="en"
# The heads disagree. Each head chooses 32 tokens, but only 8 (layer 0) and 5 (layer 1) are common to all four. Together the four heads choose about seventy. But a row is there for all heads or for none. So we add up the attention of all heads, and each token gets one score.
#
# A small example first: two heads, and two cached tokens with a latent and a rope key of two numbers each. Token 0 has the latent (1, 0) and the rope key (1, 0), token 1 has (0, 1) and (0, 1). There is one query in each head. The scale is 1/√(2 + 2) = 0.5:
#
# | | query for latents | rope query | logit of token 0 | logit of token 1 | softmax |
# |---|---|---|---|---|---|
# | head 0 | (2, 0) | (0, 1) | 0.5 × (2 + 0) = 1 | 0.5 × (0 + 1) = 0.5 | 0.622, 0.378 |
# | head 1 | (2, 0) | (2, 0) | 0.5 × (2 + 2) = 2 | 0.5 × (0 + 0) = 0 | 0.881, 0.119 |
# | **score** | | | | | **1.503, 0.497** |
#
# The two scores sum to 2, because each of the two heads hands out exactly 1. In general:
# %% [markdown] key="score" lang="zh" src="90da6f0c"
# 各个头选的并不一样：每个头选 32 个 token，四个头都选中的，两层分别只有 8 个和 5 个，合起来却有七十个左右。可是一行要么所有头都有，要么都没有。所以只能把所有头的注意力加起来，每个 token 得到一个得分。
#
# 先看一个小例子：两个头，缓存里有两个 token，潜在向量和 rope key 都只有两个数。token 0 的潜在向量是 (1, 0)，rope key 是 (1, 0)；token 1 的是 (0, 1) 和 (0, 1)。每个头只有一个 query，缩放系数是 1/√(2 + 2) = 0.5：
#
# | | 对潜在向量的 query | rope query | token 0 的 logit | token 1 的 logit | softmax |
# |---|---|---|---|---|---|
# | 头 0 | (2, 0) | (0, 1) | 0.5 × (2 + 0) = 1 | 0.5 × (0 + 1) = 0.5 | 0.622、0.378 |
# | 头 1 | (2, 0) | (2, 0) | 0.5 × (2 + 2) = 2 | 0.5 × (0 + 0) = 0 | 0.881、0.119 |
# | **得分** | | | | | **1.503、0.497** |
#
# 两个得分加起来是 2，因为两个头各自正好分出去 1。写成一般的公式：

# %% [markdown] key="score_math"
# $$p_{h,t,i} \;=\; \underset{i \,\le\, t}{\operatorname{softmax}} \; \sigma \left( \big( q_{h,t}^{\text{nope}} W_h^{K} \big) \cdot c_i \;+\; q_{h,t}^{\text{rope}} \cdot k_i \right) \qquad\qquad s_i \;=\; \sum_t \sum_{h=1}^{H} p_{h,t,i} \qquad\qquad \sum_i s_i \;=\; H \, T$$

# %% [markdown] key="score_symbols" lang="en"
# | symbol | meaning | unit | value here |
# |---|---|---|---|
# | $c_i$, $k_i$ | what is cached of token $i$: its latent and its rope key | elements | 64, 16 |
# | $q_{h,t}^{\text{nope}}$, $q_{h,t}^{\text{rope}}$ | the two parts of query $t$ of head $h$: without a position, and with it | elements | 32, 16 |
# | $W_h^{K}$ | head $h$'s part of `kv_b_proj`, which makes keys of latents. Here it is multiplied into the query instead ("absorbed", [lesson 10](10_kernels.ipynb)) | elements | 32 × 64 |
# | $\sigma$ | the scale $1 / \sqrt{\text{nope} + \text{rope}}$, from the width of a key as a head would see it (32 + 16), not of a cached row | | 0.144 |
# | $p_{h,t,i}$ | the attention that query $t$ of head $h$ gives to token $i$; one query's row sums to 1 | 0 to 1 | 0.622 in the example |
# | $s_i$ | the score of token $i$ | | 772 in all |
# | $H$, $T$ | query heads, and queries so far | heads, tokens | 4, 193 |
#
# With the numbers put in: σ = 1/√(32 + 16) = 0.144, and all scores together are 4 × 193 = 772. That is the column "sum of all scores" below the bars. There are no KV heads to average over, although the config of DeepSeek-V3 says `num_key_value_heads: 128`.
#
# How good is such a score? Here are the recall curves of [lesson 14](14_what_to_forget.ipynb), now on latents. The model reads 193 tokens, each layer keeps a share of them, and only then come the questions:
# %% [markdown] key="score_symbols" lang="zh" src="53cff23e"
# | 符号 | 含义 | 单位 | 本例取值 |
# |---|---|---|---|
# | $c_i$、$k_i$ | token $i$ 缓存下来的潜在向量和 rope key | 元素 | 64、16 |
# | $q_{h,t}^{\text{nope}}$、$q_{h,t}^{\text{rope}}$ | 头 $h$ 的第 $t$ 个 query，分成不带位置和带位置的两部分 | 元素 | 32、16 |
# | $W_h^{K}$ | `kv_b_proj` 里头 $h$ 的那一部分，用来由潜在向量得到 key；这里改为乘到 query 上（即矩阵吸收，[第 10 课](10_kernels.ipynb)） | 元素 | 32 × 64 |
# | $\sigma$ | 缩放系数 $1 / \sqrt{\text{nope} + \text{rope}}$，按一个头看到的 key 的宽度算，不按缓存里一行的宽度算 | | 0.144 |
# | $p_{h,t,i}$ | 头 $h$ 的第 $t$ 个 query 分给 token $i$ 的注意力；一个 query 的一行加起来是 1 | 0 到 1 | 上例中的 0.622 |
# | $s_i$ | token $i$ 的得分 | | 总和 772 |
# | $H$、$T$ | query 头数，到目前为止的 query 数 | 头、token | 4、193 |
#
# 代入数字：σ = 1/√(32 + 16) = 0.144；得分的总和是 4 × 193 = 772，也就是前面条形图下“所有得分之和”那一列。这里没有可以求平均的 KV 头，尽管 DeepSeek-V3 的配置里写着 `num_key_value_heads: 128`。
#
# 这样的得分好不好用？我们把[第 14 课](14_what_to_forget.ipynb)的召回率曲线换到潜在向量上再画一遍。模型先读 193 个 token，每层留下一部分，之后才提问：

# %% key="curves" lang="en" tags="hardware"
from minikv.course.lessons.l14.recall_chart import recall_chart
from minikv.eviction import Echo, KeyDiff, Knorm, Random, StreamingLLM
from minikv.eviction.study.curves import Fitted, Setting, curve

policies = {"random": Random(), "streaming": StreamingLLM(), "h2o sum": H2O("sum"), "h2o max": H2O("max")}
policies |= {"knorm": Knorm(), "keydiff": KeyDiff(), "echo": Echo(), "echo, fitted": Fitted(Echo(), by=Echo())}
points = list(curve(model, policies, [Setting(kept=share) for share in (0.5, 0.25, 0.1)], count=12))
show(recall_chart(points, "en"), caption=t("curves_caption"))

# %% key="curves" lang="zh" tags="hardware"
from minikv.course.lessons.l14.recall_chart import recall_chart
from minikv.eviction import Echo, KeyDiff, Knorm, Random, StreamingLLM
from minikv.eviction.study.curves import Fitted, Setting, curve

policies = {"random": Random(), "streaming": StreamingLLM(), "h2o sum": H2O("sum"), "h2o max": H2O("max")}
policies |= {"knorm": Knorm(), "keydiff": KeyDiff(), "echo": Echo(), "echo, fitted": Fitted(Echo(), by=Echo())}
points = list(curve(model, policies, [Setting(kept=share) for share in (0.5, 0.25, 0.1)], count=12))
show(recall_chart(points, "zh"), caption=t("curves_caption"))

# %% key="perplexity" lang="en" tags="hardware"
rows = []
for name in ("random", "h2o sum", "keydiff", "echo", "echo, fitted"):
    rows.append((name, *(round(point.score.perplexity, 1) for point in points if point.policy == name)))
note = f"full cache: {points[0].score.perplexity:.1f}"
head = ["perplexity of the ordinary words", "50 % kept", "25 % kept", "10 % kept"]
Table(head, rows, lines=[note])

# %% key="perplexity" lang="zh" tags="hardware"
rows = []
for name in ("random", "h2o sum", "keydiff", "echo", "echo, fitted"):
    rows.append((name, *(round(point.score.perplexity, 1) for point in points if point.policy == name)))
note = f"完整缓存：{points[0].score.perplexity:.1f}"
head = ["普通词的困惑度", "留 50%", "留 25%", "留 10%"]
Table(head, rows, lines=[note])

# %% [markdown] key="curves_read" lang="en"
# - **H2O doesn't help here.** Neither its sum nor its maximum beats a random choice. That was to be expected, because no query had looked at the facts yet. And now a single list has to serve all heads.
# - **Knorm** answered most questions on tiny-gqa. Here it falls below random. It looks at the length of a key, and the next cell shows how little there is to see.
# - **KeyDiff** compares directions, and a latent has a direction just as a key has. **Echo** ([lesson 14b](14b_your_own_policy.ipynb)) uses the text's own words as queries once more and needs only logits. With 25 % kept, both lose nothing. With 10 % kept, "echo, fitted" still answers 91.1 %. It divides the same room unequally between the two layers, and it found the best shares on other texts beforehand.
# - Perplexity ranks the policies differently. With 25 % kept, KeyDiff answers everything, but the perplexity of the ordinary words rises from 7.9 to 40.3. Echo stays at 8.7. H2O's sum answers only 9.4 %, but its perplexity stays at 7.9.
#
# This is one tiny model and one kind of text, with all questions at the end. If the questions come while the text is read, H2O's sum is well ahead of a random choice in some settings and far behind in others ([docs/internal/eviction.md](repo:docs/internal/eviction.md) has both). None of it tells you how DeepSeek-V3 behaves.
# %% [markdown] key="curves_read" lang="zh" src="d9b391f1"
# - **H2O 在这里没有用**。不管求和还是取最大值，都不如随机选择。这并不意外，因为还没有任何 query 看过那些事实，何况现在一份名单要照顾所有的头。
# - **Knorm** 在 tiny-gqa 上能答对大多数问题，在这里却比随机还差。它看的是 key 的长度，而下一个单元格会告诉你，长度几乎没有差别。
# - **KeyDiff** 比较的是方向，潜在向量和 key 一样有方向。**Echo**（[第 14b 课](14b_your_own_policy.ipynb)）拿文本自己的词再当一遍 query，只需要 logit。留 25% 时，两者一题也没有丢。只留 10% 时，“echo, fitted”还能答对 91.1%：总容量不变，但两层分到的多少不同，怎么分是事先在别的文本上定好的。
# - 按困惑度排，次序又不一样。留 25% 时，KeyDiff 全部答对，但普通词的困惑度从 7.9 升到 40.3。Echo 只有 8.7；求和的 H2O 只答对 9.4%，困惑度却停在 7.9。
#
# 这只是一个极小的模型、一种文本，而且所有问题都在文本之后才来。如果一边读一边问，H2O 的求和在有的设置下明显好于随机，在有的设置下又差得很远（两种情况都记在 [docs/internal/eviction.md](repo:docs/internal/eviction.md) 里）。DeepSeek-V3 会怎样，从这里推不出来。

# %% key="lengths" lang="en" tags="hardware"
rows = []
for name in ("tiny-gqa", "tiny-mla"):
    with torch.no_grad():
        cache = (model if name == "tiny-mla" else load(name, device="cpu").model)(context).past_key_values
    for number, layer in enumerate(cache.layers):
        length = layer.keys.norm(dim=-1)  # of what is cached as keys: [1, heads, T]
        rows.append((name, number, round(float(100 * (length.std(-1) / length.mean(-1)).mean()), 1)))
Table(["model", "layer", "lengths: standard deviation, % of their mean"], rows)

# %% key="lengths" lang="zh" tags="hardware"
rows = []
for name in ("tiny-gqa", "tiny-mla"):
    with torch.no_grad():
        cache = (model if name == "tiny-mla" else load(name, device="cpu").model)(context).past_key_values
    for number, layer in enumerate(cache.layers):
        length = layer.keys.norm(dim=-1)  # 缓存为 keys 的长度：[1, 头, T]
        rows.append((name, number, round(float(100 * (length.std(-1) / length.mean(-1)).mean()), 1)))
Table(["模型", "层", "长度的标准差，占均值的 %"], rows)

# %% [markdown] key="lengths_read" lang="en"
# Before a latent is cached, it passes a norm (`kv_a_layernorm`). After that all latents have much the same length, above all in layer 1, where the deviation is 1.7 % (the keys of tiny-gqa: 20.5 %). So what a policy looks at may mean something else in another architecture, or nothing at all.
#
# ## Shift it by hand
#
# At the top of the lesson we forgot 1,021 tokens and moved the others up. For Llama, moving up means `rope(key, -1021)` on the whole key. What does it mean for a latent?
#
# With MLA, the position of a row is in its rope key and nowhere else. That is why the rope key is stored separately ([lesson 03](03_the_2_86x_mistake.ipynb)). You can check it without forgetting anything: move the *whole* text by 100 places, queries included. Attention depends on distances only, so no logit may change.
# %% [markdown] key="lengths_read" lang="zh" src="d50ebfbb"
# 潜在向量写入缓存之前要过一个归一化（`kv_a_layernorm`），之后长度都差不多，第 1 层尤其明显，标准差只有 1.7%，而 tiny-gqa 是 20.5%。也就是说，策略看的那个量，换一种架构可能是另一个意思，也可能毫无意义。
#
# ## 亲手挪一次
#
# 本课开头的例子淘汰了 1,021 个 token，其余的往前挪。对 Llama 来说，往前挪就是对整个 key 做 `rope(key, -1021)`。换成潜在向量又该怎么做？
#
# 用 MLA 时，一行的位置只在 rope key 里，别处都没有，当初单独分出 rope key 就是为了这个（[第 03 课](03_the_2_86x_mistake.ipynb)）。这一点不用淘汰也能验证：把**整篇**文本连同 query 一起挪 100 个位置。注意力只看距离，所以任何一个 logit 都不该变。

# %% key="shift" lang="en" tags="hardware"
from copy import deepcopy

from minikv.eviction.hf.rotary import find_rotary

rotary, by = find_rotary(model, latent=True), 100
rest, places = torch.tensor([text[193:]]), torch.full((1, 193), by)  # the questions [1, Q]; how far each row moves
with torch.no_grad():
    before = model(context).past_key_values  # keys: latents [1, 1, 193, 64]; values: rope keys [1, 1, 193, 16]
    unmoved = model(rest, past_key_values=deepcopy(before)).logits

# %% key="shift" lang="zh" tags="hardware"
from copy import deepcopy

from minikv.eviction.hf.rotary import find_rotary

rotary, by = find_rotary(model, latent=True), 100
rest, places = torch.tensor([text[193:]]), torch.full((1, 193), by)  # the questions [1, Q]; how far each row moves
with torch.no_grad():
    before = model(context).past_key_values  # keys：潜在向量 [1, 1, 193, 64]；values：rope key [1, 1, 193, 16]
    unmoved = model(rest, past_key_values=deepcopy(before)).logits

# %% key="shift_turned" lang="en" tags="hardware"
differences = {}
for parts in (["values"], [], ["values", "keys"]):
    moved = deepcopy(before)
    for layer in moved.layers:
        for part in parts:
            setattr(layer, part, rotary.turn(getattr(layer, part), places, back=True))
    at = torch.arange(193, len(text))[None] - by  # [1, Q]: the questions' positions, moved as well
    with torch.no_grad():
        logits = model(rest, past_key_values=moved, position_ids=at).logits
    differences[tuple(parts)] = f"{float((logits - unmoved).abs().max()):.1g}"
names = ["the rope keys alone", "nothing", "rope keys and latents"]
head = ["what was turned back by 100 places", "largest difference of a logit"]
Table(head, zip(names, differences.values()), right=head[1:])

# %% key="shift_turned" lang="zh" tags="hardware"
differences = {}
for parts in (["values"], [], ["values", "keys"]):
    moved = deepcopy(before)
    for layer in moved.layers:
        for part in parts:
            setattr(layer, part, rotary.turn(getattr(layer, part), places, back=True))
    at = torch.arange(193, len(text))[None] - by  # [1, Q]: the questions' positions, moved as well
    with torch.no_grad():
        logits = model(rest, past_key_values=moved, position_ids=at).logits
    differences[tuple(parts)] = f"{float((logits - unmoved).abs().max()):.1g}"
names = ["只转 rope key", "什么都不转", "rope key 和潜在向量"]
head = ["往回转 100 个位置的是", "logit 的最大差别"]
Table(head, zip(names, differences.values()), right=head[1:])

# %% [markdown] key="shift_read" lang="en"
# **Turn the rope key and leave the latent alone.** (The small difference in the first line is rounding.) In DeepSeek-V3 you turn 64 numbers of a row. In Llama-3.1-8B you turn the 8 × 128 = 1,024 numbers of K, so a shift of latents is cheaper.
#
# In the package, `positions="reindexed"` does this shift: the kept tokens count 0, 1, 2 and so on. With `positions="original"` every token stays where it was. Both are right. It is wrong to mix them: to keep the old rotation and take the position of new tokens from the length of the cache ([lesson 14b](14b_your_own_policy.ipynb)). The next cell compares all three on latents. The model reads the first 129 tokens of six texts, 32 as a prompt and the rest one by one. Each layer keeps 48 tokens:
# %% [markdown] key="shift_read" lang="zh" src="6319c594"
# **只转 rope key，潜在向量不动**。（第一行剩下的是舍入误差。）DeepSeek-V3 的一行只转 64 个数，Llama-3.1-8B 则要转 K 的 8 × 128 = 1,024 个，所以挪潜在向量比挪 key 便宜。
#
# 在本包里，`positions="reindexed"` 做的就是这种挪动：留下的 token 重新编号为 0、1、2……；`positions="original"` 则让每个 token 留在原来的位置。两种都对，错的是混用，也就是旋转还是旧的，新 token 的位置却取自缓存的长度（[第 14b 课](14b_your_own_policy.ipynb)）。下一个单元格在潜在向量上比较这三种做法：读六篇文本的前 129 个 token，其中 32 个作提示词，其余一个一个地读，留 48 个：

# %% key="positions" lang="en" tags="hardware"
from minikv.course.lessons.l15.stream import graded, read
from minikv.eviction.study.tasks import stream_cases

held = lambda cache: cache.layers[0].resident
ways = {"the text's length": (None, "original"), "the cache's length": (held, "original")}
ways |= {"the cache's length, kept tokens renumbered": (held, "reindexed")}
cases, rows = stream_cases(6, length=193), []
for name in ("streaming", "keydiff"):
    for what, (place, positions) in ways.items():
        sizes = dict(n_sink=4, budget=28, n_recent=16)
        logs, _ = read(model, cases, policies[name], next_position=place, positions=positions, end=129, **sizes)
        rows.append((name, what, *(round(figure, 1) for figure in graded(logs, cases, 0, 129))))
Table(["policy", "position of the next token", "answered, %", "perplexity"], rows)

# %% key="positions" lang="zh" tags="hardware"
from minikv.course.lessons.l15.stream import graded, read
from minikv.eviction.study.tasks import stream_cases

held = lambda cache: cache.layers[0].resident
ways = {"文本的长度": (None, "original"), "缓存的长度": (held, "original")}
ways |= {"缓存的长度，留下的重新编号": (held, "reindexed")}
cases, rows = stream_cases(6, length=193), []
for name in ("streaming", "keydiff"):
    for what, (place, positions) in ways.items():
        sizes = dict(n_sink=4, budget=28, n_recent=16)
        logs, _ = read(model, cases, policies[name], next_position=place, positions=positions, end=129, **sizes)
        rows.append((name, what, *(round(figure, 1) for figure in graded(logs, cases, 0, 129))))
Table(["策略", "下一个 token 的位置", "答对，%", "困惑度"], rows)

# %% [markdown] key="positions_read" lang="en"
# With positions from the cache's length and old rotations (the second row), StreamingLLM loses more than a third of its answers. KeyDiff keeps nearly all of its answers, but its perplexity rises from 11.9 to 250, so the ordinary words get twenty times as hard to guess. The latents still say what each token is, so a query finds it. But the distances between tokens are wrong. **A count of right answers alone would have missed the error.** Look at the perplexity and at the logits as well.
#
# The two right ways differ in perplexity too, and neither is better for both policies: 46.1 and 20 with StreamingLLM, 11.9 and 21.1 with KeyDiff.
#
# ## Blocks that really go back
#
# So far the cache was dense, and each eviction gathered it into a new tensor. An engine keeps latents in blocks, and a block can go back only when none of its tokens is needed. So the tokens that stay, the *survivors*, move to the front, and the blocks behind them are freed. Which survivors have to move?
# %% [markdown] key="positions_read" lang="zh" src="ca2ad0eb"
# 位置取自缓存长度、旋转却还是旧的（每种策略的第二行），StreamingLLM 答对的就少了三分之一以上。KeyDiff 的答案几乎都还在，但困惑度从 11.9 升到 250，也就是说，普通词难猜了二十倍。这是因为潜在向量没有变，token 的内容还找得到，错的是 token 之间的距离。**如果只数答对多少，这个错误就漏过去了**。所以还要看困惑度和 logit。
#
# 两种正确做法的困惑度也不一样，谈不上哪一种总是更好：StreamingLLM 是 46.1 和 20，KeyDiff 是 11.9 和 21.1。
#
# ## 真正归还块
#
# 到目前为止，缓存都是稠密的，每次淘汰都 gather 成一个新张量。引擎则把潜在向量存在块里，而一个块只有在它的 token 全都不再需要时，才能归还。所以要把留下的 token 搬到前面，再释放后面的块。哪些 token 需要搬？

# %% key="predict_moved"
predict("survivors_moved", ...)

# %% key="moved" lang="en" tags="hardware"
from minikv.course.lessons.l15.paged_model import OnBlocks

blocks, rows = OnBlocks(model, "keydiff", Budget(n_sink=4, budget=24, n_recent=12)), []
blocks.read("A", text[:100])
for step in range(3):
    before = [blocks.eviction.positions("A", layer)[0] for layer in (0, 1)]  # place in the text of each slot
    gone = blocks.eviction.evict(["A"])
    after = [blocks.eviction.positions("A", layer)[0] for layer in (0, 1)]
    moved = [int((old[: len(new)] != new).sum()) for old, new in zip(before, after)]
    packed = [int((old[: len(new)] != new.sort().values).sum()) for old, new in zip(before, after)]
    rows.append((len(before[0]), gone, str(moved), sum(moved) * blocks.cache.spec.layers[0].token_bytes, str(packed)))
    blocks.read("A", text[100 + step : 101 + step])
blocks.close()

# %% key="moved" lang="zh" tags="hardware"
from minikv.course.lessons.l15.paged_model import OnBlocks

blocks, rows = OnBlocks(model, "keydiff", Budget(n_sink=4, budget=24, n_recent=12)), []
blocks.read("A", text[:100])
for step in range(3):
    before = [blocks.eviction.positions("A", layer)[0] for layer in (0, 1)]  # 每个槽位在文本里的位置
    gone = blocks.eviction.evict(["A"])
    after = [blocks.eviction.positions("A", layer)[0] for layer in (0, 1)]
    moved = [int((old[: len(new)] != new).sum()) for old, new in zip(before, after)]
    packed = [int((old[: len(new)] != new.sort().values).sum()) for old, new in zip(before, after)]
    rows.append((len(before[0]), gone, str(moved), sum(moved) * blocks.cache.spec.layers[0].token_bytes, str(packed)))
    blocks.read("A", text[100 + step : 101 + step])
blocks.close()

# %% key="moved_table" lang="en" tags="hardware"
slots = f"layer 1, slot by slot, the place in the text: {after[1].tolist()}"
head = ["tokens before", "evicted", "rows moved in layers 0, 1", "bytes moved", "rows to move if the text's order were kept"]
Table(head, rows, right=[head[2], head[4]], lines=[slots])

# %% key="moved_table" lang="zh" tags="hardware"
slots = f"第 1 层，各槽位里的 token 在文本中的位置：{after[1].tolist()}"
head = ["淘汰前的 token 数", "淘汰", "第 0、1 层搬动的行", "搬动的字节", "若要保持次序，得搬的行"]
Table(head, rows, right=[head[2], head[4]], lines=[slots])

# %% [markdown] key="moved_read" lang="en"
# `OnBlocks` is a helper of this lesson: `read` computes tokens, and `eviction` is the package's `PagedEviction`. (This cache calls the latent `k` and the rope key `v`.)
#
# Survivors that already lie in front stay there. The survivors from behind fill the holes. When one token goes at every step, one row moves in each layer: 64 + 16 numbers in fp32, so 80 × 4 B = 320 B, or 640 B for two layers. If the slots had to follow the order of the text, almost all rows would move every time. Attention doesn't need that order, because it sums over rows, and each rope key carries its own position. The price is a list of positions, because the number of a slot no longer tells you where its token stands in the text.
#
# (Exercise 15.2 does keep the text's order, which is easier to check.)
#
# The two parts of a row have to move together. What happens if we leave one of them behind?
# %% [markdown] key="moved_read" lang="zh" src="a0183eaf"
# `OnBlocks` 是本课的小工具：`read` 计算 token，`eviction` 就是本包的 `PagedEviction`。（在这个缓存里，潜在向量叫 `k`，rope key 叫 `v`。）
#
# 留下的 token 如果已经在前面，就不用动；其余的从后面来填空位。如果每一步淘汰一个 token，每层就只搬一行，即 64 + 16 个 fp32 的数，80 × 4 B = 320 B，两层是 640 B。要是非得让槽位保持文本的次序，几乎每次都要全部重搬。注意力并不需要这个次序，因为它对各行求和，而每个 rope key 都带着自己的位置。代价是要维护一份位置表：只看槽位的编号，已经不知道 token 在文本的什么地方了。
#
# （练习 15.2 仍按文本的次序来搬，便于核对。）
#
# 一行的两部分必须一起搬。如果漏搬其中一部分，会怎样？

# %% key="left_behind" lang="en" tags="hardware"
rows, asked = [], document.positions
for left, what in ((None, "both moved"), ("v", "rope keys left behind"), ("k", "latents left behind")):
    blocks = OnBlocks(model, "keydiff", Budget(n_sink=4, budget=42, n_recent=2), num_blocks=40)
    blocks.read("A", text[:193])
    parts = [getattr(blocks.cache.layer(layer), left) for layer in (0, 1) if left]
    old = [part.clone() for part in parts]
    blocks.eviction.evict(["A"])
    for part, lying in zip(parts, old):
        part.copy_(lying)  # this part stays where it was
    parts = part = None  # the cache is freed in close(): no name may hold a part of it
    logits = blocks.read("A", text[193:])
    rows.append((what, sum(int(logits[place - 193].argmax()) == text[place + 1] for place in asked), len(asked)))
    blocks.close()
Table(["what was moved", "questions answered", "of"], rows)

# %% key="left_behind" lang="zh" tags="hardware"
rows, asked = [], document.positions
for left, what in ((None, "两部分都搬"), ("v", "rope key 没搬"), ("k", "潜在向量没搬")):
    blocks = OnBlocks(model, "keydiff", Budget(n_sink=4, budget=42, n_recent=2), num_blocks=40)
    blocks.read("A", text[:193])
    parts = [getattr(blocks.cache.layer(layer), left) for layer in (0, 1) if left]
    old = [part.clone() for part in parts]
    blocks.eviction.evict(["A"])
    for part, lying in zip(parts, old):
        part.copy_(lying)  # 这一部分留在原处
    parts = part = None  # the cache is freed in close(): no name may hold a part of it
    logits = blocks.read("A", text[193:])
    rows.append((what, sum(int(logits[place - 193].argmax()) == text[place + 1] for place in asked), len(asked)))
    blocks.close()
Table(["搬了什么", "答对的题", "总题数"], rows)

# %% [markdown] key="left_read" lang="en"
# Neither mistake raises an exception. If both parts were in one tensor, one move would take both. With two tensors, a move that forgets one of them simply gives wrong answers.
#
# ### Which blocks come back?
#
# Two sequences begin alike, so they share the blocks of that beginning ([lesson 09](09_pages_and_blocks.ipynb)). One of them evicts. How many blocks does the pool gain?
# %% [markdown] key="left_read" lang="zh" src="f78ea79d"
# 两种错误都没有抛异常。如果两部分在同一个张量里，搬一次就都搬走了，不可能漏掉一半；这里是两个张量，漏搬一个也不报错，只是答案错了。
#
# ### 哪些块会还回来？
#
# 两条序列的开头相同，所以共用开头的块（[第 09 课](09_pages_and_blocks.ipynb)）。现在其中一条做淘汰，块池能多出几个块？

# %% key="predict_pool"
predict("pool_gains", ...)

# %% [markdown] key="small" lang="en"
# Here is the same situation, small enough to look at. A reads 100 tokens in blocks of 8. B begins with the same 64 tokens and then goes on differently. Both have a capacity of 40.
#
# Each row of the table is one step. In the first two steps A and B read (the column "evicts" says False), in the last two they evict. The column "tokens of A's text found" says how many tokens a new request with A's text would find in the prefix cache. Only full blocks are found, so at first these are 12 × 8 = 96 of the 100.
# %% [markdown] key="small" lang="zh" src="b9974cf6"
# 下面是同样的情形，规模小到可以逐块看清。A 读 100 个 token，块大小为 8。B 的前 64 个 token 与 A 相同，后面不同。两条序列的容量都是 40。表里每一行是一步，前两步 A、B 先后读入（“淘汰”一列是 False），后两步先后淘汰（True）。“找得到的 A 的 token”一列说的是，如果新来一个请求，文本与 A 相同，它能在前缀缓存里找到多少个 token。只有满块才找得到，所以起初是 100 个里的 12 × 8 = 96 个。

# %% key="shared" lang="en"
from minikv.course.lessons.l15.story import evicting_story

[other] = recall_documents(1, seed=7)
texts = {"A": text[:100], "B": text[:64] + [int(token) for token in other.tokens[:40]]}
drawn, rows, _ = evicting_story(model, texts, "AB", "en")
show(drawn)
head = ["sequence", "evicts", "blocks in use", "tokens of A's text found", "block tables"]
Table(head, rows)

# %% key="shared" lang="zh"
from minikv.course.lessons.l15.story import evicting_story

[other] = recall_documents(1, seed=7)
texts = {"A": text[:100], "B": text[:64] + [int(token) for token in other.tokens[:40]]}
drawn, rows, _ = evicting_story(model, texts, "AB", "zh")
show(drawn)
head = ["序列", "淘汰", "使用中的块", "找得到的 A 的 token", "块表"]
Table(head, rows)

# %% [markdown] key="shared_read" lang="en"
# Move the slider through the four steps.
#
# - **A evicts, and the pool gains nothing.** The 40 tokens that stay need 5 blocks. A's first 8 blocks are B's as well, and B still reads them. So A may not write there and takes 5 new blocks. A gives up its 8 shared blocks, but they stay with B. Only the 5 blocks that A had alone come back. So under a shared prefix an eviction first costs copies, and you gain only what lies behind the prefix. (With a longer prefix it would *cost* blocks.)
# - All 96 tokens of A's old text can still be **found**. B holds its beginning, and A's other blocks are free but not overwritten yet. When B evicts too, it writes into its own first blocks. Their digests are dropped, and everything behind them can no longer be found.
#
# You can also take whole blocks out of the block table and move nothing (`unit="block"`). The second table below counts what that costs in answers, with a capacity of 48.
# %% [markdown] key="shared_read" lang="zh" src="0e8957a7"
# 拖动滑块，看这四步。
#
# - **A 淘汰了，块池却一个块也没有多出来**。留下的 40 个 token 要占 5 个块。A 最前面的 8 个块同时也是 B 的，B 还在读，A 不能往里写，所以得另取 5 个新块。A 放掉了 8 个共享块，但它们仍由 B 持有，真正还回来的只有 A 独占的那 5 个。也就是说，有共享前缀时，淘汰要先复制，只有前缀后面的部分才能省下来。（前缀再长一些，反而会**多占**块。）
# - A 原来的 96 个 token 仍然**找得到**：开头由 B 持有，后面的块虽然空闲，但还没有被覆盖。等到 B 也淘汰，它会写自己最前面的块，这些块的摘要随之作废，排在后面的内容就再也找不到了。
#
# 还有另一种办法，就是直接把整块从块表里去掉，什么也不搬（`unit="block"`）。下面第二张表统计它少答对多少题，那里的容量是 48。

# %% key="block_mode" lang="en" tags="hardware"
_, rows, positions = evicting_story(model, texts, "A", "en", unit="block")
kept = f"what A has kept, in every layer: {positions}"
head = ["sequence", "evicts", "blocks in use", "tokens of A's text found", "block tables"]
Table(head, rows, lines=[kept])

# %% key="block_mode" lang="zh" tags="hardware"
_, rows, positions = evicting_story(model, texts, "A", "zh", unit="block")
kept = f"A 在每一层留下的：{positions}"
head = ["序列", "淘汰", "使用中的块", "找得到的 A 的 token", "块表"]
Table(head, rows, lines=[kept])

# %% key="block_units" lang="en" tags="hardware"
rows = []
for unit in ("token", "block"):
    right = asked = 0
    for each in recall_documents(4, seed=9):
        whole = [int(token) for token in each.tokens]
        blocks = OnBlocks(model, "keydiff", Budget(n_sink=4, budget=40, n_recent=4), unit=unit)
        blocks.read("A", whole[:193])
        blocks.eviction.evict(["A"])
        kept, logits = blocks.manager.length("A"), blocks.read("A", whole[193:])
        right += sum(int(logits[place - 193].argmax()) == whole[place + 1] for place in each.positions)
        asked += len(each.positions)
        blocks.close()
    rows.append((unit, kept, 193, right, asked))
Table(["unit of eviction", "tokens kept", "of", "questions answered", "of all"], rows)

# %% key="block_units" lang="zh" tags="hardware"
rows = []
for unit in ("token", "block"):
    right = asked = 0
    for each in recall_documents(4, seed=9):
        whole = [int(token) for token in each.tokens]
        blocks = OnBlocks(model, "keydiff", Budget(n_sink=4, budget=40, n_recent=4), unit=unit)
        blocks.read("A", whole[:193])
        blocks.eviction.evict(["A"])
        kept, logits = blocks.manager.length("A"), blocks.read("A", whole[193:])
        right += sum(int(logits[place - 193].argmax()) == whole[place + 1] for place in each.positions)
        asked += len(each.positions)
        blocks.close()
    rows.append((unit, kept, 193, right, asked))
Table(["淘汰的单位", "留下的 token", "token 总数", "答对的题", "总题数"], rows)

# %% [markdown] key="block_read" lang="en"
# Nothing is copied or moved, A goes on sharing what it keeps, and the pool gains two blocks (8 and 10, which A had alone). The price is a coarser choice. Eight tokens stay or go together, and all layers lose the same ones. Only whole blocks go, so A keeps 36 tokens where its capacity allows 40. In these texts a fact is a single token among ordinary words, so most answers are lost: 17 of 64 questions are answered. If the important parts of your texts come in longer stretches, it may work better. Measure it.
#
# ## In the engine
#
# In the engine, eviction is part of a step. The scheduler can compute *how many* tokens stay without looking at any of them. *Which* tokens stay is decided on the device that holds the cache. The example has twelve requests of 193 tokens, 16 tokens to generate for each, and a pool of 64 blocks of 16 tokens. One run keeps everything, the other has a capacity of 80 tokens:
# %% [markdown] key="block_read" lang="zh" src="b20ffecd"
# 既不复制，也不搬动，留下的块 A 继续共享，块池还多出两个块（8 和 10，原来由 A 独占）。代价在于选择变粗了：八个 token 同去同留，各层丢的也完全一样；而且只能整块淘汰，留下的比容量还少，容量是 40，A 只留了 36 个。在这些文本里，一条事实只是普通词中间的一个 token，所以大部分题都答不出来，64 题只对了 17 题。如果你的文本里重要内容成段出现，效果也许会好一些，请实际测一测。
#
# ## 在引擎里
#
# 在引擎里，淘汰是一步的一部分。留**几个**，调度器不看内容就能算出来；留**哪些**，要在存着缓存的设备上决定。下面有 12 个请求，各 193 个 token，再各生成 16 个；块池有 64 个块，块大小为 16。跑两遍，一遍全部保留，一遍容量 80 个 token：

# %% key="engine"
from minikv import LLM, SamplingParams
from minikv.engine import EvictionConfig

served = load("tiny-mla")
prompts = [[int(token) for token in each.tokens[:193]] for each in recall_documents(12, seed=3)]
some = EvictionConfig(policy="keydiff", budget=56, n_sink=4, n_recent=20, evict_every=8, prefill_chunk=64)

# %% key="engine_runs"
running, rows = [], []
for eviction in (None, some):
    with LLM(served, num_blocks=64, max_num_seqs=16, eviction=eviction) as llm:
        llm.overlaps = False
        for prompt in prompts:
            llm.add_request(prompt, SamplingParams(temperature=0, max_tokens=16))
        views = []
        while llm.has_work:
            llm.step()
            views.append(llm.snapshot())
        most = max(len(each.tables[0]) for view in views for each in view.running)
        rows.append((max(len(view.running) for view in views), most, most * llm.cache.spec.block_bytes(16) // 1024, len(views)))
    running.append({step + 1: len(view.running) for step, view in enumerate(views)})

# %% key="engine_chart" lang="en"
from minikv.course.charts import lines

names = ["everything kept", "capacity 80"]
show(lines(dict(zip(names, running)), x="step", y="requests running at once", steps=True))
head = ["", "requests at once, at most", "blocks of one request, at most", "in KiB", "steps"]
Table(head, [(name, *row) for name, row in zip(names, rows)])

# %% key="engine_chart" lang="zh"
from minikv.course.charts import lines

names = ["全部保留", "容量 80"]
show(lines(dict(zip(names, running)), x="步", y="同时运行的请求", steps=True))
head = ["", "最多同时运行的请求", "一个请求最多占的块", "合 KiB", "步数"]
Table(head, [(name, *row) for name, row in zip(names, rows)])

# %% key="engine_long" lang="en"
for eviction in (None, some):
    with LLM(served, num_blocks=12, eviction=eviction) as llm:
        try:
            [out] = llm.generate([prompts[0] * 2], SamplingParams(temperature=0, max_tokens=40))
            print(f"{2 * 193} tokens of prompt through a pool of {12 * 16} slots, and {len(out.completions[0].token_ids)} more")
        except MiniKVError as error:
            print(error.text("en"))

# %% key="engine_long" lang="zh"
for eviction in (None, some):
    with LLM(served, num_blocks=12, eviction=eviction) as llm:
        try:
            [out] = llm.generate([prompts[0] * 2], SamplingParams(temperature=0, max_tokens=40))
            print(f"{2 * 193} 个 token 的提示词，通过只有 {12 * 16} 个槽位的块池，又生成 {len(out.completions[0].token_ids)} 个")
        except MiniKVError as error:
            print(error.text("zh"))

# %% [markdown] key="engine_read" lang="en"
# In the same bytes, 10 requests run at once instead of 4, and a text may be longer than the whole pool. How good the answers are is another question; the curves above show that.
#
# (Why 10 blocks for one request? The capacity of 4 + 56 + 20 = 80 tokens needs 5. Before a sequence evicts, it may hold 7 more (`evict_every=8`). And while it reads its prompt, a chunk of 64 comes on top. That makes 80 + 7 + 64 = 151 tokens, or 10 blocks.)
#
# ## Recap
#
# - A row of DeepSeek-V3 takes 1,152 B and a row of Llama-3.1-8B 4,096 B. So keeping a quarter makes a step at 131,072 tokens 1.44 times as fast, where Llama gets 3.70 times.
# - All heads share one row, so there is one list of tokens to keep. Of the 32 tokens that each head would have chosen, only 8 in one layer and 5 in the other were common to all four.
# - To shift, you turn the rope key, which is 128 of 1,152 B, and leave the latent alone.
# - Under a shared prefix, the first eviction gave back no block: A took 5 new ones and freed 5. In the engine, 10 requests ran at once instead of 4.
# - DeepSeek Sparse Attention reads 2,048 rows for each query. It saves time but no room, because every row stays.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="engine_read" lang="zh" src="b85a23dc"
# 同样的字节里，同时运行的请求从 4 个变成 10 个，一篇文本甚至可以比整个块池还长。至于回答的质量，那是另一个问题，要看前面的曲线。
#
# （一个请求为什么要占 10 个块？容量 4 + 56 + 20 = 80 个 token，只要 5 个块。但淘汰之前可以多存 7 个（`evict_every=8`），读提示词时还要容得下 64 个 token 的一段，所以最多 80 + 7 + 64 = 151 个 token，要 10 个块。）
#
# ## 本课小结
#
# - DeepSeek-V3 的一行占 1,152 B，Llama-3.1-8B 的一行占 4,096 B。因此上下文为 131,072 时只留四分之一，前者的一步快 1.44 倍，后者快 3.70 倍。
# - 所有的头共用一行，所以要留的 token 只能有一份名单。每个头各选 32 个，四个头都选中的，两层分别只有 8 个和 5 个。
# - 挪位置只转 rope key，即 1,152 B 里的 128 B，潜在向量不动。
# - 有共享前缀时，第一次淘汰一个块也没有还回来：A 新取了 5 个块，又释放了 5 个。在引擎里，同时运行的请求从 4 个变成 10 个。
# - DeepSeek 稀疏注意力为每个 query 只读 2,048 行，省的是时间，不是空间，因为所有的行都还留着。
#
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_heads"
explain("why_no_heads")

# %% key="explain_shift"
explain("what_a_shift_turns")

# %% key="explain_sharing"
explain("why_sharing_costs")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# 1. `freed`: blocks and bytes that go back to the pool.
# 2. `compact`: move latents to the front of their blocks, without touching those of other sequences.
# 3. `protected`: find sinks and the recent window in a padded batch, with its slots in no order.
# 4. `next_tokens`: position, slot and length after evictions.
# %% [markdown] key="exercises" lang="zh" src="171e5eb9"
# ## 练习
#
# 1. `freed`：归还给块池多少块、多少字节。
# 2. `compact`：把潜在向量搬到块的前面，不碰其他序列的块。
# 3. `protected`：在一批带填充、槽位已经乱序的序列里，找出汇点和近期窗口。
# 4. `next_tokens`：淘汰之后的位置、槽位和长度。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | a sequence evicts, and the pool has no more free blocks than before | `[manager.pools[0].ref_count(block) for block in manager.block_table(name)]`: a block above 1 is shared, so it has to be copied first |
# | wrong words soon after an eviction, though answers are right | move a whole text by 100 places, as above, and compare logits. If they change, the rotation is wrong. If they don't, check whether both parts of each row were moved |
# %% [markdown] key="stuck" lang="zh" src="4ba45a05"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 一条序列淘汰了，块池的空闲块却没有变多 | `[manager.pools[0].ref_count(block) for block in manager.block_table(name)]`：大于 1 的块是共享的，得先复制 |
# | 淘汰之后不久，词就不对了，回答却还对 | 像前面那样把整篇文本挪 100 个位置，比较 logit。如果变了，是旋转的问题；如果没变，就查每一行的两部分是不是都搬了 |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - [Ollama #9171](https://github.com/ollama/ollama/issues/9171): in February 2025 deepseek-r1:671b crashed on long chains of thought, with "The current context does not support K-shift" in the log. llama.cpp, on which Ollama runs, had refused to shift latents since July 2024 ([#8501](https://github.com/ggml-org/llama.cpp/pull/8501)). It learned to do so later ([#12801](https://github.com/ggml-org/llama.cpp/pull/12801)), in the way of "Shift it by hand".
# - [Ollama #9248](https://github.com/ollama/ollama/issues/9248): a log of that time says `KV self size  = 39040.00 MiB` for 8,192 tokens. That is the line below the first table: K and V for every head. Latents would take 549 MiB.
# - [vllm-gaudi #470](https://github.com/vllm-project/vllm-gaudi/pull/470): in October 2025 the code that defragments a cache had to be fixed for MLA, because there was no value cache to swap. In "Blocks that really go back" both parts are moved.
# %% [markdown] key="wild" lang="zh" src="651ff274"
# ## 实战现场
#
# - [Ollama #9171](https://github.com/ollama/ollama/issues/9171)：2025 年 2 月，deepseek-r1:671b 的思维链一长就崩溃，日志里写着“The current context does not support K-shift”。Ollama 底层的 llama.cpp 从 2024 年 7 月起拒绝为潜在向量做平移（[#8501](https://github.com/ggml-org/llama.cpp/pull/8501)），后来才支持（[#12801](https://github.com/ggml-org/llama.cpp/pull/12801)），也就是“亲手挪一次”里的平移。
# - [Ollama #9248](https://github.com/ollama/ollama/issues/9248)：当时的一份日志里，8,192 个 token 写着 `KV self size  = 39040.00 MiB`。这就是第一张表下面那一行：每个头都存 K 和 V；换成潜在向量只占 549 MiB。
# - [vllm-gaudi #470](https://github.com/vllm-project/vllm-gaudi/pull/470)：2025 年 10 月，缓存的碎片整理要为 MLA 单独修一次，因为没有 value 缓存可以交换。“真正归还块”一节搬的就是两部分。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# In [lesson 15b](15b_port_it_yourself.ipynb) you add eviction to an attention class of your own and meet four ways to fail.
# [Lesson 16](16_where_did_6gb_go.ipynb) then looks for memory that should be free after a run and isn't.
# %% [markdown] key="next" lang="zh" src="cc6fcc56"
# ## 下一课
#
# [第 15b 课](15b_port_it_yourself.ipynb)给你自己的注意力类加上淘汰，再看四种故障。
# [第 16 课](16_where_did_6gb_go.ipynb)要追查的是：一次运行结束后，本该空闲却没有释放的显存。
