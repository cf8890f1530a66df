"""Recorded states of paging as paging.js draws them, in the words of one language; plain data, for a page too."""

from collections.abc import Mapping, Sequence
from typing import Any

from minikv.blocks.pool import NULL_BLOCK
from minikv.course.motion.paging_states import BlockState, Held, PagingState, PagingStates
from minikv.i18n import text

MANY_OWNERS = 3  # names that stand beside a block


def paging_form(recorded: PagingStates, lang: str) -> dict[str, Any]:
    """Return what does not change from state to state, without the words of the controls."""
    size = {"block_size": recorded.block_size, "num_blocks": recorded.num_blocks}
    words = {name: say(name, lang, **size) for name in ("size", "logical", "table", "physical")}
    return {**size, **words, "title": say(recorded.title, lang)}


def paging_view(state: PagingState, lang: str) -> dict[str, Any]:
    """Return one state as paging.js draws it."""
    numbers = {seq.name: seq.number for seq in state.sequences}
    return {
        "status": ("" if lang == "zh" else " ").join(
            [say(f"said_{key}", lang, **_values(values, lang)) for key, values in state.said]
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
        said = say(block.kind, lang)
    elif len(block.owners) > MANY_OWNERS:
        said = say("owners", lang, count=len(block.owners))
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
    return say("counts", lang, **counts)


def _values(values: Mapping[str, Any], lang: str) -> dict[str, Any]:
    return {name: _word(value, lang) for name, value in values.items()}


def _word(value: Any, lang: str) -> Any:
    joint = say("joint", lang)
    if isinstance(value, Mapping):
        return joint.join(f"{name} {count:,}" for name, count in value.items())
    if isinstance(value, list):
        return joint.join(str(one) for one in value if one != NULL_BLOCK)
    return value


def say(key: str, lang: str, **values: Any) -> str:
    """Return a sentence of paging."""
    return text(f"widgets_paging.{key}", lang, **values)
