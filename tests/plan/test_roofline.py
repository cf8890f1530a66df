"""The roofline: what a decode step reads and computes, against counts that were made another way."""

import math
import random
from dataclasses import replace

import pytest

from minikv.errors import ArgumentError, ConfigError, UnknownNameError
from minikv.plan import CacheSpec, find_gpu, gpu_names, model_names, plan_memory, step_flops
from minikv.plan.roofline import Roof, decode_work, gpu_roof, ridge_batch
from minikv.plan.tables import weights_read

H200 = gpu_roof(find_gpu("H200"))
DENSE = ("Llama-3.1-8B", "Llama-2-7B", "Qwen3-0.6B", "Qwen2.5-7B", "Mistral-Nemo-12B")
MLA = {"DeepSeek-V3": 128, "Kimi-K2": 64, "DeepSeek-V2-Lite": 16}


@pytest.mark.parametrize("model", DENSE)
def test_flops_are_those_that_the_step_counter_gives(model):
    for context in (1, 17, 1000, 4096):
        for batch in (1, 7, 64):
            assert decode_work(model, batch, context).flops == batch * step_flops(model, context, True).total


@pytest.mark.parametrize(
    "model", [*DENSE, "Qwen3-30B-A3B", "Mixtral-8x7B", "DeepSeek-V2-Lite", "gpt-oss-20b"]
)
def test_bytes_are_those_of_the_planner_and_of_the_spec(model):
    budget = plan_memory(model, gpu="B200 SXM", utilization=0.99)
    for batch in (1, 3, 50):
        work = decode_work(model, batch, 777)
        assert work.weight_bytes == pytest.approx(weights_read(budget, batch), abs=2)
        assert work.cache_bytes == CacheSpec.from_config(model).bytes_read(777, batch)


def test_a_batch_shares_the_weights_and_nothing_of_the_cache():
    one = decode_work("Llama-3.1-8B", 1, 2000)
    for batch in (2, 5, 64):
        many = decode_work("Llama-3.1-8B", batch, 2000)
        assert many.weight_bytes == one.weight_bytes
        assert many.cache_bytes == batch * one.cache_bytes
        assert many.flops == batch * one.flops
        assert many.weight_intensity == pytest.approx(batch * one.weight_intensity)
        assert many.attention_intensity == pytest.approx(one.attention_intensity)


@pytest.mark.parametrize(
    "model", ["Llama-2-7B", "Llama-3.1-8B", "Qwen3-0.6B", "Llama-3.1-70B", "Mixtral-8x7B"]
)
def test_the_intensity_of_attention_is_query_heads_over_kv_heads(model):
    spec = CacheSpec.from_config(model)
    heads = {"Llama-2-7B": 32, "Llama-3.1-8B": 32, "Qwen3-0.6B": 16, "Llama-3.1-70B": 64, "Mixtral-8x7B": 32}[
        model
    ]
    group = heads / spec.layers[0].kv_heads
    for context in (1, 100, 8192):
        assert decode_work(model, 3, context).attention_intensity == pytest.approx(group)
        half = decode_work(model, 3, context, kv_dtype="fp8")
        assert half.attention_intensity == pytest.approx(2 * group)


@pytest.mark.parametrize(("model", "heads"), MLA.items())
def test_a_latent_is_read_once_for_all_heads(model, heads):
    # Scores over latent and rope key, values from the latent; 576 elements of 2 bytes are read.
    expected = heads * 2 * (512 + 64 + 512) / ((512 + 64) * 2)
    assert decode_work(model, 2, 500).attention_intensity == pytest.approx(expected)


def test_a_window_bounds_what_is_read_and_computed():
    short, long, longer = (decode_work("Mistral-7B-v0.1", 1, context) for context in (4096, 5000, 50_000))
    assert short == replace(long, context=4096)
    assert longer.num_bytes == short.num_bytes


def test_more_sequences_touch_more_experts():
    few, many = decode_work("Qwen3-30B-A3B", 1, 100), decode_work("Qwen3-30B-A3B", 64, 100)
    assert few.weight_bytes < many.weight_bytes < 61.1e9
    assert many.weight_flops == 64 * few.weight_flops
    assert many.weight_intensity < 64 * few.weight_intensity, "a bigger batch brings more experts to read"


