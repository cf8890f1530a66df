# %% [meta]
# number = "A"
# slug = "errata"
# needs = ["01", "02", "03"]
# rooms = ["plan", "course.errata"]
# minutes = 50
# [title]
# en = "Which numbers in the wild are wrong?"
# zh = "流传的数字，哪些是错的？"
# [t4]
# en = "Arithmetic, and one tiny model on the CPU: a T4 shows the same numbers."
# zh = "全是算术，外加一个在 CPU 上运行的极小模型：T4 上看到的数字相同。"
# [paper]
# en = "A.1, A.3, A.4"
# zh = "A.1、A.3、A.4"

# %% [markdown] key="question" lang="en"
# ## The question
#
# In August 2026 somebody started a server for a Qwen3 of 1.7B on a Jetson and allowed it 1 GiB of cache.
# Five seconds later 27,075 MB of memory were gone, and the server was not up.
# The thread is [vllm.cpp #357](https://github.com/mudler/vllm.cpp/issues/357).
# Its author went through the source and found the reason:
#
# > `KVBytesPerBlock()` under-reports by exactly `num_hidden_layers`
#
# The bytes of a block were computed for one layer.
# The allocation was made for 28.
# %% [markdown] key="question" lang="zh" src="aec72693"
# ## 问题
#
# 2026 年 8 月，有人在 Jetson 上为 1.7B 的 Qwen3 启动服务，只给缓存 1 GiB。
# 五秒后 27,075 MB 内存不见了，服务却没有起来。
# 讨论见 [vllm.cpp #357](https://github.com/mudler/vllm.cpp/issues/357)。
# 提问者翻源码找到了原因：
#
# > `KVBytesPerBlock()` under-reports by exactly `num_hidden_layers`
#
# 意思是：它算出的每块字节数恰好少乘了层数。
# 按一层计算，却按 28 层分配。

# %% [markdown] key="case_text" lang="en"
# The catalogue's Qwen3-0.6B has the attention of the 1.7B: 28 layers, 8 KV heads of 128.
# So the package can tell what this one factor does.
# We assume blocks of 16 tokens; with another power of two the bytes come out the same.
# %% [markdown] key="case_text" lang="zh" src="8e12a6de"
# 目录里的 Qwen3-0.6B 与 1.7B 注意力结构相同：28 层，8 个 KV 头，每头 128。
# 所以能直接算出丢掉这一个因子的后果。
# 块大小假定为 16 个 token；换成别的 2 的幂，字节数不变。

# %% key="case"
from minikv.plan import CacheSpec, find_gpu, find_model, plan_memory
from minikv.units import GIB, KIB, MIB

spec = CacheSpec.from_config("Qwen3-0.6B")
asked = 1 * GIB
wrong_block = spec.block_bytes(16) // len(spec.layers)
blocks = asked // wrong_block
taken = blocks * spec.block_bytes(16)
print(t("case_asked", asked=asked, mib=asked / MIB))
print(t("case_blocks", blocks=blocks))
print(t("case_taken", taken=taken, mib=taken / MIB))
for name, mb in (("10^6", 10**6), ("2^20", MIB)):
    print(t("case_seen", name=name, seen=27_075 * mb, ratio=taken / (27_075 * mb)))

# %% [markdown] key="about" lang="en"
# That is 28 times the limit, and 1.11 or 1.06 times what the author saw disappear in five seconds.
# It is one or the other because "MB" is ambiguous: people write it for 10^6 bytes and for 2^20.
#
# This appendix is about such numbers.
# The course grew from five public documents about the KV cache.
# They are useful, and each of them holds figures that are wrong.
# We checked them line by line; here is every error we found, with the right value and the call that computes it.
# We quote no more than the wrong figure or phrase.
# %% [markdown] key="about" lang="zh" src="2a4ee79b"
# 是上限的 28 倍，是提问者五秒内看到消失的数量的 1.11 或 1.06 倍。
# 之所以有两个数，是因为 MB 有歧义：有人指 10^6 字节，有人指 2^20 字节。
#
# 本附录讲的就是这类数字。
# 本课程脱胎于五份讲 KV 缓存的公开文档。
# 它们很有用，但每份都有错误的数字。
# 我们逐行核对过；下面列出找到的全部错误，附上正确的值和算出它的调用。
# 引用时只取出错的那个数字或短语。

# %% key="documents"
from minikv.course.errata import errata, erratum
from minikv.course.errata_table import errata_table

for number in ("000", "001", "002", "003", "004"):
    entries = errata(number)
    print(t("count_line", number=number, count=len(entries), title=entries[0].document))
print(t("count_all", count=len(errata())))

# %% [markdown] key="entry_text" lang="en"
# An entry's id begins with its document's number.
# One entry looks like this: `-` is the claim, `+` is what is right, `=` is why.
# Its `value()` is computed at the moment you call it.
# In the tables below, the last column says what stands behind an entry: such a value, a cell of this notebook (its name is the cell's first line), or a page.
# %% [markdown] key="entry_text" lang="zh" src="d53f4596"
# 条目编号以文档编号开头。
# 每个条目长这样：`-` 是原文，`+` 是更正，`=` 是原因。
# `value()` 在调用时当场计算。
# 下面各表的最后一列是依据：可以当场计算的值、本 notebook 的某个单元格（名字写在它的第一行），或者网页。

# %% key="entry"
print(erratum("003-01").text(t("lang")))
print(f"{erratum('003-01').value():,}")

# %% [markdown] key="predict_text" lang="en"
# ## Predict
#
# Three numbers before you go on.
# Replace `...` with your answer and run the cell again.
# %% [markdown] key="predict_text" lang="zh" src="06b0d391"
# ## 先猜一猜
#
# 往下看之前，先给出三个数。
# 把 `...` 换成你的答案，再运行一次。

# %% key="predict_product"
predict("block_product", ...)

