"""Live cache objects of transformers and minikv, recognised by the names of their classes.

Neither package is imported: a process without transformers holds none of its caches.
"""

import gc
from dataclasses import asdict, dataclass
from typing import Any

from minikv.i18n import text
from minikv.memory.retention.plain import module_of, mro, name_of
from minikv.memory.retention.walk import Wanted, paths_from
from minikv.units import exact_bytes


@dataclass(frozen=True)
class CacheFound:
    """A cache that reaches new storages: its class, their bytes, and whether only the call's result holds it."""

    kind: str
    nbytes: int
    storages: int
    in_result: bool

    def text(self, lang: str = "en") -> str:
        """One line."""
        key = "retention.cache_in_result" if self.in_result else "retention.cache_kept"
        return text(key, lang, kind=self.kind, size=exact_bytes(self.nbytes), storages=self.storages)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def cache_kind(item: Any) -> str | None:
    """The class's name if ``item`` is a cache of transformers or minikv."""
    for base in mro(type(item)):
        name, module = name_of(base), module_of(base)
        theirs = name == "Cache" and module == "transformers.cache_utils"
        if theirs or (name.endswith("KVCache") and module.startswith("minikv.cache.")):
            return name_of(type(item))
    return None


def find_caches(wanted: Wanted, sizes: dict[int, int]) -> list[tuple[str, frozenset[int]]]:
    """Each live cache with the storages in ``wanted`` that it reaches; of nested caches only the outer one."""
    known: dict[type, bool] = {}
    reached: list[tuple[str, frozenset[int]]] = []
    for item in gc.get_objects():
        kind = type(item)
        if kind not in known:
            known[kind] = cache_kind(item) is not None
        if known[kind]:
            keys = frozenset(paths_from(item, wanted))
            if keys:
                reached.append((name_of(kind), keys))
    reached.sort(key=lambda pair: -sum(sizes[key] for key in pair[1]))
    outer: list[tuple[str, frozenset[int]]] = []
    for name, keys in reached:
        if not any(keys < other for _, other in outer):
            outer.append((name, keys))
    return outer
