# %% [meta]
# number = "06"
# slug = "the_linear_cache"
# needs = ["02", "05"]
# rooms = ["cache.linear", "nano.kv_cache"]
# minutes = 55
# [title]
# en = "What is the simplest cache?"
# zh = "最简单的 KV 缓存是什么样的？"
# [t4]
# en = "Everything runs. The caches are made on the T4, and one cell compares what its allocator says with the plan."
# zh = "全部可以运行；缓存建在 T4 上，另有一个单元格把分配器报告的数字与计划值对照。"
# [paper]
# en = "06.1, 06.2, 06.4"
# zh = "06.1、06.2、06.4"

# %% [markdown] key="question" lang="en"
# ## The question
#
# In August 2023 somebody used a library whose cache had a fixed size, and asked its author:
#
# > Is it possible to make ExLlamaCache shorter than intended max_seq_len?
#
# ([exllama #259](https://github.com/turboderp/exllama/issues/259), "Cache size below max_seq_len?".)
# A long cache for a short text, the asker felt, would be "wasted for zero value".
#
# Three years later the same thought came with numbers.
# [pplx-garden #20](https://github.com/perplexityai/pplx-garden/issues/20) finds that each session reserves `[num_key_value_heads, max_seq, head_dim]` for K and for V in every attention layer: 20,480 bytes times `max_seq`, "even if the conversation only contains a few hundred tokens".
#
# Both had met the simplest cache there is: one tensor with room for `max_seq` tokens in every sequence's row.
# **What does that room cost, what does it buy, and who keeps count of what is in it?**
# %% [markdown] key="question" lang="zh" src="1cf1493a"
# ## 问题
#
# 2023 年 8 月，有人用的推理库缓存大小固定，他问作者：
#
# > Is it possible to make ExLlamaCache shorter than intended max_seq_len?（ExLlamaCache 能不能比预定的 max_seq_len 短？）
#
# （[exllama #259](https://github.com/turboderp/exllama/issues/259)，标题是“Cache size below max_seq_len?”。）
# 他觉得，文本很短，缓存却很长，多出来的显存就白白浪费了（“wasted for zero value”）。
#
# 三年之后，有人带着数字提了同样的问题。
# [pplx-garden #20](https://github.com/perplexityai/pplx-garden/issues/20) 指出：每个会话在每个注意力层都为 K 和 V 各预留 `[num_key_value_heads, max_seq, head_dim]`，合计 20,480 字节乘以 `max_seq`，哪怕对话只有几百个 token。
#
# 两人遇到的都是最简单的缓存：一个张量，每条序列一行，每行留出 `max_seq` 个 token 的位置。
#
# **这些位置要花多少显存？换来了什么？里面有多少 token，又由谁来数？**

# %% [markdown] key="answer_words" lang="en"
# One call answers the second asker.
# The model of that issue has 40 layers; 10 of them have attention, and the catalogue knows it.
# `slope` is what one more token costs in all layers together.
# %% [markdown] key="answer_words" lang="zh" src="4397d909"
# 后一位的问题，一次调用就能回答。
# 那个模型有 40 层，其中 10 层是注意力层，目录里有它的配置。
# `slope` 是再增加一个 token 时，所有层合计要多占的字节数。

# %% key="answer"
from minikv.plan import CacheSpec

asked = CacheSpec.from_config("Qwen3.6-35B-A3B")
print(f"slope: {asked.slope():,} B")
for max_seq in (4096, 32_768, 131_072):
    gib, mib = max_seq * asked.slope() / 2**30, 300 * asked.slope() / 2**20
    print(t("reserved_line", max_seq=max_seq, reserved=gib, needed=mib, share=300 / max_seq))

# %% key="predict_reserved"
predict("reserved", ...)

# %% [markdown] key="layout" lang="en"
# ## One tensor
#
# A **linear cache** is one tensor of six dimensions:
#
# $$[\,L,\ B,\ 2,\ H,\ S,\ D\,]$$
#
# | symbol | what it is | unit |
# |---|---|---|
# | $L$ | layers | layers |
# | $B$ | batch: rows, one a sequence | sequences |
# | $2$ | K at 0, V at 1 | |
# | $H$ | KV heads | heads |
# | $S$ | `max_seq`: room in each row | tokens |
# | $D$ | `head_dim` | elements |
# | $b$ | bytes an element (bf16: 2) | bytes |
#
# It takes $2 \cdot L \cdot B \cdot H \cdot S \cdot D \cdot b$ bytes, from the first moment, whatever it holds.
# Compare [lesson 02](02_how_many_bytes.ipynb): the formula is the same, with room in place of tokens.
# %% [markdown] key="layout" lang="zh" src="c775e884"
# ## 一个张量
#
# **线性缓存**就是一个六维张量：
#
# $$[\,L,\ B,\ 2,\ H,\ S,\ D\,]$$
#
# | 符号 | 含义 | 单位 |
# |---|---|---|
# | $L$ | 层数 | 层 |
# | $B$ | batch 的行数，一行一条序列 | 条 |
# | $2$ | 0 是 K，1 是 V | |
# | $H$ | KV 头数 | 头 |
# | $S$ | `max_seq`：每行的位置数 | token |
# | $D$ | 头维度（`head_dim`） | 元素 |
# | $b$ | 每个元素的字节数（bf16 为 2） | 字节 |
#
# 它从一开始就占 $2 \cdot L \cdot B \cdot H \cdot S \cdot D \cdot b$ 字节，与里面存了多少无关。
# 对照[第 02 课](02_how_many_bytes.ipynb)：公式相同，只是把 token 数换成了位置数。

