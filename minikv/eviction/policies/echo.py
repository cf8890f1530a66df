"""Echo: keep the tokens that the text's own words would find if they were asked again. Lesson 14b.

    text        ... ada paris sleeps near ben oslo ...
    later       ? ada                       the query of "ada" finds "paris": an induction head (Olsson et al., 2022)
    at once     the query of "ada" is there when "paris" arrives, one step too late to find it; echo applies it anyway

A question of the future cannot be observed, but its words stand in the text, and a layer's query of a word changes
little from one time to the next. So each token is scored by the query of the token before it, turned ``shift`` places
on as if it were asked that much later. The score is the attention probability that this query gives to the token, among
all resident ones. The turn matters: a query that only looks for its neighbour finds nothing at the new distance, a
query that looks for a meaning does. Other copies of the same answer share the probability, so repetitions score low.

KVzip (Kim et al., 2025, arXiv:2505.23416) reads the context again and observes the attention; Compactor (Chari and Van
Durme, 2025, arXiv:2507.08143) uses attention to later tokens. Echo is a cheap relative for one token ahead: it needs no
second forward, only a few logits for each token, and it works while text is generated.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from minikv.errors import ArgumentError, check_count
from minikv.eviction.hf.buffers import take
from minikv.eviction.hf.observe import Logits, capped, join_group, logits_of
from minikv.eviction.hf.rotary import Rotary
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.choices import Scope
from minikv.eviction.policies.policy import Needs, Policy, View, check_reduction

TILE_ELEMENTS = 2**18  # logits at a time: 1 MiB of float32, which a core's own cache holds


@dataclass(frozen=True)
class Echo(Policy):
    """The probability that a token is found when the word before it is asked again, ``shift`` places later.

    A token is scored once, when it arrives, against all tokens resident then. In a forward of many tokens these include
    later ones, so a prompt in one piece is scored a little better than one in small chunks. ``shift`` should lie within
    the lengths that the model was trained for; 0 leaves the query in its place, and needs no rotary embedding.
    ``group``: how the query heads of a KV head are joined.

    The scores are probabilities in all layers, so they can be compared across layers: see
    ``minikv.eviction.policies.layered``.

    A probability is the exponential of one logit over a sum of them. The logit is exact; the sum is estimated from
    ``keys`` resident tokens, evenly spaced, and exact up to so many tokens. So a prompt of n tokens costs n x ``keys``
    more logits. At 2,048 tokens, 4 layers of 512 and one CPU thread 256 keys took 5 to 8 % of a prefill, 512 keys 9 to
    16 %, and all of them 54 %. A sample of an eighth lost no recall in documents of 513 tokens; on MLA a sample of half
    cost 3.6 points in those of 193, which 256 keys hold whole.
    """

    needs: ClassVar[Needs] = Needs.ECHO
    shift: int = 64
    group: str = "max"
    keys: int = 256

    def __post_init__(self) -> None:
        check_count("shift", self.shift, 0)
        check_count("keys", self.keys, 2)
        check_reduction("group", self.group)

    @property
    def echo_shift(self) -> int:
        """As given."""
        return self.shift

    @property
    def echo_keys(self) -> int:
        """As given."""
        return self.keys

    @property
    def over_group(self) -> str:
        """As given."""
        return self.group

    def score(self, view: View) -> Tensor:
        """[B, H, S] in [0, 1] for ``group`` "mean" and "max"; 0 for a text's first token."""
        return view.state


