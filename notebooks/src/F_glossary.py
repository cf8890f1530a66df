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
# The last column is the call that computes or holds the thing; its `help(...)` says more, with shapes and units.
# The formulas are in the [cheat-sheet](E_cheat_sheet.ipynb), and what other engines call the same things is in [appendix D](D_other_engines.ipynb).
#
# Written by `python -m tools.glossary_page` from [glossary.toml](repo:minikv/course/data/glossary.toml).
# %% [markdown] key="how" lang="zh" src="af3cd96c"
# ## 怎么用
#
# 每个词列在讲它的那一课下面。要找一个词，就在页内搜索（Ctrl-F 或 Cmd-F）。
# 最后一列是计算或保存它的调用；对这个调用执行 `help(...)`，能看到形状和单位等细节。
# 公式见[速查](E_cheat_sheet.ipynb)；同样的东西在别的引擎里叫什么，见[附录 D](D_other_engines.ipynb)。
#
# 本页由 `python -m tools.glossary_page` 根据 [glossary.toml](repo:minikv/course/data/glossary.toml) 生成。

# %% [markdown] key="words-00" lang="en"
# ## [00 · What is on my machine, and how does this course work?](00_start_here.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **notebook / cell** | notebook / 单元格 | A document of text and of code that can be run. A cell is one piece of it. |  |  |
# | **prompt** | 提示词 | The input of a request, in tokens. The model continues it. | tokens | `minikv.models.recall_prompt` |
# | **sequence** | 序列（量词：条） | The tokens of one request: its prompt and what was generated. | tokens | `minikv.engine.Sequence` |
# | **token** | token | A word or a part of one: the unit that a model reads and writes. Lengths in this course are in tokens. | tokens |  |
# | **widget** | 组件 | An interactive drawing in a notebook; the package computes its numbers. |  | `minikv.course.widgets.BudgetWidget` |
# %% [markdown] key="words-00" lang="zh" src="9c9fdc07"
# ## [00 · 我的机器上有什么？这门课怎么学？](00_start_here.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **notebook / 单元格** | notebook / cell | notebook 是由文字和可运行的代码组成的文档；单元格是其中的一格。 |  |  |
# | **提示词** | prompt | 请求给模型的输入，由 token 组成，模型接着它往下生成。别处也写作：提示。 | token | `minikv.models.recall_prompt` |
# | **序列（量词：条）** | sequence | 一个请求的全部 token：提示词加上已生成的。 | token | `minikv.engine.Sequence` |
# | **token** | token | 模型读写文字的基本单位，可以是一个词，也可以是词的一部分；本课程里的长度都按 token 算。别处也写作：词元。 | token |  |
# | **组件** | widget | notebook 里可以操作的图，数字由 minikv 当场算出。 |  | `minikv.course.widgets.BudgetWidget` |

# %% [markdown] key="words-01" lang="en"
# ## [01 · Why does generation slow down without a cache?](01_why_a_cache.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **batch** | batch | The sequences that one step computes together. | sequences | `minikv.engine.StepArrays` |
# | **decode (phase)** | 解码 | The steps after the prefill: each reads one token and adds one to the cache. | tokens | `minikv.kernels.paged_decode` |
# | **induction head** | 归纳头（induction head） | An attention head that finds an earlier place with the same token and copies what followed there. |  |  |
# | **KV cache** | KV 缓存 | K and V of all tokens so far, kept so that no step has to compute them again. | bytes | `minikv.plan.CacheSpec.bytes_for` |
# | **prefill** | 预填充 | The forward pass over a prompt: many tokens at once, and their K and V go into the cache. | tokens | `minikv.kernels.paged_prefill` |
# | **query / key / value (vectors)** | query / K / V | Three vectors of a token in each head: what the token looks for, what it can be found by, and what it hands over when it is found. | elements | `minikv.kernels.Attention` |
# %% [markdown] key="words-01" lang="zh" src="21955ceb"
# ## [01 · 没有缓存，生成为什么会越来越慢？](01_why_a_cache.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **batch** | batch | 同一步里一起计算的那些序列。别处也写作：批。 | 条 | `minikv.engine.StepArrays` |
# | **解码** | decode (phase) | 预填充之后的各步：每步读入一个 token，缓存也多一个。 | token | `minikv.kernels.paged_decode` |
# | **归纳头（induction head）** | induction head | 注意力头的一种：在前文里找到相同的 token，把它后面的内容抄过来。 |  |  |
# | **KV 缓存** | KV cache | 此前所有 token 的 K 和 V，存下来供后面各步使用，不必重算。别处也写作：键值缓存。 | <nobr>字节</nobr> | `minikv.plan.CacheSpec.bytes_for` |
# | **预填充** | prefill | 对提示词做的前向计算：一次算很多 token，把它们的 K 和 V 写进缓存。 | token | `minikv.kernels.paged_prefill` |
# | **query / K / V** | query / key / value (vectors) | 一个 token 在每个头里的三个向量，依次表示它在找什么、凭什么被找到、被找到后给出什么。别处也写作：查询、键、值。 | <nobr>元素</nobr> | `minikv.kernels.Attention` |

