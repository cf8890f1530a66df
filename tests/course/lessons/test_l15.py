"""Lesson 15: its exercises, predictions and questions do what a learner relies on, and agree with the package."""

import pytest
import torch

from minikv.blocks import BlockManager
from minikv.cache import PagedKVCache
from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.eviction.policies.select import rank
from minikv.models import Batch, load
from minikv.plan import CacheSpec
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("15")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}
REFERENCES = {exercise.name: exercise.reference for exercise in LESSON.exercises}


def freed_by_counting(layers, itemsize, block_size, lengths, capacity):
    def held(length):
        return len(range(0, length, block_size))

    blocks = sum(held(length) - held(min(length, capacity)) for length in lengths)
    elements = [
        (layer["latent"] + layer["rope"])
        if layer["kind"] == "mla"
        else layer["kv_heads"] * layer["head_dim"] * 2
        for layer in layers
    ]
    return [blocks, sum(block_size * blocks * itemsize * each for each in elements)]


def freed_without_branches(layers, itemsize, block_size, lengths, capacity):
    elements = sum(
        layer.get("latent", 0)
        + layer.get("rope", 0)
        + 2 * layer.get("kv_heads", 0) * layer.get("head_dim", 0)
        for layer in layers
    )
    gone = [
        (length - 1) // block_size - (capacity - 1) // block_size for length in lengths if length > capacity
    ]
    return sum(gone), sum(gone) * block_size * elements * itemsize


