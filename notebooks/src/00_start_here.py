# %% [meta]
# number = "00"
# slug = "start_here"
# rooms = ["cli", "course"]
# minutes = 50
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
# While a language model answers, it keeps something in memory for every token that it has read.
# **What is that memory, and why does an engine cut it into blocks of 16 tokens?**
#
# Run the next cell and watch: a small model answers a question, and its blocks fill.
# %% [markdown] key="question" lang="zh" src="95e245f3"
# ## 问题
#
# 语言模型回答问题时，每读入一个 token，都要在内存里留下一些东西。
# **这块内存是什么？推理引擎为什么把它切成每块 16 个 token 的块？**
#
# 运行下一个单元格，看着它：一个小模型在回答问题，它的块在填满。

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
# - **compute** the blocks of a sequence, the empty slots, and the tokens that a pool holds;
# - **use** the five functions of every lesson, and see what this machine can do.
#
# Thirty steps later the same request holds three blocks. This is the last picture that the monitor saw:
# %% [markdown] key="live_said" lang="zh" src="d4588b00"
# 学完本课，你能
#
# - **看懂**一个块池：哪些块满了，哪些没满，哪些空闲；
# - **算出**一条序列占几个块，空着几个槽位，一个块池能放多少 token；
# - **使用**每一课都有的五个函数，并看清这台机器能做什么。
#
# 走完 30 步，同一个请求占了三个块。这是监视器看到的最后一幕：

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
# `minikv doctor` in a terminal prints the lines below; here the same function is called from Python.
# `ok` is there, `note` is missing but the course runs without it, and `MISS` has to be installed.
# Your lines will differ from the ones saved here.
# %% [markdown] key="doctor" lang="zh" src="d311410f"
# ## 这台机器上有什么
#
# 在终端运行 `minikv doctor --lang zh`，得到的就是下面这些行；这里直接从 Python 调用同一个函数。
# `ok` 表示已就绪，`note` 表示没有它课程也能运行，`MISS` 表示必须安装。
# 你看到的内容会与这里保存的不同。

# %% key="examine" tags="hardware" lang="en"
from minikv.course.machine import examine

print(*(finding.line("en") for finding in examine()), sep="\n")

# %% key="examine" tags="hardware" lang="zh"
from minikv.course.machine import examine

print(*(finding.line("zh") for finding in examine()), sep="\n")

# %% [markdown] key="no_gpu" lang="en"
# No GPU is needed.
# Every lesson runs on a CPU, without a download; on a GPU the same cells measure the GPU.
# %% [markdown] key="no_gpu" lang="zh" src="89e4547b"
# 没有 GPU 也可以。
# 每一课都能在 CPU 上运行，也不下载任何东西；有 GPU 时，同样的单元格测量的就是 GPU。

# %% [markdown] key="words" lang="en"
# ## The five words of every lesson
#
# The first code cell of each notebook makes five functions.
#
# | word | what it does |
# |---|---|
# | `predict("key", ...)` | asks for a number before anything is shown; put your number in place of `...` |
# | `check("00.2", my_function)` | runs your function on generated cases, and prints a small one that fails |
# | `explain("key")` | asks you to say something in your own words; `reveal=True` shows a good answer and its points |
# | `show(widget)` | a live drawing here, a picture and text where nothing runs |
# | `t("key")` | a sentence in the notebook's language |
#
# A wrong answer costs nothing, so guess before you run the next cell.
# You remember best what you first guessed wrong.
# On Colab and on GitHub the results of an earlier run stand under the cells, the answers among them:
# on Colab, **Edit > Clear all outputs** takes them away. The copies that `minikv lab` opens have none.
# %% [markdown] key="words" lang="zh" src="50784e70"
# ## 每一课的五个函数
#
# 每个 notebook 的第一个代码单元格会准备好五个函数。
#
# | 函数 | 作用 |
# |---|---|
# | `predict("key", ...)` | 在看到结果之前先问你一个数字；把 `...` 换成你的估计 |
# | `check("00.2", my_function)` | 用生成的用例运行你的函数，打印一个较小的出错用例 |
# | `explain("key")` | 请你用自己的话讲清一件事；`reveal=True` 显示参考回答和要点 |
# | `show(widget)` | 这里显示可操作的图；不能运行代码的地方显示图片和文字 |
# | `t("key")` | 当前语言的一句话 |
#
# 答错没有任何代价，所以先猜，再运行下一个单元格。
# 猜错的数字，往往记得最牢。
# 在 Colab 和 GitHub 上，单元格下面保留着以前运行的结果，答案也在里面；Colab 上点**修改 > 清除所有输出**，就看不到了。
# `minikv lab` 打开的副本不带输出。

