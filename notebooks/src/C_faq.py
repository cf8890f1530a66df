# %% [meta]
# number = "C"
# slug = "faq"
# needs = ["02"]
# rooms = ["plan", "blocks"]
# [title]
# en = "FAQ: short questions, each answered by one call"
# zh = "常见问题：短问短答，一次调用一个答案"
# [t4]
# en = "Arithmetic on the CPU: a T4 shows the same numbers."
# zh = "全是 CPU 上的算术：T4 上看到的数字相同。"

# %% [markdown] key="question" lang="en"
# ## The question
#
# You are in the middle of something and need one number: how many tokens fit, whether fp8 helps, why memory does not come back. Most of these questions have a short answer once you know which number to ask for.
#
# **Which call gives you that number?**
#
# Here are fifteen questions that come up again and again.
# Each has one call, its result, and the lesson that explains it.
# Put your own model and card into the calls. That is what this page is for.
#
# Two guesses first.
# %% [markdown] key="question" lang="zh" src="9d2e1907"
# ## 问题
#
# 你正忙着别的事，只想知道一个数：能放多少 token，fp8 有没有用，显存为什么没有还回去。只要知道该看哪个数，这类问题大多有简短的答案。
#
# **这个数，用哪一次调用能得到？**
#
# 下面是反复出现的十五个问题。
# 每个问题配一次调用、它的结果，以及讲透它的那一课。
# 把你自己的模型和显卡填进调用里，这一页就是为此准备的。
#
# 先猜两个。

# %% key="predict_tokens"
predict("tokens_fit", ...)

# %% key="predict_mla"
predict("mla_bytes", ...)

# %% [markdown] key="memory" lang="en"
# ## Memory
#
# ### 1. How many tokens fit?
# %% [markdown] key="memory" lang="zh" src="31eea067"
# ## 显存
#
# ### 1. 能放下多少个 token？

# %% key="tokens" lang="en"
from minikv.course import Table
from minikv.plan import CacheSpec, plan_memory

model, card = "Llama-3.1-8B", "H100 SXM 80GB"
budget = plan_memory(model, gpu=card)
row = budget.max_tokens, f"{budget.kv_bytes / 2**30:.1f}", budget.spec.bytes_for(1) / 1024
Table(["tokens", "pool (GiB)", "a token (KiB)"], [row], right=["pool (GiB)"])

# %% key="tokens" lang="zh"
from minikv.course import Table
from minikv.plan import CacheSpec, plan_memory

model, card = "Llama-3.1-8B", "H100 SXM 80GB"
budget = plan_memory(model, gpu=card)
row = budget.max_tokens, f"{budget.kv_bytes / 2**30:.1f}", budget.spec.bytes_for(1) / 1024
Table(["token 数", "块池（GiB）", "每个 token（KiB）"], [row], right=["块池（GiB）"])

# %% [markdown] key="tokens_read" lang="en"
# Take the share of memory that the engine may use, subtract weights, activations and CUDA context, and divide what is left by the bytes of a token. [Lesson 02](02_how_many_bytes.ipynb) does it on paper, and [lesson 08](08_allocate_kv_cache.ipynb) measures it.
#
# ### 2. May one sequence have them all?
# %% [markdown] key="tokens_read" lang="zh" src="de6d6a51"
# 从可用的显存里扣掉权重、激活和 CUDA 上下文，剩下的除以每个 token 的字节数。纸面上的算法见[第 02 课](02_how_many_bytes.ipynb)，实测见[第 08 课](08_allocate_kv_cache.ipynb)。
#
# ### 2. 一条序列能全用上吗？

# %% key="longest" lang="en"
Table(["sequences at once", "tokens of each, at most"], [(batch, budget.max_context(batch=batch)) for batch in (1, 8)])

# %% key="longest" lang="zh"
Table(["同时的序列", "每条最多多少 token"], [(batch, budget.max_context(batch=batch)) for batch in (1, 8)])

