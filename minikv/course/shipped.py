"""The notebooks that ship with the package, and their copy in a reader's folder.

In a wheel they lie beside this file; in a checkout they lie at its root. A file is overwritten only if its cells are
those that minikv itself wrote; outputs do not count, since Jupyter changes a file that was only opened. A notebook that
the reader has changed stays, and the newer one is written beside it as ``NAME.new.ipynb``; if the reader has changed
that too, as ``NAME.new2.ipynb``, and so on.

A notebook that asks for predictions is copied without its outputs: they hold the answers. On GitHub, on Colab and in a
checkout it has them.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

FOLDERS = ("notebooks", "exercises", "solutions")
LEDGER = ".minikv.json"  # the files that minikv wrote there: {relative path: ``Marks`` as text}


@dataclass(frozen=True)
class Yours:
    """A notebook that the reader has changed, and the place of the newer one (None: there is no newer one)."""

    name: str
    newer: str | None


@dataclass(frozen=True)
class Marks:
    """The identity of a notebook: the SHA-256 of its ``file``, and of its ``cells`` ("" where these are not known)."""

    file: str
    cells: str = ""

    @classmethod
    def of(cls, content: bytes) -> "Marks":
        return cls(_digest(content), _digest_of_cells(content))

    def same(self, other: "Marks | None") -> bool:
        """Whether both have the same file, or the same cells."""
        return other is not None and (self.file == other.file or self.cells == other.cells != "")


@dataclass(frozen=True)
class CopyReport:
    """``new`` notebooks written, ``kept`` with the cells of the shipped ones, ``yours`` that the reader has changed."""

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
        content = without_answers((root / relative).read_bytes())
        marks, name = Marks.of(content), relative.as_posix()
        there, written = _marks_there(target / name), ledger.get(name)
        unopened = there is not None and written is not None and there.file == written.file != marks.file
        if there is None or unopened:
            _write(target / name, content)
            new += 1
        elif there.same(marks):
            kept += 1
        elif there.same(written):
            _write(target / name, content)
            new += 1
        else:
            # The ledger holds the version last offered, so that it is not offered twice.
            beside = None if marks.same(written) else _write_beside(target, name, content, ledger)
            yours.append(Yours(name, beside))
        ledger[name] = marks
    # The ledger comes last: after an interruption minikv then takes its own files for the reader's, not the reverse.
    lines = {name: f"{marks.file} {marks.cells}".strip() for name, marks in ledger.items()}
    _write(target / LEDGER, json.dumps(lines, indent=1, sort_keys=True).encode())
    return CopyReport(new, kept, tuple(yours))


def without_answers(content: bytes) -> bytes:
    """Return a notebook without outputs if one of its cells calls ``predict``, any other as it is."""
    if b"predict(" not in content:
        return content
    notebook = json.loads(content)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return (json.dumps(notebook, ensure_ascii=False, indent=1) + "\n").encode()


def _write_beside(target: Path, name: str, content: bytes, ledger: dict[str, Marks]) -> str:
    """Put ``content`` under the first name beside ``name`` that holds no work of the reader's."""
    marks = Marks.of(content)
    for beside in _names_beside(name):
        there = _marks_there(target / beside)
        if there is not None and there.same(marks):
            break
        if there is None or there.same(ledger.get(beside)):
            _write(target / beside, content)
            break
    ledger[beside] = marks
    return beside


def _names_beside(name: str) -> Iterator[str]:
    """``00.new.ipynb``, ``00.new2.ipynb``, ``00.new3.ipynb``, … for ``00.ipynb``."""
    stem = name.removesuffix(".ipynb")
    yield f"{stem}.new.ipynb"
    yield from (f"{stem}.new{number}.ipynb" for number in count(2))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest_of_cells(content: bytes) -> str:
    """The digest of the kind and the source of each cell, which a reader can write. "" where it is no notebook.

    Empty cells are left out: JupyterLab adds one when the last cell is run.
    """
    try:
        cells = [(str(cell["cell_type"]), "".join(cell["source"])) for cell in json.loads(content)["cells"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return _digest(json.dumps([cell for cell in cells if cell[1].strip()]).encode())


def _marks_there(place: Path) -> Marks | None:
    """The marks of the file at ``place``, None where there is none."""
    return Marks.of(place.read_bytes()) if place.exists() else None


def _write(place: Path, content: bytes) -> None:
    """Write all of the file or none of it: an interruption leaves the old one."""
    place.parent.mkdir(parents=True, exist_ok=True)
    half = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        half.write_bytes(content)
        os.replace(half, place)
    finally:
        half.unlink(missing_ok=True)


def _read_ledger(target: Path) -> dict[str, Marks]:
    """The files of earlier copies. A damaged ledger counts as empty: then every changed file is the reader's.

    A ledger of the first versions has the digest of the file alone.
    """
    try:
        loaded = json.loads((target / LEDGER).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(loaded, dict):
        return {}
    words = {name: value.split() for name, value in loaded.items() if isinstance(value, str)}
    return {name: Marks(*each) for name, each in words.items() if len(each) in (1, 2)}
