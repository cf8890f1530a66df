# %% [meta]
# number = "02"
# slug = "how_many_bytes"
# needs = ["00"]
# rooms = ["plan.spec", "nano.kv_cache"]
# minutes = 35
# [title]
# en = "What does one token cost?"
# zh = "一个 token 要花多少字节？"
# [t4]
# en = "The same numbers: everything is computed."
# zh = "结果相同：数字都由公式算出。"
# [paper]
# en = "02.1"
# zh = "02.1"

# %% [markdown] key="question" lang="en"
# ## The question
#
# In August 2025 somebody serves Qwen2.5-7B-Instruct-GPTQ-Int8 with vLLM and wants to know how many requests fit.
# The formula in hand is `2 * hidden-state-size * number-of-layers * data-type`, with 8 for int8.
# It gives 1,605,632 bytes for one token, and 4.59 GiB for one request of 3,072 tokens (the post writes GB).
# The GPU disagrees: from three runs, the same person works out about 0.16 GB a request.
#
# > which part is wrong? please correct me.
#
# ([vLLM issue 22291](https://github.com/vllm-project/vllm/issues/22291).)
# Below the formula, one call answers it.
# %% [markdown] key="question" lang="zh" src="e890466b"
# ## 问题
#
# 2025 年 8 月，有人用 vLLM 部署 Qwen2.5-7B-Instruct-GPTQ-Int8，想知道能容纳多少个请求。
# 手里的公式是 `2 * hidden-state-size * number-of-layers * data-type`，其中 int8 记作 8。
# 算下来一个 token 要 1,605,632 字节，一个 3,072 token 的请求要 4.59 GiB（原帖写作 GB）。
# GPU 上却不是这样：同一个人根据三次运行推算，每个请求大约 0.16 GB。
#
# > which part is wrong? please correct me.（哪一步错了？请指正。）
#
# （[vLLM issue 22291](https://github.com/vllm-project/vllm/issues/22291)）
# 讲完公式，一次调用就能回答。

# %% key="asked"
from minikv.units import exact_bytes, format_bytes, gib

asked = 2 * 3584 * 28 * 8  # 2 * hidden_size * layers * "int8 = 8"
for n in (1, 3072):
    print(t("size_of", n=n, size=exact_bytes(n * asked)))

# %% [markdown] key="widget" lang="en"
# ## See it: a budget you can turn
#
# The bar is one GPU. Turn a knob, and read the sentence below it.
# What torch sees of a card is as one public log printed it, rounded to 0.01 GiB; yours may differ.
# %% [markdown] key="widget" lang="zh" src="00ddbaae"
# ## 动手看：可以拨动的显存预算
#
# 横条代表一块 GPU。拨动任意一项，再看下面那句话。
# 各显卡的 torch 可见显存取自一份公开日志，精确到 0.01 GiB；你的机器上可能不同。

# %% key="widget_code"
from minikv.course.widgets import BudgetWidget

widget = BudgetWidget(lang=t("lang"), model="Llama-3.1-8B", gpu="H200", context=4096, batch=64)
show(widget, text=widget.text())

# %% [markdown] key="widget_tour" lang="en"
# 1. **Fill the H200.** Move *Batch* to the right, with 4,096 tokens each. Watch the cache eat the pool, and the sentence change when it no longer fits.
#    The largest batch that fits is the number beside "Sequences".
# 2. **Change the KV cache dtype to fp8.** The weights do not move; the number of sequences doubles.
# 3. **Choose Llama-3.1-70B.** It is refused at tp 1 (one GPU), before a single token: the weights alone are larger than the share. Now set tp to 2, and two GPUs share weights and heads.
# 4. **Choose Llama-2-7B and a context above 4,096.** There is plenty of memory, and it is refused all the same: the model has no more positions.
#
# *Reset* brings you back. The cell below computes these stops, the third one at tp 1 and at tp 2, so you can check what you read.
# The widget takes your own model, too: `BudgetWidget(model="mine", configs={"mine": config})`, where `config` is anything that `from_config` takes.
# %% [markdown] key="widget_tour" lang="zh" src="07828200"
# 1. **把 H200 填满。** 每条序列 4,096 个 token，把“batch 大小”往右拖。看缓存怎样吃掉块池，放不下时那句话怎样变化。
#    最大能放多少条，看“可容纳……的序列数”。
# 2. **把 KV 缓存数据类型改成 fp8。** 权重不动，序列数翻倍。
# 3. **选 Llama-3.1-70B。** tp 为 1（一块 GPU）时，一个 token 都还没有就被拒绝：光是权重就超过了可用的份额。再把 tp 设为 2，由两块 GPU 分担权重和头。
# 4. **选 Llama-2-7B，上下文设到 4,096 以上。** 显存绰绰有余，照样被拒绝：模型没有更多的位置。
#
# 点“重置”回到起点。下面的单元格会算出这几步的结果（第 3 步按 tp 为 1 和 2 各算一次），供你核对。
# 你自己的模型也可以放进来：`BudgetWidget(lang="zh", model="mine", configs={"mine": config})`，凡是 `from_config` 能接收的，都可以作为 `config`。

