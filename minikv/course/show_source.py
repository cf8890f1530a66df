"""Shows source of minikv in a notebook, as the package has it: coloured, with the file's line numbers and a link.

A lesson does not copy code of the package but shows it. The output has the lines with their numbers, so nbval finds a
notebook that differs from the package. A function of nano that is an exercise is folded: a click, or Enter on its line,
opens it.
"""

import inspect
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.metadata import PackageNotFoundError, metadata
from itertools import groupby
from pathlib import Path
from typing import Any

import minikv
from minikv.course.show import show
from minikv.course.your_engine.engine import my_engine
from minikv.course.your_engine.flat import first_line, node_of, source
from minikv.course.your_engine.parts import PARTS, Part
from minikv.errors import ArgumentError
from minikv.i18n import text
from minikv.shown import shown_html

PACKAGE = Path(minikv.__file__).parent


def show_source(*objects: Any) -> None:
    """Display the source of functions, methods, classes or modules of minikv, one below the other.

    Each stands under its file's name, which links to these lines in the repository; a kernel of Triton is shown with
    its decorator. What the learner writes in an exercise is folded, under a line in the language of the last
    ``start(...)``. The text form has all lines with their numbers. Without a notebook the text is printed. Raises
    ``ArgumentError`` for what is not minikv's, and for a call without an object.
    """
    if not objects:
        raise ArgumentError("not_ours_to_show", what="()")
    show(_Excerpts([_excerpt(thing) for thing in objects], my_engine.lang))


@dataclass(frozen=True)
class _Excerpt:
    """``code`` begins at line ``first`` of ``path``, relative to the folder of the package."""

    path: str
    first: int
    code: str

    @property
    def place(self) -> str:
        return f"{self.path}:{self.first}-{self.first + self.code.count(chr(10))}"

    def text(self) -> str:
        return "\n".join([self.place, "", *_numbered(self.first, self.code.split("\n"))])

    def html(self, lang: str) -> str:
        repository = _repository()
        head = escape(self.place)
        if repository:
            lines = f"#L{self.first}-L{self.first + self.code.count(chr(10))}"
            address = f"{repository}/blob/main/{self.path}{lines}"
            head = f'<a href="{escape(address)}" target="_blank" rel="noopener">{head}</a>'
        return f"<p>{head}</p>{''.join(self._blocks(lang))}"

    def _blocks(self, lang: str) -> Iterator[str]:
        """The lines as ``<pre>``, each part of the learner's engine among them in a closed ``<details>``."""
        lines = _numbered(self.first, coloured(self.code), '<span class="number-of-line">{}</span>')
        done = 0
        for first, last, part in _parts_in(self.path):
            begin, end = first - self.first, last - self.first + 1
            if begin >= 0 and end <= len(lines):
                yield _pre(lines[done:begin])
                summary = text("course.write_it_first", lang, name=part.name, id=part.task)
                folded = _pre(lines[begin:end])
                yield f"<details><summary>{escape(summary)}</summary>{folded}</details>"
                done = end
        yield _pre(lines[done:])


@dataclass(frozen=True)
class _Excerpts:
    """Excerpts as a view for ``show``."""

    excerpts: list[_Excerpt]
    lang: str

    def text(self) -> str:
        return "\n\n".join(each.text() for each in self.excerpts)

    def _repr_mimebundle_(self) -> dict[str, str]:
        body = "".join(each.html(self.lang) for each in self.excerpts)
        return {"text/html": shown_html(body, "source"), "text/plain": self.text()}


def _excerpt(thing: Any) -> _Excerpt:
    found: Any = getattr(thing, "fn", thing) if type(thing).__module__.startswith("triton.") else thing
    found = found.fget if isinstance(found, property) else found
    try:
        found = inspect.unwrap(found)
        file = inspect.getsourcefile(found)
        lines, first = inspect.getsourcelines(found)
    except (TypeError, OSError):  # a number; a built-in; code typed without a file
        file = None
    if file is None or not Path(file).resolve().is_relative_to(PACKAGE.resolve()):
        raise ArgumentError("not_ours_to_show", what=_name(thing))
    path = Path(file).resolve().relative_to(PACKAGE.resolve().parent).as_posix()
    return _Excerpt(path, max(first, 1), textwrap.dedent("".join(lines)).rstrip("\n"))


def _parts_in(path: str) -> list[tuple[int, int, Part]]:
    """The parts of the learner's engine that the file has: first line, last line, part; in the file's order."""
    parts = [part for part in PARTS if path == f"minikv/nano/{part.module}.py"]
    nodes = [node_of(source(f"nano/{part.module}.py"), part) for part in parts]
    return sorted(
        (first_line(node), node.end_lineno or 0, part) for node, part in zip(nodes, parts, strict=True)
    )


def _pre(lines: list[str]) -> str:
    return f'<pre tabindex="0">{chr(10).join(lines)}</pre>' if lines else ""


def _name(thing: Any) -> str:
    """The object's name; else its type, since a value may be long."""
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    return name if isinstance(name, str) else type(thing).__name__


def _numbered(first: int, lines: list[str], form: str = "{}") -> list[str]:
    width = len(str(first + len(lines) - 1))
    return [f"{form.format(f'{first + i:>{width}}')}  {line}".rstrip() for i, line in enumerate(lines)]


def coloured(code: str) -> list[str]:
    """Return the lines of ``code``, Python, as HTML: a span for each run of one kind of token."""
    from pygments import lex
    from pygments.lexers.python import PythonLexer

    lines: list[list[tuple[str, str]]] = [[]]
    for token, letters in lex(code, PythonLexer(stripnl=False, ensurenl=False)):
        for number, piece in enumerate(letters.split("\n")):
            if number:
                lines.append([])
            if piece:
                lines[-1].append((_kind(token), piece))
    return ["".join(_span(kind, run) for kind, run in groupby(line, lambda pair: pair[0])) for line in lines]


def _span(kind: str, run: Any) -> str:
    code = escape("".join(piece for _, piece in run), quote=False)
    return f'<span class="{kind}">{code}</span>' if kind else code


def _kind(token: Any) -> str:
    from pygments.token import Comment, Keyword, Name, Number, Operator, String

    kinds = {
        "comment": (Comment,),
        "string": (String,),
        "number": (Number,),
        "name": (Name.Function, Name.Class, Name.Decorator),
        "keyword": (Keyword, Operator.Word),
        "builtin": (Name.Builtin,),
    }
    return next((kind for kind, tokens in kinds.items() if any(token in each for each in tokens)), "")


@cache
def _repository() -> str | None:
    """The address in pyproject.toml of a checkout, else in the metadata of the installed package."""
    file = PACKAGE.parent / "pyproject.toml"
    if file.is_file():
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == "minikv":  # not the project of a folder that minikv was installed into
            return project["urls"]["Source"]
    try:
        links = metadata("minikv").get_all("Project-URL") or []
    except PackageNotFoundError:
        return None
    return next((link.partition(", ")[2] for link in links if link.startswith("Source, ")), None)
