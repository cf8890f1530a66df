# %% [meta]
# number = "02"
# slug = "how_many_bytes"
# needs = ["00"]
# rooms = ["plan.spec", "nano.kv_cache"]
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
# You want to know how many requests fit on your GPU.
# **How many bytes does one token take in the KV cache?**
#
# The PagedAttention paper has a formula, `2 * hidden_size * layers * bytes`.
# For Qwen2.5-7B with weights in int8, a user once filled it in as 2 × 3,584 × 28 × 8 (3,584 is its `hidden_size`, 28 its layers, and 8 is for int8). That makes 1,605,632 bytes a token, or 4.59 GiB for a request of 3,072 tokens.
# On a real GPU a request took a small part of that.
#
# Here is the budget of one GPU. The bar is its memory. Move a slider or choose another model, and read the sentence below.
# %% [markdown] key="question" lang="zh" src="de2f67be"
# ## 问题
#
# 你想知道自己的 GPU 能同时放下多少个请求。
# **一个 token 在 KV 缓存里占多少字节？**
#
# PagedAttention 论文给出的公式是 `2 * hidden_size * layers * 字节数`。
# 对权重为 int8 的 Qwen2.5-7B，有用户代入 2 × 3,584 × 28 × 8（3,584 是 `hidden_size`，28 是层数，8 来自 int8），得到每个 token 1,605,632 字节，3,072 个 token 就是 4.59 GiB。
# 可在真实的 GPU 上，一个请求实际只用了其中一小部分。
#
# 下面是一块 GPU 的预算，横条就是显存。拖动滑块，或者换一个模型，看横条下面那句话怎么变。

# %% key="widget_code" lang="en"
from minikv.course.widgets import BudgetWidget

widget = BudgetWidget(lang="en", model="Llama-3.1-8B", gpu="H200", context=4096, batch=64)
show(widget, text=widget.text())

# %% key="widget_code" lang="zh"
from minikv.course.widgets import BudgetWidget

widget = BudgetWidget(lang="zh", model="Llama-3.1-8B", gpu="H200", context=4096, batch=64)
show(widget, text=widget.text())

# %% [markdown] key="able" lang="en"
# After this lesson you can
#
# - **price** a token from four numbers of a config, and say which field gives each of them;
# - **find** the wrong factor in an estimate that is 2, 4, 7 or 28 times off;
# - **say** how many sequences fit, and from how many tokens on the cache outweighs the weights.
#
# You need [lesson 00](00_start_here.ipynb): tokens, blocks, and the difference between GB and GiB.
# %% [markdown] key="able" lang="zh" src="9b1345ce"
# 学完本课，你能
#
# - 用配置里的四个数**算出**一个 token 的开销，并说出每个数取自哪个字段；
# - 估算相差 2、4、7、28 倍时，**找出**错的是哪个因子；
# - **说出**能放下多少条序列，以及从多少个 token 起缓存比权重还大。
#
# 你需要[第 00 课](00_start_here.ipynb)的内容：token、块，以及 GB 与 GiB 的区别。

# %% [markdown] key="widget" lang="en"
# ## Try it: fill a GPU
#
# For each card we take the memory that torch reported in a public log, for example 139.80 GiB for an H200. Yours may differ a little.
# An engine may use the share that *utilization* says: with 0.9, that is 125.82 of those 139.80 GiB.
# Weights, activations, workspace and CUDA context come out of that share, and the rest is the pool of the cache. [Lesson 08](08_allocate_kv_cache.ipynb) explains the first four.
# %% [markdown] key="widget" lang="zh" src="5c366ec5"
# ## 动手试：装满一块 GPU
#
# 每种显卡的显存取公开日志里 torch 可见的数值，例如 H200 是 139.80 GiB；你的机器上可能略有不同。
# 引擎可以使用的份额由“利用率”决定，例如取 0.9 时，H200 的 139.80 GiB 里可以用 125.82 GiB。
# 权重、激活、工作空间和 CUDA 上下文都从这个份额里出，剩下的才是缓存的块池；前四项[第 08 课](08_allocate_kv_cache.ipynb)会讲。

# %% [markdown] key="widget_tour" lang="en"
# 1. **Fill the H200.** Move *Batch* to the right, with 4,096 tokens each. The cache grows into the pool, and the sentence changes when it no longer fits.
#    The largest batch that fits stands beside "Sequences of 4,096 tokens that fit".
# 2. **Change the KV cache dtype to fp8.** The weights stay as they are, and the number of sequences doubles.
# 3. **Choose Llama-3.1-70B.** With tp 1 (one GPU) it's refused before the first token, because the weights alone (131.42 GiB) are larger than the share. Now set tp to 2, so that two GPUs share weights and heads.
# 4. **Choose Llama-2-7B and a context above 4,096.** There is plenty of memory, but it's refused all the same, because the model has no more positions.
#
# *Reset* brings you back to the start. The cell below computes the results of all four steps, the third one for tp 1 and for tp 2, so you can check what you read.
# The widget takes your own model too: `BudgetWidget(model="mine", configs={"mine": config})`, where `config` is anything that `from_config` takes.
# %% [markdown] key="widget_tour" lang="zh" src="04c0cfcd"
# 1. **把 H200 填满。** 每条序列 4,096 个 token，把“batch 大小”往右拖。缓存会逐渐占满块池，放不下时，那句话就变了。
#    最多能放多少条，看“可容纳 4,096 个 token 的序列数”。
# 2. **把 KV 缓存数据类型改成 fp8。** 权重不变，序列数翻倍。
# 3. **选 Llama-3.1-70B。** tp 为 1（一块 GPU）时，第一个 token 还没来就被拒绝，因为光是权重（131.42 GiB）就超过了可用的份额。再把 tp 设为 2，让两块 GPU 分担权重和头。
# 4. **选 Llama-2-7B，上下文设到 4,096 以上。** 显存绰绰有余，仍然被拒绝，因为模型没有更多的位置。
#
# 点“重置”回到起点。下面的单元格会算出这几步的结果（第 3 步按 tp 为 1 和 2 各算一次），方便你核对。
# 你自己的模型也可以放进来：`BudgetWidget(lang="zh", model="mine", configs={"mine": config})`，凡是 `from_config` 能接收的，都可以作为 `config`。