# %% [markdown] key="units" lang="en"
# ## Units first
#
# "83 GB used on an 80 GB card": it takes no bug to print that.
# The first number counts units of 10<sup>9</sup> bytes, and a card with 80 on its label has more of those than 80.
#
# Your first prediction. Replace `...` with a number, and run the cell again.
# %% [markdown] key="units" lang="zh" src="6b39d1b9"
# ## 先说单位
#
# “80 GB 的显卡用掉了 83 GB”，打印出这样的数字不一定是 bug。
# 前一个数以 10<sup>9</sup> 字节为单位，而标称 80 的显卡，实际显存不止 80 × 10<sup>9</sup> 字节。
#
# 第一道预测题。把 `...` 换成一个数字，再运行一次这个单元格。

# %% key="predict_label"
predict("label_gb", ...)

# %% [markdown] key="units_formula"
# $$\mathrm{GiB} = \mathrm{GB} \cdot \frac{10^9}{2^{30}}$$

# %% [markdown] key="units_words" lang="en"
# GB: units of 10<sup>9</sup> bytes. GiB: units of 2<sup>30</sup> bytes, which are 7.4 % more.
# MB and MiB are 4.9 % apart.
# In this course a whole number is always bytes; MiB and GiB appear only in print.
# %% [markdown] key="units_words" lang="zh" src="dae307d6"
# GB 以 10<sup>9</sup> 字节为单位，GiB 以 2<sup>30</sup> 字节为单位，后者大 7.4%。
# MB 与 MiB 相差 4.9%。
# 本课程里，整数一律是字节；MiB 和 GiB 只在打印时出现。

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
# And the label on the box?
# The catalogue keeps it beside the bytes that torch sees.
# Those are as one public log printed them, rounded to 0.01 GiB (`gpu.total_rounded_to`, in bytes); yours may differ.
# %% [markdown] key="labels" lang="zh" src="df5c8390"
# 那么包装上的标称值呢？
# 目录里同时记着标称值和 torch 可见的字节数。
# 后者取自公开日志，每块显卡取一份，精确到 0.01 GiB（`gpu.total_rounded_to`，单位是字节）；你的机器上可能不同。

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
# All figures but the labels are GiB.
# An H200 shows torch more than its 141 GB would be, and less than 141 GiB.
# A T4 shows less than either.
# An A100 with 80 on its label shows 79.25 GiB, so 77.3 GiB in use are no contradiction.
#
# The number on the box doesn't convert cleanly to bytes, so we never calculate with it.
# On a GPU of your own, `torch.cuda.mem_get_info()[1]` is the number to use.
# %% [markdown] key="labels_said" lang="zh" src="f0211e39"
# 除标称值以外，表中的数字都是 GiB。
# H200 上 torch 可见的显存，比 141 GB 多，比 141 GiB 少。
# T4 则比两种理解都少。
# 标称 80 的 A100 可见 79.25 GiB，所以用掉 77.3 GiB 并不矛盾。
#
# 包装上的数字不能干净地换算成字节，所以我们从不用它计算。
# 自己的 GPU 请以 `torch.cuda.mem_get_info()[1]` 为准。

