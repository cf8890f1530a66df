"""Observers learn during a forward how much attention the cached tokens get. Lesson 14.

A decode's kernel computes it in the same pass, a prefill's in a second one over the keys. An observer that needs more
than sums gets the queries themselves. For a ``Batch`` without an ``observer`` nothing is computed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from minikv.kernels import PagedKV
from minikv.kernels.kv_tiles import latent_reader, readers


@dataclass(frozen=True)
class Watch:
    """One sum over the queries of a forward: the ``last`` ones of each sequence (None: all).

    ``weight`` gives each query's weight [T] for its age [T], int64, in queries before the newest one of its sequence
    (None: all count as 1).
    """

    last: int | None = None
    weight: Callable[[Tensor], Tensor | None] | None = None


class Observer(Protocol):
    """Gets the attention in each layer without a window, while a forward runs."""

    @property
    def watches(self) -> tuple[Watch, ...]:
        """The sums that it needs."""

    @property
    def asks(self) -> bool:
        """Whether it needs the queries."""

    def see(self, layer: int, sums: tuple[Tensor, ...], group: int) -> None:
        """Take float32 [B, Hkv, W * block_size] for each of ``watches``, summed over each KV head's ``group`` query
        heads.

        The rows are the sequences of the batch, the columns the places of their block tables; 0 past the length.
        """

    def ask(self, layer: int, asked: "Asked") -> None:
        """Take the queries of the forward in ``layer``, after ``see``; called where ``asks``."""


@dataclass(frozen=True, eq=False)
class Asked:
    """The queries ``query`` [T, Hq, D] of a forward in one layer, and the keys that they look at.

    ``scale``, ``softcap`` and ``sinks`` [Hq] as in ``paged_prefill``. ``latent``: the keys are latents with their rope
    part behind them, and so are the queries.
    """

    query: Tensor
    kv: PagedKV
    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None
    latent: bool = False

    def pairs(self, queries: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the queries [1, Hq, queries[i], D] of each sequence and its keys [1, H, lengths[i], D], in float32.

        The keys lie in the order of the block table, the new ones last. They are good until the next pair.
        """
        read = latent_reader(self.kv) if self.latent else readers(self.kv)[0].read
        size = self.kv.k.shape[1]
        for row, end in enumerate(accumulate(queries)):
            own = self.query[end - queries[row] : end].float()
            keys = read(self.kv.block_tables[row][: -(-lengths[row] // size)], slice(lengths[row]))
            yield own.transpose(0, 1)[None], keys.transpose(0, 1)[None]


def weighed_scores(scores: Tensor, watch: Watch) -> Tensor:
    """Weight the scores [B, Hkv, n] of a decode by its only, newest query."""
    weight = None if watch.weight is None else watch.weight(scores.new_zeros(1, dtype=torch.int64))
    return scores if weight is None else scores * weight


def weighed_lse(lse: Tensor, query_starts: Tensor, watch: Watch) -> Tensor:
    """Return [T, Hq] such that exp(logit - it) is the probability times its query's weight, which is not negative."""
    if watch.weight is None:
        return lse
    ends, row = query_starts[1:].long(), torch.arange(len(lse), device=lse.device)
    age = ends[torch.bucketize(row, ends, right=True)] - 1 - row
    weight = watch.weight(age)
    return lse if weight is None else lse - weight.to(lse.dtype).log().unsqueeze(-1)
