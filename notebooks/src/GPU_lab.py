# %% [meta]
# number = "GPU"
# slug = "lab"
# needs = ["08", "11a"]
# rooms = ["models.random_weights", "engine", "memory"]
# [title]
# en = "What does my own card do? The GPU lab"
# zh = "我这块显卡实际表现如何？GPU 实验课"
# [t4]
# en = "Everything runs on the T4, with a model of Qwen3-0.6B's shape in fp16. Its kernels read fp8 as copies."
# zh = "全部在 T4 上运行，模型是 Qwen3-0.6B 的形状，fp16。T4 的 kernel 要先复制才能读 fp8。"

# %% [markdown] key="question" lang="en"
# ## The question
#
# The other lessons compute what a card should do. **How much of it does your own card really do?**
#
# You need no checkpoint. The lab builds a model with random weights, as large as your card allows. Without a GPU it builds a toy, every cell still runs, and says what only a GPU shows.
# %% [markdown] key="question" lang="zh" src="53231dba"
# ## 问题
#
# 别的课计算显卡应该做到什么。**你自己的显卡，实际做到了多少？**
#
# 不需要下载模型。这一课按你的显卡有多大，用随机权重建一个模型。没有 GPU 时建一个玩具模型，每个单元格照样能跑，并说明哪些只有 GPU 才看得到。

# %% key="cards" lang="en"
from minikv.course.charts import bars
from minikv.course.lessons.lgpu.card import KNOWN, find_card, gpu_card

cards = {name: gpu_card(name, *figures) for name, figures in KNOWN.items()}
shares = [each.shares(step_bytes=2**30, outside=2**30) for each in cards.values()]
labels = {"weights": "weights", "step": "largest step", "outside": "outside torch", "kv": "KV cache", "free": "kept free"}
series = {label: [round(share[key] / 2**30, 1) for share in shares] for key, label in labels.items()}
show(bars(list(cards), series, x="GiB", stacked=True, looks=("weights", "activations", "shared", "k", "free")))
# %% key="cards" lang="zh"
from minikv.course.charts import bars
from minikv.course.lessons.lgpu.card import KNOWN, find_card, gpu_card

cards = {name: gpu_card(name, *figures) for name, figures in KNOWN.items()}
shares = [each.shares(step_bytes=2**30, outside=2**30) for each in cards.values()]
labels = {"weights": "权重", "step": "最大的一步", "outside": "torch 之外", "kv": "KV 缓存", "free": "留空"}
series = {label: [round(share[key] / 2**30, 1) for share in shares] for key, label in labels.items()}
show(bars(list(cards), series, x="GiB", stacked=True, looks=("weights", "activations", "shared", "k", "free")))

# %% [markdown] key="able" lang="en"
# The bars are computed: weights from the shape, and 1 GiB each assumed for the largest step and for what lies outside torch (the CUDA context, other processes).
#
# After this lesson you can
#
# - **predict** the bytes of a model and of its cache on your card, and read them back;
# - **measure** a decode step, and say how far it is from the card's bandwidth;
# - **survive** an out-of-memory error, and read its figures.
#
# You should know how an engine sizes its cache ([lesson 08](08_allocate_kv_cache.ipynb)) and what a step is ([lesson 11a](11a_continuous_batching.ipynb)).
# %% [markdown] key="able" lang="zh" src="dcd2f33f"
# 图里的数字是算出来的。权重由模型形状算出，最大的一步和 torch 之外的部分（CUDA 上下文、其他进程）各假定 1 GiB。
#
# 学完本课，你能够
#
# - **预测**模型和缓存在你的显卡上占多少字节，再读出来对照；
# - **测量**一步解码，说出离显卡的带宽还有多远；
# - **扛过**一次显存不足，读懂报错里的数字。
#
# 需要先了解引擎怎样确定缓存大小（[第 08 课](08_allocate_kv_cache.ipynb)），以及一步是什么（[第 11a 课](11a_continuous_batching.ipynb)）。

