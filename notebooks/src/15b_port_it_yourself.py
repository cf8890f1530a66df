# %% [meta]
# number = "15b"
# slug = "port_it_yourself"
# needs = ["15"]
# rooms = ["eviction"]
# [title]
# en = "How do you port eviction to your own model?"
# zh = "怎样把淘汰移植到自己的模型？"
# [t4]
# en = "The port runs on the T4. The text quotes what the four failures do to the digit, so the CPU computes those, and the numbers are the same everywhere."
# zh = "移植的部分在 T4 上运行。四种故障的数字，正文逐位引用，所以由 CPU 计算，在哪里都一样。"

# %% [markdown] key="question" lang="en"
# ## The question
#
# **How do you add eviction to an attention class that the package doesn't know? And how do you notice a mistake that raises no error?**
#
# The picture shows one layer of tiny-mla while it reads 100 tokens, then 20, then 1. The model has two layers of 4 query heads each. For each token a layer caches a latent of 64 numbers and a rope key of 16. It has room for 48 tokens: 4 sinks, 32 chosen by their score and the 12 most recent. Follow the first column, the first forward: `update` appends 100 rows, `observe` changes none, and `evict` leaves 48.
# %% [markdown] key="question" lang="zh" src="56a9b944"
# ## 问题
#
# **一个本包不认识的注意力类，怎样给它加上淘汰？出了错却不报错，又怎样发现？**
#
# 下图是 tiny-mla 的一层，它先读 100 个 token，再读 20 个，最后读 1 个。这个模型有两层，每层 4 个 query 头，为每个 token 缓存一个 64 个数的潜在向量和一个 16 个数的 rope key。每层容量 48，其中 4 个是汇点，32 个按得分选，12 个是最近的。图里的每一列是一次前向计算，例如第一列，`update` 追加 100 行，`observe` 不改变行数，`evict` 之后剩下 48 行。

# %% key="setup"
import torch

from minikv.eviction import H2O, install_kv_eviction
from minikv.models import load, recall_documents

torch.set_num_threads(1)
model = load("tiny-mla").model
[document] = recall_documents(1, seed=1)
context = torch.from_numpy(document.tokens[:193])[None].to(model.device)  # [1, 193]

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
# These three calls turn plain attention into attention that evicts. After this lesson you can
#
# - **port** them to an attention class of your own;
# - **prove** that the port is right, against an implementation that you trust;
# - **recognize** four failures that raise no error.
#
# You need [lesson 15](15_eviction_on_mla.ipynb): one score a token, taken from all heads.
#
# ## Predict
#
# The layer in the picture read 100 + 20 + 1 tokens and kept 48, so `evict` dropped 121 - 48 = 73 rows in all. Now do it with other numbers:
# %% [markdown] key="able" lang="zh" src="4eca74b6"
# 给普通的注意力加上图里这三个调用，它就能淘汰 token。学完本课，你能够：
#
# - 把它们**移植**到自己的注意力类上；
# - 与可信的实现对照，**证明**移植是对的；
# - **认出**四种不抛异常的故障。
#
# 需要先学[第 15 课](15_eviction_on_mla.ipynb)，那里把所有头的注意力加起来，每个 token 一个得分。
#
# ## 先猜一猜
#
# 图里那一层读了 100 + 20 + 1 个 token，留下 48 个，也就是说，`evict` 一共丢弃了 121 - 48 = 73 行。换几个数，你来算一算。

# %% key="predict_dropped"
predict("rows_dropped", ...)