def test_the_roof_is_a_slope_and_a_ceiling_that_meet_at_the_ridge():
    rng = random.Random(0)
    for _ in range(200):
        roof = Roof("any", rng.uniform(1, 9000), rng.uniform(0.01, 3000))
        assert roof.tflops_at(roof.ridge) == pytest.approx(roof.tflops)
        below, above = roof.ridge * rng.uniform(0, 1), roof.ridge * rng.uniform(1, 50)
        assert roof.tflops_at(below) == pytest.approx(roof.tflops * below / roof.ridge)
        assert roof.tflops_at(above) == roof.tflops
        num_bytes = rng.randint(1, 10**12)
        assert roof.seconds(int(below * num_bytes), num_bytes) == pytest.approx(
            num_bytes / roof.bandwidth_gb_s / 1e9
        )
        flops = int(above * num_bytes) + 1
        assert roof.seconds(flops, num_bytes) == pytest.approx(flops / roof.tflops / 1e12)


def test_the_catalogue_has_a_roof_for_every_card_with_a_flop_rate():
    for name in gpu_names():
        gpu = find_gpu(name)
        if not (gpu.bf16_tflops or gpu.fp16_tflops):
            with pytest.raises(ArgumentError) as refused:
                gpu_roof(gpu)
            assert refused.value.code == "roof_unknown"
            assert name in refused.value.text("zh")
            continue
        roof, tflops = gpu_roof(gpu), gpu.bf16_tflops or gpu.fp16_tflops
        assert roof.ridge == pytest.approx(1000 * tflops / gpu.bandwidth_gb_s)
    assert gpu_roof(find_gpu("T4")).tflops == find_gpu("T4").fp16_tflops
    assert H200.ridge == pytest.approx(989e12 / 4.8e12)


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "DeepSeek-V3", "Qwen3-30B-A3B"])
def test_the_ridge_batch_is_the_first_that_reaches_the_ridge(model):
    for context in (1, 64, 200):
        batch = ridge_batch(model, context, H200)
        assert decode_work(model, batch, context).intensity >= H200.ridge
        assert decode_work(model, batch - 1, context).intensity < H200.ridge


def test_where_the_cache_outgrows_the_weights_no_batch_reaches_the_ridge():
    assert ridge_batch("Llama-3.1-8B", 4096, H200) is None
    # In the limit of a large batch: FLOPs of one token over the bytes of one sequence's cache.
    one = decode_work("Llama-3.1-8B", 1, 4096)
    assert one.flops / one.cache_bytes < H200.ridge
    assert decode_work("Llama-3.1-8B", 2**20, 4096).intensity == pytest.approx(
        one.flops / one.cache_bytes, rel=1e-3
    )
    assert ridge_batch("Llama-3.1-8B", 4096, Roof("slow arithmetic", 4800, 10)) is not None
    assert ridge_batch("Llama-3.1-8B", 1, Roof("no arithmetic", 1e6, 1e-3)) == 1


@pytest.mark.parametrize(
    ("model", "kind"), [("Jamba-v0.1", "linear"), ("DeepSeek-V3.2", "sparse"), ("Gemma-3n-E4B", "shared")]
)
def test_layers_whose_flops_are_not_counted_are_refused_by_name(model, kind):
    with pytest.raises(ConfigError) as refused:
        decode_work(model, 1, 100)
    assert refused.value.code == "roofline_unknown"
    assert refused.value.values["kind"] == kind


def test_every_model_of_the_catalogue_is_counted_or_refused():
    counted = 0
    for name in model_names():
        try:
            work = decode_work(name, 2, 300)
        except ConfigError:
            continue
        counted += 1
        assert work.attention_intensity >= 0.5, "one multiplication and one addition for each 4-byte element"
        assert 0 < work.intensity < max(work.weight_intensity, work.attention_intensity) + 1e-9
    assert counted >= 35


def test_bad_arguments_are_refused():
    for bad in (0, -1, 1.0, True, None):
        for batch, context in ((bad, 10), (10, bad)):
            with pytest.raises(ArgumentError) as refused:
                decode_work("Llama-3.1-8B", batch, context)
            assert refused.value.code == "bad_count"
        with pytest.raises(ArgumentError):
            ridge_batch("Llama-3.1-8B", bad, H200)
    with pytest.raises(UnknownNameError):
        decode_work("Llama-9-1T", 1, 1)
    with pytest.raises(ArgumentError):
        decode_work("Llama-3.1-8B", 1, 1, kv_dtype="fp7")
    for bandwidth, tflops in (
        (0, 1),
        (-1, 1),
        (1, 0),
        (math.inf, 1),
        (math.nan, 1),
        (True, 1),
        ("4800", 1),
        (1, None),
    ):
        with pytest.raises(ArgumentError) as refused:
            Roof("bad", bandwidth, tflops)
        assert refused.value.code == "out_of_range"
