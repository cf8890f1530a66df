"""retention_report: the storages that a call left alive, and the variables that hold them. Lesson 16."""

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from minikv.errors import ArgumentError
from minikv.i18n import pick_language, text
from minikv.memory.retention.cached_memory import CachedMemory, read_cached
from minikv.memory.retention.caches import CacheFound, find_caches
from minikv.memory.retention.holders import KeptStorage, described, find_holders, in_order, wanted_in
from minikv.memory.retention.live import LiveTensors, count, live_storages
from minikv.memory.retention.names import Holder, chain
from minikv.memory.retention.plain import name_of
from minikv.memory.retention.walk import paths_from
from minikv.memory.stats import MemoryStats, find_memory
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.units import exact_bytes, format_bytes

NAMED, LISTED = 3, 12  # holders named in the verdict; storages listed in the text


def verdict(report: "RetentionReport", lang: str) -> str:
    """The finding in one sentence, and what to do."""
    parts = []
    outcome = "result" if report.raised is None else "exception"
    if report.raised is not None:
        parts.append(_say("raised", lang, error=report.raised))
    if report.kept:
        holders = _distinct(report.kept)
        named = [holder.text(lang) for holder in holders[:NAMED]]
        if len(holders) > NAMED:
            named.append(_say("more", lang, count=len(holders) - NAMED))
        values = {"size": exact_bytes(report.kept_bytes), "count": len(report.kept)}
        parts.append(_say("kept", lang, **values, holders=_say("and", lang).join(named)))
        releases = list(dict.fromkeys(holder.release for holder in holders if holder.release))[:NAMED]
        if releases:
            every = {
                holder.release for storage in report.kept for holder in storage.holders if holder.release
            }
            key = "release" if len(every) <= len(releases) else "release_alike"
            parts.append(_say(key, lang, code="; ".join(releases)))
    elif report.result:
        parts.append(
            _say(f"{outcome}_only", lang, size=exact_bytes(report.result_bytes), path=_result_path(report))
        )
    else:
        parts.append(_say("nothing", lang))
    if report.kept and report.result:
        parts.append(
            _say(f"{outcome}_too", lang, size=exact_bytes(report.result_bytes), path=_result_path(report))
        )
    cached = report.cached
    if cached is not None and cached.returnable + cached.stuck:
        sizes = {"returnable": format_bytes(cached.returnable), "stuck": format_bytes(cached.stuck)}
        key = "cached_stuck" if cached.stuck else "cached"
        total = format_bytes(cached.returnable + cached.stuck)
        parts.append(_say(key, lang, total=total, **sizes, segments=cached.pinned_segments))
    return _say("between", lang).join(parts) + _say("stop", lang)


def shown_report(report: "RetentionReport", lang: str) -> Shown:
    """The verdict, the figures and the storages, one a line."""
    lines = []
    for key, live in (("before", report.before), ("after", report.after)):
        values = {"tensors": live.tensors, "storages": live.storages, "size": exact_bytes(live.nbytes)}
        lines.append(_say(key, lang, **values))
    if report.freed_bytes:
        lines.append(_say("freed", lang, size=exact_bytes(report.freed_bytes)))
    if report.cycle_bytes:
        lines.append(_say("cycles", lang, size=exact_bytes(report.cycle_bytes)))
    for key, storages in (("list_kept", report.kept), ("list_result", report.result)):
        if storages:
            lines.append(_say(key, lang))
            lines += [_line(storage, lang) for storage in storages[:LISTED]]
            if len(storages) > LISTED:
                rest = sum(storage.nbytes for storage in storages[LISTED:])
                lines.append(_say("rest", lang, count=len(storages) - LISTED, size=exact_bytes(rest)))
    lines += [cache.text(lang) for cache in report.caches]
    if report.device.startswith("cuda"):
        lines.append(_allocator(report, lang))
    if report.frozen and any(
        holder.kind == "unseen" for storage in report.kept for holder in storage.holders
    ):
        lines.append(_say("frozen", lang, count=report.frozen))
    return Shown(verdict(report, lang), lines=lines)


def _line(storage: "KeptStorage", lang: str) -> str:
    shape = "x".join(str(size) for size in storage.shape) or "-"
    names = _say("and", lang).join(holder.text(lang) for holder in storage.holders) or "-"
    values = {"size": f"{storage.nbytes:,}", "shape": shape, "dtype": storage.dtype, "device": storage.device}
    return _say("storage", lang, **values, holders=names)


