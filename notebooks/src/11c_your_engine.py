# %% [meta]
# number = "11c"
# slug = "your_engine"
# needs = ["02", "06", "08", "09", "10", "11a", "11b"]
# rooms = ["nano", "nano.runner", "course.your_engine"]
# [title]
# en = "Does the engine that you wrote produce the right tokens?"
# zh = "你写的引擎，输出的 token 对吗？"
# [t4]
# en = "The small model runs on the T4, and paged attention with it."
# zh = "小模型在 T4 上运行，分页注意力也在上面。"

# %% [markdown] key="question" lang="en"
# ## The question
#
# Since [lesson 02](02_how_many_bytes.ipynb) you have written functions that count bytes, fill blocks, look up slots, attend over blocks and choose which sequences run next. Each one passed its `check` alone.
# **Put together, do they make an engine that produces the same tokens as `generate()`?**
#
# Here are all the parts, in the files of nano that they belong to. The picture is read from nano's source: an arrow says which function uses a part.
# %% [markdown] key="question" lang="zh" src="beae64ae"
# ## 问题
#
# 从[第 02 课](02_how_many_bytes.ipynb)开始，你写的函数已经能计算字节数、填充块、查槽位、在块上做注意力，还能选择下一步运行哪些序列。每一个都单独通过了 `check`。
# **把它们组装在一起，得到的引擎与 `generate()` 输出的 token 相同吗？**
#
# 下面是全部部件，以及它们在 nano 的哪个文件里。图是从 nano 的源代码里读出来的：箭头表示哪个函数用到这个部件。

# %% key="parts" lang="en"
from minikv.course.diagrams import engine_parts

show(engine_parts("en"))
# %% key="parts" lang="zh"
from minikv.course.diagrams import engine_parts

show(engine_parts("zh"))

# %% [markdown] key="able" lang="en"
# In this lesson we follow one token through all of these parts and add the last one, `sample`. Then you run what you have written.
#
# After this lesson you can
#
# - **say** in which file of an engine each step of a token's path happens;
# - **make** random answers repeatable;
# - **read** from a report which part is wrong when a token differs.
#
# You need the lessons whose parts you want to use. Parts that you haven't written are nano's own.
# %% [markdown] key="able" lang="zh" src="b84be041"
# 本课跟着一个 token 走完全程，补上最后一个部件 `sample`，然后运行你写的东西。
#
# 学完本课，你能够
#
# - **说出**一个 token 走的每一步发生在引擎的哪个文件里；
# - **做到**让随机的回答可以重复；
# - **读懂**一份报告：有 token 不同时，错的是哪个部件。
#
# 想用哪些部件，就要先学那几课；还没有写的部件，用 nano 自带的。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# `generate()` of transformers answers a list of prompts in one static batch, in which every row is as long as the longest. A paged engine keeps K and V in blocks.
# The race at the end of the lesson measures the difference in bytes. Here you compute it for eight sequences.
# %% [markdown] key="predict_first" lang="zh" src="091146e6"
# ## 先猜一猜
#
# transformers 的 `generate()` 把一组提示词放进一个静态 batch 里回答，每一行都与最长的一行等长；分页的引擎则把 K 和 V 放在块里。
# 本课最后的竞速会量出两者差多少字节；这里先拿八条序列算一算。

# %% key="predict_padding"
predict("padding", ...)

# %% [markdown] key="path" lang="en"
# ## The path of one token
#
# Let's send one prompt through nano, with blocks of four tokens. Each row is a step: the positions that it computed, the blocks that the sequence holds, and the answer so far.
# %% [markdown] key="path" lang="zh" src="cc3e6103"
# ## 一个 token 的路径
#
# 让一个提示词走一遍 nano，块大小为 4。每行是一步：算了哪些位置，序列持有哪些块，目前的回答是什么。

# %% key="path_code" lang="en"
from minikv.course import Table
from minikv.course.diagrams import Moment, block_moments
from minikv.models import load
from minikv.nano import LLM, SamplingParams

