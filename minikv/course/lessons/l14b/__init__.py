"""Lesson 14b: a policy of your own. Exercise: ``own_policy``."""

import random

from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l14b.own_policy import OWN
from minikv.eviction import Budget
from minikv.eviction.policies.layered import share_out


def _draw_budget(rng: random.Random) -> dict[str, object]:
    return {"n_sink": 4, "budget": 4 * rng.randint(6, 20), "n_recent": 4 * rng.randint(3, 8)}


def _positions_off(tokens: int, **sizes: int) -> int:
    """Return how far the cache's length lies before the position of the next token, in a text of ``tokens``."""
    return tokens - Budget(**sizes).capacity


def _second_layer(n_sink: int, budget: int, n_recent: int, percent: int) -> int:
    """Return the capacity of the second of two layers, where ``percent`` of all heavy hitters are in the first."""
    _, second = share_out(2 * budget, (percent, 100 - percent))
    return Budget(n_sink=n_sink, budget=second, n_recent=n_recent).capacity


LESSON = Lesson(
    exercises=(OWN,),
    predictions=(
        Prediction(
            "positions_off",
            lambda rng: _draw_budget(rng) | {"tokens": rng.randint(300, 900)},
            how="{tokens} - ({n_sink} + {budget} + {n_recent})",
            unit="tokens",
            answer=_positions_off,
        ),
        Prediction(
            "second_layer",
            lambda rng: _draw_budget(rng) | {"percent": rng.choice([0, 25, 75])},
            how="{n_sink} + {n_recent} + 2 * {budget} * (100 - {percent}) // 100",
            unit="tokens",
            answer=_second_layer,
        ),
    ),
    questions=("why_true_positions",),
)
