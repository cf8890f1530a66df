# %% [meta]
# number = "00"
# slug = "first"
# [title]
# en = "A first lesson"
# zh = "第一课"
# [t4]
# en = "The same as on a CPU."
# zh = "与 CPU 上相同。"

# %% [markdown] key="hello" lang="en"
# ## Hello
# %% [markdown] key="hello" lang="zh" src="8547edb1"
# ## 你好

# %% key="sum"
print(1 + 1)