# %% key="predict_blocks"
predict("blocks_in_mb", ...)

# %% key="predict_pool"
predict("cache_gb", ...)

# %% [markdown] key="factor" lang="en"
# ## A factor dropped
#
# The bytes of a block are a product of six numbers:
# %% [markdown] key="factor" lang="zh" src="72a1da5f"
# ## 丢了一个因子
#
# 一个块的字节数是六个数的乘积：

# %% [markdown] key="factor_formula"
# $$\text{block\_bytes} = 2 \cdot L \cdot B \cdot H_{kv} \cdot D \cdot b$$

# %% [markdown] key="factor_means" lang="en"
# - $2$: one K and one V
# - $L$: layers
# - $B$: tokens in a block
# - $H_{kv}$: KV heads on this GPU
# - $D$: elements in a head
# - $b$: bytes in an element
#
# A document writes all six, and gives the product of five.
# %% [markdown] key="factor_means" lang="zh" src="7b8de3dc"
# - $2$：一份 K，一份 V
# - $L$：层数
# - $B$：每块的 token 数
# - $H_{kv}$：本 GPU 上的 KV 头数
# - $D$：每头的元素数
# - $b$：每个元素的字节数
#
# 有份文档六个都写了，给出的却是五个的乘积。

# %% key="factor_block"
print(t("written", value="2 * 28 * 16 * 1 * 128 * 2 = 114,688"))
print(t("computed", formula="2 * 28 * 16 * 1 * 128 * 2", value=2 * 28 * 16 * 1 * 128 * 2))
print(t("without_itemsize", value=2 * 28 * 16 * 1 * 128))
print(f"erratum('003-01').value() = {erratum('003-01').value():,}")

# %% [markdown] key="factor_chain_text" lang="en"
# What follows from a wrong number is wrong as well, and sometimes the last step shows it.
# The same document divides its budget of 32 GiB by that block, then allocates the tensor of that many blocks.
# It gives the tensor's size as 32 GiB.
# Multiply instead:
# %% [markdown] key="factor_chain_text" lang="zh" src="ceed35e8"
# 一个数错了，后面推出来的也都错，有时最后一步会露馅。
# 同一份文档用 32 GiB 预算除以这个块，再按得到的块数分配张量，并称张量大小是 32 GiB。
# 不妨真的乘一遍：

# %% key="factor_chain"
blocks = 299_680
budget = 34_359_738_368
tensor = erratum("003-05").value()
print(t("budget_said", gib=budget / GIB))
print(t("tensor_said", gib=tensor / GIB, blocks=blocks))

# %% [markdown] key="factor_rows_text" lang="en"
# Another document has a table of lengths.
# Its bytes use 2.4 for a block of 2.5 MiB, and its numbers of sequences were not divided at all.
# %% [markdown] key="factor_rows_text" lang="zh" src="840d971e"
# 另一份文档有一张按长度列的表。
# 每块 2.5 MiB，它按 2.4 算；能放的序列数则根本没有除。

# %% key="factor_rows"
rows = {"001-18": "614 MB, 50+", "001-19": "4.9 GB, 10-20", "001-20": "19.7 GB, 2-5", "001-21": "25.9 GB, 1-3"}
for id, written in rows.items():
    num_bytes, sequences = erratum(id).value()
    print(f"{id}  {written:<14} -> {num_bytes:>14,} B = {num_bytes / GIB:>6.3f} GiB, {sequences}")

# %% [markdown] key="linear_text" lang="en"
# A sum can lose terms as a product loses factors.
# A third document finds a token with "layer * stride + position".
# Its own shape has six dimensions; with one row nobody notices, with two the address is another request's:
# %% [markdown] key="linear_text" lang="zh" src="754b9c0e"
# 乘积会丢因子，求和也会丢项。
# 第三份文档用“layer * stride + position”定位一个 token。
# 它自己写的形状有六维；只有一行时看不出问题，有两行时，地址就成了另一个请求的：

# %% key="linear-address"
# linear-address
import torch

cache = torch.empty(2, 2, 2, 8, 4096, 128, device="meta")  # layers, rows, K and V, heads, positions, head_dim
layer, row, _, _, position, _ = cache.stride()
print(f"{1 * layer + 1 * row + 5 * position:>12,}", "layer, row, position")
print(f"{1 * layer + 5 * position:>12,}", "layer, position")
print(erratum("002-20").value())

# %% key="factor_table"
show(errata_table(t("lang"), slip="factor"))

# %% [markdown] key="unit" lang="en"
# ## MB is not MiB
#
# MB is 10^6 bytes and MiB is 2^20.
# The gap grows with the prefix:
# %% [markdown] key="unit" lang="zh" src="0c16da60"
# ## MB 不是 MiB
#
# MB 是 10^6 字节，MiB 是 2^20 字节。
# 单位前缀越大，差得越多：

# %% key="unit_gap"
for power, prefix in enumerate("KMGT", start=1):
    ratio = 1024**power / 1000**power
    print(t("prefix_line", binary=f"{prefix}iB", decimal=f"{prefix}B", ratio=ratio, percent=100 * (ratio - 1)))

# %% [markdown] key="unit_text" lang="en"
# One guide divides 27,000 MB by a block of 2.5 MiB as if both were the same.
# It gains 501 blocks that are not there.
# %% [markdown] key="unit_text" lang="zh" src="6827e50b"
# 有份指南用 27,000 MB 除以 2.5 MiB 的块，当成了同一种单位。
# 凭空多出 501 块。

# %% key="unit_blocks"
in_mb, in_mib = erratum("001-07").value()
print(f"27,000 MB  // 2,621,440 B = {in_mb:,}")
print(f"27,000 MiB // 2,621,440 B = {in_mib:,}")
print(t("blocks_gained", count=in_mib - in_mb))

