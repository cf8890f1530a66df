"""From an object down to the tensors that it keeps alive, with the path between them."""

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

from minikv.memory.retention.plain import found_in, name_of, own_dict, slots_of

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
TENSOR: Any = torch._C.TensorBase
RUNNERS = GeneratorType | CoroutineType | AsyncGeneratorType


# id of an object: (storage, the autograd node that saved it)
Wanted = dict[int, list[tuple[int, str | None]]]
Edge = tuple[frozenset[int], int]  # ids: the referrers, and the object that they refer to


def paths_from(root: Any, wanted: Wanted, without: Edge | None = None) -> dict[int, tuple[Token, ...]]:
    """The shortest path from ``root`` to each storage of ``wanted`` that it keeps alive.

    The search passes through containers, attributes, closures, tracebacks and suspended generators, never through a
    class or a module, and gives up after ``MOST_NODES`` objects. ``without`` is left out: the edges from some objects
    to another, as if they no longer held it.
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
            if without is not None and id(child) == without[1] and id(item) in without[0]:
                continue
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
    """The objects that ``item`` refers to, each with its name. No code of the object's own class runs."""
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
        yield from (
            (("attr", name), vars(partial)[name].__get__(item)) for name in ("func", "args", "keywords")
        )
        yield from _attributes(item)
    elif issubclass(type(item), BaseException):
        for name in ("__traceback__", "args", "__cause__", "__context__"):
            yield ("attr", name), vars(BaseException)[name].__get__(item)
        yield from _attributes(item)
    elif _is_array(item):
        array = vars(sys.modules["numpy"].ndarray)
        yield ("base", None), array["base"].__get__(item)
        if array["dtype"].__get__(item).hasobject:
            yield from ((("item", index), value) for index, value in enumerate(array["flat"].__get__(item)))
        yield from _attributes(item)
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
    the variables are gone. It is emptied again, unless something else (``locals()``, a debugger) holds it too.
    """
    if frame.f_code.co_filename.startswith(OWN_FILES):
        return {}
    seen = frame.f_locals
    values = dict(seen)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & 1 and sys.getrefcount(seen) <= 3:
        seen.clear()
    return values


def _attributes(item: Any) -> Iterator[tuple[Token, Any]]:
    for name, value in list(dict.items(own_dict(item))):
        if name in ("_parameters", "_buffers", "_modules", "_trait_values") and type(value) is dict:
            yield from ((("attr", inner), held) for inner, held in list(value.items()))
        yield ("attr", name), value
    yield from ((("attr", name), value) for name, value in slots_of(item))
    if issubclass(type(item), torch.Tensor) and (grad := grad_of(item)) is not None:
        yield ("attr", "grad"), grad


def grad_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The gradient of a tensor, read without a warning for a non-leaf."""
    kept = TENSOR.is_leaf.__get__(tensor) or TENSOR.retains_grad.__get__(tensor)
    return TENSOR.grad.__get__(tensor) if kept else None


def _elements(item: Any) -> Iterator[tuple[Token, Any]]:
    if issubclass(type(item), dict):
        for key, value in list(dict.items(item)):
            yield ("item", key), value
            if not issubclass(type(key), ATOMS):
                yield ("key", None), key
    elif issubclass(type(item), list | tuple | deque):
        base = next(kind for kind in (list, tuple, deque) if issubclass(type(item), kind))
        values: list[Any] = list(base.__iter__(item))
        names = found_in(type(item), "_fields") if base is tuple else None
        if type(names) is tuple and len(names) == len(values):
            yield from ((("attr", name), value) for name, value in zip(names, values, strict=True))
        else:
            yield from ((("item", index), value) for index, value in enumerate(values))
    elif issubclass(type(item), set | frozenset):
        kind = set if issubclass(type(item), set) else frozenset
        yield from ((("element", None), value) for value in list(kind.__iter__(item)))


def _hidden(item: Any) -> Iterator[tuple[Token, Any]]:
    """The objects that an object of a C type holds without a name."""
    if not issubclass(type(item), dict | list | tuple | set | frozenset | torch.Tensor):
        yield from ((("inside", name_of(type(item))), held) for held in gc.get_referents(item))


def _is_array(item: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(type(item), numpy.ndarray)
