# %% [meta]
# number = "11c"
# slug = "your_engine"
# needs = ["02", "06", "08", "09", "10", "11a", "11b"]
# rooms = ["nano", "nano.runner", "course.your_engine"]
# minutes = 45
# [title]
# en = "Does the engine that you wrote say the right tokens?"
# zh = "你写的引擎，输出的 token 对吗？"
# [t4]
# en = "The small model runs on the T4, and paged attention with it."
# zh = "小模型在 T4 上运行，分页注意力也在上面。"

# %% [markdown] key="question" lang="en"
# ## The question
#
# Since [lesson 02](02_how_many_bytes.ipynb) you have written functions that count bytes, fill blocks, look up slots, attend over pages and choose what runs next. Each passed its `check`, alone.
# **Put together, do they make an engine that says the same tokens as `generate()`?**
#
# This lesson follows one token through all of them, adds the last part, `sample`, and then runs what you have written.
# After it you can say in which file of an engine each step of a token's path happens, make random answers repeatable, and find the part that is wrong when one token differs.
# %% [markdown] key="question" lang="zh" src="deaf881b"
# ## 问题
#
# 从[第 02 课](02_how_many_bytes.ipynb)开始，你写过数字节、填块、查槽位、在块上做注意力、选择下一步运行什么的函数。每一个都单独通过了 `check`。
# **把它们组装在一起，得到的引擎与 `generate()` 输出的 token 相同吗？**
#
# 本课跟着一个 token 走完全程，补上最后一个部件 `sample`，然后运行你写的东西。
# 学完之后，你能说出一个 token 走的每一步发生在引擎的哪个文件里，能让随机的回答可以重复，还能在某个 token 不一致时找出是哪个部件错了。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# `generate()` of transformers answers a list of prompts in one static batch. A paged engine keeps K and V in blocks.
# %% [markdown] key="predict_first" lang="zh" src="0bf92e41"
# ## 先猜一猜
#
# transformers 的 `generate()` 把一组提示词放进一个静态 batch 里回答；分页的引擎则把 K 和 V 放在块里。

# %% key="predict_padding"
predict("padding", ...)

# %% [markdown] key="path" lang="en"
# ## The path of one token
#
# Here is one prompt in nano, with blocks of four tokens. Each line is a step: the positions that it computed, the blocks that the sequence holds, and the answer so far.
# %% [markdown] key="path" lang="zh" src="71d2e478"
# ## 一个 token 的路径
#
# 下面是 nano 里的一个提示词，块大小为 4。每行是一步：算了哪些位置，序列持有哪些块，目前的回答是什么。

# %% key="path_code"
from minikv.models import load
from minikv.nano import LLM, SamplingParams

tiny = load("tiny-gqa")
llm = LLM(tiny.model, tiny.tokenizer, num_blocks=8, block_size=4)
prompt = "ada paris the old cat sleeps ben oslo ? ben"
seq = llm.add_request(prompt, SamplingParams(max_tokens=4, temperature=0))
while not seq.finish_reason:
    [(_, start, end)] = llm.step()
    print(f"{start:>2} .. {end - 1:>2}   {str(seq.block_table):<14} {llm.text(seq)}")

# %% [markdown] key="path_read" lang="en"
# Eleven tokens go in at once, then one a step, and a fourth block comes when the third is full. The last token of the answer is never computed: no token follows it.
# What happened in each line is three calls:
# %% [markdown] key="path_read" lang="zh" src="4ff79c3d"
# 先一次算十一个 token，然后每步一个；第三个块满了，就再分到第四个块。回答的最后一个 token 不用计算，因为它后面没有别的 token。
# 每一行里发生的，就是三次调用：

# %% key="nano_step"
from minikv.course import show_source

show_source(LLM.step, LLM.run)

