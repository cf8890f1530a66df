"""MLA prefill with K and V of every head made of the latents for one call, where a sequence's queries are many.

Lesson 10. Absorbed, a query and a key cost 2 * (rank + rope + rank) FLOPs a head, which is 2,176 for DeepSeek-V3.
Expanded they cost 2 * (nope + rope + v_dim) = 640. But every key is expanded first, and what that makes is written and
read again. So it pays for a few hundred queries and more, and never for a decode. A batch holds both: each sequence
goes its own way.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minikv.kernels.dispatch import operations
from minikv.kernels.paged_kv import PagedKV

# A byte that is moved stands for as many operations. Of an H200, by its data sheet: 989e12 / 4.8e12.
FLOPS_PER_BYTE = {"cuda": 206}


class LatentSizes(NamedTuple):
    """One rank's heads and their dimensions: a key has ``nope`` and ``rope`` elements, a value ``value``.

    At most ``most_bytes`` are expanded at a time, of whole blocks of ``block_size`` tokens.
    """

    heads: int
    rank: int
    rope: int
    nope: int
    value: int
    itemsize: int
    most_bytes: int
    block_size: int

    @classmethod
    def of(cls, up: Tensor, kv: PagedKV, nope: int, most_bytes: int) -> "LatentSizes":
        """Those of ``up`` [H, nope + v_dim, rank], which is ``kv_b_proj``, and of the latents in ``kv``."""
        heads, made, rank = up.shape
        block_size, rope = kv.v.shape[1], kv.v.shape[3]
        return cls(heads, rank, rope, nope, made - nope, up.itemsize, most_bytes, block_size)

    def key_bytes(self, heads: int) -> int:
        """Return the most bytes of one token while ``heads`` are expanded: the product, and what is beside it.

        First that is a copy of the latent; then of the rope key, and the keys with the rope part.
        """
        beside = max(self.rank, self.rope + heads * (self.nope + self.rope))
        return (heads * (self.nope + self.value) + beside) * self.itemsize

    def moved_bytes(self, heads: int) -> int:
        """Return the bytes of one token that are written, and read again, where ``heads`` at a time are expanded."""
        made = self.heads * (self.nope + self.value + self.nope + self.rope)
        return (made + self.heads // heads * (self.rank + self.rope)) * self.itemsize

    def heads_at_once(self, keys: int) -> int:
        """Return how many heads of the blocks of ``keys`` tokens fit into ``most_bytes``; 0: not even one.

        It is a divisor of all heads.
        """
        tokens = -(-keys // self.block_size) * self.block_size
        counts = (count for count in range(self.heads, 0, -1) if self.heads % count == 0)
        return next((count for count in counts if tokens * self.key_bytes(count) <= self.most_bytes), 0)


def expanding_pays(device: str, sizes: LatentSizes, queries: int, keys: int) -> bool:
    """Return whether the last ``queries`` of a sequence of ``keys`` tokens cost less expanded than absorbed.

    ``device`` is the type of a torch device; on one that is not in ``FLOPS_PER_BYTE`` nothing is expanded, and nothing
    either where the keys of one head are too much.
    """
    at_once = sizes.heads_at_once(keys) if device in FLOPS_PER_BYTE else 0
    if not at_once:
        return False
    pairs = queries * (keys - queries / 2)
    projected = sizes.rank * (sizes.nope + sizes.value)
    absorbed = pairs * (2 * sizes.rank + sizes.rope) + queries * projected
    expanded = pairs * (sizes.nope + sizes.rope + sizes.value) + keys * projected
    moved = 2 * keys * sizes.moved_bytes(at_once)
    return 2 * sizes.heads * expanded + FLOPS_PER_BYTE[device] * moved < 2 * sizes.heads * absorbed


class Part(NamedTuple):
    """Sequences of a batch that go one way: ``rows`` of the queries, at most ``max_queries`` of a sequence.

    ``keys`` are the tokens of the one sequence that is expanded, 0 where all are absorbed. The tensors and ``memo`` are
    those of a ``PagedKV``.
    """

    rows: slice
    max_queries: int
    keys: int
    block_tables: Tensor
    lengths: Tensor
    query_starts: Tensor
    memo: dict[Any, Any]


def parts_of(
    kv: PagedKV, sizes: LatentSizes, query_starts: Tensor, queries: Sequence[int], lengths: Sequence[int]
) -> list[Part]:
    """Return the parts of a batch. Its sequences have ``queries`` and ``lengths``, as the host knows them.

    Sequences side by side that are absorbed are one part. Nothing here waits for the device.
    """
    starts, device = [0, *accumulate(queries)], query_starts.device.type
    pays = [expanding_pays(device, sizes, *each) for each in zip(queries, lengths, strict=True)]
    parts = []
    for alone, run in groupby(range(len(pays)), key=lambda row: row if pays[row] else -1):
        first, end = (rows := list(run))[0], rows[-1] + 1
        keys, rows_from = lengths[first] if alone >= 0 else 0, starts[first]
        blocks = -(-keys // kv.k.shape[1]) or None
        parts.append(
            Part(
                slice(rows_from, starts[end]),
                max(queries[first:end]),
                keys,
                kv.block_tables[first:end, :blocks],
                kv.lengths[first:end],
                query_starts[first : end + 1] - rows_from,
                {},
            )
        )
    return parts


def latent_parts(
    query: Tensor, kv: PagedKV, up: Tensor, parts: Sequence[Part], sizes: LatentSizes, *, scale: float
) -> Tensor:
    """Return the attention [T, H, v_dim] of ``query`` [T, H, nope + rope], each of ``parts`` in its way.

    ``kv`` holds latents and rope keys, ``up`` [H, nope + v_dim, rank] is ``kv_b_proj``.
    """
    out = query.new_empty(len(query), sizes.heads, sizes.value)
    for rows, max_queries, keys, tables, lengths, starts, memo in parts:
        alone = replace(kv, block_tables=tables, lengths=lengths, memo=memo)
        if keys:
            expanded(query[rows], alone, up, starts, sizes, keys=keys, scale=scale, out=out[rows])
            continue
        kernels, (q_latent, q_rope) = operations(query.device), absorb(query[rows], up, sizes.nope)
        if max_queries == 1:
            found = kernels.latent_decode(q_latent, q_rope, alone, scale=scale)
        else:
            found = kernels.latent_prefill(
                q_latent, q_rope, alone, starts, max_queries=max_queries, scale=scale
            )
        out[rows] = of_latents(found.out, up, sizes.nope)
    return out


def expanded(
    query: Tensor, kv: PagedKV, up: Tensor, query_starts: Tensor, sizes: LatentSizes, *, keys: int, scale: float,
    out: Tensor,
) -> None:  # fmt: skip
    """Write to ``out`` the attention of one sequence of ``keys`` tokens, as many heads at a time as may be expanded."""
    kernels, at_once = operations(query.device), sizes.heads_at_once(keys)
    for first in range(0, sizes.heads, at_once):
        own = slice(first, first + at_once)
        made = expand(kv, up[own], sizes.nope)
        out[:, own] = kernels.paged_prefill(
            query[:, own], made, query_starts, max_queries=len(query), scale=scale
        ).out


def expand(kv: PagedKV, up: Tensor, nope: int) -> PagedKV:
    """Return K and V of every head of ``up`` for the sequences of ``kv``; the blocks are in the order of the tables."""
    blocks = kv.block_tables.clamp(min=0).flatten()  # past a length there may be none
    made = torch.matmul(kv.k[blocks, :, 0].to(up.dtype), up.flatten(0, 1).t()).unflatten(-1, up.shape[:2])
    rope = kv.v[blocks].to(up.dtype).expand(-1, -1, up.shape[0], -1)
    tables = torch.arange(len(blocks), dtype=torch.int32, device=blocks.device).view(kv.block_tables.shape)
    return PagedKV(torch.cat([made[..., :nope], rope], -1), made[..., nope:], tables, kv.lengths)


def absorb(query: Tensor, up: Tensor, nope: int) -> tuple[Tensor, Tensor]:
    """Return the queries of the latents and of the rope keys, [T, H, rank] and [T, H, rope], of ``query`` [T, H, D].

    q (W_UK latent) = (q W_UK) latent, so W_UK is multiplied into the query.
    """
    own, rope = query[..., :nope], query[..., nope:]
    return torch.matmul(own.transpose(0, 1), up[:, :nope]).transpose(0, 1), rope


def of_latents(out: Tensor, up: Tensor, nope: int) -> Tensor:
    """Return [T, H, v_dim]: W_UV applied to the weighted sums of latents ``out`` [T, H, rank], once a query."""
    return torch.matmul(out.transpose(0, 1), up[:, nope:].transpose(1, 2)).transpose(0, 1)