tiny, rows, moments = load("tiny-gqa"), [], []
llm = LLM(tiny.model, tiny.tokenizer, num_blocks=8, block_size=4)
seq = llm.add_request("ada paris the old cat sleeps ben oslo ? ben", SamplingParams(max_tokens=4, temperature=0))
while not seq.finish_reason:
    [(_, start, end)] = llm.step()  # one sequence, its tokens from start up to end
    rows.append([f"{start} .. {end - 1}", str(seq.block_table), llm.text(seq)])
    stored = seq.tokens[:end] if seq.block_table else []  # token ids with K and V in the cache
    moments.append(Moment(f"step {len(rows)}", list(seq.block_table), stored, len(llm.scheduler.blocks.free_blocks), 4))
show(block_moments(moments, "en"))
Table(["positions", "block table", "answer so far"], rows)
# %% key="path_code" lang="zh"
from minikv.course import Table
from minikv.course.diagrams import Moment, block_moments
from minikv.models import load
from minikv.nano import LLM, SamplingParams

tiny, rows, moments = load("tiny-gqa"), [], []
llm = LLM(tiny.model, tiny.tokenizer, num_blocks=8, block_size=4)
seq = llm.add_request("ada paris the old cat sleeps ben oslo ? ben", SamplingParams(max_tokens=4, temperature=0))
while not seq.finish_reason:
    [(_, start, end)] = llm.step()  # 一条序列，从 start 到 end（不含）的 token
    rows.append([f"{start} .. {end - 1}", str(seq.block_table), llm.text(seq)])
    stored = seq.tokens[:end] if seq.block_table else []  # K 和 V 在缓存里的 token id
    moments.append(Moment(f"第 {len(rows)} 步", list(seq.block_table), stored, len(llm.scheduler.blocks.free_blocks), 4))
show(block_moments(moments, "zh"))
Table(["位置", "块表", "目前的回答"], rows)

# %% [markdown] key="path_read" lang="en"
# The prompt has ten words, and the tokenizer puts `<bos>` in front. One step computes these eleven tokens, and after that each step computes one. A fourth block comes when the third is full.
# After the last line the block table is empty, because the sequence has ended and its blocks are free again. The last token of the answer, at position 14, is never computed. We would compute it only to get a token after it.
#
# Each row is one call of `step`. It chooses the tokens to compute, computes them, and appends the new one:
# %% [markdown] key="path_read" lang="zh" src="dc01e19f"
# 提示词有十个单词，分词器又在最前面加了 `<bos>`。这十一个 token 在一步里算完，之后每步算一个；第三个块满了，就再取第四个块。
# 最后一行的块表是空的，因为序列已经结束，块都释放了。回答的最后一个 token（位置 14）不用计算，因为计算一个 token，只是为了得到它后面的那个，而回答到此为止。
#
# 每一行就是一次 `step` 调用：先选出这一步要算的 token，再计算，最后接上得到的新 token。

# %% key="nano_step"
from minikv.course import show_source

show_source(LLM.step, LLM.run)

