# %% [meta]
# number = "14"
# slug = "what_to_forget"
# needs = ["01", "02", "09"]
# rooms = ["eviction"]
# [title]
# en = "Which tokens can go?"
# zh = "哪些 token 可以不要？"
# [t4]
# en = "The text quotes answers to the digit, so the CPU computes them, even where there is a T4, and the numbers are the same. The cell for your own model uses the T4."
# zh = "正文逐位引用答对的比例，所以由 CPU 计算，有 T4 也一样，看到的数字相同。测你自己模型的那个单元格会用 T4。"
# [paper]
# en = "14.1, 14.3"
# zh = "14.1、14.3"

# %% [markdown] key="question" lang="en"
# ## The question
#
# **Can I delete part of the cache and still get the right answer? And does the memory come back?**
#
# The picture shows a text of 49 tokens. Each head may keep 14 of them. The policy H2O chose the first two, the last four, and the eight that got the most attention so far. The height of a bar shows how much attention a token got. The text hides six facts, a name and a city each. Questions about them come later.
# %% [markdown] key="question" lang="zh" src="0b08e4e2"
# ## 问题
#
# **删掉一部分缓存，还能答对吗？显存真的会降下来吗？**
#
# 下面这篇文本有 49 个 token，每个头可以留 14 个。策略 H2O 留下最前面的两个、最后面的四个，以及到目前为止得到注意力最多的八个。条的高度就是得到的注意力。文本里藏着六条事实，每条是一个人名加一个城市，稍后才会被问到。

# %% key="setup" lang="en"
import torch

from minikv.models import load, recall_documents
from minikv.models.recall import FIRST_FILLER, FIRST_NAME

torch.set_num_threads(1)
# The text quotes the answers to the digit, and another device rounds otherwise: so the CPU, by name.
model = load("tiny-gqa", device="cpu").model
[short] = recall_documents(1, facts=6, context=48, queries=5, span=23)
facts = [place for place, token in enumerate(short.tokens[:49]) if FIRST_NAME <= token < FIRST_FILLER]

# %% key="setup" lang="zh"
import torch

from minikv.models import load, recall_documents
from minikv.models.recall import FIRST_FILLER, FIRST_NAME

torch.set_num_threads(1)
# 正文逐位引用答对的比例，而换一个设备，舍入就不同，所以写明用 CPU。
model = load("tiny-gqa", device="cpu").model
[short] = recall_documents(1, facts=6, context=48, queries=5, span=23)
facts = [place for place, token in enumerate(short.tokens[:49]) if FIRST_NAME <= token < FIRST_FILLER]

# %% key="choice" lang="en"
from minikv.course.diagrams import kept_tokens
from minikv.eviction import H2O
from minikv.eviction.study.trace import trace_eviction

few = dict(prompt=49, n_sink=2, budget=8, n_recent=4)
choice = trace_eviction(model, short.tokens[:49], policy=H2O("sum"), scope="head", **few)
show(kept_tokens({"": choice}, short.words[:49], "en", facts=facts))

# %% key="choice" lang="zh"
from minikv.course.diagrams import kept_tokens
from minikv.eviction import H2O
from minikv.eviction.study.trace import trace_eviction

few = dict(prompt=49, n_sink=2, budget=8, n_recent=4)
choice = trace_eviction(model, short.tokens[:49], policy=H2O("sum"), scope="head", **few)
show(kept_tokens({"": choice}, short.words[:49], "zh", facts=facts))

# %% [markdown] key="able" lang="en"
# The four heads made four different choices, and hardly any of the marked facts was kept.
#
# After this lesson you can
# - **count** what an eviction frees, in bytes and in blocks;
# - **explain** which tokens a score prefers, and why;
# - **judge** a policy by what the model still answers, compared with a random choice.
#
# You need the cache formula ([lesson 02](02_how_many_bytes.ipynb)), and blocks ([lesson 09](09_pages_and_blocks.ipynb)) for the second half.
# %% [markdown] key="able" lang="zh" src="d54122fd"
# 四个头选得各不相同，图中标出的事实却几乎一条也没有留下。
#
# 学完本课，你能够：
# - **算出**一次淘汰能省下多少字节、多少块；
# - **解释**一种得分偏爱哪些 token，为什么；
# - **评价**一种策略，也就是看模型还答得出多少，并与随机选择相比。
#
# 需要先懂缓存公式（[第 02 课](02_how_many_bytes.ipynb)），后半课还要用到块（[第 09 课](09_pages_and_blocks.ipynb)）。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# A layer that evicts keeps three kinds of tokens. The first few of the text are the **sinks**. The last few are the **recent window**. Of those in between it keeps the ones with the highest score, the **heavy hitters**. The rule that computes the score is the **policy**; H2O is one of them.
# A layer needn't evict after every step. With `evict_every` it lets a few more tokens come in, and cleans up less often.
# %% [markdown] key="predict_first" lang="zh" src="ac2893a1"
# ## 先猜一猜
#
# 做**淘汰**（eviction）的层留三种 token。文本最前面的几个，叫**注意力汇点**（sink），下面简称汇点；最后面的几个，叫**近期窗口**；两者之间得分最高的，叫**重要 token**（heavy hitter）。得分怎么算，由**策略**（policy）决定，H2O 就是其中一种。
# 不必每一步都淘汰。设了 `evict_every`，就先多放进几个 token，隔几步再清理一次。

# %% key="predict_peak"
predict("peak", ...)

# %% [markdown] key="formula" lang="en"
# ## How much stays
#
# The capacity $C$ is the sum of the three kinds. Between two evictions a few more come in, so the most is $P$:
# %% [markdown] key="formula" lang="zh" src="c635c2bd"
# ## 留多少
#
# 容量 $C$ 是三种 token 之和。两次淘汰之间还会多进来几个，所以最多是 $P$：

# %% [markdown] key="formula_math"
# $$C \;=\; n_\text{sink} + b + n_\text{recent} \qquad\qquad P \;=\; C + e - 1$$

# %% [markdown] key="symbols" lang="en"
# | symbol | meaning | unit | value here, in the picture |
# |---|---|---|---|
# | $n_\text{sink}$ | the first tokens of the text, which stay | tokens | 2 |
# | $b$ | the budget: the number of heavy hitters | tokens | 8 |
# | $n_\text{recent}$ | the last tokens, which stay | tokens | 4 |
# | $C$ | the capacity of a layer | tokens | 2 + 8 + 4 = 14 |
# | $e$ | `evict_every` | steps | 1 |
# | $P$ | the most that a layer holds between two steps | tokens | 14 + 1 - 1 = 14 |
#
# So there are three maxima. (Exercise 14.1 computes them.)
#
# - Between two steps a layer holds at most $P$ tokens.
# - Inside a forward it holds $P + 1$, because the step's own token is there too.
# - Before the first eviction it holds the whole prompt, unless the prompt comes in chunks.
#
# In bytes, for Llama-3.1-8B and a text of 131,072 tokens, with `evict_every` 16:
# %% [markdown] key="symbols" lang="zh" src="19b59e77"
# | 符号 | 含义 | 单位 | 本例取值（图中） |
# |---|---|---|---|
# | $n_\text{sink}$ | 文本最前面、一直留着的 token | token | 2 |
# | $b$ | 预算：重要 token 的个数 | token | 8 |
# | $n_\text{recent}$ | 最后面、一直留着的 token | token | 4 |
# | $C$ | 一层的容量 | token | 2 + 8 + 4 = 14 |
# | $e$ | `evict_every` | 步 | 1 |
# | $P$ | 一层在两步之间最多有多少 | token | 14 + 1 - 1 = 14 |
#
# 所以有三个最大值（练习 14.1 就是算它们）：
#
# - 两步之间，一层最多有 $P$ 个 token；
# - 前向计算当中有 $P + 1$ 个，因为多了这一步自己的 token；
# - 第一次淘汰之前，缓存里是整个提示词，除非提示词分段来。
#
# 换算成字节，以 Llama-3.1-8B 和 131,072 个 token 的文本为例，`evict_every` 为 16：

