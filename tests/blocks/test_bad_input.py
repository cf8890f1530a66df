"""Whatever is given for whichever public argument: a MiniKVError in both languages, and nothing has changed."""

import numpy as np
import pytest

from minikv.blocks import BlockManager, BlockPool, HostBlocks, KVCacheGroup, child_digest, root_digest
from minikv.errors import ArgumentError, MiniKVError
from tests.blocks.world import refused

NO_COUNT = [True, False, -1, 1.0, 2.5, "1", None, np.int64(1), np.array([1]), [1], 2**63, float("nan")]
NO_NAME = [["a"], {"a": 1}, {"a"}, np.array([1])]  # cannot be the key of a dict
NO_TOKENS = [
    None, 5, 1.5, "ab", b"abcdefgh", bytearray(8), [1.0], ["1"], [None], [[1]], [2**63], [-(2**63) - 1],
    np.array([1.0]), np.array([[1]]), np.array(1), np.array([True]), [1, "2"], object(),
    [True], [300, False, 400], (1, True), [np.True_],
]  # fmt: skip
NO_BLOCKS = [
    [True],
    [-1],
    [8],
    [1.0],
    ["1"],
    [None],
    [np.int64(1)],
    np.array([1, 2]),
    "12",
    5,
    None,
    1.5,
    True,
    [[1]],
]


def shown(values):
    return pytest.mark.parametrize(
        "value", values, ids=[f"{number}-{type(value).__name__}" for number, value in enumerate(values)]
    )


@pytest.fixture
def manager():
    """Two groups; "a" and "b" run and share, "s" is swapped out."""
    manager = BlockManager([KVCacheGroup(8), KVCacheGroup(8, window=5)], 2, host_blocks=HostBlocks(4, 2, 2))
    manager.allocate("a", [1, 2, 3, 4, 5])
    manager.commit("a")
    manager.fork("a", "b")
    manager.allocate("s", [7, 8, 9])
    with manager.swapping_out("s"):
        pass
    return manager


@pytest.fixture
def pool():
    pool = BlockPool(8, 2)
    pool.allocate(3)
    return pool


@shown([*NO_COUNT, 0])
def test_sizes(value):
    for call in (
        lambda: BlockPool(value),
        lambda: BlockPool(4, value),
        lambda: BlockManager(value),
        lambda: BlockManager(4, value),
        lambda: BlockManager([KVCacheGroup(value)]),
        lambda: BlockManager([KVCacheGroup(4), KVCacheGroup(value)]),
    ):
        with pytest.raises(MiniKVError) as error:
            call()
        assert error.value.text("zh") != error.value.text("en")
    if value is not None:
        with pytest.raises(MiniKVError):
            BlockManager([KVCacheGroup(4, window=value)])
    if type(value) is not int or value:
        with pytest.raises(MiniKVError):
            HostBlocks(value)


def test_host_blocks_are_of_the_manager_s_size_and_groups():
    """Else a transfer would pair blocks that hold different tokens, or the pools of different layers."""
    for host, values in (
        (HostBlocks(4, 8), {"host_size": 8, "block_size": 4, "host_groups": 1, "groups": 1}),
        (HostBlocks(4, 4, 2), {"host_size": 4, "host_groups": 2, "groups": 1}),
        (HostBlocks(0, 4, 2), {"host_groups": 2, "groups": 1}),
    ):
        with pytest.raises(ArgumentError) as error:
            BlockManager(8, 4, host_blocks=host)
        assert error.value.code == "host_blocks_differ"
        assert values.items() <= error.value.values.items()
        assert error.value.text("en") != error.value.text("zh")


@shown([4, [], "host", BlockPool(4), HostBlocks])
def test_what_are_no_host_blocks(value):
    with pytest.raises(ArgumentError) as error:
        BlockManager(8, 4, host_blocks=value)
    assert error.value.code == "not_host_blocks"


@shown([[], [4], [KVCacheGroup(4), 4], (KVCacheGroup,), "ab", b"a", None, {}, 4.0, KVCacheGroup(4), object()])
def test_groups(value):
    with pytest.raises(MiniKVError):
        BlockManager(value)


