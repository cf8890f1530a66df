"""Hashes that say whether a notebook still is what its source, the tool and the package give."""

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

HERE = Path(__file__).parent
# These only judge or start; a change to them leaves every notebook as it is.
_NOT_MAKERS = {
    "__init__",
    "__main__",
    "build",
    "check",
    "check_notebook",
    "check_source",
    "glossary",
    "hashes",
    "nbval_rules",
    "structure",
    "tics",
}
_RUNNERS = ("execute.py", "photos.py")


def source_stamp(source_text: str) -> str:
    """Stands in the notebook: its source and everything in the tool that shapes a notebook."""
    return _digest(source_text.encode(), *_tool_files())


def run_key(code_cells: Sequence[dict], package: str) -> str:
    """What outputs depend on: the code in order (ids, tags, text), the package, and how the tool runs it.

    ``package`` is ``package_stamp``'s answer. Prose is not in it: a new sentence needs no new run.
    """
    parts = [[cell["id"], cell["metadata"].get("tags", []), cell["source"]] for cell in code_cells]
    return _digest(json.dumps(parts).encode(), package.encode(), *((HERE / n).read_bytes() for n in _RUNNERS))


def outputs_stamp(code_cells: Sequence[dict]) -> str:
    """Hash of the outputs that a file holds, so that outputs put there by hand or by git are noticed."""
    parts = [[cell["id"], cell["execution_count"], cell["outputs"]] for cell in code_cells]
    return _digest(json.dumps(parts, sort_keys=True).encode())


def package_stamp(root: Path) -> str:
    """Hash of every file of the minikv package (code, data, messages), names included."""
    files = [p for p in (root / "minikv").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    parts = [b"%s\0%s" % (p.relative_to(root).as_posix().encode(), p.read_bytes()) for p in sorted(files)]
    return _digest(*parts)


@lru_cache(maxsize=1)
def _tool_files() -> tuple[bytes, ...]:
    return tuple(p.read_bytes() for p in sorted(HERE.glob("*.py")) if p.stem not in _NOT_MAKERS)


def _digest(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:16]
