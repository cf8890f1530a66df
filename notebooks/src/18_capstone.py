# %% [meta]
# number = "18"
# slug = "capstone"
# needs = ["08", "09", "11b", "13", "13b", "14", "17"]
# rooms = ["course.capstone"]
# [title]
# en = "Can you serve this load within this budget?"
# zh = "给定预算，你能承载这份负载吗？"
# [t4]
# en = "The CPU computes the task of this lesson, and its scores are the same everywhere. `model_task` serves your own model on the T4."
# zh = "本课的任务由 CPU 计算，在哪台机器上得分都一样。用 `model_task` 可以让 T4 跑你自己的模型。"
# [paper]
# en = "18.1, 18.2, 18.3"
# zh = "18.1、18.2、18.3"

# %% [markdown] key="question" lang="en"
# ## The question
#
# **Here is a load, a budget of bytes and a quality bar for the answers. How fast can you serve the load, and how do you know that it can't be done faster?**
#
# The load is 36 requests, which share 512 KiB of cache. What matters most is how many of the longest requests fit at once, and you can work that out on paper. (The longest has 279 tokens. The last of them is never stored, so 278 take room.) Each row of the picture is one way to store K and V, and shows how many such requests fit into the budget:
# %% [markdown] key="question" lang="zh" src="f907dbc7"
# ## 问题
#
# **给你一份负载、一份字节预算和一个质量门槛，你能跑多快？又怎么知道不可能再快了？**
#
# 负载是 36 个请求，共用 512 KiB 缓存。最要紧的是最长的请求能同时放下几个，这在纸上就算得出。（最长的有 279 个 token，最后一个不用存，所以占 278 个的地方。）图里每一行是 K 和 V 的一种存法，以及在这份预算里能放下几个这样的请求：

# %% key="room" lang="en"
import torch

from minikv.course.capstone import Plan, floor, serve, tiny_task
from minikv.course.diagrams import plan_room

torch.set_num_threads(1)
task = tiny_task()
ways = [Plan(kv_dtype=dtype, block_size=size) for dtype in (None, "bf16", "int8") for size in (16, 64)]
show(plan_room(task, ways, "en"))

# %% key="room" lang="zh"
import torch

from minikv.course.capstone import Plan, floor, serve, tiny_task
from minikv.course.diagrams import plan_room

torch.set_num_threads(1)
task = tiny_task()
ways = [Plan(kv_dtype=dtype, block_size=size) for dtype in (None, "bf16", "int8") for size in (16, 64)]
show(plan_room(task, ways, "zh"))

# %% [markdown] key="able" lang="en"
# After this lesson you can
#
# - **plan** on paper how much a budget holds;
# - **see** where the seconds of a run went, and change the setting that affects that part;
# - **defend** every number of your plan, and say how far it is from the floor.
#
# There is no sample configuration to copy, because the right settings depend on the load more than on the card. But there is a method, and you have learned all of its steps: count, plan, allocate, run, see where the time went, change one thing.
#
# You need the pool of [lesson 08](08_allocate_kv_cache.ipynb), the blocks of [lesson 09](09_pages_and_blocks.ipynb), the scheduler of [lesson 11b](11b_when_blocks_run_out.ipynb), int8 from [lesson 13](13_half_the_bytes.ipynb), prompt lookup from [lesson 13b](13b_fewer_cheaper_steps.ipynb), eviction from [lesson 14](14_what_to_forget.ipynb) and the clock of [lesson 17](17_a_fleet_on_paper.ipynb).
# %% [markdown] key="able" lang="zh" src="1f276ace"
# 学完本课，你能够：
#
# - 在纸上**计划**一份预算放得下多少；
# - **看出**一次运行的时间花在哪里，并改动真正影响那一部分的设置；
# - 为方案里的每个数字**说出理由**，并说出它离下限还有多远。
#
# 没有可以照抄的样例配置，因为配置要跟着负载定，而不只是跟着显卡定。但方法是有的，而且每一步你都学过，也就是先数清楚，再做计划、分配、运行，看时间花在哪里，然后只改一样。
#
# 本课用到：块池（[第 08 课](08_allocate_kv_cache.ipynb)）、块（[第 09 课](09_pages_and_blocks.ipynb)）、调度器（[第 11b 课](11b_when_blocks_run_out.ipynb)）、int8（[第 13 课](13_half_the_bytes.ipynb)）、提示词查找（[第 13b 课](13b_fewer_cheaper_steps.ipynb)）、淘汰（[第 14 课](14_what_to_forget.ipynb)）和时钟（[第 17 课](17_a_fleet_on_paper.ipynb)）。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# The model is tiny-gqa, which you know from many lessons. Answer two questions before you see the task:
# %% [markdown] key="predict_first" lang="zh" src="40fa3745"
# ## 先猜一猜
#
# 模型是你已经熟悉的 tiny-gqa。看任务之前，先答两题。

# %% key="predict_blocks"
predict("blocks_that_fit", ...)

# %% key="predict_leave"
predict("never_to_leave", ...)

# %% [markdown] key="task_intro" lang="en"
# ## The task
# %% [markdown] key="task_intro" lang="zh" src="8b7533c6"
# ## 任务

# %% key="task" lang="en"
task.shown("en")

# %% key="task" lang="zh"
task.shown("zh")

# %% [markdown] key="task_read" lang="en"
# Everything in this task is real except the seconds. The engine of [lesson 11a](11a_continuous_batching.ipynb) schedules and computes every step, the answers are the model's own, and the budget is measured in bytes. How long a step *takes* is computed from its tokens and bytes, on the clock of [lesson 17](17_a_fleet_on_paper.ipynb). So your score is the same on every machine, and you can compare two plans to the last digit.
#
# Here is the load, one row for each moment at which requests arrive. What does it need most: room, arithmetic or steps?
# %% [markdown] key="task_read" lang="zh" src="df4d340d"
# 除了秒数，一切都是真的。每一步都由[第 11a 课](11a_continuous_batching.ipynb)的引擎调度并计算，答案是模型自己给出的，预算按字节量。一步**花多久**，则用[第 17 课](17_a_fleet_on_paper.ipynb)的时钟，由这一步的 token 和字节算出。所以你的得分在每台机器上都一样，两个方案可以比到最后一位。
#
# 下面是负载，每一行是一批请求到达的时刻。它最缺的是空间、算力，还是步数？

