# %% [meta]
# number = "14"
# slug = "what_to_forget"
# needs = ["01", "02", "09"]
# rooms = ["eviction"]
# minutes = 60
# [title]
# en = "Which tokens can go?"
# zh = "哪些 token 可以不要？"
# [t4]
# en = "The models are tiny and computed by the CPU, beside a T4 too. The numbers are the same."
# zh = "模型很小，一律由 CPU 计算，有 T4 也一样。看到的数字相同。"
# [paper]
# en = "14.1, 14.3"
# zh = "14.1、14.3"

# %% [markdown] key="question" lang="en"
# ## The question
#
# **Can I delete part of the cache and still get the right answer? And does the memory come back?**
#
# Below is a text of 49 tokens. Each head may keep 14 of them, and H2O has chosen: the first two, the last four, and the eight that got the most attention so far. The height of a bar is that attention. Six facts are hidden in the text, a name and a city each; questions about them come later.
# %% [markdown] key="question" lang="zh" src="6120bf8e"
# ## 问题
#
# **可以删掉一部分缓存，还答得对吗？显存真的会降下来吗？**
#
# 下面是一篇 49 个 token 的文本。每个头可以留 14 个，H2O 已经选好：最前面的两个、最后面的四个，以及到目前为止得到注意力最多的八个。条的高度就是得到的注意力。文本里藏着六条事实，每条是一个人名加一个城市，稍后才会被问到。

# %% key="setup"
import torch

from minikv.models import load, recall_documents
from minikv.models.recall import FIRST_FILLER, FIRST_NAME

torch.set_num_threads(1)
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
# Four heads, four different choices, and hardly a fact among them.
#
# After this lesson you can
# - **count** what an eviction frees, in bytes and in blocks;
# - **explain** which tokens a score prefers, and why;
# - **judge** a policy by what the model still answers, beside a random choice.
# %% [markdown] key="able" lang="zh" src="66d547e9"
# 四个头，选得各不相同，事实却几乎一条也没有留下。
#
# 学完本课，你能够：
# - **算出**一次淘汰能省下多少字节、多少块；
# - **解释**一种得分偏爱哪些 token，为什么；
# - **评价**一种策略：看模型还答得出多少，并与随机选择相比。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# A layer that evicts keeps three kinds of tokens: the first few of the text (the **sinks**), the last few (the **recent window**), and of those in between the ones with the highest score (the **heavy hitters**). It need not do so after every step: with `evict_every` it lets some more come in, and cleans up less often.
# %% [markdown] key="predict_first" lang="zh" src="92a25895"
# ## 先猜一猜
#
# 会**淘汰**（eviction）的层留三种 token：文本最前面的几个（**注意力汇点**，sink），最后面的几个（**近期窗口**），以及两者之间得分最高的（**重要 token**，heavy hitter）。不必每一步都淘汰：有了 `evict_every`，可以先多放进几个，隔几步再清理一次。

# %% key="predict_peak"
predict("peak", ...)

# %% [markdown] key="formula" lang="en"
# ## How much stays
# %% [markdown] key="formula" lang="zh" src="93434142"
# ## 留多少

# %% [markdown] key="formula_math"
# $$C \;=\; n_\text{sink} + b + n_\text{recent} \qquad\qquad P \;=\; C + e - 1$$

# %% [markdown] key="symbols" lang="en"
# | symbol | meaning | unit | value in the picture |
# |---|---|---|---|
# | $n_\text{sink}$ | the first tokens of the text, which stay | tokens | 2 |
# | $b$ | the budget: heavy hitters, and nothing else | tokens | 8 |
# | $n_\text{recent}$ | the last tokens, which stay | tokens | 4 |
# | $C$ | the capacity of a layer | tokens | 2 + 8 + 4 = 14 |
# | $e$ | `evict_every` | steps | 1 |
# | $P$ | the most that a layer holds between two steps | tokens | 14 + 1 - 1 = 14 |
#
# Inside a forward there is one more, the step's own token. And before the first eviction there is the whole prompt, unless it comes in chunks. (Exercise 14.1 counts both.)
#
# How much that is worth, in bytes:
# %% [markdown] key="symbols" lang="zh" src="0d688137"
# | 符号 | 含义 | 单位 | 图中的值 |
# |---|---|---|---|
# | $n_\text{sink}$ | 文本最前面、一直留着的 token | token | 2 |
# | $b$ | 预算：只算重要 token | token | 8 |
# | $n_\text{recent}$ | 最后面、一直留着的 token | token | 4 |
# | $C$ | 一层的容量 | token | 2 + 8 + 4 = 14 |
# | $e$ | `evict_every` | 步 | 1 |
# | $P$ | 一层在两步之间最多有多少 | token | 14 + 1 - 1 = 14 |
#
# 前向计算当中还要多一个，就是这一步自己的 token。第一次淘汰之前则是整个提示词，除非分段来。（练习 14.1 两样都要算。）
#
# 这值多少字节：

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
Table(["capacity", "%", "peak, tokens", "GiB"], rows, right=["GiB"])

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
Table(["容量", "%", "峰值，token", "GiB"], rows, right=["GiB"])