# %% [markdown] key="words-02" lang="en"
# ## [02 · What does one token cost?](02_how_many_bytes.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **head_dim** | 头维度（`head_dim`） | The number of elements in the K (or V) of one token in one head. It is not always `hidden_size` divided by the number of heads. | elements | `minikv.plan.CacheSpec.explain` |
# | **MHA / GQA / MQA** | 多头 / 分组查询 / 多查询注意力 | Multi-head, grouped-query and multi-query attention. They differ in how many query heads share a KV head: one, several, or all. | heads | `minikv.plan.CacheSpec.explain` |
# %% [markdown] key="words-02" lang="zh" src="ca090925"
# ## [02 · 一个 token 要花多少字节？](02_how_many_bytes.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **头维度（`head_dim`）** | head_dim | 一个 token 在一个头里的 K（或 V）有多少个元素；不一定等于 `hidden_size` 除以头数。别处也写作：头大小。 | <nobr>元素</nobr> | `minikv.plan.CacheSpec.explain` |
# | **多头 / 分组查询 / 多查询注意力** | MHA / GQA / MQA | 三者的区别在于几个 query 头共用一个 KV 头：多头注意力（MHA）是一个，分组查询（GQA）是一组，多查询（MQA）是全部。 | 头 | `minikv.plan.CacheSpec.explain` |

# %% [markdown] key="words-03" lang="en"
# ## [03 · Why did the estimate miss by 2.86x?](03_the_2_86x_mistake.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **latent** | 潜在向量（latent） | The short vector that MLA caches. Each head computes its V, and its K without the position, from it. | elements | `minikv.kernels.latent_decode` |
# | **MLA** | 多头潜在注意力（MLA） | Multi-head latent attention, from DeepSeek. For each token and layer, the cache keeps one latent and a short rope key (the part with the position) that all heads share, instead of K and V of each head. | bytes | `minikv.plan.CacheSpec.from_config` |
# %% [markdown] key="words-03" lang="zh" src="7e6ff3d7"
# ## [03 · 估算为什么差了 2.86 倍？](03_the_2_86x_mistake.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **潜在向量（latent）** | latent | MLA 缓存的短向量；每个头的 V，以及 K 里不带位置的部分，都由它算出。别处也写作：隐向量、潜向量。 | <nobr>元素</nobr> | `minikv.kernels.latent_decode` |
# | **多头潜在注意力（MLA）** | MLA | DeepSeek 提出的注意力：每个 token 在每层只缓存一份潜在向量和一个很短的 rope key（带位置的部分），由所有头共用，不再为每个头存 K 和 V。 | <nobr>字节</nobr> | `minikv.plan.CacheSpec.from_config` |

# %% [markdown] key="words-04" lang="en"
# ## [04 · The roofline: why does the GPU wait?](04_the_roofline.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **arithmetic intensity** | 算术强度 | FLOPs of some work divided by the bytes that it moves. | FLOP/byte | `minikv.plan.roofline.decode_work` |
# | **bandwidth** | 带宽 | Bytes that memory or a link can move in a second. | bytes/s | `minikv.memory.read_bandwidth` |
# | **coalesced access** | 合并访存 | Neighbouring threads read neighbouring addresses, so that one transfer serves them all. | bytes/s | `minikv.memory.access_patterns` |
# | **HBM** | HBM（高带宽显存） | A GPU's main memory: tens of GiB, in stacked chips next to the processor. It holds the weights and the KV cache, which each decode step reads. | bytes | `minikv.plan.find_gpu` |
# | **memory-bound / compute-bound** | 访存受限 / 计算受限 | Memory-bound work waits for memory: its arithmetic intensity is below the ridge point. Compute-bound work waits for arithmetic: its intensity is above that point. |  | `minikv.plan.roofline.Roof.seconds` |
# | **roofline / ridge point** | Roofline 模型 / 拐点（ridge point） | The roofline gives the most FLOP/s that some work can reach, from its FLOPs a byte. The ridge point is the number of FLOPs a byte at which memory and arithmetic take equally long. | FLOP/byte | `minikv.plan.roofline.gpu_roof` |
# | **SRAM** | SRAM（片上存储） | Small, fast memory on the chip: registers, shared memory, L1 and L2. A kernel keeps there what it uses more than once. | bytes |  |
# %% [markdown] key="words-04" lang="zh" src="90f0b842"
# ## [04 · Roofline 模型：GPU 为什么在等？](04_the_roofline.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **算术强度** | arithmetic intensity | 一份计算的 FLOP 数除以它搬动的字节数。别处也写作：计算强度。 | <nobr>FLOP/字节</nobr> | `minikv.plan.roofline.decode_work` |
# | **带宽** | bandwidth | 内存或链路每秒能搬的字节数。 | <nobr>字节/秒</nobr> | `minikv.memory.read_bandwidth` |
# | **合并访存** | coalesced access | 相邻的线程读相邻的地址，一次传输就够它们用。别处也写作：合并访问。 | <nobr>字节/秒</nobr> | `minikv.memory.access_patterns` |
# | **HBM（高带宽显存）** | HBM | GPU 的主显存，是处理器旁边堆叠的存储芯片，容量几十 GiB。权重和 KV 缓存都放在这里，解码的每一步都要从中读取。别处也写作：device memory。 | <nobr>字节</nobr> | `minikv.plan.find_gpu` |
# | **访存受限 / 计算受限** | memory-bound / compute-bound | 访存受限是时间花在等访存上（算术强度低于拐点）；计算受限是时间花在等计算上（高于拐点）。别处也写作：访存瓶颈、带宽受限。 |  | `minikv.plan.roofline.Roof.seconds` |
# | **Roofline 模型 / 拐点（ridge point）** | roofline / ridge point | Roofline 模型根据每搬 1 字节做多少 FLOP，给出一份计算最多能达到多少 FLOP/秒；拐点是访存和计算耗时相等时的每字节 FLOP 数。别处也写作：屋顶线模型、脊点。 | <nobr>FLOP/字节</nobr> | `minikv.plan.roofline.gpu_roof` |
# | **SRAM（片上存储）** | SRAM | 芯片上又小又快的存储：寄存器、共享内存、L1 和 L2。kernel 把要反复使用的数据留在这里。别处也写作：on-chip memory。 | <nobr>字节</nobr> |  |

