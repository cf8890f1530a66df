# %% [meta]
# number = "13b"
# slug = "fewer_cheaper_steps"
# needs = ["04", "08", "09", "11a"]
# rooms = ["engine.ext.graphs", "engine.ext.drafts"]
# minutes = 20
# [title]
# en = "How do steps get fewer and cheaper?"
# zh = "怎样让步数更少、每步更省？"
# [t4]
# en = "The models are tiny and computed by the CPU, beside a T4 too. The numbers are the same."
# zh = "模型很小，一律由 CPU 计算，有 T4 也一样。看到的数字相同。"
# [paper]
# en = "13b.1"
# zh = "13b.1"

# %% [markdown] key="question" lang="en"
# ## The question
#
# A decode step reads all weights and gives each sequence a single token; and to start it, the CPU launches hundreds of small kernels.
# **Can a step start with one call? And can it give several tokens, with the text unchanged?**
#
# Both are possible, and both concern the cache: a recorded step takes memory that the cache does not get, and the K and V of wrong guesses have to leave it again.
# After this lesson you can say what a CUDA graph takes from the cache, roll a sequence back so that nothing wrong can be found in it, and write prompt lookup and the step that checks its drafts.
# %% [markdown] key="question" lang="zh" src="98d195a0"
# ## 问题
#
# 解码一步要读全部权重，每条序列却只得到一个 token；为了这一步，CPU 还要 launch 几百个小 kernel。
# **能不能用一次调用启动一整步？能不能一步得到几个 token，而文本不变？**
#
# 两样都做得到，也都与缓存有关：录下来的步要占显存，缓存就得不到这一部分；猜错的 token 也有 K 和 V，必须从缓存里收回来。
# 学完本课，你能算出 CUDA 图从缓存里拿走多少；能回滚一条序列，而不留下任何会被误找到的内容；还能写出提示词查找，以及验证草稿的那一步。

# %% [markdown] key="graph" lang="en"
# ## Fewer launches, more memory: a graph
#
# A decode step is hundreds of small kernels, and for each of them the CPU has to say anew what to launch. With few sequences the GPU waits for that.
# A **CUDA graph** records the launches of a step once, and replays them all with one call.
#
# It records *addresses and sizes*. So everything that a step reads from outside must lie at the same place each time: token ids, positions, slots, block tables, lengths. And a batch of 13 is filled up to a size that was recorded, a **bucket**, with rows that store nothing.
# Those persistent buffers take bytes that the KV cache does not get:
# %% [markdown] key="graph" lang="zh" src="bf1660ce"
# ## 少启动几次，多占些显存：CUDA 图
#
# 解码一步要启动几百个小 kernel，每一个都得由 CPU 重新交代一遍。序列少的时候，GPU 就在等它交代。
# **CUDA 图**（CUDA graph）把一步里的启动录一遍，以后一个调用就全部重放。
#
# 录下来的是**地址和大小**。所以一步要从外面读的东西，每次都得在同样的位置：token id、位置、槽位、块表、长度。一个 batch 只有 13 条时，用什么也不写入的空行补齐到录过的大小，即一个**档位**（bucket）。
# 这些常驻的缓冲区占去的字节，KV 缓存就得不到了：

# %% key="graph_buffers"
import torch

from minikv.engine.ext.decode_buffers import DecodeSizes
from minikv.engine.ext.graphs import GRAPH_BYTES, buckets
from minikv.plan import CacheSpec

