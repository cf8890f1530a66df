# %% [meta]
# number = "D"
# slug = "other_engines"
# needs = ["08"]
# rooms = ["plan.other_engines", "plan.logs.vllm_pool"]
# [title]
# en = "Nine tenths of what? The same words in other engines"
# zh = "0.9 占的是什么？同样的词在别的引擎里"
# [t4]
# en = "Arithmetic on the CPU: a T4 shows the same numbers."
# zh = "全是 CPU 上的算术：T4 上看到的数字相同。"

# %% [markdown] key="question" lang="en"
# ## The question
#
# You move a server from one engine to another and keep its memory fraction, say 0.95. In vLLM the model starts. In SGLang it runs out of memory with the same number, and with a smaller number SGLang reports a negative number of tokens. Nothing else has changed: the same model, the same card.
#
# The number is the same. But in each engine it is a share of something else, and different things have to fit into it.
#
# **What is the fraction a share of in each engine, and how much memory is left?**
#
# After this appendix you can
#
# - **compute** the cache that a fraction gives in four engines, and the fraction that gives the same cache in each;
# - **say** what else has to fit on the card, and how much memory a second engine finds there;
# - **translate** the words and flags of vLLM, SGLang, TensorRT-LLM, llama.cpp and transformers into those of minikv. (If that is all that you want, go to "Where you come from".)
#
# You need the formula of [lesson 08](08_allocate_kv_cache.ipynb).
# %% [markdown] key="question" lang="zh" src="951fdb89"
# ## 问题
#
# 你把服务从一个引擎搬到另一个引擎，显存比例照抄，例如 0.95。在 vLLM 里能启动；在 SGLang 里，同样的数却显存不足，调小之后，SGLang 报出的 token 数又成了负的。模型没变，卡也没变。
#
# 数字虽然相同，但在各个引擎里，它是**不同总量**的比例，要装进去的东西也不同。
#
# **在各个引擎里，这个比例占的是什么？还剩多少显存？**
#
# 学完本附录，你能够：
#
# - **算出**同一个比例在四个引擎里各给出多大的缓存，以及要得到同样大的缓存，各该填多少；
# - **说出**缓存之外还要放下什么，以及同一张卡上第二个引擎会看到什么；
# - 把 vLLM、SGLang、TensorRT-LLM、llama.cpp 和 transformers 的词和参数**对应**到 minikv 的叫法。（如果只想查这个，直接看“你从哪个引擎来”一节。）
#
# 本附录用到[第 08 课](08_allocate_kv_cache.ipynb)的公式。

