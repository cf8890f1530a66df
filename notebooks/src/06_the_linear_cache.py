# %% [meta]
# number = "06"
# slug = "the_linear_cache"
# needs = ["02", "05"]
# rooms = ["cache.linear", "nano.kv_cache"]
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
# A KV cache gains one token in every step.
# The obvious way to store it is `torch.cat`, which joins the old tensor and the new token.
# The other way is one tensor, made at the start, with room for `max_seq` tokens in every row. That is a **linear cache**, the simplest there is.
#
# **What does the empty room cost, what do you get for it, and how does the cache know which places are taken?**
#
# Here are both, with the real bytes of Qwen3-0.6B: a prompt of five tokens, then five steps.
# %% [markdown] key="question" lang="zh" src="a798604c"
# ## 问题
#
# KV 缓存每一步都会多一个 token。
# 最容易想到的存法是 `torch.cat`，把旧张量和新 token 拼起来。
# 另一种存法是启动时就建好一个张量，每一行都留出 `max_seq` 个 token 的位置。这就是**线性缓存**，也是最简单的缓存。
#
# **空着的位置要花多少显存？换来了什么？缓存又怎样知道哪些位置已经有 token？**
#
# 下面用 Qwen3-0.6B 的真实字节数画出两种存法，先是 5 个 token 的提示词，再走 5 步。

# %% key="first" lang="en"
import torch

from minikv.cache import LinearKVCache
from minikv.course.diagrams import Growth, growing
from minikv.plan import CacheSpec

cache = LinearKVCache(CacheSpec.from_config("Qwen3-0.6B"), batch=1, max_seq=12)
joined, steps = cache.tensors[0][..., :0, :], []  # [layers, batch, 2, kv_heads, 0 tokens, head_dim]
for num_new in (5, 1, 1, 1, 1, 1):
    old, new = joined, torch.ones(28, 1, 2, 8, num_new, 128, dtype=cache.dtype)
    joined = torch.cat([old, new], dim=4)  # [..., old + new tokens, head_dim], in another tensor
    cache.commit([num_new])                # the room is there: only the length changes
    steps.append(Growth(cache.host_lengths[0], old.nbytes, joined.nbytes, cache.nbytes))
show(growing(steps, cache.max_seq, "en"))

# %% key="first" lang="zh"
import torch

from minikv.cache import LinearKVCache
from minikv.course.diagrams import Growth, growing
from minikv.plan import CacheSpec

cache = LinearKVCache(CacheSpec.from_config("Qwen3-0.6B"), batch=1, max_seq=12)
joined, steps = cache.tensors[0][..., :0, :], []  # [层, batch, 2, KV 头, 0 个 token, 头维度]
for num_new in (5, 1, 1, 1, 1, 1):
    old, new = joined, torch.ones(28, 1, 2, 8, num_new, 128, dtype=cache.dtype)
    joined = torch.cat([old, new], dim=4)  # [..., 旧 + 新 token 数, 头维度]，复制到新张量里
    cache.commit([num_new])                # 位置早已留好，只改长度
    steps.append(Growth(cache.host_lengths[0], old.nbytes, joined.nbytes, cache.nbytes))
show(growing(steps, cache.max_seq, "zh"))

# %% [markdown] key="able" lang="en"
# After six steps both hold 1.1 MB, but `torch.cat` has copied 4.0 MB on the way. The linear cache has copied nothing. Its price is that two of its twelve places are still empty.
#
# After this lesson you can:
#
# - **find** any element of a linear cache with one sum, and say in which order K and V lie in memory;
# - **keep count** of its tokens: when to change the lengths, and why there is one for each row;
# - **compute** what the empty room costs, and choose between a linear and a paged cache.
#
# You need the bytes of a token ([lesson 02](02_how_many_bytes.ipynb)), and views and arenas ([lesson 05](05_owned_and_borrowed.ipynb)).
#
# ## What the empty room costs
#
# The room can cost far more than in the drawing. Qwen3.6-35B-A3B has 40 layers, 10 of them with attention.
# Suppose that an engine reserves room for `max_seq` tokens in each session, and that a conversation uses 300 of them.
# In the next cell, `slope` is what one more token costs in all layers together.
# Here that is K and V, 10 layers, 2 KV heads, 256 elements a head and 2 bytes an element: $2 \cdot 10 \cdot 2 \cdot 256 \cdot 2 = 20{,}480$ B.
# %% [markdown] key="able" lang="zh" src="0ca07453"
# 走完六步，两种存法里都是 1.1 MB，但 `torch.cat` 一路上复制了 4.0 MB，线性缓存一个字节也没有复制。代价是 12 个位置里还空着两个。
#
# 学完本课，你能够：
#
# - 用一次求和**找到**线性缓存里的任何一个元素，并说出 K 和 V 在内存里按什么顺序排列；
# - **数清**缓存里的 token：什么时候改长度，为什么每行各有一个长度；
# - **算出**空着的位置要花多少显存，并在线性缓存和分页缓存之间作出选择。
#
# 预备知识：一个 token 的字节数（[第 02 课](02_how_many_bytes.ipynb)）、视图和 arena（[第 05 课](05_owned_and_borrowed.ipynb)）。
#
# ## 空着的位置要花多少
#
# 实际浪费的比例可以比图里大得多。例如 Qwen3.6-35B-A3B 有 40 层，其中 10 层是注意力层。
# 假设引擎为每个会话预留 `max_seq` 个 token 的位置，而一段对话只用到 300 个。
# 下一个单元格里的 `slope`，是再增加一个 token 时，所有层合计要多占的字节数。这个模型的 10 个注意力层各有 2 个 KV 头，每头 256 个元素，每个元素 2 字节，K 和 V 合起来是 $2 \cdot 10 \cdot 2 \cdot 256 \cdot 2 = 20{,}480$ 字节。

# %% key="answer" lang="en"
from minikv.course import Table

a_token = CacheSpec.from_config("Qwen3.6-35B-A3B").slope()  # bytes in all layers
needed, rows = 300 * a_token / 2**20, []
for max_seq in (4096, 32_768, 131_072):
    reserved = max_seq * a_token / 2**30
    rows.append((max_seq, f"{reserved:.2f}", f"{needed:.1f}", f"{300 / max_seq:.2%}"))
head = ["max_seq", "reserved (GiB)", "300 tokens need (MiB)", "used"]
Table(head, rows, title=f"Bytes a token: {a_token:,}", right=head[1:])

# %% key="answer" lang="zh"
from minikv.course import Table

a_token = CacheSpec.from_config("Qwen3.6-35B-A3B").slope()  # 所有层合计的字节数
needed, rows = 300 * a_token / 2**20, []
for max_seq in (4096, 32_768, 131_072):
    reserved = max_seq * a_token / 2**30
    rows.append((max_seq, f"{reserved:.2f}", f"{needed:.1f}", f"{300 / max_seq:.2%}"))
head = ["max_seq", "预留（GiB）", "300 个 token 需要（MiB）", "使用率"]
Table(head, rows, title=f"每个 token 的字节数：{a_token:,}", right=head[1:])

# %% key="predict_reserved"
predict("reserved", ...)