# %% [markdown] key="words-05" lang="en"
# ## [05 · When is this memory freed?](05_owned_and_borrowed.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **arena** | arena（一次分配的整块内存） | One large allocation that is given out in pieces and freed as a whole. | bytes | `minikv.memory.Arena` |
# | **owned / borrowed / view** | 拥有 / 借用 / 视图 | Three relations of a tensor to its memory. Owned: all of the memory is the tensor's own. Borrowed: another object frees the memory. View: the tensor shows a part of another tensor. |  | `minikv.memory.ownership` |
# | **stride** | 步幅（stride） | The number of elements in memory from one item to the next along one dimension of a tensor. | elements | `minikv.memory.ownership` |
# %% [markdown] key="words-05" lang="zh" src="76f00894"
# ## [05 · 这块内存什么时候释放？](05_owned_and_borrowed.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **arena（一次分配的整块内存）** | arena | 一次分配的一整块内存，从中分出小块来用，最后整块释放。别处也写作：内存池。 | <nobr>字节</nobr> | `minikv.memory.Arena` |
# | **拥有 / 借用 / 视图** | owned / borrowed / view | 张量与它所用内存的三种关系。拥有：整块内存都归这个张量。借用：内存由另一个对象释放。视图：只用到另一个张量的一部分。别处也写作：所有权。 |  | `minikv.memory.ownership` |
# | **步幅（stride）** | stride | 沿张量的某一维，相邻两项在内存里相隔多少个元素。别处也写作：步长。 | <nobr>元素</nobr> | `minikv.memory.ownership` |

# %% [markdown] key="words-06" lang="en"
# ## [06 · What is the simplest cache?](06_the_linear_cache.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **fragmentation, internal / external** | 碎片，内部碎片 / 外部碎片 | Memory that is free but can't be used. Internal: inside a piece that was given out (a half-empty block). External: between such pieces (a gap too small for a request). | bytes | `minikv.blocks.ManagerStats.fragmentation` |
# %% [markdown] key="words-06" lang="zh" src="756ea4ab"
# ## [06 · 最简单的 KV 缓存是什么样的？](06_the_linear_cache.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **碎片，内部碎片 / 外部碎片** | fragmentation, internal / external | 空着却用不上的内存。内部碎片在已经分出去的部分里面（例如没填满的块）；外部碎片在这些部分之间（空隙太小，放不下新的申请）。别处也写作：显存碎片。 | <nobr>字节</nobr> | `minikv.blocks.ManagerStats.fragmentation` |

# %% [markdown] key="words-07" lang="en"
# ## [07 · What does malloc cost per token?](07_allocate_once.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **allocated / reserved** | 已分配 / 已保留（reserved） | Allocated is what tensors use now. Reserved is all that PyTorch has taken from the driver, including what it keeps for later. | bytes | `minikv.memory.MemoryStats` |
# | **allocator block / segment** | 分配器块 / 段（segment） | A segment is a piece of GPU memory that the caching allocator took from the driver. An allocator block is a part of a segment that one tensor gets. | bytes | `minikv.memory.allocator.rules.segment_size` |
# | **caching allocator** | 缓存分配器 | PyTorch's manager of GPU memory: it takes large segments from the driver, cuts them up, and keeps what is freed for later requests. | bytes | `minikv.memory.CachingAllocator` |
# | **latency ladder** | 延迟阶梯 | How the time of one read grows with the size of the data: a few nanoseconds in the CPU's first-level cache, a hundred or more in memory. | ns | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | **pointer chasing** | 指针追逐 | A way to time one read from memory: each number read is the place of the next one, so no read can begin before the last one has ended. | ns | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | **pre-allocation** | 预分配 | To allocate the memory once, at the start, for the largest case. | bytes | `minikv.cache.LinearKVCache` |
# %% [markdown] key="words-07" lang="zh" src="88fa23f9"
# ## [07 · 每个 token 的 malloc 要花多少？](07_allocate_once.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **已分配 / 已保留（reserved）** | allocated / reserved | 已分配是张量正在用的显存；已保留是 PyTorch 向驱动要来的全部显存，包括留着备用的。别处也写作：预留。 | <nobr>字节</nobr> | `minikv.memory.MemoryStats` |
# | **分配器块 / 段（segment）** | allocator block / segment | 段是缓存分配器向驱动要来的一整片显存；分配器块是从段里切出来、给一个张量用的那部分。 | <nobr>字节</nobr> | `minikv.memory.allocator.rules.segment_size` |
# | **缓存分配器** | caching allocator | PyTorch 管理显存的部件：向驱动申请大段的显存，切成小块给张量；张量释放后，显存不还给驱动，留给以后的申请。别处也写作：显存分配器。 | <nobr>字节</nobr> | `minikv.memory.CachingAllocator` |
# | **延迟阶梯** | latency ladder | 一次读取的时间随数据大小变化的曲线：数据在 CPU 一级缓存里是几纳秒，在内存里是一百纳秒以上。 | <nobr>纳秒</nobr> | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | **指针追逐** | pointer chasing | 测量一次读取要多久的方法：读出的数就是下一个数的位置，上一次没读完，下一次就无法开始。 | <nobr>纳秒</nobr> | `minikv.course.lessons.l07.pointer_chase.load_ns` |
# | **预分配** | pre-allocation | 一开始就按最大的情形分配好，只分配一次。 | <nobr>字节</nobr> | `minikv.cache.LinearKVCache` |

