# %% [meta]
# number = "14b"
# slug = "your_own_policy"
# needs = ["14"]
# rooms = ["eviction"]
# minutes = 20
# [title]
# en = "Can you choose better?"
# zh = "你能选得更好吗？"
# [t4]
# en = "The models are tiny and computed by the CPU, beside a T4 too. The numbers are the same."
# zh = "模型很小，一律由 CPU 计算，有 T4 也一样。看到的数字相同。"

# %% [markdown] key="question" lang="en"
# ## The question
#
# [Lesson 14](14_what_to_forget.ipynb) compared published policies. All of them count positions along the whole text, and all of them keep the first tokens. **What happens if a position is taken from the length of the cache, or if none of the first tokens is kept? And can a dozen lines of your own answer more questions than any policy there?**
#
# The model and its texts are those of that lesson: 24 facts, a name and a city each, and the questions come after the eviction.
# %% [markdown] key="question" lang="zh" src="5665f09c"
# ## 问题
#
# [第 14 课](14_what_to_forget.ipynb)比较的是论文里的策略。它们都按整篇文本来数位置，也都保留最前面的几个 token。**如果位置改为取自缓存的长度，或者最前面的 token 一个也不留，会怎样？自己写十来行代码，能不能比那里的每一种策略都答对得多**？
#
# 模型和文本与那一课相同：24 条事实，每条是一个人名加一个城市；先淘汰，后提问。

# %% key="setup"
import torch

from minikv.eviction import H2O, Budget, KeyDiff, StreamingLLM, install_kv_eviction
from minikv.models import load, recall_documents

torch.set_num_threads(1)
model = load("tiny-gqa", device="cpu").model
[document] = recall_documents(1, seed=1)
policies = {"streaming": StreamingLLM(), "h2o sum": H2O("sum"), "keydiff": KeyDiff()}

# %% [markdown] key="break_positions" lang="en"
# ## Positions from the length
#
# A text that goes on and on, token by token: 8 facts, then questions about them, again and again, and each answer tells its fact anew. StreamingLLM keeps 48 tokens of 257. The next token's position is the number of tokens *so far*; but a program that asks its cache "how many tokens do you have?" gets 48, and from then on always 48. There is a third way: rotate the kept keys anew at every step, so that they count 0, 1, 2, ...; then the 48 is right.
# %% [markdown] key="break_positions" lang="zh" src="e9d7bb16"
# ## 把长度当成位置
#
# 一篇不断往下走的文本，一个 token 一个 token 地来：8 条事实，然后反复提问，每次回答又把事实说一遍。StreamingLLM 在 257 个 token 里留 48 个。下一个 token 的位置是**到目前为止**的 token 数；可是有的程序去问缓存“你有多少个 token”，得到 48，从此永远是 48。还有第三种做法：每一步都把留下的 key 重新旋转，让它们从 0、1、2 数起，这时 48 才是对的。

# %% key="break_positions_code" tags="hardware"
from minikv.eviction.study.tasks import stream_cases

cases = stream_cases(8)
tokens = torch.stack([torch.from_numpy(case.tokens) for case in cases])


def read(at, length, positions="original"):
    """Read all texts token by token, each token at position ``at(cache)``; the share of right answers, perplexity."""
    cache, logs, right, asked, nats = None, [], 0, 0, []
    with torch.no_grad(), install_kv_eviction(
        model, policy="streaming", positions=positions, budget=length - 20, n_sink=4, n_recent=16, scope="head"
    ):
        for step in range(tokens.shape[1]):
            place = torch.tensor([[at(step, cache)]])
            out = model(tokens[:, step : step + 1], past_key_values=cache, position_ids=place, use_cache=True)
            cache = out.past_key_values
            logs.append(out.logits[:, -1].log_softmax(-1))
    for row, case in enumerate(cases):
        for question in case.asked:
            asked, place = asked + 1, question.positions[0]
            right += int(logs[place][row].argmax()) == question.answers[0][0]
        nats += [-logs[place][row, case.tokens[place + 1]] for place in case.plain]
    return dict(recall=100 * right / asked, asked=asked, ppl=float(torch.stack(nats).mean().exp()))