# %% [markdown] key="layout" lang="en"
# ## One tensor
#
# A **linear cache** is one tensor of six dimensions:
#
# $$[\,L,\ B,\ 2,\ H,\ S,\ D\,]$$
#
# | symbol | what it is | unit | value here |
# |---|---|---|---|
# | $L$ | layers | layers | 4 |
# | $B$ | batch: rows, one for each sequence | sequences | 2 |
# | $2$ | K at 0, V at 1 | | 2 |
# | $H$ | KV heads | heads | 2 |
# | $S$ | `max_seq`: room in each row | tokens | 256 |
# | $D$ | `head_dim` | elements | 16 |
# | $b$ | bytes of one element | bytes | float32: 4 |
#
# It takes $2 \cdot L \cdot B \cdot H \cdot S \cdot D \cdot b$ bytes from the first moment, however few tokens it holds.
# With the numbers put in: $2 \cdot 4 \cdot 2 \cdot 2 \cdot 256 \cdot 16 \cdot 4 = 524{,}288$ B.
# This is the formula of [lesson 02](02_how_many_bytes.ipynb), with places instead of tokens. We make that cache, look at its shape, and compare its bytes with the plan:
# %% [markdown] key="layout" lang="zh" src="54d2b023"
# ## 一个张量
#
# **线性缓存**就是一个六维张量：
#
# $$[\,L,\ B,\ 2,\ H,\ S,\ D\,]$$
#
# | 符号 | 含义 | 单位 | 本例取值 |
# |---|---|---|---|
# | $L$ | 层数 | 层 | 4 |
# | $B$ | batch 的行数，一行一条序列 | 条 | 2 |
# | $2$ | 0 是 K，1 是 V | | 2 |
# | $H$ | KV 头数 | 头 | 2 |
# | $S$ | `max_seq`：每行的位置数 | token | 256 |
# | $D$ | 头维度（`head_dim`） | 元素 | 16 |
# | $b$ | 每个元素的字节数 | 字节 | float32：4 |
#
# 它从一开始就占 $2 \cdot L \cdot B \cdot H \cdot S \cdot D \cdot b$ 字节，与里面存了多少无关。
# 代入数字：$2 \cdot 4 \cdot 2 \cdot 2 \cdot 256 \cdot 16 \cdot 4 = 524{,}288$ 字节。
# 这就是[第 02 课](02_how_many_bytes.ipynb)的公式，只是把 token 数换成了位置数。下面建立这个缓存，看它的形状，再把它的字节数与计划对照：

# %% key="make" lang="en"
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    hidden_size=64, intermediate_size=128, vocab_size=256, dtype="float32",
)
device = "cuda" if torch.cuda.is_available() else "cpu"
spec = CacheSpec.from_config(config)
cache = LinearKVCache(spec, batch=2, max_seq=256, device=device)
(tensor,) = cache.tensors
names = ("layers", "batch", "K, V", "kv_heads", "max_seq", "head_dim")
bytes_of = f"{cache.nbytes:,} B = {spec.bytes_for(256, batch=2):,} B"
Table(["dimension", "size", "stride"], zip(names, tensor.shape, tensor.stride()), lines=[bytes_of])

# %% key="make" lang="zh"
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    hidden_size=64, intermediate_size=128, vocab_size=256, dtype="float32",
)
device = "cuda" if torch.cuda.is_available() else "cpu"
spec = CacheSpec.from_config(config)
cache = LinearKVCache(spec, batch=2, max_seq=256, device=device)
(tensor,) = cache.tensors
names = ("层", "batch", "K 和 V", "KV 头", "max_seq", "头维度")
bytes_of = f"{cache.nbytes:,} B = {spec.bytes_for(256, batch=2):,} B"
Table(["维度", "大小", "步幅"], zip(names, tensor.shape, tensor.stride()), lines=[bytes_of])

# %% [markdown] key="strides" lang="en"
# The **stride** of a dimension is the distance, in elements, between two neighbours along it.
# The last dimension has stride 1. Each other stride is the one to its right times the size to its right: $16 = 1 \cdot 16$, then $4{,}096 = 16 \cdot 256$, and so on.
# So you find an element with one sum, without looking anything up:
#
# $$\text{offset} = l \cdot s_L + r \cdot s_B + c \cdot s_2 + h \cdot s_H + p \cdot s_S + d$$
#
# | symbol | what it is | value here | its stride |
# |---|---|---|---|
# | $l$ | layer | 3 | $s_L$ = 32,768 |
# | $r$ | row | 1 | $s_B$ = 16,384 |
# | $c$ | 0 for K, 1 for V | 0 | $s_2$ = 8,192 |
# | $h$ | KV head | 1 | $s_H$ = 4,096 |
# | $p$ | position of the token in its row | 149 | $s_S$ = 16 |
# | $d$ | element in the head | 5 | 1 |
#
# With the numbers put in: $3 \cdot 32{,}768 + 1 \cdot 16{,}384 + 0 \cdot 8{,}192 + 1 \cdot 4{,}096 + 149 \cdot 16 + 5 = 121{,}173$.
# %% [markdown] key="strides" lang="zh" src="d41bf411"
# 某一维的**步幅（stride）**，是沿这一维相邻两项相距多少个元素。
# 最后一维的步幅是 1；其余每一维的步幅，等于右边一维的步幅乘以右边一维的大小，例如 $16 = 1 \cdot 16$，再左边是 $4{,}096 = 16 \cdot 256$，依此类推。
# 所以找一个元素只要做一次求和，不需要查表：
#
# $$\text{offset} = l \cdot s_L + r \cdot s_B + c \cdot s_2 + h \cdot s_H + p \cdot s_S + d$$
#
# | 符号 | 含义 | 本例取值 | 对应的步幅 |
# |---|---|---|---|
# | $l$ | 层 | 3 | $s_L$ = 32,768 |
# | $r$ | 行 | 1 | $s_B$ = 16,384 |
# | $c$ | K 为 0，V 为 1 | 0 | $s_2$ = 8,192 |
# | $h$ | KV 头 | 1 | $s_H$ = 4,096 |
# | $p$ | token 在行内的位置 | 149 | $s_S$ = 16 |
# | $d$ | 头内的元素 | 5 | 1 |
#
# 代入数字：$3 \cdot 32{,}768 + 1 \cdot 16{,}384 + 0 \cdot 8{,}192 + 1 \cdot 4{,}096 + 149 \cdot 16 + 5 = 121{,}173$。

# %% key="predict_stride"
predict("layer_to_layer", ...)

# %% key="offset" lang="en"
place = (3, 1, 0, 1, 149, 5)
offset = sum(index * stride for index, stride in zip(place, tensor.stride()))
tensor[place] = 7.0
rows = [(f"tensor{list(place)}", offset, f"holds {tensor.view(-1)[offset].item()}")]
tensor[place] = 0.0
for name, view in zip("kv", cache.layer(3)):
    behind = (view.data_ptr() - tensor.data_ptr()) // tensor.element_size()
    rows.append((f"{name} of layer 3", behind, f"a view {list(view.shape)}"))
Table(["what", "elements from the start", ""], rows)

# %% key="offset" lang="zh"
place = (3, 1, 0, 1, 149, 5)
offset = sum(index * stride for index, stride in zip(place, tensor.stride()))
tensor[place] = 7.0
rows = [(f"tensor{list(place)}", offset, f"值为 {tensor.view(-1)[offset].item()}")]
tensor[place] = 0.0
for name, view in zip("kv", cache.layer(3)):
    behind = (view.data_ptr() - tensor.data_ptr()) // tensor.element_size()
    rows.append((f"第 3 层的 {name}", behind, f"视图 {list(view.shape)}"))
