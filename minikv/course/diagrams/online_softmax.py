"""The online softmax, tile by tile: the logits, the largest so far, and the sum that is rescaled when that rises."""

from collections.abc import Sequence
from typing import NamedTuple

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture
from minikv.errors import ArgumentError
from minikv.i18n import pick_language, text
from minikv.look import Look, look

LEFT = 112
LOGITS, PANEL = 48, 110  # the upper panel: its top and its height
SUMS, BAR = 216, 110  # the lower one
NARROW = 26  # a bar's width


class SoftmaxStep(NamedTuple):
    """After a tile: its ``logits``, the factor on what was summed before, the largest so far, both sums."""

    logits: Sequence[float]
    rescale: float
    largest: float
    total: float
    weighted: float

    @property
    def result(self) -> float:
        return self.weighted / self.total


def online_softmax(steps: Sequence[SoftmaxStep], lang: str = "en") -> Diagram:
    """Draw the logits of each tile with the largest so far, and below them how much of the sum l was there before.

    Raises ``ArgumentError`` without a step.
    """
    lang = pick_language(lang)
    if not steps:
        raise ArgumentError("no_softmax_steps")
    picture = Picture()
    wide = (WIDTH - LEFT) / len(steps)
    low = min(min(step.logits) for step in steps)
    high = max(max(step.logits) for step in steps)
    span, most = (high - low) or 1.0, max(step.total for step in steps)

    def level(value: float) -> float:
        return LOGITS + PANEL * (1 - (value - low) / span)

    picture.words(0, LOGITS + 18, text("diagrams.softmax_logits", lang), bold=True)
    picture.words(0, SUMS + 18, text("diagrams.softmax_sum", lang), bold=True)
    before, lines = 0.0, []
    for number, step in enumerate(steps):
        x = LEFT + number * wide
        picture.words(
            x, 16, text("diagrams.softmax_tile", lang, number=number, count=len(step.logits)), size=12
        )
        gap = (wide - 24) / len(step.logits)
        dots = [(x + (place + 0.5) * gap, level(logit)) for place, logit in enumerate(step.logits)]
        picture.lines((at, LOGITS + PANEL + 4, at, y) for at, y in dots)
        picture.dots(dots, 4)
        _level(picture, x, level(step.largest), wide - 24, look("warning"))
        picture.words(x, LOGITS + PANEL + 22, f"m = {step.largest:.2f}", size=12)
        kept = before * step.rescale
        _sum(picture, x, [before, kept, step.total - kept], most)
        picture.words(x, SUMS + BAR + 20, f"l × {step.rescale:.2f}", size=12)
        picture.words(x, SUMS + BAR + 38, f"l = {step.total:.2f}", size=12)
        picture.words(x, SUMS + BAR + 56, f"a/l = {step.result:.4f}", size=12, bold=number == len(steps) - 1)
        values = dict(number=number, rescale=step.rescale, m=step.largest, l=step.total, result=step.result)
        lines.append(text("diagrams.softmax_line", lang, count=len(step.logits), **values))
        before = step.total
    bottom = SUMS + BAR + 84
    for number, (name, fill) in enumerate(
        (("largest", "warning"), ("kept", "cached"), ("new", "activations"))
    ):
        at = 230 * number
        picture.box(at, bottom - 10, 14, 12, look(fill))
        picture.words(at + 20, bottom, text(f"diagrams.softmax_{name}", lang), size=12)
    picture.box(690, bottom - 10, 14, 12, dashed=True, edge=1)
    picture.words(710, bottom, text("diagrams.softmax_gone", lang), size=12)
    title = text("diagrams.softmax_title", lang, tiles=len(steps))
    alt = text("diagrams.joint", lang).join([title, *lines])
    return Diagram(picture, alt, [title, *lines], lang, width=WIDTH, height=bottom + 12)


def _level(picture: Picture, x: float, y: float, wide: float, fill: Look) -> None:
    picture.box(x, y - 1.5, wide, 3, Look(fill.fill, "", fill.ink))


def _sum(picture: Picture, x: float, parts: Sequence[float], most: float) -> None:
    """Draw the sum before the tile as an outline, and beside it what is left of it below what the tile adds."""
    before, kept, new = (part / most * BAR for part in parts)
    floor = SUMS + BAR
    if before:
        picture.box(x, floor - before, NARROW, before, edge=1, dashed=True)
    if kept:
        picture.box(x + NARROW + 8, floor - kept, NARROW, kept, look("cached"))
    picture.box(x + NARROW + 8, floor - kept - new, NARROW, new, look("activations"))
