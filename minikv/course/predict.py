"""A number to guess before its computation is shown. The package computes the answer; it is never typed in."""

import math
import numbers
from typing import Any

from minikv.course import guard
from minikv.course.compare import REL_TOL, as_float, plain_number
from minikv.course.exercise import Prediction
from minikv.course.lessons import find_lesson
from minikv.course.say import say
from minikv.errors import UnknownNameError
from minikv.i18n import text

_LIMIT_S = 5.0


def predict(key: str, guess: object = ..., seed: int = 0, *, lesson: str, lang: str = "en") -> None:
    """Print the question ``key`` of ``lesson``; with a ``guess``, judge it, then show the answer and how.

    Without a guess (``...``) the answer stays hidden. Another ``seed`` draws other values.
    Raises ``UnknownNameError`` for a key that the lesson does not have.
    """
    prediction = find_prediction(key, lesson)
    values = prediction.ask(seed)
    say(text(f"lesson_{lesson.lower()}.{key}.question", lang, **values), lang)
    unit = text(f"course.unit.{prediction.unit}", lang)
    again = dict(name=key, unit=unit, seed=f", seed={seed}" if seed else "")
    if guess is ...:
        if prediction.tolerance == "exact":
            say(text("course.predict_how", lang, **again), lang)
        else:
            say(text("course.predict_how_tolerance", lang, factor=prediction.tolerance, **again), lang)
        return
    number = _plain(guess)
    if isinstance(number, str):
        say(text("course.predict_not_a_number", lang, kind=number, **again), lang)
    else:
        answer = prediction.answer(**values)
        verdict, numbers_said = judge(prediction, number, answer)
        say(text(f"course.predict_{verdict}", lang, guess=said(number), unit=unit, **numbers_said), lang)
        how = prediction.how.format(**values)
        say(text("course.predict_answer", lang, answer=said(answer), unit=unit, how=how), lang)


def find_prediction(key: str, lesson: str) -> Prediction:
    """The prediction ``key``. Raises ``UnknownNameError``, which names the predictions of ``lesson``."""
    predictions = find_lesson(lesson).predictions
    for prediction in predictions:
        if prediction.key == key:
            return prediction
    raise UnknownNameError("unknown_prediction", name=key, known=", ".join(p.key for p in predictions))


def judge(prediction: Prediction, guess: int | float, answer: int | float) -> tuple[str, dict[str, str]]:
    """("right" | "close" | "too_big" | "too_small" | "off_by", the numbers of that sentence)."""
    if guess == answer or (isinstance(answer, float) and math.isclose(guess, answer, rel_tol=REL_TOL)):
        return "right", {}
    if guess <= 0 or answer <= 0:
        return "off_by", {"gap": said(abs(guess - answer))}
    ratio = max(guess / answer, answer / guess)
    if prediction.tolerance != "exact" and ratio <= float(prediction.tolerance):
        return "close", {}
    if ratio < 1.01:  # "1.00 times too much" says nothing
        return "off_by", {"gap": said(abs(guess - answer))}
    times = f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"
    return ("too_big" if guess > answer else "too_small"), {"ratio": times}


def said(number: Any) -> str:
    """131072 -> "131,072"; 2.857142857 -> "2.857143"."""
    if isinstance(number, numbers.Integral):
        return f"{int(number):,}"
    return f"{float(number):,.7g}"


def _plain(guess: object) -> int | float | str:
    """``guess`` as Python's own number, else the name of its type; under ``guard``, since it may be any object."""
    outcome, _ = guard.call(lambda: plain_number(guess), _LIMIT_S)
    number: Any = outcome.value if isinstance(outcome, guard.Returned) else None
    if number is None:
        return type(guess).__name__
    return number if math.isfinite(as_float(number)) else f"{type(guess).__name__} {as_float(number)}"
