# %% [meta]
# number = "15"
# slug = "eviction_on_mla"
# needs = ["03", "04", "09", "14"]
# rooms = ["eviction", "models"]
# minutes = 60
# [title]
# en = "What changes with a latent?"
# zh = "换成潜在向量，有什么不同？"
# [t4]
# en = "The models are tiny and computed by the CPU, beside a T4 too. The numbers are the same."
# zh = "模型很小，一律由 CPU 计算，有 T4 也一样。看到的数字相同。"
# [paper]
# en = "15.1, 15.3, 15.4"
# zh = "15.1、15.3、15.4"

# %% [markdown] key="question" lang="en"
# ## The question
#
# **What changes when the cache holds latents? Which part of a row knows where its token stood?**
#
# A cache is full. Keep 5 tokens, forget the next 1,021, move the others up, and go on: that is eviction. To move up means to turn back what RoPE has turned. Here is one row of Llama-3.1-8B and one of DeepSeek-V3, to scale:
# %% [markdown] key="question" lang="zh" src="b584e3ea"
# ## 问题
#
# **缓存里换成潜在向量（latent），有什么不同？一行里的哪一部分，记着 token 的位置？**
#
# 缓存满了：留下 5 个 token，忘掉后面的 1,021 个，其余的往前挪，接着生成，这就是淘汰。往前挪，就是把 RoPE 转过的部分往回转。下面是 Llama-3.1-8B 和 DeepSeek-V3 各一行，按比例绘制：

# %% key="turned" lang="en"
from minikv.course.diagrams import turned_parts

show(turned_parts({name: name for name in ("Llama-3.1-8B", "DeepSeek-V3")}, start=1026, by=1021, lang="en"))

# %% key="turned" lang="zh"
from minikv.course.diagrams import turned_parts

show(turned_parts({name: name for name in ("Llama-3.1-8B", "DeepSeek-V3")}, start=1026, by=1021, lang="zh"))

# %% [markdown] key="able" lang="en"
# After this lesson you can
#
# - **compute** what forgetting brings where a token takes so little room;
# - **shift** a cache of latents by hand, and say which part must turn;
# - **predict** how many blocks an eviction gives back, and when it gives back none.
#
# [Lesson 15b](15b_port_it_yourself.ipynb) then ports eviction to an attention class that the package has never seen.
# %% [markdown] key="able" lang="zh" src="32985e10"
# 学完本课，你能够：
#
# - **算出**一个 token 本来就只占这么一点时，忘掉它还能省多少；
# - **亲手把**潜在向量的缓存往前**挪**，并说出哪一部分要转；
# - **预测**一次淘汰能归还几个块，什么时候一个也还不了。
#
# [第 15b 课](15b_port_it_yourself.ipynb)再把淘汰移植到一个本包从没见过的注意力类上。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# DeepSeek-V3 has 61 layers and 128 heads. For each token a layer caches a **latent** of 512 numbers and a **rope key** of 64, in bf16, once for all heads ([lesson 03](03_the_2_86x_mistake.ipynb)).
# %% [markdown] key="predict_first" lang="zh" src="d569e2dc"
# ## 先猜一猜
#
# DeepSeek-V3 有 61 层，128 个头。每一层为一个 token 缓存一个 512 个数的**潜在向量**和一个 64 个数的 **rope key**，都是 bf16，所有头共用一份（[第 03 课](03_the_2_86x_mistake.ipynb)）。

# %% key="predict_freed"
predict("freed_bytes", ...)

# %% [markdown] key="formula" lang="en"
# ## What a forgotten token brings
# %% [markdown] key="formula" lang="zh" src="7b874b8b"
# ## 忘掉一个 token，省下多少

# %% [markdown] key="formula_math"
# $$r_\text{GQA} \;=\; 2 \, H_\text{kv} \, D \, s \qquad\quad r_\text{MLA} \;=\; (c + d) \, s \qquad\quad F \;=\; \Big( \big\lceil \tfrac{n}{B} \big\rceil - \big\lceil \tfrac{C}{B} \big\rceil \Big) \, B \sum_\text{layers} r$$

# %% [markdown] key="symbols" lang="en"
# | symbol | meaning | unit | Llama-3.1-8B / DeepSeek-V3 |
# |---|---|---|---|
# | $r$ | a token's row in one layer | bytes | 4,096 / 1,152 |
# | $H_\text{kv}$, $D$ | KV heads, and their size | heads, elements | 8, 128 / - |
# | $c$, $d$ | latent (`kv_lora_rank`) and rope key (`qk_rope_head_dim`) | elements | - / 512, 64 |
# | $s$ | bytes of an element | bytes | 2 |
# | $n$, $C$ | tokens of a sequence before an eviction, and its capacity | tokens | |
# | $B$ | block size | tokens a block | |
# | $F$ | what goes back to the pool | bytes | |
#
# With the numbers put in: 2 × 8 × 128 × 2 = 4,096, and (512 + 64) × 2 = 1,152. Heads stand on the left and not on the right: no head has anything of its own. (Exercise 15.1 is this, for many sequences.)
# %% [markdown] key="symbols" lang="zh" src="7cc0728d"
# | 符号 | 含义 | 单位 | Llama-3.1-8B / DeepSeek-V3 |
# |---|---|---|---|
# | $r$ | 一个 token 在一层里的一行 | 字节 | 4,096 / 1,152 |
# | $H_\text{kv}$、$D$ | KV 头数，以及每个头的大小 | 头、元素 | 8、128 / - |
# | $c$、$d$ | 潜在向量（`kv_lora_rank`）与 rope key（`qk_rope_head_dim`） | 元素 | - / 512、64 |
# | $s$ | 一个元素的字节数 | 字节 | 2 |
# | $n$、$C$ | 一条序列淘汰前的 token 数，以及容量 | token | |
# | $B$ | 块大小 | token / 块 | |
# | $F$ | 归还给块池的 | 字节 | |
#
# 代入数字：2 × 8 × 128 × 2 = 4,096，(512 + 64) × 2 = 1,152。左边有头数，右边没有，因为没有哪个头有自己的一份。（练习 15.1 就是算这个，而且是许多条序列。）

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
Table(["", "B a layer", "B a token", "100,000 tokens, GiB", "tokens in 1 GiB"], rows, lines=[note])

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
Table(["", "每层 B", "每个 token B", "100,000 个 token，GiB", "1 GiB 放得下的 token"], rows, lines=[note])

