# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="intro" lang="en"
# ## Four functions
#
# Replace each `raise NotImplementedError`, run the cell, and read what `check` says.
# After a wrong answer it shows a small counterexample and a hint; `hint=2` and `hint=3` say more, `seed=1` draws other cases.
# %% [markdown] key="intro" lang="zh" src="c4437fb3"
# ## 四个函数
#
# 把每个 `raise NotImplementedError` 换成你的代码，运行单元格，再看 `check` 的结果。
# 答错时，它会给出一个较小的反例和一条提示；`hint=2`、`hint=3` 提示更具体，`seed=1` 换一组用例。

# %% [markdown] key="e1" lang="en"
# ## 02.1 The formula
#
# Bytes that one token takes in the KV cache of the whole model.
# All `num_layers` layers cache the same: in each of `num_kv_heads` heads a K of `k_dim` elements and a V of `v_dim` elements, `itemsize` bytes an element.
# In most models `k_dim` and `v_dim` are both `head_dim`; in the models of [lesson 03](../../notebooks/en/03_the_2_86x_mistake.ipynb) they may differ.
#
# This function is a part of *your engine*: once it passes, it is kept, and [lesson 11c](../../notebooks/en/11c_your_engine.ipynb) runs the engine with it.
# %% [markdown] key="e1" lang="zh" src="77296e39"
# ## 02.1 公式
#
# 一个 token 在整个模型的 KV 缓存里占多少字节。
# `num_layers` 个层的缓存都一样：`num_kv_heads` 个头里各有一个 `k_dim` 个元素的 K 和一个 `v_dim` 个元素的 V，每个元素 `itemsize` 字节。
# 多数模型的 `k_dim` 和 `v_dim` 都等于 `head_dim`；[第 03 课](../../notebooks/zh/03_the_2_86x_mistake.ipynb)的模型则可能不同。
#
# 这个函数是“你的引擎”的一个部件：通过之后会保存下来，[第 11c 课](../../notebooks/zh/11c_your_engine.ipynb)会用它来运行引擎。

# %% key="e1_code"
def token_bytes(num_layers: int, num_kv_heads: int, k_dim: int, v_dim: int, itemsize: int) -> int:
    ### BEGIN SOLUTION
    return num_layers * num_kv_heads * (k_dim + v_dim) * itemsize
    ### END SOLUTION


check("02.1", token_bytes)

# %% [markdown] key="e1_why" lang="en"
# ### BEGIN SOLUTION
# Where K and V are equally wide, `k_dim + v_dim` is the $2 \cdot D$ of the formula. Llama-3.1-8B: 32 layers × 8 heads × (128 + 128) elements × 2 bytes = 131,072 bytes.
# ### END SOLUTION
# %% [markdown] key="e1_why" lang="zh" src="0ee64237"
# ### BEGIN SOLUTION
# K 和 V 等宽时，`k_dim + v_dim` 就是公式里的 $2 \cdot D$。Llama-3.1-8B：32 层 × 8 个头 ×（128 + 128）个元素 × 2 字节 = 131,072 字节。
# ### END SOLUTION

# %% [markdown] key="e2" lang="en"
# ## 02.2 The head dimension of a config
#
# `config` is a `config.json` as a dict, with `hidden_size`, `num_attention_heads` and `num_key_value_heads`.
# `head_dim` may be a number, `None`, or absent.
# Return how many elements one head's K of a token has in this model.
# %% [markdown] key="e2" lang="zh" src="6c3af660"
# ## 02.2 配置里的头维度
#
# `config` 是读成 dict 的 `config.json`，含有 `hidden_size`、`num_attention_heads` 和 `num_key_value_heads`。
# `head_dim` 可能是数字，可能是 `None`，也可能没有。
# 返回这个模型里，一个 token 在一个头的 K 有多少个元素。

# %% key="e2_code"
def head_dim_of(config: dict) -> int:
    ### BEGIN SOLUTION
    head_dim = config.get("head_dim")
    if head_dim is None:
        head_dim = config["hidden_size"] // config["num_attention_heads"]
    return head_dim
    ### END SOLUTION


check("02.2", head_dim_of)

# %% [markdown] key="e2_why" lang="en"
# ### BEGIN SOLUTION
# `config.get("head_dim", default)` would not do: where the file says `null`, the key is there, and the default is never used.
# ### END SOLUTION
# %% [markdown] key="e2_why" lang="zh" src="1f144e2e"
# ### BEGIN SOLUTION
# 不能写成 `config.get("head_dim", default)`：文件里写了 `null` 时键是存在的，默认值不会生效。
# ### END SOLUTION