# %% [markdown] key="unknown" lang="en"
# ## A class that the package doesn't know
#
# The package handles every model that calls its attention through transformers' `AttentionInterface`. Some classes compute attention by themselves, and the package refuses them:
# %% [markdown] key="unknown" lang="zh" src="4fa0284e"
# ## 本包不认识的类
#
# 只要模型通过 transformers 的 `AttentionInterface` 调用注意力，本包就能处理。有些类自己计算注意力，本包无法介入，安装时会直接报错，例如 GPT-J：

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
# For such a class you write the port yourself. The cache *layer* does the evicting, so three calls are left for you:
#
# 1. `update(latent, rope)` appends the new rows and returns all rows that are there;
# 2. `observe(sums)` tells the policy how much attention each row has got, one number a row;
# 3. `evict()` ends the forward, and the layer drops the rows that it has no room for.
#
# Here is an attention class of our own. It uses tiny-mla's weights, but it never makes keys and values for each head. Instead it multiplies the queries into the space of the latents ([lesson 15](15_eviction_on_mla.ipynb) calls that *absorbed*). First come its projections, which have nothing to do with the cache. H is the number of heads, T the number of new tokens, and rank the width of a latent:
# %% [markdown] key="port" lang="zh" src="759656fd"
# 遇到这样的类，就要自己移植。淘汰由缓存**层**来做，你只要写三个调用：
#
# 1. `update(latent, rope)` 追加新的行，并返回现有的全部行；
# 2. `observe(sums)` 把每一行得到的注意力告诉策略，每行一个数；
# 3. `evict()` 结束这次前向计算，由缓存层丢掉放不下的行。
#
# 下面是我们自己写的一个注意力类。它用 tiny-mla 的权重，但不为每个头展开 key 和 value，而是把 query 变换到潜在向量的空间，也就是[第 15 课](15_eviction_on_mla.ipynb)说的矩阵吸收。先写投影，这部分与缓存无关。代码里 H 是头数，T 是新 token 数，rank 是潜在向量的宽度。

# %% key="absorbed" lang="en"
from minikv.eviction.hf.attention import seen_keys
from torch import nn
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave


def projected(old, hidden_states, position_embeddings):
    """Queries in the latents' space [B, H, T, rank], rope queries, latents [B, 1, T, rank], rope keys, values' weights."""
    (rows, new), rank, rope_dim = hidden_states.shape[:2], old.kv_lora_rank, old.qk_rope_head_dim
    query = old.q_proj(hidden_states).view(rows, new, old.num_heads, -1).transpose(1, 2)  # [B, H, T, nope + rope]
    q_nope, q_rope = query.split([old.qk_nope_head_dim, rope_dim], -1)  # [B, H, T, nope], [B, H, T, rope]
    latent, rope = old.kv_a_proj_with_mqa(hidden_states).unsqueeze(1).split([rank, rope_dim], -1)  # [B, 1, T, ...]: one for all heads
    q_rope, rope = apply_rotary_pos_emb_interleave(q_rope, rope, *position_embeddings)
    both = old.kv_b_proj.weight.view(old.num_heads, -1, rank)  # [H, nope + v, rank]: what makes K and V of a latent
    to_key, to_value = both.split([old.qk_nope_head_dim, old.v_head_dim], 1)  # [H, nope, rank], [H, v, rank]
    return q_nope @ to_key, q_rope, old.kv_a_layernorm(latent), rope, to_value

# %% key="absorbed" lang="zh"
from minikv.eviction.hf.attention import seen_keys
from torch import nn
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave


def projected(old, hidden_states, position_embeddings):
    """潜在空间里的 query [B, H, T, rank]、rope query、潜在向量 [B, 1, T, rank]、rope key、value 的权重。"""
    (rows, new), rank, rope_dim = hidden_states.shape[:2], old.kv_lora_rank, old.qk_rope_head_dim
    query = old.q_proj(hidden_states).view(rows, new, old.num_heads, -1).transpose(1, 2)  # [B, H, T, nope + rope]
    q_nope, q_rope = query.split([old.qk_nope_head_dim, rope_dim], -1)  # [B, H, T, nope]、[B, H, T, rope]
    latent, rope = old.kv_a_proj_with_mqa(hidden_states).unsqueeze(1).split([rank, rope_dim], -1)  # [B, 1, T, ...]：所有的头共用一份
    q_rope, rope = apply_rotary_pos_emb_interleave(q_rope, rope, *position_embeddings)
    both = old.kv_b_proj.weight.view(old.num_heads, -1, rank)  # [H, nope + v, rank]：由潜在向量得到 K 和 V 的矩阵
    to_key, to_value = both.split([old.qk_nope_head_dim, old.v_head_dim], 1)  # [H, nope, rank]、[H, v, rank]
    return q_nope @ to_key, q_rope, old.kv_a_layernorm(latent), rope, to_value

