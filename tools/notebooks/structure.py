"""notebooks/voice.toml: the parts that a lesson has, in order, and the words and spellings that no sentence needs."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minikv.i18n import LANGUAGES
from tools.notebooks.glossary import Ban, forbidden_words
from tools.notebooks.prose import own_words
from tools.notebooks.source import Cell, Source

VOICE = Path("notebooks/voice.toml")
# a thread about a bug or a change of another project
_REPORT = re.compile(r"github\.com/[^)\s]+/(?:issues|pull|discussions)/\d+")
_HEADING = re.compile(r"^## ", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """What a lesson has, found by a regular expression in each language ("": not looked for in this one)."""

    name: str
    en: str
    zh: str
    first_screen: bool = False  # before the second heading
    reports: bool = False  # links to such threads stand here, and not before
    lines: tuple[int, int] | None = None  # fewest and most, up to the next heading
    without: tuple[str, ...] = ()  # lessons


@dataclass(frozen=True)
class Tic:
    """Words, or a regular expression, that prose of ``lang`` does not use, but for ``{a lesson: its cells}``."""

    lang: str
    instead: str
    words: tuple[str, ...] = ()
    pattern: str = ""
    fine: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Voice:
    parts: tuple[Part, ...] = ()
    tics: tuple[Tic, ...] = ()


def read_voice(root: Path) -> Voice:
    """The rules of the course at ``root``; none where it has no such file."""
    path = root / VOICE
    if not path.is_file():
        return Voice()
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return Voice(
        tuple(Part(**{name: _frozen(value) for name, value in part.items()}) for part in table["part"]),
        tuple(Tic(**{name: _frozen(value) for name, value in tic.items()}) for tic in table["tic"]),
    )


def structure_problems(voice: Voice, source: Source, lesson: str) -> Iterator[tuple[str, str]]:
    """(what is wrong, the way out) of a lesson's parts. Appendices have letters, and no rule."""
    if not lesson[0].isdigit():
        return
    for lang in LANGUAGES:
        cells = source.in_language(lang)
        text = "\n\n".join(cell.text for cell in cells)
        headings = [found.start() for found in _HEADING.finditer(text)] + [len(text)] * 2
        last, before = -1, "the beginning"
        for part in voice.parts:
            pattern = getattr(part, lang)
            if not pattern or lesson in part.without:
                continue
            found = re.search(pattern, text, re.MULTILINE)
            if found is None or (part.first_screen and found.start() > headings[1]):
                where = " before its second heading" if part.first_screen else ""
                yield f"the {lang} lesson has no {part.name}{where}", f"Write what matches {pattern}"
                continue
            if found.start() < last and not part.first_screen:
                yield (
                    f"the {lang} lesson has {part.name} before {before}",
                    "Move it: docs/lessons.md has the order",
                )
            last, before = found.start(), part.name
            rest = text[found.end() :]
            end = _HEADING.search(rest)
            if part.reports and (strays := _REPORT.findall(text[: found.start()])):
                yield (
                    f"the {lang} lesson links a report before {part.name}: {strays[0]}",
                    f"Move it to {part.name}",
                )
            if part.lines:
                count = len(
                    [line for line in rest[: end.start() if end else None].splitlines() if line.strip()]
                )
                fewest, most = part.lines
                if not fewest <= count <= most:
                    yield f"the {lang} {part.name} has {count} lines", f"Write {fewest} to {most}"


def tics(voice: Voice, cell: Cell, lang: str, lesson: str) -> Iterator[tuple[str, str]]:
    """(word, what to write instead) for each word of a cell that no sentence needs."""
    for tic in voice.tics:
        if tic.lang == lang and cell.key not in tic.fine.get(lesson, ()):
            bans = [Ban(word, lang, tic.instead) for word in tic.words]
            for ban in forbidden_words(bans, cell.text, lang, lesson, ""):
                yield ban.word, ban.instead
            if tic.pattern and (found := re.search(tic.pattern, own_words(cell.text))):
                yield found[0], tic.instead


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
