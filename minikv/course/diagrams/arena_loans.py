"""One allocation and the tensors borrowed from it: where each loan begins, and which of them are still in use."""

from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture
from minikv.i18n import pick_language, text
from minikv.look import look

if TYPE_CHECKING:
    from minikv.memory.arena import ArenaReport  # it imports torch

TOP = 44
STRIP, STRIP_WIDE = 128, 232  # the arena: its left edge and its width
TENSOR, TENSOR_WIDE = 480, 376
LOAN, PADDING = 44, 24  # heights; not to scale, for a loan may be a thousand times as large as the next


def arena_loans(report: "ArenaReport", lang: str = "en") -> Diagram:
    """Draw the loans of an arena in their order, each with its bytes, and an arrow from every tensor in use."""
    lang = pick_language(lang)
    picture, y, end = Picture(), float(TOP), 0
    picture.words(STRIP, 16, text("diagrams.arena_strip", lang, name=report.name), bold=True)
    picture.words(STRIP, 34, f"{report.capacity:,} B", size=12)
    picture.words(TENSOR, 16, text("diagrams.arena_tensors", lang), bold=True)
    for number, loan in enumerate(report.borrowers):
        if loan.offset > end:
            y = _between(picture, y, end, "padding", loan.offset - end, lang)
        fill = look(number) if loan.alive else None
        picture.box(STRIP, y, STRIP_WIDE, LOAN, fill, edge=1, dashed=not loan.alive)
        middle, size = y + LOAN / 2, f"{loan.nbytes:,} B"
        picture.words(STRIP + STRIP_WIDE / 2, middle + 5, size, anchor="middle", on=fill, halo=10)
        _offset(picture, y, loan.offset)
        shape = " ".join((str(list(loan.shape)), str(loan.dtype).removeprefix("torch.")))
        picture.box(TENSOR, y + 2, TENSOR_WIDE, LOAN - 4, radius=6, edge=1, dashed=not loan.alive)
        picture.words(TENSOR + 12, y + 19, loan.name, bold=True)
        state = text(f"diagrams.arena_{'alive' if loan.alive else 'gone'}", lang)
        picture.words(TENSOR + 12, y + 36, text("diagrams.comma", lang).join((shape, state)), size=12)
        if loan.alive:
            picture.curve((TENSOR - 4, middle), (STRIP + STRIP_WIDE + 4, middle))
        y, end = y + LOAN, loan.offset + loan.nbytes
    if report.free:
        y = _between(picture, y, end, "free", report.free, lang)
    _offset(picture, y, report.capacity)
    picture.words(STRIP, y + 32, text("diagrams.arena_scale", lang), size=12)
    lines = report.text(lang).splitlines()
    alt = text("diagrams.joint", lang).join(line.strip() for line in lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=y + 44)


def _between(picture: Picture, y: float, offset: int, kind: str, size: int, lang: str) -> float:
    """Draw bytes that no tensor has; return the height at which they end."""
    picture.box(STRIP, y, STRIP_WIDE, PADDING, look("padding") if kind == "padding" else None, edge=1)
    said = text(f"diagrams.arena_{kind}", lang, size=size)
    picture.words(STRIP + STRIP_WIDE + 12, y + 17, said, size=12)
    _offset(picture, y, offset)
    return y + PADDING


def _offset(picture: Picture, y: float, offset: int) -> None:
    picture.words(STRIP - 8, y + 5, f"{offset:,}", anchor="end", size=12)
