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
# In February 2025 many people run DeepSeek-R1 on machines of their own, and it thinks at length. Somebody writes to Ollama ([#9171](https://github.com/ollama/ollama/issues/9171)):
#
# > When running the deepseek-r1:671b model, if the chain of thought is relatively long, the model crashes. The log shows: The current context does not support K-shift
#
# The log also says what it was about to do: `context limit hit - shifting id=0 limit=2048 input=2048 keep=5 discard=1021`. The cache is full, so keep 5 sinks, forget the next 1,021 tokens, move the others up (their keys get new positions: the **K-shift** of the log), and go on. This is eviction, and with Llama it works. But below Ollama there is llama.cpp, and that had been told in July 2024 to refuse it for DeepSeek ([llama.cpp #8501](https://github.com/ggml-org/llama.cpp/pull/8501)):
#
# > DS2 models use Multi-head Latent Attention (MLA) which does not allow trivial context shifting
#
# A year later somebody still asks in a fork of it, "In what circumstance, will "Deepseek2 does not support K-shift" be shown?" ([ik_llama.cpp #576](https://github.com/ikawrakow/ik_llama.cpp/issues/576)), while llama.cpp has learned it meanwhile ([#12801](https://github.com/ggml-org/llama.cpp/pull/12801)).
#
# **What is it about a latent that makes forgetting harder? And what does it bring, where a token takes so little room?**
#
# By the end of this lesson you have shifted such a cache by hand and compacted its blocks. [Lesson 15b](15b_port_it_yourself.ipynb) then ports eviction to an attention class that the package has never seen.
# %% [markdown] key="question" lang="zh" src="f3861ab8"
# ## 问题
#
# 2025 年 2 月，许多人在自己的机器上跑 DeepSeek-R1，而它一想就想很久。有人给 Ollama 提了 issue（[#9171](https://github.com/ollama/ollama/issues/9171)）：
#
# > When running the deepseek-r1:671b model, if the chain of thought is relatively long, the model crashes. The log shows: The current context does not support K-shift
#
# （运行 deepseek-r1:671b 时，思维链稍长，模型就崩溃。日志里写着：当前上下文不支持 K-shift。）
# 日志还记下了它正要做什么：`context limit hit - shifting id=0 limit=2048 input=2048 keep=5 discard=1021`。缓存满了，于是留下 5 个注意力汇点（sink），忘掉后面的 1,021 个 token，其余的往前挪（key 要换成新的位置，日志里叫 **K-shift**），接着生成。这就是淘汰，换成 Llama 就没有问题。可是 Ollama 的底层是 llama.cpp，它早在 2024 年 7 月就改成了对 DeepSeek 拒绝这样做（[llama.cpp #8501](https://github.com/ggml-org/llama.cpp/pull/8501)）：
#
# > DS2 models use Multi-head Latent Attention (MLA) which does not allow trivial context shifting
#
# （DeepSeek-V2 用的是多头潜在注意力，上下文不能简单地平移。）
# 一年以后，还有人在它的一个分支里问：什么情况下会出现“Deepseek2 does not support K-shift”？（[ik_llama.cpp #576](https://github.com/ikawrakow/ik_llama.cpp/issues/576)）而 llama.cpp 这时已经学会了（[#12801](https://github.com/ggml-org/llama.cpp/pull/12801)）。
#
# **潜在向量（latent）为什么让遗忘变难？一个 token 本来就只占这么一点，忘掉它又能省下多少**？
#
# 学完本课，你会亲手把这样一份缓存往前挪一次，并把它的块压紧。[第 15b 课](15b_port_it_yourself.ipynb)再把淘汰移植到一个本包从没见过的注意力类上。

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
# | symbol | meaning | unit |
# |---|---|---|
# | $r$ | a token's row in one layer | bytes |
# | $H_\text{kv}$, $D$ | KV heads, and their size | heads, elements |
# | $c$, $d$ | latent (`kv_lora_rank`) and rope key (`qk_rope_head_dim`) | elements |
# | $s$ | bytes of an element | bytes |
# | $n$, $C$ | tokens of a sequence before an eviction, and its capacity | tokens |
# | $B$ | block size | tokens a block |
# | $F$ | what goes back to the pool | bytes |
#
# Heads stand on the left and not on the right: no head has anything of its own. (Exercise 15.1 is this, for many sequences.)
# %% [markdown] key="symbols" lang="zh" src="53d03d47"
# | 符号 | 含义 | 单位 |
# |---|---|---|
# | $r$ | 一个 token 在一层里的一行 | 字节 |
# | $H_\text{kv}$、$D$ | KV 头数，以及每个头的大小 | 头、元素 |
# | $c$、$d$ | 潜在向量（`kv_lora_rank`）与 rope key（`qk_rope_head_dim`） | 元素 |
# | $s$ | 一个元素的字节数 | 字节 |
# | $n$、$C$ | 一条序列淘汰前的 token 数，以及容量 | token |
# | $B$ | 块大小 | token / 块 |
# | $F$ | 归还给块池的 | 字节 |
#
# 左边有头数，右边没有：没有哪个头有自己的一份。（练习 15.1 就是算这个，而且是许多条序列。）