# %% key="make"
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from minikv.cache import LinearKVCache

config = LlamaConfig(
    num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    hidden_size=64, intermediate_size=128, vocab_size=256, dtype="float32",
)
device = "cuda" if torch.cuda.is_available() else "cpu"
spec = CacheSpec.from_config(config)
cache = LinearKVCache(spec, batch=2, max_seq=256, device=device)
(tensor,) = cache.tensors
names = ("layers", "batch", "K, V", "kv_heads", "max_seq", "head_dim")
for name, size, stride in zip(names, tensor.shape, tensor.stride()):
    print(f"{name:<9}{size:>5}   stride {stride:>7,}")
print(f"{cache.nbytes:,} B = {spec.bytes_for(256, batch=2):,} B")

# %% [markdown] key="strides" lang="en"
# The **stride** of a dimension is how many elements lie between two neighbours along it.
# The last dimension has stride 1, and each stride is the one to its right times the size to its right.
# So an element is found by one sum, without a table:
#
# $$\text{offset} = l \cdot s_L + r \cdot s_B + c \cdot s_2 + h \cdot s_H + p \cdot s_S + d$$
#
# $l$: layer, $r$: row, $c$: 0 for K and 1 for V, $h$: head, $p$: position of the token in its row, $d$: element in the head; $s$: the strides of the table above.
# %% [markdown] key="strides" lang="zh" src="0735ce7b"
# 某一维的**步幅（stride）**，是沿这一维相邻两项相距多少个元素。
# 最后一维的步幅是 1；其余每一维的步幅，等于右边一维的步幅乘以右边一维的大小。
# 所以找一个元素只要做一次求和，不需要查表：
#
# $$\text{offset} = l \cdot s_L + r \cdot s_B + c \cdot s_2 + h \cdot s_H + p \cdot s_S + d$$
#
# $l$：层，$r$：行，$c$：K 为 0、V 为 1，$h$：头，$p$：token 在行内的位置，$d$：头内的元素；$s$ 是上表中的步幅。

# %% key="predict_stride"
predict("layer_to_layer", ...)

# %% key="offset"
place = (3, 1, 0, 1, 149, 5)
offset = sum(index * stride for index, stride in zip(place, tensor.stride()))
tensor[place] = 7.0
print(f"tensor{list(place)} -> {offset:,}: {tensor.view(-1)[offset].item()}")
tensor[place] = 0.0
k, v = cache.layer(3)
for name, view in (("k", k), ("v", v)):
    behind = (view.data_ptr() - tensor.data_ptr()) // tensor.element_size()
    print(t("view_line", name=name, shape=list(view.shape), offset=behind))

# %% [markdown] key="views" lang="en"
# The cache borrowed its tensor from an arena ([lesson 05](05_owned_and_borrowed.ipynb)), and `layer(3)` copied nothing: K and V of a layer are **views**, a starting point and strides.
# All the tokens of one head lie side by side, `head_dim` elements each.
# That is what reads well: attention walks along one head, and the next address is always the next one.
#
# The document "Memory Model Deep Dive", from which lesson 05 took its quiz, describes an engine for small devices that works this way, and draws the memory as `L0 K, L0 V, L1 K, L1 V, ...` with "simple indexing: layer * stride + position".
# With one row the drawing is right.
# With two, each layer is row 0's K, row 0's V, row 1's K, row 1's V, and then the next layer begins: the sum has six terms, not two.
# Its example of a "7B model" needs a second look as well:
# %% [markdown] key="views" lang="zh" src="80658eeb"
# 缓存的张量借自一个 arena（[第 05 课](05_owned_and_borrowed.ipynb)）；`layer(3)` 没有复制任何东西：一层的 K 和 V 都是**视图**，也就是一个起点加一组步幅。
# 同一个头的所有 token 紧挨着排列，每个占 `head_dim` 个元素。
# 这样读起来最快：注意力沿着一个头往下读，下一个地址总是紧挨着上一个。
#
# 第 05 课引用的《Memory Model Deep Dive》（下称原文）讲的是一个面向小型设备的引擎，缓存就是这样组织的；它把内存画成 `L0 K, L0 V, L1 K, L1 V, ...`，并说“简单索引：layer * stride + position”。
# 只有一行时，这幅图是对的。
# 有两行时，每一层依次是第 0 行的 K、第 0 行的 V、第 1 行的 K、第 1 行的 V，然后才是下一层：所以求和要有六项，而不是两项。
# 它举的“7B 模型”的例子也值得再算一遍：

