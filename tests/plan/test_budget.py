"""The budget: its parts add up, its two forms agree, and what it says fits does fit."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minikv.errors import ArgumentError, DoesNotFitError, UnknownNameError
from minikv.plan import (
    CacheSpec,
    LayerSpec,
    estimate_kv_cache_gb,
    max_batch_size,
    plan_memory,
    pool,
    rebuilt_bytes,
)
from minikv.plan.roofline import decode_floor, experts_touched
from minikv.plan.tables import context_rows, sharing_rows, weights_read
from minikv.units import GIB
from tests.in_turn import in_turn
from tests.plan.small_models import DECODERS, small_config

MODELS = [
    "Llama-3.1-8B",
    "Gemma-3-27B",
    "Qwen3-30B-A3B",
    "Mistral-7B-v0.1",
    "Qwen3.5-27B",
    "DeepSeek-V2-Lite",
]

layers = st.builds(
    LayerSpec,
    kind=st.just("any"),
    kv_heads=st.integers(1, 9),
    k_dim=st.integers(1, 70),
    v_dim=st.integers(1, 70),
    window=st.none() | st.integers(1, 40),
    state_bytes=st.sampled_from([0, 0, 977]),
)
specs = st.builds(CacheSpec, layers=st.lists(layers, min_size=1, max_size=5).map(tuple))


@settings(max_examples=200)
@given(spec=specs, tokens=st.integers(1, 300), size=st.integers(1, 33), pool_bytes=st.integers(0, 10**7))
def test_blocks_cover_the_tokens_and_no_sequence_too_many_is_promised(spec, tokens, size, pool_bytes):
    need = pool.sequence_bytes(spec, tokens, size)
    assert need >= spec.bytes_for(tokens)
    for layer in spec.layers:
        assert layer.blocks_for(tokens, size) * size >= layer.tokens_kept(tokens)
    fit = pool.max_sequences(spec, pool_bytes, tokens, size)
    assert fit * need <= pool_bytes < (fit + 1) * need


@settings(max_examples=200)
@given(spec=specs, batch=st.integers(1, 6), size=st.integers(1, 33), pool_bytes=st.integers(0, 10**7))
def test_the_longest_length_fits_and_one_more_does_not(spec, batch, size, pool_bytes):
    longest = pool.max_length(spec, pool_bytes, batch, size)
    if longest == math.inf:
        assert batch * pool.sequence_bytes(spec, 10**9, size) <= pool_bytes
    else:
        assert batch * pool.sequence_bytes(spec, longest, size) <= pool_bytes
        assert batch * pool.sequence_bytes(spec, longest + 1, size) > pool_bytes


@settings(max_examples=200)
@given(window=st.integers(1, 40), size=st.integers(1, 33))
def test_a_window_touches_as_many_blocks_as_it_is_given_and_no_fewer(window, size):
    """Whichever token a window starts at, its tokens lie in no more blocks than allowed; some start needs them all."""
    layer = LayerSpec("sliding", 1, 1, 1, window=window)
    touched = {(start + window - 1) // size - start // size + 1 for start in range(size)}
    assert layer.blocks_for(10**6, size) == max(touched)
    # A sequence that has only just left its window has no more blocks than tokens to fill them.
    assert layer.blocks_for(window + 1, size) <= math.ceil((window + 1) / size)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("batch", [1, 7])
def test_the_parts_add_up_and_both_forms_agree(model, batch):
    budget = plan_memory(model, gpu="H200", batch=batch, context=3000)
    assert sum(budget.parts().values()) == budget.total_bytes
    assert budget.measured_form()["available"] == budget.kv_bytes
    assert min(budget.parts().values()) >= 0


@pytest.mark.parametrize("model", MODELS)
def test_what_fits_fits(model):
    budget = plan_memory(model, gpu="H200", context=2000)
    most = budget.max_batch()
    assert plan_memory(model, gpu="H200", context=2000, batch=most).spec == budget.spec
    assert most * pool.sequence_bytes(budget.spec, 2000, 16) <= budget.kv_bytes
    assert (most + 1) * pool.sequence_bytes(budget.spec, 2000, 16) > budget.kv_bytes
    longest = budget.max_context(batch=3)
    assert longest <= budget.spec.max_positions


def test_uniform_models_have_the_textbook_block_count():
    budget = plan_memory("Llama-3.1-8B", gpu="H200")
    assert budget.num_blocks == budget.kv_bytes // (2 * 32 * 16 * 8 * 128 * 2)
    assert budget.max_tokens == budget.num_blocks * 16


def test_what_windows_take_is_set_aside_before_blocks_are_counted():
    """Gemma-3-27B: 10 full layers are counted; 52 sliding ones take ceil(1022 / 16) + 1 = 65 blocks a sequence."""
    budget = plan_memory("Gemma-3-27B", gpu="H200", context=8192, batch=8)
    layer_block = 16 * 2 * 16 * 128 * 2
    assert budget.block_bytes == 10 * layer_block
    assert budget.num_blocks == (budget.kv_bytes - 8 * 65 * 52 * layer_block) // (10 * layer_block)
    assert budget.num_blocks * budget.block_bytes <= budget.kv_bytes


def test_a_step_of_sparse_attention_reads_what_it_attends_to():
    """DeepSeek-V3.2: 128 indexer elements of every token, 576 latent elements of at most 2,048 tokens."""
    spec = CacheSpec.from_config("DeepSeek-V3.2")
    assert spec.bytes_read(100_000) == 61 * 2 * (100_000 * 128 + 2048 * 576)
    assert spec.bytes_read(1000, batch=3) == 3 * spec.bytes_for(1000)
    assert CacheSpec.from_config("Llama-3.1-8B").bytes_read(5000, 2) == CacheSpec.from_config(
        "Llama-3.1-8B"
    ).bytes_for(5000, 2)


def test_the_floor_of_a_table_row_by_hand():
    """Llama-3.1-8B on an H200: all weights but the embedding's rows, and every sequence's cache, at 4.8e12 B/s."""
    budget = plan_memory("Llama-3.1-8B", gpu="H200")
    row = next(row for row in context_rows(budget) if row["context"] == 8192)
    read = (8_030_261_248 - 128_256 * 4096) * 2
    assert row["floor_one_s"] == pytest.approx((read + 8192 * 131_072) / 4.8e12)
    assert row["floor_all_s"] == pytest.approx((read + row["sequences"] * 8192 * 131_072) / 4.8e12)


def test_bytes_that_are_not_the_model_s_cannot_be_negative():
    for name in ("workspace_bytes", "cuda_context_bytes"):
        for value in (-1, 0.5, None):
            with pytest.raises(ArgumentError):
                plan_memory("Llama-3.1-8B", gpu="H200", **{name: value})
    budget = plan_memory("Llama-3.1-8B", gpu="H200")
    with pytest.raises(ArgumentError):
        budget.max_batch(0)
    with pytest.raises(ArgumentError):
        budget.max_context(0)


def test_tensor_parallel_halves_what_it_can():
    one, two = (plan_memory("Llama-3.1-8B", gpu="H200", tp=tp) for tp in (1, 2))
    assert two.spec.slope() * 2 == one.spec.slope()
    assert one.weight_bytes / 2 <= two.weight_bytes < one.weight_bytes / 2 * 1.01


def test_more_of_anything_never_leaves_more_room():
    base = plan_memory("Llama-3.1-8B", gpu="H200")
    assert plan_memory("Llama-3.1-8B", gpu="H200", utilization=0.8).kv_bytes < base.kv_bytes
    assert plan_memory("Llama-3.1-8B", gpu="H200", chunk=16384).kv_bytes < base.kv_bytes
    assert (
        plan_memory("Llama-3.1-8B", gpu="H200", weight_bytes=base.weight_bytes + 1).kv_bytes
        == base.kv_bytes - 1
    )
    assert plan_memory("Llama-3.1-8B", gpu="H200", kv_dtype="fp8").num_blocks >= 2 * base.num_blocks


def test_gpu_bytes_override_and_are_required():
    given_bytes = plan_memory("Llama-3.1-8B", gpu="GB200", gpu_bytes=180 * 10**9)
    assert given_bytes.total_bytes == 180 * 10**9
    assert given_bytes.gpu is not None
    with pytest.raises(ArgumentError, match="--gpu-bytes"):
        plan_memory("Llama-3.1-8B", gpu="GB200")
    with pytest.raises(ArgumentError, match="--gpu"):
        plan_memory("Llama-3.1-8B")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"context": 131_073}, ArgumentError),
        ({"context": 0}, ArgumentError),
        ({"batch": -1}, ArgumentError),
        ({"block_size": 0}, ArgumentError),
        ({"chunk": 1.5}, ArgumentError),
        ({"utilization": 0}, ArgumentError),
        ({"utilization": 1.01}, ArgumentError),
        ({"utilization": float("nan")}, ArgumentError),
        ({"utilization": "0.9"}, ArgumentError),
        ({"gpu_bytes": 0}, ArgumentError),
        ({"gpu_bytes": 10 * GIB}, DoesNotFitError),
        ({"gpu": "H900"}, UnknownNameError),
    ],
)
def test_bad_input_is_refused(arguments, error):
    with pytest.raises(error) as caught:
        plan_memory("Llama-3.1-8B", **({"gpu": "H200"} | arguments))
    assert caught.value.text("zh")


def test_a_model_that_does_not_fit_names_every_term():
    with pytest.raises(DoesNotFitError) as caught:
        plan_memory("Llama-3.1-70B", gpu="L40S")
    assert {"limit", "weights", "activations", "other", "short"} <= set(caught.value.values)


@pytest.mark.parametrize("model", MODELS)
def test_tables_agree_with_the_budget(model):
    budget = plan_memory(model, gpu="H200")
    rows = context_rows(budget)
    assert rows[-1]["context"] == budget.spec.max_positions
    assert rows[-1]["capped"]
    for row in rows:
        assert row["sequences"] == budget.max_batch(row["context"])
        assert row["floor_one_s"] <= (row["floor_all_s"] or math.inf)
    lengths = [row["tokens"] for row in sharing_rows(budget)]
    assert lengths == sorted(lengths, reverse=True)
    assert all(length <= budget.spec.max_positions for length in lengths)


def test_the_floor_counts_the_experts_that_a_step_touches():
    assert experts_touched(128, 8, 1) == pytest.approx(8)
    assert experts_touched(128, 8, 10_000) == pytest.approx(128)
    budget = plan_memory("Qwen3-30B-A3B", gpu="H200")
    active, all_of_them = weights_read(budget, 1), weights_read(budget, 10_000)
    # Qwen3-30B-A3B: 3.3e9 of 30.5e9 parameters are active; the embedding is read a row at a time.
    assert 5.4e9 < active < 6.8e9
    assert budget.weight_bytes * 0.98 < all_of_them <= budget.weight_bytes
    assert decode_floor(48 * 10**9, 0, 4800) == pytest.approx(0.01)


def test_the_estimate_of_the_wild_script_corrected():
    assert estimate_kv_cache_gb("DeepSeek-V3", 100) == 100 * 70_272 / 1e9
    assert estimate_kv_cache_gb("DeepSeek-V3", 100, layout="hf-expanded") == pytest.approx(0.499712)
    spec = CacheSpec.from_config("Llama-3.1-8B")
    batch = max_batch_size("Llama-3.1-8B", 20 * GIB, 4096, safety=1.0)
    layer = spec.layers[0].bytes_for(4096)
    assert batch * (spec.bytes_for(4096) + layer) <= 20 * GIB < (batch + 1) * (spec.bytes_for(4096) + layer)
    assert max_batch_size("Llama-3.1-8B", 0, 4096) == 0


def test_a_batch_of_latents_leaves_room_for_the_rebuild():
    """DeepSeek-V3: 128 heads x ((128 + 128) + (128 + 64)) elements x 2 B = 114,688 B a token, of one layer."""
    assert rebuilt_bytes("DeepSeek-V3", 1) == 114_688
    assert rebuilt_bytes("DeepSeek-V3", 512, tp=8) == 512 * 114_688 // 8
    assert rebuilt_bytes("Llama-3.1-8B", 512) == 0
    one = 512 * (62 * 1152 + 114_688)
    assert max_batch_size("DeepSeek-V3", 18 * 10**9, 512) == int(18e9 * 0.9) // one
    assert max_batch_size("DeepSeek-V3", 18 * 10**9, 512, step_bytes=one) == int(18e9 * 0.9) // (2 * one)
    # An engine that absorbs rebuilds nothing; an expanded cache has nothing to rebuild.
    assert max_batch_size("DeepSeek-V3", 18 * 10**9, 512, layout="vllm") == int(18e9 * 0.9) // (
        512 * 61 * 1152
    )


def test_a_batch_of_windows_leaves_room_for_the_whole_prompt():
    """Gemma-3-27B holds all 32,768 tokens in all 62 layers after the prefill, and joins one layer's."""
    spec = CacheSpec.from_config("Gemma-3-27B")
    batch = max_batch_size("Gemma-3-27B", 80 * 10**9, 32_768)
    one = spec.held_bytes_for(32_768, step=32_768) + 32_768 * spec.layers[0].token_bytes
    assert one > 5 * spec.bytes_for(32_768)
    assert batch == int(80e9 * 0.9) // one


