"""The lengths of cached keys and the direction of their mean, kept while tokens come and go. Lesson 14.

KeyDiff compares every key with the mean of all keys of length 1. A new sum at every eviction would read the whole cache
twice, while a step adds one key and removes one. A running sum in floating point would collect a rounding error with
each. So the sum is kept in whole numbers, in units of 2^-40: it is exact, however many tokens have come and gone, and
in whatever order.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

UNIT = 2.0**40
"""What 1 counts in the sum. Below 2^63 / 2^40 = 8,388,608 resident tokens the sum cannot overflow."""

LEAST = 1e-12  # no key is shorter: a key of zeros has no direction


def key_lengths(keys: Tensor, valid: Tensor | None = None) -> Tensor:
    """The L2 norms [B, H, n] float32 of ``keys`` [B, H, n, D], at least ``LEAST``.

    ``valid`` [B, n] bool: False for padding, which gets length infinity: its unit key is 0 and adds nothing to the sum.
    """
    lengths = keys.float().norm(dim=-1).clamp(min=LEAST)
    return lengths if valid is None else lengths.masked_fill(~valid[:, None], torch.inf)


def mean_direction(keys: Tensor, lengths: Tensor, valid: Tensor) -> Tensor:
    """[B, H, D] float32 of length 1: where the keys [B, H, n, D] of length 1 point on average. ``valid`` [B, n]."""
    summed = torch.matmul((valid[:, None] / lengths).unsqueeze(-2), keys.float())  # no copy of float32 keys
    return _direction(summed.squeeze(-2))


@dataclass(frozen=True, eq=False)
class UnitSum:
    """``total`` [B, H, D] int64: the sum of the resident keys of length 1, in ``UNIT``."""

    total: Tensor

    @classmethod
    def of(cls, keys: Tensor, lengths: Tensor) -> "UnitSum":
        """Of ``keys`` [B, H, n, D] with ``lengths`` [B, H, n].

        A NaN becomes some whole number: the sum is wrong while that key is cached, and right again afterwards.
        """
        units = (keys * (UNIT / lengths).unsqueeze(-1)).long()
        return cls(units.squeeze(2) if units.shape[2] == 1 else units.sum(2))

    def __add__(self, other: "UnitSum") -> "UnitSum":
        return UnitSum(self.total + other.total)

    def __sub__(self, other: "UnitSum") -> "UnitSum":
        return UnitSum(self.total - other.total)

    def rows(self, index: Tensor) -> "UnitSum":
        """The sums of the rows ``index`` of the batch."""
        return UnitSum(self.total[index])

    @cached_property
    def direction(self) -> Tensor:
        """[B, H, D] float32 of length 1; zeros where the sum is zero."""
        return _direction(self.total.float())


class MeanKey:
    """The ``UnitSum`` of a layer from its first single-token step on; a change of many tokens begins it anew."""

    def __init__(self) -> None:
        self.sum: UnitSum | None = None

    def came(self, keys: Tensor, lengths: Tensor) -> None:
        """Add tokens that have joined the others. Shapes as in ``UnitSum.of``."""
        if self.sum is not None and keys.shape[2] == 1:
            self.sum = self.sum + UnitSum.of(keys, lengths)
        else:
            self.sum = None

    def went(self, keys: Tensor, lengths: Tensor) -> None:
        """Subtract tokens that are gone."""
        if self.sum is not None:
            self.sum = self.sum - UnitSum.of(keys, lengths)

    def rows(self, index: Tensor) -> None:
        """Keep the rows ``index`` of the batch, in that order."""
        self.sum = None if self.sum is None else self.sum.rows(index)

    def forget(self) -> None:
        """Drop the sum: the resident tokens have changed."""
        self.sum = None

    def direction(self, keys: Tensor, lengths: Tensor, valid: Tensor, *, keep: bool) -> Tensor:
        """[B, H, D]: the mean direction of all keys [B, H, S, D], for a layer without a sum. ``keep``: begin a sum for
        later steps; after a prompt that loses most of its tokens it does not pay.
        """
        if not keep:
            return mean_direction(keys, lengths, valid)
        self.sum = UnitSum.of(keys, lengths)
        return self.sum.direction


def _direction(x: Tensor) -> Tensor:
    """``x`` [..., D] at length 1; zeros stay zeros."""
    return x / x.norm(dim=-1, keepdim=True).clamp(min=LEAST)
