"""The online softmax: attention over keys that come one tile at a time, no tile kept. Lesson 10.

For a row of logits x_1 … x_n and values v_1 … v_n, attention is sum(exp(x_i) v_i) / sum(exp(x_i)). The exponentials
overflow unless the largest logit m is taken off first, and m is not known before the last tile. So the row keeps

    m   the largest logit so far
    l   the sum of exp(x_i - m) so far
    a   the sum of exp(x_i - m) v_i so far

and where a tile brings a larger m', what was summed is multiplied by exp(m - m'). At the end out = a / l and
lse = m + log(l). (Milakov and Gimelshein 2018, arXiv 1805.02867; FlashAttention, arXiv 2205.14135.)
"""

from copy import copy

import torch
from torch import Tensor

# The m of a row without a key so far. It is finite, so that exp(-inf - m) is 0; exp(-inf - -inf) would be NaN.
LOWEST = torch.finfo(torch.float32).min


class OnlineSoftmax:
    """Attention of ``shape`` queries, [..., heads, rows], over tiles of keys; everything in float32."""

    def __init__(self, shape: tuple[int, ...], dim: int, device: torch.device):
        self.largest = torch.full((*shape, 1), LOWEST, device=device)
        self.total = torch.zeros(*shape, 1, device=device)
        self.sum = torch.zeros(*shape, dim, device=device)

    def __getitem__(self, index: int) -> "OnlineSoftmax":
        """Return the queries at ``index`` of the first dimension, as views: ``add`` on them changes this object."""
        part = copy(self)
        part.largest, part.total, part.sum = self.largest[index], self.total[index], self.sum[index]
        return part

    def add(self, logits: Tensor, values: Tensor) -> None:
        """Add one tile: ``logits`` [heads, rows, c], where -inf hides a key, and ``values`` [heads, c, dim].

        ``logits`` is overwritten.
        """
        # The maximum m becomes m'; l and a are multiplied by exp(m - m'), and the tile's exp(x_i - m') are added.
        largest = torch.maximum(self.largest, logits.amax(-1, keepdim=True))
        weights = logits.sub_(largest).exp_()
        rescale = torch.exp(self.largest - largest)
        self.total.mul_(rescale).add_(weights.sum(-1, keepdim=True))
        self.sum.mul_(rescale)
        torch.baddbmm(self.sum, weights, values, out=self.sum)
        self.largest.copy_(largest)

    def add_sinks(self, sinks: Tensor) -> None:
        """Add logits [heads, rows] that take their share of the probability and have no value."""
        sinks = sinks.to(torch.float32).unsqueeze(-1)
        largest = torch.maximum(self.largest, sinks)
        rescale = torch.exp(self.largest - largest)
        self.total.mul_(rescale).add_(torch.exp(sinks - largest))
        self.sum.mul_(rescale)
        self.largest.copy_(largest)

    def finish(self) -> tuple[Tensor, Tensor]:
        """Return ``out`` [..., heads, rows, dim] and ``lse`` [..., heads, rows]. A row without a key has 0 and -inf."""
        empty = self.total == 0
        out = self.sum / self.total.masked_fill(empty, 1)
        return out, (self.largest + self.total.log()).squeeze(-1)  # log(0) = -inf


def merge_splits(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Merge several parts of one softmax: ``out`` [splits, ..., dim], ``lse`` [splits, ...] -> [..., dim], [...].

    Each part is weighted by exp(lse - lse of the whole), its share of the probability. An empty part has lse -inf.
    """
    whole = torch.logsumexp(lse, 0)
    share = torch.exp(lse - whole.masked_fill(whole == -torch.inf, 0))
    return (share.unsqueeze(-1) * out).sum(0), whole
