"""Lesson 11a: the batch made anew each step, runs of the real scheduler side by side."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from minikv.course.diagrams.seats import seat_table
from minikv.course.motion.scene import scene_style
from minikv.course.motion.widget import Motion, widget_module
from minikv.i18n import pick_language, text

if TYPE_CHECKING:
    from minikv.course.lessons.l11a.load import Ran  # it imports the engine


class BatchingMotion(Motion):
    """Shows ``runs``, a name and a load that ``num_seats`` sequences at a time ran, step by step.

    ``lang`` is "en" or "zh"; ``step`` is the step on display at first, 0: before the first.
    """

    _name = "batching"
    _esm = widget_module("batching")
    _css = scene_style("batching")

    def __init__(self, lang: str, runs: "Mapping[str, Ran]", num_seats: int, *, step: int = 0):
        lang = pick_language(lang)
        steps = max(ran.steps for ran in runs.values())
        tables = {name: seat_table(ran, num_seats) for name, ran in runs.items()}
        form = {
            "title": _say("title", lang),
            "size": _say("size", lang, seats=num_seats, requests=len(next(iter(runs.values())).chart)),
            "seats": num_seats,
            "steps": steps,
            "runs": list(runs),
            "seat": [_say("seat", lang, seat=seat + 1) for seat in range(num_seats)],
            "waiting": _say("waiting", lang),
        }
        states = []
        for place in range(steps + 1):
            shown = [_view(name, runs[name], tables[name], place, lang) for name in runs]
            said = ("" if lang == "zh" else " ").join(run["said"] for run in shown)
            states.append({"status": _say("status", lang, step=place, said=said), "runs": shown})
        super().__init__(lang, form, states, step)

    def _figures(self, step: int, state: dict[str, Any]) -> list[str]:
        return [
            _say(
                "line", self._lang, name=name,
                seats=" ".join("-" if number is None else str(number) for number in run["column"]),
                waiting=" ".join(map(str, run["waiting"])) or "-",
            )
            for name, run in zip(self.form["runs"], state["runs"], strict=True)
            if not run["ended"]
        ]  # fmt: skip


def _view(name: str, ran: "Ran", table: list[list[int | None]], place: int, lang: str) -> dict[str, Any]:
    """Return one run after its step ``place``, from 1; before the first all requests wait."""
    done = min(place, ran.steps)
    idle = sum(row[:done].count(None) for row in table)
    values = dict(name=name, steps=done, tokens=sum(ran.tokens[:done]), idle=idle, cells=len(table) * done)
    column = [row[done - 1] if done else None for row in table]
    charted = [row[done - 1] if done else "." for row in ran.chart]
    return {
        "said": _say("run_ended" if done == ran.steps else "run", lang, **values),
        "column": column,
        "prompt": [number is not None and charted[number] == "#" for number in column],
        "waiting": [number for number, cell in enumerate(charted) if cell == "."],
        "ended": place > ran.steps,
    }


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"widgets_batching.{key}", lang, **values)
