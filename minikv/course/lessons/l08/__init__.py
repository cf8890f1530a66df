"""Lesson 08: how many blocks fit. Exercises: ``num_blocks, ledger, bind_views``.

``engine_memory.py`` runs an engine in the allocator's model. ``annotated_source.py`` explains the source.
"""

from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l08.bind_views import BIND
from minikv.course.lessons.l08.ledger import LEDGER, ROOM
from minikv.course.lessons.l08.num_blocks import BLOCK_BYTES, BLOCKS_THAT_FIT
from minikv.plan import CacheSpec, plan_memory
from minikv.plan.measured import MeasuredTerms
from minikv.units import GIB, MIB

BLOCK = CacheSpec.from_config("Llama-3.1-8B").block_bytes(16)


def _blocks_that_fit(total: int, used: int, peak: int, current: int) -> int:
    terms = MeasuredTerms(total * GIB, 0.9, used * GIB, peak * GIB, current * GIB)
    return terms.available // BLOCK


def _activations(tokens: int) -> float:
    return plan_memory("Llama-3.1-8B", gpu="H200", chunk=tokens).activations.bytes / GIB


LESSON = Lesson(
    exercises=(BLOCK_BYTES, BLOCKS_THAT_FIT, LEDGER, ROOM, BIND),
    predictions=(
        Prediction(
            "blocks_fit",
            lambda rng: {
                "total": rng.choice([40, 60, 80]),
                "used": 18,
                "peak": 17,
                "current": rng.choice([15, 16]),
            },
            how="({total} * 9 // 10 - {used} - {peak} + {current}) * 2**30 // 2**21",
            unit="blocks",
            answer=_blocks_that_fit,
            tolerance=1.01,
        ),
        Prediction(
            "mib_as_millions",
            lambda rng: {"mib": rng.choice([24_564, 46_068, 81_559])},
            how="{mib:_} * (2**20 - 10**6) // 2**21",
            unit="blocks",
            answer=lambda mib: (mib * MIB - mib * 10**6) // BLOCK,
            tolerance=1.01,
        ),
        Prediction(
            "short_form",
            lambda rng: {"non_torch": rng.choice([2, 3, 4, 5])},
            how="{non_torch} * 2**30 // 2**21",
            unit="blocks",
            answer=lambda non_torch: non_torch * GIB // BLOCK,
        ),
        Prediction(
            "activations",
            lambda rng: {"tokens": rng.choice([2048, 4096, 16384])},
            how="{tokens} * (4 * 4_096 + 3 * 14_336 + 520) * 2 / 2**30",
            unit="GiB",
            answer=_activations,
            tolerance=2.0,
        ),
        Prediction(
            "five_percent",
            lambda rng: {"total": rng.choice([40, 80, 120])},
            how="{total} * 5 // 100 * 2**30 // 2**21",
            unit="blocks",
            answer=lambda total: total * GIB // 20 // BLOCK,
            tolerance=1.01,
        ),
    ),
    questions=("why_current", "why_warm_up", "what_is_left"),
)