Table(["是什么", "离起点的元素数", ""], rows)

# %% [markdown] key="views" lang="en"
# The cell wrote a 7 at the six indices and found it at that offset.
# The cache borrowed its tensor from an arena ([lesson 05](05_owned_and_borrowed.ipynb)). `layer(3)` copied nothing, because K and V of a layer are **views**: a starting point and strides.
#
# ### K and V in memory
#
# K and V are stored apart because attention reads them at different times, for different sums.
# With K it computes one dot product over `head_dim` for each token, which gives one score a token.
# With V it computes a weighted sum over the tokens, once for each element.
# K and V may differ in width ([lesson 03](03_the_2_86x_mistake.ipynb)). A quantized cache may also scale them differently ([lesson 13](13_half_the_bytes.ipynb)).
#
# Each engine chooses the order in which they lie. Below are three layouts of four tokens, two heads and 16 elements a head.
# The first is that of the linear cache. The second is that of our paged cache, where the heads of one token are neighbours. The third puts K and V of a head side by side.
# %% [markdown] key="views" lang="zh" src="463a99c3"
# 单元格按六个下标写入 7，在这个偏移处读到的正是 7。
# 缓存的张量借自一个 arena（[第 05 课](05_owned_and_borrowed.ipynb)）。`layer(3)` 没有复制任何东西，因为一层的 K 和 V 都是**视图**，也就是一个起点加一组步幅。
#
# ### K 和 V 在内存里怎样排列
#
# K 和 V 分开存放，是因为注意力在不同的时候读它们，做的求和也不同。
# 读 K 时，对每个 token 沿 `head_dim` 做一次点积，每个 token 得到一个分数。
# 读 V 时，对每个元素沿 token 做一次加权求和。
# 两者的宽度可以不同（[第 03 课](03_the_2_86x_mistake.ipynb)），量化的缩放因子也可以不同（[第 13 课](13_half_the_bytes.ipynb)）。
#
# 按什么顺序排列，各个引擎有不同的选择。下面是 4 个 token、2 个头、每头 16 个元素的三种布局。
# 第一种是线性缓存的。第二种是我们的分页缓存的，同一个 token 的各个头相邻。第三种把一个头的 K 和 V 放在一起。

# %% key="layouts" lang="en"
from minikv.cache import PagedKVCache
from minikv.course.diagrams import kv_layouts

k, v = LinearKVCache(spec, batch=1, max_seq=4).layer(0)  # [batch, kv_heads, max_seq, head_dim]
block = PagedKVCache(spec, num_blocks=1, block_size=4).layer(0)
pages = [part[0].transpose(0, 1) for part in (block.k, block.v)]  # [kv_heads, block_size, head_dim]
beside = torch.zeros(4, 2, 2 * 16).transpose(0, 1)  # [kv_heads, block_size, 2 * head_dim]
layouts = {
    "LinearKVCache [layers, batch, 2, kv_heads, max_seq, head_dim]": (k[0], v[0]),
    "PagedKVCache [2, layers, blocks, block_size, kv_heads, head_dim]": pages,
    "[blocks, block_size, kv_heads, 2 * head_dim]": (beside[..., :16], beside[..., 16:]),
}
show(kv_layouts(layouts, "en"))

# %% key="layouts" lang="zh"
from minikv.cache import PagedKVCache
from minikv.course.diagrams import kv_layouts

k, v = LinearKVCache(spec, batch=1, max_seq=4).layer(0)  # [batch, KV 头, max_seq, 头维度]
block = PagedKVCache(spec, num_blocks=1, block_size=4).layer(0)
pages = [part[0].transpose(0, 1) for part in (block.k, block.v)]  # [KV 头, 块大小, 头维度]
beside = torch.zeros(4, 2, 2 * 16).transpose(0, 1)  # [KV 头, 块大小, 2 × 头维度]
layouts = {
    "LinearKVCache [layers, batch, 2, kv_heads, max_seq, head_dim]": (k[0], v[0]),
    "PagedKVCache [2, layers, blocks, block_size, kv_heads, head_dim]": pages,
    "[blocks, block_size, kv_heads, 2 * head_dim]": (beside[..., :16], beside[..., 16:]),
}
show(kv_layouts(layouts, "zh"))

# %% [markdown] key="layouts_read" lang="en"
# The three layouts hold the same 256 elements. They differ only in their strides:
#
# | distance in elements | linear | paged | side by side |
# |---|---|---|---|
# | from a token to the next, in one head | 16 | 32 | 64 |
# | from a head to the next, in one token | 64 | 16 | 32 |
# | from K to V of one token and head | 128 | 512 | 16 |
#
# In the linear cache all the keys of one head form one piece. Attention walks along a head, so each address that it reads follows the one before. A new token costs four writes here, one for each head of K and of V.
# In the paged cache it is the other way round: a token is written in two pieces, but the keys of a head lie 32 elements apart.
# Its first dimension is the 2 of K and V, so K of all 4 layers comes before the first V: 4 layers of 128 elements make the 512.
#
# You have to tell a kernel these strides. If it gets those of another layout, it reads V where it expects K, and no error is raised ([lesson 10](10_kernels.ipynb)).
# %% [markdown] key="layouts_read" lang="zh" src="2e12ec8b"
# 三种布局存的是同样的 256 个元素，区别只在步幅：
#
# | 相距多少个元素 | 线性 | 分页 | K、V 相邻 |
# |---|---|---|---|
# | 同一个头，从一个 token 到下一个 | 16 | 32 | 64 |
# | 同一个 token，从一个头到下一个 | 64 | 16 | 32 |
# | 同一个 token 和头，从 K 到 V | 128 | 512 | 16 |
#
# 在线性缓存里，一个头的所有 key 连成一段。注意力沿着一个头往下读，下一个地址总是紧挨着上一个，所以读起来最顺。代价是写一个新 token 要写四处，K 和 V 的每个头各一处。
# 分页缓存正好相反，一个 token 只写两处，但一个头的相邻两个 key 相距 32 个元素。
# 它的第一维是 K 和 V 的那个 2，全部 4 层的 K 都排在第一个 V 之前，每层 128 个元素，所以从 K 到 V 相距 512。
#
# 因此必须把步幅告诉 kernel。如果给的是另一种布局的步幅，它会在本该是 K 的地方读到 V，而且不会报错（[第 10 课](10_kernels.ipynb)）。

# %% [markdown] key="lengths" lang="en"
# ## When the lengths change
#
# The tensor itself doesn't know which of its places are taken.
# The cache keeps one number for each row, `lengths`. It lies on the device, where a kernel can read it.
# There are only three operations:
#
# | operation | what it does | lengths |
# |---|---|---|
# | `write(layer, k, v)` | puts the new tokens of every row after those that the row has | don't change |
# | `commit(increments)` | counts them: one number for each row | grow, once a step |
# | `reset(rows)` | starts rows again; no byte is touched | become 0 |
#
# In a step, every layer has to write at the *same* lengths. After layer 0 the step isn't over, so `write` must not change the lengths. This is why counting is an operation of its own.
#
# Next we let a small model generate, and put the K and V that it computes into our cache as well.
# %% [markdown] key="lengths" lang="zh" src="2eaca09d"
# ## 长度什么时候改
#
# 张量本身不知道哪些位置已经有内容。
# 缓存为每一行记一个数，合起来就是 `lengths`。它放在设备上，kernel 可以直接读。
# 操作一共只有三个：
#
# | 操作 | 作用 | lengths |
# |---|---|---|
# | `write(layer, k, v)` | 把各行的新 token 写到该行已有内容之后 | 不变 |
# | `commit(increments)` | 计数：每行给一个增量 | 每步改一次 |
# | `reset(rows)` | 让这些行重新开始，不动任何字节 | 归零 |
#
# 一步之内，每一层都要按**同样的**长度写入。写完第 0 层，这一步还没有结束，所以写入时不能改长度。计数因此成为单独的操作。
#
# 下面让一个小模型生成文本，并把它算出的 K 和 V 同时存进我们的缓存。

