"""OutOfBlocksError and RequestTooLargeError: raised when they must be, with true numbers, and nothing has changed."""

import random

import pytest

from minikv.blocks import BlockManager, HostBlocks, KVCacheGroup
from minikv.errors import MiniKVError, OutOfBlocksError, RequestTooLargeError
from tests.blocks.snapshot import snapshot
from tests.blocks.world import refused


def fits(manager, tokens) -> bool:
    try:
        manager.allocate("new", tokens)
    except MiniKVError:
        return False
    return True


def busy(seed, groups, block_size):
    """A manager in some state: a few sequences, some of them forked, some ended, some given back."""
    rng = random.Random(seed)
    manager = BlockManager(groups, block_size)
    for name in range(rng.randint(3, 9)):
        try:
            if rng.random() < 0.3 and manager.sequences():
                manager.fork(rng.choice(manager.sequences()), name)
            else:
                tokens = [rng.randrange(2) for _ in range(rng.randint(1, 3 * block_size))]
                manager.allocate(name, [0, 1] * block_size + tokens)
            if rng.random() < 0.8:
                manager.commit(name)
            if rng.random() < 0.4:
                manager.free(rng.choice(manager.sequences()))
        except MiniKVError:
            pass
    return manager


GROUPS = {
    "one": lambda rng: [KVCacheGroup(rng.randint(5, 12))],
    "two": lambda rng: [KVCacheGroup(rng.randint(5, 12)), KVCacheGroup(rng.randint(5, 12))],
    "window": lambda rng: [
        KVCacheGroup(rng.randint(5, 12)),
        KVCacheGroup(rng.randint(4, 9), rng.randint(1, 7)),
    ],
}


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
def test_what_is_said_to_fit_a_new_sequence_fits(groups, block_size):
    """So many of the same tokens can really be allocated, after OutOfBlocksError at once."""
    tried = 0
    for seed in range(300):
        rng = random.Random(seed)
        manager = busy(seed, GROUPS[groups](rng), block_size)
        tokens = [0, 1] * block_size + [rng.randrange(2) for _ in range(4 * block_size)]
        tokens = tokens[: rng.randint(1, len(tokens))]
        try:
            manager.allocate("new", tokens)
        except OutOfBlocksError as error:
            most = error.values["fits"]
        except RequestTooLargeError:
            continue
        else:
            continue
        if most:
            manager.allocate("new", tokens[:most])
            tried += 1
    assert tried > 10, "else nothing was tested"


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
def test_what_is_said_to_fit_a_running_sequence_fits(groups, block_size):
    """It can grow to so many tokens, and by none more."""
    tried = 0
    for seed in range(300):
        rng = random.Random(seed)
        manager = busy(seed, GROUPS[groups](rng), block_size)
        if not manager.sequences():
            continue
        name = rng.choice(manager.sequences())
        length = manager.num_tokens(name)
        try:
            manager.append_tokens(name, [1] * rng.randint(1, 4 * block_size))
        except OutOfBlocksError as error:
            most = error.values["fits"]
        except RequestTooLargeError:
            continue
        else:
            continue
        refused(
            manager,
            lambda m=manager, n=name, more=most - length: m.append_tokens(n, [1] * (max(0, more) + 1)),
        )
        if most > length:
            manager.append_tokens(name, [1] * (most - length))
            tried += 1
    assert tried > 10, "else nothing was tested"


