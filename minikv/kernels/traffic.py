"""The bytes and FLOPs that an operation needs at least: the floors for measuring a kernel. Lesson 10.

Each byte that must be read or written counts once. Bytes that a kernel reads twice, or stores in between, are not
counted, except for two named parts: ``splits`` and ``scores``. A multiplication and an addition
are two FLOPs. Table entries, slots and block ids take 4 bytes each. Plain arithmetic, without torch.

With B sequences of S tokens, Hq query heads, Hkv KV heads, D elements a head of b bytes, a decode moves

    2 * B * S * Hkv * D * b                K and V, once for all the query heads that share them
    + 2 * B * Hq * D * b                   the queries in, the result out
    + 4 * B * ceil(S / block_size)         the block tables
    + 2 * 4 * B * S * Hkv                  scales of K and V, if the cache has them
    + 2 * 4 * B * Hq * splits * D          partial results in float32, written and read again, with more than one split

and computes 4 * B * Hq * S * D FLOPs: Q K^T and P V. (FlashAttention-2, arXiv 2307.08691, section 3.1, for the FLOPs;
FlashDecoding, Dao et al. 2023, for the splits.) MLA reads one latent and one rope key a token for all its heads, and
the latent is key and value at once: B * S * (512 + 64) * b bytes, 2 * B * H * S * (576 + 512) FLOPs in DeepSeek-V3
(arXiv 2412.19437, section 2.1; arXiv 2405.04434, table 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from minikv.errors import ArgumentError, check_count

INDEX_BYTES = 4  # int32
FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Traffic:
    """The bytes that one call must read and write, and the FLOPs that it must compute."""

    read_bytes: int
    written_bytes: int
    flops: int = 0

    @property
    def num_bytes(self) -> int:
        """Read and written bytes together."""
        return self.read_bytes + self.written_bytes

    @property
    def intensity(self) -> float:
        """FLOPs a byte: above the ridge of a GPU's roofline arithmetic is the limit, below it memory."""
        return self.flops / self.num_bytes if self.num_bytes else 0.0


def decode_traffic(
    lengths: Sequence[int],
    *,
    query_heads: int,
    kv_heads: int,
    dim: int,
    value_dim: int | None = None,
    itemsize: int = 2,
    cache_itemsize: int | None = None,
    block_size: int = 16,
    scaled: bool = False,
    window: int | None = None,
    splits: int = 1,
    scores: bool = False,
) -> Traffic:
    """Return the traffic of one ``paged_decode`` of sequences of ``lengths`` tokens.

    ``itemsize`` bytes an element of queries and result, ``cache_itemsize`` (default: the same) one of the cache.
    ``splits`` > 1 adds the partial results. ``scores`` adds every logit in float32, written and read again, and
    4 bytes a token and KV head of scores.
    """
    return prefill_traffic(
        [1 if length else 0 for length in lengths], lengths, query_heads=query_heads, kv_heads=kv_heads, dim=dim,
        value_dim=value_dim, itemsize=itemsize, cache_itemsize=cache_itemsize, block_size=block_size, scaled=scaled,
        window=window, splits=splits, scores=scores,
    )  # fmt: skip


def prefill_traffic(
    queries: Sequence[int],
    lengths: Sequence[int],
    *,
    query_heads: int,
    kv_heads: int,
    dim: int,
    value_dim: int | None = None,
    itemsize: int = 2,
    cache_itemsize: int | None = None,
    block_size: int = 16,
    scaled: bool = False,
    window: int | None = None,
    splits: int = 1,
    scores: bool = False,
) -> Traffic:
    """Return the traffic of one ``paged_prefill``: sequence i has ``queries[i]`` new tokens of ``lengths[i]`` in all.

    A query at position p sees p + 1 keys, or ``window`` of them: 2 * (Dk + Dv) FLOPs for each and each query head.
    """
    value_dim = dim if value_dim is None else value_dim
    cache_itemsize = itemsize if cache_itemsize is None else cache_itemsize
    _check_counts(
        query_heads=query_heads, kv_heads=kv_heads, dim=dim, value_dim=value_dim, itemsize=itemsize,
        cache_itemsize=cache_itemsize, splits=splits,
    )  # fmt: skip
    per_token = kv_heads * (dim + value_dim) * cache_itemsize + (
        2 * FLOAT32_BYTES * kv_heads if scaled else 0
    )
    per_query = query_heads * (dim + value_dim) * itemsize
    per_pair = 2 * query_heads * (dim + value_dim)
    partial = query_heads * splits * value_dim * FLOAT32_BYTES if splits > 1 else 0
    kept = (query_heads * FLOAT32_BYTES, kv_heads * FLOAT32_BYTES) if scores else (0, 0)
    query_bytes = query_heads * dim * itemsize
    return _attention(
        queries, lengths, window, block_size, per_token, query_bytes, per_query, per_pair, partial, kept
    )  # fmt: skip


def latent_decode_traffic(
    lengths: Sequence[int],
    *,
    heads: int,
    rank: int = 512,
    rope: int = 64,
    itemsize: int = 2,
    block_size: int = 16,
    window: int | None = None,
    splits: int = 1,
) -> Traffic:
    """Return the traffic of one ``latent_decode``: one latent of ``rank`` and one rope key a token for all heads."""
    queries = [1 if length else 0 for length in lengths]
    return latent_prefill_traffic(
        queries, lengths, heads=heads, rank=rank, rope=rope, itemsize=itemsize, block_size=block_size,
        window=window, splits=splits,
    )  # fmt: skip


