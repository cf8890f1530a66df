"""Runs one part as a process of its own, ends it after 9 minutes at the latest, and keeps what it has written."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tools.gpu.parts import Part
from tools.gpu.results import ENDING, read, stamp
from tools.gpu.sources import digest, installed, missing_libraries

LIMIT_S = 530  # under 9 minutes, with the time to stop and to stamp the file


@dataclass(frozen=True)
class Outcome:
    """``state``: "done", "failed", "cut" or "skipped"; ``note`` says what was left out, and why."""

    name: str
    state: str
    seconds: float = 0.0
    note: str = ""


def run_part(part: Part, root: Path, out: Path, limit_s: float = LIMIT_S) -> Outcome:
    """Run ``part`` with the tree at ``root``; its figures go to ``out``. Never raises for what the part does."""
    files, left_out = loadable(part, root)
    if not files:
        return Outcome(part.name, "skipped", note=left_out)
    if left_out:
        print(f"{part.name}: {left_out}", flush=True)
    json_file = out.resolve() / part.result
    assert json_file.name.endswith(ENDING)  # the CPU's figures lie beside it
    out.mkdir(parents=True, exist_ok=True)
    json_file.unlink(missing_ok=True)
    sources = digest(root, part.files)
    begin = time.monotonic()
    try:
        code = _run([sys.executable, "-m", *part.command(json_file, files)], root, limit_s)
    finally:  # whoever ends us keeps the rows, too
        seconds = time.monotonic() - begin
        stamp(json_file, sources=sources, seconds=seconds)
    if code is None:
        rows = len((read(json_file) or {}).get("rows", []))
        note = f"{rows} rows are kept in {json_file}"
        return Outcome(part.name, "cut", seconds, "; ".join(filter(None, [note, left_out])))
    notes = [_counts(json_file) if part.kind == "tests" else "", left_out]
    return Outcome(part.name, "failed" if code else "done", seconds, "; ".join(filter(None, notes)))


def _counts(json_file: Path) -> str:
    """ "12 passed, 1 failed, 3 skipped": a test that is skipped on a GPU has said nothing."""
    outcomes = [row.get("outcome") for row in (read(json_file) or {}).get("rows", [])]
    return ", ".join(f"{outcomes.count(kind)} {kind}" for kind in ("passed", "failed", "skipped"))


def loadable(part: Part, root: Path) -> tuple[tuple[str, ...], str]:
    """The files of a part that can be loaded here, and a sentence about those that cannot and about what they lack."""
    if part.kind == "lessons":  # they bring stand-ins for the libraries that draw
        return part.files, ""
    if part.kind == "tests" and not installed("pytest"):
        return (), "needs pytest"
    lacking = {name: missing_libraries(root, [name]) for name in part.files}
    files = tuple(name for name, libraries in lacking.items() if not libraries)
    notes = [f"{name} needs {', '.join(libraries)}" for name, libraries in lacking.items() if libraries]
    return files, f"left out: {'; '.join(notes)}" if notes else ""


def environment(root: Path) -> dict[str, str]:
    """Of a child: this tree before any installed one, and nothing from the network."""
    found = os.environ.get("PYTHONPATH")
    path = f"{root}{os.pathsep}{found}" if found else str(root)
    fixed = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
    off = {"MINIKV_PROGRESS": "off", "MINIKV_LEADERBOARD": "off"}
    return {**os.environ, **fixed, **off, "COLUMNS": "100"}


def _run(command: list[str], root: Path, limit_s: float) -> int | None:
    """The exit code; None where the time was up. It and its children form a group, so that all of them end."""
    child = subprocess.Popen(command, cwd=root, env=environment(root.resolve()), start_new_session=True)
    try:
        return child.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