# %% key="seven_b"
for name in ("Llama-2-7B", "Llama-3.1-8B"):
    model_spec = CacheSpec.from_config(name, kv_dtype="fp16")
    heads, room = model_spec.layers[0].kv_heads, model_spec.bytes_for(4096)
    print(t("seven_b", name=name, heads=heads, room=room, mb=room / 1e6, mib=room / 2**20))

# %% [markdown] key="seven_b_read" lang="en"
# The document's "536 MB" belongs to 8 KV heads, and is 536.9 MB or 512 MiB.
# The well-known 7B model of that time has 32 KV heads, and takes four times as much.
# A number of parameters says nothing about KV heads.
# %% [markdown] key="seven_b_read" lang="zh" src="4238498f"
# 原文的“536 MB”对应 8 个 KV 头，准确说是 536.9 MB，即 512 MiB。
# 当时人们熟知的那个 7B 模型有 32 个 KV 头，要占四倍。
# 只看参数量，看不出有多少个 KV 头。

# %% [markdown] key="lengths" lang="en"
# ## Who moves the lengths
#
# The tensor does not say which of its places are taken.
# One number a row does: `lengths`, kept on the device, where a kernel can read it.
# Three operations are all there is.
#
# | operation | what it does | lengths |
# |---|---|---|
# | `write(layer, k, v)` | puts the new tokens of every row behind that row's length | stay |
# | `commit(increments)` | counts them: one number a row | move, once a step |
# | `reset(rows)` | begins rows anew; no byte is touched | become 0 |
#
# A step writes every layer at the *same* lengths.
# That is why writing and counting are two operations: after layer 0 the step is not over.
#
# We let a small model generate, and put what it computes into our cache as well.
# %% [markdown] key="lengths" lang="zh" src="148ddaf3"
# ## 长度由谁来改
#
# 张量本身不知道哪些位置已经有内容。
# 记录这一点的是 `lengths`，每行一个数。它放在设备上，kernel 可以直接读。
# 操作一共只有三个。
#
# | 操作 | 作用 | lengths |
# |---|---|---|
# | `write(layer, k, v)` | 把各行的新 token 写到该行已有内容之后 | 不变 |
# | `commit(increments)` | 计数：每行给一个增量 | 每步改一次 |
# | `reset(rows)` | 让这些行重新开始，不动任何字节 | 归零 |
#
# 一步之内，每一层都要按**同样的**长度写入。
# 所以写入和计数是两个操作：写完第 0 层，这一步还没有结束。
#
# 下面让一个小模型生成文本，并把它算出的 K 和 V 同时存进我们的缓存。

# %% key="generate"
torch.manual_seed(0)
model = LlamaForCausalLM(config).to(device).eval()
prompt = torch.randint(config.vocab_size, (2, 100)).to(device)
grown = DynamicCache(config=model.config)


@torch.no_grad()
def step(tokens):
    logits = model(tokens, past_key_values=grown).logits
    new = tokens.shape[1]
    for number, layer in enumerate(grown.layers):
        cache.write(number, layer.keys[:, :, -new:], layer.values[:, :, -new:])
    cache.commit([new, new])
    return logits[:, -1:].argmax(-1)

# %% [markdown] key="growth_words" lang="en"
# First one token, then the other 99 of the prompt, then fifty steps of one token: 1, 100, 150.
# Beside our cache stands `DynamicCache`, which makes a new, larger tensor in every step.
# Before you run it: `max_seq` is 256. What part of our cache is in use at 100 tokens, and which of the three columns of bytes stays the same?
# %% [markdown] key="growth_words" lang="zh" src="163d9745"
# 先送 1 个 token，再送提示词余下的 99 个，然后解码 50 步，每步 1 个：1、100、150。
# 与我们的缓存对照的是 `DynamicCache`，它每一步都要生成一个更大的新张量。
# 运行之前先想：`max_seq` 是 256，有 100 个 token 时，我们的缓存用了几成？三列字节数里，哪一列始终不变？

# %% key="growth"
print(t("growth_head"))
token = prompt[:, :1]
for feed in (prompt[:, :1], prompt[:, 1:], *[None] * 50):
    token = step(token if feed is None else feed)
    if cache.host_lengths[0] in (1, 100, 150):
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in grown.layers)
        use = cache.use()
        line = f"{cache.lengths.tolist()!s:>12}{held:>15,}{use.useful_bytes:>13,}"
        print(f"{line}{use.nbytes:>13,}{1 - use.wasted_fraction:>9.1%}")

