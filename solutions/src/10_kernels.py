# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="store_task" lang="en"
# ## 10.1 Store
#
# `key` and `value` are the new tokens, `[T, kv_heads, head_dim]` each. Write token i into slot `slots[i]` of `k_cache` and `v_cache`, `[blocks, block_size, kv_heads, head_dim]` each.
# A negative slot means: do not store this token.
#
# Change the caches in place, nothing else, and return nothing.
# In some cases K and V of a block lie side by side in one tensor, so the two caches are views that are not contiguous.
#
# The check fills token i with i + 1 (and 100 more in its second head), and V with the negative of that.
# It stores in two calls, half of the tokens each, and then reads everything back. A 0 was never written.
# %% [markdown] key="store_task" lang="zh" src="84486c61"
# ## 10.1 写入
#
# `key` 和 `value` 是新 token，形状都是 `[T, kv_heads, head_dim]`。把第 i 个 token 写入 `k_cache` 和 `v_cache` 的槽位 `slots[i]`；两个缓存的形状都是 `[块数, block_size, kv_heads, head_dim]`。
# 槽位为负表示不写这个 token。
#
# 直接修改缓存，别的都不改，也不返回任何东西。
# 有些情况下，一个块的 K 和 V 挨着放在同一个张量里，这时两个缓存是不连续的视图。
#
# 检查时，第 i 个 token 的各元素是 i + 1（第二个头再加 100），V 是它的相反数；分两次调用写入，每次一半，最后读出全部内容，0 表示从未写过。

# %% key="store_stub"
import torch


def store_kv(key: torch.Tensor, value: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor) -> None:
    ### BEGIN SOLUTION
    block_size = k_cache.shape[1]
    stored = slots >= 0
    blocks, places = slots[stored] // block_size, slots[stored] % block_size
    k_cache[blocks, places] = key[stored]
    v_cache[blocks, places] = value[stored]
    ### END SOLUTION


check("10.1", store_kv)

# %% [markdown] key="offsets_task" lang="en"
# ## 10.2 The lookup
#
# A program is about to load a tile: the `count` positions from `start` on.
# For each of them say where its row begins in the cache, counted in elements. Say `None` if it must not be read.
#
# - The sequence has `length` tokens, at positions 0 to `length - 1`; the query stands at the last one.
# - With a `window` (or `None`) the query looks at that many positions, itself included. Before those, the table may hold -1.
# - From one block to the next it is `stride_block` elements, from one token to the next in the same block `stride_token`.
# %% [markdown] key="offsets_task" lang="zh" src="8e40eb81"
# ## 10.2 查表
#
# 一个程序正要读一个 tile，即从 `start` 开始的 `count` 个位置。
# 对每个位置，给出它那一行在缓存里从第几个元素开始；不该读的给 `None`。
#
# - 序列有 `length` 个 token，位置是 0 到 `length - 1`，query 在最后一个位置。
# - 有窗口时（`window` 不是 `None`），query 连自己在内只看 `window` 个位置。窗口之前，块表里可能是 -1。
# - 相邻两块相距 `stride_block` 个元素；同一块里相邻两个 token 相距 `stride_token` 个元素。