# %% [markdown] key="path_table" lang="en"
# | | what happens | file of nano | lesson |
# |---|---|---|---|
# | 1 | the step: which sequences, which tokens | `scheduler.py` | [11a](11a_continuous_batching.ipynb), [11b](11b_when_blocks_run_out.ipynb) |
# | 2 | the blocks that they need | `block_manager.py` | [09](09_pages_and_blocks.ipynb) |
# | 3 | the arrays of the forward | `runner.py` | [11a](11a_continuous_batching.ipynb) |
# | 4 | K and V into their slots | `kv_cache.py` | [06](06_the_linear_cache.ipynb) |
# | 5 | attention over the blocks | `attention.py` | [10](10_kernels.ipynb) |
# | 6 | the next token | `runner.py` | this one |
# | 7 | taken in, or the end | `scheduler.py`, `sequence.py` | [11b](11b_when_blocks_run_out.ipynb) |
#
# [The path of one token](repo:minikv/nano/README.md) shows the lines of each. The forward itself is the model's own:
# %% [markdown] key="path_table" lang="zh" src="bb591e47"
# | | 发生什么 | nano 的文件 | 课 |
# |---|---|---|---|
# | 1 | 这一步：哪些序列，哪些 token | `scheduler.py` | [11a](11a_continuous_batching.ipynb)、[11b](11b_when_blocks_run_out.ipynb) |
# | 2 | 它们要用的块 | `block_manager.py` | [09](09_pages_and_blocks.ipynb) |
# | 3 | 前向计算要用的数组 | `runner.py` | [11a](11a_continuous_batching.ipynb) |
# | 4 | K 和 V 写进各自的槽位 | `kv_cache.py` | [06](06_the_linear_cache.ipynb) |
# | 5 | 在块上做注意力 | `attention.py` | [10](10_kernels.ipynb) |
# | 6 | 下一个 token | `runner.py` | 本课 |
# | 7 | 收下结果，或者结束 | `scheduler.py`、`sequence.py` | [11b](11b_when_blocks_run_out.ipynb) |
#
# [一个 token 的路径](repo:minikv/nano/README.zh.md)给出了每一步的代码。前向计算本身由模型来做：

# %% key="nano_forward"
from minikv.nano import runner

show_source(runner.forward)

# %% [markdown] key="sampling" lang="en"
# ## The last part: a token out of logits
#
# A forward gives a row of logits for each sequence. At temperature 0 the next token is the likeliest one. Above it, the token is drawn, and every request brings its own temperature, `top_p` and seed.
#
# The same prompt, drawn three times: alone, beside eleven others, and beside them in a pool so small that sequences are preempted. Before you run the cell: how many different answers will there be?
# %% [markdown] key="sampling" lang="zh" src="9bc52f95"
# ## 最后一个部件：从 logits 到 token
#
# 一次前向计算给每条序列一行 logits。温度为 0 时，下一个 token 就是最可能的那个；大于 0 时按概率抽取，而且每个请求都有自己的温度、`top_p` 和随机种子。
#
# 同一个提示词抽取三次：单独一次，与另外十一个一起一次，再与它们放进一个小到要抢占的块池里一次。运行之前先想一想：会有几种不同的回答？

# %% key="sampling_code"
from minikv.models import recall_prompt

prompts = [recall_prompt(seed=seed).text for seed in range(12)]
params = [SamplingParams(max_tokens=24, temperature=1.5, seed=seed, ignore_eos=True) for seed in range(12)]
answers = set()
for count, num_blocks in ((1, 400), (12, 400), (12, 26)):
    small = LLM(tiny.model, tiny.tokenizer, num_blocks=num_blocks, block_size=4)
    *_, last = small.generate(prompts[-count:], params[-count:])
    answers.add(tuple(last.token_ids))
    print(t("drawn", count=count, blocks=num_blocks, preemptions=small.scheduler.num_preemptions))
print(t("drawn_answers", count=len(answers)))

# %% [markdown] key="sampling_read" lang="en"
# One answer. The random number doesn't come from a generator that goes on from draw to draw: it belongs to the request's seed and to the position of the new token. So it makes no difference which other sequences are in the step, or that a token was computed twice.
# %% [markdown] key="sampling_read" lang="zh" src="ec3edaf6"
# 只有一种回答。因为每次抽取的随机数只由这个请求的随机种子和新 token 的位置决定，而不是来自一个不断往下取数的生成器。所以同一步里还有哪些序列、某个 token 是不是算了两遍，都不影响结果。

# %% key="nano_sample"
show_source(runner.sample, runner.draw)

