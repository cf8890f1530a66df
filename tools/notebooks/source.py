"""Read one lesson source: a percent-format file whose cells have a key and, for prose, a language."""

import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path

from minikv.i18n import LANGUAGES

MEASURED_TAGS = ("hardware", "timing")  # outputs that differ from machine to machine, from run to run
RESERVED_PREFIX = "minikv-"  # ids of the cells that the build adds

_HEADER = re.compile(r"# %%(?: \[(?P<kind>\w+)\])?(?P<attributes>(?: \w+=\"[^\"]*\")*)\s*$")
_ATTRIBUTE = re.compile(r"(\w+)=\"([^\"]*)\"")
_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what nbformat allows as a cell id
_KNOWN_META = {"number", "slug", "needs", "rooms", "title", "t4", "paper"}


class SourceError(Exception):
    """A source that cannot be read. The sentence names the file, the line and the way out."""

    def __init__(self, path: Path, line: int, problem: str, way_out: str):
        super().__init__(
            f"{path.parent.parent.name}/{path.parent.name}/{path.name}:{line}: {problem}. {way_out}"
        )


@dataclass(frozen=True)
class Cell:
    """One cell. ``lang`` is "" for a cell that both languages share."""

    kind: str  # "markdown" or "code"
    key: str
    text: str  # markdown without its "# ", code as it stands
    line: int  # of the "# %%" line, from 1
    lang: str = ""
    src: str = ""  # a zh cell: hash of the en text that it translates
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Meta:
    """A lesson's [meta] cell. ``title``, ``t4`` and ``paper`` map a language to a sentence."""

    number: str
    slug: str
    title: dict[str, str]
    t4: dict[str, str]
    needs: tuple[str, ...] = ()
    rooms: tuple[str, ...] = ()
    paper: dict[str, str] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        """The file name without its ending: ``"02_how_many_bytes"``."""
        return f"{self.number}_{self.slug}"


@dataclass(frozen=True)
class Source:
    """A parsed file. ``meta_table`` is its [meta] as written; empty where a solutions file has none."""

    path: Path
    text: str
    meta_table: dict
    cells: tuple[Cell, ...]

    def in_language(self, lang: str) -> list[Cell]:
        """The cells of one language's notebook, in order: its own and the shared ones."""
        return [cell for cell in self.cells if cell.lang in ("", lang)]

    def sibling(self, cell: Cell, lang: str) -> Cell | None:
        """The cell of the same key in ``lang``, or None."""
        return next((c for c in self.cells if c.key == cell.key and c.lang == lang), None)


def read_source(path: Path) -> Source:
    """Parse ``path``. Raises ``SourceError`` at the first thing that is not the format."""
    text = path.read_text(encoding="utf-8")
    meta: dict = {}
    cells: list = []
    for line, kind, attributes, body in _blocks(path, text):
        if kind == "meta":
            if cells or meta:
                raise SourceError(path, line, "[meta] is not the first cell", "Move it to the top, once")
            meta = _toml(path, line, body)
        else:
            cells.append(_cell(path, line, kind, attributes, body))
    _refuse_doubles(path, cells)
    return Source(path, text, meta, tuple(cells))


def read_meta(path: Path) -> Meta:
    """The [meta] cell alone: cheap, and it works while the rest of the file is being written."""
    for line, kind, _, body in _blocks(path, path.read_text(encoding="utf-8"), only_first=True):
        if kind == "meta":
            return _meta(path, line, _toml(path, line, body))
    raise SourceError(path, 1, "no [meta] cell", 'Begin the file with "# %% [meta]" (docs/lessons.md)')


def with_overrides(meta: Meta, table: dict) -> Meta:
    """The lesson's meta with what its solutions file says instead (t4, paper, rooms)."""
    changes = {name: table[name] for name in ("t4", "paper", "rooms") if name in table}
    return replace(meta, **changes)


def _blocks(path: Path, text: str, only_first: bool = False):
    """Yield (line number, kind, attributes, body lines) for each "# %%" block."""
    header, body = None, []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.startswith("# %%"):
            if header is None and line.strip():
                raise SourceError(path, number, "text before the first cell", 'Begin with "# %% [meta]"')
            body.append(line)
            continue
        if header is not None:
            yield (*header, body)
            if only_first:
                return
        match = _HEADER.match(line)
        if match is None:
            raise SourceError(
                path, number, f"cell header not understood: {line}", 'Write # %% [markdown] key="x" lang="en"'
            )
        header = (number, match["kind"] or "code", dict(_ATTRIBUTE.findall(match["attributes"])))
        body = []
    if header is not None:
        yield (*header, body)


