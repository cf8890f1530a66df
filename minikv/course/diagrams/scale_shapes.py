"""Which numbers of a few keys share a scale: one a tensor, a channel, a head, a token or a row, with the errors."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture
from minikv.i18n import pick_language, text
from minikv.look import look

if TYPE_CHECKING:
    from minikv.course.lessons.l13.scales import SharedScale  # it imports torch

HEADS, TOKENS, CHANNELS = 2, 3, 4  # of the small keys that are drawn
CELL, APART = 20, 16  # a number, and the space between two heads
TOP, ROW = 60, 88  # the first way, and from one way to the next
WORDS = HEADS * CHANNELS * CELL + APART + 32  # where a way's words begin


def scale_shapes(found: "Mapping[str, Sequence[SharedScale]]", lang: str = "en") -> Diagram:
    """Draw each way to share a scale; ``found`` has, for each name of some keys, what each way made of them."""
    from minikv.course.lessons.l13.scales import scale_groups

    lang = pick_language(lang)
    picture, lines = Picture(), []
    title = text("diagrams_bytes.shapes_title", lang, heads=HEADS, tokens=TOKENS, channels=CHANNELS)
    picture.words(0, 16, title, bold=True)
    lines.append(title)
    for head in range(HEADS):
        said = text("diagrams_bytes.shapes_column", lang, head=head)
        picture.words(head * (CHANNELS * CELL + APART), TOP - 16, said, size=12)
    for place, each in enumerate(zip(*found.values(), strict=True)):
        y, way = TOP + place * ROW, each[0].way
        groups = scale_groups(way, HEADS, TOKENS, CHANNELS).tolist()
        for head, rows in enumerate(groups):  # [heads, tokens, channels]
            for token, row in enumerate(rows):
                for channel, own in enumerate(row):
                    x = head * (CHANNELS * CELL + APART) + channel * CELL
                    picture.box(x, y + token * CELL, CELL, CELL, look(own), edge=0.5)
        name = text(f"diagrams_bytes.shapes_{way}", lang)
        head_line = text(
            "diagrams_bytes.shapes_count", lang, name=name, scales=each[0].scales, nbytes=each[0].nbytes
        )
        picture.words(WORDS, y + 14, head_line, bold=True)
        errors = [
            text("diagrams_bytes.shapes_error", lang, keys=keys, error=one.error)
            for keys, one in zip(found, each, strict=True)
        ]
        for number, said in enumerate(errors):
            picture.words(WORDS, y + 34 + 20 * number, said, size=12)
        lines.append(text("diagrams.joint", lang).join((head_line, *errors)))
    alt = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=TOP + len(lines[1:]) * ROW - 20)