# %% [markdown] key="unit_text2" lang="en"
# Another states the rule that 1 MB is 1,000,000 bytes, and breaks it in its own exercise.
# %% [markdown] key="unit_text2" lang="zh" src="372909bc"
# 另一份文档写明 1 MB 是 1,000,000 字节，却在自己的练习里违反了。

# %% key="unit_tensor"
num_bytes, total = erratum("002-08").value()
print(f"1024 * 768 * 2 = {num_bytes:,} B = {num_bytes / 1e6:.2f} MB = {num_bytes / MIB:.2f} MiB")
print(f"{t('in_all'):>14} = {total:,} B = {total / 1e6:.2f} MB = {total / MIB:.2f} MiB")

# %% key="unit_table"
show(errata_table(t("lang"), slip="unit"))

# %% [markdown] key="neighbour" lang="en"
# ## A number that contradicts its neighbour
#
# These need no knowledge of GPUs.
# Take two numbers that stand beside each other and ask whether both can be true.
# %% [markdown] key="neighbour" lang="zh" src="80e12315"
# ## 与旁边的数矛盾
#
# 这一类不需要懂 GPU。
# 取相邻的两个数，问一句：它们能同时成立吗？

# %% key="neighbour_free"
total, used, written = 85_899_345_920, 5_368_709_120, 75_530_636_800
free = total - used
print(t("free_line", free=free, written=written, gap=free - written))
print(free == erratum("003-09").value())

# %% [markdown] key="neighbour_text" lang="en"
# A picture of a card with 80 GB, used up to 0.9: do the parts fit under the limit?
# And a share that a document states in its first lines, against the budget in its last:
# %% [markdown] key="neighbour_text" lang="zh" src="d81cd511"
# 一块 80 GB 显卡的示意图，用到 0.9：各部分加起来在上限之内吗？
# 再看一个开头声称的占比，与结尾的预算对照：

# %% key="neighbour_sums"
total, limit = erratum("003-24").value()
print(t("sum_line", terms="34 + 32 + 10", total=total, limit=limit))
part = 536_870_912
print(t("share_line", written="70 %+", part=part, whole=8.5, share=100 * part / 8.5e9))

# %% [markdown] key="neighbour_text2" lang="en"
# The largest error of all sits between two sections of one guide.
# Section 12.3 gives 62 GB to the cache, section 12.4 gives 27 GB.
# Same card, same model, same formula.
# %% [markdown] key="neighbour_text2" lang="zh" src="27720e13"
# 最大的错误藏在一份指南的两节之间。
# 12.3 节给缓存 62 GB，12.4 节给 27 GB。
# 显卡相同，模型相同，公式相同。

# %% key="neighbour_pool"
print("72 - 35 - 10 + 35 =", 72 - 35 - 10 + 35)
print("72 - 35 - 45 + 35 =", erratum("001-26").value())
in_62_gb, in_27_gb = erratum("001-27").value()
print(t("blocks_gained", count=in_62_gb - in_27_gb))

# %% [markdown] key="neighbour_why" lang="en"
# The first line takes 10 GB for the peak, which is what the activations add.
# The formula wants the peak itself, 45 GB.
# "A definition mistaken" below comes back to it.
# %% [markdown] key="neighbour_why" lang="zh" src="20ef0d59"
# 第一行把峰值当成 10 GB，那其实是激活新增的部分。
# 公式要的是峰值本身，45 GB。
# 下面“定义弄错”一节再细说。

# %% key="neighbour_table"
show(errata_table(t("lang"), slip="neighbour"))

# %% [markdown] key="scope" lang="en"
# ## A formula used outside its scope
#
# A formula holds for some models, on some GPUs, under some conditions.
# Copied without them, it still gives a number.
#
# The first is `hidden_size // num_attention_heads`.
# [LMCache #688](https://github.com/LMCache/LMCache/issues/688) reports a public calculator that used it for Qwen3-4B.
# %% [markdown] key="scope" lang="zh" src="42afba47"
# ## 公式用出了范围
#
# 公式只对某些模型、某些 GPU、某些条件成立。
# 不带条件照抄，它照样给你一个数。
#
# 第一个是 `hidden_size // num_attention_heads`。
# [LMCache #688](https://github.com/LMCache/LMCache/issues/688) 报告：有个公开的计算器就这样算 Qwen3-4B。

# %% key="head_dim_quotient"
print("model         hidden // heads   head_dim")
for name in ("Qwen3-0.6B", "Qwen3-4B", "Qwen3-8B", "Qwen3-32B", "Gemma-3-27B", "gpt-oss-20b", "Llama-3.1-8B"):
    config = find_model(name).config
    config = config.get("text_config", config)
    quotient = config["hidden_size"] // config["num_attention_heads"]
    print(f"{name:<13} {quotient:>8} {CacheSpec.from_config(name).layers[0].k_dim:>14}")

# %% [markdown] key="head_dim_text" lang="en"
# `getattr` with a default looks safe.
# It is not: an attribute may be there and be `None`, live in a part of the config, or mean something else.
# %% [markdown] key="head_dim_text" lang="zh" src="91dd7b2e"
# 带默认值的 `getattr` 看似稳妥，其实不然。
# 属性可能存在但为 `None`，可能在配置的子部分里，也可能另有含义。

# %% key="head-dim-traps"
# head-dim-traps
import transformers

transformers.logging.set_verbosity_error()
mixtral = transformers.MixtralConfig()
print("Mixtral    ", hasattr(mixtral, "head_dim"), getattr(mixtral, "head_dim", 128))
print("Gemma 3    ", hasattr(transformers.Gemma3Config(), "hidden_size"))
print("GPT-2      ", hasattr(transformers.GPT2Config(), "num_key_value_heads"))
deepseek = transformers.DeepseekV3Config()
print("DeepSeek-V3", deepseek.head_dim, "=", deepseek.qk_rope_head_dim, "(qk_rope_head_dim)")
print(f"{erratum('000-05').value():,} B")