# %% [markdown] key="absorbed_forward" lang="en"
# Now the forward, in which S is the number of rows that are in the cache. The three numbered lines are the port:
# %% [markdown] key="absorbed_forward" lang="zh" src="a53ec134"
# 再写前向计算，S 是缓存里现有的行数。标着 1、2、3 的三行就是移植。

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
        out = (probs @ latent) @ to_value.mT  # [B, H, T, rank] -> [B, H, T, v]
        layer.evict()  # 3
        return self.old.o_proj(out.transpose(1, 2).flatten(2)), probs  # heads side by side: [B, T, H * v]

# %% key="absorbed_class" lang="zh"
class Absorbed(nn.Module):
    def __init__(self, old, cache):
        super().__init__()
        self.old, self.cache = old, cache

    def forward(self, hidden_states, position_embeddings, **others):
        layer = self.cache.layers[self.old.layer_idx]
        q_latent, q_rope, latent, rope, to_value = projected(self.old, hidden_states, position_embeddings)
        latent, rope = layer.update(latent, rope)  # 1：现有的全部行，[B, 1, S, ...]
        logits = (q_latent @ latent.mT + q_rope @ rope.mT) * self.old.scaling  # [B, H, T, S]
        seen = seen_keys(layer)
        probs = (logits if seen is None else logits.masked_fill(~seen, -torch.inf)).softmax(-1)
        layer.observe(probs.sum((1, 2)).unsqueeze(1))  # 2：对头和 query 求和，[B, 1, S]
        out = (probs @ latent) @ to_value.mT  # [B, H, T, rank] -> [B, H, T, v]
        layer.evict()  # 3
        return self.old.o_proj(out.transpose(1, 2).flatten(2)), probs  # 各个头并排：[B, T, H * v]

# %% [markdown] key="port_run" lang="en"
# Is the port right? We compare it with the package's own implementation, with the same weights and the same texts. Both read a prompt of 150 tokens, then single tokens, with a chunk of 18 in between. After every forward the logits must agree, and at the end both caches must hold the same tokens.
# %% [markdown] key="port_run" lang="zh" src="f78ad641"
# 这样写对不对？我们拿本包自己的实现来对照，权重和文本都相同。两边都先读 150 个 token 的提示词，再一个一个地读 token，中间还夹着一段 18 个 token 的。每次前向计算之后，logit 都要一致；最后，两边留下的 token 也要相同。

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
documents = torch.stack([torch.from_numpy(each.tokens) for each in recall_documents(2, seed=4)]).to(model.device)  # [2, T]
steps, difference = [150, 1, 1, 18, *[1] * 30], 0.0
with torch.no_grad(), install_kv_eviction(model, policy=H2O("sum"), **sizes) as installed:
    theirs = installed.new_cache()
    for new in documents[:, : sum(steps)].split(steps, 1):  # [2, 150], [2, 1], ...
        pair = [each(new, past_key_values=cache).logits for each, cache in ((ported, ours), (model, theirs))]
        difference = max(difference, float((pair[0] - pair[1]).abs().max()))
kept = [[layer.positions.sort(-1).values for layer in cache.layers] for cache in (ours, theirs)]
same = all(torch.equal(mine, yours) for mine, yours in zip(*kept))
head = ["forwards", "logits agree", "same tokens kept", "tokens kept", "tokens read"]
Table(head, [(len(steps), difference < 1e-3, same, ours.layers[0].resident, ours.get_seq_length())])

# %% key="port_check" lang="zh"
documents = torch.stack([torch.from_numpy(each.tokens) for each in recall_documents(2, seed=4)]).to(model.device)  # [2, T]
steps, difference = [150, 1, 1, 18, *[1] * 30], 0.0
with torch.no_grad(), install_kv_eviction(model, policy=H2O("sum"), **sizes) as installed:
    theirs = installed.new_cache()
    for new in documents[:, : sum(steps)].split(steps, 1):  # [2, 150], [2, 1], ...
        pair = [each(new, past_key_values=cache).logits for each, cache in ((ported, ours), (model, theirs))]
        difference = max(difference, float((pair[0] - pair[1]).abs().max()))
