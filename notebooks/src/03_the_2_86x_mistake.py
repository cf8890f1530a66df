# %% [meta]
# number = "03"
# slug = "the_2_86x_mistake"
# needs = ["02"]
# rooms = ["plan.spec", "plan.estimate"]
# minutes = 60
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
# A script runs DeepSeek-V3 with a batch that its own calculator chose.
# After `generate()`, `gc.collect()` and `empty_cache()`, 5.5 GB are free where about 18 GB were expected.
# The document that looks into it, "Memory Retention After model.generate() — Root Cause Analysis" (from here on: the analysis), finds one line to blame:
#
# ```python
# head_dim = config.hidden_size // config.num_attention_heads
# ```
#
# It says that this line makes the KV cache look 2.86x smaller than it is.
#
# Others met the same gap from other sides.
# In [DeepSeek-R1 #238](https://github.com/deepseek-ai/DeepSeek-R1/issues/238) somebody asked in February 2025 why the Hugging Face code caches far more than the paper promises; the issue was closed as stale.
# In [TensorRT-LLM PR #16707](https://github.com/NVIDIA/TensorRT-LLM/pull/16707) the usual formula was about 25x too *big* for DeepSeek-V3.2, and a benchmark settled for a batch of 64.
# The PR calls 242 viable; its own review notes that the indexer's cache is not counted in that.
#
# **How can one formula be 2.86x too small and more than 20x too big for the same family of models?**
#
# This lesson shows how, and then corrects the corrections.
# %% [markdown] key="question" lang="zh" src="3998daa3"
# ## 问题
#
# 有个脚本运行 DeepSeek-V3，batch 大小由脚本自己的计算器决定。
# `generate()`、`gc.collect()`、`empty_cache()` 之后，本该有约 18 GB 空闲显存，实际只有 5.5 GB。
# 追查此事的文档《Memory Retention After model.generate() — Root Cause Analysis》（下称原文）把原因归到这一行：
#
# ```python
# head_dim = config.hidden_size // config.num_attention_heads
# ```
#
# 原文认为，这一行把 KV 缓存算小了：实际值是它的 2.86 倍。
#
# 别人从另外的角度也碰到过同一个差距。
# 2025 年 2 月，[DeepSeek-R1 #238](https://github.com/deepseek-ai/DeepSeek-R1/issues/238) 问：Hugging Face 上的代码为什么缓存得比论文说的多那么多？“代码中似乎没实现这个大优化”。这个 issue 因长期无人跟进而关闭。
# [TensorRT-LLM PR #16707](https://github.com/NVIDIA/TensorRT-LLM/pull/16707) 里，常用公式用在 DeepSeek-V3.2 上反而**偏大**，约为实际值的 25 倍，基准测试的 batch 只开到 64。
# 该 PR 说 242 可行；而 PR 自带的评审指出，这个数没有计入 indexer 的缓存。
#
# **同一个公式，用在同一系列的模型上，怎么会有时只算出实际值的 1/2.86，有时又算成实际值的 20 多倍？**
#
# 本课先讲清原因，再来纠正各种“修正”。

# %% [markdown] key="script" lang="en"
# ## What the script computed
#
# The three numbers come from DeepSeek-V3's `config.json`.
# The 2 in front is one K and one V, the 2 at the end is bytes an element (bf16).
# %% [markdown] key="script" lang="zh" src="236861d7"
# ## 脚本算了什么
#
# 用到的数字都取自 DeepSeek-V3 的 `config.json`。
# 开头的 2 是一份 K 加一份 V，末尾的 2 是每个元素的字节数（bf16）。

# %% [markdown] key="ask_naive" lang="en"
# Before you run it: what does the same line say about a model with another number of heads?
# %% [markdown] key="ask_naive" lang="zh" src="bf75440e"
# 先别运行：换一个头数不同的模型，这一行会给出多少？

# %% key="predict_naive"
predict("naive_heads", ...)

# %% key="naive"
from minikv.plan import CacheSpec, estimate_kv_cache_gb, find_model, max_batch_size, rebuilt_bytes

