"""What a decode step waits for: the time to read its bytes and the time of its arithmetic, to one scale."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import look

if TYPE_CHECKING:
    from minikv.plan.roofline import DecodeWork, Roof

LEFT, TOP, LANE, ROW = 128, 36, 24, 92
THINNEST = 2  # pixels of a time that is too short to be seen to scale


def step_times(steps: "Mapping[str, DecodeWork]", roof: "Roof", lang: str = "en") -> Diagram:
    """Draw each of ``steps`` on the device of ``roof``: reading above, arithmetic below, both from the step's start."""
    lang = pick_language(lang)
    picture, lines = Picture(), []
    rate, flop_rate = roof.bandwidth_gb_s * 1e9, roof.tflops * 1e12
    longest = max(roof.seconds(work.flops, work.num_bytes) for work in steps.values())
    scale = (WIDTH - LEFT) / longest
    values = {"gpu": roof.name, "bandwidth": roof.bandwidth_gb_s, "tflops": roof.tflops}
    title = text("diagrams.times_title", lang, **values)
    picture.words(0, 16, title, bold=True)
    for number, (name, work) in enumerate(steps.items()):
        y, floor = TOP + ROW * number, roof.seconds(work.flops, work.num_bytes)
        picture.words(0, y + 17, name, bold=True)
        x = float(LEFT)
        for kind, size in (("weights", work.weight_bytes), ("k", work.cache_bytes)):
            wide = max(THINNEST, size / rate * scale)
            picture.box(x, y, wide, LANE, look(kind), edge=1)
            said = text(f"diagrams.times_{kind}", lang, ms=size / rate * 1e3)
            if width_of(said, 12) < wide:
                picture.words(x + wide / 2, y + 17, said, anchor="middle", size=12, on=look(kind), halo=10)
            x += wide
        busy = max(THINNEST, work.flops / flop_rate * scale)
        picture.box(LEFT, y + LANE + 4, floor * scale, LANE, edge=1, dashed=True)
        picture.box(LEFT, y + LANE + 4, busy, LANE, look("activations"), edge=1)
        values = {
            "floor": floor * 1e3,
            "weights": work.weight_bytes / rate * 1e3,
            "cache": work.cache_bytes / rate * 1e3,
            "arithmetic": work.flops / flop_rate * 1e3,
            "waits": 1 - work.flops / flop_rate / floor,
        }
        said = text("diagrams.times_waits", lang, **values)
        picture.words(LEFT + busy + 10, y + LANE + 21, said, size=12)
        lines.append(f"{name}{text('diagrams.colon', lang)}{text('diagrams.times_line', lang, **values)}")
        floor_said = text("diagrams.times_floor", lang, **values)
        picture.words(LEFT + floor * scale, y + 2 * LANE + 20, floor_said, anchor="end", size=12)
    below, left = TOP + ROW * len(steps) + 8, 0.0
    for kind in ("weights", "k", "activations"):
        said = text(f"diagrams.times_{kind}_legend", lang)
        picture.box(left, below - 13, 16, 16, look(kind), edge=1)
        picture.words(left + 22, below, said, size=12)
        left += 22 + width_of(said, 12) + 24
    alt = text("diagrams.joint", lang).join([title, *lines])
    return Diagram(picture, alt, [title, *lines], lang, width=WIDTH, height=below + 12)
