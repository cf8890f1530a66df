"""What a cached row turns when its token moves to another place: all of K, or of a latent's row the rope key alone."""

from collections.abc import Mapping
from typing import Any

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import look
from minikv.plan import CacheSpec
from minikv.shown import columns

LEFT, TOP = 132, 60
HIGH, GROUP = 36, 132  # of a row, of a model


def turned_parts(models: Mapping[str, Any], start: int, by: int, lang: str = "en") -> Diagram:
    """Draw a token's row in one layer of each model, before and after it moves from place ``start`` up ``by`` places.

    A model is what ``CacheSpec.from_config`` takes. Widths are to scale. Raises what ``CacheSpec.from_config`` raises.
    """
    lang = pick_language(lang)
    layers = {
        name: CacheSpec.from_config(model, layout="hf", kv_dtype="bf16").layers[0]
        for name, model in models.items()
    }
    scale = (WIDTH - LEFT - 4) / max(layer.token_bytes for layer in layers.values())
    picture, y = Picture(), float(TOP)
    title = text("diagrams_eviction.turned_title", lang, start=start, end=start - by)
    picture.words(0, 16, title, bold=True)
    table, joint = [], text("diagrams.joint", lang)
    for name, layer in layers.items():
        latent = layer.kind == "latent"
        sizes = [layer.kv_heads * dim * layer.itemsize for dim in (layer.k_dim, layer.v_dim)]
        names = (text("diagrams.latent", lang), "rope") if latent else ("K", "V")
        looks = ("shared", "k") if latent else ("k", "v")
        parts = list(zip(names, sizes, strict=True))
        turned = parts[1] if latent else parts[0]
        share = text("diagrams_eviction.turned_share", lang, turned=turned[1], row=sum(sizes))
        picture.words(0, y - 12, name, bold=True)
        picture.words(width_of(name) + 24, y - 12, share, size=12)
        for row, place in ((0, start), (1, start - by)):
            top = y + row * (HIGH + 20)
            picture.words(0, top + 23, text("diagrams_eviction.turned_place", lang, place=place), size=12)
            x, beside = float(LEFT), list[str]()
            for (part, size), meaning in zip(parts, looks, strict=True):
                fill = look("warning" if row == 1 and part == turned[0] else meaning)
                picture.box(x, top, size * scale, HIGH, fill, edge=1)
                said = text("diagrams.comma", lang).join((part, f"{size:,} B"))
                if width_of(said) < size * scale - 8:
                    middle = x + size * scale / 2
                    picture.words(middle, top + 23, said, anchor="middle", on=fill, halo=10)
                else:
                    beside.append(said)
                if row:
                    picture.curve(
                        (x + min(12, size * scale / 2), top - 18),
                        (x + min(12, size * scale / 2), top - 2),
                        down=True,
                    )
                x += size * scale
            if beside:
                picture.words(x + 6, top + 23, joint.join(beside), size=12)
        for part, size in parts:
            key = "turned_turned" if part == turned[0] else "turned_same"
            table.append((name, part, f"{size:,} B", text(f"diagrams_eviction.{key}", lang)))
        table.append((name, text("diagrams_eviction.turned_sum", lang), f"{sum(sizes):,} B", ""))
        y += GROUP + 12
    picture.box(0, y - 16, 16, 16, look("warning"), edge=1)
    picture.words(24, y - 3, text("diagrams_eviction.turned_turned", lang), size=12)
    alt = title + text("diagrams.colon", lang) + joint.join(" ".join(filter(None, row)) for row in table)
    return Diagram(picture, alt, [title, columns(table, (2,))], lang, width=WIDTH, height=y + 8)
