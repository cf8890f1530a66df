# %% [meta]
# number = "13"
# slug = "half_the_bytes"
# needs = ["01", "02", "08", "09", "11a"]
# rooms = ["cache.codec", "models.fidelity"]
# minutes = 40
# [title]
# en = "What do fewer bytes cost?"
# zh = "字节少了，代价是什么？"
# [t4]
# en = "The models here are computed by the CPU, beside a T4 too: the kernels read fp8 (e4m3) only from compute capability 8.9 on, and a T4 has 7.5. The numbers are the same."
# zh = "本课的模型一律由 CPU 计算，有 T4 也一样：kernel 要计算能力 8.9 才能读 fp8（e4m3），T4 只有 7.5。看到的数字相同。"
# [paper]
# en = "13.1, 13.3"
# zh = "13.1、13.3"

# %% [markdown] key="question" lang="en"
# ## The question
#
# With an fp8 or int8 cache each number of K and V takes one byte in place of two, so the same memory holds about twice as many tokens.
# With one model nothing seems to change. With another one, started with the same options, the output turns into nonsense after a few words.
# **What gets lost in eight bits, and why does one model notice nothing while another falls apart?**
#
# Below are the 32 numbers of a real key of tiny-gqa, the numbers that each format can store, and what is read back.
# %% [markdown] key="question" lang="zh" src="d6fc76eb"
# ## 问题
#
# 用 fp8 或 int8 的缓存，K 和 V 的每个数只占一个字节，而不是两个，所以同样的显存大约能放两倍的 token。
# 有的模型看不出任何变化；换一个模型，启动参数完全一样，写不了几个词，输出就成了胡话。
# **八个比特丢掉了什么？为什么一个模型几乎不受影响，另一个却输出乱码？**
#
# 下面是 tiny-gqa 的一个真实 key，共 32 个数，还有每种格式能存的数，以及读回来的结果。

# %% key="levels" lang="en"
import torch

from minikv.course.diagrams import number_lines
from minikv.course.lessons.l13.levels import key_row, levels_of
from minikv.models import load, recall_documents

torch.set_num_threads(1)
tiny, documents = load("tiny-gqa", device="cpu"), recall_documents(4, seed=1)
row = key_row(tiny.model, documents[0].tokens)  # the newest token's K in one head of layer 0
show(number_lines([levels_of(codec, row) for codec in ("int8", "fp8_scaled", "fp8_e5m2")], "en"))
# %% key="levels" lang="zh"
import torch

from minikv.course.diagrams import number_lines
from minikv.course.lessons.l13.levels import key_row, levels_of
from minikv.models import load, recall_documents

torch.set_num_threads(1)
tiny, documents = load("tiny-gqa", device="cpu"), recall_documents(4, seed=1)
row = key_row(tiny.model, documents[0].tokens)  # 最新 token 在第 0 层一个头里的 K
show(number_lines([levels_of(codec, row) for codec in ("int8", "fp8_scaled", "fp8_e5m2")], "zh"))

# %% [markdown] key="able" lang="en"
# int8 has equal steps; fp8 has fine steps near 0 and coarse ones far out. Here int8 is the better one. You will change that.
#
# After this lesson you can
#
# - compute what 8 bits bring, scales and whole blocks included,
# - say which numbers of a row each format keeps, and measure what the model makes of the rest,
# - compute what a layer with a sliding window saves, and what it needs at its peak.
# %% [markdown] key="able" lang="zh" src="c7bdc486"
# int8 的级差处处相等；fp8 在 0 附近很密，越远越疏。在这一行上，int8 更准。后面你会让它反过来。
#
# 学完本课，你能
#
# - 算出 8 个比特能多放多少 token，缩放因子和整块都计算在内；
# - 说出每种格式能保住一行里的哪些数，并测出剩下的误差对模型有多大影响；
# - 算出滑动窗口的层能省多少，以及最多时要占多少。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# A number of 8 bits has to be told how large it is: `int8` keeps a **scale** beside each row, one float32 (4 bytes) for the `head_dim` numbers of one token's K in one KV head, and one more for its V.
# %% [markdown] key="predict_first" lang="zh" src="1b3254f1"
# ## 先猜一猜
#
# 只有 8 位的数，得另外说明它有多大：`int8` 给每一行配一个**缩放因子**（scale）。一个 token 在一个 KV 头里的 K 是一行，共 `head_dim` 个数，配一个 float32（4 字节）；V 也是一行，再配一个。

# %% key="predict_int8"
predict("int8_tokens", ...)

# %% [markdown] key="formula" lang="en"
# ## What a row costs
# %% [markdown] key="formula" lang="zh" src="2de7f811"
# ## 一行要花多少字节

# %% [markdown] key="formula_math"
# $$\text{token} \;=\; 2 \cdot L \cdot H \cdot (D \cdot b + s) \qquad\qquad \frac{\text{bf16}}{\text{8 bit}} \;=\; \frac{2\,D}{D + s}$$

# %% [markdown] key="symbols" lang="en"
# | symbol | meaning | unit |
# |---|---|---|
# | $L$, $H$ | layers; KV heads | |
# | $D$ | `head_dim`, the numbers of a row | numbers |
# | $b$ | bytes of a number: bf16 2, fp8 and int8 1 | bytes |
# | $s$ | bytes of the row's scale: `int8` and `fp8_scaled` 4, `bf16` and plain `fp8` 0 | bytes |
#
# The 2 in front is for K and V; each has its row, and its scale.
# Plain `fp8` has one scale for a whole tensor, mostly 1.0, which costs nothing here and something else later.
# %% [markdown] key="symbols" lang="zh" src="b7fd907f"
# | 符号 | 含义 | 单位 |
# |---|---|---|
# | $L$、$H$ | 层数；KV 头数 | |
# | $D$ | `head_dim`，一行有多少个数 | 个 |
# | $b$ | 一个数的字节数：bf16 为 2，fp8 和 int8 为 1 | 字节 |
# | $s$ | 一行的缩放因子占多少：`int8` 和 `fp8_scaled` 为 4，`bf16` 和普通的 `fp8` 为 0 | 字节 |
#
# 最前面的 2 代表 K 和 V，各有各的行，也各有各的缩放因子。
# 普通的 `fp8` 整个张量只有一个缩放因子，多半就是 1.0：这里不花字节，代价在后面。

# %% [markdown] key="rows_intro" lang="en"
# To scale, for four models:
# %% [markdown] key="rows_intro" lang="zh" src="ee505849"
# 下面按比例画出四个模型：

# %% key="rows_table" lang="en"
from minikv.course.diagrams import row_bytes

