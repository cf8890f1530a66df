# %% [meta]
# number = "13"
# slug = "half_the_bytes"
# needs = ["01", "02", "08", "09", "11a"]
# rooms = ["cache.codec", "models.fidelity"]
# [title]
# en = "What do fewer bytes cost?"
# zh = "字节少了，代价是什么？"
# [t4]
# en = "The pools and the windows run on the T4, without the rows of fp8 (e4m3), which its kernels cannot read. What the text quotes to the digit is computed by the CPU, and is the same everywhere."
# zh = "块池和滑动窗口这两处在 T4 上运行；T4 的 kernel 读不了 fp8（e4m3），所以表里没有那几行。正文逐位引用的数字由 CPU 计算，在哪里都一样。"
# [paper]
# en = "13.1, 13.3"
# zh = "13.1、13.3"

# %% [markdown] key="question" lang="en"
# ## The question
#
# You start an engine with an fp8 or int8 cache. Each number of K and V now takes one byte instead of two, so the same memory holds about twice as many tokens.
# With your first model nothing seems to change. With your second one, started with the same options, the output turns into nonsense after a few words.
# **What gets lost in eight bits, and why does one model notice nothing while another falls apart?**
#
# The picture shows one real key of tiny-gqa, 32 numbers. It draws the numbers that each format can store, and what is read back. (`fp8_scaled` is fp8 with a scale, and `fp8_e5m2` is another kind of fp8. Both are explained below.)
# %% [markdown] key="question" lang="zh" src="10cdc973"
# ## 问题
#
# 给引擎换上 fp8 或 int8 的缓存，K 和 V 的每个数从两个字节变成一个，同样的显存就能放下大约两倍的 token。
# 第一个模型看不出任何变化。换一个模型，启动参数完全一样，写不了几个词，输出就成了胡话。
# **八个比特丢掉了什么？为什么一个模型几乎不受影响，另一个却输出乱码？**
#
# 先看 tiny-gqa 的一个真实 key，它有 32 个数。图里画出了每种格式能存哪些数，以及存下来再读出的结果。（`fp8_scaled` 是带缩放因子的 fp8，`fp8_e5m2` 是另一种 fp8，下面都会讲到。）

# %% key="levels" lang="en"
import torch

from minikv.course.diagrams import number_lines
from minikv.course.lessons.l13.levels import key_row, levels_of
from minikv.models import load, recall_documents

torch.set_num_threads(1)
# The text quotes its numbers to the digit, and another device rounds otherwise: so the CPU, by name.
tiny, documents = load("tiny-gqa", device="cpu"), recall_documents(4, seed=1)
row = key_row(tiny.model, documents[0].tokens)  # the newest token's K in one head of layer 0
show(number_lines([levels_of(codec, row) for codec in ("int8", "fp8_scaled", "fp8_e5m2")], "en"))
# %% key="levels" lang="zh"
import torch

from minikv.course.diagrams import number_lines
from minikv.course.lessons.l13.levels import key_row, levels_of
from minikv.models import load, recall_documents

torch.set_num_threads(1)
# 正文逐位引用这些数字，而换一个设备，舍入就不同，所以写明用 CPU。
tiny, documents = load("tiny-gqa", device="cpu"), recall_documents(4, seed=1)
row = key_row(tiny.model, documents[0].tokens)  # 最新 token 在第 0 层一个头里的 K
show(number_lines([levels_of(codec, row) for codec in ("int8", "fp8_scaled", "fp8_e5m2")], "zh"))

# %% [markdown] key="able" lang="en"
# int8 has equal steps everywhere. fp8 has fine steps near 0 and coarse ones far out. On this row int8 is more exact. Later you will change the row so that fp8 is.
#
# After this lesson you can
#
# - **compute** how many more tokens fit in 8 bits, with scales and whole blocks included,
# - **predict** which numbers of a row a format keeps, and **measure** how much the remaining error matters to the model,
# - **compute** what a layer with a sliding window saves, and what it needs at its peak.
#
# You need the cache formula ([lesson 02](02_how_many_bytes.ipynb)), the pool ([lesson 08](08_allocate_kv_cache.ipynb)) and blocks ([lesson 09](09_pages_and_blocks.ipynb)).
# %% [markdown] key="able" lang="zh" src="56072998"
# int8 相邻两级的间距处处相等；fp8 在 0 附近很密，越远越疏。在这一行上 int8 更准，后面你会让结果反过来。
#
# 学完本课，你能
#
# - **算出**换成 8 个比特之后能多放多少 token，缩放因子和整块都计算在内；
# - **判断**一种格式能保住一行里的哪些数，并**测出**剩下的误差对模型有多大影响；
# - **算出**带滑动窗口的层能省多少，以及最多时要占多少。
#
# 需要先懂缓存公式（[第 02 课](02_how_many_bytes.ipynb)）、块池（[第 08 课](08_allocate_kv_cache.ipynb)）和块（[第 09 课](09_pages_and_blocks.ipynb)）。

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# Eight bits can count from -127 to 127, so something has to say how large a number really is. `int8` keeps a **scale** for that: one float32 (4 bytes) for each row. A row is one token's K in one KV head, `head_dim` numbers. Its V is another row, with another scale.
# %% [markdown] key="predict_first" lang="zh" src="c904a7f3"
# ## 先猜一猜
#
# 8 个比特只能从 -127 数到 127，所以还要另外记下这些数实际有多大。`int8` 的办法是给每一行配一个**缩放因子**（scale），也就是一个 float32，占 4 字节。一个 token 在一个 KV 头里的 K 是一行，共 `head_dim` 个数；它的 V 是另一行，另配一个。

# %% key="predict_int8"
predict("int8_tokens", ...)

# %% [markdown] key="formula" lang="en"
# ## What a row costs
#
# A token leaves two rows in every KV head of every layer. Each row costs its numbers and its scale:
# %% [markdown] key="formula" lang="zh" src="138e8660"
# ## 一行要花多少字节
#
# 一个 token 在每一层的每个 KV 头里留下两行。每一行的开销，是它的数加上它的缩放因子：

# %% [markdown] key="formula_math"
# $$\text{token} \;=\; 2 \cdot L \cdot H \cdot (D \cdot b + s) \qquad\qquad \frac{\text{bf16}}{\text{8 bit}} \;=\; \frac{2\,D}{D + s}$$

