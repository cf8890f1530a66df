"""``snapshot(x)``: everything that a pool or a manager remembers, as plain data that can be compared later."""

from array import array
from collections import OrderedDict

import numpy as np

PLAIN = (int, float, str, bytes, type(None))


def snapshot(thing):
    """Two snapshots are equal exactly if nothing has changed in between, private fields and free lists included."""
    return _freeze(thing, {})


def _freeze(thing, seen: dict):
    if isinstance(thing, PLAIN):
        return thing
    if isinstance(thing, np.ndarray):
        return "ndarray", thing.shape, str(thing.dtype), thing.tobytes()
    if isinstance(thing, array):
        return "array", thing.typecode, thing.tobytes()
    if isinstance(thing, tuple):
        return "tuple", [_freeze(item, seen) for item in thing]
    if id(thing) in seen:  # the tables name the sequences, and so does the book
        return "seen", seen[id(thing)]
    seen[id(thing)] = len(seen)
    if isinstance(thing, OrderedDict):  # in a pool the order decides what is evicted
        return "ordered", [(_freeze(key, seen), _freeze(value, seen)) for key, value in thing.items()]
    if isinstance(thing, dict):
        items = sorted(thing.items(), key=lambda item: repr(item[0]))
        return "dict", [(_freeze(key, seen), _freeze(value, seen)) for key, value in items]
    if isinstance(thing, set | frozenset):
        return "set", sorted(map(repr, thing))
    if isinstance(thing, list):
        return "list", [_freeze(item, seen) for item in thing]
    names = list(getattr(thing, "__dict__", {}))
    for part in type(thing).__mro__:
        slots = getattr(part, "__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    assert names, f"a snapshot would not see into {type(thing)}"
    return type(thing).__name__, [(name, _freeze(getattr(thing, name), seen)) for name in sorted(names)]