# %% key="budget" lang="en"
from minikv.course import Table
from minikv.eviction import Budget
from minikv.plan import CacheSpec
from minikv.units import GIB

length = 131_072
spec = CacheSpec.from_config("Llama-3.1-8B", kv_dtype="bf16")
rows = [(length, 100, length, f"{spec.bytes_for(length) / GIB:.2f}")]
for budget in (65_020, 32_252, 12_591):
    kept = Budget(n_sink=4, budget=budget, n_recent=512, evict_every=16)
    gib = kept.peak_resident * spec.slope() / GIB
    rows.append((kept.capacity, round(100 * kept.capacity / length), kept.peak_resident, f"{gib:.2f}"))
Table(["capacity, tokens", "of the text, %", "peak, tokens", "GiB"], rows, right=["GiB"])

# %% key="budget" lang="zh"
from minikv.course import Table
from minikv.eviction import Budget
from minikv.plan import CacheSpec
from minikv.units import GIB

length = 131_072
spec = CacheSpec.from_config("Llama-3.1-8B", kv_dtype="bf16")
rows = [(length, 100, length, f"{spec.bytes_for(length) / GIB:.2f}")]
for budget in (65_020, 32_252, 12_591):
    kept = Budget(n_sink=4, budget=budget, n_recent=512, evict_every=16)
    gib = kept.peak_resident * spec.slope() / GIB
    rows.append((kept.capacity, round(100 * kept.capacity / length), kept.peak_resident, f"{gib:.2f}"))
Table(["容量，token", "占全文，%", "峰值，token", "GiB"], rows, right=["GiB"])

# %% [markdown] key="formula_read" lang="en"
# A quarter of the tokens takes a quarter of the bytes: 4.00 instead of 16.00 GiB. But which tokens?
#
# ## What a model looks at
#
# tiny-gqa has 2 layers, each with 4 query heads that read 2 KV heads. It has learned one task (you met it in [lesson 01](01_why_a_cache.ipynb)). A text has 24 facts, a name and a city each, scattered among other words. Then come questions, "? name", and it answers each with the city. With the whole text in the cache it makes hardly a mistake, so every wrong answer below comes from a token that was evicted.
#
# Here are the first 193 tokens of such a text, and how the attention of all queries is shared out among them:
# %% [markdown] key="formula_read" lang="zh" src="6bed7712"
# 留四分之一的 token，就只要四分之一的字节，也就是 4.00 GiB，而不是 16.00 GiB。那么，该留哪些 token 呢？
#
# ## 模型在看什么
#
# tiny-gqa 有 2 层，每层 4 个 query 头读 2 个 KV 头。它只学过一件事（[第 01 课](01_why_a_cache.ipynb)已经见过）。一篇文本里散落着 24 条事实，每条是一个人名加一个城市，夹在别的词中间；然后是提问，“? 人名”，它用那个城市来回答。整篇文本都在缓存里的时候，它几乎不出错，所以下面每答错一题，都是因为有 token 被淘汰了。
#
# 下面是这样一篇文本的前 193 个 token，看看所有 query 的注意力怎样分给它们：

# %% key="looks" lang="en"
[document] = recall_documents(1, seed=1)
context = torch.from_numpy(document.tokens[:193])[None]  # [1, T]
model.set_attn_implementation("eager")
with torch.no_grad():
    probs = [each[0] for each in model(context, output_attentions=True).attentions]  # a layer: [heads, T, T]
model.set_attn_implementation("sdpa")
is_fact = (context[0] >= FIRST_NAME) & (context[0] < FIRST_FILLER)

# %% key="looks" lang="zh"
[document] = recall_documents(1, seed=1)
context = torch.from_numpy(document.tokens[:193])[None]  # [1, T]
model.set_attn_implementation("eager")
with torch.no_grad():
    probs = [each[0] for each in model(context, output_attentions=True).attentions]  # 每层 [头, T, T]
model.set_attn_implementation("sdpa")
is_fact = (context[0] >= FIRST_NAME) & (context[0] < FIRST_FILLER)

# %% key="shares" lang="en" tags="hardware"
rows = []
for layer, each in enumerate(probs):
    for head, mass in enumerate(each.sum(1).view(2, 2, -1).sum(1)):  # both query heads of a KV head: [T]
        middle = mass[4:-12].sort(descending=True)
        parts = mass[:4].sum(), mass[-12:].sum(), middle.values[:32].sum()
        best = middle.indices[:32]
        words = " ".join(document.words[4 + int(place)] for place in best[:5])
        cells = [round(100 * float(part / mass.sum()), 1) for part in parts]
        rows.append((layer, head, *cells, int(is_fact[4:-12][best].sum()), words))
head = ["layer", "KV head", "4 sinks, %", "12 recent, %", "best 32, %", "of them in facts", "the best five words"]
Table(head, rows)

# %% key="shares" lang="zh" tags="hardware"
rows = []
for layer, each in enumerate(probs):
    for head, mass in enumerate(each.sum(1).view(2, 2, -1).sum(1)):  # 一个 KV 头的两个 query 头之和：[T]
        middle = mass[4:-12].sort(descending=True)
        parts = mass[:4].sum(), mass[-12:].sum(), middle.values[:32].sum()
        best = middle.indices[:32]
        words = " ".join(document.words[4 + int(place)] for place in best[:5])
        cells = [round(100 * float(part / mass.sum()), 1) for part in parts]
        rows.append((layer, head, *cells, int(is_fact[4:-12][best].sum()), words))
head = ["层", "KV 头", "4 个汇点，%", "12 个近期，%", "最高 32 个，%", "其中属于事实", "得分最高的五个词"]
Table(head, rows)

# %% [markdown] key="shares_read" lang="en"
# Look at the best 32, which would be the heavy hitters: most are ordinary words. (With the 4 sinks and the last 12 tokens they make 48, a quarter of the text.) Names and cities make up a quarter of the text, but less than a fifth of these 32. In the second layer there are none. So far the text only needed its next word guessed, and for that the model looks back at ordinary words. No question has asked for a fact yet.
#
# The first tokens get more than their share, since 4 of 193 would be 2 %. In large models the first token alone may take a large part of all attention. Softmax has to give away 1, and a head that has nothing to look for leaves it there. That is what **sink** means ([StreamingLLM](https://arxiv.org/abs/2309.17453)). How strong the sink is differs from model to model. Here it's weak.
#
# Now watch it token by token, on a shorter text. The closer a cell's colour is to the right end of the scale, the higher the score of its token. With H2O the score is the attention that the token got so far. Hatched cells are evicted. Choose a layer and a head, let the steps run, and change how much is kept. The text ends with five questions. With H2O and a quarter kept none of them is answered. Find a policy that answers all five.
# %% [markdown] key="shares_read" lang="zh" src="28899c01"
# 先看得分最高的 32 个，也就是重要 token，多半是普通的词。（加上 4 个汇点和最后 12 个，一共 48 个，是文本的四分之一。）人名和城市占全文的四分之一，在这 32 个里却不到五分之一，第二层里一个也没有。因为到这里为止，要做的只是猜下一个词，为此模型回头看的正是普通的词；还没有一个问题问到事实。
#
# 再看最前面的几个 token。193 个里的 4 个，平均只该得到 2%，实际却多得多。在大模型里，光是第一个 token 就可能占去很大一部分注意力。softmax 的权重之和总是 1；一个头没有要关注的 token 时，多余的权重就落在第一个 token 上，这就是**汇点**的意思（[StreamingLLM](https://arxiv.org/abs/2309.17453)）。汇点有多强，各个模型不一样；这个模型里比较弱。
#
# 换一篇短一些的文本，逐个 token 来看。格子的颜色越接近色阶的右端，这个 token 的得分越高；对 H2O 来说，得分就是到目前为止得到的注意力。画斜线的已经被淘汰。选一层、一个头，让它一步步运行，再改一改留多少。文本末尾有五个问题。用 H2O 留四分之一，一个也答不出；请找一种五个都答得出的策略。

# %% key="heat_map" lang="en"
from minikv.course.widgets import HeatMapWidget

show(HeatMapWidget("en", model=model))

# %% key="heat_map" lang="zh"
from minikv.course.widgets import HeatMapWidget

