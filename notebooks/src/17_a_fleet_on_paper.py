# %% [meta]
# number = "17"
# slug = "a_fleet_on_paper"
# needs = ["04", "09", "11a", "12"]
# rooms = ["simulate", "plan"]
# minutes = 75
# [title]
# en = "How many GPUs does this traffic need?"
# zh = "这些流量需要多少块 GPU？"
# [t4]
# en = "The fleets exist on paper only, and the one real run is the CPU's: a T4 changes nothing."
# zh = "这里的集群只在纸上，唯一一次真正的运行也在 CPU 上：有没有 T4 都一样。"
# [paper]
# en = "17.2, 17.4"
# zh = "17.2、17.4"

# %% [markdown] key="question" lang="en"
# ## The question
#
# In June 2023 somebody asks the developers of a serving engine:
#
# > Let's imagine i want to deploy for 10 000 users, which hardware will be necessary ?
#
# ([text-generation-inference #439](https://github.com/huggingface/text-generation-inference/issues/439))
#
# In September 2025 somebody asks the makers of a tool that tunes serving engines whether it can estimate this for other GPUs,
#
# > without actually having infrastructure
#
# and hears that it needs real infrastructure to be accurate ([llm-optimizer #17](https://github.com/bentoml/llm-optimizer/issues/17)).
#
# **How many GPUs does this traffic need? And how much of the answer can be had before a single one is rented?**
#
# Ten thousand users are no load yet. How often do they ask? How long are their prompts? How much of a prompt was there before? How long may somebody wait?
# Once that is said, the answer is one call. Here it is 5 requests a second, with prompts of some 7,000 tokens each, for a model of 70 billion parameters on pairs of H200. Before you run it: how many pairs would you rent?
# %% [markdown] key="question" lang="zh" src="ffbd2664"
# ## 问题
#
# 2023 年 6 月，有人问一个推理引擎的开发者：
#
# > Let's imagine i want to deploy for 10 000 users, which hardware will be necessary ?
#
# （[text-generation-inference #439](https://github.com/huggingface/text-generation-inference/issues/439)。意思是：假设我要给一万个用户部署，需要什么硬件？）
#
# 2025 年 9 月，又有人问一个调优工具的作者，能不能在没有实际硬件（without actually having infrastructure）的情况下估算。得到的回答是：要准，就得有真正的硬件（[llm-optimizer #17](https://github.com/bentoml/llm-optimizer/issues/17)）。
#
# **这些流量需要多少块 GPU？在租下第一块之前，答案能知道多少**？
#
# “一万个用户”还算不上负载。他们多久问一次？提示词有多长？其中有多少以前出现过？最多能让人等多久？
# 这些说清楚了，答案就是一次调用。这里是每秒 5 个请求，提示词各有 7,000 个 token 左右，模型 700 亿参数，每两块 H200 放一份。运行之前先猜一猜：要租几对？

# %% key="answer"
from functools import partial

from minikv.course.lessons.l17.traffic import BUSY
from minikv.simulate import Fleet, Target, fewest

traffic = BUSY.trace()
pairs = partial(Fleet.plan, "Llama-3.1-70B", "H200", tp=2, router="prefix", block_size=128)
found = fewest(traffic, pairs, Target(p99_ttft=2.0))
print(t("answer_line", rate=BUSY.rate, replicas=found.replicas, gpus=found.gpus, p99=found.answers.ttft.p99))

# %% [markdown] key="answer_read" lang="en"
# (A **replica** is a copy of the model with a cache and a scheduler of its own; here two GPUs share one. A **router** in front decides which replica gets a request. And **p99** is the time that 99 of 100 requests do not exceed.)
#
# No GPU was asked. `minikv.simulate` runs the scheduler of [lesson 11a](11a_continuous_batching.ipynb) and the block manager of [lesson 09](09_pages_and_blocks.ipynb), the same code that serves a notebook, and computes nothing: a step takes the time that the roofline of [lesson 04](04_the_roofline.ipynb) gives it.
#
# In this lesson you take that number apart, as far down as the assumptions that it stands on.
# By the end you can say for each of them what happens to the fleet if it is wrong. That is the point: what does harm is not a simulator that is wrong, but one that is believed.
# %% [markdown] key="answer_read" lang="zh" src="a18b6583"
# （**副本**（replica）是一份完整的模型，有自己的缓存和调度器，这里两块 GPU 合用一份。前面的**路由器**（router）决定请求交给哪个副本。**p99** 是这样一个时间：100 个请求里，有 99 个不超过它。）
#
# 没有动用任何 GPU。`minikv.simulate` 运行的是[第 11a 课](11a_continuous_batching.ipynb)的调度器和[第 09 课](09_pages_and_blocks.ipynb)的块管理器，与服务一个 notebook 的是同一份代码，只是什么也不计算：一步要花多少时间，由[第 04 课](04_the_roofline.ipynb)的 Roofline 模型给出。
#
# 本课把这个数字拆开，一直拆到它所依据的假设。
# 学完之后，每一个假设如果错了，集群会怎样，你都说得出来。这才是要点：模拟器错了并不可怕，可怕的是错了还有人相信。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# A **session** is a conversation. The prompt of each turn is everything that was said before, and a new message behind it.
# %% [markdown] key="predict_first" lang="zh" src="98d18e0c"
# ## 先猜一猜
#
# **会话**（session）就是一段对话。每一轮的提示词，都是之前说过的全部内容，后面再加上新的一句。

# %% key="predict_session"
predict("session_share", ...)

# %% [markdown] key="formula" lang="en"
# ## What somebody waits for
#
# The **time to first token** (TTFT) runs from the moment in which a request comes. First it waits until a step has it; then its prefill takes one step or more, which it shares with others:
# %% [markdown] key="formula" lang="zh" src="26ca477c"
# ## 人在等什么
#
# **首 token 延迟**（TTFT）从请求到来的那一刻算起。先排队，等到有一步轮到它；然后是预填充，占一步或几步，而且与别的请求同在这些步里：

# %% [markdown] key="formula_math"
# $$\text{TTFT} \;=\; W \;+\! \sum_{\text{steps of its prefill}} \! s \qquad\qquad s \;=\; \max\!\left( \frac{F}{e_F \cdot P},\; \frac{B}{e_B \cdot R} \right) \,+\, \frac{A}{\ell} \,+\, o$$

