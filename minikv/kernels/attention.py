"""Attention over a paged cache in plain torch: the specification of the kernels, and a CPU's without C.

Lesson 10. The history of a sequence is read in tiles of some blocks. A tile is copied out of its blocks into one small
buffer, which stays in the processor's cache, and added to an ``OnlineSoftmax``. So the whole history is never copied,
and no block behind the window or past the length is read.

Decode is prefill with one query a sequence; both call ``_attend``. The G query heads that share a KV head are rows of
one matrix, so that a key is read once for all of them. Arithmetic is float32 for every dtype. The lengths are read back
from the device, so on a GPU this waits for it; the Triton kernels do not.

On a CPU a short sequence costs more in calls than in arithmetic, so there are faster ways to the same result. Decodes
take ``csr_attention``, which reads all sequences at once, or ``decode_groups`` where pages are not float32 or hold
latents; with a C compiler ``minikv.kernels.cpu`` comes before the first. Short prompts take ``sdpa_prefill``.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minikv.kernels.csr_attention import available, csr_decode, is_in_place
from minikv.kernels.decode_groups import decode_in_groups, suits
from minikv.kernels.kv_tiles import TILE_BYTES, Tiles, kv_tiles, latent_tiles
from minikv.kernels.online_softmax import OnlineSoftmax
from minikv.kernels.paged_kv import PagedKV
from minikv.kernels.sdpa_prefill import sdpa_sequence

SHORT = 64  # tokens of a prompt that is computed as so many decodes, in one call with the others
QUERY_ROWS = 256  # queries of one prefill tile: they share each key tile


class Attention(NamedTuple):
    """The result of attention. ``lse`` and ``scores`` are None unless they were asked for.

    ``out`` [B, Hq, Dv] (prefill: [T, Hq, Dv]) in the query's dtype. ``lse`` [B, Hq] float32: the natural logarithm of
    the sum of exp(logit) over the keys, the sink included; -inf where a sequence has no key. ``scores``
    [B, Hkv, W * block_size] float32: the probability that each cached token got, summed over the query heads of its
    KV head; 0 for tokens that no query sees.
    """

    out: Tensor
    lse: Tensor | None
    scores: Tensor | None


class Mask(NamedTuple):
    """The changes to logits before the softmax: ``window`` tokens (None: all), ``softcap`` (None: no cap)."""

    window: int | None
    softcap: float | None

    def first_key(self, position: int) -> int:
        """Return the first position that a query at ``position`` sees, which is ``window - 1`` before it."""
        return 0 if self.window is None else max(0, position - self.window + 1)

    def apply(self, logits: Tensor, first_query: int, queries: int, first_key: int) -> Tensor:
        """Cap ``logits`` [heads, G * queries, keys] and set those of hidden keys to -inf; in place."""
        if self.softcap is not None:
            logits.div_(self.softcap).tanh_().mul_(self.softcap)
        keys = logits.shape[-1]
        last_key, last_query = first_key + keys - 1, first_query + queries - 1
        if last_key <= first_query and self.first_key(last_query) <= first_key:
            return logits  # every query sees every key, as in most tiles
        query = torch.arange(first_query, last_query + 1, device=logits.device).unsqueeze(1)
        key = torch.arange(first_key, last_key + 1, device=logits.device)
        # Causal mask: hide later keys, and with a window also keys at query - window and before.
        hidden = key > query
        if self.window is not None:
            hidden |= key <= query - self.window
        logits.unflatten(1, (-1, queries)).masked_fill_(hidden, -torch.inf)
        return logits


def paged_decode(
    query: Tensor,
    kv: PagedKV,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    return_scores: bool = False,
) -> Attention:
    """See ``minikv.kernels.paged_decode``."""
    options: dict[str, Any] = {"sinks": sinks, "return_lse": return_lse}
    tiles, mask, size = kv_tiles(kv), Mask(window, softcap), tuple(kv.v.shape[2:])
    if query.is_cpu and available() and is_in_place(kv):
        options["return_scores"] = return_scores
        out, lse, scores, rest = csr_decode(query, kv, scale=scale, window=window, softcap=softcap, **options)
        out = out.to(query.dtype)
        if rest:
            alone = replace(kv, block_tables=kv.block_tables[rest], lengths=kv.lengths[rest])
            late = _decode(query[rest], alone, tiles, size, scale, mask, **options)
            for whole, part in zip((out, lse, scores), late, strict=True):
                if whole is not None and part is not None:
                    whole[rest] = part
        return Attention(out, lse, scores)
    if softcap is None and not return_scores and suits(query, kv):
        return Attention(*decode_in_groups(query, kv, scale=scale, window=window, **options), None)
    return _decode(query, kv, tiles, size, scale, mask, return_scores=return_scores, **options)


def paged_prefill(
    query: Tensor,
    kv: PagedKV,
    query_starts: Tensor,
    *,
    max_queries: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    decode: Callable[..., Attention] = paged_decode,
    short: int | None = None,
) -> Attention:
    """See ``minikv.kernels.paged_prefill``. ``max_queries`` is for the kernels; here the rows are read.

    Sequences with one query, the decodes among the prefills, are computed together by ``decode``, and so are prompts of
    up to ``short`` tokens, query by query (None: ``SHORT`` where decodes read the pages in place).
    """
    tiles, mask, size = kv_tiles(kv), Mask(window, softcap), tuple(kv.v.shape[2:])
    if short is None:
        short = SHORT if query.is_cpu and available() and is_in_place(kv) else 0
    parts: _Parts = kv.once(("prefill", short), lambda: _Parts.of(kv, query_starts, short), query_starts)
    options: dict[str, Any] = {"scale": scale, "window": window, "softcap": softcap, "sinks": sinks}
    if len(parts.rows) == len(query):  # all of them, in order
        return decode(query, parts.decodes(kv), return_lse=return_lse, **options)
    # As many tokens as are copied at once: none where torch's attention cannot say what is asked.
    plain = query.is_cpu and softcap is None and sinks is None and not return_lse
    most = TILE_BYTES // (4 * kv.k.shape[2] * (kv.k.shape[3] + kv.v.shape[3])) if plain else 0
    tiled = [row for row, length, _ in parts.several if length > most]
    out, lse, _ = _prefill(query, kv, tiles, size, query_starts, scale, mask, sinks, return_lse, tiled)
    for row, length, own in parts.several:
        if length <= most:
            queries = query[own].to(torch.float32)
            out[own] = sdpa_sequence(queries, kv, row, length, scale=scale, window=window).to(out.dtype)
    if len(parts.rows):
        late = decode(query[parts.rows], parts.decodes(kv), return_lse=return_lse, **options)
        parts.put(late, out, lse)
    return Attention(out, lse, None)


def latent_decode(
    q_latent: Tensor,
    q_rope: Tensor,
    kv: PagedKV,
    *,
    scale: float,
    window: int | None = None,
    return_lse: bool = False,
    return_scores: bool = False,
) -> Attention:
    """See ``minikv.kernels.latent_decode``."""
    query, size = torch.cat([q_latent, q_rope], -1), (1, kv.k.shape[3])
    if not return_scores and suits(query, kv):
        found = decode_in_groups(query, kv, scale=scale, window=window, return_lse=return_lse, latent=True)
        return Attention(*found, None)
    tiles, mask = latent_tiles(kv), Mask(window, None)
    return _decode(query, kv, tiles, size, scale, mask, None, return_lse, return_scores)


def latent_prefill(
    q_latent: Tensor,
    q_rope: Tensor,
    kv: PagedKV,
    query_starts: Tensor,
    *,
    max_queries: int,
    scale: float,
    window: int | None = None,
    return_lse: bool = False,
) -> Attention:
    """See ``minikv.kernels.latent_prefill``. ``max_queries`` is for the kernels; here the rows are read.

    Sequences with one query, the decodes among the prefills, are computed together by ``latent_decode``.
    """
    query, size = torch.cat([q_latent, q_rope], -1), (1, kv.k.shape[3])
    tiles, mask = latent_tiles(kv), Mask(window, None)
    parts: _Parts = kv.once(("prefill", 0), lambda: _Parts.of(kv, query_starts, 0), query_starts)
    several = [row for row, _, _ in parts.several]
    out, lse, _ = _prefill(query, kv, tiles, size, query_starts, scale, mask, None, return_lse, several)
    if len(parts.rows):
        alone, parted = parts.decodes(kv), (q_latent[parts.rows], q_rope[parts.rows])
        parts.put(latent_decode(*parted, alone, scale=scale, window=window, return_lse=return_lse), out, lse)
    return Attention(out, lse, None)


class _Parts(NamedTuple):
    """The sequences of a prefill. ``several``: those with several queries, each (index, length, rows of the query).

    The others are decoded: ``rows`` are the rows of their queries, each with its own row of ``block_tables`` and its
    own number of ``lengths``.
    """

    several: list[tuple[int, int, slice]]
    rows: Tensor
    block_tables: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, kv: PagedKV, query_starts: Tensor, decodes: int) -> "_Parts":
        """A sequence with one query is decoded, and so is one of up to ``decodes`` tokens, query by query."""
        counts = query_starts.diff()
        decoded = (counts <= 1) | (kv.lengths <= decodes)
        starts, ends = query_starts.tolist(), kv.lengths.tolist()
        several = [
            (row, ends[row], slice(starts[row], starts[row + 1]))
            for row in (~decoded).nonzero().flatten().tolist()
        ]
        # The queries of a sequence see one token more each, the last one all.
        each = counts.masked_fill(~decoded, 0)
        sequence = torch.arange(len(each), device=each.device).repeat_interleave(each)
        within = torch.arange(len(sequence), device=each.device) - (each.cumsum(0) - each)[sequence]
        rows = query_starts[:-1][sequence] + within
        lengths = (kv.lengths - counts + 1)[sequence] + within
        return cls(several, rows, kv.block_tables[sequence], lengths.to(kv.lengths.dtype))

    def decodes(self, kv: PagedKV) -> PagedKV:
        """Return ``kv`` with a sequence for each of ``rows``."""
        return replace(kv, block_tables=self.block_tables, lengths=self.lengths)

    def put(self, found: Attention, out: Tensor, lse: Tensor | None) -> None:
        """Write what was found for ``decodes`` into the rows of the whole."""
        out[self.rows] = found.out
        if lse is not None and found.lse is not None:
            lse[self.rows] = found.lse


def _decode(
    query: Tensor,
    kv: PagedKV,
    tiles: Tiles,
    size: tuple[int, int],
    scale: float,
    mask: Mask,
    sinks: Tensor | None,
    return_lse: bool,
    return_scores: bool,
) -> Attention:
    """``tiles`` are those of ``kv``; ``size`` is (KV heads, elements of a value)."""
    batch, query_heads, _ = query.shape
    heads, dim = size
    group = query_heads // heads
    rows = (query.to(torch.float32) * scale).unflatten(1, (heads, group))
    softmax = OnlineSoftmax((batch, heads, group), dim, query.device)
    scores = None
    if return_scores:
        width = kv.block_tables.shape[1] * kv.k.shape[1]
        scores = query.new_zeros(batch, heads, width, dtype=torch.float32)
    for row, length in enumerate(kv.lengths.tolist()):
        own = softmax[row]
        kept: list[tuple[int, Tensor]] | None = None if scores is None else []
        _attend(rows[row], length - 1, 1, tiles, kv.block_tables[row], mask, own, kept)
        if sinks is not None:
            own.add_sinks(sinks.view(heads, group))
        if scores is not None and kept is not None:
            # The lse is known after the last tile, so the logits of every tile were kept: probability = exp(logit -
            # lse).
            whole = own.finish()[1].unsqueeze(-1)
            for first, logits in kept:
                scores[row, :, first : first + logits.shape[-1]] = torch.exp(logits - whole).sum(1)
    out, lse = softmax.finish()
    out = out.view(batch, query_heads, dim).to(query.dtype)
    return Attention(out, lse.view(batch, query_heads) if return_lse else None, scores)


def _prefill(
    query: Tensor,
    kv: PagedKV,
    tiles: Tiles,
    size: tuple[int, int],
    query_starts: Tensor,
    scale: float,
    mask: Mask,
    sinks: Tensor | None,
    return_lse: bool,
    several: Iterable[int],
) -> Attention:
    """``several``: which sequences to compute; the rows of the others are 0, and lse -inf."""
    tokens, query_heads, _ = query.shape
    heads, dim = size
    group = query_heads // heads
    out = query.new_zeros(tokens, query_heads, dim)
    lse = query.new_full((tokens, query_heads), -torch.inf, dtype=torch.float32)
    starts, ends = query_starts.tolist(), kv.lengths.tolist()
    for row in several:
        length = ends[row]
        for first in range(starts[row], starts[row + 1], QUERY_ROWS):
            own = slice(first, min(first + QUERY_ROWS, starts[row + 1]))
            queries = own.stop - first
            # The new queries are the last ones of their sequence, so row r is at length - (end of its rows) + r.
            position = length - starts[row + 1] + first
            # [n, Hkv, G, Dk] -> [Hkv, G * n, Dk]
            by_head = (query[own].to(torch.float32) * scale).unflatten(1, (heads, group))
            rows = by_head.permute(1, 2, 0, 3).flatten(1, 2)
            softmax = OnlineSoftmax((heads, group * queries), dim, query.device)
            _attend(rows, position, queries, tiles, kv.block_tables[row], mask, softmax)
            if sinks is not None:
                softmax.add_sinks(sinks.view(heads, group, 1).expand(-1, -1, queries).flatten(1))
            part, part_lse = softmax.finish()
            # [Hkv, G * n, Dv] -> [n, Hkv * G, Dv]
            out[own] = part.view(query_heads, queries, dim).transpose(0, 1)
            lse[own] = part_lse.view(query_heads, queries).t()
    return Attention(out, lse if return_lse else None, None)


def _attend(
    rows: Tensor,
    position: int,
    queries: int,
    tiles: Tiles,
    table: Tensor,
    mask: Mask,
    softmax: OnlineSoftmax,
    kept: list[tuple[int, Tensor]] | None = None,
) -> None:
    """Add to ``softmax`` the keys that ``rows`` [Hkv, G * queries, Dk] see: ``queries`` scaled queries from
    ``position`` on.

    ``kept`` collects the logits of every tile, with the position of its first key.
    """
    logits_of_a_token = rows.shape[0] * rows.shape[1]
    for first, keys, values in tiles(table, mask.first_key(position), position + queries, logits_of_a_token):
        logits = mask.apply(rows @ keys.permute(1, 2, 0), position, queries, first)
        if kept is not None:
            kept.append((first, logits.clone()))
        softmax.add(logits, values.transpose(0, 1))
