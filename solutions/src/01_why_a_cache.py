# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="attend-text" lang="en"
# ## 01.1 Attention for one query
#
# Compute the lesson's formula for one query: a score for each key, divided by $\sqrt{d}$, then the softmax, then the weighted mean of the values.
#
# - `query`: a list of d floats.
# - `keys`: a list with d floats for each token.
# - `values`: a list with $d_v$ floats for each token.
#
# Return a list of $d_v$ floats. Plain Python is enough; `math.exp` and `math.sqrt` are there.
# An array or a tensor of that length will do too; float32 is exact enough.
# No mask is needed: the query belongs to the newest token.
# %% [markdown] key="attend-text" lang="zh" src="c781c2a7"
# ## 01.1 一个 query 的注意力
#
# 按本课的公式计算一个 query 的注意力：与每个 key 求得分并除以 $\sqrt{d}$，做 softmax，再对 value 加权平均。
#
# - `query`：d 个浮点数的列表。
# - `keys`：每个 token 一项，每项 d 个浮点数。
# - `values`：每个 token 一项，每项 $d_v$ 个浮点数。
#
# 返回 $d_v$ 个浮点数的列表。用纯 Python 就够，可以用 `math.exp` 和 `math.sqrt`。
# 返回同样长度的数组或张量也可以，float32 的精度就够。
# 不需要掩码：这个 query 属于最新的 token。

# %% key="attend"
import math


def attend(query: list[float], keys: list[list[float]], values: list[list[float]]) -> list[float]:
    ### BEGIN SOLUTION
    scale = math.sqrt(len(query))
    scores = [sum(q * k for q, k in zip(query, key)) / scale for key in keys]
    weights = [math.exp(score - max(scores)) for score in scores]
    columns = zip(*values)
    return [sum(w * v for w, v in zip(weights, column)) / sum(weights) for column in columns]
    ### END SOLUTION


check("01.1", attend)

# %% [markdown] key="step-text" lang="en"
# ## 01.2 A step without a cache
#
# A step feeds all `num_tokens` tokens. How many FLOPs does it cost?
#
# Each of the `layers` has these matrices: Q, K, V, output, and three of the MLP (`hidden` x `intermediate`).
# `heads` query heads share `kv_heads` KV heads, each of `head_dim` elements.
# Only the last token gets logits over `vocab`.
# A multiplication and an addition are two FLOPs; count attention over the whole square.
# %% [markdown] key="step-text" lang="zh" src="a8551aed"
# ## 01.2 不用缓存的一步
#
# 把全部 `num_tokens` 个 token 都送入的一步，需要多少 FLOP？
#
# 共 `layers` 层，每层有这些矩阵：Q、K、V、输出，以及 MLP 的三个（`hidden` × `intermediate`）。
# `heads` 个 query 头共用 `kv_heads` 个 KV 头，每个头有 `head_dim` 个元素。
# 只为最后一个 token 计算 `vocab` 上的 logits。
# 一次乘法加一次加法算两个 FLOP；注意力按完整的方阵计算。

# %% key="step"
def uncached_step(
    num_tokens: int, layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, intermediate: int, vocab: int
) -> int:
    ### BEGIN SOLUTION
    attention_weights = hidden * (heads + 2 * kv_heads) * head_dim + heads * head_dim * hidden
    per_token = 2 * layers * (attention_weights + 3 * hidden * intermediate)
    per_pair = 4 * layers * heads * head_dim
    return num_tokens * per_token + num_tokens**2 * per_pair + 2 * hidden * vocab
    ### END SOLUTION


check("01.2", uncached_step)

# %% [markdown] key="crossing-text" lang="en"
# ## 01.3 Where attention overtakes
#
# At which number of tokens does attention cost *more* than the projections, for the first time?
# Equal is not more.
# %% [markdown] key="crossing-text" lang="zh" src="a67ada74"
# ## 01.3 注意力在哪里反超
#
# 从多少个 token 起，注意力的开销首次**超过**投影？
# 相等不算超过。