# %% key="same"
same = all(
    torch.equal(ours[:, :, :150], theirs)
    for number, layer in enumerate(grown.layers)
    for ours, theirs in zip(cache.layer(number), (layer.keys, layer.values))
)
print(t("same", same=same, layers=len(grown.layers)))

# %% [markdown] key="growth_read" lang="en"
# The linear cache holds the same numbers, bit for bit, and its bytes never changed.
# `DynamicCache` holds only what is needed, and paid for it with a new tensor and a copy of the old one in every step and layer; [lesson 07](07_allocate_once.ipynb) measures that.
#
# Count the generated tokens: the forward over the prompt chose the first, and each of the fifty steps chose one more.
# That makes 51, while the cache grew by 50: the last token has been chosen, but no forward has read it, so it has no K and V yet.
# The document speaks of 50 generated tokens; those are the ones in the cache.
#
# When a sequence ends, its row is free for the next one.
# %% [markdown] key="growth_read" lang="zh" src="644a5b64"
# 线性缓存里的数与 `DynamicCache` 逐位相同，占用的字节数则从未变过。
# `DynamicCache` 只占需要的部分，代价是每一步、每一层都要新建一个张量，再把旧的复制过去；[第 07 课](07_allocate_once.ipynb)会测量这个代价。
#
# 数一数生成的 token：送完提示词时选出第一个，之后 50 步每步再选一个。
# 一共 51 个，而缓存只增加了 50 个：最后一个已经选出，但还没有送进模型，所以还没有自己的 K 和 V。
# 原文说生成了 50 个，指的是缓存里的那些。
#
# 一条序列结束后，它的那一行就可以给下一条用。

# %% key="reset"
cache.reset(rows=[1])
old = bool(cache.layer(0)[0][1].any())
print(t("reset_line", lengths=cache.lengths.tolist(), nbytes=cache.nbytes, old=old))

# %% [markdown] key="waste" lang="en"
# ## Rows of different length
#
# Real requests differ in length, and every row reserves the same room.
# A **paged cache** reserves blocks of $P$ tokens as a row grows; the row's last block is partly empty, and that is all it wastes.
# With $n_r$ tokens in row $r$ and $t$ bytes a token in all layers:
#
# $$\text{linear} = \Big(B \cdot S - \sum_r n_r\Big)\, t \qquad \text{paged} = \sum_r \Big(\Big\lceil \frac{n_r}{P} \Big\rceil P - n_r\Big)\, t$$
#
# Both are **internal fragmentation**: memory that is given to a row and holds nothing.
# The first grows with `max_seq`, the second stays below one block a row.
# %% [markdown] key="waste" lang="zh" src="d626c8ce"
# ## 长短不一的行
#
# 实际请求有长有短，而每一行预留的位置一样多。
# **分页缓存**随着一行变长，逐个分配可存 $P$ 个 token 的块；只有最后一块没有填满，浪费也仅限于此。
# 设第 $r$ 行有 $n_r$ 个 token，一个 token 在所有层合计占 $t$ 字节：
#
# $$\text{线性} = \Big(B \cdot S - \sum_r n_r\Big)\, t \qquad \text{分页} = \sum_r \Big(\Big\lceil \frac{n_r}{P} \Big\rceil P - n_r\Big)\, t$$
#
# 两者都是**内部碎片**（internal fragmentation）：已经分给某一行，却没有存东西的显存。
# 前者随 `max_seq` 增大，后者每行不到一个块。

# %% key="predict_waste"
predict("mixed_waste", ...)

# %% key="waste_table"
from math import ceil

from minikv.cache import PagedKVCache

lengths = [150, 40, 700, 12]


def waste_row(name, size, nbytes, wasted):
    print(f"{name:>10}{size:>7,}{nbytes:>13,}{wasted:>13,}{wasted / nbytes:>9.1%}")


print(t("waste_head"))
for max_seq in (1024, 2048, 4096):
    linear = LinearKVCache(spec, batch=4, max_seq=max_seq, device=device)
    linear.commit(lengths)
    waste_row("max_seq", max_seq, linear.nbytes, linear.use().wasted_bytes)
for block_size in (128, 16, 1):
    blocks = sum(ceil(length / block_size) for length in lengths)
    paged = PagedKVCache(spec, blocks, block_size, device=device)
    needed = sum(spec.bytes_for(length) for length in lengths)
    waste_row("block_size", block_size, paged.nbytes, paged.nbytes - needed)