# %% [markdown] key="formula" lang="en"
# ## The formula, four times
#
# | engine | its word | size of its pool | the fraction is a share of |
# |---|---|---|---|
# | minikv, nano-vllm | `utilization` | $f\,T - o - w - a$ | all memory, for all processes on the card |
# | vLLM | `gpu_memory_utilization` | $f\,T - w - a$ | all memory, for this process |
# | SGLang | `mem_fraction_static` | $f\,(T - o) - w$ | the memory that was free before loading, for weights and cache |
# | TensorRT-LLM | `free_gpu_memory_fraction` | $f\,(T - o - w - a)$ | the memory that is free after loading and a trial forward, for the cache alone |
#
# | symbol | meaning | value here (GB) |
# |---|---|---|
# | $f$ | the fraction | 0.9 |
# | $T$ | all memory of the GPU | 80 |
# | $o$ | outside: taken before the engine looks first (other processes, its own CUDA context, NCCL) | 6 |
# | $w$ | weights | 20 |
# | $a$ | activations: what the largest forward adds | 4 |
#
# With these round numbers the pools are
#
# - minikv: $0.9 \cdot 80 - 6 - 20 - 4 = 42$ GB;
# - vLLM: $0.9 \cdot 80 - 20 - 4 = 48$ GB;
# - SGLang: $0.9 \cdot (80 - 6) - 20 = 46.6$ GB;
# - TensorRT-LLM: $0.9 \cdot (80 - 6 - 20 - 4) = 45$ GB.
#
# We took these formulas from the engines' own source:
#
# - vLLM, [`gpu_worker.py`](https://github.com/vllm-project/vllm/blob/35d5cda123ec28581759b6d34cde8052314fb1e6/vllm/v1/worker/gpu_worker.py): `requested_memory` is taken from `total_memory`, and the start is refused unless that much is free
# - SGLang, [`model_runner_kv_cache_mixin.py`](https://github.com/sgl-project/sglang/blob/001ccef0072a4537d4ec6bdd50a73e6feb2c907d/python/sglang/srt/model_executor/model_runner_kv_cache_mixin.py) and [its guide](https://github.com/sgl-project/sglang/blob/21ff1af011c4b30ac5fe7865c6ebb8533eba0f02/docs/advanced_features/hyperparameter_tuning.md): "mem_fraction_static = (model weights + KV cache pool) / GPU memory capacity"
# - TensorRT-LLM, [`_util.py`](https://github.com/NVIDIA/TensorRT-LLM/blob/d8ae02caed59708512e5aa578a09bb09f365bfed/tensorrt_llm/_torch/pyexecutor/_util.py) and [its example](https://nvidia.github.io/TensorRT-LLM/examples/kvcacheconfig.html): "90% of free GPU memory"
#
# The formulas leave out CUDA graphs and memory that grows outside torch during a warm-up. So trust an engine's log more than the formula.
# %% [markdown] key="formula" lang="zh" src="6e677e3e"
# ## 公式，四个版本
#
# | 引擎 | 它的叫法 | 块池的大小 | 比例占的是 |
# |---|---|---|---|
# | minikv、nano-vllm | `utilization` | $f\,T - o - w - a$ | 全部显存，卡上所有进程共用 |
# | vLLM | `gpu_memory_utilization` | $f\,T - w - a$ | 全部显存，只管本进程 |
# | SGLang | `mem_fraction_static` | $f\,(T - o) - w$ | 加载前的空闲显存，装权重和缓存 |
# | TensorRT-LLM | `free_gpu_memory_fraction` | $f\,(T - o - w - a)$ | 加载并试跑之后还空闲的显存，只装缓存 |
#
# | 符号 | 含义 | 本例取值（GB） |
# |---|---|---|
# | $f$ | 比例 | 0.9 |
# | $T$ | GPU 的全部显存 | 80 |
# | $o$ | 引擎第一次查看之前已被占用的（其他进程、自己的 CUDA 上下文、NCCL） | 6 |
# | $w$ | 权重 | 20 |
# | $a$ | 激活：最大的一次前向计算新增的部分 | 4 |
#
# 用这些整数代入，块池分别是：
#
# - minikv：$0.9 \cdot 80 - 6 - 20 - 4 = 42$ GB；
# - vLLM：$0.9 \cdot 80 - 20 - 4 = 48$ GB；
# - SGLang：$0.9 \cdot (80 - 6) - 20 = 46.6$ GB；
# - TensorRT-LLM：$0.9 \cdot (80 - 6 - 20 - 4) = 45$ GB。
#
# 这些算式取自各引擎的源码，以我们读到的版本为准：
#
# - vLLM，[`gpu_worker.py`](https://github.com/vllm-project/vllm/blob/35d5cda123ec28581759b6d34cde8052314fb1e6/vllm/v1/worker/gpu_worker.py)：`requested_memory` 按 `total_memory` 算，没有那么多空闲就拒绝启动
# - SGLang，[`model_runner_kv_cache_mixin.py`](https://github.com/sgl-project/sglang/blob/001ccef0072a4537d4ec6bdd50a73e6feb2c907d/python/sglang/srt/model_executor/model_runner_kv_cache_mixin.py)，以及[它的指南](https://github.com/sgl-project/sglang/blob/21ff1af011c4b30ac5fe7865c6ebb8533eba0f02/docs/advanced_features/hyperparameter_tuning.md)：“mem_fraction_static = (model weights + KV cache pool) / GPU memory capacity”
# - TensorRT-LLM，[`_util.py`](https://github.com/NVIDIA/TensorRT-LLM/blob/d8ae02caed59708512e5aa578a09bb09f365bfed/tensorrt_llm/_torch/pyexecutor/_util.py)，以及[它的示例](https://nvidia.github.io/TensorRT-LLM/examples/kvcacheconfig.html)：“90% of free GPU memory”（空闲显存的 90%）
#
# CUDA 图和预热期间 torch 之外的增长不在算式里，所以最后以引擎的日志为准。

# %% key="predict_vllm"
predict("same_fraction", ...)

# %% key="predict_trtllm"
predict("of_what_is_free", ...)

# %% [markdown] key="same_number" lang="en"
# ## One number, four pools
#
# Now we take Llama-3.1-8B on an H100, with the fraction 0.9 everywhere.
# The column "left" is the memory that is still free in the largest forward. CUDA graphs and surprises have to fit into it.
# %% [markdown] key="same_number" lang="zh" src="daa32775"
# ## 同一个数，四个块池
#
# 现在看 H100 上的 Llama-3.1-8B，比例都取 0.9。
# “剩余”是最大的一次前向计算时还空闲的显存，CUDA 图和意外的占用都要放进这里。

# %% key="pools" lang="en"
from minikv.course import Table
from minikv.plan import plan_memory
from minikv.plan.other_engines import OPTIONS, Startup, fraction_for, pool_bytes
from minikv.units import GIB