# %% key="tour"
from minikv.errors import MiniKVError
from minikv.plan import plan_memory

stops = (
    dict(config="Llama-3.1-8B"),
    dict(config="Llama-3.1-8B", kv_dtype="fp8"),
    dict(config="Llama-3.1-70B"),
    dict(config="Llama-3.1-70B", tp=2),
    dict(config="Llama-2-7B", context=8192),
)
for stop in stops:
    try:
        result = f"max_batch(4096) = {plan_memory(gpu='H200', **stop).max_batch(4096)}"
    except MiniKVError as error:
        result = t(error)
    print(stop, result, sep="\n    ")

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# Work it out on paper before you read on.
# Run the cell as it is to see the question; put your number in place of `...` and run it again.
# %% [markdown] key="predict_first" lang="zh" src="c3589856"
# ## 先猜一猜
#
# 往下读之前，先在纸上算一算。
# 直接运行单元格会显示题目；把 `...` 换成你的数字，再运行一次。

# %% key="predict_one_token"
predict("one_token", ...)

# %% [markdown] key="formula" lang="en"
# ## The formula
#
# In every layer, attention needs two vectors of each earlier token: its key and its value.
# The KV cache keeps both, once for each KV head.
# The third vector of a token, its query Q, is used in the one step that computes this token: it is compared with all the keys so far.
# No later token asks for it, so it is not kept.
#
# $$\text{bytes per token} = 2 \cdot L \cdot H_{kv} \cdot D \cdot s$$
#
# | Symbol | What it counts | Unit | Where it stands | Llama-3.1-8B |
# |---|---|---|---|---|
# | $2$ | one K and one V | vectors a head | in no config | 2 |
# | $L$ | layers that cache | layers | `num_hidden_layers` | 32 |
# | $H_{kv}$ | KV heads | heads a layer | `num_key_value_heads` | 8 |
# | $D$ | elements of one vector | elements | `head_dim`, or `hidden_size / num_attention_heads` | 4096 / 32 = 128 |
# | $s$ | bytes of one element | bytes | the dtype of the *cache* | bf16: 2 |
#
# `hidden_size` appears only as a way to get $D$, and often it is the wrong way (see "The head_dim trap").
# Here is the product by hand, and then the same from the package, which reads the model's config.
# %% [markdown] key="formula" lang="zh" src="333731f8"
# ## 公式
#
# 在每一层，注意力都需要前面每个 token 的两个向量：key 和 value。
# KV 缓存（KV cache）把两者都存下来，每个 KV 头存一份。
# token 还有第三个向量 query（Q），只在计算这个 token 的那一步里使用：与此前所有的 key 比较。
# 后面的 token 都不会再用到它，所以不缓存。
#
# $$\text{每 token 字节数} = 2 \cdot L \cdot H_{kv} \cdot D \cdot s$$
#
# | 符号 | 含义 | 单位 | 出处 | Llama-3.1-8B |
# |---|---|---|---|---|
# | $2$ | 一个 K，一个 V | 向量 / 头 | 配置里没有 | 2 |
# | $L$ | 有缓存的层数 | 层 | `num_hidden_layers` | 32 |
# | $H_{kv}$ | KV 头数 | 头 / 层 | `num_key_value_heads` | 8 |
# | $D$ | 一个向量的元素数，即头维度（`head_dim`） | 元素 | `head_dim`，或 `hidden_size / num_attention_heads` | 4096 / 32 = 128 |
# | $s$ | 一个元素的字节数 | 字节 | **缓存**的数据类型 | bf16：2 |
#
# `hidden_size` 只是求 $D$ 的一条途径，而且常常是错的（见“head_dim 陷阱”一节）。
# 下面先手算一遍，再让程序包读取模型配置，算出同一个数。

