"""Exercises 04.1 to 04.4: what a decode step reads, its intensity, its floor, and the batch at the ridge."""

import math
from collections.abc import Callable

from minikv.course.exercise import Exercise, Misconception


def step_bytes(weight_bytes: int, token_bytes: int, lengths: list[int]) -> int:
    return weight_bytes + sum(lengths) * token_bytes


def draw_steps(rng) -> list[dict]:
    return [
        {
            "weight_bytes": rng.randint(1, 40 + 400 * i) * 1000 + 7,
            "token_bytes": 2 * rng.randint(8, 64 + 32 * i),
            "lengths": [rng.randint(1, 6 + 9 * i) + 16 * rng.randint(0, 1) for _ in range(2 + i // 5)],
        }
        for i in range(40)
    ]


STEP = Exercise(
    id="04.1",
    minutes=3,
    name="step_bytes",
    signature=("weight_bytes", "token_bytes", "lengths"),
    cases=draw_steps,
    reference=step_bytes,
    misconceptions=(
        Misconception(
            "weights_each",
            lambda weight_bytes, token_bytes, lengths: (
                len(lengths) * weight_bytes + sum(lengths) * token_bytes
            ),
        ),
        Misconception(
            "new_tokens_only",
            lambda weight_bytes, token_bytes, lengths: weight_bytes + len(lengths) * token_bytes,
        ),
        Misconception(
            "padded",
            lambda weight_bytes, token_bytes, lengths: (
                weight_bytes + len(lengths) * max(lengths) * token_bytes
            ),
        ),
        Misconception("weights_only", lambda weight_bytes, token_bytes, lengths: weight_bytes),
        Misconception(
            "cache_shared",
            lambda weight_bytes, token_bytes, lengths: weight_bytes + max(lengths) * token_bytes,
        ),
    ),
)


def attention_intensity(heads: int, kv_heads: int, head_dim: int, itemsize: int) -> float:
    return 4 * heads * head_dim / (2 * kv_heads * head_dim * itemsize)


def draw_intensities(rng) -> list[dict]:
    cases = []
    for i in range(40):
        kv_heads = rng.randint(2, 2 + i // 2)
        cases.append(
            {
                "heads": kv_heads * rng.choice([2, 3, 4, 5, 8, 16]) if i % 4 else kv_heads,
                "kv_heads": kv_heads,
                "head_dim": rng.choice([32, 64, 96, 128]),
                "itemsize": rng.choice([1, 2, 4]),
            }
        )
    return cases


INTENSITY = Exercise(
    id="04.2",
    minutes=4,
    name="attention_intensity",
    signature=("heads", "kv_heads", "head_dim", "itemsize"),
    cases=draw_intensities,
    reference=attention_intensity,
    misconceptions=(
        Misconception(
            "mac_is_one", lambda heads, kv_heads, head_dim, itemsize: heads / (kv_heads * itemsize)
        ),
        Misconception(
            "k_bytes_only", lambda heads, kv_heads, head_dim, itemsize: 4 * heads / (kv_heads * itemsize)
        ),
        Misconception("no_groups", lambda heads, kv_heads, head_dim, itemsize: 2 / itemsize),
        Misconception(
            "bits", lambda heads, kv_heads, head_dim, itemsize: 2 * heads / (kv_heads * itemsize * 8)
        ),
        Misconception("elements", lambda heads, kv_heads, head_dim, itemsize: 2 * heads / kv_heads),
    ),
)


def step_floor(flops: int, num_bytes: int, bandwidth_gb_s: int, tflops: int) -> tuple[str, float]:
    memory, arithmetic = num_bytes / (bandwidth_gb_s * 1e9), flops / (tflops * 1e12)
    return ("memory" if memory >= arithmetic else "compute", max(memory, arithmetic))


def _floor_with(gb: float, join: Callable[[float, float], float]) -> Callable:
    def wrong(flops, num_bytes, bandwidth_gb_s, tflops):
        memory, arithmetic = num_bytes / (bandwidth_gb_s * gb), flops / (tflops * 1e12)
        return ("memory" if memory >= arithmetic else "compute", join(memory, arithmetic))

    return wrong


def floor_ridge_upside_down(flops, num_bytes, bandwidth_gb_s, tflops):
    bound, seconds = step_floor(flops, num_bytes, bandwidth_gb_s, tflops)
    return ("compute" if bound == "memory" else "memory", seconds)


def draw_floors(rng) -> list[dict]:
    cases = []
    for i in range(40):
        bandwidth, tflops = rng.randint(1, 10 + 200 * i), rng.randint(1, 4 + 60 * i)
        num_bytes = rng.randint(2, 10 ** (3 + i // 4))
        # Work on either side of the ridge point, and just beside it.
        ridge = tflops * 1000 / bandwidth
        share = (0.02, 0.5, 0.97, 1.03, 2, 40)[i % 6]
        cases.append(
            {
                "flops": max(1, round(share * ridge * num_bytes)),
                "num_bytes": num_bytes,
                "bandwidth_gb_s": bandwidth,
                "tflops": tflops,
            }
        )
    return cases


FLOOR = Exercise(
    id="04.3",
    minutes=4,
    name="step_floor",
    signature=("flops", "num_bytes", "bandwidth_gb_s", "tflops"),
    cases=draw_floors,
    reference=step_floor,
    misconceptions=(
        Misconception("added", _floor_with(1e9, lambda memory, arithmetic: memory + arithmetic)),
        Misconception("shorter", _floor_with(1e9, min)),
        Misconception("gib", _floor_with(2**30, max)),
        Misconception("upside_down", floor_ridge_upside_down),
        Misconception(
            "memory_always",
            lambda flops, num_bytes, bandwidth_gb_s, tflops: ("memory", num_bytes / (bandwidth_gb_s * 1e9)),
        ),
    ),
)


def batch_at_ridge(weight_bytes: int, cache_bytes: int, token_flops: int, ridge: int) -> int | None:
    surplus = token_flops - ridge * cache_bytes
    return None if surplus <= 0 else -(-ridge * weight_bytes // surplus)


def batch_always(weight_bytes, cache_bytes, token_flops, ridge):
    surplus = token_flops - ridge * cache_bytes
    return math.ceil(ridge * weight_bytes / surplus) if surplus else 0


def batch_one_short(weight_bytes, cache_bytes, token_flops, ridge):
    surplus = token_flops - ridge * cache_bytes
    return None if surplus <= 0 else ridge * weight_bytes // surplus


def draw_batches(rng) -> list[dict]:
    cases = []
    for i in range(40):
        ridge, cache = rng.randint(2, 6 + 8 * i), rng.randint(1, 10 + 30 * i)
        # The FLOPs of a token: so few that no batch reaches the ridge, just enough, or plenty.
        flops = (
            ridge * cache + (-rng.randint(1, ridge * cache - 1), 0, 1, rng.randint(2, 500 + 900 * i))[i % 4]
        )
        cases.append(
            {
                "weight_bytes": rng.randint(2, 90 + 700 * i),
                "cache_bytes": cache,
                "token_flops": flops,
                "ridge": ridge,
            }
        )
    return cases


BATCH = Exercise(
    id="04.4",
    minutes=4,
    name="batch_at_ridge",
    signature=("weight_bytes", "cache_bytes", "token_flops", "ridge"),
    cases=draw_batches,
    reference=batch_at_ridge,
    misconceptions=(
        Misconception(
            "no_cache",
            lambda weight_bytes, cache_bytes, token_flops, ridge: math.ceil(
                ridge * weight_bytes / token_flops
            ),
        ),
        Misconception(
            "cache_once",
            lambda weight_bytes, cache_bytes, token_flops, ridge: math.ceil(
                ridge * (weight_bytes + cache_bytes) / token_flops
            ),
        ),
        Misconception("always_some", batch_always),
        Misconception("one_short", batch_one_short),
    ),
)