# %% [markdown] key="sixty" lang="en"
# ## What you saw: a model answers, and its blocks fill
#
# A language model reads **tokens**, pieces of text; for the small model above each word is one.
# In every layer it keeps two vectors of every token, its key K and its value V, so it doesn't have to compute them again.
# That memory is the **KV cache**; [lesson 01](01_why_a_cache.ipynb) shows what happens without one.
#
# The model came with the package: two layers, trained in 18 minutes on one CPU thread, for one task.
# It reads names and cities with other words between them, then a question mark and a name, and says the city that stood behind that name.
# The right city appears only in the prompt, so the model has to look it up.
# %% [markdown] key="sixty" lang="zh" src="c1321537"
# ## 刚才看到的：模型在回答，块在填满
#
# 语言模型读入的是一个个 **token**，每个都是一小段文本；对上面的小模型来说，一个词就是一个 token。
# 模型的每一层都会为每个 token 留下两个向量：K（key，键）和 V（value，值），这样就不用再算一遍。
# 存放它们的就是 **KV 缓存**（KV cache）；没有它会怎样，[第 01 课](01_why_a_cache.ipynb)见分晓。
#
# 这个模型随包一起安装：只有两层，用一个 CPU 线程训练了 18 分钟，只会做一件事。
# 它读入一些人名和城市，中间夹着别的词；最后是一个问号和一个人名，它要说出跟在这个人名后面的城市。
# 正确的城市只出现在提示词里，所以模型必须回头去找。

# %% key="model" lang="en"
said = "".join(words).strip()
Table(["prompt", "answer", "right"], [[asked.text, said.split()[0], asked.answer]], lines=[said])

# %% key="model" lang="zh"
said = "".join(words).strip()
Table(["提示词", "回答", "正确答案"], [[asked.text, said.split()[0], asked.answer]], lines=[said])

# %% [markdown] key="generate_words" lang="en"
# The first word is the answer.
# After it the model goes on as it was taught, with questions that it answers itself; soon it repeats one of them.
#
# The prompt is these 11 words and one token in front of them, `<bos>`, which marks the beginning: 12 tokens.
#
# `LLM` is the engine of this course; here it serves one request.
# Its first step reads the whole prompt (**prefill**), each later step reads the one newest token (**decode**).
# Every step ends with a new token.
# %% [markdown] key="generate_words" lang="zh" src="d9e9a193"
# 第一个词就是答案。
# 之后模型照训练时的样子往下写，自问自答，不久就开始重复同一个问题。
#
# 提示词（prompt）就是这 11 个词，最前面再加一个表示开头的 `<bos>`，一共 12 个 token。
#
# `LLM` 是本课程的推理引擎，这里只为一个请求服务。
# 第一步读入整个提示词，叫**预填充**（prefill）；之后每一步只读最新的一个 token，叫**解码**（decode）。
# 每一步结束时都得到一个新 token。

# %% key="predict_tokens"
predict("tokens_cached", ...)

# %% [markdown] key="blocks_words" lang="en"
# The engine does not let each cache grow on its own.
# It cuts one large piece of memory into **blocks** of equal size, here 16 tokens each, and hands them out as tokens arrive.
# The **block table** of a sequence lists its blocks in the order of its tokens.
#
# Here are 41 tokens in such a pool, each in its **slot**; the arrows are the block table:
# %% [markdown] key="blocks_words" lang="zh" src="e20c9608"
# 引擎不会让每条序列的缓存各自增长。
# 它把一大块内存切成同样大小的**块**（block），这里每块 16 个 token，随 token 到来逐个分配。
# 每条序列有一张**块表**（block table），按 token 的顺序列出它的块。
#
# 下面是这样一个块池里的 41 个 token，每个都在自己的**槽位**（slot）里；箭头就是块表：

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
# Now the same request once more, a step at a time.
# After each step we ask the engine which blocks the sequence holds, and `CacheSpec` what its tokens need.
# %% [markdown] key="fill_words" lang="zh" src="71922cdb"
# 同一个请求再来一遍，这次一步一步走。
# 每一步之后，我们问引擎这条序列占着哪些块，再问 `CacheSpec` 这些 token 需要多少字节。

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
llm.abort(name)  # its blocks go back to the pool

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
llm.abort(name)  # 它的块都归还

