# %% [meta]
# number = "00"
# slug = "start_here"
# rooms = ["cli", "course"]
# [title]
# en = "What is on my machine, and how does this course work?"
# zh = "我的机器上有什么？这门课怎么学？"
# [t4]
# en = "everything runs; the doctor names the T4, and the small model generates on it"
# zh = "全部可以运行；体检会认出 T4，小模型在它上面生成"
# [paper]
# en = "00.2, 00.3, 00.4"
# zh = "00.2、00.3、00.4"

# %% [markdown] key="question" lang="en"
# ## The question
#
# A language model reads text in pieces called tokens: words, or parts of words. While it answers, it keeps something in memory for every token that it has read.
# **What is that memory, and why does an engine cut it into blocks of 16 tokens?**
#
# Run the next cell and watch a small model answer a question while its blocks fill.
# %% [markdown] key="question" lang="zh" src="2274246b"
# ## 问题
#
# 语言模型把文本切成一个个 token（一个词或词的一部分）来读。每读入一个 token，都要在内存里留下一些数据。
# **这块内存里存的是什么？推理引擎又为什么把它切成 16 个 token 一块？**
#
# 运行下一格，看一个小模型怎样一边回答问题，一边把块一个个填满。

# %% key="live" lang="en"
from itertools import islice
from time import sleep

from minikv import LLM, SamplingParams
from minikv.course import Table, monitor
from minikv.models import recall_prompt

llm = LLM("tiny-gqa", block_size=16, num_blocks=6)
asked = recall_prompt(facts=3, context=9)
answer = llm.stream(asked.text, SamplingParams(temperature=0, max_tokens=40))
words = [next(answer).text]  # the first step reads the whole prompt
seen = monitor.cache(llm, lang="en")
show(seen)  # live, while the loop runs
for token in islice(answer, 29):
    words.append(token.text)
    sleep(0.1)  # the model is quicker than an eye

# %% key="live" lang="zh"
from itertools import islice
from time import sleep

from minikv import LLM, SamplingParams
from minikv.course import Table, monitor
from minikv.models import recall_prompt

llm = LLM("tiny-gqa", block_size=16, num_blocks=6)
asked = recall_prompt(facts=3, context=9)
answer = llm.stream(asked.text, SamplingParams(temperature=0, max_tokens=40))
words = [next(answer).text]  # 第一步读入整个提示词
seen = monitor.cache(llm, lang="zh")
show(seen)  # 实时的画面，循环运行时一直在变
for token in islice(answer, 29):
    words.append(token.text)
    sleep(0.1)  # 模型太快，眼睛跟不上

# %% [markdown] key="live_said" lang="en"
# After this lesson you can
#
# - **read** a pool of blocks: which are full, which are partly filled, which are free;
# - **compute** how many blocks a text takes, how many places for a token stay empty in them, and how many tokens a pool holds;
# - **use** the five functions of every lesson, and see what this machine can do.
#
# You need some Python, and nothing about attention or GPUs: each term is explained where it first appears.
#
# After step 30 the same request holds three blocks. This is the last picture that the monitor took:
# %% [markdown] key="live_said" lang="zh" src="ead96887"
# 学完本课，你能
#
# - **看懂**一个块池：哪些块满了，哪些只填了一部分，哪些空闲；
# - **算出**一段文本占几个块、块里空着几个 token 的位置，以及一个块池能放多少个 token；
# - **用好**每一课都有的五个函数，并了解这台机器能做什么。
#
# 只要会一点 Python 就可以开始。注意力和 GPU 的知识不用提前准备，术语第一次出现时都会解释。
#
# 走完第 30 步，这个请求占了三个块。监视器最后拍到的画面是这样的：

# %% key="still" lang="en"
seen.stop()
show(seen)
answer.close()  # ends the request: its blocks are free again

# %% key="still" lang="zh"
seen.stop()
show(seen)
answer.close()  # 结束请求，它的块重新空闲

# %% [markdown] key="doctor" lang="en"
# ## What is on this machine
#
# Before we go on, let's see what you have.
# `minikv doctor` in a terminal prints the lines below; here we call the same function from Python.
# `ok` means that something is there, `note` means that it's missing but the course runs without it, and `MISS` means that you have to install it.
# Your lines will differ from the ones saved here.
# %% [markdown] key="doctor" lang="zh" src="fb2b348a"
# ## 这台机器上有什么
#
# 先看看你手头的环境。
# 在终端里运行 `minikv doctor --lang zh` 会打印下面这些行，这里直接从 Python 调用同一个函数。
# 其中 `ok` 表示已经就绪，`note` 表示缺了它课程照样能跑，`MISS` 表示必须先安装。
# 你看到的内容与这里保存的会有出入。

# %% key="examine" tags="hardware" lang="en"
from minikv.course.machine import examined

examined("en")

# %% key="examine" tags="hardware" lang="zh"
from minikv.course.machine import examined

examined("zh")

# %% [markdown] key="no_gpu" lang="en"
# You don't need a GPU.
# Every lesson runs on a CPU and downloads nothing. If you do have a GPU, the same cells measure the GPU.
# %% [markdown] key="no_gpu" lang="zh" src="b082677d"
# 没有 GPU 也能学，因为每一课都可以在 CPU 上运行，而且不下载任何东西。
# 如果有 GPU，同样的单元格测的就是 GPU。

# %% [markdown] key="words" lang="en"
# ## The five functions of every lesson
#
# The first code cell of each notebook gives you five functions.
#
# | function | what it does |
# |---|---|
# | `predict("key", ...)` | asks for a number before anything is shown; put your number in place of `...` |
# | `check("00.2", my_function)` | runs your function on generated cases, and prints a small one that fails |
# | `explain("key")` | asks you to say something in your own words; `reveal=True` shows a good answer and its points |
# | `show(widget)` | draws something live here, or as a picture with text where no code can run |
# | `t("key")` | gives a sentence in the notebook's language |
#
# A wrong guess costs nothing, so always guess before you run the next cell.
# You remember best what you first guessed wrong.
#
# On Colab and on GitHub you can see the results of an earlier run below the cells, and the answers are among them.
# On Colab, **Edit > Clear all outputs** hides them. The copies that `minikv lab` opens have no outputs.
# %% [markdown] key="words" lang="zh" src="c4dd1743"
# ## 每一课都有的五个函数
#
# 每个 notebook 的第一个代码单元格会准备好五个函数。
#
# | 函数 | 作用 |
# |---|---|
# | `predict("key", ...)` | 在看到结果之前先问你一个数字；把 `...` 换成你的估计 |
# | `check("00.2", my_function)` | 用自动生成的用例测试你的函数，并打印一个较小的出错用例 |
# | `explain("key")` | 请你用自己的话讲清一件事；加上 `reveal=True` 就显示参考回答和要点 |
# | `show(widget)` | 画出可以操作的图；不能运行代码的地方，则显示图片和文字 |
# | `t("key")` | 取一句当前语言的文字 |
#
# 猜错没有任何损失，所以请养成先猜、再运行下一格的习惯。
# 自己猜错过的数字，往往记得最牢。
#
# 在 Colab 和 GitHub 上，单元格下面留着以前运行的结果，答案也在其中。
# Colab 里点**修改 > 清除所有输出**就能隐藏它们；`minikv lab` 打开的副本本来就不带输出。

