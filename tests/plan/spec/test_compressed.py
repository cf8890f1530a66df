"""DeepSeek-V4: bytes that fall when an entry is made, beside transformers' cache; the most tokens; what is refused."""

import pytest
import torch

from minikv.cache import LinearKVCache
from minikv.errors import ArgumentError, ConfigError, DoesNotFitError
from minikv.plan import CacheSpec, plan_memory
from minikv.plan.pool import max_length, sequence_bytes
from tests.plan.small_models import small_config, small_model
from tests.plan.test_truth import numel_bytes, spec_of, storage_bytes

GIB = 2**30
KINDS = ["sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention"]
FLASH = {
    "model_type": "deepseek_v4",
    "num_hidden_layers": 43,
    "hidden_size": 4096,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],  # the last is that of a layer that generation leaves out
    "torch_dtype": "bfloat16",
}


@pytest.fixture(scope="module")
def config():
    return small_config("deepseek_v4", layer_types=KINDS * 2)


@pytest.mark.parametrize("steps", [[1] * 20, [3, 1, 8, 5, 1, 17], [24, 1]], ids=str)
def test_the_bytes_of_every_kind_of_layer_rise_and_fall_as_those_of_the_cache(config, steps):
    spec, model = spec_of(config, torch.float32), small_model(config)
    tokens = torch.randint(3, 90, (2, sum(steps)), generator=torch.Generator().manual_seed(1))
    cache, length, held = None, 0, []
    for step in steps:
        with torch.no_grad():
            out = model(input_ids=tokens[:, length : length + step], past_key_values=cache, use_cache=True)
        cache, length = out.past_key_values, length + step
        held.append(numel_bytes(cache))
        assert held[-1] == spec.bytes_for(length, 2)
        assert storage_bytes(cache) == spec.held_bytes_for(length, step, 2)
    assert len(steps) != 20 or sorted(held) != held  # it did fall


def test_most_tokens_fit_at_every_length_on_the_way(config):
    spec = spec_of(config, torch.float32)
    lengths = [spec.bytes_for(tokens) for tokens in range(200)]
    peaks = [spec.peak_bytes_for(tokens) for tokens in range(200)]
    assert peaks == sorted(peaks)
    assert all(max(lengths[: tokens + 1]) <= peak for tokens, peak in enumerate(peaks))
    for share in range(0, lengths[100], 997):
        most = spec.max_tokens(share)
        assert all(length <= share for length in lengths[: most + 1])
        assert spec.peak_bytes_for(most + 1) > share


def test_flash_costs_what_its_layers_say():
    """320 B a token in a sparse layer, 8 B in a heavy one, beside windows of 127 tokens."""
    spec = CacheSpec.from_config(FLASH)
    assert spec.slope(1000) == 21 * 1280 // 4 + 20 * 1024 // 128
    windows = 127 * (2 * 2048 + 41 * 1024)
    entries = 2**20 // 4 * 21 * 1280 + 2**20 // 128 * 20 * 1024
    assert spec.bytes_for(2**20) == windows + entries + 21 * 4 * (512 + 128) * (2 + 4)
    # A step reads the windows, 512 chosen entries and every indexer key, and all entries of the heavy layers.
    read = windows + 21 * (512 * 1024 + 2**18 * 256) + 20 * 2**13 * 1024
    assert spec.bytes_read(2**20) == read
    assert len(CacheSpec.from_config(FLASH, tp=8).layers) == len(spec.layers)
    assert CacheSpec.from_config(FLASH, tp=8).layers == spec.layers  # one KV head, on every rank


def test_waiting_tokens_keep_the_models_dtype_and_ranks_divide_its_heads():
    plain, small = (CacheSpec.from_config(FLASH, kv_dtype=dtype) for dtype in ("bf16", "fp8"))
    assert small.constant_state_bytes == plain.constant_state_bytes
    assert small.slope(1000) < plain.slope(1000)
    with pytest.raises(ConfigError, match="64"):
        CacheSpec.from_config(FLASH, tp=3)
    with pytest.raises(ConfigError, match="state_bytes"):
        CacheSpec.from_layers({"layers": [{"kind": "compressed", "kv_heads": 1, "k_dim": 8, "rate": 4}]})