@pytest.mark.parametrize("safety", [0, -1, 1.5, float("nan"), "0.9"])
def test_a_safety_that_is_no_share_is_refused(safety):
    with pytest.raises(ArgumentError):
        max_batch_size("Llama-3.1-8B", GIB, 100, safety=safety)


@in_turn("model_type", DECODERS)
@pytest.mark.parametrize("tp", [1, 2])
def test_every_architecture_can_be_planned(model_type, tp):
    """With the weights given, since their shapes are not known for every architecture."""
    config = small_config(model_type)
    budget = plan_memory(config, gpu_bytes=10 * GIB, tp=tp, weight_bytes=10**6, context=100)
    assert sum(budget.parts().values()) == 10 * GIB
    assert budget.max_batch() > 0
    assert budget.assumptions("zh")


def test_the_activation_peak_is_the_largest_stage():
    """Llama-3.1-8B, 8,192 tokens, bf16: four streams of 4,096, gate, up and product of 14,336, cos and sin, ids."""
    budget = plan_memory("Llama-3.1-8B", gpu="H200")
    assert budget.activations.stage == "mlp"
    assert budget.activation_bytes == 8192 * (4 * 4096 + 3 * 14336 + 4 * 128 + 8) * 2
    halved = plan_memory("Llama-3.1-8B", gpu="H200", tp=2)
    assert halved.activation_bytes == 8192 * (4 * 4096 + 3 * 14336 // 2 + 4 * 128 + 8) * 2
    many = plan_memory("Llama-3.1-8B", gpu="H200", chunk=1, batch=512)
    assert many.activations.stage == "logits"
