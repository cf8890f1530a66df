"""bind: the views of the right layer in the right module, or nothing at all."""

import pytest
import torch
from torch import nn

from minikv.cache import PagedKVCache, bind
from minikv.errors import ArgumentError
from minikv.memory import share_storage
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.plan.spec.layers import LayerSpec

FULL = LayerSpec("full", kv_heads=2, k_dim=4, v_dim=6)
SLIDING = LayerSpec("sliding", kv_heads=2, k_dim=4, v_dim=6, window=5)
NONE = LayerSpec("none")
SHARED = LayerSpec("shared", reads_layer=0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.k_cache = self.v_cache = torch.tensor([])


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.attention = nn.Linear(2, 2), Attention()


def model_of(count):
    return nn.Sequential(*(Layer() for _ in range(count)))


def test_each_module_gets_its_layers_views():
    cache = PagedKVCache(CacheSpec((FULL, SLIDING, NONE, SHARED)), 3, 2)
    model = model_of(3)
    assert bind(model, cache) == 3
    for module, layer in zip(model, (0, 1, 3), strict=True):
        views = cache.layer(layer)
        for mine, theirs in ((module.attention.k_cache, views.k), (module.attention.v_cache, views.v)):
            assert share_storage(mine, theirs)
            assert (mine.data_ptr(), mine.shape) == (theirs.data_ptr(), theirs.shape)
    cache.write(1, torch.ones(1, 2, 4), torch.full((1, 2, 6), 2.0), [3])
    assert (model[1].attention.k_cache[1, 1] == 1).all()
    assert (model[1].attention.v_cache[1, 1] == 2).all()
    assert not model[0].attention.k_cache.any()


def test_binding_again_replaces_the_views():
    model = model_of(1)
    for blocks in (2, 5):
        bind(model, PagedKVCache(CacheSpec((FULL,)), blocks, 2))
        assert len(model[0].attention.k_cache) == blocks


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_count_that_does_not_match_changes_nothing(count):
    model = model_of(count)
    cache = PagedKVCache(CacheSpec((FULL, FULL)), 3, 2)
    with pytest.raises(ArgumentError) as caught:
        bind(model, cache)
    assert caught.value.code == "bind_count"
    for lang in ("en", "zh"):
        assert f"{count}" in caught.value.text(lang)
        assert "2" in caught.value.text(lang)
    assert all(module.attention.k_cache.numel() == 0 for module in model)


def test_what_a_module_could_not_read_changes_nothing():
    model = model_of(2)
    scaled = LayerSpec("full", kv_heads=2, k_dim=4, v_dim=6, itemsize=1, scale_bytes=4)
    with pytest.raises(ArgumentError) as caught:
        bind(model, PagedKVCache(CacheSpec((scaled, scaled), kv_dtype="int8"), 3, 2))
    assert caught.value.code == "bind_scales"
    last = model[1].attention
    del last.v_cache
    last.v_cache = nn.Parameter(torch.empty(0))
    with pytest.raises(ArgumentError) as caught:
        bind(model, PagedKVCache(CacheSpec((FULL, FULL)), 3, 2))
    assert caught.value.code == "bind_parameter"
    assert "1.attention" in str(caught.value)
    assert model[0].attention.k_cache.numel() == 0


def test_other_things_are_refused():
    cache = PagedKVCache(CacheSpec((FULL,)), 3, 2)
    for model, other, code in (
        (None, cache, "allocator_not_a_model"),
        (model_of(1), None, "bind_not_a_cache"),
    ):
        with pytest.raises(ArgumentError) as caught:
            bind(model, other)
        assert caught.value.code == code
