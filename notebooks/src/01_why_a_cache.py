# %% [meta]
# number = "01"
# slug = "why_a_cache"
# needs = ["00"]
# rooms = ["plan.flops", "models"]
# [title]
# en = "Why does generation slow down without a cache?"
# zh = "没有缓存，生成为什么会越来越慢？"
# [t4]
# en = "Every cell runs as it is; counts stay the same, the times are those of the T4."
# zh = "所有单元格都能直接运行；计数不变，耗时变成 T4 上的耗时。"
# [paper]
# en = "01.2, 01.3 and 01.5 can be solved with a pencil."
# zh = "01.2、01.3 和 01.5 可以用纸笔完成。"

# %% [markdown] key="question" lang="en"
# ## The question
#
# A language model writes one token a step.
# **Why does each step take longer than the one before, and what does a KV cache keep so that it doesn't?**
#
# The small model of [lesson 00](00_start_here.ipynb) gets a prompt of 12 tokens and writes 4 more, once without a cache and once with one.
# A hook in its first layer (a function that torch calls whenever the layer runs) records which tokens each step computes. A row of the picture is a token.
# %% [markdown] key="question" lang="zh" src="aa7f509f"
# ## 问题
#
# 语言模型每一步写出一个 token。
# **为什么每一步都比前一步慢？KV 缓存保存了什么，就不再变慢？**
#
# [第 00 课](00_start_here.ipynb)的小模型读入 12 个 token，再写 4 个，先不用缓存，再用缓存。
# 第一层里的钩子（hook，即这一层每次运行时 torch 都会调用的函数）记下每一步要算哪些 token，图中的一行就是一个 token。

# %% key="rows" lang="en"
from minikv.course import Table
from minikv.course.diagrams import step_rows, watch_rows
from minikv.models import load, recall_prompt

model, tokenizer = load("tiny-gqa", dtype="fp32")
asked = recall_prompt(facts=3, context=9)
inputs = tokenizer(asked.text, return_tensors="pt").to(model.device)
steps = {}
for name, cached in (("without a cache", False), ("with a cache", True)):
    with watch_rows(model) as steps[name]:  # for each step: rows computed, rows seen
        written = model.generate(**inputs, max_new_tokens=4, use_cache=cached, do_sample=False)[0]
show(step_rows(tokenizer.convert_ids_to_tokens(written), steps, "en"))

# %% key="rows" lang="zh"
from minikv.course import Table
from minikv.course.diagrams import step_rows, watch_rows
from minikv.models import load, recall_prompt

model, tokenizer = load("tiny-gqa", dtype="fp32")
asked = recall_prompt(facts=3, context=9)
inputs = tokenizer(asked.text, return_tensors="pt").to(model.device)
steps = {}
for name, cached in (("不用缓存", False), ("使用缓存", True)):
    with watch_rows(model) as steps[name]:  # 每一步：计算几行，看到几行
        written = model.generate(**inputs, max_new_tokens=4, use_cache=cached, do_sample=False)[0]
show(step_rows(tokenizer.convert_ids_to_tokens(written), steps, "zh"))

# %% [markdown] key="abilities" lang="en"
# A step that computes all of its rows is a **prefill**. A step that computes only the newest row and reads the others is a **decode**.
# Without a cache every step is a prefill, so each one is longer than the last.
#
# After this lesson you can
#
# - **show** that the K and V of past tokens never change, which is why you may keep them;
# - **count** the FLOPs of a step (its additions and multiplications), and say from which length on attention costs more than all weight matrices;
# - **find** a wrong position or a stale cache, even where the text looks right.
#
# You need [lesson 00](00_start_here.ipynb) for the words token, prefill and decode, and you should know what a matrix product is.
# %% [markdown] key="abilities" lang="zh" src="0223c99f"
# 把所有行都算一遍的一步叫**预填充**（prefill）；只算最新一行、其余从缓存读出的一步叫**解码**（decode）。
# 不用缓存，每一步都是预填充，所以一步比一步长。
#
# 学完本课，你能
#
# - **证明**已有 token 的 K 和 V 不会再变，因此可以保存下来；
# - **数出**一步的 FLOP 数（一次加法或一次乘法算一个），并说出从哪个长度起，注意力的开销超过所有权重矩阵之和；
# - **找出**位置错误和过期的缓存，哪怕输出的文字看不出问题。
#
# 你需要[第 00 课](00_start_here.ipynb)的几个词（token、预填充、解码），还要知道什么是矩阵乘法。

# %% [markdown] key="predict-ratio" lang="en"
# ## Predict
#
# Before we look inside, guess how much a cache saves.
# The next cell asks a question that you can work out with paper and pencil; put your number in place of `...`.
# %% [markdown] key="predict-ratio" lang="zh" src="adbf0fa5"
# ## 先猜一猜
#
# 先不看原理，猜猜缓存能省多少。
# 下一格会出一道题，用纸笔就能算；把 `...` 换成你的数字。

# %% key="predict-ratio-cell"
predict("step_ratio", ...)

# %% [markdown] key="formula" lang="en"
# ## The formula
#
# Attention lets every token look at the tokens before it:
# %% [markdown] key="formula" lang="zh" src="4f278efc"
# ## 公式
#
# 注意力（attention）让每个 token 都能看到自己前面的 token：

# %% [markdown] key="formula-math"
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{Q K^{\top}}{\sqrt{d}} + M\right) V$$

# %% [markdown] key="symbols" lang="en"
# | symbol | what it is | shape | value here |
# |---|---|---|---|
# | $T_q$ | tokens that are fed in this step | a number of tokens | 6, then 1 |
# | $T_k$ | tokens that can be seen, those of this step included | a number of tokens | 6 |
# | $d$, $d_v$ | elements in a key and in a value of one head (`head_dim`) | a number of elements | 16 and 8 |
# | $Q$ | queries: what each fed token looks for | $[T_q, d]$ | [6, 16], then [1, 16] |
# | $K$ | keys: what each token offers to be found by | $[T_k, d]$ | [6, 16] |
# | $V$ | values: what each token hands over when it is found | $[T_k, d_v]$ | [6, 8] |
# | $M$ | causal mask: 0 where a query may look, $-\infty$ where it may not | $[T_q, T_k]$ | [6, 6] |
# | result | for each query, a weighted mean of the values | $[T_q, d_v]$ | [6, 8], then [1, 8] |
#
# The values are those of the next code cell: 6 made-up tokens, first with all 6 queries, then with the last one alone.
# With the shapes put in, for the last query alone: $[1, 16] \cdot [16, 6]$ gives $[1, 6]$ scores, the softmax turns them into 6 weights that add up to 1, and $[1, 6] \cdot [6, 8]$ gives $[1, 8]$.
#
# This is one **head** of one layer. A layer has several heads, and each of them does the same with matrices of its own.
# Each row of $Q$, $K$ and $V$ is made by a **projection**: the token's hidden vector times a weight matrix.
#
# Now look at the rows.
# Row $i$ of the result uses query $i$ and no other query, and the next token depends on the last row alone.
# So the last query is enough, as long as all keys and values are there. The next cell checks that:
# %% [markdown] key="symbols" lang="zh" src="3514e0e4"
# | 符号 | 含义 | 形状 | 本例取值 |
# |---|---|---|---|
# | $T_q$ | 这一步送入的 token 数 | 个数 | 6，然后是 1 |
# | $T_k$ | 能看到的 token 数，包括这一步送入的 | 个数 | 6 |
# | $d$、$d_v$ | 一个头中 key 和 value 的元素个数，即头维度（`head_dim`） | 个数 | 16 和 8 |
# | $Q$ | query：每个送入的 token 要找什么 | $[T_q, d]$ | [6, 16]，然后是 [1, 16] |
# | $K$ | key：每个 token 凭什么被找到 | $[T_k, d]$ | [6, 16] |
# | $V$ | value：每个 token 被找到后交出什么 | $[T_k, d_v]$ | [6, 8] |
# | $M$ | 因果掩码（causal mask）：允许看的位置为 0，不允许的为 $-\infty$ | $[T_q, T_k]$ | [6, 6] |
# | 结果 | 每个 query 得到一份 value 的加权平均 | $[T_q, d_v]$ | [6, 8]，然后是 [1, 8] |
#
# 取值来自下一个代码单元格，那里有 6 个随机生成的 token，先用全部 6 个 query，再只用最后一个。
# 以最后一个 query 为例，把形状代进去：$[1, 16] \cdot [16, 6]$ 得到 $[1, 6]$ 的得分，softmax 把它们变成和为 1 的 6 个权重，再由 $[1, 6] \cdot [6, 8]$ 得到 $[1, 8]$。
#
# 这只是一层里的一个**头**（head）。一层有好几个头，各用自己的矩阵做同样的计算。
# $Q$、$K$、$V$ 的每一行都来自**投影**（projection），也就是 token 的隐藏向量乘以一个权重矩阵。
#
# 现在来看行与行的关系。
# 结果的第 $i$ 行只用到第 $i$ 个 query，而下一个 token 只取决于最后一行。
# 也就是说，只要所有 key 和 value 都在，最后一个 query 就足够了。验证一下：

# %% key="one-query" lang="en"
import torch

torch.manual_seed(1)
tokens, d, d_v = 6, 16, 8
Q, K, V = torch.randn(tokens, d), torch.randn(tokens, d), torch.randn(tokens, d_v)
M = torch.full((tokens, tokens), float("-inf")).triu(1)  # [6, 6]: nothing above the diagonal
every_row = torch.softmax(Q @ K.T / d**0.5 + M, dim=-1) @ V  # [6, 8]
last_row = torch.softmax(Q[-1:] @ K.T / d**0.5, dim=-1) @ V  # [1, 8]: the last query sees all, without a mask
shapes = [[str([*m.shape]) for m in (q, K, V, out)] for q, out in ((Q, every_row), (Q[-1:], last_row))]
same = torch.allclose(every_row[-1:], last_row, atol=1e-6)
Table(["Q", "K", "V", "result"], shapes, lines=[f"One query gives the last row of all queries: {same}"])

# %% key="one-query" lang="zh"
import torch