names = ("gpt-oss-20b", "Llama-3.1-8B", "Qwen3-30B-A3B", "Gemma-3-27B")
show(row_bytes(names, ("bf16", "fp8", "int8"), "en"))
# %% key="rows_table" lang="zh"
from minikv.course.diagrams import row_bytes

names = ("gpt-oss-20b", "Llama-3.1-8B", "Qwen3-30B-A3B", "Gemma-3-27B")
show(row_bytes(names, ("bf16", "fp8", "int8"), "zh"))

# %% [markdown] key="half_read" lang="en"
# Half the bytes is never quite half where a row has a scale: the smaller the head, the more of it is scale.
#
# Here is a log to check. vLLM was started twice with `--kv-cache-dtype fp8`. First with `--max-model-len 100000`:
#
# > Available KV cache memory: 10.55 GiB
# >
# > GPU KV cache size: 230,528 tokens
#
# So 221,000 tokens should fit. But with `--max-model-len 221000` it did not even start:
#
# > 10.12 GiB KV cache is needed, which is larger than the available KV cache memory (5.59 GiB). Based on the available memory, the estimated maximum model length is 122080.
#
# **Did the engine forget that a number takes one byte?** Divide bytes by tokens, three times:
# %% [markdown] key="half_read" lang="zh" src="2b92da6c"
# 每行都有缩放因子的话，“一半”就不是整整一半：头越小，缩放因子占的比例越大。
#
# 来看一份日志。vLLM 用 `--kv-cache-dtype fp8` 启动了两次。第一次设 `--max-model-len 100000`，可用的 KV 缓存显存是 10.55 GiB，能放 230,528 个 token：
#
# > Available KV cache memory: 10.55 GiB
# >
# > GPU KV cache size: 230,528 tokens
#
# 照此看来，221,000 个 token 也放得下。可是第二次设成 `--max-model-len 221000`，连启动都失败了，说需要 10.12 GiB，可用的只有 5.59 GiB，最长估计是 122080：
#
# > 10.12 GiB KV cache is needed, which is larger than the available KV cache memory (5.59 GiB). Based on the available memory, the estimated maximum model length is 122080.
#
# **引擎是不是忘了一个数只占一个字节？** 三次都用字节数除以 token 数：

# %% key="puzzle" lang="en"
from minikv.course import Table
from minikv.plan import CacheSpec
from minikv.units import GIB

told = (("the first start offers", 10.55, 230_528), ("the second asks for", 10.12, 221_000), ("the second offers", 5.59, 122_080))
rows = [[what, f"{gib} GiB", tokens, round(gib * GIB / tokens)] for what, gib, tokens in told]
for kv_dtype in ("bf16", "fp8"):
    rows.append([f"Qwen3-30B-A3B, {kv_dtype}", "", None, CacheSpec.from_config("Qwen3-30B-A3B", kv_dtype=kv_dtype).slope()])
Table(["", "size", "tokens", "bytes a token"], rows, right=["size"])
# %% key="puzzle" lang="zh"
from minikv.course import Table
from minikv.plan import CacheSpec
from minikv.units import GIB

told = (("第一次启动，可用的", 10.55, 230_528), ("第二次启动，需要的", 10.12, 221_000), ("第二次启动，可用的", 5.59, 122_080))
rows = [[what, f"{gib} GiB", tokens, round(gib * GIB / tokens)] for what, gib, tokens in told]
for kv_dtype in ("bf16", "fp8"):
    rows.append([f"Qwen3-30B-A3B, {kv_dtype}", "", None, CacheSpec.from_config("Qwen3-30B-A3B", kv_dtype=kv_dtype).slope()])
Table(["", "大小", "token 数", "每个 token 的字节数"], rows, right=["大小"])

# %% [markdown] key="puzzle_read" lang="en"
# Three times about 49,150 bytes: the need is counted like the 230,528 tokens of the first start, and of those the report says that fp8 had doubled them. (The number alone would not tell: Qwen3-30B-A3B takes 49,152 in fp8, and gpt-oss-20b, in the picture above, as much in bf16.)
# **So nothing was forgotten: 10.12 GiB is the need in fp8.** It is the other side that shrank, from 10.55 to 5.59 GiB, *before* a single block was made; and as far as the report tells, nothing but `--max-model-len` had changed.
# [Lesson 08](08_allocate_kv_cache.ipynb) has the formula: what the cache gets is what the warm-up leaves. (In an older version the warm-up ran a prompt of just that length, [#8185](https://github.com/vllm-project/vllm/issues/8185).) What took the 5 GiB the error message does not say; but it was not the cache.
# (Exercise 13.1 is the arithmetic, scales and whole blocks included.)
#
# The same on this machine: one size, and how many blocks the engine really makes of it. (A head of tiny-gqa has 32 numbers, so a scale is an eighth of its row.)
# %% [markdown] key="puzzle_read" lang="zh" src="205cd7df"
# 三次都是 49,150 字节左右：算“需要”时，每个 token 的字节数与第一次启动的 230,528 个 token 一样，而原帖说，那正是 fp8 翻了一倍之后的数。（单看这个数还不能断定：Qwen3-30B-A3B 用 fp8 是 49,152，上图里的 gpt-oss-20b 用 bf16 也是 49,152。）
# **所以什么也没有忘：10.12 GiB 本来就是 fp8 的需要**。变小的是另一边：从 10.55 GiB 变成 5.59 GiB，而且那时一个块都还没有建；从帖子里看，两次启动之间改动的只有 `--max-model-len`。
# 公式在[第 08 课](08_allocate_kv_cache.ipynb)：预热剩下多少，缓存就得多少。（在更早的版本里，预热时跑的提示词正好就是这个长度，见 [#8185](https://github.com/vllm-project/vllm/issues/8185)。）那 5 GiB 究竟被什么拿走，报错里没有说；但不是缓存拿的。
# （练习 13.1 就是这笔账，缩放因子和整块都要算。）
#
# 在本机上再来一遍：给同样多的字节，看引擎真正建出多少个块。（tiny-gqa 的一个头只有 32 个数，缩放因子有一行的八分之一那么大。）

# %% key="capacity_real" lang="en"
from minikv import LLM

blocks, rows = {}, []
for kv_dtype in ("bf16", "fp8", "fp8_scaled", "int8"):
    with LLM(tiny, kv_dtype=kv_dtype, kv_bytes=2**21) as llm:
        blocks[kv_dtype] = llm.cache.num_blocks[0]
        rows.append([kv_dtype, blocks[kv_dtype], llm.cache.nbytes, blocks[kv_dtype] / blocks["bf16"]])
Table(["kv_dtype", "blocks", "bytes held", "times bf16's"], rows)
# %% key="capacity_real" lang="zh"
from minikv import LLM

