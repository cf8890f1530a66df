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
# H2O ([2023](https://arxiv.org/abs/2306.14048)) promises much: keep a fifth of the tokens, the **heavy hitters**, and throughput rises up to 29 times. In December of that year somebody runs the code that was published with it:
#
# > I have the problem h2o is slower than the full and the memory footprint is not reduced compared with full, I am confused about it.
#
# ([H2O #12](https://github.com/FMInference/H2O/issues/12). Four more people join in: "same here", "second that", "same", "same". [#6](https://github.com/FMInference/H2O/issues/6) had asked it in Chinese six weeks before.)
# **How can a cache that forgets four fifths of its tokens be as large as before?**
#
# In vLLM the request stands open since June 2024 ([#5751](https://github.com/vllm-project/vllm/issues/5751)). Somebody who tries to build it writes in the [forum](https://discuss.vllm.ai/t/sparse-attention-e-g-h2o/2745) (found through [keys_values #133](https://github.com/awslabs/keys_values/pull/133)):
#
# > One issue I am running into is that a page (or block) needs to extend over all heads of a model. In H2O or other sparse attention methods, KV vectors can be in the cache for some heads, but not for others.
#
# **Does a head that forgets give a block back?**
#
# Both are questions about bytes. The third one hardly anybody asks aloud: **what stood in the tokens that went?**
# By the end of this lesson you can answer all three, the first two in bytes and blocks, the third in answers that a model no longer gives.
# %% [markdown] key="question" lang="zh" src="1f522ee7"
# ## 问题
#
# H2O（[2023](https://arxiv.org/abs/2306.14048)）许诺得很多：只留五分之一的 token，即**重要 token**（heavy hitter），吞吐量最多能提高到 29 倍。四个月后，就有人在它的代码仓库里用中文发问：
#
# > 测试一下单prompt推理时间，同样的5000tokens长度生成下，为啥H20的生成时间比full cache长，同时推理GPU显存占用多于full cache呢？
#
# （[H2O #6](https://github.com/FMInference/H2O/issues/6)，2023 年 10 月。12 月的 [#12](https://github.com/FMInference/H2O/issues/12) 用英文又问了一遍：比完整缓存慢，显存也没有少。后面四个人跟着说：我也是。）
# **缓存忘掉了五分之四的 token，怎么会还和原来一样大**？
#
# 在 vLLM 里，同样的请求从 2024 年 6 月挂到现在（[#5751](https://github.com/vllm-project/vllm/issues/5751)）。有人动手去做，在[论坛](https://discuss.vllm.ai/t/sparse-attention-e-g-h2o/2745)上写道（由 [keys_values #133](https://github.com/awslabs/keys_values/pull/133) 引出）：
#
# > One issue I am running into is that a page (or block) needs to extend over all heads of a model. In H2O or other sparse attention methods, KV vectors can be in the cache for some heads, but not for others.
#
# （意思是：一个块必须横跨模型的所有头；而按 H2O 这类方法，一个 token 的 KV 可能有的头还留着，有的头已经不要了。）
# **一个头忘掉了 token，能归还一个块吗**？
#
# 这两个问题问的都是字节。还有第三个，几乎没有人说出口：**走掉的 token 里写着什么**？
# 学完本课，三个问题你都能回答：前两个用字节和块来答，第三个用模型再也答不出的题来答。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# A layer that evicts keeps three kinds of tokens: the first few of the text (the **sinks**), the last few (the **recent window**), and of those in between the ones with the highest score (the **heavy hitters**). It need not do so after every step: with `evict_every` it lets some more come in, and cleans up less often.
# %% [markdown] key="predict_first" lang="zh" src="92a25895"
# ## 先猜一猜
#
# 会**淘汰**（eviction）的层留三种 token：文本最前面的几个（**注意力汇点**，sink），最后面的几个（**近期窗口**），以及两者之间得分最高的（**重要 token**）。不必每一步都淘汰：有了 `evict_every`，可以先多放进几个，隔几步再清理一次。