# %% [markdown] key="words-08" lang="en"
# ## [08 · allocate_kv_cache: how many blocks fit?](08_allocate_kv_cache.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **GPU memory / memory budget** | 显存 / 显存预算 | GPU memory is the memory on the card. The memory budget says how it is divided among weights, activations, KV cache and the rest. | bytes | `minikv.plan.plan_memory` |
# | **kept free (what utilization leaves)** | 留空 | GPU memory that an engine leaves out of its plan, for graphs, other processes and surprises. | bytes | `minikv.plan.MemoryBudget.parts` |
# | **peak** | 峰值 | The most that was allocated at any moment since the last reset. | bytes | `minikv.memory.measure_peak` |
# | **utilization** | 利用率（utilization） | The share of a GPU's memory that may be used: in minikv, by everything on the GPU together. Other engines count it differently. | 0 to 1 | `minikv.plan.MemoryBudget.limit_bytes` |
# | **warm-up** | 预热 | The largest forward pass, run once before the cache is allocated, to measure its peak of memory. | bytes | `minikv.cache.warmup` |
# | **weights / activations / workspace** | 权重 / 激活 / 工作空间 | Weights are the model's parameters. Activations are the tensors that a forward pass computes on the way. A workspace is memory that a library takes for itself. | bytes | `minikv.plan.MemoryBudget.parts` |
# %% [markdown] key="words-08" lang="zh" src="a0aabe40"
# ## [08 · allocate_kv_cache：放得下多少块？](08_allocate_kv_cache.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **显存 / 显存预算** | GPU memory / memory budget | 显存是卡上的内存；显存预算写明权重、激活、KV 缓存等各占多少字节。别处也写作：GPU 内存。 | <nobr>字节</nobr> | `minikv.plan.plan_memory` |
# | **留空** | kept free (what utilization leaves) | 推理引擎不列入规划的显存，留给 CUDA 图、其他进程和意外。 | <nobr>字节</nobr> | `minikv.plan.MemoryBudget.parts` |
# | **峰值** | peak | 上次重置以来，已分配的显存达到过的最大值。 | <nobr>字节</nobr> | `minikv.memory.measure_peak` |
# | **利用率（utilization）** | utilization | 显存中允许使用的比例。minikv 里指 GPU 上所有程序合起来的用量，别的引擎算法不同。 | 0 到 1 | `minikv.plan.MemoryBudget.limit_bytes` |
# | **预热** | warm-up | 分配缓存之前，先跑一次可能遇到的最大的前向计算，测出它的峰值。 | <nobr>字节</nobr> | `minikv.cache.warmup` |
# | **权重 / 激活 / 工作空间** | weights / activations / workspace | 权重是模型的参数；激活是前向计算途中产生的张量；工作空间是各种库自己占用的显存。别处也写作：激活值。 | <nobr>字节</nobr> | `minikv.plan.MemoryBudget.parts` |

# %% [markdown] key="words-09" lang="en"
# ## [09 · Which sequence owns block 7?](09_pages_and_blocks.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **block / block size / block pool** | 块 / 块大小 / 块池 | A block is room for the K and V of a fixed number of tokens (the block size) in all layers. The block pool is all blocks together, allocated once. | blocks | `minikv.blocks.BlockPool` |
# | **block table** | 块表 | The numbers of the blocks that hold a sequence, in the order of its tokens. | blocks | `minikv.blocks.BlockManager.block_table` |
# | **copy-on-write** | 写时复制 | A shared block is copied only when one of its holders writes into it. |  | `minikv.blocks.BlockManager.fork` |
# | **KV cache group** | KV 缓存组 | Layers with the same window and the same number of bytes a token. They share one block pool, and a sequence has one block table for all of them. |  | `minikv.blocks.KVCacheGroup` |
# | **prefix cache / hit rate** | 前缀缓存 / 命中率 | Blocks of earlier prompts, found again by their content. The hit rate is the share of the tokens of new prompts that were found there. | 0 to 1 | `minikv.blocks.BlockManager.match` |
# | **radix tree (RadixAttention)** | 基数树（RadixAttention） | SGLang's index of cached prefixes: a tree with runs of tokens on its edges. (minikv finds whole blocks by digests instead: each is computed from the block's tokens and the digest before it.) | tokens | `minikv.blocks.BlockManager.match` |
# | **reference count / free list** | 引用计数 / 空闲队列 | The reference count of a block is the number of sequences that hold it. The free list is the queue of the blocks that no sequence holds. |  | `minikv.blocks.BlockPool.ref_count` |
# | **slot / slot mapping** | 槽位 / 槽位映射（`slot_mapping`） | A slot is the place of one token in the pool; the slot mapping says which slot each new token gets. |  | `minikv.blocks.BlockManager.slot_mapping` |
# %% [markdown] key="words-09" lang="zh" src="51bd4330"
# ## [09 · 块 7 属于哪条序列？](09_pages_and_blocks.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **块 / 块大小 / 块池** | block / block size / block pool | 块是一段固定大小的空间，存若干个 token 在各层的 K 和 V，能存的 token 数就是块大小；所有块合起来是块池，一次分配好。别处也写作：KV 块、物理块。 | 块 | `minikv.blocks.BlockPool` |
# | **块表** | block table | 一条序列所用的块号，按 token 的顺序排列。别处也写作：块映射表。 | 块 | `minikv.blocks.BlockManager.block_table` |
# | **写时复制** | copy-on-write | 共享的块平时不复制，有序列要往里写时才复制一份。 |  | `minikv.blocks.BlockManager.fork` |
# | **KV 缓存组** | KV cache group | 窗口相同、每个 token 字节数也相同的层。它们共用一个块池，一条序列在同组各层里共用一张块表。 |  | `minikv.blocks.KVCacheGroup` |
# | **前缀缓存 / 命中率** | prefix cache / hit rate | 以前的提示词留下的块，内容相同就能再次找到；命中率是新提示词的 token 里能在其中找到的比例。别处也写作：自动前缀缓存。 | 0 到 1 | `minikv.blocks.BlockManager.match` |
# | **基数树（RadixAttention）** | radix tree (RadixAttention) | SGLang 的前缀索引：一棵树，每条边上是一串 token。（minikv 以整块为单位，按链式摘要查找：摘要由本块的 token 和前一块的摘要算出。） | token | `minikv.blocks.BlockManager.match` |
# | **引用计数 / 空闲队列** | reference count / free list | 一个块的引用计数，就是持有它的序列条数；空闲队列里排着没有序列持有的块。别处也写作：空闲链表。 |  | `minikv.blocks.BlockPool.ref_count` |
# | **槽位 / 槽位映射（`slot_mapping`）** | slot / slot mapping | 槽位是块池里放一个 token 的位置；槽位映射说明每个新 token 写进哪个槽位。 |  | `minikv.blocks.BlockManager.slot_mapping` |

