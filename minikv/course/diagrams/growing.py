"""A cache that grows: torch.cat makes a new tensor in every step and copies the old one; a linear cache stays."""

from collections.abc import Sequence
from dataclasses import dataclass

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import Look, look

TOP, ROW, CELL = 56, 34, 22
JOINED, LINEAR = 72, 472  # left edges of the two columns' tokens
CELLS_WIDE = 240  # of a column; the bytes stand to its right
EDGE = 3  # of the new tokens


@dataclass(frozen=True)
class Growth:
    """One step: ``tokens`` in the cache after it; bytes of the tensor before and after it; bytes that were reserved."""

    tokens: int
    old_bytes: int
    new_bytes: int
    reserved_bytes: int


def growing(steps: Sequence[Growth], max_seq: int, lang: str = "en") -> Diagram:
    """Draw the tokens after each of ``steps``: joined with torch.cat, and in one tensor of ``max_seq``."""
    lang = pick_language(lang)
    picture, held, copied, lines = Picture(), 0, 0, []
    wide = CELLS_WIDE / max_seq
    for left, name in ((JOINED, "joined"), (LINEAR, "linear")):
        picture.words(left, 16, text(f"diagrams.growing_{name}", lang), bold=True)
        picture.words(left, 36, text(f"diagrams.growing_{name}_says", lang), size=12)
    for number, step in enumerate(steps):
        y, added = TOP + ROW * number, step.new_bytes - step.old_bytes
        picture.words(0, y + 16, text("diagrams.growing_step", lang, step=number + 1))
        for place in range(max_seq):
            new = held <= place < step.tokens
            if place < step.tokens:
                fill = look("k" if new else "warning")
                picture.box(JOINED + place * wide, y, wide, CELL, fill, edge=EDGE if new else 1)
            kept = look("k") if place < step.tokens else None
            picture.box(LINEAR + place * wide, y, wide, CELL, kept, edge=EDGE if new else 1)
        copies = text("diagrams.growing_copies", lang, size=step.old_bytes)
        writes = text("diagrams.growing_writes", lang, size=added)
        picture.words(JOINED + step.tokens * wide + 8, y + 16, copies, size=12)
        picture.words(LINEAR + CELLS_WIDE + 8, y + 16, writes, size=12)
        values = {"step": number + 1, "tokens": step.tokens, "old": step.old_bytes, "added": added}
        lines.append(text("diagrams.growing_line", lang, **values))
        held, copied = step.tokens, copied + step.old_bytes
    y = TOP + ROW * len(steps) + 12
    x = float(JOINED)
    legend: list[tuple[str, Look | None, int]]
    legend = [("copied", look("warning"), 1), ("new", look("k"), EDGE), ("empty", None, 1)]
    for name, shown, edge in legend:
        said = text(f"diagrams.growing_{name}", lang)
        picture.box(x, y - 4, 16, 16, shown, edge=edge)
        picture.words(x + 22, y + 9, said, size=12)
        x += 22 + width_of(said, 12) + 24
    last = steps[-1]
    values = {"copied": copied, "held": last.new_bytes, "reserved": last.reserved_bytes}
    sums = [text(f"diagrams.growing_{name}_sum", lang, **values) for name in ("joined", "linear")]
    for place, said in enumerate(sums):
        picture.words(JOINED, y + 40 + 20 * place, said, bold=True)
    title = text("diagrams.growing_title", lang, steps=len(steps), max_seq=max_seq)
    alt = text("diagrams.joint", lang).join([title, *lines, *sums])
    return Diagram(picture, alt, [title, *lines, *sums], lang, width=WIDTH, height=y + 68)
