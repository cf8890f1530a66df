"""The segments widget: a map of the caching allocator's segments and blocks, step by step, drawn to one scale.

The steps run on the real model (``minikv.memory.CachingAllocator``), once for each choice of settings, when the
widget is made. All frames are part of it, so that the slider and the choice work while a cell is busy, or without a
kernel. A block that is the same in two frames is sent once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import anywidget
import traitlets

from minikv.course.widgets.base import photo_page, script, style
from minikv.course.widgets.segments_drawing import (
    CACHED_LOOK,
    FIGURES,
    WAITING_LOOK,
    Drawing,
)
from minikv.course.widgets.segments_replay import AllocatorStep, check_steps, replay_steps
from minikv.errors import ArgumentError, check_count
from minikv.i18n import pick_language, text
from minikv.memory import AllocatorSettings
from minikv.memory.allocator.rules import SMALL_SEGMENT
from minikv.units import format_bytes

__all__ = ["MAX_SETTINGS", "AllocatorStep", "SegmentsWidget"]

MAX_SETTINGS = 6
MAX_NAMES = 8  # in the legend


class SegmentsWidget(anywidget.AnyWidget):
    """Every segment of a caching allocator with its blocks, and the figures, before and after each of ``steps``.

    ``lang`` is "en" or "zh". ``capacity``: bytes of the device; ``non_torch`` of them are not torch's. ``settings``:
    label -> AllocatorSettings, at most 6, for the reader to choose from (None: torch's defaults); the same steps
    run under each. ``stop_at``: the step shown at first, 0 for the empty device (None: the last one).
    A malloc that finds no memory is a frame like any other, and the steps go on without that allocation.

    Raises ``ArgumentError`` for steps that cannot be run (an unknown kind or name, a name that is in use, no size, more
    than 200) and for invalid settings, capacity or ``stop_at``.
    """

    _esm = script("bar.js", "form.js", "segments.js")
    _css = style("segments.css")

    form = traitlets.Dict().tag(sync=True)
    map = traitlets.Dict().tag(sync=True)
    setting = traitlets.Unicode().tag(sync=True)
    step = traitlets.Int().tag(sync=True)

    def __init__(
        self,
        lang: str = "en",
        *,
        steps: Sequence[AllocatorStep],
        capacity: int,
        settings: Mapping[str, AllocatorSettings] | None = None,
        non_torch: int = 0,
        stop_at: int | None = None,
    ):
        self._lang = pick_language(lang)
        check_count("non_torch", non_torch, least=0)
        check_count("capacity", capacity, least=non_torch + SMALL_SEGMENT)
        check_steps(steps)
        if settings is None:
            settings = {text("widgets_segments.default", self._lang): AllocatorSettings()}
        _check_settings(settings)
        if stop_at is not None:
            check_count("stop_at", stop_at, least=0)
            if stop_at > len(steps):
                raise ArgumentError("out_of_range", what="stop_at", value=stop_at, low=-1, high=len(steps))
        self._steps, self._capacity, self._non_torch = tuple(steps), capacity, non_torch
        self._settings = dict(settings)
        self._moments = {
            label: replay_steps(steps, chosen, capacity, non_torch) for label, chosen in settings.items()
        }
        names = [step.name for step in steps if step.kind == "malloc"]
        self._looks = {name: place for place, name in enumerate(dict.fromkeys(names))}
        super().__init__(
            form=self._form(self._lang),
            map=Drawing(self._steps, self._looks, self._lang).map(self._moments, self._settings),
            setting=next(iter(settings)),
            step=len(steps) if stop_at is None else stop_at,
        )

    @traitlets.validate("step")
    def _within(self, proposal: Any) -> int:
        return min(max(proposal["value"], 0), len(self._steps))

    @traitlets.validate("setting")
    def _known(self, proposal: Any) -> str:
        if proposal["value"] not in self._settings:
            known = ", ".join(self._settings)
            raise ArgumentError("unknown_choice", what="setting", value=proposal["value"], known=known)
        return proposal["value"]

    @property
    def summary(self) -> str:
        """The last state as plain lines: the figures under every setting, and the map of the chosen one."""
        lang, last = self._lang, len(self._steps)
        drawn = self.map["frames"]
        lines = [text("widgets_segments.summary", lang, count=last, device=self.form["device"])]
        labels = [label for _, label in self.form["figures"]]
        for choice, frames in drawn.items():
            pairs = [
                text("widgets_segments.pair", lang, label=label, value=value)
                for label, value in zip(labels, frames[-1]["figures"], strict=True)
            ]
            failed = [str(place) for place, moment in enumerate(self._moments[choice]) if moment.error]
            joint = text("widgets_segments.joint", lang)
            if failed:
                pairs.append(text("widgets_segments.failed", lang, steps=joint.join(failed)))
            lines.append(text("widgets_segments.pair", lang, label=choice, value=joint.join(pairs)))
        frame = drawn[self.setting][-1]
        lines.append(text("widgets_segments.summary_map", lang, setting=self.setting))
        for place in frame["rows"]:
            segment = self.map["segments"][place]
            blocks = "".join(f"[{self.map['blocks'][block]['short']}]" for block in segment["blocks"])
            lines.append(f"  {segment['label']} {blocks}")
        return "\n".join([*lines, *([frame["more"]] if frame["more"] else [])])

    def text(self) -> str:
        """Return ``summary``."""
        return self.summary

    def photo_html(self) -> str:
        """Return a page that draws this widget as it is now, in its language, inside ``id="photo"``."""
        traits = {name: getattr(self, name) for name in ("form", "map", "setting", "step")}
        return photo_page(self.form["title"], self._esm, self._css, traits)

    def _form(self, lang: str) -> dict[str, Any]:
        def say(key: str, **values: object) -> str:
            return text(f"widgets_segments.{key}", lang, **values)

        moments = [moment for moments in self._moments.values() for moment in moments]
        scale = max((view.total_size for moment in moments for view in moment.segments), default=1)
        device = dict(capacity=format_bytes(self._capacity), others=format_bytes(self._non_torch))
        shown = [*self._looks][:MAX_NAMES]
        legend = [[self._looks[name], name] for name in shown]
        if len(self._looks) > MAX_NAMES:
            legend.append([None, say("more_names", count=len(self._looks) - MAX_NAMES)])
        legend.append([CACHED_LOOK, say("legend_cached")])
        if any(step.kind == "record_stream" for step in self._steps):
            legend.append([WAITING_LOOK, say("legend_waiting")])
        return {
            "lang": "zh-CN" if lang == "zh" else "en",
            "title": say("title"),
            "device": say("device" if self._non_torch else "device_alone", **device),
            "setting": {
                "key": "setting",
                "label": say("setting"),
                "options": [[label, label] for label in self._settings],
            },
            "step": say("step"),
            "step_value": say("step_value", step="{step}", last="{last}"),
            "back": say("back"),
            "forward": say("forward"),
            "legend": legend,
            "scale": scale,
            "scale_text": say("scale", size=format_bytes(scale)),
            "hint": say("hint"),
            "empty": say("empty"),
            "figures": [[key, say(key)] for key in FIGURES],
        }


def _check_settings(settings: Any) -> None:
    if not isinstance(settings, Mapping) or not 0 < len(settings) <= MAX_SETTINGS:
        count = len(settings) if isinstance(settings, Mapping) else type(settings).__name__
        raise ArgumentError("segments_settings", value=count, most=MAX_SETTINGS)
    for label, chosen in settings.items():
        if not isinstance(label, str) or not label.strip():
            raise ArgumentError("segments_settings", value=repr(label)[:40], most=MAX_SETTINGS)
        if not isinstance(chosen, AllocatorSettings):
            raise ArgumentError("allocator_not_settings", kind=type(chosen).__name__)
