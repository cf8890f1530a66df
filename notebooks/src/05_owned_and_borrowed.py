# %% [meta]
# number = "05"
# slug = "owned_and_borrowed"
# needs = ["00", "02"]
# rooms = ["memory.arena", "memory.ownership"]
# minutes = 55
# [title]
# en = "Who frees this memory?"
# zh = "这块内存由谁释放？"
# [t4]
# en = "The same bytes. The arena lies on the T4, and one cell shows its allocated memory instead of the process's."
# zh = "字节数相同。arena 建在 T4 上，另有一个单元格显示的是 T4 的已分配显存，而不是进程的内存。"
# [paper]
# en = "05.3, 05.4"
# zh = "05.3、05.4"

# %% [markdown] key="question" lang="en"
# ## The question
#
# You keep one slice of a large tensor and delete the rest. Memory doesn't fall, and a file with the slice is as large as all of it.
# In C++ the opposite goes wrong: a tensor that borrowed its memory reads what another one has written there.
#
# **Who frees this memory, and when?**
# A KV cache consists of slices, so an engine has to know.
#
# Here is a batch of 100 activations, the first of them, and a copy of the first:
# %% [markdown] key="question" lang="zh" src="bed12eba"
# ## 问题
#
# 只留下大张量的一个切片，把其余的都删掉：内存没有下降，把切片存成文件，文件却和整个张量一样大。
# C++ 里的情形正好相反：借用内存的张量，读到的是另一个张量写在那里的内容。
#
# **这块内存由谁释放，什么时候释放？**
#
# KV 缓存里到处都是切片，所以推理引擎必须弄清楚。
#
# 下面是 100 份激活组成的一个 batch、其中的第一份，以及第一份的副本：

# %% key="first"
import torch

from minikv.course.diagrams import storage_views

torch.manual_seed(0)
batch = torch.randn(100, 100, 100, dtype=torch.float64)
saved = {"batch": batch, "batch[0]": batch[0], "batch[0].clone()": batch[0].clone()}
show(storage_views(saved, t("lang")))

# %% [markdown] key="able" lang="en"
# `batch[0]` needs 80,000 bytes and keeps a hundred times as much. Its copy has a **storage** of its own.
#
# After this lesson you can:
#
# - **tell** of any tensor which bytes it touches and which it keeps alive;
# - **predict** when memory is freed, by the rule of C++ and by that of torch;
# - **lend** parts of one allocation on purpose, and refuse to free it while a loan is in use.
#
# What do these three cost on disk?
# %% [markdown] key="able" lang="zh" src="10dd6ba3"
# `batch[0]` 只需要 80,000 字节，却占住了它的一百倍。副本则有自己的**存储**（storage）。
#
# 学完本课，你能够：
#
# - **看出**任何一个张量用到哪些字节、占住哪些字节；
# - 分别按 C++ 和 torch 的规则**预测**内存何时释放；
# - 主动**出借**一次分配里的各个部分，并在借出的张量还在用时拒绝释放。
#
# 这三个张量存成文件，各有多大？

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
# The file only shows the problem.
# What does a tenth of a tensor keep in *memory*?
# Run the cell to see the question; put your number in place of `...` and run it again.
# %% [markdown] key="predict_first" lang="zh" src="bf2713cd"
# ## 先猜一猜
#
# 文件大小只是表面现象。
# 一个张量的十分之一，会占住多少**内存**？
# 直接运行单元格会显示题目；把 `...` 换成你的数字，再运行一次。

# %% key="predict_ten"
predict("ten_percent", ...)