def _cell(path: Path, line: int, kind: str, attributes: dict[str, str], body: list[str]) -> Cell:
    def refuse(problem: str, way_out: str):
        raise SourceError(path, line, problem, way_out)

    if kind not in ("markdown", "code"):
        refuse(f"unknown cell kind [{kind}]", "Use [markdown], or nothing for code")
    unknown = set(attributes) - {"key", "lang", "src", "tags"}
    if unknown:
        refuse(f"unknown attribute {min(unknown)}", "Known: key, lang, src, tags")
    key, lang = attributes.get("key", ""), attributes.get("lang", "")
    if not _KEY.fullmatch(key) or key.startswith(RESERVED_PREFIX):
        refuse(f'key "{key}" cannot be a cell id', "Use 1 to 64 letters, digits, - and _; not minikv-...")
    if lang not in ("", *LANGUAGES):
        refuse(f'unknown language "{lang}"', f"Known: {', '.join(LANGUAGES)}")
    tags = tuple(attributes.get("tags", "").replace(",", " ").split())
    for tag in tags:
        if tag not in MEASURED_TAGS:
            refuse(f'tag "{tag}" is not allowed', f"Known: {', '.join(MEASURED_TAGS)}")
    text = _uncommented(path, line, body) if kind == "markdown" else "\n".join(body)
    text = "\n".join(row.rstrip() if kind == "code" else row for row in text.split("\n")).strip("\n")
    if not text.strip():
        refuse(f'cell "{key}" is empty', "Fill it or delete it")
    return Cell(kind, key, text, line, lang, attributes.get("src", ""), tags)


def _uncommented(path: Path, line: int, body: list[str]) -> str:
    rows = []
    for offset, row in enumerate(body, start=1):
        if row.strip() and row != "#" and not row.startswith("# "):
            raise SourceError(path, line + offset, 'markdown line without "# "', 'Put "# " before it')
        rows.append(row[2:])
    return "\n".join(rows)


def _refuse_doubles(path: Path, cells: list[Cell]) -> None:
    seen: dict[str, Cell] = {}
    for index, cell in enumerate(cells):
        first = seen.setdefault(cell.key, cell)
        if first is cell:
            continue
        siblings = {first.lang, cell.lang} == set(LANGUAGES) and first.kind == cell.kind
        if not siblings or cells[index - 1] is not first:
            way_out = "A key stands once, or once in each language in adjacent cells of one kind"
            raise SourceError(
                path, cell.line, f'key "{cell.key}" is used before (line {first.line})', way_out
            )


def _toml(path: Path, line: int, body: list[str]) -> dict:
    try:
        return tomllib.loads(_uncommented(path, line, body))
    except tomllib.TOMLDecodeError as error:
        raise SourceError(path, line, f"[meta] is not TOML: {error}", 'Write TOML behind "# "') from error


def _meta(path: Path, line: int, table: dict) -> Meta:
    def require(true: bool, problem: str, way_out: str):
        if not true:
            raise SourceError(path, line, f"[meta] {problem}", way_out)

    unknown = set(table) - _KNOWN_META
    require(
        not unknown, f"has unknown {', '.join(sorted(unknown))}", f"Known: {', '.join(sorted(_KNOWN_META))}"
    )
    for name in ("number", "slug", "title", "t4"):
        require(name in table, f"has no {name}", "See docs/lessons.md")
    for name in ("title", "t4", "paper"):
        value = table.get(name, dict.fromkeys(LANGUAGES, "-"))
        both = isinstance(value, dict) and all(str(value.get(lang, "")).strip() for lang in LANGUAGES)
        require(both, f"[{name}] lacks a language", f"Write it in {' and '.join(LANGUAGES)}")
    meta = Meta(
        number=table["number"],
        slug=table["slug"],
        title=table["title"],
        t4=table["t4"],
        needs=tuple(table.get("needs", ())),
        rooms=tuple(table.get("rooms", ())),
        paper=table.get("paper", {}),
    )
    require(path.stem == meta.stem, f"says {meta.stem}", f"The file must then be called {meta.stem}.py")
    return meta