# %% [markdown] key="symbols" lang="en"
# | symbol | meaning | unit | value here: Llama-3.1-8B in int8 |
# |---|---|---|---|
# | $L$, $H$ | layers; KV heads | | 32; 8 |
# | $D$ | `head_dim`, the numbers of a row | numbers | 128 |
# | $b$ | bytes of a number: bf16 2, fp8 and int8 1 | bytes | 1 |
# | $s$ | bytes of a row's scale: `int8` and `fp8_scaled` 4, `bf16` and plain `fp8` 0 | bytes | 4 |
#
# `2 × 32 × 8 × (128 × 1 + 4) = 67,584` bytes a token, where bf16 takes `2 × 32 × 8 × 128 × 2 = 131,072`. The quotient is `2 × 128 / (128 + 4) = 1.94`.
#
# The 2 in front stands for K and V. Plain `fp8` has a single scale for a whole tensor, usually 1.0. That costs no bytes here, but it has another price, which we meet below.
# %% [markdown] key="symbols" lang="zh" src="0102e40b"
# | 符号 | 含义 | 单位 | 本例取值：Llama-3.1-8B，int8 |
# |---|---|---|---|
# | $L$、$H$ | 层数；KV 头数 | | 32；8 |
# | $D$ | `head_dim`，一行有多少个数 | 个 | 128 |
# | $b$ | 一个数的字节数：bf16 为 2，fp8 和 int8 为 1 | 字节 | 1 |
# | $s$ | 一行的缩放因子占多少：`int8` 和 `fp8_scaled` 为 4，`bf16` 和普通的 `fp8` 为 0 | 字节 | 4 |
#
# 代入得 `2 × 32 × 8 × (128 × 1 + 4) = 67,584` 字节，而 bf16 要 `2 × 32 × 8 × 128 × 2 = 131,072` 字节。两者相除，`2 × 128 / (128 + 4) = 1.94`。
#
# 最前面的 2 代表 K 和 V。普通的 `fp8` 整个张量只有一个缩放因子，通常就是 1.0。它在这里不占字节，但另有代价，后面会看到。

# %% [markdown] key="rows_intro" lang="en"
# Here are four models, drawn to scale. The bytes are those of one token in one KV head, two rows: `2 × 64 × 2 = 256` for gpt-oss-20b in bf16.
# %% [markdown] key="rows_intro" lang="zh" src="a4fead4e"
# 下面按比例画出四个模型。每一条是一个 token 在一个 KV 头里的字节数，也就是 K 和 V 两行，例如 gpt-oss-20b 用 bf16 是 `2 × 64 × 2 = 256`：

# %% key="rows_table" lang="en"
from minikv.course.diagrams import row_bytes

names = ("gpt-oss-20b", "Llama-3.1-8B", "Qwen3-30B-A3B", "Gemma-3-27B")
show(row_bytes(names, ("bf16", "fp8", "int8"), "en"))
# %% key="rows_table" lang="zh"
from minikv.course.diagrams import row_bytes

names = ("gpt-oss-20b", "Llama-3.1-8B", "Qwen3-30B-A3B", "Gemma-3-27B")
show(row_bytes(names, ("bf16", "fp8", "int8"), "zh"))

# %% [markdown] key="half_read" lang="en"
# So "half" is not quite half when a row has a scale. The smaller the head, the larger the share of the scale: 1.88 times for a head of 64, 1.94 times for 128.
#
# Now use the formula on a real log. vLLM was started twice with `--kv-cache-dtype fp8`. The first start had `--max-model-len 100000`:
#
# > Available KV cache memory: 10.55 GiB
# >
# > GPU KV cache size: 230,528 tokens
#
# By that line 221,000 tokens should fit. But the second start, with `--max-model-len 221000`, failed:
#
# > 10.12 GiB KV cache is needed, which is larger than the available KV cache memory (5.59 GiB). Based on the available memory, the estimated maximum model length is 122080.
#
# **Did the engine forget that a number now takes one byte?** To find out, divide bytes by tokens, three times:
# %% [markdown] key="half_read" lang="zh" src="45e96fa5"
# 也就是说，每行都有缩放因子时，“一半”并不是整整一半。头越小，缩放因子占的比例越大。头维度 64 时是 1.88 倍，128 时是 1.94 倍。
#
# 现在用这个公式来看一份真实的日志。vLLM 用 `--kv-cache-dtype fp8` 启动了两次。第一次设 `--max-model-len 100000`，可用的 KV 缓存显存是 10.55 GiB，能放 230,528 个 token：
#
# > Available KV cache memory: 10.55 GiB
# >
# > GPU KV cache size: 230,528 tokens
#
# 照这一行看，221,000 个 token 也放得下。可是第二次设成 `--max-model-len 221000`，启动就失败了，说需要 10.12 GiB，可用的只有 5.59 GiB，最长估计是 122080：
#
# > 10.12 GiB KV cache is needed, which is larger than the available KV cache memory (5.59 GiB). Based on the available memory, the estimated maximum model length is 122080.
#
# **引擎是不是忘了一个数现在只占一个字节？** 用字节数除以 token 数，三处都除一遍，就知道了：

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
# All three give about 49,150 bytes. So both starts counted the same bytes a token. The report says that the 230,528 tokens of the first start were twice as many thanks to fp8. Then the 10.12 GiB of the second are computed for fp8, too. (The number alone doesn't prove it: Qwen3-30B-A3B takes 49,152 bytes in fp8, and gpt-oss-20b in the picture above takes as many in bf16.)
#
# **So the engine forgot nothing: 10.12 GiB is the need in fp8.** The other side shrank. Between the two starts the available memory fell from 10.55 to 5.59 GiB, *before* a single block was made. As far as the report tells, only `--max-model-len` had changed.
# [Lesson 08](08_allocate_kv_cache.ipynb) has the formula for that side: the cache gets what the warm-up leaves. The error message doesn't say what took the 5 GiB, but it wasn't the cache. Exercise 13.1 is this arithmetic, with scales and whole blocks.
#
# Let us try it on this machine. We give the engine the same number of bytes each time, and count the blocks that it really makes. A head of tiny-gqa has only 32 numbers, so a scale adds an eighth to its row.
# %% [markdown] key="puzzle_read" lang="zh" src="14bf374c"
# 三处都是 49,150 字节左右。也就是说，两次启动用的是同样的每 token 字节数。原帖说，第一次的 230,528 个 token 正是用了 fp8 才翻倍的，所以第二次的 10.12 GiB 也是按 fp8 算的。（单看这个数还不能断定：Qwen3-30B-A3B 用 fp8 是 49,152 字节，上图里的 gpt-oss-20b 用 bf16 也是 49,152 字节。）
#
# **所以引擎什么也没有忘，10.12 GiB 就是 fp8 的需要**。变小的是另一边，两次启动之间，可用显存从 10.55 GiB 降到 5.59 GiB，而那时一个块都还没有建。从帖子里看，改动的只有 `--max-model-len`。
# 按[第 08 课](08_allocate_kv_cache.ipynb)的公式，预热剩下多少可用显存，缓存就得多少。那 5 GiB 被什么占去，报错里没有说，但不是缓存占的。练习 13.1 就是这笔账，缩放因子和整块都要算。
#
# 再在本机上试一遍。每次给引擎同样多的字节，数一数它实际建出多少个块。tiny-gqa 的一个头只有 32 个数，所以缩放因子让一行多出八分之一。

# %% key="capacity_real" lang="en"
from minikv import LLM
from minikv.course.lessons.l13.levels import readable

