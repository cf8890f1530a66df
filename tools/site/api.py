"""The public names of the package, read from its files: nothing is imported, so no torch is needed.

A room's ``__init__.py`` says which names are public and where each is defined. Of a name the reference has its
signature, its docstring, the public methods of a class, and the line of the repository.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path

from tools.project import Project
from tools.site.markdown import code_html

ROOMS = "plan blocks memory cache kernels eviction models nano engine simulate course".split()
_DOTTED = re.compile(r'(?<!">)<code>(minikv(?:\.\w+)+)</code>')  # not what is a link, or a heading
_CODE = re.compile(r"``(.+?)``", re.DOTALL)
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Name:
    """A public name: "plan_memory" of "minikv.plan", as its file defines it."""

    room: str
    name: str
    path: str  # of its file, below the repository's root
    line: int
    signature: str
    said: str  # its docstring
    members: tuple["Name", ...] = ()

    @property
    def short(self) -> str:
        """The first sentence of its docstring."""
        first = " ".join(self.said.partition("\n\n")[0].split())
        return re.split(r"(?<=\.) ", first)[0]


def public_names(root: Path, room: str) -> list[Name]:
    """The names of ``room`` ("minikv.plan"), sorted. Raises ``LookupError`` for one that no file defines."""
    folder = Path(*room.split("."))
    tree = _parsed(root / folder / "__init__.py")
    public: list[str] = next(
        (
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and _is_all(node)
        ),
        [],
    )
    homes = _imported(tree)
    return [_named(root, room, name, homes[name]) for name in sorted(public, key=str.lower) if name in homes]


@cache
def keys(root: Path, room: str) -> frozenset[str]:
    """The ids of a room's page: its names, and the methods of its classes ("CacheSpec.explain")."""
    names = public_names(root, room)
    return frozenset(each.name for name in names for each in (name, *name.members))


def linked(html: str, address: Callable[[str], str | None]) -> str:
    """Let each dotted name of the package that stands in ``html`` as code lead to ``address(name)``, if it has one."""

    def link(found: re.Match[str]) -> str:
        there = address(found[1])
        return f'<a href="{escape(there)}">{found[0]}</a>' if there else found[0]

    return _DOTTED.sub(link, html)


def room_said(root: Path, room: str) -> str:
    """The docstring of a room."""
    return ast.get_docstring(_parsed(root / Path(*room.split(".")) / "__init__.py")) or ""


def name_html(name: Name, project: Project, words: dict[str, str], level: int = 2) -> str:
    """A name as a section; the ids of members have their class in front."""
    source = f'<a class="source" href="{project.file(name.path)}#L{name.line}">{words["source"]}</a>'
    key = name.name
    members = "".join(name_html(member, project, words, level + 1) for member in name.members)
    return (
        f'<section class="name"><h{level} id="{escape(key)}"><code>{escape(key)}</code>{source}</h{level}>'
        f"{code_html(name.signature)}{said_html(name.said)}{members}</section>\n"
    )


def said_html(said: str) -> str:
    """A docstring as HTML: paragraphs, lists, examples, and ``code``."""
    parts = []
    for block in re.split(r"\n\s*\n", said.strip("\n")):
        lines = block.splitlines()
        if not lines:
            continue
        if all(line.startswith("    ") for line in lines) or lines[0].lstrip().startswith(">>>"):
            parts.append(code_html(inspect.cleandoc(block), "pycon" if ">>>" in block else "text"))
        elif lines[0].startswith("- "):
            items = re.split(r"\n(?=- )", block)
            listed = "".join(f"<li>{_inline(item.removeprefix('- '))}</li>" for item in items)
            parts.append(f"<ul>{listed}</ul>")
        else:
            parts.append(f"<p>{_inline(block)}</p>")
    return "\n".join(parts)


def _inline(text: str) -> str:
    return _CODE.sub(lambda found: f"<code>{found[1]}</code>", escape(" ".join(text.split())))


def _is_all(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _imported(tree: ast.Module) -> dict[str, str]:
    """{a name that the file imports: the module that it imports it from}, what only a type checker reads included."""
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def _named(root: Path, room: str, name: str, home: str) -> Name:
    path = _file(root, home)
    for node in _parsed(root / path).body:
        if isinstance(node, Definition) and node.name == name:
            return _read(room, node, path, name)
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in _targets(node):
            return Name(room, name, path, node.lineno, ast.unparse(node)[:400], "")
    imported = _imported(_parsed(root / path))
    if name not in imported:
        raise LookupError(f"{path} does not define {name}")
    return _named(root, room, name, imported[name])


def _file(root: Path, module: str) -> str:
    path = Path(*module.split("."))
    return (path / "__init__.py" if (root / path).is_dir() else path.with_suffix(".py")).as_posix()


def _targets(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _read(room: str, node: Definition, path: str, name: str) -> Name:
    members = tuple(_members(room, node, path)) if isinstance(node, ast.ClassDef) else ()
    return Name(room, name, path, node.lineno, _signature(node), ast.get_docstring(node) or "", members)


def _members(room: str, node: ast.ClassDef, path: str) -> Iterator[Name]:
    """Public methods and properties that say something of themselves."""
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_") and ast.get_docstring(inner):
            yield _read(room, inner, path, f"{node.name}.{inner.name}")


def _signature(node: Definition) -> str:
    """The definition without its body; of a class the arguments that it is made with."""
    if isinstance(node, ast.ClassDef):
        return _class_signature(node)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    decorators = [f"@{ast.unparse(one)}\n" for one in node.decorator_list if isinstance(one, ast.Name)]
    return "".join(decorators) + _wrapped(f"def {node.name}", node.args, returns)


def _class_signature(node: ast.ClassDef) -> str:
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            return _wrapped(f"class {node.name}", inner.args, "", skip=1)
    fields = [
        inner
        for inner in node.body
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name)
    ]
    public = [ast.unparse(one) for one in fields if not ast.unparse(one.target).startswith("_")]
    bases = ", ".join(map(ast.unparse, node.bases))
    head = f"class {node.name}({bases})" if bases else f"class {node.name}"
    return "\n".join([f"{head}:", *(f"    {one}" for one in public)]) if public else head


def _wrapped(head: str, arguments: ast.arguments, behind: str, skip: int = 0) -> str:
    """``head(arguments)behind`` on one line, or one argument a line."""
    own = ast.arguments(
        posonlyargs=arguments.posonlyargs,
        args=arguments.args[skip:],
        vararg=arguments.vararg,
        kwonlyargs=arguments.kwonlyargs,
        kw_defaults=arguments.kw_defaults,
        kwarg=arguments.kwarg,
        defaults=arguments.defaults,
    )
    line = f"{head}({ast.unparse(own)}){behind}"
    if len(line) <= 88:
        return line
    listed = "".join(f"    {part},\n" for part in _split(ast.unparse(own)))
    return f"{head}(\n{listed}){behind}"


def _split(text: str) -> Iterator[str]:
    """Arguments, apart: at the commas outside of brackets and quotes."""
    depth, begin, quoted = 0, 0, ""
    for at, letter in enumerate(text):
        if quoted:
            quoted = "" if letter == quoted else quoted
        elif letter in "'\"":
            quoted = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and not depth:
            yield text[begin:at].strip()
            begin = at + 1
    yield text[begin:].strip()
