# %% [meta]
# number = "11a"
# slug = "continuous_batching"
# needs = ["02", "09"]
# rooms = ["nano.scheduler", "nano.sequence", "nano.llm", "engine"]
# [title]
# en = "How do 256 requests share one cache?"
# zh = "256 个请求怎样共用一份缓存？"
# [t4]
# en = "The small model answers on the T4, and the throughput and memory figures are its own; the rest is bookkeeping on the CPU and shows the same numbers."
# zh = "小模型在 T4 上作答，吞吐量和显存数字是 T4 自己的；其余都是 CPU 上的记账，数字相同。"
# [paper]
# en = "11a.1, 11a.2, 11a.3"
# zh = "11a.1、11a.2、11a.3"

# %% [markdown] key="question" lang="en"
# ## The question
#
# Many people ask at the same moment, and the cache has room for only some of their requests.
# **How does an engine run 256 requests when only a third of them fit?**
#
# Running them one by one would be slow: a step over 64 sequences takes only about five times as long as a step over one, as you will measure below. Filling a batch and waiting until all of it has finished is slow, too, because short answers wait for the longest.
#
# Below, eight requests share four seats. A row is a seat, a column is a step, and a colour is a request. A cell without a colour is idle.
# %% [markdown] key="question" lang="zh" src="faf248b1"
# ## 问题
#
# 很多人同时提问，而缓存只放得下其中一部分请求。
# **只放得下三分之一，推理引擎怎样跑完 256 个请求？**
#
# 一个一个算太慢，因为 64 条序列放在一步里算，用时只有只算一条时的五倍左右（后面会测）。凑齐一批、全部结束再换下一批也慢，短的回答会被最长的拖住。
#
# 下面是八个请求，并发上限为 4。一行是一个并发位置，一列是一步，一种颜色是一个请求。

# %% key="static_and_continuous" lang="en"
from minikv.course.diagrams import seats
from minikv.course.lessons.l11a.load import Ask, run_batches, run_load

answers = (3, 14, 5, 9, 4, 12, 2, 7)  # tokens to generate
asks = [Ask(tuple(range(100 * i, 100 * i + 8)), new) for i, new in enumerate(answers)]
options = dict(num_blocks=64, max_num_seqs=4, max_batched_tokens=64)
static, continuous = run_batches(asks, 4, **options), run_load(asks, **options)
show(seats({"static batches of four": static, "continuous batching": continuous}, 4, "en"))
# %% key="static_and_continuous" lang="zh"
from minikv.course.diagrams import seats
from minikv.course.lessons.l11a.load import Ask, run_batches, run_load

answers = (3, 14, 5, 9, 4, 12, 2, 7)  # 每个请求生成多少个 token
asks = [Ask(tuple(range(100 * i, 100 * i + 8)), new) for i, new in enumerate(answers)]
options = dict(num_blocks=64, max_num_seqs=4, max_batched_tokens=64)
static, continuous = run_batches(asks, 4, **options), run_load(asks, **options)
show(seats({"静态批处理，每批四个": static, "连续批处理": continuous}, 4, "zh"))

# %% key="seats_motion" lang="en"
from minikv.course.motion import BatchingMotion

# The same two runs, step by step: press play, or drag the slider.
show(BatchingMotion("en", {"static batches of four": static, "continuous batching": continuous}, 4))
# %% key="seats_motion" lang="zh"
from minikv.course.motion import BatchingMotion

# 同样两次运行，一步一步地看：按播放，或拖动滑块。
show(BatchingMotion("zh", {"静态批处理，每批四个": static, "连续批处理": continuous}, 4))

# %% [markdown] key="able" lang="en"
# Both pictures are drawn from runs of a real scheduler. In the static batches almost half of the cells are idle.
#
# After this lesson you can
#
# - **say** which sequences run in the next step, and with which of their tokens;
# - **build** the arrays that one forward needs for all of them;
# - **write** the two methods of a scheduler that let a sequence in and give it its share of a step.
#
# You should know block tables and slots ([lesson 09](09_pages_and_blocks.ipynb)).
# %% [markdown] key="able" lang="zh" src="ac3e69d5"
# 两张图都出自真正的调度器。静态批处理里，将近一半的格子是空闲的。
#
# 学完本课，你能够
#
# - **说出**下一步运行哪些序列、各算哪些 token；
# - **构造**一次前向计算需要的各个数组；
# - **写出**调度器里的两个方法：一个把序列放进来，一个决定它在这一步算多少。
#
# 开始之前，需要知道块表和槽位（[第 09 课](09_pages_and_blocks.ipynb)）。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# A **step** is one forward of the model over a **batch** of sequences. In decode, each of them gets one token from it.
# In a *static* batch all sequences begin together, and the next batch begins when the last of them has ended.
# A batch has a number of **seats** (`max_num_seqs`). A step has a **budget**, the most tokens that it computes (`max_batched_tokens`; nano and vLLM write `max_num_batched_tokens`).
# %% [markdown] key="predict_first" lang="zh" src="22ed9f44"
# ## 先猜一猜
#
# **一步**（step）就是模型对一个 **batch** 的序列做一次前向计算；解码时，batch 里的每条序列由此得到一个 token。
# **静态**批处理让所有序列同时开始，等最后一条也结束了，才开始下一个 batch。
# 一个 batch 最多有多少条序列，由**并发上限**（`max_num_seqs`）决定。一步最多计算多少个 token，叫作**预算**（`max_batched_tokens`；nano 和 vLLM 写作 `max_num_batched_tokens`）。

# %% key="predict_static"
predict("static_steps", ...)

# %% [markdown] key="list" lang="en"
# ## One list, no batches
#
# In the picture, request 0 ends after step 3. With static batches its seat stays empty until step 14, when request 1 has ended. With **continuous batching** request 4 takes the seat in step 4, because the batch is put together again for every step ([Orca](https://www.usenix.org/conference/osdi22/presentation/yu), 2022).
# %% [markdown] key="list" lang="zh" src="cef3d1d2"
# ## 没有固定的 batch，只有一份名单
#
# 图里的请求 0 在第 3 步之后结束。静态批处理让它的位置一直空到第 14 步，等请求 1 也结束。**连续批处理**（continuous batching）则在每一步都重新组一个 batch，所以请求 4 在第 4 步就补了进来（[Orca](https://www.usenix.org/conference/osdi22/presentation/yu)，2022）。

# %% key="list_table" lang="en"
from minikv.course import Table

runs = {"static batches of four": static, "continuous batching": continuous}
rows = [[name, ran.steps, ran.generated, ran.generated / ran.steps] for name, ran in runs.items()]
Table(["", "steps", "generated tokens", "generated a step"], rows)
# %% key="list_table" lang="zh"
from minikv.course import Table