# %% key="generate" lang="en"
torch.manual_seed(0)
model = LlamaForCausalLM(config).to(device).eval()
prompt = torch.randint(config.vocab_size, (2, 100)).to(device)
grown = DynamicCache(config=model.config)


@torch.no_grad()
def step(tokens):
    logits = model(tokens, past_key_values=grown).logits
    new = tokens.shape[1]
    for number, layer in enumerate(grown.layers):
        cache.write(number, layer.keys[:, :, -new:], layer.values[:, :, -new:])  # [batch, kv_heads, new, head_dim] each
    cache.commit([new, new])
    return logits[:, -1:].argmax(-1)  # [batch, 1]: the next token of each row

# %% key="generate" lang="zh"
torch.manual_seed(0)
model = LlamaForCausalLM(config).to(device).eval()
prompt = torch.randint(config.vocab_size, (2, 100)).to(device)
grown = DynamicCache(config=model.config)


@torch.no_grad()
def step(tokens):
    logits = model(tokens, past_key_values=grown).logits
    new = tokens.shape[1]
    for number, layer in enumerate(grown.layers):
        cache.write(number, layer.keys[:, :, -new:], layer.values[:, :, -new:])  # 各为 [batch, KV 头, new, 头维度]
    cache.commit([new, new])
    return logits[:, -1:].argmax(-1)  # [batch, 1]：每行的下一个 token

# %% [markdown] key="growth_words" lang="en"
# The lengths go through 1, 100 and 150: first one token, then the other 99 of the prompt, then fifty steps of one token each.
# For comparison we fill a `DynamicCache`, the default cache of transformers, which makes a new, larger tensor in every step.
# Before you run the cell: `max_seq` is 256. What share of our cache is in use at 100 tokens, and which of the three columns of bytes stays the same?
# %% [markdown] key="growth_words" lang="zh" src="095f5b56"
# 长度依次是 1、100、150，也就是先送 1 个 token，再送提示词余下的 99 个，然后解码 50 步，每步 1 个。
# 用来对照的是 transformers 默认的 `DynamicCache`，它每一步都要生成一个更大的新张量。
# 运行之前先想一想，`max_seq` 是 256，有 100 个 token 时，我们的缓存用了几成？三列字节数里，哪一列始终不变？

# %% key="growth" lang="en"
token, rows = prompt[:, :1], []
for feed in (prompt[:, :1], prompt[:, 1:], *[None] * 50):
    token = step(token if feed is None else feed)
    if cache.host_lengths[0] in (1, 100, 150):
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in grown.layers)
        use = cache.use()
        share = f"{1 - use.wasted_fraction:.1%}"
        rows.append((str(cache.lengths.tolist()), held, use.useful_bytes, use.nbytes, share))
Table(["lengths", "DynamicCache (B)", "needed (B)", "reserved (B)", "used"], rows, right=["used"])

# %% key="growth" lang="zh"
token, rows = prompt[:, :1], []
for feed in (prompt[:, :1], prompt[:, 1:], *[None] * 50):
    token = step(token if feed is None else feed)
    if cache.host_lengths[0] in (1, 100, 150):
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in grown.layers)
        use = cache.use()
        share = f"{1 - use.wasted_fraction:.1%}"
        rows.append((str(cache.lengths.tolist()), held, use.useful_bytes, use.nbytes, share))
Table(["lengths", "DynamicCache (B)", "需要（B）", "预留（B）", "使用率"], rows, right=["使用率"])

# %% key="same"
all(
    torch.equal(ours[:, :, :150], theirs)
    for number, layer in enumerate(grown.layers)
    for ours, theirs in zip(cache.layer(number), (layer.keys, layer.values))
)

# %% [markdown] key="growth_read" lang="en"
# `True` means that K and V of all 4 layers and both rows are the same numbers, bit for bit. The bytes of the linear cache never changed.
# `DynamicCache` holds only what is needed. In return it makes a new tensor and copies the old one, in every step and every layer. [Lesson 07](07_allocate_once.ipynb) measures what that costs.
#
# Now count the generated tokens. The forward over the prompt chose the first, and each of the fifty steps chose one more, so there are 51.
# But the cache grew by 50, because no forward has read the last token yet: it has no K and V.
#
# When a sequence ends, the next one can have its row.
# %% [markdown] key="growth_read" lang="zh" src="c8071a11"
# 结果是 `True`，也就是说，全部 4 层、两行的 K 和 V 都与 `DynamicCache` 逐位相同；而线性缓存占用的字节数从未变过。
# `DynamicCache` 只占需要的部分，代价是每一步、每一层都要新建一个张量，再把旧的复制过去。[第 07 课](07_allocate_once.ipynb)会测量这个代价。
#
# 再数一数生成的 token。送完提示词时选出第一个，之后 50 步每步再选一个，一共 51 个。
# 但缓存只增加了 50 个，因为最后一个还没有送进模型，所以还没有自己的 K 和 V。
#
# 一条序列结束后，它的那一行就可以给下一条用。

# %% key="reset"
cache.reset(rows=[1])
cache.lengths.tolist(), cache.nbytes, bool(cache.layer(0)[0][1].any())

# %% [markdown] key="reset_read" lang="en"
# Row 1 has length 0 now, and the cache takes as many bytes as before. `True` says that the old numbers still stand in row 1. `reset` only forgets them, and the next sequence writes over them.
# %% [markdown] key="reset_read" lang="zh" src="63009b8f"
# 第 1 行的长度归零，缓存占用的字节数不变。`True` 表示旧的数还留在第 1 行，因为 `reset` 只是不再计数，下一条序列会把它们覆盖掉。