def held(step, cache):
    return 0 if cache is None else cache.layers[0].resident


for name, at, positions in (
    ("text", lambda step, cache: step, "original"),
    ("cache", held, "original"),
    ("rotated", held, "reindexed"),
):
    print(t("positions_line", what=t("positions_" + name), **read(at, 48, positions)))

# %% [markdown] key="break_positions_read" lang="en"
# **Same tokens, same kept set, no error anywhere; and most answers are gone.** A key that was rotated to a place that is taken tells the next query a wrong distance, and in this model a fact is a word and the word *before* it.
# That is why the layers of the package count two things: `get_seq_length()` says how long the text is, `resident` how many tokens are left. Length is not position.
#
# (The third way is right as well, `positions="reindexed"`. Here it even guesses the ordinary words better, and answers no more.)
#
# ## Without sinks
#
# For StreamingLLM the first four tokens make all the difference: without them the perplexity of large models explodes. Here is this model, with three policies, with 4 sinks, with 1 and with none, and 48 tokens in all:
# %% [markdown] key="break_positions_read" lang="zh" src="627d226e"
# **token 相同，留下的也相同，哪里都没有报错，回答却大半没有了**。key 如果转到已经有人的位置，下一个 query 看到的距离就是错的；而在这个模型里，一条事实就是一个词和它**前面**的那个词。
# 所以本包的层要数两样东西：`get_seq_length()` 说文本有多长，`resident` 说还剩多少个 token。长度不是位置。
#
# （第三种做法也对，即 `positions="reindexed"`。在这里，普通的词它甚至猜得更好，答对的题并不更多。）
#
# ## 没有 sink
#
# 在 StreamingLLM 那里，最前面的四个 token 决定一切：没有它们，大模型的困惑度就会爆炸。下面是这个模型，三种策略，分别留 4 个、1 个、0 个 sink，一共 48 个 token：

# %% key="break_sinks" tags="hardware"
from minikv.eviction.study.curves import evicting_with
from minikv.eviction.study.suite import answer
from minikv.eviction.study.tasks import make_cases

cases = make_cases("multikey", 10)
for name in ("streaming", "h2o sum", "keydiff"):
    for n_sink in (0, 1, 4):
        budget = Budget(n_sink=n_sink, budget=36 - n_sink, n_recent=12)
        score = answer(model, cases, evicting=evicting_with(policies[name], budget, scope="head"))
        print(t("sinks_line", policy=name, n_sink=n_sink, recall=100 * score.share, ppl=score.perplexity))

# %% [markdown] key="break_sinks_read" lang="en"
# **Nothing breaks.** What the first tokens leave, others can use. The first table of [lesson 14](14_what_to_forget.ipynb) had said so: this model parks only a tenth of its attention there.
# It would be wrong to conclude that sinks are a legend, and as wrong to set `n_sink=4` and believe that something was won. Measure how much attention your model leaves on its first token. (Some have the sink built in: gpt-oss has learned a number for each head that takes part in the softmax, and needs no token for it.)
#
# ## A policy of your own
#
# A policy is one method: a number for each token of each head, and the larger stays. What it may look at is its `View`: keys and values as cached, the attention so far (`state`, if it says that it needs that), what the last queries looked at, the positions. A second method may share out the budget among the layers.
#
# Do both layers of this model need the same? Try it. Before you run the cell: which of the two would you give more?
# %% [markdown] key="break_sinks_read" lang="zh" src="9cfc8850"
# **什么也没有坏**。最前面的 token 让出来的位置，别的 token 用得上。[第 14 课](14_what_to_forget.ipynb)的第一张表其实已经说了：这个模型放在那里的注意力只有一成左右。
# 由此断定汇点是传说，不对；设了 `n_sink=4` 就以为有了保障，同样不对。先量一量你的模型在第一个 token 上放了多少注意力。（有的模型自带汇点：gpt-oss 为每个头学了一个参加 softmax 的数，用不着哪个 token。）
#
# ## 自己写一种策略
#
# 一种策略就是一个方法：给每个头的每个 token 一个数，数大的留下。它能看的都在 `View` 里：缓存里的 key 和 value，到目前为止的注意力（`state`，要先声明需要它），最后几个 query 看了什么，还有位置。另外可以再写一个方法，把预算分给各层。
#
# 这个模型的两层，要的一样吗？试一试。运行之前先想一想：两层之间，你会给哪一层多一些？