# %% [markdown] key="path_table" lang="en"
# | | what happens | file of nano | lesson |
# |---|---|---|---|
# | 1 | choose the step: which sequences, with which tokens | `scheduler.py` | [11a](11a_continuous_batching.ipynb), [11b](11b_when_blocks_run_out.ipynb) |
# | 2 | give them the blocks that they need | `block_manager.py` | [09](09_pages_and_blocks.ipynb) |
# | 3 | build the arrays that the forward takes | `runner.py` | [11a](11a_continuous_batching.ipynb) |
# | 4 | write K and V into their slots | `kv_cache.py` | [06](06_the_linear_cache.ipynb) |
# | 5 | attend over the blocks | `attention.py` | [10](10_kernels.ipynb) |
# | 6 | choose the next token | `runner.py` | this one |
# | 7 | append it; if the sequence ends, free its blocks | `scheduler.py`, `sequence.py` | [11b](11b_when_blocks_run_out.ipynb) |
#
# [The path of one token](repo:minikv/nano/README.md) shows the lines of code for each row.
#
# Rows 4 and 5 run inside the forward. nano has registered its `attend` with transformers ([lesson 10](10_kernels.ipynb)), so the model calls it in every layer and passes on `batch` and `cache`:
# %% [markdown] key="path_table" lang="zh" src="c9cde242"
# | | 发生什么 | nano 的文件 | 课 |
# |---|---|---|---|
# | 1 | 决定这一步算哪些序列的哪些 token | `scheduler.py` | [11a](11a_continuous_batching.ipynb)、[11b](11b_when_blocks_run_out.ipynb) |
# | 2 | 给它们分配要用的块 | `block_manager.py` | [09](09_pages_and_blocks.ipynb) |
# | 3 | 构造前向计算要用的数组 | `runner.py` | [11a](11a_continuous_batching.ipynb) |
# | 4 | 把 K 和 V 写进各自的槽位 | `kv_cache.py` | [06](06_the_linear_cache.ipynb) |
# | 5 | 在块上做注意力 | `attention.py` | [10](10_kernels.ipynb) |
# | 6 | 选出下一个 token | `runner.py` | 本课 |
# | 7 | 接上这个 token；序列结束时释放它的块 | `scheduler.py`、`sequence.py` | [11b](11b_when_blocks_run_out.ipynb) |
#
# [一个 token 的路径](repo:minikv/nano/README.zh.md)给出了每一行对应的代码。
#
# 第 4、5 行发生在前向计算里面。nano 已经把自己的 `attend` 注册到 transformers（[第 10 课](10_kernels.ipynb)），所以模型在每一层都会调用它，并把 `batch` 和 `cache` 原样传下去：

# %% key="nano_forward"
from minikv.nano import runner

show_source(runner.forward)

# %% [markdown] key="together" lang="en"
# One sequence shares nothing and never waits, so here are three. `minikv.LLM` takes the same path and has more features. `record_generate` writes down its block tables in every step. Press play: K and V of each token fly to their slot, and every arrow is an entry of a block table.
#
# A and B begin alike, a step may compute 11 tokens, and the pool has 10 blocks. Look for the step in which two sequences share blocks, and for the one in which a sequence has to give up its blocks.
# %% [markdown] key="together" lang="zh" src="4846d9ac"
# 只有一条序列时，没有共享，也不用等待，所以这里放三条。`minikv.LLM` 走的是同一条路径，只是功能更多；`record_generate` 把它每一步的块表记下来。按播放：每个 token 的 K 和 V 飞到自己的槽位，每个箭头都是块表里的一项。
#
# A 和 B 的开头相同，一步最多算 11 个 token，块池有 10 个块。找一找：哪一步里两条序列共享了块，哪一步里有一条序列不得不交出自己的块。

# %% key="together_code" lang="en"
import minikv
from minikv.course.motion import PagingMotion, record_generate

begin = "ada paris the old cat sleeps "
asked = [begin + "ben oslo ? ben", begin + "ben oslo ? ada", "carl rome dan lima ? dan"]
fixed = minikv.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
sizes = dict(num_blocks=10, block_size=4, max_num_seqs=3, max_batched_tokens=11)
with minikv.LLM("tiny-gqa", **sizes) as large:
    recorder = record_generate(large, asked, fixed)
show(PagingMotion("en", recorder, step=2))
# %% key="together_code" lang="zh"
import minikv
from minikv.course.motion import PagingMotion, record_generate

begin = "ada paris the old cat sleeps "
asked = [begin + "ben oslo ? ben", begin + "ben oslo ? ada", "carl rome dan lima ? dan"]
fixed = minikv.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
sizes = dict(num_blocks=10, block_size=4, max_num_seqs=3, max_batched_tokens=11)
with minikv.LLM("tiny-gqa", **sizes) as large:
    recorder = record_generate(large, asked, fixed)
show(PagingMotion("zh", recorder, step=2))

# %% [markdown] key="together_read" lang="en"
# In step 2, B finds the two blocks that A filled a step earlier, so only 3 of its 11 tokens are computed. In step 8, B needs a block and none is free, so C, which came last, is preempted. A ends, and in step 9 C comes back. Two of its blocks are still in the prefix cache, so 5 tokens are computed again and not 13.
# %% [markdown] key="together_read" lang="zh" src="f207a372"
# 第 2 步，B 命中了 A 在上一步填好的两个块，所以 11 个 token 只算 3 个。第 8 步，B 还要一个块，却没有空闲的，于是最后来的 C 被抢占。A 结束后，C 在第 9 步回来；它有两个块还在前缀缓存里，所以只要重算 5 个 token，而不是 13 个。

