"""Whole blocks taken out of a table: the others stay what they are, shared and published ones too."""

import random

import pytest

from minikv.blocks import BlockManager, HostBlocks, KVCacheGroup
from minikv.errors import ArgumentError, UnknownNameError


def begun(num_tokens=14, block_size=4, **options):
    manager = BlockManager(20, block_size, **options)
    manager.allocate("a", range(num_tokens))
    manager.commit("a")
    return manager


def test_the_table_loses_the_blocks_and_length_is_not_position_any_more():
    manager = begun()
    manager.drop_blocks("a", [1, 2])
    assert manager.block_table("a") == [0, 3]
    assert (manager.length("a"), manager.num_tokens("a")) == (6, 14)
    assert manager.block_tables().tolist()[0][:3] == [0, 3, -1]
    manager.append("a", 99)
    assert manager.slot_mapping("a", 14, 15).tolist() == [3 * 4 + 2], (
        "in the last block, where the 15th token goes"
    )
    manager.check_invariants()


def test_dropped_blocks_can_still_be_found_and_so_can_those_that_stay():
    manager = begun()
    manager.drop_blocks("a", [0])
    assert manager.match([*range(14)]).num_tokens == 12
    assert manager.allocate("b", range(14)).num_cached == 12
    assert manager.block_table("b")[:3] == [0, 1, 2]
    manager.check_invariants()


def test_nothing_that_comes_later_is_published():
    manager = begun()
    manager.drop_blocks("a", [0])
    manager.append_tokens("a", range(100, 110))
    manager.commit("a")
    assert manager.match([*range(14), *range(100, 110), 0]).num_tokens == 12


def test_a_shared_block_is_dropped_by_one_and_kept_by_the_other():
    manager = begun()
    manager.fork("a", "b")
    manager.drop_blocks("a", [0, 2])
    assert manager.block_table("b") == [0, 1, 2, 3]
    manager.append("a", 7)
    assert manager.block_table("a")[-1] != manager.block_table("b")[-1], (
        "the last block was shared: copied first"
    )
    manager.check_invariants()


def test_compaction_and_dropping_follow_each_other():
    manager = begun(30)
    manager.compact("a", 17)
    manager.append_tokens("a", range(50, 60))
    manager.commit("a")
    manager.drop_blocks("a", [0, 3])
    manager.check_invariants()
    manager.compact("a", 6)
    manager.check_invariants()
    assert manager.length("a") == 6
    assert manager.num_tokens("a") == 40


@pytest.mark.parametrize("places", [[], (), [1, 1], range(2)])
def test_places_are_a_set_of_any_kind(places):
    manager = begun()
    manager.drop_blocks("a", places)
    assert len(manager.block_table("a")) == 4 - len(set(places))
    manager.check_invariants()


@pytest.mark.parametrize("places", [[3], [0, 4], [-1], [True], ["0"], [1.0]])
def test_the_last_block_and_what_is_no_place_are_refused(places):
    manager = begun()
    with pytest.raises(ArgumentError) as caught:
        manager.drop_blocks("a", places)
    assert caught.value.code == "out_of_range"
    assert manager.block_table("a") == [0, 1, 2, 3]
    manager.check_invariants()


def test_a_window_an_open_step_and_a_stranger_are_refused():
    manager = BlockManager([KVCacheGroup(9), KVCacheGroup(9, window=3)], 2)
    manager.allocate("a", range(6))
    for group, code in ((0, "compact_uncommitted"), (1, "compact_window"), (2, "no_such_group")):
        with pytest.raises(ArgumentError) as caught:
            manager.drop_blocks("a", [0], group)
        assert caught.value.code == code
    with pytest.raises(UnknownNameError):
        manager.drop_blocks("b", [0])


@pytest.mark.parametrize("seed", range(6))
def test_no_block_is_lost_whatever_is_dropped_shared_swapped_and_grown(seed):
    draw = random.Random(seed)
    size = draw.choice((1, 2, 3))
    pools = [KVCacheGroup(40), KVCacheGroup(40, window=5)]
    manager = BlockManager(pools, size, host_blocks=HostBlocks(40, size, 2))
    names, held, host = iter(range(10**6)), {}, []
    for _ in range(200):
        thing = draw.choice(["begin", "grow", "grow", "fork", "drop", "drop", "compact", "out", "in", "end"])
        name = draw.choice([*held]) if held else None
        if thing == "begin" or name is None:
            if min(pool.num_free for pool in manager.pools) < 16:
                continue
            name = next(names)
            manager.allocate(name, [draw.randrange(2) for _ in range(draw.randrange(1, 12))])
            manager.commit(name)
            held[name] = None
        elif thing == "grow" and min(pool.num_free for pool in manager.pools) > 8:
            manager.append_tokens(name, [draw.randrange(2) for _ in range(draw.randrange(1, 5))])
            manager.commit(name)
        elif thing == "fork":
            twin = next(names)
            manager.fork(name, twin)
            held[twin] = None
        elif thing == "drop":
            last = len(manager.block_table(name)) - 1
            before = manager.block_table(name)
            places = draw.sample(range(last), draw.randrange(last + 1))
            manager.drop_blocks(name, places)
            assert manager.block_table(name) == [block for at, block in enumerate(before) if at not in places]
        elif thing == "compact" and min(pool.num_free for pool in manager.pools) > 20:
            manager.compact(name, draw.randrange(1, manager.length(name) + 1))
        elif thing == "out" and min(pool.num_free for pool in manager.host_pools) > 20:
            with manager.swapping_out(name):
                pass
            del held[name]
            host.append(name)
        elif thing == "in" and host and min(pool.num_free for pool in manager.pools) > 30:
            with manager.swapping_in(host[-1]):
                pass
            held[host.pop()] = None
        elif thing == "end":
            manager.free(name)
            del held[name]
        manager.check_invariants()
    for name in [*held, *host]:
        manager.free(name)
    manager.check_invariants()
    assert all(pool.num_used == 0 for pool in manager.pools)