# %% key="predict_peak"
predict("peak", ...)

# %% [markdown] key="formula" lang="en"
# ## How much stays
# %% [markdown] key="formula" lang="zh" src="93434142"
# ## 留多少

# %% [markdown] key="formula_math"
# $$C \;=\; n_\text{sink} + b + n_\text{recent} \qquad\qquad P \;=\; C + e - 1$$

# %% [markdown] key="symbols" lang="en"
# | symbol | meaning | unit |
# |---|---|---|
# | $n_\text{sink}$ | the first tokens of the text, which stay | tokens |
# | $b$ | the budget: heavy hitters, and nothing else | tokens |
# | $n_\text{recent}$ | the last tokens, which stay | tokens |
# | $C$ | the capacity of a layer | tokens |
# | $e$ | `evict_every` | steps |
# | $P$ | the most that a layer holds between two steps | tokens |
#
# Inside a forward there is one more, the step's own token. And before the first eviction there is the whole prompt, unless it comes in chunks. (Exercise 14.1 counts both.)
#
# How much that is worth, in bytes:
# %% [markdown] key="symbols" lang="zh" src="5583f0e1"
# | 符号 | 含义 | 单位 |
# |---|---|---|
# | $n_\text{sink}$ | 文本最前面、一直留着的 token | token |
# | $b$ | 预算：只算重要 token | token |
# | $n_\text{recent}$ | 最后面、一直留着的 token | token |
# | $C$ | 一层的容量 | token |
# | $e$ | `evict_every` | 步 |
# | $P$ | 一层在两步之间最多有多少 | token |
#
# 前向计算当中还要多一个，就是这一步自己的 token。第一次淘汰之前则是整个提示词，除非分段来。（练习 14.1 两样都要算。）
#
# 这值多少字节：

# %% key="budget"
from minikv.eviction import Budget
from minikv.plan import CacheSpec
from minikv.units import GIB

length = 131_072
spec = CacheSpec.from_config("Llama-3.1-8B", kv_dtype="bf16")
print(t("bytes_full", gib=spec.bytes_for(length) / GIB, tokens=length))
for budget in (65_020, 32_252, 12_591):
    kept = Budget(n_sink=4, budget=budget, n_recent=512, evict_every=16)
    gib = kept.peak_resident * spec.slope() / GIB
    print(t("bytes_kept", capacity=kept.capacity, peak=kept.peak_resident, gib=gib, share=kept.capacity / length))

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

# %% key="shares"
import torch

from minikv.models import load, recall_documents
from minikv.models.recall import FIRST_FILLER, FIRST_NAME

torch.set_num_threads(1)
model = load("tiny-gqa", device="cpu").model
[document] = recall_documents(1, seed=1)
context = torch.from_numpy(document.tokens[:193])[None]
model.set_attn_implementation("eager")
with torch.no_grad():
    probs = [each[0] for each in model(context, output_attentions=True).attentions]
model.set_attn_implementation("sdpa")

is_fact = (context[0] >= FIRST_NAME) & (context[0] < FIRST_FILLER)
print(t("shares_head", facts=int(is_fact.sum())))
for layer, each in enumerate(probs):
    for head, mass in enumerate(each.sum(1).view(2, 2, -1).sum(1)):
        middle = mass[4:-12].sort(descending=True)
        parts = (mass[:4].sum(), mass[-12:].sum(), middle.values[:32].sum())
        cells = "".join(f"{100 * float(part / mass.sum()):>12.1f}" for part in parts)
        facts = int(is_fact[4:-12][middle.indices[:32]].sum())
        words = [document.words[4 + int(place)] for place in middle.indices[:5]]
        print(f"{layer:>5} {head:>4}{cells}{facts:>12}  ", " ".join(words))

