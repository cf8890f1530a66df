"""A preempted sequence: its blocks go to CPU memory and come back, or its tokens are computed again; times to scale."""

from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import look
from minikv.units import format_bytes

if TYPE_CHECKING:
    from minikv.plan.preemption import TransferRates

BOX, HEIGHT, LEFT = 248, 96, 128
THINNEST = 2


def swap_path(tokens: int, num_bytes: int, rates: "TransferRates", lang: str = "en") -> Diagram:
    """Draw both ways for a sequence of ``tokens`` with blocks of ``num_bytes`` in all, at ``rates``."""
    from minikv.plan.preemption import recompute_seconds, swap_seconds

    lang = pick_language(lang)
    picture, size = Picture(), format_bytes(num_bytes)
    out, back = num_bytes / rates.to_host, num_bytes / rates.to_device
    swap, again = swap_seconds(num_bytes, rates), recompute_seconds(tokens, rates)
    right = float(WIDTH - BOX - 1)
    for x, key, fill in ((1.0, "gpu", "k"), (right, "cpu", "host")):
        picture.words(x + BOX / 2, 16, text(f"diagrams.swap_{key}", lang), anchor="middle", bold=True)
        picture.box(x, 28, BOX, HEIGHT, radius=6, edge=1)
        picture.box(x + 24, 56, BOX - 48, 40, look(fill), edge=1, dashed=key == "cpu")
        picture.words(x + BOX / 2, 81, size, anchor="middle", on=look(fill), halo=10)
    for y, start, end, key, seconds, rate in (
        (56, BOX + 8, right - 8, "out", out, rates.to_host),
        (104, right - 8, BOX + 8, "back", back, rates.to_device),
    ):
        picture.curve((start, y), (end, y))
        said = text(f"diagrams.swap_{key}", lang, ms=seconds * 1e3, rate=rate / 1e9)
        picture.words(WIDTH / 2, y - 8, said, anchor="middle", size=12)
    scale, lines = (WIDTH - LEFT - 2) / max(swap, again), []
    for row, (key, parts) in enumerate((("swap", (out, back)), ("again", (again,)))):
        y, x = HEIGHT + 52 + 48 * row, float(LEFT)
        picture.words(0, y + 17, text(f"diagrams.swap_{key}_name", lang), bold=True)
        for part in parts:
            wide = max(THINNEST, part * scale)
            picture.box(x, y, wide, 24, look("host" if key == "swap" else "activations"), edge=1)
            x += wide
        values = {"ms": sum(parts) * 1e3, "tokens": tokens, "size": size, "prefill": rates.prefill}
        said = text(f"diagrams.swap_{key}_line", lang, **values)
        inside = x + 8 + width_of(said, 12) > WIDTH
        picture.words(LEFT if inside else x + 8, y + (40 if inside else 17), said, size=12)
        lines.append(said)
    alt = text("diagrams.joint", lang).join(lines)
    both = [
        text(f"diagrams.swap_{key}", lang, ms=s * 1e3, rate=r / 1e9)
        for key, s, r in (("out", out, rates.to_host), ("back", back, rates.to_device))
    ]
    return Diagram(picture, alt, [*both, *lines], lang, width=WIDTH, height=HEIGHT + 52 + 96 + 4)
