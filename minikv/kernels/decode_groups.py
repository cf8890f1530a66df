"""Decode on a CPU of pages that have to be copied: sequences of about equal length are computed together. Lesson 10.

For a history of a hundred tokens, one sequence at a time costs more in torch calls than in arithmetic. So the sequences
are sorted by the tokens that they read, and cut into groups so that their keys and values, padded to the longest, fit
into one tile. A longer history is a group alone, of several tiles, each of which gives a part of one softmax. Such a
tile has a piece of the history for each thread: torch's functions divide their work by the first dimension, so what a
thread has copied it also multiplies, and does not have to fetch from the cache of another core.

A tile is a copy into memory that stays in the processor's cache, and one call of torch's attention, with the G query
heads of a KV head as G queries. The padding holds another request's tokens. It is overwritten with 0 before it is read,
because a masked NaN would still give NaN. Which blocks make up a tile follows from the tables and lengths alone, so the
layers of a step share it.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from minikv.kernels.kv_tiles import latent_reader, readers
from minikv.kernels.online_softmax import merge_splits
from minikv.kernels.paged_kv import PagedKV

# Elements of keys and values, for all threads: in float32 8 MiB, which stay in the cores' shared cache.
TILE_ELEMENTS = 2**21
LEAST_SHARE = 0.75  # the shortest sequence of a group reads at least this share of the longest's tokens
LEAST_PIECE = 256  # tokens of a thread's piece


class Tile(NamedTuple):
    """``blocks`` [g, n]: of each of g sequences, or of g pieces of one. ``hidden`` [h]: the tokens of those blocks that
    no query sees, and ``mask`` [g, 1, 1, n * block_size]: 0, and -inf for those; None where there is none."""

    blocks: Tensor
    hidden: Tensor
    mask: Tensor | None


class Group(NamedTuple):
    """The sequences ``rows``, and the tiles of their histories: one tile of all, or the tiles of a sequence alone."""

    rows: Tensor
    tiles: tuple[Tile, ...]


def decode_in_groups(
    query: Tensor,
    kv: PagedKV,
    *,
    scale: float,
    window: int | None,
    sinks: Tensor | None = None,
    return_lse: bool,
    latent: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return ``out`` and ``lse`` of ``minikv.kernels.paged_decode``, without a softcap.

    ``latent``: of ``latent_decode``; ``query`` [B, H, R + P] has the rope part behind the latent one.
    """
    dtype = _dtype(query, kv, latent)
    heads, dim = kv.k.shape[2:]
    batch, query_heads, _ = query.shape
    out = query.new_zeros(batch, heads, query_heads // heads, dim if latent else kv.v.shape[3])
    lse = query.new_full(out.shape[:3], -torch.inf, dtype=torch.float32)
    queries = query.to(dtype).unflatten(1, out.shape[1:3])  # [B, Hkv, G, Dk]
    reads = [latent_reader(kv)] if latent else [reader.read for reader in readers(kv, dtype)]
    for group in groups_of(kv, _blocks_of_a_tile(kv), window, dtype):
        own, parts = queries[group.rows], []
        for tile in group.tiles:
            count, found = len(tile.blocks), []
            for read in reads:
                tokens = read(tile.blocks.flatten())
                if tile.mask is not None:
                    tokens.index_fill_(0, tile.hidden, 0)
                # [g * n * block_size, Hkv, D] -> [g, Hkv, n * block_size, D]
                found.append(tokens.unflatten(0, (count, -1)).transpose(1, 2))
            k, v = found[0], found[-1][..., : out.shape[3]]
            parts.append(_attend(own.expand(count, -1, -1, -1), k, v, tile.mask, scale))
        if len(parts) > 1 or len(parts[0][0]) > len(own):
            parts = [merge_splits(*map(torch.cat, zip(*parts, strict=True)))]
        ((part, part_lse),) = parts
        out[group.rows] = part.to(out.dtype)
        lse[group.rows] = part_lse
    if sinks is not None:
        # A sink takes its share of the probability, and has no value.
        whole = torch.logaddexp(lse, sinks.to(torch.float32).view(out.shape[1:3]))
        out = (out * torch.exp(lse - whole).unsqueeze(-1)).to(out.dtype)
        lse = whole
    return out.flatten(1, 2), lse.flatten(1) if return_lse else None


def suits(query: Tensor, kv: PagedKV) -> bool:
    """Whether a block fits into a tile. That of a linear cache, a whole row, is not copied for its first tokens."""
    size = kv.k.shape[1]
    return (
        query.is_cpu and _blocks_of_a_tile(kv) > 0 and (size <= LEAST_PIECE or size <= int(kv.lengths.max()))
    )


def _dtype(query: Tensor, kv: PagedKV, latent: bool) -> torch.dtype:
    """torch's attention multiplies bfloat16 as it is stored, and adds up in float32; all else is float32."""
    as_stored = kv.k_scale is None and kv.k.dtype == kv.v.dtype == query.dtype == torch.bfloat16
    return torch.bfloat16 if as_stored and not latent else torch.float32


def _blocks_of_a_tile(kv: PagedKV) -> int:
    _, block_size, heads, dim = kv.k.shape
    return TILE_ELEMENTS // (block_size * heads * (dim + kv.v.shape[3]))


def groups_of(kv: PagedKV, most: int, window: int | None, dtype: torch.dtype) -> list[Group]:
    """Return the groups of all sequences that have a token, each tile of at most ``most`` blocks."""
    size = kv.k.shape[1]
    return kv.once(
        ("groups", size, most, window, dtype), lambda: list(_groups(kv, size, most, window, dtype))
    )


def _groups(kv: PagedKV, size: int, most: int, window: int | None, dtype: torch.dtype) -> Iterator[Group]:
    lengths = kv.lengths.long()
    starts = torch.zeros_like(lengths) if window is None else (lengths - window).clamp_(min=0)
    first = starts // size  # the block of the first token that the query sees
    spans, order = (lengths - first * size).sort(descending=True)
    tokens = spans.tolist()
    for own in _runs(tokens, size, most):
        rows, count = order[own], -(-tokens[own.start] // size)
        # The table's columns from the first visible block on. Those past the length read block 0, which always exists.
        columns = torch.arange(count) + first[rows].unsqueeze(1)
        beyond = columns * size >= lengths[rows].unsqueeze(1)
        blocks = kv.block_tables[rows].gather(1, columns.masked_fill(beyond, 0)).masked_fill_(beyond, 0)
        place = torch.arange(count * size)
        hidden = (place < (starts - first * size)[rows].unsqueeze(1)) | (place >= spans[own].unsqueeze(1))
        pieces = len(rows)
        if len(rows) == 1:
            # As few tiles as hold the blocks, with as many pieces in each
            pieces = max(1, min(torch.get_num_threads(), count * size // LEAST_PIECE, most))
            each = -(-count // (pieces * -(-count // (most - most % pieces))))
            more = -count % each
            blocks = pad(blocks, (0, more)).view(-1, each)
            hidden = pad(hidden, (0, more * size), value=True).view(-1, each * size)
        tiles = zip(blocks.split(pieces), hidden.split(pieces), strict=True)
        yield Group(rows, tuple(_tile(*tile, dtype) for tile in tiles))


def _tile(blocks: Tensor, hidden: Tensor, dtype: torch.dtype) -> Tile:
    """``hidden`` [g, n * block_size]: whether a token is."""
    places = hidden.flatten().nonzero().flatten()
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)[:, None, None]
    return Tile(blocks, places, mask if len(places) else None)


def _runs(tokens: Sequence[int], block_size: int, most_blocks: int) -> Iterator[slice]:
    """Cut sequences, the longest first, into runs that fit into a tile; ``tokens`` has the tokens that each reads.

    A run of several has as many sequences for each thread where it can.
    """
    threads = torch.get_num_threads()
    start = 0
    while start < len(tokens) and tokens[start]:
        most = max(1, most_blocks // -(-tokens[start] // block_size))
        if most > threads:
            most -= most % threads
        end = start + 1
        while end < len(tokens) and end - start < most and tokens[end] >= LEAST_SHARE * tokens[start]:
            end += 1
        yield slice(start, end)
        start = end


def _attend(query: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Return the attention of ``query`` [g, H, G, Dk] over ``k`` [g, H, n, Dk] and ``v`` [g, H, n, Dv], and its lse."""
    if k.shape[3] == v.shape[3] and _has_flash():
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, k, v, attn_mask=mask, scale=scale
        )
    logits = torch.matmul(query.to(torch.float32), k.to(torch.float32).transpose(2, 3)).mul_(scale)
    if mask is not None:
        logits += mask
    return torch.matmul(logits.softmax(-1), v.to(torch.float32)), logits.logsumexp(-1)


@cache
def _has_flash() -> bool:
    """Whether torch's attention for a CPU, which ``scaled_dot_product_attention`` calls, tells its lse here."""
    ones = torch.ones(1, 1, 2, 4)
    try:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            ones, ones, ones, attn_mask=torch.tensor([0.0, -torch.inf])[None, None, None], scale=0.5
        )
    except (AttributeError, RuntimeError, TypeError):
        return False
    return out.shape == ones.shape and lse.tolist() == [[[2.0, 2.0]]]
