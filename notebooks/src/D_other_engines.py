# %% [meta]
# number = "D"
# slug = "other_engines"
# needs = ["08"]
# rooms = ["plan.other_engines", "plan.logs.vllm_pool"]
# minutes = 30
# [title]
# en = "Nine tenths of what? The same words in other engines"
# zh = "0.9 是谁的十分之九？同样的词在别的引擎里"
# [t4]
# en = "Arithmetic on the CPU: a T4 shows the same numbers."
# zh = "全是 CPU 上的算术：T4 上看到的数字相同。"

# %% [markdown] key="question" lang="en"
# ## The question
#
# In March 2024 somebody cannot start a Mistral-7B.
# The program's error says to increase `--mem-fraction-static`, the manual says to decrease it.
# [SGLang #322](https://github.com/sgl-project/sglang/issues/322) asks:
#
# > Should I increase or decrease `--mem-fraction-static`?
#
# Eight months later somebody tries both ([#1869](https://github.com/sgl-project/sglang/issues/1869)): with a larger value a Gemma2-9B runs out of memory, with a smaller one the number of tokens is negative.
# In vLLM the same model starts on the same card with 0.95.
# And in 2026 a collection of recipes that gives vLLM 0.95 finds that SGLang fails with it ([llm-d #1840](https://github.com/llm-d/llm-d/pull/1840)).
#
# The number was the same.
# What it is a share *of* was not, and neither was what has to fit into it.
#
# **Of what is the fraction a share, in which engine, and what is left?**
# %% [markdown] key="question" lang="zh" src="7d6dc9ff"
# ## 问题
#
# 2024 年 3 月，有人启动不了 Mistral-7B。
# 程序报错说要调大 `--mem-fraction-static`，文档却说要调小。
# [SGLang #322](https://github.com/sgl-project/sglang/issues/322) 问道：
#
# > Should I increase or decrease `--mem-fraction-static`?（到底该调大还是调小？）
#
# 八个月后有人两头都试了（[#1869](https://github.com/sgl-project/sglang/issues/1869)）：调大，Gemma2-9B 显存不足；调小，token 数成了负数。
# 同一张卡上，vLLM 设 0.95 就能加载这个模型。
# 到了 2026 年，有个配方集给 vLLM 用 0.95，换成 SGLang 却显存不足（[llm-d #1840](https://github.com/llm-d/llm-d/pull/1840)）。
#
# 数字没变。
# 变的是它占**谁**的比例，以及哪些东西要装进这个比例里。
#
# **在各个引擎里，这个比例究竟占谁的，还剩多少**？

# %% key="predict_vllm"
predict("same_fraction", ...)

# %% key="predict_trtllm"
predict("of_what_is_free", ...)

