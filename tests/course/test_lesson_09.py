"""Lesson 09: its exercises, predictions and questions do what a learner relies on, and agree with the manager."""

import random
from hashlib import sha256

import pytest

from minikv.blocks import NULL_BLOCK, BlockManager, BlockPool, PoolKind, child_digest, root_digest
from minikv.blocks.prefix import token_array
from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("09")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}
REFERENCES = {exercise.name: exercise.reference for exercise in LESSON.exercises}


def slots_in_a_list(block_table, start, end, block_size):
    slots = []
    for block in block_table:
        for offset in range(block_size):
            slots.append(block * block_size + offset if block >= 0 else -1)
    return slots[start:end]


def slots_by_divmod(block_table, start, end, block_size):
    slots = []
    for position in range(start, end):
        place, offset = divmod(position, block_size)
        slots.append(-1 if block_table[place] == -1 else offset + block_size * block_table[place])
    return slots


def free_backwards(blocks, ref_counts, free_list):
    for block in blocks:
        if not ref_counts[block]:
            raise ValueError(f"block {block} is free")
    for place in range(len(blocks) - 1, -1, -1):
        ref_counts[blocks[place]] -= 1
        if not ref_counts[blocks[place]]:
            free_list += [blocks[place]]


def free_in_two_passes(blocks, ref_counts, free_list):
    if min(ref_counts[block] for block in blocks) < 1:
        raise ValueError
    for block in blocks:
        ref_counts[block] -= 1
    free_list.extend(block for block in blocks[::-1] if ref_counts[block] == 0)


def digests_of_the_whole_prefix(tokens, block_size, salt):
    full = len(tokens) // block_size
    return [(salt, *tokens[: block_size * (i + 1)]) for i in range(full)]


def digests_running(tokens, block_size, salt):
    running, digests = sha256(salt.encode()), []
    for place, token in enumerate(tokens, 1):
        running.update(token.to_bytes(8, "little"))
        if place % block_size == 0:
            digests.append(running.hexdigest())
    return digests


def append_by_place(table, length, ref_counts, free_list, block_size):
    place, offset = divmod(length, block_size)
    if place < len(table) and ref_counts[table[place]] == 1:
        return None
    new = free_list[0]
    del free_list[0]
    ref_counts[new] += 1
    if not offset:
        table += [new]
        return None
    old, table[place] = table[place], new
    ref_counts[old] -= 1
    return old, new


def append_step_by_step(table, length, ref_counts, free_list, block_size):
    full = length == len(table) * block_size
    shared = not full and ref_counts[table[-1]] > 1
    if full or shared:
        block = free_list.pop(0)
        ref_counts[block] = 1
    if full:
        table.append(block)
    elif shared:
        copy = (table.pop(), block)
        table.append(block)
        ref_counts[copy[0]] -= 1
        return copy
    return None


def behind_by_position(block_table, num_tokens, window, block_size):
    needed = range(num_tokens - window + 1, num_tokens + 1)
    back = []
    for place, block in enumerate(block_table):
        last = place * block_size + block_size - 1
        if last < needed.start and block != -1:
            back.append(block)
    return back


def behind_by_counting(block_table, num_tokens, window, block_size):
    unread = num_tokens + 1 - window
    back = []
    for block in block_table:
        unread -= block_size
        if unread < 0:
            break
        if block >= 0:
            back.append(block)
    return back


def test_slot_mapping():
    assert_exercise(EXERCISES["09.1"], right=[slots_in_a_list, slots_by_divmod])


def test_free():
    def stub(blocks, ref_counts, free_list):
        raise NotImplementedError

    assert_exercise(
        EXERCISES["09.2"], right=[free_backwards, free_in_two_passes], sequences="calls", stub=stub
    )


def test_block_digests():
    def stub(tokens, block_size, salt):
        raise NotImplementedError

    right = [digests_of_the_whole_prefix, digests_running]
    assert_exercise(EXERCISES["09.3"], right=right, sequences="prompts", stub=stub)


