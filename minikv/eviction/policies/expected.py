"""ExpectedAttention (NVIDIA, 2025, arXiv:2510.00636): what queries that are still to come would look at. Lesson 14.

The queries of a layer, before their rotation, are taken for draws from one normal distribution. The text so far tells
its mean m and covariance C. Turned on to the places behind the text, and averaged over them, a query gives key k
the expected weight E exp(q.k s) = exp(s m.k + s s k'Ck / 2), with the scale s. No question has to be known.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from minikv.errors import ArgumentError, check_count
from minikv.eviction.hf.observe import Logits, join_group
from minikv.eviction.hf.rotary import Rotary
from minikv.eviction.policies.policy import Needs, Policy, View

SKIPPED = 4


@dataclass(frozen=True)
class ExpectedAttention(Policy):
    """The share of a later query's attention that a token may expect, times the length of its value.

    ``future``: so many places behind the text are averaged over. The mean is over the query heads of a KV head. The
    first four queries of a text are outliers and do not count. Softcaps and sink logits are left out. On MLA the
    length is that of the latent, from which the values are made.

    A prompt of n tokens costs n x D x D products a query head for the covariance, and as many again where it evicts: a
    small part of its attention once n is above D. Each later token updates both.
    """

    needs: ClassVar[Needs] = Needs.EXPECTED
    future: int = 512

    def __post_init__(self) -> None:
        check_count("future", self.future)

    @property
    def expected_over(self) -> int:
        """As given."""
        return self.future

    def score(self, view: View) -> Tensor:
        """[B, H, S]."""
        if view.window_probs is None:
            raise ArgumentError("eviction_no_window", layer=view.layer)
        return view.window_probs * (view.keys if view.latent else view.values).float().norm(dim=-1)


def query_moments(query: Tensor, places: Tensor, rotary: Rotary, rope_at_end: int | None) -> Tensor:
    """[B, Hq, D + 1, D + 1] float32: the sum over queries of (q, 1)(q, 1)', which has their number and their sum too.

    ``query`` [B, Hq, T, D] as turned to ``places`` [B, T] int64, -1 for padding; it is turned back first. Those of
    places below ``SKIPPED`` do not count. ``rope_at_end``: how many of the last dimensions turn; None: the first do.
    """
    counted = (places >= SKIPPED)[:, None, :, None].float()
    still, rope = _parts(query.float(), rope_at_end)
    plain = torch.cat((still, rotary.turn(rope, places.clamp(min=0), back=True)), -1)
    rows = torch.cat((plain, torch.ones_like(plain[..., :1])), -1) * counted
    return rows.transpose(2, 3) @ rows


def expected_stats(
    moments: Tensor,
    places: Tensor,
    key: Tensor,
    how: Logits,
    rotary: Rotary,
    rope_at_end: int | None,
    *,
    valid: Tensor,
    heads: int,
) -> Tensor:
    """What a later query gives to the keys [B, Hk, S, D] as a mean over ``places`` [B, n]: [B, heads, S] float32.

    ``moments``: see ``query_moments``. ``valid`` [B, S] bool: False for padding, which gets 0.
    """
    count = moments[..., -1:, -1:].clamp(min=1)
    mean = moments[..., -1:, :-1] / count
    spread = moments[..., :-1, :-1] / count - mean.transpose(2, 3) @ mean

    def turned(x: Tensor) -> Tensor:
        still, rope = _parts(x, rope_at_end)
        return torch.cat((still, rotary.turn(rope, places, mean=True)), -1)

    mean, spread = turned(mean), turned(turned(spread).transpose(2, 3))
    groups = key.shape[1]
    keys = key.float().unsqueeze(2)
    along = (keys * mean.unflatten(1, (groups, -1))).sum(-1)
    across = (keys @ spread.unflatten(1, (groups, -1)) * keys).sum(-1)
    logits = (along * how.scale + across * (how.scale**2 / 2)).flatten(1, 2)
    least = torch.finfo(torch.float32).min
    return join_group(logits.masked_fill(~valid[:, None], least).softmax(-1), heads, "mean")


def _parts(x: Tensor, rope_at_end: int | None) -> tuple[Tensor, Tensor]:
    """The dimensions of ``x`` that carry no position, and the others, of which the first ones do."""
    at = 0 if rope_at_end is None else x.shape[-1] - rope_at_end
    return x[..., :at], x[..., at:]
