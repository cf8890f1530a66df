# %% [meta]
# number = "11b"
# slug = "when_blocks_run_out"
# needs = ["09", "11a"]
# rooms = ["nano.scheduler", "engine"]
# [title]
# en = "Which sequence gives up its blocks?"
# zh = "块用完了，哪条序列让出来？"
# [t4]
# en = "The small model answers on the T4; the rest is bookkeeping on the CPU and shows the same numbers."
# zh = "小模型在 T4 上作答；其余都是 CPU 上的记账，数字相同。"
# [paper]
# en = "11b.1"
# zh = "11b.1"

# %% [markdown] key="question" lang="en"
# ## The question
#
# Every sequence that decodes needs another block from time to time. At some point a sequence asks for one, and the pool has none left.
# **Which sequence gives up its blocks, and does every request still end?**
#
# Here are five requests in a pool of 16 blocks. Each needs six blocks at its end, so only two of them fit together. A row is a request, a column is a step of the scheduler, and below the rows you see the blocks that each request holds.
# %% [markdown] key="question" lang="zh" src="a79a4005"
# ## 问题
#
# 正在解码的序列会不断变长，例如块大小为 16 时，每生成 16 个 token 就要再取一个块。总有一刻，序列要块，而块池里一个也不剩。
# **由哪条序列让出自己的块？所有请求还能全部完成吗？**
#
# 下面是五个请求，块池有 16 个块。每个请求到结束时需要六个块，所以同时只放得下两个。一行是一个请求，一列是调度器的一步，下方是每个请求持有的块。

# %% key="preempted" lang="en"
from minikv.course.diagrams import preemptions
from minikv.course.lessons.l11a.load import Ask, random_load, run_load

asks = [Ask(tuple(range(100 * i, 100 * i + 6)), 18) for i in range(5)]  # a prompt of 6 tokens, 18 to generate
pool = dict(num_blocks=16, block_size=4, max_num_seqs=8, max_batched_tokens=64)
ran = run_load(asks, **pool)
show(preemptions(ran, "en"))
# %% key="preempted" lang="zh"
from minikv.course.diagrams import preemptions
from minikv.course.lessons.l11a.load import Ask, random_load, run_load

asks = [Ask(tuple(range(100 * i, 100 * i + 6)), 18) for i in range(5)]  # 提示词 6 个 token，生成 18 个
pool = dict(num_blocks=16, block_size=4, max_num_seqs=8, max_batched_tokens=64)
ran = run_load(asks, **pool)
show(preemptions(ran, "zh"))

# %% [markdown] key="able" lang="en"
# A running sequence that gives up all its blocks is **preempted**. It waits, and later computes its tokens again. None of its output is lost.
#
# After this lesson you can
#
# - **say** which sequence gives up its blocks, and why every request still ends;
# - **measure** what that costs;
# - **write** a step that loses no block when a forward fails.
#
# You should know how a scheduler fills a step ([lesson 11a](11a_continuous_batching.ipynb)).
# %% [markdown] key="able" lang="zh" src="f4b4520a"
# 一条正在运行的序列交出自己所有的块，叫作被**抢占**（preemption）。它回去等待，以后再把自己的 token 重新计算一遍，已经输出的内容不会丢。
#
# 学完本课，你能够
#
# - **说出**由哪条序列让出块，以及为什么所有请求仍然都会结束；
# - **量出**这样做的代价；
# - **写出**一步：前向计算失败了，也不会丢一个块。
#
# 开始之前，需要知道调度器怎样安排一步（[第 11a 课](11a_continuous_batching.ipynb)）。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# A preempted sequence need not recompute all its tokens. If another sequence holds some of its blocks as well, the tokens in them stay in the cache.
# %% [markdown] key="predict_first" lang="zh" src="b071a6b0"
# ## 先猜一猜
#
# 被抢占的序列不必把全部 token 重算一遍。如果有些块同时由另一条序列持有，抢占就不会释放它们。也就是说，这些块里的 token 还在缓存里。

# %% key="predict_lost"
predict("lost_tokens", ...)

# %% [markdown] key="preempted_read" lang="en"
# ## When the blocks run out
#
# In the picture the youngest sequences lose their blocks: first request 4, then 3, then 2. A sequence never takes a block from an older one. So nothing is ever taken from the oldest, which fits into the pool alone. It ends, then the next one is the oldest, and so on until all have ended.
# If a younger sequence could take from an older one as well, two sequences could take the same blocks from each other for ever.
#
# The three lost 12, 16 and 20 computed tokens. What did they find again when they came back?
# %% [markdown] key="preempted_read" lang="zh" src="eec15f38"
# ## 块用完了怎么办
#
# 图里失去块的是最年轻的几个，先是请求 4，然后是 3，最后是 2。没有序列能从比自己老的那里拿块，因此最老那条的块永远不会被拿走。它单独一条是放得下的，所以一定会结束。然后轮到下一条最老的，依此类推，所有序列都会结束。
# 如果后到的序列也能抢占先到的，两条序列就可能一直互相抢同样几个块，哪一条也跑不完。
#
# 这三条分别失去了 12、16、20 个已计算的 token。回来时又找回多少？

