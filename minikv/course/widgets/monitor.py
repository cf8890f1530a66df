"""Shared base of the live monitors: a thread that looks a few times a second, buttons, and a last picture that stays.

A monitor watches what other cells do and computes nothing itself. ``minikv.course.monitor`` makes the monitors.
"""

import threading
import weakref
from typing import Any, Protocol

import anywidget
import traitlets

from minikv.course.widgets.base import photo_page
from minikv.course.widgets.ticker import MAX_HZ, Clock, Ticker
from minikv.errors import ArgumentError, MiniKVError
from minikv.i18n import pick_language, text

BUTTONS = ("start", "stop")


class Watched(Protocol):
    """The object that a monitor watches. Any thread may call its methods."""

    def look(self) -> Any:
        """Return the present state as plain data. Raises where there is nothing left to look at."""

    def form(self, lang: str) -> dict[str, Any]:
        """Return the part that does not change, without the buttons."""

    def draw(self, seen: Any, lang: str) -> dict[str, Any]:
        """Return what was seen, for the script; with "status", a sentence."""

    def text(self, seen: Any, lang: str) -> str:
        """Return what was seen as plain lines, without figures that differ between runs."""

    def close(self) -> None:
        """Release the watched object."""


class Monitor(anywidget.AnyWidget):
    """Displays ``watched`` and looks at it ``hz`` times a second (more than 0, at most 5) until ``stop()``.

    A running cell is seen while it computes. A look changes nothing in the watched object. It may wait for a step or a
    forward, and the next step may wait for it, a few milliseconds. A look that fails ends the monitor: the status says
    why, and the last picture stays. As a context manager it stops at the end of the block; ``close()`` also releases
    the watched object. ``show(monitor)`` displays it, and after the end the last picture.

    While a cell runs, kernels older than ipykernel 7 handle the Stop button only after the cell; ``stop()`` and
    the end of a ``with`` block work at once.

    Raises ``ArgumentError`` for an invalid language or ``hz``, and what ``watched.look()`` raises.
    """

    form = traitlets.Dict().tag(sync=True)
    view = traitlets.Dict().tag(sync=True)

    def __init__(self, watched: Watched, lang: str, hz: float, clock: Clock | None = None):
        self._lang = pick_language(lang)
        if isinstance(hz, bool) or not isinstance(hz, int | float) or not 0 < hz <= MAX_HZ:
            raise ArgumentError("out_of_range", what="hz", value=hz, low=0, high=MAX_HZ)
        self._watched = watched
        self._turn = threading.Lock()  # never held during a look, which may wait for a long step
        self._asked = self._shown = 0
        self._error: Exception | None = None
        self._seen = watched.look()
        # The thread does not keep a monitor alive that nothing else refers to.
        mine = weakref.WeakMethod(self.tick)

        def tick() -> bool:
            alive = mine()
            return alive is not None and alive()

        self._ticker = Ticker(tick, hz, clock)
        super().__init__(form=self._form(self._lang), view=self._view(self._lang, running=True))
        self.on_msg(self._pressed)
        self._ticker.start()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(running={self.running})"

    @property
    def running(self) -> bool:
        """Whether it goes on looking."""
        return self._ticker.running

    @property
    def error(self) -> Exception | None:
        """The error that ended it."""
        return self._error

    def start(self) -> None:
        """Go on after ``stop``. Does nothing while it runs."""
        self._ticker.start()
        self.tick()

    def stop(self) -> None:
        """Look once more, and then stop."""
        self._ticker.stop()
        self.tick()

    def tick(self) -> bool:
        """Look now and draw; return whether there was anything to see. If not, the monitor stops.

        Of two looks at the same time the later one is drawn.
        """
        with self._turn:
            self._asked += 1
            number = self._asked
        error, seen = None, None
        try:
            seen = self._watched.look()
        except Exception as found:
            # From a closed LLM or a driver, for example. The error is shown in the widget; a traceback of the thread
            # would not help.
            error = found
            self._ticker.stop(wait_s=0)
        with self._turn:
            if number > self._shown:
                self._shown, self._error = number, error
                self._seen = self._seen if error is not None else seen
                running = error is None and self._ticker.running
                self.view = self._view(self._lang, running=running)
        return error is None

    def close(self) -> None:
        """Stop, release the watched object, and remove the monitor from the page."""
        ticker = getattr(self, "_ticker", None)  # None where the constructor raised
        if ticker is not None:
            ticker.stop()
            self._watched.close()
        super().close()

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def text(self, lang: str | None = None) -> str:
        """Return the present state, or after the end the last one, as lines that are the same in every run."""
        lang = self._lang if lang is None else pick_language(lang)
        if self.running:
            self.tick()
        lines = [self._watched.text(self._seen, lang)]
        if self._error is not None:
            lines.append(self._failed(lang))
        return "\n".join(lines)

    def photo_html(self) -> str:
        """Return a page that draws this monitor as it is now, in its language, inside ``id="photo"``."""
        form, view = self._form(self._lang), self._view(self._lang, running=False)
        return photo_page(form["title"], self._esm, self._css, {"form": form, "view": view})

    def _form(self, lang: str) -> dict[str, Any]:
        return {
            "lang": "zh-CN" if lang == "zh" else "en",
            "buttons": [[name, text(f"widgets_monitor.{name}", lang)] for name in BUTTONS],
            **self._watched.form(lang),
        }

    def _view(self, lang: str, *, running: bool) -> dict[str, Any]:
        view = self._watched.draw(self._seen, lang)
        if self._error is not None:
            view["status"] = self._failed(lang)
        return {**view, "running": running, "error": self._error is not None}

    def _failed(self, lang: str) -> str:
        error = self._error
        said = error.text(lang) if isinstance(error, MiniKVError) else f"{type(error).__name__}: {error}"
        return text("widgets_monitor.ended", lang, error=said)

    def _pressed(self, widget: Any, content: Any, buffers: Any) -> None:
        """Handle a button."""
        actions = dict(zip(BUTTONS, (self.start, self.stop), strict=True))
        action = actions.get(content.get("action"))
        if action is not None:
            action()
