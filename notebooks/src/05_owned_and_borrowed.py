# %% [meta]
# number = "05"
# slug = "owned_and_borrowed"
# needs = ["00", "02"]
# rooms = ["memory.arena", "memory.ownership"]
# [title]
# en = "When is this memory freed?"
# zh = "这块内存什么时候释放？"
# [t4]
# en = "The same bytes. The arena lies on the T4, and one cell shows its allocated memory instead of the process's."
# zh = "字节数相同。arena 建在 T4 上，另有一个单元格显示的是 T4 的已分配显存，而不是进程的内存。"
# [paper]
# en = "05.3, 05.4"
# zh = "05.3、05.4"

# %% [markdown] key="question" lang="en"
# ## The question
#
# You keep one slice of a large tensor and delete the rest. Memory doesn't fall, and a file with the slice is as large as the tensor.
# In C++ the opposite can happen: a tensor that borrowed its memory reads what another wrote there.
#
# **When is memory freed, and by which tensor?**
# A KV cache consists of slices, so an engine has to know.
#
# Here are a batch of 100 activations, the first of them, and a copy of the first:
# %% [markdown] key="question" lang="zh" src="2b7030c4"
# ## 问题
#
# 只留下大张量的一个切片，把其余的都删掉，内存没有下降；切片存成文件，也和整个张量一样大。
# C++ 里则可能相反，借用内存的张量读到的是另一个张量写在那里的内容。
#
# **一块内存在什么时候释放？由哪个张量释放？**
#
# KV 缓存里到处都是切片，所以推理引擎必须弄清楚。
#
# 下面是 100 份激活组成的一个 batch、其中的第一份，以及它的副本：

# %% key="first"
import torch

from minikv.course.diagrams import storage_views

torch.manual_seed(0)
batch = torch.randn(100, 100, 100, dtype=torch.float64)
saved = {"batch": batch, "batch[0]": batch[0], "batch[0].clone()": batch[0].clone()}
show(storage_views(saved, t("lang")))

# %% [markdown] key="able" lang="en"
# `batch[0]` shows 80,000 bytes and keeps a hundred times as many alive, because it lies in the batch's **storage**. The copy has a storage of its own.
#
# After this lesson you can:
#
# - **tell** for any tensor which bytes it touches and which it keeps alive;
# - **predict** when memory is freed, by the rule of C++ and by that of torch;
# - **lend** parts of one allocation on purpose, and refuse to free it while a loan is in use.
#
# You need no more than Python and the shape of a tensor; the C++ is explained as we go.
# To begin, how large is a file with each of these three?
# %% [markdown] key="able" lang="zh" src="438d8170"
# `batch[0]` 只看到 80,000 字节，却让一百倍的内存无法释放，因为它放在 batch 的**存储**（storage）里。副本则有自己的存储。
#
# 学完本课，你能够：
#
# - **看出**任何一个张量用到哪些字节、占住哪些字节；
# - 分别按 C++ 和 torch 的规则**预测**内存何时释放；
# - 主动**出借**一次分配里的各个部分，并在借出的张量还在用时拒绝释放。
#
# 预备知识只要 Python 和张量的形状，C++ 的部分边讲边解释。
# 先来看一看，这三个张量存成文件各有多大。

# %% key="asked" lang="en"
import io

from minikv.course import Table

rows = []
for name, tensor in saved.items():
    file = io.BytesIO()
    torch.save(tensor, file)
    rows.append((name, tensor.nbytes, file.tell()))
Table(["saved", "B in the tensor", "B in the file"], rows)

# %% key="asked" lang="zh"
import io

from minikv.course import Table

rows = []
for name, tensor in saved.items():
    file = io.BytesIO()
    torch.save(tensor, file)
    rows.append((name, tensor.nbytes, file.tell()))
Table(["保存的对象", "张量（B）", "文件（B）"], rows)

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# A file is easy to measure, but an engine runs out of memory, not of disk.
# So what does a tenth of a tensor keep in *memory*?
# Run the cell to see the question. Then put your number in place of `...` and run it again.
# %% [markdown] key="predict_first" lang="zh" src="df8648ba"
# ## 先猜一猜
#
# 文件大小容易看到，但推理引擎缺的是内存，不是磁盘。
# 那么，只留下一个张量的十分之一，会占住多少**内存**？
# 直接运行单元格会显示题目；把 `...` 换成你的数字，再运行一次。

# %% key="predict_ten"
predict("ten_percent", ...)

# %% [markdown] key="cpp" lang="en"
# ## The rule of C++
#
# C++ has the simpler rule, so we start there.
# In many C++ engines a tensor carries a flag that says in which of two modes it is.
# An **owned** tensor allocates memory in its constructor, and its destructor calls `cudaFree`.
# A **borrowed** tensor stores an address that it was given, and its destructor does nothing.
#
# Take three tensors: `a` is owned, `b` borrows all of `a`, and `c` is owned.
# %% [markdown] key="cpp" lang="zh" src="673d1827"
# ## C++ 的规则
#
# C++ 的规则更简单，所以从它讲起。
# 在许多 C++ 引擎里，张量带一个标志，说明自己属于两种模式中的哪一种。
# **拥有**内存的张量在构造时分配，析构时调用 `cudaFree`。
# **借用**内存的张量只保存别处给它的地址，析构时什么也不做。
#
# 例如有三个张量：`a` 拥有内存，`b` 借用整个 `a`，`c` 也拥有内存。

# %% key="predict_quiz"
predict("quiz_total", ...)