config = find_model("DeepSeek-V3").config
heads, hidden = config["num_attention_heads"], config["hidden_size"]
head_dim = hidden // heads
naive = 2 * heads * head_dim * 2
print(f"head_dim = {hidden} // {heads} = {head_dim}")
print(f"2 * {heads} * {head_dim} * 2 = {naive:,} B")

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

# %% key="naive_any_heads"
for any_heads in (32, 64, 128, 256):
    dim = hidden // any_heads
    print(f"2 * {any_heads:>3} * {dim:>3} * 2 = {2 * any_heads * dim * 2:,} B")

# %% [markdown] key="mla" lang="en"
# ## What an MLA layer makes of a token
#
# DeepSeek-V3 uses multi-head latent attention (MLA).
# One matrix squeezes the hidden state into a *latent* of 512 elements and a *rope key* of 64.
# All 128 heads share both.
# A second matrix unpacks the latent into K and V for each head.
#
# ```text
#   hidden state                      7,168
#        |  kv_a_proj_with_mqa
#        +--> latent                    512   kv_lora_rank        } cached today:
#        +--> rope key                   64   qk_rope_head_dim    } 512 + 64 elements
#        |
#        |  kv_b_proj, then the rope key is copied to every head
#        |
#        +--> K, each of 128 heads      192   qk_nope_head_dim 128 + 64    } cached earlier:
#        +--> V, each of 128 heads      128   v_head_dim                   } 128 * (192 + 128)
# ```
#
# Position is the reason for the second, small vector.
# RoPE turns a key by an angle that depends on its position, and this turn cannot be moved past `kv_b_proj`.
# So the part that is turned is kept apart, and the latent stays free of position.
# %% [markdown] key="mla" lang="zh" src="8916b026"
# ## MLA 层怎样处理一个 token
#
# DeepSeek-V3 采用多头潜在注意力（MLA）。
# 一个矩阵把隐藏状态压缩成 512 个元素的潜在向量（latent），外加 64 个元素的 rope key。
# 128 个头共用这两个向量。
# 另一个矩阵再把潜在向量展开成每个头的 K 和 V。
#
# ```text
#   隐藏状态                          7,168
#        |  kv_a_proj_with_mqa
#        +--> latent                    512   kv_lora_rank        } 现在缓存的：
#        +--> rope key                   64   qk_rope_head_dim    } 512 + 64 个元素
#        |
#        |  kv_b_proj，再把 rope key 复制到每个头
#        |
#        +--> K（128 个头，每头）       192   qk_nope_head_dim 128 + 64    } 以前缓存的：
#        +--> V（128 个头，每头）       128   v_head_dim                   } 128 * (192 + 128)
# ```
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

# %% key="heads_picture"
from minikv.course.diagrams import attention_heads

llama = find_model("Llama-2-7B").config
models = {
    "Llama-2-7B": "Llama-2-7B",
    "Llama-3.1-8B": "Llama-3.1-8B",
    t("one_head"): {**llama, "num_key_value_heads": 1},
    "DeepSeek-V3": "DeepSeek-V3",
}
show(attention_heads(models, t("lang")))

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
# `CacheSpec` knows both: `layout="hf-expanded"` is what transformers up to 5.14.1 caches, `layout="hf"` what it caches since 5.15.0.
# The analysis put the left formula in place of the script's line.
# %% [markdown] key="symbols" lang="zh" src="0c60623a"
# | 符号 | 配置字段 | 单位 | DeepSeek-V3 |
# |---|---|---|---|
# | $H$ | `num_attention_heads` | 头 | 128 |
# | $n$ | `qk_nope_head_dim`：K 中不带位置的部分 | 元素/头 | 128 |
# | $r$ | `qk_rope_head_dim`：rope key | 元素 | 64 |
# | $v$ | `v_head_dim` | 元素/头 | 128 |
# | $c$ | `kv_lora_rank`：潜在向量 | 元素 | 512 |
# | $b$ | 数据类型（bf16 为 2） | 字节/元素 | 2 |
#
# 两种布局 `CacheSpec` 都能算：`layout="hf-expanded"` 对应 transformers 5.14.1 及更早版本，`layout="hf"` 对应 5.15.0 及以后。
# 原文的修正，就是用左边的公式替换脚本里的那一行。

