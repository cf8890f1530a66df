"""The tests of the project, part by part, with the seconds that each took beside its budget.

    python -m tools.run_tests [--quick | --all] [--only PART ...]

``--quick`` leaves out the browser, the wheel and the tests marked slow, and runs only notebooks that differ
from the last commit. ``--all`` adds the tests marked long and the Chinese notebooks of lessons that did not change:
what a release runs. All parts run even if one fails;
the exit code is 1 if any did. A part over its budget is pointed out and fails nothing: the machine may be busy.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.changes import lesson_changed

ROOT = Path(__file__).parent.parent
NOTEBOOK_FOLDERS = ("notebooks", "solutions", "exercises")
JOBS = "2"
NBVAL = [
    *("-p", "tools.notebooks.nbval_rules", "--nbval", "--nbval-current-env"),
    *("--nbval-cell-timeout=60", "--nbval-kernel-startup-timeout=180"),
    *("-n", JOBS, "--dist", "loadfile", "-q"),
]


QUICK, USUAL, ALL = range(3)  # the scope of a run: each runs what the one before does, and more
MARKS = {QUICK: "not slow and not long", USUAL: "not long", ALL: ""}  # which tests of a file


@dataclass(frozen=True)
class Part:
    """One part of the suite: its commands, given the scope of the run (none: nothing to do).

    ``budget`` is what the part may take with ``USUAL`` on two idle cores, in seconds.
    """

    name: str
    budget: int
    commands: Callable[[int], list[list[str]]]
    scope: int = QUICK  # the smallest that runs the part


def python(*arguments: str) -> list[str]:
    return [sys.executable, "-m", *arguments]


def tests(scope: int, *paths: str) -> list[str]:
    return python("pytest", *paths, "-n", JOBS, "-m", MARKS[scope])


def unit(scope: int) -> list[list[str]]:
    return [tests(scope, "tests", "--ignore=tests/browser", "--ignore=tests/wheel")]


def notebooks(scope: int) -> list[list[str]]:
    if scope == QUICK:
        chosen = changed_notebooks()
    else:
        chosen = [f"{name}/en" for name in NOTEBOOK_FOLDERS] + chinese_notebooks(scope)
    return [python("pytest", *NBVAL, *chosen)] if chosen else []


def changed_notebooks() -> list[str]:
    """Notebooks that differ from the last commit, or that git does not know yet."""
    command = ["git", "status", "--porcelain", "--untracked-files=all", "--", *NOTEBOOK_FOLDERS]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(line[3:] for line in lines if line.endswith(".ipynb") and (ROOT / line[3:]).is_file())


def chinese_notebooks(scope: int) -> list[str]:
    """Those of lessons that this branch changed; for the others the English ones stand (docs/testing.md)."""
    found = (path for name in NOTEBOOK_FOLDERS for path in sorted((ROOT / name / "zh").glob("*.ipynb")))
    return [path.relative_to(ROOT).as_posix() for path in found if scope == ALL or lesson_changed(path.stem)]


PARTS = [
    Part("lint", 5, lambda scope: [python("ruff", "check", "."), python("ruff", "format", "--check", ".")]),
    Part("types", 45, lambda scope: [python("mypy")]),
    Part("unit", 400, unit),
    Part("lessons", 10, lambda scope: [python("tools.notebooks", "check")]),
    Part("nbval", 200, notebooks),
    Part("browser", 150, lambda scope: [tests(scope, "tests/browser")], scope=USUAL),
    Part("wheel", 90, lambda scope: [[*tests(scope, "tests/wheel"), "--dist", "loadfile"]], scope=USUAL),
]


def report(results: list[tuple[Part, float, bool]]) -> str:
    """A line for each part: its seconds, its budget, whether its tests passed."""
    lines = ["part        seconds   budget"]
    for part, seconds, passed in results:
        over = "  over its budget" if seconds > part.budget else ""
        lines.append(f"{part.name:<10}{seconds:9.1f}{part.budget:9}  {'ok' if passed else 'FAILED'}{over}")
    total = sum(seconds for _, seconds, _ in results)
    return "\n".join([*lines, f"{'total':<10}{total:9.1f}{sum(part.budget for part, *_ in results):9}"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--quick", action="store_true", help="the inner loop: no browser, no wheel, no slow test"
    )
    group.add_argument(
        "--all", action="store_true", help="also the tests marked long, both languages: what a release runs"
    )
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], help="these parts alone")
    options = parser.parse_args(arguments)
    scope = QUICK if options.quick else ALL if options.all else USUAL
    chosen = [part for part in PARTS if (part.name in options.only if options.only else part.scope <= scope)]
    # Tests bring their own models; a library that looks for one on the network should fail at once. Jobs that run side
    # by side have a core each: with more threads they wait for each other, some of them thirty times as long.
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0"}
    # What tests solve is nobody's progress
    environment |= {
        "MINIKV_PROGRESS": "off",
        "MINIKV_LEADERBOARD": "off",
    }
    # Hundreds of processes import the same modules, each worker rewrites the asserts of all tests: compiled once.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    results = []
    for part in chosen:
        start = time.perf_counter()
        codes = []
        for command in part.commands(scope):
            print(f"== {part.name}: {' '.join(command[2:])}", flush=True)
            codes.append(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)
        results.append((part, time.perf_counter() - start, not any(codes)))
    print("\n" + report(results))
    return 0 if all(passed for _, _, passed in results) else 1


if __name__ == "__main__":
    sys.exit(main())
