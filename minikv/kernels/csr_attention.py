"""Decode on a CPU without a copy of K or V: attention as a sparse matrix with cached tokens for entries. Lesson 10.

    row      a query head of a sequence: B * Hq
    column   a cached token of a KV head, where it lies in the pages
    entry    a token that the query of that row sees

So the block tables are the index of the matrix, in CSR form: ``starts`` of each row, ``columns`` of its entries.
``sampled_addmm`` computes q K^T at the entries and nowhere else, ``embedding_bag`` adds up the values that they name.
Both read the pages where they lie: no history is copied, and none is padded, however much the lengths differ.

Both functions take float32 alone; pages of another dtype, or with scales, have to be copied (``decode_groups``).
"""

import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from minikv.kernels.paged_kv import PagedKV

MOST_LOGITS = 2**18  # at once, padding included: with their index 5 MiB, which stay in a processor's cache


class Entries(NamedTuple):
    """The entries of some sequences' rows, in the order of (sequence, query head, token): R rows, E entries.

    ``starts`` int64 [R + 1]: where the entries of each row begin. ``k_columns``, ``v_columns`` int64 [E]: the token and
    head of each entry as a row of K [tokens * Hkv, Dk] and V. ``places`` int64 [E]: where each entry stands in a table
    [R, ``width`` + 1] with rows that are filled from the left; the last column is a sink's.
    """

    sequences: slice
    starts: Tensor
    k_columns: Tensor
    v_columns: Tensor
    places: Tensor
    width: int


class Index(NamedTuple):
    """``parts``: the entries of a batch, as many sequences at a time as are computed at once. ``first`` [B]: the first
    token that each query sees. ``rest``: the sequences that are left out, too long for an index."""

    parts: tuple[Entries, ...]
    first: Tensor
    rest: list[int]


class Decoded(NamedTuple):
    """``out`` [B, Hq, Dv] float32, ``lse`` [B, Hq] and ``scores`` [B, Hkv, W * block_size] as of ``Attention``."""

    out: Tensor
    lse: Tensor | None
    scores: Tensor | None
    rest: list[int]


