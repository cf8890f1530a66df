"""What PagedKVCache refuses: each with a code and its numbers, before a single byte has changed."""

import math

import numpy as np
import pytest
import torch

from tests.cache.paged_cases import cache_for, every_byte, fill, refused, unchanged

META = torch.device("meta")


def tokens(count=3, heads=2, dim=8, **options):
    return torch.ones(count, heads, dim, **options)


@pytest.fixture
def cache():
    """Three KV cache groups with random bytes in them; the test fails if one of them changes."""
    cache = cache_for("mixed", "int8")
    fill(cache)
    before = every_byte(cache)
    yield cache
    assert unchanged(cache, before)


@pytest.mark.parametrize(
    ("slots", "code"),
    [
        ([0, 1, 20], "cache_index"),
        ([0, -2, 1], "cache_index"),
        ([0, 2**40, 1], "cache_index"),
        (np.array([0, 1, 20], np.int32), "cache_index"),
        (torch.tensor([0, 1, 20], dtype=torch.int32), "cache_index"),
        (torch.tensor([0, 1, 20], dtype=torch.uint8), "cache_index"),
        (np.array([0, 1, 2**64 - 1], np.uint64), "cache_index"),
        ([0, 2**70, 1], "cache_not_whole"),
        ([0, 1.0, 2], "cache_not_whole"),
        ([0, True, 2], "cache_not_whole"),
        (torch.tensor([0.0, 1, 2]), "cache_not_whole"),
        (torch.tensor([True, False, True]), "cache_not_whole"),
        (np.array([0.0, 1, 2]), "cache_not_whole"),
        ("abc", "cache_not_a_list"),
        (None, "cache_not_a_list"),
        (3, "cache_not_a_list"),
        ([0, 1], "cache_shape"),
        ([[0, 1, 2]], "cache_not_whole"),
        (torch.zeros(3, 1, dtype=torch.int64), "cache_shape"),
        (torch.zeros(3, dtype=torch.int64, device=META), "cache_device"),
    ],
)
def test_slots_that_cannot_be_written(cache, slots, code):
    refused(code, cache.write, 1, tokens(), tokens(), slots)


def test_the_first_bad_slot_is_named(cache):
    error = refused("cache_index", cache.write, 1, tokens(), tokens(), [5, 77, 99])
    assert (error.values["place"], error.values["value"], error.values["high"]) == (1, 77, 19)


@pytest.mark.parametrize(
    ("k", "v", "code"),
    [
        (tokens(heads=1), tokens(), "cache_shape"),  # would broadcast over the heads
        (tokens(dim=1), tokens(), "cache_shape"),
        (tokens(), tokens(count=1), "cache_shape"),
        (tokens(count=4), tokens(), "cache_shape"),
        (tokens()[0], tokens(), "cache_shape"),
        (tokens()[None], tokens(), "cache_shape"),
        (tokens(dtype=torch.int32), tokens(), "cache_dtype"),
        (tokens(), tokens(dtype=torch.int8), "cache_dtype"),
        (tokens().to(torch.float8_e4m3fn), tokens(), "cache_dtype"),
        (tokens(dtype=torch.complex64), tokens(), "cache_dtype"),
        (tokens(device=META), tokens(), "cache_device"),
        (tokens(), tokens(device=META), "cache_device"),
        (tokens().numpy(), tokens(), "cache_not_a_tensor"),
        (tokens(), None, "cache_not_a_tensor"),
    ],
)
def test_new_tokens_that_cannot_be_written(cache, k, v, code):
    refused(code, cache.write, 1, k, v, [0, 1, 2])


@pytest.mark.parametrize(
    ("layer", "code"),
    [
        (7, "out_of_range"),
        (-1, "bad_count"),
        (True, "bad_count"),
        (1.0, "bad_count"),
        (None, "bad_count"),
        (5, "cache_no_kv"),
        (4, "cache_shared_write"),
    ],
)
def test_layers_that_cannot_be_written(cache, layer, code):
    error = refused(code, cache.write, layer, tokens(), tokens(), [0, 1, 2])
    if code == "cache_shared_write":
        assert error.values == {"layer": 4, "source": 1}
        refused(code, cache.move, layer, [0], [1])
        cache.layer(layer)
        cache.gather(layer, [0], 3)
    else:
        for call in (cache.layer, cache.kv_cache_group_of):
            refused(code, call, layer)
        refused(code, cache.gather, layer, [0], 3)