# %% [markdown] key="cpp" lang="en"
# ## The rule of C++
#
# In many C++ engines a tensor has two modes and one flag.
# An **owned** tensor allocates in its constructor, and its destructor calls `cudaFree`.
# A **borrowed** one holds an address that it was given, and its destructor does nothing.
#
# Take three tensors: an owned `a`, a `b` that borrows all of `a`, and an owned `c`.
# %% [markdown] key="cpp" lang="zh" src="73a81485"
# ## C++ 的规则
#
# 在许多 C++ 引擎里，张量有两种模式，用一个标志区分。
# **拥有**内存的张量在构造时分配，析构时调用 `cudaFree`。
# **借用**内存的张量只存一个得到的地址，析构时什么也不做。
#
# 下面有三个张量：拥有内存的 `a`，借用整个 `a` 的 `b`，以及拥有内存的 `c`。

# %% key="predict_quiz"
predict("quiz_total", ...)

# %% [markdown] key="quiz" lang="en"
# The same in torch, with an `a` of 1024 x 768 and a `c` of 512 x 768.
# `ownership` says what torch knows of a tensor's memory.
# %% [markdown] key="quiz" lang="zh" src="08dbc06f"
# 用 torch 做一遍：`a` 是 1024 × 768，`c` 是 512 × 768。
# 一个张量的内存情况，torch 知道多少，`ownership` 就报告多少。

# %% key="quiz_code"
from minikv.memory import ownership, share_storage

a = torch.zeros(1024, 768, dtype=torch.float16)
b = a.view(1024, 768)
c = torch.zeros(512, 768, dtype=torch.float16)
show(storage_views({"a": a, "b": b, "c": c}, t("lang")))

# %% key="quiz_total" lang="en"
total = sum(ownership(tensor).storage_bytes for tensor in (a, c))  # b has no storage of its own
Table(["allocated (B)", "MiB", "MB"], [(total, f"{total / 2**20:g}", f"{total / 1e6:.2f}")])

# %% key="quiz_total" lang="zh"
total = sum(ownership(tensor).storage_bytes for tensor in (a, c))  # b 没有自己的存储
Table(["分配的字节数", "MiB", "MB"], [(total, f"{total / 2**20:g}", f"{total / 1e6:.2f}")])

# %% [markdown] key="quiz_read" lang="en"
# `a` has 1.5 MiB, `c` 0.75 MiB, and `b` adds nothing: 2.25 MiB, which are 2.36 MB.
#
# Which destructors call `cudaFree`? Only those of `a` and `c`.
# That is the whole rule of C++, and nothing in it keeps `a` alive for `b`.
# %% [markdown] key="quiz_read" lang="zh" src="98df3479"
# `a` 占 1.5 MiB，`c` 占 0.75 MiB，`b` 不增加任何字节：一共 2.25 MiB，也就是 2.36 MB。
#
# 哪些析构函数会调用 `cudaFree`？只有 `a` 和 `c` 的。
# C++ 的规则仅此而已：没有哪一条会为了 `b` 而留住 `a`。

# %% [markdown] key="dangle" lang="en"
# ## The borrower that outlives its owner
#
# To watch this without crashing anything, we build the C++ class over a small tensor that plays the GPU's memory.
# `malloc` takes the first hole, `free` makes a hole, `end` plays the destructor.
# Nothing is ever really freed, so every read is safe.
# %% [markdown] key="dangle" lang="zh" src="e542cdf1"
# ## 比拥有者活得更久的借用者
#
# 为了安全地观察，我们用一个小张量充当显存，在上面实现那个 C++ 类。
# `malloc` 从第一个空洞里划出一段，`free` 留下一个空洞，`end` 相当于析构函数。
# 内存从未真正释放，所以怎么读都不会崩溃。

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
# `b` **dangles**: its address is right, its owner is gone, and it reads what `c` has written there.
# No error, no warning.
# In a KV cache this would be one user's prompt in another user's answer.
#
# The same steps in torch: what does `b` read, and does `c` lie elsewhere?
# %% [markdown] key="dangle_read" lang="zh" src="64f66f5f"
# `b` **悬空**了：地址没错，拥有者已经不在，读到的是 `c` 写在那里的内容。
# 没有报错，也没有警告。
# 换成 KV 缓存，就是一个用户的回答里混进了另一个用户的提示词。
#
# 同样的步骤，在 torch 里再走一遍：`b` 读到什么？`c` 是不是在别处？

