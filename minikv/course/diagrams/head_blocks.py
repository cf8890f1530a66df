"""Blocks in which each head keeps other tokens: none is free where they lie, most are once the kept ones have moved."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture
from minikv.i18n import pick_language, text
from minikv.look import look
from minikv.shown import columns

LEFT, TOP = 152, 52
HIGH, ROW = 24, 46  # of a block, of a row with the counts below it
GAP = 5  # between two blocks


def head_blocks(kept: Any, block_size: int, lang: str = "en") -> Diagram:
    """Draw ``kept`` [heads, tokens] bool, an array or lists, in blocks of ``block_size``: in place, then moved."""
    lang = pick_language(lang)
    heads = [[bool(one) for one in row] for row in kept]
    blocks = -(-len(heads[0]) // block_size)
    moved = [[place < sum(row) for place in range(len(row))] for row in heads]
    picture, rows = Picture(), []
    y: float = TOP
    needed = []
    for key, lists in (("in_place", heads), ("moved", moved)):
        counts = [
            [sum(row[start : start + block_size]) for start in range(0, len(row), block_size)]
            for row in lists
        ]
        used = [any(count) for count in zip(*counts, strict=True)]
        needed.append(sum(used))
        said = text(f"diagrams_eviction.blocks_{key}", lang, needed=sum(used), blocks=blocks)
        picture.words(0, y - 12, said, bold=True)
        for number, (row, own) in enumerate(zip(lists, counts, strict=True)):
            name = text("diagrams_eviction.blocks_head", lang, head=number, kept=sum(row))
            picture.words(0, y + 17, name, size=12)
            _draw(picture, y, row, own, block_size)
            rows.append((name, *map(str, own)))
            y += ROW
        any_head = text("diagrams_eviction.blocks_any", lang)
        picture.words(0, y + 17, any_head, size=12)
        _needed(picture, y, used)
        rows.append((any_head, *(text("diagrams_eviction.blocks_yes", lang) if one else "-" for one in used)))
        y += ROW + 24
    title = text("diagrams_eviction.blocks_title", lang, size=block_size, tokens=len(heads[0]))
    picture.words(0, 16, title, bold=True)
    table = columns(rows, range(1, blocks + 1))
    half = len(rows) // 2
    lines = [title]
    for number, key in enumerate(("in_place", "moved")):
        lines.append(text(f"diagrams_eviction.blocks_{key}", lang, needed=needed[number], blocks=blocks))
        lines += table.splitlines()[number * half : (number + 1) * half]
    alt = text("diagrams.joint", lang).join(" ".join(line.split()) for line in lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=y - 40)


def _edges(count: int, place: int) -> tuple[float, float]:
    wide = (WIDTH - LEFT) / count
    return LEFT + place * wide, wide - GAP


def _draw(picture: Picture, y: float, row: Sequence[bool], counts: Sequence[int], size: int) -> None:
    """Draw the slots of one head, those of kept tokens filled, and below each block how many they are."""
    for block, count in enumerate(counts):
        x, wide = _edges(len(counts), block)
        slot = wide / size
        place = 0
        for stays, run in groupby(row[block * size : (block + 1) * size]):
            length = len(list(run))
            if stays:
                picture.box(x + place * slot, y, length * slot, HIGH, look("k"))
            place += length
        picture.box(x, y, wide, HIGH, edge=1, dashed=not count)
        picture.words(x + wide / 2, y + HIGH + 13, str(count), anchor="middle", size=12)


def _needed(picture: Picture, y: float, used: Sequence[bool]) -> None:
    for block, one in enumerate(used):
        x, wide = _edges(len(used), block)
        picture.box(x, y, wide, HIGH, look("warning") if one else None, edge=1, dashed=not one)
