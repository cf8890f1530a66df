"""Which files of this tree a file rests on: whether a figure is stale, and which libraries it needs."""

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

OURS = ("minikv", "benchmarks", "tests", "tools")
# They say sentences and raise errors: no figure depends on them, and every issue adds to them.
WORDS = ("minikv/errors.py", "minikv/i18n.py", "minikv/units.py", "benchmarks/report.py")


def digest(root: Path, files: Iterable[str]) -> str:
    """16 hex digits of ``files`` (paths from ``root``) and of every file of ours that they import, in any depth."""
    found = hashlib.sha256()
    for name in sorted(closure(root, files)):
        if name not in WORDS:
            found.update(f"{name}\0".encode() + (root / name).read_bytes() + b"\0")
    return found.hexdigest()[:16]


def closure(root: Path, files: Iterable[str], eager: bool = False) -> set[str]:
    """``files`` and every file of ours that they import. ``eager``: only imports that run when a file is loaded."""
    found, open_files = set(), list(files)
    while open_files:
        name = open_files.pop()
        if name in found:
            continue
        found.add(name)
        for module in _imports((root / name).read_text(encoding="utf-8"), eager):
            open_files += _files_of(root, module, eager)
    return found


def missing_libraries(root: Path, files: Iterable[str]) -> list[str]:
    """The top-level libraries that loading ``files`` needs and that are not installed here."""
    names = set()
    for name in closure(root, files, eager=True):
        for module in _imports((root / name).read_text(encoding="utf-8"), eager=True):
            top = module.split(".")[0]
            if top not in OURS and top not in sys.stdlib_module_names:
                names.add(top)
    return sorted(name for name in names if not installed(name))


def installed(name: str) -> bool:
    """Whether ``import name`` would find something."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


@cache  # every part rests on much of the same
def _imports(text: str, eager: bool) -> tuple[str, ...]:
    """Dotted names that a file imports; "a.b.c" for ``from a.b import c``, which may be a file or a name in one."""
    tree, found = ast.parse(text), []
    for node in tree.body if eager else ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(found)


def _files_of(root: Path, module: str, eager: bool) -> list[str]:
    """The file of ``module``; ``eager``: those of the packages that it lies in as well, which importing it runs.

    For a figure the packages do not count: they name every file beside the one that is meant. They do where a name
    is taken from the package itself.
    """
    parts = module.split(".")
    if parts[0] not in OURS:
        return []
    found = []
    for end in range(1, len(parts) + 1):
        stem = "/".join(parts[:end])
        found += [name for name in (f"{stem}.py", f"{stem}/__init__.py") if (root / name).is_file()]
    return found if eager else found[-1:]