# %% key="tour"
from minikv.course import Table
from minikv.errors import MiniKVError
from minikv.plan import plan_memory

stops = {"Llama-3.1-8B": {}, "Llama-3.1-8B, fp8": {"kv_dtype": "fp8"}}
stops |= {f"Llama-3.1-70B, tp {tp}": {"tp": tp} for tp in (1, 2)}
stops["Llama-2-7B, context 8,192"] = {"context": 8192}
rows = []
for stop, options in stops.items():
    try:
        plan = plan_memory(stop.split(",")[0], gpu="H200", **options)
        rows.append([stop, str(plan.max_batch(4096))])
    except MiniKVError as error:
        rows.append([stop, t(error)])
Table(["H200", "max_batch(4096)"], rows)

# %% [markdown] key="predict_first" lang="en"
# ## Predict
#
# Work this one out on paper before you read on. You need one fact: in every layer, each KV head keeps two vectors of the token, a key and a value.
# If the config has no `head_dim`, such a vector has `hidden_size` / attention heads elements.
# Run the cell as it is to see the question. Then put your number in place of `...` and run it again.
# %% [markdown] key="predict_first" lang="zh" src="9040cd9d"
# ## 先猜一猜
#
# 继续往下读之前，先在纸上算一算。只需要知道一点：在每一层里，每个 KV 头都为这个 token 保存两个向量，即 key 和 value。
# 配置里没有 `head_dim` 时，一个向量有 `hidden_size` / 注意力头数 个元素。
# 直接运行单元格会显示题目；把 `...` 换成你的数字，再运行一次。

# %% key="predict_one_token"
predict("one_token", ...)

# %% [markdown] key="formula" lang="en"
# ## The formula
#
# In every layer, attention needs two vectors of each earlier token: its key and its value.
# The KV cache keeps both, once for each KV head.
# A token also has a query, but that one is used only in the step that computes this token, where it is compared with all the keys so far.
# No later token asks for it, so the cache doesn't keep it.
#
# That gives a product of five factors:
#
# $$\text{bytes per token} = 2 \cdot L \cdot H_{kv} \cdot D \cdot s$$
#
# | symbol | what it counts | unit | where it stands | value here (Llama-3.1-8B) |
# |---|---|---|---|---|
# | $2$ | one K and one V | vectors a head | in no config | 2 |
# | $L$ | layers that cache | layers | `num_hidden_layers` | 32 |
# | $H_{kv}$ | KV heads | heads a layer | `num_key_value_heads` | 8 |
# | $D$ | elements of one vector | elements | `head_dim`, or `hidden_size / num_attention_heads` | 4096 / 32 = 128 |
# | $s$ | bytes of one element | bytes | the dtype of the *cache* | bf16: 2 |
#
# $$2 \cdot 32 \cdot 8 \cdot 128 \cdot 2 = 131{,}072 \text{ bytes}$$
#
# `hidden_size` appears only as a way to get $D$, and often it's the wrong way, as "The head_dim trap" shows.
# Here is that token, drawn from the model's config:
# %% [markdown] key="formula" lang="zh" src="0a24b279"
# ## 公式
#
# 在每一层，注意力都需要前面每个 token 的两个向量：key 和 value。
# KV 缓存（KV cache）把两者都存下来，每个 KV 头一份。
# token 还有第三个向量 query，但它只在计算这个 token 的那一步里用到，用来与此前所有的 key 比较。
# 后面的 token 都用不到它，所以不缓存。
#
# 于是得到五个因子的乘积：
#
# $$\text{每 token 字节数} = 2 \cdot L \cdot H_{kv} \cdot D \cdot s$$
#
# | 符号 | 含义 | 单位 | 出处 | 本例取值（Llama-3.1-8B） |
# |---|---|---|---|---|
# | $2$ | 一个 K，一个 V | 向量 / 头 | 配置里没有 | 2 |
# | $L$ | 有缓存的层数 | 层 | `num_hidden_layers` | 32 |
# | $H_{kv}$ | KV 头数 | 头 / 层 | `num_key_value_heads` | 8 |
# | $D$ | 一个向量的元素数，即头维度（`head_dim`） | 元素 | `head_dim`，或 `hidden_size / num_attention_heads` | 4096 / 32 = 128 |
# | $s$ | 一个元素的字节数 | 字节 | **缓存**的数据类型 | bf16：2 |
#
# $$2 \cdot 32 \cdot 8 \cdot 128 \cdot 2 = 131{,}072 \text{ 字节}$$
#
# `hidden_size` 只是求 $D$ 的一条途径，而且常常行不通，“head_dim 陷阱”一节会讲到。
# 下图根据模型的配置，画出这个 token：

# %% key="token_picture" lang="en"
from minikv.course.diagrams import attention_heads, token_boxes

show(token_boxes({"Llama-3.1-8B": "Llama-3.1-8B"}, lang="en"))

# %% key="token_picture" lang="zh"
from minikv.course.diagrams import attention_heads, token_boxes

show(token_boxes({"Llama-3.1-8B": "Llama-3.1-8B"}, lang="zh"))

# %% [markdown] key="by_hand" lang="en"
# Each line below the picture is a factor of the formula. Here is the product by hand, and the same from the package:
# %% [markdown] key="by_hand" lang="zh" src="2dd39a4b"
# 图下的每一行对应公式里的一个因子。同样的乘积，手算一遍，再让程序包算一遍：

# %% key="one_call" lang="en"
from minikv.plan import CacheSpec

by_hand = 2 * 32 * 8 * 128 * 2
spec = CacheSpec.from_config("Llama-3.1-8B")
Table(["by hand, B", "bytes_for(1)"], [[by_hand, spec.bytes_for(1)]])

# %% key="one_call" lang="zh"
from minikv.plan import CacheSpec

by_hand = 2 * 32 * 8 * 128 * 2
spec = CacheSpec.from_config("Llama-3.1-8B")
Table(["手算，B", "bytes_for(1)"], [[by_hand, spec.bytes_for(1)]])

