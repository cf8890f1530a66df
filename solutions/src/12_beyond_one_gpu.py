# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="heads_task" lang="en"
# ## 12.1 The KV heads of a rank
#
# A model has `query_heads` query heads and `kv_heads` KV heads. Query head `q` reads KV head `q // (query_heads // kv_heads)`.
# The model runs on `tp` ranks. Rank 0 computes the first `query_heads // tp` query heads, rank 1 the next ones, and so on.
#
# Which KV heads does `rank` have to keep? Return their numbers as a list, in order.
# `tp` divides `query_heads`. Of `tp` and `kv_heads`, one divides the other, so there may be more ranks than KV heads.
# %% [markdown] key="heads_task" lang="zh" src="71dbce7e"
# ## 12.1 一个 rank 上的 KV 头
#
# 一个模型有 `query_heads` 个 query 头和 `kv_heads` 个 KV 头；query 头 `q` 读 KV 头 `q // (query_heads // kv_heads)`。
# 它跑在 `tp` 个 rank 上：rank 0 算最前面的 `query_heads // tp` 个 query 头，rank 1 算接下来的，依此类推。
#
# `rank` 要存哪些 KV 头？按次序返回它们的编号，放在列表里。
# `tp` 整除 `query_heads`；`tp` 与 `kv_heads` 之间，总有一个整除另一个，所以 rank 也可能比 KV 头多。