# %% [markdown] key="model" lang="en"
# ## A model of the right size
#
# A card of 40 GB or more gets the shape of Qwen3-8B, a smaller one that of Qwen3-0.6B. The random weights are made on the card itself, in its own 16-bit dtype, so they never pass through the host. Predict their bytes first:
# %% [markdown] key="model" lang="zh" src="2193c3c8"
# ## 大小合适的模型
#
# 40 GB 及以上的显卡用 Qwen3-8B 的形状，更小的用 Qwen3-0.6B 的形状。权重直接在显卡上用 16 位类型生成，不经过主机。先预测它占多少字节：

# %% key="predict_weights"
predict("weights", ...)

# %% key="build" tags="hardware" lang="en"
import torch

from minikv.course import Table
from minikv.models import random_model

torch.set_num_threads(1)  # on a CPU the toy is too small for more of them
card = find_card()
model = random_model(card.shape, card.device, card.dtype)
read = sum(each.nbytes for each in model.parameters())
rows = [(card.name, card.shape.name, card.shape.parameters, card.dtype.itemsize, card.weight_bytes, read)]
Table(["card", "shape", "weights", "B each", "predicted, B", "read, B"], rows)
# %% key="build" tags="hardware" lang="zh"
import torch

from minikv.course import Table
from minikv.models import random_model

torch.set_num_threads(1)  # 在 CPU 上，玩具模型太小，线程多了反而慢
card = find_card()
model = random_model(card.shape, card.device, card.dtype)
read = sum(each.nbytes for each in model.parameters())
rows = [(card.name, card.shape.name, card.shape.parameters, card.dtype.itemsize, card.weight_bytes, read)]
Table(["显卡", "形状", "权重个数", "每个（B）", "预测（B）", "读到（B）"], rows)

# %% [markdown] key="fill" lang="en"
# ## Fill the card
#
# `LLM(model)` runs its largest step once, and gives the cache what is left of 90 % of the card. How many sequences of 4,096 tokens is that?
# %% [markdown] key="fill" lang="zh" src="4f97b4a7"
# ## 把显卡装满
#
# `LLM(model)` 先把最大的一步跑一遍，再把显卡的 90% 里剩下的部分都给缓存。这能放下多少条 4,096 个 token 的序列？

# %% key="predict_sequences"
predict("sequences", ...)

# %% key="plan" tags="hardware" lang="en"
from minikv.course.lessons.lgpu.measure import started

llm, first_start = started(model, card)
llm.allocation.shown("en")
# %% key="plan" tags="hardware" lang="zh"
from minikv.course.lessons.lgpu.measure import started

llm, first_start = started(model, card)
llm.allocation.shown("zh")

# %% [markdown] key="report" lang="en"
# The plan was made before the cache. The report reads the device afterwards, and its rows add up:
# %% [markdown] key="report" lang="zh" src="393409f7"
# 上面是建缓存之前的计划。下面的报告是建好之后读设备得到的，各行加起来正好是总数：

# %% key="report_table" tags="hardware" lang="en"
llm.memory_report().shown("en")
# %% key="report_table" tags="hardware" lang="zh"
llm.memory_report().shown("zh")

# %% key="fits" tags="hardware" lang="en"
kv_bytes = llm.cache.nbytes
by_blocks = llm.allocation.num_blocks // (4096 // 16)
llm.close()
rows = [(kv_bytes, card.token_bytes, card.sequences(kv_bytes, 4096), by_blocks)]
Table(["KV, B", "B a token", "4,096 tokens: predicted", "by the pool's blocks"], rows, lines=card.absent(t("only_memory")))
# %% key="fits" tags="hardware" lang="zh"
kv_bytes = llm.cache.nbytes
by_blocks = llm.allocation.num_blocks // (4096 // 16)
llm.close()
rows = [(kv_bytes, card.token_bytes, card.sequences(kv_bytes, 4096), by_blocks)]
Table(["KV 缓存（B）", "每个 token（B）", "4,096 个 token：预测", "按块池的块数"], rows, lines=card.absent(t("only_memory")))