# %% key="load" lang="en"
from collections import Counter

from minikv.course import Table

groups, rows = Counter(request.group for request in task.requests), []
for moment in sorted({request.arrival_s for request in task.requests}):
    mine = [request for request in task.requests if request.arrival_s == moment]
    prompts, news = [len(request.tokens) for request in mine], [request.max_tokens for request in mine]
    shared = sum(groups[request.group] > 1 for request in mine)
    rows.append((round(1e3 * moment), len(mine), shared, min(prompts), max(prompts), news.count(1), max(news)))
tokens = sum(request.longest for request in task.requests)
note = f"the longest request has {task.max_model_len} tokens, all of them together {tokens:,}"
head = ["arrive at, ms", "requests", "of these about a shared document", "shortest prompt", "longest prompt", "want one token", "longest answer"]
Table(head, rows, lines=[note])

# %% key="load" lang="zh"
from collections import Counter

from minikv.course import Table

groups, rows = Counter(request.group for request in task.requests), []
for moment in sorted({request.arrival_s for request in task.requests}):
    mine = [request for request in task.requests if request.arrival_s == moment]
    prompts, news = [len(request.tokens) for request in mine], [request.max_tokens for request in mine]
    shared = sum(groups[request.group] > 1 for request in mine)
    rows.append((round(1e3 * moment), len(mine), shared, min(prompts), max(prompts), news.count(1), max(news)))
tokens = sum(request.longest for request in task.requests)
note = f"最长的请求有 {task.max_model_len} 个 token，全部加起来 {tokens:,} 个"
head = ["到达，毫秒", "请求数", "其中问共享文档的", "最短的提示词", "最长的提示词", "只要一个 token 的", "最长的回答"]
Table(head, rows, lines=[note])

# %% [markdown] key="formula" lang="en"
# ## What is scored
#
# For example, the plan with all defaults takes 2.0214 s, and no plan can take less than 0.2972 s, which is called the **floor**. So the defaults score 100 × 0.2972 / 2.0214 = 14.7. In general:
# %% [markdown] key="formula" lang="zh" src="209d47eb"
# ## 怎样计分
#
# 例如，全用默认值的方案用了 2.0214 秒，而任何方案都不可能少于 0.2972 秒，这就是**下限**。所以默认方案得 100 × 0.2972 / 2.0214 = 14.7 分。一般的公式是：

# %% [markdown] key="formula_math"
# $$\text{score} \;=\; \begin{cases} 100 \cdot F / S & \text{if } q \ge \bar q \text{ and } K \le \bar K \\ 0 & \text{otherwise} \end{cases} \qquad\qquad F \;=\; \max_{t} \; \Big( t + \max\!\big( C_t / P,\; (n_t W + R_t) / B \big) + n_t \, o \Big)$$

# %% [markdown] key="symbols" lang="en"
# | symbol | meaning | unit | value here |
# |---|---|---|---|
# | $S$, $F$ | seconds of the run (defaults), and the floor | s | 2.0214, 0.2972 |
# | $q$, $\bar q$ | share of the expected answer tokens that are right, and the bar | 0 to 1 | 1.0, 0.9 |
# | $K$, $\bar K$ | what the cache takes, with the records of eviction, and the budget | bytes | 524,288, 524,288 |
# | $t$ | a moment at which requests arrive; $C_t$, $n_t$ and $R_t$ count those that arrive then or later | s | 0.25 |
# | $C_t$ | FLOPs of the tokens that any plan has to compute | FLOP | 883,709,952 |
# | $n_t$ | steps that the longest answer needs if every guess of the prompt lookup is right. The first step computes the prompt and brings one token, then each brings 9 (8 guesses and one more), so 40 tokens need 1 + ⌈39 / 9⌉ | steps | 6 |
# | $W$ | the weights, read once a step | bytes | 1,282,560 |
# | $R_t$ | the least that any plan reads of the cache | bytes | 378,368 |
# | $P$, $B$ | FLOP rate and bandwidth that a step reaches: 60 % and 80 % of the card's | FLOP/s, bytes/s | 25.07e9, 328.1e6 |
# | $o$ | overhead of a step | s | 0.002 |
#
# With the numbers put in: arithmetic takes 883,709,952 / 25.07e9 = 0.0352 s, and reading takes (6 × 1,282,560 + 378,368) / 328.1e6 = 0.0246 s. The longer one counts, so $F$ = 0.25 + 0.0352 + 6 × 0.002 = 0.2972 s.
#
# Below the bar the score is 0, however fast the run was. Otherwise a plan could always get faster by giving wrong answers.
# %% [markdown] key="symbols" lang="zh" src="b641fec3"
# | 符号 | 含义 | 单位 | 本例取值 |
# |---|---|---|---|
# | $S$、$F$ | 运行的秒数（默认方案），以及下限 | 秒 | 2.0214、0.2972 |
# | $q$、$\bar q$ | 应有的答案 token 里答对的比例，以及质量门槛 | 0 到 1 | 1.0、0.9 |
# | $K$、$\bar K$ | 缓存占用（淘汰的记录也算在内），以及预算 | 字节 | 524,288、524,288 |
# | $t$ | 有请求到达的一个时刻；$C_t$、$n_t$、$R_t$ 只算那时及以后到达的请求 | 秒 | 0.25 |
# | $C_t$ | 任何方案都必须计算的 token 的 FLOP | FLOP | 883,709,952 |
# | $n_t$ | 假设提示词查找每次都猜对，最长的回答需要几步：提示词和第一个 token 一步，此后每步 9 个（猜 8 个，再加 1 个），40 个 token 就是 1 + ⌈39 / 9⌉ | 步 | 6 |
# | $W$ | 权重，每步读一遍 | 字节 | 1,282,560 |
# | $R_t$ | 任何方案都至少要读的缓存 | 字节 | 378,368 |
# | $P$、$B$ | 一步实际达到的算力和带宽，即卡的 60% 和 80% | FLOP/秒、字节/秒 | 25.07e9、328.1e6 |
# | $o$ | 一步的固定开销 | 秒 | 0.002 |
#
# 代入数字：计算要 883,709,952 / 25.07e9 = 0.0352 秒，读取要 (6 × 1,282,560 + 378,368) / 328.1e6 = 0.0246 秒，取较长的一个，所以 $F$ = 0.25 + 0.0352 + 6 × 0.002 = 0.2972 秒。
#
# 牺牲正确率总能换来速度，所以质量不达标时，再快也记 0 分。