torch.manual_seed(1)
tokens, d, d_v = 6, 16, 8
Q, K, V = torch.randn(tokens, d), torch.randn(tokens, d), torch.randn(tokens, d_v)
M = torch.full((tokens, tokens), float("-inf")).triu(1)  # [6, 6]：对角线以上全部挡住
every_row = torch.softmax(Q @ K.T / d**0.5 + M, dim=-1) @ V  # [6, 8]
last_row = torch.softmax(Q[-1:] @ K.T / d**0.5, dim=-1) @ V  # [1, 8]：最后一个 query 什么都能看，不用掩码
shapes = [[str([*m.shape]) for m in (q, K, V, out)] for q, out in ((Q, every_row), (Q[-1:], last_row))]
same = torch.allclose(every_row[-1:], last_row, atol=1e-6)
Table(["Q", "K", "V", "结果"], shapes, lines=[f"只用最后一个 query，结果与整体计算的最后一行相同：{same}"])

# %% [markdown] key="model" lang="en"
# ## A model to experiment with
#
# We use the model of [lesson 00](00_start_here.ipynb), tiny-gqa, this time without an engine around it: `load` returned the model and its tokenizer.
# It is a small Llama with grouped-query attention, in which 4 query heads share 2 KV heads.
#
# It has learned to recall. Where a text says `jack vienna` and later asks `? jack`, it answers `vienna`.
# We call such a pair of a name and a city a **fact**.
# Every answer is simply right or wrong, so we can see at once when a cache breaks something.
# Its training texts had at most 257 tokens. Far beyond that length it answers wrongly, with a cache and without.
#
# The tokenizer turns each word into one token and puts `<bos>` in front, which marks the beginning of a sequence.
#
# Three choices make the measurements clear.
# We compute in `fp32`, with 32 bits, although the file holds 16-bit numbers. So rounding stays out of the way until we look at it.
# We use `eager` attention, which is the formula as it stands, without a fused kernel.
# And we use one thread, because on matrices this small extra threads just make the timings noisy.
# %% [markdown] key="model" lang="zh" src="1148d49b"
# ## 用来做实验的模型
#
# 模型还是[第 00 课](00_start_here.ipynb)的 tiny-gqa，不过这次没有套引擎，前面的 `load` 直接返回了模型和分词器（tokenizer）。
# 它是一个小 Llama，采用分组查询注意力（GQA），4 个 query 头共用 2 个 KV 头。
#
# 它学会的事情是回忆。例如文本里出现过 `jack vienna`，后面问 `? jack`，它就回答 `vienna`。
# 这样一对人名和城市，下面叫作一条**事实**。
# 答案要么对要么错，所以缓存一旦出问题，马上就能看出来。
# 训练文本最长 257 个 token，远远超出这个长度时，不管用不用缓存，它都会答错。
#
# 分词器把每个词变成一个 token，并在最前面加上 `<bos>`，表示序列开头。
#
# 为了让测量结果清楚，有三处设定：
# 用 `fp32`（32 位）计算，虽然文件里存的是 16 位的数，这样在专门讨论舍入之前不受它干扰；
# 用 `eager` 注意力，也就是照公式一步步算，不用融合 kernel；
# 只用一个线程，因为矩阵这么小，线程一多，耗时反而忽高忽低。

# %% key="model-cell" lang="en"
torch.set_num_threads(1)
model.set_attn_implementation("eager")
config, device = model.config, model.device
prompt = tokenizer(asked.text).input_ids
Table(["token", "id"], zip(tokenizer.convert_ids_to_tokens(prompt), prompt), title=asked.text)

# %% key="model-cell" lang="zh"
torch.set_num_threads(1)
model.set_attn_implementation("eager")
config, device = model.config, model.device
prompt = tokenizer(asked.text).input_ids
Table(["token", "编号"], zip(tokenizer.convert_ids_to_tokens(prompt), prompt), title=asked.text)

# %% key="device-cell" tags="hardware" lang="en"
parameters = sum(p.numel() for p in model.parameters())
Table(["device", "parameters", "layers"], [[str(device), parameters, config.num_hidden_layers]])

# %% key="device-cell" tags="hardware" lang="zh"
parameters = sum(p.numel() for p in model.parameters())
Table(["设备", "参数", "层数"], [[str(device), parameters, config.num_hidden_layers]])

# %% [markdown] key="unchanged" lang="en"
# ## Old keys and values do not change
#
# The causal mask lets a token look back but never ahead.
# So what a token computes, in every layer, depends on itself and on the tokens before it, and a token that comes later cannot change it.
#
# We can check this: feed the prompt without its last token, then all of it, and compare K and V of the tokens that both have.
# %% [markdown] key="unchanged" lang="zh" src="1fa50916"
# ## 旧的 K 和 V 不会变
#
# 有了因果掩码，一个 token 只能看到自己和前面的 token，看不到后面的。
# 因此在每一层里，它的计算结果只取决于自己和前面的内容，后来加进来的 token 影响不到它。
#
# 验证方法很直接，先送入去掉最后一个 token 的提示词，再送入完整的提示词，比较两次都有的那些 token 的 K 和 V。

# %% key="unchanged-cell" lang="en"
def prefill(tokens):
    return model(torch.tensor([tokens], device=device), use_cache=True).past_key_values


short, long = prefill(prompt[:-1]), prefill(prompt)
past, rows = short.get_seq_length(), []
for number, (a, b) in enumerate(zip(short.layers, long.layers)):
    pairs = [(a.keys, b.keys[:, :, :past]), (a.values, b.values[:, :, :past])]  # the tokens that both have
    same = all(torch.allclose(old, new, atol=1e-4) for old, new in pairs)
    rows.append([number, str([*a.keys.shape]), past, str(same)])
Table(["layer", "shape of K", "tokens", "K and V are the same"], rows)

# %% key="unchanged-cell" lang="zh"
def prefill(tokens):
    return model(torch.tensor([tokens], device=device), use_cache=True).past_key_values


short, long = prefill(prompt[:-1]), prefill(prompt)
past, rows = short.get_seq_length(), []
for number, (a, b) in enumerate(zip(short.layers, long.layers)):
    pairs = [(a.keys, b.keys[:, :, :past]), (a.values, b.values[:, :, :past])]  # 两次都有的 token
    same = all(torch.allclose(old, new, atol=1e-4) for old, new in pairs)
    rows.append([number, str([*a.keys.shape]), past, str(same)])
Table(["层", "K 的形状", "token 数", "K 和 V 相同"], rows)

# %% [markdown] key="two-facts" lang="en"
# The shape is `[batch, KV heads, tokens, head_dim]`.
#
# Two observations make a cache possible:
# **the K and V of past tokens never change, and the Q of past tokens is never needed again.**
# So we keep K and V, drop Q, and feed only the newest token.
#
# ## The same tokens
#
# Here are both ways in one loop.
# The only difference is `fed`: the whole sequence, or just the newest token.
# Ignore `shift` for now; later we use it to break things.
# %% [markdown] key="two-facts" lang="zh" src="f65b7a71"
# K 的形状是 `[batch, KV 头, token, 头维度]`。
#
# 缓存能够成立，靠的就是两点：
# **已有 token 的 K 和 V 不再变化；已有 token 的 Q 不会再用到**。
# 所以只需保留 K 和 V，丢掉 Q，每一步只送入最新的 token。
#
# ## token 完全相同
#
# 下面把两种做法写进同一个循环。
# 区别只在 `fed`，也就是送入整个序列，还是只送入最新的 token。
# 参数 `shift` 先不用管，后面要用它来制造错误。

# %% key="generate-cell" lang="en"
def generate(model, tokens, num_new, cached, cache=None, shift=0):
    tokens = list(tokens)
    fed = tokens if cache is None else tokens[cache.get_seq_length() :]
    for _ in range(num_new):
        first = len(tokens) - len(fed) + (0 if cache is None else shift)
        positions = torch.arange(first, first + len(fed), device=device)[None]  # [1, T_q]
        ids = torch.tensor([fed], device=device)  # [1, T_q]
        out = model(ids, position_ids=positions, past_key_values=cache, use_cache=cached, logits_to_keep=1)
        cache = out.past_key_values
        tokens.append(int(out.logits[0, -1].argmax()))
        fed = tokens[-1:] if cached else tokens  # the only difference
    return tokens, cache

# %% key="generate-cell" lang="zh"
def generate(model, tokens, num_new, cached, cache=None, shift=0):
    tokens = list(tokens)
    fed = tokens if cache is None else tokens[cache.get_seq_length() :]
    for _ in range(num_new):
        first = len(tokens) - len(fed) + (0 if cache is None else shift)
        positions = torch.arange(first, first + len(fed), device=device)[None]  # [1, T_q]
        ids = torch.tensor([fed], device=device)  # [1, T_q]
        out = model(ids, position_ids=positions, past_key_values=cache, use_cache=cached, logits_to_keep=1)
        cache = out.past_key_values
        tokens.append(int(out.logits[0, -1].argmax()))
        fed = tokens[-1:] if cached else tokens  # 唯一的区别
    return tokens, cache

# %% key="same-tokens" lang="en"
def said(tokens):
    return tokenizer.decode(tokens[len(prompt) :])


num_new = 10
without, _ = generate(model, prompt, num_new, cached=False)
reply, cache = generate(model, prompt, num_new, cached=True)
assert without == reply
fed_without = sum(range(len(prompt), len(prompt) + num_new))
rows = [["no", said(without), fed_without], ["yes", said(reply), len(prompt) + num_new - 1]]
Table(["cache", "10 new words", "tokens fed in 10 steps"], rows, lines=[f"The right answer: {asked.answer}"])

# %% key="same-tokens" lang="zh"
def said(tokens):
    return tokenizer.decode(tokens[len(prompt) :])


num_new = 10
without, _ = generate(model, prompt, num_new, cached=False)
reply, cache = generate(model, prompt, num_new, cached=True)
assert without == reply
fed_without = sum(range(len(prompt), len(prompt) + num_new))
rows = [["不用", said(without), fed_without], ["使用", said(reply), len(prompt) + num_new - 1]]
Table(["缓存", "10 个新词", "10 步送入的 token"], rows, lines=[f"正确答案：{asked.answer}"])

