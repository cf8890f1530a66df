"""Where ``update``, ``observe`` and ``evict`` stand in the forward of one layer, with the rows that the cache has."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, alt_of
from minikv.i18n import pick_language, text
from minikv.look import look
from minikv.shown import columns

if TYPE_CHECKING:
    from minikv.course.lessons.l15b.calls import PortCall  # it imports torch

LEFT, TOP = 264, 64
STAGE, BAR = 54, 22  # heights: from one stage to the next, and of the bar of rows
GAP = 24  # between two forwards
STAGES = ("project", "update", "softmax", "observe", "output", "evict", "result")


def forward_calls(calls: "Sequence[PortCall]", lang: str = "en", *, layer: int = 0) -> Diagram:
    """Draw the recorded ``calls`` of ``layer``, a column for each forward; a bar is as long as the cache has rows."""
    lang = pick_language(lang)
    forwards = _forwards([call for call in calls if call.layer == layer])
    picture = Picture()
    wide = (WIDTH - LEFT) / len(forwards) - GAP
    most = max(call.after for forward in forwards for call in forward.values())
    title = text("diagrams_eviction.forward_title", lang, layer=layer, count=len(forwards))
    picture.words(0, 16, title, bold=True)
    for number, stage in enumerate(STAGES):
        middle = TOP + number * STAGE + BAR / 2 + 5
        ours = stage in ("update", "observe", "evict")
        picture.words(0, middle, text(f"diagrams_eviction.forward_{stage}", lang), bold=ours)
    table = [
        tuple(
            text(f"diagrams_eviction.forward_column_{name}", lang)
            for name in ("forward", "new", *STAGES[1::2])
        )
    ]
    for number, forward in enumerate(forwards):
        x = LEFT + number * (wide + GAP)
        new = forward["update"].after - forward["update"].before
        head = text("diagrams_eviction.forward_head", lang, number=number, seen=forward["update"].seen)
        picture.words(x, 44, head, size=12)
        for place, stage in enumerate(STAGES):
            y = TOP + place * STAGE
            if place:
                picture.curve((x + 12, y - STAGE + BAR + 4), (x + 12, y - 4), down=True)
            if stage in forward:
                _bar(picture, forward[stage], (x, y), wide, most, lang)
            else:
                rows = forward["update"].after
                said = text(f"diagrams_eviction.forward_{stage}_said", lang, new=new, rows=rows)
                picture.words(x, y + BAR / 2 + 5, said, size=12)
        table.append(
            (
                str(number),
                str(new),
                *(f"{forward[name].before} -> {forward[name].after}" for name in STAGES[1::2]),
            )
        )
    bottom = TOP + len(STAGES) * STAGE
    note = text("diagrams_eviction.forward_note", lang)
    picture.words(0, bottom, note, size=12)
    return Diagram(
        picture,
        alt_of(title, table, lang),
        [title, columns(table, range(5))],
        lang,
        width=WIDTH,
        height=bottom + 8,
    )


def _bar(
    picture: Picture, call: "PortCall", corner: tuple[float, float], wide: float, most: int, lang: str
) -> None:
    """Draw the rows after a call; those that it removed are dashed."""
    x, y = corner
    length = wide * call.after / most
    picture.box(x, y, length, BAR, look("k"), edge=1)
    if call.before > call.after:
        picture.box(x + length, y, wide * call.before / most - length, BAR, edge=1, dashed=True)
    said = f"{call.before} -> {call.after}"
    inside = length > 80
    picture.words(
        x + (20 if inside else max(length, wide * call.before / most) + 6),
        y + BAR / 2 + 5,
        said,
        size=12,
        on=look("k") if inside else None,
    )


def _forwards(calls: "Sequence[PortCall]") -> "list[dict[str, PortCall]]":
    """The calls by forward, each of which begins with an update."""
    forwards: list[dict[str, PortCall]] = []
    for call in calls:
        if call.name == "update":
            forwards.append({})
        forwards[-1][call.name] = call
    return forwards