def test_blocks_never_hold_less_than_the_bytes():
    spec = CacheSpec.from_config(FLASH)
    for tokens in (1, 3, 127, 128, 4096, 2**17 - 1):
        assert spec.bytes_for(tokens) <= sequence_bytes(spec, tokens, 16) <= sequence_bytes(spec, tokens, 256)
    length = max_length(spec, GIB, 1, 16)
    assert sequence_bytes(spec, length, 16) <= GIB < sequence_bytes(spec, length + 16, 16)
    budget = plan_memory(FLASH, gpu="H200", weight_bytes=80 * GIB, activation_bytes=GIB, context=2**17)
    assert budget.max_batch() == budget.kv_bytes // sequence_bytes(spec, 2**17, 16)
    assert budget.max_batch(2**17) * spec.bytes_for(2**17) <= budget.kv_bytes


def test_all_spellings_of_a_config_give_the_same_layers():
    kinds = {0: KINDS[0], 128: KINDS[1], 4: KINDS[2]}
    listed = {name: value for name, value in FLASH.items() if name != "compress_ratios"}
    listed["layer_types"] = [kinds[ratio] for ratio in FLASH["compress_ratios"][:43]]
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    spec = CacheSpec.from_config(FLASH)
    for more in ({}, {"compress_rates": rates}, {"compress_rate_csa": 4, "compress_rate_hca": 128}):
        assert CacheSpec.from_config(listed | more).layers == spec.layers
    assert CacheSpec.from_layers({"layers": [vars(layer) for layer in spec.layers]}).layers == spec.layers
    halved = CacheSpec.from_config(listed | {"compress_rates": {**rates, "compressed_sparse_attention": 2}})
    assert {layer.rate for layer in halved.layers} == {1, 2, 128}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer_types": ["full_attention"] * 43}, "full_attention"),
        ({"layer_types": "all"}, "layer_types"),
        ({"layer_types": KINDS}, "43"),
        ({"compress_ratios": [4, 8] * 22}, "compress_ratios.* 8"),
        ({"compress_ratios": [4]}, "43"),
        ({"compress_ratios": ["4", *FLASH["compress_ratios"]]}, "compress_ratios.*4"),
        ({"compress_ratios": {}}, "compress_ratios"),
        ({"compress_rates": [4]}, "compress_rates"),
        ({"compress_rates": {"compressed_sparse_attention": 1}}, "compress_rates"),
        ({"compress_rate_hca": "8"}, "compress_rates"),
        ({"index_head_dim": 0}, "index_head_dim"),
    ],
    ids=str,
)
def test_what_is_not_understood_is_refused_by_name(change, words):
    with pytest.raises(ConfigError, match=words) as caught:
        CacheSpec.from_config(FLASH | change)
    assert caught.value.text("zh") != caught.value.text("en")


def test_another_layout_is_refused_with_a_way_out():
    with pytest.raises(ConfigError, match='layout "hf"'):
        CacheSpec.from_config(FLASH, layout="vllm")


def test_eight_cards_are_planned_by_name_and_nothing_has_to_be_given():
    budget = plan_memory("DeepSeek-V4-Flash", gpu="H200", tp=8)
    assert 67 * GIB < budget.weight_bytes < 68 * GIB
    assert budget.activations.stage == "mlp"
    assert budget.fits
    with pytest.raises(DoesNotFitError):
        plan_memory("DeepSeek-V4-Pro", gpu="H200", tp=8)
    assert plan_memory("DeepSeek-V4-Pro", gpu="H200", tp=8, weight_dtype="int4").fits


def test_no_row_holds_compressed_entries():
    with pytest.raises(ArgumentError, match=r"compressed.*waiting_bytes"):
        LinearKVCache(CacheSpec.from_config(FLASH), batch=1, max_seq=8)