# %% [markdown] key="formula_read" lang="en"
# So much for the bytes. Which tokens?
#
# ## What a model looks at
#
# tiny-gqa has 2 layers, each with 4 query heads that read 2 KV heads. It has learned one task: a text with 24 facts, a name and a city each, scattered among other words; then questions, "? name", which it answers with the city. (You met it in [lesson 01](01_why_a_cache.ipynb) and [lesson 13](13_half_the_bytes.ipynb).)
# With all of the text in the cache it makes hardly a mistake, so every wrong answer below is a token that went.
#
# Here is such a text, its first 193 tokens, and how the attention of all its queries is shared out:
# %% [markdown] key="formula_read" lang="zh" src="72f8ee0a"
# 字节算完了。那么，该留哪些 token 呢？
#
# ## 模型在看什么
#
# tiny-gqa 有 2 层，每层 4 个 query 头读 2 个 KV 头。它只学过一件事：一篇文本里散落着 24 条事实，每条是一个人名加一个城市，夹在别的词中间；然后是提问，“? 人名”，它用那个城市来回答。（[第 01 课](01_why_a_cache.ipynb)和[第 13 课](13_half_the_bytes.ipynb)已经见过它。）
# 文本全在缓存里的时候，它几乎不出错，所以下面每答错一题，都是因为有 token 走了。
#
# 下面就是这样一篇文本的前 193 个 token，看所有 query 的注意力是怎样分的：

# %% key="looks" lang="en"
[document] = recall_documents(1, seed=1)
context = torch.from_numpy(document.tokens[:193])[None]
model.set_attn_implementation("eager")
with torch.no_grad():
    probs = [each[0] for each in model(context, output_attentions=True).attentions]  # a layer: [heads, T, T]
model.set_attn_implementation("sdpa")
is_fact = (context[0] >= FIRST_NAME) & (context[0] < FIRST_FILLER)

# %% key="looks" lang="zh"
[document] = recall_documents(1, seed=1)
context = torch.from_numpy(document.tokens[:193])[None]
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
head = ["layer", "head", "4 sinks, %", "12 recent, %", "best 32, %", "of them in facts", "the best five words"]
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
head = ["层", "头", "4 个 sink，%", "12 个近期，%", "最高 32 个，%", "其中属于事实", "得分最高的五个词"]
Table(head, rows)

# %% [markdown] key="shares_read" lang="en"
# (4 sinks, 32 heavy hitters and the last 12 make 48: a quarter of the text.)
#
# Look at the heavy hitters. They are ordinary words above all: a quarter of the text are names and cities, of these 32 less than a fifth, in the second layer none. Up to here the text only needed its next word guessed, and for that the model looks back at ordinary words. No question has asked for a fact yet.
#
# The first tokens get more than their share; 4 of 193 would be 2 %. In large models the first one alone may take a large part of all attention. Softmax has to give away 1, and a head that looks for nothing leaves it there. That is what **sink** means ([StreamingLLM](https://arxiv.org/abs/2309.17453)). How much of one a model has can be measured; this one has little.
#
# The same, token by token, on a shorter text. The further along the scale a cell's shade, the higher its token's score: with H2O, the attention that it has got so far. What is hatched has been evicted. Choose a layer and a head, let the steps run, and change what is kept. The text ends with five questions. With H2O and a quarter kept none of them is answered; find a policy that answers all five.
# %% [markdown] key="shares_read" lang="zh" src="d09ee278"
# （4 个 sink、32 个重要 token 和最后 12 个，一共 48 个：文本的四分之一。）
#
# 看看这些重要 token：多半是普通的词。人名和城市占全文的四分之一，在这 32 个里却不到五分之一，第二层里一个也没有。因为到这里为止，文本要做的只是猜下一个词，为此模型回头看的正是普通的词；还没有一个问题问到事实。
#
# 最前面的几个 token 得到的比平均多：193 个里的 4 个，平均只该有 2%。在大模型里，光是第一个 token 就可能占去很大一部分注意力。softmax 的权重之和总是 1；一个头没有要关注的 token 时，多余的权重就落在第一个 token 上。**汇点**（sink）就是这个意思（[StreamingLLM](https://arxiv.org/abs/2309.17453)）。一个模型有多少汇点，可以测量；这个模型没有多少。
#
# 同样的事，换一篇短一些的文本，逐个 token 来看。格子的颜色在色阶上越靠后，这个 token 的得分越高；对 H2O 来说，就是到目前为止得到的注意力。画斜线的已经被淘汰。选一层、一个头，让步子走起来，再改一改留多少。文本末尾有五个问题。用 H2O 留四分之一，一个也答不出；找一种五个都答得出的策略。

# %% key="heat_map" lang="en"
from minikv.course.widgets import HeatMapWidget

show(HeatMapWidget("en", model=model))

# %% key="heat_map" lang="zh"
from minikv.course.widgets import HeatMapWidget

show(HeatMapWidget("zh", model=model))

# %% [markdown] key="score" lang="en"
# ## The score
#
# H2O gives each token the sum of a **column**: the attention that all queries have given it. A head without preferences, four tokens:
# %% [markdown] key="score" lang="zh" src="a332fbef"
# ## 得分
#
# H2O 给每个 token 的得分是一个**列和**：所有 query 分给它的注意力加在一起。举个例子，一个什么都不偏爱的头，四个 token：

# %% key="toy" lang="en"
from minikv.course.diagrams import attention_sums