served, blocks, rows = load("tiny-gqa"), {}, []  # on the GPU, if there is one
for kv_dtype in readable(("bf16", "fp8", "fp8_scaled", "int8"), served.model.device):
    with LLM(served, kv_dtype=kv_dtype, kv_bytes=2**21, enforce_eager=True) as llm:
        blocks[kv_dtype] = llm.cache.num_blocks[0]
        rows.append([kv_dtype, blocks[kv_dtype], llm.cache.nbytes, blocks[kv_dtype] / blocks["bf16"]])
Table(["kv_dtype", "blocks", "bytes held", "times bf16's"], rows)
# %% key="capacity_real" lang="zh"
from minikv import LLM
from minikv.course.lessons.l13.levels import readable

served, blocks, rows = load("tiny-gqa"), {}, []  # 有 GPU 就在 GPU 上
for kv_dtype in readable(("bf16", "fp8", "fp8_scaled", "int8"), served.model.device):
    with LLM(served, kv_dtype=kv_dtype, kv_bytes=2**21, enforce_eager=True) as llm:
        blocks[kv_dtype] = llm.cache.num_blocks[0]
        rows.append([kv_dtype, blocks[kv_dtype], llm.cache.nbytes, blocks[kv_dtype] / blocks["bf16"]])
Table(["kv_dtype", "块数", "占用字节", "bf16 的几倍"], rows)

# %% [markdown] key="bits" lang="en"
# ## Two ways to spend eight bits
#
# **int8** has 255 levels at equal distances. The scale turns the largest number of the row into 127 (or -127), and every other number is rounded to the nearest level:
# %% [markdown] key="bits" lang="zh" src="12e50fd5"
# ## 同样 8 个比特，int8 和 fp8 的两种分配方式
#
# **int8** 有 255 级，间距相等。缩放因子让一行里绝对值最大的数变成 127（或 -127），其余的数四舍五入到最近的一级：

# %% [markdown] key="scale_math"
# $$\sigma \;=\; \frac{\max_j \lvert x_j \rvert}{127} \qquad\qquad q_j \;=\; \mathrm{round}\!\left(\frac{x_j}{\sigma}\right) \qquad\qquad \hat x_j \;=\; q_j\,\sigma$$

# %% [markdown] key="scale_symbols" lang="en"
# | symbol | meaning | value here, for the second number |
# |---|---|---|
# | $x_j$ | a number of the row | -0.413 |
# | $\sigma$ | the row's scale: the distance between two levels | 2.54 / 127 = 0.02 |
# | $q_j$ | the level that is stored, a whole number in one byte | round(-0.413 / 0.02) = -21 |
# | $\hat x_j$ | what attention reads | -21 × 0.02 = -0.42 |
#
# The number is off by `0.42 - 0.413 = 0.007`. It can never be more than half a level, here 0.01. A row of four numbers, stored by the package:
# %% [markdown] key="scale_symbols" lang="zh" src="99041776"
# | 符号 | 含义 | 本例取值（第二个数） |
# |---|---|---|
# | $x_j$ | 一行里的一个数 | -0.413 |
# | $\sigma$ | 这一行的缩放因子，也就是相邻两级的间距 | 2.54 / 127 = 0.02 |
# | $q_j$ | 存下来的级数，一个字节的整数 | round(-0.413 / 0.02) = -21 |
# | $\hat x_j$ | 注意力读到的数 | -21 × 0.02 = -0.42 |
#
# 误差是 `0.42 - 0.413 = 0.007`。误差最多是间距的一半，这里是 0.01。下面用本包存四个数的一行：

# %% key="four" lang="en"
from minikv.cache import find_codec

codec, four = find_codec("int8"), torch.tensor([[0.034, -0.413, 1.105, -2.54]])
numbers, scale = codec.encode(four)  # int8 [1, 4], and one float32 for the row
back = codec.decode(numbers, scale, torch.float32)
pairs = zip(four[0].tolist(), numbers[0].tolist(), back[0].tolist())
rows = [[f"{x:.3f}", f"{x / scale.item():.2f}", q, f"{read:.3f}", f"{abs(read - x):.3f}"] for x, q, read in pairs]
head = ["number", "number / scale", "level", "read back", "error"]
Table(head, rows, right=head, lines=[f"scale: {scale.item():.3f}"])
# %% key="four" lang="zh"
from minikv.cache import find_codec

codec, four = find_codec("int8"), torch.tensor([[0.034, -0.413, 1.105, -2.54]])
numbers, scale = codec.encode(four)  # int8 [1, 4]，整行一个 float32
back = codec.decode(numbers, scale, torch.float32)
pairs = zip(four[0].tolist(), numbers[0].tolist(), back[0].tolist())
rows = [[f"{x:.3f}", f"{x / scale.item():.2f}", q, f"{read:.3f}", f"{abs(read - x):.3f}"] for x, q, read in pairs]
head = ["数", "数 / 缩放因子", "级", "读出", "误差"]
Table(head, rows, right=head, lines=[f"缩放因子：{scale.item():.3f}"])

# %% [markdown] key="floats" lang="en"
# **fp8** (e4m3) is a small floating-point number with 4 bits for the exponent and 3 for the mantissa (the digits). Its steps are fine near 0 and coarse far out, and it ends at 448. **e5m2** gives one more bit to the exponent and one fewer to the mantissa, so it reaches 57,344 with coarser steps.
#
# Now a row with one very large number, stored in each way and read again:
# %% [markdown] key="floats" lang="zh" src="985fa522"
# **fp8**（e4m3）是小号的浮点数，指数 4 位，尾数 3 位。它在 0 附近很细，越远越粗，到 448 为止。**e5m2** 的指数多一位，尾数少一位，所以能到 57,344，但每一级更粗。
#
# 再来一行，里面有一个特别大的数。分别用几种方式存下来，再读出来：

# %% key="stored" lang="en"
row_of_five = torch.tensor([[0.011, -0.13, 0.9, -6.0, 500.0]])
rows = []
for name in ("bf16", "fp8", "fp8_e5m2", "fp8_scaled", "int8"):
    codec = find_codec(name)
    back = codec.decode(*codec.encode(row_of_five), torch.float32)  # what attention reads
    rows.append([name, *(f"{float(x):.4g}" for x in back[0])])
head = [f"{float(x):g}" for x in row_of_five[0]]
Table(["", *head], rows, right=head)
# %% key="stored" lang="zh"
row_of_five = torch.tensor([[0.011, -0.13, 0.9, -6.0, 500.0]])
rows = []
for name in ("bf16", "fp8", "fp8_e5m2", "fp8_scaled", "int8"):
    codec = find_codec(name)
    back = codec.decode(*codec.encode(row_of_five), torch.float32)  # 注意力读到的就是它
    rows.append([name, *(f"{float(x):.4g}" for x in back[0])])
head = [f"{float(x):g}" for x in row_of_five[0]]
Table(["", *head], rows, right=head)