def compact_row_by_row(blocks, kept):
    """Every row is moved before the next is looked at, from the first on."""
    size, table = blocks.block_size, list(blocks.table)
    for i, place in enumerate(kept):
        if i % size == 0 and blocks.holders[blocks.table[i // size]] > 1:
            blocks.holders[blocks.table[i // size]] -= 1
            blocks.table[i // size] = blocks.empty.pop(0)
            blocks.holders[blocks.table[i // size]] += 1
        src = table[place // size] * size + place % size
        dst = blocks.table[i // size] * size + i % size
        blocks.latent[dst] = blocks.latent[src]
        blocks.rope[dst] = blocks.rope[src]
    blocks.positions = [blocks.positions[place] for place in kept]
    while len(blocks.table) * size - len(kept) >= size:
        last = blocks.table.pop()
        blocks.holders[last] -= 1
        blocks.empty += [last] * (blocks.holders[last] == 0)


def compact_over_copies(blocks, kept):
    """All that stays is copied out, everything is let go of, and then it is written to what is free."""
    size = blocks.block_size
    latent = torch.stack([blocks.latent[blocks.slot(place)] for place in kept])
    rope = torch.stack([blocks.rope[blocks.slot(place)] for place in kept])
    for block in blocks.table:
        blocks.holders[block] -= 1
        if not blocks.holders[block]:
            blocks.empty.append(block)
    blocks.table = [blocks.empty.pop() for _ in range(-(-len(kept) // size))]
    for block in blocks.table:
        blocks.holders[block] = 1
    slots = [blocks.slot(i) for i in range(len(kept))]
    blocks.latent[slots], blocks.rope[slots] = latent, rope
    blocks.positions = torch.tensor(blocks.positions)[kept].tolist()


def protected_by_rank(positions, n_sink, n_recent):
    answer = []
    for row in positions:
        real = sorted(place for place in row if place >= 0)
        safe = {*real[:n_sink], *real[len(real) - n_recent :]}
        answer.append([place in safe for place in row])
    return answer


def protected_with_torch(positions, n_sink, n_recent):
    places = torch.tensor(positions)
    newest = places.amax(1, keepdim=True)
    return ((places >= 0) & (places < n_sink) | (places > newest - n_recent)).tolist()


def next_with_a_stack(text, new, evicted, tables, block_size):
    positions = [text[i] + j for i, count in enumerate(new) for j in range(count)]
    slots, lengths = [], []
    for lost, of_group in zip(evicted, tables, strict=True):
        slots.append([])
        for i, table in enumerate(of_group):
            flat = [block * block_size + offset for block in table for offset in range(block_size)]
            slots[-1] += flat[text[i] - lost[i] :][: new[i]]
        lengths.append([before + count - gone for before, count, gone in zip(text, new, lost, strict=True)])
    return {"lengths": lengths, "slots": slots, "positions": positions}


def next_one_by_one(text, new, evicted, tables, block_size):
    held = [[before - gone for before, gone in zip(text, lost, strict=True)] for lost in evicted]
    positions, slots = [], [[] for _ in tables]
    for i, count in enumerate(new):
        for at in range(text[i], text[i] + count):
            positions.append(at)
            for group, table in enumerate(tables):
                block, offset = divmod(held[group][i], block_size)
                slots[group].append(table[i][block] * block_size + offset)
                held[group][i] += 1
    return {"positions": positions, "slots": slots, "lengths": held}


def test_freed():
    assert_exercise(EXERCISES["15.1"], right=[freed_by_counting, freed_without_branches], sequences="lengths")


def test_compact():
    def stub(blocks, kept):
        raise NotImplementedError

    assert_exercise(
        EXERCISES["15.2"], right=[compact_row_by_row, compact_over_copies], stub=stub, seeds=(0, 1)
    )


def test_protected():
    right = [protected_by_rank, protected_with_torch]
    assert_exercise(EXERCISES["15.3"], right=right, sequences="positions")


def test_next_tokens():
    assert_exercise(EXERCISES["15.4"], right=[next_with_a_stack, next_one_by_one], sequences="text")


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "15")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "15")


def test_what_comes_back_is_what_the_blocks_of_the_package_hold():
    """``CacheSpec`` gives the bytes of a block, ``BlockManager`` the blocks that an eviction frees."""
    spec = CacheSpec.from_config("DeepSeek-V3", layout="hf", kv_dtype="bf16")
    layer = {"kind": "mla", "heads": 128, "nope": 128, "v": 128, "latent": 512, "rope": 64}
    for size, lengths, capacity in ((16, [100, 17, 33, 9], 16), (8, [64, 65, 71, 40], 41)):
        manager = BlockManager(num_blocks=100, block_size=size)
        for name, length in enumerate(lengths):
            manager.allocate(name, [name] * length)
            manager.commit(name)
        before = manager.pools[0].num_free
        for name, length in enumerate(lengths):
            manager.compact(name, min(length, capacity))
        blocks = manager.pools[0].num_free - before
        ours = REFERENCES["freed"]([layer] * len(spec.layers), 2, size, lengths, capacity)
        assert ours == (blocks, blocks * spec.block_bytes(size))


def test_protected_are_those_that_the_package_ranks_first():
    for case in EXERCISES["15.3"].draw(3):
        places = torch.tensor(case["positions"]).unsqueeze(1)
        sizes = {"n_sink": case["n_sink"], "n_recent": case["n_recent"]}
        ranked = rank(torch.zeros(places.shape), places, scope="head", **sizes)[:, 0]
        assert (ranked == torch.inf).tolist() == REFERENCES["protected"](**case)


def test_the_places_are_those_of_a_batch():
    """One KV cache group: its slots and lengths, as ``Batch.build`` finds them, and the true positions."""
    spec = CacheSpec.from_config(load("tiny-mla", device="cpu").model.config, kv_dtype="fp32")
    for case in EXERCISES["15.4"].draw(2)[:20]:
        ours = REFERENCES["next_tokens"](**case)
        cache = PagedKVCache(spec, 120, case["block_size"])
        for group, tables in enumerate(case["tables"]):
            width = max(map(len, tables))
            padded = [table + [-1] * (width - len(table)) for table in tables]
            batch = Batch.build(cache, [padded], ours["lengths"][group], case["new"], ours["positions"])
            assert batch.slots[0].tolist() == ours["slots"][group]
            assert batch.positions.tolist() == ours["positions"]
        cache.close()


def test_the_exercise_keeps_what_the_package_keeps():
    """15.2 against ``BlockManager.compact`` and ``PagedKVCache.move``: the same rows, blocks and sharing."""
    exercise = EXERCISES["15.2"]
    for case in exercise.draw(4):
        size, kept = case["block_size"], case["kept"]
        manager = BlockManager(num_blocks=200, block_size=size)
        common = case["shared"] * size
        for name, tokens in (("own", case["length"]), ("other", common + 2 * size)):
            manager.allocate(name, [*range(common), *[1000 + len(name)] * (tokens - common)][:tokens])
            manager.commit(name)
        before = manager.pools[0].num_used
        done = manager.compact("own", len(kept))
        seen = exercise.call(exercise.reference, case)
        assert seen["num_blocks"] == len(done.new_table)
        assert len(done.copies) == min(case["shared"], len(done.new_table))
        assert manager.pools[0].num_used - before == len(done.copies) - (
            -(-case["length"] // size) - max(case["shared"], len(done.new_table))
        )
        assert seen["tokens"] == seen["rope_keys"] == [1000 + place for place in kept]
        assert (seen["lost"], seen["empty_but_held"]) == (0, 0)


def test_replacing_a_row_is_seen_by_nobody_else():
    """The exercise's own world: what the other sequence reads is the same before and after."""
    exercise = EXERCISES["15.2"]
    for case in exercise.draw(5):
        everything = list(range(case["length"]))
        same = exercise.call(exercise.reference, {**case, "kept": everything})
        after = exercise.call(exercise.reference, case)
        assert same["other"] == after["other"] == after["other_rope_keys"]