# %% [markdown] key="live" lang="en"
# ## Live
#
# A thread streams 48 requests that share the first half of their prompts. The pool has blocks for a third of them. The two monitors follow while it runs: blocks fill, prefixes are found again, sequences are preempted. The pictures that stay were taken after 60 steps.
# %% [markdown] key="live" lang="zh" src="146af7a0"
# ## 实时观察
#
# 一个线程里，48 个请求流式输出，它们的提示词前一半相同，而块池的块只够其中三分之一。运行时，两个监视器跟着变化，块逐渐占满，前缀被重新找到，序列被抢占。保存下来的图是 60 步之后的样子。

# %% key="monitors" tags="hardware" lang="en"
from minikv import LLM
from minikv.course import monitor
from minikv.course.lessons.lgpu.measure import prompts_of, requests_in_thread, wait_for
from minikv.engine import EventLog, summary

log = EventLog()
llm = LLM(model, num_blocks=192, max_num_seqs=48, emit=log)
blocks, memory = monitor.cache(llm, lang="en"), monitor.memory(llm=llm, lang="en")
thread = requests_in_thread(llm, prompts_of(card, 48, 64, shared=32), tokens=128)
wait_for(llm, 60, thread)
show(blocks)  # live from here on
show(memory)
# %% key="monitors" tags="hardware" lang="zh"
from minikv import LLM
from minikv.course import monitor
from minikv.course.lessons.lgpu.measure import prompts_of, requests_in_thread, wait_for
from minikv.engine import EventLog, summary

log = EventLog()
llm = LLM(model, num_blocks=192, max_num_seqs=48, emit=log)
blocks, memory = monitor.cache(llm, lang="zh"), monitor.memory(llm=llm, lang="zh")
thread = requests_in_thread(llm, prompts_of(card, 48, 64, shared=32), tokens=128)
wait_for(llm, 60, thread)
show(blocks)  # 从这里开始实时变化
show(memory)

# %% key="monitors_end" tags="hardware" lang="en"
thread.join()
for each in (blocks, memory):
    each.stop()
llm.close()
found, steps = summary(log.events), log.of("step")
most = max(step.running for step in steps)
Table(["steps", "most sequences in a step", "preemptions"], [(len(steps), most, found.preemptions)])
# %% key="monitors_end" tags="hardware" lang="zh"
thread.join()
for each in (blocks, memory):
    each.stop()
llm.close()
found, steps = summary(log.events), log.of("step")
most = max(step.running for step in steps)
Table(["步数", "一步里最多的序列数", "抢占次数"], [(len(steps), most, found.preemptions)])

# %% [markdown] key="curves" lang="en"
# Which figure do you see in `nvidia-smi`, and why is it larger than `memory_allocated()`? The next plot follows all of them while an LLM starts, answers and closes.
# %% [markdown] key="curves" lang="zh" src="6dc6020a"
# `nvidia-smi` 里看到的是哪个数字？为什么比 `memory_allocated()` 大？下图跟踪这几个数字，从 LLM 启动、回答到关闭。

# %% key="curves_plot" tags="hardware" lang="en"
from minikv.course.charts import lines
from minikv.course.lessons.lgpu.measure import greedy, memory_while


def whole_run():
    with started(model, card)[0] as llm:
        llm.generate(prompts_of(card, 32, 64), greedy(96), progress=False)


names = {"allocated": "allocated", "reserved": "reserved", "used": "the driver's"}
measured = memory_while(card, whole_run)
show(lines({names[key]: points for key, points in measured.items()}, x="seconds", y="GiB"), text=" ".join(card.absent(t("only_curves"))))
# %% key="curves_plot" tags="hardware" lang="zh"
from minikv.course.charts import lines
from minikv.course.lessons.lgpu.measure import greedy, memory_while


def whole_run():
    with started(model, card)[0] as llm:
        llm.generate(prompts_of(card, 32, 64), greedy(96), progress=False)


names = {"allocated": "已分配", "reserved": "已保留", "used": "驱动统计"}
measured = memory_while(card, whole_run)
show(lines({names[key]: points for key, points in measured.items()}, x="秒", y="GiB"), text=" ".join(card.absent(t("only_curves"))))

