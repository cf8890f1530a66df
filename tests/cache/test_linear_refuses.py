"""LinearKVCache says no before anything changes, with the numbers and the way out in both languages."""

import numpy as np
import pytest
import torch

from minikv.cache.linear import LinearKVCache, RowFullError
from minikv.errors import ArgumentError, MiniKVError
from minikv.plan import CacheSpec, LayerSpec
from tests.cache.test_linear import GQA, LATENT, shared, spec_of


@pytest.fixture
def cache():
    """Three rows of at most 8 tokens, holding 3, 8 and 0."""
    cache = LinearKVCache(spec_of("gqa"), 3, 8)
    cache.tensors[0].normal_(generator=torch.Generator().manual_seed(0))
    cache.commit([3, 8, 0])
    return cache


def refused(cache, code, operation, *arguments):
    """``operation`` raises ``code``, and neither a byte nor a length has changed."""
    before = cache.tensors[0].clone()
    lengths = cache.host_lengths
    with pytest.raises(MiniKVError) as caught:
        operation(*arguments)
    assert caught.value.code == code
    assert caught.value.text("zh") != caught.value.text("en")
    assert torch.equal(cache.tensors[0], before)
    assert cache.host_lengths == lengths == tuple(cache.lengths.tolist())
    return caught.value


def step(tokens, batch=3, heads=2, dim=8, **options):
    return torch.ones(batch, heads, tokens, dim, **options)


def test_overflow_is_refused_before_any_row_is_written(cache):
    error = refused(cache, "linear_row_full", cache.write, 0, step(1), step(1))
    assert isinstance(error, RowFullError)
    assert (error.values["row"], error.values["free"]) == (1, 0)
    refused(cache, "linear_row_full", cache.write, 0, step(6), step(6), [6, 0, 6])
    refused(cache, "linear_row_full", cache.commit, [5, 1, 8])
    cache.write(0, step(8), step(8), [5, 0, 8])
    cache.commit([5, 0, 8])
    assert cache.host_lengths == (8, 8, 8)


def test_a_refused_step_can_be_written_smaller_afterwards(cache):
    refused(cache, "linear_row_full", cache.write, 0, step(1), step(1))
    cache.write(0, step(1), step(1), [1, 0, 1])
    assert torch.equal(cache.layer(0)[0][0, :, 3], torch.ones(2, 8))


@pytest.mark.parametrize(
    ("k", "v", "code"),
    [
        (step(1, batch=2), step(1), "cache_shape"),
        (step(1, heads=4), step(1), "cache_shape"),
        (step(1), step(1, dim=9), "cache_shape"),
        (step(1)[0], step(1), "cache_shape"),
        (step(2), step(1), "cache_shape"),
        ([[1.0]], step(1), "cache_not_a_tensor"),
        (step(1), None, "cache_not_a_tensor"),
        (step(1, dtype=torch.int64), step(1), "cache_dtype"),
        (step(1), step(1, dtype=torch.bool), "cache_dtype"),
        (step(1, device="meta"), step(1), "cache_device"),
    ],
)
def test_tokens_of_a_wrong_shape_kind_or_place(cache, k, v, code):
    refused(cache, code, cache.write, 1, k, v)


@pytest.mark.parametrize(
    ("counts", "code"),
    [
        ([1, 0], "linear_one_a_row"),
        ([1, 0, 1, 0], "linear_one_a_row"),
        ([1, 0, -1], "bad_count"),
        ([1, 0, True], "cache_not_whole"),
        ([1, 0, 1.0], "cache_not_whole"),
        (torch.tensor([1.0, 0.0, 1.0]), "cache_not_whole"),
        (torch.tensor([[1, 0, 1]]), "cache_not_whole"),
        (np.array([True, False, True]), "cache_not_whole"),
        ("101", "cache_not_a_list"),
        (1, "cache_not_a_list"),
        (torch.tensor(1), "cache_not_a_list"),
        ({1: 0}, "cache_not_a_list"),
        ([1, 0, 2**63], "count_too_large"),
    ],
)
def test_counts_must_be_one_whole_number_a_row(cache, counts, code):
    refused(cache, code, cache.commit, counts)
    refused(cache, code, cache.write, 0, step(2), step(2), counts)


def test_a_row_cannot_bring_more_tokens_than_the_step_has(cache):
    refused(cache, "out_of_range", cache.write, 0, step(2), step(2), [3, 0, 0])


@pytest.mark.parametrize("layer", [3, 2**40])
def test_no_such_layer(cache, layer):
    refused(cache, "out_of_range", cache.layer, layer)
    refused(cache, "out_of_range", cache.write, layer, step(1), step(1))


@pytest.mark.parametrize("layer", [-1, True, None, 1.0, "0"])
def test_a_layer_is_a_whole_number(cache, layer):
    refused(cache, "bad_count", cache.layer, layer)


