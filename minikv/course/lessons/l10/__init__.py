"""Lesson 10: how a GPU reads a page table.

Exercises: ``slots_and_tables.py``, ``online_softmax.py``, ``paged_attention.py``, ``decode_kernel.py``.
"""

from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l10.bytes_moved import Shape, moved
from minikv.course.lessons.l10.decode_kernel import KERNEL
from minikv.course.lessons.l10.online_softmax import ATTEND, MERGE
from minikv.course.lessons.l10.paged_attention import ATTENTION
from minikv.course.lessons.l10.slots_and_tables import OFFSETS, STORE

MULTIPROCESSORS = 132  # of an H200, as of an H100 SXM


def _table_percent(block_size: int) -> float:
    shape = Shape((64 * block_size,), block_size=block_size)
    return 100 * shape.table_bytes / shape.kv_bytes


def _times_read(query_heads: int, kv_heads: int) -> float:
    shape = Shape((4096,), query_heads=query_heads, kv_heads=kv_heads)
    return moved("per_head", shape).kv / shape.kv_bytes


LESSON = Lesson(
    exercises=(STORE, OFFSETS, ATTEND, MERGE, ATTENTION, KERNEL),
    predictions=(
        Prediction(
            "table_share",
            lambda rng: {"block_size": rng.choice([16, 32, 64])},
            how="100 * 4 / ({block_size} * 2 * 8 * 128 * 2)",
            unit="percent",
            answer=_table_percent,
            tolerance=2.0,
        ),
        Prediction(
            "times_read",
            lambda rng: dict(
                zip(
                    ("query_heads", "kv_heads"), rng.choice([(32, 8), (64, 8), (28, 4), (40, 8)]), strict=True
                )
            ),
            how="{query_heads} / {kv_heads}",
            unit="times",
            answer=_times_read,
        ),
        Prediction(
            "busy",
            lambda rng: {"batch": rng.choice([1, 2, 4])},
            how="100 * {batch} * 8 / 132",
            unit="percent",
            answer=lambda batch: 100 * batch * Shape((1,)).kv_heads / MULTIPROCESSORS,
            tolerance=1.1,
        ),
        Prediction(
            "first_overflow",
            lambda rng: {"block_size": rng.choice([16, 64, 128])},
            how="2**31 // ({block_size} * 8 * 128)",
            unit="blocks",
            answer=lambda block_size: 2**31 // (block_size * Shape((1,)).kv_heads * Shape((1,)).dim),
            tolerance=1.1,
        ),
    ),
    questions=("what_paging_costs", "why_online", "why_packed", "why_split"),
)
