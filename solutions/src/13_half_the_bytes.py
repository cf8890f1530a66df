# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="fit_task" lang="en"
# ## 13.1 A pool in tokens
#
# A pool of `pool_bytes` bytes is to hold the cache of a model of `layers` layers with `kv_heads` KV heads each.
# A token leaves one row of K and one row of V in every KV head: `head_dim` numbers of `itemsize` bytes, and beside each row a scale of `scale_bytes` bytes (0 where there is none).
# The pool is made of whole blocks of `block_size` tokens; what is left over is of no use.
#
# How many tokens does it hold?
# %% [markdown] key="fit_task" lang="zh" src="f46c2e58"
# ## 13.1 块池能放多少个 token
#
# 一个 `pool_bytes` 字节的块池，用来放一个模型的缓存：`layers` 层，每层 `kv_heads` 个 KV 头。
# 一个 token 在每个 KV 头里留下一行 K 和一行 V：`head_dim` 个数，每个 `itemsize` 字节；每行另配一个缩放因子，占 `scale_bytes` 字节（没有的话是 0）。
# 块池由整块组成，块大小为 `block_size`；剩下的零头用不上。
#
# 它放得下多少个 token？

# %% key="fit_stub"
def tokens_that_fit(
    pool_bytes: int, layers: int, kv_heads: int, head_dim: int, itemsize: int, scale_bytes: int, block_size: int
) -> int:
    ### BEGIN SOLUTION
    row = head_dim * itemsize + scale_bytes
    block = layers * kv_heads * 2 * row * block_size
    return pool_bytes // block * block_size
    ### END SOLUTION


check("13.1", tokens_that_fit)

# %% [markdown] key="rows_task" lang="en"
# ## 13.2 A token's heads as int8
#
# `heads` has one list of numbers for each KV head: the K of one token.
# Store each head by itself. Its scale makes the number that is largest without its sign 127 (or -127); every number is divided by the scale and rounded to the nearest whole one.
#
# Return for each head the whole numbers and the scale, `(numbers, scale)`, so that `number * scale` is about what was there.
# A head of zeros has zeros and the scale 0.0.
# %% [markdown] key="rows_task" lang="zh" src="2ae0ed01"
# ## 13.2 把一个 token 的各个头存成 int8
#
# `heads` 里每个 KV 头一个列表，是一个 token 的 K。
# 每个头单独存。缩放因子让绝对值最大的数变成 127（或 -127）；每个数除以缩放因子，再四舍五入成整数。
#
# 为每个头返回整数和缩放因子 `(numbers, scale)`，使 `number * scale` 约等于原来的数。
# 全零的头返回全零，缩放因子为 0.0。

# %% key="rows_stub"
def quantize(heads: list[list[float]]) -> list[tuple[list[int], float]]:
    ### BEGIN SOLUTION
    stored = []
    for row in heads:
        scale = max(abs(x) for x in row) / 127
        numbers = [round(x / scale) if scale else 0 for x in row]
        stored.append((numbers, scale))
    return stored
    ### END SOLUTION


check("13.2", quantize)

# %% [markdown] key="rows_why" lang="en"
# ### BEGIN SOLUTION
# In the package this is `minikv.kernels.quantize`, and the store kernel does it while it writes. There the scale of a row of zeros is the smallest normal float32, so that nothing has to be asked before a division.
# ### END SOLUTION
# %% [markdown] key="rows_why" lang="zh" src="ede9f508"
# ### BEGIN SOLUTION
# 在本包里这就是 `minikv.kernels.quantize`，写入的 kernel 在写的同时就做完了。那里全零的行，缩放因子取最小的正规 float32，这样做除法之前什么都不用问。
# ### END SOLUTION

# %% [markdown] key="peak_task" lang="en"
# ## 13.3 The most that a window holds
#
# One sequence in a layer whose queries see `window` tokens, themselves included.
# Its prompt of `prompt` tokens is computed in chunks of at most `chunk` tokens, each a step; then come steps of one token, until `new` tokens are generated. The last one generated is not stored.
#
# Before a step runs there is a block for every token that it computes, and all blocks are there that its *first* query reads. After the step every block goes back that no later query reads.
#
# What is the most blocks of `block_size` tokens that the sequence holds at once?
# %% [markdown] key="peak_task" lang="zh" src="beba8d5c"
# ## 13.3 窗口最多占多少
#
# 一条序列，所在的层里每个 query 能看到 `window` 个 token，包括它自己。
# 提示词有 `prompt` 个 token，分段计算，每段最多 `chunk` 个，一段是一步；然后每步一个 token，直到生成 `new` 个。生成的最后一个不存。
#
# 一步开始之前，它要计算的每个 token 都有了块，它的**第一个** query 要读的块也都还在。这一步结束后，以后的 query 不再读的块全部归还。
#
# 块大小为 `block_size`。这条序列最多同时占多少个块？

