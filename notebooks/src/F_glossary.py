# %% [meta]
# number = "F"
# slug = "glossary"
# [title]
# en = "What does this word mean? The glossary"
# zh = "这个词是什么意思？术语表"
# [t4]
# en = "Nothing to compute."
# zh = "没有要算的。"

# %% [markdown] key="how" lang="en"
# ## How to read it
#
# The words stand under the lesson that explains them. To find one, search the page (Ctrl-F or Cmd-F).
# The last column is the call that computes or holds it; `help(...)` on it says more, with shapes and units.
# The formulas are in the [cheat-sheet](E_cheat_sheet.ipynb), and what other engines call the same things is in [appendix D](D_other_engines.ipynb).
#
# Written by `python -m tools.glossary_page` from [glossary.toml](repo:minikv/course/data/glossary.toml).
# %% [markdown] key="how" lang="zh" src="f1ef3e85"
# ## 怎么用
#
# 每个词列在讲它的那一课下面。要找一个词，就在页内搜索（Ctrl-F 或 Cmd-F）。
# 最后一列是计算它或者保存它的调用；对它执行 `help(...)`，能看到形状和单位等细节。
# 公式见[速查](E_cheat_sheet.ipynb)；同样的东西在别的引擎里叫什么，见[附录 D](D_other_engines.ipynb)。
#
# 本页由 `python -m tools.glossary_page` 根据 [glossary.toml](repo:minikv/course/data/glossary.toml) 生成。

# %% [markdown] key="words-00" lang="en"
# ## [00 · What is on my machine, and how does this course work?](00_start_here.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **notebook / cell** | notebook / 单元格 | A document of texts and code that can be run; a cell is one piece of it. |  |  |
# | **prompt** | 提示词 | The tokens that a request brings. | tokens | `minikv.models.recall_prompt` |
# | **sequence** | 序列（量词：条） | The tokens of one request: its prompt and what was generated. | tokens | `minikv.engine.Sequence` |
# | **token** | token | The piece of text that a model reads and writes at a time; lengths in this course are in tokens. | tokens |  |
# | **widget** | 组件 | A drawing in a notebook that can be operated and that asks the package for its numbers. |  | `minikv.course.widgets.BudgetWidget` |
# %% [markdown] key="words-00" lang="zh" src="5b9187ae"
# ## [00 · 我的机器上有什么？这门课怎么学？](00_start_here.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **notebook / 单元格** | notebook / cell | 文字与可运行代码合成的文档，单元格是其中一格。 |  |  |
# | **提示词** | prompt | 请求带来的那些 token。别处也写作：提示。 | token | `minikv.models.recall_prompt` |
# | **序列（量词：条）** | sequence | 一个请求的全部 token：提示词加上已生成的。 | token | `minikv.engine.Sequence` |
# | **token** | token | 模型一次读或写的一小段文字；本课程里的长度都按 token 算。别处也写作：词元。 | token |  |
# | **组件** | widget | notebook 里可以操作的图，数字由程序包当场算出。 |  | `minikv.course.widgets.BudgetWidget` |

# %% [markdown] key="words-01" lang="en"
# ## [01 · Why does generation slow down without a cache?](01_why_a_cache.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **batch** | batch | The sequences that one step computes together. | sequences | `minikv.engine.StepArrays` |
# | **decode (phase)** | 解码 | The steps after the prefill: each reads one token and adds one to the cache. | tokens | `minikv.kernels.paged_decode` |
# | **induction head** | 归纳头（induction head） | A head that finds an earlier place with the same token and copies what followed there. |  |  |
# | **KV cache** | KV 缓存 | K and V of all tokens so far, kept so that no step has to compute them again. | bytes | `minikv.plan.CacheSpec.bytes_for` |
# | **prefill** | 预填充 | The forward over a prompt: many tokens at once, and their K and V go into the cache. | tokens | `minikv.kernels.paged_prefill` |
# | **query / key / value (vectors)** | query / K / V | What a token looks for, what it can be found by, and what it hands over when it is found. | elements | `minikv.kernels.Attention` |
# %% [markdown] key="words-01" lang="zh" src="270d4eb2"
# ## [01 · 没有缓存，生成为什么会越来越慢？](01_why_a_cache.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **batch** | batch | 同一步里一起计算的那些序列。别处也写作：批。 | 条 | `minikv.engine.StepArrays` |
# | **解码** | decode (phase) | 预填充之后的各步：每步读入一个 token，缓存也多一个。 | token | `minikv.kernels.paged_decode` |
# | **归纳头（induction head）** | induction head | 这样的头会找到前文里相同的 token，把它后面的内容抄过来。 |  |  |
# | **KV 缓存** | KV cache | 此前所有 token 的 K 和 V，存着，以后各步就不必重算。别处也写作：键值缓存。 | <nobr>字节</nobr> | `minikv.plan.CacheSpec.bytes_for` |
# | **预填充** | prefill | 对提示词做的前向计算：一次算很多 token，把它们的 K 和 V 写进缓存。 | token | `minikv.kernels.paged_prefill` |
# | **query / K / V** | query / key / value (vectors) | 一个 token 在找什么、凭什么被找到、被找到后给出什么。别处也写作：查询、键、值。 | <nobr>元素</nobr> | `minikv.kernels.Attention` |

