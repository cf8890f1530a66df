"""Lesson 07: what malloc costs per token. Its exercises are in ``growth``, ``segments`` and ``slot_cache``."""

from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l07.growth import COPIED, SIZES, bytes_copied, rounded_and_segment
from minikv.course.lessons.l07.segments import CHOOSE, RETURNED
from minikv.course.lessons.l07.slot_cache import SLOTS
from minikv.memory import CachingAllocator
from minikv.plan import CacheSpec, find_model
from minikv.units import GIB, MIB

MODEL = "Llama-3.1-8B"
PROMPT = 1024  # tokens, of the predictions


def _gib_copied(steps: int) -> float:
    return bytes_copied(1, PROMPT, steps, CacheSpec.from_config(MODEL).bytes_for(1)) / GIB


def _gib_stuck(batch: int) -> float:
    """Return the GiB reserved but unallocated after empty_cache, if the logits outlive the cache."""
    allocator = CachingAllocator()
    cache = allocator.malloc(CacheSpec.from_config(MODEL).bytes_for(PROMPT, batch=batch))
    allocator.free(cache)
    allocator.malloc(batch * find_model(MODEL).config["vocab_size"] * 4)
    allocator.empty_cache()
    usage = allocator.usage()
    return (usage.reserved - usage.allocated) / GIB


LESSON = Lesson(
    exercises=(SIZES, COPIED, CHOOSE, RETURNED, SLOTS),
    predictions=(
        Prediction(
            "copied",
            lambda rng: {"steps": rng.choice([512, 1024, 2048])},
            how="131_072 * {steps} * (2 * 1_024 + {steps} + 1) / 2**30",
            unit="GiB",
            answer=_gib_copied,
            tolerance=1.25,
        ),
        Prediction(
            "segment",
            lambda rng: {"mib": rng.choice([3, 9, 11, 13, 15])},
            how="20 if {mib} < 10 else {mib} + {mib} % 2",
            unit="MiB",
            answer=lambda mib: rounded_and_segment(mib * MIB)[1] // MIB,
        ),
        Prediction(
            "stuck",
            lambda rng: {"batch": rng.choice([32, 48])},
            how="{batch} * (1_024 * 131_072 - 128_256 * 4) / 2**30",
            unit="GiB",
            answer=_gib_stuck,
            tolerance=1.05,
        ),
    ),
    questions=("why_preallocate", "which_survivor", "empty_cache_or_not"),
)
