"""Shared base of the widgets with controls: the controls write ``state``, and ``view`` is the answer.

``form.js`` builds the controls from ``form`` and draws; a subclass says which controls it has and computes the answer.
Settings that cannot work are part of a lesson: the readout shows the sentence of the ``MiniKVError``.
"""

import threading
from typing import Any

import anywidget
import traitlets

from minikv.course.widgets.base import photo_page
from minikv.course.widgets.fields import form_of
from minikv.i18n import pick_language, text


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
        return form_of(self._table, self._start, lang)

    def _answer(self, state: dict[str, Any], lang: str) -> dict[str, Any]:
        """Return the view of these settings; for settings that cannot work, the view of the error."""
        raise NotImplementedError

    def _photo_view(self, state: dict[str, Any]) -> dict[str, Any]:
        return self._answer(state, self._lang)
