"""A device's memory as one bar: live, pinned, returnable, outside, free, each with the subtraction that gives it."""

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import Look, look
from minikv.shown import columns
from minikv.units import format_bytes

TOP, BAR = 32, 44
BRACKET, ROW = 34, 26  # heights: of a bracket below the bar, of a line of the list
SIZE, EXACT = 480, 640  # right edges of the list's figures
THINNEST = 3
LOOKS: dict[str, Look | None] = {
    "live": look("k"),
    "pinned": look("warning"),
    "returnable": look("cached"),
    "outside": look("other"),
    "free": None,
}


def memory_ledger(
    *,
    total: int,
    free: int,
    allocated: int,
    reserved: int | None = None,
    pinned: int | None = None,
    lang: str = "en",
) -> Diagram:
    """Draw where ``total`` bytes are. Without ``reserved`` there is no caching allocator, as on a CPU."""
    lang = pick_language(lang)
    held = allocated if reserved is None else reserved
    shares = {"live": allocated, "outside": total - free - held, "free": free}
    if reserved is not None:
        stuck = pinned or 0
        shares |= {"pinned": stuck, "returnable": reserved - allocated - stuck}
    shares = {name: shares[name] for name in LOOKS if name in shares}
    picture, edges = Picture(), {}
    title = text("diagrams_memory.ledger_title", lang, total=format_bytes(total))
    picture.words(0, 16, title, bold=True)
    x = 0.0
    for name, size in shares.items():
        wide = max(THINNEST, WIDTH * size / total) if size else 0.0
        edges[name] = (x, x + wide)
        picture.box(x, TOP, wide, BAR, LOOKS[name], edge=1, dashed=name == "free")
        said = text(f"diagrams_memory.ledger_{name}", lang)
        if width_of(said) < wide - 8:
            picture.words(x + wide / 2, TOP + 27, said, anchor="middle", on=LOOKS[name], halo=10)
        x += wide
    y = TOP + BAR
    spans = [("used", edges["outside"][1], total - free)]
    if reserved is not None:
        spans.insert(0, ("reserved", edges["returnable"][1], reserved))
    for name, end, size in spans:
        said = text(f"diagrams_memory.ledger_{name}", lang, size=format_bytes(size))
        picture.lines([(0, y + 10, end, y + 10), (0, y + 4, 0, y + 10), (end, y + 4, end, y + 10)])
        picture.words(0, y + 26, said, size=12)
        y += BRACKET
    table = []
    y += 8
    for name, size in shares.items():
        words = text(f"diagrams_memory.ledger_{name}", lang)
        rule = text(f"diagrams_memory.ledger_{name}_rule{'' if reserved is not None else '_cpu'}", lang)
        picture.box(0, y, 16, 16, LOOKS[name], edge=1, dashed=name == "free")
        picture.words(24, y + 13, words, bold=True)
        picture.words(144, y + 13, rule)
        picture.words(SIZE, y + 13, format_bytes(size), anchor="end")
        picture.words(EXACT, y + 13, f"{size:,} B", anchor="end", size=12)
        table.append((words, rule, format_bytes(size), f"{size:,} B"))
        y += ROW
    joint = text("diagrams.joint", lang)
    alt = (
        title + text("diagrams.colon", lang) + joint.join(f"{words} {exact}" for words, _, _, exact in table)
    )
    return Diagram(picture, alt, [title, columns(table, (2, 3))], lang, width=WIDTH, height=y)
