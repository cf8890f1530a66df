"""The memory monitor: a device's bytes by kind, now and over time. The figures are ``MemoryReport``'s."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minikv.course.widgets.base import script, style
from minikv.course.widgets.history import History, Point
from minikv.course.widgets.monitor import Monitor
from minikv.course.widgets.monitor_chart import draw_chart
from minikv.course.widgets.parts import LOOKS, stacked
from minikv.course.widgets.ticker import Clock
from minikv.engine.memory_report import MemoryReport
from minikv.i18n import pick_language, text
from minikv.memory.stats import MemoryStats, find_memory
from minikv.units import format_bytes

if TYPE_CHECKING:
    from minikv.engine.llm import LLM

TABLE = "widgets_monitor"
FREE = "headroom"
KNOWN = ("weights", "buffers", "kv", "padding")  # kinds that only an LLM's report knows


@dataclass(frozen=True)
class MemorySeen:
    """``parts``: bytes by kind now, the free ones last. ``points`` and ``peak``: the used bytes over time."""

    parts: dict[str, int]
    points: tuple[Point, ...]
    peak: Point


class WatchedMemory:
    """The memory of ``device``, or of the device of ``llm``, in that LLM's own parts.

    ``report()`` reads it; ``clock`` returns seconds. Raises ``ArgumentError`` for a device without memory to read.
    """

    def __init__(self, device: Any, llm: "LLM | None", clock: Callable[[], float] = time.monotonic):
        self._llm = llm
        self.device = str(find_memory(device) if llm is None else llm.memory_report().stats.device)
        self._name = "CPU" if self.device == "cpu" else self.device
        self._clock, self._history, self._turn = clock, History(), threading.Lock()

    def look(self) -> MemorySeen:
        parts = self._parts()
        used = {kind: size for kind, size in parts.items() if kind != FREE}
        with self._turn:
            self._history.add(self._clock(), used)
            peak = self._history.peak
            assert peak is not None
            return MemorySeen(parts, tuple(self._history.points), peak)

    def form(self, lang: str) -> dict[str, Any]:
        return {
            "title": _say("memory_title", lang, device=self._name),
            "columns": ["", _say("column_kind", lang), _say("column_size", lang), _say("column_bytes", lang)],
        }

    def draw(self, seen: MemorySeen, lang: str) -> dict[str, Any]:
        used = sum(size for kind, size in seen.parts.items() if kind != FREE)
        # If NVML stops answering, the bytes of "others" are in "not_torch" from then on.
        kinds = dict.fromkeys(
            kind for values in (seen.parts, *(one.values for one in seen.points)) for kind in values
        )
        looks = {kind: LOOKS[kind] for kind in kinds if kind != FREE}
        return {
            **stacked(
                seen.parts,
                f"{TABLE}.kind_",
                lang,
                name=self._name,
                aria=f"{TABLE}.memory_bar",
                write=format_bytes,
                total_text=format_bytes,
            ),
            "chart": draw_chart(seen.points, looks, f"{TABLE}.kind_", format_bytes, lang),
            "status": _say(
                "memory_status",
                lang,
                used=format_bytes(used),
                free=format_bytes(seen.parts[FREE]),
                peak=format_bytes(seen.peak.total),
                seconds=seen.peak.seconds,
            ),
        }

    def text(self, seen: MemorySeen, lang: str) -> str:
        kinds = _say("joint", lang).join(_say(f"kind_{kind}", lang) for kind in seen.parts)
        return _say("memory_text", lang, device=self._name, kinds=kinds)

    def close(self) -> None:
        self._llm = None

    def _parts(self) -> dict[str, int]:
        """Return the bytes by kind. A remainder below 0, from a late count of the system, is shown as 0."""
        if self._llm is not None:
            report = self._llm.memory_report()
        else:
            report = MemoryReport(
                model="",
                stats=MemoryStats.read(self.device),
                weight_bytes=0,
                absent_bytes=0,
                buffer_bytes=0,
                kv_bytes=0,
                padding_bytes=0,
            )
        parts = {kind: max(0, size) for kind, size in report.parts().items()}
        if self._llm is None:
            parts = {
                ("process" if kind == "rest" else kind): size
                for kind, size in parts.items()
                if kind not in KNOWN
            }
        return parts


class MemoryMonitor(Monitor):
    """See ``minikv.course.monitor.memory``."""

    _esm = script(
        "bar.js",
        "form.js",
        "buttons.js",
        "readout.js",
        "live.js",
        "parts.js",
        "chart.js",
        "monitor_memory.js",
    )
    _css = style()

    def __init__(self, device: Any, llm: "LLM | None", lang: str, hz: float, clock: Clock | None = None):
        super().__init__(WatchedMemory(device, llm), lang, hz, clock)

    def summary(self, lang: str | None = None) -> str:
        """The figures of the last look as lines, for a cell with the tag ``hardware``."""
        lang = self._lang if lang is None else pick_language(lang)
        view = self._watched.draw(self._seen, lang)
        lines = [f"  {row['label']}: {row['text']} ({row['exact']} B)" for row in view["rows"]]
        return "\n".join([self._watched.form(lang)["title"], *lines, view["status"]])


def _say(key: str, lang: str, **values: object) -> str:
    return text(f"{TABLE}.{key}", lang, **values)