# %% [markdown] key="ranks_text" lang="en"
# The second is `num_key_value_heads // world_size`.
# With more ranks than heads it gives 0, then blocks of 0 bytes, then a division by zero.
# Engines replicate the heads instead; and an MLA latent, which has no heads, is on every rank.
# %% [markdown] key="ranks_text" lang="zh" src="4ea539db"
# 第二个是 `num_key_value_heads // world_size`。
# rank 比头多时得 0，块变成 0 字节，接着就是除以零。
# 引擎的做法是复制头；MLA 的潜在向量（latent）不分头，每个 rank 都存一份。

# %% key="heads-and-ranks"
# heads-and-ranks
llama, mla = "Llama-3.1-8B", "DeepSeek-V3"
print("tp   8 // tp   kv_heads   latents")
for tp in (1, 4, 8, 16):
    heads = CacheSpec.from_config(llama, tp=tp).layers[0].kv_heads
    latents = CacheSpec.from_config(mla, tp=tp).layers[0].kv_heads
    print(f"{tp:>2} {8 // tp:>9} {heads:>10} {latents:>9}")

# %% [markdown] key="empty_text" lang="en"
# The third is `torch.empty(shape)`.
# In the engine it comes from, two lines before it set the default dtype and device.
# Without those lines:
# %% [markdown] key="empty_text" lang="zh" src="3b81a034"
# 第三个是 `torch.empty(shape)`。
# 在它原来的引擎里，前面有两行设好了默认 dtype 和设备。
# 没有那两行时：

# %% key="empty-defaults"
# empty-defaults
cache = torch.empty(2, 4, 16)
layer = cache[0]
print(cache.dtype, cache.device, cache.itemsize)
print(layer.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr())
print(torch.empty(2, 4, 16, dtype=torch.bfloat16, device="cpu").itemsize)

# %% [markdown] key="mask_text" lang="en"
# A slice is a view of the same storage: no later step moves it to a GPU.
#
# The fourth is that the causal mask is `None` in decode.
# That is so for SDPA without padding.
# A tiny random model is enough to see the other cases.
# %% [markdown] key="mask_text" lang="zh" src="06ca7f4f"
# 切片是同一存储的视图（view）：之后没有哪一步会把它搬到 GPU。
#
# 第四个是“解码时因果掩码为 `None`”。
# 这只对无填充的 SDPA 成立。
# 用一个极小的随机模型就能看到其他情形。

# %% key="tiny_model"
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
tiny = LlamaConfig(
    hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=97, max_position_embeddings=256,
)
model = LlamaForCausalLM(tiny).eval()
prompt = torch.tensor([[1, 2, 3, 4, 5]])

# %% key="mask-or-none"
# mask-or-none
from transformers.masking_utils import create_causal_mask

past = DynamicCache(config=tiny)
with torch.no_grad():
    model(prompt, past_key_values=past)
decode = dict(inputs_embeds=torch.zeros(1, 1, 64), past_key_values=past, position_ids=torch.tensor([[5]]))
for implementation in ("sdpa", "eager"):
    model.set_attn_implementation(implementation)
    masks = [create_causal_mask(config=model.config, attention_mask=given, **decode)
             for given in (None, torch.tensor([[0, 1, 1, 1, 1, 1]]))]
    shapes = [None if mask is None else tuple(mask.shape) for mask in masks]
    print(t("mask_line", implementation=implementation, plain=shapes[0], padded=shapes[1]))
model.set_attn_implementation("sdpa")

# %% [markdown] key="sdpa_text" lang="en"
# The fifth is a patch that reads the attention probabilities.
# Fused attention never has them, so SDPA returns `None` in their place.
# It does write something else to memory: the log-sum-exp of every row.
# %% [markdown] key="sdpa_text" lang="zh" src="8eed3dfe"
# 第五个是读取注意力概率的补丁。
# 融合的注意力从不生成这个矩阵，SDPA 在那个位置返回 `None`。
# 它倒是会往显存里写另一样东西：每一行的 log-sum-exp。

# %% key="sdpa-returns"
# sdpa-returns
from types import SimpleNamespace

from transformers.integrations.sdpa_attention import sdpa_attention_forward

q = torch.randn(1, 2, 4, 16)
module = SimpleNamespace(is_causal=True, num_key_value_groups=1)
out, weights = sdpa_attention_forward(module, q, q, q, attention_mask=None)
print(tuple(out.shape), weights)
out, log_sum_exp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)
print(tuple(out.shape), tuple(log_sum_exp.shape))

# %% [markdown] key="position_text" lang="en"
# The sixth is an eviction that slices K and V and nothing else.
# Afterwards the cache is shorter than the sequence, and a forward that is given no positions asks the cache.
# Here 100 tokens are cut to 24; the next token is number 100.
# %% [markdown] key="position_text" lang="zh" src="bcdafbc0"
# 第六个是只切 K 和 V、别的都不管的淘汰。
# 之后缓存比序列短，而没有拿到位置的前向计算会去问缓存。
# 下面把 100 个 token 切到 24 个；下一个 token 是第 100 号。

# %% key="length-is-not-position"
# length-is-not-position
from copy import deepcopy

cache = DynamicCache(config=tiny)
keep = torch.cat([torch.arange(4), torch.arange(80, 100)])
with torch.no_grad():
    model(torch.arange(100)[None] % 97, past_key_values=cache)
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, keep], layer.values[:, :, keep]
    print(t("cached_now", count=cache.get_seq_length()))
    positions = {"default": {}, "24": {"position_ids": torch.tensor([[24]])}, "100": {"position_ids": torch.tensor([[100]])}}
    logits = {name: model(torch.tensor([[7]]), past_key_values=deepcopy(cache), **given).logits
              for name, given in positions.items()}
same, hundred = torch.equal(logits["default"], logits["24"]), torch.equal(logits["default"], logits["100"])
print(t("position_line", same=24 if same else "?", hundred=hundred))

