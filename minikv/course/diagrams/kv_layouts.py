"""Layouts of K and V in memory: in which order the heads and tokens of one row or block lie, read off real views."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import look

if TYPE_CHECKING:
    from torch import Tensor

TOP, STRIP, ROW = 32, 40, 116
GAP = 28  # between parts that do not lie side by side
EDGE = 3  # of what one head reads: its keys


@dataclass(frozen=True)
class _Piece:
    """K or V of one head and one token: ``head_dim`` elements side by side, from ``start`` to ``end`` in bytes."""

    start: int
    end: int
    kind: str
    head: int
    token: int


def kv_layouts(layouts: "Mapping[str, tuple[Tensor, Tensor]]", lang: str = "en") -> Diagram:
    """Draw K and V of each layout, views [kv_heads, tokens, head_dim], in the order of their addresses.

    The keys of head 0, which its attention reads one after another, have a thick edge.
    """
    lang = pick_language(lang)
    picture, lines = Picture(), []
    for place, (name, (k, v)) in enumerate(layouts.items()):
        pieces = _pieces(k, v)
        y = TOP + ROW * place
        picture.words(0, y - 8, name, bold=True)
        gaps = sum(_apart(one, other) for one, other in pairwise(pieces))
        wide, x = (WIDTH - GAP * gaps) / len(pieces), 0.0
        read: list[float] = []  # where a piece stands that head 0 reads
        for one, before in zip(pieces, [pieces[0], *pieces], strict=False):
            if one is not before and _apart(before, one):
                picture.words(x + GAP / 2, y + 24, "...", anchor="middle")
                x += GAP
            fill = look(one.kind.lower())
            picture.box(x, y, wide, STRIP, fill, edge=1)
            read += [x] if (one.kind, one.head) == ("K", 0) else []
            for row, said in enumerate((f"{one.kind} h{one.head}", f"t{one.token}")):
                if width_of(said, 12) < wide + 4:
                    picture.words(
                        x + wide / 2, y + 16 + 17 * row, said, anchor="middle", size=12, on=fill, halo=10
                    )
            x += wide
        for left in read:
            picture.box(left, y, wide, STRIP, edge=EDGE)
        values = {
            "head": k.stride(0),
            "token": k.stride(1),
            "reads": _parts([one for one in pieces if (one.kind, one.head) == ("K", 0)]),
            "writes": _parts([one for one in pieces if one.token == 0]),
            "heads": k.shape[0],
        }
        said = text("diagrams.layouts_line", lang, **values)
        picture.words(0, y + STRIP + 20, said, size=12)
        lines.append(text("diagrams.layouts_named", lang, name=name, order=_order(pieces)) + said)
    legend = text("diagrams.layouts_legend", lang)
    below = TOP + ROW * len(layouts)
    picture.words(0, below - 8, legend, size=12)
    title = text("diagrams.layouts_title", lang, count=len(layouts))
    alt = text("diagrams.joint", lang).join([title, *lines])
    return Diagram(picture, alt, [title, *lines, legend], lang, width=WIDTH, height=below)


def _pieces(k: "Tensor", v: "Tensor") -> list[_Piece]:
    """The pieces of both, by address."""
    pieces = []
    for kind, view in (("K", k), ("V", v)):
        heads, tokens, dim = view.shape
        for head in range(heads):
            for token in range(tokens):
                place = (
                    view.data_ptr() + (head * view.stride(0) + token * view.stride(1)) * view.element_size()
                )
                pieces.append(_Piece(place, place + dim * view.element_size(), kind, head, token))
    return sorted(pieces, key=lambda one: one.start)


def _apart(one: _Piece, after: _Piece) -> bool:
    return one.end != after.start


def _parts(pieces: list[_Piece]) -> int:
    """How many parts of memory hold ``pieces``."""
    return 1 + sum(_apart(one, after) for one, after in pairwise(pieces))


def _order(pieces: list[_Piece]) -> str:
    return " ".join(f"{one.kind}{one.head}.{one.token}" for one in pieces)