# %% key="torch_run"
a = torch.ones(4)
address = a.data_ptr()
b = a[:]
del a
c = torch.full((4,), 99.0)
b.tolist(), c.data_ptr() != address

# %% [markdown] key="storage" lang="en"
# A torch tensor does not hold memory.
# It holds a **storage**, and the storage holds the memory and counts who refers to it: `a` and `b` hold it alike, and the last one to go frees it.
# That is why the picture of `a`, `b` and `c` above has two storages for three tensors.
#
# So “owner” has no exact counterpart in torch.
# `ownership` calls a tensor an owner if it stands for a whole storage of torch's own and is no recorded view of another.
# A weak reference does not count, so it can watch the storage go:
# %% [markdown] key="storage" lang="zh" src="c6abf925"
# torch 的张量并不直接持有内存。
# 它持有的是**存储**（storage）；内存归存储所有，存储还带着引用计数（reference count）：`a` 和 `b` 以同样的方式持有它，最后一个离开的负责释放。
# 所以在上面 `a`、`b`、`c` 的图里，三个张量只有两个存储。
#
# 因此 torch 里没有与“拥有者”完全对应的概念。
# 如果一个张量占满 torch 自己的整个存储，又没有被记录为别的张量的视图，`ownership` 就称它为拥有者。
# 弱引用不参与计数，正好用来观察存储何时消失：

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
# The first formula gives the byte at which element $(i_1, \dots, i_n)$ lies, the second what a tensor keeps alive beside its own bytes:
# %% [markdown] key="formula" lang="zh" src="a3fc4262"
# ## 公式
#
# 视图就是一条规则：怎样在存储里找到元素。
# 第一个公式给出元素 $(i_1, \dots, i_n)$ 在存储中的字节位置，第二个给出张量在自身之外连带占住的字节数：

# %% [markdown] key="formula_math" lang="en"
# $$p(i_1, \dots, i_n) = s \,\Big( o + \sum_{k=1}^{n} i_k \, t_k \Big), \qquad 0 \le i_k < d_k \qquad\qquad \text{kept beside} = S - s \cdot \big|\{\, p \,\}\big|$$
# %% [markdown] key="formula_math" lang="zh" src="b3122d1c"
# $$p(i_1, \dots, i_n) = s \,\Big( o + \sum_{k=1}^{n} i_k \, t_k \Big), \qquad 0 \le i_k < d_k \qquad\qquad \text{连带占住} = S - s \cdot \big|\{\, p \,\}\big|$$

# %% [markdown] key="symbols" lang="en"
# | symbol | what it is | unit | in torch, for a tensor `x` |
# |---|---|---|---|
# | $d_k$ | length of dimension $k$ | elements | `x.shape[k]` |
# | $t_k$ | **stride**: from one element to the next along dimension $k$ | elements | `x.stride(k)` |
# | $o$ | offset of the first element | elements | `x.storage_offset()` |
# | $s$ | size of one element | bytes | `x.element_size()` |
# | $S$ | size of the storage | bytes | `x.untyped_storage().nbytes()` |
# | $\lvert\{p\}\rvert$ | different places that elements lie on | elements | `ownership(x).touched_bytes // s` |
# | kept beside | bytes that live on although no element needs them | bytes | `ownership(x).keeps_alive_bytes` |
#
# On real numbers: K of one layer of Llama-3.1-8B for 4,096 tokens, and its last 16 tokens, one block.
# %% [markdown] key="symbols" lang="zh" src="c3e73f19"
# | 符号 | 含义 | 单位 | 在 torch 里（设张量为 `x`） |
# |---|---|---|---|
# | $d_k$ | 第 $k$ 维的长度 | 元素 | `x.shape[k]` |
# | $t_k$ | **步幅**（stride）：沿第 $k$ 维从一个元素到下一个元素的距离 | 元素 | `x.stride(k)` |
# | $o$ | 第一个元素的偏移 | 元素 | `x.storage_offset()` |
# | $s$ | 一个元素的大小 | 字节 | `x.element_size()` |
# | $S$ | 存储的大小 | 字节 | `x.untyped_storage().nbytes()` |
# | $\lvert\{p\}\rvert$ | 各元素一共落在多少个不同的位置上 | 元素 | `ownership(x).touched_bytes // s` |
# | 连带占住 | 没有元素需要、却释放不了的字节 | 字节 | `ownership(x).keeps_alive_bytes` |
#
# 代入真实的数字：Llama-3.1-8B 一层的 K，4,096 个 token；再取最后 16 个 token，也就是一个块。

