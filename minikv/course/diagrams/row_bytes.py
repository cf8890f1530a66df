"""What a token's K and V take in one KV head, to scale: the numbers, and the scale that tells how large they are."""

from collections.abc import Sequence

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import look
from minikv.plan import CacheSpec
from minikv.plan.spec.layers import LayerSpec

LEFT, RIGHT, TOP = 104, 312, 8
BAR, ROW, APART = 20, 26, 44  # of one way to store, and between two models
PARTS = {"k": look("k"), "v": look("v"), "scale": look("warning")}


def row_bytes(models: Sequence[str], kv_dtypes: Sequence[str], lang: str = "en") -> Diagram:
    """Draw the first layer of each of ``models``, stored as each of ``kv_dtypes``; the first one is compared with.

    Raises what ``CacheSpec.from_config`` raises.
    """
    lang = pick_language(lang)
    specs = {name: [CacheSpec.from_config(name, kv_dtype=one) for one in kv_dtypes] for name in models}
    most = max(_parts(spec.layers[0])["total"] for each in specs.values() for spec in each)
    picture, lines, y = Picture(), [], float(TOP)
    for name, each in specs.items():
        layer = each[0].layers[0]
        title = text("diagrams_bytes.row_title", lang, name=name, dim=layer.k_dim)
        picture.words(0, y + 12, title, bold=True)
        lines.append(title)
        for place, (kv_dtype, spec) in enumerate(zip(kv_dtypes, each, strict=True)):
            top, parts = y + 20 + place * ROW, _parts(spec.layers[0])
            picture.words(0, top + 15, kv_dtype)
            x = float(LEFT)
            for key, fill in PARTS.items():
                wide = parts[key] * (WIDTH - LEFT - RIGHT) / most
                if wide:
                    picture.box(x, top, wide, BAR, fill, edge=0.5)
                x += wide
            said = text(
                "diagrams_bytes.row_line",
                lang,
                total=parts["total"],
                scale=parts["scale"],
                token=spec.slope(),
                ratio=each[0].slope() / spec.slope(),
            )
            picture.words(x + 8, top + 15, said, size=12)
            lines.append(f"  {kv_dtype}{text('diagrams.colon', lang)}{said}")
        y += 20 + len(kv_dtypes) * ROW + APART - 24
    x = float(LEFT)
    for key, fill in PARTS.items():
        said = text(f"diagrams_bytes.row_{key}", lang)
        picture.box(x, y + 8, 16, 16, fill, edge=1)
        picture.words(x + 24, y + 21, said, size=12)
        x += 24 + width_of(said, 12) + 24
    alt = text("diagrams.joint", lang).join(line.strip() for line in lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=y + 32)


def _parts(layer: LayerSpec) -> dict[str, int]:
    """Bytes of a token's K, V and scales in one KV head, and together."""
    k, v = layer.k_dim * layer.itemsize, layer.v_dim * layer.itemsize
    total = layer.token_bytes // layer.kv_heads
    return {"k": k, "v": v, "scale": total - k - v, "total": total}
