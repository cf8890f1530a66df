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
# **How do you teach eviction to an attention class that the package does not know? And how do you notice that it went wrong, when no error is raised?**
#
# Below is one layer of tiny-mla: two layers with 4 query heads each, a latent of 64 and a rope key of 16 for each token. Its calls were recorded while it read 100 tokens, then 20, then 1, with room for 48.
# %% [markdown] key="question" lang="zh" src="03e9ed7a"
# ## 问题
#
# **一个本包不认识的注意力类，怎样让它也会淘汰？出了错却不报错，又怎样发现？**
#
# 下面是 tiny-mla 的一层。这个模型有两层，每层 4 个 query 头，每个 token 有一个 64 个数的潜在向量和一个 16 个数的 rope key。它先读 100 个 token，再读 20 个，再读 1 个，容量是 48；图里是读的时候记录下来的调用。

# %% key="setup"
import torch

from minikv.eviction import H2O, install_kv_eviction
from minikv.models import load, recall_documents

torch.set_num_threads(1)
model = load("tiny-mla", device="cpu").model
[document] = recall_documents(1, seed=1)
context = torch.from_numpy(document.tokens[:193])[None]

# %% key="calls" lang="en"
from minikv.course.diagrams import forward_calls
from minikv.course.lessons.l15b.calls import record_calls

sizes = dict(n_sink=4, budget=32, n_recent=12)  # 48
with torch.no_grad(), install_kv_eviction(model, policy="h2o", **sizes) as installed:
    cache = installed.new_cache()
    with record_calls(cache) as calls:
        for new in context[:, :121].split([100, 20, 1], 1):
            model(new, past_key_values=cache)
show(forward_calls(calls, "en"))

# %% key="calls" lang="zh"
from minikv.course.diagrams import forward_calls
from minikv.course.lessons.l15b.calls import record_calls

sizes = dict(n_sink=4, budget=32, n_recent=12)  # 48
with torch.no_grad(), install_kv_eviction(model, policy="h2o", **sizes) as installed:
    cache = installed.new_cache()
    with record_calls(cache) as calls:
        for new in context[:, :121].split([100, 20, 1], 1):
            model(new, past_key_values=cache)
show(forward_calls(calls, "zh"))

# %% [markdown] key="able" lang="en"
# Three calls turn attention into attention that forgets. After this lesson you can
#
# - **port** them to a class of your own;
# - **prove** the port against a known implementation;
# - **recognize** four ways to fail, of which none raises an error.
# %% [markdown] key="able" lang="zh" src="b6ba518d"
# 有了这三个调用，注意力就会遗忘。学完本课，你能够：
#
# - 把它们**移植**到自己的注意力类上；
# - 与已知的实现对照，**证明**移植是对的；
# - **认出**四种故障，它们都不会抛出异常。

# %% [markdown] key="unknown" lang="en"
# ## A class that the package does not know
#
# The package works with models whose attention goes through transformers' `AttentionInterface`. Some classes compute it by themselves, and are refused:
# %% [markdown] key="unknown" lang="zh" src="1f2468dd"
# ## 本包不认识的类
#
# 只要模型的注意力经过 transformers 的 `AttentionInterface`，本包就能用。有些类自己计算注意力，就会被拒绝：

# %% key="fixed" lang="en"
from minikv.errors import MiniKVError
from transformers import GPTJConfig, GPTJForCausalLM

small = dict(vocab_size=97, n_embd=32, n_layer=1, n_head=2, rotary_dim=8, n_positions=64, bos_token_id=1, eos_token_id=2)
try:
    install_kv_eviction(GPTJForCausalLM(GPTJConfig(**small)).eval(), policy="h2o", budget=8)
except MiniKVError as error:
    print(error.text("en"))

# %% key="fixed" lang="zh"
from minikv.errors import MiniKVError
from transformers import GPTJConfig, GPTJForCausalLM

small = dict(vocab_size=97, n_embd=32, n_layer=1, n_head=2, rotary_dim=8, n_positions=64, bos_token_id=1, eos_token_id=2)
try:
    install_kv_eviction(GPTJForCausalLM(GPTJConfig(**small)).eval(), policy="h2o", budget=8)
