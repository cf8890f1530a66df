# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="peaks_task" lang="en"
# ## 14.1 Capacity and peak
#
# A layer keeps `n_sink` sinks, `budget` heavy hitters and `n_recent` recent tokens. Its capacity is the sum of the three.
# A prompt of `prompt` tokens is computed in chunks of at most `chunk` tokens, one chunk a step. Then each step computes one token, until `new` tokens are generated. The last generated token is not stored.
#
# In a step its tokens come into the cache first, and the forward reads everything that is there. After it, if the layer holds `capacity + evict_every` tokens or more, it evicts down to its capacity.
#
# Return `(inside, between)`: the most tokens that the layer holds inside a forward, and the most between two steps (or after the last).
# %% [markdown] key="peaks_task" lang="zh" src="4ffd2123"
# ## 14.1 容量与峰值
#
# 一层留 `n_sink` 个汇点、`budget` 个重要 token、`n_recent` 个近期 token，容量是三者之和。
# 提示词有 `prompt` 个 token，分段计算，每段最多 `chunk` 个，一段是一步。然后每步一个 token，直到生成 `new` 个。生成的最后一个不存。
#
# 每一步，这一步的 token 先进缓存，前向计算要读缓存里的全部。之后，如果这一层有 `capacity + evict_every` 个 token 或更多，就淘汰到容量为止。
#
# 返回 `(inside, between)`：前向计算当中最多有多少个 token，以及两步之间（或最后一步之后）最多有多少个。

# %% key="peaks_stub"
def peaks(
    prompt: int, new: int, n_sink: int, budget: int, n_recent: int, evict_every: int, chunk: int
) -> tuple[int, int]:
    ### BEGIN SOLUTION
    capacity = n_sink + budget + n_recent
    chunks = [min(chunk, prompt - start) for start in range(0, prompt, chunk)]
    held = inside = between = 0
    for tokens in chunks + [1] * (new - 1):
        held += tokens
        inside = max(inside, held)
        if held >= capacity + evict_every:
            held = capacity
        between = max(between, held)
    return inside, between
    ### END SOLUTION


check("14.1", peaks)

# %% [markdown] key="mass_task" lang="en"
# ## 14.2 How much attention has each token got?
#
# `scores` [KV heads, tokens before] is the attention that every token in the cache has got so far.
# `probs` [query heads, queries, tokens now] are this step's probabilities, and each query's row sums to 1. The last columns are the step's own tokens, which are new.
#
# The query heads of a group are neighbours: with two KV heads and four query heads, heads 0 and 1 read KV head 0.
# Return the scores after this step, [KV heads, tokens now]: what each token got from all queries of all query heads of the group, added to what it had. New tokens had nothing.
# %% [markdown] key="mass_task" lang="zh" src="9deac6ac"
# ## 14.2 每个 token 得到多少注意力？
#
# `scores` [KV 头, 原有 token 数] 是缓存里每个 token 到目前为止得到的注意力。
# `probs` [query 头, query 数, 现有 token 数] 是这一步的概率，每个 query 的一行加起来是 1。最后几列是这一步自己的 token，它们是新的。
#
# 一组的 query 头是相邻的：两个 KV 头、四个 query 头时，query 头 0 和 1 读 KV 头 0。
# 返回这一步之后的得分 [KV 头, 现有 token 数]：每个 token 从组内所有 query 头的所有 query 得到的，加上它原有的。新 token 原来没有得分。

# %% key="mass_stub"
import torch


