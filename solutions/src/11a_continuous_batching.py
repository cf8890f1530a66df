# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="admit_task" lang="en"
# ## 11a.1 Which requests are let in
#
# Requests wait in a queue, and you look at the first one first. For each you know `(tokens, hits, idle)`:
#
# - `tokens`: the tokens of its prompt
# - `hits`: how many blocks of it the prefix cache has, all full
# - `idle`: how many of those no sequence holds. They are among the free blocks, and leave them if they are taken as hits
#
# There are `seats` for more sequences, `budget` tokens left in this step, and `free` blocks, of which the running sequences will need `owed`: for the tokens that they have, and for one more each.
#
# You let a request in if there is a seat, at least one token of budget, and blocks for its whole prompt, hits aside, without touching what is owed.
# In this step it computes what is not cached, as far as the budget goes.
# From then on it's a running sequence, and you owe it blocks for its prompt and one more token.
# Then you look at the next one. No request overtakes another: at the first that has to wait, you are done.
#
# Return how many tokens each of the admitted computes in this step, in order. No two of the prompts share a block.
# %% [markdown] key="admit_task" lang="zh" src="f9c6a345"
# ## 11a.1 放哪些请求进来
#
# 请求在排队，最先来的在最前面。每个请求给出 `(tokens, hits, idle)`：
#
# - `tokens`：提示词的 token 数
# - `hits`：前缀缓存里有它的几个块，都是满块
# - `idle`：其中几个没有序列持有。它们算在空闲块里，一旦当作命中取走，空闲块就少了
#
# 还能再放 `seats` 条序列，这一步还剩 `budget` 个 token 的预算，空闲块有 `free` 个，其中 `owed` 个是运行中的序列还需要的：放它们已有的 token，以及各自的下一个。
#
# 满足三个条件，才放一个请求进来：还没有到并发上限；预算至少剩一个 token；不动用 `owed`，除命中的块之外，剩下的块放得下整个提示词。
# 它在这一步计算还没有缓存的部分，预算够算多少就算多少。
# 从此它就是运行中的序列，要为它留足放提示词再加一个 token 的块。
# 然后看下一个。任何请求都不能越过别的请求：遇到第一个还得等的，就此结束。
#
# 按次序返回每个放进来的请求在这一步计算多少个 token。各个提示词之间没有共享的块。

