"""Exercise 13.2: a token's heads as int8, each with a scale of its own."""

import math
from collections.abc import Callable

from minikv.course.exercise import Exercise, Misconception

Stored = list[tuple[list[int], float]]
"""For each head its int8 numbers and its scale."""


def quantize(heads: list[list[float]]) -> Stored:
    return [_stored(row, _largest(row) / 127) for row in heads]


def _largest(row: list[float]) -> float:
    return max(abs(x) for x in row)


def _stored(row: list[float], scale: float, whole: Callable[[float], int] = round) -> tuple[list[int], float]:
    if scale == 0:
        return [0] * len(row), 0.0
    return [whole(x / scale) for x in row], scale


def quantize_signed(heads):
    return [_stored(row, max(row) / 127) for row in heads]


def quantize_to_128(heads):
    return [_stored(row, _largest(row) / 128) for row in heads]


def quantize_cut(heads):
    return [_stored(row, _largest(row) / 127, whole=int) for row in heads]


def quantize_the_token(heads):
    """Uses one scale for all heads, so the largest head costs the others their precision."""
    scale = max(_largest(row) for row in heads) / 127
    return [([0] * len(row) if scale == 0 else [round(x / scale) for x in row], scale) for row in heads]


def quantize_inverse(heads):
    stored = quantize(heads)
    return [(numbers, 1 / scale if scale else 0.0) for numbers, scale in stored]


def quantize_uncalibrated(heads):
    """Uses a scale of 1.0 for any numbers."""
    return [([max(-127, min(127, round(x))) for x in row], 1.0) for row in heads]


def quantize_unguarded(heads):
    return [([round(x / (_largest(row) / 127)) for x in row], _largest(row) / 127) for row in heads]


def same_heads(expected, got) -> bool:
    """Return whether the int8 numbers are equal and the scales are equal in float32."""
    return len(got) == len(expected) and all(
        [float(number) for number in theirs] == numbers
        and math.isclose(scale, float(their_scale), rel_tol=1e-6, abs_tol=0.0)
        for (numbers, scale), (theirs, their_scale) in zip(expected, got, strict=True)
    )


def draw_heads(rng) -> list[dict]:
    """Draw heads of very different sizes; some have a negative maximum, and some are all zeros."""
    cases = []
    for i in range(48):
        dim = (3, 4, 6, 8)[i % 4]
        heads = []
        for head in range(rng.randint(2, 3 + i // 24)):
            size = rng.choice([0.02, 0.5, 3.0, 40.0]) * (1 + head)
            row = [round(rng.uniform(-size, size), 6) for _ in range(dim)]
            row[rng.randrange(dim)] = round(rng.choice([1, -1]) * size, 6)
            heads.append(row)
        if i % 8 == 5:
            heads[rng.randrange(len(heads))] = [0.0] * dim
        cases.append({"heads": heads})
    return cases


ROWS = Exercise(
    id="13.2",
    minutes=5,
    name="quantize",
    signature=("heads",),
    cases=draw_heads,
    reference=quantize,
    equal=same_heads,
    misconceptions=(
        Misconception("signed", quantize_signed),
        Misconception("to_128", quantize_to_128),
        Misconception("cut", quantize_cut),
        Misconception("one_for_the_token", quantize_the_token),
        Misconception("inverse", quantize_inverse),
        Misconception("uncalibrated", quantize_uncalibrated),
        Misconception("zero_row", quantize_unguarded),
    ),
)