show(HeatMapWidget("zh", model=model))

# %% [markdown] key="score" lang="en"
# ## The score
#
# H2O gives each token the sum of a **column**: the attention that all queries gave it. For example, take a head without preferences and four tokens:
# %% [markdown] key="score" lang="zh" src="555434cf"
# ## 得分
#
# H2O 给每个 token 的得分是一个**列和**，也就是所有 query 分给它的注意力加在一起。举个例子，一个什么都不偏爱的头，四个 token：

# %% key="toy" lang="en"
from minikv.course.diagrams import attention_sums

seen = torch.ones(4, 4).tril()  # query t sees the tokens 0 to t
show(attention_sums((seen / seen.sum(-1, keepdim=True)).tolist(), "en"))

# %% key="toy" lang="zh"
from minikv.course.diagrams import attention_sums

seen = torch.ones(4, 4).tril()  # 第 t 个 query 看得到 token 0 到 t
show(attention_sums((seen / seen.sum(-1, keepdim=True)).tolist(), "zh"))

# %% [markdown] key="toy_read" lang="en"
# Each row adds up to 1, so all scores together are the number of queries, 4. You can use that as a check. And the oldest token has eight times the score of the newest, although no query preferred it. In general:
# %% [markdown] key="toy_read" lang="zh" src="9fc6a34a"
# 每一行加起来是 1，所以全部得分之和就是 query 的个数 4，可以用来核对。再看得分，最早的 token 是最新的八倍，尽管没有一个 query 偏爱它。写成公式：

# %% [markdown] key="score_math"
# $$s_{h,i} \;=\; \sum_{t \,\ge\, i} \;\; \sum_{g \,\in\, G(h)} p_{g,t,i} \qquad\qquad \sum_i s_{h,i} \;=\; \lvert G \rvert \cdot T$$

# %% [markdown] key="score_symbols" lang="en"
# | symbol | meaning | value here, in the table |
# |---|---|---|
# | $p_{g,t,i}$ | what query $t$ of query head $g$ gives to token $i$: a row that sums to 1 | 0.25 for $t = 3$ |
# | $G(h)$ | the query heads that read KV head $h$: neighbours, $\lvert G \rvert$ of them | 1 head |
# | $T$ | queries so far | 4 |
# | $s_{h,i}$ | the score of token $i$ in KV head $h$: a column sum | 2.08 for $i = 0$ |
#
# Token 0: `1 + 1/2 + 1/3 + 1/4 = 2.08`. All tokens: `2.08 + 1.08 + 0.58 + 0.25 = 1 × 4`.
#
# A KV head has one row of K for all query heads of its group, and keeps or drops it for all of them. So their opinions have to become one, and H2O adds them up.
# %% [markdown] key="score_symbols" lang="zh" src="59bc8006"
# | 符号 | 含义 | 本例取值（表中） |
# |---|---|---|
# | $p_{g,t,i}$ | query 头 $g$ 的第 $t$ 个 query 分给 token $i$ 多少：一行加起来是 1 | $t = 3$ 时为 0.25 |
# | $G(h)$ | 读 KV 头 $h$ 的那些 query 头：相邻的 $\lvert G \rvert$ 个 | 1 个头 |
# | $T$ | 到目前为止的 query 数 | 4 |
# | $s_{h,i}$ | token $i$ 在 KV 头 $h$ 里的得分：一个列和 | $i = 0$ 时为 2.08 |
#
# token 0：`1 + 1/2 + 1/3 + 1/4 = 2.08`。全部 token：`2.08 + 1.08 + 0.58 + 0.25 = 1 × 4`。
#
# 一个 KV 头只有一份 K，供一组里所有的 query 头使用，留或不留对整组都一样。所以几个头的意见必须合成一个，H2O 的做法是相加。

# %% key="predict_mass"
predict("group_mass", ...)

# %% key="scores_real" lang="en"
rows = [
    (layer, head, f"{float(mass.sum()):.3f}", each.shape[1], 2)
    for layer, each in enumerate(probs)
    # [4 query heads, T] -> [2 KV heads, 2 query heads, T] -> [2, T]
    for head, mass in enumerate(each.sum(1).view(2, 2, -1).sum(1))
]
head = ["layer", "KV head", "scores in all", "queries", "query heads"]
Table(head, rows, right=head[2:3])

# %% key="scores_real" lang="zh"
rows = [
    (layer, head, f"{float(mass.sum()):.3f}", each.shape[1], 2)
    for layer, each in enumerate(probs)
    # [4 个 query 头, T] -> [2 个 KV 头, 每组 2 个 query 头, T] -> [2, T]
    for head, mass in enumerate(each.sum(1).view(2, 2, -1).sum(1))
]
head = ["层", "KV 头", "得分之和", "query 数", "query 头"]
Table(head, rows, right=head[2:3])

# %% [markdown] key="early" lang="en"
# (Exercise 14.2 is this sum, step by step.)
#
# ### What a sum prefers
#
# Suppose again that a head prefers nothing, so that every query shares its attention equally among all tokens that it sees. Is the score the same everywhere?
# %% [markdown] key="early" lang="zh" src="a281aca2"
# （练习 14.2 就是一步一步地求这个和。）
#
# ### 求和偏爱哪些 token
#
# 再假设一个头什么都不偏爱，每个 query 把注意力平均分给它看得到的所有 token。得分是不是处处相同？

# %% key="predict_head_start"
predict("head_start", ...)

# %% key="early_table" lang="en" tags="hardware"
uniform = torch.ones(193, 193).tril()
uniform = (uniform / uniform.sum(-1, keepdim=True))[None]  # [1 head, T, T], as a layer's probs are [4, T, T]
near, queries = {}, torch.arange(193, 0, -1)  # how many queries see each token
for name, each in (("no preference", uniform), ("layer 0", probs[0]), ("layer 1", probs[1])):
    # over heads and queries: [T]
    reduced = {"sum": each.sum((0, 1)), "mean": each.sum((0, 1)) / queries, "max": each.amax((0, 1))}
    for reduce, score in reduced.items():
        near[name, reduce] = {
            place: float(score[max(0, place - 8) : place + 9].mean() if place else score[0])
            for place in (0, 24, 96, 144, 192)
        }
places = list(near[name, "sum"])
rows = [(name, reduce, *(f"{value:.3f}" for value in values.values())) for (name, reduce), values in near.items()]
head = ["mean score near token", "reduce", *map(str, places)]
Table(head, rows, right=head[2:])

# %% key="early_table" lang="zh" tags="hardware"
uniform = torch.ones(193, 193).tril()
uniform = (uniform / uniform.sum(-1, keepdim=True))[None]  # [1 个头, T, T]，与每层的 probs [4, T, T] 同样排列
near, queries = {}, torch.arange(193, 0, -1)  # 每个 token 有几个 query 看得到
for name, each in (("什么都不偏爱", uniform), ("第 0 层", probs[0]), ("第 1 层", probs[1])):
    # 对头和 query 归约：[T]
    reduced = {"sum": each.sum((0, 1)), "mean": each.sum((0, 1)) / queries, "max": each.amax((0, 1))}
    for reduce, score in reduced.items():
        near[name, reduce] = {
            place: float(score[max(0, place - 8) : place + 9].mean() if place else score[0])
            for place in (0, 24, 96, 144, 192)
        }
places = list(near[name, "sum"])
rows = [(name, reduce, *(f"{value:.3f}" for value in values.values())) for (name, reduce), values in near.items()]
head = ["token 附近的平均得分", "reduce", *map(str, places)]
Table(head, rows, right=head[2:])

