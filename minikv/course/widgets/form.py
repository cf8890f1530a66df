"""Shared base of the widgets with controls: the controls write ``state``, and ``view`` is the answer.

``form.js`` builds the controls from ``form`` and draws; a subclass says which controls it has and computes the answer.
Settings that cannot work are part of a lesson: the readout shows the sentence of the ``MiniKVError``.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import anywidget
import traitlets

from minikv.course.widgets.base import photo_page
from minikv.errors import MiniKVError
from minikv.i18n import pick_language, text
from minikv.plan import find_model, model_names


class FormWidget(anywidget.AnyWidget):
    """Controls, and a view that follows them. ``start`` has the first settings, to which Reset returns.

    A subclass names its file of sentences (``_table``, with "title" and "controls"), adds its ``fields`` to ``_form``,
    and answers: ``_answer`` never raises for a setting; its view then says why the setting is impossible.
    Raises ``ArgumentError`` for a language that the course is not written in.
    """

    _table: str

    form = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    view = traitlets.Dict().tag(sync=True)

    def __init__(self, lang: str, start: dict[str, Any]):
        self._lang = pick_language(lang)
        self._start = start
        self._turn = threading.RLock()
        super().__init__(form=self._form(self._lang), state=start, view=self._answer(start, self._lang))

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Handle messages of the browser one at a time: while a cell runs, ipykernel 7 uses another thread."""
        with self._turn:
            super().set_state(sync_data)

    @traitlets.validate("state")
    def _complete(self, proposal: Any) -> dict[str, Any]:
        """Fill in the unchanged settings: ``widget.state = {"tp": 8}`` changes one of them."""
        return {**self._start, **self.state, **proposal["value"]}

    @traitlets.observe("state")
    def _redraw(self, change: Any) -> None:
        # Read the state inside the lock: the last thread to get it draws the newest settings, in any order of arrival.
        with self._turn:
            self.view = self._answer(self.state, self._lang)

    def photo_html(self) -> str:
        """Return a page that draws this widget as it is now, in its language, inside ``id="photo"``."""
        state = dict(self.state)
        traits = {"form": self._form(self._lang), "state": state, "view": self._photo_view(state)}
        return photo_page(text(f"{self._table}.title", self._lang), self._esm, self._css, traits)

    def _form(self, lang: str) -> dict[str, Any]:
        """Return the part that does not change: the labels, and the settings of Reset."""
        return {
            "lang": "zh-CN" if lang == "zh" else "en",
            "title": text(f"{self._table}.title", lang),
            "legend": text(f"{self._table}.controls", lang),
            "reset": text("widgets.reset", lang),
            "defaults": self._start,
        }

    def _answer(self, state: dict[str, Any], lang: str) -> dict[str, Any]:
        """Return the view of these settings; for settings that cannot work, the view of the error."""
        raise NotImplementedError

    def _photo_view(self, state: dict[str, Any]) -> dict[str, Any]:
        return self._answer(state, self._lang)


def select(table: str, key: str, options: Sequence[Sequence[Any]], lang: str) -> dict[str, Any]:
    """Return a list of [value, text] to choose from; its label is the sentence ``key`` of ``messages/<table>.toml``."""
    return {"key": key, "label": text(f"{table}.{key}", lang), "options": options}


def slider(
    table: str, key: str, steps: Sequence, least: float, most: float, step: float | str, lang: str
) -> dict[str, Any]:
    """Return a slider along ``steps``, with a box for any number from ``least`` to ``most`` in steps of ``step``
    ("any").

    The table has the sentences ``key`` and ``key_value``, the text of a value: "{value} tokens".
    """
    label = text(f"{table}.{key}", lang)
    return {
        "key": key,
        "label": label,
        "exact": text("widgets.exact", lang, label=label),
        "value_text": text(f"{table}.{key}_value", lang, value="{value}"),  # the script fills in the number
        "steps": steps,
        "min": least,
        "max": most,
        "step": step,
    }


def names(start: str, offered: Sequence[str]) -> list[tuple[str, str]]:
    """Return options by name; the widget's start is always among them."""
    return [(name, name) for name in (offered if start in offered else [start, *offered])]


def doubling(first: int, last: int) -> list[int]:
    """Return a slider's stops: powers of two and, between two of them, the number half-way."""
    steps = []
    while first < last:
        steps += [first, first + first // 2] if first > 1 else [first]
        first *= 2
    return [*steps, last]


def offered_models(count: Callable[[str], object] = find_model) -> list[str]:
    """Return the complete models of the catalogue for which ``count(name)`` raises no ``MiniKVError``."""

    def counted(name: str) -> bool:
        try:
            count(name)
        except MiniKVError:
            return False
        return find_model(name).complete

    return [name for name in model_names() if counted(name)]
