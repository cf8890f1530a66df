# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="lru_task" lang="en"
# ## 17.1 LRU, all sizes at once
#
# `requests` is a list of prompts that come one after the other. Each prompt is a list of block numbers, with no block twice. A cache holds some number of blocks, its capacity. Each request
#
# - first **finds** blocks of its prompt, from the first on, up to the first that is not in the cache. The blocks after that one don't count, even if they are there.
# - then uses all blocks of its prompt, from the first to the last. Missing blocks come in. Whenever the cache holds more than its capacity, the least recently used block is evicted.
#
# Return how many blocks were found altogether, for each of `capacities` (ascending), as a list.
#
# You may simulate each capacity by itself. But with one list of all blocks, the most recently used in front, a single pass answers for all capacities.
# %% [markdown] key="lru_task" lang="zh" src="65a6a21a"
# ## 17.1 LRU：所有大小一次算完
#
# `requests` 是依次到来的提示词，每个是它所含的块的列表（块用编号表示，一个提示词里没有重复的块）。缓存最多装若干个块，即容量。对每个请求：
#
# - 先从提示词的第一个块起逐个**查找**，到第一个不在缓存里的块为止。它后面的块，即使在缓存里也不算。
# - 然后从第一个到最后一个，使用提示词的所有块，缺的放进来。一旦超过容量，就淘汰最久以前用过的块。
#
# 对 `capacities`（升序）中的每个容量，返回一共找到多少个块，放在列表里。
#
# 可以对每个容量各模拟一遍。不过，用一个列表记下所有的块，最近用过的在最前，走一遍就能回答所有的容量。

# %% key="lru_stub" lang="en"
def lru_hits(requests: list[list[int]], capacities: list[int]) -> list[int]:
    ### BEGIN SOLUTION
    stack, needed = [], []  # needed: for each block found, the smallest capacity that finds it
    for request in requests:
        deepest = 0
        for block in request:
            if block not in stack:
                break
            deepest = max(deepest, stack.index(block) + 1)
            needed.append(deepest)
        for block in request:
            if block in stack:
                stack.remove(block)
            stack.insert(0, block)
    return [sum(need <= capacity for need in needed) for capacity in capacities]
    ### END SOLUTION


check("17.1", lru_hits)

# %% key="lru_stub" lang="zh"
def lru_hits(requests: list[list[int]], capacities: list[int]) -> list[int]:
    ### BEGIN SOLUTION
    stack, needed = [], []  # needed：每个命中的块，能找到它的最小容量
    for request in requests:
        deepest = 0
        for block in request:
            if block not in stack:
                break
            deepest = max(deepest, stack.index(block) + 1)
            needed.append(deepest)
        for block in request:
            if block in stack:
                stack.remove(block)
            stack.insert(0, block)
    return [sum(need <= capacity for need in needed) for capacity in capacities]
    ### END SOLUTION


check("17.1", lru_hits)

# %% [markdown] key="lru_why" lang="en"
# ### BEGIN SOLUTION
# Searching through a list takes longer the more blocks there are. The package counts the same distances with a sort, for 300,000 uses in a fraction of a second (`minikv.simulate.stack_distance`).
#
# An engine uses the blocks of a prompt in the other order. When a sequence ends, its last block is freed first, so that it is evicted first. Then no block is missing before a block that is still there, and the same capacity finds more.
# ### END SOLUTION
# %% [markdown] key="lru_why" lang="zh" src="01025ea5"
# ### BEGIN SOLUTION
# 块越多，在列表里查找就越慢。本包用排序来数同样的距离，三十万次使用只要零点几秒（`minikv.simulate.stack_distance`）。
#
# 推理引擎使用块的次序与此相反：序列结束时，先释放最后一个块，让它先被淘汰。这样，还在的块前面就不会有空缺，同样的容量能找到更多。
# ### END SOLUTION