# %% [markdown] key="rows_read" lang="en"
# A model of 671 billion parameters frees less with each token than one of 8. To win one GiB it has to forget fifteen thousand tokens.
#
# (The line below the table is a first remedy: where a program keeps K and V of every head, the same tokens take 71 times as much. Cache the latents before you evict any.)
#
# How much is a little? That depends on what else a step reads. Each decode step reads its weights once, and the cache of every sequence. From a context of
# %% [markdown] key="rows_read" lang="zh" src="b72bd615"
# 一个 6710 亿参数的模型，每忘掉一个 token 省下的，比 80 亿参数的还少。要省出 1 GiB，得忘掉一万五千个 token。
#
# （表下面那一行是首先该用的办法：有的程序给每个头都存 K 和 V，同样的 token 要多占 70 倍。先改存潜在向量，再谈淘汰。）
#
# 这一点点究竟算多算少，要看一步还得读什么。解码的每一步，用到的权重读一遍，每条序列的缓存也读一遍。上下文达到

# %% [markdown] key="even_math"
# $$n^{*} \;=\; \frac{W}{b \sum_\text{layers} r}$$

# %% [markdown] key="even_text" lang="en"
# tokens the cache is more than half of what a step reads. $W$ is what it reads of weights, in bytes (of experts only those that it uses), and $b$ the number of sequences. Eviction can only win from the cache's part. What it wins, as far as the roof allows ([lesson 04](04_the_roofline.ipynb)), on one imaginary H200 that all weights fit into, 32 sequences, a quarter kept:
# %% [markdown] key="even_text" lang="zh" src="e15dbce7"
# 个 token 时，一步读的字节里，缓存占到一半以上。$W$ 是一步要读的权重字节数（专家只算用到的），$b$ 是序列条数。淘汰只能从缓存这一部分里省。下面按 Roofline（[第 04 课](04_the_roofline.ipynb)）算上限：假想一块装得下全部权重的 H200，32 条序列，留四分之一：

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
head = ["half at, tokens", "FLOP a byte of cache", "faster at 8,192", "32,768", "131,072"]
Table(["", *head], rows, right=head, lines=[f"{roof.name}: ridge point at {roof.ridge:.0f} FLOP per byte"])

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
head = ["占到一半，token", "缓存每字节的 FLOP", "8,192 时加快", "32,768", "131,072"]
Table(["", *head], rows, right=head, lines=[f"{roof.name}：拐点在每字节 {roof.ridge:.0f} FLOP"])

# %% [markdown] key="even_read" lang="en"
# **The same quarter, and much less gained**: with latents the cache is the smaller part of a step for most contexts. (The second column says what else is saved: 128 heads read one row, so each cached byte costs some 240 FLOP, more than the ridge point. Where the cache outweighs the weights by far, such a step waits for arithmetic, and forgetting saves that.)
# In *room* nothing changes: where a quarter stays, about four times as many sequences fit, whatever a token weighs. That is the reason to evict on MLA, if there is one: room, at contexts that are long or batches that are large.
#
# ## One row, and many who read it
#
# With GQA every KV head could keep tokens of its own ([lesson 14](14_what_to_forget.ipynb)). Try it here:
# %% [markdown] key="even_read" lang="zh" src="17cf7d7d"
# **同样留四分之一，得到的少得多**：用潜在向量时，在大多数上下文长度下，缓存都是一步里较小的那部分。（第二列说明省下的还有什么：128 个头读同一行，缓存的每个字节要算约 240 FLOP，超过了拐点。缓存远大于权重的时候，这样的一步等的是计算，遗忘省下的就是计算。）
# 就**空间**而言却没有不同：留四分之一，就能放下大约四倍的序列，不管一个 token 多大。在 MLA 上若有理由淘汰，理由就在这里：上下文很长，或者 batch 很大，地方不够。
#
# ## 一行，许多个头在读
#
# 用 GQA 时，每个 KV 头可以各留各的（[第 14 课](14_what_to_forget.ipynb)）。在这里试试：

# %% key="refused" lang="en"
import torch

from minikv.errors import MiniKVError
from minikv.eviction import H2O, Budget, install_kv_eviction
from minikv.models import load, recall_documents

torch.set_num_threads(1)
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
model = load("tiny-mla", device="cpu").model
try:
    install_kv_eviction(model, policy="h2o", budget=32, scope="head")
except MiniKVError as error:
    print(error.text("zh"))