# %% [markdown] key="sampling" lang="en"
# ## The last part: a token out of logits
#
# A forward gives a row of logits for each sequence. At temperature 0, the next token is the likeliest one. Above 0 it is drawn: we divide the logits by the temperature, the softmax turns them into probabilities, and a random number picks a token.
# `top_p` narrows the choice first. It keeps the likeliest tokens, as few of them as reach a sum of `top_p`. For example, of the probabilities 0.5, 0.3 and 0.2, a `top_p` of 0.7 keeps the first two. With 1 it keeps all of them.
# Every request brings its own temperature, `top_p` and seed.
#
# Here are the six likeliest tokens after the prompt above, at three temperatures. The logits are the same each time.
# %% [markdown] key="sampling" lang="zh" src="36aa279b"
# ## 最后一个部件：从 logits 到 token
#
# 一次前向计算给每条序列一行 logits。温度为 0 时，下一个 token 就是最可能的那个；大于 0 时按概率抽取：logits 除以温度，经 softmax 变成概率，再用一个随机数选出一个 token。
# `top_p` 先缩小范围：从最可能的 token 开始保留，概率之和达到 `top_p` 就不再往下取。例如三个 token 的概率是 0.5、0.3、0.2，`top_p` 为 0.7 时只保留前两个；等于 1 时全部保留。
# 每个请求都有自己的温度、`top_p` 和随机种子。
#
# 下面是上面那个提示词之后最可能的六个 token，在三种温度下的概率；logits 是同一组。

# %% key="heat_code" lang="en"
from minikv.course.charts import bars

model, tokenizer = load("tiny-gqa")  # a second copy: the one above runs nano's attention now
ids = tokenizer("ada paris the old cat sleeps ben oslo ? ben", return_tensors="pt")
logits = model(**ids).logits[0, -1]  # [vocabulary]
likeliest = logits.topk(6).indices.tolist()
at = {  # six probabilities for each temperature
    f"temperature {heat:g}": [round(each, 3) for each in (logits / heat).softmax(-1)[likeliest].tolist()]
    for heat in (1.0, 2.0, 3.0)
}
show(bars(tokenizer.convert_ids_to_tokens(likeliest), at, x="probability of the next token"))
# %% key="heat_code" lang="zh"
from minikv.course.charts import bars

model, tokenizer = load("tiny-gqa")  # 另加载一份：上面那份已换成 nano 的注意力
ids = tokenizer("ada paris the old cat sleeps ben oslo ? ben", return_tensors="pt")
logits = model(**ids).logits[0, -1]  # [词表大小]
likeliest = logits.topk(6).indices.tolist()
at = {  # 每种温度六个概率
    f"温度 {heat:g}": [round(each, 3) for each in (logits / heat).softmax(-1)[likeliest].tolist()]
    for heat in (1.0, 2.0, 3.0)
}
show(bars(tokenizer.convert_ids_to_tokens(likeliest), at, x="下一个 token 的概率"))

# %% [markdown] key="sampling_predict" lang="en"
# The higher the temperature, the more often a token other than the likeliest is drawn.
#
# Now we answer the same prompt three times: alone, together with eleven others, and together with them in a pool so small that sequences are preempted. Before you run the cell: how many different answers will there be?
# %% [markdown] key="sampling_predict" lang="zh" src="74e88abb"
# 温度越高，越常抽到最可能的那个以外的 token。
#
# 现在把同一个提示词回答三次：单独一次，与另外十一个一起一次，再与它们放进一个小到要抢占的块池里一次。运行之前先想一想：会有几种不同的回答？

# %% key="sampling_code" lang="en"
from minikv.models import recall_prompt