@pytest.mark.parametrize(
    ("table", "length", "start", "code"),
    [
        ([0, 5], 8, 0, "cache_index"),
        ([0, -2], 8, 0, "cache_index"),
        ([0, -1], 5, 0, "paged_null_block"),
        (np.array([-1, -1, 2]), 9, 7, "paged_null_block"),
        ([0, 1], 9, 0, "paged_table_short"),
        ([], 1, 0, "paged_table_short"),
        ([0, 1], -1, 0, "bad_count"),
        ([0, 1], 8, -1, "bad_count"),
        ([0, 1], True, 0, "bad_count"),
        ([0, 1], 4, 5, "out_of_range"),
        ([0.0, 1], 8, 0, "cache_not_whole"),
        ([[0, 1]], 4, 0, "cache_not_whole"),
        (torch.zeros(1, 2, dtype=torch.int64), 4, 0, "cache_shape"),
        (7, 4, 0, "cache_not_a_list"),
    ],
)
def test_tables_that_cannot_be_read(cache, table, length, start, code):
    refused(code, cache.gather, 1, table, length, start)


def test_a_null_block_s_error_says_from_where_to_read(cache):
    table = [-1, -1, 2]
    error = refused("paged_null_block", cache.gather, 1, table, 9, 3)
    k, _ = cache.gather(1, table, 9, error.values["start"])
    assert len(k) == 1
    assert len(cache.gather(1, [-1, -1, -1], 9, 9)[0]) == 0


@pytest.mark.parametrize("dtype", [torch.int8, "float32", torch.float8_e4m3fn])
def test_dtypes_that_cannot_be_read_as(cache, dtype):
    refused("cache_dtype", cache.gather, 1, [0], 3, dtype=dtype)


@pytest.mark.parametrize(
    ("src", "dst", "code"),
    [
        ([0, 1, 5, 2], [1, 2, 3, 4], "cache_index"),
        ([0, 1, 2], [1, 9, 3], "cache_index"),
        ([0, -1], [1, 2], "cache_index"),
        ([0, 1], [3, 3], "cache_twice"),
        ([0, 1], [3], "cache_pairs"),
        ([[0]], [[1]], "cache_not_whole"),
        (torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.int64), "cache_shape"),
        (torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64, device=META), "cache_device"),
    ],
)
@pytest.mark.parametrize("group", [0, 2])
def test_a_copy_with_one_bad_block_copies_none(cache, group, src, dst, code):
    refused(code, cache.copy_blocks, group, src, dst)


@pytest.mark.parametrize(("group", "code"), [(3, "out_of_range"), (-1, "bad_count"), ("0", "bad_count")])
def test_groups_that_do_not_exist(cache, group, code):
    refused(code, cache.copy_blocks, group, [0], [1])
    refused(code, cache.parts, group)


@pytest.mark.parametrize(
    ("src", "dst", "code"),
    [
        ([0, 1, 20], [1, 2, 3], "cache_index"),
        ([0, 1, 2], [1, -1, 3], "cache_index"),
        ([0, 1], [3, 3], "cache_twice"),
        ([0, 1], [3], "cache_pairs"),
        (np.zeros((3, 1), int), np.ones((3, 1), int), "cache_shape"),
        (np.zeros((1, 2), int), np.array([[1, 2]]), "cache_shape"),
        (np.array([[0, 1], [2, 3]]), np.array([[4, 5], [6, 6]]), "cache_twice"),
        (np.array([0, 1]), np.array([[4, 5], [6, 7]]), "cache_pairs"),
        (np.zeros((1, 1, 1), int), np.zeros((1, 1, 1), int), "cache_shape"),
    ],
)
def test_a_move_with_one_bad_slot_moves_none(cache, src, dst, code):
    refused(code, cache.move, 1, src, dst)


def test_a_closed_cache_refuses_everything():
    cache = cache_for("gqa")
    cache.close()
    for call in (
        lambda: cache.layer(0),
        lambda: cache.write(0, tokens(), tokens(), [0, 1, 2]),
        lambda: cache.gather(0, [0], 1),
        lambda: cache.copy_blocks(0, [0], [1]),
        lambda: cache.move(0, [0], [1]),
    ):
        refused("paged_closed", call)


def test_nan_and_infinity_are_kept_visible():
    cache = cache_for("gqa", "int8")
    rows = tokens(2)
    rows[0, 0, 3] = math.nan
    rows[1, 1, 2] = math.inf
    cache.write(0, rows, rows, [0, 1])
    k, _ = cache.gather(0, [0], 2)
    assert k[0, 0].isnan().all()
    assert k[0, 1].isfinite().all()
    assert k[1].isfinite().all()
    assert k[1, 1, 2] > 3e38
