"""Run lessons without Jupyter, and keep what their cells tagged ``hardware`` or ``timing`` print on this machine.

    python -m tools.gpu.lessons --json FILE [--only 06 08] [--lang en]

One row a lesson, each in a process of its own: its code cells run in one namespace in the order of the notebook,
every measured cell's text is kept, the error of a cell that fails, and which cells were left out because they need a
library that is not here. Without ``--only``: every lesson that has a
measured cell.
"""

import argparse
import ast
import contextlib
import io
import json
import linecache
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.report import kept, write_rows
from tools.gpu.parts import measured_lessons
from tools.gpu.sources import digest, installed
from tools.gpu.standins import stand_in
from tools.notebooks.source import Source, read_source

ROOT = Path(__file__).resolve().parents[2]
LESSON_S = 120  # a lesson takes 1 to 20 s on 2 CPU cores


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu.lessons", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--json", type=Path, required=True, help="write a row a lesson here, after each of them"
    )
    parser.add_argument("--only", nargs="+", metavar="NUMBER", help='these lessons, as "06"')
    parser.add_argument("--lang", default="en", choices=["en", "zh"])
    # The child: run this source, print its row
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one is not None:
        print(json.dumps(run_lesson(read_source(options.one), options.lang)))
        return 0
    chosen = [_find(number) for number in options.only or ()] or measured_lessons(ROOT)
    rows: list[dict[str, Any]] = kept(options.json).get("rows", [])  # of a run that was cut
    done = {row["lesson"] for row in rows}
    chosen = [path for path in chosen if path.stem.split("_")[0] not in done]
    for place, path in enumerate(chosen, start=1):
        begin = time.monotonic()
        row = in_a_process(path, options.lang)
        row["seconds"] = round(time.monotonic() - begin, 1)
        row["sources"] = digest(ROOT, [str(path.relative_to(ROOT))])
        rows.append(row)
        write_rows(options.json, rows, complete=place == len(chosen))
        left_out = [f"{key} {why}" for key, why in row["left_out"].items()]
        said = row["error"] or f"{row['cells']} cells ran" + "".join(
            f"; left out: {name}" for name in left_out
        )
        print(f"lesson {row['lesson']}: {said}, {row['seconds']} s", flush=True)
    return 1 if any(row["error"] for row in rows) else 0


def in_a_process(path: Path, lang: str) -> dict[str, Any]:
    """The row of one lesson; a lesson that dies or hangs takes nothing with it."""
    child = [sys.executable, "-m", "tools.gpu.lessons", "--json", "-", "--one", str(path), "--lang", lang]
    empty = _empty_row(path, lang)
    try:
        environment = {**os.environ, "MINIKV_PROGRESS": "off", "MINIKV_LEADERBOARD": "off"}
        done = subprocess.run(
            child, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LESSON_S, check=False
        )
    except subprocess.TimeoutExpired:
        return empty | {"error": f"did not end within {LESSON_S} s"}
    if done.returncode:
        return empty | {"error": f"exit code {done.returncode}: {done.stderr.strip()[-500:]}"}
    return json.loads(done.stdout.splitlines()[-1])


def _empty_row(path: Path, lang: str) -> dict[str, Any]:
    """``measured`` maps a cell's key to what it printed, ``left_out`` one to the reason; ``error`` is "" or a line."""
    number = path.stem.split("_")[0]
    return {
        "lesson": number,
        "lang": lang,
        "cells": 0,
        "measured": {},
        "left_out": {},
        "missing": [],
        "error": "",
    }


def run_lesson(source: Source, lang: str) -> dict[str, Any]:
    """Run the code cells here and return the row.

    A cell that imports a library which is not here is left out (lesson 16 asks IPython about itself), and so is
    one that uses a name which such a cell would have made; any other error ends the lesson.
    """
    row = _empty_row(source.path, lang)
    row["missing"] = stand_in()
    number = row["lesson"]
    begin = f'from minikv.course import start\ncheck, predict, explain, show, t = start("{number}", lang="{lang}")'
    cells = [cell for cell in source.in_language(lang) if cell.kind == "code"]
    space: dict[str, Any] = {"__name__": "__main__"}
    unmade: set[str] = set()
    for key, text, tags in [("setup", begin, ()), *((cell.key, cell.text, cell.tags) for cell in cells)]:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                run_cell(f"<lesson {number}, {key}>", text, space)
            row["cells"] += key != "setup"
        except Exception as error:
            absent = _absent(error, unmade)
            if absent:
                row["left_out"][key] = f"needs {absent}"
                unmade |= _made_by(text)
                continue
            row["error"] = f"cell {key}: {type(error).__name__}: {error}"
        if tags:
            row["measured"][key] = printed.getvalue().rstrip()
        if row["error"]:
            break
    return row


def _absent(error: Exception, unmade: set[str]) -> str:
    """The library or name that is not here and need not be; "" for every other error."""
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        library = error.name.split(".")[0]
        return "" if installed(library) else library
    return error.name if isinstance(error, NameError) and error.name in unmade else ""


def _made_by(text: str) -> set[str]:
    """The names that a cell assigns, defines or imports."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
    return names


def run_cell(name: str, text: str, space: dict[str, Any]) -> None:
    """Run a cell as a notebook does: what its last expression gives is printed, unless that is None."""
    # A function that a cell defines is asked for its source by `check`.
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    tree = ast.parse(text)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), space)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval"), space)
        if value is not None:
            print(repr(value))


def _find(number: str) -> Path:
    found = sorted((ROOT / "notebooks/src").glob(f"{number}_*.py"))
    if not found:
        raise SystemExit(f"no lesson {number} in notebooks/src")
    return found[0]


if __name__ == "__main__":
    sys.exit(main())