# %% [markdown] key="graphs" lang="en"
# ## With and without CUDA graphs
#
# Without a graph the host launches every kernel of a step by itself, which is called *eager*. [Lesson 13b](13b_fewer_cheaper_steps.ipynb) computes what that costs. Here is the beginning of a step of our 8B model, with that lesson's assumptions (6 µs a launch, at least 2 µs a kernel):
# %% [markdown] key="graphs" lang="zh" src="22323933"
# ## 用和不用 CUDA 图
#
# 不用图时，一步的每个 kernel 都由主机单独 launch（这叫 eager）。这样做的代价，[第 13b 课](13b_fewer_cheaper_steps.ipynb)算过。下面是本课 8B 模型一步的开头，假定与那一课相同（每次 launch 6 微秒，每个 kernel 至少 2 微秒）：

# %% key="launches"
from minikv.course.diagrams import launch_times
from minikv.course.lessons.l13b.launches import launched, step_kernels

kernels = step_kernels("Qwen3-8B", rows=1, context=512)
eager, graph = (launched(kernels, "H100 SXM 80GB", graph=graph) for graph in (False, True))
show(launch_times("Qwen3-8B", eager, graph, t("lang")))

# %% [markdown] key="decode" lang="en"
# Now we measure the card itself. A step is timed until its tokens are on the host, and we take the median of 12 steps:
# %% [markdown] key="decode" lang="zh" src="d02b8dbe"
# 现在测显卡本身。计时到这一步的 token 回到主机为止，取 12 步的中位数：

# %% key="decode_steps" tags="timing" lang="en"
from minikv.course.lessons.lgpu.measure import decode

eager = {batch: decode(model, card, batch, enforce_eager=True) for batch in (1, 8, 32, 128)}
graphs = {batch: decode(model, card, batch) for batch in eager} if card.on_gpu else {}
rows = []
for batch, each in eager.items():
    graph = graphs[batch].us if graphs else None
    rows.append((batch, each.us, graph, 1 - graph / each.us if graph else None))
head = ["sequences", "eager, µs", "graph, µs", "the host's share"]
Table(head, rows, lines=card.absent(t("only_graphs")))
# %% key="decode_steps" tags="timing" lang="zh"
from minikv.course.lessons.lgpu.measure import decode

eager = {batch: decode(model, card, batch, enforce_eager=True) for batch in (1, 8, 32, 128)}
graphs = {batch: decode(model, card, batch) for batch in eager} if card.on_gpu else {}
rows = []
for batch, each in eager.items():
    graph = graphs[batch].us if graphs else None
    rows.append((batch, each.us, graph, 1 - graph / each.us if graph else None))
head = ["序列数", "逐个 launch（微秒）", "CUDA 图（微秒）", "主机所占份额"]
Table(head, rows, lines=card.absent(t("only_graphs")))

# %% [markdown] key="compiles" lang="en"
# A first start also compiles: Triton builds each kernel when it is first called. So a benchmark that counts its first call measures the compiler:
# %% [markdown] key="compiles" lang="zh" src="d8c6bbff"
# 第一次启动还要编译，每个 kernel 在第一次调用时由 Triton 编译。所以，如果把第一次调用也计入，测到的就是编译器：

# %% key="first_call" tags="timing" lang="en"
llm, second_start = started(model, card)
llm.close()
Table(["first start, s", "second start, s"], [(first_start, second_start)], lines=card.absent(t("only_compiles")))
# %% key="first_call" tags="timing" lang="zh"
llm, second_start = started(model, card)
llm.close()
Table(["第一次启动（秒）", "第二次启动（秒）"], [(first_start, second_start)], lines=card.absent(t("only_compiles")))