except MiniKVError as error:
    print(error.text("zh"))

# %% [markdown] key="port" lang="en"
# Then port it. With a cache *layer* that forgets, three calls are left:
#
# 1. `update(latent, rope)` appends, and returns all that is there;
# 2. `observe(sums)` tells the policy what has been looked at, a number for each row;
# 3. `evict()` ends the forward: the layer drops what it has no room for.
#
# Here is an attention class of our own. It reads tiny-mla's weights and never makes keys and values for each head: the queries are turned into latents instead. First its projections, which know nothing of a cache:
# %% [markdown] key="port" lang="zh" src="a6784119"
# 那就自己移植。有了会遗忘的缓存**层**，就只剩三个调用：
#
# 1. `update(latent, rope)` 追加新的行，并返回现有的全部；
# 2. `observe(sums)` 告诉策略每一行被看了多少，每行一个数；
# 3. `evict()` 结束这次前向计算：放不下的由这一层丢掉。
#
# 下面是我们自己写的一个注意力类。它用 tiny-mla 的权重，但不为每个头展开 key 和 value，而是把 query 变换到潜在向量的空间。先写投影，这部分与缓存无关：

# %% key="absorbed" lang="en"
from minikv.eviction.hf.attention import seen_keys
from torch import nn
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave


def projected(old, hidden_states, position_embeddings):
    """Queries in the latents' space [B, H, T, rank], rope queries, latents [B, 1, T, rank], rope keys, values' weights."""
    (rows, new), rank, rope_dim = hidden_states.shape[:2], old.kv_lora_rank, old.qk_rope_head_dim
    query = old.q_proj(hidden_states).view(rows, new, old.num_heads, -1).transpose(1, 2)
    q_nope, q_rope = query.split([old.qk_nope_head_dim, rope_dim], -1)
    latent, rope = old.kv_a_proj_with_mqa(hidden_states).unsqueeze(1).split([rank, rope_dim], -1)
    q_rope, rope = apply_rotary_pos_emb_interleave(q_rope, rope, *position_embeddings)
    both = old.kv_b_proj.weight.view(old.num_heads, -1, rank)  # what makes K and V of a latent
    to_key, to_value = both.split([old.qk_nope_head_dim, old.v_head_dim], 1)
    return q_nope @ to_key, q_rope, old.kv_a_layernorm(latent), rope, to_value

# %% key="absorbed" lang="zh"
from minikv.eviction.hf.attention import seen_keys
from torch import nn
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave


def projected(old, hidden_states, position_embeddings):
    """潜在空间里的 query [B, H, T, rank]、rope query、潜在向量 [B, 1, T, rank]、rope key、value 的权重。"""
    (rows, new), rank, rope_dim = hidden_states.shape[:2], old.kv_lora_rank, old.qk_rope_head_dim
    query = old.q_proj(hidden_states).view(rows, new, old.num_heads, -1).transpose(1, 2)
    q_nope, q_rope = query.split([old.qk_nope_head_dim, rope_dim], -1)
    latent, rope = old.kv_a_proj_with_mqa(hidden_states).unsqueeze(1).split([rank, rope_dim], -1)
    q_rope, rope = apply_rotary_pos_emb_interleave(q_rope, rope, *position_embeddings)
    both = old.kv_b_proj.weight.view(old.num_heads, -1, rank)  # 由潜在向量得到 K 和 V 的矩阵
    to_key, to_value = both.split([old.qk_nope_head_dim, old.v_head_dim], 1)
    return q_nope @ to_key, q_rope, old.kv_a_layernorm(latent), rope, to_value

# %% [markdown] key="absorbed_forward" lang="en"
# And the forward. Three of its lines are the port:
# %% [markdown] key="absorbed_forward" lang="zh" src="a9420f73"
# 再写前向计算，其中三行就是移植：