# %% [markdown] key="words-10" lang="en"
# ## [10 · How does a GPU read a page table?](10_kernels.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **FlashAttention** | FlashAttention | Attention tile by tile with an online softmax: a tile of K and V stays in SRAM, and the matrix of scores is never written to HBM. |  | `minikv.kernels.OnlineSoftmax` |
# | **kernel** | kernel | A function that runs on the GPU. Many instances of it, called programs, run at once. |  | `minikv.kernels.store_kv` |
# | **online softmax / split-KV** | 在线 softmax / 沿序列切分（split-KV） | A softmax computed piece by piece with a running maximum; split-KV gives the pieces of one sequence to different programs. |  | `minikv.kernels.merge_splits` |
# | **paged attention** | 分页注意力（PagedAttention） | Attention that finds K and V through a block table instead of in one contiguous piece. |  | `minikv.kernels.paged_decode` |
# | **tile** | tile | The part of K and V that one program of a kernel holds and works on at a time. |  |  |
# %% [markdown] key="words-10" lang="zh" src="fdd730ab"
# ## [10 · GPU 怎样读块表？](10_kernels.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **FlashAttention** | FlashAttention | 用在线 softmax 逐个 tile 计算注意力：K 和 V 的 tile 留在 SRAM 里，分数矩阵从不写到 HBM。别处也写作：flash attention。 |  | `minikv.kernels.OnlineSoftmax` |
# | **kernel** | kernel | 在 GPU 上运行的函数，由许多程序实例同时执行。别处也写作：算子、核函数。 |  | `minikv.kernels.store_kv` |
# | **在线 softmax / 沿序列切分（split-KV）** | online softmax / split-KV | 一段一段地算 softmax，随时更新最大值；沿序列切分是把一条序列的各段交给不同的程序。别处也写作：Flash-Decoding。 |  | `minikv.kernels.merge_splits` |
# | **分页注意力（PagedAttention）** | paged attention | 通过块表查找 K 和 V 的注意力，K 和 V 不必在内存里连续。 |  | `minikv.kernels.paged_decode` |
# | **tile** | tile | kernel 的一个程序实例一次取来、一次算完的那部分 K 和 V。别处也写作：分块。 |  |  |

# %% [markdown] key="words-11a" lang="en"
# ## [11a · How do 256 requests share one cache?](11a_continuous_batching.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **chunked prefill** | 分块预填充 | A long prompt is computed in pieces, over several steps; in each of them other sequences decode as usual. | tokens | `minikv.engine.Scheduler.schedule` |
# | **continuous batching** | 连续批处理 | The batch is chosen again at every step: requests that have ended are removed, and waiting ones can be added. | sequences | `minikv.engine.Scheduler.schedule` |
# | **detokenize** | 还原为文本 | To turn token numbers back into text, piece by piece while they arrive. |  |  |
# | **seat / `max_num_seqs`** | 并发上限（`max_num_seqs`） | A batch has `max_num_seqs` seats: at most that many sequences run at the same time. | sequences | `minikv.engine.Scheduler` |
# | **step ahead (scheduled before the tokens of the one before it are read)** | 提前的一步（尚未读到上一步的 token 就已调度） | The engine prepares the next step while the GPU still computes the current one. |  | `minikv.engine.ext.overlap.schedule_next` |
# | **TTFT / TPOT** | 首 token 延迟（TTFT）/ 每 token 延迟（TPOT） | TTFT, time to first token: from the arrival of a request to its first token. TPOT, time per output token: the mean time from one token to the next. | s | `minikv.engine.summary` |
# %% [markdown] key="words-11a" lang="zh" src="22c96515"
# ## [11a · 256 个请求怎样共用一份缓存？](11a_continuous_batching.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **分块预填充** | chunked prefill | 长提示词分几段，在几步里算完，同一步里别的序列照常解码。 | token | `minikv.engine.Scheduler.schedule` |
# | **连续批处理** | continuous batching | 每一步都重新组 batch：结束的请求移出，等待的请求可以补进来。 | 条 | `minikv.engine.Scheduler.schedule` |
# | **还原为文本** | detokenize | 把 token 编号变回文字，边生成边还原。别处也写作：反分词。 |  |  |
# | **并发上限（`max_num_seqs`）** | seat / `max_num_seqs` | 同时运行的序列最多有多少条。 | 条 | `minikv.engine.Scheduler` |
# | **提前的一步（尚未读到上一步的 token 就已调度）** | step ahead (scheduled before the tokens of the one before it are read) | GPU 还在算当前这一步，引擎已经排好下一步。 |  | `minikv.engine.ext.overlap.schedule_next` |
# | **首 token 延迟（TTFT）/ 每 token 延迟（TPOT）** | TTFT / TPOT | TTFT 是从请求到达到生成第一个 token 的时间；TPOT 是此后平均每生成一个 token 的时间。别处也写作：首字延迟。 | 秒 | `minikv.engine.summary` |

