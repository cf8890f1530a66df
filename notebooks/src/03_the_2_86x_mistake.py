# %% [meta]
# number = "03"
# slug = "the_2_86x_mistake"
# needs = ["02"]
# rooms = ["plan.spec", "plan.estimate"]
# minutes = 70
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
# 常用公式说每层 28,672 字节。
# 一个库缓存 81,920 字节，另一个只缓存 1,152 字节，而配置里的一个字段会让人算出 32,768。
# 先看一层 MLA 怎样处理一个 token：

# %% key="mla_picture" lang="en"
from minikv.course import Table
from minikv.course.diagrams import attention_heads, mla_flow

show(mla_flow("DeepSeek-V3", "en"))

# %% key="mla_picture" lang="zh"
from minikv.course import Table
from minikv.course.diagrams import attention_heads, mla_flow

show(mla_flow("DeepSeek-V3", "zh"))

# %% [markdown] key="abilities" lang="en"
# After this lesson you can
#
# - **compute** what an MLA layer caches, as a latent and expanded, from six fields of a config;
# - **check** on a small model which of the two your library really holds;
# - **choose** a batch that leaves room for what lives only during a step.
# %% [markdown] key="abilities" lang="zh" src="d0d9e7c7"
# 学完本课，你能
#
# - **算出** MLA 的一层缓存多少字节：只存潜在向量，或者展开之后再存；
# - **验证**你用的库实际存的是哪一种；
# - **选定** batch 大小，给一步之内才存在的张量留出显存。

# %% [markdown] key="script" lang="en"
# ## The usual formula
#
# Many scripts begin an estimate with this line:
#
# ```python
# head_dim = config.hidden_size // config.num_attention_heads
# ```
#
# The numbers below come from DeepSeek-V3's `config.json`.
# The 2 in front is one K and one V, the 2 at the end is bytes an element (bf16).
# %% [markdown] key="script" lang="zh" src="763fe3c2"
# ## 常用公式
#
# 许多脚本的估算从这一行开始：
#
# ```python
# head_dim = config.hidden_size // config.num_attention_heads
# ```
#
# 下面的数字都取自 DeepSeek-V3 的 `config.json`。
# 开头的 2 是一份 K 加一份 V，末尾的 2 是每个元素的字节数（bf16）。

# %% [markdown] key="ask_naive" lang="en"
# Before you run it: what does the same line say about a model with another number of heads?
# %% [markdown] key="ask_naive" lang="zh" src="bf75440e"
# 先别运行：换一个头数不同的模型，这一行会给出多少？

# %% key="predict_naive"
predict("naive_heads", ...)

# %% key="naive" lang="en"
from minikv.plan import CacheSpec, estimate_kv_cache_gb, find_model, max_batch_size, rebuilt_bytes

config = find_model("DeepSeek-V3").config
heads, hidden = config["num_attention_heads"], config["hidden_size"]
head_dim = hidden // heads
naive = 2 * heads * head_dim * 2
Table(["hidden", "heads", "head_dim", "2 * heads * head_dim * 2"], [[hidden, heads, head_dim, naive]])

# %% key="naive" lang="zh"
from minikv.plan import CacheSpec, estimate_kv_cache_gb, find_model, max_batch_size, rebuilt_bytes

config = find_model("DeepSeek-V3").config
heads, hidden = config["num_attention_heads"], config["hidden_size"]
head_dim = hidden // heads
naive = 2 * heads * head_dim * 2
Table(["隐藏维度", "头数", "head_dim", "2 * 头数 * head_dim * 2"], [[hidden, heads, head_dim, naive]])

# %% [markdown] key="cancel" lang="en"
# The heads cancel.
# With $H$ heads, hidden size $d$ (elements) and $b$ bytes an element:
# %% [markdown] key="cancel" lang="zh" src="737db178"
# 头数被约掉了。
# 设头数为 $H$，隐藏维度为 $d$（元素数），每个元素 $b$ 字节：

# %% [markdown] key="cancel_formula"
# $$2 \cdot H \cdot \frac{d}{H} \cdot b \;=\; 2 \, d \, b$$

# %% [markdown] key="cancel_means" lang="en"
# The formula only knows the hidden size.
# It holds where all heads together are as wide as the hidden state, and only there.
# %% [markdown] key="cancel_means" lang="zh" src="9f49ca07"
# 公式里只剩隐藏维度。
# 只有当所有头拼起来恰好与隐藏状态一样宽时，它才成立。