@shown(NO_COUNT)
def test_counts_of_blocks(pool, value):
    refused(pool, lambda: pool.allocate(value))


@shown(NO_BLOCKS)
def test_lists_of_blocks(pool, value):
    for call in (pool.touch, pool.share, pool.free):
        refused(pool, lambda call=call: call(value))


@shown([True, -1, 8, 1.0, "1", None, np.int64(1), [1], 2**70])
def test_a_block(pool, value):
    for call in (
        lambda: pool.ref_count(value),
        lambda: pool.is_published(value),
        lambda: pool.forget(value),
        lambda: pool.publish(value, b"p", b"text"),
    ):
        refused(pool, call)


@shown(NO_TOKENS)
def test_tokens(manager, value):
    refused(manager, lambda: manager.match(value))
    refused(manager, lambda: manager.allocate("new", value))
    refused(manager, lambda: manager.append_tokens("a", value))


@shown(
    [
        True,
        False,
        1.0,
        "1",
        "a",
        None,
        [1],
        (1,),
        2**63,
        -(2**63) - 1,
        np.array([1, 2]),
        np.array([1.5]),
        b"1",
        object(),
    ]
)
def test_a_token(manager, value):
    with_room = BlockManager(4, 4)
    with_room.allocate("a", [1])
    refused(with_room, lambda: with_room.append("a", value))
    refused(manager, lambda: manager.append("a", value))
    manager.append("b", 1)
    refused(manager, lambda: manager.append("b", value))


def test_no_tokens(manager):
    for nothing in ([], (), np.array([], np.int64), range(0)):
        assert refused(manager, lambda nothing=nothing: manager.allocate("new", nothing)).code == "no_tokens"
        assert manager.append_tokens("a", nothing) == ()
        assert manager.match(nothing).num_tokens == 0


@shown([None, 1, b"x", ["x"], 1.0, True])
def test_salts(manager, value):
    refused(manager, lambda: manager.match([1, 2, 3], value))
    refused(manager, lambda: manager.allocate("new", [1, 2, 3], value))
    with pytest.raises(MiniKVError):
        root_digest(value)


def test_any_text_is_a_salt(manager):
    salts = ["", " ", "\0", "租户", "\N{GRINNING FACE}", "\ud800", "\ud801", "x" * 10_000]
    assert len({root_digest(salt) for salt in salts}) == len(salts)
    for salt in salts[1:]:
        assert manager.allocate(f"salt {salt!r}", [1, 2, 3], salt).num_cached == 0
        manager.free(f"salt {salt!r}")


def every_operation(manager, name):
    """Each operation on the sequence ``name`` that needs it to run."""
    return (
        lambda: manager.append(name, 1),
        lambda: manager.append_tokens(name, [1]),
        lambda: manager.append_tokens(name, []),
        lambda: manager.commit(name),
        lambda: manager.truncate(name, 1),
        lambda: manager.fork(name, "new"),
        lambda: manager.compact(name, 1),
        lambda: manager.num_tokens(name),
        lambda: manager.length(name),
        lambda: manager.block_table(name),
        lambda: manager.slot_mapping(name, 0, 1),
        lambda: manager.decode_slots([name]),
        lambda: manager.decode_slots(["a", name]),
        lambda: manager.swapping_out(name).__enter__(),
    )


@shown(["ghost", "s", None, 0, *NO_NAME])
def test_names_of_no_running_sequence(manager, value):
    for call in every_operation(manager, value):
        refused(manager, call)


@shown(["ghost", "a", *NO_NAME])
def test_names_of_no_swapped_sequence(manager, value):
    refused(manager, lambda: manager.swapping_in(value).__enter__())


@shown(["a", "s", *NO_NAME])
def test_names_that_are_taken(manager, value):
    assert refused(manager, lambda: manager.allocate(value, [1])).code
    refused(manager, lambda: manager.fork("a", value))


@shown(["ghost", *NO_NAME])
def test_freeing_what_is_not_there(manager, value):
    refused(manager, lambda: manager.free(value))