# %% [markdown] key="early_text" lang="en"
# The seventh sums attention over all queries of a step.
# In a prefill the mask is causal, so early tokens are seen by more queries.
# Even if every query spreads its attention evenly, the sum prefers the start:
# %% [markdown] key="early_text" lang="zh" src="6d3eb740"
# 第七个是把一步内所有 query 的注意力加起来。
# 预填充时掩码是因果的，早的 token 被更多 query 看到。
# 即使每个 query 的注意力完全平均，总和也偏向开头：

# %% key="early-tokens-win"
# early-tokens-win
attention = torch.tril(torch.ones(8, 8))
queries = attention.sum(0).int().tolist()
attention /= attention.sum(-1, keepdim=True)
print(t("queries_line", counts=queries))
print(t("mass_line", mass=[round(x, 2) for x in attention.sum(0).tolist()]))

# %% [markdown] key="indexer_text" lang="en"
# The eighth is that every tensor in a cache has four dimensions.
# Models with sparse attention, such as DeepSeek-V3.2 and GLM-5, keep a third tensor a layer, and it has three.
# %% [markdown] key="indexer_text" lang="zh" src="881767a6"
# 第八个是“缓存里的张量都是 4 维”。
# DeepSeek-V3.2、GLM-5 这类稀疏注意力模型每层还有第三个张量，只有 3 维。

# %% key="indexer-keys"
# indexer-keys
from transformers.cache_utils import DynamicIndexedLayer