def _allocator(report: "RetentionReport", lang: str) -> str:
    before, after = report.stats_before, report.stats_after
    return _say(
        "allocator",
        lang,
        allocated=exact_bytes(after.allocated),
        allocated_more=f"{after.allocated - before.allocated:+,}",
        reserved=exact_bytes(after.reserved),
        reserved_more=f"{after.reserved - before.reserved:+,}",
        split=exact_bytes(after.inactive_split or 0),
    )


def _distinct(storages: Iterable["KeptStorage"]) -> list[Holder]:
    """One holder for each variable, those with the most bytes first."""
    weights: dict[tuple[str, str, str], int] = {}
    first: dict[tuple[str, str, str], Holder] = {}
    for storage in storages:
        names = {(holder.kind, _variable(holder.path), holder.where): holder for holder in storage.holders}
        for name, holder in names.items():
            weights[name] = weights.get(name, 0) + storage.nbytes
            first.setdefault(name, holder)
    return [first[name] for name in sorted(weights, key=lambda name: -weights[name])]


def _variable(path: str) -> str:
    """ "cache" for "cache.layers[0].keys"; "sys.last_exc" as it is."""
    if path.startswith("sys."):
        return path.split(" ")[0]
    return path.split(".")[0].split("[")[0].split(" ")[0]


def _result_path(report: "RetentionReport") -> str:
    return next((holder.path for storage in report.result for holder in storage.holders), "result")


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"retention.{key}", lang, **values)