# %% key="absorbed_class" lang="en"
class Absorbed(nn.Module):
    def __init__(self, old, cache):
        super().__init__()
        self.old, self.cache = old, cache

    def forward(self, hidden_states, position_embeddings, **others):
        layer = self.cache.layers[self.old.layer_idx]
        q_latent, q_rope, latent, rope, to_value = projected(self.old, hidden_states, position_embeddings)
        latent, rope = layer.update(latent, rope)  # 1: all rows, [B, 1, S, ...]
        logits = (q_latent @ latent.mT + q_rope @ rope.mT) * self.old.scaling  # [B, H, T, S]
        seen = seen_keys(layer)
        probs = (logits if seen is None else logits.masked_fill(~seen, -torch.inf)).softmax(-1)
        layer.observe(probs.sum((1, 2)).unsqueeze(1))  # 2: over heads and queries, [B, 1, S]
        out = (probs @ latent) @ to_value.mT
        layer.evict()  # 3
        return self.old.o_proj(out.transpose(1, 2).flatten(2)), probs

# %% key="absorbed_class" lang="zh"
class Absorbed(nn.Module):
    def __init__(self, old, cache):
        super().__init__()
        self.old, self.cache = old, cache

    def forward(self, hidden_states, position_embeddings, **others):
        layer = self.cache.layers[self.old.layer_idx]
        q_latent, q_rope, latent, rope, to_value = projected(self.old, hidden_states, position_embeddings)
        latent, rope = layer.update(latent, rope)  # 1：现有的全部，[B, 1, S, ...]
        logits = (q_latent @ latent.mT + q_rope @ rope.mT) * self.old.scaling  # [B, H, T, S]
        seen = seen_keys(layer)
        probs = (logits if seen is None else logits.masked_fill(~seen, -torch.inf)).softmax(-1)
        layer.observe(probs.sum((1, 2)).unsqueeze(1))  # 2：对头和 query 求和，[B, 1, S]
        out = (probs @ latent) @ to_value.mT
        layer.evict()  # 3
        return self.old.o_proj(out.transpose(1, 2).flatten(2)), probs

# %% [markdown] key="port_run" lang="en"
# Does it do the right thing? The package's own way is the judge: same weights, same text, in a prompt, single tokens and a chunk in between. After every forward the logits must agree, and at the end the two have to hold the same tokens.
# %% [markdown] key="port_run" lang="zh" src="3bd0c8f4"
# 它做得对吗？用本包自己的做法来判断：权重相同，文本相同，先是提示词，再是一个个 token，中间夹一段。每次前向之后 logit 都要一致，最后两边留下的 token 也要相同。

# %% key="port_models"
from copy import deepcopy

from minikv.course import Table
from minikv.eviction import Budget
from minikv.eviction.hf.cache import EvictingCache
from minikv.eviction.hf.rules import LayerRules

budget = Budget(**sizes)
rules = [LayerRules(H2O("sum"), budget, "layer", layer=number, num_layers=2, latent=True) for number in (0, 1)]
ours, ported = EvictingCache(model.config, rules), deepcopy(model)
for block in ported.model.layers:
    block.self_attn = Absorbed(block.self_attn, ours)

# %% key="port_check" lang="en"
documents = torch.stack([torch.from_numpy(each.tokens) for each in recall_documents(2, seed=4)])
steps, difference = [150, 1, 1, 18, *[1] * 30], 0.0
with torch.no_grad(), install_kv_eviction(model, policy=H2O("sum"), **sizes) as installed:
    theirs = installed.new_cache()
    for new in documents[:, : sum(steps)].split(steps, 1):
        pair = [each(new, past_key_values=cache).logits for each, cache in ((ported, ours), (model, theirs))]
        difference = max(difference, float((pair[0] - pair[1]).abs().max()))
kept = [[layer.positions.sort(-1).values for layer in cache.layers] for cache in (ours, theirs)]
same = all(torch.equal(mine, yours) for mine, yours in zip(*kept))
head = ["forwards", "logits agree", "same tokens kept", "kept", "of"]
Table(head, [(len(steps), difference < 1e-3, same, ours.layers[0].resident, ours.get_seq_length())])

