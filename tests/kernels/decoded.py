"""Decodes of made-up sequences on shuffled blocks, and dense attention in a few lines to compare them with."""

from dataclasses import dataclass

import torch
from torch import Tensor

from minikv.kernels import PagedKV
from minikv.kernels.attention import Attention

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 8, 4
LENGTHS = [13, 1, 40, 12, 0, 38, 14, 16, 37, 2, 15, 1]
SINKS = torch.linspace(-1, 2, HEADS)
CLOSE = {"atol": 2e-5, "rtol": 2e-5}


@dataclass
class Case:
    """Sequences on shuffled blocks; NaN stands wherever none of them has a token."""

    lengths: list[int]
    dtype: torch.dtype = torch.float32

    def __post_init__(self):
        generator = torch.Generator().manual_seed(5)
        counts = [-(-length // BLOCK) for length in self.lengths]
        order = torch.randperm(sum(counts) + 3, generator=generator).int()
        self.tables = torch.full((len(counts), max(counts) + 1), -1, dtype=torch.int32)
        shape = (len(order), BLOCK, KV_HEADS, DIM)
        self.k, self.v = (torch.full(shape, torch.nan, dtype=self.dtype) for _ in range(2))
        taken = 0
        for row, (length, count) in enumerate(zip(self.lengths, counts, strict=True)):
            self.tables[row, :count] = order[taken : taken + count]
            for place in range(length):
                block = self.tables[row, place // BLOCK]
                for cache in (self.k, self.v):
                    cache[block, place % BLOCK] = torch.randn(KV_HEADS, DIM, generator=generator).to(
                        self.dtype
                    )
            taken += count
        self.query = torch.randn(len(counts), HEADS, DIM, generator=generator).to(self.dtype)

    def kv(self, rows: list[int] | None = None) -> PagedKV:
        lengths = torch.tensor(self.lengths, dtype=torch.int32)
        rows = list(range(len(lengths))) if rows is None else rows
        return PagedKV(self.k, self.v, self.tables[rows], lengths[rows])

    def tokens(self, row: int) -> tuple[Tensor, Tensor]:
        """K and V [tokens, KV_HEADS, DIM] of a sequence, float64."""
        places = range(self.lengths[row])
        k, v = (
            [cache[self.tables[row, place // BLOCK], place % BLOCK] for place in places]
            for cache in (self.k, self.v)
        )
        return torch.stack(k).double(), torch.stack(v).double()


def dense(case: Case, row: int, scale: float, window=None, softcap=None, sinks=None) -> Attention:
    """Attention of one query [HEADS, DIM] in a few lines: out, lse and scores."""
    width = case.tables.shape[1] * BLOCK
    if not case.lengths[row]:
        lse = torch.full((HEADS,), -torch.inf) if sinks is None else sinks
        return Attention(torch.zeros(HEADS, DIM), lse, torch.zeros(KV_HEADS, width))
    k, v = (each.repeat_interleave(HEADS // KV_HEADS, 1) for each in case.tokens(row))
    logits = torch.einsum("hd,nhd->hn", case.query[row].double(), k) * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if window is not None:
        logits[:, : max(0, len(k) - window)] = -torch.inf
    whole = logits if sinks is None else torch.cat([logits, sinks.double()[:, None]], 1)
    weights = whole.softmax(-1)[:, : len(k)]
    scores = torch.zeros(KV_HEADS, width)
    scores[:, : len(k)] = weights.view(KV_HEADS, -1, len(k)).sum(1)
    return Attention(torch.einsum("hn,nhd->hd", weights, v), whole.logsumexp(-1), scores)


def assert_dense(case: Case, found: Attention, close=CLOSE, **options) -> None:
    for row in range(len(case.lengths)):
        expected = dense(case, row, **options)
        for name in Attention._fields:
            if getattr(found, name) is not None:
                ours, right = getattr(found, name)[row].float(), getattr(expected, name).float()
                torch.testing.assert_close(
                    ours, right, **close, msg=lambda text, name=name, row=row: f"{name} of {row}: {text}"
                )
