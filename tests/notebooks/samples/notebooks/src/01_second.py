# %% [meta]
# number = "01"
# slug = "second"
# needs = ["00"]
# rooms = ["plan.spec.cache_spec"]
# [title]
# en = "How many bytes?"
# zh = "要多少字节？"
# [t4]
# en = "Runs in seconds."
# zh = "几秒钟即可运行。"
# [paper]
# en = "The first exercise."
# zh = "第一题。"

# %% [markdown] key="question" lang="en"
# ## The question
#
# One token costs memory.
# How much?
# %% [markdown] key="question" lang="zh" src="37e706fa"
# ## 问题
#
# 一个 token 要占显存。
# 到底占多少？

# %% [markdown] key="formula"
# $$bytes = 2 \cdot L \cdot H \cdot D$$

# %% key="bytes" lang="en"
num_bytes = 2 * 4 * 8  # K and V
print(num_bytes)
# %% key="bytes" lang="zh"
num_bytes = 2 * 4 * 8  # K 与 V
print(num_bytes)

# %% key="widget"
show(None, text="64 bytes")

# %% key="clock" tags="timing"
import time

print(time.perf_counter_ns())
