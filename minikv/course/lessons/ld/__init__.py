"""Appendix D: the same words in other engines. It has no exercises."""

from minikv.course.exercise import Lesson, Prediction
from minikv.plan.other_engines import Startup, pool_bytes

GB = 10**9


def _card(outside: int) -> Startup:
    """Return a card of 80 GB with 20 GB of weights and 4 GB of activations."""
    return Startup(80 * GB, outside * GB, 20 * GB, 4 * GB)


def _sglang_gb(outside: int) -> int:
    return round(pool_bytes("sglang", _card(outside), 0.9) / GB)


def _trtllm_gb(outside: int) -> int:
    return round(pool_bytes("tensorrt-llm", _card(outside), 0.9) / GB)


LESSON = Lesson(
    predictions=(
        Prediction(
            "same_fraction",
            lambda rng: {"outside": rng.choice([10, 20, 30])},
            how="round(0.9 * (80 - {outside}) - 20)",
            unit="GB",
            answer=_sglang_gb,
        ),
        Prediction(
            "of_what_is_free",
            lambda rng: {"outside": rng.choice([12, 16, 26])},
            how="round(0.9 * (80 - {outside} - 20 - 4))",
            unit="GB",
            answer=_trtllm_gb,
        ),
    ),
    questions=("why_not_the_same", "which_is_safe"),
)
