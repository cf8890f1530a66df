"""A sequence's life, case by case: what the random tests found, and what is worth reading as an example."""

import pytest

from minikv.blocks import BlockManager, Compaction, Copy, HostBlocks, KVCacheGroup
from minikv.errors import UnknownNameError
from tests.blocks.snapshot import snapshot
from tests.blocks.world import Broken, World, refused

GROUPS = [[(9, None)], [(9, None), (9, None)], [(9, None), (9, 100)], [(9, 100), (9, None)]]


def full_group(groups):
    return [window for _, window in groups].index(None)


@pytest.mark.parametrize("groups", GROUPS)
def test_a_compacted_fork_still_copies_before_it_writes_in_every_group(groups):
    """compact() makes the blocks of one group the sequence's own; those of the others are shared as before."""
    manager = BlockManager([KVCacheGroup(*group) for group in groups], 4)
    manager.allocate("a", [0, 1, 2, 3, 4, 5])
    manager.commit("a")
    manager.fork("a", "b")
    manager.compact("a", 5, full_group(groups))
    manager.append("a", 9)
    for group in range(len(groups)):
        written = manager.slot_mapping("a", 6, 7, group)[0] // 4
        assert manager.pools[group].ref_count(int(written)) == 1
        assert written not in manager.block_table("b", group)


@pytest.mark.parametrize("groups", GROUPS)
def test_a_compacted_sequence_does_not_write_into_what_others_can_find(groups):
    manager = BlockManager([KVCacheGroup(*group) for group in groups], 4)
    manager.allocate("a", range(8))
    manager.commit("a")
    manager.truncate("a", 6)
    manager.compact("a", 5, full_group(groups))
    manager.append("a", 9)
    for group, pool in enumerate(manager.pools):
        assert not pool.is_published(int(manager.slot_mapping("a", 6, 7, group)[0]) // 4)
    assert manager.match([*range(8), 0]).num_tokens == 0


def test_the_last_block_of_a_fork_is_copied_once():
    manager = BlockManager(9, 4)
    manager.allocate("a", [1, 2, 3, 4, 5])
    manager.fork("a", "b")
    manager.fork("b", "c")
    assert manager.append("b", 6) == (Copy(0, 1, 2),)
    assert manager.append("b", 7) == ()
    assert manager.append("a", 6) == (Copy(0, 1, 3),)
    assert manager.append("c", 6) == (), "the last one keeps the block"
    assert [manager.block_table(name) for name in "abc"] == [[0, 3], [0, 2], [0, 1]]


def test_a_fork_at_the_edge_of_a_block_copies_nothing():
    manager = BlockManager(9, 2)
    manager.allocate("a", [1, 2])
    manager.fork("a", "b")
    assert manager.append("a", 3) == manager.append("b", 3) == ()
    assert manager.pools[0].ref_count(0) == 2


def test_eviction_frees_the_tail_and_copies_what_is_shared():
    manager = BlockManager(9, 2)
    manager.allocate("a", [1, 2, 3, 4, 5, 6, 7])
    manager.commit("a")
    manager.allocate("b", [1, 2, 9])  # shares the first block
    done = manager.compact("a", 3)
    assert done == Compaction((Copy(0, 0, 5),), (5, 1, 2, 3), (5, 1), 3)
    assert manager.match([1, 2, 3, 4, 0]).num_tokens == 2, "of b; what a keeps is no longer found"
    manager.append("a", 8)
    manager.commit("a")
    assert manager.match([1, 2, 3, 4, 0]).num_tokens == 2, "and nothing that a writes later"
    assert manager.compact("a", 4) == Compaction((), (5, 1), (5, 1), 4), "nothing to evict"
    manager.check_invariants()


@pytest.mark.parametrize("way", ["out", "in"])
@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt, GeneratorExit])
def test_a_transfer_that_breaks_changes_nothing(way, error):
    manager = BlockManager([KVCacheGroup(9), KVCacheGroup(9, window=3)], 2, host_blocks=HostBlocks(6, 2, 2))
    manager.allocate("a", [1, 2, 3, 4, 5])
    manager.commit("a")
    manager.fork("a", "b")
    if way == "in":
        with manager.swapping_out("a"):
            pass
    before = snapshot(manager)
    with pytest.raises(error), (manager.swapping_out if way == "out" else manager.swapping_in)("a"):
        raise error
    assert snapshot(manager) == before
    manager.check_invariants()