prompts = [recall_prompt(seed=seed).text for seed in range(12)]
params = [SamplingParams(max_tokens=24, temperature=1.5, seed=seed, ignore_eos=True) for seed in range(12)]
answers, rows = set(), []
for count, num_blocks in ((1, 400), (12, 400), (12, 26)):
    small = LLM(tiny.model, tiny.tokenizer, num_blocks=num_blocks, block_size=4)
    *_, last = small.generate(prompts[-count:], params[-count:])
    answers.add(tuple(last.token_ids))
    rows.append([count, num_blocks, small.scheduler.num_preemptions])
Table(["prompts at once", "blocks", "preemptions"], rows, lines=[f"different answers: {len(answers)}"])
# %% key="sampling_code" lang="zh"
from minikv.models import recall_prompt

prompts = [recall_prompt(seed=seed).text for seed in range(12)]
params = [SamplingParams(max_tokens=24, temperature=1.5, seed=seed, ignore_eos=True) for seed in range(12)]
answers, rows = set(), []
for count, num_blocks in ((1, 400), (12, 400), (12, 26)):
    small = LLM(tiny.model, tiny.tokenizer, num_blocks=num_blocks, block_size=4)
    *_, last = small.generate(prompts[-count:], params[-count:])
    answers.add(tuple(last.token_ids))
    rows.append([count, num_blocks, small.scheduler.num_preemptions])
Table(["同时的提示词", "块数", "抢占次数"], rows, lines=[f"不同的回答：{len(answers)} 种"])

# %% [markdown] key="sampling_read" lang="en"
# There is only one. The random number doesn't come from one generator that all requests share. It depends on the request's seed and on the position of the new token, and on nothing else. So it makes no difference which other sequences are in the step, or whether K and V of a token were computed twice.
# (The logits themselves may differ by rounding from batch to batch. If a draw falls just on the border between two tokens, it can differ as well.)
# %% [markdown] key="sampling_read" lang="zh" src="042e4f43"
# 只有一种。因为随机数不是从所有请求共用的一个生成器里依次取的，它只取决于这个请求的随机种子和新 token 的位置。所以同一步里还有哪些序列、某个 token 的 K 和 V 是不是算了两遍，都不影响结果。
# （logits 本身在不同的 batch 里可能有舍入误差；如果抽取恰好落在两个 token 的分界上，结果也可能因此不同。）

# %% key="nano_sample"
show_source(runner.sample, runner.draw)

# %% [markdown] key="mine" lang="en"
# Why does `sample` ask whether `end == len(seq.tokens)`? In a step that computes a chunk of a long prompt, more of the prompt follows. Such a row draws no token, and `finish` drops the one that stands in the list.
# (Exercise 11c.1 is `sample`. `draw` is given.)
#
# ## Your engine
#
# When the `check` of a part passes, its source is kept in a file on your machine, next to your progress. It stays plain text until you call `my_engine()`. Then your parts replace ours in nano, and nano runs in a separate process with a time limit.
#
# The engine answers 48 prompts. Many of them begin alike, so prefixes are found. A step may compute 12 tokens, so prompts are cut into chunks. And the pool is too small, so sequences are preempted.
# Every token is compared with that of `generate()`. Half of the answers are drawn, and for these `generate()` uses the same `draw` with the same seeds.
# %% [markdown] key="mine" lang="zh" src="cf9d2b69"
# `sample` 为什么要看 `end == len(seq.tokens)`？如果这一步只算了长提示词中间的一段，后面还有提示词，就不用抽取；列表里占位的那个 token，`finish` 会丢掉。
# （练习 11c.1 就是 `sample`，`draw` 已经给出。）
#
# ## 你的引擎
#
# 某个部件的 `check` 通过时，它的源代码就保存在你机器上的一个文件里，与学习进度放在一起。它一直只是文本，直到你调用 `my_engine()`：这时你的部件会装进 nano，替换我们的，并在一个单独的进程里运行，有时间限制。
#
# 引擎要回答 48 个提示词。许多提示词开头相同，所以有前缀命中；一步最多算 12 个 token，所以提示词要分段；块池又太小，所以会发生抢占。
# 每个 token 都与 `generate()` 对照。有一半回答是抽取的，这时 `generate()` 也用同一个 `draw` 和同样的随机种子。

