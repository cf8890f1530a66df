"""Windows: a bounded need, blocks given back as soon as they may be and no sooner, and what a prefix hit needs."""

import pytest

from minikv.blocks import NULL_BLOCK, BlockManager, KVCacheGroup
from minikv.plan.spec.layers import LayerSpec
from tests.blocks.world import refused


def live(manager, name, group):
    return [block for block in manager.block_table(name, group) if block != NULL_BLOCK]


def bound(window, num_tokens, size):
    layer = LayerSpec("full" if window is None else "sliding", kv_heads=1, k_dim=1, v_dim=1, window=window)
    return layer.blocks_for(num_tokens, size)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 16])
@pytest.mark.parametrize("window", [None, 1, 2, 3, 4, 5, 8, 17, 100])
@pytest.mark.parametrize("prompt", [1, 5, 40])
def test_a_sequence_that_is_decoded_never_needs_more_blocks_than_planned(window, size, prompt):
    manager = BlockManager([KVCacheGroup(200), KVCacheGroup(200, window)], size)
    manager.allocate("a", [7] * prompt)
    manager.commit("a")
    reached = 0
    for num_tokens in range(prompt + 1, 120):
        manager.append("a", 7)
        blocks = len(live(manager, "a", 1))
        assert blocks <= bound(window, num_tokens, size), f"before the commit of {num_tokens}"
        reached += blocks == bound(window, num_tokens, size)
        manager.commit("a")
        assert len(live(manager, "a", 1)) <= bound(window, num_tokens, size)
        assert manager.pools[1].num_used == len(live(manager, "a", 1))
    assert reached, "the plan is no looser than it must be"


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 9])
def test_a_block_is_given_back_exactly_when_no_later_query_sees_it(window, size):
    """The query at position p sees p - window + 1 .. p; the next one to come is at the number of committed tokens."""
    manager = BlockManager([KVCacheGroup(40), KVCacheGroup(40, window)], size)
    manager.allocate("a", [7] * 30)
    for committed in range(31):
        manager.commit("a", committed)
        seen = set(range(max(0, committed - window + 1), 30))
        for place, block in enumerate(manager.block_table("a", 1)):
            positions = set(range(place * size, (place + 1) * size))
            assert (block != NULL_BLOCK) == bool(positions & seen) or (committed == 30 and not seen)
        mapped = manager.slot_mapping("a", 0, 30, 1).tolist()
        assert [slot == -1 for slot in mapped] == [
            manager.block_table("a", 1)[position // size] == NULL_BLOCK for position in range(30)
        ]
    manager.free("a")
    assert manager.pools[1].num_free == 40


def test_a_pool_of_the_windows_size_is_enough_for_any_length():
    window, size = 6, 4
    manager = BlockManager([KVCacheGroup(bound(window, 10_000, size), window)], size)
    manager.allocate("a", [1, 2, 3])
    for token in range(500):
        manager.append("a", token)
        manager.commit("a")
    assert manager.num_tokens("a") == 503
    manager.check_invariants()


def test_a_hit_needs_the_last_windows_blocks_only():
    manager = BlockManager([KVCacheGroup(40), KVCacheGroup(20, window=3)], 2)
    text = list(range(12))
    manager.allocate("a", text)
    manager.commit("a")
    tail = manager.block_table("a", 1)
    assert tail[:5] == [NULL_BLOCK] * 5
    assert tail[5] != NULL_BLOCK
    # 12 tokens are found with the window's last block; 10 would need the block before, which is free but not lost.
    found = manager.match([*text, 99])
    assert found.num_tokens == 12
    assert found.tables[1] == (NULL_BLOCK,) * 5 + (tail[5],)
    manager.allocate("b", [*text, 99])
    assert manager.pools[1].ref_count(tail[5]) == 2
    # Evict what is behind the window: an earlier end of the match is no longer one.
    manager.allocate("other", [50] * 34)
    assert manager.match([*text[:8], 99]).num_tokens == 0, "the window's block before position 8 is gone"
    assert manager.match([*text, 99]).num_tokens == 12
    manager.check_invariants()


def test_of_the_blocks_behind_a_window_the_oldest_is_evicted_first():
    manager = BlockManager([KVCacheGroup(8, window=2)], 2)
    manager.allocate("a", list(range(12)))
    blocks = manager.block_table("a")
    manager.commit("a")
    assert manager.pools[0].num_cached == 5
    taken = manager.pools[0].allocate(7)
    assert taken[2:] == blocks[:5]


def test_what_a_window_gave_back_cannot_be_cut_back_to():
    manager = BlockManager([KVCacheGroup(9), KVCacheGroup(9, window=3)], 2)
    manager.allocate("a", list(range(9)))
    manager.commit("a", 6)
    manager.truncate("a", 6)  # drafts are not committed yet: the window has kept what they may fall back to
    assert refused(manager, lambda: manager.truncate("a", 5)).code == "window_gave_back"
    manager.append_tokens("a", [1, 2, 3])
    manager.commit("a")
    assert refused(manager, lambda: manager.truncate("a", 6)).code == "window_gave_back"
    manager.check_invariants()
