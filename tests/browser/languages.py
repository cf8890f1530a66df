"""In which language a test runs: in one with ``make test``, in the other with ``make test-all`` or where files changed.

The scripts of the widgets draw what Python sends and never ask for the language (tests/course/test_widget_scripts.py),
and nbval runs the lessons in English: here they run in Chinese.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from minikv.i18n import LANGUAGES
from tools.changes import lesson_changed, may_have_changed

WIDGETS_CHANGED = may_have_changed(
    "minikv/course/widgets/", "minikv/course/motion/", "minikv/messages/widgets"
)


def one_language(usual: str, changed: bool = WIDGETS_CHANGED) -> list[Any]:
    """The values of ``lang``; all but ``usual`` are marked long unless something ``changed``."""
    return [_param(lang, lang, usual, changed) for lang in LANGUAGES]


def in_turns(things: Sequence[Any], ids: Sequence[str]) -> list[Any]:
    """``(thing, lang)`` in both languages; the usual one changes from thing to thing."""
    return [
        _param(f"{name}-{lang}", (thing, lang), LANGUAGES[place % 2], WIDGETS_CHANGED)
        for place, (thing, name) in enumerate(zip(things, ids, strict=True))
        for lang in LANGUAGES
    ]


def lessons(names: Sequence[str]) -> list[Any]:
    """``(lesson, lang)`` of these notebooks: Chinese, and English where the lesson changed."""
    return [
        _param(f"{lang}-{name}", (name, lang), "zh", lesson_changed(name.removesuffix(".ipynb")))
        for lang in LANGUAGES
        for name in names
    ]


def _param(name: str, value: Any, usual: str, changed: bool) -> Any:
    lang = value if isinstance(value, str) else value[-1]
    return pytest.param(
        *(value if isinstance(value, tuple) else (value,)),
        id=name,
        marks=() if changed or lang == usual else pytest.mark.long,
    )