# %% [markdown] key="wishes" lang="en"
# What is lost by that? tiny-mla has two layers with 4 query heads each, a latent of 64 and a rope key of 16. It has learned what tiny-gqa has: names, cities, and questions. It reads a text of 193 tokens. Which 32 heavy hitters would each head keep, if it could? A bar counts how many of them are on the joint list, which all heads have to share:
# %% [markdown] key="wishes" lang="zh" src="cf912b5c"
# 既然拒绝 `scope="head"`，就要说清楚损失了什么。tiny-mla 有两层，每层 4 个 query 头，潜在向量 64 个数，rope key 16 个数。它学的与 tiny-gqa 一样：人名、城市、提问。让它读一篇 193 个 token 的文本：如果各选各的，每个头会留哪 32 个重要 token？条的长度，是其中有几个在所有头共用的名单上：

# %% key="wishes_table" lang="en" tags="hardware"
[document] = recall_documents(1, seed=1)
text = [int(token) for token in document.tokens]
context = torch.tensor([text[:193]])
model.set_attn_implementation("eager")
with torch.no_grad():
    masses = [each[0].sum(1) for each in model(context, output_attentions=True).attentions]  # a layer: [heads, T]
model.set_attn_implementation("sdpa")
wishes = [[set((head[4:-12].topk(32).indices + 4).tolist()) for head in mass] for mass in masses]
joint = [set((mass.sum(0)[4:-12].topk(32).indices + 4).tolist()) for mass in masses]

# %% key="wishes_table" lang="zh" tags="hardware"
[document] = recall_documents(1, seed=1)
text = [int(token) for token in document.tokens]
context = torch.tensor([text[:193]])
model.set_attn_implementation("eager")
with torch.no_grad():
    masses = [each[0].sum(1) for each in model(context, output_attentions=True).attentions]  # 每层 [头, T]
model.set_attn_implementation("sdpa")
wishes = [[set((head[4:-12].topk(32).indices + 4).tolist()) for head in mass] for mass in masses]
joint = [set((mass.sum(0)[4:-12].topk(32).indices + 4).tolist()) for mass in masses]

# %% key="wishes_bars" lang="en" tags="hardware"
from minikv.course.charts import bars

common = {f"layer {layer}": [len(own & joint[layer]) for own in wishes[layer]] for layer in (0, 1)}
show(bars([f"head {head}" for head in range(4)], common, x="of its 32 wishes, on the joint list"))
rows = [(layer, len(set.intersection(*of)), len(set.union(*of)), f"{float(masses[layer].sum()):.1f}") for layer, of in enumerate(wishes)]
head = ["layer", "wanted by all four", "by at least one", "scores in all"]
Table(head, rows, right=head[3:])

# %% key="wishes_bars" lang="zh" tags="hardware"
from minikv.course.charts import bars

common = {f"第 {layer} 层": [len(own & joint[layer]) for own in wishes[layer]] for layer in (0, 1)}
show(bars([f"头 {head}" for head in range(4)], common, x="自己的 32 个里，在共同名单上的"))
rows = [(layer, len(set.intersection(*of)), len(set.union(*of)), f"{float(masses[layer].sum()):.1f}") for layer, of in enumerate(wishes)]
head = ["层", "四个头都要", "至少一个头要", "得分之和"]
Table(head, rows, right=head[3:])

# %% [markdown] key="score" lang="en"
# The heads disagree: of 32 tokens each, a handful is common to all, and together they want about seventy. But a row is there for all of them or for none. So all heads have to be asked, and there is one score a token:
# %% [markdown] key="score" lang="zh" src="fa73c012"
# 各个头意见不一：每个头 32 个 token，四个头都要的只有几个，合起来却要七十个左右。可是一行要么所有头都有，要么都没有。所以所有的头都要问到，一个 token 只有一个得分：

# %% [markdown] key="score_math"
# $$p_{h,t,i} \;=\; \underset{i \,\le\, t}{\operatorname{softmax}} \; \sigma \left( \big( q_{h,t}^{\text{nope}} W_h^{K} \big) \cdot c_i \;+\; q_{h,t}^{\text{rope}} \cdot k_i \right) \qquad\qquad s_i \;=\; \sum_t \sum_{h=1}^{H} p_{h,t,i} \qquad\qquad \sum_i s_i \;=\; H \, T$$