# %% [markdown] key="recall" lang="en"
# Without a cache the ten steps feed 12 + 13 + ... + 21 = 165 tokens, with one they feed 12 + 9 = 21.
#
# The first word is the answer. Then the model asks itself further questions, as in [lesson 00](00_start_here.ipynb).
#
# ## Right with a cache, too?
#
# One prompt may be luck, and its answer came out of the step that read the prompt itself.
# So here is a harder test: 20 prompts with 8 facts each among other words.
# One way feeds the whole prompt.
# The other feeds all but the question and keeps the cache. Then it feeds only the question, which is two tokens, `?` and a name.
# Now a fact can reach the answer in one way only: through its K and V in the cache.
# %% [markdown] key="recall" lang="zh" src="0af04324"
# 不用缓存时，十步一共送入 12 + 13 + … + 21 = 165 个 token；使用缓存时只有 12 + 9 = 21 个。
#
# 第一个词就是答案，后面是模型在自问自答，与[第 00 课](00_start_here.ipynb)一样。
#
# ## 用了缓存，答案也对吗？
#
# 只试一个提示词可能是碰巧，何况它的答案出自读入提示词的那一步。
# 所以再做一个更难的测试，用 20 个提示词，每个有 8 条事实，夹在别的词中间。
# 第一种做法送入整个提示词。
# 第二种做法先送入问题之前的全部内容，留下缓存，然后只送入问题，也就是 `?` 和一个人名这两个 token。
# 这样一来，事实要影响答案，就只能通过缓存里的 K 和 V。

# %% key="recall-cell" lang="en"
def answers_rightly(asked, cut=None, shift=0):
    tokens = tokenizer(asked.text).input_ids
    cache = None if cut is None else prefill(tokens[:cut])
    tokens, _ = generate(model, tokens, 1, cached=cache is not None, cache=cache, shift=shift)
    return tokenizer.decode(tokens[-1]) == asked.answer


prompts = [recall_prompt(seed, facts=8, context=64) for seed in range(20)]
whole = sum(answers_rightly(asked) for asked in prompts)
in_cache = sum(answers_rightly(asked, cut=-2) for asked in prompts)
Table(["questions", "right: whole prompt fed", "right: all facts in the cache"], [[len(prompts), whole, in_cache]])

# %% key="recall-cell" lang="zh"
def answers_rightly(asked, cut=None, shift=0):
    tokens = tokenizer(asked.text).input_ids
    cache = None if cut is None else prefill(tokens[:cut])
    tokens, _ = generate(model, tokens, 1, cached=cache is not None, cache=cache, shift=shift)
    return tokenizer.decode(tokens[-1]) == asked.answer


prompts = [recall_prompt(seed, facts=8, context=64) for seed in range(20)]
whole = sum(answers_rightly(asked) for asked in prompts)
in_cache = sum(answers_rightly(asked, cut=-2) for asked in prompts)
Table(["问题", "答对：送入整个提示词", "答对：事实全在缓存里"], [[len(prompts), whole, in_cache]])

# %% [markdown] key="predict-held" lang="en"
# So the cache holds everything that an answer needs.
#
# The loop above fed the prompt once and then one token a step. How many tokens does its cache hold now?
# Predict it for other numbers:
# %% [markdown] key="predict-held" lang="zh" src="986ab38d"
# 可见，回答所需的内容缓存里都有。
#
# 上面的循环先送入一次提示词，之后每步送入一个 token。现在它的缓存里有多少个 token？
# 换一组数字猜猜看：

# %% key="predict-held-cell"
predict("held", ...)

# %% key="held-cell" lang="en"
Table(["prompt", "new tokens", "in the cache"], [[len(prompt), num_new, cache.get_seq_length()]])

# %% key="held-cell" lang="zh"
Table(["提示词", "新 token", "在缓存里"], [[len(prompt), num_new, cache.get_seq_length()]])

# %% [markdown] key="held-why" lang="en"
# The cache holds one token less than the sum: 12 + 10 - 1 = 21.
# The first new token comes out of the step that reads the prompt, and the last one was never fed, so it has no K and V yet.
#
# ## What a step costs
#
# How much work does that save? Let $n$ be the number of tokens that the newest query sees, itself included.
#
# | work of step $n$ | without a cache | with a cache |
# |---|---|---|
# | projections (every weight matrix of every layer) | $n \cdot p$ | $p$ |
# | attention ($QK^\top$ and the product with $V$) | $n^2 \cdot a$ | $n \cdot a$ |
# | logits of the last token (`lm_head`) | $h$ | $h$ |
#
# We count in FLOPs, where one FLOP is one addition or one multiplication.
# Without a cache the projections grow like $n$ and attention grows like $n^2$. With one, the projections stay the same and attention grows like $n$.
#
# All three coefficients follow from the config:
# %% [markdown] key="held-why" lang="zh" src="02eeef3b"
# 比两者之和少一个：12 + 10 - 1 = 21。
# 因为第一个新 token 出自读入提示词的那一步，而最后一个新 token 还没有送入模型，没有 K 和 V。
#
# ## 一步的开销
#
# 这样能省多少计算？记 $n$ 为最新的 query 能看到的 token 数，包括它自己。
#
# | 第 $n$ 个 token 的这一步 | 不用缓存 | 使用缓存 |
# |---|---|---|
# | 投影（各层的所有权重矩阵） | $n \cdot p$ | $p$ |
# | 注意力（$QK^\top$，再乘 $V$） | $n^2 \cdot a$ | $n \cdot a$ |
# | 最后一个 token 的 logits（`lm_head`） | $h$ | $h$ |
#
# 单位是 FLOP，一次加法或一次乘法算一个 FLOP。
# 不用缓存时，投影随 $n$ 增长，注意力随 $n^2$ 增长；使用缓存后，投影不再增长，注意力只随 $n$ 增长。
#
# 三个系数都可以由配置算出：

# %% [markdown] key="cost-math"
# $$p = 2L\,\bigl(\mathit{hidden}\,(2H + 2H_{kv})\,d + 3\,\mathit{hidden}\cdot\mathit{intermediate}\bigr)$$
#
# $$a = 4\,L\,H\,d \qquad\qquad h = 2\,\mathit{hidden}\cdot\mathit{vocab}$$

# %% [markdown] key="cost-call" lang="en"
# | symbol | what it is | value here, for tiny-gqa |
# |---|---|---|
# | $L$ | layers | 2 |
# | $\mathit{hidden}$ | elements of a token's hidden vector | 128 |
# | $H$, $H_{kv}$ | query heads and KV heads | 4 and 2 |
# | $d$ | elements of a head | 32 |
# | $\mathit{intermediate}$ | width of the MLP | 256 |
# | $\mathit{vocab}$ | tokens that the model knows | 196 |
# | $p$ | FLOPs for each token that is fed | 589,824 |
# | $a$ | FLOPs for each pair of a query and a key | 1,024 |
# | $h$ | FLOPs for one row of logits | 50,176 |
#
# $$p = 2 \cdot 2 \cdot (128 \cdot (2 \cdot 4 + 2 \cdot 2) \cdot 32 + 3 \cdot 128 \cdot 256) = 589{,}824 \qquad a = 4 \cdot 2 \cdot 4 \cdot 32 = 1{,}024 \qquad h = 2 \cdot 128 \cdot 196 = 50{,}176$$
#
# The first 2 in $p$ stands for one multiplication and one addition for each weight.
# In the bracket, $2H$ is for the matrices of Q and of the output, $2H_{kv}$ for those of K and V, and 3 for the three matrices of the MLP.
# The 4 in $a$ is twice that, once for $QK^\top$ and once for the product with $V$.
#
# So the step with $n = 16$ costs $16 \cdot 589{,}824 + 16^2 \cdot 1{,}024 + 50{,}176 = 9{,}749{,}504$ FLOPs without a cache, and $589{,}824 + 16 \cdot 1{,}024 + 50{,}176 = 656{,}384$ with one.
#
# The next two cells compute the coefficients of the small model and of a real one, and then one step of the real model at 1,000 tokens.
# %% [markdown] key="cost-call" lang="zh" src="15cb9d1c"
# | 符号 | 含义 | 本例取值（tiny-gqa） |
# |---|---|---|
# | $L$ | 层数 | 2 |
# | $\mathit{hidden}$ | 一个 token 的隐藏向量的元素数 | 128 |
# | $H$、$H_{kv}$ | query 头数和 KV 头数 | 4 和 2 |
# | $d$ | 一个头的元素数 | 32 |
# | $\mathit{intermediate}$ | MLP 的宽度 | 256 |
# | $\mathit{vocab}$ | 词表大小 | 196 |
# | $p$ | 每送入一个 token 的 FLOP 数 | 589,824 |
# | $a$ | 每一对 query 和 key 的 FLOP 数 | 1,024 |
# | $h$ | 一行 logits 的 FLOP 数 | 50,176 |
#
# $$p = 2 \cdot 2 \cdot (128 \cdot (2 \cdot 4 + 2 \cdot 2) \cdot 32 + 3 \cdot 128 \cdot 256) = 589{,}824 \qquad a = 4 \cdot 2 \cdot 4 \cdot 32 = 1{,}024 \qquad h = 2 \cdot 128 \cdot 196 = 50{,}176$$
#
# $p$ 开头的 2，是因为每个权重要做一次乘法和一次加法。
# 括号里的 $2H$ 对应 Q 和输出两个矩阵，$2H_{kv}$ 对应 K 和 V 两个矩阵，3 对应 MLP 的三个矩阵。
# $a$ 里的 4 是它的两倍，因为 $QK^\top$ 算一次，乘 $V$ 又算一次。
#
# 例如 $n = 16$ 的一步，不用缓存要 $16 \cdot 589{,}824 + 16^2 \cdot 1{,}024 + 50{,}176 = 9{,}749{,}504$ 个 FLOP，使用缓存只要 $589{,}824 + 16 \cdot 1{,}024 + 50{,}176 = 656{,}384$ 个。
#
# 接下来用函数调用算同样的公式，先是小模型和一个真实模型的三个系数，再是真实模型在 1,000 个 token 处的一步。

# %% key="cost-cell" lang="en"
from dataclasses import astuple

from minikv.plan.flops import crossing_length, flop_cost, generation_flops, step_flops