# %% [markdown] key="roof" lang="en"
# ## Against the roofline
#
# A decode step reads all weights once and each sequence's K and V once ([lesson 04](04_the_roofline.ipynb)). So it takes at least
#
# $$t \;\ge\; \frac{W + b \cdot n \cdot k}{\text{bandwidth}}$$
#
# | symbol | meaning | value here |
# |---|---|---|
# | $W$ | weights that a step reads: all but the embedding | 15.1 GB |
# | $b$, $n$ | sequences, and tokens of each | 32, 512 |
# | $k$ | K and V of a token | 147,456 B |
#
# With the numbers, on an H100 (3,350 GB/s): `(15.1e9 + 32 * 512 * 147,456) / 3,350e9 = 5.23 ms`.
# %% [markdown] key="roof" lang="zh" src="571a16b6"
# ## 与 roofline 对照
#
# 解码一步要把全部权重读一遍，再把每条序列的 K 和 V 各读一遍（[第 04 课](04_the_roofline.ipynb)）。所以用时至少是
#
# $$t \;\ge\; \frac{W + b \cdot n \cdot k}{\text{bandwidth}}$$
#
# | 符号 | 含义 | 本例取值 |
# |---|---|---|
# | $W$ | 一步要读的权重，不含词嵌入 | 15.1 GB |
# | $b$、$n$ | 序列数，每条的 token 数 | 32、512 |
# | $k$ | 一个 token 的 K 和 V | 147,456 B |
#
# 代入数字，以 H100（3,350 GB/s）为例：`(15.1e9 + 32 * 512 * 147,456) / 3,350e9 = 5.23 ms`。

# %% key="predict_floor"
predict("floor", ...)

# %% key="roof_plot" tags="timing" lang="en"
from minikv.memory.bandwidth import copy_bandwidth, read_bandwidth

size = 2**31 if card.on_gpu else 2**26  # far more than an L2 holds
reads, copies = read_bandwidth(size, card.device).gb_s, copy_bandwidth(size, card.device).gb_s
best = graphs or eager
rates = {"decode": {batch: each.gb_s for batch, each in best.items()}}
show(lines(rates, x="sequences", y="GB/s", log="xy", points=rates, levels={"read": reads}))
rows = [(batch, each.num_bytes / 1e6, each.num_bytes / reads / 1e3, each.us) for batch, each in best.items()]
speeds = f"read: {reads:,.1f} GB/s, copy: {copies:,.1f} GB/s"
Table(["sequences", "MB read", "floor, µs", "measured, µs"], rows, lines=[speeds, *card.absent(t("only_roof"))])
# %% key="roof_plot" tags="timing" lang="zh"
from minikv.memory.bandwidth import copy_bandwidth, read_bandwidth

size = 2**31 if card.on_gpu else 2**26  # 远大于 L2
reads, copies = read_bandwidth(size, card.device).gb_s, copy_bandwidth(size, card.device).gb_s
best = graphs or eager
rates = {"解码": {batch: each.gb_s for batch, each in best.items()}}
show(lines(rates, x="序列数", y="GB/s", log="xy", points=rates, levels={"读取": reads}))
rows = [(batch, each.num_bytes / 1e6, each.num_bytes / reads / 1e3, each.us) for batch, each in best.items()]
speeds = f"读取 {reads:,.1f} GB/s，复制 {copies:,.1f} GB/s"
Table(["序列数", "读取（MB）", "下限（微秒）", "测得（微秒）"], rows, lines=[speeds, *card.absent(t("only_roof"))])

# %% [markdown] key="little" lang="en"
# A bandwidth is reached only if enough bytes are under way at any time. By Little's law that is bandwidth times latency, shared by the SMs. The latency of 0.9 µs is an assumption:
# %% [markdown] key="little" lang="zh" src="4b5be9e9"
# 要达到这个带宽，任何时刻都得有足够多的字节在途。根据 Little 定律，在途的字节等于带宽乘以延迟，由各个 SM 分担。其中延迟 0.9 微秒是假定值：

# %% key="little_table" lang="en"
from minikv.kernels.occupancy import little

sheet = {"A100 40GB": (1555, 108), "H100 SXM 80GB": (3350, 132), "H200": (4800, 132)}  # GB/s, SMs
rows = [(name, gb_s, sms, round(little(gb_s * 1e9, sms))) for name, (gb_s, sms) in sheet.items()]
Table(["card", "GB/s", "SMs", "B under way to an SM"], rows)
# %% key="little_table" lang="zh"
from minikv.kernels.occupancy import little