# %% [markdown] key="words-11b" lang="en"
# ## [11b · Which sequence gives up its blocks?](11b_when_blocks_run_out.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **preemption** | 抢占 | Taking back all blocks of a running sequence, so that other sequences can go on. The preempted one continues later. |  | `minikv.engine.Rules.choose_victim` |
# | **recompute (after preemption)** | 重新计算 | To compute the K and V of a preempted sequence again when it continues, because its blocks were given away. | s | `minikv.plan.preemption.recompute_seconds` |
# %% [markdown] key="words-11b" lang="zh" src="aa185233"
# ## [11b · 块用完了，哪条序列让出来？](11b_when_blocks_run_out.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **抢占** | preemption | 收回一条运行中序列的全部块，让其他序列能继续；被抢占的序列以后再接着算。 |  | `minikv.engine.Rules.choose_victim` |
# | **重新计算** | recompute (after preemption) | 序列被抢占时块已经收回，恢复运行时要把它的 K 和 V 重新算一遍。别处也写作：重计算。 | 秒 | `minikv.plan.preemption.recompute_seconds` |

# %% [markdown] key="words-12" lang="en"
# ## [12 · What does each GPU keep?](12_beyond_one_gpu.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **a rank's shard (of the weights)** | 分片 | The part of a weight matrix that one rank holds. | bytes | `minikv.plan.weight_bytes` |
# | **absorb** | 矩阵吸收 | To multiply MLA's up-projections (the matrices that turn the latent into K and V) into the query and the output. Attention then reads the latent itself. |  | `minikv.kernels.latent_decode` |
# | **data parallelism / data-parallel attention** | 数据并行 / 数据并行注意力 | Each GPU serves its own sequences with a whole copy of the model. In data-parallel attention each GPU keeps the whole cache of its sequences, but all GPUs compute the other layers together. |  |  |
# | **host memory** | CPU 内存 | The memory of the computer that the GPU sits in. | bytes | `minikv.cache.HostPool` |
# | **one GPU, 8 GPUs** | 一块 GPU，8 块 GPU | In Chinese GPUs are counted with 块, which is also the word for a block. |  |  |
# | **pinned memory** | 锁页内存 | Host memory that the operating system can't page out. A GPU copies it faster, and the CPU needn't wait for the copy. | bytes | `minikv.cache.HostPool` |
# | **rank** | rank | One of the processes that run a model together, usually one for each GPU; also its number. |  | `minikv.models.sharding.ranks_of` |
# | **shard / replicate** | 切分 / 复制 | To shard a tensor is to give each rank a part of it. To replicate it is to give each rank all of it. |  |  |
# | **stream / event (CUDA)** | 流 / 事件 | A stream is a queue of GPU work, done in order; an event marks a place in it that other streams can wait for. |  |  |
# | **swap out, in / offload** | 换出、换入 / 卸载 | To move blocks from the GPU to host memory and back. | s | `minikv.plan.preemption.swap_seconds` |
# | **tensor parallelism** | 张量并行（TP） | Several GPUs compute every layer together, each with a part of the heads and matrices. |  | `minikv.plan.plan_memory` |
# %% [markdown] key="words-12" lang="zh" src="8b9df8eb"
# ## [12 · 每块 GPU 各存什么？](12_beyond_one_gpu.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **分片** | a rank's shard (of the weights) | 一个 rank 持有的那部分权重矩阵。别处也写作：权重切片。 | <nobr>字节</nobr> | `minikv.plan.weight_bytes` |
# | **矩阵吸收** | absorb | 把 MLA 的升维矩阵（从潜在向量算出 K 和 V 的矩阵）并进 query 和输出的计算，注意力就能直接读潜在向量。别处也写作：权重吸收。 |  | `minikv.kernels.latent_decode` |
# | **数据并行 / 数据并行注意力** | data parallelism / data-parallel attention | 数据并行时，每块 GPU 有一份完整的模型，处理自己的那些序列。数据并行注意力只对注意力这样做：每块 GPU 存自己那些序列的全部缓存，其余各层由所有 GPU 合起来算。别处也写作：DP attention。 |  |  |
# | **CPU 内存** | host memory | GPU 所在机器的内存。别处也写作：主机内存。 | <nobr>字节</nobr> | `minikv.cache.HostPool` |
# | **一块 GPU，8 块 GPU** | one GPU, 8 GPUs | GPU 的量词用“块”；与 KV 缓存的块混淆时，写明“块 GPU”。别处也写作：张。 |  |  |
# | **锁页内存** | pinned memory | 操作系统不会换出的 CPU 内存。GPU 复制它更快，而且可以异步进行，CPU 不用等。别处也写作：页锁定内存、固定内存。 | <nobr>字节</nobr> | `minikv.cache.HostPool` |
# | **rank** | rank | 共同运行一个模型的进程之一，通常一块 GPU 一个；也指它的编号。别处也写作：进程。 |  | `minikv.models.sharding.ranks_of` |
# | **切分 / 复制** | shard / replicate | 切分是每个 rank 拿张量的一部分，复制是每个 rank 都拿完整的一份。 |  |  |
# | **流 / 事件** | stream / event (CUDA) | 流是按次序执行的 GPU 任务队列；事件是队列里的一个标记，其他流可以等到它完成再继续。 |  |  |
# | **换出、换入 / 卸载** | swap out, in / offload | 把块从 GPU 搬到 CPU 内存，需要时再搬回来。别处也写作：交换。 | 秒 | `minikv.plan.preemption.swap_seconds` |
# | **张量并行（TP）** | tensor parallelism | 几块 GPU 一起算每一层，各管一部分头和矩阵。 |  | `minikv.plan.plan_memory` |