# %% key="rows"
from minikv.plan import CacheSpec
from minikv.units import GIB, MIB

print(t("rows_head"))
for name in ("Llama-3.1-8B", "Llama-3.1-70B", "DeepSeek-V3"):
    spec = CacheSpec.from_config(name, layout="hf", kv_dtype="bf16")
    token = spec.slope()
    print(f"{name:<14}{spec.layers[0].token_bytes:>10,}{token:>12,}{100_000 * token / GIB:>16.1f}{GIB // token:>16,}")
for layout in ("hf-expanded", "hf"):
    spec = CacheSpec.from_config("DeepSeek-V3", layout=layout, kv_dtype="fp16")
    print(t("r1_line", layout=layout, mib=spec.bytes_for(8192) / MIB))

# %% [markdown] key="rows_read" lang="en"
# A model of 671 billion parameters frees less with each token than one of 8. To win one GiB it has to forget fifteen thousand tokens.
#
# (The last two lines belong to the crash. A log of those days, of the same model at 8,192 tokens, says `KV self size  = 39040.00 MiB` and `can_shift = 0` ([ollama #9248](https://github.com/ollama/ollama/issues/9248)): the program kept K and V for every head, and could not forget. With latents the same tokens take 549 MiB. The first remedy for a full cache of MLA is to cache the latents.)
#
# How much is a little? That depends on what else a step reads. Each decode step reads its weights once, and the cache of every sequence. From a context of
# %% [markdown] key="rows_read" lang="zh" src="4a69eb62"
# 一个 6710 亿参数的模型，每忘掉一个 token 省下的，比 80 亿参数的还少。要省出 1 GiB，得忘掉一万五千个 token。
#
# （最后两行与那次崩溃有关。当时的一份日志，同一个模型，8,192 个 token，写着 `KV self size  = 39040.00 MiB` 和 `can_shift = 0`（[ollama #9248](https://github.com/ollama/ollama/issues/9248)）：那个程序给每个头都存了 K 和 V，而且不会遗忘。只存潜在向量的话，同样的 token 占 549 MiB。MLA 的缓存满了，首先该做的就是改存潜在向量。）
#
# 这一点点究竟算多算少，要看一步还得读什么。解码的每一步，用到的权重读一遍，每条序列的缓存也读一遍。上下文达到

# %% [markdown] key="even_math"
# $$n^{*} \;=\; \frac{W}{b \sum_\text{layers} r}$$

# %% [markdown] key="even_text" lang="en"
# tokens the cache is more than half of what a step reads. $W$ is what it reads of weights, in bytes (of experts only those that it uses), and $b$ the number of sequences. Eviction can only win from the cache's part. What it wins, as far as the roof allows ([lesson 04](04_the_roofline.ipynb)), on one imaginary H200 that all weights fit into, 32 sequences, a quarter kept:
# %% [markdown] key="even_text" lang="zh" src="e15dbce7"
# 个 token 时，一步读的字节里，缓存占到一半以上。$W$ 是一步要读的权重字节数（专家只算用到的），$b$ 是序列条数。淘汰只能从缓存这一部分里省。下面按 Roofline（[第 04 课](04_the_roofline.ipynb)）算上限：假想一块装得下全部权重的 H200，32 条序列，留四分之一：