# %% [markdown] key="longest_read" lang="en"
# No. Memory is one limit. The other is the number of positions that the model was trained for, and the smaller of the two counts. Alone, a sequence may have the model's 131,072 positions. Eight sequences share the 445,856 tokens, in whole blocks of 16 ([appendix A](A_errata.ipynb)).
#
# ### 3. Why does a small model sometimes have the larger cache? (Why GQA?)
# %% [markdown] key="longest_read" lang="zh" src="ba102f8e"
# 不能。显存是一个上限，模型的位置数是另一个：模型只训练了这么多位置，两者取较小的。单独一条时，上限是模型的 131,072 个位置；八条时，平分 445,856 个 token，每条取 16 的整数倍（[附录 A](A_errata.ipynb)）。
#
# ### 3. 为什么小模型的缓存有时反而更大？（GQA 有什么用？）

# %% key="gqa" lang="en"
specs = {name: CacheSpec.from_config(name) for name in ("Llama-2-7B", "Llama-3.1-8B", "Qwen2.5-7B")}
rows = [(name, spec.layers[0].kv_heads, spec.bytes_for(1) / 1024) for name, spec in specs.items()]
Table(["model", "KV heads", "a token (KiB)"], rows)

# %% key="gqa" lang="zh"
specs = {name: CacheSpec.from_config(name) for name in ("Llama-2-7B", "Llama-3.1-8B", "Qwen2.5-7B")}
rows = [(name, spec.layers[0].kv_heads, spec.bytes_for(1) / 1024) for name, spec in specs.items()]
Table(["模型", "KV 头", "每个 token（KiB）"], rows)

# %% [markdown] key="gqa_read" lang="en"
# Because the size of a cache depends on the KV heads, not on the parameters. With grouped-query attention (GQA) several query heads read one KV head, so fewer K and V are stored ([lesson 02](02_how_many_bytes.ipynb)).
#
# ### 4. Does an fp8 cache halve everything?
# %% [markdown] key="gqa_read" lang="zh" src="6b1e7ae5"
# 因为缓存的大小取决于 KV 头数，而不是参数量。分组查询注意力（GQA）让几个 query 头共读一个 KV 头，要存的 K 和 V 就少了（[第 02 课](02_how_many_bytes.ipynb)）。
#
# ### 4. fp8 缓存能让一切减半吗？

# %% key="fp8" lang="en"
rows = []
for kv_dtype in ("bf16", "fp8_e4m3"):
    half = plan_memory(model, gpu=card, kv_dtype=kv_dtype)
    sizes = f"{half.weight_bytes / 2**30:.1f}", f"{half.kv_bytes / 2**30:.1f}"
    rows.append((kv_dtype, half.spec.bytes_for(1) / 1024, *sizes, half.max_tokens))
head = ["kv_dtype", "a token (KiB)", "weights (GiB)", "pool (GiB)", "tokens"]
Table(head, rows, right=head[1:])

# %% key="fp8" lang="zh"
rows = []
for kv_dtype in ("bf16", "fp8_e4m3"):
    half = plan_memory(model, gpu=card, kv_dtype=kv_dtype)
    sizes = f"{half.weight_bytes / 2**30:.1f}", f"{half.kv_bytes / 2**30:.1f}"
    rows.append((kv_dtype, half.spec.bytes_for(1) / 1024, *sizes, half.max_tokens))
head = ["kv_dtype", "每个 token（KiB）", "权重（GiB）", "块池（GiB）", "token 数"]
Table(head, rows, right=head[1:])

# %% [markdown] key="fp8_read" lang="en"
# No, only the bytes of a token, so twice as many tokens fit. Weights and pool stay as they are. What fp8 costs in quality is another question, and [lesson 13](13_half_the_bytes.ipynb) measures it.
#
# ### 5. Does tensor parallelism divide the cache?
# %% [markdown] key="fp8_read" lang="zh" src="f7bc7dda"
# 不能。减半的只是每个 token 的字节数，所以能放下两倍的 token；权重和块池都不变。fp8 在质量上的代价是另一个问题，[第 13 课](13_half_the_bytes.ipynb)会实测。
#
# ### 5. 张量并行能把缓存切小吗？

# %% key="tp" lang="en"
rows = []
for name in ("Llama-3.1-8B", "DeepSeek-V3"):
    kib = [CacheSpec.from_config(name, tp=tp).bytes_for(1) / 1024 for tp in (1, 8, 16)]
    rows.append((name, *kib))
