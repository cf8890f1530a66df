"""Reads objects without running code of their classes: no property, no ``__getattr__``, no metaclass."""

import sys
from collections.abc import Iterator
from types import GetSetDescriptorType, MappingProxyType, MemberDescriptorType
from typing import Any

mro = type.__dict__["__mro__"].__get__
space_of = type.__dict__["__dict__"].__get__
DICTS = GetSetDescriptorType | MemberDescriptorType


def name_of(kind: type) -> str:
    """The class's name."""
    return str(type.__dict__["__name__"].__get__(kind))


def qualname_of(kind: type) -> str:
    """The class's name with the functions and classes around it."""
    return str(type.__dict__["__qualname__"].__get__(kind))


def module_of(kind: type) -> str:
    """The module of the class, "" where it hides it."""
    found = space_of(kind).get("__module__", "builtins")
    return found if type(found) is str else ""


def found_in(kind: type, name: str) -> Any:
    """The raw attribute ``name`` of the class or a base, without descriptors; None where there is none."""
    for base in mro(kind):
        space: MappingProxyType = space_of(base)
        if name in space:
            return space[name]
    return None


def own_dict(item: Any) -> dict[str, Any]:
    """The ``__dict__`` of an object, {} where it has none. A property of that name is skipped."""
    for base in mro(type(item)):
        entry = space_of(base).get("__dict__")
        if issubclass(type(entry), DICTS):
            try:
                own = entry.__get__(item)
            except (AttributeError, TypeError):
                continue
            return own if issubclass(type(own), dict) else {}
    return {}


def slots_of(item: Any) -> Iterator[tuple[str, Any]]:
    """The values in ``__slots__``, by the names of the attributes."""
    for base in mro(type(item)):
        space = space_of(base)
        slots = space.get("__slots__", ())
        if type(slots) not in (str, tuple, list, set, frozenset, dict):
            continue
        for name in (slots,) if type(slots) is str else tuple(slots):
            hidden = type(name) is str and name.startswith("__") and not name.endswith("__")
            stored = f"_{name_of(base).lstrip('_')}{name}" if hidden else name
            if type(slot := space.get(stored)) is MemberDescriptorType:
                try:
                    yield stored, slot.__get__(item)
                except (AttributeError, TypeError):
                    continue


KERNEL = frozenset(
    "IPython ipykernel ipywidgets anywidget traitlets comm tornado zmq jupyter_client jupyter_core debugpy "
    "nest_asyncio psygnal nbclient _pytest pluggy pytest".split()
)


def of_library(module: str, file: str = "") -> bool:
    """Whether code belongs to a library and not to the user: Python's own, the notebook's, or installed by pip."""
    top = module.partition(".")[0]
    return (
        top in KERNEL or top in sys.stdlib_module_names or "site-packages" in file or "dist-packages" in file
    )