# %% [markdown] key="shares_read" lang="en"
# (4 sinks, 32 heavy hitters and the last 12 make 48: a quarter of the text.)
#
# Look at the heavy hitters. They are ordinary words above all: a quarter of the text are names and cities, of these 32 less than a fifth, in the second layer none. Up to here the text only needed its next word guessed, and for that the model looks back at ordinary words. Nobody has asked for a fact yet.
#
# The first tokens get more than their share; 4 of 193 would be 2 %. In large models the first one alone may take a large part of all attention: softmax has to give away 1, and a head that looks for nothing leaves it there. That is what **sink** means ([StreamingLLM](https://arxiv.org/abs/2309.17453)). How much of one a model has can be measured; this one has little.
#
# The same, token by token, on a shorter text. The further along the scale a cell's shade, the higher its token's score: with H2O, the attention that it has got so far. What is hatched has been evicted. Choose a layer and a head, let the steps run, and change what is kept. The text ends with five questions. With H2O and a quarter kept none of them is answered; find a policy that answers all five.
# %% [markdown] key="shares_read" lang="zh" src="51741197"
# （4 个 sink、32 个重要 token 和最后 12 个，一共 48 个：文本的四分之一。）
#
# 看看这些重要 token：多半是普通的词。人名和城市占全文的四分之一，在这 32 个里却不到五分之一，第二层里一个也没有。到这里为止，文本要做的只是猜下一个词，为此模型回头看的正是普通的词。还没有谁来问过事实。
#
# 最前面的几个 token 得到的比平均多：193 个里的 4 个，平均只该有 2%。在大模型里，光是第一个 token 就可能占去很大一部分注意力：softmax 总要分出去 1，一个头没有什么可找的时候，就放在它身上。**汇点**（sink）就是这个意思（[StreamingLLM](https://arxiv.org/abs/2309.17453)）。一个模型有多少汇点，量得出来；这个模型没有多少。
#
# 同样的事，换一篇短一些的文本，逐个 token 来看。格子的颜色在色阶上越靠后，这个 token 的得分越高；对 H2O 来说，就是到目前为止得到的注意力。画斜线的已经被淘汰。选一层、一个头，让步子走起来，再改一改留多少。文本末尾有五个问题。用 H2O 留四分之一，一个也答不出；找一种五个都答得出的策略。

# %% key="heat_map"
from minikv.course.widgets import HeatMapWidget

show(HeatMapWidget(t("lang"), model=model))

# %% [markdown] key="score" lang="en"
# ## The score
# %% [markdown] key="score" lang="zh" src="76f295f7"
# ## 得分

# %% [markdown] key="score_math"
# $$s_{h,i} \;=\; \sum_{t \,\ge\, i} \;\; \sum_{g \,\in\, G(h)} p_{g,t,i} \qquad\qquad \sum_i s_{h,i} \;=\; \lvert G \rvert \cdot T$$

# %% [markdown] key="score_symbols" lang="en"
# | symbol | meaning | unit |
# |---|---|---|
# | $p_{g,t,i}$ | what query $t$ of query head $g$ gives to token $i$: a row that sums to 1 | |
# | $G(h)$ | the query heads that read KV head $h$: neighbours, $\lvert G \rvert$ of them | |
# | $T$ | queries so far | |
# | $s_{h,i}$ | the score of token $i$ in KV head $h$: a **column sum** | |
#
# A KV head has one row of K for all query heads of its group. It can go or stay only for all of them, so their opinions have to become one: H2O adds them up. (Whoever caches K after `repeat_kv` pays for $\lvert G \rvert$ copies.)
# The second formula is the check: no attention may get lost on the way.
# %% [markdown] key="score_symbols" lang="zh" src="8e327af2"
# | 符号 | 含义 | 单位 |
# |---|---|---|
# | $p_{g,t,i}$ | query 头 $g$ 的第 $t$ 个 query 分给 token $i$ 多少：一行加起来是 1 | |
# | $G(h)$ | 读 KV 头 $h$ 的那些 query 头：相邻的 $\lvert G \rvert$ 个 | |
# | $T$ | 到目前为止的 query 数 | |
# | $s_{h,i}$ | token $i$ 在 KV 头 $h$ 里的得分：一个**列和** | |
#
# 一个 KV 头只有一份 K，给一组里所有的 query 头用。要走要留，对整组都一样，所以几个头的意见必须合成一个：H2O 的做法是相加。（如果在 `repeat_kv` 之后再缓存，就要付 $\lvert G \rvert$ 份的钱。）
# 第二个公式用来核对：注意力一点也不能在半路丢掉。

