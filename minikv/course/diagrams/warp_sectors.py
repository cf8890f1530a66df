"""What one warp asks memory for: the elements of its 32 threads, and the sectors in which memory answers."""

from collections.abc import Mapping, Sequence

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture
from minikv.i18n import pick_language, text
from minikv.look import look

LEFT, TOP, CELL, ROW = 120, 28, 26, 72


def warp_sectors(
    orders: Mapping[str, Sequence[int]], lang: str = "en", *, element_bytes: int = 4, sector_bytes: int = 32
) -> Diagram:
    """Draw what the threads of a warp ask for in each order: a box is a thread, numbered by the sector that answers."""
    lang = pick_language(lang)
    picture, lines = Picture(), []
    picture.words(0, 14, text("diagrams.sectors_title", lang, size=sector_bytes), size=12)
    for row, (name, indices) in enumerate(orders.items()):
        y = TOP + ROW * row
        picture.words(0, y + 17, name)
        sectors = [index * element_bytes // sector_bytes for index in indices]
        numbers = {sector: number for number, sector in enumerate(dict.fromkeys(sectors))}
        wide = (WIDTH - LEFT) / len(indices)
        for thread, sector in enumerate(sectors):
            x, fill = LEFT + thread * wide, look(numbers[sector])
            picture.box(x, y, wide, CELL, fill, edge=1)
            picture.words(
                x + wide / 2, y + 17, str(numbers[sector] + 1), anchor="middle", size=11, on=fill, halo=6
            )
        values = {
            "sectors": len(numbers),
            "moved": len(numbers) * sector_bytes,
            "asked": len(indices) * element_bytes,
        }
        said = text("diagrams.sectors_line", lang, first=", ".join(map(str, indices[:4])), **values)
        picture.words(LEFT, y + CELL + 18, said, size=12)
        lines.append(f"{name}{text('diagrams.colon', lang)}{said}")
    alt = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=TOP + ROW * len(orders))