# %% [markdown] key="score_symbols" lang="en"
# | symbol | meaning | unit |
# |---|---|---|
# | $c_i$, $k_i$ | what is cached of token $i$: its latent, and its rope key | elements |
# | $q_{h,t}^{\text{nope}}$, $q_{h,t}^{\text{rope}}$ | the two parts of query $t$ of head $h$: without a position, and with it | elements |
# | $W_h^{K}$ | head $h$'s part of `kv_b_proj` that makes keys of latents; here it is multiplied into the query instead ("absorbed", [lesson 10](10_kernels.ipynb)) | |
# | $\sigma$ | the scale, $1 / \sqrt{\text{nope} + \text{rope}}$, of a key as each head would see it, not of a cached row | |
# | $p_{h,t,i}$, $s_i$ | what query $t$ of head $h$ gives to token $i$; the score of token $i$ | a query's row sums to 1 |
# | $H$, $T$ | query heads; queries so far | |
#
# The last column of the table is the check: 4 heads, 193 queries, 772. There are no KV heads to average over, although the config of DeepSeek-V3 says `num_key_value_heads: 128`. (The exercise of [lesson 15b](15b_port_it_yourself.ipynb) is this formula.)
#
# What does such a score achieve? The curves of [lesson 14](14_what_to_forget.ipynb), on latents: 193 tokens are read, each layer keeps a share, then come questions that nobody has announced.
# %% [markdown] key="score_symbols" lang="zh" src="3d330b4f"
# | 符号 | 含义 | 单位 |
# |---|---|---|
# | $c_i$、$k_i$ | token $i$ 缓存下来的：潜在向量和 rope key | 元素 |
# | $q_{h,t}^{\text{nope}}$、$q_{h,t}^{\text{rope}}$ | 头 $h$ 的第 $t$ 个 query，分成两部分：不带位置的，带位置的 | 元素 |
# | $W_h^{K}$ | `kv_b_proj` 里头 $h$ 的那一部分，由潜在向量得到 key；这里改为乘到 query 上（即矩阵吸收，[第 10 课](10_kernels.ipynb)） | |
# | $\sigma$ | 缩放系数 $1 / \sqrt{\text{nope} + \text{rope}}$，按一个头看到的 key 来算，不按缓存的一行 | |
# | $p_{h,t,i}$、$s_i$ | 头 $h$ 的第 $t$ 个 query 分给 token $i$ 多少；token $i$ 的得分 | 一个 query 的一行加起来是 1 |
# | $H$、$T$ | query 头数；到目前为止的 query 数 | |
#
# 表的最后一列用来核对：4 个头，193 个 query，772。这里没有可以求平均的 KV 头，尽管 DeepSeek-V3 的配置里写着 `num_key_value_heads: 128`。（[第 15b 课](15b_port_it_yourself.ipynb)的练习就是这个公式。）
#
# 这样的得分管用吗？还是[第 14 课](14_what_to_forget.ipynb)的曲线，换成潜在向量：读 193 个 token，每层留一部分，然后来的问题谁也没有预告过。

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
# - **H2O does not help here.** Neither its sum nor its maximum beats a random choice. That could be expected: no query had looked at the facts yet, and now one list has to serve all heads besides.
# - **Knorm**, which answered most questions on tiny-gqa, falls below random. It asks how long a key is, and the next cell shows what there is to see.
# - **KeyDiff** compares directions, and a latent points as well as a key does. **Echo** ([lesson 14b](14b_your_own_policy.ipynb)) asks the text's own words again, and needs only logits. At 25 % both lose nothing.
# - Perplexity puts them in another order again. KeyDiff answers everything at 25 %, and the ordinary words pay for it; Echo does not.
#
# One tiny model, one kind of text, and questions that come after it. When a text is read token by token and asks as it goes, H2O's sum is well ahead of chance in some settings and far behind in others ([docs/internal/eviction.md](repo:docs/internal/eviction.md) has both). None of this says anything about DeepSeek-V3.
# %% [markdown] key="curves_read" lang="zh" src="6417fb3e"
# - **H2O 在这里没有用**。求和也好，最大值也好，都没有胜过随机选择。这也不意外：还没有一个 query 看过那些事实，现在又要一份名单照顾所有的头。
# - **Knorm** 在 tiny-gqa 上答对了大多数，在这里却不如随机选择。它问的是 key 有多长，能看出什么，下一个单元格会告诉你。
# - **KeyDiff** 比的是方向，潜在向量和 key 一样有方向。**Echo**（[第 14b 课](14b_your_own_policy.ipynb)）把文本自己的词再问一遍，只要有 logit 就行。留 25% 时，两者一题也没丢。
# - 困惑度排出来的又是另一个次序。留 25% 时 KeyDiff 全都答对，代价由普通的词来付；Echo 则不然。
#
# 只有一个极小的模型、一种文本，而且问题都在文本之后才来。如果一边读一边问，H2O 的求和在有的设置下明显强过随机选择，在有的设置下又差得很远（两种都记在 [docs/internal/eviction.md](repo:docs/internal/eviction.md) 里）。这些都说明不了 DeepSeek-V3 会怎样。

# %% key="lengths" lang="en" tags="hardware"
rows = []
for name in ("tiny-gqa", "tiny-mla"):
    with torch.no_grad():
        cache = (model if name == "tiny-mla" else load(name, device="cpu").model)(context).past_key_values
    for number, layer in enumerate(cache.layers):
        length = layer.keys.norm(dim=-1)  # of what is cached as keys: [1, heads, T]
        rows.append((name, number, round(float(100 * (length.std(-1) / length.mean(-1)).mean()), 1)))
Table(["model", "layer", "standard deviation of the lengths, % of the mean"], rows)

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
# Before it is cached, a latent goes through a norm (`kv_a_layernorm`), which brings all of them to much the same length, in layer 1 above all. What a policy looks at may mean something else in another architecture, or nothing.
#
# ## Shift it by hand
#
# A shift has two parts. Tokens go: rows are left out. And those that stay get new positions: "move up" means that their keys are turned back, by as many places as went. For Llama that is `rope(key, -1021)`. What is it here?
#
# Where a row stands is in its rope key, and nowhere else. That is what it was separated for ([lesson 03](03_the_2_86x_mistake.ipynb)). To see it, forget nothing at all: move a *whole* text by 100 places, queries included. Attention reads distances, so not one logit may change.
# %% [markdown] key="lengths_read" lang="zh" src="5ea6ec69"
# 潜在向量在缓存之前要过一个归一化（`kv_a_layernorm`），长度就都差不多了，第 1 层尤其如此。一种策略看的东西，换一种架构，含义可能不同，也可能什么都说明不了。
#
# ## 亲手挪一次
#
# 挪动有两部分：一些 token 被淘汰，就是少几行；留下的要换位置，“往前挪”就是把 key 往回转，淘汰了多少就转多少。对 Llama 来说，这就是 `rope(key, -1021)`。在这里又是什么？
#
# 一行的位置只在 rope key 里，别处没有；当初把它分出来，为的就是这个（[第 03 课](03_the_2_86x_mistake.ipynb)）。要看清这一点，先什么都不忘：把**整篇**文本连同 query 一起挪 100 个位置。注意力看的是距离，所以一个 logit 也不该变。