# %% [markdown] key="stored_read" lang="en"
# A single 500 spoils the row for int8: the step is 500 / 127 = 3.94 here, so 0.9 becomes 0. Every kind of fp8 keeps the small numbers, but plain `fp8`, without a scale, cuts the 500 off at 448.
# %% [markdown] key="stored_read" lang="zh" src="03ebdb68"
# 只要有一个 500，int8 就顾不上其他的数了，因为这里的间距是 500 / 127 = 3.94，所以 0.9 变成了 0。几种 fp8 都留住了小的数，只是没有缩放因子的 `fp8` 把 500 截断成了 448。

# %% key="predict_levels"
predict("levels", ...)

# %% [markdown] key="bound" lang="en"
# How far off can a number be? `Codec.error_bound` answers that for every element: half the distance between the two levels around it. (A number below half a level becomes 0, so its error is the number itself.) Here is the bound as a share of the number, for a row in which the largest number is 1:
# %% [markdown] key="bound" lang="zh" src="70528842"
# 一个数最多会差多少？`Codec.error_bound` 对每个元素都能给出答案，也就是它左右两级间距的一半。（不到半级的数变成 0，误差就是它本身。）设一行里最大的数为 1，下面画出这个上限占数本身的百分之几：

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
# int8's steps are equal, so the smaller a number is, the larger a share of it is lost, until nothing is left. fp8 loses about the same share of every number. The two lines cross at about a fourteenth of the largest number. Below that `fp8_scaled` is more exact. Where all numbers of a row have a similar size, int8 is more exact: its error is down to a ninth.
#
# So the answer depends on the numbers in the row, and therefore on the model. (In exercise 13.2 you store a token's heads as int8.)
#
# ## What the model notices
#
# The numbers of the cache pass through attention and end as **logits**. To see the effect, we run the same tokens through two caches, with the same weights and in float32, so that only the stored numbers differ. `forced_logits` does this. It gives the model the next token each time, whatever the model would have chosen.
# %% [markdown] key="bound_read" lang="zh" src="60952361"
# int8 的间距相等，所以数越小，丢掉的比例越大，最后一点不剩。fp8 对每个数丢掉的比例差不多。两条线在最大数的十四分之一附近相交。比这更小的数，`fp8_scaled` 更准；如果一行里的数大小相近，则是 int8 更准，误差最多能小到九分之一。
#
# 所以结果取决于行里是什么样的数，也就是取决于模型。（练习 13.2：把一个 token 的各个头存成 int8。）
#
# ## 模型察觉到了什么
#
# 缓存里的数经过注意力，最后变成 **logits**。要看影响有多大，就让同样的 token 各走一遍两份缓存，其中权重相同，都用 float32 计算，不同的只有存下来的数。`forced_logits` 做的就是这件事，下一个 token 每次都是给定的，不用模型自己选出的那个。

# %% key="logits" tags="hardware" lang="en"
from minikv.models.fidelity import forced_logits, logit_error

stored = ("bf16", "fp8", "fp8_e5m2", "fp8_scaled", "int8")
tokens = [document.tokens for document in documents]
# 193 tokens at once, then one by one: [4 texts, 65 positions, vocabulary]
exact, found, rows = forced_logits(tiny.model, tokens, prefill=193), {}, []
for kv_dtype in stored:
    found[kv_dtype] = forced_logits(tiny.model, tokens, prefill=193, kv_dtype=kv_dtype)
    error = logit_error(found[kv_dtype], exact)
    rows.append([kv_dtype, f"{error.mean_abs:.4f}", f"{error.max_abs:.4f}", f"{error.kl:.6f}", f"{error.same_top:.1%}"])
head = ["mean", "max", "KL (nats)", "same top"]
line = f"{error.positions} positions; the logits of one position have a standard deviation of {error.spread:.2f}"
Table(["", *head], rows, right=head, lines=[line])
# %% key="logits" tags="hardware" lang="zh"
from minikv.models.fidelity import forced_logits, logit_error

stored = ("bf16", "fp8", "fp8_e5m2", "fp8_scaled", "int8")
tokens = [document.tokens for document in documents]
# 先一次算 193 个 token，再逐个算：[4 篇, 65 个位置, 词表大小]
exact, found, rows = forced_logits(tiny.model, tokens, prefill=193), {}, []
for kv_dtype in stored:
    found[kv_dtype] = forced_logits(tiny.model, tokens, prefill=193, kv_dtype=kv_dtype)
    error = logit_error(found[kv_dtype], exact)
    rows.append([kv_dtype, f"{error.mean_abs:.4f}", f"{error.max_abs:.4f}", f"{error.kl:.6f}", f"{error.same_top:.1%}"])
head = ["平均", "最大", "KL 散度（nat）", "首位相同"]
line = f"{error.positions} 个位置；同一位置各个 logit 的标准差是 {error.spread:.2f}"
Table(["", *head], rows, right=head, lines=[line])

# %% [markdown] key="logits_read" lang="en"
# - **mean** and **max** say how far a logit is off. Compare them with the standard deviation in the last line.
# - **KL** says how far the whole distribution is off, in nats; 0 means no difference. It has no threshold, and an error twice as large makes it about four times as large.
# - **same top** says how often the likeliest token is still the same.
#
# And the answers? tiny-gqa has learned to find a city that was named 200 tokens earlier, so every right answer has to come out of the cache:
# %% [markdown] key="logits_read" lang="zh" src="3799dd9f"
# - **平均、最大**：logit 差了多少。拿它与最后一行的标准差比。
# - **KL**：整个分布差了多少，单位是 nat，0 表示完全相同。它没有门槛；误差变成两倍，它大约变成四倍。
# - **首位相同**：最可能的那个 token，有多大比例没有变。
#
# 那么回答呢？tiny-gqa 学过的，就是找回两百个 token 之前提到的城市，所以每个正确的回答都只能来自缓存：

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
# No answer is lost, not even with e5m2, although its logits are off the most.
# That is because such a score only looks at which token came first. The **margin** is the distance from the highest logit to the second highest. As long as no logit is off by more than half the margin, the score doesn't change:
# %% [markdown] key="recall_read" lang="zh" src="14239948"
# 一个回答也没有丢，连 logits 偏得最多的 e5m2 也没有。
# 原因是这类分数只看哪个 token 排第一。第一名与第二名的 logit 之差叫**差距**（margin），只要误差不超过它的一半，分数就毫无反应。

# %% key="margin" tags="hardware" lang="en"
top = exact.topk(2, dim=-1).values  # [4, 65, 2]: the two likeliest tokens
margins = top[..., 0] - top[..., 1]  # [4, 65]
answers = torch.zeros_like(margins, dtype=torch.bool)
for number, document in enumerate(documents):
    answers[number, document.positions - 192] = True  # position 192 is the first that forced_logits returns
