"""Lesson 16: what holds the memory after ``generate()``, and which figure shows it."""

import random

from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l16.evidence import GROWN, HOLDERS, left_reserved
from minikv.course.lessons.l16.fitting_batch import BATCH
from minikv.course.lessons.l16.pins import PINS
from minikv.course.lessons.l16.used_memory import SPLIT
from minikv.plan import CacheSpec
from minikv.units import MIB

# The small model of the lesson, float32.
SMALL = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "dtype": "float32",
}


def _draw_survivors(rng: random.Random) -> dict[str, object]:
    """Draw tensors that share segments, and live ones so far apart that no two are in one segment."""
    size = rng.choice([4, 5])
    step = 20 // size * rng.randint(2, 4)
    return {"size": size, "count": step * rng.randint(3, 7), "step": step}


LESSON = Lesson(
    exercises=(SPLIT, GROWN, HOLDERS, BATCH, PINS),
    predictions=(
        Prediction(
            "unexplained",
            lambda rng: {"free": rng.choice([4.5, 5.5, 6.5])},
            how="18 - {free} - 6",
            unit="GB",
            answer=lambda free: 18 - free - 6,
        ),
        Prediction(
            "kept_by_output",
            lambda rng: {"prompt": rng.choice([10, 17, 25])},
            how="2 * 2 * 2 * 16 * 4 * 3 * ({prompt} + 8 - 1)",
            unit="bytes",
            answer=lambda prompt: CacheSpec.from_config(SMALL).bytes_for(prompt + 8 - 1, batch=3),
        ),
        Prediction(
            "left_reserved",
            _draw_survivors,
            how="{count} / {step} * 20",
            unit="MiB",
            answer=lambda size, count, step: left_reserved([size * MIB] * count, range(0, count, step)) / MIB,
        ),
    ),
    questions=("who_is_left", "what_empty_cache_returns", "estimate_is_no_holder"),
)