def csr_decode(
    query: Tensor,
    kv: PagedKV,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    return_lse: bool,
    return_scores: bool,
) -> Decoded:
    """Return ``minikv.kernels.paged_decode`` of all sequences but ``rest``; their rows are 0 (``lse``: -inf)."""
    batch, query_heads, _ = query.shape
    block_size, heads, dim = kv.v.shape[1:]
    index = index_of(kv, query_heads, window)
    keys, values = rows_of(kv.k), rows_of(kv.v)
    out = query.new_zeros(batch, query_heads, dim, dtype=torch.float32)
    lse = out.new_full((batch, query_heads), -torch.inf) if return_lse else None
    scores = out.new_zeros(batch, heads, kv.block_tables.shape[1] * block_size) if return_scores else None
    for part in index.parts:
        own = part.sequences
        rows = query[own].to(torch.float32).flatten(0, 1)
        logits = _products(part, rows, keys, scale)
        if softcap is not None:
            logits.div_(softcap).tanh_().mul_(softcap)
        # One softmax over rows of different lengths: padded with -inf, which gets no probability.
        table = logits.new_full((len(rows), part.width + 1), -torch.inf)
        table.view(-1).index_copy_(0, part.places, logits)
        if sinks is not None:
            table[:, -1] = sinks.to(torch.float32).repeat(len(rows) // query_heads)
        weights = table.softmax(-1)  # of a row without a token NaN, which no entry names
        found = embedding_bag(
            part.v_columns,
            values,
            part.starts,
            mode="sum",
            per_sample_weights=weights.view(-1).index_select(0, part.places),
            include_last_offset=True,
        )
        out[own] = found.unflatten(0, (-1, query_heads))
        if lse is not None:
            lse[own] = table.logsumexp(-1).view(-1, query_heads)
        if scores is not None:
            # The query heads of a KV head together: [n, Hkv, G, width] -> [n, Hkv, width]
            seen = weights[:, :-1].nan_to_num(0).reshape(-1, heads, query_heads // heads, part.width)
            column = torch.arange(part.width) + index.first[own].unsqueeze(1)
            column = column.clamp_(max=scores.shape[2] - 1).unsqueeze(1).expand(-1, heads, -1)
            scores[own].scatter_add_(2, column, seen.sum(2))
    return Decoded(out, lse, scores, index.rest)


def index_of(kv: PagedKV, query_heads: int, window: int | None) -> Index:
    """Return the index of ``kv`` for so many query heads. Layers of a step that share tables and strides share it."""
    key = ("csr", query_heads, window, kv.k.shape, kv.v.shape, kv.k.stride(), kv.v.stride(), kv.k.dtype)
    return kv.once(key, lambda: _index(kv, query_heads, window))


def is_in_place(kv: PagedKV) -> bool:
    """Whether an index can name the tokens of ``kv`` where they lie."""
    pages = (kv.k, kv.v)
    float32 = kv.k_scale is None and kv.v_scale is None and all(each.dtype == torch.float32 for each in pages)
    return float32 and not any(step % each.shape[3] for each in pages for step in each.stride()[:3])


def rows_of(pages: Tensor) -> Tensor:
    """Return ``pages`` [N, bs, H, D] as a matrix [tokens * H, D] of the same memory, where ``is_in_place``."""
    dim = pages.shape[3]
    last = sum((size - 1) * step for size, step in zip(pages.shape[:3], pages.stride()[:3], strict=True))
    return pages.as_strided((last // dim + 1, dim), (dim, 1))


@cache
def available() -> bool:
    """Whether torch computes products at the entries of a sparse matrix here. Its warning of a beta is kept back."""
    starts, columns = torch.tensor([0, 1]), torch.tensor([1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            matrix = torch.sparse_csr_tensor(starts, columns, torch.zeros(1), (1, 2), check_invariants=False)
            found = torch.sparse.sampled_addmm(matrix, torch.ones(1, 3), torch.ones(3, 2), beta=0.0)
        except RuntimeError:
            return False
    return found.values().tolist() == [3.0]


def _products(part: Entries, rows: Tensor, keys: Tensor, scale: float) -> Tensor:
    """``scale`` times the product of query and key at each entry, [E]."""
    # 0 times what stands in the matrix is added, so it must not be NaN.
    zeros = rows.new_zeros(len(part.k_columns))
    size = len(rows), len(keys)
    matrix = torch.sparse_csr_tensor(part.starts, part.k_columns, zeros, size, check_invariants=False)
    return torch.sparse.sampled_addmm(matrix, rows, keys.t(), beta=0.0, alpha=scale, out=matrix).values()


def _index(kv: PagedKV, query_heads: int, window: int | None) -> Index:
    lengths = kv.lengths.long()
    first = torch.zeros_like(lengths) if window is None else (lengths - window).clamp_(min=0)
    tokens = (lengths - first).tolist()
    most = MOST_LOGITS // query_heads
    parts = tuple(_entries(kv, own, first[own], lengths[own], query_heads) for own in _parts(tokens, most))
    return Index(parts, first, [row for row, count in enumerate(tokens) if count > most])


def _parts(tokens: Sequence[int], most: int) -> Iterator[slice]:
    """Cut sequences into runs of at most ``most`` tokens, padded to the longest; longer sequences are left out."""
    start, longest = 0, 1
    for row, count in enumerate([*tokens, most + 1]):
        longest = max(longest, count)
        if longest * (row + 1 - start) > most:
            if row > start:
                yield slice(start, row)
            start, longest = (row + 1, 1) if count > most else (row, max(1, count))


def _entries(kv: PagedKV, own: slice, first: Tensor, lengths: Tensor, query_heads: int) -> Entries:
    # In NumPy: its repeat takes a tenth of the time of torch's.
    block_size, heads = kv.k.shape[1:3]
    table, start, counts = kv.block_tables[own].numpy(), first.numpy(), (lengths - first).numpy()
    # The tokens, sequence by sequence.
    begin = counts.cumsum() - counts
    row = np.arange(len(counts)).repeat(counts)
    position = np.arange(len(row)) + (start - begin).repeat(counts)
    block, within = table[row, position // block_size].astype(np.int64), position % block_size
    # The entries: each query head of a sequence has all of its tokens.
    sizes = counts.repeat(query_heads)
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    entry = np.arange(starts[-1])
    token = entry + (begin.repeat(query_heads) - starts[:-1]).repeat(sizes)
    head = np.tile(np.arange(query_heads) // (query_heads // heads), len(counts))

    def columns(pages: Tensor) -> Tensor:
        """Return the entries' rows in the view of ``rows_of``."""
        steps = [step // pages.shape[3] for step in pages.stride()[:3]]
        of_token = block * steps[0] + within * steps[1]
        return torch.from_numpy(of_token[token] + (head * steps[2]).repeat(sizes))

    k_columns = columns(kv.k)
    same = kv.k.shape == kv.v.shape and kv.k.stride() == kv.v.stride()
    width = max(1, int(counts.max()))
    places = entry + (np.arange(len(sizes)) * (width + 1) - starts[:-1]).repeat(sizes)
    v_columns = k_columns if same else columns(kv.v)
    return Entries(own, torch.from_numpy(starts), k_columns, v_columns, torch.from_numpy(places), width)
