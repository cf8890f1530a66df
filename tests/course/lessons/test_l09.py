"""Lesson 09: its exercises, predictions and questions do what a learner relies on, and agree with the manager."""

import inspect
import random
from collections import Counter
from hashlib import blake2b

import pytest

from minikv.blocks import NULL_BLOCK, BlockManager, BlockPool, KVCacheGroup, root_digest
from minikv.course.check import run_check
from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.course.lessons.l09.frame import STORY, ByName, frame
from minikv.course.lessons.l09.free import after_each_call
from minikv.course.lessons.l09.free_list import taking_back
from minikv.nano import block_manager
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


def free_backwards(self, seq):
    table = seq.block_table
    for block in table:
        if not self.ref_counts[block]:
            raise ValueError(f"block {block} is free")
    for place in range(len(table) - 1, -1, -1):
        self.ref_counts[table[place]] -= 1
        if not self.ref_counts[table[place]]:
            self.free_blocks.update({table[place]: None})
    table.clear()
    seq.num_computed = 0


def free_in_two_passes(self, seq):
    if min(self.ref_counts[block] for block in seq.block_table) < 1:
        raise ValueError
    mine, seq.block_table, seq.num_computed = seq.block_table, [], 0
    for block in mine:
        self.ref_counts[block] -= 1
    self.free_blocks |= {block: None for block in mine[::-1] if self.ref_counts[block] == 0}


def digest_as_text(previous, tokens):
    return previous + b"/" + str(list(tokens)).encode()


def digest_updated(previous, tokens):
    running = blake2b(previous)
    for token in tokens:
        running.update(b"%d " % token)
    return running.digest()


def allocate_in_one_list(self, seq, keep_free=0):
    found, table = self.find_prefix(seq.tokens), []
    held = [block for block in found if self.ref_counts[block]]
    if len(self.free_blocks) - (self.blocks_for(len(seq.tokens)) - len(held)) < keep_free:
        return False
    for block in found:
        if not self.ref_counts[block]:
            del self.free_blocks[block]
        self.ref_counts[block] += 1
        table.append(block)
    seq.num_cached = seq.num_computed = self.block_size * len(table)
    while len(table) * self.block_size < len(seq.tokens):
        table.append(self._take())
    seq.block_table = table
    return True


def allocate_fresh_ones_from_behind(self, seq, keep_free=0):
    found = self.find_prefix(seq.tokens)
    rest = len(seq.tokens) - len(found) * self.block_size
    need = (rest + self.block_size - 1) // self.block_size
    if need + len([b for b in found if b in self.free_blocks]) > len(self.free_blocks) - keep_free:
        return False
    for b in found:
        if b in self.free_blocks:
            self.free_blocks.pop(b)
        self.ref_counts[b] = self.ref_counts[b] + 1
    fresh = []
    for _ in range(need):
        fresh.insert(0, self._take())
    seq.block_table = [*found, *fresh]
    seq.num_cached = len(found) * self.block_size
    seq.num_computed = seq.num_cached
    return True


def append_by_room(self, seq):
    room = len(seq.block_table) * self.block_size - len(seq.tokens)
    if room >= 0:
        return True
    if len(self.free_blocks) == 0:
        return False
    seq.block_table += [self._take()]
    return True


def append_with_try(self, seq):
    if (len(seq.tokens) - 1) // self.block_size < len(seq.block_table):
        return True
    try:
        seq.block_table.append(self._take())
    except KeyError:
        return False
    return True


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
    def stub(self, seq):
        raise NotImplementedError

    assert_exercise(
        EXERCISES["09.2"], right=[free_backwards, free_in_two_passes], sequences="calls", stub=stub
    )


def test_block_digest():
    def stub(previous, tokens):
        raise NotImplementedError

    right = [digest_as_text, digest_updated]
    assert_exercise(EXERCISES["09.3"], right=right, sequences="prompts", stub=stub)


@pytest.mark.parametrize(
    "digest", [lambda previous, tokens: (previous, *tokens), lambda *all: hash(str(all))]
)
def test_a_digest_of_another_type_is_told_so(digest):
    assert (
        run_check(EXERCISES["09.3"], lambda previous, tokens: digest(previous, tokens)).misconception
        == "not_bytes"
    )


def test_allocate():
    def stub(self, seq, keep_free=0):
        raise NotImplementedError

    right = [allocate_in_one_list, allocate_fresh_ones_from_behind]
    assert_exercise(EXERCISES["09.6"], right=right, stub=stub)


