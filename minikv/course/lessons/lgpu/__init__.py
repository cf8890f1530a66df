"""The GPU lab: the course's figures, read on the card that is there."""

from minikv.course.exercise import Lesson, Prediction
from minikv.models.random_weights import QWEN3_8B
from minikv.plan.roofline import decode_floor

TOKEN = QWEN3_8B.token_bytes // 2  # bytes of K and V in bf16

LESSON = Lesson(
    predictions=(
        Prediction(
            "weights",
            lambda rng: {"billions": rng.choice([1.7, 8.2, 14.8])},
            how="{billions} * 2",
            unit="GB",
            answer=lambda billions: billions * 2,
            tolerance=1.02,
        ),
        Prediction(
            "sequences",
            lambda rng: {"gib": rng.choice([18, 50, 56, 108])},
            how="{gib} * 2**30 // (4096 * 147456)",
            unit="sequences",
            answer=lambda gib: gib * 2**30 // (4096 * TOKEN),
        ),
        Prediction(
            "floor",
            lambda rng: {"batch": rng.choice([1, 32, 128])},
            how="(15.1e9 + {batch} * 512 * 147456) / 3350e9 * 1000",
            unit="ms",
            answer=lambda batch: 1e3 * decode_floor(int(15.1e9), batch * 512 * TOKEN, 3350),
            tolerance=1.05,
        ),
    ),
    questions=("three_figures", "graphs_and_batches"),
)
