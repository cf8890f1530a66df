"""The numbers that stand under a lesson's formulas are those that the package computes, in both languages."""

from pathlib import Path

import pytest

from minikv.course.lessons.l12.parallel_layouts import two_ways
from minikv.course.lessons.l17.traffic import BUSY, ONE_PROMPT, md1_wait
from minikv.plan import CacheSpec, find_gpu
from minikv.plan.preemption import TransferRates, recompute_seconds, swap_seconds
from minikv.plan.roofline import decode_work, gpu_roof
from minikv.simulate import Fleet

SOURCES = Path(__file__).parents[3] / "notebooks" / "src"


def the_floor_of_a_step() -> list[str]:
    work, roof = decode_work("Llama-3.1-8B", 1, 4096), gpu_roof(find_gpu("A100 SXM 80GB"))
    limit = (
        work.weight_flops + work.attention_flops
    ) / work.cache_bytes  # of many sequences, weights left out
    return [
        f"{work.weight_bytes:,} + 1 \\cdot 4,096 \\cdot 131,072 = {work.num_bytes:,}",
        f"{work.weight_flops:,} + 4,096 \\cdot 524,288) = {work.flops:,}",
        f"= {work.intensity:.2f}$ FLOP/",
        f"= {roof.ridge:.0f}$",
        f"= {1e3 * roof.seconds(work.flops, work.num_bytes):.2f}$",
        f"= {1e3 * work.flops / roof.tflops / 1e12:.3f}$",
        f"= {limit:.0f}$ FLOP/",
    ]


def what_a_view_keeps() -> list[str]:
    token = CacheSpec.from_config("Llama-3.1-8B").slope() // 32 // 2  # K of one token in one layer
    return [f"$8,388,608 - 2 \\cdot 16,384 = {4096 * token - 16 * token:,}$"]


def the_room_of_a_linear_cache() -> list[str]:
    strides = (32_768, 16_384, 8_192, 4_096, 16, 1)
    offset = sum(index * stride for index, stride in zip((3, 1, 0, 1, 149, 5), strides, strict=True))
    rows = (150, 40, 700, 12)
    paged = sum(-length % 16 for length in rows) * 1024
    return [f"+ 5 = {offset:,}$", f"= {(4 * 1024 - sum(rows)) * 1024:,}$", f"= {paged:,}$"]


def what_a_rank_keeps() -> list[str]:
    rank = CacheSpec.from_config("Qwen3-30B-A3B", tp=8).bytes_for(1)
    latents = CacheSpec.from_config("DeepSeek-V3", tp=8).bytes_for(1)
    said = [f"128 \\cdot 2 = {rank:,}$", f"(512 + 64) \\cdot 2 = {latents:,}$"]
    for model in ("DeepSeek-V3", "Llama-3.1-70B"):
        tp, dp = two_ways(model, "B200 SXM", 8)
        said += [
            f"{tp.tokens:,}",
            f"8 \\cdot {dp.longest:,} = {dp.tokens:,}$",
            f" {dp.tokens / tp.tokens:.2f} ",
        ]
    rates = TransferRates(25e9, 20e9, 20_000.0)
    swap, again = swap_seconds(4096 * 131_072, rates), recompute_seconds(4096, rates)
    return [*said, f"= {1e3 * swap:.2f}$", f"= {1e3 * again:.2f}$"]


def the_time_to_first_token() -> list[str]:
    fleet = Fleet.plan("Llama-3.1-70B", "H200", tp=2, router="prefix", block_size=BUSY.hash_block)
    clock = fleet.step_time
    work = clock.cost.work([(0, 8192)], [])
    parts, service = clock.parts(work), clock.seconds(prefill=[(0, ONE_PROMPT)])
    ms = [f"{1e3 * seconds:,.1f}" for seconds in (*parts, parts.total)]
    moved = CacheSpec.from_config("Llama-3.1-70B").bytes_for(7168)
    return [
        f"${work.flops / 1e12:.2f} \\cdot 10^12 /".replace("^12", "^{12}"),
        f"${work.num_bytes / 1e9:.2f} \\cdot 10^9 /",
        f"\\max({ms[0]},\\ {ms[1]}) + {ms[2]} + {ms[3]} = {ms[4]}$",
        f"{parts.total:.3f} + {parts.total:.3f} = {2 * round(parts.total, 3):.3f}$",
        f"4.5 \\cdot {service:.3f} = {md1_wait(0.9, service):.2f}$",
        f"327,680 \\cdot 7,168 = {moved:,}$",
    ]


@pytest.mark.parametrize(
    ("lesson", "numbers"),
    [
        ("04_the_roofline", the_floor_of_a_step),
        ("05_owned_and_borrowed", what_a_view_keeps),
        ("06_the_linear_cache", the_room_of_a_linear_cache),
        ("12_beyond_one_gpu", what_a_rank_keeps),
        ("17_a_fleet_on_paper", the_time_to_first_token),
    ],
)
def test_numbers_under_a_formula(lesson, numbers):
    prose = (SOURCES / f"{lesson}.py").read_text(encoding="utf-8").replace("{,}", ",")
    for said in numbers():
        assert prose.count(said) >= 2, said
