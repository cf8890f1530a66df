"""Slots and block tables: a formula of one line, dense rows, and arrays that stay where they are."""

import random

import numpy as np
import pytest

from minikv.blocks import NULL_BLOCK, BlockManager, KVCacheGroup
from minikv.errors import UnknownNameError


def scattered(seed, size=4, groups=(None, 7)):
    """A manager whose sequences hold blocks from all over the pool."""
    rng = random.Random(seed)
    manager = BlockManager([KVCacheGroup(400, window) for window in groups], size)
    for round_ in range(30):
        running = manager.sequences()
        if running and rng.random() < 0.4:
            manager.free(rng.choice(running))
        elif sum(manager.num_tokens(name) for name in running) < 100:
            manager.allocate(round_, [rng.randrange(9) for _ in range(rng.randint(1, 30))])
        for name in manager.sequences():
            if rng.random() < 0.3:
                manager.append(name, 1)
            if rng.random() < 0.3:
                manager.commit(name)
    return manager


@pytest.mark.parametrize("seed", range(20))
def test_a_slot_is_the_block_times_the_size_plus_the_offset(seed):
    size = 1 + seed % 5
    manager = scattered(seed, size)
    rng = random.Random(seed)
    for group in (0, 1):
        for name in manager.sequences():
            table, length = manager.block_table(name, group), manager.num_tokens(name)
            for _ in range(5):
                start = rng.randint(0, length)
                end = rng.randint(start, length)
                slots = manager.slot_mapping(name, start, end, group)
                assert slots.dtype == np.int64
                assert slots.shape == (end - start,)
                assert slots.tolist() == [
                    table[i // size] * size + i % size if table[i // size] >= 0 else -1
                    for i in range(start, end)
                ]


@pytest.mark.parametrize("seed", range(10))
def test_the_slots_of_a_decode_step_are_those_of_the_last_tokens(seed):
    manager = scattered(seed)
    for group in (0, 1):
        names = manager.sequences()
        random.Random(seed).shuffle(names)
        last = {
            name: manager.slot_mapping(name, manager.num_tokens(name) - 1, manager.num_tokens(name), group)[0]
            for name in names
        }
        slots = manager.decode_slots(names, group)
        assert slots.dtype == np.int64
        assert slots.tolist() == [last[name] for name in names]
        assert manager.decode_slots(kv_cache_group=group).tolist() == [
            last[name] for name in manager.sequences()
        ]
        assert manager.decode_slots(iter(names), group).tolist() == slots.tolist()


@pytest.mark.parametrize("seed", range(10))
def test_rows_stay_dense_and_true_after_many_frees(seed):
    manager = scattered(seed)
    for group in (0, 1):
        rows = manager.block_tables(group)
        names = manager.sequences()
        assert rows.dtype == np.int32
        assert len(rows) == len(names) == len(set(names))
        for name, row in zip(names, rows.tolist(), strict=True):
            table = manager.block_table(name, group)
            assert row == table + [NULL_BLOCK] * (len(row) - len(table))
    while manager.sequences():
        manager.free(random.Random(seed).choice(manager.sequences()))
        manager.check_invariants()
        assert len(manager.block_tables()) == len(manager.sequences())
    assert np.all(manager._tables._arrays[0] == NULL_BLOCK), "no block of an ended sequence stays behind"


@pytest.mark.parametrize("seed", range(20))
def test_the_rows_of_some_sequences_are_their_tables(seed):
    manager = scattered(seed)
    names = manager.sequences()
    chosen = random.Random(seed).sample(names, len(names) // 2)
    for group in (0, 1):
        rows = manager.block_tables(group)[manager.rows(chosen)]
        for name, row in zip(chosen, rows.tolist(), strict=True):
            table = manager.block_table(name, group)
            assert row[: len(table)] == table
            assert set(row[len(table) :]) <= {NULL_BLOCK}
    with pytest.raises(UnknownNameError):
        manager.rows([*chosen, "nobody"])


def test_the_arrays_move_only_when_they_must_grow():
    manager = BlockManager(4000, 1)
    manager.allocate(0, [1])
    address = manager.block_tables().ctypes.data
    for name in range(1, 64):
        manager.allocate(name, [1] * (1 + name % 60))
    for name in range(0, 64, 2):
        manager.free(name)
    for name in range(100, 132):
        manager.allocate(name, [2] * 64)
    manager.truncate(101, 3)
    with_row = manager.block_tables()
    assert with_row.ctypes.data == address
    assert len(with_row) == 64
    assert np.shares_memory(with_row, manager.block_tables())
    manager.allocate("one more row", [1])
    moved = manager.block_tables().ctypes.data
    assert moved != address
    manager.append_tokens("one more row", [1] * 64)  # and one more column
    assert manager.block_tables().shape[1] > 64
    assert manager.block_tables().ctypes.data != moved
    manager.check_invariants()


def test_a_copy_of_a_table_is_the_callers():
    manager = BlockManager(4, 2)
    manager.allocate("a", [1, 2, 3])
    manager.block_table("a").clear()
    manager.sequences().clear()
    manager.check_invariants()
    assert manager.block_table("a") == [0, 1]


def test_slots_after_an_eviction():
    """Length is not position: token p lies in slot p - evicted, in the group that was compacted and only there."""
    manager = BlockManager([KVCacheGroup(9), KVCacheGroup(9)], 2)
    manager.allocate("a", list(range(9)))
    manager.commit("a")
    manager.compact("a", 3)
    assert (manager.num_tokens("a"), manager.length("a"), manager.length("a", 1)) == (9, 3, 9)
    manager.append_tokens("a", [1, 2])
    table = manager.block_table("a")
    assert manager.slot_mapping("a", 9, 11).tolist() == [table[1] * 2 + 1, table[2] * 2]
    table = manager.block_table("a", 1)
    assert manager.slot_mapping("a", 0, 11, 1).tolist() == [table[i // 2] * 2 + i % 2 for i in range(11)]