blocks, rows = {}, []
for kv_dtype in ("bf16", "fp8", "fp8_scaled", "int8"):
    with LLM(tiny, kv_dtype=kv_dtype, kv_bytes=2**21) as llm:
        blocks[kv_dtype] = llm.cache.num_blocks[0]
        rows.append([kv_dtype, blocks[kv_dtype], llm.cache.nbytes, blocks[kv_dtype] / blocks["bf16"]])
Table(["kv_dtype", "块数", "占用字节", "bf16 的几倍"], rows)

# %% [markdown] key="bits" lang="en"
# ## Two ways to spend eight bits
#
# - **int8** has 255 numbers at equal distances. The scale makes the largest number of the row 127; every other is rounded to the next step.
# - **fp8** (e4m3) is a small floating-point number: 4 bits for the exponent, 3 for the digits. Its steps are fine near 0 and coarse far out, and it ends at 448. e5m2 has one bit more of exponent and one digit less, and ends at 57,344.
#
# The same row, stored in each way and read again:
# %% [markdown] key="bits" lang="zh" src="dcbeb8a3"
# ## 同样 8 个比特，int8 和 fp8 的两种分配方式
#
# - **int8** 有 255 级，级差相等。缩放因子让一行里最大的数变成 127，其余的四舍五入到最近的一级。
# - **fp8**（e4m3）是小号的浮点数：指数 4 位，尾数 3 位。靠近 0 的地方细，越远越粗，到 448 为止。e5m2 的指数多一位，尾数少一位，到 57,344 为止。
#
# 同一行数，分别用几种方式存下来，再读出来：

# %% key="stored" lang="en"
from minikv.cache import find_codec

row_of_five = torch.tensor([[0.011, -0.13, 0.9, -6.0, 500.0]])
rows = []
for name in ("bf16", "fp8", "fp8_e5m2", "fp8_scaled", "int8"):
    codec = find_codec(name)
    back = codec.decode(*codec.encode(row_of_five), torch.float32)  # what attention reads
    rows.append([name, *(f"{float(x):.4g}" for x in back[0])])
head = [f"{float(x):g}" for x in row_of_five[0]]
Table(["", *head], rows, right=head)
# %% key="stored" lang="zh"
from minikv.cache import find_codec

row_of_five = torch.tensor([[0.011, -0.13, 0.9, -6.0, 500.0]])
rows = []
for name in ("bf16", "fp8", "fp8_e5m2", "fp8_scaled", "int8"):
    codec = find_codec(name)
    back = codec.decode(*codec.encode(row_of_five), torch.float32)  # 注意力读到的就是它
    rows.append([name, *(f"{float(x):.4g}" for x in back[0])])
head = [f"{float(x):g}" for x in row_of_five[0]]
Table(["", *head], rows, right=head)

# %% [markdown] key="stored_read" lang="en"
# One number of 500, and int8 has nothing left for the others: its step is almost 4 here. fp8 keeps them all, but without a scale it ends at 448.
# %% [markdown] key="stored_read" lang="zh" src="56ac7c6a"
# 只要有一个 500，int8 就顾不上其他的数了：这里的一级将近 4。fp8 都留住了，但没有缩放因子时，到 448 为止。

# %% key="predict_levels"
predict("levels", ...)

# %% [markdown] key="bound" lang="en"
# How far off can a number be? `Codec.error_bound` says it for every element: half a step, at its place. (What is below half a step becomes 0, and is off by all of itself.) As a share of the number itself, for a row whose largest number is 1:
# %% [markdown] key="bound" lang="zh" src="32e52f5d"
# 一个数最多会差多少？`Codec.error_bound` 对每个元素都能给出答案：它所在位置上相邻两数间距的一半。（不到半级的数变成 0，误差就是它本身。）下面把它除以这个数本身，设一行里最大的数为 1：

# %% key="bound_plot" lang="en"
from minikv.course.charts import lines

sizes = [10 ** (step / 20) for step in range(-80, 1)]
shares = {}
for name in ("int8", "fp8_scaled", "fp8_e5m2"):
    bound = find_codec(name).error_bound(torch.tensor([1.0, *sizes]))[1:]
    shares[name] = {size: 100 * min(1.0, float(most) / size) for most, size in zip(bound, sizes)}
show(lines(shares, x="size of a number, the largest of its row = 1", y="most that it can be off, % of itself", log="xy"))
places = (80, 60, 40, 20, 0)
rows = [[name, *(f"{list(share.values())[place]:.1f}%" for place in places)] for name, share in shares.items()]
head = [f"{sizes[place]:g}" for place in places]
Table(["", *head], rows, right=head)
# %% key="bound_plot" lang="zh"
from minikv.course.charts import lines

sizes = [10 ** (step / 20) for step in range(-80, 1)]
shares = {}
for name in ("int8", "fp8_scaled", "fp8_e5m2"):
    bound = find_codec(name).error_bound(torch.tensor([1.0, *sizes]))[1:]
    shares[name] = {size: 100 * min(1.0, float(most) / size) for most, size in zip(bound, sizes)}
show(lines(shares, x="一个数的大小（一行里最大的数为 1）", y="最多差多少，占这个数的 %", log="xy"))
places = (80, 60, 40, 20, 0)
rows = [[name, *(f"{list(share.values())[place]:.1f}%" for place in places)] for name, share in shares.items()]
head = [f"{sizes[place]:g}" for place in places]
Table(["", *head], rows, right=head)

# %% [markdown] key="bound_read" lang="en"
# int8 has equal steps, so a small number loses most, in the end all of itself. An fp8 line stays at about the same share, whatever the size. The two cross near a fourteenth of the row's largest number: below it `fp8_scaled` keeps more, and among numbers of about one size int8 is up to 9 times finer.
# So it depends on the rows, and that means on the model. (Exercise 13.2: a token's heads as int8.)
#
# ## What the model notices
#
# The numbers of a cache go through attention and come out as **logits**. So the same tokens go through two caches, with the same weights, computed in the same float32; what differs is what was stored. `forced_logits` does it: the tokens are given, whatever the model would have said itself.
# %% [markdown] key="bound_read" lang="zh" src="61225df4"
# int8 的级差相等，所以越小的数损失越大，最后丢得一点不剩。fp8 的相对误差与数的大小几乎无关。两条线在最大数的十四分之一附近相交：再小的数，`fp8_scaled` 留得更准；一行里的数大小相近时，int8 的误差最多能小到它的九分之一。
# 所以要看行里是什么样的数，也就是看模型。（练习 13.2：把一个 token 的各个头存成 int8。）
#
# ## 模型察觉到了什么
#
# 缓存里的数经过注意力，最后变成 **logits**。所以让同样的 token 各走一遍两份缓存：权重相同，都用 float32 计算，不同的只是存下来的东西。`forced_logits` 就做这件事：token 是给定的，模型自己想说什么不算数。

