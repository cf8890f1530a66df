"""BlockPool: the order of eviction, what can be found and taken back, what is counted, and what is refused."""

import random

import pytest

from minikv.blocks import BlockPool, PoolStats
from minikv.errors import ArgumentError, BrokenInvariantError, OutOfBlocksError
from tests.blocks.world import refused


def cached_pool(num_blocks, order=None):
    """A pool all of whose blocks are cached, freed one by one in ``order``; block i is found under bytes [i]."""
    pool = BlockPool(num_blocks, 4)
    for block in pool.allocate(num_blocks):
        assert pool.publish(block, bytes([block]), b"text")
    for block in order or range(num_blocks):
        pool.free([block])
    return pool


@pytest.mark.parametrize("seed", range(20))
def test_the_block_that_is_free_the_longest_is_evicted_first(seed):
    order = list(range(9))
    random.Random(seed).shuffle(order)
    pool = cached_pool(9, order)
    assert pool.num_cached == pool.num_free == 9
    taken = []
    while pool.num_free:
        taken += pool.allocate(min(random.Random(seed).randint(1, 3), pool.num_free))
        assert [pool.lookup_block(bytes([block]), b"text") for block in taken] == [None] * len(taken)
        assert all(pool.lookup_block(bytes([block]), b"text") == block for block in order[len(taken) :])
    assert taken == order
    assert pool.stats().evictions == 9


def test_of_blocks_freed_together_the_last_is_evicted_first():
    pool = BlockPool(6)
    first, second = pool.allocate(3), pool.allocate(3)
    for block in first + second:
        pool.publish(block, bytes([block]), b"")
    pool.free(second)
    pool.free(first)
    assert pool.allocate(6) == second[::-1] + first[::-1]


def test_empty_blocks_are_taken_before_cached_ones():
    pool = BlockPool(4)
    blocks = pool.allocate(4)
    pool.publish(blocks[0], b"p", b"text")
    pool.free([blocks[0]])  # free the longest, but worth keeping
    pool.free(blocks[2:])
    assert set(pool.allocate(2)) == set(blocks[2:])
    assert pool.lookup_block(b"p", b"text") == blocks[0]
    assert pool.stats().evictions == 0
    assert pool.allocate(1) == [blocks[0]]
    assert pool.lookup_block(b"p", b"text") is None
    assert pool.stats().evictions == 1


@pytest.mark.parametrize("place", range(5))
def test_a_cached_block_is_taken_back_from_anywhere_in_the_free_list(place):
    pool = cached_pool(5, [3, 0, 4, 1, 2])
    order = [3, 0, 4, 1, 2]
    block = order.pop(place)
    pool.touch([block])
    pool.check_invariants()
    assert (pool.ref_count(block), pool.num_free, pool.num_cached) == (1, 4, 4)
    assert pool.lookup_block(bytes([block]), b"text") == block, "it can still be found while it is held"
    pool.free([block])
    assert pool.allocate(5) == [*order, block], "it counts as the one freed last"


def test_a_hit_is_counted_for_every_holder_and_for_nothing_else():
    pool = cached_pool(4)
    pool.touch([0, 1])
    pool.touch([1])
    pool.share([1])
    assert pool.ref_count(1) == 3
    assert pool.lookup_block(b"\0", b"text") == 0
    assert pool.stats() == PoolStats(total=4, free=2, used=2, cached=2, hits=3, evictions=0)
    for _ in range(3):
        assert pool.ref_count(1) > 0
        pool.free([1])
    assert pool.stats() == PoolStats(total=4, free=3, used=1, cached=3, hits=3, evictions=0)


