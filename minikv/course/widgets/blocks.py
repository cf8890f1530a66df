"""The block widget: a pool of blocks, the sequences that hold each one, and how far each block is filled.

Python says what is in the pool, step by step; the script draws the chosen step. All steps are part of the widget, so
the slider and Play work while a cell is busy, and without a kernel.
"""

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anywidget
import traitlets

from minikv.course.widgets.base import photo_page, script, style
from minikv.errors import ArgumentError
from minikv.i18n import pick_language, text

WIDE_COLUMNS = 8  # up to so many blocks a row, each block has room for its number and its fill in words
LATEST = -1  # the latest step; the script follows it without a message to a busy kernel
MANY_OWNERS = 2  # a cell has room for two names
MAX_IDS = 12  # block ids written out in one row of the table


@dataclass(frozen=True)
class SequenceBlocks:
    """One sequence: its name, its block table (ids in the order of its tokens) and its length in tokens.

    Two sequences may hold the same block. The table may be longer than the tokens need; the rest is reserved.
    """

    name: str
    blocks: tuple[int, ...]
    num_tokens: int


class BlocksWidget(anywidget.AnyWidget):
    """A grid of ``num_blocks`` blocks of ``block_size`` tokens, with a slider over the steps.

    ``lang`` is "en" or "zh". ``sequences`` is the pool at step 0, empty by default; ``add_step`` adds a step. ``step``
    is the one shown, -1 for the latest. Every step is kept, and all are sent again when a new one is shown: the widget
    is meant for hundreds of steps, not thousands.

    Raises ``ArgumentError`` for an invalid language or size, for a block id outside the pool or twice in one table, and
    for more tokens than a table has slots.
    """

    _esm = script("bar.js", "blocks.js")
    _css = style("blocks.css")

    form = traitlets.Dict().tag(sync=True)
    frames: Any = traitlets.List().tag(sync=True)
    step = traitlets.Int(LATEST).tag(sync=True)

    def __init__(
        self,
        lang: str = "en",
        *,
        num_blocks: int,
        block_size: int,
        sequences: Sequence[SequenceBlocks] = (),
    ):
        for what, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if value < 1:
                raise ArgumentError("bad_count", what=what, value=value, least=1)
        self._lang = pick_language(lang)
        self._num_blocks, self._block_size = num_blocks, block_size
        self._turn = threading.RLock()
        self._looks: dict[str, int] = {}
        first = self._frame(sequences)
        super().__init__(form=self._form(self._lang), frames=[first])

    def add_step(
        self,
        sequences: Sequence[SequenceBlocks],
        note: str | Mapping[str, str] = "",
        *,
        cached: Collection[int] = (),
    ) -> None:
        """Add a step, with a ``note`` before its figures. A page that follows the latest step shows it at once.

        The note is text in the widget's language, or a text for each language. ``cached`` are the free blocks with
        content that can still be found. Any thread may call it. Raises ``ArgumentError`` as the class does, and then
        adds nothing.
        """
        said = note if isinstance(note, str) else note.get(self._lang, "")
        with self._turn:
            self.frames = [*self.frames, self._frame(sequences, said, frozenset(cached))]

    @traitlets.validate("step")
    def _within(self, proposal: Any) -> int:
        return min(max(proposal["value"], LATEST), len(self.frames) - 1)

    def text(self) -> str:
        """Return the step on display as plain lines, in the widget's language."""
        frames, step = self.frames, self.step
        last = len(frames) - 1
        step = last if step == LATEST else step
        frame = frames[step]
        size = dict(num_blocks=self._num_blocks, block_size=self._block_size)
        lines = [text("widgets_blocks.summary", self._lang, step=step, last=last, **size)]
        for name, tokens, blocks, empty in frame["rows"]:
            row = text("widgets_blocks.row", self._lang, name=name, tokens=tokens, blocks=blocks, empty=empty)
            lines.append(f"  {row}")
        return "\n".join([*lines, frame["status"]])

    def photo_html(self) -> str:
        """Return a page that draws this widget as it is now, in its language, inside ``id="photo"``."""
        return photo_page(self.form["title"], self._esm, self._css, self._photo_traits())

    def _photo_traits(self) -> dict[str, Any]:
        return {"form": self.form, "frames": self.frames, "step": self.step}

    def _form(self, lang: str) -> dict[str, Any]:
        columns = min(self._num_blocks, WIDE_COLUMNS if self._num_blocks <= 8 * WIDE_COLUMNS else 32)
        size = dict(num_blocks=self._num_blocks, block_size=self._block_size)
        return {
            "lang": "zh-CN" if lang == "zh" else "en",
            "title": text("widgets_blocks.title", lang),
            "size": text("widgets_blocks.size", lang, **size),
            "block_size": self._block_size,
            "columns": max(columns, 4),
            "wide": columns <= WIDE_COLUMNS,
            "step": text("widgets_blocks.step", lang),
            "step_value": text("widgets_blocks.step_value", lang, step="{step}", last="{last}"),
            "play": text("widgets_blocks.play", lang),
            "pause": text("widgets_blocks.pause", lang),
            "head": [
                text(f"widgets_blocks.column_{name}", lang)
                for name in ("sequence", "tokens", "blocks", "empty")
            ],
        }

    def _frame(
        self, sequences: Sequence[SequenceBlocks], note: str = "", cached: Collection[int] = ()
    ) -> dict[str, Any]:
        """Return one step for the script: a cell for each block, a row for each sequence, and both in one sentence."""
        lang = self._lang
        filled, owners = self._fill(sequences)
        for sequence in sequences:
            self._looks.setdefault(sequence.name, len(self._looks))
        cells = [
            self._cell(block, filled[block], owners.get(block, ()), block in cached)
            for block in range(self._num_blocks)
        ]
        rows = [self._row(sequence) for sequence in sequences]
        kinds = Counter(cell["kind"] for cell in cells)
        slots = (kinds["full"] + kinds["part"]) * self._block_size
        counts = dict(full=kinds["full"], part=kinds["part"], free=kinds["free"] + kinds["cached"])
        tokens = sum(filled.values())
        status = text(
            "widgets_blocks.status", lang, **counts, slots=slots, tokens=tokens, empty=slots - tokens
        )
        if cached:
            said = text("widgets_blocks.status_cached", lang, cached=kinds["cached"])
            status = text("widgets_blocks.with_note", lang, note=status, status=said)
        if note:
            status = text("widgets_blocks.with_note", lang, note=note, status=status)
        return {"cells": cells, "rows": rows, "status": status}

    def _fill(self, sequences: Sequence[SequenceBlocks]) -> tuple[Counter, dict[int, list[str]]]:
        """Return the tokens in each block and the names of its holders. Checks every table on the way."""
        filled: Counter[int] = Counter()
        owners: dict[int, list[str]] = {}
        for sequence in sequences:
            self._check(sequence)
            for place, block in enumerate(sequence.blocks):
                here = min(max(sequence.num_tokens - place * self._block_size, 0), self._block_size)
                filled[block] = max(filled[block], here)
                owners.setdefault(block, []).append(sequence.name)
        return filled, owners

    def _check(self, sequence: SequenceBlocks) -> None:
        for block in sequence.blocks:
            if not 0 <= block < self._num_blocks:
                raise ArgumentError(
                    "block_outside_pool", sequence=sequence.name, block=block, last=self._num_blocks - 1
                )
        twice = [block for block, count in Counter(sequence.blocks).items() if count > 1]
        if twice:
            raise ArgumentError("block_twice", sequence=sequence.name, block=twice[0])
        slots = len(sequence.blocks) * self._block_size
        if not 0 <= sequence.num_tokens <= slots:
            raise ArgumentError(
                "block_table_too_short",
                sequence=sequence.name,
                num_tokens=sequence.num_tokens,
                blocks=len(sequence.blocks),
                block_size=self._block_size,
                slots=slots,
            )

    def _cell(self, block: int, filled: int, owners: Sequence[str], cached: bool) -> dict[str, Any]:
        lang = self._lang
        unheld = "cached" if cached else "free"
        held = "full" if filled == self._block_size else "part"
        kind = held if owners else unheld
        held_by = "+".join(owners)
        key = "widgets_blocks.cell" if owners else f"widgets_blocks.cell_{kind}"
        values = dict(block=block, filled=filled, block_size=self._block_size)
        label = text(key, lang, owners=held_by, **values)
        many = text("widgets_blocks.many_owners", lang, count=len(owners))
        short = label if len(owners) <= MANY_OWNERS else text(key, lang, owners=many, **values)
        look = self._looks[owners[0]] if len(owners) == 1 else "shared"
        return {
            "label": label,
            "short": short,
            "owners": held_by,
            "kind": kind,
            "filled": filled,
            "look": look,
        }

    def _row(self, sequence: SequenceBlocks) -> list[str]:
        ids = ", ".join(map(str, sequence.blocks[:MAX_IDS])) + (
            ", ..." if len(sequence.blocks) > MAX_IDS else ""
        )
        empty = len(sequence.blocks) * self._block_size - sequence.num_tokens
        return [sequence.name, f"{sequence.num_tokens:,}", f"[{ids}]", f"{empty:,}"]