# %% [markdown] key="words-02" lang="en"
# ## [02 · What does one token cost?](02_how_many_bytes.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **head_dim** | 头维度（`head_dim`） | Elements in one head's K or V of one token; not always hidden_size divided by the heads. | elements | `minikv.plan.CacheSpec.explain` |
# | **MHA / GQA / MQA** | 多头 / 分组查询 / 多查询注意力 | How many query heads share a KV head: one, several, or all. | heads | `minikv.plan.CacheSpec.explain` |
# %% [markdown] key="words-02" lang="zh" src="e079a4cd"
# ## [02 · 一个 token 要花多少字节？](02_how_many_bytes.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **头维度（`head_dim`）** | head_dim | 一个 token 在一个头里的 K（或 V）有多少个元素；不一定等于 hidden_size 除以头数。别处也写作：头大小。 | <nobr>元素</nobr> | `minikv.plan.CacheSpec.explain` |
# | **多头 / 分组查询 / 多查询注意力** | MHA / GQA / MQA | 几个 query 头共用一个 KV 头：各用各的、几个一组、全体共用。 | 头 | `minikv.plan.CacheSpec.explain` |

# %% [markdown] key="words-03" lang="en"
# ## [03 · Why did the estimate miss by 2.86x?](03_the_2_86x_mistake.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **latent** | 潜在向量（latent） | The short vector that MLA caches; each head computes its K and V from it. | elements | `minikv.kernels.latent_decode` |
# | **MLA** | 多头潜在注意力（MLA） | Attention whose cache keeps one latent a token and layer for all heads, instead of K and V for each. | bytes | `minikv.plan.CacheSpec.from_config` |
# %% [markdown] key="words-03" lang="zh" src="9831c27f"
# ## [03 · 估算为什么差了 2.86 倍？](03_the_2_86x_mistake.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **潜在向量（latent）** | latent | MLA 缓存的那个短向量，每个头都从它算出自己的 K 和 V。别处也写作：隐向量、潜向量。 | <nobr>元素</nobr> | `minikv.kernels.latent_decode` |
# | **多头潜在注意力（MLA）** | MLA | 一种注意力：每个 token 每层只缓存一份潜在向量，所有头共用，不再每头存 K 和 V。 | <nobr>字节</nobr> | `minikv.plan.CacheSpec.from_config` |

# %% [markdown] key="words-04" lang="en"
# ## [04 · The roofline: why does the GPU wait?](04_the_roofline.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **arithmetic intensity** | 算术强度 | FLOPs of some work divided by the bytes that it moves. | FLOP/byte | `minikv.plan.roofline.decode_work` |
# | **bandwidth** | 带宽 | Bytes that memory or a link can move in a second. | bytes/s | `minikv.memory.read_bandwidth` |
# | **coalesced access** | 合并访存 | Neighbouring threads read neighbouring addresses, so that one transfer serves them all. | bytes/s | `minikv.memory.access_patterns` |
# | **HBM** | HBM（高带宽显存） | A GPU's main memory, stacked chips next to the processor: tens of GiB, where weights and the KV cache lie; each decode step reads them from it. | bytes | `minikv.plan.find_gpu` |
# | **memory-bound / compute-bound** | 访存受限 / 计算受限 | Waiting for memory (intensity below the ridge point), or for arithmetic (above it). |  | `minikv.plan.roofline.Roof.seconds` |
# | **roofline / ridge point** | Roofline 模型 / 拐点（ridge point） | The most FLOP/s that some work can reach, given how many FLOPs it does with each byte; at the ridge point, memory and arithmetic take equally long. | FLOP/byte | `minikv.plan.roofline.gpu_roof` |
# | **SRAM** | SRAM（片上存储） | Small, fast memory on the chip: registers, shared memory, L1 and L2. A kernel keeps there what it uses more than once. | bytes |  |
# %% [markdown] key="words-04" lang="zh" src="8affa8cc"
# ## [04 · Roofline 模型：GPU 为什么在等？](04_the_roofline.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **算术强度** | arithmetic intensity | 一份计算的 FLOP 数除以它搬动的字节数。别处也写作：计算强度。 | <nobr>FLOP/字节</nobr> | `minikv.plan.roofline.decode_work` |
# | **带宽** | bandwidth | 内存或链路每秒能搬的字节数。 | <nobr>字节/秒</nobr> | `minikv.memory.read_bandwidth` |
# | **合并访存** | coalesced access | 相邻的线程读相邻的地址，一次传输就够它们用。别处也写作：合并访问。 | <nobr>字节/秒</nobr> | `minikv.memory.access_patterns` |
# | **HBM（高带宽显存）** | HBM | GPU 的主显存，是处理器旁边堆叠的存储芯片：有几十 GiB，权重和 KV 缓存放在这里，解码的每一步都要从中读取。别处也写作：device memory。 | <nobr>字节</nobr> | `minikv.plan.find_gpu` |
# | **访存受限 / 计算受限** | memory-bound / compute-bound | 在等访存（算术强度低于拐点），还是在等计算（高于拐点）。别处也写作：访存瓶颈、带宽受限。 |  | `minikv.plan.roofline.Roof.seconds` |
# | **Roofline 模型 / 拐点（ridge point）** | roofline / ridge point | 一份计算最多能跑到多快，由每字节配多少 FLOP 决定；拐点处访存和计算耗时相等。别处也写作：屋顶线模型、脊点。 | <nobr>FLOP/字节</nobr> | `minikv.plan.roofline.gpu_roof` |
# | **SRAM（片上存储）** | SRAM | 芯片上又小又快的存储：寄存器、共享内存、L1 和 L2。kernel 把要反复使用的数据留在这里。别处也写作：on-chip memory。 | <nobr>字节</nobr> |  |

