# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="propose_task" lang="en"
# ## 13b.1 Drafts out of the text
#
# `tokens` is a text so far. Find drafts for what comes next: see whether its last `n` tokens appear somewhere before, and propose the tokens that followed them there, at most `most` of them.
#
# - A longer match is better, so try `n = longest` first, then one fewer, down to `shortest`.
# - If there are several places, take the most recent one.
# - The end of the text itself is no such place, but a place may overlap with it.
#
# For example, with `longest = 2` and `most = 2`, the text `[5, 6, 7, 5, 6]` gives `[7, 5]`, because its last tokens 5, 6 are also at its start, where 7, 5 followed.
#
# Return the drafts, or `[]` if there is no such place.
# %% [markdown] key="propose_task" lang="zh" src="05081e77"
# ## 13b.1 从文本里找草稿
#
# `tokens` 是到目前为止的文本。请为接下来的部分找草稿：看最后 `n` 个 token 前面有没有出现过，有的话，提出当时跟在后面的 token，最多 `most` 个。
#
# - 对上的越长越好，所以先试 `n = longest`，再逐个减少，直到 `shortest`。
# - 出现过几次的话，取最近的一次。
# - 文本末尾自己不算，但可以与它部分重叠。
#
# 例如文本是 `[5, 6, 7, 5, 6]`，`longest = 2`，`most = 2`：最后的 5, 6 在开头出现过，当时跟在后面的是 7, 5，所以返回 `[7, 5]`。
#
# 返回草稿；找不到就返回 `[]`。

# %% key="propose_stub"
def propose(tokens: list[int], most: int, longest: int, shortest: int) -> list[int]:
    ### BEGIN SOLUTION
    for n in range(longest, shortest - 1, -1):
        tail = tokens[-n:]
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == tail:
                return tokens[start + n : start + n + most]
    return []
    ### END SOLUTION


check("13b.1", propose)

# %% [markdown] key="propose_why" lang="en"
# ### BEGIN SOLUTION
# In the package this is `minikv.engine.ext.drafts.propose`. If what follows runs into the end of the text, it goes on from its beginning, because a text that has just repeated itself is likely to do so again.
# ### END SOLUTION
# %% [markdown] key="propose_why" lang="zh" src="52c50d80"
# ### BEGIN SOLUTION
# 在本包里这就是 `minikv.engine.ext.drafts.propose`。跟在后面的部分如果一直到了文本末尾，它会从这部分的开头接着来，因为刚刚重复过的文本，多半还会再重复。
# ### END SOLUTION

# %% [markdown] key="step_task" lang="en"
# ## 13b.2 A step with drafts
#
# `cache` holds one sequence, except for its newest token:
#
# - `cache.num_tokens`: the tokens that are in it
# - `cache.truncate(num_tokens)`: keeps the first `num_tokens`, and forgets the others
# - `cache.publish()`: from now on other requests can find its full blocks
#
# `forward(tokens)` computes `tokens` as the continuation of what is in the cache, stores them there, and returns the model's own next token after each of them.
#
# Compute `newest` and the `drafts` in one forward. A draft is accepted if it is what the model says at its place, and all drafts before it were accepted.
# Return the new tokens: the accepted drafts, and then one token that the model says itself.
# Afterwards the cache holds `newest` and the accepted drafts in addition to what it held, and nothing else. Other requests can find its full blocks, but never a token that was rejected.
# %% [markdown] key="step_task" lang="zh" src="b113e7a0"
# ## 13b.2 带草稿的一步
#
# `cache` 里有一条序列，只差最新的那个 token：
#
# - `cache.num_tokens`：里面有多少个 token
# - `cache.truncate(num_tokens)`：只留前 `num_tokens` 个，其余的忘掉
# - `cache.publish()`：从此其他请求能找到它的满块
#
# `forward(tokens)` 接着缓存里已有的内容计算 `tokens`，把它们存进去，并返回模型在每个 token 之后自己说的下一个 token。
#
# 用一次前向计算算完 `newest` 和 `drafts`。一个草稿如果与模型在那个位置说的相同，而且前面的草稿都已接受，它就被接受。
# 返回新的 token：接受的草稿，后面再加模型自己说的一个。
# 结束之后，缓存里除了原有的，只多出 `newest` 和接受的草稿。其他请求能找到它的满块，但绝不能找到没有接受的 token。

# %% key="step_stub"
def decode_step(cache, newest: int, drafts: list[int], forward) -> list[int]:
    ### BEGIN SOLUTION
    before = cache.num_tokens
    said = forward([newest, *drafts])
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == said[accepted]:
        accepted += 1
    cache.truncate(before + 1 + accepted)
    cache.publish()
    return said[: accepted + 1]
    ### END SOLUTION


check("13b.2", decode_step)

# %% [markdown] key="step_why" lang="en"
# ### BEGIN SOLUTION
# `said[:accepted]` *are* the accepted drafts, so the function simply returns what the model has said. Every token of the text is the model's own, although a draft may have guessed it first.
# ### END SOLUTION
# %% [markdown] key="step_why" lang="zh" src="3cf591ce"
# ### BEGIN SOLUTION
# `said[:accepted]` **就是**接受的草稿，所以返回的只是模型说过的话。文本里的每个 token 都出自模型自己，尽管有的先被草稿猜中了。
# ### END SOLUTION
