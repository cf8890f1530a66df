# %% [meta]
# number = "11"
# slug = "the_engine"
# needs = ["02", "09"]
# rooms = ["engine"]
# minutes = 70
# [title]
# en = "How do 256 requests share one cache?"
# zh = "256 个请求怎样共用一份缓存？"
# [t4]
# en = "The small model answers on the T4, and the throughput and memory figures are its own; the rest is bookkeeping on the CPU and shows the same numbers."
# zh = "小模型在 T4 上作答，吞吐量和显存数字是 T4 自己的；其余都是 CPU 上的记账，数字相同。"
# [paper]
# en = "11.1, 11.2, 11.3"
# zh = "11.1、11.2、11.3"

# %% [markdown] key="question" lang="en"
# ## The question
#
# In September 2025 a vLLM maintainer measures throughput with 1,000 prompts of random tokens, 1,024 in and 1,024 out, on a Llama of 8B. The log says:
#
# > Running: 259 reqs, Waiting: 535 reqs, GPU KV cache usage: 82.3%, Prefix cache hit rate: 32.2%
#
# ([vLLM #25780](https://github.com/vllm-project/vllm/issues/25780))
#
# Look at the last number. Random prompts have nothing in common.
# **So whose tokens are these, the third that was found in the cache?**
#
# To answer it you have to know how some 260 requests live in one cache: who is let in and who waits, whose tokens the next step computes, and who has to leave when the blocks run out.
# By the end of this lesson you have written these decisions yourself, and the riddle is solved on the way.
# %% [markdown] key="question" lang="zh" src="bc9f68b9"
# ## 问题
#
# 2025 年 9 月，vLLM 的一位维护者测吞吐量：1,000 个随机 token 的提示词，每个输入 1,024、输出 1,024，模型是 8B 的 Llama。日志里有这样一行：
#
# > Running: 259 reqs, Waiting: 535 reqs, GPU KV cache usage: 82.3%, Prefix cache hit rate: 32.2%
#
# （[vLLM #25780](https://github.com/vllm-project/vllm/issues/25780)。意思是：259 个请求在运行，535 个在等待，KV 缓存用了 82.3%，前缀缓存命中率 32.2%。）
#
# 看最后一个数。随机的提示词之间没有任何相同之处。
# **那么，命中的这三分之一 token 是谁的**？
#
# 要回答，先得知道两百多个请求怎样在一份缓存里共处：放谁进来、让谁等着，下一步算谁的 token，块用完了又该请谁离开。
# 学完本课，这几个决定都由你亲手写过一遍，谜底也会在途中揭开。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# A **step** is one forward of the model over a **batch** of sequences. In decode, each of them gets one token from it.
# In a *static* batch all begin together, and the next batch begins when the last of them has ended.
# A batch has a number of **seats** (`max_num_seqs`), and a step has a **budget**: the most tokens that it computes (`max_batched_tokens`).
# %% [markdown] key="predict_first" lang="zh" src="d33096f4"
# ## 先猜一猜
#
# **一步**（step）就是模型对一个 **batch** 的序列做一次前向计算；解码时，batch 里的每条序列由此得到一个 token。
# **静态**批处理是大家同时开始，等最后一条也结束了，才开始下一个 batch。
# 一个 batch 最多有若干**席位**（`max_num_seqs`），一步最多计算若干 token，即**预算**（`max_batched_tokens`）。

# %% key="predict_static"
predict("static_steps", ...)

# %% key="predict_admitted"
predict("admitted", ...)

# %% [markdown] key="formula" lang="en"
# ## Two limits
#
# Every step has to keep two limits. One is the pool's, the other is the step's own:
# %% [markdown] key="formula" lang="zh" src="9d932bf1"
# ## 两条界限
#
# 每一步都要守住两条界限：一条属于块池，一条属于这一步自己。

# %% [markdown] key="formula_math"
# $$\sum_{i \,\in\, \text{running}} \left\lceil T_i / B \right\rceil \;\le\; N \qquad\qquad D + \sum_{j \,\in\, \text{prefill}} c_j \;\le\; M$$

# %% [markdown] key="symbols" lang="en"
# | symbol | meaning | unit |
# |---|---|---|
# | $T_i$ | tokens of sequence $i$ in the cache; one more at every step of its decode | tokens |
# | $B$ | block size | tokens a block |
# | $N$ | blocks of the pool | blocks |
# | $D$ | sequences in decode: one token each | tokens |
# | $c_j$ | what the step computes of prompt $j$, a **chunk** | tokens |
# | $M$ | the budget, `max_batched_tokens` | tokens a step |
#
# (With shared blocks the first sum counts each block once.)
#
# The left side of the first limit *grows*, whoever is admitted or not. That is where all the trouble comes from.
# Take the load of the log, and suppose 55 GiB for the cache; the issue does not say how much it was:
# %% [markdown] key="symbols" lang="zh" src="8aa02662"
# | 符号 | 含义 | 单位 |
# |---|---|---|
# | $T_i$ | 序列 $i$ 在缓存里的 token 数；解码时每一步加一 | token |
# | $B$ | 块大小 | token / 块 |
# | $N$ | 块池的块数 | 块 |
# | $D$ | 处于解码的序列数：每条一个 token | token |
# | $c_j$ | 这一步计算提示词 $j$ 的多少个 token，即一**段**（chunk） | token |
# | $M$ | 预算，`max_batched_tokens` | token / 步 |
#
# （有共享的块时，第一个和式里每个块只算一次。）
#
# 第一条界限的左边会**自己变大**，不放新请求进来也一样。麻烦全由此而来。
# 取日志里的负载，再假设缓存有 55 GiB（issue 里没有说是多少）：

# %% key="capacity"
from minikv.plan import CacheSpec
from minikv.units import GIB

