"""Stand-ins for the libraries that draw, so that a lesson's cells run where they are not installed.

Widgets keep their traits and answer ``text()`` as ever; figures swallow what they are told. Nothing is drawn, and
no figure of a lesson depends on it.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tools.gpu.sources import installed

# Not ipywidgets and IPython: who imports them asks about them, and a stand-in would answer wrongly.
DRAWING = ("anywidget", "traitlets", "plotly")


def stand_in() -> list[str]:
    """Put a stand-in where a drawing library is missing, and return the names of those libraries."""
    missing = [name for name in DRAWING if not installed(name)]
    if missing:
        sys.meta_path.insert(0, _Finder(missing))
    return missing


class _Finder:
    """Answers for the missing libraries and every module below them."""

    def __init__(self, names: list[str]):
        self.names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.split(".")[0] not in self.names:
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        top = spec.name.split(".")[0]
        module = _Drawing(spec.name) if top == "plotly" else ModuleType(spec.name)
        if top == "anywidget":
            module.AnyWidget = HasTraits  # type: ignore[attr-defined]
        elif top == "traitlets":
            module.validate, module.observe, module.HasTraits = validate, observe, HasTraits  # type: ignore
            # A class of its own for each kind: only the value that it starts from differs.
            kinds = {"Dict": dict, "List": list, "Int": int, "Float": float, "Unicode": str, "Bool": bool}
            for name, start in kinds.items():
                setattr(module, name, type(name, (Trait,), {"empty": start}))
            module.Any = Trait  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


class Trait:
    """One trait: a value that its widget's validators see before it changes, and its observers after."""

    empty: Callable[[], Any] = staticmethod(lambda: None)

    def __init__(self, default: Any = None, **settings: Any):
        self.default = default

    def tag(self, **labels: Any) -> "Trait":
        return self

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, widget: Any, owner: type | None = None) -> Any:
        if widget is None:
            return self
        kept = vars(widget).setdefault("_traits", {})
        if self.name not in kept:
            given = self.default
            kept[self.name] = type(given)(given) if isinstance(given, dict | list) else given
            if given is None:
                kept[self.name] = self.empty()
        return kept[self.name]

    def __set__(self, widget: Any, value: Any) -> None:
        old = self.__get__(widget)
        value = _ask(widget, "_validates", self.name, value)
        widget._traits[self.name] = value
        if value != old:
            change = {"name": self.name, "old": old, "new": value, "owner": widget, "type": "change"}
            for heard in _marked(widget, "_observes", self.name):
                heard(Change(change))


class Change(dict):
    """What an observer gets: fields by name or by key."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def validate(*names: str) -> Callable[[Any], Any]:
    return lambda method: _mark(method, "_validates", names)


def observe(*names: str, **settings: Any) -> Callable[[Any], Any]:
    return lambda method: _mark(method, "_observes", names)


def _mark(method: Any, kind: str, names: tuple[str, ...]) -> Any:
    setattr(method, kind, names)
    return method


def _marked(widget: Any, kind: str, name: str) -> list[Any]:
    """The widget's methods that asked to see trait ``name``; observers added later come last."""
    methods = [attribute for attribute in dir(type(widget)) if not attribute.startswith("__")]
    found = [getattr(widget, a) for a in methods if name in getattr(getattr(type(widget), a, None), kind, ())]
    later = vars(widget).get("_heard", []) if kind == "_observes" else []
    return found + [heard for names, heard in later if name in names]


def _ask(widget: Any, kind: str, name: str, value: Any) -> Any:
    for judge in _marked(widget, kind, name):
        value = judge(Change({"value": value, "owner": widget, "trait": name}))
    return value


class HasTraits:
    """What is asked of ``anywidget.AnyWidget``: traits in ``__init__``, ``observe``, ``send``, ``hold_sync``."""

    def __init__(self, *args: Any, **traits: Any):
        # As in traitlets: all values first, then the validators and observers see them together.
        kept = vars(self).setdefault("_traits", {})
        kept.update(traits)
        for name, value in traits.items():
            kept[name] = _ask(self, "_validates", name, value)
        for name in traits:
            change = {"name": name, "old": None, "new": kept[name], "owner": self, "type": "change"}
            for heard in _marked(self, "_observes", name):
                heard(Change(change))

    def observe(self, handler: Callable[..., Any], names: str | list[str]) -> None:
        listed = [names] if isinstance(names, str) else names
        vars(self).setdefault("_heard", []).append((listed, handler))

    def send(self, *args: Any, **kwargs: Any) -> None:
        pass

    def on_msg(self, *args: Any, **kwargs: Any) -> None:
        pass

    @contextmanager
    def hold_sync(self) -> Iterator[None]:
        yield

    hold_trait_notifications = hold_sync


class _Drawing(ModuleType):
    """A module in which every name is a figure."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Figure


class Figure:
    """A figure that takes everything and shows nothing."""

    def __init__(self, *args: Any, **kwargs: Any):
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Figure()

    def __call__(self, *args: Any, **kwargs: Any) -> "Figure":
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __repr__(self) -> str:
        return "(a figure, not drawn)"
