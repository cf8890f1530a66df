# %% [meta]
# number = "G"
# slug = "index"
# [title]
# en = "Where do I find it? The index"
# zh = "在哪里能找到？索引"
# [t4]
# en = "Nothing to compute."
# zh = "没有要算的。"

# %% [markdown] key="how" lang="en"
# ## How to use it
#
# You have an identifier, an error message or a question.
# Search this page (Ctrl-F or Cmd-F), or ask on the command line:
#
# ```
# minikv ask gpu_memory_utilization
# minikv ask why is memory not released
# ```
#
# Each line names the lesson that answers it and the call that computes it.
#
# `python -m tools.index_page` writes this page from [index.toml](repo:minikv/course/data/index.toml).
# %% [markdown] key="how" lang="zh" src="b83cb7be"
# ## 怎么用
#
# 手上有一个标识符、一条报错信息，或者一个问题？
# 可以在页内搜索（Ctrl-F 或 Cmd-F），也可以在命令行里问：
#
# ```
# minikv ask gpu_memory_utilization
# minikv ask 显存不释放
# ```
#
# 每一行都写明由哪一课回答、用哪个调用来算。
#
# 本页由 `python -m tools.index_page` 根据 [index.toml](repo:minikv/course/data/index.toml) 生成。

# %% [markdown] key="lesson-00" lang="en"
# ## [00 · What is on my machine, and how does this course work?](00_start_here.ipynb)
#
# | question | the call |
# |---|---|
# | Does minikv run on this machine? | `minikv.course.start` |
# %% [markdown] key="lesson-00" lang="zh" src="aec40b0a"
# ## [00 · 我的机器上有什么？这门课怎么学？](00_start_here.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | minikv 能在这台机器上运行吗？ | `minikv.course.start` |

# %% [markdown] key="lesson-01" lang="en"
# ## [01 · Why does generation slow down without a cache?](01_why_a_cache.ipynb)
#
# | question | the call |
# |---|---|
# | Why does generation slow down without a cache? | `minikv.plan.generation_flops` |
# %% [markdown] key="lesson-01" lang="zh" src="96c8ddb4"
# ## [01 · 没有缓存，生成为什么会越来越慢？](01_why_a_cache.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | 没有缓存时，生成为什么越来越慢？ | `minikv.plan.generation_flops` |

# %% [markdown] key="lesson-02" lang="en"
# ## [02 · What does one token cost?](02_how_many_bytes.ipynb)
#
# | question | the call |
# |---|---|
# | How many bytes does one token's KV cache take? | `minikv.plan.CacheSpec.explain` |
# | How many tokens fit into a GPU's memory? | `minikv.plan.plan_memory` |
# %% [markdown] key="lesson-02" lang="zh" src="1652361c"
# ## [02 · 一个 token 要花多少字节？](02_how_many_bytes.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | 一个 token 的 KV 缓存占多少字节？ | `minikv.plan.CacheSpec.explain` |
# | 一块 GPU 的显存能放下多少 token？ | `minikv.plan.plan_memory` |

# %% [markdown] key="lesson-02b" lang="en"
# ## [02b · When is the formula not enough?](02b_layers_that_differ.ipynb)
#
# | question | the call |
# |---|---|
# | How much does a sliding window save? | `minikv.plan.CacheSpec.window` |
# | What does a hybrid model (Mamba, linear attention) cache? | `minikv.plan.CacheSpec.explain` |
# | How do I compute the cache of a model that the catalogue doesn't have, from its layers? | `minikv.plan.CacheSpec.from_layers` |
# %% [markdown] key="lesson-02b" lang="zh" src="a212cb66"
# ## [02b · 什么时候只有公式还不够？](02b_layers_that_differ.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | 滑动窗口能省多少？ | `minikv.plan.CacheSpec.window` |
# | 混合模型（Mamba、线性注意力）缓存什么？ | `minikv.plan.CacheSpec.explain` |
# | 目录里没有的模型，怎样自己描述各层来算它的缓存？ | `minikv.plan.CacheSpec.from_layers` |

# %% [markdown] key="lesson-03" lang="en"
# ## [03 · Why did the estimate miss by 2.86x?](03_the_2_86x_mistake.ipynb)
#
# | question | the call |
# |---|---|
# | How much memory does one token of DeepSeek take (MLA)? | `minikv.plan.CacheSpec.explain` |
# %% [markdown] key="lesson-03" lang="zh" src="fcc13c73"
# ## [03 · 估算为什么差了 2.86 倍？](03_the_2_86x_mistake.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | DeepSeek 一个 token 占多少显存（MLA）？ | `minikv.plan.CacheSpec.explain` |

# %% [markdown] key="lesson-04" lang="en"
# ## [04 · The roofline: why does the GPU wait?](04_the_roofline.ipynb)
#
# | question | the call |
# |---|---|
# | What do prefill and decode each compute? | `minikv.plan.step_flops` |
# | Why does the GPU wait in decode? Is bandwidth the limit? | `minikv.plan.roofline.decode_work` |
# %% [markdown] key="lesson-04" lang="zh" src="dd48ac5f"
# ## [04 · Roofline 模型：GPU 为什么在等？](04_the_roofline.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | 预填充和解码各算什么？ | `minikv.plan.step_flops` |
# | 解码时 GPU 为什么在等？瓶颈是带宽吗？ | `minikv.plan.roofline.decode_work` |

# %% [markdown] key="lesson-05" lang="en"
# ## [05 · When is this memory freed?](05_owned_and_borrowed.ipynb)
#
# | question | the call |
# |---|---|
# | Which tensor owns this memory, and why does a view keep all of it? | `minikv.memory.ownership` |
# %% [markdown] key="lesson-05" lang="zh" src="ffb68d76"
# ## [05 · 这块内存什么时候释放？](05_owned_and_borrowed.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | 这块内存归哪个张量？为什么一个视图会留住全部？ | `minikv.memory.ownership` |

# %% [markdown] key="lesson-06" lang="en"
# ## [06 · What is the simplest cache?](06_the_linear_cache.ipynb)
#
# | question | the call |
# |---|---|
# | Which transformers cache class should I use? | `minikv.cache.LinearKVCache` |
# | What does torch.cat cost when a cache grows token by token? | `minikv.cache.LinearKVCache.write` |
# %% [markdown] key="lesson-06" lang="zh" src="221311f6"
# ## [06 · 最简单的 KV 缓存是什么样的？](06_the_linear_cache.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | transformers 的几种缓存类该用哪一个？ | `minikv.cache.LinearKVCache` |
# | 缓存逐 token 增长时，torch.cat 的代价是多少？ | `minikv.cache.LinearKVCache.write` |

# %% [markdown] key="lesson-07" lang="en"
# ## [07 · What does malloc cost per token?](07_allocate_once.ipynb)
#
# | question | the call |
# |---|---|
# | How long does it take to read once from a CPU cache or from memory? | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | What does torch.cuda.empty_cache() give back, and what stays? | `minikv.memory.cached_memory` |
# | CUDA is out of memory although much memory is free. Is that fragmentation? | `minikv.memory.replay` |
# | How do I measure the peak of a piece of code? | `minikv.memory.measure_peak` |
# %% [markdown] key="lesson-07" lang="zh" src="6ae15448"
# ## [07 · 每个 token 的 malloc 要花多少？](07_allocate_once.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | 从 CPU 缓存或内存读一次要多久？ | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | torch.cuda.empty_cache() 能还回什么，什么还不回去？ | `minikv.memory.cached_memory` |
# | 明明还有空闲显存，却报 CUDA out of memory，是碎片吗？ | `minikv.memory.replay` |
# | 怎样测一段代码的显存峰值？ | `minikv.memory.measure_peak` |

# %% [markdown] key="lesson-08" lang="en"
# ## [08 · allocate_kv_cache: how many blocks fit?](08_allocate_kv_cache.ipynb)
#
# | question | the call |
# |---|---|
# | How many cache blocks fit on my GPU, and how is the number computed? | `minikv.cache.allocate_kv_cache` |
# %% [markdown] key="lesson-08" lang="zh" src="8e75c7df"
# ## [08 · allocate_kv_cache：放得下多少块？](08_allocate_kv_cache.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | 我的 GPU 能放下多少个缓存块？这个数怎么算？ | `minikv.cache.allocate_kv_cache` |

