"""From tensors up to the variables that keep them alive, over the references that the garbage collector knows.

``gc.get_referrers`` alone misleads in four ways. A running function is no referrer of its locals: their frames are
read. The search's own containers are referrers: they are skipped. A NumPy array is unknown to the collector: arrays are
searched separately. Objects under ``gc.freeze()`` are left out: the report says so.
"""

import gc
import sys
import threading
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

from minikv.memory.retention.plain import (
    module_of,
    mro,
    name_of,
    of_library,
    own_dict,
    qualname_of,
    space_of,
)
from minikv.memory.retention.walk import ATOMS, OWN_FILES, children, locals_of

DEEPEST, BEYOND_FIRST = 60, 8  # levels in all, and levels beyond the first variable found
MOST_ROOTS, MOST_SEEN = 16, 20_000
WIDEST = 400  # objects of one call of ``gc.get_referrers``
OUTPUTS = ("Out", "_oh")
Name = tuple[str, str, str, str]  # kind, name, where, code


@dataclass(frozen=True, eq=False, slots=True)
class Root:
    """A variable at the top of a chain of references. ``kind`` is a key of messages/retention.toml.

    ``code``: the Python expression of the variable, "" where no code can reach it.
    """

    kind: str
    name: str
    where: str
    code: str
    held: Any


class Search:
    """One search, over the variables as they are now. It keeps objects alive, so it must not be kept."""

    def __init__(self, measured: Any, ignore: tuple[Any, ...]):
        self.variables: dict[int, list[Name]] = {}
        self.spaces: set[int] = set()
        self.own = {id(item) for item in ignore}
        self.seen: dict[int, Any] = {}
        self._add_modules()
        self._add_frames()
        self.variables[id(measured)] = [("measured", "fn", "", "")]  # by this name, not the caller's

    def roots(self, targets: list[Any]) -> list[Root]:
        """The variables above ``targets``, the nearest first."""
        found: list[Root] = []
        names: set[Name] = set()
        level, first = targets, DEEPEST
        self.seen = {id(item): item for item in level}
        for depth in range(DEEPEST):
            for item in level:
                for name in map(_resolved, self.variables.get(id(item), ())):
                    if name not in names:
                        names.add(name)
                        found.append(Root(*name, item))
            # The caller's variable for the function itself ("measured") does not count as a first find.
            first = min(first, depth) if any(root.kind != "measured" for root in found) else first
            if not level or depth > first + BEYOND_FIRST or len(found) >= MOST_ROOTS:
                break
            above: list[Any] = []
            for item in self._referrers(level, above, found):
                space = self._space(item)
                if space is None:
                    self.seen[id(item)] = item
                    above.append(item)
                    continue
                for name, held in self._named(item, space):
                    if name not in names:
                        names.add(name)
                        found.append(Root(*name, held))
            level = above[:WIDEST] if len(self.seen) < MOST_SEEN else []
        return found

    def loose_ends(self, targets: set[int]) -> list[Any]:
        """The tops of chains without a variable: objects of the last search without referrers in it."""
        below = {id(child) for item in self.seen.values() for _, child in children(item) if child is not item}
        return [item for here, item in self.seen.items() if here not in below and here not in targets][
            :MOST_ROOTS
        ]

    def _referrers(self, level: list[Any], above: list[Any], found: list[Root]) -> list[Any]:
        skipped = self.own | {id(item) for item in (level, above, found, self.seen)}
        kept = []
        for item in gc.get_referrers(*level):
            kind = type(item)
            if id(item) in skipped or id(item) in self.seen or id(item) in self.spaces:
                continue
            if issubclass(kind, Root | Search | ModuleType):
                continue
            if issubclass(kind, FrameType) and item.f_code.co_filename.startswith(OWN_FILES):
                continue
            kept.append(item)
        return kept

    def _space(self, item: Any) -> str | None:
        """The kind of variables that ``item`` holds, where the search ends: "global", "class", "ipython" or None."""
        kind = type(item)
        if issubclass(kind, type):
            return "class"
        if issubclass(kind, dict) and (dict.__contains__(item, "__builtins__") or _of_module(item)):
            return "global"
        if any(name_of(base) in KEEPERS and module_of(base).startswith("IPython.") for base in mro(kind)):
            return "ipython"
        return None

    def _named(self, item: Any, kind: str) -> list[tuple[Name, Any]]:
        if kind == "class":
            pairs = list(space_of(item).items())
            where, kind = short(qualname_of(item)), "library" if of_library(module_of(item)) else kind
            return [
                ((kind, name, where, f"{where}.{name}"), held)
                for name, held in pairs
                if id(held) in self.seen
            ]
        if kind == "global":
            where = str(dict.get(item, "__name__", "exec"))
            pairs = [(name, held) for name, held in dict.items(item) if id(held) in self.seen]
            hidden = "__builtins__" not in item and where not in sys.modules
            return [(_variable(str(name), where, item, hidden), held) for name, held in pairs]
        return [
            ((kind, token[1], name_of(type(item)), ""), held)
            for token, held in children(item)
            if token[0] == "attr" and token[1] not in ("_trait_values", "user_ns") and id(held) in self.seen
        ]

    # -- the variables of this moment ----------------------------------------------------------------------------

    def _record(self, value: Any, name: Name) -> None:
        if not issubclass(type(value), ATOMS):
            self.variables.setdefault(id(value), []).append(name)

    def _add_modules(self) -> None:
        for where, module in list(sys.modules.items()):
            space = own_dict(module)
            if type(space) is not dict or not space or id(space) in self.spaces:
                continue
            self.spaces.add(id(space))
            for name, value in list(space.items()):
                self._record(value, ("module", name, where, ""))

    def _add_frames(self) -> None:
        mine = threading.get_ident()
        for thread, top in sys._current_frames().items():
            frame: FrameType | None = top
            while frame is not None:
                code = frame.f_code
                if code.co_qualname != "<module>":  # some IPythons call it "<cell line: 3>"
                    module = str(frame.f_globals.get("__name__", ""))
                    kind = "library" if of_library(module, code.co_filename) else "local"
                    for name, value in locals_of(frame).items():
                        typed = name if thread == mine else ""
                        self._record(value, (kind, name, short(code.co_qualname), typed))
                frame = frame.f_back
        del top  # this function's frame would hold itself, and the search with it


