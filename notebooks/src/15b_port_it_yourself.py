# %% [meta]
# number = "15b"
# slug = "port_it_yourself"
# needs = ["15"]
# rooms = ["eviction"]
# minutes = 20
# [title]
# en = "How do you port eviction to your own model?"
# zh = "怎样把淘汰移植到自己的模型？"
# [t4]
# en = "The models are tiny and computed by the CPU, beside a T4 too. The numbers are the same."
# zh = "模型很小，一律由 CPU 计算，有 T4 也一样。看到的数字相同。"

# %% [markdown] key="question" lang="en"
# ## The question
#
# [Lesson 15](15_eviction_on_mla.ipynb) evicted latents in a model of transformers. **How do you teach eviction to an attention class that the package does not know? And how do you find out that it goes wrong, when no error is raised?**
#
# The model is tiny-mla again: two layers with 4 query heads each, a latent of 64 and a rope key of 16 for each token.
# %% [markdown] key="question" lang="zh" src="0c15e863"
# ## 问题
#
# [第 15 课](15_eviction_on_mla.ipynb)在 transformers 的模型里淘汰潜在向量。**一个本包不认识的注意力类，怎样让它也会淘汰？出了错却不报错，又怎样发现**？
#
# 模型还是 tiny-mla：两层，每层 4 个 query 头，每个 token 一个 64 个数的潜在向量和一个 16 个数的 rope key。

# %% key="setup"
from copy import deepcopy

import torch

from minikv.errors import MiniKVError
from minikv.eviction import H2O, Budget, eviction_report, install_kv_eviction
from minikv.models import load, recall_documents

torch.set_num_threads(1)
model = load("tiny-mla", device="cpu").model
[document] = recall_documents(1, seed=1)
context = torch.from_numpy(document.tokens[:193])[None]

# %% [markdown] key="unknown" lang="en"
# ## A class that nobody knows
#
# The package works with models whose attention goes through transformers' `AttentionInterface`. Some classes compute it by themselves, and are refused:
# %% [markdown] key="unknown" lang="zh" src="b7da1f60"
# ## 一个谁也不认识的类
#
# 只要模型的注意力经过 transformers 的 `AttentionInterface`，本包就能用。有些类自己计算注意力，就会被拒绝：

# %% key="fixed"
from transformers import GPTJConfig, GPTJForCausalLM

sizes = dict(vocab_size=97, n_embd=32, n_layer=1, n_head=2, rotary_dim=8, n_positions=64, bos_token_id=1, eos_token_id=2)
try:
    install_kv_eviction(GPTJForCausalLM(GPTJConfig(**sizes)).eval(), policy="h2o", budget=8)
except MiniKVError as error:
    print(error.text(t("lang")))

# %% [markdown] key="port" lang="en"
# Then port it. The notes to an implementation of H2O for DeepSeek-V3, "How It Works: Architectural Notes" (from here on: the notes), list what to look for: how the class stores K and V, what shape its probabilities have. (They slice a cache of an older transformers; [appendix A](A_errata.ipynb) corrects what has changed since.) With a cache *layer* that forgets, three calls are left:
#
# 1. `update(latent, rope)` appends, and returns all that is there;
# 2. `observe(sums)` tells the policy what has been looked at, a number for each row;
# 3. `evict()` ends the forward: the layer drops what it has no room for.
#
# Here is an attention class of our own. It reads tiny-mla's weights, and never makes keys and values for each head: queries go to the latents, not latents to the heads. Its forward is twenty lines, and three of them are the port.
# %% [markdown] key="port" lang="zh" src="683e8b37"
# 那就自己移植。有一份在 DeepSeek-V3 上实现 H2O 的说明，《How It Works: Architectural Notes》（下称说明），列出了移植时要看什么：这个类怎样存 K 和 V，概率是什么形状。（它切的是旧版 transformers 的缓存，过时之处见[附录 A](A_errata.ipynb)。）有了会遗忘的缓存**层**，就只剩三个调用：
#
# 1. `update(latent, rope)` 追加，并返回现有的全部；
# 2. `observe(sums)` 告诉策略看过什么，每行一个数；
# 3. `evict()` 结束这次前向计算：放不下的由这一层丢掉。
#
# 下面是我们自己写的一个注意力类。它用 tiny-mla 的权重，却从不为每个头展开 key 和 value：是 query 去找潜在向量，而不是潜在向量去找各个头。它的前向计算有二十来行，其中三行就是移植。

# %% key="absorbed"
from torch import nn
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave

from minikv.eviction.hf.attention import seen_keys


