"""Lesson 06: its exercises, predictions and questions do what a learner relies on."""

import random

import pytest
import torch

from minikv.cache import LinearKVCache, PagedKVCache
from minikv.course.exercise import Lesson
from minikv.course.lessons import find_lesson
from minikv.plan import CacheSpec, LayerSpec
from tests.course.mutants import assert_exercise, assert_prediction, assert_question

LESSON: Lesson = find_lesson("06")
EXERCISES = {exercise.id: exercise for exercise in LESSON.exercises}
LAYER = LayerSpec("full", kv_heads=2, k_dim=4, v_dim=4, itemsize=4)


def offset_by_strides(shape, place):
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return sum(index * stride for index, stride in zip(place, strides, strict=True))


def offset_by_torch(shape, place):
    # Strides without memory.
    strides = torch.empty(shape, device="meta").stride()
    return sum(stride * place[dimension] for dimension, stride in enumerate(strides))


def wasted_row_by_row(lengths, max_seq, block_size, token_bytes):
    linear = paged = 0
    for length in lengths:
        linear += (max_seq - length) * token_bytes
        paged += -length % block_size * token_bytes
    return linear, paged


def wasted_by_the_caches(lengths, max_seq, block_size, token_bytes):
    # The real caches' bytes, in slots: one layer whose token takes 64 bytes.
    spec = CacheSpec(layers=(LAYER,), kv_dtype="fp32")
    linear = LinearKVCache(spec, len(lengths), max_seq)
    linear.commit(lengths)
    blocks = sum(len(range(0, length, block_size)) for length in lengths)
    paged = PagedKVCache(spec, blocks, block_size).nbytes - spec.bytes_for(sum(lengths))
    return linear.use().wasted_bytes // 64 * token_bytes, paged // 64 * token_bytes


class JoinedCache:
    """No fixed room at all: what is counted of each row and layer, joined when it grows."""

    def __init__(self, layers, batch, kv_heads, max_seq, head_dim):
        empty = torch.empty(2, kv_heads, 0, head_dim)
        self.rows = {(layer, row): empty for layer in range(layers) for row in range(batch)}
        self.new = {}

    def write(self, layer, k, v):
        for row in range(k.shape[0]):
            self.new[layer, row] = torch.stack([k[row], v[row]])

    def commit(self, increments):
        for (layer, row), new in self.new.items():
            self.rows[layer, row] = torch.cat([self.rows[layer, row], new[:, :, : increments[row]]], 2)

    def read(self, layer, row):
        return self.rows[layer, row].unbind(0)


class IndexedCache:
    """All rows at once, by a tensor of positions."""

    def __init__(self, layers, batch, kv_heads, max_seq, head_dim):
        self.k = torch.zeros(layers, batch, max_seq, kv_heads, head_dim)
        self.v = torch.zeros_like(self.k)
        self.lengths = torch.zeros(batch, dtype=torch.long)

    def write(self, layer, k, v):
        rows = torch.arange(k.shape[0])[:, None]
        places = self.lengths[:, None] + torch.arange(k.shape[2])
        self.k[layer][rows, places] = k.transpose(1, 2)
        self.v[layer][rows, places] = v.transpose(1, 2)

    def commit(self, increments):
        self.lengths += torch.tensor(increments)

    def read(self, layer, row):
        length = int(self.lengths[row])
        return self.k[layer, row, :length].transpose(0, 1), self.v[layer, row, :length].transpose(0, 1)


class OwnCache:
    """The package's cache answers its own exercise."""

    def __init__(self, layers, batch, kv_heads, max_seq, head_dim):
        layer = LayerSpec("full", kv_heads=kv_heads, k_dim=head_dim, v_dim=head_dim, itemsize=4)
        self.cache = LinearKVCache(CacheSpec(layers=(layer,) * layers, kv_dtype="fp32"), batch, max_seq)

    def write(self, layer, k, v):
        self.cache.write(layer, k, v)

    def commit(self, increments):
        self.cache.commit(increments)

    def read(self, layer, row):
        return tuple(view[row, :, : self.cache.host_lengths[row]] for view in self.cache.layer(layer))


class EmptyCache:
    """What the learner starts from."""

    def __init__(self, layers, batch, kv_heads, max_seq, head_dim):
        raise NotImplementedError