# %% [markdown] key="early_read" lang="en"
# Every query has seen the first token, but only half of them the one in the middle. And the early queries had few tokens to share their 1 among. So without any preference the first token has 5.842 and the middle one 0.697. **A sum measures age as well as use.** In the real scores (sums over the four query heads, averaged over 17 neighbours) this slope comes on top of what the heads really look for.
#
# You can also reduce the attention of many queries to one number in other ways, and each has a fault of its own. The **mean** over the queries that could see a token removes the first cause but not the second; and the newest tokens, which hardly any other query has seen, come out on top. The **maximum** never forgets: one query that looked at a token is enough for a high score for ever. And the very first query had to give all it had to the first token. (The original H2O adds up. `H2O(reduce=...)` offers all of them, and a decay.)
#
# With a sum the newest token has next to nothing, so it is the first to go. In the next cell there are 48 places, a prompt of 48 tokens, and then 145 more, one after the other. A window of 1 protects only the newest token, and only for one step.
# %% [markdown] key="early_read" lang="zh" src="9344eb53"
# 第一个 token，每个 query 都看得到；中间的，只有一半 query 看得到。而且最早的几个 query，要分的 token 很少。所以什么都不偏爱的头，第一个 token 得 5.842，中间的只得 0.697。**累加得到的分数，既反映这个 token 有多常用，也反映它存在了多久**。真实的得分（四个 query 头之和，再对相邻 17 个 token 取平均），是这条斜坡再加上各个头真正要找的东西。
#
# 把多次注意力变成一个数，别的办法各有各的毛病。求**平均**消除了“早来的 token 被看的次数多”这个偏差，但“最早的 query 可看的 token 少、每个分到的概率大”还在；最新的 token 几乎只被自己看过，均值反而虚高。取**最大值**，被看过一次就永远有高分；而文本的第一个 query，只能把全部注意力放在第一个 token 上。（H2O 原本是求和。`H2O(reduce=...)` 这几种都有，还有衰减。）
#
# 用求和的话，最新的 token 几乎没有得分，所以最先被淘汰。下面给 48 个位置，先读 48 个 token 的提示词，然后一个接一个再来 145 个。（窗口为 1，就是只保护最新的一个 token，只保护一步。）

# %% key="freeze" lang="en"
text, rows = document.tokens[:193], []
for n_recent in (1, 12):
    sizes = dict(n_sink=4, budget=44 - n_recent, n_recent=n_recent)
    trace = trace_eviction(model, text, prompt=48, policy=H2O("sum"), scope="head", **sizes)
    for step in (1, 43, trace.steps - 1):
        from_prompt = trace.kept[:, :, step, :48].sum(-1).mean()  # mean over layers and heads
        rows.append((n_recent, step, float(from_prompt), trace.capacity[0], 48))
Table(["window", "steps", "kept from the prompt", "kept in all", "tokens of the prompt"], rows)

# %% key="freeze" lang="zh"
text, rows = document.tokens[:193], []
for n_recent in (1, 12):
    sizes = dict(n_sink=4, budget=44 - n_recent, n_recent=n_recent)
    trace = trace_eviction(model, text, prompt=48, policy=H2O("sum"), scope="head", **sizes)
    for step in (1, 43, trace.steps - 1):
        from_prompt = trace.kept[:, :, step, :48].sum(-1).mean()  # 对层和头求平均
        rows.append((n_recent, step, float(from_prompt), trace.capacity[0], 48))
Table(["窗口", "步数", "来自提示词的", "留下的总数", "提示词的 token 数"], rows)

# %% [markdown] key="freeze_read" lang="en"
# Without a window the kept set almost stands still at the beginning of the text. After 145 steps 42 of its 48 tokens still come from the prompt, and of the last hundred tokens hardly one got in. That is why a layer protects its last tokens, whatever they score. It isn't a full cure. With a window of 12, 29 tokens of the prompt remain, most of the heavy hitters.
# (Exercise 14.3 is the choice, with sinks, window, ties and padding.)
#
# ## Recall after eviction: the question comes last
#
# Now the answers. The model reads a context of 193 tokens, every layer is cut down to a share of it, and only then come 16 questions a text, about facts that nothing has pointed at. In a chat this is the case that counts, because the next question isn't known.
# `kept` counts everything that stays: sinks, heavy hitters and window. The policies differ in the score:
#
# - `random` draws tokens by chance, and `streaming` (StreamingLLM) takes the newest tokens.
# - `h2o sum` and `h2o max` use all attention so far, `snapkv` that of the last 16 queries, and `tova` that of the last query alone.
# - `knorm` takes the shortest keys, and `keydiff` those that are least like the mean key of their head.
#
# Before you run the cell: which policy will be the best, and which the worst?
# %% [markdown] key="freeze_read" lang="zh" src="6bd1637b"
# 没有窗口，留下的集合几乎停在文本开头不动：145 步之后，48 个里还有 42 个来自提示词，最后的一百个 token 几乎一个也没有留下。所以每一层都要保护最后的几个 token，不管得分多少。只靠窗口还不够，窗口为 12 时，仍有 29 个来自提示词，占了重要 token 的大半。
# （练习 14.3 就是怎么选：汇点、窗口、得分相同、填充。）
#
# ## 召回率曲线：先淘汰，后提问
#
# 现在来看回答。模型先读 193 个 token 的上下文，再把每一层减到原来的一部分，然后才提问。每篇 16 个，问的是事先没有任何提示的事实。对话里要紧的就是这种情形，因为事先不知道下一个问题是什么。
# `kept`（留下）把汇点、重要 token、窗口全都算上。各策略只有得分不同：
#
# - `random` 随机抽取，`streaming`（StreamingLLM）越新得分越高。
# - `h2o sum`、`h2o max` 对到目前为止的全部注意力求和、取最大值，`snapkv` 取最后 16 个 query 的平均，`tova` 只看最后一个 query。
# - `knorm` 留最短的 key，`keydiff` 留与本头平均 key 最不像的。
#
# 
# 运行之前先想一想：哪种策略最好，哪种最差？

# %% key="curves" lang="en" tags="hardware"
from minikv.course.lessons.l14.recall_chart import recall_chart
from minikv.eviction import TOVA, KeyDiff, Knorm, Random, SnapKV, StreamingLLM
from minikv.eviction.study.curves import Setting, curve

policies = {"random": Random(), "streaming": StreamingLLM(), "h2o sum": H2O("sum"), "h2o max": H2O("max")}
policies |= {"snapkv": SnapKV(), "tova": TOVA(), "knorm": Knorm(), "keydiff": KeyDiff()}
shares = (0.5, 0.25, 0.1)
points = list(curve(model, policies, [Setting(kept=share) for share in shares], count=20, scope="head"))
show(recall_chart(points, "en"), caption=t("curves_caption"))

# %% key="curves" lang="zh" tags="hardware"
from minikv.course.lessons.l14.recall_chart import recall_chart
from minikv.eviction import TOVA, KeyDiff, Knorm, Random, SnapKV, StreamingLLM
from minikv.eviction.study.curves import Setting, curve

policies = {"random": Random(), "streaming": StreamingLLM(), "h2o sum": H2O("sum"), "h2o max": H2O("max")}
policies |= {"snapkv": SnapKV(), "tova": TOVA(), "knorm": Knorm(), "keydiff": KeyDiff()}
shares = (0.5, 0.25, 0.1)
points = list(curve(model, policies, [Setting(kept=share) for share in shares], count=20, scope="head"))
show(recall_chart(points, "zh"), caption=t("curves_caption"))