sheet = {"A100 40GB": (1555, 108), "H100 SXM 80GB": (3350, 132), "H200": (4800, 132)}  # GB/s，SM 数
rows = [(name, gb_s, sms, round(little(gb_s * 1e9, sms))) for name, (gb_s, sms) in sheet.items()]
Table(["显卡", "GB/s", "SM 数", "每个 SM 在途的字节"], rows)

# %% [markdown] key="oom" lang="en"
# ## Break it: run out of memory
#
# An allocation that fails changes only one thing, the segments that torch keeps cached. We answer a request, ask for more memory than there is, and answer the same request again. (*Pinned* bytes are free, but share a segment with something live, so they can't go back.)
# %% [markdown] key="oom" lang="zh" src="3137a245"
# ## 弄坏它：让显存不足
#
# 一次失败的分配，除了 torch 手里的段，什么也不会改变。我们先回答一个请求，再申请比全部显存还多的内存，然后把同一个请求再回答一遍。（表中“被钉住”的显存虽然空闲，却与存活的块同在一个段里，所以还不回去。）

# %% key="oom_run" tags="hardware" lang="en"
from minikv.course.lessons.lgpu.measure import survive

llm, _ = started(model, card)
found = survive(llm, card)
llm.close()
names = {"before": "before", "after": "after the error", "served": "after the next request"}
rows = [(names[key], *found.mib(key)) for key in names]
lines_below = [found.error.splitlines()[0][:200], f"the same answer as before: {found.same}", *card.absent(t("only_oom"))]
Table(["", "allocated, MiB", "reserved, MiB", "pinned, MiB", "free, MiB"], rows, lines=lines_below)
# %% key="oom_run" tags="hardware" lang="zh"
from minikv.course.lessons.lgpu.measure import survive

llm, _ = started(model, card)
found = survive(llm, card)
llm.close()
names = {"before": "之前", "after": "出错之后", "served": "下一个请求之后"}
rows = [(names[key], *found.mib(key)) for key in names]
lines_below = [found.error.splitlines()[0][:200], f"与之前的回答相同：{found.same}", *card.absent(t("only_oom"))]
Table(["", "已分配（MiB）", "已保留（MiB）", "被钉住（MiB）", "空闲（MiB）"], rows, lines=lines_below)

# %% [markdown] key="ledger" lang="en"
# The same moment as shares of the memory ([lesson 16](16_where_did_6gb_go.ipynb)):
# %% [markdown] key="ledger" lang="zh" src="ba90e69e"
# 同一时刻，画成各个份额（[第 16 课](16_where_did_6gb_go.ipynb)）：

# %% key="ledger_drawn" tags="hardware"
from minikv.course.diagrams import memory_ledger

end = found.moments["served"]
own = dict(reserved=end.reserved, pinned=end.inactive_split) if card.on_gpu else {}
show(memory_ledger(total=end.total, free=end.free, allocated=end.allocated, **own, lang=t("lang")))

# %% [markdown] key="refused" lang="en"
# The package counts before it asks. A cache that can't fit is refused with its figures, and nothing has been allocated by then:
# %% [markdown] key="refused" lang="zh" src="9a85043d"
# 本包会先算后要。放不下的缓存直接拒绝，报错里写明数字，这时还什么都没有分配：

# %% key="refused_run" tags="hardware"
from minikv.errors import DoesNotFitError

try:
    LLM(model, num_blocks=10**9)
except DoesNotFitError as error:
    print(error.text(t("lang")))

