"""Six moments of a start-up: what a GPU holds at each, what torch has counted, and the sum that gives the blocks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import Look, look
from minikv.shown import columns
from minikv.units import format_bytes

if TYPE_CHECKING:
    from minikv.course.lessons.l08.engine_memory import MemoryMoment, StartUp

LEFT, RIGHT = 112, 500  # edges of the bars; the figures stand to their right
TOP, ROW, BAR = 52, 44, 24
PEAK = 6  # of the peak's mark above and below its bar
FIGURES = (596, 682, 768, 854)  # right edges of used, reserved, current, peak
NAMES = ("used", "reserved", "current", "peak")
LOOKS: dict[str, Look] = {
    "outside": look("other"),
    "weights": look("weights"),
    "cache": look("k"),
    "cached": look("cached"),
}


def start_moments(started: "StartUp", lang: str = "en") -> Diagram:
    """Draw the GPU at each of ``started.moments``, to scale, and ``started.terms`` as one bar below."""
    lang = pick_language(lang)
    picture, terms = Picture(), started.terms
    scale = (RIGHT - LEFT) / terms.total
    title = text("diagrams_memory.start_title", lang, total=format_bytes(terms.total))
    picture.words(0, 16, title, bold=True)
    for name, right in zip(NAMES, FIGURES, strict=True):
        picture.words(right, 40, name, anchor="end", size=12, bold=True)
    weights = max(moment.current for moment in started.moments[:-1])
    table: list[tuple[str, ...]] = [("", *NAMES)]
    for number, moment in enumerate(started.moments):
        _draw(picture, moment, min(weights, moment.current), TOP + number * ROW, scale)
        sizes = [format_bytes(getattr(moment, name)) for name in NAMES]
        for said, right in zip(sizes, FIGURES, strict=True):
            picture.words(right, TOP + number * ROW + 17, said, anchor="end", size=12)
        table.append((moment.name, *sizes))
    y = TOP + len(started.moments) * ROW
    x = float(LEFT)
    for key, fill in LOOKS.items():
        said = text(f"diagrams_memory.start_{key}", lang)
        picture.box(x, y, 16, 16, fill, edge=1)
        picture.words(x + 22, y + 13, said, size=12)
        x += 22 + width_of(said, 12) + 16
    said = text("diagrams_memory.start_peak", lang)
    picture.box(x + 6, y, 2, 16, look("warning"))
    picture.words(x + 16, y + 13, said, size=12)
    y += 40
    lines = [title, columns(table, range(1, 5)), *_formula(picture, started, y, scale, lang)]
    alt = text("diagrams.joint", lang).join(
        [title, *(text("diagrams.comma", lang).join(row) for row in table[1:]), *lines[2:]]
    )
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=y + 92)


def _draw(picture: Picture, moment: "MemoryMoment", weights: int, y: float, scale: float) -> None:
    """Draw what the driver counts at one moment: outside torch, weights, the cache, and what torch keeps cached."""
    picture.words(0, y + 17, moment.name, bold=True)
    outside = moment.used - moment.reserved
    sizes = {
        "outside": outside,
        "weights": weights,
        "cache": moment.current - weights,
        "cached": moment.reserved - moment.current,
    }
    x = float(LEFT)
    for key, size in sizes.items():
        if size * scale >= 1:
            picture.box(x, y, size * scale, BAR, LOOKS[key], edge=1)
        x += size * scale
    picture.box(LEFT, y, moment.total * scale, BAR, None, edge=1, dashed=True)
    if moment.peak:  # torch counts its own, so the mark begins where torch's part does
        mark = LEFT + (outside + moment.peak) * scale
        picture.box(mark - 1, y - PEAK, 2, BAR + 2 * PEAK, look("warning"))


def _formula(picture: Picture, started: "StartUp", y: float, scale: float, lang: str) -> Sequence[str]:
    """Draw the terms as a bar: what is used, what comes back in each step, the pool, what is kept free."""
    terms = started.terms
    step = terms.peak - terms.current
    held = started.num_blocks * started.block_bytes
    parts: list[tuple[int, Look | None]]
    parts = [(terms.used, look("shared")), (step, look("activations")), (held, look("k"))]
    said = [
        text("diagrams_memory.start_terms", lang, **{k: format_bytes(v) for k, v in terms.as_dict().items()}),
        text(
            "diagrams_memory.start_blocks",
            lang,
            available=terms.available,
            block=started.block_bytes,
            blocks=started.num_blocks,
        ),
    ]
    picture.words(0, y + 17, text("diagrams_memory.start_formula", lang), bold=True)
    x = float(LEFT)
    for size, fill in parts:
        picture.box(x, y, max(2, size * scale), BAR, fill, edge=1)
        x += size * scale
    picture.box(LEFT, y, terms.total * scale, BAR, None, edge=1, dashed=True)
    limit = LEFT + terms.limit * scale
    picture.lines([(limit, y - PEAK, limit, y + BAR + PEAK)])
    x = FIGURES[0] - 72.0
    names = ("used", "step", "pool", "kept")
    for place, (key, fill) in enumerate(zip(names, [*(one for _, one in parts), None], strict=True)):
        words = text(f"diagrams_memory.start_{key}", lang)
        left, top = x + 164 * (place % 2), y - 8 + 22 * (place // 2)
        picture.box(left, top, 16, 16, fill, edge=1, dashed=fill is None)
        picture.words(left + 22, top + 13, words, size=12)
    for place, line in enumerate(said):
        picture.words(LEFT, y + BAR + 24 + 20 * place, line)
    return said
