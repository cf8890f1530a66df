"""The segments widget's drawing: frames of an allocator's segments and blocks, in the words of one language."""

from collections.abc import Mapping, Sequence
from typing import Any

from minikv.course.widgets.segments_replay import AllocatorMoment, AllocatorStep
from minikv.i18n import text
from minikv.memory import AllocatorSettings
from minikv.memory.allocator.blocks import ALLOCATED, AWAITING_FREE, INACTIVE, BlockView, SegmentView
from minikv.units import exact_bytes, format_bytes

MAX_ROWS = 16  # the largest segments are drawn; a sentence counts the others
WAITING_LOOK, CACHED_LOOK = "other", "cached"  # of the palette; each name has the look of a sequence
STATES = {ALLOCATED: "used", AWAITING_FREE: "waiting", INACTIVE: "cached"}
FIGURES = ("allocated", "cached", "reserved", "peak_reserved", "inactive_split", "device_free", "calls")


class Drawing:
    """Builds frames as segments.js draws them. ``looks`` has the look of each name."""

    def __init__(self, steps: Sequence[AllocatorStep], looks: Mapping[str, int], lang: str):
        self._steps, self._looks, self._lang = steps, looks, lang
        self._blocks: dict[Any, int] = {}  # each block drawn before, and its index in the list that is sent
        self._segments: dict[Any, int] = {}
        self._block_list: list[dict[str, Any]] = []
        self._segment_list: list[dict[str, Any]] = []

    def map(
        self, moments: Mapping[str, Sequence[AllocatorMoment]], settings: Mapping[str, AllocatorSettings]
    ) -> dict[str, Any]:
        """Return ``{blocks, segments, frames}``: a frame names its segments by index, and a segment its blocks."""
        frames = {
            label: [
                self._frame(place, told[max(place - 1, 0)], moment, settings[label])
                for place, moment in enumerate(told)
            ]
            for label, told in moments.items()
        }
        return {"blocks": self._block_list, "segments": self._segment_list, "frames": frames}

    def _say(self, key: str, **values: object) -> str:
        return text(f"widgets_segments.{key}", self._lang, **values)

    def _frame(
        self, place: int, before: AllocatorMoment, moment: AllocatorMoment, settings: AllocatorSettings
    ) -> dict[str, Any]:
        largest = sorted(moment.segments, key=lambda view: (-view.total_size, view.address))
        drawn = sorted(largest[:MAX_ROWS], key=lambda view: view.address)
        return {
            "rows": [self._segment(view, moment) for view in drawn],
            "more": self._rest(largest[MAX_ROWS:]),
            "figures": self._figures(moment, settings),
            "status": self._status(place, before, moment),
            "error": moment.error is not None,
        }

    def _rest(self, views: Sequence[SegmentView]) -> str:
        if not views:
            return ""
        size = sum(view.total_size for view in views)
        cached = size - sum(view.active_size for view in views)
        values = dict(size=exact_bytes(size), cached=format_bytes(cached))
        return self._say("more", count=len(views), **values)

    def _figures(self, moment: AllocatorMoment, settings: AllocatorSettings) -> list[str]:
        # torch counts no inactive split bytes for expandable segments; 0 would read as "nothing is stranded".
        expandable = settings.expandable_segments
        split = self._say("not_counted") if expandable else exact_bytes(moment.inactive_split)
        values = (moment.allocated, moment.reserved - moment.active, moment.reserved, moment.peak_reserved)
        counts = dict(calls=moment.calls, returns=moment.returns)
        calls = self._say("calls_mapped" if expandable else "calls_value", **counts)
        return [*map(exact_bytes, values), split, exact_bytes(moment.device_free), calls]

    def _status(self, place: int, before: AllocatorMoment, moment: AllocatorMoment) -> str:
        if place == 0:
            return self._say("start")
        step = self._steps[place - 1]
        name = step.name
        did = self._say(f"did_{step.kind}", name=name, size=exact_bytes(step.size), stream=step.stream)
        said = [self._say("did", step=place, last=len(self._steps), did=did)]
        if step.note:
            said.append(step.note)
        if moment.error is not None:
            said += [moment.error.text(self._lang), self._say("lost", name=name)]
        if moment.passed_over:
            said.append(self._say("passed_over", name=name))
        if moment.reserved != before.reserved:
            change = dict(before=format_bytes(before.reserved), after=format_bytes(moment.reserved))
            said.append(self._say("changed", **change))
        return ("" if self._lang == "zh" else " ").join(said)

    def _segment(self, view: SegmentView, moment: AllocatorMoment) -> int:
        blocks = [self._block(block, view, moment) for block in view.blocks]
        key = (view.pool, view.is_expandable, view.stream, *blocks)
        if key not in self._segments:
            self._segments[key] = len(self._segment_list)
            kind = self._say(f"{view.pool}_expandable" if view.is_expandable else view.pool)
            if view.stream:
                kind = self._say("on_stream", kind=kind, stream=view.stream)
            parts = {"size": view.total_size, "used": view.allocated_size}
            parts["waiting"] = view.active_size - view.allocated_size
            parts["cached"] = view.total_size - view.active_size
            said = {part: format_bytes(size) for part, size in parts.items()}
            label = self._say("segment_waiting" if parts["waiting"] else "segment", kind=kind, **said)
            self._segment_list.append({"label": label, "blocks": blocks})
        return self._segments[key]

    def _block(self, block: BlockView, view: SegmentView, moment: AllocatorMoment) -> int:
        name, state = moment.names.get(block.address, ""), STATES[block.state]
        offset = block.address - view.address
        key = (name, state, block.size, block.requested_size, offset)
        if key not in self._blocks:
            self._blocks[key] = len(self._block_list)
            sizes = dict(size=exact_bytes(block.size), requested=exact_bytes(block.requested_size))
            looks = {"cached": CACHED_LOOK, "waiting": WAITING_LOOK}
            drawn = {
                "label": self._say(f"block_{state}", name=name, offset=exact_bytes(offset), **sizes),
                "short": self._say(f"short_{state}", name=name, size=format_bytes(block.size)),
                "look": looks.get(state, self._looks.get(name, 0)),
            }
            self._block_list.append({**drawn, "name": name, "state": state, "size": block.size})
        return self._blocks[key]