# %% [markdown] key="symbols" lang="en"
# | symbol | meaning | unit |
# |---|---|---|
# | $W$ | the wait in the queue | s |
# | $s$ | the time of a step | s |
# | $F$ | FLOPs of the step on each GPU: weights, attention | FLOP |
# | $P$, $R$ | FLOP rate and bandwidth of the data sheet | FLOP/s, bytes/s |
# | $B$ | bytes read: the weights once, the cache of each sequence | bytes |
# | $e_F$, $e_B$ | which share of them a step reaches | |
# | $A$, $\ell$ | bytes that the GPUs of a replica exchange, and the rate of their link | bytes, bytes/s |
# | $o$ | what every step costs, whatever is in it | s |
#
# $F$, $B$ and $A$ follow from the model, as in lessons [02](02_how_many_bytes.ipynb), [04](04_the_roofline.ipynb) and [12](12_beyond_one_gpu.ipynb). $P$ and $R$ stand on the data sheet.
# The other four nobody knows beforehand. They are **assumptions**, and so is the rate to host memory:
# %% [markdown] key="symbols" lang="zh" src="26dd1b7b"
# | 符号 | 含义 | 单位 |
# |---|---|---|
# | $W$ | 排队的时间 | 秒 |
# | $s$ | 一步的时间 | 秒 |
# | $F$ | 这一步在每块 GPU 上的 FLOP：权重、注意力 | FLOP |
# | $P$、$R$ | 规格书上的算力和带宽 | FLOP/秒、字节/秒 |
# | $B$ | 读取的字节：权重读一遍，每条序列的缓存各读一遍 | 字节 |
# | $e_F$、$e_B$ | 一步实际达到其中的几成 | |
# | $A$、$\ell$ | 一个副本的各块 GPU 之间要交换的字节，以及链路的速度 | 字节、字节/秒 |
# | $o$ | 每一步不管内容都要付出的固定开销 | 秒 |
#
# $F$、$B$、$A$ 由模型推出（[第 02 课](02_how_many_bytes.ipynb)、[第 04 课](04_the_roofline.ipynb)、[第 12 课](12_beyond_one_gpu.ipynb)），$P$ 和 $R$ 写在规格书上。
# 其余四个，事先没有人知道。它们是**假设**，与 CPU 内存之间的速度也是：

# %% key="assumptions"
from minikv.simulate import Assumptions

for line in Assumptions().explain(t("lang")):
    print("-", line)

# %% [markdown] key="clock" lang="en"
# With these, five steps of one replica, two H200 that share the model:
# %% [markdown] key="clock" lang="zh" src="1a09c974"
# 按这些假设，看一个副本（两块 H200 合用一个模型）的五种步：

# %% key="clock_code"
clock = pairs().step_time
steps = {
    "one": ([], [6000]),
    "many": ([], [6000] * 64),
    "short": ([(0, 512)], []),
    "long": ([(0, 8192)], []),
    "mixed": ([(0, 8192)], [6000] * 64),
}
print(t("clock_head"))
for name, (prefill, decode) in steps.items():
    parts = clock.parts(clock.cost.work(prefill, decode))
    ms = {key: 1e3 * seconds for key, seconds in parts._asdict().items()}
    print(t("clock_line", name=t("step_" + name), **ms, total=1e3 * parts.total))

# %% [markdown] key="clock_read" lang="en"
# A decode waits for memory: 64 sequences do not even take twice as long as one. A prefill waits for arithmetic. And a step that does both takes little longer than its prefill alone, which is why engines mix them.
# But whoever decodes gets one token from that step. A long prompt of somebody else is a stutter in everybody's answer ([lesson 11a](11a_continuous_batching.ipynb)).
#
# ## The traffic
#
# A **trace** is a list of requests: when each comes, how long its prompt and its answer are, and which beginnings are equal. No text is needed, and nobody has to give any away.
# Ours is made from a seed, with what real traffic has: conversations of several turns, each about one of forty documents, some of which come up far more often than others (`Load` calls them system prompts). It is the busiest minute of a day, since that is what a fleet is sized for.
# %% [markdown] key="clock_read" lang="zh" src="968568f9"
# 解码等的是显存：64 条序列用的时间，还不到一条的两倍。预填充等的是算力。两样都做的一步，也只比单独的预填充慢一点，所以引擎把它们混在一起。
# 不过，正在解码的每一条，这一步里只得到一个 token。别人的长提示词，会让所有人的输出都顿一下（[第 11a 课](11a_continuous_batching.ipynb)）。
#
# ## 流量
#
# **请求轨迹**（trace）是一份请求的清单：何时到来、提示词和回答各有多长、哪些开头是相同的。不需要任何文本，谁也不必交出自己的内容。
# 这里的轨迹由一个随机种子生成，真实流量有的它都有：多轮的对话，每段对话围绕四十份文档中的一份，有几份远比别的热门（`Load` 里叫作 system prompts）。取的是一天里最忙的一分钟，因为集群要按最忙的时候来定。