# %% key="own" tags="hardware"
from dataclasses import dataclass

from minikv.eviction.study.curves import Setting, shared_out


@dataclass(frozen=True)
class Split(KeyDiff):
    """KeyDiff for a model of two layers: the first has the share ``first`` of all heavy hitters, the second the rest."""

    first: float = 0.5

    def layer_budgets(self, budget, num_layers):
        first = round(self.first * num_layers * budget)
        return first, num_layers * budget - first


print(t("split_head"))
for kept in (0.25, 0.1):
    for first in (1.0, 0.75, 0.5, 0.25, 0.0):
        sizes = shared_out(Setting(kept=kept).capacity)
        score = answer(model, cases, evicting=evicting_with(Split(first=first), sizes, scope="head"))
        print(f"{100 * kept:>6.0f} {100 * first:>14.0f} {100 * score.share:>11.1f} {score.perplexity:>12.1f}")

# %% [markdown] key="own_read" lang="en"
# KeyDiff shares out equally, the middle row of each five. **The more of it goes to the second layer, the more answers: at 10 %, from hardly any to almost nine in ten.**
#
# Why? Look at two kinds of words in one text: a city whose name stands before it, and later the name in a question.
# %% [markdown] key="own_read" lang="zh" src="f39a8bed"
# KeyDiff 是两层平分，即每五行中间的那一行。**分给第二层的越多，答对的越多：留 10% 时，从几乎全错，到十题对将近九题**。
#
# 为什么？在一篇文本里看两种词：前面紧挨着人名的城市，以及后来提问里的人名。

# %% key="circuit"
whole = torch.from_numpy(document.tokens)[None]
model.set_attn_implementation("eager")
with torch.no_grad():
    looks = [each[0] for each in model(whole, output_attentions=True).attentions]
model.set_attn_implementation("sdpa")
names = torch.from_numpy(document.positions)
cities = torch.tensor([question.source for question in document.questions])
for layer, each in enumerate(looks):
    for what, queries, keys in (("city", cities, cities - 1), ("question", names, cities)):
        shares = each[:, queries, keys].mean(1)
        print(t("circuit_" + what, layer=layer, shares="".join(f"{100 * float(share):>7.1f}" for share in shares)))