# %% [markdown] key="words-05" lang="en"
# ## [05 · When is this memory freed?](05_owned_and_borrowed.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **arena** | arena（一次分配的整块内存） | One large allocation from which pieces are lent, and which is freed as a whole. | bytes | `minikv.memory.Arena` |
# | **owned / borrowed / view** | 拥有 / 借用 / 视图 | Whether a tensor stands for the whole of its memory, uses memory that another object frees, or shows a part of another tensor. |  | `minikv.memory.ownership` |
# | **stride** | 步幅（stride） | Elements from one item to the next along a dimension of a tensor. | elements | `minikv.memory.ownership` |
# %% [markdown] key="words-05" lang="zh" src="b7046497"
# ## [05 · 这块内存什么时候释放？](05_owned_and_borrowed.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **arena（一次分配的整块内存）** | arena | 一次分配的一整块内存，从中借出小块，最后整块释放。别处也写作：内存池。 | <nobr>字节</nobr> | `minikv.memory.Arena` |
# | **拥有 / 借用 / 视图** | owned / borrowed / view | 张量对它的内存是什么关系：拥有全部；借用，由另一个对象释放；还是视图，只看另一个张量的一部分。别处也写作：所有权。 |  | `minikv.memory.ownership` |
# | **步幅（stride）** | stride | 沿张量的某一维，从一项到下一项隔多少个元素。别处也写作：步长。 | <nobr>元素</nobr> | `minikv.memory.ownership` |

# %% [markdown] key="words-06" lang="en"
# ## [06 · What is the simplest cache?](06_the_linear_cache.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **fragmentation, internal / external** | 碎片，内部碎片 / 外部碎片 | Memory that is free and yet unusable: inside what was given out (half-empty blocks), or between (gaps too small for a request). | bytes | `minikv.blocks.ManagerStats.fragmentation` |
# %% [markdown] key="words-06" lang="zh" src="5ca6cf8f"
# ## [06 · 最简单的 KV 缓存是什么样的？](06_the_linear_cache.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **碎片，内部碎片 / 外部碎片** | fragmentation, internal / external | 空着却用不上的内存：空在已分出的部分里面（没填满的块），或者空在它们之间（缝隙太小，放不下请求）。别处也写作：显存碎片。 | <nobr>字节</nobr> | `minikv.blocks.ManagerStats.fragmentation` |

# %% [markdown] key="words-07" lang="en"
# ## [07 · What does malloc cost per token?](07_allocate_once.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **allocated / reserved** | 已分配 / 已保留（reserved） | What tensors use now; what PyTorch holds, with what it keeps for later. | bytes | `minikv.memory.MemoryStats` |
# | **allocator block / segment** | 分配器块 / 段（segment） | A segment is a piece that the caching allocator took from the driver; its blocks are the cuts that tensors get. | bytes | `minikv.memory.allocator.rules.segment_size` |
# | **caching allocator** | 缓存分配器 | PyTorch's manager of GPU memory: it takes large segments from the driver, cuts them up, and keeps what is freed for later requests. | bytes | `minikv.memory.CachingAllocator` |
# | **latency ladder** | 延迟阶梯 | The time of one load by the size of what is walked through: a few nanoseconds in the first cache, a hundred and more in memory. | ns | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | **pointer chasing** | 指针追逐 | A way to time one load: each number read is the place of the next, so no load can begin before the last one has ended. | ns | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | **pre-allocation** | 预分配 | To allocate the memory once, at the start, for the largest case. | bytes | `minikv.cache.LinearKVCache` |
# %% [markdown] key="words-07" lang="zh" src="a0f0dde5"
# ## [07 · 每个 token 的 malloc 要花多少？](07_allocate_once.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **已分配 / 已保留（reserved）** | allocated / reserved | 已分配是张量正在用的；已保留是 PyTorch 手里的全部，包括留着备用的。别处也写作：预留。 | <nobr>字节</nobr> | `minikv.memory.MemoryStats` |
# | **分配器块 / 段（segment）** | allocator block / segment | 段是缓存分配器向驱动要来的一整片，分配器块是从段里切给张量的。 | <nobr>字节</nobr> | `minikv.memory.allocator.rules.segment_size` |
# | **缓存分配器** | caching allocator | PyTorch 管理显存的部件：向驱动申请大段，切开来用；释放的留着，给以后的申请用。别处也写作：显存分配器。 | <nobr>字节</nobr> | `minikv.memory.CachingAllocator` |
# | **延迟阶梯** | latency ladder | 一次读取的时间随数据大小变化的曲线：在一级缓存里几纳秒，在内存里一百纳秒以上。 | <nobr>纳秒</nobr> | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | **指针追逐** | pointer chasing | 测量一次读取要多久的方法：读出的数就是下一个数的位置，上一次没读完，下一次就无法开始。 | <nobr>纳秒</nobr> | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | **预分配** | pre-allocation | 一开始就按最大的情形分配好，只分配一次。 | <nobr>字节</nobr> | `minikv.cache.LinearKVCache` |

