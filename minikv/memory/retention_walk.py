"""From an object down to the tensors that it keeps alive, and the path between them as a person would write it."""

import gc
import sys
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import (
    AsyncGeneratorType,
    BuiltinMethodType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any

import torch

Token = tuple[str, Any]  # ("attr", "keys"), ("item", 0), ("frame", "generate"), ...

ATOMS = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    type,
    ModuleType,
    CodeType,
    torch.dtype,
    torch.device,
)
MOST_NODES = 300_000
OWN_FILES = __file__.rpartition("retention")[0] + "retention"
RUNNERS = GeneratorType | CoroutineType | AsyncGeneratorType


Wanted = dict[
    int, list[tuple[int, str | None]]
]  # id of an object: (storage, the autograd node that saved it)


def paths_from(root: Any, wanted: Wanted) -> dict[int, tuple[Token, ...]]:
    """The shortest path from ``root`` to each storage of ``wanted`` that it keeps alive.

    It passes through containers, attributes, closures, tracebacks and suspended generators, never through a class or
    a module, and gives up after ``MOST_NODES`` objects.
    """
    above: dict[int, tuple[int, Token]] = {id(root): (0, ("root", None))}
    found: dict[int, tuple[Token, ...]] = {}
    waiting, number = deque([root]), len({key for keys in wanted.values() for key, _ in keys})
    while waiting and len(above) < MOST_NODES and len(found) < number:
        item = waiting.popleft()
        for key, node in wanted.get(id(item), ()):
            if key not in found:
                found[key] = _path(above, id(item)) + ((("saved", node),) if node else ())
        for token, child in children(item):
            if id(child) not in above and not issubclass(type(child), ATOMS):
                above[id(child)] = (id(item), token)
                waiting.append(child)
    return found


def _path(above: dict[int, tuple[int, Token]], here: int) -> tuple[Token, ...]:
    tokens: list[Token] = []
    while above[here][0]:
        here, token = above[here]
        tokens.append(token)
    return tuple(reversed(tokens))


def children(item: Any) -> Iterator[tuple[Token, Any]]:
    """What ``item`` refers to, each with its name. No code of the object's own class runs."""
    if issubclass(type(item), ATOMS):
        return
    if issubclass(type(item), FrameType | TracebackType | RUNNERS):
        yield from _frames(item)
    elif issubclass(type(item), FunctionType):
        for name, cell in zip(item.__code__.co_freevars, item.__closure__ or (), strict=False):
            yield ("closure", (item.__qualname__, name)), cell
        yield from ((("default", item.__qualname__), value) for value in item.__defaults__ or ())
        yield from ((("default", item.__qualname__), value) for value in (item.__kwdefaults__ or {}).values())
        yield from _attributes(item)
    elif issubclass(type(item), MethodType | BuiltinMethodType):
        yield ("attr", "__self__"), item.__self__
        if issubclass(type(item), MethodType):
            yield ("attr", "__func__"), item.__func__
    elif issubclass(type(item), CellType):
        yield from ((("cell", None), value) for value in gc.get_referents(item))
    elif issubclass(type(item), partial):
        yield from ((("attr", name), getattr(item, name)) for name in ("func", "args", "keywords"))
    elif issubclass(type(item), BaseException):
        yield ("attr", "__traceback__"), item.__traceback__
        yield ("attr", "args"), item.args
        yield ("attr", "__cause__"), item.__cause__
        yield ("attr", "__context__"), item.__context__
        yield from _attributes(item)
    elif _is_array(item):
        yield ("base", None), item.base
        if item.dtype == object:
            yield from ((("item", index), value) for index, value in enumerate(item.ravel().tolist()))
    else:
        yield from _attributes(item)
        yield from _elements(item)
        yield from _hidden(item)


def _frames(item: Any) -> Iterator[tuple[Token, Any]]:
    if issubclass(type(item), TracebackType):
        yield ("frame", item.tb_frame.f_code.co_qualname), item.tb_frame
        yield ("attr", "tb_next"), item.tb_next
        return
    frame = item
    if not issubclass(type(item), FrameType):
        frame = (
            getattr(item, "gi_frame", None)
            or getattr(item, "cr_frame", None)
            or getattr(item, "ag_frame", None)
        )
    if frame is not None:
        yield from ((("local", name), value) for name, value in locals_of(frame).items())


def locals_of(frame: FrameType) -> dict[str, Any]:
    """The local variables of ``frame``, without leaving a copy of them behind; {} for a frame of this search.

    Before Python 3.13 ``frame.f_locals`` writes a dict that stays with the frame and keeps the values alive after
    the variables are gone: it is emptied again, unless somebody else (``locals()``, a debugger) holds it too.
    """
    if frame.f_code.co_filename.startswith(OWN_FILES):
        return {}
    seen = frame.f_locals
    values = dict(seen)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & 1 and sys.getrefcount(seen) <= 3:
        seen.clear()
    return values


def _attributes(item: Any) -> Iterator[tuple[Token, Any]]:
    try:
        own = object.__getattribute__(item, "__dict__")
    except Exception:  # there is none, or a property of that name refuses
        own = {}
    if issubclass(type(own), dict):
        for name, value in list(dict.items(own)):
            if name in ("_parameters", "_buffers", "_modules", "_trait_values") and type(value) is dict:
                yield from ((("attr", inner), held) for inner, held in list(value.items()))
            yield ("attr", name), value
    for kind in type(item).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            slot: Any = vars(kind).get(name)
            try:
                yield ("attr", name), slot.__get__(item, kind)
            except (AttributeError, TypeError):
                continue
    if issubclass(type(item), torch.Tensor) and item.is_leaf and item.grad is not None:
        yield ("attr", "grad"), item.grad


def _elements(item: Any) -> Iterator[tuple[Token, Any]]:
    if issubclass(type(item), dict):
        for key, value in list(dict.items(item)):
            yield ("item", key), value
            if not issubclass(type(key), ATOMS):
                yield ("key", None), key
    elif issubclass(type(item), list | tuple | deque):
        names = getattr(type(item), "_fields", None) if issubclass(type(item), tuple) else None
        if isinstance(names, tuple) and len(names) == len(item):
            yield from (
                (("attr", name), value) for name, value in zip(names, tuple.__iter__(item), strict=True)
            )
        else:
            yield from ((("item", index), value) for index, value in enumerate(list(item)))
    elif issubclass(type(item), set | frozenset):
        yield from ((("element", None), value) for value in list(item))


def _hidden(item: Any) -> Iterator[tuple[Token, Any]]:
    """What a type written in C holds without a name."""
    if not issubclass(type(item), dict | list | tuple | set | frozenset | torch.Tensor):
        yield from ((("inside", type(item).__name__), held) for held in gc.get_referents(item))


def _is_array(item: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(type(item), numpy.ndarray)