kept = [[layer.positions.sort(-1).values for layer in cache.layers] for cache in (ours, theirs)]
same = all(torch.equal(mine, yours) for mine, yours in zip(*kept))
head = ["前向计算", "logit 一致", "留下的 token 相同", "留下的 token", "读过的 token"]
Table(head, [(len(steps), difference < 1e-3, same, ours.layers[0].resident, ours.get_seq_length())])

# %% [markdown] key="port_read" lang="en"
# Three details of the port are easy to miss.
#
# - **The mask.** transformers builds a mask for a cache that has lost nothing, so the mask's columns no longer match the rows. `seen_keys(layer)` gives the mask for the rows that are really there.
# - **The position.** A new token's position arrives in `position_embeddings`, and transformers computes these from `cache.get_seq_length()`. So that call has to count the tokens of the text (200 here), not the rows that are left (48).
# - **The order.** Call `observe` before `evict`. And call `evict` only when the output has been computed from the rows, as `out` is one line earlier.
#
# ## Four ways to fail
#
# A port that is wrong still writes text. So we cause four failures on purpose and see what `eviction_report` says about each.
#
# The first two get worse slowly. The model reads six texts of 193 tokens, and the questions come while it reads. The first 32 tokens are the prompt, and we grade each third of the rest by itself. The policy is H2O with a decay, that is, with each step the attention of earlier steps counts a little less.
#
# All three runs keep 48 tokens. The sound one has a recent window of 16 (in the plot: "window 16"), the second a window of 1 ("window 1"). The third has a policy that records what the prompt looks at and nothing after it ("scores of the prompt"):
# %% [markdown] key="port_read" lang="zh" src="ef827756"
# 移植时有三处容易漏掉。
#
# - **掩码。** transformers 生成掩码时，以为缓存什么都没丢，所以列数已经和现有的行对不上。要用 `seen_keys(layer)`，它按现有的行给出掩码。
# - **位置。** 新 token 的位置随 `position_embeddings` 传进来，transformers 用 `cache.get_seq_length()` 来算它。所以这个函数要数文本里的 token（这里是 200 个），而不是还剩几行（48 行）。
# - **次序。** 先 `observe`，再 `evict`，而且要等输出算好以后才能 `evict`，因为算输出还要用这些行。（代码里 `out` 就在它的上一行。）
#
# ## 四种故障
#
# 移植错了，照样能输出文本。所以我们故意制造四种故障，看看 `eviction_report` 分别怎么报告。
#
# 前两种是慢慢变坏的。模型读六篇 193 个 token 的文本，一边读一边回答问题。前 32 个 token 是提示词，其余的分成三段，分别评分。策略是带衰减的 H2O，也就是说，每走一步，更早得到的注意力就少算一点。
#
# 三次运行都留 48 个 token。第一次没有故障，近期窗口是 16（图里的“窗口 16”）。第二次把近期窗口改成 1（“窗口 1”）。第三次换了一个策略，它只记录提示词看过什么，之后的一概不记（“得分停在提示词”）。

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
# From here on the text quotes figures to the digit, and another device rounds otherwise: so the CPU, by name.
model, context = load("tiny-mla", device="cpu").model, context.cpu()
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
# 从这里起，正文逐位引用数字，而换一个设备，舍入就不同，所以写明用 CPU。
model, context = load("tiny-mla", device="cpu").model, context.cpu()
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
show(lines(series, x="tokens read, at the end of each third", y="perplexity of the ordinary words", log="y"))
head = ["run", "answered in the first third, %", "in the second, %", "in the last, %"]
Table(head, [(name, *(recall for recall, _ in some.values())) for name, some in zip(names, graded_thirds.values())])

# %% key="failures_chart" lang="zh" tags="hardware"
from minikv.course.charts import lines