KEEPERS = ("InteractiveShell", "DisplayHook", "HistoryManager", "HistoryAccessor")


def _resolved(name: Name) -> Name:
    return _variable(name[1], name[2], own_dict(sys.modules.get(name[2]))) if name[0] == "module" else name


def _variable(name: str, where: str, space: dict[str, Any], hidden: bool = False) -> Name:
    """The name of a global, with its kind: IPython's outputs and Python's last error have kinds of their own."""
    if where == "sys" and name.startswith("last_"):
        return "error", f"sys.{name}", where, f"sys.{name}"
    numbered = name.strip("_") == "" or (name[0] == "_" and name[1:].isdigit())
    if "_oh" in space and (name in OUTPUTS or numbered):
        return "output", "Out" if name == "_oh" else name, where, name
    if where.startswith("ipywidgets") and name == "_instances":
        return "widget", name, where, ""
    if of_library(where):
        return "library", name, where, ""
    return "global", name, where, "" if hidden else name if where == "__main__" else f"{where}.{name}"


def _of_module(space: dict[str, Any]) -> bool:
    """Whether it is the namespace of a module, even of one that ``sys.modules`` does not list."""
    return all(dict.__contains__(space, name) for name in ("__name__", "__loader__", "__spec__"))


def short(qualname: str) -> str:
    """ "inner" for "outer.<locals>.inner"."""
    return qualname.rpartition("<locals>.")[2]
