"""Lesson 07: its exercises, predictions and questions do what a learner relies on."""

import random

import pytest
import torch

from minikv.course.check import run_check
from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.course.lessons.l07.slot_cache import SlotCache
from minikv.memory import AllocatorSettings, CachingAllocator
from minikv.memory.allocator.blocks import INACTIVE
from minikv.memory.allocator.rules import segment_size
from minikv.plan import CacheSpec, find_gpu, find_model, weight_bytes
from minikv.units import GIB, MIB
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("07")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}


def sizes_by_steps(size):
    rounded = size + -size % 512
    for most, segment in ((MIB, 2 * MIB), (10 * MIB - 1, 20 * MIB)):
        if rounded <= most:
            return rounded, segment
    return rounded, rounded + -rounded % (2 * MIB)


def sizes_by_the_allocator(size):
    allocator = CachingAllocator()
    allocator.malloc(size)
    return (size + 511) & -512, allocator.usage().reserved


def copied_by_formula(batch, prompt, steps, token_bytes):
    return steps * (2 * prompt + steps + 1) * batch * token_bytes


def copied_step_by_step(batch, prompt, steps, token_bytes):
    moved, cache = 0, prompt
    for _ in range(steps):
        read = cache + 1
        cache += 1
        moved += batch * token_bytes * (read + cache)
    return moved


def choose_by_sorting(free, size, stream):
    pool = ("large", "small")[size <= MIB]
    for address, held, on, kind in sorted(free, key=lambda block: (block[1], block[0])):
        if (on, kind) == (stream, pool) and held >= size:
            return address
    return None


def choose_by_elimination(free, size, stream):
    left = [block for block in free if block[3] == ("large" if size > MIB else "small")]
    left = [block for block in left if block[2] == stream and not block[1] < size]
    smallest = min((block[1] for block in left), default=None)
    return min((block[0] for block in left if block[1] == smallest), default=None)


def returned_by_counting(segments):
    whole = sum(size for blocks in segments for size, _ in blocks)
    pinned = [blocks for blocks in segments if any(state == "active_allocated" for _, state in blocks)]
    return whole - sum(size for blocks in pinned for size, _ in blocks)


def returned_by_loop(segments):
    total = 0
    for blocks in segments:
        size_of_segment = 0
        for size, state in blocks:
            if state == "active_allocated":
                break
            size_of_segment += size
        else:
            total += size_of_segment
    return total


class RoomByTokens:
    """Tokens first in memory; the view turns them round."""

    def __init__(self, allocate, batch, max_seq, width):
        self.slots = allocate(max_seq, batch, width)
        self.tokens = 0

    def append(self, new):
        if self.tokens >= len(self.slots):
            raise ValueError
        self.slots[self.tokens].copy_(new)
        self.tokens += 1

    def read(self):
        return self.slots[: self.tokens].transpose(0, 1)

    def reset(self):
        self.tokens = 0


class RoomByIndex:
    """An iterator of slots instead of a length."""

    def __init__(self, allocate, batch, max_seq, width):
        self.room = allocate(batch, max_seq, width)
        self.reset()

    def append(self, new):
        place = next(self.free, None)
        if place is None:
            raise ValueError("no slot left")
        self.room.select(1, place).copy_(new)
        self.last = place

    def read(self):
        return self.room.narrow(1, 0, self.last + 1)

    def reset(self):
        self.free, self.last = iter(range(self.room.shape[1])), -1


class EmptySlotCache:
    def __init__(self, allocate, batch, max_seq, width):
        raise NotImplementedError

    append = read = reset = __init__


def test_rounded_and_segment():
    assert_exercise(EXERCISES["07.1"], right=[sizes_by_steps, sizes_by_the_allocator])


def test_bytes_copied():
    assert_exercise(EXERCISES["07.2"], right=[copied_by_formula, copied_step_by_step])


def test_choose_block():
    assert_exercise(EXERCISES["07.3"], right=[choose_by_sorting, choose_by_elimination])


def test_bytes_returned():
    right = [returned_by_counting, returned_by_loop]
    assert_exercise(EXERCISES["07.4"], right=right, sequences="segments")


def test_slot_cache():
    assert_exercise(
        EXERCISES["07.5"], right=[RoomByTokens, RoomByIndex], sequences="lengths", stub=EmptySlotCache
    )


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "07", {"CacheSpec": CacheSpec, "segment_size": segment_size})


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "07")


def test_every_border_of_the_rounding_is_drawn_under_every_seed():
    for seed in range(5):
        sizes = {case["size"] for case in EXERCISES["07.1"].draw(seed)}
        for border in (512, MIB, 10 * MIB):
            assert {border, border + 1} <= sizes
            assert any(border - 512 < size < border for size in sizes)


def busy_allocator(seed: int) -> CachingAllocator:
    """An allocator with live, free and waiting blocks of both pools and two streams."""
    rng, allocator = random.Random(seed), CachingAllocator()
    live: list[int] = []
    for _ in range(120):
        if live and rng.random() < 0.5:
            address = live.pop(rng.randrange(len(live)))
            if rng.random() < 0.2:
                allocator.record_stream(address, 3)
            allocator.free(address)
        else:
            most = rng.choice([4096, 2 * MIB, 30 * MIB])
            live.append(allocator.malloc(rng.randrange(1, most), rng.choice([0, 7])))
    return allocator