# %% key="shift" lang="en" tags="hardware"
from copy import deepcopy

from minikv.eviction.hf.rotary import find_rotary

rotary, by = find_rotary(model, latent=True), 100
rest, places = torch.tensor([text[193:]]), torch.full((1, 193), by)
with torch.no_grad():
    before = model(context).past_key_values  # keys: latents [1, 1, 193, 64]; values: rope keys [1, 1, 193, 16]
    unmoved = model(rest, past_key_values=deepcopy(before)).logits

# %% key="shift" lang="zh" tags="hardware"
from copy import deepcopy

from minikv.eviction.hf.rotary import find_rotary

rotary, by = find_rotary(model, latent=True), 100
rest, places = torch.tensor([text[193:]]), torch.full((1, 193), by)
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
    at = torch.arange(193, len(text))[None] - by
    with torch.no_grad():
        logits = model(rest, past_key_values=moved, position_ids=at).logits
    differences[tuple(parts)] = f"{float((logits - unmoved).abs().max()):.1g}"
names = ["the rope keys alone", "nothing", "rope keys and latents"]
head = ["turned back by 100 places", "largest difference of a logit"]
Table(head, zip(names, differences.values()), right=head[1:])

# %% key="shift_turned" lang="zh" tags="hardware"
differences = {}
for parts in (["values"], [], ["values", "keys"]):
    moved = deepcopy(before)
    for layer in moved.layers:
        for part in parts:
            setattr(layer, part, rotary.turn(getattr(layer, part), places, back=True))
    at = torch.arange(193, len(text))[None] - by
    with torch.no_grad():
        logits = model(rest, past_key_values=moved, position_ids=at).logits
    differences[tuple(parts)] = f"{float((logits - unmoved).abs().max()):.1g}"
names = ["只转 rope key", "什么都不转", "rope key 和潜在向量"]
head = ["往回转 100 个位置的", "logit 的最大差别"]
Table(head, zip(names, differences.values()), right=head[1:])

# %% [markdown] key="shift_read" lang="en"
# **Turn the rope key, and leave the latent alone.** (What is left in the first line is rounding.) In DeepSeek-V3 that is 64 of 576 numbers a row: a shift of latents is cheaper than one of keys.
#
# (A shift that really forgets changes logits, of course, since something is missing.)
#
# In the package `positions="reindexed"` does it: the kept tokens count 0, 1, 2, ... `positions="original"` leaves every token where it was. Both are right. What is wrong is to keep the old rotation and take the position of new tokens from the length of the cache ([lesson 14b](14b_your_own_policy.ipynb)). Here are all three, with latents. The first 129 tokens of some texts, 32 as a prompt and then one by one, 48 kept:
# %% [markdown] key="shift_read" lang="zh" src="fe3329e1"
# **转 rope key，潜在向量不动**。（第一行剩下的是舍入误差。）在 DeepSeek-V3 里，这是每行 576 个数中的 64 个，所以挪潜在向量比挪 key 便宜。
#
# （真正忘掉一些的挪动，logit 当然会变，因为少了东西。）
#
# 在本包里这就是 `positions="reindexed"`：留下的 token 从 0、1、2 数起。`positions="original"` 则让每个 token 留在原来的位置。两种都对。错的是旋转还是旧的，新 token 的位置却取自缓存长度（[第 14b 课](14b_your_own_policy.ipynb)）。三种做法，用潜在向量再来一遍。几篇文本的前 129 个 token，其中 32 个作提示词，后面一个一个地读，留 48 个：

# %% key="positions" lang="en" tags="hardware"
from minikv.course.lessons.l15.stream import graded, read
from minikv.eviction.study.tasks import stream_cases

held = lambda cache: cache.layers[0].resident
ways = {"the text's length": (None, "original"), "the cache's length": (held, "original"), "kept tokens counted anew": (held, "reindexed")}
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
ways = {"文本的长度": (None, "original"), "缓存的长度": (held, "original"), "留下的重新编号": (held, "reindexed")}
cases, rows = stream_cases(6, length=193), []
for name in ("streaming", "keydiff"):
    for what, (place, positions) in ways.items():
        sizes = dict(n_sink=4, budget=28, n_recent=16)
        logs, _ = read(model, cases, policies[name], next_position=place, positions=positions, end=129, **sizes)
        rows.append((name, what, *(round(figure, 1) for figure in graded(logs, cases, 0, 129))))
Table(["策略", "下一个 token 的位置", "答对，%", "困惑度"], rows)