# %% key="predict_mass"
predict("group_mass", ...)

# %% key="scores_real"
for layer, each in enumerate(probs):
    for head, mass in enumerate(each.sum(1).view(2, 2, -1).sum(1)):
        print(t("mass_line", layer=layer, head=head, mass=float(mass.sum()), queries=each.shape[1]))

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

# %% key="early_table" tags="hardware"
tokens = context.shape[1]
uniform = torch.ones(tokens, tokens).tril()
uniform = (uniform / uniform.sum(-1, keepdim=True))[None]
places = (0, 4, 24, 48, 96, 144, 192)
print(t("early_head") + "".join(f"{place:>9}" for place in places))
for name, each in (("uniform", uniform), ("layer_0", probs[0]), ("layer_1", probs[1])):
    queries = torch.arange(tokens, 0, -1)
    reduced = {"sum": each.sum((0, 1)), "mean": each.sum((0, 1)) / queries, "max": each.amax((0, 1))}
    for reduce, score in reduced.items():
        near = [float(score[max(0, place - 8) : place + 9].mean()) if place > 4 else float(score[place]) for place in places]
        print(f"{t('early_' + name)}{reduce:<5}" + "".join(f"{value:>9.3f}" for value in near))

# %% [markdown] key="early_read" lang="en"
# A token that has been there from the beginning was seen by every query, the one in the middle by half of them; and the early queries had few others to look at. **A sum measures age as well as use.** In the real scores (sums over the four query heads, averaged over 17 neighbours) this slope is added to whatever the heads are interested in.
#
# Other ways to make one number of many glances have other faults. The **mean** over the queries that could see a token takes away the first cause and not the second, and the newest tokens, seen by hardly anybody but themselves, come out on top. The **maximum** remembers one glance for ever; and the first query of a text looked at the first token with all it had, since there was no other. (H2O itself adds up. `H2O(reduce=...)` has all of them, and a decay.)
#
# And with a sum, the newest token has next to nothing, so it is the first to go. In August 2026 somebody finds this in an implementation of H2O ([VeloxQuant-MLX #141](https://github.com/rajveer43/VeloxQuant-MLX/pull/141)):
#
# > Confirmed on real models (Llama-3.2-1B, Mistral-7B): after 43 decode steps, the kept set was still exactly the original 14-token prompt.
#
# The same here: 48 places, a prompt of 48 tokens, and 145 more, one after the other. (A window of 1 is the newest token itself, for one step.)
# %% [markdown] key="early_read" lang="zh" src="43458855"
# 从一开始就在的 token，每个 query 都看得到；在中间的，只有一半 query 看得到；而最早的几个 query，也没有多少别的可看。**求和，量的既是用处，也是资历**。真实的得分（四个 query 头之和，再对相邻 17 个 token 取平均），是这条斜坡再加上各个头真正关心的东西。
#
# 把许多次“看”变成一个数，别的办法各有各的毛病。对看得到它的 query 求**平均**，去掉的是前一个原因，后一个还在；而最新的 token 几乎只有自己看过自己，反倒排到了最前面。取**最大值**，看过一眼就永远记着；而文本的第一个 query 是全心全意看第一个 token 的，因为没有别的可看。（H2O 原本是求和。`H2O(reduce=...)` 这几种都有，还有衰减。）
#
# 用求和的话，最新的 token 几乎没有得分，所以第一个就走。2026 年 8 月，有人在一份 H2O 的实现里发现了这一点（[VeloxQuant-MLX #141](https://github.com/rajveer43/VeloxQuant-MLX/pull/141)）：
#
# > Confirmed on real models (Llama-3.2-1B, Mistral-7B): after 43 decode steps, the kept set was still exactly the original 14-token prompt.
#
# （在真实模型上确认：解码 43 步之后，留下的仍然正好是最初的 14 个提示词 token。）
# 这里再来一遍：48 个位置，48 个 token 的提示词，然后一个接一个再来 145 个。（窗口为 1，就是最新的 token 自己，只留一步。）

