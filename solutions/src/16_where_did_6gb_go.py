# %% [markdown] key="split_task" lang="en"
# ## 16.1 The subtraction
#
# Five figures of one GPU, in bytes, as `MemoryStats` reads them:
#
# - `total`, `free`: what the driver says
# - `allocated`, `reserved`: what PyTorch says
# - `inactive_split`: free parts of segments that a live tensor keeps from going back
#
# Return four shares as a tuple `(live, pinned, returnable, outside)`:
# live tensors; the pinned parts; what `empty_cache()` could give back now; what is used outside of PyTorch's allocator.
# Together the four shares are all the used memory.
# %% [markdown] key="split_task" lang="zh" src="e9dacfdc"
# ## 16.1 做一次减法
#
# 一块 GPU 的五个数字（字节），与 `MemoryStats` 读到的相同：
#
# - `total`、`free`：驱动给出的
# - `allocated`、`reserved`：PyTorch 给出的
# - `inactive_split`：段里空着、却因为同段有存活的张量而还不回去的部分
#
# 返回四份组成的元组 `(live, pinned, returnable, outside)`：
# 存活的张量；被钉住的部分；`empty_cache()` 现在就能归还的；PyTorch 分配器之外占用的。
# 四份相加，正好是全部已用显存。

# %% key="split_stub"
def split_used(
    total: int, free: int, allocated: int, reserved: int, inactive_split: int
) -> tuple[int, int, int, int]:
    ### BEGIN SOLUTION
    returnable = reserved - allocated - inactive_split
    outside = (total - free) - reserved
    return allocated, inactive_split, returnable, outside
    ### END SOLUTION


check("16.1", split_used)

# %% [markdown] key="grown_task" lang="en"
# ## 16.2 What is new?
#
# You noted the live tensors before a call and after it.
# How many bytes of memory are there now that were not there before?
#
# - Several tensors may lie on one storage, and a tensor may be a small view of a large one.
# - Some of the tensors of `before` may be missing from `after`. That does not make up for what is new.
# - A `meta` tensor has no memory.
#
# Both lists are alive while your function runs, so an address stands for one storage.
# %% [markdown] key="grown_task" lang="zh" src="2322ceac"
# ## 16.2 哪些是新的？
#
# 你在一次调用之前和之后，各记下了存活的张量。
# 现在有多少字节的内存，是之前没有的？
#
# - 几个张量可能共用一个存储，一个张量也可能只是大存储上的小视图。
# - `before` 里有的张量可能不在 `after` 里了，但这不能拿来抵消新增的内存。
# - `meta` 张量没有内存。
#
# 函数运行期间两个列表都活着，所以一个地址对应一个存储。

# %% key="grown_stub"
import torch


def grown_bytes(before: list[torch.Tensor], after: list[torch.Tensor]) -> int:
    ### BEGIN SOLUTION
    def storages(tensors):
        real = [tensor.untyped_storage() for tensor in tensors if tensor.device.type != "meta"]
        return {storage.data_ptr(): storage.nbytes() for storage in real}

    old = storages(before)
    return sum(num_bytes for address, num_bytes in storages(after).items() if address not in old)
    ### END SOLUTION


check("16.2", grown_bytes)

# %% [markdown] key="holders_task" lang="en"
# ## 16.3 Which names hold it?
#
# `namespace` is a dict of names, like the one behind your notebook.
# `target` is a tensor that keeps its memory although you want to free it.
# Return the names that hold it, that is, the names from which a tensor on the target's storage can be reached.
#
# A value may be a tensor, a number, a text, or a `dict`, `list` or `tuple` of such values, nested as deep as you like.
# A view keeps the memory, a copy does not.
#
# A counterexample shows the tensors as words: `"same"` is the target, `"head"` and `"tail"` are views of it, `"copy"` and `"other"` lie elsewhere.
# %% [markdown] key="holders_task" lang="zh" src="496c25e5"
# ## 16.3 哪些名字占着它？
#
# `namespace` 是名字到对象的 dict，你的 notebook 背后就有这样一个。
# `target` 是一个张量，它的内存一直释放不掉。
# 返回占住它的名字：从这个名字出发，能走到一个与 `target` 共用存储的张量。
#
# 一个值可以是张量、数字、文本，也可以是由这些值组成的 `dict`、`list`、`tuple`，可以层层嵌套。
# 视图会占住内存，副本不会。
#
# 反例里的张量用单词表示：`"same"` 是目标本身，`"head"` 和 `"tail"` 是它的视图，`"copy"` 和 `"other"` 在别处。

