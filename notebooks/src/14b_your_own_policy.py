# %% [meta]
# number = "14b"
# slug = "your_own_policy"
# needs = ["14"]
# rooms = ["eviction"]
# [title]
# en = "Can you choose better?"
# zh = "你能选得更好吗？"
# [t4]
# en = "The text quotes answers to the digit, so the CPU computes them, even where there is a T4. The numbers are the same."
# zh = "正文逐位引用答对的比例，所以由 CPU 计算，有 T4 也一样。看到的数字相同。"

# %% [markdown] key="question" lang="en"
# ## The question
#
# **Which tokens would you keep?** A cache may hold 14 of the 49 tokens below in each layer. The text hides six facts, a name and a city each, and questions about them come later. H2O and KeyDiff, two policies of [lesson 14](14_what_to_forget.ipynb), have made their choice. Can you write a dozen lines that choose better?
# %% [markdown] key="question" lang="zh" src="0c39a094"
# ## 问题
#
# **换成你，会留哪些 token？** 下面这篇文本有 49 个 token，每层的缓存只放得下 14 个。文本里藏着六条事实，每条是一个人名加一个城市，稍后会被问到。[第 14 课](14_what_to_forget.ipynb)的两种策略 H2O 和 KeyDiff 已经各自选好。你写十来行代码，能选得更好吗？

# %% key="setup" lang="en"
import torch

from minikv.models import load, recall_documents
from minikv.models.recall import FIRST_FILLER, FIRST_NAME

torch.set_num_threads(1)
# The text quotes the answers to the digit, and another device rounds otherwise: so the CPU, by name.
model = load("tiny-gqa", device="cpu").model
[document] = recall_documents(1, facts=6, context=48, queries=5, span=23)
text, words = document.tokens[:49], document.words[:49]
facts = [place for place, token in enumerate(text) if FIRST_NAME <= token < FIRST_FILLER]

# %% key="setup" lang="zh"
import torch

from minikv.models import load, recall_documents
from minikv.models.recall import FIRST_FILLER, FIRST_NAME

torch.set_num_threads(1)
# 正文逐位引用答对的比例，而换一个设备，舍入就不同，所以写明用 CPU。
model = load("tiny-gqa", device="cpu").model
[document] = recall_documents(1, facts=6, context=48, queries=5, span=23)
text, words = document.tokens[:49], document.words[:49]
facts = [place for place, token in enumerate(text) if FIRST_NAME <= token < FIRST_FILLER]

# %% key="known_kept" lang="en"
from minikv.course.diagrams import kept_tokens
from minikv.eviction import H2O, KeyDiff
from minikv.eviction.study.trace import trace_eviction

sizes = dict(prompt=49, n_sink=2, budget=8, n_recent=4)  # 2 + 8 + 4 = 14 tokens a layer
known = {"H2O": H2O("sum"), "KeyDiff": KeyDiff()}
traces = {name: trace_eviction(model, text, policy=policy, **sizes) for name, policy in known.items()}
show(kept_tokens(traces, words, "en", facts=facts))

# %% key="known_kept" lang="zh"
from minikv.course.diagrams import kept_tokens
from minikv.eviction import H2O, KeyDiff
from minikv.eviction.study.trace import trace_eviction

sizes = dict(prompt=49, n_sink=2, budget=8, n_recent=4)  # 每层 2 + 8 + 4 = 14 个 token
known = {"H2O": H2O("sum"), "KeyDiff": KeyDiff()}
traces = {name: trace_eviction(model, text, policy=policy, **sizes) for name, policy in known.items()}
show(kept_tokens(traces, words, "zh", facts=facts))