# %% [markdown] key="quiz" lang="en"
# Here is the same in torch, with an `a` of 1024 x 768 and a `c` of 512 x 768.
# `ownership` reports what torch knows about a tensor's memory.
# %% [markdown] key="quiz" lang="zh" src="5485cd02"
# 下面用 torch 做一遍：`a` 是 1024 × 768，`c` 是 512 × 768。
# `ownership` 会报告 torch 所知道的、一个张量的内存情况。

# %% key="quiz_code"
from minikv.memory import ownership, share_storage

a = torch.zeros(1024, 768, dtype=torch.float16)
b = a.view(1024, 768)  # [1024, 768]
c = torch.zeros(512, 768, dtype=torch.float16)
show(storage_views({"a": a, "b": b, "c": c}, t("lang")))

# %% key="quiz_total" lang="en"
total = sum(ownership(tensor).storage_bytes for tensor in (a, c))  # b has no storage of its own
Table(["allocated (B)", "MiB", "MB"], [(total, f"{total / 2**20:g}", f"{total / 1e6:.2f}")])

# %% key="quiz_total" lang="zh"
total = sum(ownership(tensor).storage_bytes for tensor in (a, c))  # b 没有自己的存储
Table(["分配的字节数", "MiB", "MB"], [(total, f"{total / 2**20:g}", f"{total / 1e6:.2f}")])

# %% [markdown] key="quiz_read" lang="en"
# `a` takes 1.5 MiB and `c` 0.75 MiB. `b` adds nothing, so the sum is 2.25 MiB, or 2.36 MB.
#
# In C++ only the destructors of `a` and `c` would call `cudaFree`.
# That is the whole rule, and no part of it keeps `a` alive because `b` still uses it.
# %% [markdown] key="quiz_read" lang="zh" src="b96a7ea7"
# `a` 占 1.5 MiB，`c` 占 0.75 MiB，`b` 不增加任何字节，所以一共 2.25 MiB，也就是 2.36 MB。
#
# 换成 C++，只有 `a` 和 `c` 的析构函数会调用 `cudaFree`。
# 规则就这么多。请注意，其中没有哪一条会因为 `b` 还在用，就把 `a` 留住。

# %% [markdown] key="dangle" lang="en"
# ## The borrower that outlives its owner
#
# What happens if `a` goes first? To watch it without a crash, we build the C++ class over a small tensor that plays the GPU's memory.
# `malloc` takes the first hole, which is always large enough here, `free` makes a hole at the front of the list, and `end` plays the destructor.
# The small tensor itself is never freed, so every read is safe.
# %% [markdown] key="dangle" lang="zh" src="e2277c94"
# ## 比拥有者活得更久的借用者
#
# 如果 `a` 先析构，会怎么样？为了安全地观察，我们用一个小张量充当显存，在上面实现那个 C++ 类。
# `malloc` 取第一个空洞（在这个例子里总是够大），`free` 把还回的一段放到空洞列表的最前面，`end` 相当于析构函数。
# 小张量本身从不释放，所以怎么读都不会崩溃。

# %% key="cpp_class"
class Memory:
    def __init__(self, size):
        self.floats, self.holes = torch.zeros(size), [(0, size)]

    def malloc(self, size):
        start, hole = self.holes.pop(0)
        self.holes.insert(0, (start + size, hole - size))
        return start

    def free(self, start, size):
        self.holes.insert(0, (start, size))

# %% key="cpp_tensor"
class CppTensor:
    def __init__(self, memory, size, address=None):
        self.memory, self.size, self.owns = memory, size, address is None
        self.address = memory.malloc(size) if self.owns else address

    def data(self):
        return self.memory.floats[self.address : self.address + self.size]

    def end(self):
        if self.owns:
            self.memory.free(self.address, self.size)

# %% key="cpp_run" lang="en"
from minikv.course.diagrams import Heap, addresses

gpu, moments = Memory(16), []
a = CppTensor(gpu, 4)
a.data().fill_(1.0)
b = CppTensor(gpu, 4, address=a.address)
names = {"a": (a.address, 4, "a"), "b": (b.address, 4, "a")}  # first float, floats, owner
moments.append(Heap("a lives", gpu.floats.tolist(), names))
a.end()
moments.append(Heap("a ended", gpu.floats.tolist(), {"b": names["b"]}))
c = CppTensor(gpu, 4)
c.data().fill_(99.0)
moments.append(Heap("c is made", gpu.floats.tolist(), {"b": names["b"], "c": (c.address, 4, "c")}))
show(addresses(moments, "en"))

# %% key="cpp_run" lang="zh"
from minikv.course.diagrams import Heap, addresses

gpu, moments = Memory(16), []
a = CppTensor(gpu, 4)
a.data().fill_(1.0)
b = CppTensor(gpu, 4, address=a.address)
names = {"a": (a.address, 4, "a"), "b": (b.address, 4, "a")}  # 第一个浮点数、个数、拥有者
moments.append(Heap("a 还在", gpu.floats.tolist(), names))
a.end()
moments.append(Heap("a 已析构", gpu.floats.tolist(), {"b": names["b"]}))
c = CppTensor(gpu, 4)
c.data().fill_(99.0)
moments.append(Heap("新建 c", gpu.floats.tolist(), {"b": names["b"], "c": (c.address, 4, "c")}))
show(addresses(moments, "zh"))