# %% [markdown] key="half" lang="en"
# ## Half the bytes
#
# Here are three ways to store K and V ([lesson 13](13_half_the_bytes.ipynb)), and H2O, a policy that forgets nine tenths of the tokens ([lesson 14](14_what_to_forget.ipynb)). How many sequences of the pool above does each allow, and what does a step of eight cost? (The tokens that are kept are those of the prompt and the few generated meanwhile. With eviction no step is captured in a graph, so compare it with the eager steps.)
# %% [markdown] key="half" lang="zh" src="ef4e9dcc"
# ## 一半的字节
#
# K 和 V 有三种存法（[第 13 课](13_half_the_bytes.ipynb)），还有一种是 H2O，即淘汰九成 token 的策略（[第 14 课](14_what_to_forget.ipynb)）。上面那个块池，每种做法放得下多少条序列？八条序列的一步要多久？（“留下的 token”包括提示词，以及计时期间生成的几个。淘汰时不捕获 CUDA 图，所以要与逐个 launch 的比。）

# %% key="half_run" tags="timing" lang="en"
from minikv.course.lessons.lgpu.measure import tenth

context = 2048 if card.on_gpu else 320
ways = {"as the model computes": {}, "fp8": {"kv_dtype": "fp8_e4m3"}, "int8": {"kv_dtype": "int8"}}
ways["H2O, a tenth of the tokens"] = {"eviction": tenth(context)}
rows = []
for name, options in ways.items():
    each = decode(model, card, 8, context=context, **options)
    fit = kv_bytes // (each.token_bytes * each.resident)
    rows.append((name, each.token_bytes, each.resident, fit, each.us))
Table(["K and V", "B a token", "tokens kept", "sequences in the pool", "µs a step"], rows, lines=card.absent(t("only_half")))
# %% key="half_run" tags="timing" lang="zh"
from minikv.course.lessons.lgpu.measure import tenth

context = 2048 if card.on_gpu else 320
ways = {"与模型计算相同": {}, "fp8": {"kv_dtype": "fp8_e4m3"}, "int8": {"kv_dtype": "int8"}}
ways["H2O，留一成 token"] = {"eviction": tenth(context)}
rows = []
for name, options in ways.items():
    each = decode(model, card, 8, context=context, **options)
    fit = kv_bytes // (each.token_bytes * each.resident)
    rows.append((name, each.token_bytes, each.resident, fit, each.us))
Table(["K 和 V", "每个 token（B）", "留下的 token", "块池放得下的序列", "一步（微秒）"], rows, lines=card.absent(t("only_half")))

# %% [markdown] key="swap" lang="en"
# ## Swap
#
# A preempted sequence can wait in host memory (`cpu_kv_bytes`). That pays if moving its blocks out and back takes less time than a prefill ([lesson 12](12_beyond_one_gpu.ipynb)). The picture has the rates of this machine:
# %% [markdown] key="swap" lang="zh" src="5f612258"
# ## 换出与换入
#
# 被抢占的序列可以在主机内存里等（`cpu_kv_bytes`）。把块搬出去再搬回来，如果比重新预填充快，就值得（[第 12 课](12_beyond_one_gpu.ipynb)）。图中是这台机器的速度：

# %% key="swap_drawn" tags="timing"
from minikv.course.diagrams import swap_path
from minikv.course.lessons.lgpu.measure import transfer_rates

rates = transfer_rates(model, card)
tokens = 8 * card.context
show(swap_path(tokens, tokens * card.token_bytes, rates, t("lang")))

# %% key="swap_run" tags="timing" lang="en"
log, host = EventLog(), 24 * 128 * card.token_bytes
with LLM(model, num_blocks=96, max_num_seqs=24, cpu_kv_bytes=host, swap_rates=rates, emit=log) as llm:
    llm.generate(prompts_of(card, 24, 64), greedy(64), progress=False)
figures = summary(log.events)
head = ["out, GB/s", "back, GB/s", "prefill, tokens/s", "preemptions", "swapped"]
row = (rates.to_host / 1e9, rates.to_device / 1e9, rates.prefill, figures.preemptions, figures.swaps)
Table(head, [row], lines=card.absent(t("only_swap")))
# %% key="swap_run" tags="timing" lang="zh"
log, host = EventLog(), 24 * 128 * card.token_bytes
with LLM(model, num_blocks=96, max_num_seqs=24, cpu_kv_bytes=host, swap_rates=rates, emit=log) as llm:
    llm.generate(prompts_of(card, 24, 64), greedy(64), progress=False)
