# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="room_task" lang="en"
# ## 18.1 What the bytes hold
#
# A plan has `kv_bytes` for everything that belongs to the cache. Return two numbers: how many blocks fit, and how many sequences may run at once if each may grow to `longest` tokens in the cache.
#
# - `token` says what is stored for each token: in each of `layers` layers there are `kv_heads` heads, with a row of `head_dim` elements for K and one for V. An element takes `itemsize` bytes, and each row has a scale of `scale` bytes (0 where the dtype needs none).
# - `keeps` is None, or a dict if the plan evicts. Then a sequence never holds more than `places` tokens. And there is a record for each of the `seats` sequences that may run at once, from the beginning, used or not. For every place in every head of every layer, a record has a position of 8 bytes and `fields` numbers of 4 bytes, the policy's scores. The records count against `kv_bytes` too.
# - A sequence takes whole blocks of `block_size` tokens, and there are never more sequences than `seats`.
#
# On paper first: tiny-gqa, 1,400,000 bytes, blocks of 16 tokens in int8, at most 12 sequences at once, 96 places, one field. How many blocks do the records cost?
# %% [markdown] key="room_task" lang="zh" src="b0371559"
# ## 18.1 这些字节放得下什么
#
# 一个方案有 `kv_bytes` 字节，凡是属于缓存的都在里面。返回两个数：放得下多少块；同时运行多少条序列，才能让每条都长到 `longest` 个 token（都存在缓存里）。
#
# - `token` 说明一个 token 存些什么：`layers` 层，每层 `kv_heads` 个头，每个头 K 和 V 各一行 `head_dim` 个元素。一个元素 `itemsize` 字节，每一行带一个 `scale` 字节的缩放因子（dtype 不需要时为 0）。
# - `keeps` 是 None；方案会淘汰时，则是一个字典。这时一条序列占的决不超过 `places` 个 token。同时，并发上限 `seats` 是几，从一开始就有几份记录，用没用到都一样。一份记录在每一层、每个头、每个位置上，存一个 8 字节的 token 位置，再加 `fields` 个 4 字节的数，也就是策略的得分。记录也算在 `kv_bytes` 里面。
# - 序列占的是整块，每块 `block_size` 个 token；序列数决不超过 `seats`。
#
# 先在纸上算：tiny-gqa，1,400,000 字节，int8，每块 16 个 token，并发上限 12，96 个位置，一个字段。记录用掉了多少个块？