# %% [markdown] key="positions_read" lang="en"
# From the cache, StreamingLLM loses more than a third of its answers. KeyDiff keeps nearly all of its own, and still the ordinary words get twenty times as hard to guess. The latent encodes the content of a token, wherever it stands; only the rope key encodes its place. **A count of answers alone would have missed the error.** So look at both, and at the logits.
#
# (Exercise 15.4: positions, slots and lengths, of several sequences and two KV cache groups.)
#
# ## Blocks that really go back
#
# So far the cache was dense, and gathered anew. An engine keeps latents in blocks, and a block goes back only when nothing in it is needed. So survivors move to the front, and the tail is freed. Which ones move?
# %% [markdown] key="positions_read" lang="zh" src="0f627b86"
# 位置取自缓存，StreamingLLM 答对的就少了三分之一以上。KeyDiff 的回答几乎都还在，普通的词却难猜了二十倍。token 的内容由潜在向量编码，与位置无关；位置只编码在 rope key 里。**如果只数答对多少，这个错误就漏过去了**。所以两样都要看，还要看 logit。
#
# （练习 15.4：位置、槽位、长度，几条序列，两个 KV 缓存组。）
#
# ## 块真的归还
#
# 到这里，缓存都是稠密的，每次重新 gather。引擎却把潜在向量放在块里，一个块里没有任何 token 还要用，它才能归还。所以留下的要往前搬，末尾的块才空得出来。要搬的是哪些？

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
head = ["tokens", "go", "moved in layers 0, 1", "bytes", "moved to keep the order"]
Table(head, rows, right=[head[2], head[4]], lines=[slots])

# %% key="moved_table" lang="zh" tags="hardware"
slots = f"第 1 层，各槽位里的 token 在文本中的位置：{after[1].tolist()}"
head = ["token 数", "淘汰", "第 0、1 层搬动", "字节", "若要保持次序"]
Table(head, rows, right=[head[2], head[4]], lines=[slots])

# %% [markdown] key="moved_read" lang="en"
# `OnBlocks` is a helper of this lesson: `read` computes tokens, `eviction` is the package's `PagedEviction`. (The cache calls the latent `k` and the rope key `v`.)
#
# Survivors that lie in front already stay; the others, from behind, fill the holes. When one token goes at every step, one row a layer moves. To keep the text's order in the slots would move almost all of them, every time. Attention does not need that order: it sums over rows, and each rope key knows its own place. The price is a list of positions, since a slot's number says nothing any more.
#
# (Exercise 15.3: sinks and the window, found by that list, in a batch with padding. Exercise 15.2 moves in the text's order, which is easier to check.)
#
# Two parts of a row have to move together. Let one of them lie:
# %% [markdown] key="moved_read" lang="zh" src="a511aef2"
# `OnBlocks` 是本课的小工具：`read` 计算 token，`eviction` 就是本包的 `PagedEviction`。（缓存里，潜在向量叫 `k`，rope key 叫 `v`。）
#
# 留下的如果已经在前面，就不动；其余的从后面来填空位。每一步淘汰一个 token，每层就搬一行。要在槽位里保持文本的次序，几乎每次全都得搬。注意力并不需要这个次序：它对各行求和，而每个 rope key 都带着自己的位置。代价是要有一份位置表，因为槽位的编号已经什么都说明不了。
#
# （练习 15.3：在有填充的 batch 里，靠这份表找到汇点和近期窗口。练习 15.2 则按文本的次序来搬，便于核对。）
#
# 一行有两部分，必须一起搬。故意留下其中一部分：

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
    parts = part = None
    logits = blocks.read("A", text[193:])
    rows.append((what, sum(int(logits[place - 193].argmax()) == text[place + 1] for place in asked), len(asked)))
    blocks.close()
Table(["", "answered", "of"], rows)

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
    parts = part = None
    logits = blocks.read("A", text[193:])
    rows.append((what, sum(int(logits[place - 193].argmax()) == text[place + 1] for place in asked), len(asked)))
    blocks.close()
Table(["", "答对", "总数"], rows)

# %% [markdown] key="left_read" lang="en"
# No exception in either case. With both parts in one tensor such a mistake raises one; with two tensors, as here, a move that forgets one gives a wrong answer.
#
# ### Whose blocks?
#
# Two sequences begin alike, so they share the blocks of the beginning ([lesson 09](09_pages_and_blocks.ipynb)). One of them evicts. What does the pool win?
# %% [markdown] key="left_read" lang="zh" src="f5f09bbb"
# 两种情形都没有异常。如果两部分在同一个张量里，这样的错会立刻抛异常；这里是两个张量，漏搬一个也不报错，照样输出一个错的结果。
#
# ### 共享的块归还给谁？
#
# 两条序列的开头相同，所以共用开头的块（[第 09 课](09_pages_and_blocks.ipynb)）。其中一条淘汰了。块池能多出几个块？

# %% key="predict_pool"
predict("pool_gains", ...)

