"""The notebooks that ship with the package, and how they come to a reader's folder.

In a wheel they lie beside this file; in a checkout they lie at its root. A notebook that the reader has
changed is never overwritten: the newer one is written beside it as ``NAME.new.ipynb``.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("notebooks", "exercises", "solutions")
LEDGER = ".minikv.json"  # what minikv itself wrote there: {relative path: sha256}


@dataclass(frozen=True)
class CopyReport:
    """``new`` notebooks written, ``kept`` that were already as shipped, ``yours`` changed by the reader and left."""

    new: int
    kept: int
    yours: tuple[str, ...]


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
        digest = hashlib.sha256(content).hexdigest()
        place, name = target / relative, relative.as_posix()
        there = hashlib.sha256(place.read_bytes()).hexdigest() if place.exists() else None
        if there == digest:
            kept += 1
        elif there is None or there == ledger.get(name):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            new += 1
        else:
            yours.append(name)
            if ledger.get(name) != digest:
                place.with_suffix(".new.ipynb").write_bytes(content)
        ledger[name] = digest
    (target / LEDGER).write_text(json.dumps(ledger, indent=1, sort_keys=True), encoding="utf-8")
    return CopyReport(new, kept, tuple(yours))


def _read_ledger(target: Path) -> dict[str, str]:
    """What an earlier copy wrote. A damaged ledger counts as none: then every changed file is the reader's."""
    try:
        loaded = json.loads((target / LEDGER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}