# %% [markdown] key="curves_read" lang="en"
# Compare each row with `random`, which looks at nothing at all.
#
# - **Summed H2O answers fewer questions than chance**, 7.5 % against 38.8 % with a quarter kept. Its heavy hitters are what the text has needed *so far*, the ordinary words of the first table. A fact that no question has asked for got almost no attention, so it goes first. The maximum and TOVA reduce the same attention in another way, which doesn't help where there was none.
# - **StreamingLLM** keeps what is near the end, and answers what stood there. It promises no more: it bounds the memory of an endless text, and doesn't remember it.
# - **Knorm** and **KeyDiff** ignore attention and look at the keys. KeyDiff keeps those that are unlike the others, and a token that will be asked for by name has to differ from the rest. With a quarter of the cache it answers 96.6 %.
# - At 10 % a head keeps 19 tokens: 4 sinks, 4 recent and 11 heavy hitters. There are 24 facts.
#
# This is one small model, one kind of text, and facts of a single token. Elsewhere the figures differ. On RULER, a benchmark of long texts (here 4k tokens, Llama-3.1-8B, a quarter kept, question unseen) the plot of [kvpress](https://github.com/NVIDIA/kvpress) has KeyDiff at about 74, TOVA at 64, StreamingLLM and SnapKV at 40, a policy like H2O at 29, and random at 0. Our curves and theirs agree on one thing: a plain sum of attention is not near the top.
#
# ### What perplexity says
#
# **Perplexity** says how much the next word surprises the model: at 8 it is as unsure as if it chose among 8 equally likely words, so lower is better. Many papers give it for each share that was kept. Here it is for the same runs, over the ordinary words between the questions:
# %% [markdown] key="curves_read" lang="zh" src="fcadb01e"
# 每一行都与 `random` 比，它什么都不看。
#
# - **求和的 H2O，答对的比随机选择还少**，留四分之一时是 7.5%，随机选择是 38.8%。它的重要 token，是文本**到目前为止**用到的，也就是第一张表里那些普通的词。一条事实如果还没有问题问过它，就几乎没有得到注意力，所以最先被淘汰。最大值和 TOVA 只是换了归约办法；从来没有被看过的，怎么归约都没有用。
# - **StreamingLLM** 留下靠近末尾的，答得出的也是写在那里的。它本来就只承诺这么多，让无尽文本的缓存有一个上限，并不记住文本。
# - **Knorm** 和 **KeyDiff** 不看注意力，只看 key 本身。KeyDiff 留下与众不同的 key，而将来会被指名问到的 token，必定与别的不同。留四分之一，它答对 96.6%。
# - 留 10% 时，一个头有 19 个：汇点 4 个、近期 4 个、重要 token 11 个，而事实有 24 条。
#
# 这里只有一个小模型、一种文本，一条事实也只靠一个 token，换了别处，数字就不一样。在长文本评测 RULER 上（4k token，Llama-3.1-8B，留四分之一，没看到问题），[kvpress](https://github.com/NVIDIA/kvpress) 的图里，KeyDiff 约 74，TOVA 约 64，StreamingLLM 和 SnapKV 约 40，类似 H2O 的策略约 29，随机选择是 0。它与我们的曲线有一点相同，就是单纯的注意力求和都不在前列。
#
# ### 困惑度怎么说
#
# **困惑度**（perplexity）衡量下一个词让模型有多意外。例如困惑度为 8，相当于每次都在 8 个同样可能的词里猜，所以越低越好。许多论文对每个留下的比例都给出困惑度。下面是同样几次运行的困惑度，只算问题之间那些普通的词：

# %% key="perplexity" lang="en" tags="hardware"
shown = ("full cache", "random", "h2o sum", "keydiff")
rows = [
    (point.policy, round(100 * point.setting.kept), round(100 * point.score.share, 1), round(point.score.perplexity, 2))
    for point in points
    if point.policy in shown
]
Table(["policy", "kept, %", "answered, %", "perplexity"], rows)

# %% key="perplexity" lang="zh" tags="hardware"
shown = ("full cache", "random", "h2o sum", "keydiff")
rows = [
    (point.policy, round(100 * point.setting.kept), round(100 * point.score.share, 1), round(point.score.perplexity, 2))
    for point in points
    if point.policy in shown
]
Table(["策略", "留下，%", "答对，%", "困惑度"], rows)

# %% [markdown] key="perplexity_read" lang="en"
# **Perplexity puts them in another order.** At 25 %, summed H2O has lost more than nine facts of ten, while its perplexity has risen only from 7.29 to 8.14. KeyDiff answers nearly everything, and its perplexity has doubled to 14.4. Why? H2O keeps ordinary words, and they help to guess an ordinary word. KeyDiff drops ordinary words, because their keys look alike, so in the second layer most of what it keeps is facts. Attention has to go somewhere, so there it goes to facts, and they don't help to guess an ordinary word.
# Neither number is wrong; they measure different things. So first say what the model will be asked, then measure that.
#
# ### When the question is known
#
# If the text ends with its question, the last queries are already looking for the answer. A policy that asks them can see what will be needed:
# %% [markdown] key="perplexity_read" lang="zh" src="22b49ec1"
# **困惑度排出来的是另一个次序**。留 25% 时，求和的 H2O 丢掉的事实超过九成，困惑度却只从 7.29 升到 8.14；KeyDiff 几乎全都答得出，困惑度却翻了一倍，到 14.4。为什么？H2O 留的是普通的词，猜普通的词正要靠它们。在 KeyDiff 看来，普通的词都差不多，所以它在第二层留下的大半是事实；而 softmax 的权重总得分出去，只好落到这些事实上，对猜普通的词没有用。
# 两个数都没有错，只是量的东西不同。所以先说清楚要问模型什么，再去测那个。
#
# ### 问题事先知道的时候
#
# 如果文本以问题结尾，最后几个 query 就已经在找答案了。策略只要看这几个 query，就知道接下来要用什么：

# %% key="seen" lang="en" tags="hardware"
settings = [Setting(kept=share, seen=True) for share in shares]
asking = {name: policies[name] for name in ("random", "h2o sum", "h2o max", "snapkv", "tova", "keydiff")}
seen = list(curve(model, asking, settings, count=40, scope="head"))
rows = []
for name in asking:
    rows.append((name, *(f"{100 * point.score.share:.1f}" for point in seen if point.policy == name)))
head = ["policy", "50 % kept", "25 % kept", "10 % kept"]
note = f"questions answered, in %, of {seen[0].score.asked}"
Table(head, rows, right=head[1:], lines=[note])

# %% key="seen" lang="zh" tags="hardware"
settings = [Setting(kept=share, seen=True) for share in shares]
asking = {name: policies[name] for name in ("random", "h2o sum", "h2o max", "snapkv", "tova", "keydiff")}
seen = list(curve(model, asking, settings, count=40, scope="head"))
rows = []
for name in asking:
    rows.append((name, *(f"{100 * point.score.share:.1f}" for point in seen if point.policy == name)))
head = ["策略", "留 50%", "留 25%", "留 10%"]
note = f"答对的百分比，共 {seen[0].score.asked} 题"
Table(head, rows, right=head[1:], lines=[note])

# %% [markdown] key="seen_read" lang="en"
# Now the **maximum** answers everything, even at 10 %: one query has looked straight at the answer, and once is enough. The **sum** contains that attention too. It's enough while half of the tokens stay; below that it is lost among all the others. SnapKV averages 16 queries and blurs over five neighbours, which is too much for 10 %. TOVA asks only the very last query. Here that is the `?` of the next question, not the name that was asked for.
#
# So a figure for an eviction policy means nothing unless you know one thing: had it *seen* the question? In most benchmarks the question stands at the end of the prompt.
#
# ### Your own model
#
# Do the same with the model that you serve, before you trust a policy. Take the three shares (full, a half, a quarter), and measure two numbers for each. **Recall** is the share of facts that the model still finds in a long text (a *needle in a haystack*) when the question comes after the eviction. The other number is **perplexity** on your own texts. Compare both with `random`. One line in a terminal does it, with your model's folder or hub name and a text file:
#
# ```
# minikv evaluate MODEL --policies random,h2o,snapkv,keydiff --kept 50,25 --tasks niah,multikey --perplexity my.txt --record my.json --plot my.html
# ```
#
# It hides the needle at five depths, gives each figure a 95 % interval, and says so where the questions are too few. If the run is cut off, the same line goes on from `my.json`. Here is the Python behind it, on `tiny-gqa` and a text in that model's own words:
# %% [markdown] key="seen_read" lang="zh" src="76962b4e"
# 这一次，**最大值**全都答对，留 10% 也一样，因为有一个 query 直接看着答案，一次就够。**求和**里也有这一次，留一半时还够用，再少就淹没在别的里面了。SnapKV 的平均再对相邻五个 token 平滑，到 10% 就不行了。TOVA 只看最后一个 query，在这里它是下一个问题的 `?`，不是刚才问的人名。
#
# 所以一种淘汰策略的成绩，要先知道一件事才有意义，那就是它**看到**问题了吗？大多数评测把问题放在提示词的末尾。
#
# ### 换成你自己的模型
#
# 要用一种策略，先在你要部署的模型上照样测一遍。留全部、一半、四分之一，各测两个数。一个是**召回率**，先淘汰、后提问，看它在长文本里还找得到多少事实（“大海捞针”）；另一个是在你自己的文本上的**困惑度**。两个数都与 `random` 比。在终端里一行命令就够了，给出模型文件夹或 hub 名称，再给一个文本文件：
#
# ```
# minikv evaluate MODEL --policies random,h2o,snapkv,keydiff --kept 50,25 --tasks niah,multikey --perplexity my.txt --record my.json --plot my.html
# ```
#
# 它把针藏在五个深度，每个数都附上 95% 区间；问题太少、看不出差别时会直说。中断了也不要紧，同一行命令会从 `my.json` 接着跑。这行命令背后的 Python 调用如下，先用 `tiny-gqa` 和一段它认识的词组成的文本试一遍：