# %% [markdown] key="see" lang="en"
# ## See it grow
#
# Four rows, the same in both caches and to the same scale.
# Move the first slider with the arrow keys: every step adds a token to each row.
# Then find the step at which row A meets `max_seq`, and read what the linear cache says.
#
# The planned bytes come from the formula, the measured ones from the tensors of two caches that are really made for each setting.
# %% [markdown] key="see" lang="zh" src="0bc737a2"
# ## 看它增长
#
# 四行 token，两种缓存里的内容相同，图也按同一比例画。
# 用方向键移动第一个滑块：每一步，每行增加一个 token。
# 再找出 A 行在哪一步碰到 `max_seq`，看看线性缓存怎么说。
#
# 计划的字节数来自公式；实测的字节数来自真实的张量：每换一个设置，两种缓存都会真的新建一次。

# %% key="growth_widget"
from minikv.course.widgets import GrowthWidget

widget = GrowthWidget(t("lang"), step=50, device=device)
show(widget)

# %% [markdown] key="see_gpu" lang="en"
# On a GPU the allocator has a word in it too: PyTorch rounds every allocation up, and the cache also keeps its `lengths` there, so its number can be a little above the plan's.
# %% [markdown] key="see_gpu" lang="zh" src="e3d44fc1"
# 有 GPU 时，还要看分配器：PyTorch 会把每次分配的大小向上取整，缓存的 `lengths` 也放在显存里，所以它报告的数字可能比计划值略大。

# %% key="allocated" tags="hardware"
if device == "cuda":
    before = torch.cuda.memory_allocated()
    measured = LinearKVCache(spec, batch=8, max_seq=4096, device=device)
    grew = torch.cuda.memory_allocated() - before
    print(t("allocated", planned=spec.bytes_for(4096, batch=8), allocated=grew))
    del measured
else:
    print(t("no_gpu"))

# %% [markdown] key="versus" lang="en"
# ## Linear or paged?
#
# A linear cache is a paged cache whose blocks are as long as a row: one block each, and the block table is the row number.
# %% [markdown] key="versus" lang="zh" src="95ac9e58"
# ## 线性还是分页？
#
# 线性缓存也是一种分页缓存，只是块与行一样长：每行一个块，行号就是块表。

# %% key="one_block_rows"
pages = PagedKVCache(spec, num_blocks=4, block_size=1024, device=device)
rows = LinearKVCache(spec, batch=4, max_seq=1024, device=device)
print(f"{pages.nbytes:,} B = {rows.nbytes:,} B")

# %% [markdown] key="versus_table" lang="en"
# | | linear | paged |
# |---|---|---|
# | find a token | one sum | look up the block, then one sum |
# | bookkeeping | one length a row | block tables, a free list, counts of users |
# | memory of a row | `max_seq`, always | what it holds, rounded up to a block |
# | a row longer than planned | refused | takes another block while there is one |
# | share a common beginning | no: every row has its own | yes, block by block ([lesson 09](09_pages_and_blocks.ipynb)) |
# | allocated on the device | once, at the start | once, at the start |
#
# The last line surprises many.
# In [vLLM #2006](https://github.com/vllm-project/vllm/issues/2006) somebody read the source and asked whether the cache is really allocated "all at once".
# It is: the pool is allocated once, at the start, and handing out a block only moves an entry in a list.
# The document calls paging "dynamic allocation"; what is dynamic is the table.
#
# So why linear at all?
# If one sequence runs at a time, and its longest length is known, there is nothing to share and nobody to give room to.
# Then the simplest layout wins: no table to build, to send and to read.
# In plain torch, reading through a table means a copy that collects the blocks; a kernel that follows the table in place ([lesson 10](10_kernels.ipynb)) makes none.
# %% [markdown] key="versus_table" lang="zh" src="cc0863d8"
# | | 线性 | 分页 |
# |---|---|---|
# | 找一个 token | 一次求和 | 先查块，再求和 |
# | 需要记录的 | 每行一个长度 | 块表、空闲队列、引用计数 |
# | 一行占的显存 | 始终是 `max_seq` | 按内容，向上取整到块 |
# | 比计划更长的行 | 拒绝 | 只要还有块，就再取一个 |
# | 共享相同的开头 | 不能，各行各存 | 能，逐块共享（[第 09 课](09_pages_and_blocks.ipynb)） |
# | 在设备上分配 | 启动时一次 | 启动时一次 |
#
# 最后一行出乎许多人的意料。
# [vLLM #2006](https://github.com/vllm-project/vllm/issues/2006) 里，有人读了源码，问缓存是不是真的一次全部分配好（“all at once”）。
# 的确如此：整个块池在启动时一次分配好，之后每分出一个块，不过是挪动列表里的一项。
# 原文把分页叫作“动态分配”，其实动态的只是块表。
#
# 那么线性缓存还有什么用？
# 如果同一时刻只有一条序列，最大长度也已知，就没有可共享的内容，多余的位置也没有别的序列要用。
# 这时最简单的布局最好：不用建块表、传块表、读块表。
# 在纯 torch 里，块表的代价是把各块收集到一起的那次复制；按块表就地读取的 kernel（[第 10 课](10_kernels.ipynb)）不需要复制。