# %% [markdown] key="able" lang="en"
# H2O keeps the tokens that have got the most attention so far, and in the second layer none of them belongs to a fact. KeyDiff keeps keys that differ from the rest, so in the same layer 8 of its 14 tokens belong to facts.
#
# After this lesson you can
# - **give** the next token the right position after an eviction;
# - **measure** whether your model needs its first tokens;
# - **write** a policy of your own and compare it with known ones.
#
# You need [lesson 14](14_what_to_forget.ipynb): the model, its 24 facts and the questions after the eviction are the same.
# %% [markdown] key="able" lang="zh" src="838d72ed"
# H2O 留下的，是文本到目前为止看得最多的 token，在第二层，其中没有一个属于事实。KeyDiff 留下的，是与其他 token 差别大的 key，所以在同一层，14 个 token 里有 8 个属于事实。
#
# 学完本课，你能够：
# - 在淘汰之后，给下一个 token **放对位置**；
# - **测量**你的模型是否离不开最前面的几个 token；
# - **写出**自己的策略，并与已知的策略比较。
#
# 需要先学[第 14 课](14_what_to_forget.ipynb)：模型、24 条事实，以及先淘汰后提问的做法，都与那里相同。

# %% [markdown] key="break_positions" lang="en"
# ## Positions from the length
#
# Where does the next token go after an eviction? Its position is the number of tokens of the text *so far*. But a program that asks its cache "how many tokens do you have?" gets only those that are left. For example, after a text of 193 tokens of which 48 are left, the next token has position 193, not 48.
# %% [markdown] key="break_positions" lang="zh" src="415f27a3"
# ## 把长度当成位置
#
# 淘汰之后，下一个 token 的位置是多少？应当是**到目前为止**文本的 token 数。可是有的程序去问缓存“你有多少个 token”，得到的只是还剩多少个。例如文本已有 193 个 token，缓存只剩 48 个，那么下一个 token 的位置是 193，不是 48。

# %% key="predict_off"
predict("positions_off", ...)

# %% [markdown] key="positions_task" lang="en"
# Does that matter? Here a text goes on and on, token by token: 8 facts, then questions about them, again and again, and each answer states its fact once more. StreamingLLM keeps 48 tokens of 257, so from the first eviction on the cache's length is always 48. There is also a third way: rotate the kept keys again at every step, so that they count 0, 1, 2, ... With those, 48 is right.
# %% [markdown] key="positions_task" lang="zh" src="548adbc7"
# 这要紧吗？下面的文本不断往下走，每次一个 token。先是 8 条事实，然后反复提问，每次回答又把事实说一遍。StreamingLLM 在 257 个 token 里留 48 个，所以从第一次淘汰起，缓存的长度一直是 48。还有第三种做法：每一步都把留下的 key 重新旋转，让它们从 0、1、2 数起，这时 48 就是对的。

# %% key="break_positions_code" lang="en" tags="hardware"
from minikv.course import Table
from minikv.course.lessons.l15.stream import graded, read
from minikv.eviction.study.tasks import stream_cases


def held(cache):
    return cache.layers[0].resident  # 48 from the first eviction on


cases, rows = stream_cases(8), []
sizes = dict(scope="head", n_sink=4, budget=28, n_recent=16)
for name, place, positions in (
    ("the text's length", None, "original"),
    ("the cache's length", held, "original"),
    ("the cache's length, kept keys rotated again", held, "reindexed"),
):
    logs, _ = read(model, cases, "streaming", end=257, next_position=place, positions=positions, **sizes)
    rows.append((name, *graded(logs, cases, 0, 257)))
Table(["position of the next token", "answered, %", "perplexity"], rows)

# %% key="break_positions_code" lang="zh" tags="hardware"
from minikv.course import Table
from minikv.course.lessons.l15.stream import graded, read
from minikv.eviction.study.tasks import stream_cases


def held(cache):
    return cache.layers[0].resident  # 第一次淘汰之后一直是 48


cases, rows = stream_cases(8), []
sizes = dict(scope="head", n_sink=4, budget=28, n_recent=16)
for name, place, positions in (
    ("文本的长度", None, "original"),
    ("缓存的长度", held, "original"),
    ("缓存的长度，留下的 key 重新旋转", held, "reindexed"),
):
    logs, _ = read(model, cases, "streaming", end=257, next_position=place, positions=positions, **sizes)
    rows.append((name, *graded(logs, cases, 0, 257)))