# %% key="admit_stub"
def admit_queue(
    waiting: list[tuple[int, int, int]], seats: int, budget: int, free: int, owed: int, block_size: int
) -> list[int]:
    ### BEGIN SOLUTION
    computed = []
    for tokens, hits, idle in waiting:
        need = -(-tokens // block_size) - hits
        if seats == 0 or budget == 0 or need > free - owed - idle:
            break
        chunk = min(tokens - hits * block_size, budget)
        computed.append(chunk)
        seats -= 1
        budget -= chunk
        free -= idle
        owed += -(-(tokens + 1) // block_size) - hits
    return computed
    ### END SOLUTION


check("11a.1", admit_queue)

# %% [markdown] key="admit_why" lang="en"
# ### BEGIN SOLUTION
# The blocks of an admitted request are added to `owed` here, not subtracted from `free`, because only the difference of the two counts.
# In the package this is `Scheduler._admit`; it searches the prefix cache again for each request, because the one before may have evicted something.
# ### END SOLUTION
# %% [markdown] key="admit_why" lang="zh" src="b05ccc16"
# ### BEGIN SOLUTION
# 放进来的请求要用的块，这里没有从 `free` 里减，而是加到 `owed` 上：起作用的只是两者之差。
# 在本包里这就是 `Scheduler._admit`；它为每个请求重新查一遍前缀缓存，因为前一个可能已经淘汰了什么。
# ### END SOLUTION

# %% [markdown] key="chunks_task" lang="en"
# ## 11a.2 Sharing out a step
#
# The running sequences, the oldest first: each has `tokens[i]` tokens, of which `computed[i]` are in the cache.
# A sequence that lacks just one (all that decode, and a prefill before its last token) gets it in any case; the budget is always large enough for that.
# The rest of `budget` goes to the other prefills: the oldest takes as much as it can use, then the next one.
#
# Return for each sequence the positions that this step computes, as `(start, end)`: from `start` up to, not including, `end`. They are equal if it gets nothing.
# %% [markdown] key="chunks_task" lang="zh" src="4a1f1f8c"
# ## 11a.2 一步的预算怎么分
#
# 运行中的序列，最老的在前：每条有 `tokens[i]` 个 token，其中 `computed[i]` 个已在缓存里。
# 只缺一个 token 的（所有解码的序列，以及只差最后一个 token 的预填充）无论如何都能得到它，预算总是够的。
# `budget` 剩下的给其余的预填充：最老的先取，能用多少取多少，然后是下一条。
#
# 为每条序列返回这一步计算的位置 `(start, end)`：从 `start` 到 `end`，不含 `end`。什么也没得到时，两者相等。

# %% key="chunks_stub"
def chunks(tokens: list[int], computed: list[int], budget: int) -> list[tuple[int, int]]:
    ### BEGIN SOLUTION
    missing = [have - done for have, done in zip(tokens, computed)]
    kept_back = missing.count(1)
    ranges = []
    for start, count in zip(computed, missing):
        if count == 1:
            kept_back -= 1
        taken = min(count, budget - kept_back)
        ranges.append((start, start + taken))
        budget -= taken
    return ranges
    ### END SOLUTION


check("11a.2", chunks)

# %% [markdown] key="pack_task" lang="en"
# ## 11a.3 The arrays of a mixed batch
#
# A step computes the positions `starts[i]` to `ends[i] - 1` of sequence `i`: a decode, a chunk, a prompt after a prefix hit. The sequence has `tokens[i]` tokens so far, and its blocks are in `tables[i]`.
# All sequences are packed into one row, one after the other.
#
# Return a dict of lists:
#
# - `positions`: of each token in the row, its position in its sequence
# - `slots`: of each token in the row, the slot where its K and V are stored
# - `query_starts`: where each sequence begins in the row, and the total at the end
# - `lengths`: of each sequence, how many tokens its last query sees
# - `sampled_rows`: the places in the row whose logits give a new token: the last one of each sequence that has come to the end of its tokens
# %% [markdown] key="pack_task" lang="zh" src="d68a2fbf"
# ## 11a.3 混合 batch 的数组
#
# 一步计算第 `i` 条序列的位置 `starts[i]` 到 `ends[i] - 1`：可能是一次解码、一段预填充，也可能是前缀命中之后的提示词。这条序列目前有 `tokens[i]` 个 token，它的块在 `tables[i]` 里。
# 所有序列首尾相接，排成一行。
#
# 返回一个字典，值都是列表：
#
# - `positions`：这一行里每个 token 在自己序列中的位置
# - `slots`：这一行里每个 token 的 K 和 V 存到哪个槽位
# - `query_starts`：每条序列从这一行的哪里开始，最后再加总数
# - `lengths`：每条序列的最后一个 query 能看到多少个 token
# - `sampled_rows`：这一行里，用哪些位置的 logits 得到新 token：凡是已经算到自己末尾的序列，取它的最后一个

# %% key="pack_stub"
def batch_arrays(
    tables: list[list[int]], starts: list[int], ends: list[int], tokens: list[int], block_size: int
) -> dict[str, list[int]]:
    ### BEGIN SOLUTION
    positions, slots, query_starts, sampled_rows = [], [], [0], []
    for table, start, end, have in zip(tables, starts, ends, tokens):
        for position in range(start, end):
            positions.append(position)
            slots.append(table[position // block_size] * block_size + position % block_size)
        query_starts.append(len(positions))
        if end == have:
            sampled_rows.append(len(positions) - 1)
    return {
        "positions": positions,
        "slots": slots,
        "query_starts": query_starts,
        "lengths": list(ends),
        "sampled_rows": sampled_rows,
    }
    ### END SOLUTION


check("11a.3", batch_arrays)

# %% [markdown] key="method_admit_task" lang="en"
# ## 11a.4 One sequence, in nano
#
# From here on you write methods of `minikv.nano`'s scheduler, as functions with `self` in front. They are parts of [your engine](../../notebooks/en/11c_your_engine.ipynb).
#
# `admit(self, seq)` allocates the blocks of a waiting sequence, and says whether it could. You have:
#
# - `self.running`: the running sequences
# - `self.blocks.allocate(seq, keep_free=n)`: looks into the prefix cache, gives `seq` blocks for all its tokens and leaves `n` blocks free. Returns `False`, with nothing changed, where blocks are short
#
# One block for each running sequence must stay free, or what is let in now would be preempted in the next step.
# Return `True` where `seq` has its blocks, `False` where it has to wait. Leave it in the queue: `schedule` moves it to `running`.
# %% [markdown] key="method_admit_task" lang="zh" src="54788f32"
# ## 11a.4 放一条序列进来（nano）
#
# 从这里开始，你写的是 `minikv.nano` 调度器的方法，写成第一个参数为 `self` 的函数。它们是[你自己的引擎](../../notebooks/zh/11c_your_engine.ipynb)的部件。
#
# `admit(self, seq)` 为一条等待中的序列分配块，并说明是否成功。可用的有：
#
# - `self.running`：正在运行的序列
# - `self.blocks.allocate(seq, keep_free=n)`：查前缀缓存，给 `seq` 放得下全部 token 的块，同时留下 `n` 个空闲块。块不够时返回 `False`，什么也不改
#
# 要为每条正在运行的序列留一个空闲块，否则现在放进来的，下一步就会被抢占。
# `seq` 拿到了块就返回 `True`，还得等就返回 `False`。不用把它从队列移到 `running`，`schedule` 会移。

# %% key="method_admit_stub"
def admit(self, seq) -> bool:
    ### BEGIN SOLUTION
    return self.blocks.allocate(seq, keep_free=len(self.running))
    ### END SOLUTION


check("11a.4", admit)

# %% [markdown] key="method_pack_task" lang="en"
# ## 11a.5 Its share of a step, in nano
#
# `pack(self, step, seq, budget)` adds to the list `step` which tokens of `seq` are computed next, as `(seq, start, end)`: from `start` up to, not including, `end`.
#
# - `seq.tokens`: all its tokens, prompt and answer
# - `seq.num_computed`: how many of them are computed already
# - `budget`: the most tokens that it may compute in this step
#
# In decode that is one token, in prefill the rest of the prompt, or a chunk of it where the budget is smaller.
# Return how many tokens you have added: `schedule` subtracts them from the budget.
# %% [markdown] key="method_pack_task" lang="zh" src="e6c3576c"
# ## 11a.5 一条序列在这一步算哪些 token（nano）
#
# `pack(self, step, seq, budget)` 往列表 `step` 里追加一项 `(seq, start, end)`，说明接下来算 `seq` 的哪些 token：从 `start` 到 `end`，不含 `end`。
#
# - `seq.tokens`：它的全部 token，包括提示词和回答
# - `seq.num_computed`：其中已经算过多少个
# - `budget`：最多给它多少个 token
#
# 解码时就是一个 token；预填充时是提示词余下的部分，预算不够就只取一段。
# 返回一共多少个 token：`schedule` 会从预算里减去。

# %% key="method_pack_stub"
def pack(self, step: list, seq, budget: int) -> int:
    ### BEGIN SOLUTION
    start = seq.num_computed
    end = min(len(seq.tokens), start + budget)
    step.append((seq, start, end))
    return end - start
    ### END SOLUTION


check("11a.5", pack)

# %% [markdown] key="longest_task" lang="en"
# ## 11a.6 Where a step spends its time
#
# A profile has one entry for each call of an operation: `(name, us, flops, num_bytes)`, with its time in microseconds.
# Which three operations take longest? Add up all calls of a name, and return a list of three tuples, the longest first:
#
# - the name of the operation;
# - `True` if it is memory-bound: moving its bytes takes longer than its arithmetic;
# - its time as a multiple of its floor. The floor is the longer of the two: what the arithmetic takes at `flops_per_us`, and what the bytes take at `bytes_per_us` ([lesson 04](../../notebooks/en/04_the_roofline.ipynb)).
# %% [markdown] key="longest_task" lang="zh" src="963cd54a"
# ## 11a.6 一步的时间花在哪里
#
# 一份性能分析里，每次调用一个运算就有一项：`(name, us, flops, num_bytes)`，时间以微秒计。
# 哪三个运算最费时间？先把同名的调用加在一起，再返回三个元组的列表，最久的在前：
#
# - 运算的名字；
# - 如果是访存受限，即搬字节比做计算更久，就是 `True`；
# - 用时是下限的多少倍。下限取两者中较长的：以 `flops_per_us` 做完计算的时间，以 `bytes_per_us` 搬完字节的时间（[第 04 课](../../notebooks/zh/04_the_roofline.ipynb)）。

# %% key="longest_stub"
def longest_operations(calls, flops_per_us, bytes_per_us) -> list:
    ### BEGIN SOLUTION
    totals = {}
    for name, *numbers in calls:
        totals[name] = [old + new for old, new in zip(totals.get(name, (0, 0, 0)), numbers)]
    found = []
    for name in sorted(totals, key=lambda name: totals[name][0], reverse=True)[:3]:
        us, flops, num_bytes = totals[name]
        arithmetic, memory = flops / flops_per_us, num_bytes / bytes_per_us
        found.append((name, memory > arithmetic, us / max(arithmetic, memory)))
    return found
    ### END SOLUTION


check("11a.6", longest_operations)

# %% [markdown] key="longest_here" lang="en"
# Now your function reads the two steps of the lesson, profiled on this machine. (The table is empty until it is written.)
# %% [markdown] key="longest_here" lang="zh" src="abf06d1b"
# 现在用你的函数来读本课的那两步，在这台机器上实测。（还没有写好时，表是空的。）

# %% key="longest_table" tags="timing" lang="en"
from minikv.course import Table
from minikv.course.lessons.l11a.profiled import longest_here

Table(
    ["step", "operation", "memory-bound", "times its floor"],
    longest_here(longest_operations, ("prefill", "decode")),
)
# %% key="longest_table" tags="timing" lang="zh"
from minikv.course import Table
from minikv.course.lessons.l11a.profiled import longest_here

Table(
    ["步", "运算", "访存受限", "下限的倍数"],
    longest_here(longest_operations, ("预填充", "解码")),
)

# %% [markdown] key="longest_why" lang="en"
# ### BEGIN SOLUTION
# Both steps spend most of their time in `mm`, the products with the weights. In the prefill they are compute-bound, in the decode step memory-bound: the same weights, for one token instead of 256.
# A multiple far above 1 in a tiny operation is the cost of a call. A multiple below 1 means that the bytes came from a cache.
# ### END SOLUTION
# %% [markdown] key="longest_why" lang="zh" src="8693af32"
# ### BEGIN SOLUTION
# 两步的时间大多花在 `mm` 上，也就是与权重的矩阵乘法。它在预填充里是计算受限，在解码里是访存受限：权重一样，只是 256 个 token 换成了 1 个。
# 很小的运算如果倍数远大于 1，那是调用本身的开销；倍数小于 1，说明字节来自缓存。
# ### END SOLUTION
