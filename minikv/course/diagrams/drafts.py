"""Steps with drafts, a row each: the drafts that the model agreed with, its own token, and the drafts taken back."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import Look, look

if TYPE_CHECKING:
    from minikv.course.lessons.l13b.drafted import DraftStep  # it imports the engine

LEFT, TOP = 136, 36
ROW, CELL = 36, 28
RIGHT = 184  # for the words behind the tokens
ACCEPTED, OWN = look("cached"), look(0)


def drafts(
    steps: "Sequence[DraftStep]", say: Callable[[int], str] = str, lang: str = "en", *, rows: int = 10
) -> Diagram:
    """Draw the first ``rows`` of ``steps``; ``say`` turns a token id into its word."""
    lang = pick_language(lang)
    made = sum(step.accepted + 1 for step in steps)
    title = text(
        "diagrams_steps.drafts_title", lang, tokens=made, steps=len(steps), rows=min(rows, len(steps))
    )
    picture, lines = Picture(), []
    picture.words(0, 16, title, bold=True)
    most = max(len(step.drafts) for step in steps[:rows]) + 1
    wide = min(104.0, (WIDTH - LEFT - RIGHT) / most)
    for place, step in enumerate(steps[:rows]):
        y = TOP + place * ROW
        picture.words(0, y + 19, text("diagrams_steps.drafts_step", lang, step=place + 1))
        refused = step.drafts[step.accepted :]
        cells = [*((token, ACCEPTED) for token in step.drafts[: step.accepted]), (step.own, OWN)]
        for number, (token, fill) in enumerate(cells):
            _word(picture, LEFT + number * wide, y, wide, say(token), fill)
        # The first refused draft stands where the model's own token does now; those behind it fell with it.
        for number, token in enumerate(refused, start=len(cells)):
            _word(picture, LEFT + number * wide, y, wide, say(token), None)
        end = LEFT + (len(step.drafts) + 1) * wide + 12
        words = text("diagrams_steps.drafts_end", lang, got=len(cells), refused=len(refused))
        picture.words(end, y + 19, words, size=12)
        said = [
            " ".join(map(say, some)) or "-" for some in (step.drafts[: step.accepted], (step.own,), refused)
        ]
        lines.append(
            text(
                "diagrams_steps.drafts_line",
                lang,
                step=place + 1,
                accepted=said[0],
                own=said[1],
                refused=said[2],
            )
        )
    below, x = TOP + min(rows, len(steps)) * ROW + 8, float(LEFT)
    for key, meant, dashed in (("accepted", ACCEPTED, False), ("own", OWN, False), ("refused", None, True)):
        picture.box(x, below, 16, 16, meant, edge=1, dashed=dashed)
        legend = text(f"diagrams_steps.drafts_{key}", lang)
        picture.words(x + 22, below + 13, legend, size=12)
        x += 22 + width_of(legend, 12) + 24
    alt = text("diagrams.joint", lang).join([title, *lines])
    return Diagram(picture, alt, [title, *lines], lang, width=WIDTH, height=below + 24)


def _word(picture: Picture, x: float, y: float, wide: float, said: str, fill: Look | None) -> None:
    picture.box(x, y, wide - 4, CELL, fill, radius=4, edge=1, dashed=fill is None)
    if width_of(said, 12) < wide - 8:
        picture.words(x + (wide - 4) / 2, y + 19, said, anchor="middle", size=12, on=fill, halo=6)