sizes = buckets(256)
print(t("graph_buckets", count=len(sizes), first=", ".join(map(str, sizes[:7])), last=sizes[-1]))
print(t("graph_assumed", size=len(sizes) * GRAPH_BYTES, each=GRAPH_BYTES))
llama = CacheSpec.from_config("Llama-3.1-8B")
for context in (8192, 131_072):
    sizes = DecodeSizes(max_rows=256, width=context // 16, num_kv_cache_groups=1, vocabulary=128_256, dtype=torch.bfloat16)
    print(t("graph_context", context=context))
    for name, (shape, dtype) in sizes.loans().items():
        size = torch.Size(shape).numel() * dtype.itemsize
        print(t("graph_line", name=t("graph_" + name.split()[-1]), size=size))
    print(t("graph_cost", tokens=-(-sizes.num_bytes // llama.slope()), size=sizes.num_bytes))

# %% [markdown] key="graph_read" lang="en"
# Most of these bytes are logits, a row of the whole vocabulary for each sequence; beside a cache they are few.
# That much follows from shapes. The rest only a GPU can tell: what the recorded step computes in between (activations) lives in a **private pool** of the allocator, and stays there as long as the graph does, because its addresses are recorded too. All buckets can share one pool, since they never run at the same time. And the driver keeps something for each recording: the first figure above, which is an assumption until it has been measured.
#
# What it takes has to be known *before* the cache takes the rest. In [vLLM #57475](https://github.com/vllm-project/vllm/issues/57475) the start-up measures it with a small cache, makes the large one, and then records: "vLLM's own accounting said it fits, then it didn't." And before that figure existed a user had to ask whether the graphs are in `gpu_memory_utilization` at all ([#11251](https://github.com/vllm-project/vllm/issues/11251)). [Lesson 08](08_allocate_kv_cache.ipynb)'s rule holds: what is not in the formula comes out of somebody else's memory. (Here the engine holds it back before it measures the cache, then records, and `llm.memory_report()` says what it really was; `enforce_eager=True` does without graphs.)
#
# ## Taking tokens back: rollback
#
# A decode step reads all weights to make a single token ([lesson 04](04_the_roofline.ipynb)). To *check* five tokens it reads them just as often: once.
# So let somebody guess the next ones. The cheapest guesser is the text itself: if its last words stood there before, propose what followed them then. That is **prompt lookup**, the simplest kind of **speculative decoding**; its guesses are called **drafts**.
#
# One forward computes the newest token and the drafts behind it. After each of them the model says its own next token. As long as a draft is what the model has said, it is accepted; the first word that differs is the model's own, and counts as well. So a step gives between 1 and drafts + 1 tokens, and the text is the one that the model would have written anyway.
#
# But K and V of *all* drafts are in the cache by then. The refused ones have to come out again: `truncate`.
# %% [markdown] key="graph_read" lang="zh" src="9b096306"
# 缓冲区里大部分是 logits：每条序列都要一整行词表；与缓存相比并不多。
# 这些从形状就能算出来。其余的只有 GPU 知道：录下来的那一步，中间结果（激活）放在分配器的一个**私有池**里；地址也一起录了，所以图在一天，它们就占一天。各个档位从不同时运行，可以共用一个池。此外，驱动也要为每次录制留一些，就是上面的第一个数：它只是假定，测过才算数。
#
# 它要占多少，得赶在缓存拿走其余显存**之前**知道。[vLLM #57475](https://github.com/vllm-project/vllm/issues/57475) 里，启动时先用一份小缓存测，然后建大缓存，最后才录制，结果是“vLLM's own accounting said it fits, then it didn't”：它自己的账说放得下，结果放不下。更早的版本连这一项都没有，用户只好来问：`gpu_memory_utilization` 到底算没算上 CUDA 图（[#11251](https://github.com/vllm-project/vllm/issues/11251)）？[第 08 课](08_allocate_kv_cache.ipynb)的道理依然成立：公式里没有的一项，用的就是别人的显存。（我们的引擎先把这部分留出来，再测缓存能有多大，然后录制；实际用了多少，`llm.memory_report()` 会说。`enforce_eager=True` 则不用图。）
#
# ## 把 token 收回来：回滚
#
# 解码一步要读全部权重，只得到一个 token（[第 04 课](04_the_roofline.ipynb)）。而**验证**五个 token，权重也只读一遍。
# 那就找谁来猜一猜后面几个。最省事的，是从文本自己里面猜：最后几个词如果前面出现过，就把当时跟在后面的提出来。这就是**提示词查找**（prompt lookup），最简单的一种**推测解码**（speculative decoding）；猜出来的叫**草稿**（draft）。
#
# 一次前向计算，算最新的 token 和它后面的草稿。每算一个，模型都会说出自己的下一个 token。草稿与模型说的一样，就接受；遇到第一个不一样的，用模型自己说的那个，它也算数。所以一步得到 1 到“草稿数 + 1”个 token，文本则与模型自己一个一个写的完全相同。
#
# 可是到这时，**所有**草稿的 K 和 V 都已经在缓存里了。没有被接受的得收回来：`truncate`。

# %% key="predict_lookup"
predict("lookup_steps", ...)

# %% key="rollback"
from minikv.blocks import BlockManager, KVCacheGroup

manager = BlockManager(num_blocks=12, block_size=4)
text, accepted, refused = [11, 12, 13, 14, 15, 16, 21], [22], [31, 32, 33, 34, 35, 36]


def state(what):
    found = manager.match([*text, *accepted, *refused, 99]).num_tokens
    pair = dict(tokens=manager.num_tokens("S"), table=manager.block_table("S"))
    print(f"{what:<13}", t("rollback_line", found=found, **pair))


manager.allocate("S", text)
manager.commit("S")
state("prompt")
manager.append_tokens("S", [*accepted, *refused])
state("append_tokens")
manager.truncate("S", 8)
manager.commit("S")
state("truncate")

# %% [markdown] key="rollback_read" lang="en"
# Two blocks are free again. With the accepted token a block is full, and can be found from now on; the refused ones cannot, since `commit` came after `truncate`, and publishes what the sequence has kept.
#
# Does that order matter? Commit first, then take back, in a manager with a window beside the full layers:
# %% [markdown] key="rollback_read" lang="zh" src="5da59470"
# 两个块又空出来了。加上接受的 token，一个块填满了，从此能被找到；没有接受的找不到，因为 `commit` 在 `truncate` 之后，只发布序列留下来的部分。
#
# 次序要紧吗？先 commit，再收回；用的管理器除了全注意力的层，还有一类带滑动窗口：

# %% key="rollback_window"
from minikv.errors import MiniKVError


def rolled_back(first):
    manager = BlockManager([KVCacheGroup(12), KVCacheGroup(12, window=6)], block_size=4)
    manager.allocate("S", list(range(10)))
    manager.commit("S")
    manager.append_tokens("S", list(range(50, 58)))
    try:
        if first == "commit":
            manager.commit("S")
        manager.truncate("S", 11)
        manager.commit("S")
    except MiniKVError as error:
        return t(error)
    return [manager.block_table("S", group) for group in (0, 1)]


for first in ("truncate", "commit"):
    print(t("rollback_order", first=first, result=rolled_back(first)))

# %% [markdown] key="rollback_window_read" lang="en"
# (-1 stands for a block that was given back.) With the drafts committed the window has moved on past what the shorter sequence needs, and those blocks may be somebody else's already. A cache that cannot go back has to refuse, and say so; where it goes on silently the text gets wrong ([mlx-lm #1427](https://github.com/ml-explore/mlx-lm/pull/1427), a rotating cache that was full).
# (Exercise 13b.2 is such a step, from the drafts to what is published.)
#
# What does it bring? `LLM(prompt_lookup=n)` does all this with up to $n$ drafts a step. tiny-gqa, four prompts, one after the other, 100 tokens each, and against the texts without drafts:
# %% [markdown] key="rollback_window_read" lang="zh" src="a33ec2e4"
# （-1 表示已经归还的块。）草稿一提交，窗口就往前移，越过了缩短后的序列还要读的部分，那些块可能已经归了别人。退不回去的缓存必须拒绝，并且说清楚；如果一声不响地继续，文本就错了（[mlx-lm #1427](https://github.com/ml-explore/mlx-lm/pull/1427)，一份写满了的循环缓存）。
# （练习 13b.2 就是这样一步：从草稿到发布。）
#
# 这能带来多少好处？`LLM(prompt_lookup=n)` 会做这一切，每步最多 $n$ 个草稿。用 tiny-gqa，四个提示词一个接一个，各生成 100 个 token，再与不用草稿的文本比对：

# %% key="speculate" tags="hardware"
from minikv import LLM, SamplingParams
from minikv.engine import EventLog, summary
from minikv.models import load, recall_prompt

torch.set_num_threads(1)
tiny = load("tiny-gqa", device="cpu")
prompts = [recall_prompt(seed=seed).text for seed in range(4)]
texts = {}
greedy = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
for most in (0, 2, 4, 8):
    log = EventLog()
    with LLM(tiny, prompt_lookup=most, num_blocks=600, emit=log) as llm:
        texts[most] = [llm.generate([prompt], greedy)[0].token_ids for prompt in prompts]
    told, steps = summary(log.events), len(log.of("step"))
    same = sum(ours == due for ours, due in zip(texts[most], texts[0]))
    counts = dict(drafted=told.drafted_tokens, accepted=told.accepted_tokens, steps=steps, same=same)
    print(t("speculate_line", most=most, each=400 / steps, **counts))

# %% [markdown] key="speculate_read" lang="en"
# The same texts in a fraction of the steps. (A small model that goes on by itself repeats itself a lot; elsewhere fewer drafts are accepted.)
# More drafts a step are not always better: each is computed, accepted or not, and takes a place in the step from somebody else.
# And if the comparison is off by one place, nobody notices but the reader: in one engine the first draft was taken without any ([lattice #243](https://github.com/ohdearquant/lattice/issues/243)). Taking back goes wrong as quietly: in another some caches could not be cut, and refused drafts stayed in them ([mlx-lm #1109](https://github.com/ml-explore/mlx-lm/pull/1109)). In a third the model that makes the drafts lost two tokens too many of its own cache: there the text stayed right, and fewer and fewer drafts did ([mlxcel #994](https://github.com/lablup/mlxcel/issues/994)).
# %% [markdown] key="speculate_read" lang="zh" src="d2b8e250"
# 文本一样，步数只剩几分之一。（小模型自己往下写，重复很多；换成别的文本，接受的草稿会少一些。）
# 草稿也不是越多越好：接受也罢，不接受也罢，每一个都要算，还占去别人在这一步里的位置。
# 比对时要是错开了一位，除了读的人，谁也不会发觉：有个引擎，第一个草稿根本没有比对就接受了（[lattice #243](https://github.com/ohdearquant/lattice/issues/243)）。收回时出错，同样悄无声息：另一个引擎里，有的缓存截不短，没有接受的草稿就留在了里面（[mlx-lm #1109](https://github.com/ml-explore/mlx-lm/pull/1109)）。还有一个引擎，专门写草稿的模型自己的缓存每次多退两个 token：文本没有错，猜对的草稿却越来越少（[mlxcel #994](https://github.com/lablup/mlxcel/issues/994)）。

# %% [markdown] key="break_stale" lang="en"
# ## Break it: drafts that can still be found
#
# Suppose that refused drafts were published, because somebody committed too early. Then a block may have a digest that names tokens which it no longer holds. Watch what the manager does about it. (Here two of the six stay, so that the cut goes through the middle of a block.)
# %% [markdown] key="break_stale" lang="zh" src="a86b6749"
# ## 弄坏它：还能找到的草稿
#
# 假如有人提交得太早，没有接受的草稿也发布了，那么块的摘要所指的 token，可能已经不是块里的内容。看管理器怎样处理。（这里六个里留下两个，好让截断处落在一个块的中间。）

# %% key="break_stale_code"
manager = BlockManager(num_blocks=12, block_size=4)
manager.allocate("S", text)
manager.append_tokens("S", [*accepted, *refused])
manager.commit("S")
state("commit")
manager.truncate("S", 10)
state("truncate")
manager.append("S", 77)
state("append")

# %% [markdown] key="break_stale_read" lang="en"
# After `truncate` two of the tokens behind the cut can still be found, and rightly so: their K and V are still in the block, and they are right for those tokens. With `append` the content changes, and in the same moment the block is forgotten.
# Without that, somebody else would read 77 and take it for 33.
# %% [markdown] key="break_stale_read" lang="zh" src="b9543399"
# `truncate` 之后，截掉的 token 里有两个还找得到，这没有错：它们的 K 和 V 还在块里，对那些 token 来说也是对的。到了 `append`，内容变了，这个块也在同一刻从前缀缓存里除名。
# 要不然，别人读到的是 77，却以为是 33。

# %% [markdown] key="check_yourself" lang="en"
# ## Check yourself
#
# Say the answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="check_yourself" lang="zh" src="9cbe005b"
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_same"
explain("why_the_same_text")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# 1. `propose`: drafts out of the text itself.
# 2. `decode_step`: compute, compare, take back, publish.
# %% [markdown] key="exercises" lang="zh" src="6f33234c"
# ## 练习
#
# 1. `propose`：从文本自己里面找草稿。
# 2. `decode_step`：计算，比对，收回，发布。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# A step starts with one call, and may give several tokens; the text is the same.
# [Lesson 14](14_what_to_forget.ipynb) changes what is kept: without a window, which tokens can go all the same? Then an answer may really be gone, and the curves have to be honest.
# %% [markdown] key="next" lang="zh" src="f126e889"
# ## 下一课
#
# 一步只要一次调用，还可能得到几个 token，而文本不变。
# [第 14 课](14_what_to_forget.ipynb)改的是存下来的东西：没有窗口的时候，哪些 token 也可以不要？那时，有的回答就真的找不回来了，曲线也得老老实实地画。
