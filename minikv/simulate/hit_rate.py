"""The hit rate of a trace's prompts in a cache of so many blocks, without a scheduler and without a clock.

    hit_rate(trace, 10_000)                     by the pool of minikv.blocks, request by request
    hit_rates(trace, [1_000, 10_000, None])     the same for many sizes, from one pass over the trace

Requests come one after the other. Each leaves all blocks of its prompt in the cache, a partly filled last one included.
The least recently used blocks are evicted (LRU). A hit is a block in the unbroken run of cached blocks from the
beginning of a prompt: K and V behind the first miss have to be computed anyway. This is the rate that the trace allows.
An engine's rate is a little lower: it shares full blocks only, always computes the last token, and runs requests at
once, so that some come before the prefix that they share is computed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from minikv.blocks.pool import BlockPool
from minikv.errors import RequestTooLargeError, check_count
from minikv.simulate.stack_distance import stack_distances
from minikv.simulate.trace import Trace


@dataclass(frozen=True)
class BlockUses:
    """Every use of a block, prompt after prompt, from the beginning of each to its end.

    - ``blocks``: int64 [uses]: the block. Two uses have the same one where the prompts are equal up to its end.
    - ``requests``: int64 [uses]: the request that uses it, ascending from 0.
    - ``tokens``: int64 [uses]: the prompt's tokens in the block, ``block_size`` in all but the last.
    - ``starts``: int64 [requests + 1]: where the uses of each request begin.
    """

    blocks: np.ndarray
    requests: np.ndarray
    tokens: np.ndarray
    starts: np.ndarray


def block_uses(trace: Trace, block_size: int | None = None) -> BlockUses:
    """The uses of the prompts' blocks, each of ``block_size`` tokens (None: the trace's ``hash_block``).

    Raises ``ArgumentError`` for a block size that is no whole number of at least 1.
    """
    size = trace.hash_block if block_size is None else block_size
    check_count("block_size", size)
    prompts = np.array([request.prompt_tokens for request in trace.requests], np.int64)
    counts = -(-prompts // size)
    starts = np.concatenate([[0], np.cumsum(counts)])
    requests = np.repeat(np.arange(len(prompts)), counts)
    places = np.arange(len(requests)) - starts[requests]
    ends = np.minimum((places + 1) * size, prompts[requests])
    prefixes = _prefixes(trace, requests, (ends - 1) // trace.hash_block)
    # A block is known by the prefix up to the hash block in which it ends, and by its place in the prompt.
    _, blocks = np.unique(prefixes * (places.max() + 1) + places, return_inverse=True)
    return BlockUses(blocks, requests, ends - places * size, starts)


def _prefixes(trace: Trace, requests: np.ndarray, hash_places: np.ndarray) -> np.ndarray:
    """int64 [uses]: a number for the prefix up to the end of hash block ``hash_places[i]`` of ``requests[i]``."""
    known: dict[tuple[int, int], int] = {}
    numbers: list[int] = []
    firsts, lasts = [], []
    fresh = 0
    for request in trace.requests:
        firsts.append(len(numbers))
        prefix = -1
        for hash_id in request.hash_ids:
            prefix = known.setdefault((prefix, hash_id), fresh)
            fresh += prefix == fresh
            numbers.append(prefix)
        if not request.hash_ids:  # its prompt shares nothing
            numbers.append(fresh)
            fresh += 1
        lasts.append(len(numbers) - 1)
    at = np.minimum(np.array(firsts)[requests] + hash_places, np.array(lasts)[requests])
    return np.array(numbers)[at]


def hit_rate(trace: Trace, num_blocks: int | None = None, block_size: int | None = None) -> float:
    """The share of the prompts' tokens that are hits in a ``BlockPool`` of ``num_blocks`` (None: no limit).

    Raises ``RequestTooLargeError`` if a prompt has more blocks than the pool, ``ArgumentError`` for what is no number
    of blocks.
    """
    uses = block_uses(trace, block_size)
    if num_blocks is None:
        num_blocks = int(uses.blocks.max()) + 1
    _check_fits(trace, uses, num_blocks)
    # A pool with a block for every prefix evicts nothing: more blocks would change nothing.
    digests = [block.to_bytes(8) for block in range(int(uses.blocks.max()) + 1)]
    num_blocks = min(num_blocks, len(digests))
    pool = BlockPool(num_blocks, trace.hash_block if block_size is None else block_size)
    names, starts = uses.blocks.tolist(), uses.starts.tolist()
    hits = 0
    for start, end in pairwise(starts):
        hits += int(
            uses.tokens[start : start + _use(pool, [digests[name] for name in names[start:end]])].sum()
        )
    return hits / trace.prompt_tokens


def _use(pool: BlockPool, digests: list[bytes]) -> int:
    """Look up, take and free the blocks of one request; returns how many of the first were cached."""
    found = [pool.lookup_block(digest, b"") for digest in digests]
    pool.touch([block for block in found if block is not None])  # so that ``allocate`` evicts none of them
    added = iter(pool.allocate(found.count(None)))
    held = []
    for digest, block in zip(digests, found, strict=True):
        if block is None:
            block = next(added)
            pool.publish(block, digest, b"")
        held.append(block)
    # ``free`` begins at the end of its list, so that an engine evicts a prompt's tail first. Plain LRU evicts its
    # beginning first: hence the reversed list.
    pool.free(held[::-1])
    return found.index(None) if None in found else len(found)


def hit_rates(trace: Trace, capacities: Iterable[int | None], block_size: int | None = None) -> list[float]:
    """``hit_rate`` for each of ``capacities``, by stack distances. Raises what ``hit_rate`` raises."""
    uses = block_uses(trace, block_size)
    reach = _reach(uses)
    order = np.argsort(reach)
    tokens = np.concatenate([[0], np.cumsum(uses.tokens[order])])
    rates = []
    for num_blocks in capacities:
        if num_blocks is not None:
            _check_fits(trace, uses, num_blocks)
        hits = np.searchsorted(reach[order], _limit(uses, num_blocks), "right")
        rates.append(float(tokens[hits] / tokens[-1]))
    return rates


def cached_tokens(trace: Trace, num_blocks: int | None = None, block_size: int | None = None) -> np.ndarray:
    """int64 [requests]: the tokens of each prompt that are hits. Raises what ``hit_rate`` raises."""
    uses = block_uses(trace, block_size)
    if num_blocks is not None:
        _check_fits(trace, uses, num_blocks)
    hits = np.where(_reach(uses) <= _limit(uses, num_blocks), uses.tokens, 0)
    return np.add.reduceat(hits, uses.starts[:-1])


def _reach(uses: BlockUses) -> np.ndarray:
    """int64 [uses]: the capacity in blocks from which on this block and all before it in its prompt are hits."""
    never = len(uses.blocks) + 1
    distances = np.minimum(stack_distances(uses.blocks, uses.requests), never)
    step = uses.requests * (never + 1)  # more than any distance: the maximum restarts
    return np.maximum.accumulate(distances + step) - step


def _limit(uses: BlockUses, num_blocks: int | None) -> int:
    return len(uses.blocks) if num_blocks is None else min(num_blocks, len(uses.blocks))


def _check_fits(trace: Trace, uses: BlockUses, num_blocks: int) -> None:
    """Raise ``RequestTooLargeError`` for the first prompt that alone does not fit the cache."""
    check_count("num_blocks", num_blocks)
    counts = np.diff(uses.starts)
    too_large = np.flatnonzero(counts > num_blocks)
    if len(too_large):
        index = int(too_large[0])
        fault = RequestTooLargeError(
            "trace_too_large",
            tokens=trace.requests[index].prompt_tokens,
            blocks=int(counts[index]),
            total=num_blocks,
            most=int(counts.max()),
        )
        raise trace.at(index, fault)