# %% [markdown] key="ttft_task" lang="en"
# ## 17.2 The time to first token of a fleet
#
# Each replica computes one prompt at a time, in the order of arrival. `arrivals[r]` are the times at which the requests of replica `r` arrive (ascending, in seconds), and `prefills[r]` how long each of their prefills takes.
# A prefill begins when its request has arrived and the prefill before it has ended. When it ends, the first token is there.
#
# Return p50, p90 and p99 of the time to first token, of all requests of the fleet, as a tuple.
# A percentile between two values is interpolated, as `numpy.percentile` does: of `n` sorted values, percentile `p` stands at place `p / 100 * (n - 1)`, counted from 0.
# %% [markdown] key="ttft_task" lang="zh" src="53c4bdc4"
# ## 17.2 一个集群的首 token 延迟
#
# 每个副本一次算一个提示词，按到来的次序。`arrivals[r]` 是副本 `r` 的请求到来的时刻（升序，单位秒），`prefills[r]` 是每个请求的预填充要多久。
# 请求到了，而且前一个算完了，预填充才开始；预填充结束时，第一个 token 就有了。
#
# 对整个集群的全体请求，求首 token 延迟的 p50、p90、p99，以元组返回。
# 分位数落在两个值之间时要插值，与 `numpy.percentile` 相同：`n` 个值排好序，分位数 `p` 在位置 `p / 100 * (n - 1)`，从 0 数起。

# %% key="ttft_stub"
def ttft_percentiles(
    arrivals: list[list[float]], prefills: list[list[float]]
) -> tuple[float, float, float]:
    ### BEGIN SOLUTION
    waits = []
    for comes, lasts in zip(arrivals, prefills):
        done = 0.0
        for arrival, seconds in zip(comes, lasts):
            done = max(done, arrival) + seconds
            waits.append(done - arrival)
    waits.sort()

    def percentile(p):
        place = p / 100 * (len(waits) - 1)
        low = int(place)
        high = min(low + 1, len(waits) - 1)
        return waits[low] + (waits[high] - waits[low]) * (place - low)

    return percentile(50), percentile(90), percentile(99)
    ### END SOLUTION


check("17.2", ttft_percentiles)

# %% [markdown] key="choose_task" lang="en"
# ## 17.3 The router
#
# A request arrives, with a prompt of `prompt` blocks. Of replica `r` you know
#
# - `cached[r]`: how many of these blocks are in its cache
# - `load[r]`: how many blocks it still has to compute, for all requests that were sent there
#
# Return the number of the replica that gets the request:
#
# 1. Leave out every replica with a load of more than `bound` times the mean load plus `prompt`.
# 2. Of the others, take the replica that has most of the prompt.
# 3. If several have equally much, take the one with the smallest load; if these are equal too, the one with the lowest number.
#
# The check asks about single moments of such a fleet. The cell below the check sends whole traces through the fleet and compares your router with two others. It should find more than round-robin, and its requests should wait less than with the least-loaded rule.
# %% [markdown] key="choose_task" lang="zh" src="cfa0263e"
# ## 17.3 路由器
#
# 来了一个请求，提示词有 `prompt` 个块。对副本 `r`，你知道：
#
# - `cached[r]`：这些块里，它已经有几个
# - `load[r]`：分给它的所有请求里，还有多少个块要计算
#
# 返回接收这个请求的副本编号：
#
# 1. 负载超过平均负载的 `bound` 倍再加 `prompt` 的副本，一律排除。
# 2. 其余的里面，取提示词命中最多的。
# 3. 相同时取负载最小的；还相同，取编号最小的。
#
# 检查只问这样一个集群在某个瞬间的选择。下面的单元格则让整批流量经过它，把你的路由器与另外两种作比较：命中要比轮流的多，等待要比选负载最小的短。

# %% key="choose_stub"
def choose(cached: list[int], load: list[int], prompt: int, bound: float) -> int:
    ### BEGIN SOLUTION
    limit = bound * sum(load) / len(load) + prompt
    fits = [r for r in range(len(load)) if load[r] <= limit]
    return min(fits, key=lambda r: (-cached[r], load[r], r))
    ### END SOLUTION