# %% key="logits" tags="hardware" lang="en"
from minikv.models.fidelity import forced_logits, logit_error

stored = ("bf16", "fp8", "fp8_e5m2", "fp8_scaled", "int8")
tokens = [document.tokens for document in documents]
exact, found, rows = forced_logits(tiny.model, tokens, prefill=193), {}, []
for kv_dtype in stored:
    found[kv_dtype] = forced_logits(tiny.model, tokens, prefill=193, kv_dtype=kv_dtype)
    error = logit_error(found[kv_dtype], exact)
    rows.append([kv_dtype, f"{error.mean_abs:.4f}", f"{error.max_abs:.4f}", f"{error.kl:.6f}", f"{error.same_top:.1%}"])
head = ["mean", "max", "KL, nats", "same top"]
line = f"{error.positions} positions; the logits of one position have a standard deviation of {error.spread:.2f}"
Table(["", *head], rows, right=head, lines=[line])
# %% key="logits" tags="hardware" lang="zh"
from minikv.models.fidelity import forced_logits, logit_error

stored = ("bf16", "fp8", "fp8_e5m2", "fp8_scaled", "int8")
tokens = [document.tokens for document in documents]
exact, found, rows = forced_logits(tiny.model, tokens, prefill=193), {}, []
for kv_dtype in stored:
    found[kv_dtype] = forced_logits(tiny.model, tokens, prefill=193, kv_dtype=kv_dtype)
    error = logit_error(found[kv_dtype], exact)
    rows.append([kv_dtype, f"{error.mean_abs:.4f}", f"{error.max_abs:.4f}", f"{error.kl:.6f}", f"{error.same_top:.1%}"])
head = ["平均", "最大", "KL 散度（nat）", "首位相同"]
line = f"{error.positions} 个位置；同一位置各个 logit 的标准差是 {error.spread:.2f}"
Table(["", *head], rows, right=head, lines=[line])

# %% [markdown] key="logits_read" lang="en"
# - **mean, max**: how far a logit is off. The last line says what that is to be compared with.
# - **KL**: how far the whole distribution is off, in nats (0: the same). It has no threshold, and twice the error makes it about four times as large.
# - **same top**: how often the likeliest token is still the same one.
#
# And the answers? tiny-gqa has learned to find a city again that was named 200 tokens earlier. Every right answer must come out of the cache:
# %% [markdown] key="logits_read" lang="zh" src="d7d56500"
# - **平均、最大**：logit 差多少。该拿什么来比，最后一行说了。
# - **KL**：整个分布差多少，单位是 nat（0 表示相同）。它没有门槛；误差翻倍，它大约变成四倍。
# - **首位相同**：最可能的那个 token，有多大比例没有变。
#
# 那么回答呢？tiny-gqa 学过的，就是把两百个 token 之前提到的城市找回来。每个正确的回答都只能出自缓存：

# %% key="recall" lang="en"
from minikv.engine.recall import measure_recall

rows = []
for kv_dtype in ("fp32", *stored):
    with LLM(tiny, kv_dtype=kv_dtype, num_blocks=600) as llm:
        recall = measure_recall(llm, documents)
    rows.append([kv_dtype, recall.right, recall.asked])
Table(["", "right answers", "asked"], rows)
# %% key="recall" lang="zh"
from minikv.engine.recall import measure_recall

rows = []
for kv_dtype in ("fp32", *stored):
    with LLM(tiny, kv_dtype=kv_dtype, num_blocks=600) as llm:
        recall = measure_recall(llm, documents)
    rows.append([kv_dtype, recall.right, recall.asked])
Table(["", "答对", "总数"], rows)

# %% [markdown] key="recall_read" lang="en"
# Not one answer is lost, not even with e5m2, whose logits are off the most.
# A score like this one counts which token came first. It stays silent until an error is larger than half the **margin**, the distance from the first to the second:
# %% [markdown] key="recall_read" lang="zh" src="eb8b0562"
# 一个回答也没有丢，连 logits 偏得最多的 e5m2 也没有。
# 这类分数只看哪个 token 排第一。**差距**（margin），即第一名与第二名的 logit 之差，只要误差不超过它的一半，分数就毫无反应：

# %% key="margin" tags="hardware" lang="en"
top = exact.topk(2, dim=-1).values
margins = top[..., 0] - top[..., 1]
answers = torch.zeros_like(margins, dtype=torch.bool)
for number, document in enumerate(documents):
    answers[number, document.positions - 192] = True
rows = []
for what, some in (("answers", answers), ("other words", ~answers)):
    off = [float((found[kv_dtype] - exact).abs()[some].max()) for kv_dtype in ("int8", "fp8_e5m2")]
    rows.append([what, float(margins[some].min()), float(margins[some].median()), *off])
Table(["", "smallest margin", "median", "largest error, int8", "fp8_e5m2"], rows)
# %% key="margin" tags="hardware" lang="zh"
top = exact.topk(2, dim=-1).values
margins = top[..., 0] - top[..., 1]
answers = torch.zeros_like(margins, dtype=torch.bool)
for number, document in enumerate(documents):
    answers[number, document.positions - 192] = True
rows = []
for what, some in (("回答", answers), ("其他的词", ~answers)):
    off = [float((found[kv_dtype] - exact).abs()[some].max()) for kv_dtype in ("int8", "fp8_e5m2")]
    rows.append([what, float(margins[some].min()), float(margins[some].median()), *off])
Table(["", "最小的差距", "中位数", "最大误差，int8", "fp8_e5m2"], rows)

# %% [markdown] key="margin_read" lang="en"
# The answers are far ahead; the words between them are not. There several are nearly as likely, and a small error is enough to change the order.
# So ask for more than one word. Sixteen prompts, 100 greedy tokens each: how many texts are, up to a length, the one that the exact cache gives?
# %% [markdown] key="margin_read" lang="zh" src="ac240fd3"
# 回答遥遥领先，回答之间的词就不是了：那里常有几个词几乎同样可能，一点点误差就足以改变名次。
# 所以，别只问一个词。16 个提示词，各用贪心解码生成 100 个 token：到某个长度为止，有多少篇与精确缓存给出的一字不差？

# %% key="texts" tags="hardware" lang="en"
from minikv import SamplingParams
from minikv.models import recall_prompt

prompts, texts = [recall_prompt(seed=seed).text for seed in range(16)], {}
for kv_dtype in ("fp32", *stored):
    with LLM(tiny, kv_dtype=kv_dtype, num_blocks=600) as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=100, ignore_eos=True))
    texts[kv_dtype] = [out.token_ids for out in outputs]