seen = torch.ones(4, 4).tril()  # query t sees the tokens 0 to t
show(attention_sums((seen / seen.sum(-1, keepdim=True)).tolist(), "en"))

# %% key="toy" lang="zh"
from minikv.course.diagrams import attention_sums

seen = torch.ones(4, 4).tril()  # 第 t 个 query 看得到 token 0 到 t
show(attention_sums((seen / seen.sum(-1, keepdim=True)).tolist(), "zh"))

# %% [markdown] key="toy_read" lang="en"
# Each row adds up to 1, so all scores together are the number of queries, 4. That is the check. And the oldest token has eight times the score of the newest, although no query preferred it. In general:
# %% [markdown] key="toy_read" lang="zh" src="b99e7577"
# 每一行加起来是 1，所以全部得分之和就是 query 的个数 4，这可以用来核对。再看得分：最早的 token 是最新的八倍，尽管没有一个 query 偏爱它。写成公式：

# %% [markdown] key="score_math"
# $$s_{h,i} \;=\; \sum_{t \,\ge\, i} \;\; \sum_{g \,\in\, G(h)} p_{g,t,i} \qquad\qquad \sum_i s_{h,i} \;=\; \lvert G \rvert \cdot T$$

# %% [markdown] key="score_symbols" lang="en"
# | symbol | meaning | value in the table |
# |---|---|---|
# | $p_{g,t,i}$ | what query $t$ of query head $g$ gives to token $i$: a row that sums to 1 | 0.25 for $t = 3$ |
# | $G(h)$ | the query heads that read KV head $h$: neighbours, $\lvert G \rvert$ of them | 1 head |
# | $T$ | queries so far | 4 |
# | $s_{h,i}$ | the score of token $i$ in KV head $h$: a **column sum** | 2.08 for $i = 0$ |
#
# A KV head has one row of K for all query heads of its group. It can go or stay only for all of them, so their opinions have to become one: H2O adds them up. (A cache of K after `repeat_kv` pays for $\lvert G \rvert$ copies.)
# The second formula is the check: no attention may get lost on the way.
# %% [markdown] key="score_symbols" lang="zh" src="ef007dfa"
# | 符号 | 含义 | 表中的值 |
# |---|---|---|
# | $p_{g,t,i}$ | query 头 $g$ 的第 $t$ 个 query 分给 token $i$ 多少：一行加起来是 1 | $t = 3$ 时为 0.25 |
# | $G(h)$ | 读 KV 头 $h$ 的那些 query 头：相邻的 $\lvert G \rvert$ 个 | 1 个头 |
# | $T$ | 到目前为止的 query 数 | 4 |
# | $s_{h,i}$ | token $i$ 在 KV 头 $h$ 里的得分：一个**列和** | $i = 0$ 时为 2.08 |
#
# 一个 KV 头只有一份 K，给一组里所有的 query 头用。要走要留，对整组都一样，所以几个头的意见必须合成一个：H2O 的做法是相加。（如果在 `repeat_kv` 之后再缓存，就要付 $\lvert G \rvert$ 份的钱。）
# 第二个公式用来核对：注意力一点也不能在半路丢掉。

# %% key="predict_mass"
predict("group_mass", ...)

# %% key="scores_real" lang="en"
rows = [
    (layer, head, f"{float(mass.sum()):.3f}", each.shape[1], 2)
    for layer, each in enumerate(probs)
    for head, mass in enumerate(each.sum(1).view(2, 2, -1).sum(1))
]
head = ["layer", "KV head", "scores in all", "queries", "query heads"]
Table(head, rows, right=head[2:3])

# %% key="scores_real" lang="zh"
rows = [
    (layer, head, f"{float(mass.sum()):.3f}", each.shape[1], 2)
    for layer, each in enumerate(probs)
    for head, mass in enumerate(each.sum(1).view(2, 2, -1).sum(1))
]
head = ["层", "KV 头", "得分之和", "query 数", "query 头"]
Table(head, rows, right=head[2:3])

# %% [markdown] key="early" lang="en"
# (Exercise 14.2 is this sum, step by step.)
#
# ### What a sum prefers
#
# Suppose a head that prefers nothing: every query shares its attention equally among all tokens that it sees. Is the score then the same everywhere?
# %% [markdown] key="early" lang="zh" src="adfabd45"
# （练习 14.2 就是一步一步地求这个和。）
#
# ### 求和偏爱谁
#
# 假设有一个头什么都不偏爱：每个 query 把注意力平均分给它看得到的所有 token。那么得分是不是处处相同？

# %% key="predict_head_start"
predict("head_start", ...)

# %% key="early_table" lang="en" tags="hardware"
uniform = torch.ones(193, 193).tril()
uniform = (uniform / uniform.sum(-1, keepdim=True))[None]
near, queries = {}, torch.arange(193, 0, -1)  # how many queries see each token
for name, each in (("no preference", uniform), ("layer 0", probs[0]), ("layer 1", probs[1])):
    reduced = {"sum": each.sum((0, 1)), "mean": each.sum((0, 1)) / queries, "max": each.amax((0, 1))}
    for reduce, score in reduced.items():
        near[name, reduce] = {
            place: float(score[max(0, place - 8) : place + 9].mean() if place > 4 else score[place])
            for place in (0, 4, 24, 48, 96, 144, 192)
        }