# %% [markdown] key="units" lang="en"
# ## Units first
#
# "83 GB used on an 80 GB card" looks like a bug, but it doesn't have to be one.
# The first number counts units of 10<sup>9</sup> bytes, and a card with 80 on its label has more than 80 of those.
#
# Here is your first prediction. Replace `...` with a number, and run the cell again.
# %% [markdown] key="units" lang="zh" src="470e671f"
# ## 先说单位
#
# “80 GB 的显卡用掉了 83 GB”，看上去像 bug，其实不一定。
# 83 的单位是 10<sup>9</sup> 字节，而标称 80 的显卡，按这个单位算，显存不止 80。
#
# 这是第一道预测题，请把 `...` 换成一个数字，再运行一次。

# %% key="predict_label"
predict("label_gb", ...)

# %% [markdown] key="units_formula"
# $$\mathrm{GiB} = \mathrm{GB} \cdot \frac{10^9}{2^{30}}$$

# %% [markdown] key="units_words" lang="en"
# | symbol | what it is | value here |
# |---|---|---|
# | GB | a size in units of 10<sup>9</sup> bytes | 83 |
# | GiB | the same size in units of 2<sup>30</sup> bytes | 77.3 |
#
# $$83 \cdot \frac{10^9}{2^{30}} = 83 \cdot 0.9313 = 77.3$$
#
# A GiB is 7.4 % larger than a GB, and a MiB 4.9 % larger than a MB.
# In the code of this course a size is always a whole number of bytes. MiB and GiB appear only in what we print.
# %% [markdown] key="units_words" lang="zh" src="d7c729bc"
# | 符号 | 含义 | 本例取值 |
# |---|---|---|
# | GB | 以 10<sup>9</sup> 字节为单位的大小 | 83 |
# | GiB | 同样大小，以 2<sup>30</sup> 字节为单位 | 77.3 |
#
# $$83 \cdot \frac{10^9}{2^{30}} = 83 \cdot 0.9313 = 77.3$$
#
# 也就是说，1 GiB 比 1 GB 大 7.4%，1 MiB 比 1 MB 大 4.9%。
# 本课程的代码一律用整数字节表示大小；MiB 和 GiB 只在打印时使用。

# %% key="units_table" lang="en"
from minikv.units import GIB, MIB, gib

rows = [["MB", 10**6, "1 MB"], ["MiB", MIB, f"{MIB / 10**6:.3f} MB"]]
rows += [["GB", 10**9, "1 GB"], ["GiB", GIB, f"{GIB / 10**9:.3f} GB"]]
Table(["unit", "bytes", "ratio"], rows, right=["ratio"])

# %% key="units_table" lang="zh"
from minikv.units import GIB, MIB, gib

rows = [["MB", 10**6, "1 MB"], ["MiB", MIB, f"{MIB / 10**6:.3f} MB"]]
rows += [["GB", 10**9, "1 GB"], ["GiB", GIB, f"{GIB / 10**9:.3f} GB"]]
Table(["单位", "字节", "比值"], rows, right=["比值"])

# %% [markdown] key="labels" lang="en"
# So what does the label on the box mean?
# The package's catalogue of GPUs stores it together with the bytes that torch sees.
# Those bytes come from a public log of each card. The logs print GiB with two decimals, so yours may differ a little.
# "Read as GB" is what the card would have in GiB if its label meant GB, and "read as GiB" if it meant GiB.
# %% [markdown] key="labels" lang="zh" src="815cd7f0"
# 那么，包装上的标称值到底是多少字节？
# 程序包的 GPU 目录里，标称值和 torch 可见的字节数是放在一起的。
# 后者取自公开日志，每种显卡一份；日志里只印到小数点后两位（单位 GiB），所以你的机器上可能略有不同。
# 表中“按 GB 理解”是把标称的单位当作 GB，再换算成 GiB；“按 GiB 理解”则是直接当作 GiB。

# %% key="labels_table" lang="en"
from minikv.plan import find_gpu

rows = []
for name in ["H200", "A100 SXM 80GB", "RTX 4090", "T4"]:
    gpu = find_gpu(name)
    as_gb, seen_gib = gib(gpu.nominal_gb * 10**9), gib(gpu.total_bytes)
    rows.append([gpu.name, f"{gpu.nominal_gb} GB", f"{as_gb:.2f}", f"{seen_gib:.2f}", f"{gpu.nominal_gb:.2f}"])
head = ["card", "label", "read as GB", "torch sees", "read as GiB"]
Table(head, rows, right=head[1:], lines=[f"83 GB = {gib(83 * 10**9):.1f} GiB"])

# %% key="labels_table" lang="zh"
from minikv.plan import find_gpu

rows = []
for name in ["H200", "A100 SXM 80GB", "RTX 4090", "T4"]:
    gpu = find_gpu(name)
    as_gb, seen_gib = gib(gpu.nominal_gb * 10**9), gib(gpu.total_bytes)
    rows.append([gpu.name, f"{gpu.nominal_gb} GB", f"{as_gb:.2f}", f"{seen_gib:.2f}", f"{gpu.nominal_gb:.2f}"])
head = ["显卡", "标称", "按 GB 理解", "torch 可见", "按 GiB 理解"]
Table(head, rows, right=head[1:], lines=[f"83 GB = {gib(83 * 10**9):.1f} GiB"])