# %% [markdown] key="lesson-09" lang="en"
# ## [09 · Which sequence owns block 7?](09_pages_and_blocks.ipynb)
#
# | question | the call |
# |---|---|
# | What is a block table, and which slot does a token go to? | `minikv.blocks.BlockManager.slot_mapping` |
# | How does a prefix cache find a beginning again? | `minikv.blocks.BlockManager.match` |
# | When is a shared block copied? | `minikv.blocks.BlockManager.fork` |
# | Which block size should I choose? | `minikv.blocks.ManagerStats.fragmentation` |
# %% [markdown] key="lesson-09" lang="zh" src="53a5e6d8"
# ## [09 · 块 7 属于哪条序列？](09_pages_and_blocks.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | 块表是什么？一个 token 写到哪个槽位？ | `minikv.blocks.BlockManager.slot_mapping` |
# | 前缀缓存怎样找到相同的开头？ | `minikv.blocks.BlockManager.match` |
# | 共享的块什么时候会被复制？ | `minikv.blocks.BlockManager.fork` |
# | 块大小该选多少？ | `minikv.blocks.ManagerStats.fragmentation` |

# %% [markdown] key="lesson-10" lang="en"
# ## [10 · How does a GPU read a page table?](10_kernels.ipynb)
#
# | question | the call |
# |---|---|
# | Does paging make attention slower? | `minikv.kernels.paged_decode` |
# | How does an online softmax work? | `minikv.kernels.OnlineSoftmax` |
# %% [markdown] key="lesson-10" lang="zh" src="194efcec"
# ## [10 · GPU 怎样读块表？](10_kernels.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | 分页会让注意力变慢吗？ | `minikv.kernels.paged_decode` |
# | online softmax 是怎么算的？ | `minikv.kernels.OnlineSoftmax` |

# %% [markdown] key="lesson-11a" lang="en"
# ## [11a · How do 256 requests share one cache?](11a_continuous_batching.ipynb)
#
# | question | the call |
# |---|---|
# | How does an engine run many requests at once? | `minikv.engine.Scheduler.schedule` |
# | Where does a step spend its time? | `minikv.plan.roofline.Roof.seconds` |
# | What is chunked prefill, and how many tokens go into a step? | `minikv.engine.Scheduler.schedule` |
# %% [markdown] key="lesson-11a" lang="zh" src="cc022e85"
# ## [11a · 256 个请求怎样共用一份缓存？](11a_continuous_batching.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | 引擎怎样同时运行很多请求？ | `minikv.engine.Scheduler.schedule` |
# | 一步的时间花在哪里？ | `minikv.plan.roofline.Roof.seconds` |
# | 什么是分块预填充？一步算多少 token？ | `minikv.engine.Scheduler.schedule` |

# %% [markdown] key="lesson-11b" lang="en"
# ## [11b · Which sequence gives up its blocks?](11b_when_blocks_run_out.ipynb)
#
# | question | the call |
# |---|---|
# | A sequence (group) is preempted. What does that cost, and how do I avoid it? | `minikv.plan.preemption.recompute_seconds` |
# %% [markdown] key="lesson-11b" lang="zh" src="024f5a04"
# ## [11b · 块用完了，哪条序列让出来？](11b_when_blocks_run_out.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | 序列被抢占（preempted），代价多大，怎样避免？ | `minikv.plan.preemption.recompute_seconds` |

# %% [markdown] key="lesson-11c" lang="en"
# ## [11c · Does the engine that you wrote produce the right tokens?](11c_your_engine.ipynb)
#
# | question | the call |
# |---|---|
# | How do I write an engine like this myself? | `minikv.course.my_engine` |
# %% [markdown] key="lesson-11c" lang="zh" src="e9fae563"
# ## [11c · 你写的引擎，输出的 token 对吗？](11c_your_engine.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | 怎样自己写一个这样的引擎？ | `minikv.course.my_engine` |

# %% [markdown] key="lesson-12" lang="en"
# ## [12 · What does each GPU keep?](12_beyond_one_gpu.ipynb)
#
# | question | the call |
# |---|---|
# | How much of the cache does each GPU keep with tensor parallelism? | `minikv.plan.CacheSpec.explain` |
# | Swap blocks to CPU memory, or compute them again? | `minikv.plan.preemption.swap_seconds` |
# %% [markdown] key="lesson-12" lang="zh" src="c0ca8f5d"
# ## [12 · 每块 GPU 各存什么？](12_beyond_one_gpu.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | 张量并行时，每块 GPU 存多少 KV 缓存？ | `minikv.plan.CacheSpec.explain` |
# | 把块换出到 CPU 内存，还是重新计算？ | `minikv.plan.preemption.swap_seconds` |

# %% [markdown] key="lesson-13" lang="en"
# ## [13 · What do fewer bytes cost?](13_half_the_bytes.ipynb)
#
# | question | the call |
# |---|---|
# | What does an fp8 or int8 cache cost in quality? | `minikv.engine.recall.measure_recall` |
# %% [markdown] key="lesson-13" lang="zh" src="d151b88d"
# ## [13 · 字节少了，代价是什么？](13_half_the_bytes.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | fp8 或 int8 缓存会损失多少质量？ | `minikv.engine.recall.measure_recall` |

# %% [markdown] key="lesson-13b" lang="en"
# ## [13b · How do steps get fewer and cheaper?](13b_fewer_cheaper_steps.ipynb)
#
# | question | the call |
# |---|---|
# | What do CUDA graphs save, and what do they hold? | `minikv.engine.ext.graphs.expected_memory` |
# | How does prompt lookup (n-gram speculation) get several tokens from one step? | `minikv.engine.ext.drafts.propose` |
# %% [markdown] key="lesson-13b" lang="zh" src="389f2595"
# ## [13b · 怎样让步数更少、每步更省？](13b_fewer_cheaper_steps.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | CUDA 图省了什么，又占了什么？ | `minikv.engine.ext.graphs.expected_memory` |
# | 提示词查找（prompt lookup，n-gram 推测解码）怎样一步得到几个 token？ | `minikv.engine.ext.drafts.propose` |

# %% [markdown] key="lesson-14" lang="en"
# ## [14 · Which tokens can go?](14_what_to_forget.ipynb)
#
# | question | the call |
# |---|---|
# | Can I delete part of the cache and still get the right answer? | `minikv.eviction.install_kv_eviction` |
# | Why does memory still grow although tokens are evicted? | `minikv.eviction.eviction_report` |
# %% [markdown] key="lesson-14" lang="zh" src="388e74a5"
# ## [14 · 哪些 token 可以不要？](14_what_to_forget.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | 删掉一部分缓存，还能答对吗？ | `minikv.eviction.install_kv_eviction` |
# | 明明做了淘汰，显存为什么还在涨？ | `minikv.eviction.eviction_report` |

# %% [markdown] key="lesson-14b" lang="en"
# ## [14b · Can you choose better?](14b_your_own_policy.ipynb)
#
# | question | the call |
# |---|---|
# | How do I write an eviction policy of my own? | `minikv.eviction.Policy` |
# %% [markdown] key="lesson-14b" lang="zh" src="39e25449"
# ## [14b · 你能选得更好吗？](14b_your_own_policy.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | 怎样写自己的淘汰策略？ | `minikv.eviction.Policy` |

# %% [markdown] key="lesson-15" lang="en"
# ## [15 · What changes with a latent?](15_eviction_on_mla.ipynb)
#
# | question | the call |
# |---|---|
# | How are tokens evicted when the cache is a latent (MLA)? | `minikv.eviction.install_kv_eviction` |
# %% [markdown] key="lesson-15" lang="zh" src="ef1a07a1"
# ## [15 · 换成潜在向量，有什么不同？](15_eviction_on_mla.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | 缓存是潜在向量（MLA）时怎样淘汰？ | `minikv.eviction.install_kv_eviction` |

# %% [markdown] key="lesson-16" lang="en"
# ## [16 · Where did 6 GB go?](16_where_did_6gb_go.ipynb)
#
# | question | the call |
# |---|---|
# | Why is GPU memory not released after generate()? | `minikv.memory.retention_report` |
# | Why does memory grow with every request? | `minikv.memory.retention_report` |
# %% [markdown] key="lesson-16" lang="zh" src="9e5880fd"
# ## [16 · 那 6 GB 去哪儿了？](16_where_did_6gb_go.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | generate() 之后显存为什么不释放？ | `minikv.memory.retention_report` |
# | 为什么每来一个请求显存就涨一点？ | `minikv.memory.retention_report` |