# %% key="my_engine"
from minikv.course import my_engine

my_engine()

# %% [markdown] key="mine_read" lang="en"
# In this notebook no exercise has been solved yet, so every part is ours. Call `my_engine()` again after each part that you solve.
# The table says which parts are yours, since when, and how often each was called. If a part of yours is never called, right answers say nothing about it, and the report says so.
# `paged_decode_kernel` has no calls here, because ours isn't run in this comparison. Once the kernel is yours, some decode steps launch it, and its result is compared with that of `paged_attention`.
#
# Equal tokens aren't enough, either. Many mistakes change no token, for example blocks that are freed in another order. So each call of a part of yours is also compared with what ours does in the same state.
# If something differs, the lines below the table name the part, the step, the request and the two values. From there on our part replaces yours, so that the other parts can still be judged.
#
# The 48 prompts go to tiny-gqa. Another 24 go to two other models. One is a Gemma 2 with random weights: it has layers with a window, and a softcap, which keeps scores below a limit. The other is tiny-mla, in which keys are longer than values.
# %% [markdown] key="mine_read" lang="zh" src="a652b251"
# 这份 notebook 里还没有做过练习，所以每个部件都是自带的。每写好一个部件，就再调用一次。
# 表里写着哪些部件是你的、从什么时候起、各被调用了多少次；你的部件如果从未被调用，结果正确也说明不了什么，报告会指出来。
# `paged_decode_kernel` 这里没有调用次数，因为自带的 kernel 不参加这次对照。换成你写的之后，有些解码步会运行它，并与 `paged_attention` 的结果对照。
#
# 只看 token 也不够，因为许多错误不会改变 token，例如按另一种次序释放块。所以你的部件每次被调用，都会与自带的那一份在同样状态下的结果对照。
# 如果有不同的地方，表下面的几行会指出是哪个部件、哪一步、哪个请求，以及两个不同的值。从那里起改用自带的，好继续检验其他部件。
#
# 这 48 个提示词交给 tiny-gqa，此外还有 24 个交给另外两个模型：一个是随机权重的 Gemma 2，它有带窗口的层，还用 softcap 给注意力分数设了上限；另一个是 tiny-mla，它的 key 比 value 长。

# %% [markdown] key="break" lang="en"
# ### Break it
#
# The function below leaves the previous block's digest out of the new one. Two blocks with the same tokens then get the same digest, whatever stands before them.
# `my_engine(block_digest)` runs the engine once with this function instead of the part of the same name, and saves nothing. Before you run it: will every answer be wrong?
# %% [markdown] key="break" lang="zh" src="da65fa0d"
# ### 弄坏它
#
# 下面这个函数计算摘要时，漏掉了前一块的摘要。这样一来，只要块里的 token 相同，不管前面是什么，两个块的摘要都一样。
# `my_engine(block_digest)` 用你给的函数替换同名部件，只试这一次，什么也不保存。运行之前先想一想：是不是每个回答都会错？

# %% key="break_code"
from hashlib import sha256


def block_digest(previous, tokens):
    return sha256(str(list(tokens)).encode()).digest()


my_engine(block_digest)

# %% [markdown] key="break_read" lang="en"
# No. An answer is wrong only if its prompt shares a block with another prompt, but what stands before the block differs. Then the prefix cache hands it K and V that were computed after that other beginning. Nothing crashes, and the first token is wrong already.
# The report names the call in which two different blocks got one digest, and the first request whose answer suffers from it.
# %% [markdown] key="break_read" lang="zh" src="9247d1c7"
# 不是。只有当一个提示词里的某个块与别的提示词相同、前面的内容却不同时，回答才会错。这时前缀缓存给它的 K 和 V，是接在另一个开头之后算出来的。程序不会崩溃，但第一个 token 就已经错了。
# 报告指出了是哪一次调用给两个不同的块算出同一个摘要，以及第一个因此答错的请求。

