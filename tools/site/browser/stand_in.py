"""Stands in the browser for anywidget and traitlets, which notebooks need: a widget's values, without a notebook."""

from collections.abc import Callable
from typing import Any


class AnyWidget:
    """Keeps the values that it is made with."""

    def __init__(self, **values: Any):
        self.__dict__.update(values)


class Dict:
    """A trait's place in a class."""

    def tag(self, **metadata: Any) -> "Dict":
        return self


def observe(*names: str) -> Callable[[Any], Any]:
    """Return the method as it is: nothing is observed here."""
    return lambda method: method


validate = observe