# %% key="explain_spec"
for layout in ("hf-expanded", "hf"):
    print(CacheSpec.from_config("DeepSeek-V3", layout=layout).explain(t("lang")), end="\n\n")

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

# %% key="four_answers"
from transformers import DeepseekV3Config

rope_dim = DeepseekV3Config().head_dim
answers = {
    "naive": naive,
    "head_dim": 2 * heads * rope_dim * 2,
    "expanded": CacheSpec.from_config("DeepSeek-V3", layout="hf-expanded").layers[0].token_bytes,
    "latent": CacheSpec.from_config("DeepSeek-V3", layout="hf").layers[0].token_bytes,
}
for name, num_bytes in answers.items():
    print(f"{num_bytes:>7,} B   {t('row_' + name)}")

# %% key="four_ratios"
with_indexer = CacheSpec.from_config("DeepSeek-V3.2", layout="hf").layers[0].token_bytes
print(t("ratio_expanded", ratio=answers["expanded"] / answers["naive"]))
print(t("ratio_naive", ratio=answers["naive"] / answers["latent"]))
print(t("ratio_indexer", ratio=answers["naive"] / with_indexer, num_bytes=with_indexer))
print(t("ratio_fix", ratio=answers["expanded"] / answers["latent"]))

# %% [markdown] key="ratios_read" lang="en"
# The 25x of TensorRT-LLM PR #16707 is the second line: latent and rope key, no indexer.
# DeepSeek-V3.2, the model of that PR, also caches an indexer key; in bf16 this leaves 20.4x.
# %% [markdown] key="ratios_read" lang="zh" src="16b77db4"
# TensorRT-LLM PR #16707 的 25 倍对应第二行：只算潜在向量和 rope key，不含 indexer。
# 而那个 PR 针对的 DeepSeek-V3.2 还要缓存 indexer 的 key；按 bf16 计入后是 20.4 倍。

# %% key="four_bars"
import plotly.graph_objects as go

labels = ["hidden // heads", f"head_dim = {rope_dim}", t("bar_expanded"), t("bar_latent")]
texts = [f"{num_bytes:,} B" for num_bytes in answers.values()]
bars = go.Bar(x=list(answers.values()), y=labels, orientation="h", text=texts, textposition="outside")
figure = go.Figure(bars)
figure.update_xaxes(type="log", dtick=1, range=[2.5, 5.5], title=t("bars_axis"))
figure.update_yaxes(autorange="reversed", automargin=True)
figure.update_layout(height=280, margin={"t": 20, "r": 20})
summary = "\n".join(f"{number:>9}   {label}" for label, number in zip(labels, texts))
show(figure, text=summary, caption=t("bars_caption"))

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
# So the 81,920 B of the analysis were right for the library that it ran on.
# After an upgrade the same script errs in the other direction, and nobody changed a line of it.
# %% [markdown] key="versions" lang="zh" src="f65a5d7f"
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
# 所以就当时的库版本而言，原文的 81,920 B 是对的。
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

# %% key="small_model"
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
print(f"2 * (32 + 8) * 2 = {spec.bytes_for(1)} B")

# %% key="helpers"
@torch.no_grad()
def step(tokens, cache=None):
    return model(tokens.to(device), past_key_values=cache, use_cache=True)


def held_bytes(cache):
    return sum(tensor.nbytes for layer in cache.layers for tensor in (layer.keys, layer.values))

# %% key="held"
out = step(torch.randint(0, 64, (3, 9)))
for tokens in (9, 10, 11, 12):
    if tokens > 9:
        out = step(out.logits[:, -1:].argmax(-1), out.past_key_values)
    held = held_bytes(out.past_key_values)
    print(t("held", tokens=tokens, held=held, spec=spec.bytes_for(tokens, batch=3)))

