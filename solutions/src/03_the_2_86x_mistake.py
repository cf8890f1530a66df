# %% [markdown] key="expanded_task" lang="en"
# ## 03.1 K and V of every head
#
# A library caches K and V of every head of an MLA model (as transformers up to 5.14.1 did). How many bytes does one token take in one layer?
#
# - `heads`: attention heads
# - `nope`, `rope`: the two parts of K, elements a head
# - `v_dim`: width of V, elements a head
# - `itemsize`: bytes an element
# %% [markdown] key="expanded_task" lang="zh" src="5e2ea4c8"
# ## 03.1 每个头的 K 和 V
#
# 对 MLA 模型，某个库缓存每个头的 K 和 V（例如 transformers 5.14.1 及更早版本）。一个 token 在一层占多少字节？
#
# - `heads`：注意力头数
# - `nope`、`rope`：K 的两个部分，每头的元素数
# - `v_dim`：V 的宽度，每头的元素数
# - `itemsize`：每个元素的字节数

# %% key="expanded_stub"
def expanded_bytes(heads: int, nope: int, rope: int, v_dim: int, itemsize: int) -> int:
    ### BEGIN SOLUTION
    k_dim = nope + rope
    return heads * (k_dim + v_dim) * itemsize
    ### END SOLUTION


check("03.1", expanded_bytes)

# %% [markdown] key="latent_task" lang="en"
# ## 03.2 The latent
#
# The same token in a library that caches latents (transformers from 5.15.0, vLLM).
# Not every argument has to be used.
# %% [markdown] key="latent_task" lang="zh" src="884ac910"
# ## 03.2 潜在向量
#
# 同一个 token，换成缓存潜在向量（latent）的库（transformers 5.15.0 起，以及 vLLM）。
# 不是每个参数都用得上。

# %% key="latent_stub"
def latent_bytes(heads: int, kv_lora_rank: int, rope: int, itemsize: int) -> int:
    ### BEGIN SOLUTION
    return (kv_lora_rank + rope) * itemsize
    ### END SOLUTION


check("03.2", latent_bytes)

# %% [markdown] key="kind_task" lang="en"
# ## 03.3 Which cache is it?
#
# `config` is a dict in the shape of a config.json, `version` is transformers' version as `(major, minor)`.
# Return:
#
# - `"heads"` for a model that is not MLA: no `kv_lora_rank`, or `None`;
# - `"latent"` if this version caches latents for this `model_type`: `deepseek_v3` since 5.15, `deepseek_v32` and `glm_moe_dsa` since 5.18;
# - `"expanded"` for an MLA model before that.
# %% [markdown] key="kind_task" lang="zh" src="a9a3d124"
# ## 03.3 缓存的是哪一种？
#
# `config` 是与 config.json 结构相同的字典，`version` 是 transformers 的版本 `(major, minor)`。
# 返回：
#
# - `"heads"`：不是 MLA 的模型，即没有 `kv_lora_rank`，或其值为 `None`；
# - `"latent"`：该版本对这个 `model_type` 缓存潜在向量。`deepseek_v3` 自 5.15 起，`deepseek_v32` 和 `glm_moe_dsa` 自 5.18 起；
# - `"expanded"`：更早版本下的 MLA 模型。

# %% key="kind_stub"
def cache_kind(config: dict, version: tuple[int, int]) -> str:
    ### BEGIN SOLUTION
    if not config.get("kv_lora_rank"):
        return "heads"
    with_indexer = config["model_type"] in ("deepseek_v32", "glm_moe_dsa")
    since = (5, 18) if with_indexer else (5, 15)
    return "latent" if version >= since else "expanded"
    ### END SOLUTION


check("03.3", cache_kind)

