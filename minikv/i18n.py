"""Every sentence of minikv, in English and in Simplified Chinese.

The sentences live in ``minikv/messages/*.toml``, both languages side by side, so that neither can be
forgotten; a test reads all of them and compares their placeholders. A key is ``"file.name"``:
``text("errors.unknown_gpu", "zh", name="H300")``.
"""

import re
import string
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

LANGUAGES = ("en", "zh")

# C0, DEL and C1, line separators, and the marks that change a line's direction; a surrogate is a byte of a file name.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Sentence(str):
    """Text of minikv's own: as a value of another sentence it keeps its line breaks."""

    __slots__ = ()


class _Filling(string.Formatter):
    """Fills in a sentence, and escapes the control characters of values that are not minikv's own text."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        filled = format(value, format_spec)
        return filled if isinstance(value, Sentence) else escape_controls(filled)


_FILLING = _Filling()


@cache
def _table(name: str) -> dict[str, dict[str, str]]:
    source = files("minikv") / "messages" / f"{name}.toml"
    return tomllib.loads(source.read_text(encoding="utf-8"))


def text(key: str, lang: str = "en", /, **values: object) -> str:
    """The sentence ``key`` in ``lang`` with ``values`` filled in (``{name}``, ``{count:,}``).

    Control characters of the values are escaped; those of the sentence itself stay, and so do those of a value that
    is a ``Sentence``. Raises ``KeyError`` for a key or language that does not exist: a mistake in our code, not a
    learner's.
    """
    file, _, name = key.partition(".")
    return Sentence(_FILLING.vformat(_table(file)[name][lang], (), values))


def has_text(key: str) -> bool:
    """Whether there is a sentence ``key``."""
    file, _, name = key.partition(".")
    return name in _table(file)


def escape_controls(foreign: str, keep: str = "", *, as_json: bool = False) -> str:
    """Return ``foreign`` with its control characters as Python writes them (``\\x1b``), except those in ``keep``.

    A terminal obeys such characters: they move its cursor, clear it, or reverse the order of a line. ``as_json``
    writes them as JSON does (``\\u001b``), for text that must stay valid JSON.
    """

    def written(found: re.Match[str]) -> str:
        letter = found[0]
        if letter in keep:
            return letter
        return f"\\u{ord(letter):04x}" if as_json else repr(letter)[1:-1]

    return _CONTROLS.sub(written, foreign)


def pick_language(lang: str) -> str:
    """``lang`` if it is one of ours; locale names such as ``zh_CN.UTF-8`` are understood.

    Raises ``ArgumentError`` for a language that the course is not written in.
    """
    short = lang.lower().replace("-", "_").split("_")[0].split(".")[0]
    if short in LANGUAGES:
        return short
    from minikv.errors import ArgumentError  # errors.py imports this file

    raise ArgumentError("unknown_language", lang=lang, known=", ".join(LANGUAGES))


def locale_language(environment: Mapping[str, str]) -> str:
    """The language of a shell, as POSIX reads it: LC_ALL, else LC_MESSAGES, else LANG; English for every other one.

    Traditional Chinese locales (``zh_TW``, ``zh_HK``) get Simplified Chinese: their readers know it better.
    """
    chosen = next(
        (environment[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environment.get(name)), ""
    )
    return "zh" if chosen.lower().startswith("zh") else "en"
