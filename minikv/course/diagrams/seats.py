"""Batches over time: a row is a seat, a column a step, a colour a request; cells in which a seat computes nothing."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import look

if TYPE_CHECKING:
    from minikv.course.lessons.l11a.load import Ran  # it imports the engine

LEFT, TOP = 72, 32
ROW, WIDEST, APART = 26, 30.0, 44  # a seat's height, the most of a step's width, and between two runs


def seats(runs: "Mapping[str, Ran]", num_seats: int, lang: str = "en") -> Diagram:
    """Draw each of ``runs``, a name and a load that ``num_seats`` sequences at a time ran, on one scale of steps."""
    lang = pick_language(lang)
    most = max(ran.steps for ran in runs.values())
    wide = min(WIDEST, (WIDTH - LEFT) / most)
    picture, lines, y = Picture(), [], float(TOP)
    for name, ran in runs.items():
        table = seat_table(ran, num_seats)
        idle = sum(row.count(None) for row in table)
        title = text(
            "diagrams_batching.seats_title",
            lang,
            name=name,
            steps=ran.steps,
            idle=idle,
            cells=num_seats * ran.steps,
        )
        picture.words(0, y - 10, title, bold=True)
        lines.append(title)
        for seat, row in enumerate(table):
            _draw(picture, ran, seat, row, y + seat * ROW, wide, lang)
            lines.append(text("diagrams_batching.seats_line", lang, seat=seat + 1, row=_said(row, lang)))
        y += num_seats * ROW + APART
    _legend(picture, y - APART + 16, lang)
    alt = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=y - APART + 40)


def seat_table(ran: "Ran", num_seats: int) -> list[list[int | None]]:
    """Return the request on each seat in each step, None where it computes nothing.

    A request takes the first free seat when it begins, and keeps it until it ends or loses its blocks.
    """
    table: list[list[int | None]] = [[None] * ran.steps for _ in range(num_seats)]
    seat_of: dict[int, int] = {}
    for step in range(ran.steps):
        running = [number for number, row in enumerate(ran.chart) if row[step] in "#o-"]
        seat_of = {number: seat for number, seat in seat_of.items() if number in running}
        for number in running:
            if number not in seat_of:
                seat_of[number] = min(set(range(num_seats)) - set(seat_of.values()))
            if ran.parts[number][step]:
                table[seat_of[number]][step] = number
    return table


def _draw(
    picture: Picture, ran: "Ran", seat: int, row: list[int | None], y: float, wide: float, lang: str
) -> None:
    picture.words(0, y + 17, text("diagrams_batching.seats_seat", lang, seat=seat + 1), size=12)
    for step, number in enumerate(row):
        x = LEFT + step * wide
        if number is None:
            picture.box(x, y, wide - 2, ROW - 4, edge=1, dashed=True)
            continue
        fill, prompt = look(number), ran.chart[number][step] == "#"
        picture.box(x, y, wide - 2, ROW - 4, fill, edge=3 if prompt else 0.5)
        if prompt:
            picture.words(x + wide / 2 - 1, y + 16, str(number), anchor="middle", size=12, on=fill, halo=6)


def _legend(picture: Picture, y: float, lang: str) -> None:
    x = float(LEFT)
    for key, fill, edge, dashed in (
        ("prompt", look(0), 3, False),
        ("decode", look(0), 0.5, False),
        ("idle", None, 1, True),
    ):
        said = text(f"diagrams_batching.seats_{key}", lang)
        picture.box(x, y, 16, 16, fill, edge=edge, dashed=dashed)
        picture.words(x + 24, y + 13, said, size=12)
        x += 24 + width_of(said, 12) + 24


def _said(row: list[int | None], lang: str) -> str:
    """ "0 x 3, idle x 2, 4 x 9"."""
    spans: list[list] = []
    for number in row:
        if spans and spans[-1][0] == number:
            spans[-1][1] += 1
        else:
            spans.append([number, 1])
    idle = text("diagrams_batching.seats_no_request", lang)
    comma = text("diagrams.comma", lang)
    return comma.join(f"{idle if number is None else number} x {count}" for number, count in spans)
