"""The places of a cache's rows: which of them hold a token, and how far the row's length says that they do."""

from collections.abc import Mapping, Sequence

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import Look, look

TOP, ROW, CELL = 28, 44, 24
MARK = 4  # what the mark of a length stands out above and below
LOOKS: dict[str, Look | None] = {
    "right": look("k"),
    "hole": look("warning"),
    "lost": look("other"),
    "empty": None,
}


def places(rows: Mapping[str, tuple[Sequence[bool], int]], lang: str = "en") -> Diagram:
    """Draw ``rows``: for each name, which of its places hold a token, and the row's length.

    A place before the length that holds none is a hole that attention reads; a token behind the length is lost.
    """
    lang = pick_language(lang)
    picture = Picture()
    left = max(width_of(name) for name in rows) + 16
    wide = min(28.0, (WIDTH - left - 8) / max(len(held) for held, _ in rows.values()))
    lines, seen = [], set()
    for number, (name, (held, length)) in enumerate(rows.items()):
        y = TOP + ROW * number
        picture.words(0, y + 17, name)
        found: dict[str, list[int]] = {state: [] for state in LOOKS}
        for place, filled in enumerate(held):
            found[_state(filled, place < length)].append(place)
            picture.box(left + place * wide, y, wide, CELL, LOOKS[_state(filled, place < length)], edge=1)
        end = left + length * wide
        picture.box(end - 1.5, y - MARK, 3, CELL + 2 * MARK, edge=3)
        said = [
            text(f"diagrams.places_{state}_line", lang, places=_ranges(found[state]), count=len(found[state]))
            for state in ("right", "hole", "lost")
            if found[state]
        ]
        seen |= {state for state in LOOKS if found[state]}
        start = text("diagrams.places_line", lang, name=name, length=length)
        lines.append(start + text("diagrams.joint", lang).join(said))
    y, x = TOP + ROW * len(rows), 0.0
    for state, fill in LOOKS.items():
        if state not in seen:
            continue
        said_of = text(f"diagrams.places_{state}", lang)
        picture.box(x, y, 16, 16, fill, edge=1)
        picture.words(x + 22, y + 13, said_of, size=12)
        x += 22 + width_of(said_of, 12) + 20
    picture.words(0, 14, text("diagrams.places_title", lang), size=12)
    joined = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, joined, lines, lang, width=WIDTH, height=y + 24)


def _state(filled: bool, inside: bool) -> str:
    if inside:
        return "right" if filled else "hole"
    return "lost" if filled else "empty"


def _ranges(numbers: Sequence[int]) -> str:
    """Whole numbers as ranges: ``0-8, 12``."""
    ends: list[list[int]] = []
    for number in numbers:
        if ends and ends[-1][1] == number - 1:
            ends[-1][1] = number
        else:
            ends.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ends)