# %% key="freeze"
from minikv.eviction import H2O
from minikv.eviction.study.trace import trace_eviction

text = document.tokens[:193]
for n_recent in (1, 12):
    trace = trace_eviction(
        model, text, prompt=48, policy=H2O("sum"), n_sink=4, budget=44 - n_recent, n_recent=n_recent, scope="head"
    )
    for step in (1, 43, trace.steps - 1):
        kept = trace.kept[:, :, step]
        from_prompt = kept[..., :48].sum(-1).mean()
        print(t("freeze_line", n_recent=n_recent, step=step, from_prompt=from_prompt, kept=trace.capacity[0]))

# %% [markdown] key="freeze_read" lang="en"
# Without a window the kept set all but stands still, at the beginning of the text: of the last hundred tokens hardly one got in. That is why a layer protects its last tokens, whatever they score. It is not the whole cure: with a window of 12 most heavy hitters are still the oldest tokens.
# (Exercise 14.3 is the choice, with sinks, window, ties and padding.)
#
# ## Honest curves
#
# Now the answers. The context of 193 tokens is read, every layer is cut down to a share of it, and only then the questions come: 16 a text, about facts that nobody has pointed at. That is the case that counts in a chat, where the next question is not known.
# `kept` counts everything that stays: sinks, heavy hitters, window. Before you run the cell: which policy will be the best, and which the last?
# %% [markdown] key="freeze_read" lang="zh" src="b3c811ed"
# 没有窗口，留下的集合就几乎停在文本开头不动了：后来的一百个 token，留得下来的还不到一个。所以每一层都要保护最后的几个 token，不管得分多少。光靠它还不够：窗口为 12 时，重要 token 大多仍是最老的那些。
# （练习 14.3 就是怎么选：sink、窗口、得分相同、填充。）
#
# ## 老实的曲线
#
# 现在来看回答。先读 193 个 token 的上下文，再把每一层减到原来的一部分，然后问题才来：每篇 16 个，问的是事先没有谁提示过的事实。对话里要紧的就是这种情形：下一个问题是什么，谁也不知道。
# `kept`（留下）把 sink、重要 token、窗口全都算上。运行之前先想一想：哪种策略最好，哪种最差？

# %% key="curves" tags="hardware"
from minikv.course.lessons.l14.recall_table import recall_lines
from minikv.eviction import TOVA, KeyDiff, Knorm, Random, SnapKV, StreamingLLM
from minikv.eviction.study.curves import Setting, curve

policies = {
    "random": Random(),
    "streaming": StreamingLLM(),
    "h2o sum": H2O("sum"),
    "h2o max": H2O("max"),
    "snapkv": SnapKV(),
    "tova": TOVA(),
    "knorm": Knorm(),
    "keydiff": KeyDiff(),
}
shares = (0.5, 0.25, 0.1)
points = list(curve(model, policies, [Setting(kept=share) for share in shares], count=20, scope="head"))
print(t("curves_head", asked=points[0].score.asked))
print("\n".join(recall_lines(points)))

# %% key="curves_plot" tags="hardware"
import plotly.graph_objects as go