places = list(near[name, "sum"])
rows = [(name, reduce, *(f"{value:.3f}" for value in values.values())) for (name, reduce), values in near.items()]
head = ["mean score near token", "reduce", *map(str, places)]
Table(head, rows, right=head[2:])

# %% key="early_table" lang="zh" tags="hardware"
uniform = torch.ones(193, 193).tril()
uniform = (uniform / uniform.sum(-1, keepdim=True))[None]
near, queries = {}, torch.arange(193, 0, -1)  # 每个 token 有几个 query 看得到
for name, each in (("什么都不偏爱", uniform), ("第 0 层", probs[0]), ("第 1 层", probs[1])):
    reduced = {"sum": each.sum((0, 1)), "mean": each.sum((0, 1)) / queries, "max": each.amax((0, 1))}
    for reduce, score in reduced.items():
        near[name, reduce] = {
            place: float(score[max(0, place - 8) : place + 9].mean() if place > 4 else score[place])
            for place in (0, 4, 24, 48, 96, 144, 192)
        }
places = list(near[name, "sum"])
rows = [(name, reduce, *(f"{value:.3f}" for value in values.values())) for (name, reduce), values in near.items()]
head = ["token 附近的平均得分", "reduce", *map(str, places)]
Table(head, rows, right=head[2:])

# %% [markdown] key="early_read" lang="en"
# A token that has been there from the beginning was seen by every query, the one in the middle by half of them; and the early queries had few others to look at. **A sum measures age as well as use.** In the real scores (sums over the four query heads, averaged over 17 neighbours) this slope is added to whatever the heads are interested in.
#
# Other ways to make one number of many glances have other faults. The **mean** over the queries that could see a token takes away the first cause and not the second, and the newest tokens, which hardly any query but their own has seen, come out on top. The **maximum** remembers one glance for ever; and the first query of a text looked at the first token with all it had, since there was no other. (H2O itself adds up. `H2O(reduce=...)` has all of them, and a decay.)
#
# And with a sum, the newest token has next to nothing, so it is the first to go. Here are 48 places, a prompt of 48 tokens, and 145 more, one after the other. (A window of 1 is the newest token itself, for one step.)
# %% [markdown] key="early_read" lang="zh" src="f2522e88"
# 从一开始就在的 token，每个 query 都看得到；在中间的，只有一半 query 看得到；而最早的几个 query，也没有多少别的可看。**累加得到的分数，既反映这个 token 有多常用，也反映它存在了多久**。真实的得分（四个 query 头之和，再对相邻 17 个 token 取平均），是这条斜坡再加上各个头真正关心的东西。
#
# 把许多次“看”变成一个数，别的办法各有各的毛病。求**平均**消除了“早来的 token 被看的次数多”这个偏差，但“最早的 query 可看的 token 少、每个分到的概率大”还在；最新的 token 只被自己看过，均值反而虚高。取**最大值**，看过一眼就永远记着；而文本的第一个 query 没有别的可看，只能把全部注意力放在第一个 token 上。（H2O 原本是求和。`H2O(reduce=...)` 这几种都有，还有衰减。）
#
# 用求和的话，最新的 token 几乎没有得分，所以第一个被淘汰。下面给 48 个位置，先读 48 个 token 的提示词，然后一个接一个再来 145 个。（窗口为 1，就是最新的 token 自己，只留一步。）

# %% key="freeze" lang="en"
text, rows = document.tokens[:193], []
for n_recent in (1, 12):
    sizes = dict(n_sink=4, budget=44 - n_recent, n_recent=n_recent)
    trace = trace_eviction(model, text, prompt=48, policy=H2O("sum"), scope="head", **sizes)
    for step in (1, 43, trace.steps - 1):
        from_prompt = trace.kept[:, :, step, :48].sum(-1).mean()  # mean over layers and heads
        rows.append((n_recent, step, float(from_prompt), trace.capacity[0], 48))
Table(["window", "steps", "kept from the prompt", "of kept", "prompt"], rows)

# %% key="freeze" lang="zh"
text, rows = document.tokens[:193], []
for n_recent in (1, 12):
    sizes = dict(n_sink=4, budget=44 - n_recent, n_recent=n_recent)
    trace = trace_eviction(model, text, prompt=48, policy=H2O("sum"), scope="head", **sizes)
    for step in (1, 43, trace.steps - 1):
        from_prompt = trace.kept[:, :, step, :48].sum(-1).mean()  # 对层和头求平均
        rows.append((n_recent, step, float(from_prompt), trace.capacity[0], 48))
Table(["窗口", "步数", "来自提示词的", "留下的总数", "提示词"], rows)