# %% [markdown] key="waste" lang="en"
# ## Rows of different length
#
# Real requests have different lengths, and in a linear cache every row reserves the same room.
# A **paged cache** instead gives a row blocks of $P$ tokens as it grows. Only the last block of a row can be partly empty.
# This is what the two waste:
#
# $$\text{linear} = \Big(B \cdot S - \sum_r n_r\Big)\, t \qquad \text{paged} = \sum_r \Big(\Big\lceil \frac{n_r}{P} \Big\rceil P - n_r\Big)\, t$$
#
# | symbol | what it is | unit | value here |
# |---|---|---|---|
# | $B$ | rows | rows | 4 |
# | $S$ | `max_seq` | tokens | 1,024 |
# | $n_r$ | tokens in row $r$ | tokens | 150, 40, 700, 12 |
# | $P$ | `block_size` | tokens | 16 |
# | $t$ | one token in all layers | bytes | 1,024 |
#
# With the numbers put in: linear is $(4 \cdot 1{,}024 - 902) \cdot 1{,}024 = 3{,}270{,}656$ B, paged is $(10 + 8 + 4 + 4) \cdot 1{,}024 = 26{,}624$ B.
#
# Both are **internal fragmentation**: memory that a row has and doesn't fill.
# The first grows with `max_seq`. The second stays below one block for each row.
# %% [markdown] key="waste" lang="zh" src="a5ef44b8"
# ## 长短不一的行
#
# 实际请求有长有短，而在线性缓存里，每一行预留的位置一样多。
# **分页缓存**的做法不同，一行变长时，再分给它一个可存 $P$ 个 token 的块，所以只有最后一块可能没有填满。
# 两种缓存浪费的字节数是：
#
# $$\text{线性} = \Big(B \cdot S - \sum_r n_r\Big)\, t \qquad \text{分页} = \sum_r \Big(\Big\lceil \frac{n_r}{P} \Big\rceil P - n_r\Big)\, t$$
#
# | 符号 | 含义 | 单位 | 本例取值 |
# |---|---|---|---|
# | $B$ | 行数 | 行 | 4 |
# | $S$ | `max_seq` | token | 1,024 |
# | $n_r$ | 第 $r$ 行的 token 数 | token | 150、40、700、12 |
# | $P$ | `block_size` | token | 16 |
# | $t$ | 一个 token 在所有层合计 | 字节 | 1,024 |
#
# 代入数字：线性是 $(4 \cdot 1{,}024 - 902) \cdot 1{,}024 = 3{,}270{,}656$ 字节，分页是 $(10 + 8 + 4 + 4) \cdot 1{,}024 = 26{,}624$ 字节。
#
# 两者都是**内部碎片**（internal fragmentation），也就是已经分给某一行、却没有存东西的显存。
# 前者随 `max_seq` 增大，后者每行不到一个块。

# %% key="predict_waste"
predict("mixed_waste", ...)

# %% key="waste_table" lang="en"
from math import ceil

from minikv.course.charts import bars

lengths, sizes = [150, 40, 700, 12], {}
needed = sum(spec.bytes_for(length) for length in lengths)
for max_seq in (4096, 2048, 1024):
    sizes[f"linear, max_seq {max_seq:,}"] = LinearKVCache(spec, batch=4, max_seq=max_seq).nbytes
for block_size in (128, 16, 1):
    blocks = sum(ceil(length / block_size) for length in lengths)
    sizes[f"paged, block_size {block_size}"] = PagedKVCache(spec, blocks, block_size).nbytes
parts = {"holds tokens": [needed] * 6, "holds nothing": [size - needed for size in sizes.values()]}
show(bars(list(sizes), parts, x="bytes", stacked=True, looks=("k", "free")))

# %% key="waste_table" lang="zh"
from math import ceil

from minikv.course.charts import bars

lengths, sizes = [150, 40, 700, 12], {}
needed = sum(spec.bytes_for(length) for length in lengths)
for max_seq in (4096, 2048, 1024):
    sizes[f"线性，max_seq {max_seq:,}"] = LinearKVCache(spec, batch=4, max_seq=max_seq).nbytes
for block_size in (128, 16, 1):
    blocks = sum(ceil(length / block_size) for length in lengths)
    sizes[f"分页，块大小 {block_size}"] = PagedKVCache(spec, blocks, block_size).nbytes
parts = {"存着 token": [needed] * 6, "空着": [size - needed for size in sizes.values()]}
show(bars(list(sizes), parts, x="字节", stacked=True, looks=("k", "free")))

# %% key="waste_shares" lang="en"
Table(
    ["cache", "reserved (B)", "wasted (B)", "share"],
    [(name, size, size - needed, f"{1 - needed / size:.1%}") for name, size in sizes.items()],
    right=["share"],
)

# %% key="waste_shares" lang="zh"
Table(
    ["缓存", "预留（B）", "浪费（B）", "比例"],
    [(name, size, size - needed, f"{1 - needed / size:.1%}") for name, size in sizes.items()],
    right=["比例"],
)

# %% [markdown] key="see" lang="en"
# ## See it grow
#
# The widget shows four rows in both caches, with the same contents and to the same scale.
# Move the first slider with the arrow keys: every step adds a token to each row.
# Then find the step at which row A reaches `max_seq`, and read what the linear cache says.
#
# The planned bytes come from the formula. The measured bytes come from two caches that the widget really makes for each setting.
# %% [markdown] key="see" lang="zh" src="cece24b6"
# ## 看它增长
#
# 下面的组件里，两种缓存各有四行，内容相同，图也按同一比例画。
# 用方向键移动第一个滑块，每一步，每行增加一个 token。
# 再找出 A 行在哪一步碰到 `max_seq`，看看这时线性缓存给出什么提示。
#
# 计划的字节数来自公式。实测的字节数来自真实的张量，每换一个设置，两种缓存都会真的新建一次。

# %% key="growth_widget"
from minikv.course.widgets import GrowthWidget

widget = GrowthWidget(t("lang"), step=50, device=device)
show(widget)

# %% [markdown] key="see_gpu" lang="en"
# On a GPU the number of the allocator can be a little above the plan's. PyTorch rounds every allocation up, and the cache also keeps its `lengths` on the device.
# %% [markdown] key="see_gpu" lang="zh" src="0c9fa9a6"
# 在 GPU 上，分配器报告的数字可能比计划值略大，因为 PyTorch 会把每次分配的大小向上取整，缓存的 `lengths` 也放在显存里。

# %% key="allocated" tags="hardware" lang="en"
planned, grew = spec.bytes_for(4096, batch=8), "no GPU here"
if device == "cuda":
    before = torch.cuda.memory_allocated()
    measured = LinearKVCache(spec, batch=8, max_seq=4096, device=device)
    grew = torch.cuda.memory_allocated() - before
    del measured
Table(["planned (B)", "torch.cuda.memory_allocated grew by (B)"], [(planned, grew)])

# %% key="allocated" tags="hardware" lang="zh"
planned, grew = spec.bytes_for(4096, batch=8), "这里没有 GPU"
if device == "cuda":
    before = torch.cuda.memory_allocated()
    measured = LinearKVCache(spec, batch=8, max_seq=4096, device=device)
    grew = torch.cuda.memory_allocated() - before
    del measured
Table(["计划（B）", "torch.cuda.memory_allocated 增加（B）"], [(planned, grew)])

# %% [markdown] key="versus" lang="en"
# ## Linear or paged?
#
# The two are closer than they look. A linear cache is a paged cache whose blocks are as long as a row: each row has one block, and its row number is its block table. For 4 rows of 1,024 places the bytes are the same, too:
# %% [markdown] key="versus" lang="zh" src="cb96983c"
# ## 线性还是分页？
#
# 两者其实很接近。线性缓存也是一种分页缓存，只是块与行一样长，每行一个块，行号就是块表。例如 4 行、每行 1,024 个位置时，两者的字节数完全相同：

# %% key="one_block_rows"
pages = PagedKVCache(spec, num_blocks=4, block_size=1024, device=device)
rows = LinearKVCache(spec, batch=4, max_seq=1024, device=device)
pages.nbytes, rows.nbytes

