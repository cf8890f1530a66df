"""Prefixes by digest: how a block of tokens is found again, and how much of a new prompt is cached.

A block's K and V depend on every token before it, so its digest does too: SHA-256 over the digest of the block
before it and its own tokens. The first block's parent is made from the salt: requests with different salts (one a
tenant, a LoRA adapter, an image) share nothing. SHA-256 costs the same here as a fast hash that can be made to
collide, and a collision would give one user the cache of another.
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

    ``tables`` has one tuple of blocks for each KV cache group, with ``NULL_BLOCK`` behind a window, and where only the
    host has the block: ``host`` has these, (place, host block) for each group. ``digests`` has one for each block that
    was looked up, the misses behind the match included.
    """

    num_tokens: int
    tables: tuple[tuple[int, ...], ...]
    digests: tuple[bytes, ...]
    host: tuple[tuple[tuple[int, int], ...], ...] = ()


class Findable(Protocol):
    """A place to look up prefixes: a ``BlockPool``, or several as one."""

    block_size: int

    def lookup_block(self, digest: bytes, tokens: bytes) -> int | None: ...


def token_array(tokens: Sequence[int]) -> array:
    """Return token ids as one array of 64-bit integers.

    Raises ``ArgumentError`` for anything but a one-dimensional sequence of ints.
    """
    if isinstance(tokens, array) and tokens.typecode == "q":
        return tokens[:]
    if isinstance(tokens, np.ndarray):
        too_wide = tokens.dtype == np.uint64 and bool((tokens > LARGEST_TOKEN).any())  # it would wrap
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or too_wide:
            raise ArgumentError("bad_tokens", value=f"numpy array {tokens.dtype}{list(tokens.shape)}")
        return array("q", tokens.astype(np.int64).tobytes())
    if isinstance(tokens, (set, frozenset, dict, str, bytes, bytearray)):  # these have no order, or no ids
        raise ArgumentError("bad_tokens", value=type(tokens).__name__)
    try:
        packed = pack(f"{len(tokens)}q", *tokens)  # three times as fast as array("q", tokens)
    except (TypeError, struct_error):
        raise ArgumentError("bad_tokens", value=_type_of(tokens)) from None
    # A bool is packed as 0 or 1. So the types in a long list are checked only where these occur; checking all would
    # double the time. In a short one all are checked in less time than numpy takes for its first call.
    suspects: Sequence[int] = tokens
    if len(tokens) > 256:
        low = np.flatnonzero(np.frombuffer(packed, np.uint64) < 2).tolist()
        listed = tuple(tokens) if low else ()
        suspects = [listed[place] for place in low]
    if bool in map(type, suspects):
        raise ArgumentError("bad_tokens", value=_type_of(tokens))
    return array("q", packed)


def _type_of(tokens: object) -> str:
    """Return "list[float, int]" for a list, as Python writes types; the type's name for anything else."""
    name = type(tokens).__name__
    if not isinstance(tokens, list | tuple):
        return name
    return f"{name}[{', '.join(sorted({type(token).__name__ for token in tokens}))}]"


def root_digest(salt: str) -> bytes:
    """Return the parent of every first block under ``salt``."""
    if not isinstance(salt, str):
        raise ArgumentError("bad_salt", value=type(salt).__name__)
    return sha256(b"minikv.blocks\0" + salt.encode("utf-8", "surrogatepass")).digest()


def child_digest(parent: bytes, tokens: bytes) -> bytes:
    """Return the digest of a block from its ``tokens``, ids of 8 bytes each, and the digest of the block before it."""
    return sha256(parent + tokens).digest()


def chunks(tokens: array, block_size: int, first: int, last: int) -> list[bytes]:
    """Return the bytes of the full blocks ``first`` to ``last - 1``."""
    data = tokens[first * block_size : last * block_size].tobytes()
    step = block_size * TOKEN_BYTES
    return [data[start : start + step] for start in range(0, len(data), step)]


def first_block_needed(num_tokens: int, window: int | None, block_size: int) -> int:
    """Return the first block that the query at position ``num_tokens`` reads: it sees ``window`` tokens with itself."""
    return 0 if window is None else max(0, num_tokens - window + 1) // block_size


def find_prefix(
    tokens: array, root: bytes, pools: Sequence[Findable], windows: Sequence[int | None]
) -> Match:
    """Return the longest cached prefix of ``tokens`` from which every KV cache group can continue. Changes nothing.

    A group without a window needs every block of the prefix; a group with one needs the blocks that its next query
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
    """Return the digests of ``texts`` and their blocks in ``pool``, up to the first miss; or all digests alone."""
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
    """Return the most blocks that every group has cached as far back from their end as its window reaches."""
    longest = min(len(blocks) for blocks in found)
    runs = []  # for each group: how many blocks in a row are cached, ending before block i
    for blocks in found:
        run = [0]
        for block in blocks:
            run.append(0 if block is None else run[-1] + 1)
        runs.append(run)
    # Shorten the prefix until every group's run before its end reaches back as far as its window.
    while longest and any(
        run[longest] < longest - first_block_needed(longest * block_size, window, block_size)
        for run, window in zip(runs, windows, strict=True)
    ):
        longest -= 1
    return longest