# %% key="port_check" lang="zh"
documents = torch.stack([torch.from_numpy(each.tokens) for each in recall_documents(2, seed=4)])
steps, difference = [150, 1, 1, 18, *[1] * 30], 0.0
with torch.no_grad(), install_kv_eviction(model, policy=H2O("sum"), **sizes) as installed:
    theirs = installed.new_cache()
    for new in documents[:, : sum(steps)].split(steps, 1):
        pair = [each(new, past_key_values=cache).logits for each, cache in ((ported, ours), (model, theirs))]
        difference = max(difference, float((pair[0] - pair[1]).abs().max()))
kept = [[layer.positions.sort(-1).values for layer in cache.layers] for cache in (ours, theirs)]
same = all(torch.equal(mine, yours) for mine, yours in zip(*kept))
head = ["前向计算", "logit 一致", "留下的 token 相同", "留下", "总数"]
Table(head, [(len(steps), difference < 1e-3, same, ours.layers[0].resident, ours.get_seq_length())])

# %% [markdown] key="port_read" lang="en"
# Three things are easy to miss.
#
# - **The mask.** transformers makes one for a cache that has lost nothing. `seen_keys(layer)` answers for what is there.
# - **The position.** It came through `position_embeddings`, made from `cache.get_seq_length()`, which counts the text.
# - **The order.** Observe, then evict; and evict after the output has been computed from the rows. (`out` was, one line earlier.)
#
# ## Four ways to fail
#
# A port that goes wrong writes text all the same. Here are four symptoms, made on purpose, and what `eviction_report` says of them. First two that come slowly: six texts of 193 tokens that ask as they go, read in thirds, with H2O and a decay. One run has a recent window of 1 instead of 16. The other has a policy that takes in what the prompt looks at, and nothing after it:
# %% [markdown] key="port_read" lang="zh" src="9260035c"
# 有三处容易漏掉。
#
# - **掩码**。transformers 做的掩码，是给什么都没丢的缓存用的。现有的这些行该怎样遮，要问 `seen_keys(layer)`。
# - **位置**。它是随 `position_embeddings` 传进来的，由 `cache.get_seq_length()` 得出，数的是文本。
# - **次序**。先 observe，再 evict；而且要等输出已经由这些行算好之后再 evict。（`out` 就在上一行。）
#
# ## 四种故障
#
# 移植出了错，照样能输出文本。下面把四种症状都故意做出来，看 `eviction_report` 怎么说。先看两种慢慢变坏的：六篇 193 个 token 的文本，一边读一边问，分三段来看，用带衰减的 H2O。一次把近期窗口从 16 改成 1；另一次换成一种策略，它只记下提示词看过什么，后面的一概不记：

# %% key="stale_policy" lang="en"
from dataclasses import dataclass

from minikv.course.lessons.l15.stream import graded, read
from minikv.eviction.study.tasks import stream_cases


@dataclass(frozen=True)
class OnlyPrompts(H2O):
    def observe(self, sums, seen):
        return seen.state if seen.queries == 1 else super().observe(sums, seen)  # a decode step: nothing learned

# %% key="stale_policy" lang="zh"
from dataclasses import dataclass

from minikv.course.lessons.l15.stream import graded, read
from minikv.eviction.study.tasks import stream_cases


@dataclass(frozen=True)
class OnlyPrompts(H2O):
    def observe(self, sums, seen):
        return seen.state if seen.queries == 1 else super().observe(sums, seen)  # 解码的一步：什么都不记

# %% key="failures" lang="en" tags="hardware"
cases, thirds = stream_cases(6, length=193), {86: (33, 86), 140: (86, 140), 193: (140, 193)}
with torch.no_grad():
    logs = {"full": model(torch.stack([torch.from_numpy(case.tokens) for case in cases])).logits.log_softmax(-1)}
findings, runs = [], {
    "fine": (H2O("decay"), 16),
    "window": (H2O("decay"), 1),
    "stale": (OnlyPrompts("decay"), 16),
}
for name, (policy, n_recent) in runs.items():
    logs[name], report = read(model, cases, policy, n_sink=4, budget=44 - n_recent, n_recent=n_recent)
    findings += [(type(policy).__name__, n_recent, finding.text("en")) for finding in report.findings]
