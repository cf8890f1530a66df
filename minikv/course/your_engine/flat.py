"""nano's seven files as one text that needs no minikv, with a learner's functions in place of nano's.

The text is cut out of the package's own sources: nano, its errors and their sentences, and ``alone.py`` for the rest.
"""

import ast
import builtins
import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files

from minikv.course.your_engine.kept import KeptPart
from minikv.course.your_engine.parts import Part
from minikv.errors import ConfigError

# Each imports only from those before it.
MODULES = ("sequence", "block_manager", "scheduler", "kv_cache", "runner", "attention", "llm")
TINY_ONLY = {"TINY"}  # the models that ship with minikv, which an exported file does not find

Import = tuple[str, str, str]  # "from module import name as bound"; name is "" in "import module as bound"


@dataclass(frozen=True)
class Yours:
    """A learner's ``part`` as it was ``kept``; ``mark`` is the comment above it."""

    part: Part
    kept: KeptPart
    mark: str


@dataclass(frozen=True)
class Module:
    """The source of a module, and the names at its top level."""

    code: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.code)

    @property
    def imports(self) -> set[Import]:
        return {found for node in self.tree.body for found in imports_of(node)}

    @property
    def tried(self) -> set[Import]:
        """The optional imports: those in a ``try``."""
        return {
            found
            for node in self.tree.body
            if isinstance(node, ast.Try)
            for inner in node.body
            for found in imports_of(inner)
        }

    @property
    def names(self) -> set[str]:
        """The names that the module defines."""
        return {name for node in self.tree.body for name in names_of(node)}

    def cut(self, without: Collection[str], put: Mapping[ast.stmt, str]) -> str:
        """The text without docstring, imports and definitions of ``without``; ``put`` stands in place of nodes."""
        docstring, *rest = self.tree.body
        gone = [node for node in rest if any(imports_of(node)) or set(without) & set(names_of(node))]
        lines = self.code.splitlines()
        changed = {docstring: "", **dict.fromkeys(gone, ""), **put}
        for node, instead in sorted(changed.items(), key=lambda item: -item[0].lineno):
            first = first_line(node) - 1
            while not instead and first and lines[first - 1].startswith("#"):
                first -= 1  # include the comment above the removed code
            lines[first : node.end_lineno] = instead.splitlines()
        return "\n".join(lines).strip()


def flatten(yours: Collection[Yours], docstring: str) -> str:
    """The whole file, which begins with ``docstring``.

    Raises ``ConfigError`` where a function of ``yours`` uses names that only minikv has.
    """
    alone, errors = source("course/your_engine/alone.py"), source("errors.py")
    nano = {name: source(f"nano/{name}.py") for name in MODULES}
    modules = [alone, errors, *nano.values()]
    imports = {one for module in modules for one in module.imports if not one[0].startswith("minikv")}
    there = imports | {one for module in modules for one in module.tried}
    known = {(module, name) for each in nano.values() for module, name, _ in each.imports}
    known |= {(f"minikv.nano.{key}", name) for key, module in nano.items() for name in module.names}
    taken = {bound_by(one) for one in there} | {name for module in modules for name in module.names}
    for part in yours:  # an import that hides no name of the file goes to the file's head
        for asked in (asked for node in ast.parse(part.kept.needs).body for asked in imports_of(node)):
            foreign = asked[0].partition(".")[0] not in ("minikv", "__future__")
            if foreign and bound_by(asked) not in taken | set(dir(builtins)):
                imports.add(asked)
                there.add(asked)
                taken.add(bound_by(asked))
    instead = alone.names | TINY_ONLY
    texts, behind = list[str](), list[str]()
    for name, module in nano.items():
        put = dict[ast.stmt, str]()
        for one in yours:
            if one.part.module == name:
                node = node_of(module, one.part)
                put[node], more = placed(one, node, there, known)
                behind += filter(None, [more])
        texts.append(f"{heading(name, ast.get_docstring(module.tree))}\n\n\n{module.cut(instead, put)}")
    if behind:
        texts.append(
            "\n\n\n".join([heading("yours", "Parts of yours that bring along what they need."), *behind])
        )
    wanted = {name for module in (alone, *nano.values()) for _, name, _ in module.imports} - instead
    raised = errors.cut(errors.names - used_in(errors, wanted, instead), {})
    base = node_named(alone.tree, "MiniKVError")
    put = {
        node_named(alone.tree, "SENTENCES"): sentences("\n".join([*texts, raised, alone.code])),
        base: f"{ast.get_source_segment(alone.code, base)}\n\n\n{raised}",
    }
    texts.append(f"{heading('alone', 'In place of minikv.')}\n\n\n{alone.cut((), put)}")
    body = re.sub(r"\n{4,}", "\n\n\n", "\n\n\n".join(texts))
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    head = "from __future__ import annotations"  # a class may be named above its definition
    return f'"""{docstring}"""\n\n{head}\n\n{import_lines(imports, used)}\n\n{body}\n'


def source(path: str) -> Module:
    return Module((files("minikv") / path).read_text(encoding="utf-8"))


def imports_of(node: ast.stmt) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from ((one.name, "", one.asname or "") for one in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from ((node.module or "", one.name, one.asname or "") for one in node.names)


def bound_by(one: Import) -> str:
    """The name that an import binds."""
    module, name, bound = one
    return bound or name or module.partition(".")[0]


def names_of(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of the top level defines; within an ``if`` too."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    elif isinstance(node, ast.If):
        yield from (name for inner in node.body for name in names_of(inner))


def node_named(tree: ast.AST, name: str) -> ast.stmt:
    """The first statement in ``tree``, at any depth, that defines ``name``."""
    return next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and not isinstance(node, ast.If) and name in names_of(node)
    )


def node_of(module: Module, part: Part) -> ast.stmt:
    return node_named(node_named(module.tree, part.owner) if part.owner else module.tree, part.name)


def first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])


