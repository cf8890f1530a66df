# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="freed_task" lang="en"
# ## 15.1 What comes back
#
# Several sequences are cut down to `capacity` tokens each; a shorter one stays as it is. `lengths` gives the number of tokens that each had before. A block has room for `block_size` tokens, and no two sequences share one.
#
# `layers` describes a model, a dict for each layer:
#
# - `{"kind": "gqa", "kv_heads": ..., "head_dim": ...}`: K and V for every KV head
# - `{"kind": "mla", "heads": ..., "nope": ..., "v": ..., "latent": ..., "rope": ...}`: as in DeepSeek-V3, cached the way transformers does it today; you don't need every field
#
# An element takes `itemsize` bytes. Return how many blocks go back to the pool, and how many bytes these blocks take in all layers together: `(blocks, bytes)`.
# %% [markdown] key="freed_task" lang="zh" src="ad650137"
# ## 15.1 归还多少
#
# 几条序列各减到 `capacity` 个 token；本来就更短的不动。`lengths` 是它们原来的 token 数。块大小为 `block_size`，没有两条序列共用一个块。
#
# `layers` 描述一个模型，每层一个字典：
#
# - `{"kind": "gqa", "kv_heads": ..., "head_dim": ...}`：每个 KV 头都有 K 和 V
# - `{"kind": "mla", "heads": ..., "nope": ..., "v": ..., "latent": ..., "rope": ...}`：与 DeepSeek-V3 相同，按 transformers 现在的方式缓存；并不是每个字段都用得上
#
# 一个元素 `itemsize` 字节。返回归还给块池多少个块，以及这些块在所有层里一共多少字节：`(blocks, bytes)`。

