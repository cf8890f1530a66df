"""The eviction monitor: the tokens that each layer of a model still has of its text, while ``generate`` runs.

It looks between two forwards: a lock is held during each forward and each look.
"""

import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from minikv.course.widgets.base import script, style
from minikv.course.widgets.heat_map_drawing import GONE, NOT_YET, SHADES
from minikv.course.widgets.history import History, Point
from minikv.course.widgets.monitor import Monitor
from minikv.course.widgets.monitor_chart import draw_chart
from minikv.course.widgets.monitor_evicting_llm import LOOKS, TOKENS, WatchedEvictingLLM
from minikv.course.widgets.table import figure_lines
from minikv.course.widgets.ticker import Clock
from minikv.engine.serve.fair_lock import FairLock
from minikv.eviction.hf.cache import evicting_layers
from minikv.eviction.hf.handle import EvictionHandle
from minikv.eviction.hf.install import eviction_of
from minikv.eviction.hf.layer import EvictingLayer
from minikv.eviction.hf.report import EvictionReport, eviction_report
from minikv.i18n import text

MAX_ROWS = 16  # layers drawn; a sentence counts the others
BINS = 64  # stretches of the text, of equal length


@dataclass(frozen=True)
class LayerSeen:
    """``seen`` tokens so far, ``resident`` of them in the cache; ``bins``: the resident share of each stretch."""

    layer: int
    seen: int
    resident: int
    bins: tuple[float, ...]


@dataclass(frozen=True)
class EvictionSeen:
    """``layers`` while the cache is alive, then the last ones seen; ``report`` is from now."""

    report: EvictionReport
    layers: tuple[LayerSeen, ...]
    width: int  # tokens in a stretch
    points: tuple[Point, ...]