# %% [markdown] key="words-08" lang="en"
# ## [08 · allocate_kv_cache: how many blocks fit?](08_allocate_kv_cache.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **GPU memory / memory budget** | 显存 / 显存预算 | The memory on the card, and what is planned for each part of it. | bytes | `minikv.plan.plan_memory` |
# | **kept free (what utilization leaves)** | 留空 | Memory that an engine does not plan with, for graphs, other processes and surprises. | bytes | `minikv.plan.MemoryBudget.parts` |
# | **peak** | 峰值 | The most that was allocated at any moment since the last reset. | bytes | `minikv.memory.measure_peak` |
# | **utilization** | 利用率（utilization） | The share of a GPU's memory that an engine may use. | 0 to 1 | `minikv.plan.MemoryBudget.limit_bytes` |
# | **warm-up** | 预热 | The largest forward, run once before the cache is allocated, to measure its peak. | bytes | `minikv.cache.warmup` |
# | **weights / activations / workspace** | 权重 / 激活 / 工作空间 | The model's parameters; what a forward computes on the way; what libraries take for themselves. | bytes | `minikv.plan.MemoryBudget.parts` |
# %% [markdown] key="words-08" lang="zh" src="160b7af1"
# ## [08 · allocate_kv_cache：放得下多少块？](08_allocate_kv_cache.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **显存 / 显存预算** | GPU memory / memory budget | 卡上的内存，以及给每一部分定下的份额。别处也写作：GPU 内存。 | <nobr>字节</nobr> | `minikv.plan.plan_memory` |
# | **留空** | kept free (what utilization leaves) | 推理引擎不列入规划的显存，留给 CUDA 图、其他进程和意外。 | <nobr>字节</nobr> | `minikv.plan.MemoryBudget.parts` |
# | **峰值** | peak | 上次重置以来，已分配达到过的最大值。 | <nobr>字节</nobr> | `minikv.memory.measure_peak` |
# | **利用率（utilization）** | utilization | 推理引擎可以用的显存比例。 | 0 到 1 | `minikv.plan.MemoryBudget.limit_bytes` |
# | **预热** | warm-up | 分配缓存之前，先跑一次最大的前向计算，测出峰值。 | <nobr>字节</nobr> | `minikv.cache.warmup` |
# | **权重 / 激活 / 工作空间** | weights / activations / workspace | 模型的参数；前向计算途中产生的张量；各种库自己占用的空间。别处也写作：激活值。 | <nobr>字节</nobr> | `minikv.plan.MemoryBudget.parts` |

# %% [markdown] key="words-09" lang="en"
# ## [09 · Which sequence owns block 7?](09_pages_and_blocks.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **block / block size / block pool** | 块 / 块大小 / 块池 | A block is room for a fixed number of tokens (the block size) in all layers; the pool is all blocks together, allocated once. | blocks | `minikv.blocks.BlockPool` |
# | **block table** | 块表 | The numbers of the blocks that hold a sequence, in the order of its tokens. | blocks | `minikv.blocks.BlockManager.block_table` |
# | **copy-on-write** | 写时复制 | A shared block is copied only when one of its holders writes into it. |  | `minikv.blocks.BlockManager.fork` |
# | **KV cache group** | KV 缓存组 | Layers with one window and one number of bytes a token: they share a pool of blocks and one block table a sequence. |  | `minikv.blocks.KVCacheGroup` |
# | **prefix cache / hit rate** | 前缀缓存 / 命中率 | Blocks of earlier prompts, found again by their content; the hit rate is the share of asked tokens that were found. | 0 to 1 | `minikv.blocks.BlockManager.match` |
# | **radix tree (RadixAttention)** | 基数树（RadixAttention） | SGLang's index of cached prefixes: a tree with runs of tokens on its edges. (minikv names whole blocks by chained digests instead.) | tokens | `minikv.blocks.BlockManager.match` |
# | **reference count / free list** | 引用计数 / 空闲队列 | How many sequences hold a block; the queue of blocks that no sequence holds. |  | `minikv.blocks.BlockPool.ref_count` |
# | **slot / slot mapping** | 槽位 / 槽位映射（`slot_mapping`） | A slot is the place of one token in the pool; the slot mapping says which slot each new token gets. |  | `minikv.blocks.BlockManager.slot_mapping` |
# %% [markdown] key="words-09" lang="zh" src="938109b4"
# ## [09 · 块 7 属于哪条序列？](09_pages_and_blocks.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **块 / 块大小 / 块池** | block / block size / block pool | 块是一段固定大小的空间，装得下“块大小”那么多个 token 在各层的 K 和 V；所有块合起来就是块池，一次分配好。别处也写作：KV 块、物理块。 | 块 | `minikv.blocks.BlockPool` |
# | **块表** | block table | 一条序列用了哪些块：按 token 的顺序列出块号。别处也写作：块映射表。 | 块 | `minikv.blocks.BlockManager.block_table` |
# | **写时复制** | copy-on-write | 共享的块平时不复制，有序列要往里写时才复制一份。 |  | `minikv.blocks.BlockManager.fork` |
# | **KV 缓存组** | KV cache group | 窗口相同、每个 token 字节数也相同的层：它们共用一个块池，每条序列共用一张块表。 |  | `minikv.blocks.KVCacheGroup` |
# | **前缀缓存 / 命中率** | prefix cache / hit rate | 以前的提示词留下的块，内容相同就能再次找到；命中率是请求的 token 里找到的比例。别处也写作：自动前缀缓存。 | 0 到 1 | `minikv.blocks.BlockManager.match` |
# | **基数树（RadixAttention）** | radix tree (RadixAttention) | SGLang 的前缀索引：一棵树，每条边上是一串 token。（minikv 用的是链式摘要，以整块为单位。） | token | `minikv.blocks.BlockManager.match` |
# | **引用计数 / 空闲队列** | reference count / free list | 有几条序列持有这个块；没有序列持有的块排成的队。别处也写作：空闲链表。 |  | `minikv.blocks.BlockPool.ref_count` |
# | **槽位 / 槽位映射（`slot_mapping`）** | slot / slot mapping | 槽位是块池里放一个 token 的位置；槽位映射说明每个新 token 写进哪个槽位。 |  | `minikv.blocks.BlockManager.slot_mapping` |

