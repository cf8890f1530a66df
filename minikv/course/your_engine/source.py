"""Source: the text of a learner's function, and all that it uses of the notebook, so that it runs on its own. No torch.

This module calls no code of the learner's, not even a method of an object: it reads only functions, classes, modules
and plain values, by their exact types.
"""

import ast
import inspect
import linecache
import math
import symtable
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

from minikv.errors import MiniKVError

_MOST_CHARS = 20_000  # of a constant's source
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_CELL_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as IPython compiles a cell
_FUTURE_ANNOTATIONS = 0x1000000  # __future__.annotations.compiler_flag


class NotKeptError(MiniKVError):
    """The source of a function cannot be kept: ``values`` name the function and the obstacle."""


@dataclass
class Source:
    """A function as text. ``needs``: imports, constants and helpers, in an order in which they run."""

    name: str
    text: str
    needs: str = ""


def source_of(fn: object) -> Source:
    """The source of ``fn`` and of what it uses. Raises ``NotKeptError`` where that is not enough to run it."""
    plain = _plain_function(fn)
    if plain is None:
        raise NotKeptError("not_kept_object", name=type(fn).__name__)
    if plain.__name__ == "<lambda>":
        raise NotKeptError("not_kept_lambda")
    needs = _Needs(plain)
    text = needs.add_function(plain)
    return Source(plain.__name__, text, needs.written())


def _plain_function(fn: Any) -> FunctionType | None:
    """The function under decorators that keep it: ``@triton.jit``, ``@torch.no_grad()``, ``@functools.cache``."""
    for _ in range(10):
        if type(fn) is FunctionType:
            inner = fn.__dict__.get("__wrapped__")
            if inner is None:
                return fn
            fn = inner
        elif type(fn).__module__.partition(".")[0] in ("triton", "functools"):
            inside = vars(fn)
            fn = inside.get("fn", inside.get("__wrapped__"))
        else:
            break
    return None


@dataclass
class _Needs:
    """The names that functions of one notebook use of it, found one after the other."""

    root: FunctionType
    imports: dict[str, None] = field(default_factory=dict)  # used as ordered sets
    constants: dict[str, None] = field(default_factory=dict)
    texts: dict[str, None] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def written(self) -> str:
        first = [line for line in self.imports if "__future__" in line]
        others = [line for line in self.imports if "__future__" not in line]
        parts = ["\n".join([*first, *others]), "\n".join(self.constants), *self.texts]
        return "\n\n\n".join(part for part in parts if part)

    def add_function(self, fn: FunctionType) -> str:
        """Add all that ``fn`` uses; return its own text."""
        if [name for name in fn.__code__.co_freevars if name != "__class__"]:
            raise NotKeptError("not_kept_closure", name=fn.__name__, uses=", ".join(fn.__code__.co_freevars))
        text = _text_of(fn)
        self._seen.add(fn.__name__)
        if fn.__code__.co_flags & _FUTURE_ANNOTATIONS:
            self.imports.setdefault("from __future__ import annotations")
        self._add_names(text, fn.__globals__, fn.__name__)
        return text

    def _add_names(self, text: str, space: dict[str, Any], owner: str) -> None:
        tree = ast.parse(text)
        for name in _names_used(text):
            if name in self._seen or name not in space:
                continue  # a builtin, or an undefined name: its call raises NameError
            self._seen.add(name)
            try:
                self._add(name, space[name], owner, tree)
            except NotKeptError:
                if name not in _annotations(tree):
                    raise
                self.imports.setdefault("from __future__ import annotations")

    def _add(self, name: str, value: Any, owner: str, tree: ast.Module) -> None:
        kind = type(value)
        if kind is ModuleType:
            self._add_module(name, value, tree)
            return
        if _is_plain(value):
            self.constants.setdefault(f"{name} = {value!r}")
            return
        function = _plain_function(value)
        if function is not None and self._is_theirs(function):
            text = self.add_function(function)
            self._add_text(name, function.__name__, text)
        elif issubclass(kind, type) and self._is_theirs(value):
            of_class = _class_text(value)
            if of_class is None:
                raise NotKeptError("not_kept_source", name=name)
            self._add_names(of_class, self.root.__globals__, name)
            self._add_text(name, value.__name__, of_class)
        elif (line := _import_of(name, value)) is not None:
            self.imports.setdefault(line)
        else:
            raise NotKeptError("not_kept_value", name=owner, uses=name, kind=kind.__name__)

    def _add_text(self, name: str, own: str, text: str) -> None:
        self.texts.setdefault(text)
        if name != own:
            self.texts.setdefault(f"{name} = {own}")

    def _add_module(self, name: str, module: ModuleType, tree: ast.Module) -> None:
        path = module.__name__
        if sys.modules.get(path) is not module or path == "__main__":
            raise NotKeptError("not_kept_value", name=self.root.__name__, uses=name, kind="module")
        self.imports.setdefault(f"import {path}" if name == path else f"import {path} as {name}")
        for node in ast.walk(tree):  # `import concurrent.futures` binds only the first of its names
            inner = _dotted(node)
            if inner and inner[0] == name:
                modules = [".".join([path, *inner[1:end]]) for end in range(2, len(inner) + 1)]
                loaded = [each for each in modules if type(sys.modules.get(each)) is ModuleType]
                if loaded and name == path:
                    self.imports.setdefault(f"import {loaded[-1]}")

    def _is_theirs(self, thing: Any) -> bool:
        """Whether ``thing`` is defined in the notebook or the file of the learner's function."""
        module = thing.__module__
        return module == self.root.__module__ or module == "__main__" or module not in sys.modules