# %% [markdown] key="nano_write" lang="en"
# ### A write without rows
#
# From here on the course also reads a small engine, `minikv.nano`, piece by piece. Fifteen of its functions are exercises, and [lesson 11c](11c_your_engine.ipynb) runs the engine with the ones you wrote.
# Its cache is paged: cut into blocks of `block_size` tokens, which sequences take from a common pool. This is how it stores K and V.
# Look at two things: how many dimensions are left after `flatten`, and what says where a token goes.
# `LinearKVCache.write` took the place from the row's length. Here the caller brings a **slot** for each token: block number times block size, plus the place in the block.
# %% [markdown] key="nano_write" lang="zh" src="987ac348"
# ### 不按行写入
#
# 从这里开始，课程会一段段地读一个小引擎：`minikv.nano`。其中十五个函数是练习题，[第 11c 课](11c_your_engine.ipynb)会用你写的那些来运行引擎。
# 它的缓存是分页的：切成每块 `block_size` 个 token 的块，各条序列从同一个块池里取。下面就是它存放 K 和 V 的办法。
# 请留意两点：`flatten` 之后还剩几维？由什么决定 token 写到哪里？
# `LinearKVCache.write` 看的是行的长度；这里则由调用者给每个 token 指定一个**槽位**（slot）：块号乘以块大小，再加上块内的位置。

# %% key="nano_write_source"
from minikv.course import show_source
from minikv.nano.kv_cache import KVCache

show_source(KVCache.write)

# %% key="nano_write_run" lang="en"
tiny = KVCache(spec, num_blocks=3, block_size=4, dtype=torch.float32, device=device)
slots = torch.tensor([8, 9, 10, 11, 1], device=device)  # four in block 2, one in block 0
key = torch.arange(1.0, 6.0, device=device)[:, None, None].expand(5, 2, 16)  # [T, kv_heads, head_dim]
tiny.write(0, key, -key, slots)
for block in tiny.k[0, :, :, 0, 0].int().tolist():  # layer 0, first head, first element
    print(block)

# %% key="nano_write_run" lang="zh"
tiny = KVCache(spec, num_blocks=3, block_size=4, dtype=torch.float32, device=device)
slots = torch.tensor([8, 9, 10, 11, 1], device=device)  # 块 2 里四个，块 0 里一个
key = torch.arange(1.0, 6.0, device=device)[:, None, None].expand(5, 2, 16)  # [T, kv_heads, head_dim]
tiny.write(0, key, -key, slots)
for block in tiny.k[0, :, :, 0, 0].int().tolist():  # 第 0 层、第一个头、第一个元素
    print(block)

# %% [markdown] key="nano_write_read" lang="en"
# Five tokens, perhaps of two sequences, went to their slots in one assignment, and block 1 was not touched.
# `write` counts nothing: the block tables say which token is where ([lesson 09](09_pages_and_blocks.ipynb)).
# (Exercise 06.5 asks for this function.)
#
# Reading is where a table costs something. The next cell times a view of one long row, and `gather`, which copies the blocks together.
# %% [markdown] key="nano_write_read" lang="zh" src="6a49a95b"
# 五个 token（可能来自两条序列）只用一次赋值就写进了各自的槽位，块 1 没有动过。
# `write` 并不计数：哪个 token 在哪里，记在块表里（[第 09 课](09_pages_and_blocks.ipynb)）。
# （练习 06.5 就是写这个函数。）
#
# 块表真正花时间的地方是读取。下面计时比较：取一个长行的视图，与用 `gather` 把各块收集到一起。

# %% key="read_time" tags="timing"
import time


def best_ms(read, repeats=30):
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        read()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return 1000 * min(times)


long_row = LinearKVCache(spec, batch=1, max_seq=16_384, device=device)
pool = PagedKVCache(spec, num_blocks=1024, block_size=16, device=device)
table = torch.randperm(1024, generator=torch.Generator().manual_seed(0))
views = best_ms(lambda: [part[0, :, :16_000] for part in long_row.layer(0)])
copies = best_ms(lambda: pool.gather(0, table, 16_000))
mib = 16_000 * spec.layers[0].token_bytes / 2**20
print(t("read_line", views=1000 * views, copies=1000 * copies, mib=mib))

# %% [markdown] key="break" lang="en"
# ## Break it: count too often
#
# The commonest mistake is to move the lengths inside the layer loop.
# %% [markdown] key="break" lang="zh" src="4144fd70"
# ## 弄坏它：数得太勤
#
# 最常见的错误，是在逐层的循环里就改长度。