# %% [markdown] key="pool_words" lang="en"
# The replay begins at step 0, with an empty pool.
# Press Play, or focus the slider and use the arrow keys.
# %% [markdown] key="pool_words" lang="zh" src="78bc7a28"
# 回放从第 0 步开始，这时块池是空的。
# 按“播放”，或选中滑块后用方向键查看每一步。

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
show(lines({"taken": taken, "needed": needed}, x="tokens in the cache", y="bytes", marks=marks))

# %% key="fill_chart" lang="zh"
from minikv.course.charts import lines

needed = {cached: needed for cached, needed, _ in steps}
taken = {cached: taken for cached, _, taken in steps}
marks = {"第二个块": 17, "第三个块": 33}
show(lines({"占用": taken, "需要": needed}, x="缓存里的 token", y="字节", marks=marks))

# %% [markdown] key="read_table" lang="en"
# The cache took all of its memory when the engine was built, and takes no byte more while it fills.
# At 16 tokens the first block is full, and no other is in use.
# Token 17 takes a whole new block, and 15 of its slots are empty: the step in the chart.
# After 30 steps the cache holds 41 tokens and not 42: the last new token was chosen, but the model has not read it yet.
# %% [markdown] key="read_table" lang="zh" src="dfd8a41b"
# 建好引擎时，缓存就把内存一次占足，填充的过程中一个字节也不再增加。
# 到 16 个 token 时，第一个块填满，还没有用到别的块。
# 第 17 个 token 占用一个新块，其中 15 个槽位空着，也就是图中的那一级台阶。
# 30 步之后，缓存里是 41 个 token，不是 42 个：最后选出的 token 还没有送进模型。

# %% [markdown] key="formula" lang="en"
# ## The formula
#
# $$\text{blocks} = \left\lceil \frac{T}{B} \right\rceil \qquad \text{empty slots} = \text{blocks} \cdot B - T \qquad \text{pool tokens} = N \cdot B$$
#
# | symbol | what it is | above |
# |---|---|---|
# | T | tokens of one sequence | 41 |
# | B | block size, in tokens | 16 |
# | N | blocks in the pool | 6 |
#
# $$\lceil 41 / 16 \rceil = 3 \qquad 3 \cdot 16 - 41 = 7 \qquad 6 \cdot 16 = 96$$
#
# The third formula on a real card: a model of 8 billion parameters on one H200.
# A block holds the K and V of 16 tokens in all layers, so N blocks hold N x 16 tokens.
# Where N comes from is the subject of [lesson 08](08_allocate_kv_cache.ipynb).
# %% [markdown] key="formula" lang="zh" src="68ee4b46"
# ## 公式
#
# $$\text{块数} = \left\lceil \frac{T}{B} \right\rceil \qquad \text{空槽位} = \text{块数} \cdot B - T \qquad \text{块池可容纳的 token 数} = N \cdot B$$
#
# | 符号 | 含义 | 上面的取值 |
# |---|---|---|
# | T | 一条序列的 token 数 | 41 |
# | B | 块大小，单位是 token | 16 |
# | N | 块池里的块数 | 6 |
#
# $$\lceil 41 / 16 \rceil = 3 \qquad 3 \cdot 16 - 41 = 7 \qquad 6 \cdot 16 = 96$$
#
# 再把第三个公式用到真实的显卡上：一块 H200 上的 8B 模型。
# 一个块存放 16 个 token 在所有层的 K 和 V，所以 N 个块能放 N × 16 个 token。
# N 从哪里来，[第 08 课](08_allocate_kv_cache.ipynb)再讲。

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
# This function divides and forgets to round up.
# `check` runs it on generated cases, and prints a small one that fails.
# %% [markdown] key="check_words" lang="zh" src="42280ffd"
# ## 弄坏它，让 `check` 来找
#
# 下面的函数只做除法，忘了向上取整。
# `check` 用生成的用例运行它，并打印一个较小的出错用例。