runs = {"静态批处理，每批四个": static, "连续批处理": continuous}
rows = [[name, ran.steps, ran.generated, ran.generated / ran.steps] for name, ran in runs.items()]
Table(["", "步数", "生成的 token", "平均每步生成"], rows)

# %% [markdown] key="list_read" lang="en"
# This is `minikv.engine.Scheduler`, and no model runs. A scheduler doesn't know whether a forward runs between its `schedule` and its `finish`. That is on purpose, because decisions need no GPU.
#
# The small engine, `minikv.nano`, decides the same in a few lines. Read them from top to bottom: first `running`, the oldest sequence before the others, and then the queue, until the budget is spent.
# %% [markdown] key="list_read" lang="zh" src="ce602ce6"
# 这里用的是 `minikv.engine.Scheduler`，没有运行任何模型。在它的 `schedule` 和 `finish` 之间有没有前向计算，调度器并不知道。这是有意的，因为做决定用不着 GPU。
#
# 小引擎 `minikv.nano` 用几行代码做同样的决定。从上往下读：先是 `running`，最老的序列在前；然后是等待队列，直到预算用完。

# %% key="nano_schedule"
from minikv.course import show_source
from minikv.nano import scheduler as nano_scheduler

show_source(nano_scheduler.Scheduler.schedule)

# %% [markdown] key="with_model" lang="en"
# `make_room` handles the case in which no block is free: it preempts a sequence, which gives up its blocks, and in such a step no new sequence is admitted. That is the subject of [lesson 11b](11b_when_blocks_run_out.ipynb).
#
# ## With a model
#
# An engine's loop is three lines: choose the tokens, compute them, take in what came out. nano's `step` does nothing else:
# %% [markdown] key="with_model" lang="zh" src="b27a887b"
# `make_room` 处理没有空闲块的情形。它抢占一条序列，让它交出自己的块，而且这一步不再放新序列进来。这是[第 11b 课](11b_when_blocks_run_out.ipynb)的内容。
#
# ## 接上模型
#
# 引擎的循环只有三行：选出 token，计算，收下结果。nano 的 `step` 做的就是这些：

# %% key="nano_step"
from minikv.nano import llm as nano_llm

show_source(nano_llm.LLM.step)

# %% [markdown] key="with_model_tiny" lang="en"
# `minikv.LLM` does the same and handles more cases. Its model here, tiny-gqa, has learned one thing: the prompt gives a city to each of some names, asks for one name, and the model finds the city.
# (On a CPU we use a single thread, because the model is so small that several threads would mostly wait for each other.)
# %% [markdown] key="with_model_tiny" lang="zh" src="9896fa64"
# `minikv.LLM` 做的也是这些，只是更周全。这里的模型 tiny-gqa 只学过一件事：提示词给几个人名各配一座城市，最后问其中一个人名，模型从前文里找出那座城市。
# （在 CPU 上只用一个线程，因为模型太小，线程多了，大半时间都在互相等待。）

# %% key="model" lang="en"
import torch

from minikv import LLM, SamplingParams
from minikv.models import load, recall_documents, recall_prompt


def likeliest(tokens):
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)


torch.set_num_threads(1)
tiny, example = load("tiny-gqa"), recall_prompt(seed=1)
with LLM(tiny, num_blocks=64) as llm:
    [output] = llm.generate([example.text], likeliest(1))
Table(["prompt", "the model says", "right"], [[example.text, output.text.strip(), example.answer]])
# %% key="model" lang="zh"
import torch

from minikv import LLM, SamplingParams
from minikv.models import load, recall_documents, recall_prompt


def likeliest(tokens):
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)


torch.set_num_threads(1)
tiny, example = load("tiny-gqa"), recall_prompt(seed=1)
with LLM(tiny, num_blocks=64) as llm:
    [output] = llm.generate([example.text], likeliest(1))
Table(["提示词", "模型回答", "正确答案"], [[example.text, output.text.strip(), example.answer]])

# %% [markdown] key="many" lang="en"
# Now we ask 256 of these questions at once. Each request generates 16 tokens, and the pool has blocks for about a third of them.
# Each answer is right or wrong, and must not depend on the other 255.
#
# `monitor.cache` follows the cache while the cell runs. The picture that stays shows step 8: the pool is full, and most requests wait.
# %% [markdown] key="many" lang="zh" src="ab16bd69"
# 现在一次来 256 个请求，每个生成 16 个 token，块只够其中大约三分之一同时用。
# 每个回答非对即错，而且不应受另外 255 个的影响。
#
# `monitor.cache` 在单元格运行时跟着缓存变化。保存下来的图是第 8 步：块池满了，多数请求还在等待。

# %% key="many_code" tags="hardware" lang="en"
from minikv.course import monitor
from minikv.engine import EventLog

examples = [recall_prompt(seed=seed) for seed in range(256)]
prompts, log, done = [each.text for each in examples], EventLog(), {}
with LLM(tiny, num_blocks=256, max_num_seqs=256, emit=log) as llm:
    names = [llm.add_request(prompt, likeliest(16)) for prompt in prompts]
    for _ in range(8):
        llm.step()
    seen = monitor.cache(llm, lang="en")
    show(seen)  # live from here on
    while llm.has_work:
        done |= {out.request: out for out in llm.step().finished}
    seen.stop()
# %% key="many_code" tags="hardware" lang="zh"
from minikv.course import monitor
from minikv.engine import EventLog

examples = [recall_prompt(seed=seed) for seed in range(256)]
prompts, log, done = [each.text for each in examples], EventLog(), {}
with LLM(tiny, num_blocks=256, max_num_seqs=256, emit=log) as llm:
    names = [llm.add_request(prompt, likeliest(16)) for prompt in prompts]
    for _ in range(8):
        llm.step()
    seen = monitor.cache(llm, lang="zh")
    show(seen)  # 从这里开始实时变化
    while llm.has_work:
        done |= {out.request: out for out in llm.step().finished}
    seen.stop()

# %% key="many_table" lang="en"
def count_right(outputs, asked):
    return sum(out.text.split()[0] == each.answer for out, each in zip(outputs, asked))


