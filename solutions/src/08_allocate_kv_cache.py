# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="block_task" lang="en"
# ## 08.1 Block bytes
#
# How many bytes does one block of `block_size` tokens take on one of `tp` ranks, in all layers together?
#
# `config` holds `num_hidden_layers`, `num_attention_heads`, `num_key_value_heads`, `hidden_size` and `dtype_bytes`.
# A model with heads also has `head_dim`. Its KV heads are divided among the ranks. Where there are more ranks than heads, every rank keeps one.
# An MLA model has `kv_lora_rank` and `qk_rope_head_dim` instead: one latent and one rope key a token, the same on every rank.
# %% [markdown] key="block_task" lang="zh" src="ff52c016"
# ## 08.1 块的字节数
#
# 一个块有 `block_size` 个 token，在 `tp` 个 rank 中的一个上，所有层合计占多少字节？
#
# `config` 里有 `num_hidden_layers`、`num_attention_heads`、`num_key_value_heads`、`hidden_size` 和 `dtype_bytes`。
# 带 KV 头的模型还有 `head_dim`；头分给各个 rank，rank 比头多时，每个 rank 保留一个。
# MLA 模型则有 `kv_lora_rank` 和 `qk_rope_head_dim`：每个 token 一份潜在向量加一份 rope key，每个 rank 上都一样。

