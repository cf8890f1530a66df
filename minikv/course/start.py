"""The first line of every lesson: ``check, predict, explain, show, t = start("02", lang="en")``."""

import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from minikv.course import moved
from minikv.course.check import check as check_in
from minikv.course.explain import explain as explain_in
from minikv.course.guard import own_line
from minikv.course.lessons import find_lesson
from minikv.course.predict import predict as predict_in
from minikv.course.say import say
from minikv.course.shipped import course_root
from minikv.course.show import show
from minikv.course.your_engine.engine import my_engine
from minikv.errors import MiniKVError
from minikv.extras import require_engine
from minikv.i18n import has_text, pick_language, text


class Course(NamedTuple):
    """The five words of a lesson, bound to its number and language. Each prints or displays, and returns None
    (``t`` returns its sentence), so a notebook never echoes a result."""

    check: Callable[..., None]
    predict: Callable[..., None]
    explain: Callable[..., None]
    show: Callable[..., None]
    t: Callable[..., str]


def start(number: str, lang: str = "en") -> Course:
    """The course's words for lesson ``number`` ("02", "11a", "a") in ``lang`` ("en" or "zh").

    For a lesson that was divided they are those of all its parts. Where none of these has the number ("11"), one
    sentence names the new notebooks.
    In a notebook, an uncaught ``MiniKVError`` is shown as one sentence in ``lang`` from here on.
    Raises ``UnknownNameError`` for an unknown lesson, ``ArgumentError`` for an unknown language, and
    ``MissingPackageError`` where torch or transformers is not installed or too old for the course.
    """
    lang = pick_language(lang)
    _print_errors_in(lang)
    my_engine.lang = lang
    require_engine()
    # torch's profiler, which measure_peak runs on a CPU, writes two lines of tracing to stderr each time. The variable
    # is read when torch is imported, and the lesson's own file may be the first import of torch.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    # Every call of a kernel is checked, because learners write parts of their own.
    os.environ.setdefault("MINIKV_CHECKED", "1")
    lessons = moved.LESSONS.get(str(number), (number,))
    for each in lessons:
        find_lesson(each)
    if number not in lessons:
        say(text("course.moved_lesson", lang, old=number, files=", ".join(_files(lessons, lang))), lang)

    def check(id: str, fn: object, hint: int = 1, seed: int = 0) -> None:
        check_in(id, fn, hint, seed, lang=lang)

    def predict(key: str, guess: object = ..., seed: int = 0) -> None:
        predict_in(key, guess, seed, lesson=_home(f"{key}.question", lessons), lang=lang)

    def explain(key: str, reveal: bool = False) -> None:
        explain_in(key, reveal, lesson=_home(f"{key}.question", lessons), lang=lang)

    def translate(key: str | MiniKVError, **values: object) -> str:
        return t(key, lesson=_home(key, lessons), lang=lang, **values)

    words = Course(check, predict, explain, show, translate)
    for ours, full in zip(words, (check_in, predict_in, explain_in, show, t), strict=True):
        ours.__doc__ = full.__doc__  # for `check?` in a notebook
    return words


def _home(key: object, lessons: tuple[str, ...]) -> str:
    """The first of ``lessons`` that has the sentence ``key``; the first of all where none has."""
    if len(lessons) == 1:
        return lessons[0]
    return next((each for each in lessons if has_text(f"lesson_{each}.{key}")), lessons[0])


def _files(lessons: tuple[str, ...], lang: str) -> list[str]:
    """The names of the notebooks of ``lessons``."""
    folder = course_root() / "notebooks" / lang
    return [path.name for each in lessons for path in folder.glob(f"{each}_*.ipynb")]


def t(key: str | MiniKVError, *, lesson: str, lang: str = "en", **values: object) -> str:
    """The sentence ``key`` of ``messages/lesson_<number>.toml``; of an error, the sentence of its code."""
    if isinstance(key, MiniKVError):
        return key.text(lang)
    return str(text(f"lesson_{lesson.lower()}.{key}", lang, **values))  # plain text for a cell


def error_lines(error: MiniKVError, trace: TracebackType | None, lang: str) -> list[str]:
    """The text in place of a traceback: the code, the sentence, and the learner's own line."""
    lines = [f"{type(error).__name__} [{error.code}]", error.text(lang)]
    number, source = own_line(trace)
    if number:
        lines.append(text("course.error_line", lang, line=number, source=source))
    return lines


def _print_errors_in(lang: str) -> None:
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return

    def on_error(
        shell: Any, etype: type, error: Any, trace: TracebackType, tb_offset: int | None = None
    ) -> None:
        # IPython shows what this method of an exception returns in place of the traceback.
        error._render_traceback_ = lambda: error_lines(error, trace, lang)
        shell.showtraceback((etype, error, trace))

    shell.set_custom_exc((MiniKVError,), on_error)
