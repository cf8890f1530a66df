"""Every test of the project, part by part, with the seconds that each took.

    python -m tools.run_tests [--quick] [--only PART ...]

``--quick`` leaves out the browser, the wheel and the tests marked slow, and runs only notebooks that differ
from the last commit. All parts run even if one fails; the exit code is 1 if any did.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOTEBOOK_FOLDERS = ("notebooks", "solutions", "exercises")
JOBS = "2"
NBVAL = [
    *("-p", "tools.notebooks.nbval_rules", "--nbval", "--nbval-current-env"),
    *("--nbval-cell-timeout=60", "--nbval-kernel-startup-timeout=180"),
    *("-n", JOBS, "--dist", "loadfile", "-q"),
]


@dataclass(frozen=True)
class Part:
    """One part of the suite: the commands to run, given whether the run is quick. No commands: nothing to do."""

    name: str
    commands: Callable[[bool], list[list[str]]]
    quick: bool = True


def python(*arguments: str) -> list[str]:
    return [sys.executable, "-m", *arguments]


def unit(quick: bool) -> list[list[str]]:
    slow = ["-m", "not slow"] if quick else []
    return [python("pytest", "tests", "--ignore=tests/browser", "--ignore=tests/wheel", "-n", JOBS, *slow)]


def notebooks(quick: bool) -> list[list[str]]:
    chosen = changed_notebooks() if quick else [name for name in NOTEBOOK_FOLDERS if (ROOT / name).is_dir()]
    return [python("pytest", *NBVAL, *chosen)] if chosen else []


def changed_notebooks() -> list[str]:
    """Notebooks that differ from the last commit, or that git does not know yet."""
    command = ["git", "status", "--porcelain", "--untracked-files=all", "--", *NOTEBOOK_FOLDERS]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(line[3:] for line in lines if line.endswith(".ipynb") and (ROOT / line[3:]).is_file())


PARTS = [
    Part("lint", lambda quick: [python("ruff", "check", "."), python("ruff", "format", "--check", ".")]),
    Part("types", lambda quick: [python("mypy")]),
    Part("unit", unit),
    Part("lessons", lambda quick: [python("tools.notebooks", "check")]),
    Part("nbval", notebooks),
    Part("browser", lambda quick: [python("pytest", "tests/browser", "-n", JOBS)], quick=False),
    Part("wheel", lambda quick: [python("pytest", "tests/wheel")], quick=False),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="unit tests and changed notebooks")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], help="these parts alone")
    options = parser.parse_args()
    chosen = [
        part
        for part in PARTS
        if (part.name in options.only if options.only else part.quick or not options.quick)
    ]
    # Tests bring their own models; a library that looks for one on the network should fail at once. Jobs that run side
    # by side have a core each: with more threads they wait for each other, some of them thirty times as long.
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0"}
    environment |= {
        "MINIKV_PROGRESS": "off",
        "MINIKV_LEADERBOARD": "off",
    }  # what tests solve is nobody's progress
    results = []
    for part in chosen:
        start = time.perf_counter()
        codes = []
        for command in part.commands(options.quick):
            print(f"== {part.name}: {' '.join(command[2:])}", flush=True)
            codes.append(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)
        results.append((part.name, time.perf_counter() - start, not any(codes)))
    print("\npart        seconds")
    for name, seconds, passed in results:
        print(f"{name:<10}{seconds:9.1f}  {'ok' if passed else 'FAILED'}")
    print(f"{'total':<10}{sum(seconds for _, seconds, _ in results):9.1f}")
    return 0 if all(passed for _, _, passed in results) else 1


if __name__ == "__main__":
    sys.exit(main())
