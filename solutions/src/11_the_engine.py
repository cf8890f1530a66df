# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="admit_task" lang="en"
# ## 11.1 Who is let in
#
# Requests wait, the first in the queue first. Of each you know `(tokens, hits, idle)`:
#
# - `tokens`: the tokens of its prompt
# - `hits`: how many blocks of it the prefix cache has, all full
# - `idle`: how many of those nobody holds. They are among the free blocks, and leave them if they are taken as hits
#
# There are `seats` for more sequences, `budget` tokens left in this step, and `free` blocks, of which the running sequences will need `owed`: for the tokens that they have, and for one more each.
#
# The first is let in if there is a seat, at least one token of budget, and blocks for its whole prompt, hits aside, without touching what is owed.
# It computes in this step what is not cached, as far as the budget goes.
# From then on it is a running sequence, and is owed blocks for its prompt and one more token.
# Then the next is looked at. Nobody passes: at the first that has to wait, you are done.
#
# Return how many tokens each of the admitted computes in this step, in order. No two of the prompts share a block.
# %% [markdown] key="admit_task" lang="zh" src="6fdd1004"
# ## 11.1 放谁进来
#
# 请求在排队，最先来的在最前面。每个请求给出 `(tokens, hits, idle)`：
#
# - `tokens`：提示词的 token 数
# - `hits`：前缀缓存里有它的几个块，都是满块
# - `idle`：其中几个没有序列持有。它们算在空闲块里，一旦当作命中取走，空闲块就少了
#
# 还有 `seats` 个席位，这一步还剩 `budget` 个 token 的预算，空闲块有 `free` 个，其中 `owed` 个是运行中的序列还需要的：放它们已有的 token，以及各自的下一个。
#
# 排在第一的要进来，须有席位，预算至少剩一个 token，并且不动用 `owed`，除命中的块之外，剩下的放得下整个提示词。
# 它在这一步计算还没有缓存的部分，预算够算多少就算多少。
# 从此它就是运行中的序列，要为它留足放提示词再加一个 token 的块。
# 接着看下一个。谁也不能越过：遇到第一个还得等的，就此结束。
#
# 按次序返回每个放进来的请求在这一步计算多少个 token。各个提示词之间没有共享的块。