names = ["完整缓存", "窗口 16", "窗口 1", "得分停在提示词"]
series = {name: {end: perplexity for end, (_, perplexity) in some.items()} for name, some in zip(names, graded_thirds.values())}
show(lines(series, x="读完每一段时的 token 数", y="普通词的困惑度", log="y"))
head = ["运行", "第一段答对，%", "第二段答对，%", "第三段答对，%"]
Table(head, [(name, *(recall for recall, _ in some.values())) for name, some in zip(names, graded_thirds.values())])

# %% key="failures_found" lang="en" tags="hardware"
Table(["policy", "n_recent", "what the report says"], findings)

# %% key="failures_found" lang="zh" tags="hardware"
Table(["策略", "n_recent", "报告的说法"], findings)

# %% [markdown] key="failures_read" lang="en"
# - **Drift** (`window_small`). With a window of 1, the ordinary words are hard to guess from the first third on: the perplexity is 68.4 instead of 8.04. The reason is that a new token is dropped before any later query can look at it.
# - **The cliff** (`scores_stale`). When the scores stand still after the prompt, the first third looks fine at 8.45. Then the perplexity rises, to 21.6 in the second third and 51.5 in the last, while the sound run stays near the full cache. (The report names `window_small` as well, because new tokens never get a score.)
#
# Now look at the answers. *Both* faulty runs answer more questions than the sound one: 74 and 60 % against 39 % in the last third. In these texts the facts stand at the beginning. A kept set that is frozen there happens to hold more of them. A benchmark that measures only recall would have called the bug an improvement.
#
# The third symptom is **garbage because the sinks were dropped**. tiny-mla can't show it, because it puts only 2.9 % of its attention on the first token. `model_with_a_sink` can. It is a DeepSeek-V3 of one layer with random weights. We changed the weights in a few places, so that every query looks at the first token and the first token adds nothing to the output:
# %% [markdown] key="failures_read" lang="zh" src="3220b251"
# - **跑题**（`window_small`）。窗口为 1 时，从第一段起普通词就猜不准了，困惑度是 68.4，正常是 8.04。原因是，新的 token 还没等后面的 query 看到，就被淘汰了。
# - **断崖**（`scores_stale`）。得分停在提示词那里，不再更新。第一段看上去还正常，困惑度 8.45；后面文本越长越差，第二段 21.6，第三段 51.5，而没有故障的运行一直在完整缓存附近。（报告里也有 `window_small`，因为新来的 token 一直没有得分。）
#
# 再看答对多少。**两种**故障答对的都比正常运行还多，例如最后一段是 74% 和 60%，而正常运行只有 39%。这是因为这些文本的事实都写在开头，留下的 token 冻结在开头，碰巧多保住了一些事实。如果评测只看召回率，就会把这个 bug 当成改进。
#
# 第三种症状是**汇点被淘汰，输出乱码**。tiny-mla 在第一个 token 上只放了 2.9% 的注意力，演示不出来，所以要换 `model_with_a_sink`。它是只有一层的 DeepSeek-V3，权重随机，只改了几处，使每个 query 都会看第一个 token，而第一个 token 对输出没有任何贡献。

# %% key="sinks" tags="hardware"
from minikv.course.lessons.l15.sink_model import model_with_a_sink, on_first, same_words, texts
from minikv.eviction import eviction_report

made, ids, found = model_with_a_sink(), texts(4, 60), []
share, right = on_first(made, ids)
for n_sink in (4, 1, 0):
    with install_kv_eviction(made, policy="streaming", n_sink=n_sink, n_recent=24 - n_sink, budget=0):
        same = same_words(made, ids, right)
        found.append((n_sink, same, ", ".join(one.code for one in eviction_report(made).findings)))
shares = f"{share:.1f}", f"{on_first(model, context)[0]:.1f}"

# %% key="sinks_chart" lang="en" tags="hardware"
from minikv.course.charts import bars

names = [f"first tokens kept: {n_sink} {codes}" for n_sink, _, codes in found]
show(bars(names, {"same": [round(same, 1) for _, same, _ in found]}, x="next words that are the same as with the full cache", unit="%"))
Table(["model", "attention on the first token, %"], zip(["model_with_a_sink", "tiny-mla"], shares))

# %% key="sinks_chart" lang="zh" tags="hardware"
from minikv.course.charts import bars