def latent_prefill_traffic(
    queries: Sequence[int],
    lengths: Sequence[int],
    *,
    heads: int,
    rank: int = 512,
    rope: int = 64,
    itemsize: int = 2,
    block_size: int = 16,
    window: int | None = None,
    splits: int = 1,
) -> Traffic:
    """Return the traffic of one ``latent_prefill``: 2 * (rank + rope + rank) FLOPs for each head and visible key."""
    _check_counts(heads=heads, rank=rank, rope=rope, itemsize=itemsize, splits=splits)
    in_bytes = heads * (rank + rope) * itemsize
    partial = heads * splits * rank * FLOAT32_BYTES if splits > 1 else 0
    return _attention(
        queries, lengths, window, block_size, (rank + rope) * itemsize, in_bytes, in_bytes + heads * rank * itemsize,
        2 * heads * (2 * rank + rope), partial, (0, 0),
    )  # fmt: skip


def store_traffic(
    tokens: int,
    *,
    kv_heads: int,
    dim: int,
    value_dim: int | None = None,
    itemsize: int = 2,
    cache_itemsize: int | None = None,
    scaled: bool = False,
) -> Traffic:
    """Return the traffic of one ``store_kv`` of ``tokens`` tokens: K and V read as given, written as stored."""
    value_dim = dim if value_dim is None else value_dim
    cache_itemsize = itemsize if cache_itemsize is None else cache_itemsize
    check_count("tokens", tokens, least=0)
    _check_counts(
        kv_heads=kv_heads, dim=dim, value_dim=value_dim, itemsize=itemsize, cache_itemsize=cache_itemsize
    )
    elements = tokens * kv_heads * (dim + value_dim)
    scales = 2 * FLOAT32_BYTES * tokens * kv_heads if scaled else 0
    return Traffic(elements * itemsize + INDEX_BYTES * tokens, elements * cache_itemsize + scales)


def move_traffic(count: int, row_bytes: int, lists: int = 1) -> Traffic:
    """Return the traffic of ``move_slots`` or ``copy_blocks`` of ``count`` rows of ``row_bytes`` bytes each.

    Every row is read and written, and its two indices are read. With a list of its own for each of ``lists`` heads a
    row still has ``row_bytes`` in all, and its indices are read for each of them.
    """
    check_count("count", count, least=0)
    _check_counts(row_bytes=row_bytes, lists=lists)
    return Traffic(count * row_bytes + 2 * INDEX_BYTES * count * lists, count * row_bytes)


def gather_traffic(length: int, token_bytes: int, *, block_size: int = 16, start: int = 0) -> Traffic:
    """Return the traffic of one ``gather`` of the tokens ``start`` to ``length - 1``, of ``token_bytes`` bytes each."""
    check_count("length", length, least=0)
    check_count("start", start, least=0)
    _check_counts(token_bytes=token_bytes, block_size=block_size)
    if start > length:
        raise ArgumentError("out_of_range", what="start", value=start, low=-1, high=length)
    moved = (length - start) * token_bytes
    return Traffic(moved + INDEX_BYTES * _blocks(start, length, block_size), moved)


def _attention(
    queries: Sequence[int],
    lengths: Sequence[int],
    window: int | None,
    block_size: int,
    per_token: int,
    query_bytes: int,
    query_and_result_bytes: int,
    flops_per_pair: int,
    partial_bytes: int,
    kept_bytes: tuple[int, int],
) -> Traffic:
    """Sum over the sequences. ``partial_bytes`` are written and read for each query. The first of ``kept_bytes`` is
    written and read for each query and visible key, the second written for each token of the sequence.
    """
    check_count("block_size", block_size)
    if window is not None:
        check_count("window", window)
    if len(queries) != len(lengths):
        batch = len(lengths)
        raise ArgumentError(
            "out_of_range", what="len(queries)", value=len(queries), low=batch - 1, high=batch
        )
    read = written = flops = 0
    for count, length in zip(queries, lengths, strict=True):
        check_count("length", length, least=0)
        check_count("queries", count, least=0)
        if count > length:
            raise ArgumentError("out_of_range", what="queries", value=count, low=-1, high=length)
        if count == 0:
            continue
        first = length - count  # position of the first query
        start = 0 if window is None else max(0, first - window + 1)
        pairs = _pairs(first, length, window)
        read += (length - start) * per_token + INDEX_BYTES * _blocks(start, length, block_size)
        read += count * (query_bytes + partial_bytes) + pairs * kept_bytes[0]
        written += count * (query_and_result_bytes - query_bytes + partial_bytes)
        written += pairs * kept_bytes[0] + length * kept_bytes[1]
        flops += pairs * flops_per_pair
    return Traffic(read, written, flops)


def _pairs(first: int, length: int, window: int | None) -> int:
    """Count the keys that the queries at positions ``first`` to ``length - 1`` see: sum of min(p + 1, window)."""
    window = length if window is None else window
    full = max(first, min(length, window))  # from this position on a query sees ``window`` keys
    return (full - first) * (first + 1 + full) // 2 + (length - full) * window


def _blocks(start: int, end: int, block_size: int) -> int:
    """Return how many blocks hold the positions ``start`` to ``end - 1``."""
    return -(-end // block_size) - start // block_size if end > start else 0


def _check_counts(**counts: int) -> None:
    for what, value in counts.items():
        check_count(what, value)
