"""Stands in the browser for anywidget and traitlets, which notebooks need: a widget's values, without a notebook."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class AnyWidget:
    """Keeps the values that it is made with."""

    def __init__(self, **values: Any):
        self.__dict__.update(values)

    def hold_sync(self) -> AbstractContextManager[None]:
        """No message is sent."""
        return nullcontext()

    def on_msg(self, heard: Callable[..., Any]) -> None:
        """No message comes."""


class Dict:
    """A trait's place in a class."""

    def __init__(self, value: Any = None):
        self.value = value

    def tag(self, **metadata: Any) -> "Dict":
        return self


Int = List = Dict


def observe(*names: str) -> Callable[[Any], Any]:
    """Return the method as it is: nothing is observed here."""
    return lambda method: method


validate = observe
