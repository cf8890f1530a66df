"""Lesson 18: serve a load within a budget. Exercises: ``plan_bytes, admission, time_floor, best_plan``."""

from minikv.course.capstone.bound import fewest_steps
from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l18.admission import ENTER
from minikv.course.lessons.l18.best_plan import BEST
from minikv.course.lessons.l18.plan_bytes import ROOM
from minikv.course.lessons.l18.time_floor import FLOOR
from minikv.models.sources import find_folder
from minikv.plan import CacheSpec
from minikv.units import KIB

STORED = (("fp32", 4, 0), ("bf16", 2, 0), ("int8", 1, 4))
"""A cache dtype, the bytes of an element, and the bytes of a scale for each token and head."""


def _budget(rng) -> dict:
    dtype, itemsize, scale = rng.choice(STORED)
    return {"kib": 64 * rng.randint(4, 16), "dtype": dtype, "itemsize": itemsize, "scale": scale}


def _blocks_that_fit(kib: int, dtype: str, itemsize: int, scale: int) -> int:
    spec = CacheSpec.from_config(find_folder("tiny-gqa"), kv_dtype=dtype)
    return kib * KIB // spec.block_bytes(16)


def _int8_share() -> float:
    """Return the share of a token's fp32 bytes that int8 takes."""
    int8, fp32 = (CacheSpec.from_config(find_folder("tiny-gqa"), kv_dtype=each) for each in ("int8", "fp32"))
    return int8.slope() / fp32.slope()


LESSON = Lesson(
    exercises=(ROOM, ENTER, FLOOR, BEST),
    predictions=(
        Prediction(
            "blocks_that_fit",
            _budget,
            how="{kib} * 1024 // (16 * 2 * 2 * 2 * (32 * {itemsize} + {scale}))",
            unit="blocks",
            answer=_blocks_that_fit,
        ),
        Prediction(
            "never_to_leave",
            lambda rng: {
                "blocks": rng.randint(1200, 4000),
                "prompt": rng.randint(40, 130),
                "new": rng.randint(20, 90),
            },
            how="{blocks} // (({prompt} + {new} - 1 + 15) // 16)",
            unit="sequences",
            answer=lambda blocks, prompt, new: blocks // -(-(prompt + new - 1) // 16),
        ),
        Prediction(
            "what_int8_brings",
            lambda rng: {"share": 5 * rng.randint(4, 14)},
            how="100 / (100 - {share} + {share} * 36 / 128)",
            unit="times",
            answer=lambda share: 100 / (100 - share + share * _int8_share()),
            tolerance=1.05,
        ),
        Prediction(
            "fewest_steps",
            lambda rng: {"new": rng.randint(30, 90), "drafts": rng.randint(2, 6)},
            how="1 + ({new} - 1 + {drafts}) // (1 + {drafts})",
            unit="steps",
            answer=lambda new, drafts: fewest_steps(new, drafts),
        ),
    ),
    questions=(
        "why_no_sample_config",
        "why_a_lever_does_nothing",
        "why_a_floor",
        "why_a_bar",
        "why_not_the_wall",
    ),
)