# %% [markdown] key="dangle_read" lang="en"
# `b` **dangles**. Its address is still right, but its owner is gone, so it reads what `c` has written there.
# You get no error and no warning.
# In a KV cache, a part of one user's prompt would appear in another user's answer.
#
# Now the same steps in torch. What does `b` read, and does `c` lie somewhere else?
# %% [markdown] key="dangle_read" lang="zh" src="e68a2fbc"
# `b` **悬空**（dangling）了。地址没有变，但拥有者已经不在，所以读到的是 `c` 写在那里的内容。
# 整个过程没有报错，也没有警告。
# 换成 KV 缓存，就是一个用户的回答里混进了另一个用户的提示词。
#
# 同样的步骤，在 torch 里再走一遍。`b` 会读到什么？`c` 是不是在别处？

# %% key="torch_run"
a = torch.ones(4)
address = a.data_ptr()
b = a[:]
del a
c = torch.full((4,), 99.0)
b.tolist(), c.data_ptr() != address

# %% [markdown] key="storage" lang="en"
# `b` still reads its ones, and `c` got other memory. torch follows another rule.
#
# A torch tensor doesn't hold memory itself.
# It holds a **storage**, and the storage holds the memory and counts its references. `a` and `b` refer to the same storage in the same way, and when the last reference goes, the storage is freed.
# That is why the picture of `a`, `b` and `c` above shows two storages for three tensors.
#
# So torch has no exact counterpart of an "owner".
# `ownership` calls a tensor an owner if it covers a whole storage that torch allocated, and is not recorded as a view of another tensor.
# In the next cell we delete the names one after another. A weak reference doesn't count, so we can use one to watch the storage go:
# %% [markdown] key="storage" lang="zh" src="68ae18f9"
# `b` 读到的仍然是 1，`c` 则拿到了别处的内存。可见 torch 遵循的是另一条规则。
#
# torch 的张量并不直接持有内存。
# 它持有的是**存储**（storage）；内存归存储所有，存储还带着引用计数（reference count）。`a` 和 `b` 以同样的方式引用同一个存储，最后一个引用消失时，存储才释放。
# 所以在上面 `a`、`b`、`c` 的图里，三个张量只有两个存储。
#
# 也就是说，torch 里没有与“拥有者”完全对应的概念。
# 如果一个张量占满由 torch 分配的整个存储，又没有被记录为另一个张量的视图，`ownership` 就称它为拥有者。
# 下面依次删除各个名字。弱引用不参与计数，正好用来观察存储何时消失：

# %% key="last_one" lang="en"
import weakref

a = torch.ones(4)
seen = weakref.ref(a.untyped_storage())
b = a[2:]
rows = [("a, b", str(seen() is not None))]
del a
rows.append(("b", str(seen() is not None)))
del b
rows.append(("-", str(seen() is not None)))
Table(["names", "the storage exists"], rows)

# %% key="last_one" lang="zh"
import weakref

a = torch.ones(4)
seen = weakref.ref(a.untyped_storage())
b = a[2:]
rows = [("a, b", str(seen() is not None))]
del a
rows.append(("b", str(seen() is not None)))
del b
rows.append(("-", str(seen() is not None)))
Table(["还有的名字", "存储还在"], rows)

# %% [markdown] key="formula" lang="en"
# ## The formula
#
# A view is a rule for finding elements in a storage.
# The first formula gives the byte at which element $(i_1, \dots, i_n)$ lies. The second gives the bytes that a tensor keeps alive in addition to its own:
# %% [markdown] key="formula" lang="zh" src="8ff38e0d"
# ## 公式
#
# 视图就是一条规则，规定怎样在存储里找到各个元素。
# 第一个公式给出元素 $(i_1, \dots, i_n)$ 在存储中的字节位置，第二个给出张量在自身之外连带占住的字节数：

# %% [markdown] key="formula_math" lang="en"
# $$p(i_1, \dots, i_n) = s \,\Big( o + \sum_{k=1}^{n} i_k \, t_k \Big), \qquad 0 \le i_k < d_k \qquad\qquad \text{kept in addition} = S - s \cdot \big|\{\, p \,\}\big|$$
# %% [markdown] key="formula_math" lang="zh" src="5ae08c83"
# $$p(i_1, \dots, i_n) = s \,\Big( o + \sum_{k=1}^{n} i_k \, t_k \Big), \qquad 0 \le i_k < d_k \qquad\qquad \text{连带占住} = S - s \cdot \big|\{\, p \,\}\big|$$