# %% [markdown] key="words-10" lang="en"
# ## [10 · How does a GPU read a page table?](10_kernels.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **FlashAttention** | FlashAttention | Attention tile by tile with an online softmax: a tile of K and V stays in SRAM, and the matrix of scores is never written to HBM. |  | `minikv.kernels.OnlineSoftmax` |
# | **kernel** | kernel | A function that runs on the GPU, in many programs at once. |  | `minikv.kernels.store_kv` |
# | **online softmax / split-KV** | 在线 softmax / 沿序列切分（split-KV） | A softmax computed piece by piece with a running maximum; split-KV gives the pieces of one sequence to different programs. |  | `minikv.kernels.merge_splits` |
# | **paged attention** | 分页注意力（PagedAttention） | Attention that finds K and V through a block table instead of in one contiguous piece. |  | `minikv.kernels.paged_decode` |
# | **tile** | tile | The part of K and V that a program of a kernel holds and computes at one time. |  |  |
# %% [markdown] key="words-10" lang="zh" src="18b0adc2"
# ## [10 · GPU 怎样读块表？](10_kernels.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **FlashAttention** | FlashAttention | 用在线 softmax 逐个 tile 计算注意力：K 和 V 的 tile 留在 SRAM 里，分数矩阵从不写到 HBM。别处也写作：flash attention。 |  | `minikv.kernels.OnlineSoftmax` |
# | **kernel** | kernel | 在 GPU 上运行的函数，由许多程序实例同时执行。别处也写作：算子、核函数。 |  | `minikv.kernels.store_kv` |
# | **在线 softmax / 沿序列切分（split-KV）** | online softmax / split-KV | 一段一段地算 softmax，随时更新最大值；沿序列切分是把一条序列的各段交给不同的程序。别处也写作：Flash-Decoding。 |  | `minikv.kernels.merge_splits` |
# | **分页注意力（PagedAttention）** | paged attention | 经过块表去找 K 和 V 的注意力，不要求它们连成一片。 |  | `minikv.kernels.paged_decode` |
# | **tile** | tile | kernel 的一个程序实例一次取来、一次算完的那部分 K 和 V。别处也写作：分块。 |  |  |

# %% [markdown] key="words-11a" lang="en"
# ## [11a · How do 256 requests share one cache?](11a_continuous_batching.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **chunked prefill** | 分块预填充 | A long prompt is computed in pieces, over several steps; in each of them other sequences decode as usual. | tokens | `minikv.engine.Scheduler.schedule` |
# | **continuous batching** | 连续批处理 | The batch is chosen again at every step: requests that have ended leave, and waiting ones may join. | sequences | `minikv.engine.Scheduler.schedule` |
# | **detokenize** | 还原为文本 | To turn token numbers back into text, piece by piece while they arrive. |  |  |
# | **seat / `max_num_seqs`** | 并发上限（`max_num_seqs`） | A batch has `max_num_seqs` seats: at most that many sequences run at the same time. | sequences | `minikv.engine.Scheduler` |
# | **step ahead (scheduled before the tokens of the one before it are read)** | 提前的一步（尚未读到上一步的 token 就已调度） | The engine prepares the next step while the GPU still computes this one. |  | `minikv.engine.ext.overlap.schedule_next` |
# | **TTFT / TPOT** | 首 token 延迟（TTFT）/ 每 token 延迟（TPOT） | Time from a request to its first token; time from one of its tokens to the next, on average. | s | `minikv.engine.summary` |
# %% [markdown] key="words-11a" lang="zh" src="a143a58a"
# ## [11a · 256 个请求怎样共用一份缓存？](11a_continuous_batching.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **分块预填充** | chunked prefill | 长提示词分几段，在几步里算完，同一步里别的序列照常解码。 | token | `minikv.engine.Scheduler.schedule` |
# | **连续批处理** | continuous batching | 每一步都重新组 batch：结束的离开，等待的加入。 | 条 | `minikv.engine.Scheduler.schedule` |
# | **还原为文本** | detokenize | 把 token 编号变回文字，边生成边还原。别处也写作：反分词。 |  |  |
# | **并发上限（`max_num_seqs`）** | seat / `max_num_seqs` | 最多同时运行多少条序列。 | 条 | `minikv.engine.Scheduler` |
# | **提前的一步（尚未读到上一步的 token 就已调度）** | step ahead (scheduled before the tokens of the one before it are read) | GPU 还在算这一步，引擎已经排好下一步。 |  | `minikv.engine.ext.overlap.schedule_next` |
# | **首 token 延迟（TTFT）/ 每 token 延迟（TPOT）** | TTFT / TPOT | 从请求到第一个 token 的时间；之后平均每个 token 的时间。别处也写作：首字延迟。 | 秒 | `minikv.engine.summary` |

