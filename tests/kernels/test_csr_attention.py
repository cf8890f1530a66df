"""Decode by an index of the tokens: each query gets dense attention over its own tokens, whatever else is there."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from minikv.kernels import PagedKV, csr_attention, paged_decode, paged_prefill
from minikv.kernels.attention import Attention

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 8, 4
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


LENGTHS = [13, 1, 40, 12, 0, 38, 14, 16, 37, 2, 15, 1]
SINKS = torch.linspace(-1, 2, HEADS)


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