# %% [markdown] key="symbols" lang="en"
# The example is K of one layer of Llama-3.1-8B for 4,096 tokens, a tensor `k` of 8 heads x 4,096 tokens x 128 elements. Our `x` is its last 16 tokens, one block: `x = k[:, -16:]`.
#
# | symbol | what it is | unit | in torch | value here |
# |---|---|---|---|---|
# | $d_k$ | length of dimension $k$ | elements | `x.shape[k]` | 8, 16, 128 |
# | $t_k$ | **stride**: from one element to the next along dimension $k$ | elements | `x.stride(k)` | 524,288, 128, 1 |
# | $o$ | offset of the first element | elements | `x.storage_offset()` | 522,240 |
# | $s$ | size of one element | bytes | `x.element_size()` | 2 |
# | $S$ | size of the storage | bytes | `x.untyped_storage().nbytes()` | 8,388,608 |
# | $\lvert\{p\}\rvert$ | different places that elements lie on | elements | `ownership(x).touched_bytes // s` | 16,384 |
# | kept in addition | bytes that stay alive although no element needs them | bytes | `ownership(x).keeps_alive_bytes` | 8,355,840 |
#
# With the numbers put in, the last element lies at byte $2 \cdot (522{,}240 + 7 \cdot 524{,}288 + 15 \cdot 128 + 127 \cdot 1) = 8{,}388{,}606$, at the very end of the storage.
# Kept in addition are $8{,}388{,}608 - 2 \cdot 16{,}384 = 8{,}355{,}840$ B. The next two cells show both numbers:
# %% [markdown] key="symbols" lang="zh" src="6f2ac356"
# 例子是 Llama-3.1-8B 一层的 K，4,096 个 token：张量 `k` 是 8 个头 × 4,096 个 token × 128 个元素。取最后 16 个 token，也就是一个块：`x = k[:, -16:]`。
#
# | 符号 | 含义 | 单位 | 在 torch 里 | 本例取值 |
# |---|---|---|---|---|
# | $d_k$ | 第 $k$ 维的长度 | 元素 | `x.shape[k]` | 8、16、128 |
# | $t_k$ | **步幅**（stride）：沿第 $k$ 维从一个元素到下一个元素的距离 | 元素 | `x.stride(k)` | 524,288、128、1 |
# | $o$ | 第一个元素的偏移 | 元素 | `x.storage_offset()` | 522,240 |
# | $s$ | 一个元素的大小 | 字节 | `x.element_size()` | 2 |
# | $S$ | 存储的大小 | 字节 | `x.untyped_storage().nbytes()` | 8,388,608 |
# | $\lvert\{p\}\rvert$ | 各元素一共落在多少个不同的位置上 | 元素 | `ownership(x).touched_bytes // s` | 16,384 |
# | 连带占住 | 没有元素需要、却释放不了的字节 | 字节 | `ownership(x).keeps_alive_bytes` | 8,355,840 |
#
# 代入数字：最后一个元素的字节位置是 $2 \cdot (522{,}240 + 7 \cdot 524{,}288 + 15 \cdot 128 + 127 \cdot 1) = 8{,}388{,}606$，正好在存储的末尾。
# 连带占住的是 $8{,}388{,}608 - 2 \cdot 16{,}384 = 8{,}355{,}840$ 字节。下面两个单元格会给出同样的数：

# %% key="real"
from minikv.plan import CacheSpec

layer = CacheSpec.from_config("Llama-3.1-8B").layers[0]
k = torch.zeros(layer.kv_heads, 4096, layer.k_dim, dtype=torch.bfloat16)  # [8, 4096, 128]
block = k[:, -16:]  # [8, 16, 128]
show(storage_views({"k": k, "k[:, -16:]": block}, t("lang")))

# %% key="real_figures" lang="en"
seen = ownership(block)
times = seen.storage_bytes / seen.touched_bytes
rows = [
    ("shape", str(tuple(block.shape))),
    ("stride (elements)", str(block.stride())),
    ("offset (elements)", str(block.storage_offset())),
    ("storage / touched", f"{seen.storage_bytes:,} B / {seen.touched_bytes:,} B = {times:g}"),
]
Table(["k[:, -16:]", ""], rows)

# %% key="real_figures" lang="zh"
seen = ownership(block)
times = seen.storage_bytes / seen.touched_bytes
rows = [
    ("形状", str(tuple(block.shape))),
    ("步幅（元素）", str(block.stride())),
    ("偏移（元素）", str(block.storage_offset())),
    ("存储 / 用到", f"{seen.storage_bytes:,} B / {seen.touched_bytes:,} B = {times:g}"),
]
Table(["k[:, -16:]", ""], rows)

# %% [markdown] key="see" lang="en"
# ## See it
#
# Here are seven tensors made from one `x`, a 100 x 100 float32 (40,000 B).
# `expand` is torch's broadcasting: it shows one row many times.
# Before you run the cell, decide which of them touch all bytes, and which one touches fewer bytes than it has elements.
# %% [markdown] key="see" lang="zh" src="cc26dbda"
# ## 看一看
#
# 下面是由同一个 `x`（100 × 100 的 float32，40,000 B）得到的七个张量。
# 其中 `expand` 就是 torch 的广播，让同一行重复出现许多次。
# 运行之前先想一想，哪些会用到全部字节？哪个用到的字节数比元素个数还少？

# %% key="predict_expanded"
predict("expanded", ...)

# %% key="bars"
x = torch.zeros(100, 100)
made = {
    "x": x,
    "x.T": x.T,  # [100, 100], stride (1, 100)
    "x[:10]": x[:10],  # [10, 100]
    "x[::10]": x[::10],  # [10, 100], stride (1000, 1)
    "x[:, 0]": x[:, 0],  # [100], stride (100,)
    "x[:1].expand(100, 100)": x[:1].expand(100, 100),  # [1, 100] -> [100, 100], stride (0, 1)
    "x[:10].clone()": x[:10].clone(),
}
show(storage_views(made, t("lang")))

# %% [markdown] key="see_read" lang="en"
# - `x.T` touches everything, because another order needs no other memory.
# - Three slices show a tenth of `x` or less, and each of them keeps all of it. How many bytes a view keeps has nothing to do with how many it shows.
# - `expand` repeats a row with a stride of 0. Its 10,000 elements lie on 400 bytes, and it still keeps all of `x`.
# - `clone()` copies what the tensor shows into a storage of its own. After that, `x` can be freed.
#
# ### A cache that does this
#
# transformers keeps the last tokens of a sliding-window layer by slicing.
# Here a small Mistral with a window of 16 reads a prompt of 160 tokens and then decodes one:
# %% [markdown] key="see_read" lang="zh" src="f6ec4b72"
# - `x.T` 用到了全部字节：换一种顺序，并不需要另一块内存。
# - 有三个切片只看到 `x` 的十分之一甚至更少，却都占住了整个 `x`。所以视图占住多少字节，与它看到多少无关。
# - `expand` 靠步幅 0 重复同一行，所以 10,000 个元素落在 400 个字节上，却仍然占住整个 `x`。
# - `clone()` 把张量看到的部分复制到一个新的存储里。此后 `x` 就可以释放了。
#
# ### 真有这样的缓存
#
# transformers 的滑动窗口层，就是靠切片留下最近的 token。
# 例如下面这个窗口为 16 的小 Mistral，先读 160 个 token 的提示词，再解码一个 token：