# %% [markdown] key="circuit_read" lang="en"
# In the first layer a head of the city looks at the word before it, the name. So in the second layer the city's key carries that name, and there the question finds it. (It has a name of its own, an **induction head**, [Olsson et al., 2022](https://arxiv.org/abs/2209.11895).) When the question comes, the first layer is asked about the city no more: it needs its window and little else.
#
# A dozen lines, then, and better than all policies of [lesson 14](14_what_to_forget.ipynb). Three remarks belong to it:
#
# - The share was chosen by looking at this model's answers to these texts. Choose on some texts, judge on others, and choose again for another model.
# - Watch the ordinary words too: at 25 % they gain by it, at 10 % they pay.
# - Layers that keep different numbers need a block table each.
#
# The package does without such looking. `Echo` takes the query that the model made of each word, asks it again as if the word came up later, and scores the token that stood behind it by whether it would be found. These are probabilities, alike in all layers; so one pass over a few *other* texts also says in which layers the best of them lie, and `Fitted` shares out the budget by that:
# %% [markdown] key="circuit_read" lang="zh" src="5e95af49"
# 在第一层，城市的一个头看的是它前面的词，也就是人名。所以到了第二层，城市的 key 里已经带着那个人名，提问就在那里找到它。（这种配合有自己的名字：**归纳头**，induction head，[Olsson 等，2022](https://arxiv.org/abs/2209.11895)。）问题来的时候，第一层不会再被问到那个城市：它需要自己的窗口，此外几乎什么也不要。
#
# 也就是说，十来行代码，就胜过[第 14 课](14_what_to_forget.ipynb)里所有的策略。不过有三点要说明：
#
# - 这个分法是看着这个模型对这些文本的回答挑出来的。应当在一些文本上挑，在另一些文本上评；换了模型，重新再挑。
# - 普通的词也要看：留 25% 时沾了光，留 10% 时付了代价。
# - 各层留的个数不同，就得每层一张块表。
#
# 本包有不用这样去看的办法。`Echo` 拿模型为每个词做的 query，当作这个词后来又出现了，再问一遍；紧跟在它后面的 token 会不会被找到，就是那个 token 的得分。这些都是概率，在各层是同一种量；所以只要在几篇**别的**文本上算一遍，就知道得分最高的都在哪些层，`Fitted` 就照此分配预算：

# %% key="found" tags="hardware"
from minikv.course.lessons.l14.recall_table import recall_lines
from minikv.eviction import Echo
from minikv.eviction.study.curves import Fitted, curve

found = {"keydiff": KeyDiff(), "echo": Echo(), "echo, fitted": Fitted(Echo(), by=Echo())}
settings = [Setting(kept=share) for share in (0.25, 0.1)]
print(t("found_head"))
print("\n".join(recall_lines(list(curve(model, found, settings, count=20, scope="head")), perplexity=True)))

# %% [markdown] key="found_read" lang="en"
# Nobody has told `Echo` where facts are, and nobody has shown it an answer. Fitted, it answers more than the half-and-half KeyDiff at both shares, and at 10 % it pays with the ordinary words as well. And what it knows is how *this* model recalls, one token after another; in a model that recalls otherwise it may be worth nothing.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="found_read" lang="zh" src="0ef258cd"
# 没有谁告诉 `Echo` 事实在哪里，也没有谁给它看过答案。按层分好预算之后，两种比例下都比平分的 KeyDiff 答对得多，只是留 10% 时，它同样在普通的词上付了代价。而且它所知道的，是**这个**模型怎样回忆：一个 token 接着一个 token。换一个回忆方式不同的模型，也许一文不值。
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
# 1. `score`：自己写一种策略，要明显强过随便留。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | wrong answers soon after the first eviction | `cache.get_seq_length()` before and after a step: it has to count the text; if it stands still, every new token has the same position |
# %% [markdown] key="stuck" lang="zh" src="67f3ef6c"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 第一次淘汰之后不久就开始答错 | 一步前后的 `cache.get_seq_length()`：它要数的是文本；如果停住不动，每个新 token 的位置就都一样 |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# All of this had K and V in every head. A model with latents has one row a token, for all heads together: nothing to choose for each head, and scores that have to be asked for differently.
# [Lesson 15](15_eviction_on_mla.ipynb) evicts there, in a paged cache whose blocks really go back.
# %% [markdown] key="next" lang="zh" src="dddf890f"
# ## 下一课
#
# 到这里，每个头都有自己的 K 和 V。用潜在向量的模型，一个 token 只有一行，所有头共用：没有“各头各选”这回事，得分也得换个办法去取。
# [第 15 课](15_eviction_on_mla.ipynb)就在那里淘汰，用的是块真能归还的分页缓存。