# %% key="peak_stub"
def peak_blocks(prompt: int, new: int, window: int, block_size: int, chunk: int) -> int:
    ### BEGIN SOLUTION
    most = start = 0
    while start < prompt + new - 1:
        end = min(start + chunk, prompt) if start < prompt else start + 1
        first_read = max(0, start - window + 1)
        held = -(-end // block_size) - first_read // block_size
        most = max(most, held)
        start = end
    return most
    ### END SOLUTION


check("13.3", peak_blocks)

# %% [markdown] key="propose_task" lang="en"
# ## 13.4 Drafts out of the text
#
# `tokens` is a text so far. Find the drafts for what comes next: look whether its last `n` tokens stand somewhere before, and propose the tokens that followed them there, at most `most` of them.
#
# - The more tokens agree the better: try `n = longest` first, then one fewer, down to `shortest`.
# - Of several places take the most recent.
# - The end of the text itself is no place, but a place may overlap with it.
#
# Return the drafts, `[]` where there is no place.
# %% [markdown] key="propose_task" lang="zh" src="b3dec006"
# ## 13.4 从文本自己里面找草稿
#
# `tokens` 是到目前为止的文本。为接下来的部分找草稿：看最后 `n` 个 token 前面有没有出现过，有的话，提出当时跟在后面的 token，最多 `most` 个。
#
# - 对上的越多越好：先试 `n = longest`，再逐个减少，直到 `shortest`。
# - 出现过几次的话，取最近的一次。
# - 文本末尾自己不算，但可以与它部分重叠。
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


check("13.4", propose)

# %% [markdown] key="propose_why" lang="en"
# ### BEGIN SOLUTION
# In the package this is `minikv.engine.ext.drafts.propose`. Where what follows runs into the end of the text it goes on from its beginning: a text that has just repeated itself will do so again.
# ### END SOLUTION
# %% [markdown] key="propose_why" lang="zh" src="f2db6ec7"
# ### BEGIN SOLUTION
# 在本包里这就是 `minikv.engine.ext.drafts.propose`。跟在后面的部分一直到了文本末尾时，它会从这部分的开头接着来：刚刚重复过的文本，多半还会再重复。
# ### END SOLUTION

# %% [markdown] key="step_task" lang="en"
# ## 13.5 A step with drafts
#
# `cache` holds one sequence, except for its newest token:
#
# - `cache.num_tokens`: the tokens that are in it
# - `cache.truncate(num_tokens)`: it keeps the first `num_tokens`, and forgets the others
# - `cache.publish()`: others can find its full blocks from now on
#
# `forward(tokens)` computes `tokens` behind what is in the cache, stores them there, and returns the model's own next token after each of them.
#
# Compute `newest` and the `drafts` in one forward. A draft is accepted if it is what the model says at its place, and all drafts before it were accepted.
# Return the new tokens: the accepted drafts, and behind them one token that the model says itself.
# Afterwards the cache holds `newest` and the accepted drafts besides what it held, nothing else; and others can find its full blocks, but never a token that was refused.
# %% [markdown] key="step_task" lang="zh" src="4a7025f9"
# ## 13.5 带草稿的一步
#
# `cache` 里有一条序列，只差最新的那个 token：
#
# - `cache.num_tokens`：里面有多少个 token
# - `cache.truncate(num_tokens)`：只留前 `num_tokens` 个，其余的忘掉
# - `cache.publish()`：它的满块从此能被别人找到
#
# `forward(tokens)` 接着缓存里已有的计算 `tokens`，把它们存进去，并返回模型在其中每一个之后自己说的下一个 token。
#
# 用一次前向计算算完 `newest` 和 `drafts`。草稿与模型在那个位置说的相同，而且前面的草稿都已接受，它才被接受。
# 返回新的 token：接受的草稿，后面再加一个模型自己说的。
# 结束之后，缓存里除了原有的，只多出 `newest` 和接受的草稿；别人能找到它的满块，但绝不能找到没有接受的 token。

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


check("13.5", decode_step)

# %% [markdown] key="step_why" lang="en"
# ### BEGIN SOLUTION
# `said[:accepted]` *are* the accepted drafts, so what is returned is simply what the model has said: every token of the text is its own, whoever guessed it first.
# ### END SOLUTION
# %% [markdown] key="step_why" lang="zh" src="eb3b8019"
# ### BEGIN SOLUTION
# `said[:accepted]` **就是**接受的草稿，所以返回的只是模型说过的话：文本里的每个 token 都出自它自己，不管是谁先猜到的。
# ### END SOLUTION