# %% key="sliding" lang="en"
from transformers import DynamicCache, MistralConfig, MistralForCausalLM

small = MistralConfig(
    vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=2, head_dim=16,
    sliding_window=16, max_position_embeddings=512, dtype="float32",
)
model = MistralForCausalLM(small).eval()
cache, seen = DynamicCache(config=model.config), {}
for moment, num_tokens in (("after prefill(160)", 160), ("after decode(1)", 1)):
    with torch.no_grad():
        model(torch.randint(0, 64, (1, num_tokens)), past_key_values=cache, use_cache=True)
    seen[moment] = cache.layers[0].keys  # [batch, kv_heads, tokens, head_dim]
show(storage_views(seen, "en"))

# %% key="sliding" lang="zh"
from transformers import DynamicCache, MistralConfig, MistralForCausalLM

small = MistralConfig(
    vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=2, head_dim=16,
    sliding_window=16, max_position_embeddings=512, dtype="float32",
)
model = MistralForCausalLM(small).eval()
cache, seen = DynamicCache(config=model.config), {}
for moment, num_tokens in (("prefill(160) 之后", 160), ("decode(1) 之后", 1)):
    with torch.no_grad():
        model(torch.randint(0, 64, (1, num_tokens)), past_key_values=cache, use_cache=True)
    seen[moment] = cache.layers[0].keys  # [batch, KV 头, token, 头维度]
show(storage_views(seen, "zh"))

# %% [markdown] key="sliding_read" lang="en"
# After the prefill the layer *shows* 15 tokens, since the next one completes the window of 16. But it *holds* the whole prompt, more than ten times as much.
# The next step makes a new tensor, so the prompt is freed.
# The planner computes both numbers: `bytes_for` counts what is cached, and `held_bytes_for` the storage behind it. Its `step` is how many tokens the model has read at once, 160 in the prefill and 1 in a decode step.
# %% [markdown] key="sliding_read" lang="zh" src="0fad66ab"
# 预填充之后，这一层**看到**的只有 15 个 token（加上下一个正好凑满窗口 16），**占住**的却是整个提示词，是前者的十倍还多。
# 到下一步会生成新的张量，整个提示词占的内存这才释放。
# 这两个数规划器都能算：`bytes_for` 算缓存的内容，`held_bytes_for` 算背后的存储，其中 `step` 是模型刚才一次读入的 token 数，预填充时是 160，解码时是 1。

# %% key="sliding_spec" lang="en"
spec = CacheSpec.from_config(model.config)
rows = [
    ("bytes_for(160)", spec.bytes_for(160)),
    ("held_bytes_for(160, step=160)", spec.held_bytes_for(160, step=160)),
    ("held_bytes_for(161, step=1)", spec.held_bytes_for(161, step=1)),
]
Table(["call", "B of K and V"], rows)

# %% key="sliding_spec" lang="zh"
spec = CacheSpec.from_config(model.config)
rows = [
    ("bytes_for(160)", spec.bytes_for(160)),
    ("held_bytes_for(160, step=160)", spec.held_bytes_for(160, step=160)),
    ("held_bytes_for(161, step=1)", spec.held_bytes_for(161, step=1)),
]
Table(["调用", "K 和 V 的字节数"], rows)

# %% [markdown] key="hands_on" lang="en"
# ### On this machine
#
# Now on a scale that the operating system notices: 160 MiB, then a tenth of it, then a clone of the tenth.
# The first cell counts storages. That is exact, and the same on every machine.
# The second asks how much memory this process really holds (on a GPU, PyTorch's allocator).
# %% [markdown] key="hands_on" lang="zh" src="d9c8a164"
# ### 在这台机器上
#
# 再换成操作系统能察觉的规模。先分配 160 MiB，再取十分之一，最后 clone 这十分之一。
# 第一个单元格按存储计数，数字精确，在哪台机器上都一样。
# 第二个单元格查看进程（在 GPU 上则是 PyTorch 的分配器）真正占用了多少。

# %% key="hands_on_bytes" lang="en"
device = "cuda" if torch.cuda.is_available() else "cpu"
whole = torch.ones(40, 2**20, device=device)
part, rows = whole[:4], []  # [4, 2**20]
for moment, tensor in {"whole[:4]": part, "whole[:4].clone()": part.clone()}.items():
    seen = ownership(tensor)
    rows.append((moment, seen.nbytes, seen.storage_bytes))
del whole, part, tensor
Table(["tensor", "own (B)", "storage (B)"], rows)

# %% key="hands_on_bytes" lang="zh"
device = "cuda" if torch.cuda.is_available() else "cpu"
whole = torch.ones(40, 2**20, device=device)
part, rows = whole[:4], []  # [4, 2**20]
for moment, tensor in {"whole[:4]": part, "whole[:4].clone()": part.clone()}.items():
    seen = ownership(tensor)
    rows.append((moment, seen.nbytes, seen.storage_bytes))