# %% [markdown] key="words-11b" lang="en"
# ## [11b · Which sequence gives up its blocks?](11b_when_blocks_run_out.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **preemption** | 抢占 | Taking all blocks of a running sequence back, so that others can go on; it continues later. |  | `minikv.engine.Rules.choose_victim` |
# | **recompute (after preemption)** | 重新计算 | To compute the K and V of a preempted sequence again when it continues, because its blocks were given away. | s | `minikv.plan.preemption.recompute_seconds` |
# %% [markdown] key="words-11b" lang="zh" src="de77fb62"
# ## [11b · 块用完了，哪条序列让出来？](11b_when_blocks_run_out.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **抢占** | preemption | 把一条运行中序列的块全部收回，让别的序列继续；它以后再接着算。 |  | `minikv.engine.Rules.choose_victim` |
# | **重新计算** | recompute (after preemption) | 被抢占的序列不保留 K 和 V，回来时重新算一遍。别处也写作：重计算。 | 秒 | `minikv.plan.preemption.recompute_seconds` |

# %% [markdown] key="words-12" lang="en"
# ## [12 · What does each GPU keep?](12_beyond_one_gpu.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **a rank's shard (of the weights)** | 切片 | The part of a weight matrix that one rank holds. | bytes | `minikv.plan.weight_bytes` |
# | **absorb** | 矩阵吸收 | To multiply MLA's up-projections into the query and the output, so that attention reads the latent itself. |  | `minikv.kernels.latent_decode` |
# | **data parallelism / data-parallel attention** | 数据并行 / 数据并行注意力 | Each GPU serves sequences of its own; of attention: each keeps the whole cache of its own sequences, and the other layers are still shared. |  |  |
# | **host memory** | CPU 内存 | The memory of the computer that the GPU sits in. | bytes | `minikv.cache.HostPool` |
# | **one GPU, 8 GPUs** | 一块 GPU，8 块 GPU | In Chinese GPUs are counted with 块, which is also the word for a block. |  |  |
# | **pinned memory** | 锁页内存 | Host memory that cannot be paged out, so that a GPU copies it faster and without waiting. | bytes | `minikv.cache.HostPool` |
# | **rank** | rank | One of the processes that run a model together, mostly one a GPU; also its number. |  | `minikv.models.sharding.ranks_of` |
# | **shard / replicate** | 切分 / 复制 | To give each rank a part of something, or to give each rank all of it. |  |  |
# | **stream / event (CUDA)** | 流 / 事件 | A stream is a queue of GPU work, done in order; an event marks a place in it that other streams can wait for. |  |  |
# | **swap out, in / offload** | 换出、换入 / 卸载 | To move blocks from the GPU to host memory and back. | s | `minikv.plan.preemption.swap_seconds` |
# | **tensor parallelism** | 张量并行（TP） | Several GPUs compute every layer together, each with a part of the heads and matrices. |  | `minikv.plan.plan_memory` |
# %% [markdown] key="words-12" lang="zh" src="e805a15b"
# ## [12 · 每块 GPU 各存什么？](12_beyond_one_gpu.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **切片** | a rank's shard (of the weights) | 一个 rank 持有的那部分权重矩阵。别处也写作：分片。 | <nobr>字节</nobr> | `minikv.plan.weight_bytes` |
# | **矩阵吸收** | absorb | 把 MLA 的升维矩阵并进 query 和输出，注意力就能直接读潜在向量。别处也写作：权重吸收。 |  | `minikv.kernels.latent_decode` |
# | **数据并行 / 数据并行注意力** | data parallelism / data-parallel attention | 每块 GPU 各管各的序列；只对注意力这样做时，每块存自己那些序列的全部缓存，其余各层仍然合着算。别处也写作：DP attention。 |  |  |
# | **CPU 内存** | host memory | GPU 所在机器的内存。别处也写作：主机内存。 | <nobr>字节</nobr> | `minikv.cache.HostPool` |
# | **一块 GPU，8 块 GPU** | one GPU, 8 GPUs | GPU 的量词用“块”；与 KV 缓存的块混淆时，写明“块 GPU”。别处也写作：张。 |  |  |
# | **锁页内存** | pinned memory | 不会被操作系统换页的 CPU 内存，GPU 可以更快地、异步地复制。别处也写作：页锁定内存、固定内存。 | <nobr>字节</nobr> | `minikv.cache.HostPool` |
# | **rank** | rank | 共同运行一个模型的进程之一，通常一块 GPU 一个；也指它的编号。别处也写作：进程。 |  | `minikv.models.sharding.ranks_of` |
# | **切分 / 复制** | shard / replicate | 切分是每个 rank 拿一部分，复制是每个 rank 都拿全部。别处也写作：分片。 |  |  |
# | **流 / 事件** | stream / event (CUDA) | 流是按次序执行的 GPU 任务队列；事件是队列里的一个标记，别的流可以等它。 |  |  |
# | **换出、换入 / 卸载** | swap out, in / offload | 把块从 GPU 搬到 CPU 内存，需要时再搬回来。别处也写作：交换。 | 秒 | `minikv.plan.preemption.swap_seconds` |
# | **张量并行（TP）** | tensor parallelism | 几块 GPU 一起算每一层，各管一部分头和矩阵。 |  | `minikv.plan.plan_memory` |