class Absorbed(nn.Module):
    """Latent attention that never expands; ``old`` has the weights, ``cache`` the layers that forget."""

    def __init__(self, old, cache):
        super().__init__()
        self.old, self.cache = old, cache

    def forward(self, hidden_states, position_embeddings, **others):
        old, (rows, new) = self.old, hidden_states.shape[:2]
        rank, rope_dim, heads = old.kv_lora_rank, old.qk_rope_head_dim, old.num_heads
        query = old.q_proj(hidden_states).view(rows, new, heads, -1).transpose(1, 2)
        q_nope, q_rope = query.split([old.qk_nope_head_dim, rope_dim], -1)
        latent, rope = old.kv_a_proj_with_mqa(hidden_states).unsqueeze(1).split([rank, rope_dim], -1)
        latent = old.kv_a_layernorm(latent)
        q_rope, rope = apply_rotary_pos_emb_interleave(q_rope, rope, *position_embeddings)
        both = old.kv_b_proj.weight.view(heads, -1, rank)
        to_key, to_value = both.split([old.qk_nope_head_dim, old.v_head_dim], 1)

        layer = self.cache.layers[old.layer_idx]
        latent, rope = layer.update(latent, rope)  # 1
        logits = ((q_nope @ to_key) @ latent.mT + q_rope @ rope.mT) * old.scaling
        seen = seen_keys(layer)
        probs = (logits if seen is None else logits.masked_fill(~seen, -torch.inf)).softmax(-1)
        layer.observe(probs.sum((1, 2)).unsqueeze(1))  # 2: over heads and queries, [B, 1, S]
        out = (probs @ latent) @ to_value.mT
        layer.evict()  # 3
        return old.o_proj(out.transpose(1, 2).reshape(rows, new, -1)), probs

# %% [markdown] key="port_run" lang="en"
# Does it do the right thing? The package's own way is the judge: same weights, same text, in a prompt, single tokens and a chunk in between. After every forward the logits must agree, and at the end the two have to hold the same tokens.
# %% [markdown] key="port_run" lang="zh" src="3bd0c8f4"
# 它做得对吗？用本包自己的做法来判：权重相同，文本相同，先是提示词，再是一个个 token，中间夹一段。每次前向之后 logit 都要一致，最后两边留下的 token 也要相同。

# %% key="port_check"
from minikv.eviction.hf.cache import EvictingCache
from minikv.eviction.hf.rules import LayerRules

sizes = Budget(n_sink=4, budget=32, n_recent=12)
rules = [LayerRules(H2O("sum"), sizes, "layer", layer=number, num_layers=2, latent=True) for number in (0, 1)]
ours, ported = EvictingCache(model.config, rules), deepcopy(model)
for block in ported.model.layers:
    block.self_attn = Absorbed(block.self_attn, ours)

documents = torch.stack([torch.from_numpy(each.tokens) for each in recall_documents(2, seed=4)])
steps, difference = [150, 1, 1, 18, *[1] * 30], 0.0
with torch.no_grad(), install_kv_eviction(model, policy=H2O("sum"), budget=32, n_sink=4, n_recent=12) as installed:
    theirs = installed.new_cache()
    for new in documents[:, : sum(steps)].split(steps, 1):
        pair = [each(new, past_key_values=cache).logits for each, cache in ((ported, ours), (model, theirs))]
        difference = max(difference, float((pair[0] - pair[1]).abs().max()))
same = all(
    torch.equal(mine.positions.sort(-1).values, yours.positions.sort(-1).values)
    for mine, yours in zip(ours.layers, theirs.layers)
)
print(t("port_line", small=difference < 1e-3, same=same, kept=ours.layers[0].resident, text=ours.get_seq_length()))

