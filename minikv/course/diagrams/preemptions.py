"""Requests over time, with the steps in which one loses its blocks, and the blocks held against the pool's limit."""

from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import look

if TYPE_CHECKING:
    from minikv.course.lessons.l11a.load import Ran  # it imports the engine

LEFT, TOP = 88, 36
ROW = 26
BLOCKS = 128  # height of the pool
WAITS, LOST, AGAIN = look("free"), look("warning"), look("kept")


def preemptions(ran: "Ran", lang: str = "en") -> Diagram:
    """Draw a load of a few requests: what each computed in each step, and the blocks that it held."""
    lang = pick_language(lang)
    wide = (WIDTH - LEFT) / ran.steps
    picture = Picture()
    title = text(
        "diagrams_batching.preempt_title",
        lang,
        requests=len(ran.chart),
        blocks=ran.num_blocks,
        steps=ran.steps,
        count=ran.preemptions,
        again=ran.recomputed,
    )
    picture.words(0, 16, title, bold=True)
    lines = [title]
    for number, row in enumerate(ran.chart):
        lines.append(_draw_request(picture, ran, number, row, TOP + number * ROW, wide, lang))
    top = TOP + len(ran.chart) * ROW + 44
    _draw_blocks(picture, ran, top, wide, lang)
    most = [sum(row[step] for row in ran.held) for step in range(ran.steps)]
    lines.append(text("diagrams_batching.preempt_held", lang, held=" ".join(map(str, most))))
    bottom, x = top + BLOCKS + 44, float(LEFT)
    for key, fill, edge in (
        ("prompt", look(0), 3),
        ("decode", look(0), 0.5),
        ("waits", WAITS, 1),
        ("lost", LOST, 1),
    ):
        said = text(f"diagrams_batching.preempt_{key}", lang)
        picture.box(x, bottom, 16, 16, fill, edge=edge)
        picture.words(x + 24, bottom + 13, said, size=12)
        x += 24 + width_of(said, 12) + 20
    alt = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=bottom + 24)


def _draw_request(
    picture: Picture, ran: "Ran", number: int, row: str, y: float, wide: float, lang: str
) -> str:
    """Draw one request's row; return it as a line of text."""
    picture.words(0, y + 17, text("diagrams_batching.preempt_request", lang, number=number), size=12)
    for step, cell in enumerate(row):
        x = LEFT + step * wide
        if cell in "#o-":
            picture.box(x, y, wide - 2, ROW - 4, look(number), edge=3 if cell == "#" else 0.5)
        elif cell == "x":
            picture.box(x, y, wide - 2, ROW - 4, LOST, edge=1)
        elif cell == ".":
            picture.box(x, y + 8, wide - 2, ROW - 20, WAITS)
    return f"{number} |{row}|"


def _draw_blocks(picture: Picture, ran: "Ran", top: float, wide: float, lang: str) -> None:
    """Draw the blocks of each request in each step, the oldest at the bottom, below the pool's limit."""
    tall = BLOCKS / ran.num_blocks
    limit = text("diagrams_batching.preempt_limit", lang, blocks=ran.num_blocks)
    picture.words(LEFT, top - 10, limit, size=12)
    picture.words(0, top + BLOCKS / 2 + 4, text("diagrams_batching.preempt_blocks", lang), size=12)
    picture.words(LEFT - 8, top + 5, str(ran.num_blocks), anchor="end", size=12)
    picture.words(LEFT - 8, top + BLOCKS + 5, "0", anchor="end", size=12)
    for step in range(ran.steps):
        y = top + BLOCKS
        for number, row in enumerate(ran.held):
            if row[step]:
                y -= row[step] * tall
                picture.box(LEFT + step * wide, y, wide - 2, row[step] * tall, look(number), edge=0.5)
    picture.lines([(LEFT, top, WIDTH, top)] * 3)
    for step in range(0, ran.steps, 10):
        said = text("diagrams_batching.preempt_step", lang, step=step + 1)
        picture.words(LEFT + step * wide, top + BLOCKS + 18, said, size=12)
