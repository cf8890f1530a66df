"""The errors of minikv: one small family. Each has a code, the numbers, and the way out.

The sentence belongs to the code and stands in ``messages/errors.toml`` in both languages, so ``str(error)``
is English and ``error.text("zh")`` is Chinese. A learner and a script can both tell two errors apart
without reading the sentence: ``error.code`` and ``error.values``.
"""

import copyreg
from pathlib import Path
from typing import Any, get_args

from minikv.i18n import text

LARGEST_COUNT = 2**62  # above it, a product of two counts no longer means bytes of anything


class Hint:
    """A sentence of another file of ``messages``, as one of an error's values."""

    def __init__(self, key: str):
        self.key = key

    def text(self, lang: str) -> str:
        """The sentence in ``lang``."""
        return text(self.key, lang)


class MiniKVError(Exception):
    """The base of minikv's errors. ``code`` names the sentence, ``values`` are the numbers in it."""

    def __init__(self, code: str, **values: object):
        self.code = code
        self.values = values
        super().__init__(self.text("en"))

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets the same error: ``Exception`` would call the class with the sentence as its code."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def text(self, lang: str = "en") -> str:
        """The sentence in ``lang`` ("en" or "zh"); an error or a hint among its values is said in the same language."""
        said = {
            name: value.text(lang) if isinstance(value, MiniKVError | Hint) else value
            for name, value in self.values.items()
        }
        return text(f"errors.{self.code}", lang, **said)


class ArgumentError(MiniKVError, ValueError):
    """A value of the caller's cannot be used."""


class KeywordError(ArgumentError, TypeError):
    """A keyword argument that the call does not have: a name that another library uses, or a slip."""


class NoAttributeError(MiniKVError, AttributeError):
    """An attribute that objects of this kind have in another library; ``hasattr`` is False."""


class ConfigError(MiniKVError, ValueError):
    """A model's config is missing a field, contradicts itself, or is of a kind that minikv does not know."""


class UnknownNameError(MiniKVError, LookupError):
    """A model, GPU or exercise of that name is not in the catalogue (or several are)."""


class DoesNotFitError(MiniKVError):
    """The model does not fit the memory: the terms of the budget are in ``values``.

    ``budget`` is the ``minikv.plan.MemoryBudget`` that was refused, None where there is none.
    """

    budget: Any = None


class OutOfBlocksError(MiniKVError):
    """Not enough free blocks now; freeing some helps. ``values``: asked, free, total, and the tokens that would fit."""


class RequestTooLargeError(MiniKVError):
    """A sequence that the whole pool could not hold: waiting does not help."""


class MissingPackageError(MiniKVError, ImportError):
    """A package that this needs is not installed, or too old: ``values`` name it, and what to install."""


class RankLostError(MiniKVError):
    """A process of a tensor-parallel run has ended or does not answer: nothing more can be computed in this run."""


class BrokenInvariantError(MiniKVError):
    """The bookkeeping contradicts itself: a mistake in minikv, never the caller's."""


def check_choice(what: str, value: object, choices: Any) -> None:
    """Raise ``ArgumentError`` unless ``value`` is one of ``choices``, a ``Literal`` or a list of words."""
    known = get_args(choices) or tuple(choices)
    if value not in known:
        raise ArgumentError("unknown_choice", what=what, value=value, known=", ".join(known))


def check_count(what: str, value: Any, least: int = 1) -> None:
    """Raise ``ArgumentError`` unless ``value`` is an int of at least ``least``, and no larger than any memory."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ArgumentError("bad_count", what=what, value=value, least=least)
    if value > LARGEST_COUNT:
        digits = value.bit_length() * 3 // 10 + 1
        raise ArgumentError("count_too_large", what=what, digits=digits, most=LARGEST_COUNT)


def user_path(path: str | Path) -> Path:
    """``path`` with its "~" expanded. Raises ``ArgumentError`` where there is no such home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ArgumentError("no_such_home", path=path) from None


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message, at most 200 characters; torch adds pages of advice."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200].rstrip(".:")