rows = [["tiny-gqa", *astuple(flop_cost(config))], ["Llama-3.1-8B", *astuple(flop_cost("Llama-3.1-8B"))]]
Table(["model", "p: a token", "a: a pair", "h: logits"], rows)

# %% key="cost-cell" lang="zh"
from dataclasses import astuple

from minikv.plan.flops import crossing_length, flop_cost, generation_flops, step_flops

rows = [["tiny-gqa", *astuple(flop_cost(config))], ["Llama-3.1-8B", *astuple(flop_cost("Llama-3.1-8B"))]]
Table(["模型", "p：每个 token", "a：每一对", "h：一行 logits"], rows)

# %% key="cost-step"
step_flops("Llama-3.1-8B", 1000, cached=True)

# %% [markdown] key="count" lang="en"
# ## Count it
#
# A formula is only a claim, so let's count what really runs.
# PyTorch's `FlopCounterMode` adds up the FLOPs of every matrix product from its shapes, and it knows in which module each product ran.
# Every weight matrix of the layers is a module with a name that ends in `_proj`. What `self_attn` does besides its own four matrices is attention itself.
# The counter looks only at shapes, so any token ids and an empty mask will do.
# %% [markdown] key="count" lang="zh" src="1cc9d5da"
# ## 数一数
#
# 公式说得对不对，要看实际运行了多少。
# PyTorch 的 `FlopCounterMode` 会按形状累加每次矩阵乘法的 FLOP 数，还知道每次乘法发生在哪个模块里。
# 各层的每个权重矩阵都是一个名字以 `_proj` 结尾的模块；`self_attn` 减去它自己的四个矩阵，剩下的就是注意力本身。
# 计数只看形状，所以 token 用什么编号、掩码里填什么都无所谓。

# %% key="count-cell" lang="en"
from torch.utils.flop_counter import FlopCounterMode


def forward(model, fed, seen, cache=None, cached=False):
    ids, mask = torch.zeros(1, fed, dtype=torch.long), torch.zeros(1, 1, fed, seen)
    return model(ids, attention_mask=mask, past_key_values=cache, use_cache=cached, logits_to_keep=1)


def flops_by_module(model, num_tokens, cached):
    with torch.device(model.device):
        past = forward(model, num_tokens - 1, num_tokens - 1, cached=True).past_key_values if cached else None
        with FlopCounterMode(display=False) as counter:  # counts the last step alone
            forward(model, 1 if cached else num_tokens, num_tokens, past, cached)
    return {module: sum(ops.values()) for module, ops in counter.get_flop_counts().items()}

# %% key="count-cell" lang="zh"
from torch.utils.flop_counter import FlopCounterMode


def forward(model, fed, seen, cache=None, cached=False):
    ids, mask = torch.zeros(1, fed, dtype=torch.long), torch.zeros(1, 1, fed, seen)
    return model(ids, attention_mask=mask, past_key_values=cache, use_cache=cached, logits_to_keep=1)


def flops_by_module(model, num_tokens, cached):
    with torch.device(model.device):
        past = forward(model, num_tokens - 1, num_tokens - 1, cached=True).past_key_values if cached else None
        with FlopCounterMode(display=False) as counter:  # 只数最后这一步
            forward(model, 1 if cached else num_tokens, num_tokens, past, cached)
    return {module: sum(ops.values()) for module, ops in counter.get_flop_counts().items()}

# %% key="count-parts"
def count(model, num_tokens, cached):
    flops = flops_by_module(model, num_tokens, cached)

    def inside(*endings):
        return sum(number for module, number in flops.items() if module.endswith(endings))

    attention = inside("self_attn") - inside("q_proj", "k_proj", "v_proj", "o_proj")
    return inside("_proj"), attention, inside("lm_head")

# %% key="count-table" lang="en"
lengths = [16, 32, 64, 128, 256, 512]
counted = {cached: [count(model, n, cached) for n in lengths] for cached in (False, True)}
rows = [
    [name, n, *parts]
    for cached, name in ((False, "no"), (True, "yes"))
    for n, parts in zip(lengths, counted[cached])
]
Table(["cache", "n", "projections", "attention", "lm_head"], rows, title="FLOPs of one step")

# %% key="count-table" lang="zh"
lengths = [16, 32, 64, 128, 256, 512]
counted = {cached: [count(model, n, cached) for n in lengths] for cached in (False, True)}
rows = [
    [name, n, *parts]
    for cached, name in ((False, "不用"), (True, "使用"))
    for n, parts in zip(lengths, counted[cached])
]
Table(["缓存", "n", "投影", "注意力", "lm_head"], rows, title="一步的 FLOP 数")

# %% [markdown] key="fit" lang="en"
# Read down the columns: each row doubles $n$.
# Without a cache the projections double and attention grows four times.
# With a cache the projections stay the same and attention doubles.
#
# Now pretend that we know only the totals.
# We fit a parabola to those without a cache and a line to those with one, and compare the coefficients with the ones from the config.
# The line gives only the sum $p + h$, because with a cache neither part grows with $n$:
# %% [markdown] key="fit" lang="zh" src="8e9ab698"
# 沿着各列往下看，每一行的 $n$ 都是上一行的两倍。
# 不用缓存时，投影翻倍，注意力变成四倍；使用缓存时，投影不变，注意力翻倍。
#
# 再反过来试试，假装只知道总数。
# 用抛物线拟合不用缓存的总数，用直线拟合使用缓存的总数，然后把系数与配置算出的作比较。
# 使用缓存时 $p$ 和 $h$ 都不随 $n$ 增长，所以直线只能拟合出两者之和：

# %% key="fit-cell" lang="en"
import numpy as np

totals = {cached: [sum(parts) for parts in counted[cached]] for cached in (False, True)}
pair, token, head = np.polyfit(lengths, totals[False], 2)  # a n^2 + p n + h
cached_pair, cached_rest = np.polyfit(lengths, totals[True], 1)  # a n + (p + h)
cost = flop_cost(config)
rows = [
    ["fit without a cache", round(pair), round(token), round(head), round(token) + round(head)],
    ["fit with a cache", round(cached_pair), None, None, round(cached_rest)],
    ["from the config", cost.per_pair, cost.per_token, cost.lm_head, cost.per_token + cost.lm_head],
]
Table(["", "a", "p", "h", "p + h"], rows)

# %% key="fit-cell" lang="zh"
import numpy as np

totals = {cached: [sum(parts) for parts in counted[cached]] for cached in (False, True)}
pair, token, head = np.polyfit(lengths, totals[False], 2)  # a n^2 + p n + h
cached_pair, cached_rest = np.polyfit(lengths, totals[True], 1)  # a n + (p + h)
cost = flop_cost(config)
rows = [
    ["拟合，不用缓存", round(pair), round(token), round(head), round(token) + round(head)],
    ["拟合，使用缓存", round(cached_pair), None, None, round(cached_rest)],
    ["由配置算出", cost.per_pair, cost.per_token, cost.lm_head, cost.per_token + cost.lm_head],
]
Table(["", "a", "p", "h", "p + h"], rows)

# %% [markdown] key="crossing" lang="en"
# ## From which length on does attention cost more?
#
# Attention starts cheap but grows faster.
# With a cache it costs more than the projections once $n \cdot a > p$. Without a cache the condition is $n^2 a > n p$.
# Divide the second one by $n$, and you get the same $n$ for both:
# %% [markdown] key="crossing" lang="zh" src="ce4b4fc4"
# ## 从多长起，注意力比权重更贵
#
# 注意力的开销起初很小，但增长得更快。
# 使用缓存时，$n \cdot a > p$ 就表示注意力更贵；不用缓存时，条件是 $n^2 a > n p$。
# 后一个式子两边同除以 $n$，就与前一个相同，所以两种情况在同一个 $n$ 交叉：

# %% [markdown] key="crossing-math"
# $$n_{\times} = \lfloor p / a \rfloor + 1$$

# %% [markdown] key="crossing-predict" lang="en"
# | symbol | what it is | value here, for tiny-gqa |
# |---|---|---|
# | $p$ | FLOPs for each token that is fed | 589,824 |
# | $a$ | FLOPs for each pair of a query and a key | 1,024 |
# | $n_{\times}$ | first length at which attention costs more | 577 |
#
# $$\lfloor 589{,}824 / 1{,}024 \rfloor + 1 = 576 + 1 = 577$$
#
# At exactly 576 tokens the two are equal, and equal is not more: that's why the formula adds 1.
# Now work it out for a real model:
# %% [markdown] key="crossing-predict" lang="zh" src="2c7fafa1"
# | 符号 | 含义 | 本例取值（tiny-gqa） |
# |---|---|---|
# | $p$ | 每送入一个 token 的 FLOP 数 | 589,824 |
# | $a$ | 每一对 query 和 key 的 FLOP 数 | 1,024 |
# | $n_{\times}$ | 注意力的开销首次超过投影的长度 | 577 |
#
# $$\lfloor 589{,}824 / 1{,}024 \rfloor + 1 = 576 + 1 = 577$$
#
# 长度恰好为 576 时两者相等，相等还不算超过，所以公式里要加 1。
# 换成真实的模型，你来算：

# %% key="predict-crossing-cell"
predict("crossing", ...)

# %% [markdown] key="crossing-search" lang="en"
# For the small model we can check the formula in two ways: from the fit, and by counting.
# `round` removes the rounding errors of the fit. Here $p$ is an exact multiple of $a$, so an error in the last bit would cost one token.
# `bisect` halves the range until it has the first length at which attention is ahead.
# %% [markdown] key="crossing-search" lang="zh" src="e584fce4"
# 小模型可以用两种办法核对，用拟合出的系数算，或者直接去数。
# `round` 用来去掉拟合的舍入误差。这里 $p$ 恰好是 $a$ 的整数倍，最后一位稍有误差，结果就会差一个 token。
# `bisect` 不断二分，直到找出注意力首次领先的长度。

# %% key="crossing-cell" lang="en"
from bisect import bisect_left


def attention_leads(n, cached):
    projections, attention, _ = count(model, n, cached)
    return attention > projections