# %% key="own_model" lang="en" tags="hardware"
from minikv.eviction.evaluate.perplexity import curves, read_text
from minikv.eviction.evaluate.rows import evaluate
from minikv.eviction.evaluate.settings import Settings
from minikv.eviction.evaluate.summary import said_way, summaries

own = load("tiny-gqa")  # on the GPU, if there is one; your model's folder or hub name
words = " ".join(word for each in recall_documents(6, seed=2) for word in each.words)  # your text
asked = Settings(("niah",), (193,), policies=("random", "h2o", "keydiff"), kept=(0.25,), kv_dtypes=(), texts=6)
[needle] = summaries(evaluate(own.model, own.tokenizer, asked))
[reading] = curves(read_text(own.model, own.tokenizer, words, asked))
rows = [
    (said_way(line.way, "en"), *(round(100 * share) for share in line.depths.values()), round(read.perplexity, 1))
    for line, read in zip(needle.lines, reading.curves)
]
Table(["needles found (%) at depth", *(f"{100 * depth:g} %" for depth in asked.depths), "perplexity"], rows)

# %% key="own_model" lang="zh" tags="hardware"
from minikv.eviction.evaluate.perplexity import curves, read_text
from minikv.eviction.evaluate.rows import evaluate
from minikv.eviction.evaluate.settings import Settings
from minikv.eviction.evaluate.summary import said_way, summaries

own = load("tiny-gqa")  # 有 GPU 就在 GPU 上；换成你的模型文件夹或 hub 名称
words = " ".join(word for each in recall_documents(6, seed=2) for word in each.words)  # 换成你的文本
asked = Settings(("niah",), (193,), policies=("random", "h2o", "keydiff"), kept=(0.25,), kv_dtypes=(), texts=6)
[needle] = summaries(evaluate(own.model, own.tokenizer, asked))
[reading] = curves(read_text(own.model, own.tokenizer, words, asked))
rows = [
    (said_way(line.way, "zh"), *(round(100 * share) for share in line.depths.values()), round(read.perplexity, 1))
    for line, read in zip(needle.lines, reading.curves)
]
Table(["在各深度找到的针（%）", *(f"{100 * depth:g} %" for depth in asked.depths), "困惑度"], rows)

# %% [markdown] key="own_read" lang="en"
# Compare the columns first. At depth 0 % and 100 % every policy finds the needle, because sinks and the recent window protect it there, so these two depths say nothing about a score. Between them H2O finds none and KeyDiff all. `random` keeps the same places in every text (its numbers come from a fixed seed), so at one depth it finds either all needles or none.
# Perplexity shows another order again: `random` doesn't hurt it, and KeyDiff does. Six texts are few. The command would say *too few to say* for KeyDiff's recall next to the full cache's.
#
# ## One head, or all of them
#
# With `scope="head"`, as above, every KV head keeps its own tokens. With `scope="layer"` the heads of a layer agree on one list, by the mean of their scores. Which is better, and what does each cost?
# %% [markdown] key="own_read" lang="zh" src="a0d51e9e"
# 先竖着比较各列。深度 0% 和 100% 处，每种策略都找得到针，因为那里有汇点和近期窗口保护，也就是说，这两个深度看不出得分的好坏。中间的深度，H2O 一根也没找到，KeyDiff 全都找到。`random` 的随机种子是固定的，在每篇文本里留下的位置都相同，所以在同一个深度，要么全找到，要么全找不到。
# 困惑度给出的又是另一个次序：`random` 没有让它变差，KeyDiff 却有。六篇文本太少，例如 KeyDiff 的召回率与完整缓存相比，命令会说“样本太少，无法判断”。
#
# ## 一个头，还是所有头
#
# 前面都用 `scope="head"`，每个 KV 头各留各的。用 `scope="layer"`，则一层的各个头按得分的平均，共用一份名单。哪个更好？各要花什么代价？

# %% key="scopes" lang="en" tags="hardware"
some, rows = {name: policies[name] for name in ("random", "h2o sum", "h2o max", "keydiff")}, []
for scope in ("head", "layer"):
    for point in curve(model, some, [Setting(kept=0.25)], count=20, scope=scope):
        low, high = (round(100 * bound) for bound in point.score.interval)
        rows.append((scope, point.policy, round(100 * point.score.share, 1), f"[{low}, {high}]"))
Table(["scope", *["policy", "answered, %", "95 % interval"]], rows)

# %% key="scopes" lang="zh" tags="hardware"
some, rows = {name: policies[name] for name in ("random", "h2o sum", "h2o max", "keydiff")}, []
for scope in ("head", "layer"):
    for point in curve(model, some, [Setting(kept=0.25)], count=20, scope=scope):
        low, high = (round(100 * bound) for bound in point.score.interval)
        rows.append((scope, point.policy, round(100 * point.score.share, 1), f"[{low}, {high}]"))
Table(["scope", *["策略", "答对，%", "95% 区间"]], rows)

# %% [markdown] key="scopes_read" lang="en"
# With two lists `random` has two chances to keep a fact; with one it loses many answers, from 38.8 % to 21.6 %. KeyDiff loses none, because its heads agree on which keys are unlike the rest. So the worth of separate lists depends on the policy, and no curve here says that they are always better.
#
# What separate lists cost is certain. A text lies in blocks of 16. If a head forgets tokens but all others stay where they are, can a block go back? Here are both heads of layer 0 under KeyDiff, first in place and then moved:
# %% [markdown] key="scopes_read" lang="zh" src="6fc7d5fd"
# 有两份名单，`random` 就有两次机会留住一条事实；只有一份，答对的就从 38.8% 降到 21.6%。KeyDiff 一题也不少，因为哪些 key 与众不同，它的各个头意见一致。所以分开列名单值多少，取决于策略；这里没有哪条曲线说它总是更好。
#
# 它的代价却是确定的。文本放在块大小为 16 的块里。如果一个头忘掉一些 token，其余的都留在原位，能归还一个块吗？下面是 KeyDiff 之下第 0 层的两个头，先留在原位，再搬动：

# %% key="blocks_picture" lang="en"
from minikv.course.diagrams import head_blocks

sizes = dict(n_sink=4, budget=32, n_recent=12)
trace = trace_eviction(model, text, prompt=193, policy=KeyDiff(), scope="head", **sizes)
show(head_blocks(trace.kept[0, :, 0], 16, "en"))

# %% key="blocks_picture" lang="zh"
from minikv.course.diagrams import head_blocks

sizes = dict(n_sink=4, budget=32, n_recent=12)
trace = trace_eviction(model, text, prompt=193, policy=KeyDiff(), scope="head", **sizes)
show(head_blocks(trace.kept[0, :, 0], 16, "zh"))

# %% key="table_in_place" lang="en"
rows = []
for name in ("h2o sum", "h2o max", "keydiff"):
    trace = trace_eviction(model, text, prompt=193, policy=policies[name], scope="head", **sizes)
    for layer in range(2):
        # [2 heads, 193] -> 208 with padding -> [2, 13 blocks, 16]
        kept = torch.nn.functional.pad(torch.from_numpy(trace.kept[layer, :, 0]), (0, 15)).view(2, 13, 16)
        rows.append((name, layer, *kept.any(2).sum(1).tolist(), int(kept.any(2).any(0).sum()), 13))