# %% key="trace"
lengths = sorted(request.prompt_tokens for request in traffic.requests)
rate, mean = len(traffic) / traffic.duration, traffic.output_tokens / len(traffic)
print(t("trace_rate", requests=len(traffic), seconds=traffic.duration, rate=rate))
print(t("trace_prompts", median=lengths[len(lengths) // 2], longest=lengths[-1], mean=mean))
for request in traffic.requests[:4]:
    sizes = {"prompt": request.prompt_tokens, "output": request.output_tokens}
    print(t("trace_line", at=request.arrival, **sizes, first=request.hash_ids[:2], last=request.hash_ids[-2:]))

# %% [markdown] key="trace_read" lang="en"
# (A little more came than the five a second that were ordered: chance.)
# Equal ids at the beginning mean equal text: the third number of two requests can only be equal if the first two are.
# This is the form in which [Mooncake](https://github.com/kvcache-ai/Mooncake) published an hour of real requests (FAST 2025). If you have that file, every figure of this lesson can be had for it, too:
#
#     minikv simulate conversation_trace.jsonl --hit-rate --num-blocks 10000
#
# (The package ships only traffic that it makes itself.)
#
# ## What is found again
#
# The blocks that nobody uses stay in the pool until their place is needed, and then the **least recently used** (LRU) goes first.
# How large must a pool be? One could simulate every size. Or look closer at LRU:
#
# A pool of 1,000 blocks holds the 1,000 blocks that were used last. A pool of 1,001 holds those, and one more. So a larger pool has *everything* that a smaller one has: the **stack property** ([Mattson and others, 1970](https://doi.org/10.1147/sj.92.0078)).
# Keep all blocks in a single list, the one used last in front. If a block stands at place 700, then every pool of 700 blocks or more has it, and no smaller one. One pass over the trace answers for all sizes:
# %% [markdown] key="trace_read" lang="zh" src="b747bdc0"
# （来的比定好的每秒五个略多：随机使然。）
# 开头的编号相同，就是文本相同：两个请求的第三个编号要相同，前两个必须先相同。
# [Mooncake](https://github.com/kvcache-ai/Mooncake) 公开的一小时真实请求（FAST 2025），用的就是这种格式。手头有那个文件的话，本课的每个数字都可以拿它再算一遍：
#
#     minikv simulate conversation_trace.jsonl --hit-rate --num-blocks 10000
#
# （本包只附带自己生成的流量。）
#
# ## 能找回多少
#
# 没有人用的块留在块池里，直到它的位置有别的用处；这时先走的是**最久没有用过的**（LRU）。
# 块池要多大才够？可以把每种大小都模拟一遍。也可以把 LRU 看得更仔细一些：
#
# 1,000 个块的块池，装着最近用过的 1,000 个块；1,001 个块的，装着同样这些，再多一个。所以大块池有小块池的**全部**内容：这就是**栈性质**（[Mattson 等，1970](https://doi.org/10.1147/sj.92.0078)）。
# 把所有的块排成一个列表，最近用过的在最前。如果一个块排在第 700 位，那么 700 个块以上的块池都有它，再小的都没有。把轨迹走一遍，所有的大小就都有了答案：

# %% key="capacity"
import math

import plotly.graph_objects as go

from minikv.simulate import hit_rates

sizes = [100, 150, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000, 8000, None]
rates = hit_rates(traffic, sizes)
own = pairs().blocks[0]
lines = [t("capacity_line", size=size, rate=rate) for size, rate in zip(sizes[:-1], rates)]
lines += [t("capacity_all", rate=rates[-1]), t("capacity_own", size=own)]
figure = go.Figure(go.Scatter(x=sizes[:-1], y=[100 * rate for rate in rates[:-1]], mode="lines+markers"))
figure.add_vline(x=own, line_dash="dash")
figure.add_annotation(x=math.log10(own), y=8, text=t("capacity_one"), showarrow=False, xanchor="right")
figure.add_hline(y=100 * rates[-1], line_dash="dot", annotation_text=t("capacity_none"), annotation_position="bottom left")
figure.update_xaxes(type="log", title=t("capacity_x"))
figure.update_yaxes(title=t("capacity_y"), range=[0, 100])
figure.update_layout(height=340, margin={"t": 20, "r": 20})
show(figure, text="\n".join(lines), caption=t("capacity_caption"))

# %% [markdown] key="capacity_read" lang="en"
# The dashed line is what one replica has. (Not all of it is there to be found: what running sequences hold is in use.)
#
# Not every rule has this property. Take first in, first out, which forgets the oldest block, used or not, and the classic example of twelve requests ([Belady and others, 1969](https://doi.org/10.1145/363011.363155)):
# %% [markdown] key="capacity_read" lang="zh" src="be26b05e"
# 虚线是一个副本的大小。（其中有一部分是运行中的序列占着的，不能全用来留待命中。）
#
# 并不是每种规则都有这个性质。比如先进先出（FIFO）：忘掉最早进来的块，不管后来用没用过。看那个有十二次请求的经典例子（[Belady 等，1969](https://doi.org/10.1145/363011.363155)）：

# %% key="fifo"
from minikv.course.lessons.l17.lru_hits import hits_by_age, lru_hits

requests = [[block] for block in (1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5)]
for name, rule in (("FIFO", hits_by_age), ("LRU", lru_hits)):
    print(t("fifo_line", name=name, hits=rule(requests, [3, 4, 5])))

# %% [markdown] key="fifo_read" lang="en"
# With FIFO four blocks find less than three. Where that can happen nobody can search: neither for the smallest pool nor for the smallest fleet.
# (Exercise 17.1 is the list, and the one thing that is easily counted wrong: a hit behind a hole is none.)
#
# ## Who waits
#
# Now the queue. Take the simplest there is: one replica, one prompt at a time, all equally long, and requests that come at random. Its mean wait has a formula (M/D/1: random arrivals, equal service, one server):
# %% [markdown] key="fifo_read" lang="zh" src="35a43e14"
# FIFO 用四个块，找到的反而比三个块少。会出这种事的地方，就没法查找：最小的块池查不了，最小的集群也查不了。
# （练习 17.1 就是写这个列表，还有最容易数错的一点：空缺后面的命中不算命中。）
#
# ## 谁在排队
#
# 再看队列。取最简单的情形：一个副本，一次算一个提示词，长短都一样，请求随机到来。平均排队时间有公式（M/D/1：随机到达、定长服务、一个服务者）：

# %% [markdown] key="wait_math"
# $$\rho \;=\; \lambda \cdot S \qquad\qquad W \;=\; \frac{\rho}{2\,(1 - \rho)} \cdot S$$

# %% [markdown] key="wait_symbols" lang="en"
# | symbol | meaning | unit |
# |---|---|---|
# | $\lambda$ | requests that come, on average | 1/s |
# | $S$ | what one of them takes | s |
# | $\rho$ | **utilisation**: the share of the time in which the replica is busy | |
# | $W$ | the mean wait in the queue | s |
# %% [markdown] key="wait_symbols" lang="zh" src="6b9000ae"
# | 符号 | 含义 | 单位 |
# |---|---|---|
# | $\lambda$ | 平均每秒到来的请求数 | 1/秒 |
# | $S$ | 一个请求要算多久 | 秒 |
# | $\rho$ | **利用率**：副本忙着的时间占几成 | |
# | $W$ | 平均排队时间 | 秒 |

# %% key="predict_wait"
predict("mean_wait", ...)

# %% [markdown] key="wait_run" lang="en"
# The simulator knows no formula. Here it is on the same queue, with more and more requests a second:
# %% [markdown] key="wait_run" lang="zh" src="76a11a2e"
# 模拟器并不知道什么公式。让它来跑同样的队列，每秒的请求越来越多：

# %% key="wait_code"
from minikv.course.lessons.l17.traffic import md1_wait, one_at_a_time

queues = {}
print(t("wait_head"))
for utilisation in (0.5, 0.8, 0.9, 0.95):
    queues[utilisation], service = one_at_a_time(pairs(), utilisation)
    waited = queues[utilisation].answers().queued
    waits = {"mean": queues[utilisation].queued.mean(), "p50": waited.p50, "p99": waited.p99}
    print(t("wait_line", busy=utilisation, formula=md1_wait(utilisation, service), **waits))

# %% key="stick"
shares = [percent / 100 for percent in range(98)]
waits = [md1_wait(share, service) for share in shares]
figure = go.Figure(go.Scatter(x=[100 * share for share in shares], y=waits, name=t("stick_formula")))
seen = [outcome.queued.mean() for outcome in queues.values()]
figure.add_scatter(x=[100 * busy for busy in queues], y=seen, mode="markers", name=t("stick_simulated"), marker_size=9)
figure.update_xaxes(title=t("stick_x"))
figure.update_yaxes(title=t("stick_y"))
figure.update_layout(height=320, margin={"t": 20, "r": 20})
times = md1_wait(0.95, service) / md1_wait(0.5, service)
show(figure, text=t("stick_text", times=times), caption=t("stick_caption"))

# %% [markdown] key="wait_read" lang="en"
# From half busy to 95 % the load does not even double, and the wait is many times as long. The curve looks like a hockey stick lying on its back; all of sizing is about staying left of its bend.
# (The last line is the least certain one: a long queue takes long to come and go, and a few thousand requests see only some of them.)
#
# And look at p99. The mean is nobody's experience: half of the requests wait less than that, and one in a hundred waits several times as long.
#
# ### How many are there
#
# One law holds for every queue, whatever comes and however it is served ([Little, 1961](https://doi.org/10.1287/opre.9.3.383)): *the mean number in the system is the rate times the mean time that each spends there.*
# A simulation that loses a request, or counts a second twice, breaks it.
# %% [markdown] key="wait_read" lang="zh" src="9df5e38e"
# 从半忙到 95%，负载还不到两倍，等待却长了许多倍。这条曲线像一根平放的曲棍球杆；容量规划的全部功夫，就是留在弯折处的左边。
# （最后一行最不可靠：队列长了，形成和消散都慢，几千个请求只赶得上几次。）
#
# 再看 p99。平均值不是任何人的真实体验：一半的请求等得比它短，而每一百个里有一个，要等它的好几倍。
#
# ### 里面有多少个
#
# 有一条定律对任何队列都成立，不管来的是什么、怎么服务（[Little，1961](https://doi.org/10.1287/opre.9.3.383)）：**系统里的平均个数，等于到达率乘以每个请求停留的平均时间**。
# 模拟如果丢了一个请求，或者把一秒数了两遍，就会违反它。

# %% key="predict_little"
predict("in_system", ...)

# %% key="little"
for utilisation, outcome in queues.items():
    law = outcome.answers().littles_law
    product = law.rate * law.time
    print(t("little_line", busy=utilisation, seen=law.in_system, rate=law.rate, time=law.time, product=product))

# %% [markdown] key="little_read" lang="en"
# ### Percentiles
#
# p99 has to be taken of all requests. The fleet's p99 is not the mean of its replicas' p99s, and a percentile of means is nothing at all. With two replicas, one of them busy:
# %% [markdown] key="little_read" lang="zh" src="413a72f2"
# ### 分位数（percentile）
#
# p99 必须对全体请求来求。整个集群的 p99 不是各副本 p99 的平均值，平均值的分位数更是什么都不是。看两个副本，其中一个很忙：

# %% key="percentiles"
import numpy as np

busy, calm = queues[0.9].ttft, queues[0.5].ttft[:800]
each = [np.percentile(times, 99) for times in (busy, calm)]
of_means = np.percentile([times.mean() for times in (busy, calm)], 99)
print(t("percentile_line", all=np.percentile([*busy, *calm], 99), mean=np.mean(each), of_means=of_means))

# %% [markdown] key="percentiles_read" lang="en"
# Such errors get published. In July 2026 the TTFT on a benchmark's dashboard *falls* as more ask at once: it was a mean, and its author replaced it by percentiles, with the wait of the queue as a figure of its own ([PR #32](https://github.com/aarora79/agentic-coding-harness-benchmarks/pull/32)). In the same month a simulator is found to leave a wait out of its TTFT, where prefill and decode have GPUs of their own: the one in front of the decode. So it reports less than a user would see ([inference-sim #1510](https://github.com/inference-sim/inference-sim/issues/1510)).
# (Exercise 17.2: TTFT with its wait, and percentiles of all.)
#
# ## Where a request goes
#
# Every replica has a cache of its own. So it matters where the next turn of a conversation goes: only one replica has the history.
# %% [markdown] key="percentiles_read" lang="zh" src="e4a76b78"
# 这样的错误会被公布出来。2026 年 7 月，一份评测的仪表盘上，同时提问的人越多，TTFT 反而**越低**：原来那是平均值；作者把它换成了分位数，并把排队时间单独列出（[PR #32](https://github.com/aarora79/agentic-coding-harness-benchmarks/pull/32)）。同一个月，有人发现一个模拟器在预填充与解码分开部署时，TTFT 漏掉了解码之前的排队，报出来的比用户看到的小（[inference-sim #1510](https://github.com/inference-sim/inference-sim/issues/1510)）。
# （练习 17.2：带排队的 TTFT，以及对全体求分位数。）
#
# ## 请求往哪里去
#
# 每个副本有自己的缓存。所以一段对话的下一轮往哪里去，很要紧：只有一个副本存着它的历史。

# %% key="routers"
from minikv.simulate import ROUTERS, simulate


def show_run(name, answers):
    tpot = 1e3 * answers.tpot.p99
    print(t("run_line", name=name, hits=answers.hit_rate, p50=answers.ttft.p50, p99=answers.ttft.p99, tpot=tpot))


print(t("run_head"))
for name in ROUTERS:
    show_run(name, simulate(traffic, pairs(router=name, replicas=3)).answers())

# %% [markdown] key="routers_read" lang="en"
# - **round-robin** takes the replicas in turn. It is fair, and blind.
# - **least-loaded** takes the one with the fewest tokens left to compute. That sounds better; for a conversation it is as blind.
# - **prefix** takes the one that has most of the prompt. But not at any price: whoever has more to do than 1.25 times the mean, and one prompt like this on top, is left out. (The bound is that of [consistent hashing with bounded loads](https://arxiv.org/abs/1608.01350).)
#
# The same six GPUs, and other answers. What is not found has to be computed, and what is computed makes others wait.
#
# In the wild: since vLLM breaks ties by rotation, "consecutive turns rotate across DP ranks — and every turn misses the prefix its previous turn left in that rank's KV cache" ([#52463](https://github.com/vllm-project/vllm/issues/52463), August 2026). And whoever proposes prefix affinity for SGLang measures p99 TTFT on real GPUs: 27.5 s with round-robin, 31.7 s by load, 6.8 s by prefix ([PR #31170](https://github.com/sgl-project/sglang/pull/31170)).
# (Exercise 17.3 is the router.)
# %% [markdown] key="routers_read" lang="zh" src="d609cac3"
# - **round-robin**：副本轮流来。很公平，也很盲目。
# - **least-loaded**：选剩下的 token 最少的。听起来好些；对一段对话来说，一样盲目。
# - **prefix**：选提示词命中最多的。但不是不惜代价：手上的活超过平均值的 1.25 倍、再加这样一个提示词的，就排除在外。（这个界限来自[负载有界的一致性哈希](https://arxiv.org/abs/1608.01350)。）
#
# GPU 是同样多的 GPU，答案却不同。没有命中的就得计算，计算的时候别人就得等。
#
# 现实中的例子：vLLM 改成用轮转来打破平局之后，一段对话相邻的两轮会落到不同的 DP rank 上，每一轮都错过上一轮留下的前缀（[#52463](https://github.com/vllm-project/vllm/issues/52463)，2026 年 8 月）。有人提议给 SGLang 加上前缀亲和，在真实的 GPU 上测了 p99 TTFT：轮流是 27.5 秒，按负载是 31.7 秒，按前缀是 6.8 秒（[PR #31170](https://github.com/sgl-project/sglang/pull/31170)）。
# （练习 17.3 就是写这个路由器。）

# %% [markdown] key="widget_read" lang="en"
# ## See it
#
# The curve shows every request, from the fastest on the left to the slowest on the right. The dashed line is the wait that p99 has to keep.
# Try this, and say before each what will change:
#
# 1. Two replicas, then three, then six. Which part of the curve falls first, and which hardly at all?
# 2. Three replicas with each router. Where does the bar change?
# 3. Twice the traffic. How many replicas do you need now: twice as many?
# 4. Two replicas of H100. Look at the bar; then give them 64 GiB of host memory. What comes back, and what does not?
# %% [markdown] key="widget_read" lang="zh" src="755adc64"
# ## 亲眼看看
#
# 曲线上是每一个请求，左边最快，右边最慢。虚线是 p99 要守住的等待时间。
# 试试下面几步，每次动手之前先说出会发生什么：
#
# 1. 两个副本，三个，再六个。曲线的哪一段先降下来，哪一段几乎不动？
# 2. 三个副本，把几种路由都试一遍。上面的条形哪里变了？
# 3. 流量加倍。现在要多少个副本：也是两倍吗？
# 4. 两个副本，GPU 换成 H100。先看条形，再给它们 64 GiB 的 CPU 内存。什么回来了，什么没有？

# %% key="widget"
from minikv.course.widgets import FleetWidget

widget = FleetWidget(t("lang"), traffic.head(250), replicas=2)
show(widget, text=widget.text())

# %% [markdown] key="memory" lang="en"
# ## Memory in two places
#
# Which of these fleets of eight GPUs would you take? Each has eight times the arithmetic of one card, and that of an H100 and an H200 is the same.
# %% [markdown] key="memory" lang="zh" src="a4fc044b"
# ## 两处内存
#
# 下面几个集群都是八块 GPU，你选哪一个？算力都是单卡的八倍，而 H100 和 H200 的算力是相同的。

# %% key="predict_host"
predict("host_tokens", ...)

# %% key="memory_code"
from minikv.units import GIB

fleets = {
    "4 x 2 H200": ("H200", 2, {}),
    "4 x 2 H100": ("H100 SXM 80GB", 2, {}),
    "   + 64 GiB": ("H100 SXM 80GB", 2, {"host_kv_bytes": 64 * GIB}),
    "   KV in fp8": ("H100 SXM 80GB", 2, {"kv_dtype": "fp8"}),
    "2 x 4 H100": ("H100 SXM 80GB", 4, {}),
}
print(t("memory_head"))
for name, (gpu, tp, options) in fleets.items():
    fleet = Fleet.plan("Llama-3.1-70B", gpu, tp=tp, replicas=8 // tp, router="prefix", block_size=128, **options)
    answers = simulate(traffic, fleet).answers()
    shares = {"hits": answers.hit_rate, "host": answers.host_hit_rate, "blocked": answers.blocked}
    print(t("memory_line", name=name, tokens=128 * fleet.blocks[0], **shares, p99=answers.ttft.p99))

# %% [markdown] key="memory_read" lang="en"
# A card with three quarters more memory, and the wait is another world. The weights take the same bytes on both; what is *left* is what counts, and two H100 have hardly anything left.
#
# - **Host memory** keeps what the GPU evicts ([lesson 12](12_beyond_one_gpu.ipynb)). Most of the prompts' tokens are found again, and p99 is nearly halved. But *blocked* does not fall: a sequence that runs needs its blocks on the GPU. A second tier gives back what was found, and no room.
# - **KV in fp8** gives room: twice the tokens ([lesson 13](13_half_the_bytes.ipynb)).
# - **Two replicas of four** instead of four of two: the weights lie there twice and not four times. The same eight cards, and the problem is gone.
#
# Before you buy GPUs, count how often the weights are there.
#
# ### The block size
#
# Larger blocks: fewer of them to look up, but the last block of each sequence is half empty, and only a full block can be shared.
# %% [markdown] key="memory_read" lang="zh" src="47da4416"
# 显存多四分之三，等待就是另一番天地。权重在两种卡上占的字节一样多；要紧的是**剩下**多少，而两块 H100 几乎不剩什么。
#
# - **CPU 内存**留住 GPU 淘汰掉的块（[第 12 课](12_beyond_one_gpu.ipynb)）。提示词的大部分又能找到了，p99 几乎减半。可是“卡住”一栏没有降：运行中的序列，块必须在 GPU 上。第二层内存还给你的是命中，不是空间。
# - **KV 用 fp8**，给的才是空间：token 多一倍（[第 13 课](13_half_the_bytes.ipynb)）。
# - **两个四卡副本**，而不是四个两卡副本：权重只放两份，不是四份。同样八块卡，问题就没有了。
#
# 买 GPU 之前，先数一数权重放了几份。
#
# ### 块大小
#
# 块越大，要查找的块就越少；但每条序列的最后一个块平均空着一半，而且只有满的块才能共用。

# %% key="sizes"
from minikv.simulate import sweep

print(t("size_head"))
for row in sweep(traffic.head(150), partial(pairs, replicas=3), block_size=[16, 128, 512, 2048]):
    answers = row.answers
    size, p99 = row.settings["block_size"], answers.ttft.p99
    print(t("size_line", size=size, waste=answers.waste, hits=answers.hit_rate, p99=p99))

# %% [markdown] key="sizes_read" lang="en"
# With prompts of thousands of tokens a block of 16 or of 128 makes no difference here, and with 128 the simulation has an eighth of the blocks to look up. With prompts of 200 tokens it would: try it with `Load(prompt_tokens=200, ...)`.
#
# ## The cheapest fleet
#
# `fewest` asks for one number of replicas after the other. Each question is a simulation of all the traffic, so it asks as few as it can, and tries the neighbours of its answer:
# %% [markdown] key="sizes_read" lang="zh" src="1b0c1133"
# 提示词有几千个 token，块大小是 16 还是 128，在这里没有差别，而用 128，模拟要查的块只有八分之一。提示词只有 200 个 token 时就不同了：用 `Load(prompt_tokens=200, ...)` 试试。
#
# ## 最便宜的集群
#
# `fewest` 一个接一个地问：这么多副本行不行？每问一次，就要把全部流量模拟一遍；所以它尽量少问，再把答案两旁的也试一下：

# %% key="cheapest"
from minikv.simulate.floor import ttft_floor


def show_fewest(name, found):
    for replicas, answers in found.tried.items():
        mark = "<-" if replicas == found.replicas else "  "
        shares = {"hits": answers.hit_rate, "blocked": answers.blocked}
        words = {"name": name, "mark": mark, "replicas": replicas, "gpus": answers.gpus}
        print(t("tried_line", p99=answers.ttft.p99, **shares, **words))


floor = np.percentile(ttft_floor(traffic, pairs()), 99)
print(t("tried_head"))
show_fewest("H200, tp=2", found)
print(t("floor_line", floor=floor))
for gpu, tp in (("H100 SXM 80GB", 4), ("B200 SXM", 1)):
    make = partial(Fleet.plan, "Llama-3.1-70B", gpu, tp=tp, router="prefix", block_size=128)
    show_fewest(f"{gpu.split()[0]}, tp={tp}", fewest(traffic, make, Target(p99_ttft=2.0)))

# %% [markdown] key="cheapest_read" lang="en"
# One B200 is a lesson in itself: the weights of 70B leave it hardly any room. So little is found again, and for much of the time somebody waits for *blocks* alone. Two more cards, and three of them do what takes six H200.
# And more replicas help less and less. The line about the floor says where that ends: a document that nobody has yet must be computed, by one replica alone, however many there are.
# (Exercise 17.4 is the search.)
#
# On the command line the same question is:
#
#     minikv simulate --synthetic 400 --rate 5 --input-len 400 --output-len 100 --spread 0.6 --turns 3 \
#         --think-seconds 20 --system-len 6144 --system-prompts 40 --hash-block 128 --seed 17 \
#         --model llama-3.1-70b --gpu H200 --tp 2 --router prefix --block-size 128 --fewest --p99-ttft 2
#
# ## Break it
#
# ### Divide
#
# In July 2026 somebody asks for a script that finds the minimal number of GPUs of a "perfect system": the rate, divided by what a replica can do, rounded up ([llm-d-autoscaling #1499](https://github.com/llm-d/llm-d-autoscaling/issues/1499), which calls it a lower bound). Let us divide:
# %% [markdown] key="cheapest_read" lang="zh" src="48c5875d"
# 单独一块 B200 就很说明问题：70B 的权重放进去，几乎不剩空间。所以命中很少，而且有很多时间，总有人在等的只是**块**。再加两块，三块卡就抵得上六块 H200。
# 而且副本越多，再加的用处越小。关于下限的那一行说明它止于何处：谁都还没有的文档总得有人计算，副本再多，也只能由其中一个来算。
# （练习 17.4 就是这种查找。）
#
# 在命令行里，同样的问题写作：
#
#     minikv simulate --synthetic 400 --rate 5 --input-len 400 --output-len 100 --spread 0.6 --turns 3 \
#         --think-seconds 20 --system-len 6144 --system-prompts 40 --hash-block 128 --seed 17 \
#         --model llama-3.1-70b --gpu H200 --tp 2 --router prefix --block-size 128 --fewest --p99-ttft 2
#
# ## 弄坏它
#
# ### 一除了之
#
# 2026 年 7 月，有人想要一个脚本，算出“完美系统”最少要几块 GPU：请求速率除以一个副本的能力，向上取整（[llm-d-autoscaling #1499](https://github.com/llm-d/llm-d-autoscaling/issues/1499)，文中说明这只是下界）。那就来除一除：

# %% key="divide"
able = clock.prefill_rate(8192)
asked = traffic.prompt_tokens / traffic.duration
for name, rate in (("nothing", 0.0), ("all", rates[-1])):
    need = asked * (1 - rate) / able
    words = {"cache": t("cache_" + name), "up": math.ceil(need)}
    print(t("divide_line", tokens=asked * (1 - rate), able=able, need=need, **words))
print(t("divide_found", replicas=found.replicas))

# %% [markdown] key="divide_read" lang="en"
# Far too many without the cache, and too few with it. The division knows no queue, no decode, and no replica that lacks what another has. It is a good first guess to begin a search with, and that is what `fewest` does with it.
#
# ### The cache at any price
#
# One document, asked about once. Three seconds later everybody asks about it. Who has it? One replica.
# %% [markdown] key="divide_read" lang="zh" src="e43897bb"
# 不算缓存，多得太多；算上缓存，又不够。除法不知道有排队，不知道有解码，也不知道一个副本缺的东西在另一个副本上。拿它作查找的起点倒是不错，`fewest` 正是这样用的。
#
# ### 不惜代价要命中
#
# 一份文档，先被问过一次。三秒之后，人人都来问它。谁有它？只有一个副本。

# %% key="hot"
from minikv.course.lessons.l17.traffic import everybody_asks
from minikv.simulate import PrefixAware

print(t("run_head"))
for bound in (1.25, 1e9):
    outcome = simulate(everybody_asks(), pairs(router=PrefixAware(bound), replicas=3))
    show_run(f"bound={bound:g}", outcome.answers())
    print(t("shares_line", counts=np.bincount(outcome.replica, minlength=3).tolist()))

# %% [markdown] key="hot_read" lang="en"
# The best hit rate, and the worst wait: two of the three replicas never get a request, so they never get the document either.
# That is no textbook case. In August 2026 a team reports how a router without a bound pinned sessions to an engine that was full: its hit rate fell from 98 % to 5 %, it generated at a quarter of the speed, and the other three engines ran idle ([prime-rl #3255](https://github.com/PrimeIntellect-ai/prime-rl/pull/3255)).
#
# ### The clock
#
# Now turn the assumptions, one at a time, on the fleet that the first call found:
# %% [markdown] key="hot_read" lang="zh" src="97815a02"
# 命中率最高，等待却最长：三个副本里有两个从来没有分到过请求，也就从来没有得到那份文档。
# 这不是教科书里的例子。2026 年 8 月，有团队报告：一个没有界限的路由器把会话钉在一个已经满了的引擎上，它的命中率从 98% 掉到 5%，生成速度只剩四分之一，另外三个引擎却闲着（[prime-rl #3255](https://github.com/PrimeIntellect-ai/prime-rl/pull/3255)）。
#
# ### 时钟
#
# 现在对第一次调用找到的集群，把假设一个一个地改一改：

# %% key="turn"
changes = {
    "compute_efficiency": 0.6 / 1.22,
    "bandwidth_efficiency": 0.6,
    "overhead_seconds": 0.01,
    "link_gb_s": 50.0,
}
print(t("run_head"))
show_run("Assumptions()", found.answers)
for name, value in changes.items():
    changed = pairs(replicas=found.replicas, assumptions=Assumptions(**{name: value}))
    show_run(f"{name}={value:.3g}", simulate(traffic, changed).answers())

# %% [markdown] key="turn_read" lang="en"
# In two of these cases the fleet that keeps 2 s keeps it no longer: if its arithmetic was taken for 22 % more than it is, and if its cards are joined by PCIe. Overhead and bandwidth hardly touch this TTFT; they touch the time per token.
#
# Why 22? In March 2026 the makers of a simulator set it beside sixteen runs of a real vLLM ([inference-sim #480](https://github.com/inference-sim/inference-sim/pull/480)). At moderate load throughput was right within 2.5 %. But in one group it took the capacity for 22 % larger than it was: what was really overloaded, at 124 %, seemed to be at 102 %. It promised 64 ms to first token where the real server took 120 s. And its TTFT was 17 to 56 % too short nearly everywhere, because between two steps it let no time pass ([#482](https://github.com/inference-sim/inference-sim/issues/482)).
#
# **Near the bend of the hockey stick a small error of the clock is a large one of the answer.** So do not plan there. And measure.
#
# ### One real run
#
# Here is the tiny model on this machine's CPU: some steps to measure, then 24 requests at once. `calibrate` replaces the assumptions by what the steps took; then the same 24 requests once more, on paper:
# %% [markdown] key="turn_read" lang="zh" src="d1ac67fa"
# 原来守得住 2 秒的集群，有两种情况守不住了：算力被高估了 22%，或者卡与卡之间走的是 PCIe。固定开销和带宽几乎不影响这里的 TTFT，影响的是每个 token 的时间。
#
# 为什么是 22？2026 年 3 月，一个模拟器的作者拿它与真实 vLLM 的十六次运行对照（[inference-sim #480](https://github.com/inference-sim/inference-sim/pull/480)）。负载不高时，吞吐量的误差在 2.5% 以内。但有一组，它把容量高估了 22%：实际负载是 124%，早已过载，在它看来是 102%。真实的服务器要 120 秒才出第一个 token，它许诺的是 64 毫秒。而且它的 TTFT 几乎处处短了 17% 到 56%，因为它的两步之间不花时间（[#482](https://github.com/inference-sim/inference-sim/issues/482)）。
#
# **在曲棍球杆的弯折处，时钟差一点，答案差很多**。所以不要把容量定在那里。还要去测。
#
# ### 一次真正的运行
#
# 下面是这台机器的 CPU 上的小模型：先跑几步来测量，再一次来 24 个请求。`calibrate` 用实测的步换掉假设；然后让同样的 24 个请求在纸上再来一遍：

# %% key="real" tags="timing"
import random

import torch

from minikv import LLM, SamplingParams
from minikv.engine import EventLog, summary
from minikv.simulate import StepTime, Trace, TraceRequest, calibrate, measured_steps
from minikv.memory import matmul_rate, read_bandwidth
from minikv.models import load
from minikv.plan.roofline import Roof

torch.set_num_threads(1)
tiny, draw = load("tiny-gqa", device="cpu"), random.Random(17)
asked = [(draw.randint(40, 400), draw.randint(8, 40)) for _ in range(24)]


def run_real(lengths):
    prompts = [[draw.randrange(5, 150) for _ in range(prompt)] for prompt, _ in lengths]
    params = [SamplingParams(temperature=0, max_tokens=new, ignore_eos=True) for _, new in lengths]
    log = EventLog()
    with LLM(tiny, num_blocks=600, max_num_seqs=16, max_batched_tokens=512, emit=log) as llm:
        llm.generate(prompts, params)
    return log.events


run_real(asked[:4])  # the first run of a process is slow, and says nothing
runs = [run_real(asked) for _ in range(3)]
runs.sort(key=lambda events: summary(events).seconds)  # the slowest was disturbed by something
seen = [event for n in (32, 128, 512) for event in run_real([(n, 16)])] + list(runs[0])
roof = Roof("this machine", read_bandwidth(2**26, "cpu").gb_s, matmul_rate("cpu").tflops)
guess = StepTime.of_model(tiny.model.config.to_dict(), roof)
fitted = calibrate(guess, measured_steps(seen, guess.cost))
real = summary(runs[1])
paper = Fleet(fitted.step_time, 600, 16, max_num_seqs=16, max_batched_tokens=512)
at_once = Trace("at once", tuple(TraceRequest(0.0, prompt, new) for prompt, new in asked))
ran = simulate(at_once, paper)
print(t("fitted_line", count=fitted.count, before=fitted.before, after=fitted.error))
told = ran.answers()
for name, count, found in (("real", real.steps, real), ("paper", ran.replicas[0].steps, told)):
    figures = {"p50": 1e3 * found.ttft.p50, "p99": 1e3 * found.ttft.p99, "tpot": 1e3 * found.tpot.p50}
    print(t("real_line", name=t("run_" + name), steps=count, **figures))

# %% [markdown] key="leaves_out" lang="en"
# The number of steps is the same, and not by luck: the decisions are made by the same code. Only the milliseconds are fitted, and they are as good as the measured steps are like those to come. (Where something else runs on the same machine they may be far off: then the second run was slower, or the first.)
# On real hardware it is the same: rent one replica for an hour, and replace the assumptions by what it does.
#
# What this clock leaves out, whatever the numbers: the tokenizer and the network in front; experts that are not used equally often; a GPU that is slower when hot; failures; and users, who do not come as a Poisson process does, and go away when they have waited too long.
# %% [markdown] key="leaves_out" lang="zh" src="ac38a955"
# 步数相同，这不是碰巧：做决定的是同一份代码。拟合出来的只是毫秒数；测过的步与将来的步有多像，它就有多准。（机器上还有别的程序在跑的话，可能差得很远：两次运行的快慢本来就不同。）
# 在真正的硬件上也一样：租一个副本，跑一个小时，用实测换掉假设。
#
# 不论数字怎么取，这个时钟都漏掉了这些：前面的分词器和网络；使用并不均匀的专家；发热就变慢的 GPU；故障；还有用户，他们不会像泊松过程那样到来，等得太久还会走开。

# %% [markdown] key="check" lang="en"
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="check" lang="zh" src="c2d6ea3e"
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_stack"
explain("why_one_pass")

# %% key="explain_wait"
explain("why_the_bend")

# %% key="explain_router"
explain("why_a_bound")

# %% key="explain_percentiles"
explain("why_all_requests")

# %% key="explain_clock"
explain("what_to_believe")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# The exercise notebook asks for the parts of such a planner:
#
# 1. `lru_hits`: the blocks that an LRU cache finds, at every capacity.
# 2. `ttft_percentiles`: the time to first token with its wait, p50, p90 and p99 of a fleet.
# 3. `choose`: the router, with its bound.
# 4. `fewest_replicas`: the cheapest fleet, with few questions.
# %% [markdown] key="exercises" lang="zh" src="ccf2407f"
# ## 练习
#
# 练习 notebook 要你写出这样一个规划工具的各个部分：
#
# 1. `lru_hits`：一个 LRU 缓存在每种容量下能找到多少块。
# 2. `ttft_percentiles`：带排队的首 token 延迟，求整个集群的 p50、p90、p99。
# 3. `choose`：路由器，带界限。
# 4. `fewest_replicas`：用尽量少的提问，找到最便宜的集群。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | a hit rate far below what was hoped for | `hit_rates(trace, [None])`: what is not in the trace no cache finds. If that is high, compare the routers: `sweep(trace, make, router=[...])` |
# | p99 does not fall, however many replicas | `minikv.simulate.floor.ttft_floor(trace, fleet)`: what no number of replicas can beat. Only a faster replica (a larger `tp`, another card) or shorter prompts can |
# | everybody waits, and the GPUs are not full of work | `answers.blocked`: a large share of time means that blocks are missing. `kv_dtype="fp8"`, a larger `tp`, or `minikv plan` |
# | one more replica makes p99 worse | `found.steady` is False: too few requests decide. A longer trace; p99 of 400 requests rests on four of them |
# %% [markdown] key="stuck" lang="zh" src="87e00220"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 命中率远低于预期 | `hit_rates(trace, [None])`：轨迹里没有的重复，什么缓存都找不到。如果它很高，就比较各种路由：`sweep(trace, make, router=[...])` |
# | 副本再多，p99 也不降 | `minikv.simulate.floor.ttft_floor(trace, fleet)`：副本再多也低不过它。要降，只能靠更快的副本（更大的 `tp`、别的卡），或更短的提示词 |
# | 人人都在等，GPU 却没有满负荷 | 看 `answers.blocked`：占的时间多，就是缺块。用 `kv_dtype="fp8"`、更大的 `tp`，或 `minikv plan` |
# | 多一个副本，p99 反而变差 | `found.steady` 是 False：决定结果的请求太少。换更长的轨迹；400 个请求的 p99 只取决于其中四个 |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You have planned a fleet on paper, and you know which of its numbers to check first.
# [Lesson 18](18_capstone.ipynb) is the last one: a load, a budget, and everything that you have learned, on your own machine.
# %% [markdown] key="next" lang="zh" src="41386254"
# ## 下一课
#
# 你在纸上规划了一个集群，也知道该先核对其中哪些数字。
# [第 18 课](18_capstone.ipynb)是最后一课：一份负载，一份预算，加上学过的一切，就在你自己的机器上。