# %% key="holders_stub"
def holders(namespace: dict[str, object], target: torch.Tensor) -> list[str]:
    ### BEGIN SOLUTION
    address = target.untyped_storage().data_ptr()

    def reaches(value):
        if isinstance(value, torch.Tensor):
            return value.untyped_storage().data_ptr() == address
        if isinstance(value, dict):
            value = list(value.values())
        return isinstance(value, (list, tuple)) and any(reaches(each) for each in value)

    return [name for name, value in namespace.items() if reaches(value)]
    ### END SOLUTION


check("16.3", holders)

# %% [markdown] key="batch_task" lang="en"
# ## 16.4 The calculator, for every model
#
# How many sequences of `num_tokens` tokens fit into `free_mib` MiB? The cache is in bf16 and laid out as in transformers from 5.15 on:
#
# - With MLA (`kv_lora_rank` is there and not `None`) a layer caches one latent and one rope key (`qk_rope_head_dim`) for each token.
# - Without it, K and V of every KV head. A config without `head_dim` means `hidden_size // num_attention_heads`.
# - During a step one layer is in memory twice, since it grows into a new tensor.
#
# Leave activations out. Mind the unit of `free_mib`.
# %% [markdown] key="batch_task" lang="zh" src="a9f2dd7e"
# ## 16.4 适用于各种模型的计算器
#
# 每条序列 `num_tokens` 个 token，`free_mib` MiB 里放得下几条？缓存用 bf16，布局与 transformers 5.15 起相同：
#
# - MLA（有 `kv_lora_rank`，且不是 `None`）：一层为每个 token 缓存一个潜在向量和一个 rope key（`qk_rope_head_dim`）。
# - 非 MLA：每个 KV 头的 K 和 V。配置里没有 `head_dim` 时，按 `hidden_size // num_attention_heads`。
# - 每一步中有一层会存在两份，因为它要扩展成一个新张量。
#
# 不考虑激活。注意 `free_mib` 的单位。

# %% key="batch_stub"
def fitting_batch(config: dict, free_mib: int, num_tokens: int) -> int:
    ### BEGIN SOLUTION
    if config.get("kv_lora_rank"):
        elements = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    else:
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        elements = 2 * config["num_key_value_heads"] * head_dim
    one = num_tokens * elements * 2 * (config["num_hidden_layers"] + 1)
    return free_mib * 2**20 // one
    ### END SOLUTION


check("16.4", fitting_batch)

# %% [markdown] key="pins_task" lang="en"
# ## 16.5 Which name to drop first
#
# `segments` is a map of the allocator: each segment is a list of blocks, each block a pair `(size, holders)`.
# `holders` are the names that keep the block; a block without holders is free.
#
# You may drop one name. With which one does `empty_cache()` give back the most?
# Remember that a segment goes back whole or not at all.
# Of several that give back the same, return the first in alphabetical order; if no single name helps, return `None`.
# %% [markdown] key="pins_task" lang="zh" src="2f816a8a"
# ## 16.5 先放掉哪个名字
#
# `segments` 是分配器的一张地图：每个段是块的列表，每个块是一对 `(size, holders)`。
# `holders` 是占住这个块的名字；没有持有者的块是空闲的。
#
# 只能放掉一个名字。放掉哪一个，`empty_cache()` 归还得最多？
# 别忘了，一个段要么整个归还，要么一点也不还。
# 如果有几个名字一样多，返回按字母顺序的第一个；如果单放掉哪一个都没有用，返回 `None`。

# %% key="pins_stub"
def pins_most(segments: list[list[tuple]]) -> str | None:
    ### BEGIN SOLUTION
    gains = {}
    for blocks in segments:
        names = {name for _, holders in blocks for name in holders}
        if len(names) == 1:
            name = names.pop()
            gains[name] = gains.get(name, 0) + sum(size for size, _ in blocks)
    return min(gains, key=lambda name: (-gains[name], name)) if gains else None
    ### END SOLUTION


check("16.5", pins_most)

# %% [markdown] key="pins_why" lang="en"
# ### BEGIN SOLUTION
# This is why a leak of a few kilobytes can cost gigabytes. What counts is not how much a holder has, but how much would go back without it.
# ### END SOLUTION
# %% [markdown] key="pins_why" lang="zh" src="fa99bea5"
# ### BEGIN SOLUTION
# 这就是几 KB 的滞留能耗掉几个 GB 的原因：要紧的不是一个持有者占了多少，而是没有它时能归还多少。
# ### END SOLUTION
