"""The files of figures: whether one still says what this tree would say, and how two folders become one.

A file ``NAME.cuda.json`` lies beside the CPU's ``NAME.json`` and never replaces it. It holds "device", "versions",
"complete" (false until the last row) and "rows", and the stamp of the part that wrote it: "sources", a digest of
the files that its figures rest on, and "seconds".
"""

import json
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import replace_json
from tools.gpu.machine import Machine

ENDING = ".cuda.json"
MOST_BYTES = 2**26  # of one file in an archive


def read(path: Path) -> dict[str, Any] | None:
    """The file's content, or None where there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The file's rows, none where there is no file."""
    return (read(path) or {}).get("rows", [])


def can_go_on(path: Path, sources: str, machine: Machine | None) -> bool:
    """Whether the file is of a run that was cut, of the same files on the same machine: its rows stay."""
    found = read(path)
    return (
        found is not None
        and found.get("complete") is False
        and found.get("sources") == sources
        and not _elsewhere(found, machine)
    )


def seconds_of(path: Path) -> int | None:
    """How long the run took that wrote the file to its end."""
    found = read(path)
    seconds = found.get("seconds") if found and found.get("complete") else None
    return max(1, round(seconds)) if isinstance(seconds, int | float) else None


def why_to_run(path: Path, sources: str, machine: Machine | None) -> str:
    """Why the figures are to be measured (again), in a few words; "" where they hold. No machine: by files alone."""
    found = read(path)
    if found is None:
        return "missing"
    if not found.get("complete"):
        return f"cut after {len(found.get('rows', []))} rows"
    if found.get("sources") != sources:
        return "stale: its files changed"
    elsewhere = _elsewhere(found, machine)
    return f"stale: {elsewhere}" if elsewhere else ""


def _elsewhere(found: dict[str, Any], machine: Machine | None) -> str:
    """Where else the rows come from; "" where it was this machine, or none is named."""
    if machine is None:
        return ""
    if found.get("device") != machine.device:
        return f"measured on {found.get('device')}"
    then = str(found.get("versions", {}).get("torch", "none"))
    return "" if _release(then) == _release(machine.torch) else f"measured with torch {then}"


def stamp(path: Path, *, sources: str, seconds: float, complete: bool | None = None) -> None:
    """Say what the rows in the file rest on, and how long they took; ``complete`` where the part did not say it.

    Without a file there is nothing to stamp.
    """
    found = read(path)
    if found is not None:
        told = {} if complete is None else {"complete": complete}
        replace_json(path, found | {"sources": sources, "seconds": round(seconds, 1), **told})


def merge(source: Path, target: Path) -> list[str]:
    """Take the files of ``source``, a folder or an archive of one, into ``target``; one line for each.

    What was cut replaces nothing that is whole. Raises ``OSError`` or ``tarfile.TarError`` for an archive that cannot
    be read, and for one that holds more than figures.
    """
    if source.is_dir():
        return _merge_folder(source, target)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(source) as archive:
        for member in archive:
            flat = "/" not in member.name and member.name.endswith(ENDING)
            if not (member.isreg() and flat and member.size <= MOST_BYTES):
                raise tarfile.TarError(f"{member.name} is no file of figures")
            archive.extract(member, folder, filter="data")
        return _merge_folder(Path(folder), target)


def _merge_folder(source: Path, target: Path) -> list[str]:
    lines = []
    for path in sorted(source.glob(f"*{ENDING}")):
        new, old = read(path), read(target / path.name)
        if new is None or not isinstance(new.get("rows"), list):
            lines.append(f"unreadable  {path.name}")
        elif new == old:
            lines.append(f"the same    {path.name}")
        elif old and old.get("complete") and not new.get("complete"):
            lines.append(f"kept        {path.name}: the new one was cut after {len(new['rows'])} rows")
        else:
            target.mkdir(parents=True, exist_ok=True)
            replace_json(target / path.name, new)
            lines.append(f"taken       {path.name}: {len(new['rows'])} rows")
    return lines


def archive(folder: Path, file: Path) -> None:
    """Write the files of figures in ``folder`` as one compressed tar, in one step."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.part")
    with tarfile.open(beside, "w:gz") as tar:
        for path in sorted(folder.glob(f"*{ENDING}")):
            tar.add(path, path.name)
    os.replace(beside, file)


def _release(version: str) -> list[str]:
    """ "2.11.0+cu128" and "2.11.1" are one release."""
    return version.split(".")[:2]
