# %% [meta]
# number = "18"
# slug = "capstone"
# needs = ["08", "09", "11b", "13", "13b", "14", "17"]
# rooms = ["course.capstone"]
# minutes = 120
# [title]
# en = "Can you serve this load within this budget?"
# zh = "给定预算，你能承载这份负载吗？"
# [t4]
# en = "The task of this lesson is computed on the CPU, and its scores are the same everywhere. `model_task` serves your own model on the T4."
# zh = "本课的任务由 CPU 计算，得分到处一样。用 `model_task` 可以让 T4 跑你自己的模型。"
# [paper]
# en = "18.1, 18.2, 18.3"
# zh = "18.1、18.2、18.3"

# %% [markdown] key="question" lang="en"
# ## The question
#
# **Here is a load, a budget of bytes and a bar for the answers. How fast can you serve it, and how do you know that there is nothing left to win?**
#
# 36 requests want 512 KiB of cache, or as much of it as they can get. How many of the longest fit at once decides most of what follows. It is on paper before anything runs:
# %% [markdown] key="question" lang="zh" src="a7c291ef"
# ## 问题
#
# **给你一份负载、一份字节预算，还有回答必须达到的质量。你能跑多快？又怎么知道已经没有什么可省了？**
#
# 36 个请求，缓存一共 512 KiB。最长的请求能同时放下几个，决定了后面的大半；而这个数，运行之前在纸上就算得出来：

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
# - **plan** on paper what a budget holds;
# - **read** where a run's seconds went, and pull the lever that acts there;
# - **defend** every number of your plan, and say how far it is from the floor.
#
# There is no sample configuration to copy, because settings serve a load and not a card. But there is an approach, and you have all of it together: count, plan, allocate, run, read where the time went, change one thing.
# %% [markdown] key="able" lang="zh" src="a7122700"
# 学完本课，你能够：
#
# - 在纸上**计划**一份预算放得下什么；
# - **读出**一次运行的时间花在哪里，再动那里起作用的手段；
# - 为方案里的每个数字**说出理由**，并说出它离下限还有多远。
#
# 没有可以照抄的样例配置，因为配置要跟着负载定，不是跟着显卡定。但方法是有的，而且你已经学全了：数清楚，做计划，分配，运行，看时间花在哪里，然后只改一样。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# The model is tiny-gqa, which you know. Before you see the task:
# %% [markdown] key="predict_first" lang="zh" src="7e8dc30f"
# ## 先猜一猜
#
# 模型是你已经熟悉的 tiny-gqa。看任务之前，先答两题：

# %% key="predict_blocks"
predict("blocks_that_fit", ...)

# %% key="predict_leave"
predict("never_to_leave", ...)

# %% [markdown] key="task_intro" lang="en"
# ## The task
# %% [markdown] key="task_intro" lang="zh" src="8b7533c6"
# ## 任务

# %% key="task" lang="en"
print(task.explain("en"))

# %% key="task" lang="zh"
print(task.explain("zh"))

# %% [markdown] key="task_read" lang="en"
# Everything in it is real but the seconds. The engine of [lesson 11a](11a_continuous_batching.ipynb) schedules and computes every step, the answers are what the model says, the budget is measured in bytes. How long a step *takes* is computed from its tokens and bytes, on the clock of [lesson 17](17_a_fleet_on_paper.ipynb). So your score is the same on every machine, and two plans can be compared to the last digit.
# Here is the load. What does it want: room, arithmetic, or steps?
# %% [markdown] key="task_read" lang="zh" src="c39b7b60"
# 除了秒数，一切都是真的：每一步都由[第 11a 课](11a_continuous_batching.ipynb)的引擎调度和计算，答案是模型说的，预算按字节量。一步**花多久**，则按[第 17 课](17_a_fleet_on_paper.ipynb)的时钟，由它的 token 和字节算出来。所以你的得分在每台机器上都一样，两个方案可以比到最后一位。
# 负载就在下面。它要的是什么：空间、算力，还是步数？

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
head = ["at, ms", "requests", "about a shared document", "shortest prompt", "longest", "want one word", "want at most"]
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
head = ["到达，毫秒", "请求数", "问共享文档的", "最短提示词", "最长", "只要一个词的", "最多要"]
Table(head, rows, lines=[note])

# %% [markdown] key="formula" lang="en"
# ## What is scored
# %% [markdown] key="formula" lang="zh" src="f027c317"
# ## 怎样计分

# %% [markdown] key="formula_math"
# $$\text{score} \;=\; \begin{cases} 100 \cdot F / S & \text{if } q \ge \bar q \text{ and } K \le \bar K \\ 0 & \text{otherwise} \end{cases} \qquad\qquad F \;=\; \max_{t} \; \Big( t + \max\!\big( C_t / P,\; (n_t W + R_t) / B \big) + n_t \, o \Big)$$

