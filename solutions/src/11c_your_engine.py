# %% [meta]
# [t4]
# en = "Nothing here needs a GPU."
# zh = "这里用不到 GPU。"

# %% [markdown] key="sample_task" lang="en"
# ## 11c.1 The next tokens
#
# `sample(logits, step)` gives the next token of every sequence of a step: a list of ints, as long as the step.
#
# - `logits`: a tensor `[B, vocabulary]`; row $i$ belongs to `step[i]`
# - `step`: a list of `(seq, start, end)`. The tokens from `start` up to, not including, `end` have just been computed
# - `seq.params.temperature`: 0 takes the likeliest token of the row
# - `draw(row, params, position)`: draws a token from one row of logits, by the temperature, `top_p` and seed in `params`. `position` is where the new token will stand in its sequence
#
# Where `end` is not the end of `seq.tokens`, the row belongs to a chunk of a prompt. Its token is not used, but the list must have one there.
#
# `seq.tokens` are all tokens of the sequence so far, prompt and answer.
# %% [markdown] key="sample_task" lang="zh" src="0ffebd9f"
# ## 11c.1 下一个 token
#
# `sample(logits, step)` 为一步里的每条序列给出下一个 token：一个 int 的列表，与这一步一样长。
#
# - `logits`：张量 `[B, vocabulary]`，第 $i$ 行属于 `step[i]`
# - `step`：`(seq, start, end)` 的列表，从 `start` 到 `end`（不含 `end`）的 token 刚刚算完
# - `seq.params.temperature`：为 0 时，取这一行里最可能的 token
# - `draw(row, params, position)`：按 `params` 里的温度、`top_p` 和随机种子，从一行 logits 里抽取一个 token；`position` 是新 token 在序列里的位置
#
# 如果 `end` 还没有到 `seq.tokens` 的末尾，这一行就属于提示词的一段。它的 token 不会被用到，但列表里仍要占一项。
#
# `seq.tokens` 是这条序列到目前为止的全部 token，包括提示词和回答。

# %% key="sample_stub"
from minikv.nano.runner import draw


def sample(logits, step) -> list[int]:
    ### BEGIN SOLUTION
    tokens = logits.argmax(-1).tolist()
    for row, (seq, start, end) in enumerate(step):
        if seq.params.temperature > 0 and end == len(seq.tokens):
            tokens[row] = draw(logits[row], seq.params, end)
    return tokens
    ### END SOLUTION


check("11c.1", sample)