# %% [markdown] key="explain_spec" lang="en"
# `from_config` takes a name of the catalogue, a `config.json`, a model folder, a dict or a Hugging Face config object.
# `shown` lists the layers that it found. `keeps all` means that a layer keeps every token (layers with a window don't, as [lesson 02b](02b_layers_that_differ.ipynb) shows). If you also want each field that it read from the config, call `print(spec.explain("en"))`.
# %% [markdown] key="explain_spec" lang="zh" src="3a81b987"
# `from_config` 可以接收目录里的模型名、`config.json`、模型文件夹、dict，也可以接收 Hugging Face 的配置对象。
# 想知道数字从哪里来，可以用 `shown` 列出它识别出的各层，其中“全部保留”表示这一层保留所有 token（滑动窗口层不是这样，见[第 02b 课](02b_layers_that_differ.ipynb)）；如果还想看它读了配置里的哪些字段，就运行 `print(spec.explain("zh"))`。

# %% key="explain_spec_code" lang="en"
spec.shown("en")

# %% key="explain_spec_code" lang="zh"
spec.shown("zh")

# %% [markdown] key="token_block_sequence" lang="en"
# ### A token, a block, a sequence
#
# Engines hand out memory in blocks, usually of 16 tokens, and one block spans all layers, K and V.
# A sequence of $n$ tokens costs $n$ times one token, as long as every layer keeps all of its tokens.
# For example, 4,096 tokens of Llama-3.1-8B take 4,096 × 131,072 B = 512 MiB.
# %% [markdown] key="token_block_sequence" lang="zh" src="893ff38b"
# ### 一个 token、一个块、一条序列
#
# 推理引擎按块（block）分配显存，通常 16 个 token 一块，一块包含所有层的 K 和 V。
# 只要每一层都保留全部 token，$n$ 个 token 的序列就占单个 token 的 $n$ 倍。
# 例如 Llama-3.1-8B 的 4,096 个 token，占 4,096 × 131,072 B = 512 MiB。

# %% key="token_block_sequence_code" lang="en"
from minikv.units import GIB, exact_bytes, format_bytes, gib

rows = [[f"{n:,} tokens", exact_bytes(spec.bytes_for(n))] for n in (1, 4096, 131_072)]
rows.append(["a block of 16 tokens", exact_bytes(spec.block_bytes(16))])
rows.append(["32 sequences of 4,096 tokens", exact_bytes(spec.bytes_for(4096, batch=32))])
most = f"max_tokens(1 GiB) = {spec.max_tokens(GIB):,}"
Table(["what is cached", "size"], rows, right=["size"], lines=[most])

# %% key="token_block_sequence_code" lang="zh"
from minikv.units import GIB, exact_bytes, format_bytes, gib

rows = [[f"{n:,} 个 token", exact_bytes(spec.bytes_for(n))] for n in (1, 4096, 131_072)]
rows.append(["一个块（16 个 token）", exact_bytes(spec.block_bytes(16))])
rows.append(["32 条序列，每条 4,096 个 token", exact_bytes(spec.bytes_for(4096, batch=32))])
most = f"max_tokens(1 GiB) = {spec.max_tokens(GIB):,}"
Table(["缓存的内容", "大小"], rows, right=["大小"], lines=[most])

# %% [markdown] key="inverse" lang="en"
# `max_tokens` is the exact inverse of `bytes_for`: the most tokens that fit, and never one too many.
#
# ### The answer to the question
#
# Now we can check the estimate from the top of the lesson.
# %% [markdown] key="inverse" lang="zh" src="4f035781"
# `max_tokens` 是 `bytes_for` 的精确反函数：返回放得下的最大 token 数，一个也不多算。
#
# ### 回答开头的问题
#
# 现在可以核对本课开头的那个估算了。

# %% key="answer" lang="en"
qwen = CacheSpec.from_config("Qwen2.5-7B-Instruct")
asked = 2 * 3584 * 28 * 8  # 2 * hidden_size * layers * "int8 = 8"
rows = []
for n in (1, 3072):
    true = qwen.bytes_for(n)
    rows.append([n, exact_bytes(n * asked), exact_bytes(true), n * asked / true])
request = f"3,072: {true / 1e9:.3f} GB = {gib(true):.3f} GiB"
head = ["tokens", "as it was filled in", "computed", "times"]
Table(head, rows, right=head[1:3], lines=[request])

# %% key="answer" lang="zh"
qwen = CacheSpec.from_config("Qwen2.5-7B-Instruct")
asked = 2 * 3584 * 28 * 8  # 2 * hidden_size * layers * "int8 = 8"
rows = []
for n in (1, 3072):
    true = qwen.bytes_for(n)
    rows.append([n, exact_bytes(n * asked), exact_bytes(true), n * asked / true])
request = f"3,072: {true / 1e9:.3f} GB = {gib(true):.3f} GiB"
head = ["token 数", "原来的代入", "正确的值", "倍数"]
Table(head, rows, right=head[1:3], lines=[request])

# %% key="answer_factors" lang="en"
rows = [["hidden_size / (kv_heads * head_dim)", "3584 / (4 * 128)", 3584 / (4 * 128)]]
rows.append(["8 / itemsize", f"8 / {qwen.layers[0].itemsize}", 8 / qwen.layers[0].itemsize])
Table(["factor", "with the numbers", "times"], rows)

# %% key="answer_factors" lang="zh"
rows = [["hidden_size / (kv_heads * head_dim)", "3584 / (4 * 128)", 3584 / (4 * 128)]]
rows.append(["8 / itemsize", f"8 / {qwen.layers[0].itemsize}", 8 / qwen.layers[0].itemsize])
Table(["因子", "代入数字", "倍数"], rows)