def test_others_go_on_while_a_sequence_is_in_transit():
    manager = BlockManager(9, 2, host_blocks=HostBlocks(9, 2))
    for name in "abc":
        manager.allocate(name, [1, 2, 3])
    with manager.swapping_out("b") as first, manager.swapping_out("a") as second:
        manager.append("c", 4)
        manager.append("c", 5)
        manager.commit("c")
        manager.allocate("d", [1, 2, 9])
        refused(manager, lambda: manager.fork("a", "e"))
        refused(manager, lambda: manager.free("b"))
    device = [pair[0] for swap in (first, second) for pair in swap.pairs[0]]
    host = [pair[1] for swap in (first, second) for pair in swap.pairs[0]]
    assert len(set(device)) == len(set(host)) == 4
    manager.check_invariants()
    assert sorted(manager.sequences()) == ["c", "d"]
    with manager.swapping_in("b"):
        manager.free("d")
        refused(manager, lambda: manager.swapping_in("b").__enter__())
    manager.free("a")
    manager.check_invariants()
    assert manager.num_tokens("b") == 3
    manager.free("b")
    manager.free("c")
    assert manager.pools[0].num_free == 9


def test_what_was_swapped_is_published_again_by_the_next_commit():
    world = World([(4, None)], 2, host_blocks=4)
    world.allocate("a", [0, 1, 0, 1, 0], "")
    world.commit("a")
    world.swap_out("a")
    world.allocate("b", [1] * 7, "")  # evicts what "a" left
    assert world.real.match([0, 1, 0, 1, 0]).num_tokens == 0
    world.free("b")
    world.swap_in("a")
    world.check()
    assert world.real.match([0, 1, 0, 1, 0]).num_tokens == 0
    world.commit("a")
    world.check()
    assert world.real.match([0, 1, 0, 1, 0]).num_tokens == 4


def test_fragmentation_counts_every_used_slot_once():
    manager = BlockManager([KVCacheGroup(9), KVCacheGroup(9, window=4)], 4)
    assert manager.stats().fragmentation() == 0
    assert manager.stats().hit_rate == 0
    manager.allocate("a", [1, 2, 3, 4, 5])
    assert manager.stats().wasted_slots == (3, 3)
    manager.commit("a")
    manager.fork("a", "b")
    assert manager.stats().wasted_slots == (3, 3), "a shared block wastes its slots once"
    manager.append("b", 6)
    assert manager.stats().wasted_slots == (5, 5)
    assert manager.stats().fragmentation(0) == 5 / 12
    manager.append_tokens("b", [7, 8])
    manager.commit("b")
    assert manager.stats().wasted_slots == (3, 3)
    manager.truncate("a", 5)
    manager.free("b")
    assert manager.allocate("c", [1, 2, 3, 4, 5, 6, 7, 8, 9]).num_cached == 8
    stats = manager.stats()
    assert (stats.asked_tokens, stats.hit_tokens, stats.hit_rate) == (14, 8, 8 / 14)
    assert (stats.sequences, stats.block_size, stats.pools[0].used) == (2, 4, 4)


def test_the_tokens_of_a_sequence_are_a_copy():
    """Also where the window has given their blocks back; and the sequence grows while somebody reads them."""
    manager = BlockManager([KVCacheGroup(9, 3)], 2)
    manager.allocate("a", [5, 2**40, 5, 6, 7, 8])
    manager.commit("a")
    manager.truncate("a", 6)
    tokens = manager.tokens("a")
    manager.append("a", 9)
    tokens[0] = 1
    assert (tokens.dtype, tokens.tolist()) == ("int64", [1, 2**40, 5, 6, 7, 8])
    assert manager.tokens("a").tolist() == [5, 2**40, 5, 6, 7, 8, 9]
    with pytest.raises(UnknownNameError):
        manager.tokens("b")