Table(["下一个 token 的位置", "答对，%", "困惑度"], rows)

# %% [markdown] key="break_positions_read" lang="en"
# **The tokens and the kept set are the same and no error is raised, but the right answers fall from 69.7 % to 12.7 %.** If a new key is rotated to a position that another key has already, the next query sees a wrong distance. That matters in this model, because a fact is a word together with the word *before* it.
# So the layers of the package count two things. `get_seq_length()` says how long the text is, and `resident` says how many tokens are left. Length is not position.
#
# (The third way, `positions="reindexed"`, is right as well. Here it guesses the ordinary words even better, but it doesn't answer more questions.)
#
# ## Without sinks
#
# For StreamingLLM the first four tokens decide everything: without them the perplexity of large models explodes. We try three policies on this model, with 0, 1 and 4 sinks, and 48 tokens in all:
# %% [markdown] key="break_positions_read" lang="zh" src="ebf73097"
# **token 相同，留下的也相同，哪里都没有报错，答对的却从 69.7% 掉到 12.7%**。新的 key 如果转到一个已被占用的位置，下一个 query 看到的距离就是错的；而在这个模型里，一条事实就是一个词和它**前面**的那个词。
# 所以本包的层要记两个数：`get_seq_length()` 是文本的长度，`resident` 是还剩多少个 token。长度不等于位置。
#
# （第三种做法 `positions="reindexed"` 也对。在这里，它猜普通的词甚至更准，但答对的题并不更多。）
#
# ## 不留汇点
#
# 在 StreamingLLM 里，最前面的四个 token 决定一切，没有它们，大模型的困惑度就会急剧上升。换成这个模型，用三种策略，汇点分别留 0、1、4 个，一共 48 个 token：

# %% key="break_sinks" lang="en" tags="hardware"
from minikv.eviction import Budget, StreamingLLM
from minikv.eviction.study.curves import evicting_with
from minikv.eviction.study.suite import answer
from minikv.eviction.study.tasks import make_cases

cases, rows = make_cases("multikey", 10), []
for name, policy in {"streaming": StreamingLLM(), "h2o sum": H2O("sum"), "keydiff": KeyDiff()}.items():
    for n_sink in (0, 1, 4):
        budget = Budget(n_sink=n_sink, budget=36 - n_sink, n_recent=12)
        score = answer(model, cases, evicting=evicting_with(policy, budget, scope="head"))
        rows.append((name, n_sink, 100 * score.share, score.perplexity))
Table(["policy", "n_sink", "answered, %", "perplexity"], rows)

# %% key="break_sinks" lang="zh" tags="hardware"
from minikv.eviction import Budget, StreamingLLM
from minikv.eviction.study.curves import evicting_with
from minikv.eviction.study.suite import answer
from minikv.eviction.study.tasks import make_cases

cases, rows = make_cases("multikey", 10), []
for name, policy in {"streaming": StreamingLLM(), "h2o sum": H2O("sum"), "keydiff": KeyDiff()}.items():
    for n_sink in (0, 1, 4):
        budget = Budget(n_sink=n_sink, budget=36 - n_sink, n_recent=12)
        score = answer(model, cases, evicting=evicting_with(policy, budget, scope="head"))
        rows.append((name, n_sink, 100 * score.share, score.perplexity))
Table(["策略", "n_sink", "答对，%", "困惑度"], rows)