# %% [markdown] key="mine" lang="en"
# (Exercise 11c.1 is `sample`. `draw` is given.)
#
# ## Your engine
#
# When the `check` of a part passes, its source is kept in a file on your machine, beside your progress. It is text until you call `my_engine()`: that puts your parts into nano, in place of ours, and runs them in a process of their own, with a time limit.
#
# 48 prompts are answered with too few blocks, so that prefixes are found, prompts are cut into chunks and sequences are preempted. Every token is compared with that of `generate()`.
# %% [markdown] key="mine" lang="zh" src="6d3a20d1"
# （练习 11c.1 就是 `sample`，`draw` 已经给出。）
#
# ## 你的引擎
#
# 某个部件的 `check` 通过时，它的源代码就保存在你机器上的一个文件里，与学习进度放在一起。它一直只是文本，直到你调用 `my_engine()`：这时你的部件会装进 nano，替换我们的，并在一个单独的进程里运行，有时间限制。
#
# 要回答 48 个提示词，块故意不够，所以会有前缀命中、提示词分段和抢占。每个 token 都与 `generate()` 对照。

# %% key="my_engine"
from minikv.course import my_engine

my_engine()

# %% [markdown] key="mine_read" lang="en"
# In this copy no exercise has been solved, so every part is ours. Call it again after each part that you solve.
# The table says which parts are yours, since when, and how often each was called. A part that was never called would prove nothing. Where a token differs, the lines below the table name the part, the request and the token.
# %% [markdown] key="mine_read" lang="zh" src="53db18c9"
# 这份 notebook 里还没有做过练习，所以每个部件都是自带的。每写好一个部件，就再调用一次。
# 表里写着哪些部件是你的、从什么时候起、各被调用了多少次；从未被调用的部件，即使结果正确也说明不了什么。如果有 token 不同，表下面的几行会指出是哪个部件、哪个请求、第几个 token。

# %% [markdown] key="race" lang="en"
# ### The race
#
# The same load for `generate()` in static batches, for transformers' own `generate_batch`, for nano, for your engine and for `minikv.LLM`: tokens a second, and the most bytes of K and V at once.
# %% [markdown] key="race" lang="zh" src="585e8ad5"
# ### 比一比
#
# 同样的负载，分别交给静态批处理的 `generate()`、transformers 自带的 `generate_batch`、nano、你的引擎和 `minikv.LLM`：每秒多少 token，K 和 V 同时最多占多少字节。

# %% key="race_code" tags="timing"
my_engine.race()

# %% [markdown] key="export" lang="en"
# ### Take it with you
#
# `export` writes one file with nano and your parts, each of yours marked. It runs on its own, beside torch and transformers.
# %% [markdown] key="export" lang="zh" src="f1238218"
# ### 带走它
#
# `export` 把 nano 和你的部件写成一个文件，你写的部分都有标记。有 torch 和 transformers 就能单独运行。

# %% key="export_code"
my_engine.export("my_engine.py")

# %% [markdown] key="sampling_exercise" lang="en"
# ## In short
#
# - A step of an engine is three calls: `schedule`, `forward` with `sample`, `finish`.
# - One row of tokens holds all sequences of a step; K and V go to slots, and attention finds them through block tables.
# - A random token belongs to a seed and a position, so an answer can be repeated in any batch.
# - `my_engine()` puts your parts into nano, calls each of them, and compares every token of 48 answers.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="sampling_exercise" lang="zh" src="3606c7ec"
# ## 本课小结
#
# - 引擎的一步是三次调用：`schedule`，`forward` 加 `sample`，`finish`。
# - 一步里所有序列的 token 排成一行；K 和 V 写进槽位，注意力通过块表找到它们。
# - 抽取的 token 由随机种子和位置决定，所以放在哪个 batch 里，回答都能重复。
# - `my_engine()` 把你的部件装进 nano，每个都调用到，并对照 48 个回答里的每一个 token。
#
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_position"
explain("why_position")

# %% key="explain_called"
explain("why_called")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# 1. `sample`: the next token of every sequence of a step. With it, your engine has all its parts.
# %% [markdown] key="exercises" lang="zh" src="819e568c"
# ## 练习
#
# 1. `sample`：为一步里的每条序列给出下一个 token。有了它，你的引擎就齐全了。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# Your engine has one pool on one device. [Lesson 12](12_beyond_one_gpu.ipynb) asks what becomes of the pool when the model is spread over several GPUs, and what it costs to move a victim's blocks to CPU memory in place of computing them again.
# %% [markdown] key="next" lang="zh" src="c526a05e"
# ## 下一课
#
# 到这里，你的引擎是一个设备上的一个块池。[第 12 课](12_beyond_one_gpu.ipynb)要问：模型分到多块 GPU 上之后，块池会变成什么样；被抢占的块不重新计算，而是搬到 CPU 内存，又要付出什么代价。