def _text_of(fn: FunctionType) -> str:
    """The lines of ``fn``; they must still compile to the same code."""
    try:
        text = textwrap.dedent(inspect.getsource(fn))
        tree = ast.parse(text)
        # Compiled code may depend on the imports above it: a file is compiled whole, a cell by its statements.
        flags = _CELL_FLAGS | fn.__code__.co_flags & _FUTURE_ANNOTATIONS
        units = [tree, ast.parse("".join(inspect.findsource(fn)[0]))]
        made = [compile(unit, "<kept>", "exec", flags, dont_inherit=True) for unit in units]
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        raise NotKeptError("not_kept_source", name=fn.__name__) from None
    whole = len(tree.body) == 1 and isinstance(tree.body[0], ast.FunctionDef)
    rewritten = fn.__globals__.get(fn.__name__) is not fn and _is_kernel(fn.__globals__.get(fn.__name__))
    if not whole or not (
        rewritten or any(_same_code(code, fn.__code__) for unit in made for code in _codes(unit))
    ):
        raise NotKeptError("not_kept_source", name=fn.__name__)
    return text.rstrip() + "\n"


def _is_kernel(value: object) -> bool:
    """Whether ``value`` is a function decorated by Triton; its interpreter rewrites the function inside."""
    return type(value).__module__.partition(".")[0] == "triton"


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


def _same_code(one: CodeType, other: CodeType) -> bool:
    """Whether two functions have the same code, at whatever lines."""
    if (one.co_name, one.co_names, one.co_varnames, one.co_code) != (
        other.co_name,
        other.co_names,
        other.co_varnames,
        other.co_code,
    ):
        return False
    if len(one.co_consts) != len(other.co_consts):
        return False
    return all(
        _same_code(a, b)
        if isinstance(a, CodeType) and isinstance(b, CodeType)
        else (type(a), a) == (type(b), b)
        for a, b in zip(one.co_consts, other.co_consts, strict=True)
    )


def _class_text(kind: type) -> str | None:
    """The text of a learner's class: from the newest cell or file with a class of its name and methods."""
    methods = {name for name, value in vars(kind).items() if type(value) is FunctionType}
    for lines in reversed([entry[2] for entry in linecache.cache.values() if len(entry) == 4]):
        text = "".join(lines)
        if f"class {kind.__name__}" not in text:
            continue
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError):
            continue
        for node in body:
            if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
                defined = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
                if defined <= methods | set(vars(kind)):
                    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                    return "".join(lines[first - 1 : node.end_lineno]).rstrip() + "\n"
    return None


def _names_used(text: str) -> list[str]:
    """The names that ``text`` looks up outside of it, in order."""
    found: dict[str, None] = {}

    def look(table: symtable.SymbolTable) -> None:
        top = table.get_type() == "module"
        for symbol in table.get_symbols():
            if (top and symbol.is_referenced()) or (not top and symbol.is_global()):
                found.setdefault(symbol.get_name())
        for child in table.get_children():
            look(child)

    look(symtable.symtable(text, "<kept>", "exec"))
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]
    order = {node.id: (node.lineno, node.col_offset) for node in reversed(nodes)}
    return sorted(found, key=lambda name: order.get(name, (0, 0)))


def _annotations(tree: ast.Module) -> set[str]:
    """The names that stand in annotations of arguments and results, and nowhere else."""
    inside = {
        id(node)
        for each in ast.walk(tree)
        for annotation in (getattr(each, "annotation", None), getattr(each, "returns", None))
        if annotation is not None
        for node in ast.walk(annotation)
    }
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names[id(node) in inside].add(node.id)
    return names[True] - names[False]


def _import_of(name: str, value: Any) -> str | None:
    """The line that imports ``value`` from where it is defined, or from a module that has it under this name."""
    own = type.__getattribute__(value, "__dict__").get("__module__") if isinstance(value, type) else None
    where = own if type(own) is str else getattr(value, "__module__", None) if _is_known(value) else None
    called = value.__name__ if isinstance(value, type) or _is_known(value) else name
    if type(where) is str and type(called) is str and _holds(sys.modules.get(where), called, value):
        return f"from {where} import {called}" + ("" if called == name else f" as {name}")
    holders = [
        key for key, module in list(sys.modules.items()) if key != "__main__" and _holds(module, name, value)
    ]
    return (
        f"from {min(holders, key=lambda key: (key.count('.'), len(key), key))} import {name}"
        if holders
        else None
    )


def _is_known(value: Any) -> bool:
    return (
        type(value).__name__ in ("function", "builtin_function_or_method")
        and type(value).__module__ == "builtins"
    )


def _holds(module: Any, name: str, value: Any) -> bool:
    return isinstance(module, ModuleType) and vars(module).get(name) is value


def _is_plain(value: Any, depth: int = 4) -> bool:
    """Whether Python reads ``repr(value)`` as the same value."""
    kind = type(value)
    if kind is float:
        return math.isfinite(value)
    if kind is int:
        return value.bit_length() < 4096  # Python refuses to write longer ones
    if kind in _PLAIN:
        return kind not in (str, bytes) or len(value) <= _MOST_CHARS
    if depth == 0 or kind not in (list, tuple, set, frozenset, dict) or len(value) > _MOST_CHARS // 4:
        return False
    items = [*value, *value.values()] if kind is dict else value
    return all(_is_plain(item, depth - 1) for item in items)


def _dotted(node: ast.AST) -> list[str]:
    """``a.b.c`` as its names; [] for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [*reversed([*names, node.id])] if isinstance(node, ast.Name) and names else []
