"""Planned transfers: what is on its way cannot be found, what a step reads is not overwritten, nothing moves twice."""

import pytest

from minikv.blocks import NULL_BLOCK, BlockManager, HostBlocks, KVCacheGroup
from minikv.errors import OutOfBlocksError, RequestTooLargeError
from tests.blocks.world import refused

LONG = list(range(100, 113))  # 3 blocks of 4, and one token


def manager_of(num_blocks=6, host_blocks=8, groups=1, window=None):
    pools = [KVCacheGroup(num_blocks)] + [KVCacheGroup(num_blocks, window)] * (groups - 1)
    manager = BlockManager(pools, 4, host_blocks=HostBlocks(host_blocks, 4, groups))
    manager.keep_reclaimed()
    return manager


def begun(manager, name, tokens):
    found = manager.allocate(name, tokens)
    manager.commit(name)
    return found


def evicted(manager, tokens=LONG):
    """A manager whose device has had ``tokens`` and overwritten them all."""
    begun(manager, "old", tokens)
    manager.free("old")
    begun(manager, "new", list(range(200, 200 + 4 * manager.pools[0].num_blocks)))
    return manager


def test_what_is_evicted_is_found_on_the_host_once_it_has_arrived():
    manager = evicted(manager_of())
    swap = manager.plan_save()
    assert len(swap.pairs[0]) == 3
    assert manager.match(LONG).num_tokens == 0, "it is on its way"
    manager.check_invariants()
    manager.complete_transfers(arrived=True)
    found = manager.match(LONG)
    assert found.num_tokens == 12
    assert found.tables == ((NULL_BLOCK,) * 3,)
    assert {host for _, host in found.host[0]} == {host for _, host in swap.pairs[0]}
    assert manager.match(LONG, "tenant b").num_tokens == 0
    assert manager.plan_save().pairs == ((),), "each is saved once"


def test_what_did_not_arrive_is_never_found():
    manager = evicted(manager_of())
    manager.plan_save()
    manager.complete_transfers(arrived=False)
    assert manager.match(LONG).num_tokens == 0
    assert manager.host_pools[0].num_free == 8
    manager.check_invariants()


def loaded(manager, name="again", tokens=LONG):
    manager.plan_save()
    manager.complete_transfers(arrived=True)
    manager.free("new")
    return manager.allocate(name, tokens)


def test_a_prefix_comes_back_into_blocks_that_nobody_finds_before_the_commit():
    manager = evicted(manager_of(num_blocks=8))
    taken = loaded(manager)
    assert (taken.num_cached, taken.num_loaded) == (12, 12)
    assert [device for device, _ in taken.loads[0]] == manager.block_table("again")[:3]
    assert manager.match(LONG).tables == ((NULL_BLOCK,) * 3,), "the device has nothing yet"
    manager.complete_transfers(arrived=True)
    manager.commit("again")
    assert manager.match(LONG).tables == (tuple(manager.block_table("again")[:3]),)
    manager.check_invariants()


def test_a_failed_load_publishes_nothing_and_keeps_the_host():
    manager = evicted(manager_of())
    loaded(manager)
    manager.complete_transfers(arrived=False)
    manager.free("again")
    found = manager.match(LONG)
    assert (found.num_tokens, found.tables) == (12, ((NULL_BLOCK,) * 3,))
    assert manager.pools[0].num_free == 6


def test_a_block_that_the_step_reads_is_not_written_by_it():
    """The host has room for three blocks, and the step brings back the three that lie there while it evicts others."""
    manager = evicted(manager_of(host_blocks=3))
    taken = loaded(manager)
    read = {host for _, host in taken.loads[0]}
    assert len(read) == 3
    saved = manager.plan_save().pairs[0]
    assert not saved, "there is no room beside them"
    manager.complete_transfers(arrived=True)
    manager.check_invariants()


def test_a_swap_in_holds_its_host_blocks_until_the_step_has_ended():
    manager = manager_of(num_blocks=8, host_blocks=4)
    begun(manager, "a", LONG)
    manager.plan_swap_out("a")
    manager.complete_transfers(arrived=True)
    back = manager.plan_swap_in("a")
    assert manager.host_pools[0].num_free == 0, "all four are being read"
    begun(manager, "b", [1, 2, 3])
    with pytest.raises(OutOfBlocksError):
        manager.plan_swap_out("b")
    manager.complete_transfers(arrived=True)
    assert manager.host_pools[0].num_free == 4
    assert len(back.pairs[0]) == 4
    manager.check_invariants()


def test_what_the_host_has_is_not_moved_again():
    manager = manager_of(num_blocks=8, host_blocks=8)
    begun(manager, "a", LONG)
    assert len(manager.plan_swap_out("a").pairs[0]) == 4
    manager.complete_transfers(arrived=True)
    manager.plan_swap_in("a")
    manager.complete_transfers(arrived=True)
    manager.append_tokens("a", [7, 8, 9])
    manager.commit("a")
    last = manager.block_table("a")[3]
    ((device, _),) = manager.plan_swap_out("a").pairs[0]
    assert device == last, "only the block that has changed"
    manager.complete_transfers(arrived=True)
    manager.check_invariants()
    manager.free("a")
    manager.check_invariants()
    assert manager.host_pools[0].num_free == 8