# %% key="real"
from minikv.plan import CacheSpec

layer = CacheSpec.from_config("Llama-3.1-8B").layers[0]
k = torch.zeros(layer.kv_heads, 4096, layer.k_dim, dtype=torch.bfloat16)
block = k[:, -16:]
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
# Seven tensors made from one `x`, a 100 x 100 float32 (40,000 B).
# `expand` is torch's broadcasting: one row, shown many times.
# Before you run it: which of them touches all bytes, and which touches fewer bytes than it has elements?
# %% [markdown] key="see" lang="zh" src="ff3c38cd"
# ## 看一看
#
# 由同一个 `x`（100 × 100 的 float32，40,000 B）得到的七个张量。
# 其中 `expand` 就是 torch 的广播：同一行重复出现许多次。
# 运行之前先想：哪些会用到全部字节？哪个用到的字节数比元素个数还少？

# %% key="predict_expanded"
predict("expanded", ...)

# %% key="bars"
x = torch.zeros(100, 100)
made = {
    "x": x,
    "x.T": x.T,
    "x[:10]": x[:10],
    "x[::10]": x[::10],
    "x[:, 0]": x[:, 0],
    "x[:1].expand(100, 100)": x[:1].expand(100, 100),
    "x[:10].clone()": x[:10].clone(),
}
show(storage_views(made, t("lang")))

# %% [markdown] key="see_read" lang="en"
# - `x.T` touches everything: another order is no other memory.
# - Three slices show a tenth of `x` or less, and each keeps all of it. How many bytes a view keeps has nothing to do with how many it shows.
# - `expand` repeats with a stride of 0: 10,000 elements on 400 bytes, and still it keeps all of `x`.
# - `clone()` copies what the tensor shows into a storage of its own. After it, `x` can go.
#
# ### A cache that does this
#
# transformers keeps the last tokens of a sliding-window layer by slicing.
# A small Mistral with a window of 16 reads a prompt of 160 tokens, then decodes one:
# %% [markdown] key="see_read" lang="zh" src="0cb6f04e"
# - `x.T` 用到了全部字节：换一种顺序，并没有换一块内存。
# - 有三个切片只看到 `x` 的十分之一甚至更少，却都占住了整个 `x`。视图占住多少字节，与它看到多少无关。
# - `expand` 靠步幅 0 重复元素：10,000 个元素落在 400 个字节上，却仍然占住整个 `x`。
# - `clone()` 把张量看到的部分复制到一个新的存储里。此后 `x` 就可以释放了。
#
# ### 真有这样的缓存
#
# transformers 的滑动窗口层，就是靠切片留下最近的 token。
# 下面是一个窗口为 16 的小 Mistral，先读 160 个 token 的提示词，再解码一个 token：

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
# After the prefill the layer *shows* 15 tokens (the next one completes the window of 16) and *holds* the whole prompt, more than ten times as much.
# The next step makes a new tensor, and the prompt is gone.
# The planner knows both numbers: `bytes_for` counts what is cached, `held_bytes_for` the storage behind it.
# %% [markdown] key="sliding_read" lang="zh" src="86b243e6"
# 预填充之后，这一层**看到**的只有 15 个 token（加上下一个正好是窗口 16），**占住**的却是整个提示词，是前者的十倍还多。
# 到下一步会生成新的张量，整个提示词占的内存这才释放。
# 这两个数规划器都能算：`bytes_for` 算缓存的内容，`held_bytes_for` 算背后的存储。

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
# 160 MiB, a tenth of it, then a clone of the tenth.
# The first cell counts storages: exact, and the same everywhere.
# The second asks what this process (on a GPU: PyTorch's allocator) really holds.
# %% [markdown] key="hands_on" lang="zh" src="0c7f6111"
# ### 在这台机器上
#
# 先分配 160 MiB，再取十分之一，最后 clone 这十分之一。
# 第一个单元格按存储计数：数字精确，在哪里都一样。
# 第二个单元格查看进程（在 GPU 上则是 PyTorch 的分配器）真正占用了多少。

