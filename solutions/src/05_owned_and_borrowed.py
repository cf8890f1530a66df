# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="kept_task" lang="en"
# ## 05.1 What a list keeps
#
# A list of tensors is all that is left of a program.
# How many bytes of memory does the list keep?
# Some are slices, some are whole tensors, and some lie on the same storage.
#
# For a tensor `x`, `x.untyped_storage()` has `nbytes()` and `data_ptr()`, the address at which the storage begins.
# (The counterexamples show how the list was made. `sizes` are the elements of each whole tensor, and a part `(i, start, stop)` is the slice `start:stop` of the i-th.)
# %% [markdown] key="kept_task" lang="zh" src="dd7dc0e4"
# ## 05.1 一个列表占住多少
#
# 程序最后只剩下一个张量列表。
# 这个列表占住多少字节的内存？
#
# 其中有切片，有完整的张量，有些还在同一个存储上。
# 对张量 `x`，`x.untyped_storage()` 有 `nbytes()`，还有 `data_ptr()`，即存储的起始地址。
# （反例会显示列表是怎样生成的：`sizes` 是每个完整张量的元素数，一个 part `(i, start, stop)` 是第 i 个张量的切片 `start:stop`。）

# %% key="kept_stub"
import torch


def kept_bytes(tensors: list[torch.Tensor]) -> int:
    ### BEGIN SOLUTION
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    ### END SOLUTION


check("05.1", kept_bytes)

# %% [markdown] key="window_task" lang="en"
# ## 05.2 Keep the window, free the rest
#
# `keys` is `[tokens, heads, dim]`, the oldest token first.
# Return the last `window` tokens so that the others can be freed: the storage of what you return has exactly the bytes of what you return.
# If the window is as long as the cache or longer, return all of it and copy nothing.
#
# (A counterexample shows what the check looks at: the shape of what you return, the bytes of its storage, whether that is another storage than that of `keys` (*copied*), and the values.)
# %% [markdown] key="window_task" lang="zh" src="62835b99"
# ## 05.2 留下窗口，释放其余
#
# `keys` 的形状是 `[tokens, heads, dim]`，最早的 token 在最前面。
# 返回最近 `window` 个 token，并让其余部分可以释放：返回的张量，其存储的字节数恰好等于它自身的字节数。
# 如果窗口与缓存一样长或更长，就返回全部，并且不复制。
# （反例会列出检查的各项：返回张量的形状、存储的字节数、存储是否与 `keys` 的不同（“复制过”），以及数值。）

# %% key="window_stub"
def keep_window(keys: torch.Tensor, window: int) -> torch.Tensor:
    ### BEGIN SOLUTION
    if window >= keys.shape[0]:
        return keys
    return keys[-window:].clone()
    ### END SOLUTION


check("05.2", keep_window)

# %% [markdown] key="carve_task" lang="en"
# ## 05.3 Carve an arena
#
# Tensors of `sizes` bytes are placed one after another, in this order, each at a multiple of `align` (a power of two) and as early as possible.
# Return two things: the list of their offsets, and how many bytes the arena must have.
# %% [markdown] key="carve_task" lang="zh" src="93915607"
# ## 05.3 划分 arena
#
# 若干张量的字节数依次是 `sizes`，按这个顺序一个接一个地放，每个都从 `align`（2 的幂）的倍数开始，并且尽量靠前。
# 返回两样东西：各自的偏移组成的列表，以及 arena 至少要有多少字节。

# %% key="carve_stub"
def carve(sizes: list[int], align: int) -> tuple[list[int], int]:
    ### BEGIN SOLUTION
    offsets, end = [], 0
    for size in sizes:
        start = -(-end // align) * align
        offsets.append(start)
        end = start + size
    return offsets, end
    ### END SOLUTION


check("05.3", carve)

# %% [markdown] key="live_task" lang="en"
# ## 05.4 Count like torch
#
# `steps` is a program, each step a tuple:
#
# - `("new", name, bytes)`: `name = torch.empty(...)` of that many bytes
# - `("view", name, source, bytes)`: `name` becomes a slice of `source` that shows that many bytes
# - `("clone", name, source)`: `name = source.clone()`
# - `("del", name)`: `del name`
#
# Return, after each step, the bytes of all storages that are alive.
# A name may be given to another tensor, even to a slice of itself: `a = a[:10]`.
# %% [markdown] key="live_task" lang="zh" src="76a7ae3f"
# ## 05.4 像 torch 那样计数
#
# `steps` 是一段程序，每一步是一个元组：
#
# - `("new", name, bytes)`：`name = torch.empty(...)`，共这么多字节
# - `("view", name, source, bytes)`：`name` 成为 `source` 的切片，看到其中这么多字节
# - `("clone", name, source)`：`name = source.clone()`
# - `("del", name)`：`del name`
#
# 返回每一步之后，所有存活的存储共有多少字节。
# 同一个名字可以改为指向别的张量，甚至指向自己的切片：`a = a[:10]`。

# %% key="live_stub"
def live_bytes(steps: list[tuple]) -> list[int]:
    ### BEGIN SOLUTION
    storage_of, own, size, alive = {}, {}, [], []
    for what, name, *rest in steps:
        if what == "del":
            del storage_of[name]
        elif what == "view":
            source, own[name] = rest
            storage_of[name] = storage_of[source]
        else:
            own[name] = rest[0] if what == "new" else own[rest[0]]
            storage_of[name] = len(size)
            size.append(own[name])
        alive.append(sum(size[storage] for storage in set(storage_of.values())))
    return alive
    ### END SOLUTION


check("05.4", live_bytes)

# %% [markdown] key="live_why" lang="en"
# ### BEGIN SOLUTION
# The set of storages that some name still leads to *is* the reference count: a storage that does not occur in it has a count of zero.
# torch keeps the count itself. So it frees a storage in the very step in which the count falls to zero, without a garbage collector.
# ### END SOLUTION
# %% [markdown] key="live_why" lang="zh" src="11c0b90a"
# ### BEGIN SOLUTION
# 仍有名字指向的那些存储组成一个集合，它其实就是引用计数：不在其中的存储，计数为零。
# torch 维护的是计数本身，所以在计数归零的那一步立即释放，不需要垃圾回收。
# ### END SOLUTION