def test_freeing_twice(manager):
    for name in ("a", "b", "s"):
        manager.free(name)
        refused(manager, lambda name=name: manager.free(name))
        for call in every_operation(manager, name):
            refused(manager, call)
    manager.check_invariants()
    assert all(pool.num_free == 8 for pool in manager.pools)


@shown([True, False, -1, 2, 0.0, "0", np.int64(0), [0], 2**70])
def test_groups_of_layers(manager, value):
    for call in (
        lambda: manager.length("a", value),
        lambda: manager.block_table("a", value),
        lambda: manager.block_tables(value),
        lambda: manager.slot_mapping("a", 0, 1, value),
        lambda: manager.decode_slots(kv_cache_group=value),
        lambda: manager.decode_slots(["a"], value),
        lambda: manager.compact("a", 2, value),
    ):
        refused(manager, call)


@shown([True, -1, 6, 2.0, "2", np.int64(2), [2], 2**70])
def test_numbers_of_tokens(manager, value):
    refused(manager, lambda: manager.commit("a", value))
    refused(manager, lambda: manager.truncate("a", value))
    refused(manager, lambda: manager.compact("a", value))
    refused(manager, lambda: manager.slot_mapping("a", 0, value))
    refused(manager, lambda: manager.slot_mapping("a", value, 5))


def test_numbers_at_the_edge(manager):
    refused(manager, lambda: manager.truncate("a", 0))
    refused(manager, lambda: manager.truncate("a", None))
    refused(manager, lambda: manager.compact("a", 0))
    refused(manager, lambda: manager.compact("a", None))
    refused(manager, lambda: manager.compact("a", 3, kv_cache_group=1))
    refused(manager, lambda: manager.commit("a", 4))  # 5 were committed
    refused(manager, lambda: manager.slot_mapping("a", 3, 2))
    refused(manager, lambda: manager.slot_mapping("a", None, 2))
    assert manager.slot_mapping("a", 5, 5).tolist() == []
    assert manager.decode_slots([]).tolist() == []


@shown([5, None, 1.5, True])
def test_sequences_to_decode(manager, value):
    if value is not None:  # None: all of them
        refused(manager, lambda: manager.decode_slots(value))


@shown([["p"], bytearray(b"p"), {"p": 1}, 5, "p", None, 1.5, True])
def test_digests(pool, value):
    refused(pool, lambda: pool.publish(0, value, b"text"))


def test_no_host():
    manager = BlockManager(4)
    manager.allocate("a", [1])
    assert refused(manager, lambda: manager.swapping_out("a").__enter__()).code == "no_host_blocks"
    refused(manager, lambda: manager.swapping_in("a").__enter__())


def test_the_digest_of_a_block_is_sha256():
    assert len(root_digest("")) == len(child_digest(root_digest(""), b"12345678")) == 32


@pytest.mark.parametrize(
    "tokens", [{1, 2}, frozenset({1}), {1: 2}, "", b"", np.array([2**63], np.uint64)], ids=repr
)
def test_tokens_without_an_order_or_too_wide_are_refused(tokens):
    manager = BlockManager(4, 4)
    manager.allocate("a", [1])
    for call in (lambda: manager.allocate("b", tokens), lambda: manager.append_tokens("a", tokens)):
        with pytest.raises(MiniKVError):
            call()
    assert manager.num_tokens("a") == 1


def test_the_refusal_names_the_type_of_the_token():
    manager = BlockManager(4, 4)
    manager.allocate("a", [1])
    with pytest.raises(MiniKVError, match="float"):
        manager.append("a", 3.0)


def test_a_sequence_that_nobody_could_name_again_is_refused():
    manager = BlockManager(4, 4)
    with pytest.raises(MiniKVError):
        manager.allocate(float("nan"), [1])
    assert manager.pools[0].num_used == 0


def test_a_pool_is_no_larger_than_its_tables_can_name():
    with pytest.raises(MiniKVError, match="2147483647"):
        BlockPool(2**31)


def test_a_digest_that_cannot_be_a_key():
    with pytest.raises(MiniKVError):
        BlockPool(4, 4).lookup_block([1], b"")