rows = [["fit", round(token) // round(pair) + 1], ["config", crossing_length(config)]]
for name, cached in (("counted, without a cache", False), ("counted, with a cache", True)):
    found = bisect_left(range(2, 1026), True, key=lambda n: attention_leads(n, cached))
    rows.append([name, 2 + found])
Table(["from", "first n at which attention leads"], rows)

# %% key="crossing-cell" lang="zh"
from bisect import bisect_left


def attention_leads(n, cached):
    projections, attention, _ = count(model, n, cached)
    return attention > projections


rows = [["拟合", round(token) // round(pair) + 1], ["配置", crossing_length(config)]]
for name, cached in (("计数，不用缓存", False), ("计数，使用缓存", True)):
    found = bisect_left(range(2, 1026), True, key=lambda n: attention_leads(n, cached))
    rows.append([name, 2 + found])
Table(["来源", "注意力首次领先的 n"], rows)

# %% key="chart" lang="en"
from minikv.course.charts import lines

series = {}
for name, cached in (("without a cache", False), ("with a cache", True)):
    series[f"{name}, formula"] = {2**k: step_flops(config, 2**k, cached).total for k in range(4, 12)}
    series[f"{name}, counted"] = dict(zip(lengths, totals[cached]))
points = [name for name in series if name.endswith("counted")]
marks = {"attention leads": crossing_length(config)}
show(lines(series, points=points, x="n: tokens in the sequence", y="FLOPs of one step", log="xy", marks=marks))

# %% key="chart" lang="zh"
from minikv.course.charts import lines

series = {}
for name, cached in (("不用缓存", False), ("使用缓存", True)):
    series[f"{name}，公式"] = {2**k: step_flops(config, 2**k, cached).total for k in range(4, 12)}
    series[f"{name}，实际计数"] = dict(zip(lengths, totals[cached]))
points = [name for name in series if name.endswith("实际计数")]
marks = {"注意力领先": crossing_length(config)}
show(lines(series, points=points, x="n：序列的 token 数", y="一步的 FLOP 数", log="xy", marks=marks))

# %% [markdown] key="time" lang="en"
# Both axes are logarithmic, so slope 1 means that the FLOPs double when $n$ doubles, and slope 2 that they grow four times.
# Without a cache the line starts with about slope 1, because projections dominate, and bends towards slope 2 where attention takes over, at 577.
# With a cache it starts nearly flat and bends towards slope 1.
# The counted points lie on the lines of the formula.
#
# ## FLOPs are not seconds
#
# Now we time the same steps on this machine, in three rounds. For each length we show the fastest of twelve steps, four in each round after one to warm up.
# %% [markdown] key="time" lang="zh" src="0a5391ae"
# 两个坐标轴都是对数刻度，所以斜率 1 表示 $n$ 翻倍时 FLOP 数也翻倍，斜率 2 表示变成四倍。
# 不用缓存的线起初斜率约为 1，因为投影占大头；过了 577，注意力占了大头，斜率就逐渐接近 2。
# 使用缓存的线起初几乎是平的，后来斜率逐渐接近 1。
# 实际计数的圆点都落在公式的线上。
#
# ## FLOP 不等于秒
#
# 同样的步骤，现在在这台机器上计时。一共三轮，每轮对每个长度先预热一步，再测四步，表中取这十二步里最快的一步。

# %% key="time-function"
import time


def step_ms(num_tokens, cached):
    ids = torch.arange(num_tokens + 5, device=device)[None] % config.vocab_size
    past = model(ids[:, : num_tokens - 1], use_cache=True).past_key_values if cached else None
    times = []
    for n in range(num_tokens, num_tokens + 5):
        begin = time.perf_counter()
        fed = ids[:, n - 1 : n] if cached else ids[:, :n]
        model(fed, past_key_values=past, use_cache=cached, logits_to_keep=1).logits.argmax().item()
        times.append(1000 * (time.perf_counter() - begin))
    return min(times[1:])

# %% key="time-table" tags="timing" lang="en"
cases = [(n, cached) for n in (16, 128, 512, 1024) for cached in (False, True)]
rounds = [{case: step_ms(*case) for case in cases} for _ in range(3)]
ms = {case: min(times[case] for times in rounds) for case in cases}
work = {case: step_flops(config, *case).total for case in cases}
rows = []
for n in (16, 128, 512, 1024):
    slow, fast = ms[n, False], ms[n, True]
    rows.append([n, f"{slow:.2f}", f"{fast:.2f}", f"{slow / fast:.1f}", f"{work[n, False] / work[n, True]:.0f}"])
head = ["n", "ms without", "ms with", "times as long", "times the FLOPs"]
Table(head, rows, right=head[1:])

# %% key="time-table" tags="timing" lang="zh"
cases = [(n, cached) for n in (16, 128, 512, 1024) for cached in (False, True)]
rounds = [{case: step_ms(*case) for case in cases} for _ in range(3)]
ms = {case: min(times[case] for times in rounds) for case in cases}
work = {case: step_flops(config, *case).total for case in cases}
rows = []
for n in (16, 128, 512, 1024):
    slow, fast = ms[n, False], ms[n, True]
    rows.append([n, f"{slow:.2f}", f"{fast:.2f}", f"{slow / fast:.1f}", f"{work[n, False] / work[n, True]:.0f}"])
head = ["n", "不用缓存 ms", "使用缓存 ms", "耗时倍数", "FLOP 倍数"]
Table(head, rows, right=head[1:])

# %% key="time-chart" tags="timing" lang="en"
series = {}
for name, cached in (("without a cache", False), ("with a cache", True)):
    lengths_timed = [n for n, flag in cases if flag == cached]
    series[f"{name}: FLOPs"] = {n: work[n, cached] / work[16, cached] for n in lengths_timed}
    series[f"{name}: time"] = {n: ms[n, cached] / ms[16, cached] for n in lengths_timed}
show(lines(series, x="n: tokens in the sequence", y="times that of a step at n = 16", log="xy"))

# %% key="time-chart" tags="timing" lang="zh"
series = {}
for name, cached in (("不用缓存", False), ("使用缓存", True)):
    lengths_timed = [n for n, flag in cases if flag == cached]
    series[f"{name}：FLOP 数"] = {n: work[n, cached] / work[16, cached] for n in lengths_timed}
    series[f"{name}：时间"] = {n: ms[n, cached] / ms[16, cached] for n in lengths_timed}
show(lines(series, x="n：序列的 token 数", y="是 n = 16 时一步的多少倍", log="xy"))

# %% [markdown] key="operations" lang="en"
# The last two columns of the table answer the same question: how much does the cache save at this length?
# The chart shows how much a step grows, in FLOPs and on the clock.
# The two don't have to agree.
# Time can grow by less, because a part of each step costs the same at every length.
# It can also grow by more, because the counter sees only matrix products. `eager` attention also scales, masks and normalises the $n \times n$ scores of each head, and each time it reads and writes all of them.
#
# One part that doesn't grow can be counted. Python and PyTorch have to start each operation on tensors, however little it computes.
# The class below sees every operation of one step.
# %% [markdown] key="operations" lang="zh" src="6eaf6aaa"
# 表的最后两列回答的是同一个问题：在这个长度上，缓存省下了多少倍？
# 图里比较的则是一步增长了多少，每种做法各有两条线，一条按 FLOP 数，一条按实测时间。
# 两者不必一致。
# 时间可能增长得慢一些，因为每一步里有一部分开销与长度无关。
# 时间也可能增长得快一些，因为计数只算矩阵乘法，而 `eager` 还要对每个头的 $n \times n$ 个得分做缩放、加掩码和归一化，每次都要把它们全部读写一遍。
#
# 不随长度增长的部分，有一项可以数出来，因为不管计算量多小，每个张量操作都要由 Python 和 PyTorch 启动一次。
# 下面的类能看到一步里的每个操作。

# %% key="operations-mode"
from torch.utils._python_dispatch import TorchDispatchMode


class OperationCounter(TorchDispatchMode):
    number = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.number += 1
        return operation(*args, **(kwargs or {}))

# %% key="operations-cell" tags="hardware" lang="en"
def operations(num_tokens, cached):
    ids = torch.arange(num_tokens, device=device)[None] % config.vocab_size
    past = model(ids[:, :-1], use_cache=True).past_key_values if cached else None
    with OperationCounter() as counter:
        model(ids[:, -1:] if cached else ids, past_key_values=past, use_cache=cached, logits_to_keep=1)
    return counter.number


rows = [[n, operations(n, False), operations(n, True)] for n in (16, 1024)]
Table(["n", "operations without a cache", "operations with a cache"], rows)

# %% key="operations-cell" tags="hardware" lang="zh"
def operations(num_tokens, cached):
    ids = torch.arange(num_tokens, device=device)[None] % config.vocab_size
    past = model(ids[:, :-1], use_cache=True).past_key_values if cached else None
    with OperationCounter() as counter:
        model(ids[:, -1:] if cached else ids, past_key_values=past, use_cache=cached, logits_to_keep=1)
    return counter.number


rows = [[n, operations(n, False), operations(n, True)] for n in (16, 1024)]
Table(["n", "不用缓存的操作数", "使用缓存的操作数"], rows)

# %% [markdown] key="time-why" lang="en"
# The number of operations doesn't grow with $n$, and the cache makes it hardly smaller, so both ways pay for starting them.
# This matters most for a tiny model, because each of its operations has little to compute.
# On a large model another limit takes over: each step has to read every weight from memory, even for a single token.
# [Lesson 04](04_the_roofline.ipynb) measures that one.
#
# So FLOPs tell you how the two ways *grow*, but not how long a step takes.
# If your model answers only twice as fast with a cache, nothing has to be wrong.
#
# ## A real model, counted without its weights
#
# The counter needs shapes and no numbers.
# On PyTorch's `meta` device a tensor has a shape but no memory, so the whole Llama-3.1-8B fits into this notebook:
# %% [markdown] key="time-why" lang="zh" src="9865bc9e"
# 操作数不随 $n$ 增长，用了缓存也没有少多少，所以启动操作的开销两种做法都躲不掉。
# 模型越小，这一点越明显，因为每个操作本身没多少要算的。
# 换成大模型，起作用的是另一个下限，因为哪怕只送入一个 token，每一步也要从显存把全部权重读一遍。
# [第 04 课](04_the_roofline.ipynb)会测量它。
#
# 所以，FLOP 数说明的是两种做法怎样**增长**，而不是一步要花多少时间。
# 如果你的模型用了缓存只快了一倍，并不说明哪里出了错。
#
# ## 不加载权重，也能数真实模型
#
# 计数只需要形状，不需要数值。
# 在 PyTorch 的 `meta` 设备上，张量只有形状，不占内存，所以整个 Llama-3.1-8B 都放得进这个 notebook：

# %% key="real-cell" lang="en"
from transformers import AutoConfig, AutoModelForCausalLM

from minikv.plan import find_model

real = AutoConfig.for_model(**find_model("Llama-3.1-8B").config)
with torch.device("meta"):
    giant = AutoModelForCausalLM.from_config(real, attn_implementation="eager").eval()
number, crossing = sum(p.numel() for p in giant.parameters()), crossing_length("Llama-3.1-8B")
rows = []
for n in (1000, crossing - 1, crossing):
    parts = count(giant, n, cached=True)
    rows.append([n, *parts, str(parts == astuple(step_flops("Llama-3.1-8B", n, cached=True)))])
head = ["n", "projections", "attention", "lm_head", "as the formula says"]
Table(head, rows, title=f"Llama-3.1-8B: {number:,} parameters, not one of them in memory")

# %% key="real-cell" lang="zh"
from transformers import AutoConfig, AutoModelForCausalLM

from minikv.plan import find_model

real = AutoConfig.for_model(**find_model("Llama-3.1-8B").config)
with torch.device("meta"):
    giant = AutoModelForCausalLM.from_config(real, attn_implementation="eager").eval()
number, crossing = sum(p.numel() for p in giant.parameters()), crossing_length("Llama-3.1-8B")
rows = []
for n in (1000, crossing - 1, crossing):
    parts = count(giant, n, cached=True)
    rows.append([n, *parts, str(parts == astuple(step_flops("Llama-3.1-8B", n, cached=True)))])
head = ["n", "投影", "注意力", "lm_head", "与公式一致"]
Table(head, rows, title=f"Llama-3.1-8B：{number:,} 个参数，都不占内存")

# %% [markdown] key="ratio" lang="en"
# The formula is right to the last FLOP, and attention overtakes exactly where it says: at 26,625 tokens. One token earlier the two are equal.
#
# ## "10 to 100 times faster"?
#
# You can read that a cache makes generation 10 to 100 times faster.
# In FLOPs there is no such constant, because the ratio depends on the length:
# %% [markdown] key="ratio" lang="zh" src="32f2cd12"
# 公式与计数一个 FLOP 都不差，注意力也正是在公式给出的 26,625 个 token 处反超；再少一个 token，两者恰好相等。
#
# ## “快 10 到 100 倍”？
#
# 常有人说缓存能让生成快 10 到 100 倍。
# 从 FLOP 来看，并没有这样一个固定的倍数，它取决于长度：

# %% key="ratio-cell" lang="en"
rows = []
for n in (1, 10, 100, 1000, 10_000, 100_000):
    slow, fast = (step_flops("Llama-3.1-8B", n, cached).total for cached in (False, True))
    rows.append([n, f"{slow:.3e}", f"{fast:.3e}", f"{slow / fast:,.0f}"])
head = ["n", "FLOPs without", "FLOPs with", "ratio"]
Table(head, rows, right=head[1:], title="One step of Llama-3.1-8B")

# %% key="ratio-cell" lang="zh"
rows = []
for n in (1, 10, 100, 1000, 10_000, 100_000):
    slow, fast = (step_flops("Llama-3.1-8B", n, cached).total for cached in (False, True))
    rows.append([n, f"{slow:.3e}", f"{fast:.3e}", f"{slow / fast:,.0f}"])
head = ["n", "不用缓存的 FLOP", "使用缓存的 FLOP", "比值"]
Table(head, rows, right=head[1:], title="Llama-3.1-8B 的一步")

# %% key="reply-cell" lang="en"
rows = []
for prompt_tokens, new in ((10, 10), (100, 100), (1000, 100), (1000, 1000), (10_000, 1000)):
    slow, fast = (generation_flops("Llama-3.1-8B", prompt_tokens, new, cached) for cached in (False, True))
    rows.append([prompt_tokens, new, round(slow / fast)])
Table(["prompt", "new tokens", "ratio"], rows, title="A whole reply of Llama-3.1-8B")

# %% key="reply-cell" lang="zh"
rows = []
for prompt_tokens, new in ((10, 10), (100, 100), (1000, 100), (1000, 1000), (10_000, 1000)):
    slow, fast = (generation_flops("Llama-3.1-8B", prompt_tokens, new, cached) for cached in (False, True))
    rows.append([prompt_tokens, new, round(slow / fast)])
Table(["提示词", "新 token", "比值"], rows, title="Llama-3.1-8B 的一段完整回复")

# %% [markdown] key="ratio-why" lang="en"
# A single step without a cache costs nearly $n$ times as much. The cache divides the projections *and* attention by $n$, and only the logits stay as they are.
# For a whole reply to a long prompt the ratio comes close to the number of new tokens, because the prompt has to be computed once in any case.
# And these are FLOPs. The table of times above shows that the small model saved much less time than that.
#
# One caution about the counting: it charges attention for the whole $n \times n$ square, as `eager` computes it.
# A kernel that skips what the mask hides does about half of that in a step without a cache.
#
# ## What the cache costs in return
#
# We pay for the saved work with memory, because K and V of every token stay there until the sequence ends.
# `CacheSpec` knows how many bytes that takes. The last column has the size of the tensors that our loop left behind, so you can compare.
# %% [markdown] key="ratio-why" lang="zh" src="941a2941"
# 单看一步，不用缓存的开销接近 $n$ 倍，因为缓存让投影和注意力都变成 $n$ 分之一，只有 logits 不变。
# 再看整段回复。提示词很长时，倍数接近新 token 的个数，因为提示词无论如何都要算一次。
# 而且这只是 FLOP。从上面的计时表可以看到，小模型真正省下的时间远没有这么多。
#
# 关于计数，还有一点要注意。注意力是按完整的 $n \times n$ 方阵计的，`eager` 就是这样算的。
# 如果 kernel 会跳过被掩码挡住的部分，不用缓存的一步大约只需做一半。
#
# ## 缓存的代价
#
# 省下的计算要用内存来换，因为每个 token 的 K 和 V 都要保留到序列结束。
# `CacheSpec` 知道要多少字节。下面把它的答案与刚才的循环留下的张量大小放在一起：

# %% key="bytes-cell" lang="en"
from minikv.plan import CacheSpec

spec, llama = CacheSpec.from_config(config, kv_dtype="fp32"), CacheSpec.from_config("Llama-3.1-8B")
held = cache.get_seq_length()
measured = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)  # the tensors of our loop
rows = [["tiny-gqa", held, spec.slope(), spec.bytes_for(held), measured]]
rows += [["Llama-3.1-8B", n, llama.slope(), llama.bytes_for(n), None] for n in (1, 1000, 100_000)]
Table(["model", "tokens", "bytes a token", "bytes", "bytes of the tensors"], rows)

# %% key="bytes-cell" lang="zh"
from minikv.plan import CacheSpec

spec, llama = CacheSpec.from_config(config, kv_dtype="fp32"), CacheSpec.from_config("Llama-3.1-8B")
held = cache.get_seq_length()
measured = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)  # 刚才的循环留下的张量
rows = [["tiny-gqa", held, spec.slope(), spec.bytes_for(held), measured]]
rows += [["Llama-3.1-8B", n, llama.slope(), llama.bytes_for(n), None] for n in (1, 1000, 100_000)]
Table(["模型", "token 数", "每个 token 的字节", "字节", "张量的字节"], rows)

# %% [markdown] key="break-position" lang="en"
# [Lesson 02](02_how_many_bytes.ipynb) takes this number apart.
#
# ## Break it: the wrong position
#
# With a cache, the model sees a single token and cannot tell where it stands, so `position_ids` has to say where.
# `shift=1` feeds every new token one position too late, a classic off-by-one error.
# We look at the words and also at the logits, the scores from which the next token is chosen.
# Then we repeat the mistake with each of the 20 prompts.
# %% [markdown] key="break-position" lang="zh" src="083d6a52"
# 这个数字怎么来的，[第 02 课](02_how_many_bytes.ipynb)会逐项拆开。
#
# ## 弄坏它：位置错了
#
# 使用缓存时，模型只看到一个 token，不知道它排在第几位，要靠 `position_ids` 告诉它。
# `shift=1` 让每个新 token 的位置都晚一格，这是典型的差一错误。
# 除了输出的词，我们还要看 logits，也就是用来选出下一个 token 的得分。
# 然后让前面那 20 个提示词都犯同样的错。

# %% key="break-position-cell" lang="en"
def logits_of_new(shift):
    positions = torch.arange(len(prompt), len(reply), device=device)[None] + shift  # [1, 10]
    new = torch.tensor([reply[len(prompt) :]], device=device)  # [1, 10]
    return model(new, position_ids=positions, past_key_values=prefill(prompt)).logits


late, _ = generate(model, prompt, num_new, cached=True, shift=1)
moved = float((logits_of_new(1) - logits_of_new(0)).abs().max())
rows = [["right", said(reply), 0], ["one too late", said(late), round(moved, 1)]]
Table(["positions", "10 new words", "logits moved by up to"], rows)

# %% key="break-position-cell" lang="zh"
def logits_of_new(shift):
    positions = torch.arange(len(prompt), len(reply), device=device)[None] + shift  # [1, 10]
    new = torch.tensor([reply[len(prompt) :]], device=device)  # [1, 10]
    return model(new, position_ids=positions, past_key_values=prefill(prompt)).logits


late, _ = generate(model, prompt, num_new, cached=True, shift=1)
moved = float((logits_of_new(1) - logits_of_new(0)).abs().max())
rows = [["正确", said(reply), 0], ["晚一格", said(late), round(moved, 1)]]
Table(["位置", "10 个新词", "logits 最多变了"], rows)

# %% key="late-words" lang="en"
def late_keeps_words(asked):
    tokens = tokenizer(asked.text).input_ids
    on_time, late = (generate(model, tokens, num_new, cached=True, shift=shift)[0] for shift in (0, 1))
    return on_time == late


kept = sum(map(late_keeps_words, prompts))
Table(["prompts", "one too late, and all 10 new words the same"], [[len(prompts), kept]])

# %% key="late-words" lang="zh"
def late_keeps_words(asked):
    tokens = tokenizer(asked.text).input_ids
    on_time, late = (generate(model, tokens, num_new, cached=True, shift=shift)[0] for shift in (0, 1))
    return on_time == late


kept = sum(map(late_keeps_words, prompts))
Table(["提示词", "晚一格，10 个新词却完全不变"], [[len(prompts), kept]])

# %% [markdown] key="break-position-why" lang="en"
# There is no error and no warning, and mostly not even another word. For this prompt, and for 14 of the 20, a test that compares texts would pass.
# But the logits have moved.
#
# What happened? Llama's position embedding, RoPE, turns queries and keys by their positions, so that a score depends on the *distance* between the two tokens.
# With the wrong positions, every distance to the prompt is off by one.
# This model finds a fact by its name, wherever that stands, so most distances hardly matter to it.
# One distance does matter: a city belongs to the name *right before* it.
#
# We can make that visible. Servers read a long prompt in pieces (chunked prefill, [lesson 11a](11a_continuous_batching.ipynb)).
# Cut each of the 20 prompts in two, and feed the second piece too late.
# The first column cuts before the question, the second between the name that is asked for and its city:
# %% [markdown] key="break-position-why" lang="zh" src="9315d004"
# 没有报错，没有警告，输出的词多半也没变。对这个提示词，以及 20 个里的 14 个，只比较文字的测试都会通过。
# 可是 logits 已经变了。
#
# 原因在于 Llama 的位置编码 RoPE。它按位置旋转 query 和 key，使得分只取决于两个 token 之间的**距离**。
# 位置一错，到提示词的每个距离就都差了一。
# 这个模型按人名找事实，不管它在什么地方，所以大多数距离对它影响不大。
# 但有一个距离很要紧，因为城市属于**紧挨在它前面**的那个人名。
#
# 要看清这一点，可以仿照服务端的做法，把很长的提示词分成几段读入（分块预填充，[第 11a 课](11a_continuous_batching.ipynb)）。
# 把 20 个提示词各切成两段，第二段的位置晚几格。
# 表中前一列切在问题之前，后一列切在被问的人名和它的城市之间：

# %% key="late-piece-cell" lang="en"
words = [["<bos>", *asked.text.split()] for asked in prompts]
before_question = [len(w) - 2 for w in words]
inside_fact = [w.index(asked.answer) for w, asked in zip(words, prompts)]
rows = []
for shift in range(4):
    both = [zip(prompts, cuts) for cuts in (before_question, inside_fact)]
    rows.append([shift, *(sum(answers_rightly(*pair, shift) for pair in pairs) for pairs in both)])
title = f"Right answers to {len(prompts)} questions, by where the prompt is cut"
Table(["positions too late", "before the question", "inside the fact"], rows, title=title)

# %% key="late-piece-cell" lang="zh"
words = [["<bos>", *asked.text.split()] for asked in prompts]
before_question = [len(w) - 2 for w in words]
inside_fact = [w.index(asked.answer) for w, asked in zip(words, prompts)]
rows = []
for shift in range(4):
    both = [zip(prompts, cuts) for cuts in (before_question, inside_fact)]
    rows.append([shift, *(sum(answers_rightly(*pair, shift) for pair in pairs) for pairs in both)])
title = f"{len(prompts)} 个问题答对的个数，按提示词切在哪里"
Table(["晚几格", "切在问题之前", "切在事实中间"], rows, title=title)

# %% [markdown] key="late-piece-why" lang="en"
# If the cut separates nothing that belongs together, no answer shows the mistake.
# If it separates a name from its city, the model mostly forgives one position (18 of 20) and never more than one.
# So such a bug can stay unseen for a long time, because it depends on where a cut happens to fall.
# That's why you should compare logits and not texts.
#
# Only the distance counts. If you move everything by the same amount, nothing changes:
# %% [markdown] key="late-piece-why" lang="zh" src="56e12148"
# 如果切口没有把相关的内容分开，从答案里就看不出这个错误。
# 如果切在人名和它的城市之间，差一格多半还能答对（20 个里对 18 个），再多就一个也答不对了。
# 所以这种 bug 可能潜伏很久，能不能被发现，全看切口碰巧落在哪里。
# 因此要比较 logits，而不是比较文字。
#
# 起作用的只有距离。如果所有位置移动同样多，结果就不变：

# %% key="all-moved-cell" lang="en"
def logits_at(first):
    positions = torch.arange(first, first + len(prompt), device=device)[None]  # [1, 12]
    return model(torch.tensor([prompt], device=device), position_ids=positions).logits[0]


same = torch.equal(logits_at(0).argmax(-1), logits_at(100).argmax(-1))
Table(["all positions moved by", "the same tokens win"], [[100, str(same)]])

# %% key="all-moved-cell" lang="zh"
def logits_at(first):
    positions = torch.arange(first, first + len(prompt), device=device)[None]  # [1, 12]
    return model(torch.tensor([prompt], device=device), position_ids=positions).logits[0]


same = torch.equal(logits_at(0).argmax(-1), logits_at(100).argmax(-1))
Table(["全部位置都后移", "胜出的 token 相同"], [[100, str(same)]])

# %% [markdown] key="break-edit" lang="en"
# ## Break it: a stale cache
#
# A chat program keeps the cache of a prompt.
# You edit one word. The program swaps the word in its list of tokens and goes on with the old cache.
# Here the city that is asked for becomes `oslo`, and only the last token is fed, because the cache "already has the rest":
# %% [markdown] key="break-edit" lang="zh" src="db24d6e2"
# ## 弄坏它：过期的缓存
#
# 某个聊天程序保存着提示词的缓存。
# 你改了一个词，程序在 token 列表里换掉它，却接着用旧缓存。
# 下面把被问的城市改成 `oslo`，并且只送入最后一个 token，因为“其余的缓存里都有了”：

# %% key="break-edit-cell" lang="en"
edited_text = asked.text.replace(asked.answer, "oslo")
edited = tokenizer(edited_text).input_ids
right, _ = generate(model, edited, num_new, cached=True)
stale, _ = generate(model, edited, num_new, cached=True, cache=prefill(prompt[:-1]))
rows = [["edited", "computed again", said(right)], ["edited", "stale", said(stale)]]
rows += [["before the edit", "its own", said(reply)]]
Table(["prompt", "cache", "10 new words"], rows, title=edited_text)

# %% key="break-edit-cell" lang="zh"
edited_text = asked.text.replace(asked.answer, "oslo")
edited = tokenizer(edited_text).input_ids
right, _ = generate(model, edited, num_new, cached=True)
stale, _ = generate(model, edited, num_new, cached=True, cache=prefill(prompt[:-1]))
rows = [["改过", "重新计算", said(right)], ["改过", "过期", said(stale)]]
rows += [["改动之前", "自己的", said(reply)]]
Table(["提示词", "缓存", "10 个新词"], rows, title=edited_text)

# %% [markdown] key="break-edit-why" lang="en"
# The stale cache answers the prompt *before* the edit, word for word, because the model never saw the new city.
#
# Would it be enough to replace the K and V of this one token? Let's compare the two prompts layer by layer:
# %% [markdown] key="break-edit-why" lang="zh" src="c9a14bfa"
# 旧缓存给出的，是对**改动之前**那个提示词的回答，一个词都不差，因为模型根本没有看到新的城市。
#
# 那么，只替换这一个 token 的 K 和 V 够不够？逐层比较两个提示词：

# %% key="changed-cell" lang="en"
from minikv.course.charts import heat_map

gaps = []
for a, b in zip(prefill(prompt).layers, prefill(edited).layers):
    gap = torch.maximum((a.keys - b.keys).abs(), (a.values - b.values).abs())  # [1, KV heads, tokens, head_dim]
    gaps.append([round(g, 1) for g in gap.amax(dim=(0, 1, 3)).tolist()])
tokens_of_edited = tokenizer.convert_ids_to_tokens(edited)
show(heat_map(gaps, rows=["0", "1"], columns=tokens_of_edited, x="token", y="layer"))

# %% key="changed-cell" lang="zh"
from minikv.course.charts import heat_map

gaps = []
for a, b in zip(prefill(prompt).layers, prefill(edited).layers):
    gap = torch.maximum((a.keys - b.keys).abs(), (a.values - b.values).abs())  # [1, KV 头, token, 头维度]
    gaps.append([round(g, 1) for g in gap.amax(dim=(0, 1, 3)).tolist()])
tokens_of_edited = tokenizer.convert_ids_to_tokens(edited)
show(heat_map(gaps, rows=["0", "1"], columns=tokens_of_edited, x="token", y="层"))

# %% [markdown] key="changed-kept" lang="en"
# Each number is the largest change of K or V of that token. An empty cell did not change at all.
# In the first layer only the edited token changes.
# From the second layer on, the later tokens have read it through attention, so their K and V change too.
# But everything before the edit may stay:
# %% [markdown] key="changed-kept" lang="zh" src="0318b08a"
# 每个数是该 token 的 K 或 V 的最大变化，空格表示完全没变。
# 第一层里，只有被改的 token 变了。
# 从第二层起，后面的 token 都通过注意力读到了它，所以它们的 K 和 V 也跟着变。
# 改动之前的部分则可以留下：

# %% key="kept-cell" lang="en"
kept = [old == new for old, new in zip(prompt, edited)].index(False)
again, _ = generate(model, edited, num_new, cached=True, cache=prefill(edited[:kept]))
rows = [[kept, len(edited) - kept, str(again == right)]]
Table(["tokens kept", "computed again", "the same as without an old cache"], rows)

# %% key="kept-cell" lang="zh"
kept = [old == new for old, new in zip(prompt, edited)].index(False)
again, _ = generate(model, edited, num_new, cached=True, cache=prefill(edited[:kept]))
rows = [[kept, len(edited) - kept, str(again == right)]]
Table(["保留的 token", "重新计算", "与不用旧缓存的结果相同"], rows)

# %% [markdown] key="rounding" lang="en"
# This is the causal mask again, and it's the reason why servers can share the cache of a common *prefix* ([lesson 09](09_pages_and_blocks.ipynb)).
#
# ## May the text differ?
#
# In exact arithmetic it may not, and the loop above did print the same tokens both ways. But computers round.
# One query and $n$ queries can take different kernels that add in a different order, and then the last bits differ.
# In 32 bits that hardly ever decides which token wins. In 16 bits it sometimes does.
#
# The cells below feed 150 documents of 64 tokens, once all at once and once token by token, and compare the logits.
# Each document ends with questions, so we count right answers too.
# The numbers vary from one machine to another, and with other documents there may be no changed token in 16 bits either.
# %% [markdown] key="rounding" lang="zh" src="d5d13016"
# 这还是因果掩码的作用，服务端也正因此可以共享相同**前缀**的缓存（[第 09 课](09_pages_and_blocks.ipynb)）。
#
# ## 文字可以变吗？
#
# 如果计算没有舍入，就不会变，上面的循环用两种做法输出的 token 也确实完全相同。但计算机总要舍入。
# 送入一个 query 和送入 $n$ 个 query，可能走不同的 kernel，累加的顺序不同，最后几位就会不同。
# 用 32 位时，这几乎不会改变哪个 token 胜出；用 16 位时偶尔会。
#
# 下面把 150 篇 64 个 token 的文档用两种方式送入，一种一次全部送入，一种逐个 token 送入，再比较 logits。
# 每篇文档末尾都有问题，所以顺便也数一数答对了多少。
# 这些数字因机器而异；换一批文档，16 位下也可能一个 token 都没换。

# %% key="rounding-function" lang="en"
from copy import deepcopy

from minikv.models import recall_documents

documents = recall_documents(150, facts=8, context=48, queries=4, span=15)
tokens = torch.tensor(np.stack([document.tokens for document in documents]), device=device)  # [150, 64]


def logits_both_ways(dtype):
    rounded = deepcopy(model).to(dtype)
    whole, steps, past = rounded(tokens).logits, [], None
    for i in range(tokens.shape[1]):
        out = rounded(tokens[:, i : i + 1], past_key_values=past, use_cache=True)
        past = out.past_key_values
        steps.append(out.logits[:, 0])  # [150, vocab]
    return whole, torch.stack(steps, dim=1)  # both [150, 64, vocab]

# %% key="rounding-function" lang="zh"
from copy import deepcopy

from minikv.models import recall_documents

documents = recall_documents(150, facts=8, context=48, queries=4, span=15)
tokens = torch.tensor(np.stack([document.tokens for document in documents]), device=device)  # [150, 64]


def logits_both_ways(dtype):
    rounded = deepcopy(model).to(dtype)
    whole, steps, past = rounded(tokens).logits, [], None
    for i in range(tokens.shape[1]):
        out = rounded(tokens[:, i : i + 1], past_key_values=past, use_cache=True)
        past = out.past_key_values
        steps.append(out.logits[:, 0])  # [150, 词表]
    return whole, torch.stack(steps, dim=1)  # 都是 [150, 64, 词表]

# %% key="rounding-cell" tags="hardware" lang="en"
def num_right(winners):
    rows = zip(documents, winners.tolist())
    return sum(row[q.position] == q.answer_id for document, row in rows for q in document.questions)


rows = []
for dtype in (torch.float32, torch.float16):
    whole, by_step = logits_both_ways(dtype)
    gap, winners = float((whole - by_step).abs().max()), (whole.argmax(-1), by_step.argmax(-1))
    others = int((winners[0] != winners[1]).sum())
    rows.append([str(dtype), f"{gap:.1e}", f"{others} / {tokens.numel():,}", *map(num_right, winners)])
asked_in_all = sum(len(document.questions) for document in documents)
head = ["dtype", "logits differ by up to", "another token wins", "right: at once", "right: step by step"]
Table(head, rows, title=f"Right answers are of {asked_in_all} questions")

# %% key="rounding-cell" tags="hardware" lang="zh"
def num_right(winners):
    rows = zip(documents, winners.tolist())
    return sum(row[q.position] == q.answer_id for document, row in rows for q in document.questions)


rows = []
for dtype in (torch.float32, torch.float16):
    whole, by_step = logits_both_ways(dtype)
    gap, winners = float((whole - by_step).abs().max()), (whole.argmax(-1), by_step.argmax(-1))
    others = int((winners[0] != winners[1]).sum())
    rows.append([str(dtype), f"{gap:.1e}", f"{others} / {tokens.numel():,}", *map(num_right, winners)])
asked_in_all = sum(len(document.questions) for document in documents)
head = ["dtype", "logits 最多相差", "换了胜出的 token", "答对：一次送入", "答对：逐个送入"]
Table(head, rows, title=f"共 {asked_in_all} 个问题")

# %% [markdown] key="answer" lang="en"
# ## Recap
#
# Without a cache each step computes every row again; with one it computes a single row: 54 rows against 15 in the first picture.
# You may keep the K and V of past tokens because they never change: the causal mask hides later tokens from earlier ones.
# A cache divides the FLOPs of a step by about $n$ (932 at 1,000 tokens of Llama-3.1-8B), but it divides the time by less, because starting operations and reading weights stay.
# In Llama-3.1-8B attention costs more than all weight matrices from 26,625 tokens on.
# The same text proves little: with every new token one position too late, 14 of 20 texts did not change, although the logits that we compared had moved by up to 0.6. So compare the logits.
#
# ## Check yourself
#
# Answer aloud or in writing, then add `reveal=True`.
# %% [markdown] key="answer" lang="zh" src="3ba63cf3"
# ## 本课小结
#
# 不用缓存时，每一步都把所有的行重算一遍；使用缓存时只算一行，例如第一张图里是 54 行对 15 行。
# 旧 token 的 K 和 V 之所以可以保留，是因为因果掩码让前面的 token 看不到后面的，所以它们不会再变。
# 缓存让一步的 FLOP 数大约变成 $n$ 分之一（Llama-3.1-8B 在 1,000 个 token 处是 932 倍），时间却省不了这么多，因为启动操作和读取权重的开销还在。
# Llama-3.1-8B 从 26,625 个 token 起，注意力的开销超过所有权重矩阵。
# 只看文字相同，说明不了什么。例如每个新 token 的位置都晚一格时，20 段文字里有 14 段一字未变。可是在其中一段上比较 logits，差别最大有 0.6。所以要比较 logits。
#
# ## 自我检查
#
# 先说出来或者写下来，再加上 `reveal=True` 看答案。

# %% key="explain-q"
explain("no_q_cache")

# %% key="explain-n"
explain("divided_by_n")

# %% key="explain-edit"
explain("edited_message")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# The exercise notebook lets you write attention for one query (01.1), the FLOPs of a step (01.2), the length where attention overtakes (01.3), the loop with a cache (01.4), and the number of tokens that the cache holds (01.5).
# %% [markdown] key="exercises" lang="zh" src="4ffb9114"
# ## 练习
#
# 练习 notebook 里有五道题：一个 query 的注意力（01.1）、一步的 FLOP 数（01.2）、注意力反超的长度（01.3）、使用缓存的循环（01.4），以及缓存里的 token 数（01.5）。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | `FlopCounterMode` shows no attention at all | `model.config._attn_implementation`: the counter counts a fused kernel that it doesn't know as zero (`sdpa` on a CPU is one). Call `model.set_attn_implementation("eager")`. |
# | other tokens with a cache than without | `model.float()`, then compare again. If the difference goes, it was rounding. If it stays, print the `position_ids` of the first cached step: they must be `[[cache.get_seq_length()]]` before the step. |
# | generation slows down although a cache is on | print `ids.shape` inside the loop: after the prompt it must be `[batch, 1]`. Then print `cache.get_seq_length()`, which must grow by 1 a step. |
#
# ## In the wild
#
# In 2023 a user of Vicuna-7B found `use_cache` switched off in its config. Switched on, generation ran about twice as fast, and the text came out different ([FastChat issue 1890](https://github.com/lm-sys/FastChat/issues/1890)).
# "FLOPs are not seconds" explains the factor of two and "May the text differ?" the text: that model ran with 8-bit weights, and sampling differs by itself.
#
# [transformers issue 36536](https://github.com/huggingface/transformers/issues/36536) reports other outputs with a cache in 16 bits.
# A reader found the same outputs in float32, as our table of dtypes does.
#
# ## What comes next
#
# [Lesson 02](02_how_many_bytes.ipynb) needs one thing from here: each token leaves K and V in every layer. Now we ask how many bytes that is.
# %% [markdown] key="stuck" lang="zh" src="4e2c5cee"
# ## 卡住了怎么办
#
# | 现象 | 用来判断的命令 |
# |---|---|
# | `FlopCounterMode` 里完全没有注意力 | `model.config._attn_implementation`：计数器不认识的融合 kernel 会记为零（CPU 上的 `sdpa` 就是这样）。调用 `model.set_attn_implementation("eager")`。 |
# | 使用缓存时 token 不同 | 先 `model.float()` 再比较：差异消失，就是舍入；差异还在，就打印使用缓存的第一步的 `position_ids`，它应等于这一步之前的 `[[cache.get_seq_length()]]`。 |
# | 开了缓存，生成还是越来越慢 | 在循环里打印 `ids.shape`：送完提示词之后必须是 `[batch, 1]`；再看 `cache.get_seq_length()`，每步应当加 1。 |
#
# ## 实战现场
#
# 2023 年，一位 Vicuna-7B 的用户发现它的配置关掉了 `use_cache`。打开之后，生成快了大约一倍，输出的文字却变了（[FastChat issue 1890](https://github.com/lm-sys/FastChat/issues/1890)）。
# “FLOP 不等于秒”一节解释了为什么只快一倍；文字不同见“文字可以变吗？”一节：那个例子用的是 8 位权重，还开了采样，结果本来就不固定。
#
# [transformers issue 36536](https://github.com/huggingface/transformers/issues/36536) 报告说，16 位下用了缓存，输出就不同。
# 有读者验证 float32 下结果一致，与上面按 dtype 比较的表相符。
#
# ## 下一课
#
# [第 02 课](02_how_many_bytes.ipynb)只需要这里的一个结论，即每个 token 在每一层都会留下 K 和 V。接下来算它到底是多少字节。
