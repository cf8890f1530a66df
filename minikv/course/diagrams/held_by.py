"""The holders of what a call left alive: an arrow from each variable to the storages that it keeps."""

import re
from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture, width_of
from minikv.i18n import pick_language, text
from minikv.look import look
from minikv.units import format_bytes

if TYPE_CHECKING:
    from minikv.memory import RetentionReport  # it imports torch
    from minikv.memory.retention.names import Holder

STORAGE, WIDE = 400, 464  # of a storage's box: its left edge and its width
TOP, HIGH, ROW = 48, 46, 56
MOST = 6  # storages; the others are counted


def held_by(report: "RetentionReport", lang: str = "en") -> Diagram:
    """Draw the storages that ``report`` found to be kept, the largest first, and the variables that lead to them."""
    lang = pick_language(lang)
    picture, kept = Picture(), report.kept[:MOST]
    title = text(
        "diagrams_memory.held_title",
        lang,
        size=format_bytes(report.kept_bytes),
        exact=report.kept_bytes,
        count=len(report.kept),
    )
    picture.words(0, 16, title, bold=True)
    names = list(dict.fromkeys(_variable(holder) for storage in kept for holder in storage.holders))
    step = ROW * max(1, len(kept)) / max(1, len(names))
    middles = {name: TOP + (number + 0.5) * step - 4 for number, name in enumerate(names)}
    for name, middle in middles.items():
        picture.box(0, middle - 16, width_of(name) + 24, 32, look("warning"), radius=6, edge=1)
        picture.words(12, middle + 5, name, bold=True, on=look("warning"), halo=10)
    lines = [title]
    for number, storage in enumerate(kept):
        y = TOP + number * ROW
        shape = "x".join(map(str, storage.shape))
        said = text("diagrams.comma", lang).join((f"{shape} {storage.dtype}", f"{storage.nbytes:,} B"))
        picture.box(STORAGE, y, WIDE, HIGH, radius=6, edge=1)
        picture.box(STORAGE, y, 12, HIGH, look("k"))
        picture.words(STORAGE + 24, y + 18, said, bold=True)
        for holder in storage.holders:
            name = _variable(holder)
            picture.curve((width_of(name) + 28, middles[name]), (STORAGE - 3, y + HIGH / 2))
        paths = [holder.path for holder in storage.holders]
        picture.words(STORAGE + 24, y + 36, _short(paths[0] if paths else "?"), size=12)
        lines.append(said + text("diagrams.colon", lang) + text("diagrams.joint", lang).join(paths))
    y = TOP + len(kept) * ROW + 12
    if len(kept) < len(report.kept):
        rest = report.kept[MOST:]
        more = sum(storage.nbytes for storage in rest)
        lines.append(text("diagrams_memory.held_more", lang, count=len(rest), size=more))
        picture.words(STORAGE, y, lines[-1], size=12)
        y += 20
    releases = list(dict.fromkeys(h.release for storage in kept for h in storage.holders if h.release))
    if releases:
        lines.append(text("diagrams_memory.held_release", lang, code=releases[0]))
        picture.words(0, y, lines[-1])
        y += 12
    alt = text("diagrams.joint", lang).join(lines)
    return Diagram(picture, alt, lines, lang, width=WIDTH, height=y)


def _variable(holder: "Holder") -> str:
    """The variable at which the path begins: ``out``, ``sys.last_value``."""
    first = holder.path.split(" -> ")[0]
    return re.split(r"[.\[]", first)[0] if holder.kind in ("global", "local") else first


def _short(path: str) -> str:
    """The path as far as the box is wide, its end first: that names the tensor."""
    most = int((WIDE - 40) / width_of("x", 12))
    return path if len(path) <= most else "..." + path[-most + 3 :]