# %% key="predict_commit"
predict("per_layer_commit", ...)

# %% key="break_commit" lang="en"
broken = LinearKVCache(spec, batch=2, max_seq=40, device=device)
new = torch.ones(2, 2, 9, 16, device=device)
for layer in range(4):
    broken.write(layer, new, new)
    broken.commit([9, 9])            # wrong: one level too deep
print("lengths", broken.lengths.tolist())
for layer in range(4):
    taken = broken.layer(layer)[0][0, 0].any(-1)
    print(t("layer_line", layer=layer, places="".join("#" if place else "." for place in taken)))

# %% key="break_commit" lang="zh"
broken = LinearKVCache(spec, batch=2, max_seq=40, device=device)
new = torch.ones(2, 2, 9, 16, device=device)
for layer in range(4):
    broken.write(layer, new, new)
    broken.commit([9, 9])            # 错误：多缩进了一层
print("lengths", broken.lengths.tolist())
for layer in range(4):
    taken = broken.layer(layer)[0][0, 0].any(-1)
    print(t("layer_line", layer=layer, places="".join("#" if place else "." for place in taken)))

# %% [markdown] key="break_commit_read" lang="en"
# Nine tokens went in, and the lengths say 36.
# Every layer now reads 27 places where it never wrote, and only layer 0 has its tokens at the beginning.
# No error is raised: the text just becomes worse, or garbage.
#
# ## Break it: one length for all
#
# The second mistake takes one length for all rows.
# It is easy to write, `position = lengths.max()`, and with a batch of one it is right.
# [oMLX PR #2201](https://github.com/jundot/omlx/pull/2201) found such a line in a batched cache: it took the place for the next tokens from `offset.max()`.
# Thirty questions of GSM8K (school mathematics) that scored 96.7 % one at a time scored 53.3 % in batches of 4.
# Here are two rows of 12 and 5 tokens, and one step of this kind.
# (`counts` says how many of the tokens that `write` is given are each row's own; the rest is padding.)
# %% [markdown] key="break_commit_read" lang="zh" src="88d692ac"
# 写入了 9 个 token，长度却成了 36。
# 每一层都会去读 27 个自己从没写过的位置；只有第 0 层的 token 还在开头。
# 没有任何报错，只是生成的文本变差，甚至成了乱码。
#
# ## 弄坏它：所有行用同一个长度
#
# 第二种错误是所有行共用一个长度。
# 这样的代码很容易写出来：`position = lengths.max()`；而且 batch 为 1 时，它是对的。
# [oMLX PR #2201](https://github.com/jundot/omlx/pull/2201) 就在一个批量缓存里发现了这样一行：下一批 token 的写入位置取自 `offset.max()`。
# GSM8K（小学数学应用题）里的 30 道题，逐条运行得分 96.7%，batch 为 4 时只有 53.3%。
# 下面两行分别有 12 个和 5 个 token，再按这种写法走一步。
# （`counts` 说明交给 `write` 的 token 里，各行自己的有几个，其余只是补齐。）

# %% key="break_longest"
def picture(rows):
    return ["".join("#" if place else "." for place in row[0].any(-1)) for row in rows]


right = LinearKVCache(spec, batch=2, max_seq=16, device=device)
prompts = torch.ones(2, 2, 12, 16, device=device)
right.write(0, prompts, prompts, counts=[12, 5])
right.commit([12, 5])
wrong_k = right.layer(0)[0].clone()
one = prompts[:, :, :1]
right.write(0, one, one)
wrong_k[:, :, int(right.lengths.max())] = one[:, :, 0]
for name, rows in (("right", right.layer(0)[0]), ("wrong", wrong_k)):
    print(t("rows_" + name, first=picture(rows)[0], second=picture(rows)[1]))

# %% [markdown] key="break_longest_read" lang="en"
# Row 1 wanted its token at place 5, and got it at 12.
# After the commit its length is 6, so attention reads place 5, which is empty, and never sees the token.
# The longest row is always right, and so is every test with rows of equal length.
#
# ## Break it: what lies behind the length
#
# Attention over a batch often reads all `max_seq` places and masks those behind the length: their weight becomes 0.
# So it should not matter what lies there.
# %% [markdown] key="break_longest_read" lang="zh" src="a2b620d7"
# 第 1 行的新 token 应该写在位置 5，却写到了位置 12。
# 提交之后它的长度是 6，注意力会去读空着的位置 5，却永远读不到那个 token。
# 最长的那一行总是对的；各行等长的测试也都能通过。
#
# ## 弄坏它：长度之后的位置
#
# 批量计算注意力时，常常把 `max_seq` 个位置全部读进来，再用掩码遮住长度之后的：它们的权重是 0。
# 那么那里放着什么，似乎都没有关系。

