"""Which parameters of a test ``make test`` runs; ``make test-all`` runs them all."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def parameter(value: Any, long: bool) -> Any:
    """``value`` for ``parametrize``; a tuple is several arguments."""
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=[pytest.mark.long] if long else [])


def usual_if(usual: Callable[[Any], bool], values: Iterable[Any]) -> list:
    """All ``values``, those marked ``long`` of which ``usual`` is not true."""
    return [parameter(value, not usual(value)) for value in values]


def every_value(*axes: Sequence[Any]) -> list:
    """All combinations; ``make test`` runs as many as the longest axis has values, and each value of each axis.

    >>> [each.values for each in every_value("ab", "xyz") if not each.marks]
    [('a', 'x'), ('b', 'y'), ('a', 'z')]
    """
    rows = range(max(map(len, axes)))
    usual = {
        # Axes of the same length would meet in the same pairs only: each time round, a shorter one is shifted.
        tuple((row + shift * (row // len(axis))) % len(axis) for shift, axis in enumerate(axes))
        for row in rows
    }
    return [
        parameter(tuple(axis[index] for axis, index in zip(axes, indices, strict=True)), indices not in usual)
        for indices in itertools.product(*(range(len(axis)) for axis in axes))
    ]


def thirds(values: Sequence[Any]) -> list:
    """Each of ``values`` with 0, 1 and 2; ``make test`` runs one of the three, each with every third value."""
    return [
        parameter((value, part), place % 3 != part) for place, value in enumerate(values) for part in range(3)
    ]