def test_two_that_share_a_prefix_share_it_on_the_host():
    manager = manager_of(num_blocks=12, host_blocks=8)
    begun(manager, "a", LONG)
    begun(manager, "b", [*LONG[:8], 1, 2, 3, 4, 5])
    manager.plan_swap_out("a")
    manager.complete_transfers(arrived=True)
    assert len(manager.plan_swap_out("b").pairs[0]) == 2
    manager.complete_transfers(arrived=True)
    manager.check_invariants()
    assert manager.host_pools[0].num_used == 6
    manager.free("a")
    manager.plan_swap_in("b")
    manager.complete_transfers(arrived=True)
    manager.check_invariants()


def test_a_swap_that_failed_is_not_found_by_others():
    manager = manager_of(num_blocks=4)
    begun(manager, "a", LONG)
    manager.plan_swap_out("a")
    manager.complete_transfers(arrived=False)
    manager.free("a")
    begun(manager, "other", list(range(16)))
    assert manager.match(LONG).num_tokens == 0


def test_windows_come_back_as_far_as_they_reach():
    manager = evicted(manager_of(num_blocks=8, groups=2, window=5))
    taken = loaded(manager)
    assert taken.num_cached == 12
    full, windowed = manager.block_table("again", 0), manager.block_table("again", 1)
    assert [device for device, _ in taken.loads[0]] == full[:3]
    assert windowed[:2] == [NULL_BLOCK] * 2, "the query at position 12 reads 8 to 12"
    assert [device for device, _ in taken.loads[1]] == windowed[2:3]
    manager.complete_transfers(arrived=True)
    manager.commit("again")
    manager.check_invariants()


def test_blocks_for_what_the_host_has_are_counted():
    manager = evicted(manager_of(num_blocks=6))
    manager.plan_save()
    manager.complete_transfers(arrived=True)
    assert isinstance(refused(manager, lambda: manager.allocate("again", LONG)), OutOfBlocksError)
    manager.free("new")
    error = refused(manager, lambda: manager.allocate("again", [*LONG, *range(12)]))
    assert isinstance(error, RequestTooLargeError)
    assert manager.allocate("again", LONG).num_loaded == 12


def test_what_is_saved_at_the_end_is_what_was_used_last():
    manager = manager_of(num_blocks=8, host_blocks=3)
    begun(manager, "a", list(range(9)))
    begun(manager, "b", LONG)
    manager.free("a")
    manager.free("b")
    assert len(manager.plan_save_cached().pairs[0]) == 3
    manager.complete_transfers(arrived=True)
    begun(manager, "new", list(range(200, 232)))
    manager.complete_transfers(arrived=True)
    assert manager.match(LONG).num_tokens == 12
    assert manager.match(list(range(9))).num_tokens == 0


def test_what_comes_from_elsewhere():
    manager, other = evicted(manager_of()), manager_of()
    manager.plan_save()
    manager.complete_transfers(arrived=True)
    contents = [[(each.digest, each.tokens) for each in manager.host_pools[0].cached()]]
    ((first, *rest),) = other.plan_load([[*contents[0], contents[0][0]]])
    assert first is not None
    assert rest[-1] is None, "it is there already"
    other.complete_transfers(arrived=True)
    assert other.match(LONG).num_tokens == 12


def test_reset_prefix_cache_forgets_what_both_sides_hold():
    manager = evicted(manager_of())
    loaded(manager)
    manager.complete_transfers(arrived=True)
    manager.free("again")
    begun(manager, "more", list(range(300, 324)))
    manager.free("more")  # its blocks have overwritten some that were to be saved
    assert manager.pools[0].num_cached
    assert manager.host_pools[0].num_cached
    assert manager.reset_prefix_cache()
    assert [pool.num_cached for pool in (*manager.pools, *manager.host_pools)] == [0, 0]
    assert [pool.num_free for pool in (*manager.pools, *manager.host_pools)] == [6, 8]
    assert manager.match(LONG).num_tokens == manager.match(list(range(300, 324))).num_tokens == 0
    assert manager.plan_save().pairs == ((),), "what was evicted before is not saved now"
    manager.check_invariants()
    assert begun(manager, "a", LONG).num_cached == 0
    assert begun(manager, "b", LONG).num_cached == 12, "what comes now is found as ever"


@pytest.mark.parametrize("held", ["running", "swapped", "being saved"])
def test_reset_prefix_cache_forgets_nothing_while_a_block_is_held(held):
    manager = manager_of(groups=2, window=6)
    begun(manager, "free", [1, 2, 3, 4, 5])
    manager.free("free")
    if held == "being saved":
        manager.plan_save_cached()
    else:
        begun(manager, "a", LONG)
        if held == "swapped":
            manager.plan_swap_out("a")
            manager.complete_transfers(arrived=True)
    before = [pool.stats() for pool in (*manager.pools, *manager.host_pools)]
    assert not manager.reset_prefix_cache()
    assert [pool.stats() for pool in (*manager.pools, *manager.host_pools)] == before
    manager.complete_transfers(arrived=True)
    assert manager.match([1, 2, 3, 4, 5]).num_tokens == 4
    manager.check_invariants()