def test_append():
    def stub(self, seq):
        raise NotImplementedError

    right = [append_by_room, append_with_try]
    assert_exercise(EXERCISES["09.7"], right=right, sequences="lengths", stub=stub)


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
        manager = BlockManager(
            [KVCacheGroup(64), KVCacheGroup(64, window=rng.randint(2, 20))], rng.choice([2, 4, 8])
        )
        for name in "ab":
            manager.allocate(name, [rng.randrange(99) for _ in range(rng.randint(1, 60))])
            manager.commit(name)
        for name, group in (("a", 0), ("b", 0), ("a", 1), ("b", 1)):
            end = rng.randint(1, manager.num_tokens(name))
            start = rng.randint(0, end - 1)
            table = manager.block_table(name, group)
            ours = REFERENCES["slot_mapping"](table, start, end, manager.block_size)
            assert ours == manager.slot_mapping(name, start, end, group).tolist()


def frame_from_the_tables(make, calls, num_blocks, step):
    manager, frame = make(), [[] for _ in range(num_blocks)]
    for call in calls[:step]:
        getattr(manager, call[0])(*call[1:])
    for name in manager.sequences():
        for block in manager.block_table(name):
            frame[block].append(name)
    return frame


def frame_by_counting(make, calls, num_blocks, step):
    manager, done = make(), 0
    while done < step:
        name, *arguments = calls[done]
        getattr(manager, name)(*arguments)
        done += 1
    tables = {name: set(manager.block_table(name)) for name in manager.sequences()}
    return tuple([name for name in tables if block in tables[name]] for block in range(num_blocks))


def test_frame():
    def stub(make, calls, num_blocks, step):
        raise NotImplementedError

    right = [frame_from_the_tables, frame_by_counting]
    assert_exercise(EXERCISES["09.8"], right=right, sequences="calls", stub=stub)


def test_the_story_of_the_play_is_the_same_with_both_managers():
    def nanos():
        return ByName(block_manager.BlockManager(12, 4))

    def ours():
        return BlockManager(12, 4)

    def held(make, step):
        """How many blocks each set of sequences holds; which ones they are is each manager's own choice."""
        return Counter(map(tuple, frame(make, STORY, 12, step)))

    for step in range(len(STORY) + 1):
        assert held(nanos, step) == held(ours, step)
    assert held(ours, 0) == {(): 12}
    assert held(ours, 5)["A", "B"] == 2


def test_taking_back_measures_both():
    assert min(taking_back(300)) > 0


@pytest.mark.parametrize("id", ["09.1", "09.2", "09.3", "09.6", "09.7"])
def test_the_parts_of_the_engine_have_the_names_and_arguments_that_nano_has(id):
    exercise = EXERCISES[id]
    owner = block_manager if hasattr(block_manager, exercise.name) else block_manager.BlockManager
    theirs = inspect.signature(getattr(owner, exercise.name)).parameters
    assert list(inspect.signature(exercise.reference).parameters) == list(theirs)


def test_slot_mapping_is_nanos_where_no_window_has_moved_on():
    for case in EXERCISES["09.1"].draw(0):
        if NULL_BLOCK not in case["block_table"]:
            assert REFERENCES["slot_mapping"](**case) == block_manager.slot_mapping(**case)


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
        counts, tables = [pool.ref_count(block) for block in blocks], [[*prefix, *a], [*prefix, *b]]
        left = after_each_call(REFERENCES["free"], tables, counts, rest)[-1]
        for table in tables:
            pool.free(table)
        assert left["ref_counts"] == [pool.ref_count(block) for block in blocks]
        assert left["free_blocks"] == pool.allocate(12)


def test_the_digests_are_those_under_which_the_manager_publishes():
    """But for its root: a salt is hashed there, and nano, which has none, begins with nothing."""
    tokens, previous = list(range(30, 47)), root_digest("tenant")
    manager = BlockManager(8, 4)
    manager.allocate("a", tokens, "tenant")
    manager.commit("a")
    digests = []
    for end in range(4, len(tokens), 4):
        previous = REFERENCES["block_digest"](previous, tokens[end - 4 : end])
        digests.append(previous)
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
        manager = BlockManager([KVCacheGroup(64, window)], block_size)
        manager.allocate("a", list(range(rng.randint(1, 30))))
        for token in range(10):
            before = manager.block_table("a")
            manager.commit("a")
            after = manager.block_table("a")
            gone = [old for old, new in zip(before, after, strict=True) if new == NULL_BLOCK != old]
            assert REFERENCES["behind_window"](before, manager.num_tokens("a"), window, block_size) == gone
            manager.append("a", token)
