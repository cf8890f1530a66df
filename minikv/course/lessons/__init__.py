"""One folder a lesson, ``l02/``, read on first use. How to write one: ``minikv/course/exercise.py``."""

from importlib import import_module
from pkgutil import iter_modules

from minikv.course import moved
from minikv.course.exercise import Exercise, Lesson
from minikv.errors import ArgumentError, UnknownNameError

_PREFIX = "l"


def lesson_numbers() -> list[str]:
    """Return the numbers of the lessons, in order: ["00", ..., "10", "11a", "11b", ..., "a"]."""
    return sorted(m.name.removeprefix(_PREFIX) for m in iter_modules(__path__) if m.name.startswith(_PREFIX))


def find_lesson(number: str) -> Lesson:
    """Return the lesson ``number`` ("02", "11a", "a").

    Raises ``UnknownNameError`` if there is no such lesson and ``ArgumentError`` for a ``number`` that is no text.
    """
    if not isinstance(number, str):
        whole = isinstance(number, int) and 0 <= number < 100
        raise ArgumentError("lesson_not_text", number=number, quoted=f"{number:02}" if whole else "02")
    module = f"{__name__}.{_PREFIX}{number.lower()}"
    try:
        return import_module(module).LESSON
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        known = ", ".join(lesson_numbers())
        raise UnknownNameError("unknown_lesson", number=number, known=known) from None


def find_exercise(id: str) -> Exercise:
    """Return the exercise ``id`` ("02.1", "11a.1"). The former id of a moved exercise works too: "11.1" is "11a.1".

    Raises ``UnknownNameError``, which lists the exercises of the lesson, and ``ArgumentError`` for an ``id`` that is
    no text: the number 2.1 has lost its zero, and 2.10 would be 2.1.
    """
    if not isinstance(id, str):
        known = isinstance(id, float) and 0 <= id < 100
        raise ArgumentError("exercise_id_not_text", id=id, quoted=f"{id:04}" if known else "02.1")
    id = moved.EXERCISES.get(id, id)
    exercises = find_lesson(id.partition(".")[0]).exercises
    for exercise in exercises:
        if exercise.id.lower() == id.lower():
            return exercise
    raise UnknownNameError("unknown_exercise", id=id, known=", ".join(e.id for e in exercises))
