"""Lesson 11c: your engine. Exercise: ``sampling``."""

from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l11c.sampling import SAMPLE


def _lengths(rng) -> dict[str, object]:
    """Draw the lengths of eight sequences at their end."""
    lengths = [rng.randint(40, 400) for _ in range(8)]
    return {"lengths": lengths, "total": sum(lengths)}


def _padding(lengths: list[int], total: int) -> int:
    return sum(max(lengths) - length for length in lengths)


LESSON = Lesson(
    exercises=(SAMPLE,),
    predictions=(
        Prediction("padding", _lengths, how="8 * max({lengths}) - {total}", unit="tokens", answer=_padding),
    ),
    questions=("why_called", "why_position"),
)
