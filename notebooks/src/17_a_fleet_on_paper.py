# %% [meta]
# number = "17"
# slug = "a_fleet_on_paper"
# needs = ["04", "09", "11a", "12"]
# rooms = ["simulate", "plan"]
# [title]
# en = "How many GPUs does this traffic need?"
# zh = "这些流量需要多少块 GPU？"
# [t4]
# en = "The fleets exist on paper only. The one real run uses the T4, and its times are the T4's own."
# zh = "这里的集群只在纸上。唯一一次真正的运行用 T4，时间也是 T4 的。"
# [paper]
# en = "17.2, 17.4"
# zh = "17.2、17.4"

# %% [markdown] key="question" lang="en"
# ## The question
#
# **How many GPUs does this traffic need? And how much of the answer can you have before you rent a single one?**
#
# "Ten thousand users" is not a load yet. How often do they ask? How long are their prompts? How much of a prompt has been computed before? How long may a user wait?
# Once you have said that, you get the answer with one call. Here it is for 5 requests a second with prompts of some 7,000 tokens. The model has 70 billion parameters, and two H200 share one copy of it. Before you look: how many such pairs would you rent?
# %% [markdown] key="question" lang="zh" src="7c09dcef"
# ## 问题
#
# **这些流量需要多少块 GPU？在租下第一块之前，答案能知道多少？**
#
# “一万个用户”还算不上负载。他们多久问一次？提示词有多长，其中有多少以前出现过？最多能让用户等多久？
# 这些说清楚了，一次调用就有答案。下面是每秒 5 个请求，提示词各有 7,000 个 token 左右，模型 700 亿参数，每两块 H200 放一份。往下看之前先猜一猜，要租几对？

# %% key="answer" lang="en"
from functools import partial

from minikv.course import Table
from minikv.course.diagrams import fleet_requests
from minikv.course.lessons.l17.traffic import BUSY
from minikv.simulate import Fleet, Target, fewest, simulate

traffic = BUSY.trace()
pairs = partial(Fleet.plan, "Llama-3.1-70B", "H200", tp=2, router="prefix", block_size=128)
found = fewest(traffic, pairs, Target(p99_ttft=2.0))
show(fleet_requests(simulate(traffic, pairs(replicas=found.replicas)), "en"))

# %% key="answer" lang="zh"
from functools import partial

from minikv.course import Table
from minikv.course.diagrams import fleet_requests
from minikv.course.lessons.l17.traffic import BUSY
from minikv.simulate import Fleet, Target, fewest, simulate

traffic = BUSY.trace()
pairs = partial(Fleet.plan, "Llama-3.1-70B", "H200", tp=2, router="prefix", block_size=128)
found = fewest(traffic, pairs, Target(p99_ttft=2.0))
show(fleet_requests(simulate(traffic, pairs(replicas=found.replicas)), "zh"))

# %% [markdown] key="answer_read" lang="en"
# Each row of the picture is one of three pairs of H200. You see how many of the 400 requests it served, how much of their prompts its cache had already, the longest queue in front of it, and how busy it was. With three pairs, 99 of 100 requests have their first token within 1.78 s.
#
# After this lesson you can
#
# - **size** a fleet on paper, from a trace of requests to a number of GPUs;
# - **explain** a wait: the queue, the prefill, what the cache found, what the router did;
# - **judge** such a number: which assumption it depends on, and what to measure before you pay.
#
# Three words come up all the time. A **replica** is a copy of the model with a cache and a scheduler of its own; here it is a pair of GPUs. A **router** decides which replica gets a request. **p99** is the time that 99 of 100 requests don't exceed. We ask for a p99 of at most 2 s.
#
# The call used no GPU at all. `minikv.simulate` runs the scheduler of [lesson 11a](11a_continuous_batching.ipynb) and the block manager of [lesson 09](09_pages_and_blocks.ipynb), the same code that serves real requests. But it doesn't compute the model. A step takes the time that the roofline of [lesson 04](04_the_roofline.ipynb) gives it.
# You need these three lessons, and from [lesson 12](12_beyond_one_gpu.ipynb) how two GPUs share a model.
#
# In this lesson you take the number of pairs apart, down to the assumptions that it depends on.
# By the end you can say for each assumption what happens to the fleet if it is wrong. Every simulator is wrong somewhere. That does harm only if you don't know where.
# %% [markdown] key="answer_read" lang="zh" src="90a24d84"
# 图里每一行是三对 H200 中的一对，可以看到它服务了 400 个请求中的多少个，这些提示词有多少已经在它的缓存里，它前面的队列最长有几个，以及它有多忙。有了三对，100 个请求里有 99 个在 1.78 秒以内得到第一个 token。
#
# 学完本课，你能够：
#
# - 在纸上为一个集群**定规模**：从一份请求轨迹推到 GPU 的块数；
# - **解释**一次等待：排队、预填充、缓存命中了多少、路由器做了什么；
# - **判断**这样一个数字：它取决于哪个假设，花钱之前该测什么。
#
# 有三个词会反复出现。**副本**（replica）是一份完整的模型，有自己的缓存和调度器，这里就是一对 GPU。**路由器**（router）决定一个请求交给哪个副本。**p99** 是 100 个请求里有 99 个不超过的时间，我们要求它不超过 2 秒。
#
# 整个过程没有动用任何 GPU。`minikv.simulate` 运行的是[第 11a 课](11a_continuous_batching.ipynb)的调度器和[第 09 课](09_pages_and_blocks.ipynb)的块管理器，与真正服务请求的是同一份代码，只是不做模型的计算。一步要花多少时间，由[第 04 课](04_the_roofline.ipynb)的 Roofline 模型给出。
# 需要先学这三课，以及[第 12 课](12_beyond_one_gpu.ipynb)里两块 GPU 怎样合用一份模型。
#
# 本课把“三对”这个答案拆开，一直拆到它所依据的假设。
# 学完之后，你能说出每一个假设如果错了，集群会怎样。模拟器总有不准的地方，只有不知道哪里不准，才会误事。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# How much of a prompt has been computed before? A **session** is a conversation. The prompt of each turn is everything that was said before, followed by a new message.
# For example, with a system prompt of 100 tokens, messages of 10 and answers of 20, the first prompt has 110 tokens and the second 110 + 20 + 10 = 140. Of the 140, the first 110 have been computed before.
# %% [markdown] key="predict_first" lang="zh" src="12fdf331"
# ## 先猜一猜
#
# 提示词里有多少以前算过？**会话**（session）就是一段对话，每一轮的提示词，都是之前说过的全部内容，后面再加上新的一句。
# 例如系统提示词 100 个 token，每句 10 个，每个回答 20 个，那么第一轮的提示词是 110 个 token，第二轮是 110 + 20 + 10 = 140 个，其中前 110 个以前算过。

# %% key="predict_session"
predict("session_share", ...)

# %% [markdown] key="formula" lang="en"
# ## What makes up the time to the first token
#
# The **time to first token** (TTFT) runs from the moment at which a request arrives. First the request waits until a step takes it in. Then its prefill takes one step or more, which it may share with other requests:
# %% [markdown] key="formula" lang="zh" src="32f15b4d"
# ## 首 token 延迟由哪几部分组成
#
# **首 token 延迟**（TTFT）从请求到来的那一刻算起。请求先排队，等到有一步把它排进去；然后是预填充，占一步或几步，这些步里可能还有其他请求：

# %% [markdown] key="formula_math" lang="en"
# $$\text{TTFT} \;=\; W \;+\! \sum_{\text{steps of its prefill}} \! s \qquad\qquad s \;=\; \max\!\left( \frac{F}{e_F \cdot P},\; \frac{B}{e_B \cdot R} \right) \,+\, \frac{A}{\ell} \,+\, o$$
# %% [markdown] key="formula_math" lang="zh" src="24878c3a"
# $$\text{TTFT} \;=\; W \;+\! \sum_{\text{预填充的各步}} \! s \qquad\qquad s \;=\; \max\!\left( \frac{F}{e_F \cdot P},\; \frac{B}{e_B \cdot R} \right) \,+\, \frac{A}{\ell} \,+\, o$$

