# %% [meta]
# number = "03"
# slug = "the_2_86x_mistake"
# needs = ["02"]
# rooms = ["plan.spec", "plan.estimate"]
# [title]
# en = "Why did the estimate miss by 2.86x?"
# zh = "估算为什么差了 2.86 倍？"
# [t4]
# en = "Everything here is arithmetic and one tiny model: a T4 shows the same numbers, and in one cell also allocated and reserved memory."
# zh = "全部是算术，外加一个极小的模型：T4 上看到的数字相同，另有一个单元格会给出已分配和已保留的显存。"
# [paper]
# en = "03.1, 03.2, 03.5"
# zh = "03.1、03.2、03.5"

# %% [markdown] key="question" lang="en"
# ## The question
#
# **How much memory does one token of DeepSeek-V3 take, and why do four tools give four answers?**
#
# The usual formula says 28,672 bytes in each layer.
# One library caches 81,920, another 1,152, and a field of the config suggests 32,768.
# Here is what one layer really makes of a token:
# %% [markdown] key="question" lang="zh" src="597eef9f"
# ## 问题
#
# **DeepSeek-V3 的一个 token 占多少内存？为什么四个工具给出四个答案？**
#
# 常用公式算出每层 28,672 字节。
# 一个库缓存 81,920 字节，另一个只缓存 1,152 字节，而配置里的一个字段会让人算出 32,768。
# 先看一层到底怎样处理一个 token：

# %% key="mla_picture" lang="en"
from minikv.course import Table
from minikv.course.diagrams import attention_heads, mla_flow

show(mla_flow("DeepSeek-V3", "en"))

# %% key="mla_picture" lang="zh"
from minikv.course import Table
from minikv.course.diagrams import attention_heads, mla_flow

show(mla_flow("DeepSeek-V3", "zh"))

# %% [markdown] key="abilities" lang="en"
# The layer squeezes the token into two small vectors, drawn in the middle, and unpacks them into K and V for 128 heads, drawn on the right.
# A library caches one side or the other, and that's why the answers differ by a factor of 71.
#
# After this lesson you can
#
# - **compute** what such a layer caches, small or unpacked, from six fields of a config;
# - **check** on a small model which of the two your library really holds;
# - **choose** a batch that leaves room for what lives only during a step.
#
# You need the formula of [lesson 02](02_how_many_bytes.ipynb).
# %% [markdown] key="abilities" lang="zh" src="1070d52c"
# 这一层先把 token 压缩成中间的两个小向量，再展开成右边 128 个头的 K 和 V。
# 有的库缓存中间的部分，有的库缓存右边的部分，两者相差 71 倍，所以答案才不一样。
#
# 学完本课，你能
#
# - 用配置里的六个字段**算出**这样的一层缓存多少字节：只存小向量，或者展开之后再存；
# - 用一个小模型**验证**你的库实际存的是哪一种；
# - **选定** batch 大小，给一步之内才存在的张量留出显存。
#
# 你需要[第 02 课](02_how_many_bytes.ipynb)的公式。

# %% [markdown] key="mla" lang="en"
# ## What an MLA layer makes of a token
#
# DeepSeek-V3 uses **multi-head latent attention** (MLA), which is what the picture shows.
# One matrix, `kv_a_proj_with_mqa`, squeezes the hidden state of 7,168 elements into a *latent* of 512 and a *rope key* of 64.
# All 128 heads share both.
# A second matrix, `kv_b_proj`, unpacks the latent into K and V for each head.
#
# Why is there a second, small vector? Because of position.
# An engine can read the latents directly if it multiplies `kv_b_proj` into the query. It does that once, and the product serves all cached tokens.
# But RoPE turns each key by an angle that depends on its position. If K from the latent were turned too, the engine would need another product for each cached token.
# So the part that is turned is kept apart, and the latent stays free of position.
# %% [markdown] key="mla" lang="zh" src="3fb81220"
# ## MLA 层怎样处理一个 token
#
# DeepSeek-V3 采用**多头潜在注意力**（MLA），也就是上图所画的结构。
# 第一个矩阵 `kv_a_proj_with_mqa` 把 7,168 个元素的隐藏状态压缩成 512 个元素的潜在向量（latent），外加 64 个元素的 rope key。
# 128 个头共用这两个向量。
# 第二个矩阵 `kv_b_proj` 再把潜在向量展开成每个头的 K 和 V。
#
# 为什么要多留一个小向量？因为位置。
# 引擎如果想直接读潜在向量，就要把 `kv_b_proj` 预先乘进 query，一次乘好，对缓存里的所有 token 都适用。
# 可是 RoPE 按位置旋转 key，每个 token 的角度都不同；这个旋转夹在 query 和 `kv_b_proj` 之间，一次乘好的结果就不能对所有 token 通用。
# 于是需要旋转的部分单独存放，潜在向量本身就不带位置信息。

# %% key="predict_expanded"
predict("expanded_token", ...)

# %% key="predict_latent"
predict("latent_token", ...)

# %% [markdown] key="formulas" lang="en"
# ## Two formulas for two caches
#
# A library that caches what stands on the right of the picture needs the first formula. A library that caches the middle needs the second.
# Both give the bytes of one token in one layer:
# %% [markdown] key="formulas" lang="zh" src="63812819"
# ## 两种缓存，两个公式
#
# 缓存图右边那部分的库，要用第一个公式；缓存中间那部分的库，要用第二个。
# 两者都是一个 token 在一层占用的字节数：

# %% [markdown] key="formulas_math" lang="en"
# $$\text{expanded} = H \,\big( (n + r) + v \big)\, b \qquad\qquad \text{latent} = (c + r)\, b$$

# %% [markdown] key="formulas_math" lang="zh" src="99a1c821"
# $$\text{展开} = H \,\big( (n + r) + v \big)\, b \qquad\qquad \text{潜在向量} = (c + r)\, b$$

# %% [markdown] key="symbols" lang="en"
# | symbol | config field | unit | value here (DeepSeek-V3) |
# |---|---|---|---|
# | $H$ | `num_attention_heads` | heads | 128 |
# | $n$ | `qk_nope_head_dim`: K without position | elements a head | 128 |
# | $r$ | `qk_rope_head_dim`: the rope key | elements | 64 |
# | $v$ | `v_head_dim` | elements a head | 128 |
# | $c$ | `kv_lora_rank`: the latent | elements | 512 |
# | $b$ | dtype (bf16: 2) | bytes an element | 2 |
#
# $$128 \cdot ((128 + 64) + 128) \cdot 2 = 81{,}920 \qquad\qquad (512 + 64) \cdot 2 = 1{,}152$$
#
# `CacheSpec` knows both: `layout="hf-expanded"` is what transformers cached up to 5.14.1, and `layout="hf"` is what it caches since 5.15.0.
# %% [markdown] key="symbols" lang="zh" src="fc890aad"
# | 符号 | 配置字段 | 单位 | 本例取值（DeepSeek-V3） |
# |---|---|---|---|
# | $H$ | `num_attention_heads` | 头 | 128 |
# | $n$ | `qk_nope_head_dim`：K 中不带位置的部分 | 元素/头 | 128 |
# | $r$ | `qk_rope_head_dim`：rope key | 元素 | 64 |
# | $v$ | `v_head_dim` | 元素/头 | 128 |
# | $c$ | `kv_lora_rank`：潜在向量 | 元素 | 512 |
# | $b$ | 数据类型（bf16 为 2） | 字节/元素 | 2 |
#
# $$128 \cdot ((128 + 64) + 128) \cdot 2 = 81{,}920 \qquad\qquad (512 + 64) \cdot 2 = 1{,}152$$
#
# 两种布局 `CacheSpec` 都能算：`layout="hf-expanded"` 对应 transformers 5.14.1 及更早版本，`layout="hf"` 对应 5.15.0 及以后。

# %% key="explain_spec" lang="en"
from minikv.plan import CacheSpec, estimate_kv_cache_gb, find_model, max_batch_size, rebuilt_bytes

CacheSpec.from_config("DeepSeek-V3", layout="hf-expanded").shown("en")

# %% key="explain_spec" lang="zh"
from minikv.plan import CacheSpec, estimate_kv_cache_gb, find_model, max_batch_size, rebuilt_bytes

CacheSpec.from_config("DeepSeek-V3", layout="hf-expanded").shown("zh")

# %% key="explain_latent" lang="en"
CacheSpec.from_config("DeepSeek-V3", layout="hf").shown("en")

