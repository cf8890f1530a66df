"""allocate_kv_cache refuses: sizes that do not fit before a page is touched, the rest before anything runs."""

import pytest
import torch
from torch import nn

from minikv.cache import allocate_kv_cache, allocator, warmup
from minikv.errors import ArgumentError, DoesNotFitError
from minikv.memory import MemoryStats
from minikv.plan.spec.cache_spec import CacheSpec
from tests.cache.test_allocator import Recorder, refused
from tests.plan.small_models import small_config, small_model


@pytest.fixture(scope="module")
def llama():
    return small_model(small_config("llama"), torch.bfloat16)


def test_given_bytes_that_hold_no_block_are_refused(llama):
    least = CacheSpec.from_config(llama.config, kv_dtype="bf16").block_bytes(16)
    error = refused(
        lambda: allocate_kv_cache(llama, kv_bytes=least - 1), "allocator_kv_bytes", DoesNotFitError
    )
    assert f"{least:,}" in str(error)
    assert allocate_kv_cache(llama, kv_bytes=least)[1].num_blocks == 1


def test_a_given_size_that_the_machine_has_not_is_refused_before_a_page_is_touched(llama, monkeypatch):
    """Linux would promise it and end the process at the touch."""
    free = MemoryStats.read("cpu").free
    block = CacheSpec.from_config(llama.config, kv_dtype="bf16").block_bytes(16)
    monkeypatch.setattr(allocator, "PagedKVCache", lambda *_, **__: pytest.fail("nothing may be allocated"))
    for size in ({"kv_bytes": 2 * free}, {"num_blocks": 2 * free // block}):
        error = refused(lambda size=size: allocate_kv_cache(llama, **size), "allocator_given_too_large")
        assert isinstance(error, DoesNotFitError)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({}, "allocator_size_needed"),
        ({"num_blocks": 3, "kv_bytes": 3}, "allocator_two_sizes"),
        ({"num_blocks": 0}, "bad_count"),
        ({"num_blocks": True}, "bad_count"),
        ({"num_blocks": [3]}, "bad_count"),
        ({"kv_bytes": -1}, "bad_count"),
        ({"kv_bytes": 1e6}, "bad_count"),
        ({"num_blocks": 3, "block_size": 0}, "bad_count"),
        ({"num_blocks": 3, "tp": 0}, "bad_count"),
        ({"num_blocks": 3, "tp": 5}, "heads_do_not_divide"),
        ({"num_blocks": 3, "utilization": 0}, "out_of_range"),
        ({"num_blocks": 3, "utilization": 1.5}, "out_of_range"),
        ({"num_blocks": 3, "warmup_tokens": 0}, "bad_count"),
        ({"num_blocks": 3, "warmup_tokens": 513}, "out_of_range"),
        ({"num_blocks": 3, "context": 0}, "bad_count"),
        ({"num_blocks": 3, "context": 513}, "context_too_long"),
        ({"num_blocks": 3, "batch": 0}, "bad_count"),
        ({"num_blocks": 3, "kv_dtype": "int3"}, "unknown_choice"),
    ],
)
def test_bad_arguments_are_refused_before_the_warm_up(values, code):
    model = Recorder(small_config("llama"))
    refused(lambda: allocate_kv_cache(model, **({"warmup_tokens": 9} | values)), code)
    assert model.calls == []


def test_a_model_that_no_paged_cache_holds_is_refused_before_the_warm_up():
    model = Recorder(small_config("mamba"))
    with pytest.raises(ArgumentError) as caught:
        allocate_kv_cache(model, num_blocks=3, warmup_tokens=9)
    assert caught.value.code in ("paged_layer", "paged_empty")
    assert model.calls == []


def test_what_is_no_model_or_lies_on_two_devices_is_refused(llama):
    for bad in (None, "llama", nn.Linear(2, 2), llama.config):
        refused(lambda bad=bad: allocate_kv_cache(bad, num_blocks=3), "allocator_not_a_model", ArgumentError)
    model = Recorder(small_config("llama"))
    model.more = nn.Parameter(torch.empty(2, device="meta"))
    error = refused(lambda: allocate_kv_cache(model, num_blocks=3), "allocator_devices", ArgumentError)
    assert "cpu, meta" in str(error)
    refused(lambda: warmup(nn.Linear(2, 2), 4), "allocator_not_a_model", ArgumentError)
    refused(lambda: warmup(llama, 0), "bad_count", ArgumentError)