# %% [markdown] key="versus_table" lang="en"
# | | linear | paged |
# |---|---|---|
# | find a token | one sum | look up the block, then one sum |
# | bookkeeping | one length for each row | block tables, a free list, reference counts |
# | memory of a row | `max_seq`, always | what it holds, rounded up to a block |
# | a row longer than planned | refused | takes another block while there is one |
# | share a common beginning | no: every row has its own | yes, block by block ([lesson 09](09_pages_and_blocks.ipynb)) |
# | allocated on the device | once, at the start | once, at the start |
#
# The last line surprises many readers: a paged cache is allocated once, too. Handing out a block only moves an entry in a list.
#
# So when would you use a linear cache?
# If one sequence runs at a time and you know its longest length, there is nothing to share, and no other sequence needs the empty room.
# Then the simplest layout is the best, because there is no table to build, to send and to read.
# In plain torch, reading through a table means a copy that collects the blocks. A kernel that follows the table in place ([lesson 10](10_kernels.ipynb)) makes no copy.
# %% [markdown] key="versus_table" lang="zh" src="3de9ad77"
# | | 线性 | 分页 |
# |---|---|---|
# | 找一个 token | 一次求和 | 先查块，再求和 |
# | 需要记录的 | 每行一个长度 | 块表、空闲队列、引用计数 |
# | 一行占的显存 | 始终是 `max_seq` | 按内容，向上取整到块 |
# | 比计划更长的行 | 拒绝 | 只要还有块，就再取一个 |
# | 共享相同的开头 | 不能，各行各存 | 能，逐块共享（[第 09 课](09_pages_and_blocks.ipynb)） |
# | 在设备上分配 | 启动时一次 | 启动时一次 |
#
# 最后一行出乎许多人的意料。分页缓存也是一次分配好的，之后每分出一个块，不过是挪动列表里的一项。
#
# 那么什么时候该用线性缓存？
# 如果同一时刻只有一条序列，最大长度也已知，就没有可共享的内容，多余的位置也没有别的序列要用。
# 这时最简单的布局最好，因为不用建块表、传块表、读块表。
# 在纯 torch 里，按块表读取意味着先把各块复制到一起；按块表就地读取的 kernel（[第 10 课](10_kernels.ipynb)）不需要复制。

# %% [markdown] key="nano_write" lang="en"
# ### A write without rows
#
# From here on the course also reads a small engine, `minikv.nano`, piece by piece. Fifteen of its functions are exercises, and [lesson 11c](11c_your_engine.ipynb) runs the engine with the ones that you wrote.
# Its cache is paged: blocks of `block_size` tokens, which all sequences take from one pool. The next cell shows how it stores K and V.
# Look for two things: how many dimensions are left after `flatten`, and what decides where a token goes.
#
# `LinearKVCache.write` took the place from the length of the row. Here the caller gives a **slot** for each token, which is block number times block size plus the place in the block. In blocks of 4, the second place of block 2 is slot 2 · 4 + 1 = 9.
# %% [markdown] key="nano_write" lang="zh" src="f1f52a7a"
# ### 不按行写入
#
# 从这里开始，课程会一段段地读一个小引擎 `minikv.nano`。其中十五个函数是练习题，[第 11c 课](11c_your_engine.ipynb)会用你写的那些来运行引擎。
# 它的缓存是分页的，切成每块 `block_size` 个 token 的块，各条序列从同一个块池里取。下一个单元格就是它存放 K 和 V 的办法。
# 请留意两点。`flatten` 之后还剩几维？由什么决定 token 写到哪里？
#
# `LinearKVCache.write` 看的是行的长度；这里则由调用者给每个 token 指定一个**槽位**（slot），它等于块号乘以块大小，再加上块内的位置。例如块大小为 4 时，块 2 的第二个位置是槽位 2 · 4 + 1 = 9。

# %% key="nano_write_source"
from minikv.course import show_source
from minikv.nano.kv_cache import KVCache

show_source(KVCache.write)

# %% key="nano_write_run" lang="en"
tiny = KVCache(spec, num_blocks=3, block_size=4, dtype=torch.float32, device=device)
slots = torch.tensor([8, 9, 10, 11, 1], device=device)  # four in block 2, one in block 0
key = torch.arange(1.0, 6.0, device=device)[:, None, None].expand(5, 2, 16)  # [T, kv_heads, head_dim]
tiny.write(0, key, -key, slots)
tiny.k[0, :, :, 0, 0]  # [blocks, block_size] of layer 0, first head, first element

# %% key="nano_write_run" lang="zh"
tiny = KVCache(spec, num_blocks=3, block_size=4, dtype=torch.float32, device=device)
slots = torch.tensor([8, 9, 10, 11, 1], device=device)  # 块 2 里四个，块 0 里一个
key = torch.arange(1.0, 6.0, device=device)[:, None, None].expand(5, 2, 16)  # [T, KV 头, 头维度]
tiny.write(0, key, -key, slots)
tiny.k[0, :, :, 0, 0]  # 第 0 层、第一个头、第一个元素：[块数, 块大小]

# %% [markdown] key="nano_write_read" lang="en"
# After `flatten`, three dimensions are left: [slots, kv_heads, head_dim]. A slot is an index of the first, so `slots` alone decides where a token goes.
# Here five tokens, perhaps of two sequences, went to their slots in one assignment, and block 1 was not touched.
# `write` counts nothing, because the block tables say which token is where ([lesson 09](09_pages_and_blocks.ipynb)).
# (You write this function in exercise 06.5.)
#
# A table costs time when you read. The next cell compares two ways of getting K and V of 16,000 tokens. Taking views of one long row copies nothing, however long the row is. `gather` follows the table and copies 1,000 blocks, 3.9 MiB, into one piece, and takes many times as long.
# %% [markdown] key="nano_write_read" lang="zh" src="2c8fbbc3"
# `flatten` 之后还剩三维，即 [槽位, KV 头, 头维度]。槽位就是第一维的下标，所以 token 写到哪里，只由 `slots` 决定。
# 这里五个 token（可能来自两条序列）只用一次赋值就写进了各自的槽位，块 1 没有动过。
# `write` 并不计数，因为哪个 token 在哪里，都记在块表里（[第 09 课](09_pages_and_blocks.ipynb)）。
# （练习 06.5 就是写这个函数。）
#
# 用块表的代价主要在读取。下面用两种办法取出 16,000 个 token 的 K 和 V，比较所用的时间。取一个长行的视图不复制任何东西，行再长也一样快；`gather` 则要按块表把 1,000 个块、共 3.9 MiB 复制到一起，时间是前者的许多倍。

# %% key="read_time" tags="timing" lang="en"
from timeit import repeat

long_row = LinearKVCache(spec, batch=1, max_seq=16_384)
pool = PagedKVCache(spec, num_blocks=1024, block_size=16)
table = torch.randperm(1024, generator=torch.Generator().manual_seed(0))
reads = {
    "two views of a row": lambda: [part[0, :, :16_000] for part in long_row.layer(0)],
    "1,000 blocks, collected": lambda: pool.gather(0, table, 16_000),
}
rows = [(name, min(repeat(read, number=1, repeat=30)) * 1e6) for name, read in reads.items()]
mib = 16_000 * spec.layers[0].token_bytes / 2**20
Table(["16,000 tokens of one layer", "us"], rows, lines=[f"{mib:.1f} MiB"])

# %% key="read_time" tags="timing" lang="zh"
from timeit import repeat