# %% key="crossing"
def crossing(layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, intermediate: int) -> int:
    ### BEGIN SOLUTION
    weights = 2 * hidden * (heads + kv_heads) * head_dim + 3 * hidden * intermediate
    per_token, per_pair = 2 * layers * weights, 4 * layers * heads * head_dim
    return per_token // per_pair + 1
    ### END SOLUTION


check("01.3", crossing)

# %% [markdown] key="generate-text" lang="en"
# ## 01.4 The loop with a cache
#
# `model(tokens, positions)` feeds tokens at positions, remembers their K and V, and returns the next token.
# Write the loop that generates `num_new` tokens after `prompt` and returns them as a list.
#
# Feed no token twice, and each at its own position: the whole prompt in one call, then one new token a call.
# Make no call if you don't need the token that it returns.
# Both arguments are lists of ints; positions count from 0.
# The check looks at the tokens and at every call.
# `model` is a toy; `model_seed` in a counterexample is its seed, which stands for the weights.
# %% [markdown] key="generate-text" lang="zh" src="21eda957"
# ## 01.4 使用缓存的循环
#
# `model(tokens, positions)` 把 token 送入给定的位置，记住它们的 K 和 V，返回下一个 token。
# 写一个循环，在 `prompt` 之后生成 `num_new` 个 token，以列表返回。
#
# 任何 token 都不要送入两次，而且要放在它自己的位置上：整个提示词一次调用送完，之后每次调用送入一个新 token。
# 如果已经不需要下一个 token，就不要再调用。
# 两个参数都是 int 列表；位置从 0 数起。
# 检查时既看 token，也看每一次调用。
# `model` 是玩具模型；反例中的 `model_seed` 是它的种子，相当于它的权重。

# %% key="generate" lang="en"
def generate(model, prompt: list[int], num_new: int) -> list[int]:
    """The whole prompt in one call, then one new token a call."""
    ### BEGIN SOLUTION
    token = model(prompt, list(range(len(prompt))))
    new = [token]
    while len(new) < num_new:
        position = len(prompt) + len(new) - 1
        new.append(model([new[-1]], [position]))
    return new
    ### END SOLUTION


check("01.4", generate)
# %% key="generate" lang="zh"
def generate(model, prompt: list[int], num_new: int) -> list[int]:
    """整个提示词一次调用送完，之后每次调用送入一个新 token。"""
    ### BEGIN SOLUTION
    token = model(prompt, list(range(len(prompt))))
    new = [token]
    while len(new) < num_new:
        position = len(prompt) + len(new) - 1
        new.append(model([new[-1]], [position]))
    return new
    ### END SOLUTION


check("01.4", generate)

# %% [markdown] key="held-text" lang="en"
# ## 01.5 How full is the cache?
#
# A prompt of `prompt_tokens` tokens is fed, then `new_tokens` new tokens are generated.
# For how many tokens does the cache hold K and V at that moment?
# %% [markdown] key="held-text" lang="zh" src="c1ce85ff"
# ## 01.5 缓存里有多少个 token？
#
# 先送入 `prompt_tokens` 个 token 的提示词，再生成 `new_tokens` 个新 token。
# 此刻缓存里有多少个 token 的 K 和 V？

# %% key="held"
def tokens_held(prompt_tokens: int, new_tokens: int) -> int:
    ### BEGIN SOLUTION
    return prompt_tokens + new_tokens - 1
    ### END SOLUTION


check("01.5", tokens_held)

# %% [markdown] key="held-why" lang="en"
# ### BEGIN SOLUTION
# The last new token is known, but it has not been fed yet, so it has no K and V.
# If the conversation goes on, it is the first token to be fed.
# ### END SOLUTION
# %% [markdown] key="held-why" lang="zh" src="f0527680"
# ### BEGIN SOLUTION
# 最后一个新 token 已经知道，但还没有送入模型：它的 K 和 V 还不存在。
# 对话如果继续，首先要送入的就是它。
# ### END SOLUTION