# %% key="floor" lang="en"
bound = floor(task)
bound.shown("en")

# %% key="floor" lang="zh"
bound = floor(task)
bound.shown("zh")

# %% [markdown] key="paper" lang="en"
# (In exercise 18.3 you write such a floor.)
#
# ## Plan on paper
#
# For each way to store K and V you need three numbers: the bytes of a token, the blocks that fit, and the sequences that can run at once if each gets as long as the longest. For int8 and blocks of 16: a token has 2 layers × 2 KV heads × 2 (K and V) rows of 32 B and a scale of 4 B, so it takes 8 × 36 = 288 B. Then 524,288 // (16 × 288) = 113 blocks fit. The longest request needs 18 of them, and 113 // 18 = 6 sequences run at once. Here are all ways of the first picture:
# %% [markdown] key="paper" lang="zh" src="a8f7e8dc"
# （练习 18.3 就是写这样一个下限。）
#
# ## 先在纸上算
#
# K 和 V 的每种存法，都要算三个数：一个 token 的字节，放得下的块，以及每条都长到最长时能同时运行几条序列。例如 int8、块大小 16，一个 token 有 2 层 × 2 个 KV 头 × 2（K 和 V）= 8 行，每行 32 B，另加 4 B 的缩放因子，共 8 × 36 = 288 B，所以放得下 524,288 // (16 × 288) = 113 个块；最长的请求要 18 个块，113 // 18 = 6，能同时运行六条。第一张图里的各种存法都在下面。