# %% [markdown] key="lesson-17" lang="en"
# ## [17 · How many GPUs does this traffic need?](17_a_fleet_on_paper.ipynb)
#
# | question | the call |
# |---|---|
# | How many GPUs does my traffic need? | `minikv.simulate.fewest` |
# | What does it cost to run prefill and decode on separate GPUs? | `minikv.plan.CacheSpec.bytes_for` |
# | Which router finds the most prefixes? | `minikv.simulate.PrefixAware` |
# %% [markdown] key="lesson-17" lang="zh" src="9e4292d0"
# ## [17 · 这些流量需要多少块 GPU？](17_a_fleet_on_paper.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | 我的流量需要几块 GPU？ | `minikv.simulate.fewest` |
# | 预填充和解码分到不同的 GPU 上，代价是什么？ | `minikv.plan.CacheSpec.bytes_for` |
# | 哪种路由策略命中的前缀最多？ | `minikv.simulate.PrefixAware` |

# %% [markdown] key="lesson-a" lang="en"
# ## [A · Which numbers in the wild are wrong?](A_errata.ipynb)
#
# | question | the call |
# |---|---|
# | Which figures in papers and guides are wrong? | `minikv.plan.estimate_kv_cache_gb` |
# %% [markdown] key="lesson-a" lang="zh" src="4c792ca5"
# ## [A · 流传的数字，哪些是错的？](A_errata.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | 论文和教程里哪些数字是错的？ | `minikv.plan.estimate_kv_cache_gb` |

# %% [markdown] key="lesson-d" lang="en"
# ## [D · Nine tenths of what? The same words in other engines](D_other_engines.ipynb)
#
# | question | the call |
# |---|---|
# | What does gpu_memory_utilization take its share of? | `minikv.plan.MemoryBudget.parts` |
# | The log has other tokens or GiB than I calculated. Which is right? | `minikv.plan.logs.check_log.check_log` |
# | What does a GGUF file need in llama.cpp? | `minikv.plan.plan_gguf` |
# %% [markdown] key="lesson-d" lang="zh" src="16d8120a"
# ## [D · 0.9 占的是什么？同样的词在别的引擎里](D_other_engines.ipynb)
#
# | 问题 | 调用 |
# |---|---|
# | gpu_memory_utilization 是按哪个总量算的比例？ | `minikv.plan.MemoryBudget.parts` |
# | 日志里的 token 数或 GiB 和我算的不一样，哪个对？ | `minikv.plan.logs.check_log.check_log` |
# | 一个 GGUF 文件在 llama.cpp 里需要多少内存？ | `minikv.plan.plan_gguf` |

