"""The tokens of each step below its budget: one of each sequence that decodes, and the chunk of a prompt."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import look

if TYPE_CHECKING:
    from minikv.course.lessons.l11a.load import Ran  # it imports the engine

LEFT, TOP = 72, 44
TALLEST, APART = 160, 48  # height of the largest step, and between two runs
CHUNK, DECODE = look("shared"), look(0)
THINNEST = 2  # pixels of a part that is too small to be seen to scale


def step_tokens(runs: "Mapping[int, Ran]", lang: str = "en") -> Diagram:
    """Draw each run of ``runs``, by its budget of tokens a step, to one scale."""
    lang = pick_language(lang)
    wide = (WIDTH - LEFT) / max(ran.steps for ran in runs.values())
    scale = TALLEST / max(max(ran.tokens) for ran in runs.values())
    picture, lines, y = Picture(), [], float(TOP)
    for budget, ran in runs.items():
        longest = max(range(len(ran.chart)), key=lambda number: sum(part > 1 for part in ran.parts[number]))
        title = text(
            "diagrams_batching.tokens_title",
            lang,
            budget=budget,
            largest=max(ran.tokens),
            steps=ran.steps,
            chunks=sum(part > 1 for part in ran.parts[longest]),
        )
        picture.words(0, y - 14, title, bold=True)
        lines += [title, text("diagrams_batching.tokens_line", lang, tokens=" ".join(map(str, ran.tokens)))]
        ground = y + max(ran.tokens) * scale
        picture.words(LEFT - 8, y + 8, str(max(ran.tokens)), anchor="end", size=12)
        picture.lines([(LEFT, ground, WIDTH, ground)])
        for step in range(ran.steps):
            parts = [row[step] for row in ran.parts if row[step]]
            bottom = ground
            for fill, count in (
                (DECODE, sum(part == 1 for part in parts)),
                (CHUNK, sum(part for part in parts if part > 1)),
            ):
                if count:
                    tall = max(THINNEST, count * scale)
                    picture.box(LEFT + step * wide, bottom - tall, wide - 2, tall, fill, edge=0.5)
                    bottom -= tall
        y = ground + APART
    below, x = y - 28, float(LEFT)
    for key, fill in (("decode", DECODE), ("chunk", CHUNK)):
        said = text(f"diagrams_batching.tokens_{key}", lang)
        picture.box(x, below, 16, 16, fill, edge=1)
        picture.words(x + 24, below + 13, said, size=12)
        x += 24 + width_of(said, 12) + 24
    alt = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=below + 24)