# %% [markdown] key="symbols" lang="en"
# | symbol | meaning | unit | here |
# |---|---|---|---|
# | $S$, $F$ | seconds of the run, and the floor: no plan can be faster | s | 2.021 (defaults), 0.297 |
# | $q$, $\bar q$ | share of the expected answer tokens that are there, and the bar | 0 to 1 | 1.0, 0.9 |
# | $K$, $\bar K$ | what the cache takes, eviction's records included, and the budget | bytes | at most 524,288 |
# | $t$ | a moment at which requests arrive; what follows is about those that come then or later | s | 0, 0.125, 0.25 |
# | $C_t$ | FLOPs of the tokens that have to be computed at least | FLOP | |
# | $n_t$ | steps that the longest answer needs, if every guess of the prompt lookup is right | steps | 6 |
# | $W$, $R_t$ | the weights, read once a step; the least that is read of the cache | bytes | |
# | $P$, $B$, $o$ | arithmetic and bandwidth as far as a step reaches them, and the overhead of a step ([lesson 17](17_a_fleet_on_paper.ipynb)) | FLOP/s, bytes/s, s | o = 0.002 |
#
# With the numbers put in: 100 × 0.2972 / 2.0214 = 14.7 for the defaults. Speed can always be bought with wrong answers. So below the bar the score is 0, however fast.
# %% [markdown] key="symbols" lang="zh" src="6b6ffae6"
# | 符号 | 含义 | 单位 | 本例取值 |
# |---|---|---|---|
# | $S$、$F$ | 运行的秒数，以及下限：没有方案能更快 | 秒 | 2.021（默认值）、0.297 |
# | $q$、$\bar q$ | 应有的答案 token 里，答对的占几成；以及质量门槛 | 0 到 1 | 1.0、0.9 |
# | $K$、$\bar K$ | 缓存占用，淘汰的记录也算在内；以及预算 | 字节 | 最多 524,288 |
# | $t$ | 有请求到达的一个时刻；以下各项只算那时及以后到来的 | 秒 | 0、0.125、0.25 |
# | $C_t$ | 至少要计算的 token 的 FLOP | FLOP | |
# | $n_t$ | 最长的回答需要的步数，假设提示词查找每次都猜对 | 步 | 6 |
# | $W$、$R_t$ | 权重，每步读一遍；缓存至少要读的 | 字节 | |
# | $P$、$B$、$o$ | 一步实际达到的算力、带宽，以及一步的固定开销（[第 17 课](17_a_fleet_on_paper.ipynb)） | FLOP/秒、字节/秒、秒 | o = 0.002 |
#
# 代入数字：默认方案得分 100 × 0.2972 / 2.0214 = 14.7。牺牲正确率总能换来速度，所以质量不达标时，再快也记 0 分。

# %% key="floor" lang="en"
bound = floor(task)
bound.shown("en")

# %% key="floor" lang="zh"
bound = floor(task)
bound.shown("zh")

# %% [markdown] key="paper" lang="en"
# (Exercise 18.3 is such a floor.)
#
# ## Plan on paper
#
# Three numbers for each way to store K and V: the bytes of a token, the blocks that fit, and the sequences that may run at once if each gets as long as the longest. They are those of the first picture.
# %% [markdown] key="paper" lang="zh" src="52de2b08"
# （练习 18.3 就是写这样一个下限。）
#
# ## 先在纸上算
#
# K 和 V 每种存法，算三个数：一个 token 的字节，放得下的块，以及每条都长到最长时，能同时运行几条序列。它们就是第一张图里的数。

