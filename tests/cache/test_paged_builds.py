"""What no PagedKVCache can be built from: each refused with a code, its numbers and the way out."""

import dataclasses

import pytest

from minikv.cache.codec import CODECS
from minikv.cache.paged import PagedKVCache
from minikv.errors import DoesNotFitError
from minikv.plan import CacheSpec, LayerSpec
from tests.cache.paged_cases import FULL, refused, spec_for
from tests.in_turn import in_turn


@pytest.mark.parametrize(
    ("blocks", "code"),
    [
        (0, "bad_count"),
        (-1, "bad_count"),
        (True, "bad_count"),
        (2.0, "bad_count"),
        ([1, 2], "paged_blocks_of_each"),
        ([1, 2, 0], "bad_count"),
        ([1, 2, False], "bad_count"),
        (None, "bad_count"),
        (2**70, "count_too_large"),
    ],
)
def test_numbers_of_blocks_that_cannot_be(blocks, code):
    refused(code, PagedKVCache, spec_for("mixed"), blocks)


@pytest.mark.parametrize("size", [0, -16, 1.5, True, "16"])
def test_block_sizes_that_cannot_be(size):
    refused("bad_count", PagedKVCache, spec_for("gqa"), 2, size)


@pytest.mark.parametrize("device", ["meta", "cuda:99", "nonsense", 3.5])
def test_devices_that_cannot_be(device):
    refused("arena_device", PagedKVCache, spec_for("gqa"), 2, device=device)


def test_more_blocks_than_the_memory_holds():
    with pytest.raises(DoesNotFitError):
        PagedKVCache(spec_for("gqa"), 2**40)


def test_something_that_is_no_spec():
    refused("cache_not_a_spec", PagedKVCache, {"layers": 2}, 2)


@in_turn("stored", CODECS)
@in_turn("codec", CODECS)
def test_a_codec_whose_bytes_are_not_the_spec_s_is_refused_with_the_way_out(stored, codec):
    spec = spec_for("gqa", stored)
    same = (CODECS[stored].itemsize, CODECS[stored].scaled) == (CODECS[codec].itemsize, CODECS[codec].scaled)
    if same:
        assert PagedKVCache(spec, 1, codec=codec).codec.name == codec
    else:
        error = refused("codec_bytes", PagedKVCache, spec, 1, codec=codec)
        assert f'kv_dtype="{codec}"' in str(error)
        assert "Layer 0 of gqa" in str(error)


@pytest.mark.parametrize("codec", ["fp4", 8, ""])
def test_an_unknown_codec(codec):
    refused("unknown_choice", PagedKVCache, spec_for("gqa"), 2, codec=codec)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"format_bytes": 8}, "paged_layer"),
        ({"packed_bytes": 8}, "paged_layer"),
        ({"kind": "cross", "kv_heads": 0, "state_bytes": 960}, "paged_layer"),
        ({"v_dim": -1}, "bad_count"),
        ({"k_dim": 8.0}, "bad_count"),
        ({"kv_heads": 1.0}, "bad_count"),
        ({"itemsize": 4}, "codec_bytes"),
        ({"scale_bytes": 4}, "codec_bytes"),
    ],
)
def test_a_layer_that_blocks_cannot_hold_is_named(changes, code):
    spec = CacheSpec(layers=(FULL, dataclasses.replace(FULL, **changes)), name="odd")
    error = refused(code, PagedKVCache, spec, 2)
    assert "1" in str(error.values.get("layer", error.values.get("what")))


@pytest.mark.parametrize("source", [0, 7, -1, None])
def test_a_shared_layer_has_to_read_one_that_stores(source):
    layers = (LayerSpec("none"), FULL, LayerSpec("shared", reads_layer=source))
    cache = PagedKVCache(CacheSpec(layers=layers), 2) if source in (0, None) else None
    if cache is None:
        refused("cache_bad_source", PagedKVCache, CacheSpec(layers=layers), 2)
    else:
        refused("cache_no_kv", cache.layer, 2)


@pytest.mark.parametrize("layers", [(), (LayerSpec("none"),)])
def test_a_model_that_caches_nothing(layers):
    refused("paged_empty", PagedKVCache, CacheSpec(layers=layers), 2)
