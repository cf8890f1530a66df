"""Lesson 09: paging as it moves, the states of a ``PagingRecorder`` as a widget."""

from collections.abc import Sequence
from typing import Any

from minikv.course.motion.paging_states import PagingStates
from minikv.course.motion.paging_view import paging_form, paging_view, say
from minikv.course.motion.scene import scene_style
from minikv.course.motion.widget import Motion, widget_module
from minikv.i18n import pick_language

MOST_IDS = 8  # token ids of one block that the text writes out


class PagingMotion(Motion):
    """Shows what ``recorder`` has recorded so far: tokens that fly to their slots, arrows that follow the block tables.

    ``lang`` is "en" or "zh"; ``step`` is the state on display at first.
    """

    _name = "paging"
    _esm = widget_module("paging")
    _css = scene_style("paging")

    def __init__(self, lang: str, recorder: PagingStates, *, step: int = 0):
        lang = pick_language(lang)
        states = [paging_view(state, lang) for state in recorder.states]
        super().__init__(lang, paging_form(recorder, lang), states, step)

    def _figures(self, step: int, state: dict[str, Any]) -> list[str]:
        lines = [
            say("line_sequence", self._lang, name=name, tokens=length, table=str(table))
            for name, _, length, table, _ in state["sequences"]
        ]
        before = self.states[step - 1]["blocks"] if step else [None] * len(state["blocks"])
        return lines + [
            say("line_block", self._lang, block=block, said=now[3], ids=_ids(now[2]))
            for block, (old, now) in enumerate(zip(before, state["blocks"], strict=True))
            if old != now and (old or now[0] != "empty")
        ]


def _ids(ids: Sequence[int]) -> str:
    more = " ..." if len(ids) > MOST_IDS else ""
    return " ".join(map(str, ids[:MOST_IDS])) + more