# %% [markdown] key="answer_read" lang="en"
# Two factors are wrong, and together they make the result 28 times too large.
#
# - **7 times too much comes from `hidden_size`.** It stands for 28 attention heads of 128 elements, but Qwen2.5-7B has only 4 KV heads.
#   The formula comes from section 3 of the [PagedAttention paper](https://arxiv.org/abs/2309.06180). Its example is OPT-13B, which has as many KV heads as attention heads, so there it holds.
# - **4 times too much comes from bits in place of bytes.** int8 is 8 *bits*, which is 1 byte.
#   Besides, GPTQ, the method that made this checkpoint, stores the *weights* in int8. The KV cache of this checkpoint stays in 16 bits, so $s = 2$.
#
# So a request of 3,072 tokens takes 0.176 GB, or 0.164 GiB.
# %% [markdown] key="answer_read" lang="zh" src="5de0bede"
# 错了两个因子，合起来是正确值的 28 倍。
#
# - **7 倍来自 `hidden_size`。** 它等于 28 个注意力头乘以 128，而 Qwen2.5-7B 只有 4 个 KV 头。
#   这个公式出自 [PagedAttention 论文](https://arxiv.org/abs/2309.06180)第 3 节，文中以 OPT-13B 为例。那个模型的 KV 头和注意力头一样多，所以公式成立。
# - **4 倍来自把位当成字节。** int8 是 8 **位**，也就是 1 字节。
#   何况这个检查点用 GPTQ 量化成 int8 的只是**权重**，KV 缓存仍是 16 位，所以 $s = 2$。
#
# 也就是说，一个 3,072 token 的请求只占 0.176 GB，即 0.164 GiB。

# %% [markdown] key="gqa" lang="en"
# ## Fewer KV heads: MHA, GQA, MQA
#
# Why does a model have fewer KV heads than attention heads? Because that makes its cache smaller.
# Multi-head attention (MHA) has one KV head for each attention head.
# Grouped-query attention (GQA) lets a group of attention heads share one KV head, and multi-query attention (MQA) lets all of them share one.
# In the formula only $H_{kv}$ changes.
#
# The third model below is made up: it is Llama-3.1-8B as it would be with MQA.
# %% [markdown] key="gqa" lang="zh" src="d54d6cb5"
# ## 减少 KV 头：MHA、GQA、MQA
#
# KV 头为什么比注意力头少？因为这样缓存就小。
# 多头注意力（MHA）给每个注意力头都配一个 KV 头；分组查询注意力（GQA）让一组注意力头共用一个；多查询注意力（MQA）则让所有注意力头共用一个。
# 对公式来说，变的只有 $H_{kv}$。
#
# 下面的第三个模型是虚构的，即采用 MQA 的 Llama-3.1-8B。

# %% key="predict_gqa"
predict("gqa_saves", ...)

# %% key="gqa_heads" lang="en"
from minikv.plan import find_model

mqa = {**find_model("Llama-3.1-8B").config, "num_key_value_heads": 1}
models = {name: name for name in ("Llama-2-7B", "Llama-3.1-8B")} | {"Llama-3.1-8B, MQA": mqa}
show(attention_heads(models, "en"))

# %% key="gqa_heads" lang="zh"
from minikv.plan import find_model

mqa = {**find_model("Llama-3.1-8B").config, "num_key_value_heads": 1}
models = {name: name for name in ("Llama-2-7B", "Llama-3.1-8B")} | {"Llama-3.1-8B, MQA": mqa}
show(attention_heads(models, "zh"))

# %% [markdown] key="gqa_layers" lang="en"
# That is one layer. Here are all layers of a token, with a fourth model beside them:
# %% [markdown] key="gqa_layers" lang="zh" src="40a54ab7"
# 以上只是一层。再看一个 token 的所有层，并加上第四个模型：

# %% key="gqa_code" lang="en"
models["Llama-2-70B"] = "Llama-2-70B"
rows = []
for name, model in models.items():
    one = CacheSpec.from_config(model)
    size = format_bytes(one.bytes_for(4096))
    rows.append([name, len(one.layers), one.layers[0].kv_heads, one.bytes_for(1), size])
head = ["model", "layers", "kv_heads", "B / token", "4,096 tokens"]
Table(head, rows, right=head[4:])

# %% key="gqa_code" lang="zh"
models["Llama-2-70B"] = "Llama-2-70B"
rows = []
for name, model in models.items():
    one = CacheSpec.from_config(model)
    size = format_bytes(one.bytes_for(4096))
    rows.append([name, len(one.layers), one.layers[0].kv_heads, one.bytes_for(1), size])
head = ["模型", "层数", "kv_heads", "B / token", "4,096 个 token"]
Table(head, rows, right=head[4:])

# %% key="gqa_boxes" lang="en"
show(token_boxes({name: models[name] for name in ("Llama-2-7B", "Llama-3.1-8B", "Llama-2-70B")}, lang="en"))

# %% key="gqa_boxes" lang="zh"
show(token_boxes({name: models[name] for name in ("Llama-2-7B", "Llama-3.1-8B", "Llama-2-70B")}, lang="zh"))

# %% [markdown] key="gqa_read" lang="en"
# Compare the areas. A token of Llama-2-**70B** (80 layers, GQA) costs 327,680 B, which is less than the 524,288 B of Llama-2-**7B** (32 layers, MHA).
# The number of parameters says nothing about the cache.
#
# A sequence multiplies that by its tokens. So each model is a straight line, and because both axes are logarithmic, the lines are parallel:
# %% [markdown] key="gqa_read" lang="zh" src="f9da7636"
# 比一比面积：Llama-2-**70B**（80 层，GQA）的一个 token 占 327,680 B，比 Llama-2-**7B**（32 层，MHA）的 524,288 B 还少。
# 可见参数量说明不了缓存的大小。
#
# 一条序列的开销等于它再乘以 token 数，所以每个模型都是一条直线。两个坐标轴都是对数刻度，模型之间又只差固定的倍数，所以画出来是几条平行线：

# %% key="gqa_chart" lang="en"
from minikv.course.charts import lines

specs = {name: CacheSpec.from_config(model) for name, model in models.items()}
lengths = [2**k for k in range(10, 18)]
series = {name: {n: one.bytes_for(n) / GIB for n in lengths} for name, one in specs.items()}
show(lines(series, x="tokens in the sequence", y="GiB", log="xy"))