# %% [markdown] key="port_read" lang="en"
# Three things are easy to miss.
#
# - **The mask.** transformers makes one for a cache that has lost nothing. `seen_keys(layer)` answers for what is there. (In [VeloxQuant-MLX #370](https://github.com/rajveer43/VeloxQuant-MLX/issues/370) three eviction caches wrote garbage, because the causal mask took what was left for an unbroken stretch of the text.)
# - **The position.** It came through `position_embeddings`, made from `cache.get_seq_length()`, which counts the text.
# - **The order.** Observe, then evict; and evict after the output has been computed from the rows. (`out` was, one line earlier.)
#
# ## Four ways to fail
#
# The notes end with four symptoms. Here is each of them, made on purpose, and what `eviction_report` says of it. Six texts of 193 tokens that ask as they go, read in thirds, with H2O and a decay:
# %% [markdown] key="port_read" lang="zh" src="c4bf490c"
# 有三处容易漏掉。
#
# - **掩码**。transformers 做的掩码，是给什么都没丢的缓存用的。现有的这些该怎样遮，要问 `seen_keys(layer)`。（在 [VeloxQuant-MLX #370](https://github.com/rajveer43/VeloxQuant-MLX/issues/370) 里，有三种会淘汰的缓存输出了乱码，因为因果掩码把剩下的当成了文本里连续的一段。）
# - **位置**。它是随 `position_embeddings` 来的，由 `cache.get_seq_length()` 得出，数的是文本。
# - **次序**。先 observe，再 evict；而且要等输出已经由这些行算好之后再 evict。（`out` 就在上一行。）
#
# ## 四种坏法
#
# 说明的末尾列了四种症状。下面把每一种都故意做出来，看 `eviction_report` 怎么说。六篇 193 个 token 的文本，一边读一边问，分三段来看，用带衰减的 H2O：

# %% key="failures" tags="hardware"
from dataclasses import dataclass

from minikv.course.lessons.l15.stream import graded, read
from minikv.eviction.study.tasks import stream_cases


@dataclass(frozen=True)
class OnlyPrompts(H2O):
    """H2O that takes in what a prompt looks at, and nothing after it."""

    def observe(self, sums, seen):
        return seen.state if seen.queries == 1 else super().observe(sums, seen)


def print_thirds(name, logs):
    parts = [graded(logs, cases, start, end) for start, end in ((33, 86), (86, 140), (140, 193))]
    print(t("failures_" + name) + "".join(f"{recall:>7.0f} / {ppl:<6.1f}" for recall, ppl in parts))


cases = stream_cases(6, length=193)
tokens = torch.stack([torch.from_numpy(case.tokens) for case in cases])
with torch.no_grad():
    whole = model(tokens).logits.log_softmax(-1)
print(t("failures_head"))
print_thirds("full", whole)
decay, stale = H2O("decay"), OnlyPrompts("decay")
for name, policy, n_recent in (("fine", decay, 16), ("window", decay, 1), ("stale", stale, 16)):
    logs, report = read(model, cases, policy, n_sink=4, budget=44 - n_recent, n_recent=n_recent)
    print_thirds(name, logs)
    for finding in report.findings:
        print("    " + finding.text(t("lang")))

# %% [markdown] key="failures_read" lang="en"
# - **Drift** (`window_small`). With a window of 1 the ordinary words are lost from the first third on: whatever has just been written is gone before anybody could look at it.
# - **The cliff** (`scores_stale`). With scores that stand still since the prompt, the first third looks sound. Then it gets worse and worse, the longer the text, while the run without a finding stays near the full cache. (The first finding comes along: what is new never gets a score.)
#
# And look at the answers. In *both* failures there are more of them than in the run without a finding. The facts stand at the beginning of these texts, a kept set that is frozen there happens to hold more of them, and a benchmark of recall would have called the bug an improvement.
#
# The third symptom is **garbage, because the sinks went**. tiny-mla has no sinks worth the name, so with it the failure cannot be shown. Somebody has been there before. In July 2026 the evicting caches of a library wrote garbage on a real model, and the unit tests passed ([keys_values #140](https://github.com/awslabs/keys_values/issues/140)). It was taken for a bug of the mechanism at first; a [pull request](https://github.com/awslabs/keys_values/pull/142) soon after says what it was:
#
# > Toy random models have no sink structure, which is why unit tests pass.
#
# So one has to be made. `model_with_a_sink` is a DeepSeek-V3 of one layer whose random weights were changed in a few places: every query finds the first token, and the first token says nothing.
# %% [markdown] key="failures_read" lang="zh" src="4b57c13b"
# - **跑题**（`window_small`）。窗口为 1，从第一段起，普通的词就猜不准了：刚写下的东西，谁都还没来得及看，就没了。
# - **断崖**（`scores_stale`）。提示词之后得分就停住不动的话，第一段看上去还好好的；文本越长就越差，而没有问题的那次，一直在完整缓存附近。（`window_small` 也跟着来了：新来的永远没有得分。）
#
# 再看回答。**两种**故障里，答对的都比没有问题的那次还多。这些文本的事实都写在开头，留下的集合冻结在开头，碰巧多留住了一些；只看召回的评测，会把这个 bug 当成改进。
#
# 第三种症状是**乱码，因为汇点走了**。tiny-mla 没有像样的汇点，所以用它演示不出来。这件事早有人碰到过。2026 年 7 月，有一个库的淘汰缓存在真实模型上输出的全是乱码，单元测试却都能通过（[keys_values #140](https://github.com/awslabs/keys_values/issues/140)）。起初大家以为是机制上的 bug；不久以后，一个 [PR](https://github.com/awslabs/keys_values/pull/142) 说清了原因：
#
# > Toy random models have no sink structure, which is why unit tests pass.
#
# （随机的玩具模型没有汇点，所以单元测试能通过。）
# 那就只好造一个。`model_with_a_sink` 是只有一层的 DeepSeek-V3，权重随机，只改了几处：每个 query 都找得到第一个 token，而第一个 token 什么也不说。