# %% key="one_call"
from minikv.plan import CacheSpec

by_hand = 2 * 32 * 8 * 128 * 2
spec = CacheSpec.from_config("Llama-3.1-8B")
print(f"{by_hand:,} B")
print(f"{spec.bytes_for(1):,} B")

# %% [markdown] key="explain_spec" lang="en"
# `from_config` takes a name of the catalogue, a `config.json`, a model folder, a dict or a Hugging Face config object.
# Ask it where its number comes from: it names each field that it read.
# %% [markdown] key="explain_spec" lang="zh" src="3eeabd5f"
# `from_config` 可以接收目录里的模型名、`config.json`、模型文件夹、dict，也可以接收 Hugging Face 的配置对象。
# 想知道数字从哪里来，就让它解释：它会列出读过的每个字段。

# %% key="explain_spec_code"
print(spec.explain(t("lang")))

# %% [markdown] key="token_block_sequence" lang="en"
# **Per token, per block, per sequence.**
# Engines hand out memory in blocks, usually of 16 tokens; one block spans all layers, K and V.
# A sequence of $n$ tokens costs $n$ times the token as long as no layer has a window.
# %% [markdown] key="token_block_sequence" lang="zh" src="fa8b23af"
# **一个 token、一个块、一条序列**。
# 推理引擎按块（block）分配显存，通常一块 16 个 token；一块贯穿所有层，K 和 V 都在内。
# 只要没有窗口层，$n$ 个 token 的序列就是单个 token 的 $n$ 倍。

# %% key="token_block_sequence_code"
for n in (1, 4096, 131_072):
    print(t("size_of", n=n, size=exact_bytes(spec.bytes_for(n))))
print(t("size_of_block", n=16, size=exact_bytes(spec.block_bytes(16))))
print(t("size_of_batch", batch=32, n=4096, size=exact_bytes(spec.bytes_for(4096, batch=32))))
print(f"max_tokens(1 GiB) = {spec.max_tokens(2**30):,}")

# %% [markdown] key="inverse" lang="en"
# `max_tokens` is the exact inverse of `bytes_for`: the most tokens that fit, never one too many.
#
# **Now the answer to the question.**
# %% [markdown] key="inverse" lang="zh" src="fc6f3007"
# `max_tokens` 是 `bytes_for` 的精确反函数：返回放得下的最大 token 数，一个也不多算。
#
# **现在来回答开头的问题。**

# %% key="answer"
qwen = CacheSpec.from_config("Qwen2.5-7B-Instruct")
request = qwen.bytes_for(3072)
print(t("size_of", n=1, size=f"{qwen.bytes_for(1):,} B"))
print(t("size_of", n=3072, size=f"{request:,} B = {request / 1e9:.3f} GB = {gib(request):.3f} GiB"))
print(f"{asked:,} / {qwen.bytes_for(1):,} = {asked / qwen.bytes_for(1):g}")
print(f"hidden_size / (kv_heads * head_dim) = 3584 / (4 * 128) = {3584 / (4 * 128):g}")
print(f"8 / 2 = {8 / 2:g}")