# %% [markdown] key="words-13" lang="en"
# ## [13 · What do fewer bytes cost?](13_half_the_bytes.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **KV dtype** | KV 数据类型 | The number format of the cache; it need not be that of the weights. |  | `minikv.cache.find_codec` |
# | **quantized KV / scale** | KV 量化 / 缩放因子 | K and V in 8 bits; the scale is the number that a row has to be multiplied with to get its size back. | bytes | `minikv.kernels.quantize.quantize` |
# | **recall (of a test)** | 召回率 | The share of asked facts that a model answers rightly. | 0 to 1 | `minikv.engine.recall.measure_recall` |
# %% [markdown] key="words-13" lang="zh" src="87be5ee2"
# ## [13 · 字节少了，代价是什么？](13_half_the_bytes.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **KV 数据类型** | KV dtype | 缓存里数的格式，不必与权重相同。 |  | `minikv.cache.find_codec` |
# | **KV 量化 / 缩放因子** | quantized KV / scale | 用 8 位存的 K 和 V；缩放因子是还原大小时要乘上的那个数。 | <nobr>字节</nobr> | `minikv.kernels.quantize.quantize` |
# | **召回率** | recall (of a test) | 问到的事实里，模型答对的比例。 | 0 到 1 | `minikv.engine.recall.measure_recall` |

# %% [markdown] key="words-13b" lang="en"
# ## [13b · How do steps get fewer and cheaper?](13b_fewer_cheaper_steps.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **CUDA graph** | CUDA 图 | A recorded sequence of kernel launches that is started as one; its memory stays reserved. | bytes | `minikv.engine.ext.graphs.expected_memory` |
# | **prompt lookup / draft** | 提示词查找 / 草稿 | To guess the next tokens from an earlier place of the same text; the guesses are the draft. | tokens | `minikv.engine.ext.drafts.propose` |
# | **speculative decoding** | 推测解码 | To guess several tokens cheaply and let one forward check them all; wrong guesses are rolled back. | tokens | `minikv.engine.ext.drafts.propose` |
# %% [markdown] key="words-13b" lang="zh" src="f426aa8d"
# ## [13b · 怎样让步数更少、每步更省？](13b_fewer_cheaper_steps.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **CUDA 图** | CUDA graph | 录下一串 kernel 启动，以后一次发出；它占的显存一直留着。 | <nobr>字节</nobr> | `minikv.engine.ext.graphs.expected_memory` |
# | **提示词查找 / 草稿** | prompt lookup / draft | 从同一段文字的前文里猜接下来的 token，猜出来的就是草稿。 | token | `minikv.engine.ext.drafts.propose` |
# | **推测解码** | speculative decoding | 先用便宜的办法猜几个 token，再用一次前向计算全部验证；猜错的退回去。别处也写作：投机解码。 | token | `minikv.engine.ext.drafts.propose` |

# %% [markdown] key="words-14" lang="en"
# ## [14 · Which tokens can go?](14_what_to_forget.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **attention sink** | 注意力汇点（sink） | One of the first tokens of a text: it gets much attention whatever it says, and eviction keeps it. | tokens | `minikv.eviction.Budget` |
# | **capacity (of a layer)** | 容量 | Tokens that a layer keeps after an eviction: sinks, heavy hitters, recent ones. | tokens | `minikv.eviction.Budget.capacity` |
# | **eviction** | 淘汰 | To drop chosen tokens of a sequence from the cache for good. (Of a prefix cache: to empty a free block that could still be found.) | tokens | `minikv.eviction.install_kv_eviction` |
# | **heavy hitter** | 重要 token（heavy hitter） | A token that has got much attention so far, and is therefore kept. | tokens | `minikv.eviction.H2O` |
# | **perplexity / needle test** | 困惑度 / 大海捞针测试 | How surprised a model is by a text; whether it finds one fact that is hidden in a long one. |  | `minikv.engine.recall.measure_recall` |
# | **recent window / sliding window** | 近期窗口 / 滑动窗口 | The last tokens. Eviction keeps a recent window by choice; a layer with a sliding window was trained to see no others. | tokens | `minikv.plan.CacheSpec.window` |
# %% [markdown] key="words-14" lang="zh" src="ef38dc16"
# ## [14 · 哪些 token 可以不要？](14_what_to_forget.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **注意力汇点（sink）** | attention sink | 文本最开头的几个 token：不管写的是什么，都分到很多注意力，淘汰时要留着。别处也写作：注意力汇。 | token | `minikv.eviction.Budget` |
# | **容量** | capacity (of a layer) | 一次淘汰之后，一层留下多少 token：汇点、重要 token、近期 token。 | token | `minikv.eviction.Budget.capacity` |
# | **淘汰** | eviction | 把一条序列里选定的 token 从缓存中永久去掉。（对前缀缓存而言，是清空一个还能找到的空闲块。）别处也写作：驱逐、逐出。 | token | `minikv.eviction.install_kv_eviction` |
# | **重要 token（heavy hitter）** | heavy hitter | 到目前为止累计得到很多注意力的 token，因此留下。别处也写作：重击者。 | token | `minikv.eviction.H2O` |
# | **困惑度 / 大海捞针测试** | perplexity / needle test | 困惑度衡量模型对一段文本有多意外；大海捞针测试看它能否找出长文中藏着的一个事实。 |  | `minikv.engine.recall.measure_recall` |
# | **近期窗口 / 滑动窗口** | recent window / sliding window | 最后的若干个 token。近期窗口是淘汰时主动留下的；滑动窗口层则是训练出来就只看这些。别处也写作：滑窗。 | token | `minikv.plan.CacheSpec.window` |

