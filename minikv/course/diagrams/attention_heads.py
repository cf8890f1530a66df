"""MHA, GQA, MQA and MLA side by side: what the query heads read, and a token's bytes in one layer, to scale."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, alt_of, width_of
from minikv.i18n import pick_language, text
from minikv.look import look
from minikv.plan import CacheSpec
from minikv.plan.spec.config import read_config
from minikv.plan.spec.layers import LayerSpec
from minikv.shown import columns

TOP, HEIGHT = 60, 256  # of the heads
DOTS, FAN = 5, 56  # from a column's left edge to its query heads, and to the bytes that they read
MARGIN = 16


@dataclass(frozen=True)
class _Column:
    name: str
    query_heads: int
    layer: LayerSpec

    @property
    def kind(self) -> str:
        if self.layer.kind == "latent":
            return "MLA"
        if self.layer.kv_heads == self.query_heads:
            return "MHA"
        return "MQA" if self.layer.kv_heads == 1 else "GQA"

    @property
    def formula(self) -> str:
        layer = self.layer
        sum_of_one = f"({layer.k_dim} + {layer.v_dim}) × {layer.itemsize}"
        more = f" + {self.beside:,}" if self.beside else ""
        return (f"{layer.kv_heads} × " if layer.kv_heads > 1 else "") + sum_of_one + more

    @property
    def beside(self) -> int:
        """Bytes of a token that are neither K nor V: scales, an indexer's key."""
        return self.layer.token_bytes - self.layer.kv_heads * self.head_bytes

    @property
    def head_bytes(self) -> int:
        return (self.layer.k_dim + self.layer.v_dim) * self.layer.itemsize


def attention_heads(models: Mapping[str, Any], lang: str = "en") -> Diagram:
    """Draw the largest layer of each model, under the name that ``models`` gives it.

    A model is what ``CacheSpec.from_config`` takes: a catalogue name, a dict. An area is as large as its bytes.
    Raises what ``CacheSpec.from_config`` raises.
    """
    lang = pick_language(lang)
    drawn = [_column(name, model) for name, model in models.items()]
    most = max(column.layer.token_bytes for column in drawn)
    picture, step = Picture(), WIDTH / len(drawn)
    widest = max(column.head_bytes for column in drawn)
    scale = (step - FAN - MARGIN) / widest  # pixels a byte, sideways
    row = HEIGHT / max(column.layer.kv_heads for column in drawn)
    for place, column in enumerate(drawn):
        _draw(picture, column, place * step, scale, row, most, lang)
    title = text("diagrams.heads_title", lang)
    picture.words(0, TOP + HEIGHT + 136, text("diagrams.heads_scale", lang), size=12)
    table = [
        (
            one.kind,
            one.name,
            _heads(one, lang),
            f"{one.formula} = {one.layer.token_bytes:,} B",
            _less(one, most, lang),
        )
        for one in drawn
    ]
    return Diagram(
        picture,
        alt_of(title, table, lang),
        [title, columns(table)],
        lang,
        width=WIDTH,
        height=TOP + HEIGHT + 144,
    )


def _column(name: str, model: Any) -> _Column:
    layers = CacheSpec.from_config(model).layers
    query_heads = read_config(model).count("num_attention_heads")
    return _Column(name, query_heads, max(layers, key=lambda layer: layer.token_bytes))


def _draw(
    picture: Picture, column: _Column, left: float, scale: float, row: float, most: int, lang: str
) -> None:
    layer = column.layer
    names = (text("diagrams.latent", lang), "rope") if layer.kind == "latent" else ("K", "V")
    looks = (look("shared"), look("k")) if layer.kind == "latent" else (look("k"), look("v"))
    picture.words(left, 16, column.kind, bold=True, size=16)
    picture.words(left, 36, column.name)
    rows = layer.kv_heads + bool(column.beside)
    begin, x = TOP + (HEIGHT - rows * row) / 2, left + FAN
    pitch = HEIGHT / column.query_heads
    query_heads = [(head, TOP + (head + 0.5) * pitch) for head in range(column.query_heads)]
    shared_by = column.query_heads / layer.kv_heads
    picture.lines(
        (left + DOTS + 4, y, x - 2, begin + (head // shared_by + 0.5) * row) for head, y in query_heads
    )
    picture.dots(((left + DOTS, y) for _, y in query_heads), min(3, pitch / 2.2))
    widths = [dim * layer.itemsize * scale for dim in (layer.k_dim, layer.v_dim)]
    gap = 1 if row >= 4 else 0  # between two heads
    for head in range(layer.kv_heads):
        y = begin + head * row
        picture.box(x, y, widths[0], row - gap, looks[0])
        picture.box(x + widths[0], y, widths[1], row - gap, looks[1])
    if column.beside:
        y, end = begin + layer.kv_heads * row, x + column.beside * scale
        picture.box(x, y, end - x, row - gap, look("other"))
        picture.words(end + 6, y + row / 2 + 4, f"+ {column.beside:,} B", size=12)
    # Each part's name stands below it, and where the part is too narrow, beside the other name.
    bottom = begin + rows * row + 14
    first, second = (f"{name} {dim}" for name, dim in zip(names, (layer.k_dim, layer.v_dim), strict=True))
    place = min(widths[0], sum(widths) - width_of(second, 12))
    picture.words(x, bottom, first, size=12)
    picture.words(x + max(place, width_of(first, 12) + 8), bottom, second, size=12)
    below = TOP + HEIGHT + 44
    picture.words(left, below, _heads(column, lang), size=12)
    picture.words(left, below + 20, column.formula, size=12)
    picture.words(left, below + 42, f"= {layer.token_bytes:,} B", bold=True, size=16)
    if less := _less(column, most, lang):
        picture.words(left, below + 62, less, size=12)


def _heads(column: _Column, lang: str) -> str:
    key = "heads_latent" if column.kind == "MLA" else "heads_one" if column.layer.kv_heads == 1 else "heads"
    return text(f"diagrams.{key}", lang, query=column.query_heads, kv=column.layer.kv_heads)


def _less(column: _Column, most: int, lang: str) -> str:
    ratio = most / column.layer.token_bytes
    return "" if ratio == 1 else text("diagrams.heads_less", lang, ratio=f"{ratio:,.1f}".removesuffix(".0"))