# %% key="block_stub"
def block_bytes(config: dict, block_size: int, tp: int) -> int:
    ### BEGIN SOLUTION
    if "kv_lora_rank" in config:
        width = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    else:
        width = 2 * max(1, config["num_key_value_heads"] // tp) * config["head_dim"]
    return config["num_hidden_layers"] * block_size * width * config["dtype_bytes"]
    ### END SOLUTION


check("08.1", block_bytes)

# %% [markdown] key="blocks_task" lang="en"
# ## 08.2 How many blocks fit
#
# Return how many whole blocks of the cache fit, by the formula of the lesson. All arguments but `utilization`, which is a share of `total`, are in bytes:
#
# - `total`: what the GPU has
# - `used`: what is taken now, whatever takes it
# - `current`, `peak`: what torch's live tensors take of it now, and took at most during the warm-up
# - `block_bytes`: one block of the cache
#
# Where the model does not fit, 0 and every negative number are right.
#
# This function is a part of *your engine*: once it passes, it is kept, and [lesson 11c](../../notebooks/en/11c_your_engine.ipynb) runs the engine with it.
# %% [markdown] key="blocks_task" lang="zh" src="9cb7d47b"
# ## 08.2 放得下多少个块
#
# 按本课的公式，返回放得下多少个完整的块。`utilization` 是 `total` 中的比例，其余参数都以字节计：
#
# - `total`：GPU 一共有多少
# - `used`：现在总共占用了多少，不管由什么占用
# - `current`、`peak`：其中存活的 torch 张量现在占多少，预热期间最多占多少
# - `block_bytes`：缓存的一个块
#
# 模型放不下时，0 或任何负数都算对。
#
# 这个函数是“你的引擎”的一个部件：通过之后会保存下来，[第 11c 课](../../notebooks/zh/11c_your_engine.ipynb)会用它来运行引擎。

# %% key="blocks_stub"
def num_blocks_that_fit(
    total: int, utilization: float, used: int, peak: int, current: int, block_bytes: int
) -> int:
    ### BEGIN SOLUTION
    activations = peak - current
    return int(total * utilization - used - activations) // block_bytes
    ### END SOLUTION


check("08.2", num_blocks_that_fit)

# %% [markdown] key="blocks_why" lang="en"
# ### BEGIN SOLUTION
# `nvidia-smi` prints MiB. To put its numbers in here, multiply them by $2^{20}$; with $10^6$ you lose about 5 % of the memory.
# ### END SOLUTION
# %% [markdown] key="blocks_why" lang="zh" src="1539dfec"
# ### BEGIN SOLUTION
# `nvidia-smi` 打印的是 MiB。要把它的数字代进来，先乘以 $2^{20}$；如果乘以 $10^6$，就会少算大约 5% 的显存。
# ### END SOLUTION

# %% [markdown] key="ledger_task" lang="en"
# ## 08.3 The ledger
#
# `events` are what an engine does while it starts, each a pair of a name and a size:
#
# - `("malloc", size)` and `("free", size)`: a tensor comes or goes
# - `("empty_cache", 0)` and `("reset_peak", 0)`: the two calls
#
# Freed memory stays cached, and a malloc takes from the cache first, as much as is there; only what is missing comes from the driver.
# `non_torch` bytes are held outside torch all the time.
#
# Return a list with `(used, peak, current)` after each event: used as the driver sees it, peak and current as torch does.
# %% [markdown] key="ledger_task" lang="zh" src="889cdc61"
# ## 08.3 账本
#
# `events` 是引擎启动时做的事，每件是一个名字加一个大小：
#
# - `("malloc", size)` 和 `("free", size)`：张量出现或消失
# - `("empty_cache", 0)` 和 `("reset_peak", 0)`：那两个调用
#
# 释放的显存会留在缓存里，malloc 先从缓存取，有多少取多少，不够的部分才向驱动要。
# `non_torch` 字节一直被 torch 以外的部分占着。
#
# 返回一个列表，列出每个事件之后的 `(used, peak, current)`：used 从驱动看，peak 和 current 从 torch 看。

# %% key="ledger_stub"
def ledger(non_torch: int, events: list[tuple[str, int]]) -> list[tuple[int, int, int]]:
    ### BEGIN SOLUTION
    current = peak = cached = 0
    lines = []
    for name, size in events:
        if name == "malloc":
            current += size
            cached -= min(size, cached)
            peak = max(peak, current)
        elif name == "free":
            current -= size
            cached += size
        elif name == "empty_cache":
            cached = 0
        else:
            peak = current
        lines.append((non_torch + current + cached, peak, current))
    return lines
    ### END SOLUTION


check("08.3", ledger)

# %% [markdown] key="ledger_why" lang="en"
# ### BEGIN SOLUTION
# A real allocator is not this simple: cached memory lies in segments, and a malloc needs one that is large enough in one piece ([lesson 07](../../notebooks/en/07_allocate_once.ipynb)).
# That is why used can exceed what this ledger says, and why utilization is no fence.
# ### END SOLUTION
# %% [markdown] key="ledger_why" lang="zh" src="5aaa0ea4"
# ### BEGIN SOLUTION
# 真正的分配器没有这么简单：缓存的显存分在各个段里，malloc 需要一整块足够大的（[第 07 课](../../notebooks/zh/07_allocate_once.ipynb)）。
# 所以实际的 used 可能超过这本账，利用率也就不是围栏。
# ### END SOLUTION

# %% [markdown] key="room_task" lang="en"
# ## 08.4 Room for the largest step
#
# `free` bytes are free, and the cache is about to be made.
# `keep` bytes must stay free for others.
# The engine will make steps of `steps[i]` tokens, one after the other; a step needs `token_bytes` for each of its tokens, and gives them back when it ends.
# How many blocks of `block_bytes` may the cache have, so that every step finds its memory?
# Return 0 where there is no room for one.
# %% [markdown] key="room_task" lang="zh" src="f02ad23b"
# ## 08.4 给最大的一步留空间
#
# 有 `free` 字节空闲，马上要建缓存。
# 其中 `keep` 字节必须留给其他用途。
# 引擎会依次运行若干步，第 i 步有 `steps[i]` 个 token；每个 token 需要 `token_bytes` 字节，步骤结束时归还。
# 缓存最多可以有多少个 `block_bytes` 字节的块，使每一步都有显存可用？
# 一个也放不下时为 0。

# %% key="room_stub"
def blocks_with_room(free: int, keep: int, steps: list[int], token_bytes: int, block_bytes: int) -> int:
    ### BEGIN SOLUTION
    room = free - keep - max(steps) * token_bytes
    return max(0, room) // block_bytes
    ### END SOLUTION


check("08.4", blocks_with_room)

# %% [markdown] key="bind_task" lang="en"
# ## 08.5 Bind
#
# `kv_cache` is a tensor `[2, layers, blocks, block_size, heads, dim]`: K first, then V.
# `modules` are the modules of a model, in order; some have both a `k_cache` and a `v_cache`, and only these are meant.
#
# Set both on each of them to the views of its layer, in order, and return how many modules that were.
# If their number is not the number of layers, raise `ValueError`, and change nothing.
# %% [markdown] key="bind_task" lang="zh" src="32882312"
# ## 08.5 bind
#
# `kv_cache` 是形状为 `[2, layers, blocks, block_size, heads, dim]` 的张量：先 K，后 V。
# `modules` 是模型的各个模块，按顺序排列；有些同时具有 `k_cache` 和 `v_cache`，要处理的只有它们。
#
# 按顺序把这两个属性设成对应层的视图，并返回模块的个数。
# 如果个数与层数不符，就抛出 `ValueError`，并且什么也不改变。

# %% key="bind_stub" lang="en"
def bind_views(kv_cache, modules) -> int:
    ### BEGIN SOLUTION
    found = [module for module in modules if hasattr(module, "k_cache") and hasattr(module, "v_cache")]
    if len(found) != kv_cache.shape[1]:
        raise ValueError(f"{len(found)} modules, {kv_cache.shape[1]} layers")
    for layer, module in enumerate(found):
        module.k_cache, module.v_cache = kv_cache[0, layer], kv_cache[1, layer]  # [blocks, block_size, heads, dim] each
    return len(found)
    ### END SOLUTION


check("08.5", bind_views)

# %% key="bind_stub" lang="zh"
def bind_views(kv_cache, modules) -> int:
    ### BEGIN SOLUTION
    found = [module for module in modules if hasattr(module, "k_cache") and hasattr(module, "v_cache")]
    if len(found) != kv_cache.shape[1]:
        raise ValueError(f"{len(found)} modules, {kv_cache.shape[1]} layers")
    for layer, module in enumerate(found):
        module.k_cache, module.v_cache = kv_cache[0, layer], kv_cache[1, layer]  # 各为 [块数, block_size, 头, dim]
    return len(found)
    ### END SOLUTION


check("08.5", bind_views)

