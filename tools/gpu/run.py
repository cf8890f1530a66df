"""Runs one part in processes of its own, ends it after 9 minutes at the latest, and keeps what it has written."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import SOURCES, replace_json
from tools.gpu.machine import Machine
from tools.gpu.parts import SMOKE_LIMIT_S, Part
from tools.gpu.record_tests import RUNNING
from tools.gpu.results import ENDING, can_go_on, read, rows_of, stamp
from tools.gpu.sources import digest, installed, missing_libraries

LIMIT_S = 530  # under 9 minutes, with the time to stop and to stamp the file
BY_ITSELF = (0, 1, 5)  # what pytest says when it has come to its end: good, something failed, nothing to run
# A test that is skipped on a GPU has said nothing, so its part has failed, unless the machine or the tool is to blame.
EXPECTED_SKIPS = {
    r"could not import 'accelerate'": "models spread over devices are made by a library that need not be here",
    r"compute-sanitizer is not installed": "it comes with CUDA's toolkit, not with torch",
    r"compute-sanitizer cannot watch": "some machines do not let one process watch another one's GPU",
    r"needs compute capability": "older cards lack a format or an instruction",
}


@dataclass(frozen=True)
class Outcome:
    """``state``: "done", "failed", "cut" or "skipped"; ``note`` says what was left out, and why."""

    name: str
    state: str
    seconds: float = 0.0
    note: str = ""


def run_part(
    part: Part, root: Path, out: Path, limit_s: float = LIMIT_S, machine: Machine | None = None
) -> Outcome:
    """Run ``part`` with the tree at ``root``; its figures go to ``out``. Never raises for what the part does.

    What an earlier run that was cut has kept there stays, and is not measured again, where neither the files nor
    ``machine`` have changed.
    """
    files, left_out = loadable(part, root)
    if not files:
        return Outcome(part.name, "skipped", note=left_out)
    if left_out:
        print(f"{part.name}: {left_out}", flush=True)
    json_file = out.resolve() / part.result
    assert json_file.name.endswith(ENDING)  # the CPU's figures lie beside it
    out.mkdir(parents=True, exist_ok=True)
    sources = digest(root, part.files)
    before = 0.0
    if can_go_on(json_file, sources, machine):
        before = (read(json_file) or {}).get("seconds", 0.0)
        print(f"{part.name}: {len(rows_of(json_file))} rows of the run before are kept", flush=True)
    else:
        json_file.unlink(missing_ok=True)
    variables = {SOURCES: sources, **dict(part.variables)}
    limit_s = min(limit_s, SMOKE_LIMIT_S) if part.kind == "smoke" else limit_s
    begin = time.monotonic()
    commands, codes = part.commands(json_file, files), []
    try:
        for command in commands:
            codes.append(_run_to_its_end(command, root, begin + limit_s, variables, json_file))
            if codes[-1] is None:
                break
    finally:  # a run that is ended from outside keeps the rows, too
        seconds = time.monotonic() - begin
        ended = len(codes) == len(commands) and all(code in BY_ITSELF for code in codes)
        whole = ended if part.kind == "tests" else None
        stamp(json_file, sources=sources, seconds=before + seconds, complete=whole)
    if None in codes:
        note = f"{len(rows_of(json_file))} rows are kept in {json_file}; run it again to go on"
        return Outcome(part.name, "cut", seconds, "; ".join(filter(None, [note, left_out])))
    state, notes = "failed" if any(codes) else "done", [left_out]
    if part.kind == "tests":
        problems = _problems(json_file)
        state = "failed" if problems or not ended else "done"
        notes = [_counts(json_file), *problems, left_out]
    return Outcome(part.name, state, seconds, "; ".join(filter(None, notes)))


def _run_to_its_end(
    command: list[str], root: Path, deadline: float, variables: dict[str, str], json_file: Path
) -> int | None:
    """The exit code of ``command``; None where the time was up.

    It is run again where a test has killed its process: that test has failed, and the others still have something
    to say. Tests that have a row are not run twice.
    """
    while True:
        known = len(rows_of(json_file))
        left = deadline - time.monotonic()
        code = _run([sys.executable, "-m", *command], root, left, variables) if left > 0 else None
        if command[0] != "pytest" or code is None or code in BY_ITSELF:
            return code
        killer = _blame(json_file, code)
        if not killer and len(rows_of(json_file)) == known:
            return code  # it cannot even begin
        print(f"{killer or 'the process'} ended with code {code}; the other tests go on", flush=True)


def _blame(json_file: Path, code: int) -> str:
    """The test that ran when its process died, now a failed one; "" where none did."""
    found = read(json_file) or {}
    for row in found.get("rows", []):
        if row.get("outcome") == RUNNING:
            row |= {"outcome": "failed", "reason": f"the process ended with code {code}"}
            replace_json(json_file, found)
            return str(row["test"])
    return ""


def _counts(json_file: Path) -> str:
    """ "12 passed, 1 failed, 3 skipped"."""
    outcomes = [row.get("outcome") for row in rows_of(json_file)]
    return ", ".join(f"{outcomes.count(kind)} {kind}" for kind in ("passed", "failed", "skipped"))


def _problems(json_file: Path) -> list[str]:
    """Why a part of tests that has ended has failed: a test that did, no test at all, a skip that is not listed."""
    rows = rows_of(json_file)
    found = [] if rows else ["no test ran"]
    found += [f"failed: {row['test']}" for row in rows if row.get("outcome") == "failed"][:5]
    for row in rows:
        reason = str(row.get("reason", ""))
        if row.get("outcome") == "skipped" and not any(re.search(known, reason) for known in EXPECTED_SKIPS):
            found.append(f"skipped without a reason that is listed: {row['test']} ({reason})")
    return found


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
    """Of a child: this tree before any installed one, and nothing from the network.

    What is compiled lies in the tree's build folder, which can be carried from one machine to the next.
    """
    found = os.environ.get("PYTHONPATH")
    path = f"{root}{os.pathsep}{found}" if found else str(root)
    fixed = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
    off = {"MINIKV_PROGRESS": "off", "MINIKV_LEADERBOARD": "off"}
    compiled = {
        "TRITON_CACHE_DIR": str(root / "build/triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(root / "build/inductor"),
    }
    return {**compiled, **os.environ, **fixed, **off, "COLUMNS": "100"}


def _run(command: list[str], root: Path, limit_s: float, variables: dict[str, str]) -> int | None:
    """The exit code; None where the time was up. It and its children form a group, so that all of them end."""
    child = subprocess.Popen(
        command, cwd=root, env=environment(root.resolve()) | variables, start_new_session=True
    )
    try:
        return child.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