# %% [markdown] key="freeze_read" lang="en"
# Without a window the kept set all but stands still, at the beginning of the text: of the last hundred tokens hardly one got in. That is why a layer protects its last tokens, whatever they score. It is not the whole cure: with a window of 12 most heavy hitters are still the oldest tokens.
# (Exercise 14.3 is the choice, with sinks, window, ties and padding.)
#
# ## Recall after eviction: the question comes last
#
# Now the answers. The context of 193 tokens is read, every layer is cut down to a share of it, and only then the questions come: 16 a text, about facts that nothing has pointed at. That is the case that counts in a chat, where the next question is not known.
# `kept` counts everything that stays: sinks, heavy hitters, window. Before you run the cell: which policy will be the best, and which the last?
# %% [markdown] key="freeze_read" lang="zh" src="8bf8f94f"
# 没有窗口，留下的集合就几乎停在文本开头不动了：后来的一百个 token，留得下来的还不到一个。所以每一层都要保护最后的几个 token，不管得分多少。光靠它还不够：窗口为 12 时，重要 token 大多仍是最老的那些。
# （练习 14.3 就是怎么选：sink、窗口、得分相同、填充。）
#
# ## 召回率曲线：先淘汰，后提问
#
# 现在来看回答。先读 193 个 token 的上下文，再把每一层减到原来的一部分，然后问题才来：每篇 16 个，问的是事先没有任何提示的事实。对话里要紧的就是这种情形，因为下一个问题是什么，事先不知道。
# `kept`（留下）把 sink、重要 token、窗口全都算上。运行之前先想一想：哪种策略最好，哪种最差？

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
# Read the rows beside `random`, which looks at nothing at all.
#
# - **Summed H2O answers fewer questions than chance.** Its heavy hitters are what the text has needed *so far*: the ordinary words of the first table. A fact that nobody has asked for has got no attention worth speaking of, so it goes first. The maximum and TOVA add up the same glances in another way, and no way helps where there were none.
# - **StreamingLLM** keeps what is near the end, and answers what stood there. It never promised more: it bounds the memory of an endless text, it does not remember it.
# - **Knorm** and **KeyDiff** do not ask for attention at all, they look at the keys themselves. KeyDiff keeps those that are unlike the others; and whatever will be asked for by name has to differ from the rest. A quarter of the cache answers nearly everything.
# - At 10 % a head has room for 11 heavy hitters, and there are 24 facts.
#
# One small model, one kind of text, and facts of a single token: elsewhere the figures are others. On RULER (4k tokens, Llama-3.1-8B, a quarter kept, question unseen) the plot of [kvpress](https://github.com/NVIDIA/kvpress) has KeyDiff at about 74, TOVA at 64, StreamingLLM and SnapKV at 40, a policy like H2O at 29, and random at 0. What the two have in common: a plain sum of attention is not near the top.
#
# ### What perplexity says
#
# Many papers show perplexity beside the share that was kept. Here it is, over the ordinary words between the questions, in the same runs:
# %% [markdown] key="curves_read" lang="zh" src="6d763ea1"
# 每一行都与 `random` 比，它什么都不看。
#
# - **求和的 H2O，答对的比随便留还少**。它的重要 token，是文本**到目前为止**用到的：第一张表里那些普通的词。还没有谁来问的事实，几乎没有得到注意力，所以最先走。最大值和 TOVA 只是换一种办法来算同样的几眼；一眼都没有看过，怎么算都没有用。
# - **StreamingLLM** 留下靠近末尾的，答得出的也是写在那里的。它许诺的本来就不多：它让无尽文本的缓存有一个上限，并不记住文本。
# - **Knorm** 和 **KeyDiff** 根本不问注意力，只看 key 本身。KeyDiff 留下与众不同的 key；而将来会被指名问到的东西，必定与别的不同。留四分之一，几乎全都答得出。
# - 留 10% 的话，一个头只放得下 11 个重要 token，而事实有 24 条。
#
# 只有一个小模型、一种文本，一条事实也只靠一个 token：换了别处，数字就是另一样。在 RULER 上（4k token，Llama-3.1-8B，留四分之一，没看到问题），[kvpress](https://github.com/NVIDIA/kvpress) 的图里，KeyDiff 约 74，TOVA 约 64，StreamingLLM 和 SnapKV 约 40，类似 H2O 的策略约 29，随便留是 0。两处相同的是：单纯的注意力求和，都不在前列。
#
# ### 困惑度怎么说
#
# 许多论文在留下的比例旁边给出困惑度。同样的几次运行，只算问题之间那些普通的词：

# %% key="perplexity" lang="en" tags="hardware"
shown = ("full cache", "random", "streaming", "h2o sum", "keydiff")
rows = [
    (point.policy, round(100 * point.setting.kept), round(100 * point.score.share, 1), round(point.score.perplexity, 2))
    for point in points
    if point.policy in shown
]
Table(["policy", "kept, %", "answered, %", "perplexity"], rows)

# %% key="perplexity" lang="zh" tags="hardware"
shown = ("full cache", "random", "streaming", "h2o sum", "keydiff")
rows = [
    (point.policy, round(100 * point.setting.kept), round(100 * point.score.share, 1), round(point.score.perplexity, 2))
    for point in points
    if point.policy in shown
]
Table(["策略", "留下，%", "答对，%", "困惑度"], rows)