# %% key="room_stub"
def room(
    kv_bytes: int, seats: int, token: dict, block_size: int, longest: int, keeps: dict | None
) -> tuple[int, int]:
    ### BEGIN SOLUTION
    heads = token["layers"] * token["kv_heads"]
    row = token["head_dim"] * token["itemsize"] + token["scale"]
    if keeps is not None:
        kv_bytes -= heads * seats * keeps["places"] * (8 + 4 * keeps["fields"])
        longest = min(longest, keeps["places"])
    blocks = max(0, kv_bytes) // (2 * heads * row * block_size)
    each = -(-longest // block_size)
    return blocks, min(seats, blocks // each)
    ### END SOLUTION


check("18.1", room)

# %% key="room_paper"
int8 = {"layers": 2, "kv_heads": 2, "head_dim": 32, "itemsize": 1, "scale": 4}
try:
    without, _ = room(1_400_000, 12, int8, 16, 300, None)
    beside, _ = room(1_400_000, 12, int8, 16, 300, {"places": 96, "fields": 1})
    print(t("room_line", without=without, beside=beside))
except NotImplementedError:
    print(t("not_yet"))

# %% [markdown] key="room_why" lang="en"
# ### BEGIN SOLUTION
# With eviction a high limit of sequences isn't free. The default of 64 takes 64 records out of the budget, though only about a dozen sequences ever run at once. In the package this is `Plan.num_blocks_for`, which calls the same function as the engine.
# ### END SOLUTION
# %% [markdown] key="room_why" lang="zh" src="95c5cd14"
# ### BEGIN SOLUTION
# 方案会淘汰时，并发上限定高了是有代价的：默认的 64 要在预算里放 64 份记录，而真正同时运行的只有十来条序列。在本包里，这就是 `Plan.num_blocks_for`，它与引擎调用的是同一个函数。
# ### END SOLUTION

# %% [markdown] key="enter_task" lang="en"
# ## 18.2 Admission control
#
# A sequence that has been admitted should never lose its blocks again. So every sequence is counted at the longest that it may get.
#
# `running` and `waiting` are lists of sequences, in order. Of each sequence you know `stored`, the most tokens that it will ever have in the cache, and `blocks`, the numbers of the blocks that it has already. (For a waiting sequence these are the blocks that the prefix cache has found.) Two sequences may have the same block; then it counts once.
# The pool has `num_blocks` blocks of `block_size` tokens, and at most `seats` sequences run at once, those of `running` included.
#
# Return how many of `waiting` are admitted, from the first on. No request overtakes another: if one doesn't fit, all after it wait.
#
# On paper first: blocks of 16 tokens; A runs with blocks 0, 1, 2 and will store 60 tokens. B waits, has found blocks 0 and 1, and will store 50. How many blocks must the pool have for both?
# %% [markdown] key="enter_task" lang="zh" src="dcafa67a"
# ## 18.2 准入控制
#
# 放行的序列以后都不该再失去自己的块，所以每条序列都按它可能达到的最长来算。
#
# `running` 和 `waiting` 是按次序排列的序列；每条都知道 `stored`，即它在缓存里最多会有多少个 token，还有 `blocks`，即它已经有的块的编号。（对还在等的序列来说，就是前缀缓存命中的块。）两条序列可能有同一个块，那就只算一次。
# 块池有 `num_blocks` 个块，每块 `block_size` 个 token；并发上限是 `seats`，`running` 里的也算在内。
#
# 返回 `waiting` 里从第一个起，有几个可以进来。任何请求都不能排到前面的请求之前：有一个放不下，后面的全都得等。
#
# 先在纸上算：每块 16 个 token；A 在运行，有块 0、1、2，最终要存 60 个 token。B 在等，找到了块 0 和 1，最终要存 50 个。两条都放下，块池要有多少块？

# %% key="enter_stub"
def enter(
    running: list[dict], waiting: list[dict], num_blocks: int, block_size: int, seats: int
) -> int:
    ### BEGIN SOLUTION
    there, to_come = set(), 0

    def worst(sequence):
        more = -(-sequence["stored"] // block_size) - len(sequence["blocks"])
        return there | set(sequence["blocks"]), to_come + more

    for sequence in running:
        there, to_come = worst(sequence)
    entered = 0
    for sequence in waiting:
        blocks, more = worst(sequence)
        if len(running) + entered == seats or len(blocks) + more > num_blocks:
            break
        there, to_come, entered = blocks, more, entered + 1
    return entered
    ### END SOLUTION


check("18.2", enter)

# %% [markdown] key="doors_text" lang="en"
# The cell below puts your rule into the real scheduler (`choose_victim` and the rest stay as they are). It compares your rule with the engine's own, and with one that admits every request that fits now. There are 40 requests about four documents, and 60 blocks. What do you expect: fewer tokens, fewer steps, or both?
# %% [markdown] key="doors_text" lang="zh" src="8d5acc6f"
# 下面的单元格把你的规则放进真正的调度器（`choose_victim` 等其余规则不变），与引擎自己的规则，以及“现在放得下就放行”的规则相比。四份文档，40 个请求，60 个块。你预计哪样会变少：token、步数，还是两样都少？

# %% key="doors"
from minikv.course import Table
from minikv.course.lessons.l18.admission_rules import compare_doors

rows = []
for name, ran in compare_doors(enter).items():
    missing = t("not_yet"), "", "", ""
    figures = missing if ran is None else (ran.preemptions, ran.recomputed, ran.computed, ran.steps)
    rows.append((t("door_" + name.replace(" ", "_")), *figures))
head = [t("doors_" + column) for column in ("rule", "preempted", "again", "computed", "steps")]
Table(head, rows, right=head[1:])

# %% [markdown] key="enter_why" lang="en"
# ### BEGIN SOLUTION
# On paper: 6 blocks. Blocks 0, 1 and 2 are there, A gets one more, B two.
#
# No token is computed twice, and the run still takes more steps, because the room that is kept for the end of each sequence is empty until then. Which rule is better depends on what is expensive. If tokens are expensive (long prompts, arithmetic), never preempting may be better. If steps are expensive (short prompts, many decodes), it isn't.
#
# TensorRT-LLM has both rules, `GUARANTEED_NO_EVICT` and `MAX_UTILIZATION`. In February 2024 a developer advised a user to try the second, so that more of the cache is used ([#1012](https://github.com/NVIDIA/TensorRT-LLM/issues/1012)). A later issue measured 40.6 % less throughput with it than with the first, where the cache is too small for the load ([#16827](https://github.com/NVIDIA/TensorRT-LLM/issues/16827)). Both can be right, because it depends on the load. minikv's own rule is between the two. It needs room for the tokens that a sequence has now, and for one more token of each running sequence.
# ### END SOLUTION
# %% [markdown] key="enter_why" lang="zh" src="2ac1eb07"
# ### BEGIN SOLUTION
# 纸上的答案：6 个块。0、1、2 已经有了，A 还要一个，B 还要两个。
#
# 没有什么计算了两遍，步数却更多：为每条序列的结尾留着的地方，在那之前一直空着。哪种更好，要看什么更贵。token 贵（提示词长、等算力）的时候，从不抢占可能更好；步贵（提示词短、解码多）的时候，就不是。
#
# TensorRT-LLM 两种规则都有：`GUARANTEED_NO_EVICT` 和 `MAX_UTILIZATION`。2024 年 2 月，一位用户想把缓存用得更足，开发者建议试试后一种（[#1012](https://github.com/NVIDIA/TensorRT-LLM/issues/1012)）。后来另一个 issue 测出来，缓存装不下负载时，用后一种的吞吐量比前一种低 40.6%（[#16827](https://github.com/NVIDIA/TensorRT-LLM/issues/16827)）。两种说法可能都对，要看负载。minikv 自己的规则在两者之间：序列现在有多少就要多少空间，再给每条正在运行的多留一个 token。
# ### END SOLUTION

# %% [markdown] key="floor_task" lang="en"
# ## 18.3 The floor
#
# How many seconds does every plan need, even the best one with the best luck? On our clock a step of `n` tokens takes the longer of `weights` seconds (to read the weights once) and `n * token` seconds (to compute), plus `overhead` seconds.
#
# Of each request you know `arrival` (seconds, ascending), `prompt` and `new` (tokens), its `group`, and `prefix`, the number of tokens at the beginning of the prompt that are the same in the whole group. The best luck means:
#
# - once an earlier request of the group (earlier in time, or in the list) has computed the prefix, it is found;
# - a prompt is computed in one step, and that step brings the first new token. Every step after it brings at most `1 + drafts` tokens of a request: all guesses are right;
# - any number of requests may share a step.
#
# The last new token is never computed, because nothing follows it. No request is served before it arrives.
# Take each request's arrival as a moment. From then on, its own steps are left to do, and the tokens of all requests that come then or later. Each moment gives a bound: the earliest second at which all that can be done. Return the latest of these bounds.
#
# On paper first: `weights` 10 ms, `token` 0.1 ms, `overhead` 2 ms, no drafts; one request, there at 0 s, a prompt of 200 tokens, 11 new ones.
# %% [markdown] key="floor_task" lang="zh" src="5e294dcf"
# ## 18.3 下限
#
# 任何方案，哪怕是最好的、运气也最好的，至少要多少秒？时钟是这样的：`n` 个 token 的一步，取 `weights` 秒（把权重读一遍）和 `n * token` 秒（计算）中较长的，再加 `overhead` 秒。
#
# 每个请求都知道 `arrival`（秒，升序）、`prompt` 和 `new`（token 数）、所在的 `group`，还有 `prefix`：提示词开头这么多个 token，全组相同。运气好到这种程度：
#
# - 前缀只要同组有更早的请求（时间更早，或在列表里更前）算过，就能找到；
# - 提示词一步算完，这一步带来第一个新 token；此后每一步，一个请求最多得到 `1 + drafts` 个 token，也就是每次都猜对；
# - 一步里可以有任意多个请求。
#
# 最后一个新 token 不必计算：它后面没有别的了。请求没到达，就不能服务。
# 把每个请求的到达看作一个时刻：从那一刻起，还没做的有它自己的步，还有那时及以后到来的所有请求的 token。每个时刻都得到一个界限，即最早到哪一秒才可能全部做完。返回其中最晚的一个。
#
# 先在纸上算：`weights` 10 毫秒，`token` 0.1 毫秒，`overhead` 2 毫秒，没有草稿；只有一个请求，第 0 秒就到，提示词 200 个 token，新 token 11 个。

# %% key="floor_stub"
def floor_seconds(
    requests: list[dict], weights: float, token: float, overhead: float, drafts: int
) -> float:
    ### BEGIN SOLUTION
    best = 0.0
    for this in requests:
        known = {each["group"] for each in requests if each["arrival"] < this["arrival"]}
        tokens = 0
        for each in requests:
            if each["arrival"] >= this["arrival"]:
                tokens += each["prompt"] + each["new"] - 1
                if each["group"] in known:
                    tokens -= each["prefix"]
                known.add(each["group"])
        steps = 1 + -(-(this["new"] - 1) // (1 + drafts))
        seconds = max(steps * weights, tokens * token) + steps * overhead
        best = max(best, this["arrival"] + seconds)
    return best
    ### END SOLUTION


check("18.3", floor_seconds)

# %% key="floor_paper"
one = {"arrival": 0.0, "group": 0, "prefix": 0, "prompt": 200, "new": 11}
try:
    print(t("floor_one", seconds=floor_seconds([one], 0.010, 0.0001, 0.002, 0)))
except NotImplementedError:
    print(t("not_yet"))

# %% [markdown] key="floor_why" lang="en"
# ### BEGIN SOLUTION
# 11 steps read the weights for 110 ms. Computing 210 tokens takes 21 ms, within these steps. 11 overheads make 22 ms. Together that is 132 ms.
#
# The package's `floor(task)` is the same with bytes and FLOPs instead of `weights` and `token`, and it finds equal beginnings by comparing the prompts themselves. Even alone, such a request takes longer than its floor. Its prompt needs 20 ms of arithmetic in a single step, ten more than reading the weights. The sum of each step's maximum is never less than the maximum of the two sums.
# ### END SOLUTION
# %% [markdown] key="floor_why" lang="zh" src="99fd48ed"
# ### BEGIN SOLUTION
# 11 步读权重，110 毫秒；210 个 token 的计算是 21 毫秒，就在这些步里进行；11 份固定开销，22 毫秒。一共 132 毫秒。
#
# 本包的 `floor(task)` 与此相同，只是把 `weights` 和 `token` 换成字节和 FLOP，相同的开头则由提示词本身比较得出。这样一个请求，单独跑也比下限久：提示词那一步就要算 20 毫秒，比读权重多 10 毫秒；而各步分别取最大再相加，总不会小于先相加再取最大。
# ### END SOLUTION

# %% [markdown] key="best_task" lang="en"
# ## 18.4 The best plan, with few runs
#
# There are `plans` plans, number 0 to `plans - 1`. Of each
#
# - `paper(plan)` gives a number of seconds that the plan cannot beat. This is arithmetic, and costs nothing.
# - `run(plan)` serves the load with it, and returns `.seconds` and `.quality` (of 1). This is expensive. It never takes fewer seconds than its paper says.
#
# Return the plan with the fewest seconds among those with a quality of at least `bar`, or None if there is none. Run no plan that paper has ruled out. If you know a plan that keeps the bar in 2 s, you needn't run one that takes at least 2.1 s on paper.
# %% [markdown] key="best_task" lang="zh" src="b21db838"
# ## 18.4 少跑几次，找出最好的方案
#
# 有 `plans` 个方案，编号 0 到 `plans - 1`。对每个方案：
#
# - `paper(plan)` 给出一个它不可能更少的秒数。这只是算术，不花什么代价。
# - `run(plan)` 真的用它来承载负载，返回 `.seconds` 和 `.quality`（满分为 1）。这很贵。它用的秒数，决不会少于纸上的数。
#
# 在质量不低于 `bar` 的方案里，返回秒数最少的那个；一个都没有，就返回 None。纸上已经排除的不要再跑：已经知道有方案用 2 秒达到了门槛，那么至少要 2.1 秒的就不必跑。

# %% key="best_stub"
def best_plan(plans: int, paper, run, bar: float) -> int | None:
    ### BEGIN SOLUTION
    best, seconds = None, float("inf")
    for plan in sorted(range(plans), key=paper):
        if paper(plan) >= seconds:
            break
        served = run(plan)
        if served.quality >= bar and served.seconds < seconds:
            best, seconds = plan, served.seconds
    return best
    ### END SOLUTION


check("18.4", best_plan)

# %% [markdown] key="search_text" lang="en"
# Now let it search real plans of the lesson's task. What paper knows of a plan is in `minikv.course.lessons.l18.time_split.paper_seconds`: the limit of sequences, the weights of each step, and, where nothing is evicted, the bytes that decodes read.
# %% [markdown] key="search_text" lang="zh" src="7c7e3c47"
# 现在让它去查本课任务的真实方案。关于一个方案，纸上知道些什么，见 `minikv.course.lessons.l18.time_split.paper_seconds`：并发上限，每一步要读的权重，以及不淘汰时解码要读的字节。

# %% key="search"
import torch

from minikv.course.capstone import Plan, tiny_task
from minikv.course.lessons.l18.plan_search import search

torch.set_num_threads(1)
task = tiny_task()
plans = [
    Plan(kv_dtype=dtype, max_num_seqs=seats, prompt_lookup=drafts, label=f"{dtype or 'fp32'}, {seats}, {drafts}")
    for dtype in (None, "int8")
    for seats in (4, 64)
    for drafts in (0, 4)
]
found = search(best_plan, task, plans)
rows, line = [], t("not_yet")
if found is not None:
    ran = {run.plan: run for run in found.runs}
    for plan, paper in sorted(zip(plans, found.paper), key=lambda pair: pair[1]):
        real = (f"{ran[plan].seconds:.3f}", f"{ran[plan].quality:.1%}") if plan in ran else ("-", "-")
        rows.append((plan.label, f"{paper:.3f}", *real, t("search_best") if plan == found.best else ""))
    line = t("search_line", runs=len(found.runs), plans=len(plans))
head = [t("search_" + column) for column in ("plan", "paper", "really", "quality")]
Table([*head, ""], rows, right=head[1:], lines=[line])

# %% [markdown] key="best_why" lang="en"
# ### BEGIN SOLUTION
# Paper is too optimistic about each plan, because it doesn't count preemptions, waiting prompts and wrong guesses. That is why it may rule a plan out but never choose one. The tighter the bound, the fewer the runs. Try how many runs are left if `paper_seconds` ignores the limit of sequences.
# ### END SOLUTION
# %% [markdown] key="best_why" lang="zh" src="75017174"
# ### BEGIN SOLUTION
# 对哪个方案，纸上的数都太乐观：抢占、排队的提示词、没猜中的草稿，它一概不知。所以它只能用来排除，决不能用来挑选。下限越紧，要跑的就越少：试试让 `paper_seconds` 不管并发上限，还剩下多少要跑。
# ### END SOLUTION