@pytest.mark.parametrize("block_size", [1, 2, 4])
def test_a_request_that_the_empty_pool_could_not_hold_is_refused_for_good(block_size):
    """RequestTooLargeError if and only if the request fails in an empty pool as well; OutOfBlocksError otherwise."""
    for seed in range(200):
        rng = random.Random(seed)
        blocks = rng.randint(2, 6)
        manager = busy(seed, blocks, block_size)
        tokens = [2 + rng.randrange(2) for _ in range(rng.randint(1, 2 * blocks * block_size))]
        alone = fits(BlockManager(blocks, block_size), tokens)
        if fits(manager, tokens):
            assert alone
            continue
        error = refused(manager, lambda m=manager, t=tokens: m.allocate("new", t))
        assert type(error) is (OutOfBlocksError if alone else RequestTooLargeError)
        assert error.values["total"] == blocks
        assert error.values["asked"] == -(-len(tokens) // block_size)
        if not alone:
            most = error.values["fits"]
            assert most == blocks * block_size
            for name in manager.sequences():
                manager.free(name)
            manager.allocate("new", tokens[:most])


def test_a_request_too_large_for_one_group_is_refused_at_once_though_another_group_is_only_busy():
    for groups in ([KVCacheGroup(6), KVCacheGroup(3)], [KVCacheGroup(3), KVCacheGroup(6)]):
        manager = BlockManager(groups, 2)
        manager.allocate("a", [1, 2])
        # 6 blocks are needed: the group of 6 has 5 free, the group of 3 can never have them.
        error = refused(manager, lambda manager=manager: manager.allocate("b", list(range(12))))
        assert type(error) is RequestTooLargeError
        assert (
            type(refused(manager, lambda m=manager: m.append_tokens("a", list(range(10)))))
            is RequestTooLargeError
        )


def test_a_sequence_that_outgrows_the_pool():
    manager = BlockManager(3, 2)
    manager.allocate("a", [1, 2, 3, 4, 5])
    manager.append("a", 6)
    for call in (lambda: manager.append("a", 7), lambda: manager.append_tokens("a", [7, 8, 9])):
        error = refused(manager, call)
        assert type(error) is RequestTooLargeError
        assert error.values["fits"] == 6
    manager.fork("a", "b")
    assert type(refused(manager, lambda: manager.append("b", 7))) is RequestTooLargeError
    manager.truncate("b", 5)
    # For a copy of the last block: it helps if "a" ends
    error = refused(manager, lambda: manager.append("b", 7))
    assert type(error) is OutOfBlocksError
    assert error.values["asked"] == 1
    assert error.values["free"] == 0
    manager.free("a")
    assert manager.append("b", 7) == ()


@pytest.mark.parametrize("short", [0, 1, 2])
@pytest.mark.parametrize("operation", ["allocate", "append_tokens", "append", "swap in", "swap out"])
def test_blocks_are_taken_in_all_groups_or_in_none(short, operation):
    """The group ``short`` has too few free blocks, the others have enough."""
    groups = [KVCacheGroup(9), KVCacheGroup(9, window=6), KVCacheGroup(9)]
    groups[short] = KVCacheGroup(4, groups[short].window)
    manager = BlockManager(groups, 2, host_blocks=HostBlocks(4, 2, len(groups)))
    manager.allocate("a", [1, 2, 3, 4])
    if operation == "swap in":
        with manager.swapping_out("a"):
            pass
        manager.allocate("b", [1, 2, 3, 4, 5, 6])
        call = manager.swapping_in("a").__enter__
    elif operation == "swap out":
        manager.allocate("b", [5, 6, 7, 8])
        with manager.swapping_out("a"):
            pass
        manager.append("b", 9)
        call = manager.swapping_out("b").__enter__  # three host blocks, and two are free
    else:
        manager.allocate("b", [5, 6, 7, 8])
        call = {
            "allocate": lambda: manager.allocate("c", [9]),
            "append_tokens": lambda: manager.append_tokens("a", [9, 9]),
            "append": lambda: manager.append("a", 9),
        }[operation]
    assert type(refused(manager, call)) is OutOfBlocksError
    manager.check_invariants()


@pytest.mark.parametrize("group", [0, 1])
def test_compact_needs_blocks_for_its_copies(group):
    manager = BlockManager([KVCacheGroup(4), KVCacheGroup(4)], 2)
    manager.allocate("a", [1, 2, 3, 4, 5])
    manager.commit("a")
    manager.fork("a", "b")
    error = refused(manager, lambda: manager.compact("a", 4, group))  # two copies, one free block
    assert type(error) is OutOfBlocksError
    assert (error.values["asked"], error.values["free"]) == (2, 1)
    assert [copy.kv_cache_group for copy in manager.compact("a", 2, group).copies] == [group]
    manager.check_invariants()


def test_a_refusal_evicts_nothing():
    manager = BlockManager(4, 2)
    manager.allocate("old", [1, 2, 3, 4, 5])
    manager.commit("old")
    manager.free("old")
    manager.allocate("new", [7, 8, 9])
    before = snapshot(manager)
    refused(manager, lambda: manager.allocate("more", [4, 4, 4, 4, 4]))
    assert snapshot(manager) == before
    assert manager.match([1, 2, 3]).num_tokens == 2
