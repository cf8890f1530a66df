"""Prefixes by digest: how a block of tokens is found again, and how far a new prompt is cached already.

A block's K and V depend on every token before it, so its digest does too: SHA-256 over the digest of the block
before it and its own tokens. The first block's parent is made from the salt: requests with different salts (one a
tenant, a LoRA adapter, an image) share nothing. SHA-256 costs the same here as a fast hash that can be made to
collide, and a collision would hand one user the cache of another.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from struct import error as struct_error
from struct import pack
from typing import Protocol

import numpy as np

from minikv.blocks.pool import NULL_BLOCK
from minikv.errors import ArgumentError

TOKEN_BYTES = 8  # array("q") and numpy's int64
LARGEST_TOKEN = 2**63 - 1


@dataclass(frozen=True)
class Match:
    """The cached beginning of a prompt: ``num_tokens`` tokens, in whole blocks.

    ``tables`` has one tuple of blocks for each KV cache group, with ``NULL_BLOCK`` where a window no longer
    reaches, or where only the host has the block: ``host`` has these, (place, host block) for each group. ``digests``
    has one for each block that was looked up, the misses behind the match included.
    """

    num_tokens: int
    tables: tuple[tuple[int, ...], ...]
    digests: tuple[bytes, ...]
    host: tuple[tuple[tuple[int, int], ...], ...] = ()


class Findable(Protocol):
    """What a prefix is looked up in: a ``BlockPool``, or several as one."""

    block_size: int

    def lookup_block(self, digest: bytes, tokens: bytes) -> int | None: ...


def token_array(tokens: Sequence[int]) -> array:
    """Token ids as one array of 64-bit integers.

    Raises ``ArgumentError`` for what is not a one-dimensional sequence of ints.
    """
    if isinstance(tokens, array) and tokens.typecode == "q":
        return tokens[:]
    if isinstance(tokens, np.ndarray):
        too_wide = tokens.dtype == np.uint64 and bool((tokens > LARGEST_TOKEN).any())  # it would wrap
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or too_wide:
            raise ArgumentError("bad_tokens", value=f"numpy array {tokens.dtype}{list(tokens.shape)}")
        return array("q", tokens.astype(np.int64).tobytes())
    if isinstance(tokens, (set, frozenset, dict, str, bytes, bytearray)):  # without an order, or no ids
        raise ArgumentError("bad_tokens", value=type(tokens).__name__)
    try:
        packed = pack(f"{len(tokens)}q", *tokens)  # three times as fast as array("q", tokens)
    except (TypeError, struct_error):
        raise ArgumentError("bad_tokens", value=_type_of(tokens)) from None
    # A bool is packed as 0 or 1: only where these stand is a type looked at, since all types would take as long again.
    low = np.flatnonzero(np.frombuffer(packed, np.uint64) < 2).tolist()
    listed = tuple(tokens) if low else ()
    if any(isinstance(listed[place], bool) for place in low):
        raise ArgumentError("bad_tokens", value=_type_of(tokens))
    return array("q", packed)


def _type_of(tokens: object) -> str:
    """ "list[float, int]" for a list, as Python writes types; the type's name for anything else."""
    name = type(tokens).__name__
    if not isinstance(tokens, list | tuple):
        return name
    return f"{name}[{', '.join(sorted({type(token).__name__ for token in tokens}))}]"


def root_digest(salt: str) -> bytes:
    """The parent of every first block under ``salt``."""
    if not isinstance(salt, str):
        raise ArgumentError("bad_salt", value=type(salt).__name__)
    return sha256(b"minikv.blocks\0" + salt.encode("utf-8", "surrogatepass")).digest()


def child_digest(parent: bytes, tokens: bytes) -> bytes:
    """The digest of a block: ``tokens`` are its ids, 8 bytes each; ``parent`` is the digest of the block before."""
    return sha256(parent + tokens).digest()


def chunks(tokens: array, block_size: int, first: int, last: int) -> list[bytes]:
    """The bytes of the blocks ``first`` to ``last - 1``, each of them full."""
    data = tokens[first * block_size : last * block_size].tobytes()
    step = block_size * TOKEN_BYTES
    return [data[start : start + step] for start in range(0, len(data), step)]


def first_block_needed(num_tokens: int, window: int | None, block_size: int) -> int:
    """The first block that the query at position ``num_tokens`` reads: it sees ``window`` tokens, itself included."""
    return 0 if window is None else max(0, num_tokens - window + 1) // block_size


def find_prefix(
    tokens: array, root: bytes, pools: Sequence[Findable], windows: Sequence[int | None]
) -> Match:
    """The longest cached prefix of ``tokens`` that every KV cache group can go on from. It changes nothing.

    A group without a window needs every block of the prefix, one with a window the blocks that its next query
    reads. At least one token is left to compute: without a query there is no next token.
    """
    block_size = pools[0].block_size
    # The prefix is no longer than what a group without a window finds, so the other groups look no further.
    lead = windows.index(None) if None in windows else None
    texts = chunks(tokens, block_size, 0, max(0, len(tokens) - 1) // block_size)
    digests, found_by_lead = _walk(texts, root, None if lead is None else pools[lead])
    found: list[list[int | None]] = []
    for group, pool in enumerate(pools):
        if group == lead:
            found.append(found_by_lead)
        else:
            found.append(
                [pool.lookup_block(digest, text) for digest, text in zip(digests, texts, strict=False)]
            )
    length = _longest(found, windows, block_size) if len(pools) > 1 or lead is None else len(found_by_lead)
    tables = []
    for blocks, window in zip(found, windows, strict=True):
        start = first_block_needed(length * block_size, window, block_size)
        tables.append((NULL_BLOCK,) * start + tuple(blocks[start:length]))
    return Match(length * block_size, tuple(tables), tuple(digests))  # type: ignore[arg-type]


def _walk(texts: list[bytes], parent: bytes, pool: Findable | None) -> tuple[list[bytes], list[int | None]]:
    """The digests of ``texts`` and their blocks in ``pool``, up to the first miss; without a pool, all digests."""
    digests: list[bytes] = []
    found: list[int | None] = []
    for text in texts:
        parent = child_digest(parent, text)
        digests.append(parent)
        if pool is not None:
            block = pool.lookup_block(parent, text)
            if block is None:
                break
            found.append(block)
    return digests, found


def _longest(found: list[list[int | None]], windows: Sequence[int | None], block_size: int) -> int:
    """The most blocks that are cached in every group as far as its window reaches back from their end."""
    longest = min(len(blocks) for blocks in found)
    runs = []  # for each group: how many blocks in a row are cached, ending before block i
    for blocks in found:
        run = [0]
        for block in blocks:
            run.append(0 if block is None else run[-1] + 1)
        runs.append(run)
    while longest and any(
        run[longest] < longest - first_block_needed(longest * block_size, window, block_size)
        for run, window in zip(runs, windows, strict=True)
    ):
        longest -= 1
    return longest