graded_thirds = {name: {end: graded(some, cases, *third) for end, third in thirds.items()} for name, some in logs.items()}

# %% key="failures" lang="zh" tags="hardware"
cases, thirds = stream_cases(6, length=193), {86: (33, 86), 140: (86, 140), 193: (140, 193)}
with torch.no_grad():
    logs = {"full": model(torch.stack([torch.from_numpy(case.tokens) for case in cases])).logits.log_softmax(-1)}
findings, runs = [], {
    "fine": (H2O("decay"), 16),
    "window": (H2O("decay"), 1),
    "stale": (OnlyPrompts("decay"), 16),
}
for name, (policy, n_recent) in runs.items():
    logs[name], report = read(model, cases, policy, n_sink=4, budget=44 - n_recent, n_recent=n_recent)
    findings += [(type(policy).__name__, n_recent, finding.text("zh")) for finding in report.findings]
graded_thirds = {name: {end: graded(some, cases, *third) for end, third in thirds.items()} for name, some in logs.items()}

# %% key="failures_chart" lang="en" tags="hardware"
from minikv.course.charts import lines

names = ["full cache", "window 16", "window 1", "scores of the prompt"]
series = {name: {end: perplexity for end, (_, perplexity) in some.items()} for name, some in zip(names, graded_thirds.values())}
show(lines(series, x="end of the third, tokens", y="perplexity of the ordinary words", log="y"))
head = ["run", "answered, %: first third", "second", "last"]
Table(head, [(name, *(recall for recall, _ in some.values())) for name, some in zip(names, graded_thirds.values())])

# %% key="failures_chart" lang="zh" tags="hardware"
from minikv.course.charts import lines

names = ["完整缓存", "窗口 16", "窗口 1", "得分停在提示词"]
series = {name: {end: perplexity for end, (_, perplexity) in some.items()} for name, some in zip(names, graded_thirds.values())}
show(lines(series, x="每一段的末尾，token", y="普通词的困惑度", log="y"))
head = ["运行", "答对，%：第一段", "第二段", "第三段"]
Table(head, [(name, *(recall for recall, _ in some.values())) for name, some in zip(names, graded_thirds.values())])

# %% key="failures_found" lang="en" tags="hardware"
Table(["policy", "n_recent", "what the report says"], findings)

# %% key="failures_found" lang="zh" tags="hardware"
Table(["策略", "n_recent", "报告的说法"], findings)

# %% [markdown] key="failures_read" lang="en"
# - **Drift** (`window_small`). With a window of 1 the ordinary words are lost from the first third on: whatever has just been written is gone before a later query could look at it.
# - **The cliff** (`scores_stale`). With scores that stand still since the prompt, the first third looks sound. Then it gets worse and worse, the longer the text, while the run without a finding stays near the full cache. (The first finding comes along: what is new never gets a score.)
#
# And look at the answers. In *both* failures there are more of them than in the run without a finding. The facts stand at the beginning of these texts, a kept set that is frozen there happens to hold more of them, and a benchmark of recall would have called the bug an improvement.
#
# The third symptom is **garbage, because the sinks went**. tiny-mla has no sinks worth the name, so it cannot show the failure. `model_with_a_sink` can: it is a DeepSeek-V3 of one layer whose random weights were changed in a few places, so that every query finds the first token, and the first token says nothing.
# %% [markdown] key="failures_read" lang="zh" src="892b428a"
# - **跑题**（`window_small`）。窗口为 1 时，从第一段起，普通的词就猜不准了：刚写下的 token，还没等后面的 query 来看，就被淘汰了。
# - **断崖**（`scores_stale`）。得分停在提示词那里不动，第一段看上去还好好的；文本越长就越差，而没有问题的那次运行一直在完整缓存附近。（`window_small` 也跟着出现：新来的 token 永远没有得分。）
#
# 再看回答。**两种**故障里，答对的都比没有问题的那次还多。因为这些文本的事实都写在开头，留下的集合冻结在开头，碰巧多留住了一些；只看召回的评测，会把这个 bug 当成改进。
#
# 第三种症状是**汇点被淘汰，输出乱码**。tiny-mla 没有像样的汇点，所以用它演示不出来。`model_with_a_sink` 可以：它是只有一层的 DeepSeek-V3，权重随机，只改了几处，使每个 query 都找得到第一个 token，而第一个 token 什么内容也没有。