# %% key="hands_on_bytes" lang="en"
device = "cuda" if torch.cuda.is_available() else "cpu"
whole = torch.ones(40, 2**20, device=device)
part, rows = whole[:4], []
for moment, tensor in {"whole[:4]": part, "whole[:4].clone()": part.clone()}.items():
    seen = ownership(tensor)
    rows.append((moment, seen.nbytes, seen.storage_bytes))
del whole, part, tensor
Table(["tensor", "own (B)", "storage (B)"], rows)

# %% key="hands_on_bytes" lang="zh"
device = "cuda" if torch.cuda.is_available() else "cpu"
whole = torch.ones(40, 2**20, device=device)
part, rows = whole[:4], []
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
# An engine wants to allocate once, at the start, as a C++ engine does, and it wants torch's safety.
# An **arena** is one allocation from which tensors are borrowed, one after another, each at a multiple of 256 bytes.
# The caches of this course and the buffers of an engine's step are carved from one.
# %% [markdown] key="arena" lang="zh" src="557d946e"
# ## arena：主动出借
#
# 推理引擎两样都要：C++ 的简单明了（启动时一次分配好），加上 torch 的安全。
# **arena**（一次分配的整块内存）依次借出张量，每个张量的起点都是 256 字节的倍数。
# 本课程的缓存，以及推理引擎每一步用的缓冲区，都是从 arena 里划出来的。

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
# It was made exactly large enough, so one more element is refused, with the shortage:
# %% [markdown] key="arena_full" lang="zh" src="d9d2912b"
# 这个 arena 的大小刚好够用，再借一个元素就会被拒绝，报错会说明还差多少：

# %% key="arena_full_code"
from minikv.errors import MiniKVError

try:
    arena.borrow("one more", (1,), torch.int8)
except MiniKVError as error:
    print(t(error))

# %% [markdown] key="arena_close" lang="en"
# Now a log keeps a row of the logits, and everything else is let go.
# `close` should give the memory back.
# Will it?
# %% [markdown] key="arena_close" lang="zh" src="5a54c66c"
# 假设日志里还留着 logits 的一行，其余的引用都已去掉。
# `close` 本该归还内存。
# 它会照做吗？

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
# The row was a view of a tensor whose name is long gone; the arena still found it.
# Each loan is a storage of its own over the arena's memory, and torch counts who refers to it, so one look answers for all views.
# What torch cannot count is a bare address: a `data_ptr()` in a captured CUDA graph (kernels recorded once and replayed at the same addresses), or in another library.
#
# Python itself refuses in the same way while numpy has borrowed a buffer:
# %% [markdown] key="arena_read" lang="zh" src="5e2c77ac"
# 这一行是视图，原来那个张量早已没有名字，arena 还是查到了它。
# 每借出一个张量，就在 arena 的内存上为它单独建一个存储；引用这个存储的，torch 都会计数，所以只查一次，就知道还有没有视图活着。
# torch 数不到的是裸地址：已捕获的 CUDA 图（kernel 只录制一次，以后按同样的地址重放）里记下的 `data_ptr()`，或其他库手里的地址。
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
# The arena's name is gone, and its loan still reads 7: the loan itself keeps the memory.
# %% [markdown] key="break_drop_read" lang="zh" src="1043ac32"
# arena 的名字已经删除，借出的张量仍然读到 7：因为借出的张量自己就持有这块内存。