budget, rows = plan_memory("Llama-3.1-8B", gpu="H100 SXM 80GB"), []
alone, token = Startup.of(budget), budget.spec.bytes_for(1)
for engine, option in OPTIONS.items():
    pool = pool_bytes(engine, alone, 0.9)
    rows.append((option, f"{pool / GIB:.2f}", pool // token, f"{alone.left_bytes(pool) / GIB:.2f}"))
head = ["0.9 for", "pool, GiB", "tokens", "left, GiB"]
Table(head, rows, right=head[1:])

# %% key="pools" lang="zh"
from minikv.course import Table
from minikv.plan import plan_memory
from minikv.plan.other_engines import OPTIONS, Startup, fraction_for, pool_bytes
from minikv.units import GIB

budget, rows = plan_memory("Llama-3.1-8B", gpu="H100 SXM 80GB"), []
alone, token = Startup.of(budget), budget.spec.bytes_for(1)
for engine, option in OPTIONS.items():
    pool = pool_bytes(engine, alone, 0.9)
    rows.append((option, f"{pool / GIB:.2f}", pool // token, f"{alone.left_bytes(pool) / GIB:.2f}"))
head = ["0.9 用于", "块池，GiB", "token 数", "剩余，GiB"]
Table(head, rows, right=head[1:])

# %% [markdown] key="pools_read" lang="en"
# For a small model on a large card the four pools are almost equal, because weights and activations are small compared with the card.
# That is why the confusion often goes unnoticed for a long time.
#
# ## Where the pools differ
#
# Let's take a larger model, prefills of 32,768 tokens at once, and another process that holds 6 GiB. (A minus in the table means that the engine does not start; the line below says why. If "left" is negative, the largest forward does not fit.)
# %% [markdown] key="pools_read" lang="zh" src="3d7e7610"
# 小模型放在大卡上，四个数相差不多，因为权重和激活相对整张卡都很小。
# 所以把它们混为一谈，往往很久都不会被发现。
#
# ## 差别显现的时候
#
# 现在换大一点的模型，一次预填充 32,768 个 token，再加上一个占 6 GiB 的进程。（表里的“-”表示启动不了，原因写在表下面。“剩余”为负，说明最大的一次前向计算放不下。）

# %% key="parted" lang="en"
from minikv.errors import MiniKVError

large, rows, notes = plan_memory("Qwen3-14B", gpu="H100 SXM 80GB", chunk=32_768), [], []
busy, token = Startup.of(large, others_bytes=6 * GIB), large.spec.bytes_for(1)
for fraction in (0.9, 0.95):
    for engine, option in OPTIONS.items():
        try:
            pool = pool_bytes(engine, busy, fraction)
            rows.append((fraction, option, f"{pool / GIB:.2f}", pool // token, f"{busy.left_bytes(pool) / GIB:.2f}"))
        except MiniKVError as error:
            rows.append((fraction, option, "-", None, "-"))
            notes.append(error.text("en"))
head = ["fraction", "option", "pool, GiB", "tokens", "left, GiB"]
Table(head, rows, lines=notes, right=head[2:])

# %% key="parted" lang="zh"
from minikv.errors import MiniKVError

large, rows, notes = plan_memory("Qwen3-14B", gpu="H100 SXM 80GB", chunk=32_768), [], []
busy, token = Startup.of(large, others_bytes=6 * GIB), large.spec.bytes_for(1)
for fraction in (0.9, 0.95):
    for engine, option in OPTIONS.items():
        try:
            pool = pool_bytes(engine, busy, fraction)
            rows.append((fraction, option, f"{pool / GIB:.2f}", pool // token, f"{busy.left_bytes(pool) / GIB:.2f}"))
        except MiniKVError as error:
            rows.append((fraction, option, "-", None, "-"))
            notes.append(error.text("zh"))
head = ["比例", "参数", "块池，GiB", "token 数", "剩余，GiB"]
Table(head, rows, lines=notes, right=head[2:])

# %% [markdown] key="parted_read" lang="en"
# - **minikv** and **nano-vllm** count the other process, so its 6 GiB are missing from our pool.
# - **vLLM** keeps its pool. It checks only once, at start, whether that much memory is free. With 0.95 it isn't.
# - **SGLang** leaves activations out of its formula, so they have to fit into the rest, $(1-f)(T-o)$. That is why 0.95 fails there: of 72.72 GiB that are free before loading, $0.05 \cdot 72.72 = 3.64$ GiB are left, but this forward needs 4.97 GiB, which is 1.33 too much. With a small value, the weights alone are more than the share, and the number of tokens becomes negative. SGLang's guide says to reserve 5 to 8 GB for activations.
# - **TensorRT-LLM** can never promise memory that isn't there. But 0.9 of the *free* memory leaves a tenth of that free memory, not a tenth of the card.
#
# ## One pool, four numbers
#
# When you move a deployment, keep the pool the same, not the fraction.
# Which fraction gives each engine the pool that minikv has with 0.9?
# %% [markdown] key="parted_read" lang="zh" src="04778452"
# - **minikv** 和 **nano-vllm** 会把别的进程算进来，它占 6 GiB，我们的块池就少 6 GiB。
# - **vLLM** 的块池不受影响，只在启动时检查一次，卡上是不是真有那么多空闲。设 0.95 时就没有。
# - **SGLang** 的算式里没有激活，所以激活要装进剩下的 $(1-f)(T-o)$ 里，0.95 在那里失败就是这个原因：加载前空闲 72.72 GiB，只剩 $0.05 \cdot 72.72 = 3.64$ GiB，而这次前向计算要新增 4.97 GiB，多出 1.33 GiB。调小了，光是权重就超过这个比例，token 数就变成负的。SGLang 的指南建议为激活留 5 到 8 GB。
# - **TensorRT-LLM** 不会用到没有的显存；但空闲显存的 0.9，留下的只是**那部分**的十分之一，而不是整张卡的。
#
# ## 同一个块池，四个数
#
# 所以换引擎时，该保持不变的是块池，不是比例。
# 要得到 minikv 填 0.9 时的块池，各个引擎该填多少？

# %% key="same_pool" lang="en"
wanted = pool_bytes("minikv", busy, 0.9)
rows = [(option, f"{fraction_for(engine, busy, wanted):.3f}") for engine, option in OPTIONS.items()]
head = ["option", f"value for a pool of {wanted / GIB:.2f} GiB"]
Table(head, rows, right=head[1:])

# %% key="same_pool" lang="zh"
wanted = pool_bytes("minikv", busy, 0.9)
rows = [(option, f"{fraction_for(engine, busy, wanted):.3f}") for engine, option in OPTIONS.items()]
head = ["参数", f"块池要 {wanted / GIB:.2f} GiB，应填"]
Table(head, rows, right=head[1:])

# %% [markdown] key="two" lang="en"
# ## Two engines on one card
#
# Two engines of the same kind are to share a card, so you give each 0.45.
# How large a pool does the second engine get, once the first is running?
# %% [markdown] key="two" lang="zh" src="66829a6e"
# ## 一张卡上两个引擎
#
# 两个同样的引擎要各用半张卡，所以都填 0.45。
# 第一个启动之后，第二个能得到多大的块池？

# %% key="two_on_one" lang="en"
small, rows = plan_memory("Qwen3-4B", gpu="H100 SXM 80GB"), []
for engine, option in OPTIONS.items():
    first = Startup.of(small)
    pools = [pool_bytes(engine, first, 0.45)]
    taken = pools[0] + first.weight_bytes + first.outside_bytes
    second = Startup.of(small, others_bytes=taken)
    pools.append(pool_bytes(engine, second, 0.45))
    rows.append((option, *(f"{pool / GIB:.2f}" for pool in pools)))
head = ["0.45 for", "pool of the first, GiB", "pool of the second, GiB"]
Table(head, rows, right=head[1:])

# %% key="two_on_one" lang="zh"
small, rows = plan_memory("Qwen3-4B", gpu="H100 SXM 80GB"), []
for engine, option in OPTIONS.items():
    first = Startup.of(small)
    pools = [pool_bytes(engine, first, 0.45)]
    taken = pools[0] + first.weight_bytes + first.outside_bytes
    second = Startup.of(small, others_bytes=taken)
    pools.append(pool_bytes(engine, second, 0.45))
    rows.append((option, *(f"{pool / GIB:.2f}" for pool in pools)))
head = ["0.45 用于", "第一个的块池，GiB", "第二个的块池，GiB"]
Table(head, rows, right=head[1:])

# %% [markdown] key="two_read" lang="en"
# With vLLM's fraction both get the same.
# In SGLang and TensorRT-LLM the second engine gets a share of a smaller amount. In minikv the first engine's memory is subtracted from the second engine's pool. A negative pool means that the engine does not start.
#
# ## The tokens in vLLM's log
#
# One word changed its meaning within a single engine: the *tokens* in the line that vLLM logs at start.
# For a hybrid model (only some of its layers cache every token), one log says 290,864 tokens and 33.04 requests of 32,768 tokens. These don't agree, because 33.04 × 32,768 is 1.08 million.
# `tokens_printed` computes that line by the rule up to v0.20, and by the rule since then.
# %% [markdown] key="two_read" lang="zh" src="478889cb"
# 用 vLLM 的比例，两个引擎得到的一样多。
# 在 SGLang 和 TensorRT-LLM 里，第二个引擎面对的总量更小，按比例拿到的也就更少；在 minikv 里，还要扣掉第一个引擎的全部占用。块池为负，就是启动不了。
#
# ## 日志里的词
#
# 有一个词在同一个引擎里就变了意思，那就是 vLLM 启动日志里的 tokens。
# 例如某个混合模型（只有一部分层缓存每个 token）的日志写着 290,864 个 token，又写着 33.04 个 32,768 token 的请求，两个数对不上，因为 33.04 × 32,768 约为 108 万。
# `tokens_printed` 会算出这一行，v0.20 及以前的算法和之后的算法都有。

# %% key="printed" lang="en"
from minikv.plan import CacheSpec
from minikv.plan.logs.vllm_pool import vllm_pool

hybrid = vllm_pool(CacheSpec.from_config("Qwen3.5-27B", layout="vllm"))
blocks = hybrid.blocks_that_print(290_864)[1]
requests, rows = f"{hybrid.concurrency(blocks, 32_768):.2f}", []
for rule, version in (("old", "up to v0.20"), ("new", "from v0.21 on")):
    tokens = hybrid.tokens_printed(blocks, rule, max_model_len=32_768)
    rows.append((version, tokens, blocks, requests))
head = ["vLLM", "tokens in the log", "blocks", "requests of 32,768 tokens"]
Table(head, rows, right=head[1:])

# %% key="printed" lang="zh"
from minikv.plan import CacheSpec
from minikv.plan.logs.vllm_pool import vllm_pool

hybrid = vllm_pool(CacheSpec.from_config("Qwen3.5-27B", layout="vllm"))
blocks = hybrid.blocks_that_print(290_864)[1]
requests, rows = f"{hybrid.concurrency(blocks, 32_768):.2f}", []
for rule, version in (("old", "v0.20 及以前"), ("new", "v0.21 起")):
    tokens = hybrid.tokens_printed(blocks, rule, max_model_len=32_768)
    rows.append((version, tokens, blocks, requests))
head = ["vLLM", "日志里的 token 数", "块数", "32,768 个 token 的请求数"]
Table(head, rows, right=head[1:])

# %% [markdown] key="words" lang="en"
# The pool is the same and so are the requests, but the newer log names 3.7 times as many tokens.
# `minikv check-log server.log` checks a log of your own in this way.
#
# ## Where you come from
#
# Five tables follow, one for each engine. On the left is what you want to do, in the middle the engine's word or flag, on the right our call. Flags change between versions, so search for the word if your version has another flag.
# Give a number of bytes or of tokens wherever you can, because that means the same everywhere.
#
# ### vLLM
#
# | you want | in vLLM | here |
# |---|---|---|
# | a share of the GPU | `--gpu-memory-utilization`, for this process | `LLM(utilization=...)`, for all processes |
# | the cache in bytes | `--kv-cache-memory-bytes` | `LLM(kv_bytes=...)` |
# | the number of blocks | `--num-gpu-blocks-override` | `LLM(num_blocks=...)` |
# | the tokens of a block | `--block-size` | `LLM(block_size=...)` |
# | the most tokens of a step | `--max-num-batched-tokens` | `LLM(max_batched_tokens=...)` |
# | the most sequences at once | `--max-num-seqs` | `LLM(max_num_seqs=...)` |
# | the longest request | `--max-model-len` | `LLM(max_model_len=...)` |
# | smaller K and V | `--kv-cache-dtype fp8` | `LLM(kv_dtype="fp8_e4m3")` |
# | a prompt's beginning, found again | automatic prefix caching, `cache_salt` | always on; `llm.generate(..., salt=...)` |
# | several GPUs | `--tensor-parallel-size` | `LLM(tp=...)`, under torchrun |
# | drafts from the prompt | `--speculative-config`, method `ngram` | `LLM(prompt_lookup=4)` |
# | no CUDA graphs | `--enforce-eager` | `LLM(enforce_eager=True)` |
# | its log explained | `GPU KV cache size: ... tokens` | `minikv check-log server.log` |
#
# A keyword of vLLM that you give to `LLM` is answered by an error that names ours.
#
# ### SGLang
#
# | you want | in SGLang | here |
# |---|---|---|
# | a share of the GPU | `--mem-fraction-static`, for weights and cache | `fraction_for("sglang", ...)` converts |
# | the cache in tokens | `--max-total-tokens` | `LLM(num_blocks=...)`, tokens / block size |
# | the tokens of a page | `--page-size` | `LLM(block_size=...)` |
# | a prompt's beginning, found again | RadixAttention, a tree; `--disable-radix-cache` | a chain of digests, always on ([lesson 09](09_pages_and_blocks.ipynb)) |
# | the most tokens of a prefill step | `--chunked-prefill-size` | `LLM(max_batched_tokens=...)` |
# | the most sequences at once | `--max-running-requests` | `LLM(max_num_seqs=...)` |
# | the longest request | `--context-length` | `LLM(max_model_len=...)` |
# | blocks taken back | "Retract requests", `--schedule-conservativeness` | preemption ([lesson 11b](11b_when_blocks_run_out.ipynb)) |
# | a second tier on the host | `--enable-hierarchical-cache`, `--hicache-ratio` | `LLM(cpu_kv_bytes=...)` |
# | several GPUs | `--tp-size` | `LLM(tp=...)` |
# | how full it is | `token usage: 0.82` in the log | `monitor.cache(llm)` |
#
# ### TensorRT-LLM
#
# | you want | in TensorRT-LLM | here |
# |---|---|---|
# | a share of the GPU | `KvCacheConfig(free_gpu_memory_fraction=...)`, of what is free | `fraction_for("tensorrt-llm", ...)` converts |
# | the cache in tokens | `KvCacheConfig(max_tokens=...)` | `LLM(num_blocks=...)`, tokens / block size |
# | the tokens of a block | `tokens_per_block` (32) | `LLM(block_size=...)` (16) |
# | a prompt's beginning, found again | `enable_block_reuse` | always on |
# | the most tokens of a step | `max_num_tokens` | `LLM(max_batched_tokens=...)` |
# | the most sequences at once | `max_batch_size` | `LLM(max_num_seqs=...)` |
# | the longest request | `max_seq_len` | `LLM(max_model_len=...)` |
# | smaller K and V | `KvCacheConfig(dtype="fp8")` | `LLM(kv_dtype="fp8_e4m3")` |
# | a second tier on the host | `host_cache_size`, in bytes | `LLM(cpu_kv_bytes=...)` |
# | old tokens forgotten | `max_attention_window`, `sink_token_length` | `LLM(eviction=...)` ([lesson 14](14_what_to_forget.ipynb)) |
# | blocks taken back, or never given | pausing with `MAX_UTILIZATION`; `GUARANTEED_NO_EVICT` | preemption; admission control ([lesson 18](18_capstone.ipynb)) |
#
# ### llama.cpp
#
# | you want | in llama.cpp | here |
# |---|---|---|
# | what fits, before you start | `--fit`, which sets what you left unset | `minikv plan model.gguf --gpu "RTX 4090"` |
# | the cache in tokens | `-c`, `--ctx-size` | `LLM(cache="linear", max_model_len=...)` |
# | sequences at once | `-np`, `--parallel`: slots | `LLM(max_num_seqs=...)` |
# | the tokens of a step | `-b`, `--batch-size`; `-ub`, `--ubatch-size` | `LLM(max_batched_tokens=...)` |
# | smaller K and V | `-ctk q8_0 -ctv q8_0` | `plan_memory(kv_dtype="q8_0")`; `LLM(kv_dtype="int8")` |
# | layers on the GPU | `-ngl`, `--n-gpu-layers` | `minikv plan` says how many |
# | K and V on the host | `-nkvo`, `--no-kv-offload` | `LLM(cpu_kv_bytes=...)` |
# | windows kept in full | `--swa-full` | never; a layer with a window keeps the window ([lesson 02b](02b_layers_that_differ.ipynb)) |
# | several GPUs | `-sm layer`, `-ts` | `LLM(tp=...)` splits heads, not layers |
#
# llama.cpp has slots instead of blocks, much like the linear cache of [lesson 06](06_the_linear_cache.ipynb), where each sequence has a row. (With `--kv-unified` the slots share one buffer.)
#
# ### transformers
#
# | you want | in transformers | here |
# |---|---|---|
# | a cache that grows | `DynamicCache`, the default | what [lesson 07](07_allocate_once.ipynb) measures |
# | a cache of fixed size | `StaticCache`, `cache_implementation="static"` | `LLM(cache="linear", max_model_len=...)` |
# | smaller K and V | `QuantizedCache`, `cache_implementation="quantized"` | `LLM(kv_dtype="int8")` |
# | K and V on the host | `cache_implementation="offloaded"` | `LLM(cpu_kv_bytes=...)` |
# | many requests at once | `generate_batch`, `PagedAttentionCache` | `llm.generate([...])` |
# | a share of the GPU | `max_memory_percent` | `LLM(utilization=...)` |
# | the most new tokens | `max_new_tokens` | `SamplingParams(max_tokens=...)` |
# | several answers | `num_return_sequences` | `SamplingParams(n=...)` |
# | greedy, or drawn | `do_sample` | `SamplingParams(temperature=0)`, or above |
# | drafts from the prompt | `prompt_lookup_num_tokens` | `LLM(prompt_lookup=4)` |
# | tokens forgotten | a cache class of your own, kvpress | `install_kv_eviction(model, ...)` ([lesson 15](15_eviction_on_mla.ipynb)) |
# | which memory a call has kept | none | `retention_report(...)` ([lesson 16](16_where_did_6gb_go.ipynb)) |
#
# ### Not NVIDIA
#
# The formulas do not depend on the maker of a card. Give `plan_memory(..., gpu_bytes=...)` the memory that your card has. PyTorch for AMD's ROCm keeps the names `torch.cuda.*`, and with them the words of [lesson 07](07_allocate_once.ipynb) and [lesson 08](08_allocate_kv_cache.ipynb). On Apple's and Intel's devices torch has other allocators, and what lesson 08 measures is not measured there, so give `kv_bytes`. We have tried none of these devices.
# %% [markdown] key="words" lang="zh" src="d4d13c9a"
# 块池相同，请求数也相同，新版日志里的 token 数却是旧版的 3.7 倍。
# 要核对你自己的日志，用 `minikv check-log server.log`。
#
# ## 你从哪个引擎来
#
# 下面五张表，每个引擎一张。左边是你想做的事，中间是那个引擎的词或参数，右边是我们的调用。参数会随版本变动，找不到时就按这个词去搜。
# 凡是能直接给字节数或 token 数的地方，就给字节数或 token 数，因为它们的意思处处相同。
#
# ### vLLM
#
# | 想做什么 | 在 vLLM 里 | 在这里 |
# |---|---|---|
# | 设定显存比例 | `--gpu-memory-utilization`，只管本进程 | `LLM(utilization=...)`，所有进程合计 |
# | 直接给缓存的字节数 | `--kv-cache-memory-bytes` | `LLM(kv_bytes=...)` |
# | 直接给块数 | `--num-gpu-blocks-override` | `LLM(num_blocks=...)` |
# | 每块的 token 数 | `--block-size` | `LLM(block_size=...)` |
# | 一步最多的 token 数 | `--max-num-batched-tokens` | `LLM(max_batched_tokens=...)` |
# | 同时最多的序列数 | `--max-num-seqs` | `LLM(max_num_seqs=...)` |
# | 最长的请求 | `--max-model-len` | `LLM(max_model_len=...)` |
# | 更小的 K 和 V | `--kv-cache-dtype fp8` | `LLM(kv_dtype="fp8_e4m3")` |
# | 再次找到提示词的开头 | automatic prefix caching、`cache_salt` | 始终开启；`llm.generate(..., salt=...)` |
# | 多块 GPU | `--tensor-parallel-size` | `LLM(tp=...)`，由 torchrun 启动 |
# | 从提示词里取草稿 | `--speculative-config`，方法 `ngram` | `LLM(prompt_lookup=4)` |
# | 不用 CUDA 图 | `--enforce-eager` | `LLM(enforce_eager=True)` |
# | 看懂它的日志 | `GPU KV cache size: ... tokens` | `minikv check-log server.log` |
#
# 把 vLLM 的关键字参数传给 `LLM`，会得到一个错误，告诉你这里用的名字。
#
# ### SGLang
#
# | 想做什么 | 在 SGLang 里 | 在这里 |
# |---|---|---|
# | 设定显存比例 | `--mem-fraction-static`，装权重和缓存 | 用 `fraction_for("sglang", ...)` 换算 |
# | 直接给 token 数 | `--max-total-tokens` | `LLM(num_blocks=...)`，token 数除以块大小 |
# | 每页的 token 数 | `--page-size` | `LLM(block_size=...)` |
# | 再次找到提示词的开头 | RadixAttention（基数树）；`--disable-radix-cache` | 摘要链，始终开启（[第 09 课](09_pages_and_blocks.ipynb)） |
# | 一步预填充最多的 token 数 | `--chunked-prefill-size` | `LLM(max_batched_tokens=...)` |
# | 同时最多的序列数 | `--max-running-requests` | `LLM(max_num_seqs=...)` |
# | 最长的请求 | `--context-length` | `LLM(max_model_len=...)` |
# | 把块收回来 | “Retract requests”、`--schedule-conservativeness` | 抢占（[第 11b 课](11b_when_blocks_run_out.ipynb)） |
# | 主机上的第二级缓存 | `--enable-hierarchical-cache`、`--hicache-ratio` | `LLM(cpu_kv_bytes=...)` |
# | 多块 GPU | `--tp-size` | `LLM(tp=...)` |
# | 缓存有多满 | 日志里的 `token usage: 0.82` | `monitor.cache(llm)` |
#
# ### TensorRT-LLM
#
# | 想做什么 | 在 TensorRT-LLM 里 | 在这里 |
# |---|---|---|
# | 设定显存比例 | `KvCacheConfig(free_gpu_memory_fraction=...)`，占空闲显存 | 用 `fraction_for("tensorrt-llm", ...)` 换算 |
# | 直接给 token 数 | `KvCacheConfig(max_tokens=...)` | `LLM(num_blocks=...)`，token 数除以块大小 |
# | 每块的 token 数 | `tokens_per_block`（32） | `LLM(block_size=...)`（16） |
# | 再次找到提示词的开头 | `enable_block_reuse` | 始终开启 |
# | 一步最多的 token 数 | `max_num_tokens` | `LLM(max_batched_tokens=...)` |
# | 同时最多的序列数 | `max_batch_size` | `LLM(max_num_seqs=...)` |
# | 最长的请求 | `max_seq_len` | `LLM(max_model_len=...)` |
# | 更小的 K 和 V | `KvCacheConfig(dtype="fp8")` | `LLM(kv_dtype="fp8_e4m3")` |
# | 主机上的第二级缓存 | `host_cache_size`，单位是字节 | `LLM(cpu_kv_bytes=...)` |
# | 淘汰旧 token | `max_attention_window`、`sink_token_length` | `LLM(eviction=...)`（[第 14 课](14_what_to_forget.ipynb)） |
# | 收回块，或者保证不收回 | `MAX_UTILIZATION` 策略下暂停；`GUARANTEED_NO_EVICT` | 抢占；准入控制（[第 18 课](18_capstone.ipynb)） |
#
# ### llama.cpp
#
# | 想做什么 | 在 llama.cpp 里 | 在这里 |
# |---|---|---|
# | 启动之前知道放得下什么 | `--fit`，替你填好没有设置的参数 | `minikv plan model.gguf --gpu "RTX 4090"` |
# | 直接给 token 数 | `-c`、`--ctx-size` | `LLM(cache="linear", max_model_len=...)` |
# | 同时运行的序列数 | `-np`、`--parallel`，叫作 slot | `LLM(max_num_seqs=...)` |
# | 一步的 token 数 | `-b`、`--batch-size`；`-ub`、`--ubatch-size` | `LLM(max_batched_tokens=...)` |
# | 更小的 K 和 V | `-ctk q8_0 -ctv q8_0` | `plan_memory(kv_dtype="q8_0")`；`LLM(kv_dtype="int8")` |
# | 放到 GPU 上的层数 | `-ngl`、`--n-gpu-layers` | `minikv plan` 会算出放得下几层 |
# | K 和 V 放在主机上 | `-nkvo`、`--no-kv-offload` | `LLM(cpu_kv_bytes=...)` |
# | 滑动窗口层也保存全长 | `--swa-full` | 没有；带窗口的层只保存窗口（[第 02b 课](02b_layers_that_differ.ipynb)） |
# | 多块 GPU | `-sm layer`、`-ts` | `LLM(tp=...)`，按头切分，不是按层 |
#
# llama.cpp 用 slot 而不用块，很像[第 06 课](06_the_linear_cache.ipynb)的线性缓存，每条序列占自己的一行。（加上 `--kv-unified`，各个 slot 就共用一块缓冲区。）
#
# ### transformers
#
# | 想做什么 | 在 transformers 里 | 在这里 |
# |---|---|---|
# | 会变大的缓存 | `DynamicCache`，默认 | [第 07 课](07_allocate_once.ipynb)测的就是它 |
# | 固定大小的缓存 | `StaticCache`、`cache_implementation="static"` | `LLM(cache="linear", max_model_len=...)` |
# | 更小的 K 和 V | `QuantizedCache`、`cache_implementation="quantized"` | `LLM(kv_dtype="int8")` |
# | K 和 V 放在主机上 | `cache_implementation="offloaded"` | `LLM(cpu_kv_bytes=...)` |
# | 同时处理许多请求 | `generate_batch`、`PagedAttentionCache` | `llm.generate([...])` |
# | 设定显存比例 | `max_memory_percent` | `LLM(utilization=...)` |
# | 最多生成的 token 数 | `max_new_tokens` | `SamplingParams(max_tokens=...)` |
# | 多个回答 | `num_return_sequences` | `SamplingParams(n=...)` |
# | 贪心还是采样 | `do_sample` | `SamplingParams(temperature=0)`，或大于 0 |
# | 从提示词里取草稿 | `prompt_lookup_num_tokens` | `LLM(prompt_lookup=4)` |
# | 淘汰 token | 自己写缓存类，或用 kvpress | `install_kv_eviction(model, ...)`（[第 15 课](15_eviction_on_mla.ipynb)） |
# | 一次调用占住了哪些显存 | 没有 | `retention_report(...)`（[第 16 课](16_where_did_6gb_go.ipynb)） |
#
# ### NVIDIA 之外的硬件
#
# 公式与显卡的厂商无关：把你的显存大小交给 `plan_memory(..., gpu_bytes=...)` 即可。AMD 的 ROCm 版 PyTorch 沿用 `torch.cuda.*` 这些名字，所以[第 07 课](07_allocate_once.ipynb)和[第 08 课](08_allocate_kv_cache.ipynb)的词也都在。苹果和英特尔的设备上，torch 用的是别的分配器，第 08 课测的那些数在那里测不到，所以要指定 `kv_bytes`。这几种设备我们都没有试过。

# %% [markdown] key="explain_text" lang="en"
# ## Recap
#
# The fraction is a share of four different things: all memory for all processes (minikv), all memory for one process (vLLM), the memory that is free before loading (SGLang), the memory that is free after loading (TensorRT-LLM).
# On a card of 80 GB with 6 GB outside, 20 GB of weights and 4 GB of activations, 0.9 gives pools of 42, 48, 46.6 and 45 GB.
# Only vLLM's fraction gives two engines on one card the same pool.
# A number of bytes or tokens means the same in every engine, so carry that over, and not the fraction.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="explain_text" lang="zh" src="48edd3e0"
# ## 本课小结
#
# 同一个“比例”在四家占的东西不同：minikv 占全部显存、所有进程合计，vLLM 占全部显存、只管本进程，SGLang 占加载前的空闲显存，TensorRT-LLM 占加载之后还空闲的显存。
# 例如 80 GB 的卡，外部占 6 GB，权重 20 GB，激活 4 GB，那么 0.9 给出的块池分别是 42、48、46.6 和 45 GB。
# 一张卡上放两个引擎时，只有 vLLM 的比例对两边意思一样。
# 字节数和 token 数在哪个引擎里意思都一样，所以换引擎时带过去的应该是它们，而不是比例。
#
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_1"
explain("why_not_the_same")

# %% key="explain_2"
explain("which_is_safe")

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# The [runbook](repo:docs/runbook.md) has the symptoms of a server that misbehaves: the command, how to read it, what to change, and the lesson.
#
# | symptom | the command that decides |
# |---|---|
# | the engine starts, and crashes at the first long prompt | `startup.left_bytes(pool_bytes(engine, startup, fraction))`: a negative number means that the largest forward does not fit |
# | it does not start while another process is on the card | `fraction_for(engine, Startup.of(budget, others_bytes=...), wanted)` |
# | the number of tokens in the log is not that of the plan | `minikv check-log server.log` |
# %% [markdown] key="stuck" lang="zh" src="2f3d203b"
# ## 卡住了怎么办
#
# [运行手册](repo:docs/runbook.zh.md)列了服务器的各种毛病：用哪条命令、怎么读、改什么、看哪一课。
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 能启动，遇到第一个长提示词就崩溃 | `startup.left_bytes(pool_bytes(engine, startup, fraction))`：为负，说明最大的一次前向计算放不下 |
# | 旁边有别的进程时启动不了 | `fraction_for(engine, Startup.of(budget, others_bytes=...), wanted)` |
# | 日志里的 token 数和规划不符 | `minikv check-log server.log` |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - In March 2024 a user could not start a Mistral-7B: the error message said to increase `--mem-fraction-static`, and the manual said to decrease it ([SGLang #322](https://github.com/sgl-project/sglang/issues/322)). Eight months later another user tried both ([#1869](https://github.com/sgl-project/sglang/issues/1869)): with a larger value a Gemma2-9B ran out of memory, with a smaller one the number of tokens was negative, and in vLLM the same model started on the same card with 0.95. "Where the pools differ" shows why.
# - In 2026 a collection of recipes used 0.95 for vLLM and found that SGLang runs out of memory with it ([llm-d #1840](https://github.com/llm-d/llm-d/pull/1840)).
# - The 290,864 tokens and 33.04 requests are from [vLLM #40691](https://github.com/vllm-project/vllm/issues/40691); "The tokens in vLLM's log" computes both.
# %% [markdown] key="wild" lang="zh" src="300f071c"
# ## 实战现场
#
# - 2024 年 3 月，一位用户启动不了 Mistral-7B：程序报错说要调大 `--mem-fraction-static`，文档却说要调小（[SGLang #322](https://github.com/sgl-project/sglang/issues/322)）。八个月后，另一位用户两头都试了（[#1869](https://github.com/sgl-project/sglang/issues/1869)）：调大，Gemma2-9B 显存不足；调小，token 数成了负数；而同一张卡上，vLLM 设 0.95 就能加载这个模型。原因见“差别显现的时候”一节。
# - 2026 年，有个配方集给 vLLM 用 0.95，换成 SGLang 却显存不足（[llm-d #1840](https://github.com/llm-d/llm-d/pull/1840)）。
# - 290,864 个 token 和 33.04 个请求出自 [vLLM #40691](https://github.com/vllm-project/vllm/issues/40691)，“日志里的词”一节把两个数都算了出来。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# [Appendix E](E_cheat_sheet.ipynb) has every formula of the course on one page.
# And if you have a card at hand, [lesson 08](08_allocate_kv_cache.ipynb) measures $o$, $w$ and $a$ on it.
# %% [markdown] key="next" lang="zh" src="edbfb5a5"
# ## 下一篇
#
# [附录 E](E_cheat_sheet.ipynb) 把全课程的公式放在一页上。
# 手边有卡的话，[第 08 课](08_allocate_kv_cache.ipynb)会在卡上测出 $o$、$w$ 和 $a$。