# %% key="check_floor" lang="en"
def blocks_needed(num_tokens, block_size):
    return num_tokens // block_size      # wrong on purpose


check("00.2", blocks_needed)

# %% key="check_floor" lang="zh"
def blocks_needed(num_tokens, block_size):
    return num_tokens // block_size      # 故意写错


check("00.2", blocks_needed)

# %% [markdown] key="hints" lang="en"
# Hints come in three levels: 1 the symptom, 2 the rule that is broken, 3 where to look.
# They speak about your mistake if the course knows it.
# `seed=` draws other cases; a class that agrees on a seed works on the same numbers.
# %% [markdown] key="hints" lang="zh" src="02d1bf5a"
# 提示分三级：1 是现象，2 是被破坏的规则，3 是该看哪里。
# 如果课程认得你的错误，提示就针对它。
# `seed=` 会换一批用例；全班约定同一个 seed，做的就是同一组数字。

# %% key="check_hint"
check("00.2", blocks_needed, hint=3, seed=5)

# %% [markdown] key="block_size" lang="en"
# Now change the block size.
# Five sequences wait below; the cell counts what they take together.
# A block begins at every `size`-th token, so `range(0, length, size)` lists the beginnings, one a block.
# %% [markdown] key="block_size" lang="zh" src="31a88863"
# 再改块大小。
# 下面有五条序列，单元格统计它们一共占用多少。
# 每隔 `size` 个 token 开始一个新块，所以 `range(0, length, size)` 列出的就是各块的起点，一块一个。

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
# With blocks of one token nothing is empty, but the block tables have an entry for every token, and each has to be looked up when the cache is read.
# With blocks of 2,048 each sequence reserves its longest case, and three quarters of the pool hold nothing.
# Sixteen lies between; [lesson 09](09_pages_and_blocks.ipynb) measures both sides.
#
# If a state is impossible, the widget raises an error instead of drawing it.
# Every error of the package has a code, the numbers, and the way out.
# %% [markdown] key="block_size_said" lang="zh" src="350f741f"
# 每块一个 token 时没有空槽位，可块表里每个 token 都要占一项，读缓存时每一项都要查。
# 每块 2,048 个 token 时，每条序列都按最长情况预留，块池有四分之三空着。
# 16 介于两者之间；[第 09 课](09_pages_and_blocks.ipynb)会把两边都测出来。
#
# 如果状态不合法（例如块表装不下这些 token），组件会直接报错，而不是画一张错图。
# 这个包的每个错误都有代码、具体数字和解决办法。

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
# A KV cache keeps K and V of every token that was read: 1,024 bytes a token in this small model.
# An engine cuts it into blocks: 41 tokens need 3 blocks of 16, and 7 slots stay empty.
# A pool of N blocks holds N x 16 tokens; on an H200 that is 892,496 tokens of Llama-3.1-8B.
# The label of a card is a name: torch sees 79.25 GiB on an A100 with 80 on it.
#
# ## Check yourself
#
# Say the answers aloud, then compare with `reveal=True`.
# %% [markdown] key="check_yourself" lang="zh" src="ccb78555"
# ## 本课小结
#
# KV 缓存为每个读入的 token 保存 K 和 V：在这个小模型里，每个 token 1,024 字节。
# 引擎把它切成块：41 个 token 需要 3 个 16 token 的块，空着 7 个槽位。
# N 个块能放 N × 16 个 token；在 H200 上，Llama-3.1-8B 能放 892,496 个。
# 显卡的标称值只是名字：标称 80 的 A100，torch 可见 79.25 GiB。
#
# ## 自我检查
#
# 先说出答案，再用 `reveal=True` 对照。