long_row = LinearKVCache(spec, batch=1, max_seq=16_384)
pool = PagedKVCache(spec, num_blocks=1024, block_size=16)
table = torch.randperm(1024, generator=torch.Generator().manual_seed(0))
reads = {
    "一行的两个视图": lambda: [part[0, :, :16_000] for part in long_row.layer(0)],
    "收集 1,000 个块": lambda: pool.gather(0, table, 16_000),
}
rows = [(name, min(repeat(read, number=1, repeat=30)) * 1e6) for name, read in reads.items()]
mib = 16_000 * spec.layers[0].token_bytes / 2**20
Table(["一层的 16,000 个 token", "us"], rows, lines=[f"{mib:.1f} MiB"])

# %% [markdown] key="break" lang="en"
# ## Break it: count too often
#
# The most common mistake is to commit inside the loop over the layers.
# %% [markdown] key="break" lang="zh" src="72eb139b"
# ## 弄坏它：数得太勤
#
# 最常见的错误，是在逐层的循环里就提交长度。

# %% key="predict_commit"
predict("per_layer_commit", ...)

# %% key="break_commit" lang="en"
from minikv.course.diagrams import places

broken = LinearKVCache(spec, batch=2, max_seq=40, device=device)
new = torch.ones(2, 2, 9, 16, device=device)  # [batch, kv_heads, 9 tokens, head_dim]
for layer in range(4):
    broken.write(layer, new, new)
    broken.commit([9, 9])            # wrong: one level too deep
rows = {}
for layer in range(4):
    k, _ = broken.layer(layer)       # [batch, kv_heads, max_seq, head_dim]
    rows[f"layer {layer}"] = (k[0, 0].any(-1).tolist(), broken.host_lengths[0])
show(places(rows, "en"))

# %% key="break_commit" lang="zh"
from minikv.course.diagrams import places

broken = LinearKVCache(spec, batch=2, max_seq=40, device=device)
new = torch.ones(2, 2, 9, 16, device=device)  # [batch, KV 头, 9 个 token, 头维度]
for layer in range(4):
    broken.write(layer, new, new)
    broken.commit([9, 9])            # 错误：多缩进了一层
rows = {}
for layer in range(4):
    k, _ = broken.layer(layer)       # [batch, KV 头, max_seq, 头维度]
    rows[f"第 {layer} 层"] = (k[0, 0].any(-1).tolist(), broken.host_lengths[0])
show(places(rows, "zh"))

# %% [markdown] key="break_commit_read" lang="en"
# Nine tokens went in, and the lengths say 36.
# Every layer now reads 27 places where it never wrote, and only layer 0 has its tokens at the beginning.
# No error is raised. The text gets worse, or turns into garbage.
#
# ## Break it: one length for all
#
# The second mistake is to use one length for all rows.
# It is easy to write, for example as `position = lengths.max()`, and with a batch of one it is right.
# Here are two rows of 12 and 5 tokens, and one step with this mistake.
# (`counts` says how many of the tokens that `write` gets are each row's own. The rest is padding.)
# %% [markdown] key="break_commit_read" lang="zh" src="7168e52f"
# 写入了 9 个 token，长度却成了 36。
# 每一层都会去读 27 个自己从没写过的位置；只有第 0 层的 token 还在开头。
# 没有任何报错，只是生成的文本变差，甚至成了乱码。
#
# ## 弄坏它：所有行用同一个长度
#
# 第二种错误是所有行共用一个长度。
# 这样的代码很容易写出来，例如 `position = lengths.max()`；而且 batch 为 1 时，它是对的。
# 下面两行分别有 12 个和 5 个 token，再按这种写法走一步。
# （`counts` 说明交给 `write` 的 token 里，各行自己的有几个，其余只是补齐。）

# %% key="break_longest" lang="en"
right = LinearKVCache(spec, batch=2, max_seq=16, device=device)
prompts = torch.ones(2, 2, 12, 16, device=device)  # [batch, kv_heads, 12 tokens, head_dim]
right.write(0, prompts, prompts, counts=[12, 5])
right.commit([12, 5])
wrong_k, one = right.layer(0)[0].clone(), prompts[:, :, :1]
right.write(0, one, one)                                # each row at its own length
wrong_k[:, :, int(right.lengths.max())] = one[:, :, 0]  # all rows at the longest
right.commit([1, 1])
rows = {}
for name, k in (("right", right.layer(0)[0]), ("wrong", wrong_k)):
    for row, length in enumerate(right.host_lengths):
        rows[f"{name}, row {row}"] = (k[row, 0].any(-1).tolist(), length)
show(places(rows, "en"))

# %% key="break_longest" lang="zh"
right = LinearKVCache(spec, batch=2, max_seq=16, device=device)
prompts = torch.ones(2, 2, 12, 16, device=device)  # [batch, KV 头, 12 个 token, 头维度]
right.write(0, prompts, prompts, counts=[12, 5])
right.commit([12, 5])
wrong_k, one = right.layer(0)[0].clone(), prompts[:, :, :1]
right.write(0, one, one)                                # 各行写在自己的长度处
wrong_k[:, :, int(right.lengths.max())] = one[:, :, 0]  # 所有行都写在最长的长度处
right.commit([1, 1])
rows = {}
for name, k in (("正确", right.layer(0)[0]), ("错误", wrong_k)):
    for row, length in enumerate(right.host_lengths):
        rows[f"{name}，第 {row} 行"] = (k[row, 0].any(-1).tolist(), length)
show(places(rows, "zh"))

# %% [markdown] key="break_longest_read" lang="en"
# The new token of row 1 belongs at place 5, and it was written at 12.
# After the commit the length of row 1 is 6. So attention reads place 5, which is empty, and never sees the token.
# The longest row is always right, and so is every test with rows of equal length.
#
# ## Break it: what lies beyond the length
#
# Attention over a batch often reads all `max_seq` places and masks those beyond the length, which gives them the weight 0.
# So it shouldn't matter what lies there.
# The next cell puts a NaN in the last place of row 1, place 15, while the row's length is 6, and checks the result for NaN before and after.
# %% [markdown] key="break_longest_read" lang="zh" src="bdd2c690"
# 第 1 行的新 token 应该写在位置 5，却写到了位置 12。
# 提交之后，这一行的长度是 6。于是注意力会去读空着的位置 5，却永远读不到那个 token。
# 最长的那一行总是对的；各行等长的测试也都能通过。
#
# ## 弄坏它：长度之后的位置
#
# 批量计算注意力时，常常把 `max_seq` 个位置全部读进来，再用掩码遮住长度之后的位置，使它们的权重为 0。
# 那么那里放着什么，似乎都没有关系。
# 下面在第 1 行的最后一个位置（位置 15，而这一行的长度是 6）放一个 NaN，比较前后的结果里有没有 NaN。

# %% key="break_nan" lang="en"
query = torch.ones(2, 2, 1, 16, device=device)  # [batch, heads, 1 token, head_dim]
beyond = torch.arange(16, device=device) >= right.lengths[:, None]  # [batch, max_seq]


def attend(k, v):
    scores = query @ k.transpose(2, 3)  # k as [batch, heads, head_dim, max_seq]: [batch, heads, 1, max_seq]
    scores = scores.masked_fill(beyond[:, None, None], float("-inf"))  # mask [batch, 1, 1, max_seq]
    return scores.softmax(-1) @ v  # weights beyond the length are 0


k, v = right.layer(0)
before = bool(attend(k, v).isnan().any())
v[1, :, 15] = float("nan")
before, bool(attend(k, v).isnan().any())

# %% key="break_nan" lang="zh"
query = torch.ones(2, 2, 1, 16, device=device)  # [batch, 头, 1 个 token, 头维度]
beyond = torch.arange(16, device=device) >= right.lengths[:, None]  # [batch, max_seq]