# %% key="heads_stub"
def kv_heads_of(rank: int, tp: int, query_heads: int, kv_heads: int) -> list[int]:
    ### BEGIN SOLUTION
    per_rank, group = query_heads // tp, query_heads // kv_heads
    first, last = rank * per_rank, (rank + 1) * per_rank - 1
    return list(range(first // group, last // group + 1))
    ### END SOLUTION


check("12.1", kv_heads_of)

# %% [markdown] key="blocks_task" lang="en"
# ## 12.2 As many blocks as all ranks have
#
# After the warm-up, rank `r` has `free[r]` bytes left for its cache. There are as many ranks as entries.
# The model has `layers` layers and `kv_heads` KV heads of `head_dim` elements, each of `itemsize` bytes. A block holds `block_size` tokens.
# KV heads are divided among the ranks, or copied where there are more ranks than heads.
#
# How many blocks may the scheduler give out?
# %% [markdown] key="blocks_task" lang="zh" src="679fd612"
# ## 12.2 所有 rank 都放得下的块数
#
# 预热之后，rank `r` 留给缓存的有 `free[r]` 字节；列表有几项，就有几个 rank。
# 模型有 `layers` 层、`kv_heads` 个 KV 头，头维度 `head_dim`，每个元素 `itemsize` 字节。一个块放 `block_size` 个 token。
# KV 头分给各个 rank；rank 更多时，就复制。
#
# 调度器能分配多少个块？

# %% key="blocks_stub"
def blocks_of_all(
    free: list[int], kv_heads: int, layers: int, head_dim: int, itemsize: int, block_size: int
) -> int:
    ### BEGIN SOLUTION
    heads = max(1, kv_heads // len(free))
    block_bytes = 2 * layers * block_size * heads * head_dim * itemsize
    return min(free) // block_bytes
    ### END SOLUTION


check("12.2", blocks_of_all)

# %% [markdown] key="blocks_why" lang="en"
# ### BEGIN SOLUTION
# In the package every rank counts for itself, and `torch.distributed.all_reduce` finds the smallest count (`allocate_kv_cache`).
# A rank that has no room at all takes part as well, with a count of 0. If it raised an error first, the others would wait for it until their time limit.
# ### END SOLUTION
# %% [markdown] key="blocks_why" lang="zh" src="9f540bad"
# ### BEGIN SOLUTION
# 在本包里，每个 rank 各自数出块数，再用 `torch.distributed.all_reduce` 找出最小的（`allocate_kv_cache`）。
# 一个块也放不下的 rank 也要参加，报 0。如果它提前抛出错误，其他 rank 就会一直等它，直到超时。
# ### END SOLUTION

# %% [markdown] key="latents_task" lang="en"
# ## 12.3 Latents, two ways
#
# For each token and layer, a model keeps a latent of `kv_lora_rank` elements and a rope key of `rope_dim` elements, each of `itemsize` bytes. It has `layers` layers and runs on `ranks` ranks.
# Requests of these `lengths` (in tokens) arrive one after the other, and all of them stay.
#
# - `way == "tp"`: tensor parallelism.
# - `way == "dp"`: data-parallel attention. A request goes to the rank that holds the fewest tokens when it arrives; of equals, to the one with the lowest number.
#
# Return the bytes of latents and rope keys on each rank, as a list.
# %% [markdown] key="latents_task" lang="zh" src="a38eeba0"
# ## 12.3 潜在向量的两种放法
#
# 一个模型在每一层为每个 token 存一个 `kv_lora_rank` 个元素的潜在向量，和一个 `rope_dim` 个元素的 rope key，每个元素 `itemsize` 字节。它有 `layers` 层，跑在 `ranks` 个 rank 上。
# 长度为 `lengths`（token 数）的请求依次到来，并且一直留在缓存里。
#
# - `way == "tp"`：张量并行。
# - `way == "dp"`：数据并行注意力。每个请求交给它到来时 token 最少的 rank；相同时取编号最小的。
#
# 以列表返回每个 rank 上潜在向量和 rope key 的字节数。

# %% key="latents_stub"
def latent_bytes(
    lengths: list[int], ranks: int, way: str, layers: int, kv_lora_rank: int, rope_dim: int, itemsize: int
) -> list[int]:
    ### BEGIN SOLUTION
    token_bytes = layers * (kv_lora_rank + rope_dim) * itemsize
    if way == "tp":
        tokens = [sum(lengths)] * ranks
    else:
        tokens = [0] * ranks
        for length in lengths:
            tokens[tokens.index(min(tokens))] += length
    return [count * token_bytes for count in tokens]
    ### END SOLUTION


check("12.3", latent_bytes)

# %% [markdown] key="preempt_task" lang="en"
# ## 12.4 Swap or recompute
#
# A sequence is preempted. Its blocks have `num_bytes` bytes, and without a swap `tokens` of its tokens would have to be computed again. The host pool has `host_room` bytes left.
# Bytes go to the host at `to_host` bytes a second and come back at `to_device`. A prefill computes `prefill` tokens a second.
#
# Return the event of this preemption, a dict with
#
# - `"how"`: `"swap"` if it takes less time and the host has room, else `"recompute"`
# - `"swap_seconds"` and `"recompute_seconds"`: both estimates, whatever was decided
# %% [markdown] key="preempt_task" lang="zh" src="c23410f5"
# ## 12.4 换出换入，还是重新计算
#
# 一条序列被抢占。它的块共 `num_bytes` 字节；不换出的话，有 `tokens` 个 token 要重新计算。CPU 内存的块池还剩 `host_room` 字节。
# 搬到 CPU 内存每秒 `to_host` 字节，搬回来每秒 `to_device` 字节；预填充每秒计算 `prefill` 个 token。
#
# 返回这次抢占的事件，是一个字典：
#
# - `"how"`：换出换入更快，而且 CPU 内存放得下，就是 `"swap"`，否则是 `"recompute"`
# - `"swap_seconds"` 和 `"recompute_seconds"`：两个估计，不管怎么决定都要写

# %% key="preempt_stub"
def preempt(
    tokens: int, num_bytes: int, host_room: int, to_host: float, to_device: float, prefill: float
) -> dict[str, object]:
    ### BEGIN SOLUTION
    swap = num_bytes / to_host + num_bytes / to_device
    recompute = tokens / prefill
    swaps = swap < recompute and num_bytes <= host_room
    return {
        "how": "swap" if swaps else "recompute",
        "swap_seconds": swap,
        "recompute_seconds": recompute,
    }
    ### END SOLUTION


check("12.4", preempt)

# %% [markdown] key="preempt_why" lang="en"
# ### BEGIN SOLUTION
# In the package this is `minikv.plan.preemption` and the event `preempt` of an `LLM` with `cpu_kv_bytes`.
# Both estimates are in it, so that the log shows later how they compare with what the swap and the prefill really took.
# ### END SOLUTION
# %% [markdown] key="preempt_why" lang="zh" src="6cfef8ce"
# ### BEGIN SOLUTION
# 在本包里，这就是 `minikv.plan.preemption`，以及设了 `cpu_kv_bytes` 的 `LLM` 发出的 `preempt` 事件。
# 两个估计都写在事件里，以后看日志时，才能与实际的换出换入、预填充用时对照。
# ### END SOLUTION

# %% [markdown] key="exchange_task" lang="en"
# ## 12.5 Out and back, in order
#
# A sequence is swapped out. Other sequences use its blocks for one forward, and then it comes back. `compute` and `copies` are two streams:
#
# - `stream.do(work)` queues `work`, a function, and returns at once
# - `stream.record()` returns an event that comes after everything that has been queued there so far
# - `stream.wait(event)`: what is queued there from now on is done after `event`
#
# Each stream does its own work in order. Between the two there is no order, except by events.
#
# When your function is called, a step that *writes* the sequence's blocks stands in `compute`, and may not be done yet. When it returns, the next step of the sequence is queued in `compute`, and *reads* them. In between, queue
#
# - `out`: copies the blocks to the host
# - `forward`: the other sequences write their K and V into the same blocks, and read them
# - `back`: copies the blocks from the host to where they were
#
# `out` and `back` belong on `copies`, so that other work can run at the same time. `forward` belongs on `compute`. However fast the two streams are, no work may read what is not there yet, or overwrite what is still needed.
# %% [markdown] key="exchange_task" lang="zh" src="f65c5be2"
# ## 12.5 换出换入，次序不乱
#
# 一条序列被换出，其他序列用它的块做一次前向计算，然后它再换回来。`compute` 和 `copies` 是两个流：
#
# - `stream.do(work)`：把函数 `work` 排进去，立刻返回
# - `stream.record()`：返回一个事件，它排在此前所有已排进去的工作之后
# - `stream.wait(event)`：从现在起排进去的，都在 `event` 之后才执行
#
# 每个流按自己的次序执行；两个流之间，除了事件，没有先后。
#
# 调用你的函数时，`compute` 里已经排着一步，它要**写**这条序列的块，可能还没有执行。函数返回之后，这条序列的下一步会排进 `compute`，**读**这些块。请在中间排入：
#
# - `out`：把块复制到 CPU 内存
# - `forward`：其他序列把自己的 K 和 V 写进同样的块，再读出来
# - `back`：把块从 CPU 内存复制回原处
#
# `out` 和 `back` 要排在 `copies` 上，这样其他工作可以同时进行；`forward` 排在 `compute` 上。不论两个流哪个快、哪个慢，都不能读到还没写好的内容，也不能覆盖还要用的内容。

# %% key="exchange_stub"
def exchange(compute, copies, out, forward, back) -> None:
    ### BEGIN SOLUTION
    copies.wait(compute.record())
    copies.do(out)
    compute.wait(copies.record())
    compute.do(forward)
    copies.wait(compute.record())
    copies.do(back)
    compute.wait(copies.record())
    ### END SOLUTION


check("12.5", exchange)

# %% [markdown] key="exchange_why" lang="en"
# ### BEGIN SOLUTION
# `HostPool` needs fewer waits. It first copies the blocks aside on the device, in the order of the computing stream. As soon as `swap_out` returns, other sequences may use the blocks, and the slow copy to the host runs at the same time. For a moment this takes as much device memory again as the blocks have.
# With torch the two calls are `event = torch.cuda.Event(); event.record(stream)` and `stream.wait_event(event)`.
# ### END SOLUTION
# %% [markdown] key="exchange_why" lang="zh" src="14c37c87"
# ### BEGIN SOLUTION
# `HostPool` 用的等待更少：它先按计算流的次序，在设备上把块复制到一旁。`swap_out` 一返回，其他序列就能用这些块，而较慢的、往 CPU 内存的复制同时继续。代价是有一小会儿，设备上要多占与这些块同样多的显存。
# 用 torch 写，就是 `event = torch.cuda.Event(); event.record(stream)` 和 `stream.wait_event(event)`。
# ### END SOLUTION
