"""Lesson 06: the linear cache. Where an element lies, when the lengths move, and how much of max_seq is wasted."""

import torch

from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l06.linear_layout import OFFSET, STEPS, WASTED
from minikv.course.lessons.l06.paged_write import WRITE
from minikv.course.lessons.l06.row_cache import CACHE
from minikv.plan import CacheSpec

MIXED = (150, 40, 700, 12)  # lengths of the lesson's unequal rows, in tokens


def _draw_reserved(rng) -> dict[str, object]:
    model, max_seq = rng.choice(["Llama-3.1-8B", "Llama-2-7B", "Qwen3-8B"]), rng.choice([2048, 4096])
    return {"model": model, "max_seq": max_seq, "token_bytes": CacheSpec.from_config(model).slope()}


def _waste_percent(max_seq: int) -> float:
    return 100 * (1 - sum(MIXED) / (len(MIXED) * max_seq))


LESSON = Lesson(
    exercises=(OFFSET, WASTED, CACHE, STEPS, WRITE),
    predictions=(
        Prediction(
            "reserved",
            _draw_reserved,
            how="8 * {max_seq} * {token_bytes} / 2**30",
            unit="GiB",
            answer=lambda model, max_seq, token_bytes: (
                CacheSpec.from_config(model).bytes_for(max_seq, batch=8) / 2**30
            ),
            tolerance=1.05,
        ),
        Prediction(
            "layer_to_layer",
            lambda rng: {"batch": rng.choice([2, 3, 5]), "kv_heads": rng.choice([2, 4, 8])},
            how="{batch} * 2 * {kv_heads} * 100 * 64",
            unit="elements",
            answer=lambda batch, kv_heads: torch.empty(4, batch, 2, kv_heads, 100, 64).stride(0),
        ),
        Prediction(
            "per_layer_commit",
            lambda rng: {"layers": rng.choice([4, 28, 32]), "prompt": rng.choice([9, 50, 100])},
            how="{layers} * {prompt}",
            unit="tokens",
            answer=lambda layers, prompt: layers * prompt,
        ),
        Prediction(
            "mixed_waste",
            lambda rng: {"max_seq": rng.choice([1024, 2048, 4096])},
            how="100 * (1 - (150 + 40 + 700 + 12) / (4 * {max_seq}))",
            unit="percent",
            answer=_waste_percent,
            tolerance=1.05,
        ),
    ),
    questions=("why_linear", "who_moves_lengths", "window_in_linear"),
)