# %% [markdown] key="small" lang="en"
# The same, small enough to look at. A reads 100 tokens, in blocks of 8. B begins with the same 64, and then goes on differently. Both have a capacity of 40. (What can still be found: how much of its beginning a new request with A's text would get for nothing.)
# %% [markdown] key="small" lang="zh" src="7fbf05e9"
# 同样的事，换成看得过来的大小。A 读 100 个 token，块大小为 8。B 开头的 64 个与它相同，后面各走各的。两条的容量都是 40。（“能找到”是指：新来一个请求，文本与 A 相同，它的开头有多少可以直接拿来用。）

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
# - **A evicts, and the pool wins nothing.** The 40 tokens that stay need 5 blocks, and A's first 5 are B's as well. B still reads them, so A takes 5 new ones; and the 8 blocks that it has let go of stay with B. What came back are the 5 that were A's alone. Under a shared prefix an eviction copies first, and pays only behind it. (Were the prefix longer, it would *cost* blocks.)
# - What A held can still be **found**: B holds the beginning, and A's other blocks lie among the free ones, not yet written over. When B evicts as well, it writes into its own first blocks; their digests are dropped, and nobody finds anything behind them.
#
# There is another way: take whole blocks out of the table, and move nothing.
# %% [markdown] key="shared_read" lang="zh" src="80ffc479"
# 拖动滑块，看这四步。
#
# - **A 淘汰了，块池却一个块也没有多出来**。留下的 40 个 token 要占 5 个块，而 A 最前面的 5 个块同时也是 B 的。B 还在读，所以 A 得另要 5 个新块；A 放掉的那 8 个共享块，仍在 B 手里。真正还回来的，是只属于 A 的那 5 个。前缀共享时，淘汰先要复制，共享的部分省不下来。（前缀要是再长一些，反而会**多占**块。）
# - A 原来的内容仍然**找得到**：开头在 B 手里，后面的块虽已空闲，还没有被覆盖。等到 B 也淘汰，它就往自己最前面的块里写；这些块的摘要随之作废，排在后面的谁也找不到了。
#
# 还有另一种办法：把整个的块从块表里拿掉，什么也不搬。

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
Table(["unit", "kept", "of tokens", "answered", "of questions"], rows)

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
Table(["单位", "留下", "token 总数", "答对", "问题总数"], rows)

# %% [markdown] key="block_read" lang="en"
# No copy, no move: A goes on sharing what it keeps. The price is the choice. Eight tokens stay or go together, all layers lose the same ones, and fewer stay than might, since only whole blocks go. A fact here is a single token among ordinary words, and most of the answers are lost. Where what matters comes in longer stretches it may be otherwise; measure it on your texts.
#
# ## In the engine
#
# Eviction is then a part of a step: the scheduler knows *how many* tokens stay without looking at any, the device decides *which*. Twelve requests of 193 tokens, 16 more each, and a pool of 64 blocks:
# %% [markdown] key="block_read" lang="zh" src="9b121696"
# 不复制，也不搬动：留下的块，A 继续共享。代价在于挑选。八个 token 同去同留，各层丢的也都一样；而且只能整块整块地拿，留下的比容量还少。这里一条事实只是普通词中间的一个 token，所以大部分题都答不出了。要紧的内容如果成段出现，也许会好些；请用你自己的文本去量。
#
# ## 在引擎里
#
# 有了这些，淘汰就是一步当中的一部分：留**几个**，调度器不看内容就知道；留**哪些**，由设备决定。12 个请求，各 193 个 token，再各生成 16 个，块池 64 个块：

# %% key="engine"
from minikv import LLM, SamplingParams
from minikv.engine import EvictionConfig

prompts = [[int(token) for token in each.tokens[:193]] for each in recall_documents(12, seed=3)]
some = EvictionConfig(policy="keydiff", budget=56, n_sink=4, n_recent=20, evict_every=8, prefill_chunk=64)

# %% key="engine_runs"
running, rows = [], []
for eviction in (None, some):
    with LLM(model, num_blocks=64, max_num_seqs=16, eviction=eviction) as llm:
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
head = ["", "at most at once", "blocks of one, at most", "KiB", "steps"]
Table(head, [(name, *row) for name, row in zip(names, rows)])

# %% key="engine_chart" lang="zh"
from minikv.course.charts import lines

names = ["全部保留", "容量 80"]
show(lines(dict(zip(names, running)), x="步", y="同时运行的请求", steps=True))
head = ["", "最多同时", "一条最多的块", "KiB", "步数"]
Table(head, [(name, *row) for name, row in zip(names, rows)])

# %% key="engine_long" lang="en"
for eviction in (None, some):
    with LLM(model, num_blocks=12, eviction=eviction) as llm:
        try:
            [out] = llm.generate([prompts[0] * 2], SamplingParams(temperature=0, max_tokens=40))
            print(f"{2 * 193} tokens of prompt through a pool of {12 * 16} slots, and {len(out.completions[0].token_ids)} more")
        except MiniKVError as error:
            print(error.text("en"))

# %% key="engine_long" lang="zh"
for eviction in (None, some):
    with LLM(model, num_blocks=12, eviction=eviction) as llm:
        try:
            [out] = llm.generate([prompts[0] * 2], SamplingParams(temperature=0, max_tokens=40))
            print(f"{2 * 193} 个 token 的提示词，通过只有 {12 * 16} 个槽位的块池，又生成 {len(out.completions[0].token_ids)} 个")
        except MiniKVError as error:
            print(error.text("zh"))

