"""Lesson 09: paging as it moves, the states of a ``PagingRecorder`` in the words of one language."""

from collections.abc import Mapping, Sequence
from typing import Any

from minikv.blocks import NULL_BLOCK
from minikv.course.motion.paging_states import BlockState, Held, PagingRecorder, PagingState
from minikv.course.motion.scene import scene_style
from minikv.course.motion.widget import Motion, widget_module
from minikv.i18n import pick_language, text

MOST_IDS = 8  # token ids of one block that the text writes out
MANY_OWNERS = 3  # names that stand beside a block


class PagingMotion(Motion):
    """Shows what ``recorder`` has recorded so far: tokens that fly to their slots, arrows that follow the block tables.

    ``lang`` is "en" or "zh"; ``step`` is the state on display at first.
    """

    _name = "paging"
    _esm = widget_module("paging")
    _css = scene_style("paging")

    def __init__(self, lang: str, recorder: PagingRecorder, *, step: int = 0):
        lang = pick_language(lang)
        manager = recorder.manager
        size = {"block_size": manager.block_size, "num_blocks": manager.pools[0].num_blocks}
        words = {name: _say(name, lang, **size) for name in ("size", "logical", "table", "physical")}
        words["title"] = _say(recorder.title, lang)
        states = [paging_view(state, lang) for state in recorder.states]
        super().__init__(lang, {**size, **words}, states, step)

    def _figures(self, step: int, state: dict[str, Any]) -> list[str]:
        lines = [
            _say("line_sequence", self._lang, name=name, tokens=length, table=str(table))
            for name, _, length, table, _ in state["sequences"]
        ]
        before = self.states[step - 1]["blocks"] if step else [None] * len(state["blocks"])
        return lines + [
            _say("line_block", self._lang, block=block, said=now[3], ids=_ids(now[2]))
            for block, (old, now) in enumerate(zip(before, state["blocks"], strict=True))
            if old != now and (old or now[0] != "empty")
        ]


def paging_view(state: PagingState, lang: str) -> dict[str, Any]:
    """Return one state as paging.js draws it."""
    numbers = {seq.name: seq.number for seq in state.sequences}
    return {
        "status": ("" if lang == "zh" else " ").join(
            [_say(f"said_{key}", lang, **_values(values, lang)) for key, values in state.said]
            + [_counts(state.blocks, lang)]
        ),
        "sequences": [_sequence(seq) for seq in state.sequences],
        "blocks": [_block(block, numbers, lang) for block in state.blocks],
        "writes": [list(write) for write in state.writes],
        "copies": [list(copy) for copy in state.copies],
        "found": list(state.found),
    }


def _sequence(seq: Held) -> list[Any]:
    return [seq.name, seq.number, len(seq.ids), list(seq.table), list(seq.ids)]


def _block(block: BlockState, numbers: Mapping[str, int], lang: str) -> list[Any]:
    if block.kind == "used":
        look: int | str | None = numbers[block.owners[0]]
    else:
        look = None if block.kind == "empty" else block.kind
    if not block.owners:
        said = _say(block.kind, lang)
    elif len(block.owners) > MANY_OWNERS:
        said = _say("owners", lang, count=len(block.owners))
    else:
        said = "+".join(block.owners)
    return [block.kind, look, list(block.ids), said]


def _counts(blocks: Sequence[BlockState], lang: str) -> str:
    kinds = [block.kind for block in blocks]
    shared = kinds.count("shared")
    counts = dict(
        held=shared + kinds.count("used"), shared=shared,
        cached=kinds.count("cached"), empty=kinds.count("empty"),
    )  # fmt: skip
    return _say("counts", lang, **counts)


def _values(values: Mapping[str, Any], lang: str) -> dict[str, Any]:
    return {name: _word(value, lang) for name, value in values.items()}


def _word(value: Any, lang: str) -> Any:
    joint = _say("joint", lang)
    if isinstance(value, Mapping):
        return joint.join(f"{name} {count:,}" for name, count in value.items())
    if isinstance(value, list):
        return joint.join(str(one) for one in value if one != NULL_BLOCK)
    return value


def _ids(ids: Sequence[int]) -> str:
    more = " ..." if len(ids) > MOST_IDS else ""
    return " ".join(map(str, ids[:MOST_IDS])) + more


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"widgets_paging.{key}", lang, **values)
