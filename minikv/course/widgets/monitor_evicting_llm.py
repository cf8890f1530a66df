"""The eviction monitor's view of an LLM that evicts: the tokens of each sequence that its layers still have."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minikv.course.widgets.history import History, Point
from minikv.course.widgets.monitor_cache import Names
from minikv.course.widgets.monitor_chart import draw_chart
from minikv.course.widgets.table import figure_lines
from minikv.engine.serve.view import EngineView
from minikv.errors import ArgumentError
from minikv.i18n import text

if TYPE_CHECKING:
    from minikv.engine.llm import LLM

MAX_ROWS = 16  # sequences drawn; a sentence counts the others
LOOKS = {"resident": "k", "gone": "free"}  # of the palette
TOKENS = "widgets_monitor.tokens_"


@dataclass(frozen=True)
class SequenceSeen:
    """A sequence that has not ended: ``computed`` tokens so far, ``resident`` of them in the cache."""

    name: str
    computed: int
    resident: int


@dataclass(frozen=True)
class EvictingSeen:
    """The engine's ``view``, its sequences by name, and the tokens of all of them over time."""

    view: EngineView
    sequences: tuple[SequenceSeen, ...]
    points: tuple[Point, ...]


class WatchedEvictingLLM:
    """``llm`` as ``snapshot`` sees it. Raises ``ArgumentError`` for an LLM without eviction, and for a closed one."""

    def __init__(self, llm: "LLM", clock: Callable[[], float] = time.monotonic):
        self._llm, self._clock = llm, clock
        llm.snapshot()  # raises for a closed LLM
        if llm.eviction is None:
            raise ArgumentError("monitor_llm_keeps")
        self._budget = llm.eviction.budget
        self._policy = type(llm.eviction.worker.runner.policy).__name__  # type: ignore[union-attr]
        self._names, self._history = Names(), History()

    def look(self) -> EvictingSeen:
        view = self._llm.snapshot()
        # A waiting sequence that is not on the host holds no tokens, even if it computed some before.
        held = [seq for seq in (*view.running, *view.waiting) if seq.tables or seq.swapped]
        names = self._names.of([seq.id for seq in held])
        sequences = tuple(SequenceSeen(names[seq.id][0], seq.num_computed, seq.num_resident) for seq in held)
        resident = sum(one.resident for one in sequences)
        gone = sum(one.computed for one in sequences) - resident
        self._history.add(self._clock(), {"resident": resident, "gone": gone})
        return EvictingSeen(view, sequences, tuple(self._history.points))

    def form(self, lang: str) -> dict[str, Any]:
        columns = ("sequence", "seen", "resident", "gone")
        return {
            "title": _say("evicting_title", lang, policy=self._policy),
            "columns": [_say(f"column_{name}", lang) for name in columns],
            "map_aria": "",
            "map_legend": [],
        }

    def draw(self, seen: EvictingSeen, lang: str) -> dict[str, Any]:
        hidden = len(seen.sequences) - MAX_ROWS
        return {
            "chart": draw_chart(seen.points, LOOKS, TOKENS, "{:,.0f}".format, lang),
            "map": [],
            "map_text": "",
            "more": _say("more_sequences", lang, count=hidden) if hidden > 0 else "",
            "rows": _rows(seen),
            "status": self._status(seen, lang),
        }

    def text(self, seen: EvictingSeen, lang: str) -> str:
        form = self.form(lang)
        columns = [f"  {' | '.join(form['columns'])}"] if seen.sequences else []
        return "\n".join([form["title"], self._status(seen, lang), *columns, *figure_lines(_rows(seen))])

    def close(self) -> None:
        """Do nothing: the LLM was not changed."""

    def _status(self, seen: EvictingSeen, lang: str) -> str:
        resident = sum(one.resident for one in seen.sequences)
        return _say(
            "evicting_now",
            lang,
            steps=seen.view.steps,
            sequences=len(seen.sequences),
            seen=sum(one.computed for one in seen.sequences),
            resident=resident,
            capacity=self._budget.capacity,
            peak=self._budget.peak_resident,
        )


def _rows(seen: EvictingSeen) -> list[dict[str, Any]]:
    return [
        {
            "key": one.name,
            "label": one.name,
            "values": [f"{one.computed:,}", f"{one.resident:,}", f"{one.computed - one.resident:,}"],
        }
        for one in seen.sequences[:MAX_ROWS]
    ]


def _say(key: str, lang: str, **values: object) -> str:
    return text(f"widgets_monitor.{key}", lang, **values)
