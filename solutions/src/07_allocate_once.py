# %% [markdown] key="sizes_task" lang="en"
# ## 07.1 What a request is rounded to
#
# A tensor of `size` bytes is made on a GPU, with torch's default settings and nothing cached.
# Return two sizes in bytes: the rounded request, and the segment that the driver is asked for.
# %% [markdown] key="sizes_task" lang="zh" src="53faebdb"
# ## 07.1 一个请求取整成多大
#
# 在 GPU 上建立一个 `size` 字节的张量，torch 用默认设置，没有任何缓存着的显存。
# 返回两个字节数：取整后的请求，以及向驱动要的段。

# %% key="sizes_stub"
def rounded_and_segment(size: int) -> tuple[int, int]:
    ### BEGIN SOLUTION
    mib = 2**20
    rounded = -(-size // 512) * 512
    if rounded <= mib:
        return rounded, 2 * mib
    if rounded < 10 * mib:
        return rounded, 20 * mib
    return rounded, -(-rounded // (2 * mib)) * 2 * mib
    ### END SOLUTION


check("07.1", rounded_and_segment)

# %% [markdown] key="copied_task" lang="en"
# ## 07.2 What growing copies
#
# A batch of `batch` sequences has a prompt of `prompt` tokens each in its cache, and generates `steps` more.
# Every step joins one token to each sequence by `torch.cat`. A token takes `token_bytes` in all layers.
# Return the bytes that are read *and* written by all joins together, the new token's own included.
# %% [markdown] key="copied_task" lang="zh" src="df3ddfdc"
# ## 07.2 变大要复制多少
#
# 一个 batch 有 `batch` 条序列，缓存里每条已有 `prompt` 个 token 的提示词，还要再生成 `steps` 个。
# 每一步用 `torch.cat` 给每条序列拼接一个 token；一个 token 在所有层合计占 `token_bytes` 字节。
# 返回所有拼接**读和写**的总字节数，新 token 自己的也算在内。

# %% key="copied_stub"
def bytes_copied(batch: int, prompt: int, steps: int, token_bytes: int) -> int:
    ### BEGIN SOLUTION
    return batch * token_bytes * steps * (2 * prompt + steps + 1)
    ### END SOLUTION


check("07.2", bytes_copied)

# %% [markdown] key="choose_task" lang="en"
# ## 07.3 Which block does a request get?
#
# `free` lists the free blocks, in no order, each as `(address, size, stream, pool)`; `pool` is `"small"` or `"large"`.
# A request of `size` bytes (already rounded) comes on `stream`.
# Return the address of the block that it gets (of blocks of the same size, the lowest address), or `None` if the driver has to be asked for a new segment.
# %% [markdown] key="choose_task" lang="zh" src="a8aa5ca5"
# ## 07.3 请求会得到哪个块？
#
# `free` 列出空闲块，次序不定，每个写成 `(address, size, stream, pool)`；`pool` 是 `"small"` 或 `"large"`。
# 现在流 `stream` 上来了一个 `size` 字节的请求（已经取整）。
# 返回它得到的块的地址（大小相同时，取地址最低的）；如果要向驱动要新的段，返回 `None`。

# %% key="choose_stub"
def choose_block(free: list[tuple[int, int, int, str]], size: int, stream: int) -> int | None:
    ### BEGIN SOLUTION
    pool = "small" if size <= 2**20 else "large"
    best = None
    for address, held, on, kind in free:
        fits = kind == pool and on == stream and held >= size
        if fits and (best is None or (held, address) < best):
            best = held, address
    return best[1] if best else None
    ### END SOLUTION


check("07.3", choose_block)

# %% [markdown] key="returned_task" lang="en"
# ## 07.4 What comes back
#
# Each segment is a list of its blocks, `(size, state)`, with the states of a snapshot: `"active_allocated"`, `"active_awaiting_free"` (freed, but another stream still uses it) and `"inactive"`.
# How many bytes does `empty_cache()` give back to the driver? (Not with expandable segments.)
# %% [markdown] key="returned_task" lang="zh" src="ac560a8b"
# ## 07.4 能还回多少
#
# 每个段是其中各块的列表，写成 `(size, state)`；状态与快照一致：`"active_allocated"`、`"active_awaiting_free"`（已释放，但别的流还在用）、`"inactive"`。
# `empty_cache()` 会还给驱动多少字节？（不考虑可扩展段。）

# %% key="returned_stub"
def bytes_returned(segments: list[list[tuple[int, str]]]) -> int:
    ### BEGIN SOLUTION
    returned = 0
    for blocks in segments:
        states = {state for _, state in blocks}
        if "active_allocated" not in states:
            returned += sum(size for size, _ in blocks)
    return returned
    ### END SOLUTION


check("07.4", bytes_returned)

# %% [markdown] key="slots_task" lang="en"
# ## 07.5 A cache that allocates once
#
# Write a cache for a batch of sequences that grow together.
#
# - `allocate(*shape)` gives a float tensor with anything in it. Call it once, in the constructor, for exactly `max_seq` tokens a sequence, and never again; make no other tensor either.
# - `append(new)`: one more token a sequence; `new` is `[batch, width]` and stays as it is. A full cache raises `ValueError`, and stays as it is too.
# - `read()`: the tokens so far, at first none, as a view `[batch, tokens, width]`.
# - `reset()`: the next generation begins, in the same memory.
# %% [markdown] key="slots_task" lang="zh" src="a1feccb8"
# ## 07.5 只分配一次的缓存
#
# 为一批同步增长的序列写一个缓存。
#
# - `allocate(*shape)` 给出一个浮点张量，内容不定。只在构造函数里调用一次，每条序列恰好留 `max_seq` 个 token 的位置；之后不再调用，也不要另建别的张量。
# - `append(new)`：每条序列再加一个 token；`new` 的形状是 `[batch, width]`，不要改动它。缓存已满就抛出 `ValueError`，内容不变。
# - `read()`：到目前为止的 token，一开始没有；返回视图 `[batch, tokens, width]`。
# - `reset()`：开始下一轮生成，仍用同一块内存。

# %% key="slots_stub"
class SlotCache:
    def __init__(self, allocate, batch: int, max_seq: int, width: int):
        ### BEGIN SOLUTION
        self.room = allocate(batch, max_seq, width)
        self.max_seq, self.length = max_seq, 0
        ### END SOLUTION

    def append(self, new) -> None:
        ### BEGIN SOLUTION
        if self.length == self.max_seq:
            raise ValueError("full")
        self.room[:, self.length] = new
        self.length += 1
        ### END SOLUTION

    def read(self):
        ### BEGIN SOLUTION
        return self.room[:, : self.length]
        ### END SOLUTION

    def reset(self) -> None:
        ### BEGIN SOLUTION
        self.length = 0
        ### END SOLUTION


check("07.5", SlotCache)

# %% [markdown] key="slots_why" lang="en"
# ### BEGIN SOLUTION
# This is `LinearKVCache` with one layer: the room is taken once, and what lies beyond the length is never read.
# ### END SOLUTION
# %% [markdown] key="slots_why" lang="zh" src="cf1d0843"
# ### BEGIN SOLUTION
# 这就是只有一层的 `LinearKVCache`：位置一次占好，长度之后的内容从不读取。
# ### END SOLUTION
