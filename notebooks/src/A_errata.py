# %% [meta]
# number = "A"
# slug = "errata"
# needs = ["01", "02", "03"]
# rooms = ["plan", "course.errata"]
# [title]
# en = "Which numbers in the wild are wrong?"
# zh = "流传的数字，哪些是错的？"
# [t4]
# en = "Arithmetic, and one tiny model on the CPU: a T4 shows the same numbers."
# zh = "全是算术，外加一个在 CPU 上运行的极小模型：T4 上看到的数字相同。"
# [paper]
# en = "A.1, A.3, A.4"
# zh = "A.1、A.3、A.4"

# %% [markdown] key="question" lang="en"
# ## The question
#
# You read a number about the KV cache in a guide, a blog or a bug report, and you want to put it into a plan. **How can you tell whether it is right, before it costs you memory?**
#
# A small mistake can cost a lot. In August 2026 a user started a server for a Qwen3 of 1.7B on a Jetson and allowed it 1 GiB of cache. Five seconds later 27,075 MB of memory were gone, and the server was not up ([vllm.cpp #357](https://github.com/mudler/vllm.cpp/issues/357)). The user found the reason in the source:
#
# > `KVBytesPerBlock()` under-reports by exactly `num_hidden_layers`
#
# The program computed the bytes of a block for one layer, and then allocated 28 layers.
# %% [markdown] key="question" lang="zh" src="cb885d60"
# ## 问题
#
# 你在指南、博客或 bug 报告里读到一个关于 KV 缓存的数字，想把它写进规划。**怎样在它浪费显存之前，就看出它对不对？**
#
# 一个小错，代价可能很大。2026 年 8 月，一位用户在 Jetson 上为 1.7B 的 Qwen3 启动服务，只给缓存 1 GiB。五秒后 27,075 MB 内存不见了，服务却没有起来（[vllm.cpp #357](https://github.com/mudler/vllm.cpp/issues/357)）。这位用户翻源码找到了原因：
#
# > `KVBytesPerBlock()` under-reports by exactly `num_hidden_layers`
#
# 意思是这个函数算出的每块字节数，恰好少乘了层数。程序按一层计算一个块，却按 28 层分配。

# %% [markdown] key="case_text" lang="en"
# We can compute what this one factor does. The catalogue's Qwen3-0.6B has the attention of the 1.7B: 28 layers, and 8 KV heads of 128. We assume blocks of 16 tokens; another power of two gives the same bytes.
# %% [markdown] key="case_text" lang="zh" src="47b85dca"
# 丢掉这一个因子的后果，我们可以算出来。目录里的 Qwen3-0.6B 与 1.7B 注意力结构相同，有 28 层，8 个 KV 头，每头 128。块大小假定为 16 个 token；换成别的 2 的幂，字节数不变。

# %% key="case" lang="en"
from minikv.course import Table
from minikv.plan import CacheSpec, find_gpu, find_model, plan_memory
from minikv.units import GIB, KIB, MIB