names = [f"留最前面 {n_sink} 个 {codes}" for n_sink, _, codes in found]
show(bars(names, {"相同": [round(same, 1) for _, same, _ in found]}, x="与完整缓存相同的下一个词", unit="%"))
Table(["模型", "第一个 token 上的注意力，%"], zip(["model_with_a_sink", "tiny-mla"], shares))

# %% [markdown] key="sinks_read" lang="en"
# Each run keeps 24 tokens, and one of them makes the difference. With the first token (`n_sink=1`), 95.2 % of the next words are the same as with the full cache. Without it, 6 % are, and the report says `sinks_gone`. So if you write a test of your own, use a model that *has* the property that could break.
#
# The last symptom is **memory that grows although eviction is installed**. The cause is a cache of a class that never evicts. By default the package refuses such a cache. With `other_caches="pass"` the package accepts it, and the report names it. The next cell reads one text token by token, once with a cache that evicts and once with a `StaticCache`. (The report also names `window_small` again, because H2O without a decay favours early tokens even with a window of 16.)
# %% [markdown] key="sinks_read" lang="zh" src="a17aa3e2"
# 每次留的都是 24 个 token，起决定作用的只有其中一个，也就是第一个 token。留着它（`n_sink=1`），95.2% 的下一个词与完整缓存相同；没有它，就只有 6% 相同，报告里写着 `sinks_gone`。所以自己写测试时，要用一个**具有**这种性质的模型，才测得出它有没有被破坏。
#
# 最后一种症状是**装了淘汰，显存还在涨**，原因是传进来的缓存属于一个从不淘汰的类。默认情况下，本包会拒绝这样的缓存；设了 `other_caches="pass"` 就会放行，并在报告里指出来。下面把同一篇文本一个 token 一个 token 地读两遍，一次用会淘汰的缓存，一次用被放行的 `StaticCache`。（报告里又出现了 `window_small`，因为 H2O 不带衰减时，近期窗口有 16 也还是偏袒早来的 token。）

# %% key="grows" lang="en"
from transformers import StaticCache

rows = {"evicting": {}, "StaticCache": {}}
with torch.no_grad(), install_kv_eviction(model, policy="h2o", budget=28, n_recent=16, other_caches="pass") as installed:
    caches = installed.new_cache(), StaticCache(config=model.config, max_cache_len=200)
    for (name, held), cache in zip(rows.items(), caches):
        for step in range(193):
            model(context[:, step : step + 1], past_key_values=cache)
            layer = cache.layers[0]
            held[step + 1] = layer.resident if cache is caches[0] else int(layer.get_seq_length())
    report = eviction_report(model).text("en")
show(lines(rows, x="tokens read", y="rows in layer 0"))
print(report)

# %% key="grows" lang="zh"
from transformers import StaticCache

rows = {"会淘汰": {}, "StaticCache": {}}
with torch.no_grad(), install_kv_eviction(model, policy="h2o", budget=28, n_recent=16, other_caches="pass") as installed:
    caches = installed.new_cache(), StaticCache(config=model.config, max_cache_len=200)
    for (name, held), cache in zip(rows.items(), caches):
        for step in range(193):
            model(context[:, step : step + 1], past_key_values=cache)
            layer = cache.layers[0]
            held[step + 1] = layer.resident if cache is caches[0] else int(layer.get_seq_length())
    report = eviction_report(model).text("zh")