# %% [markdown] key="perplexity_read" lang="en"
# **Perplexity puts them in another order.** At 25 % summed H2O has lost more than nine facts of ten, and its perplexity has risen a little. KeyDiff answers nearly everything, and its perplexity has doubled. H2O keeps ordinary words, and from those an ordinary word is guessed. KeyDiff finds them all alike, and in the second layer most of what it keeps is facts; but a softmax has to look somewhere, and where little else is left it looks at facts.
# Neither number is wrong, they measure different things. So first say what the model will be asked, then measure that.
#
# ### When the question is known
#
# If the text ends with its question, the last queries are looking for the answer already. A policy that asks them can see what will be needed:
# %% [markdown] key="perplexity_read" lang="zh" src="3918a131"
# **困惑度排出来的是另一个次序**。留 25% 时，求和的 H2O 丢掉的事实超过九成，困惑度只升了一点；KeyDiff 几乎全都答得出，困惑度却翻了一倍。H2O 留的是普通的词，普通的词正要靠它们来猜。在 KeyDiff 看来它们都差不多，它在第二层留下的大半是事实；而 softmax 总得看点什么，别的所剩不多，看的就是事实。
# 两个数都没有错，量的东西不同。所以先说清楚要问模型什么，再去量那个。
#
# ### 问题事先知道的时候
#
# 如果文本以问题结尾，最后几个 query 就已经在找答案了。去问它们的策略，看得出接下来要用什么：

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
# Now the **maximum** answers everything, even at 10 %: one query has looked straight at the answer, and one glance is enough. The **sum** has the same glance in it: where half of the tokens stay that does, below it is lost among all the others. SnapKV averages 16 queries and blurs over five neighbours, too much for 10 %; TOVA asks the very last query only, and that is the mark of the next question here, not the name.
#
# So a figure for an eviction policy means nothing without one word: had it *seen* the question? In most benchmarks the question stands at the end of the prompt.
#
# ## One head, or all of them
#
# `scope="head"`: every KV head keeps its own tokens, as above. `scope="layer"`: the heads of a layer agree on one list, by the mean of their scores. Which is better, and what does it cost?
# %% [markdown] key="seen_read" lang="zh" src="f6acd6d3"
# 这一次，**最大值**全都答对，留 10% 也一样：有一个 query 直接看着答案，一眼就够。**求和**里也有这一眼：留一半时还够用，再少就淹没在别的里面了。SnapKV 对 16 个 query 求平均，还在五个相邻 token 上抹开，到 10% 就不行了；TOVA 只问最后一个 query，而在这里，那是下一个问题的问号，不是人名。
#
# 所以一种淘汰策略的成绩，少了一个词就没有意义：它**看到**问题了吗？大多数评测把问题放在提示词的末尾。
#
# ## 一个头，还是所有头
#
# `scope="head"`：每个 KV 头各留各的，前面都是这样。`scope="layer"`：一层的各个头按得分的平均，商定一份名单。哪个更好？各要花什么代价？

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
# With two lists `random` has two chances to keep a fact, and loses many of its answers with one. KeyDiff loses none: its heads agree on what is unlike the rest. How much separate lists are worth depends on the policy, and no curve here says that they are always better.
#
# What they cost is certain. A text lies in blocks of 16. Does a head that forgets give a block back, if all tokens stay where they are? Here are both heads of layer 0 under KeyDiff, first in place and then moved:
# %% [markdown] key="scopes_read" lang="zh" src="172752ab"
# 有两份名单，`random` 就有两次机会留住一条事实；只有一份，就少答对许多。KeyDiff 一题也不少，因为哪些 token 与众不同，它的各个头意见一致。分开列名单值多少，要看策略；这里没有哪条曲线说它总是更好。
#
# 要付的代价却是确定的。文本放在块大小为 16 的块里。如果所有 token 都留在原位，一个头忘掉了一些，能归还一个块吗？下面是 KeyDiff 之下第 0 层的两个头，先留在原位，再搬动：

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
        kept = torch.nn.functional.pad(torch.from_numpy(trace.kept[layer, :, 0]), (0, 15)).view(2, 13, 16)
        rows.append((name, layer, *kept.any(2).sum(1).tolist(), int(kept.any(2).any(0).sum()), 13))
Table(["policy", "layer", "head 0 alone needs", "head 1 alone", "both", "blocks in all"], rows)

# %% key="table_in_place" lang="zh"
rows = []
for name in ("h2o sum", "h2o max", "keydiff"):
    trace = trace_eviction(model, text, prompt=193, policy=policies[name], scope="head", **sizes)
    for layer in range(2):
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
# **In place, eviction frees next to nothing:** a block goes back only when no head keeps any of its 16 tokens. (The one exception above is telling: in layer 0 summed H2O keeps old tokens and the window, so the blocks between are empty.)
#
# But a slot need not hold the same token in every head. The keys are rotated already, and attention does not ask in which order they lie. So each head moves *its own* survivors to the lowest slots, and the tail goes back: 3 blocks where there were 13. That takes three things:
#
# - **the same number** of tokens in every head of a layer, and in every layer that shares the table;
# - **positions for each head**, where one list a layer would do with `scope="layer"`;
# - **no more sharing:** what another sequence reads is copied first, and no request finds these blocks by their old digests.
#
# (A policy whose layers keep different numbers needs a table for each layer. [Lesson 15](15_eviction_on_mla.ipynb) does the moving, in a paged cache.)
#
# ## Break it
#
# ### Bytes that stay
#
# And the memory? A slice looks small:
# %% [markdown] key="table_read" lang="zh" src="19c94c68"
# **留在原位，淘汰几乎什么也归还不了**：一个块里的 16 个 token，要所有头都不留，它才空得出来。（上面唯一的例外正好说明问题：第 0 层里，求和的 H2O 留的是老 token 和窗口，中间的块就空了。）
#
# 可是同一个槽位，在各个头里不必是同一个 token。key 已经旋转过，注意力不问它们按什么次序排。所以每个头把**自己**留下的搬到最低的槽位，末尾的就能归还：原来 13 个块，现在 3 个。这要满足三条：
#
# - 一层的每个头、共用块表的每一层，留的**个数相同**；
# - **位置每个头记一份**；用 `scope="layer"` 的话，每层一份就够；
# - **不再共享**：别的序列要读的，先复制一份；其他请求也不能再凭旧的摘要找到这些块。
#
# （各层留的个数不同，就得每层一张块表。[第 15 课](15_eviction_on_mla.ipynb)在分页缓存里真的去搬。）
#
# ## 弄坏它
#
# ### 放不掉的字节
#
# 显存真的会降下来吗？切片看上去很小：