@dataclass(frozen=True)
class RetentionReport:
    """The storages that a call left alive, as figures and names: it keeps nothing alive. Sizes are bytes of storages.

    ``before`` and ``after``: all that was alive, ``after`` once the result was dropped and the garbage collected.
    ``kept``: storages of after that did not exist before, the largest first, each with its holders.
    ``result``: storages that only the result of the call (or the exception that it raised) kept.
    ``caches``: cache objects that reach storages of either. ``cycle_bytes``: freed only by ``gc.collect()``.
    ``freed_bytes``: storages of before that the call released. ``raised``: the exception, or None. ``cached``: the
    caching allocator's free memory afterwards, None on a CPU. ``frozen``: objects that ``gc.freeze()`` hides.
    """

    device: str
    before: LiveTensors
    after: LiveTensors
    kept: tuple[KeptStorage, ...]
    result: tuple[KeptStorage, ...]
    caches: tuple[CacheFound, ...]
    cycle_bytes: int
    freed_bytes: int
    raised: str | None
    stats_before: MemoryStats
    stats_after: MemoryStats
    cached: CachedMemory | None
    frozen: int

    @property
    def kept_bytes(self) -> int:
        """Bytes of all ``kept`` storages."""
        return sum(storage.nbytes for storage in self.kept)

    @property
    def result_bytes(self) -> int:
        """Bytes that are freed when the caller drops the result."""
        return sum(storage.nbytes for storage in self.result)

    def verdict(self, lang: str = "en") -> str:
        """One sentence."""
        return verdict(self, pick_language(lang))

    def shown(self, lang: str = "en") -> Shown:
        """The verdict, the figures, and every holder."""
        return shown_report(self, pick_language(lang))

    text = text_of
    _repr_html_ = html_of

    def __repr__(self) -> str:
        kept = f"{format_bytes(self.kept_bytes)} kept in {len(self.kept):,} storages"
        result = f"{format_bytes(self.result_bytes)} by the result alone"
        return one_line(
            "RetentionReport", self.device, kept, result, f"{format_bytes(self.freed_bytes)} freed"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, the English verdict among them."""
        return {
            "device": self.device,
            "before": vars(self.before).copy(),
            "after": vars(self.after).copy(),
            "kept": [storage.as_dict() for storage in self.kept],
            "kept_bytes": self.kept_bytes,
            "result": [storage.as_dict() for storage in self.result],
            "result_bytes": self.result_bytes,
            "caches": [cache.as_dict() for cache in self.caches],
            "cycle_bytes": self.cycle_bytes,
            "freed_bytes": self.freed_bytes,
            "raised": self.raised,
            "stats_before": self.stats_before.as_dict(),
            "stats_after": self.stats_after.as_dict(),
            "cached": None if self.cached is None else self.cached.as_dict(),
            "frozen": self.frozen,
            "verdict": self.verdict(),
        }


@dataclass(frozen=True)
class _New:
    """The new storages while the result still lived: figures, and weak marks of the storages."""

    marks: dict[int, StorageWeakRef]
    storages: dict[int, KeptStorage]
    in_result: frozenset[int]
    caches: list[tuple[str, frozenset[int]]]


def retention_report(fn: Callable[[], Any], *, device: torch.device | str | None = None) -> RetentionReport:
    """Call ``fn()``, drop its result, and report the torch storages that it left alive, with their holders.

    ``device`` chooses the storages that are counted and the ``MemoryStats``; None counts storages anywhere, with the
    figures of the current GPU, or of the CPU where there is none. Garbage is collected before and after. The report
    counts tensors that Python knows, their gradients and sparse parts, and what their autograd graphs saved. It does
    not count what C++ alone holds (a cuBLAS workspace): on CUDA that is the difference to ``stats_after.allocated``. A
    storage that existed before never counts as kept, even if it was resized. New tensors of other threads do count.

    An ``Exception`` of ``fn`` is reported (``raised``) in place of a result; storages that its traceback alone keeps
    count as the result's. Other exceptions, such as KeyboardInterrupt, reach the caller. Raises ``ArgumentError`` for
    what is no function, and for a device without figures.
    """
    if not callable(fn):
        raise ArgumentError("retention_not_callable", kind=type(fn).__name__)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    place = find_memory(default if device is None else device)
    only = None if device is None else place
    gc.collect()
    marks, before = _marks(only)
    stats_before = MemoryStats.read(place)
    outcome, raised = _call(fn)
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    with torch._C.DisableTorchFunction():
        new = _new(outcome, "result" if raised is None else "exception", marks, only)
    outcome = None
    at_once = {key for key, mark in new.marks.items() if mark.expired()}
    gc.collect()
    gone = {key for key, mark in new.marks.items() if mark.expired()}
    alone = at_once | (gone & new.in_result)
    live = live_storages(only)
    after = count(live)
    freed = sum(nbytes for mark, nbytes in marks.values() if mark.expired())
    fresh = {key: live.pop(key) for key in list(live) if key not in marks}
    live.clear()
    kept = find_holders(fresh, fn)
    return RetentionReport(
        device=str(place),
        before=before,
        after=after,
        kept=kept,
        result=tuple(sorted((new.storages[key] for key in alone), key=in_order)),
        caches=_caches(new, alone, gone),
        cycle_bytes=sum(new.storages[key].nbytes for key in gone - alone),
        freed_bytes=freed,
        raised=raised,
        stats_before=stats_before,
        stats_after=MemoryStats.read(place),
        cached=read_cached(place) if place.type == "cuda" else None,
        frozen=gc.get_freeze_count(),
    )


def _call(fn: Callable[[], Any]) -> tuple[Any, str | None]:
    try:
        return fn(), None
    except Exception as error:
        return error, _told(error)


def _told(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its own __str__ fails: show its class alone
        return name_of(type(error))


def _marks(only: torch.device | None) -> tuple[dict[int, tuple[StorageWeakRef, int]], LiveTensors]:
    found = live_storages(only)
    return {key: (live.mark, live.nbytes) for key, live in found.items()}, count(found)


def _new(outcome: Any, name: str, marks: dict[int, Any], only: torch.device | None) -> _New:
    """The storages that did not exist before, while ``outcome`` is alive."""
    found = {key: live for key, live in live_storages(only).items() if key not in marks}
    wanted = wanted_in(found)
    paths = {
        key: Holder("result", chain(name, path), "", "") for key, path in paths_from(outcome, wanted).items()
    }
    sizes = {key: live.nbytes for key, live in found.items()}
    return _New(
        marks={key: live.mark for key, live in found.items()},
        storages={key: described(live, (paths[key],) if key in paths else ()) for key, live in found.items()},
        in_result=frozenset(paths),
        caches=find_caches(wanted, sizes),
    )


def _caches(new: _New, alone: set[int], gone: set[int]) -> tuple[CacheFound, ...]:
    """The caches that are not garbage: those of the result, and those that stay."""
    told = []
    for kind, keys in new.caches:
        lasting = keys - (gone - alone)
        if lasting:
            nbytes = sum(new.storages[key].nbytes for key in lasting)
            told.append(CacheFound(kind, nbytes, len(lasting), in_result=lasting <= alone))
    return tuple(told)
