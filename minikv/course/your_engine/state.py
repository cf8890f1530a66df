"""State: the objects that a call of a part can change, copied before and after it, restored, and compared.

Nano keeps its state in four classes; their attributes are numbers, lists, dictionaries and tensors. So a copy of each
attribute is enough, and the objects keep their identity: other parts of nano refer to them.
"""

import sys
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

from minikv.nano.block_manager import BlockManager
from minikv.nano.scheduler import Scheduler
from minikv.nano.sequence import Sequence

_CONTAINERS = (list, deque, dict, OrderedDict)

# name -> (the object, its content); a content is kept as (the value itself, its copy).
Taken = dict[str, tuple[Any, Any]]


class State:
    """All objects that the arguments of a call lead to, by the learner's names: "seq", "self.blocks", "step"."""

    def __init__(self, arguments: Mapping[str, Any]):
        self._things: dict[str, Any] = {}
        self._seen: set[int] = set()
        for name, value in arguments.items():
            self._find(name, value)

    def _find(self, name: str, value: Any) -> None:
        if id(value) in self._seen:
            return
        kind = type(value)
        if kind in _CONTAINERS or _is_tensor(value):
            self._things[name] = value
            self._seen.add(id(value))
            if kind is list:
                self._find_items(name, value)
        elif kind is tuple:
            self._find_items(name, value)
        elif isinstance(value, (BlockManager, Scheduler, Sequence)) or kind.__module__.startswith(
            "minikv.nano."
        ):
            self._seen.add(id(value))
            if kind.__name__ != "SamplingParams":  # frozen, and of numbers
                self._things[name] = value
                self._find_inside(name, value)

    def _find_inside(self, name: str, value: Any) -> None:
        if isinstance(value, Scheduler):
            self._find(f"{name}.blocks", value.blocks)
            for seq in (*value.running, *value.waiting):
                self._find(f"request {seq.id}", seq)
        elif type(value).__name__ == "Batch":
            for field, held in vars(value).items():
                self._find(f"{name}.{field}", held)

    def _find_items(self, name: str, items: Any) -> None:
        if items and type(items[0]) is not int:
            for index, item in enumerate(items):
                self._find(f"request {item.id}" if isinstance(item, Sequence) else f"{name}[{index}]", item)

    def take(self) -> Taken:
        """Copy the present state."""
        taken: Taken = {}
        for name, thing in self._things.items():
            if type(thing) in _CONTAINERS or _is_tensor(thing):
                taken[name] = thing, _copy(thing)
            else:
                taken[name] = thing, {key: (value, _copy(value)) for key, value in vars(thing).items()}
        return taken

    def put(self, taken: Taken) -> None:
        """Restore the state ``taken``."""
        for thing, content in taken.values():
            if type(thing) in _CONTAINERS or _is_tensor(thing):
                _put_back(thing, content)
                continue
            for value, copy in content.values():
                _put_back(value, copy)
            own: dict[str, Any] = thing.__dict__
            if any(own.get(key) is not value for key, (value, _) in content.items()) or len(own) != len(
                content
            ):
                own.clear()
                own.update({key: value for key, (value, _) in content.items()})


def first_difference(due: Taken, got: Taken) -> tuple[str, Any, Any] | None:
    """The first name at which the two differ, the right value, and the found one. Further attributes do not matter."""
    for name, (thing, content) in due.items():
        theirs = got[name][1]
        if type(thing) in _CONTAINERS or _is_tensor(thing):
            if not _same(content, theirs):
                return narrowed(name, content, theirs)
            continue
        for key, (_, value) in content.items():
            other = theirs[key][1] if key in theirs else None
            if not _same(value, other):
                return narrowed(f"{name}.{key}", _plain(value), _plain(other))
    return None


def narrowed(name: str, due: Any, got: Any) -> tuple[str, Any, Any]:
    """The difference at its first element, where the two are lists or tensors of one shape."""
    if _is_tensor(due) and _is_tensor(got) and due.shape == got.shape and due.dtype == got.dtype:
        far = (due - got).abs() > 1e-4 + 1e-3 * due.abs() if due.is_floating_point() else due != got
        places = (far if far.any() else due != got).nonzero()
        place = tuple(places[0].tolist()) if len(places) else ()
        return (
            f"{name}[{', '.join(map(str, place))}]" if place else name,
            due[place].item(),
            got[place].item(),
        )
    if type(due) is type(got) is list and len(due) == len(got):
        first = next(i for i, pair in enumerate(zip(due, got, strict=True)) if pair[0] != pair[1])
        return f"{name}[{first}]", due[first], got[first]
    return name, due, got


def content_at(taken: Taken, name: str) -> Any:
    """The content of ``name`` in ``taken``, a name of ``first_difference`` without the place inside."""
    if name not in taken and name.endswith("]"):
        name = name.rpartition("[")[0]
    if name in taken:
        return taken[name][1]
    thing, _, key = name.rpartition(".")
    return _plain(taken[thing][1][key][1])


def is_same(one: Any, other: Any) -> bool:
    """Whether two contents of the same name are equal."""
    return _same(one, other)


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if _is_tensor(one):
        alike = one.shape == other.shape and one.dtype == other.dtype
        return alike and bool(((one == other) | ((one != one) & (other != other))).all())  # NaN is NaN here
    if isinstance(one, OrderedDict):  # an ordered set: its values mean nothing
        return list(one) == list(other)
    return bool(one == other)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, OrderedDict | deque) else value


def _copy(value: Any) -> Any:
    if type(value) in _CONTAINERS:
        return value.copy()
    return value.clone() if _is_tensor(value) else value


def _put_back(value: Any, copy: Any) -> None:
    if type(value) is list:
        value[:] = copy
    elif type(value) in _CONTAINERS:
        value.clear()
        value.extend(copy) if type(value) is deque else value.update(copy)
    elif _is_tensor(value) and not _same(value, copy):
        value.copy_(copy)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