rows = []
for what, some in (("answers", answers), ("other words", ~answers)):
    off = [float((found[kv_dtype] - exact).abs()[some].max()) for kv_dtype in ("int8", "fp8_e5m2")]
    rows.append([what, float(margins[some].min()), float(margins[some].median()), *off])
Table(["", "smallest margin", "median", "largest error, int8", "fp8_e5m2"], rows)
# %% key="margin" tags="hardware" lang="zh"
top = exact.topk(2, dim=-1).values  # [4, 65, 2]：最可能的两个 token
margins = top[..., 0] - top[..., 1]  # [4, 65]
answers = torch.zeros_like(margins, dtype=torch.bool)
for number, document in enumerate(documents):
    answers[number, document.positions - 192] = True  # forced_logits 返回的第一个位置是 192
rows = []
for what, some in (("回答", answers), ("其他的词", ~answers)):
    off = [float((found[kv_dtype] - exact).abs()[some].max()) for kv_dtype in ("int8", "fp8_e5m2")]
    rows.append([what, float(margins[some].min()), float(margins[some].median()), *off])
Table(["", "最小的差距", "中位数", "最大误差，int8", "fp8_e5m2"], rows)

# %% [markdown] key="margin_read" lang="en"
# The answers are far ahead of the second token, by 9.47 at least. The words between them are not. There several tokens are often nearly as likely, and a small error is enough to change their order.
#
# So let us ask for more than one word. We take sixteen prompts and 100 greedy tokens each, and count the texts that still equal those of the exact cache, up to a given length:
# %% [markdown] key="margin_read" lang="zh" src="452bf483"
# 回答遥遥领先，差距最小也有 9.47。回答之间的词就不是了，那里常有几个 token 几乎同样可能，一点点误差就足以改变名次。
#
# 所以别只问一个词。我们取 16 个提示词，各用贪心解码生成 100 个 token，数一数到某个长度为止，有多少篇与精确缓存给出的一字不差：

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
Table(["same texts (of 16), tokens compared:", *(str(length) for length in lengths)], rows)
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
Table(["相同的篇数（共 16 篇），比较前几个 token：", *(str(length) for length in lengths)], rows)

# %% [markdown] key="texts_read" lang="en"
# The first word is right everywhere. The longer the text, the fewer are the same. If each token changes with probability $p$, a text of $n$ tokens stays as it was with probability
#
# $$(1 - p)^n \;\approx\; e^{-n\,p}$$
#
# | symbol | meaning | value here: `fp8` |
# |---|---|---|
# | $n$ | tokens of the text | 100 |
# | $(1 - p)^n$ | the share of texts that stay the same | 10 / 16 = 0.625 |
# | $p$ | the probability that one token changes | 1 - 0.625^(1/100) = 0.47 % |
#
# At that rate a text of 1,000 tokens stays the same with `0.625^10 = 0.9 %`.
#
# A text that differs isn't necessarily wrong: another filler word is just as good. But in a long chain of reasoning each step builds on the one before, so every change is a chance to go astray. **Short answers can't tell you what happens in long ones, and results of another model promise nothing for yours.** (*In the wild* has two such reports with opposite results.) So measure logits, KL, and texts as long as those you will serve, with *your* model.
# %% [markdown] key="texts_read" lang="zh" src="88712684"
# 第一个词全都对；文本越长，相同的越少。如果每个 token 发生改变的概率是 $p$，那么 $n$ 个 token 的文本保持原样的概率是
#
# $$(1 - p)^n \;\approx\; e^{-n\,p}$$
#
# | 符号 | 含义 | 本例取值：`fp8` |
# |---|---|---|
# | $n$ | 文本的 token 数 | 100 |
# | $(1 - p)^n$ | 保持原样的文本占多少 | 10 / 16 = 0.625 |
# | $p$ | 一个 token 改变的概率 | 1 - 0.625^(1/100) = 0.47% |
#
# 照这个概率，1,000 个 token 的文本保持原样的只有 `0.625^10 = 0.9%`。
#
# 文本不同，不等于错了，因为换一个填充词也无妨。可是在很长的推理里，每一步都建立在前一步之上，每次改变都可能让它走偏。**短回答测不出长回答会怎样，别的模型的结果也不能替你的模型作保。**（“实战现场”里有两份这样的报告，结果正好相反。）所以要用**你自己的**模型测 logits、测 KL，再测与实际一样长的文本。

# %% [markdown] key="windows" lang="en"
# ## Fewer tokens: windows that give blocks back
#
# You can also save bytes by holding fewer tokens. A layer with a sliding window of $W$ tokens only reads the last $W$, so it doesn't need the others ([lesson 09](09_pages_and_blocks.ipynb)).
#
# How much does that save for gpt-oss-20b, with 32 sequences of 8,192 tokens in bf16?
# %% [markdown] key="windows" lang="zh" src="7e7e5f13"
# ## 少存 token：会归还块的窗口
#
# 另一种省字节的办法，是少存 token。滑动窗口为 $W$ 的层只读最近的 $W$ 个 token，其余的用不着（[第 09 课](09_pages_and_blocks.ipynb)）。
#
# 以 gpt-oss-20b 为例，32 条序列，每条 8,192 个 token，用 bf16，能省多少？

# %% key="oss" lang="en"
from minikv.plan.pool import kv_cache_groups, sequence_bytes

oss = CacheSpec.from_config("gpt-oss-20b", kv_dtype="bf16", layout="vllm")
rows = [
    ["every layer keeps all tokens", 32 * 8192 * oss.slope() / GIB],
    ["windowed layers keep their window", oss.bytes_for(8192, batch=32) / GIB],
    ["the same in whole blocks of 16, with a pool for each group", 32 * sequence_bytes(oss, 8192, 16) / GIB],
]
groups = kv_cache_groups(oss)
kinds = {None: "no window", 128: "a window of 128"}
lines_below = [f"{group.count} layers, {kinds[group.layer.window]}: {group.layer.blocks_for(8192, 16)} blocks a sequence" for group in groups]
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
kinds = {None: "没有窗口", 128: "窗口 128"}
lines_below = [f"{group.count} 层，{kinds[group.layer.window]}：每条序列 {group.layer.blocks_for(8192, 16)} 个块" for group in groups]
Table(["", "GiB"], [[what, f"{gib:.2f}"] for what, gib in rows], right=["GiB"], lines=lines_below)

# %% [markdown] key="oss_read" lang="en"
# 12.00 and 6.11 GiB are both right, for two different engines. A window saves memory only if its layers have a pool of their own, and if the engine gives their blocks back.
# (A window of 128 tokens takes 9 blocks of 16 and not 8, because it usually begins in the middle of a block.)
# %% [markdown] key="oss_read" lang="zh" src="ec9d5609"
# 12.00 GiB 和 6.11 GiB 都对，说的是两种引擎。窗口要省得下显存，有两个条件，一是带窗口的层有自己的块池，二是引擎真的归还它们的块。（128 个 token 的窗口要 9 个 16 的块，而不是 8 个，因为窗口一般从某个块的中间开始。）