# %% [markdown] key="e3" lang="en"
# ## 02.6 A block
#
# The engine of this course takes memory in blocks of `block_size` tokens.
# How many bytes is one block, all layers together? `token_bytes` is what 02.1 returns.
#
# This function is a part of *your engine*: once it passes, it is kept, and [lesson 11c](../../notebooks/en/11c_your_engine.ipynb) runs the engine with it.
# %% [markdown] key="e3" lang="zh" src="96571842"
# ## 02.6 一个块
#
# 本课程的引擎按块分配显存，每块放 `block_size` 个 token。
# 一个块在所有层合计占多少字节？`token_bytes` 就是 02.1 的返回值。
#
# 这个函数是“你的引擎”的一个部件：通过之后会保存下来，[第 11c 课](../../notebooks/zh/11c_your_engine.ipynb)会用它来运行引擎。

# %% key="e3_code"
def block_bytes(token_bytes: int, block_size: int) -> int:
    ### BEGIN SOLUTION
    return token_bytes * block_size
    ### END SOLUTION


check("02.6", block_bytes)

# %% [markdown] key="e4" lang="en"
# ## 02.7 A widget of your own
#
# Write `reading(model, kv_dtype, context, gib)`: what a widget with these four controls shows.
# `model` is a name of the catalogue, `kv_dtype` the dtype of the cache, `context` the tokens of a sequence, and `gib` the GiB for the cache.
# Return two numbers: the bytes of one sequence, and how many such sequences fit.
# `CacheSpec.from_config` and its `bytes_for` do most of it.
# %% [markdown] key="e4" lang="zh" src="467a8dbb"
# ## 02.7 你自己的组件
#
# 请写出 `reading(model, kv_dtype, context, gib)`：一个有这四个选项的组件应当显示什么。
# `model` 是目录里的模型名，`kv_dtype` 是缓存的数据类型，`context` 是一条序列的 token 数，`gib` 是留给缓存的 GiB 数。
# 返回两个数：一条序列的字节数，以及能放下几条这样的序列。
# 大部分工作可以交给 `CacheSpec.from_config` 和它的 `bytes_for`。

# %% key="e4_code"
from minikv.plan import CacheSpec


def reading(model: str, kv_dtype: str, context: int, gib: int) -> tuple[int, int]:
    ### BEGIN SOLUTION
    one = CacheSpec.from_config(model, kv_dtype=kv_dtype).bytes_for(context)
    return one, gib * 2**30 // one
    ### END SOLUTION


check("02.7", reading)

# %% [markdown] key="e4_widget" lang="en"
# Now the widget. `observe` calls `draw` whenever you change one of the four controls. Change one; then add another model of the catalogue to the first list.
# The short form is `ipywidgets.interact(reading, model=models, kv_dtype=kv_dtypes, context=(1024, 32_768, 1024), gib=(8, 80, 8))`: it makes the same controls and prints the two numbers.
# %% [markdown] key="e4_widget" lang="zh" src="7cab4f33"
# 现在来做组件。四个选项里任何一个改变，`observe` 都会调用 `draw`。先动一个试试，再往第一个列表里加一个目录里的模型。
# 简短的写法是 `ipywidgets.interact(reading, model=models, kv_dtype=kv_dtypes, context=(1024, 32_768, 1024), gib=(8, 80, 8))`：它生成同样的选项，并打印这两个数。

# %% key="e4_interact" lang="en"
from ipywidgets import HTML, Dropdown, IntSlider, VBox
from minikv.course import Table

models, kv_dtypes = ["Llama-3.1-8B", "Qwen3-0.6B", "Gemma-2-9B"], ["bf16", "fp8", "fp32"]
context, gib = IntSlider(16_384, 1024, 32_768, 1024), IntSlider(40, 8, 80, 8)
knobs, picture = [Dropdown(options=models), Dropdown(options=kv_dtypes), context, gib], HTML()


def draw(change):
    picture.value = Table(["bytes of a sequence", "sequences that fit"], [reading(*(knob.value for knob in knobs))])._repr_html_()


for knob in knobs:
    knob.observe(draw, "value")
show(VBox([*knobs, picture]), text="4 controls")

# %% key="e4_interact" lang="zh"
from ipywidgets import HTML, Dropdown, IntSlider, VBox
from minikv.course import Table

models, kv_dtypes = ["Llama-3.1-8B", "Qwen3-0.6B", "Gemma-2-9B"], ["bf16", "fp8", "fp32"]
context, gib = IntSlider(16_384, 1024, 32_768, 1024), IntSlider(40, 8, 80, 8)
knobs, picture = [Dropdown(options=models), Dropdown(options=kv_dtypes), context, gib], HTML()


def draw(change):
    picture.value = Table(["一条序列的字节数", "能放下几条"], [reading(*(knob.value for knob in knobs))])._repr_html_()


for knob in knobs:
    knob.observe(draw, "value")
show(VBox([*knobs, picture]), text="4 个选项")