@dataclass(frozen=True)
class EchoLayers(Echo):
    """Echo, with budgets of layers that an install measures on ``text``, token ids like those that will come.

    Without a text it takes random tokens: enough to tell a layer that looks at its neighbours from one that recalls. On
    the tiny models they lead to the budgets of their own texts within two tokens. The best ``budget`` tokens a
    layer decide, or the best quarter of the text where that is fewer; a larger budget is shared out in proportion.

    Besides what ``Echo`` costs, an install costs a forward of the text, or of 1,024 random tokens.
    """

    text: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for place, token in enumerate(self.text):
            check_count(f"text[{place}]", token, 0)

    def fitted(self, model: Any, plan: Budget, scope: Scope) -> Policy:
        """``Layered`` with the measured budgets; they need no measurement where ``plan`` has no heavy hitters."""
        from minikv.eviction.policies.layered import Layered, measure_layers, share_out

        plain = Echo(self.shift, self.group, self.keys)
        if not plan.budget:
            return plain
        embedding = model.get_input_embeddings()
        tokens = torch.tensor([self.text]) if self.text else _random_texts(embedding.num_embeddings)
        quarter = max(1, tokens.shape[1] // 4)
        shares = measure_layers(
            model,
            tokens.to(embedding.weight.device),
            policy=plain,
            budget=min(plan.budget, quarter),
            n_sink=min(plan.n_sink, quarter),
            n_recent=min(plan.n_recent, quarter),
            scope=scope,
        )
        return Layered(plain, share_out(plan.budget * len(shares), shares))


def _random_texts(vocabulary: int) -> Tensor:
    """[4, 256] token ids, the same each time."""
    return torch.randint(vocabulary, (4, 256), generator=torch.Generator().manual_seed(0))


def echo_stats(
    query: Tensor,
    counted: Tensor,
    key: Tensor,
    how: Logits,
    *,
    valid: Tensor | None,
    policy: Policy,
    heads: int,
) -> Tensor:
    """What the queries [B, Hq, n, D] give to the last n of the keys [B, Hk, S, D], each to one: [B, heads, S] float32.

    Query i is that of the token before key S - n + i, already turned; all other keys get 0. ``counted`` [B, n] bool:
    False for the queries of padding, which give 0. ``valid`` [B, S] bool: False for keys of padding; None: all are
    valid. ``heads``: the heads of the cache, 1 for latents.

    The logit of the key itself is exact. The sum over the others is that of ``policy.echo_keys`` of them, times their
    share; with as many keys as there are, or more, it is exact too.
    """
    batch, query_heads, asked, _ = query.shape
    first, groups = key.shape[2] - asked, key.shape[1]
    slots, drawn = _drawn(valid, key, policy.echo_keys)
    known = drawn.sum(-1, keepdim=True)
    every = key.shape[2] if valid is None else valid.sum(-1, keepdim=True).clamp(min=2)
    sample = take(key, slots.unsqueeze(1).expand(batch, groups, -1))
    itself = slots - first  # the query to which a drawn key is its own
    rows = max(1, TILE_ELEMENTS // (batch * query_heads * slots.shape[1]))
    found = query.new_zeros(batch, query_heads, key.shape[2], dtype=torch.float32)
    for start in range(0, asked, rows):
        end = min(asked, start + rows)
        part = query[:, :, start:end]
        sampled = logits_of(part, sample, how)
        if valid is not None:
            sampled.masked_fill_(~drawn[:, None, None], -torch.inf)
        at = itself - start
        inside, at = drawn & (at >= 0) & (at < end - start), at.clamp(0, end - start - 1)
        entry = at[:, None, None].expand(-1, query_heads, 1, -1)
        without = sampled.gather(2, entry).masked_fill_(inside[:, None, None], -torch.inf)
        sampled.scatter_(2, entry, without)
        others = known.expand(-1, end - start).scatter_add(1, at, -inside.long())
        share = (every - 1) / others.clamp(min=1)
        total = sampled.logsumexp(-1) + share.log().unsqueeze(1)
        if how.sinks is not None:
            total = torch.logaddexp(total, how.sinks.float().view(1, -1, 1))
        mine = part.float().unflatten(1, (groups, -1)) * key[:, :, None, first + start : first + end].float()
        logit = capped(mine.sum(-1).flatten(1, 2) * how.scale, how)
        found[..., first + start : first + end] = torch.sigmoid(logit - total)
    found[..., first:] *= counted[:, None]
    return join_group(found, heads, policy.over_group)


def _drawn(valid: Tensor | None, key: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The slots [B, m] int64 of at most ``count`` valid keys of [B, H, S, D], evenly spaced, and which of them count.

    A row with fewer valid keys than others draws the same ones as without them: its last columns do not count.
    """
    batch, tokens = key.shape[0], key.shape[2]
    place = torch.arange(min(count, tokens), device=key.device)
    if valid is None:
        return ((2 * place + 1) * tokens // (2 * len(place))).expand(batch, -1), place.expand(batch, -1) >= 0
    every = valid.sum(-1, keepdim=True)
    used = every.clamp(max=len(place))
    ranks = (2 * place + 1) * every // (2 * used.clamp(min=1))
    ordered = (~valid).long().argsort(dim=-1, stable=True)  # the valid ones first
    return ordered.gather(-1, ranks.clamp(max=tokens - 1)), place < used


def turned_on(query: Tensor, rotary: Rotary, shift: int, rope_at_end: int | None) -> Tensor:
    """``query`` [B, Hq, n, D] as if it stood ``shift`` places later.

    ``rope_at_end``: how many of its last dimensions carry the position, as on MLA; None: its first ones do.
    """
    places = torch.full((1, 1), shift, device=query.device)
    if rope_at_end is None:
        return rotary.turn(query, places)
    still, rope = query[..., :-rope_at_end], query[..., -rope_at_end:]
    return torch.cat((still, rotary.turn(rope, places)), -1)


def refuse_echo(policy: Policy) -> None:
    """Raise ``ArgumentError`` for a policy that reads queries: a trace has none."""
    if policy.needs & Needs.QUERIES:
        raise ArgumentError("eviction_no_queries", policy=type(policy).__name__)