del whole, part, tensor
Table(["张量", "自身（B）", "存储（B）"], rows)

# %% key="hands_on_process"
import psutil

from minikv.course.charts import bars


def used_mib():
    if device == "cuda":
        return torch.cuda.memory_allocated() / 2**20
    return psutil.Process().memory_info().rss / 2**20

# %% key="hands_on_drawn" tags="hardware" lang="en"
start, grew = used_mib(), {}
whole = torch.ones(40, 2**20, device=device)
grew["whole"] = used_mib() - start
part = whole[:4]
del whole
grew["del whole"] = used_mib() - start
part = part.clone()
grew["part.clone()"] = used_mib() - start
del part
show(bars(list(grew), {"more than at the start": list(grew.values())}, x="MiB", looks=("k",)))

# %% key="hands_on_drawn" tags="hardware" lang="zh"
start, grew = used_mib(), {}
whole = torch.ones(40, 2**20, device=device)
grew["whole"] = used_mib() - start
part = whole[:4]
del whole
grew["del whole"] = used_mib() - start
part = part.clone()
grew["part.clone()"] = used_mib() - start
del part
show(bars(list(grew), {"比开始时多": list(grew.values())}, x="MiB", looks=("k",)))

# %% [markdown] key="arena" lang="en"
# ## An arena: lending on purpose
#
# An engine would like both: one allocation at the start, as in C++, and the safety of torch.
# An **arena** is one allocation from which tensors are borrowed, one after another, each at a multiple of 256 bytes.
# The caches of this course come from an arena, and so do the buffers of an engine's step.
#
# The size of an arena follows from its loans. For 100 B and 300 B it is 256 + 300 = 556 B, because the first loan is padded until the second can start at a multiple of 256.
# %% [markdown] key="arena" lang="zh" src="f37b3904"
# ## arena：主动出借
#
# 推理引擎两样都想要，既像 C++ 那样启动时一次分配好，又像 torch 那样安全。
# **arena** 就是一次分配的一整块内存，从中依次借出各个张量，每个张量的起点都是 256 字节的倍数。
# 本课程的缓存，以及推理引擎每一步用的缓冲区，都是从 arena 里借来的。
#
# 借出哪些张量，就决定了 arena 要多大。例如要借 100 字节和 300 字节，就需要 256 + 300 = 556 字节，因为第一个之后要补齐，第二个才能从 256 的倍数开始。

# %% key="predict_arena"
predict("arena_size", ...)

# %% key="arena_borrow"
from minikv.course.diagrams import arena_loans
from minikv.memory import Arena, ArenaInUseError, arena_bytes

requests = {
    "logits": ((4, 128_256), torch.float32),
    "slots": ((70,), torch.int64),
    "tables": ((4, 63), torch.int32),
}
need = arena_bytes(requests.values(), align=256)
arena = Arena(need, device, name="step")
loans = {name: arena.borrow(name, shape, dtype) for name, (shape, dtype) in requests.items()}
show(arena_loans(arena.report(), t("lang")))

# %% [markdown] key="arena_full" lang="en"
# We made it exactly large enough. If you ask for one more element, the arena refuses and tells you how much is missing:
# %% [markdown] key="arena_full" lang="zh" src="b0aea0e9"
# 这个 arena 的大小刚好够用。再借一个元素，就会被拒绝，报错会说明还差多少：

# %% key="arena_full_code"
from minikv.errors import MiniKVError

try:
    arena.borrow("one more", (1,), torch.int8)
except MiniKVError as error:
    print(t(error))

# %% [markdown] key="arena_close" lang="en"
# Now imagine that a log keeps one row of the logits, while all other references are gone.
# `close` should give the memory back.
# Will it?
# %% [markdown] key="arena_close" lang="zh" src="6b1bb834"
# 假设日志里还留着 logits 的一行，其余的引用都已去掉。
# 这时调用 `close`，内存会归还吗？

# %% key="arena_refused"
row = loans["logits"][0].detach()
loans.clear()
try:
    arena.close()
except ArenaInUseError as error:
    print(t(error))

# %% key="arena_closed"
kept = row.clone()
del row
arena.close()
show(arena_loans(arena.report(), t("lang")))

# %% [markdown] key="arena_read" lang="en"
# It refuses, and counts the whole loan of 2,052,096 B and not only the row. Once the row is copied and deleted, `close` works. The row is a view of a tensor whose name is long gone, and the arena found it all the same.
# This works because each loan is a storage of its own over the arena's memory. torch counts the references to that storage, so one look covers all views.
# torch can't count a bare address, such as a `data_ptr()` that another library keeps or that a captured CUDA graph (kernels recorded once and replayed at the same addresses) has stored.
#
# Python itself refuses in the same way while numpy borrows a buffer:
# %% [markdown] key="arena_read" lang="zh" src="d1604ff0"
# 结果是拒绝归还，而且报出的是整个借出张量的 2,052,096 字节，不只是那一行。把那一行复制出来再删掉，`close` 才成功。那一行是个视图，原来的张量早已没有名字，arena 还是查到了。
# 原因在于，每借出一个张量，就在 arena 的内存上为它单独建一个存储。torch 会对这个存储的引用计数，所以查一次计数，就知道还有没有视图在用。
# torch 数不到的是裸地址，例如另一个库保存的 `data_ptr()`，或者已捕获的 CUDA 图（kernel 只录制一次，以后按同样的地址重放）里记下的地址。
#
# 缓冲区借给 numpy 期间，Python 自己也会这样拒绝：

# %% key="python_refuses"
import numpy as np