# %% key="naive_any_heads" lang="en"
dims = {any_heads: hidden // any_heads for any_heads in (32, 64, 128, 256)}
rows = [[any_heads, dim, 2 * any_heads * dim * 2] for any_heads, dim in dims.items()]
Table(["heads", "head_dim", "bytes a token"], rows)

# %% key="naive_any_heads" lang="zh"
dims = {any_heads: hidden // any_heads for any_heads in (32, 64, 128, 256)}
rows = [[any_heads, dim, 2 * any_heads * dim * 2] for any_heads, dim in dims.items()]
Table(["头数", "head_dim", "每个 token 的字节"], rows)

# %% [markdown] key="mla" lang="en"
# ## What an MLA layer makes of a token
#
# DeepSeek-V3 uses multi-head latent attention (MLA), the picture at the top.
# One matrix, `kv_a_proj_with_mqa`, squeezes the hidden state into a *latent* of 512 elements and a *rope key* of 64.
# All 128 heads share both.
# A second matrix, `kv_b_proj`, unpacks the latent into K and V for each head.
# A library caches either what stands in the middle of the picture or what stands on its right.
#
# Position is the reason for the second, small vector.
# RoPE turns a key by an angle that depends on its position, and this turn cannot be moved past `kv_b_proj`.
# So the part that is turned is kept apart, and the latent stays free of position.
# %% [markdown] key="mla" lang="zh" src="23ba13ac"
# ## MLA 层怎样处理一个 token
#
# DeepSeek-V3 采用多头潜在注意力（MLA），就是开头那张图。
# 一个矩阵 `kv_a_proj_with_mqa` 把隐藏状态压缩成 512 个元素的潜在向量（latent），外加 64 个元素的 rope key。
# 128 个头共用这两个向量。
# 另一个矩阵 `kv_b_proj` 再把潜在向量展开成每个头的 K 和 V。
# 一个库缓存的，要么是图中间的部分，要么是图右边的部分。
#
# 之所以要单独留一个小向量，是因为位置信息。
# RoPE 按位置把 key 旋转一个角度，而这个旋转无法挪到 `kv_b_proj` 的另一边。
# 于是需要旋转的部分单独存放，潜在向量本身不带位置信息。

# %% key="predict_expanded"
predict("expanded_token", ...)

# %% key="predict_latent"
predict("latent_token", ...)

# %% [markdown] key="heads_words" lang="en"
# Here is the latent beside three other ways to cache a token.
# With multi-head attention (MHA) each query head has a K and a V of its own.
# With grouped queries (GQA) several query heads read the same K and V, with multi-query attention (MQA) all of them do.
# %% [markdown] key="heads_words" lang="zh" src="8776b05e"
# 下图把潜在向量与另外三种缓存方式放在一起比较。
# 多头注意力（MHA）里，每个 query 头都有自己的 K 和 V。
# 分组查询（GQA）让几个 query 头读同一份 K 和 V，多查询注意力（MQA）则让所有 query 头共用一份。

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

# %% [markdown] key="formulas" lang="en"
# ## Two formulas, and who uses which
#
# Bytes of one token in one layer:
# %% [markdown] key="formulas" lang="zh" src="fda403ac"
# ## 两个公式，各自对应什么
#
# 一个 token 在一层占用的字节数：

# %% [markdown] key="formulas_math" lang="en"
# $$\text{expanded} = H \,\big( (n + r) + v \big)\, b \qquad\qquad \text{latent} = (c + r)\, b$$
# %% [markdown] key="formulas_math" lang="zh" src="99a1c821"
# $$\text{展开} = H \,\big( (n + r) + v \big)\, b \qquad\qquad \text{潜在向量} = (c + r)\, b$$

# %% [markdown] key="symbols" lang="en"
# | symbol | config field | unit | DeepSeek-V3 |
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
# `CacheSpec` knows both: `layout="hf-expanded"` is what transformers up to 5.14.1 caches, `layout="hf"` what it caches since 5.15.0.
# %% [markdown] key="symbols" lang="zh" src="4f7cbf06"
# | 符号 | 配置字段 | 单位 | DeepSeek-V3 |
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
CacheSpec.from_config("DeepSeek-V3", layout="hf-expanded").shown("en")

# %% key="explain_spec" lang="zh"
CacheSpec.from_config("DeepSeek-V3", layout="hf-expanded").shown("zh")

# %% key="explain_latent" lang="en"
CacheSpec.from_config("DeepSeek-V3", layout="hf").shown("en")

# %% key="explain_latent" lang="zh"
CacheSpec.from_config("DeepSeek-V3", layout="hf").shown("zh")

# %% [markdown] key="four" lang="en"
# ## Four answers for one config
#
# There is a fourth answer, and it is the easiest one to get by accident.
# The class `DeepseekV3Config` has a field `head_dim`, so `getattr(config, "head_dim", ...)` finds something.
# What it finds is the width of the rope part.
# %% [markdown] key="four" lang="zh" src="fa3c4425"
# ## 同一份配置，四个答案
#
# 还有第四个答案，也最容易在无意中得到。
# `DeepseekV3Config` 这个类有 `head_dim` 字段，所以 `getattr(config, "head_dim", ...)` 能取到值。
# 可取到的只是 rope 部分的宽度。

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
title = "bytes of a token in a layer, each step ten times the last"
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
title = "一个 token 在一层的字节数，每一大格相差十倍"
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
# So one formula is 2.86x too small and 24.9x too big for the same model, because two libraries cache different things.
# DeepSeek-V3.2 also caches an indexer key; in bf16 this leaves 20.4x.
# %% [markdown] key="ratios_read" lang="zh" src="63d84fcd"
# 所以同一个公式用在同一个模型上，既会只算出实际值的 1/2.86，也会算成实际值的 24.9 倍，因为两个库缓存的东西不同。
# DeepSeek-V3.2 还要缓存 indexer 的 key；按 bf16 计入后是 20.4 倍。

# %% [markdown] key="versions" lang="en"
# ## Which library caches which
#
# | library | DeepSeek-V3 | DeepSeek-V3.2, GLM-5 |
# |---|---|---|
# | transformers up to 5.14.1 | K and V of every head | K and V of every head, and an indexer key |
# | transformers 5.15 to 5.17 | latent and rope key | as before |
# | transformers from 5.18 | latent and rope key | latent and rope key, and an indexer key |
# | vLLM | latent and rope key | latent and rope key, and an indexer key (fp8) |
#
# The last column for transformers is measured by this course: small models of `deepseek_v32` and `glm_moe_dsa` held expanded K and V under 5.15 and 5.17, and latents with an indexer key under 5.18 and 5.23.
# [Transformers PR #48761](https://github.com/huggingface/transformers/pull/48761) proposes this change; it is listed as closed, not merged, so the versions above do not rest on it.
#
# So 81,920 B were right up to 5.14.1.
# After an upgrade the same script errs in the other direction, although not a line of it changed.
# %% [markdown] key="versions" lang="zh" src="28adac44"
# ## 哪个库缓存哪一种
#
# | 库 | DeepSeek-V3 | DeepSeek-V3.2、GLM-5 |
# |---|---|---|
# | transformers 5.14.1 及更早 | 每个头的 K 和 V | 每个头的 K 和 V，外加 indexer 的 key |
# | transformers 5.15 至 5.17 | 潜在向量和 rope key | 同上 |
# | transformers 5.18 起 | 潜在向量和 rope key | 潜在向量和 rope key，外加 indexer 的 key |
# | vLLM | 潜在向量和 rope key | 潜在向量和 rope key，外加 indexer 的 key（fp8） |
#
# transformers 各行的最后一列由本课程实测：`deepseek_v32` 和 `glm_moe_dsa` 的小模型，在 5.15 和 5.17 下缓存的是展开的 K 和 V，在 5.18 和 5.23 下是潜在向量加 indexer 的 key。
# [Transformers PR #48761](https://github.com/huggingface/transformers/pull/48761) 提议的正是这项改动；它的状态是已关闭、未合并，所以上面的版本号不以它为据。
#
# 所以到 5.14.1 为止，81,920 B 是对的。
# 库一升级，同一个脚本就错到了另一个方向，而脚本一行也没改。

# %% [markdown] key="proof" lang="en"
# ## Proof on this machine
#
# Do not take a table's word for it.
# Here is a DeepSeek-V3 in miniature: the same class, random weights, 2 layers, 4 heads, a latent of 32 and a rope key of 8.
# We run a prefill of 9 tokens and three decode steps with a batch of 3, and add up the bytes of the tensors in the cache.
# %% [markdown] key="proof" lang="zh" src="02f16dbd"
# ## 在这台机器上验证
#
# 表格说的不一定可信，最好自己验证。
# 下面是一个微缩的 DeepSeek-V3：同一个类，随机权重，2 层，4 个头，潜在向量 32 维，rope key 8 维。
# batch 为 3，先预填充（prefill）9 个 token，再解码（decode）三步，然后把缓存里各张量的字节数加起来。

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
        out = step(out.logits[:, -1:].argmax(-1), out.past_key_values)
    rows.append([tokens, held_bytes(out.past_key_values), spec.bytes_for(tokens, batch=3)])
Table(["tokens", "bytes of the tensors", "spec.bytes_for"], rows)

# %% key="held" lang="zh"
out, rows = step(torch.randint(0, 64, (3, 9))), []
for tokens in (9, 10, 11, 12):
    if tokens > 9:
        out = step(out.logits[:, -1:].argmax(-1), out.past_key_values)
    rows.append([tokens, held_bytes(out.past_key_values), spec.bytes_for(tokens, batch=3)])
Table(["token 数", "张量的字节", "spec.bytes_for"], rows)

# %% [markdown] key="shapes" lang="en"
# Equal to the byte.
# The shapes say the rest: the second dimension, where heads would stand, is 1.
# %% [markdown] key="shapes" lang="zh" src="b38a6864"
# 一个字节都不差。
# 形状也说明了问题：本该是头数的第二维，值为 1。

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
# If K and V are made again from the latent, what is the cache for?
# In transformers they *are* made again: `expand_kv` runs in every layer, in every step, over every cached token.
# %% [markdown] key="rebuild" lang="zh" src="6eaddb8a"
# ## 只缓存潜在向量，解码并不会变便宜
#
# 如果 K 和 V 还要由潜在向量重新生成，那缓存有什么用？
# 在 transformers 里确实要重新生成：每一步、每一层，`expand_kv` 都会对缓存里的全部 token 执行一遍。

# %% key="predict_rebuilt"
predict("rebuilt", ...)

# %% [markdown] key="watch" lang="en"
# We put a watcher around `expand_kv` of layer 0 and decode one more token.
# %% [markdown] key="watch" lang="zh" src="97fc6641"
# 在第 0 层的 `expand_kv` 外面套一层记录，再解码一个 token。

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
# K and V are rebuilt for all tokens, for the sake of one.
# The storage is larger still: V is a view into the output of `kv_b_proj`, which holds the K part a second time.
# A rebuilt token takes $H\,\big((n + v) + (n + r)\big)\,b$ bytes while the layer runs.
#
# The same for DeepSeek-V3 at 32,768 tokens, one sequence:
# %% [markdown] key="storage" lang="zh" src="71cd0469"
# 只为一个新 token，却要给全部 token 重建 K 和 V。
# 背后的存储还要更大：V 是 `kv_b_proj` 输出的视图（view），而那块输出里 K 的部分又占了一份。
# 该层运行期间，每个重建的 token 占 $H\,\big((n + v) + (n + r)\big)\,b$ 字节。
#
# 换成 DeepSeek-V3，一条序列，32,768 个 token：

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
# The way out is *matrix absorption*: nothing needs to be unpacked.
# `kv_b_proj` is moved into the query and the output, and attention reads the latents themselves.
# vLLM decodes this way; [lesson 10](10_kernels.ipynb) builds such a kernel.
# Keep the two apart: the *latent cache* saves memory that stays, *absorbing* saves memory and work in every step.
# %% [markdown] key="absorb" lang="zh" src="df71e2b6"
# 出路是**矩阵吸收**（matrix absorption）：不必展开。
# 把 `kv_b_proj` 并入 query 和输出的投影，注意力直接读潜在向量。
# vLLM 就是这样解码的；[第 10 课](10_kernels.ipynb)会写这样一个 kernel。
# 两件事要分清：**缓存潜在向量**省的是常驻显存，**矩阵吸收**省的是每一步的临时显存和计算。

# %% [markdown] key="family" lang="en"
# ## The rest of the family
#
# Kimi K2 has 64 heads, so for it the usual formula is off by another factor.
# Indexer keys are included where a model has them.
# %% [markdown] key="family" lang="zh" src="30fa6ac8"
# ## 同系列的其他模型
#
# Kimi K2 只有 64 个头，常用公式的偏差倍数也就不同。
# 有 indexer 的模型已计入 indexer 的 key。

# %% key="family_table" lang="en"
rows = []
for name in ("DeepSeek-V3", "Kimi-K2", "DeepSeek-V2-Lite", "GLM-5", "DeepSeek-V3.2"):
    fields = find_model(name).config
    flat = 2 * fields["num_attention_heads"] * (fields["hidden_size"] // fields["num_attention_heads"]) * 2
    old, new = (CacheSpec.from_config(name, layout=each).layers[0] for each in ("hf-expanded", "hf"))
    sizes = [flat, old.token_bytes, new.token_bytes, f"{old.token_bytes / flat:.2f}x", new.index_bytes]
    rows.append([name, fields["num_attention_heads"], *sizes])
head = ["model", "heads", "usual", "expanded", "latent", "expanded / usual", "indexer"]
Table(head, rows, right=["expanded / usual"])

# %% key="family_table" lang="zh"
rows = []
for name in ("DeepSeek-V3", "Kimi-K2", "DeepSeek-V2-Lite", "GLM-5", "DeepSeek-V3.2"):
    fields = find_model(name).config
    flat = 2 * fields["num_attention_heads"] * (fields["hidden_size"] // fields["num_attention_heads"]) * 2
    old, new = (CacheSpec.from_config(name, layout=each).layers[0] for each in ("hf-expanded", "hf"))
    sizes = [flat, old.token_bytes, new.token_bytes, f"{old.token_bytes / flat:.2f}x", new.index_bytes]
    rows.append([name, fields["num_attention_heads"], *sizes])
head = ["模型", "头数", "常用公式", "展开", "潜在向量", "展开 / 常用公式", "索引器"]
Table(head, rows, right=["展开 / 常用公式"])

# %% [markdown] key="fixes" lang="en"
# ## Corrections that were wrong too
#
# MLA needs another formula, and writing it is harder than it looks.
# Two corrections that were published: one counts the latent twice and leaves out the rope key, the other gives each of the 128 heads a rope key of its own.
# %% [markdown] key="fixes" lang="zh" src="c357bf23"
# ## 修正也要再修正
#
# MLA 要换公式，但写对并不容易。
# 有两种公开发表过的修正：一种把潜在向量算了两份，又漏掉 rope key；另一种给 128 个头各算了一份 rope key。

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
# Those are MiB ($2^{20}$ bytes), as the table shows.
# `estimate_kv_cache_gb` is the usual helper again, this time asking the spec.
# %% [markdown] key="units" lang="zh" src="107bb87c"
# ## MB 还是 MiB
#
# 61 层、100 个 token，有文档写成“477 MB”和“167 MB”。
# 从表里可以看出，这其实是 MiB（$2^{20}$ 字节）。
# `estimate_kv_cache_gb` 是常见的那个函数的改正版，数字改由 spec 计算。

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
# The estimate is only there to choose a batch.
# Take 18 GB free and 512 tokens a sequence, prompt and answer together.
#
# `max_batch_size` fills 90 % of the free memory and sets aside two things that live only during a step:
#
# - one layer twice: transformers grows a cache by joining old and new into a new tensor;
# - the rebuild of one layer, where the cache holds latents.
#
# The third row leaves the rebuild out, so the last two rows differ in nothing else.
# The two columns say what that batch needs under each library, one layer counted twice.
# %% [markdown] key="batch" lang="zh" src="35e59502"
# ## batch 计算器：修正前后
#
# 做估算，只是为了选 batch 大小。
# 设可用显存 18 GB，每条序列 512 个 token（提示词与生成合计）。
#
# `max_batch_size` 使用可用显存的 90%，并为只在一步之内存在的两样东西留出显存：
#
# - 有一层会存在两份：transformers 扩展缓存时，把旧的和新的拼接成一个新张量；
# - 缓存的是潜在向量时，还有一层的重建。
#
# 第三行故意不算重建，所以最后两行只差这一项。
# 中间两列是该 batch 在两个版本的库里各需要多少显存（有一层按两份计）。

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
# Read the rows against 18 GB.
#
# - Row 1 is what happened to the script: under the old library its batch needs more than twice what is there. Under today's library the same batch leaves most of the memory idle.
# - Row 3 shows what goes wrong if you correct only the cache formula. The cache fits, but the rebuild of one layer doesn't.
# - Row 4 fits. In it, the memory that exists for a moment is larger than the cache.
#
# The rebuild is what we watched `expand_kv` hold. Other activations come on top, so a real script measures its peak.
# %% [markdown] key="batch_read" lang="zh" src="2187371c"
# 拿每一行与 18 GB 比较。
#
# - 第 1 行就是常用公式的结果：在旧版库里，这个 batch 需要的显存超过可用量的两倍。到了现在的版本，同样的 batch 又让大部分显存闲置。
# - 第 3 行说明只改缓存公式会怎样：缓存放得下，一层的重建放不下。
# - 第 4 行放得下。其中临时占用的显存比缓存本身还多。
#
# 这里的重建量就是前面记录到的 `expand_kv` 所占的显存。此外还有别的激活，实际的脚本应当测量峰值。

# %% [markdown] key="blame" lang="en"
# ## What a wrong estimate can and cannot cause
#
# | the estimate is | it causes | it cannot cause |
# |---|---|---|
# | too small | a batch that is too big, a peak over the budget, out of memory | memory that stays after the run |
# | too big | a small batch, an idle GPU | out of memory |
#
# It is tempting to conclude more: too big a batch, fragments, therefore memory that will not come back.
# Nothing supports that step.
# An estimate is a number and holds no tensor.
# `empty_cache()` gives back cached memory that is in use by no tensor; memory that a tensor occupies it cannot free ([PyTorch's notes](https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management)).
# So the question is which object still holds a tensor, and the size of the batch does not answer it:
# %% [markdown] key="blame" lang="zh" src="fcc9430c"
# ## 错误的估算能造成什么，不能造成什么
#
# | 估算 | 会造成 | 不会造成 |
# |---|---|---|
# | 偏小 | batch 过大，峰值超出预算，显存不足 | 运行结束后显存仍被占用 |
# | 偏大 | batch 过小，GPU 闲置 | 显存不足 |
#
# 有人会继续推论：batch 过大，产生碎片，所以显存收不回来。
# 这一步没有任何依据。
# 估算只是一个数字，不持有张量。
# `empty_cache()` 归还的是没有张量在用的缓存显存；张量占着的显存，它释放不了（见 [PyTorch 文档](https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management)）。
# 所以该问的是哪个对象还持有张量，这与 batch 大小无关：

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
# The weak reference shows that the object died: both caches are gone when their last name is.
# It does not show what the allocator did with the memory.
# On a GPU the next cell does: *allocated* is what tensors occupy, *reserved* is what PyTorch has taken from the GPU.
# %% [markdown] key="blame_object" lang="zh" src="27884fff"
# 弱引用说明的是对象已经销毁：最后一个引用消失，两个缓存都随之销毁。
# 至于分配器怎样处理那块显存，它看不出来。
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
# Who really keeps memory after `generate()` is the case of [lesson 16](16_where_did_6gb_go.ipynb).
# %% [markdown] key="blame_next" lang="zh" src="9fd72dbc"
# `generate()` 之后究竟是谁占着显存，留到[第 16 课](16_where_did_6gb_go.ipynb)再查。

# %% [markdown] key="ranks" lang="en"
# ## Eight GPUs, eight copies
#
# Tensor parallelism divides KV heads among GPUs.
# A latent has no heads to divide: each rank's query heads need all of it.
# %% [markdown] key="ranks" lang="zh" src="320a9cf3"
# ## 8 块 GPU，8 份副本
#
# 张量并行（TP）把 KV 头分给各块 GPU。
# 潜在向量没有头可分：每个 rank 上的 query 头都需要完整的潜在向量。

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
# A token of the whole model, in bytes.
# GQA shrinks per rank until every rank has one head (tp 8); from there on heads are replicated.
# MLA never shrinks: more ranks bring more copies.
#
# [vLLM #51454](https://github.com/vllm-project/vllm/issues/51454) measured what this costs on 8 GPUs with another MLA model, DeepSeek-V4-Flash.
# With tp 8 the start-up log promised room for 20.43 requests of a million tokens.
# With 8 data-parallel replicas of the attention, each with a cache of its own requests, it promised 156.9:
# %% [markdown] key="ranks_read" lang="zh" src="d4928dc2"
# 表中是整个模型一个 token 的字节数。
# GQA 的每 rank 份额会一直变小，直到每个 rank 只剩一个头（tp 为 8）；再往上 KV 头就要复制。
# MLA 从不变小：rank 越多，副本越多。
#
# [vLLM #51454](https://github.com/vllm-project/vllm/issues/51454) 用另一个 MLA 模型 DeepSeek-V4-Flash 在 8 块 GPU 上测了这个代价。
# tp 为 8 时，启动日志显示可容纳 20.43 个百万 token 的请求。
# 改为 8 份数据并行的注意力，各自只缓存自己的请求，则可容纳 156.9 个：

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
# 运行之前先想：三个数里哪个取决于 `kv_lora_rank`？哪个取决于头数？

# %% key="break_fields" lang="en"
changes = [{}, {"kv_lora_rank": 1024}, {"qk_rope_head_dim": 1}, {"qk_rope_head_dim": 128}, {"v_head_dim": 256}]
changes += [{"num_attention_heads": 16, "num_key_value_heads": 16}]
rows = []
for change in changes:
    broken = {**config, **change}
    old, new = (CacheSpec.from_config(broken, layout=each).layers[0] for each in ("hf-expanded", "hf"))
    flat = 2 * broken["num_attention_heads"] * (hidden // broken["num_attention_heads"]) * 2
    rows.append([str(change), flat, old.token_bytes, new.token_bytes])
Table(["change", "usual", "expanded", "latent"], rows)

# %% key="break_fields" lang="zh"
changes = [{}, {"kv_lora_rank": 1024}, {"qk_rope_head_dim": 1}, {"qk_rope_head_dim": 128}, {"v_head_dim": 256}]
changes += [{"num_attention_heads": 16, "num_key_value_heads": 16}]
rows = []
for change in changes:
    broken = {**config, **change}
    old, new = (CacheSpec.from_config(broken, layout=each).layers[0] for each in ("hf-expanded", "hf"))
    flat = 2 * broken["num_attention_heads"] * (hidden // broken["num_attention_heads"]) * 2
    rows.append([str(change), flat, old.token_bytes, new.token_bytes])
Table(["改动", "常用公式", "展开", "潜在向量"], rows)

# %% [markdown] key="break_read" lang="en"
# The naive column never moves: it reads none of the fields that MLA is made of.
# Heads and `v_head_dim` move the expanded cache alone, `kv_lora_rank` the latent alone, the rope part both.
#
# A rope part of 0 is refused instead of computed: without it this model would have no positions.
# %% [markdown] key="break_read" lang="zh" src="a251bd5d"
# 朴素那一列始终不变：构成 MLA 的字段，它一个也没读。
# 头数和 `v_head_dim` 只影响展开的缓存，`kv_lora_rank` 只影响潜在向量，rope 部分两者都影响。
#
# rope 部分设为 0 会直接报错，不会硬算：没有它，这个模型就没有位置信息。

# %% key="break_zero"
from minikv.errors import ConfigError

try:
    CacheSpec.from_config({**config, "qk_rope_head_dim": 0})
except ConfigError as error:
    print(t(error))

# %% [markdown] key="break_trust" lang="en"
# Now trust `head_dim` and halve the rope part twice.
# Your estimate falls to a quarter; the cache hardly moves.
# %% [markdown] key="break_trust" lang="zh" src="2e96e5aa"
# 再来相信一次 `head_dim`，把 rope 部分减半两次。
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
# The usual formula knows only the hidden size: 28,672 B for DeepSeek-V3, with any number of heads.
# A layer of DeepSeek-V3 makes 81,920 B of K and V out of 1,152 B of latent and rope key; transformers cached the former up to 5.14.1 and caches the latter since.
# A latent cache still pays for the rebuild: at 32,768 tokens one layer caches 37.7 MB and rebuilds 2,684 MB in every step.
# Tensor parallelism does not divide a latent: 16 GPUs hold it 16 times.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="d193cb17"
# ## 本课小结
#
# 常用公式只看隐藏维度：对 DeepSeek-V3，不管头数是多少，都是 28,672 B。
# DeepSeek-V3 的一层由 1,152 B 的潜在向量和 rope key 展开成 81,920 B 的 K 和 V；transformers 到 5.14.1 为止缓存后者，之后缓存前者。
# 缓存潜在向量仍要付出重建的代价：32,768 个 token 时，一层缓存 37.7 MB，每一步却要重建 2,684 MB。
# 张量并行分不开潜在向量：16 块 GPU 就存 16 份。
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

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# A script chose its batch for DeepSeek-V3 with the usual formula, and after `generate()` 5.5 GB were free where about 18 GB were expected; a document, "Memory Retention After model.generate() — Root Cause Analysis", blames that formula for it.
# It explains a gap of 6 GB, but 18 GB minus 5.5 GB is 12.5 GB, and "What a wrong estimate can and cannot cause" shows why it explains neither.
#
# In February 2025 a user asked why the Hugging Face code caches far more than the paper promises ([DeepSeek-R1 #238](https://github.com/deepseek-ai/DeepSeek-R1/issues/238)), with 8,704 elements for the paper's way.
# "Which library caches which" answers the question; the table of corrections has the 8,704.
#
# In [TensorRT-LLM PR #16707](https://github.com/NVIDIA/TensorRT-LLM/pull/16707) the usual formula was about 25x too big for DeepSeek-V3.2, and a benchmark settled for a batch of 64.
# That is the second line of "Four answers for one config"; with the indexer's cache it would be 20.4x.
#
# LMCache's public calculator was "also not correct" ([#688](https://github.com/LMCache/LMCache/issues/688)), was changed to a wrong formula ([PR #694](https://github.com/LMCache/LMCache/pull/694)) and changed back six days later ([PR #715](https://github.com/LMCache/LMCache/pull/715)); [#2132](https://github.com/LMCache/LMCache/issues/2132) reported it once more and named [#671](https://github.com/LMCache/LMCache/pull/671) as right.
# The first and the last line of the table of corrections are these two; 70,272 B a token is the right one.
#
# [DeepSeek-V3 #305](https://github.com/deepseek-ai/DeepSeek-V3/issues/305) asks what the cache is for if K and V are made again from the latent.
# "The latent alone does not make decoding cheap" measures it; the answer there was "the trick of matrix absorption".
# %% [markdown] key="wild" lang="zh" src="6969bb5e"
# ## 实战现场
#
# 有个脚本用常用公式给 DeepSeek-V3 选 batch，`generate()` 之后本该有约 18 GB 空闲，实际只有 5.5 GB；文档《Memory Retention After model.generate() — Root Cause Analysis》把原因归到这个公式。
# 它解释的是 6 GB 的缺口，而 18 GB 减 5.5 GB 是 12.5 GB；“错误的估算能造成什么，不能造成什么”一节说明，它两个都解释不了。
#
# 2025 年 2 月，有用户问 Hugging Face 上的代码为什么缓存得比论文说的多那么多（[DeepSeek-R1 #238](https://github.com/deepseek-ai/DeepSeek-R1/issues/238)），并按论文的做法算出 8,704 个元素。
# “哪个库缓存哪一种”一节回答了这个问题；8,704 就在那张修正表里。
#
# [TensorRT-LLM PR #16707](https://github.com/NVIDIA/TensorRT-LLM/pull/16707) 里，常用公式用在 DeepSeek-V3.2 上约为实际值的 25 倍，基准测试的 batch 只开到 64。
# 这就是“同一份配置，四个答案”一节里的第二行；计入 indexer 的缓存是 20.4 倍。
#
# LMCache 的公开计算器先被指“也不对”（[#688](https://github.com/LMCache/LMCache/issues/688)），改成了错的公式（[PR #694](https://github.com/LMCache/LMCache/pull/694)），六天后又改回（[PR #715](https://github.com/LMCache/LMCache/pull/715)）；后来 [#2132](https://github.com/LMCache/LMCache/issues/2132) 再次报告，并指出 [#671](https://github.com/LMCache/LMCache/pull/671) 的数值才对。
# 修正表的第一行和最后一行就是这两种，每个 token 70,272 B 的那个是对的。
#
# [DeepSeek-V3 #305](https://github.com/deepseek-ai/DeepSeek-V3/issues/305) 问：如果 K 和 V 还要由潜在向量重新生成，那缓存有什么用？
# “只缓存潜在向量，解码并不会变便宜”一节测了代价；那里得到的答复就是矩阵吸收。

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# The exercise notebook of this lesson asks for five functions:
#
# 1. `expanded_bytes`: K and V of every head.
# 2. `latent_bytes`: what is cached today. One of its arguments is there to tempt you.
# 3. `cache_kind`: heads, expanded or latent, from a config and a library version.
# 4. `max_batch`: the calculator that the script should have had, padding and transient memory included.
# 5. `rank_bytes`: one token on one of `tp` ranks, MLA and GQA.
# %% [markdown] key="exercises" lang="zh" src="f4a99209"
# ## 练习
#
# 本课的练习 notebook 要你写五个函数：
#
# 1. `expanded_bytes`：每个头的 K 和 V。
# 2. `latent_bytes`：现在缓存的内容。它有一个参数是干扰项。
# 3. `cache_kind`：根据配置和库版本，判断是 heads、expanded 还是 latent。
# 4. `max_batch`：脚本本该有的计算器，要考虑补齐和临时显存。
# 5. `rank_bytes`：MLA 与 GQA 在 `tp` 个 rank 中的一个上，一个 token 占多少字节。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | my number is off by 2.86x, 20x, 25x or 71x | `print(CacheSpec.from_config(config, layout="hf").explain())`: which fields it read; then the same with `"hf-expanded"` |
# | I do not know what my library caches | `cache.layers[0].keys.shape` after a prefill: `[B, 1, T, 512]` is a latent, `[B, 128, T, 192]` is expanded |
# | the cache fits on paper, the run is out of memory | `rebuilt_bytes(config, tokens)`: what one layer's rebuild takes for a moment, for each sequence |
# %% [markdown] key="stuck" lang="zh" src="ca9f667e"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 我的数字差了 2.86 倍、20 倍、25 倍或 71 倍 | `print(CacheSpec.from_config(config, layout="hf").explain("zh"))`：看它读了哪些字段；再换成 `"hf-expanded"` 对比 |
# | 不知道我的库缓存的是哪一种 | 预填充后看 `cache.layers[0].keys.shape`：`[B, 1, T, 512]` 是潜在向量，`[B, 128, T, 192]` 是展开的 K |
# | 纸面上缓存放得下，运行时却显存不足 | `rebuilt_bytes(config, tokens)`：每条序列重建一层 K、V 时临时占用的显存 |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# You can now say how many bytes a token takes, in which library, on how many ranks.
# [Lesson 04](04_the_roofline.ipynb) asks what it costs to *read* those bytes in every decode step, and why the GPU waits for them.
# %% [markdown] key="next" lang="zh" src="1c4f8699"
# ## 下一课
#
# 现在你能说清一个 token 占多少字节：在哪个库里，在几个 rank 上。
# [第 04 课](04_the_roofline.ipynb)接着问：每个解码步骤**读取**这些字节要花多少时间，GPU 又为什么要等它们。