Table(["a token on each rank (KiB)", "tp=1", "tp=8", "tp=16"], rows)

# %% key="tp" lang="zh"
rows = []
for name in ("Llama-3.1-8B", "DeepSeek-V3"):
    kib = [CacheSpec.from_config(name, tp=tp).bytes_for(1) / 1024 for tp in (1, 8, 16)]
    rows.append((name, *kib))
Table(["一个 token 在每个 rank 上（KiB）", "tp=1", "tp=8", "tp=16"], rows)

# %% [markdown] key="tp_read" lang="en"
# Yes, by KV heads, down to one head a rank. MLA keeps one latent for all heads, so every rank stores all of it ([lesson 12](12_beyond_one_gpu.ipynb)).
#
# ### 6. How much do sliding windows save?
# %% [markdown] key="tp_read" lang="zh" src="799973fc"
# 能，按 KV 头切，最少每个 rank 一个头。MLA 的所有头共用一个潜在向量（latent），所以每个 rank 都要存全（[第 12 课](12_beyond_one_gpu.ipynb)）。
#
# ### 6. 滑动窗口能省多少？

# %% key="window" lang="en"
gemma, rows = CacheSpec.from_config("Gemma-3-27B"), []
for num_tokens in (1_024, 32_768, 131_072):
    found, every = gemma.bytes_for(num_tokens), num_tokens * gemma.block_bytes(1)  # every: as if no layer had a window
    rows.append((num_tokens, f"{found / 2**20:,.0f}", round(100 * found / every)))
Table(["tokens", "MiB", "% of the same without windows"], rows, right=["MiB"])

# %% key="window" lang="zh"
gemma, rows = CacheSpec.from_config("Gemma-3-27B"), []
for num_tokens in (1_024, 32_768, 131_072):
    found, every = gemma.bytes_for(num_tokens), num_tokens * gemma.block_bytes(1)  # every：假设所有层都没有窗口
    rows.append((num_tokens, f"{found / 2**20:,.0f}", round(100 * found / every)))
Table(["token 数", "MiB", "占没有窗口时的 %"], rows, right=["MiB"])

# %% [markdown] key="window_read" lang="en"
# Nothing until the window of 1,024 tokens is full. From then on the layers with a window take hardly any more. 52 of Gemma 3's 62 layers have a window; the other 10 store every token, so the share falls towards 10 / 62 = 16 % ([lesson 02b](02b_layers_that_differ.ipynb), [lesson 13](13_half_the_bytes.ipynb)).
#
# ### 7. Why not set utilization to 1.0?
# %% [markdown] key="window_read" lang="zh" src="e2a2dc97"
# 1,024 个 token 的窗口没满时，一点也不省；满了之后，那些层再往后的部分几乎全省下来。Gemma 3 的 62 层里 52 层有窗口，其余 10 层每个 token 都存，所以比例会逼近 10 / 62 = 16%（[第 02b 课](02b_layers_that_differ.ipynb)、[第 13 课](13_half_the_bytes.ipynb)）。
#
# ### 7. 为什么不把 utilization 设成 1.0？

# %% key="utilization" lang="en"
rows = []
for utilization in (0.9, 0.95, 1.0):
    tried = plan_memory(model, gpu=card, utilization=utilization)
    rows.append((str(utilization), tried.max_tokens, f"{tried.parts()['kept_free'] / 2**30:.1f}"))
Table(["utilization", "tokens", "kept free (GiB)"], rows, right=["kept free (GiB)"])

# %% key="utilization" lang="zh"
rows = []
for utilization in (0.9, 0.95, 1.0):
    tried = plan_memory(model, gpu=card, utilization=utilization)
    rows.append((str(utilization), tried.max_tokens, f"{tried.parts()['kept_free'] / 2**30:.1f}"))
Table(["utilization", "token 数", "留空（GiB）"], rows, right=["留空（GiB）"])