buffer = bytearray(8)
lent = torch.from_numpy(np.frombuffer(buffer, dtype=np.uint8))
try:
    buffer.extend(bytes(2**20))
except BufferError as error:
    print(f"BufferError: {error}")
ownership(lent).shown(t("lang"))

# %% [markdown] key="break" lang="en"
# ## Break it
#
# **Drop the arena instead of closing it.**
# In C++ every loan would dangle now.
# %% [markdown] key="break" lang="zh" src="142c9a0b"
# ## 弄坏它
#
# **不关闭 arena，直接丢掉它**。
# 换成 C++，所有借出的张量此刻都会悬空。

# %% key="break_drop"
arena = Arena(1024)
loan = arena.borrow("loan", (4,), torch.float32)
loan.fill_(7.0)
del arena
loan

# %% [markdown] key="break_drop_read" lang="en"
# The arena's name is gone, and the loan still reads 7, because the loan itself holds the memory.
# %% [markdown] key="break_drop_read" lang="zh" src="0b861979"
# arena 的名字已经删除，借出的张量仍然读到 7，因为它自己就持有这块内存。

# %% [markdown] key="break_alias" lang="en"
# **Copies that copy nothing.**
# Each of these looks like a tensor of its own. Which ones are?
# %% [markdown] key="break_alias" lang="zh" src="728e6141"
# **看似复制，其实没有复制**。
# 下面每一个看起来都是独立的张量。哪些真的是？

# %% key="break_alias_code" lang="en"
whole = torch.zeros(6, 4)
others = {
    "whole.detach()": whole.detach(),
    "whole[2:].contiguous()": whole[2:].contiguous(),  # [4, 4]: already in order, nothing to copy
    "whole.to(torch.float32)": whole.to(torch.float32),
    "whole.reshape(4, 6)": whole.reshape(4, 6),  # [4, 6]: the same order, nothing to copy
    "whole.T.contiguous()": whole.T.contiguous(),  # [4, 6]: another order, so it copies
    "whole.clone()": whole.clone(),
}
rows = [(name, str(share_storage(whole, other)), ownership(other).kind) for name, other in others.items()]
Table(["tensor", "shares memory with whole", "ownership says"], rows)

# %% key="break_alias_code" lang="zh"
whole = torch.zeros(6, 4)
others = {
    "whole.detach()": whole.detach(),
    "whole[2:].contiguous()": whole[2:].contiguous(),  # [4, 4]：本来就是连续的，不用复制
    "whole.to(torch.float32)": whole.to(torch.float32),
    "whole.reshape(4, 6)": whole.reshape(4, 6),  # [4, 6]：次序不变，不用复制
    "whole.T.contiguous()": whole.T.contiguous(),  # [4, 6]：次序变了，只能复制
    "whole.clone()": whole.clone(),
}
rows = [(name, str(share_storage(whole, other)), ownership(other).kind) for name, other in others.items()]
Table(["得到的张量", "与 whole 共用内存", "ownership 的回答"], rows)

# %% [markdown] key="break_alias_read" lang="en"
# Only the last two are: all the others share the memory of `whole`. `contiguous()`, `to()` and `reshape()` copy only if they have to.
# `detach()` cuts the gradient and leaves the memory shared. torch doesn't even record it as a view, so `ownership` calls it an owner. Here you have to ask `share_storage`.
# `clone()` always copies.
#
# **Memory from outside.**
# Next, numpy owns the memory, torch borrows it, and both can write. The 5 that torch writes appears in the numpy array:
# %% [markdown] key="break_alias_read" lang="zh" src="1e823c95"
# 只有最后两个是，其余的都与 `whole` 共用内存（表中 owner 是拥有者，view 是视图）。`contiguous()`、`to()` 和 `reshape()` 只在必要时才复制。
# `detach()` 切断的是梯度，内存仍然共用；torch 甚至不把它记录为视图，`ownership` 会称它为拥有者，所以这时要用 `share_storage` 来查。
# `clone()` 一定会复制。
#
# **外来的内存**。
# 这次由 numpy 拥有内存，torch 借用，两边都能写。torch 写入的 5，在 numpy 数组里也能读到：

# %% key="break_numpy"
array = np.zeros(4, dtype=np.float32)
borrowed = torch.from_numpy(array)
borrowed[0] = 5.0
print(array)
ownership(borrowed).shown(t("lang"))

# %% [markdown] key="break_dangle" lang="en"
# **A torch tensor that does dangle.**
# [The documentation of `torch.frombuffer`](https://docs.pytorch.org/docs/stable/generated/torch.frombuffer.html) promises that “such memory will not be deallocated before the returned tensor goes out of scope”.
# It does hold the object. But unlike numpy it doesn't lock the object's buffer, and a `bytearray` that grows moves to another address.
# We only compare the addresses before and after, because reading `lent` now would read freed memory.
# %% [markdown] key="break_dangle" lang="zh" src="6abaf35a"
# **torch 张量也会悬空**，这里就有一个。
# [`torch.frombuffer` 的文档](https://docs.pytorch.org/docs/stable/generated/torch.frombuffer.html)承诺：“such memory will not be deallocated before the returned tensor goes out of scope”，即返回的张量消失之前，内存不会释放。
# 它确实持有那个对象，但不像 numpy 那样锁住对象的缓冲区；而 `bytearray` 变长时，会搬到另一个地址。
# 下面只比较前后的地址，因为这时再读 `lent`，读到的就是已释放的内存。

# %% key="break_dangle_code"
import ctypes


def address_of(buffer):
    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))


