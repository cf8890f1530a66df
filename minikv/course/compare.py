"""Is this the answer? And if not, in what way: its value, its type, its shape?

One function decides, and it decides by the type of the *expected* value, so that a strange object of the
learner's is never asked whether it is equal to anything.
"""

import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

REL_TOL = 1e-9  # Python floats: the same formula in another order of operations
_MAX_SHOWN = 300  # characters of one value in a message


@dataclass(frozen=True)
class Mismatch:
    """The first place at which an answer differs. ``kind`` is a word of ``difference``.

    path           where it is inside the answer, as Python would index it: "['keys'][0]"; "" for the whole
    expected, got  the values there, not those of the whole answer
    """

    kind: str
    path: str
    expected: Any
    got: Any


def difference(expected: Any, got: Any) -> str | None:
    """None if ``got`` is the answer, else what differs.

    That is one of "none", "generator", "type", "shape", "dtype", "length", "keys" or "value".

    Ints and bools must be ints and bools; an int passes for a float; a list passes for a tuple. Floats are
    compared to a relative 1e-9. numpy and torch arrays: shape, dtype, then the tolerance of the dtype.
    """
    found = mismatch(expected, got)
    return found.kind if found else None


def mismatch(expected: Any, got: Any) -> Mismatch | None:
    """What ``difference`` found, with its place."""
    try:
        return _mismatch(expected, got)
    except RecursionError:  # a list that contains itself
        return Mismatch("value", "", expected, got)


def _mismatch(expected: Any, got: Any) -> Mismatch | None:
    found = _difference(expected, got)
    return Mismatch(found, "", expected, got) if isinstance(found, str) else found


def _difference(expected: Any, got: Any) -> str | Mismatch | None:
    """The kind of a difference of the two values themselves, or the mismatch of something inside of them."""
    if got is None and expected is not None:
        return "none"
    if _is_generator(got) and not _is_generator(expected):
        return "generator"
    if isinstance(expected, bool):
        return _scalar(expected, got, isinstance(got, bool) or type(got).__name__ in ("bool_", "bool"))
    if isinstance(expected, numbers.Integral):
        return _scalar(expected, got, isinstance(got, numbers.Integral) and not isinstance(got, bool))
    if isinstance(expected, numbers.Real):
        if not isinstance(got, numbers.Real) or isinstance(got, bool):
            return "type"
        return None if _close(float(expected), _as_float(got)) else "value"
    if isinstance(expected, str | bytes):
        return _scalar(expected, got, isinstance(got, type(expected)))
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


def _scalar(expected: Any, got: Any, right_type: bool) -> str | None:
    if not right_type:
        return "type"
    return None if expected == got else "value"


def _close(expected: float, got: float) -> bool:
    return math.isclose(expected, got, rel_tol=REL_TOL) or (math.isnan(expected) and math.isnan(got))


def _as_float(number: Any) -> float:
    """``float(number)``; an int beyond every float is infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _array(expected: Any, got: Any) -> str | None:
    if type(got) is not type(expected):
        return "type"
    if tuple(got.shape) != tuple(expected.shape):
        return "shape"
    if got.dtype != expected.dtype:
        return "dtype"
    if type(expected).__module__.startswith("torch"):
        import torch

        got = got.detach().to(expected.device)
        try:
            torch.testing.assert_close(got, expected.detach(), equal_nan=True)  # its tolerances fit the dtype
        except AssertionError:
            return "value"
        return None
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
    """The first part that differs. Each is the step that leads to it, what is due there, and what is there."""
    for step, expected, got in parts:
        found = _mismatch(expected, got)
        if found is not None:
            return replace(found, path=step + found.path)
    return None


def _is_generator(value: Any) -> bool:
    return hasattr(value, "send") and hasattr(value, "throw")  # generators and coroutines


def size(value: Any) -> float:
    """How much there is to look at in a counterexample: the sum of absolute numbers and of lengths."""
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
    """``repr(value)``, cut to a length that can be read; a repr that raises does not stop the answer."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + " …"