# %% [markdown] key="words-13" lang="en"
# ## [13 · What do fewer bytes cost?](13_half_the_bytes.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **KV dtype** | KV 数据类型 | The number format of K and V in the cache, such as bf16 or int8. The weights can have a different one. |  | `minikv.cache.find_codec` |
# | **quantized KV / scale** | KV 量化 / 缩放因子 | K and V are stored in 8 bits an element. The scale is the factor that turns the stored numbers of a row (one head's K or V of one token) back into their values. | bytes | `minikv.kernels.quantize.quantize` |
# | **recall (of a test)** | 召回率 | The share of a test's questions that a model answers correctly. | 0 to 1 | `minikv.engine.recall.measure_recall` |
# %% [markdown] key="words-13" lang="zh" src="30b8dcfa"
# ## [13 · 字节少了，代价是什么？](13_half_the_bytes.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **KV 数据类型** | KV dtype | 缓存里 K 和 V 的数值格式，例如 bf16、int8，可以与权重不同。 |  | `minikv.cache.find_codec` |
# | **KV 量化 / 缩放因子** | quantized KV / scale | K 和 V 的每个元素只用 8 位存；缩放因子是还原数值时要乘的系数，每行（一个 token 在一个头里的 K 或 V）一个。 | <nobr>字节</nobr> | `minikv.kernels.quantize.quantize` |
# | **召回率** | recall (of a test) | 问到的事实里，模型答对的比例。 | 0 到 1 | `minikv.engine.recall.measure_recall` |

# %% [markdown] key="words-13b" lang="en"
# ## [13b · How do steps get fewer and cheaper?](13b_fewer_cheaper_steps.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **CUDA graph** | CUDA 图 | A recorded sequence of kernel launches that is started as one. Its memory stays reserved. | bytes | `minikv.engine.ext.graphs.expected_memory` |
# | **prompt lookup / draft** | 提示词查找 / 草稿 | Prompt lookup guesses the next tokens: it copies what followed the same tokens earlier in the text. The guessed tokens are the draft. | tokens | `minikv.engine.ext.drafts.propose` |
# | **speculative decoding** | 推测解码 | To guess several tokens cheaply and let one forward check them all; wrong guesses are rolled back. | tokens | `minikv.engine.ext.drafts.propose` |
# %% [markdown] key="words-13b" lang="zh" src="3a1e5a55"
# ## [13b · 怎样让步数更少、每步更省？](13b_fewer_cheaper_steps.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **CUDA 图** | CUDA graph | 把一串 kernel 的 launch 录下来，以后一次发出；它占的显存一直不释放。 | <nobr>字节</nobr> | `minikv.engine.ext.graphs.expected_memory` |
# | **提示词查找 / 草稿** | prompt lookup / draft | 提示词查找是在前文里找到相同的片段，用它后面的内容来猜接下来的 token；猜出来的 token 就是草稿。 | token | `minikv.engine.ext.drafts.propose` |
# | **推测解码** | speculative decoding | 先用开销很小的办法猜几个 token，再用一次前向计算全部验证；猜错的部分回滚。别处也写作：投机解码。 | token | `minikv.engine.ext.drafts.propose` |

# %% [markdown] key="words-14" lang="en"
# ## [14 · Which tokens can go?](14_what_to_forget.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **attention sink** | 注意力汇点（sink） | One of the first tokens of a text: it gets much attention whatever it says, and eviction keeps it. | tokens | `minikv.eviction.Budget` |
# | **capacity (of a layer)** | 容量 | The number of tokens that a layer keeps after an eviction: sinks, heavy hitters and recent ones. | tokens | `minikv.eviction.Budget.capacity` |
# | **eviction** | 淘汰 | To drop chosen tokens of a sequence from the cache for good. (Of a prefix cache: to empty a free block that could still be found.) | tokens | `minikv.eviction.install_kv_eviction` |
# | **heavy hitter** | 重要 token（heavy hitter） | A token that has got much attention so far. Eviction keeps it for that reason. | tokens | `minikv.eviction.H2O` |
# | **perplexity / needle test** | 困惑度 / 大海捞针测试 | Perplexity measures how badly a model predicts a text: lower is better. A needle test asks for one fact that is hidden in a long text. |  | `minikv.engine.recall.measure_recall` |
# | **recent window / sliding window** | 近期窗口 / 滑动窗口 | The last tokens. Eviction keeps a recent window by choice; a layer with a sliding window was trained to see only those tokens. | tokens | `minikv.plan.CacheSpec.window` |
# %% [markdown] key="words-14" lang="zh" src="86219d02"
# ## [14 · 哪些 token 可以不要？](14_what_to_forget.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **注意力汇点（sink）** | attention sink | 文本最开头的几个 token，不管内容是什么，都会分到很多注意力，所以淘汰时要保留。别处也写作：注意力汇。 | token | `minikv.eviction.Budget` |
# | **容量** | capacity (of a layer) | 一层在一次淘汰之后留下的 token 数，包括汇点、重要 token 和近期 token。 | token | `minikv.eviction.Budget.capacity` |
# | **淘汰** | eviction | 把一条序列里选定的 token 从缓存中永久去掉。（对前缀缓存而言，是清空一个还能找到的空闲块。）别处也写作：驱逐、逐出。 | token | `minikv.eviction.install_kv_eviction` |
# | **重要 token（heavy hitter）** | heavy hitter | 到目前为止累计得到很多注意力的 token，所以淘汰时会保留。别处也写作：重击者。 | token | `minikv.eviction.H2O` |
# | **困惑度 / 大海捞针测试** | perplexity / needle test | 困惑度衡量模型预测一段文本有多不准，越低越好；大海捞针测试看模型能否答出长文里藏着的一个事实。 |  | `minikv.engine.recall.measure_recall` |
# | **近期窗口 / 滑动窗口** | recent window / sliding window | 最后的若干个 token。近期窗口是淘汰时主动留下的；滑动窗口层则是训练出来就只看这些。别处也写作：滑窗。 | token | `minikv.plan.CacheSpec.window` |