# %% [markdown] key="formula" lang="en"
# ## The formula, four times
#
# | engine | its word | the pool | a share of |
# |---|---|---|---|
# | minikv, nano-vllm | `utilization` | $f\,T - o - w - a$ | all memory, for everybody on the card |
# | vLLM | `gpu_memory_utilization` | $f\,T - w - a$ | all memory, for this process |
# | SGLang | `mem_fraction_static` | $f\,(T - o) - w$ | what was free before loading, for weights and cache |
# | TensorRT-LLM | `free_gpu_memory_fraction` | $f\,(T - o - w - a)$ | what is free in the end, for the cache alone |
#
# | symbol | meaning | unit |
# |---|---|---|
# | $f$ | the fraction | 1 |
# | $T$ | all memory of the GPU | bytes |
# | $o$ | outside: taken before the engine looks first (other processes, its own CUDA context, NCCL) | bytes |
# | $w$ | weights | bytes |
# | $a$ | activations: what the largest forward adds | bytes |
#
# These are sums from the engines' own source, as we read it:
#
# - vLLM, [`gpu_worker.py`](https://github.com/vllm-project/vllm/blob/35d5cda123ec28581759b6d34cde8052314fb1e6/vllm/v1/worker/gpu_worker.py): `requested_memory` is taken from `total_memory`, and the start is refused unless that much is free
# - SGLang, [`model_runner_kv_cache_mixin.py`](https://github.com/sgl-project/sglang/blob/001ccef0072a4537d4ec6bdd50a73e6feb2c907d/python/sglang/srt/model_executor/model_runner_kv_cache_mixin.py) and [its guide](https://github.com/sgl-project/sglang/blob/21ff1af011c4b30ac5fe7865c6ebb8533eba0f02/docs/advanced_features/hyperparameter_tuning.md): "mem_fraction_static = (model weights + KV cache pool) / GPU memory capacity"
# - TensorRT-LLM, [`_util.py`](https://github.com/NVIDIA/TensorRT-LLM/blob/d8ae02caed59708512e5aa578a09bb09f365bfed/tensorrt_llm/_torch/pyexecutor/_util.py) and [its example](https://nvidia.github.io/TensorRT-LLM/examples/kvcacheconfig.html): "90% of free GPU memory"
#
# They leave out CUDA graphs and what grows outside torch during a warm-up; an engine's log has the last word.
# %% [markdown] key="formula" lang="zh" src="9f5a7ae2"
# ## 公式，四个版本
#
# | 引擎 | 它的叫法 | 块池 | 占谁的比例 |
# |---|---|---|---|
# | minikv、nano-vllm | `utilization` | $f\,T - o - w - a$ | 全部显存，卡上所有进程共用 |
# | vLLM | `gpu_memory_utilization` | $f\,T - w - a$ | 全部显存，只管本进程 |
# | SGLang | `mem_fraction_static` | $f\,(T - o) - w$ | 加载前的空闲显存，装权重和缓存 |
# | TensorRT-LLM | `free_gpu_memory_fraction` | $f\,(T - o - w - a)$ | 最后还空闲的显存，只装缓存 |
#
# | 符号 | 含义 | 单位 |
# |---|---|---|
# | $f$ | 比例 | 1 |
# | $T$ | GPU 的全部显存 | 字节 |
# | $o$ | 引擎第一次查看之前已被占用的（其他进程、自己的 CUDA 上下文、NCCL） | 字节 |
# | $w$ | 权重 | 字节 |
# | $a$ | 激活：最大的一次前向计算新增的部分 | 字节 |
#
# 这些算式取自各引擎的源码，以我们读到的版本为准：
#
# - vLLM，[`gpu_worker.py`](https://github.com/vllm-project/vllm/blob/35d5cda123ec28581759b6d34cde8052314fb1e6/vllm/v1/worker/gpu_worker.py)：`requested_memory` 按 `total_memory` 算，没有那么多空闲就拒绝启动
# - SGLang，[`model_runner_kv_cache_mixin.py`](https://github.com/sgl-project/sglang/blob/001ccef0072a4537d4ec6bdd50a73e6feb2c907d/python/sglang/srt/model_executor/model_runner_kv_cache_mixin.py)，以及[它的指南](https://github.com/sgl-project/sglang/blob/21ff1af011c4b30ac5fe7865c6ebb8533eba0f02/docs/advanced_features/hyperparameter_tuning.md)：“mem_fraction_static = (model weights + KV cache pool) / GPU memory capacity”
# - TensorRT-LLM，[`_util.py`](https://github.com/NVIDIA/TensorRT-LLM/blob/d8ae02caed59708512e5aa578a09bb09f365bfed/tensorrt_llm/_torch/pyexecutor/_util.py)，以及[它的示例](https://nvidia.github.io/TensorRT-LLM/examples/kvcacheconfig.html)：“90% of free GPU memory”（空闲显存的 90%）
#
# CUDA 图和预热期间 torch 之外的增长不在算式里；最后以引擎的日志为准。