# %% [markdown] key="symbols" lang="en"
# | symbol | meaning | unit | value here: a prompt of 8,192 tokens, two H200 |
# |---|---|---|---|
# | $W$ | the wait in the queue | s | 0 if the replica is idle |
# | $s$ | the time of a step | s | 1.0808 |
# | $F$ | FLOPs of the step on each GPU: weights, attention | FLOP | 604.74 · 10¹² |
# | $P$, $R$ | FLOP rate and bandwidth of the data sheet | FLOP/s, bytes/s | 989 · 10¹², 4,800 · 10⁹ |
# | $B$ | bytes read: the weights once, the cache of each sequence | bytes | 70.85 · 10⁹ |
# | $e_F$, $e_B$ | the share of $P$ and of $R$ that a step reaches | | 0.6, 0.8 |
# | $A$, $\ell$ | bytes that a GPU sends to the others of its replica, and the rate of their link | bytes, bytes/s | 21.47 · 10⁹, 360 · 10⁹ |
# | $o$ | the overhead of every step, whatever is in it | s | 0.002 |
#
# With the numbers put in:
#
# - arithmetic: $604.74 \cdot 10^{12} / (0.6 \cdot 989 \cdot 10^{12}) = 1{,}019.1$ ms
# - memory: $70.85 \cdot 10^9 / (0.8 \cdot 4{,}800 \cdot 10^9) = 18.4$ ms, at the same time as the arithmetic
# - link: $21.47 \cdot 10^9 / (360 \cdot 10^9) = 59.7$ ms
# - the step: $s = \max(1{,}019.1,\ 18.4) + 59.7 + 2.0 = 1{,}080.8$ ms
#
# If the replica is idle, TTFT is $0 + 1.081 = 1.081$ s. If another such prompt has just begun, the wait is that prompt's whole step, and TTFT is $1.081 + 1.081 = 2.162$ s.
#
# $F$, $B$ and $A$ follow from the model. Each of the 8,192 tokens does 2 FLOPs with each of 68.45 billion weights. And it does 2,621,440 FLOPs with each token up to itself; there are 33.56 million such pairs. Two GPUs share that: $(8{,}192 \cdot 136.9 \cdot 10^9 + 33.56 \cdot 10^6 \cdot 2{,}621{,}440) / 2 = 604.74 \cdot 10^{12}$. Two all-reduces in each of 80 layers carry 8,192 elements of 2 bytes a token: $A = 8{,}192 \cdot 8{,}192 \cdot 2 \cdot 160 = 21.47 \cdot 10^9$ B. Lessons [02](02_how_many_bytes.ipynb), [04](04_the_roofline.ipynb) and [12](12_beyond_one_gpu.ipynb) explain these counts. $P$ and $R$ stand on the data sheet.
# The other four, $e_F$, $e_B$, $\ell$ and $o$, can't be known beforehand. They are **assumptions**, and so is the rate to host memory:
# %% [markdown] key="symbols" lang="zh" src="abc4527c"
# | 符号 | 含义 | 单位 | 本例取值：8,192 个 token 的提示词，两块 H200 |
# |---|---|---|---|
# | $W$ | 排队的时间 | 秒 | 副本空闲时为 0 |
# | $s$ | 一步的时间 | 秒 | 1.0808 |
# | $F$ | 这一步在每块 GPU 上的 FLOP：权重、注意力 | FLOP | 604.74 · 10¹² |
# | $P$、$R$ | 规格书上的算力和带宽 | FLOP/秒、字节/秒 | 989 · 10¹²、4,800 · 10⁹ |
# | $B$ | 读取的字节：权重读一遍，每条序列的缓存各读一遍 | 字节 | 70.85 · 10⁹ |
# | $e_F$、$e_B$ | 一步实际达到其中的几成 | | 0.6、0.8 |
# | $A$、$\ell$ | 一块 GPU 要发给同一副本其他 GPU 的字节，以及链路的速度 | 字节、字节/秒 | 21.47 · 10⁹、360 · 10⁹ |
# | $o$ | 每一步不管内容都要付出的固定开销 | 秒 | 0.002 |
#
# 代入数字：
#
# - 计算：$604.74 \cdot 10^{12} / (0.6 \cdot 989 \cdot 10^{12}) = 1{,}019.1$ 毫秒
# - 访存：$70.85 \cdot 10^9 / (0.8 \cdot 4{,}800 \cdot 10^9) = 18.4$ 毫秒，与计算同时进行
# - 链路：$21.47 \cdot 10^9 / (360 \cdot 10^9) = 59.7$ 毫秒
# - 这一步：$s = \max(1{,}019.1,\ 18.4) + 59.7 + 2.0 = 1{,}080.8$ 毫秒
#
# 如果副本空闲，TTFT 就是 $0 + 1.081 = 1.081$ 秒。如果另一个同样的提示词刚刚开始算，就要等它的一整步，TTFT 是 $1.081 + 1.081 = 2.162$ 秒。
#
# $F$、$B$、$A$ 由模型推出。8,192 个 token 中的每一个，与 684.5 亿个权重各做 2 个 FLOP，与自己及之前的每个 token（一共 3,356 万对）做 2,621,440 个 FLOP，由两块 GPU 平分，所以 $F = (8{,}192 \cdot 136.9 \cdot 10^9 + 33.56 \cdot 10^6 \cdot 2{,}621{,}440) / 2 = 604.74 \cdot 10^{12}$。80 层里每层有两次 all-reduce，每个 token 要发 8,192 个 2 字节的元素，所以 $A = 8{,}192 \cdot 8{,}192 \cdot 2 \cdot 160 = 21.47 \cdot 10^9$ 字节（详见[第 02 课](02_how_many_bytes.ipynb)、[第 04 课](04_the_roofline.ipynb)、[第 12 课](12_beyond_one_gpu.ipynb)）。$P$ 和 $R$ 写在规格书上。
# 其余四个，即 $e_F$、$e_B$、$\ell$ 和 $o$，事先无法知道，只能**假设**；与 CPU 内存之间的速度也是假设：

# %% key="assumptions" lang="en"
from minikv.simulate import Assumptions

Table(["assumption"], [[line] for line in Assumptions().explain("en")])

# %% key="assumptions" lang="zh"
from minikv.simulate import Assumptions

Table(["假设"], [[line] for line in Assumptions().explain("zh")])

# %% [markdown] key="clock" lang="en"
# With these assumptions, here is what five kinds of steps take on one replica, that is, on two H200 that share the model:
# %% [markdown] key="clock" lang="zh" src="e4ce83e7"
# 按这些假设，一个副本（两块 H200 合用一个模型）的五种步分别是：

# %% key="clock_code" lang="en"
clock = pairs().step_time
steps = {  # (tokens before, tokens computed) of each prefill; tokens before of each decode
    "decode, one sequence of 6,000 tokens": ([], [6000]),
    "decode, 64 of them": ([], [6000] * 64),
    "prefill of 512 tokens": ([(0, 512)], []),
    "prefill of 8,192 tokens": ([(0, 8192)], []),
    "prefill of 8,192 and 64 decodes": ([(0, 8192)], [6000] * 64),
}
parts = {name: clock.parts(clock.cost.work(*work)) for name, work in steps.items()}
rows = [(name, *(f"{1e3 * seconds:.1f}" for seconds in (*part, part.total))) for name, part in parts.items()]
head = ["step", "arithmetic", "memory", "link", "overhead", "the step in all"]
Table(head, rows, right=head[1:], title="milliseconds")

# %% key="clock_code" lang="zh"
clock = pairs().step_time
steps = {  # 每次预填充：（之前的 token 数，要算的 token 数）；每条解码：之前的 token 数
    "解码，1 条 6,000 个 token 的序列": ([], [6000]),
    "解码，64 条这样的序列": ([], [6000] * 64),
    "预填充 512 个 token": ([(0, 512)], []),
    "预填充 8,192 个 token": ([(0, 8192)], []),
    "预填充 8,192 个 token，再加 64 条解码": ([(0, 8192)], [6000] * 64),
}
parts = {name: clock.parts(clock.cost.work(*work)) for name, work in steps.items()}
rows = [(name, *(f"{1e3 * seconds:.1f}" for seconds in (*part, part.total))) for name, part in parts.items()]
head = ["一步的内容", "计算", "访存", "链路", "固定开销", "整步"]
Table(head, rows, right=head[1:], title="毫秒")

# %% [markdown] key="clock_read" lang="en"
# A decode waits for memory, so 64 sequences don't even take twice as long as one. A prefill waits for arithmetic. A step that does both takes little longer than its prefill alone, which is why engines mix them.
# But each sequence that decodes gets only one token from that step, after 1,089.6 ms instead of 37.0. While a long prompt is computed, all other answers stutter ([lesson 11a](11a_continuous_batching.ipynb)).
#
# ## The traffic
#
# A **trace** is a list of requests. It says when each request arrives, how long its prompt and its answer are, and which prompts begin alike. It contains no text, so it reveals no user's words.
# We generate our trace from a seed, and it has what real traffic has. Conversations have several turns, each is about one of forty documents, and some documents come up far more often than others. (`BUSY` is a `Load`, and that class calls the documents system prompts.) The trace stands for the busiest minute of a day, because that is the minute for which you size a fleet.
# %% [markdown] key="clock_read" lang="zh" src="0224c387"
# 解码等的是显存，所以 64 条序列用的时间还不到一条的两倍；预填充等的是算力。一步里两样都做，也只比单独的预填充慢一点，因此引擎把它们混在一起。
# 不过，每条正在解码的序列，在这一步里只得到一个 token，要等 1,089.6 毫秒，而不是 37.0 毫秒。也就是说，算一个长提示词的时候，其他回答都会顿一下（[第 11a 课](11a_continuous_batching.ipynb)）。
#
# ## 流量
#
# **请求轨迹**（trace）是一份请求的清单，记录每个请求何时到来、提示词和回答各有多长、哪些开头是相同的。里面没有任何文本，所以不会泄露用户的内容。
# 这里的轨迹由一个随机种子生成，真实流量有的特点它都有，例如多轮的对话，每段对话围绕四十份文档中的一份，有几份远比其余的热门（`BUSY` 是一个 `Load`，这个类把它们叫作 system prompts）。取的是一天里最忙的一分钟，因为集群要按最忙的时候来定。