indexed = DynamicIndexedLayer()
indexed.update_indexer(torch.zeros(1, 5, 128))
print(tuple(indexed.indexer_keys.shape))
print(CacheSpec.from_config("GLM-5").layers[0].index_bytes // 2)

# %% [markdown] key="waiting_text" lang="en"
# The ninth is a right sum on a wrong input.
# A GPU that can do 200 FLOP in the time of one byte waits 95 % of its time if a byte brings it 10 FLOP.
# Decode attention in 16 bit brings 1 ([lesson 04](04_the_roofline.ipynb)).
# %% [markdown] key="waiting_text" lang="zh" src="5ccd201d"
# 第九个是算术没错，输入错了。
# 如果 GPU 读一个字节的时间能做 200 FLOP，而每个字节只带来 10 FLOP 的计算，它就有 95% 的时间在等。
# 16 位的解码注意力每个字节只带来 1 FLOP（[第 04 课](04_the_roofline.ipynb)）。

# %% key="waiting"
for flop, percent in zip((10, 1), erratum("002-18").value()):
    print(t("waiting_line", flop=flop, percent=percent))

# %% [markdown] key="whole_text" lang="en"
# The tenth is a loop that gives new tokens their slots, block by block.
# It is right while every chunk begins at the edge of a block ([lesson 09](09_pages_and_blocks.ipynb)).
# Store 6 of 10 tokens in blocks of 4, and ask for the other 4:
# %% [markdown] key="whole_text" lang="zh" src="6c97d6a9"
# 第十个是逐块给新 token 分槽位的循环。
# 只要每段都从块的边界开始，它就是对的（[第 09 课](09_pages_and_blocks.ipynb)）。
# 块大小 4，10 个 token 已存 6 个，来要剩下 4 个的槽位：

# %% key="whole-blocks-only"
# whole-blocks-only
from minikv.blocks import BlockManager

manager = BlockManager(num_blocks=8, block_size=4)
manager.allocate("A", list(range(10)))
table = manager.block_table("A")
loop = [table[place] * 4 + slot for place in range(6 // 4, 3) for slot in range(min(4, 10 - place * 4))]
print(loop)
print(manager.slot_mapping("A", 6, 10).tolist())

# %% [markdown] key="short_text" lang="en"
# The last one is `total * util - peak`, offered as a simpler form of `total * util - used - peak + current`.
# It leaves out what is taken on the GPU outside torch.
# At 0.9 the tenth that is kept free hides the error.
# Change one parameter, `utilization`, and it shows.
# All terms are GB; the 1.79 GiB that a log showed outside torch on one GPU are converted first:
# %% [markdown] key="short_text" lang="zh" src="0103630a"
# 最后一个是 `total * util - peak`，说是 `total * util - used - peak + current` 的简化。
# 它漏掉了 GPU 上 torch 之外的占用。
# 0.9 时，留空的一成显存掩盖了错误。
# 只改 `utilization` 一个参数，它就露出来。
# 各项统一用 GB；某份日志里单 GPU 在 torch 之外占 1.79 GiB，先换算：

# %% key="break_short_form"
total, weights, activations, outside = 80, 35, 10, 1.79 * GIB / 1e9
print(t("outside_line", outside=outside))
for utilization in (0.9, 0.95, 0.98):
    short_form = total * utilization - (weights + activations)
    left = total - weights - activations - outside - short_form
    print(utilization, t("fits", left=left, unit="GB") if left >= 0 else t("does_not_fit", short=-left, unit="GB"))

# %% key="scope_table"
show(errata_table(t("lang"), slip="scope"))

# %% [markdown] key="definition" lang="en"
# ## A definition mistaken
#
# `peak`, `used`, `utilization`, `block`: each is a word with one meaning, and each was given another.
#
# Here is the life of a card with 80 GB, in GB that torch has allocated.
# The weights are 35, a warm-up adds 10 and gives them back.
# Where there is a GPU, the cell after it repeats this with 70 and 20 MiB.
# %% [markdown] key="definition" lang="zh" src="8a9f67ac"
# ## 定义弄错
#
# `peak`、`used`、`utilization`、`block`：每个词只有一个意思，却都被当成过别的。
#
# 下面是一块 80 GB 显卡的经过，单位是 GB，指 torch 已分配的显存。
# 权重 35，预热时增加 10，随后释放。
# 如果有 GPU，再下一个单元格用 70 和 20 MiB 实测一遍。

# %% key="peak-is-absolute"
# peak-is-absolute
allocated = [0, 35, 40, 45, 35]
since_reset = allocated[1:]
current, peak, used = allocated[-1], max(since_reset), allocated[-1]
print(t("peak_line", current=current, peak=peak, difference=peak - current))
print(t("growth_line", growth=since_reset[-1] - since_reset[0]))
limit = erratum("001-31").value()
print(f"{limit} - {used} - {peak} + {current} = {limit - used - peak + current}")
print(f"{limit} - {used} - {peak} = {limit - used - peak}")

# %% key="peak_measured" tags="hardware"
if torch.cuda.is_available():
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    weights = torch.empty(70 * MIB, dtype=torch.uint8, device="cuda")
    activations = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
    del activations
    free, total = torch.cuda.mem_get_info()
    current, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    print(t("gpu_peak", current=current / MIB, peak=peak / MIB, outside=(total - free - current) / MIB))
else:
    print(t("no_gpu"))

# %% [markdown] key="definition_means" lang="en"
# Read off it:
#
# - `peak` is absolute and counts from the last reset; what a forward adds is `peak - current`.
# - Memory before and after a run is the same, though the run needed 10 GB.
# - `used` and `peak` both hold the weights; without `+ current` the 35 GB are taken off twice.
# - `utilization` limits everything: 72 GB, of which the cache gets what is left.
#
# `used` here is `current`, because nothing else runs.
# On a real GPU it is more, by the CUDA context, other processes, and what the allocator keeps for later.
# None of that is fragmentation of live tensors, and none of it is history.
#
# Two more words: paged memory is *not* allocated as it grows.
# %% [markdown] key="definition_means" lang="zh" src="0320463b"
# 由此可以读出：
#
# - `peak` 是绝对值，从上次重置算起；前向计算新增的是 `peak - current`。
# - 运行前后的显存一样多，尽管运行时需要 10 GB。
# - `used` 和 `peak` 都含权重；不加 `+ current`，35 GB 就减了两次。
# - `utilization` 限制的是全部用途：72 GB，缓存只拿剩下的。
#
# 这里 `used` 等于 `current`，因为没有别的程序。
# 在真实的 GPU 上 `used` 更大，多出 CUDA 上下文、其他进程，以及分配器留着备用的部分。
# 这些既不是存活张量的碎片，也不是历史。
#
# 再看两个词：分页的缓存**不是**边增长边分配的。

# %% key="paged-is-preallocated"
# paged-is-preallocated
pool = torch.empty(8, 16, 2, 64)
free, table = list(range(8)), []
for length in (1, 16, 17, 40):
    while len(table) * 16 < length:
        table.append(free.pop(0))
    print(t("pool_line", length=length, table=table, pool=pool.untyped_storage().nbytes()))

# %% [markdown] key="sharing_text" lang="en"
# Nor is memory shared because two sequences use the same pool.
# "Blocks 0-10 and 11-20" are 21 blocks, each with one owner.
# Sharing is one block in two tables, and takes a common prefix:
# %% [markdown] key="sharing_text" lang="zh" src="88348676"
# 两条序列用同一个块池，也不等于共享。
# “块 0-10 和块 11-20”是 21 个块，各有一个主人。
# 同一个块出现在两张块表里才叫共享，前提是有公共前缀：

# %% key="shared-blocks"
# shared-blocks
manager = BlockManager(num_blocks=8, block_size=4)
for name, last in (("A", [20]), ("B", [30])):
    manager.allocate(name, [*range(8), *last])
    manager.commit(name, 9)
    print(name, manager.block_table(name))

# %% [markdown] key="empty_cache_text" lang="en"
# `empty_cache()` does not empty the cache either: it returns segments in which nothing lives.
# Fill 5 GiB with blocks of 2 MiB, ten to a segment of 20 MiB; free all of them, or all but one in each segment:
# %% [markdown] key="empty_cache_text" lang="zh" src="49ec5c2b"
# `empty_cache()` 也不会清空缓存：它只归还里面没有存活块的段。
# 用 2 MiB 的块填满 5 GiB，每个 20 MiB 的段装十块；全部释放，或者每段留一块：

# %% key="empty-cache-keeps"
# empty-cache-keeps
from minikv.memory import CachingAllocator

for live in (0, 1):
    model_of_torch = CachingAllocator()
    blocks = [model_of_torch.malloc(2 * MIB) for _ in range(2560)]
    for place, block in enumerate(blocks):
        if place % 10 >= live:
            model_of_torch.free(block)
    model_of_torch.empty_cache()
    usage = model_of_torch.usage()
    print(t("reserved_line", live=live, allocated=usage.allocated, reserved=usage.reserved))

# %% [markdown] key="assert_text" lang="en"
# And a check is no allocation.
# One breakdown lists a CPU cache among what its function makes.
# The branch for it, run here with numbers that pass:
# %% [markdown] key="assert_text" lang="zh" src="e1a30b50"
# 检查也不等于分配。
# 有份变量详解的函数里有一个 CPU 缓存的分支，看上去会多出一份缓存。
# 用通得过检查的数把它运行一遍：

# %% key="an-assert-allocates-nothing"
# an-assert-allocates-nothing
import gc

def host_bytes():
    return sum(thing.nbytes for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor))

config = SimpleNamespace(cpu_kv_cache=True, cpu_block_size=16, num_cpu_blocks=1_000)
before = host_bytes()
if config.cpu_kv_cache:
    assert config.cpu_block_size > 0 and config.num_cpu_blocks > 0
print(t("assert_line", more=host_bytes() - before))

# %% [markdown] key="coalesced_text" lang="en"
# And sequential is not coalesced.
# A warp has 32 threads that load in the same step; a line of cache has 128 bytes, 32 floats.
# %% [markdown] key="coalesced_text" lang="zh" src="6f55fb8d"
# 顺序访问也不是合并访存（coalesced access）。
# 一个 warp 的 32 个线程在同一步读取；一个缓存行 128 字节，即 32 个 float。

# %% key="coalesced"
# coalesced
def lines_touched(stride):
    return len({thread * stride * 4 // 128 for thread in range(32)})

print(t("lines_slices", count=lines_touched(1024)))
print(t("lines_coalesced", count=lines_touched(1)))

# %% [markdown] key="waste_text" lang="en"
# Small blocks waste less, not more: only the last block of a sequence is partly empty.
# %% [markdown] key="waste_text" lang="zh" src="ba5c22e7"
# 块越小，浪费越少，而不是越多：每条序列只有最后一块会空着一部分。

# %% key="waste"
for size in (8, 16, 32, 64):
    empty = [-length % size for length in range(1, 6401)]
    print(t("waste_line", size=size, waste=sum(empty) / len(empty)))

# %% key="definition_table"
show(errata_table(t("lang"), slip="definition"))

# %% [markdown] key="stale" lang="en"
# ## True once
#
# These were right for a version that is no longer installed.
# An MLA token in DeepSeek-V3 costs one thing up to transformers 5.14 and another since 5.15.
# We ran small models on 5.14.1, 5.15, 5.17, 5.18 and 5.23: 5.17 still expands the cache of DeepSeek-V3.2 and GLM-5, 5.18 and 5.23 keep latents there too.
# Here are the two layouts for DeepSeek-V3:
# %% [markdown] key="stale" lang="zh" src="880d9134"
# ## 曾经正确
#
# 这些说法对某个旧版本是对的，只是那个版本没人装了。
# DeepSeek-V3 的一个 MLA token，transformers 5.14 及以前是一个数，5.15 起是另一个。
# 我们用小模型跑过 5.14.1、5.15、5.17、5.18 和 5.23：DeepSeek-V3.2 和 GLM-5 在 5.17 里仍存展开的 K 和 V，5.18 和 5.23 里也改存潜在向量。
# 下面是 DeepSeek-V3 的两种布局：

# %% key="stale_mla"
for layout in ("hf-expanded", "hf"):
    layer = CacheSpec.from_config("DeepSeek-V3", layout=layout).layers[0]
    dims = f"{layer.kv_heads:>3} x ({layer.k_dim} + {layer.v_dim})"
    print(t("layout_line", layout=layout, dims=dims, num_bytes=layer.token_bytes))
print([round(x, 1) for x in erratum("000-03").value()])

# %% [markdown] key="renamed_text" lang="en"
# Names move too.
# Ask the object that you have, not the page that you read.
# %% [markdown] key="renamed_text" lang="zh" src="0dff6e22"
# 名字也会变。
# 问手上的对象，别问读到的网页。

# %% key="renamed-since"
# renamed-since
import inspect

from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

print("key_cache      ", hasattr(DynamicCache(), "key_cache"), "| layers", hasattr(DynamicCache(), "layers"))
names = inspect.signature(DeepseekV3Attention.forward).parameters
print("past_key_value ", "past_key_value" in names, "| past_key_values", "past_key_values" in names)
print("dtype          ", LlamaConfig().dtype)

# %% [markdown] key="generate_text" lang="en"
# And one claim that still holds, with a condition that was left out: `generate()` keeps no cache, unless you ask for it.
# The same cell shows that the last token of an answer is never in the cache.
# %% [markdown] key="generate_text" lang="zh" src="eca55c13"
# 还有一条至今成立，只是少写了条件：`generate()` 不保留缓存，除非你要求它保留。
# 同一个单元格还能看到：回答的最后一个 token 从不在缓存里。

# %% key="generate-and-cache"
# generate-and-cache
def alive():
    gc.collect()
    return sum(type(thing) is DynamicCache for thing in gc.get_objects())

settings = dict(max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)
before = alive()
answer = model.generate(prompt, **settings)
print(t("alive", count=alive() - before))
answer = model.generate(prompt, return_dict_in_generate=True, **settings)
print(t("alive", count=alive() - before))
sequence, cached = answer.sequences.shape[1], answer.past_key_values.get_seq_length()
print(t("tokens_line", generated=sequence - prompt.shape[1], sequence=sequence, cached=cached))

# %% key="stale_table"
show(errata_table(t("lang"), slip="stale"))

# %% [markdown] key="source" lang="en"
# ## No such thing
#
# Models that nobody can load, figures that no card has, a call that torch does not have, and a speed-up without a source.
# Most of these take one multiplication or one look at a config: 80 layers of 4,096 are called a 70B model, and a board with 204.8 GB/s is given 900.
# %% [markdown] key="source" lang="zh" src="b9f4a9f7"
# ## 查无此物
#
# 加载不了的模型，哪块板卡都没有的指标，torch 里没有的函数，没有出处的加速比。
# 大多只要乘一次，或者看一眼配置：80 层、宽 4,096 被称作 70B 模型，204.8 GB/s 的板卡被写成 900。

# %% key="source_facts"
print(t("orin_line", gb_s=erratum("002-01").value()))
print(t("registers_line", kib=erratum("002-03").value()[0] / KIB))
print(t("gpu_line", gap=80 - find_gpu("A100 SXM 80GB").total_bytes / GIB))
print(t("params_line", params=erratum("001-03").value() / 1e9))

# %% key="no-argpartition"
# no-argpartition
import numpy

for name in ("argpartition", "topk"):
    print(f"{name:<13} torch {hasattr(torch, name)!s:<6} numpy {hasattr(numpy, name)}")

# %% key="source_table"
show(errata_table(t("lang"), slip="source"))

# %% [markdown] key="break" lang="en"
# ## Break it
#
# Give the planner the wrong block of "A factor dropped", half of the right one.
# Everything else stays: a Qwen3-8B on an A100, with the pool that the planner allows.
# %% [markdown] key="break" lang="zh" src="29b5461c"
# ## 弄坏它
#
# 把“丢了一个因子”一节里错误的块交给规划器，它只有正确值的一半。
# 其余不变：A100 上的 Qwen3-8B，块池大小由规划器给出。

# %% key="break_block"
budget = plan_memory("Qwen3-8B", gpu="A100 SXM 80GB", chunk=2048)
right_block = budget.spec.block_bytes(16)

def try_to_allocate(block, kv_bytes, free):
    taken = kv_bytes // block * right_block
    left = free - taken
    print(t("fits", left=left / GIB, unit="GiB") if left >= 0 else t("does_not_fit", short=-left / GIB, unit="GiB"))

free = budget.kv_bytes + budget.parts()["kept_free"]
try_to_allocate(right_block, budget.kv_bytes, free)
try_to_allocate(right_block // 2, budget.kv_bytes, free)

# %% [markdown] key="break_means" lang="en"
# The right block leaves what `utilization` keeps free.
# Half the block gives twice the blocks, and the allocation asks for twice the pool.
# Change `// 2` to `* 2`: nothing breaks, and half of the cache is lost without a word.
# No message tells you, so nobody looks.
# %% [markdown] key="break_means" lang="zh" src="d7ef87e2"
# 块算对时，剩下的就是 `utilization` 留出的部分。
# 块算小一半，块数翻倍，申请的显存是块池的两倍。
# 把 `// 2` 改成 `* 2`：什么都不会坏，只是一半的缓存悄悄没了。
# 没有任何报错，自然也没人去查。

# %% [markdown] key="catch" lang="en"
# ## How to catch one yourself
#
# Six questions, each with entries that it would have caught.
#
# | ask | it would have caught |
# |---|---|
# | What is the unit? Write it into the name: `pool_mib`, `block_bytes`. | 001-07, 002-08 |
# | Does the product give the result? Multiply it again. | 003-01, 001-09 |
# | Do the parts make the total? | 003-24, 003-09 |
# | What does it say at the edge: 1 GPU, 16 GPUs, 1 head, a GPU that is too small? | 001-14, 003-10 |
# | What is the number a property of: the model, the GPU, the pool, this moment? | 003-22, 001-32 |
# | Which version? Which model exactly? | 000-02, 003-11 |
#
# Then estimate the size in another way: a cache of 64 GiB cannot fit where 32 GiB are left.
# %% [markdown] key="catch" lang="zh" src="80d57978"
# ## 怎样自己发现
#
# 六个问题，以及各自能发现的条目。
#
# | 问 | 能发现 |
# |---|---|
# | 单位是什么？把它写进变量名：`pool_mib`、`block_bytes`。 | 001-07、002-08 |
# | 乘积等于结果吗？再乘一遍。 | 003-01、001-09 |
# | 各部分加起来等于总数吗？ | 003-24、003-09 |
# | 边界上怎样：1 块 GPU、16 块 GPU、1 个头、装不下的 GPU？ | 001-14、003-10 |
# | 这个数是谁的属性：模型、GPU、块池，还是此刻的状态？ | 003-22、001-32 |
# | 哪个版本？到底是哪个模型？ | 000-02、003-11 |
#
# 最后换个角度估一下大小：只剩 32 GiB 的地方，放不下 64 GiB 的缓存。

# %% [markdown] key="explain_text" lang="en"
# ## Check yourself
#
# Answer in your own words, then reveal the model answer: `explain("why_it_matters", reveal=True)`.
# %% [markdown] key="explain_text" lang="zh" src="8dcec787"
# ## 自我检查
#
# 先用自己的话回答，再看参考答案：`explain("why_it_matters", reveal=True)`。

# %% key="explain_1"
explain("why_it_matters")

# %% key="explain_2"
explain("why_plus_current")

# %% key="explain_3"
explain("before_you_copy")

# %% [markdown] key="exercises" lang="en"
# The exercises A.1 to A.5 are in the exercise notebook of this appendix.
# Most wrong answers that their checks know are errors from above.
# %% [markdown] key="exercises" lang="zh" src="339b585c"
# 练习 A.1 到 A.5 在本附录的练习 notebook 里。
# 那里的典型错误，多半在上面出现过。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | my number is off by 5 or 7 percent | `num_bytes / MIB, num_bytes / 1e6`: one of them is the number you compare with |
# | my number is off by a whole factor (2, 8, 28) | `print(CacheSpec.from_config(config).explain())`: every factor, and the field it comes from |
# | the GPU holds more than I calculated | `total - free - torch.cuda.memory_allocated()`: context, other processes, and `memory_reserved() - memory_allocated()` of cached memory |
# %% [markdown] key="stuck" lang="zh" src="eaa1d303"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 我的数字差百分之五或七 | `num_bytes / MIB, num_bytes / 1e6`：其中一个就是你要比的数 |
# | 我的数字差整数倍（2、8、28） | `print(CacheSpec.from_config(config).explain("zh"))`：列出每个因子及其字段 |
# | GPU 上的占用比算的多 | `total - free - torch.cuda.memory_allocated()`：上下文、其他进程，以及缓存着的 `memory_reserved() - memory_allocated()` |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# These were numbers that people got wrong.
# Programs compute wrong numbers too: bugs of real engines, reproduced, are the subject of [appendix B](B_bug_museum.ipynb).
#
# If you find an error in *this* course, it belongs in this table too: open an issue with the number and the call that shows it.
# %% [markdown] key="next" lang="zh" src="f64a8bb1"
# ## 下一篇
#
# 这里讲的是人写错的数字。
# 程序也会算错：[附录 B](B_bug_museum.ipynb) 逐个重现真实引擎里的 bug。
#
# 如果你在**本课程**里发现错误，它也该进这张表：提一个 issue，附上数字和能说明问题的调用。
