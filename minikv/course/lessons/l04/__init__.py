"""Lesson 04: the roofline. What a decode step reads and computes, and which of the two it waits for."""

from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l04.roofline import BATCH, FLOOR, INTENSITY, STEP
from minikv.course.lessons.l04.sectors import SECTORS
from minikv.plan import CacheSpec, find_gpu, find_model
from minikv.plan.roofline import Roof, decode_work, gpu_roof

MODEL = "Llama-3.1-8B"


def sizes() -> dict:
    """Return what a step of ``MODEL`` reads: its weights, and K and V of one cached token, in bytes."""
    work = decode_work(MODEL, 1, 1)
    return {"weights": work.weight_bytes, "token_bytes": work.cache_bytes}


def draw_floor(rng) -> dict:
    gpu, context = rng.choice(["RTX 4090", "L4", "A100 SXM 80GB"]), rng.choice([1024, 4096])
    return {"gpu": gpu, "context": context, "gb_s": find_gpu(gpu).bandwidth_gb_s, **sizes()}


def floor_ms(context: int, gb_s: float, **drawn) -> float:
    return decode_work(MODEL, 1, context).num_bytes / gb_s / 1e6


def draw_card(rng) -> dict:
    roof, work = (
        gpu_roof(find_gpu(rng.choice(["H200", "H100 SXM", "A100 SXM 80GB"]))),
        decode_work(MODEL, 1, 4096),
    )
    card = {"gpu": roof.name, "gb_s": roof.bandwidth_gb_s, "tflops": roof.tflops}
    return {**card, "flops": work.flops, "num_bytes": work.num_bytes}


def used_flops(gpu: str, gb_s: float, tflops: float, **drawn) -> float:
    return 1000 * decode_work(MODEL, 1, 4096).intensity / Roof(gpu, gb_s, tflops).ridge


def batch_gain(context: int, **drawn) -> float:
    return 64 * decode_work(MODEL, 1, context).num_bytes / decode_work(MODEL, 64, context).num_bytes


def draw_group(rng) -> dict:
    """Draw a model; the lesson has not shown its attention before this question."""
    model = rng.choice(["Llama-3.1-405B", "Qwen2.5-7B", "Qwen3-14B"])
    heads = find_model(model).config["num_attention_heads"]
    return {"model": model, "heads": heads, "kv_heads": CacheSpec.from_config(model).layers[0].kv_heads}


LESSON = Lesson(
    exercises=(STEP, INTENSITY, FLOOR, BATCH, SECTORS),
    predictions=(
        Prediction(
            "floor",
            draw_floor,
            how="({weights:_} + {context} * {token_bytes:_}) / ({gb_s} * 1e9) * 1e3",
            unit="ms",
            answer=floor_ms,
            tolerance=1.25,
        ),
        Prediction(
            "used_flops",
            draw_card,
            how="1000 * ({flops:_} / {num_bytes:_}) / ({tflops} * 1000 / {gb_s})",
            unit="FLOP",
            answer=used_flops,
            tolerance=1.5,
        ),
        Prediction(
            "touched",
            lambda rng: {"elements": rng.choice([1048576, 4194304])},
            how="2 * {elements} * 4 / 2**20",
            unit="MiB",
            answer=lambda elements: 2 * elements * 4 / 2**20,
        ),
        Prediction(
            "batch_gain",
            lambda rng: {"context": rng.choice([1024, 4096, 16384]), **sizes()},
            how="64 * ({weights:_} + {context} * {token_bytes:_})"
            " / ({weights:_} + 64 * {context} * {token_bytes:_})",
            unit="times",
            answer=batch_gain,
            tolerance=1.25,
        ),
        Prediction(
            "group",
            draw_group,
            how="{heads} / {kv_heads}",
            unit="FLOP/byte",
            answer=lambda model, heads, kv_heads: decode_work(model, 8, 4096).attention_intensity,
        ),
    ),
    questions=("memory_bound", "cache_and_batch", "contiguous_per_thread"),
)
