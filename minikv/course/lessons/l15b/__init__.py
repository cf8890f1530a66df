"""Lesson 15b: eviction in an attention class of your own. Exercise: ``latent_attention``."""

import random

from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l15b.latent_attention import LATENT
from minikv.eviction import Budget


def _draw_forwards(rng: random.Random) -> dict[str, object]:
    """Draw what a layer keeps, and three forwards: a prompt longer than that, a chunk and one token."""
    n_sink, budget, n_recent = 4, rng.randint(20, 60), rng.randint(8, 24)
    prompt = n_sink + budget + n_recent + rng.randint(20, 300)
    return {
        "prompt": prompt,
        "chunk": rng.randint(8, 40),
        "n_sink": n_sink,
        "budget": budget,
        "n_recent": n_recent,
    }


def _rows_dropped(prompt: int, chunk: int, n_sink: int, budget: int, n_recent: int) -> int:
    """Return how many rows one layer drops in three forwards."""
    capacity, rows, dropped = Budget(n_sink=n_sink, budget=budget, n_recent=n_recent).capacity, 0, 0
    for new in (prompt, chunk, 1):
        rows += new
        dropped += max(0, rows - capacity)
        rows = min(rows, capacity)
    return dropped


LESSON = Lesson(
    exercises=(LATENT,),
    predictions=(
        Prediction(
            "rows_dropped",
            _draw_forwards,
            how="{prompt} + {chunk} + 1 - ({n_sink} + {budget} + {n_recent})",
            unit="rows",
            answer=_rows_dropped,
        ),
    ),
    questions=("what_a_port_needs", "why_the_tests_passed"),
)