# %% key="predict_window"
predict("window_blocks", ...)

# %% [markdown] key="gemma" lang="en"
# Now a real engine runs: a small Gemma 3 with random weights. It has five layers with a window of 64 tokens for each one without, and one sequence grows to four times the window. Before you run the cell: which of the two lines keeps rising?
# %% [markdown] key="gemma" lang="zh" src="3f3f3a36"
# 换成真正的引擎，跑一个权重随机的小 Gemma 3，每五层滑动窗口（64 个 token）配一层全注意力，一条序列长到窗口的四倍。运行之前先想一想：两条线里，哪一条会一直往上走？

# %% key="gemma_model"
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

torch.manual_seed(0)
config = Gemma3TextConfig(
    vocab_size=200, hidden_size=64, intermediate_size=128, num_hidden_layers=6, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, sliding_window=64, max_position_embeddings=1024, dtype="float32",
)
gemma = Gemma3ForCausalLM(config).to(served.model.device).eval()

# %% key="gemma_run" lang="en"
from minikv.engine import EventLog

log = EventLog()
with LLM(gemma, num_blocks=64, max_num_seqs=8, max_batched_tokens=32, emit=log) as llm:
    llm.overlaps = False  # a GPU would take the blocks of the next step before this one has ended
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
    llm.overlaps = False  # 否则在 GPU 上，这一步还没结束，下一步的块就已经取好了
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
# In decode the sequence holds at most what the plan says: 16 blocks without a window, 5 with it.
#
# During the prompt the layers with a window needed 6. The first query of a chunk reads a whole window, and the chunk's own tokens are written before any block goes back: `(64 + 32) / 16 = 6`. So the *most* that such a layer holds depends on the size of the chunks, and a pool planned for decode alone is too small. (Exercise 13.3 asks for that peak.)
# %% [markdown] key="gemma_read" lang="zh" src="5ec4046e"
# 解码时，这条序列占的不超过计划，没有窗口的层 16 个块，带窗口的 5 个。
#
# 算提示词时，带窗口的层却用到了 6 个块。因为一段里的第一个 query 要读满整个窗口，而归还任何块之前，这一段自己的 token 也得先写进来：`(64 + 32) / 16 = 6`。所以这样的层**最多**占多少，取决于每段有多长；块池如果只按解码来计划，就会不够。（练习 13.3 求的就是这个峰值。）

# %% [markdown] key="break" lang="en"
# ## Break it
#
# ### The same model, with larger keys
#
# Attention only sees products of queries and keys. So we can multiply two channels of every key by 64, and divide the same channels of every query by 64. No product changes, and without quantization the model answers the same, bit for bit. (It takes two channels, because RoPE rotates them as a pair.) Later we enlarge all 32.
#
# Here is the key from the beginning once more, with two channels 64 times as large. The picture shows the range of the other thirty:
# %% [markdown] key="break" lang="zh" src="4f9ea24e"
# ## 弄坏它
#
# ### 同一个模型，更大的 key
#
# 注意力只看 query 与 key 的乘积。所以我们可以把每个 key 的两个通道乘以 64，同时把每个 query 的这两个通道除以 64。这样所有乘积都不变，不量化时，模型的输出一个比特也不差。（要动两个通道，因为 RoPE 把它们成对旋转。）后面再把 32 个通道全部这样改。
#
# 还是开头的那个 key，其中两个通道放大到 64 倍。图里画的是另外三十个数所在的范围：

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
# Do the answers suffer? We ask some of the questions from above, with larger and larger keys. Before you run the cell: which column breaks first with two channels, and which with all of them?
# %% [markdown] key="break_levels_read" lang="zh" src="1cf1474f"
# int8 给三十个数只剩下三级，其中十个变成了 0。
#
# 回答会受影响吗？还是前面的一部分问题，让 key 一次比一次大。运行之前先想一想：只动两个通道，哪一列最先坏？全都动呢？

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
# **The same model and the same products, yet the score falls from all answers to none.** No error is raised anywhere. Each way of storing fails in its own way:
#
# - **int8** takes its step from the row's largest number. Two large channels leave no levels for the other thirty. If all channels are large, the scale covers them, and nothing is lost.
# - **fp8** has no scale of its own. If two channels exceed 448, those two are cut off and the others stay as they were. If all exceed it, only their signs are left. This is what "scale 1.0" means, and why an engine warns about it.
# - **fp8_scaled** survives both cases: the scale brings the largest number to 448, and the steps of a float follow the size of each number.
# - **fp8_e5m2** reaches 57,344, and pays for it with coarser steps everywhere.
#
# That answers the question at the beginning. What a model notices depends on the size of its keys and values, and you can't see that from outside.
#
# ### What to do about it
#
# One way is fp8 with a scale. Another is to change which numbers share a scale. An **outlier**, a number far larger than the rest of its row, sits in the same channels for every token, so a scale *for each channel* confines it. Here are the keys of a whole text, stored as int8 in five ways. The errors are those of the thirty channels that stay as they were:
# %% [markdown] key="break_outlier_read" lang="zh" src="48be103d"
# **同一个模型，同样的乘积，却从全对变成了全错**。哪里都没有报错，每种存法各有各的坏法：
#
# - **int8** 的间距由一行里最大的数决定。两个通道特别大，另外三十个就分不到级数；如果所有通道都一样大，缩放因子正好管住，什么也不丢。
# - **fp8** 没有自己的缩放因子。两个通道超过 448，这两个就被截断，其他的照旧；如果全都超过，就只剩下正负号。所谓“缩放因子 1.0”就是这个意思，引擎也因此会发出警告。
# - **fp8_scaled** 两种情形都经得起，因为缩放因子把最大的数放到 448，而浮点数的间距随每个数的大小而变。
# - **fp8_e5m2** 能到 57,344，代价是每一级都更粗。
#
# 开头的问题就有了答案。模型察觉到多少，取决于它的 key 和 value 有多大，而这从外面看不出来。
#
# ### 怎么办
#
# 一种办法是给 fp8 配上缩放因子，另一种是改变哪些数共用一个缩放因子。比同一行其他数大得多的数叫**异常值**（outlier），它在每个 token 里都出现在相同的通道，所以**每个通道**各配一个，就能把它关在这个通道里。下面把一整篇文本的 key 用五种方式存成 int8，误差只算没有改动的三十个通道：

# %% key="shared" lang="en"
from minikv.course.diagrams import scale_shapes
from minikv.course.lessons.l13.levels import cached_keys
from minikv.course.lessons.l13.scales import WAYS, shared_scale

larger = enlarge_keys(load("tiny-gqa", device="cpu").model, factor=64, pairs=1)
others = [channel for channel in range(32) if channel % 16]  # all but the enlarged pair, 0 and 16
models = {"as they are": tiny.model, "two channels 64 times as large": larger}
keys = {name: cached_keys(model, documents[0].tokens) for name, model in models.items()}  # [2, T, 32]
show(scale_shapes({name: [shared_scale(each, way, others) for way in WAYS] for name, each in keys.items()}, "en"))
# %% key="shared" lang="zh"
from minikv.course.diagrams import scale_shapes
from minikv.course.lessons.l13.levels import cached_keys
from minikv.course.lessons.l13.scales import WAYS, shared_scale

