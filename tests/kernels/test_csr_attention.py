"""Decode by an index of the tokens: each query gets dense attention over its own tokens, whatever else is there."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from minikv.kernels import PagedKV, csr_attention, paged_decode, paged_prefill
from minikv.kernels.attention import Attention
from tests.kernels.decoded import CLOSE, DIM, HEADS, KV_HEADS, LENGTHS, SINKS, Case, assert_dense


@pytest.fixture(autouse=True)
def plain_torch(monkeypatch):
    monkeypatch.setenv("MINIKV_KERNELS", "reference")


@pytest.fixture
def left_out(monkeypatch):
    """Which sequences were left to the tiles, call by call."""
    calls: list[list[int]] = []
    real = csr_attention.csr_decode

    def told(*args, **kwargs):
        found = real(*args, **kwargs)
        calls.append(found.rest)
        return found

    monkeypatch.setattr("minikv.kernels.attention.csr_decode", told)
    return calls


@pytest.mark.parametrize("window", [None, 1, 5, 11, 100])
@pytest.mark.parametrize(
    "more", [{}, {"softcap": 0.7}, {"sinks": SINKS}, {"softcap": 2.0, "sinks": SINKS}], ids=str
)
def test_out_lse_and_scores_are_those_of_dense_attention(window, more, left_out):
    case = Case(LENGTHS)
    options = {"scale": 0.4, "window": window, **more}
    found = paged_decode(case.query, case.kv(), return_lse=True, return_scores=True, **options)
    assert left_out == [[]]
    assert_dense(case, found, **options)


@pytest.mark.parametrize(
    "layout", ["k beside v in a block", "k beside v in a token", "heads before tokens", "padded rows"]
)
def test_views_of_any_strides_are_read_where_they_lie_or_copied(layout, left_out):
    case = Case([13, 40, 7])
    k, v = case.k, case.v
    if layout == "k beside v in a block":
        case.k, case.v = torch.stack([k, v], 1).unbind(1)
    elif layout == "k beside v in a token":
        case.k, case.v = torch.cat([k, v], 2).split(KV_HEADS, 2)
    elif layout == "heads before tokens":
        case.k, case.v = (each.transpose(1, 2).contiguous().transpose(1, 2) for each in (k, v))
    else:  # a stride that is no multiple of a token: it has to be copied
        wide = [torch.cat([each, each[..., :3]], 3) for each in (k, v)]
        case.k, case.v = (each[..., :DIM] for each in wide)
    assert csr_attention.is_in_place(case.kv()) == (layout != "padded rows")
    assert_dense(case, paged_decode(case.query, case.kv(), scale=0.4), scale=0.4)
    assert left_out == [[]] * (layout != "padded rows")


@pytest.mark.parametrize("most", [2, 13, 14, 40, 90])
def test_some_at_a_time_and_the_longest_by_tiles(most, left_out, monkeypatch):
    monkeypatch.setattr(csr_attention, "MOST_LOGITS", most * HEADS)
    case = Case(LENGTHS)
    options = {"scale": 0.4, "sinks": SINKS}
    found = paged_decode(case.query, case.kv(), return_lse=True, return_scores=True, **options)
    assert left_out == [[row for row, length in enumerate(LENGTHS) if length > most]]
    assert_dense(case, found, **options)


def test_without_torchs_products_all_goes_by_tiles(monkeypatch, left_out):
    monkeypatch.setattr("minikv.kernels.attention.available", lambda: False)
    case = Case(LENGTHS)
    assert_dense(case, paged_decode(case.query, case.kv(), scale=0.4), scale=0.4)
    assert left_out == []


def test_layers_of_a_step_share_an_index_and_other_tables_do_not():
    case, other = Case([13, 40, 7]), Case([13, 40, 7])
    first = case.kv()
    index = csr_attention.index_of(first, HEADS, None)
    second = PagedKV(other.v, other.k, first.block_tables, first.lengths, memo=first.memo)
    assert csr_attention.index_of(second, HEADS, None) is index
    assert csr_attention.index_of(second, HEADS, 5) is not index
    first.block_tables[0, 0] = first.block_tables[0, 0].clone()  # written to: it may name other blocks now
    assert csr_attention.index_of(first, HEADS, None) is not index
    moved = replace(second, block_tables=first.block_tables.flip(0), lengths=first.lengths.flip(0))
    assert moved.memo is first.memo
    assert csr_attention.index_of(moved, HEADS, None) is not index
    case.query = case.query.flip(0)
    case.lengths, case.tables = case.lengths[::-1], case.tables.flip(0)
    case.k, case.v = other.v, other.k
    assert_dense(case, paged_decode(case.query, moved, scale=0.4), scale=0.4)


@pytest.mark.parametrize("window", [None, 5, 11])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_short_prompt_is_the_same_query_by_query_by_torchs_attention_and_by_tiles(
    window, dtype, monkeypatch
):
    case = Case([13, 9, 12, 20, 11], dtype)
    starts = torch.tensor([0, 13, 17, 18, 38, 40])
    query = torch.randn(40, HEADS, DIM, generator=torch.Generator().manual_seed(8)).to(dtype)
    options = {"max_queries": 20, "scale": 0.4, "window": window}
    found = []
    # Prompts of up to so many tokens are decoded; those with so many bytes of K and V are given to torch.
    for short, copied in ((64, 0), (12, 2**22), (0, 2**22), (0, 0)):
        monkeypatch.setattr("minikv.kernels.attention.SHORT", short)
        monkeypatch.setattr("minikv.kernels.attention.TILE_BYTES", copied)
        found.append(paged_prefill(query, case.kv(), starts, **options).out)
    close = CLOSE if dtype is torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, **close)


@pytest.mark.parametrize("more", [{}, {"softcap": 2.0}, {"sinks": torch.linspace(-1, 2, HEADS)}], ids=str)
def test_decodes_among_prefills_are_as_alone(more):
    case = Case([13, 9, 12, 20, 11])
    queries = [1, 4, 1, 20, 1]
    starts = torch.tensor([0, 1, 5, 6, 26, 27])
    query = torch.randn(27, HEADS, DIM, generator=torch.Generator().manual_seed(8))
    lengths = torch.tensor(case.lengths)

    def prefill(rows: slice, own: Tensor, at: slice) -> Attention:
        kv = PagedKV(case.k, case.v, case.tables[rows], lengths[rows])
        return paged_prefill(query[at], kv, own, max_queries=20, scale=0.4, return_lse=True, **more)

    mixed = prefill(slice(None), starts, slice(None))
    for row, count in enumerate(queries):
        at = slice(int(starts[row]), int(starts[row + 1]))
        alone = prefill(slice(row, row + 1), torch.tensor([0, count]), at)
        torch.testing.assert_close(mixed.out[at], alone.out, **CLOSE)
        torch.testing.assert_close(mixed.lse[at], alone.lse, **CLOSE)