buffer = bytearray(8)
lent = torch.frombuffer(buffer, dtype=torch.uint8)
before = lent.data_ptr() == address_of(buffer)
buffer.extend(bytes(2**20))
before, lent.data_ptr() == address_of(buffer)

# %% [markdown] key="self" lang="en"
# ## Recap
#
# In C++ the owner's destructor frees the memory, and a borrower that lives longer dangles without an error: `b` read the 99 of another tensor.
# In torch the last reference to a storage frees it. So a view of a tenth keeps the whole tensor alive, and one block of 16 tokens (32,768 B) keeps the 256 times larger K of its layer (8,388,608 B).
# `clone()` is the cure, because it copies what a tensor shows into a storage of its own: 16 MiB stay where 160 MiB were held.
# An arena lends parts of one allocation, each at a multiple of 256 bytes, and refuses to close while even 1 loan is in use.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="1e116eed"
# ## 本课小结
#
# 在 C++ 里，拥有者的析构函数负责释放；借用者如果活得更久，就会悬空，而且不报错，例如 `b` 读到了另一个张量写的 99。
# 在 torch 里，最后一个引用消失时，存储才释放。所以十分之一的视图会占住整个张量，16 个 token 的一个块（32,768 字节）会占住这一层 256 倍大的 K（8,388,608 字节）。
# 解决办法是 `clone()`，它把张量看到的部分复制到一个新的存储里。本课的例子原来占住 160 MiB，之后只剩 16 MiB。
# arena 把一次分配的各个部分借出去，每个起点都是 256 字节的倍数；哪怕只有 1 个借出的张量还在用，它就拒绝关闭。
#
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_owned"
explain("owned_or_borrowed")

# %% key="explain_frees"
explain("who_frees")

# %% key="explain_refuse"
explain("why_refuse")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# In the exercise notebook of this lesson you write four functions:
#
# 1. `kept_bytes`: what a list of tensors keeps in memory.
# 2. `keep_window`: the last tokens of a cache, kept so that the rest can be freed.
# 3. `carve`: where an arena places its loans.
# 4. `live_bytes`: the memory after each step of a program, by torch's rule.
# %% [markdown] key="exercises" lang="zh" src="02f6475f"
# ## 练习
#
# 在本课的练习 notebook 里，你要写四个函数：
#
# 1. `kept_bytes`：一组张量占住多少内存。
# 2. `keep_window`：留下缓存里最近的 token，并让其余部分可以释放。
# 3. `carve`：arena 把借出的张量放在哪里。
# 4. `live_bytes`：按 torch 的规则，程序每一步之后占用的内存。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# `ownership` and `share_storage` come from `minikv.memory`.
#
# | symptom | the command that decides |
# |---|---|
# | memory did not fall after `del big` | `print(ownership(small).text())` for every tensor that came from `big`: “keeps ... alive beside its own” is the answer |
# | a file or a message to another process is far too large | `x.nbytes, x.untyped_storage().nbytes()`: if they differ, save `x.clone()` |
# | two tensors change together, or I do not know whether something copied | `share_storage(a, b)` |
# %% [markdown] key="stuck" lang="zh" src="31f162a9"
# ## 卡住了怎么办
#
# `ownership` 和 `share_storage` 都从 `minikv.memory` 导入。
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | `del big` 之后内存没有下降 | 对每个由 `big` 得到的张量执行 `print(ownership(small).text("zh"))`：看“另有 … B 因它而无法释放” |
# | 文件，或发给其他进程的数据，大得离谱 | `x.nbytes, x.untyped_storage().nbytes()`：两者不同，就保存 `x.clone()` |
# | 两个张量一起变，或者不知道某一步有没有复制 | `share_storage(a, b)` |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - In February 2020 a user stored one activation for each image of a batch, and the files grew with the batch. [PyTorch #33101](https://github.com/pytorch/pytorch/issues/33101) shows it in five lines: “Saving a view of a tensor resulted in saving all of the tensor data, even the data outside this view”.
# - In [libtorch_custom_dataset #1](https://github.com/mhubii/libtorch_custom_dataset/issues/1) a reader asked whether the `clone()` after `torch::from_blob` is really necessary. It is: “torch doesn't own the data, so it gets thrown away after get() was called”.
# %% [markdown] key="wild" lang="zh" src="612bd161"
# ## 实战现场
#
# - 2020 年 2 月，一位用户把 batch 里每张图片的激活各存成一个文件，batch 越大，文件越大。[PyTorch #33101](https://github.com/pytorch/pytorch/issues/33101) 用五行代码说清了现象：80 KB 的切片存成了 8 MB 的文件，连视图之外的数据也在内（“even the data outside this view”）。
# - [libtorch_custom_dataset #1](https://github.com/mhubii/libtorch_custom_dataset/issues/1) 问：`torch::from_blob` 之后的 `clone()` 真的有必要吗？有必要，因为数据不归 torch 所有，`get()` 一返回就没了（“torch doesn't own the data, so it gets thrown away after get() was called”）。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You know when a piece of memory is freed, and how to lend one on purpose.
# [Lesson 06](06_the_linear_cache.ipynb) makes the simplest KV cache from an arena: one tensor, a view for each layer, and a length for each sequence.
# %% [markdown] key="next" lang="zh" src="d1a74e16"
# ## 下一课
#
# 现在你知道一块内存什么时候释放，也知道怎样主动把它借出去。
# [第 06 课](06_the_linear_cache.ipynb)用 arena 建一个最简单的 KV 缓存：一个张量，每层一个视图，每条序列一个长度。