spec = CacheSpec.from_config("Llama-3.1-8B")
pool_blocks = 55 * GIB // spec.block_bytes(16)
print(t("pool", blocks=pool_blocks, tokens=pool_blocks * 16))
for moment, tokens in (("begin", 1024), ("half", 1024 + 512), ("end", 1024 + 1023)):
    blocks = -(-tokens // 16)
    print(t("fits", moment=t("moment_" + moment), tokens=tokens, blocks=blocks, most=pool_blocks // blocks))

# %% [markdown] key="formula_read" lang="en"
# (The last token that is generated is never stored: nothing comes after it.)
#
# Whoever fills the pool with prompts has room for half of them at the end.
# Whoever reserves room for the end from the beginning leaves half of the pool empty at first, and never uses all of it where answers stop early.
# An engine does neither. It lets in what fits now, and takes blocks back when it must.
#
# ## One list, no batches
#
# **Continuous batching** is the idea that a batch is made anew for every step ([Orca](https://www.usenix.org/conference/osdi22/presentation/yu), 2022).
# Who has ended leaves at once, and the first in the queue takes the seat.
#
# Below are eight requests and room for four. A row is a request, a column is a step: `#` computes several tokens (the prompt), `o` one token (a decode), `.` waits.
# Before you run the cell: how many steps will the second chart have?
# %% [markdown] key="formula_read" lang="zh" src="75c0967e"
# （生成的最后一个 token 不必存：它后面没有别的 token 了。）
#
# 如果拿提示词把块池填满，到最后只放得下一半。
# 如果一开始就把最后要用的地方留足，块池起初有一半空着；回答提前结束的话，留的地方始终用不满。
# 推理引擎两样都不做：现在放得下就放进来，实在不够了再把块收回来。
#
# ## 没有固定的 batch，只有一份名单
#
# **连续批处理**（continuous batching）的想法是：每一步都重新组一个 batch（[Orca](https://www.usenix.org/conference/osdi22/presentation/yu)，2022）。
# 谁结束了，立即离开；队列里的第一个马上补上。
#
# 下面有八个请求、四个席位。一行是一个请求，一列是一步：`#` 表示一次算多个 token（提示词），`o` 表示一个 token（解码），`.` 表示等待。
# 运行之前先想一想：第二张图会有多少步？

# %% key="static_and_continuous"
from minikv.course.lessons.load_11 import Ask, random_load, run_batches, run_load

answers = (3, 14, 5, 9, 4, 12, 2, 7)
asks = [Ask(tuple(range(100 * i, 100 * i + 8)), new) for i, new in enumerate(answers)]
static = run_batches(asks, 4, num_blocks=64, max_num_seqs=4, max_batched_tokens=64)
continuous = run_load(asks, num_blocks=64, max_num_seqs=4, max_batched_tokens=64)
for name, ran in (("static", static), ("continuous", continuous)):
    print(t("chart_" + name, steps=ran.steps, tokens=ran.generated, each=ran.generated / ran.steps))
    for number, row in enumerate(ran.chart):
        print(f"{number:>2} |{row}|")

# %% [markdown] key="load_read" lang="en"
# The charts come from `minikv.engine.Scheduler`, the real one, with nothing computed: it does not know whether a forward runs between its `schedule` and its `finish`.
# That is on purpose: decisions need no GPU.
#
# ## With a model
#
# `LLM` puts the scheduler on top of a model. tiny-gqa has learned to find things again: the prompt gives a city to each of some names, and asks for one of them.
# (On a CPU a single thread computes it: the model is so small that several would mostly wait for each other.)
# %% [markdown] key="load_read" lang="zh" src="77349723"
# 画这两张图的就是真正的 `minikv.engine.Scheduler`，只是什么也没有计算：在它的 `schedule` 和 `finish` 之间有没有前向计算，它并不知道。
# 这是有意的：做决定用不着 GPU。
#
# ## 接上模型
#
# `LLM` 把调度器（scheduler）接到模型上。tiny-gqa 学过一件事，就是从前文里找：提示词给几个人名各配一座城市，最后问其中一个。
# （在 CPU 上只用一个线程：模型太小，线程多了，大半时间都在互相等待。）

# %% key="model"
import torch

from minikv import LLM, SamplingParams
from minikv.models import load, recall_documents, recall_prompt


def likeliest(tokens):
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)


torch.set_num_threads(1)
tiny = load("tiny-gqa")
example = recall_prompt(seed=1)
print(example.text)
with LLM(tiny, num_blocks=64) as llm:
    [output] = llm.generate([example.text], likeliest(1))
print(t("asked", answer=output.text.strip(), right=example.answer))

# %% [markdown] key="many" lang="en"
# Now 256 of them at once, 16 tokens each, and blocks for about a third.
# Each answer is right or wrong, and must not depend on the other 255.
# %% [markdown] key="many" lang="zh" src="33857281"
# 现在一次来 256 个，每个生成 16 个 token，块只够其中大约三分之一同时用。
# 每个回答非对即错，而且不应受另外 255 个的影响。

# %% key="many_code"
from minikv.engine import EventLog

examples = [recall_prompt(seed=seed) for seed in range(256)]
prompts = [each.text for each in examples]


def count_right(outputs, asked):
    return sum(out.text.split()[0] == each.answer for out, each in zip(outputs, asked))


log = EventLog()
with LLM(tiny, num_blocks=256, max_num_seqs=256, emit=log) as llm:
    outputs = llm.generate(prompts, likeliest(16))
steps = log.of("step")
print(t("many_right", right=count_right(outputs, examples), total=len(examples)))
print(t("many_load", blocks=sum(-(-(len(out.prompt_token_ids) + 15) // 16) for out in outputs)))
most_running, most_used = max(step.running for step in steps), max(step.used[0] for step in steps)
print(t("many_steps", steps=len(steps), running=most_running, used=most_used))
print(t("many_preempted", count=len(log.of("preempt"))))

# %% [markdown] key="step" lang="en"
# ## What a step is made of
#
# A step is a list of ranges, the next positions of each sequence. Packed one behind the other they are one row of tokens, and the model computes it in one forward.
# What each token needs stands in arrays beside it.
#
# Three sequences below: Q decodes, R begins with a system prompt that Q has brought in, and S is too long for what is left of the budget.
# %% [markdown] key="step" lang="zh" src="95a01710"
# ## 一步由什么组成
#
# 一步就是一份清单，写着每条序列接下来要算哪些位置。把它们首尾相接，排成一行 token，模型一次前向计算就算完。
# 每个 token 还需要什么，都写在旁边的数组里。
#
# 下面有三条序列：Q 在解码，R 的开头是 Q 已经带进来的系统提示词，S 太长，剩下的预算放不下。

# %% key="mixed_step"
from minikv.blocks import BlockManager
from minikv.engine import Scheduler

scheduler = Scheduler(BlockManager(num_blocks=32, block_size=4), max_num_seqs=8, max_batched_tokens=12)
system = list(range(10, 19))
scheduler.add("Q", system, SamplingParams(max_tokens=8))
scheduler.finish(scheduler.schedule(), [7])
scheduler.add("R", [*system, 50, 51, 52], SamplingParams(max_tokens=8))
scheduler.add("S", list(range(100, 120)), SamplingParams(max_tokens=8))
step = scheduler.schedule()
for item in step.items:
    samples = [seq_id.request for seq_id in item.samples]
    print(t("item", name=item.id.request, start=item.start, last=item.end - 1, samples=samples))
batch = step.batch
print()
print("positions    ", batch.positions.tolist())
print("slot_mapping ", batch.slot_mapping[0].tolist())
print("query_starts ", batch.query_starts.tolist())
print("lengths      ", batch.lengths.tolist())

# %% [markdown] key="step_read" lang="en"
# - **positions** are counted in the sequence, not in the row: RoPE turns each key by its position, and a chunk does not begin at 0 again.
# - **slot_mapping** says where K and V go ([lesson 09](09_pages_and_blocks.ipynb)).
# - **query_starts** says where each sequence begins in the row, with the total behind: sequence $i$ has the queries from `query_starts[i]` to `query_starts[i + 1] - 1`.
# - **lengths** is how many tokens the last query of each sequence sees. That is more than its queries: what was cached earlier counts.
#
# R computes 4 tokens out of 12: 8 were found. And nobody samples from S: its last token is not there yet, and the logits of any other are an answer to half a question.
# (Exercise 11.4 is these arrays.)
#
# ## A long prompt arrives
#
# The more tokens a step computes, the longer it takes. So a prompt of 600 tokens that is computed in one piece holds up everybody else's next token.
# **Chunked prefill** cuts it: decodes first, then as much of a prompt as the budget leaves ([Sarathi-Serve](https://arxiv.org/abs/2403.02310), 2024).
# %% [markdown] key="step_read" lang="zh" src="a4e6a6df"
# - **positions** 按序列数，不按这一行数：RoPE 按位置旋转每个 key，新的一段不会又从 0 开始。
# - **slot_mapping** 说 K 和 V 写到哪里（[第 09 课](09_pages_and_blocks.ipynb)）。
# - **query_starts** 说每条序列从这一行的哪里开始，末尾再加上总数：序列 $i$ 的 query 是 `query_starts[i]` 到 `query_starts[i + 1] - 1`。
# - **lengths** 是每条序列的最后一个 query 能看到多少个 token。它比 query 的个数多：早先缓存的也算在内。
#
# R 有 12 个 token，只算 4 个，因为有 8 个已经命中。S 这一步不采样：它的最后一个 token 还没有算到，拿别的 token 的 logits 来采样，等于只听了半个问题就作答。
# （练习 11.4 就是写这些数组。）
#
# ## 来了一个长提示词
#
# 一步要算的 token 越多，用时越长。所以 600 个 token 的提示词如果一口气算完，其他序列的下一个 token 就全都被它拖住。
# **分块预填充**（chunked prefill）把它切开：先照顾解码，剩下的预算有多少，提示词就算多少（[Sarathi-Serve](https://arxiv.org/abs/2403.02310)，2024）。

# %% key="predict_first_token"
predict("first_token", ...)

# %% key="chunked"
talkers = [Ask(tuple(range(9000 + 20 * i, 9004 + 20 * i)), 24) for i in range(4)]
load = [*talkers, Ask(tuple(range(600)), 6, arrival=4)]
for budget in (1024, 128, 64):
    ran = run_load(load, num_blocks=128, max_num_seqs=8, max_batched_tokens=budget)
    print(t("chunked_head", budget=budget, largest=max(ran.tokens), first=ran.first[-1] - 4 + 1))
    print(f"   |{ran.chart[0]}|\n   |{ran.chart[-1]}|")

# %% [markdown] key="chunked_read" lang="en"
# (The upper row is one of four that talk, the lower one the long prompt.)
#
# Nobody who talks has missed a step. What the budget decides is how long a step can get, and it is paid for by the newcomer, who waits longer for the first token.
# These are the two latencies of serving: **TTFT**, time to the first token, and **TPOT**, time per output token after it.
# The same with the model, where a step takes real time:
# %% [markdown] key="chunked_read" lang="zh" src="94feea91"
# （上面一行是四条正在输出的序列之一，下面一行是长提示词。）
#
# 正在输出的序列一步也没有落下。预算决定的是一步最长有多长；代价由新来的承担，它的第一个 token 要多等几步。
# 推理服务的两个延迟就在这里：**首 token 延迟**（TTFT），以及之后的**每 token 延迟**（TPOT）。
# 接上模型再来一遍，这回每一步都要花实实在在的时间：

# %% key="chunked_time" tags="timing"
import time

[article] = recall_documents(1, seed=5, facts=24, context=1500, queries=1, span=3)


def step_times(budget):
    with LLM(tiny, num_blocks=256, max_num_seqs=16, max_batched_tokens=budget) as llm:
        for prompt in prompts[:8]:
            llm.add_request(prompt, likeliest(40))
        llm.step()
        seconds = []
        while llm.has_work:
            if len(seconds) == 5:
                llm.add_request(article.tokens.tolist(), likeliest(1))
            start = time.perf_counter()
            llm.step()
            seconds.append(time.perf_counter() - start)
    return sorted(seconds)


print(t("longest_head"))
for budget in (2048, 256, 64):
    runs = [step_times(budget) for _ in range(3)]
    longest, usual = min(run[-1] for run in runs), min(run[len(run) // 2] for run in runs)
    print(t("longest_line", budget=budget, longest=longest * 1e3, usual=usual * 1e3))

# %% [markdown] key="chunks_exercise" lang="en"
# (Exercise 11.2: who gets how many tokens of the budget.)
#
# ## What is there already
#
# Twenty-four questions about one document. Each prompt is the document, and behind it "?" and a name.
# The first one computes it; the others find its blocks ([lesson 09](09_pages_and_blocks.ipynb)), and only compute what comes behind.
# %% [markdown] key="chunks_exercise" lang="zh" src="6d6483a6"
# （练习 11.2：预算里的 token 怎么分。）
#
# ## 已经有的不用再算
#
# 同一篇文档，二十四个问题。每个提示词都是这篇文档，后面接上“?”和一个人名。
# 第一个请求把文档算一遍；其余的找到它的块（[第 09 课](09_pages_and_blocks.ipynb)），只算后面的部分。

# %% key="prefix"
[document] = recall_documents(1, seed=3, facts=24, context=192, queries=24, span=72)
context = " ".join(document.words[1:193])
questions = [f"{context} ? {question.name}" for question in document.questions]
for tenants in (1, 4, 24):
    with LLM(tiny, num_blocks=512, max_num_seqs=64) as llm:
        first = llm.generate(questions[:1], likeliest(1), salt="tenant 0")
        salts = [f"tenant {number % tenants}" for number in range(1, 24)]
        outputs = first + llm.generate(questions[1:], likeliest(1), salt=salts)
    right = count_right(outputs, document.questions)
    hits = sum(out.num_cached for out in outputs)
    total = sum(len(out.prompt_token_ids) for out in outputs)
    print(t("prefix_line", tenants=tenants, hits=hits, total=total, share=hits / total, right=right))

# %% [markdown] key="prefix_read" lang="en"
# The answers stay the same; what changes is how much is computed for them.
# A salt keeps tenants apart, and each tenant pays for the document once.
#
# ## When the blocks run out
#
# Every decode may need one more block, and there is none. Then somebody has to leave: a running sequence is **preempted**. It gives its blocks back, waits in its old place in the queue, and computes its tokens again later. None of its output is lost.
#
# Five requests, six blocks each at the end, a pool of 16 blocks. `x` is where a sequence has just lost its blocks.
# Before you run the cell: which of the five will lose theirs?
# %% [markdown] key="prefix_read" lang="zh" src="fa019ca0"
# 回答都一样，变的是为此算了多少。
# 盐值（salt）把租户隔开，每个租户各为这篇文档付一次账。
#
# ## 块用完了怎么办
#
# 每次解码都可能再要一个块，可是没有了。这时总得有人离开：一条正在运行的序列被**抢占**（preemption）。它交回所有的块，回到队列里原来的位置等待，以后再把自己的 token 重新计算一遍。已经输出的内容不会丢。
#
# 下面有五个请求，到结束时每个要六个块，而块池只有 16 个块。`x` 表示这条序列刚刚失去了它的块。
# 运行之前先想一想：五个里面，哪几个会失去自己的块？

# %% key="preempted"
asks = [Ask(tuple(range(100 * i, 100 * i + 6)), 18) for i in range(5)]
ran = run_load(asks, num_blocks=16, block_size=4, max_num_seqs=8, max_batched_tokens=64)
for number, row in enumerate(ran.chart):
    print(f"{number:>2} |{row}|")
print(t("preempted_line", count=ran.preemptions, given_up=ran.given_up, found=ran.found, again=ran.recomputed))

# %% [markdown] key="preempted_read" lang="en"
# The youngest ones: whoever lacks a block may take it from a **younger** sequence only. So nobody ever takes one from the oldest, which alone fits into the pool; it ends, then the next is the oldest, and so all of them end.
# If the young could take from the old as well, two sequences could take the same blocks from each other for ever.
#
# Nor is anybody admitted just because one block is free. To be let in, a sequence must have room for *all* its tokens, beside what the running ones still need: else it would be the next to be preempted. (vLLM can ask for the whole prompt, too, since [PR #37307](https://github.com/vllm-project/vllm/pull/37307).)
# And who waits behind a long one does not pass it, though it might fit: else the long one would wait as long as short ones keep coming.
# (Exercise 11.1 is this rule.)
#
# ## The riddle
#
# Look at the last line once more: some of what was given up was found again.
# A preempted sequence leaves its blocks in the pool as cached ones, and if nobody has overwritten them when it comes back, it hits its own prefix.
# Here are 60 random prompts, which share nothing, in smaller and smaller pools. As in the engine of the question the youngest is preempted, and what others still need is not asked for at the door.
# Two methods of the scheduler are there for such changes: `choose_victim` is given those who may be preempted, the oldest first, and returns one of them; `owed_blocks` says how many blocks are kept for the running ones.
# %% [markdown] key="preempted_read" lang="zh" src="24646026"
# 是最年轻的几个：缺块的序列只能从比自己**年轻**的那里拿。于是谁也拿不走最老那条的块，而它单独一条是放得下的；它会结束，然后轮到下一条最老的，这样所有序列都会结束。
# 假如年轻的也能拿老的，两条序列就可能永远互相抢同样几个块。
#
# 也不是一有空闲块就放请求进来。一条序列要进来，除去运行中的序列还需要的，剩下的必须放得下它的**全部** token；否则它就是下一个被抢占的。（vLLM 从 [PR #37307](https://github.com/vllm-project/vllm/pull/37307) 起，也可以要求放得下整个提示词。）
# 排在长请求后面的，即使自己放得下，也不能越过它；否则只要短请求不断到来，长请求就得一直等下去。
# （练习 11.1 就是这条规则。）
#
# ## 谜底
#
# 再看一眼最后一行：交出去的，有一部分又找了回来。
# 被抢占的序列把块留在块池里，成为缓存块；等它回来，只要还没有被别人覆盖，它命中的就是自己的前缀。
# 下面是 60 个毫无相同之处的随机提示词，块池一个比一个小。与开头那个引擎一样：抢占最年轻的，而且放请求进来时不问别人还需要多少。
# 调度器有两个方法就是留给人改写的：`choose_victim` 拿到可以抢占的序列，最老的在前，返回其中一条；`owed_blocks` 说要给运行中的序列留多少个块。

# %% key="riddle"
class Youngest(Scheduler):
    def choose_victim(self, candidates, asked):
        return candidates[-1]


class AsInTheLog(Youngest):
    def owed_blocks(self, kind):
        return 0


def blocks_at_end(load):
    return sum(-(-(len(ask.prompt) + ask.new - 1) // 16) for ask in load)


load = random_load(60, prompt=(16, 200), new=(16, 200))
needed = blocks_at_end(load)
print(t("riddle_head", needed=needed))
for share in (1, 0.4, 0.2, 0.1):
    ran = run_load(load, int(needed * share), rules=AsInTheLog)
    print(t("riddle_line", share=share, rate=ran.hit_rate, count=ran.preemptions, tokens=ran.found))

# %% [markdown] key="riddle_read" lang="en"
# **The third that was found was the engine's own**: tokens of sequences that had been preempted and came back.
# The reporter of the issue says so too, and no longer counts them: the same benchmark then shows 0.2% ([PR #25787](https://github.com/vllm-project/vllm/pull/25787)).
# So a good hit rate can be the sign of a pool that is too small.
# In `RequestOutput.num_cached` we count the first admission only; `Metrics.hit_rate` counts all, and says so.
# %% [markdown] key="riddle_read" lang="zh" src="896470b5"
# **命中的那三分之一，是引擎自己的**：是被抢占、后来又回来的序列的 token。
# 提 issue 的人也是这样解释的，并且不再把它们算作命中：同样的测试，命中率随即变成 0.2%（[PR #25787](https://github.com/vllm-project/vllm/pull/25787)）。
# 所以命中率高，可能恰恰说明块池太小。
# 在我们这里，`RequestOutput.num_cached` 只算第一次放进来时的命中；`Metrics.hit_rate` 全都算，并且写明了这一点。

# %% key="predict_lost"
predict("lost_tokens", ...)

# %% [markdown] key="tax_intro" lang="en"
# ## What preemption costs
#
# [vLLM #54644](https://github.com/vllm-project/vllm/issues/54644) gives it a name: the **recompute tax**, the share of all computed tokens that was computed before. Its author measured 10 to 23 percent in online serving, and up to 79 percent in a forced case offline, and proposes another victim: not the last to come, but the one with the fewest computed tokens. On vLLM that wasted up to 59 percent fewer tokens.
#
# Here are three policies on the load from above.
# *Ours* takes whoever gives up the fewest tokens, those in blocks that others hold not counted; with random prompts, which share nothing, that is nearly the proposal.
# Before you run the cell: which line will have the lowest tax?
# %% [markdown] key="tax_intro" lang="zh" src="eb96f829"
# ## 抢占的代价
#
# [vLLM #54644](https://github.com/vllm-project/vllm/issues/54644) 给它起了个名字：**重算税**（recompute tax），即所有计算过的 token 里，有多大比例以前已经算过。作者在线上服务中测到 10% 到 23%，在离线的极端情形下高达 79%；他建议换一种选法：不抢占最后来的，而抢占已算 token 最少的。在 vLLM 上，这样浪费的 token 最多少了 59%。
#
# 下面用前面的负载比较三种选法。
# “我们的”抢占损失 token 最少的那条，别的序列也持有的块不算损失；随机提示词之间什么也不共享，这时它与那个建议几乎一样。
# 运行之前先想一想：哪一行的税最低？

# %% key="tax"
class Oldest(Scheduler):
    def choose_victim(self, candidates, asked):
        return candidates[0]


victims = {"ours": Scheduler, "youngest": Youngest, "oldest": Oldest}
shares = (1, 0.4, 0.2, 0.1)
taxes = {name: [] for name in victims}
rans = {}
print(t("tax_head"))
for share in shares:
    for name, rules in victims.items():
        ran = rans[share, name] = run_load(load, int(needed * share), rules=rules)
        taxes[name].append(ran.tax)
        tokens = "".join(f"{count:>9,}" for count in (ran.given_up, ran.found, ran.recomputed))
        print(f"{share:>5.0%} {ran.preemptions:>6}{tokens} {ran.tax:>7.1%} {ran.steps:>7,}   {t('victim_' + name)}")

# %% key="tax_plot"
import plotly.graph_objects as go

figure = go.Figure()
for name, pattern in (("ours", ""), ("youngest", "/"), ("oldest", "x")):
    percent = [round(100 * tax, 1) for tax in taxes[name]]
    pools = [f"{share:.0%}" for share in shares]
    figure.add_bar(x=pools, y=percent, name=t("bar_" + name), marker_pattern_shape=pattern)
figure.update_xaxes(title=t("plot_x"), type="category")
figure.update_yaxes(title=t("plot_y"), rangemode="tozero")
figure.update_layout(height=340, width=720, margin={"t": 20, "r": 20}, template="plotly_white")
lines = ["".join(f"{100 * tax:>7.1f}" for tax in taxes[name]) + "   " + t("bar_" + name) for name in taxes]
show(figure, text="\n".join(lines), caption=t("plot_caption"))

# %% [markdown] key="tax_read" lang="en"
# Ours does what it promises: in every pool here it gives up the fewest tokens. And still the youngest is as good or better: fewer of its tokens are computed anew.
# Whoever has little to lose has few blocks, just those that were asked for, and they are overwritten at once. Of a larger victim some blocks stay in the free list, and are found again.
# What a preemption costs is not what is given up, but what is not found again.
#
# One load is no proof. Here are three of other kinds, three seeds of each, in pools of 30%:
# %% [markdown] key="tax_read" lang="zh" src="d165a012"
# 我们的选法说到做到：这里不论块池多大，它交出的 token 总是最少。可是抢占最年轻的并不比它差，有时还更好：要重新计算的更少。
# 损失小的序列，块也少，刚好就是别人要的那几个，马上就被覆盖。抢占大一些的序列，总有些块还留在空闲队列里，回来时能找到。
# 抢占的代价不在于交出多少，而在于有多少再也找不回来。
#
# 一种负载说明不了什么。再看另外三种，每种取三个随机种子，块池都是 30%：

# %% key="tax_loads"
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


print(t("loads_head"))
for make in (long_answers, one_by_one, one_document):
    for name, rules in (("ours", Scheduler), ("youngest", Youngest)):
        runs = [run_load(each, int(0.3 * blocks_at_end(each)), rules=rules) for each in map(make, range(3))]
        share = sum(ran.recomputed for ran in runs) / sum(ran.computed for ran in runs)
        steps = sum(ran.steps for ran in runs)
        words = dict(load=t("load_" + make.__name__), victim=t("victim_" + name))
        print(t("loads_line", tax=share, steps=steps, **words))

# %% [markdown] key="tax_loads_read" lang="en"
# On all three the youngest costs less computing, and the steps are nearly the same. The author of the issue measured the opposite on vLLM. So no rule is simply the right one: measure your own load, and put your own rule into `choose_victim`.
#
# (Ours knows something that age does not: a sequence with 2,000 tokens, 1,900 of them in blocks that others hold, looks expensive and is cheap. Exercise 11.3 is the rule.)
#
# Nothing is as good as not preempting: the first lines of the table. A pool that is large enough, `max_num_seqs` low enough, and no `max_tokens` beyond need.
# %% [markdown] key="tax_loads_read" lang="zh" src="e173af17"
# 这三种负载下，都是抢占最年轻的重算得少，步数则相差无几。而 issue 的作者在 vLLM 上测出的结果正好相反。所以没有哪条规则天生就对：拿自己的负载来测，把自己的规则写进 `choose_victim`。
#
# （不过，有件事光看先后看不出来：一条 2,000 个 token 的序列，如果 1,900 个都在别人也持有的块里，看着贵，其实便宜。这一点，我们的规则考虑到了。练习 11.3 就是这条规则。）
#
# 最好的办法还是不抢占，也就是前一张表最前面的几行：块池够大，`max_num_seqs` 够小，`max_tokens` 不要多要。

# %% [markdown] key="widget_read" lang="en"
# ## See it
#
# A real engine, its requests arriving one after the other, and blocks for fewer than all of them. A, E and F ask about the same document.
# "Start" runs it in a thread, "Stop" ends what is left, "Step" computes a single step.
#
# Try this, and say before each press what will change:
#
# 1. F has just lost its blocks, and it was one of the longest. Why F, and not H, which is younger and shorter?
# 2. I has never run. What keeps it out? Press "Step" until it gets in.
# 3. "Start", and "Stop" in the middle: where are the blocks now?
# 4. "Start" again, with the same requests: how many of their tokens are found this time?
# %% [markdown] key="widget_read" lang="zh" src="e45d241b"
# ## 亲眼看看
#
# 下面是真正的引擎，请求一个接一个到来，块不够所有请求同时用。A、E、F 问的是同一篇文档。
# “开始”在线程里运行，“停止”结束剩下的请求，“单步”只算一步。
#
# 试试下面几步，每次按之前先说出会发生什么：
#
# 1. F 刚刚失去了它的块，而它是最长的几条之一。为什么是 F，而不是更年轻、更短的 H？
# 2. I 还没有运行过。是什么把它挡在外面？一直按“单步”，直到它进来。
# 3. 按“开始”，中途按“停止”：块现在在哪里？
# 4. 再按“开始”，还是同样的请求：这一次命中多少个 token？

# %% key="widget"
from minikv.course.widgets import EngineWidget

engine = LLM("tiny-gqa", num_blocks=34, max_num_seqs=8, max_batched_tokens=96)
shared = [context + " ? " + question.name for question in document.questions[:3]]
requests = [shared[0], *prompts[:3], *shared[1:], *prompts[3:6]]
arrivals = [2 * number for number in range(len(requests))]
widget = EngineWidget(engine, requests, likeliest(40), arrivals=arrivals, lang=t("lang"))
for _ in range(28):
    widget.step()
show(widget, text=widget.text(t("lang")))

# %% [markdown] key="measure" lang="en"
# (F was cheap: most of its tokens lie in blocks that A and E hold as well, so it lost about half of what H would have.)
#
# ## Measure it here
#
# ### What a larger batch brings
#
# A step costs something before it has computed a single token: the weights are read, the kernels are launched. All sequences of the batch share that.
# With $a$ for what is shared and $c$ for what each adds, a step takes $a + c\,b$, and
#
# $$\text{throughput}(b) \;=\; \frac{b}{a + c \, b} \quad \text{tokens a second} \qquad (b \text{ sequences; } a, c \text{ in seconds})$$
#
# which rises with $b$ and levels off at $1/c$. On this machine:
# %% [markdown] key="measure" lang="zh" src="b69c5cd3"
# （F 便宜：它的 token 大多在 A 和 E 也持有的块里，损失只有 H 的一半左右。）
#
# ## 在本机上测量
#
# ### batch 越大，好处越多吗
#
# 一步还没有算一个 token，就已经有开销：权重要读，kernel 要启动。这一份由 batch 里所有序列分摊。
# 设分摊的部分为 $a$，每条序列另加 $c$，则一步用时 $a + c\,b$，于是
#
# $$\text{throughput}(b) \;=\; \frac{b}{a + c \, b} \quad \text{token / 秒} \qquad (b \text{：序列数；} a, c \text{：秒})$$
#
# 它随 $b$ 上升，最后趋近 $1/c$。在这台机器上：

# %% key="throughput" tags="timing"
import numpy as np

batches, step_seconds = (1, 2, 4, 8, 16, 32, 64), []
for size in batches:
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
        step_seconds.append(sorted(seconds)[10])
c, a = np.polyfit(batches, step_seconds, 1)
print(t("throughput_head"))
for size, seconds in zip(batches, step_seconds):
    print(f"{size:>5} {seconds * 1e3:>9.2f} {size / seconds:>10,.0f} {size / (a + c * size):>10,.0f}")
print(t("throughput_fit", a=a * 1e3, c=c * 1e3, most=1 / c))

# %% [markdown] key="flat" lang="en"
# ### Memory is flat in decode
#
# The cache was made once ([lesson 07](07_allocate_once.ipynb)), so decode may write, and must not allocate anything that stays.
# Eight sequences, 100 steps, and what is alive afterwards that was not before; then the same with a cache that grows, transformers' own:
# %% [markdown] key="flat" lang="zh" src="b96ada5e"
# ### 解码时内存不增长
#
# 缓存是一次建好的（[第 07 课](07_allocate_once.ipynb)），所以解码可以往里写，但不该再分配任何会留下来的东西。
# 八条序列、100 步，看看结束后比开始时多出多少；再换成会增长的缓存，即 transformers 自带的，做同样的事：

# %% key="flat_code" tags="hardware"
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


with LLM(tiny, num_blocks=256, max_num_seqs=8) as llm:
    decode(llm, 4)
    ours = measure_peak(lambda: decode(llm, 100))
    written = 8 * 126 * sum(kind.block_bytes(1) for kind in llm.cache.kinds)

ids = tiny.tokenizer(prompts[:8], return_tensors="pt")["input_ids"].to(tiny.model.device)
cache = DynamicCache(config=tiny.model.config)
theirs = measure_peak(lambda: decode_growing(tiny.model, ids, cache, 100))
print(t("flat_written", written=written))
for name, report in (("ours", ours), ("theirs", theirs)):
    print(t("flat_line", kept=report.kept, extra=report.extra, name=t("flat_" + name)))

# %% [markdown] key="break" lang="en"
# ## Break it
#
# ### Positions that begin anew
#
# A batch is made wrong in two ways here, and nothing else is touched: in the first the positions of each chunk begin at 0, in the second `lengths` says how long the chunk is and not how much its last query sees.
# The budget of 64 cuts every prompt into several chunks.
# %% [markdown] key="break" lang="zh" src="a1cecaaf"
# ## 弄坏它
#
# ### 又从 0 开始的位置
#
# 下面只改 batch 里的一样东西，各错一种：第一种，每一段的位置都从 0 开始；第二种，`lengths` 填的是这一段的长度，而不是最后一个 query 能看到多少。
# 预算为 64，每个提示词都被切成几段。

# %% key="break_positions"
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


for change in (as_it_is, relative_positions, chunk_lengths):
    with LLM(tiny, num_blocks=512, max_num_seqs=16, max_batched_tokens=64) as llm:
        right_batch = llm.runner.batch
        with patch.object(llm.runner, "batch", lambda step: change(step, right_batch(step))):
            outputs = llm.generate(questions, likeliest(1), salt=[str(number) for number in range(24)])
    right = count_right(outputs, document.questions)
    print(t("break_line", right=right, total=len(questions), name=t("break_" + change.__name__)))

# %% [markdown] key="break_positions_read" lang="en"
# No error in either case.
# The second mistake is loud: attention sees only as many tokens as the chunk has. The first one is the worse: most answers are still right, so a test with two or three prompts passes, and in a chat people would only say that the model has got worse.
# It is why the package's tests compare every token with the model's own `generate`.
#
# ### A step that fails
#
# The forward raises, on a real machine because memory ran out. Whoever was in the step fails; nobody else, and no block is lost.
# %% [markdown] key="break_positions_read" lang="zh" src="a32457ea"
# 两种都没有任何报错。
# 第二种错得明显：这一段有几个 token，注意力就只看得到几个。第一种更糟：大多数答案仍然是对的，拿两三个提示词测一测就过了；换成聊天，人们只会说模型变差了。
# 所以本包的测试把每个 token 都与模型自己的 `generate` 逐一对照。
#
# ### 失败的一步
#
# 前向计算抛出了异常，在真实的机器上，多半是显存不足。在这一步里的请求都失败；其他请求不受影响，块也一个不少。

# %% key="break_error"
from itertools import count

with LLM(tiny, num_blocks=64, max_num_seqs=4) as llm:
    run, number = llm.runner.run, count()

    def fails_once(*args):
        if next(number) == 2:
            raise RuntimeError("out of memory")
        return run(*args)

    names = [llm.add_request(prompt, likeliest(4)) for prompt in prompts[:8]]
    done = {}
    with patch.object(llm.runner, "run", fails_once):
        while llm.has_work:
            done |= {out.request: out for out in llm.step().finished}
    for name in names:
        print(f"{name}: {done[name].finish_reason:<7} {done[name].text!r}")
    pool = llm.snapshot().pools[0]
    print(t("error_blocks", used=pool.used))

# %% [markdown] key="break_abort" lang="en"
# (Exercise 11.5 is such a step, from the prefix cache to the last block given back.)
#
# ### Gone, and gone once more
#
# A client closes the connection, and a timeout fires for the same request. Two paths lead to the same end, and blocks must go back once: a block that stands in the free list twice is given to two sequences. (In SGLang preemption freed requests that had finished, and been freed, already: [PR #18694](https://github.com/sgl-project/sglang/pull/18694).)
# %% [markdown] key="break_abort" lang="zh" src="ca4d95cf"
# （练习 11.5 就是这样一步：从前缀缓存开始，到最后一个块归还为止。）
#
# ### 走了，又走了一次
#
# 客户端断开了连接，同一个请求又触发了超时。两条路走到同一个终点，块却只能归还一次：一个块在空闲队列里出现两次，就会分给两条序列。（SGLang 就遇到过：请求已经结束并释放，抢占时又释放了一次，见 [PR #18694](https://github.com/sgl-project/sglang/pull/18694)。）

# %% key="break_abort_code"
with LLM(tiny, num_blocks=64) as llm:
    name = llm.add_request(questions[0], likeliest(50))
    llm.step()
    before = llm.snapshot().pools[0]
    answers = [llm.abort(name), llm.abort(name)]
    after = llm.snapshot().pools[0]
    print(t("abort_line", answers=answers, before=before.used, after=after.used, cached=after.cached))

# %% [markdown] key="break_large" lang="en"
# ### A request that can never run
#
# Larger than the whole pool, it would wait for ever. nano-vllm finds out in the middle of its decode, by a bare AssertionError ([#274](https://github.com/GeeeekExplorer/nano-vllm/issues/274)), and in vLLM such a request held up all that came behind it until it was aborted ([#39734](https://github.com/vllm-project/vllm/issues/39734)). Here it is refused at the door, with the numbers:
# %% [markdown] key="break_large" lang="zh" src="54c1f58c"
# ### 永远跑不了的请求
#
# 比整个块池还大的请求，等多久也没用。nano-vllm 要到解码中途才发现，只给一个光秃秃的 AssertionError（[#274](https://github.com/GeeeekExplorer/nano-vllm/issues/274)）；在 vLLM 里，这样的请求曾把后面的全部堵住，直到它被中止（[#39734](https://github.com/vllm-project/vllm/issues/39734)）。我们在入口就拒绝它，并把数字说清楚：

# %% key="break_large_code"
from minikv.errors import MiniKVError

with LLM(tiny, num_blocks=8) as llm:
    try:
        llm.generate([questions[0]], likeliest(1))
    except MiniKVError as error:
        print(f"{type(error).__name__}: {t(error)}")

# %% [markdown] key="break_owed" lang="en"
# ### Let them all in
#
# What if nobody asks at the door what the running ones still need?
# %% [markdown] key="break_owed" lang="zh" src="de837b01"
# ### 统统放进来
#
# 放请求进来的时候，如果不问运行中的序列还需要多少，会怎样？

# %% key="break_owed_code"
class NobodyAsked(Scheduler):
    def owed_blocks(self, kind):
        return 0


for share in shares[1:]:
    asked, not_asked = rans[share, "ours"], run_load(load, int(needed * share), rules=NobodyAsked)
    counts = dict(asked=asked.preemptions, not_asked=not_asked.preemptions)
    print(t("owed_line", share=share, tax=asked.tax, more=not_asked.tax, **counts))

# %% [markdown] key="break_owed_read" lang="en"
# More preemptions in every pool here, and a higher tax. (With another `seed` in `random_load` a pool may come out the other way; most do not.) Being let in is not the same as getting on.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="break_owed_read" lang="zh" src="f4acad1d"
# 这里不论块池多大，抢占都更多，税也更高。（给 `random_load` 换一个 `seed`，个别块池可能反过来，多数不会。）放进来了，不等于就能往前走。
#
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_continuous"
explain("why_continuous")

# %% key="explain_chunk"
explain("why_chunks")

# %% key="explain_younger"
explain("why_younger")

# %% key="explain_hit_rate"
explain("whose_hits")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# The exercise notebook asks for the decisions of the engine, with plain lists in place of its classes:
#
# 1. `admit`: who is let in.
# 2. `chunks`: how the budget of a step is shared out.
# 3. `choose_victim`: whom to preempt.
# 4. `pack`: the arrays of a mixed batch.
# 5. `run_step`: from the prefix cache to the blocks given back, whatever happens in between.
# %% [markdown] key="exercises" lang="zh" src="bccfa42d"
# ## 练习
#
# 练习 notebook 要你写出引擎的各个决定，不用它的类，只用普通的列表：
#
# 1. `admit`：放谁进来。
# 2. `chunks`：一步的预算怎么分。
# 3. `choose_victim`：抢占谁。
# 4. `pack`：混合 batch 的各个数组。
# 5. `run_step`：从前缀缓存到归还块，中间出什么事都要收好尾。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | requests wait, and few run | `view = llm.snapshot()`: `len(view.running)` at `max_num_seqs` means no seat; `view.pools[0].free` near 0 means no block; neither, no budget |
# | tokens a second fall as requests get longer | `summary(log.events)` (from `minikv.engine`) of `LLM(..., emit=log)`: `preemptions` above 0 means a pool too small, and `lost_tokens` how much was given up |
# | a good hit rate, and slow all the same | `sum(out.num_cached for out in outputs)`, as a share of the prompts, against `summary(log.events).hit_rate`: where the second is higher, preempted sequences have hit their own blocks |
# %% [markdown] key="stuck" lang="zh" src="f78a95d8"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 请求在等待，运行的却很少 | `view = llm.snapshot()`：`len(view.running)` 到了 `max_num_seqs` 是席位不够；`view.pools[0].free` 接近 0 是块不够；都不是，就是预算不够 |
# | 请求越长，每秒 token 数越低 | `LLM(..., emit=log)` 的 `summary(log.events)`（`summary` 在 `minikv.engine` 里）：`preemptions` 大于 0 说明块池太小，`lost_tokens` 说明交出了多少 |
# | 命中率很高，却还是慢 | `sum(out.num_cached for out in outputs)` 占提示词的比例，与 `summary(log.events).hit_rate` 对照：后者更高，说明被抢占的序列命中了自己的块 |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# One pool, one GPU, and a scheduler that shares it out.
# [Lesson 12](12_beyond_one_gpu.ipynb) asks what becomes of the pool when the model is spread over several GPUs, and what it costs to move a victim's blocks to CPU memory in place of computing them again.
# %% [markdown] key="next" lang="zh" src="3aa5cce1"
# ## 下一课
#
# 到这里，是一个块池、一块 GPU，由一个调度器来分配。
# [第 12 课](12_beyond_one_gpu.ipynb)要问：模型分到多块 GPU 上之后，块池会变成什么样；被抢占的块不重新计算，而是搬到 CPU 内存，又要付出什么代价。