# %% [markdown] key="answer_read" lang="en"
# Two parts are wrong, and together they make the result 28 times too large.
#
# - **7 times: `hidden_size`.** It stands for 28 attention heads of 128, but Qwen2.5-7B has only 4 KV heads.
#   The formula comes from section 3 of the [PagedAttention paper](https://arxiv.org/abs/2309.06180), whose example is OPT-13B, a model with as many KV heads as attention heads.
#   There it holds.
# - **4 times: bits for bytes.** int8 is 8 *bits*, 1 byte.
#   And int8 is what GPTQ did to the *weights*: the KV cache of this checkpoint stays in 16 bits, so $s = 2$.
#
# The person's own figure, 0.16 GB a request, came closer than the formula: 3,072 tokens take 0.176 GB, or 0.164 GiB.
# But it is a quotient: the memory added between two runs, divided by the requests per *second* added.
# Requests per second are not requests at the same time, so part of the agreement is luck.
# %% [markdown] key="answer_read" lang="zh" src="3db493dd"
# 错了两处，合起来是正确值的 28 倍。
#
# - **7 倍来自 `hidden_size`。** 它等于 28 个注意力头乘以 128，而 Qwen2.5-7B 只有 4 个 KV 头。
#   这个公式出自 [PagedAttention 论文](https://arxiv.org/abs/2309.06180)第 3 节，文中的例子是 OPT-13B：KV 头和注意力头一样多。
#   对那个模型，公式成立。
# - **4 倍来自把位当成字节。** int8 是 8 **位**，也就是 1 字节。
#   何况 int8 是 GPTQ 对**权重**的量化：这个检查点的 KV 缓存仍是 16 位，所以 $s = 2$。
#
# 提问者推算的每请求 0.16 GB，反而比公式更接近：3,072 个 token 占 0.176 GB，即 0.164 GiB。
# 不过它是一个商：两次运行之间增加的显存，除以**每秒**请求数的增量。
# 每秒的请求数不等于同时存在的请求数，所以吻合有一部分是运气。

# %% [markdown] key="gqa" lang="en"
# ## Fewer KV heads: MHA, GQA, MQA
#
# Multi-head attention (MHA) has one KV head for each attention head.
# Grouped-query attention (GQA) lets a group of attention heads share one KV head; multi-query attention (MQA) lets all of them share one.
# Only $H_{kv}$ changes.
# The last row is made up: Llama-3.1-8B as it would be with MQA.
# %% [markdown] key="gqa" lang="zh" src="3915795d"
# ## 减少 KV 头：MHA、GQA、MQA
#
# 多头注意力（MHA）给每个注意力头配一个 KV 头。
# 分组查询注意力（GQA）让一组注意力头共用一个 KV 头；多查询注意力（MQA）则是所有注意力头共用一个。
# 公式里变的只有 $H_{kv}$。
# 最后一行是虚构的：假如 Llama-3.1-8B 采用 MQA。

# %% key="predict_gqa"
predict("gqa_saves", ...)

# %% key="gqa_code"
from minikv.plan import find_model

mqa = {**find_model("Llama-3.1-8B").config, "num_key_value_heads": 1}
rows = {name: name for name in ("Llama-2-7B", "Llama-3.1-8B", "Llama-2-70B")} | {"Llama-3.1-8B, MQA": mqa}
print(t("gqa_head"))
for name, config in rows.items():
    one = CacheSpec.from_config(config)
    size = format_bytes(one.bytes_for(4096))
    print(f"{name:<18} {len(one.layers):>6} {one.layers[0].kv_heads:>8} {one.bytes_for(1):>10,} {size:>12}")

# %% [markdown] key="gqa_read" lang="en"
# Read the rows again: a token of Llama-2-**70B** (80 layers, GQA) costs less than one of Llama-2-**7B** (32 layers, MHA).
# The number of parameters says nothing about the cache.
# %% [markdown] key="gqa_read" lang="zh" src="15cc9f8d"
# 再看一遍：Llama-2-**70B**（80 层，GQA）的一个 token 比 Llama-2-**7B**（32 层，MHA）的还便宜。
# 参数量说明不了缓存的大小。

# %% [markdown] key="head_dim" lang="en"
# ## The head_dim trap
#
# Many calculators take `hidden_size // num_attention_heads` for $D$.
# A KV cache calculator did, until somebody reported that
# "this will get wrong results when head_size not equal to it like Qwen3-4B" ([LMCache issue 688](https://github.com/LMCache/LMCache/issues/688)).
# `head_dim` is a choice of the model's authors, and nothing ties it to that quotient.
# Here is every model of the catalogue for which the quotient is wrong (models that cache latents are left to [lesson 03](03_the_2_86x_mistake.ipynb)).
# %% [markdown] key="head_dim" lang="zh" src="f46e7bae"
# ## head_dim 陷阱
#
# 不少计算器用 `hidden_size // num_attention_heads` 当作 $D$。
# 有个 KV 缓存计算器也是这样，直到有人报告：
# “this will get wrong results when head_size not equal to it like Qwen3-4B”（[LMCache issue 688](https://github.com/LMCache/LMCache/issues/688)）。
# `head_dim` 由模型作者选定，与这个商没有必然关系。
# 下面列出目录中所有“商是错的”的模型（缓存潜在向量的模型留到[第 03 课](03_the_2_86x_mistake.ipynb)）。