# %% key="gqa_chart" lang="zh"
from minikv.course.charts import lines

specs = {name: CacheSpec.from_config(model) for name, model in models.items()}
lengths = [2**k for k in range(10, 18)]
series = {name: {n: one.bytes_for(n) / GIB for n in lengths} for name, one in specs.items()}
show(lines(series, x="序列的 token 数", y="GiB", log="xy"))

# %% [markdown] key="head_dim" lang="en"
# ## The head_dim trap
#
# Many calculators take `hidden_size // num_attention_heads` for $D$.
# But the authors of a model choose `head_dim` freely, and nothing ties it to that quotient.
# The table lists every model of the catalogue for which the quotient is wrong. Models that cache latents are left to [lesson 03](03_the_2_86x_mistake.ipynb).
# %% [markdown] key="head_dim" lang="zh" src="44dada39"
# ## head_dim 陷阱
#
# 不少计算器直接用 `hidden_size // num_attention_heads` 当作 $D$。
# 但 `head_dim` 由模型作者自行选定，与这个商没有必然关系。
# 下表列出目录里所有“商是错的”的模型，缓存潜在向量的模型留到[第 03 课](03_the_2_86x_mistake.ipynb)。

# %% key="head_dim_code" lang="en"
from minikv.plan import model_names

rows, checked = [], 0
for name in model_names():
    config = find_model(name).config
    config = config.get("text_config", config)
    if "num_attention_heads" not in config or "kv_lora_rank" in config:
        continue
    checked += 1
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    true = next(layer.k_dim for layer in CacheSpec.from_config(name).layers if layer.k_dim)
    if true * heads != hidden:
        rows.append([name, f"{hidden} / {heads} = {hidden / heads:.1f}", true, true * heads / hidden])
head = ["model", "hidden_size / heads", "head_dim", "times"]
Table(head, rows, right=head[1:2], lines=[f"{len(rows)} of {checked} models"])

# %% key="head_dim_code" lang="zh"
from minikv.plan import model_names

rows, checked = [], 0
for name in model_names():
    config = find_model(name).config
    config = config.get("text_config", config)
    if "num_attention_heads" not in config or "kv_lora_rank" in config:
        continue
    checked += 1
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    true = next(layer.k_dim for layer in CacheSpec.from_config(name).layers if layer.k_dim)
    if true * heads != hidden:
        rows.append([name, f"{hidden} / {heads} = {hidden / heads:.1f}", true, true * heads / hidden])
head = ["模型", "hidden_size / 头数", "head_dim", "倍数"]
Table(head, rows, right=head[1:2], lines=[f"{checked} 个模型里有 {len(rows)} 个"])

# %% [markdown] key="head_dim_read" lang="en"
# The last column divides the true number by the naive one, and the error goes both ways.
# Qwen3-0.6B costs twice the naive number, Gemma-3-27B about three quarters of it.
# For Qwen3.5-27B the quotient is not even a whole number.
#
# In configs you find `head_dim` in three spellings: a number (Qwen3), `null` (Mixtral, as transformers saves it today), or nothing at all (Llama; `-` in the next table).
# `null` and nothing mean the same: divide.
# %% [markdown] key="head_dim_read" lang="zh" src="efde02eb"
# 最后一列是真实值除以简单估算的值，可以看到误差有两个方向。
# 例如 Qwen3-0.6B 的真实开销是简单估算的两倍，Gemma-3-27B 只有约四分之三，而 Qwen3.5-27B 的商甚至不是整数。
#
# 配置里的 `head_dim` 有三种写法，即写数字（Qwen3），写 `null`（现在 transformers 保存的 Mixtral），或者干脆不写（Llama，下表中的 `-`）。
# `null` 与不写的含义相同，都是用除法。

# %% key="three_ways"
mixtral, glm = find_model("Mixtral-8x7B").config, find_model("GLM-5").config
rows = []
for shown, extra in {"-": {}, "null": {"head_dim": None}, "128": {"head_dim": 128}}.items():
    rows.append([shown, CacheSpec.from_config({**mixtral, **extra}).bytes_for(1)])
last = {key: glm[key] for key in ("head_dim", "qk_rope_head_dim", "kv_lora_rank")}
Table(["head_dim", "B / token"], rows, title="Mixtral-8x7B", lines=[f"GLM-5: {last}"])

# %% [markdown] key="head_dim_mla" lang="en"
# The last line shows a fourth meaning.
# In GLM-5, `head_dim` is only the part of a head that carries positions, 64 elements. (The config class of DeepSeek-V3 uses the word in the same way.)
# These models cache no heads at all, so the formula above doesn't hold for them.
# [Lesson 03](03_the_2_86x_mistake.ipynb) is about them.
# %% [markdown] key="head_dim_mla" lang="zh" src="d078b4fe"
# 最后一行是第四种含义。
# 在 GLM-5 里（DeepSeek-V3 的配置类也一样），`head_dim` 只是一个头中携带位置信息的那部分，即 64 个元素。
# 这类模型缓存的根本不是各个头，所以上面的公式对它们不成立，[第 03 课](03_the_2_86x_mistake.ipynb)专门讲。

# %% [markdown] key="break_it" lang="en"
# ## Break it
#
# First we size a pool of 8 GiB for Qwen3-0.6B with the naive `head_dim` of 64, and promise the tokens that this gives.
# Then we take one line out of a config: `num_key_value_heads`.
# Say what each change does before you run the cells.
# %% [markdown] key="break_it" lang="zh" src="68cc1ad3"
# ## 弄坏它
#
# 先用 64 这个简单估算的 `head_dim`，为 Qwen3-0.6B 规划 8 GiB 的块池，并按算出的 token 数对外承诺。
# 再从一份配置里删掉一行：`num_key_value_heads`。
# 运行之前，先说说这两处改动各有什么后果。

# %% key="break_it_code" lang="en"
naive = CacheSpec.from_config({**find_model("Qwen3-0.6B").config, "head_dim": 64})
true = CacheSpec.from_config("Qwen3-0.6B")
promised = naive.max_tokens(8 * GIB)
needed = exact_bytes(true.bytes_for(promised))
Table(["tokens promised for 8 GiB", "what they need"], [[promised, needed]], right=["what they need"])

