"""Policies of the literature that read keys and values alone: no attention is observed. Lesson 14.

leverage    Compactor (Chari and Van Durme, 2025, arXiv:2507.08143): keys that the others do not span
cur         CurDKV (arXiv:2509.15038): the length of a key times that of its value
lagkv       LagKV (arXiv:2504.04704): tokens that are spread unlike those after them
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from minikv.errors import ArgumentError, check_count
from minikv.eviction.policies.policy import Needs, Policy, View


@dataclass(frozen=True)
class Leverage(Policy):
    """The statistical leverage of a key among the resident ones: how little the others say about it.

    With the keys as rows of K the score is the diagonal of K (K'K + r I)^-1 K', exact, where Compactor draws a sketch;
    r is ``ridge`` times the mean of the diagonal of K'K. Compactor takes keys before their rotation, this policy takes
    them as cached, so that it runs on blocks too; with ``positions="reindexed"`` both are the same.

    An eviction costs S x D x D products a head, D / queries a head times as much as a step's attention: after a prompt
    that is little, in decoding give ``evict_every``. On MLA it reads the latents, and keeps less than ``KeyDiff``.
    """

    ridge: float = 0.01

    def __post_init__(self) -> None:
        if not isinstance(self.ridge, int | float) or not 0 < self.ridge <= 1:
            raise ArgumentError("out_of_range", what="ridge", value=self.ridge, low=0, high=1)

    def score(self, view: View) -> Tensor:
        """[B, H, S] in [0, 1]; 0 for padding."""
        keys = view.keys.float() * view.valid[:, None, :, None]
        gram = keys.transpose(2, 3) @ keys
        # Keys of zeros have no direction: any ridge above 0 gives them the score 0.
        level = gram.diagonal(dim1=2, dim2=3).mean(-1).clamp(min=1e-12) * self.ridge
        eye = torch.eye(gram.shape[-1], device=gram.device)
        factor = torch.linalg.cholesky(gram + level[..., None, None] * eye)
        half = torch.linalg.solve_triangular(factor, keys.transpose(2, 3), upper=False)
        return half.pow(2).sum(2)


@dataclass(frozen=True)
class CUR(Policy):
    """The squared length of a key times that of its value: a row's leverage in a decomposition, approximately.

    It keeps the perplexity of running text as no other here, and fewer facts than ``KeyDiff``. On MLA, where the two
    tensors are a latent and a rope part, it keeps nearly none.
    """

    def score(self, view: View) -> Tensor:
        """[B, H, S]."""
        return view.keys.float().pow(2).sum(-1) * view.values.float().pow(2).sum(-1)


@dataclass(frozen=True)
class LagKV(Policy):
    """A token scores by how widely its channels spread, measured by the tokens of the partition after its own.

    Resident tokens are cut into partitions of ``lag``, from the newest backwards. A channel of a key or value is scaled
    to 0 at the least and 1 at the largest of the next partition; the newest is its own measure. The standard deviation
    over the channels, as a softmax over the partition, is a token's score: the mean of its key's and its value's. Each
    partition so has an equal share of all scores. The paper keeps the newest two partitions whole; here ``n_recent``
    says what stays.
    """

    needs: ClassVar[Needs] = Needs.ORDER
    lag: int = 16

    def __post_init__(self) -> None:
        check_count("lag", self.lag, 2)

    def score(self, view: View) -> Tensor:
        """[B, H, S] in [0, 1]; 0 for padding."""
        order = view.valid.long().argsort(dim=-1, stable=True)  # padding first
        ahead = -view.valid.shape[-1] % self.lag
        counts = functional.pad(view.valid.gather(-1, order), (ahead, 0)).unflatten(-1, (-1, self.lag))
        shares = (self._shares(states, order, ahead, counts) for states in (view.keys, view.values))
        score = sum(shares, torch.zeros(())).flatten(2)[..., ahead:] / 2
        return torch.zeros_like(score).scatter(-1, order[:, None].expand_as(score), score)

    def _shares(self, states: Tensor, order: Tensor, ahead: int, counts: Tensor) -> Tensor:
        """[B, H, n, lag]: the shares of ``states`` [B, H, S, D] in their partitions; ``counts`` [B, n, lag]."""
        index = order[:, None, :, None].expand_as(states)
        parts = functional.pad(states.float().gather(2, index), (0, 0, ahead, 0)).unflatten(2, (-1, self.lag))
        padding = ~counts[:, None, ..., None]
        least = _next(parts.masked_fill(padding, torch.inf).amin(3, keepdim=True))
        most = _next(parts.masked_fill(padding, -torch.inf).amax(3, keepdim=True))
        spread = ((parts - least) / (most - least).clamp(min=1e-6)).std(-1)
        # A partition that is not full has a share of its size.
        shares = (
            spread.masked_fill(padding[..., 0], -torch.inf).softmax(-1)
            * counts.float().mean(-1)[:, None, :, None]
        )
        return shares.masked_fill(padding[..., 0], 0)


def _next(parts: Tensor) -> Tensor:
    """``parts`` [B, H, n, ...] of the partition after each; the last one's own."""
    return torch.cat((parts[:, :, 1:], parts[:, :, -1:]), 2)
