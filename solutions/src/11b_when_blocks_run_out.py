# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="victim_task" lang="en"
# ## 11b.1 The cheapest victim
#
# The sequence number `asker` needs blocks: `asked` must be free, and only `free` are.
# All running sequences have a block table in `tables`, the oldest sequence first, and `computed[i]` tokens in the cache.
# `ref_counts[b]` says how many sequences hold block `b`.
#
# Which one do you preempt? You may take only a sequence that is younger than `asker`.
# Preempting it frees the blocks that no other sequence holds. It *loses* its computed tokens, except those in the shared blocks at the front of its table: these stay in the cache and are found again.
#
# - If preempting one of them leaves enough blocks free, take the one that loses the fewest tokens.
# - If none is enough, take the one that frees most. The scheduler will ask again.
# - If two are equal, take the younger one.
#
# Return its number, or `None` where no sequence is younger.
# %% [markdown] key="victim_task" lang="zh" src="2d1ca082"
# ## 11b.1 代价最小的序列
#
# 第 `asker` 条序列缺块：总共要有 `asked` 个空闲块，而现在只有 `free` 个。
# 所有运行中的序列，块表在 `tables` 里，最老的在前，缓存里各有 `computed[i]` 个 token。
# `ref_counts[b]` 是块 `b` 的持有者数。
#
# 抢占哪一条？只能是比 `asker` 年轻的。
# 抢占一条序列，会空出只有它持有的块；它已计算的 token 就**损失**了，只有块表开头那些共享块里的除外：它们还在缓存里，回来时能找到。
#
# - 抢占之后空闲块够用的里面，选损失 token 最少的。
# - 如果没有这样的，选释放块最多的：调度器会再问一次。
# - 相同时选最年轻的。
#
# 返回它的序号；没有更年轻的，返回 `None`。

# %% key="victim_stub"
def cheapest_victim(
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


check("11b.1", cheapest_victim)

# %% [markdown] key="method_victim_task" lang="en"
# ## 11b.2 The victim, in nano
#
# `choose_victim(self)` is a method of `minikv.nano`'s scheduler. It is called when a running sequence needs a block and none is free.
# `self.running` are the running sequences, in the order in which they were admitted; `self.waiting` is the queue.
#
# Return the sequence that gives up its blocks: the one that was admitted last. `preempt` then takes it out and frees its blocks.
# It may be the sequence that asks. Then it waits until enough blocks are free again.
# %% [markdown] key="method_victim_task" lang="zh" src="f9a3bf00"
# ## 11b.2 抢占哪一条（nano）
#
# `choose_victim(self)` 是 `minikv.nano` 调度器的方法：一条正在运行的序列要块，而空闲块一个也没有时，就会调用它。
# `self.running` 是正在运行的序列，按放进来的次序排列；`self.waiting` 是等待队列。
#
# 返回要让出块的那条：最后放进来的。之后由 `preempt` 把它移出并释放它的块。
# 选中的可能就是要块的那条；这时它回去等待，直到空闲块又够用为止。

# %% key="method_victim_stub"
def choose_victim(self):
    ### BEGIN SOLUTION
    return self.running[-1]
    ### END SOLUTION


check("11b.2", choose_victim)

# %% [markdown] key="step_task" lang="en"
# ## 11b.3 One step, whatever happens
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
# It returns the names of the requests that went away meanwhile. Several paths report them, so a name may stand there twice.
# Or it raises. Then nothing was written: every request of the step gives its blocks back, and the exception goes on.
#
# Afterwards all that the forward has written can be found, and nothing that wasn't written. That holds for the blocks of requests that went away, too.
# At least one token of every prompt has to be computed. Take whole blocks from the cache, and never write into a block that another request holds.
# %% [markdown] key="step_task" lang="zh" src="3f42e3d3"
# ## 11b.3 一步，出什么事都要收好尾
#
# `arrivals` 是这一步新来的请求，每个名字对应它的 token。用一次前向计算把它们全部算完。
# `shelf` 是一个小块池：
#
# - `shelf.block_size`：块大小
# - `shelf.find(tokens)`：从开头起，这些 token 现在能找到哪些满块；如果每个满块都在，就全部返回
# - `shelf.take(name, tokens, hits)`：`name` 从此持有 `hits` 这些块，其余部分取新块。块总是够用
# - `shelf.publish(name)`：它的满块从此能被找到
# - `shelf.free(name)`：归还它的块；它没有块时抛出 `ValueError`
#
# `forward(work)` 负责计算；`work` 是 `(name, start, end)` 的列表，次序同 `arrivals`，表示从 `start` 到 `end`（不含 `end`）的位置。
# 它返回这期间离开了的请求的名字。报告来自几条不同的路径，所以同一个名字可能出现两次。
# 它也可能抛出异常。这时什么也没有写入：这一步的每个请求都要归还块，异常继续往上抛。
#
# 前向计算写过的，都要能找到；没有写过的，不能找到。已经离开的请求，它的块也是如此。
# 另外，每个提示词至少有一个 token 要计算；缓存按整块取用，别的请求也持有的块不能写。

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


check("11b.3", run_step)

# %% [markdown] key="step_why" lang="en"
# ### BEGIN SOLUTION
# `find` and `take` are called together, for one request at a time. A search for all requests beforehand would be out of date after the first `take`.
# `except BaseException`, because Ctrl-C in the middle of a forward must not lose a block either.
# ### END SOLUTION
# %% [markdown] key="step_why" lang="zh" src="91720e10"
# ### BEGIN SOLUTION
# `find` 和 `take` 紧挨着，每个请求各查各的：如果事先统一查好，第一次 `take` 之后结果就过期了。
# 用 `except BaseException`，是因为前向计算中途按下 Ctrl-C，也不能丢块。
# ### END SOLUTION
