"""The cache monitor: an LLM's blocks and their owners, its sequences, and the hits, while other cells use it.

It draws with the engine widget's script (``engine.js``) what ``LLM.snapshot`` sees between two steps.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minikv.course.widgets.base import script, style
from minikv.course.widgets.engine_drawing import draw_form, draw_text, draw_view
from minikv.course.widgets.engine_picture import Owner, Picture, pool_pictures
from minikv.course.widgets.engine_rows import DECODE, PREFILL, SequenceRow, state_of
from minikv.course.widgets.monitor import BUTTONS, Monitor
from minikv.course.widgets.parts import letters
from minikv.course.widgets.ticker import Clock
from minikv.engine.core.sequence import SequenceId
from minikv.engine.serve.view import EngineView, SequenceView
from minikv.errors import ArgumentError
from minikv.i18n import text

if TYPE_CHECKING:
    from minikv.engine.llm import LLM

FIGURES = "steps running waiting finished generated used cached empty hits evictions".split()


@dataclass(frozen=True)
class CacheSeen:
    """The engine's ``view``, and the same as the engine widget's ``picture``."""

    view: EngineView
    picture: Picture


class WatchedCache:
    """``llm`` as ``snapshot`` sees it. Raises ``ArgumentError`` for an object that is no LLM, and for a closed LLM."""

    def __init__(self, llm: "LLM"):
        if not callable(getattr(llm, "snapshot", None)):
            raise ArgumentError("monitor_llm", kind=type(llm).__name__)
        self._llm = llm
        view = llm.snapshot()
        self._pools, self._block_size = pool_pictures(view, llm.manager.pools, {}), view.block_size
        self._names = Names()

    def look(self) -> CacheSeen:
        view = self._llm.snapshot()
        live = (*view.running, *view.waiting)
        names = self._names.of([seq.id for seq in live])
        owners: dict[SequenceId, Owner] = {seq.id: names[seq.id] for seq in live}
        rows = tuple(_row(seq, *names[seq.id]) for seq in live)
        # The cached free blocks are read after the snapshot, so in a frame they may be a step ahead of the counts.
        pools = pool_pictures(view, self._llm.manager.pools, owners)
        picture = Picture(
            progress="paused",
            requests=0,
            to_come=0,
            steps=view.steps,
            seconds=0.0,
            rows=rows,
            pools=pools,
            hits=0,
            preemptions=0,
            failed=0,
            error=None,
        )
        return CacheSeen(view, picture)

    def form(self, lang: str) -> dict[str, Any]:
        return {
            **self._engine_form(lang),
            "title": _say("cache_title", lang),
            "buttons": [[name, _say(name, lang)] for name in BUTTONS],
            "figures": [[name, _say(f"figure_{name}", lang)] for name in FIGURES],
        }

    def draw(self, seen: CacheSeen, lang: str) -> dict[str, Any]:
        figures = _figures(seen)
        drawn = draw_view(seen.picture, lang)
        return {
            **drawn,
            "figures": [figures[name] for name in FIGURES],
            "status": _status(seen, drawn["pools"], lang),
        }

    def text(self, seen: CacheSeen, lang: str) -> str:
        drawn = draw_view(seen.picture, lang)
        lines = draw_text(seen.picture, "", lang).splitlines()[2:]  # without its headline and its readout
        size = self._engine_form(lang)["size"]
        return "\n".join(
            [_say("cache_headline", lang, size=size), _status(seen, drawn["pools"], lang), *lines]
        )

    def close(self) -> None:
        self._llm = None  # type: ignore[assignment]

    def _engine_form(self, lang: str) -> dict[str, Any]:
        return draw_form(self._pools, self._block_size, lang)


class CacheMonitor(Monitor):
    """See ``minikv.course.monitor.cache``."""

    _esm = script("bar.js", "form.js", "buttons.js", "readout.js", "engine.js")
    _css = style("engine.css")

    def __init__(self, llm: "LLM", lang: str, hz: float, clock: Clock | None = None):
        super().__init__(WatchedCache(llm), lang, hz, clock)


class Names:
    """Names sequences A, B, C, ... in the order in which they are first seen; ended ones are forgotten."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._numbers: dict[object, int] = {}  # of the requests that have not ended
        self._next = 0

    def of(self, ids: Sequence[SequenceId]) -> dict[SequenceId, Owner]:
        """Return the name of each present sequence, and the number of its request."""
        with self._turn:
            known, self._numbers = self._numbers, {}
            for seq_id in ids:
                if seq_id.request in self._numbers:
                    continue
                if seq_id.request in known:
                    self._numbers[seq_id.request] = known[seq_id.request]
                else:
                    self._numbers[seq_id.request], self._next = self._next, self._next + 1
            several = Counter(seq_id.request for seq_id in ids)
            numbers = [self._numbers[seq_id.request] for seq_id in ids]
        return {
            seq_id: (_name(number, seq_id, several[seq_id.request]), number)
            for seq_id, number in zip(ids, numbers, strict=True)
        }


def _name(number: int, seq_id: SequenceId, samples: int) -> str:
    """Return A, B, ...; the sequences of a request that has several are A1, A2, ..."""
    return letters(number) + (str(seq_id.sample + 1) if samples > 1 or seq_id.sample else "")


def _row(seq: SequenceView, name: str, number: int) -> SequenceRow:
    """Return the row of a sequence. Its final length is unknown before it ends, so its bar is as long as its tokens."""
    stored = min(seq.num_computed, seq.num_prompt)
    cached = min(seq.num_cached, stored)
    return SequenceRow(
        name=name,
        number=number,
        state=state_of(seq),
        cached=cached,
        computed=stored - cached,
        left=seq.num_prompt - stored,
        generated=seq.num_output,
        longest=seq.num_prompt + seq.num_output,
    )


def _figures(seen: CacheSeen) -> dict[str, str]:
    view = seen.view

    def each(name: str) -> str:
        return " + ".join(f"{getattr(pool, name):,}" for pool in view.pools)

    return {
        "steps": f"{view.steps:,}",
        "running": f"{len(view.running):,}",
        "waiting": f"{len(view.waiting):,}",
        "finished": f"{view.finished:,}",
        "generated": f"{view.generated:,}",
        "used": each("used"),
        "cached": each("cached"),
        "empty": " + ".join(f"{pool.free - pool.cached:,}" for pool in view.pools),
        "hits": each("hits"),
        "evictions": each("evictions"),
    }


def _status(seen: CacheSeen, pools: Sequence[dict[str, Any]], lang: str) -> str:
    """Return the moment in sentences, for readers without the drawing."""
    prefill, decode = seen.picture.count(PREFILL), seen.picture.count(DECODE)
    figures = _figures(seen)
    said = [
        _say("cache_now", lang, prefill=prefill, decode=decode, **figures),
        *(pool["counts"] for pool in pools),
        _say("cache_so_far", lang, **figures),
    ]
    return ("" if lang == "zh" else " ").join(said)


def _say(key: str, lang: str, **values: object) -> str:
    return text(f"widgets_monitor.{key}", lang, **values)