# %% [markdown] key="break_alias" lang="en"
# **Copies that are none.**
# Each of these looks like a tensor of its own. Which ones are?
# %% [markdown] key="break_alias" lang="zh" src="c80f4e44"
# **看似复制，其实没有**。
# 下面每一个看起来都是独立的张量。哪些真的是？

# %% key="break_alias_code" lang="en"
whole = torch.zeros(6, 4)
others = {
    "whole.detach()": whole.detach(),
    "whole[2:].contiguous()": whole[2:].contiguous(),
    "whole.to(torch.float32)": whole.to(torch.float32),
    "whole.reshape(4, 6)": whole.reshape(4, 6),
    "whole.T.contiguous()": whole.T.contiguous(),
    "whole.clone()": whole.clone(),
}
rows = [(name, str(share_storage(whole, other)), ownership(other).kind) for name, other in others.items()]
Table(["made", "share_storage", "ownership says"], rows)

# %% key="break_alias_code" lang="zh"
whole = torch.zeros(6, 4)
others = {
    "whole.detach()": whole.detach(),
    "whole[2:].contiguous()": whole[2:].contiguous(),
    "whole.to(torch.float32)": whole.to(torch.float32),
    "whole.reshape(4, 6)": whole.reshape(4, 6),
    "whole.T.contiguous()": whole.T.contiguous(),
    "whole.clone()": whole.clone(),
}
rows = [(name, str(share_storage(whole, other)), ownership(other).kind) for name, other in others.items()]
Table(["得到的张量", "share_storage", "ownership 的回答"], rows)

# %% [markdown] key="break_alias_read" lang="en"
# `contiguous()`, `to()` and `reshape()` copy only if they have to.
# `detach()` cuts the gradient, not the memory.
# torch does not even record it as a view, so `ownership` calls it an owner; here `share_storage` is the question to ask.
# `clone()` always copies.
#
# **Memory from outside.**
# numpy owns, torch borrows, and both write. The 5 that torch writes stands in the array, too:
# %% [markdown] key="break_alias_read" lang="zh" src="d0a4b0e8"
# `contiguous()`、`to()` 和 `reshape()` 只在必要时才复制。
# `detach()` 切断的是梯度，不是内存；torch 甚至不把它记录为视图，`ownership` 会称它为拥有者，所以这时要用 `share_storage` 来查。
# `clone()` 一定会复制。
#
# **外来的内存**。
# numpy 拥有，torch 借用，两边都能写。torch 写入的 5，numpy 数组里也能读到：

# %% key="break_numpy"
array = np.zeros(4, dtype=np.float32)
borrowed = torch.from_numpy(array)
borrowed[0] = 5.0
print(array)
ownership(borrowed).shown(t("lang"))