# %% key="explain_latent" lang="zh"
CacheSpec.from_config("DeepSeek-V3", layout="hf").shown("zh")

# %% [markdown] key="heads_words" lang="en"
# How does the latent compare with the other ways to cache a token?
# With multi-head attention (MHA) each query head has a K and a V of its own.
# With grouped queries (GQA) several query heads read the same K and V, and with multi-query attention (MQA) all of them do.
# The latent serves 128 query heads, but at 1,152 B it lies between the 512 B of MQA and the 4,096 B of GQA with 8 heads:
# %% [markdown] key="heads_words" lang="zh" src="89c82eda"
# 与另外三种缓存方式相比，潜在向量处于什么位置？
# 多头注意力（MHA）里，每个 query 头都有自己的 K 和 V；分组查询注意力（GQA）让几个 query 头读同一份；多查询注意力（MQA）则让所有 query 头共用一份。
# 潜在向量要供 128 个 query 头使用，却只有 1,152 B，介于 MQA 的 512 B 和 8 个 KV 头的 GQA 的 4,096 B 之间：

# %% key="heads_picture" lang="en"
llama = find_model("Llama-2-7B").config
models = {
    "Llama-2-7B": "Llama-2-7B",
    "Llama-3.1-8B": "Llama-3.1-8B",
    "Llama-2-7B with 1 KV head": {**llama, "num_key_value_heads": 1},
    "DeepSeek-V3": "DeepSeek-V3",
}
show(attention_heads(models, "en"))

# %% key="heads_picture" lang="zh"
llama = find_model("Llama-2-7B").config
models = {
    "Llama-2-7B": "Llama-2-7B",
    "Llama-3.1-8B": "Llama-3.1-8B",
    "只留 1 个 KV 头的 Llama-2-7B": {**llama, "num_key_value_heads": 1},
    "DeepSeek-V3": "DeepSeek-V3",
}
show(attention_heads(models, "zh"))

# %% [markdown] key="script" lang="en"
# ## The usual formula
#
# Now back to the first of the four answers. Many scripts begin an estimate with this line:
#
# ```python
# head_dim = config.hidden_size // config.num_attention_heads
# ```
#
# Then they multiply: one K and one V, for each head, 2 bytes an element (bf16).
# All numbers come from DeepSeek-V3's `config.json`.
# %% [markdown] key="script" lang="zh" src="69d89655"
# ## 常用公式
#
# 再回到四个答案里的第一个。许多脚本的估算都从这一行开始：
#
# ```python
# head_dim = config.hidden_size // config.num_attention_heads
# ```
#
# 然后相乘，即一份 K 加一份 V，乘以头数，再乘以每个元素 2 字节（bf16）。
# 数字都取自 DeepSeek-V3 的 `config.json`。

# %% [markdown] key="ask_naive" lang="en"
# Before you run these two steps on DeepSeek-V3: what do they say about a model with another number of heads?
# %% [markdown] key="ask_naive" lang="zh" src="07f93bcf"
# 先不在 DeepSeek-V3 上运行，请猜一猜：换一个头数不同的模型，这样会算出多少？

# %% key="predict_naive"
predict("naive_heads", ...)

# %% key="naive" lang="en"
config = find_model("DeepSeek-V3").config
heads, hidden = config["num_attention_heads"], config["hidden_size"]
head_dim = hidden // heads
naive = 2 * heads * head_dim * 2
Table(["hidden", "heads", "head_dim", "2 * heads * head_dim * 2"], [[hidden, heads, head_dim, naive]])

# %% key="naive" lang="zh"
config = find_model("DeepSeek-V3").config
heads, hidden = config["num_attention_heads"], config["hidden_size"]
head_dim = hidden // heads
naive = 2 * heads * head_dim * 2
Table(["隐藏维度", "头数", "head_dim", "2 * 头数 * head_dim * 2"], [[hidden, heads, head_dim, naive]])

# %% [markdown] key="cancel" lang="en"
# The number of heads doesn't matter at all, because it cancels.
# With $H$ heads, hidden size $d$ (elements) and $b$ bytes an element:
# %% [markdown] key="cancel" lang="zh" src="15456deb"
# 原来与头数完全无关，因为头数被约掉了。
# 设头数为 $H$，隐藏维度为 $d$（元素数），每个元素 $b$ 字节：

# %% [markdown] key="cancel_formula"
# $$2 \cdot H \cdot \frac{d}{H} \cdot b \;=\; 2 \, d \, b$$

# %% [markdown] key="cancel_means" lang="en"
# | symbol | what it is | value here |
# |---|---|---|
# | $H$ | attention heads | 128 |
# | $d$ | hidden size | 7,168 |
# | $b$ | bytes an element | 2 |
#
# $$2 \cdot 128 \cdot \frac{7{,}168}{128} \cdot 2 = 2 \cdot 7{,}168 \cdot 2 = 28{,}672$$
#
# So the formula knows only the hidden size.
# It holds only where every head has a K and a V of its own and all heads together are as wide as the hidden state. In MLA they are not: 128 heads of 192 make 24,576.
# %% [markdown] key="cancel_means" lang="zh" src="aa809d88"
# | 符号 | 含义 | 本例取值 |
# |---|---|---|
# | $H$ | 注意力头数 | 128 |
# | $d$ | 隐藏维度 | 7,168 |
# | $b$ | 每个元素的字节数 | 2 |
#
# $$2 \cdot 128 \cdot \frac{7{,}168}{128} \cdot 2 = 2 \cdot 7{,}168 \cdot 2 = 28{,}672$$
#
# 也就是说，这个公式只看隐藏维度。
# 只有当每个头都有自己的 K 和 V，而且所有头拼起来恰好与隐藏状态一样宽时，它才成立。MLA 就不是这样：128 个头，每个 192，合计 24,576。