# %% [markdown] key="labels_said" lang="en"
# All numbers except the labels are in GiB.
# On an H200, torch sees more than 141 GB but less than 141 GiB. On a T4 it sees less than either reading of 16.
# An A100 with 80 on its label shows 79.25 GiB, so there is room for the 83 GB of the example, which are 77.3 GiB.
#
# The number on the box doesn't convert cleanly to bytes, so we never calculate with it.
# On your own GPU, use `torch.cuda.mem_get_info()[1]`.
# %% [markdown] key="labels_said" lang="zh" src="6622b42f"
# 表里除了标称值，单位都是 GiB。
# H200 上 torch 可见的显存比 141 GB 多，又比 141 GiB 少；T4 标称 16，不管按哪种单位理解，实际可见的都更少。
# 标称 80 的 A100 可见 79.25 GiB，所以例子里的 83 GB，也就是 77.3 GiB，是放得下的。
#
# 包装上的数字没有一个固定的系数可以换算成字节，所以我们从不拿它计算。
# 在自己的 GPU 上，请以 `torch.cuda.mem_get_info()[1]` 为准。

# %% [markdown] key="sixty" lang="en"
# ## What you saw: a model answers, and its blocks fill
#
# A language model reads **tokens**, which are pieces of text. For our small model, each word is one token.
# In every layer the model makes two vectors for every token, a key K and a value V, and it needs them again in each later step.
# So it keeps them. The memory that holds them is the **KV cache**, and [lesson 01](01_why_a_cache.ipynb) shows what happens without one.
#
# The model came with the package: two layers, trained in 18 minutes on one CPU thread, for one task.
# It reads names and cities with other words between them, then a question mark and a name. It answers with the city that followed that name.
# The right city appears only in the prompt, so the model has to look it up.
# %% [markdown] key="sixty" lang="zh" src="031c2118"
# ## 刚才看到的：模型一边回答，块一边填满
#
# 语言模型读入的是一个个 **token**，也就是一小段一小段的文本。对上面的小模型来说，一个词就是一个 token。
# 每一层都会为每个 token 算出两个向量：K（key，键）和 V（value，值）。后面的每一步还要用到它们，所以算好之后就存起来。
# 存放它们的内存叫 **KV 缓存**（KV cache）。没有它会怎样，[第 01 课](01_why_a_cache.ipynb)会演示。
#
# 这个模型随程序包一起安装，只有两层，用一个 CPU 线程训练了 18 分钟，只会做一件事。
# 它读入一些人名和城市，中间夹杂着别的词；看到问号和一个人名，就说出这个人名后面的城市。
# 正确答案只出现在提示词里，所以模型必须回头去查。

# %% key="model" lang="en"
said = "".join(words).strip()
Table(["prompt", "answer", "right"], [[asked.text, said.split()[0], asked.answer]], lines=[said])

# %% key="model" lang="zh"
said = "".join(words).strip()
Table(["提示词", "回答", "正确答案"], [[asked.text, said.split()[0], asked.answer]], lines=[said])

# %% [markdown] key="generate_words" lang="en"
# The first word is the answer.
# After it the model goes on as it was trained: it asks itself questions and answers them, and soon it repeats one of them.
#
# The prompt has 11 words. In front of them the model gets the token `<bos>`, which marks the beginning, so it reads 12 tokens.
#
# `LLM` is the engine of this course. Here it serves a single request.
# Its first step reads the whole prompt, which is called **prefill**. Each later step reads only the newest token, which is called **decode**.
# Every step ends with one new token.
# %% [markdown] key="generate_words" lang="zh" src="fbbb639a"
# 输出的第一个词就是答案。
# 之后模型照训练时的样子继续写，自问自答，没过多久就开始重复同一个问题。
#
# 提示词（prompt）就是这 11 个词，前面再加一个表示开头的 `<bos>`，一共 12 个 token。
#
# `LLM` 是本课程的推理引擎，这里只服务一个请求。
# 它的第一步读入整个提示词，叫**预填充**（prefill）；之后每一步只读最新的一个 token，叫**解码**（decode）。
# 无论哪一种，每一步结束时都会产生一个新 token。

# %% key="predict_tokens"
predict("tokens_cached", ...)

# %% [markdown] key="blocks_words" lang="en"
# The engine can't know how long an answer will become.
# If each sequence had one contiguous piece of memory, it would have to be as large as the longest answer allowed, and most of it would stay empty.
# So the engine takes one large piece of memory for all sequences, cuts it into **blocks** of equal size, here 16 tokens each, and hands out a block whenever a sequence needs one.
# The **block table** of a sequence lists its blocks in the order of its tokens.
#
# Here are 41 tokens in such a pool, each in its **slot**. The arrows are the block table:
# %% [markdown] key="blocks_words" lang="zh" src="458cc2df"
# 一个回答会有多长，引擎事先并不知道。如果给每条序列一段连续的内存，就得按允许的最大长度预留，其中大部分会一直空着。
# 它先分配一大块内存，切成大小相同的**块**（block），这里是 16 个 token 一块；序列需要时，就分给它一个。
# 每条序列都有一张**块表**（block table），按 token 的先后顺序记下它用了哪些块。
#
# 下图是块池里的 41 个 token，每个 token 放在自己的**槽位**（slot）里，箭头就是块表：

# %% key="slots" lang="en"
from minikv.blocks import BlockManager
from minikv.course.diagrams import slots

manager = BlockManager(num_blocks=6, block_size=16)
manager.allocate("A", list(range(41)))
show(slots(manager, "A", "en"))

# %% key="slots" lang="zh"
from minikv.blocks import BlockManager
from minikv.course.diagrams import slots

manager = BlockManager(num_blocks=6, block_size=16)
manager.allocate("A", list(range(41)))
show(slots(manager, "A", "zh"))

# %% [markdown] key="fill_words" lang="en"
# Here the pool was empty, so the block table is 0, 1, 2, and token 40 sits in slot 40.
# In a pool that other sequences use too, the table may be 5, 0, 3. Then token 40 is the ninth token of the third block, which is block 3, and sits in slot 3 x 16 + 8 = 56.
#
# Now we run the same request once more, one step at a time.
# After each step we ask the engine which blocks the sequence holds. `CacheSpec` describes what this model stores for a token, so we ask it how many bytes the tokens need.
# %% [markdown] key="fill_words" lang="zh" src="5611bb51"
# 这里块池本来是空的，所以块表是 0、1、2，token 40 正好在槽位 40。
# 如果块池里还有别的序列，块表就可能是 5、0、3。这时 token 40 是第三个块（即块 3）里的第 9 个 token，槽位是 3 × 16 + 8 = 56。
#
# 接下来把同一个请求再跑一遍，这次一步一步走。
# 每走一步，就问引擎这条序列占了哪些块，再问 `CacheSpec` 这些 token 需要多少字节；`CacheSpec` 记录的是这个模型每个 token 要存什么。