Table(["policy", "layer", "head 0 alone needs", "head 1 alone", "both", "blocks in all"], rows)

# %% key="table_in_place" lang="zh"
rows = []
for name in ("h2o sum", "h2o max", "keydiff"):
    trace = trace_eviction(model, text, prompt=193, policy=policies[name], scope="head", **sizes)
    for layer in range(2):
        # [2 个头, 193] -> 补到 208 -> [2, 13 个块, 16]
        kept = torch.nn.functional.pad(torch.from_numpy(trace.kept[layer, :, 0]), (0, 15)).view(2, 13, 16)
        rows.append((name, layer, *kept.any(2).sum(1).tolist(), int(kept.any(2).any(0).sum()), 13))
Table(["策略", "层", "头 0 单独要", "头 1 单独要", "合起来", "总块数"], rows)

# %% key="predict_blocks"
predict("blocks_left", ...)

# %% key="table_moved" lang="en"
from minikv.blocks import BlockManager

manager = BlockManager(num_blocks=32, block_size=16)
manager.allocate("S", range(193))
manager.commit("S")
before, others = len(manager.block_table("S")), manager.match([*range(193), 0]).num_tokens
moved = manager.compact("S", 48)
found = manager.match([*range(193), 0]).num_tokens
head = ["", "blocks of S", "tokens that another sequence finds"]
Table(head, [("before", before, others), ("moved", len(moved.new_table), found)])

# %% key="table_moved" lang="zh"
from minikv.blocks import BlockManager

manager = BlockManager(num_blocks=32, block_size=16)
manager.allocate("S", range(193))
manager.commit("S")
before, others = len(manager.block_table("S")), manager.match([*range(193), 0]).num_tokens
moved = manager.compact("S", 48)
found = manager.match([*range(193), 0]).num_tokens
head = ["", "S 的块", "别的序列找得到的 token"]
Table(head, [("之前", before, others), ("搬动后", len(moved.new_table), found)])

# %% [markdown] key="table_read" lang="en"
# **In place, eviction frees next to nothing.** A block goes back only if no head keeps any of its 16 tokens. (One row above is different: in layer 0 summed H2O keeps old tokens and the window, so the blocks between are empty.)
#
# But a slot needn't hold the same token in every head. The keys are rotated already, and attention doesn't depend on the order in which they lie. So each head moves *its own* survivors to the lowest slots, and the tail goes back: 3 blocks are left of 13. That takes three things:
#
# - **the same number** of tokens in every head of a layer, and in every layer that shares the table;
# - **positions for each head**, where `scope="layer"` needs one list a layer;
# - **no more sharing:** blocks that another sequence reads are copied first, and no request finds these blocks by their old digests.
#
# (If a policy keeps different numbers in its layers, each layer needs its own table. [Lesson 15](15_eviction_on_mla.ipynb) does the moving, in a paged cache.)
#
# ## Break it
#
# ### Bytes that stay
#
# And the memory? A slice looks small:
# %% [markdown] key="table_read" lang="zh" src="42c84fca"
# **留在原位，淘汰几乎归还不了什么**：一个块里的 16 个 token，要所有头都不留，这个块才空得出来。（上面只有一行不同，因为第 0 层里，求和的 H2O 留的是老 token 和窗口，中间的块就空了。）
#
# 可是同一个槽位，在各个头里不必是同一个 token。key 已经旋转过，它们按什么次序排，不影响注意力的结果。所以每个头把**自己**留下的搬到最低的槽位，末尾的块就能归还，原来 13 个块，现在 3 个。这要满足三条：
#
# - 一层的每个头、共用块表的每一层，留的**个数相同**；
# - 每个头各记一份**位置**；用 `scope="layer"` 的话，每层一份就够；
# - **不再共享**：别的序列还要读的块，先复制一份；其他请求也不能再凭旧的摘要找到这些块。
#
# （如果各层留的个数不同，就要每层一张块表。[第 15 课](15_eviction_on_mla.ipynb)会在分页缓存里真的去搬。）
#
# ## 弄坏它
#
# ### 没有释放的字节
#
# 显存真的会降下来吗？切片看上去很小：

# %% key="predict_slice"
predict("slice_bytes", ...)

# %% key="break_slice" lang="en"
keys, rows = torch.zeros(1, 8, 4096, 128, dtype=torch.bfloat16), []
# both [1, 8, 512, 128]: a slice is a view, an index gathers into new memory
for name, kept in (("slice", keys[:, :, -512:]), ("gather", keys[:, :, torch.arange(4096 - 512, 4096)])):
    rows.append((name, kept.shape[2], kept.numel() * kept.element_size(), kept.untyped_storage().nbytes()))
Table(["", "tokens", "bytes it shows", "bytes it holds"], rows)

# %% key="break_slice" lang="zh"
keys, rows = torch.zeros(1, 8, 4096, 128, dtype=torch.bfloat16), []
# 都是 [1, 8, 512, 128]：切片是视图，按下标取（gather）则写进新的内存
for name, kept in (("slice", keys[:, :, -512:]), ("gather", keys[:, :, torch.arange(4096 - 512, 4096)])):
    rows.append((name, kept.shape[2], kept.numel() * kept.element_size(), kept.untyped_storage().nbytes()))
Table(["", "token 数", "看上去的字节", "实际占的字节"], rows)

# %% [markdown] key="break_slice_read" lang="en"
# The slice is a view, and a view keeps all of its storage alive ([lesson 05](05_owned_and_borrowed.ipynb)). The text may be perfect while the memory is as large as before: 8,388,608 bytes, not 1,048,576. So ask the *storage*, never the shape.
#
# (Two more mistakes have the same symptom. One is to mask tokens instead of removing them. The other is to let attention return its weights, a matrix of queries times tokens for every head, which other implementations never store.)
#
# The package gathers. Watch its layers while the text is read token by token. We let the monitor look after every eight tokens. As soon as the 48 places are full, each new token costs another one its place. The picture that is saved here is the one after 137 tokens:
# %% [markdown] key="break_slice_read" lang="zh" src="7621e9ef"
# 切片是视图，而只要视图还在，整块存储就不会释放（[第 05 课](05_owned_and_borrowed.ipynb)）。文本可能完全正确，显存却和原来一样，是 8,388,608 字节，而不是 1,048,576 字节。所以要看**存储**，不要看形状。
#
# （还有两种错误会引起同样的现象。一种是只把 token 遮住，没有去掉；另一种是让注意力返回权重，那是每个头一个“query 数 × token 数”的矩阵，别的实现从不把它存下来。）
#
# 本包用的是 gather。一个 token 一个 token 地读这篇文本，同时看着它的各层，每读八个 token 就让监视器看一次。48 个位置一满，每进来一个新 token，就有一个旧的要让出位置。这里保存的是读完 137 个 token 之后的样子：

# %% key="live" lang="en" tags="hardware"
from minikv.course import monitor
from minikv.eviction import install_kv_eviction

with torch.no_grad(), install_kv_eviction(model, policy="h2o", scope="head", **sizes):
    watched, cache = monitor.eviction(model, lang="en"), None
    for step in range(193):
        cache = model(context[:, step : step + 1], past_key_values=cache, use_cache=True).past_key_values
        if step % 8 == 0:
            watched.tick()
        if step == 136:
            show(watched)  # live from here on
    watched.stop()

# %% key="live" lang="zh" tags="hardware"
from minikv.course import monitor
from minikv.eviction import install_kv_eviction

with torch.no_grad(), install_kv_eviction(model, policy="h2o", scope="head", **sizes):
    watched, cache = monitor.eviction(model, lang="zh"), None
    for step in range(193):
        cache = model(context[:, step : step + 1], past_key_values=cache, use_cache=True).past_key_values
        if step % 8 == 0:
            watched.tick()
        if step == 136:
            show(watched)  # 从这里开始实时变化
    watched.stop()

# %% [markdown] key="live_read" lang="en"
# And here are its bytes, compared with the full cache:
# %% [markdown] key="live_read" lang="zh" src="5caa1536"
# 再看它占的字节，与完整的缓存对照：