# %% key="preempted_table" lang="en"
from minikv.course import Table

head = ["preemptions", "tokens given up", "found again", "computed again"]
Table(head, [[ran.preemptions, ran.given_up, ran.found, ran.recomputed]])
# %% key="preempted_table" lang="zh"
from minikv.course import Table

head = ["抢占次数", "交出的 token", "找回的", "重算的"]
Table(head, [[ran.preemptions, ran.given_up, ran.found, ran.recomputed]])

# %% [markdown] key="nano_preempt_intro" lang="en"
# Of 48 tokens 16 were found again, so 48 - 16 = 32 were computed twice.
#
# nano preempts with three methods. `make_room` asks for a block until there is one, or until the sequence itself has been preempted:
# %% [markdown] key="nano_preempt_intro" lang="zh" src="54a456ad"
# 交出的 48 个 token 里找回了 16 个，所以 48 - 16 = 32 个算了两遍。
#
# nano 用三个方法来抢占。`make_room` 一直要块，直到有了一个，或者自己也被抢占：

# %% key="nano_preempt"
from minikv.course import show_source
from minikv.nano.scheduler import Scheduler as NanoScheduler

show_source(NanoScheduler.make_room, NanoScheduler.choose_victim, NanoScheduler.preempt)

# %% [markdown] key="nano_preempt_read" lang="en"
# `preempt` puts the sequence at the *front* of the queue, so no newer request overtakes it. Its tokens stay in `seq.tokens`, and only K and V are lost.
# (`choose_victim` is exercise 11b.2. It's one line, and the one with the largest consequences in the scheduler.)
# %% [markdown] key="nano_preempt_read" lang="zh" src="b168ba43"
# `preempt` 把序列放回队列的**最前面**，后来的请求不会越过它。它的 token 都还在 `seq.tokens` 里，失去的只有 K 和 V。
# （`choose_victim` 就是练习 11b.2：只有一行，却是调度器里影响最大的一行。）

# %% [markdown] key="widget_read" lang="en"
# ## See it
#
# `minikv.LLM` chooses its *victim*, the sequence to preempt, with more care. Of the younger sequences that would free enough blocks, it takes the one that loses the fewest tokens. Below, nine requests arrive one after the other, and the pool is too small for all of them. A, E and F ask about the same document.
# "Start" runs it in a thread, "Stop" ends what is left, "Step" computes a single step.
#
# Try this, and say before each press what will change:
#
# 1. F has just lost its blocks, and it was one of the longest. Why F, and not H, which is younger and shorter?
# 2. I has never run. What keeps it out? Press "Step" until it gets in.
# 3. "Start", and "Stop" in the middle: where are the blocks now?
# 4. "Start" again, with the same requests: how many of their tokens are found this time?
# %% [markdown] key="widget_read" lang="zh" src="04318de2"
# ## 亲眼看看
#
# `minikv.LLM` 选得更仔细。它只看比要块的那条更年轻、空出的块又够用的序列，从中选损失 token 最少的。下面的九个请求一个接一个到来，块不够所有请求同时用。A、E、F 问的是同一篇文档。
# “开始”在后台线程里运行，“停止”结束剩下的请求，“单步”只算一步。
#
# 试试下面几步，每次按之前先说出会发生什么：
#
# 1. F 刚刚失去了它的块，而它是最长的几条之一。为什么是 F，而不是更年轻、更短的 H？
# 2. I 还没有运行过。为什么还不能放它进来？一直按“单步”，直到它进来。
# 3. 按“开始”，中途按“停止”：块现在在哪里？
# 4. 再按“开始”，还是同样的请求：这一次命中多少个 token？

# %% key="widget_requests"
from minikv import LLM, SamplingParams
from minikv.models import recall_documents, recall_prompt


def likeliest(tokens):
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)


prompts = [recall_prompt(seed=seed).text for seed in range(8)]
[document] = recall_documents(1, seed=3, facts=24, context=192, queries=24, span=72)
context = " ".join(document.words[1:193])
shared = [context + " ? " + question.name for question in document.questions[:3]]

# %% key="widget" lang="en"
from minikv.course.widgets import EngineWidget

engine = LLM("tiny-gqa", num_blocks=34, max_num_seqs=8, max_batched_tokens=96)
requests = [shared[0], *prompts[:3], *shared[1:], *prompts[3:6]]
arrivals = [2 * number for number in range(len(requests))]
widget = EngineWidget(engine, requests, likeliest(40), arrivals=arrivals, lang="en", speed=2)
for _ in range(28):
    widget.step()
