"""The groups that vLLM makes of a model's layers: pages made equal, places that no layer fills, states."""

import pytest

from minikv.errors import ArgumentError, ConfigError
from minikv.plan.catalog import model_names
from minikv.plan.logs.vllm_pool import hybrid_block_size, vllm_pool
from minikv.plan.spec.cache_spec import CacheSpec
from minikv.plan.spec.layers import LayerSpec
from tests.in_turn import in_turn
from tests.plan.logs.test_pool import pool_of
from tests.plan.vllm_cases import CASES


def test_gemma_4_makes_pages_equal_by_longer_blocks():
    pool = pool_of(CASES["H03"])
    assert {(group.kind, group.block_size) for group in pool.groups} == {("sliding", 16), ("full", 32)}
    assert pool.padding_layers == 0


@in_turn("name", model_names())
def test_every_layer_of_the_catalogue_is_in_one_group(name):
    if name.startswith("DeepSeek-V4"):
        pytest.skip("vLLM's layout of compressed entries is not known here")
    spec = CacheSpec.from_config(name, layout="vllm")
    if any(layer.kind == "cross" for layer in spec.layers):
        with pytest.raises(ConfigError, match="encoder-decoder"):
            vllm_pool(spec)
        return
    pool = vllm_pool(spec)
    entries = sum(bool(layer.token_bytes) + bool(layer.state_bytes) for layer in spec.layers)
    assert sum(group.num_layers for group in pool.groups) == entries
    assert pool.block_bytes % pool.group_size == 0
    assert 0 <= pool.padding_layers < pool.group_size * len({group.kind for group in pool.groups})


@pytest.mark.parametrize(
    ("name", "group_size", "groups", "padding"),
    [
        ("Llama-4-Scout-17B-16E", 12, 4, 0),
        ("Gemma-2-9B", 21, 2, 0),
        ("Gemma-3-4B", 5, 7, 1),
        ("Gemma-3-27B", 10, 7, 8),
        ("Gemma-4-31B", 10, 6, 0),
        ("gpt-oss-20b", 12, 2, 0),
        ("Qwen3-Next-80B-A3B", 12, 4, 0),
        ("Qwen3.5-35B-A3B", 10, 4, 0),
        ("Jamba-v0.1", 4, 8, 0),
    ],
)
def test_groups_of_hybrid_models(name, group_size, groups, padding):
    pool = vllm_pool(CacheSpec.from_config(name, layout="vllm"))
    assert (pool.group_size, len(pool.groups), pool.padding_layers) == (group_size, groups, padding)


@pytest.mark.parametrize(("tp", "kv_dtype", "size"), [(1, "bf16", 784), (2, "fp8", 1568), (1, "fp8", 1568)])
def test_hybrid_block_size_of_qwen(tp, kv_dtype, size):
    spec = CacheSpec.from_config("Qwen3.5-27B", tp=tp, kv_dtype=kv_dtype, layout="vllm")
    token = max(layer.token_bytes for layer in spec.layers)
    state = max(layer.state_bytes for layer in spec.layers)
    assert hybrid_block_size(state, token) == size
    assert (size - 16) * token < state <= size * token


@pytest.mark.parametrize(
    ("full", "sliding", "group_size", "groups", "padding"),
    # On both sides of the 1.5 at which the larger kind gives the size.
    [(10, 10, 10, 2, 0), (10, 14, 14, 2, 4), (10, 15, 10, 3, 5), (12, 13, 13, 2, 1), (10, 52, 10, 7, 8)],
)
def test_group_size_and_padding(full, sliding, group_size, groups, padding):
    layers = full * (LayerSpec("full", 8, 64, 64),) + sliding * (LayerSpec("sliding", 8, 64, 64, window=128),)
    pool = vllm_pool(CacheSpec(layers, layout="vllm"))
    assert (pool.group_size, len(pool.groups), pool.padding_layers) == (group_size, groups, padding)
    sizes = [group.num_layers for group in pool.groups if group.kind == "sliding"]
    assert max(sizes) - min(sizes) <= 1


def test_latents_with_and_without_indexer():
    """An indexer key is a tensor of its own in the same block; sparse fp8 latents take 656 bytes a token."""
    plain = vllm_pool(CacheSpec.from_config("DeepSeek-V3", tp=8, layout="vllm"), block_size=64)
    assert plain.block_bytes == 64 * 70272
    sparse = vllm_pool(CacheSpec.from_config("DeepSeek-V3.2", tp=8, layout="vllm"), block_size=64)
    assert sparse.block_bytes == 64 * (70272 + 61 * 132)
    fp8 = CacheSpec.from_config("DeepSeek-V3.2", tp=8, kv_dtype="fp8", layout="vllm")
    assert vllm_pool(fp8, block_size=64).block_bytes == 64 * 61 * (656 + 132)


def test_layers_without_attention_have_a_state_a_block():
    state = LayerSpec("linear", state_bytes=1000)
    pool = vllm_pool(CacheSpec((state, state), layout="vllm"))
    assert (pool.block_bytes, pool.blocks_per_request(5000)) == (2000, 1)
    assert pool.tokens_printed(7, max_model_len=5000) == 35000
    with pytest.raises(ArgumentError, match="--max-model-len"):
        pool.tokens_printed(7)