@pytest.mark.parametrize("seed", range(30))
def test_choose_block_takes_what_the_allocator_takes(seed):
    rng, allocator = random.Random(seed), busy_allocator(seed)
    free = [
        (block.address, block.size, segment.stream, segment.pool)
        for segment in allocator.segments()
        for block in segment.blocks
        if block.state == INACTIVE
    ]
    size, stream = 512 * rng.randint(1, rng.choice([2000, 60_000])), rng.choice([0, 7])
    chosen = EXERCISES["07.3"].reference(free, size, stream)
    got = allocator.malloc(size, stream)
    known = {block[0] for block in free}
    assert (got if got in known else None) == chosen


@pytest.mark.parametrize("seed", range(30))
def test_bytes_returned_is_what_empty_cache_returns(seed):
    allocator = busy_allocator(seed)
    segments = [[(block.size, block.state) for block in segment.blocks] for segment in allocator.segments()]
    before = allocator.usage().reserved
    allocator.empty_cache()
    assert EXERCISES["07.4"].reference(segments) == before - allocator.usage().reserved


def test_bytes_copied_is_what_cat_moves():
    """Counted on real tensors: what each torch.cat reads and writes."""
    batch, prompt, steps, width = 3, 5, 7, 4
    cache, moved = torch.zeros(batch, prompt, width), 0
    for _ in range(steps):
        new = torch.zeros(batch, 1, width)
        grown = torch.cat([cache, new], 1)
        moved += cache.nbytes + new.nbytes + grown.nbytes
        cache = grown
    assert EXERCISES["07.2"].reference(batch, prompt, steps, width * cache.itemsize) == moved


# What the lesson's prose says of its two stories, so that it cannot go stale.

MODEL = "Llama-3.1-8B"
CARD = find_gpu("RTX 4090").total_bytes


def grown(batch, steps, capacity=None, memory_limit=None, **settings):
    """K and V of 32 layers, joined token by token behind a prompt of 512; on a card the weights stand there too."""
    chosen = AllocatorSettings(**settings)
    allocator = CachingAllocator(capacity, settings=chosen, memory_limit=memory_limit)
    if capacity is not None:
        allocator.malloc(weight_bytes(MODEL).total)
    row = batch * CacheSpec.from_config(MODEL).bytes_for(1) // 64
    held = [allocator.malloc(512 * row) for _ in range(64)]
    for tokens in range(513, 512 + steps + 1):
        for place, old in enumerate(held):
            held[place] = allocator.malloc(tokens * row)
            allocator.free(old)
    return allocator.memory_stats()


def stuck_after(kept, order, **settings):
    """Reserved but unallocated bytes after the calls of ``order`` on a 6 GiB cache, of which ``kept`` bytes remain."""
    allocator = CachingAllocator(settings=AllocatorSettings(**settings))
    cache = allocator.malloc(6 * GIB)
    calls = {
        "free": lambda: allocator.free(cache),
        "keep": lambda: allocator.malloc(kept),
        "empty": allocator.empty_cache,
    }
    for call in order.split(", "):
        calls[call]()
    usage = allocator.usage()
    return usage.reserved - usage.allocated


def test_growing_by_cat_seldom_calls_the_driver_and_reserves_many_times_the_cache():
    one, many = grown(1, 512), grown(32, 512)
    assert 500 * one["num_device_alloc"] < 64 * 513
    assert many["num_device_alloc"] == 64 + 16 * 65
    assert many["allocated_bytes.all.current"] == 4 * GIB
    assert many["reserved_bytes.all.current"] > 10 * 4 * GIB


def test_what_each_setting_does_to_the_growing_cache():
    plain, limit = grown(8, 256, CARD), int(0.95 * CARD)
    small = grown(8, 256, CARD, max_split_size_mb=20)
    assert small["num_device_alloc"] > 2000 > 100 > plain["num_device_alloc"]
    assert small["reserved_bytes.all.peak"] > 0.99 * CARD
    wide = grown(32, 256, CARD)
    assert wide == grown(32, 256, CARD, garbage_collection_threshold=0.8) | {"max_split_size": -1}
    limited = grown(32, 256, CARD, limit, garbage_collection_threshold=0.8)
    assert limited["reserved_bytes.all.peak"] < wide["reserved_bytes.all.peak"] - 5 * GIB
    assert limited["num_device_alloc"] == wide["num_device_alloc"]


def test_which_survivor_holds_six_gib():
    config = find_model(MODEL).config
    logits, hidden = 48 * config["vocab_size"] * 4, 48 * config["hidden_size"] * 2
    late = "free, keep, empty"
    assert round(logits / MIB, 1) == 23.5
    assert stuck_after(logits, late) == 6 * GIB - logits
    assert stuck_after(logits, "keep, free, empty") < 2 * MIB
    assert stuck_after(logits, "free, empty, keep") < 2 * MIB
    assert stuck_after(hidden, late) < 2 * MIB
    assert stuck_after(logits, late, max_split_size_mb=512) < 2 * MIB
    assert stuck_after(logits, late, expandable_segments=True) < 40 * MIB


class KeepsOneColumn(SlotCache):
    def append(self, new):
        super().append(new[:, -1:].expand_as(new))


class TakesTooMuch(SlotCache):
    def __init__(self, allocate, batch, max_seq, width):
        super().__init__(lambda *shape: allocate(*shape, 2)[..., 0], batch, max_seq, width)


class ChangesWhatItIsGiven(SlotCache):
    def append(self, new):
        super().append(new)
        new.zero_()


class NeverEmpty(SlotCache):
    def read(self):
        return self.room[:, : max(self.length, 1)]


@pytest.mark.parametrize("wrong", [KeepsOneColumn, TakesTooMuch, ChangesWhatItIsGiven, NeverEmpty])
def test_a_slot_cache_that_only_looks_right_fails(wrong):
    for seed in range(3):
        assert run_check(EXERCISES["07.5"], wrong, seed=seed).kind == "wrong"