# %% [markdown] key="words-15" lang="en"
# ## [15 · What changes with a latent?](15_eviction_on_mla.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **DeepSeek Sparse Attention (DSA)** | DeepSeek 稀疏注意力（DSA） | Attention in which a small indexer chooses, for each query, the rows of latents that are read; all rows stay in the cache. |  |  |
# %% [markdown] key="words-15" lang="zh" src="fe81c9c7"
# ## [15 · 换成潜在向量，有什么不同？](15_eviction_on_mla.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **DeepSeek 稀疏注意力（DSA）** | DeepSeek Sparse Attention (DSA) | 一种注意力：每个 query 只读 indexer 选出的那些行潜在向量，但所有的行都留在缓存里。 |  |  |

# %% [markdown] key="words-16" lang="en"
# ## [16 · Where did 6 GB go?](16_where_did_6gb_go.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **pinned / returnable (of what torch keeps)** | 被钉住 / 可归还 | Pinned: free bytes of a segment in which a tensor still lives, so that the segment cannot go back to the driver. Returnable: free segments, which `empty_cache()` gives back. Neither is pinned memory of the host. | bytes | `minikv.memory.retention.cached_memory.CachedMemory` |
# %% [markdown] key="words-16" lang="zh" src="bddbd49e"
# ## [16 · 那 6 GB 去哪儿了？](16_where_did_6gb_go.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **被钉住 / 可归还** | pinned / returnable (of what torch keeps) | 被钉住的是段里的空闲字节，同一段还有张量活着，所以还不回驱动；可归还的是 `empty_cache()` 能还掉的空闲段。与 CPU 的锁页内存无关。 | <nobr>字节</nobr> | `minikv.memory.retention.cached_memory.CachedMemory` |

# %% [markdown] key="words-17" lang="en"
# ## [17 · How many GPUs does this traffic need?](17_a_fleet_on_paper.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **disaggregation** | 预填充与解码分离 | Prefill and decode run on different GPUs, and K and V of each prompt move from one to the other. | bytes | `minikv.plan.CacheSpec.bytes_for` |
# | **percentile** | 分位数 | p99 is the value that 99 of 100 measurements do not exceed. | s | `minikv.engine.Percentiles` |
# | **replica** | 副本 | A copy of the model with a cache and a scheduler of its own. |  | `minikv.simulate.Replica` |
# | **request trace** | 请求轨迹 | A list of requests: when each comes, how long prompt and answer are, which beginnings are equal. |  | `minikv.simulate.Trace` |
# | **router** | 路由器 | What decides which replica gets a request. |  | `minikv.simulate.PrefixAware` |
# | **session** | 会话 | A conversation: each prompt is all that was said before, and a new message. |  | `minikv.simulate.Load` |
# %% [markdown] key="words-17" lang="zh" src="ef635d0b"
# ## [17 · 这些流量需要多少块 GPU？](17_a_fleet_on_paper.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **预填充与解码分离** | disaggregation | 预填充和解码在不同的 GPU 上进行，每个提示词的 K 和 V 从前者搬到后者。 | <nobr>字节</nobr> | `minikv.plan.CacheSpec.bytes_for` |
# | **分位数** | percentile | p99 是 100 次测量里有 99 次不超过的值。 | 秒 | `minikv.engine.Percentiles` |
# | **副本** | replica | 一份完整的模型，有自己的缓存和调度器。 |  | `minikv.simulate.Replica` |
# | **请求轨迹** | request trace | 一份请求清单：何时到来，提示词和回答多长，哪些开头相同。 |  | `minikv.simulate.Trace` |
# | **路由器** | router | 决定每个请求交给哪个副本的部件。 |  | `minikv.simulate.PrefixAware` |
# | **会话** | session | 一段对话：每轮的提示词是之前的全部内容，再加一句新的。 |  | `minikv.simulate.Load` |

# %% [markdown] key="words-18" lang="en"
# ## [18 · Can you serve this load within this budget?](18_capstone.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **floor / score** | 下限 / 得分 | The least time that any plan needs; the score is 100 times floor divided by time. | s | `minikv.course.capstone.floor` |
# | **quality bar** | 质量门槛 | The share of right answer tokens that a plan must reach; below it, its score is 0. | 0 to 1 | `minikv.course.capstone.Task` |
# %% [markdown] key="words-18" lang="zh" src="e2070714"
# ## [18 · 给定预算，你能承载这份负载吗？](18_capstone.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **下限 / 得分** | floor / score | 任何方案都至少要用这么久；得分是下限除以实际用时，再乘 100。 | 秒 | `minikv.course.capstone.floor` |
# | **质量门槛** | quality bar | 一个方案的答案 token 至少要对多少；低于它，得分就是 0。 | 0 到 1 | `minikv.course.capstone.Task` |