# %% key="offsets_stub"
def token_offsets(
    block_table: list[int],
    start: int,
    count: int,
    length: int,
    window: int | None,
    block_size: int,
    stride_block: int,
    stride_token: int,
) -> list[int | None]:
    ### BEGIN SOLUTION
    first = 0 if window is None else length - window
    offsets = []
    for position in range(start, start + count):
        if not first <= position < length:
            offsets.append(None)
            continue
        block = block_table[position // block_size]
        offsets.append(block * stride_block + position % block_size * stride_token)
    return offsets
    ### END SOLUTION


check("10.2", token_offsets)

# %% [markdown] key="attend_task" lang="en"
# ## 10.3 A softmax to repair
#
# `tiles` is a list of pairs: the logits of a tile, and the value of each key (one number each).
# A logit of `-math.inf` is a hidden key; a whole tile may be hidden, but not all of them.
# Return the pair (result, lse) of one softmax over all keys, in one pass over the tiles.
# Return two Python floats: the check compares nine digits, which a float32 does not have.
#
# Here is an attempt that is wrong nearly always:
#
# ```python
# largest, total, acc = -math.inf, 0.0, 0.0
# for logits, values in tiles:
#     largest = max(logits)
#     weights = [math.exp(x - largest) for x in logits]
#     total += sum(weights)
#     acc += sum(w * v for w, v in zip(weights, values))
# return acc / total, largest + math.log(total)
# ```
#
# Find out why, and write it correctly.
# %% [markdown] key="attend_task" lang="zh" src="bb90ba77"
# ## 10.3 修好 softmax
#
# `tiles` 是一串二元组：一个 tile 的各个 logit，以及每个 key 的 value（各是一个数）。
# logit 为 `-math.inf` 表示这个 key 被遮住；整个 tile 都可能被遮住，但不会全部 tile 都被遮住。
# 只扫一遍 tile，返回对全部 key 做一次 softmax 的二元组（结果，lse）。
# 两个都是 Python 浮点数：检查时比较 9 位有效数字，float32 没有这么高的精度。
#
# 有人写成了下面这样，它几乎总是错的：
#
# ```python
# largest, total, acc = -math.inf, 0.0, 0.0
# for logits, values in tiles:
#     largest = max(logits)
#     weights = [math.exp(x - largest) for x in logits]
#     total += sum(weights)
#     acc += sum(w * v for w, v in zip(weights, values))
# return acc / total, largest + math.log(total)
# ```
#
# 请找出原因，把它写对。

# %% key="attend_stub"
import math


def attend(tiles: list[tuple[list[float], list[float]]]) -> tuple[float, float]:
    ### BEGIN SOLUTION
    largest, total, acc = -math.inf, 0.0, 0.0
    for logits, values in tiles:
        new = max(largest, max(logits))
        if new == -math.inf:
            continue
        rescale = math.exp(largest - new)
        weights = [math.exp(x - new) for x in logits]
        total = total * rescale + sum(weights)
        acc = acc * rescale + sum(w * v for w, v in zip(weights, values))
        largest = new
    return acc / total, largest + math.log(total)
    ### END SOLUTION


check("10.3", attend)

# %% [markdown] key="merge_task" lang="en"
# ## 10.4 Two splits
#
# Two programs have computed attention over different keys of one row. Each left its output, a list of numbers, and its lse.
# Return the output and the lse over all keys together.
# A program that had no key left zeros and an lse of `-math.inf`. If both did, so does the whole.
# Python floats again, compared to nine digits.
# %% [markdown] key="merge_task" lang="zh" src="67fb6160"
# ## 10.4 合并两份
#
# 两个程序对同一行的不同 key 算了注意力，各留下输出（一列数）和 lse。
# 返回对全部 key 的输出和 lse。
# 没有分到 key 的程序留下的是零和 `-math.inf` 的 lse。两个都没有时，整体也是如此。
# 仍用 Python 浮点数，比较 9 位有效数字。

# %% key="merge_stub"
def merge(out_a: list[float], lse_a: float, out_b: list[float], lse_b: float) -> tuple[list[float], float]:
    ### BEGIN SOLUTION
    largest = max(lse_a, lse_b)
    if largest == -math.inf:
        return out_a, largest
    a, b = math.exp(lse_a - largest), math.exp(lse_b - largest)
    out = [(a * x + b * y) / (a + b) for x, y in zip(out_a, out_b)]
    return out, largest + math.log(a + b)
    ### END SOLUTION


check("10.4", merge)

# %% [markdown] key="attention_task" lang="en"
# ## 10.5 Attention over blocks
#
# This function is a part of **your engine**: `minikv.nano` calls it in every layer, with these arguments, for prefills, for chunks of prompts and for decodes.
# K and V of the new tokens are in the cache already.
#
# - `query` is `[T, query_heads, k_dim]`: T new tokens of B sequences in one row, sequence after sequence.
# - `k_cache` is `[blocks, block_size, kv_heads, k_dim]`, and `v_cache` the same with `v_dim`. Neighbouring query heads share a KV head.
# - `batch` says which token is which:
#
# | field | shape | what it holds |
# |---|---|---|
# | `batch.positions` | `[T]` | the position of each token in its sequence |
# | `batch.last` | `[B]` | the row of each sequence's last token: sequence i has the rows `last[i - 1] + 1` to `last[i]`, the first one begins at row 0 |
# | `batch.block_tables` | `[B, W]` | the blocks of each sequence, padded with 0 |
# | `batch.lengths` | `[B]` | the tokens of each sequence that are in the cache |
#
# `batch` has more fields, which make nano's version faster. You don't need them: a plain loop over the sequences is right.
#
# A query at position p sees the positions 0 to p of its own sequence. With a `window` it sees the last `window` of those, its own included.
# A `softcap` c turns each logit x, already scaled, into `c * tanh(x / c)`, as Gemma 2 does.
#
# Return softmax(scale * q K^T) V, `[T, query_heads, v_dim]`, and change nothing that you are given.
# In the check, 10,000 stands in every place that holds no token of the sequence: in a real pool these are the numbers of earlier sequences.
# %% [markdown] key="attention_task" lang="zh" src="2999d98f"
# ## 10.5 对块做注意力
#
# 这个函数是**你的引擎**的一个部件：`minikv.nano` 在每一层都这样调用它，预填充、分段预填充和解码都用它。
# 调用时，新 token 的 K 和 V 已经写进缓存。
#
# - `query` 的形状是 `[T, query_heads, k_dim]`：B 条序列的 T 个新 token，一条接一条排成一列。
# - `k_cache` 的形状是 `[块数, block_size, kv_heads, k_dim]`，`v_cache` 只是最后一维换成 `v_dim`。相邻的 query 头共用一个 KV 头。
# - `batch` 说明每个 token 属于哪里：
#
# | 字段 | 形状 | 内容 |
# |---|---|---|
# | `batch.positions` | `[T]` | 每个 token 在自己序列里的位置 |
# | `batch.last` | `[B]` | 每条序列最后一个 token 的行号：序列 i 占第 `last[i - 1] + 1` 行到第 `last[i]` 行，第一条从第 0 行开始 |
# | `batch.block_tables` | `[B, W]` | 每条序列的块，不足的补 0 |
# | `batch.lengths` | `[B]` | 每条序列在缓存里的 token 数 |
#
# `batch` 还有别的字段，nano 用它们来加速，你不需要：逐条序列循环就是对的。
#
# 位置 p 的 query 能看到自己序列的位置 0 到 p；有窗口（`window`）时，只看其中最后 `window` 个，包括自己。
# `softcap` 为 c 时，每个乘过缩放系数的 logit x 变成 `c * tanh(x / c)`，Gemma 2 就是这样做的。
#
# 返回 softmax(scale * q K^T) V，形状 `[T, query_heads, v_dim]`；不要改动传进来的任何东西。
# 检查时，凡是没有本序列 token 的位置，放的都是 10,000：真实的块池里，那是先前的序列留下的数。

# %% key="attention_stub" lang="en"
def paged_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    ### BEGIN SOLUTION
    group = query.shape[1] // k_cache.shape[2]
    out = query.new_empty(*query.shape[:2], v_cache.shape[-1])
    first = 0
    for table, last in zip(batch.block_tables, batch.last.tolist()):
        rows = slice(first, last + 1)
        first = last + 1
        k = k_cache[table].flatten(0, 1).repeat_interleave(group, dim=1)  # [S, query_heads, k_dim]
        v = v_cache[table].flatten(0, 1).repeat_interleave(group, dim=1)  # [S, query_heads, v_dim]
        logits = torch.einsum("qhd,shd->hqs", query[rows], k) * scale  # [query_heads, q, S]
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        query_at = batch.positions[rows, None]  # [q, 1]
        key_at = torch.arange(len(k), device=query.device)  # [S]
        hidden = key_at > query_at  # [q, S]
        if window is not None:
            hidden |= key_at <= query_at - window
        weights = logits.masked_fill(hidden, -math.inf).softmax(-1)
        out[rows] = torch.einsum("hqs,shd->qhd", weights, v)  # [q, query_heads, v_dim]
    return out
    ### END SOLUTION


check("10.5", paged_attention)

# %% key="attention_stub" lang="zh"
def paged_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    ### BEGIN SOLUTION
    group = query.shape[1] // k_cache.shape[2]
    out = query.new_empty(*query.shape[:2], v_cache.shape[-1])
    first = 0
    for table, last in zip(batch.block_tables, batch.last.tolist()):
        rows = slice(first, last + 1)
        first = last + 1
        k = k_cache[table].flatten(0, 1).repeat_interleave(group, dim=1)  # 每个 query 头一份 K：[S, query 头, k_dim]
        v = v_cache[table].flatten(0, 1).repeat_interleave(group, dim=1)  # [S, query 头, v_dim]
        logits = torch.einsum("qhd,shd->hqs", query[rows], k) * scale  # [query 头, q, S]
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        query_at = batch.positions[rows, None]  # [q, 1]
        key_at = torch.arange(len(k), device=query.device)  # [S]
        hidden = key_at > query_at  # [q, S]
        if window is not None:
            hidden |= key_at <= query_at - window
        weights = logits.masked_fill(hidden, -math.inf).softmax(-1)
        out[rows] = torch.einsum("hqs,shd->qhd", weights, v)  # [q, query 头, v_dim]
    return out
    ### END SOLUTION


check("10.5", paged_attention)

# %% [markdown] key="attention_why" lang="en"
# ### BEGIN SOLUTION
# This version reads all blocks of a table, even the padding, and hides with `-inf` what a query may not see.
# A hidden key has a weight of exactly 0, so 10,000 times 0 adds nothing. NaN would: 0 times NaN is NaN.
# That is why nano fills its pool with zeros when it makes it. From then on the pool holds only zeros and numbers that some sequence computed.
# The kernel of 10.6 does not read what it hides, so even NaN could lie there.
# ### END SOLUTION
# %% [markdown] key="attention_why" lang="zh" src="c7d95915"
# ### BEGIN SOLUTION
# 这种写法把块表里的块全读出来，连补齐的也读，再用 `-inf` 遮住 query 不该看的。
# 被遮住的 key 权重正好是 0，10,000 乘以 0 不会加上任何东西。NaN 却不行：0 乘 NaN 还是 NaN。
# 所以 nano 的块池一开始就填零，而不是那段内存里原有的内容；此后里面放的都是某条序列算出来的数。
# 10.6 的 kernel 不读它遮住的内容，那里即使是 NaN 也没关系。
# ### END SOLUTION

# %% [markdown] key="kernel_task" lang="en"
# ## 10.6 The kernel's loop
#
# On a GPU, nano's decodes run this kernel instead of 10.5. It is a part of **your engine** too.
# One program computes one sequence and one KV head: `group` queries, which share the head, over all tokens of the sequence.
#
# The beginning and the end of the kernel are given. In between, you write the loop over tiles of `TILE` positions: an online softmax as in 10.3, which finds its keys as in 10.2.
#
# - The loop begins at the first position that the query sees and ends at `length`. The query stands at `length - 1`; `window` is 0 where there is none.
# - `best`, `total` and `summed` are carried from tile to tile.
# - `block_tables` points to the first entry of the first row; the row of sequence `seq` begins `seq * table_stride` entries further on. In the cache, seen as rows of `k_dim` numbers, slot s and head h have row `s * heads + h`.
# - `GROUP`, `K_DIM` and `V_DIM` are sizes rounded up to powers of two, as Triton wants them, so loads of K and V mask the surplus: `dk < k_dim`, `dv < v_dim`.
# - `softcap` is 0.0 where there is none. Triton has no tanh: for x >= 0 it is (1 - e^(-2x)) / (1 + e^(-2x)).
# - Products of tiles: `tl.dot(a, b, input_precision="ieee")`, and `tl.trans(k)` transposes a tile.
#
# Without a GPU the check interprets your kernel, which takes some seconds.
# NaN stands in every place without a token. A kernel that reads or writes outside of its tensors is stopped.
# %% [markdown] key="kernel_task" lang="zh" src="c7834fb1"
# ## 10.6 kernel 的循环
#
# 在 GPU 上，nano 解码时运行的是这个 kernel，而不是 10.5：它也是**你的引擎**的一个部件。
# 一个程序负责一条序列的一个 KV 头：共用这个头的 `group` 个 query，看这条序列的全部 token。
#
# 开头和结尾已经写好。中间的循环由你来写，每次处理 `TILE` 个位置：它是 10.3 那样的在线 softmax，按 10.2 的方法找到 key。
#
# - 循环从 query 能看到的第一个位置开始，到 `length` 为止。query 在位置 `length - 1`；没有窗口时 `window` 是 0。
# - `best`、`total`、`summed` 从一个 tile 带到下一个。
# - `block_tables` 指向一串数：序列 `seq` 的那一行，从第 `seq * table_stride` 个数开始。把缓存看成每行 `k_dim` 个数，槽位 s、头 h 就是第 `s * heads + h` 行。
# - `GROUP`、`K_DIM`、`V_DIM` 按 Triton 的要求向上取整到 2 的幂，所以读 K 和 V 时要用掩码去掉多余的部分：`dk < k_dim`、`dv < v_dim`。
# - 没有 softcap 时 `softcap` 是 0.0。Triton 没有 tanh：x >= 0 时它等于 (1 - e^(-2x)) / (1 + e^(-2x))。
# - tile 之间的乘法是 `tl.dot(a, b, input_precision="ieee")`；`tl.trans(k)` 把一个 tile 转置。
#
# 没有 GPU 时，检查会解释执行你的 kernel，需要几秒钟。
# 没有 token 的位置一律是 NaN。kernel 一旦读写到给它的张量之外，就会被停下。

# %% key="kernel_stub" lang="en"
from minikv.course.lessons.l10.launch import prepare

if prepare() == "none":
    print(t("no_triton"))
else:
    import triton
    import triton.language as tl

    @triton.jit
    def paged_decode_kernel(
        query, k_cache, v_cache, block_tables, lengths, out, scale,
        window, softcap, table_stride, block_size, heads,
        group, k_dim, v_dim,
        GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, TILE: tl.constexpr,
    ):
        seq, head = tl.program_id(0), tl.program_id(1)
        length = tl.load(lengths + seq).to(tl.int32)
        rows, dk, dv = tl.arange(0, GROUP), tl.arange(0, K_DIM), tl.arange(0, V_DIM)
        first_row = (seq * heads + head) * group  # of query seen as [B * Hq, Dk]
        real = (rows < group)[:, None]
        q = tl.load(query + (first_row + rows)[:, None] * k_dim + dk, mask=real & (dk < k_dim), other=0.0)

        best = tl.full([GROUP], -float("inf"), tl.float32)  # the largest logit so far
        total = tl.zeros([GROUP], tl.float32)  # the sum of exp(logit - best)
        summed = tl.zeros([GROUP, V_DIM], tl.float32)  # the same sum, each term times its value
        ### BEGIN SOLUTION
        first = tl.where(window > 0, tl.maximum(length - window, 0), 0)
        for start in range(first, length, TILE):
            at = start + tl.arange(0, TILE)  # positions of this tile: [TILE]
            seen = at < length
            block = tl.load(block_tables + seq * table_stride + at // block_size, mask=seen, other=0)
            slot = block.to(tl.int64) * block_size + at % block_size
            row = (slot * heads + head)[:, None]  # rows of the cache: [TILE, 1]
            k = tl.load(k_cache + row * k_dim + dk, mask=seen[:, None] & (dk < k_dim), other=0.0)  # [TILE, K_DIM]
            v = tl.load(v_cache + row * v_dim + dv, mask=seen[:, None] & (dv < v_dim), other=0.0)  # [TILE, V_DIM]

            logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # [GROUP, TILE]
            if softcap > 0:
                bent = tl.exp(-2 * tl.abs(logits) / softcap)
                logits = tl.where(logits < 0, -softcap, softcap) * (1 - bent) / (1 + bent)
            logits = tl.where(seen, logits, -float("inf"))

            new = tl.maximum(best, tl.max(logits, 1))  # [GROUP]
            shrink = tl.exp(best - new)
            weights = tl.exp(logits - new[:, None])
            total = total * shrink + tl.sum(weights, 1)
            summed = summed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            best = new
        ### END SOLUTION
        at_out = out + (first_row + rows)[:, None] * v_dim + dv
        tl.store(at_out, (summed / total[:, None]).to(out.dtype.element_ty), mask=real & (dv < v_dim))

    check("10.6", paged_decode_kernel)

# %% key="kernel_stub" lang="zh"
from minikv.course.lessons.l10.launch import prepare

if prepare() == "none":
    print(t("no_triton"))
else:
    import triton
    import triton.language as tl

    @triton.jit
    def paged_decode_kernel(
        query, k_cache, v_cache, block_tables, lengths, out, scale,
        window, softcap, table_stride, block_size, heads,
        group, k_dim, v_dim,
        GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, TILE: tl.constexpr,
    ):
        seq, head = tl.program_id(0), tl.program_id(1)
        length = tl.load(lengths + seq).to(tl.int32)
        rows, dk, dv = tl.arange(0, GROUP), tl.arange(0, K_DIM), tl.arange(0, V_DIM)
        first_row = (seq * heads + head) * group  # 把 query 看作 [B * Hq, Dk] 时的行号
        real = (rows < group)[:, None]
        q = tl.load(query + (first_row + rows)[:, None] * k_dim + dk, mask=real & (dk < k_dim), other=0.0)

        best = tl.full([GROUP], -float("inf"), tl.float32)  # 目前最大的 logit
        total = tl.zeros([GROUP], tl.float32)  # exp(logit - best) 之和
        summed = tl.zeros([GROUP, V_DIM], tl.float32)  # 同样的和，每项再乘以自己的 value
        ### BEGIN SOLUTION
        first = tl.where(window > 0, tl.maximum(length - window, 0), 0)
        for start in range(first, length, TILE):
            at = start + tl.arange(0, TILE)  # 这个 tile 的位置：[TILE]
            seen = at < length
            block = tl.load(block_tables + seq * table_stride + at // block_size, mask=seen, other=0)
            slot = block.to(tl.int64) * block_size + at % block_size
            row = (slot * heads + head)[:, None]  # 在缓存里的行号：[TILE, 1]
            k = tl.load(k_cache + row * k_dim + dk, mask=seen[:, None] & (dk < k_dim), other=0.0)  # [TILE, K_DIM]
            v = tl.load(v_cache + row * v_dim + dv, mask=seen[:, None] & (dv < v_dim), other=0.0)  # [TILE, V_DIM]

            logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # [GROUP, TILE]
            if softcap > 0:
                bent = tl.exp(-2 * tl.abs(logits) / softcap)
                logits = tl.where(logits < 0, -softcap, softcap) * (1 - bent) / (1 + bent)
            logits = tl.where(seen, logits, -float("inf"))

            new = tl.maximum(best, tl.max(logits, 1))  # [GROUP]
            shrink = tl.exp(best - new)
            weights = tl.exp(logits - new[:, None])
            total = total * shrink + tl.sum(weights, 1)
            summed = summed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            best = new
        ### END SOLUTION
        at_out = out + (first_row + rows)[:, None] * v_dim + dv
        tl.store(at_out, (summed / total[:, None]).to(out.dtype.element_ty), mask=real & (dv < v_dim))

    check("10.6", paged_decode_kernel)

