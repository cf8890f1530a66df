# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="latent_task" lang="en"
# ## 15b.1 One score from all heads
#
# The new tokens of one sequence have a query in each of $H$ heads. No keys are made, because the latent part of each query has been multiplied by $W_h^K$ already. The formula is in [lesson 15](../../notebooks/en/15_eviction_on_mla.ipynb), under "One row for all heads".
#
# - `q_latent` [H, T, c], `q_rope` [H, T, d]: the queries of the T newest tokens
# - `latent` [S, c], `rope` [S, d]: what is cached, one row for each token, in the order of the text; the T newest tokens come last
# - `scale`: the factor by which the logits are multiplied
# - `state` [S − T]: the attention that each older token has got so far, summed over all heads
#
# Return the scores after this step, [S]: the attention that each token has got in all. A query must not look at tokens that come after it.
# %% [markdown] key="latent_task" lang="zh" src="4afc0358"
# ## 15b.1 所有的头合成一个得分
#
# 一条序列的新 token，在 $H$ 个头里各有一个 query。key 不用展开，因为每个 query 的潜在部分已经乘过 $W_h^K$。公式见[第 15 课](../../notebooks/zh/15_eviction_on_mla.ipynb)“一行，所有的头共用”一节。
#
# - `q_latent` [H, T, c]、`q_rope` [H, T, d]：最新 T 个 token 的 query
# - `latent` [S, c]、`rope` [S, d]：缓存里的内容，一个 token 一行，按文本的次序排列，最新的 T 个在最后
# - `scale`：logit 要乘的系数
# - `state` [S − T]：更早的每个 token 到目前为止得到的注意力，已对所有的头求和
#
# 返回这一步之后的得分 [S]，也就是每个 token 一共得到多少注意力。query 不能看到排在自己后面的 token。

# %% key="latent_stub"
import torch


def latent_scores(
    state: torch.Tensor,
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    latent: torch.Tensor,
    rope: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    ### BEGIN SOLUTION
    logits = (q_latent @ latent.T + q_rope @ rope.T) * scale  # [H, T, S]
    queries, tokens = logits.shape[1:]
    later = torch.ones(queries, tokens, dtype=torch.bool).triu(tokens - queries + 1)
    probs = logits.masked_fill(later, -torch.inf).softmax(-1)
    score = probs.sum((0, 1))  # [S]
    score[: len(state)] += state
    return score
    ### END SOLUTION


check("15b.1", latent_scores)
