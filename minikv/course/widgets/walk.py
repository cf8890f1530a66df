"""Lesson 10: the walk widget, how the programs of a paged decode go through one sequence, tile after tile.

A tile is one block, as in the lesson's kernels. Every split is one program and reads one tile a step: an entry of the
block table, then the K and V of that block's slots. The programs run at the same time, so more splits take fewer steps.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minikv.course.widgets.base import script, style
from minikv.course.widgets.fields import select, slider
from minikv.course.widgets.form import FormWidget
from minikv.errors import ArgumentError, MiniKVError, check_count
from minikv.i18n import text

MAX_LENGTH, MAX_SPLITS = 96, 6  # the most that can be drawn
SPARE = 4  # blocks of the pool that this sequence cannot need
BLOCK_SIZES = (4, 8, 16, 32)
WINDOWS = (None, 8, 20, 40)


@dataclass(frozen=True)
class Read:
    """One tile of one program: split ``split`` reads ``entry`` of the table, and tokens ``start`` to ``stop - 1``."""

    split: int
    entry: int
    start: int
    stop: int


def walk(length: int, block_size: int, splits: int, window: int | None = None) -> list[list[Read]]:
    """Return the steps of a decode: what all programs read at the same time, step after step.

    The query is at position ``length - 1``. Tiles behind its window are left out. The others are divided into runs of
    equal length, one a split; the last may be shorter or empty, as in the kernels of ``minikv.kernels.gpu``.
    """
    first = 0 if window is None else max(0, length - window)
    begin, end = first // block_size, -(-length // block_size)
    share = -(-(end - begin) // splits)
    steps: list[list[Read]] = [[] for _ in range(share)]
    for entry in range(begin, end):
        split, step = divmod(entry - begin, share)
        start, stop = max(first, entry * block_size), min(length, (entry + 1) * block_size)
        steps[step].append(Read(split, entry, start, stop))
    return steps


def block_table(length: int, block_size: int) -> tuple[list[int], int]:
    """Return shuffled blocks for the sequence, the same ones at every length; and the number of blocks of the pool."""
    pool = -(-MAX_LENGTH // block_size) + SPARE
    return random.Random(7).sample(range(pool), pool)[: -(-length // block_size)], pool


class WalkWidget(FormWidget):
    """A sequence's tiles, its block table and the pool, while the reader steps through a decode.

    ``lang`` is "en" or "zh". The other arguments are the start, to which Reset returns: ``length`` tokens,
    ``block_size`` tokens a block, ``splits`` programs, ``window`` tokens or None, ``step`` steps taken.

    Raises ``ArgumentError`` for a start that cannot be drawn. Later, such a setting is shown as a sentence.
    """

    _table = "widgets_walk"
    _esm = script("bar.js", "form.js", "table.js", "walk.js")
    _css = style("walk.css")

    def __init__(
        self,
        lang: str = "en",
        *,
        length: int = 52,
        block_size: int = 8,
        splits: int = 1,
        window: int | None = None,
        step: int = 1,
    ):
        start: dict[str, Any] = dict(
            step=step, length=length, splits=splits, block_size=block_size, window=window
        )
        _check(start)
        super().__init__(lang, start)

    def text(self) -> str:
        """Return the view as plain lines, in the widget's language."""
        with self._turn:
            view = self.view
        lines = [
            self.form["title"],
            *("  " + " | ".join(row["values"]) for row in view["table"]),
            view["status"],
        ]
        return "\n".join(lines)

    def _answer(self, state: dict[str, Any], lang: str) -> dict[str, Any]:
        try:
            _check(state)
        except MiniKVError as refusal:
            sentence = refusal.text(lang)
            return dict(tiles=[], pool=0, table=[], aria=sentence, status=sentence, error=True)
        return _view(state, lang)

    def _form(self, lang: str) -> dict[str, Any]:
        table = self._table
        sizes = sorted({*BLOCK_SIZES, self._start["block_size"]})
        windows = [
            [window, text("widgets_walk.all", lang) if window is None else str(window)]
            for window in dict.fromkeys([*WINDOWS, self._start["window"]])
        ]
        return {
            **super()._form(lang),
            **{name: text(f"widgets_walk.{name}", lang) for name in ("row_tiles", "row_table", "row_pool")},
            "columns": [
                text(f"widgets_walk.column_{name}", lang) for name in ("program", "entry", "slots", "tokens")
            ],
            "fields": [
                slider(table, "step", list(range(MAX_LENGTH // min(sizes) + 2)), 0, MAX_LENGTH, 1, lang),
                slider(table, "length", list(range(1, MAX_LENGTH + 1)), 1, MAX_LENGTH, 1, lang),
                slider(table, "splits", list(range(1, MAX_SPLITS + 1)), 1, MAX_SPLITS, 1, lang),
                select(table, "block_size", [[size, str(size)] for size in sizes], lang),
                select(table, "window", windows, lang),
            ],
        }


def _check(state: dict[str, Any]) -> None:
    for key, least, most in (
        ("step", 0, MAX_LENGTH),
        ("length", 1, MAX_LENGTH),
        ("splits", 1, MAX_SPLITS),
        ("block_size", 4, 32),
    ):
        check_count(key, state[key], least=least)
        if state[key] > most:
            raise ArgumentError("out_of_range", what=key, value=state[key], low=least - 1, high=most)
    if state["window"] is not None:
        check_count("window", state["window"])


def _view(state: dict[str, Any], lang: str) -> dict[str, Any]:
    length, size, splits = state["length"], state["block_size"], state["splits"]
    steps = walk(length, size, splits, state["window"])
    table, pool = block_table(length, size)
    taken = min(state["step"], len(steps))
    over = state["step"] > len(steps)
    now = [] if over or not taken else steps[taken - 1]
    when = {read.entry: place for place, reads in enumerate(steps, 1) for read in reads}
    owner = {read.entry: read.split for reads in steps for read in reads}

    tiles = []
    for entry, block in enumerate(table):
        step = when.get(entry)
        if step is None:
            tiles.append(dict(entry=entry, block=-1, split=-1, letter="", state="behind"))
            continue
        is_now = not over and step == taken
        progress = "now" if is_now else "read" if step <= taken else "waiting"
        split = owner[entry]
        tiles.append(dict(entry=entry, block=block, split=split, letter=_letter(split), state=progress))
    rows = _rows(now, splits, table, size, lang)
    values = dict(
        step=taken, steps=len(steps), programs=len(now), tokens=sum(read.stop - read.start for read in now)
    )
    key = "status_over" if over else "status_now" if now else "status_start"
    status = text(f"widgets_walk.{key}", lang, **values, splits=splits)
    aria = text("widgets_walk.aria", lang, length=length, tiles=len(table), splits=splits, status=status)
    return dict(tiles=tiles, pool=pool, table=rows, aria=aria, status=status, error=False)


def _rows(
    now: Sequence[Read], splits: int, table: Sequence[int], size: int, lang: str
) -> list[dict[str, Any]]:
    """Return a line for every program: the entry and block it reads at this step, their slots and tokens."""
    reading = {read.split: read for read in now}
    rows = []
    for split in range(splits):
        read = reading.get(split)
        if read is None:
            values = [_letter(split), *[text("widgets_walk.nothing", lang)] * 3]
        else:
            block = table[read.entry]
            first = block * size + read.start - read.entry * size
            values = [
                _letter(split),
                text("widgets_walk.entry", lang, entry=read.entry, block=block),
                text("widgets_walk.range", lang, first=first, last=first + read.stop - read.start - 1),
                text("widgets_walk.range", lang, first=read.start, last=read.stop - 1),
            ]
        rows.append(dict(key=_letter(split), values=values))
    return rows


def _letter(split: int) -> str:
    return chr(ord("A") + split)