# %% key="explain"
explain("why_blocks")
explain("which_gb")
explain("what_is_free")

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# In May 2024 a user read the source of an inference server and asked what BLOCK_SIZE refers to, why it is 16, and why the number of tokens that fit is `num_blocks * BLOCK_SIZE` ([text-generation-inference issue 1883](https://github.com/huggingface/text-generation-inference/issues/1883)).
# "The formula" above answers that with one call.
#
# A pull request to a training library gives the example of a run that ["has used up 83 GB of memory on an 80 GB machine"](https://github.com/meta-pytorch/torchtune/pull/1348).
# "Units first" shows that both numbers can be true.
# %% [markdown] key="wild" lang="zh" src="387b56b0"
# ## 实战现场
#
# 2024 年 5 月，有用户读了一个推理服务的源码，问 BLOCK_SIZE 指什么，为什么是 16，以及能容纳的 token 数为什么等于 `num_blocks * BLOCK_SIZE`（[text-generation-inference issue 1883](https://github.com/huggingface/text-generation-inference/issues/1883)）。
# 上面“公式”一节用一次函数调用就回答了。
#
# 一个训练库的合并请求举例说，某次训练 ["has used up 83 GB of memory on an 80 GB machine"](https://github.com/meta-pytorch/torchtune/pull/1348)，也就是 80 GB 的机器用掉了 83 GB。
# “先说单位”一节说明，这两个数可以同时是真的。

# %% [markdown] key="exercises" lang="en"
# The exercises are a notebook of their own, linked at the end of each lesson.
#
# | | you write | from |
# |---|---|---|
# | 00.1 | `bytes_of("80 GiB")` | the units above |
# | 00.2 | `blocks_needed(num_tokens, block_size)` | the first formula |
# | 00.3 | `empty_slots(lengths, block_size)` | the second, for a batch |
# | 00.4 | `slot_of(position, block_table, block_size)` | the picture: which place in the pool holds this token? |
#
# Each has a solution in the solutions notebook; open it when the third hint did not help.
# %% [markdown] key="exercises" lang="zh" src="35320ec2"
# 练习在单独的 notebook 里，每一课末尾都有链接。
#
# | | 你来写 | 依据 |
# |---|---|---|
# | 00.1 | `bytes_of("80 GiB")` | 上面的单位 |
# | 00.2 | `blocks_needed(num_tokens, block_size)` | 第一个公式 |
# | 00.3 | `empty_slots(lengths, block_size)` | 第二个公式，用于一批序列 |
# | 00.4 | `slot_of(position, block_table, block_size)` | 上面的图：这个 token 在块池的哪个位置？ |
#
# 参考答案也有单独的 notebook；看过第三级提示仍没有头绪，再打开它。

# %% [markdown] key="keep" lang="en"
# ## Where your work lives
#
# `minikv lab` copies the course into the folder `minikv-course` and opens it in JupyterLab.
# Run it again after an update: a notebook that you changed is never overwritten, and the newer version is put beside it as `NAME.new.ipynb`.
# Every notebook exists in English and in Chinese; the link at its top leads to the other language, and `minikv lab --lang zh` starts in Chinese.
# %% [markdown] key="keep" lang="zh" src="dbf971ad"
# ## 你的作业保存在哪里
#
# `minikv lab --lang zh` 把课程复制到文件夹 `minikv-course`，并在 JupyterLab 里打开。
# 升级之后再运行一次即可：你改过的 notebook 不会被覆盖，新版本会另存为同目录下的 `NAME.new.ipynb`。
# 每个 notebook 都有中英文两版，顶部的链接通往另一种语言；去掉 `--lang zh` 就从英文版开始。

