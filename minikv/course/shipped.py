"""The notebooks that ship with the package, and how they come to a reader's folder.

In a wheel they lie beside this file; in a checkout they lie at its root. A file is overwritten only where its
content is one that minikv itself wrote. A notebook that the reader has changed stays, and the newer one is
written beside it as ``NAME.new.ipynb``; where the reader works in that too, as ``NAME.new2.ipynb``, and so on.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

FOLDERS = ("notebooks", "exercises", "solutions")
LEDGER = ".minikv.json"  # what minikv itself wrote there: {relative path: sha256}


@dataclass(frozen=True)
class Yours:
    """A notebook that the reader has changed, and where the newer one was put (None: there is no newer one)."""

    name: str
    newer: str | None


@dataclass(frozen=True)
class CopyReport:
    """``new`` notebooks written, ``kept`` that were already as shipped, ``yours`` changed by the reader and left."""

    new: int
    kept: int
    yours: tuple[Yours, ...]


def course_root() -> Path:
    """The folder that holds ``notebooks``, ``exercises`` and ``solutions``."""
    beside = Path(__file__).parent / "shipped"
    return beside if beside.is_dir() else Path(__file__).parents[2]


def shipped_notebooks() -> list[Path]:
    """Every generated notebook, relative to ``course_root()``."""
    root = course_root()
    found = [
        path for folder in FOLDERS for lang in ("en", "zh") for path in (root / folder / lang).glob("*.ipynb")
    ]
    return sorted(path.relative_to(root) for path in found)


def copy_course(target: Path) -> CopyReport:
    """Copy the course into ``target``. Raises ``OSError`` where that cannot be written."""
    root, new, kept, yours = course_root(), 0, 0, []
    target.mkdir(parents=True, exist_ok=True)
    ledger = _read_ledger(target)
    for relative in shipped_notebooks():
        content = (root / relative).read_bytes()
        digest, name = _digest(content), relative.as_posix()
        there = _digest_there(target / name)
        if there == digest:
            kept += 1
        elif there is None or there == ledger.get(name):
            _write(target / name, content)
            new += 1
        else:
            # The ledger holds what was last offered: the same version is not offered twice.
            offered = ledger.get(name) == digest
            yours.append(Yours(name, None if offered else _write_beside(target, name, content, ledger)))
        ledger[name] = digest
    # Last: after an interruption the old ledger makes minikv take its own files for the reader's, not the reverse.
    _write(target / LEDGER, json.dumps(ledger, indent=1, sort_keys=True).encode())
    return CopyReport(new, kept, tuple(yours))


def _write_beside(target: Path, name: str, content: bytes, ledger: dict[str, str]) -> str:
    """Put ``content`` under the first name beside ``name`` that holds no work of the reader's."""
    digest = _digest(content)
    for beside in _names_beside(name):
        there = _digest_there(target / beside)
        if there == digest:
            break
        if there is None or there == ledger.get(beside):
            _write(target / beside, content)
            break
    ledger[beside] = digest
    return beside


def _names_beside(name: str) -> Iterator[str]:
    """``00.new.ipynb``, ``00.new2.ipynb``, ``00.new3.ipynb``, … for ``00.ipynb``."""
    stem = name.removesuffix(".ipynb")
    yield f"{stem}.new.ipynb"
    yield from (f"{stem}.new{number}.ipynb" for number in count(2))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest_there(place: Path) -> str | None:
    """The digest of the file at ``place``, None where there is none."""
    return _digest(place.read_bytes()) if place.exists() else None


def _write(place: Path, content: bytes) -> None:
    """Write all of the file or none of it: an interruption leaves what was there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    half = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        half.write_bytes(content)
        os.replace(half, place)
    finally:
        half.unlink(missing_ok=True)


def _read_ledger(target: Path) -> dict[str, str]:
    """What an earlier copy wrote. A damaged ledger counts as none: then every changed file is the reader's."""
    try:
        loaded = json.loads((target / LEDGER).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}