# %% key="break_it_code" lang="zh"
naive = CacheSpec.from_config({**find_model("Qwen3-0.6B").config, "head_dim": 64})
true = CacheSpec.from_config("Qwen3-0.6B")
promised = naive.max_tokens(8 * GIB)
needed = exact_bytes(true.bytes_for(promised))
Table(["8 GiB 承诺的 token 数", "实际要占"], [[promised, needed]], right=["实际要占"])

# %% key="break_it_heads" lang="en"
rows = []
for name in ("Llama-3.1-8B", "Qwen3-8B"):
    config = find_model(name).config
    whole = CacheSpec.from_config(config).bytes_for(1)
    del config["num_key_value_heads"]
    rows.append([name, whole, CacheSpec.from_config(config).bytes_for(1)])
Table(["B / token", "whole config", "one line less"], rows)

# %% key="break_it_heads" lang="zh"
rows = []
for name in ("Llama-3.1-8B", "Qwen3-8B"):
    config = find_model(name).config
    whole = CacheSpec.from_config(config).bytes_for(1)
    del config["num_key_value_heads"]
    rows.append([name, whole, CacheSpec.from_config(config).bytes_for(1)])
Table(["B / token", "完整的配置", "少一行"], rows)

# %% key="break_it_spec" lang="en"
print(CacheSpec.from_config(config).explain("en"))

# %% key="break_it_spec" lang="zh"
print(CacheSpec.from_config(config).explain("zh"))

# %% [markdown] key="break_it_read" lang="en"
# The promise needs 16 GiB, twice the pool. Such a server starts, runs well while it caches at most half of the promised tokens, and fails under load.
#
# Without `num_key_value_heads`, both classes fall back to 32 KV heads, and a token costs 4 times as much.
# You get no error, because the config is valid: it describes an MHA model.
# `explain` is how you notice. It shows 32 KV heads, and its last line says that `num_key_value_heads` was left out of the config.
# %% [markdown] key="break_it_read" lang="zh" src="4275f281"
# 承诺的 token 需要 16 GiB，是块池的两倍。这样的服务能启动，缓存的 token 不到承诺的一半时一切正常，负载一高就失败。
#
# 没有 `num_key_value_heads`，两个配置类都会退回 32 个 KV 头，每个 token 的开销变成 4 倍。
# 这时不会有任何报错，因为配置是合法的，只是描述的变成了一个 MHA 模型。
# 要发现问题，就看 `explain` 的输出，那里的 KV 头是 32 个，最后一行还说明配置没有写 `num_key_value_heads`。

# %% [markdown] key="dtype" lang="en"
# ## The cache has its own dtype
#
# $s$ is the dtype of the cache, not the dtype of the weights.
# A number in 8 bits needs a **scale**, the factor that turns it back into the value that was stored.
# fp8 with one scale for a whole tensor (`fp8` in the table) takes half of bf16.
# fp8 or int8 with a float32 scale for each token and head (`fp8_scaled` and `int8`) pays 4 bytes more for every 128 bytes of elements: 2 × 32 × 8 × (128 + 4) = 67,584 B a token.
# %% [markdown] key="dtype" lang="zh" src="abd7269e"
# ## 缓存有自己的数据类型
#
# $s$ 取决于缓存的数据类型，与权重的数据类型无关。
# 8 位的数要配一个**缩放因子**（scale），乘上它才能还原成原来的值。整个张量共用一个缩放因子的 fp8（表中的 `fp8`），只占 bf16 的一半。
# 如果每个 token、每个头各带一个 float32 缩放因子（表中的 `fp8_scaled` 和 `int8`），每 128 字节就要多付 4 字节：2 × 32 × 8 ×（128 + 4）= 67,584 B。

# %% key="dtype_code"
rows = []
for kv_dtype in ("fp32", "bf16", "fp8", "fp8_scaled", "int8"):
    one = CacheSpec.from_config("Llama-3.1-8B", kv_dtype=kv_dtype)
    rows.append([kv_dtype, one.bytes_for(1), f"{one.bytes_for(1) / spec.bytes_for(1):.3f} x bf16"])
Table(["kv_dtype", "B / token", ""], rows)

# %% [markdown] key="seventy" lang="en"
# ## From how many tokens is the cache 70 % of the memory?
#
# You can read that the KV cache is "70%+ of memory usage", and also that 4,096 tokens of Llama-3.1-8B are 0.54 GB in 8.5 GB (with the weights in 8 bits), which is 6.3 %.
# Both can be right, because they describe different loads.
# Let's take Llama-3.1-8B with weights in 16 bits, and look only at weights and cache.
# %% [markdown] key="seventy" lang="zh" src="94b49f1e"
# ## 多少 token 时，缓存占到 70%？
#
# 有的资料说“KV 缓存占显存的 70% 以上”，也有资料说，Llama-3.1-8B 的 4,096 个 token 在 8.5 GB（权重为 8 位）里占 0.54 GB，也就是 6.3%。
# 两种说法可以都对，因为说的是不同的负载。
# 以 16 位权重的 Llama-3.1-8B 为例，只看权重和缓存：

# %% key="predict_seventy"
predict("seventy_percent", ...)

# %% key="seventy_code" lang="en"
from math import ceil

from minikv.plan import weight_bytes

weights, alone = weight_bytes("Llama-3.1-8B").total, spec.bytes_for(4096)
enough = ceil(weights * 7 / 3 / spec.bytes_for(1))  # kv / (weights + kv) = 0.7, kv = weights * 7 / 3
pool = plan_memory("Llama-3.1-8B", gpu="H200").kv_bytes
rows = [[f"{alone / 1e9:.2f} GB / 8.5 GB", f"{alone / 8.5e9:.1%}"]]
rows.append(["one sequence of 4,096 tokens", f"{alone / (weights + alone):.1%}"])
rows.append([f"{enough:,} tokens = {exact_bytes(spec.bytes_for(enough))}", "70%"])
rows.append(["the full pool of an H200", f"{pool / (weights + pool):.0%}"])
Table(["what is cached", "share"], rows, right=["share"])

