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
second forward, only a row of probabilities for each token, and it works while text is generated.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from minikv.errors import ArgumentError, check_count
from minikv.eviction.hf.observe import TILE_ELEMENTS, Logits, join_group, probabilities
from minikv.eviction.hf.rotary import Rotary
from minikv.eviction.policies.budget import Budget
from minikv.eviction.policies.choices import Scope
from minikv.eviction.policies.policy import Needs, Policy, View, check_reduction


@dataclass(frozen=True)
class Echo(Policy):
    """The probability that a token is found when the word before it is asked again, ``shift`` places later.

    A token is scored once, when it arrives, against all tokens resident then. In a forward of many tokens these include
    later ones, so a prompt in one piece is scored a little better than one in small chunks. ``shift`` should lie within
    the lengths that the model was trained for; 0 leaves the query in its place, and needs no rotary embedding.
    ``group``: how the query heads of a KV head are joined.

    The scores are probabilities in all layers, so they can be compared across layers: see
    ``minikv.eviction.policies.layered``.

    A prompt costs more than its attention: the probabilities of n queries on n tokens are computed once more, without a
    fused kernel. At 4,096 tokens, 8 layers of 1,024 and one CPU thread that took 18 s beside a prefill of 14 s. A
    decode step costs one more row of logits.
    """

    needs: ClassVar[Needs] = Needs.ECHO
    shift: int = 64
    group: str = "max"

    def __post_init__(self) -> None:
        check_count("shift", self.shift, 0)
        check_reduction("group", self.group)

    @property
    def echo_shift(self) -> int:
        """As given."""
        return self.shift

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

        plain = Echo(self.shift, self.group)
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
    """
    batch, query_heads, asked, _ = query.shape
    tokens = key.shape[2]
    found = query.new_zeros(batch, query_heads, tokens, dtype=torch.float32)
    mask = None if valid is None else valid[:, None, None]
    rows = max(1, TILE_ELEMENTS // (batch * query_heads * tokens))
    for start in range(0, asked, rows):
        end = min(asked, start + rows)
        first = tokens - asked + start
        probs = probabilities(query[:, :, start:end], key, how, mask)
        found[..., first : first + end - start] = probs[..., first:].diagonal(dim1=2, dim2=3)
    found[..., tokens - asked :] *= counted[:, None]
    return join_group(found, heads, policy.over_group)


def turned_on(query: Tensor, rotary: Rotary, shift: int, rope_at_end: int | None) -> Tensor:
    """``query`` [B, Hq, n, D] as if it stood ``shift`` places later.

    ``rope_at_end``: how many of its last dimensions carry the position, as on MLA; None: its first ones do.
    """
    places = torch.full((1, query.shape[2]), shift, device=query.device)
    if rope_at_end is None:
        return rotary.turn(query, places)
    still, rope = query[..., :-rope_at_end], query[..., -rope_at_end:]
    return torch.cat((still, rotary.turn(rope, places)), -1)


def refuse_echo(policy: Policy) -> None:
    """Raise ``ArgumentError`` for a policy that needs an echo, where the cache does not see the queries."""
    if Needs.ECHO in policy.needs:
        raise ArgumentError("eviction_no_queries", policy=type(policy).__name__)
