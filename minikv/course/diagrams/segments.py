"""An allocator's segments to scale: what tensors use, what is free, and what is free but cannot be given back."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import look
from minikv.units import format_bytes

if TYPE_CHECKING:
    from minikv.memory import CachingAllocator
    from minikv.memory.allocator.blocks import BlockView, SegmentView

LEFT, TOP = 128, 44
BAR, ROW = 36, 72
THINNEST = 3  # pixels of a block that is too small to be seen to scale
MOST_ROWS = 12  # the largest segments; the others are counted together
LOOKS = {"used": look(0), "waiting": look("other"), "stuck": look("warning"), "cached": look("cached")}


def segments(allocator: "CachingAllocator", lang: str = "en") -> Diagram:
    """Draw what ``allocator`` has reserved, segment by segment, the largest ones first if there are many."""
    lang = pick_language(lang)
    taken = list(allocator.segments())
    shown = sorted(taken, key=lambda one: -one.total_size)[:MOST_ROWS] if len(taken) > MOST_ROWS else taken
    sizes = dict.fromkeys(LOOKS, 0)
    for segment in taken:
        for block in segment.blocks:
            sizes[_state(block, segment)] += block.size
    reserved = sum(sizes.values())
    title = text("diagrams.segments_title", lang, count=len(taken), reserved=reserved)
    picture = Picture()
    picture.words(0, 16, title, bold=True)
    scale = (WIDTH - LEFT) / max((segment.total_size for segment in shown), default=1)
    lines = [_draw(picture, segment, place, scale, lang) for place, segment in enumerate(shown)]
    if len(shown) < len(taken):
        rest = reserved - sum(segment.total_size for segment in shown)
        lines.append(text("diagrams.segments_more", lang, count=len(taken) - len(shown), size=rest))
        picture.words(0, TOP + len(shown) * ROW + 4, lines[-1], size=12)
    below = TOP + len(shown) * ROW + (24 if len(lines) > len(shown) else 0)
    sums = [
        text(f"diagrams.segments_{name}", lang, size=size, short=format_bytes(size))
        for name, size in sizes.items()
        if size
    ]
    states = [name for name, size in sizes.items() if size]
    for place, (name, said) in enumerate(zip(states, sums, strict=True)):
        picture.box(0, below + 24 * place, 16, 16, LOOKS[name], edge=1)
        picture.words(24, below + 24 * place + 13, said)
    alt = text("diagrams.joint", lang).join([title, *lines, *sums])
    return Diagram(picture, alt, [title, *lines, *sums], lang, width=WIDTH, height=below + 24 * len(sums) + 4)


def _state(block: "BlockView", segment: "SegmentView") -> str:
    """What the block's bytes are: free ones can be given back if nothing of their segment is in use."""
    if block.state != "inactive":
        return "used" if block.state == "active_allocated" else "waiting"
    return "stuck" if segment.active_size else "cached"


def _draw(picture: Picture, segment: "SegmentView", place: int, scale: float, lang: str) -> str:
    """Draw one segment; return it as a line of text."""
    y = TOP + place * ROW
    picture.words(0, y + 16, text("diagrams.segments_name", lang, number=place))
    picture.words(0, y + 33, format_bytes(segment.total_size), size=12)
    x, said = float(LEFT), []
    for block, wide in zip(segment.blocks, _widths(segment.blocks, scale), strict=True):
        state = _state(block, segment)
        picture.box(x, y, wide, BAR, LOOKS[state], edge=1)
        size = format_bytes(block.size)
        if width_of(size) < wide - 8:
            picture.words(x + wide / 2, y + 23, size, anchor="middle", on=LOOKS[state], halo=10)
        said.append(text(f"diagrams.segments_{state}_block", lang, size=block.size))
        x += wide
    used, free = segment.active_size, segment.total_size - segment.active_size
    words = text("diagrams.segments_row", lang, used=format_bytes(used), free=format_bytes(free))
    picture.words(LEFT, y + BAR + 16, words, size=12)
    line = text("diagrams.segments_line", lang, number=place, size=segment.total_size)
    return line + text("diagrams.comma", lang).join(said)


def _widths(blocks: "Sequence[BlockView]", scale: float) -> list[float]:
    """The width of each block; the largest one gives what the thinnest need more than their share."""
    widths = [max(THINNEST, block.size * scale) for block in blocks]
    largest = max(range(len(widths)), key=widths.__getitem__)
    widths[largest] = max(
        THINNEST, widths[largest] + sum(block.size for block in blocks) * scale - sum(widths)
    )
    return widths