# %% [markdown] key="race" lang="en"
# ### The race
#
# Five engines answer the same 32 requests: `generate()` in static batches, transformers' own continuous batching (`generate_batch`), nano, your engine and `minikv.LLM`.
# For each we measure the tokens a second, and the bytes of K and V that it holds when it holds the most. Before you run the cell: which one holds the most?
# %% [markdown] key="race" lang="zh" src="33ecd28f"
# ### 竞速
#
# 五个引擎回答同样的 32 个请求：静态批处理的 `generate()`、transformers 自带的连续批处理（`generate_batch`）、nano、你的引擎和 `minikv.LLM`。
# 我们测每个引擎每秒多少 token，以及 K 和 V 占得最多的时候是多少字节。运行之前先想一想：哪一个占得最多？

# %% key="race_code" tags="timing"
my_engine.race()

# %% [markdown] key="export" lang="en"
# `generate()` holds the most K and V, about three times as much as nano. All rows of a static batch are as long as the longest, and an answer that has ended keeps its row until the batch ends. This is the room that you predicted at the beginning.
#
# The tokens a second are those of a very small model, so they don't say which engine is faster on yours. In this notebook nano is ahead of `minikv.LLM`. On the larger model of [the results](repo:RESULTS.md#nano) it is the other way round.
# vLLM can join: `make bench-vllm` in a checkout installs it (3.5 GB), and then `my_engine.race(vllm=True)` has a sixth row.
#
# ### Take it with you
#
# `export` writes nano and your parts into one file and marks the parts that are yours. The file doesn't need minikv, only torch and transformers.
# %% [markdown] key="export" lang="zh" src="bbff1bd9"
# K 和 V 占得最多的是 `generate()`，大约是 nano 的三倍。因为静态 batch 里每一行都与最长的一行等长，而且回答结束之后，那一行还要留到整批结束。本课开头猜的就是这部分位置。
#
# 每秒 token 数来自一个很小的模型，说明不了在你的模型上哪个引擎更快。这份 notebook 里 nano 比 `minikv.LLM` 快；在[测量结果](repo:RESULTS.md#nano)里那个大一些的模型上，次序正好相反。
# vLLM 也可以参加：在源码目录里运行 `make bench-vllm` 把它装好（3.5 GB），`my_engine.race(vllm=True)` 就会多出一行。
#
# ### 带走它
#
# `export` 把 nano 和你的部件写成一个文件，你写的部分都有标记。这个文件不需要 minikv，有 torch 和 transformers 就能运行。

# %% key="export_code"
my_engine.export("my_engine.py")

# %% [markdown] key="recap" lang="en"
# ## Recap
#
# - A step of an engine is three lines: `schedule` chooses the tokens to compute, `forward` and `sample` get the next ones, and `finish` appends them.
# - One row of tokens holds all sequences of a step. K and V go to slots, and attention finds them through block tables.
# - A random token depends on a seed and a position only, so the answer was the same in all 3 batches.
# - `my_engine()` puts your parts into nano. It compares every call of them with ours, and every token of 48 answers with `generate()`.
# %% [markdown] key="recap" lang="zh" src="166626c4"
# ## 本课小结
#
# - 引擎的一步是三行代码：`schedule` 选出这一步要算的 token，`forward` 和 `sample` 得到下一个 token，`finish` 把它接上。
# - 一步里所有序列的 token 排成一行；K 和 V 写进槽位，注意力通过块表找到它们。
# - 抽取的 token 只由随机种子和位置决定，所以在 3 种 batch 里，回答都相同。
# - `my_engine()` 把你的部件装进 nano，每次调用都与我们的对照，48 个回答的每个 token 都与 `generate()` 对照。

# %% [markdown] key="self" lang="en"
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="c2d6ea3e"
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
# Your engine has one pool on one device. [Lesson 12](12_beyond_one_gpu.ipynb) spreads the model over several GPUs and looks at what becomes of the pool. It also asks what it costs to move a victim's blocks to CPU memory instead of computing them again.
# %% [markdown] key="next" lang="zh" src="4324c9ee"
# ## 下一课
#
# 到这里，你的引擎是一个设备上的一个块池。[第 12 课](12_beyond_one_gpu.ipynb)把模型分到多块 GPU 上，看块池会变成什么样；还要算一算，被抢占的块不重新计算，而是搬到 CPU 内存，要付出什么代价。