def steps_by_walking(prompts, max_seq, num_blocks, block_size):
    rows, free = list(prompts), num_blocks - sum(len(range(0, length, block_size)) for length in prompts)
    linear, paged, going = 0, 0, True
    while max(prompts) + linear < max_seq:
        linear += 1
    while going:
        needs = sum(length % block_size == 0 for length in rows)
        going = needs <= free
        if going:
            free -= needs
            rows = [length + 1 for length in rows]
            paged += 1
    return linear, paged


def steps_by_halving(prompts, max_seq, num_blocks, block_size):
    low, high = 0, num_blocks * block_size
    while low < high:
        middle = (low + high + 1) // 2
        if sum((length + middle + block_size - 1) // block_size for length in prompts) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return min(max_seq - length for length in prompts), low


def write_token_by_token(self, layer, key, value, slots):
    block_size = self.k.shape[2]
    for token, slot in enumerate(slots.tolist()):
        self.k[layer, slot // block_size, slot % block_size] = key[token]
        self.v[layer, slot // block_size, slot % block_size] = value[token]


def write_by_two_indices(self, layer, key, value, slots):
    block, offset = slots // self.k.shape[2], slots % self.k.shape[2]
    self.k[layer, block, offset] = key.to(self.k.dtype)
    self.v[layer, block, offset] = value.to(self.v.dtype)


def write_by_index_copy(self, layer, key, value, slots):
    for cache, new in ((self.k, key), (self.v, value)):
        rows = cache[layer].view(-1, *new.shape[1:])
        rows.index_copy_(0, slots, new.to(cache.dtype))


def test_element_offset():
    assert_exercise(EXERCISES["06.1"], right=[offset_by_strides, offset_by_torch])


def test_wasted_bytes():
    assert_exercise(EXERCISES["06.2"], right=[wasted_row_by_row, wasted_by_the_caches], sequences="lengths")


def test_row_cache():
    assert_exercise(EXERCISES["06.3"], right=[JoinedCache, IndexedCache, OwnCache], stub=EmptyCache)


def test_steps_left():
    assert_exercise(EXERCISES["06.4"], right=[steps_by_walking, steps_by_halving], sequences="prompts")


def test_write():
    def stub(self, layer, key, value, slots):
        raise NotImplementedError

    right = [write_token_by_token, write_by_two_indices, write_by_index_copy]
    assert_exercise(EXERCISES["06.5"], right=right, sequences="writes", stub=stub)


def test_every_row_cache_case_has_two_rows_of_different_length():
    for seed in range(3):
        for case in EXERCISES["06.3"].draw(seed):
            totals = [sum(row) for row in zip(*case["steps"], strict=True)]
            assert len(totals) >= 2
            assert case["layers"] >= 2
        assert sum(len(set(step)) > 1 for case in EXERCISES["06.3"].draw(seed) for step in case["steps"]) > 10


@pytest.mark.parametrize("prediction", LESSON.predictions, ids=lambda p: p.key)
def test_prediction(prediction):
    assert_prediction(prediction, "06")


@pytest.mark.parametrize("key", LESSON.questions)
def test_question(key):
    assert_question(key, "06")


def test_the_offset_is_where_the_real_cache_keeps_the_element():
    rng = random.Random(0)
    offset = EXERCISES["06.1"].reference
    cache = LinearKVCache(CacheSpec(layers=(LAYER,) * 3, kv_dtype="fp32"), 5, 7)
    (tensor,) = cache.tensors
    for _ in range(50):
        place = tuple(rng.randrange(size) for size in tensor.shape)
        assert tensor[place].data_ptr() == tensor.data_ptr() + 4 * offset(tuple(tensor.shape), place)


def test_with_the_same_bytes_in_whole_blocks_paged_never_stops_first():
    # What the solution of 06.4 says of num_blocks * block_size = rows * max_seq.
    rng, steps = random.Random(0), EXERCISES["06.4"].reference
    for _ in range(500):
        block_size, rows = rng.choice([2, 4, 8]), rng.randint(2, 6)
        max_seq = block_size * rng.randint(1, 8)
        prompts = [rng.randint(1, max_seq) for _ in range(rows)]
        linear, paged = steps(prompts, max_seq, rows * max_seq // block_size, block_size)
        assert paged >= linear