figure = go.Figure()
dashes = ("dot", "dash", "solid", "dashdot", "longdash", "longdashdot", "solid", "solid")
for symbol, (name, dash) in enumerate(zip(policies, dashes)):
    mine = [points[0], *(point for point in points if point.policy == name)]
    share = [100 * point.score.share for point in mine]
    up = [100 * point.score.interval[1] - y for point, y in zip(mine, share)]
    down = [y - 100 * point.score.interval[0] for point, y in zip(mine, share)]
    figure.add_scatter(
        x=[100 * point.setting.kept for point in mine], y=share, name=name, mode="lines+markers",
        line={"dash": dash}, marker={"symbol": symbol, "size": 8}, error_y={"type": "data", "array": up, "arrayminus": down, "thickness": 1},
    )
figure.update_xaxes(title=t("curves_x"), autorange="reversed")
figure.update_yaxes(title=t("curves_y"), range=[0, 104])
figure.update_layout(height=400, margin={"t": 20, "r": 20})
show(figure, text="\n".join(recall_lines(points)), caption=t("curves_caption"))

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

# %% key="perplexity" tags="hardware"
print(t("perplexity_head"))
for point in points:
    if point.policy in ("full cache", "random", "streaming", "h2o sum", "keydiff"):
        cells = dict(kept=100 * point.setting.kept, recall=100 * point.score.share, ppl=point.score.perplexity)
        print(t("perplexity_line", policy=point.policy, **cells))

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

# %% key="seen" tags="hardware"
settings = [Setting(kept=share, seen=True) for share in shares]
asking = {name: policies[name] for name in ("random", "h2o sum", "h2o max", "snapkv", "tova", "keydiff")}
seen = list(curve(model, asking, settings, count=40, scope="head"))
print(t("curves_head", asked=seen[0].score.asked))
print("\n".join(recall_lines(seen)))

# %% [markdown] key="seen_read" lang="en"
# Now the **maximum** answers everything, even at 10 %: one query has looked straight at the answer, and one glance is enough. The **sum** has the same glance in it: where half of the tokens stay that does, below it is lost among all the others. SnapKV averages 16 queries and blurs over five neighbours, too much for 10 %; TOVA asks the very last query only, and that is the mark of the next question here, not the name.
#
# So a figure for an eviction policy means nothing without one word: had it *seen* the question? In most benchmarks the question stands at the end of the prompt. A widely used collection of these policies for a time looked at the last queries only, in what it called H2O; its author agreed that this is not the standard H2O, and added that it hardly changed their results ([KVCache-Factory #24](https://github.com/Zefan-Cai/KVCache-Factory/issues/24)). Here these are two different policies.
#
# ## One head, or all of them
#
# `scope="head"`: every KV head keeps its own tokens, as above. `scope="layer"`: the heads of a layer agree on one list, by the mean of their scores. Which is better, and what does it cost?
# %% [markdown] key="seen_read" lang="zh" src="76de4257"
# 这一次，**最大值**全都答对，留 10% 也一样：有一个 query 直直地看着答案，一眼就够。**求和**里也有这一眼：留一半时还够用，再少就淹没在别的里面了。SnapKV 对 16 个 query 求平均，还在五个相邻 token 上抹开，到 10% 就不行了；TOVA 只问最后一个 query，而在这里，那是下一个问题的问号，不是人名。
#
# 所以一种淘汰策略的成绩，少了一个词就没有意义：它**看到**问题了吗？大多数评测把问题放在提示词的末尾。有一个常用的策略合集，曾有一段时间，所谓的 H2O 只看最后几个 query；作者承认这与标准的 H2O 不一致，又说对结果影响很小（[KVCache-Factory #24](https://github.com/Zefan-Cai/KVCache-Factory/issues/24)）。而在这里，这是两种不同的策略。
#
# ## 一个头，还是所有头
#
# `scope="head"`：每个 KV 头各留各的，前面都是这样。`scope="layer"`：一层的各个头按得分的平均，商定一份名单。哪个更好？各要花什么代价？

