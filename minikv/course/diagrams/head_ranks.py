"""KV heads on the ranks of a tensor-parallel group: split up to one a GPU, copied beyond."""

from collections.abc import Sequence
from typing import Any

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture
from minikv.i18n import pick_language, text
from minikv.look import look
from minikv.plan import CacheSpec

LEFT, CELL, ROW = 56, 24, 64  # for the group's size; a head; from row to row


def head_ranks(model: Any, sizes: Sequence[int], lang: str = "en") -> Diagram:
    """Draw which KV heads of ``model`` each rank caches in groups of each of ``sizes`` GPUs.

    ``model`` is what ``CacheSpec.from_config`` takes; raises what that raises.
    """
    lang = pick_language(lang)
    whole = CacheSpec.from_config(model)
    heads = whole.layers[0].kv_heads
    picture, lines = Picture(), [text("diagrams_layers.ranks_title", lang, name=whole.name)]
    for place, tp in enumerate(sizes):
        spec, y = CacheSpec.from_config(model, tp=tp), place * ROW
        each = spec.layers[0].kv_heads
        ranks = [range(first, first + each) for first in (rank * heads // tp for rank in range(tp))]
        picture.words(0, y + 38, text("diagrams_layers.ranks_row", lang, tp=tp), bold=True)
        _draw(picture, ranks, y)
        size = text("diagrams_layers.ranks_bytes", lang, rank=spec.bytes_for(1), total=tp * spec.bytes_for(1))
        picture.words(LEFT, y + 12, size, size=12)
        held = " | ".join(" ".join(map(str, rank)) for rank in ranks)
        lines.append(text("diagrams_layers.ranks_line", lang, tp=tp, heads=held, size=size))
    below = len(sizes) * ROW + 16
    picture.words(0, below, text("diagrams_layers.ranks_scale", lang), size=12)
    alt = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=below + 8)


def _draw(picture: Picture, ranks: Sequence[range], y: float) -> None:
    x, gap = float(LEFT), 6
    wide = sum(len(rank) * CELL + 6 + gap for rank in ranks)
    cell = CELL * min(1, (WIDTH - LEFT) / wide)
    for rank in ranks:
        picture.box(x, y + 18, len(rank) * cell + 6, cell + 6, None, radius=4, edge=1)
        for place, head in enumerate(rank):
            at = x + 3 + place * cell
            picture.box(at + 1, y + 22, cell - 2, cell - 2, look(head))
            picture.words(
                at + cell / 2, y + 18 + cell / 2 + 8, str(head), anchor="middle", size=12, on=look(head)
            )
        x += len(rank) * cell + 6 + gap