# %% key="sinks" tags="hardware"
from minikv.course.lessons.l15.sink_model import model_with_a_sink, on_first, same_words, texts
from minikv.eviction import eviction_report

made, ids, found = model_with_a_sink(), texts(4, 60), []
share, right = on_first(made, ids)
for n_sink in (4, 1, 0):
    with install_kv_eviction(made, policy="streaming", n_sink=n_sink, n_recent=24 - n_sink, budget=0):
        same = same_words(made, ids, right)
        found.append((n_sink, same, ", ".join(one.code for one in eviction_report(made).findings)))
shares = f"{share:.1f} %", f"{on_first(model, context)[0]:.1f} %"

# %% key="sinks_chart" lang="en" tags="hardware"
from minikv.course.charts import bars

names = [f"n_sink={n_sink} {codes}" for n_sink, _, codes in found]
show(bars(names, {"same": [round(same, 1) for _, same, _ in found]}, x="next words as with the full cache", unit="%"))
Table(["attention on the first token", "share"], zip(["model_with_a_sink", "tiny-mla"], shares))

# %% key="sinks_chart" lang="zh" tags="hardware"
from minikv.course.charts import bars

names = [f"n_sink={n_sink} {codes}" for n_sink, _, codes in found]
show(bars(names, {"相同": [round(same, 1) for _, same, _ in found]}, x="与完整缓存相同的下一个词", unit="%"))
Table(["第一个 token 上的注意力", "占比"], zip(["model_with_a_sink", "tiny-mla"], shares))

# %% [markdown] key="sinks_read" lang="en"
# 24 tokens are kept in each case, and one of them decides. So a test of your own needs a model that *has* what could break.
#
# The last symptom is **memory that grows although eviction is installed**: the cache is of a class that forgets nothing. By default that is refused; `other_caches="pass"` lets it through, and the report names it. Here is one text, token by token, in a cache that forgets and in one that was let through:
# %% [markdown] key="sinks_read" lang="zh" src="52d681f1"
# 每次留的都是 24 个 token，起决定作用的是其中一个。所以自己写测试，要用一个**具有**那种性质的模型，才测得出它会不会坏。
#
# 最后一种症状是**装了淘汰，显存还在涨**：传进来的缓存属于一个什么都不忘的类。默认会拒绝；`other_caches="pass"` 让它通过，报告会指出它的名字。下面把同一篇文本一个 token 一个 token 地读，一次用会遗忘的缓存，一次用放行的缓存：

# %% key="grows" lang="en"
from transformers import StaticCache

rows = {"evicting": {}, "let through": {}}
with torch.no_grad(), install_kv_eviction(model, policy="h2o", budget=28, n_recent=16, other_caches="pass") as installed:
    caches = installed.new_cache(), StaticCache(config=model.config, max_cache_len=200)
    for (name, held), cache in zip(rows.items(), caches):
        for step in range(193):
            model(context[:, step : step + 1], past_key_values=cache)
            layer = cache.layers[0]
            held[step + 1] = layer.resident if cache is caches[0] else int(layer.get_seq_length())
    report = eviction_report(model).text("en")
show(lines(rows, x="tokens of the text", y="rows in layer 0"))
print(report)

# %% key="grows" lang="zh"
from transformers import StaticCache

rows = {"会淘汰": {}, "放行": {}}
with torch.no_grad(), install_kv_eviction(model, policy="h2o", budget=28, n_recent=16, other_caches="pass") as installed:
    caches = installed.new_cache(), StaticCache(config=model.config, max_cache_len=200)
    for (name, held), cache in zip(rows.items(), caches):
        for step in range(193):
            model(context[:, step : step + 1], past_key_values=cache)
            layer = cache.layers[0]
            held[step + 1] = layer.resident if cache is caches[0] else int(layer.get_seq_length())
    report = eviction_report(model).text("zh")