# %% key="fill" lang="en"
from minikv.course.widgets import BlocksWidget, SequenceBlocks

spec = llm.cache.spec
pool, steps = BlocksWidget("en", num_blocks=6, block_size=16), []
name = llm.add_request(asked.text, SamplingParams(temperature=0, max_tokens=40))  # 0: always the likeliest word
for _ in range(30):
    word = llm.step().tokens[0].text
    [sequence] = llm.snapshot().running
    table, cached = sequence.tables[0], sequence.num_computed
    steps.append((cached, spec.bytes_for(cached), len(table) * spec.block_bytes(16)))
    pool.add_step([SequenceBlocks("A", table, cached)], note=f"New word:{word}.")
_ = llm.abort(name)  # its blocks go back to the pool

# %% key="fill" lang="zh"
from minikv.course.widgets import BlocksWidget, SequenceBlocks

spec = llm.cache.spec
pool, steps = BlocksWidget("zh", num_blocks=6, block_size=16), []
name = llm.add_request(asked.text, SamplingParams(temperature=0, max_tokens=40))  # 0：总取概率最大的词
for _ in range(30):
    word = llm.step().tokens[0].text
    [sequence] = llm.snapshot().running
    table, cached = sequence.tables[0], sequence.num_computed
    steps.append((cached, spec.bytes_for(cached), len(table) * spec.block_bytes(16)))
    pool.add_step([SequenceBlocks("A", table, cached)], note=f"新词：{word}。")
_ = llm.abort(name)  # 它的块都归还

# %% [markdown] key="pool_words" lang="en"
# The replay begins at step 0, with an empty pool.
# Press Play, or click the slider and use the arrow keys.
# %% [markdown] key="pool_words" lang="zh" src="78f44d8b"
# 回放从第 0 步开始，此时块池是空的。
# 点“播放”，或者点一下滑块，再用方向键一步步看。

# %% key="pool"
pool.step = 0
show(pool)

# %% key="fill_table" lang="en"
rows = []
for cached, needed, taken in steps:
    if cached in (12, 16, 17, 32, 33, 41):
        full, rest = divmod(cached, 16)
        partly = 1 if rest else 0
        rows.append([cached, needed, taken, full, partly, 6 - full - partly])
title = f"{llm.cache.nbytes:,} B of K and V in memory = 6 blocks x {spec.block_bytes(16):,} B"
Table(["tokens", "B needed", "B taken", "full blocks", "partly filled", "free"], rows, title=title)

# %% key="fill_table" lang="zh"
rows = []
for cached, needed, taken in steps:
    if cached in (12, 16, 17, 32, 33, 41):
        full, rest = divmod(cached, 16)
        partly = 1 if rest else 0
        rows.append([cached, needed, taken, full, partly, 6 - full - partly])
title = f"{llm.cache.nbytes:,} B 的 K 和 V = 6 个块 × {spec.block_bytes(16):,} B"
Table(["token 数", "需要字节", "占用字节", "满块", "未满", "空闲"], rows, title=title)

# %% key="fill_chart" lang="en"
from minikv.course.charts import lines

needed = {cached: needed for cached, needed, _ in steps}
taken = {cached: taken for cached, _, taken in steps}
marks = {"a second block": 17, "a third": 33}
show(lines({"taken": taken, "needed": needed}, x="tokens in the cache", y="bytes", steps=True, marks=marks))

# %% key="fill_chart" lang="zh"
from minikv.course.charts import lines

needed = {cached: needed for cached, needed, _ in steps}
taken = {cached: taken for cached, _, taken in steps}
marks = {"第二个块": 17, "第三个块": 33}
show(lines({"占用": taken, "需要": needed}, x="缓存里的 token", y="字节", steps=True, marks=marks))

# %% [markdown] key="read_table" lang="en"
# Each token needs 1,024 B, because 12,288 / 12 = 1,024. "Taken" counts the whole blocks that the sequence holds.
# Those blocks come out of the 98,304 B that the pool took when the engine was built, so the pool itself doesn't grow.
# At 16 tokens the first block is full and no other is in use.
# Token 17 needs a second block and leaves 15 of its slots empty, which is the step in the chart.
# After 30 steps the cache holds 41 tokens and not 42, because the model has chosen the last new token but hasn't read it yet.
# %% [markdown] key="read_table" lang="zh" src="fb987540"
# 每个 token 需要 1,024 B（12,288 / 12 = 1,024）；“占用”按序列持有的整块计算。
# 这些块都出自引擎建好时一次分配的 98,304 B，所以块池本身不会再变大。
# 填到 16 个 token，第一个块刚好满，别的块还没用到。
# 第 17 个 token 需要第二个块，而这个块还空着 15 个槽位，对应图中的那级台阶。
# 走完 30 步，缓存里有 41 个 token，而不是 42 个，因为最后一个 token 刚刚选出，还没有读入模型。

# %% [markdown] key="formula" lang="en"
# ## The formula
#
# Let's put that into three formulas: the blocks of a sequence, the slots that stay empty, and the tokens that fit into a pool.
#
# $$\text{blocks} = \left\lceil \frac{T}{B} \right\rceil \qquad \text{empty slots} = \text{blocks} \cdot B - T \qquad \text{pool tokens} = N \cdot B$$
#
# | symbol | what it is | value here |
# |---|---|---|
# | T | tokens of one sequence | 41 |
# | B | block size, in tokens | 16 |
# | N | blocks in the pool | 6 |
#
# $$\lceil 41 / 16 \rceil = 3 \qquad 3 \cdot 16 - 41 = 7 \qquad 6 \cdot 16 = 96$$
#
# The brackets mean that you round up, because a block that is only partly filled is still taken as a whole.
#
# Now the third formula on a real card: a model of 8 billion parameters on one H200.
# A block holds the K and V of 16 tokens in all layers, so N blocks hold N x 16 tokens.
# [Lesson 08](08_allocate_kv_cache.ipynb) explains where N comes from.
# %% [markdown] key="formula" lang="zh" src="4b09be44"
# ## 公式
#
# 把上面的观察写成三个公式，分别算一条序列占几个块、空着几个槽位，以及一个块池能放多少个 token。
#
# $$\text{块数} = \left\lceil \frac{T}{B} \right\rceil \qquad \text{空槽位} = \text{块数} \cdot B - T \qquad \text{块池可容纳的 token 数} = N \cdot B$$
#
# | 符号 | 含义 | 本例取值 |
# |---|---|---|
# | T | 一条序列的 token 数 | 41 |
# | B | 块大小，单位是 token | 16 |
# | N | 块池里的块数 | 6 |
#
# $$\lceil 41 / 16 \rceil = 3 \qquad 3 \cdot 16 - 41 = 7 \qquad 6 \cdot 16 = 96$$
#
# 第一个公式里的符号表示向上取整，因为一个块哪怕只填了一部分，也要整块占用。
#
# 再把第三个公式用到真实的显卡上，例如用一块 H200 跑 8B 模型。
# 一个块存放 16 个 token 在所有层的 K 和 V，所以 N 个块能放 N × 16 个 token。
# 至于 N 是怎么来的，[第 08 课](08_allocate_kv_cache.ipynb)再讲。