# %% key="seventy_code" lang="zh"
from math import ceil

from minikv.plan import weight_bytes

weights, alone = weight_bytes("Llama-3.1-8B").total, spec.bytes_for(4096)
enough = ceil(weights * 7 / 3 / spec.bytes_for(1))  # kv / (weights + kv) = 0.7, kv = weights * 7 / 3
pool = plan_memory("Llama-3.1-8B", gpu="H200").kv_bytes
rows = [[f"{alone / 1e9:.2f} GB / 8.5 GB", f"{alone / 8.5e9:.1%}"]]
rows.append(["一条 4,096 个 token 的序列", f"{alone / (weights + alone):.1%}"])
rows.append([f"{enough:,} 个 token = {exact_bytes(spec.bytes_for(enough))}", "70%"])
rows.append(["H200 用满的块池", f"{pool / (weights + pool):.0%}"])
Table(["缓存的内容", "占比"], rows, right=["占比"])

# %% key="seventy_sequences" lang="en"
contexts = (1024, 4096, 32_768, 131_072)
Table(["tokens a sequence", "sequences for 70%"], [[n, ceil(enough / n)] for n in contexts])

# %% key="seventy_sequences" lang="zh"
contexts = (1024, 4096, 32_768, 131_072)
Table(["每条序列的 token 数", "到 70% 要多少条"], [[n, ceil(enough / n)] for n in contexts])

# %% key="seventy_chart" lang="en"
counts = [2**k for k in range(10, 21)]
share = {n: 100 * spec.bytes_for(n) / (weights + spec.bytes_for(n)) for n in counts}
marks = {"4,096": 4096, f"{enough:,}": enough}
show(lines({"Llama-3.1-8B": share}, x="cached tokens", y="share of the cache, %", log="x", marks=marks, levels={"70%": 70}))

# %% key="seventy_chart" lang="zh"
counts = [2**k for k in range(10, 21)]
share = {n: 100 * spec.bytes_for(n) / (weights + spec.bytes_for(n)) for n in counts}
marks = {"4,096": 4096, f"{enough:,}": enough}
show(lines({"Llama-3.1-8B": share}, x="缓存的 token 数", y="缓存的占比，%", log="x", marks=marks, levels={"70%": 70}))

# %% [markdown] key="seventy_read" lang="en"
# With weights in 16 bits, the same 4,096 tokens are only half of those 6.3 %. The 70 % come from one equation. The cache $n \cdot t$ is 70 % of cache and weights together when
#
# $$\frac{n \cdot t}{W + n \cdot t} = 0.7 \quad\Longleftrightarrow\quad n = \frac{7\,W}{3\,t}$$
#
# | symbol | what it is | value here |
# |---|---|---|
# | $W$ | bytes of the weights | 16,060,522,496 |
# | $t$ | bytes of a token in the cache | 131,072 |
# | $n$ | cached tokens, rounded up | 285,909 |
#
# $$7 \cdot 16{,}060{,}522{,}496 \;/\; (3 \cdot 131{,}072) = 285{,}908.15$$
#
# One sequence never gets there, since the model has only 131,072 positions.
# A server does, with 280 chats of 1,024 tokens or with three full contexts. With its pool full, an H200 stands at 88 %.
# So a note on one user with 4,096 tokens should say 3 %, and a note on a full server 70 % or more.
# %% [markdown] key="seventy_read" lang="zh" src="b9f8bc8e"
# 权重为 16 位时，同样的 4,096 个 token 占比只有 6.3% 的一半。70% 则来自一个等式，缓存 $n \cdot t$ 占权重与缓存之和的 70%，也就是
#
# $$\frac{n \cdot t}{W + n \cdot t} = 0.7 \quad\Longleftrightarrow\quad n = \frac{7\,W}{3\,t}$$
#
# | 符号 | 含义 | 本例取值 |
# |---|---|---|
# | $W$ | 权重的字节数 | 16,060,522,496 |
# | $t$ | 缓存里一个 token 的字节数 | 131,072 |
# | $n$ | 缓存的 token 数，向上取整 | 285,909 |
#
# $$7 \cdot 16{,}060{,}522{,}496 \;/\; (3 \cdot 131{,}072) = 285{,}908.15$$
#
# 单条序列永远到不了，因为模型只有 131,072 个位置。
# 服务器却可以：例如 280 个 1,024 token 的对话，或者三条满长度的上下文。H200 的块池全部用满时，占比是 88%。
# 所以，讲单个用户、4,096 个 token 的笔记应当写 3%，讲满载服务器的才能写 70% 以上。