# %% key="scopes" tags="hardware"
print(t("scopes_head"))
for scope in ("head", "layer"):
    few = {name: policies[name] for name in ("random", "h2o sum", "h2o max", "keydiff")}
    for point in curve(model, few, [Setting(kept=0.25)], count=20, scope=scope):
        low, high = (100 * bound for bound in point.score.interval)
        print(t("scope_line", scope=scope, policy=point.policy, recall=100 * point.score.share, low=low, high=high))

# %% [markdown] key="scopes_read" lang="en"
# With two lists `random` has two chances to keep a fact, and loses many of its answers with one. KeyDiff loses none: its heads agree on what is unlike the rest. How much separate lists are worth depends on the policy, and no curve here says that they are always better.
#
# What they cost is certain. The question from the forum: does a head that forgets give a block back? A text in blocks of 16; which blocks does nobody need any more, if all tokens stay where they are?
# %% [markdown] key="scopes_read" lang="zh" src="a7096a32"
# 有两份名单，`random` 就有两次机会留住一条事实；只有一份，就少答对许多。KeyDiff 一题也不少：哪些与众不同，它的各个头意见一致。分开列名单值多少，要看策略；这里没有哪条曲线说它总是更好。
#
# 要付的代价却是确定的。论坛上的问题：一个头忘掉了 token，能归还一个块吗？一篇文本放在块大小为 16 的块里；如果所有 token 都留在原位，哪些块再也没有谁用？

# %% key="table_in_place"
sizes = dict(n_sink=4, budget=32, n_recent=12)
for name in ("h2o sum", "h2o max", "keydiff"):
    trace = trace_eviction(model, text, prompt=193, policy=policies[name], scope="head", **sizes)
    for layer in range(2):
        kept = torch.nn.functional.pad(torch.from_numpy(trace.kept[layer, :, 0]), (0, 15)).view(2, 13, 16)
        alone, together = kept.any(2).sum(1).tolist(), int(kept.any(2).any(0).sum())
        print(t("table_line", policy=name, layer=layer, alone=alone, together=together, blocks=13))

# %% key="predict_blocks"
predict("blocks_left", ...)

# %% key="table_moved"
from minikv.blocks import BlockManager

manager = BlockManager(num_blocks=32, block_size=16)
manager.allocate("S", range(193))
manager.commit("S")
before, others = len(manager.block_table("S")), manager.match([*range(193), 0]).num_tokens
moved = manager.compact("S", 48)
found = manager.match([*range(193), 0]).num_tokens
print(t("moved_line", before=before, after=len(moved.new_table), others=others, found=found))

# %% [markdown] key="table_read" lang="en"
# **In place, eviction frees next to nothing:** a block goes back only when no head keeps any of its 16 tokens. That is the forum's finding, and it is right. (The one exception above is telling: in layer 0 summed H2O keeps old tokens and the window, so the blocks between are empty.)
#
# But a slot need not hold the same token in every head. The keys are rotated already, and attention does not ask in which order they lie. So each head moves *its own* survivors to the lowest slots, and the tail goes back: 3 blocks where there were 13. That takes three things:
#
# - **the same number** of tokens in every head of a layer, and in every layer that shares the table;
# - **positions for each head**, where one list a layer would do with `scope="layer"`;
# - **no more sharing:** what another sequence reads is copied first, and nobody finds these blocks by their old digests.
#
# (A policy whose layers keep different numbers needs a table for each layer. [Lesson 15](15_eviction_on_mla.ipynb) does the moving, in a paged cache.)
#
# ## Break it
#
# ### Bytes that stay
#
# First the riddle of the beginning. A slice looks small:
# %% [markdown] key="table_read" lang="zh" src="a63bd9e5"
# **留在原位，淘汰几乎什么也归还不了**：一个块里的 16 个 token，要所有头都不留，它才空得出来。论坛上说的就是这个，说得没错。（上面唯一的例外正好说明问题：第 0 层里，求和的 H2O 留的是老 token 和窗口，中间的块就空了。）
#
# 可是同一个槽位，在各个头里不必是同一个 token。key 已经旋转过，注意力不问它们按什么次序排。所以每个头把**自己**留下的搬到最低的槽位，末尾的就能归还：原来 13 个块，现在 3 个。这要满足三条：
#
# - 一层的每个头、共用块表的每一层，留的**个数相同**；
# - **位置每个头记一份**；用 `scope="layer"` 的话，每层一份就够；
# - **不再共享**：别的序列要读的，先复制一份；也没有谁再能凭旧的摘要找到这些块。
#
# （各层留的个数不同，就得每层一张块表。[第 15 课](15_eviction_on_mla.ipynb)在分页缓存里真的去搬。）
#
# ## 弄坏它
#
# ### 放不掉的字节
#
# 先解开头的谜。切片看上去很小：