# %% [markdown] key="names" lang="en"
# ## Names and wordings
#
# | name or wording | lesson | the call |
# |---|---|---|
# | 0.9 | [D](D_other_engines.ipynb) | `minikv.plan.MemoryBudget.parts` |
# | 16 or 32 or 256 | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.ManagerStats.fragmentation` |
# | 2.86x | [A](A_errata.ipynb) | `minikv.plan.estimate_kv_cache_gb` |
# | `allocate_kv_cache` | [08](08_allocate_kv_cache.ipynb) | `minikv.cache.allocate_kv_cache` |
# | arithmetic intensity | [04](04_the_roofline.ipynb) | `minikv.plan.roofline.decode_work` |
# | attention sink | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | automatic prefix caching | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.match` |
# | beam search | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.fork` |
# | block size | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.ManagerStats.fragmentation` |
# | `block_size` | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | `block_table` | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | `block_tables` | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | bytes per token | [02](02_how_many_bytes.ipynb) | `minikv.plan.CacheSpec.explain` |
# | Cache class | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache` |
# | cache-aware routing | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.PrefixAware` |
# | `--cache-type-k` | [D](D_other_engines.ipynb) | `minikv.plan.plan_gguf` |
# | `calculate_kv_scales` | [13](13_half_the_bytes.ipynb) | `minikv.engine.recall.measure_recall` |
# | capacity planning | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.fewest` |
# | check-log | [D](D_other_engines.ipynb) | `minikv.plan.logs.check_log.check_log` |
# | chunked prefill | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | `chunked_prefill_size` | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | Colab | [00](00_start_here.ipynb) | `minikv.course.start` |
# | compute bound | [04](04_the_roofline.ipynb) | `minikv.plan.step_flops` |
# | context length fits | [02](02_how_many_bytes.ipynb) | `minikv.plan.plan_memory` |
# | continuous batching | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | `conv_state` | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.explain` |
# | copy | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache.write` |
# | copy-on-write | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.fork` |
# | `cpu_offload_gb` | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.preemption.swap_seconds` |
# | CUDA graph | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.graphs.expected_memory` |
# | CUDA out of memory | [07](07_allocate_once.ipynb) | `minikv.memory.replay` |
# | `cuda_graph_max_bs` | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.graphs.expected_memory` |
# | cudagraph | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.graphs.expected_memory` |
# | custom architecture | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.from_layers` |
# | custom eviction | [14b](14b_your_own_policy.ipynb) | `minikv.eviction.Policy` |
# | `data_ptr` | [05](05_owned_and_borrowed.ipynb) | `minikv.memory.ownership` |
# | decode | [04](04_the_roofline.ipynb) | `minikv.plan.step_flops` |
# | `DeepSeek` | [03](03_the_2_86x_mistake.ipynb) | `minikv.plan.CacheSpec.explain` |
# | del model | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | `determine_num_available_blocks` | [08](08_allocate_kv_cache.ipynb) | `minikv.cache.allocate_kv_cache` |
# | disaggregated prefill | [17](17_a_fleet_on_paper.ipynb) | `minikv.plan.CacheSpec.bytes_for` |
# | disaggregation | [17](17_a_fleet_on_paper.ipynb) | `minikv.plan.CacheSpec.bytes_for` |
# | doctor | [00](00_start_here.ipynb) | `minikv.course.start` |
# | draft tokens | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.drafts.propose` |
# | `DynamicCache` | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache` |
# | `empty_cache` | [07](07_allocate_once.ipynb) | `minikv.memory.cached_memory` |
# | `enable_chunked_prefill` | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | `enable_prefix_caching` | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.match` |
# | `enforce_eager` | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.graphs.expected_memory` |
# | errata | [A](A_errata.ipynb) | `minikv.plan.estimate_kv_cache_gb` |
# | eviction | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | eviction does not free memory | [14](14_what_to_forget.ipynb) | `minikv.eviction.eviction_report` |
# | `expandable_segments` | [07](07_allocate_once.ipynb) | `minikv.memory.replay` |
# | first token | [04](04_the_roofline.ipynb) | `minikv.plan.step_flops` |
# | flash decoding | [10](10_kernels.ipynb) | `minikv.kernels.paged_decode` |
# | `flash_attn_with_kvcache` | [10](10_kernels.ipynb) | `minikv.kernels.paged_decode` |
# | `FlashAttention` | [10](10_kernels.ipynb) | `minikv.kernels.OnlineSoftmax` |
# | `FlashInfer` | [10](10_kernels.ipynb) | `minikv.kernels.paged_decode` |
# | fork | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.fork` |
# | `fp8_e4m3` | [13](13_half_the_bytes.ipynb) | `minikv.engine.recall.measure_recall` |
# | `fp8_e5m2` | [13](13_half_the_bytes.ipynb) | `minikv.engine.recall.measure_recall` |
# | fragmentation | [07](07_allocate_once.ipynb) | `minikv.memory.replay` |
# | `free_gpu_memory_fraction` | [D](D_other_engines.ipynb) | `minikv.plan.MemoryBudget.parts` |
# | gc.collect | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | Gemma | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.window` |
# | GGUF | [D](D_other_engines.ipynb) | `minikv.plan.plan_gguf` |
# | # GPU blocks | [08](08_allocate_kv_cache.ipynb) | `minikv.cache.allocate_kv_cache` |
# | GPU KV cache size | [D](D_other_engines.ipynb) | `minikv.plan.logs.check_log.check_log` |
# | `gpu_memory_utilization` | [D](D_other_engines.ipynb) | `minikv.plan.MemoryBudget.parts` |
# | growing cache | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache.write` |
# | H2O | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | hash of a block | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.match` |
# | HBM bandwidth | [04](04_the_roofline.ipynb) | `minikv.plan.roofline.decode_work` |
# | `head_dim` | [02](02_how_many_bytes.ipynb) | `minikv.plan.CacheSpec.explain` |
# | heavy hitter | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | `HiCache` | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.preemption.swap_seconds` |
# | `hidden_size` | [02](02_how_many_bytes.ipynb) | `minikv.plan.CacheSpec.explain` |
# | host memory | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.preemption.swap_seconds` |
# | how many GPUs | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.fewest` |
# | how much VRAM | [02](02_how_many_bytes.ipynb) | `minikv.plan.plan_memory` |
# | `HybridCache` | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache` |
# | in-flight batching | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | installation | [00](00_start_here.ipynb) | `minikv.course.start` |
# | int8 kv | [13](13_half_the_bytes.ipynb) | `minikv.engine.recall.measure_recall` |
# | internal fragmentation | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.ManagerStats.fragmentation` |
# | Jamba | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.explain` |
# | `key_averages` | [11a](11a_continuous_batching.ipynb) | `minikv.plan.roofline.Roof.seconds` |
# | `KeyDiff` | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | Kimi | [03](03_the_2_86x_mistake.ipynb) | `minikv.plan.CacheSpec.explain` |
# | kv cache quantization | [13](13_half_the_bytes.ipynb) | `minikv.engine.recall.measure_recall` |
# | KV cache reuse | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.match` |
# | kv cache size | [02](02_how_many_bytes.ipynb) | `minikv.plan.CacheSpec.explain` |
# | KV compression | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | kv offload | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.preemption.swap_seconds` |
# | `kv_cache_dtype` | [13](13_half_the_bytes.ipynb) | `minikv.engine.recall.measure_recall` |
# | `kv_cache_free_gpu_memory_fraction` | [D](D_other_engines.ipynb) | `minikv.plan.MemoryBudget.parts` |
# | `kv_lora_rank` | [03](03_the_2_86x_mistake.ipynb) | `minikv.plan.CacheSpec.explain` |
# | `kv_transfer_config` | [17](17_a_fleet_on_paper.ipynb) | `minikv.plan.CacheSpec.bytes_for` |
# | kvpress | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | L1 cache | [07](07_allocate_once.ipynb) | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | latency ladder | [07](07_allocate_once.ipynb) | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | latent | [03](03_the_2_86x_mistake.ipynb) | `minikv.plan.CacheSpec.explain` |
# | launch overhead | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.graphs.expected_memory` |
# | `layer_types` | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.window` |
# | `--layers` | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.from_layers` |
# | `LayerSpec` | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.from_layers` |
# | less than calculated | [D](D_other_engines.ipynb) | `minikv.plan.logs.check_log.check_log` |
# | linear attention | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.explain` |
# | llama.cpp | [D](D_other_engines.ipynb) | `minikv.plan.plan_gguf` |
# | LMCache | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.preemption.swap_seconds` |
# | load balancing | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.PrefixAware` |
# | load latency | [07](07_allocate_once.ipynb) | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | local attention | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.window` |
# | log-sum-exp | [10](10_kernels.ipynb) | `minikv.kernels.OnlineSoftmax` |
# | low GPU utilization | [04](04_the_roofline.ipynb) | `minikv.plan.roofline.decode_work` |
# | lse | [10](10_kernels.ipynb) | `minikv.kernels.OnlineSoftmax` |
# | Mamba | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.explain` |
# | max tokens | [02](02_how_many_bytes.ipynb) | `minikv.plan.plan_memory` |
# | `max_batch_size` | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | `max_memory_allocated` | [07](07_allocate_once.ipynb) | `minikv.memory.measure_peak` |
# | `max_num_batched_tokens` | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | `max_num_seqs` | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | `max_num_tokens` | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | `max_running_requests` | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | `max_split_size_mb` | [07](07_allocate_once.ipynb) | `minikv.memory.replay` |
# | Maximum concurrency | [D](D_other_engines.ipynb) | `minikv.plan.logs.check_log.check_log` |
# | `mem_fraction_static` | [D](D_other_engines.ipynb) | `minikv.plan.MemoryBudget.parts` |
# | memory bound | [04](04_the_roofline.ipynb) | `minikv.plan.step_flops` |
# | memory grows | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | memory keeps growing | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | memory latency | [07](07_allocate_once.ipynb) | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | memory leak | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | memory not freed | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | memory not released | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | memory-bound or compute-bound | [11a](11a_continuous_batching.ipynb) | `minikv.plan.roofline.Roof.seconds` |
# | `memory_allocated` | [07](07_allocate_once.ipynb) | `minikv.memory.cached_memory` |
# | `memory_reserved` | [07](07_allocate_once.ipynb) | `minikv.memory.cached_memory` |
# | Mistral window | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.window` |
# | MLA | [03](03_the_2_86x_mistake.ipynb) | `minikv.plan.CacheSpec.explain` |
# | MLA eviction | [15](15_eviction_on_mla.ipynb) | `minikv.eviction.install_kv_eviction` |
# | more than calculated | [D](D_other_engines.ipynb) | `minikv.plan.logs.check_log.check_log` |
# | multi-head latent attention | [03](03_the_2_86x_mistake.ipynb) | `minikv.plan.CacheSpec.explain` |
# | `my_engine` | [11c](11c_your_engine.ipynb) | `minikv.course.my_engine` |
# | `n_ctx` | [D](D_other_engines.ipynb) | `minikv.plan.plan_gguf` |
# | nano-vllm | [11c](11c_your_engine.ipynb) | `minikv.course.my_engine` |
# | nanoseconds | [07](07_allocate_once.ipynb) | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | nanovllm | [11c](11c_your_engine.ipynb) | `minikv.course.my_engine` |
# | ngram | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.drafts.propose` |
# | no GPU | [00](00_start_here.ipynb) | `minikv.course.start` |
# | not enough KV cache space | [11b](11b_when_blocks_run_out.ipynb) | `minikv.plan.preemption.recompute_seconds` |
# | `num_gpu_blocks` | [08](08_allocate_kv_cache.ipynb) | `minikv.cache.allocate_kv_cache` |
# | `num_gpu_blocks_override` | [08](08_allocate_kv_cache.ipynb) | `minikv.cache.allocate_kv_cache` |
# | `num_hidden_layers` | [02](02_how_many_bytes.ipynb) | `minikv.plan.CacheSpec.explain` |
# | `num_key_value_heads` | [02](02_how_many_bytes.ipynb) | `minikv.plan.CacheSpec.explain` |
# | `num_kvcache_blocks` | [08](08_allocate_kv_cache.ipynb) | `minikv.cache.allocate_kv_cache` |
# | `num_speculative_tokens` | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.drafts.propose` |
# | `num_splits` | [10](10_kernels.ipynb) | `minikv.kernels.paged_decode` |
# | nvidia-smi shows more | [07](07_allocate_once.ipynb) | `minikv.memory.cached_memory` |
# | `OffloadedCache` | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache` |
# | ollama | [D](D_other_engines.ipynb) | `minikv.plan.plan_gguf` |
# | online softmax | [10](10_kernels.ipynb) | `minikv.kernels.OnlineSoftmax` |
# | OOM | [07](07_allocate_once.ipynb) | `minikv.memory.replay` |
# | `OutOfMemoryError` | [07](07_allocate_once.ipynb) | `minikv.memory.replay` |
# | page table | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | `page_size` | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | paged attention kernel | [10](10_kernels.ipynb) | `minikv.kernels.paged_decode` |
# | `PagedAttention` | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | parallel sampling | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.fork` |
# | `past_key_values` | [01](01_why_a_cache.ipynb) | `minikv.plan.generation_flops` |
# | `past_key_values kept` | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | PD disaggregation | [17](17_a_fleet_on_paper.ipynb) | `minikv.plan.CacheSpec.bytes_for` |
# | peak memory | [07](07_allocate_once.ipynb) | `minikv.memory.measure_peak` |
# | per-head eviction blocks | [14](14_what_to_forget.ipynb) | `minikv.eviction.eviction_report` |
# | pip install minikv | [00](00_start_here.ipynb) | `minikv.course.start` |
# | pointer chasing | [07](07_allocate_once.ipynb) | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | Policy | [14b](14b_your_own_policy.ipynb) | `minikv.eviction.Policy` |
# | position after eviction | [15](15_eviction_on_mla.ipynb) | `minikv.eviction.install_kv_eviction` |
# | preempted | [11b](11b_when_blocks_run_out.ipynb) | `minikv.plan.preemption.recompute_seconds` |
# | preemption | [11b](11b_when_blocks_run_out.ipynb) | `minikv.plan.preemption.recompute_seconds` |
# | prefill | [04](04_the_roofline.ipynb) | `minikv.plan.step_flops` |
# | prefix caching | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.match` |
# | prefix-aware router | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.PrefixAware` |
# | profiling | [11a](11a_continuous_batching.ipynb) | `minikv.plan.roofline.Roof.seconds` |
# | prompt caching | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.match` |
# | `prompt_lookup_num_tokens` | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.drafts.propose` |
# | `PYTORCH_CUDA_ALLOC_CONF` | [07](07_allocate_once.ipynb) | `minikv.memory.replay` |
# | `q4_0` | [D](D_other_engines.ipynb) | `minikv.plan.plan_gguf` |
# | `q8_0` | [D](D_other_engines.ipynb) | `minikv.plan.plan_gguf` |
# | `qk_rope_head_dim` | [03](03_the_2_86x_mistake.ipynb) | `minikv.plan.CacheSpec.explain` |
# | `QuantizedCache` | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache` |
# | Qwen3-Next | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.explain` |
# | radix cache | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.match` |
# | `RadixAttention` | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.match` |
# | reallocation | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache.write` |
# | recompute | [11b](11b_when_blocks_run_out.ipynb) | `minikv.plan.preemption.recompute_seconds` |
# | recurrent state | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.explain` |
# | ref count | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.fork` |
# | replicas | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.fewest` |
# | replicated KV heads | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.CacheSpec.explain` |
# | requests per second | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.fewest` |
# | rescale | [10](10_kernels.ipynb) | `minikv.kernels.OnlineSoftmax` |
# | reserved but unallocated | [07](07_allocate_once.ipynb) | `minikv.memory.cached_memory` |
# | `reset_peak_memory_stats` | [07](07_allocate_once.ipynb) | `minikv.memory.measure_peak` |
# | Retract requests | [11b](11b_when_blocks_run_out.ipynb) | `minikv.plan.preemption.recompute_seconds` |
# | roofline | [04](04_the_roofline.ipynb) | `minikv.plan.roofline.decode_work` |
# | rope key | [15](15_eviction_on_mla.ipynb) | `minikv.eviction.install_kv_eviction` |
# | round robin | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.PrefixAware` |
# | score function | [14b](14b_your_own_policy.ipynb) | `minikv.eviction.Policy` |
# | `share_memory` | [05](05_owned_and_borrowed.ipynb) | `minikv.memory.ownership` |
# | `sliding_window` | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.window` |
# | `SlidingWindowCache` | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache` |
# | SLO | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.fewest` |
# | `slot_mapping` | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | slow generation | [01](01_why_a_cache.ipynb) | `minikv.plan.generation_flops` |
# | slow operation | [11a](11a_continuous_batching.ipynb) | `minikv.plan.roofline.Roof.seconds` |
# | `SnapKV` | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | speculative decoding | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.drafts.propose` |
# | split-KV | [10](10_kernels.ipynb) | `minikv.kernels.paged_decode` |
# | `ssm_state` | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.explain` |
# | startup log | [D](D_other_engines.ipynb) | `minikv.plan.logs.check_log.check_log` |
# | `StaticCache` | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache` |
# | storage | [05](05_owned_and_borrowed.ipynb) | `minikv.memory.ownership` |
# | `StreamingLLM` | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | `swap_space` | [11b](11b_when_blocks_run_out.ipynb) | `minikv.plan.preemption.recompute_seconds` |
# | `swap_space` | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.preemption.swap_seconds` |
# | `tensor_parallel_size` | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.CacheSpec.explain` |
# | tokens per second limit | [04](04_the_roofline.ipynb) | `minikv.plan.roofline.decode_work` |
# | `tokens_per_block` | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | torch.cat | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache.write` |
# | torch.profiler | [11a](11a_continuous_batching.ipynb) | `minikv.plan.roofline.Roof.seconds` |
# | tp | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.CacheSpec.explain` |
# | `--tp` | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.CacheSpec.explain` |
# | TPOT | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.fewest` |
# | Triton kernel | [10](10_kernels.ipynb) | `minikv.kernels.paged_decode` |
# | TTFT | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.fewest` |
# | `unknown model_type` | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.from_layers` |
# | `untyped_storage` | [05](05_owned_and_borrowed.ipynb) | `minikv.memory.ownership` |
# | `use_cache` | [01](01_why_a_cache.ipynb) | `minikv.plan.generation_flops` |
# | `use_cache=False` | [01](01_why_a_cache.ipynb) | `minikv.plan.generation_flops` |
# | utilization | [D](D_other_engines.ipynb) | `minikv.plan.MemoryBudget.parts` |
# | view keeps memory | [05](05_owned_and_borrowed.ipynb) | `minikv.memory.ownership` |
# | VRAM calculator | [02](02_how_many_bytes.ipynb) | `minikv.plan.plan_memory` |
# | write my own engine | [11c](11c_your_engine.ipynb) | `minikv.course.my_engine` |
# | wrong formula | [A](A_errata.ipynb) | `minikv.plan.estimate_kv_cache_gb` |
# %% [markdown] key="names" lang="zh" src="9054e3bd"
# ## 名称与说法
#
# | <nobr>名称或说法</nobr> | 课 | <nobr>调用</nobr> |
# |---|---|---|
# | KV 缓存大小 | [02](02_how_many_bytes.ipynb) | `minikv.plan.CacheSpec.explain` |
# | 每个 token 字节数 | [02](02_how_many_bytes.ipynb) | `minikv.plan.CacheSpec.explain` |
# | 显存计算 | [02](02_how_many_bytes.ipynb) | `minikv.plan.plan_memory` |
# | 能放多少 token | [02](02_how_many_bytes.ipynb) | `minikv.plan.plan_memory` |
# | 上下文长度 | [02](02_how_many_bytes.ipynb) | `minikv.plan.plan_memory` |
# | 块数 | [08](08_allocate_kv_cache.ipynb) | `minikv.cache.allocate_kv_cache` |
# | 缓存块数量 | [08](08_allocate_kv_cache.ipynb) | `minikv.cache.allocate_kv_cache` |
# | 显存利用率 | [D](D_other_engines.ipynb) | `minikv.plan.MemoryBudget.parts` |
# | 比算的多 | [D](D_other_engines.ipynb) | `minikv.plan.logs.check_log.check_log` |
# | 比算的少 | [D](D_other_engines.ipynb) | `minikv.plan.logs.check_log.check_log` |
# | 日志对不上 | [D](D_other_engines.ipynb) | `minikv.plan.logs.check_log.check_log` |
# | 显存不释放 | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | 显存泄漏 | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | 显存没有还回去 | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | 显存一直涨 | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | 显存增长 | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | 指针追逐 | [07](07_allocate_once.ipynb) | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | 延迟阶梯 | [07](07_allocate_once.ipynb) | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | 访存延迟 | [07](07_allocate_once.ipynb) | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | 一级缓存 | [07](07_allocate_once.ipynb) | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | 缓存分配器 | [07](07_allocate_once.ipynb) | `minikv.memory.cached_memory` |
# | 预留显存 | [07](07_allocate_once.ipynb) | `minikv.memory.cached_memory` |
# | 碎片 | [07](07_allocate_once.ipynb) | `minikv.memory.replay` |
# | 显存不足 | [07](07_allocate_once.ipynb) | `minikv.memory.replay` |
# | 爆显存 | [07](07_allocate_once.ipynb) | `minikv.memory.replay` |
# | 显存峰值 | [07](07_allocate_once.ipynb) | `minikv.memory.measure_peak` |
# | 峰值 | [07](07_allocate_once.ipynb) | `minikv.memory.measure_peak` |
# | 内存归属 | [05](05_owned_and_borrowed.ipynb) | `minikv.memory.ownership` |
# | 视图 | [05](05_owned_and_borrowed.ipynb) | `minikv.memory.ownership` |
# | 越来越慢 | [01](01_why_a_cache.ipynb) | `minikv.plan.generation_flops` |
# | 预填充 | [04](04_the_roofline.ipynb) | `minikv.plan.step_flops` |
# | 解码 | [04](04_the_roofline.ipynb) | `minikv.plan.step_flops` |
# | 算力瓶颈 | [04](04_the_roofline.ipynb) | `minikv.plan.step_flops` |
# | 带宽瓶颈 | [04](04_the_roofline.ipynb) | `minikv.plan.step_flops` |
# | 屋顶线 | [04](04_the_roofline.ipynb) | `minikv.plan.roofline.decode_work` |
# | 算术强度 | [04](04_the_roofline.ipynb) | `minikv.plan.roofline.decode_work` |
# | GPU 利用率低 | [04](04_the_roofline.ipynb) | `minikv.plan.roofline.decode_work` |
# | 逐 token 拼接 | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache.write` |
# | 拷贝 | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache.write` |
# | 块表 | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | 槽位 | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | 分页注意力 | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | 前缀缓存 | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.match` |
# | 前缀命中 | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.match` |
# | 写时复制 | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.fork` |
# | 引用计数 | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.fork` |
# | 块大小 | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.ManagerStats.fragmentation` |
# | 内部碎片 | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.ManagerStats.fragmentation` |
# | 分页 kernel | [10](10_kernels.ipynb) | `minikv.kernels.paged_decode` |
# | 在线 softmax | [10](10_kernels.ipynb) | `minikv.kernels.OnlineSoftmax` |
# | 连续批处理 | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | 并发上限 | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | 性能分析 | [11a](11a_continuous_batching.ipynb) | `minikv.plan.roofline.Roof.seconds` |
# | 访存受限 | [11a](11a_continuous_batching.ipynb) | `minikv.plan.roofline.Roof.seconds` |
# | 分块预填充 | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | 抢占 | [11b](11b_when_blocks_run_out.ipynb) | `minikv.plan.preemption.recompute_seconds` |
# | 重新计算 | [11b](11b_when_blocks_run_out.ipynb) | `minikv.plan.preemption.recompute_seconds` |
# | 自己写引擎 | [11c](11c_your_engine.ipynb) | `minikv.course.my_engine` |
# | 从零实现 | [11c](11c_your_engine.ipynb) | `minikv.course.my_engine` |
# | 张量并行 | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.CacheSpec.explain` |
# | 多卡 | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.CacheSpec.explain` |
# | 换出 | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.preemption.swap_seconds` |
# | 卸载到 CPU | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.preemption.swap_seconds` |
# | KV 量化 | [13](13_half_the_bytes.ipynb) | `minikv.engine.recall.measure_recall` |
# | 缓存量化 | [13](13_half_the_bytes.ipynb) | `minikv.engine.recall.measure_recall` |
# | CUDA 图 | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.graphs.expected_memory` |
# | 投机解码 | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.drafts.propose` |
# | 推测解码 | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.drafts.propose` |
# | 滑动窗口 | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.window` |
# | 混合模型 | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.explain` |
# | 线性注意力 | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.explain` |
# | 潜在向量 | [03](03_the_2_86x_mistake.ipynb) | `minikv.plan.CacheSpec.explain` |
# | 缓存淘汰 | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | KV 压缩 | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | 注意力汇点 | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | 淘汰后显存不降 | [14](14_what_to_forget.ipynb) | `minikv.eviction.eviction_report` |
# | 自己的策略 | [14b](14b_your_own_policy.ipynb) | `minikv.eviction.Policy` |
# | 自定义淘汰 | [14b](14b_your_own_policy.ipynb) | `minikv.eviction.Policy` |
# | MLA 淘汰 | [15](15_eviction_on_mla.ipynb) | `minikv.eviction.install_kv_eviction` |
# | 容量规划 | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.fewest` |
# | 需要几张卡 | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.fewest` |
# | 首 token 延迟 | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.fewest` |
# | PD 分离 | [17](17_a_fleet_on_paper.ipynb) | `minikv.plan.CacheSpec.bytes_for` |
# | 预填充与解码分离 | [17](17_a_fleet_on_paper.ipynb) | `minikv.plan.CacheSpec.bytes_for` |
# | 路由 | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.PrefixAware` |
# | 负载均衡 | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.PrefixAware` |
# | 自定义结构 | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.from_layers` |
# | 勘误 | [A](A_errata.ipynb) | `minikv.plan.estimate_kv_cache_gb` |
# | 算错 | [A](A_errata.ipynb) | `minikv.plan.estimate_kv_cache_gb` |
# | 安装 | [00](00_start_here.ipynb) | `minikv.course.start` |
# | 没有 GPU | [00](00_start_here.ipynb) | `minikv.course.start` |
# | 0.9 | [D](D_other_engines.ipynb) | `minikv.plan.MemoryBudget.parts` |
# | 16 or 32 or 256 | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.ManagerStats.fragmentation` |
# | 2.86x | [A](A_errata.ipynb) | `minikv.plan.estimate_kv_cache_gb` |
# | `allocate_kv_cache` | [08](08_allocate_kv_cache.ipynb) | `minikv.cache.allocate_kv_cache` |
# | arithmetic intensity | [04](04_the_roofline.ipynb) | `minikv.plan.roofline.decode_work` |
# | attention sink | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | automatic prefix caching | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.match` |
# | beam search | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.fork` |
# | block size | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.ManagerStats.fragmentation` |
# | `block_size` | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | `block_table` | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | `block_tables` | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | bytes per token | [02](02_how_many_bytes.ipynb) | `minikv.plan.CacheSpec.explain` |
# | Cache class | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache` |
# | cache-aware routing | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.PrefixAware` |
# | `--cache-type-k` | [D](D_other_engines.ipynb) | `minikv.plan.plan_gguf` |
# | `calculate_kv_scales` | [13](13_half_the_bytes.ipynb) | `minikv.engine.recall.measure_recall` |
# | capacity planning | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.fewest` |
# | check-log | [D](D_other_engines.ipynb) | `minikv.plan.logs.check_log.check_log` |
# | chunked prefill | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | `chunked_prefill_size` | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | Colab | [00](00_start_here.ipynb) | `minikv.course.start` |
# | compute bound | [04](04_the_roofline.ipynb) | `minikv.plan.step_flops` |
# | context length fits | [02](02_how_many_bytes.ipynb) | `minikv.plan.plan_memory` |
# | continuous batching | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | `conv_state` | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.explain` |
# | copy | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache.write` |
# | copy-on-write | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.fork` |
# | `cpu_offload_gb` | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.preemption.swap_seconds` |
# | CUDA graph | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.graphs.expected_memory` |
# | CUDA out of memory | [07](07_allocate_once.ipynb) | `minikv.memory.replay` |
# | `cuda_graph_max_bs` | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.graphs.expected_memory` |
# | cudagraph | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.graphs.expected_memory` |
# | custom architecture | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.from_layers` |
# | custom eviction | [14b](14b_your_own_policy.ipynb) | `minikv.eviction.Policy` |
# | `data_ptr` | [05](05_owned_and_borrowed.ipynb) | `minikv.memory.ownership` |
# | decode | [04](04_the_roofline.ipynb) | `minikv.plan.step_flops` |
# | `DeepSeek` | [03](03_the_2_86x_mistake.ipynb) | `minikv.plan.CacheSpec.explain` |
# | del model | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | `determine_num_available_blocks` | [08](08_allocate_kv_cache.ipynb) | `minikv.cache.allocate_kv_cache` |
# | disaggregated prefill | [17](17_a_fleet_on_paper.ipynb) | `minikv.plan.CacheSpec.bytes_for` |
# | disaggregation | [17](17_a_fleet_on_paper.ipynb) | `minikv.plan.CacheSpec.bytes_for` |
# | doctor | [00](00_start_here.ipynb) | `minikv.course.start` |
# | draft tokens | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.drafts.propose` |
# | `DynamicCache` | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache` |
# | `empty_cache` | [07](07_allocate_once.ipynb) | `minikv.memory.cached_memory` |
# | `enable_chunked_prefill` | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | `enable_prefix_caching` | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.match` |
# | `enforce_eager` | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.graphs.expected_memory` |
# | errata | [A](A_errata.ipynb) | `minikv.plan.estimate_kv_cache_gb` |
# | eviction | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | eviction does not free memory | [14](14_what_to_forget.ipynb) | `minikv.eviction.eviction_report` |
# | `expandable_segments` | [07](07_allocate_once.ipynb) | `minikv.memory.replay` |
# | first token | [04](04_the_roofline.ipynb) | `minikv.plan.step_flops` |
# | flash decoding | [10](10_kernels.ipynb) | `minikv.kernels.paged_decode` |
# | `flash_attn_with_kvcache` | [10](10_kernels.ipynb) | `minikv.kernels.paged_decode` |
# | `FlashAttention` | [10](10_kernels.ipynb) | `minikv.kernels.OnlineSoftmax` |
# | `FlashInfer` | [10](10_kernels.ipynb) | `minikv.kernels.paged_decode` |
# | fork | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.fork` |
# | `fp8_e4m3` | [13](13_half_the_bytes.ipynb) | `minikv.engine.recall.measure_recall` |
# | `fp8_e5m2` | [13](13_half_the_bytes.ipynb) | `minikv.engine.recall.measure_recall` |
# | fragmentation | [07](07_allocate_once.ipynb) | `minikv.memory.replay` |
# | `free_gpu_memory_fraction` | [D](D_other_engines.ipynb) | `minikv.plan.MemoryBudget.parts` |
# | gc.collect | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | Gemma | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.window` |
# | GGUF | [D](D_other_engines.ipynb) | `minikv.plan.plan_gguf` |
# | # GPU blocks | [08](08_allocate_kv_cache.ipynb) | `minikv.cache.allocate_kv_cache` |
# | GPU KV cache size | [D](D_other_engines.ipynb) | `minikv.plan.logs.check_log.check_log` |
# | `gpu_memory_utilization` | [D](D_other_engines.ipynb) | `minikv.plan.MemoryBudget.parts` |
# | growing cache | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache.write` |
# | H2O | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | hash of a block | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.match` |
# | HBM bandwidth | [04](04_the_roofline.ipynb) | `minikv.plan.roofline.decode_work` |
# | `head_dim` | [02](02_how_many_bytes.ipynb) | `minikv.plan.CacheSpec.explain` |
# | heavy hitter | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | `HiCache` | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.preemption.swap_seconds` |
# | `hidden_size` | [02](02_how_many_bytes.ipynb) | `minikv.plan.CacheSpec.explain` |
# | host memory | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.preemption.swap_seconds` |
# | how many GPUs | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.fewest` |
# | how much VRAM | [02](02_how_many_bytes.ipynb) | `minikv.plan.plan_memory` |
# | `HybridCache` | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache` |
# | in-flight batching | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | installation | [00](00_start_here.ipynb) | `minikv.course.start` |
# | int8 kv | [13](13_half_the_bytes.ipynb) | `minikv.engine.recall.measure_recall` |
# | internal fragmentation | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.ManagerStats.fragmentation` |
# | Jamba | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.explain` |
# | `key_averages` | [11a](11a_continuous_batching.ipynb) | `minikv.plan.roofline.Roof.seconds` |
# | `KeyDiff` | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | Kimi | [03](03_the_2_86x_mistake.ipynb) | `minikv.plan.CacheSpec.explain` |
# | kv cache quantization | [13](13_half_the_bytes.ipynb) | `minikv.engine.recall.measure_recall` |
# | KV cache reuse | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.match` |
# | kv cache size | [02](02_how_many_bytes.ipynb) | `minikv.plan.CacheSpec.explain` |
# | KV compression | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | kv offload | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.preemption.swap_seconds` |
# | `kv_cache_dtype` | [13](13_half_the_bytes.ipynb) | `minikv.engine.recall.measure_recall` |
# | `kv_cache_free_gpu_memory_fraction` | [D](D_other_engines.ipynb) | `minikv.plan.MemoryBudget.parts` |
# | `kv_lora_rank` | [03](03_the_2_86x_mistake.ipynb) | `minikv.plan.CacheSpec.explain` |
# | `kv_transfer_config` | [17](17_a_fleet_on_paper.ipynb) | `minikv.plan.CacheSpec.bytes_for` |
# | kvpress | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | L1 cache | [07](07_allocate_once.ipynb) | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | latency ladder | [07](07_allocate_once.ipynb) | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | latent | [03](03_the_2_86x_mistake.ipynb) | `minikv.plan.CacheSpec.explain` |
# | launch overhead | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.graphs.expected_memory` |
# | `layer_types` | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.window` |
# | `--layers` | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.from_layers` |
# | `LayerSpec` | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.from_layers` |
# | less than calculated | [D](D_other_engines.ipynb) | `minikv.plan.logs.check_log.check_log` |
# | linear attention | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.explain` |
# | llama.cpp | [D](D_other_engines.ipynb) | `minikv.plan.plan_gguf` |
# | LMCache | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.preemption.swap_seconds` |
# | load balancing | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.PrefixAware` |
# | load latency | [07](07_allocate_once.ipynb) | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | local attention | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.window` |
# | log-sum-exp | [10](10_kernels.ipynb) | `minikv.kernels.OnlineSoftmax` |
# | low GPU utilization | [04](04_the_roofline.ipynb) | `minikv.plan.roofline.decode_work` |
# | lse | [10](10_kernels.ipynb) | `minikv.kernels.OnlineSoftmax` |
# | Mamba | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.explain` |
# | max tokens | [02](02_how_many_bytes.ipynb) | `minikv.plan.plan_memory` |
# | `max_batch_size` | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | `max_memory_allocated` | [07](07_allocate_once.ipynb) | `minikv.memory.measure_peak` |
# | `max_num_batched_tokens` | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | `max_num_seqs` | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | `max_num_tokens` | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | `max_running_requests` | [11a](11a_continuous_batching.ipynb) | `minikv.engine.Scheduler.schedule` |
# | `max_split_size_mb` | [07](07_allocate_once.ipynb) | `minikv.memory.replay` |
# | Maximum concurrency | [D](D_other_engines.ipynb) | `minikv.plan.logs.check_log.check_log` |
# | `mem_fraction_static` | [D](D_other_engines.ipynb) | `minikv.plan.MemoryBudget.parts` |
# | memory bound | [04](04_the_roofline.ipynb) | `minikv.plan.step_flops` |
# | memory grows | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | memory keeps growing | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | memory latency | [07](07_allocate_once.ipynb) | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | memory leak | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | memory not freed | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | memory not released | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | memory-bound or compute-bound | [11a](11a_continuous_batching.ipynb) | `minikv.plan.roofline.Roof.seconds` |
# | `memory_allocated` | [07](07_allocate_once.ipynb) | `minikv.memory.cached_memory` |
# | `memory_reserved` | [07](07_allocate_once.ipynb) | `minikv.memory.cached_memory` |
# | Mistral window | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.window` |
# | MLA | [03](03_the_2_86x_mistake.ipynb) | `minikv.plan.CacheSpec.explain` |
# | MLA eviction | [15](15_eviction_on_mla.ipynb) | `minikv.eviction.install_kv_eviction` |
# | more than calculated | [D](D_other_engines.ipynb) | `minikv.plan.logs.check_log.check_log` |
# | multi-head latent attention | [03](03_the_2_86x_mistake.ipynb) | `minikv.plan.CacheSpec.explain` |
# | `my_engine` | [11c](11c_your_engine.ipynb) | `minikv.course.my_engine` |
# | `n_ctx` | [D](D_other_engines.ipynb) | `minikv.plan.plan_gguf` |
# | nano-vllm | [11c](11c_your_engine.ipynb) | `minikv.course.my_engine` |
# | nanoseconds | [07](07_allocate_once.ipynb) | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | nanovllm | [11c](11c_your_engine.ipynb) | `minikv.course.my_engine` |
# | ngram | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.drafts.propose` |
# | no GPU | [00](00_start_here.ipynb) | `minikv.course.start` |
# | not enough KV cache space | [11b](11b_when_blocks_run_out.ipynb) | `minikv.plan.preemption.recompute_seconds` |
# | `num_gpu_blocks` | [08](08_allocate_kv_cache.ipynb) | `minikv.cache.allocate_kv_cache` |
# | `num_gpu_blocks_override` | [08](08_allocate_kv_cache.ipynb) | `minikv.cache.allocate_kv_cache` |
# | `num_hidden_layers` | [02](02_how_many_bytes.ipynb) | `minikv.plan.CacheSpec.explain` |
# | `num_key_value_heads` | [02](02_how_many_bytes.ipynb) | `minikv.plan.CacheSpec.explain` |
# | `num_kvcache_blocks` | [08](08_allocate_kv_cache.ipynb) | `minikv.cache.allocate_kv_cache` |
# | `num_speculative_tokens` | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.drafts.propose` |
# | `num_splits` | [10](10_kernels.ipynb) | `minikv.kernels.paged_decode` |
# | nvidia-smi shows more | [07](07_allocate_once.ipynb) | `minikv.memory.cached_memory` |
# | `OffloadedCache` | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache` |
# | ollama | [D](D_other_engines.ipynb) | `minikv.plan.plan_gguf` |
# | online softmax | [10](10_kernels.ipynb) | `minikv.kernels.OnlineSoftmax` |
# | OOM | [07](07_allocate_once.ipynb) | `minikv.memory.replay` |
# | `OutOfMemoryError` | [07](07_allocate_once.ipynb) | `minikv.memory.replay` |
# | page table | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | `page_size` | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | paged attention kernel | [10](10_kernels.ipynb) | `minikv.kernels.paged_decode` |
# | `PagedAttention` | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | parallel sampling | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.fork` |
# | `past_key_values` | [01](01_why_a_cache.ipynb) | `minikv.plan.generation_flops` |
# | `past_key_values kept` | [16](16_where_did_6gb_go.ipynb) | `minikv.memory.retention_report` |
# | PD disaggregation | [17](17_a_fleet_on_paper.ipynb) | `minikv.plan.CacheSpec.bytes_for` |
# | peak memory | [07](07_allocate_once.ipynb) | `minikv.memory.measure_peak` |
# | per-head eviction blocks | [14](14_what_to_forget.ipynb) | `minikv.eviction.eviction_report` |
# | pip install minikv | [00](00_start_here.ipynb) | `minikv.course.start` |
# | pointer chasing | [07](07_allocate_once.ipynb) | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | Policy | [14b](14b_your_own_policy.ipynb) | `minikv.eviction.Policy` |
# | position after eviction | [15](15_eviction_on_mla.ipynb) | `minikv.eviction.install_kv_eviction` |
# | preempted | [11b](11b_when_blocks_run_out.ipynb) | `minikv.plan.preemption.recompute_seconds` |
# | preemption | [11b](11b_when_blocks_run_out.ipynb) | `minikv.plan.preemption.recompute_seconds` |
# | prefill | [04](04_the_roofline.ipynb) | `minikv.plan.step_flops` |
# | prefix caching | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.match` |
# | prefix-aware router | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.PrefixAware` |
# | profiling | [11a](11a_continuous_batching.ipynb) | `minikv.plan.roofline.Roof.seconds` |
# | prompt caching | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.match` |
# | `prompt_lookup_num_tokens` | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.drafts.propose` |
# | `PYTORCH_CUDA_ALLOC_CONF` | [07](07_allocate_once.ipynb) | `minikv.memory.replay` |
# | `q4_0` | [D](D_other_engines.ipynb) | `minikv.plan.plan_gguf` |
# | `q8_0` | [D](D_other_engines.ipynb) | `minikv.plan.plan_gguf` |
# | `qk_rope_head_dim` | [03](03_the_2_86x_mistake.ipynb) | `minikv.plan.CacheSpec.explain` |
# | `QuantizedCache` | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache` |
# | Qwen3-Next | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.explain` |
# | radix cache | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.match` |
# | `RadixAttention` | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.match` |
# | reallocation | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache.write` |
# | recompute | [11b](11b_when_blocks_run_out.ipynb) | `minikv.plan.preemption.recompute_seconds` |
# | recurrent state | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.explain` |
# | ref count | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.fork` |
# | replicas | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.fewest` |
# | replicated KV heads | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.CacheSpec.explain` |
# | requests per second | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.fewest` |
# | rescale | [10](10_kernels.ipynb) | `minikv.kernels.OnlineSoftmax` |
# | reserved but unallocated | [07](07_allocate_once.ipynb) | `minikv.memory.cached_memory` |
# | `reset_peak_memory_stats` | [07](07_allocate_once.ipynb) | `minikv.memory.measure_peak` |
# | Retract requests | [11b](11b_when_blocks_run_out.ipynb) | `minikv.plan.preemption.recompute_seconds` |
# | roofline | [04](04_the_roofline.ipynb) | `minikv.plan.roofline.decode_work` |
# | rope key | [15](15_eviction_on_mla.ipynb) | `minikv.eviction.install_kv_eviction` |
# | round robin | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.PrefixAware` |
# | score function | [14b](14b_your_own_policy.ipynb) | `minikv.eviction.Policy` |
# | `share_memory` | [05](05_owned_and_borrowed.ipynb) | `minikv.memory.ownership` |
# | `sliding_window` | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.window` |
# | `SlidingWindowCache` | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache` |
# | SLO | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.fewest` |
# | `slot_mapping` | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | slow generation | [01](01_why_a_cache.ipynb) | `minikv.plan.generation_flops` |
# | slow operation | [11a](11a_continuous_batching.ipynb) | `minikv.plan.roofline.Roof.seconds` |
# | `SnapKV` | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | speculative decoding | [13b](13b_fewer_cheaper_steps.ipynb) | `minikv.engine.ext.drafts.propose` |
# | split-KV | [10](10_kernels.ipynb) | `minikv.kernels.paged_decode` |
# | `ssm_state` | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.explain` |
# | startup log | [D](D_other_engines.ipynb) | `minikv.plan.logs.check_log.check_log` |
# | `StaticCache` | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache` |
# | storage | [05](05_owned_and_borrowed.ipynb) | `minikv.memory.ownership` |
# | `StreamingLLM` | [14](14_what_to_forget.ipynb) | `minikv.eviction.install_kv_eviction` |
# | `swap_space` | [11b](11b_when_blocks_run_out.ipynb) | `minikv.plan.preemption.recompute_seconds` |
# | `swap_space` | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.preemption.swap_seconds` |
# | `tensor_parallel_size` | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.CacheSpec.explain` |
# | tokens per second limit | [04](04_the_roofline.ipynb) | `minikv.plan.roofline.decode_work` |
# | `tokens_per_block` | [09](09_pages_and_blocks.ipynb) | `minikv.blocks.BlockManager.slot_mapping` |
# | torch.cat | [06](06_the_linear_cache.ipynb) | `minikv.cache.LinearKVCache.write` |
# | torch.profiler | [11a](11a_continuous_batching.ipynb) | `minikv.plan.roofline.Roof.seconds` |
# | tp | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.CacheSpec.explain` |
# | `--tp` | [12](12_beyond_one_gpu.ipynb) | `minikv.plan.CacheSpec.explain` |
# | TPOT | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.fewest` |
# | Triton kernel | [10](10_kernels.ipynb) | `minikv.kernels.paged_decode` |
# | TTFT | [17](17_a_fleet_on_paper.ipynb) | `minikv.simulate.fewest` |
# | `unknown model_type` | [02b](02b_layers_that_differ.ipynb) | `minikv.plan.CacheSpec.from_layers` |
# | `untyped_storage` | [05](05_owned_and_borrowed.ipynb) | `minikv.memory.ownership` |
# | `use_cache` | [01](01_why_a_cache.ipynb) | `minikv.plan.generation_flops` |
# | `use_cache=False` | [01](01_why_a_cache.ipynb) | `minikv.plan.generation_flops` |
# | utilization | [D](D_other_engines.ipynb) | `minikv.plan.MemoryBudget.parts` |
# | view keeps memory | [05](05_owned_and_borrowed.ipynb) | `minikv.memory.ownership` |
# | VRAM calculator | [02](02_how_many_bytes.ipynb) | `minikv.plan.plan_memory` |
# | write my own engine | [11c](11c_your_engine.ipynb) | `minikv.course.my_engine` |
# | wrong formula | [A](A_errata.ipynb) | `minikv.plan.estimate_kv_cache_gb` |