# %% [markdown] key="shapes" lang="en"
# Equal to the byte.
# The shapes say the rest: the second dimension, where heads would stand, is 1.
# %% [markdown] key="shapes" lang="zh" src="b38a6864"
# 一个字节都不差。
# 形状也说明了问题：本该是头数的第二维，值为 1。

# %% key="cached_shapes"
layer = out.past_key_values.layers[0]
print("keys  ", list(layer.keys.shape))
print("values", list(layer.values.shape))

# %% [markdown] key="rebuild" lang="en"
# ## The latent alone does not make decoding cheap
#
# In [DeepSeek-V3 #305](https://github.com/deepseek-ai/DeepSeek-V3/issues/305) a reader asks the right question: if K and V are made again from the latent, what is the cache for?
# In transformers they *are* made again: `expand_kv` runs in every layer, in every step, over every cached token.
# %% [markdown] key="rebuild" lang="zh" src="35b7db25"
# ## 只缓存潜在向量，解码并不会变便宜
#
# [DeepSeek-V3 #305](https://github.com/deepseek-ai/DeepSeek-V3/issues/305) 里有位读者问到了点子上：如果 K 和 V 还要由潜在向量重新生成，那缓存有什么用？
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

# %% key="rebuilt_sizes"
k, v = made[0]
latent_bytes = layer.keys.nbytes + layer.values.nbytes
storage = k.untyped_storage().nbytes() + v.untyped_storage().nbytes()
print(t("rebuilt_shapes", cached=k.shape[2], k=list(k.shape), v=list(v.shape)))
print(t("rebuilt_bytes", latent=latent_bytes, values=k.nbytes + v.nbytes, storage=storage))

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

# %% key="rebuild_big"
rebuilt_token = heads * ((128 + 128) + (128 + 64)) * 2
assert rebuilt_token == rebuilt_bytes("DeepSeek-V3", 1)
tokens = 32_768
latent_mb, values_mb = (answers[name] * tokens / 1e6 for name in ("latent", "expanded"))
print(t("rebuilt_big", tokens=tokens, latent=latent_mb, values=values_mb))
print(t("rebuilt_held", storage=rebuilt_token * tokens / 1e6))

# %% [markdown] key="absorb" lang="en"
# The answer that #305 got is the way out: with "the trick of matrix absorption" nothing needs to be unpacked.
# `kv_b_proj` is moved into the query and the output, and attention reads the latents themselves.
# vLLM decodes this way; [lesson 10](10_kernels.ipynb) builds such a kernel.
# Keep the two apart: the *latent cache* saves memory that stays, *absorbing* saves memory and work in every step.
# %% [markdown] key="absorb" lang="zh" src="13929cef"
# 出路就在 #305 得到的答复里：用矩阵吸收（matrix absorption），不必展开。
# 把 `kv_b_proj` 并入 query 和输出的投影，注意力直接读潜在向量。
# vLLM 就是这样解码的；[第 10 课](10_kernels.ipynb)会写这样一个 kernel。
# 两件事要分清：**缓存潜在向量**省的是常驻显存，**矩阵吸收**省的是每一步的临时显存和计算。

# %% [markdown] key="family" lang="en"
# ## The rest of the family
#
# The analysis puts "DeepSeek V3 / Kimi K2" over one list of values with 128 heads.
# Kimi K2 has 64, so for it the naive formula is off by another factor.
# The columns: naive, expanded, latent (today), and expanded over naive; indexer keys are included where a model has them.
# %% [markdown] key="family" lang="zh" src="36894c1f"
# ## 同系列的其他模型
#
# 原文用“DeepSeek V3 / Kimi K2”作标题，下面只列了一组数值，头数都是 128。
# 而 Kimi K2 只有 64 个头，朴素公式的偏差倍数也就不同。
# 各列依次为：朴素、展开、潜在向量（当前版本）、展开与朴素之比；有 indexer 的模型已计入 indexer 的 key。