# %% [markdown] key="break_sinks_read" lang="en"
# **Nothing breaks.** KeyDiff answers 96.9 % with 0, 1 or 4 sinks. (These are 10 texts; with the 20 of [lesson 14](14_what_to_forget.ipynb) it was 96.6 %.) Other tokens use the room of the first ones just as well. The first table of [lesson 14](14_what_to_forget.ipynb) suggested it, since this model puts only a tenth of its attention there.
# This doesn't show that sinks are a myth. It doesn't show that `n_sink=4` helps, either. Measure how much attention your own model puts on its first token. (Some models have the sink built in. gpt-oss, for example, has learned one number for each head that takes part in the softmax, so it needs no token for that.)
#
# ## A policy of your own
#
# A policy is one method. It gives each token of each head a number, and the tokens with the larger numbers stay. It looks at a `View`: keys and values as cached, the attention so far (`state`, if the policy says that it needs it), what the last queries looked at, and the positions. A second method may divide the budget among the layers.
# %% [markdown] key="break_sinks_read" lang="zh" src="fa9695fc"
# **什么也没有坏**。汇点留 0、1 或 4 个，KeyDiff 都答对 96.9%（这里是 10 篇文本，[第 14 课](14_what_to_forget.ipynb)用了 20 篇，是 96.6%），因为最前面的 token 腾出来的位置，别的 token 同样用得上。[第 14 课](14_what_to_forget.ipynb)的第一张表已经露出端倪，因为这个模型放在那里的注意力只有一成左右。
# 这不能证明汇点不存在，也不能证明 `n_sink=4` 有用。先测量你自己的模型在第一个 token 上放了多少注意力。（有的模型自带汇点：gpt-oss 为每个头学了一个参加 softmax 的数，所以不需要用某个 token 来充当。）
#
# ## 自己写一种策略
#
# 一种策略就是一个方法，它给每个头的每个 token 一个数，数大的留下。它能看的都在 `View` 里，包括缓存里的 key 和 value，到目前为止的注意力（`state`，要先声明需要它），最后几个 query 看了什么，还有位置。另外可以再写一个方法，把预算分给各层。

# %% key="predict_split"
predict("second_layer", ...)

# %% [markdown] key="split_task" lang="en"
# Do both layers of this model need the same? Here is a KeyDiff that can divide its budget unequally. Before you run the cells: which of the two layers would you give more?
# %% [markdown] key="split_task" lang="zh" src="50a65f13"
# 这个模型的两层，需要的一样多吗？下面的 KeyDiff 可以不平均地分配预算。运行之前先想一想：你会给哪一层多一些？

# %% key="own" lang="en" tags="hardware"
from dataclasses import dataclass

from minikv.course.charts import lines
from minikv.eviction.study.curves import Setting, shared_out


@dataclass(frozen=True)
class Split(KeyDiff):
    first: float = 0.5  # of all heavy hitters, the share of the first of two layers

    def layer_budgets(self, budget, num_layers):
        first = round(self.first * num_layers * budget)
        return first, num_layers * budget - first

# %% key="own" lang="zh" tags="hardware"
from dataclasses import dataclass

from minikv.course.charts import lines
from minikv.eviction.study.curves import Setting, shared_out


@dataclass(frozen=True)
class Split(KeyDiff):
    first: float = 0.5  # 全部重要 token 里，两层中第一层占的比例

    def layer_budgets(self, budget, num_layers):
        first = round(self.first * num_layers * budget)
        return first, num_layers * budget - first

# %% key="own_curve" lang="en" tags="hardware"
scores = {}
for kept in (0.25, 0.1):
    sizes = shared_out(Setting(kept=kept).capacity)
    for first in (1.0, 0.75, 0.5, 0.25, 0.0):
        evicting = evicting_with(Split(first=first), sizes, scope="head")
        scores[kept, first] = answer(model, cases, evicting=evicting)
curves = {
    f"{kept:.0%} kept": {100 * first: 100 * score.share for (of, first), score in scores.items() if of == kept}
    for kept in (0.25, 0.1)
}
show(lines(curves, x="heavy hitters of layer 0, % of all", y="questions answered, %"))
head = ["kept, %", "to layer 0, %", "answered, %", "perplexity"]
Table(head, [(100 * kept, 100 * first, 100 * score.share, score.perplexity) for (kept, first), score in scores.items()])

