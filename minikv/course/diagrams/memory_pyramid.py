"""Memories of devices as pyramids: the fastest and smallest on top, each with its size and its bandwidth."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture
from minikv.i18n import pick_language, text
from minikv.look import look
from minikv.units import format_bytes

TOP, TIER, GAP = 40, 52, 4
NARROWEST = 150  # pixels of the smallest memory's tier
MARGIN = 24  # between two pyramids


@dataclass(frozen=True)
class Tier:
    """One memory of a device: ``gb_s`` is 10**9 bytes a second, None where it was not measured and no source has it."""

    name: str
    num_bytes: int
    gb_s: float | None = None


def memory_pyramid(devices: Mapping[str, Sequence[Tier]], lang: str = "en") -> Diagram:
    """Draw the tiers of each device, given from the top. Widths follow the logarithm of the size."""
    lang = pick_language(lang)
    picture, lines = Picture(), []
    wide = (WIDTH - MARGIN * (len(devices) - 1)) / len(devices)
    sizes = [math.log10(tier.num_bytes) for tiers in devices.values() for tier in tiers]
    step = (wide - NARROWEST) / max(max(sizes) - min(sizes), 1)
    for place, (device, tiers) in enumerate(devices.items()):
        middle = place * (wide + MARGIN) + wide / 2
        picture.words(middle, 16, device, anchor="middle", bold=True)
        for row, tier in enumerate(tiers):
            y, width = TOP + row * TIER, NARROWEST + step * (math.log10(tier.num_bytes) - min(sizes))
            fill = look("other") if row == len(tiers) - 1 else look(0)
            picture.box(middle - width / 2, y, width, TIER - GAP, fill, edge=1)
            size = format_bytes(tier.num_bytes)
            name = text("diagrams.pyramid_memory", lang) if tier.name == "memory" else tier.name
            said = text("diagrams.comma", lang).join((name, size))
            picture.words(middle, y + 20, said, anchor="middle", bold=True, on=fill, halo=10)
            rate = text("diagrams.pyramid_rate", lang, rate=tier.gb_s) if tier.gb_s else "-"
            picture.words(middle, y + 38, rate, anchor="middle", size=12, on=fill, halo=10)
            said = text("diagrams.pyramid_line", lang, device=device, name=name, size=size, rate=rate)
            lines.append(said)
    below = TOP + TIER * max(map(len, devices.values())) + 16
    scale = text("diagrams.pyramid_scale", lang)
    picture.words(0, below, scale, size=12)
    alt = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, [*lines, scale], lang, width=WIDTH, height=below + 12)
