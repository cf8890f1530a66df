# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="latent_task" lang="en"
# ## 15b.1 One score from all heads
#
# The new tokens of one sequence have queries for each of $H$ heads. Keys are not made: the latent part of each query has been multiplied by $W_h^K$ already. The formula is in [lesson 15](../../notebooks/en/15_eviction_on_mla.ipynb), under "One row for all heads".
#
# - `q_latent` [H, T, c], `q_rope` [H, T, d]: the queries of the T newest tokens
# - `latent` [S, c], `rope` [S, d]: what is cached, a row a token, in the order of the text; the T newest are the last
# - `scale`: what logits are multiplied by
# - `state` [S − T]: the attention that the tokens before these have got so far, from all heads
#
# Return the scores afterwards, [S]: what each token has got in all.
# %% [markdown] key="latent_task" lang="zh" src="e47aee6a"
# ## 15b.1 所有的头合成一个得分
#
# 一条序列的新 token，在 $H$ 个头里各有 query。key 不展开：每个 query 的潜在部分已经乘过 $W_h^K$。公式见[第 15 课](../../notebooks/zh/15_eviction_on_mla.ipynb)“一行，所有的头共用”一节。
#
# - `q_latent` [H, T, c]、`q_rope` [H, T, d]：最新 T 个 token 的 query
# - `latent` [S, c]、`rope` [S, d]：缓存里的，一个 token 一行，按文本的次序；最新的 T 个在最后
# - `scale`：logit 要乘的系数
# - `state` [S − T]：这之前的 token 到目前为止从所有头得到的注意力
#
# 返回这一步之后的得分 [S]：每个 token 一共得到多少。

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
    logits = (q_latent @ latent.T + q_rope @ rope.T) * scale
    queries, tokens = logits.shape[1:]
    later = torch.ones(queries, tokens, dtype=torch.bool).triu(tokens - queries + 1)
    probs = logits.masked_fill(later, -torch.inf).softmax(-1)
    score = probs.sum((0, 1))
    score[: len(state)] += state
    return score
    ### END SOLUTION


check("15b.1", latent_scores)