def add_mass(scores: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
    ### BEGIN SOLUTION
    kv_heads, before = scores.shape
    # [H, T, n] -> [H, n] -> [H_kv, |G|, n] -> [H_kv, n]
    mass = probs.sum(1).view(kv_heads, -1, probs.shape[2]).sum(1)
    mass[:, :before] += scores
    return mass
    ### END SOLUTION


check("14.2", add_mass)

# %% [markdown] key="choose_task" lang="en"
# ## 14.3 Which tokens stay?
#
# Take one KV head of one row of a batch. `score` has a number for each column, and `valid` says whether a token stands there (`False` is padding, on the left).
#
# Return the columns that stay, in ascending order. Padding never stays. Of the tokens:
#
# - the first `n_sink` and the last `n_recent` stay, whatever they score;
# - of those in between, the `budget` with the largest scores stay, and of equal scores the earlier one;
# - if there are no more tokens than room, all of them stay.
# %% [markdown] key="choose_task" lang="zh" src="348ab70a"
# ## 14.3 哪些 token 留下？
#
# 取 batch 里一行的一个 KV 头。`score` 每列一个数，`valid` 说明那一列有没有 token（`False` 是左边的填充）。
#
# 按升序返回要留的列。填充一律不留。至于 token：
#
# - 最前面 `n_sink` 个和最后面 `n_recent` 个留下，不管得分；
# - 中间的，留得分最高的 `budget` 个；得分相同，靠前的优先；
# - token 不比位置多时，全部留下。

# %% key="choose_stub"
def choose(score: list[float], valid: list[bool], n_sink: int, n_recent: int, budget: int) -> list[int]:
    ### BEGIN SOLUTION
    columns = [column for column in range(len(valid)) if valid[column]]
    if len(columns) <= n_sink + budget + n_recent:
        return columns
    end = len(columns) - n_recent
    ranked = sorted(columns[n_sink:end], key=lambda column: (-score[column], column))
    return sorted(columns[:n_sink] + ranked[:budget] + columns[end:])
    ### END SOLUTION


check("14.3", choose)

# %% [markdown] key="choose_why" lang="en"
# ### BEGIN SOLUTION
# In the package this is `minikv.eviction.policies.select`, for all heads and rows at once. There every row of a batch keeps the same number of columns, because the rows of a tensor are equally long.
# ### END SOLUTION
# %% [markdown] key="choose_why" lang="zh" src="ce272ba9"
# ### BEGIN SOLUTION
# 在本包里这就是 `minikv.eviction.policies.select`，所有头、所有行一次做完。那里 batch 的每一行都留同样多的列，因为张量的各行必须一样长。
# ### END SOLUTION

# %% [markdown] key="evict_task" lang="en"
# ## 14.4 A decode step that forgets
#
# `layer` is one layer's cache of one sequence, with $n$ tokens in each of $H$ KV heads:
#
# - `layer.keys`, `layer.values` [H, n, D]
# - `layer.scores` [H, n]: what each token has got so far
# - `layer.positions` [H, n] int64: where in the text it stands
# - `layer.length`: the tokens of the text so far, the evicted ones included
#
# Three functions are given:
#
# - `new_token(position)`: key and value of the newest token, [H, D] each, the key rotated to `position`
# - `attend(keys)`: the attention that its queries give to `keys`, [H, n], already summed over each group
# - `choose(scores)`: which columns stay, [H, capacity] int64, ascending, each head's own
#
# Make one decode step. The new token comes into the cache with a score of 0, and its query looks at everything that is there, itself included. Then, if there are `capacity + evict_every` tokens or more, keep the columns that `choose` names, and release the memory of the others.
# Change `layer`; return nothing.
# %% [markdown] key="evict_task" lang="zh" src="6a394a06"
# ## 14.4 会忘记的一步解码
#
# `layer` 是一条序列在一层里的缓存，$H$ 个 KV 头各有 $n$ 个 token：
#
# - `layer.keys`、`layer.values` [H, n, D]
# - `layer.scores` [H, n]：每个 token 到目前为止的得分
# - `layer.positions` [H, n] int64：它在文本里的位置
# - `layer.length`：到目前为止文本有多少个 token，已淘汰的也算
#
# 三个函数已经给好：
#
# - `new_token(position)`：最新 token 的 key 和 value，各为 [H, D]，key 已经旋转到 `position`
# - `attend(keys)`：它的 query 分给 `keys` 的注意力，[H, n]，每组已经求和
# - `choose(scores)`：哪些列留下，[H, capacity] int64，升序，每个头各选各的
#
# 做一步解码。新 token 进缓存，得分从 0 开始，它的 query 看缓存里的全部，包括自己。之后，如果有 `capacity + evict_every` 个 token 或更多，就留下 `choose` 给出的列，并释放其余的存储。
# 直接修改 `layer`，不用返回。

# %% key="evict_stub"
def step(layer, new_token, attend, choose, capacity: int, evict_every: int) -> None:
    ### BEGIN SOLUTION
    key, value = new_token(layer.length)
    new_score = layer.scores.new_zeros(len(key), 1)  # [H, 1]
    new_position = layer.positions.new_full((len(key), 1), layer.length)
    layer.keys = torch.cat([layer.keys, key[:, None]], 1)  # [H, n, D] + [H, 1, D] -> [H, n + 1, D]
    layer.values = torch.cat([layer.values, value[:, None]], 1)
    layer.scores = torch.cat([layer.scores, new_score], 1)
    layer.positions = torch.cat([layer.positions, new_position], 1)
    layer.length += 1

    layer.scores = layer.scores + attend(layer.keys)
    if layer.keys.shape[1] >= capacity + evict_every:
        kept = choose(layer.scores)
        rows = kept[..., None].expand(-1, -1, layer.keys.shape[2])  # [H, capacity] -> [H, capacity, D]
        layer.keys, layer.values = layer.keys.gather(1, rows), layer.values.gather(1, rows)
        layer.scores, layer.positions = layer.scores.gather(1, kept), layer.positions.gather(1, kept)
    ### END SOLUTION


check("14.4", step)

# %% [markdown] key="evict_why" lang="en"
# ### BEGIN SOLUTION
# `gather` makes new tensors of exactly the size that is kept, so the old ones are freed as soon as their names are assigned again.
# ### END SOLUTION
# %% [markdown] key="evict_why" lang="zh" src="10c58187"
# ### BEGIN SOLUTION
# `gather` 新建的张量大小正好是留下的那些，所以名字一重新赋值，旧的就释放了。
# ### END SOLUTION