# %% key="head_dim_code"
from minikv.plan import model_names

checked = wrong = 0
for name in model_names():
    config = find_model(name).config
    config = config.get("text_config", config)
    heads = config.get("num_attention_heads")
    if heads is None or "kv_lora_rank" in config:
        continue
    checked += 1
    true = next(layer.k_dim for layer in CacheSpec.from_config(name).layers if layer.k_dim)
    if true * heads != config["hidden_size"]:
        wrong += 1
        quotient = config["hidden_size"] / heads
        print(f"{name:<29} {config['hidden_size']:>5} / {heads:<2} = {quotient:>5.1f}   head_dim {true:>3}")
print(f"{wrong} / {checked}")

# %% [markdown] key="head_dim_read" lang="en"
# The error goes both ways: Qwen3-0.6B costs twice the naive number, Gemma-3-27B about three quarters of it.
# For Qwen3.5-27B the quotient is not even a whole number.
#
# A config writes `head_dim` in three ways, and all three occur: a number (Qwen3), `null` (Mixtral, as transformers saves it today), or nothing at all (Llama).
# `null` and nothing mean the same: divide.
# %% [markdown] key="head_dim_read" lang="zh" src="09b05f90"
# 误差有两个方向：Qwen3-0.6B 的真实开销是简单估算的两倍，Gemma-3-27B 约为四分之三。
# Qwen3.5-27B 的商甚至不是整数。
#
# 配置里 `head_dim` 有三种写法，而且都真实存在：写数字（Qwen3）、写 `null`（现在 transformers 保存的 Mixtral）、干脆不写（Llama）。
# `null` 与不写含义相同：用除法。

# %% key="three_ways"
mixtral = find_model("Mixtral-8x7B").config
for extra in ({}, {"head_dim": None}, {"head_dim": 128}):
    print(f"{extra!s:<19} {CacheSpec.from_config({**mixtral, **extra}).bytes_for(1):>8,} B")
glm = find_model("GLM-5").config
print({key: glm[key] for key in ("head_dim", "qk_rope_head_dim", "kv_lora_rank")})

# %% [markdown] key="head_dim_mla" lang="en"
# The last line shows a fourth meaning.
# In GLM-5, as in the config class of DeepSeek-V3, `head_dim` is the part of a head that carries positions: 64 elements.
# These models cache no heads at all, and the formula above does not hold for them.
# They are [lesson 03](03_the_2_86x_mistake.ipynb).
# %% [markdown] key="head_dim_mla" lang="zh" src="730ddd41"
# 最后一行是第四种含义。
# 在 GLM-5 里（DeepSeek-V3 的配置类也一样），`head_dim` 只是一个头中携带位置信息的部分：64 个元素。
# 这类模型缓存的根本不是各个头，上面的公式对它们不成立。
# 这是[第 03 课](03_the_2_86x_mistake.ipynb)的内容。

# %% [markdown] key="break_it" lang="en"
# ## Break it
#
# Size a pool of 8 GiB for Qwen3-0.6B with the naive `head_dim` of 64, and promise the tokens that it gives.
# Then take one line out of a config: `num_key_value_heads`.
# Say what each change does before you run the cell.
# %% [markdown] key="break_it" lang="zh" src="0db55721"
# ## 弄坏它
#
# 用 64 这个简单估算的 `head_dim`，为 Qwen3-0.6B 规划 8 GiB 的块池，并按算出的 token 数对外承诺。
# 再从一份配置里删掉一行：`num_key_value_heads`。
# 运行之前，先说出这两处改动各有什么后果。

# %% key="break_it_code"
pool = 8 * 2**30
naive = CacheSpec.from_config({**find_model("Qwen3-0.6B").config, "head_dim": 64})
true = CacheSpec.from_config("Qwen3-0.6B")
promised = naive.max_tokens(pool)
print(t("promised", n=promised, size=exact_bytes(true.bytes_for(promised))))

for name in ("Llama-3.1-8B", "Qwen3-8B"):
    config = find_model(name).config
    whole = CacheSpec.from_config(config).bytes_for(1)
    del config["num_key_value_heads"]
    print(f"{name:<13} {whole:,} -> {CacheSpec.from_config(config).bytes_for(1):,} B")
print(CacheSpec.from_config(config).explain(t("lang")))