# %% [markdown] key="utilization_read" lang="en"
# You win a seventh more tokens and lose the whole reserve. A CUDA graph, a second process, or a peak that the warm-up did not have then leads to an out-of-memory error ([lesson 08](08_allocate_kv_cache.ipynb)).
#
# ### 8. Why is memory not given back?
# %% [markdown] key="utilization_read" lang="zh" src="23fccb18"
# token 能多出七分之一，但一点余地也没有了。这时只要来一个 CUDA 图、第二个进程，或者预热时没出现过的峰值，就会显存不足（[第 08 课](08_allocate_kv_cache.ipynb)）。
#
# ### 8. 为什么显存没有还回去？

# %% key="returned" lang="en"
from minikv.memory import CachingAllocator

allocator, rows = CachingAllocator(capacity=80 * 2**30), []
tensor = allocator.malloc(2 * 2**30)
allocator.free(tensor)
for moment in ("the tensor is freed", "after empty_cache()"):
    stats = allocator.memory_stats()
    rows.append((moment, *(stats[f"{name}_bytes.all.current"] // 2**30 for name in ("allocated", "reserved"))))
    allocator.empty_cache()
Table(["", "allocated (GiB)", "reserved (GiB)"], rows)

# %% key="returned" lang="zh"
from minikv.memory import CachingAllocator

allocator, rows = CachingAllocator(capacity=80 * 2**30), []
tensor = allocator.malloc(2 * 2**30)
allocator.free(tensor)
for moment in ("张量释放之后", "empty_cache() 之后"):
    stats = allocator.memory_stats()
    rows.append((moment, *(stats[f"{name}_bytes.all.current"] // 2**30 for name in ("allocated", "reserved"))))
    allocator.empty_cache()
Table(["", "已分配（GiB）", "已保留（GiB）"], rows)

# %% [markdown] key="returned_read" lang="en"
# When you free a tensor, its memory goes back to PyTorch, and PyTorch keeps it for the next one. That is no leak. (An engine's pool is one tensor that is never freed at all.) If *allocated* stays high, a variable still holds a tensor: [lesson 07](07_allocate_once.ipynb) explains the first, [lesson 16](16_where_did_6gb_go.ipynb) finds the second.
#
# ## Blocks
#
# ### 9. Why blocks?
# %% [markdown] key="returned_read" lang="zh" src="50383b7a"
# 释放一个张量，显存是还给 PyTorch，PyTorch 会留着给下一个张量用，这不是泄漏。（引擎的块池则是一个从不释放的张量。）如果“已分配”一直很高，那就是还有变量持有张量。前一种情况见[第 07 课](07_allocate_once.ipynb)，后一种情况怎么查，见[第 16 课](16_where_did_6gb_go.ipynb)。
#
# ## 块
#
# ### 9. 为什么要分块？

# %% key="blocks" lang="en"
ways = {"8,192 tokens reserved for each": 8_192, "blocks for the 1,000 tokens that each has": 1_000}
Table(["", "sequences that fit"], [(way, budget.max_batch(tokens)) for way, tokens in ways.items()])

# %% key="blocks" lang="zh"
ways = {"每条预留 8,192 个 token": 8_192, "按块分配每条实有的 1,000 个 token": 1_000}
Table(["", "放得下的序列"], [(way, budget.max_batch(tokens)) for way, tokens in ways.items()])

# %% [markdown] key="blocks_read" lang="en"
# Without blocks a sequence has to reserve the longest that it may become. With blocks it holds what it has, and gets the next block when it needs it ([lesson 06](06_the_linear_cache.ipynb), [lesson 09](09_pages_and_blocks.ipynb)).
#
# ### 10. Which block size?
# %% [markdown] key="blocks_read" lang="zh" src="4dbd2dfc"
# 不分块，序列就得按可能达到的最大长度预留。分了块，序列有多少 token 就占多少，需要时再拿下一块（[第 06 课](06_the_linear_cache.ipynb)、[第 09 课](09_pages_and_blocks.ipynb)）。
#
# ### 10. 块大小选多少？

# %% key="size" lang="en"
from minikv.blocks import BlockManager

rows = []
for block_size in (1, 16, 64, 256):
    sized = plan_memory(model, gpu=card, block_size=block_size)
    manager = BlockManager(2_000, block_size)
    manager.allocate("first", range(1_000))
    manager.commit("first")
    hit = manager.match([*range(500), *range(2_000, 2_100)]).num_tokens
    rows.append((block_size, sized.max_batch(1_000), hit, -(-131_072 // block_size)))
Table(["block size", "sequences of 1,000 tokens", "found of 500 shared tokens", "table entries for 131,072 tokens"], rows)

# %% key="size" lang="zh"
from minikv.blocks import BlockManager

rows = []
for block_size in (1, 16, 64, 256):
    sized = plan_memory(model, gpu=card, block_size=block_size)
    manager = BlockManager(2_000, block_size)
    manager.allocate("first", range(1_000))
    manager.commit("first")
    hit = manager.match([*range(500), *range(2_000, 2_100)]).num_tokens
    rows.append((block_size, sized.max_batch(1_000), hit, -(-131_072 // block_size)))
Table(["块大小", "放得下的序列（各 1,000 个 token）", "500 个公共 token 中命中的", "131,072 个 token 的块表项数"], rows)

# %% [markdown] key="size_read" lang="en"
# Small blocks waste less and find more of a prefix, while large blocks have short tables. Between 16 and 64 neither loss is large ([lesson 09](09_pages_and_blocks.ipynb)).
#
# ### 11. What does a prefix hit save: memory or time?
# %% [markdown] key="size_read" lang="zh" src="a94d0d3c"
# 块小，浪费少，前缀也命中得多，例如块大小为 256 时，500 个公共 token 只命中 256 个。块大，块表短。16 到 64 之间，两方面的损失都不大（[第 09 课](09_pages_and_blocks.ipynb)）。
#
# ### 11. 前缀命中省的是显存还是时间？

# %% key="prefix" lang="en"
manager, rows = BlockManager(num_blocks=200, block_size=16), []
for user in range(8):
    given = manager.allocate(user, [*range(1_000), 2_000 + user])
    manager.commit(user)
    rows.append((user + 1, given.num_tokens - given.num_cached, manager.stats().pools[0].used))
Table(["user", "tokens to compute", "blocks in use"], [rows[0], rows[1], rows[7]])

# %% key="prefix" lang="zh"
manager, rows = BlockManager(num_blocks=200, block_size=16), []
for user in range(8):
    given = manager.allocate(user, [*range(1_000), 2_000 + user])
    manager.commit(user)
    rows.append((user + 1, given.num_tokens - given.num_cached, manager.stats().pools[0].used))
Table(["第几个用户", "要算的 token", "已用的块"], [rows[0], rows[1], rows[7]])

# %% [markdown] key="prefix_read" lang="en"
# Both, while the requests run together: the second user computes 9 tokens, and the common blocks are stored once. After they have ended it saves time alone, because free blocks keep what they hold only until another sequence gets them ([lesson 09](09_pages_and_blocks.ipynb), [lesson 11a](11a_continuous_batching.ipynb)).
#
# ## Running
#
# ### 12. Why preemption?
# %% [markdown] key="prefix_read" lang="zh" src="c2cf4fc5"
# 同时运行时两样都省：第二个用户只算 9 个 token，公共的块只存一份。都结束之后就只省时间，因为空闲块里的内容只保留到分给别的序列为止（[第 09 课](09_pages_and_blocks.ipynb)、[第 11a 课](11a_continuous_batching.ipynb)）。
#
# ## 运行
#
# ### 12. 为什么要抢占？

# %% key="preemption" lang="en"
ways = {"what a sequence holds after its prompt": 500, "the most that it may come to hold": 500 + 4_096}
Table(["admitted by", "sequences at once"], [(way, budget.max_batch(tokens)) for way, tokens in ways.items()])

# %% key="preemption" lang="zh"
ways = {"提示词算完时的占用": 500, "可能的最大占用": 500 + 4_096}
Table(["按什么接纳", "同时的序列"], [(way, budget.max_batch(tokens)) for way, tokens in ways.items()])

# %% [markdown] key="preemption_read" lang="en"
# The length of an answer is not known in advance. Here every prompt has 500 tokens, and an answer may have 4,096. If the scheduler admits by the worst case, it runs a ninth of the sequences. If it admits by what they hold now, it must be able to take blocks back ([lesson 11b](11b_when_blocks_run_out.ipynb)).
#
# ### 13. Then swap, or compute again?
# %% [markdown] key="preemption_read" lang="zh" src="cdc77306"
# 回答有多长，事先无法知道。这里每个提示词 500 个 token，回答最长 4,096 个。按最坏情况接纳，只能同时跑九分之一的序列；按当前占用接纳，调度器就必须能把块收回来（[第 11b 课](11b_when_blocks_run_out.ipynb)）。
#
# ### 13. 抢占之后，换出还是重新计算？

# %% key="swap" lang="en"
from minikv.plan.preemption import break_even_prefill

token, rows = budget.spec.bytes_for(1), []
for link in (12, 25, 50):
    rows.append((link, round(break_even_prefill(token, to_host=link * 1e9, to_device=link * 1e9))))
Table(["link (GB/s)", "prefill at which both take as long (tokens/s)"], rows)

# %% key="swap" lang="zh"
from minikv.plan.preemption import break_even_prefill

token, rows = budget.spec.bytes_for(1), []
for link in (12, 25, 50):
    rows.append((link, round(break_even_prefill(token, to_host=link * 1e9, to_device=link * 1e9))))
Table(["链路（GB/s）", "两者一样快时，每秒预填充的 token"], rows)

# %% [markdown] key="swap_read" lang="en"
# Swapping moves each token's 131,072 B to the host and back: over 12 GB/s that is $12 \cdot 10^9 / (2 \cdot 131{,}072) = 45{,}776$ tokens a second. If your GPU prefills faster than that, compute again. Both times grow with the sequence, so its length does not matter ([lesson 12](12_beyond_one_gpu.ipynb)).
#
# ### 14. Why does the GPU wait in decode, and does a larger batch help?
# %% [markdown] key="swap_read" lang="zh" src="e3b47e67"
# 换出再换入，每个 token 的 131,072 B 要走两趟：链路为 12 GB/s 时，每秒 $12 \cdot 10^9 / (2 \cdot 131{,}072) = 45{,}776$ 个 token。如果你的 GPU 预填充比这个速度快，就重新计算。两种办法的时间都与序列长度成正比，所以结论与长短无关（[第 12 课](12_beyond_one_gpu.ipynb)）。
#
# ### 14. 解码时 GPU 为什么在等？batch 大一点有用吗？

# %% key="roofline" lang="en"
from minikv.plan import find_gpu
from minikv.plan.roofline import decode_work, gpu_roof

rows = []
for batch in (1, 16, 108):
    work = decode_work(model, batch, 4_096)
    rows.append((batch, *(f"{x:.1f}" for x in (work.weight_intensity, work.attention_intensity, work.intensity))))
head = ["batch", "FLOP for a byte of weights", "FLOP for a byte of cache", "FLOP for a byte of the whole step"]
ridge = f"{card} waits below {gpu_roof(find_gpu(card)).ridge:.0f} FLOP for each byte that it reads"
Table(head, rows, right=head[1:], lines=[ridge])

# %% key="roofline" lang="zh"
from minikv.plan import find_gpu
from minikv.plan.roofline import decode_work, gpu_roof

rows = []
for batch in (1, 16, 108):
    work = decode_work(model, batch, 4_096)
    rows.append((batch, *(f"{x:.1f}" for x in (work.weight_intensity, work.attention_intensity, work.intensity))))
head = ["batch", "每字节权重的 FLOP", "每字节缓存的 FLOP", "整步平均每字节的 FLOP"]
ridge = f"{card} 每读一个字节，要有 {gpu_roof(find_gpu(card)).ridge:.0f} FLOP 的计算，才不用等数据"
Table(head, rows, right=head[1:], lines=[ridge])

# %% [markdown] key="roofline_read" lang="en"
# It waits for bytes. A larger batch helps with the weights, which are read once for all sequences. It does not help with the cache, because each sequence reads its own: a byte of it brings 4 FLOP at any batch, one for each of the 4 query heads that share a KV head. (108 sequences of 4,096 tokens are as many as fit.) [Lesson 04](04_the_roofline.ipynb) explains why.
#
# ### 15. When does eviction pay?
# %% [markdown] key="roofline_read" lang="zh" src="13414492"
# GPU 在等数据。batch 大，权重这部分会改善，因为读一次权重，整个 batch 共用；缓存这部分不会改善，因为每条序列读的是自己的缓存：不论 batch 多大，每字节都只带来 4 FLOP，因为 4 个 query 头共用一个 KV 头。（长 4,096 个 token 的序列，最多放得下 108 条。）道理见[第 04 课](04_the_roofline.ipynb)。
#
# ### 15. 什么时候值得淘汰？

# %% key="eviction" lang="en"
rows = []
for batch, context in ((1, 4_096), (1, 131_072), (64, 4_096)):
    work = decode_work(model, batch, context)
    share = work.cache_bytes / work.num_bytes
    faster = 1 / (1 - 0.75 * share)  # three quarters of the cache are not read
    rows.append((batch, context, round(100 * share), f"{faster:.2f}"))
head = ["batch", "tokens of each", "cache, % of the bytes that a step reads", "a quarter kept: times as fast, at most"]
Table(head, rows, right=head[3:])

# %% key="eviction" lang="zh"
rows = []
for batch, context in ((1, 4_096), (1, 131_072), (64, 4_096)):
    work = decode_work(model, batch, context)
    share = work.cache_bytes / work.num_bytes
    faster = 1 / (1 - 0.75 * share)  # 四分之三的缓存不用读
    rows.append((batch, context, round(100 * share), f"{faster:.2f}"))
head = ["batch", "每条的 token", "缓存占一步所读字节的 %", "只留四分之一，最多快到几倍"]
Table(head, rows, right=head[3:])

# %% [markdown] key="eviction_read" lang="en"
# It pays when the cache is most of what a step reads, for example with long texts or many sequences. At batch 1 and 4K tokens there is hardly anything to gain, and quality to lose. (The last figure counts bytes alone, so it is an upper bound: [lesson 14](14_what_to_forget.ipynb).)
# %% [markdown] key="eviction_read" lang="zh" src="eace9745"
# 一步读的字节里缓存占大头时才值得，例如文本很长，或者序列很多。batch 为 1、长 4K 时得不到什么好处，却会损失质量。（最后一个数只算字节，所以是上限，见[第 14 课](14_what_to_forget.ipynb)。）

# %% [markdown] key="explain_text" lang="en"
# ## Check yourself
#
# These two need more than one call. Say the answer aloud, then add `reveal=True`.
# %% [markdown] key="explain_text" lang="zh" src="b0cba0ff"
# ## 自我检查
#
# 这两个问题，一次调用答不完。先说出答案，再加上 `reveal=True` 对照。

# %% key="explain_1"
explain("halve_what")

# %% key="explain_2"
explain("where_to_save")

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | the catalogue does not have my model | `plan_memory("path/to/config.json", ...)`: any config of a known architecture does |
# | the catalogue has no memory for my card | `gpu_bytes=torch.cuda.mem_get_info()[1]` instead of `gpu=` |
# | my engine says another number | `minikv check-log server.log` shows which terms differ |
# %% [markdown] key="stuck" lang="zh" src="c8123d73"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 目录里没有我的模型 | `plan_memory("path/to/config.json", ...)`：已知架构的任何配置都行 |
# | 目录里没有我的显卡的显存 | 用 `gpu_bytes=torch.cuda.mem_get_info()[1]` 代替 `gpu=` |
# | 我的引擎给出别的数 | `minikv check-log server.log`：看哪几项不同 |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - "KV cache is low, memory profiling does not see the remaining VRAM": [vLLM #2136](https://github.com/vllm-project/vllm/issues/2136) is one of hundreds of such questions. Questions 1 and 7 are where to start.
# %% [markdown] key="wild" lang="zh" src="c0965646"
# ## 实战现场
#
# - “KV cache is low, memory profiling does not see the remaining VRAM”（KV 缓存太小，显存明明还有剩）：[vLLM #2136](https://github.com/vllm-project/vllm/issues/2136) 这样的提问有成百上千。先看第 1 和第 7 个问题。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# Other engines use the same words for other numbers: [appendix D](D_other_engines.ipynb) translates them.
# %% [markdown] key="next" lang="zh" src="0e7e4a4d"
# ## 下一篇
#
# 同样的词，在别的引擎里指的是别的数，对照表在[附录 D](D_other_engines.ipynb)。