# %% key="predict_slice"
predict("slice_bytes", ...)

# %% key="break_slice"
keys = torch.zeros(1, 8, 4096, 128, dtype=torch.bfloat16)
for name, kept in (("slice", keys[:, :, -512:]), ("gather", keys[:, :, torch.arange(4096 - 512, 4096)])):
    shown = kept.numel() * kept.element_size()
    print(t("slice_line", name=name, tokens=kept.shape[2], shown=shown, held=kept.untyped_storage().nbytes()))

# %% [markdown] key="break_slice_read" lang="en"
# The slice is a view, and a view keeps all of its storage alive ([lesson 05](05_owned_and_borrowed.ipynb)). The text may be perfect, and the memory is as before. So ask the *storage*, never the shape.
#
# (What happened in that repository the thread does not say. Two more ways lead to the same symptom: to mask tokens instead of removing them; and to have attention return its weights, a matrix of queries times tokens for every head, which other implementations never store.)
#
# The package gathers. This is what its cache holds, of the text from above:
# %% [markdown] key="break_slice_read" lang="zh" src="83f8e18e"
# 切片是视图，而视图会让整块存储都活着（[第 05 课](05_owned_and_borrowed.ipynb)）。文本可能完全正确，显存却和原来一样。所以要问**存储**，不要看形状。
#
# （那个仓库里究竟发生了什么，帖子里没有说。还有两条路通向同样的现象：只把 token 遮住，没有去掉；让注意力返回权重，那是每个头一个“query 数 × token 数”的矩阵，别的实现从不把它存下来。）
#
# 本包用的是 gather。前面那篇文本，它的缓存实际占这么多：

# %% key="real_bytes"
from minikv.eviction import install_kv_eviction

with torch.no_grad():
    caches = {"full": model(context).past_key_values}
    with install_kv_eviction(model, policy="h2o", scope="head", **sizes):
        caches["evicting"] = model(context).past_key_values
for name, cache in caches.items():
    rows = [rows for layer in cache.layers for rows in (layer.keys, layer.values)]
    held = sum(each.untyped_storage().nbytes() for each in rows)
    print(t("real_line", what=t("real_" + name), tokens=rows[0].shape[2], text=cache.get_seq_length(), held=held))

# %% [markdown] key="real_bytes_read" lang="en"
# (A token takes 1,024 bytes here, so the evicting cache has 49 places for its 48 tokens: room for the next one, which then takes the place of the one that goes. Exercise 14.4 is such a step.)
#
# And what can be said of H2O? In these curves, with the question unseen, it never beats a random choice; with the question seen, its maximum is perfect. A policy is neither good nor bad, but good at something.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="real_bytes_read" lang="zh" src="651b2ea2"
# （这里一个 token 占 1,024 字节，所以淘汰的缓存留 48 个 token，却有 49 个位置：下一个 token 有地方放，然后由它接替要走的那个。练习 14.4 就是这样一步。）
#
# 那么 H2O 呢？在这些曲线里，没看到问题的时候，它从来没有胜过随便留；看到问题的时候，它的最大值全对。一种策略谈不上好坏，只能说擅长什么。
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
