"""Echo: keep the tokens that would answer if the text's own words were asked again. Lesson 14.

    text        ... ada paris sleeps near ben oslo ...
    later       ? ada                       the query of "ada" finds "paris": an induction head (Olsson et al., 2022)
    at once     the query of "ada" is there when "paris" arrives, one step too late to find it; we let it look

A question that nobody has asked yet cannot be observed, but its words stand in the text, and a layer's query of a word
looks much the same the second time. So each token is scored by the query of the token before it, turned ``shift``
places on as if it were asked that much later: the attention probability that it gives to the token, among all that are
resident. Moving it matters: what only looks at its neighbour, whatever that is, finds nothing there any more, and what
looks for a meaning does. Other copies of the same answer take their part of the probability, so repetitions score low.

Reading the context again and observing the attention is KVzip (Kim et al., 2025, arXiv:2505.23416), attention to later
tokens is Compactor's (Chari and Van Durme, 2025, arXiv:2507.08143); this is their cheap relative for one token ahead:
no second forward, a row of probabilities for each token, and it works while text is generated.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from minikv.errors import ArgumentError, check_count
from minikv.eviction.hf.observe import TILE_ELEMENTS, Logits, join_group, probabilities
from minikv.eviction.hf.rotary import Rotary
from minikv.eviction.policies.policy import Needs, Policy, View, check_reduction


@dataclass(frozen=True)
class Echo(Policy):
    """The probability that a token is found when the word before it is asked again, ``shift`` places later.

    A token is scored once, when it arrives, against all that is resident then: in a forward of many tokens the later
    ones count too, so a prompt that comes in one piece is scored a little better than in small chunks. ``shift`` should
    lie within the lengths that the model was trained for; 0 leaves the query in its place, and needs no rotary
    embedding. ``group``: how the query heads of a KV head are joined.

    The scores are probabilities of one kind in all layers, so they also say which layers need how much: see
    ``minikv.eviction.policies.layered``.
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
    valid. ``heads``: those of the cache, 1 for latents.
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
    """Raise ``ArgumentError`` for a policy that needs an echo, where queries are not at hand."""
    if Needs.ECHO in policy.needs:
        raise ArgumentError("eviction_no_queries", policy=type(policy).__name__)