def test_append_slot():
    def stub(table, length, ref_counts, free_list, block_size):
        raise NotImplementedError

    right = [append_by_place, append_step_by_step]
    assert_exercise(EXERCISES["09.4"], right=right, sequences="tables", stub=stub)


def test_behind_window():
    assert_exercise(EXERCISES["09.5"], right=[behind_by_position, behind_by_counting])


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "09")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "09")


def test_the_slots_are_the_managers():
    rng = random.Random(0)
    for _ in range(50):
        manager = BlockManager([PoolKind(64), PoolKind(64, window=rng.randint(2, 20))], rng.choice([2, 4, 8]))
        for name in "ab":
            manager.allocate(name, [rng.randrange(99) for _ in range(rng.randint(1, 60))])
            manager.commit(name)
        for name, kind in (("a", 0), ("b", 0), ("a", 1), ("b", 1)):
            end = rng.randint(1, manager.num_tokens(name))
            start = rng.randint(0, end - 1)
            table = manager.block_table(name, kind)
            ours = REFERENCES["slot_mapping"](table, start, end, manager.block_size)
            assert ours == manager.slot_mapping(name, start, end, kind).tolist()


def test_the_free_path_is_the_pools_where_all_blocks_are_cached():
    rng = random.Random(1)
    for _ in range(50):
        pool = BlockPool(12, 4)
        blocks = pool.allocate(12)
        for block in blocks:
            pool.publish(block, bytes([block]), b"")
        prefix, a, b = blocks[:2], blocks[2 : rng.randint(3, 6)], blocks[6 : rng.randint(7, 12)]
        pool.share(prefix)
        rest = [block for block in blocks if block not in (*prefix, *a, *b)]
        pool.free(rest[::-1])  # the last of a list is freed first
        counts, free_list = [pool.ref_count(block) for block in blocks], list(rest)
        for table in ([*prefix, *a], [*prefix, *b]):
            pool.free(table)
            REFERENCES["free"](table, counts, free_list)
        assert counts == [pool.ref_count(block) for block in blocks]
        assert free_list == pool.allocate(12)


def test_the_digests_are_those_under_which_the_manager_publishes():
    tokens = list(range(30, 47))
    digests = REFERENCES["block_digests"](tokens, 4, "tenant")
    parent = root_digest("tenant")
    for place, digest in enumerate(digests):
        parent = child_digest(parent, token_array(tokens[4 * place : 4 * place + 4]).tobytes())
        assert digest == parent
    manager = BlockManager(8, 4)
    manager.allocate("a", tokens, "tenant")
    manager.commit("a")
    assert manager.match([*tokens, 1], "tenant").digests == tuple(digests)


def test_the_copies_are_the_managers():
    rng = random.Random(2)
    for _ in range(50):
        manager = BlockManager(64, 4)
        manager.allocate("0", list(range(rng.randint(1, 14))))
        names = [str(i) for i in range(rng.randint(2, 4))]
        for child in names[1:]:
            manager.fork("0", child)
        tables = {name: manager.block_table(name) for name in names}
        held = [manager.pools[0].ref_count(block) for block in range(64)]
        free_list = [block for block in range(64) if not held[block]]
        for token in range(20):
            name = rng.choice(names)
            ours = REFERENCES["append_slot"](tables[name], manager.num_tokens(name), held, free_list, 4)
            copies = manager.append(name, token)
            assert ours == (copies[0][1:] if copies else None)
            assert tables == {other: manager.block_table(other) for other in names}


def test_what_is_behind_the_window_is_what_commit_gives_back():
    rng = random.Random(3)
    for _ in range(50):
        window, block_size = rng.randint(2, 20), rng.choice([2, 4, 8])
        manager = BlockManager([PoolKind(64, window)], block_size)
        manager.allocate("a", list(range(rng.randint(1, 30))))
        for token in range(10):
            before = manager.block_table("a")
            manager.commit("a")
            after = manager.block_table("a")
            gone = [old for old, new in zip(before, after, strict=True) if new == NULL_BLOCK != old]
            assert REFERENCES["behind_window"](before, manager.num_tokens("a"), window, block_size) == gone
            manager.append("a", token)