lengths, rows = (1, 10, 30, 100), []
for kv_dtype in stored:
    pairs = list(zip(texts[kv_dtype], texts["fp32"]))
    rows.append([kv_dtype, *(sum(ours[:length] == due[:length] for ours, due in pairs) for length in lengths)])
Table(["same texts of 16, up to", *(f"{length} tokens" for length in lengths)], rows)
# %% key="texts" tags="hardware" lang="zh"
from minikv import SamplingParams
from minikv.models import recall_prompt

prompts, texts = [recall_prompt(seed=seed).text for seed in range(16)], {}
for kv_dtype in ("fp32", *stored):
    with LLM(tiny, kv_dtype=kv_dtype, num_blocks=600) as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=100, ignore_eos=True))
    texts[kv_dtype] = [out.token_ids for out in outputs]
lengths, rows = (1, 10, 30, 100), []
for kv_dtype in stored:
    pairs = list(zip(texts[kv_dtype], texts["fp32"]))
    rows.append([kv_dtype, *(sum(ours[:length] == due[:length] for ours, due in pairs) for length in lengths)])
Table(["16 篇里相同的，到第几个 token", *(f"{length} 个" for length in lengths)], rows)

# %% [markdown] key="texts_read" lang="en"
# The first word is right everywhere, and the longer the text, the fewer are the same.
# If a token changes with probability $p$, a text of $n$ tokens stays as it was with
#
# $$(1 - p)^n \;\approx\; e^{-n\,p} \qquad (n \text{ tokens})$$
#
# A text that differs is not yet a wrong one: another filler is as good. But where each step builds on the one before, in thousands of tokens of reasoning, every change is a chance to go astray.
# **So short answers can't tell what happens in long ones, and the results of another model are no promise for yours.** Two such reports, with opposite results, are under *In the wild*.
# Look at logits, at KL, and at texts as long as those that you will serve, of *your* model.
# %% [markdown] key="texts_read" lang="zh" src="6f44a8c5"
# 第一个词全都对；文本越长，相同的越少。
# 如果一个 token 发生改变的概率是 $p$，那么 $n$ 个 token 的文本保持原样的概率是
#
# $$(1 - p)^n \;\approx\; e^{-n\,p} \qquad (n \text{：token 数})$$
#
# 文本不同，不等于错了：换一个填充词也无妨。可是如果一步接一步往下推，推理写了几千个 token，每次改变都是一次走偏的机会。
# **所以短回答的测试看不出长回答会怎样；另一个模型的结果，也不能保证你的模型没问题。**有两份这样的报告，结果正好相反，见“实战现场”。
# 要看 logits，看 KL，还要看**你自己的**模型写出的、与实际一样长的文本。

# %% [markdown] key="windows" lang="en"
# ## Fewer tokens: windows that give back
#
# The other way to hold fewer bytes is to hold fewer tokens. A layer with a sliding window of $W$ reads the last $W$ tokens, so it needs no others ([lesson 09](09_pages_and_blocks.ipynb)).
#
# How much is that worth for gpt-oss-20b, with 32 sequences of 8,192 tokens in bf16?
# %% [markdown] key="windows" lang="zh" src="3e978d95"
# ## 少存 token：会归还块的窗口
#
# 另一种少占字节的办法，是少存 token。滑动窗口为 $W$ 的层只读最近的 $W$ 个 token，别的用不着（[第 09 课](09_pages_and_blocks.ipynb)）。
#
# 对 gpt-oss-20b，32 条序列，每条 8,192 个 token，用 bf16，这能省多少？

# %% key="oss" lang="en"
from minikv.plan.pool import kv_cache_groups, sequence_bytes

oss = CacheSpec.from_config("gpt-oss-20b", kv_dtype="bf16", layout="vllm")
rows = [
    ["every layer keeps all tokens", 32 * 8192 * oss.slope() / GIB],
    ["windowed layers keep their window", oss.bytes_for(8192, batch=32) / GIB],
    ["the same in whole blocks of 16, a pool for each group", 32 * sequence_bytes(oss, 8192, 16) / GIB],
]
groups = kv_cache_groups(oss)
lines_below = [f"{group.count} layers, window {group.layer.window}: {group.layer.blocks_for(8192, 16)} blocks a sequence" for group in groups]
Table(["", "GiB"], [[what, f"{gib:.2f}"] for what, gib in rows], right=["GiB"], lines=lines_below)
# %% key="oss" lang="zh"
from minikv.plan.pool import kv_cache_groups, sequence_bytes

oss = CacheSpec.from_config("gpt-oss-20b", kv_dtype="bf16", layout="vllm")
rows = [
    ["每一层都保留全部 token", 32 * 8192 * oss.slope() / GIB],
    ["滑动窗口的层只留窗口", oss.bytes_for(8192, batch=32) / GIB],
    ["同上，按块大小 16 的整块算，每个 KV 缓存组各有块池", 32 * sequence_bytes(oss, 8192, 16) / GIB],
]
groups = kv_cache_groups(oss)
lines_below = [f"{group.count} 层，窗口 {group.layer.window}：每条序列 {group.layer.blocks_for(8192, 16)} 个块" for group in groups]
Table(["", "GiB"], [[what, f"{gib:.2f}"] for what, gib in rows], right=["GiB"], lines=lines_below)

# %% [markdown] key="oss_read" lang="en"
# Both figures are right, of two engines: a window saves memory only where its layers have a pool of their own, and only if blocks are given back.
# %% [markdown] key="oss_read" lang="zh" src="dd226ba6"
# 两个数都对，对的是两种引擎：滑动窗口的层要有自己的块池，还要真的归还块，窗口才省得下显存。

# %% key="predict_window"
predict("window_blocks", ...)

# %% [markdown] key="gemma" lang="en"
# Now a real engine: a small Gemma 3 with random weights, five layers with a window of 64 for each one without, and one sequence of four times the window. Before you run the cell: which of the two lines goes on rising?
# %% [markdown] key="gemma" lang="zh" src="1d6d6f4e"
# 换成真正的引擎：一个权重随机的小 Gemma 3，每五层滑动窗口（64）配一层全注意力，一条序列长到窗口的四倍。运行之前先想一想：两条线里，哪一条会一直往上走？

# %% key="gemma_model"
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

torch.manual_seed(0)
config = Gemma3TextConfig(
    vocab_size=200, hidden_size=64, intermediate_size=128, num_hidden_layers=6, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, sliding_window=64, max_position_embeddings=1024, dtype="float32",
)
gemma = Gemma3ForCausalLM(config).eval()

# %% key="gemma_run" lang="en"
from minikv.engine import EventLog