larger = enlarge_keys(load("tiny-gqa", device="cpu").model, factor=64, pairs=1)
others = [channel for channel in range(32) if channel % 16]  # 除去放大的一对：0 和 16
models = {"原样": tiny.model, "两个通道放大到 64 倍": larger}
keys = {name: cached_keys(model, documents[0].tokens) for name, model in models.items()}  # [2, T, 32]
show(scale_shapes({name: [shared_scale(each, way, others) for way in WAYS] for name, each in keys.items()}, "zh"))

# %% [markdown] key="rotate_intro" lang="en"
# With one scale for each channel the error stays at 0.0042. With one for each row, as our engine stores it, the error grows from 0.0051 to 0.249, which is 49 times as much. So why not always store by channel? The largest number of a channel is known only once all tokens are there, and the next token may exceed it. [KIVI](https://arxiv.org/abs/2402.02750) therefore stores keys by channel, in groups of tokens, and values by token.
#
# You can also remove the outlier before storing. Rotate K and Q by the same matrix after RoPE: again no product changes, but one large number is spread over the whole row. A Hadamard matrix, with entries of the same size everywhere, does it:
# %% [markdown] key="rotate_intro" lang="zh" src="b2ab61f2"
# 每个通道一个缩放因子，误差始终是 0.0042；每行一个（我们的引擎就这样存），误差从 0.0051 升到 0.249，是原来的 49 倍。那为什么不都按通道来存？因为一个通道里最大的数，要等所有 token 到齐才知道，下一个 token 还可能超过它。所以 [KIVI](https://arxiv.org/abs/2402.02750) 存 key 时按通道，并把 token 分成小组；存 value 时按 token。
#
# 还可以在存之前先把异常值摊平：在 RoPE 之后，用同一个矩阵旋转 K 和 Q。乘积照样不变，一个大数却摊到了整行上。例如用 Hadamard 矩阵，它的各个元素大小都相同：

# %% key="break_rotate" lang="en"
rotation = torch.ones(1, 1)
while len(rotation) < 32:  # a Hadamard matrix, orthogonal: [n, n] becomes [2n, 2n]
    rotation = torch.cat([torch.cat([rotation, rotation], 1), torch.cat([rotation, -rotation], 1)]) / 2**0.5
keys = torch.randn(1000, 32, generator=torch.Generator().manual_seed(0))  # [1000 tokens, 32 channels]
keys[:, 5] *= 64
codec, others, rows = find_codec("int8"), torch.arange(32) != 5, []
for name, turn in (("stored as it is", torch.eye(32)), ("rotated before, and back after", rotation)):
    back = codec.decode(*codec.encode(keys @ turn)) @ turn.T  # [1000, 32]; the rotation is orthogonal, so turn.T is its inverse
    rows.append([name, f"{float((back - keys)[:, others].square().mean().sqrt()):.3f}"])
Table(["int8, one channel 64 times as large", "error of the others, which are about 1"], rows)
# %% key="break_rotate" lang="zh"
rotation = torch.ones(1, 1)
while len(rotation) < 32:  # Hadamard 矩阵，正交：[n, n] 变成 [2n, 2n]
    rotation = torch.cat([torch.cat([rotation, rotation], 1), torch.cat([rotation, -rotation], 1)]) / 2**0.5
keys = torch.randn(1000, 32, generator=torch.Generator().manual_seed(0))  # [1000 个 token, 32 个通道]
keys[:, 5] *= 64
codec, others, rows = find_codec("int8"), torch.arange(32) != 5, []
for name, turn in (("直接存", torch.eye(32)), ("先旋转，读出后转回来", rotation)):
    back = codec.decode(*codec.encode(keys @ turn)) @ turn.T  # [1000, 32]；正交矩阵的逆就是转置 turn.T
    rows.append([name, f"{float((back - keys)[:, others].square().mean().sqrt()):.3f}"])
Table(["int8，一个通道放大到 64 倍", "其他数的误差（它们本身约为 1）"], rows)