# %% key="admit_stub"
def admit(
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


check("11.1", admit)

# %% [markdown] key="admit_why" lang="en"
# ### BEGIN SOLUTION
# The blocks of an admitted request are not taken off `free` here but added to `owed`: what counts is the difference of the two.
# In the package this is `Planner._admit`; it searches the prefix cache anew for each request, because the one before may have evicted something.
# ### END SOLUTION
# %% [markdown] key="admit_why" lang="zh" src="ad640bca"
# ### BEGIN SOLUTION
# 放进来的请求要用的块，这里没有从 `free` 里减，而是加到 `owed` 上：起作用的只是两者之差。
# 在本包里这就是 `Planner._admit`；它为每个请求重新查一遍前缀缓存，因为前一个可能已经淘汰了什么。
# ### END SOLUTION

# %% [markdown] key="chunks_task" lang="en"
# ## 11.2 Sharing out a step
#
# The running sequences, the oldest first: each has `tokens[i]` tokens, of which `computed[i]` are in the cache.
# A sequence that lacks just one (all that decode, and a prefill before its last token) gets it in any case; the budget is always large enough for that.
# What is left of `budget` goes to the other prefills: the oldest takes as much as it can use, then the next.
#
# Return for each sequence the positions that this step computes, as `(start, end)`: from `start` up to, not including, `end`. They are equal if it gets nothing.
# %% [markdown] key="chunks_task" lang="zh" src="4191a943"
# ## 11.2 一步的预算怎么分
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


check("11.2", chunks)

# %% [markdown] key="victim_task" lang="en"
# ## 11.3 Whom to preempt
#
# The sequence number `asker` needs blocks: `asked` must be free, and only `free` are.
# All running sequences have a block table in `tables`, the oldest sequence first, and `computed[i]` tokens in the cache.
# `ref_counts[b]` says how many hold block `b`.
#
# Whom do you preempt? Only a sequence younger than `asker` may be taken.
# Preempting it frees the blocks that only it holds, and it *loses* its computed tokens, except those in the shared blocks at the front of its table: they stay in the cache, and are found again.
#
# - Of those after whom enough blocks are free, take the one that loses the fewest tokens.
# - If there is no such one, take the one that frees most: the scheduler will ask again.
# - Of equals take the youngest.
#
# Return its number, or `None` where nobody is younger.
# %% [markdown] key="victim_task" lang="zh" src="102bf4dc"
# ## 11.3 抢占谁
#
# 第 `asker` 条序列缺块：总共要有 `asked` 个空闲块，而现在只有 `free` 个。
# 所有运行中的序列，块表在 `tables` 里，最老的在前，缓存里各有 `computed[i]` 个 token。
# `ref_counts[b]` 是块 `b` 的持有者数。
#
# 抢占谁？只能是比 `asker` 年轻的。
# 抢占一条序列，会空出只有它持有的块；它已计算的 token 就**损失**了，只有块表开头那些共享块里的除外：它们还在缓存里，回来时能找到。
#
# - 抢占之后空闲块够用的里面，选损失 token 最少的。
# - 如果没有这样的，选释放块最多的：调度器会再问一次。
# - 相同时选最年轻的。
#
# 返回它的序号；没有更年轻的，返回 `None`。

# %% key="victim_stub"
def choose_victim(
    tables: list[list[int]],
    computed: list[int],
    ref_counts: dict[int, int],
    asker: int,
    asked: int,
    free: int,
    block_size: int,
) -> int | None:
    ### BEGIN SOLUTION
    best = None
    best_rank = None
    for number in range(asker + 1, len(tables)):
        table = tables[number]
        freed = sum(ref_counts[block] == 1 for block in table)
        shared = 0
        while shared < len(table) and ref_counts[table[shared]] > 1:
            shared += 1
        lost = max(0, computed[number] - shared * block_size)
        if free + freed >= asked:
            rank = (0, lost, -number)
        else:
            rank = (1, -freed, -number)
        if best is None or rank < best_rank:
            best, best_rank = number, rank
    return best
    ### END SOLUTION


check("11.3", choose_victim)

# %% [markdown] key="pack_task" lang="en"
# ## 11.4 The arrays of a mixed batch
#
# A step computes the positions `starts[i]` to `ends[i] - 1` of sequence `i`: a decode, a chunk, a prompt behind a prefix hit. The sequence has `tokens[i]` tokens so far, and its blocks are in `tables[i]`.
# All sequences are packed into one row, one behind the other.
#
# Return a dict of lists:
#
# - `positions`: of each token in the row, its position in its sequence
# - `slots`: of each token in the row, the slot where its K and V are stored
# - `query_starts`: where each sequence begins in the row, and the total at the end
# - `lengths`: of each sequence, how many tokens its last query sees
# - `sampled_rows`: the places in the row whose logits give a new token: the last one of each sequence that has come to the end of its tokens
# %% [markdown] key="pack_task" lang="zh" src="0e51e9d4"
# ## 11.4 混合 batch 的数组
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
def pack(
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


check("11.4", pack)

# %% [markdown] key="step_task" lang="en"
# ## 11.5 One step, whatever happens
#
# `arrivals` are the new requests of this step, each a name with its tokens. Compute them all in one forward.
# `shelf` is a small pool of blocks:
#
# - `shelf.block_size`
# - `shelf.find(tokens)`: the full blocks of these tokens that can be found now, from the beginning on; all of them, if all are there
# - `shelf.take(name, tokens, hits)`: `name` holds the blocks `hits` from now on, and new ones for the rest. There are always enough
# - `shelf.publish(name)`: its full blocks can be found
# - `shelf.free(name)`: it gives its blocks back; `ValueError` if it holds none
#
# `forward(work)` computes; `work` is a list of `(name, start, end)`, in the order of `arrivals`: the positions from `start` up to, not including, `end`.
# It returns the names of those who went away meanwhile. Several paths report them, so a name may stand there twice.
# Or it raises. Then nothing was written: every request of the step gives its blocks back, and the exception goes on.
#
# What a forward has written can be found; what none has written cannot. That holds for the blocks of those who went away, too.
# And of every prompt at least one token has to be computed; whole blocks are taken from the cache, and none that others hold is written.
# %% [markdown] key="step_task" lang="zh" src="43510c70"
# ## 11.5 一步，出什么事都要收好尾
#
# `arrivals` 是这一步新来的请求，每个名字对应它的 token。用一次前向计算把它们全部算完。
# `shelf` 是一个小块池：
#
# - `shelf.block_size`：块大小
# - `shelf.find(tokens)`：从开头起，这些 token 现在能找到哪些满块；都在的话，就全部给出
# - `shelf.take(name, tokens, hits)`：`name` 从此持有 `hits` 这些块，其余部分取新块。块总是够用
# - `shelf.publish(name)`：它的满块从此能被找到
# - `shelf.free(name)`：归还它的块；它没有块时抛出 `ValueError`
#
# `forward(work)` 负责计算；`work` 是 `(name, start, end)` 的列表，次序同 `arrivals`，表示从 `start` 到 `end`（不含 `end`）的位置。
# 它返回这期间离开了的请求的名字。报告来自几条不同的路径，所以同一个名字可能出现两次。
# 它也可能抛出异常。那就什么也没有写入：这一步的每个请求都要归还块，异常继续往上抛。
#
# 前向计算写过的，都要能找到；没有写过的，不能找到。已经离开的请求，它的块也是如此。
# 另外，每个提示词至少有一个 token 要计算；缓存按整块取用，别人也持有的块不能写。

# %% key="step_stub"
def run_step(shelf, arrivals: dict[str, list[int]], forward) -> None:
    ### BEGIN SOLUTION
    work = []
    for name, tokens in arrivals.items():
        most = (len(tokens) - 1) // shelf.block_size
        hits = shelf.find(tokens)[:most]
        shelf.take(name, tokens, hits)
        work.append((name, len(hits) * shelf.block_size, len(tokens)))
    try:
        gone = forward(work)
    except BaseException:
        for name in arrivals:
            shelf.free(name)
        raise
    for name in arrivals:
        shelf.publish(name)
    for name in set(gone):
        shelf.free(name)
    ### END SOLUTION


check("11.5", run_step)

# %% [markdown] key="step_why" lang="en"
# ### BEGIN SOLUTION
# `find` and `take` stand next to each other, for each request anew: a search for all of them beforehand would be out of date with the first `take`.
# `except BaseException`, because Ctrl-C in the middle of a forward must not lose a block either.
# ### END SOLUTION
# %% [markdown] key="step_why" lang="zh" src="a3305c77"
# ### BEGIN SOLUTION
# `find` 和 `take` 紧挨着，每个请求各查各的：如果事先统一查好，第一次 `take` 之后结果就过期了。
# 用 `except BaseException`，是因为前向计算中途按下 Ctrl-C，也不能丢块。
# ### END SOLUTION
