"""Eviction of whole blocks: which of them stay. Tensors in, tensors out. Lesson 14.

A block is dropped from the table that all layers of a kind share, so all layers and heads forget the same tokens, and
the good ones of a block go or stay with the bad. In return nothing is moved, and what is kept can go on being shared.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minikv.eviction.budget import Budget


def least_capacity(budget: Budget, block_size: int) -> int:
    """The smallest capacity under which sinks and recent tokens always fit in whole blocks, wherever these begin."""
    return -(-budget.n_sink // block_size) * block_size + budget.n_recent + block_size - 1


def token_ranks(scores: Sequence[Tensor]) -> Tensor:
    """float32 [B, S] from the scores [B, H, S] of several layers: how good each token is, 0 to 1, in their mean.

    Layers score in units of their own, so of each only the order counts: the share of its tokens that are worse, and
    half of those that are equal.
    """
    means = torch.stack([score.float().mean(1) for score in scores])  # [layers, B, S]
    ordered = means.sort(-1).values
    worse, not_better = (torch.searchsorted(ordered, means, right=right) for right in (False, True))
    return (worse + not_better - 1).float().mean(0) / (2 * max(1, means.shape[-1] - 1))


def blocks_to_keep(
    ranks: Tensor, positions: Tensor, budget: Budget, block_size: int, per_block: str
) -> Tensor:
    """bool [B, blocks]: which blocks stay, so that at most ``capacity`` tokens do; the last one always.

    ``ranks`` and ``positions`` [B, S] of the tokens in the order of the table. A block counts as much as the best of
    its tokens ("max"), or all of them together ("sum"); one with a sink or a recent token stays whatever it counts.
    Of equal ones the earlier stays. ``capacity`` has to be ``least_capacity`` or more.
    """
    batch, length = ranks.shape
    full = (length - 1) // block_size
    tail = length - full * block_size
    whole = ranks[:, : full * block_size].unflatten(1, (full, block_size))
    worth = whole.amax(-1) if per_block == "max" else whole.sum(-1)
    newest = positions.amax(-1, keepdim=True)
    protected = (positions < budget.n_sink) | (positions > newest - budget.n_recent)
    protected = protected[:, : full * block_size].unflatten(1, (full, block_size)).any(-1)
    order = worth.masked_fill(protected, torch.inf).argsort(dim=-1, descending=True, stable=True)
    most = min(full, (budget.capacity - tail) // block_size)
    keep = torch.zeros(batch, full + 1, dtype=torch.bool, device=ranks.device)
    keep.scatter_(1, order[:, :most], True)
    keep[:, full] = True
    return keep
