"""What an MLA layer makes of a token: a latent and a rope key, and K and V of every head; areas are to scale."""

from math import sqrt
from typing import Any

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture
from minikv.i18n import pick_language, text
from minikv.look import look
from minikv.plan import CacheSpec
from minikv.plan.spec.config import read_config

TOP, TALL, WIDE = 44, 256, 320  # where the shapes begin; the heads' height and width
SMALL, HEADS = 300, WIDTH - WIDE  # the left edges of latent and heads


def mla_flow(model: Any, lang: str = "en") -> Diagram:
    """Draw one layer of ``model``, a config or a catalogue name with ``kv_lora_rank``.

    Raises what ``CacheSpec.from_config`` raises, and ``ConfigError`` for a config without MLA's fields.
    """
    lang = pick_language(lang)
    config = read_config(model)
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    latent, rope = config.count("kv_lora_rank"), config.count("qk_rope_head_dim")
    nope, v = config.count("qk_nope_head_dim"), config.count("v_head_dim")
    now, before = (CacheSpec.from_config(model, layout=each).layers[0] for each in ("hf", "hf-expanded"))
    k = nope + rope
    element = WIDE / (k + v) * TALL / heads  # pixels of an area
    picture, row = Picture(), TALL / heads

    def say(key: str, **values: object) -> str:
        return text(f"diagrams_mla.{key}", lang, **values)

    sizes = {name: sqrt(count * element) for name, count in (("h", hidden), ("c", latent), ("r", rope))}
    middle = TOP + TALL / 2
    picture.box(0, middle - sizes["h"] / 2, sizes["h"], sizes["h"], look("activations"))
    picture.words(0, middle - sizes["h"] / 2 - 10, say("hidden", elements=hidden), size=12)
    above, below = middle - 70, middle + 70
    for name, y in (("c", above), ("r", below)):
        picture.curve((sizes["h"] + 6, middle), (SMALL - 6, y))
        fill = look("shared" if name == "c" else "k")
        picture.box(SMALL, y - sizes[name] / 2, sizes[name], sizes[name], fill)
        start = SMALL + sizes[name] + 6
        picture.curve((start, y), (HEADS - 8, y))
    picture.words(SMALL, above - sizes["c"] / 2 - 10, say("latent", elements=latent), size=12)
    picture.words(SMALL, below + sizes["r"] / 2 + 18, say("rope", elements=rope), size=12)
    picture.words(0, middle + sizes["h"] / 2 + 18, "kv_a_proj_with_mqa", size=12)
    picture.words(SMALL + sizes["c"] + 14, above - 10, "kv_b_proj", size=12)
    picture.words(SMALL + sizes["r"] + 14, below - 10, say("copied", heads=heads), size=12)
    for head in range(heads):
        y, gap = TOP + head * row, 1 if row >= 4 else 0
        scale = WIDE / (k + v)
        picture.box(HEADS, y, k * scale, row - gap, look("k"))
        picture.box(HEADS + k * scale, y, v * scale, row - gap, look("v"))
    picture.words(HEADS, TOP - 10, say("heads", heads=heads, k=k, nope=nope, rope=rope, v=v), size=12)
    sums = [
        say("now", latent=latent, rope=rope, itemsize=now.itemsize, total=now.token_bytes),
        say("before", heads=heads, k=k, v=v, itemsize=before.itemsize, total=before.token_bytes),
    ]
    for x, said in zip((0, HEADS - 60), sums, strict=True):
        picture.words(x, TOP + TALL + 28, said, bold=True)
    ratio = say("ratio", ratio=before.token_bytes / now.token_bytes)
    picture.words(0, TOP + TALL + 52, ratio, size=12)
    lines = [
        say("title"),
        say("hidden", elements=hidden),
        say("latent", elements=latent),
        say("rope", elements=rope),
        say("heads", heads=heads, k=k, nope=nope, rope=rope, v=v),
        *sums,
        ratio,
    ]
    alt = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=TOP + TALL + 60)