# %% key="even"
from minikv.plan import find_gpu
from minikv.plan.roofline import decode_work, gpu_roof

roof = gpu_roof(find_gpu("H200"))
print(t("even_head"))
for name in ("Llama-3.1-8B", "Llama-3.1-70B", "DeepSeek-V3"):
    works = {context: decode_work(name, 32, context) for context in (8_192, 32_768, 131_072)}
    some = works[32_768]
    even = some.weight_bytes / (some.cache_bytes / some.context)
    cells = []
    for context, work in works.items():
        kept = decode_work(name, 32, context // 4)
        cells.append(f"{roof.seconds(work.flops, work.num_bytes) / roof.seconds(kept.flops, kept.num_bytes):>10.2f}x")
    print(f"{name:<14}{even:>12,.0f}{some.attention_intensity:>12.0f}" + "".join(cells))
print(t("even_ridge", name=roof.name, ridge=roof.ridge))

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

# %% key="refused"
import torch

from minikv.errors import MiniKVError
from minikv.eviction import H2O, Budget, install_kv_eviction
from minikv.models import load, recall_documents

torch.set_num_threads(1)
model = load("tiny-mla", device="cpu").model
try:
    install_kv_eviction(model, policy="h2o", budget=32, scope="head")
except MiniKVError as error:
    print(error.text(t("lang")))

# %% [markdown] key="wishes" lang="en"
# Whoever refuses should say what would be lost. tiny-mla has two layers with 4 query heads each, a latent of 64 and a rope key of 16. It has learned what tiny-gqa has: names, cities, and questions. It reads a text of 193 tokens; which 32 heavy hitters would each head keep, if it could?
# %% [markdown] key="wishes" lang="zh" src="ef321c46"
# 拒绝的人，应当说清楚会失去什么。tiny-mla 有两层，每层 4 个 query 头，潜在向量 64 个数，rope key 16 个数。它学的与 tiny-gqa 一样：人名、城市、提问。让它读一篇 193 个 token 的文本：如果各选各的，每个头会留哪 32 个重要 token？

# %% key="wishes_table" tags="hardware"
[document] = recall_documents(1, seed=1)
text = [int(token) for token in document.tokens]
context = torch.tensor([text[:193]])
model.set_attn_implementation("eager")
with torch.no_grad():
    probs = [each[0] for each in model(context, output_attentions=True).attentions]
model.set_attn_implementation("sdpa")

print(t("wishes_head"))
for layer, each in enumerate(probs):
    mass = each.sum(1)
    wish = [set((head[4:-12].topk(32).indices + 4).tolist()) for head in mass]
    joint = set((mass.sum(0)[4:-12].topk(32).indices + 4).tolist())
    shared = "".join(f"{len(own & joint):>6}" for own in wish)
    print(f"{layer:>5}{shared}{len(set.intersection(*wish)):>12}{len(set.union(*wish)):>10}{float(mass.sum()):>12.1f}")

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

# %% key="curves" tags="hardware"
import plotly.graph_objects as go

from minikv.course.lessons.l14.recall_table import recall_lines
from minikv.eviction import Echo, KeyDiff, Knorm, Random, StreamingLLM
from minikv.eviction.study.curves import Fitted, Setting, curve

policies = {
    "random": Random(),
    "streaming": StreamingLLM(),
    "h2o sum": H2O("sum"),
    "h2o max": H2O("max"),
    "knorm": Knorm(),
    "keydiff": KeyDiff(),
    "echo": Echo(),
    "echo, fitted": Fitted(Echo(), by=Echo()),
}
shares = (0.5, 0.25, 0.1)
points = list(curve(model, policies, [Setting(kept=share) for share in shares], count=12))
figure = go.Figure()
dashes = ("dot", "dash", "solid", "dashdot", "longdash", "solid", "longdashdot", "solid")
for name, dash in zip(policies, dashes):
    mine = [points[0], *(point for point in points if point.policy == name)]
    share = [100 * point.score.share for point in mine]
    up = [100 * point.score.interval[1] - y for point, y in zip(mine, share)]
    down = [y - 100 * point.score.interval[0] for point, y in zip(mine, share)]
    figure.add_scatter(
        x=[100 * point.setting.kept for point in mine], y=share, name=name, mode="lines+markers",
        line={"dash": dash}, error_y={"type": "data", "array": up, "arrayminus": down, "thickness": 1},
    )
figure.update_xaxes(title=t("curves_x"), autorange="reversed")
figure.update_yaxes(title=t("curves_y"), range=[0, 104])
figure.update_layout(height=400, margin={"t": 20, "r": 20})
lines = [t("curves_head", asked=points[0].score.asked), *recall_lines(points)]
show(figure, text="\n".join(lines), caption=t("curves_caption"))

# %% key="perplexity" tags="hardware"
print(t("perplexity_head"))
for name in ("full cache", "random", "h2o sum", "keydiff", "echo", "echo, fitted"):
    found = [point.score.perplexity for point in points if point.policy == name]
    print(f"{name:<14}" + "".join(f"{each:>10.1f}" for each in found))

# %% [markdown] key="curves_read" lang="en"
# - **H2O does not help here.** Neither its sum nor its maximum beats a random choice. That could be expected: nobody had looked at the facts yet, and now one list has to serve all heads besides.
# - **Knorm**, which answered most questions on tiny-gqa, falls below random. It asks how long a key is, and the next cell shows what there is to see.
# - **KeyDiff** compares directions, and a latent points as well as a key does. **Echo** ([lesson 14b](14b_your_own_policy.ipynb)) asks the text's own words again, and needs only logits. At 25 % both lose nothing.
# - Perplexity puts them in another order again. KeyDiff answers everything at 25 %, and the ordinary words pay for it; Echo does not.
#
# One tiny model, one kind of text, and questions that come after it. When a text is read token by token and asks as it goes, H2O's sum is well ahead of chance in some settings and far behind in others ([docs/internal/eviction.md](repo:docs/internal/eviction.md) has both). None of this says anything about DeepSeek-V3.
# %% [markdown] key="curves_read" lang="zh" src="377c4ab0"
# - **H2O 在这里没有用**。求和也好，最大值也好，都没有胜过随便留。这也不意外：那些事实还没有谁看过，现在又要一份名单照顾所有的头。
# - **Knorm** 在 tiny-gqa 上答对了大多数，在这里却不如随便留。它问的是 key 有多长，能看出什么，下一个单元格会告诉你。
# - **KeyDiff** 比的是方向，潜在向量和 key 一样有方向。**Echo**（[第 14b 课](14b_your_own_policy.ipynb)）把文本自己的词再问一遍，只要有 logit 就行。留 25% 时，两者一题也没丢。
# - 困惑度排出来的又是另一个次序。留 25% 时 KeyDiff 全都答对，代价由普通的词来付；Echo 则不然。
#
# 只有一个极小的模型、一种文本，而且问题都在文本之后才来。如果一边读一边问，H2O 的求和在有的设置下明显强过随便留，在有的设置下又差得很远（两种都记在 [docs/internal/eviction.md](repo:docs/internal/eviction.md) 里）。这些都说明不了 DeepSeek-V3 会怎样。

# %% key="lengths" tags="hardware"
print(t("lengths_head"))
for name in ("tiny-gqa", "tiny-mla"):
    with torch.no_grad():
        cache = (model if name == "tiny-mla" else load(name, device="cpu").model)(context).past_key_values
    for number, layer in enumerate(cache.layers):
        length = layer.keys.norm(dim=-1)
        print(t("lengths_line", name=name, layer=number, share=float(100 * (length.std(-1) / length.mean(-1)).mean())))

# %% [markdown] key="lengths_read" lang="en"
# Before it is cached, a latent goes through a norm (`kv_a_layernorm`), which brings all of them to much the same length, in layer 1 above all. What a policy looks at may mean something else in another architecture, or nothing.
#
# ## Shift it by hand
#
# Now the crash. A shift has two parts. Tokens go: rows are left out. And those that stay get new positions: "move up" means that their keys are turned back, by as many places as went. For Llama that is `rope(key, -1021)`. What is it here?
#
# Where a row stands is in its rope key, and nowhere else. That is what it was separated for ([lesson 03](03_the_2_86x_mistake.ipynb)). To see it, forget nothing at all: move a *whole* text by 100 places, queries included. Attention reads distances, so not one logit may change.
# %% [markdown] key="lengths_read" lang="zh" src="8032ec61"
# 潜在向量在缓存之前要过一个归一化（`kv_a_layernorm`），长度就都差不多了，第 1 层尤其如此。一种策略看的东西，换一种架构，含义可能不同，也可能什么都说明不了。
#
# ## 亲手挪一次
#
# 现在来看那次崩溃。挪动有两部分：一些 token 走了，就是少几行；留下的要换位置，“往前挪”就是把 key 往回转，走了多少就转多少。对 Llama 来说，这就是 `rope(key, -1021)`。在这里又是什么？
#
# 一行的位置只在 rope key 里，别处没有；当初把它分出来，为的就是这个（[第 03 课](03_the_2_86x_mistake.ipynb)）。要看清这一点，先什么都不忘：把**整篇**文本连同 query 一起挪 100 个位置。注意力看的是距离，所以一个 logit 也不该变。

# %% key="shift" tags="hardware"
from copy import deepcopy

from minikv.eviction.hf.rotary import find_rotary

rotary = find_rotary(model, latent=True)
rest, by = torch.tensor([text[193:]]), 100
with torch.no_grad():
    before = model(context).past_key_values
    unmoved = model(rest, past_key_values=deepcopy(before)).logits
print(t("shift_shapes", latent=list(before.layers[0].keys.shape), rope=list(before.layers[0].values.shape)))
for what in ("rope", "nothing", "both"):
    moved = deepcopy(before)
    for layer in moved.layers:
        places = torch.full((1, 193), by)
        if what != "nothing":
            layer.values = rotary.turn(layer.values, places, back=True)
        if what == "both":
            layer.keys = rotary.turn(layer.keys, places, back=True)
    with torch.no_grad():
        at = torch.arange(193, len(text))[None] - by
        logits = model(rest, past_key_values=moved, position_ids=at).logits
    print(t("shift_" + what, difference=f"{float((logits - unmoved).abs().max()):.1g}"))

# %% [markdown] key="shift_read" lang="en"
# **Turn the rope key, and leave the latent alone.** (What is left in the first line is rounding.) In DeepSeek-V3 that is 64 of 576 numbers a row: a shift of latents is cheaper than one of keys, not dearer. What made it less than trivial in 2024 was an order, to judge by the code that solved it: that program cached a key of 192 numbers for each head, the turning ones at the end, and its shift turned the first numbers of a row. When it learned to shift, its code put them in front, with the comment `rope must go first for in-place context shifting`.
#
# (A shift that really forgets changes logits, of course, since something is missing.)
#
# In the package `positions="reindexed"` does it: the kept tokens count 0, 1, 2, ... `positions="original"` leaves every token where it was. Both are right. What is wrong is to keep the old rotation and take the position of new tokens from the length of the cache ([lesson 14b](14b_your_own_policy.ipynb)); here are all three, with latents. The first 129 tokens of some texts, 32 as a prompt and then one by one, 48 kept:
# %% [markdown] key="shift_read" lang="zh" src="c5d369ea"
# **转 rope key，潜在向量不动**。（第一行剩下的是舍入误差。）在 DeepSeek-V3 里，这是每行 576 个数中的 64 个：挪潜在向量比挪 key 便宜，并不更贵。2024 年之所以“不简单”，从后来解决它的代码看，难在次序：那个程序给每个头存一个 192 个数的 key，要转的在末尾，而它的平移转的是一行最前面的数。后来它学会了平移，就是在代码里把要转的挪到前面，还加了一句注释：`rope must go first for in-place context shifting`。
#
# （真正忘掉一些的挪动，logit 当然会变，因为少了东西。）
#
# 在本包里这就是 `positions="reindexed"`：留下的 token 从 0、1、2 数起。`positions="original"` 则让每个 token 留在原来的位置。两种都对。错的是旋转还是旧的，新 token 的位置却取自缓存长度（[第 14b 课](14b_your_own_policy.ipynb)）。三种做法，用潜在向量再来一遍。几篇文本的前 129 个 token，其中 32 个作提示词，后面一个一个地读，留 48 个：

# %% key="positions" tags="hardware"
from minikv.course.lessons.l15.stream import graded, read
from minikv.eviction.study.tasks import stream_cases

cases = stream_cases(6, length=193)


def held(cache):
    return cache.layers[0].resident


for name in ("streaming", "keydiff"):
    for what, place, positions in (("text", None, "original"), ("cache", held, "original"), ("rotated", held, "reindexed")):
        sizes = dict(n_sink=4, budget=28, n_recent=16)
        logs, _ = read(model, cases, policies[name], next_position=place, positions=positions, end=129, **sizes)
        recall, perplexity = graded(logs, cases, 0, 129)
        print(t("positions_line", policy=name, what=t("positions_" + what), recall=recall, ppl=perplexity))

# %% [markdown] key="positions_read" lang="en"
# From the cache, StreamingLLM loses more than a third of its answers. KeyDiff keeps nearly all of its own, and still the ordinary words get twenty times as hard to guess: the latent tells *who* a token is, wherever it stands, and only the rope key tells *where*. **Whoever had counted answers alone would have missed the error.** So look at both, and at the logits.
#
# (Exercise 15.4: positions, slots and lengths, of several sequences and two KV cache groups.)
#
# ## Blocks that really go back
#
# So far the cache was dense, and gathered anew. An engine keeps latents in blocks, and a block goes back only when nothing in it is needed. So survivors move to the front, and the tail is freed. Which ones move?
# %% [markdown] key="positions_read" lang="zh" src="a94ec8b2"
# 位置取自缓存，StreamingLLM 答对的就少了三分之一以上。KeyDiff 的回答几乎都还在，普通的词却难猜了二十倍：一个 token **是谁**，潜在向量说了算，在哪里都一样；**在哪里**，只有 rope key 知道。**如果只数答对多少，这个错误就漏过去了**。所以两样都要看，还要看 logit。
#
# （练习 15.4：位置、槽位、长度，几条序列，两个 KV 缓存组。）
#
# ## 块真的归还
#
# 到这里，缓存都是稠密的，每次重新 gather。引擎却把潜在向量放在块里，一个块要等里面的谁都不要了才能归还。所以留下的要往前搬，末尾的块才空得出来。要搬的是哪些？

# %% key="predict_moved"
predict("survivors_moved", ...)

# %% key="moved" tags="hardware"
from minikv.course.lessons.l15.paged_model import OnBlocks

blocks = OnBlocks(model, "keydiff", Budget(n_sink=4, budget=24, n_recent=12))
row = blocks.cache.spec.layers[0].token_bytes
print(t("cache_shapes", latent=list(blocks.cache.layer(0).k.shape), rope=list(blocks.cache.layer(0).v.shape), row=row))
blocks.read("A", text[:100])
for step in range(3):
    before = [blocks.eviction.positions("A", layer)[0] for layer in (0, 1)]
    gone = blocks.eviction.evict(["A"])
    after = [blocks.eviction.positions("A", layer)[0] for layer in (0, 1)]
    moved = [int((old[: len(new)] != new).sum()) for old, new in zip(before, after)]
    packed = [int((old[: len(new)] != new.sort().values).sum()) for old, new in zip(before, after)]
    print(t("moved_line", tokens=len(before[0]), gone=gone, moved=moved, bytes=sum(moved) * row, packed=packed))
    blocks.read("A", text[100 + step : 101 + step])
print(t("order_line", positions=after[1].tolist()))
blocks.close()

# %% [markdown] key="moved_read" lang="en"
# `OnBlocks` is a helper of this lesson: `read` computes tokens, `eviction` is the package's `PagedEviction`. (The cache calls the latent `k` and the rope key `v`.)
#
# Survivors that lie in front already stay; the others, from behind, fill the holes. When one token goes at every step, one row a layer moves. To keep the text's order in the slots would move almost all of them, every time. Nobody needs that order: attention sums over rows, and each rope key knows its own place. The price is a list of positions, since a slot's number says nothing any more.
#
# (Exercise 15.3: sinks and the window, found by that list, in a batch with padding. Exercise 15.2 moves in the text's order, which is easier to check.)
#
# Two parts of a row have to move together. Let one of them lie:
# %% [markdown] key="moved_read" lang="zh" src="ee814dc4"
# `OnBlocks` 是本课的小工具：`read` 计算 token，`eviction` 就是本包的 `PagedEviction`。（缓存里，潜在向量叫 `k`，rope key 叫 `v`。）
#
# 留下的如果已经在前面，就不动；其余的从后面来填空位。每一步走一个 token，每层就搬一行。要在槽位里保持文本的次序，几乎每次全都得搬。这个次序谁也不需要：注意力对各行求和，每个 rope key 都知道自己的位置。代价是要有一份位置表，因为槽位的编号已经什么都说明不了。
#
# （练习 15.3：在有填充的 batch 里，靠这份表找到汇点和近期窗口。练习 15.2 则按文本的次序来搬，便于核对。）
#
# 一行有两部分，必须一起搬。故意留下其中一部分：

# %% key="left_behind" tags="hardware"
def evict_all_but(blocks, left):
    """A evicts, and the part ``left`` of its rows stays where it was: "k", "v" or None."""
    parts = [getattr(blocks.cache.layer(layer), left) for layer in (0, 1) if left]
    old = [part.clone() for part in parts]
    blocks.eviction.evict(["A"])
    for part, rows in zip(parts, old):
        part.copy_(rows)


for left in (None, "v", "k"):
    blocks = OnBlocks(model, "keydiff", Budget(n_sink=4, budget=42, n_recent=2), num_blocks=40)
    blocks.read("A", text[:193])
    evict_all_but(blocks, left)
    logits = blocks.read("A", text[193:])
    asked = document.positions
    right = sum(int(logits[place - 193].argmax()) == text[place + 1] for place in asked)
    print(t("left_line", what=t(f"left_{left}"), right=right, asked=len(asked)))
    blocks.close()

# %% [markdown] key="left_read" lang="en"
# No exception in either case. In October 2025 vLLM on Intel's Gaudi had to mend the defragmentation of its cache for MLA ([vllm-gaudi #470](https://github.com/vllm-project/vllm-gaudi/pull/470)):
#
# > MLA-based models don't have key-value pairs in cache and utilize a single latent cache, so trying to swap anything in value cache will fail, as the cache is None.
#
# There, with both parts in one tensor, it failed loudly. With two tensors, as here, whoever forgets one gets an answer.
#
# ### Whose blocks?
#
# Two sequences begin alike, so they share the blocks of the beginning ([lesson 09](09_pages_and_blocks.ipynb)). One of them evicts. What does the pool win?
# %% [markdown] key="left_read" lang="zh" src="84bfa070"
# 两种情形都没有异常。2025 年 10 月，Intel Gaudi 上的 vLLM 就不得不为 MLA 修一次缓存的碎片整理（[vllm-gaudi #470](https://github.com/vllm-project/vllm-gaudi/pull/470)）：
#
# > MLA-based models don't have key-value pairs in cache and utilize a single latent cache, so trying to swap anything in value cache will fail, as the cache is None.
#
# （MLA 模型的缓存里没有 key-value 对，只有一份潜在缓存，所以去交换 value 缓存必然失败，因为它是 None。）
# 那里两部分在一个张量里，出错会大声说出来。像这里有两个张量的，漏搬一个，照样给你一个回答。
#
# ### 谁的块？
#
# 两条序列的开头相同，所以共用开头的块（[第 09 课](09_pages_and_blocks.ipynb)）。其中一条淘汰了。块池能多出几个块？

# %% key="predict_pool"
predict("pool_gains", ...)

# %% [markdown] key="small" lang="en"
# The same, small enough to look at. A reads 100 tokens, in blocks of 8. B begins with the same 64, and then goes on differently. Both have a capacity of 40. (What can still be found: how much of its beginning a new request with A's text would get for nothing.)
# %% [markdown] key="small" lang="zh" src="7fbf05e9"
# 同样的事，换成看得过来的大小。A 读 100 个 token，块大小为 8。B 开头的 64 个与它相同，后面各走各的。两条的容量都是 40。（“能找到”是指：新来一个请求，文本与 A 相同，它的开头有多少可以直接拿来用。）

# %% key="shared"
from minikv.course.widgets import BlocksWidget
from minikv.i18n import LANGUAGES
from minikv.i18n import text as sentence

[other] = recall_documents(1, seed=7)
texts = {"A": text[:100], "B": text[:64] + [int(token) for token in other.tokens[:40]]}


def story(unit, names, num_blocks=24):
    """A and B are read, then those in ``names`` evict; every step is drawn, and told in a line."""
    blocks = OnBlocks(model, "keydiff", Budget(n_sink=4, budget=24, n_recent=12), num_blocks=num_blocks, unit=unit)
    drawn = BlocksWidget(t("lang"), num_blocks=num_blocks, block_size=8)
    for name in ("A", "B", *names):
        step = "reads" if name not in blocks.manager.sequences() else "evicts"
        if step == "reads":
            blocks.read(name, texts[name])
        else:
            blocks.eviction.evict([name])
        used, found = blocks.manager.pools[0].num_used, blocks.manager.match([*texts["A"], 0]).num_tokens
        note = {lang: sentence(f"lesson_15.note_{step}", lang, name=name) for lang in LANGUAGES}
        drawn.add_step(blocks.tables(), note, cached=blocks.found(texts.values()))
        tables = "  ".join(f"{each.name} {list(each.blocks)}" for each in blocks.tables())
        print(t("story_line", what=t("story_" + step, name=name), used=used, found=found, tables=tables))
    positions = blocks.eviction.positions("A", 0)[0].tolist()
    blocks.close()
    return drawn, positions


drawn, _ = story("token", "AB")
show(drawn)

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

# %% key="block_mode" tags="hardware"
_, positions = story("block", "A")
print(t("block_line", positions=positions))

asking = recall_documents(4, seed=9)
for unit in ("token", "block"):
    right = asked = 0
    for each in asking:
        whole = [int(token) for token in each.tokens]
        blocks = OnBlocks(model, "keydiff", Budget(n_sink=4, budget=40, n_recent=4), unit=unit)
        blocks.read("A", whole[:193])
        blocks.eviction.evict(["A"])
        kept, logits = blocks.manager.length("A"), blocks.read("A", whole[193:])
        right += sum(int(logits[place - 193].argmax()) == whole[place + 1] for place in each.positions)
        asked += len(each.positions)
        blocks.close()
    print(t("unit_line", unit=t("unit_" + unit), kept=kept, right=right, asked=asked))

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
params = SamplingParams(temperature=0, max_tokens=16)
some = EvictionConfig(policy="keydiff", budget=56, n_sink=4, n_recent=20, evict_every=8, prefill_chunk=64)
for eviction in (None, some):
    with LLM(model, num_blocks=64, max_num_seqs=16, eviction=eviction) as llm:
        for prompt in prompts:
            llm.add_request(prompt, params)
        running, most = 0, 0
        while llm.has_work:
            llm.step()
            view = llm.snapshot()
            running = max(running, len(view.running))
            most = max([most, *(len(each.tables[0]) for each in view.running)])
        kib = most * llm.cache.spec.block_bytes(16) / 1024
        what = t("engine_full" if eviction is None else "engine_evicting")
        print(t("engine_line", what=what, running=running, most=most, kib=kib, steps=view.steps))

for eviction in (None, some):
    with LLM(model, num_blocks=12, eviction=eviction) as llm:
        try:
            [out] = llm.generate([prompts[0] * 2], SamplingParams(temperature=0, max_tokens=40))
            print(t("engine_long", tokens=2 * 193, slots=12 * 16, new=len(out.completions[0].token_ids)))
        except MiniKVError as error:
            print(error.text(t("lang")))

# %% [markdown] key="engine_read" lang="en"
# More than twice as many run at once in the same bytes, and a text may be longer than the whole pool. (A capacity of 80 needs 5 blocks; the others are for the chunk of the prompt that is just being read.) What the answers are worth is another matter, and the curves above speak of that.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="engine_read" lang="zh" src="41174282"
# 同样的字节里，同时运行的多了一倍不止；一篇文本甚至可以比整个块池还长。（容量 80 只要 5 个块，其余的留给正在读的那一段提示词。）回答还值多少，是另一回事，要看前面的曲线。
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
# 2. `compact`: latents move to the front of their blocks, and nobody else's are touched.
# 3. `protected`: sinks and window, in a padded batch whose slots are in no order.
# 4. `next_tokens`: position, slot and length after evictions.
# %% [markdown] key="exercises" lang="zh" src="e605e889"
# ## 练习
#
# 1. `freed`：归还给块池多少块、多少字节。
# 2. `compact`：潜在向量搬到块的前面，别人的一概不动。
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