@pytest.mark.parametrize("rows", [[3], [0, -1]])
def test_no_such_row(cache, rows):
    refused(cache, "out_of_range", cache.reset, rows)


@pytest.mark.parametrize(("rows", "code"), [(0, "cache_not_a_list"), ([None], "cache_not_whole")])
def test_rows_are_a_list(cache, rows, code):
    refused(cache, code, cache.reset, rows)


@pytest.mark.parametrize(
    "extra",
    [
        {"state_bytes": 64},
        {"index_bytes": 132},
        {"format_bytes": 8},
        {"packed_bytes": 8},
        {"scale_bytes": 4},
    ],
)
def test_a_layer_that_keeps_more_than_k_and_v_is_refused_by_number(extra):
    layers = (GQA, LayerSpec(**{**vars(GQA), **extra}), GQA)
    with pytest.raises(ArgumentError) as caught:
        LinearKVCache(CacheSpec(layers=layers), 2, 8)
    assert caught.value.code == "linear_layer"
    assert caught.value.values["layer"] == 1
    assert {caught.value.values["field"]: caught.value.values["num_bytes"]} == extra


@pytest.mark.parametrize("name", ["DeepSeek-V3.2", "Whisper-large-v3", "Qwen3-Next-80B-A3B"])
def test_real_models_with_other_state_are_refused(name):
    frames = {"encoder_tokens": 1500} if "Whisper" in name else {}
    with pytest.raises(ArgumentError) as caught:
        LinearKVCache(CacheSpec.from_config(name, **frames), 2, 8)
    assert caught.value.code == "linear_layer"


@pytest.mark.parametrize("dtype", ["fp8", "fp8_scaled", "int8"])
def test_a_quantized_cache_is_sent_to_the_paged_one(dtype):
    with pytest.raises(ArgumentError, match="PagedKVCache"):
        LinearKVCache(CacheSpec.from_config("Llama-3.1-8B", kv_dtype=dtype), 2, 8)


@pytest.mark.parametrize(
    ("layers", "code"),
    [
        ((), "linear_empty"),
        ((LayerSpec("none"),), "linear_empty"),
        ((GQA, shared(1)), "cache_bad_source"),
        ((GQA, shared(7)), "cache_bad_source"),
        ((GQA, shared(-1)), "cache_bad_source"),
        ((GQA, shared(0), shared(1)), "cache_bad_source"),
        ((GQA, LayerSpec(**{**vars(GQA), "reads_layer": 0})), "cache_bad_source"),
        ((LayerSpec(**{**vars(GQA), "itemsize": 4}),), "linear_itemsize"),
        ((LayerSpec(**{**vars(LATENT), "v_dim": 0}),), "bad_count"),
        ((LayerSpec(**{**vars(GQA), "k_dim": -8, "v_dim": 24}),), "bad_count"),
    ],
)
def test_layers_that_contradict_themselves(layers, code):
    with pytest.raises(ArgumentError) as caught:
        LinearKVCache(CacheSpec(layers=layers), 2, 8)
    assert caught.value.code == code


def test_a_layer_that_caches_nothing_has_no_views():
    cache = LinearKVCache(spec_of("mixed"), 2, 8)
    with pytest.raises(ArgumentError) as caught:
        cache.layer(4)
    assert caught.value.code == "cache_no_kv"


def test_a_shared_layer_is_not_written():
    cache = LinearKVCache(spec_of("mixed"), 2, 8)
    with pytest.raises(ArgumentError) as caught:
        cache.write(6, step(1, batch=2), step(1, batch=2))
    assert (caught.value.code, caught.value.values["source"]) == ("cache_shared_write", 2)


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, None, 2**70])
def test_sizes_are_whole_numbers_from_one(bad):
    for arguments in ((bad, 8), (2, bad)):
        with pytest.raises(ArgumentError):
            LinearKVCache(spec_of("gqa"), *arguments)


def test_neither_a_name_nor_a_strange_device_makes_a_cache():
    with pytest.raises(ArgumentError) as caught:
        LinearKVCache("Llama-3.1-8B", 2, 8)
    assert caught.value.code == "cache_not_a_spec"
    for device in ("moon", "meta", 3.5):
        with pytest.raises(ArgumentError):
            LinearKVCache(spec_of("gqa"), 2, 8, device=device)


def test_too_large_for_any_memory():
    with pytest.raises(MiniKVError):
        LinearKVCache(CacheSpec.from_config("Llama-3.1-8B"), 2**20, 2**30)


def test_a_length_fits_an_int32():
    with pytest.raises(ArgumentError) as caught:
        LinearKVCache(spec_of("gqa"), 1, 2**31)
    assert caught.value.values["high"] == 2**31 - 1
