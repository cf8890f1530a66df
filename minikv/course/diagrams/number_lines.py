"""The numbers that each codec can store on a number line, with a row's exact and stored values."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import look

if TYPE_CHECKING:
    from minikv.course.lessons.l13.levels import Levels  # it imports torch

LEFT, RIGHT, TOP = 104, 24, 48
ROW, TALL = 92, 26  # from one codec to the next, and the height of its levels
DOT = 5
EXACT, STORED = look("k"), look("v")
NEAREST = 1.2  # pixels: levels nearer than that are drawn as one


def number_lines(codecs: "Sequence[Levels]", lang: str = "en", *, most: float | None = None) -> Diagram:
    """Draw what each of ``codecs`` stores for the same row, from -``most`` to ``most`` (None: the row's largest)."""
    lang = pick_language(lang)
    exact = codecs[0].exact
    largest = max(map(abs, exact))
    reach = largest if most is None else most
    middle, scale = (LEFT + WIDTH - RIGHT) / 2, (WIDTH - RIGHT - LEFT) / 2 / reach
    picture = Picture()
    title = text("diagrams_bytes.lines_title", lang, count=len(exact), largest=largest, reach=reach)
    picture.words(0, 16, title, bold=True)
    lines = [title]
    for place, one in enumerate(codecs):
        y = TOP + place * ROW
        lines.append(_draw(picture, one, y, middle, scale, reach, lang))
    bottom = TOP + len(codecs) * ROW
    for at in (-reach, -reach / 2, 0.0, reach / 2, reach):
        picture.words(middle + at * scale, bottom, f"{at:.3g}", anchor="middle", size=12)
    x = float(LEFT)
    for key, fill in (("exact", EXACT), ("stored", STORED)):
        said = text(f"diagrams_bytes.lines_{key}", lang)
        picture.box(x, bottom + 16, 12, 12, fill, radius=6, edge=1)
        picture.words(x + 20, bottom + 27, said, size=12)
        x += 20 + width_of(said, 12) + 24
    picture.words(x, bottom + 27, text("diagrams_bytes.lines_level", lang), size=12)
    alt = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=bottom + 40)


def _draw(
    picture: Picture, one: "Levels", y: float, middle: float, scale: float, reach: float, lang: str
) -> str:
    """Draw one codec's line; return it as a line of text."""
    picture.words(0, y + 22, one.codec, bold=True)
    seen = [level for level in one.levels if abs(level) <= reach * 1.0001]
    ticks: list[float] = []
    for level in seen:
        x = middle + level * scale
        if not ticks or x - ticks[-1] >= NEAREST:
            ticks.append(x)
    picture.lines((x, y, x, y + TALL) for x in ticks)
    pairs = [pair for pair in zip(one.exact, one.stored, strict=True) if abs(pair[0]) <= reach * 1.0001]
    for value, stored in pairs:
        for at, height, fill in ((value, y - 6, EXACT), (stored, y + TALL + 6, STORED)):
            x = middle + max(-reach, min(reach, at)) * scale
            picture.box(x - DOT, height - DOT, 2 * DOT, 2 * DOT, fill, radius=DOT, edge=0.5)
    off = [abs(value - stored) for value, stored in zip(one.exact, one.stored, strict=True)]
    zeros = sum(stored == 0 for stored in one.stored)
    said = text(
        "diagrams_bytes.lines_codec",
        lang,
        levels=len(seen),
        most=max(off),
        mean=sum(off) / len(off),
        distinct=len(set(one.stored)),
        zeros=zeros,
    )
    picture.words(LEFT, y + TALL + 28, said, size=12)
    return one.codec + text("diagrams.colon", lang) + said