def used_in(module: Module, wanted: set[str], but: set[str]) -> set[str]:
    """``wanted`` of the module's names, and the names that they use in turn, without those of ``but``."""
    found: set[str] = set()
    names = module.names - but
    todo = wanted & names
    while todo:
        found |= todo
        nodes = [node_named(module.tree, name) for name in todo]
        inner = {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}
        todo = (inner & names) - found
    return found


def sentences(code: str) -> str:
    """The English sentences of the errors that ``code`` raises, as the source of a dict."""
    known = tomllib.loads((files("minikv") / "messages" / "errors.toml").read_text(encoding="utf-8"))
    constants = (node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant))
    strings = {value for value in constants if isinstance(value, str)}
    lines = ["SENTENCES = {  # the code of an error: its sentence"]
    for key in sorted(strings & known.keys()):
        wrapped = textwrap.wrap(known[key]["en"], 90, drop_whitespace=False)
        quoted = [json.dumps(piece) for piece in wrapped]
        inner = quoted if len(quoted) == 1 else ["(", *(f"    {piece}" for piece in quoted), ")"]
        lines += f"{json.dumps(key)}: {(chr(10)).join(inner)},".splitlines()
    return "\n    ".join(lines) + "\n}"


def placed(yours: Yours, node: ast.stmt, there: set[Import], known: set[tuple[str, str]]) -> tuple[str, str]:
    """The text in place of ``node``, and the text behind all of nano.

    The learner's definition takes its place. A definition that needs more than the file has stands behind, in a
    function with its needs, where every name of nano is defined. A kernel stays in place, where Triton has been
    imported. ``there`` are the file's imports, and ``known`` the (module, name) of nano.
    """
    part, defined, code = yours.part, yours.kept.name, yours.kept.source.strip()
    needs = "\n".join(needed_here(yours, there, known))
    if not needs and defined == part.name:
        return indented(f"# {yours.mark}\n{code}", node.col_offset), ""
    maker = f"_{part.name}_of_{part.task.replace('.', '_')}"
    inside = "\n\n".join(filter(None, (needs, code, f"return {defined}")))
    make = f"# {yours.mark}\ndef {maker}():\n{indented(inside, 4)}\n\n\n{part.qualname} = {maker}()"
    if node.col_offset and not part.owner:
        return indented(make, node.col_offset), ""
    return indented(f"# {yours.mark}; it stands behind nano, as {maker}", node.col_offset), make


def needed_here(yours: Yours, there: set[Import], known: set[tuple[str, str]]) -> Iterator[str]:
    """The statements that ``yours`` needs and the file does not have."""
    lines = yours.kept.needs.splitlines()
    for node in ast.parse(yours.kept.needs).body:
        asked = list(imports_of(node))
        if not asked:
            yield "\n".join(lines[first_line(node) - 1 : node.end_lineno])
        for one in asked:
            module, name, bound = one
            if module.partition(".")[0] == "minikv":
                if (module, name) not in known:
                    what = f"{module}.{name}".rstrip(".")
                    raise ConfigError("export_needs_minikv", task=yours.part.task, name=what)
                if bound not in ("", name):
                    yield f"{bound} = {name}"
            elif one not in there and module != "__future__":
                yield import_line([one])


def indented(code: str, spaces: int) -> str:
    """``code`` further to the right. A string of several lines keeps its text, unless it is a docstring."""
    tree = ast.parse(code)
    said = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = [n for n in ast.walk(tree) if isinstance(n, ast.Constant | ast.JoinedStr) and n not in said]
    inside = {line for n in strings for line in range(n.lineno + 1, (n.end_lineno or n.lineno) + 1)}
    lines = enumerate(code.splitlines(), 1)
    return "\n".join(line if n in inside or not line else " " * spaces + line for n, line in lines)


def heading(name: str, words: str | None) -> str:
    """A comment as wide as the page, with the words of a module's docstring."""
    lines = [f"{f' {name} ':-^108}", *(words or "").splitlines()]
    return "\n".join(f"# {line}".rstrip() for line in lines)


def import_lines(imports: Collection[Import], used: set[str]) -> str:
    """The imports with names in ``used``, in the order of isort: the standard library, then the others."""
    statements: dict[tuple[bool, bool, str, str], list[Import]] = {}
    for one in sorted(imports):
        module, name, bound = one
        if bound_by(one) in used:
            package = module.partition(".")[0]
            key = (package not in sys.stdlib_module_names, bool(name), module, bound)
            statements.setdefault(key, []).append(one)
    blocks = (
        [import_line(statements[key]) for key in sorted(statements) if key[0] is foreign]
        for foreign in (False, True)
    )
    return "\n\n".join("\n".join(block) for block in blocks)


def import_line(ours: list[Import]) -> str:
    """One statement for all imports from one module."""
    module, first, _ = ours[0]
    names = [f"{name} as {bound}" if bound else name for _, name, bound in ours]
    names.sort(key=lambda name: (not name.isupper(), name[:1].islower(), name))
    return f"from {module} import {', '.join(names)}" if first else f"import {module}{names[0]}"