show(lines(rows, x="文本的 token", y="第 0 层的行"))
print(report)

# %% key="grows_refused" lang="en"
with torch.no_grad(), install_kv_eviction(model, policy="h2o", budget=28, n_recent=16):
    try:
        model(context, past_key_values=StaticCache(config=model.config, max_cache_len=200))
    except MiniKVError as error:
        print(error.text("en"))

# %% key="grows_refused" lang="zh"
with torch.no_grad(), install_kv_eviction(model, policy="h2o", budget=28, n_recent=16):
    try:
        model(context, past_key_values=StaticCache(config=model.config, max_cache_len=200))
    except MiniKVError as error:
        print(error.text("zh"))

# %% [markdown] key="check" lang="en"
# ## Recap
#
# - A port is three calls in one order: `update`, `observe`, `evict`, and `evict` only when the output has been computed.
# - It is proved against a known implementation: the logits agree in all 34 forwards, and the same 48 of 200 tokens are left.
# - Recall hides failures. With a window of 1, three of four questions were answered, against about a third without a fault, while perplexity rose about eightfold.
# - A test needs a model that has the property: with 99.5 % of the attention on the first token, `n_sink=0` left 6 % of the next words as they were.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="check" lang="zh" src="1e7bd751"
# ## 本课小结
#
# - 移植就是按次序做三个调用：`update`、`observe`、`evict`，而且要等输出算好之后才 `evict`。
# - 证明的办法是与已知的实现对照：34 次前向计算的 logit 都一致，最后留下的 200 个里的 48 个 token 也相同。
# - 只看召回会漏掉故障。窗口为 1 时，四题能答对三题，没有故障时却只有三分之一左右；与此同时，困惑度升到了八倍上下。
# - 测试要用具有该性质的模型：99.5% 的注意力都在第一个 token 上时，`n_sink=0` 之后只有 6% 的下一个词没有变。
#
# ## 自我检查
#
# 先把答案说出来，再用 `explain(..., reveal=True)` 对照。

# %% key="explain_port"
explain("what_a_port_needs")

# %% key="explain_tests"
explain("why_the_tests_passed")

# %% [markdown] key="exercises" lang="en"
# ## In the wild
#
# - [VeloxQuant-MLX #370](https://github.com/rajveer43/VeloxQuant-MLX/issues/370): three eviction caches wrote garbage, because the causal mask took what was left for an unbroken stretch of the text. "The mask" above explains it.
# - [keys_values #140](https://github.com/awslabs/keys_values/issues/140): in July 2026 evicting caches wrote garbage on a real model, while the unit tests passed. A [pull request](https://github.com/awslabs/keys_values/pull/142) named the reason: "Toy random models have no sink structure, which is why unit tests pass."
# - Notes to an implementation of H2O for DeepSeek-V3, "How It Works: Architectural Notes", list the four symptoms. They slice a cache of an older transformers; [appendix A](A_errata.ipynb) corrects what has changed since.
#
# ## Exercises
#
# 1. `latent_scores`: one score a token, from all the heads that there are.
# %% [markdown] key="exercises" lang="zh" src="947073c1"
# ## 实战现场
#
# - [VeloxQuant-MLX #370](https://github.com/rajveer43/VeloxQuant-MLX/issues/370)：三种会淘汰的缓存输出了乱码，因为因果掩码把剩下的 token 当成了文本里连续的一段。原因见上面的“掩码”。
# - [keys_values #140](https://github.com/awslabs/keys_values/issues/140)：2026 年 7 月，淘汰缓存在真实模型上输出乱码，单元测试却都能通过。后来的一个 [PR](https://github.com/awslabs/keys_values/pull/142) 指出了原因：随机的玩具模型没有汇点，所以单元测试能通过。
# - 有一份在 DeepSeek-V3 上实现 H2O 的说明，《How It Works: Architectural Notes》，列出了这四种症状。它切的是旧版 transformers 的缓存，过时之处见[附录 A](A_errata.ipynb)。
#
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