check("17.3", choose)

# %% key="choose_compare"
from minikv.course import Table
from minikv.course.lessons.l17.router import compare_routers

rows = []
for name, found in compare_routers(choose).items():
    hits, p99 = (t("compare_none"), "") if found is None else (f"{found[0]:.1%}", f"{found[1]:.1f}")
    rows.append((name, hits, p99))
head = [t("compare_router"), t("compare_hits"), t("compare_p99")]
Table(head, rows, right=head[1:])

# %% [markdown] key="choose_why" lang="en"
# ### BEGIN SOLUTION
# `fits` is never empty: the smallest load is not above the mean. In the package this is `PrefixAware` in `minikv.simulate.router`. Any object with a method `choose(prompt, replicas)` can be the `router=` of a `Fleet`.
# ### END SOLUTION
# %% [markdown] key="choose_why" lang="zh" src="6b311a6c"
# ### BEGIN SOLUTION
# `fits` 不会是空的：最小的负载不会超过平均值。在本包里，这就是 `minikv.simulate.router` 的 `PrefixAware`。任何有 `choose(prompt, replicas)` 方法的对象，都可以作 `Fleet` 的 `router=`。
# ### END SOLUTION

# %% [markdown] key="fewest_task" lang="en"
# ## 17.4 The cheapest fleet
#
# `ask(replicas)` simulates a fleet of that many replicas and returns the percentiles of its time to first token, `{"p50": ..., "p99": ...}` in seconds. More replicas are never slower.
#
# Return the smallest number of replicas, from 1 to `most`, with which p99 is at most `bound`, or `None` if there is none.
# Each call simulates a whole day, so don't call it often: at most twice the binary logarithm of `most`, plus two (for `most` = 64 that is 2 · 6 + 2 = 14 calls). Don't ask for fleets below 1 or above `most`.
# %% [markdown] key="fewest_task" lang="zh" src="fcf40270"
# ## 17.4 最便宜的集群
#
# `ask(replicas)` 模拟一个有这么多副本的集群，返回首 token 延迟的分位数 `{"p50": ..., "p99": ...}`，单位秒。副本更多，决不会更慢。
#
# 返回使 p99 不超过 `bound` 的最小副本数，范围是 1 到 `most`；都不行就返回 `None`。
# 每问一次，就要模拟一整天，所以要少问：最多是 `most` 以 2 为底的对数的两倍，再加两次（`most` 是 64 时，就是 2 · 6 + 2 = 14 次）。也不要问小于 1 或大于 `most` 的集群。

# %% key="fewest_stub"
def fewest_replicas(ask, bound: float, most: int) -> int | None:
    ### BEGIN SOLUTION
    fails, holds = 0, 1
    while ask(holds)["p99"] > bound:
        if holds == most:
            return None
        fails, holds = holds, min(2 * holds, most)
    while holds - fails > 1:
        middle = (fails + holds) // 2
        if ask(middle)["p99"] <= bound:
            holds = middle
        else:
            fails = middle
    return holds
    ### END SOLUTION


check("17.4", fewest_replicas)

# %% [markdown] key="fewest_why" lang="en"
# ### BEGIN SOLUTION
# We double first, instead of halving from `most` at once, because a small fleet is simulated faster than a large one, and the answer is mostly small.
#
# "Never slower" is a promise of this exercise. A real p99 of a few hundred requests may rise by chance when a replica is added. So the package's `fewest` tries one replica more than its answer, and says in `steady` whether the promise holds there, too.
# ### END SOLUTION
# %% [markdown] key="fewest_why" lang="zh" src="6df5cce3"
# ### BEGIN SOLUTION
# 先加倍，而不是一开始就从 `most` 对半查找：小集群模拟得快，而答案多半很小。
#
# “决不会更慢”是本题给的保证。几百个请求的真实 p99，在多加一个副本时，可能碰巧反而上升。所以本包的 `fewest` 会比答案再多试一个副本，并在 `steady` 里说明那里是否也成立。
# ### END SOLUTION