show(lines(rows, x="读过的 token 数", y="第 0 层的行数"))
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
# - A port is three calls in this order: `update`, `observe`, `evict`. `evict` comes only after the output has been computed.
# - You prove a port by comparing it with an implementation that you trust. Here the logits agreed in all 34 forwards, and the same 48 of 200 tokens were left.
# - Recall alone hides failures. With a window of 1 the model answered three of four questions, and the sound run about one in three. But its perplexity was five to eleven times as high.
# - A test needs a model that has the property in question. In a model with 99.5 % of its attention on the first token, `n_sink=0` left only 6 % of the next words unchanged.
#
# ## Check yourself
#
# Say each answer aloud, then compare with `explain(..., reveal=True)`.
# %% [markdown] key="check" lang="zh" src="aeff1642"
# ## 本课小结
#
# - 移植就是依次做 `update`、`observe`、`evict` 三个调用，而且要等输出算好之后才能 `evict`。
# - 证明的办法是与可信的实现对照，例如这里 34 次前向计算的 logit 都一致，200 个 token 里留下的 48 个也完全相同。
# - 只看召回率会漏掉故障。窗口为 1 时，四题能答对三题，没有故障时只能答对三分之一左右；可是它的困惑度是后者的五到十一倍。
# - 测试要用具有该性质的模型。例如 99.5% 的注意力都在第一个 token 上时，设 `n_sink=0` 之后，只有 6% 的下一个词保持不变。
#
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
# 1. `latent_scores`: one score a token, summed over all heads.
# %% [markdown] key="exercises" lang="zh" src="5f6508e1"
# ## 练习
#
# 1. `latent_scores`，对所有的头求和，得到每个 token 的得分。

# %% [markdown] key="stuck" lang="en"
# ## If you are stuck
#
# | symptom | the command that decides |
# |---|---|
# | garbage, drift, a cliff or growing memory | `print(eviction_report(model).text())`; for sinks also the attention on the first token, with `output_attentions=True` |
# %% [markdown] key="stuck" lang="zh" src="f1411479"
# ## 卡住了怎么办
#
# | 现象 | 用哪条命令判断 |
# |---|---|
# | 乱码、跑题、断崖或显存上涨 | `print(eviction_report(model).text("zh"))`；怀疑汇点时，再用 `output_attentions=True` 看第一个 token 上的注意力 |

# %% [markdown] key="wild" lang="en"
# ## In the wild
#
# - [VeloxQuant-MLX #370](https://github.com/rajveer43/VeloxQuant-MLX/issues/370): three evicting caches wrote garbage, because the causal mask treated the rows that were left as one unbroken stretch of the text. "The mask" above explains it.
# - [keys_values #140](https://github.com/awslabs/keys_values/issues/140): in July 2026 evicting caches wrote garbage on a real model, while all unit tests passed. A [pull request](https://github.com/awslabs/keys_values/pull/142) gave the reason: "Toy random models have no sink structure, which is why unit tests pass."
# - The notes "How It Works: Architectural Notes" for H2O on DeepSeek-V3 list the four symptoms. They slice the cache of an older transformers; [appendix A](A_errata.ipynb) says what has changed since.
# %% [markdown] key="wild" lang="zh" src="39f2fb98"
# ## 实战现场
#
# - [VeloxQuant-MLX #370](https://github.com/rajveer43/VeloxQuant-MLX/issues/370)：三种会淘汰的缓存都输出乱码，因为因果掩码把剩下的行当成了文本里连续的一段。原因见上面的“掩码”。
# - [keys_values #140](https://github.com/awslabs/keys_values/issues/140)：2026 年 7 月，会淘汰的缓存在真实模型上输出乱码，单元测试却全部通过。后来的一个 [PR](https://github.com/awslabs/keys_values/pull/142) 说明了原因：随机的玩具模型没有汇点，所以单元测试能通过。
# - 有一份在 DeepSeek-V3 上实现 H2O 的说明，题为《How It Works: Architectural Notes》，列出了这四种症状。它按旧版 transformers 的缓存来切片，之后的变化见[附录 A](A_errata.ipynb)。

# %% [markdown] key="next" lang="en"
# ## What comes next
#
# In these lessons we made memory free by evicting tokens. [Lesson 16](16_where_did_6gb_go.ipynb) is about memory that should be free and isn't: after `generate()`, 6 GB are missing. There are five suspects, and we test each with an experiment.
# %% [markdown] key="next" lang="zh" src="0d6cde3a"
# ## 下一课
#
# 这几课里，显存能空出来，是因为我们淘汰了 token。[第 16 课](16_where_did_6gb_go.ipynb)要追查的是本该空出来却没有空出来的显存：`generate()` 跑完之后少了 6 GB，到哪里去了？嫌疑对象有五个，每个做一次实验。