# %% key="own_curve" lang="zh" tags="hardware"
scores = {}
for kept in (0.25, 0.1):
    sizes = shared_out(Setting(kept=kept).capacity)
    for first in (1.0, 0.75, 0.5, 0.25, 0.0):
        evicting = evicting_with(Split(first=first), sizes, scope="head")
        scores[kept, first] = answer(model, cases, evicting=evicting)
curves = {
    f"留 {kept:.0%}": {100 * first: 100 * score.share for (of, first), score in scores.items() if of == kept}
    for kept in (0.25, 0.1)
}
show(lines(curves, x="重要 token 分给第 0 层的比例，%", y="答对的问题，%"))
head = ["留下，%", "给第 0 层，%", "答对，%", "困惑度"]
Table(head, [(100 * kept, 100 * first, 100 * score.share, score.perplexity) for (kept, first), score in scores.items()])

# %% [markdown] key="own_read" lang="en"
# KeyDiff itself gives both layers the same budget, which is 50 % on the axis. **The more of the budget goes to the second layer, the more questions are answered: with a tenth kept, 86.9 % instead of 2.5 %.** Here are both choices, in the text of the beginning:
# %% [markdown] key="own_read" lang="zh" src="d957888d"
# KeyDiff 原本是两层平分，即横轴上的 50%。**分给第二层的越多，答对的越多：留 10% 时，从 2.5% 升到 86.9%**。在开头那篇文本里，把两种选择并排放在一起：

# %% key="own_kept" lang="en"
sizes = dict(prompt=49, n_sink=2, budget=8, n_recent=4)
traces["KeyDiff, split"] = trace_eviction(model, text, policy=Split(first=0.0), **sizes)
del traces["H2O"]
show(kept_tokens(traces, words, "en", facts=facts))

# %% key="own_kept" lang="zh"
sizes = dict(prompt=49, n_sink=2, budget=8, n_recent=4)
traces["KeyDiff, split"] = trace_eviction(model, text, policy=Split(first=0.0), **sizes)
del traces["H2O"]
show(kept_tokens(traces, words, "zh", facts=facts))

# %% [markdown] key="own_why" lang="en"
# With all heavy hitters in the second layer, `2 + 4 + 2 × 8 = 22` tokens stay there, all 12 words of the facts among them. The first layer keeps its 2 sinks and its window of 4, and nothing else.
#
# Why is that enough? Look at two kinds of words in a text: a city, which stands right after its name, and the same name in a later question.
# %% [markdown] key="own_why" lang="zh" src="e39dabde"
# 把重要 token 的预算全给第二层，那里就留下 `2 + 4 + 2 × 8 = 22` 个 token，事实的 12 个词全在其中；第一层只剩 2 个汇点和 4 个近期 token。
#
# 为什么这样就够了？在一篇文本里看两种词。一种是城市，前面紧挨着人名；另一种是后来提问里的人名。

# %% key="circuit" lang="en"
[document] = recall_documents(1, seed=1)
whole = torch.from_numpy(document.tokens)[None]  # [1, T]
model.set_attn_implementation("eager")
with torch.no_grad():
    looks = [each[0] for each in model(whole, output_attentions=True).attentions]  # a layer: [heads, T, T]
model.set_attn_implementation("sdpa")
names = torch.from_numpy(document.positions)
cities = torch.tensor([question.source for question in document.questions])

# %% key="circuit" lang="zh"
[document] = recall_documents(1, seed=1)
whole = torch.from_numpy(document.tokens)[None]  # [1, T]
model.set_attn_implementation("eager")
with torch.no_grad():
    looks = [each[0] for each in model(whole, output_attentions=True).attentions]  # 每层 [头, T, T]
model.set_attn_implementation("sdpa")
names = torch.from_numpy(document.positions)
cities = torch.tensor([question.source for question in document.questions])

# %% key="circuit_bars" lang="en"
from minikv.course.charts import bars