# %% [markdown] key="break_it_read" lang="en"
# The promise needs twice the pool: the server starts, runs well while it is half empty, and fails under load.
#
# Without `num_key_value_heads` both classes fall back to 32 KV heads, and a token costs 4 times as much.
# No error says so, because the config is valid: it describes an MHA model.
# `explain` is how you notice: 32 KV heads, and `num_key_value_heads` is no longer among the fields read from the config.
# %% [markdown] key="break_it_read" lang="zh" src="177dbd47"
# 承诺的 token 需要两倍的块池：服务能启动，半空时一切正常，负载一高就失败。
#
# 没有 `num_key_value_heads`，两个配置类都会退回 32 个 KV 头，每个 token 的开销变成 4 倍。
# 不会有任何报错，因为这份配置合法：它描述的是一个 MHA 模型。
# 要发现这一点，就看 `explain`：KV 头是 32 个，而 `num_key_value_heads` 已不在“取自配置”的字段里。

# %% [markdown] key="dtype" lang="en"
# ## The cache has its own dtype
#
# $s$ is the dtype of the cache, not that of the weights.
# fp8 with one scale a tensor halves bf16 exactly.
# fp8 or int8 with one float32 scale for each token and head pays 4 bytes more for every 128 bytes of elements.
# %% [markdown] key="dtype" lang="zh" src="e2732032"
# ## 缓存有自己的数据类型
#
# $s$ 取决于缓存的数据类型，与权重的数据类型无关。
# 整个张量共用一个缩放因子（scale）的 fp8，正好是 bf16 的一半。
# 每个 token、每个头各带一个 float32 缩放因子的 fp8 或 int8，每 128 字节要多付 4 字节。

# %% key="dtype_code"
for kv_dtype in ("fp32", "bf16", "fp8", "fp8_scaled", "int8"):
    one = CacheSpec.from_config("Llama-3.1-8B", kv_dtype=kv_dtype)
    print(f"{kv_dtype:<10} {one.bytes_for(1):>8,} B   {one.bytes_for(1) / spec.bytes_for(1):.3f} x bf16")

# %% [markdown] key="seventy" lang="en"
# ## From how many tokens is the cache 70% of the memory?
#
# "The KV cache is 70%+ of memory usage", says one of those notes, and then budgets 4,096 tokens at the price of Llama-3.1-8B, 0.54 GB in 8.5 GB: 6.3%.
# Both can be right, for different loads.
# Take Llama-3.1-8B, weights and cache only.
# %% [markdown] key="seventy" lang="zh" src="1998df6b"
# ## 多少 token 时，缓存占到 70%？
#
# 有一份笔记说“KV 缓存占显存的 70% 以上”，可它自己的预算里，按 Llama-3.1-8B 的价格缓存 4,096 个 token，8.5 GB 中只占 0.54 GB，即 6.3%。
# 负载不同，两个说法可以都对。
# 以 Llama-3.1-8B 为例，只看权重和缓存。

# %% key="predict_seventy"
predict("seventy_percent", ...)

# %% key="seventy_code"
from math import ceil

from minikv.plan import weight_bytes

weights = weight_bytes("Llama-3.1-8B").total
alone = spec.bytes_for(4096)
print(f"{alone / 1e9:.2f} GB / 8.5 GB: {alone / 8.5e9:.1%}")
print(t("share_alone", n=4096, share=alone / (weights + alone)))
enough = ceil(weights * 7 / 3 / spec.bytes_for(1))  # kv / (weights + kv) = 0.7, kv = weights * 7 / 3
print(t("share_reached", n=enough, size=exact_bytes(spec.bytes_for(enough))))
for context in (1024, 4096, 32_768, 131_072):
    print(t("sequences_of", n=context, count=ceil(enough / context)))
pool = plan_memory("Llama-3.1-8B", gpu="H200").kv_bytes
print(f"H200: {pool / (weights + pool):.0%}")

# %% [markdown] key="seventy_read" lang="en"
# One sequence never gets there, since the model has 131,072 positions.
# A server does: a few hundred short chats, or three full contexts; with its pool full, an H200 stands at the last line.
# So a note on one user at 4,096 tokens should say 3%, and a note on a full server 70% or more.
# %% [markdown] key="seventy_read" lang="zh" src="fc28a109"
# 单条序列永远到不了，因为模型只有 131,072 个位置。
# 服务器可以：几百个短对话，或者三条满长度的上下文；H200 的块池全部用满时，占比就是最后一行。
# 所以，讲单个用户、4,096 个 token 的笔记应当写 3%，讲满载服务器的才能写 70% 以上。