# %% [markdown] key="engine_read" lang="en"
# More than twice as many run at once in the same bytes, and a text may be longer than the whole pool. (A capacity of 80 needs 5 blocks; the others are for the chunk of the prompt that is just being read.) What the answers are worth is another matter, and the curves above speak of that.
#
# ## Recap
#
# - A row of DeepSeek-V3 is 1,152 B, 4,096 B in Llama-3.1-8B. So a quarter kept makes a step at 131,072 tokens 1.44 times as fast, and 3.70 times in Llama.
# - All heads share one row, so there is one list: of 32 wishes of each head, 8 and 5 were common to all four.
# - To shift, turn the rope key, 128 of 1,152 B, and leave the latent alone.
# - Evicting under a shared prefix gave back no block at first: A copied 5 blocks and freed 5. In the engine, 10 requests ran at once instead of 4.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="engine_read" lang="zh" src="7bf5a4d0"
# 同样的字节里，同时运行的多了一倍不止；一篇文本甚至可以比整个块池还长。（容量 80 只要 5 个块，其余的留给正在读的那一段提示词。）回答还值多少，是另一回事，要看前面的曲线。
#
# ## 本课小结
#
# - DeepSeek-V3 的一行是 1,152 B，Llama-3.1-8B 是 4,096 B。所以上下文为 131,072 时，留四分之一，前者的一步快 1.44 倍，后者快 3.70 倍。
# - 所有的头共用一行，所以只有一份名单：每个头各选 32 个，四个头都选中的，两层分别只有 8 个和 5 个。
# - 挪位置只转 rope key，即 1,152 B 里的 128 B，潜在向量不动。
# - 前缀共享时，淘汰起初一个块也没有多出来：A 复制了 5 个块，又释放了 5 个。在引擎里，同时运行的请求从 4 个变成 10 个。
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
# ## In the wild
#
# - [Ollama #9171](https://github.com/ollama/ollama/issues/9171): in February 2025 deepseek-r1:671b crashed when its chain of thought was long, with "The current context does not support K-shift" in the log. Below Ollama, [llama.cpp #8501](https://github.com/ggml-org/llama.cpp/pull/8501) had refused the shift for latents since July 2024; [#12801](https://github.com/ggml-org/llama.cpp/pull/12801) learned it. "Shift it by hand" is that shift.
# - [ollama #9248](https://github.com/ollama/ollama/issues/9248): a log of those days says `KV self size  = 39040.00 MiB` for 8,192 tokens. It is the line below the first table: K and V for every head, where latents take 549 MiB.
# - [vllm-gaudi #470](https://github.com/vllm-project/vllm-gaudi/pull/470): in October 2025 the defragmentation of a cache had to be mended for MLA, since there is no value cache to swap. "Blocks that really go back" moves both parts.
#
# ## Exercises
#
# 1. `freed`: blocks and bytes that go back to the pool.
# 2. `compact`: latents move to the front of their blocks, and those of other sequences are not touched.
# 3. `protected`: sinks and window, in a padded batch whose slots are in no order.
# 4. `next_tokens`: position, slot and length after evictions.
# %% [markdown] key="exercises" lang="zh" src="33f4431e"
# ## 实战现场
#
# - [Ollama #9171](https://github.com/ollama/ollama/issues/9171)：2025 年 2 月，deepseek-r1:671b 的思维链一长就崩溃，日志里写着 “The current context does not support K-shift”。Ollama 的底层是 llama.cpp：[#8501](https://github.com/ggml-org/llama.cpp/pull/8501) 从 2024 年 7 月起拒绝为潜在向量平移，后来 [#12801](https://github.com/ggml-org/llama.cpp/pull/12801) 学会了。“亲手挪一次”做的就是这个平移。
# - [ollama #9248](https://github.com/ollama/ollama/issues/9248)：当时的一份日志里，8,192 个 token 写着 `KV self size  = 39040.00 MiB`。这就是第一张表下面那一行：每个头都存 K 和 V，而潜在向量只占 549 MiB。
# - [vllm-gaudi #470](https://github.com/vllm-project/vllm-gaudi/pull/470)：2025 年 10 月，缓存的碎片整理不得不为 MLA 修一次，因为没有可交换的 value 缓存。“块真的归还”一节搬的就是两部分。
#
# ## 练习
#
# 1. `freed`：归还给块池多少块、多少字节。
# 2. `compact`：潜在向量搬到块的前面，其他序列的一概不动。
# 3. `protected`：一批带填充、槽位已经乱序的序列，找出汇点和近期窗口。
# 4. `next_tokens`：淘汰之后的位置、槽位、长度。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | a sequence evicts, and the pool has no more free blocks than before | `[manager.pools[0].ref_count(block) for block in manager.block_table(name)]`: what is above 1 is shared, and has to be copied first |
# | wrong words soon after an eviction, though answers are right | move a whole text by 100 places, as above, and compare logits: if they change, it is the rotation; if not, look at what was moved with what |
# %% [markdown] key="stuck" lang="zh" src="33f69037"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 一条序列淘汰了，块池的空闲块却没有变多 | `[manager.pools[0].ref_count(block) for block in manager.block_table(name)]`：大于 1 的是共享的，得先复制 |
# | 淘汰之后不久，词就不对了，回答却还对 | 像前面那样把整篇文本挪 100 个位置，比较 logit：变了，是旋转的问题；没变，就去查哪些该一起搬而没有一起搬 |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# [Lesson 15b](15b_port_it_yourself.ipynb) ports eviction to an attention class of your own, and shows four ways to fail.
# [Lesson 16](16_where_did_6gb_go.ipynb) is about memory that ought to have gone and did not.
# %% [markdown] key="next" lang="zh" src="7a0e374a"
# ## 下一课
#
# [第 15b 课](15b_port_it_yourself.ipynb)把淘汰移植到你自己的注意力类上，再看四种坏法。
# [第 16 课](16_where_did_6gb_go.ipynb)要讲的是本该走而没有走的显存。
