"""Layers of different kinds side by side: the bytes of one sequence at several lengths, to scale."""

from collections.abc import Mapping, Sequence

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import look
from minikv.plan.spec.layers import LayerSpec
from minikv.units import format_bytes

ROW, HEAD = 24, 56  # heights of a bar with its gap, and of what stands above a layer's bars
LEFT, RIGHT = 104, 104  # for the lengths, for the bytes


def layer_kinds(layers: Mapping[str, LayerSpec], lengths: Sequence[int], lang: str = "en") -> Diagram:
    """Draw what each of ``layers`` keeps of a sequence of each of ``lengths`` tokens, under its name.

    A bar is as long as its bytes; its outline as long as the bytes of all tokens.
    """
    lang = pick_language(lang)
    picture, y = Picture(), 0.0
    title = text("diagrams_layers.title", lang)
    longest = max(_most(layer, length) for layer in layers.values() for length in lengths)
    scale = (WIDTH - LEFT - RIGHT) / longest
    lines = [title]
    for name, layer in layers.items():
        rule = _rule(layer, lang)
        picture.words(0, y + 16, name, bold=True, size=16)
        picture.words(0, y + 38, rule, size=12)
        lines.append(f"{name}{text('diagrams.colon', lang)}{rule}")
        y += HEAD
        for length in lengths:
            lines.append(_draw(picture, layer, length, y, scale, lang))
            y += ROW
        y += 16
    picture.words(0, y + 12, text("diagrams_layers.scale", lang), size=12)
    alt = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=y + 24)


def _most(layer: LayerSpec, length: int) -> int:
    """Bytes of ``length`` tokens in a layer that keeps them all."""
    return length * layer.token_bytes + layer.state_bytes


def _draw(picture: Picture, layer: LayerSpec, length: int, y: float, scale: float, lang: str) -> str:
    kept, most = layer.bytes_for(length), _most(layer, length)
    picture.words(LEFT - 8, y + 14, text("diagrams_layers.tokens", lang, n=length), anchor="end", size=12)
    if most > kept:
        picture.box(LEFT, y, most * scale, ROW - 6, None, edge=1, dashed=True)
    picture.box(LEFT, y, max(2, kept * scale), ROW - 6, look("k" if layer.token_bytes else "buffers"))
    said = format_bytes(kept)
    place = LEFT + max(most, kept) * scale + 8
    picture.words(min(place, WIDTH - width_of(said, 12)), y + 14, said, size=12)
    key = "line" if kept == most else "line_of"
    return text(f"diagrams_layers.{key}", lang, n=length, size=said, most=format_bytes(most))


def _rule(layer: LayerSpec, lang: str) -> str:
    if not layer.token_bytes:
        return text("diagrams_layers.state", lang, state=layer.state_bytes)
    key = "full" if layer.window is None else "window"
    return text(f"diagrams_layers.{key}", lang, token=layer.token_bytes, window=layer.window or 0)
