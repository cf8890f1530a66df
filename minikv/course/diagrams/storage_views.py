"""Tensors and their storages: which bytes of a storage each tensor touches, and how many it keeps alive beside them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import look

if TYPE_CHECKING:
    from torch import Tensor

    from minikv.memory.ownership import Ownership

NAME, STRIP = 216, 264  # widths of a name's box, and the strip's left edge
TOP, LANE, ROW, HEAD = 8, 22, 48, 30
CELLS = 400  # equal parts of a storage; one is drawn as touched if an element lies in it


def storage_views(tensors: "Mapping[str, Tensor]", lang: str = "en") -> Diagram:
    """Draw each storage once, and in it a strip for each tensor over it. A strip is as wide as the storage is large."""
    from minikv.memory.ownership import ownership

    lang = pick_language(lang)
    facts = {name: ownership(tensor) for name, tensor in tensors.items()}
    groups: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
    scale = (WIDTH - STRIP - 8) / max(fact.storage_bytes for fact in facts.values())
    picture, lines, y = Picture(), [], float(TOP)
    for names in groups.values():
        size = facts[names[0]].storage_bytes
        wide, title = size * scale, text("diagrams.views_storage", lang, size=size)
        picture.words(STRIP, y + 14, title, bold=True)
        frame = max(wide, *(width_of(_bytes(facts[name], lang), 12) for name in names))
        picture.box(STRIP - 4, y + HEAD - 8, frame + 8, ROW * len(names), radius=6, edge=1)
        lines.append(title)
        for row, name in enumerate(names):
            _draw(picture, name, facts[name], y + HEAD + ROW * row, wide, lang)
            values = {"name": name, "elements": facts[name].numel}
            told = text(
                "diagrams.views_line", lang, **values, kind=text(f"diagrams.views_{facts[name].kind}", lang)
            )
            lines.append(told + _bytes(facts[name], lang))
        y += HEAD + ROW * len(names) + 8
    x = float(STRIP)
    for key, meaning in (("touched", "k"), ("beside", "warning")):
        said = text(f"diagrams.views_{key}", lang)
        picture.box(x, y + 4, 16, 16, look(meaning), edge=1)
        picture.words(x + 22, y + 17, said, size=12)
        x += 22 + width_of(said, 12) + 24
    alt = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=y + 28)


def _draw(picture: Picture, name: str, fact: "Ownership", y: float, wide: float, lang: str) -> None:
    picture.box(1, y - 2, NAME, LANE + 4, radius=6, edge=1)
    picture.words(12, y + 16, name, bold=True)
    picture.curve((NAME + 4, y + LANE / 2), (STRIP - 8, y + LANE / 2))
    picture.box(STRIP, y, wide, LANE, look("warning"), edge=1)
    cell = wide / CELLS
    for first, last in _runs(_touched(fact)):
        picture.box(STRIP + first * cell, y, (last - first + 1) * cell, LANE, look("k"))
    picture.box(STRIP, y, wide, LANE, edge=1)
    picture.words(STRIP, y + LANE + 14, _bytes(fact, lang), size=12)


def _bytes(fact: "Ownership", lang: str) -> str:
    return text("diagrams.views_bytes", lang, touched=fact.touched_bytes, beside=fact.keeps_alive_bytes)


def _touched(fact: "Ownership") -> list[int]:
    """The parts of the storage in which an element lies, in order."""
    import torch

    places = torch.tensor([fact.offset])
    for length, stride in zip(fact.shape, fact.stride, strict=True):
        places = (places[:, None] + torch.arange(length) * stride * fact.dtype.itemsize).flatten().unique()
    return torch.unique(places * CELLS // fact.storage_bytes).tolist()


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Neighbours as pairs of the first and the last."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
