"""Lesson 05: owned and borrowed memory, what a view keeps alive, and an arena that lends."""

import torch

from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l05.arena_offsets import CARVE
from minikv.course.lessons.l05.live_bytes import LIVE
from minikv.course.lessons.l05.views import KEPT, WINDOW
from minikv.memory.arena import arena_bytes
from minikv.memory.ownership import ownership


def _draw_arena(rng) -> dict[str, object]:
    """Draw two sizes, and compute the bytes that fill the first two loans up to a multiple of 256."""
    vocab, tokens = rng.choice([1001, 2003, 5003]), rng.choice([33, 70, 100])
    return {
        "vocab": vocab,
        "tokens": tokens,
        "after_logits": -4 * vocab * 4 % 256,
        "after_slots": -tokens * 8 % 256,
    }


def _arena_size(vocab: int, tokens: int, **padding) -> int:
    requests = [((4, vocab), torch.float32), ((tokens,), torch.int64), ((4, 63), torch.int32)]
    return arena_bytes(requests, align=256)


LESSON = Lesson(
    exercises=(KEPT, WINDOW, CARVE, LIVE),
    predictions=(
        Prediction(
            "ten_percent",
            lambda rng: {"rows": rng.choice([200, 500, 800])},
            how="{rows} * 1000 * 4",
            unit="bytes",
            answer=lambda rows: ownership(torch.empty(rows, 1000)[: rows // 10]).storage_bytes,
        ),
        Prediction(
            "quiz_total",
            lambda rng: {"rows": rng.choice([256, 512, 640])},
            how="1024 * 768 * 2 + {rows} * 768 * 2",
            unit="bytes",
            answer=lambda rows: sum(torch.empty(n, 768, dtype=torch.half).nbytes for n in (1024, rows)),
        ),
        Prediction(
            "expanded",
            lambda rng: {"copies": rng.choice([32, 500, 4096])},
            how="1024 * 4",
            unit="bytes",
            answer=lambda copies: ownership(torch.zeros(1, 1024).expand(copies, 1024)).storage_bytes,
        ),
        Prediction(
            "arena_size",
            _draw_arena,
            how="(4 * {vocab} * 4 + {after_logits}) + ({tokens} * 8 + {after_slots}) + 4 * 63 * 4",
            unit="bytes",
            answer=_arena_size,
        ),
    ),
    questions=("owned_or_borrowed", "who_frees", "why_refuse"),
)