def test_too_many_blocks_are_refused_with_the_numbers_and_none_is_taken():
    pool = BlockPool(5, 16)
    pool.allocate(3)
    error = refused(pool, lambda: pool.allocate(3))
    assert type(error) is OutOfBlocksError
    assert error.values == {"asked": 3, "free": 2, "total": 5, "fits": 32}
    assert pool.allocate(error.values["fits"] // 16) == [3, 4], "what fits really fits"
    assert pool.allocate(0) == []
    assert refused(pool, lambda: pool.allocate(1)).values["fits"] == 0


def test_a_block_is_given_back_once_for_each_holder():
    pool = BlockPool(3)
    a, b, c = pool.allocate(3)
    pool.share([a])
    for wrong in ([a, a], [b, a, b], [a, 3], [-1], [b, 99]):
        assert type(refused(pool, lambda wrong=wrong: pool.free(wrong))) is ArgumentError
    pool.free([a, b])
    pool.free([a])
    for wrong in ([a], [b], [c, a]):
        error = refused(pool, lambda wrong=wrong: pool.free(wrong))
        assert error.code == "block_is_free"
    assert pool.ref_count(c) == 1
    for call in (lambda: pool.share([c, b]), lambda: pool.share([c, c]), lambda: pool.touch([c, b])):
        refused(pool, call)
    refused(pool, lambda: pool.publish(a, b"p", b""))


def test_a_digest_names_one_block_and_a_block_has_one_digest():
    pool = BlockPool(3)
    a, b, _ = pool.allocate(3)
    assert pool.publish(a, b"p", b"text")
    assert pool.publish(a, b"p", b"text"), "again is no harm"
    assert not pool.publish(b, b"p", b"text"), "the first one stays"
    assert not pool.publish(a, b"p", b"other")
    assert pool.lookup_block(b"p", b"text") == a
    assert not pool.is_published(b)
    assert refused(pool, lambda: pool.publish(a, b"q", b"text")).code == "block_published_before"
    pool.forget(a)
    assert pool.publish(b, b"p", b"text")
    assert pool.publish(a, b"q", b"text")
    assert (pool.lookup_block(b"p", b"text"), pool.lookup_block(b"q", b"text")) == (b, a)


def test_two_texts_with_one_digest_never_share():
    pool = BlockPool(2)
    [a] = pool.allocate(1)
    pool.publish(a, b"p", b"mine")
    assert pool.lookup_block(b"p", b"yours") is None
    assert pool.lookup_block(b"p", b"mine") == a


def test_a_forgotten_block_is_empty_once_it_is_free():
    pool = cached_pool(3)
    pool.touch([0])
    pool.forget(0)
    pool.forget(1)
    pool.forget(1)
    assert (pool.num_used, pool.num_cached, pool.num_free) == (1, 1, 2)
    assert pool.lookup_block(b"\0", b"text") is None
    assert pool.lookup_block(b"\1", b"text") is None
    pool.free([0])
    pool.check_invariants()
    assert pool.num_cached == 1
    assert refused(pool, lambda: pool.touch([1])).code == "block_is_empty"
    assert 2 not in pool.allocate(2), "the one that is cached is taken last"


@pytest.mark.parametrize(
    "harm",
    [
        lambda pool: pool._empty.append(pool._empty[-1]),
        lambda pool: pool._empty.pop(),
        lambda pool: pool._cached.popitem(),
        lambda pool: pool._cached.__setitem__(pool._empty.pop(), None),
        lambda pool: pool._refs.__setitem__(0, 0),
        lambda pool: pool._refs.__setitem__(0, -1),
        lambda pool: pool._refs.__setitem__(pool._empty[0], 1),
        lambda pool: pool._block_of.clear(),
        lambda pool: pool._block_of.__setitem__(b"new", 0),
        lambda pool: pool._published.__setitem__(pool._empty[0], (b"new", b"")),
    ],
)
def test_broken_bookkeeping_is_noticed(harm):
    pool = BlockPool(6)
    held, cached = pool.allocate(2)
    pool.publish(held, b"p", b"")
    pool.publish(cached, b"q", b"")
    pool.free([cached])
    pool.check_invariants()
    harm(pool)
    with pytest.raises(BrokenInvariantError):
        pool.check_invariants()