figures = summary(log.events)
head = ["换出（GB/s）", "换入（GB/s）", "预填充（token/秒）", "抢占次数", "换出次数"]
row = (rates.to_host / 1e9, rates.to_device / 1e9, rates.prefill, figures.preemptions, figures.swaps)
Table(head, [row], lines=card.absent(t("only_swap")))

# %% [markdown] key="recap" lang="en"
# ## Recap
#
# - The 8B has 8,190,735,360 weights, which are 16.4 GB in bf16. A card of 80 GB has room for 96 sequences of 4,096 tokens as well, if a step and the context take 1 GiB each.
# - Allocated, reserved and the driver's figure differ by what torch keeps cached and by what lies outside torch.
# - A step of 32 sequences takes at least 5.23 ms on an H100. Time beyond that goes into launches, or too few bytes are under way.
# - An out-of-memory error costs nothing if no work was left half done: the next request gets the same answer.
# %% [markdown] key="recap" lang="zh" src="a6e652f3"
# ## 本课小结
#
# - 8B 模型有 8,190,735,360 个权重，用 bf16 存放是 16.4 GB。如果一步和上下文各占 1 GiB，80 GB 的显卡还放得下 96 条 4,096 个 token 的序列。
# - 已分配、已保留和驱动的数字各不相同，差的是 torch 缓存着的部分，以及 torch 之外的部分。
# - 32 条序列的一步，在 H100 上至少要 5.23 ms。比这多出来的时间，要么花在 launch 上，要么是因为在途的字节太少。
# - 只要没有留下半途的状态，显存不足并不会造成损失，下一个请求的回答还是一样。

# %% [markdown] key="self" lang="en"
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="c2d6ea3e"
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_figures"
explain("three_figures")

# %% key="explain_graphs"
explain("graphs_and_batches")

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | far fewer sequences fit than in the first picture | `llm.memory_report()`: the row `others` is other processes, `cached` is torch's own stock |
# | a first step takes seconds | `started(model, card)` twice: if only the first is slow, it was the compiler |
# | graphs save nothing | `llm.memory_report()` says why a step is eager |
# %% [markdown] key="stuck" lang="zh" src="c0246eec"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 放得下的序列比第一张图少得多 | `llm.memory_report()`：`others` 一行是其他进程，`cached` 一行是 torch 自己缓存着的 |
# | 第一步要好几秒 | `started(model, card)` 连做两次：只有第一次慢，就是编译 |
# | CUDA 图没有省下时间 | `llm.memory_report()` 会说明为什么没有用图 |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - Little's law is from 1961: [J. D. C. Little, "A Proof for the Queuing Formula: L = λW"](https://doi.org/10.1287/opre.9.3.383). "Against the roofline" applies it to loads.
# - [PyTorch's notes on CUDA](https://pytorch.org/docs/stable/notes/cuda.html) explain the caching allocator and its out-of-memory messages; "Break it" reads one.
# %% [markdown] key="wild" lang="zh" src="970bd494"
# ## 实战现场
#
# - Little 定律出自 1961 年的论文：[J. D. C. Little, “A Proof for the Queuing Formula: L = λW”](https://doi.org/10.1287/opre.9.3.383)。“与 roofline 对照”一节把它用在读取上。
# - [PyTorch 的 CUDA 说明](https://pytorch.org/docs/stable/notes/cuda.html)讲了缓存分配器和它的显存不足报错，“弄坏它”一节读的就是这样一条。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# Run the lab again on another card, or with a model of your own: use `LLM("folder")` instead of `random_model`. [The benchmarks](repo:docs/gpu.md) measure the kernels one by one.
# %% [markdown] key="next" lang="zh" src="7f0bd043"
# ## 下一步
#
# 换一块显卡，或者换成你自己的模型，再跑一遍，用 `LLM("folder")` 代替 `random_model` 即可。要逐个测量 kernel，见[基准测试（英文）](repo:docs/gpu.md)。
