"""Batch: what it holds follows from tables and lengths, and what contradicts itself is refused."""

import random

import numpy as np
import pytest

from minikv.blocks import NULL_BLOCK, BlockManager, KVCacheGroup
from minikv.cache import PagedKVCache
from minikv.errors import ArgumentError
from minikv.models import Batch, seen_window
from minikv.plan import CacheSpec
from tests.in_turn import in_turn
from tests.plan.small_models import small_config


def cache_of(model_type="llama", block_size=4, blocks=12, **options) -> PagedKVCache:
    spec = CacheSpec.from_config(small_config(model_type), kv_dtype="fp32", **options)
    return PagedKVCache(spec, blocks, block_size)


def test_the_fields_of_a_mixed_batch():
    batch = Batch.build(cache_of(), [[[5, -1, -1], [2, 0, 7], [3, 4, 1]]], [3, 9, 6], [3, 1, 2])
    assert (batch.num_sequences, batch.num_tokens, batch.max_queries, batch.max_position) == (3, 6, 3, 8)
    assert batch.positions.tolist() == [0, 1, 2, 8, 4, 5]
    assert batch.query_starts.tolist() == [0, 3, 4, 6]
    assert batch.last.tolist() == [2, 3, 5]
    assert batch.slots[0].tolist() == [20, 21, 22, 28, 16, 17]
    assert batch.lengths[0].tolist() == [3, 9, 6]


@in_turn("seed", range(20))
@in_turn("model_type", ["llama", "gemma3_text"])
def test_it_says_what_the_block_manager_says(model_type, seed):
    draw = random.Random(seed)
    size = draw.choice((1, 3, 16))
    cache = cache_of(model_type, size, 400)
    groups = range(len(cache.kv_cache_groups))
    manager = BlockManager([KVCacheGroup(400, seen_window(cache, group)) for group in groups], size)
    step = []
    for seq in range(draw.randrange(1, 7)):
        start = draw.randrange(0, 40)
        end = start + draw.randrange(1, 20)
        tokens = [draw.randrange(97) for _ in range(end)]
        if start:
            manager.allocate(seq, tokens[:start], salt=str(seq))
            manager.commit(seq)
            manager.append_tokens(seq, tokens[start:])
        else:
            manager.allocate(seq, tokens, salt=str(seq))
        step.append((seq, start, end))
    tables = [manager.block_tables(group) for group in groups]
    batch = Batch.build(
        cache, tables, np.array([end for *_, end in step]), [end - start for _, start, end in step]
    )
    for group in groups:
        mapping = np.concatenate([manager.slot_mapping(*part, group) for part in step])
        assert batch.slots[group].tolist() == mapping.tolist()
    assert batch.positions.tolist() == [place for _, start, end in step for place in range(start, end)]
    held = batch.block_tables[0].clone()
    for seq, *_ in step:
        manager.free(seq)  # the manager's arrays change; the batch's do not
    assert not len(manager.block_tables(0))
    assert batch.block_tables[0].equal(held)


def test_length_is_not_position():
    batch = Batch.build(cache_of(), [[[5, 6]]], [5], [2], positions=[70, 71])
    assert batch.positions.tolist() == [70, 71]
    assert (batch.max_position, batch.lengths[0].tolist(), batch.slots[0].tolist()) == (71, [5], [23, 24])


def test_groups_may_differ_in_length():
    cache = cache_of("gemma3_text")
    batch = Batch.build(cache, [[[5, 6]], [[7, 8]]], [[8], [3]], [1])
    assert [slots.tolist() for slots in batch.slots] == [[27], [30]]
    assert batch.positions.tolist() == [7], "the first group's"


def test_what_lies_behind_the_window_may_be_nothing():
    cache = cache_of("mistral", block_size=2)  # a query sees 7 tokens
    assert seen_window(cache, 0) == 7
    table = [[NULL_BLOCK, 3, 4, 5, 6]]
    assert Batch.build(cache, [table], [9], [1]).slots[0].tolist() == [12]
    with pytest.raises(ArgumentError) as caught:
        Batch.build(cache, [table], [9], [2])  # the first of two queries sees token 1
    assert (caught.value.code, caught.value.values["entry"]) == ("kernel_table", 0)


@pytest.mark.parametrize(("layout", "window"), [("hf", 7), ("vllm", 7)])
def test_a_query_sees_the_same_whatever_the_layout_keeps(layout, window):
    assert seen_window(cache_of("mistral", layout=layout), 0) == window


GOOD = {"block_tables": [[[0, 1], [2, 3]]], "lengths": [5, 4], "num_queries": [1, 4], "positions": None}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"block_tables": [[0, 1], [2, 3]]}, "batch_tables"),
        ({"block_tables": None}, "batch_tables"),
        ({"block_tables": [[0, 1]]}, "cache_shape"),
        ({"block_tables": [[[0, 1], [2]]]}, "batch_ragged"),
        ({"block_tables": [[[0, 1]]]}, "cache_shape"),
        ({"block_tables": ["01"]}, "cache_not_a_list"),
        ({"block_tables": [[[0, 1.0], [2, 3]]]}, "cache_not_whole"),
        ({"block_tables": [[[0, True], [2, 3]]]}, "cache_not_whole"),
        ({"block_tables": [[[0, 12], [2, 3]]]}, "kernel_table"),
        ({"block_tables": [[[0, -1], [2, 3]]]}, "kernel_table"),
        ({"block_tables": [[[-2, 1], [2, 3]]]}, "kernel_table"),
        ({"block_tables": [[[0, 1], [2**31, 3]]]}, "cache_not_whole"),
        ({"block_tables": [[[0, 2], [2, 3]]]}, "batch_slot_twice"),
        ({"lengths": [9, 4]}, "paged_table_short"),
        ({"lengths": [5, 3]}, "kernel_query_past"),
        ({"lengths": [5]}, "cache_shape"),
        ({"lengths": [[5, 4], [5, 4]]}, "cache_shape"),
        ({"lengths": np.array([5.0, 4.0])}, "cache_not_whole"),
        ({"lengths": np.array([True, True])}, "cache_not_whole"),
        ({"lengths": np.array([5, 2**40])}, "cache_not_whole"),
        ({"num_queries": [0, 4]}, "bad_count"),
        ({"num_queries": [1, -4]}, "bad_count"),
        ({"num_queries": []}, "cache_shape"),
        ({"num_queries": 1}, "cache_not_a_list"),
        ({"positions": [0, 1, 2, 3]}, "cache_shape"),
        ({"positions": [0, 1, 2, 3, -1]}, "bad_count"),
        ({"positions": "01234"}, "cache_not_a_list"),
    ],
)
def test_a_batch_that_contradicts_itself_is_refused(change, code):
    cache = cache_of()
    assert Batch.build(cache, **GOOD).num_tokens == 5
    with pytest.raises(ArgumentError) as caught:
        Batch.build(cache, **(GOOD | change))
    assert caught.value.code == code
    assert caught.value.text("zh") != caught.value.text("en")


def test_it_belongs_to_a_paged_cache():
    with pytest.raises(ArgumentError) as caught:
        Batch.build(object(), **GOOD)
    assert caught.value.code == "bind_not_a_cache"