# %% [markdown] key="routes" lang="en"
# ## Routes
#
# | you have or want | lessons |
# |---|---|
# | a first evening | 00 → 01 → 02 → 08 |
# | to run inference in production | 02 → 02b → 03 → 07 → 16 → 08 → 09 → 11a → 11b → 12 → 13 → 13b → 17 |
# | to write kernels | 04 → 06 → 09 → 10 |
# | to drop tokens from the cache | 01 → 02 → 14 → 14b → 15 → 15b |
#
# A route names the main line only: the top of each lesson says which others it needs.
#
# | | lesson | the question |
# |---|---|---|
# | 00 | start here | what is on my machine, and how does this course work? |
# | 01 | [why a cache](01_why_a_cache.ipynb) | why does generation slow down without one? |
# | 02 | [how many bytes](02_how_many_bytes.ipynb) | what does one token cost? |
# | 02b | [layers that differ](02b_layers_that_differ.ipynb) | when is the formula not enough? |
# | 03 | [the 2.86x mistake](03_the_2_86x_mistake.ipynb) | why did the estimate miss by 2.86x? |
# | 04 | [the roofline](04_the_roofline.ipynb) | why does the GPU wait? |
# | 05 | [owned and borrowed](05_owned_and_borrowed.ipynb) | who frees this memory? |
# | 06 | [the linear cache](06_the_linear_cache.ipynb) | what is the simplest cache? |
# | 07 | [allocate once](07_allocate_once.ipynb) | what does malloc cost per token? |
# | 08 | [allocate the KV cache](08_allocate_kv_cache.ipynb) | how many blocks fit? |
# | 09 | [pages and blocks](09_pages_and_blocks.ipynb) | who owns block 7? |
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
# | 16 | [where did 6 GB go](16_where_did_6gb_go.ipynb) | who holds the memory after `generate()`? |
# | 17 | [a fleet on paper](17_a_fleet_on_paper.ipynb) | how many GPUs does this traffic need? |
# | 18 | [capstone](18_capstone.ipynb) | can you serve this load within this budget? |
# | A | [errata](A_errata.ipynb) | which numbers in the wild are wrong? |
# | B | [bug museum](B_bug_museum.ipynb) | which property would have caught it? |
# | C | [short questions](C_faq.ipynb) | fifteen of them, each answered by one call |
# | D | [other engines](D_other_engines.ipynb) | nine tenths of what? The same words elsewhere |
# | E | [cheat-sheet](E_cheat_sheet.ipynb) | which formula, and which call? |
# | F | [glossary](F_glossary.ipynb) | what does this word mean? |
#
# Something is broken now? [The runbook](repo:docs/runbook.md): ten symptoms, each with a command, how to read it, and a fix.
# %% [markdown] key="routes" lang="zh" src="e4e41192"
# ## 学习路线
#
# | 你的情况 | 课程 |
# |---|---|
# | 第一个晚上 | 00 → 01 → 02 → 08 |
# | 在生产环境做推理 | 02 → 02b → 03 → 07 → 16 → 08 → 09 → 11a → 11b → 12 → 13 → 13b → 17 |
# | 想写 kernel | 04 → 06 → 09 → 10 |
# | 想淘汰缓存里的 token | 01 → 02 → 14 → 14b → 15 → 15b |
#
# 路线只列主线；每一课开头的表格里，写着它还要用到哪几课。
#
# | | 课 | 问题 |
# |---|---|---|
# | 00 | 从这里开始 | 我的机器上有什么？这门课怎么学？ |
# | 01 | [为什么要缓存](01_why_a_cache.ipynb) | 没有缓存，生成为什么越来越慢？ |
# | 02 | [多少字节](02_how_many_bytes.ipynb) | 一个 token 要花多少字节？ |
# | 02b | [不一样的层](02b_layers_that_differ.ipynb) | 什么时候只有公式还不够？ |
# | 03 | [2.86 倍的错误](03_the_2_86x_mistake.ipynb) | 估算为什么差了 2.86 倍？ |
# | 04 | [Roofline 模型](04_the_roofline.ipynb) | GPU 在等什么？ |
# | 05 | [拥有与借用](05_owned_and_borrowed.ipynb) | 这块内存由谁释放？ |
# | 06 | [线性缓存](06_the_linear_cache.ipynb) | 最简单的缓存是什么样？ |
# | 07 | [只分配一次](07_allocate_once.ipynb) | 每个 token 调一次 malloc 要付出什么？ |
# | 08 | [分配 KV 缓存](08_allocate_kv_cache.ipynb) | 能放下多少个块？ |
# | 09 | [页与块](09_pages_and_blocks.ipynb) | 块 7 属于谁？ |
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
# | 16 | [6 GB 去哪了](16_where_did_6gb_go.ipynb) | `generate()` 结束后，是谁还占着显存？ |
# | 17 | [纸上的集群](17_a_fleet_on_paper.ipynb) | 这些流量需要多少块 GPU？ |
# | 18 | [综合项目](18_capstone.ipynb) | 给定预算，你能承载这份负载吗？ |
# | A | [勘误](A_errata.ipynb) | 流传的数字里哪些是错的？ |
# | B | [bug 博物馆](B_bug_museum.ipynb) | 哪条性质能抓住它？ |
# | C | [短问短答](C_faq.ipynb) | 十五个问题，各用一次调用回答 |
# | D | [别的引擎](D_other_engines.ipynb) | 0.9 是谁的十分之九？同样的词在别处 |
# | E | [公式速查](E_cheat_sheet.ipynb) | 哪个公式，哪次调用？ |
# | F | [术语表](F_glossary.ipynb) | 这个词是什么意思？ |
#
# 眼下就出了故障？见[运行手册](repo:docs/runbook.zh.md)：十种症状，各有一条命令、读法和解法。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides | what it means |
# |---|---|---|
# | a picture where a live drawing should be | `minikv doctor` | a saved picture means that the cell has not run in this session: run it. After installing a package, restart the kernel and reload the page. |
# | `not attempted`, although you wrote code | `import inspect; print(inspect.getsource(my_function))` | it prints what `check` sees: if `raise NotImplementedError` is still there, run the function's own cell again |
# | sentences in the other language | read `start("00", lang=...)` in the first code cell | this one word decides for the notebook; `MINIKV_LANG=zh` decides for the command line |
# | an error that says too little | `error.code` and `error.values` | the code names the sentence, the values are the numbers in it |
# %% [markdown] key="stuck" lang="zh" src="5e4b0082"
# ## 卡住了怎么办
#
# | 现象 | 用什么判断 | 结论 |
# |---|---|---|
# | 本该能操作的图只是一张图片 | `minikv doctor --lang zh` | 看到保存的图片，说明这个单元格在本次会话里还没运行：运行它。如果刚装了新包，请重启 Jupyter 内核并刷新页面。 |
# | 明明写了代码，却显示“尚未作答” | `import inspect; print(inspect.getsource(my_function))` | 打印的就是 `check` 看到的函数：如果里面还有 `raise NotImplementedError`，请重新运行函数所在的单元格 |
# | 输出是另一种语言 | 看第一个代码单元格里的 `start("00", lang=...)` | notebook 的语言由这里决定；命令行的语言由 `MINIKV_LANG=zh` 决定 |
# | 错误信息看不明白 | `error.code` 和 `error.values` | 代码对应那句话，values 是其中的数字 |

# %% [markdown] key="next" lang="en"
# ## What the next lesson needs
#
# [Lesson 01](01_why_a_cache.ipynb) takes the cache away from this small model, and measures what it costs to compute every K and V again.
# From here it needs one thing: each step after the prefill reads one token and adds one token to the cache.
# %% [markdown] key="next" lang="zh" src="2948b101"
# ## 下一课要用到什么
#
# [第 01 课](01_why_a_cache.ipynb)拿走这个小模型的缓存，测量每次重算全部 K 和 V 要付出多少代价。
# 你只需要记住一点：预填充之后，每一步读入一个 token，缓存也只增加一个 token。
