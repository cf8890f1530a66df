"""The cache that an LLM builds: windowed layers never bind first, and never get more blocks than the others."""

import pytest
import torch

from minikv.cache import StateSlots, allocate_kv_cache
from minikv.cache.layout import whole_entries
from minikv.engine.core.rules import peak_blocks
from minikv.engine.factory import EngineConfig, build_cache, build_manager, windows_wanted
from minikv.models import seen_window
from minikv.models.measured import measure, state_shapes
from minikv.plan import CacheSpec
from minikv.plan.pool import sequence_bytes
from tests.cache.test_allocator import MIB, measuring
from tests.models.running import World
from tests.plan.small_models import small_config, small_model

WINDOWED = ("gemma3_text", "gpt_oss", "mistral")


def wish(**changes) -> EngineConfig:
    """What ``LLM`` asks for by default, on a small pool."""
    values = {
        "utilization": 0.9,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_batched_tokens": 16,
        "cache": "paged",
    }
    values |= dict.fromkeys(("kv_bytes", "num_blocks", "max_model_len", "kv_dtype")) | changes
    return EngineConfig(**values)


@pytest.mark.parametrize("model_type", WINDOWED)
@pytest.mark.parametrize(
    "size",
    [
        {"num_blocks": 3},
        {"num_blocks": 40},
        {"num_blocks": 500},
        {"kv_bytes": 2**16},
        {"kv_bytes": 2**22},
        {},
    ],
)
def test_windows_never_bind_first(model_type, size):
    """Either as many blocks as the others have, or a full window for every sequence and one step's tokens beside."""
    model = World.bare(model_type)
    spec = CacheSpec.from_config(model.config, kv_dtype="fp32")
    wanted = wish(**size)
    cache, _ = build_cache(model, spec, wanted)
    counted = max(cache.num_blocks)
    for group, blocks in enumerate(cache.num_blocks):
        window = seen_window(cache, group)
        if window is None:
            assert blocks == counted
            continue
        full = wanted.max_num_seqs * peak_blocks(10**6, window, 4) + wanted.max_batched_tokens // 4
        assert blocks <= counted
        # What the others have more is less than one more sequence would have taken in all groups.
        more = sum(
            (counted - blocks) * each.block_bytes(4)
            for each in cache.kv_cache_groups
            if each.layer.window is None
        )
        assert blocks >= full or more < sequence_bytes(spec, window + 4, 4)
    assert build_manager(cache).block_size == 4
    if "kv_bytes" in size:
        assert cache.nbytes <= size["kv_bytes"]


@pytest.mark.parametrize("model_type", ["qwen3_next", "deepseek_v4"])
def test_states_that_are_held_before_the_pool_is_measured_are_counted_once(monkeypatch, model_type):
    """They are in ``used``; the blocks, also those of windows, get all that is left then."""
    model = small_model(small_config(model_type), torch.bfloat16)
    slots, spec = StateSlots(state_shapes(model), 12), measure(model, kv_dtype="bf16")
    taken, size = MIB + slots.nbytes, whole_entries(spec, 4)
    measuring(monkeypatch, total=40 * MIB, used=taken, peak=taken, current=taken)
    windows = windows_wanted(spec, wish(block_size=size), 64)
    cache, report = allocate_kv_cache(model, block_size=size, warmup_tokens=32, **windows)
    assert report.terms.available == 36 * MIB - taken
    assert 0 <= report.terms.available - cache.nbytes < report.block_bytes < spec.constant_state_bytes
