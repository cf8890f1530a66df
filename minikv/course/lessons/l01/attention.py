"""Exercise 01.1: attention for one query."""

import math
import random

from minikv.course.exercise import Exercise, Misconception


def attend(query, keys, values, scale=None, normalise=True):
    """Return the attention of one query over every key: the weighted mean of the values, as a list of floats."""
    scale = math.sqrt(len(query)) if scale is None else scale
    scores = [sum(q * k for q, k in zip(query, key, strict=True)) / scale for key in keys]
    # exp(s - top) / sum: the factor exp(-top) cancels, and exp() cannot overflow
    top = max(scores) if normalise else 0.0
    weights = [math.exp(score - top) for score in scores]
    total = sum(weights) if normalise else 1.0
    columns = zip(*values, strict=True)
    return [sum(w * v for w, v in zip(weights, column, strict=True)) / total for column in columns]


def close_in_float32(expected, got) -> bool:
    """Return whether ``got``, a sequence of numbers or a 1-D tensor or array, equals ``expected`` in float32."""
    numbers = got.tolist() if hasattr(got, "tolist") else got
    if len(numbers) != len(expected):
        return False
    pairs = zip(expected, numbers, strict=True)
    return all(math.isclose(due, number, rel_tol=1e-5, abs_tol=1e-5) for due, number in pairs)


def draw_attention(rng: random.Random):
    cases = []
    for number in range(40):
        tokens, d = 2 + number // 6, rng.choice([2, 4, 6, 8])
        d_v = rng.choice([size for size in (3, 5, 7) if size != d])
        rows = [[round(rng.uniform(-2, 2), 2) for _ in range(d)] for _ in range(tokens + 1)]
        values = [[round(rng.uniform(-9, 9), 1) for _ in range(d_v)] for _ in range(tokens)]
        cases.append((rows[0], rows[1:], values))
    return cases


ATTEND = Exercise(
    id="01.1",
    minutes=5,
    name="attend",
    signature=("query", "keys", "values"),
    cases=draw_attention,
    reference=attend,
    equal=close_in_float32,
    misconceptions=(
        Misconception("no_scale", lambda query, keys, values: attend(query, keys, values, 1.0)),
        Misconception("whole_d", lambda query, keys, values: attend(query, keys, values, len(query))),
        Misconception(
            "root_of_tokens", lambda query, keys, values: attend(query, keys, values, math.sqrt(len(keys)))
        ),
        Misconception(
            "not_normalised", lambda query, keys, values: attend(query, keys, values, normalise=False)
        ),
    ),
)