log = EventLog()
with LLM(gemma, num_blocks=64, max_num_seqs=8, max_batched_tokens=32, emit=log) as llm:
    llm.generate([list(range(128))], SamplingParams(temperature=0, max_tokens=129, ignore_eos=True))
    spec, groups = llm.cache.spec, llm.cache.kv_cache_groups
used = [step.used for step in log.of("step")]  # blocks of each group, step by step
names = ("no window", "window of 64")
held = {name: {step + 1: each[group] for step, each in enumerate(used)} for group, name in enumerate(names)}
show(lines(held, x="step: 4 chunks of the prompt, then a token each", y="blocks in use, 16 tokens each", steps=True))
# %% key="gemma_run" lang="zh"
from minikv.engine import EventLog

log = EventLog()
with LLM(gemma, num_blocks=64, max_num_seqs=8, max_batched_tokens=32, emit=log) as llm:
    llm.generate([list(range(128))], SamplingParams(temperature=0, max_tokens=129, ignore_eos=True))
    spec, groups = llm.cache.spec, llm.cache.kv_cache_groups
used = [step.used for step in log.of("step")]  # 每一步、每一组占用的块
names = ("没有窗口", "窗口 64")
held = {name: {step + 1: each[group] for step, each in enumerate(used)} for group, name in enumerate(names)}
show(lines(held, x="步：先是提示词的 4 段，然后每步一个 token", y="占用的块（块大小 16）", steps=True))

# %% key="gemma_plot" lang="en"
rows = []
for group, name in enumerate(("no window", "window of 64")):
    most = [max(step[group] for step in steps) for steps in (used[:4], used[4:])]
    rows.append([name, groups[group].count, *most, groups[group].layer.blocks_for(256, 16)])
most = max(sum(blocks * group.block_bytes(16) for blocks, group in zip(step, groups)) for step in used[4:])
plan, full = sequence_bytes(spec, 256, 16), 256 * spec.slope()
line = f"most bytes in decode: {most:,}; the plan: {plan:,}; without windows: {full:,}"
Table(["", "layers", "most blocks in the prompt", "in decode", "the plan"], rows, lines=[line])
# %% key="gemma_plot" lang="zh"
rows = []
for group, name in enumerate(("没有窗口", "窗口 64")):
    most = [max(step[group] for step in steps) for steps in (used[:4], used[4:])]
    rows.append([name, groups[group].count, *most, groups[group].layer.blocks_for(256, 16)])
most = max(sum(blocks * group.block_bytes(16) for blocks, group in zip(step, groups)) for step in used[4:])
plan, full = sequence_bytes(spec, 256, 16), 256 * spec.slope()
line = f"解码时最多 {most:,} 字节；计划 {plan:,}；没有窗口则要 {full:,}"
Table(["", "层数", "算提示词时最多的块", "解码时", "计划"], rows, lines=[line])

# %% [markdown] key="gemma_read" lang="en"
# In decode the sequence never holds more than the plan says, and at its fullest exactly as much.
# During the prompt the layers with a window held more blocks than planned: the first query of a chunk reads a whole window, and the chunk's own tokens are written before anything is given back. So the *most* that such a layer ever holds depends on the chunks, and a pool that is planned for decode alone is too small. (Exercise 13.3 is that peak.)
# %% [markdown] key="gemma_read" lang="zh" src="4ab074b5"
# 解码的时候，这条序列占用的从不超过计划，最多时一字节不差。
# 算提示词的时候，带窗口的层占的块比计划的多：一段里的第一个 query 要读满整个窗口，而在归还任何块之前，这一段自己的 token 也得先写进来。所以这样的层**最多**占多少，取决于分段；块池只按解码来计划，就会不够。（练习 13.3 就是求这个峰值。）

# %% [markdown] key="break" lang="en"
# ## Break it
#
# ### The same model, with larger keys
#
# Attention sees only products of queries and keys. So multiply two channels of every key by 64, and divide them in every query by 64: not one product changes, and the model says the same, bit for bit. (Two, because RoPE turns them together.)
# Then do it with all 32.
#
# Here is the key of the beginning once more, with two channels 64 times as large; the picture shows the range of the other thirty:
# %% [markdown] key="break" lang="zh" src="946852e6"
# ## 弄坏它
#
# ### 同一个模型，更大的 key
#
# 注意力只看 query 与 key 的乘积。那就把每个 key 的两个通道乘以 64，每个 query 的这两个通道除以 64：所有乘积都不变，模型说的一个比特也不差。（要动两个通道，因为 RoPE 把它们放在一起旋转。）
# 然后，32 个通道全部这样做。
#
# 还是开头的那个 key，两个通道大了 64 倍；图里画的是另外三十个数所在的范围：

# %% key="break_levels" lang="en"
from minikv.course.lessons.l13.outliers import enlarge_keys

larger = enlarge_keys(load("tiny-gqa", device="cpu").model, factor=64, pairs=1)
outlier = key_row(larger, documents[0].tokens)
pair = [levels_of(codec, outlier) for codec in ("int8", "fp8_scaled")]
show(number_lines(pair, "en", most=float(row.abs().max())))
# %% key="break_levels" lang="zh"
from minikv.course.lessons.l13.outliers import enlarge_keys

larger = enlarge_keys(load("tiny-gqa", device="cpu").model, factor=64, pairs=1)
outlier = key_row(larger, documents[0].tokens)
pair = [levels_of(codec, outlier) for codec in ("int8", "fp8_scaled")]
show(number_lines(pair, "zh", most=float(row.abs().max())))

# %% [markdown] key="break_levels_read" lang="en"
# int8 has three levels left for thirty numbers, and ten of them become 0.
#
# Do the answers suffer? Here are questions from above, with larger and larger keys. Before you run the cell: which column breaks first, with two channels, and with all?
# %% [markdown] key="break_levels_read" lang="zh" src="ec86ae9b"
# int8 给三十个数只剩下三级，其中十个变成了 0。
#
# 回答会受影响吗？还是前面的问题，让 key 一次比一次大。运行之前先想一想：只动两个通道，哪一列最先坏？全都动呢？

# %% key="break_outlier" tags="hardware" lang="en"
few, rows = documents[:2], []
for pairs, factors in ((1, (1, 64, 256, 4096)), (16, (64, 256, 4096))):
    for factor in factors:
        larger = enlarge_keys(load("tiny-gqa", device="cpu").model, factor, pairs)
        right = []
        for kv_dtype in stored[1:]:
            with LLM(larger, kv_dtype=kv_dtype, num_blocks=300) as llm:
                right.append(measure_recall(llm, few).right)
        rows.append([f"{2 * pairs} of 32", factor, *right])
