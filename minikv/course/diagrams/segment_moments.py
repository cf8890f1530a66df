"""Segments over time: what a few calls make of a device's memory, a row after each, for two orders of the calls."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import Look, look
from minikv.units import format_bytes

if TYPE_CHECKING:
    from minikv.course.widgets.segments_replay import AllocatorMoment, AllocatorStep

GAP = 32  # between two columns
TOP, ROW, BAR = 56, 66, 22
THINNEST = 3
CACHED, STUCK = look("cached"), look("warning")


def segment_moments(
    stories: Mapping[str, Sequence["AllocatorStep"]], capacity: int, lang: str = "en"
) -> Diagram:
    """Run each of ``stories`` on a device of ``capacity`` bytes and draw its segments after each step, to scale.

    The stories stand side by side. A request that finds no memory is drawn beyond the device's edge.
    """
    from minikv.course.widgets.segments_replay import replay_steps
    from minikv.memory import AllocatorSettings

    lang = pick_language(lang)
    picture = Picture()
    runs = {
        name: (steps, replay_steps(steps, AllocatorSettings(), capacity, 0)[1:])
        for name, steps in stories.items()
    }
    most = max(
        moment.reserved + (step.size if moment.error else 0)
        for steps, moments in runs.values()
        for step, moment in zip(steps, moments, strict=True)
    )
    column = (WIDTH - GAP * (len(runs) - 1)) / len(runs)
    scale = (column - 4) / max(most, capacity)
    title = text("diagrams_memory.moments_title", lang, capacity=format_bytes(capacity))
    picture.words(0, 16, title, bold=True)
    names = dict.fromkeys(step.name for steps, _ in runs.values() for step in steps if step.kind == "malloc")
    looks = {name: look(place) for place, name in enumerate(names)}
    lines = [title]
    for place, (name, (steps, moments)) in enumerate(runs.items()):
        left = float(place * (column + GAP))
        picture.words(left, 40, name, bold=True)
        lines.append(name)
        for number, (step, moment) in enumerate(zip(steps, moments, strict=True)):
            row = TOP + number * ROW
            lines.append(_draw(picture, step, moment, capacity, left, row, scale, looks, lang))
    y = float(TOP + max(len(steps) for steps, _ in runs.values()) * ROW + 4)
    x = 0.0
    known: list[tuple[str, Look | None]] = [*looks.items()]
    known += [(text(f"diagrams_memory.moments_{key}", lang), fill) for key, fill in _STATES.items()]
    for said, fill in known:
        if x + 22 + width_of(said, 12) > WIDTH:
            x, y = 0.0, y + 24
        picture.box(x, y, 16, 16, fill, edge=1, dashed=fill is None)
        picture.words(x + 22, y + 13, said, size=12)
        x += 22 + width_of(said, 12) + 20
    alt = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=y + 24)


_STATES: dict[str, Look | None] = {"cached": CACHED, "stuck": STUCK, "free": None}


def _draw(
    picture: Picture,
    step: "AllocatorStep",
    moment: "AllocatorMoment",
    capacity: int,
    left: float,
    y: float,
    scale: float,
    looks: Mapping[str, Look],
    lang: str,
) -> str:
    """Draw the device after one step; return it as a line of text."""
    call = text(f"diagrams_memory.moments_call_{step.kind}", lang, name=step.name)
    picture.words(left, y + 13, call)
    picture.box(left, y + 18, capacity * scale, BAR, None, edge=1, dashed=True)
    x, stuck = left, 0
    for segment in moment.segments:
        for block in segment.blocks:
            name = moment.names.get(block.address)
            fill = looks[name] if name else STUCK if segment.active_size else CACHED
            stuck += 0 if name or not segment.active_size else block.size
            wide = max(THINNEST, block.size * scale) if name else block.size * scale
            if wide >= 1:
                picture.box(x, y + 18, wide, BAR, fill, edge=1)
            x += wide
    if moment.error:
        asked, free = format_bytes(step.size), format_bytes(moment.device_free)
        picture.box(x, y + 18, step.size * scale, BAR, looks[step.name], edge=2, dashed=True)
        said = text("diagrams_memory.moments_refused", lang, asked=asked, free=free)
    else:
        sizes = {"reserved": moment.reserved, "used": moment.allocated, "stuck": stuck}
        values = {name: format_bytes(size) for name, size in sizes.items()}
        said = text("diagrams_memory.moments_row", lang, **values)
    picture.words(left, y + BAR + 31, said, size=12, bold=moment.error is not None)
    return text("diagrams_memory.moments_line", lang, call=call, said=said)
