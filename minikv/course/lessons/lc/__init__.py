"""Appendix C: short questions. It has no exercises; the lessons that it points to do."""

from minikv.course.exercise import Lesson, Prediction
from minikv.plan import CacheSpec, plan_memory


def _tokens_fit(model: str, gpu: str) -> int:
    return plan_memory(model, gpu=gpu).max_tokens


def _mla_bytes(tp: int) -> int:
    """Return the bytes of a cached token on each of ``tp`` ranks of DeepSeek-V3."""
    return CacheSpec.from_config("DeepSeek-V3", tp=tp).bytes_for(1)


LESSON = Lesson(
    predictions=(
        Prediction(
            "tokens_fit",
            lambda rng: {
                "model": rng.choice(["Qwen3-8B", "Llama-3.1-8B"]),
                "gpu": rng.choice(["H100 SXM 80GB", "A100 SXM 80GB"]),
            },
            how="plan_memory({model!r}, gpu={gpu!r}).max_tokens",
            unit="tokens",
            answer=_tokens_fit,
            tolerance=1.25,
        ),
        Prediction(
            "mla_bytes",
            lambda rng: {"tp": rng.choice([4, 8, 16])},
            how='CacheSpec.from_config("DeepSeek-V3", tp={tp}).bytes_for(1)',
            unit="bytes",
            answer=_mla_bytes,
        ),
    ),
    questions=("halve_what", "where_to_save"),
)