steps = {"a city to the name before it": (cities, cities - 1), "a question's name to its city": (names, cities)}
heads = [f"layer {layer}, head {head}" for layer in range(2) for head in range(4)]
shares = {
    # each [4 heads, T, T] at (query, key) pairs: [4, pairs], and their mean: [4]
    step: [round(100 * float(share), 1) for each in looks for share in each[:, queries, keys].mean(1)]
    for step, (queries, keys) in steps.items()
}
show(bars(heads, shares, x="attention of the query head, mean", unit="%"))

# %% key="circuit_bars" lang="zh"
from minikv.course.charts import bars

steps = {"城市看前面的人名": (cities, cities - 1), "提问的人名看它的城市": (names, cities)}
heads = [f"第 {layer} 层，头 {head}" for layer in range(2) for head in range(4)]
shares = {
    # 从 each [4 个头, T, T] 里按（query, key）对取值：[4, 对数]，再平均：[4]
    step: [round(100 * float(share), 1) for each in looks for share in each[:, queries, keys].mean(1)]
    for step, (queries, keys) in steps.items()
}
show(bars(heads, shares, x="query 头的注意力，平均", unit="%"))

# %% [markdown] key="circuit_read" lang="en"
# In the first layer, one head gives 90.4 % of a city's attention to the word before it, the name. So in the second layer the city's key carries that name, and there the question finds it. (Such a pair is called an **induction head**, [Olsson et al., 2022](https://arxiv.org/abs/2209.11895).) When the question comes, the first layer doesn't look for the city any more, so it needs its window and little else.
#
# So a dozen lines answer more questions than all policies of [lesson 14](14_what_to_forget.ipynb). Three remarks:
#
# - We chose the division by looking at this model's answers to these texts. Choose on some texts, judge on others, and choose again for another model.
# - Watch the ordinary words too: at 25 % their perplexity falls from 14.7 to 8.36, but at 10 % it rises from 38.5 to 51.4.
# - Layers that keep different numbers need a block table each.
#
# The package finds such a division without looking at answers. `Echo` takes the query that the model made of each word, and asks it again as if the word came up later. For example, in a text with `ben oslo` it supposes that `ben` appears once more. The score of `oslo` is the share of attention that the query of `ben` would then give it.
# These scores are probabilities, so they mean the same in all layers. One pass over a few *other* texts is enough to see which layers have the highest ones, and `Fitted` divides the budget accordingly:
# %% [markdown] key="circuit_read" lang="zh" src="a6326ac5"
# 在第一层，城市的一个头把 90.4% 的注意力放在前面的词，也就是人名上。所以到了第二层，城市的 key 里已经带着那个人名，提问就在那里找到它。（这种配合叫**归纳头**，induction head，[Olsson 等，2022](https://arxiv.org/abs/2209.11895)。）问题来的时候，不会再去第一层查那个城市，所以第一层只需要近期窗口，此外几乎什么也不要。
#
# 也就是说，十来行代码，答对的就比[第 14 课](14_what_to_forget.ipynb)里所有的策略都多。不过有三点要说明：
#
# - 这个分法是看着这个模型对这些文本的回答挑出来的。应当在一些文本上挑，在另一些文本上评；换了模型，要重新再挑。
# - 普通的词也要看，留 25% 时，它们的困惑度从 14.7 降到 8.36；留 10% 时，却从 38.5 升到 51.4。
# - 各层留的个数不同，就得每层一张块表。
#
# 本包不看答案，也能找到这样的分法。`Echo` 拿模型为每个词算出的 query，当作这个词后来又出现了，再问一遍。例如文本里有 `ben oslo`，就假设 `ben` 再次出现，看它的 query 有多少注意力会落在 `oslo` 上，这就是 `oslo` 的得分。得分都是概率，在各层的含义相同，所以只要在几篇**别的**文本上算一遍，就知道得分最高的都在哪些层，`Fitted` 就照此分配预算：

# %% key="found" lang="en" tags="hardware"
from minikv.course.lessons.l14.recall_chart import recall_chart
from minikv.eviction import Echo
from minikv.eviction.study.curves import Fitted, curve