class WatchedEviction:
    """``model`` with eviction installed, or its ``EvictionHandle``. Raises ``ArgumentError`` for one without."""

    def __init__(self, model: Any, clock: Callable[[], float] = time.monotonic):
        self._eviction = model if isinstance(model, EvictionHandle) else eviction_of(model)
        self._clock, self._history = clock, History()
        self._layers: tuple[LayerSeen, ...] = ()
        self._width = 1
        self._cache: Callable[[], Any] = lambda: None  # a weak reference to the cache that was looked at last
        first_look = weakref.WeakMethod(self._look_at_a_new_cache)
        self._gate = Gate(self._eviction.model, first_look)

    def look(self) -> EvictionSeen:
        with self._gate.lock:
            report = eviction_report(self._eviction)
            self._look_at_layers()
            return EvictionSeen(report, self._layers, self._width, tuple(self._history.points))

    def _look_at_a_new_cache(self) -> None:
        """Look after the first forward of a cache: a short ``generate`` is over before the next look."""
        if self._eviction.cache is not self._cache():
            self._look_at_layers()

    def _look_at_layers(self) -> None:
        cache = self._eviction.cache
        layers = [
            layer for layer in evicting_layers(cache) if layer.is_initialized and layer.cumulative_length
        ]
        if layers:
            self._cache = weakref.ref(cache)
            longest = max(layer.cumulative_length for layer in layers)
            self._width = max(1, -(-longest // BINS))
            self._layers = tuple(_layer(layer, self._width) for layer in layers)
        if self._layers:
            self._history.add(self._clock(), _mean(self._layers))

    def form(self, lang: str) -> dict[str, Any]:
        columns = ("layer", "resident", "peak", "bound", "evictions", "dropped")
        return {
            "title": _say("eviction_title", lang, policy=type(self._eviction.policy).__name__),
            "columns": [_say(f"column_{name}", lang) for name in columns],
            "map_aria": _say("map_aria", lang),
            "map_legend": [["shades", _say("map_kept", lang)], ["gone", _say("map_gone", lang)]],
        }

    def draw(self, seen: EvictionSeen, lang: str) -> dict[str, Any]:
        hidden = len(seen.layers) - MAX_ROWS
        return {
            "chart": draw_chart(seen.points, LOOKS, TOKENS, "{:,.0f}".format, lang) if seen.points else None,
            "map": [
                {"label": _say("layer", lang, layer=one.layer), "shades": shades(one.bins)}
                for one in seen.layers[:MAX_ROWS]
            ],
            "map_text": _say("map_text", lang, width=seen.width) if seen.layers else "",
            "more": _say("more_layers", lang, count=hidden) if hidden > 0 else "",
            "rows": self._rows(seen, lang)[:MAX_ROWS],
            "status": self._status(seen, lang),
        }

    def text(self, seen: EvictionSeen, lang: str) -> str:
        """Return the text without the resident tokens, which depend on the moment of the look."""
        said = seen.report.text(lang)
        head = _say("eviction_title", lang, policy=seen.report.policy)
        rows = figure_lines({**row, "values": row["values"][1:]} for row in self._rows(seen, lang)[:MAX_ROWS])
        columns = " | ".join(column for place, column in enumerate(self.form(lang)["columns"]) if place != 1)
        return "\n".join([head, said, f"  {columns}", *rows])

    def close(self) -> None:
        self._gate.close()

    def _rows(self, seen: EvictionSeen, lang: str) -> list[dict[str, Any]]:
        now = {one.layer: one for one in seen.layers}
        bound = self._eviction.rules
        found = []
        for layer, values in seen.report.layers.items():
            resident = f"{now[layer].resident:,}" if layer in now else "-"
            rule = bound[layer]
            assert rule is not None  # the report has evicting layers, so they have a rule
            numbers = (
                values["peak_resident"],
                rule.budget.peak_resident,
                values["evictions"],
                values["dropped"],
            )
            found.append(
                {
                    "key": str(layer),
                    "label": _say("layer", lang, layer=layer),
                    "values": [resident, *(f"{number:,}" for number in numbers)],
                }
            )
        return found

    def _status(self, seen: EvictionSeen, lang: str) -> str:
        said = [finding.text(lang) for finding in seen.report.findings]
        if not seen.layers:
            said.insert(0, _say("eviction_nothing", lang))
        else:
            mean = _mean(seen.layers)
            total = mean["resident"] + mean["gone"]
            said.insert(0, _say("eviction_now", lang, seen=total, capacity=seen.report.capacity, **mean))
        return ("" if lang == "zh" else " ").join(said)


class EvictionMonitor(Monitor):
    """See ``minikv.course.monitor.eviction``."""

    _esm = script(
        "bar.js",
        "form.js",
        "buttons.js",
        "readout.js",
        "live.js",
        "table.js",
        "chart.js",
        "shades.js",
        "monitor_eviction.js",
    )
    _css = style("heat_map.css", "monitor_eviction.css")

    def __init__(self, model: Any, lang: str, hz: float, clock: Clock | None = None):
        watched = WatchedEvictingLLM(model) if hasattr(model, "snapshot") else WatchedEviction(model)
        super().__init__(watched, lang, hz, clock)


class Gate:
    """Holds ``lock`` during each forward of ``model``, until ``close``; ``after()()`` is called at a forward's end."""

    def __init__(self, model: Any, after: Callable[[], Callable[[], None] | None] = lambda: None):
        self.lock = FairLock()
        self._after = after  # weak: the gate and the object behind it end together
        self._inside, self._thread = False, 0  # whether a forward runs, and its thread
        mine = weakref.ref(self)  # the model outlives its monitors

        def begin(module: Any, args: Any) -> None:
            gate = mine()
            if gate is not None:
                gate.enter()

        def end(module: Any, args: Any, output: Any) -> None:
            gate = mine()
            if gate is not None:
                gate.look_after()
                gate.leave()

        self._hooks = (
            model.register_forward_pre_hook(begin),
            model.register_forward_hook(end, always_call=True),
        )
        weakref.finalize(self, _remove, self._hooks)

    def enter(self) -> None:
        """Begin a forward. A forward that Ctrl+C ended never reached ``leave``, so the lock is still held."""
        if not self._inside:
            self.lock.__enter__()
            self._inside, self._thread = True, threading.get_ident()

    def look_after(self) -> None:
        """Call the method behind ``after`` while the lock is held. A look that fails does not fail the forward."""
        look = self._after()
        if self._inside and look is not None:
            with suppress(Exception):
                look()

    def leave(self) -> None:
        """End a forward. It may have been refused before it began."""
        if self._inside:
            self._inside = False
            self.lock.__exit__()

    def close(self) -> None:
        """Remove the hooks, and release a lock still held by a forward of this thread that Ctrl+C ended."""
        _remove(self._hooks)
        if self._thread == threading.get_ident():
            self.leave()


def _remove(hooks: tuple[Any, ...]) -> None:
    for hook in hooks:
        hook.remove()


def shades(bins: tuple[float, ...]) -> str:
    """Return a letter a stretch, as in the heat-map: "0" few tokens resident, "8" all, "-" none; "." not read."""
    return "".join(
        NOT_YET if share < 0 else GONE if share == 0 else str(min(SHADES - 1, int(share * SHADES)))
        for share in bins
    )


def _layer(layer: EvictingLayer, width: int) -> LayerSeen:
    """Return the shares over all rows and heads; -1 for a stretch that was not read yet."""
    positions, seen = layer.positions, layer.cumulative_length
    rows = positions.shape[0] * positions.shape[1]
    places = positions[positions >= 0].flatten().cpu()
    counts = (places // width).bincount(minlength=BINS).tolist()[:BINS]
    shares = []
    for place, count in enumerate(counts):
        there = min(width, seen - place * width)
        shares.append(-1.0 if there <= 0 else min(1.0, count / (rows * there)))
    return LayerSeen(layer.rules.layer, seen, layer.resident, tuple(shares))


def _mean(layers: tuple[LayerSeen, ...]) -> dict[str, float]:
    """Return the tokens of a layer, on average."""
    resident = sum(one.resident for one in layers) / len(layers)
    return {"resident": resident, "gone": sum(one.seen for one in layers) / len(layers) - resident}


def _say(key: str, lang: str, **values: object) -> str:
    return text(f"widgets_monitor.{key}", lang, **values)
