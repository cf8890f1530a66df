"""A decode step over time: the CPU's launches and the GPU's kernels, each launched alone, and all by one CUDA graph."""

from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture
from minikv.i18n import pick_language, text
from minikv.look import look

if TYPE_CHECKING:
    from minikv.course.lessons.l13b.launches import Timeline  # it imports torch

LEFT, TOP, BAR = 64, 56, 22
GROUP = 108  # height of one way to launch
LAUNCHES, KERNELS = look("host"), look(0)
TICKS = 4
MICRO = 1e6


def launch_times(
    name: str, eager: "Timeline", graph: "Timeline", lang: str = "en", *, shown: float = 240e-6
) -> Diagram:
    """Draw the first ``shown`` seconds of a step of the model ``name``, launched in both ways, to scale."""
    lang = pick_language(lang)
    picture = Picture()
    title = text(
        "diagrams_steps.launch_title", lang, name=name, kernels=len(eager.kernels), shown=shown * MICRO
    )
    picture.words(0, 16, title, bold=True)
    lines = []
    for place, (way, line) in enumerate((("eager", eager), ("graph", graph))):
        y = TOP + place * GROUP
        ended = sum(begin + length <= shown for begin, length in line.kernels)
        said = text(
            f"diagrams_steps.launch_{way}",
            lang,
            launches=len(line.launches),
            ms=line.seconds * 1e3,
            waiting=line.waiting * 1e3,
            share=line.waiting / line.seconds,
            ended=ended,
        )
        lines.append(said)
        picture.words(0, y, said)
        for row, (unit, spans, fill) in enumerate(
            (("CPU", line.launches, LAUNCHES), ("GPU", line.kernels, KERNELS))
        ):
            top = y + 12 + row * (BAR + 6)
            picture.words(0, top + 16, unit)
            picture.box(LEFT, top, WIDTH - LEFT, BAR, dashed=True, edge=0.5)
            for begin, length in spans:
                if begin < shown:
                    wide = (min(shown, begin + length) - begin) * (WIDTH - LEFT) / shown
                    picture.box(LEFT + begin * (WIDTH - LEFT) / shown, top, wide, BAR, fill, edge=0.5)
    below = TOP + 2 * GROUP
    for tick in range(TICKS + 1):
        anchor = "start" if tick == 0 else "end" if tick == TICKS else "middle"
        at = f"{tick * shown * MICRO / TICKS:g} µs"
        picture.words(LEFT + tick * (WIDTH - LEFT) / TICKS, below, at, anchor=anchor, size=12)
    x = float(LEFT)
    for key, fill in (("launch_launches", LAUNCHES), ("launch_kernels", KERNELS)):
        picture.box(x, below + 16, 16, 16, fill, edge=1)
        picture.words(x + 24, below + 29, text(f"diagrams_steps.{key}", lang))
        x += 200
    alt = text("diagrams.joint", lang).join([title, *lines])
    return Diagram(picture, alt, [title, *lines], lang, width=WIDTH, height=below + 40)