# %% key="paper_code" lang="en"
longest, rows = task.max_model_len - 1, []  # the last token that is generated is never stored
for way in ways:
    blocks, size = way.num_blocks_for(task), way.block_size
    token = task.spec(way.kv_dtype).slope()
    rows.append((way.kv_dtype or "fp32", size, token, blocks, blocks * size, blocks // -(-longest // size)))
head = ["K and V", "block size", "bytes a token", "blocks", "tokens", "longest requests at once"]
Table(head, rows)

# %% key="paper_code" lang="zh"
longest, rows = task.max_model_len - 1, []  # 最后生成的 token 不会存进缓存
for way in ways:
    blocks, size = way.num_blocks_for(task), way.block_size
    token = task.spec(way.kv_dtype).slope()
    rows.append((way.kv_dtype or "fp32", size, token, blocks, blocks * size, blocks // -(-longest // size)))
head = ["K 和 V", "块大小", "每个 token 的字节", "块数", "token 数", "最长的请求能同时放几个"]
Table(head, rows)

# %% [markdown] key="paper_read" lang="en"
# The last column isn't a number of users. Most requests are shorter than the longest, and blocks that they share are stored once. It says up to how many sequences none ever has to be preempted for another.
#
# If you divide by the *average* length, you promise more room than there is, and the engine has to preempt. (Exercise 18.1 counts what a number of bytes holds. Exercise 18.2 is an admission control: the sequences that it admits are never preempted.)
#
# ## Run it
#
# We start with the plan that needs no thought, all defaults.
# %% [markdown] key="paper_read" lang="zh" src="e56f1a74"
# 最后一列不是用户数，因为大多数请求比最长的短，共享的部分也只存一份。它的意思是，只要同时运行的序列不超过这么多条，就绝不会有序列被抢占。
#
# 如果用**平均**长度去除，算出的条数就超过实际放得下的，引擎只好抢占。（练习 18.1 计算一份字节能放下多少；练习 18.2 写一个准入控制，它放行的请求保证不会被抢占。）
#
# ## 运行
#
# 先跑一个没有经过任何考虑的方案，也就是全用默认值。

# %% key="naive" lang="en"
naive = serve(task, Plan(label="naive"))
naive.shown("en")

# %% key="naive" lang="zh"
naive = serve(task, Plan(label="全用默认值"))
naive.shown("zh")

# %% [markdown] key="where" lang="en"
# ### Where the time went
#
# A change can save at most the part of the time that it affects. So look at the parts first. A step that waits for bytes reads the weights once and then the cache of each of its sequences. A step that waits for arithmetic is mostly computing a prompt.
# %% [markdown] key="where" lang="zh" src="a4e90ad9"
# ### 时间花在哪里
#
# 一种手段最多只能省掉它所作用的那一部分时间，所以动手之前，先看各部分占多少。访存受限的一步，先读一遍权重，再读这一步里每条序列的缓存；计算受限的一步，多半是在算提示词。

# %% key="where_code" lang="en"
from minikv.course.lessons.l18.shown import runs_table, score_chart, where_chart

show(where_chart(task, [naive], "en"))
row = naive.steps, naive.preemptions, naive.metrics.lost_tokens, f"{naive.hit_rate:.0%}"
head = ["steps", "preemptions", "tokens lost by preemption", "prompt tokens found in the cache"]
Table(head, [row], right=head[3:])

# %% key="where_code" lang="zh"
from minikv.course.lessons.l18.shown import runs_table, score_chart, where_chart

show(where_chart(task, [naive], "zh"))
row = naive.steps, naive.preemptions, naive.metrics.lost_tokens, f"{naive.hit_rate:.0%}"
head = ["步数", "抢占", "因抢占丢掉的 token", "提示词的 token 命中"]
Table(head, [row], right=head[3:])

# %% [markdown] key="see" lang="en"
# ## See it
#
# Here is the same plan in the widget of [lesson 11b](11b_when_blocks_run_out.ipynb), with the first twelve requests. Twelve steps are done. "Step" computes one more, and "Start" goes on at two steps a second. Watch three things: which requests wait, which blocks are shared, and how many blocks are empty.
#
# Before you press: eight blocks are empty and nine requests wait. Why is none of them admitted?
# %% [markdown] key="see" lang="zh" src="b18284b1"
# ## 亲眼看看
#
# 同一个方案，放进[第 11b 课](11b_when_blocks_run_out.ipynb)的组件，跑最前面的十二个请求。已经算了十二步，“单步”再算一步，“开始”则以每秒两步往下走。注意看三样东西：哪些请求在等，哪些块是共享的，有多少块空着。
#
# 按之前先想一想：有八个块空着，九个请求在等，为什么一个也进不来？

# %% key="widget" lang="en"
from minikv import LLM
from minikv.course.widgets import EngineWidget

first = task.requests[:12]
engine = LLM(task.model, num_blocks=naive.num_blocks, max_model_len=task.max_model_len, enforce_eager=True)
prompts = [list(request.tokens) for request in first]
params = [request.params(number) for number, request in enumerate(first)]
widget = EngineWidget(engine, prompts, params, lang="en", speed=2)
for _ in range(12):
    widget.step()
show(widget, text=widget.text("en"))

# %% key="widget" lang="zh"
from minikv import LLM
from minikv.course.widgets import EngineWidget

first = task.requests[:12]
engine = LLM(task.model, num_blocks=naive.num_blocks, max_model_len=task.max_model_len, enforce_eager=True)
prompts = [list(request.tokens) for request in first]
params = [request.params(number) for number, request in enumerate(first)]
widget = EngineWidget(engine, prompts, params, lang="zh", speed=2)
for _ in range(12):
    widget.step()
show(widget, text=widget.text("zh"))

# %% [markdown] key="levers" lang="en"
# (The answer: D is the first in the queue. Its 171 tokens need eleven blocks, only eight are empty, and no request overtakes D.)
#
# ## Change one thing at a time
#
# Each of the next cells changes one setting and nothing else. Say before each what will change: the seconds, the steps, the hits, or nothing. Then look at the price.
#
# ### Fewer bytes
#
# [Lesson 13](13_half_the_bytes.ipynb) stored each number of K and V in one byte. That has two effects: a step reads less, and more tokens fit.
# %% [markdown] key="levers" lang="zh" src="804c48fe"
# （答案：队列里的第一个是 D，它的 171 个 token 要十一个块，只空着八个，而任何请求都不能排到 D 前面。）
#
# ## 一次只改一样
#
# 下面每个单元格只改一个设置，别的都不动。运行之前先说一说，秒数、步数、命中，哪个会变，还是都不变？然后看代价是什么。
#
# ### 少存一些字节
#
# [第 13 课](13_half_the_bytes.ipynb)把 K 和 V 的每个数存成一个字节。它有两重作用：一步读得少了，放得下的 token 也多了。

# %% key="predict_int8"
predict("what_int8_brings", ...)

# %% key="lever_bytes" lang="en"
int8 = serve(task, Plan(kv_dtype="int8", label="int8"))
show(where_chart(task, [naive, int8], "en"))
runs_table([naive, int8], "en")

# %% key="lever_bytes" lang="zh"
int8 = serve(task, Plan(kv_dtype="int8", label="int8"))
show(where_chart(task, [naive, int8], "zh"))
runs_table([naive, int8], "zh")

# %% [markdown] key="bytes_read" lang="en"
# **The room made the difference, not the reading.** Reading the cache took 16 % of the seconds. If int8 had only made that cheaper, the run would be 1.13 times as fast. It is three times as fast, because three and a half times as many tokens fit. So more sequences share each step, and 84 steps are enough instead of 283.
#
# The parts have shifted too: arithmetic was 4 % of the time and is now 18 %. All answers are still right.
#
# ### Blocks
#
# A block can be shared only when it is full, and the last block of each sequence is partly empty ([lesson 09](09_pages_and_blocks.ipynb)). So smaller blocks find more in the prefix cache and waste less. What could be good about large ones?
# %% [markdown] key="bytes_read" lang="zh" src="c1493002"
# **起作用的是空间，不是读得少**。缓存只占时间的 16%，如果 int8 只是让读取变快，速度只会是原来的 1.13 倍。实际快了三倍，因为放得下的 token 是原来的三倍半，一步里的序列多了，原来要 283 步的，现在 84 步就做完。
#
# 各部分的比例也变了，例如计算原来占 4%，现在占 18%。答案仍然全对。
#
# ### 块
#
# 块满了才能共享，每条序列的最后一块总空着一部分（[第 09 课](09_pages_and_blocks.ipynb)）。所以块小一些，命中多，浪费少。那么大块还有什么好处？

# %% key="lever_blocks" lang="en"
small, large = (serve(task, Plan(block_size=size, label=f"blocks of {size}")) for size in (4, 64))
runs_table([naive, small, large], "en")

# %% key="lever_blocks" lang="zh"
small, large = (serve(task, Plan(block_size=size, label=f"块大小 {size}")) for size in (4, 64))
runs_table([naive, small, large], "zh")

# %% [markdown] key="blocks_read" lang="en"
# Small blocks are a few percent faster, large ones a few percent slower. Small blocks find a little more and leave fewer slots empty. The advantage of large blocks doesn't show on this clock. A kernel has to read the block table, and with blocks of 4 the table is four times as long as with blocks of 16 ([lesson 10](10_kernels.ipynb)).
#
# ### More sequences, and the budget of a step
#
# More sequences in a step (`max_num_seqs`, 64 by default) share its weights and its overhead, as long as there are blocks for them. A smaller token budget (`max_batched_tokens`, 2,048 by default) cuts prompts into chunks ([lesson 11a](11a_continuous_batching.ipynb)).
# %% [markdown] key="blocks_read" lang="zh" src="6348219f"
# 上下只差百分之几：块小，命中稍多，空着的槽位也少。大块的好处在这个时钟上看不出来，因为那是 kernel 的事，它要读块表，块大小为 4 时，块表是块大小为 16 时的四倍长（[第 10 课](10_kernels.ipynb)）。
#
# ### 并发上限与一步的预算
#
# 一步里的序列越多（并发上限 `max_num_seqs`，默认 64），分摊权重和固定开销的就越多，前提是块够用。token 预算小一些（`max_batched_tokens`，默认 2,048），提示词就会切成小段（[第 11a 课](11a_continuous_batching.ipynb)）。

# %% key="lever_seats" lang="en"
four = serve(task, Plan(max_num_seqs=4, label="at most 4 at once"))
chunks = serve(task, Plan(max_batched_tokens=64, label="64 tokens a step"))
runs_table([naive, four, chunks], "en")

# %% key="lever_seats" lang="zh"
four = serve(task, Plan(max_num_seqs=4, label="并发上限 4"))
chunks = serve(task, Plan(max_batched_tokens=64, label="每步 64 个 token"))
runs_table([naive, four, chunks], "zh")

# %% [markdown] key="seats_read" lang="en"
# A limit of four sequences changes nothing, not even the last digit. There never were blocks for a fifth sequence, so the limit of 64 was never reached.
#
# A budget of 64 tokens costs 30 more steps. It has a benefit that this score doesn't count: sequences in decode wait less for the prompts of other requests.
#
# ### Guesses
#
# Prompt lookup proposes tokens that followed the same words earlier in the text ([lesson 13b](13b_fewer_cheaper_steps.ipynb)). A right guess saves a step. A wrong one is computed for nothing.
# %% [markdown] key="seats_read" lang="zh" src="75e35e0e"
# 并发上限改成 4，结果一模一样，连最后一位都不变。因为块从来不够第五条序列用，原来的上限 64 从未达到过。
#
# 预算改成 64 个 token，多花了 30 步。它的好处不算在得分里：正在解码的序列，不会被其他请求的提示词耽误那么久。
#
# ### 猜测
#
# 提示词查找从前文里找出同样的词，把后面跟着的 token 拿来作草稿（[第 13b 课](13b_fewer_cheaper_steps.ipynb)）。猜对了省一步，猜错了就白算。

# %% key="predict_steps"
predict("fewest_steps", ...)

# %% key="lever_lookup" lang="en"
lookup = serve(task, Plan(prompt_lookup=4, label="4 drafts"))
show(where_chart(task, [naive, lookup], "en"))
print(f"{lookup.metrics.acceptance or 0.0:.0%} of the guesses were right")
runs_table([naive, lookup], "en")

# %% key="lever_lookup" lang="zh"
lookup = serve(task, Plan(prompt_lookup=4, label="4 个草稿"))
show(where_chart(task, [naive, lookup], "zh"))
print(f"草稿猜中 {lookup.metrics.acceptance or 0.0:.0%}")
runs_table([naive, lookup], "zh")

# %% [markdown] key="lookup_read" lang="en"
# Only one guess in ten is right, and still the guesses save almost a quarter of the steps. More than a thousand tokens were computed for nothing. But they cost almost no time, because the arithmetic units would have been idle anyway.
#
# ### Host memory
#
# Instead of being recomputed, a preempted sequence can move to the CPU's memory and come back ([lesson 12](12_beyond_one_gpu.ipynb)).
# %% [markdown] key="lookup_read" lang="zh" src="f8d3d673"
# 十个草稿只猜中一个，却还是省下了将近四分之一的步数。上千个 token 白算了，但几乎不花时间，因为算力本来就闲着，草稿用的正是闲着的这部分。
#
# ### CPU 内存
#
# 被抢占的序列可以换出到 CPU 内存，回来时不必重新计算（[第 12 课](12_beyond_one_gpu.ipynb)）。

# %% key="lever_host" lang="en"
host = serve(task, Plan(cpu_kv_bytes=4 * task.kv_bytes, label="host memory"))
runs_table([naive, host], "en")

# %% key="lever_host" lang="zh"
host = serve(task, Plan(cpu_kv_bytes=4 * task.kv_bytes, label="CPU 内存"))
runs_table([naive, host], "zh")

# %% [markdown] key="host_read" lang="en"
# Again nothing changes. No sequence was preempted, so none was ever swapped out, and host memory had nothing to do. (In a plan that preempts, it would help. Can you find one?)
#
# ### Forgetting
#
# Eviction makes room and reads less, but it can cost right answers ([lesson 14](14_what_to_forget.ipynb)). KeyDiff keeps 96 tokens of each text here: the sinks, a recent window, and the keys that are least alike. It also keeps a record of these tokens for each sequence that may run, and the records count against the same budget. So this plan also lowers `max_num_seqs` to 16.
# %% [markdown] key="host_read" lang="zh" src="5c8b7cf6"
# 还是什么也没变，因为一次抢占也没有，从来没有序列换出，CPU 内存也就用不上。（方案里有抢占时，它才有用。你能找到这样一个方案吗？）
#
# ### 遗忘
#
# 淘汰能腾出空间，也能少读，代价是答案可能出错（[第 14 课](14_what_to_forget.ipynb)）。这里 KeyDiff 每篇文本留 96 个 token：汇点、近期窗口，以及彼此最不像的 key。它还要为每条可能运行的序列存一份记录，说明留下的是哪些 token。记录也算在同一份预算里，并发上限是几就要几份，所以这个方案把 `max_num_seqs` 降到了 16。

# %% key="lever_evict" lang="en"
from minikv.engine import EvictionConfig

kept = EvictionConfig("keydiff", n_sink=4, budget=76, n_recent=16, prefill_chunk=64)
evict = serve(task, Plan(eviction=kept, max_num_seqs=16, label="keydiff, 96"))
records, blocks, gone = evict.plan.record_bytes(task), evict.num_blocks, evict.evicted_tokens
print(f"records take {records:,} bytes, {blocks} blocks are left; {gone:,} tokens were forgotten")
runs_table([naive, evict], "en")

# %% key="lever_evict" lang="zh"
from minikv.engine import EvictionConfig

kept = EvictionConfig("keydiff", n_sink=4, budget=76, n_recent=16, prefill_chunk=64)
evict = serve(task, Plan(eviction=kept, max_num_seqs=16, label="keydiff 留 96"))
records, blocks, gone = evict.plan.record_bytes(task), evict.num_blocks, evict.evicted_tokens
print(f"记录占 {records:,} 字节，剩下 {blocks} 个块；一共忘掉 {gone:,} 个 token")
runs_table([naive, evict], "zh")

# %% [markdown] key="evict_read" lang="en"
# A quarter of the seconds is saved, and every answer is right. But there are two prices.
#
# - The records take 6 of the 32 blocks. A record has 175 places of 8 B in each of 2 layers × 2 heads: 96 for tokens that stay, 15 for those that come before the next eviction, and 64 for a chunk of the prompt. That makes 16 × 4 × 175 × 8 = 89,600 B.
# - The prefix cache finds nothing any more. Prompts are evicted while they are read, and once its tokens have moved, a block is no longer the prefix of any request. So 7,497 tokens are computed instead of 5,289.
#
# ## Together
#
# You can't add the savings up. What one change has saved, the next can't save again, and a part that was small before may be large now. So take the best change first, look where the time goes *now*, and choose again.
# %% [markdown] key="evict_read" lang="zh" src="194f198a"
# 省下四分之一的时间，答案全对。但代价有两样。
#
# - 记录占去 32 个块里的 6 个。一份记录在 2 层 × 2 个头里各有 175 个位置，即留下的 96 个、下一次淘汰之前多出的 15 个，以及一段提示词的 64 个，每个位置 8 B，一共 16 × 4 × 175 × 8 = 89,600 B。
# - 前缀缓存什么都命中不了，因为提示词一边读一边淘汰，一个块里的 token 搬动过，它就不再是任何请求的前缀。于是要计算 7,497 个 token，原来只要 5,289 个。
#
# ## 合在一起
#
# 各种手段的效果不能直接相加，因为一个已经省掉的，另一个就没法再省；而原来占比小的部分，现在可能很大。所以先用最好的一个，再看**现在**时间花在哪里，然后选下一个。

# %% key="together" lang="en"
best = serve(task, Plan(kv_dtype="int8", prompt_lookup=4, label="int8, drafts"))
other = serve(task, Plan(kv_dtype="int8", eviction=kept, max_num_seqs=16, label="int8, keydiff"))
show(where_chart(task, [naive, lookup, evict, int8, best, other], "en"))
runs_table([naive, lookup, evict, int8, best, other], "en")

# %% key="together" lang="zh"
best = serve(task, Plan(kv_dtype="int8", prompt_lookup=4, label="int8 加草稿"))
other = serve(task, Plan(kv_dtype="int8", eviction=kept, max_num_seqs=16, label="int8 加 keydiff"))
show(where_chart(task, [naive, lookup, evict, int8, best, other], "zh"))
runs_table([naive, lookup, evict, int8, best, other], "zh")

# %% [markdown] key="together_read" lang="en"
# Alone, guesses and KeyDiff each saved about a quarter. On top of int8 the guesses still save a fifth, but KeyDiff less than a tenth: it makes room, and int8 has made room already. (Guesses and KeyDiff at the same time are not possible: the engine refuses and says so.)
#
# The best plan scores 100 × 0.2972 / 0.5113 = 58.1. So at most 42 % of its seconds could still go. And of the floor's 0.297 s, a quarter of a second is waiting for the last requests to arrive.
#
# ## Break it
#
# The more a plan forgets, the less its steps read. StreamingLLM keeps the sinks and the most recent tokens, here a tenth of the longest text. (An x behind the quality means that it is below the bar.)
# %% [markdown] key="together_read" lang="zh" src="3272be12"
# 单独用时，草稿和 KeyDiff 各省约四分之一。加在 int8 之上，草稿还能省五分之一，KeyDiff 却不到十分之一，因为它的作用是腾出空间，而 int8 已经腾出来了。（草稿和 KeyDiff 不能同时用，引擎会拒绝，并说明原因。）
#
# 最好的方案得 100 × 0.2972 / 0.5113 = 58.1 分，也就是说，它的秒数里最多还能省 42%。而下限的 0.297 秒里，有 0.25 秒是在等最后一批请求到来。
#
# ## 弄坏它
#
# 忘得越多，一步读得越少。StreamingLLM 只留汇点和最近的 token，这里一共是最长文本的十分之一。（质量后面的 x 表示未达门槛。）

# %% key="break" lang="en"
tenth = task.max_model_len // 10
little = EvictionConfig("streaming", n_sink=4, budget=0, n_recent=tenth - 4, prefill_chunk=64)
eager = serve(task, Plan(kv_dtype="int8", eviction=little, max_num_seqs=24, label="10 %, early"))
runs_table([int8, other, eager], "en")

# %% key="break" lang="zh"
tenth = task.max_model_len // 10
little = EvictionConfig("streaming", n_sink=4, budget=0, n_recent=tenth - 4, prefill_chunk=64)
eager = serve(task, Plan(kv_dtype="int8", eviction=little, max_num_seqs=24, label="留 10%，早忘"))
runs_table([int8, other, eager], "zh")

# %% key="break_told" lang="en"
eager.shown("en")

# %% key="break_told" lang="zh"
eager.shown("zh")

# %% [markdown] key="break_read" lang="en"
# It is faster than the two plans above it and worth nothing, because only 11 of 36 answers are right. A dashboard that shows only tokens a second would call it progress.
#
# Now take the same policy with the same room and one difference: it starts to forget only after the whole prompt has been read (`prefill_chunk=512`). How good will its answers be?
# %% [markdown] key="break_read" lang="zh" src="4bcb2b6b"
# 它比表里上面两个都快，却一文不值，因为 36 个答案只对了 11 个。如果仪表盘上只有每秒多少 token，这还会被当成进步。
#
# 同样的策略，同样的空间，只改一处：整个提示词读完以后才开始忘（`prefill_chunk=512`）。你预计它的答案会怎样？

# %% key="late" lang="en"
whole = EvictionConfig("streaming", n_sink=4, budget=0, n_recent=tenth - 4, prefill_chunk=512)
late = serve(task, Plan(kv_dtype="int8", eviction=whole, max_num_seqs=24, label="10 %, late"))
runs_table([eager, late], "en")

# %% key="late" lang="zh"
whole = EvictionConfig("streaming", n_sink=4, budget=0, n_recent=tenth - 4, prefill_chunk=512)
late = serve(task, Plan(kv_dtype="int8", eviction=whole, max_num_seqs=24, label="留 10%，晚忘"))
runs_table([eager, late], "zh")

# %% [markdown] key="late_read" lang="en"
# All answers are right, and it is even faster, since prompts are found in the prefix cache again. Have we found a way to forget without loss?
#
# No. In this load every question stands at the very end of its prompt, and the answer is the first word after it. So the question has been answered before the plan starts to forget. A second question would find almost nothing left.
#
# **A bar checks only what its questions ask.** Before you trust a score, think of what the load doesn't ask. This plan obeys the rules of the task, but you wouldn't want to be served by it.
# %% [markdown] key="late_read" lang="zh" src="b96ccb35"
# 全对，而且更快，因为前缀又能命中了。难道找到了不丢东西的遗忘办法？
#
# 不是。这份负载里，每个问题都在提示词的最后，而答案就是紧接着的第一个词。等到开始忘的时候，问题已经答完了。如果再问一个问题，缓存里几乎什么都不剩。
#
# **质量门槛只能检验题目问到的内容**。相信一个得分之前，先想想这份负载没有问什么。这个方案遵守了任务的规则，可你不会愿意由它来服务。

# %% key="scores" lang="en"
runs = [naive, small, large, four, chunks, host, lookup, evict, int8, other, best, late, eager]
show(score_chart(runs, bound.seconds, "en"), caption=t("scores_caption"))

# %% key="scores" lang="zh"
runs = [naive, small, large, four, chunks, host, lookup, evict, int8, other, best, late, eager]
show(score_chart(runs, bound.seconds, "zh"), caption=t("scores_caption"))

# %% [markdown] key="scores_read" lang="en"
# One change made the run three times as fast, two others saved a quarter each, and two did nothing at all. You could see the best one on paper before anything ran: in fp32 one of the longest requests fits, in int8 six.
#
# ## Your leaderboard
#
# Every run that you add is kept in a file on this machine together with its plan, so that you can run it again. The file holds only your own runs.
# %% [markdown] key="scores_read" lang="zh" src="5bcf05ae"
# 有一样手段快到三倍，有两样各省四分之一，还有两样毫无作用。哪一样最有用，运行之前在纸上就看得出来，因为最长的请求，fp32 只放得下一条，int8 能放六条。
#
# ## 你的排行榜
#
# 你加进去的每次运行，都连同方案存进本机的一个文件，随时可以再跑。上面只有你自己的成绩。

# %% key="board" lang="en"
from minikv.course.capstone import Leaderboard

board = Leaderboard()
for run in (naive, int8, best, eager):
    board.add(task, run)
board.shown("en", task)

# %% key="board" lang="zh"
from minikv.course.capstone import Leaderboard

board = Leaderboard()
for run in (naive, int8, best, eager):
    board.add(task, run)
board.shown("zh", task)

# %% [markdown] key="yours" lang="en"
# **Now it's your turn.** Change the plan in the next cell. The lesson's best plan isn't the best there is, so try to beat the first line above.
# %% [markdown] key="yours" lang="zh" src="b2b34c2c"
# **现在轮到你了**。在下一个单元格里改出你自己的方案。本课最好的方案还不是最好的，试试超过上面的第一行。

# %% key="yours_code" lang="en"
mine = Plan(
    block_size=16,
    kv_dtype=None,
    max_num_seqs=64,
    max_batched_tokens=2048,
    eviction=None,
    prompt_lookup=0,
    cpu_kv_bytes=None,
    label="mine",
)
if mine != Plan(label=mine.label):
    board.add(task, serve(task, mine))
    show(board.shown("en", task))

# %% key="yours_code" lang="zh"
mine = Plan(
    block_size=16,
    kv_dtype=None,
    max_num_seqs=64,
    max_batched_tokens=2048,
    eviction=None,
    prompt_lookup=0,
    cpu_kv_bytes=None,
    label="我的",
)
if mine != Plan(label=mine.label):
    board.add(task, serve(task, mine))
    show(board.shown("zh", task))

# %% [markdown] key="models" lang="en"
# ## Your model, your GPU
#
# `model_task` makes such a task for any model of transformers: a name on the hub, a folder, or a model that you have loaded. The prompts share beginnings. The expected answers are those that the model gives when it keeps everything. If there is a GPU, the model runs on it, and the clock is computed for that card. Below is tiny-mla on the CPU, with ten questions about two documents. You can put in your own model, for example `model_task("Qwen/Qwen3-0.6B", num_requests=64)`.
# %% [markdown] key="models" lang="zh" src="9dd12354"
# ## 换成你的模型、你的 GPU
#
# `model_task` 可以为 transformers 的任何模型造一个这样的任务，给它 hub 上的名字、一个文件夹，或者已经加载的模型都行。提示词有共同的开头，应有的答案就是模型什么都不忘时自己的回答。如果有 GPU，模型就在 GPU 上跑，时钟也按那块卡来算。下面是 CPU 上的 tiny-mla，两份文档，十个问题。换成你自己的模型名即可，例如 `model_task("Qwen/Qwen3-0.6B", num_requests=64)`。

# %% key="models_code" lang="en"
from minikv.course.capstone import model_task

from minikv.models import recall_documents

documents = recall_documents(2, seed=5)
prompts = [each.tokens[: asked.position + 1].tolist() for each in documents for asked in each.questions[:5]]
yours = model_task("tiny-mla", prompts=prompts, max_tokens=16, quality=0.8, scaled=True)
show(yours.shown("en"))
plans = Plan(label=naive.plan.label), Plan(kv_dtype="int8", label="int8")
runs_table([serve(yours, plan) for plan in plans], "en")

# %% key="models_code" lang="zh"
from minikv.course.capstone import model_task

from minikv.models import recall_documents

documents = recall_documents(2, seed=5)
prompts = [each.tokens[: asked.position + 1].tolist() for each in documents for asked in each.questions[:5]]
yours = model_task("tiny-mla", prompts=prompts, max_tokens=16, quality=0.8, scaled=True)
show(yours.shown("zh"))
plans = Plan(label=naive.plan.label), Plan(kv_dtype="int8", label="int8")
runs_table([serve(yours, plan) for plan in plans], "zh")

# %% [markdown] key="models_read" lang="en"
# Latents are small, and ten requests in a quarter of a second are few, so the default plan already scores 85. int8 gains one point and loses two of the 66 expected tokens. (An answer counts up to the first token that differs from the model's own answer.)
#
# (`scaled=True` shrinks the card to fit a tiny model, as above. Leave it out for a model of your own.)
#
# ## Recap
#
# - Count first. A budget of 524,288 B holds one of the longest requests in fp32 and six in int8.
# - Then see where the time went. Reading the cache took only 16 % of the seconds, and still int8 made the run 3.1 times as fast, because 84 steps were enough instead of 283.
# - A change does nothing if the run never needs it. With a limit of four sequences, or with host memory, the run still took 2.021 s.
# - A score of 58 means that at most 42 % of those seconds could still go.
# - A plan below the bar scores 0. The plan that forgot while it read took 0.553 s and answered 11 of 36.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="models_read" lang="zh" src="e0cdb033"
# 潜在向量本来就小，四分之一秒里来十个请求也不算挤，所以默认方案已经有 85 分。int8 多得一分，66 个应有的 token 里丢了两个。一个答案与模型自己的回答相比，从第一个不同的 token 起就不算。
#
# （`scaled=True` 把卡按小模型缩小，与前面一样。用自己的模型时不要加。）
#
# ## 本课小结
#
# - 先数清楚。例如 524,288 B 的预算，最长的请求在 fp32 下只放得下一个，int8 下放得下六个。
# - 再看时间花在哪里。缓存只占时间的 16%，换成 int8 却快到 3.1 倍，因为原来要 283 步的，84 步就做完。
# - 运行用不到的手段毫无效果。例如并发上限改成 4，或者加上 CPU 内存，都还是 2.021 秒。
# - 58 分的意思是，这些秒数里最多还能省 42%。
# - 质量不达标就是 0 分。一边读一边忘的方案只用了 0.553 秒，但 36 个答案只对了 11 个。
#
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_config"
explain("why_no_sample_config")

# %% key="explain_lever"
explain("why_a_lever_does_nothing")

# %% key="explain_floor"
explain("why_a_floor")

# %% key="explain_bar"
explain("why_a_bar")

# %% key="explain_wall"
explain("why_not_the_wall")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# 1. `room`: how many blocks and sequences a plan's bytes hold, records included.
# 2. `enter`: an admission control that never lets an admitted sequence lose a block.
# 3. `floor_seconds`: the seconds that no plan can beat.
# 4. `best_plan`: the best of many plans, with as few runs as paper allows.
# %% [markdown] key="exercises" lang="zh" src="c5c3352b"
# ## 练习
#
# 1. `room`：一个方案的字节放得下多少块、多少条序列，记录也算在内。
# 2. `enter`：一个准入控制，放行的序列不会失去块。
# 3. `floor_seconds`：任何方案都不可能更少的秒数。
# 4. `best_plan`：从许多方案里找出最好的，纸上能排除的就不跑。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | `DoesNotFitError`: the plan needs more than the budget | `plan.num_blocks_for(task)`, `plan.record_bytes(task)`: with eviction there is a record for each of `max_num_seqs` sequences, used or not |
# | the score is 0 | `run.quality`, `run.bar`: which answers are missing? `[n for n, r in enumerate(task.requests) if r.answer and run.outputs[n].token_ids[:len(r.answer)] != r.answer]` |
# | a change does nothing | `where_it_went(task, run)` and `run.preemptions`: it affects a part that is small, or makes room that no request waits for |
# %% [markdown] key="stuck" lang="zh" src="aca267e3"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | `DoesNotFitError`：方案要的超过预算 | `plan.num_blocks_for(task)`、`plan.record_bytes(task)`：方案会淘汰时，并发上限 `max_num_seqs` 是几，就要占几份记录，用没用到都一样 |
# | 得分是 0 | `run.quality`、`run.bar`：缺了哪些答案？`[n for n, r in enumerate(task.requests) if r.answer and run.outputs[n].token_ids[:len(r.answer)] != r.answer]` |
# | 改了一样，什么也没变 | `where_it_went(task, run)` 和 `run.preemptions`：它作用的那部分很小，或者腾出来的空间没有请求在等 |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - [vLLM #2509](https://github.com/vllm-project/vllm/issues/2509): in January 2024 a user with four A10 cards wanted to serve a 34B model "maximizing memory utilization and throughput", and got a link to two arguments. [#3885](https://github.com/vllm-project/vllm/issues/3885) asked for sample configurations for typical GPUs and was closed as stale; `explain("why_no_sample_config")` says why there are none.
# - [tandemn-system #11](https://github.com/Tandemn-Labs/tandemn-system/issues/11): in March 2026 a runner on one A10G divided by the average length. It preempted 480 times in 5,000 requests, and half of the users waited 60 s for their first token; see "Plan on paper".
# - [A report](https://kooexperience.com/blog/posts/llm-gauntlet.html) of 2026: nineteen engineers served one model on an A100 each, and one of them tuned more than forty configurations. A proxy of thirty lines that stored answers won, because the whole load had two different prompts.
# %% [markdown] key="wild" lang="zh" src="926424f1"
# ## 实战现场
#
# - [vLLM #2509](https://github.com/vllm-project/vllm/issues/2509)：2024 年 1 月，一位用户有四块 A10，想让一个 34B 模型把显存和吞吐量都用足，得到的回答是一个链接，解释两个参数的含义。[#3885](https://github.com/vllm-project/vllm/issues/3885) 想要几份常见 GPU 的样例配置，最后因无人回应而关闭；为什么没有样例配置，见 `explain("why_no_sample_config")`。
# - [tandemn-system #11](https://github.com/Tandemn-Labs/tandemn-system/issues/11)：2026 年 3 月，一个运行器在一块 A10G 上用平均长度做除法。5,000 个请求里抢占了 480 次，一半的用户等第一个 token 要等 60 秒；见“先在纸上算”一节。
# - 2026 年的[一份记录](https://kooexperience.com/blog/posts/llm-gauntlet.html)：十九位工程师各用一块 A100 服务同一个模型，其中一位调了四十多种配置。赢得比赛的却是一个三十行的代理，它只是把回答存了下来，因为整份负载只有两种提示词。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# This was the last lesson. The appendices stay with you: the [errata](A_errata.ipynb), the [bug museum](B_bug_museum.ipynb), the [FAQ](C_faq.ipynb), what [other engines](D_other_engines.ipynb) call the same things, every formula on [one page](E_cheat_sheet.ipynb), and the [glossary](F_glossary.ipynb).
#
# Wherever you serve a model, take this method with you. Count first. Run the load that you really have. See where the time went, and change one thing. And know the floor, so that you know when to stop.
# %% [markdown] key="next" lang="zh" src="d9363998"
# ## 下一课
#
# 这是最后一课。附录还在：[勘误](A_errata.ipynb)、[bug 博物馆](B_bug_museum.ipynb)、[FAQ](C_faq.ipynb)、同样的东西在[别的引擎](D_other_engines.ipynb)里叫什么、全部公式的[速查表](E_cheat_sheet.ipynb)，以及[术语表](F_glossary.ipynb)。
#
# 以后不管在哪里部署模型，都可以照这个方法做。先数清楚，再跑你真正的负载，看时间花在哪里，一次只改一样。还要知道下限在哪里，才知道什么时候可以停。