# %% key="freed_stub"
def freed(layers: list[dict], itemsize: int, block_size: int, lengths: list[int], capacity: int) -> tuple[int, int]:
    ### BEGIN SOLUTION
    row = 0
    for layer in layers:
        if layer["kind"] == "mla":
            row += layer["latent"] + layer["rope"]
        else:
            row += 2 * layer["kv_heads"] * layer["head_dim"]
    blocks = 0
    for length in lengths:
        left = min(length, capacity)
        blocks += -(-length // block_size) - -(-left // block_size)
    return blocks, blocks * block_size * row * itemsize
    ### END SOLUTION


check("15.1", freed)

# %% [markdown] key="compact_task" lang="en"
# ## 15.2 Move to the front
#
# `blocks` is one layer's cache, and one sequence on it:
#
# - `blocks.block_size`: tokens a block
# - `blocks.latent` [slots, 3], `blocks.rope` [slots, 2]: one row for each slot; block `b` has the slots from `b * block_size` on
# - `blocks.table`: the sequence's blocks, in the order of its tokens
# - `blocks.positions`: where in the text each of its tokens stands, in the same order
# - `blocks.holders`: for each block of the cache, how many sequences hold it
# - `blocks.empty`: a list of the blocks that no sequence holds; take one from it, or append one
#
# `kept` names the tokens that stay, by their places 0, 1, 2, ... in the sequence, ascending. Afterwards:
#
# - the sequence's place $i$ holds the token that was at `kept[i]`, and its position;
# - the table has as many blocks as the kept tokens need, and no more;
# - other sequences find everything as it was: you may not write into a block that another sequence also holds, so take an empty one instead;
# - blocks that no sequence holds any more are among the empty ones, and `holders` is right.
#
# Change `blocks`; return nothing. There are enough empty blocks.
# %% [markdown] key="compact_task" lang="zh" src="25dd894f"
# ## 15.2 往前搬
#
# `blocks` 是一层的缓存，上面有一条序列：
#
# - `blocks.block_size`：块大小
# - `blocks.latent` [槽位数, 3]、`blocks.rope` [槽位数, 2]：一个槽位一行；块 `b` 的槽位从 `b * block_size` 开始
# - `blocks.table`：这条序列的块，按 token 的次序
# - `blocks.positions`：它的每个 token 在文本里的位置，次序相同
# - `blocks.holders`：缓存的每个块有多少条序列持有
# - `blocks.empty`：没有序列持有的块；可以从里面取，也可以往里面放
#
# `kept` 是要留的 token，用它们在这条序列里的序号 0、1、2……表示，升序。完成以后：
#
# - 这条序列的第 $i$ 个 token，就是原来的第 `kept[i]` 个，它在文本里的位置也一起带过来；
# - 块表里的块正好放得下留下的 token，不能更多；
# - 别的序列看到的一切照旧：它们也持有的块不能写，要另取一个空块来代替；
# - 不再有序列持有的块，都在空块里，`holders` 也要对。
#
# 直接修改 `blocks`，不用返回。空块是够的。

# %% key="compact_stub" lang="en"
def compact(blocks, kept: list[int]) -> None:
    ### BEGIN SOLUTION
    size = blocks.block_size
    count = -(-len(kept) // size)
    old = [blocks.table[place // size] * size + place % size for place in kept]
    tail = blocks.table[count:]
    blocks.table = blocks.table[:count]
    for place, block in enumerate(blocks.table):
        if blocks.holders[block] > 1:
            blocks.holders[block] -= 1
            blocks.table[place] = blocks.empty.pop()
            blocks.holders[blocks.table[place]] = 1
    new = [blocks.table[i // size] * size + i % size for i in range(len(kept))]
    blocks.latent[new] = blocks.latent[old]  # [len(kept), 3]: the right side is read in full before any row is written
    blocks.rope[new] = blocks.rope[old]  # [len(kept), 2]
    for block in tail:
        blocks.holders[block] -= 1
        if blocks.holders[block] == 0:
            blocks.empty.append(block)
    blocks.positions = [blocks.positions[place] for place in kept]
    ### END SOLUTION


check("15.2", compact)

# %% key="compact_stub" lang="zh"
def compact(blocks, kept: list[int]) -> None:
    ### BEGIN SOLUTION
    size = blocks.block_size
    count = -(-len(kept) // size)
    old = [blocks.table[place // size] * size + place % size for place in kept]
    tail = blocks.table[count:]
    blocks.table = blocks.table[:count]
    for place, block in enumerate(blocks.table):
        if blocks.holders[block] > 1:
            blocks.holders[block] -= 1
            blocks.table[place] = blocks.empty.pop()
            blocks.holders[blocks.table[place]] = 1
    new = [blocks.table[i // size] * size + i % size for i in range(len(kept))]
    blocks.latent[new] = blocks.latent[old]  # [len(kept), 3]：右边先全部读出，然后才写
    blocks.rope[new] = blocks.rope[old]  # [len(kept), 2]
    for block in tail:
        blocks.holders[block] -= 1
        if blocks.holders[block] == 0:
            blocks.empty.append(block)
    blocks.positions = [blocks.positions[place] for place in kept]
    ### END SOLUTION


check("15.2", compact)

# %% [markdown] key="compact_why" lang="en"
# ### BEGIN SOLUTION
# In the package, `BlockManager.compact` updates tables and counts for all layers at once, and `PagedKVCache.move` moves the rows of each layer. The package moves fewer rows: tokens that stay and already lie in front are left where they are.
# ### END SOLUTION
# %% [markdown] key="compact_why" lang="zh" src="bcecb56d"
# ### BEGIN SOLUTION
# 在本包里，块表和计数由 `BlockManager.compact` 为所有层一次更新，数据由 `PagedKVCache.move` 一层一层地搬。本包搬得更少，因为已经在前面的行就留在原处。
# ### END SOLUTION

# %% [markdown] key="protect_task" lang="en"
# ## 15.3 Tokens that must stay
#
# A cache holds a batch and has evicted for a while, so new tokens lie in the slots of evicted ones. `positions[row][slot]` is the position of the token in that slot within its own text, counted from 0 without padding. −1 is a slot of padding (prompts were padded on the left).
#
# Return a list of the same shape that says which slots are protected: those with the first `n_sink` tokens of each row's text, and those with its last `n_recent`. All of these tokens are still there.
# %% [markdown] key="protect_task" lang="zh" src="5b9c28ed"
# ## 15.3 不能淘汰的 token
#
# 一份缓存里有一批序列，已经淘汰了一阵子，新 token 占了被淘汰的 token 的槽位。`positions[row][slot]` 是那个槽位里的 token 在自己文本里的位置，从 0 数起，不算填充；−1 是填充的槽位（提示词在左边填充）。
#
# 返回形状相同的列表，说明哪些槽位受保护，即每一行文本最前面的 `n_sink` 个 token 和最后面的 `n_recent` 个所在的槽位。这些 token 都还在。

# %% key="protect_stub"
def protected(positions: list[list[int]], n_sink: int, n_recent: int) -> list[list[bool]]:
    ### BEGIN SOLUTION
    answer = []
    for row in positions:
        newest = max(row)
        answer.append([0 <= place < n_sink or place > newest - n_recent for place in row])
    return answer
    ### END SOLUTION


check("15.3", protected)

# %% [markdown] key="places_task" lang="en"
# ## 15.4 Position, slot, length
#
# A step computes the next tokens of several sequences. Sequence `i` has had `text[i]` tokens so far, evicted ones included, and gets `new[i]` more.
# A model may have several KV cache groups, and each group has evicted its own number: `evicted[group][i]` tokens of sequence `i`. `tables[group][i]` is its block table there, with blocks of `block_size`; tokens that are left fill it from the front, and new ones come behind them.
#
# Return a dict:
#
# - `"positions"`: for RoPE, one for each new token of all sequences, one sequence behind the other;
# - `"slots"`: for each group a list of the same length: the slot for K and V (or the latent) of each new token;
# - `"lengths"`: for each group a list with one number for each sequence: how many tokens the kernel reads, the new ones included.
# %% [markdown] key="places_task" lang="zh" src="a3069320"
# ## 15.4 位置、槽位、长度
#
# 一步计算几条序列接下来的 token。序列 `i` 到目前为止有过 `text[i]` 个 token，淘汰了的也算，这一步再来 `new[i]` 个。
# 一个模型可以有几个 KV 缓存组，每组淘汰的个数不同：序列 `i` 在第 `group` 组淘汰了 `evicted[group][i]` 个。`tables[group][i]` 是它在那一组的块表，块大小为 `block_size`；剩下的 token 从头排起，新的接在后面。
#
# 返回一个字典：
#
# - `"positions"`：给 RoPE 用，所有序列的每个新 token 一个，一条序列接着一条；
# - `"slots"`：每一组一份同样长的列表，即每个新 token 的 K 和 V（或潜在向量）写到哪个槽位；
# - `"lengths"`：每一组一份列表，每条序列一个数，即 kernel 要读多少个 token，新的也算在内。

# %% key="places_stub"
def next_tokens(
    text: list[int], new: list[int], evicted: list[list[int]], tables: list[list[list[int]]], block_size: int
) -> dict:
    ### BEGIN SOLUTION
    answer = {"positions": [], "slots": [[] for _ in tables], "lengths": [[] for _ in tables]}
    for i, (before, count) in enumerate(zip(text, new)):
        answer["positions"] += range(before, before + count)
        for group, of_group in enumerate(tables):
            held = before - evicted[group][i]
            for place in range(held, held + count):
                block = of_group[i][place // block_size]
                answer["slots"][group].append(block * block_size + place % block_size)
            answer["lengths"][group].append(held + count)
    return answer
    ### END SOLUTION


check("15.4", next_tokens)