total = sum(len(document.questions) for document in few)
Table(["channels", "factor", *stored[1:]], rows, lines=[f"right answers of {total}"])
# %% key="break_outlier" tags="hardware" lang="zh"
few, rows = documents[:2], []
for pairs, factors in ((1, (1, 64, 256, 4096)), (16, (64, 256, 4096))):
    for factor in factors:
        larger = enlarge_keys(load("tiny-gqa", device="cpu").model, factor, pairs)
        right = []
        for kv_dtype in stored[1:]:
            with LLM(larger, kv_dtype=kv_dtype, num_blocks=300) as llm:
                right.append(measure_recall(llm, few).right)
        rows.append([f"32 个里的 {2 * pairs} 个", factor, *right])
total = sum(len(document.questions) for document in few)
Table(["通道", "倍数", *stored[1:]], rows, lines=[f"共 {total} 个问题，答对几个"])

# %% [markdown] key="break_outlier_read" lang="en"
# **The same model, the same products, and from all answers to none.** There is no error anywhere, and each way of storing fails in its own way:
#
# - **int8** takes its step from the row's largest number. Two large channels leave no steps for the other thirty; if all are large, the scale takes care of it, and nothing is lost.
# - **fp8** has no scale of its own. Two channels beyond 448 are cut off, the others are as before; if all are beyond it, nothing is left but their signs. That is what "scale 1.0" means, and why an engine warns of it.
# - **fp8_scaled** survives both: the scale brings the largest number to 448, and a float's steps follow the size of each.
# - **fp8_e5m2** reaches 57,344, and pays for it with a digit in every number.
#
# So the question of the beginning has an answer: what a model notices depends on the size of its keys and values, and that can't be seen from outside.
#
# What to do? Give fp8 a scale. Or, for int8, take the outlier out before it is stored: turn K and Q by the same rotation after RoPE, which again changes no product but spreads one large number over the whole row (a fork of llama.cpp does it with a [Hadamard matrix](https://github.com/ikawrakow/ik_llama.cpp/pull/1033)):
# %% [markdown] key="break_outlier_read" lang="zh" src="7b65162f"
# **同一个模型，同样的乘积，却从全对变成了全错**。哪里都没有报错，每种存法各有各的坏法：
#
# - **int8** 的级差由一行里最大的数决定。两个通道特别大，另外三十个就分不到级数；如果全都一样大，缩放因子会管好，什么也不丢。
# - **fp8** 没有自己的缩放因子。两个通道超过 448，就在那里截断，其他的照旧；要是全都超过，就只剩下正负号了。所谓“缩放因子 1.0”就是这个意思，引擎会为此发出警告，道理也在这里。
# - **fp8_scaled** 两种都扛得住：缩放因子把最大的数放到 448，而浮点数的级差随每个数的大小而变。
# - **fp8_e5m2** 能到 57,344，代价是每个数都少一位尾数。
#
# 开头的问题就有了答案：模型察觉到多少，要看它的 key 和 value 有多大，而这从外面看不出来。
#
# 怎么办？给 fp8 配上缩放因子。想用 int8 的话，就在存之前把突出的数摊平：在 RoPE 之后，用同一个旋转去转 K 和 Q，乘积照样不变，一个大数却摊到了整行上（llama.cpp 的一个分支用的是 [Hadamard 矩阵](https://github.com/ikawrakow/ik_llama.cpp/pull/1033)）：

# %% key="break_rotate" lang="en"
rotation = torch.ones(1, 1)
while len(rotation) < 32:  # a Hadamard matrix, orthogonal
    rotation = torch.cat([torch.cat([rotation, rotation], 1), torch.cat([rotation, -rotation], 1)]) / 2**0.5
keys = torch.randn(1000, 32, generator=torch.Generator().manual_seed(0))
keys[:, 5] *= 64
codec, others, rows = find_codec("int8"), torch.arange(32) != 5, []
for name, turn in (("stored as it is", torch.eye(32)), ("rotated before, and back after", rotation)):
    back = codec.decode(*codec.encode(keys @ turn)) @ turn.T
    rows.append([name, f"{float((back - keys)[:, others].square().mean().sqrt()):.3f}"])
Table(["int8, one channel 64 times as large", "error of the others, which are about 1"], rows)
# %% key="break_rotate" lang="zh"
rotation = torch.ones(1, 1)
while len(rotation) < 32:  # Hadamard 矩阵，正交
    rotation = torch.cat([torch.cat([rotation, rotation], 1), torch.cat([rotation, -rotation], 1)]) / 2**0.5
keys = torch.randn(1000, 32, generator=torch.Generator().manual_seed(0))
keys[:, 5] *= 64
codec, others, rows = find_codec("int8"), torch.arange(32) != 5, []
for name, turn in (("直接存", torch.eye(32)), ("先旋转，读出后转回来", rotation)):
    back = codec.decode(*codec.encode(keys @ turn)) @ turn.T
    rows.append([name, f"{float((back - keys)[:, others].square().mean().sqrt()):.3f}"])
Table(["int8，一个通道大 64 倍", "其他数的误差（它们本身约为 1）"], rows)

# %% [markdown] key="check_yourself" lang="en"
# ## Recap
#
# - fp8 takes half of bf16's bytes. int8 adds a scale of 4 bytes to each row: 1.88 times the tokens at `head_dim` 64, 1.94 at 128.
# - int8 has equal steps from the row's largest number; fp8's steps follow the size of each number and end at 448 without a scale.
# - Errors pass unnoticed until they are larger than half the margin. Long texts notice first.
# - One large channel leaves int8 three levels for the others; `fp8_scaled` keeps them, and so does a rotation.
# - A window saves memory only where its layers have a pool of their own, and their peak is in the prompt.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="check_yourself" lang="zh" src="8a163b38"
# ## 本课小结
#
# - fp8 的字节数是 bf16 的一半。int8 每行多一个 4 字节的缩放因子：`head_dim` 为 64 时能放 1.88 倍的 token，128 时 1.94 倍。
# - int8 的级差相等，由一行里最大的数决定；fp8 的级差随数的大小而变，没有缩放因子时到 448 为止。
# - 误差不超过差距的一半，就察觉不到；最先察觉的是长文本。
# - 一个通道特别大，int8 留给其他数的就只有三级；`fp8_scaled` 能保住它们，先做旋转也可以。
# - 带窗口的层有自己的块池，窗口才省得下显存；它占得最多的时候是算提示词时。
#
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_half"
explain("why_not_half")

# %% key="explain_silent"
explain("why_recall_is_silent")

# %% key="explain_window"
explain("what_a_window_holds")