# %% key="real_bytes" lang="en"
with torch.no_grad():
    caches = {"without eviction": model(context).past_key_values}
    with install_kv_eviction(model, policy="h2o", scope="head", **sizes):
        caches["with eviction"] = model(context).past_key_values
rows = []
for name, cache in caches.items():
    parts = [part for layer in cache.layers for part in (layer.keys, layer.values)]
    held = sum(part.untyped_storage().nbytes() for part in parts)
    rows.append((name, parts[0].shape[2], cache.get_seq_length(), held))
Table(["cache", "tokens", "of a text of", "bytes of storage"], rows)

# %% key="real_bytes" lang="zh"
with torch.no_grad():
    caches = {"不淘汰": model(context).past_key_values}
    with install_kv_eviction(model, policy="h2o", scope="head", **sizes):
        caches["淘汰之后"] = model(context).past_key_values
rows = []
for name, cache in caches.items():
    parts = [part for layer in cache.layers for part in (layer.keys, layer.values)]
    held = sum(part.untyped_storage().nbytes() for part in parts)
    rows.append((name, parts[0].shape[2], cache.get_seq_length(), held))
Table(["缓存", "token 数", "文本长度", "存储字节"], rows)

# %% [markdown] key="real_bytes_read" lang="en"
# (A token takes 1,024 bytes here, so 50,176 bytes are 49 places for 48 tokens: the next token needs room before another one goes. Exercise 14.4 is such a step.)
#
# So what about H2O? With the question unseen it never beats a random choice in these curves; with the question seen its maximum is perfect. A policy isn't good or bad, it is good at something.
#
# ## Recap
#
# - A quarter kept is a quarter of the bytes: 50,176 instead of 197,632 for this text. The storage shows that, the shape doesn't.
# - In place all 13 blocks are still needed, because each head keeps other tokens. Moved to the lowest slots, 3 are.
# - A sum of attention prefers old tokens. With a quarter kept and the question unseen, H2O answers 7.5 %, a random choice 38.8 %, KeyDiff 96.6 %.
# - Perplexity tells another story: 8.14 for H2O, 14.4 for KeyDiff. Measure what the model will be asked.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="real_bytes_read" lang="zh" src="7999761d"
# （这里一个 token 占 1,024 字节，所以 50,176 字节是 49 个位置，留了 48 个 token，因为下一个 token 要先有地方放，然后才淘汰一个。练习 14.4 就是这样一步。）
#
# 那么 H2O 怎么样？在这些曲线里，没看到问题的时候，它从来没有胜过随机选择；看到问题的时候，它的最大值全对。一种策略谈不上好坏，只能说擅长什么。
#
# ## 本课小结
#
# - 留四分之一，字节也就剩四分之一，例如这篇文本是 50,176 字节，原来是 197,632 字节。这要看存储，看形状是看不出来的。
# - 留在原位，13 个块一个也空不出来，因为每个头留的 token 不同；搬到最低的槽位，只要 3 个块。
# - 对注意力求和，会偏爱老 token。留四分之一、没看到问题时，H2O 答对 7.5%，随机选择 38.8%，KeyDiff 96.6%。
# - 困惑度给出的是另一个次序，H2O 是 8.14，KeyDiff 是 14.4。要测的，是模型将来会被问到的东西。
#
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_sums"
explain("why_sums_favour_the_old")

# %% key="explain_window"
explain("why_a_window")

# %% key="explain_perplexity"
explain("what_perplexity_hides")

# %% key="explain_table"
explain("why_one_table")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# 1. `peaks`: the most tokens inside a forward, and between two.
# 2. `add_mass`: scores, summed over queries and groups.
# 3. `choose`: sinks, heavy hitters, window, padding.
# 4. `step`: a decode step that forgets, and keeps everything together.
# %% [markdown] key="exercises" lang="zh" src="052438dc"
# ## 练习
#
# 1. `peaks`：前向计算当中和两步之间，最多各有多少 token。
# 2. `add_mass`：对 query 和组求和的得分。
# 3. `choose`：汇点、重要 token、窗口、填充。
# 4. `step`：会忘记的一步解码，key、value、得分和位置要始终对得上。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | tokens go, but the memory stays | Compare `layer.keys.untyped_storage().nbytes()` with `layer.keys.nbytes`. If it is far larger, a view holds the rest; if the tokens do not go either, `type(cache)` says whether it is an `EvictingCache` at all |
# | the same tokens stay for ever | `print(eviction_report(model).text())` says whether tokens are evicted as soon as they leave the window |
# %% [markdown] key="stuck" lang="zh" src="fdc830c3"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | token 淘汰了，显存却不降 | 比较 `layer.keys.untyped_storage().nbytes()` 与 `layer.keys.nbytes`：大得多的话，就是有视图占着其余的；如果 token 也没有少，用 `type(cache)` 看它到底是不是 `EvictingCache` |
# | 留下的一直是同样那些 token | `print(eviction_report(model).text("zh"))` 会说明 token 是不是一离开窗口就被淘汰 |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - [H2O #12](https://github.com/FMInference/H2O/issues/12): in December 2023 a user found that "h2o is slower than the full and the memory footprint is not reduced". Four more joined in, and [#6](https://github.com/FMInference/H2O/issues/6) had asked it in Chinese before. "Bytes that stay" shows three ways to get there.
# - [vLLM #5751](https://github.com/vllm-project/vllm/issues/5751) has asked for eviction since June 2024. In the [forum](https://discuss.vllm.ai/t/sparse-attention-e-g-h2o/2745) (found through [keys_values #133](https://github.com/awslabs/keys_values/pull/133)) the obstacle was named: a block extends over all heads, but some heads may keep a token that others drop. "One head, or all of them" measures it.
# - [VeloxQuant-MLX #141](https://github.com/rajveer43/VeloxQuant-MLX/pull/141): in August 2026 an H2O without a window kept exactly the original 14-token prompt, after 43 decode steps. "What a sum prefers" explains it.
# - [KVCache-Factory #24](https://github.com/Zefan-Cai/KVCache-Factory/issues/24): a widely used collection of policies looked at the last queries only, in what it called H2O. Here these are two different policies.
# %% [markdown] key="wild" lang="zh" src="1ff8fd08"
# ## 实战现场
#
# - [H2O #6](https://github.com/FMInference/H2O/issues/6)：2023 年 10 月，有用户用中文发问：长度相同，为什么 H2O 的显存占用比完整缓存还多？12 月的 [#12](https://github.com/FMInference/H2O/issues/12) 用英文又问了一遍，后面四个人附和。“没有释放的字节”一节给出了三种可能的原因。
# - [vLLM #5751](https://github.com/vllm-project/vllm/issues/5751) 从 2024 年 6 月起要求支持淘汰。[论坛](https://discuss.vllm.ai/t/sparse-attention-e-g-h2o/2745)（由 [keys_values #133](https://github.com/awslabs/keys_values/pull/133) 引出）上指出了障碍：一个块横跨所有头，而一个 token 可能只有几个头还留着。“一个头，还是所有头”一节测的就是它。
# - [VeloxQuant-MLX #141](https://github.com/rajveer43/VeloxQuant-MLX/pull/141)：2026 年 8 月，一个没有窗口的 H2O 在解码 43 步之后，留下的仍然正好是最初的 14 个提示词 token。原因见“求和偏爱哪些 token”一节。
# - [KVCache-Factory #24](https://github.com/Zefan-Cai/KVCache-Factory/issues/24)：一个常用的策略合集里，所谓的 H2O 只看最后几个 query。在本课里，这是两种不同的策略。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# [Lesson 14b](14b_your_own_policy.ipynb) is optional: it puts tokens at wrong positions, keeps no sinks, and ends with a policy of your own.
# [Lesson 15](15_eviction_on_mla.ipynb) evicts where all heads share one row a token.
# %% [markdown] key="next" lang="zh" src="15d99875"
# ## 下一课
#
# [第 14b 课](14b_your_own_policy.ipynb)是选读，会把 token 放到错误的位置，一个汇点也不留，最后写一种自己的策略。
# [第 15 课](15_eviction_on_mla.ipynb)里，一个 token 只有一行，所有头共用，就在那样的模型上做淘汰。
