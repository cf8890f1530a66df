"""One step as one row of tokens: the sequence and position of each, and the slot that K and V go to."""

from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture
from minikv.i18n import pick_language, text
from minikv.look import look

if TYPE_CHECKING:
    from minikv.engine import Step  # it imports torch

LEFT, GAP = 112, 20  # of the row, and between two sequences
NAME, POSITION, TOKEN, SLOT, START, END, DRAWN = 16, 50, 84, 118, 152, 178, 204  # lines of the drawing
CELL, WIDEST = 30, 56.0


def packed_step(step: "Step", lang: str = "en") -> Diagram:
    """Draw the tokens of ``step`` in the order of its forward, with the arrays of its first KV cache group."""
    lang = pick_language(lang)
    batch, picture, lines = step.batch, Picture(), []
    wide = min(WIDEST, (WIDTH - LEFT - GAP * (len(step.items) - 1)) / step.num_tokens)
    for key, y in (
        ("positions", POSITION),
        ("token_ids", TOKEN),
        ("slot_mapping", SLOT),
        ("query_starts", START),
        ("lengths", END),
        ("samples", DRAWN),
    ):
        picture.words(0, y, key, size=12, bold=key == "token_ids")
    starts, lengths = batch.query_starts.tolist(), batch.lengths.tolist()
    positions, slots = batch.positions.tolist(), batch.slot_mapping[0].tolist()
    for number, item in enumerate(step.items):
        start, fill = starts[number], look(number)
        x = LEFT + start * wide + number * GAP
        picture.words(x, NAME, str(item.id.request), bold=True)
        for place, token in enumerate(item.tokens):
            row, at = start + place, x + place * wide
            middle = at + wide / 2
            picture.words(middle, POSITION, str(positions[row]), anchor="middle", size=12)
            picture.box(at, TOKEN - 20, wide - 2, CELL, fill, edge=1)
            picture.words(middle - 1, TOKEN, str(token), anchor="middle", on=fill, halo=6)
            picture.words(middle, SLOT, str(slots[row]), anchor="middle", size=12)
        picture.words(x, START, str(start), size=12)
        picture.words(x, END, str(lengths[number]), size=12)
        picture.words(x, DRAWN, str(len(item.samples)), size=12)
        lines.append(
            text(
                "diagrams_batching.packed_line",
                lang,
                name=item.id.request,
                positions=" ".join(map(str, positions[start : starts[number + 1]])),
                slots=" ".join(map(str, slots[start : starts[number + 1]])),
                tokens=" ".join(map(str, item.tokens)),
                start=start,
                length=lengths[number],
                samples=len(item.samples),
            )
        )
    lines.append(text("diagrams_batching.packed_total", lang, total=starts[-1], sequences=len(step.items)))
    picture.words(0, DRAWN + 30, lines[-1], size=12)
    alt = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=DRAWN + 40)