show(widget, text=widget.text("en"))
# %% key="widget" lang="zh"
from minikv.course.widgets import EngineWidget

engine = LLM("tiny-gqa", num_blocks=34, max_num_seqs=8, max_batched_tokens=96)
requests = [shared[0], *prompts[:3], *shared[1:], *prompts[3:6]]
arrivals = [2 * number for number in range(len(requests))]
widget = EngineWidget(engine, requests, likeliest(40), arrivals=arrivals, lang="zh", speed=2)
for _ in range(28):
    widget.step()
show(widget, text=widget.text("zh"))

# %% [markdown] key="riddle_intro" lang="en"
# (It was cheap to preempt F. Most of its tokens lie in blocks that A and E hold as well, so it lost about half of what H would have lost. Exercise 11b.1 is this rule.)
#
# ## Hits of prompts that share nothing
#
# A preempted sequence leaves its blocks in the pool as cached ones. If no other sequence has overwritten them when it comes back, it finds its own prefix: that is where the 16 tokens came from.
#
# Does that show in the hit rate? Here are 60 random prompts, which share nothing, in smaller and smaller pools. The youngest sequence is preempted, and a request is let in without asking what the running ones still need. (An engine in *In the wild* did both when it wrote its log, so the class below is called `AsInTheLog`.)
# The scheduler asks its `Rules` for such decisions, and you can give `run_load` others. `choose_victim` gets the sequences that may be preempted, the oldest first, and returns one of them; `owed_blocks` says how many blocks are kept for the running ones.
# %% [markdown] key="riddle_intro" lang="zh" src="4a242a58"
# （抢占 F 的代价小，因为它的 token 大多在 A 和 E 也持有的块里，损失只有 H 的一半左右。练习 11b.1 就是这条规则。）
#
# ## 提示词毫无共同之处，却有命中
#
# 被抢占的序列把块留在块池里，成为缓存块。等它回来，只要这些块还没有被另一条序列覆盖，它就会找到自己的前缀；前面那 16 个 token 就是这样来的。
#
# 命中率里看得出来吗？下面是 60 个毫无相同之处的随机提示词，块池一个比一个小。抢占的是最年轻的，而且放请求进来时不问运行中的序列还需要多少。（“实战现场”里那份日志出自这样的引擎，所以下面的类叫 `AsInTheLog`。）
# 调度器的这些决定都来自它的 `Rules`，你可以给 `run_load` 换一套：`choose_victim` 拿到可以抢占的序列，最老的在前，返回其中一条；`owed_blocks` 说要给运行中的序列留多少个块。

# %% key="rules"
from minikv.engine import Rules


class Youngest(Rules):
    def choose_victim(self, scheduler, candidates, asked):
        return candidates[-1]


class AsInTheLog(Youngest):
    def owed_blocks(self, scheduler, kv_cache_group):
        return 0