spec = CacheSpec.from_config("Qwen3-0.6B")
one_layer = spec.block_bytes(16) // len(spec.layers)  # what the program took for a block
blocks = GIB // one_layer
taken = blocks * spec.block_bytes(16)
rows = [["asked for", GIB, GIB // MIB, None], ["really allocated", taken, taken // MIB, None]]
for name, mb in (("10^6", 10**6), ("2^20", MIB)):
    rows.append([f"seen, if 1 MB is {name} B", 27_075 * mb, round(27_075 * mb / MIB), f"{taken / (27_075 * mb):.2f}"])
head = ["", "bytes", "MiB", "allocated / seen"]
Table(head, rows, right=head[3:], lines=[f"blocks, if a block counts one layer: {blocks:,}"])

# %% key="case" lang="zh"
from minikv.course import Table
from minikv.plan import CacheSpec, find_gpu, find_model, plan_memory
from minikv.units import GIB, KIB, MIB

spec = CacheSpec.from_config("Qwen3-0.6B")
one_layer = spec.block_bytes(16) // len(spec.layers)  # 程序当成一个块的字节数
blocks = GIB // one_layer
taken = blocks * spec.block_bytes(16)
rows = [["要求", GIB, GIB // MIB, None], ["实际分配", taken, taken // MIB, None]]
for name, mb in (("10^6", 10**6), ("2^20", MIB)):
    rows.append([f"看到的，1 MB 为 {name} B", 27_075 * mb, round(27_075 * mb / MIB), f"{taken / (27_075 * mb):.2f}"])
head = ["", "字节", "MiB", "分配 / 看到"]
Table(head, rows, right=head[3:], lines=[f"一个块只算一层时的块数：{blocks:,}"])

# %% [markdown] key="about" lang="en"
# That is 28 times the limit, and 1.11 or 1.06 times what the user saw disappear in five seconds. There are two quotients because "MB" is ambiguous: people write it for 10^6 bytes and for 2^20.
#
# This appendix is about such numbers. The course grew from five public documents about the KV cache. They are useful, and each of them has figures that are wrong. We checked them line by line. Here is every error that we found, with the right value and the call that computes it. We quote only the wrong figure or phrase.
#
# After this appendix you can
#
# - **sort** a wrong number into one of seven slips (each has a section below, from a dropped factor to a source that doesn't exist),
# - **recompute** it from a config, with its unit,
# - **ask** six questions before you copy a number.
#
# You need the first lessons: the formula ([lesson 02](02_how_many_bytes.ipynb)) and MLA ([lesson 03](03_the_2_86x_mistake.ipynb)).
# %% [markdown] key="about" lang="zh" src="2fafc0b7"
# 这是上限的 28 倍，是用户五秒内看到消失的数量的 1.11 或 1.06 倍。之所以有两个倍数，是因为 MB 有歧义，有人指 10^6 字节，有人指 2^20 字节。
#
# 本附录讲的就是这类数字。本课程脱胎于五份讲 KV 缓存的公开文档。它们很有用，但每份都有错误的数字。我们逐行核对过，下面列出找到的全部错误，附上正确的值和算出它的调用。引用时只取出错的那个数字或短语。
#
# 学完本附录，你能
#
# - 把一个错误的数字**归入**七类失误之一（下面每类一节，从丢了因子到查无此物）；
# - 根据配置把它**重新算**一遍，并写清单位；
# - 在照抄一个数字之前，先**问**六个问题。
#
# 需要先学开头几课：缓存公式（[第 02 课](02_how_many_bytes.ipynb)）和 MLA（[第 03 课](03_the_2_86x_mistake.ipynb)）。

# %% key="documents" lang="en"
from minikv.course.errata import errata, erratum
from minikv.course.errata_table import errata_table

numbers = ("000", "001", "002", "003", "004")
rows = [[number, errata(number)[0].document, len(errata(number))] for number in numbers]
Table(["number", "document", "entries"], rows, lines=[f"all: {len(errata())}"])

# %% key="documents" lang="zh"
from minikv.course.errata import errata, erratum
from minikv.course.errata_table import errata_table

numbers = ("000", "001", "002", "003", "004")
rows = [[number, errata(number)[0].document, len(errata(number))] for number in numbers]
Table(["编号", "文档", "条目"], rows, lines=[f"合计：{len(errata())}"])

# %% [markdown] key="entry_text" lang="en"
# An entry's id begins with its document's number. In an entry `-` is the claim, `+` is what is right, and `=` is why. Its `value()` is computed when you call it. In the tables below, the last column says what proves an entry: such a value, a cell of this notebook (its name is the cell's first line), or a page.
# %% [markdown] key="entry_text" lang="zh" src="e6530a93"
# 条目编号以文档编号开头。在一个条目里，`-` 是原文，`+` 是更正，`=` 是原因。`value()` 在调用时当场计算。下面各表的最后一列是依据，可以是当场计算的值、本 notebook 的某个单元格（名字写在它的第一行），或者网页。

# %% key="entry" lang="en"
entry = erratum("003-01")
rows = [[mark, told.in_("en")] for mark, told in zip("-+=", (entry.claim, entry.correct, entry.why))]
Table(["", f"{entry.document}, {entry.section}"], [*rows, ["value()", f"{entry.value():,}"]], title=entry.id)

# %% key="entry" lang="zh"
entry = erratum("003-01")
rows = [[mark, told.in_("zh")] for mark, told in zip("-+=", (entry.claim, entry.correct, entry.why))]
Table(["", f"{entry.document}, {entry.section}"], [*rows, ["value()", f"{entry.value():,}"]], title=entry.id)

# %% [markdown] key="predict_text" lang="en"
# ## Predict
#
# Give three numbers before you go on. Replace `...` with your answer and run the cell again.
# %% [markdown] key="predict_text" lang="zh" src="4e484382"
# ## 先猜一猜
#
# 往下看之前，先给出三个数。把 `...` 换成你的答案，再运行一次。

# %% key="predict_product"
predict("block_product", ...)

# %% key="predict_blocks"
predict("blocks_in_mb", ...)

# %% key="predict_pool"
predict("cache_gb", ...)

# %% [markdown] key="factor" lang="en"
# ## A factor dropped
#
# The bytes of a block are a product of six numbers:
# %% [markdown] key="factor" lang="zh" src="72a1da5f"
# ## 丢了一个因子
#
# 一个块的字节数是六个数的乘积：

# %% [markdown] key="factor_formula"
# $$\text{block\_bytes} = 2 \cdot L \cdot B \cdot H_{kv} \cdot D \cdot b$$

# %% [markdown] key="factor_means" lang="en"
# | symbol | meaning | value here: document 003 |
# |---|---|---|
# | $2$ | one K and one V | 2 |
# | $L$ | layers | 28 |
# | $B$ | tokens in a block | 16 |
# | $H_{kv}$ | KV heads on this GPU | 1 |
# | $D$ | elements in a head | 128 |
# | $b$ | bytes in an element | 2 |
#
# `2 × 28 × 16 × 1 × 128 × 2 = 229,376`. Document 003 writes all six factors, and gives the product of five:
# %% [markdown] key="factor_means" lang="zh" src="e74f78f8"
# | 符号 | 含义 | 本例取值：文档 003 |
# |---|---|---|
# | $2$ | 一份 K，一份 V | 2 |
# | $L$ | 层数 | 28 |
# | $B$ | 每块的 token 数 | 16 |
# | $H_{kv}$ | 本 GPU 上的 KV 头数 | 1 |
# | $D$ | 每头的元素数 | 128 |
# | $b$ | 每个元素的字节数 | 2 |
#
# `2 × 28 × 16 × 1 × 128 × 2 = 229,376`。文档 003 六个因子都写了，给出的却是五个的乘积：

# %% key="factor_block" lang="en"
rows = [
    ["written", "2 * 28 * 16 * 1 * 128 * 2", 114_688],
    ["computed", "2 * 28 * 16 * 1 * 128 * 2", 2 * 28 * 16 * 1 * 128 * 2],
    ["without the last 2", "2 * 28 * 16 * 1 * 128", 2 * 28 * 16 * 1 * 128],
    ["minikv", "erratum('003-01').value()", erratum("003-01").value()],
]
Table(["", "product", "bytes"], rows)

# %% key="factor_block" lang="zh"
rows = [
    ["原文", "2 * 28 * 16 * 1 * 128 * 2", 114_688],
    ["计算", "2 * 28 * 16 * 1 * 128 * 2", 2 * 28 * 16 * 1 * 128 * 2],
    ["不乘最后的 2", "2 * 28 * 16 * 1 * 128", 2 * 28 * 16 * 1 * 128],
    ["minikv", "erratum('003-01').value()", erratum("003-01").value()],
]
Table(["", "乘积", "字节"], rows)

# %% [markdown] key="factor_chain_text" lang="en"
# If a number is wrong, everything computed from it is wrong as well, and sometimes the last step shows it. The same document divides its budget of 32 GiB by that block, allocates a tensor of that many blocks, and gives the tensor's size as 32 GiB. (Even the division is off: 34,359,738,368 // 114,688 is 299,593, and the document says 299,680.) Multiply what it allocates:
# %% [markdown] key="factor_chain_text" lang="zh" src="736f37db"
# 一个数错了，由它推出来的也都错，有时最后一步会露馅。同一份文档用 32 GiB 预算除以这个块，再按得到的块数分配张量，并称张量大小是 32 GiB。（连除法也不对：34,359,738,368 // 114,688 是 299,593，文档写的是 299,680。）不妨把它分配的张量真的乘一遍：

# %% key="factor_chain" lang="en"
rows = [["budget", 34_359_738_368 / GIB], ["allocated", erratum("003-05").value() / GIB]]
Table(["", "GiB"], [[what, f"{gib:.1f}"] for what, gib in rows], right=["GiB"], lines=["blocks: 299,680"])

# %% key="factor_chain" lang="zh"
rows = [["预算", 34_359_738_368 / GIB], ["实际分配", erratum("003-05").value() / GIB]]
Table(["", "GiB"], [[what, f"{gib:.1f}"] for what, gib in rows], right=["GiB"], lines=["块数：299,680"])

# %% [markdown] key="factor_rows_text" lang="en"
# Document 001 has a table of lengths. It computes the bytes with 2.4 for a block of 2.5 MiB, and its numbers of sequences come from no division at all. Its pool has 10,800 blocks, so with 256 blocks each `10,800 // 256 = 42` sequences fit, and not "50+":
# %% [markdown] key="factor_rows_text" lang="zh" src="4c98d4fa"
# 文档 001 有一张按长度列的表。每块 2.5 MiB，它按 2.4 算；能放的序列数则根本没有除。它的块池有 10,800 块，每条序列 256 块时，放得下 `10,800 // 256 = 42` 条，而不是“50+”：

# %% key="factor_rows" lang="en"
written = {"001-18": "614 MB, 50+", "001-19": "4.9 GB, 10-20", "001-20": "19.7 GB, 2-5", "001-21": "25.9 GB, 1-3"}
rows = []
for id, said in written.items():
    num_bytes, sequences = erratum(id).value()
    rows.append([id, said, num_bytes, f"{num_bytes / GIB:.3f}", sequences])
Table(["", "written", "bytes", "GiB", "sequences"], rows, right=["GiB"])

# %% key="factor_rows" lang="zh"
written = {"001-18": "614 MB, 50+", "001-19": "4.9 GB, 10-20", "001-20": "19.7 GB, 2-5", "001-21": "25.9 GB, 1-3"}
rows = []
for id, said in written.items():
    num_bytes, sequences = erratum(id).value()
    rows.append([id, said, num_bytes, f"{num_bytes / GIB:.3f}", sequences])
Table(["", "原文", "字节", "GiB", "序列数"], rows, right=["GiB"])

# %% [markdown] key="linear_text" lang="en"
# A sum can lose terms as a product loses factors. Document 002 finds a token with "layer * stride + position", although its own shape has six dimensions. With one row of a batch the error stays hidden. With two, the address belongs to another request:
# %% [markdown] key="linear_text" lang="zh" src="739690af"
# 乘积会丢因子，求和也会丢项。文档 002 用“layer * stride + position”定位一个 token，可它自己写的形状有六维。batch 只有一行时看不出问题；有两行时，这个地址属于另一个请求：

# %% key="linear-address" lang="en"
# linear-address
import torch

cache = torch.empty(2, 2, 2, 8, 4096, 128, device="meta")  # layers, rows, K and V, heads, positions, head_dim
layer, row, _, _, position, _ = cache.stride()
right, lost = erratum("002-20").value()
rows = [["layer, row, position", 1 * layer + 1 * row + 5 * position, right], ["layer, position", 1 * layer + 5 * position, lost]]
Table(["terms", "address", "value()"], rows)

# %% key="linear-address" lang="zh"
# linear-address
import torch

cache = torch.empty(2, 2, 2, 8, 4096, 128, device="meta")  # 层、行、K 和 V、头、位置、head_dim
layer, row, _, _, position, _ = cache.stride()
right, lost = erratum("002-20").value()
rows = [["层、行、位置", 1 * layer + 1 * row + 5 * position, right], ["层、位置", 1 * layer + 5 * position, lost]]
Table(["各项", "地址", "value()"], rows)

# %% key="factor_table" lang="en"
show(errata_table("en", slip="factor"))

# %% key="factor_table" lang="zh"
show(errata_table("zh", slip="factor"))

# %% [markdown] key="unit" lang="en"
# ## MB is not MiB
#
# MB is 10^6 bytes and MiB is 2^20. The gap grows with the prefix:
# %% [markdown] key="unit" lang="zh" src="0f711e9c"
# ## MB 不是 MiB
#
# MB 是 10^6 字节，MiB 是 2^20 字节。单位前缀越大，差得越多：

# %% key="unit_gap" lang="en"
ratios = {prefix: 1024**power / 1000**power for power, prefix in enumerate("KMGT", start=1)}
rows = [[f"{prefix}iB / {prefix}B", f"{ratio:.4f}", f"{100 * (ratio - 1):.1f} %"] for prefix, ratio in ratios.items()]
Table(["units", "quotient", "gap"], rows, right=["quotient", "gap"])

# %% key="unit_gap" lang="zh"
ratios = {prefix: 1024**power / 1000**power for power, prefix in enumerate("KMGT", start=1)}
rows = [[f"{prefix}iB / {prefix}B", f"{ratio:.4f}", f"{100 * (ratio - 1):.1f} %"] for prefix, ratio in ratios.items()]
Table(["单位", "比值", "相差"], rows, right=["比值", "相差"])

# %% [markdown] key="unit_text" lang="en"
# Document 001 divides 27,000 MB by a block of 2.5 MiB as if both had the same unit. It gains 501 blocks that do not exist:
# %% [markdown] key="unit_text" lang="zh" src="5a86dcf7"
# 文档 001 用 27,000 MB 除以 2.5 MiB 的块，当成了同一种单位，凭空多出 501 块：

# %% key="unit_blocks" lang="en"
in_mb, in_mib = erratum("001-07").value()
rows = [["27,000 MB // 2,621,440 B", in_mb], ["27,000 MiB // 2,621,440 B", in_mib], ["the difference", in_mib - in_mb]]
Table(["", "blocks"], rows)

# %% key="unit_blocks" lang="zh"
in_mb, in_mib = erratum("001-07").value()
rows = [["27,000 MB // 2,621,440 B", in_mb], ["27,000 MiB // 2,621,440 B", in_mib], ["相差", in_mib - in_mb]]
Table(["", "块数"], rows)

# %% [markdown] key="unit_text2" lang="en"
# Document 002 states the rule that 1 MB is 1,000,000 bytes, and breaks it in its own exercise:
# %% [markdown] key="unit_text2" lang="zh" src="4ef2e5ef"
# 文档 002 写明 1 MB 是 1,000,000 字节，却在自己的练习里违反了：

# %% key="unit_tensor" lang="en"
num_bytes, total = erratum("002-08").value()
rows = [[what, n, f"{n / 1e6:.2f}", f"{n / MIB:.2f}"] for what, n in (("1024 * 768 * 2", num_bytes), ("in all", total))]
Table(["", "bytes", "MB", "MiB"], rows, right=["MB", "MiB"])

# %% key="unit_tensor" lang="zh"
num_bytes, total = erratum("002-08").value()
rows = [[what, n, f"{n / 1e6:.2f}", f"{n / MIB:.2f}"] for what, n in (("1024 * 768 * 2", num_bytes), ("合计", total))]
Table(["", "字节", "MB", "MiB"], rows, right=["MB", "MiB"])

# %% key="unit_table" lang="en"
show(errata_table("en", slip="unit"))

# %% key="unit_table" lang="zh"
show(errata_table("zh", slip="unit"))

# %% [markdown] key="neighbour" lang="en"
# ## A number that contradicts its neighbour
#
# You can find these without knowing anything about GPUs. Take two numbers that stand next to each other and ask whether both can be true.
# %% [markdown] key="neighbour" lang="zh" src="8f376185"
# ## 与旁边的数矛盾
#
# 这一类不需要懂 GPU。取相邻的两个数，问一句，它们能同时成立吗？

# %% key="neighbour_free" lang="en"
total, used, written = 85_899_345_920, 5_368_709_120, 75_530_636_800
free = erratum("003-09").value()
rows = [["total - used", total - used], ["value()", free], ["written", written], ["the difference", free - written]]
Table(["", "bytes"], rows)

# %% key="neighbour_free" lang="zh"
total, used, written = 85_899_345_920, 5_368_709_120, 75_530_636_800
free = erratum("003-09").value()
rows = [["total - used", total - used], ["value()", free], ["原文", written], ["相差", free - written]]
Table(["", "字节"], rows)

# %% [markdown] key="neighbour_text" lang="en"
# Next, a picture of a card with 80 GB, used up to 0.9: do the parts fit under the limit? And document 002 begins by saying that the KV cache takes 70 % of memory or more: does that agree with the budget at its end, a cache of 536,870,912 B in 8.5 GB?
# %% [markdown] key="neighbour_text" lang="zh" src="6549dc6e"
# 再看一块 80 GB 显卡的示意图，它用到 0.9，各部分加起来在上限之内吗？还有文档 002，开头说 KV 缓存占显存的 70% 以上，结尾的预算却是 8.5 GB 里有 536,870,912 B 的缓存，两者相符吗？

# %% key="neighbour_sums" lang="en"
total, limit = erratum("003-24").value()
share = 100 * 536_870_912 / 8.5e9
rows = [["34 + 32 + 10, GB", f"{limit}", f"{total}"], ["536,870,912 B / 8.5 GB, %", "70+", f"{share:.1f}"]]
Table(["", "limit, or written", "computed"], rows, right=["computed"])

# %% key="neighbour_sums" lang="zh"
total, limit = erratum("003-24").value()
share = 100 * 536_870_912 / 8.5e9
rows = [["34 + 32 + 10, GB", f"{limit}", f"{total}"], ["536,870,912 B / 8.5 GB, %", "70+", f"{share:.1f}"]]
Table(["", "上限或原文", "计算"], rows, right=["计算"])

# %% [markdown] key="neighbour_text2" lang="en"
# The largest error of all sits between two sections of document 001. Section 12.3 gives 62 GB to the cache, section 12.4 gives 27 GB. The card, the model and the formula are the same.
# %% [markdown] key="neighbour_text2" lang="zh" src="b74d7215"
# 最大的错误藏在文档 001 的两节之间。12.3 节给缓存 62 GB，12.4 节给 27 GB，而显卡、模型、公式都相同。

# %% key="neighbour_pool" lang="en"
in_62_gb, in_27_gb = erratum("001-27").value()
rows = [["72 - 35 - 10 + 35", 72 - 35 - 10 + 35, in_62_gb], ["72 - 35 - 45 + 35", erratum("001-26").value(), in_27_gb]]
Table(["", "GB", "blocks"], rows, lines=[f"blocks that do not exist: {in_62_gb - in_27_gb:,}"])

# %% key="neighbour_pool" lang="zh"
in_62_gb, in_27_gb = erratum("001-27").value()
rows = [["72 - 35 - 10 + 35", 72 - 35 - 10 + 35, in_62_gb], ["72 - 35 - 45 + 35", erratum("001-26").value(), in_27_gb]]
Table(["", "GB", "块数"], rows, lines=[f"凭空多出的块：{in_62_gb - in_27_gb:,}"])

# %% [markdown] key="neighbour_why" lang="en"
# The first line takes 10 GB for the peak, but that is only what the activations add. The formula wants the peak itself, 45 GB. We come back to it in "A definition mistaken".
# %% [markdown] key="neighbour_why" lang="zh" src="38206250"
# 第一行把峰值当成 10 GB，那其实只是激活新增的部分。公式要的是峰值本身，45 GB。“定义弄错”一节会再说到它。

# %% key="neighbour_table" lang="en"
show(errata_table("en", slip="neighbour"))

# %% key="neighbour_table" lang="zh"
show(errata_table("zh", slip="neighbour"))

# %% [markdown] key="scope" lang="en"
# ## A formula used outside its scope
#
# A formula holds for some models, on some GPUs, under some conditions. Copied without its conditions, it still gives a number. Here are eleven examples.
#
# **1. `hidden_size // num_attention_heads`.** [LMCache #688](https://github.com/LMCache/LMCache/issues/688) reports a public calculator that used it for Qwen3-4B. Many configs state `head_dim`, and the quotient differs:
# %% [markdown] key="scope" lang="zh" src="64c8535a"
# ## 公式用出了范围
#
# 公式只对某些模型、某些 GPU、某些条件成立。不带条件照抄，它照样给你一个数。下面是十一个例子。
#
# **1. `hidden_size // num_attention_heads`。** [LMCache #688](https://github.com/LMCache/LMCache/issues/688) 报告，有个公开的计算器就这样算 Qwen3-4B。许多配置里写明了 `head_dim`，与这个商并不相同：

# %% key="head_dim_quotient" lang="en"
rows = []
for name in ("Qwen3-0.6B", "Qwen3-4B", "Qwen3-8B", "Qwen3-32B", "Gemma-3-27B", "gpt-oss-20b", "Llama-3.1-8B"):
    config = find_model(name).config
    config = config.get("text_config", config)
    rows.append([name, config["hidden_size"] // config["num_attention_heads"], CacheSpec.from_config(name).layers[0].k_dim])
Table(["model", "hidden // heads", "head_dim"], rows)

# %% key="head_dim_quotient" lang="zh"
rows = []
for name in ("Qwen3-0.6B", "Qwen3-4B", "Qwen3-8B", "Qwen3-32B", "Gemma-3-27B", "gpt-oss-20b", "Llama-3.1-8B"):
    config = find_model(name).config
    config = config.get("text_config", config)
    rows.append([name, config["hidden_size"] // config["num_attention_heads"], CacheSpec.from_config(name).layers[0].k_dim])
Table(["模型", "hidden // heads", "head_dim"], rows)

# %% [markdown] key="head_dim_text" lang="en"
# `getattr` with a default looks safe, but it isn't. An attribute may exist and be `None`, it may live in a part of the config, or it may mean something else:
# %% [markdown] key="head_dim_text" lang="zh" src="9699089f"
# 带默认值的 `getattr` 看似稳妥，其实不然。属性可能存在但为 `None`，可能在配置的子部分里，也可能另有含义：

# %% key="head-dim-traps" lang="en"
# head-dim-traps
import transformers

transformers.logging.set_verbosity_error()
mixtral, deepseek = transformers.MixtralConfig(), transformers.DeepseekV3Config()
rows = [
    ["Mixtral", "hasattr head_dim", hasattr(mixtral, "head_dim")],
    ["Mixtral", "getattr(config, 'head_dim', 128)", str(getattr(mixtral, "head_dim", 128))],
    ["Gemma 3", "hasattr hidden_size", hasattr(transformers.Gemma3Config(), "hidden_size")],
    ["GPT-2", "hasattr num_key_value_heads", hasattr(transformers.GPT2Config(), "num_key_value_heads")],
    ["DeepSeek-V3", "head_dim", deepseek.head_dim],
    ["DeepSeek-V3", "qk_rope_head_dim", deepseek.qk_rope_head_dim],
]
Table(["config", "asked", "found"], rows, lines=[f"bytes a token with that head_dim: {erratum('000-05').value():,}"])

# %% key="head-dim-traps" lang="zh"
# head-dim-traps
import transformers

transformers.logging.set_verbosity_error()
mixtral, deepseek = transformers.MixtralConfig(), transformers.DeepseekV3Config()
rows = [
    ["Mixtral", "hasattr head_dim", hasattr(mixtral, "head_dim")],
    ["Mixtral", "getattr(config, 'head_dim', 128)", str(getattr(mixtral, "head_dim", 128))],
    ["Gemma 3", "hasattr hidden_size", hasattr(transformers.Gemma3Config(), "hidden_size")],
    ["GPT-2", "hasattr num_key_value_heads", hasattr(transformers.GPT2Config(), "num_key_value_heads")],
    ["DeepSeek-V3", "head_dim", deepseek.head_dim],
    ["DeepSeek-V3", "qk_rope_head_dim", deepseek.qk_rope_head_dim],
]
Table(["配置", "查询", "结果"], rows, lines=[f"按这个 head_dim，每个 token 的字节数：{erratum('000-05').value():,}"])

# %% [markdown] key="ranks_text" lang="en"
# **2. `num_key_value_heads // world_size`.** With more ranks than heads it gives 0, then blocks of 0 bytes, then a division by zero. Engines replicate the heads instead. An MLA latent has no heads, so it is on every rank:
# %% [markdown] key="ranks_text" lang="zh" src="2b044b5c"
# **2. `num_key_value_heads // world_size`。** rank 比头多时得 0，块变成 0 字节，接着就是除以零。引擎的做法是复制头；MLA 的潜在向量（latent）不分头，所以每个 rank 都存一份：

# %% key="heads-and-ranks"
# heads-and-ranks
rows = []
for tp in (1, 4, 8, 16):
    heads, latents = (CacheSpec.from_config(name, tp=tp).layers[0].kv_heads for name in ("Llama-3.1-8B", "DeepSeek-V3"))
    rows.append([tp, 8 // tp, heads, latents])
Table(["tp", "8 // tp", "kv_heads", "latents"], rows)

# %% [markdown] key="empty_text" lang="en"
# **3. `torch.empty(shape)`.** In the engine that it comes from, two lines before it set the default dtype and device. Without those lines you get float32 on the CPU:
# %% [markdown] key="empty_text" lang="zh" src="597fd244"
# **3. `torch.empty(shape)`。** 在它原来的引擎里，前面有两行设好了默认 dtype 和设备。没有那两行，得到的就是 CPU 上的 float32：

# %% key="empty-defaults" lang="en"
# empty-defaults
cache = torch.empty(2, 4, 16)
layer = cache[0]  # a view of the same storage
shared = layer.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr()
set_ = torch.empty(2, 4, 16, dtype=torch.bfloat16, device="cpu").itemsize
rows = [["as written", str(cache.dtype), str(cache.device), cache.itemsize], ["with both set", "torch.bfloat16", "cpu", set_]]
Table(["", "dtype", "device", "bytes a number"], rows, lines=[f"a layer shares the storage: {shared}"])

# %% key="empty-defaults" lang="zh"
# empty-defaults
cache = torch.empty(2, 4, 16)
layer = cache[0]  # 同一存储的视图
shared = layer.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr()
set_ = torch.empty(2, 4, 16, dtype=torch.bfloat16, device="cpu").itemsize
rows = [["照原文", str(cache.dtype), str(cache.device), cache.itemsize], ["两项都设", "torch.bfloat16", "cpu", set_]]
Table(["", "dtype", "设备", "每个数的字节"], rows, lines=[f"一层与整体共用存储：{shared}"])

# %% [markdown] key="mask_text" lang="en"
# A slice is a view of the same storage, so no later step moves it to a GPU.
#
# **4. "The causal mask is `None` in decode."** That is true for SDPA without padding. A tiny random model shows the other cases:
# %% [markdown] key="mask_text" lang="zh" src="697b606f"
# 切片是同一存储的视图（view），所以之后没有哪一步会把它搬到 GPU。
#
# **4. “解码时因果掩码为 `None`”。** 这只对无填充的 SDPA 成立。用一个极小的随机模型就能看到其他情形：

# %% key="tiny_model"
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
tiny = LlamaConfig(
    hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=97, max_position_embeddings=256,
)
model = LlamaForCausalLM(tiny).eval()
prompt = torch.tensor([[1, 2, 3, 4, 5]])

# %% key="mask-or-none" lang="en"
# mask-or-none
from transformers.masking_utils import create_causal_mask

past = DynamicCache(config=tiny)
with torch.no_grad():
    model(prompt, past_key_values=past)
decode = dict(inputs_embeds=torch.zeros(1, 1, 64), past_key_values=past, position_ids=torch.tensor([[5]]))
rows = []
for implementation in ("sdpa", "eager"):
    model.set_attn_implementation(implementation)
    masks = [create_causal_mask(config=model.config, attention_mask=given, **decode)
             for given in (None, torch.tensor([[0, 1, 1, 1, 1, 1]]))]
    rows.append([implementation, *("None" if mask is None else str(tuple(mask.shape)) for mask in masks)])
model.set_attn_implementation("sdpa")
Table(["", "no padding", "padded"], rows)

# %% key="mask-or-none" lang="zh"
# mask-or-none
from transformers.masking_utils import create_causal_mask

past = DynamicCache(config=tiny)
with torch.no_grad():
    model(prompt, past_key_values=past)
decode = dict(inputs_embeds=torch.zeros(1, 1, 64), past_key_values=past, position_ids=torch.tensor([[5]]))
rows = []
for implementation in ("sdpa", "eager"):
    model.set_attn_implementation(implementation)
    masks = [create_causal_mask(config=model.config, attention_mask=given, **decode)
             for given in (None, torch.tensor([[0, 1, 1, 1, 1, 1]]))]
    rows.append([implementation, *("None" if mask is None else str(tuple(mask.shape)) for mask in masks)])
model.set_attn_implementation("sdpa")
Table(["", "无填充", "有填充"], rows)

# %% [markdown] key="sdpa_text" lang="en"
# **5. A patch that reads the attention probabilities.** Fused attention never builds this matrix, so SDPA returns `None` where it would be. It does write something else to memory: the log-sum-exp of every row.
# %% [markdown] key="sdpa_text" lang="zh" src="b6b1d2d5"
# **5. 读取注意力概率的补丁。** 融合的注意力从不生成这个矩阵，所以 SDPA 在那个位置返回 `None`。它倒是会往显存里写另一样东西，也就是每一行的 log-sum-exp。

# %% key="sdpa-returns" lang="en"
# sdpa-returns
from types import SimpleNamespace

from transformers.integrations.sdpa_attention import sdpa_attention_forward

q = torch.randn(1, 2, 4, 16)
module = SimpleNamespace(is_causal=True, num_key_value_groups=1)
out, weights = sdpa_attention_forward(module, q, q, q, attention_mask=None)
fused, log_sum_exp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)
rows = [["SDPA", str(tuple(out.shape)), str(weights)], ["fused kernel", str(tuple(fused.shape)), str(tuple(log_sum_exp.shape))]]
Table(["", "output", "returned as well"], rows)

# %% key="sdpa-returns" lang="zh"
# sdpa-returns
from types import SimpleNamespace

from transformers.integrations.sdpa_attention import sdpa_attention_forward

q = torch.randn(1, 2, 4, 16)
module = SimpleNamespace(is_causal=True, num_key_value_groups=1)
out, weights = sdpa_attention_forward(module, q, q, q, attention_mask=None)
fused, log_sum_exp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)
rows = [["SDPA", str(tuple(out.shape)), str(weights)], ["融合 kernel", str(tuple(fused.shape)), str(tuple(log_sum_exp.shape))]]
Table(["", "输出", "另外返回"], rows)

# %% [markdown] key="position_text" lang="en"
# **6. An eviction that slices K and V and nothing else.** Afterwards the cache is shorter than the sequence. A forward that gets no positions asks the cache, and the answer is wrong. Here 100 tokens are cut to 24, so the next token is number 100:
# %% [markdown] key="position_text" lang="zh" src="a4910edd"
# **6. 只切 K 和 V、别的都不管的淘汰。** 之后缓存比序列短，而没有拿到位置的前向计算会去问缓存，得到的位置就是错的。下面把 100 个 token 切到 24 个，下一个 token 应当是第 100 号：

# %% key="length-is-not-position" lang="en"
# length-is-not-position
from copy import deepcopy

cache = DynamicCache(config=tiny)
keep = torch.cat([torch.arange(4), torch.arange(80, 100)])
with torch.no_grad():
    model(torch.arange(100)[None] % 97, past_key_values=cache)
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, keep], layer.values[:, :, keep]  # [1, 2, 24, 16]
    given = [{}, *({"position_ids": torch.tensor([[place]])} for place in (24, 100))]
    default, *others = [model(torch.tensor([[7]]), past_key_values=deepcopy(cache), **each).logits for each in given]
rows = [[place, torch.equal(default, logits)] for place, logits in zip((24, 100), others)]
head = ["position", "the same logits as without position_ids"]
Table(head, rows, lines=[f"tokens cached: {cache.get_seq_length()}"])

# %% key="length-is-not-position" lang="zh"
# length-is-not-position
from copy import deepcopy

cache = DynamicCache(config=tiny)
keep = torch.cat([torch.arange(4), torch.arange(80, 100)])
with torch.no_grad():
    model(torch.arange(100)[None] % 97, past_key_values=cache)
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, keep], layer.values[:, :, keep]  # [1, 2, 24, 16]
    given = [{}, *({"position_ids": torch.tensor([[place]])} for place in (24, 100))]
    default, *others = [model(torch.tensor([[7]]), past_key_values=deepcopy(cache), **each).logits for each in given]
rows = [[place, torch.equal(default, logits)] for place, logits in zip((24, 100), others)]
head = ["位置", "与不传 position_ids 的 logits 相同"]
Table(head, rows, lines=[f"缓存的 token：{cache.get_seq_length()}"])

# %% [markdown] key="early_text" lang="en"
# **7. Attention summed over all queries of a step.** In a prefill the mask is causal, so more queries see an early token. Even if every query spreads its attention evenly, the sum prefers the start ([lesson 14](14_what_to_forget.ipynb)):
# %% [markdown] key="early_text" lang="zh" src="e9b3df9a"
# **7. 把一步内所有 query 的注意力加起来。** 预填充时掩码是因果的，早的 token 被更多 query 看到。即使每个 query 的注意力完全平均，总和也偏向开头（[第 14 课](14_what_to_forget.ipynb)）：

# %% key="early-tokens-win" lang="en"
# early-tokens-win
attention = torch.tril(torch.ones(8, 8))  # [queries, tokens]: what each one sees
queries = attention.sum(0).int().tolist()
attention /= attention.sum(-1, keepdim=True)
rows = [[place, count, f"{mass:.2f}"] for place, (count, mass) in enumerate(zip(queries, attention.sum(0).tolist()))]
head = ["token", "queries that see it", "attention it gets"]
Table(head, rows, right=head[2:])

# %% key="early-tokens-win" lang="zh"
# early-tokens-win
attention = torch.tril(torch.ones(8, 8))  # [query, token]：看得到哪些
queries = attention.sum(0).int().tolist()
attention /= attention.sum(-1, keepdim=True)
rows = [[place, count, f"{mass:.2f}"] for place, (count, mass) in enumerate(zip(queries, attention.sum(0).tolist()))]
head = ["token", "看得到它的 query", "得到的注意力"]
Table(head, rows, right=head[2:])

# %% [markdown] key="indexer_text" lang="en"
# **8. "Every tensor in a cache has four dimensions."** Models with sparse attention, such as DeepSeek-V3.2 and GLM-5, keep a third tensor in each layer, and it has three dimensions:
# %% [markdown] key="indexer_text" lang="zh" src="dbd308cd"
# **8. “缓存里的张量都是 4 维”。** DeepSeek-V3.2、GLM-5 这类稀疏注意力模型每层还有第三个张量，只有 3 维：

# %% key="indexer-keys" lang="en"
# indexer-keys
from transformers.cache_utils import DynamicIndexedLayer

indexed = DynamicIndexedLayer()
indexed.update_indexer(torch.zeros(1, 5, 128))
tuple(indexed.indexer_keys.shape), CacheSpec.from_config("GLM-5").layers[0].index_bytes // 2  # 2 bytes a number

# %% key="indexer-keys" lang="zh"
# indexer-keys
from transformers.cache_utils import DynamicIndexedLayer

indexed = DynamicIndexedLayer()
indexed.update_indexer(torch.zeros(1, 5, 128))
tuple(indexed.indexer_keys.shape), CacheSpec.from_config("GLM-5").layers[0].index_bytes // 2  # 每个数 2 字节

# %% [markdown] key="waiting_text" lang="en"
# **9. A right calculation with a wrong input.** Suppose that a GPU does 200 FLOP in the time in which it reads one byte. If each byte brings only 10 FLOP of work, it waits 95 % of its time. But decode attention in 16 bits brings 1 FLOP a byte ([lesson 04](04_the_roofline.ipynb)):
# %% [markdown] key="waiting_text" lang="zh" src="5a137b90"
# **9. 算术没错，输入错了。** 如果 GPU 读一个字节的时间能做 200 FLOP，而每个字节只带来 10 FLOP 的计算，它就有 95% 的时间在等。可是 16 位的解码注意力每个字节只带来 1 FLOP（[第 04 课](04_the_roofline.ipynb)）：

# %% key="waiting" lang="en"
rows = [[flop, f"{percent} %"] for flop, percent in zip((10, 1), erratum("002-18").value())]
Table(["FLOP/B", "waiting"], rows, right=["waiting"])

# %% key="waiting" lang="zh"
rows = [[flop, f"{percent} %"] for flop, percent in zip((10, 1), erratum("002-18").value())]
Table(["FLOP/B", "等待"], rows, right=["等待"])

# %% [markdown] key="whole_text" lang="en"
# **10. A loop that gives new tokens their slots, block by block.** It is right as long as every chunk begins at the edge of a block ([lesson 09](09_pages_and_blocks.ipynb)). Store 6 of 10 tokens in blocks of 4, and ask for the slots of the other 4:
# %% [markdown] key="whole_text" lang="zh" src="6a9b1348"
# **10. 逐块给新 token 分槽位的循环。** 只要每段都从块的边界开始，它就是对的（[第 09 课](09_pages_and_blocks.ipynb)）。块大小 4，10 个 token 已存 6 个，再来要剩下 4 个的槽位：

# %% key="whole-blocks-only" lang="en"
# whole-blocks-only
from minikv.blocks import BlockManager

manager = BlockManager(num_blocks=8, block_size=4)
manager.allocate("A", list(range(10)))
table = manager.block_table("A")
loop = [table[place] * 4 + slot for place in range(6 // 4, 3) for slot in range(min(4, 10 - place * 4))]
rows = [["the loop", str(loop), len(loop)], ["slot_mapping", str(manager.slot_mapping("A", 6, 10).tolist()), 4]]
Table(["", "slots", "how many"], rows)

# %% key="whole-blocks-only" lang="zh"
# whole-blocks-only
from minikv.blocks import BlockManager

manager = BlockManager(num_blocks=8, block_size=4)
manager.allocate("A", list(range(10)))
table = manager.block_table("A")
loop = [table[place] * 4 + slot for place in range(6 // 4, 3) for slot in range(min(4, 10 - place * 4))]
rows = [["这个循环", str(loop), len(loop)], ["slot_mapping", str(manager.slot_mapping("A", 6, 10).tolist()), 4]]
Table(["", "槽位", "个数"], rows)

# %% [markdown] key="short_text" lang="en"
# **11. `total * util - peak`,** offered as a simpler form of `total * util - used - peak + current`. It leaves out the memory that is taken outside torch. With a `utilization` of 0.9 the tenth of the card that is kept free hides the error. Raise `utilization`, and it shows. (All terms are in GB. The 1.79 GiB that a log showed outside torch are converted first.)
# %% [markdown] key="short_text" lang="zh" src="7517974a"
# **11. `total * util - peak`，** 说是 `total * util - used - peak + current` 的简化。它漏掉了 GPU 上 torch 之外的占用。`utilization` 为 0.9 时，留空的一成显存掩盖了错误；把它调高，错误就露出来。（各项统一用 GB；某份日志里 torch 之外占 1.79 GiB，先换算。）

# %% key="break_short_form" lang="en"
total, weights, activations, outside = 80, 35, 10, 1.79 * GIB / 1e9
rows = []
for utilization in (0.9, 0.95, 0.98):
    short_form = total * utilization - (weights + activations)
    left = total - weights - activations - outside - short_form
    rows.append([utilization, f"{short_form:.1f}", f"{left:.1f}", "fits" if left >= 0 else "out of memory"])
head = ["utilization", "the short form, GB", "left on the card, GB", ""]
Table(head, rows, right=head[1:3], lines=[f"outside torch: 1.79 GiB = {outside:.2f} GB"])

# %% key="break_short_form" lang="zh"
total, weights, activations, outside = 80, 35, 10, 1.79 * GIB / 1e9
rows = []
for utilization in (0.9, 0.95, 0.98):
    short_form = total * utilization - (weights + activations)
    left = total - weights - activations - outside - short_form
    rows.append([utilization, f"{short_form:.1f}", f"{left:.1f}", "放得下" if left >= 0 else "显存不足"])
head = ["utilization", "简化式，GB", "卡上剩余，GB", ""]
Table(head, rows, right=head[1:3], lines=[f"torch 之外：1.79 GiB = {outside:.2f} GB"])

# %% key="scope_table" lang="en"
show(errata_table("en", slip="scope"))

# %% key="scope_table" lang="zh"
show(errata_table("zh", slip="scope"))

# %% [markdown] key="definition" lang="en"
# ## A definition mistaken
#
# `peak`, `used`, `utilization`, `block`: each of these words has one meaning, and each was given another.
#
# Follow a card with 80 GB, counted in GB that torch has allocated. The weights take 35. A warm-up adds 10 and gives them back. (Where there is a GPU, the second cell measures this with 70 and 20 MiB.)
# %% [markdown] key="definition" lang="zh" src="2e80d6f7"
# ## 定义弄错
#
# `peak`、`used`、`utilization`、`block`：每个词只有一个意思，却都被当成过别的。
#
# 以一块 80 GB 的显卡为例，单位是 GB，指 torch 已分配的显存。权重占 35；预热时增加 10，随后释放。（如果有 GPU，再下一个单元格用 70 和 20 MiB 实测一遍。）

# %% key="peak-is-absolute" lang="en"
# peak-is-absolute
allocated = [0, 35, 40, 45, 35]
since_reset = allocated[1:]
current, peak, used = allocated[-1], max(since_reset), allocated[-1]
limit = erratum("001-31").value()
rows = [
    ["current", current],
    ["peak", peak],
    ["peak - current", peak - current],
    ["after - before", since_reset[-1] - since_reset[0]],
    [f"{limit} - {used} - {peak} + {current}", limit - used - peak + current],
    [f"{limit} - {used} - {peak}", limit - used - peak],
]
Table(["", "GB"], rows)

# %% key="peak-is-absolute" lang="zh"
# peak-is-absolute
allocated = [0, 35, 40, 45, 35]
since_reset = allocated[1:]
current, peak, used = allocated[-1], max(since_reset), allocated[-1]
limit = erratum("001-31").value()
rows = [
    ["current", current],
    ["peak", peak],
    ["peak - current", peak - current],
    ["运行后 - 运行前", since_reset[-1] - since_reset[0]],
    [f"{limit} - {used} - {peak} + {current}", limit - used - peak + current],
    [f"{limit} - {used} - {peak}", limit - used - peak],
]
Table(["", "GB"], rows)

# %% key="peak_measured" tags="hardware" lang="en"
rows = []
if torch.cuda.is_available():
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    weights = torch.empty(70 * MIB, dtype=torch.uint8, device="cuda")
    activations = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
    del activations
    free, total = torch.cuda.mem_get_info()
    current, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    rows.append([f"{each / MIB:,.0f}" for each in (current, peak, total - free - current)])
head = ["current (MiB)", "peak (MiB)", "used - current (MiB)"]
Table(head, rows, right=head, lines=[] if rows else ["no GPU here: the figures above are all"])

# %% key="peak_measured" tags="hardware" lang="zh"
rows = []
if torch.cuda.is_available():
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    weights = torch.empty(70 * MIB, dtype=torch.uint8, device="cuda")
    activations = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
    del activations
    free, total = torch.cuda.mem_get_info()
    current, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    rows.append([f"{each / MIB:,.0f}" for each in (current, peak, total - free - current)])
head = ["current (MiB)", "peak (MiB)", "used - current (MiB)"]
Table(head, rows, right=head, lines=[] if rows else ["这里没有 GPU：看上面的数字即可"])

# %% [markdown] key="definition_means" lang="en"
# The table shows four things:
#
# - `peak` is absolute and counts from the last reset. What a forward adds is `45 - 35 = 10`, that is `peak - current`.
# - Memory before and after a run is the same, although the run needed 10 GB.
# - `used` and `peak` both hold the weights. Without `+ current` the 35 GB are subtracted twice.
# - `utilization` limits everything: 72 GB, of which the cache gets what is left.
#
# Here `used` equals `current`, because nothing else runs. On a real GPU it is larger by the CUDA context, other processes, and what the allocator keeps for later. Document 000 calls it fragmentation, and document 001 a peak of the past. It is neither.
#
# There are more such words. Paged memory is *not* allocated as it grows: the pool exists before the first token, and only the table grows.
# %% [markdown] key="definition_means" lang="zh" src="24c0acc3"
# 从表里可以看出四点：
#
# - `peak` 是绝对值，从上次重置算起。前向计算新增的是 `45 - 35 = 10`，也就是 `peak - current`。
# - 运行前后的显存一样多，尽管运行时需要 10 GB。
# - `used` 和 `peak` 都含权重。不加 `+ current`，35 GB 就减了两次。
# - `utilization` 限制的是全部用途，共 72 GB，缓存只拿剩下的。
#
# 这里 `used` 等于 `current`，因为没有别的程序。在真实的 GPU 上 `used` 更大，多出 CUDA 上下文、其他进程，以及分配器留着备用的部分。文档 000 把它说成碎片，文档 001 把它说成“历史额外峰值”，都不对。
#
# 这样的词还有几个。分页的缓存**不是**边增长边分配的。第一个 token 到来之前，块池就已经在了，增长的只是块表。

# %% key="paged-is-preallocated" lang="en"
# paged-is-preallocated
pool = torch.empty(8, 16, 2, 64)
free, table, rows = list(range(8)), [], []
for length in (1, 16, 17, 40):
    while len(table) * 16 < length:
        table.append(free.pop(0))
    rows.append([length, str(table), pool.untyped_storage().nbytes()])
Table(["length", "table", "pool, bytes"], rows)

# %% key="paged-is-preallocated" lang="zh"
# paged-is-preallocated
pool = torch.empty(8, 16, 2, 64)
free, table, rows = list(range(8)), [], []
for length in (1, 16, 17, 40):
    while len(table) * 16 < length:
        table.append(free.pop(0))
    rows.append([length, str(table), pool.untyped_storage().nbytes()])
Table(["长度", "块表", "块池，字节"], rows)

# %% [markdown] key="sharing_text" lang="en"
# Two sequences do not *share* memory just because they use the same pool, either. "Blocks 0-10 and 11-20" are 21 blocks, each with one owner. A block is shared if two tables name it, and for that the sequences need a common prefix:
# %% [markdown] key="sharing_text" lang="zh" src="e05dbba4"
# 两条序列用同一个块池，也不等于**共享**。“块 0-10 和块 11-20”是 21 个块，每个只属于一条序列。同一个块出现在两张块表里才叫共享，前提是两条序列有公共前缀：

# %% key="shared-blocks" lang="en"
# shared-blocks
manager, rows = BlockManager(num_blocks=8, block_size=4), []
for name, last in (("A", [20]), ("B", [30])):
    manager.allocate(name, [*range(8), *last])
    manager.commit(name, 9)
    rows.append([name, str(manager.block_table(name))])
Table(["sequence", "block table"], rows)

# %% key="shared-blocks" lang="zh"
# shared-blocks
manager, rows = BlockManager(num_blocks=8, block_size=4), []
for name, last in (("A", [20]), ("B", [30])):
    manager.allocate(name, [*range(8), *last])
    manager.commit(name, 9)
    rows.append([name, str(manager.block_table(name))])
Table(["序列", "块表"], rows)

# %% [markdown] key="empty_cache_text" lang="en"
# `empty_cache()` doesn't empty a cache either. It gives back the segments in which no block is in use. Here we fill 5 GiB with blocks of 2 MiB, ten to a segment of 20 MiB. Then we free all of them, or all but one in each segment:
# %% [markdown] key="empty_cache_text" lang="zh" src="61ff85b2"
# `empty_cache()` 也不会清空什么缓存，它只归还里面没有存活块的段。下面用 2 MiB 的块填满 5 GiB，每个 20 MiB 的段装十块；然后全部释放，或者每段留一块：

# %% key="empty-cache-keeps" lang="en"
# empty-cache-keeps
from minikv.memory import CachingAllocator

rows = []
for live in (0, 1):
    model_of_torch = CachingAllocator()
    blocks = [model_of_torch.malloc(2 * MIB) for _ in range(2560)]
    for place, block in enumerate(blocks):
        if place % 10 >= live:
            model_of_torch.free(block)
    model_of_torch.empty_cache()
    usage = model_of_torch.usage()
    rows.append([live, usage.allocated, usage.reserved])
Table(["live blocks a segment", "allocated, bytes", "still reserved, bytes"], rows)

# %% key="empty-cache-keeps" lang="zh"
# empty-cache-keeps
from minikv.memory import CachingAllocator

rows = []
for live in (0, 1):
    model_of_torch = CachingAllocator()
    blocks = [model_of_torch.malloc(2 * MIB) for _ in range(2560)]
    for place, block in enumerate(blocks):
        if place % 10 >= live:
            model_of_torch.free(block)
    model_of_torch.empty_cache()
    usage = model_of_torch.usage()
    rows.append([live, usage.allocated, usage.reserved])
Table(["每段存活的块", "已分配，字节", "仍保留，字节"], rows)

# %% [markdown] key="assert_text" lang="en"
# A check is not an allocation. Document 003 lists a CPU cache among the things that its function makes. Here is the branch for it, run with numbers that pass:
# %% [markdown] key="assert_text" lang="zh" src="f38cab3c"
# 检查也不等于分配。文档 003 把一份 CPU 缓存列为函数的产物。下面用通得过检查的数，把那个分支运行一遍：

# %% key="an-assert-allocates-nothing" lang="en"
# an-assert-allocates-nothing
import gc

def host_bytes():
    return sum(thing.nbytes for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor))

config = SimpleNamespace(cpu_kv_cache=True, cpu_block_size=16, num_cpu_blocks=1_000)
before = host_bytes()
if config.cpu_kv_cache:
    assert config.cpu_block_size > 0 and config.num_cpu_blocks > 0
host_bytes() - before  # bytes of tensors that this made

# %% key="an-assert-allocates-nothing" lang="zh"
# an-assert-allocates-nothing
import gc

def host_bytes():
    return sum(thing.nbytes for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor))

config = SimpleNamespace(cpu_kv_cache=True, cpu_block_size=16, num_cpu_blocks=1_000)
before = host_bytes()
if config.cpu_kv_cache:
    assert config.cpu_block_size > 0 and config.num_cpu_blocks > 0
host_bytes() - before  # 由此多出的张量字节数

# %% [markdown] key="coalesced_text" lang="en"
# Sequential access is not *coalesced* access. The 32 threads of a warp load in the same step, and a line of the GPU's cache has 128 bytes, which are 32 floats. Access is coalesced if one step touches few lines:
# %% [markdown] key="coalesced_text" lang="zh" src="0525be30"
# 顺序访问不等于合并访存（coalesced access）。一个 warp 的 32 个线程在同一步读取，一个缓存行是 128 字节，即 32 个 float。所以要看的是一步碰到多少个缓存行：

# %% key="coalesced" lang="en"
# coalesced
def lines_touched(stride):
    return len({thread * stride * 4 // 128 for thread in range(32)})

rows = [["each thread its own slice", lines_touched(1024)], ["neighbours read neighbours", lines_touched(1)]]
Table(["", "cache lines in one step"], rows)

# %% key="coalesced" lang="zh"
# coalesced
def lines_touched(stride):
    return len({thread * stride * 4 // 128 for thread in range(32)})

rows = [["每个线程各读一段", lines_touched(1024)], ["相邻线程读相邻元素", lines_touched(1)]]
Table(["", "一步碰到的缓存行"], rows)

# %% [markdown] key="waste_text" lang="en"
# Small blocks waste less, not more, because only the last block of a sequence is partly empty:
# %% [markdown] key="waste_text" lang="zh" src="7f5b677a"
# 块越小，浪费越少，而不是越多，因为每条序列只有最后一块会空着一部分：

# %% key="waste" lang="en"
lengths = range(1, 6401)
rows = [[size, f"{sum(-length % size for length in lengths) / len(lengths):.1f}"] for size in (8, 16, 32, 64)]
Table(["block size", "tokens empty on average"], rows, right=["tokens empty on average"])

# %% key="waste" lang="zh"
lengths = range(1, 6401)
rows = [[size, f"{sum(-length % size for length in lengths) / len(lengths):.1f}"] for size in (8, 16, 32, 64)]
Table(["块大小", "平均空着的 token"], rows, right=["平均空着的 token"])

# %% key="definition_table" lang="en"
show(errata_table("en", slip="definition"))

# %% key="definition_table" lang="zh"
show(errata_table("zh", slip="definition"))

# %% [markdown] key="stale" lang="en"
# ## True once
#
# These were right for an older version of a library. Take a token in DeepSeek-V3: up to transformers 5.14 it took 81,920 bytes in each layer, and since 5.15 it takes 1,152. Document 000 estimated 28,672 bytes and proposed 81,920 as the fix, so today the estimate is 24.9 times too large, and the fix 71.1 times. We ran small models on 5.14.1, 5.15, 5.17, 5.18 and 5.23. The cache of DeepSeek-V3.2 and GLM-5 is still expanded in 5.17, while 5.18 and 5.23 keep latents there too. Here are the two layouts for DeepSeek-V3:
# %% [markdown] key="stale" lang="zh" src="fcacd69a"
# ## 曾经正确
#
# 这些说法对库的某个旧版本是对的，对现在的版本就不对了。例如 DeepSeek-V3 的一个 token，transformers 5.14 及以前每层占 81,920 字节，5.15 起是 1,152 字节。文档 000 估算为 28,672 字节，给出的修正是 81,920 字节，如今前者是实际值的 24.9 倍，后者是 71.1 倍。我们用小模型跑过 5.14.1、5.15、5.17、5.18 和 5.23。DeepSeek-V3.2 和 GLM-5 在 5.17 里仍存展开的 K 和 V，5.18 和 5.23 里也改存潜在向量。下面是 DeepSeek-V3 的两种布局：

# %% key="stale_mla" lang="en"
rows = []
for layout in ("hf-expanded", "hf"):
    layer = CacheSpec.from_config("DeepSeek-V3", layout=layout).layers[0]
    rows.append([layout, f"{layer.kv_heads} x ({layer.k_dim} + {layer.v_dim})", layer.token_bytes])
ratios = ", ".join(f"{ratio:.1f}x" for ratio in erratum("000-03").value())
Table(["layout", "numbers", "bytes a token and layer"], rows, lines=[f"too large today, estimate and fix: {ratios}"])

# %% key="stale_mla" lang="zh"
rows = []
for layout in ("hf-expanded", "hf"):
    layer = CacheSpec.from_config("DeepSeek-V3", layout=layout).layers[0]
    rows.append([layout, f"{layer.kv_heads} x ({layer.k_dim} + {layer.v_dim})", layer.token_bytes])
ratios = ", ".join(f"{ratio:.1f}x" for ratio in erratum("000-03").value())
Table(["布局", "数", "每个 token 每层的字节"], rows, lines=[f"估算和修正，如今各是实际值的几倍：{ratios}"])

# %% [markdown] key="renamed_text" lang="en"
# Names change too. So ask the object that you have, not the page that you read:
# %% [markdown] key="renamed_text" lang="zh" src="59710134"
# 名字也会变。所以要问手上的对象，别问读到的网页：

# %% key="renamed-since" lang="en"
# renamed-since
import inspect

from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

names = inspect.signature(DeepseekV3Attention.forward).parameters
cache = DynamicCache()
rows = [
    ["DynamicCache", "key_cache", hasattr(cache, "key_cache"), "layers", hasattr(cache, "layers")],
    ["forward", "past_key_value", "past_key_value" in names, "past_key_values", "past_key_values" in names],
]
head = ["", "old name", "there", "new name", "there now"]
Table(head, rows, lines=[f"LlamaConfig().dtype: {LlamaConfig().dtype}"])

# %% key="renamed-since" lang="zh"
# renamed-since
import inspect

from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

names = inspect.signature(DeepseekV3Attention.forward).parameters
cache = DynamicCache()
rows = [
    ["DynamicCache", "key_cache", hasattr(cache, "key_cache"), "layers", hasattr(cache, "layers")],
    ["forward", "past_key_value", "past_key_value" in names, "past_key_values", "past_key_values" in names],
]
head = ["", "旧名", "有没有", "新名", "现在有没有"]
Table(head, rows, lines=[f"LlamaConfig().dtype: {LlamaConfig().dtype}"])

# %% [markdown] key="generate_text" lang="en"
# One claim still holds, but its condition was left out: `generate()` keeps no cache, unless you ask for it. The same cell shows that the last token of an answer is never in the cache:
# %% [markdown] key="generate_text" lang="zh" src="8fb44bd5"
# 还有一条至今成立，只是少写了条件：`generate()` 不保留缓存，除非你要求它保留。同一个单元格还能看到，回答的最后一个 token 从不在缓存里：

# %% key="generate-and-cache" lang="en"
# generate-and-cache
def alive():
    gc.collect()
    return sum(type(thing) is DynamicCache for thing in gc.get_objects())

settings = dict(max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)
before = alive()
answer = model.generate(prompt, **settings)
rows = [["caches alive, by default", alive() - before]]
answer = model.generate(prompt, return_dict_in_generate=True, **settings)
rows.append(["caches alive, if asked for", alive() - before])
sequence, cached = answer.sequences.shape[1], answer.past_key_values.get_seq_length()
rows += [["tokens generated", sequence - prompt.shape[1]], ["tokens of the sequence", sequence], ["tokens cached", cached]]
Table(["", "count"], rows)

# %% key="generate-and-cache" lang="zh"
# generate-and-cache
def alive():
    gc.collect()
    return sum(type(thing) is DynamicCache for thing in gc.get_objects())

settings = dict(max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)
before = alive()
answer = model.generate(prompt, **settings)
rows = [["存活的缓存，默认", alive() - before]]
answer = model.generate(prompt, return_dict_in_generate=True, **settings)
rows.append(["存活的缓存，要求保留时", alive() - before])
sequence, cached = answer.sequences.shape[1], answer.past_key_values.get_seq_length()
rows += [["生成的 token", sequence - prompt.shape[1]], ["序列的 token", sequence], ["缓存的 token", cached]]
Table(["", "个数"], rows)

# %% key="stale_table" lang="en"
show(errata_table("en", slip="stale"))

# %% key="stale_table" lang="zh"
show(errata_table("zh", slip="stale"))

# %% [markdown] key="source" lang="en"
# ## No such thing
#
# The last group has models that cannot be loaded, figures that no card has, a call that torch does not have, and a speed-up without a source. One multiplication or one look at a config shows most of them. For example, a document calls 80 layers of width 4,096 a 70B model, and gives 900 GB/s to a board with 204.8.
# %% [markdown] key="source" lang="zh" src="d2ed0f49"
# ## 查无此物
#
# 最后一类是加载不了的模型，哪块板卡都没有的指标，torch 里没有的函数，没有出处的加速比。大多只要乘一次，或者看一眼配置。例如 80 层、宽 4,096 被称作 70B 模型，204.8 GB/s 的板卡被写成 900。

# %% key="source_facts" lang="en"
rows = [
    ["256 bit * 6,400 MT/s / 8", f"{erratum('002-01').value()} GB/s"],
    ["65,536 registers * 4 B", f"{erratum('002-03').value()[0] / KIB:.0f} KiB"],
    ["80 GiB - what torch sees", f"{80 - find_gpu('A100 SXM 80GB').total_bytes / GIB:.2f} GiB"],
    ["80 layers of 4,096, parameters", f"{erratum('001-03').value() / 1e9:.1f}B"],
]
Table(["", "computed"], rows, right=["computed"])

# %% key="source_facts" lang="zh"
rows = [
    ["256 bit * 6,400 MT/s / 8", f"{erratum('002-01').value()} GB/s"],
    ["65,536 个寄存器 * 4 B", f"{erratum('002-03').value()[0] / KIB:.0f} KiB"],
    ["80 GiB - torch 看到的", f"{80 - find_gpu('A100 SXM 80GB').total_bytes / GIB:.2f} GiB"],
    ["80 层、宽 4,096 的参数", f"{erratum('001-03').value() / 1e9:.1f}B"],
]
Table(["", "计算"], rows, right=["计算"])

# %% key="no-argpartition"
# no-argpartition
import numpy

Table(["", "torch", "numpy"], [[name, hasattr(torch, name), hasattr(numpy, name)] for name in ("argpartition", "topk")])

# %% key="source_table" lang="en"
show(errata_table("en", slip="source"))

# %% key="source_table" lang="zh"
show(errata_table("zh", slip="source"))

# %% [markdown] key="break" lang="en"
# ## Break it
#
# Give the planner the wrong block of "A factor dropped", which is half of the right one. Everything else stays: a Qwen3-8B on an A100, with the pool that the planner allows.
# %% [markdown] key="break" lang="zh" src="7c55045b"
# ## 弄坏它
#
# 把“丢了一个因子”一节里错误的块交给规划器，它只有正确值的一半。其余不变，还是 A100 上的 Qwen3-8B，块池大小由规划器给出。

# %% key="break_block" lang="en"
budget = plan_memory("Qwen3-8B", gpu="A100 SXM 80GB", chunk=2048)
right_block = budget.spec.block_bytes(16)
free = budget.kv_bytes + budget.parts()["kept_free"]
rows = []
for name, block in (("right", right_block), ("half", right_block // 2)):
    taken = budget.kv_bytes // block * right_block  # what the tensor of that many blocks takes
    rows.append([name, block, budget.kv_bytes // block, f"{(free - taken) / GIB:.1f}"])
Table(["block", "bytes", "blocks", "GiB left"], rows, right=["GiB left"])

# %% key="break_block" lang="zh"
budget = plan_memory("Qwen3-8B", gpu="A100 SXM 80GB", chunk=2048)
right_block = budget.spec.block_bytes(16)
free = budget.kv_bytes + budget.parts()["kept_free"]
rows = []
for name, block in (("正确", right_block), ("一半", right_block // 2)):
    taken = budget.kv_bytes // block * right_block  # 这么多块的张量实际要占多少
    rows.append([name, block, budget.kv_bytes // block, f"{(free - taken) / GIB:.1f}"])
Table(["块", "字节", "块数", "剩余 GiB"], rows, right=["剩余 GiB"])

# %% [markdown] key="break_means" lang="en"
# With the right block 7.9 GiB are left, which is what `utilization` keeps free. Half the block gives twice the blocks, so the allocation asks for twice the pool: 46.9 GiB are missing.
# Change `// 2` to `* 2`. Now nothing breaks, but half of the cache is gone, and no message says so.
# %% [markdown] key="break_means" lang="zh" src="b313cd88"
# 块算对时还剩 7.9 GiB，这正是 `utilization` 留出的部分。块算小一半，块数就翻倍，申请的显存是块池的两倍，缺 46.9 GiB。
# 把 `// 2` 改成 `* 2`，什么都不会坏，只是缓存少了一半，而且没有任何报错。

# %% [markdown] key="catch" lang="en"
# ## How to catch one yourself
#
# Six questions, each with entries that it would have caught:
#
# | ask | it would have caught |
# |---|---|
# | What is the unit? Write it into the name: `pool_mib`, `block_bytes`. | 001-07, 002-08 |
# | Does the product give the result? Multiply it again. | 003-01, 001-09 |
# | Do the parts make the total? | 003-24, 003-09 |
# | What does it say in extreme cases: 1 GPU, 16 GPUs, 1 head, a GPU that is too small? | 001-14, 003-10 |
# | What does the number depend on: the model, the GPU, the pool, this moment? | 003-22, 001-32 |
# | Which version? Which model exactly? | 000-02, 003-11 |
#
# Then estimate the size in another way. For example, a cache of 64 GiB cannot fit where 32 GiB are left.
# %% [markdown] key="catch" lang="zh" src="e5b398e0"
# ## 怎样自己发现
#
# 六个问题，以及各自能发现的条目：
#
# | 问 | 能发现 |
# |---|---|
# | 单位是什么？把它写进变量名：`pool_mib`、`block_bytes`。 | 001-07、002-08 |
# | 乘积等于结果吗？再乘一遍。 | 003-01、001-09 |
# | 各部分加起来等于总数吗？ | 003-24、003-09 |
# | 边界上怎样：1 块 GPU、16 块 GPU、1 个头、装不下的 GPU？ | 001-14、003-10 |
# | 这个数由什么决定：模型、GPU、块池，还是此刻的状态？ | 003-22、001-32 |
# | 哪个版本？到底是哪个模型？ | 000-02、003-11 |
#
# 最后换个角度估一下大小。例如，只剩 32 GiB 的地方，放不下 64 GiB 的缓存。

# %% [markdown] key="explain_text" lang="en"
# ## Recap
#
# - One dropped factor is enough: 28 layers counted as one turned 1 GiB into 28 GiB.
# - MB and MiB differ by 4.9 %, GB and GiB by 7.4 %. In one guide that made 501 blocks that do not exist.
# - The cheapest test compares two numbers that stand next to each other: 62 and 27 GB for the same pool differ by 13,352 blocks.
# - A formula needs its conditions. With 16 ranks `8 // 16` is 0, and a quotient for `head_dim` gives 64 where Qwen3-0.6B has 128.
# - We found 104 errors in five documents. Each has a value that you can compute, a cell that you can run, or a page.
#
# ## Check yourself
#
# Answer in your own words, then reveal the model answer: `explain("why_it_matters", reveal=True)`.
# %% [markdown] key="explain_text" lang="zh" src="3275b951"
# ## 本课小结
#
# - 丢一个因子就够了，例如 28 层当成一层来算，1 GiB 就变成了 28 GiB。
# - MB 与 MiB 差 4.9%，GB 与 GiB 差 7.4%。在一份指南里，由此多出 501 个并不存在的块。
# - 最省事的检查是对照相邻的两个数，例如同一个块池写成 62 GB 和 27 GB，差出 13,352 块。
# - 公式要带上条件。16 个 rank 时 `8 // 16` 是 0；用除法求 `head_dim` 得 64，而 Qwen3-0.6B 是 128。
# - 五份文档里，我们一共找到 104 处错误。每一处都附有可以当场计算的值、可以运行的单元格，或者网页。
#
# ## 自我检查
#
# 先用自己的话回答，再看参考答案：`explain("why_it_matters", reveal=True)`。

# %% key="explain_1"
explain("why_it_matters")

# %% key="explain_2"
explain("why_plus_current")

# %% key="explain_3"
explain("before_you_copy")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# A.1 to A.5 are in the exercise notebook of this appendix. Most wrong answers that their checks know are errors from above.
# %% [markdown] key="exercises" lang="zh" src="6c951d66"
# ## 练习
#
# A.1 到 A.5 在本附录的练习 notebook 里。检查认得的典型错误，多半在上面出现过。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | my number is off by 5 or 7 percent | `num_bytes / MIB, num_bytes / 1e6`: one of them is the number that you compare with |
# | my number is off by a whole factor (2, 8, 28) | `print(CacheSpec.from_config(config).explain())`: every factor, and the field that it comes from |
# | the GPU holds more than I calculated | `total - free - torch.cuda.memory_allocated()`: context, other processes, and `memory_reserved() - memory_allocated()` of cached memory |
# %% [markdown] key="stuck" lang="zh" src="d1fe895a"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 我的数字差百分之五或七 | `num_bytes / MIB, num_bytes / 1e6`：其中一个就是你要比的数 |
# | 我的数字差整数倍（2、8、28） | `print(CacheSpec.from_config(config).explain("zh"))`：列出每个因子及其字段 |
# | GPU 上的占用比算的多 | `total - free - torch.cuda.memory_allocated()`：上下文、其他进程，以及缓存着的 `memory_reserved() - memory_allocated()` |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# People wrote these wrong numbers. Programs compute wrong ones too: [appendix B](B_bug_museum.ipynb) reproduces bugs of real engines.
#
# If you find an error in *this* course, it belongs in this table as well. Open an issue with the number and the call that shows it.
# %% [markdown] key="next" lang="zh" src="17d3cd22"
# ## 下一篇
#
# 这里讲的是人写错的数字。程序也会算错，[附录 B](B_bug_museum.ipynb) 逐个重现真实引擎里的 bug。
#
# 如果你在**本课程**里发现错误，它也该进这张表。请提一个 issue，附上数字和能说明问题的调用。