# %% [markdown] key="check_yourself" lang="en"
# ## Check yourself
#
# Answer each question aloud or in three sentences.
# `explain(key, reveal=True)` shows a model answer and the points to compare with.
# %% [markdown] key="check_yourself" lang="zh" src="1cf211e9"
# ## 自我检查
#
# 每道题都说出来，或者写三句话。
# `explain(key, reveal=True)` 会给出参考回答和对照要点。

# %% key="explain_why_two"
explain("why_two")

# %% key="explain_no_hidden_size"
explain("no_hidden_size")

# %% key="explain_seven_b"
explain("seven_b_at_4k")

# %% [markdown] key="exercise" lang="en"
# The first exercise is right here: replace `...` with the formula, run the cell.
# `k_dim` and `v_dim` are the $D$ of K and the $D$ of V, which are equal in most models; `itemsize` is $s$.
# This function is the first part of *your engine*, a small inference engine in which fifteen functions are exercises. Once yours passes, its source is kept, and [lesson 11c](11c_your_engine.ipynb) runs the engine with it.
# Two more are in the exercise notebook: `head_dim` in its three spellings, and the bytes of a block.
# %% [markdown] key="exercise" lang="zh" src="e52a07de"
# 第一道练习就在这里：把 `...` 换成公式，运行单元格。
# `k_dim` 和 `v_dim` 分别是 K 和 V 的 $D$，多数模型里两者相等；`itemsize` 就是 $s$。
# 这个函数是“你的引擎”的第一个部件。“你的引擎”是一个小推理引擎，其中十五个函数是练习题。你的函数通过之后，源代码会保存下来，[第 11c 课](11c_your_engine.ipynb)会用它来运行引擎。
# 另外两道在练习 notebook 里：`head_dim` 的三种写法，以及一个块的字节数。

# %% key="exercise_code"
def token_bytes(num_layers, num_kv_heads, k_dim, v_dim, itemsize):
    return ...


check("02.1", token_bytes)

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | Symptom | What decides | Command |
# |---|---|---|
# | Off by 2% to 10% | Units: MB is $10^6$ bytes, MiB is $2^{20}$; GB and GiB differ by 7.4% | `exact_bytes(n)` |
# | Off by a factor such as 2, 4, 7 or 8 | K *and* V; KV heads, not attention heads; `head_dim`; bytes, not bits | `print(CacheSpec.from_config(config).explain())` |
# %% [markdown] key="stuck" lang="zh" src="f7ddccc8"
# ## 卡住了怎么办
#
# | 现象 | 判断依据 | 命令 |
# |---|---|---|
# | 相差 2% 到 10% | 单位：MB 是 $10^6$ 字节，MiB 是 $2^{20}$ 字节；GB 和 GiB 差 7.4% | `exact_bytes(n)` |
# | 相差 2、4、7、8 这样的整数倍 | K **和** V；是 KV 头，不是注意力头；`head_dim`；是字节，不是位 | `print(CacheSpec.from_config(config).explain("zh"))` |

# %% key="stuck_code"
print(f"{spec.bytes_for(4096) / 1e6:.1f} MB = {exact_bytes(spec.bytes_for(4096))}")
print(CacheSpec.from_config("Qwen3-0.6B").explain(t("lang")).splitlines()[1])

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You can now price a token for every model in which each layer keeps K and V of each token.
# [Lesson 02b](02b_layers_that_differ.ipynb) takes the layers that do not: windows, states of a fixed size, and layers whose heads are split over several GPUs.
# It needs from here: the formula, and the habit of asking what is cached before multiplying.
# %% [markdown] key="next" lang="zh" src="6dc010d8"
# ## 下一课
#
# 只要每一层都保存每个 token 的 K 和 V，你现在就能给一个 token 定价。
# [第 02b 课](02b_layers_that_differ.ipynb)讲不这样做的层：滑动窗口层、状态大小固定的层，以及头分在几块 GPU 上的层。
# 它需要本课的两样东西：公式，以及“先问缓存了什么，再做乘法”的习惯。