# %% key="answer" lang="en"
from minikv.plan import plan_memory

budget = plan_memory("Llama-3.1-8B", gpu="H200", block_size=16)
rows = [[16, budget.spec.block_bytes(16), budget.num_blocks, budget.max_tokens]]
Table(["block size", "bytes a block", "blocks", "tokens = blocks x 16"], rows)

# %% key="answer" lang="zh"
from minikv.plan import plan_memory

budget = plan_memory("Llama-3.1-8B", gpu="H200", block_size=16)
rows = [[16, budget.spec.block_bytes(16), budget.num_blocks, budget.max_tokens]]
Table(["块大小", "每块字节", "块数", "token 数 = 块数 × 16"], rows)

# %% key="predict_blocks"
predict("blocks_for", ...)

# %% [markdown] key="check_words" lang="en"
# ## Break it, and let `check` find it
#
# The function below divides but forgets to round up.
# `check` runs it on generated cases and prints a small one that fails.
# %% [markdown] key="check_words" lang="zh" src="4a7e228b"
# ## 弄坏它，让 `check` 来找
#
# 下面的函数做了除法，却忘了向上取整。
# `check` 会用自动生成的用例去试，并打印一个较小的出错用例。

# %% key="check_floor" lang="en"
def blocks_needed(num_tokens, block_size):
    return num_tokens // block_size      # wrong on purpose


check("00.2", blocks_needed)

# %% key="check_floor" lang="zh"
def blocks_needed(num_tokens, block_size):
    return num_tokens // block_size      # 故意写错


check("00.2", blocks_needed)

# %% [markdown] key="hints" lang="en"
# Hints come in three levels. The first names the mistake or its symptom, the second the rule that is broken, and the third says where to look.
# If the course knows your mistake, the hints are about that mistake.
# `seed=` draws other cases. If all students of a course choose the same seed, they work on the same numbers.
# %% [markdown] key="hints" lang="zh" src="6d19a4ba"
# 提示分三级，第一级说错在哪里或现象是什么，第二级说违反了哪条规则，第三级说该看哪里。
# 如果你犯的是课程已知的错误，提示就针对这个错误来写。
# 换一个 `seed=` 就换一批用例；全班约定同一个 seed，大家做的就是同一组数字。

# %% key="check_hint"
check("00.2", blocks_needed, hint=3, seed=5)

# %% [markdown] key="block_size" lang="en"
# ## How large should a block be?
#
# Below are five sequences of different lengths. The cell counts the blocks that they take together, for five block sizes.
# A block begins at every `size`-th token, so `range(0, length, size)` lists the first token of each block.
# %% [markdown] key="block_size" lang="zh" src="be1312b2"
# ## 块应该多大？
#
# 下面有五条长度不同的序列，单元格按五种块大小，统计它们一共占用多少个块。
# 每隔 `size` 个 token 就开始一个新块，所以 `range(0, length, size)` 列出的正是每个块的第一个 token。

# %% key="block_sizes" lang="en"
lengths, rows, share = [12, 41, 100, 700, 1500], [], {}  # tokens of five sequences
for size in [1, 16, 64, 256, 2048]:
    blocks = sum(len(range(0, length, size)) for length in lengths)
    empty = blocks * size - sum(lengths)
    share[size] = 100 * empty / (blocks * size)
    rows.append([size, blocks, empty, f"{share[size]:.1f}%"])
show(lines({"empty": share}, x="block size, tokens", y="% of the slots that are empty", log="x"))
Table(["block size", "blocks", "empty slots", "share empty"], rows, right=["share empty"])

# %% key="block_sizes" lang="zh"
lengths, rows, share = [12, 41, 100, 700, 1500], [], {}  # 五条序列的 token 数
for size in [1, 16, 64, 256, 2048]:
    blocks = sum(len(range(0, length, size)) for length in lengths)
    empty = blocks * size - sum(lengths)
    share[size] = 100 * empty / (blocks * size)
    rows.append([size, blocks, empty, f"{share[size]:.1f}%"])
show(lines({"空置": share}, x="块大小（token）", y="空槽位所占百分比", log="x"))
Table(["块大小", "块数", "空槽位", "空置比例"], rows, right=["空置比例"])

# %% [markdown] key="block_size_said" lang="en"
# With blocks of one token nothing stays empty, but the block table needs an entry for every token, and each entry has to be looked up when the cache is read.
# With blocks of 2,048 tokens each sequence reserves far more than it needs, and 77 % of the slots hold nothing.
# Sixteen lies between: 1.3 % stay empty. [Lesson 09](09_pages_and_blocks.ipynb) measures both sides.
#
# If you ask a widget for an impossible state, it raises an error instead of drawing it. The next cell tries 33 tokens in two blocks.
# Every error of the package has a code, the numbers, and a sentence that says what to change.
# %% [markdown] key="block_size_said" lang="zh" src="8124af45"
# 每块只放一个 token 时，一个槽位也不浪费，但块表里每个 token 都要占一项，读缓存时每一项都得查。
# 每块放 2,048 个 token 时，短序列也要占一整块，77% 的槽位空着。
# 16 是两者之间的折中，只空着 1.3%；[第 09 课](09_pages_and_blocks.ipynb)会把两边的代价都测出来。
#
# 如果状态不合法，组件会直接报错，而不是画一张错图。下一格就试着把 33 个 token 放进两个块。
# 程序包里的每个错误都带有代码、具体数字，以及解决办法。

