"""A token that is placed before it is known: the same blocks as for one that is known, and never found before."""

import random

import pytest

from minikv.blocks import UNKNOWN, BlockManager, HostBlocks, KVCacheGroup
from minikv.errors import ArgumentError, OutOfBlocksError

GROUPS = {
    "one group": [KVCacheGroup(24)],
    "a window": [KVCacheGroup(24), KVCacheGroup(24, 5)],
    "windows only": [KVCacheGroup(20, 3), KVCacheGroup(20, 7)],
}


def tables(manager):
    groups = range(len(manager.pools))
    return {
        seq_id: [manager.block_table(seq_id, group) for group in groups] for seq_id in manager.sequences()
    }


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("size", [1, 3])
def test_place_and_amend_are_an_append(groups, size):
    """A manager that is told late has the blocks, the prefixes and the free lists of one that is told at once."""
    for seed in range(20):
        draw = random.Random(f"{groups} {size} {seed}")
        one, other = (BlockManager(GROUPS[groups], size) for _ in range(2))
        alive, number = [], 0
        for _ in range(120):
            what = draw.choice(["allocate", "append", "append", "append", "fork", "free", "truncate"])
            name = draw.choice(alive) if alive else None
            if what == "allocate" and len(alive) < 4:
                tokens, number = [draw.randrange(2) for _ in range(draw.randrange(1, 9))], number + 1
                try:
                    one.allocate(number, tokens)
                except OutOfBlocksError:
                    continue
                other.allocate(number, tokens)
                alive.append(number)
                for each in (one, other):
                    each.commit(number)
            elif name is None:
                continue
            elif what == "append":
                token = draw.randrange(2)
                can = other.can_reserve_slots([name])
                try:
                    copies = one.append(name, token)
                except OutOfBlocksError:
                    assert not can
                    continue
                assert can == (not copies)
                assert other.reserve_slot(name) == copies
                assert other.tokens(name).tolist() == [*one.tokens(name)[:-1], UNKNOWN]
                other.check_invariants()
                if draw.random() < 0.2:  # the step failed
                    for each in (one, other):
                        each.truncate(name, each.num_tokens(name) - 1)
                else:
                    other.fill_slot(name, token)
                    for each in (one, other):
                        each.commit(name)
            elif what == "fork" and len(alive) < 4:
                number += 1
                for each in (one, other):
                    each.fork(name, number)
                alive.append(number)
            elif what == "free":
                for each in (one, other):
                    each.free(name)
                alive.remove(name)
            elif what == "truncate" and groups == "one group":
                length = draw.randint(1, one.num_tokens(name))
                for each in (one, other):
                    each.truncate(name, length)
            assert tables(one) == tables(other)
            assert one.stats() == other.stats()
            other.check_invariants()
        probe = [draw.randrange(2) for _ in range(8)]
        assert one.match(probe) == other.match(probe)


def test_can_place_looks_at_all_of_them_together():
    manager = BlockManager(4, 2)
    for name in "abc":
        manager.allocate(name, [1, 2] if name != "c" else [7])
    assert manager.can_reserve_slots("a")
    assert manager.can_reserve_slots("c")
    assert manager.can_reserve_slots([]), "nobody needs nothing"
    assert manager.can_reserve_slots("ac")
    assert not manager.can_reserve_slots("ab"), "one block is left"
    before = manager.stats()
    manager.fork("c", "d")
    assert not manager.can_reserve_slots("c"), "a copy"
    assert not manager.can_reserve_slots("dc")
    manager.free("d")
    assert manager.can_reserve_slots("c")
    assert manager.stats() == before


def test_what_is_to_be_saved_is_not_taken():
    manager = BlockManager(3, 2, host_blocks=HostBlocks(2, 2))
    manager.allocate("a", [1, 2])
    manager.allocate("b", [3, 4, 5])
    manager.commit("b")
    manager.free("b")  # a cached block and an empty one
    assert manager.can_reserve_slots("a")
    manager.keep_reclaimed()
    assert manager.can_reserve_slots("a"), "there is an empty one"
    manager.allocate("c", [9])
    assert not manager.can_reserve_slots("a"), "the last one holds what is worth saving"
    manager.keep_reclaimed(False)
    assert manager.can_reserve_slots("a")


@pytest.mark.parametrize(
    "call",
    [
        lambda manager: manager.append("a", 5),
        lambda manager: manager.append_tokens("a", [5]),
        lambda manager: manager.reserve_slot("a"),
        lambda manager: manager.fork("a", "b"),
        lambda manager: manager.commit("a"),
        lambda manager: manager.commit("a", 5),
        lambda manager: manager.plan_swap_out("a"),
        lambda manager: manager.fill_slot("a", "5"),
        lambda manager: manager.fill_slot("a", True),
        lambda manager: manager.fill_slot("a", 1.5),
        lambda manager: manager.fill_slot("a", 2**63),
    ],
)
def test_behind_a_token_that_nobody_knows_nothing_can_come(call):
    manager = BlockManager(8, 2, host_blocks=HostBlocks(8, 2))
    manager.allocate("a", [1, 2, 3, 4])
    manager.commit("a")
    manager.reserve_slot("a")
    before = tables(manager), manager.tokens("a").tolist(), manager.stats()
    with pytest.raises(ArgumentError) as error:
        call(manager)
    assert error.value.text("zh") != error.value.text("en")
    assert (tables(manager), manager.tokens("a").tolist(), manager.stats()) == before
    manager.commit("a", 4)  # what is known
    manager.fill_slot("a", 5)
    assert manager.tokens("a").tolist() == [1, 2, 3, 4, 5]
    manager.append("a", 6)
    manager.commit("a")
    assert manager.match([1, 2, 3, 4, 5, 6, 7]).num_tokens == 6
    manager.check_invariants()


def test_a_token_is_amended_once():
    manager = BlockManager(8, 2)
    manager.allocate("a", [1])
    for _ in range(2):
        with pytest.raises(ArgumentError, match="known"):
            manager.fill_slot("a", 1)
        manager.reserve_slot("a")
        manager.fill_slot("a", 2)


def test_a_sequence_may_end_before_its_token_is_known():
    manager = BlockManager(4, 2)
    manager.allocate("a", [1, 2])
    manager.reserve_slot("a")
    manager.free("a")
    assert manager.match([1, 2, 3]).num_tokens == 0
    assert manager.pools[0].num_free == 4
    manager.check_invariants()
