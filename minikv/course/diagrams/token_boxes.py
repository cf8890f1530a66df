"""One token's K and V in all layers, to scale: a row is a layer, a pair of boxes a KV head, the area the bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import Look, look
from minikv.plan import CacheSpec
from minikv.plan.spec.layers import LayerSpec

TOP, HEIGHT, WIDEST = 64, 272, 640  # of the boxes; the last so that a single model does not fill the page
NAMES, MARGIN, LINE = (
    64,
    20,
    20,
)  # of the layers' names, left of the boxes; between two models; of a line of words
NUMBERED = 36  # px a head, from which on each has its number


def token_boxes(models: Mapping[str, Any], lang: str = "en") -> Diagram:
    """Draw a token of each model, under the name that ``models`` gives it, all at one scale.

    A model is what ``CacheSpec.from_config`` takes: a catalogue name, a dict. Raises what that raises.
    """
    lang = pick_language(lang)
    specs = {name: CacheSpec.from_config(model) for name, model in models.items()}
    step = WIDTH / len(specs)
    most = max(layer.token_bytes for spec in specs.values() for layer in spec.layers)
    scale = min(step - NAMES - MARGIN, WIDEST) / most  # pixels a byte, sideways
    row = HEIGHT / max(len(spec.layers) for spec in specs.values())
    title = text("diagrams_layers.boxes_title", lang)
    picture, lines = Picture(), [title]
    deepest = 0.0
    for place, (name, spec) in enumerate(specs.items()):
        x, y = 1 + place * step, float(TOP)
        picture.words(x, 16, name, bold=True)
        for layer, run in groupby(spec.layers):
            count = len(list(run))
            _heads(picture, layer, x + NAMES, y, count, row, scale)
            y += count * row
        largest = max(spec.layers, key=lambda layer: layer.token_bytes)
        first = spec.layers.index(largest)
        picture.box(x + NAMES - 1, TOP + first * row - 1, largest.token_bytes * scale + 1, row + 1, edge=1.5)
        for number in dict.fromkeys((first, len(spec.layers) - 1)):
            named = text("diagrams_layers.boxes_row", lang, layer=number)
            picture.words(x, TOP + (number + 0.5) * row + 4, named, size=12)
        _head_names(picture, largest, x, scale, lang)
        said = _products(spec, largest, lang)
        y = TOP + HEIGHT + LINE + 4
        for line in said:
            picture.words(x, y, line, size=12, bold=line is said[-1])
            y += LINE
        deepest = max(deepest, y)
        lines += [name, *(f"  {line}" for line in said)]
    _legend(picture, [layer for spec in specs.values() for layer in spec.layers], deepest, lang)
    alt = text("diagrams.joint", lang).join(line.strip() for line in lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=deepest + LINE + 24)


def _names(layer: LayerSpec, lang: str) -> tuple[str, str]:
    """Names of a head's two vectors."""
    return (text("diagrams.latent", lang), "rope") if layer.kind == "latent" else ("K", "V")


def _looks(layer: LayerSpec) -> list[Look]:
    """Looks of these vectors, without their patterns: lines across would look like layers."""
    meanings = ("shared", "k") if layer.kind == "latent" else ("k", "v")
    return [replace(look(meaning), tile="") for meaning in meanings]


def _heads(
    picture: Picture, layer: LayerSpec, x: float, y: float, count: int, row: float, scale: float
) -> None:
    """Draw K and V of each head through ``count`` equal layers, and what a token has beside them."""
    looks = _looks(layer)
    wide = [dim * layer.itemsize * scale for dim in (layer.k_dim, layer.v_dim)]
    gap = min(4.0, sum(wide) / 8, wide[1] / 3)  # between two heads
    between = 1 if row > 2 else row / 2  # two layers
    starts = [x + head * sum(wide) for head in range(layer.kv_heads)]
    high = count * row - between
    picture.columns(starts, y, wide[0], high, looks[0], row=row, gap=between)
    picture.columns([one + wide[0] for one in starts], y, wide[1] - gap, high, looks[1], row=row, gap=between)
    if beside := layer.token_bytes - _elements(layer):
        end = x + layer.kv_heads * sum(wide)
        other = replace(look("other"), tile="")
        picture.columns([end], y, beside * scale, high, other, row=row, gap=between)


def _head_names(picture: Picture, layer: LayerSpec, x: float, scale: float, lang: str) -> None:
    """Number the heads above their boxes, and name K and V of each, where there is room; else count the heads."""
    head = (layer.k_dim + layer.v_dim) * layer.itemsize * scale
    if head < NUMBERED:
        key = "boxes_one_head" if layer.kv_heads == 1 else "boxes_heads"
        picture.words(
            x + NAMES, TOP - 8, text(f"diagrams_layers.{key}", lang, last=layer.kv_heads - 1), size=12
        )
        return
    picture.words(x, TOP - 24, text("diagrams_layers.boxes_head_names", lang), size=12)
    for number in range(layer.kv_heads):
        left = x + NAMES + number * head
        picture.words(left + head / 2, TOP - 24, str(number), size=12, anchor="middle")
        dims_of = (layer.k_dim, layer.v_dim)
        for name, dims, begin in zip(_names(layer, lang), dims_of, (0, layer.k_dim), strict=True):
            middle = (begin + dims / 2) * layer.itemsize * scale
            picture.words(left + middle, TOP - 8, name, size=12, anchor="middle")


def _legend(picture: Picture, layers: Sequence[LayerSpec], y: float, lang: str) -> None:
    x = 0.0
    parts = (part for layer in layers for part in zip(_names(layer, lang), _looks(layer), strict=True))
    for name, found in dict.fromkeys(parts):
        picture.box(x, y, 14, 14, found)
        picture.words(x + 20, y + 12, name, size=12)
        x += 36 + width_of(name, 12)
    picture.words(0, y + LINE + 14, text("diagrams_layers.boxes_scale", lang), size=12)


def _elements(layer: LayerSpec) -> int:
    """Bytes of a token's K and V, without scales or an indexer's key."""
    return layer.kv_heads * (layer.k_dim + layer.v_dim) * layer.itemsize


def _products(spec: CacheSpec, layer: LayerSpec, lang: str) -> list[str]:
    """Say the bytes after each factor of the formula: of a head, of ``layer``, of all layers."""
    dims = layer.k_dim + layer.v_dim
    size: dict[str, Any] = {"k": layer.k_dim, "v": layer.v_dim, "itemsize": layer.itemsize}
    size |= {"head": dims * layer.itemsize, "heads": layer.kv_heads, "elements": _elements(layer)}
    beside = layer.token_bytes - _elements(layer)
    said = [
        text("diagrams_layers.boxes_head", lang, **size),
        text(f"diagrams_layers.boxes_{'layer_of_one' if layer.kv_heads == 1 else 'layer'}", lang, **size),
    ]
    if beside:
        said.append(text("diagrams_layers.boxes_beside", lang, beside=beside, layer=layer.token_bytes))
    total = sum(one.token_bytes for one in spec.layers)
    key = "boxes_token" if total == layer.token_bytes * len(spec.layers) else "boxes_unequal"
    return [*said, text(f"diagrams_layers.{key}", lang, layers=len(spec.layers), token=total)]