# %% [markdown] key="recap" lang="en"
# ## Recap
#
# - A token takes 2 × layers × KV heads × head_dim × bytes: 131,072 B for Llama-3.1-8B, 57,344 B for Qwen2.5-7B.
# - With `hidden_size` the result for Qwen2.5-7B was 28 times too large: 7 times for 28 attention heads in place of 4 KV heads, and 4 times for bits in place of bytes.
# - Only the KV heads count, so a token of Llama-2-70B (327,680 B) costs less than one of Llama-2-7B (524,288 B).
# - In more than a third of the models that we checked, `head_dim` is not `hidden_size / heads`.
# - One sequence of 4,096 tokens is 3.2 % of weights and cache together; from 285,909 cached tokens on, the cache is 70 %.
# %% [markdown] key="recap" lang="zh" src="a3a6aa10"
# ## 本课小结
#
# - 一个 token 占 2 × 层数 × KV 头数 × head_dim × 字节数：Llama-3.1-8B 是 131,072 B，Qwen2.5-7B 是 57,344 B。
# - 用 `hidden_size` 给 Qwen2.5-7B 估算，结果大了 28 倍，其中 7 倍是把 4 个 KV 头算成了 28 个注意力头，4 倍是把位当成了字节。
# - 起作用的只有 KV 头数，所以 Llama-2-70B 的一个 token（327,680 B）比 Llama-2-7B 的（524,288 B）还便宜。
# - 检查过的模型里，三分之一以上的 `head_dim` 不等于 `hidden_size / 头数`。
# - 一条 4,096 个 token 的序列只占权重与缓存之和的 3.2%；缓存达到 285,909 个 token 时，占比才到 70%。

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
# ## Exercises
#
# The first exercise is right here: replace `...` with the formula and run the cell.
# `k_dim` and `v_dim` are the $D$ of K and the $D$ of V, which are equal in most models; `itemsize` is $s$.
#
# This function is the first part of *your engine*, a small inference engine in which fifteen functions are exercises. Once yours passes, its source is kept, and [lesson 11c](11c_your_engine.ipynb) runs the engine with it.
#
# The exercise notebook has it too, and three more: `head_dim` in its three spellings (02.2), the bytes of a block (02.6), and a widget of your own over `CacheSpec` (02.7). (02.3 to 02.5 have moved to [lesson 02b](02b_layers_that_differ.ipynb).)
# %% [markdown] key="exercise" lang="zh" src="ea227768"
# ## 练习
#
# 第一道练习就在这里，请把 `...` 换成公式，运行单元格。
# `k_dim` 和 `v_dim` 分别是 K 和 V 的 $D$，多数模型里两者相等；`itemsize` 就是 $s$。
#
# 这个函数是“你的引擎”的第一个部件。“你的引擎”是一个小推理引擎，其中十五个函数是练习题。你的函数通过之后，源代码会保存下来，[第 11c 课](11c_your_engine.ipynb)会用它来运行引擎。
#
# 练习 notebook 里也有这一道，另外还有三道：`head_dim` 的三种写法（02.2）、一个块的字节数（02.6），以及用 `CacheSpec` 做一个你自己的组件（02.7）。（原来的 02.3 到 02.5 移到了[第 02b 课](02b_layers_that_differ.ipynb)。）

# %% key="exercise_code"
def token_bytes(num_layers, num_kv_heads, k_dim, v_dim, itemsize):
    return ...


check("02.1", token_bytes)

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | what decides | command |
# |---|---|---|
# | off by 2 % to 10 % | units: MB is $10^6$ bytes, MiB is $2^{20}$; GB and GiB differ by 7.4 % | `exact_bytes(n)` |
# | off by a factor such as 2, 4, 7 or 8 | K *and* V; KV heads, not attention heads; `head_dim`; bytes, not bits | `print(CacheSpec.from_config(config).explain())` |
# %% [markdown] key="stuck" lang="zh" src="29c1f930"
# ## 卡住了怎么办
#
# | 现象 | 判断依据 | 命令 |
# |---|---|---|
# | 相差 2% 到 10% | 单位：MB 是 $10^6$ 字节，MiB 是 $2^{20}$ 字节；GB 和 GiB 差 7.4% | `exact_bytes(n)` |
# | 相差 2、4、7、8 这样的整数倍 | K **和** V；是 KV 头，不是注意力头；`head_dim`；是字节，不是位 | `print(CacheSpec.from_config(config).explain("zh"))` |

# %% key="stuck_code" lang="en"
size, qwen3 = spec.bytes_for(4096), CacheSpec.from_config("Qwen3-0.6B")
Table(["MB", "MiB"], [[f"{size / 1e6:.1f}", exact_bytes(size)]], lines=[qwen3.explain("en").splitlines()[1]])

# %% key="stuck_code" lang="zh"
size, qwen3 = spec.bytes_for(4096), CacheSpec.from_config("Qwen3-0.6B")
Table(["MB", "MiB"], [[f"{size / 1e6:.1f}", exact_bytes(size)]], lines=[qwen3.explain("zh").splitlines()[1]])

# %% [markdown] key="next" lang="en"
# ## In the wild
#
# In August 2025 a user of vLLM served Qwen2.5-7B-Instruct-GPTQ-Int8, filled in the formula as at the top of this lesson and asked: "which part is wrong? please correct me." ([vLLM issue 22291](https://github.com/vllm-project/vllm/issues/22291)).
# The post's own measurement, 0.16 GB a request, came closer, but it divides memory by requests per *second*, so part of the agreement is luck.
#
# A KV cache calculator took the quotient for `head_dim`: "this will get wrong results when head_size not equal to it like Qwen3-4B" ([LMCache issue 688](https://github.com/LMCache/LMCache/issues/688)).
# "The head_dim trap" lists the models for which it did.
#
# ## What comes next
#
# You can now say what a token costs in every model whose layers all keep K and V of each token.
# [Lesson 02b](02b_layers_that_differ.ipynb) takes the layers that don't: windows, states of a fixed size, and layers whose heads are split over several GPUs.
# From here it needs the formula, and the habit of asking what is cached before you multiply.
# %% [markdown] key="next" lang="zh" src="f68d2405"
# ## 实战现场
#
# 2025 年 8 月，一位 vLLM 用户部署 Qwen2.5-7B-Instruct-GPTQ-Int8，按本课开头那样代入公式，然后问：“which part is wrong? please correct me.”（哪一步错了？请指正。见 [vLLM issue 22291](https://github.com/vllm-project/vllm/issues/22291)。）
# 帖子里实测推算的每请求 0.16 GB 更接近，不过那是用显存除以**每秒**的请求数，所以吻合有一部分是运气。
#
# 有个 KV 缓存计算器用这个商当作 `head_dim`：“this will get wrong results when head_size not equal to it like Qwen3-4B”，意思是像 Qwen3-4B 这样两者不等的模型就会算错（[LMCache issue 688](https://github.com/LMCache/LMCache/issues/688)）。
# 会因此算错的模型，“head_dim 陷阱”一节都列出来了。
#
# ## 下一课
#
# 只要每一层都保存每个 token 的 K 和 V，你现在就能算出一个 token 占多少字节。
# [第 02b 课](02b_layers_that_differ.ipynb)讲另外几种层，即滑动窗口层、状态大小固定的层，以及头分在几块 GPU 上的层。
# 它用到本课的公式，以及“先问缓存了什么，再做乘法”的习惯。
