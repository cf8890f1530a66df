"""One token's K and V in all layers, to scale: a row is a layer, a pair of boxes a KV head, the area the bytes."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture
from minikv.i18n import pick_language, text
from minikv.look import look
from minikv.plan import CacheSpec
from minikv.plan.spec.layers import LayerSpec

TOP, HEIGHT, WIDEST = 30, 224, 480  # of the boxes; the last so that a single model does not fill the page
MARGIN, LINE = 20, 20


def token_boxes(models: Mapping[str, Any], lang: str = "en") -> Diagram:
    """Draw a token of each model, under the name that ``models`` gives it, all at one scale.

    A model is what ``CacheSpec.from_config`` takes: a catalogue name, a dict. Raises what that raises.
    """
    lang = pick_language(lang)
    specs = {name: CacheSpec.from_config(model) for name, model in models.items()}
    step = WIDTH / len(specs)
    most = max(layer.token_bytes for spec in specs.values() for layer in spec.layers)
    scale = min(step - MARGIN, WIDEST) / most  # pixels a byte, sideways
    row = HEIGHT / max(len(spec.layers) for spec in specs.values())
    title = text("diagrams_layers.boxes_title", lang)
    picture, lines = Picture(), [title]
    deepest = 0.0
    for place, (name, spec) in enumerate(specs.items()):
        x, y = 1 + place * step, float(TOP)
        picture.words(x, 16, name, bold=True)
        for layer, run in groupby(spec.layers):
            high = len(list(run)) * row
            _heads(picture, layer, x, y, high, scale)
            y += high
        edges = ((TOP + number * row, layer.token_bytes * scale) for number, layer in enumerate(spec.layers))
        picture.lines((x, edge, x + wide, edge) for edge, wide in edges)
        largest = max(spec.layers, key=lambda layer: layer.token_bytes)
        first = TOP + spec.layers.index(largest) * row
        picture.box(x, first, largest.token_bytes * scale, row, edge=1.5)
        said = _products(spec, largest, lang)
        y = TOP + HEIGHT + LINE
        for line in said:
            picture.words(x, y, line, size=12, bold=line is said[-1])
            y += LINE
        deepest = max(deepest, y)
        lines += [name, *(f"  {line}" for line in said)]
    picture.words(0, deepest + 8, text("diagrams_layers.boxes_scale", lang), size=12)
    alt = text("diagrams.joint", lang).join(line.strip() for line in lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=deepest + 18)


def _heads(picture: Picture, layer: LayerSpec, x: float, y: float, high: float, scale: float) -> None:
    """Draw K and V of each head through a run of equal layers, and what a token has beside them."""
    latent = layer.kind == "latent"
    # Without their patterns: lines across would look like layers.
    looks = [replace(look(name), tile="") for name in (("shared", "k") if latent else ("k", "v"))]
    wide = [dim * layer.itemsize * scale for dim in (layer.k_dim, layer.v_dim)]
    gap = 1 if sum(wide) >= 6 else 0  # between two heads
    for _head in range(layer.kv_heads):
        picture.box(x, y, wide[0], high, looks[0])
        picture.box(x + wide[0], y, wide[1] - gap, high, looks[1])
        x += sum(wide)
    if beside := layer.token_bytes - _elements(layer):
        picture.box(x, y, beside * scale, high, look("other"))


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
        text("diagrams_layers.boxes_layer", lang, **size),
    ]
    if beside:
        said.append(text("diagrams_layers.boxes_beside", lang, beside=beside, layer=layer.token_bytes))
    total = sum(one.token_bytes for one in spec.layers)
    key = "boxes_token" if total == layer.token_bytes * len(spec.layers) else "boxes_unequal"
    return [*said, text(f"diagrams_layers.{key}", lang, layers=len(spec.layers), token=total)]