# %% [markdown] key="exercises" lang="en"
# ## In the wild
#
# - **221,000 tokens that did not fit.** The log of this lesson is [vLLM #25350](https://github.com/vllm-project/vllm/issues/25350) of September 2025, under the title "The maximum model length calculation should also take into account the kv-cache-dtype". The calculation did; the memory had shrunk.
# - **Nonsense after several words.** In August 2024 a user served Qwen2 with an fp8 cache and got repetitions, while Mistral, GLM4 and Qwen1.5 were fine with the same options ([Qwen #840](https://github.com/QwenLM/Qwen3/issues/840)). The bias of the keys of Qwen2.5-7B was measured later: a norm of 605 in the first layer and 921 in the last, against about 22 in the others ([llama.cpp #21385](https://github.com/ggml-org/llama.cpp/issues/21385)); Qwen1.5 has no such outliers. The first thread does not say which of the faults above it was.
# - **Long reasoning.** In April 2026 [a report of the vLLM project](https://github.com/vllm-project/vllm-project.github.io/pull/195) let Qwen3-30B-A3B-Thinking reason with fp8 and scale 1.0 over tens of thousands of tokens: it lost 1 to 2 points at most on AIME25 and three other tests. In the same month GLM-5.1 in SGLang scored 76.7 on aime26 in place of 95.3, and bf16 put it right ([SGLang #22671](https://github.com/sgl-project/sglang/issues/22671)). Stored bytes need not be the cause: the vLLM report also tells of a search in 128k tokens that fell from 91% to 13% because a kernel summed too coarsely.
# - **Windows that save nothing.** In July 2026 the estimator hf-mem changed its answer for gpt-oss-20b from 6.09 to 12.00 GiB, because engines "reserve full-size pages" for windowed layers of mixed models ([hf-mem #70](https://github.com/alvarobartt/hf-mem/pull/70)). vLLM says so where it does: "we do not enable any optimizations for saving KV cache memory (e.g., dropping the KV cache outside the sliding window)" ([tt-xla #5727](https://github.com/tenstorrent/tt-xla/issues/5727)).
#
# ## Exercises
#
# 1. `tokens_that_fit`: a pool in tokens, with scales and whole blocks.
# 2. `quantize`: a token's heads as int8.
# 3. `peak_blocks`: the most that a layer with a window ever holds.
# %% [markdown] key="exercises" lang="zh" src="eb7ef74f"
# ## 实战现场
#
# - **放不下的 221,000 个 token。** 本课的日志出自 2025 年 9 月的 [vLLM #25350](https://github.com/vllm-project/vllm/issues/25350)，标题的意思是“计算最大长度时也应当考虑 kv-cache-dtype”。其实计算时已经考虑了，变小的是可用的显存。
# - **几个词之后就是胡话。** 2024 年 8 月，一位用户用 fp8 缓存部署 Qwen2，输出不断重复；同样的参数，Mistral、GLM4 和 Qwen1.5 都正常（[Qwen #840](https://github.com/QwenLM/Qwen3/issues/840)）。后来有人测了 Qwen2.5-7B 给 key 加的偏置：第一层的范数是 605，最后一层是 921，其余各层只有 22 左右（[llama.cpp #21385](https://github.com/ggml-org/llama.cpp/issues/21385)）；Qwen1.5 没有这种现象。前一个帖子没有说，它遇到的究竟是上面的哪一种情形。
# - **很长的推理。** 2026 年 4 月，[vLLM 项目的一份报告](https://github.com/vllm-project/vllm-project.github.io/pull/195)让 Qwen3-30B-A3B-Thinking 用 fp8（缩放因子 1.0）做几万个 token 的推理：AIME25 和另外三项测试，最多降 1 到 2 分。同一个月，SGLang 上的 GLM-5.1 在 aime26 上只得 76.7，官方成绩是 95.3，换回 bf16 就正常（[SGLang #22671](https://github.com/sgl-project/sglang/issues/22671)）。原因未必是存下来的字节：vLLM 的报告里还有一项，在 128k 个 token 里找答案，正确率从 91% 掉到 13%，是因为 kernel 累加时精度不够。
# - **没有省下显存的窗口。** 2026 年 7 月，估算工具 hf-mem 把 gpt-oss-20b 的答案从 6.09 GiB 改成 12.00 GiB，因为两类层混用的模型，推理引擎给滑动窗口的层也按全长预留（“reserve full-size pages”，[hf-mem #70](https://github.com/alvarobartt/hf-mem/pull/70)）。vLLM 这样做的时候会打印一行，说没有启用任何节省 KV 缓存的优化（[tt-xla #5727](https://github.com/tenstorrent/tt-xla/issues/5727)）。
#
# ## 练习
#
# 1. `tokens_that_fit`：块池能放多少个 token，缩放因子和整块都要算。
# 2. `quantize`：把一个 token 的各个头存成 int8。
# 3. `peak_blocks`：带窗口的层最多占多少个块。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | fp8, and not twice as many tokens | `CacheSpec.from_config(name, kv_dtype="fp8").slope()` beside that of `"bf16"`: if it is half, the pool has got smaller, and `print(llm.allocation.text())` has its terms |
# | worse answers since the cache has 8 bits | `logit_error(forced_logits(model, tokens, prefill=n, kv_dtype=...), exact).kl` for each way: large with `fp8` and small with `fp8_scaled` means numbers beyond 448; large with `int8` and small with `fp8_scaled` means a few large channels |
# | windowed layers take as much as the others | `llm.snapshot().pools`, one entry for each KV cache group: `used` of the windowed group has to stand still once the sequence is longer than its window |
# %% [markdown] key="stuck" lang="zh" src="992ddfb2"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 用了 fp8，token 数却没有翻倍 | `CacheSpec.from_config(name, kv_dtype="fp8").slope()` 与 `"bf16"` 的对照：如果是一半，那就是块池变小了，`print(llm.allocation.text())` 里有它的各项 |
# | 缓存改成 8 位之后，回答变差了 | 每种存法各看 `logit_error(forced_logits(model, tokens, prefill=n, kv_dtype=...), exact).kl`：`fp8` 大而 `fp8_scaled` 小，说明有数超过 448；`int8` 大而 `fp8_scaled` 小，说明有几个通道特别大 |
# | 滑动窗口的层占得和别的层一样多 | `llm.snapshot().pools`，每个 KV 缓存组一项：序列超过窗口之后，这一组的 `used` 应当不再增加 |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# Fewer bytes a number, fewer tokens where a window says so; and every question could still be answered.
# [Lesson 13b](13b_fewer_cheaper_steps.ipynb) saves on the steps themselves: one call starts a whole step, and a step may give several tokens.
# %% [markdown] key="next" lang="zh" src="fe82338d"
# ## 下一课
#
# 每个数少占几个字节；窗口之外的 token 不再存。到目前为止，凡是被问到的内容都还答得出来。
# [第 13b 课](13b_fewer_cheaper_steps.ipynb)从步本身来省：一次调用启动一整步，一步可以得到几个 token。