# %% [markdown] key="break_dangle" lang="en"
# **And one torch tensor that does dangle.**
# [The documentation of `torch.frombuffer`](https://docs.pytorch.org/docs/stable/generated/torch.frombuffer.html) promises that “such memory will not be deallocated before the returned tensor goes out of scope”.
# It holds the object, but unlike numpy it does not lock the object's buffer, and a `bytearray` that grows moves.
# We only compare addresses, before and after: reading `lent` after this would be reading freed memory.
# %% [markdown] key="break_dangle" lang="zh" src="0b70b2a2"
# **torch 张量也会悬空**，这里就有一个。
# [`torch.frombuffer` 的文档](https://docs.pytorch.org/docs/stable/generated/torch.frombuffer.html)承诺：“such memory will not be deallocated before the returned tensor goes out of scope”，即返回的张量消失之前，内存不会释放。
# 可它持有的只是对象，不像 numpy 那样锁住对象的缓冲区；而 `bytearray` 一变长就会搬家。
# 下面只比较前后的地址：此后再读 `lent`，读到的就是已释放的内存。

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
# In C++ the owner's destructor frees, and a borrower that lives longer dangles without an error.
# In torch the last reference to a storage frees it: a view of a tenth keeps all of it, and one block of 16 tokens keeps the 256 times larger K of its layer.
# `clone()` is the cure, since it always copies what a tensor shows into a storage of its own.
# An arena lends parts of one allocation, each at a multiple of 256 bytes, and refuses to close while a loan is in use.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="df53e375"
# ## 本课小结
#
# 在 C++ 里，拥有者的析构函数负责释放；借用者如果活得更久，就会悬空，而且不报错。
# 在 torch 里，最后一个引用存储的张量负责释放：十分之一的视图占住整个张量，16 个 token 的一个块占住这一层 256 倍大的 K。
# 解决办法是 `clone()`：它一定会把张量看到的部分复制到一个新的存储里。
# arena 把一次分配的各个部分借出去，每个起点都是 256 字节的倍数；只要还有借出的张量在用，它就拒绝关闭。
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

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - In February 2020 a user stored one activation for each image of a batch, and the files grew with the batch. [PyTorch #33101](https://github.com/pytorch/pytorch/issues/33101) has it in five lines: "Saving a view of a tensor resulted in saving all of the tensor data, even the data outside this view".
# - In [libtorch_custom_dataset #1](https://github.com/mhubii/libtorch_custom_dataset/issues/1) a reader asked whether the `clone()` after `torch::from_blob` is really necessary. It is: “torch doesn't own the data, so it gets thrown away after get() was called”.
# %% [markdown] key="wild" lang="zh" src="3ddeb658"
# ## 实战现场
#
# - 2020 年 2 月，一位用户把 batch 里每张图片的激活各存成一个文件，batch 越大，文件越大。[PyTorch #33101](https://github.com/pytorch/pytorch/issues/33101) 用五行代码说清了现象：80 KB 的切片存成了 8 MB 的文件，连视图之外的数据也在内（“even the data outside this view”）。
# - [libtorch_custom_dataset #1](https://github.com/mhubii/libtorch_custom_dataset/issues/1) 问：`torch::from_blob` 之后的 `clone()` 真的有必要吗？有必要，因为数据不归 torch 所有，`get()` 一返回就没了（“torch doesn't own the data, so it gets thrown away after get() was called”）。

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# The exercise notebook of this lesson asks for four functions:
#
# 1. `kept_bytes`: what a list of tensors keeps in memory.
# 2. `keep_window`: the last tokens of a cache, such that the rest can be freed.
# 3. `carve`: where an arena places its loans.
# 4. `live_bytes`: the memory after each step of a program, by torch's rule.
# %% [markdown] key="exercises" lang="zh" src="2cfcbb1e"
# ## 练习
#
# 本课的练习 notebook 要你写四个函数：
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

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You know who frees a piece of memory, and how to lend one on purpose.
# [Lesson 06](06_the_linear_cache.ipynb) carves the simplest KV cache out of an arena: one tensor, a view for each layer, and a length for each sequence.
# %% [markdown] key="next" lang="zh" src="0702abc4"
# ## 下一课
#
# 现在你知道一块内存由谁释放，也知道怎样主动把它借出去。
# [第 06 课](06_the_linear_cache.ipynb)从 arena 里划出最简单的 KV 缓存：一个张量，每层一个视图，每条序列一个长度。
