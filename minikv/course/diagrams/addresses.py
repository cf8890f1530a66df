"""A small memory at several moments: what stands in it, and which names hold an address there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import look

LEFT, TOP, CELL, LANE = 176, 8, 30, 26


@dataclass(frozen=True)
class Heap:
    """``cells`` of the memory after ``what``; ``holders``: name to (first cell, number of cells, owner's name)."""

    what: str
    cells: Sequence[float]
    holders: Mapping[str, tuple[int, int, str]] = field(default_factory=dict)


def addresses(moments: Sequence[Heap], lang: str = "en") -> Diagram:
    """Draw the memory at each moment: an owner with a solid frame over its cells, an address with a dashed one."""
    lang = pick_language(lang)
    picture, lines, y = Picture(), [], float(TOP)
    for moment in moments:
        wide = (WIDTH - LEFT - 2) / len(moment.cells)
        owned = {
            cell
            for name, (first, size, owner) in moment.holders.items()
            for cell in range(first, first + size)
            if owner == name
        }
        said = []
        for name, (first, size, owner) in moment.holders.items():
            kind = "owns" if owner == name else "reads" if owner in moment.holders else "dangles"
            words = text(f"diagrams.addresses_{kind}", lang, name=name)
            picture.box(
                LEFT + first * wide + 2, y, size * wide - 4, LANE - 6, radius=6, edge=1, dashed=owner != name
            )
            picture.words(LEFT + (first + size / 2) * wide, y + 15, words, anchor="middle", size=12)
            values = {"first": first, "last": first + size - 1, "values": _values(moment, first, size)}
            said.append(words + text("diagrams.addresses_line", lang, **values))
            y += LANE
        picture.words(0, y + 20, moment.what)
        for place, value in enumerate(moment.cells):
            fill = look("k") if place in owned else None
            picture.box(LEFT + place * wide, y, wide, CELL, fill, edge=1)
            number = f"{value:g}"
            if width_of(number, 12) < wide:
                picture.words(LEFT + (place + 0.5) * wide, y + 20, number, anchor="middle", size=12, on=fill)
        lines.append(moment.what + text("diagrams.colon", lang) + text("diagrams.joint", lang).join(said))
        y += CELL + 24
    scale = text("diagrams.addresses_scale", lang)
    picture.words(LEFT, y, scale, size=12)
    alt = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, [*lines, scale], lang, width=WIDTH, height=y + 12)


def _values(moment: Heap, first: int, size: int) -> str:
    return ", ".join(f"{value:g}" for value in moment.cells[first : first + size])