outputs, steps = [done[name] for name in names], log.of("step")
needed = sum(-(-(len(out.prompt_token_ids) + 15) // 16) for out in outputs)
rows = [
    ["right answers of 256", count_right(outputs, examples)],
    ["blocks that all would need at once", needed],
    ["blocks of the pool", 256],
    ["steps", len(steps)],
    ["most sequences in a step", max(step.running for step in steps)],
    ["most blocks in use", max(step.used[0] for step in steps)],
    ["preemptions", len(log.of("preempt"))],
]
Table(["", ""], rows)
# %% key="many_table" lang="zh"
def count_right(outputs, asked):
    return sum(out.text.split()[0] == each.answer for out, each in zip(outputs, asked))


outputs, steps = [done[name] for name in names], log.of("step")
needed = sum(-(-(len(out.prompt_token_ids) + 15) // 16) for out in outputs)
rows = [
    ["256 个里答对", count_right(outputs, examples)],
    ["全部同时放下需要多少块", needed],
    ["块池的块数", 256],
    ["步数", len(steps)],
    ["一步里最多的序列数", max(step.running for step in steps)],
    ["最多占用的块", max(step.used[0] for step in steps)],
    ["抢占次数", len(log.of("preempt"))],
]
Table(["", ""], rows)

# %% [markdown] key="formula" lang="en"
# All 256 answers are right, with a third of the blocks. Some sequences lost their blocks on the way and got them back; [lesson 11b](11b_when_blocks_run_out.ipynb) shows how. This lesson is about the decision before each step.
#
# ## Two limits
#
# Take Llama-3.1-8B with 55 GiB for the cache, which is 28,160 blocks of 16 tokens. A request has a prompt of 1,024 tokens and gets as many in its answer. The last token of the answer is never stored, because nothing comes after it. So at the end the request holds 2,047 tokens in 128 blocks, and 28,160 / 128 = 220 such sequences fit. That is the first limit.
#
# The second one belongs to the step: it computes no more tokens than its budget.
# %% [markdown] key="formula" lang="zh" src="c4fffe4f"
# 256 个回答全对，块却只够三分之一同时用。有些序列中途失去了块，后来又拿了回来；[第 11b 课](11b_when_blocks_run_out.ipynb)会讲怎么做到的。本课讲的是每一步之前的决定。
#
# ## 两个上限
#
# 以 Llama-3.1-8B 为例，缓存 55 GiB，也就是 28,160 个块，块大小 16。每个请求的提示词 1,024 个 token，回答也是 1,024 个。回答的最后一个 token 不必存，因为它后面没有别的 token 了。所以到结束时，它存了 2,047 个 token，占 128 个块，放得下 28,160 / 128 = 220 条。这是第一个上限。
#
# 第二个上限属于这一步本身，即一步计算的 token 不能超过预算。

# %% [markdown] key="formula_math"
# $$\sum_{i \,\in\, \text{running}} \left\lceil T_i / B \right\rceil \;\le\; N \qquad\qquad D + \sum_{j \,\in\, \text{prefill}} c_j \;\le\; M$$

# %% [markdown] key="symbols" lang="en"
# | symbol | meaning | unit | value here |
# |---|---|---|---|
# | $T_i$ | tokens of sequence $i$ in the cache; one more at every step of its decode | tokens | 1,024 to 2,047 |
# | $B$ | block size | tokens a block | 16 |
# | $N$ | blocks of the pool | blocks | 55 GiB / (16 × 131,072 B) = 28,160 |
# | $D$ | sequences in decode, one token each | tokens | 1 |
# | $c_j$ | what the step computes of prompt $j$, a **chunk** | tokens | 4 and 7 |
# | $M$ | the budget, `max_batched_tokens` | tokens a step | 12 |
#
# With the numbers: 220 sequences at their end need `220 * 128 = 28,160` blocks, just $N$. The values of $D$, $c_j$ and $M$ are those of the step drawn below: `1 + 4 + 7 = 12`.
#
# (With shared blocks the first sum counts each block once.) The left side of the first limit keeps *growing* while sequences decode, even if no request is let in, because each of them needs one more block every $B$ steps:
# %% [markdown] key="symbols" lang="zh" src="2b225a21"
# | 符号 | 含义 | 单位 | 本例取值 |
# |---|---|---|---|
# | $T_i$ | 序列 $i$ 在缓存里的 token 数；解码时每一步加一 | token | 1,024 到 2,047 |
# | $B$ | 块大小 | token / 块 | 16 |
# | $N$ | 块池的块数 | 块 | 55 GiB / (16 × 131,072 B) = 28,160 |
# | $D$ | 处于解码的序列数，每条一个 token | token | 1 |
# | $c_j$ | 这一步计算提示词 $j$ 的多少个 token，即一**段**（chunk） | token | 4 和 7 |
# | $M$ | 预算，`max_batched_tokens` | token / 步 | 12 |
#
# 代入数字：220 条序列到结束时需要 `220 * 128 = 28,160` 个块，正好是 $N$。$D$、$c_j$、$M$ 取自后面画出的那一步：`1 + 4 + 7 = 12`。
#
# （有共享的块时，第一个和式里每个块只算一次。）即使不放新请求进来，第一个不等式的左边也会随着解码不断**变大**，因为每条序列每 $B$ 步就要再多一个块：

# %% key="capacity" lang="en"
from minikv.plan import CacheSpec
from minikv.units import GIB

spec = CacheSpec.from_config("Llama-3.1-8B")
pool_blocks = 55 * GIB // spec.block_bytes(16)
rows = []
for moment, tokens in (("prompt only", 1024), ("half-way", 1024 + 512), ("at the end", 1024 + 1023)):
    blocks = -(-tokens // 16)
    rows.append([moment, tokens, blocks, pool_blocks // blocks])
title = f"{pool_blocks:,} blocks of 16 tokens: {pool_blocks * 16:,} tokens"
Table(["moment", "tokens a sequence", "blocks a sequence", "sequences that fit"], rows, title=title)
# %% key="capacity" lang="zh"
from minikv.plan import CacheSpec
from minikv.units import GIB

spec = CacheSpec.from_config("Llama-3.1-8B")
pool_blocks = 55 * GIB // spec.block_bytes(16)
rows = []
for moment, tokens in (("只有提示词", 1024), ("生成到一半", 1024 + 512), ("即将结束", 1024 + 1023)):
    blocks = -(-tokens // 16)
    rows.append([moment, tokens, blocks, pool_blocks // blocks])
title = f"{pool_blocks:,} 个块，块大小 16：共 {pool_blocks * 16:,} 个 token"
Table(["时刻", "每条 token 数", "每条块数", "放得下几条"], rows, title=title)

# %% [markdown] key="admission" lang="en"
# If you fill the pool with 440 prompts, it holds only half of those sequences by the time they finish.
# If you reserve room for the end from the beginning, half of the pool stays empty at first, and part of it for good where answers stop early.
# An engine does neither. It lets in what fits now, and takes blocks back when it must.
#
# ## Which requests are let in
#
# One free block isn't enough to get in. A sequence needs blocks for *all* its tokens, on top of what the running ones need next. Otherwise it could be let in and lose its blocks in the next step.
# And a short request never overtakes a long one ahead of it in the queue, even if it would fit. Otherwise the long one would wait as long as short ones keep coming.
#
# In an empty pool, how many are let in at once?
# %% [markdown] key="admission" lang="zh" src="f72d2126"
# 如果拿 440 个提示词把块池填满，到这些序列结束的时候，只放得下其中一半。
# 如果一开始就按最后的长度留足位置，块池起初有一半空着；有的回答会提前结束，为它留的那部分就始终用不上。
# 推理引擎两样都不做，而是现在放得下就放进来，实在不够了再把块收回来。
#
# ## 放哪些请求进来
#
# 有一个空闲块还不够。一条序列要进来，除去运行中的序列接下来需要的，剩下的块必须放得下它的**全部** token；否则刚放进来，下一步就可能失去块。
# 而且，短请求即使放得下，也不能越过队列里排在前面的长请求；否则只要短请求不断到来，长请求就得一直等下去。
#
# 块池空着的时候，一次能放进来多少个？

# %% key="predict_admitted"
predict("admitted", ...)

# %% [markdown] key="nano_admit_read" lang="en"
# nano keeps one block free for each running sequence. That is the most that each can need in the next step, and the rule fits into one line.
# You write it in exercise 11a.4. Exercise 11a.1 is the same decision for a whole queue, with everything counted by hand.
# %% [markdown] key="nano_admit_read" lang="zh" src="1dde1f1f"
# nano 为每条正在运行的序列留一个空闲块，这正是它们下一步最多需要的，规则一行就写完了。
# 练习 11a.4 就是写这个方法。练习 11a.1 做同样的决定，只是对象换成整条队列，每个数也都要自己算。

# %% key="nano_admit"
show_source(nano_scheduler.Scheduler.admit)

# %% [markdown] key="step" lang="en"
# ## What a step is made of
#
# A step is a list of ranges: the next positions of each sequence. We pack them one after the other into one row of tokens, and the model computes the row in one forward. Further arrays say what each token needs.
#
# Take three sequences and a budget of 12. Q decodes. R begins with the same system prompt of 9 tokens as Q. S has 20 tokens, too many for what is left of the budget.
# %% [markdown] key="step" lang="zh" src="77e6eeda"
# ## 一步由什么组成
#
# 一步就是一份清单，写着每条序列接下来要算哪些位置。我们把它们首尾相接，排成一行 token，模型一次前向计算就算完。每个 token 还需要什么，写在旁边的数组里。
#
# 例如三条序列、预算 12：Q 在解码；R 的开头与 Q 是同一段 9 个 token 的系统提示词；S 有 20 个 token，剩下的预算放不下。

# %% key="mixed_step" lang="en"
from minikv.blocks import BlockManager
from minikv.course.diagrams import packed_step
from minikv.engine import Scheduler

scheduler = Scheduler(BlockManager(num_blocks=32, block_size=4), max_num_seqs=8, max_batched_tokens=12)
system = list(range(10, 19))  # the prompt that Q and R begin with
scheduler.add("Q", system, SamplingParams(max_tokens=8))
scheduler.finish(scheduler.schedule(), [7])  # Q has its first token
scheduler.add("R", [*system, 50, 51, 52], SamplingParams(max_tokens=8))
scheduler.add("S", list(range(100, 120)), SamplingParams(max_tokens=8))
show(packed_step(scheduler.schedule(), "en"))
# %% key="mixed_step" lang="zh"
from minikv.blocks import BlockManager
from minikv.course.diagrams import packed_step
from minikv.engine import Scheduler

scheduler = Scheduler(BlockManager(num_blocks=32, block_size=4), max_num_seqs=8, max_batched_tokens=12)
system = list(range(10, 19))  # Q 和 R 开头相同的提示词
scheduler.add("Q", system, SamplingParams(max_tokens=8))
scheduler.finish(scheduler.schedule(), [7])  # Q 得到第一个 token
scheduler.add("R", [*system, 50, 51, 52], SamplingParams(max_tokens=8))
scheduler.add("S", list(range(100, 120)), SamplingParams(max_tokens=8))
show(packed_step(scheduler.schedule(), "zh"))

# %% [markdown] key="step_read" lang="en"
# - **positions** are counted in the sequence, not in the row. RoPE turns each key by its position, and a chunk doesn't begin at 0 again.
# - **slot_mapping** says where K and V go ([lesson 09](09_pages_and_blocks.ipynb)).
# - **query_starts** says where each sequence begins in the row, with the total at the end. Sequence $i$ has the queries from `query_starts[i]` to `query_starts[i + 1] - 1`.
# - **lengths** is how many tokens the last query of each sequence sees, cached ones included. Q has one query and a length of 10.
#
# R computes only 4 of its 12 tokens, because the first 8 were found in two full blocks. (The ninth token of the system prompt is in a block of Q that isn't full.)
# For S no token is sampled. Its last token isn't computed yet, and the logits of an earlier one only predict a token that the prompt already has. (Exercise 11a.3 is these arrays.)
#
# In nano, `pack` says which tokens of a sequence are in the step, and `make_batch` puts them into one row.
# Instead of `query_starts` it has two others. `last` is the row of each sequence's last token, and the logits of that row choose the next token. `groups` lists what plain torch computes at once (up to 16 decodes, or the chunk of one sequence).
# %% [markdown] key="step_read" lang="zh" src="03e9242b"
# - **positions** 按序列数，不按这一行数。RoPE 按位置旋转每个 key，新的一段不会又从 0 开始。
# - **slot_mapping** 说 K 和 V 写到哪里（[第 09 课](09_pages_and_blocks.ipynb)）。
# - **query_starts** 说每条序列从这一行的哪里开始，末尾再加上总数。序列 $i$ 的 query 是 `query_starts[i]` 到 `query_starts[i + 1] - 1`。
# - **lengths** 是每条序列的最后一个 query 能看到多少个 token，早先缓存的也算在内。例如 Q 只有一个 query，长度是 10。
#
# R 有 12 个 token，只算 4 个，因为前 8 个已经在两个满块里找到。（系统提示词的第 9 个 token 所在的块，Q 还没有填满。）
# S 这一步不采样，因为它的最后一个 token 还没有算到，而前面的 token 的 logits 预测的，是提示词里已有的 token。（练习 11a.3 就是写这些数组。）
#
# 在 nano 里，`pack` 决定一条序列的哪些 token 进入这一步，`make_batch` 把它们排成一行。
# 它不用 `query_starts`，而是用另外两个：`last` 是每条序列最后一个 token 所在的行，下一个 token 由这一行的 logits 决定；`groups` 列出纯 torch 一次算哪些（最多 16 条解码，或者一条序列的一段）。

# %% key="nano_pack"
from minikv.nano import runner as nano_runner

show_source(nano_scheduler.Scheduler.pack, nano_runner.make_batch)

# %% [markdown] key="long_prompt" lang="en"
# (`pack` is exercise 11a.5.)
#
# ## A long prompt arrives
#
# The more tokens a step computes, the longer it takes. So a prompt of 600 tokens that is computed in one piece holds up the next token of every other sequence.
# **Chunked prefill** cuts it: decodes first, then as much of a prompt as the budget leaves ([Sarathi-Serve](https://arxiv.org/abs/2403.02310), 2024). With 4 decodes and a budget of 64, a chunk has 60 tokens, so 600 tokens take 10 steps.
#
# nano needs no rule for "decodes first". A prompt that isn't done has used up the budget, so no sequence is admitted after it, and it's always the last in `running`.
# %% [markdown] key="long_prompt" lang="zh" src="ee510039"
# （`pack` 就是练习 11a.5。）
#
# ## 来了一个长提示词
#
# 一步要算的 token 越多，用时越长。所以 600 个 token 的提示词如果一口气算完，其他序列的下一个 token 就全都被它拖住。
# **分块预填充**（chunked prefill）把它切开，先满足解码，剩下的预算有多少，提示词就算多少（[Sarathi-Serve](https://arxiv.org/abs/2403.02310)，2024）。例如有 4 条解码、预算 64，一段就是 60 个 token，600 个 token 要 10 步。
#
# nano 不需要“解码优先”这条规则，因为没算完的提示词已经把预算用光，后面不会再放序列进来，所以它总是 `running` 里的最后一条。

# %% key="predict_first_token"
predict("first_token", ...)

# %% key="chunked" lang="en"
from minikv.course.diagrams import step_tokens

decoding = [Ask(tuple(range(9000 + 20 * i, 9004 + 20 * i)), 24) for i in range(4)]
load = [*decoding, Ask(tuple(range(600)), 6, arrival=4)]
runs = {budget: run_load(load, num_blocks=128, max_num_seqs=8, max_batched_tokens=budget) for budget in (1024, 128, 64)}
show(step_tokens(runs, "en"))
rows = [[budget, max(ran.tokens), ran.first[-1] - 4 + 1, ran.last[0] + 1] for budget, ran in runs.items()]
head = ["budget", "largest step", "long prompt: steps from arrival to first token", "others: last step"]
Table(head, rows)
# %% key="chunked" lang="zh"
from minikv.course.diagrams import step_tokens

decoding = [Ask(tuple(range(9000 + 20 * i, 9004 + 20 * i)), 24) for i in range(4)]
load = [*decoding, Ask(tuple(range(600)), 6, arrival=4)]
runs = {budget: run_load(load, num_blocks=128, max_num_seqs=8, max_batched_tokens=budget) for budget in (1024, 128, 64)}
show(step_tokens(runs, "zh"))
rows = [[budget, max(ran.tokens), ran.first[-1] - 4 + 1, ran.last[0] + 1] for budget, ran in runs.items()]
head = ["预算", "最大的一步", "长提示词：到达后第几步得到第一个 token", "原有序列：在第几步结束"]
Table(head, rows)

# %% [markdown] key="chunked_read" lang="en"
# The four sequences that decode have missed no step: their last token comes in step 24 each time. The budget limits how long a step can get, and the newcomer pays for it with a later first token.
# These are the two latencies of serving: **TTFT**, time to the first token, and **TPOT**, time per output token after it.
#
# Here is the same with the model, where a step takes real time. Eight sequences decode when a prompt of 1,504 tokens arrives:
# %% [markdown] key="chunked_read" lang="zh" src="5c5de523"
# 正在解码的四条序列一步也没有落下：无论预算多大，它们的最后一个 token 都在第 24 步。预算限制了一步最长有多长；代价由新来的承担，它的第一个 token 要多等几步。
# 推理服务的两个延迟就在这里：**首 token 延迟**（TTFT），以及之后的**每 token 延迟**（TPOT）。
#
# 接上模型再来一遍，这回每一步都要花实实在在的时间。八条序列正在解码，这时来了一个 1,504 个 token 的提示词：

# %% key="step_times"
import time

[long] = recall_documents(1, seed=5, facts=24, context=1500, queries=1, span=3)


def step_times(budget):
    with LLM(tiny, num_blocks=256, max_num_seqs=16, max_batched_tokens=budget) as llm:
        for prompt in prompts[:8]:
            llm.add_request(prompt, likeliest(40))
        llm.step()
        seconds = []
        while llm.has_work:
            if len(seconds) == 5:
                llm.add_request(long.tokens.tolist(), likeliest(1))
            start = time.perf_counter()
            llm.step()
            seconds.append(time.perf_counter() - start)
    return sorted(seconds)

# %% key="chunked_time" tags="timing" lang="en"
rows = []
for budget in (2048, 256, 64):
    runs = [step_times(budget) for _ in range(3)]  # the best of three
    longest, median = min(run[-1] for run in runs), min(run[len(run) // 2] for run in runs)
    rows.append([budget, longest * 1e3, median * 1e3])
Table(["budget", "longest step, ms", "median step, ms"], rows)
# %% key="chunked_time" tags="timing" lang="zh"
rows = []
for budget in (2048, 256, 64):
    runs = [step_times(budget) for _ in range(3)]  # 跑三次取最快
    longest, median = min(run[-1] for run in runs), min(run[len(run) // 2] for run in runs)
    rows.append([budget, longest * 1e3, median * 1e3])
Table(["预算", "最长的一步（毫秒）", "中位数（毫秒）"], rows)

# %% [markdown] key="chunks_exercise" lang="en"
# With a smaller budget the longest step gets shorter, until the step's own cost dominates. The price shows in the median. At 64 it gets longer: eight decodes leave 56 tokens for a chunk, so the long prompt needs 1,504 / 56, about 27 chunks, and more than half of the steps have one. (Exercise 11a.2: how many tokens of the budget each sequence gets.)
#
# ## Reusing a prefix
#
# Now we ask twenty-four questions about one document. Each prompt is the document, followed by "?" and a name.
# The first request computes the document. The others find its blocks ([lesson 09](09_pages_and_blocks.ipynb)) and compute only what comes after it.
# %% [markdown] key="chunks_exercise" lang="zh" src="246251c7"
# 预算越小，最长的一步越短，直到一步本身的开销占了大头。代价在中位数上，预算为 64 时中位数反而变长，因为除去八条解码，一段只有 56 个 token，1,504 个 token 的长提示词要切成约 1,504 / 56 = 27 段，一半以上的步里都有一段。（练习 11a.2：预算里的 token 怎么分。）
#
# ## 重用前缀
#
# 同一篇文档，二十四个问题。每个提示词都是这篇文档，后面接上“?”和一个人名。
# 第一个请求把文档算一遍；其余的找到它的块（[第 09 课](09_pages_and_blocks.ipynb)），只算后面的部分。

# %% key="prefix" lang="en"
[document] = recall_documents(1, seed=3, facts=24, context=192, queries=24, span=72)
context = " ".join(document.words[1:193])
questions = [f"{context} ? {question.name}" for question in document.questions]
rows = []
for tenants in (1, 4, 24):
    with LLM(tiny, num_blocks=512, max_num_seqs=64) as llm:
        first = llm.generate(questions[:1], likeliest(1), salt="tenant 0")
        salts = [f"tenant {number % tenants}" for number in range(1, 24)]
        outputs = first + llm.generate(questions[1:], likeliest(1), salt=salts)
    hits = sum(out.num_cached for out in outputs)
    total = sum(len(out.prompt_token_ids) for out in outputs)
    rows.append([tenants, total, hits, f"{hits / total:.0%}", count_right(outputs, document.questions)])
Table(["tenants", "tokens of prompts", "found", "share", "right of 24"], rows, right=["share"])
# %% key="prefix" lang="zh"
[document] = recall_documents(1, seed=3, facts=24, context=192, queries=24, span=72)
context = " ".join(document.words[1:193])
questions = [f"{context} ? {question.name}" for question in document.questions]
rows = []
for tenants in (1, 4, 24):
    with LLM(tiny, num_blocks=512, max_num_seqs=64) as llm:
        first = llm.generate(questions[:1], likeliest(1), salt="tenant 0")
        salts = [f"tenant {number % tenants}" for number in range(1, 24)]
        outputs = first + llm.generate(questions[1:], likeliest(1), salt=salts)
    hits = sum(out.num_cached for out in outputs)
    total = sum(len(out.prompt_token_ids) for out in outputs)
    rows.append([tenants, total, hits, f"{hits / total:.0%}", count_right(outputs, document.questions)])
Table(["租户数", "提示词的 token", "命中", "比例", "24 个里答对"], rows, right=["比例"])

# %% [markdown] key="prefix_read" lang="en"
# The answers stay the same. What changes is how much is computed for them.
# Tenants are the customers of one server. A salt keeps them apart, so each tenant has to compute the document itself. With four tenants that would be four times, and the other 20 questions could find 192 tokens each: `20 * 192 / 4,680 = 82%`. It's only 49 %, because a block can be found only after the step that computes it: questions of one tenant that start in the same step each compute the document.
#
# ## Measure it here
#
# ### What a larger batch brings
#
# A step costs something before it has computed a single token: the weights are read, the kernels are launched. All sequences of the batch share that cost $a$, and each adds its own $c$. So a step over $b$ sequences takes $a + c\,b$, and
#
# $$\text{throughput}(b) \;=\; \frac{b}{a + c \, b}$$
#
# | symbol | meaning | unit | value here |
# |---|---|---|---|
# | $a$ | what a step costs by itself | seconds | 0.0015 |
# | $c$ | what each sequence adds | seconds | 0.0000388 |
# | $b$ | sequences in the batch | sequences | 16 |
#
# With the numbers: `16 / (0.0015 + 0.0000388 * 16) = 7,544` tokens a second. (These $a$ and $c$ are from one run. The next cells measure them again, so theirs differ, and with other work on the machine the points scatter around the curve.) The throughput rises with $b$ and levels off at $1/c$:
# %% [markdown] key="prefix_read" lang="zh" src="e7903397"
# 回答都一样，变的是为此算了多少。
# 租户是共用一台服务的不同客户，盐值（salt）把他们隔开，所以每个租户都要自己计算这篇文档。四个租户本来只需计算四遍，其余 20 个问题各命中 192 个 token，即 `20 * 192 / 4,680 = 82%`。实际只有 49%，因为一个块要等计算它的那一步结束之后才能找到。也就是说，同一个租户的几个问题如果在同一步开始，就会各算一遍文档。
#
# ## 在本机上测量
#
# ### batch 越大，好处越多吗
#
# 一步还没有算一个 token，就已经有开销：权重要读，kernel 要启动。这部分开销 $a$ 由 batch 里的所有序列分摊，每条序列另加 $c$。所以 $b$ 条序列的一步用时 $a + c\,b$，于是
#
# $$\text{throughput}(b) \;=\; \frac{b}{a + c \, b}$$
#
# | 符号 | 含义 | 单位 | 本例取值 |
# |---|---|---|---|
# | $a$ | 一步本身的开销 | 秒 | 0.0015 |
# | $c$ | 每条序列另加的 | 秒 | 0.0000388 |
# | $b$ | batch 里的序列数 | 条 | 16 |
#
# 代入数字：`16 / (0.0015 + 0.0000388 * 16) = 7,544` token / 秒。（这里的 $a$ 和 $c$ 取自某一次运行。下面的单元格会重新测，得到的数不同；机器上如果还有别的程序在跑，各点会散落在曲线两侧。）吞吐量随 $b$ 上升，最后趋近 $1/c$：

# %% key="throughput_run"
def step_seconds(size):
    with LLM(tiny, num_blocks=400, max_num_seqs=64) as llm:
        for prompt in prompts[:size]:
            llm.add_request(prompt, likeliest(60))
        for _ in range(4):
            llm.step()
        seconds = []
        for _ in range(21):
            start = time.perf_counter()
            llm.step()
            seconds.append(time.perf_counter() - start)
    return sorted(seconds)[10]

# %% key="throughput" tags="timing" lang="en"
import numpy as np

from minikv.course.charts import lines

measured = {size: step_seconds(size) for size in (1, 2, 4, 8, 16, 32, 64)}
c, a = np.polyfit(list(measured), list(measured.values()), 1)
rates = {
    "measured": {size: size / seconds for size, seconds in measured.items()},
    "b / (a + c b)": {size: size / (a + c * size) for size in measured},
}
show(lines(rates, x="sequences in the batch", y="tokens a second", log="x", points=["measured"], levels={"1/c": 1 / c}))
Table(["a, ms", "c, ms", "limit 1/c, tokens/s"], [[a * 1e3, c * 1e3, 1 / c]])
# %% key="throughput" tags="timing" lang="zh"
import numpy as np

from minikv.course.charts import lines

measured = {size: step_seconds(size) for size in (1, 2, 4, 8, 16, 32, 64)}
c, a = np.polyfit(list(measured), list(measured.values()), 1)
rates = {
    "测得": {size: size / seconds for size, seconds in measured.items()},
    "b / (a + c b)": {size: size / (a + c * size) for size in measured},
}
show(lines(rates, x="batch 里的序列数", y="token / 秒", log="x", points=["测得"], levels={"1/c": 1 / c}))
Table(["a（毫秒）", "c（毫秒）", "极限 1/c（token/秒）"], [[a * 1e3, c * 1e3, 1 / c]])

# %% [markdown] key="profile" lang="en"
# ### Where a step spends its time
#
# `torch.profiler` records every operation of a step. We run it on a small Llama with random weights, on the CPU: a prefill of 256 tokens, and the decode step after it. The last two columns are floors ([lesson 04](04_the_roofline.ipynb)): the time that the arithmetic alone would take on this machine, and that the bytes alone would take. (Both come from a short measurement of the machine. If other work disturbed it, a step may even beat its floor.)
# %% [markdown] key="profile" lang="zh" src="0f651d18"
# ### 一步的时间花在哪里
#
# `torch.profiler` 记录一步里的每个运算。我们在 CPU 上用一个随机权重的小 Llama 来试：先是 256 个 token 的预填充，再是它之后的一步解码。最后两列是下限（[第 04 课](04_the_roofline.ipynb)）：在这台机器上，只做计算要多久，只搬字节要多久。（两者都由一次短暂的实测算出；测的时候如果有别的程序在跑，下限会偏高，一步的用时甚至可能比它还短。）

# %% key="profiled" tags="timing" lang="en"
from minikv.course.lessons.l11a.profiled import profiled_steps, roof_here

flops_per_us, bytes_per_us = roof_here()
rows = []
for name, calls in zip(("prefill", "decode"), profiled_steps().values()):
    _, us, flops, num_bytes = zip(*calls)  # of each operation
    least = [sum(flops) / flops_per_us / 1e3, sum(num_bytes) / bytes_per_us / 1e3]
    rows.append([name, len(calls), sum(us) / 1e3, *least])
Table(["step", "operations", "ms", "arithmetic alone, ms", "memory alone, ms"], rows)
# %% key="profiled" tags="timing" lang="zh"
from minikv.course.lessons.l11a.profiled import profiled_steps, roof_here

flops_per_us, bytes_per_us = roof_here()
rows = []
for name, calls in zip(("预填充", "解码"), profiled_steps().values()):
    _, us, flops, num_bytes = zip(*calls)  # 每个运算各一项
    least = [sum(flops) / flops_per_us / 1e3, sum(num_bytes) / bytes_per_us / 1e3]
    rows.append([name, len(calls), sum(us) / 1e3, *least])
Table(["步", "运算数", "毫秒", "只做计算（毫秒）", "只搬字节（毫秒）"], rows)

# %% [markdown] key="flat" lang="en"
# The prefill has more arithmetic than memory to wait for, so it is compute-bound. The decode step reads the same weights for a single token, so it is memory-bound. Which operations take longest, and how far is each from its floor? You write that in exercise 11a.6.
#
# ### Memory is flat in decode
#
# The cache was made once ([lesson 07](07_allocate_once.ipynb)), so decode may write into it but must not allocate anything that stays.
# We run eight sequences for 100 steps and look at what is alive afterwards that was not before. Then we do the same with a cache that grows, transformers' own:
# %% [markdown] key="flat" lang="zh" src="52ed7e42"
# 预填充里，计算比访存更费时间，所以是计算受限。解码一步读的是同样的权重，却只算一个 token，所以是访存受限。哪几个运算最费时间，各自离下限有多远？这就是练习 11a.6。
#
# ### 解码时内存不增长
#
# 缓存是一次建好的（[第 07 课](07_allocate_once.ipynb)），所以解码可以往里写，但不该再分配任何会留下来的东西。
# 八条序列、100 步，看看结束后比开始时多出多少；再换成会增长的缓存，即 transformers 自带的，做同样的事：

# %% key="flat_code"
from transformers import DynamicCache

from minikv.memory import measure_peak


def decode(llm, steps):
    for prompt in prompts[:8]:
        llm.add_request(prompt, likeliest(steps))
    while llm.has_work:
        llm.step()


@torch.no_grad()
def decode_growing(model, tokens, cache, steps):
    for _ in range(steps):
        tokens = model(tokens, past_key_values=cache).logits[:, -1:].argmax(-1)

# %% key="flat_run" tags="hardware" lang="en"
with LLM(tiny, num_blocks=256, max_num_seqs=8) as llm:
    decode(llm, 4)
    ours = measure_peak(lambda: decode(llm, 100))
    # 27 tokens of prompt and 99 of answer, for each of the eight
    written = 8 * 126 * sum(group.block_bytes(1) for group in llm.cache.kv_cache_groups)

ids = tiny.tokenizer(prompts[:8], return_tensors="pt")["input_ids"].to(tiny.model.device)
cache = DynamicCache(config=tiny.model.config)
theirs = measure_peak(lambda: decode_growing(tiny.model, ids, cache, 100))
rows = [["the engine", ours.kept, ours.extra], ["a cache that grows", theirs.kept, theirs.extra]]
Table(["", "kept afterwards, B", "most at once, B"], rows, lines=[f"K and V of the 8 sequences: {written:,} B"])
# %% key="flat_run" tags="hardware" lang="zh"
with LLM(tiny, num_blocks=256, max_num_seqs=8) as llm:
    decode(llm, 4)
    ours = measure_peak(lambda: decode(llm, 100))
    # 八条序列，每条提示词 27 个 token，生成的 99 个
    written = 8 * 126 * sum(group.block_bytes(1) for group in llm.cache.kv_cache_groups)

ids = tiny.tokenizer(prompts[:8], return_tensors="pt")["input_ids"].to(tiny.model.device)
cache = DynamicCache(config=tiny.model.config)
theirs = measure_peak(lambda: decode_growing(tiny.model, ids, cache, 100))
rows = [["我们的引擎", ours.kept, ours.extra], ["会增长的缓存", theirs.kept, theirs.extra]]
Table(["", "结束后多出（B）", "过程中最多多出（B）"], rows, lines=[f"8 条序列的 K 和 V：{written:,} B"])

# %% [markdown] key="break" lang="en"
# ## Break it
#
# ### Positions that begin at 0 again
#
# We make the batch wrong in two ways, one array at a time. In the first, the positions of each chunk begin at 0. In the second, `lengths` says how long the chunk is and not how much its last query sees.
# The budget of 64 cuts every prompt into several chunks.
# %% [markdown] key="break" lang="zh" src="f5901009"
# ## 弄坏它
#
# ### 位置又从 0 数起
#
# 下面故意把 batch 弄错两次，每次只改一个数组。第一次，每一段的位置都从 0 数起。第二次，`lengths` 填的是这一段的长度，而不是最后一个 query 能看到多少个 token。
# 预算为 64，每个提示词都被切成几段。

# %% key="break_changes"
from dataclasses import replace
from unittest.mock import patch


def as_it_is(step, batch):
    return batch


def relative_positions(step, batch):
    starts = [item.start if item.decode else 0 for item in step.items]
    wrong = [torch.arange(len(item.tokens)) + start for item, start in zip(step.items, starts)]
    return replace(batch, positions=torch.cat(wrong).to(batch.positions.device))


def chunk_lengths(step, batch):
    wrong = torch.tensor([len(item.tokens) for item in step.items], dtype=torch.int32)
    return replace(batch, lengths=(wrong.to(batch.positions.device),))

# %% key="break_positions" lang="en"
changes = {
    "the batch as it is": as_it_is,
    "positions begin at 0 in every chunk": relative_positions,
    "lengths of the chunk only": chunk_lengths,
}
rows = []
for name, change in changes.items():
    with LLM(tiny, num_blocks=512, max_num_seqs=16, max_batched_tokens=64) as llm:
        right_batch = llm.runner.batch
        with patch.object(llm.runner, "batch", lambda step: change(step, right_batch(step))):
            outputs = llm.generate(questions, likeliest(1), salt=[str(number) for number in range(24)])
    rows.append([name, count_right(outputs, document.questions), len(questions)])
Table(["change", "right answers", "of"], rows)
# %% key="break_positions" lang="zh"
changes = {
    "batch 保持原样": as_it_is,
    "每一段的位置都从 0 开始": relative_positions,
    "lengths 只填这一段的长度": chunk_lengths,
}
rows = []
for name, change in changes.items():
    with LLM(tiny, num_blocks=512, max_num_seqs=16, max_batched_tokens=64) as llm:
        right_batch = llm.runner.batch
        with patch.object(llm.runner, "batch", lambda step: change(step, right_batch(step))):
            outputs = llm.generate(questions, likeliest(1), salt=[str(number) for number in range(24)])
    rows.append([name, count_right(outputs, document.questions), len(questions)])
Table(["改动", "答对", "总数"], rows)

# %% [markdown] key="break_positions_read" lang="en"
# There is no error in either case.
# The second mistake is easy to notice: only 5 of 24 answers are right, because attention sees no more tokens than the chunk has. The first one is worse. With 18 of 24 right, a test with two or three prompts passes, and in a chat the model would just seem to have got worse.
# That is why the package's tests compare every token with the model's own `generate`.
# %% [markdown] key="break_positions_read" lang="zh" src="221362a1"
# 两种都没有任何报错。
# 第二种容易发现，24 个只答对 5 个，因为这一段有几个 token，注意力就只看得到几个。第一种更糟，因为 24 个答对 18 个，拿两三个提示词测一测就过了；换成聊天，只会觉得模型变差了。
# 所以本包的测试把每个 token 都与模型自己的 `generate` 逐一对照。

# %% [markdown] key="recap" lang="en"
# ## Recap
#
# - The batch is put together again at every step. Eight requests that took 26 steps in batches of four take 17, because a free seat is taken at once.
# - Two limits hold at every step: the blocks of all running sequences fit into the pool, and a step has at most its budget of tokens, 1 + 4 + 7 = 12 in our example.
# - A sequence is let in when blocks for all its tokens are free, and one more for each running sequence. No request overtakes another.
# - The tokens of all sequences lie in one row. Positions, slots, starts and lengths say which is which.
# - A long prompt is cut into chunks. At a budget of 64 the largest step shrinks from 604 tokens to 64, and the newcomer's first token comes 9 steps later.
# %% [markdown] key="recap" lang="zh" src="e6a633fc"
# ## 本课小结
#
# - 每一步都重新组 batch。八个请求按四条一批要 26 步，现在只要 17 步，因为一有空位就补上。
# - 每一步都受两个上限约束：所有运行中序列的块放得进块池；一步的 token 不超过预算，例如 1 + 4 + 7 = 12。
# - 除去给每条运行中的序列各留一块，剩下的块放得下一条序列的全部 token，才放它进来。任何请求都不能越过别的请求。
# - 所有序列的 token 排成一行，位置、槽位、起点和长度说明哪个是哪个。
# - 长提示词切成段。预算为 64 时，最大的一步从 604 个 token 降到 64 个，而新来的要晚 9 步得到第一个 token。

# %% [markdown] key="self" lang="en"
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="c2d6ea3e"
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_continuous"
explain("why_continuous")

# %% key="explain_chunk"
explain("why_chunks")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# The first three ask for the decisions with plain lists instead of classes. The next two are methods of nano, and become parts of [your engine](11c_your_engine.ipynb). The last one reads a profile.
#
# 1. `admit_queue`: which requests of a queue are let in.
# 2. `chunks`: how the budget of a step is shared out.
# 3. `batch_arrays`: the arrays of a mixed batch.
# 4. `admit`: one sequence, as a method of nano's scheduler.
# 5. `pack`: its tokens of this step, as a method of nano's scheduler.
# 6. `longest_operations`: where a step spends its time.
# %% [markdown] key="exercises" lang="zh" src="6d07cbea"
# ## 练习
#
# 前三题不用引擎的类，只用普通的列表来写各个决定。接下来两题是 nano 的方法，会成为[你自己的引擎](11c_your_engine.ipynb)的部件。最后一题读一份性能分析。
#
# 1. `admit_queue`：放队列里的哪些请求进来。
# 2. `chunks`：一步的预算怎么分。
# 3. `batch_arrays`：混合 batch 的各个数组。
# 4. `admit`：放一条序列进来，写成 nano 调度器的方法。
# 5. `pack`：它在这一步算哪些 token，写成 nano 调度器的方法。
# 6. `longest_operations`：一步的时间花在哪里。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | requests wait, and few run | `view = llm.snapshot()`: `len(view.running)` at `max_num_seqs` means no seat; `view.pools[0].free` near 0 means no block; neither means no budget |
# %% [markdown] key="stuck" lang="zh" src="536c12eb"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 请求在等待，运行的却很少 | `view = llm.snapshot()`：`len(view.running)` 到了 `max_num_seqs` 是到了并发上限；`view.pools[0].free` 接近 0 是块不够；都不是，就是预算不够 |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - **The whole prompt, or a part of it.** An engine may let a request in as soon as the first chunk of its prompt fits, but then it can lose its blocks before the prompt is done. Since [PR #37307](https://github.com/vllm-project/vllm/pull/37307) vLLM can ask for room for the whole prompt, as nano does.
# - **Where the idea comes from.** Iteration-level scheduling is [Orca](https://www.usenix.org/conference/osdi22/presentation/yu) (OSDI 2022), and chunked prefill together with decodes is [Sarathi-Serve](https://arxiv.org/abs/2403.02310) (OSDI 2024).
# %% [markdown] key="wild" lang="zh" src="d1e8595f"
# ## 实战现场
#
# - **整个提示词，还是其中一段。** 引擎可以在提示词的第一段放得下时就放请求进来，但这样一来，提示词还没算完就可能失去块。从 [PR #37307](https://github.com/vllm-project/vllm/pull/37307) 起，vLLM 也可以像 nano 这样，要求放得下整个提示词。
# - **这些做法的来历。** 逐步调度出自 [Orca](https://www.usenix.org/conference/osdi22/presentation/yu)（OSDI 2022），把预填充分段、与解码放在同一步，出自 [Sarathi-Serve](https://arxiv.org/abs/2403.02310)（OSDI 2024）。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# Every decode may need one more block, and at some point none is free. [Lesson 11b](11b_when_blocks_run_out.ipynb) takes blocks back from a sequence, and counts what that costs.
# %% [markdown] key="next" lang="zh" src="a982079d"
# ## 下一课
#
# 每次解码都可能再要一个块，而块总有用完的时候。[第 11b 课](11b_when_blocks_run_out.ipynb)把块从一条序列那里收回来，再数一数代价有多大。