found = {"keydiff": KeyDiff(), "echo": Echo(), "echo, fitted": Fitted(Echo(), by=Echo())}
settings = [Setting(kept=share) for share in (0.25, 0.1)]
points = list(curve(model, found, settings, count=20, scope="head"))
show(recall_chart(points, "en", perplexity=True))

# %% key="found" lang="zh" tags="hardware"
from minikv.course.lessons.l14.recall_chart import recall_chart
from minikv.eviction import Echo
from minikv.eviction.study.curves import Fitted, curve

found = {"keydiff": KeyDiff(), "echo": Echo(), "echo, fitted": Fitted(Echo(), by=Echo())}
settings = [Setting(kept=share) for share in (0.25, 0.1)]
points = list(curve(model, found, settings, count=20, scope="head"))
show(recall_chart(points, "zh", perplexity=True))

# %% [markdown] key="found_read" lang="en"
# `Echo` was not told where the facts are, and it has seen no answer. With its budget fitted to the layers, it answers more questions than the equally divided KeyDiff at both shares. At 10 % it, too, guesses ordinary words worse. And what it knows is how *this* model recalls, one token after another. In a model that recalls in another way it may be worth nothing.
#
# ## Recap
#
# - The position of the next token is the length of the *text*. With the cache's length (48 of 257) right answers fell from 69.7 % to 12.7 %, without an error.
# - This model doesn't need its first tokens: with 4 sinks or none, KeyDiff answers 96.9 %.
# - Where the budget goes can matter more than the score. With a tenth kept, KeyDiff answers 51.2 % with equal layers, and 86.9 % with all heavy hitters in the second.
# - `Fitted(Echo(), by=Echo())` finds such a division from other texts, and answers 95.3 % with a tenth kept.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="found_read" lang="zh" src="aa21c6f8"
# `Echo` 事先不知道事实在哪里，也没有见过答案。按层分好预算之后，两种比例下都比平分的 KeyDiff 答对得多；只是留 10% 时，它同样在普通的词上付出了代价。而且它所知道的，是**这个**模型怎样一个 token 接着一个 token 地回忆。换一个回忆方式不同的模型，它也许毫无用处。
#
# ## 本课小结
#
# - 下一个 token 的位置由**文本**决定。改用缓存的长度（257 个里留 48 个），答对的从 69.7% 掉到 12.7%，而且不报错。
# - 这个模型不需要最前面的几个 token，汇点留 4 个或不留，KeyDiff 都答对 96.9%。
# - 预算给哪一层，可能比得分怎么算更要紧。留一成时，KeyDiff 两层平分答对 51.2%，全给第二层则答对 86.9%。
# - `Fitted(Echo(), by=Echo())` 从别的文本就能找到这样的分法，同样留一成，答对 95.3%。
#
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_positions"
explain("why_true_positions")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# 1. `score`: a policy of your own, well above chance.
# %% [markdown] key="exercises" lang="zh" src="38ba4840"
# ## 练习
#
# 1. `score`：自己写一种策略，要明显强过随机选择。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | wrong answers soon after the first eviction | `cache.get_seq_length()` before and after a step. It has to count the text; if it stands still, every new token has the same position |
# %% [markdown] key="stuck" lang="zh" src="a12153c8"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 第一次淘汰之后不久就开始答错 | 看一步前后的 `cache.get_seq_length()`：它应当数文本的长度；如果停住不动，每个新 token 的位置就都一样 |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# So far every head had its own K and V. A model with latents has one row a token for all heads together: there is nothing to choose for each head, and the scores have to be computed in another way.
# [Lesson 15](15_eviction_on_mla.ipynb) evicts there, in a paged cache that really gives its blocks back.
# %% [markdown] key="next" lang="zh" src="194bcfb4"
# ## 下一课
#
# 到这里，每个头都有自己的 K 和 V。用潜在向量的模型，一个 token 只有一行，所有头共用，没有“各头各选”这回事，得分也得换个办法来算。
# [第 15 课](15_eviction_on_mla.ipynb)就在这样的模型上做淘汰，用的是真能归还块的分页缓存。