# %% [markdown] key="check_yourself" lang="en"
# The error of the other numbers falls to a fifth. After the rotation every number of a row carries a part of the large one, so no number needs a step that is too coarse for the rest.
#
# ## Recap
#
# - fp8 takes half of bf16's bytes. int8 adds a scale of 4 bytes to each row, so it holds 1.88 times the tokens at `head_dim` 64, and 1.94 times at 128.
# - int8's levels have equal distances, set by the largest number of the row. fp8's steps follow the size of each number, and end at 448 without a scale.
# - An error goes unnoticed until it is larger than half the margin, so all 64 answers stayed right. Long texts notice first: with fp8, 10 of 16 were the same after 100 tokens.
# - Two channels 64 times as large leave int8 three levels for the other thirty. `fp8_scaled`, a scale for each channel or a rotation keeps them.
# - A window saves memory only where its layers have a pool of their own: 6.11 instead of 12.00 GiB for gpt-oss-20b. Their peak comes in the prompt.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="check_yourself" lang="zh" src="1330c9b8"
# 其他数的误差降到了原来的五分之一。因为旋转之后，大数分摊到了这一行的每个数上，没有哪个数再让间距大到别的数存不下。
#
# ## 本课小结
#
# - fp8 的字节数是 bf16 的一半。int8 每行多一个 4 字节的缩放因子，所以 `head_dim` 为 64 时能放 1.88 倍的 token，为 128 时 1.94 倍。
# - int8 的间距处处相等，由一行里最大的数决定；fp8 的间距随数的大小而变，没有缩放因子时到 448 为止。
# - 误差不超过差距的一半，就察觉不到，所以 64 个回答全都答对。最先察觉的是长文本：用 fp8，到 100 个 token 时，16 篇里只有 10 篇相同。
# - 两个通道放大到 64 倍，int8 留给其余三十个的就只有三级；用 `fp8_scaled`、每个通道一个缩放因子或者先旋转，都能保住它们。
# - 带窗口的层有自己的块池，窗口才省得下显存，例如 gpt-oss-20b 是 6.11 GiB，而不是 12.00 GiB。占得最多的时候是算提示词时。
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
# ## Exercises
#
# 1. `tokens_that_fit`: how many tokens a pool holds, with scales and whole blocks.
# 2. `quantize`: a token's heads as int8.
# 3. `peak_blocks`: the most blocks that a layer with a window ever holds.
# %% [markdown] key="exercises" lang="zh" src="3b6f6026"
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
# | fp8, and not twice as many tokens | Compare `CacheSpec.from_config(name, kv_dtype="fp8").slope()` with that of `"bf16"`. If it is half, the pool has become smaller, and `print(llm.allocation.text())` shows its terms |
# | worse answers since the cache has 8 bits | `logit_error(forced_logits(model, tokens, prefill=n, kv_dtype=...), exact).kl` for each way. Large with `fp8` and small with `fp8_scaled` means numbers beyond 448; large with `int8` and small with `fp8_scaled` means a few large channels |
# | windowed layers take as much as the others | `llm.snapshot().pools`, one entry for each KV cache group: `used` of the windowed group has to stop growing once the sequence is longer than its window |
# %% [markdown] key="stuck" lang="zh" src="a113f3b4"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 用了 fp8，token 数却没有翻倍 | 比较 `"fp8"` 与 `"bf16"` 的 `CacheSpec.from_config(name, kv_dtype="fp8").slope()`：如果是一半，那就是块池变小了，`print(llm.allocation.text())` 里有它的各项 |
# | 缓存改成 8 位之后，回答变差了 | 每种存法各看 `logit_error(forced_logits(model, tokens, prefill=n, kv_dtype=...), exact).kl`：`fp8` 大而 `fp8_scaled` 小，说明有数超过 448；`int8` 大而 `fp8_scaled` 小，说明有几个通道特别大 |
# | 滑动窗口的层占得和别的层一样多 | `llm.snapshot().pools`，每个 KV 缓存组一项：序列超过窗口之后，这一组的 `used` 应当不再增加 |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - **221,000 tokens that did not fit.** The log of this lesson is [vLLM #25350](https://github.com/vllm-project/vllm/issues/25350) of September 2025, titled "The maximum model length calculation should also take into account the kv-cache-dtype". The calculation did; the available memory had shrunk. (In an older version the warm-up ran a prompt of exactly the maximum length, [#8185](https://github.com/vllm-project/vllm/issues/8185).)
# - **Nonsense after several words.** In August 2024 a user served Qwen2 with an fp8 cache and got repetitions, while Mistral, GLM4 and Qwen1.5 were fine with the same options ([Qwen #840](https://github.com/QwenLM/Qwen3/issues/840)). The key bias of Qwen2.5-7B was measured later. Its norm is 605 in the first layer and 921 in the last, but about 22 in the others ([llama.cpp #21385](https://github.com/ggml-org/llama.cpp/issues/21385)). Qwen1.5 has no such outliers. The first thread doesn't say which of the faults above it was. A fork of llama.cpp rotates keys with a Hadamard matrix ([PR #1033](https://github.com/ikawrakow/ik_llama.cpp/pull/1033)).
# - **Long reasoning.** In April 2026 [a report of the vLLM project](https://github.com/vllm-project/vllm-project.github.io/pull/195) let Qwen3-30B-A3B-Thinking reason over tens of thousands of tokens with fp8 and scale 1.0. It lost at most 1 to 2 points on AIME25 and three other tests. In the same month GLM-5.1 in SGLang scored 76.7 on aime26 instead of 95.3, and bf16 put it right ([SGLang #22671](https://github.com/sgl-project/sglang/issues/22671)). The stored bytes need not be the cause: the vLLM report also tells of a search in 128k tokens that fell from 91 % to 13 % because a kernel summed too coarsely.
# - **Windows that save nothing.** In July 2026 the estimator hf-mem changed its answer for gpt-oss-20b from 6.09 to 12.00 GiB, because engines "reserve full-size pages" for windowed layers of mixed models ([hf-mem #70](https://github.com/alvarobartt/hf-mem/pull/70)). vLLM says so where it does: "we do not enable any optimizations for saving KV cache memory (e.g., dropping the KV cache outside the sliding window)" ([tt-xla #5727](https://github.com/tenstorrent/tt-xla/issues/5727)).
# %% [markdown] key="wild" lang="zh" src="d4beedbd"
# ## 实战现场
#
# - **放不下的 221,000 个 token。** 本课的日志出自 2025 年 9 月的 [vLLM #25350](https://github.com/vllm-project/vllm/issues/25350)，标题的意思是“计算最大长度时也应当考虑 kv-cache-dtype”。其实计算时已经考虑了，变小的是可用的显存。（在更早的版本里，预热时跑的提示词正好是最大长度，见 [#8185](https://github.com/vllm-project/vllm/issues/8185)。）
# - **几个词之后就是胡话。** 2024 年 8 月，一位用户用 fp8 缓存部署 Qwen2，输出不断重复；同样的参数，Mistral、GLM4 和 Qwen1.5 都正常（[Qwen #840](https://github.com/QwenLM/Qwen3/issues/840)）。后来有人测了 Qwen2.5-7B 给 key 加的偏置：第一层的范数是 605，最后一层是 921，其余各层只有 22 左右（[llama.cpp #21385](https://github.com/ggml-org/llama.cpp/issues/21385)）；Qwen1.5 没有这种现象。前一个帖子没有说，它遇到的究竟是上面的哪一种情形。llama.cpp 的一个分支用 Hadamard 矩阵旋转 key（[PR #1033](https://github.com/ikawrakow/ik_llama.cpp/pull/1033)）。
# - **很长的推理。** 2026 年 4 月，[vLLM 项目的一份报告](https://github.com/vllm-project/vllm-project.github.io/pull/195)让 Qwen3-30B-A3B-Thinking 用 fp8（缩放因子 1.0）做几万个 token 的推理：AIME25 和另外三项测试，最多降 1 到 2 分。同一个月，SGLang 上的 GLM-5.1 在 aime26 上只得 76.7，官方成绩是 95.3，换回 bf16 就正常（[SGLang #22671](https://github.com/sgl-project/sglang/issues/22671)）。原因未必是存下来的字节：vLLM 的报告里还有一项，在 128k 个 token 里找答案，正确率从 91% 掉到 13%，是因为 kernel 累加时精度不够。
# - **没有省下显存的窗口。** 2026 年 7 月，估算工具 hf-mem 把 gpt-oss-20b 的答案从 6.09 GiB 改成 12.00 GiB，因为两类层混用的模型，推理引擎给滑动窗口的层也按全长预留（“reserve full-size pages”，[hf-mem #70](https://github.com/alvarobartt/hf-mem/pull/70)）。vLLM 这样做的时候会打印一行，说没有启用任何节省 KV 缓存的优化（[tt-xla #5727](https://github.com/tenstorrent/tt-xla/issues/5727)）。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You can now store a number in fewer bytes, and drop the tokens that no window reads. So far every question could still be answered.
# [Lesson 13b](13b_fewer_cheaper_steps.ipynb) saves on the steps themselves: one call starts a whole step, and one step may give several tokens.
# %% [markdown] key="next" lang="zh" src="7aecc9b2"
# ## 下一课
#
# 现在你会让每个数少占字节，也会不存窗口之外的 token。到目前为止，凡是被问到的内容都还答得出来。
# [第 13b 课](13b_fewer_cheaper_steps.ipynb)从步本身来省，一次调用启动一整步，一步可以得到几个 token。
