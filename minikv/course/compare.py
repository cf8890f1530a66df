"""Compares a learner's answer with the expected one: its value, its type, its shape.

One function decides, by the type of the *expected* value, so that it never calls ``==`` of a learner's own class:
numbers and text are compared as Python's own.
"""

import math
import numbers
import operator
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from minikv.course.guard import passes
from minikv.i18n import escape_controls

REL_TOL = 1e-9  # Python floats: the same formula in another order of operations
_MAX_SHOWN = 300  # characters of one value in a message


@dataclass(frozen=True)
class Mismatch:
    """The first place at which an answer differs. ``kind`` is a word of ``difference``.

    path           the place inside the answer, as Python would index it: "['keys'][0]"; "" for the whole
    expected, got  the values there, not those of the whole answer
    """

    kind: str
    path: str
    expected: Any
    got: Any


def difference(expected: Any, got: Any) -> str | None:
    """None if ``got`` is the answer, else the kind of difference.

    It is one of "none", "generator", "type", "shape", "dtype", "length", "keys" or "value".

    Ints and bools must be ints and bools; an int passes for a float; a list passes for a tuple. Floats are
    compared to a relative 1e-9. numpy and torch arrays: shape, dtype, then the tolerance of the dtype.
    """
    found = mismatch(expected, got)
    return found.kind if found else None


def mismatch(expected: Any, got: Any) -> Mismatch | None:
    """The difference with its place."""
    try:
        return _mismatch(expected, got)
    except RecursionError:  # a list that contains itself
        return Mismatch("value", "", expected, got)
    except BaseException as error:
        if passes(error):
            raise
        return Mismatch("type", "", expected, got)  # an object that raises when it is read is not the answer


def _mismatch(expected: Any, got: Any) -> Mismatch | None:
    found = _difference(expected, got)
    return Mismatch(found, "", expected, got) if isinstance(found, str) else found


def _difference(expected: Any, got: Any) -> str | Mismatch | None:
    """The kind of difference of the two values themselves, or the mismatch of a part of them."""
    if got is None and expected is not None:
        return "none"
    if _is_generator(got) and not _is_generator(expected):
        return "generator"
    if isinstance(expected, bool):
        return _scalar(expected, got.item() if _is_numpy_bool(got) else got)
    if isinstance(expected, numbers.Integral):
        return _scalar(int(expected), plain_number(got))
    if isinstance(expected, numbers.Real):
        number = plain_number(got)
        if number is None:
            return "type"
        return None if _close(float(expected), as_float(number)) else "value"
    if isinstance(expected, str | bytes):
        return _scalar(_plain_text(expected), _plain_text(got))
    if hasattr(expected, "dtype") and hasattr(expected, "shape"):
        return _array(expected, got)
    if isinstance(expected, Mapping):
        return _mapping(expected, got)
    if isinstance(expected, list | tuple):
        return _sequence(expected, got)
    if is_dataclass(expected) and not isinstance(expected, type):
        if type(got) is not type(expected):
            return "type"
        return _first(
            (f".{f.name}", getattr(expected, f.name), getattr(got, f.name)) for f in fields(expected)
        )
    return _object(expected, got)


def _scalar(expected: Any, got: Any) -> str | None:
    if type(got) is not type(expected):
        return "type"
    return None if expected == got else "value"


def plain_number(value: Any) -> int | float | None:
    """``value`` as Python's own int or float, without a subclass's methods; None for a bool and other objects."""
    kind = type(value)
    if issubclass(kind, bool):
        return None
    if issubclass(kind, numbers.Integral):
        return int.__int__(value if issubclass(kind, int) else operator.index(value))
    if issubclass(kind, numbers.Real):
        return float.__float__(value if issubclass(kind, float) else float(value))
    return None


def _plain_text(value: Any) -> Any:
    """A str or bytes as Python's own, without a subclass's methods; anything else as it is."""
    for kind in (str, bytes):
        if issubclass(type(value), kind):
            return kind.__getitem__(value, slice(None))
    return value