# %% key="refused" lang="en"
from minikv.errors import MiniKVError

try:
    pool.add_step([SequenceBlocks("A", (3, 0), 33)])
except MiniKVError as error:
    refused = [[error.code, error.text("en")]]
Table(["code", "sentence"], refused)

# %% key="refused" lang="zh"
from minikv.errors import MiniKVError

try:
    pool.add_step([SequenceBlocks("A", (3, 0), 33)])
except MiniKVError as error:
    refused = [[error.code, error.text("zh")]]
Table(["代码", "说明"], refused)

# %% [markdown] key="check_yourself" lang="en"
# ## Recap
#
# A KV cache keeps K and V of every token that the model has read, which is 1,024 bytes a token in this small model.
# An engine cuts the cache into blocks: 41 tokens need 3 blocks of 16, and 7 slots stay empty.
# A pool of N blocks of 16 holds N x 16 tokens; on an H200 that is 892,496 tokens of Llama-3.1-8B.
# A smaller block wastes less memory and needs a longer block table: with 16 tokens a block, 1.3 % of the slots stay empty, with 2,048 it is 77 %.
# The label of a card is not the memory that you can use: on an A100 with 80 on it, torch sees 79.25 GiB.
#
# ## Check yourself
#
# Say the answers aloud, then compare with `reveal=True`.
# %% [markdown] key="check_yourself" lang="zh" src="bdccb9d8"
# ## 本课小结
#
# 模型每读入一个 token，KV 缓存就保存它的 K 和 V；在这个小模型里，每个 token 占 1,024 字节。
# 引擎把缓存切成块：41 个 token 需要 3 个 16 token 的块，空着 7 个槽位。
# 每块 16 个 token 时，N 个块能放 N × 16 个；在一块 H200 上，Llama-3.1-8B 能放 892,496 个。
# 块越小，浪费越少，块表越长：每块 16 个 token 时有 1.3% 的槽位空着，2,048 个时是 77%。
# 显卡的标称值不能当作可用容量，例如标称 80 的 A100，torch 可见的是 79.25 GiB。
#
# ## 自我检查
#
# 先把答案说出来，再加上 `reveal=True` 对照。