# %% [markdown] key="batch_task" lang="en"
# ## 03.4 A batch-size calculator
#
# Prompts wait in a queue; `lengths` are their tokens, in order.
# Return how many of the *first* ones can run as one batch within `free_bytes`.
#
# The batch is padded: every sequence takes as many tokens as the longest prompt *in the batch*, and each generates `new_tokens` more.
# A token costs `layer_bytes` in each of `layers` layers.
# During a step one layer is in memory a second time, and one layer rebuilds `rebuilt_bytes` a token; both for all tokens of the batch.
# Use all of `free_bytes`; the share of 90 % in the lesson is not part of this exercise.
# If not even the first prompt fits, the answer is 0.
# %% [markdown] key="batch_task" lang="zh" src="bd28c22c"
# ## 03.4 batch 计算器
#
# 提示词在队列里等待，`lengths` 依次是它们的 token 数。
# 返回在 `free_bytes` 之内，队列**最前面**的多少条可以组成一个 batch。
#
# batch 会补齐：每条序列都按 **batch 里**最长的提示词占用，并且各自再生成 `new_tokens` 个 token。
# 一个 token 在 `layers` 层的每一层里占 `layer_bytes` 字节。
# 每一步中，有一层会多占一份，还有一层要重建每 token `rebuilt_bytes` 字节；两者都按 batch 的全部 token 计。
# `free_bytes` 可以全部用上，不用像课文那样乘 90%。
# 如果第一条都放不下，返回 0。

# %% key="batch_stub"
def max_batch(
    free_bytes: int,
    lengths: list[int],
    new_tokens: int,
    layers: int,
    layer_bytes: int,
    rebuilt_bytes: int,
) -> int:
    ### BEGIN SOLUTION
    token_bytes = (layers + 1) * layer_bytes + rebuilt_bytes
    batch, longest = 0, 0
    for length in lengths:
        longest = max(longest, length)
        if (batch + 1) * (longest + new_tokens) * token_bytes > free_bytes:
            break
        batch += 1
    return batch
    ### END SOLUTION


check("03.4", max_batch)

# %% [markdown] key="rank_task" lang="en"
# ## 03.5 One rank's share
#
# The cache holds latents in bf16, on `tp` ranks. How many bytes does one token take in one layer on one of them?
#
# An MLA config has `kv_lora_rank` and `qk_rope_head_dim`; like the real ones it also has `num_key_value_heads` and `head_dim`.
# A GQA config has only `num_key_value_heads` and `head_dim`.
# Where there are more ranks than KV heads, heads are replicated; all numbers are powers of two that divide.
# %% [markdown] key="rank_task" lang="zh" src="55b5fe63"
# ## 03.5 一个 rank 的份额
#
# 缓存潜在向量，bf16，共 `tp` 个 rank。在其中一个 rank 上，一个 token 在一层占多少字节？
#
# MLA 配置有 `kv_lora_rank` 和 `qk_rope_head_dim`；与真实配置一样，也有 `num_key_value_heads` 和 `head_dim`。
# GQA 配置只有 `num_key_value_heads` 和 `head_dim`。
# rank 数多于 KV 头数时，KV 头会复制；头数和 rank 数都是 2 的幂，可以整除。

# %% key="rank_stub"
def rank_bytes(config: dict, tp: int) -> int:
    ### BEGIN SOLUTION
    if "kv_lora_rank" in config:
        return (config["kv_lora_rank"] + config["qk_rope_head_dim"]) * 2
    heads = max(1, config["num_key_value_heads"] // tp)
    return 2 * heads * config["head_dim"] * 2
    ### END SOLUTION


check("03.5", rank_bytes)

# %% [markdown] key="rank_why" lang="en"
# ### BEGIN SOLUTION
# The two branches differ in what tensor parallelism can touch: heads can be dealt out, a latent that all heads read cannot.
# ### END SOLUTION
# %% [markdown] key="rank_why" lang="zh" src="3cd973f2"
# ### BEGIN SOLUTION
# 两个分支的差别在于张量并行能切分什么：头可以分给各个 rank，而所有头都要读的潜在向量不能。
# ### END SOLUTION
