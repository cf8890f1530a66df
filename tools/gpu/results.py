"""The files of figures: whether one still says what this tree would say, and how two folders become one.

A file ``NAME.cuda.json`` lies beside the CPU's ``NAME.json`` and never replaces it. It holds "device", "versions",
"complete" (false until the last row) and "rows", and the stamp of the part that wrote it: "sources", a digest of
the files that its figures rest on, and "seconds".
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.report import replace_json
from tools.gpu.machine import Machine

ENDING = ".cuda.json"


def read(path: Path) -> dict[str, Any] | None:
    """The file's content, or None where there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


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
    if machine is not None and found.get("device") != machine.device:
        return f"stale: measured on {found.get('device')}"
    then = str(found.get("versions", {}).get("torch", "none"))
    if machine is not None and _release(then) != _release(machine.torch):
        return f"stale: measured with torch {then}"
    return ""


def stamp(path: Path, *, sources: str, seconds: float) -> None:
    """Say what the rows in the file rest on, and how long they took. Without a file there is nothing to stamp."""
    found = read(path)
    if found is not None:
        replace_json(path, found | {"sources": sources, "seconds": round(seconds, 1)})


def merge(source: Path, target: Path) -> list[str]:
    """Take the files of ``source`` into ``target``; one line for each. What was cut replaces nothing that is whole."""
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


def _release(version: str) -> list[str]:
    """ "2.11.0+cu128" and "2.11.1" are one release."""
    return version.split(".")[:2]
