"""Hit rates: the pool's against a list that is sorted by use, one pass against the pool, and the stack property."""

import tracemalloc
from bisect import bisect_left

import numpy as np
import pytest

from minikv.errors import ArgumentError, RequestTooLargeError
from minikv.simulate.hit_rate import block_uses, hit_rate, hit_rates
from minikv.simulate.load import Load
from minikv.simulate.stack_distance import NEVER, stack_distances
from minikv.simulate.trace import Trace, TraceRequest
from tests.simulate.traces import random_trace


def textbook(trace, num_blocks):
    """LRU as a list, the least recently used in front: what the pool must not need to be."""
    cached, hits = [], 0
    for index, request in enumerate(trace.requests):
        count = -(-request.prompt_tokens // trace.hash_block)
        ids = request.hash_ids or [("own", index)] * count
        names = [tuple(ids[: place + 1]) for place in range(count)]
        found = 0
        while found < len(names) and names[found] in cached:
            found += 1
        hits += min(found * trace.hash_block, request.prompt_tokens)
        cached = [name for name in cached if name not in names] + names
        cached = cached[-num_blocks:]
    return hits / trace.prompt_tokens


def capacities(trace):
    counts = [-(-request.prompt_tokens // trace.hash_block) for request in trace.requests]
    return [max(counts), max(counts) + 1, 2 * max(counts), sum(counts) // 3, sum(counts), 10 * sum(counts)]


@pytest.mark.parametrize("seed", range(6))
def test_the_pool_hits_what_the_textbook_s_lru_hits(seed):
    trace = random_trace(seed, hash_block=8, count=80)
    for num_blocks in capacities(trace):
        assert hit_rate(trace, num_blocks) == textbook(trace, num_blocks)


@pytest.mark.parametrize("block_size", [None, 1, 3, 8, 16, 20, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_one_pass_says_what_the_pool_says(seed, block_size):
    trace = random_trace(seed, hash_block=8, count=60)
    counts = np.diff(block_uses(trace, block_size).starts)
    sizes = [int(counts.max()), int(counts.max()) + 3, int(counts.sum()) // 2 + int(counts.max()), None]
    assert hit_rates(trace, sizes, block_size) == [hit_rate(trace, size, block_size) for size in sizes]


@pytest.mark.parametrize("seed", range(4))
def test_more_blocks_never_hit_less(seed):
    trace = Load(
        num_requests=300, turns=3, system_tokens=700, system_prompts=3, hash_block=64, seed=seed
    ).trace()
    most = int(np.diff(block_uses(trace).starts).max())
    rates = hit_rates(trace, [*range(most, 40 * most, most // 2), None])
    assert rates == sorted(rates)
    assert rates[0] < rates[-1], "otherwise nothing was seen"


@pytest.mark.parametrize("seed", range(4))
def test_a_smaller_cache_s_content_is_in_the_larger_one(seed):
    """The stack property, from the distances: how many different blocks were used since, counted one by one."""
    random = np.random.default_rng(seed)
    requests = np.sort(random.integers(0, 30, 120))
    blocks = np.concatenate([random.permutation(25)[: (requests == request).sum()] for request in range(30)])
    requests, blocks = requests[: len(blocks)], blocks[: len(requests)]
    starts = [bisect_left(requests.tolist(), request) for request in range(31)]
    for use, distance in enumerate(stack_distances(blocks, requests)):
        earlier = blocks[: starts[requests[use]]].tolist()
        if blocks[use] not in earlier:
            assert distance == NEVER
            continue
        last = len(earlier) - 1 - earlier[::-1].index(blocks[use])
        assert distance == len(set(earlier[last:]))


def test_distances_of_one_use_and_of_a_block_that_always_comes_back():
    assert stack_distances(np.array([7]), np.array([0])).tolist() == [NEVER]
    assert stack_distances(np.array([7] * 4), np.arange(4)).tolist() == [NEVER, 1, 1, 1]
    assert stack_distances(np.array([1, 2, 1, 2]), np.array([0, 0, 1, 1])).tolist() == [NEVER, NEVER, 2, 1]


def test_a_hit_behind_a_miss_is_none():
    """The second prompt pushes the first block of the first out, and the third finds its second block only."""
    first, other = TraceRequest(0.0, 8, 1, (1, 2)), TraceRequest(1.0, 4, 1, (9,))
    trace = Trace("holes", (first, other, TraceRequest(2.0, 8, 1, (1, 2))), hash_block=4)
    assert hit_rate(trace, 2) == hit_rates(trace, [2])[0] == 0
    assert hit_rate(trace, 3) == hit_rates(trace, [3])[0] == 8 / 20


def test_a_partly_filled_last_block_counts_its_tokens():
    request = TraceRequest(0.0, 700, 1, (1, 2))
    assert hit_rate(Trace("twice", (request, request))) == 700 / 1400


def test_blocks_smaller_than_the_trace_s_find_the_same_prefixes_and_waste_less():
    trace = random_trace(5, hash_block=16, count=100)
    whole = hit_rate(trace)
    assert hit_rate(trace, block_size=4) == pytest.approx(whole, abs=0.02)
    assert hit_rate(trace, block_size=64) < whole, "a block is found if all of it is equal"


@pytest.mark.parametrize("ask", [hit_rate, lambda trace, blocks: hit_rates(trace, [None, blocks])])
def test_a_prompt_larger_than_the_cache_is_named(ask):
    requests = [TraceRequest(float(at), tokens, 1) for at, tokens in enumerate((700, 1600, 2100))]
    trace = Trace("file.jsonl", tuple(requests), first_line=1)
    with pytest.raises(RequestTooLargeError) as caught:
        ask(trace, 3)
    assert "Line 2 of file.jsonl" in str(caught.value)
    assert caught.value.values["reason"].values == {"tokens": 1600, "blocks": 4, "total": 3, "most": 5}
    assert ask(trace, 5) in (0, [0, 0])


@pytest.mark.parametrize("num_blocks", [0, -1, 2.5, True, "9"])
def test_what_is_no_number_of_blocks_is_refused(num_blocks):
    trace = random_trace(1, hash_block=8)
    with pytest.raises(ArgumentError):
        hit_rate(trace, num_blocks)
    with pytest.raises(ArgumentError):
        hit_rates(trace, [num_blocks])
    with pytest.raises(ArgumentError):
        hit_rate(trace, 100, block_size=num_blocks)


def test_blocks_that_nothing_is_asked_of_take_no_memory():
    trace = random_trace(1, hash_block=8)
    tracemalloc.start()
    assert hit_rate(trace, 10**15) == hit_rate(trace)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()