def as_float(number: int | float) -> float:
    """``float(number)``; an int beyond every float is infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _is_numpy_bool(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.bool_


def _close(expected: float, got: float) -> bool:
    return math.isclose(expected, got, rel_tol=REL_TOL) or (math.isnan(expected) and math.isnan(got))


def _array(expected: Any, got: Any) -> str | None:
    if type(got) is not type(expected):
        return "type"
    if tuple(got.shape) != tuple(expected.shape):
        return "shape"
    if got.dtype != expected.dtype:
        return "dtype"
    if type(expected).__module__.startswith("torch"):
        import torch

        expected, got = expected.detach(), got.detach().to(expected.device)
        if not (expected.is_floating_point() or expected.is_complex()):
            return None if torch.equal(expected, got) else "value"
        # The tolerances of torch.testing.assert_close: its first call would take seconds of the time limit.
        rtol, atol = {"torch.float16": (1e-3, 1e-5), "torch.bfloat16": (1.6e-2, 1e-5)}.get(
            str(expected.dtype), (1e-7, 1e-7) if expected.element_size() >= 8 else (1.3e-6, 1e-5)
        )
        return None if torch.allclose(got, expected, rtol, atol, equal_nan=True) else "value"
    import numpy as np

    if expected.dtype.kind not in "fc":
        return None if np.array_equal(expected, got) else "value"
    rtol = 1e-9 if expected.dtype.itemsize >= 8 else 1e-3 if expected.dtype.itemsize == 2 else 1e-5
    return None if np.allclose(expected, got, rtol=rtol, atol=rtol, equal_nan=True) else "value"


def _mapping(expected: Mapping, got: Any) -> str | Mismatch | None:
    if not isinstance(got, Mapping):
        return "type"
    if len(expected) != len(got) or any(key not in got for key in expected):
        return "keys"
    return _first((f"[{shown(key)}]", expected[key], got[key]) for key in expected)


def _sequence(expected: list | tuple, got: Any) -> str | Mismatch | None:
    if not isinstance(got, list | tuple):
        return "type"
    if len(expected) != len(got):
        return "length"
    return _first((f"[{i}]", e, g) for i, (e, g) in enumerate(zip(expected, got, strict=True)))


def _object(expected: Any, got: Any) -> str | Mismatch | None:
    if type(got) is not type(expected):
        return "type"
    if type(expected).__eq__ is object.__eq__ and hasattr(expected, "__dict__") and not callable(expected):
        mine, yours = vars(expected), vars(got)  # a deep copy is never "equal" to such an object
        return "keys" if mine.keys() != yours.keys() else _first((f".{k}", mine[k], yours[k]) for k in mine)
    return None if expected == got else "value"


def _first(parts: Iterable[tuple[str, Any, Any]]) -> Mismatch | None:
    """The first part that differs. Each part is (its step in the path, the due value, the found value)."""
    for step, expected, got in parts:
        found = _mismatch(expected, got)
        if found is not None:
            return replace(found, path=step + found.path)
    return None


def _is_generator(value: Any) -> bool:
    return hasattr(value, "send") and hasattr(value, "throw")  # generators and coroutines


def size(value: Any) -> float:
    """The size of a counterexample for a reader: the sum of absolute numbers and of lengths."""
    if isinstance(value, numbers.Real):
        number = abs(float(value))
        return number if math.isfinite(number) else 0.0
    if isinstance(value, str | bytes):
        return float(len(value))
    if hasattr(value, "shape"):
        return float(math.prod(value.shape))
    if isinstance(value, Mapping):
        return sum((size(v) for v in value.values()), float(len(value)))
    if isinstance(value, list | tuple | set | frozenset):
        return sum((size(v) for v in value), float(len(value)))
    if is_dataclass(value) and not isinstance(value, type):
        return sum(size(getattr(value, f.name)) for f in fields(value))
    return 1.0


def shown(value: Any) -> str:
    """``repr(value)``, shortened by ``cut``; the type's name where the repr raises."""
    try:
        text = repr(value)
    except BaseException as error:
        if passes(error):
            raise
        text = f"<{type(value).__name__}>"
    return cut(text)


def cut(text: str) -> str:
    """``text`` at a readable length, its control characters escaped and its lines kept."""
    text = _plain_text(text)  # a repr may return a str of the learner's own class
    return escape_controls(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + " …", keep="\n")