# %% [markdown] key="same_number" lang="en"
# ## One number, four pools
#
# Llama-3.1-8B on an H100, the fraction 0.9 everywhere.
# `left` is what is still free in the largest forward: CUDA graphs and surprises have to fit into it.
# %% [markdown] key="same_number" lang="zh" src="9c9c4903"
# ## 同一个数，四个块池
#
# H100 上的 Llama-3.1-8B，比例都取 0.9。
# “剩余”是最大的一次前向计算时还空闲的显存，CUDA 图和意外都要靠它。

# %% key="pools"
from minikv.plan import plan_memory
from minikv.plan.other_engines import OPTIONS, Startup, fraction_for, pool_bytes
from minikv.units import GIB

budget = plan_memory("Llama-3.1-8B", gpu="H100 SXM 80GB")
alone = Startup.of(budget)
token = budget.spec.bytes_for(1)
for engine, option in OPTIONS.items():
    pool = pool_bytes(engine, alone, 0.9)
    left = alone.left_bytes(pool)
    print(t("pool_line", option=option, gib=pool / GIB, tokens=pool // token, left=left / GIB))

# %% [markdown] key="pools_read" lang="en"
# For a small model on a large card they lie close together: weights and activations are small beside the card.
# That is why the confusion goes unnoticed for so long.
#
# ## Where they part
#
# Now a larger model, prefills of 32,768 tokens at once, and another process that holds 6 GiB.
# %% [markdown] key="pools_read" lang="zh" src="f087016d"
# 小模型放在大卡上，四个数相差不多：权重和激活相对整张卡都很小。
# 所以这样混用，很久都没人发现。
#
# ## 分道扬镳
#
# 现在换大一点的模型，一次预填充 32,768 个 token，再加上一个占 6 GiB 的进程。

# %% key="parted"
from minikv.errors import MiniKVError

large = plan_memory("Qwen3-14B", gpu="H100 SXM 80GB", chunk=32_768)
busy = Startup.of(large, others_bytes=6 * GIB)
for fraction in (0.9, 0.95):
    print(t("at", fraction=fraction))
    for engine, option in OPTIONS.items():
        try:
            pool = pool_bytes(engine, busy, fraction)
        except MiniKVError as error:
            print(f"  {option:<25} {t(error)}")
            continue
        left = busy.left_bytes(pool)
        line = t("pool_line", option=option, gib=pool / GIB, tokens=pool // large.spec.bytes_for(1), left=left / GIB)
        print(" ", line + (t("too_much") if left < 0 else ""))

# %% [markdown] key="parted_read" lang="en"
# - **minikv** and **nano-vllm** let others in: what they hold comes out of our pool.
# - **vLLM** keeps its pool and looks once, at start, whether the card has that much free.
# - **SGLang** leaves activations out of the sum: they have to fit into the rest, $(1-f)(T-o)$. That is why 0.95 fails there. With a small value the weights alone are more than the share: hence the negative number of tokens. SGLang's guide says to reserve 5 to 8 GB for them.
# - **TensorRT-LLM** can never promise what is not there, but 0.9 of what is free leaves a tenth of *that*, not of the card.
#
# ## One pool, four numbers
#
# So a deployment is moved by its pool, not by its fraction.
# Which number gives every engine the pool that we have?
# %% [markdown] key="parted_read" lang="zh" src="83130dec"
# - **minikv** 和 **nano-vllm** 把别人算进来：别人占的，从我们的块池里扣。
# - **vLLM** 的块池不受影响，只在启动时看一眼，卡上是不是真有那么多空闲。
# - **SGLang** 的算式里没有激活，它们要装进剩下的 $(1-f)(T-o)$ 里。0.95 在那里失败，原因就在这里。调小了，光是权重就超过这个比例，所以 token 数会变负。SGLang 的指南建议为激活留 5 到 8 GB。
# - **TensorRT-LLM** 不会许诺没有的显存；但空闲显存的 0.9，留下的只是**那部分**的十分之一，而不是整张卡的。
#
# ## 同一个块池，四个数
#
# 所以换引擎时，该保持不变的是块池，不是比例。
# 要得到同样的块池，各个引擎该填多少？

# %% key="same_pool"
wanted = pool_bytes("minikv", busy, 0.9)
print(t("wanted", gib=wanted / GIB))
for engine, option in OPTIONS.items():
    print(f"{option:<25} {fraction_for(engine, busy, wanted):.3f}")

# %% [markdown] key="two" lang="en"
# ## Two engines on one card
#
# Each is to have half.
# What does the second one find, when the first is up?
# %% [markdown] key="two" lang="zh" src="b2c2b9ad"
# ## 一张卡上两个引擎
#
# 各要一半。
# 第一个起来之后，第二个看到的是什么？

# %% key="two_on_one"
small = plan_memory("Qwen3-4B", gpu="H100 SXM 80GB")
for engine, option in OPTIONS.items():
    first = Startup.of(small)
    pools = [pool_bytes(engine, first, 0.45)]
    taken = pools[0] + first.weight_bytes + first.outside_bytes
    second = Startup.of(small, others_bytes=taken)
    pools.append(pool_bytes(engine, second, 0.45))
    print(t("two_line", option=option, first=pools[0] / GIB, second=pools[1] / GIB))

# %% [markdown] key="two_read" lang="en"
# vLLM's word means the same to both.
# In the other three, the second one gets a share of something smaller, or pays for the first; a negative pool is an engine that does not start.
#
# ## The log's own word
#
# A last word that changed its meaning within one engine: the *tokens* of vLLM's start-up line.
# [vLLM #40691](https://github.com/vllm-project/vllm/issues/40691): for a hybrid model, 290,864 tokens and 33.04 requests of 32,768 tokens do not go together.
# `tokens_printed` computes that line, by the rule up to v0.20 and by the one since.
# %% [markdown] key="two_read" lang="zh" src="a12c81ec"
# vLLM 的这个词，对两个引擎意思一样。
# 另外三家，第二个引擎拿到的是更小的总量的一部分，或者要替第一个买单；块池为负，就是起不来。
#
# ## 日志里的词
#
# 最后一个词，在同一个引擎里就变了意思：vLLM 启动日志里的 tokens。
# [vLLM #40691](https://github.com/vllm-project/vllm/issues/40691)：混合模型的日志里，290,864 个 token 和 33.04 个 32,768 token 的请求对不上。
# `tokens_printed` 会算出这一行，v0.20 及以前的算法和之后的算法都有。

# %% key="printed"
from minikv.plan import CacheSpec
from minikv.plan.logs.vllm_pool import vllm_pool

hybrid = vllm_pool(CacheSpec.from_config("Qwen3.5-27B", layout="vllm"))
blocks = hybrid.blocks_that_print(290_864)[1]
requests = hybrid.concurrency(blocks, 32_768)
for rule in ("old", "new"):
    tokens = hybrid.tokens_printed(blocks, rule, max_model_len=32_768)
    print(t("printed_line", rule=t(rule), tokens=tokens, blocks=blocks, requests=requests))

# %% [markdown] key="words" lang="en"
# The same pool, the same requests; 3.7 times the tokens on paper.
# `minikv check-log server.log` does this for a log of yours.
#
# ## The other words
#
# | what it is | minikv | vLLM | SGLang | TensorRT-LLM |
# |---|---|---|---|---|
# | tokens that are stored together | block, `block_size` | block, `block_size` | page, `page_size` | block, `tokens_per_block` |
# | a beginning that is found again | prefix cache | automatic prefix caching | radix cache | KV cache reuse |
# | the most tokens of one step | `max_batched_tokens` | `max_num_batched_tokens` | `chunked_prefill_size`, for a prefill | `max_num_tokens` |
# | the most sequences at once | `max_num_seqs` | `max_num_seqs` | `max_running_requests` | `max_batch_size` |
# | taking blocks back | preemption | preemption | retraction: "Retract requests" | pausing, with `MAX_UTILIZATION` |
# | "full" | blocks in use | KV cache usage | `token usage` | used blocks |
# | saying it in bytes instead | `kv_bytes` | `kv_cache_memory_bytes` | `max_total_tokens`, in tokens | `max_tokens`, in tokens |
#
# The last row is the way out of this appendix: where a number of bytes or tokens can be given, it means the same everywhere.
# %% [markdown] key="words" lang="zh" src="1ccfa397"
# 块池相同，请求数相同，纸面上的 token 数却是 3.7 倍。
# 要核对你自己的日志，用 `minikv check-log server.log`。
#
# ## 其他的词
#
# | 是什么 | minikv | vLLM | SGLang | TensorRT-LLM |
# |---|---|---|---|---|
# | 放在一起的一组 token | 块，`block_size` | block，`block_size` | page，`page_size` | block，`tokens_per_block` |
# | 能再次找到的开头 | 前缀缓存 | automatic prefix caching | radix cache | KV cache reuse |
# | 一步最多的 token 数 | `max_batched_tokens` | `max_num_batched_tokens` | `chunked_prefill_size`（预填充） | `max_num_tokens` |
# | 同时最多的序列数 | `max_num_seqs` | `max_num_seqs` | `max_running_requests` | `max_batch_size` |
# | 把块收回来 | 抢占 | preemption | retraction（“Retract requests”） | pause（`MAX_UTILIZATION` 策略下） |
# | “满了” | 在用的块 | KV cache usage | `token usage` | used blocks |
# | 直接给出大小 | `kv_bytes` | `kv_cache_memory_bytes` | `max_total_tokens`，单位是 token | `max_tokens`，单位是 token |
#
# 最后一行就是本附录的出路：能直接给字节数或 token 数的地方，意思处处相同。

# %% [markdown] key="explain_text" lang="en"
# ## Check yourself
# %% [markdown] key="explain_text" lang="zh" src="8f45d9d8"
# ## 自我检查

# %% key="explain_1"
explain("why_not_the_same")

# %% key="explain_2"
explain("which_is_safe")

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# The [runbook](repo:docs/runbook.md) has ten symptoms of a server that misbehaves: the command, how to read it, what to change, and the lesson.
#
# | symptom | the command that decides |
# |---|---|
# | it starts, and dies in the first long prompt | `startup.left_bytes(pool_bytes(engine, startup, fraction))`: negative means that it had to |
# | it does not start beside another process | `fraction_for(engine, Startup.of(budget, others_bytes=...), wanted)` |
# | the log says other tokens than the plan | `minikv check-log server.log` |
# %% [markdown] key="stuck" lang="zh" src="d4f342e6"
# ## 卡住了怎么办
#
# [运行手册](repo:docs/runbook.zh.md)列了服务器的十种毛病：用哪条命令、怎么读、改什么、看哪一课。
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 能启动，遇到第一个长提示词就垮 | `startup.left_bytes(pool_bytes(engine, startup, fraction))`：为负就是必然 |
# | 旁边有别的进程时起不来 | `fraction_for(engine, Startup.of(budget, others_bytes=...), wanted)` |
# | 日志里的 token 数和规划不符 | `minikv check-log server.log` |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# Every formula of the course on one page: [appendix E](E_cheat_sheet.ipynb).
# And if you have a card at hand: [lesson 08](08_allocate_kv_cache.ipynb) measures $o$, $w$ and $a$ on it.
# %% [markdown] key="next" lang="zh" src="cb07dd93"
# ## 下一篇
#
# 全课程的公式都在一页上：[附录 E](E_cheat_sheet.ipynb)。
# 手边有卡的话，[第 08 课](08_allocate_kv_cache.ipynb)会在卡上测出 $o$、$w$ 和 $a$。
