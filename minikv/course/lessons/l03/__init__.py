"""Lesson 03: the estimate that missed by 2.86x, and what an MLA layer really caches."""

from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l03.batch import BATCH
from minikv.course.lessons.l03.mla_bytes import BF16, EXPANDED, KIND, LATENT, MLA_MODELS, RANK
from minikv.plan import CacheSpec


def _rebuilt_gb(num_tokens: int) -> float:
    spec = CacheSpec.from_config("DeepSeek-V3", layout="hf-expanded")
    return num_tokens * spec.layers[0].token_bytes / 1e9


LESSON = Lesson(
    exercises=(EXPANDED, LATENT, KIND, BATCH, RANK),
    predictions=(
        Prediction(
            "naive_heads",
            lambda rng: {"heads": rng.choice([32, 64, 256])},
            how="2 * {heads} * (7168 // {heads}) * 2",
            unit="bytes",
            answer=lambda heads: 2 * heads * (7168 // heads) * BF16,
        ),
        Prediction(
            "expanded_token",
            lambda rng: {"model": rng.choice(MLA_MODELS)},
            how="CacheSpec.from_config({model!r}, layout='hf-expanded').layers[0].token_bytes",
            unit="bytes",
            answer=lambda model: CacheSpec.from_config(model, layout="hf-expanded").layers[0].token_bytes,
        ),
        Prediction(
            "latent_token",
            lambda rng: {"model": rng.choice(MLA_MODELS)},
            how="CacheSpec.from_config({model!r}, layout='hf').layers[0].token_bytes",
            unit="bytes",
            answer=lambda model: CacheSpec.from_config(model, layout="hf").layers[0].token_bytes,
        ),
        Prediction(
            "rebuilt",
            lambda rng: {"num_tokens": rng.choice([8192, 16384, 32768])},
            how="{num_tokens} * CacheSpec.from_config('DeepSeek-V3', layout='hf-expanded').layers[0].token_bytes / 1e9",
            unit="GB",
            answer=_rebuilt_gb,
            tolerance=1.25,
        ),
        Prediction(
            "all_ranks",
            lambda rng: {"tp": rng.choice([2, 4, 8, 16])},
            how="{tp} * CacheSpec.from_config('DeepSeek-V3', tp={tp}).layers[0].token_bytes",
            unit="bytes",
            answer=lambda tp: tp * CacheSpec.from_config("DeepSeek-V3", tp=tp).layers[0].token_bytes,
        ),
    ),
    questions=("heads_cancel", "who_needs_heads", "estimate_and_leak"),
)