# %% key="paper_code" lang="en"
longest, rows = task.max_model_len - 1, []  # the last token that is generated is never stored
for way in ways:
    blocks, size = way.num_blocks_for(task), way.block_size
    token = task.spec(way.kv_dtype).slope()
    rows.append((way.kv_dtype or "fp32", size, token, blocks, blocks * size, blocks // -(-longest // size)))
head = ["K and V", "block size", "bytes a token", "blocks", "tokens", "of the longest at once"]
Table(head, rows)

# %% key="paper_code" lang="zh"
longest, rows = task.max_model_len - 1, []  # 最后生成的 token 不会存进缓存
for way in ways:
    blocks, size = way.num_blocks_for(task), way.block_size
    token = task.spec(way.kv_dtype).slope()
    rows.append((way.kv_dtype or "fp32", size, token, blocks, blocks * size, blocks // -(-longest // size)))
head = ["K 和 V", "块大小", "每 token 字节", "块数", "token 数", "最长的能同时放几条"]
Table(head, rows)

# %% [markdown] key="paper_read" lang="en"
# The last column is not a number of users. Most requests are shorter than the longest, and what they share is there only once. It is the number up to which no sequence can ever be in another's way.
#
# A plan that divides by the *average* length instead promises more than there is, and preempts.
# (Exercise 18.1 counts what bytes hold, and 18.2 is an admission control: what it lets in is never preempted.)
#
# ## Run it
#
# First the plan that nothing was thought about: the defaults.
# %% [markdown] key="paper_read" lang="zh" src="362c0c3b"
# 最后一列不是用户数。大多数请求比最长的短，共享的部分也只存一份。它的意思是：不超过这么多条，任何一条序列都不会妨碍另一条。
#
# 如果用**平均**长度去除，许诺的就比实际有的多，结果就是抢占。
# （练习 18.1 算的是字节能放下多少，18.2 写一个准入控制：放行的请求保证不会被抢占。）
#
# ## 运行
#
# 先跑一个什么都没想过的方案：全用默认值。

# %% key="naive" lang="en"
naive = serve(task, Plan(label=t("plan_naive")))
naive.shown("en")

# %% key="naive" lang="zh"
naive = serve(task, Plan(label=t("plan_naive")))
naive.shown("zh")

# %% [markdown] key="where" lang="en"
# ### Where the time went
#
# A lever can save no more than the part that it acts on. So before any lever, the parts. A step that bytes hold up reads the weights once and then the cache of every sequence in it; one that arithmetic holds up is mostly a prompt.
# %% [markdown] key="where" lang="zh" src="71323392"
# ### 时间花在哪里
#
# 一种手段最多只能省掉它所作用的那一部分。所以动手之前，先看各部分。访存受限的一步，先把权重读一遍，再读这一步里每条序列的缓存；计算受限的一步，多半是在算提示词。

# %% key="where_code" lang="en"
from minikv.course.lessons.l18.shown import runs_table, score_chart, where_chart

show(where_chart(task, [naive], "en"))
row = naive.steps, naive.preemptions, naive.metrics.lost_tokens, f"{naive.hit_rate:.0%}"
head = ["steps", "preemptions", "tokens that these gave up", "prompt tokens found"]
Table(head, [row], right=head[3:])

# %% key="where_code" lang="zh"
from minikv.course.lessons.l18.shown import runs_table, score_chart, where_chart

show(where_chart(task, [naive], "zh"))
row = naive.steps, naive.preemptions, naive.metrics.lost_tokens, f"{naive.hit_rate:.0%}"
head = ["步数", "抢占", "因此丢掉的 token", "提示词 token 命中"]
Table(head, [row], right=head[3:])

# %% [markdown] key="see" lang="en"
# ## See it
#
# The same plan, in the widget of [lesson 11b](11b_when_blocks_run_out.ipynb), with the first twelve requests. Twelve steps are done; "Step" computes one more. Press it and watch three things: which requests wait, whose blocks are shared, and how many blocks stand empty.
# Before you press: eight blocks are empty, and nine requests wait. Why does none of them come in?
# %% [markdown] key="see" lang="zh" src="56c8c975"
# ## 亲眼看看
#
# 同一个方案，放进[第 11b 课](11b_when_blocks_run_out.ipynb)的组件，跑最前面的十二个请求。已经算了十二步，“单步”再算一步；一步一步地按，看三样东西：哪些请求在等，哪些块是共享的，有多少块空着。
# 按之前先想一想：有八个块空着，九个请求在等，为什么一个也进不来？

# %% key="widget" lang="en"
from minikv import LLM
from minikv.course.widgets import EngineWidget

first = task.requests[:12]
engine = LLM(task.model, num_blocks=naive.num_blocks, max_model_len=task.max_model_len, enforce_eager=True)
prompts = [list(request.tokens) for request in first]
params = [request.params(number) for number, request in enumerate(first)]
widget = EngineWidget(engine, prompts, params, lang="en")
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
widget = EngineWidget(engine, prompts, params, lang="zh")
for _ in range(12):
    widget.step()
show(widget, text=widget.text("zh"))

# %% [markdown] key="levers" lang="en"
# (D is next. Its 171 tokens need eleven blocks, and no request passes D.)
#
# ## One lever at a time
#
# Each of the next cells changes one thing, and nothing else. Say before each what will change: seconds, steps, found, or nothing. Then read what it cost.
#
# ### Fewer bytes
#
# [Lesson 13](13_half_the_bytes.ipynb) stored each number of K and V in a byte. It acts twice: a step reads less, and more fits.
# %% [markdown] key="levers" lang="zh" src="0b69e1c7"
# （下一个是 D，它的 171 个 token 要十一个块，而任何请求都不能排到 D 前面。）
#
# ## 一次只改一样
#
# 下面每个单元格只改一样，别的都不动。动手之前先说：秒数、步数、命中，哪个会变，还是都不变？然后看它的代价。
#
# ### 少存些字节
#
# [第 13 课](13_half_the_bytes.ipynb)把 K 和 V 的每个数存成一个字节。它有两重作用：一步读得少了，能放的也多了。

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
# **It was the room, not the reading.** The cache was 16 % of the seconds. Had int8 only made reading cheaper, the run would be 1.13 times as fast. It is three times as fast, because three and a half times as many tokens fit: more sequences share each step, and 84 steps do what took 283.
# And the parts have moved. Arithmetic was 4 %, now it is 18 %. Not one answer is lost.
#
# ### Blocks
#
# A block can be shared only when it is full, and the last block of every sequence is partly empty ([lesson 09](09_pages_and_blocks.ipynb)). Smaller blocks find more and waste less. Is there anything to be said for large ones?
# %% [markdown] key="bytes_read" lang="zh" src="66e30c0a"
# **起作用的是空间，不是读得少**。缓存只占时间的 16%；如果 int8 只是让读取变便宜，速度只会是原来的 1.13 倍。实际却是原来的三倍，因为能放的 token 是原来的三倍半：一步里的序列多了，原来要 283 步的，84 步就做完。
# 各部分的比例也变了：计算原来占 4%，现在占 18%。答案一个也没有丢。
#
# ### 块
#
# 块满了才能共享，每条序列的最后一块总空着一部分（[第 09 课](09_pages_and_blocks.ipynb)）。块小，命中多，浪费少。那大块还有什么好处吗？

# %% key="lever_blocks" lang="en"
small, large = (serve(task, Plan(block_size=size, label=t("plan_blocks", size=size))) for size in (4, 64))
runs_table([naive, small, large], "en")

# %% key="lever_blocks" lang="zh"
small, large = (serve(task, Plan(block_size=size, label=t("plan_blocks", size=size))) for size in (4, 64))
runs_table([naive, small, large], "zh")

# %% [markdown] key="blocks_read" lang="en"
# A few percent each way. Small blocks find a little more and leave fewer slots empty. What speaks for large ones is not on this clock: a kernel reads the block table, and a table of blocks of 4 is four times as long as one of blocks of 16 ([lesson 10](10_kernels.ipynb)).
#
# ### More sequences, and the budget of a step
#
# More sequences in a step (`max_num_seqs`, 64 by default) share its weights and its overhead, as long as there are blocks for them. A smaller budget of tokens (`max_batched_tokens`, 2,048 by default) cuts prompts into chunks ([lesson 11a](11a_continuous_batching.ipynb)).
# %% [markdown] key="blocks_read" lang="zh" src="e5951086"
# 上下只差百分之几。块小，命中稍多，空着的槽位也少。大块的好处不在这个时钟里：kernel 要读块表，块大小为 4 的块表，长度是块大小为 16 的四倍（[第 10 课](10_kernels.ipynb)）。
#
# ### 并发上限与一步的预算
#
# 一步里的序列越多（并发上限 `max_num_seqs`，默认 64），分摊权重和固定开销的就越多，前提是块够用。token 预算小（`max_batched_tokens`，默认 2,048），提示词就切成小段（[第 11a 课](11a_continuous_batching.ipynb)）。

# %% key="lever_seats" lang="en"
seats = serve(task, Plan(max_num_seqs=4, label=t("plan_seats")))
chunks = serve(task, Plan(max_batched_tokens=64, label=t("plan_budget")))
runs_table([naive, seats, chunks], "en")

# %% key="lever_seats" lang="zh"
seats = serve(task, Plan(max_num_seqs=4, label=t("plan_seats")))
chunks = serve(task, Plan(max_batched_tokens=64, label=t("plan_budget")))
runs_table([naive, seats, chunks], "zh")

# %% [markdown] key="seats_read" lang="en"
# A limit of four changes nothing, to the last digit. There never were blocks for a fifth sequence, so sixty of the sixty-four places stood empty.
# A budget of 64 tokens costs 30 steps. What it buys is not in this score: sequences that decode are held up less by the prompts of others.
#
# ### Guesses
#
# Prompt lookup proposes what stood in the text before ([lesson 13b](13b_fewer_cheaper_steps.ipynb)). Right guesses save steps; wrong ones are computed for nothing.
# %% [markdown] key="seats_read" lang="zh" src="1d44b2f0"
# 并发上限改成 4，结果一模一样，直到最后一位。因为块从来不够第五条序列用，原来的 64 里有 60 一直用不上。
# 预算 64 个 token，多花了 30 步。它换来的不在得分里：正在解码的序列，被其他请求的提示词耽误得少了。
#
# ### 猜测
#
# 提示词查找把前文里出现过的拿来作草稿（[第 13b 课](13b_fewer_cheaper_steps.ipynb)）。猜对了省步数，猜错了白算。

# %% key="predict_steps"
predict("fewest_steps", ...)

# %% key="lever_lookup" lang="en"
lookup = serve(task, Plan(prompt_lookup=4, label=t("plan_drafts")))
show(where_chart(task, [naive, lookup], "en"))
print(f"{lookup.metrics.acceptance or 0.0:.0%} of the guesses were right")
runs_table([naive, lookup], "en")

# %% key="lever_lookup" lang="zh"
lookup = serve(task, Plan(prompt_lookup=4, label=t("plan_drafts")))
show(where_chart(task, [naive, lookup], "zh"))
print(f"草稿猜中 {lookup.metrics.acceptance or 0.0:.0%}")
runs_table([naive, lookup], "zh")

# %% [markdown] key="lookup_read" lang="en"
# One guess in ten is right. That is a poor guesser, and still it saves almost a quarter of the steps. A thousand tokens were computed for nothing, and they cost next to nothing: arithmetic stood idle. Drafts spend what is left over.
#
# ### Host memory
#
# A preempted sequence may go to the CPU's memory and come back, instead of being computed again ([lesson 12](12_beyond_one_gpu.ipynb)).
# %% [markdown] key="lookup_read" lang="zh" src="11cd30b4"
# 十个草稿只猜中一个，猜得很差，却还是省下了将近四分之一的步数。上千个 token 白算了，但几乎不花时间，因为算力本来就闲着。草稿用的正是闲着的部分。
#
# ### CPU 内存
#
# 被抢占的序列可以换出到 CPU 内存，回来时不必重新计算（[第 12 课](12_beyond_one_gpu.ipynb)）。

# %% key="lever_host" lang="en"
host = serve(task, Plan(cpu_kv_bytes=4 * task.kv_bytes, label=t("plan_host")))
runs_table([naive, host], "en")

# %% key="lever_host" lang="zh"
host = serve(task, Plan(cpu_kv_bytes=4 * task.kv_bytes, label=t("plan_host")))
runs_table([naive, host], "zh")

# %% [markdown] key="host_read" lang="en"
# Nothing again, to the last digit: no sequence was preempted, so none ever went there. A lever needs something to act on. (It would act in a plan that preempts. Find one.)
#
# ### Forgetting
#
# Eviction makes room and reads less, and it costs answers ([lesson 14](14_what_to_forget.ipynb)). Of each text KeyDiff keeps 96 tokens here: sinks, a recent window, and the keys that are least alike. Its records are paid from the same bytes, one for each sequence that may run; so the plan says how many it needs.
# %% [markdown] key="host_read" lang="zh" src="0a41a206"
# 还是一模一样，直到最后一位：一次抢占也没有，CPU 内存就一直空着。手段总得有东西可作用。（方案里有抢占，它才起作用。找一个这样的方案试试。）
#
# ### 遗忘
#
# 淘汰能腾出空间，也能少读，代价是答案可能出错（[第 14 课](14_what_to_forget.ipynb)）。这里 KeyDiff 每篇文本留 96 个 token：汇点、近期窗口，以及彼此最不像的 key。它的记录也从同一份字节里出，并发上限是几，就要几份，所以方案要说明需要几份。

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
evict = serve(task, Plan(eviction=kept, max_num_seqs=16, label="keydiff, 96"))
records, blocks, gone = evict.plan.record_bytes(task), evict.num_blocks, evict.evicted_tokens
print(f"记录占 {records:,} 字节，剩下 {blocks} 个块；一共忘掉 {gone:,} 个 token")
runs_table([naive, evict], "zh")

# %% [markdown] key="evict_read" lang="en"
# A quarter of the seconds saved, and every answer right. Now the price. The records take 6 of the 32 blocks. And nothing is found any more: prompts are evicted while they are read, and a block whose tokens have moved is no prefix of any request. So 7,497 tokens are computed instead of 5,289.
#
# ## Together
#
# Levers do not add up. What one has saved the next cannot save again, and what was a small part before is a large part now. So take the best one, look where the time goes *now*, and choose again.
# %% [markdown] key="evict_read" lang="zh" src="2e5486a1"
# 省下四分之一的时间，答案全对。再看代价：记录占去 32 个块里的 6 个。而且什么也命中不了，因为提示词一边读一边淘汰，token 搬动过的块，就不再是任何请求的前缀。于是要计算 7,497 个 token，原来只要 5,289 个。
#
# ## 合在一起
#
# 各种手段的效果不能相加。一个已经省掉的，另一个就没法再省；原来占得少的，现在可能占得多。所以先用最好的一个，再看**现在**时间花在哪里，再选下一个。

# %% key="together" lang="en"
best = serve(task, Plan(kv_dtype="int8", prompt_lookup=4, label=t("plan_int8_drafts")))
other = serve(task, Plan(kv_dtype="int8", eviction=kept, max_num_seqs=16, label="int8, keydiff"))
show(where_chart(task, [naive, lookup, evict, int8, best, other], "en"))
runs_table([naive, lookup, evict, int8, best, other], "en")

# %% key="together" lang="zh"
best = serve(task, Plan(kv_dtype="int8", prompt_lookup=4, label=t("plan_int8_drafts")))
other = serve(task, Plan(kv_dtype="int8", eviction=kept, max_num_seqs=16, label="int8, keydiff"))
show(where_chart(task, [naive, lookup, evict, int8, best, other], "zh"))
runs_table([naive, lookup, evict, int8, best, other], "zh")

# %% [markdown] key="together_read" lang="en"
# Alone, drafts and KeyDiff each saved about a quarter. On top of int8 the drafts still save a fifth, and KeyDiff less than a tenth: it makes room, and room is there already. (Both together the engine refuses, and says so.)
# 58 of 100 means that at most 42 % of these seconds could still go. And of the 0.297 s of the floor, a quarter of a second is waiting until the last have come.
#
# ## Break it
#
# The more a plan forgets, the less its steps read. StreamingLLM keeps the sinks and the last tokens, a tenth of the longest text:
# %% [markdown] key="together_read" lang="zh" src="92c18dd6"
# 单独用时，草稿和 KeyDiff 各省约四分之一。加在 int8 上，草稿还能省五分之一，KeyDiff 却不到十分之一：它腾的是空间，而空间已经有了。（两样同时用，引擎会拒绝，并说明原因。）
# 58 分的意思是：这些秒数里，最多还能省 42%。而下限的 0.297 秒里，有 0.25 秒是在等最后一批请求到来。
#
# ## 弄坏它
#
# 忘得越多，一步读得越少。StreamingLLM 只留汇点和最后的 token，大约是最长文本的十分之一：

# %% key="break" lang="en"
tenth = task.max_model_len // 10
little = EvictionConfig("streaming", n_sink=4, budget=0, n_recent=tenth - 4, prefill_chunk=64)
eager = serve(task, Plan(kv_dtype="int8", eviction=little, max_num_seqs=24, label=t("plan_eager")))
runs_table([int8, other, eager], "en")

# %% key="break" lang="zh"
tenth = task.max_model_len // 10
little = EvictionConfig("streaming", n_sink=4, budget=0, n_recent=tenth - 4, prefill_chunk=64)
eager = serve(task, Plan(kv_dtype="int8", eviction=little, max_num_seqs=24, label=t("plan_eager")))
runs_table([int8, other, eager], "zh")

# %% key="break_told" lang="en"
eager.shown("en")

# %% key="break_told" lang="zh"
eager.shown("zh")

# %% [markdown] key="break_read" lang="en"
# Faster than the two above it, and worth nothing: 11 of 36 answers are right. On a dashboard of tokens a second this is progress.
#
# Now the same policy with the same room, and one difference: it forgets only when a whole prompt has been read (`prefill_chunk=512`). What do you expect of its answers?
# %% [markdown] key="break_read" lang="zh" src="38248316"
# 比表里上面两个都快，却一文不值：36 个答案只对了 11 个。如果仪表盘上只有每秒多少 token，这就是进步。
#
# 同样的策略，同样的空间，只改一处：整个提示词读完了才开始忘（`prefill_chunk=512`）。你预计它的答案会怎样？

# %% key="late" lang="en"
whole = EvictionConfig("streaming", n_sink=4, budget=0, n_recent=tenth - 4, prefill_chunk=512)
late = serve(task, Plan(kv_dtype="int8", eviction=whole, max_num_seqs=24, label=t("plan_late")))
runs_table([eager, late], "en")

# %% key="late" lang="zh"
whole = EvictionConfig("streaming", n_sink=4, budget=0, n_recent=tenth - 4, prefill_chunk=512)
late = serve(task, Plan(kv_dtype="int8", eviction=whole, max_num_seqs=24, label=t("plan_late")))
runs_table([eager, late], "zh")

# %% [markdown] key="late_read" lang="en"
# All of them right, and faster still, since prompts are found again. Is this a way to forget without loss?
# No. Every question of this load stands at the very end of its prompt, and the answer is its first word. By the time anything is forgotten, the question has been answered. A second question would find almost nothing left.
# **A bar sees what its questions ask, and nothing else.** Before you trust a score, think of what the load does not ask. This plan keeps the rules of the task, and you would not want to be served by it.
# %% [markdown] key="late_read" lang="zh" src="ef80e6ec"
# 全对，而且更快，因为前缀又能命中了。难道有了不丢东西的遗忘？
# 不是。这份负载的每个问题都在提示词的最后，而答案就是紧接着的第一个词。等到开始忘的时候，问题已经答完了。如果再问一个问题，缓存里几乎什么都不剩。
# **质量门槛只能检验题目问到的内容**。相信一个得分之前，先想想这份负载没有问什么。这个方案守住了任务的规则，可你不会愿意由它来服务。

# %% key="scores" lang="en"
runs = [naive, small, large, seats, chunks, host, lookup, evict, int8, other, best, late, eager]
show(score_chart(runs, bound.seconds, "en"), caption=t("scores_caption"))

# %% key="scores" lang="zh"
runs = [naive, small, large, seats, chunks, host, lookup, evict, int8, other, best, late, eager]
show(score_chart(runs, bound.seconds, "zh"), caption=t("scores_caption"))

# %% [markdown] key="scores_read" lang="en"
# One lever brought a factor of three, two others a quarter, and two nothing at all. Which one it would be stood on paper before anything ran: in fp32 one request of the longest fits, in int8 six.
#
# ## Your leaderboard
#
# Every run that you add is kept in a file on this machine, with its plan, so that you can run it again. It holds your runs and no others.
# %% [markdown] key="scores_read" lang="zh" src="e61067a3"
# 有一样手段快到三倍，有两样各省四分之一，还有两样毫无作用。哪一样最有用，运行之前纸上就写着：最长的请求，fp32 只放得下一条，int8 能放六条。
#
# ## 你的排行榜
#
# 你加进去的每次运行，都连同方案存进本机的一个文件，随时可以再跑。上面只有你自己的成绩。

# %% key="board" lang="en"
from minikv.course.capstone import Leaderboard

board = Leaderboard()
for run in (naive, int8, best, eager):
    board.add(task, run)
print(board.table("en", task))

# %% key="board" lang="zh"
from minikv.course.capstone import Leaderboard

board = Leaderboard()
for run in (naive, int8, best, eager):
    board.add(task, run)
print(board.table("zh", task))

# %% [markdown] key="yours" lang="en"
# **Now you.** This cell is a plan of your own. There is more to win than the lesson has shown: beat the best line above.
# %% [markdown] key="yours" lang="zh" src="53f36e65"
# **现在轮到你**。这个单元格里写你自己的方案。能省的比本课展示的更多：超过上面最好的那一行。

# %% key="yours_code" lang="en"
mine = Plan(
    block_size=16,
    kv_dtype=None,
    max_num_seqs=64,
    max_batched_tokens=2048,
    eviction=None,
    prompt_lookup=0,
    cpu_kv_bytes=None,
    label=t("plan_mine"),
)
if mine != Plan(label=mine.label):
    board.add(task, serve(task, mine))
    print(board.table("en", task))

# %% key="yours_code" lang="zh"
mine = Plan(
    block_size=16,
    kv_dtype=None,
    max_num_seqs=64,
    max_batched_tokens=2048,
    eviction=None,
    prompt_lookup=0,
    cpu_kv_bytes=None,
    label=t("plan_mine"),
)
if mine != Plan(label=mine.label):
    board.add(task, serve(task, mine))
    print(board.table("zh", task))

# %% [markdown] key="models" lang="en"
# ## Your model, your GPU
#
# `model_task` makes such a task for any model of transformers: a name on the hub, a folder, or a model that you have loaded. Its prompts share beginnings, the answers that are expected are the model's own with everything kept, and on a GPU the model runs there, on the clock of that card. Here is tiny-mla, on the CPU, with ten questions about two documents; write your model's name instead, for example `model_task("Qwen/Qwen3-0.6B", num_requests=64)`.
# %% [markdown] key="models" lang="zh" src="ac435b54"
# ## 换成你的模型、你的 GPU
#
# `model_task` 可以为 transformers 的任何模型造一个这样的任务：hub 上的名字、一个文件夹，或者已经加载的模型。提示词有共同的开头；应有的答案，就是模型什么都不忘时自己的回答；有 GPU 时，模型就在 GPU 上跑，时钟也按那块卡来算。下面是在 CPU 上的 tiny-mla，两份文档，十个问题；换成你自己的模型名就行，例如 `model_task("Qwen/Qwen3-0.6B", num_requests=64)`。

# %% key="models_code" lang="en"
from minikv.course.capstone import model_task

from minikv.models import recall_documents

documents = recall_documents(2, seed=5)
prompts = [each.tokens[: asked.position + 1].tolist() for each in documents for asked in each.questions[:5]]
yours = model_task("tiny-mla", prompts=prompts, max_tokens=16, quality=0.8, scaled=True)
print(yours.explain("en"))
plans = Plan(label=naive.plan.label), Plan(kv_dtype="int8", label="int8")
runs_table([serve(yours, plan) for plan in plans], "en")

# %% key="models_code" lang="zh"
from minikv.course.capstone import model_task

from minikv.models import recall_documents

documents = recall_documents(2, seed=5)
prompts = [each.tokens[: asked.position + 1].tolist() for each in documents for asked in each.questions[:5]]
yours = model_task("tiny-mla", prompts=prompts, max_tokens=16, quality=0.8, scaled=True)
print(yours.explain("zh"))
plans = Plan(label=naive.plan.label), Plan(kv_dtype="int8", label="int8")
runs_table([serve(yours, plan) for plan in plans], "zh")

# %% [markdown] key="models_read" lang="en"
# Latents are small, and ten requests over a quarter of a second are no crowd: the default plan has 85 already. int8 wins a point, and loses two of the 66 expected tokens. An answer counts up to its first token that differs from what the model says with everything kept.
# (`scaled=True` makes the card small enough for a tiny model, as above. For a model of your own leave it out.)
#
# ## Recap
#
# - Count first: 524,288 B hold one request of the longest in fp32, six in int8.
# - Read where the time went. The cache took 16 % of the seconds; int8 made the run 3.1 times as fast all the same, because 84 steps did what took 283.
# - A lever without anything to act on changes nothing: a limit of four sequences and the host memory left 2.021 s as it was.
# - 58 of 100 is a score with a meaning: at most 42 % of those seconds could still go.
# - A plan below the bar scores 0. The fastest one here answered 11 of 36.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="models_read" lang="zh" src="35a6dc21"
# 潜在向量本来就小，四分之一秒里来十个请求也不算挤：默认方案已经有 85 分。int8 多得一分，66 个应有的 token 里丢了两个。一个答案与模型什么都不忘时所说的比，从第一个不同的 token 起就不算。
# （`scaled=True` 把卡按小模型缩小，和上面一样。用自己的模型时不要加。）
#
# ## 本课小结
#
# - 先数清楚：524,288 B 的预算，最长的请求在 fp32 下只放得下一个，int8 下放得下六个。
# - 再看时间花在哪里。缓存只占时间的 16%，换成 int8 却快到 3.1 倍，因为原来要 283 步的，84 步就做完。
# - 没有东西可作用的手段毫无效果：并发上限改成 4、加上 CPU 内存，都还是 2.021 秒。
# - 58 分的意思是：这些秒数里，最多还能省 42%。
# - 质量不达标就是 0 分。这里最快的方案，36 个答案只对了 11 个。
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
# ## In the wild
#
# - [vLLM #2509](https://github.com/vllm-project/vllm/issues/2509): in January 2024 a user with four A10 cards wanted a 34B model "maximizing memory utilization and throughput", and got a link to two arguments. [#3885](https://github.com/vllm-project/vllm/issues/3885) asked for sample configurations for typical GPUs and was closed as stale: "why_no_sample_config" above says why.
# - [tandemn-system #11](https://github.com/Tandemn-Labs/tandemn-system/issues/11): in March 2026 a runner divided by the average length on one A10G. It preempted 480 times in 5,000 requests, and half of the users waited 60 s for their first token; see "Plan on paper".
# - [A report](https://kooexperience.com/blog/posts/llm-gauntlet.html) of 2026: nineteen engineers served one model on an A100 each. One tuned more than forty configurations; a proxy of thirty lines that kept answers won, because the whole load had two different prompts.
#
# ## Exercises
#
# 1. `room`: blocks and sequences that a plan's bytes hold, records included.
# 2. `enter`: an admission control; a sequence that it lets in never loses a block.
# 3. `floor_seconds`: what no plan can beat.
# 4. `best_plan`: the best of many plans, with as few runs as paper allows.
# %% [markdown] key="exercises" lang="zh" src="e5d8537b"
# ## 实战现场
#
# - [vLLM #2509](https://github.com/vllm-project/vllm/issues/2509)：2024 年 1 月，一位用户有四块 A10，想让一个 34B 模型把显存和吞吐量都用足，得到的回答是一个链接，解释两个参数的含义。[#3885](https://github.com/vllm-project/vllm/issues/3885) 想要几份常见 GPU 的样例配置，最后因无人回应而关闭；原因见上面的自测题 “why_no_sample_config”。
# - [tandemn-system #11](https://github.com/Tandemn-Labs/tandemn-system/issues/11)：2026 年 3 月，一个运行器在一块 A10G 上用平均长度做除法。5,000 个请求里抢占了 480 次，一半的用户等第一个 token 要等 60 秒；见“先在纸上算”一节。
# - 2026 年的[一份记录](https://kooexperience.com/blog/posts/llm-gauntlet.html)：十九位工程师各用一块 A100 服务同一个模型。其中一位调了四十多种配置；赢得比赛的却是一个三十行的代理，它只是把回答存了下来，因为整份负载只有两种提示词。
#
# ## 练习
#
# 1. `room`：一个方案的字节放得下多少块、多少条序列，记录也算在内。
# 2. `enter`：一个准入控制，放行的序列不会失去块。
# 3. `floor_seconds`：任何方案都低不过的秒数。
# 4. `best_plan`：从许多方案里找出最好的，纸上能排除的一个也不跑。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | `DoesNotFitError`: the plan wants more than the budget | `plan.num_blocks_for(task)`, `plan.record_bytes(task)`: with eviction every seat of `max_num_seqs` takes its record, used or not |
# | the score is 0 | `run.quality`, `run.bar`: which answers are missing? `[n for n, r in enumerate(task.requests) if r.answer and run.outputs[n].token_ids[:len(r.answer)] != r.answer]` |
# | a lever changes nothing | `where_it_went(task, run)` and `run.preemptions`: it acts on a part that is small, or makes room that nobody waits for |
# %% [markdown] key="stuck" lang="zh" src="abe35bd0"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | `DoesNotFitError`：方案要的超过预算 | `plan.num_blocks_for(task)`、`plan.record_bytes(task)`：会淘汰时，`max_num_seqs` 的每个席位都占一份记录，有没有人坐都一样 |
# | 得分是 0 | `run.quality`、`run.bar`：缺了哪些答案？`[n for n, r in enumerate(task.requests) if r.answer and run.outputs[n].token_ids[:len(r.answer)] != r.answer]` |
# | 改了一样，什么也没变 | `where_it_went(task, run)` 和 `run.preemptions`：它作用的那部分很小，或者腾出来的空间没有人在等 |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# This was the last lesson. The appendices stay: [errata](A_errata.ipynb), the [bug museum](B_bug_museum.ipynb), [short questions](C_faq.ipynb), what [other engines](D_other_engines.ipynb) call the same things, every formula on [one page](E_cheat_sheet.ipynb), and the [glossary](F_glossary.ipynb).
# And what you need from this one, wherever you serve a model: count first; run the load that you really have; read where the time went; change one thing; and know the floor, so that you can stop.
# %% [markdown] key="next" lang="zh" src="58f5f778"
# ## 接下来
#
# 这是最后一课。附录还在：[勘误](A_errata.ipynb)、[bug 博物馆](B_bug_museum.ipynb)、[短问短答](C_faq.ipynb)、同样的东西在[别的引擎](D_other_engines.ipynb)里叫什么、全部公式的[速查表](E_cheat_sheet.ipynb)，以及[术语表](F_glossary.ipynb)。
# 以后不管在哪里部署模型，从这一课带走的就是这些：先数清楚；跑你真正的负载；看时间花在哪里；一次只改一样；还要知道下限在哪里，好知道什么时候可以停。