# %% key="naive_any_heads" lang="en"
dims = {any_heads: hidden // any_heads for any_heads in (32, 64, 128, 256)}
rows = [[any_heads, dim, 2 * any_heads * dim * 2] for any_heads, dim in dims.items()]
Table(["heads", "head_dim", "bytes a token"], rows)

# %% key="naive_any_heads" lang="zh"
dims = {any_heads: hidden // any_heads for any_heads in (32, 64, 128, 256)}
rows = [[any_heads, dim, 2 * any_heads * dim * 2] for any_heads, dim in dims.items()]
Table(["头数", "head_dim", "每个 token 的字节"], rows)

# %% [markdown] key="four" lang="en"
# ## Four answers for one config
#
# There is a fourth answer, and you can easily get it by accident.
# The class `DeepseekV3Config` has a field `head_dim`, so `getattr(config, "head_dim", ...)` finds something.
# But what it finds is the width of the rope part, 64.
# %% [markdown] key="four" lang="zh" src="f5545a56"
# ## 同一份配置，四个答案
#
# 还有第四个答案，而且很容易在无意中得到。
# `DeepseekV3Config` 这个类有 `head_dim` 字段，所以 `getattr(config, "head_dim", ...)` 能取到值。
# 可它取到的只是 rope 部分的宽度，64。

# %% key="four_answers" lang="en"
from transformers import DeepseekV3Config

from minikv.course.charts import bars

rope_dim = DeepseekV3Config().head_dim
both = [CacheSpec.from_config("DeepSeek-V3", layout=layout).layers[0] for layout in ("hf-expanded", "hf")]
expanded, latent = (layer.token_bytes for layer in both)
answers = {
    "hidden_size // heads, the usual line": naive,
    f"config.head_dim = {rope_dim}, only the rope part": 2 * heads * rope_dim * 2,
    "K and V of every head: transformers <= 5.14.1": expanded,
    "latent and rope key: transformers >= 5.15.0, vLLM": latent,
}
title = "bytes of a token in a layer (logarithmic axis)"
show(bars(list(answers), {"DeepSeek-V3, bf16": list(answers.values())}, x=title, unit="B", log=True, height=300))
Table(["what is counted", "bytes a token and layer"], answers.items())

# %% key="four_answers" lang="zh"
from transformers import DeepseekV3Config

from minikv.course.charts import bars

rope_dim = DeepseekV3Config().head_dim
both = [CacheSpec.from_config("DeepSeek-V3", layout=layout).layers[0] for layout in ("hf-expanded", "hf")]
expanded, latent = (layer.token_bytes for layer in both)
answers = {
    "hidden_size // 头数，常见的写法": naive,
    f"config.head_dim = {rope_dim}，其实只是 rope 部分": 2 * heads * rope_dim * 2,
    "每个头的 K 和 V：transformers <= 5.14.1": expanded,
    "潜在向量和 rope key：transformers >= 5.15.0、vLLM": latent,
}
title = "一个 token 在一层的字节数（对数坐标）"
show(bars(list(answers), {"DeepSeek-V3, bf16": list(answers.values())}, x=title, unit="B", log=True, height=300))
Table(["算的是什么", "每个 token 每层的字节"], answers.items())

# %% key="four_ratios" lang="en"
with_indexer = CacheSpec.from_config("DeepSeek-V3.2", layout="hf").layers[0].token_bytes
rows = [
    ["too small for the expanded cache", naive, expanded, f"{expanded / naive:.2f}x"],
    ["too big for the latent cache", naive, latent, f"{naive / latent:.1f}x"],
    ["too big for DeepSeek-V3.2, with its indexer key", naive, with_indexer, f"{naive / with_indexer:.1f}x"],
    ["expanded, where a latent is cached: too big", expanded, latent, f"{expanded / latent:.1f}x"],
]
Table(["the estimate is", "estimate", "cached", "off by"], rows, right=["off by"])

# %% key="four_ratios" lang="zh"
with_indexer = CacheSpec.from_config("DeepSeek-V3.2", layout="hf").layers[0].token_bytes
rows = [
    ["对展开的缓存偏小", naive, expanded, f"{expanded / naive:.2f}x"],
    ["对潜在向量缓存偏大", naive, latent, f"{naive / latent:.1f}x"],
    ["对 DeepSeek-V3.2 偏大，计入 indexer 的 key", naive, with_indexer, f"{naive / with_indexer:.1f}x"],
    ["按展开计算，实际缓存潜在向量：偏大", expanded, latent, f"{expanded / latent:.1f}x"],
]
Table(["估算", "估算值", "缓存", "相差"], rows, right=["相差"])

# %% [markdown] key="ratios_read" lang="en"
# So the same formula is 2.86x too small and 24.9x too big for the same model, because two libraries cache different things.
# The third row is a newer model that caches one more key for each token.
# %% [markdown] key="ratios_read" lang="zh" src="14394f96"
# 可见，同一个公式用在同一个模型上，对一个库只算出实际值的 1/2.86，对另一个库却算成实际值的 24.9 倍，因为两个库缓存的东西不同。
# 第三行是一个较新的模型，它为每个 token 多缓存一个 key。

# %% [markdown] key="dsa" lang="en"
# ### DeepSeek-V3.2: sparse attention and its indexer
#
# DeepSeek-V3.2 and GLM-5 use **DeepSeek Sparse Attention** (DSA): a small indexer scores all earlier tokens, and attention reads only the 2,048 with the highest scores (`index_topk`). At 32,768 tokens that is one in 16.
# For that, the indexer caches one more key for every token. It has 128 elements, which take 256 B in bf16, so a layer keeps 1,152 + 256 = 1,408 B a token. The usual formula is 20.4x too big for that, instead of 24.9x.
# So DSA makes a step read less, but it makes the cache larger.
# %% [markdown] key="dsa" lang="zh" src="79783e2d"
# ### DeepSeek-V3.2：稀疏注意力和它的 indexer
#
# DeepSeek-V3.2 和 GLM-5 采用 **DeepSeek 稀疏注意力**（DeepSeek Sparse Attention，DSA）。一个很小的 indexer 先给前面所有 token 打分，注意力只读其中得分最高的 2,048 个（`index_topk`）。例如 32,768 个 token 时，每 16 个只读 1 个。
# 为此，indexer 要为每个 token 另外缓存一个 128 个元素的 key，bf16 下是 256 B，所以每层每个 token 占 1,152 + 256 = 1,408 B，常用公式的结果也从实际值的 24.9 倍变成 20.4 倍。换句话说，DSA 让每一步读得更少，缓存却更大了。

# %% [markdown] key="family" lang="en"
# ## The rest of the family
#
# Kimi K2 has 64 heads, so for it the usual formula is off by another factor.
# The sizes include the indexer's keys where a model has them.
# %% [markdown] key="family" lang="zh" src="f81bf2b1"
# ## 同系列的其他模型
#
# Kimi K2 只有 64 个头，所以常用公式的偏差倍数也不同。
# 有 indexer 的模型，表中已计入 indexer 的 key。

# %% key="family_table" lang="en"
rows = []
for name in ("DeepSeek-V3", "Kimi-K2", "DeepSeek-V2-Lite", "GLM-5", "DeepSeek-V3.2"):
    fields = find_model(name).config
    flat = 2 * fields["num_attention_heads"] * (fields["hidden_size"] // fields["num_attention_heads"]) * 2
    old, new = (CacheSpec.from_config(name, layout=each).layers[0] for each in ("hf-expanded", "hf"))
    sizes = [flat, old.token_bytes, new.token_bytes, f"{old.token_bytes / flat:.2f}x", new.index_bytes]
    rows.append([name, fields["num_attention_heads"], *sizes])
head = ["model", "heads", "usual formula", "expanded", "latent", "expanded / usual", "indexer, included"]
Table(head, rows, title="Bytes of a token in one layer", right=["expanded / usual"])

# %% key="family_table" lang="zh"
rows = []
for name in ("DeepSeek-V3", "Kimi-K2", "DeepSeek-V2-Lite", "GLM-5", "DeepSeek-V3.2"):
    fields = find_model(name).config
    flat = 2 * fields["num_attention_heads"] * (fields["hidden_size"] // fields["num_attention_heads"]) * 2
    old, new = (CacheSpec.from_config(name, layout=each).layers[0] for each in ("hf-expanded", "hf"))
    sizes = [flat, old.token_bytes, new.token_bytes, f"{old.token_bytes / flat:.2f}x", new.index_bytes]
    rows.append([name, fields["num_attention_heads"], *sizes])
head = ["模型", "头数", "常用公式", "展开", "潜在向量", "展开 / 常用公式", "其中 indexer"]
Table(head, rows, title="一个 token 在一层的字节数", right=["展开 / 常用公式"])

# %% [markdown] key="versions" lang="en"
# ## Which library caches which
#
# | library | DeepSeek-V3 | DeepSeek-V3.2, GLM-5 |
# |---|---|---|
# | transformers up to 5.14.1 | K and V of every head | K and V of every head, and an indexer key |
# | transformers 5.15 to 5.17 | latent and rope key | as before |
# | transformers from 5.18 | latent and rope key | latent and rope key, and an indexer key |
# | vLLM | latent and rope key | latent and rope key, and an indexer key (fp8, 132 B) |
#
# We measured the last column for transformers ourselves: small models of `deepseek_v32` and `glm_moe_dsa` held expanded K and V under 5.15 and 5.17, and latents with an indexer key under 5.18 and 5.23.
#
# So 81,920 B were right up to 5.14.1.
# After an upgrade the same script errs in the other direction, although not a line of it changed.
# %% [markdown] key="versions" lang="zh" src="feed3116"
# ## 哪个库缓存哪一种
#
# | 库 | DeepSeek-V3 | DeepSeek-V3.2、GLM-5 |
# |---|---|---|
# | transformers 5.14.1 及更早 | 每个头的 K 和 V | 每个头的 K 和 V，外加 indexer 的 key |
# | transformers 5.15 至 5.17 | 潜在向量和 rope key | 同上 |
# | transformers 5.18 起 | 潜在向量和 rope key | 潜在向量和 rope key，外加 indexer 的 key |
# | vLLM | 潜在向量和 rope key | 潜在向量和 rope key，外加 indexer 的 key（fp8，132 B） |
#
# transformers 各行的最后一列是我们自己测的：`deepseek_v32` 和 `glm_moe_dsa` 的小模型，在 5.15 和 5.17 下缓存的是展开的 K 和 V，在 5.18 和 5.23 下是潜在向量加 indexer 的 key。
#
# 所以到 5.14.1 为止，81,920 B 是对的。
# 库一升级，同一个脚本就错到了另一个方向，而脚本一行也没改。

# %% [markdown] key="proof" lang="en"
# ## Proof on this machine
#
# You don't have to believe a table, because you can check your own library.
# Here is a DeepSeek-V3 in miniature: the same class with random weights, 2 layers, 4 heads, a latent of 32 and a rope key of 8.
# We run a prefill of 9 tokens and three decode steps with a batch of 3, and add up the bytes of the tensors in the cache.
# %% [markdown] key="proof" lang="zh" src="1d153368"
# ## 在这台机器上验证
#
# 表格不必全信，你可以亲自检查自己的库。
# 下面是一个微缩的 DeepSeek-V3：同一个类，随机权重，2 层，4 个头，潜在向量 32 维，rope key 8 维。
# batch 为 3，先预填充（prefill）9 个 token，再解码（decode）三步，最后把缓存里各张量的字节数加起来。

# %% key="small_model" lang="en"
import torch
from transformers import DeepseekV3ForCausalLM

small = DeepseekV3Config(
    vocab_size=64, hidden_size=64, intermediate_size=64, max_position_embeddings=128,
    num_hidden_layers=2, first_k_dense_replace=2, num_attention_heads=4, num_key_value_heads=4,
    q_lora_rank=24, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=12,
    dtype="bfloat16",
)
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = DeepseekV3ForCausalLM(small).to(device, torch.bfloat16).eval()
spec = CacheSpec.from_config(model.config)
spec.bytes_for(1)  # 2 layers * (32 + 8) elements * 2 bytes

# %% key="small_model" lang="zh"
import torch
from transformers import DeepseekV3ForCausalLM

small = DeepseekV3Config(
    vocab_size=64, hidden_size=64, intermediate_size=64, max_position_embeddings=128,
    num_hidden_layers=2, first_k_dense_replace=2, num_attention_heads=4, num_key_value_heads=4,
    q_lora_rank=24, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=12,
    dtype="bfloat16",
)
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = DeepseekV3ForCausalLM(small).to(device, torch.bfloat16).eval()
spec = CacheSpec.from_config(model.config)
spec.bytes_for(1)  # 2 层 * (32 + 8) 个元素 * 2 字节

# %% key="helpers"
@torch.no_grad()
def step(tokens, cache=None):
    return model(tokens.to(device), past_key_values=cache, use_cache=True)


def held_bytes(cache):
    return sum(tensor.nbytes for layer in cache.layers for tensor in (layer.keys, layer.values))

# %% key="held" lang="en"
out, rows = step(torch.randint(0, 64, (3, 9))), []
for tokens in (9, 10, 11, 12):
    if tokens > 9:
        out = step(out.logits[:, -1:].argmax(-1), out.past_key_values)  # feeds [3, 1]
    rows.append([tokens, held_bytes(out.past_key_values), spec.bytes_for(tokens, batch=3)])
Table(["tokens", "bytes of the tensors", "spec.bytes_for"], rows)

# %% key="held" lang="zh"
out, rows = step(torch.randint(0, 64, (3, 9))), []
for tokens in (9, 10, 11, 12):
    if tokens > 9:
        out = step(out.logits[:, -1:].argmax(-1), out.past_key_values)  # feeds [3, 1]
    rows.append([tokens, held_bytes(out.past_key_values), spec.bytes_for(tokens, batch=3)])
Table(["token 数", "张量的字节", "spec.bytes_for"], rows)

# %% [markdown] key="shapes" lang="en"
# They are equal to the byte.
# The shapes say the rest: the second dimension, where the heads would stand, is 1.
# %% [markdown] key="shapes" lang="zh" src="0c5213e2"
# 一个字节都不差。
# 形状也能说明问题：第二维本该是头数，这里却是 1。

# %% key="cached_shapes" lang="en"
layer = out.past_key_values.layers[0]
rows = [["keys", str([*layer.keys.shape])], ["values", str([*layer.values.shape])]]
Table(["tensor", "batch, 1, tokens, elements"], rows)

# %% key="cached_shapes" lang="zh"
layer = out.past_key_values.layers[0]
rows = [["keys", str([*layer.keys.shape])], ["values", str([*layer.values.shape])]]
Table(["张量", "batch、1、token 数、元素数"], rows)

# %% [markdown] key="rebuild" lang="en"
# ## The latent alone does not make decoding cheap
#
# Attention needs K and V of each head. If they are made again from the latent, what do we save?
# In transformers they *are* made again: `expand_kv` runs in every layer, in every step, over every cached token.
# %% [markdown] key="rebuild" lang="zh" src="b2bc9ac7"
# ## 只缓存潜在向量，解码并不会变便宜
#
# 注意力要用的是每个头的 K 和 V。如果它们还得由潜在向量重新生成，又省下了什么？
# 在 transformers 里确实要重新生成，每一步、每一层，`expand_kv` 都会对缓存里的全部 token 执行一遍。

# %% key="predict_rebuilt"
predict("rebuilt", ...)

# %% [markdown] key="watch" lang="en"
# We put a watcher around `expand_kv` of layer 0 and decode one more token.
# %% [markdown] key="watch" lang="zh" src="97fc6641"
# 我们在第 0 层的 `expand_kv` 外面套一层记录，再解码一个 token。

# %% key="watch_rebuild"
attention, made = model.model.layers[0].self_attn, []
original = attention.expand_kv


def watched(latent, rope_key):
    made.append(original(latent, rope_key))
    return made[-1]


attention.expand_kv = watched
out = step(out.logits[:, -1:].argmax(-1), out.past_key_values)
del attention.expand_kv

# %% key="rebuilt_sizes" lang="en"
k, v = made[0]
cached_bytes = layer.keys.nbytes + layer.values.nbytes
storage = k.untyped_storage().nbytes() + v.untyped_storage().nbytes()
rows = [["cached", f"{k.shape[2]} tokens", cached_bytes]]
rows += [["K and V", f"{[*k.shape]}, {[*v.shape]}", k.nbytes + v.nbytes], ["storage behind K and V", "", storage]]
Table(["for one new token", "shape", "bytes"], rows)

# %% key="rebuilt_sizes" lang="zh"
k, v = made[0]
cached_bytes = layer.keys.nbytes + layer.values.nbytes
storage = k.untyped_storage().nbytes() + v.untyped_storage().nbytes()
rows = [["缓存", f"{k.shape[2]} 个 token", cached_bytes]]
rows += [["K 和 V", f"{[*k.shape]}, {[*v.shape]}", k.nbytes + v.nbytes], ["K 和 V 背后的存储", "", storage]]
Table(["为一个新 token", "形状", "字节"], rows)

# %% [markdown] key="storage" lang="en"
# For one new token, K and V of all tokens are rebuilt.
# The storage behind them is larger still: V is a view into the output of `kv_b_proj`, which holds the K part a second time.
# So while the layer runs, a rebuilt token takes
#
# $$H\,\big((n + v) + (n + r)\big)\,b = 128 \cdot ((128 + 128) + (128 + 64)) \cdot 2 = 114{,}688 \text{ B}$$
#
# with the symbols and values of the table above.
# Here is the same for one sequence of DeepSeek-V3 with 32,768 tokens:
# %% [markdown] key="storage" lang="zh" src="820c4b72"
# 只为一个新 token，却要给全部 token 重建 K 和 V。
# 背后的存储还要更大，因为 V 是 `kv_b_proj` 输出的视图（view），而那块输出里 K 的部分又占了一份。
# 所以在该层运行期间，每个重建的 token 占
#
# $$H\,\big((n + v) + (n + r)\big)\,b = 128 \cdot ((128 + 128) + (128 + 64)) \cdot 2 = 114{,}688 \text{ B}$$
#
# 符号和取值都与前面的表相同。
# 换成 DeepSeek-V3 的一条 32,768 个 token 的序列：

# %% key="rebuild_big" lang="en"
rebuilt_token = heads * ((128 + 128) + (128 + 64)) * 2
assert rebuilt_token == rebuilt_bytes("DeepSeek-V3", 1)
names = ["latent cache", "K and V, rebuilt in every step", "storage behind them"]
mb = [each * 32_768 / 1e6 for each in (latent, expanded, rebuilt_token)]
show(bars(names, {"one layer, 32,768 tokens": [round(each, 1) for each in mb]}, x="MB", unit="MB"))

# %% key="rebuild_big" lang="zh"
rebuilt_token = heads * ((128 + 128) + (128 + 64)) * 2
assert rebuilt_token == rebuilt_bytes("DeepSeek-V3", 1)
names = ["潜在向量缓存", "每一步重建的 K 和 V", "背后的存储"]
mb = [each * 32_768 / 1e6 for each in (latent, expanded, rebuilt_token)]
show(bars(names, {"一层，32,768 个 token": [round(each, 1) for each in mb]}, x="MB", unit="MB"))

# %% [markdown] key="absorb" lang="en"
# The way out is **matrix absorption**, which unpacks nothing.
# It moves `kv_b_proj` into the query and into the output, and attention reads the latents themselves.
# vLLM decodes this way, and [lesson 10](10_kernels.ipynb) builds such a kernel.
#
# Keep the two apart: the *latent cache* saves memory that stays, while *absorbing* saves memory and work in every step.
# %% [markdown] key="absorb" lang="zh" src="648ca3d3"
# 出路是**矩阵吸收**（matrix absorption），也就是根本不展开。
# 它把 `kv_b_proj` 并入 query 和输出的投影，让注意力直接读潜在向量。
# vLLM 就是这样解码的，[第 10 课](10_kernels.ipynb)会写这样一个 kernel。
#
# 这是两件不同的事，**缓存潜在向量**省的是常驻显存，**矩阵吸收**省的是每一步的临时显存和计算。

# %% [markdown] key="fixes" lang="en"
# ## Corrections that were wrong too
#
# MLA needs another formula, and writing it is harder than it looks.
# Two published corrections went wrong. One counts the latent twice and leaves out the rope key; the other gives each of the 128 heads a rope key of its own.
# %% [markdown] key="fixes" lang="zh" src="134f9614"
# ## 修正后的公式也有错的
#
# MLA 要换公式，但写对并不容易。
# 有两种公开发表过的修正都错了，一种把潜在向量算了两份，又漏掉 rope key；另一种给 128 个头各算了一份 rope key。

# %% key="fixes_table" lang="en"
rank, rope, layers = config["kv_lora_rank"], config["qk_rope_head_dim"], config["num_hidden_layers"]
fixes = {"2 * 512: the latent twice, no rope key": 2 * rank}
fixes["512 + 128 * 64: a rope key for every head"] = rank + heads * rope
fixes["512 + 64: what is cached"] = rank + rope
rows = [[name, n, 2 * n, f"{n / (rank + rope):.2f}x", layers * 2 * n] for name, n in fixes.items()]
Table(["formula", "elements", "bytes", "off by", f"bytes, {layers} layers"], rows, right=["off by"])

# %% key="fixes_table" lang="zh"
rank, rope, layers = config["kv_lora_rank"], config["qk_rope_head_dim"], config["num_hidden_layers"]
fixes = {"2 * 512：潜在向量算了两份，漏掉 rope key": 2 * rank}
fixes["512 + 128 * 64：每个头一份 rope key"] = rank + heads * rope
fixes["512 + 64：真正缓存的内容"] = rank + rope
rows = [[name, n, 2 * n, f"{n / (rank + rope):.2f}x", layers * 2 * n] for name, n in fixes.items()]
Table(["公式", "元素", "字节", "相差", f"字节，{layers} 层"], rows, right=["相差"])

# %% [markdown] key="units" lang="en"
# ## MB or MiB
#
# For 61 layers and 100 tokens you can find "477 MB" and "167 MB" in print.
# The table shows that those are MiB, units of $2^{20}$ bytes.
# Many scripts have a helper like `estimate_kv_cache_gb`. The package's version doesn't use the usual formula, it asks the spec.
# %% [markdown] key="units" lang="zh" src="56e676e7"
# ## MB 还是 MiB
#
# 61 层、100 个 token，有资料写成“477 MB”和“167 MB”。
# 从表里可以看出，单位其实是 MiB，也就是 $2^{20}$ 字节。
# 许多脚本里都有 `estimate_kv_cache_gb` 这样一个函数。程序包里的这一个不用常用公式，数字由 spec 来算。

# %% key="units_check" lang="en"
sizes = {"expanded": expanded * 61 * 100, "usual formula": naive * 61 * 100, "latent": latent * 61 * 100}
rows = [[name, size, f"{size / 1e6:.1f}", f"{size / 2**20:.1f}"] for name, size in sizes.items()]
layouts = ("hf-expanded", "hf")
gb = [f"{each}: {estimate_kv_cache_gb('DeepSeek-V3', 100, layout=each):.4f} GB" for each in layouts]
Table(["100 tokens", "bytes", "MB", "MiB"], rows, right=["MB", "MiB"], lines=gb)

# %% key="units_check" lang="zh"
sizes = {"展开": expanded * 61 * 100, "常用公式": naive * 61 * 100, "潜在向量": latent * 61 * 100}
rows = [[name, size, f"{size / 1e6:.1f}", f"{size / 2**20:.1f}"] for name, size in sizes.items()]
layouts = ("hf-expanded", "hf")
gb = [f"{each}: {estimate_kv_cache_gb('DeepSeek-V3', 100, layout=each):.4f} GB" for each in layouts]
Table(["100 个 token", "字节", "MB", "MiB"], rows, right=["MB", "MiB"], lines=gb)

# %% [markdown] key="batch" lang="en"
# ## The batch-size calculator, before and after
#
# An estimate is only there to choose a batch.
# Take 18 GB of free memory and 512 tokens a sequence, prompt and answer together.
#
# `max_batch_size` fills 90 % of the free memory and sets aside two things that live only during a step:
#
# - one layer twice, because transformers grows a cache by joining old and new into a new tensor;
# - the rebuild of one layer, where the cache holds latents.
#
# $$\text{batch} = \left\lfloor \frac{0.9 \cdot M}{T \cdot \big((L + 1) \cdot k + R\big)} \right\rfloor$$
#
# | symbol | what it is | value here |
# |---|---|---|
# | $M$ | free bytes | 18,000,000,000 |
# | $T$ | tokens of a sequence | 512 |
# | $L$ | layers | 61 |
# | $k$ | cached bytes of a token in a layer | 1,152 |
# | $R$ | rebuilt bytes of a token in one layer | 114,688 |
#
# $$\lfloor 16{,}200{,}000{,}000 \;/\; (512 \cdot (62 \cdot 1{,}152 + 114{,}688)) \rfloor = 170$$
#
# That is the last row below. The third row leaves the rebuild out and is otherwise the same.
# The last two columns of the table say what each batch needs under each library, with one layer counted twice.
# %% [markdown] key="batch" lang="zh" src="0b7ca9f9"
# ## batch 计算器：修正前后
#
# 做估算，只是为了选 batch 大小。
# 设可用显存 18 GB，每条序列 512 个 token（提示词与生成合计）。
#
# `max_batch_size` 使用可用显存的 90%，并为只在一步之内存在的两样东西留出显存：
#
# - 有一层会存在两份，因为 transformers 扩展缓存时，把旧的和新的拼接成一个新张量；
# - 缓存的是潜在向量时，还有一层的重建。
#
# $$\text{batch} = \left\lfloor \frac{0.9 \cdot M}{T \cdot \big((L + 1) \cdot k + R\big)} \right\rfloor$$
#
# | 符号 | 含义 | 本例取值 |
# |---|---|---|
# | $M$ | 可用字节数 | 18,000,000,000 |
# | $T$ | 一条序列的 token 数 | 512 |
# | $L$ | 层数 | 61 |
# | $k$ | 一个 token 在一层缓存的字节数 | 1,152 |
# | $R$ | 一个 token 在一层重建的字节数 | 114,688 |
#
# $$\lfloor 16{,}200{,}000{,}000 \;/\; (512 \cdot (62 \cdot 1{,}152 + 114{,}688)) \rfloor = 170$$
#
# 这就是下面的最后一行。第三行故意不算重建，其余相同。
# 表的最后两列是各个 batch 在两个版本的库里需要多少显存（有一层按两份计）。

# %% key="batch_table" lang="en"
free, tokens, layers = 18 * 10**9, 512, config["num_hidden_layers"] + 1  # one layer twice
rebuilt = tokens * rebuilt_token
batches = [
    int(free * 0.9) // (naive * 61 * tokens),  # the usual formula
    max_batch_size("DeepSeek-V3", free, tokens, layout="hf-expanded"),
    int(free * 0.9) // (layers * latent * tokens),  # without the rebuild
    max_batch_size("DeepSeek-V3", free, tokens),
]
cache_gb = [batch * layers * latent * tokens / 1e9 for batch in batches]
rebuild_gb = [batch * rebuilt / 1e9 for batch in batches]

# %% key="batch_table" lang="zh"
free, tokens, layers = 18 * 10**9, 512, config["num_hidden_layers"] + 1  # 有一层按两份计
rebuilt = tokens * rebuilt_token
batches = [
    int(free * 0.9) // (naive * 61 * tokens),  # 常用公式
    max_batch_size("DeepSeek-V3", free, tokens, layout="hf-expanded"),
    int(free * 0.9) // (layers * latent * tokens),  # 没有算重建
    max_batch_size("DeepSeek-V3", free, tokens),
]
cache_gb = [batch * layers * latent * tokens / 1e9 for batch in batches]
rebuild_gb = [batch * rebuilt / 1e9 for batch in batches]

# %% key="batch_needs" lang="en"
names = ["usual formula", "expanded cache", "latent cache, no room for the rebuild", "latent cache and the rebuild"]
parts = {"cache": [round(gb, 1) for gb in cache_gb], "rebuild of one layer": [round(gb, 1) for gb in rebuild_gb]}
show(bars(names, parts, x="GB under transformers >= 5.15.0; 18 are free", stacked=True, looks=["k", "activations"]))
old_gb = [batch * layers * expanded * tokens / 1e9 for batch in batches]
needs = [[f"{old:,.1f}", f"{now + more:.1f}"] for old, now, more in zip(old_gb, cache_gb, rebuild_gb)]
rows = [[name, batch, *need] for name, batch, need in zip(names, batches, needs)]
head = ["batch chosen by", "batch", "GB, <= 5.14.1", "GB, >= 5.15.0"]
Table(head, rows, right=head[2:])

# %% key="batch_needs" lang="zh"
names = ["常用公式", "展开的缓存", "潜在向量缓存，没给重建留显存", "潜在向量缓存和重建"]
parts = {"缓存": [round(gb, 1) for gb in cache_gb], "一层的重建": [round(gb, 1) for gb in rebuild_gb]}
show(bars(names, parts, x="GB，transformers >= 5.15.0 版；可用 18", stacked=True, looks=["k", "activations"]))
old_gb = [batch * layers * expanded * tokens / 1e9 for batch in batches]
needs = [[f"{old:,.1f}", f"{now + more:.1f}"] for old, now, more in zip(old_gb, cache_gb, rebuild_gb)]
rows = [[name, batch, *need] for name, batch, need in zip(names, batches, needs)]
head = ["batch 由什么决定", "batch", "GB，<= 5.14.1 版", "GB，>= 5.15.0 版"]
Table(head, rows, right=head[2:])

# %% [markdown] key="batch_read" lang="en"
# Compare each row with 18 GB.
#
# - Row 1 comes from the usual formula. Under the old library its batch needs 46.8 GB, more than twice what is there. Under today's library the same batch leaves most of the memory idle.
# - Row 3 shows what goes wrong if you correct only the cache formula. The cache fits, but the rebuild of one layer doesn't.
# - Row 4 fits. Here the memory that exists only for a moment is larger than the cache.
#
# The rebuild is what we watched `expand_kv` hold. Other activations come on top, so a real script measures its peak.
# %% [markdown] key="batch_read" lang="zh" src="e787fc50"
# 拿每一行与 18 GB 比较。
#
# - 第 1 行由常用公式得出。在旧版库里，这个 batch 需要 46.8 GB，超过可用量的两倍；到了现在的版本，同样的 batch 又让大部分显存闲置。
# - 第 3 行说明只改缓存公式会怎样。缓存放得下，一层的重建放不下。
# - 第 4 行放得下。这里临时占用的显存比缓存本身还多。
#
# 其中的重建量，就是前面记录到的 `expand_kv` 所占的显存。此外还有别的激活，所以实际的脚本应当测量峰值。

# %% [markdown] key="blame" lang="en"
# ## What a wrong estimate can and cannot cause
#
# | the estimate is | it causes | it cannot cause |
# |---|---|---|
# | too small | a batch that is too big, a peak over the budget, out of memory | memory that stays after the run |
# | too big | a small batch, an idle GPU | out of memory |
#
# It is tempting to conclude more: too big a batch, therefore fragments, therefore memory that doesn't come back.
# But an estimate is only a number, and it holds no tensor.
# `empty_cache()` gives back cached memory that no tensor uses. It cannot free memory that a tensor occupies ([PyTorch's notes](https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management)).
# So ask which object still holds a tensor. The size of the batch does not answer that:
# %% [markdown] key="blame" lang="zh" src="2d4f48bf"
# ## 错误的估算能造成什么，不能造成什么
#
# | 估算 | 会造成 | 不会造成 |
# |---|---|---|
# | 偏小 | batch 过大，峰值超出预算，显存不足 | 运行结束后显存仍被占用 |
# | 偏大 | batch 过小，GPU 闲置 | 显存不足 |
#
# 很容易继续往下推，说 batch 过大，所以产生碎片，所以显存收不回来。
# 可是估算只是一个数字，并不持有张量。
# `empty_cache()` 能归还没有张量在用的缓存显存，张量占着的显存它释放不了（见 [PyTorch 文档](https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management)）。
# 所以该查的是哪个对象还持有张量，这与 batch 大小无关：

# %% key="no_leak" lang="en"
import gc
import weakref

from transformers import DynamicCache

rows = []
for batch in (2, 64):
    cache = DynamicCache(config=model.config)
    step(torch.randint(0, 64, (batch, 12)), cache)
    held, seen = held_bytes(cache), weakref.ref(cache)
    del cache
    gc.collect()
    rows.append([batch, held, str(seen() is None)])
Table(["batch", "bytes of the cache", "object gone after del"], rows)

# %% key="no_leak" lang="zh"
import gc
import weakref

from transformers import DynamicCache

rows = []
for batch in (2, 64):
    cache = DynamicCache(config=model.config)
    step(torch.randint(0, 64, (batch, 12)), cache)
    held, seen = held_bytes(cache), weakref.ref(cache)
    del cache
    gc.collect()
    rows.append([batch, held, str(seen() is None)])
Table(["batch", "缓存的字节", "del 之后对象已销毁"], rows)

# %% [markdown] key="blame_object" lang="en"
# The weak reference shows that the object died: both caches are gone as soon as their last name is.
# It doesn't show what the allocator did with the memory.
# On a GPU the next cell does: *allocated* is what tensors occupy, *reserved* is what PyTorch has taken from the GPU.
# %% [markdown] key="blame_object" lang="zh" src="55c16d1e"
# 弱引用说明对象已经销毁，因为最后一个引用一消失，两个缓存都随之销毁。
# 至于分配器怎样处理那块显存，从弱引用看不出来。
# 有 GPU 时，下一个单元格会给出答案：**已分配**是张量占用的显存，**已保留**是 PyTorch 从 GPU 拿走的显存。

# %% key="allocator" tags="hardware" lang="en"
def memory(moment):
    return [moment, torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]


rows = [["no GPU here, and so no caching allocator", None, None]]
if device == "cuda":
    cache = DynamicCache(config=model.config)
    step(torch.randint(0, 64, (8192, 12)), cache)
    rows = [memory("step()")]
    del cache
    gc.collect()
    rows.append(memory("del cache"))
    torch.cuda.empty_cache()
    rows.append(memory("empty_cache()"))
Table(["after", "bytes allocated", "bytes reserved"], rows)

# %% key="allocator" tags="hardware" lang="zh"
def memory(moment):
    return [moment, torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]


rows = [["这里没有 GPU，也就没有缓存分配器", None, None]]
if device == "cuda":
    cache = DynamicCache(config=model.config)
    step(torch.randint(0, 64, (8192, 12)), cache)
    rows = [memory("step()")]
    del cache
    gc.collect()
    rows.append(memory("del cache"))
    torch.cuda.empty_cache()
    rows.append(memory("empty_cache()"))
Table(["之后", "已分配字节", "已保留字节"], rows)

# %% [markdown] key="blame_next" lang="en"
# What really keeps memory after `generate()` is the case of [lesson 16](16_where_did_6gb_go.ipynb).
# %% [markdown] key="blame_next" lang="zh" src="a5bcd716"
# `generate()` 之后究竟是什么占着显存，留到[第 16 课](16_where_did_6gb_go.ipynb)再查。

# %% [markdown] key="ranks" lang="en"
# ## Eight GPUs, eight copies
#
# Tensor parallelism divides KV heads among GPUs.
# A latent has no heads to divide, because the query heads on every rank need all of it.
# %% [markdown] key="ranks" lang="zh" src="91e4034a"
# ## 8 块 GPU，8 份副本
#
# 张量并行（TP）把 KV 头分给各块 GPU。
# 潜在向量却没有头可分，因为每个 rank 上的 query 头都需要完整的潜在向量。

# %% key="predict_ranks"
predict("all_ranks", ...)

# %% key="ranks_table" lang="en"
sizes, rows, of_all = (1, 2, 4, 8, 16), [], {"DeepSeek-V3": {}, "Llama-3.1-70B": {}}
for tp in sizes:
    row = [tp]
    for name, series in of_all.items():
        rank_bytes = CacheSpec.from_config(name, tp=tp).bytes_for(1)
        series[tp] = tp * rank_bytes
        row += [rank_bytes, tp * rank_bytes]
    rows.append(row)
head = ["tp", "DeepSeek-V3, a rank", "all ranks", "Llama-3.1-70B, a rank", "all its ranks"]
Table(head, rows, title="Bytes of a token in all layers")

# %% key="ranks_table" lang="zh"
sizes, rows, of_all = (1, 2, 4, 8, 16), [], {"DeepSeek-V3": {}, "Llama-3.1-70B": {}}
for tp in sizes:
    row = [tp]
    for name, series in of_all.items():
        rank_bytes = CacheSpec.from_config(name, tp=tp).bytes_for(1)
        series[tp] = tp * rank_bytes
        row += [rank_bytes, tp * rank_bytes]
    rows.append(row)
head = ["tp", "DeepSeek-V3，每个 rank", "全部 rank", "Llama-3.1-70B，每个 rank", "它的全部 rank"]
Table(head, rows, title="一个 token 在所有层的字节数")

# %% key="ranks_chart" lang="en"
from minikv.course.charts import lines

show(lines(of_all, x="GPUs in the group", y="bytes of a token on all of them", log="xy"))

# %% key="ranks_chart" lang="zh"
from minikv.course.charts import lines

show(lines(of_all, x="一组里的 GPU 数", y="一个 token 在全部 GPU 上的字节数", log="xy"))

# %% [markdown] key="ranks_read" lang="en"
# The numbers are bytes of one token in the whole model.
# GQA shrinks on each rank until every rank has one head (tp 8). From there on heads are copied.
# MLA never shrinks, so more ranks only bring more copies.
#
# The other way to use 8 GPUs is 8 data-parallel replicas of the attention, each with a cache of its own requests.
# A user measured both with DeepSeek-V4-Flash, which has one KV head and so is copied to every rank too: room for 20.43 requests of a million tokens with tp 8, and for 156.9 with 8 replicas. That is nearly the factor of 8 that the copies cost:
# %% [markdown] key="ranks_read" lang="zh" src="489af4bc"
# 表中是整个模型里一个 token 的字节数。
# GQA 在每个 rank 上的份额会一直变小，直到每个 rank 只剩一个头（tp 为 8），再往上 KV 头就要复制。
# MLA 从不变小，所以 rank 越多，只是副本越多。
#
# 用 8 块 GPU 还有另一种办法，即 8 份数据并行的注意力，各自只缓存自己的请求。
# 有用户用 DeepSeek-V4-Flash 测过两种（它只有一个 KV 头，同样要在每个 rank 上复制），tp 为 8 时可容纳 20.43 个百万 token 的请求，改成 8 份数据并行则可容纳 156.9 个。两者之比接近副本所浪费的 8 倍：

# %% key="ranks_dp"
round(156.9 / 20.43, 2)

# %% [markdown] key="break" lang="en"
# ## Break it
#
# Change one field at a time and watch which column moves.
# Before you run it: which of the three numbers depends on `kv_lora_rank`? Which on the number of heads?
# %% [markdown] key="break" lang="zh" src="878aff4e"
# ## 弄坏它
#
# 一次只改一个字段，看哪一列会变。
# 运行之前先想想，三个数里，哪个取决于 `kv_lora_rank`？哪个取决于头数？

# %% key="break_fields" lang="en"
changes = [{}, {"kv_lora_rank": 1024}, {"qk_rope_head_dim": 1}, {"qk_rope_head_dim": 128}, {"v_head_dim": 256}]
changes += [{"num_attention_heads": 16, "num_key_value_heads": 16}]
rows = []
for change in changes:
    broken = {**config, **change}
    old, new = (CacheSpec.from_config(broken, layout=each).layers[0] for each in ("hf-expanded", "hf"))
    flat = 2 * broken["num_attention_heads"] * (hidden // broken["num_attention_heads"]) * 2
    changed = ", ".join(f"{field} = {value}" for field, value in change.items()) or "nothing"
    rows.append([changed, flat, old.token_bytes, new.token_bytes])
Table(["change", "usual formula, B", "expanded, B", "latent, B"], rows)

# %% key="break_fields" lang="zh"
changes = [{}, {"kv_lora_rank": 1024}, {"qk_rope_head_dim": 1}, {"qk_rope_head_dim": 128}, {"v_head_dim": 256}]
changes += [{"num_attention_heads": 16, "num_key_value_heads": 16}]
rows = []
for change in changes:
    broken = {**config, **change}
    old, new = (CacheSpec.from_config(broken, layout=each).layers[0] for each in ("hf-expanded", "hf"))
    flat = 2 * broken["num_attention_heads"] * (hidden // broken["num_attention_heads"]) * 2
    changed = ", ".join(f"{field} = {value}" for field, value in change.items()) or "不改"
    rows.append([changed, flat, old.token_bytes, new.token_bytes])
Table(["改动", "常用公式，B", "展开，B", "潜在向量，B"], rows)

# %% [markdown] key="break_read" lang="en"
# The usual formula never moves, because it reads none of the fields that MLA is made of.
# Heads and `v_head_dim` move only the expanded cache, `kv_lora_rank` moves only the latent, and the rope part moves both.
#
# A rope part of 0 is refused instead of computed, because without it this model would have no positions.
# %% [markdown] key="break_read" lang="zh" src="76758c1d"
# 常用公式那一列始终不变，因为构成 MLA 的字段，它一个也没读。
# 头数和 `v_head_dim` 只影响展开的缓存，`kv_lora_rank` 只影响潜在向量，rope 部分两者都影响。
#
# rope 部分设为 0 会直接报错，不会硬算，因为没有它，这个模型就没有位置信息。

# %% key="break_zero"
from minikv.errors import ConfigError

try:
    CacheSpec.from_config({**config, "qk_rope_head_dim": 0})
except ConfigError as error:
    print(t(error))

# %% [markdown] key="break_trust" lang="en"
# Now estimate with `config.head_dim` once more, as in the row of 32,768 B above, and halve the rope part twice.
# Your estimate falls to a quarter, but the cache hardly moves.
# %% [markdown] key="break_trust" lang="zh" src="034a40f7"
# 再像前面算出 32,768 B 的那一行那样，用 `config.head_dim` 估算，并把 rope 部分减半两次。
# 估算值降到四分之一，缓存却几乎不变。

# %% key="break_head_dim" lang="en"
rows = []
for rope in (64, 32, 16):
    trusting = DeepseekV3Config(qk_rope_head_dim=rope, dtype="bfloat16")
    guess = 2 * trusting.num_attention_heads * trusting.head_dim * 2
    rows.append([trusting.head_dim, guess, CacheSpec.from_config(trusting).layers[0].token_bytes])
Table(["head_dim", "estimate", "cached"], rows)

# %% key="break_head_dim" lang="zh"
rows = []
for rope in (64, 32, 16):
    trusting = DeepseekV3Config(qk_rope_head_dim=rope, dtype="bfloat16")
    guess = 2 * trusting.num_attention_heads * trusting.head_dim * 2
    rows.append([trusting.head_dim, guess, CacheSpec.from_config(trusting).layers[0].token_bytes])
Table(["head_dim", "估算", "缓存"], rows)

# %% [markdown] key="self" lang="en"
# ## Recap
#
# An MLA layer of DeepSeek-V3 makes 81,920 B of K and V out of 1,152 B of latent and rope key. transformers cached the 81,920 B up to 5.14.1 and caches the 1,152 B since 5.15.0.
# The usual formula knows only the hidden size, so it says 28,672 B for any number of heads: 2.86 times too little for one library, 24.9 times too much for the other.
# A latent cache still pays for the rebuild: at 32,768 tokens one layer caches 37.7 MB and rebuilds 2,684 MB in every step.
# Sparse attention (DSA) reads only 2,048 tokens a query, but its indexer adds 256 B to the 1,152.
# Tensor parallelism does not divide a latent: 16 GPUs hold it 16 times.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="96b134ac"
# ## 本课小结
#
# DeepSeek-V3 的一层由 1,152 B 的潜在向量和 rope key 展开成 81,920 B 的 K 和 V；transformers 到 5.14.1 为止缓存 81,920 B，从 5.15.0 起缓存 1,152 B。
# 常用公式只看隐藏维度，不管头数是多少都是 28,672 B，对一个库只有实际值的 1/2.86，对另一个库是实际值的 24.9 倍。
# 缓存潜在向量仍要付出重建的代价。例如 32,768 个 token 时，一层缓存 37.7 MB，每一步却要重建 2,684 MB。
# 稀疏注意力（DSA）每个 query 只读 2,048 个 token，但它的 indexer 要在 1,152 B 之外再加 256 B。
# 张量并行分不开潜在向量，所以 16 块 GPU 就存 16 份。
#
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_heads"
explain("heads_cancel")

# %% key="explain_who"
explain("who_needs_heads")

# %% key="explain_leak"
explain("estimate_and_leak")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# The exercise notebook of this lesson asks for five functions:
#
# - 03.1 `expanded_bytes`: K and V of every head.
# - 03.2 `latent_bytes`: what is cached today. You don't need every argument.
# - 03.3 `cache_kind`: heads, expanded or latent, from a config and a library version.
# - 03.4 `max_batch`: a batch-size calculator that counts padding, and the memory that a step needs only for a moment.
# - 03.5 `rank_bytes`: one token on one of `tp` ranks, for MLA and GQA.
# %% [markdown] key="exercises" lang="zh" src="539d09e3"
# ## 练习
#
# 本课的练习 notebook 要你写五个函数：
#
# - 03.1 `expanded_bytes`：每个头的 K 和 V。
# - 03.2 `latent_bytes`：现在缓存的内容。并不是每个参数都用得上。
# - 03.3 `cache_kind`：根据配置和库版本，判断是 heads、expanded 还是 latent。
# - 03.4 `max_batch`：一个 batch 计算器，要考虑补齐和临时显存。
# - 03.5 `rank_bytes`：MLA 与 GQA 在 `tp` 个 rank 中的一个上，一个 token 占多少字节。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | my number is off by 2.86x, 20x, 25x or 71x | `print(CacheSpec.from_config(config, layout="hf").explain())`: which fields it read; then the same with `"hf-expanded"` |
# | I don't know what my library caches | `cache.layers[0].keys.shape` after a prefill: `[B, 1, T, 512]` is a latent, `[B, 128, T, 192]` is expanded |
# | the cache fits on paper, but the run is out of memory | `rebuilt_bytes(config, tokens)`: what one layer's rebuild takes for a moment, for each sequence |
# %% [markdown] key="stuck" lang="zh" src="6c528ffb"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 我的数字差了 2.86 倍、20 倍、25 倍或 71 倍 | `print(CacheSpec.from_config(config, layout="hf").explain("zh"))`：看它读了哪些字段；再换成 `"hf-expanded"` 对比 |
# | 不知道我的库缓存的是哪一种 | 预填充后看 `cache.layers[0].keys.shape`：`[B, 1, T, 512]` 是潜在向量，`[B, 128, T, 192]` 是展开的 K |
# | 纸面上缓存放得下，运行时却显存不足 | `rebuilt_bytes(config, tokens)`：每条序列重建一层 K、V 时临时占用的显存 |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# In February 2025 a user asked why the Hugging Face code caches far more than the paper promises ([DeepSeek-R1 #238](https://github.com/deepseek-ai/DeepSeek-R1/issues/238)), with 8,704 elements for the paper's way.
# "Which library caches which" answers the question; the table of corrections has the 8,704.
#
# [Transformers PR #48761](https://github.com/huggingface/transformers/pull/48761) proposes to cache latents for DeepSeek-V3.2 and GLM-5, too.
# It is listed as closed, not merged, so the versions in "Which library caches which" rest on our own measurement.
#
# In [TensorRT-LLM PR #16707](https://github.com/NVIDIA/TensorRT-LLM/pull/16707) the usual formula was about 25x too big for DeepSeek-V3.2, and a benchmark settled for a batch of 64.
# That is the row "too big for the latent cache" in "Four answers for one config"; with the indexer's cache it would be 20.4x.
#
# LMCache's public calculator was "also not correct" ([#688](https://github.com/LMCache/LMCache/issues/688)). It was changed to a wrong formula ([PR #694](https://github.com/LMCache/LMCache/pull/694)) and changed back six days later ([PR #715](https://github.com/LMCache/LMCache/pull/715)).
# Later [#2132](https://github.com/LMCache/LMCache/issues/2132) reported it once more and named [#671](https://github.com/LMCache/LMCache/pull/671) as right.
# The first and the last line of the table of corrections are these two; 70,272 B a token is the right one.
#
# [DeepSeek-V3 #305](https://github.com/deepseek-ai/DeepSeek-V3/issues/305) asks what the cache is for if K and V are made again from the latent.
# "The latent alone does not make decoding cheap" measures it; the answer there was "the trick of matrix absorption".
#
# [vLLM #51454](https://github.com/vllm-project/vllm/issues/51454) has the start-up logs with 20.43 and 156.9 requests.
# "Eight GPUs, eight copies" explains them.
#
# The estimate that gave this lesson its name, and what it was blamed for, is in [appendix A](A_errata.ipynb).
# %% [markdown] key="wild" lang="zh" src="91170689"
# ## 实战现场
#
# 2025 年 2 月，有用户问 Hugging Face 上的代码为什么缓存得比论文说的多那么多（[DeepSeek-R1 #238](https://github.com/deepseek-ai/DeepSeek-R1/issues/238)），并按论文的做法算出 8,704 个元素。
# “哪个库缓存哪一种”一节回答了这个问题；8,704 就在那张修正表里。
#
# [Transformers PR #48761](https://github.com/huggingface/transformers/pull/48761) 提议让 DeepSeek-V3.2 和 GLM-5 也缓存潜在向量。
# 它的状态是已关闭、未合并，所以“哪个库缓存哪一种”一节的版本号以我们自己的测量为准。
#
# [TensorRT-LLM PR #16707](https://github.com/NVIDIA/TensorRT-LLM/pull/16707) 里，常用公式用在 DeepSeek-V3.2 上约为实际值的 25 倍，基准测试的 batch 只开到 64。
# 这就是“同一份配置，四个答案”一节第二张表的第二行；计入 indexer 的缓存是 20.4 倍。
#
# LMCache 的公开计算器先被指“也不对”（[#688](https://github.com/LMCache/LMCache/issues/688)），改成了错的公式（[PR #694](https://github.com/LMCache/LMCache/pull/694)），六天后又改回（[PR #715](https://github.com/LMCache/LMCache/pull/715)）；后来 [#2132](https://github.com/LMCache/LMCache/issues/2132) 再次报告，并指出 [#671](https://github.com/LMCache/LMCache/pull/671) 的数值才对。
# 修正表的第一行和最后一行就是这两种，每个 token 70,272 B 的那个是对的。
#
# [DeepSeek-V3 #305](https://github.com/deepseek-ai/DeepSeek-V3/issues/305) 问，如果 K 和 V 还要由潜在向量重新生成，那缓存有什么用？
# “只缓存潜在向量，解码并不会变便宜”一节测了代价；那里得到的答复就是矩阵吸收。
#
# [vLLM #51454](https://github.com/vllm-project/vllm/issues/51454) 里有启动日志，写着 20.43 和 156.9 个请求。
# “8 块 GPU，8 份副本”一节解释了这两个数。
#
# 让本课得名的那次估算，以及它被当成了什么问题的原因，见[附录 A](A_errata.ipynb)。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You can now say how many bytes a token takes, in which library, on how many ranks.
# [Lesson 04](04_the_roofline.ipynb) asks what it costs to *read* those bytes in every decode step, and why the GPU waits for them.
# %% [markdown] key="next" lang="zh" src="1c4f8699"
# ## 下一课
#
# 现在你能说清，在哪个库里、在几个 rank 上，一个 token 占多少字节。
# [第 04 课](04_the_roofline.ipynb)接着问，每个解码步骤**读取**这些字节要花多少时间，GPU 又为什么要等它们。
