"""Short sequences decoded together: what each gets is what it gets alone, whatever stands in the others' blocks."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from minikv.kernels import PagedKV, decode_groups, paged_decode

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 8, 4
CLOSE = {"atol": 2e-3, "rtol": 2e-3}
HALF = [torch.float16, torch.bfloat16]  # converted; multiplied as it is stored


@dataclass
class Case:
    """Sequences on shuffled blocks; NaN stands wherever none of them has a token."""

    lengths: list[int]
    dtype: torch.dtype = torch.float16

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

    def decode(self, rows: list[int], **options) -> Tensor:
        lengths = torch.tensor(self.lengths, dtype=torch.int32)[rows]
        return paged_decode(
            self.query[rows], PagedKV(self.k, self.v, self.tables[rows], lengths), **options
        ).out


@pytest.fixture
def one_by_one(monkeypatch):
    """How many sequences were left to be decoded one by one, call by call."""
    counts: list[int] = []
    real = decode_groups.decode_in_groups

    def counted(*args, **kwargs):
        rest = real(*args, **kwargs)
        counts.append(len(rest))
        return rest

    monkeypatch.setattr("minikv.kernels.attention.decode_in_groups", counted)
    return counts


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("window", [None, 1, 5, 11, 100])
def test_together_is_as_alone(dtype, window, one_by_one):
    case = Case([13, 1, 40, 12, 0, 38, 14, 16, 37, 2, 15, 1], dtype)
    everyone = list(range(len(case.lengths)))
    close = CLOSE if dtype is torch.float16 else {"atol": 2e-2, "rtol": 2e-2}
    together = case.decode(everyone, scale=0.4, window=window)
    assert one_by_one[0] < len(everyone) / 2
    lengths = torch.tensor(case.lengths)
    exact = PagedKV(case.k.float(), case.v.float(), case.tables, lengths)  # float32 takes another way
    expected = paged_decode(case.query.float(), exact, scale=0.4, window=window).out
    torch.testing.assert_close(together.float(), expected, **close)
    assert not together[4].any()


@pytest.mark.parametrize("lengths", [[0, 0], [1, 0], [3, 90], [7, 7], [90, 1, 1, 1]], ids=str)
def test_whoever_finds_no_group_is_decoded_too(lengths):
    case = Case(lengths)
    together = case.decode(list(range(len(lengths))), scale=0.4)
    for row in range(len(lengths)):
        torch.testing.assert_close(together[[row]], case.decode([row], scale=0.4), **CLOSE)


def test_a_group_is_never_larger_than_a_tile(monkeypatch, one_by_one):
    token_bytes = 4 * KV_HEADS * 2 * DIM
    case = Case([8] * 5 + [30, 30])
    # Two of the short, none of the long
    monkeypatch.setattr(decode_groups, "TILE_BYTES", 4 * BLOCK * token_bytes)
    together = case.decode(list(range(7)), scale=0.4)
    assert one_by_one == [3]
    for row in range(7):
        torch.testing.assert_close(together[[row]], case.decode([row], scale=0.4), **CLOSE)


def test_what_is_stored_with_scales_is_decoded_with_them(one_by_one):
    case = Case([9, 10, 11, 12])
    generator = torch.Generator().manual_seed(6)
    shape = case.k.shape
    k, v = (torch.randint(-127, 128, shape, dtype=torch.int8, generator=generator) for _ in range(2))
    scales = [torch.rand(shape[:3], generator=generator) / 50 for _ in range(2)]
    lengths = torch.tensor(case.lengths)
    stored = paged_decode(case.query, PagedKV(k, v, case.tables, lengths, *scales), scale=0.4).out
    plain = [x * scale.unsqueeze(-1) for x, scale in zip((k, v), scales, strict=True)]
    for row in range(4):
        alone = slice(row, row + 1)
        kv = PagedKV(*plain, case.tables[alone], lengths[alone])
        expected = paged_decode(case.query[alone], kv, scale=0.4).out
        torch.testing.assert_close(stored[alone], expected, **CLOSE)
    assert one_by_one == [0]
