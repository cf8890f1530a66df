"""Appendix A: wrong numbers in public documents, and how to catch one before it costs memory."""

from minikv.course.errata_values import available, breakdown_block, guide_block
from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.la.audit import AUDIT, BLOCK, CONVERT, LONGEST, POOL

LESSON = Lesson(
    exercises=(BLOCK, CONVERT, AUDIT, POOL, LONGEST),
    predictions=(
        Prediction(
            "block_product",
            lambda rng: {"kv_heads": rng.choice([1, 2, 4, 8])},
            how="2 * 28 * 16 * {kv_heads} * 128 * 2",
            unit="bytes",
            answer=lambda kv_heads: breakdown_block(tp=8 // kv_heads),
        ),
        Prediction(
            "blocks_in_mb",
            lambda rng: {"pool_mb": rng.choice([27_000, 32_000, 40_000])},
            how="{pool_mb} * 10**6 // 2_621_440",
            unit="blocks",
            answer=lambda pool_mb: pool_mb * 10**6 // guide_block(),
        ),
        Prediction(
            "cache_gb",
            lambda rng: {"activations": rng.choice([8, 10, 12])},
            how="80 * 90 // 100 - 35 - (35 + {activations}) + 35",
            unit="GB",
            answer=lambda activations: int(available(80, 0.9, 35, 35 + activations, 35)),
        ),
    ),
    questions=("why_it_matters", "why_plus_current", "before_you_copy"),
)