# %% key="predict_slice"
predict("slice_bytes", ...)

# %% key="break_slice" lang="en"
keys, rows = torch.zeros(1, 8, 4096, 128, dtype=torch.bfloat16), []
for name, kept in (("slice", keys[:, :, -512:]), ("gather", keys[:, :, torch.arange(4096 - 512, 4096)])):
    rows.append((name, kept.shape[2], kept.numel() * kept.element_size(), kept.untyped_storage().nbytes()))
Table(["", "tokens", "bytes it shows", "bytes it holds"], rows)

# %% key="break_slice" lang="zh"
keys, rows = torch.zeros(1, 8, 4096, 128, dtype=torch.bfloat16), []
for name, kept in (("slice", keys[:, :, -512:]), ("gather", keys[:, :, torch.arange(4096 - 512, 4096)])):
    rows.append((name, kept.shape[2], kept.numel() * kept.element_size(), kept.untyped_storage().nbytes()))
Table(["", "token 数", "看上去的字节", "实际占的字节"], rows)

# %% [markdown] key="break_slice_read" lang="en"
# The slice is a view, and a view keeps all of its storage alive ([lesson 05](05_owned_and_borrowed.ipynb)). The text may be perfect, and the memory is as before. So ask the *storage*, never the shape.
#
# (Two more ways lead to the same symptom: to mask tokens instead of removing them; and to have attention return its weights, a matrix of queries times tokens for every head, which other implementations never store.)
#
# The package gathers. Watch its layers while the text is read token by token; the monitor looks five times a second:
# %% [markdown] key="break_slice_read" lang="zh" src="7352cffe"
# 切片是视图，而视图会让整块存储都活着（[第 05 课](05_owned_and_borrowed.ipynb)）。文本可能完全正确，显存却和原来一样。所以要问**存储**，不要看形状。
#
# （还有两条路通向同样的现象：只把 token 遮住，没有去掉；让注意力返回权重，那是每个头一个“query 数 × token 数”的矩阵，别的实现从不把它存下来。）
#
# 本包用的是 gather。一个 token 一个 token 地读这篇文本，同时看着它的各层；监视器每秒看五次：

# %% key="live" lang="en" tags="hardware"
from minikv.course import monitor
from minikv.eviction import install_kv_eviction

with torch.no_grad(), install_kv_eviction(model, policy="h2o", scope="head", **sizes):
    watched, cache = monitor.eviction(model, lang="en"), None
    for step in range(193):
        if step == 96:  # from here on the picture below is live
            watched.tick()
            show(watched)
        cache = model(context[:, step : step + 1], past_key_values=cache, use_cache=True).past_key_values
    watched.close()

# %% key="live" lang="zh" tags="hardware"
from minikv.course import monitor
from minikv.eviction import install_kv_eviction

with torch.no_grad(), install_kv_eviction(model, policy="h2o", scope="head", **sizes):
    watched, cache = monitor.eviction(model, lang="zh"), None
    for step in range(193):
        if step == 96:  # 从这里开始，下面的图是实时的
            watched.tick()
            show(watched)
        cache = model(context[:, step : step + 1], past_key_values=cache, use_cache=True).past_key_values
    watched.close()

