"""Prefixes by digest: how a block of tokens is found again, and how far a new prompt is cached already.

A block's K and V depend on every token before it, so its digest does too: SHA-256 over the digest of the block
before it and its own tokens. The first block's parent is made from the salt: requests with different salts (one a
tenant, a LoRA adapter, an image) share nothing. SHA-256 costs the same here as a fast hash that can be made to
collide, and a collision would hand one user the cache of another.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from minikv.blocks.pool import NULL_BLOCK, BlockPool
from minikv.errors import ArgumentError

TOKEN_BYTES = 8  # array("q") and numpy's int64


@dataclass(frozen=True)
class Match:
    """The cached beginning of a prompt: ``num_tokens`` tokens, in whole blocks.

    ``tables`` has one tuple of blocks for each kind of layer, with ``NULL_BLOCK`` where a window no longer
    reaches; ``digests`` has one for each block that was looked up, the misses behind the match included.
    """

    num_tokens: int
    tables: tuple[tuple[int, ...], ...]
    digests: tuple[bytes, ...]


def token_array(tokens: Sequence[int]) -> array:
    """Token ids as one array of 64-bit integers.

    Raises ``ArgumentError`` for what is not a one-dimensional sequence of ints.
    """
    if isinstance(tokens, np.ndarray):
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise ArgumentError("bad_tokens", value=f"numpy array {tokens.dtype}{list(tokens.shape)}")
        return array("q", tokens.astype(np.int64).tobytes())
    if isinstance(tokens, bytes | bytearray):  # array() would read them as raw memory
        raise ArgumentError("bad_tokens", value=type(tokens).__name__)
    try:
        return array("q", tokens)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError("bad_tokens", value=type(tokens).__name__) from None


def root_digest(salt: str) -> bytes:
    """The parent of every first block under ``salt``."""
    if not isinstance(salt, str):
        raise ArgumentError("bad_salt", value=type(salt).__name__)
    return sha256(b"minikv.blocks\0" + salt.encode()).digest()


def child_digest(parent: bytes, tokens: bytes) -> bytes:
    """The digest of a block: ``tokens`` are its ids, 8 bytes each; ``parent`` is the digest of the block before."""
    return sha256(parent + tokens).digest()


def chunks(tokens: array, block_size: int, first: int, last: int) -> Iterator[bytes]:
    """The bytes of the blocks ``first`` to ``last - 1``, each of them full."""
    data = tokens[first * block_size : last * block_size].tobytes()
    step = block_size * TOKEN_BYTES
    return (data[start : start + step] for start in range(0, len(data), step))


def first_block_needed(num_tokens: int, window: int | None, block_size: int) -> int:
    """The first block that the query at position ``num_tokens`` reads: it sees ``window`` tokens, itself included."""
    return 0 if window is None else max(0, num_tokens - window + 1) // block_size


def find_prefix(
    tokens: array, root: bytes, pools: Sequence[BlockPool], windows: Sequence[int | None]
) -> Match:
    """The longest cached prefix of ``tokens`` that every kind of layer can go on from. It changes nothing.

    A kind without a window needs every block of the prefix, one with a window the blocks that its next query
    reads. At least one token is left to compute: without a query there is no next token.
    """
    block_size = pools[0].block_size
    whole = [pool for pool, window in zip(pools, windows, strict=True) if window is None]
    digests: list[bytes] = []
    found: list[list[int | None]] = [[] for _ in pools]
    digest = root
    limit = max(0, len(tokens) - 1) // block_size
    for chunk in chunks(tokens, block_size, 0, limit):
        digest = child_digest(digest, chunk)
        digests.append(digest)
        hits = [pool.find(digest, chunk) for pool in pools]
        if whole and any(hit is None for hit, window in zip(hits, windows, strict=True) if window is None):
            break
        for blocks, hit in zip(found, hits, strict=True):
            blocks.append(hit)
    length = _longest(found, windows, block_size)
    tables = []
    for blocks, window in zip(found, windows, strict=True):
        start = first_block_needed(length * block_size, window, block_size)
        tables.append((NULL_BLOCK,) * start + tuple(blocks[start:length]))
    return Match(length * block_size, tuple(tables), tuple(digests))  # type: ignore[arg-type]


def _longest(found: list[list[int | None]], windows: Sequence[int | None], block_size: int) -> int:
    """The most blocks that are cached in every kind as far as its window reaches back from their end."""
    longest = len(found[0])
    runs = []  # for each windowed kind: how many blocks in a row are cached, ending before block i
    for blocks, window in zip(found, windows, strict=True):
        if window is not None:
            run = [0]
            for block in blocks:
                run.append(0 if block is None else run[-1] + 1)
            runs.append((run, window))
    while longest and any(
        run[longest] < longest - first_block_needed(longest * block_size, window, block_size)
        for run, window in runs
    ):
        longest -= 1
    return longest