# %% key="explain"
explain("why_blocks")
explain("which_gb")
explain("what_is_free")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# Each lesson has a second notebook with its exercises, linked at the end of the lesson.
#
# | | you write | from |
# |---|---|---|
# | 00.1 | `bytes_of("80 GiB")` | the units above |
# | 00.2 | `blocks_needed(num_tokens, block_size)` | the first formula |
# | 00.3 | `empty_slots(lengths, block_size)` | the second, for several sequences |
# | 00.4 | `slot_of(position, block_table, block_size)` | the picture: which place in the pool holds this token? |
#
# A third notebook has the solutions. Open it when the third hint did not help.
# %% [markdown] key="exercises" lang="zh" src="c4a54339"
# ## 练习
#
# 每一课的练习在单独的 notebook 里，课末有链接。
#
# | | 你来写 | 依据 |
# |---|---|---|
# | 00.1 | `bytes_of("80 GiB")` | 上面讲的单位 |
# | 00.2 | `blocks_needed(num_tokens, block_size)` | 第一个公式 |
# | 00.3 | `empty_slots(lengths, block_size)` | 第二个公式，用于多条序列 |
# | 00.4 | `slot_of(position, block_table, block_size)` | 上面的图：这个 token 在块池的哪个位置？ |
#
# 参考答案又在另一个 notebook 里。看完第三级提示还没有头绪，再打开它。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | what to try | what it means |
# |---|---|---|
# | you see a picture where a live drawing should be | `minikv doctor` | a saved picture means that the cell has not run in this session, so run it. After installing a package, restart the kernel and reload the page. |
# | `not attempted`, although you wrote code | `import inspect; print(inspect.getsource(my_function))` | this prints what `check` sees. If `raise NotImplementedError` is still there, run the function's own cell again. |
# | sentences in the other language | read `start("00", lang=...)` in the first code cell | this one word decides for the notebook; `MINIKV_LANG=zh` decides for the command line |
# | an error that says too little | `error.code` and `error.values` | the code names the sentence, the values are the numbers in it |
# | installing is slow, or the hub can't be reached | `PIP_INDEX_URL=<your mirror>`, `HF_ENDPOINT=<your mirror>` | the first is for pip, the second for model weights of the Hugging Face hub. The lessons themselves download nothing. |
# %% [markdown] key="stuck" lang="zh" src="0cbc633f"
# ## 卡住了怎么办
#
# | 现象 | 怎么判断 | 说明什么 |
# |---|---|---|
# | 本该能操作的图只是一张图片 | `minikv doctor --lang zh` | 看到保存的图片，说明这一格在本次会话里还没有运行，运行一下即可。如果刚装了新包，请重启 Jupyter 内核并刷新页面。 |
# | 明明写了代码，却显示“尚未作答” | `import inspect; print(inspect.getsource(my_function))` | 打印出来的就是 `check` 看到的函数。如果里面还有 `raise NotImplementedError`，请重新运行函数所在的单元格。 |
# | 输出是另一种语言 | 看第一个代码单元格里的 `start("00", lang=...)` | notebook 的语言由它决定；命令行的语言由 `MINIKV_LANG=zh` 决定 |
# | 错误信息看不明白 | `error.code` 和 `error.values` | 代码对应那句话，values 是其中的数字 |
# | 安装很慢，或者连不上 Hugging Face | `PIP_INDEX_URL=<你的镜像>`、`HF_ENDPOINT=<你的镜像>` | 前者让 pip 改用 PyPI 镜像，后者让 transformers 改用 Hugging Face 镜像；权重也可以先从 ModelScope 下载到本地文件夹。各课本身不下载任何东西。 |
# | 打不开 Colab 或 GitHub | `minikv lab --lang zh` | 在自己的电脑上就能学完全部课程。想用 GPU，可以租 AutoDL 这类云主机，在上面同样 `pip install` 再运行 `minikv lab`；代码可以先导入 Gitee 再克隆。这些平台会变，我们没有逐一试过，以它们自己的说明为准。 |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# In May 2024 a user read the source of an inference server and asked what BLOCK_SIZE refers to, why it is 16, and why the number of tokens that fit is `num_blocks * BLOCK_SIZE` ([text-generation-inference issue 1883](https://github.com/huggingface/text-generation-inference/issues/1883)).
# "The formula" and "How large should a block be?" above answer the three questions.
#
# A pull request to a training library gives the example of a run that ["has used up 83 GB of memory on an 80 GB machine"](https://github.com/meta-pytorch/torchtune/pull/1348).
# "Units first" shows that both numbers can be true.
# %% [markdown] key="wild" lang="zh" src="b1b36bb1"
# ## 实战现场
#
# 2024 年 5 月，有用户在读一个推理服务的源码时提问，BLOCK_SIZE 指的是什么，为什么是 16，能容纳的 token 数又为什么等于 `num_blocks * BLOCK_SIZE`（[text-generation-inference issue 1883](https://github.com/huggingface/text-generation-inference/issues/1883)）。
# 上面“公式”和“块应该多大？”两节回答了这三个问题。
#
# 某个训练库的合并请求举例说，一次训练 ["has used up 83 GB of memory on an 80 GB machine"](https://github.com/meta-pytorch/torchtune/pull/1348)，意思是 80 GB 的机器用掉了 83 GB。
# “先说单位”一节说明，这两个数完全可以同时成立。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# [Lesson 01](01_why_a_cache.ipynb) takes the cache away from this small model and measures what it costs to compute every K and V again.
# From here you need one thing: each step after the prefill reads one token, and the cache grows by one token.
#
# ### How much time do you have?
#
# The minutes are the sums of those at the top of the lessons: reading at 200 words a minute, and the exercises. All lessons from 00 to 18 take about 16 hours.
#
# | you have | lessons | minutes |
# |---|---|---|
# | two hours | 00 → 02 → 08 | 100 |
# | a weekend | 00 → 01 → 02 → 03 → 04 → 07 → 08 → 09 → 11a → 11b → 16 → 17 | 505 |
# | six evenings, 1 | 00 → 01 → 02 → 02b | 125 |
# | six evenings, 2 | 03 → 04 → 06 | 115 |
# | six evenings, 3 | 07 → 08 → 16 | 135 |
# | six evenings, 4 | 09 → 10 | 120 |
# | six evenings, 5 | 11a → 11b → 11c → 13b | 130 |
# | six evenings, 6 | 13 → 14 → 17 | 125 |
#
# ### What do you want to do?
#
# | you want | lessons |
# |---|---|
# | to run inference in production | 02 → 02b → 03 → 07 → 16 → 08 → 09 → 11a → 11b → 12 → 13 → 13b → 17 |
# | to write kernels | 04 → 06 → 09 → 10 |
# | to drop tokens from the cache | 01 → 02 → 14 → 14b → 15 → 15b |
#
# A route names only the main line. The top of each lesson says which others it needs.
# If something is broken right now, open [the runbook](repo:docs/runbook.md): eleven symptoms, each with a command, how to read it, and a fix.
#
# ### All lessons
#
# | | lesson | the question |
# |---|---|---|
# | 00 | start here | what is on my machine, and how does this course work? |
# | 01 | [why a cache](01_why_a_cache.ipynb) | why does generation slow down without one? |
# | 02 | [how many bytes](02_how_many_bytes.ipynb) | what does one token cost? |
# | 02b | [layers that differ](02b_layers_that_differ.ipynb) | when is the formula not enough? |
# | 03 | [the 2.86x mistake](03_the_2_86x_mistake.ipynb) | why did the estimate miss by 2.86x? |
# | 04 | [the roofline](04_the_roofline.ipynb) | why does the GPU wait? |
# | 05 | [owned and borrowed](05_owned_and_borrowed.ipynb) | which object frees this memory? |
# | 06 | [the linear cache](06_the_linear_cache.ipynb) | what is the simplest cache? |
# | 07 | [allocate once](07_allocate_once.ipynb) | what does malloc cost per token? |
# | 08 | [allocate the KV cache](08_allocate_kv_cache.ipynb) | how many blocks fit? |
# | 09 | [pages and blocks](09_pages_and_blocks.ipynb) | which sequence owns block 7? |
# | 10 | [kernels](10_kernels.ipynb) | how does a GPU read a page table? |
# | 11a | [continuous batching](11a_continuous_batching.ipynb) | how do 256 requests share one cache? |
# | 11b | [when the blocks run out](11b_when_blocks_run_out.ipynb) | which sequence gives up its blocks? |
# | 11c | [your engine](11c_your_engine.ipynb) | does the engine that you wrote produce the right tokens? |
# | 12 | [beyond one GPU](12_beyond_one_gpu.ipynb) | what does each GPU keep? |
# | 13 | [half the bytes](13_half_the_bytes.ipynb) | what do fewer bytes cost? |
# | 13b | [fewer and cheaper steps](13b_fewer_cheaper_steps.ipynb) | how do steps get fewer and cheaper? |
# | 14 | [what to forget](14_what_to_forget.ipynb) | which tokens can go? |
# | 14b | [your own policy](14b_your_own_policy.ipynb) | can you choose better? |
# | 15 | [eviction on MLA](15_eviction_on_mla.ipynb) | what changes with a latent? |
# | 15b | [port it yourself](15b_port_it_yourself.ipynb) | how do you port eviction to your own model? |
# | 16 | [where did 6 GB go](16_where_did_6gb_go.ipynb) | what holds the memory after `generate()`? |
# | 17 | [a fleet on paper](17_a_fleet_on_paper.ipynb) | how many GPUs does this traffic need? |
# | 18 | [capstone](18_capstone.ipynb) | can you serve this load within this budget? |
# | A | [errata](A_errata.ipynb) | which numbers in the wild are wrong? |
# | B | [bug museum](B_bug_museum.ipynb) | which property would have caught it? |
# | C | [FAQ](C_faq.ipynb) | fifteen short questions, each answered by one call |
# | D | [other engines](D_other_engines.ipynb) | what do other engines call the same things? |
# | E | [cheat-sheet](E_cheat_sheet.ipynb) | which formula, and which call? |
# | F | [glossary](F_glossary.ipynb) | what does this word mean? |
# | G | [index](G_index.ipynb) | in which lesson is this option, error or word? |
# | GPU | [GPU lab](GPU_lab.ipynb) | what does my own card do? |
#
# ### Where your work lives
#
# `minikv lab` copies the course into the folder `minikv-course` and opens it in JupyterLab.
# Run it again after an update: it never overwrites a notebook that you changed, and saves the newer version next to it as `NAME.new.ipynb`.
# Every notebook exists in English and in Chinese. The link at its top leads to the other language, and `minikv lab --lang zh` starts in Chinese.
# %% [markdown] key="next" lang="zh" src="7c6cbfb4"
# ## 下一课
#
# [第 01 课](01_why_a_cache.ipynb)会拿掉这个小模型的缓存，看看每次重算全部 K 和 V 要付出多少代价。
# 你只需要记住，预填充之后，每一步读入一个 token，缓存也只增加一个 token。
#
# ### 你有多少时间？
#
# 分钟数是各课页首的分钟数之和，按每分钟读 350 个汉字算，含练习。从 00 到 18 全部学完，大约 16 小时。
#
# | 你有 | 课程 | 分钟 |
# |---|---|---|
# | 两个小时 | 00 → 02 → 08 | 100 |
# | 一个周末 | 00 → 01 → 02 → 03 → 04 → 07 → 08 → 09 → 11a → 11b → 16 → 17 | 505 |
# | 六个晚上，第 1 晚 | 00 → 01 → 02 → 02b | 125 |
# | 六个晚上，第 2 晚 | 03 → 04 → 06 | 115 |
# | 六个晚上，第 3 晚 | 07 → 08 → 16 | 135 |
# | 六个晚上，第 4 晚 | 09 → 10 | 120 |
# | 六个晚上，第 5 晚 | 11a → 11b → 11c → 13b | 130 |
# | 六个晚上，第 6 晚 | 13 → 14 → 17 | 125 |
#
# ### 你想做什么？
#
# | 目标 | 课程 |
# |---|---|
# | 在生产环境做推理 | 02 → 02b → 03 → 07 → 16 → 08 → 09 → 11a → 11b → 12 → 13 → 13b → 17 |
# | 写 kernel | 04 → 06 → 09 → 10 |
# | 淘汰缓存里的 token | 01 → 02 → 14 → 14b → 15 → 15b |
#
# 路线只列主线，每一课的页首写着它还要用到哪几课。
# 如果眼下就有故障要处理，请看[运行手册](repo:docs/runbook.zh.md)：十一种症状，各有一条命令、读法和解法。
#
# ### 全部课程
#
# | | 课 | 问题 |
# |---|---|---|
# | 00 | 从这里开始 | 我的机器上有什么？这门课怎么学？ |
# | 01 | [为什么要缓存](01_why_a_cache.ipynb) | 没有缓存，生成为什么越来越慢？ |
# | 02 | [多少字节](02_how_many_bytes.ipynb) | 一个 token 要花多少字节？ |
# | 02b | [不一样的层](02b_layers_that_differ.ipynb) | 什么时候只有公式还不够？ |
# | 03 | [2.86 倍的错误](03_the_2_86x_mistake.ipynb) | 估算为什么差了 2.86 倍？ |
# | 04 | [Roofline 模型](04_the_roofline.ipynb) | GPU 在等什么？ |
# | 05 | [拥有与借用](05_owned_and_borrowed.ipynb) | 这块内存由哪个对象释放？ |
# | 06 | [线性缓存](06_the_linear_cache.ipynb) | 最简单的缓存是什么样？ |
# | 07 | [只分配一次](07_allocate_once.ipynb) | 每个 token 调一次 malloc 要付出什么？ |
# | 08 | [分配 KV 缓存](08_allocate_kv_cache.ipynb) | 能放下多少个块？ |
# | 09 | [页与块](09_pages_and_blocks.ipynb) | 块 7 属于哪条序列？ |
# | 10 | [kernel](10_kernels.ipynb) | GPU 怎样读页表？ |
# | 11a | [连续批处理](11a_continuous_batching.ipynb) | 256 个请求怎样共用一份缓存？ |
# | 11b | [块用完的时候](11b_when_blocks_run_out.ipynb) | 块用完了，哪条序列让出来？ |
# | 11c | [你的引擎](11c_your_engine.ipynb) | 你写的引擎，输出的 token 对吗？ |
# | 12 | [不止一块 GPU](12_beyond_one_gpu.ipynb) | 每块 GPU 各存什么？ |
# | 13 | [一半的字节](13_half_the_bytes.ipynb) | 字节少了，代价是什么？ |
# | 13b | [更少更省的步](13b_fewer_cheaper_steps.ipynb) | 怎样让步数更少、每步更省？ |
# | 14 | [忘掉什么](14_what_to_forget.ipynb) | 哪些 token 可以不要？ |
# | 14b | [自己的策略](14b_your_own_policy.ipynb) | 你能选得更好吗？ |
# | 15 | [MLA 上的淘汰](15_eviction_on_mla.ipynb) | 换成潜在向量（latent）之后有什么不同？ |
# | 15b | [自己移植](15b_port_it_yourself.ipynb) | 怎样把淘汰移植到自己的模型？ |
# | 16 | [6 GB 去哪了](16_where_did_6gb_go.ipynb) | `generate()` 结束后，是什么还占着显存？ |
# | 17 | [纸上的集群](17_a_fleet_on_paper.ipynb) | 这些流量需要多少块 GPU？ |
# | 18 | [综合项目](18_capstone.ipynb) | 给定预算，你能承载这份负载吗？ |
# | A | [勘误](A_errata.ipynb) | 流传的数字里哪些是错的？ |
# | B | [bug 博物馆](B_bug_museum.ipynb) | 哪条性质能抓住它？ |
# | C | [常见问题（FAQ）](C_faq.ipynb) | 十五个问题，各用一次调用回答 |
# | D | [别的引擎](D_other_engines.ipynb) | 同样的东西，别的引擎叫什么？ |
# | E | [公式速查](E_cheat_sheet.ipynb) | 哪个公式，哪次调用？ |
# | F | [术语表](F_glossary.ipynb) | 这个词是什么意思？ |
# | G | [索引](G_index.ipynb) | 这个选项、报错或词在哪一课？ |
# | GPU | [GPU 实验课](GPU_lab.ipynb) | 我这块显卡实际表现如何？ |
#
# ### 你的作业保存在哪里
#
# `minikv lab --lang zh` 把课程复制到文件夹 `minikv-course`，并在 JupyterLab 里打开。
# 升级之后再运行一次就行，你改过的 notebook 不会被覆盖，新版本会另存为同目录下的 `NAME.new.ipynb`。
# 每个 notebook 都有中英文两版，页首的链接通往另一种语言；不加 `--lang zh` 就从英文版开始。
