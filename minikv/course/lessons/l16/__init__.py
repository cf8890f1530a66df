"""Lesson 16: what holds the memory after ``generate()``, and which figure shows it."""

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
            how="CacheSpec.from_config(SMALL).bytes_for({prompt} + 8 - 1, batch=3)",
            unit="bytes",
            answer=lambda prompt: CacheSpec.from_config(SMALL).bytes_for(prompt + 8 - 1, batch=3),
        ),
        Prediction(
            "left_reserved",
            lambda rng: {"size": rng.choice([3, 4, 5]), "count": rng.choice([30, 40, 60])},
            how="left_reserved([{size} * 2**20] * {count}, kept=[0]) / 2**20",
            unit="MiB",
            answer=lambda size, count: left_reserved([size * MIB] * count, kept=[0]) / MIB,
        ),
    ),
    questions=("who_is_left", "what_empty_cache_returns", "estimate_is_no_holder"),
)