# %% key="riddle" lang="en"
def blocks_at_end(load):
    return sum(-(-(len(ask.prompt) + ask.new - 1) // 16) for ask in load)


load = random_load(60, prompt=(16, 200), new=(16, 200))
needed = blocks_at_end(load)
rows = []
for share in (1, 0.4, 0.2, 0.1):
    ran = run_load(load, int(needed * share), rules=AsInTheLog())
    rows.append([f"{share:.0%}", int(needed * share), f"{ran.hit_rate:.1%}", ran.found, ran.preemptions])
Table(["pool", "blocks", "prefix cache hit rate", "tokens found", "preemptions"], rows, right=["prefix cache hit rate"])
# %% key="riddle" lang="zh"
def blocks_at_end(load):
    return sum(-(-(len(ask.prompt) + ask.new - 1) // 16) for ask in load)


load = random_load(60, prompt=(16, 200), new=(16, 200))
needed = blocks_at_end(load)
rows = []
for share in (1, 0.4, 0.2, 0.1):
    ran = run_load(load, int(needed * share), rules=AsInTheLog())
    rows.append([f"{share:.0%}", int(needed * share), f"{ran.hit_rate:.1%}", ran.found, ran.preemptions])
Table(["块池", "块数", "前缀缓存命中率", "命中的 token", "抢占次数"], rows, right=["前缀缓存命中率"])

# %% [markdown] key="riddle_read" lang="en"
# **The engine found its own tokens**, those of sequences that had been preempted and came back.
# So a good hit rate can be a sign that the pool is too small: at 10 % of the blocks it is 20.8 %.
# For this reason `RequestOutput.num_cached` counts the first admission only. `Metrics.hit_rate` counts all, and says so.
# %% [markdown] key="riddle_read" lang="zh" src="999ca665"
# **引擎命中的是自己的 token**，也就是被抢占、后来又回来的序列留下的那些。
# 所以命中率高，可能恰恰说明块池太小：块只有 10% 时，命中率是 20.8%。
# 因此，`RequestOutput.num_cached` 只算第一次放进来时的命中；`Metrics.hit_rate` 全都算，并且写明了这一点。

# %% [markdown] key="tax_intro" lang="en"
# ## What preemption costs
#
# In the picture at the top the five requests have 5 × (6 + 17) = 115 tokens to compute, because the last token of an answer is never computed. Preemption made the engine compute 32 of them twice. The **recompute tax** is the share of all computed tokens that had been computed before:
#
# $$\text{tax} \;=\; \frac{R}{C}$$
#
# | symbol | meaning | unit | value here |
# |---|---|---|---|
# | $R$ | tokens that were computed again | tokens | 32 |
# | $C$ | all tokens that were computed, $R$ included | tokens | 115 + 32 = 147 |
#
# With the numbers: `32 / 147 = 21.8%`.
#
# The tax depends on which sequence is preempted. Here are the five requests again, but now the *oldest* of the sequences that may be preempted loses its blocks:
# %% [markdown] key="tax_intro" lang="zh" src="126e611e"
# ## 抢占的代价
#
# 开头图里的五个请求，要计算 5 × (6 + 17) = 115 个 token（回答的最后一个 token 不用算）。因为抢占，其中 32 个算了两遍。**重算税**（recompute tax）是所有计算过的 token 里，以前已经算过的比例：
#
# $$\text{tax} \;=\; \frac{R}{C}$$
#
# | 符号 | 含义 | 单位 | 本例取值 |
# |---|---|---|---|
# | $R$ | 重算的 token | token | 32 |
# | $C$ | 计算过的全部 token，含 $R$ | token | 115 + 32 = 147 |
#
# 代入数字：`32 / 147 = 21.8%`。
#
# 重算税取决于抢占哪条序列。还是那五个请求，这一次让可以抢占的序列里最老的那条失去自己的块：

# %% key="tax_oldest" lang="en"
class Oldest(Rules):
    def choose_victim(self, scheduler, candidates, asked):
        return candidates[0]


show(preemptions(run_load(asks, rules=Oldest(), **pool), "en"))
# %% key="tax_oldest" lang="zh"
class Oldest(Rules):
    def choose_victim(self, scheduler, candidates, asked):
        return candidates[0]


show(preemptions(run_load(asks, rules=Oldest(), **pool), "zh"))

# %% [markdown] key="tax_policies" lang="en"
# There are as many preemptions, but 48 tokens are recomputed instead of 32. An older sequence has more computed tokens, so it has more to lose.
#
# Now let's compare three rules on the 60 random prompts. *Ours*, the rule of `minikv.LLM`, takes the sequence that gives up the fewest tokens, not counting those in blocks that other sequences hold.
# Before you run the cell: which rule will have the lowest tax?
# %% [markdown] key="tax_policies" lang="zh" src="12495b62"
# 抢占的次数一样，重算的却从 32 个变成 48 个。因为序列越老，已经算好的 token 越多，被抢占时损失也就越大。
#
# 现在用那 60 个随机提示词比较三种选法。“损失最少”是 `minikv.LLM` 的规则，即抢占损失 token 最少的那条，其中别的序列也持有的块不算损失。
# 运行之前先想一想：哪一种的税最低？

# %% key="tax" lang="en"
from minikv.course.charts import bars

victims = {"ours: fewest tokens lost": Rules(), "the youngest": Youngest(), "the oldest": Oldest()}
shares = {share: f"{share:.0%}" for share in (1, 0.4, 0.2, 0.1)}
runs = {(share, name): run_load(load, int(needed * share), rules=rules) for share in shares for name, rules in victims.items()}
taxes = {name: [round(100 * runs[share, name].tax, 1) for share in shares] for name in victims}
show(bars(list(shares.values()), taxes, x="recompute tax by size of the pool, %", unit="%"))
rows = [
    [shares[share], name, ran.preemptions, ran.given_up, ran.found, ran.recomputed, f"{ran.tax:.1%}", ran.steps]
    for (share, name), ran in runs.items()
]
Table(["pool", "victim", "preemptions", "given up", "found again", "computed again", "tax", "steps"], rows, right=["tax"])
# %% key="tax" lang="zh"
from minikv.course.charts import bars

victims = {"损失最少（我们的）": Rules(), "最年轻的": Youngest(), "最老的": Oldest()}
shares = {share: f"{share:.0%}" for share in (1, 0.4, 0.2, 0.1)}
runs = {(share, name): run_load(load, int(needed * share), rules=rules) for share in shares for name, rules in victims.items()}
taxes = {name: [round(100 * runs[share, name].tax, 1) for share in shares] for name in victims}
show(bars(list(shares.values()), taxes, x="各种块池下的重算税，%", unit="%"))
rows = [
    [shares[share], name, ran.preemptions, ran.given_up, ran.found, ran.recomputed, f"{ran.tax:.1%}", ran.steps]
    for (share, name), ran in runs.items()
]
Table(["块池", "抢占哪条", "抢占次数", "交出", "找回", "重算", "重算税", "步数"], rows, right=["重算税"])

# %% [markdown] key="tax_read" lang="en"
# Ours does what it promises and gives up the fewest tokens in every pool. And still, preempting the youngest is as good or better. At 20 %, for example, it gives up 4,172 tokens, more than our 3,860, but it recomputes 2,732, fewer than our 3,252.
# Why? A sequence with little to lose has few blocks, just enough for the one that asked, and they are overwritten at once. A larger victim frees more than that, so some of its blocks stay in the free list and are found again. The real cost of a preemption is only the tokens that have to be recomputed.
#
# One load is no proof. Here are three of other kinds, three seeds of each, in pools of 30 %:
# %% [markdown] key="tax_read" lang="zh" src="27e4a28e"
# 我们的选法说到做到。不论块池多大，它交出的 token 总是最少。可是抢占最年轻的并不比它差，有时还更好。
# 例如块池为 20% 时，抢占最年轻的要交出 4,172 个 token，比我们的 3,860 个多；重算的却只有 2,732 个，比我们的 3,252 个少。
# 为什么？损失小的序列，块也少，交出来的刚好够用，马上就被覆盖。如果抢占大一些的序列，总有些块还留在空闲队列里，回来时能找到。
# 也就是说，抢占真正的代价只是那些必须重算的 token。
#
# 一种负载说明不了什么。再看另外三种，每种取三个随机种子，块池都是 30%：

# %% key="loads"
from dataclasses import replace


def long_answers(seed):
    return random_load(30, prompt=(8, 40), new=(50, 300), seed=seed)


def one_by_one(seed):
    load = random_load(30, prompt=(16, 200), new=(16, 200), seed=seed)
    return [replace(ask, arrival=5 * number) for number, ask in enumerate(load)]


def one_document(seed):
    [long] = random_load(1, prompt=(256, 256), new=(1, 1), seed=seed + 100)
    load = random_load(30, prompt=(8, 120), new=(16, 200), seed=seed)
    return [replace(ask, prompt=long.prompt + ask.prompt) if n % 2 else ask for n, ask in enumerate(load)]

# %% key="tax_loads" lang="en"
kinds = {
    "short prompts, long answers": long_answers,
    "one request every five steps": one_by_one,
    "half of the prompts begin with one document": one_document,
}
rows = []
for kind, make in kinds.items():
    for name, rules in (("ours", Rules()), ("the youngest", Youngest())):
        runs_of_kind = [run_load(each, int(0.3 * blocks_at_end(each)), rules=rules) for each in map(make, range(3))]
        tax = sum(ran.recomputed for ran in runs_of_kind) / sum(ran.computed for ran in runs_of_kind)
        rows.append([kind, name, f"{tax:.1%}", sum(ran.steps for ran in runs_of_kind)])
Table(["load", "victim", "tax", "steps"], rows, right=["tax"])
# %% key="tax_loads" lang="zh"
kinds = {
    "提示词短，回答长": long_answers,
    "每五步来一个请求": one_by_one,
    "一半的提示词以同一篇文档开头": one_document,
}
rows = []
for kind, make in kinds.items():
    for name, rules in (("我们的", Rules()), ("最年轻的", Youngest())):
        runs_of_kind = [run_load(each, int(0.3 * blocks_at_end(each)), rules=rules) for each in map(make, range(3))]
        tax = sum(ran.recomputed for ran in runs_of_kind) / sum(ran.computed for ran in runs_of_kind)
        rows.append([kind, name, f"{tax:.1%}", sum(ran.steps for ran in runs_of_kind)])
Table(["负载", "抢占哪条", "重算税", "步数"], rows, right=["重算税"])

# %% [markdown] key="tax_loads_read" lang="en"
# On all three loads, preempting the youngest costs less computing, and the steps are nearly the same. On vLLM the opposite was measured (*In the wild*). So no rule is right for every load: measure your own, and put your own rule into `choose_victim`.
#
# (Ours knows one thing that age doesn't show. A sequence with 2,000 tokens, 1,900 of them in blocks that other sequences hold, looks expensive and is cheap. Exercise 11b.1 is about that.)
#
# Best of all is not to preempt, as in the first three lines of the large table. For that you need a pool that is large enough, a low enough `max_num_seqs`, and no larger `max_tokens` than the answers need.
# %% [markdown] key="tax_loads_read" lang="zh" src="5f347a73"
# 这三种负载下，都是抢占最年轻的重算得少，步数则相差无几。而在 vLLM 上测出的结果正好相反（见“实战现场”）。所以没有哪条规则适合所有负载。请拿自己的负载来测，把自己的规则写进 `choose_victim`。
#
# （不过，我们的规则考虑到了一件光看先后看不出来的事。例如一条 2,000 个 token 的序列，如果 1,900 个都在别的序列也持有的块里，看起来代价很大，其实只损失 100 个。这就是练习 11b.1。）
#
# 最好的办法还是不抢占，也就是那张大表的前三行：块池够大，`max_num_seqs` 够小，`max_tokens` 也不要设得超过回答的需要。

# %% [markdown] key="break" lang="en"
# ## Break it
#
# ### A step that fails
#
# A forward can raise an exception, for example because the GPU has run out of memory. Then the requests of this step fail. The others go on, and no block is lost.
# %% [markdown] key="break" lang="zh" src="fdb32911"
# ## 弄坏它
#
# ### 失败的一步
#
# 前向计算可能抛出异常，例如显存不足。这时，这一步里的请求都失败；其他请求不受影响，块也一个不少。

# %% key="break_error" lang="en"
from itertools import count
from unittest.mock import patch

with LLM("tiny-gqa", num_blocks=64, max_num_seqs=4) as llm:
    run, number, done = llm.runner.run, count(), {}

    def fails_once(*args):
        if next(number) == 2:
            raise RuntimeError("out of memory")
        return run(*args)

    names = [llm.add_request(prompt, likeliest(4)) for prompt in prompts[:8]]
    with patch.object(llm.runner, "run", fails_once):
        while llm.has_work:
            done |= {out.request: out for out in llm.step().finished}
    used = llm.snapshot().pools[0].used
rows = [[name, done[name].finish_reason, done[name].text] for name in names]
Table(["request", "ended by", "text"], rows, lines=[f"blocks in use now: {used}"])
# %% key="break_error" lang="zh"
from itertools import count
from unittest.mock import patch

with LLM("tiny-gqa", num_blocks=64, max_num_seqs=4) as llm:
    run, number, done = llm.runner.run, count(), {}

    def fails_once(*args):
        if next(number) == 2:
            raise RuntimeError("out of memory")
        return run(*args)

    names = [llm.add_request(prompt, likeliest(4)) for prompt in prompts[:8]]
    with patch.object(llm.runner, "run", fails_once):
        while llm.has_work:
            done |= {out.request: out for out in llm.step().finished}
    used = llm.snapshot().pools[0].used
rows = [[name, done[name].finish_reason, done[name].text] for name in names]
Table(["请求", "结束原因", "文本"], rows, lines=[f"现在占用的块：{used}"])

# %% [markdown] key="break_abort" lang="en"
# (Exercise 11b.3 is such a step, from the prefix cache to the last block given back.)
#
# ### The same request freed twice
#
# A client closes the connection, and a timeout fires for the same request. Both paths lead to the same end, but the blocks must go back only once: a block that stands in the free list twice is given to two sequences.
# %% [markdown] key="break_abort" lang="zh" src="5a68c5cc"
# （练习 11b.3 就是这样一步：从前缀缓存开始，到最后一个块归还为止。）
#
# ### 同一个请求释放两次
#
# 客户端断开了连接，同一个请求又触发了超时。两条路走到同一个终点，块却只能归还一次。如果一个块在空闲队列里出现两次，就会分给两条序列。

# %% key="break_abort_code" lang="en"
with LLM("tiny-gqa", num_blocks=64) as llm:
    name = llm.add_request(shared[0], likeliest(50))
    llm.step()
    before = llm.snapshot().pools[0]
    answers = [llm.abort(name), llm.abort(name)]
    after = llm.snapshot().pools[0]
head = ["first abort", "second abort", "blocks before", "blocks after", "still found"]
Table(head, [[*map(str, answers), before.used, after.used, after.cached]])
# %% key="break_abort_code" lang="zh"
with LLM("tiny-gqa", num_blocks=64) as llm:
    name = llm.add_request(shared[0], likeliest(50))
    llm.step()
    before = llm.snapshot().pools[0]
    answers = [llm.abort(name), llm.abort(name)]
    after = llm.snapshot().pools[0]
head = ["第一次 abort", "第二次 abort", "之前占用的块", "之后占用的块", "还能找到的块"]
Table(head, [[*map(str, answers), before.used, after.used, after.cached]])

# %% [markdown] key="nano_free" lang="en"
# In nano a sequence has two ways out, and each frees its blocks once: `finish`, when its last token has come, and `abort`, which `stream` calls when its caller has stopped reading.
# A second `abort` finds the sequence in neither list, and raises `ValueError` before any block is freed.
# %% [markdown] key="nano_free" lang="zh" src="d6b12a28"
# 在 nano 里，序列有两条出路，每条都只释放一次它的块：最后一个 token 出来时走 `finish`；调用者不再读 `stream` 时走 `abort`。
# 再次调用 `abort` 时，两个列表里都找不到这条序列，于是在释放任何块之前就抛出 `ValueError`。

# %% key="nano_finish"
show_source(NanoScheduler.finish, NanoScheduler.abort)

# %% [markdown] key="break_large" lang="en"
# ### A request that can never run
#
# A request larger than the whole pool would wait for ever. The engine refuses it before it waits, and says how long it may be. In eight blocks of 16 that is 8 * 16 + 1 = 129 tokens, because the last one is never stored:
# %% [markdown] key="break_large" lang="zh" src="30ceed6c"
# ### 永远跑不了的请求
#
# 比整个块池还大的请求，等多久也没用。引擎在它排队之前就拒绝，并说明最多能有多长。例如八个块、块大小 16，最多是 8 * 16 + 1 = 129 个 token，因为最后一个不必存：

# %% key="break_large_code"
from minikv.errors import MiniKVError

with LLM("tiny-gqa", num_blocks=8) as llm:
    try:
        llm.generate([shared[0]], likeliest(1))
    except MiniKVError as error:
        print(f"{type(error).__name__}: {t(error)}")

# %% [markdown] key="break_owed" lang="en"
# ### Without admission control
#
# What happens if a request is let in without asking what the running ones still need?
# %% [markdown] key="break_owed" lang="zh" src="c43df4c3"
# ### 没有准入控制
#
# 放请求进来的时候，如果不问运行中的序列还需要多少，会怎样？

# %% key="break_owed_code" lang="en"
class NoAdmissionControl(Rules):
    def owed_blocks(self, scheduler, kv_cache_group):
        return 0


rows, ours = [], list(victims)[0]
for share in (0.4, 0.2, 0.1):
    asked, not_asked = runs[share, ours], run_load(load, int(needed * share), rules=NoAdmissionControl())
    rows.append([f"{share:.0%}", asked.preemptions, not_asked.preemptions, f"{asked.tax:.1%}", f"{not_asked.tax:.1%}"])
Table(["pool", "preemptions", "no control", "tax", "tax, no control"], rows, right=["tax", "tax, no control"])
# %% key="break_owed_code" lang="zh"
class NoAdmissionControl(Rules):
    def owed_blocks(self, scheduler, kv_cache_group):
        return 0


rows, ours = [], list(victims)[0]
for share in (0.4, 0.2, 0.1):
    asked, not_asked = runs[share, ours], run_load(load, int(needed * share), rules=NoAdmissionControl())
    rows.append([f"{share:.0%}", asked.preemptions, not_asked.preemptions, f"{asked.tax:.1%}", f"{not_asked.tax:.1%}"])
Table(["块池", "抢占次数", "没有准入控制", "重算税", "没有准入控制的税"], rows, right=["重算税", "没有准入控制的税"])

# %% [markdown] key="break_owed_read" lang="en"
# There are more preemptions in every pool here, and the tax is higher. (With another `seed` in `random_load` a single pool may come out the other way; most don't.) Being admitted isn't the same as making progress.
# %% [markdown] key="break_owed_read" lang="zh" src="fbcaf138"
# 这里不论块池多大，抢占都更多，税也更高。（给 `random_load` 换一个 `seed`，个别块池可能反过来，多数不会。）也就是说，放进来了，不等于就能往前走。

# %% [markdown] key="recap" lang="en"
# ## Recap
#
# - When no block is free, a running sequence is preempted: its blocks are freed, its tokens stay, and it waits at the front of the queue.
# - Blocks are taken from younger sequences only. The oldest always goes on, so every request ends.
# - A preempted sequence may find its own blocks again. A hit rate of 20.8 % on prompts that share nothing was the sign of a pool that is too small.
# - The recompute tax is the share of computed tokens that were computed before, 32 of 147 or 21.8 % for the five requests. Which victim is cheapest depends on the load.
# - When a forward fails, a request is aborted twice or is too large, no block is lost and no other request fails.
# %% [markdown] key="recap" lang="zh" src="5be77209"
# ## 本课小结
#
# - 没有空闲块时，抢占一条运行中的序列：块释放，token 留着，它回到队列最前面等待。
# - 只能从更年轻的序列拿块。最老的总能前进，所以每个请求都会结束。
# - 被抢占的序列可能重新找到自己的块。提示词之间毫无相同之处，命中率却有 20.8%，说明块池太小。
# - 重算税是所有计算过的 token 里以前已经算过的比例，那五个请求是 147 个里的 32 个，即 21.8%。抢占哪条最便宜，要看负载。
# - 前向计算失败、同一个请求中止两次、请求太大，都不会丢一个块，其他请求也不会失败。

# %% [markdown] key="self" lang="en"
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="c2d6ea3e"
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_younger"
explain("why_younger")

# %% key="explain_hit_rate"
explain("whose_hits")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# 1. `cheapest_victim`: the rule of `minikv.LLM`, with plain lists.
# 2. `choose_victim`: nano's rule, as a method of its scheduler. It becomes a part of [your engine](11c_your_engine.ipynb).
# 3. `run_step`: from the prefix cache to the blocks given back, even if the forward fails in between.
# %% [markdown] key="exercises" lang="zh" src="c3d9792c"
# ## 练习
#
# 1. `cheapest_victim`：`minikv.LLM` 的规则，用普通的列表来写。
# 2. `choose_victim`：nano 的规则，写成调度器的方法；它会成为[你自己的引擎](11c_your_engine.ipynb)的部件。
# 3. `run_step`：从前缀缓存到归还块，中间的前向计算失败了也要收好尾。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | tokens a second fall as requests get longer | `summary(log.events)` (from `minikv.engine`) of `LLM(..., emit=log)`: `preemptions` above 0 means that the pool is too small, and `lost_tokens` says how much was given up |
# | a good hit rate, and slow all the same | `sum(out.num_cached for out in outputs)`, as a share of the prompts, against `summary(log.events).hit_rate`: where the second is higher, preempted sequences have hit their own blocks |
# %% [markdown] key="stuck" lang="zh" src="51f5e95d"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 请求越长，每秒 token 数越低 | `LLM(..., emit=log)` 的 `summary(log.events)`（`summary` 在 `minikv.engine` 里）：`preemptions` 大于 0 说明块池太小，`lost_tokens` 说明交出了多少 |
# | 命中率很高，却还是慢 | `sum(out.num_cached for out in outputs)` 占提示词的比例，与 `summary(log.events).hit_rate` 对照：后者更高，说明被抢占的序列命中了自己的块 |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - **A hit rate on random prompts.** In September 2025 a vLLM maintainer measured 1,000 prompts of random tokens, and the log showed a prefix cache hit rate of 32.2 % ([vLLM #25780](https://github.com/vllm-project/vllm/issues/25780)). The hits were those of preempted sequences; [PR #25787](https://github.com/vllm-project/vllm/pull/25787) stopped counting them, and the same benchmark then showed 0.2 %.
# - **The recompute tax.** [vLLM #54644](https://github.com/vllm-project/vllm/issues/54644) measured a tax of 10 to 23 percent in online serving, and up to 79 percent in a forced case offline. Its author proposed to preempt the sequence with the fewest computed tokens, which wasted up to 59 percent fewer tokens on vLLM. With random prompts that is nearly our rule.
# - **Freed twice.** In SGLang preemption freed requests that had finished already ([PR #18694](https://github.com/sgl-project/sglang/pull/18694)). *The same request freed twice* shows what that does to a pool.
# - **Too large for the pool.** nano-vllm noticed such a request only in the middle of decoding, with a bare AssertionError ([#274](https://github.com/GeeeekExplorer/nano-vllm/issues/274)). In vLLM one held up all requests behind it until it was aborted ([#39734](https://github.com/vllm-project/vllm/issues/39734)).
# %% [markdown] key="wild" lang="zh" src="d62bd412"
# ## 实战现场
#
# - **随机提示词的命中率。** 2025 年 9 月，vLLM 的一位维护者用 1,000 个随机 token 的提示词测吞吐量，日志里的前缀缓存命中率却是 32.2%（[vLLM #25780](https://github.com/vllm-project/vllm/issues/25780)）。这些命中来自被抢占的序列；[PR #25787](https://github.com/vllm-project/vllm/pull/25787) 不再把它们算进去，同样的测试随即变成 0.2%。
# - **重算税。** [vLLM #54644](https://github.com/vllm-project/vllm/issues/54644) 在线上服务中测到 10% 到 23% 的税，在离线的极端情形下高达 79%。作者建议抢占已算 token 最少的序列，在 vLLM 上这样浪费的 token 最多少了 59%；对随机提示词来说，这与我们的规则几乎一样。
# - **释放了两次。** SGLang 里，请求已经结束并释放，抢占时又释放了一次（[PR #18694](https://github.com/sgl-project/sglang/pull/18694)）。后果见“同一个请求释放两次”。
# - **比块池还大。** nano-vllm 要到解码中途才发现这样的请求，只给一个 AssertionError（[#274](https://github.com/GeeeekExplorer/nano-vllm/issues/274)）。在 vLLM 里，它曾把后面的请求全部堵住，直到被中止（[#39734](https://github.com/vllm-project/vllm/issues/39734)）。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You have now written what an engine decides. [Lesson 11c](11c_your_engine.ipynb) puts it together with your parts from earlier lessons, and runs that engine.
# %% [markdown] key="next" lang="zh" src="a4b9ff04"
# ## 下一课
#
# 到这里，引擎要做的决定你都写过了。[第 11c 课](11c_your_engine.ipynb)把它们与前几课的部件组装起来，运行你自己的引擎。
