"""Lesson 02b, "When is the formula not enough?": windows, the inverse, tensor-parallel ranks."""

import random

from minikv.course import Lesson, Prediction
from minikv.course.lessons.l02b.rank_heads import KV_HEADS_PER_RANK
from minikv.course.lessons.l02b.windowed_bytes import BYTES_FOR, MAX_TOKENS
from minikv.plan import CacheSpec, LayerSpec


def _small_window(rng: random.Random) -> dict[str, object]:
    window = rng.choice([24, 16, 32])
    return {"window": window, "prompt": 2 * window + 8}


def _held_after_the_prompt(window: int, prompt: int) -> int:
    layer = LayerSpec("sliding", kv_heads=2, k_dim=32, v_dim=32, itemsize=4, window=window - 1)
    return layer.held_bytes_for(prompt, step=prompt)


def _rank_of_many(rng: random.Random) -> dict[str, object]:
    return {"model": "Llama-3.1-8B", "tp": rng.choice([16, 32])}


LESSON = Lesson(
    exercises=(BYTES_FOR, MAX_TOKENS, KV_HEADS_PER_RANK),
    predictions=(
        Prediction(
            "after_the_prompt",
            _small_window,
            how="{prompt} * 2 * 2 * 32 * 4",
            unit="bytes",
            answer=_held_after_the_prompt,
        ),
        Prediction(
            "many_ranks",
            _rank_of_many,
            how="131072 // 8",
            unit="bytes",
            answer=lambda model, tp: CacheSpec.from_config(model, tp=tp).bytes_for(1),
        ),
    ),
    questions=("more_than_calculated",),
)