# %% key="sinks" tags="hardware"
from minikv.course.lessons.l15.sink_model import model_with_a_sink, texts as sink_texts


def on_first(model, ids):
    """The attention on the first token, a mean over layers, heads and the queries from 20 on; the likeliest words."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(ids, output_attentions=True)
    model.set_attn_implementation("sdpa")
    return 100 * float(sum(each[:, :, 20:, 0].mean() for each in out.attentions) / len(out.attentions)), out.logits.argmax(-1)


made, ids = model_with_a_sink(), sink_texts(4, 60)
share, right = on_first(made, ids)
print(t("sinks_share", made=share, tiny=on_first(model, context)[0]))
for n_sink in (4, 1, 0):
    with torch.no_grad(), install_kv_eviction(made, policy="streaming", n_sink=n_sink, n_recent=24 - n_sink, budget=0):
        cache, same = None, []
        for start, end in ((0, 40), *((step, step + 1) for step in range(40, 60))):
            out = made(ids[:, start:end], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            same += (out.logits[:, -1].argmax(-1) == right[:, end - 1]).tolist()
        print(t("sinks_line", n_sink=n_sink, same=100 * sum(same) / len(same)))
        for finding in eviction_report(made).findings:
            print("    " + finding.text(t("lang")))

# %% [markdown] key="sinks_read" lang="en"
# 24 tokens are kept in each case; one of them decides. So a test of your own needs a model that *has* what could break.
#
# The last symptom is **memory that grows although eviction is installed**: the cache is of a class that forgets nothing. By default that is refused; `other_caches="pass"` lets it through, and the report names it.
# %% [markdown] key="sinks_read" lang="zh" src="d83532e8"
# 每次留的都是 24 个 token，起决定作用的是其中一个。所以自己写测试的话，模型里得先**有**那样可能坏掉的东西。
#
# 最后一种症状是**装了淘汰，显存还在涨**：传进来的缓存，属于一个什么都不忘的类。默认会拒绝；`other_caches="pass"` 让它通过，而报告会点出它的名字。

# %% key="grows"
from transformers import StaticCache

for passing in ("refuse", "pass"):
    foreign = StaticCache(config=model.config, max_cache_len=200)
    with torch.no_grad(), install_kv_eviction(model, policy="h2o", budget=28, n_recent=16, other_caches=passing):
        try:
            model(context, past_key_values=foreign)
            print(eviction_report(model).text(t("lang")))
        except MiniKVError as error:
            print(error.text(t("lang")))

# %% [markdown] key="check" lang="en"
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="check" lang="zh" src="c2d6ea3e"
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_port"
explain("what_a_port_needs")

# %% key="explain_tests"
explain("why_the_tests_passed")

# %% [markdown] key="exercises" lang="en"
# ## Exercises
#
# 1. `latent_scores`: one score a token, from all the heads that there are.
# %% [markdown] key="exercises" lang="zh" src="3e06871f"
# ## 练习
#
# 1. `latent_scores`：问遍所有的头，一个 token 一个得分。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | garbage, drift, a cliff, growing memory | `print(eviction_report(model).text())`, and the attention on the first token with `output_attentions=True` |
# %% [markdown] key="stuck" lang="zh" src="e1fcc133"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 乱码、跑题、断崖、显存上涨 | `print(eviction_report(model).text("zh"))`，再用 `output_attentions=True` 看第一个 token 上的注意力 |

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# In these lessons memory went because we sent it away. [Lesson 16](16_where_did_6gb_go.ipynb) is about memory that ought to have gone and did not: 6 GB after `generate()`, five suspects, and an experiment for each.
# %% [markdown] key="next" lang="zh" src="fc8f3eec"
# ## 下一课
#
# 这几课里，显存空出来，是因为我们让它走。[第 16 课](16_where_did_6gb_go.ipynb)要讲的是本该走而没有走的：`generate()` 之后的 6 GB，五个嫌疑对象，每个做一次实验。