# %% key="trace" lang="en"
lengths = sorted(request.prompt_tokens for request in traffic.requests)
middle = lengths[len(lengths) // 2]
rate, mean = len(traffic) / traffic.duration, traffic.output_tokens / len(traffic)
rows = [
    (f"{one.arrival:.3f}", one.prompt_tokens, one.output_tokens, f"{one.hash_ids[:2]} ... {one.hash_ids[-2:]}")
    for one in traffic.requests[:4]
]
notes = [
    f"{len(traffic):,} requests in {traffic.duration:.0f} s, {rate:.1f} a second",
    f"prompts: half have at most {middle:,} tokens, the longest {lengths[-1]:,}",
    f"an answer has {mean:.0f} on average",
]
Table(["arrives at, s", "tokens of the prompt", "of the answer", "ids of the prompt's blocks"], rows, lines=notes, right=["arrives at, s"])

# %% key="trace" lang="zh"
lengths = sorted(request.prompt_tokens for request in traffic.requests)
middle = lengths[len(lengths) // 2]
rate, mean = len(traffic) / traffic.duration, traffic.output_tokens / len(traffic)
rows = [
    (f"{one.arrival:.3f}", one.prompt_tokens, one.output_tokens, f"{one.hash_ids[:2]} ... {one.hash_ids[-2:]}")
    for one in traffic.requests[:4]
]
notes = [
    f"{traffic.duration:.0f} 秒里 {len(traffic):,} 个请求，每秒 {rate:.1f} 个",
    f"提示词：一半不超过 {middle:,} 个 token，最长 {lengths[-1]:,} 个",
    f"回答平均 {mean:.0f} 个",
]
Table(["到达，秒", "提示词的 token", "回答的 token", "提示词各块的编号"], rows, lines=notes, right=["到达，秒"])

# %% [markdown] key="trace_read" lang="en"
# (By chance, a few more requests came than the five a second that we asked for.)
# Equal ids at the beginning mean equal text. For example, the first, second and fourth request begin with the same blocks 0 and 1, so they are about the same document. The third id of two requests can be equal only if the first two are.
# [Mooncake](https://github.com/kvcache-ai/Mooncake) published an hour of real requests in this form (FAST 2025). If you have that file, you can compute every figure of this lesson for it:
#
#     minikv simulate conversation_trace.jsonl --hit-rate --num-blocks 10000
#
# (The package ships only traffic that it makes itself.)
#
# ## What is found again
#
# Blocks that no sequence uses stay in the pool until their place is needed. Then the **least recently used** block (LRU) is evicted first.
# How large must a pool be? You could simulate every size. But you don't have to, if you look at LRU more closely.
#
# A pool of 1,000 blocks holds the 1,000 blocks that were used last. A pool of 1,001 holds the same ones and one more. So a larger pool has *everything* that a smaller one has. This is the **stack property** ([Mattson and others, 1970](https://doi.org/10.1147/sj.92.0078)).
# Keep all blocks in a single list, with the one used last in front. If a block stands at place 700, every pool of 700 blocks or more has it, and no smaller pool does. So one pass over the trace answers for all sizes:
# %% [markdown] key="trace_read" lang="zh" src="0110ea6f"
# （实际来的比定好的每秒五个略多，这是随机造成的。）
# 开头的编号相同，就是文本相同。例如第一、第二、第四个请求都以块 0 和 1 开头，也就是说，问的是同一份文档。两个请求的第三个编号要相同，前两个必须先相同。
# [Mooncake](https://github.com/kvcache-ai/Mooncake) 公开的一小时真实请求（FAST 2025），用的就是这种格式。如果手头有那个文件，本课的每个数字都可以拿它再算一遍：
#
#     minikv simulate conversation_trace.jsonl --hit-rate --num-blocks 10000
#
# （本包只附带自己生成的流量。）
#
# ## 能找回多少
#
# 没有序列在用的块留在块池里，直到它的位置有别的用处；这时先淘汰**最久没有用过的**块（LRU）。
# 块池要多大才够？可以把每种大小都模拟一遍，但仔细看看 LRU，就不必这么做。
#
# 1,000 个块的块池，装着最近用过的 1,000 个块；1,001 个块的块池，装着同样这些，再多一个。换句话说，大块池有小块池的**全部**内容，这就是**栈性质**（[Mattson 等，1970](https://doi.org/10.1147/sj.92.0078)）。
# 把所有的块排成一个列表，最近用过的在最前。如果一个块排在第 700 位，那么 700 个块以上的块池都有它，再小的都没有。所以把轨迹走一遍，所有的大小就都有了答案：

# %% key="capacity" lang="en"
from minikv.course.charts import lines
from minikv.simulate import hit_rates

sizes = [100, 150, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000, 8000]
*rates, most = hit_rates(traffic, [*sizes, None])
name, one, all_of = "share of the prompts' blocks that is found, %", "one replica", "no limit"
x = "blocks of 128 tokens in the pool"
found_by_size = {name: {size: 100 * rate for size, rate in zip(sizes, rates)}}
show(lines(found_by_size, x=x, y=name, log="x", marks={one: pairs().blocks[0]}, levels={all_of: 100 * most}))
Table(["blocks", name], [(size, f"{100 * rate:.1f}") for size, rate in zip(sizes, rates)], right=[name])

# %% key="capacity" lang="zh"
from minikv.course.charts import lines
from minikv.simulate import hit_rates

sizes = [100, 150, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000, 8000]
*rates, most = hit_rates(traffic, [*sizes, None])
name, one, all_of = "提示词的块命中的占比，%", "一个副本", "不设上限"
x = "块池的大小，每块 128 个 token"
found_by_size = {name: {size: 100 * rate for size, rate in zip(sizes, rates)}}
show(lines(found_by_size, x=x, y=name, log="x", marks={one: pairs().blocks[0]}, levels={all_of: 100 * most}))
Table(["块数", name], [(size, f"{100 * rate:.1f}") for size, rate in zip(sizes, rates)], right=[name])

# %% [markdown] key="capacity_read" lang="en"
# The vertical line is the pool of one replica, 2,966 blocks. The horizontal one is what a pool without a limit finds, 84.8 %. (In a running engine not all of the pool keeps old blocks, because running sequences use a part of it.)
#
# Not every rule has the stack property. First in, first out (FIFO) evicts the block that came in first, whether it was used since or not. Here is the classic example of twelve requests ([Belady and others, 1969](https://doi.org/10.1145/363011.363155)):
# %% [markdown] key="capacity_read" lang="zh" src="b4391882"
# 竖线是一个副本的块池，2,966 个块；横线是不设上限时的命中率，84.8%。（运行中的序列要占用一部分，所以不能全部用来留住旧块。）
#
# 并不是每种规则都有栈性质。例如先进先出（FIFO）先淘汰最早进来的块，不管后来用没用过。下面是那个有十二次请求的经典例子（[Belady 等，1969](https://doi.org/10.1145/363011.363155)）：

# %% key="fifo" lang="en"
from minikv.course.lessons.l17.lru_hits import hits_by_age, lru_hits

requests = [[block] for block in (1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5)]
rows = [(name, *rule(requests, [3, 4, 5])) for name, rule in (("FIFO", hits_by_age), ("LRU", lru_hits))]
Table(["found of 12 requests", "with 3 blocks", "with 4 blocks", "with 5 blocks"], rows)

# %% key="fifo" lang="zh"
from minikv.course.lessons.l17.lru_hits import hits_by_age, lru_hits

requests = [[block] for block in (1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5)]
rows = [(name, *rule(requests, [3, 4, 5])) for name, rule in (("FIFO", hits_by_age), ("LRU", lru_hits))]
Table(["12 次请求命中几次", "3 个块时", "4 个块时", "5 个块时"], rows)

# %% [markdown] key="fifo_read" lang="en"
# With FIFO, four blocks find less than three. Where that can happen, you can't search by halving, neither for the smallest pool nor for the smallest fleet.
# (In exercise 17.1 you write the list of all blocks. One thing is easily counted wrong: once a block of the prompt is missing, the blocks after it don't count, even if they are there.)
#
# ## The queue
#
# Now for the wait $W$. We take the simplest queue: one replica computes one prompt at a time, all prompts are equally long, and requests arrive at random. There is a formula for the mean wait of this queue. (It is called M/D/1: random arrivals, equal service, one server.)
# %% [markdown] key="fifo_read" lang="zh" src="80300e04"
# FIFO 用四个块，找到的反而比三个块少。命中率一旦不随容量单调上升，二分查找就不成立，既找不出最小的块池，也找不出最小的集群。
# （练习 17.1 就是写这个列表。最容易数错的一点是，提示词里一旦缺了一个块，后面的块即使还在，也不算命中。）
#
# ## 排队
#
# 再看排队时间 $W$。取最简单的队列，一个副本，一次算一个提示词，长短都一样，请求随机到来。它的平均排队时间有公式（M/D/1：随机到达、定长服务、一个服务者）：

# %% [markdown] key="wait_math"
# $$\rho \;=\; \lambda \cdot S \qquad\qquad W \;=\; \frac{\rho}{2\,(1 - \rho)} \cdot S$$

# %% [markdown] key="wait_symbols" lang="en"
# | symbol | meaning | unit | value here: prompts of 4,096 tokens |
# |---|---|---|---|
# | $S$ | the time to serve one request | s | 0.523 |
# | $\lambda$ | requests that arrive per second, on average | 1/s | 1.72 |
# | $\rho$ | **utilisation**: the share of the time in which the replica is busy | | 0.9 |
# | $W$ | the mean wait in the queue | s | 2.35 |
#
# With the numbers put in: $\rho = 1.72 \cdot 0.523 = 0.9$, and $W = 0.9 / (2 \cdot (1 - 0.9)) \cdot 0.523 = 4.5 \cdot 0.523 = 2.35$ s.
# %% [markdown] key="wait_symbols" lang="zh" src="7a998592"
# | 符号 | 含义 | 单位 | 本例取值：4,096 个 token 的提示词 |
# |---|---|---|---|
# | $S$ | 一个请求要算多久 | 秒 | 0.523 |
# | $\lambda$ | 平均每秒到来的请求数 | 1/秒 | 1.72 |
# | $\rho$ | **利用率**：副本忙着的时间占几成 | | 0.9 |
# | $W$ | 平均排队时间 | 秒 | 2.35 |
#
# 代入数字：$\rho = 1.72 \cdot 0.523 = 0.9$，$W = 0.9 / (2 \cdot (1 - 0.9)) \cdot 0.523 = 4.5 \cdot 0.523 = 2.35$ 秒。

# %% key="predict_wait"
predict("mean_wait", ...)

# %% [markdown] key="wait_run" lang="en"
# The simulator doesn't know this formula. Here it runs the same queue, with more and more requests a second:
# %% [markdown] key="wait_run" lang="zh" src="8bdf8744"
# 模拟器并不知道这个公式。让它来跑同样的队列，每秒的请求越来越多：

# %% key="wait_code" lang="en"
import numpy as np

from minikv.course.lessons.l17.traffic import md1_wait, one_at_a_time

queues, rows = {}, []
for utilisation in (0.5, 0.8, 0.9, 0.95):
    queues[utilisation], service = one_at_a_time(pairs(), utilisation)
    queued = queues[utilisation].queued
    waits = md1_wait(utilisation, service), queued.mean(), *np.percentile(queued, [50, 99])
    rows.append((f"{utilisation:.0%}", *(f"{wait:.2f}" for wait in waits)))
head = ["share of time busy", "mean by the formula", "mean simulated", "p50 simulated", "p99 simulated"]
Table(head, rows, right=head, title="seconds in the queue")

# %% key="wait_code" lang="zh"
import numpy as np

from minikv.course.lessons.l17.traffic import md1_wait, one_at_a_time

queues, rows = {}, []
for utilisation in (0.5, 0.8, 0.9, 0.95):
    queues[utilisation], service = one_at_a_time(pairs(), utilisation)
    queued = queues[utilisation].queued
    waits = md1_wait(utilisation, service), queued.mean(), *np.percentile(queued, [50, 99])
    rows.append((f"{utilisation:.0%}", *(f"{wait:.2f}" for wait in waits)))
head = ["利用率", "公式的平均值", "模拟的平均值", "模拟的 p50", "模拟的 p99"]
Table(head, rows, right=head, title="排队的秒数")

# %% key="stick" lang="en"
formula = {percent: md1_wait(percent / 100, service) for percent in range(98)}
simulated = {round(100 * busy): float(outcome.queued.mean()) for busy, outcome in queues.items()}
x, y = "share of the time in which the replica is busy, %", "mean wait in the queue, s"
show(lines({"formula": formula, "simulated": simulated}, x=x, y=y, points=["simulated"]))

# %% key="stick" lang="zh"
formula = {percent: md1_wait(percent / 100, service) for percent in range(98)}
simulated = {round(100 * busy): float(outcome.queued.mean()) for busy, outcome in queues.items()}
x, y = "副本忙碌的时间占比，%", "平均排队时间，秒"
show(lines({"公式": formula, "模拟": simulated}, x=x, y=y, points=["模拟"]))

# %% [markdown] key="wait_read" lang="en"
# From 50 % busy to 95 % the load doesn't even double, but the mean wait becomes 19 times as long. The curve looks like a hockey stick that lies on its back, and sizing a fleet means staying left of its bend.
# (The last row is the least certain one. A long queue takes long to form and to dissolve, so a few thousand requests meet only a few long queues.)
#
# Look at p99, too. More than half of the requests wait less than the mean, while one in a hundred waits several times as long.
#
# In the first picture of this lesson three replicas are busy 97 to 99 % of the time and still keep p99 below 2 s. That is no contradiction. There, a step with a single decode counts as busy, too, and a new prompt can join the next step. In the queue here, a busy replica takes nothing in.
#
# ### How many requests are in the system?
#
# One law holds for every queue, whatever arrives and however it is served ([Little, 1961](https://doi.org/10.1287/opre.9.3.383)): *the mean number in the system is the arrival rate times the mean time that each request spends there.*
# If a simulation loses a request, or counts a second twice, it breaks this law. So we can check a simulation with it.
# %% [markdown] key="wait_read" lang="zh" src="a15498bd"
# 从 50% 到 95%，负载还不到两倍，平均等待却变成了 19 倍。这条曲线像一根平放的曲棍球杆；做容量规划，就是要留在弯折处的左边。
# （最后一行最不可靠，因为长队形成和消散都慢，几千个请求只碰得上几次长队。）
#
# 再看 p99。一大半请求等得比平均值短，而每一百个里有一个，要等平均值的好几倍。
#
# 本课第一张图里，三个副本的利用率是 97% 到 99%，p99 却不到 2 秒。两者并不矛盾。那里只要一步里有一条解码就算在忙，新来的提示词可以直接进入下一步；而在这个队列里，副本忙的时候什么都不接。
#
# ### 系统里有多少个请求
#
# 有一条定律对任何队列都成立，不管来的是什么、怎么服务（[Little，1961](https://doi.org/10.1287/opre.9.3.383)）：**系统里的平均个数，等于到达率乘以每个请求停留的平均时间**。
# 模拟如果丢了一个请求，或者把一秒数了两遍，就会违反它，所以可以拿它来检查模拟。

# %% key="predict_little"
predict("in_system", ...)

# %% key="little" lang="en"
laws = {busy: outcome.answers().littles_law for busy, outcome in queues.items()}
rows = [
    (f"{busy:.0%}", *(f"{figure:.3f}" for figure in (law.in_system, law.rate, law.time, law.rate * law.time)))
    for busy, law in laws.items()
]
head = ["share of time busy", "requests in the system", "arrivals, 1/s", "time in the system, s", "arrivals x time"]
Table(head, rows, right=head)

# %% key="little" lang="zh"
laws = {busy: outcome.answers().littles_law for busy, outcome in queues.items()}
rows = [
    (f"{busy:.0%}", *(f"{figure:.3f}" for figure in (law.in_system, law.rate, law.time, law.rate * law.time)))
    for busy, law in laws.items()
]
head = ["利用率", "系统里的个数", "到达率，1/秒", "停留，秒", "到达率 × 停留"]
Table(head, rows, right=head)

# %% [markdown] key="little_read" lang="en"
# The last column is the second one, so the simulation passes: at 90 % busy, $1.742 \cdot 2.748 = 4.79$ requests.
#
# ### Percentiles
#
# You have to take p99 of all requests. The fleet's p99 is not the mean of its replicas' p99s, and a percentile of means says nothing about any request. Here are two replicas, one of them busy:
# %% [markdown] key="little_read" lang="zh" src="043628de"
# 最后一列与第二列相同，所以模拟通过了检查。例如利用率 90% 时，$1.742 \cdot 2.748 = 4.79$ 个请求。
#
# ### 分位数（percentile）
#
# p99 必须对全体请求来求。整个集群的 p99，不等于各副本 p99 的平均值；而平均值的分位数，说明不了任何一个请求的情况。下面有两个副本，其中一个很忙：

# %% key="percentiles" lang="en"
busy, calm = queues[0.9].ttft, queues[0.5].ttft[:800]
ways = {
    "p99 of all requests": np.percentile([*busy, *calm], 99),
    "mean of the replicas' p99": np.mean([np.percentile(times, 99) for times in (busy, calm)]),
    "p99 of their means": np.percentile([times.mean() for times in (busy, calm)], 99),
}
Table(["", "seconds"], [(name, f"{seconds:.2f}") for name, seconds in ways.items()], right=["seconds"])

# %% key="percentiles" lang="zh"
busy, calm = queues[0.9].ttft, queues[0.5].ttft[:800]
ways = {
    "全体请求的 p99": np.percentile([*busy, *calm], 99),
    "各副本 p99 的平均": np.mean([np.percentile(times, 99) for times in (busy, calm)]),
    "各副本平均值的 p99": np.percentile([times.mean() for times in (busy, calm)], 99),
}
Table(["", "秒"], [(name, f"{seconds:.2f}") for name, seconds in ways.items()], right=["秒"])

# %% [markdown] key="percentiles_read" lang="en"
# Only the first number is the p99 of the whole service. The other two look like one, but the smallest promises less than a third of it.
# (In exercise 17.2 you compute TTFT with its wait, and percentiles of all requests.)
#
# ## Where a request goes
#
# Each replica has a cache of its own. So it matters where the router sends the next turn of a conversation, because only one replica has the history.
# %% [markdown] key="percentiles_read" lang="zh" src="b0887e51"
# 只有第一个数是整个服务的 p99。另外两个看着也像，但最小的那个还不到它的三分之一。
# （练习 17.2 就是算出带排队的 TTFT，再对全体请求求分位数。）
#
# ## 请求往哪里去
#
# 每个副本有自己的缓存。所以一段对话的下一轮发到哪里，影响很大，因为只有一个副本存着它的历史。

# %% key="routers" lang="en"
from minikv.course.lessons.l17.shown import answers_table
from minikv.simulate import ROUTERS

outcomes = {name: simulate(traffic, pairs(router=name, replicas=3)) for name in ROUTERS}
percents = [*range(0, 100, 5), 99]
waits = {
    name: dict(zip(percents, np.percentile(outcome.ttft, percents).tolist()))
    for name, outcome in outcomes.items()
}
x, y = "share of the requests, the fastest first, %", "time to first token at most, s"
show(lines(waits, x=x, y=y, log="y", levels={"bound": 2.0}))
answers_table({name: outcome.answers() for name, outcome in outcomes.items()}, "en")

# %% key="routers" lang="zh"
from minikv.course.lessons.l17.shown import answers_table
from minikv.simulate import ROUTERS

outcomes = {name: simulate(traffic, pairs(router=name, replicas=3)) for name in ROUTERS}
percents = [*range(0, 100, 5), 99]
waits = {
    name: dict(zip(percents, np.percentile(outcome.ttft, percents).tolist()))
    for name, outcome in outcomes.items()
}
x, y = "请求的占比，从最快的数起，%", "首 token 延迟不超过，秒"
show(lines(waits, x=x, y=y, log="y", levels={"界限": 2.0}))
answers_table({name: outcome.answers() for name, outcome in outcomes.items()}, "zh")

# %% [markdown] key="routers_read" lang="en"
# - **round-robin** takes the replicas in turn. The shares are equal, but it ignores what the caches hold.
# - **least-loaded** takes the replica with the fewest tokens left to compute. That sounds better, but it ignores the caches, too.
# - **prefix** takes the replica that has the most of the prompt in its cache. But it leaves out each replica with too much to do: more than 1.25 times the mean load plus the tokens of this prompt. For example, with loads of 30,000, 6,000 and 3,000 tokens the mean is 13,000. For a prompt of 7,000 the bound is 1.25 · 13,000 + 7,000 = 23,250, so the first replica is left out. (The bound is that of [consistent hashing with bounded loads](https://arxiv.org/abs/1608.01350).)
#
# (In the table, TPOT is the time per output token after the first. *Found* is the share of the prompts' tokens that were in the cache of the replica. *In host memory* and *blocked* come up further down.)
# On the same six GPUs, p99 is 3.57 s, 2.38 s or 1.78 s, because tokens that aren't found have to be computed, and meanwhile other requests wait.
# (You write the router in exercise 17.3.)
# %% [markdown] key="routers_read" lang="zh" src="91b37c0d"
# - **round-robin**：副本轮流来。分得很均匀，但完全不看前缀命中。
# - **least-loaded**：选待计算的 token 最少的副本。听起来好些，但同样不看缓存里有什么。
# - **prefix**：选提示词命中最多的副本，但要排除待计算的 token 太多的副本，也就是超过平均值的 1.25 倍再加上这个提示词的 token 数的。例如三个副本的负载是 30,000、6,000 和 3,000 个 token，平均值是 13,000；提示词 7,000 个 token 时，界限是 1.25 · 13,000 + 7,000 = 23,250，所以第一个副本被排除。（这个界限来自[负载有界的一致性哈希](https://arxiv.org/abs/1608.01350)。）
#
# （表里的 TPOT 是首 token 之后每个 token 的时间。“GPU 命中”按提示词的 token 计；“CPU 命中”和“缺块”两栏后面才用得到。）
# 同样是六块 GPU，p99 却分别是 3.57 秒、2.38 秒和 1.78 秒。这是因为没有命中的就得计算，而计算的时候，其他请求就得等。
# （练习 17.3 就是写这个路由器。）

# %% [markdown] key="widget_read" lang="en"
# ## See it
#
# The bar shows where the prompts' tokens came from: found on the GPUs, found in host memory, or computed. The curve shows every request, from the fastest on the left to the slowest on the right. The dashed line is the wait that p99 must not exceed.
# Try these, and say before each what will change:
#
# 1. Two replicas, then three, then six. Which part of the curve falls first, and which hardly falls at all?
# 2. Three replicas with each router. Where does the bar change?
# 3. Twice the traffic. How many replicas do you need now: twice as many?
# 4. Two replicas of H100. Look at the bar, then give them 64 GiB of host memory. What gets better, and what doesn't?
# %% [markdown] key="widget_read" lang="zh" src="e9d229a9"
# ## 亲眼看看
#
# 上面的条形表示提示词的 token 从哪里来，是在 GPU 上命中、在 CPU 内存里命中，还是要计算。曲线上是每一个请求，左边最快，右边最慢。虚线是 p99 不能超过的等待时间。
# 试试下面几步，每次动手之前先说出会发生什么：
#
# 1. 两个副本，三个，再六个。曲线的哪一段先降下来，哪一段几乎不动？
# 2. 三个副本，把几种路由都试一遍。上面的条形哪里变了？
# 3. 流量加倍。现在要多少个副本，也是两倍吗？
# 4. 两个副本，GPU 换成 H100。先看条形，再给它们 64 GiB 的 CPU 内存。什么变好了，什么没有？

# %% key="widget" lang="en"
from minikv.course.widgets import FleetWidget

show(FleetWidget("en", traffic.head(250), replicas=2))

# %% key="widget" lang="zh"
from minikv.course.widgets import FleetWidget

show(FleetWidget("zh", traffic.head(250), replicas=2))

# %% [markdown] key="memory" lang="en"
# ## Memory on the GPU, memory on the host
#
# Which of the fleets in the next table would you take? Each has eight GPUs and so eight times the arithmetic of one card, and an H100 and an H200 compute equally fast.
# First work out how many tokens fit into host memory:
# %% [markdown] key="memory" lang="zh" src="53d3c42d"
# ## GPU 显存与 CPU 内存
#
# 下一张表里的几个集群都是八块 GPU，你选哪一个？算力都是单卡的八倍，而 H100 和 H200 的算力相同。
# 先算一算 CPU 内存放得下多少个 token：

# %% key="predict_host"
predict("host_tokens", ...)

# %% key="memory_code" lang="en"
from minikv.units import GIB

small, plan = "H100 SXM 80GB", partial(Fleet.plan, "Llama-3.1-70B", router="prefix", block_size=128)
fleets = {
    "4 x 2 H200": ("H200", 2, {}),
    "4 x 2 H100": (small, 2, {}),
    "4 x 2 H100 + 64 GiB": (small, 2, {"host_kv_bytes": 64 * GIB}),
    "4 x 2 H100, fp8": (small, 2, {"kv_dtype": "fp8"}),
    "2 x 4 H100": (small, 4, {}),
}
eight = {}
for name, (gpu, tp, options) in fleets.items():
    fleet = plan(gpu, tp=tp, replicas=8 // tp, **options)
    eight[f"{name}: {128 * fleet.blocks[0]:,} tokens"] = simulate(traffic, fleet).answers()
answers_table(eight, "en")

# %% key="memory_code" lang="zh"
from minikv.units import GIB

small, plan = "H100 SXM 80GB", partial(Fleet.plan, "Llama-3.1-70B", router="prefix", block_size=128)
fleets = {
    "4 x 2 H200": ("H200", 2, {}),
    "4 x 2 H100": (small, 2, {}),
    "4 x 2 H100 + 64 GiB": (small, 2, {"host_kv_bytes": 64 * GIB}),
    "4 x 2 H100, fp8": (small, 2, {"kv_dtype": "fp8"}),
    "2 x 4 H100": (small, 4, {}),
}
eight = {}
for name, (gpu, tp, options) in fleets.items():
    fleet = plan(gpu, tp=tp, replicas=8 // tp, **options)
    eight[f"{name}，{128 * fleet.blocks[0]:,} 个 token"] = simulate(traffic, fleet).answers()
answers_table(eight, "zh")

# %% [markdown] key="memory_read" lang="en"
# ("4 x 2 H200" means four replicas of two H200 each. The number of tokens is what one replica's cache holds. *Blocked* is the share of the busy time in which some request waited for blocks and for nothing else.)
#
# An H200 has three quarters more memory than an H100, and p99 is 1.23 s instead of 84.31 s. The weights take the same bytes on both cards. What counts is how much is *left*, and on two H100 hardly anything is.
#
# - **Host memory** keeps what the GPU evicts ([lesson 12](12_beyond_one_gpu.ipynb)). Now 38.9 + 41.5 = 80.4 % of the prompts' tokens are found, and p99 is nearly halved. But *blocked* doesn't fall, because a running sequence needs its blocks on the GPU. A second tier gives you hits, not room.
# - **KV in fp8** makes room: twice the tokens ([lesson 13](13_half_the_bytes.ipynb)).
# - **Two replicas of four GPUs**, instead of four replicas of two, hold the weights twice and not four times. With the same eight cards, the problem is gone.
#
# So before you buy GPUs, count how many copies of the weights you pay for.
#
# ### The block size
#
# With larger blocks the engine has fewer of them to look up. But the last block of each sequence is half empty on average, and only a full block can be shared.
# %% [markdown] key="memory_read" lang="zh" src="616cab2d"
# （“4 x 2 H200”指四个副本，每个两块 H200。token 数是一个副本的缓存放得下的。“缺块”是计算时间里，有请求只因为没有块而等待的占比。）
#
# H200 的显存只比 H100 多 3/4，p99 首 token 延迟却差了近 70 倍（1.23 秒对 84.31 秒）。因为权重在两种卡上占的字节一样多，起作用的是**剩下**多少，而两块 H100 几乎不剩什么。
#
# - **CPU 内存**留住 GPU 淘汰掉的块（[第 12 课](12_beyond_one_gpu.ipynb)）。提示词的 token 命中 38.9 + 41.5 = 80.4%，p99 几乎减半。但“缺块”一栏没有降，因为运行中的序列，块必须在 GPU 上。也就是说，第二层内存增加的是命中，不是空间。
# - **KV 用 fp8**，增加的才是空间：token 多一倍（[第 13 课](13_half_the_bytes.ipynb)）。
# - **两个四卡副本**代替四个两卡副本：权重只放两份，不是四份。同样八块卡，问题就没有了。
#
# 所以买 GPU 之前，先数一数权重放了几份。
#
# ### 块大小
#
# 块越大，要查找的块就越少；但每条序列的最后一个块平均空着一半，而且只有满的块才能共用。

# %% key="sizes" lang="en"
from minikv.simulate import sweep

rows = []
for row in sweep(traffic.head(150), partial(pairs, replicas=3), block_size=[16, 128, 512, 2048]):
    waste, hits, p99 = row.answers.waste, row.answers.hit_rate, row.answers.ttft.p99
    rows.append((row.settings["block_size"], f"{waste:.1%}", f"{hits:.1%}", f"{p99:.2f}"))
head = ["block size", "slots wasted", "found", "TTFT p99, s"]
Table(head, rows, right=head)

# %% key="sizes" lang="zh"
from minikv.simulate import sweep

rows = []
for row in sweep(traffic.head(150), partial(pairs, replicas=3), block_size=[16, 128, 512, 2048]):
    waste, hits, p99 = row.answers.waste, row.answers.hit_rate, row.answers.ttft.p99
    rows.append((row.settings["block_size"], f"{waste:.1%}", f"{hits:.1%}", f"{p99:.2f}"))
head = ["块大小", "浪费的槽位", "命中", "TTFT p99，秒"]
Table(head, rows, right=head)

# %% [markdown] key="sizes_read" lang="en"
# With prompts of thousands of tokens, blocks of 16 and of 128 give the same result here, and with 128 the simulation has an eighth of the blocks to look up. Only blocks of 2,048 waste a fifth of their slots and find a little less. With prompts of 200 tokens, blocks of 128 would matter too: try it with `Load(prompt_tokens=200, ...)`.
#
# ## The cheapest fleet
#
# `fewest` tries one number of replicas after the other. Each try simulates all the traffic, so it tries as few as it can, and then the neighbours of its answer:
# %% [markdown] key="sizes_read" lang="zh" src="fd9298e6"
# 提示词有几千个 token 时，块大小是 16 还是 128，在这里没有差别，而用 128，模拟要查的块只有八分之一。到了 2,048，才浪费五分之一的槽位，命中也略少。如果提示词只有 200 个 token，128 就不一样了，用 `Load(prompt_tokens=200, ...)` 试试。
#
# ## 最便宜的集群
#
# `fewest` 逐个尝试副本数。每试一次，就要把全部流量模拟一遍，所以它尽量少试，最后再试一下答案两旁的副本数：

# %% key="cheapest" lang="en"
from minikv.simulate.floor import ttft_floor

cards = {"2 H200": ("H200", 2), "4 H100": (small, 4), "1 B200": ("B200 SXM", 1)}
target, searches = Target(p99_ttft=2.0), {}
for name, (gpu, tp) in cards.items():
    searches[name] = fewest(traffic, partial(plan, gpu, tp=tp), target).tried
waits = {name: {one.gpus: one.ttft.p99 for one in tried.values()} for name, tried in searches.items()}
floor = float(np.percentile(ttft_floor(traffic, pairs()), 99))
levels = {"bound": target.p99_ttft, "floor of the H200": floor}
show(lines(waits, x="GPUs", y="p99 to first token, s", log="y", levels=levels))
answers_table({f"{n} x {name}": one for name, tried in searches.items() for n, one in tried.items()}, "en")

# %% key="cheapest" lang="zh"
from minikv.simulate.floor import ttft_floor

cards = {"2 H200": ("H200", 2), "4 H100": (small, 4), "1 B200": ("B200 SXM", 1)}
target, searches = Target(p99_ttft=2.0), {}
for name, (gpu, tp) in cards.items():
    searches[name] = fewest(traffic, partial(plan, gpu, tp=tp), target).tried
waits = {name: {one.gpus: one.ttft.p99 for one in tried.values()} for name, tried in searches.items()}
floor = float(np.percentile(ttft_floor(traffic, pairs()), 99))
levels = {"界限": target.p99_ttft, "H200 的下限": floor}
show(lines(waits, x="GPU 数", y="首 token 延迟的 p99，秒", log="y", levels=levels))
answers_table({f"{n} x {name}": one for name, tried in searches.items() for n, one in tried.items()}, "zh")

# %% [markdown] key="cheapest_read" lang="en"
# Look at the single B200. The weights of 70B leave it hardly any room, so little is found again, and for much of the time a request waits for *blocks* alone. But three B200, each with its own copy, do what takes six H200.
# More replicas help less and less. The floor in the plot shows where that ends: a document that is in no cache yet has to be computed by one replica alone, however many there are.
# (You write this search in exercise 17.4.)
#
# On the command line the same question is:
#
#     minikv simulate --synthetic 400 --rate 5 --input-len 400 --output-len 100 --spread 0.6 --turns 3 \
#         --think-seconds 20 --system-len 6144 --system-prompts 40 --hash-block 128 --seed 17 \
#         --model llama-3.1-70b --gpu H200 --tp 2 --router prefix --block-size 128 --fewest --p99-ttft 2
#
# ## Prefill and decode on GPUs of their own
#
# A prefill waits for arithmetic and a decode for memory, and a long prefill makes every other answer in its step stutter. In the table of steps above, 64 decodes take 37.0 ms, and 1,089.6 ms together with a prefill of 8,192 tokens.
# So some services give the two to different GPUs. This is **disaggregation** ([DistServe](https://arxiv.org/abs/2401.09670), and Mooncake, too). One replica computes the prompt, sends its K and V to another one, and that one decodes.
#
# The price is the move. It takes the bytes of a token times the tokens, divided by the rate of the link. For example, a prompt of 7,168 tokens of Llama-3.1-70B has $327{,}680 \cdot 7{,}168 = 2{,}348{,}810{,}240$ B. Is that much?
# %% [markdown] key="cheapest_read" lang="zh" src="50e63dca"
# 先看单独一块 B200。70B 的权重放进去，几乎不剩空间，所以命中很少，而且很多时间里，总有请求只是在等**块**。再加两块，三块 B200 就抵得上六块 H200。
# 副本越多，再加的用处越小。极限就是图里的下限，因为还不在任何缓存里的文档总得计算，副本再多，也只能由其中一个来算。
# （练习 17.4 就是写这种查找。）
#
# 在命令行里，同样的问题写作：
#
#     minikv simulate --synthetic 400 --rate 5 --input-len 400 --output-len 100 --spread 0.6 --turns 3 \
#         --think-seconds 20 --system-len 6144 --system-prompts 40 --hash-block 128 --seed 17 \
#         --model llama-3.1-70b --gpu H200 --tp 2 --router prefix --block-size 128 --fewest --p99-ttft 2
#
# ## 预填充和解码用不同的 GPU
#
# 预填充等算力，解码等显存；长的预填充还会让同一步里的其他回答都顿一下。例如在前面各种步的表里，64 条解码的一步是 37.0 毫秒，加上 8,192 个 token 的预填充，就变成 1,089.6 毫秒。
# 所以有的服务把两者放到不同的 GPU 上，这叫**预填充与解码分离**（disaggregation，见 [DistServe](https://arxiv.org/abs/2401.09670)，Mooncake 也是这样做的）。一个副本算完提示词，把 K 和 V 发给另一个副本，由后者解码。
#
# 代价是要搬数据，时间等于每个 token 的字节数乘以 token 数，再除以链路速度。例如 Llama-3.1-70B 的 7,168 个 token 的提示词，就是 $327{,}680 \cdot 7{,}168 = 2{,}348{,}810{,}240$ 字节。这算多吗？

# %% key="separate" lang="en"
from minikv.plan import CacheSpec

prompt, links = 7_168, {"NVLink, within a machine": 360, "network, 400 Gbit/s": 50, "network, 100 Gbit/s": 12.5}
moved, latents = (CacheSpec.from_config(model).bytes_for(prompt) for model in ("Llama-3.1-70B", "DeepSeek-V3"))
prefill, rows = clock.seconds(prefill=[(0, prompt)]), []
for name, rate in links.items():
    kv, latent = (num_bytes / (rate * 1e9) for num_bytes in (moved, latents))
    rows.append((name, f"{rate:g}", f"{1e3 * kv:.1f}", f"{kv / prefill:.1%}", f"{1e3 * latent:.1f}"))
head = ["link", "GB/s", "Llama-3.1-70B, ms", "share of its prefill", "DeepSeek-V3, ms"]
title = f"to move {moved:,} B (Llama) or {latents:,} B (DeepSeek); the prefill of Llama takes {1e3 * prefill:.1f} ms"
Table(head, rows, title=title, right=head[1:])

# %% key="separate" lang="zh"
from minikv.plan import CacheSpec

prompt, links = 7_168, {"机器内的 NVLink": 360, "400 Gbit/s 网络": 50, "100 Gbit/s 网络": 12.5}
moved, latents = (CacheSpec.from_config(model).bytes_for(prompt) for model in ("Llama-3.1-70B", "DeepSeek-V3"))
prefill, rows = clock.seconds(prefill=[(0, prompt)]), []
for name, rate in links.items():
    kv, latent = (num_bytes / (rate * 1e9) for num_bytes in (moved, latents))
    rows.append((name, f"{rate:g}", f"{1e3 * kv:.1f}", f"{kv / prefill:.1%}", f"{1e3 * latent:.1f}"))
head = ["链路", "GB/s", "Llama-3.1-70B，毫秒", "占预填充", "DeepSeek-V3，毫秒"]
title = f"要搬 {moved:,} B（Llama）或 {latents:,} B（DeepSeek）；Llama 的预填充要 {1e3 * prefill:.1f} 毫秒"
Table(head, rows, title=title, right=head[1:])

# %% [markdown] key="separate_read" lang="en"
# At 50 GB/s the move takes 47 ms, 5 % of the 938 ms that the prefill takes. You pay it once for each prompt, and no answer stutters any more. Over a network of 100 Gbit/s the move takes 188 ms, a fifth of the prefill. DeepSeek-V3's latents have 4.7 times fewer bytes, which is one more reason why models with latents are often served this way.
#
# The move is not the whole price:
#
# - **Both sides hold the weights.** You need whole replicas of each kind, so a small fleet is hard to divide.
# - **The ratio is fixed.** When prompts get longer, the prefill side is full while the decode side idles.
# - **Each side has a cache of its own.** Prefixes are found on the prefill side, and the room for long answers is needed on the decode side.
#
# A cheaper remedy is chunked prefill: a step with 512 tokens of the prompt takes 65.1 ms instead of 1,080.8 ms ([lesson 11a](11a_continuous_batching.ipynb)). The simulator knows chunks, but not disaggregation.
#
# ## Break it
#
# ### Divide
#
# The shortest plan is a division: the tokens that arrive in a second, divided by the tokens that a replica computes in a second, rounded up. Let's do that:
# %% [markdown] key="separate_read" lang="zh" src="01839b14"
# 50 GB/s 时要 47 毫秒，是预填充所需 938 毫秒的 5%。每个提示词只付一次，而所有回答都不再停顿。走 100 Gbit/s 的网络要 188 毫秒，相当于预填充的五分之一。DeepSeek-V3 的潜在向量要搬的字节只有 Llama 的 1/4.7，这也是存潜在向量的模型常常这样部署的一个原因。
#
# 另外还要付出：
#
# - **两边都要放权重**。两种副本都得整个地买，所以小集群不好分。
# - **比例是固定的**。提示词变长时，预填充那边已经满了，解码那边还闲着。
# - **两边各有自己的缓存**。前缀在预填充那边命中，而长回答需要的空间在解码那边。
#
# 更便宜的办法是分块预填充，一步只算提示词的 512 个 token，用时 65.1 毫秒，而不是 1,080.8 毫秒（[第 11a 课](11a_continuous_batching.ipynb)）。本课的模拟器支持分块预填充，但不支持预填充与解码分离。
#
# ## 弄坏它
#
# ### 直接相除
#
# 最省事的规划是一次除法，用每秒到来的 token，除以一个副本每秒能算的 token，再向上取整。算出来是多少？

# %% key="divide" lang="en"
import math

able, asked, rows = clock.prefill_rate(8192), traffic.prompt_tokens / traffic.duration, []
for name, rate in (("nothing is found in a cache", 0.0), ("all is found that can be", most)):
    left = asked * (1 - rate)
    rows.append((name, round(left), round(able), f"{left / able:.2f}", math.ceil(left / able), found.replicas))
head = ["if", "to compute, tokens/s", "one replica computes, tokens/s", "quotient", "replicas by division", "by simulation"]
Table(head, rows, right=["quotient"])

# %% key="divide" lang="zh"
import math

able, asked, rows = clock.prefill_rate(8192), traffic.prompt_tokens / traffic.duration, []
for name, rate in (("什么都没有命中", 0.0), ("能命中的全部命中", most)):
    left = asked * (1 - rate)
    rows.append((name, round(left), round(able), f"{left / able:.2f}", math.ceil(left / able), found.replicas))
head = ["如果", "要计算，token/秒", "一个副本能算，token/秒", "商", "相除得到的副本数", "模拟得到的"]
Table(head, rows, right=["商"])

# %% [markdown] key="divide_read" lang="en"
# One replica computes 8,192 tokens in 1.0808 s, so 7,580 a second. The division gives far too many replicas without the cache (6 instead of 3), and too few with it (1). It leaves out queues, decodes, and tokens that only another replica has in its cache. As a first guess it is fine, and `fewest` uses it to begin its search.
#
# ### The cache at any price
#
# Suppose that one user asks about a document. Three seconds later all requests ask about it, and only one replica has it in its cache. What happens if the router looks at nothing but prefixes ("no bound")?
# %% [markdown] key="divide_read" lang="zh" src="a12c16ad"
# 一个副本算 8,192 个 token 要 1.0808 秒，所以每秒 7,580 个。不算缓存，结果太多（6 个，其实 3 个就够）；算上缓存，又太少（1 个）。因为除法没有考虑排队和解码，也没有考虑一个副本缺的内容在另一个副本上。拿它作查找的起点倒是不错，`fewest` 正是这样用的。
#
# ### 不惜代价要命中
#
# 假设有一个用户先问过一份文档，三秒之后，所有请求都来问它，而它只在一个副本的缓存里。如果路由器只看前缀（“没有界限”），会怎样？

# %% key="hot" lang="en"
from minikv.course.lessons.l17.traffic import hot_document
from minikv.simulate import PrefixAware

asked_at_once = {}
for said, bound in (("bound = 1.25", 1.25), ("no bound", 1e9)):
    outcome = simulate(hot_document(), pairs(router=PrefixAware(bound), replicas=3))
    asked_at_once[said] = outcome.answers()
    show(fleet_requests(outcome, "en"), caption=said)
answers_table(asked_at_once, "en")

# %% key="hot" lang="zh"
from minikv.course.lessons.l17.traffic import hot_document
from minikv.simulate import PrefixAware

asked_at_once = {}
for said, bound in (("界限 = 1.25", 1.25), ("没有界限", 1e9)):
    outcome = simulate(hot_document(), pairs(router=PrefixAware(bound), replicas=3))
    asked_at_once[said] = outcome.answers()
    show(fleet_requests(outcome, "zh"), caption=said)
answers_table(asked_at_once, "zh")

# %% [markdown] key="hot_read" lang="en"
# Without the bound the hit rate is higher (93.1 % instead of 92.2 %), but p99 is 4.34 s instead of 0.87 s. Two of the three replicas never get a request, so they never get the document either, and sixty requests queue at the third.
#
# ### The clock
#
# Now we change the assumptions, one at a time, for the three pairs that the first call found:
# %% [markdown] key="hot_read" lang="zh" src="8a4dcca1"
# 没有界限时，命中率更高（93.1% 对 92.2%），p99 却从 0.87 秒变成 4.34 秒。三个副本里有两个从来没有分到过请求，也就从来没有得到那份文档，六十个请求都挤在剩下的那一个前面排队。
#
# ### 时钟
#
# 现在对第一次调用找到的集群，把假设逐个改一改：

# %% key="turn" lang="en"
changes = {"compute_efficiency": 0.6 / 1.22, "bandwidth_efficiency": 0.6}
changes |= {"overhead_seconds": 0.01, "link_gb_s": 50.0}
turned = {"Assumptions()": found.answers}
for name, value in changes.items():
    changed = pairs(replicas=found.replicas, assumptions=Assumptions(**{name: value}))
    turned[f"{name}={value:.3g}"] = simulate(traffic, changed).answers()
answers_table(turned, "en")

# %% key="turn" lang="zh"
changes = {"compute_efficiency": 0.6 / 1.22, "bandwidth_efficiency": 0.6}
changes |= {"overhead_seconds": 0.01, "link_gb_s": 50.0}
turned = {"Assumptions()": found.answers}
for name, value in changes.items():
    changed = pairs(replicas=found.replicas, assumptions=Assumptions(**{name: value}))
    turned[f"{name}={value:.3g}"] = simulate(traffic, changed).answers()
answers_table(turned, "zh")

# %% [markdown] key="turn_read" lang="en"
# In two of these cases the fleet no longer keeps its 2 s. One is the second row: 0.492 = 0.6 / 1.22, so we had assumed 22 % more arithmetic than the cards do. The other is the last row, where PCIe with 50 GB/s joins the cards. Overhead and bandwidth hardly change this TTFT, but they change the time per token. (Why 22 %? A real simulator was off by that much, see *In the wild*.)
#
# **Near the bend of the hockey stick, a small error of the clock becomes a large error of the answer.** So don't plan your fleet there, and measure before you decide.
#
# ### One real run
#
# Here tiny-gqa runs on this machine, on its GPU if it has one. First come some steps to measure, then 24 requests at once. `calibrate` replaces the assumptions by what the steps took. Then the same 24 requests run once more, on paper:
# %% [markdown] key="turn_read" lang="zh" src="7c8c6219"
# 原来守得住 2 秒的集群，有两种情况守不住了。一是第二行，0.492 = 0.6 / 1.22，也就是说，算力被高估了 22%；二是最后一行，卡与卡之间走的是 50 GB/s 的 PCIe。固定开销和带宽几乎不影响这里的 TTFT，影响的是每个 token 的时间。（为什么是 22%？因为有一个真实的模拟器就差了这么多，见“实战现场”。）
#
# **在曲棍球杆的弯折处，时钟差一点，答案差很多**。所以不要把容量定在那里，并且要实测。
#
# ### 一次真正的运行
#
# 下面让 tiny-gqa 在这台机器上真的运行，有 GPU 就用 GPU。先跑几步来测量，再同时来 24 个请求。`calibrate` 用实测的步换掉假设；然后让同样的 24 个请求在纸上再来一遍：

# %% key="real" lang="en" tags="timing"
from minikv.course.lessons.l17.real_run import run_here
from minikv.simulate import calibrate, measured_steps

run = run_here()
fitted = calibrate(run.guess, measured_steps(run.events, run.guess.cost))
paper = simulate(run.trace, run.fleet(fitted.step_time))
both = {"measured": (run.summary.steps, run.summary), "on paper": (paper.replicas[0].steps, paper.answers())}
rows = [
    (name, steps, 1e3 * said.ttft.p50, 1e3 * said.ttft.p99, 1e3 * said.tpot.p50)
    for name, (steps, said) in both.items()
]
errors = f"{fitted.before:.0%} as first assumed, {fitted.error:.0%} after calibration"
line = f"{fitted.count} measured steps are off by {errors}"
Table(["run", "steps", "TTFT p50, ms", "TTFT p99, ms", "TPOT p50, ms"], rows, lines=[line])

# %% key="real" lang="zh" tags="timing"
from minikv.course.lessons.l17.real_run import run_here
from minikv.simulate import calibrate, measured_steps

run = run_here()
fitted = calibrate(run.guess, measured_steps(run.events, run.guess.cost))
paper = simulate(run.trace, run.fleet(fitted.step_time))
both = {"实测": (run.summary.steps, run.summary), "纸上": (paper.replicas[0].steps, paper.answers())}
rows = [
    (name, steps, 1e3 * said.ttft.p50, 1e3 * said.ttft.p99, 1e3 * said.tpot.p50)
    for name, (steps, said) in both.items()
]
errors = f"按原来的假设 {fitted.before:.0%}，校准之后 {fitted.error:.0%}"
line = f"{fitted.count} 个实测的步，误差：{errors}"
Table(["运行", "步数", "TTFT p50，毫秒", "TTFT p99，毫秒", "TPOT p50，毫秒"], rows, lines=[line])

# %% [markdown] key="leaves_out" lang="en"
# The number of steps is the same, and that is no accident, because the same code made the decisions. Only the milliseconds are fitted. How good they are depends on how much the measured steps resemble those to come. (If another program runs on the machine, they may be far off, because one of the two runs was slower.)
# On real hardware you do the same: rent one replica for an hour, and replace the assumptions by what you measure.
#
# Whatever its numbers are, this clock leaves some things out: the tokenizer, the network, experts that are not used equally often, a GPU that slows down when hot, and failures. It also leaves out how users behave. (They don't arrive completely at random, as in our trace, and they leave when they have waited too long.)
# %% [markdown] key="leaves_out" lang="zh" src="802b97b6"
# 步数相同，这不是碰巧，因为做决定的是同一份代码。拟合出来的只有毫秒数，准不准要看将来的步与测过的步像不像。（机器上如果还有其他程序在跑，可能差得很远，因为两次运行的快慢本来就不同。）
# 在真正的硬件上也一样，租一个副本，跑一个小时，用实测换掉假设。
#
# 不论数字怎么取，这个时钟都没有算分词器、网络、使用并不均匀的专家、发热就变慢的 GPU，以及故障。它也没有算用户的行为，例如真实的用户不会像这份轨迹那样完全随机地到来，等得太久还会离开。

# %% [markdown] key="recap" lang="en"
# ## Recap
#
# - TTFT is the wait in the queue plus the steps of the prefill. A step takes the longer of arithmetic and memory, then link and overhead: 64 decodes take 37.0 ms where one takes 20.4 ms, and a prefill of 8,192 tokens takes 1,081 ms.
# - One pass over the trace gives the hit rate of an LRU pool of every size. Here 84.8 % can be found, and one replica's 2,966 blocks find nearly all of it.
# - The mean wait grows as $\rho / (1 - \rho)$: at 95 % busy it is 19 times as long as at 50 %. Percentiles have to be taken of all requests.
# - The same six H200 have a p99 of 3.57 s with round-robin, and of 1.78 s with a router that looks for prefixes within a bound.
# - You can believe the decisions and counts of such a simulation. Its seconds depend on assumptions. If we had assumed 22 % more arithmetic than the cards do, the 1.78 s would be 2.87 s in truth.
# %% [markdown] key="recap" lang="zh" src="fb419ea9"
# ## 本课小结
#
# - TTFT 等于排队的时间加上预填充的各步。一步的时间取计算和访存中较长的那个，再加上链路和固定开销。64 条解码要 37.0 毫秒，一条要 20.4 毫秒；预填充 8,192 个 token 要 1,081 毫秒。
# - 把轨迹走一遍，就能得到 LRU 块池在每种大小下的命中率。这里最多能命中 84.8%，一个副本的 2,966 个块几乎全都能命中。
# - 平均等待按 $\rho / (1 - \rho)$ 增长，利用率 95% 时的等待是 50% 时的 19 倍。分位数必须对全体请求来求。
# - 同样六块 H200，用 round-robin 时 p99 是 3.57 秒；换成在界限以内看前缀的路由器，就是 1.78 秒。
# - 模拟中的决定和计数可以相信，秒数则取决于假设。例如，如果算力高估了 22%，1.78 秒其实是 2.87 秒。

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
# In the exercise notebook you write the parts of such a planner:
#
# 1. `lru_hits`: the blocks that an LRU cache finds, at every capacity.
# 2. `ttft_percentiles`: p50, p90 and p99 of a fleet's time to first token, the wait included.
# 3. `choose`: the router that looks for prefixes within a bound.
# 4. `fewest_replicas`: the cheapest fleet, with few tries.
# %% [markdown] key="exercises" lang="zh" src="a63b37fd"
# ## 练习
#
# 在练习 notebook 里，你要写出这样一个规划工具的各个部分：
#
# 1. `lru_hits`：一个 LRU 缓存在每种容量下能找到多少块。
# 2. `ttft_percentiles`：带排队的首 token 延迟，求整个集群的 p50、p90、p99。
# 3. `choose`：在界限以内看前缀的路由器。
# 4. `fewest_replicas`：用尽量少的尝试，找到最便宜的集群。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | a hit rate far below what you hoped for | `hit_rates(trace, [None])`: no cache finds what isn't in the trace. If that is high, compare the routers: `sweep(trace, make, router=[...])` |
# | p99 does not fall, however many replicas | `minikv.simulate.floor.ttft_floor(trace, fleet)`: no number of replicas gets below this floor. Only a faster replica (a larger `tp`, another card) or shorter prompts can |
# | requests wait, and the GPUs are not full of work | `answers.blocked`: a large share of time means that blocks are missing. Try `kv_dtype="fp8"` or a larger `tp`, and see `minikv plan` |
# | one more replica makes p99 worse | `found.steady` is False: too few requests decide. Take a longer trace, since p99 of 400 requests depends on four of them |
# %% [markdown] key="stuck" lang="zh" src="329d4c28"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 命中率远低于预期 | `hit_rates(trace, [None])`：轨迹里没有的重复，什么缓存都找不到。如果它很高，就比较各种路由：`sweep(trace, make, router=[...])` |
# | 副本再多，p99 也不降 | `minikv.simulate.floor.ttft_floor(trace, fleet)`：副本再多也低不过它。要降，只能靠更快的副本（更大的 `tp`、别的卡），或更短的提示词 |
# | 请求在等，GPU 却没有满负荷 | 看 `answers.blocked`：占的时间多，就是缺块。用 `kv_dtype="fp8"`、更大的 `tp`，或 `minikv plan` |
# | 多一个副本，p99 反而变差 | `found.steady` 是 False：决定结果的请求太少。换更长的轨迹；400 个请求的 p99 只取决于其中四个 |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - [text-generation-inference #439](https://github.com/huggingface/text-generation-inference/issues/439): in June 2023 a user wanted to know which hardware 10,000 users need, which "The traffic" shows is not a load yet. In September 2025 [llm-optimizer #17](https://github.com/bentoml/llm-optimizer/issues/17) asked for an estimate "without actually having infrastructure", and heard that an accurate one needs it.
# - [agentic-coding-harness-benchmarks #32](https://github.com/aarora79/agentic-coding-harness-benchmarks/pull/32): in July 2026 the TTFT on a dashboard fell as more requests came at once, because it was a mean. [inference-sim #1510](https://github.com/inference-sim/inference-sim/issues/1510) left out the wait in front of the decode; see "Percentiles".
# - [vLLM #52463](https://github.com/vllm-project/vllm/issues/52463): in August 2026 ranks with equal load got requests in turn, so each turn of a conversation went to another rank and missed its own prefix. [SGLang #31170](https://github.com/sgl-project/sglang/pull/31170) measured p99 TTFT on real GPUs: 27.5 s with round-robin, 31.7 s by load, 6.8 s by prefix; see "Where a request goes".
# - [llm-d-autoscaling #1499](https://github.com/llm-d/llm-d-autoscaling/issues/1499): in July 2026 a script was proposed that divides the rate by what a replica can do. Its text calls the result a lower bound, and "Divide" shows why.
# - [prime-rl #3255](https://github.com/PrimeIntellect-ai/prime-rl/pull/3255): in August 2026 a router without a bound pinned sessions to an engine that was full. Its hit rate fell from 98 % to 5 % and it generated at a quarter of the speed, while three engines ran idle; see "The cache at any price".
# - [inference-sim #480](https://github.com/inference-sim/inference-sim/pull/480): in March 2026 a simulator was compared with sixteen runs of a real vLLM. At moderate load its throughput was within 2.5 %. But in one run it overestimated the capacity by 22 %, and promised 64 ms for a first token that took 120 s. Its TTFT was 17 to 56 % too short nearly everywhere, because no time passed between its steps ([#482](https://github.com/inference-sim/inference-sim/issues/482)).
# %% [markdown] key="wild" lang="zh" src="f979e8c7"
# ## 实战现场
#
# - [text-generation-inference #439](https://github.com/huggingface/text-generation-inference/issues/439)：2023 年 6 月，一位用户想知道一万个用户需要什么硬件，而“流量”一节说明，这还算不上负载。2025 年 9 月，[llm-optimizer #17](https://github.com/bentoml/llm-optimizer/issues/17) 想在没有硬件的情况下估算，得到的回答是：要准，就得有真正的硬件。
# - [agentic-coding-harness-benchmarks #32](https://github.com/aarora79/agentic-coding-harness-benchmarks/pull/32)：2026 年 7 月，一份仪表盘上，同时到来的请求越多，TTFT 反而越低，因为那是平均值。[inference-sim #1510](https://github.com/inference-sim/inference-sim/issues/1510) 则漏掉了解码之前的排队；见“分位数”一节。
# - [vLLM #52463](https://github.com/vllm-project/vllm/issues/52463)：2026 年 8 月，负载相同的 rank 改为轮流接请求，结果一段对话的每一轮都落到另一个 rank 上，错过自己的前缀。[SGLang #31170](https://github.com/sgl-project/sglang/pull/31170) 在真实的 GPU 上测了 p99 TTFT：轮流是 27.5 秒，按负载是 31.7 秒，按前缀是 6.8 秒；见“请求往哪里去”一节。
# - [llm-d-autoscaling #1499](https://github.com/llm-d/llm-d-autoscaling/issues/1499)：2026 年 7 月，有一个脚本的提案，用请求速率除以一个副本的能力。文中说明结果只是下界，“直接相除”一节说明了原因。
# - [prime-rl #3255](https://github.com/PrimeIntellect-ai/prime-rl/pull/3255)：2026 年 8 月，一个没有界限的路由器把会话钉在一个已经满了的引擎上。它的命中率从 98% 掉到 5%，生成速度只剩四分之一，另外三个引擎却闲着；见“不惜代价要命中”一节。
# - [inference-sim #480](https://github.com/inference-sim/inference-sim/pull/480)：2026 年 3 月，一个模拟器与真实 vLLM 的十六次运行对照。负载不高时，吞吐量的误差在 2.5% 以内；但在容量高估了 22% 的那一组，它预计第一个 token 要 64 毫秒，实际要 120 秒。而且它的 TTFT 几乎处处短了 17% 到 56%，因为它的两步之间不花时间（[#482](https://github.com/inference-sim/inference-sim/issues/482)）。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You have planned a fleet on paper, and you know which of its numbers to check first.
# In [lesson 18](18_capstone.ipynb), the last one, you get a load and a budget and use everything that you have learned, on your own machine.
# %% [markdown] key="next" lang="zh" src="1850d2be"
# ## 下一课
#
# 你在纸上规划了一个集群，也知道该先核对其中哪些数字。
# [第 18 课](18_capstone.ipynb)是最后一课。给你一份负载、一份预算，用上学过的一切，在你自己的机器上运行。