# %% key="family_table"
for name in ("DeepSeek-V3", "Kimi-K2", "DeepSeek-V2-Lite", "GLM-5", "DeepSeek-V3.2"):
    fields = find_model(name).config
    flat = 2 * fields["num_attention_heads"] * (fields["hidden_size"] // fields["num_attention_heads"]) * 2
    old, new = (CacheSpec.from_config(name, layout=each).layers[0] for each in ("hf-expanded", "hf"))
    sizes = {"naive": flat, "expanded": old.token_bytes, "latent": new.token_bytes, "indexer": new.index_bytes}
    ratio = old.token_bytes / flat
    print(t("family_line", name=name, heads=fields["num_attention_heads"], ratio=ratio, **sizes))

# %% [markdown] key="fixes" lang="en"
# ## Corrections that need one
#
# Most people notice that MLA needs another formula. Writing it is harder than it looks.
#
# - LMCache has a public calculator. In [#688](https://github.com/LMCache/LMCache/issues/688) a comment called its DeepSeek formula "also not correct", and [PR #694](https://github.com/LMCache/LMCache/pull/694) changed it to `2 x L x S x d_c x B`. The 2 should be 1, since K and V come from one latent, and the rope key is missing. Two errors, and they pull in opposite directions.
# - The formula before had been right. [PR #715](https://github.com/LMCache/LMCache/pull/715), opened six days after #694, put it back as "the original correct one": layers x tokens x (`qk_rope_head_dim` + `kv_lora_rank`) elements, 70,272 B a token. Half a year later [#2132](https://github.com/LMCache/LMCache/issues/2132) reported a regression again, and named [#671](https://github.com/LMCache/LMCache/pull/671) as the one with the proper value.
# - DeepSeek-R1 #238 computes what the paper's way would cost: 8,704 elements. It gives each of the 128 heads a rope key of its own.
# %% [markdown] key="fixes" lang="zh" src="1be66e65"
# ## 修正也要再修正
#
# 很多人意识到 MLA 要换公式，但写对并不容易。
#
# - LMCache 有一个公开的计算器。[#688](https://github.com/LMCache/LMCache/issues/688) 的一条评论说它的 DeepSeek 公式“也不对”，随后 [PR #694](https://github.com/LMCache/LMCache/pull/694) 把公式改成了 `2 x L x S x d_c x B`。这里的 2 应该是 1，因为 K 和 V 出自同一个潜在向量；另外漏掉了 rope key。两处错误，方向相反。
# - 原来的公式其实是对的。[PR #715](https://github.com/LMCache/LMCache/pull/715) 在 #694 六天之后提出，改回“原先正确的那个”：层数 x token 数 x（`qk_rope_head_dim` + `kv_lora_rank`）个元素，每个 token 70,272 B。半年后 [#2132](https://github.com/LMCache/LMCache/issues/2132) 又报告了一次回退，并指出 [#671](https://github.com/LMCache/LMCache/pull/671) 当初的数值才对。
# - DeepSeek-R1 #238 按论文的做法算出 8,704 个元素：它给 128 个头各算了一份 rope key。

# %% key="fixes_table"
rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
for key, elements in (("lmcache", 2 * rank), ("rope_heads", rank + heads * rope), ("right", rank + rope)):
    print(f"{elements:>6,} * 2 = {elements * 2:>6,} B  {elements / (rank + rope):>6.2f}x  {t('fix_' + key)}")
layers = config["num_hidden_layers"]
print(t("fix_total", layers=layers, elements=rank + rope, total=layers * (rank + rope) * 2))

# %% [markdown] key="units" lang="en"
# ## Two more numbers to check
#
# The analysis multiplies by 61 layers and 100 tokens and prints "477 MB" and "167 MB".
# Those are MiB ($2^{20}$ bytes).
# It also sets out to explain 6 GB, while 18 GB expected and 5.5 GB found leave twice that.
# An explanation that covers half of the gap is not finished.
# `estimate_kv_cache_gb` is the script's helper again, this time asking the spec.
# %% [markdown] key="units" lang="zh" src="3d24683e"
# ## 另外两个值得核对的数字
#
# 原文乘以 61 层和 100 个 token，写成“477 MB”和“167 MB”。
# 这其实是 MiB（$2^{20}$ 字节）。
# 原文要解释的是 6 GB，但预期 18 GB、实测 5.5 GB，缺口有它的两倍。
# 只解释了一半缺口，就还不能算查清。
# `estimate_kv_cache_gb` 是脚本里那个函数的改正版，数字改由 spec 计算。

# %% key="units_check"
old_way = CacheSpec.from_config("DeepSeek-V3", layout="hf-expanded")
for name, num_bytes in (("expanded", old_way.bytes_for(100)), ("naive", naive * 61 * 100)):
    print(t("units_line", name=t("units_" + name), num_bytes=num_bytes, mb=num_bytes / 1e6, mib=num_bytes / 2**20))
for layout in ("hf-expanded", "hf"):
    print(f"{layout}: {estimate_kv_cache_gb('DeepSeek-V3', 100, layout=layout):.4f} GB")
print(t("missing_line", missing=18 - 5.5))

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

# %% key="batch_table"
free, tokens = 18 * 10**9, 512
rebuilt = tokens * rebuilt_token
batches = {
    "naive": int(free * 0.9) // (naive * 61 * tokens),
    "expanded": max_batch_size("DeepSeek-V3", free, tokens, layout="hf-expanded"),
    "latent": int(free * 0.9) // ((61 + 1) * answers["latent"] * tokens),
    "right": max_batch_size("DeepSeek-V3", free, tokens),
}

# %% key="batch_needs"
layers = config["num_hidden_layers"] + 1
print("batch   <= 5.14.1   >= 5.15.0")
for name, batch in batches.items():
    old_need = batch * layers * answers["expanded"] * tokens / 1e9
    new_need = batch * (layers * answers["latent"] * tokens + rebuilt) / 1e9
    print(f"{batch:>5} {old_need:>8,.1f} GB {new_need:>8.1f} GB   {t('batch_' + name)}")
cache_gb = batches["right"] * CacheSpec.from_config("DeepSeek-V3").bytes_for(tokens) / 1e9
print(t("batch_split", batch=batches["right"], cache=cache_gb, rebuilt=batches["right"] * rebuilt / 1e9))

# %% [markdown] key="batch_read" lang="en"
# Read the rows against 18 GB.
#
# - Row 1 is what happened to the script: under the old library its batch needs more than twice what is there. Under today's library the same batch leaves most of the memory idle.
# - Row 3 is the next accident, waiting for whoever corrects only the cache formula: the cache fits, the rebuild does not.
# - Row 4 fits. In it, the memory that exists for a moment is larger than the cache.
#
# The rebuild is what we watched `expand_kv` hold. Other activations come on top, so a real script measures its peak.
# %% [markdown] key="batch_read" lang="zh" src="97aa8e38"
# 拿每一行与 18 GB 比较。
#
# - 第 1 行就是那个脚本的遭遇：在旧版库里，这个 batch 需要的显存超过可用量的两倍。到了现在的版本，同样的 batch 又让大部分显存闲置。
# - 第 3 行是下一场事故，谁只改缓存公式，谁就会遇到：缓存放得下，重建放不下。
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
# The analysis ends with the upper right cell: too big a batch, fragments, therefore memory that will not come back.
# That step is missing its evidence.
# An estimate is a number and holds no tensor.
# `empty_cache()` gives back cached memory that is in use by no tensor; memory that a tensor occupies it cannot free ([PyTorch's notes](https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management)).
# So the question is who still holds a tensor, and the size of the batch does not answer it:
# %% [markdown] key="blame" lang="zh" src="1eabfe48"
# ## 错误的估算能造成什么，不能造成什么
#
# | 估算 | 会造成 | 不会造成 |
# |---|---|---|
# | 偏小 | batch 过大，峰值超出预算，显存不足 | 运行结束后显存仍被占用 |
# | 偏大 | batch 过小，GPU 闲置 | 显存不足 |
#
# 原文的结论落在右上角那一格：batch 过大，产生碎片，所以显存收不回来。
# 这一步缺少证据。
# 估算只是一个数字，不持有张量。
# `empty_cache()` 归还的是没有张量在用的缓存显存；张量占着的显存，它释放不了（见 [PyTorch 文档](https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management)）。
# 所以该问的是谁还持有张量，这与 batch 大小无关：

# %% key="no_leak"
import gc
import weakref

from transformers import DynamicCache

for batch in (2, 64):
    cache = DynamicCache(config=model.config)
    step(torch.randint(0, 64, (batch, 12)), cache)
    held, seen = held_bytes(cache), weakref.ref(cache)
    del cache
    gc.collect()
    print(t("leak_line", batch=batch, held=held, gone=seen() is None))

# %% [markdown] key="blame_object" lang="en"
# The weak reference shows that the object died: both caches are gone when their last name is.
# It does not show what the allocator did with the memory.
# On a GPU the next cell does: *allocated* is what tensors occupy, *reserved* is what PyTorch has taken from the GPU.
# %% [markdown] key="blame_object" lang="zh" src="27884fff"
# 弱引用说明的是对象已经销毁：最后一个引用消失，两个缓存都随之销毁。
# 至于分配器怎样处理那块显存，它看不出来。
# 有 GPU 时，下一个单元格会给出答案：**已分配**是张量占用的显存，**已保留**是 PyTorch 从 GPU 拿走的显存。

# %% key="allocator" tags="hardware"
def print_memory(moment):
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    print(t("memory_line", moment=moment, allocated=allocated / 2**20, reserved=reserved / 2**20))


if device == "cuda":
    cache = DynamicCache(config=model.config)
    step(torch.randint(0, 64, (8192, 12)), cache)
    print_memory("step()")
    del cache
    gc.collect()
    print_memory("del cache")
    torch.cuda.empty_cache()
    print_memory("empty_cache()")
else:
    print(t("no_allocator"))

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

# %% key="ranks_table"
print(t("ranks_head"))
for tp in (1, 2, 4, 8, 16):
    line = f"{tp:>3}"
    for name in ("DeepSeek-V3", "Llama-3.1-70B"):
        rank_bytes = CacheSpec.from_config(name, tp=tp).bytes_for(1)
        line += f" {rank_bytes:>10,} B {tp * rank_bytes:>10,} B"
    print(line)

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
print(f"156.9 / 20.43 = {156.9 / 20.43:.2f}")

# %% [markdown] key="break" lang="en"
# ## Break it
#
# Change one field at a time and watch which column moves.
# Before you run it: which of the three numbers feels `kv_lora_rank`? Which feels the heads?
# %% [markdown] key="break" lang="zh" src="e0bd42c5"
# ## 弄坏它
#
# 一次只改一个字段，看哪一列会变。
# 运行之前先想：三个数里哪个受 `kv_lora_rank` 影响？哪个受头数影响？

# %% key="break_fields"
changes = [{}, {"kv_lora_rank": 1024}, {"qk_rope_head_dim": 1}, {"qk_rope_head_dim": 128}, {"v_head_dim": 256}]
changes += [{"num_attention_heads": 16, "num_key_value_heads": 16}]
print(t("fields_head"))
for change in changes:
    broken = {**config, **change}
    old, new = (CacheSpec.from_config(broken, layout=each).layers[0] for each in ("hf-expanded", "hf"))
    flat = 2 * broken["num_attention_heads"] * (hidden // broken["num_attention_heads"]) * 2
    print(f"{flat:>7,}  {old.token_bytes:>8,}  {new.token_bytes:>6,}  {change}")

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

# %% key="break_head_dim"
for rope in (64, 32, 16):
    trusting = DeepseekV3Config(qk_rope_head_dim=rope, dtype="bfloat16")
    guess = 2 * trusting.num_attention_heads * trusting.head_dim * 2
    cached = CacheSpec.from_config(trusting).layers[0].token_bytes
    print(f"head_dim = {trusting.head_dim:>2}: {t('trust_line', guess=guess, cached=cached)}")

# %% [markdown] key="self" lang="en"
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="self" lang="zh" src="c2d6ea3e"
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
