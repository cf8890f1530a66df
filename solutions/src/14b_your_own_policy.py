# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="own_task" lang="en"
# ## 14b.1 A policy of your own
#
# The model reads two texts, each of 193 tokens with 24 facts. Every KV head of tiny-gqa keeps 48 tokens: 4 sinks, the last 12, and 32 that *you* choose. The questions come only after that.
#
# `score(view)` gives every token a number, [B, H, S] float32, and the largest stay. In `view`, for one layer:
#
# - `view.keys`, `view.values` [B, H, S, D], as cached
# - `view.state` [B, H, S]: the attention that a token has got, summed over queries and groups
# - `view.window_probs` [B, H, S]: what the last 16 queries gave it
# - `view.positions` [B, H, S]; and `view.layer`, `view.num_layers`
#
# It passes if at least three of four questions are answered in every run. The check shows that number as *enough to pass*. Next to it stands what the reference answers, which you need not reach. A random choice answers about one of three. (The check runs the model 30 times, each time with other texts, so it takes some seconds.)
# %% [markdown] key="own_task" lang="zh" src="187586cc"
# ## 14b.1 自己的策略
#
# 模型读两篇文本，每篇 193 个 token，24 条事实。tiny-gqa 的每个 KV 头留 48 个 token：4 个汇点、最后 12 个，还有 32 个由**你**来选。选完之后才提问。
#
# `score(view)` 给每个 token 一个数，[B, H, S] float32，最大的留下。`view` 是一层的内容：
#
# - `view.keys`、`view.values` [B, H, S, D]，即缓存里的
# - `view.state` [B, H, S]：一个 token 得到的注意力，已经对 query 和组求和
# - `view.window_probs` [B, H, S]：最后 16 个 query 给它多少
# - `view.positions` [B, H, S]；以及 `view.layer`、`view.num_layers`
#
# 每次运行，四题里至少答对三题，才算通过。检查结果里的“及格题数”就是这个标准；旁边是参考解法答对的题数，不必达到。随机选择大约三题对一题。（检查会换着文本把模型运行 30 次，需要几秒。）

# %% key="own_stub"
import torch


def score(view) -> torch.Tensor:
    ### BEGIN SOLUTION
    keys = torch.nn.functional.normalize(view.keys, dim=-1)  # [B, H, S, D]
    typical = keys.mean(2, keepdim=True)  # [B, H, 1, D]
    return -torch.nn.functional.cosine_similarity(keys, typical, dim=-1)  # [B, H, S]
    ### END SOLUTION


check("14b.1", score)

# %% [markdown] key="own_why" lang="en"
# ### BEGIN SOLUTION
# This is KeyDiff ([2025](https://arxiv.org/abs/2504.15364)). It doesn't use attention, so it also works with kernels that return none.
#
# Adding up all keys at every decode step would read the cache twice more. So `KeyDiff` of the package keeps the sum: a step adds one key and subtracts one. The sum is made of whole numbers, in units of $2^{-40}$, so it is exact after a million steps. In a model like this one, the products with it come out of the same pass over the keys as attention itself.
# ### END SOLUTION
# %% [markdown] key="own_why" lang="zh" src="a8ab2431"
# ### BEGIN SOLUTION
# 这就是 KeyDiff（[2025](https://arxiv.org/abs/2504.15364)）。它不用注意力，所以不给出注意力的 kernel 也能用。
#
# 如果每个解码步都把所有 key 重新加一遍，就要把缓存多读两遍。所以本包的 `KeyDiff` 把这个和留着，一步加一个 key，减一个 key。和用整数来记，单位是 $2^{-40}$，走过一百万步也分毫不差；在这样的模型里，各个 key 与它的乘积，在注意力读 key 的同一遍里就顺便算出来了。
# ### END SOLUTION
