"""What HostPool refuses: before a byte of the cache or of the host has changed."""

import pytest
import torch

from minikv.cache.offload import HostPool
from minikv.errors import MiniKVError
from tests.cache.paged_cases import cache_for, every_byte, fill, refused, unchanged


@pytest.mark.parametrize(
    ("pairs", "code"),
    [
        ([[(0, 0)], [], [(5, 0)]], "cache_index"),
        ([[(0, 0)], [(0, 2)], []], "cache_index"),
        ([[(0, 0)], [(-1, 0)], []], "cache_index"),
        ([[(0, -1)], [], []], "cache_index"),
        ([[(0, 0)], [], [(0, 1.0)]], "cache_not_whole"),
        ([[(0, True)], [], []], "cache_not_whole"),
        ([[(0, 0)], []], "offload_each_group"),
        ([(0, 0)], "offload_each_group"),
        ({}, "offload_each_group"),
        (None, "offload_each_group"),
        ([[(0, 0)], [], 3], "offload_pairs"),
        ([[(0, 0)], [], [3]], "offload_pairs"),
        ([[(0, 0)], [], [(0, 0, 0)]], "offload_pairs"),
    ],
)
@pytest.mark.parametrize("way", ["swap_out", "swap_in"])
def test_pairs_that_cannot_be_swapped(pairs, code, way):
    cache = cache_for("mixed", "int8")
    fill(cache)
    pool = HostPool(cache, 2)
    pool.swap_out([[(1, 0)], [(1, 0)], [(1, 0)]])
    before, stored = every_byte(cache), pool.read([[0]] * 3)
    refused(code, getattr(pool, way), pairs)
    assert unchanged(cache, before)
    assert [pool.held(group) for group in range(3)] == [{0}] * 3
    for now, then in zip(pool.read([[0]] * 3), stored, strict=True):
        assert all(
            torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(now, then, strict=True)
        )


def test_no_block_is_written_twice_in_one_swap():
    cache = cache_for("gqa")
    pool = HostPool(cache, 3)
    refused("cache_twice", pool.swap_out, [[(0, 1), (2, 1)]])
    pool.swap_out([[(0, 0), (0, 1)]])  # one block to two places is no mistake
    refused("cache_twice", pool.swap_in, [[(2, 0), (2, 1)]])
    pool.swap_in([[(1, 0), (2, 0)]])


def test_a_host_block_that_holds_nothing_cannot_come_in():
    cache = cache_for("gqa")
    fill(cache)
    before = every_byte(cache)
    pool = HostPool(cache, 2)
    pool.swap_out([[(0, 0)]])
    error = refused("offload_empty", pool.swap_in, [[(1, 0), (2, 1)]])
    assert error.values == {"kv_cache_group": 0, "block": 1}
    assert unchanged(cache, before)
    refused("offload_empty", pool.read, [[0, 1]])


@pytest.mark.parametrize("blocks", [0, True, [1], [1, 1, 0], None])
def test_numbers_of_host_blocks_that_cannot_be(blocks):
    with pytest.raises(MiniKVError):
        HostPool(cache_for("mixed"), blocks)


def test_more_host_blocks_than_the_memory_holds():
    refused("offload_no_memory", HostPool, cache_for("gqa"), 2**45)


def test_a_pool_belongs_to_a_cache():
    refused("offload_not_a_cache", HostPool, "cache", 2)
    cache = cache_for("gqa")
    pool = HostPool(cache, 2)
    refused("out_of_range", pool.held, 1)
    pool.close()
    pool.close()
    for call in (lambda: pool.swap_out([[(0, 0)]]), lambda: pool.held(0), lambda: pool.read([[0]])):
        refused("offload_closed", call)
    cache.close()