# %% key="break_nan"
query = torch.ones(2, 2, 1, 16, device=device)
behind = torch.arange(16, device=device) >= right.lengths[:, None]


def attend(k, v):
    scores = (query @ k.transpose(2, 3)).masked_fill(behind[:, None, None], float("-inf"))
    return scores.softmax(-1) @ v


k, v = right.layer(0)
print(t("nan_line", what="0", bad=bool(attend(k, v).isnan().any())))
v[1, :, 15] = float("nan")
print(t("nan_line", what="NaN", bad=bool(attend(k, v).isnan().any())))

# %% [markdown] key="break_nan_read" lang="en"
# 0 times NaN is NaN.
# Memory that was never written may hold any bits, NaN among them, so `LinearKVCache` fills its tensor with zeros once, when it is made.
# `reset` does not do it again: what an old sequence left behind are ordinary numbers, unless the model itself had computed a NaN.
#
# The last case is no mistake: a row that is full refuses the next token, before anything is written.
# %% [markdown] key="break_nan_read" lang="zh" src="8296d6c7"
# 0 乘以 NaN 还是 NaN。
# 从未写过的显存里什么内容都可能有，包括 NaN，所以 `LinearKVCache` 建立时会把整个张量清零一次。
# `reset` 不再清零：上一条序列留下的都是正常的数，除非模型自己算出过 NaN。
#
# 最后一种情况不算错误：行满了，再来的 token 在写入之前就被拒绝。

# %% key="full"
from minikv.cache import RowFullError

four = prompts[:, :, :4]
right.write(0, four, four, counts=[4, 1])
right.commit([4, 1])
try:
    right.write(0, one, one)
except RowFullError as error:
    print(t(error))

# %% [markdown] key="self" lang="en"
# ## Check yourself
#
# The first is one of that document's own self-test questions.
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="32c5676c"
# ## 自我检查
#
# 第一题是原文的自测题之一。
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_why"
explain("why_linear")

# %% key="explain_lengths"
explain("who_moves_lengths")

# %% key="explain_window"
explain("window_in_linear")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# The exercise notebook of this lesson asks for four functions and a class:
#
# 1. `element_offset`: from six indices to one.
# 2. `wasted_bytes`: what rows of different length leave empty, linear and paged.
# 3. `RowCache`: a linear cache of your own, with write, commit and read.
# 4. `steps_left`: how long a batch can go on growing, in either cache.
# 5. `write`: K and V to their slots, a part of your engine.
# %% [markdown] key="exercises" lang="zh" src="5722d3d0"
# ## 练习
#
# 本课的练习 notebook 要你写四个函数和一个类：
#
# 1. `element_offset`：从六个下标到一个偏移。
# 2. `wasted_bytes`：行长短不一时，线性和分页各空着多少字节。
# 3. `RowCache`：自己写一个线性缓存，包含写入、提交和读取。
# 4. `steps_left`：一个 batch 在两种缓存里各还能增长多少步。
# 5. `write`：把 K 和 V 写进槽位，“你的引擎”的一个部件。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | the text is fine alone and garbage in a batch | `cache.lengths`: rows of different length must show different numbers, and after one step each grew by its own tokens |
# | lengths are a multiple of what they should be | `cache.host_lengths` before and after one forward: a factor of `len(spec.layers)` says that the commit stands inside the layer loop |
# | the cache takes far more than its tokens | `cache.use()`: `nbytes - useful_bytes` is what `max_seq` reserves for nothing |
# %% [markdown] key="stuck" lang="zh" src="900ce4d6"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 单独运行正常，放进 batch 就成了乱码 | `cache.lengths`：长短不同的行，数字应当不同；走一步之后，每行只增加自己的 token 数 |
# | 长度是正确值的若干倍 | 一次前向前后各看一次 `cache.host_lengths`：恰好差 `len(spec.layers)` 倍，说明 commit 写进了逐层的循环 |
# | 缓存占的显存远多于 token 所需 | `cache.use()`：`nbytes - useful_bytes` 就是 `max_seq` 白白预留的部分 |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You can place every element of the simplest cache, say who counts its tokens, and what its empty room costs.
# We took that room once, at the start, and said that growing step by step would cost more.
# [Lesson 07](07_allocate_once.ipynb) measures it: what does an allocation per token cost, and what does the allocator keep?
# %% [markdown] key="next" lang="zh" src="6aa69f53"
# ## 下一课
#
# 现在你能找到最简单的缓存里的每一个元素，能说清 token 由谁来数，也知道空着的位置要花多少显存。
# 我们在启动时一次拿到了全部位置，也说过逐步增长的代价更高。
# [第 07 课](07_allocate_once.ipynb)就来测量：每个 token 分配一次要花多少，分配器自己又留下了什么？
