"""What each rank of a tensor-parallel group caches of a token: KV heads shared out or copied, latents everywhere."""

from collections.abc import Mapping
from typing import Any

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture
from minikv.i18n import pick_language, text
from minikv.look import look
from minikv.plan import CacheSpec

TOP, HEAD, CELL, ROW, GAP = 8, 44, 26, 116, 8


def rank_caches(models: Mapping[str, Any], tp: int, lang: str = "en") -> Diagram:
    """Draw the first layer's cache of each model on ``tp`` ranks: a box is a rank, a colour is a head.

    A model is what ``CacheSpec.from_config`` takes: a catalogue name, a dict. Raises what that raises.
    """
    lang = pick_language(lang)
    picture, lines = Picture(), []
    wide = (WIDTH - 2 - GAP * (tp - 1)) / tp
    for row, (name, model) in enumerate(models.items()):
        whole, part = CacheSpec.from_config(model), CacheSpec.from_config(model, tp=tp)
        latent = whole.layers[0].kind == "latent"
        heads, each = whole.layers[0].kv_heads, part.layers[0].kv_heads
        y, size = TOP + ROW * row, {"one": whole.bytes_for(1), "rank": part.bytes_for(1), "tp": tp}
        size["copies"] = tp * size["rank"] // size["one"]
        said = text("diagrams.rank_line", lang, **size)
        picture.words(0, y + 12, name, bold=True)
        picture.words(0, y + 32, said, size=12)
        held = []
        for rank in range(tp):
            x, first = 1 + rank * (wide + GAP), 0 if latent else rank * heads // tp
            cell = (wide - 8) / each
            for place in range(each):
                fill = look("cached") if latent else look(first + place)
                at = x + 4 + place * cell
                picture.box(at, y + HEAD + 4, cell, CELL, fill, edge=1)
                word = text("diagrams.latent", lang) if latent else str(first + place)
                picture.words(at + cell / 2, y + HEAD + 22, word, anchor="middle", size=12, on=fill, halo=8)
            picture.box(x, y + HEAD, wide, CELL + 8, radius=6, edge=1)
            rank_name = text("diagrams.rank_name", lang, rank=rank)
            picture.words(x + wide / 2, y + HEAD + CELL + 24, rank_name, anchor="middle", size=12)
            held.append(word if latent else " ".join(str(first + place) for place in range(each)))
        lines.append(f"{name}{text('diagrams.colon', lang)}{said} [{' | '.join(held)}]")
    below = TOP + ROW * len(models) + 8
    legend = text("diagrams.rank_legend", lang)
    picture.words(0, below, legend, size=12)
    alt = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, [*lines, legend], lang, width=WIDTH, height=below + 12)
