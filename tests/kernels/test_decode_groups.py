"""Short sequences decoded together: what each gets is what it gets alone, whatever stands in the others' blocks."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from minikv.kernels import PagedKV, decode_groups, latent_decode, paged_decode

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
def groups(monkeypatch):
    """The groups of each call: the sequences and the tiles of each group."""
    calls: list[list[tuple[int, int]]] = []
    real = decode_groups.groups_of

    def told(*args):
        found = real(*args)
        calls.append([(len(group.rows), len(group.tiles)) for group in found])
        return found

    monkeypatch.setattr(decode_groups, "groups_of", told)
    return calls


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("window", [None, 1, 5, 11, 100])
def test_together_is_as_alone(dtype, window, groups):
    case = Case([13, 1, 40, 12, 0, 38, 14, 16, 37, 2, 15, 1], dtype)
    everyone = list(range(len(case.lengths)))
    close = CLOSE if dtype is torch.float16 else {"atol": 2e-2, "rtol": 2e-2}
    together = case.decode(everyone, scale=0.4, window=window)
    assert len(groups[0]) < len(everyone) / 2
    lengths = torch.tensor(case.lengths)
    exact = PagedKV(case.k.float(), case.v.float(), case.tables, lengths)  # float32 takes another way
    expected = paged_decode(case.query.float(), exact, scale=0.4, window=window).out
    torch.testing.assert_close(together.float(), expected, **close)
    assert not together[4].any()


@pytest.mark.parametrize("lengths", [[0, 0], [1, 0], [3, 90], [7, 7], [90, 1, 1, 1]], ids=str)
def test_lengths_far_apart_make_groups_of_their_own(lengths):
    case = Case(lengths)
    together = case.decode(list(range(len(lengths))), scale=0.4)
    for row in range(len(lengths)):
        torch.testing.assert_close(together[[row]], case.decode([row], scale=0.4), **CLOSE)


@pytest.mark.parametrize(("threads", "flash"), [(1, True), (1, False), (3, True)])
@pytest.mark.parametrize("window", [None, 17])
def test_a_longer_history_is_cut_into_tiles(monkeypatch, groups, window, threads, flash):
    monkeypatch.setattr(decode_groups, "_has_flash", lambda: flash)
    monkeypatch.setattr(decode_groups, "LEAST_PIECE", BLOCK)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    case = Case([8] * 5 + [30, 49])
    monkeypatch.setattr(decode_groups, "TILE_ELEMENTS", 4 * BLOCK * KV_HEADS * 2 * DIM)
    kv = PagedKV(case.k, case.v, case.tables, torch.tensor(case.lengths))
    sinks = torch.linspace(-1, 1, HEADS)
    options = {"scale": 0.4, "window": window, "sinks": sinks, "return_lse": True}
    found = paged_decode(case.query, kv, **options)
    blocks = 13 if window is None else 5
    assert groups[0][0] == (1, -(-blocks // (4 // threads * threads)))
    assert all(rows <= 4 // 2 for rows, tiles in groups[0][-3:])
    exact = PagedKV(case.k.float(), case.v.float(), case.tables, kv.lengths)  # float32 takes another way
    expected = paged_decode(case.query.float(), exact, **options)
    torch.testing.assert_close(found.out.float(), expected.out, **CLOSE)
    torch.testing.assert_close(found.lse, expected.lse, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_what_is_stored_with_scales_is_decoded_with_them(groups, dtype):
    case = Case([9, 10, 11, 12])
    generator = torch.Generator().manual_seed(6)
    shape = case.k.shape
    k, v = (torch.randint(-127, 128, shape, generator=generator).to(dtype) for _ in range(2))
    scales = [torch.rand(shape[:3], generator=generator) / 50 for _ in range(2)]
    lengths = torch.tensor(case.lengths)
    stored = paged_decode(case.query, PagedKV(k, v, case.tables, lengths, *scales), scale=0.4).out
    assert groups == [[(4, 1)]]
    plain = [x.float() * scale.unsqueeze(-1) for x, scale in zip((k, v), scales, strict=True)]
    for row in range(4):
        alone = slice(row, row + 1)
        kv = PagedKV(*plain, case.tables[alone], lengths[alone])
        expected = paged_decode(case.query[alone], kv, scale=0.4).out
        torch.testing.assert_close(stored[alone], expected, **CLOSE)


@pytest.mark.parametrize("beside", [True, False], ids=["one tensor", "two tensors"])
@pytest.mark.parametrize("window", [None, 5])
def test_latents_are_decoded_together(monkeypatch, groups, window, beside):
    case, rank = Case([13, 1, 40, 12, 0, 38, 14]), 5
    monkeypatch.setattr(decode_groups, "TILE_ELEMENTS", 4 * BLOCK * DIM)
    k, v = case.k[:, :, :1, :rank], case.k[:, :, :1, rank:]
    if not beside:
        k, v = k.contiguous(), v.contiguous()
    query, lengths = case.query, torch.tensor(case.lengths)
    kv = PagedKV(k, v, case.tables, lengths)
    options = {"scale": 0.4, "window": window, "return_lse": True}
    found = latent_decode(query[..., :rank].contiguous(), query[..., rank:].contiguous(), kv, **options)
    assert len(groups[0]) < len(case.lengths)
    whole = case.k[:, :, :1].float()
    exact = PagedKV(whole, whole, case.tables, lengths)
    expected = paged_decode(query.float(), exact, **options)
    torch.testing.assert_close(found.out.float(), expected.out[..., :rank], **CLOSE)
    torch.testing.assert_close(found.lse, expected.lse, **CLOSE)


def test_a_block_that_is_longer_than_a_tile_is_read_in_parts(monkeypatch, groups):
    monkeypatch.setattr(decode_groups, "TILE_ELEMENTS", BLOCK * KV_HEADS * 2 * DIM - 1)
    case = Case([9, 10])
    found = paged_decode(
        case.query, PagedKV(case.k, case.v, case.tables, torch.tensor(case.lengths)), scale=0.4
    )
    monkeypatch.undo()
    torch.testing.assert_close(found.out, case.decode([0, 1], scale=0.4), **CLOSE)
    assert groups == []


def test_layers_of_a_step_share_groups_and_memory():
    case = Case([13, 1, 40, 12])
    first = PagedKV(case.k, case.v, case.tables, torch.tensor(case.lengths))
    second = PagedKV(case.v, case.k, case.tables, first.lengths, memo=first.memo)
    made = decode_groups.groups_of(first, 64, None, torch.float32)
    assert decode_groups.groups_of(second, 64, None, torch.float32) is made
    with torch.inference_mode():
        paged_decode(case.query, first, scale=0.4)
    alone = paged_decode(case.query, PagedKV(case.v, case.k, case.tables, first.lengths), scale=0.4).out
    torch.testing.assert_close(paged_decode(case.query, second, scale=0.4).out, alone)
