"""The holders of each storage that a call left alive: joins the search up with the search down."""

import gc
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from minikv.memory.retention.live import GRAD, Live
from minikv.memory.retention.names import Holder, chain, holder_of
from minikv.memory.retention.plain import name_of
from minikv.memory.retention.release import Cuts
from minikv.memory.retention.roots import Root, Search
from minikv.memory.retention.walk import Wanted, paths_from

AT_ONCE, MOST_ROUNDS = 64, 32  # storages that a search starts from, and searches
MOST_HOLDERS = 8
ORDER = "error output local global class widget comm ipython measured library array loose unseen".split()


@dataclass(frozen=True)
class KeptStorage:
    """One storage: its bytes, the largest tensor on it, the number of Python's tensors on it, and their holders."""

    nbytes: int
    device: str
    dtype: str
    shape: tuple[int, ...]
    tensors: int
    holders: tuple[Holder, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "nbytes": self.nbytes,
            "device": self.device,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "tensors": self.tensors,
            "holders": [holder.as_dict() for holder in self.holders],
        }


def described(live: Live, holders: tuple[Holder, ...]) -> KeptStorage:
    """The figures of a live storage, without references to it."""
    tensors = sum(isinstance(item, torch.Tensor) for item in live.objects)
    return KeptStorage(live.nbytes, str(live.device), live.dtype, live.shape, tensors, holders)


def wanted_in(found: dict[int, Live]) -> Wanted:
    """The objects that keep the storages of ``found``: their tensors, and tensors with graphs that saved them."""
    wanted: Wanted = {}
    for key, live in found.items():
        for item in live.objects:
            wanted.setdefault(id(item), []).append((key, None))
        for owner, node in live.saved:
            if node != GRAD:  # the search below a tensor finds its gradient anyway
                wanted.setdefault(id(owner), []).append((key, node))
    return wanted


def find_holders(found: dict[int, Live], measured: Callable[[], Any]) -> tuple[KeptStorage, ...]:
    """Every storage of ``found`` with its holders, the largest first. ``found`` is empty afterwards."""
    wanted = wanted_in(found)
    plain = {key: described(live, ()) for key, live in found.items()}
    objects = {key: [*live.objects, *(owner for owner, _ in live.saved)] for key, live in found.items()}
    found.clear()  # its lists refer to the tensors: they would be found as holders
    holders: dict[int, list[Holder]] = {key: [] for key in plain}
    order = sorted(plain, key=lambda key: -plain[key].nbytes)
    if plain:
        search = Search(measured, ignore=(objects, *objects.values()))
        left, cuts = order, Cuts()
        for _ in range(MOST_ROUNDS):
            some = left[:AT_ONCE]
            with torch._C.DisableTorchFunction():
                _search(search, [item for key in some for item in objects[key]], wanted, holders, cuts)
            left = [key for key in left[AT_ONCE:] if not holders[key]]
            if not left:
                break
    unseen = Holder("unseen", "", "", "")
    kept = [replace(plain[key], holders=_best(holders[key]) or (unseen,)) for key in order]
    return tuple(sorted(kept, key=in_order))


def in_order(storage: KeptStorage) -> tuple[Any, ...]:
    """The sort key: largest first, equal sizes by path, with layers[2] before layers[10]."""
    path = storage.holders[0].path if storage.holders else ""
    parts = re.split(r"([0-9]+)", path)
    return (
        -storage.nbytes,
        [(int(part), "") if part.isdecimal() else (-1, part) for part in parts],
        storage.shape,
    )


def _search(
    search: Search, targets: list[Any], wanted: Wanted, holders: dict[int, list[Holder]], cuts: Cuts
) -> None:
    ids = {id(item) for item in targets}
    _record(search.roots(targets), wanted, holders, cuts)
    bare = _bare(targets, wanted, holders)
    if bare:
        arrays, around = arrays_on(bare, search) if "numpy" in sys.modules else ([], [])
        ends = search.loose_ends(ids)
        search.own |= {id(arrays), id(around), id(ends)}
        roots = search.roots([*arrays, *around]) if arrays else []
        _record(roots, wanted, holders, cuts)
        for kind, items in (("array", arrays), ("loose", ends)):
            left = {
                key
                for item in _bare(targets, wanted, holders)
                for key, _ in wanted.get(id(item), ())
                if not holders[key]
            }
            for item in items:
                name = "array" if kind == "array" else name_of(type(item))
                for key, path in paths_from(item, wanted).items():
                    if key in left:
                        holders[key].append(Holder(kind, chain(name, path), "", ""))


def _bare(targets: list[Any], wanted: Wanted, holders: dict[int, list[Holder]]) -> list[Any]:
    """The targets with storages that have no holder so far."""
    return [item for item in targets if not all(holders[key] for key, _ in wanted.get(id(item), ()))]


def _record(roots: list[Root], wanted: Wanted, holders: dict[int, list[Holder]], cuts: Cuts) -> None:
    for root in roots:
        for key, path in paths_from(root.held, wanted).items():
            holder = holder_of(root, path, key, wanted, cuts)
            if holder not in holders[key]:
                holders[key].append(holder)


def _best(holders: list[Holder]) -> tuple[Holder, ...]:
    """The holders to report, short paths first. The function itself and variables of libraries count only where the
    storage has no other holder, and a closure only where its variable is not named."""
    others = [holder for holder in holders if holder.kind not in ("measured", "library")] or holders
    inner = tuple(f"(): {holder.path}" for holder in others if holder.kind in ("local", "global"))
    others = [holder for holder in others if not holder.path.endswith(inner)] or others
    return tuple(sorted(others, key=lambda one: (ORDER.index(one.kind), len(one.path)))[:MOST_HOLDERS])


def arrays_on(targets: list[Any], search: Search) -> tuple[list[Any], list[Any]]:
    """The NumPy arrays that ``tensor.numpy()`` made of ``targets``, and arrays of objects that hold one of them, or
    hold something that the search met above one. The collector does not list arrays, so one pass over everything that
    it lists finds the arrays that something refers to. The second list has dicts and tuples that the collector does
    not list either, because they hold nothing but arrays."""
    array = sys.modules["numpy"].ndarray
    base_of, type_of, items_of = (vars(array)[name].__get__ for name in ("base", "dtype", "flat"))
    ids = {id(item) for item in targets}
    found: dict[int, Any] = {}
    around: dict[int, Any] = {}
    for item in gc.get_objects():
        inner = [(held, item) for held in gc.get_referents(item)]
        while inner:
            held, owner = inner.pop()
            if type(held) in (dict, tuple) and not gc.is_tracked(held):
                inner += [(below, held) for below in gc.get_referents(held)]
            if not issubclass(type(held), array):
                continue
            base = held
            while issubclass(type(base), array):
                base = base_of(base)
            objects = items_of(held) if type_of(held).hasobject else ()
            if id(base) in ids or any(id(one) in search.seen for one in objects):
                found[id(held)] = held
                if not gc.is_tracked(owner):
                    around[id(owner)] = owner
    return list(found.values()), list(around.values())