# %% [markdown] key="live_read" lang="en"
# And its bytes, beside the full cache:
# %% [markdown] key="live_read" lang="zh" src="1bb37b44"
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
# (A token takes 1,024 bytes here, so the evicting cache has 49 places for its 48 tokens: room for the next one, which then takes the place of the one that goes. Exercise 14.4 is such a step.)
#
# And what can be said of H2O? In these curves, with the question unseen, it never beats a random choice; with the question seen, its maximum is perfect. A policy is neither good nor bad, but good at something.
#
# ## Recap
#
# - A quarter kept is a quarter of the bytes: 50,176 instead of 197,632 for this text, as the storage tells and the shape does not.
# - In place, 13 of 13 blocks are still needed, because each head keeps other tokens. Moved to the lowest slots, 3 are.
# - A sum of attention prefers old tokens. With a quarter kept and the question unseen, H2O answers 7.5 %, a random choice 38.8 %, KeyDiff 96.6 %.
# - Perplexity says something else: 8.14 for H2O, 14.40 for KeyDiff. Measure what the model will be asked.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="real_bytes_read" lang="zh" src="88c0d974"
# （这里一个 token 占 1,024 字节，所以淘汰的缓存留 48 个 token，却有 49 个位置：下一个 token 有地方放，然后由它接替要走的那个。练习 14.4 就是这样一步。）
#
# 那么 H2O 呢？在这些曲线里，没看到问题的时候，它从来没有胜过随机选择；看到问题的时候，它的最大值全对。一种策略谈不上好坏，只能说擅长什么。
#
# ## 本课小结
#
# - 留四分之一，字节也就剩四分之一：这篇文本是 50,176，原来是 197,632。这要问存储，形状说明不了。
# - 留在原位，13 个块一个也空不出来，因为每个头留的 token 不同；搬到最低的槽位，只要 3 个块。
# - 对注意力求和偏爱老 token。留四分之一、没看到问题时，H2O 答对 7.5%，随机选择 38.8%，KeyDiff 96.6%。
# - 困惑度说的是另一回事：H2O 是 8.14，KeyDiff 是 14.40。要测的，是模型将来会被问到的东西。
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
# ## In the wild
#
# - [H2O #12](https://github.com/FMInference/H2O/issues/12): in December 2023 a user found that "h2o is slower than the full and the memory footprint is not reduced"; four more joined in, and [#6](https://github.com/FMInference/H2O/issues/6) had asked it in Chinese before. "Bytes that stay" shows three ways to get there.
# - [vLLM #5751](https://github.com/vllm-project/vllm/issues/5751) has asked for eviction since June 2024. In the [forum](https://discuss.vllm.ai/t/sparse-attention-e-g-h2o/2745) (found through [keys_values #133](https://github.com/awslabs/keys_values/pull/133)) the obstacle was named: a block extends over all heads, and a token may be kept by some of them only. "One head, or all of them" measures it.
# - [VeloxQuant-MLX #141](https://github.com/rajveer43/VeloxQuant-MLX/pull/141): in August 2026 an H2O without a window kept exactly the original 14-token prompt, after 43 decode steps. "What a sum prefers" explains it.
# - [KVCache-Factory #24](https://github.com/Zefan-Cai/KVCache-Factory/issues/24): a widely used collection of policies looked at the last queries only, in what it called H2O. Here these are two different policies.
#
# ## Exercises
#
# 1. `peaks`: the most tokens inside a forward, and between two.
# 2. `add_mass`: scores, summed over queries and groups.
# 3. `choose`: sinks, heavy hitters, window, padding.
# 4. `step`: a decode step that forgets, and keeps everything together.
# %% [markdown] key="exercises" lang="zh" src="094b1373"
# ## 实战现场
#
# - [H2O #6](https://github.com/FMInference/H2O/issues/6)：2023 年 10 月，有用户用中文发问：长度相同，为什么 H2O 的显存占用比完整缓存还多？12 月的 [#12](https://github.com/FMInference/H2O/issues/12) 用英文又问了一遍，后面四个人附和。“放不掉的字节”一节给出了三种可能的原因。
# - [vLLM #5751](https://github.com/vllm-project/vllm/issues/5751) 从 2024 年 6 月起要求支持淘汰。[论坛](https://discuss.vllm.ai/t/sparse-attention-e-g-h2o/2745)（由 [keys_values #133](https://github.com/awslabs/keys_values/pull/133) 引出）上指出了障碍：一个块横跨所有头，而一个 token 可能只有几个头还留着。“一个头，还是所有头”一节测的就是它。
# - [VeloxQuant-MLX #141](https://github.com/rajveer43/VeloxQuant-MLX/pull/141)：2026 年 8 月，一个没有窗口的 H2O 在解码 43 步之后，留下的仍然正好是最初的 14 个提示词 token。原因见“求和偏爱谁”一节。
# - [KVCache-Factory #24](https://github.com/Zefan-Cai/KVCache-Factory/issues/24)：一个常用的策略合集里，所谓的 H2O 只看最后几个 query。在本课里，这是两种不同的策略。
#
# ## 练习
#
# 1. `peaks`：前向计算当中和两步之间，最多各有多少 token。
# 2. `add_mass`：对 query 和组求和的得分。
# 3. `choose`：sink、重要 token、窗口、填充。
# 4. `step`：会忘记的一步解码，各样东西不能散。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | tokens go, and the memory does not | `layer.keys.untyped_storage().nbytes()` beside `layer.keys.nbytes`: if it is far larger, a view holds the rest; if the tokens do not go either, `type(cache)` |
# | the same tokens stay for ever | `print(eviction_report(model).text())`: it says if whatever leaves the window goes at once |
# %% [markdown] key="stuck" lang="zh" src="639e1249"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | token 走了，显存却不降 | `layer.keys.untyped_storage().nbytes()` 与 `layer.keys.nbytes` 的对照：大得多的话，就是有视图占着其余的；如果 token 也没有走，看 `type(cache)` |
# | 留下的一直是同样那些 token | `print(eviction_report(model).text("zh"))`：离开窗口的是不是马上就走，它会说 |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# [Lesson 14b](14b_your_own_policy.ipynb), which you may leave out, puts tokens at wrong positions, keeps no sinks, and ends with a policy of your own.
# [Lesson 15](15_eviction_on_mla.ipynb) evicts where all heads share one row a token.
# %% [markdown] key="next" lang="zh" src="2e6d9bac"
# ## 下一课
#
# [第 14b 课](14b_your_own_policy.ipynb)是选读：把 token 放到错的位置，一个 sink 也不留，最后写一种自己的策略。
# [第 15 课](15_eviction_on_mla.ipynb)的模型，一个 token 只有一行，所有头共用，就在那里淘汰。
