"""Who holds each storage that a call left alive: the searches up and down, put together."""

import gc
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from minikv.memory.retention_live import Live
from minikv.memory.retention_names import Holder, chain, holder_of
from minikv.memory.retention_roots import Root, Search
from minikv.memory.retention_walk import Wanted, paths_from

AT_ONCE, MOST_ROUNDS = 64, 32  # storages a search starts from, and searches
MOST_HOLDERS = 8
ORDER = "error output local global class widget comm ipython measured array loose unseen".split()


@dataclass(frozen=True)
class KeptStorage:
    """One storage: its bytes, the largest tensor on it, how many tensors Python has on it, and who holds them."""

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
    """The plain figures of a live storage."""
    tensors = sum(isinstance(item, torch.Tensor) for item in live.objects)
    return KeptStorage(live.nbytes, str(live.device), live.dtype, live.shape, tensors, holders)


def wanted_in(found: dict[int, Live]) -> Wanted:
    """The objects that keep the storages of ``found``: those on them, and the tensors whose graphs saved them."""
    wanted: Wanted = {}
    for key, live in found.items():
        for item in live.objects:
            wanted.setdefault(id(item), []).append((key, None))
        for owner, node in live.saved:
            wanted.setdefault(id(owner), []).append((key, node))
    return wanted


def find_holders(found: dict[int, Live], measured: Callable[[], Any]) -> tuple[KeptStorage, ...]:
    """Every storage of ``found`` with its holders, the largest first. ``found`` is empty afterwards."""
    wanted = wanted_in(found)
    plain = {key: described(live, ()) for key, live in found.items()}
    objects = {key: [*live.objects, *(owner for owner, _ in live.saved)] for key, live in found.items()}
    found.clear()  # its lists refer to the tensors, and would be found as holders
    holders: dict[int, list[Holder]] = {key: [] for key in plain}
    order = sorted(plain, key=lambda key: -plain[key].nbytes)
    if plain:
        search = Search(measured, ignore=(objects, *objects.values()))
        left = order
        for _ in range(MOST_ROUNDS):
            some = left[:AT_ONCE]
            with torch._C.DisableTorchFunction():
                _search(search, [item for key in some for item in objects[key]], wanted, holders)
            left = [key for key in left[AT_ONCE:] if not holders[key]]
            if not left:
                break
    unseen = Holder("unseen", "", "", "")
    kept = [replace(plain[key], holders=_best(holders[key]) or (unseen,)) for key in order]
    return tuple(sorted(kept, key=in_order))


def in_order(storage: KeptStorage) -> tuple[Any, ...]:
    """The largest first, equal ones by their paths, in which layers[2] comes before layers[10]."""
    path = storage.holders[0].path if storage.holders else ""
    parts = re.split(r"([0-9]+)", path)
    return (
        -storage.nbytes,
        [(int(part), "") if part.isdecimal() else (-1, part) for part in parts],
        storage.shape,
    )


def _search(search: Search, targets: list[Any], wanted: Wanted, holders: dict[int, list[Holder]]) -> None:
    ids = {id(item) for item in targets}
    keys = {key for here in ids for key, _ in wanted[here]}
    _note(search.roots(targets), wanted, holders)
    bare = [item for item in targets if not all(holders[key] for key, _ in wanted[id(item)])]
    if bare:
        _note(
            [Root("loose", type(item).__name__, "", item) for item in search.loose_ends(ids)], wanted, holders
        )
    bare = [item for item in targets if not all(holders[key] for key, _ in wanted[id(item)])]
    arrays = arrays_on(bare) if bare and "numpy" in sys.modules else []
    if arrays:
        search.own.add(id(arrays))
        _note(search.roots(arrays), wanted, holders)
        for array in arrays:
            for key, path in paths_from(array, wanted).items():
                if not holders[key]:
                    holders[key].append(Holder("array", chain("array", path), "", ""))
    assert keys <= holders.keys()


def _note(roots: list[Root], wanted: Wanted, holders: dict[int, list[Holder]]) -> None:
    for root in roots:
        for key, path in paths_from(root.held, wanted).items():
            holder = holder_of(root, path)
            if holder not in holders[key]:
                holders[key].append(holder)


def _best(holders: list[Holder]) -> tuple[Holder, ...]:
    """The function itself counts only where nobody else holds the storage; short paths come first."""
    others = [holder for holder in holders if holder.kind != "measured"] or holders
    return tuple(sorted(others, key=lambda one: (ORDER.index(one.kind), len(one.path)))[:MOST_HOLDERS])


def arrays_on(targets: list[Any]) -> list[Any]:
    """The NumPy arrays that ``tensor.numpy()`` made of ``targets``. The collector does not list arrays: one pass over
    everything that it does list finds those that something refers to."""
    numpy = sys.modules["numpy"]
    ids = {id(item) for item in targets}
    found: dict[int, Any] = {}
    for item in gc.get_objects():
        for held in gc.get_referents(item):
            if issubclass(type(held), numpy.ndarray):
                base = held
                while issubclass(type(base), numpy.ndarray):
                    base = base.base
                if id(base) in ids:
                    found[id(held)] = held
    return list(found.values())