def attend(k, v):
    scores = query @ k.transpose(2, 3)  # k 转成 [batch, 头, 头维度, max_seq]，结果为 [batch, 头, 1, max_seq]
    scores = scores.masked_fill(beyond[:, None, None], float("-inf"))  # 掩码 [batch, 1, 1, max_seq]
    return scores.softmax(-1) @ v  # 长度之后的权重都是 0


k, v = right.layer(0)
before = bool(attend(k, v).isnan().any())
v[1, :, 15] = float("nan")
before, bool(attend(k, v).isnan().any())

# %% [markdown] key="break_nan_read" lang="en"
# It does matter: 0 times NaN is NaN.
# Memory that was never written may hold any bits, including those of a NaN. So `LinearKVCache` fills its tensor with zeros once, when it is made.
# `reset` doesn't need to, because an old sequence leaves ordinary numbers behind, unless the model itself computed a NaN.
#
# The last case is not a mistake. A full row refuses the next token before anything is written.
# %% [markdown] key="break_nan_read" lang="zh" src="9b45436f"
# 事实上有关系，因为 0 乘以 NaN 还是 NaN。
# 从未写过的显存里什么内容都可能有，包括 NaN，所以 `LinearKVCache` 建立时会把整个张量清零一次。
# `reset` 不必再清零，因为上一条序列留下的都是正常的数，除非模型自己算出过 NaN。
#
# 最后一种情况不算错误。行满了，再来的 token 在写入之前就被拒绝。

# %% key="full" lang="en"
from minikv.cache import RowFullError

three = prompts[:, :, :3]  # [batch, kv_heads, 3 tokens, head_dim]
right.write(0, three, three, counts=[3, 0])
right.commit([3, 0])
try:
    right.write(0, one, one)
except RowFullError as error:
    print(t(error))

# %% key="full" lang="zh"
from minikv.cache import RowFullError

three = prompts[:, :, :3]  # [batch, KV 头, 3 个 token, 头维度]
right.write(0, three, three, counts=[3, 0])
right.commit([3, 0])
try:
    right.write(0, one, one)
except RowFullError as error:
    print(t(error))

# %% [markdown] key="self" lang="en"
# ## Recap
#
# A linear cache is one tensor of `2 · L · B · H · S · D · b` bytes, made once: 524,288 B for our 4 layers and 2 rows of 256 places. One sum of six terms finds any of its elements.
# K and V lie apart because attention sums them in different ways. The order is a matter of strides: from token to token it is 16, 32 or 64 elements in the three layouts.
# `write` puts K and V after the tokens of each row, and `commit` counts them once a step. A commit in the loop over 4 layers turns 9 tokens into 36.
# Four rows of 150, 40, 700 and 12 tokens leave 78 % of a cache with `max_seq` 1,024 empty, while blocks of 16 tokens waste under 3 %.
# Every row has a length of its own, and 0 times NaN is NaN, so the places beyond the length have to hold ordinary numbers.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="bf53171f"
# ## 本课小结
#
# 线性缓存是一个 `2 · L · B · H · S · D · b` 字节的张量，只建一次。本课的 4 层、2 行、每行 256 个位置，共 524,288 字节；其中任何一个元素，用一次六项求和就能找到。
# K 和 V 分开存放，因为注意力对它们做的求和不同；排列的顺序体现在步幅上，三种布局里相邻两个 token 分别相距 16、32、64 个元素。
# `write` 把 K 和 V 写在各行的长度之后，`commit` 每步计数一次。如果在 4 层的循环里提交，9 个 token 就会变成 36 个。
# 四行分别有 150、40、700 和 12 个 token 时，`max_seq` 为 1,024 的缓存空着 78%；换成每块 16 个 token 的块，浪费不到 3%。
# 每一行都有自己的长度；因为 0 乘以 NaN 还是 NaN，所以长度之后的位置里也必须是正常的数。
#
# ## 自我检查
#
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
# In the exercise notebook of this lesson you write four functions and a class:
#
# 1. `element_offset`: from six indices to one.
# 2. `wasted_bytes`: what rows of different length leave empty, linear and paged.
# 3. `RowCache`: a linear cache of your own, with write, commit and read.
# 4. `steps_left`: how many more steps a batch can grow, in either cache.
# 5. `write`: K and V to their slots, a part of your engine.
# %% [markdown] key="exercises" lang="zh" src="c6a96343"
# ## 练习
#
# 在本课的练习 notebook 里，你要写四个函数和一个类：
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

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - In August 2023 a user of ExLlama asked whether the cache can be shorter than `max_seq_len`, because the room that a short text doesn't use is "wasted for zero value" ([exllama #259](https://github.com/turboderp/exllama/issues/259)). *What the empty room costs* has the arithmetic.
# - [pplx-garden #20](https://github.com/perplexityai/pplx-garden/issues/20) found that each session reserves `[num_key_value_heads, max_seq, head_dim]` for K and V in every attention layer, "even if the conversation only contains a few hundred tokens". Its 20,480 bytes a token are those of this lesson's first table.
# - In [vLLM #2006](https://github.com/vllm-project/vllm/issues/2006) a reader of the source asked whether the paged cache is really allocated "all at once". It is: see *Linear or paged?*, last line.
# - [oMLX PR #2201](https://github.com/jundot/omlx/pull/2201) found `offset.max()` in a batched cache. Thirty questions of GSM8K scored 96.7 % one at a time and 53.3 % in batches of 4: *One length for all*.
# %% [markdown] key="wild" lang="zh" src="8160d1a2"
# ## 实战现场
#
# - 2023 年 8 月，ExLlama 的一位用户问缓存能不能比 `max_seq_len` 短，因为文本很短时，长长的位置白白浪费（“wasted for zero value”，[exllama #259](https://github.com/turboderp/exllama/issues/259)）。怎么算，见“空着的位置要花多少”。
# - [pplx-garden #20](https://github.com/perplexityai/pplx-garden/issues/20) 指出：每个会话在每个注意力层都为 K 和 V 各预留 `[num_key_value_heads, max_seq, head_dim]`，哪怕对话只有几百个 token。其中的每 token 20,480 字节，就是本课第一张表里的数。
# - [vLLM #2006](https://github.com/vllm-project/vllm/issues/2006) 里，一位读源码的用户问分页缓存是不是真的一次全部分配好（“all at once”）。的确如此，见“线性还是分页？”表格的最后一行。
# - [oMLX PR #2201](https://github.com/jundot/omlx/pull/2201) 在一个批量缓存里发现了 `offset.max()`。GSM8K 的 30 道题，逐条运行得分 96.7%，batch 为 4 时只有 53.3%，见“所有行用同一个长度”。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You can place every element of the simplest cache, count its tokens, and say what its empty room costs.
# We took that room once, at the start, and claimed that growing step by step costs more.
# [Lesson 07](07_allocate_once.ipynb) measures it: what does an allocation for each token cost, and what does the allocator keep?
# %% [markdown] key="next" lang="zh" src="0a1bd801"
# ## 下一课
#
# 现在你能找到最简单的缓存里的每一个元素，会数其中的 token，也知道空着的位置要花多少显存。
# 我们在启动时一次拿到了全部位置，并说逐步增长的代价更高。
# [第 07 课](07_allocate_once.ipynb)就来测量：每个 token 分配一次要花多少，分配器自己又留下了什么？
