# %% [markdown] key="task" lang="en"
# Write the formula.
# %% [markdown] key="task" lang="zh" src="c62fc718"
# 写出公式。

# %% key="stub"
def bytes_per_token(layers: int, heads: int, dim: int) -> int:
    """K and V, one byte an element."""
    ### BEGIN SOLUTION
    return 2 * layers * heads * dim
    ### END SOLUTION


check("01.1", bytes_per_token)

# %% [markdown] key="why" lang="en"
# ### BEGIN SOLUTION
# There are two: K and V.
# ### END SOLUTION
# %% [markdown] key="why" lang="zh" src="e5d71868"
# ### BEGIN SOLUTION
# 一共两份：K 和 V。
# ### END SOLUTION
