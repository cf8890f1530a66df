"""A policy's choice: the words of a text, and under each of them what every layer and head thinks of it, and keeps."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import look

if TYPE_CHECKING:
    from minikv.eviction.study.trace import EvictionTrace  # it imports torch

TOP, BETWEEN = 32, 14  # of the first line of words; between two lines
ROW, WORD = 24, 20  # heights of a row of bars and of a line of words
SMALL, LARGE = 8, 19  # heights of a bar: the smallest can still be seen to be filled or not
NARROWEST = 28  # of a word
BOLD = 1.2  # how much wider a bold word is
# A tile that K has nowhere else: what stays differs from what goes by more than a colour.
STAYS = replace(look("k"), tile=look("graphs").tile)


@dataclass(frozen=True)
class _Row:
    name: str
    kept: np.ndarray  # [n] bool
    heights: np.ndarray  # [n], from 0 to 1; NaN where the cache had no such token


def kept_tokens(
    traces: "Mapping[str, EvictionTrace]",
    words: Sequence[str],
    lang: str = "en",
    *,
    facts: Collection[int] = (),
) -> Diagram:
    """Draw the last step of each trace, under the name that ``traces`` gives it ("": none).

    Every trace has a row for each layer and, where heads keep tokens of their own, for each head; the same layer of
    several traces stands together. ``words`` are those of the text, ``facts`` the places of those that are set bold.
    """
    lang = pick_language(lang)
    rows = [
        row
        for layer in range(max(len(trace.layers) for trace in traces.values()))
        for name, trace in traces.items()
        for row in _rows_of(trace, name, layer, lang)
    ]
    names = [row.name for row in rows]
    left = max(width_of(name, 12) for name in names) + 16
    title = text("diagrams_eviction.kept_title", lang, tokens=len(words), facts=len(facts))
    picture, y = Picture(), float(TOP)
    picture.words(0, 16, title, bold=True)
    for line in _broken(words, facts, WIDTH - left):
        y = _draw(picture, rows, words, line, (left, y), facts)
    sums = [_sum(row, facts, lang) for row in rows]
    y = _legend(picture, y, sums, lang)
    colon = text("diagrams.colon", lang)
    said = [
        title,
        *(
            one + colon + " ".join(word for place, word in enumerate(words) if row.kept[place])
            for one, row in zip(sums, rows, strict=True)
        ),
    ]
    alt = text("diagrams.joint", lang).join(said)
    return Diagram(picture, alt, said, lang, width=WIDTH, height=y)


def _rows_of(trace: "EvictionTrace", name: str, layer: int, lang: str) -> list[_Row]:
    heads: list[int | None] = [*range(trace.heads)] if trace.scope == "head" else [None]
    found = []
    for head in heads:
        key = "kept_layer" if head is None else "kept_head"
        place = text(f"diagrams_eviction.{key}", lang, layer=trace.layers[layer], head=head)
        # One list for all heads goes by the mean of their scores.
        scores = trace.scores[layer, :, -1].mean(0) if head is None else trace.scores[layer, head, -1]
        low, high = np.nanmin(scores), np.nanmax(scores)
        heights = (scores - low) / (high - low) if high > low else np.ones_like(scores)
        kept = trace.kept[layer, head or 0, -1]
        found.append(
            _Row(
                text("diagrams.comma", lang).join((name, place)) if name else place,
                kept,
                heights,
            )
        )
    return found


def _broken(
    words: Sequence[str], facts: Collection[int], room: float
) -> list[list[tuple[int, float, float]]]:
    """Lines of (place of the word, its left edge, its width), none of them wider than ``room``."""
    lines: list[list[tuple[int, float, float]]] = [[]]
    x = 0.0
    for place, word in enumerate(words):
        wide = max(NARROWEST, width_of(word, 12) * (BOLD if place in facts else 1) + 8)
        if x + wide > room and lines[-1]:
            lines.append([])
            x = 0.0
        lines[-1].append((place, x, wide))
        x += wide
    return lines


def _draw(
    picture: Picture,
    rows: Sequence[_Row],
    words: Sequence[str],
    line: Sequence[tuple[int, float, float]],
    corner: tuple[float, float],
    facts: Collection[int],
) -> float:
    """Draw a line of words with its bars; return the height at which it ends."""
    left, y = corner
    for number, row in enumerate(rows):
        picture.words(0, y + WORD + (number + 1) * ROW - 4, row.name, size=12)
    gone = []
    for place, x, wide in line:
        picture.words(left + x, y + 14, words[place], size=12, bold=place in facts)
        for number, row in enumerate(rows):
            if np.isnan(row.heights[place]):
                continue
            high = SMALL + (LARGE - SMALL) * float(row.heights[place])
            box = left + x, y + WORD + (number + 1) * ROW - 2 - high, wide - 6, high
            if row.kept[place]:
                picture.box(*box, STAYS, edge=1)
            else:
                gone.append(box)
    picture.frames(gone)
    return y + WORD + len(rows) * ROW + BETWEEN


def _legend(picture: Picture, y: float, lines: Sequence[str], lang: str) -> float:
    x = 0.0
    for key, stays in (("kept_stays", True), ("kept_goes", False)):
        said = text(f"diagrams_eviction.{key}", lang)
        picture.box(x, y, 16, 16, STAYS if stays else None, edge=1, dashed=not stays)
        picture.words(x + 22, y + 13, said, size=12)
        x += 22 + width_of(said, 12) + 24
    picture.words(x, y + 13, text("diagrams_eviction.kept_height", lang), size=12)
    for number, said in enumerate(lines):
        picture.words(0, y + 40 + 18 * number, said, size=12)
    return y + 32 + 18 * len(lines)


def _sum(row: _Row, facts: Collection[int], lang: str) -> str:
    kept = np.flatnonzero(row.kept).tolist()
    of_facts = sum(place in facts for place in kept)
    return text("diagrams_eviction.kept_line", lang, row=row.name, kept=len(kept), facts=of_facts)
