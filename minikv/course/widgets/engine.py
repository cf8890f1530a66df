"""Lesson 11b: the engine widget, an LLM at work: its sequences, its blocks and their owners, while it computes.

A thread computes, so that the page keeps answering: Stop stops the run, Pause holds it. The thread reads the engine's
state after every step, and the page keeps what it has seen: its slider goes back through the steps.
"""

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from minikv.course.widgets.base import photo_page, script, style
from minikv.course.widgets.engine_drawing import BUTTONS, draw_form, draw_text, draw_view
from minikv.course.widgets.engine_picture import Picture
from minikv.course.widgets.engine_run import EngineRun
from minikv.course.widgets.engine_worker import Worker
from minikv.engine.outputs import RequestOutput
from minikv.engine.prompts import Prompts
from minikv.engine.sampling_params import SamplingParams
from minikv.i18n import pick_language, text

if TYPE_CHECKING:
    from minikv.engine.llm import LLM


HISTORY = 400  # steps that the slider goes back


class EngineWidget(anywidget.AnyWidget):
    """Runs ``prompts`` through ``llm``, as ``LLM.generate`` takes them; buttons: Start, Pause, a single Step, Stop.

    ``params`` is one for all prompts or one each. ``arrivals`` has, for each prompt, the step before which it is added
    (None: all at once). A prompt is added earlier where nothing else is left to compute. ``speed`` is steps a second,
    0: as fast as it goes; the page sets it too. ``lang`` is "en" or "zh".

    ``text()`` and the picture have only figures that another run of the same steps repeats. An error of a step or a
    request is shown in the widget and kept in ``error``; the remaining requests are aborted, and the LLM can be used
    again. During a run, no other code may call ``step`` of this LLM.

    Raises ``ArgumentError`` for an invalid language, prompts, params or arrivals.
    """

    _esm = script("bar.js", "form.js", "buttons.js", "readout.js", "engine.js")
    _css = style("engine.css")

    form = traitlets.Dict().tag(sync=True)
    view = traitlets.Dict().tag(sync=True)
    recent: Any = traitlets.List().tag(sync=True)
    speed = traitlets.Float(0).tag(sync=True)

    def __init__(
        self,
        llm: "LLM",
        prompts: Prompts,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        arrivals: Sequence[int] | None = None,
        speed: float = 0,
        lang: str = "en",
    ):
        self._lang = pick_language(lang)
        self._run = EngineRun(llm, prompts, params, arrivals)
        self._picture = self._run.picture()
        view = draw_view(self._picture, self._lang)
        self._history = [view]
        super().__init__(form=self._form(self._lang), view=view, recent=[view])
        # The thread does not keep a widget alive that nothing else refers to.
        show = weakref.WeakMethod(self._show)

        def publish(pictures: list[Picture]) -> bool:
            alive = show()
            if alive is not None:
                alive(pictures)
            return alive is not None

        self._worker = Worker(self._run, publish)
        self.on_msg(self._pressed)
        self.speed = speed

    @property
    def running(self) -> bool:
        """Whether the thread computes."""
        return self._worker.running

    @property
    def outputs(self) -> tuple[RequestOutput, ...]:
        """The outputs of the ended requests, in the order of the prompts; an aborted one's as far as it came."""
        return self._run.outputs

    @property
    def error(self) -> BaseException | None:
        """The error that ended the run, or that failed the first of its requests."""
        return self._picture.error

    def start(self) -> None:
        """Run in the background; after the end, run again. Does nothing during a run."""
        self._worker.start()

    def step(self) -> bool:
        """Compute a single step now; return whether anything is left. Does nothing during a run in the background."""
        return self._worker.step()

    def pause(self) -> None:
        """End the running step and hold the run there; ``start`` and ``step`` go on."""
        self._worker.pause()

    def stop(self) -> None:
        """Abort the remaining requests and wait until that is done: one step at most."""
        self._worker.halt()
        self._worker.wait()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, ``timeout`` seconds at most; return whether the run has ended."""
        return self._worker.wait(timeout)

    def close(self) -> None:
        """Stop, and take the widget off the page."""
        worker = getattr(self, "_worker", None)  # None where the constructor raised
        if worker is not None:
            worker.halt()
        super().close()

    def text(self, lang: str | None = None) -> str:
        """Return the view as plain lines."""
        lang = self._lang if lang is None else pick_language(lang)
        return draw_text(self._picture, self._form(lang)["size"], lang)

    def photo_html(self) -> str:
        """Return a page that draws this widget as it is now, in its language and without seconds, inside
        ``id="photo"``.
        """
        traits = {
            "form": self._form(self._lang, speed=False),
            "view": {**draw_view(self._picture, self._lang, speed=False), "running": False},
            "recent": [],
            "speed": self.speed,
        }
        return photo_page(text("widgets_engine.title", self._lang), self._esm, self._css, traits)

    def _form(self, lang: str, *, speed: bool = True) -> dict[str, Any]:
        return draw_form(self._picture.pools, self._run.llm.manager.block_size, lang, speed=speed)

    def _show(self, pictures: list[Picture]) -> None:
        self._picture = pictures[-1]
        views = [draw_view(picture, self._lang) for picture in pictures]
        for view in (
            views
        ):  # a run that begins again, or a step that is told anew, takes the place of what it repeats
            self._history = [old for old in self._history if old["steps"] < view["steps"]][1 - HISTORY :]
            self._history.append(view)
        with self.hold_sync():
            self.recent, self.view = views, views[-1]

    @traitlets.validate("speed")
    def _not_backwards(self, proposal: Any) -> float:
        return max(0.0, proposal["value"])

    @traitlets.observe("speed")
    def _pace(self, change: Any) -> None:
        self._worker.speed = change["new"]

    def _pressed(self, widget: Any, content: Any, buffers: Any) -> None:
        """Handle a button. Stop does not wait here, so the page goes on answering during the step.

        A page that came later asks for the steps before it.
        """
        if content.get("action") == "history":
            self.recent = self._history
        actions = dict(zip(BUTTONS, (self.start, self.pause, self.step, self._worker.halt), strict=True))
        action = actions.get(content.get("action"))
        if action is not None:
            action()
