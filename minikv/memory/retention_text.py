"""What a RetentionReport says: one sentence, and the whole of it."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from minikv.i18n import text
from minikv.memory.retention_names import Holder
from minikv.shown import Shown
from minikv.units import exact_bytes, format_bytes

if TYPE_CHECKING:
    from minikv.memory.retention import RetentionReport
    from minikv.memory.retention_holders import KeptStorage

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