# %% [markdown] key="words-15" lang="en"
# ## [15 · What changes with a latent?](15_eviction_on_mla.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **DeepSeek Sparse Attention (DSA)** | DeepSeek 稀疏注意力（DSA） | Attention in which a small network, the indexer, chooses the tokens that each query reads. The latents of all tokens stay in the cache. |  |  |
# %% [markdown] key="words-15" lang="zh" src="be24608e"
# ## [15 · 换成潜在向量，有什么不同？](15_eviction_on_mla.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **DeepSeek 稀疏注意力（DSA）** | DeepSeek Sparse Attention (DSA) | 一种注意力：由一个很小的网络（indexer）为每个 query 选出要读的 token，只读它们的潜在向量；所有 token 的潜在向量仍都留在缓存里。 |  |  |

# %% [markdown] key="words-16" lang="en"
# ## [16 · Where did 6 GB go?](16_where_did_6gb_go.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **pinned / returnable (of what torch keeps)** | 被钉住 / 可归还 | Pinned: free bytes of a segment in which a tensor still lives, so the segment can't go back to the driver. Returnable: free segments, which `empty_cache()` gives back. (Pinned host memory is something else.) | bytes | `minikv.memory.retention.cached_memory.CachedMemory` |
# %% [markdown] key="words-16" lang="zh" src="5cee4191"
# ## [16 · 那 6 GB 去哪儿了？](16_where_did_6gb_go.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **被钉住 / 可归还** | pinned / returnable (of what torch keeps) | 被钉住的是段里的空闲字节：同一段里还有存活的张量，所以这一段不能还给驱动。可归还的是整段空闲的段，调用 `empty_cache()` 就会还给驱动。两者都与 CPU 的锁页内存无关。 | <nobr>字节</nobr> | `minikv.memory.retention.cached_memory.CachedMemory` |

# %% [markdown] key="words-17" lang="en"
# ## [17 · How many GPUs does this traffic need?](17_a_fleet_on_paper.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **disaggregation** | 预填充与解码分离 | Prefill and decode run on different GPUs, and K and V of each prompt move from the prefill's GPU to the decode's. | bytes | `minikv.plan.CacheSpec.bytes_for` |
# | **percentile** | 分位数 | The value that a given share of the measurements does not exceed. For p99 that share is 99 of 100. | s | `minikv.engine.Percentiles` |
# | **replica** | 副本 | A copy of the model with a cache and a scheduler of its own. |  | `minikv.simulate.Replica` |
# | **request trace** | 请求轨迹 | A list of requests: when each arrives, how long its prompt and its answer are, and which prompts begin alike. |  | `minikv.simulate.Trace` |
# | **router** | 路由器 | The part of a system that decides which replica gets a request. |  | `minikv.simulate.PrefixAware` |
# | **session** | 会话 | A conversation of several requests: each prompt is all that was said before, and a new message. |  | `minikv.simulate.Load` |
# %% [markdown] key="words-17" lang="zh" src="c80384e7"
# ## [17 · 这些流量需要多少块 GPU？](17_a_fleet_on_paper.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **预填充与解码分离** | disaggregation | 预填充和解码放在不同的 GPU 上，每个提示词的 K 和 V 从前者传到后者。 | <nobr>字节</nobr> | `minikv.plan.CacheSpec.bytes_for` |
# | **分位数** | percentile | 给定比例的测量值都不超过的那个数；例如 p99，100 次测量里有 99 次不超过它。 | 秒 | `minikv.engine.Percentiles` |
# | **副本** | replica | 一份完整的模型，有自己的 KV 缓存和调度器。 |  | `minikv.simulate.Replica` |
# | **请求轨迹** | request trace | 一份请求清单：各在何时到达，提示词和回答各多长，哪些提示词的开头相同。 |  | `minikv.simulate.Trace` |
# | **路由器** | router | 决定每个请求交给哪个副本的部件。 |  | `minikv.simulate.PrefixAware` |
# | **会话** | session | 由多个请求组成的一段对话：每轮的提示词是之前的全部内容，再加一条新消息。 |  | `minikv.simulate.Load` |

# %% [markdown] key="words-18" lang="en"
# ## [18 · Can you serve this load within this budget?](18_capstone.ipynb)
#
# | word | Chinese | what it means | unit | the call |
# |---|---|---|---|---|
# | **floor / score** | 下限 / 得分 | The floor is the least time that any plan needs for a load. The score is 100 times the floor, divided by the plan's time. | s | `minikv.course.capstone.floor` |
# | **quality bar** | 质量门槛 | The share of right answer tokens that a plan must reach. A plan below it gets a score of 0. | 0 to 1 | `minikv.course.capstone.Task` |
# %% [markdown] key="words-18" lang="zh" src="cd8310a0"
# ## [18 · 给定预算，你能承载这份负载吗？](18_capstone.ipynb)
#
# | 词 | English | <nobr>含义</nobr> | <nobr>单位</nobr> | <nobr>调用</nobr> |
# |---|---|---|---|---|
# | **下限 / 得分** | floor / score | 下限是任何方案跑完一份负载都至少要用的时间；得分是下限除以实际用时，再乘 100。 | 秒 | `minikv.course.capstone.floor` |
# | **质量门槛** | quality bar | 一个方案的答案 token 至少要对多大比例；达不到，得分就是 0。 | 0 到 1 | `minikv.course.capstone.Task` |
